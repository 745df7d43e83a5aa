/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Whether polls of the program mean that it takes packets. Some programs poll and yet leave packets in the rings:
 * they spin on memory that an RDMA WRITE is to change, and poll only for their own completions. Of the helper thread
 * (helper.c). */
#ifndef ENGINE_CORE_TRUST_H
#define ENGINE_CORE_TRUST_H

#include "base/types.h"
#include "engine/core/core.h"

static inline uint32_t application_polls(void)
{
    return atomic_load_explicit(&progress_application_polls, memory_order_relaxed);
}

/* Are polls trusted now? */
bool trust_holds(ns_t now);
/* Do packets stay in the rings while application threads run but do not take them? A thread that does not get a
 * processor cannot poll, so only processor time counts (AWAY_NS). It takes two looks: between two polls, an application
 * may post, or work on messages, for a while. */
bool trust_packets_are_left(void);
/* The last look found packets in the rings, and no thread inside of the library. */
bool trust_suspects(void);
/* Polls are not trusted for a while, longer each time. */
void trust_lose(ns_t now);
/* They are again. */
void trust_again(ns_t now);

/* How steadily application threads poll while the helper thread works: steady polls end the distrust. */
struct steadiness {
    uint32_t polls;
    ns_t last_poll, since; /* no gap in polls since then */
};
bool trust_polls_are_steady(struct steadiness *steadiness, ns_t now);
void trust_after_fork_in_child(void);

#endif
