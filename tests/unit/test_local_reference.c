/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Payload by reference: copies between processes, and who may not. */
#include "test_local_sides.h"

#include "local/reference.h"

#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define AREA 300000

static void fill(uint8_t *at, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        at[i] = (uint8_t)(seed + i * 13 + (i >> 8));
}

static bool filled(const uint8_t *at, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++) {
        if (at[i] != (uint8_t)(seed + i * 13 + (i >> 8)))
            return false;
    }
    return true;
}

/* Word 0 of the board: the sides have met; word 1: stages. Value 0: address of the owner's area. */
static void owns_memory(unsigned number)
{
    uint8_t *area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t mine = publish_qpn(number);

    fill(area, AREA, 1);
    atomic_store(&board->value[0], (uintptr_t)area);
    UNTIL(seen.packets == 1);
    CHECK(link_can_reference(lane_link(seen.lane)));
    meet(0, 2);
    CHECK(mine);
    meet(1, 2);
}

static void copies_memory(unsigned number)
{
    static uint8_t area[AREA];
    uint32_t mine = publish_qpn(number), other = await_qpn(0);
    struct link *link = find_link(other);
    const uint64_t there = atomic_load(&board->value[0]);
    struct packet_reference references[100];
    struct iovec vectors[300];
    unsigned vector_count = 0;

    CHECK(link_can_reference(link));
    send_text(link_lane(link, mine), other, mine, "begin");
    meet(0, 2);

    /* Pieces that do not meet, more than one system call takes; empty ones among them. */
    for (unsigned i = 0; i < 100; i++)
        references[i] = (struct packet_reference){there + i * (AREA / 100), AREA / 100};
    for (size_t at = 0; at < AREA; vector_count++) {
        size_t length = vector_count % 7 == 3 ? 0 : min_of((size_t)1237, AREA - at);

        vectors[vector_count] = (struct iovec){area + at, length};
        at += length;
    }
    CHECK(link_pull(link, references, 100, vectors, vector_count) == 0);
    CHECK(filled(area, AREA, 1));

    CHECK(link_pull(link, references, 99, vectors, vector_count) == -EINVAL);
    CHECK(link_pull(link, references, 100, vectors, vector_count - 1) == -EINVAL);
    CHECK(link_pull(link, NULL, 0, NULL, 0) == 0);
    /* The peer's memory ends in the middle. */
    references[1].address = 0;
    CHECK(link_pull(link, references, 100, vectors, vector_count) == -EFAULT);
    references[0].address = UINT64_MAX - 100;
    CHECK(link_pull(link, references, 100, vectors, vector_count) == -EFAULT);
    /* Ours does. */
    references[0] = (struct packet_reference){there, 8};
    vectors[0] = (struct iovec){NULL, 8};
    CHECK(link_pull(link, references, 1, vectors, 1) == -EFAULT);
    meet(1, 2);
}

static void test_memory_is_pulled(void **state)
{
    board_clear();
    RUN_SIDES(owns_memory, copies_memory);
}

static void copies_in_itself(unsigned number)
{
    static uint8_t from[1000], to[1000];
    struct link *link = find_link(publish_qpn(number));
    struct packet_reference reference = {(uintptr_t)from, sizeof(from)};
    struct iovec halves[] = {{to, 500}, {to + 500, 500}};

    fill(from, sizeof(from), 3);
    CHECK(link_pull(link, &reference, 1, halves, 2) == 0 && filled(to, sizeof(to), 3));
    CHECK(link_pull(link, &reference, 1, halves, 1) == -EINVAL);
}

