/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Other processes that use SoftHCA: finding them, and mapping what they publish, read-only. */
#ifndef SOFTHCA_LOOK_H
#define SOFTHCA_LOOK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "explain/view.h"

struct looked_at {
    struct view view;
    void *base; /* NULL: it could not be mapped, */
    size_t size;
    int fd;
    char why[160]; /* and this is why */
    pid_t pid;     /* as we see it; 0: we do not */
    uid_t uid;
    uint32_t block; /* of QP numbers, by which it was found; 0: by its descriptor */
};

/* The process with that number, or, where it is in a pid namespace that we do not see, of that block of QP
 * numbers. False: there is none, it does not use SoftHCA, or it does not let us look; then ret->why says
 * which. */
bool look_at_pid(pid_t pid, struct looked_at *ret);
bool look_at_block(uint32_t block, struct looked_at *ret);
/* All that there are on this host (network namespace) or in our /proc, sorted by number; those that do not
 * let us look have no base. To be freed with look_free(). Returns how many. */
unsigned look_around(struct looked_at **ret);
void look_free(struct looked_at *list, unsigned count);
void look_end(struct looked_at *at);

#endif
