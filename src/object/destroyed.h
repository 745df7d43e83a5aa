/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Handles that the program has destroyed. Programs destroy some of them twice, on paths that clean up after
 * an error, and get EINVAL for it from the kernel. So the memory of a handle is not used again for the next
 * thousand destroys of its kind; nobody looks into it to find that it is spent. */
#ifndef OBJECT_DESTROYED_H
#define OBJECT_DESTROYED_H

#include <stdbool.h>
#include <stddef.h>

enum spent_kind {
    SPENT_AH,
    SPENT_CHANNEL,
    SPENT_CQ,
    SPENT_MR,
    SPENT_MW,
    SPENT_PD,
    SPENT_QP,
    SPENT_SRQ,
    SPENT_KINDS
};

/* Was it destroyed, and not so long ago? To be asked before anything else of a destroy. */
bool spent_has(enum spent_kind kind, const void *handle);
/* Takes memory from malloc() instead of free(), and frees what was taken a thousand destroys before. It is
 * poisoned, but for its first pointer: the context, by which inline verbs find ours. */
void spent_free(enum spent_kind kind, void *handle, size_t size);
/* The same for memory that is never freed: returns what may be used again, or NULL. */
void *spent_exchange(enum spent_kind kind, void *handle);
/* The child of a fork begins with none: what it inherited, another thread may have been at work in. */
void spent_after_fork_in_child(void);

#endif
