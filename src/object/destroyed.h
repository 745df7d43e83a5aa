/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Handles that the program has destroyed. Some programs destroy a handle twice when they clean up after an error,
 * and get EINVAL from kernel drivers. To return EINVAL, too, a destroyed handle's memory is quarantined for the
 * next thousand destroys of its kind. Whether a handle is destroyed is known from its address alone: its memory
 * is not read. */
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

/* Is the handle in quarantine? The first thing that a destroy verb checks. */
bool destroyed_has(enum destroyed_kind kind, const void *handle);
/* Quarantines memory of malloc(), and frees the memory that was quarantined a thousand destroys before. The
 * memory is poisoned except for its first pointer, the context, which inline verbs read. */
void destroyed_free(enum destroyed_kind kind, void *handle, size_t size);
/* Quarantines memory that is never freed; returns memory that may be reused, or NULL. */
void *destroyed_exchange(enum destroyed_kind kind, void *handle);
/* In the child of a fork: starts empty, because another thread may have been changing the quarantine. */
void destroyed_after_fork_in_child(void);

#endif
