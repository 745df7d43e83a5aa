/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Processes that die, fork, stop or lie. */
#include "refused_calls.h"
#include "test_local_sides.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "local/block_names.h"
#include "local/handshake.h"
#include "local/handshake_message.h"
#include "local/start.h"

static bool has_pidfds(void)
{
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Of a link: its socket, and the peer's pidfd where there are pidfds. */
static unsigned fds_of_a_link(void)
{
    return 1 + has_pidfds();
}

/* --- death ---------------------------------------------------------------------------------------------- */

/* Talks as fast as it can with everything that may be under way when it is killed: a handshake, records of all
 * sizes, full rings, sleeping and waking. */
static void talks_until_killed(unsigned number)
{
    static char payload[LOCAL_MTU];
    uint32_t mine = publish_qpn(1), other = await_qpn(0);
    unsigned random = (unsigned)getpid();
    struct link *link = find_link(other);

    CHECK(link);
    for (;;) {
        struct packet packet = small_packet(other, mine + (uint32_t)rand_r(&random) % LOCAL_LANES);
        struct lane *lane = link_lane(link, packet.src_qpn);
        struct iovec gather = {payload, (size_t)rand_r(&random) % LOCAL_MTU};

        packet.payload_length = (uint32_t)gather.iov_len;
        lane_send(lane, &packet, &gather, 1);
        lane_ring(lane);
        if (rand_r(&random) % 16 == 0) {
            turn(0);
            local_prepare_sleep(ATTENTION_ASLEEP);
        }
    }
}

static void survives(unsigned number)
{
    const unsigned deaths = getenv("SOFTHCA_TEST_LONG") ? 2000 : 100;
    uint32_t mine = publish_qpn(number);
    unsigned random = 1, fds = 0, maps = 0;

    (void)mine;
    for (unsigned i = 0; i < deaths; i++) {
        pid_t pid;
        unsigned before = seen.downs, packets = seen.packets, wait = (unsigned)rand_r(&random) % 60;
        struct timespec pause = {0, rand_r(&random) % 300000};
        bool linked;

        /* The talker is a fork of a process that uses local itself, and starts local anew. */
        atomic_store(&board->qpn[1], 0);
        pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            local_after_fork_in_child();
            rundown_after_fork_in_child();
            side_up();
            talks_until_killed(1);
        }
        /* Sometimes in the handshake, sometimes in the middle of talk; we answer on some lanes. */
        if (i % 4 == 0) {
            nanosleep(&pause, NULL);
        } else {
            UNTIL(seen.packets >= packets + wait);
            if (i % 2 && wait) {
                struct packet packet = small_packet(seen.last.src_qpn, mine);

                while (lane_send(seen.lane, &packet, NULL, 0) == 0)
                    lane_ring(seen.lane);
            }
        }
        side_kill(pid);
        linked = i % 4 != 0 && wait;
        if (linked)
            UNTIL(seen.downs == before + 1);
        else /* whatever there is of it goes away */
            for (int n = 0; n < 20; n++)
                turn(1);
        CHECK(seen.downs <= before + 1);
        if (i == 20) {
            fds = count_fds();
            maps = count_maps();
        } else if (i > 20 && linked) {
            CHECK(count_fds() <= fds + 1); /* one more: a handshake whose end was not seen yet */
            CHECK(count_maps() <= maps + 3);
        }
    }
}

static void test_the_killed_are_taken_down_once(void **state)
{
    board_clear();
    RUN_SIDES(survives);
}

static void speaks_its_last(unsigned number)
{
    uint32_t mine = publish_qpn(number), other = await_qpn(0);
    struct link *link = find_link(other);

    for (int i = 0; i < 100; i++)
        send_text(link_lane(link, mine), other, mine, "last words");
}

static void hears_everything(unsigned number)
{
    publish_qpn(number);
    UNTIL(seen.packets);
    while (!seen.downs) {
        struct pollfd event = {.fd = local_event_fd(), .events = POLLIN};

        poll(&event, 1, -1);
        local_dispatch(
            &(bool){false}); /* without local_poll(): what is left is taken when the link goes down */
    }
    CHECK(seen.packets == 100);
    CHECK(seen.batches > 0);
}

