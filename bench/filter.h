/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A seccomp filter that refuses some system calls with EPERM and allows all others: what a container profile, or a
 * program's own sandbox, is to the library. */
#ifndef SOFTHCA_BENCH_FILTER_H
#define SOFTHCA_BENCH_FILTER_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FILTER_CALLS_MAX = 16 };

static inline long filter_number(const char *name)
{
    static const struct {
        const char *name;
        long number;
    } calls[] = {
        {"process_vm_readv", SYS_process_vm_readv},
        {"process_vm_writev", SYS_process_vm_writev},
        {"userfaultfd", SYS_userfaultfd},
        {"membarrier", SYS_membarrier},
        {"pidfd_open", SYS_pidfd_open},
    };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strcmp(name, calls[i].name) == 0)
            return calls[i].number;
    fprintf(stderr, "filter: %s: not one of the system calls that this program knows\n", name);
    exit(2);
}

/* `names`: comma separated. For all threads of the process, and for what it executes. */
static inline void filter_install(const char *names)
{
    struct sock_filter code[FILTER_CALLS_MAX + 3] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    struct sock_fprog program = {.filter = code};
    long numbers[FILTER_CALLS_MAX];
    unsigned count = 0;
    char copy[256], *rest = copy, *name;

    snprintf(copy, sizeof(copy), "%s", names);
    while ((name = strsep(&rest, ",")) && count < FILTER_CALLS_MAX)
        numbers[count++] = filter_number(name);
    for (unsigned i = 0; i < count; i++)
        code[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)numbers[i],
                                                   (unsigned char)(count - i), 0);
    code[1 + count] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[2 + count] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    program.len = (unsigned short)(count + 3);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) {
        perror("filter: seccomp");
        exit(1);
    }
}

#endif
