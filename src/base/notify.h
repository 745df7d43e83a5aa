/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a process shows of its completion channels to the other processes of its user, so that a message wakes
 * the thread that waits for it, and not the helper thread first.
 *
 * The page is a sealed memfd that peers map writable. Its owner arms a CQ by setting its bit; a peer that has
 * written a message for a QP of that CQ clears the bit, which makes the event its own, sets the bit in
 * `rung`, and writes 1 to the channel's eventfd. So each arming makes one event, whoever makes it, and a
 * readable channel has one. What the page says is believed in nothing but that: a process of the same user
 * could wake us, or keep us asleep, in other ways too.
 *
 * `attention` says whether writers need to ring at all. A writer publishes its record and then looks at it;
 * the owner sets it and then looks for records. Between the two stands a full fence on both sides.
 */
#ifndef BASE_NOTIFY_H
#define BASE_NOTIFY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

#define NOTIFY_CHANNELS 63u
#define NOTIFY_CQS      64u /* of a channel */
#define NOTIFY_QPS      16384u

enum attention {
    ATTENTION_AWAKE,  /* somebody polls, or is going to look: nobody rings */
    ATTENTION_RUNG,   /* a channel was rung, and its reader has not come yet */
    ATTENTION_DOZES,  /* the program's threads sleep; the helper thread looks in now and then */
    ATTENTION_ASLEEP, /* so does the helper thread */
};
#define ATTENTION_MASK 3ull
#define ATTENTION_STEP                                                                                       \
    4ull /* each time that the owner goes to sleep, so that a writer changes no later sleep */

struct notify_channel {
    _Atomic uint64_t armed cache_aligned; /* a bit per CQ: for any completion */
    _Atomic uint64_t armed_solicited;     /* for solicited ones */
    _Atomic uint64_t rung;                /* by a peer: the event is the CQ's, the token on its way */
    _Atomic uint32_t serial;              /* of the channel whose line this is; 0: nobody's */
};

struct notify_page {
    _Atomic uint64_t attention cache_aligned; /* steps, and enum attention in the lowest bits */
    struct notify_channel channels[NOTIFY_CHANNELS];
    /* Where the messages of a QP complete: notify_place(). Of two numbers in one slot the later one has it.
     */
    _Atomic uint64_t qps[NOTIFY_QPS];
};

/* QPN, and above it the channel and the CQ's bit there. 0: no channel, or it is not known which. */
static inline uint64_t notify_place(uint32_t qpn, unsigned channel, unsigned bit)
{
    return qpn | (uint64_t)channel << 24 | (uint64_t)bit << 32 | 1ull << 63;
}
static inline unsigned notify_place_channel(uint64_t place)
{
    return (unsigned)(place >> 24) & 0xff;
}
static inline unsigned notify_place_bit(uint64_t place)
{
    return (unsigned)(place >> 32) % NOTIFY_CQS;
}

/* The blocks of one process are alike in their lower bits (local/blocks.c), so those above count. */
static inline _Atomic uint64_t *notify_slot(struct notify_page *page, uint32_t qpn)
{
    return &page->qps[((qpn & 0xff) | (qpn >> 14 & 0x3f) << 8) % NOTIFY_QPS];
}

/* Takes the arming of a CQ away: true if there was one that a completion of this kind ends. Whoever takes it
 * makes the event. */
static inline bool notify_disarm(struct notify_channel *channel, unsigned bit, bool solicited)
{
    const uint64_t mask = 1ull << bit;

    if (atomic_load_explicit(&channel->armed, memory_order_relaxed) & mask &&
        atomic_fetch_and_explicit(&channel->armed, ~mask, memory_order_acq_rel) & mask)
        return true;
    return solicited && atomic_load_explicit(&channel->armed_solicited, memory_order_relaxed) & mask &&
           atomic_fetch_and_explicit(&channel->armed_solicited, ~mask, memory_order_acq_rel) & mask;
}

/* The owner's: true if a CQ that it had armed still was. */
static inline bool notify_take_back(struct notify_channel *channel, unsigned bit)
{
    const uint64_t mask = 1ull << bit;
    uint64_t any = atomic_fetch_and_explicit(&channel->armed, ~mask, memory_order_acq_rel);

    return (any | atomic_fetch_and_explicit(&channel->armed_solicited, ~mask, memory_order_acq_rel)) & mask;
}

static inline bool notify_is_armed(const struct notify_channel *channel, unsigned bit)
{
    return (atomic_load_explicit(&channel->armed, memory_order_relaxed) |
            atomic_load_explicit(&channel->armed_solicited, memory_order_relaxed)) >>
               bit &
           1;
}

static inline void notify_arm(struct notify_channel *channel, unsigned bit, bool solicited_only)
{
    const uint64_t mask = 1ull << bit;

    if (solicited_only) {
        atomic_fetch_or_explicit(&channel->armed_solicited, mask, memory_order_release);
    } else {
        atomic_fetch_and_explicit(&channel->armed_solicited, ~mask, memory_order_relaxed);
        atomic_fetch_or_explicit(&channel->armed, mask, memory_order_release);
    }
}

#endif