static void test_what_was_written_before_the_end_arrives(void **state)
{
    board_clear();
    RUN_SIDES(hears_everything, speaks_its_last);
}

/* --- fork ----------------------------------------------------------------------------------------------- */

static void forks_and_dies(unsigned number)
{
    bool tidy = atomic_load(&board->word[5]);
    uint32_t mine = publish_qpn(number), other = await_qpn(0);
    struct link *link = find_link(other);
    bool refers = link_can_reference(link); /* not where the machine refuses kernel copies */
    unsigned fds;
    pid_t child;

    send_text(link_lane(link, mine), other, mine, "about to fork");
    meet(0, 2);
    fds = count_fds();
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (tidy) {
            local_after_fork_in_child();
            rundown_after_fork_in_child();
            CHECK(local_event_fd() == -1);
            CHECK(count_fds() < fds - 4); /* epoll, eventfd, timerfd, block, socket, pidfd are gone */
            /* It may begin anew, as a process of its own. */
            side_up();
            CHECK(link_is_self(find_link(publish_qpn(2))));
            CHECK(find_link(other) && link_can_reference(find_link(other)) == refers);
        } /* else it keeps all our descriptors, as a raw clone() would */
        atomic_store(&board->word[6], 1);
        while (atomic_load(&board->word[7]) == 0)
            pause();
        _exit(0);
    }
    atomic_store(&board->value[1], (uint64_t)child);
    while (!atomic_load(&board->word[6]))
        turn(1);
    /* The child's life changes nothing for ours. */
    send_text(link_lane(link, mine), other, mine, "after the fork");
    UNTIL(seen.packets == 1);
    _exit(0);
}

static void notices_the_death(unsigned number)
{
    uint32_t mine = publish_qpn(number);

    UNTIL(seen.packets == 1);
    meet(0, 2);
    UNTIL(seen.packets == 2);
    CHECK(strcmp((char *)seen.payload, "after the fork") == 0 && seen.downs == 0);
    send_text(link_lane(lane_link(seen.lane), mine), seen.last.src_qpn, mine, "yes");
    UNTIL(seen.downs == 1); /* although the child lives */
    kill((pid_t)atomic_load(&board->value[1]), SIGKILL);
}

static void fork_and_die(bool tidy)
{
    board_clear();
    atomic_store(&board->word[5], tidy);
    RUN_SIDES(notices_the_death, forks_and_dies);
}

static void test_a_forked_child_starts_anew(void **state)
{
    fork_and_die(true);
}

static void test_a_child_that_keeps_our_descriptors_hides_no_death(void **state)
{
    if (!has_pidfds()) {
        print_message("no pidfds (Linux 5.3)\n");
        skip();
    }
    fork_and_die(false);
}

static void loses_its_descriptors(unsigned number)
{
    uint32_t mine = publish_qpn(number), other = await_qpn(0);
    struct link *link = find_link(other);
    int numbers[256], pipes[2];

    /* The program closes what it does not know, and opens its own files under the same numbers. */
    CHECK(link);
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    CHECK(pipe2(pipes, O_CLOEXEC | O_NONBLOCK) == 0);
    for (int i = 0; i < 64; i++)
        numbers[i] = fcntl(pipes[1], F_DUPFD_CLOEXEC, 3);
    lane_ring(link_lane(link, mine));
    link_ring(link, 0);
    local_kick();
    /* Not a byte of ours in them. */
    CHECK(read(pipes[0], numbers, sizeof(numbers)) < 0 && errno == EAGAIN);
}

static void loses_its_peer(unsigned number)
{
    publish_qpn(number);
    UNTIL(seen.downs == 1);
}

static void test_descriptors_of_the_program_are_left_alone(void **state)
{
    board_clear();
    RUN_SIDES(loses_its_peer, loses_its_descriptors);
}

