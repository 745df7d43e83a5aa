/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "test_udp_sides.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#include "base/event.h"
#include "base/rundown.h"
#include "wire/ipudp.h"
#include "wire/opcode.h"

#include "side_time.h"

struct board *board;
struct inbox *inbox;
void (*on_arrival)(const struct packet *packet);

_Atomic unsigned wakeups;

static _Atomic bool ours[65536];
static int proofs[65536];

void board_clear(void)
{
    if (!board)
        board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    memset(board, 0, sizeof(*board));
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");

    if (file) {
        fputs(text, file);
        fclose(file);
    }
}

bool own_network(void)
{
    struct ifreq lo = {.ifr_name = "lo"};
    /* In a user namespace 65534 is nobody whom we know (base/user.h). */
    const uid_t user = geteuid(), seen_as = user == 65534 ? 61000 : user;
    const gid_t group = getegid();
    bool up;
    char map[64];
    int fd;

    if (unshare(CLONE_NEWNET) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
            return false;
        write_file("/proc/self/setgroups", "deny");
        snprintf(map, sizeof(map), "%u %u 1", (unsigned)seen_as, (unsigned)user);
        write_file("/proc/self/uid_map", map);
        snprintf(map, sizeof(map), "%u %u 1", (unsigned)group, (unsigned)group);
        write_file("/proc/self/gid_map", map);
    }
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    up = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &lo) == 0;
    lo.ifr_flags |= IFF_UP;
    up = up && ioctl(fd, SIOCSIFFLAGS, &lo) == 0;
    close(fd);
    return up;
}

/* --- struct udp_ops -------------------------------------------------------------------------------- */

static void on_packet(struct packet *packet, const struct udp_arrival *arrival)
{
    unsigned number = atomic_load(&inbox->count);

    CHECK(packet->payload_length <= PAYLOAD_MAX);
    if (on_arrival)
        on_arrival(packet);
    if (number < KEPT) {
        struct arrived *kept = &inbox->kept[number];

        kept->packet = *packet;
        kept->arrival = *arrival;
        kept->packet.payload = kept->bytes;
        if (packet->payload_length)
            memcpy(kept->bytes, packet->payload, packet->payload_length);
    }
    atomic_store(&inbox->count, number + 1);
}

static void on_congestion(const struct packet *packet)
{
    atomic_store(&inbox->congested_qpn, packet->dest_qpn);
}

static void on_batch_end(void)
{
    atomic_fetch_add(&inbox->batches, 1);
}

static void on_writable(struct udp_lane *lane)
{
    atomic_fetch_add(&inbox->writable, 1);
}

static bool is_ours(uint32_t qpn)
{
    return qpn == 1 || qpn == 0xffffff || atomic_load(&ours[qpn / UDP_BLOCK_QPNS]);
}

static bool is_proof(int fd, uint32_t block, int connection)
{
    struct sockaddr_un name = {0};
    socklen_t length = sizeof(name);
    char expected[32];

    snprintf(expected, sizeof(expected), "proof/%04x", block);
    return getsockname(fd, (struct sockaddr *)&name, &length) == 0 && !name.sun_path[0] &&
           strcmp(name.sun_path + 1, expected) == 0;
}

static const struct udp_ops ops = {on_packet, on_congestion, on_batch_end, on_writable, is_ours, is_proof};

/* --- sides ----------------------------------------------------------------------------------------- */

static void *help(void *argument)
{
    struct pollfd event = {.fd = event_epoll_fd(), .events = POLLIN};

    for (;;) {
        if (poll(&event, 1, -1) > 0)
            event_dispatch();
        atomic_fetch_add(&wakeups, 1);
        rundown_enter();
        udp_poll();
        rundown_exit();
        udp_prepare_sleep();
    }
    return argument;
}

static void start_room(void)
{
    const struct udp_options options = {.multicast_loops = true};
    pthread_t helper;

    inbox = mmap(NULL, sizeof(*inbox), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(inbox != MAP_FAILED);
    CHECK(event_start() == 0);
    udp_start(&ops, &options);
    CHECK(pthread_create(&helper, NULL, help, NULL) == 0);
}

pid_t side_start_as(side_fn *fn, unsigned number, uid_t user)
{
    pid_t parent = getpid(), pid;

    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    signal(SIGALRM, SIG_DFL);
    alarm(side_seconds());
    if (user != geteuid())
        CHECK(setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* setuid() clears it */
    start_room();
    fn(number);
    _exit(0);
}

pid_t side_start(side_fn *fn, unsigned number)
{
    return side_start_as(fn, number, geteuid());
}

void side_finish(pid_t pid)
{
    int status = 0;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("side %d ended with status %#x", (int)pid, (unsigned)status);
}

void side_kill(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}

void own_block(uint32_t block)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "proof/%04x", block);

    proofs[block] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(proofs[block], (struct sockaddr *)&name,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)length) == 0);
    atomic_store(&ours[block], true);
}

int serve(uint32_t block)
{
    return udp_serve(block, proofs[block]);
}

int serve_within(uint32_t block, ns_t timeout)
{
    return udp_serve_within(block, proofs[block], timeout);
}

/* Sleeps if nothing has arrived: with yielding only, many idle sides would take the processors of a busy one. */
void take_turn(void)
{
    const struct timespec pause = {.tv_nsec = 100000};
    unsigned taken;

    rundown_enter();
    taken = udp_poll();
    rundown_exit();
    if (!taken)
        nanosleep(&pause, NULL);
}

void reach(unsigned word, uint32_t value)
{
    atomic_fetch_add(&board->word[word], 1);
    UNTIL(atomic_load(&board->word[word]) >= value);
}

/* --- packets --------------------------------------------------------------------------------------- */

static void gid_of(const char *text, uint8_t gid[16])
{
    memset(gid, 0, 16);
    gid[10] = gid[11] = 0xff;
    if (inet_pton(AF_INET, text, gid + 12) != 1)
        CHECK(inet_pton(AF_INET6, text, gid) == 1);
}

struct udp_path path_between(const char *from, const char *to)
{
    struct udp_path path = {.hop_limit = 64};

    gid_of(from, path.source);
    gid_of(to, path.destination);
    return path;
}

void fill_pattern(uint8_t *bytes, uint32_t length, unsigned seed)
{
    for (uint32_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)((i + seed) * 2654435761u >> 13);
}

bool has_pattern(const struct packet *packet, unsigned seed)
{
    uint8_t expected[PAYLOAD_MAX];

    fill_pattern(expected, packet->payload_length, seed);
    return !packet->payload_length || !memcmp(packet->payload, expected, packet->payload_length);
}

bool is_pattern(const struct arrived *arrived, unsigned seed)
{
    return has_pattern(&arrived->packet, seed);
}

void send_pattern(const struct udp_path *path, uint32_t dest_qpn, uint32_t psn, uint32_t length,
                  unsigned seed)
{
    const struct packet packet = {
        .opcode = SERVICE_RC | OP_SEND_ONLY,
        .pkey = 0xffff,
        .dest_qpn = dest_qpn,
        .psn = psn_make(psn),
        .payload_length = length,
    };
    uint8_t bytes[PAYLOAD_MAX];
    const struct iovec gather = {bytes, length};
    int error;

    fill_pattern(bytes, length, seed);
    do {
        error = udp_send(udp_lane(dest_qpn), path, &packet, &gather, length != 0);
        if (error == -EAGAIN)
            take_turn();
    } while (error == -EAGAIN);
    CHECK(error == 0);
}