/* What was sent before lane_revoke() is void, what is sent after it is not. */
static void takes_back(unsigned number)
{
    static uint8_t from[1000], to[1000];
    uint32_t mine = publish_qpn(number);
    struct lane *lane = link_lane(find_link(mine), mine);
    struct packet_reference reference = {(uintptr_t)from, sizeof(from)};
    struct iovec here = {to, sizeof(to)};
    struct packet packet = small_packet(mine, mine);

    packet.flags = PACKET_BY_REFERENCE;
    packet.payload_length = sizeof(from);
    packet.reference = &reference;
    packet.reference_count = 1;
    for (unsigned i = 0; i < 3; i++) {
        struct packet got;

        fill(from, sizeof(from), i);
        memset(&seen, 0, sizeof(seen));
        CHECK(lane_send(lane, &packet, NULL, 0) == 0);
        lane_ring(lane);
        UNTIL(seen.packets == 1);
        got = seen.last;
        got.reference = seen.references;
        CHECK(lane_pull(lane, &got, NULL, &here, 1) == 0 && filled(to, sizeof(to), i));
        lane_revoke(lane);
        CHECK(lane_pull(lane, &got, NULL, &here, 1) == -ESTALE);
    }
}

static void test_what_was_taken_back_is_void(void **state)
{
    board_clear();
    RUN_SIDES(takes_back);
}

static void test_a_process_copies_in_itself(void **state)
{
    board_clear();
    RUN_SIDES(copies_in_itself);
}

static void lives_until_killed(unsigned number)
{
    atomic_store(&board->value[0], (uintptr_t)&seen);
    publish_qpn(number);
    UNTIL(false);
}

static void copies_from_the_dead(unsigned number)
{
    uint32_t other = await_qpn(0);
    struct link *link = find_link(other);
    uint64_t word;
    struct packet_reference reference = {atomic_load(&board->value[0]), sizeof(word)};
    struct iovec here = {&word, sizeof(word)};

    CHECK(link_pull(link, &reference, 1, &here, 1) == 0);
    atomic_store(&board->word[0], 1);
    while (atomic_load(&board->word[0]) != 2) {
    } /* no turn(): local does not know yet */
    CHECK(link_pull(link, &reference, 1, &here, 1) == -ESRCH);
    UNTIL(seen.downs == 1);
}

static void test_the_dead_are_not_copied_from(void **state)
{
    pid_t owner, reader;

    board_clear();
    owner = side_start(lives_until_killed, 0);
    reader = side_start(copies_from_the_dead, 1);
    while (atomic_load(&board->word[0]) != 1)
        sched_yield();
    side_kill(owner);
    atomic_store(&board->word[0], 2);
    side_finish(reader);
}

/* --- users without permission --------------------------------------------------------------------------- */

/* On this link nothing goes by reference, and what comes by reference breaks it. */
static void expect_no_reference(struct link *link)
{
    struct packet_reference reference = {(uintptr_t)&seen, 8};
    struct iovec here = {&seen, 8};

    CHECK(!link_can_reference(link));
    CHECK(!link_can_pull(link));
    CHECK(link_pull(link, &reference, 1, &here, 1) == -EPERM);
}

static void answers_without(unsigned number)
{
    publish_qpn(number);
    UNTIL(seen.packets == 1);
    CHECK(strcmp((char *)seen.payload, "by the ring") == 0);
    expect_no_reference(lane_link(seen.lane));
    meet(0, 2);
    UNTIL(seen.downs == 1); /* the reference that should not have come */
    CHECK(seen.packets == 1);
}

static void asks_without(unsigned number)
{
    uint32_t mine = publish_qpn(number), other = await_qpn(0);
    struct link *link = find_link(other);
    struct packet_reference reference = {(uintptr_t)&seen, 8};
    struct packet packet = small_packet(other, mine);

    expect_no_reference(link);
    send_text(link_lane(link, mine), other, mine, "by the ring");
    meet(0, 2);
    packet.flags = PACKET_BY_REFERENCE;
    packet.payload_length = 8;
    packet.reference = &reference;
    packet.reference_count = 1;
    CHECK(lane_send(link_lane(link, mine), &packet, NULL, 0) == 0);
    lane_ring(link_lane(link, mine));
    UNTIL(seen.downs == 1);
}

