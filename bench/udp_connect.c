/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a connection over the network path takes on one host without any library: one process asks another one for
 * COUNT connections at once, with the messages, threads and wake-ups that librdmacm's have (docs/cm.md), and nothing
 * else.
 *
 *   client: sends the REQ | server's helper thread: receives it, wakes the thread that reads events, which wakes the one
 *   that accepts: sends the REP, which comes to the same port | server's helper thread: receives it, puts it into a ring
 *   of the client | client's helper thread: wakes the thread that reads events: sends the RTU | server's helper thread:
 *   receives it, and wakes the thread that reads events */
#include "common.h"

#include <linux/futex.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum {
    REQ,
    REP,
    RTU,
    MESSAGE = 324,
    CONNECTIONS_MAX = 10000,
    BATCH = 32
}; /* a MAD with its headers and ICRC */

struct message {
    int kind;
    char rest[MESSAGE - sizeof(int)];
};

/* Written by the server's helper thread, read by the client's. */
static struct ring {
    _Atomic uint32_t written, sleeps;
    _Atomic uint32_t established; /* RTUs that have come */
} * ring;

/* How many events wait; whoever adds the first one makes the descriptor readable. */
struct events {
    int fd;
    _Atomic uint32_t waiting;
};

static struct events events;
static int udp, count;
static struct sockaddr_in port = {.sin_family = AF_INET};
static pthread_mutex_t work_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_cond = PTHREAD_COND_INITIALIZER;
static int work;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void send_message(int kind)
{
    struct message message = {.kind = kind};

    if (sendto(udp, &message, sizeof(message), 0, (struct sockaddr *)&port, sizeof(port)) != sizeof(message))
        die("sendto");
}

static void raise_event(void)
{
    const uint64_t one = 1;

    if (atomic_fetch_add(&events.waiting, 1) == 0 && write(events.fd, &one, sizeof(one)) < 0)
        die("write");
}

/* How many events there were. */
static uint32_t read_events(void)
{
    uint64_t tokens;

    if (read(events.fd, &tokens, sizeof(tokens)) < 0)
        die("read");
    return atomic_exchange(&events.waiting, 0);
}

static void start(void *(*run)(void *))
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, run, NULL))
        die("pthread_create");
}

/* --- server --------------------------------------------------------------------------------------------- */

static void *accept_all(void *unused)
{
    for (int done = 0; done < count; done++) {
        pthread_mutex_lock(&work_mutex);
        while (!work)
            pthread_cond_wait(&work_cond, &work_mutex);
        work--;
        pthread_mutex_unlock(&work_mutex);
        send_message(REP);
    }
    return NULL;
}

static void *read_requests(void *unused)
{
    for (int seen = 0; seen < 2 * count;) {
        for (uint32_t more = read_events(); more; more--) {
            if (seen++ >= count)
                continue; /* that a connection is established needs no answer */
            pthread_mutex_lock(&work_mutex);
            work++;
            pthread_cond_signal(&work_cond);
            pthread_mutex_unlock(&work_mutex);
        }
    }
    return NULL;
}

static void forward(void)
{
    atomic_fetch_add(&ring->written, 1);
    if (atomic_exchange(&ring->sleeps, 0))
        syscall(SYS_futex, &ring->sleeps, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void serve(void)
{
    static struct message messages[BATCH];
    struct mmsghdr headers[BATCH];
    struct iovec vectors[BATCH];

    for (int i = 0; i < BATCH; i++) {
        vectors[i] = (struct iovec){&messages[i], sizeof(messages[i])};
        headers[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &vectors[i], .msg_iovlen = 1}};
    }
    start(accept_all);
    start(read_requests);
    for (int left = 3 * count; left;) {
        int got = recvmmsg(udp, headers, BATCH, MSG_WAITFORONE, NULL);

        if (got < 0)
            die("recvmmsg");
        for (int i = 0; i < got; i++) {
            if (messages[i].kind == REP)
                forward();
            else
                raise_event();
            if (messages[i].kind == RTU)
                atomic_fetch_add(&ring->established, 1);
        }
        left -= got;
    }
}

/* --- client --------------------------------------------------------------------------------------------- */

static void *read_ring(void *unused)
{
    for (uint32_t taken = 0; taken < (uint32_t)count;) {
        if (atomic_load(&ring->written) == taken) {
            atomic_store(&ring->sleeps, 1);
            if (atomic_load(&ring->written) == taken)
                syscall(SYS_futex, &ring->sleeps, FUTEX_WAIT, 1, NULL, NULL, 0);
            continue;
        }
        taken++;
        raise_event();
    }
    return NULL;
}

static void *read_replies(void *unused)
{
    for (int seen = 0; seen < count;) {
        for (uint32_t more = read_events(); more; more--, seen++)
            send_message(RTU);
    }
    return NULL;
}

static void run_client(void)
{
    uint64_t began;

    start(read_ring);
    start(read_replies);
    began = now_ns();
    for (int i = 0; i < count; i++)
        send_message(REQ);
    while (atomic_load(&ring->established) < (uint32_t)count)
        sched_yield(); /* as cmtime does */
    printf("connect_us %.2f\n", (double)(now_ns() - began) / 1000.0 / count);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    socklen_t length = sizeof(port);
    int large = 16 << 20, status;
    pid_t child;

    count = argc == 4 ? atoi(argv[3]) : 0;
    if (count < 1 || count > CONNECTIONS_MAX) {
        fprintf(stderr, "usage: %s CPU CPU CONNECTIONS\n", argv[0]);
        return 2;
    }
    port.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ring = mmap(NULL, sizeof(*ring), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (ring == MAP_FAILED || udp < 0 || bind(udp, (struct sockaddr *)&port, length) ||
        getsockname(udp, (struct sockaddr *)&port, &length))
        die("socket");
    /* All requests may come before the first one is read. */
    if (setsockopt(udp, SOL_SOCKET, SO_RCVBUFFORCE, &large, sizeof(large)) &&
        setsockopt(udp, SOL_SOCKET, SO_RCVBUF, &large, sizeof(large)))
        die("setsockopt");
    child = fork();
    if (child < 0)
        die("fork");
    events.fd = eventfd(0, EFD_CLOEXEC);
    if (events.fd < 0)
        die("eventfd");
    pin(atoi(argv[child ? 1 : 2]));
    if (child == 0) {
        serve();
        _exit(0);
    }
    run_client();
    return waitpid(child, &status, 0) == child && !status ? 0 : 1;
}
