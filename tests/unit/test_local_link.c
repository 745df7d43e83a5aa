/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Links between living processes: who finds whom, what arrives, who sleeps and who is woken. */
#include "test_local_sides.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "local/handshake_message.h"
#include "wire/opcode.h"

/* --- one process ---------------------------------------------------------------------------------------- */

static void talks_to_itself(unsigned number)
{
    uint32_t a, b;
    struct link *link;

    CHECK(local_qpn_allocate(&a) == 0 && local_qpn_allocate(&b) == 0 && a != b);
    rundown_enter();
    link = local_resolve(b);
    rundown_exit();
    CHECK(link && link_is_self(link) && link_peer_pid(link) == getpid());
    CHECK(link_can_reference(link));
    CHECK(link == local_resolve(a));
    send_text(link_lane(link, a), b, a, "to myself");
    UNTIL(seen.packets == 1);
    CHECK(strcmp((char *)seen.payload, "to myself") == 0);
    CHECK(seen.last.dest_qpn == b && seen.last.src_qpn == a);
    CHECK(lane_link(seen.lane) == link && seen.lane == link_lane(link, a));
    turn(0);
    turn(0);
    CHECK(seen.batches == 1); /* nothing more came */
    CHECK(*(char *)lane_owner_data(seen.lane) == 0);
}

static void test_a_process_reaches_itself(void **state)
{
    board_clear();
    RUN_SIDES(talks_to_itself);
}

static void wakes_itself(unsigned number)
{
    struct pollfd event = {.fd = local_event_fd(), .events = POLLIN};
    uint32_t qpn = publish_qpn(number);
    struct link *link = find_link(qpn);

    for (unsigned i = 0; i < 1000; i++) {
        CHECK(local_prepare_sleep(ATTENTION_ASLEEP));
        send_text(link_lane(link, qpn), qpn, qpn, "wake up");
        CHECK(poll(&event, 1, -1) == 1);
        CHECK(local_dispatch(&(bool){false}));
        turn(0);
        CHECK(seen.packets == i + 1);
        turn(0);
    }
}

static void test_a_sleeping_process_is_woken_by_itself(void **state)
{
    board_clear();
    RUN_SIDES(wakes_itself);
}

static _Atomic bool glances_enough;

static void *glances(void *argument)
{
    while (!atomic_load(&glances_enough))
        local_poll_rung();
    return NULL;
}

/* Another thread looks for doorbells all the while: what has gone to sleep stays asleep until somebody rings,
 * and then the descriptor tells, too. That thread may never poll again. */
static void wakes_although_another_looks(unsigned number)
{
    struct pollfd event = {.fd = local_event_fd(), .events = POLLIN};
    uint32_t qpn = publish_qpn(number);
    struct link *link = find_link(qpn);
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, glances, NULL) == 0);
    for (unsigned i = 0; i < 20000; i++) {
        while (!local_prepare_sleep(ATTENTION_ASLEEP))
            turn(0);
        send_text(link_lane(link, qpn), qpn, qpn, "wake up");
        CHECK(poll(&event, 1, 30000) == 1);
        while (seen.packets <= i)
            turn(0);
    }
    atomic_store(&glances_enough, true);
    pthread_join(thread, NULL);
}

static void test_who_looks_for_doorbells_wakes_nobody(void **state)
{
    board_clear();
    RUN_SIDES(wakes_although_another_looks);
}

static void goes_on_when_there_is_room(unsigned number)
{
    uint32_t qpn = publish_qpn(number);
    struct link *link = find_link(qpn);
    struct lane *lane = link_lane(link, qpn);
    struct packet packet = small_packet(qpn, qpn);
    unsigned sent = 0;

    for (unsigned round = 0; round < 10; round++) {
        while (lane_send(lane, &packet, NULL, 0) == 0)
            sent++;
        lane_ring(lane);
        CHECK(lane_is_blocked(lane));
        UNTIL(seen.writable == round + 1);
        CHECK(!lane_is_blocked(lane));
    }
    UNTIL(seen.packets == sent);
}