static void answers_by_ring(unsigned number)
{
    setenv("SOFTHCA_LOCAL", "ring", 1);
    side_up();
    CHECK(local_reference_from() == UINT32_MAX);
    expect_no_reference(find_link(publish_qpn(7)));
    memset(&seen, 0, sizeof(seen));
    answers_without(number);
}

static void test_the_ring_alone_when_asked_for(void **state)
{
    pid_t one, two;

    board_clear();
    one = side_start_bare(answers_by_ring, 0);
    two = side_start(asks_without, 1);
    side_finish(one);
    side_finish(two);
}

static void prefers_references(unsigned number)
{
    setenv("SOFTHCA_LOCAL", "cma", 1);
    side_up();
    CHECK(local_reference_from() == 1);
}

static void test_references_for_everything_when_asked_for(void **state)
{
    board_clear();
    side_finish(side_start_bare(prefers_references, 0));
}

static void as_other_user(unsigned number)
{
    CHECK(setgroups(0, NULL) == 0 && setresgid(65533, 65533, 65533) == 0 &&
          setresuid(65533, 65533, 65533) == 0);
    side_up();
    asks_without(number);
}

static void as_other_user_answering(unsigned number)
{
    CHECK(setgroups(0, NULL) == 0 && setresgid(65533, 65533, 65533) == 0 &&
          setresuid(65533, 65533, 65533) == 0);
    side_up();
    answers_without(number);
}

static void test_another_user_gets_no_references(void **state)
{
    pid_t one, two;

    if (geteuid() != 0) {
        print_message("needs root for a second user\n");
        skip();
    }
    board_clear();
    one = side_start(answers_without, 0);
    two = side_start_bare(as_other_user, 1);
    side_finish(one);
    side_finish(two);
    board_clear();
    one = side_start_bare(as_other_user_answering, 0);
    two = side_start(asks_without, 1);
    side_finish(one);
    side_finish(two);
}

/* --- another pid namespace, the same network: containers of one pod ------------------------------------- */

static void outside(unsigned number)
{
    struct link *link;

    publish_qpn(number);
    UNTIL(seen.packets == 1);
    link = lane_link(seen.lane);
    CHECK(link_peer_pid(link) > 0);
    CHECK(!link_can_reference(link)); /* the other side has no number for us */
    send_text(link_lane(link, number), seen.last.src_qpn, number, "seen");
    meet(0, 2);
    _exit(0);
}

static void inside(void)
{
    uint32_t mine = publish_qpn(1), other = await_qpn(0);
    struct link *link = find_link(other);
    struct packet_reference reference = {(uintptr_t)&seen, 8};
    struct iovec here = {&seen, 8};

    CHECK(link && link_peer_pid(link) == 0);
    CHECK(link_pull(link, &reference, 1, &here, 1) == -EPERM);
    send_text(link_lane(link, mine), other, mine, "from inside");
    UNTIL(seen.packets == 1);
    meet(0, 2);
    UNTIL(seen.downs == 1); /* a death that it cannot see by a number */
}

static void goes_inside(unsigned number)
{
    pid_t pid;
    int status;

    CHECK(unshare(CLONE_NEWPID) == 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        side_up();
        inside();
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void test_another_pid_namespace_is_served_by_the_ring(void **state)
{
    pid_t one, two;

    if (geteuid() != 0) {
        print_message("needs root for a pid namespace\n");
        skip();
    }
    board_clear();
    one = side_start(outside, 0);
    two = side_start_bare(goes_inside, 1);
    side_finish(one);
    side_finish(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_pulled),
        cmocka_unit_test(test_a_process_copies_in_itself),
        cmocka_unit_test(test_what_was_taken_back_is_void),
        cmocka_unit_test(test_the_dead_are_not_copied_from),
        cmocka_unit_test(test_the_ring_alone_when_asked_for),
        cmocka_unit_test(test_references_for_everything_when_asked_for),
        cmocka_unit_test(test_another_user_gets_no_references),
        cmocka_unit_test(test_another_pid_namespace_is_served_by_the_ring),
    };

    return run_local_tests("local_reference", tests);
}
