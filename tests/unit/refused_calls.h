/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* System calls that fail as they do on an older kernel, for the rest of the process: in the last test. */
#ifndef TESTS_UNIT_REFUSED_CALLS_H
#define TESTS_UNIT_REFUSED_CALLS_H

#include "unit.h"

#include "base/newer_kernel.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

/* Skips the test where a process may not have a filter. */
static inline void refuse_calls(struct sock_filter *filter, size_t length)
{
    const struct sock_fprog program = {(unsigned short)length, filter};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        print_message("no seccomp filter: %s\n", strerror(errno));
        skip();
    }
}

/* Of other processes, as before Linux 5.3. */
static inline void refuse_pidfds(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SO_PEERPIDFD, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    refuse_calls(filter, array_size(filter));
}

#endif
