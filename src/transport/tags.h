/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The list of tagged buffers of a tag matching SRQ, and the count of unexpected messages by which software and
 * adapter agree on what a message may match (ibv_post_srq_ops(3)). A message that matches nothing goes to software,
 * which searches its own buffers. A buffer that software adds before it has received that message must not match a
 * later one, or messages with the same tag would be reordered. Such a buffer is dormant until software reports, with
 * IBV_OPS_TM_SYNC, that it knows of all unexpected messages.
 *
 * The owner of the list guards it with a lock (SRQ lock, object/receive/tm.c) and owns its memory. */
#ifndef TRANSPORT_TAGS_H
#define TRANSPORT_TAGS_H

#include <stdbool.h>
#include <stdint.h>

#include "rules/limits.h"
#include "transport/wqe.h"

enum tag_state {
    TAG_FREE,
    TAG_DORMANT,
    TAG_LISTED,
    TAG_MATCHED /* taken, belongs to the QP that matched it */
};

struct tag_entry {
    uint64_t tag, mask;
    uint32_t next, previous; /* in the list, or in the free list */
    uint16_t generation;
    uint8_t state; /* enum tag_state */
    /* Rendezvous that matched it (tagged.c): */
    struct tag_entry *next_fetch;
    uint64_t address, message_tag;
    uint32_t rkey, length, app_ctx;
    bool requested, fetched; /* its READ is posted; is complete */
    /* A struct recv_wqe */
    _Alignas(8) unsigned char receive[RECV_WQE_SIZE(LIMIT_TAG_SGE)];
};

struct tag_list {
    struct tag_entry *entries;
    uint32_t capacity, used; /* entries from here on were never used */
    uint32_t first, last, free;
    uint32_t dormant;    /* entries of the list in TAG_DORMANT */
    uint32_t unexpected; /* messages that matched nothing, modulo 2^32 */
    uint32_t handled;    /* of these, known to software (IBV_OPS_TM_SYNC) */
};

static inline struct recv_wqe *tag_receive(struct tag_entry *entry)
{
    return (struct recv_wqe *)(void *)entry->receive;
}

/* entries: all zero. */
void tag_list_init(struct tag_list *list, struct tag_entry *entries, uint32_t capacity);
/* Adds an entry at the end of the list; NULL: full. The caller fills in the receive. */
struct tag_entry *tag_list_add(struct tag_list *list, uint64_t tag, uint64_t mask);
/* Removes the entry with this handle (tag_list_handle()). -ENOENT: it was matched or removed; -EINVAL: no handle. */
int tag_list_remove(struct tag_list *list, uint32_t handle);
uint32_t tag_list_handle(const struct tag_list *list, const struct tag_entry *entry);
/* Software knows of so many unexpected messages: wakes dormant entries if these are all. */
void tag_list_sync(struct tag_list *list, uint32_t handled);
static inline bool tag_list_in_sync(const struct tag_list *list)
{
    return list->handled == list->unexpected;
}
/* Takes the first entry that is not dormant and matches the tag under its mask out of the list. NULL: none. */
struct tag_entry *tag_list_match(struct tag_list *list, uint64_t tag);
/* An entry that tag_list_match() returned is not needed any more. */
void tag_list_release(struct tag_list *list, struct tag_entry *entry);
/* A message matched nothing; or software will not receive one that was counted. */
void tag_list_count(struct tag_list *list);
void tag_list_discount(struct tag_list *list);

#endif