static void test_a_full_lane_tells_when_it_has_room(void **state)
{
    board_clear();
    RUN_SIDES(goes_on_when_there_is_room);
}

/* --- two processes -------------------------------------------------------------------------------------- */

static void answers(unsigned number)
{
    uint32_t mine = publish_qpn(number);

    UNTIL(seen.packets == 1);
    CHECK(strcmp((char *)seen.payload, "ping") == 0 && seen.last.dest_qpn == mine);
    CHECK(lane_link(seen.lane)->peer_pid == (pid_t)atomic_load(&board->value[0]));
    send_text(link_lane(lane_link(seen.lane), mine), seen.last.src_qpn, mine, "pong");
    /* Asking for the other's block finds the link that is there. */
    CHECK(find_link(seen.last.src_qpn) == lane_link(seen.lane));
    CHECK(seen.resolved == 1);
    meet(0, 2);
}

static void asks(unsigned number)
{
    uint32_t mine, other = await_qpn(0);
    struct link *link = find_link(other);

    CHECK(link && !link_is_self(link) && link_peer_uid(link) == geteuid());
    CHECK(local_resolve(other) == link && seen.resolved == 1);
    CHECK(local_qpn_allocate(&mine) == 0);
    atomic_store(&board->value[0], (uint64_t)getpid());
    send_text(link_lane(link, mine), other, mine, "ping");
    UNTIL(seen.packets == 1);
    CHECK(strcmp((char *)seen.payload, "pong") == 0 && lane_link(seen.lane) == link);
    meet(0, 2);
}

static void test_two_processes_find_each_other(void **state)
{
    board_clear();
    RUN_SIDES(answers, asks);
}

static unsigned peers_visited, selves_visited;

static void count_peer(struct link *link, void *argument)
{
    if (link_is_self(link))
        selves_visited++;
    else
        peers_visited++;
}

static void count_peers(void)
{
    peers_visited = selves_visited = 0;
    local_for_each_peer(count_peer, NULL);
}

/* Both connect in the same moment, if the scheduler likes. */
static void meets_in_the_middle(unsigned number)
{
    uint32_t mine = publish_qpn(number), other = await_qpn(1 - number);
    struct link *link;

    meet(0, 2);
    link = find_link(other);
    CHECK(link);
    send_text(link_lane(link, mine), other, mine, "hello");
    UNTIL(seen.packets == 1);
    CHECK(strcmp((char *)seen.payload, "hello") == 0 && seen.last.dest_qpn == mine);
    count_peers();
    CHECK(peers_visited == 1 && selves_visited == 1); /* however many links there are */
    meet(1, 2);
}

static void test_both_may_connect_at_once(void **state)
{
    for (int i = 0; i < 60; i++) {
        board_clear();
        RUN_SIDES(meets_in_the_middle, meets_in_the_middle);
    }
}

#define CROWD 4

static void knows_everybody(unsigned number)
{
    uint32_t mine = publish_qpn(number);

    meet(0, CROWD);
    local_discover_peers();
    do {
        turn(1);
        count_peers();
    } while (peers_visited + selves_visited < CROWD);
    CHECK(peers_visited == CROWD - 1 && selves_visited == 1);
    for (unsigned i = 0; i < CROWD; i++) {
        uint32_t other = await_qpn(i);

        send_text(link_lane(find_link(other), mine), other, mine, "to all");
    }
    UNTIL(seen.packets == CROWD);
    meet(1, CROWD);
}

static void test_everybody_discovers_everybody(void **state)
{
    side_fn *crowd[CROWD];

    for (unsigned i = 0; i < CROWD; i++)
        crowd[i] = knows_everybody;
    board_clear();
    run_sides(crowd, CROWD);
}

