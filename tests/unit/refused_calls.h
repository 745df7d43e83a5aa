/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* System calls that fail as they do on an older kernel, for the rest of the process: in the last test. */
#ifndef TESTS_UNIT_REFUSED_CALLS_H
#define TESTS_UNIT_REFUSED_CALLS_H

#include "unit.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/prctl.h>
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

#endif
