/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Handles that the program has destroyed. Programs destroy some of them twice, on paths that clean up after
 * an error, and get EINVAL for it from the kernel. So the memory of a handle is not used again for the next
 * thousand destroys of its kind; nobody looks into it to find that it is destroyed. */
#ifndef OBJECT_DESTROYED_H
#define OBJECT_DESTROYED_H

#include <stdbool.h>
#include <stddef.h>

enum destroyed_kind {
    DESTROYED_AH,
    DESTROYED_CHANNEL,
    DESTROYED_CQ,
    DESTROYED_MR,
    DESTROYED_MW,
    DESTROYED_PD,
    DESTROYED_QP,
    DESTROYED_SRQ,
    DESTROYED_KINDS
};

/* Was it destroyed, and not so long ago? To be asked before anything else of a destroy. */
bool destroyed_has(enum destroyed_kind kind, const void *handle);
/* Takes memory from malloc() instead of free(), and frees what was taken a thousand destroys before. It is
 * poisoned, but for its first pointer: the context, by which inline verbs find ours. */
void destroyed_free(enum destroyed_kind kind, void *handle, size_t size);
/* The same for memory that is never freed: returns what may be used again, or NULL. */
void *destroyed_exchange(enum destroyed_kind kind, void *handle);
/* The child of a fork begins with none: what it inherited, another thread may have been at work in. */
void destroyed_after_fork_in_child(void);

#endif
