/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One user asks the owner of UDP port 4791 for all that it can give, or stands in front of it; a third user still gets
 * packets, and the owner keeps descriptors for itself. */
#include "test_udp_sides.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/unix_names.h"
#include "udp/control_message.h"
#include "udp/internal.h"

/* Users without accounts. */
enum { OWNER = 61031, GREEDY, MODEST };
enum { SILENT = 300, JOINERS = 24, GROUPS = 64, DECOYS = 2000, FEW = 256 };
enum { OPEN, ATTACKED, DONE }; /* words of the board */

static unsigned tests_begun;

static uint32_t block_of(unsigned number)
{
    return 0x1200 + 16 * tests_begun + number; /* a shard of its own */
}

static unsigned count_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned count = 0;

    CHECK(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count - 3; /* ".", "..", and the directory itself */
}

static void set_descriptors(rlim_t count)
{
    struct rlimit limit = {count, count};

    if (prlimit(0, RLIMIT_NOFILE, &limit, NULL) != 0) {
        limit.rlim_max = RLIM_INFINITY; /* the soft limit of who may not change the other one */
        CHECK(prlimit(0, RLIMIT_NOFILE, NULL, &limit) == 0 && limit.rlim_max >= count);
        limit.rlim_cur = count;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
}

/* --- the owner, and the modest user ------------------------------------------------------------------- */

static void owns_port(unsigned number)
{
    own_block(block_of(number));
    CHECK(serve(block_of(number)) == 0 && udp_state() == UDP_OPEN);
    atomic_store(&board->word[OPEN], 1);
    UNTIL(atomic_load(&board->word[DONE]));
}

static void owns_port_with_little_patience(unsigned number)
{
    port_owner_patience = NS_PER_S / 2;
    owns_port(number);
}

/* While a connection waits that it has no descriptor for. */
static void owns_port_without_descriptors(unsigned number)
{
    unsigned first = 0, looks;

    set_descriptors(FEW);
    own_block(block_of(number));
    CHECK(serve(block_of(number)) == 0 && udp_state() == UDP_OPEN);
    while (dup(STDERR_FILENO) >= 0)
        first++;
    CHECK(errno == EMFILE && first > 0);
    atomic_store(&board->word[OPEN], 1);
    UNTIL(atomic_load(&board->word[ATTACKED]));
    looks = atomic_load(&wakeups);
    usleep(500 * 1000); /* a busy loop looks a hundred thousand times */
    CHECK(atomic_load(&wakeups) - looks < 1000);
    for (int fd = FEW - (int)first / 2; fd < FEW; fd++)
        close(fd);
    UNTIL(atomic_load(&board->word[DONE]));
}

static void owns_port_with_few_descriptors(unsigned number)
{
    set_descriptors(FEW);
    owns_port(number);
    CHECK(count_fds() < FEW / 4 * 3);
}

static void is_served(unsigned number)
{
    own_block(block_of(number));
    CHECK(serve(block_of(number)) == 0 && udp_state() == UDP_FORWARDED);
    atomic_store(&board->word[DONE], 1);
}

/* --- the greedy user ---------------------------------------------------------------------------------- */

static char found[UDP_NAME_DIGITS];

static void note_name(const char *digits, void *argument)
{
    memcpy(found, digits, sizeof(found));
}

/* A connection to the owner, the only member there is; -1: refused. */
static int connect_to_owner(void)
{
    char name[sizeof(UDP_NAME_PREFIX) + UDP_NAME_DIGITS] = UDP_NAME_PREFIX;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un address;
    socklen_t length;

    CHECK(fd >= 0 && unix_names_visit(UDP_NAME_PREFIX, UDP_NAME_DIGITS, note_name, NULL) == 0);
    memcpy(name + sizeof(UDP_NAME_PREFIX) - 1, found, sizeof(found));
    length = unix_name_address(name, &address);
    CHECK(connect(fd, (struct sockaddr *)&address, length) == 0);
    return fd;
}

/* True: the owner has answered. */
static bool ask(int fd, const struct udp_message *what, const int *fds, unsigned count)
{
    struct udp_message message = *what;

    message.magic = UDP_MESSAGE_MAGIC;
    message.version = UDP_MESSAGE_VERSION;
    message.type = UDP_MESSAGE_REQUEST;
    return udp_message_send(fd, &message, fds, count) == 0 &&
           recv(fd, &message, sizeof(message), 0) == (ssize_t)sizeof(message);
}

static void stay(void)
{
    atomic_store(&board->word[ATTACKED], 1);
    while (!atomic_load(&board->word[DONE]))
        usleep(1000);
}

static void says_nothing(unsigned number)
{
    set_descriptors(4096);
    for (unsigned i = 0; i < SILENT; i++)
        connect_to_owner();
    stay();
}

static void says_nothing_once(unsigned number)
{
    int fd = connect_to_owner();
    char byte;

    CHECK(recv(fd, &byte, 1, 0) == 0); /* the end of the connection */
    atomic_store(&board->word[DONE], 1);
}

static void connects_once(unsigned number)
{
    int pair[2], fd = connect_to_owner();

    CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) == 0);
    atomic_store(&board->word[ATTACKED], 1);
    CHECK(ask(fd, &(struct udp_message){0}, pair, 1)); /* once there are descriptors again */
    atomic_store(&board->word[DONE], 1);
}

