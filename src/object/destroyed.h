/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Handles that the program has destroyed. Some programs destroy a handle twice when they clean up after an error, and
 * get EINVAL from kernel drivers; others use it again. To return EINVAL, too, and to say who destroyed it, a
 * destroyed handle's memory is quarantined for the next thousand destroys of its kind. Whether a handle is destroyed
 * is known from its address alone.
 *
 * Verbs that are called often must not look that up: objects that are destroyed get the context, or the PD, that is
 * below, which looks inherited from before a fork. The test that each verb begins with then ends in
 * destroyed_refuse(). */
#ifndef OBJECT_DESTROYED_H
#define OBJECT_DESTROYED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum destroyed_kind {
    DESTROYED_AH,
    DESTROYED_CHANNEL,
    DESTROYED_CONTEXT,
    DESTROYED_COUNTERS,
    DESTROYED_CQ,
    DESTROYED_DM,
    DESTROYED_FLOW,
    DESTROYED_IND_TABLE,
    DESTROYED_MR,
    DESTROYED_MW,
    DESTROYED_PD,
    DESTROYED_QP,
    DESTROYED_SRQ,
    DESTROYED_TD,
    DESTROYED_WQ,
    DESTROYED_XRCD,
    DESTROYED_KINDS
};

#define DESTROYED_GENERATION UINT32_MAX
extern struct context destroyed_context; /* object/device/context.c */
extern struct pd destroyed_pd;           /* object/pd/pd.c */

/* Is the handle in quarantine? The first thing that a destroy verb checks; true is told. */
bool destroyed_has(enum destroyed_kind kind, const void *handle, const char *verb);
/* A verb got a handle whose context cannot be used. -EINVAL, which is told: it was destroyed; -EIO: it is inherited. */
int destroyed_refuse(enum destroyed_kind kind, const void *handle, const char *verb);
/* Quarantines memory of malloc(), and frees the memory that was quarantined a thousand destroys before. number: by
 * which programs know the object. destroyed_free() poisons the memory except for its first pointer, the context,
 * which inline verbs read; destroyed_keep() leaves it as it is. */
void destroyed_free(enum destroyed_kind kind, void *handle, size_t size, uint32_t number);
void destroyed_keep(enum destroyed_kind kind, void *handle, uint32_t number);
/* Quarantines memory that is never freed; returns memory that may be reused, or NULL. */
void *destroyed_exchange(enum destroyed_kind kind, void *handle, uint32_t number);
/* In the child of a fork: starts empty, because another thread may have been changing the quarantine. */
void destroyed_after_fork_in_child(void);

#endif
