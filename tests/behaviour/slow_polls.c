/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A program that polls all the time, on a processor so slow that one poll, in which there is much to do,
 * takes longer than the helper thread takes to find that nobody polls. What is slow are system calls that
 * send: they come by here. */
#include "work.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGES = 64, LENGTH = 32768 };

static _Atomic bool slow;
static _Atomic unsigned int by_program, by_helper;

static bool is_helper(void)
{
    char name[16] = "";

    return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 && !strcmp(name, "softhca");
}

static bool sends(long number)
{
    return number == SYS_sendto || number == SYS_sendmsg || number == SYS_sendmmsg;
}

static void come_by(long number)
{
    const struct timespec a_while = {.tv_nsec = 5000000};

    if (!atomic_load(&slow) || !sends(number))
        return;
    if (is_helper()) {
        atomic_fetch_add(&by_helper, 1);
        return;
    }
    atomic_fetch_add(&by_program, 1);
    nanosleep(&a_while, NULL);
}

/* The library calls this instead of that of the C library. */
__attribute__((visibility("default"))) long syscall(long number, ...)
{
    static long (*_Atomic next)(long, ...);
    long (*call)(long, ...) = atomic_load(&next);
    long argument[6];
    va_list list;

    if (!call) {
        call = (long (*)(long, ...))(uintptr_t)dlsym(RTLD_NEXT, "syscall");
        atomic_store(&next, call);
    }
    va_start(list, number);
    for (unsigned int i = 0; i < COUNT(argument); i++)
        argument[i] = va_arg(list, long);
    va_end(list);
    come_by(number);
    return call(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}

/* The two would wait for each other's locks, and where they share a processor for that, too. */
static void who_polls_slowly_is_left_to_it(void **state)
{
    struct ibv_wc wc[MESSAGES];
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < MESSAGES; i++)
        end_send(&p.a, a_write(&p.a, i, 0, LENGTH, &p.b, 0));
    atomic_store(&slow, true);
    end_poll(&p.a, SQ, wc, MESSAGES);
    atomic_store(&slow, false);
    for (unsigned int i = 0; i < MESSAGES; i++)
        check_success(&wc[i], i, IBV_WC_RDMA_WRITE);
    if (is_emulated())
        skip_because("nobody knows when a program gets a processor here");
    /* Not "never": a machine that gives the program no processor for a while has its work done for it. */
    if (by_helper > by_program / 2)
        fail_msg("%u times the program has sent, and %u times the helper thread", by_program, by_helper);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(who_polls_slowly_is_left_to_it),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