/* --- peers that break the protocol ---------------------------------------------------------------------- */

/* Of a block whose name has no uid. */
static int listen_as(uint32_t block)
{
    struct sockaddr_un address;
    socklen_t length = block_address(block, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CHECK(!block_is_of_user(block));
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, 1) == 0);
    return fd;
}

static int connect_to(uint32_t qpn)
{
    struct sockaddr_un address;
    socklen_t length = block_address(qpn / LOCAL_BLOCK_QPNS, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, length) == 0);
    return fd;
}

static void is_not_held_up(unsigned number)
{
    uint32_t mine = publish_qpn(number), other = await_qpn(1), silent;
    unsigned fds = count_fds();

    for (silent = 0x100; silent / 256 == mine / 256 || silent / 256 == other / 256; silent += 0x100) {
    }
    listen_as(silent / 256);
    rundown_enter();
    CHECK(!local_resolve(silent));
    rundown_exit();
    turn(0);
    CHECK(seen.resolved == 0);
    CHECK(find_link(other)); /* while the other one is still silent */
    CHECK(seen.resolved == 1);
    handshake_timeout = NS_PER_S;
    meet(0, 2);
    UNTIL(seen.resolved == 2); /* after its time */
    CHECK(seen.block == silent / 256 && !seen.link);
    CHECK(count_fds() == fds + 1 + fds_of_a_link()); /* 1: listener */
}

static void answers_quickly(unsigned number)
{
    publish_qpn(number);
    meet(0, 2);
    UNTIL(seen.downs == 1);
}

static void test_a_silent_owner_holds_up_nobody_else(void **state)
{
    board_clear();
    RUN_SIDES(is_not_held_up, answers_quickly);
}

