/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How processes share UDP port 4791: which process gets which packets, what happens when processes die, and what if
 * another program has the port. */
#include "test_udp_sides.h"

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "wire/ipudp.h"

/* uids of two unprivileged users, which need no accounts. */
enum { USER_A = 61001, USER_B = 61002 };
/* Words of the board. */
enum { READY, DONE, AGAIN, STEP };

static uint32_t block_of(unsigned number)
{
    return 0x1200 + 1 + number; /* a shard of its own */
}

static uint32_t qpn_of(unsigned number)
{
    return block_of(number) * UDP_BLOCK_QPNS + number;
}

static unsigned self;

static void open_own(unsigned number)
{
    self = number;
    own_block(block_of(number));
    CHECK(serve(block_of(number)) == 0);
}

/* In the test itself, with a bound, because a side may have ended. */
static void wait_for(unsigned word, unsigned value)
{
    for (unsigned i = 0; atomic_load(&board->word[word]) < value; i++) {
        usleep(1000);
        if (i > 200 * 1000)
            fail_msg("%u of %u have come to step %u", atomic_load(&board->word[word]), value, word);
    }
}

/* The PSN of a packet is the number of its sender. */
static void send_to(unsigned from, unsigned to)
{
    const struct udp_path path = path_between("127.0.0.1", "127.0.0.1");

    send_pattern(&path, qpn_of(to), from, 200, from * 16 + to);
    udp_flush(udp_lane(qpn_of(to)));
}

/* Bitmap of the sides whose packets have arrived. */
static _Atomic uint32_t heard;

static void listen_to(const struct packet *packet)
{
    unsigned from = packet->psn.value;

    CHECK(packet->dest_qpn == qpn_of(self) && has_pattern(packet, from * 16 + self));
    atomic_fetch_or(&heard, 1u << from);
}

/* Sends to all sides until every side has packets of every other; single packets may get lost. */
static void talk(unsigned number, uint32_t sides, unsigned word)
{
    bool told = false;

    atomic_store(&heard, 0);
    while (atomic_load(&board->word[word]) < (unsigned)__builtin_popcount(sides)) {
        for (unsigned to = 0; to < SIDES; to++) {
            if (sides >> to & 1)
                send_to(number, to);
        }
        for (unsigned i = 0; i < 10; i++)
            take_turn();
        if (!told && (atomic_load(&heard) & sides) == sides) {
            atomic_fetch_add(&board->word[word], 1);
            told = true;
        }
    }
}

static void joins_and_talks(unsigned number)
{
    on_arrival = listen_to;
    open_own(number);
    reach(READY, SIDES);
    talk(number, (1u << SIDES) - 1, DONE);
    CHECK(udp_counters->bad_icrc == 0);
}

static void test_processes_get_their_own_packets(void **state)
{
    pid_t pids[SIDES];

    board_clear();
    for (unsigned i = 0; i < SIDES; i++)
        pids[i] = side_start(joins_and_talks, i);
    for (unsigned i = 0; i < SIDES; i++)
        side_finish(pids[i]);
}

/* The port owner (side 0) and other sides die at once; remaining and new sides still get their packets. */
static void survives(unsigned number)
{
    on_arrival = listen_to;
    open_own(number);
    reach(READY, SIDES);
    talk(number, (1u << SIDES) - 1, DONE);
    atomic_fetch_add(&board->word[STEP], 1);
    if (number % 2 == 0)
        UNTIL(false); /* until the test kills us */
    UNTIL(atomic_load(&board->word[AGAIN]) != 0);
    talk(number, 0xaa | 0x11, STEP + 1);
}

static void comes_later(unsigned number)
{
    on_arrival = listen_to;
    open_own(number);
    atomic_fetch_add(&board->word[AGAIN], 1);
    UNTIL(atomic_load(&board->word[AGAIN]) == 2);
    talk(number, 0xaa | 0x11, STEP + 1);
}

