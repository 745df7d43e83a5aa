/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What verbs_mesh does, over the kernel's pipes: many processes, each sends 8 bytes to all others in turn, and sleeps
 * after each message until one of theirs has come. Each reads a pipe of its own, which has room for all that can be
 * on its way; nothing is kept for a peer. So it is what going to sleep and waking cost with so many processes, and
 * how that grows with them. Prints messages/s and processor time of a message.
 *
 * usage: bench_mesh PROCESSES ROUNDS */
#include "crowd.h"

#include <sys/mman.h>

enum { PROCESSES_MAX = 500, WORD = 8 }; /* two descriptors each, of 1,024 */

/* Of all processes, mapped before they are forked. */
struct meeting {
    pthread_barrier_t barrier;
    uint64_t began, ended;
    uint64_t cpu_ns[PROCESSES_MAX], sleeps[PROCESSES_MAX];
};

static struct meeting *meeting;
static uint32_t processes, rounds;
static int pipes[PROCESSES_MAX][2];

static void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static void meet(void)
{
    (void)pthread_barrier_wait(&meeting->barrier);
}

static void talk(uint32_t me)
{
    char word[WORD] = {0};

    for (uint32_t step = 1; step < processes; step++) {
        if (write(pipes[(me + step) % processes][1], word, WORD) != WORD)
            give_up("write");
        if (read(pipes[me][0], word, WORD) != WORD)
            give_up("read");
    }
}

static void run(uint32_t me)
{
    uint64_t cpu, sleeps;

    meet();
    talk(me);
    meet();
    cpu = processor_ns();
    sleeps = switches_so_far();
    if (me == 0)
        meeting->began = now_ns();
    for (uint32_t round = 0; round < rounds; round++)
        talk(me);
    meeting->cpu_ns[me] = processor_ns() - cpu;
    meeting->sleeps[me] = switches_so_far() - sleeps;
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
    processes = argc > 2 ? (uint32_t)atoi(argv[1]) : 0;
    rounds = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    if (processes < 2 || processes > PROCESSES_MAX || rounds < 1) {
        fprintf(stderr, "usage: %s PROCESSES ROUNDS\n", argv[0]);
        return 2;
    }
    meeting = mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED)
        give_up("mmap");
    for (uint32_t i = 0; i < processes; i++) {
        if (pipe(pipes[i]))
            give_up("pipe");
    }
    if (!crowd_run(&meeting->barrier, processes, run))
        return 1;
    report();
    return 0;
}
