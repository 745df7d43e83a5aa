/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The published segment of another process, opened through /proc, where the kernel decides as for ptrace. */
#ifndef EXPLAIN_NEIGHBOUR_H
#define EXPLAIN_NEIGHBOUR_H

#include <sys/types.h>

#include "explain/view.h"

struct neighbour {
    struct view view;
    int files[SEGMENT_PARTS]; /* -1: not open */
};

enum neighbour_segment {
    OWN_SEGMENT,     /* of its adapter, if that is ours */
    WATCHED_SEGMENT, /* of softhca watch */
};

/* 1: opened. 0: it has no such segment. -EBADF, -EPERM: what it publishes is not safe to read; -EPROTO: it is damaged;
 * -EPROTONOSUPPORT: of another version; another -errno: it cannot be looked at. */
int neighbour_open(pid_t pid, enum neighbour_segment which, struct neighbour *ret);
void neighbour_close(struct neighbour *neighbour);

#endif
