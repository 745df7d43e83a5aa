/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QP numbers: whose they are, when they come again, what happens when there are none. */
#include "test_local_sides.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "local/handshake_message.h"

static uint8_t granted[1 << 24];

static uint32_t allocate(void)
{
    uint32_t qpn;

    CHECK(local_qpn_allocate(&qpn) == 0);
    CHECK(qpn > 1 && qpn < 0xffffff && !granted[qpn]);
    granted[qpn] = 1;
    return qpn;
}

static void release(uint32_t qpn)
{
    granted[qpn] = 0;
    local_qpn_release(qpn);
}

static void allocates_many(unsigned number)
{
    unsigned fds = count_fds();
    uint32_t first = allocate();

    CHECK(count_fds() == fds + 2); /* the block's name, and that of the shard */
    for (unsigned i = 1; i < 5000; i++)
        allocate();
    CHECK(count_fds() <= fds + 20);
    /* Each is ours. */
    for (uint32_t qpn = 0; qpn < 1 << 24; qpn++) {
        if (granted[qpn])
            CHECK(link_is_self(local_resolve(qpn)));
    }
    local_qpn_release(first);
    local_qpn_release(first); /* twice does no harm */
    CHECK(local_qpn_allocate(&first) == 0);
}

static void test_numbers_are_unique(void **state)
{
    board_clear();
    RUN_SIDES(allocates_many);
}

/* A program with many QPs needs few descriptors for their numbers, and each number is granted once. */
static void allocates_very_many(unsigned number)
{
    unsigned fds = count_fds();
    uint32_t qpn;

    for (unsigned i = 0; i < 1 << 18; i++)
        CHECK(local_qpn_allocate(&qpn) == 0 && !granted[qpn]++);
    CHECK(count_fds() <= fds + 64);
    for (qpn = 0; qpn < 1 << 24; qpn += granted[qpn] ? 61 : 1)
        CHECK(!granted[qpn] || link_is_self(local_resolve(qpn)));
    for (qpn = 0; qpn < 1 << 24; qpn++)
        if (granted[qpn])
            release(qpn);
    allocate();
}

static void test_many_numbers_take_few_descriptors(void **state)
{
    board_clear();
    RUN_SIDES(allocates_very_many);
}

/* --- areas of blocks ------------------------------------------------------------------------------------- */

enum { IN_AREAS = 3, FOUND = 8, HELD = 20000 }; /* so many numbers lie in several areas */

static void holds_many(unsigned number)
{
    for (unsigned i = 0, published = 0; i < HELD; i++) {
        uint32_t qpn = allocate(), last = segment_request_named_block(qpn / LOCAL_BLOCK_QPNS);

        /* An area is ours as a whole, also where no number has been granted yet. */
        if (last >= SEGMENT_REQUEST_AREAS_FROM)
            last += (SEGMENT_REQUEST_AREA_BLOCKS - 2) * SEGMENT_REQUEST_AREA_STRIDE;
        CHECK(link_is_self(local_resolve(last * LOCAL_BLOCK_QPNS)));
        /* Of three blocks that have no name of their own, the last ones of all. */
        if (i >= HELD - IN_AREAS * LOCAL_BLOCK_QPNS && i % LOCAL_BLOCK_QPNS == 0 && published < IN_AREAS)
            atomic_store(&board->qpn[published++], qpn);
    }
    UNTIL(atomic_load(&board->word[FOUND]));
}

static void finds_blocks_of_areas(unsigned number)
{
    struct link *first = NULL;

    for (unsigned i = 0; i < IN_AREAS; i++) {
        uint32_t qpn = await_qpn(i);
        struct link *link = find_link(qpn);
        bool is_owner;

        CHECK(link && !link_is_self(link) && (!first || link == first));
        first = link;
        rundown_enter();
        is_owner = local_is_owner(link, qpn / LOCAL_BLOCK_QPNS);
        rundown_exit();
        CHECK(is_owner);
    }
    atomic_store(&board->word[FOUND], 1);
}

static void test_peers_find_the_owner_of_an_area(void **state)
{
    board_clear();
    RUN_SIDES(holds_many, finds_blocks_of_areas);
}

static void releases_and_waits(unsigned number)
{
    uint32_t held = allocate(), released = allocate();

    release(released);
    for (unsigned i = 0; i < 254; i++) {
        uint32_t qpn = allocate();

        CHECK(qpn != released && qpn != held);
        release(qpn);
    }
    CHECK(allocate() == released); /* its turn has come again */
}

static void test_a_released_number_rests_for_a_round(void **state)
{
    board_clear();
    RUN_SIDES(releases_and_waits);
}

