/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Keys, access checks and memory windows: verbs-contract §4.2-4.6, design §4 (lkey and rkey differ). */
#include "unit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "rules/keys.h"

enum { PD = 7, OTHER_PD = 8, SLOT = 5, WINDOW = 6, OTHER_WINDOW = 9, NULL_SLOT = 11 };
#define IOVA    0x10000u
#define LENGTH  0x1000u
#define ADDRESS 0x7f0000002000u
#define ALL                                                                                                  \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |  \
     IBV_ACCESS_MW_BIND)

static struct key_table table;

static struct key_entry *region(void)
{
    return &table.entry[SLOT];
}

static struct key_entry *window(void)
{
    return &table.entry[WINDOW];
}

static void publish(uint32_t access)
{
    keys_publish_region(&table, SLOT, KEY_REGION, PD, access, IOVA, LENGTH, ADDRESS, 0x1234abcd);
}

static int setup(void **state)
{
    static const uint32_t used[] = {0, SLOT, WINDOW, OTHER_WINDOW, NULL_SLOT};

    for (size_t i = 0; i < array_size(used); i++)
        memset(&table.entry[used[i]], 0, sizeof(table.entry[0]));
    publish(ALL);
    return 0;
}

static struct memory_range range;

static enum verdict local(uint64_t address, uint32_t length, bool write)
{
    return keys_check_local(&table, PD, region()->lkey, address, length, write, &range);
}

static enum verdict remote(uint32_t rkey, uint64_t address, uint32_t length, enum remote_operation operation)
{
    return keys_check_remote(&table, PD, ALL, rkey, address, length, operation, &range);
}

#define assert_ok(call)            assert_int_equal(call, VERDICT_OK)
#define assert_protection(call)    assert_int_equal(call, VERDICT_LOCAL_PROTECTION)
#define assert_remote_access(call) assert_int_equal(call, VERDICT_REMOTE_ACCESS)
#define assert_invalid(call)       assert_int_equal(call, VERDICT_INVALID_REQUEST)

/* --- keys --- */

static void lkey_and_rkey_differ_whatever_the_random_bits(void **state)
{
    for (uint32_t random = 0; random < 1u << 16; random++) {
        keys_publish_region(&table, SLOT, KEY_REGION, PD, ALL, IOVA, LENGTH, ADDRESS, random * 65537u);
        assert_int_not_equal(region()->lkey, region()->rkey);
    }
}

static void a_key_names_its_slot(void **state)
{
    static const uint32_t slots[] = {0, 1, SLOT, LIMIT_KEY_SLOTS - 1};

    for (size_t i = 0; i < array_size(slots); i++) {
        keys_publish_region(&table, slots[i], KEY_REGION, PD, ALL, IOVA, LENGTH, ADDRESS, 0xffffffff);
        assert_int_equal(key_slot(table.entry[slots[i]].lkey), slots[i]);
        assert_int_equal(key_slot(table.entry[slots[i]].rkey), slots[i]);
        keys_withdraw(&table, slots[i]);
    }
}

static void no_key_is_zero(void **state)
{
    keys_publish_region(&table, 0, KEY_REGION, PD, ALL, IOVA, LENGTH, ADDRESS, 0);
    assert_int_not_equal(table.entry[0].lkey, 0);
    assert_int_not_equal(table.entry[0].rkey, 0);
}

static void key_zero_is_never_valid(void **state)
{
    keys_publish_window(&table, 0, KEY_WINDOW_TYPE_1, PD, 0);
    assert_protection(keys_check_local(&table, PD, 0, IOVA, 1, false, &range));
    assert_remote_access(remote(0, IOVA, 1, REMOTE_READ));
}

static void a_reused_slot_gets_new_keys_even_from_the_same_random_bits(void **state)
{
    const uint32_t lkey = region()->lkey, rkey = region()->rkey;

    keys_withdraw(&table, SLOT);
    publish(ALL);
    assert_int_not_equal(region()->lkey, lkey);
    assert_int_not_equal(region()->rkey, rkey);
    assert_protection(keys_check_local(&table, PD, lkey, IOVA, 1, false, &range));
    assert_remote_access(remote(rkey, IOVA, 1, REMOTE_READ));
}

static void every_wrong_bit_of_a_key_is_noticed(void **state)
{
    for (unsigned bit = 0; bit < 32; bit++) {
        assert_protection(keys_check_local(&table, PD, region()->lkey ^ 1u << bit, IOVA, 1, false, &range));
        assert_remote_access(remote(region()->rkey ^ 1u << bit, IOVA, 1, REMOTE_READ));
    }
}

/* --- local --- */