static void finds_nobody_at_first(unsigned number)
{
    uint32_t mine, other;

    CHECK(local_qpn_allocate(&mine) == 0);
    /* Most likely a block that nobody has; the neighbour of ours is not ours. */
    other = mine ^ 0x100;
    CHECK(find_link(other) == NULL);
    CHECK(seen.resolved == 1);
    CHECK(find_link(other) == NULL); /* and may be asked again */
    CHECK(seen.resolved == 2);
    CHECK(find_link(0xffffff) == NULL && find_link(1) == NULL);
}

static void test_a_block_without_owner_resolves_to_nobody(void **state)
{
    board_clear();
    RUN_SIDES(finds_nobody_at_first);
}

/* --- sleeping ------------------------------------------------------------------------------------------- */

#define ROUNDS 3000

/* Sleeps whenever there is nothing to do, without a time limit: a lost doorbell hangs. */
static void sleep_and_take(void)
{
    struct pollfd event = {.fd = local_event_fd(), .events = POLLIN};

    if (local_prepare_sleep(ATTENTION_ASLEEP)) {
        CHECK(poll(&event, 1, -1) == 1);
        local_dispatch(&(bool){false});
    }
    rundown_enter();
    local_poll(16);
    rundown_exit();
}

static void plays_asleep(unsigned number)
{
    uint32_t mine = publish_qpn(number), other = await_qpn(1 - number);
    struct link *link = NULL;

    /* Both directions on one link: the one that the first connected. */
    if (number == 0) {
        link = find_link(other);
        send_text(link_lane(link, mine), other, mine, "ball");
    }
    for (unsigned i = 1; i <= ROUNDS; i++) {
        while (seen.packets < i)
            sleep_and_take();
        link = lane_link(seen.lane);
        if (i < ROUNDS || number)
            send_text(link_lane(link, mine), other, mine, "ball");
    }
    meet(0, 2);
}

static void test_a_doorbell_is_never_lost(void **state)
{
    board_clear();
    RUN_SIDES(plays_asleep, plays_asleep);
}

static unsigned taken_slowly;

static void fills_and_sleeps(unsigned number)
{
    static char payload[4000];
    uint32_t mine = publish_qpn(number), other = await_qpn(1);
    struct link *link = find_link(other);
    struct lane *lane = link_lane(link, mine);
    struct packet packet = small_packet(other, mine);
    struct iovec gather = {payload, sizeof(payload)};

    packet.payload_length = sizeof(payload);
    for (unsigned i = 0; i < 4 * ROUNDS;) {
        int result = lane_send(lane, &packet, &gather, 1);

        lane_ring(lane);
        if (result == 0) {
            i++;
            continue;
        }
        CHECK(result == -EAGAIN);
        atomic_store(&board->word[1], 1); /* full once: now the reader may begin */
        while (lane_is_blocked(lane))
            sleep_and_take();
    }
    CHECK(seen.writable > 0);
    meet(0, 2);
}

static void take_slowly(struct lane *lane, const struct packet *packet)
{
    taken_slowly++;
}

static void reads_and_sleeps(unsigned number)
{
    publish_qpn(number);
    on_packet = take_slowly;
    /* Completes the handshake, and takes nothing, until the writer had to stop. */
    while (!atomic_load(&board->word[1]))
        turn_deaf(1);
    while (taken_slowly < 4 * ROUNDS)
        sleep_and_take();
    meet(0, 2);
}

static void test_a_sleeping_writer_is_woken_by_room(void **state)
{
    board_clear();
    RUN_SIDES(fills_and_sleeps, reads_and_sleeps);
}

/* One lane speaks once in a long while, another all the time: the first goes cold, and is heard all the same.
 */
static void goes_cold(unsigned number)
{
    uint32_t quiet = publish_qpn(number), busy = quiet + 1;
    struct link *link = find_link(quiet);

    for (unsigned i = 1; i <= 5; i++) {
        unsigned before = seen.packets;

        send_text(link_lane(link, quiet), quiet, quiet, "still there?");
        UNTIL(seen.packets == before + 1);
        CHECK(link_lane(link, quiet)->hot_index >= 0);
        for (unsigned n = 0; n < 20000; n++) {
            if (n % 64 == 0)
                send_text(link_lane(link, busy), quiet, busy, "busy");
            turn(0);
        }
        CHECK(link_lane(link, quiet)->hot_index < 0);
        CHECK(link_lane(link, busy)->hot_index >= 0);
    }
}