static void test_the_death_of_some_is_nothing_to_the_others(void **state)
{
    pid_t pids[SIDES], later[2];

    board_clear();
    for (unsigned i = 0; i < SIDES; i++) {
        pids[i] = side_start(survives, i);
        if (i == 0) /* becomes the port owner */
            wait_for(READY, 1);
    }
    wait_for(STEP, SIDES);
    for (unsigned i = 0; i < SIDES; i += 2)
        side_kill(pids[i]);
    /* New sides with the numbers of two dead ones, the worst case. */
    later[0] = side_start(comes_later, 0);
    later[1] = side_start(comes_later, 4);
    side_finish(later[0]);
    side_finish(later[1]);
    for (unsigned i = 1; i < SIDES; i += 2)
        side_finish(pids[i]);
}

/* Sides with blocks of the same shard, of which only one can read the socket. */
static uint32_t crowded_block(unsigned number)
{
    return 0x2005 + number * UDP_SHARDS;
}

static void shares_a_shard(unsigned number)
{
    const struct udp_path path = path_between("::1", "::1");
    unsigned arrived = 0;

    own_block(crowded_block(number));
    CHECK(serve(crowded_block(number)) == 0);
    reach(READY, 4);
    while (atomic_load(&board->word[DONE]) < 4) {
        for (unsigned to = 0; to < 4; to++) {
            send_pattern(&path, crowded_block(to) * UDP_BLOCK_QPNS + 9, number, 1000, to);
            udp_flush(udp_lane(crowded_block(to) * UDP_BLOCK_QPNS + 9));
        }
        for (unsigned i = 0; i < 10; i++)
            take_turn();
        if (arrived < 100 && atomic_load(&inbox->count) >= 100) {
            arrived = 100;
            atomic_fetch_add(&board->word[DONE], 1);
        }
    }
    for (unsigned i = 0; i < 100; i++) {
        CHECK(inbox->kept[i].packet.dest_qpn == crowded_block(number) * UDP_BLOCK_QPNS + 9);
        CHECK(is_pattern(&inbox->kept[i], number));
    }
}

static void test_processes_of_one_shard_forward_each_others_packets(void **state)
{
    pid_t pids[4];

    board_clear();
    for (unsigned i = 0; i < 4; i++)
        pids[i] = side_start(shares_a_shard, i);
    for (unsigned i = 0; i < 4; i++)
        side_finish(pids[i]);
}

/* --- users ----------------------------------------------------------------------------------------- */

static uid_t user_of(unsigned number)
{
    return number < 3 ? USER_A : USER_B;
}

static void talks_across_users(unsigned number)
{
    on_arrival = listen_to;
    open_own(number);
    reach(READY, 6);
    talk(number, 0x3f, DONE);
    atomic_fetch_add(&board->word[STEP], 1);
    if (number == 0)
        UNTIL(false); /* the port owner, until the test kills it */
    UNTIL(atomic_load(&board->word[AGAIN]) == 1);
    talk(number, 0x3e, STEP + 1);
    CHECK(udp_state() == (user_of(number) == USER_A ? UDP_OPEN : UDP_FORWARDED));
    atomic_fetch_add(&board->word[STEP + 2], 1);
    if (user_of(number) == USER_A)
        UNTIL(false); /* all members, likewise */
    UNTIL(atomic_load(&board->word[AGAIN]) == 2);
    talk(number, 0x38, STEP + 3);
    /* One of them has bound the port now, and the others share it. */
    UNTIL(udp_state() == UDP_OPEN);
}

static void test_users_share_the_port_whoever_dies(void **state)
{
    pid_t pids[6];

    if (geteuid() != 0) {
        print_message("only root can become two users\n");
        skip();
    }
    board_clear();
    for (unsigned i = 0; i < 6; i++) {
        pids[i] = side_start_as(talks_across_users, i, user_of(i));
        if (i == 0)
            wait_for(READY, 1);
    }
    wait_for(STEP, 6);
    side_kill(pids[0]);
    atomic_store(&board->word[AGAIN], 1);
    wait_for(STEP + 2, 5);
    side_kill(pids[1]);
    side_kill(pids[2]);
    atomic_store(&board->word[AGAIN], 2);
    for (unsigned i = 3; i < 6; i++)
        side_finish(pids[i]);
}