static void joins_many_groups(unsigned number)
{
    struct udp_message join = {.flags = UDP_MESSAGE_JOIN, .ifindex = 1};
    int pair[2];

    join.group[10] = join.group[11] = 0xff;
    join.group[12] = 239;
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) == 0);
    for (unsigned i = 0; i < JOINERS; i++) {
        int fd = connect_to_owner();

        if (!ask(fd, &(struct udp_message){0}, pair, 1))
            break;
        for (unsigned j = 0; j < GROUPS; j++) {
            join.group[14] = (uint8_t)i;
            join.group[15] = (uint8_t)j;
            CHECK(ask(fd, &join, NULL, 0));
        }
    }
    stay();
}

static void listens_under_decoy_names(unsigned number)
{
    set_descriptors(4096);
    for (unsigned i = 0; i < DECOYS; i++) {
        char name[sizeof(UDP_NAME_PREFIX) + UDP_NAME_DIGITS];
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        struct sockaddr_un address;
        socklen_t length;

        snprintf(name, sizeof(name), UDP_NAME_PREFIX "%016llx", i * 0x9e3779b97f4a7c15ull);
        length = unix_name_address(name, &address);
        CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, 1) == 0);
    }
    stay();
}

/* --- tests -------------------------------------------------------------------------------------------- */

/* In the test itself, with a bound, because a side may have ended. */
static void wait_for(unsigned word)
{
    for (unsigned i = 0; !atomic_load(&board->word[word]); i++) {
        usleep(1000);
        if (i > 60 * 1000)
            fail_msg("step %u does not come", word);
    }
}

static void need_users(void)
{
    if (geteuid() != 0) {
        print_message("only root can become three users\n");
        skip();
    }
}

static void a_third_user_is_served(side_fn *owner, side_fn *attack)
{
    pid_t pids[3];

    need_users();
    tests_begun++;
    board_clear();
    pids[0] = side_start_as(owner, 0, OWNER);
    wait_for(OPEN);
    pids[1] = side_start_as(attack, 1, GREEDY);
    wait_for(ATTACKED);
    pids[2] = side_start_as(is_served, 2, MODEST);
    side_finish(pids[2]);
    side_finish(pids[0]);
    side_finish(pids[1]);
}

static void test_silent_clients_keep_nobody_out(void **state)
{
    a_third_user_is_served(owns_port, says_nothing);
}

static void test_groups_leave_descriptors(void **state)
{
    a_third_user_is_served(owns_port_with_few_descriptors, joins_many_groups);
}

static void test_decoy_names_hide_nobody(void **state)
{
    a_third_user_is_served(owns_port, listens_under_decoy_names);
}

static void attack(side_fn *owner, side_fn *attacker)
{
    pid_t pids[2];

    need_users();
    tests_begun++;
    board_clear();
    pids[0] = side_start_as(owner, 0, OWNER);
    wait_for(OPEN);
    pids[1] = side_start_as(attacker, 1, GREEDY);
    side_finish(pids[1]);
    side_finish(pids[0]);
}

static void test_who_says_nothing_is_disconnected(void **state)
{
    attack(owns_port_with_little_patience, says_nothing_once);
}

static void test_without_descriptors_nobody_spins(void **state)
{
    attack(owns_port_without_descriptors, connects_once);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silent_clients_keep_nobody_out),
        cmocka_unit_test(test_who_says_nothing_is_disconnected),
        cmocka_unit_test(test_without_descriptors_nobody_spins),
        cmocka_unit_test(test_groups_leave_descriptors),
        cmocka_unit_test(test_decoy_names_hide_nobody),
    };

    if (!own_network()) {
        printf("1..0 # SKIP a network namespace of our own is not allowed\n");
        return 0;
    }
    return run_unit_tests("udp_budget", tests);
}