static void rests_although_crowded(unsigned number)
{
    uint32_t released;

    for (unsigned i = 0; i < 255; i++)
        allocate();
    released = allocate();
    release(released);
    for (unsigned i = 0; i < 60; i++)
        CHECK(allocate() != released);
}

static void test_a_released_number_rests_in_a_full_block(void **state)
{
    board_clear();
    RUN_SIDES(rests_although_crowded);
}

static void starts_somewhere(unsigned number)
{
    atomic_store(&board->qpn[number], allocate());
}

static void test_processes_start_at_different_numbers(void **state)
{
    unsigned distinct = 0;

    board_clear();
    RUN_SIDES(starts_somewhere, starts_somewhere, starts_somewhere, starts_somewhere);
    for (unsigned i = 1; i < 4; i++) {
        assert_int_not_equal(atomic_load(&board->qpn[0]) >> 8, atomic_load(&board->qpn[i]) >> 8);
        distinct += (atomic_load(&board->qpn[0]) & 0xff) != (atomic_load(&board->qpn[i]) & 0xff);
    }
    assert_true(distinct > 0); /* 1 in 16 million by chance */
}

static unsigned lot_of(uint32_t qpn)
{
    return qpn / LOCAL_BLOCK_QPNS % LOCAL_SHARDS;
}

static void chooses_a_shard(unsigned number)
{
    uint32_t qpn = allocate();

    CHECK(lot_of(qpn) != 0);
    for (unsigned i = 0; i < 1000; i++)
        CHECK(lot_of(allocate()) == lot_of(qpn));
    atomic_store(&board->qpn[number], qpn);
    meet(0, 4); /* holds it until all have theirs */
}

static void test_processes_draw_different_lots(void **state)
{
    uint64_t drawn = 0;

    board_clear();
    RUN_SIDES(chooses_a_shard, chooses_a_shard, chooses_a_shard, chooses_a_shard);
    for (unsigned i = 0; i < 4; i++) {
        uint64_t bit = 1ull << lot_of(atomic_load(&board->qpn[i]));

        assert_false(drawn & bit);
        drawn |= bit;
    }
}

/* Somebody has taken all names: shards are shared, numbers are not. */
static void shares_a_shard(unsigned number)
{
    for (unsigned shard = 1; shard < LOCAL_SHARDS; shard++) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int length =
            snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "softhca/1/lot/%02x", shard);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        /* Another test on this machine may have some of them. */
        (void)bind(fd, (struct sockaddr *)&address,
                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)length);
    }
    CHECK(lot_of(allocate()) != 0);
    CHECK(lot_of(allocate()) != 0);
}

static void test_lots_are_shared_when_they_run_out(void **state)
{
    board_clear();
    RUN_SIDES(shares_a_shard);
}

static void lets_others_have_theirs(unsigned number)
{
    struct sockaddr_un address;
    socklen_t length;
    int fd;

    /* Whoever holds a name holds the block: nobody else can bind it. */
    length = block_address(allocate() / LOCAL_BLOCK_QPNS, &address);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(bind(fd, (struct sockaddr *)&address, length) < 0 && errno == EADDRINUSE);
    CHECK(strcmp(address.sun_path + 1, "softhca/2/qpn/0000") > 0);
}

static void test_the_kernel_arbitrates(void **state)
{
    board_clear();
    RUN_SIDES(lets_others_have_theirs);
}

static void runs_out_of_descriptors(unsigned number)
{
    struct rlimit limit = {64, 64};
    uint32_t last = 0, qpn;
    unsigned count = 0;
    int error;

    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    errno = 4711;
    while ((error = local_qpn_allocate(&qpn)) == 0) {
        last = qpn;
        count++;
    }
    CHECK(error == -EMFILE && errno == 4711);
    CHECK(count > 256 && count % 256 == 0); /* every number of the blocks that there are */
    CHECK(local_qpn_allocate(&qpn) == -EMFILE);
    local_qpn_release(last);
    CHECK(local_qpn_allocate(&qpn) == 0 && qpn == last);
}

static void test_descriptors_end_with_an_error(void **state)
{
    board_clear();
    RUN_SIDES(runs_out_of_descriptors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_are_unique),
        cmocka_unit_test(test_many_numbers_take_few_descriptors),
        cmocka_unit_test(test_peers_find_the_owner_of_an_area),
        cmocka_unit_test(test_a_released_number_rests_for_a_round),
        cmocka_unit_test(test_a_released_number_rests_in_a_full_block),
        cmocka_unit_test(test_processes_start_at_different_numbers),
        cmocka_unit_test(test_processes_draw_different_lots),
        cmocka_unit_test(test_lots_are_shared_when_they_run_out),
        cmocka_unit_test(test_the_kernel_arbitrates),
        cmocka_unit_test(test_descriptors_end_with_an_error),
    };

    return run_local_tests("local_blocks", tests);
}