/* --- declarations that do not reach the port owner -------------------------------------------------- */

enum { MANY = 600, MANY_FROM = 0x3000 }; /* more than a unix socket takes */

static _Atomic bool came[MANY];
static _Atomic uint32_t came_count;

static void note_block(const struct packet *packet)
{
    unsigned index = packet->dest_qpn / UDP_BLOCK_QPNS - MANY_FROM;

    CHECK(index < MANY);
    if (!atomic_exchange(&came[index], true))
        atomic_fetch_add(&came_count, 1);
}

static void is_stopped_for_a_while(unsigned number)
{
    const struct udp_path path = path_between("127.0.0.1", "127.0.0.1");

    open_own(0);
    reach(READY, 2);
    UNTIL(atomic_load(&board->word[AGAIN]) == 1);
    while (!atomic_load(&board->word[DONE])) {
        for (unsigned i = 0; i < MANY; i++) {
            send_pattern(&path, (MANY_FROM + i) * UDP_BLOCK_QPNS, 1, 100, 1);
            if (i % 8 == 0)
                take_turn(); /* the sockets are small */
        }
    }
}

static void has_many_blocks(unsigned number)
{
    on_arrival = note_block;
    own_block(MANY_FROM);
    CHECK(serve(MANY_FROM) == 0);
    reach(READY, 2);
    UNTIL(atomic_load(&board->word[STEP]) == 1); /* the port owner is stopped */
    for (unsigned i = 1; i < MANY; i++) {
        own_block(MANY_FROM + i);
        (void)serve_within(MANY_FROM + i, 1000000); /* so that each has a message of its own */
    }
    atomic_store(&board->word[STEP], 2);
    UNTIL(atomic_load(&came_count) == MANY);
    atomic_store(&board->word[DONE], 1);
}

static void test_what_a_busy_port_owner_did_not_hear_is_declared_again(void **state)
{
    pid_t owner, guest;

    if (geteuid() != 0) {
        print_message("only root can become two users\n");
        skip();
    }
    board_clear();
    owner = side_start_as(is_stopped_for_a_while, 0, USER_A);
    wait_for(READY, 1);
    guest = side_start_as(has_many_blocks, 1, USER_B);
    wait_for(READY, 2);
    kill(owner, SIGSTOP);
    atomic_store(&board->word[STEP], 1);
    wait_for(STEP, 2);
    kill(owner, SIGCONT);
    atomic_store(&board->word[AGAIN], 1);
    side_finish(guest);
    side_finish(owner);
}

/* --- a stopped member -------------------------------------------------------------------------------- */

static void is_stopped(unsigned number)
{
    open_own(number);
    reach(READY, 1);
    UNTIL(atomic_load(&board->word[DONE]) == 1);
}

static void is_patient(unsigned number)
{
    open_own(number);
    CHECK(udp_state() == UDP_OPEN);
    reach(DONE, 1);
}

/* A stopped member gets a longer timeout than a port without a member: it listens and replies later. */
static void test_a_member_may_be_slow_to_answer(void **state)
{
    pid_t stopped, patient;

    board_clear();
    stopped = side_start(is_stopped, 0);
    wait_for(READY, 1);
    kill(stopped, SIGSTOP);
    patient = side_start(is_patient, 1);
    usleep(2500 * 1000);
    kill(stopped, SIGCONT);
    side_finish(patient);
    side_finish(stopped);
}

/* --- the port of another program ------------------------------------------------------------------- */

static int taken = -1;

static void take_port(void)
{
    const struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(ROCE_UDP_PORT)};

    taken = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(taken, (const struct sockaddr *)&name, sizeof(name)), 0);
}

static void does_without(unsigned number)
{
    char reason[UDP_REASON_MAX];

    close(taken); /* the copy of the test's socket */
    own_block(block_of(number));
    CHECK(serve(block_of(number)) == -EADDRINUSE);
    CHECK(udp_state() == UDP_OFF && !udp_serves(block_of(number)));
    udp_reason(reason);
    CHECK(strstr(reason, "UDP port 4791 is in use by another program of uid"));
    atomic_store(&board->word[STEP], 1);
    UNTIL(atomic_load(&board->word[AGAIN]) == 1);
    /* The port is free now: another udp_serve() binds it. */
    while (serve(block_of(number)) != 0)
        usleep(10000);
    CHECK(udp_state() == UDP_OPEN);
}

