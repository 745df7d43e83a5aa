/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Protection domains, regions, windows (verbs.md §1.2, §4). */
#include <sys/mman.h>

#include "mapped/mapped.h"
#include "object/memory/mapping.h"
#include "object/memory/memory.h"
#include "object_fixture.h"

#define PAGE 4096u

void qp_retire_sends(uint32_t qpn, uint32_t retires)
{
}

static struct pd *make_pd(struct context *owner)
{
    struct pd *pd;

    assert_int_equal(pd_allocate(owner, &pd), 0);
    return pd;
}

static struct mr *make_mr(struct pd *pd, void *address, size_t length, unsigned access)
{
    struct mr *mr;

    assert_int_equal(mr_register(pd, address, length, (uintptr_t)address, access, &mr), 0);
    return mr;
}

static enum verdict check_local(const struct pd *pd, const struct mr *mr, const void *address,
                                uint32_t length)
{
    struct memory_range range;

    return keys_check_local(segment_keys(), pd->number, mr->ibv.lkey, (uintptr_t)address, length, true,
                            &range);
}

static char *map(size_t length, int protection)
{
    char *memory = mmap(NULL, length, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

/* --- is the memory there? ------------------------------------------------------------------------------- */

typedef int check_function(uintptr_t address, size_t length, bool write);

static void check_mappings(check_function *check)
{
    char *memory = map(16 * PAGE, PROT_READ | PROT_WRITE);
    uintptr_t at = (uintptr_t)memory;

    errno = 4711;
    assert_int_equal(check(at, 16 * PAGE, true), 0);
    assert_int_equal(check(at + 5, 3, true), 0);
    assert_int_equal(check(at + 5, 0, true), 0);
    assert_int_equal(check(0, 1, false), -EFAULT);

    mprotect(memory + 4 * PAGE, 2 * PAGE, PROT_READ);
    assert_int_equal(check(at, 16 * PAGE, true), -EFAULT);
    assert_int_equal(check(at, 16 * PAGE, false), 0); /* several mappings, no gap */
    assert_int_equal(check(at, 4 * PAGE, true), 0);
    assert_int_equal(check(at, 4 * PAGE + 1, true), -EFAULT);
    assert_int_equal(check(at + 6 * PAGE - 1, 2, true), -EFAULT);
    assert_int_equal(check(at + 6 * PAGE, 10 * PAGE, true), 0);

    mprotect(memory + 8 * PAGE, PAGE, PROT_NONE);
    assert_int_equal(check(at + 6 * PAGE, 3 * PAGE, false), -EFAULT);
    munmap(memory + 12 * PAGE, PAGE);
    assert_int_equal(check(at + 11 * PAGE, PAGE, true), 0);
    assert_int_equal(check(at + 11 * PAGE, PAGE + 1, true), -EFAULT);
    assert_int_equal(check(at + 12 * PAGE, 1, false), -EFAULT);
    assert_int_equal(check(at + 9 * PAGE, 7 * PAGE, false), -EFAULT); /* a gap in the middle */
    assert_int_equal(errno, 4711);
    munmap(memory, 16 * PAGE);
}

static void mappings_by_query(void **state)
{
    check_mappings(memory_check);
}

static void mappings_by_text(void **state)
{
    check_mappings(memory_check_by_text);
}

static void huge_sparse_regions_stay_sparse(void **state)
{
    size_t length = (size_t)100 << 30;
    char *memory = map(length, PROT_READ | PROT_WRITE);
    struct pd *pd = make_pd(context);
    struct mr *mr = make_mr(pd, memory, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    unsigned char resident[16];

    assert_int_equal(mincore(memory, 16 * PAGE, resident), 0);
    for (int i = 0; i < 16; i++)
        assert_int_equal(resident[i] & 1, 0);
    assert_int_equal(check_local(pd, mr, memory + length - 8, 8), VERDICT_OK);
    assert_int_equal(mr_deregister(mr), 0);
    assert_int_equal(pd_deallocate(pd), 0);
    munmap(memory, length);
}

/* --- regions -------------------------------------------------------------------------------------------- */

static void registration_fills_the_public_struct(void **state)
{
    char buffer[64];
    struct pd *pd = make_pd(context);
    struct mr *mr = make_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct mr *same = make_mr(pd, buffer, sizeof(buffer), 0);

    assert_ptr_equal(mr->ibv.context, &context->verbs.context);
    assert_ptr_equal(mr->ibv.pd, &pd->ibv);
    assert_ptr_equal(mr->ibv.addr, buffer);
    assert_int_equal(mr->ibv.length, sizeof(buffer));
    assert_int_not_equal(mr->ibv.lkey, mr->ibv.rkey);
    assert_int_not_equal(mr->ibv.lkey, same->ibv.lkey);
    assert_int_not_equal(mr->ibv.handle, same->ibv.handle);
    assert_int_equal(check_local(pd, mr, buffer, 64), VERDICT_OK);
    assert_int_equal(check_local(pd, mr, buffer, 65), VERDICT_LOCAL_PROTECTION);
    assert_int_equal(pd_deallocate(pd), -EBUSY);
    assert_int_equal(mr_deregister(mr), 0);
    assert_int_equal(mr_deregister(same), 0);
    assert_int_equal(pd_deallocate(pd), 0);
}

static void registration_checks_access(void **state)
{
    char buffer[64];
    struct pd *pd = make_pd(context);
    struct mr *mr;
    static const struct {
        unsigned access;
        int error;
    } cases[] = {
        {0, 0},
        {IBV_ACCESS_REMOTE_READ, 0},
        {IBV_ACCESS_REMOTE_WRITE, -EINVAL},
        {IBV_ACCESS_REMOTE_ATOMIC, -EINVAL},
        {IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND, 0},
        {IBV_ACCESS_RELAXED_ORDERING, 0},
        {1u << 29, 0},
        {1u << 30, -EINVAL},
        {1u << 12, -EINVAL},
        {IBV_ACCESS_ON_DEMAND, 0},
    };

    for (size_t i = 0; i < array_size(cases); i++) {
        int error = mr_register(pd, buffer, sizeof(buffer), 0, cases[i].access, &mr);

        assert_int_equal(error, cases[i].error);
        if (!error)
            assert_int_equal(mr_deregister(mr), 0);
    }
    assert_int_equal(pd_deallocate(pd), 0);
}

static void registration_checks_the_range(void **state)
{
    char *memory = map(2 * PAGE, PROT_READ);
    struct pd *pd = make_pd(context);
    struct mr *mr;

    assert_int_equal(mr_register(pd, memory, SIZE_MAX, 0, 0, &mr), -EINVAL);
    assert_int_equal(mr_register(pd, memory, PAGE, UINT64_MAX, 0, &mr), -EINVAL);
    assert_int_equal(mr_register(pd, NULL, PAGE, 0, 0, &mr), -EFAULT);
    assert_int_equal(mr_register(pd, memory, PAGE, 0, IBV_ACCESS_LOCAL_WRITE, &mr), -EFAULT);
    mr = make_mr(pd, memory, 2 * PAGE, IBV_ACCESS_REMOTE_READ); /* read-only memory may be read */
    assert_int_equal(mr_deregister(mr), 0);
    assert_int_equal(mr_register(pd, memory, 0, 0, IBV_ACCESS_REMOTE_READ, &mr), -EINVAL);
    assert_int_equal(pd_deallocate(pd), 0);
    munmap(memory, 2 * PAGE);
}

static void iova_translates(void **state)
{
    char buffer[64];
    struct pd *pd = make_pd(context);
    struct memory_range range;
    struct mr *mr;

    assert_int_equal(mr_register(pd, buffer, 64, 0x1000, IBV_ACCESS_LOCAL_WRITE, &mr), 0);
    assert_int_equal(keys_check_local(segment_keys(), pd->number, mr->ibv.lkey, 0x1010, 16, true, &range),
                     VERDICT_OK);
    assert_int_equal(range.address, (uintptr_t)buffer + 16);
    assert_int_equal(check_local(pd, mr, buffer, 1), VERDICT_LOCAL_PROTECTION);
    assert_int_equal(mr_deregister(mr), 0);
    assert_int_equal(pd_deallocate(pd), 0);
}

static void stale_keys_fail(void **state)
{
    char buffer[64];
    struct pd *pd = make_pd(context);
    struct memory_range range;

    for (int i = 0; i < 1000; i++) {
        struct mr *mr = make_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
        uint32_t lkey = mr->ibv.lkey;

        assert_int_equal(mr_deregister(mr), 0);
        mr = make_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
        assert_int_equal(
            keys_check_local(segment_keys(), pd->number, lkey, (uintptr_t)buffer, 1, true, &range),
            VERDICT_LOCAL_PROTECTION);
        assert_int_equal(mr_deregister(mr), 0);
    }
    assert_int_equal(pd_deallocate(pd), 0);
}

static void reregistration(void **state)
{
    char first[64], second[32];
    struct pd *pd = make_pd(context), *other = make_pd(context), *foreign = make_pd(other_context);
    struct mr *mr = make_mr(pd, first, sizeof(first), IBV_ACCESS_LOCAL_WRITE);
    uint32_t lkey = mr->ibv.lkey, rkey = mr->ibv.rkey;
    int error = 0;

    assert_int_equal(mr_reregister(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0, &error), 0);
    assert_ptr_equal(mr->ibv.pd, &other->ibv);
    assert_int_equal(check_local(pd, mr, first, 1), VERDICT_LOCAL_PROTECTION);
    assert_int_equal(check_local(other, mr, first, 1), VERDICT_OK);
    assert_int_equal(pd_deallocate(other), -EBUSY);

    assert_int_equal(
        mr_reregister(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, second, sizeof(second), 0, &error), 0);
    assert_ptr_equal(mr->ibv.addr, second);
    assert_int_equal(mr->ibv.length, sizeof(second));
    assert_int_equal(check_local(other, mr, first, 1), VERDICT_LOCAL_PROTECTION);
    assert_int_equal(check_local(other, mr, second, 32), VERDICT_OK);

    assert_int_equal(mr_reregister(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0, &error), 0);
    assert_int_equal(check_local(other, mr, second, 1), VERDICT_LOCAL_PROTECTION); /* a write */
    assert_int_equal(mr->ibv.lkey, lkey);
    assert_int_equal(mr->ibv.rkey, rkey);
    assert_int_equal(mr_reregister(mr, 0, NULL, NULL, 0, 0, &error), 0);

    static const struct {
        int flags, access;
        bool address;
    } bad[] = {
        {1 << 3, 0, false},
        {IBV_REREG_MR_CHANGE_TRANSLATION, 0, false},
        {IBV_REREG_MR_CHANGE_TRANSLATION, IBV_ACCESS_LOCAL_WRITE, true},
        {IBV_REREG_MR_CHANGE_ACCESS, IBV_ACCESS_REMOTE_WRITE, false},
        {IBV_REREG_MR_CHANGE_PD, 0, false},
    };
    for (size_t i = 0; i < array_size(bad); i++) {
        error = 0;
        assert_int_equal(
            mr_reregister(mr, bad[i].flags, NULL, bad[i].address ? first : NULL, 8, bad[i].access, &error),
            IBV_REREG_MR_ERR_INPUT);
        assert_int_equal(error, -EINVAL);
    }
    assert_int_equal(mr_reregister(mr, IBV_REREG_MR_CHANGE_PD, foreign, NULL, 0, 0, &error),
                     IBV_REREG_MR_ERR_INPUT);
    assert_ptr_equal(mr->ibv.addr, second); /* as it was */

    assert_int_equal(mr_deregister(mr), 0);
    assert_int_equal(pd_deallocate(pd), 0);
    assert_int_equal(pd_deallocate(other), 0);
    assert_int_equal(pd_deallocate(foreign), 0);
}

/* --- windows -------------------------------------------------------------------------------------------- */

static void bound_windows_keep_their_region(void **state)
{
    char buffer[64];
    struct pd *pd = make_pd(context);
    struct mr *mr = make_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    struct mw *mw;
    uint32_t rkey;
    int error;

    assert_int_equal(mw_allocate(pd, (enum ibv_mw_type)3, &mw), -EINVAL);
    assert_int_equal(mw_allocate(pd, IBV_MW_TYPE_1, &mw), 0);
    assert_int_equal(mw->ibv.type, IBV_MW_TYPE_1);
    assert_int_equal(pd_deallocate(pd), -EBUSY);
    const struct mw_bind bind = {.mw_rkey = mw->ibv.rkey,
                                 .region_lkey = mr->ibv.lkey,
                                 .pd = pd->number,
                                 .address = (uintptr_t)buffer,
                                 .length = 8,
                                 .access = IBV_ACCESS_REMOTE_WRITE,
                                 .random = 12345};
    lock_acquire(&keys_lock);
    assert_int_equal(keys_bind_mw(segment_keys(), &bind, false, &rkey), VERDICT_OK);
    lock_release(&keys_lock);
    assert_int_equal(mr_deregister(mr), -EBUSY);
    assert_int_equal(mr_reregister(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0, &error),
                     IBV_REREG_MR_ERR_INPUT);
    assert_int_equal(error, -EBUSY);
    assert_int_equal(check_local(pd, mr, buffer, 8), VERDICT_OK);
    assert_int_equal(mw_deallocate(mw), 0); /* unbinds */
    assert_int_equal(mr_deregister(mr), 0);
    assert_int_equal(pd_deallocate(pd), 0);
}

/* --- mapped memory -------------------------------------------------------------------------------------- */

/* One step after the other, until nothing more is to do. */
static void grow(void)
{
    while (mapping_grow()) {
    }
}

static void what_peers_want_is_mapped_in_steps(void **state)
{
    enum { STEPS = 4 };
    const uint64_t length = STEPS * MAPPING_STEP;
    char *memory = map(length + MAPPING_STEP, PROT_READ | PROT_WRITE);
    char *start = (char *)(((uintptr_t)memory + MAPPING_STEP - 1) & ~(uintptr_t)(MAPPING_STEP - 1));
    struct pd *pd = make_pd(context);
    unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    const struct mapped_record *record;
    struct mr *mr, *other;
    uint32_t generation, slot;

    mapping_enable(MAPPING_IN_BACKGROUND);
    mr = make_mr(pd, start, length, access);
    other = make_mr(pd, start + length / 2, length / 2, access);
    record = segment_mapped(mr->slot);
    memset(start, 7, length);
    assert_null(mr->mapping.region);
    assert_false(mapping_is_open(mr->slot));
    assert_int_equal(record->reason, MAPPED_PUT_OFF);
    assert_int_equal(record->generation & 1, 0); /* open without length: peers may have the kernel copy */
    assert_false(mapping_want(mr->slot, STEPS)); /* beyond its end */
    assert_false(mapping_want(LIMIT_KEY_SLOTS, 0));
    assert_true(mapping_want(mr->slot, 2));
    generation = record->generation;
    grow();
    assert_int_equal(record->generation & 1, 0);
    assert_true(record->generation != generation);
    if (!mapping_is_open(mr->slot)) {
        print_message("memory is not mapped on this machine (softhca doctor says why)\n");
    } else {
        assert_int_equal(record->address, (uintptr_t)start + 2 * MAPPING_STEP);
        assert_int_equal(record->length, MAPPING_STEP);
        assert_false(mapping_is_open(other->slot)); /* nobody asked for that one */
        assert_true(mapping_want(mr->slot, 0));     /* the step in between comes with it */
        grow();
        assert_int_equal(record->address, (uintptr_t)start);
        assert_int_equal(record->length, 3 * MAPPING_STEP);
        assert_true(mapping_want(mr->slot, 3));
        grow();
        assert_int_equal(record->length, length);
        assert_int_equal(record->reason, 0);
        assert_false(mapping_want(mr->slot, 1));
    }
    for (uint64_t i = 0; i < length; i++)
        assert_int_equal(start[i], 7);
    assert_true(mapping_want(other->slot, 0) || !mapping_is_open(mr->slot));
    assert_int_equal(mr_deregister(other), 0); /* while it grows */
    assert_false(mapping_grow());
    slot = mr->slot;
    assert_int_equal(mr_deregister(mr), 0);
    assert_false(mapping_want(slot, 0));
    mapping_is_enabled = false;
    assert_int_equal(pd_deallocate(pd), 0);
    munmap(memory, length + MAPPING_STEP);
}

static void all_memory_that_is_noted_moves(void **state)
{
    enum { COUNT = 300 };
    char *memory = map(COUNT * PAGE, PROT_READ | PROT_WRITE);
    struct pd *pd = make_pd(context);
    struct mr *mrs[COUNT];
    uint64_t offsets[COUNT];

    mapping_enable(MAPPING_AT_REGISTRATION);
    for (unsigned i = 0; i < COUNT; i++) {
        mrs[i] = make_mr(pd, memory + i * PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        offsets[i] = segment_mapped(mrs[i]->slot)->offset;
        memory[i * PAGE] = (char)i;
    }
    if (mapping_is_open(mrs[COUNT - 1]->slot)) {
        for (unsigned i = 0; i < 2 * COUNT; i++)
            mapping_evict_later(mrs[i % COUNT]->slot);
        assert_true(mapping_must_evict());
        mapping_evict();
        assert_false(mapping_must_evict());
        for (unsigned i = 0; i < COUNT; i++) {
            assert_true(mapping_is_open(mrs[i]->slot));
            assert_true(segment_mapped(mrs[i]->slot)->offset != offsets[i]);
            assert_int_equal(memory[i * PAGE], (char)i);
        }
    } else {
        print_message("memory is not mapped on this machine (softhca doctor says why)\n");
    }
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(mr_deregister(mrs[i]), 0);
    mapping_is_enabled = false;
    assert_int_equal(pd_deallocate(pd), 0);
    munmap(memory, COUNT * PAGE);
}

/* Peers that were given up may still write to each place it had. */
static void memory_without_a_place_becomes_private(void **state)
{
    char *memory = map(2 * PAGE, PROT_READ | PROT_WRITE);
    struct pd *pd = make_pd(context);
    struct mr *mr, *other;
    unsigned moves = 0;

    mapping_enable(MAPPING_AT_REGISTRATION);
    mr = make_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    other = make_mr(pd, memory, 2 * PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    memory[0] = memory[PAGE] = 'x';
    while (mapping_is_open(mr->slot) && moves < 1000) {
        mapping_evict_later(mr->slot);
        mapping_evict();
        moves++;
    }
    assert_true(moves < 1000);
    assert_false(mapping_is_open(mr->slot) || mapping_is_open(other->slot));
    if (moves) /* else memory is not mapped on this machine */
        assert_null(mr->mapping.region);
    assert_int_equal(memory[0], 'x');
    assert_int_equal(memory[PAGE], 'x');
    assert_int_equal(madvise(memory, 2 * PAGE, MADV_DONTNEED), 0); /* private again */
    assert_int_equal(memory[0] | memory[PAGE], 0);
    assert_int_equal(mr_deregister(mr), 0);
    assert_int_equal(mr_deregister(other), 0);
    mapped_forget_orphans();
    mapping_is_enabled = false;
    assert_int_equal(pd_deallocate(pd), 0);
    munmap(memory, 2 * PAGE);
}

#define test(name) cmocka_unit_test_setup_teardown(name, open_contexts, close_contexts)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(mappings_by_query),
        test(mappings_by_text),
        test(huge_sparse_regions_stay_sparse),
        test(registration_fills_the_public_struct),
        test(registration_checks_access),
        test(registration_checks_the_range),
        test(iova_translates),
        test(stale_keys_fail),
        test(reregistration),
        test(bound_windows_keep_their_region),
        test(what_peers_want_is_mapped_in_steps),
        test(all_memory_that_is_noted_moves),
        test(memory_without_a_place_becomes_private),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("object_mr", tests, NULL, NULL);
}