static void an_address_is_translated_from_iova_to_memory(void **state)
{
    assert_ok(local(IOVA + 0x123, 4, true));
    assert_true(range.address == ADDRESS + 0x123);
    assert_int_equal(range.slot, SLOT);
    assert_int_equal(range.kind, KEY_REGION);
    assert_int_equal(range.generation, region()->generation);
}

static void an_rkey_is_no_lkey(void **state)
{
    assert_protection(keys_check_local(&table, PD, region()->rkey, IOVA, 1, false, &range));
}

static void a_local_key_of_another_pd_is_refused(void **state)
{
    assert_protection(keys_check_local(&table, OTHER_PD, region()->lkey, IOVA, 1, false, &range));
}

static void local_reading_needs_no_right(void **state)
{
    publish(0);
    assert_ok(local(IOVA, 1, false));
}

static void local_writing_needs_local_write(void **state)
{
    publish(IBV_ACCESS_REMOTE_READ);
    assert_protection(local(IOVA, 1, true));
    publish(IBV_ACCESS_LOCAL_WRITE);
    assert_ok(local(IOVA, 1, true));
}

static void a_local_range_must_be_inside(void **state)
{
    assert_ok(local(IOVA, LENGTH, true));
    assert_ok(local(IOVA + LENGTH - 1, 1, true));
    assert_protection(local(IOVA, LENGTH + 1, true));
    assert_protection(local(IOVA - 1, 1, true));
    assert_protection(local(IOVA - 1, LENGTH, true));
    assert_protection(local(IOVA + LENGTH - 1, 2, true));
    assert_protection(local(IOVA + LENGTH, 1, true));
    assert_protection(local(0, UINT32_MAX, true));
}

static void a_range_that_wraps_is_outside(void **state)
{
    const uint64_t top = UINT64_MAX - LENGTH + 1;

    assert_protection(local(UINT64_MAX, 1, true));
    assert_protection(local(UINT64_MAX - 1, UINT32_MAX, true));
    keys_publish_region(&table, SLOT, KEY_REGION, PD, ALL, top, LENGTH, ADDRESS, 3);
    assert_ok(local(top, LENGTH, true));
    assert_ok(local(UINT64_MAX, 1, true));
    assert_protection(local(UINT64_MAX, 2, true));
    assert_protection(local(top, LENGTH + 1, true));
    assert_protection(local(0, 1, true));
    assert_remote_access(remote(region()->rkey, UINT64_MAX, 2, REMOTE_WRITE));
    assert_remote_access(remote(region()->rkey, 0, 1, REMOTE_WRITE));
}

static void length_zero_needs_no_key(void **state)
{
    range.address = 1;
    assert_ok(keys_check_local(&table, OTHER_PD, 0xdeadbeef, 1, 0, true, &range));
    assert_true(range.address == 0);
    assert_true(keys_is_current(&table, &range));
    range.address = 1;
    assert_ok(keys_check_remote(&table, OTHER_PD, 0, 0xdeadbeef, 1, 0, REMOTE_WRITE, &range));
    assert_true(range.address == 0);
    assert_ok(keys_check_remote(&table, OTHER_PD, 0, 0xdeadbeef, 1, 0, REMOTE_READ, &range));
}

static void a_withdrawn_region_is_gone(void **state)
{
    const uint32_t lkey = region()->lkey, rkey = region()->rkey;

    keys_withdraw(&table, SLOT);
    assert_protection(keys_check_local(&table, PD, lkey, IOVA, 1, false, &range));
    assert_remote_access(remote(rkey, IOVA, 1, REMOTE_READ));
}

static void a_zero_based_region_counts_from_its_start(void **state)
{
    publish(ALL | IBV_ACCESS_ZERO_BASED);
    assert_ok(local(0x10, 1, true));
    assert_true(range.address == ADDRESS + 0x10);
    assert_protection(local(IOVA, 1, true));
    assert_ok(remote(region()->rkey, LENGTH - 1, 1, REMOTE_WRITE));
    assert_remote_access(remote(region()->rkey, LENGTH - 1, 2, REMOTE_WRITE));
}

static void a_null_region_takes_any_local_range(void **state)
{
    keys_publish_region(&table, NULL_SLOT, KEY_REGION_NULL, PD, 0, 0, 0, 0, 77);
    const uint32_t lkey = table.entry[NULL_SLOT].lkey;

    assert_ok(keys_check_local(&table, PD, lkey, 0x123456789, UINT32_MAX, true, &range));
    assert_int_equal(range.kind, KEY_REGION_NULL);
    assert_true(range.address == 0);
    assert_ok(keys_check_local(&table, PD, lkey, 0, 1, false, &range));
    assert_protection(keys_check_local(&table, OTHER_PD, lkey, 0, 1, false, &range));
}