static void test_a_taken_port_is_said_to_be_taken(void **state)
{
    pid_t pid;

    board_clear();
    take_port();
    pid = side_start(does_without, 1);
    wait_for(STEP, 1);
    close(taken);
    atomic_store(&board->word[AGAIN], 1);
    side_finish(pid);
}

/* --- groups ---------------------------------------------------------------------------------------- */

static struct udp_path path_to_group(void)
{
    struct udp_path path = path_between("127.0.0.1", "239.7.7.7");

    path.ifindex = 1;
    return path;
}

static void listens(unsigned number)
{
    const struct udp_path path = path_to_group();
    unsigned count;

    open_own(number);
    CHECK(udp_join(path.destination, 1) == 0);
    CHECK(udp_join(path.destination, 1) == 0); /* joined twice: one copy of each packet */
    reach(READY, 4);
    UNTIL(atomic_load(&inbox->count) > 0);
    CHECK(inbox->kept[0].packet.dest_qpn == 0xffffff && is_pattern(&inbox->kept[0], 5));
    CHECK(!memcmp(inbox->kept[0].packet.grh.destination, path.destination, 16));
    reach(DONE, 4);
    count = atomic_load(&inbox->count);
    udp_leave(path.destination, 1);
    reach(AGAIN, 4);
    UNTIL(atomic_load(&inbox->count) > count); /* still a member */
    udp_leave(path.destination, 1);
    reach(STEP, 4);
}

/* Sends until all sides report the packet. */
static void send_group(unsigned word, uint32_t value)
{
    const struct udp_path path = path_to_group();

    while (atomic_load(&board->word[word]) < value) {
        send_pattern(&path, 0xffffff, 1, 100, 5);
        udp_flush(udp_lane(0xffffff));
        for (unsigned i = 0; i < 10; i++)
            take_turn();
    }
}

static void speaks(unsigned number)
{
    open_own(number);
    reach(READY, 4);
    send_group(DONE, 3);
    reach(DONE, 4);
    reach(AGAIN, 4);
    send_group(STEP, 3);
    reach(STEP, 4);
    CHECK(atomic_load(&inbox->count) == 0); /* has not joined */
}

static void group_of_users(bool two_users)
{
    pid_t pids[4];

    board_clear();
    for (unsigned i = 0; i < 4; i++) {
        uid_t user = !two_users ? geteuid() : i < 2 ? USER_A : USER_B;

        pids[i] = side_start_as(i ? listens : speaks, i, user);
        if (i == 0)
            wait_for(READY, 1);
    }
    for (unsigned i = 0; i < 4; i++)
        side_finish(pids[i]);
}

static void test_groups_are_heard_by_those_who_joined(void **state)
{
    group_of_users(false);
}

static void test_groups_are_heard_by_clients_too(void **state)
{
    if (geteuid() != 0) {
        print_message("only root can become two users\n");
        skip();
    }
    group_of_users(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes_get_their_own_packets),
        cmocka_unit_test(test_the_death_of_some_is_nothing_to_the_others),
        cmocka_unit_test(test_processes_of_one_shard_forward_each_others_packets),
        cmocka_unit_test(test_users_share_the_port_whoever_dies),
        cmocka_unit_test(test_what_a_busy_port_owner_did_not_hear_is_declared_again),
        cmocka_unit_test(test_a_member_may_be_slow_to_answer),
        cmocka_unit_test(test_a_taken_port_is_said_to_be_taken),
        cmocka_unit_test(test_groups_are_heard_by_those_who_joined),
        cmocka_unit_test(test_groups_are_heard_by_clients_too),
    };

    if (!own_network()) {
        printf("1..0 # SKIP a network namespace of our own is not allowed\n");
        return 0;
    }
    return run_unit_tests("udp_port", tests);
}