static int memory_of(off_t size, unsigned seals)
{
    int fd = memfd_create("liar", MFD_ALLOW_SEALING | MFD_CLOEXEC);

    CHECK(fd >= 0 && ftruncate(fd, size) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

/* A process that is not this one, whichever bytes this one has drawn. number: from 1 on */
static void call_oneself(struct handshake_message *message, uint8_t number)
{
    message->instance[0] ^= number;
}

/* Sends a HELLO, of a process of its own, and returns the result. */
static int send_hello(uint32_t victim, int memory, int *ret_socket)
{
    struct handshake_message message;
    static uint8_t count;

    handshake_message_fill(&message, HANDSHAKE_HELLO, HANDSHAKE_OK, false);
    handshake_message_add_private(&message);
    call_oneself(&message, ++count);
    message.nonce_address = 1;
    *ret_socket = connect_to(victim);
    CHECK(handshake_message_send(*ret_socket, &message, memory) == 0);
    CHECK(recv(*ret_socket, &message, sizeof(message), 0) == (ssize_t)sizeof(message));
    CHECK(message.type == HANDSHAKE_WELCOME && !(message.flags & HANDSHAKE_CAN_READ));
    return message.result;
}

/* What a liar sends instead of HELLO; each is a connection of its own. */
static void lies_to_acceptors(unsigned number)
{
    const unsigned seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    uint32_t victim = await_qpn(0);
    struct handshake_message message;
    int fd;

    /* Nothing, an empty packet, noise, something too long. */
    connect_to(victim);
    fd = connect_to(victim);
    send(fd, "", 0, 0);
    fd = connect_to(victim);
    send(fd, "noise", 5, 0);
    fd = connect_to(victim);
    send(fd, board, sizeof(*board), 0);
    /* A handshake out of turn or of another time. */
    handshake_message_fill(&message, HANDSHAKE_READY, HANDSHAKE_OK, false);
    fd = connect_to(victim);
    handshake_message_send(fd, &message, -1);
    handshake_message_fill(&message, HANDSHAKE_HELLO, HANDSHAKE_OK, false);
    message.version = 2;
    fd = connect_to(victim);
    handshake_message_send(fd, &message, -1);
    /* No memory, memory that could shrink, memory of a wrong size, something else. */
    CHECK(send_hello(victim, -1, &fd) == HANDSHAKE_REFUSED);
    CHECK(send_hello(victim, memory_of(LAYOUT_SIZE, F_SEAL_GROW | F_SEAL_SEAL), &fd) == HANDSHAKE_REFUSED);
    CHECK(send_hello(victim, memory_of(LAYOUT_SIZE - 4096, seals), &fd) == HANDSHAKE_REFUSED);
    CHECK(send_hello(victim, open("/dev/null", O_RDWR | O_CLOEXEC), &fd) == HANDSHAKE_REFUSED);
    /* A READY that does not come, or comes under another name. */
    CHECK(send_hello(victim, memory_of(LAYOUT_SIZE, seals), &fd) == HANDSHAKE_OK);
    CHECK(send_hello(victim, memory_of(LAYOUT_SIZE, seals), &fd) == HANDSHAKE_OK);
    handshake_message_fill(&message, HANDSHAKE_READY, HANDSHAKE_OK, true);
    handshake_message_send(fd, &message, -1);
    CHECK(recv(fd, &message, sizeof(message), 0) == 0);

    /* After all that an honest process is served. */
    publish_qpn(number);
    CHECK(find_link(victim));
    send_text(link_lane(find_link(victim), 7), victim, 7, "honest");
    meet(0, 2);
    meet(1, 2);
}

static void is_lied_to(unsigned number)
{
    uint32_t mine = publish_qpn(number);
    unsigned fds = count_fds();

    (void)mine;
    UNTIL(seen.packets == 1);
    handshake_timeout = NS_PER_S;
    meet(0, 2);
    /* Those that said nothing are shown the door after their time; the honest one stays. */
    UNTIL(count_fds() == fds + fds_of_a_link());
    CHECK(seen.downs == 0);
    CHECK(!local_link_is_coming());
    meet(1, 2);
    UNTIL(seen.downs == 1);
    CHECK(count_fds() == fds);
}

static void test_lies_of_connectors_lead_nowhere(void **state)
{
    board_clear();
    RUN_SIDES(is_lied_to, lies_to_acceptors);
}

enum { HANDSHAKES_OF_ANOTHER_VERSION = 50 };

static void is_of_another_time(unsigned number)
{
    uint32_t victim = await_qpn(0);

    for (unsigned i = 0; i < HANDSHAKES_OF_ANOTHER_VERSION; i++) {
        struct handshake_message message;
        int fd = connect_to(victim);

        handshake_message_fill(&message, HANDSHAKE_HELLO, HANDSHAKE_OK, false);
        if (i % 2)
            message.version++;
        else
            message.layout_size += 4096;
        CHECK(handshake_message_send(fd, &message, -1) == 0);
        /* An answer, and not the end of the socket, which would be tried again at once. */
        CHECK(recv(fd, &message, sizeof(message), 0) == (ssize_t)sizeof(message));
        CHECK(message.type == HANDSHAKE_WELCOME && message.result == HANDSHAKE_REFUSED);
        close(fd);
    }
    atomic_store(&board->word[5], 1);
}

static void tells_of_it_once(unsigned number)
{
    int words = memfd_create("stderr", MFD_CLOEXEC), out = dup(STDERR_FILENO);
    char text[4096] = "";
    unsigned told = 0;

    setenv("SOFTHCA_LOG", "warn", 1);
    side_up();
    dup2(words, STDERR_FILENO);
    publish_qpn(number);
    UNTIL(atomic_load(&board->word[5]));
    dup2(out, STDERR_FILENO);
    CHECK(pread(words, text, sizeof(text) - 1, 0) >= 0);
    for (const char *at = text; (at = strstr(at, "no shared-memory link with process")); at++)
        told++;
    CHECK(told == 1);
}

static void test_a_process_of_another_version_is_refused_and_told_of_once(void **state)
{
    pid_t victim, other;

    board_clear();
    victim = side_start_bare(tells_of_it_once, 0);
    other = side_start(is_of_another_time, 1);
    side_finish(other);
    side_finish(victim);
}

static unsigned links_visited;

static void count_link(struct link *link, void *argument)
{
    links_visited++;
}

static void says_ready_late_and_never(unsigned number)
{
    const unsigned seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    uint32_t other = await_qpn(0);
    struct handshake_message ready;
    int fd;

    CHECK(send_hello(other, memory_of(LAYOUT_SIZE, seals), &fd) == HANDSHAKE_OK);
    handshake_message_fill(&ready, HANDSHAKE_READY, HANDSHAKE_OK, false);
    call_oneself(&ready, 1); /* as send_hello() did */
    meet(1, 2);
    meet(2, 2);
    CHECK(handshake_message_send(fd, &ready, -1) == 0);
    meet(3, 2);
    CHECK(send_hello(other, memory_of(LAYOUT_SIZE, seals), &fd) == HANDSHAKE_OK);
    meet(4, 2);
    meet(5, 2);
}

/* From WELCOME on, the other end has the link, and may tell others so. */
static void knows_what_is_coming(unsigned number)
{
    publish_qpn(number);
    CHECK(!local_link_is_coming());
    meet(1, 2);
    CHECK(local_link_is_coming());
    local_for_each_link(count_link, NULL);
    CHECK(links_visited == 0 && seen.settled == 0);
    meet(2, 2);
    UNTIL(!local_link_is_coming());
    local_for_each_link(count_link, NULL);
    CHECK(links_visited == 1 && seen.settled == 1);
    meet(3, 2);
    meet(4, 2);
    CHECK(local_link_is_coming());
    UNTIL(!local_link_is_coming()); /* after its time */
    CHECK(seen.settled == 2);
    meet(5, 2);
}

static void test_a_link_that_only_the_other_end_has_is_coming(void **state)
{
    board_clear();
    RUN_SIDES(knows_what_is_coming, says_ready_late_and_never);
}

enum lie { LIE_CLOSE, LIE_NOISE, LIE_REFUSE, LIE_READY, LIE_KNOWN, LIES };

static void lies_to_connectors(unsigned number)
{
    uint32_t mine = publish_qpn(number) / 256, block = block_is_of_user(mine ^ 1) ? mine ^ 2 : mine ^ 1;
    int listener = listen_as(block);

    atomic_store(&board->qpn[2], block * 256);
    for (enum lie lie = LIE_CLOSE; lie < LIES; lie++) {
        int fd = accept(listener, NULL, NULL);
        struct handshake_message message, hello;

        CHECK(fd >= 0 && recv(fd, &message, sizeof(message), 0) == (ssize_t)sizeof(message));
        handshake_message_fill(&message, HANDSHAKE_WELCOME, HANDSHAKE_OK, true);
        handshake_message_add_private(&message);
        switch (lie) {
        case LIE_NOISE:
            send(fd, "noise", 5, 0);
            break;
        case LIE_REFUSE:
            message.result = 77;
            handshake_message_send(fd, &message, -1);
            break;
        case LIE_READY:
            message.type = HANDSHAKE_READY;
            handshake_message_send(fd, &message, -1);
            break;
        case LIE_KNOWN: /* the name of somebody that it has never met; tried until its time is over */
            message.result = HANDSHAKE_KNOWN;
            handshake_message_send(fd, &message, -1);
            while (!atomic_load(&board->word[3])) {
                struct pollfd event = {.fd = listener, .events = POLLIN};

                close(fd);
                if (poll(&event, 1, 10) != 1) {
                    fd = -1;
                    continue;
                }
                fd = accept(listener, NULL, NULL);
                recv(fd, &hello, sizeof(hello), 0); /* unread, it would reset the connection */
                handshake_message_send(fd, &message, -1);
            }
            break;
        case LIE_CLOSE:
        case LIES:
            break;
        }
        close(fd);
    }
}

static void is_lied_to_by_owners(unsigned number)
{
    uint32_t liar = await_qpn(2);
    unsigned fds = count_fds();

    handshake_timeout = NS_PER_S;
    for (enum lie lie = LIE_CLOSE; lie < LIES; lie++) {
        CHECK(find_link(liar) == NULL);
        if (lie == LIE_KNOWN)
            atomic_store(&board->word[3], 1);
        CHECK(count_fds() == fds);
    }
}

static void test_lies_of_owners_lead_nowhere(void **state)
{
    board_clear();
    RUN_SIDES(is_lied_to_by_owners, lies_to_connectors);
}

/* --- a peer that writes anything anywhere --------------------------------------------------------------- */

static void scribbles(unsigned number)
{
    uint32_t mine = publish_qpn(number), other = await_qpn(0);
    unsigned random = (unsigned)atomic_load(&board->word[9]);

    struct link *link = find_link(other);

    CHECK(link);
    for (unsigned i = 0; i < 20; i++)
        send_text(link_lane(link, mine + i), other, mine + i, "innocent");
    meet(0, 2);
    for (unsigned i = 0; i < 100000 && !seen.downs; i++) {
        /* Control lines and the beginnings of rings, where it hurts. */
        size_t at = rand_r(&random) % 2
                        ? (size_t)rand_r(&random) % 4096
                        : LAYOUT_CONTROL + (size_t)rand_r(&random) % LAYOUT_RINGS * RING_SIZE +
                              (size_t)rand_r(&random) % 4096;

        ((volatile char *)link->memory)[at] = (char)rand_r(&random);
        if (i % 64 == 0) {
            struct pollfd event = {.fd = local_event_fd(), .events = POLLIN};

            link_ring(link, 0);
            if (poll(&event, 1, 0) > 0) /* only to see it go down; our own view is spoilt too */
                local_dispatch(&(bool){false});
        }
    }
}

static void is_scribbled_at(unsigned number)
{
    uint32_t mine = publish_qpn(number);

    UNTIL(seen.packets == 20);
    meet(0, 2);
    while (!seen.downs) {
        turn(1);
        if (!seen.downs && seen.lane) {
            struct packet packet = small_packet(seen.last.src_qpn, mine);

            lane_send(link_lane(lane_link(seen.lane), mine), &packet, NULL, 0);
            lane_ring(seen.lane);
            local_prepare_sleep(ATTENTION_ASLEEP);
        }
    }
    CHECK(seen.downs == 1);
}

static void test_a_peer_may_write_anything_anywhere(void **state)
{
    for (unsigned i = 0; i < 40; i++) {
        board_clear();
        atomic_store(&board->word[9], i);
        RUN_SIDES(is_scribbled_at, scribbles);
    }
}

/* The last test: the filter stays. */
static void test_the_dead_and_the_silent_are_known_before_linux_5_3(void **state)
{
    refuse_pidfds();
    assert_false(has_pidfds());
    test_what_was_written_before_the_end_arrives(state);
    test_a_forked_child_starts_anew(state);
    test_a_silent_owner_holds_up_nobody_else(state);
    test_lies_of_connectors_lead_nowhere(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_killed_are_taken_down_once),
        cmocka_unit_test(test_what_was_written_before_the_end_arrives),
        cmocka_unit_test(test_a_forked_child_starts_anew),
        cmocka_unit_test(test_a_child_that_keeps_our_descriptors_hides_no_death),
        cmocka_unit_test(test_descriptors_of_the_program_are_left_alone),
        cmocka_unit_test(test_a_silent_owner_holds_up_nobody_else),
        cmocka_unit_test(test_lies_of_connectors_lead_nowhere),
        cmocka_unit_test(test_a_process_of_another_version_is_refused_and_told_of_once),
        cmocka_unit_test(test_a_link_that_only_the_other_end_has_is_coming),
        cmocka_unit_test(test_lies_of_owners_lead_nowhere),
        cmocka_unit_test(test_a_peer_may_write_anything_anywhere),
        cmocka_unit_test(test_the_dead_and_the_silent_are_known_before_linux_5_3),
    };

    return run_local_tests("local_death", tests);
}