static void a_null_region_has_no_remote_key(void **state)
{
    keys_publish_region(&table, NULL_SLOT, KEY_REGION_NULL, PD, ALL, 0, 0, 0, 77);
    assert_int_equal(table.entry[NULL_SLOT].rkey, 0);
    assert_remote_access(remote(table.entry[NULL_SLOT].lkey, 0, 1, REMOTE_READ));
    assert_remote_access(remote(table.entry[NULL_SLOT].lkey | KEY_REMOTE, 0, 1, REMOTE_READ));
    assert_remote_access(remote(table.entry[NULL_SLOT].rkey, 0, 1, REMOTE_READ));
}

static void an_on_demand_region_is_checked_like_any_other(void **state)
{
    keys_publish_region(&table, SLOT, KEY_REGION_ON_DEMAND, PD, ALL, 0, UINT64_MAX, 0, 5);
    assert_ok(local(0x7fffffffe000, 4096, true));
    assert_true(range.address == 0x7fffffffe000);
    assert_ok(remote(region()->rkey, 0x7fffffffe000, 4096, REMOTE_WRITE));
}

/* --- rereg --- */

static void a_changed_region_keeps_its_keys_and_takes_the_new_range(void **state)
{
    const uint32_t lkey = region()->lkey, rkey = region()->rkey;

    keys_change_region(&table, SLOT, OTHER_PD, IBV_ACCESS_REMOTE_READ, 0, 16, 0x5000);
    assert_int_equal(region()->lkey, lkey);
    assert_int_equal(region()->rkey, rkey);
    assert_protection(local(IOVA, 1, false));
    assert_ok(keys_check_local(&table, OTHER_PD, lkey, 15, 1, false, &range));
    assert_true(range.address == 0x500f);
    assert_protection(keys_check_local(&table, OTHER_PD, lkey, 15, 1, true, &range));
}

static void every_change_of_meaning_is_noticed_after_the_access(void **state)
{
    assert_ok(local(IOVA, 1, true));
    assert_true(keys_is_current(&table, &range));
    keys_change_region(&table, SLOT, PD, ALL, IOVA, LENGTH, ADDRESS);
    assert_false(keys_is_current(&table, &range));
    assert_ok(local(IOVA, 1, true));
    keys_withdraw(&table, SLOT);
    assert_false(keys_is_current(&table, &range));
}

/* --- remote --- */

static void an_lkey_is_no_rkey(void **state)
{
    assert_remote_access(remote(region()->lkey, IOVA, 1, REMOTE_READ));
}

static void a_remote_key_of_another_pd_is_refused(void **state)
{
    assert_remote_access(
        keys_check_remote(&table, OTHER_PD, ALL, region()->rkey, IOVA, 1, REMOTE_READ, &range));
}

static void each_operation_needs_its_flag_on_the_qp(void **state)
{
    static const uint32_t flags[] = {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
                                     IBV_ACCESS_REMOTE_ATOMIC};

    for (enum remote_operation operation = REMOTE_WRITE; operation <= REMOTE_ATOMIC; operation++) {
        assert_ok(
            keys_check_remote(&table, PD, flags[operation], region()->rkey, IOVA, 8, operation, &range));
        assert_invalid(keys_check_remote(&table, PD, ALL & ~flags[operation], region()->rkey, IOVA, 8,
                                         operation, &range));
    }
}

static void each_operation_needs_its_flag_on_the_region(void **state)
{
    static const uint32_t flags[] = {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
                                     IBV_ACCESS_REMOTE_ATOMIC};

    for (enum remote_operation operation = REMOTE_WRITE; operation <= REMOTE_ATOMIC; operation++) {
        publish(flags[operation] | IBV_ACCESS_LOCAL_WRITE);
        assert_ok(remote(region()->rkey, IOVA, 8, operation));
        publish(ALL & ~flags[operation]);
        assert_remote_access(remote(region()->rkey, IOVA, 8, operation));
    }
}

static void the_flag_of_the_qp_is_looked_at_before_the_key(void **state)
{
    assert_invalid(keys_check_remote(&table, PD, 0, 0xdeadbeef, IOVA, 8, REMOTE_WRITE, &range));
}

static void a_remote_range_must_be_inside(void **state)
{
    const uint32_t rkey = region()->rkey;

    assert_ok(remote(rkey, IOVA, LENGTH, REMOTE_WRITE));
    assert_true(range.address == ADDRESS);
    assert_remote_access(remote(rkey, IOVA, LENGTH + 1, REMOTE_WRITE));
    assert_remote_access(remote(rkey, IOVA - 1, 2, REMOTE_READ));
    assert_remote_access(remote(rkey, IOVA + LENGTH, 1, REMOTE_READ));
    assert_remote_access(remote(rkey, UINT64_MAX, UINT32_MAX, REMOTE_READ));
}

