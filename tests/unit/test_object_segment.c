/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The published segment, its arena and numbers; what a fork makes of them; address handles. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "object_fixture.h"
#include "segment/arena.h"

#include <errno.h>

void qp_retire_sends(uint32_t qpn, uint32_t retires)
{
}

/* --- the segment ---------------------------------------------------------------------------------------- */

static bool lies_within(const struct segment_header *header, const struct segment_table *table, size_t stride,
                        uint32_t count)
{
    return table->stride == stride && table->count == count && table->offset % 4096 == 0 &&
           table->offset + (uint64_t)stride * count <= header->arena_offset;
}

static void header_describes_the_segment(void **state)
{
    const struct segment_header *header = segment_header();
    struct stat file;

    assert_int_equal(header->magic, SEGMENT_MAGIC);
    assert_int_equal(header->version, SEGMENT_VERSION);
    assert_int_equal(header->header_size, sizeof(*header));
    assert_int_equal(header->pid, getpid());
    assert_string_not_equal(header->program, "");
    assert_true(lies_within(header, &header->keys, sizeof(struct key_entry), LIMIT_KEY_SLOTS));
    assert_true(lies_within(header, &header->qps, sizeof(struct qp_record), LIMIT_QP));
    assert_true(lies_within(header, &header->qp_rares, sizeof(struct qp_rare), LIMIT_QP));
    assert_true(lies_within(header, &header->cqs, sizeof(struct cq_record), LIMIT_CQ));
    assert_true(lies_within(header, &header->srqs, sizeof(struct srq_record), LIMIT_SRQ));
    assert_true(lies_within(header, &header->pds, sizeof(struct pd_record), LIMIT_PD));
    assert_true(lies_within(header, &header->wqs, sizeof(struct wq_record), LIMIT_WQ));
    assert_true(lies_within(header, &header->ind_tables, sizeof(struct ind_table_record), LIMIT_IND_TABLES));
    assert_int_equal(header->arena_offset + header->arena_size, header->total_size);
    for (enum segment_part i = 0; i < SEGMENT_PARTS; i++) {
        int fd = segment_fd_intact(i);

        assert_int_equal(fstat(fd, &file), 0);
        assert_int_equal(file.st_size, i == SEGMENT_TABLES ? header->arena_offset : header->arena_size);
        assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        /* Whoever maps it can rely on its size. */
        assert_int_equal(fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                         F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    }
    assert_int_equal(header->queues.fd, segment_fd_intact(SEGMENT_QUEUES));
    assert_int_equal(header->queues.inode, file.st_ino);
    assert_ptr_equal(segment_cq(3), segment_at(header->cqs.offset + 3 * sizeof(struct cq_record)));
}

/* Accessible is what is in use, in large steps. */
static void records_of_qps_open_when_they_are_used(void **state)
{
    const struct segment_header *header = segment_header();
    uint32_t before = header->qps_open;

    assert_true(before > 0 && before < LIMIT_QP);
    assert_int_equal(segment_open_qp(before - 1), 0);
    assert_int_equal(header->qps_open, before);
    assert_int_equal(segment_open_qp(before), 0);
    assert_true(header->qps_open > before && header->qps_open < LIMIT_QP);
    segment_qp(before)->qpn = 1;
    assert_int_equal(segment_open_qp(LIMIT_QP - 1), 0);
    assert_int_equal(header->qps_open, LIMIT_QP);
    segment_qp(LIMIT_QP - 1)->qpn = 1;
    segment_qp_rare(LIMIT_QP - 1)->fault.cause = 1;
    segment_qp(before)->qpn = segment_qp(LIMIT_QP - 1)->qpn = segment_qp_rare(LIMIT_QP - 1)->fault.cause = 0;
}

static blkcnt_t blocks_of_tables(void)
{
    struct stat file;

    assert_return_code(fstat(segment_fd_intact(SEGMENT_TABLES), &file), errno);
    return file.st_blocks;
}

static void what_few_qps_need_takes_no_memory_before(void **state)
{
    enum { QPS = 1000 };
    blkcnt_t before;

    assert_int_equal(segment_open_qp(QPS - 1), 0);
    for (uint32_t i = 0; i < QPS; i++)
        memset(segment_qp(i), 0, sizeof(struct qp_record));
    before = blocks_of_tables();
    for (uint32_t i = 0; i < QPS; i++)
        segment_qp(i)->sender.plain++;
    assert_int_equal(blocks_of_tables(), before);
    segment_qp_rare(QPS / 2)->fault.cause = FAULT_SILENCE;
    assert_true(blocks_of_tables() > before && blocks_of_tables() <= before + 2 * 4096 / 512);
    memset(segment_qp_rare(QPS / 2), 0, sizeof(struct qp_rare));
}

/* From Linux 5.1 on */
static bool writes_can_be_sealed(void)
{
    int fd = memfd_create("seals", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool sealed = fcntl(fd, F_ADD_SEALS, 0x10 /* F_SEAL_FUTURE_WRITE */) == 0;

    assert_true(sealed || errno == EINVAL);
    close(fd);
    return sealed;
}

/* A reader gets a read-only descriptor, and can open the file anew through it. */
static void readers_cannot_write_the_tables(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char path[64];
    int fd, again;
    void *read;

    if (!writes_can_be_sealed()) {
        print_message("no F_SEAL_FUTURE_WRITE (Linux 5.1)\n");
        skip();
    }
    fd = segment_open_for_reading(SEGMENT_TABLES);
    assert_true(fd >= 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    again = open(path, O_RDWR | O_CLOEXEC);
    assert_true(again >= 0);
    assert_int_equal(pwrite(again, "x", 1, (off_t)segment_header()->keys.offset), -1);
    assert_int_equal(errno, EPERM);
    assert_ptr_equal(mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
    assert_int_equal(errno, EPERM);
    read = mmap(NULL, page, PROT_READ, MAP_SHARED, again, 0);
    assert_ptr_not_equal(read, MAP_FAILED);
    assert_int_equal(mprotect(read, page, PROT_READ | PROT_WRITE), -1);
    /* What the owner writes is seen there. */
    segment_header()->explains = 4711;
    assert_int_equal(((const struct segment_header *)read)->explains, 4711);
    segment_header()->explains = 0;
    munmap(read, page);
    close(again);
    close(fd);
}

static uint64_t blocks_used(void)
{
    struct stat file;

    assert_int_equal(fstat(segment_fd_intact(SEGMENT_QUEUES), &file), 0);
    return (uint64_t)file.st_blocks;
}

static void what_is_released_is_punched_out(void **state)
{
    uint64_t offset = segment_allocate(3u << 20), before = blocks_used();
    char *memory = segment_at(offset);

    memset(memory, 0xff, 3u << 20);
    assert_true(blocks_used() >= before + (3u << 20) / 512);
    segment_release(offset, 3u << 20);
    assert_in_range(blocks_used(), 0, before);
    assert_int_equal(segment_allocate(3u << 20), offset);
    for (size_t i = 0; i < 3u << 20; i += 512)
        assert_int_equal(memory[i], 0);
    segment_release(offset, 3u << 20);
    assert_int_equal(segment_allocate((size_t)1 << 50), 0);
}

/* Its neighbour in the page keeps its bytes. */
static void a_released_piece_of_a_page_is_zero(void **state)
{
    uint64_t before, first, second;
    uint8_t *memory;

    before = blocks_used();
    first = segment_allocate(2048);
    second = segment_allocate(2048);
    assert_int_equal(second, first + 2048);
    memory = segment_at(first);
    memset(memory, 0xff, 4096);
    segment_release(first, 2048);
    for (size_t i = 0; i < 4096; i++)
        assert_int_equal(memory[i], i < 2048 ? 0 : 0xff);
    assert_true(blocks_used() > before);
    assert_int_equal(segment_allocate(1500), first);
    segment_release(first, 1500);
    segment_release(second, 2048);
    assert_int_equal(blocks_used(), before); /* the page has none left */
}

/* --- the arena ------------------------------------------------------------------------------------------ */

static void arena_splits_and_merges(void **state)
{
    struct arena arena;
    int64_t units[64];

    assert_int_equal(arena_init(&arena, 64 * ARENA_UNIT), 0);
    for (int i = 0; i < 64; i++) {
        units[i] = arena_take(&arena, ARENA_UNIT);
        assert_int_equal(units[i], i * (int64_t)ARENA_UNIT); /* lowest first */
    }
    assert_int_equal(arena_take(&arena, ARENA_UNIT), -ENOMEM);
    assert_int_equal(arena_take(&arena, 1), -ENOMEM);
    for (int i = 0; i < 64; i += 2)
        arena_return(&arena, (uint64_t)units[i], ARENA_UNIT);
    assert_int_equal(arena_take(&arena, ARENA_UNIT + 1), -ENOMEM); /* no two neighbours */
    for (int i = 1; i < 64; i += 2)
        arena_return(&arena, (uint64_t)units[i], ARENA_UNIT);
    assert_int_equal(arena_take(&arena, 33 * ARENA_UNIT), 0); /* whole again */
    arena_return(&arena, 0, 33 * ARENA_UNIT);
    assert_int_equal(arena_take(&arena, 3 * ARENA_UNIT), 0);
    assert_int_equal(arena_take(&arena, 5 * ARENA_UNIT), 8 * ARENA_UNIT);
    assert_int_equal(arena_take(&arena, 1), 4 * ARENA_UNIT);
    assert_int_equal(arena.high_water, 64 * ARENA_UNIT);
    arena_fini(&arena);
}

static void arena_small_extents_share_pages(void **state)
{
    struct arena arena;

    assert_int_equal(arena_init(&arena, 4 * ARENA_UNIT), 0);
    assert_int_equal(arena_take(&arena, 1), 0);
    assert_int_equal(arena_take(&arena, 65), 128);
    assert_int_equal(arena_take(&arena, 32), 64);
    assert_false(arena_return_piece(&arena, 64, 32));
    assert_false(arena_return_piece(&arena, 128, 65));
    assert_int_equal(arena_take(&arena, 1024), 1024); /* aligned to its size */
    assert_int_equal(arena_take(&arena, 256), 256);
    assert_int_equal(arena_take(&arena, 300), 512);
    assert_int_equal(arena_take(&arena, 2048), 2048);
    assert_int_equal(arena_take(&arena, 129), ARENA_UNIT); /* the first page has only smaller ones left */
    assert_int_equal(arena_take(&arena, 2049), 2 * ARENA_UNIT);
    assert_true(arena_is_piece(&arena, 2048, 2048));
    assert_false(arena_is_piece(&arena, 2 * ARENA_UNIT, 2049));
    assert_false(arena_return_piece(&arena, 1024, 1024));
    assert_int_equal(arena_take(&arena, 1000), 1024);
    assert_false(arena_return_piece(&arena, 0, 1));
    assert_false(arena_return_piece(&arena, 256, 256));
    assert_false(arena_return_piece(&arena, 512, 300));
    assert_false(arena_return_piece(&arena, 1024, 1000));
    assert_true(arena_return_piece(&arena, 2048, 2048)); /* the last one of its page, which is still taken: */
    assert_int_equal(arena_take(&arena, 256), ARENA_UNIT + 256);
    assert_int_equal(arena_take(&arena, ARENA_UNIT), 3 * ARENA_UNIT);
    assert_int_equal(arena_take(&arena, ARENA_UNIT), -ENOMEM);
    arena_return(&arena, 0, ARENA_UNIT);
    assert_int_equal(arena_take(&arena, ARENA_UNIT), 0);
    arena_fini(&arena);
}

static void give_back(struct arena *arena, uint64_t offset, size_t size)
{
    if (!arena_is_piece(arena, offset, size))
        arena_return(arena, offset, size);
    else if (arena_return_piece(arena, offset, size))
        arena_return(arena, offset / ARENA_UNIT * ARENA_UNIT, ARENA_UNIT);
}

/* No two extents overlap, whatever the order of taking and returning. */
static void arena_extents_never_overlap(void **state)
{
    enum { UNITS = 4096, EXTENTS = 200 };
    static uint8_t owner[UNITS * ARENA_PIECES];
    static struct {
        int64_t offset;
        size_t size;
    } extents[EXTENTS];
    struct arena arena;
    uint64_t random = 88172645463325252ull;

    memset(owner, 0, sizeof(owner));
    memset(extents, 0, sizeof(extents));
    assert_int_equal(arena_init(&arena, UNITS * ARENA_UNIT), 0);
    for (int step = 0; step < 20000; step++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        unsigned i = (unsigned)(random % EXTENTS);
        size_t first = (size_t)extents[i].offset / ARENA_PIECE,
               count = arena_extent(extents[i].size) / ARENA_PIECE;

        if (extents[i].size) {
            for (size_t unit = first; unit < first + count; unit++) {
                assert_int_equal(owner[unit], i + 1);
                owner[unit] = 0;
            }
            give_back(&arena, (uint64_t)extents[i].offset, extents[i].size);
            extents[i].size = 0;
            continue;
        }
        size_t size = ((size_t)(random >> 32) % 40 + 1) * ((random >> 59) % 2 ? 70 : 1000) *
                      ((random >> 60) == 0 ? 20 : 1);
        int64_t offset = arena_take(&arena, size);

        if (offset < 0)
            continue;
        extents[i].offset = offset;
        extents[i].size = size;
        first = (size_t)offset / ARENA_PIECE;
        for (size_t unit = first; unit < first + arena_extent(size) / ARENA_PIECE; unit++) {
            assert_in_range(unit, 0, UNITS * ARENA_PIECES - 1);
            assert_int_equal(owner[unit], 0);
            owner[unit] = (uint8_t)(i + 1);
        }
    }
    for (unsigned i = 0; i < EXTENTS; i++) {
        if (extents[i].size)
            give_back(&arena, (uint64_t)extents[i].offset, extents[i].size);
    }
    assert_int_equal(arena_take(&arena, UNITS * ARENA_UNIT), 0);
    arena_fini(&arena);
}

/* --- numbers -------------------------------------------------------------------------------------------- */

static void numbers_go_round(void **state)
{
    uint32_t first = number_take(&pool_srqs), again;
    static uint8_t seen[LIMIT_SRQ];

    memset(seen, 0, sizeof(seen));
    number_return(&pool_srqs, first);
    for (uint32_t i = 0; i < LIMIT_SRQ; i++) {
        again = number_take(&pool_srqs);
        assert_in_range(again, 0, LIMIT_SRQ - 1);
        assert_int_equal(seen[again], 0);
        seen[again] = 1;
        if (i + 1 < LIMIT_SRQ)
            assert_int_not_equal(again, first); /* the freed one comes last */
    }
    assert_int_equal(again, first);
    assert_int_equal(number_take(&pool_srqs), NO_OBJECT);
    number_return(&pool_srqs, 17);
    assert_int_equal(number_take(&pool_srqs), 17);
    for (uint32_t i = 0; i < LIMIT_SRQ; i++)
        number_return(&pool_srqs, i);
}

/* --- fork ----------------------------------------------------------------------------------------------- */

/* Exit code of the child: the line that failed. */
#define child_assert(condition)                                                                              \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            return __LINE__ & 0xff;                                                                          \
    } while (0)

static int in_child(struct cq *cq, struct channel *channel, const struct segment_header *header)
{
    uint8_t instance[16];
    struct context *own;
    struct cq *own_cq, *ignored;
    struct ibv_wc wc;

    memcpy(instance, header->instance, sizeof(instance));
    object_after_fork_in_child();
    child_assert(context_is_inherited(context));
    /* Inherited objects are there, but private, and nothing reaches the parent through them. */
    cq->record->armed = 4711;
    child_assert(cq_poll(cq, 1, &wc) == -EIO); /* its locks may be held for ever */
    child_assert(cq_arm(cq, false) == -EIO);
    cq_push(cq, &(struct cqe){.wr_id = 5}, true);
    child_assert(channel_get_event(channel, &ignored) == -EIO);
    child_assert(cq_destroy(cq) == 0);
    child_assert(channel_destroy(channel) == 0);
    context_close(context);

    child_assert(context_open(NULL, &own) == 0);
    child_assert(!context_is_inherited(own));
    child_assert(segment_header() != header);
    child_assert(memcmp(segment_header()->instance, instance, sizeof(instance)) != 0);
    child_assert(segment_header()->pid == getpid());
    child_assert(cq_create(own, &(struct cq_attributes){.cqe = 1}, &own_cq) == 0);
    cq_push(own_cq, &(struct cqe){.wr_id = 6}, false);
    child_assert(cq_poll(own_cq, 1, &wc) == 1 && wc.wr_id == 6);
    child_assert(cq_destroy(own_cq) == 0);
    context_close(own);
    return 0;
}

static void child_leaves_the_parent_alone(void **state)
{
    struct channel *channel;
    struct cq *cq, *ignored;
    struct ibv_wc wc;
    int status;
    pid_t child;

    assert_int_equal(channel_create(context, &channel), 0);
    assert_int_equal(cq_create(context, &(struct cq_attributes){.cqe = 1, .channel = channel}, &cq), 0);
    cq_push(cq, &(struct cqe){.wr_id = 1}, false);
    child = fork();
    if (child == 0)
        _exit(in_child(cq, channel, segment_header()));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(cq->record->armed, CQ_UNARMED);
    set_nonblocking(channel->ibv.fd);
    assert_int_equal(channel_get_event(channel, &ignored), -EAGAIN);
    assert_int_equal(cq_poll(cq, 2, &wc), 1);
    assert_int_equal(wc.wr_id, 1);
    assert_int_equal(cq_destroy(cq), 0);
    assert_int_equal(channel_destroy(channel), 0);
}

/* --- address handles ------------------------------------------------------------------------------------ */

static const uint8_t here[16] = {[10] = 0xff, 0xff, 192, 0, 2, 1},
                     next_door[16] = {[10] = 0xff, 0xff, 192, 0, 2, 2},
                     here_6[16] = {0x20, 0x01, 0x0d, 0xb8, [15] = 1};

static int open_with_device(void **state)
{
    static const struct netdev netdevs[] = {{.ifindex = 7, .mtu = 1500, .name = "eth0", .running = true}};
    struct netdev_address addresses[] = {{.ifindex = 7, .prefix_length = 128},
                                         {.ifindex = 7, .prefix_length = 128}};
    const struct netdev_snapshot snapshot = {
        .netdevs = netdevs, .netdev_count = 1, .addresses = addresses, .address_count = 2};
    struct device_change changes[DEVICE_CHANGES_MAX];

    memcpy(addresses[0].gid, here, 16);
    memcpy(addresses[1].gid, here_6, 16);
    device_table_init(&host_devices, &(struct device_options){0});
    if (device_table_apply(&host_devices, &snapshot, changes) < 0)
        return -1;
    return open_contexts(state);
}

static int close_with_device(void **state)
{
    int error = close_contexts(state);

    device_table_fini(&host_devices);
    return error;
}

static struct ibv_ah_attr address_of(const uint8_t gid[16], uint8_t sgid_index)
{
    struct ibv_ah_attr attributes = {.is_global = 1, .port_num = 1, .grh.sgid_index = sgid_index};

    memcpy(attributes.grh.dgid.raw, gid, 16);
    return attributes;
}

static void paths_follow_the_addresses(void **state)
{
    static const uint8_t group[16] = {[10] = 0xff, 0xff, 224, 0, 0, 9}, group_6[16] = {0xff, 0x0e, [15] = 9};
    struct ibv_ah_attr attributes = address_of(here, 0);
    struct path_address path;

    attributes.dlid = 0xc001; /* UCX */
    attributes.static_rate = IBV_RATE_100_GBPS;
    attributes.grh.flow_label = 0xfff12345;
    attributes.grh.traffic_class = 8;
    attributes.sl = 3;
    assert_int_equal(path_resolve(context, &attributes, &path), 0);
    assert_int_equal(path.destination_ifindex, 7);
    assert_int_equal(path.source_ifindex, 7);
    assert_memory_equal(path.source_gid, here, 16);
    assert_memory_equal(path.destination_gid, here, 16);
    assert_int_equal(path.flow_label, 0x12345);
    assert_int_equal(path.traffic_class, 8);
    assert_int_equal(path.service_level, 3);
    assert_int_equal(path.hop_limit, 64);
    assert_int_equal(path.is_multicast, 0);

    attributes = address_of(next_door, 0);
    attributes.grh.hop_limit = 3;
    assert_int_equal(path_resolve(context, &attributes, &path), 0);
    assert_int_equal(path.destination_ifindex, 0); /* not on this host */
    assert_int_equal(path.hop_limit, 3);

    attributes = address_of(group, 0);
    assert_int_equal(path_resolve(context, &attributes, &path), 0);
    assert_int_equal(path.is_multicast, 1);
    attributes = address_of(group_6, 0); /* programs join IPv6 groups whatever their address */
    assert_int_equal(path_resolve(context, &attributes, &path), 0);
    assert_int_equal(path.is_multicast, 1);
}

static void handles_are_checked(void **state)
{
    static const uint8_t zero[16];
    struct ibv_ah_attr bad[] = {address_of(here, 0), address_of(here, 0), address_of(here, 0),
                                address_of(here, 9), address_of(zero, 0), address_of(here_6, 0),
                                address_of(here, 0)};
    struct pd *pd;
    struct ah *ah;

    bad[0].is_global = 0;
    bad[1].port_num = 0;
    bad[2].port_num = 2;
    bad[6].grh.sgid_index = 200;
    assert_int_equal(pd_allocate(context, &pd), 0);
    for (size_t i = 0; i < array_size(bad); i++)
        assert_int_equal(ah_create(pd, &bad[i], &ah), -EINVAL);
    bad[0].is_global = 1;
    assert_int_equal(ah_create(pd, &bad[0], &ah), 0);
    assert_ptr_equal(ah->ibv.pd, &pd->ibv);
    assert_int_equal(ah->path.destination_ifindex, 7);
    assert_int_equal(pd_deallocate(pd), -EBUSY);
    assert_int_equal(ah_destroy(ah), 0);
    assert_int_equal(pd_deallocate(pd), 0);
}

#define test(name)             cmocka_unit_test_setup_teardown(name, open_contexts, close_contexts)
#define test_with_device(name) cmocka_unit_test_setup_teardown(name, open_with_device, close_with_device)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(header_describes_the_segment),
        test(records_of_qps_open_when_they_are_used),
        test(what_few_qps_need_takes_no_memory_before),
        test(readers_cannot_write_the_tables),
        test(what_is_released_is_punched_out),
        cmocka_unit_test(a_released_piece_of_a_page_is_zero),
        cmocka_unit_test(arena_splits_and_merges),
        cmocka_unit_test(arena_small_extents_share_pages),
        cmocka_unit_test(arena_extents_never_overlap),
        cmocka_unit_test(numbers_go_round),
        test(child_leaves_the_parent_alone),
        test_with_device(paths_follow_the_addresses),
        test_with_device(handles_are_checked),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("object_segment", tests, NULL, NULL);
}