static void test_a_quiet_lane_goes_cold_and_is_rung(void **state)
{
    board_clear();
    RUN_SIDES(goes_cold);
}

/* --- threads -------------------------------------------------------------------------------------------- */

#define SENDERS         2
#define POLLERS         2
#define SENT_PER_THREAD 20000

static _Atomic unsigned taken_by_threads;
static _Atomic bool threads_done;
static _Atomic uint32_t next_psn[SENDERS]; /* order of each sender's packets; under the lane's receive lock */

static void take_in_order(struct lane *lane, const struct packet *packet)
{
    unsigned sender = packet->src_qpn - packet->dest_qpn;

    CHECK(sender < SENDERS && packet->psn.value == atomic_load(&next_psn[sender]));
    atomic_store(&next_psn[sender], packet->psn.value + 1);
    atomic_fetch_add(&taken_by_threads, 1);
}

static void ignore_batch_end(struct lane *lane)
{
}

static void ignore_resolved(uint32_t block, struct link *link)
{
}

static void ignore_link(struct link *link)
{
}

static void ignore_lane(struct lane *lane)
{
}

static const struct local_ops threaded_ops = {.packet = take_in_order,
                                              .batch_end = ignore_batch_end,
                                              .resolved = ignore_resolved,
                                              .link_down = ignore_link,
                                              .lane_writable = ignore_lane};
static struct link *threads_link;
static uint32_t threads_qpn;

static void *sends(void *argument)
{
    unsigned number = (unsigned)(uintptr_t)argument;
    struct lane *lane = link_lane(threads_link, threads_qpn); /* one lane for all: they contend */

    for (uint32_t i = 0; i < SENT_PER_THREAD; i++) {
        struct packet packet = small_packet(threads_qpn, threads_qpn + number);

        packet.psn = psn_make(i);
        rundown_enter();
        while (lane_send(lane, &packet, NULL, 0) == -EAGAIN) {
            lane_ring(lane);
            rundown_exit();
            sched_yield();
            rundown_enter();
        }
        lane_ring(lane);
        rundown_exit();
    }
    return NULL;
}

static void *polls(void *argument)
{
    while (!atomic_load(&threads_done)) {
        rundown_enter();
        local_poll(16);
        rundown_exit();
        sched_yield();
    }
    return NULL;
}

/* The helper thread: it goes to sleep as often as it can, behind the pollers' back. */
static void *helps(void *argument)
{
    struct pollfd event = {.fd = local_event_fd(), .events = POLLIN};

    while (atomic_load(&taken_by_threads) < SENDERS * SENT_PER_THREAD) {
        if (local_prepare_sleep(ATTENTION_ASLEEP)) {
            /* The pollers may take the last packet without us: hence a limit. */
            if (poll(&event, 1, 10) == 1)
                local_dispatch(&(bool){false});
        }
        rundown_enter();
        local_poll(16);
        rundown_exit();
    }
    atomic_store(&threads_done, true);
    return NULL;
}

static void has_threads(unsigned number)
{
    pthread_t threads[SENDERS + POLLERS + 1];

    CHECK(local_start(&threaded_ops) == 0 && local_qpn_allocate(&threads_qpn) == 0);
    threads_link = local_resolve(threads_qpn);
    for (unsigned i = 0; i < array_size(threads); i++)
        CHECK(pthread_create(&threads[i], NULL,
                             i < SENDERS             ? sends
                             : i < SENDERS + POLLERS ? polls
                                                     : helps,
                             (void *)(uintptr_t)i) == 0);
    for (unsigned i = 0; i < array_size(threads); i++)
        pthread_join(threads[i], NULL);
    CHECK(atomic_load(&taken_by_threads) == SENDERS * SENT_PER_THREAD);
}