static void an_atomic_must_be_aligned(void **state)
{
    for (unsigned offset = 1; offset < 8; offset++)
        assert_invalid(remote(region()->rkey, IOVA + offset, 8, REMOTE_ATOMIC));
    assert_ok(remote(region()->rkey, IOVA + 8, 8, REMOTE_ATOMIC));
}

static void an_atomic_must_be_aligned_in_memory_too(void **state)
{
    keys_publish_region(&table, SLOT, KEY_REGION, PD, ALL, 0, LENGTH, ADDRESS + 4, 9);
    assert_invalid(remote(region()->rkey, 8, 8, REMOTE_ATOMIC));
}

static void an_atomic_is_eight_bytes(void **state)
{
    assert_invalid(remote(region()->rkey, IOVA, 0, REMOTE_ATOMIC));
    assert_invalid(remote(region()->rkey, IOVA, 4, REMOTE_ATOMIC));
    assert_invalid(remote(region()->rkey, IOVA, 16, REMOTE_ATOMIC));
}

static void access_comes_before_alignment(void **state)
{
    assert_remote_access(remote(region()->rkey, IOVA + LENGTH + 1, 8, REMOTE_ATOMIC));
}

/* --- windows --- */

static struct window_bind bind_of(enum key_kind kind, uint32_t access)
{
    keys_publish_window(&table, WINDOW, kind, PD, 0x55aa55aa);
    return (struct window_bind){
        .window_rkey = window()->rkey,
        .new_rkey = (window()->rkey & ~KEY_TAG_MASK) | ((window()->rkey + 1) & KEY_TAG_MASK),
        .region_lkey = region()->lkey,
        .pd = PD,
        .address = IOVA + 0x100,
        .length = 0x200,
        .access = access,
        .random = 0x99887766,
    };
}

static uint32_t new_rkey;

static enum verdict bind_1(const struct window_bind *bind)
{
    return keys_bind_window(&table, bind, false, &new_rkey);
}

static enum verdict bind_2(const struct window_bind *bind)
{
    return keys_bind_window(&table, bind, true, &new_rkey);
}

static void assert_bind_refused_(struct window_bind bind)
{
    const struct key_entry before_window = *window(), before_region = *region();

    bind.new_rkey = (window()->rkey & ~KEY_TAG_MASK) | ((window()->rkey + 1) & KEY_TAG_MASK);
    new_rkey = 0;
    assert_int_equal(keys_bind_window(&table, &bind, window()->kind == KEY_WINDOW_TYPE_2, &new_rkey),
                     VERDICT_WINDOW_BIND);
    assert_int_equal(new_rkey, 0);
    assert_memory_equal(&before_window, window(), sizeof(before_window));
    assert_memory_equal(&before_region, region(), sizeof(before_region));
}

/* For both types: a good bind with one thing changed is refused and changes nothing. */
#define assert_bind_refused(statement)                                                                       \
    do {                                                                                                     \
        struct window_bind b = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);                          \
        statement;                                                                                           \
        assert_bind_refused_(b);                                                                             \
        b = bind_of(KEY_WINDOW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);                                             \
        statement;                                                                                           \
        assert_bind_refused_(b);                                                                             \
    } while (0)

static void a_bound_window_gives_access_to_its_part_of_the_region(void **state)
{
    const struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    assert_int_equal(window()->rkey, new_rkey);
    assert_ok(remote(new_rkey, IOVA + 0x100, 0x200, REMOTE_WRITE));
    assert_true(range.address == ADDRESS + 0x100);
    assert_int_equal(range.kind, KEY_WINDOW_TYPE_1);
    assert_remote_access(remote(new_rkey, IOVA + 0xff, 1, REMOTE_WRITE));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 0x201, REMOTE_WRITE));
}

static void an_unbound_window_gives_no_access(void **state)
{
    bind_of(KEY_WINDOW_TYPE_1, 0);
    assert_remote_access(remote(window()->rkey, IOVA + 0x100, 1, REMOTE_WRITE));
    assert_remote_access(remote(window()->rkey, 0, 1, REMOTE_WRITE));
}

static void the_rights_of_the_window_decide(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_READ);

    assert_ok(bind_1(&bind));
    assert_ok(remote(new_rkey, IOVA + 0x100, 8, REMOTE_READ));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 8, REMOTE_WRITE));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 8, REMOTE_ATOMIC));
}

