/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Other processes that use SoftHCA: finding them, and opening what they publish, read-only. */
#ifndef SOFTHCA_ATTACH_H
#define SOFTHCA_ATTACH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "explain/view.h"

struct attached {
    struct view view;
    int files[SEGMENT_PARTS]; /* -1: they could not be opened, */
    char why[160];            /* and this is why */
    pid_t pid;                /* as we see it; 0: we do not */
    uid_t uid;
    uint32_t block; /* of QP numbers, by which it was found; 0: by its descriptor */
};

/* False: not a number of a process. */
bool read_pid(const char *text, pid_t *ret);
/* The process with that number, or, where it is in a pid namespace that we do not see, of that block of QP
 * numbers. False: there is none, it does not use SoftHCA, or it refuses access; then ret->why says which. */
bool attach_pid(pid_t pid, struct attached *ret);
bool attach_block(uint32_t block, struct attached *ret);
/* A connection to the process that owns the block of QP numbers, and who that is; or -errno. */
int attach_connect(uint32_t block, struct ucred *ret_peer);
/* All that exist on this host (network namespace) or in our /proc, sorted by number; those that refuse access
 * have no base. Freed with attached_free(). Returns their number. */
unsigned attach_all(struct attached **ret);
/* The same of those in our /proc that let us look: no process is asked, and so none is woken. */
unsigned attach_visible(struct attached **ret);
/* The number of a process's network namespace in /proc ("self": ours); 0: it does not let us see. */
ino_t network_of(const char *process);
/* attach_all() also finds processes of other network namespaces, by /proc. */
bool attached_is_of_own_network(const struct attached *at);
void attached_free(struct attached *list, unsigned count);
void attached_end(struct attached *at);

#endif
