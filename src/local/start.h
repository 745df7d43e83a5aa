/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What all files of the room know of this process. Set by local_start(), constant until a fork. */
#ifndef LOCAL_START_H
#define LOCAL_START_H

#include <stdbool.h>

#include "local/link.h"

/* SOFTHCA_LOCAL: how payload may travel. */
enum mechanism { MECHANISM_AUTO, MECHANISM_RING, MECHANISM_CMA, MECHANISM_MAPPED };

struct local_state {
    const struct local_ops *ops;
    enum mechanism mechanism;
    uint8_t instance[INSTANCE_BYTES];
    /* Its address and contents go out with the handshake: whoever reads the same there can read our memory,
     * and is not mistaken in the process. */
    uint8_t nonce[INSTANCE_BYTES];
};
extern struct local_state local;

/* Wakes the helper thread for what other threads left to do: requests to resolve, broken links, our own
 * doorbell. */
void local_kick(void);
/* The doorbell of the link to ourselves. */
void local_ring_self(void);
/* Helper thread: lanes became hot. */
void local_became_hot(void);
/* Helper thread: a doorbell was rung; or a channel was, and it is to be seen that somebody comes. */
void local_was_rung(void);
void local_look_later(void);

#endif