static void the_region_need_not_have_the_rights_of_the_window(void **state)
{
    publish(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    const struct window_bind bind = bind_of(
        KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);

    assert_ok(bind_1(&bind));
    assert_ok(remote(new_rkey, IOVA + 0x100, 8, REMOTE_WRITE));
    assert_ok(remote(new_rkey, IOVA + 0x100, 8, REMOTE_ATOMIC));
    assert_remote_access(remote(region()->rkey, IOVA + 0x100, 8, REMOTE_WRITE));
}

static void a_window_key_is_remote_only(void **state)
{
    const struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    assert_int_equal(window()->lkey, 0);
    assert_protection(keys_check_local(&table, PD, new_rkey, IOVA + 0x100, 1, false, &range));
    assert_protection(keys_check_local(&table, PD, new_rkey & ~KEY_REMOTE, IOVA + 0x100, 1, false, &range));
}

static void access_through_a_window_needs_its_pd(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    assert_remote_access(
        keys_check_remote(&table, OTHER_PD, ALL, new_rkey, IOVA + 0x100, 8, REMOTE_WRITE, &range));
    bind = bind_of(KEY_WINDOW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);
    assert_ok(bind_2(&bind));
    assert_ok(remote(new_rkey, IOVA + 0x100, 8, REMOTE_WRITE));
    assert_remote_access(
        keys_check_remote(&table, OTHER_PD, ALL, new_rkey, IOVA + 0x100, 8, REMOTE_WRITE, &range));
}

static void a_zero_based_window_counts_from_its_start(void **state)
{
    const struct window_bind bind =
        bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED);

    assert_ok(bind_1(&bind));
    assert_ok(remote(new_rkey, 0x10, 0x1f0, REMOTE_WRITE));
    assert_true(range.address == ADDRESS + 0x110);
    assert_remote_access(remote(new_rkey, 0x10, 0x1f1, REMOTE_WRITE));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
}

static void an_atomic_through_a_zero_based_window_must_be_aligned_in_memory(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED);

    bind.address += 4;
    assert_ok(bind_1(&bind));
    assert_invalid(remote(new_rkey, 8, 8, REMOTE_ATOMIC));
}

static void a_window_on_a_zero_based_region_is_bound_by_offset(void **state)
{
    publish(ALL | IBV_ACCESS_ZERO_BASED);
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_bind_refused_(bind);
    bind.address = 0x100;
    assert_ok(bind_1(&bind));
    assert_ok(remote(new_rkey, 0x101, 1, REMOTE_WRITE));
    assert_true(range.address == ADDRESS + 0x101);
}

static void a_bind_needs_a_region_that_allows_it(void **state)
{
    publish(ALL & ~(uint32_t)IBV_ACCESS_MW_BIND);
    assert_bind_refused((void)0);
}

static void a_writable_window_needs_a_locally_writable_region(void **state)
{
    publish(IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_READ);
    assert_bind_refused((void)0);
    assert_bind_refused(b.access = IBV_ACCESS_REMOTE_ATOMIC);

    const struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_READ);

    assert_ok(bind_1(&bind));
}

static void a_window_must_lie_inside_its_region(void **state)
{
    assert_bind_refused(b.address = IOVA - 1);
    assert_bind_refused(b.address = IOVA + LENGTH);
    assert_bind_refused(b.length = LENGTH);
    assert_bind_refused(b.length = UINT64_MAX);
    assert_bind_refused((b.address = UINT64_MAX, b.length = 2));

    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_READ);

    bind.address = IOVA;
    bind.length = LENGTH;
    assert_ok(bind_1(&bind));
}

static void window_region_and_qp_share_a_pd(void **state)
{
    assert_bind_refused(b.pd = OTHER_PD);
    assert_bind_refused(window()->pd = OTHER_PD);
    region()->pd = OTHER_PD;
    assert_bind_refused((void)0);
}

static void unknown_window_flags_are_refused(void **state)
{
    assert_bind_refused(b.access |= IBV_ACCESS_MW_BIND);
    assert_bind_refused(b.access |= IBV_ACCESS_ON_DEMAND);
    assert_bind_refused(b.access |= 1u << 31);
}

static void harmless_window_flags_are_ignored(void **state)
{
    const struct window_bind bind =
        bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);

    assert_ok(bind_1(&bind));
    assert_int_equal(window()->access, 0);
}

