/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Format of the notification page, by which a process shows its completion channels to other processes of its user.
 * So a message wakes the thread that waits for its completion, and not the helper thread first.
 *
 * The page is a sealed memfd, which peers map writable. Its owner arms a CQ by setting a bit in `armed` or
 * `armed_solicited`. A peer that has written a message or an acknowledgement for a QP of that CQ clears the bit,
 * which entitles it to the event, sets the bit in `rung`, and writes 1 to the channel's eventfd. So each arming
 * yields one event, and a readable channel has one. The owner trusts the page no further: processes of the same user
 * could wake this process, or keep it from waking, in other ways too.
 *
 * `attention` says whether writers need to ring. A writer publishes its record and then reads `attention`; the owner
 * sets `attention` and then checks its rings. A full fence stands between the two steps on both sides (lane_ring(),
 * notify_set_attention()). */
#ifndef BASE_NOTIFY_H
#define BASE_NOTIFY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

#define NOTIFY_CHANNELS 63u
#define NOTIFY_CQS      64u /* per channel */
#define NOTIFY_QPS      16384u
#define NOTIFY_LINKS    16384u /* bits of `marks` */

enum attention {
    ATTENTION_AWAKE,  /* a thread polls, or will check the rings: writers do not ring */
    ATTENTION_RUNG,   /* a channel was rung, and its reader has not come yet: writers ring channels only */
    ATTENTION_DOZES,  /* the program's threads sleep; the helper thread wakes periodically */
    ATTENTION_ASLEEP, /* the helper thread sleeps, too */
};
#define ATTENTION_MASK 3ull
/* Added each time the owner goes to sleep, so that the compare-exchange of a slow writer does not change a later
 * sleep. */
#define ATTENTION_STEP 4ull

/* One completion channel. The owner sets the bits of `armed`; owner and peers clear them. */
struct notify_channel {
    _Atomic uint64_t armed cache_aligned; /* bit per CQ: armed for any completion */
    _Atomic uint64_t armed_solicited;     /* bit per CQ: armed for solicited completions */
    _Atomic uint64_t rung;                /* bit per CQ: a peer took the arming and writes to the eventfd */
    _Atomic uint32_t serial;              /* of the channel in this line; 0: free. Peers only compare it */
};

struct notify_page {
    /* enum attention in bits 0..1, the number of sleeps above (ATTENTION_STEP). Written by owner and peers. */
    _Atomic uint64_t attention cache_aligned;
    struct notify_channel channels[NOTIFY_CHANNELS];
    /* At which CQs receives and sends of a QP complete: notify_place(). Written by the owner. Of two QP numbers with
     * one slot, the later one has it. */
    _Atomic uint64_t qps[NOTIFY_QPS];
    /* Rings that the owner does not look at (READER_LISTED in local/layout.h): the writer of one sets the bit that
     * the ring's control line names, and then `marked`, before it reads `attention`. The owner takes them in the
     * other order. */
    _Atomic uint32_t marked cache_aligned;
    _Atomic uint64_t marks[NOTIFY_LINKS / 64] cache_aligned;
};

/* A CQ: line of its channel, and its bit there. */
struct notify_cq {
    unsigned channel, bit; /* channel NOTIFY_CHANNELS: none that peers can ring */
};

/* Bits 0..23: QPN; 24..39: CQ of the receives; 40..55: CQ of the sends; line and bit have 8 bits each. 0: unknown. */
static inline uint64_t notify_place(uint32_t qpn, struct notify_cq receives, struct notify_cq sends)
{
    return qpn | (uint64_t)receives.channel << 24 | (uint64_t)receives.bit << 32 |
           (uint64_t)sends.channel << 40 | (uint64_t)sends.bit << 48 | 1ull << 63;
}
static inline struct notify_cq notify_place_cq(uint64_t place, bool sends)
{
    unsigned at = (unsigned)(place >> (sends ? 40 : 24));

    return (struct notify_cq){at & 0xff, (at >> 8) % NOTIFY_CQS};
}

/* The lower six bits of all blocks of a process are equal (their shard, local/blocks.c), so the bits above select. */
static inline _Atomic uint64_t *notify_slot(struct notify_page *page, uint32_t qpn)
{
    return &page->qps[((qpn & 0xff) | (qpn >> 14 & 0x3f) << 8) % NOTIFY_QPS];
}

/* Takes the arming of a CQ: true if a completion of this kind ends it, and then the caller makes the event. */
static inline bool notify_disarm(struct notify_channel *channel, unsigned bit, bool solicited)
{
    const uint64_t mask = 1ull << bit;

    if (atomic_load_explicit(&channel->armed, memory_order_relaxed) & mask &&
        atomic_fetch_and_explicit(&channel->armed, ~mask, memory_order_acq_rel) & mask)
        return true;
    return solicited && atomic_load_explicit(&channel->armed_solicited, memory_order_relaxed) & mask &&
           atomic_fetch_and_explicit(&channel->armed_solicited, ~mask, memory_order_acq_rel) & mask;
}

/* The owner takes its own arming back; true if the CQ was still armed. */
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
