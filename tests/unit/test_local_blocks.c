/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QP numbers: whose they are, when they come again, what happens when there are none. */
#include "test_local_sides.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

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
    CHECK(count_fds() <= fds + 22);
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
    CHECK(strcmp(address.sun_path + 1, "softhca/1/qpn/0000") > 0);
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

/* --- being looked at ------------------------------------------------------------------------------------ */

/* The answer to a look; *ret_fd: what came along, or -1. */
static enum segment_request_result request_segment(uint32_t qpn, int ret_fds[SEGMENT_REQUEST_FILES])
{
    struct segment_request message = {
        .magic = SEGMENT_REQUEST_MAGIC, .version = SEGMENT_REQUEST_VERSION, .type = SEGMENT_REQUEST_TYPE};
    struct iovec part = {&message, sizeof(message)};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(SEGMENT_REQUEST_FILES * sizeof(int))];
    } control = {0};
    struct msghdr answer = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    struct sockaddr_un address;
    socklen_t length = block_address(qpn / LOCAL_BLOCK_QPNS, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CHECK(connect(fd, (struct sockaddr *)&address, length) == 0);
    CHECK(send(fd, &message, sizeof(message), 0) == sizeof(message));
    CHECK(recvmsg(fd, &answer, MSG_CMSG_CLOEXEC) == sizeof(message));
    CHECK(message.magic == SEGMENT_REQUEST_MAGIC && message.type == SEGMENT_REQUEST_TYPE);
    ret_fds[0] = ret_fds[1] = -1;
    if (answer.msg_controllen >= CMSG_LEN(SEGMENT_REQUEST_FILES * sizeof(int)))
        memcpy(ret_fds, CMSG_DATA(&control.header), SEGMENT_REQUEST_FILES * sizeof(int));
    close(fd);
    return (enum segment_request_result)message.result;
}

static void is_looked_at(unsigned number)
{
    unsigned fds;

    publish_qpn(0);
    fds = count_fds();
    UNTIL(atomic_load(&board->word[0]) == 1);
    CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    atomic_store(&board->word[0], 2);
    UNTIL(atomic_load(&board->word[0]) == 3);
    CHECK(prctl(PR_SET_DUMPABLE, 1) == 0); /* /proc/self is ours again */
    CHECK(count_fds() == fds);
    atomic_store(&board->word[0], 4);
    meet(1, 2);
}

static void looks(unsigned number)
{
    uint32_t qpn = await_qpn(0);
    static const char *const files[] = {"/dev/zero", "/dev/null"};
    struct stat shown, wanted;
    int fds[SEGMENT_REQUEST_FILES];

    CHECK(request_segment(qpn, fds) == SEGMENT_GRANTED);
    for (unsigned i = 0; i < SEGMENT_REQUEST_FILES; i++) {
        CHECK(fds[i] >= 0 && fstat(fds[i], &shown) == 0 && stat(files[i], &wanted) == 0);
        CHECK(shown.st_rdev == wanted.st_rdev);
        close(fds[i]);
    }
    atomic_store(&board->word[0], 1);
    UNTIL(atomic_load(&board->word[0]) == 2);
    /* The program has forbidden that others of its user look into it. */
    CHECK(request_segment(qpn, fds) == SEGMENT_REFUSED && fds[0] < 0);
    atomic_store(&board->word[0], 3);
    UNTIL(atomic_load(&board->word[0]) == 4);
    CHECK(find_link(qpn) != NULL); /* all else is as it was */
    meet(1, 2);
}

static void test_who_may_look_is_shown_what_is_published(void **state)
{
    board_clear();
    RUN_SIDES(is_looked_at, looks);
}

static void looks_as_somebody_else(unsigned number)
{
    uint32_t qpn = await_qpn(0);
    int fds[SEGMENT_REQUEST_FILES];

    CHECK(setresgid(12345, 12345, 12345) == 0 && setresuid(12345, 12345, 12345) == 0);
    CHECK(request_segment(qpn, fds) == SEGMENT_REFUSED && fds[0] < 0);
    atomic_store(&board->word[0], 1);
}

static void is_not_looked_at(unsigned number)
{
    publish_qpn(0);
    UNTIL(atomic_load(&board->word[0]) == 1);
}

static void test_another_user_is_shown_nothing(void **state)
{
    if (geteuid() != 0)
        skip();
    board_clear();
    RUN_SIDES(is_not_looked_at, looks_as_somebody_else);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_are_unique),
        cmocka_unit_test(test_a_released_number_rests_for_a_round),
        cmocka_unit_test(test_a_released_number_rests_in_a_full_block),
        cmocka_unit_test(test_processes_start_at_different_numbers),
        cmocka_unit_test(test_processes_draw_different_lots),
        cmocka_unit_test(test_lots_are_shared_when_they_run_out),
        cmocka_unit_test(test_the_kernel_arbitrates),
        cmocka_unit_test(test_descriptors_end_with_an_error),
        cmocka_unit_test(test_who_may_look_is_shown_what_is_published),
        cmocka_unit_test(test_another_user_is_shown_nothing),
    };

    return run_local_tests("local_blocks", tests);
}