static void only_a_live_plain_region_can_be_bound(void **state)
{
    keys_publish_region(&table, NULL_SLOT, KEY_REGION_NULL, PD, ALL, 0, 0, 0, 77);
    assert_bind_refused(b.region_lkey = table.entry[NULL_SLOT].lkey);
    assert_bind_refused(b.region_lkey = region()->rkey);
    assert_bind_refused(b.region_lkey ^= 1);
    assert_bind_refused(b.region_lkey = window()->rkey);
    assert_bind_refused(b.region_lkey = 0);
    keys_withdraw(&table, SLOT);
    assert_bind_refused((void)0);
}

static void a_bind_of_the_wrong_type_is_refused(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_READ);

    assert_int_equal(bind_2(&bind), VERDICT_WINDOW_BIND);
    bind = bind_of(KEY_WINDOW_TYPE_2, IBV_ACCESS_REMOTE_READ);
    assert_int_equal(bind_1(&bind), VERDICT_WINDOW_BIND);
    bind.window_rkey = region()->rkey;
    assert_int_equal(bind_1(&bind), VERDICT_WINDOW_BIND);
    assert_int_equal(bind_2(&bind), VERDICT_WINDOW_BIND);
}

static void a_type_1_window_gets_a_new_key_at_each_bind(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);
    uint32_t old = window()->rkey;

    for (unsigned i = 0; i < 10; i++) {
        bind.window_rkey = old;
        assert_ok(bind_1(&bind));
        assert_int_not_equal(new_rkey, old);
        assert_int_equal(key_slot(new_rkey), WINDOW);
        assert_remote_access(remote(old, IOVA + 0x100, 1, REMOTE_WRITE));
        assert_ok(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
        old = new_rkey;
    }
}

static void the_next_key_of_a_type_1_window_can_be_told_before_the_bind(void **state)
{
    const struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);
    const uint32_t expected = keys_next_window_rkey(bind.window_rkey, bind.random);

    assert_ok(bind_1(&bind));
    assert_int_equal(new_rkey, expected);
    for (uint32_t random = 0; random < 4096; random++) {
        const uint32_t next = keys_next_window_rkey(expected, (random >> 8) << 28 | (random & 0xff));

        assert_int_not_equal(next, expected);
        assert_int_equal(key_slot(next), WINDOW);
        assert_true(next & KEY_REMOTE);
    }
}

static void a_stale_key_of_a_type_1_window_cannot_be_bound(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    assert_int_equal(bind_1(&bind), VERDICT_WINDOW_BIND);
}

static void a_type_1_window_is_rebound_without_unbinding(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    bind.window_rkey = new_rkey;
    bind.address = IOVA;
    assert_ok(bind_1(&bind));
    assert_ok(remote(new_rkey, IOVA, 1, REMOTE_WRITE));
    assert_int_equal(region()->windows, 1);
}

static void a_type_1_bind_of_length_0_unbinds(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    const uint32_t bound = new_rkey;

    bind = (struct window_bind){.window_rkey = bound, .pd = PD, .random = 1};
    assert_ok(bind_1(&bind));
    assert_int_not_equal(new_rkey, bound);
    assert_int_equal(window()->bound, 0);
    assert_int_equal(region()->windows, 0);
    assert_remote_access(remote(bound, IOVA + 0x100, 1, REMOTE_WRITE));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
}

