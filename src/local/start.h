/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* State of this process that all files of local read. Set by local_start(), constant until a fork. */
#ifndef LOCAL_START_H
#define LOCAL_START_H

#include <stdbool.h>

#include "local/link.h"

/* SOFTHCA_LOCAL: which paths large payload may take. */
enum mechanism { MECHANISM_AUTO, MECHANISM_RING, MECHANISM_CMA, MECHANISM_COPY, MECHANISM_MAPPED };

struct local_state {
    const struct local_ops *ops;
    enum mechanism mechanism;
    uint8_t instance[INSTANCE_BYTES];
    /* A handshake message carries its address and its bytes. A peer that reads the same bytes at that address can
     * read our memory, and has the right process. */
    uint8_t nonce[INSTANCE_BYTES];
};
extern struct local_state local;

/* Wakes the helper thread for work of other threads: blocks and names to resolve, broken links, the doorbell of the
 * link to ourselves. */
void local_kick(void);
/* Rings the doorbell of the link to ourselves. */
void local_ring_self(void);
/* The following three set results of the running local_dispatch(). Helper thread.
 * Lanes became hot. */
void local_became_hot(void);
/* A doorbell was rung. */
void local_was_rung(void);
/* A peer rang a completion channel: the engine checks later that its reader came. */
void local_check_later(void);

#endif
