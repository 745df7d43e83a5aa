/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What verbs_mesh does, over the kernel's own datagram sockets (AF_UNIX): many processes, each sends 8 bytes to all others in
 * turn, and sleeps after each message until one of theirs has come. Each has one socket; nothing is kept for a peer. So it is
 * what going to sleep and waking cost with so many processes, and how that grows with them. Prints messages/s and processor
 * time of a message.
 *
 * usage: bench_mesh PROCESSES ROUNDS */
#include "common.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { PROCESSES_MAX = 1024, WORD = 8 };

/* Of all processes, mapped before they are forked. */
struct meeting {
    pthread_barrier_t barrier;
    uint64_t began, ended;
    uint64_t cpu_ns[PROCESSES_MAX], sleeps[PROCESSES_MAX];
};

static struct meeting *meeting;
static uint32_t processes, rounds;

static void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static void meet(void)
{
    (void)pthread_barrier_wait(&meeting->barrier);
}

static uint64_t processor_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t sleeps_so_far(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_nvcsw;
}

static socklen_t address_of(uint32_t process, struct sockaddr_un *ret_address)
{
    int length;

    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    length = snprintf(ret_address->sun_path + 1, sizeof(ret_address->sun_path) - 1, "bench_mesh-%d-%u",
                      (int)getppid(), process);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static void talk(int fd, uint32_t me, const struct sockaddr_un *to, const socklen_t *length)
{
    char word[WORD] = {0};

    for (uint32_t step = 1; step < processes; step++) {
        uint32_t peer = (me + step) % processes;

        if (sendto(fd, word, WORD, 0, (const struct sockaddr *)&to[peer], length[peer]) != WORD)
            give_up("sendto");
        if (recv(fd, word, WORD, 0) != WORD)
            give_up("recv");
    }
}

static void run(uint32_t me)
{
    static struct sockaddr_un to[PROCESSES_MAX];
    static socklen_t length[PROCESSES_MAX];
    uint64_t cpu, sleeps;
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

    for (uint32_t i = 0; i < processes; i++)
        length[i] = address_of(i, &to[i]);
    if (fd < 0 || bind(fd, (struct sockaddr *)&to[me], length[me]))
        give_up("bind");
    meet();
    talk(fd, me, to, length);
    meet();
    cpu = processor_ns();
    sleeps = sleeps_so_far();
    if (me == 0)
        meeting->began = now_ns();
    for (uint32_t round = 0; round < rounds; round++)
        talk(fd, me, to, length);
    meeting->cpu_ns[me] = processor_ns() - cpu;
    meeting->sleeps[me] = sleeps_so_far() - sleeps;
    meet();
    if (me == 0)
        meeting->ended = now_ns();
    meet();
    exit(0);
}

static void report(void)
{
    double messages = (double)rounds * processes * (processes - 1), cpu = 0, sleeps = 0;

    for (uint32_t i = 0; i < processes; i++) {
        cpu += (double)meeting->cpu_ns[i];
        sleeps += (double)meeting->sleeps[i];
    }
    printf("processes=%u messages_per_s=%.0f cpu_us_per_message=%.2f sleeps_per_message=%.2f\n", processes,
           messages / ((double)(meeting->ended - meeting->began) / 1e9), cpu / 1000 / messages,
           sleeps / messages);
}

int main(int argc, char **argv)
{
    pthread_barrierattr_t shared;
    pid_t parent = getpid();
    int status, failed = 0;

    processes = argc > 2 ? (uint32_t)atoi(argv[1]) : 0;
    rounds = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    if (processes < 2 || processes > PROCESSES_MAX || rounds < 1) {
        fprintf(stderr, "usage: %s PROCESSES ROUNDS\n", argv[0]);
        return 2;
    }
    meeting = mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED)
        give_up("mmap");
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&meeting->barrier, &shared, processes);
    for (uint32_t i = 0; i < processes; i++) {
        pid_t child = fork();

        if (child < 0)
            give_up("fork");
        if (child == 0) {
            if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
                _exit(1);
            run(i);
        }
    }
    /* The others of one that has failed would wait for it; they end with this process. */
    for (uint32_t i = 0; i < processes && !failed; i++)
        failed = waitpid(-1, &status, 0) < 0 || status != 0;
    if (failed)
        return 1;
    report();
    return 0;
}