static void the_application_chooses_the_tag_of_a_type_2_window(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    bind.new_rkey = (window()->rkey & ~KEY_TAG_MASK) | 0x42;
    assert_ok(bind_2(&bind));
    assert_int_equal(new_rkey, bind.new_rkey);
    assert_int_equal(window()->rkey, bind.new_rkey);
    assert_ok(remote(bind.new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
    assert_remote_access(remote(bind.new_rkey ^ 1, IOVA + 0x100, 1, REMOTE_WRITE));
}

static void the_index_of_a_type_2_key_must_stay(void **state)
{
    for (unsigned bit = 8; bit < 32; bit++) {
        struct window_bind bind = bind_of(KEY_WINDOW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

        bind.new_rkey ^= 1u << bit;
        assert_int_equal(bind_2(&bind), VERDICT_WINDOW_BIND);
        bind.new_rkey ^= 1u << bit;
        bind.window_rkey ^= 1u << bit;
        assert_int_equal(bind_2(&bind), VERDICT_WINDOW_BIND);
    }
}

static void the_tag_of_the_old_type_2_key_does_not_matter(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    bind.window_rkey ^= 0xff;
    assert_ok(bind_2(&bind));
}

static void a_bound_type_2_window_must_be_invalidated_before_the_next_bind(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_2(&bind));
    bind.window_rkey = new_rkey;
    assert_bind_refused_(bind);
    assert_ok(keys_invalidate(&table, bind.window_rkey, PD, false));
    bind.new_rkey ^= 1;
    assert_ok(bind_2(&bind));
}

static void a_type_2_bind_of_length_0_is_refused(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    bind.length = 0;
    assert_bind_refused_(bind);
}

static void a_region_counts_the_windows_bound_to_it(void **state)
{
    struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE), other;

    assert_int_equal(region()->windows, 0);
    assert_ok(bind_1(&bind));
    assert_int_equal(region()->windows, 1);

    keys_publish_window(&table, OTHER_WINDOW, KEY_WINDOW_TYPE_2, PD, 4);
    other = bind;
    other.window_rkey = other.new_rkey = table.entry[OTHER_WINDOW].rkey;
    assert_ok(bind_2(&other));
    assert_int_equal(region()->windows, 2);

    keys_unbind_window(&table, WINDOW);
    assert_int_equal(region()->windows, 1);
    keys_unbind_window(&table, WINDOW);
    assert_int_equal(region()->windows, 1);
    assert_ok(keys_invalidate(&table, other.new_rkey, PD, true));
    assert_int_equal(region()->windows, 0);
}

static void counting_windows_does_not_disturb_users_of_the_region(void **state)
{
    const struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(local(IOVA, 1, true));
    const struct memory_range before = range;

    assert_ok(bind_1(&bind));
    assert_true(keys_is_current(&table, &before));
}

static void withdrawing_a_bound_window_unbinds_it(void **state)
{
    const struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    keys_withdraw(&table, WINDOW);
    assert_int_equal(region()->windows, 0);
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
}

/* --- invalidation --- */

static void an_invalidated_window_gives_no_access(void **state)
{
    const struct window_bind bind = bind_of(KEY_WINDOW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_2(&bind));
    assert_ok(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
    const struct memory_range before = range;

    assert_ok(keys_invalidate(&table, new_rkey, PD, true));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
    assert_false(keys_is_current(&table, &before));
}

static void assert_not_invalidatable(uint32_t rkey, uint32_t pd)
{
    assert_int_equal(keys_invalidate(&table, rkey, pd, false), VERDICT_WINDOW_BIND);
    assert_int_equal(keys_invalidate(&table, rkey, pd, true), VERDICT_REMOTE_ACCESS);
}

static void a_region_cannot_be_invalidated(void **state)
{
    assert_not_invalidatable(region()->rkey, PD);
    assert_not_invalidatable(region()->lkey, PD);
    assert_ok(local(IOVA, 1, true));
}

static void a_type_1_window_cannot_be_invalidated(void **state)
{
    const struct window_bind bind = bind_of(KEY_WINDOW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    assert_not_invalidatable(new_rkey, PD);
    assert_ok(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
}

static void only_a_bound_window_of_the_pd_named_by_its_key_can_be_invalidated(void **state)
{
    const struct window_bind bind = bind_of(KEY_WINDOW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    assert_not_invalidatable(window()->rkey, PD);
    assert_ok(bind_2(&bind));
    assert_not_invalidatable(new_rkey, OTHER_PD);
    for (unsigned bit = 0; bit < 32; bit++)
        assert_not_invalidatable(new_rkey ^ 1u << bit, PD);
    assert_ok(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
}

/* --- readers without a lock --- */

static void an_entry_whose_owner_died_in_the_middle_of_a_change_is_refused(void **state)
{
    struct key_view view;

    atomic_fetch_or(&region()->generation, 1);
    assert_false(keys_read(&table, SLOT, &view));
    assert_protection(local(IOVA, 1, true));
    assert_remote_access(remote(region()->rkey, IOVA, 1, REMOTE_READ));
}

static atomic_bool stop;

/* Two meanings under one key: [IOVA, +LENGTH) at ADDRESS and [IOVA, +2 LENGTH) at 2 ADDRESS. */
static void *change_region(void *argument)
{
    for (unsigned i = 0; i < 100000; i++)
        keys_change_region(&table, SLOT, PD, ALL, IOVA, i & 1 ? LENGTH : 2 * LENGTH,
                           i & 1 ? ADDRESS : 2 * (uint64_t)ADDRESS);
    atomic_store(&stop, true);
    return NULL;
}

static void a_reader_sees_the_old_meaning_or_the_new_and_never_a_mixture(void **state)
{
    pthread_t owner;
    unsigned mixtures = 0, refusals = 0;

    atomic_store(&stop, false);
    assert_int_equal(pthread_create(&owner, NULL, change_region, NULL), 0);
    while (!atomic_load(&stop)) {
        /* In both meanings: never refused. */
        if (local(IOVA + 8, 8, true) != VERDICT_OK)
            refusals++;
        else if (range.address != ADDRESS + 8 && range.address != 2 * (uint64_t)ADDRESS + 8)
            mixtures++;
        /* Only in the longer one. */
        if (remote(region()->rkey, IOVA + LENGTH, 8, REMOTE_READ) == VERDICT_OK &&
            range.address != 2 * (uint64_t)ADDRESS + LENGTH)
            mixtures++;
    }
    pthread_join(owner, NULL);
    assert_int_equal(mixtures, 0);
    assert_int_equal(refusals, 0);
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(lkey_and_rkey_differ_whatever_the_random_bits),
        TEST(a_key_names_its_slot),
        TEST(no_key_is_zero),
        TEST(key_zero_is_never_valid),
        TEST(a_reused_slot_gets_new_keys_even_from_the_same_random_bits),
        TEST(every_wrong_bit_of_a_key_is_noticed),
        TEST(an_address_is_translated_from_iova_to_memory),
        TEST(an_rkey_is_no_lkey),
        TEST(a_local_key_of_another_pd_is_refused),
        TEST(local_reading_needs_no_right),
        TEST(local_writing_needs_local_write),
        TEST(a_local_range_must_be_inside),
        TEST(a_range_that_wraps_is_outside),
        TEST(length_zero_needs_no_key),
        TEST(a_withdrawn_region_is_gone),
        TEST(a_zero_based_region_counts_from_its_start),
        TEST(a_null_region_takes_any_local_range),
        TEST(a_null_region_has_no_remote_key),
        TEST(an_on_demand_region_is_checked_like_any_other),
        TEST(a_changed_region_keeps_its_keys_and_takes_the_new_range),
        TEST(every_change_of_meaning_is_noticed_after_the_access),
        TEST(an_lkey_is_no_rkey),
        TEST(a_remote_key_of_another_pd_is_refused),
        TEST(each_operation_needs_its_flag_on_the_qp),
        TEST(each_operation_needs_its_flag_on_the_region),
        TEST(the_flag_of_the_qp_is_looked_at_before_the_key),
        TEST(a_remote_range_must_be_inside),
        TEST(an_atomic_must_be_aligned),
        TEST(an_atomic_must_be_aligned_in_memory_too),
        TEST(an_atomic_is_eight_bytes),
        TEST(access_comes_before_alignment),
        TEST(a_bound_window_gives_access_to_its_part_of_the_region),
        TEST(an_unbound_window_gives_no_access),
        TEST(the_rights_of_the_window_decide),
        TEST(the_region_need_not_have_the_rights_of_the_window),
        TEST(a_window_key_is_remote_only),
        TEST(access_through_a_window_needs_its_pd),
        TEST(a_zero_based_window_counts_from_its_start),
        TEST(an_atomic_through_a_zero_based_window_must_be_aligned_in_memory),
        TEST(a_window_on_a_zero_based_region_is_bound_by_offset),
        TEST(a_bind_needs_a_region_that_allows_it),
        TEST(a_writable_window_needs_a_locally_writable_region),
        TEST(a_window_must_lie_inside_its_region),
        TEST(window_region_and_qp_share_a_pd),
        TEST(unknown_window_flags_are_refused),
        TEST(harmless_window_flags_are_ignored),
        TEST(only_a_live_plain_region_can_be_bound),
        TEST(a_bind_of_the_wrong_type_is_refused),
        TEST(a_type_1_window_gets_a_new_key_at_each_bind),
        TEST(the_next_key_of_a_type_1_window_can_be_told_before_the_bind),
        TEST(a_stale_key_of_a_type_1_window_cannot_be_bound),
        TEST(a_type_1_window_is_rebound_without_unbinding),
        TEST(a_type_1_bind_of_length_0_unbinds),
        TEST(the_application_chooses_the_tag_of_a_type_2_window),
        TEST(the_index_of_a_type_2_key_must_stay),
        TEST(the_tag_of_the_old_type_2_key_does_not_matter),
        TEST(a_bound_type_2_window_must_be_invalidated_before_the_next_bind),
        TEST(a_type_2_bind_of_length_0_is_refused),
        TEST(a_region_counts_the_windows_bound_to_it),
        TEST(counting_windows_does_not_disturb_users_of_the_region),
        TEST(withdrawing_a_bound_window_unbinds_it),
        TEST(an_invalidated_window_gives_no_access),
        TEST(a_region_cannot_be_invalidated),
        TEST(a_type_1_window_cannot_be_invalidated),
        TEST(only_a_bound_window_of_the_pd_named_by_its_key_can_be_invalidated),
        TEST(an_entry_whose_owner_died_in_the_middle_of_a_change_is_refused),
        TEST(a_reader_sees_the_old_meaning_or_the_new_and_never_a_mixture),
    };

    return run_unit_tests("keys", tests);
}
