/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One user takes all the links that a process has for other users, and starts all the handshakes that it can; a third
 * user still gets a link. And many processes of one user connect at once: none loses the link that it has. */
#include "test_local_sides.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "local/handshake_internal.h"

/* Users without accounts. */
enum { GREEDY = 61021, MODEST };
enum { PROCESSES = 90, LINKS_EACH = 8 };
enum { CROWD = HANDSHAKES_INCOMING_MAX / LINKS_EACH };
enum { LINKED = 8, DONE, WELCOMED, DEAF, COMES, READY, HEARD }; /* words of the board */

static void become(uid_t user)
{
    CHECK(setgroups(0, NULL) == 0 && setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0);
}

static int connect_to(uint32_t qpn)
{
    struct sockaddr_un address;
    socklen_t length = block_address(qpn / LOCAL_BLOCK_QPNS, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, length) == 0);
    return fd;
}

/* A link without a library: its memory, and the right messages. The socket stays open. Returns it where WELCOME has
 * come, or -1. */
static int begin_link(uint32_t victim, uint8_t number)
{
    int memory = memfd_create("link", MFD_ALLOW_SEALING | MFD_CLOEXEC), fd = connect_to(victim);
    struct handshake_message message;

    CHECK(memory >= 0 && ftruncate(memory, LAYOUT_SIZE) == 0 &&
          fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    handshake_message_fill(&message, HANDSHAKE_HELLO, HANDSHAKE_OK, false);
    message.instance[0] = number + 1;
    CHECK(handshake_message_send(fd, &message, memory) == 0);
    close(memory);
    return recv(fd, &message, sizeof(message), 0) == (ssize_t)sizeof(message) &&
                   message.result == HANDSHAKE_OK
               ? fd
               : -1;
}

static bool end_link(int fd, uint8_t number)
{
    struct handshake_message message;

    handshake_message_fill(&message, HANDSHAKE_READY, HANDSHAKE_OK, false);
    message.instance[0] = number + 1;
    return handshake_message_send(fd, &message, -1) == 0;
}

static bool make_link(uint32_t victim, uint8_t number)
{
    int fd = begin_link(victim, number);

    return fd >= 0 && end_link(fd, number);
}

/* As many links as it gets, from many processes, because each has few. */
static void takes_all_links(unsigned number)
{
    uint32_t victim = await_qpn(0);

    become(GREEDY);
    for (unsigned process = 0; process < PROCESSES; process++) {
        pid_t parent = getpid();

        if (fork() == 0) {
            unsigned links = 0;

            prctl(PR_SET_PDEATHSIG, SIGKILL);
            CHECK(getppid() == parent);
            while (links < LINKS_EACH && make_link(victim, (uint8_t)links))
                links++;
            atomic_fetch_add(&board->value[0], links);
            atomic_fetch_add(&board->word[LINKED], 1);
            for (;;)
                pause();
        }
    }
    while (!atomic_load(&board->word[DONE]))
        usleep(1000);
}

static void comes_after(unsigned number)
{
    while (atomic_load(&board->word[LINKED]) < PROCESSES)
        usleep(1000);
    become(MODEST);
    side_up();
    CHECK(find_link(await_qpn(0)));
    atomic_store(&board->word[DONE], 1);
}

static void serve_until_done(void)
{
    publish_qpn(0);
    UNTIL(atomic_load(&board->word[DONE]));
}

static void has_many_descriptors(unsigned number)
{
    const struct rlimit limit = {16384, 16384};

    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    serve_until_done();
}

static void has_few_descriptors(unsigned number)
{
    const struct rlimit limit = {256, 256};

    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    serve_until_done();
    CHECK(count_fds() < 256 / 4 * 3); /* some are left for the program */
}

static void a_third_user_gets_a_link_of(side_fn *victim)
{
    pid_t pids[3];

    if (geteuid() != 0) {
        print_message("needs root for two more users\n");
        skip();
    }
    board_clear();
    pids[0] = side_start(victim, 0);
    pids[1] = side_start(takes_all_links, 1);
    pids[2] = side_start_bare(comes_after, 2);
    side_finish(pids[2]);
    side_finish(pids[0]);
    side_finish(pids[1]);
    assert_true(atomic_load(&board->value[0]) > 0);
}

static void test_the_links_of_one_user_leave_some_for_the_next(void **state)
{
    a_third_user_gets_a_link_of(has_many_descriptors);
}

static void test_and_descriptors_for_the_program(void **state)
{
    a_third_user_gets_a_link_of(has_few_descriptors);
}

/* --- many at once --------------------------------------------------------------------------------------- */

static void await_word(unsigned word, uint32_t least)
{
    while (atomic_load(&board->word[word]) < least)
        usleep(1000);
}

/* Has no processor while one more process connects and the READYs of all others come, in this order. */
static void hears_late(unsigned number)
{
    publish_qpn(0);
    UNTIL(atomic_load(&board->word[WELCOMED]) == CROWD);
    atomic_store(&board->word[DEAF], 1);
    await_word(READY, CROWD);
    for (unsigned i = 0; i < HANDSHAKES_INCOMING_MAX; i++)
        turn(0);
    atomic_store(&board->word[HEARD], 1);
    UNTIL(atomic_load(&board->word[DONE]) == CROWD);
}

static void connects_with_many(unsigned number)
{
    uint32_t victim = await_qpn(0);
    int fd[LINKS_EACH];
    char byte;

    for (uint8_t i = 0; i < LINKS_EACH; i++) {
        fd[i] = begin_link(victim, i);
        CHECK(fd[i] >= 0);
    }
    atomic_fetch_add(&board->word[WELCOMED], 1);
    await_word(COMES, 1);
    for (uint8_t i = 0; i < LINKS_EACH; i++)
        CHECK(end_link(fd[i], i));
    atomic_fetch_add(&board->word[READY], 1);
    await_word(HEARD, 1);
    for (uint8_t i = 0; i < LINKS_EACH; i++) /* an offer or nothing, but not the end */
        CHECK(recv(fd[i], &byte, 1, MSG_DONTWAIT) > 0 || errno == EAGAIN);
    atomic_fetch_add(&board->word[DONE], 1);
}

static void is_one_more(unsigned number)
{
    uint32_t victim = await_qpn(0);

    await_word(DEAF, 1);
    (void)connect_to(victim);
    atomic_store(&board->word[COMES], 1);
    await_word(DONE, CROWD);
}

static void test_who_has_said_READY_keeps_its_link(void **state)
{
    side_fn *sides[CROWD + 2] = {hears_late, is_one_more};

    for (unsigned i = 2; i < array_size(sides); i++)
        sides[i] = connects_with_many;
    board_clear();
    run_sides(sides, array_size(sides));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_links_of_one_user_leave_some_for_the_next),
        cmocka_unit_test(test_and_descriptors_for_the_program),
        cmocka_unit_test(test_who_has_said_READY_keeps_its_link),
    };

    return run_local_tests("local_budget", tests);
}