static void test_threads_share_a_lane(void **state)
{
    board_clear();
    side_finish(side_start_bare(has_threads, 0));
}

static bool ends_behind_each;
static unsigned small_taken, packets_taken;

static unsigned take_small(struct lane *lane, unsigned budget, bool *ret_ends)
{
    struct lane_small small;
    unsigned taken = 0;

    while (taken != budget && !*ret_ends && lane_peek(lane, &small)) {
        CHECK(small.psn.value == small_taken);
        lane_take(lane, &small);
        small_taken++;
        taken++;
        *ret_ends = ends_behind_each;
    }
    return taken;
}

static void count_packet(struct lane *lane, const struct packet *packet)
{
    packets_taken++;
}

static const struct local_ops small_ops = {.packet = count_packet,
                                           .small = take_small,
                                           .batch_end = ignore_batch_end,
                                           .resolved = ignore_resolved,
                                           .link_down = ignore_link,
                                           .lane_writable = ignore_lane};

static unsigned taken_by_poll(void)
{
    unsigned taken;

    rundown_enter();
    taken = local_poll(16);
    rundown_exit();
    return taken;
}

/* A batch ends where small() says so, whatever comes behind: that is the next poll's. Else it ends with the records. */
static void ends_batches(unsigned number)
{
    enum { SMALL = 4 };
    struct lane_small small = {.opcode = OP_ACKNOWLEDGE};
    struct packet other;
    struct lane *lane;
    uint32_t qpn;

    CHECK(local_start(&small_ops) == 0 && local_qpn_allocate(&qpn) == 0);
    lane = link_lane(local_resolve(qpn), qpn);
    small.dest_qpn = small.src_qpn = qpn;
    other = small_packet(qpn, qpn);
    other.opcode = OP_SEND_FIRST; /* not one that lane_peek() shows */
    for (int round = 0; round < 2; round++) {
        ends_behind_each = round == 0;
        rundown_enter();
        for (unsigned i = 0; i < SMALL; i++) {
            bool rings = false;

            CHECK(lane_put_alone(lane, &small, &rings));
            if (rings)
                lane_ring(lane);
            small.psn = psn_add(small.psn, 1);
        }
        CHECK(lane_send(lane, &other, NULL, 0) == 0);
        rundown_exit();
        while (!small_taken) /* its doorbell makes the lane hot */
            turn(1);
        for (unsigned i = small_taken % SMALL; round == 0 && i < SMALL; i++)
            CHECK(taken_by_poll() == 1 && packets_taken == 0);
        CHECK(taken_by_poll() == (round == 0 ? 1 : SMALL + 1) && packets_taken == (unsigned)round + 1);
        CHECK(small_taken == SMALL * ((unsigned)round + 1) && taken_by_poll() == 0);
    }
}

static void test_a_batch_ends_where_the_taker_says_so(void **state)
{
    board_clear();
    side_finish(side_start_bare(ends_batches, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_process_reaches_itself),
        cmocka_unit_test(test_a_sleeping_process_is_woken_by_itself),
        cmocka_unit_test(test_who_looks_for_doorbells_wakes_nobody),
        cmocka_unit_test(test_a_full_lane_tells_when_it_has_room),
        cmocka_unit_test(test_two_processes_find_each_other),
        cmocka_unit_test(test_both_may_connect_at_once),
        cmocka_unit_test(test_everybody_discovers_everybody),
        cmocka_unit_test(test_a_block_without_owner_resolves_to_nobody),
        cmocka_unit_test(test_a_doorbell_is_never_lost),
        cmocka_unit_test(test_a_sleeping_writer_is_woken_by_room),
        cmocka_unit_test(test_a_quiet_lane_goes_cold_and_is_rung),
        cmocka_unit_test(test_threads_share_a_lane),
        cmocka_unit_test(test_a_batch_ends_where_the_taker_says_so),
    };

    return run_local_tests("local_link", tests);
}
