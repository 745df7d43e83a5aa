/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packets that arrive at a QP, and acknowledgements at the end of a batch of packets (arrivals.c). The receive lock of
 * the lane, or that of the UDP port, is held by the thread that takes the batch; the lock of each QP is held where a
 * function says so. */
#ifndef ENGINE_CORE_ARRIVALS_H
#define ENGINE_CORE_ARRIVALS_H

#include <stdbool.h>

#include "object/qp/qp.h"
#include "wire/packet.h"

/* QPs that acknowledge at the end of the batch, once each; of further QPs each packet is acknowledged at once. Under
 * the receive lock. */
#define ARRIVALS_MAX 16u
struct arrivals {
    struct qp *qps[ARRIVALS_MAX];
    unsigned count;
};

/* An acknowledgement waits for at most this many packets. Over the network for as many as a datagram has: it costs both
 * ends a packet, and mostly none leaves before the batch ends. */
#define ACKS_BEFORE_BATCH_END         16u
#define NETWORK_ACKS_BEFORE_BATCH_END 64u

/* Does the QP take requests (or responses) in its state (verbs.md §2.1), and is the packet for it at all? QP lock
 * held. */
bool arrival_is_accepted(const struct qp *qp, const struct packet *packet, bool request);

/* The packet is not accepted: counts a datagram, or a request of a connected QP. qp: locked, or NULL: none has the
 * number. */
void arrival_refused(struct qp *qp, const struct packet *packet);

enum arrival_result {
    ARRIVAL_DROPPED, /* by the transport */
    ARRIVAL_TAKEN,
    ARRIVAL_ACK_DUE, /* taken, and the caller passes the QP to arrivals_add() */
};
/* The transport receives the packet, and the QP sends what it owes at once. QP lock held. */
enum arrival_result arrival_receive(struct qp *qp, const struct packet *packet, bool request);

/* QP lock held. */
void arrivals_add(struct arrivals *batch, struct qp *qp);
/* At the end of the batch: the next QP, which the caller locks and passes to arrivals_take_due(); NULL: none is left.
 */
static inline struct qp *arrivals_next(struct arrivals *batch)
{
    return batch->count ? batch->qps[--batch->count] : NULL;
}
/* False: the QP was reset or destroyed, or has acknowledged, meanwhile. QP lock held. */
static inline bool arrivals_take_due(struct qp *qp)
{
    bool due = qp->ack_due;

    qp->ack_due = false;
    return due;
}

/* A multicast packet for a QP that is attached to the group. QP lock held. from_this_host: packet->src_qpn is a number
 * of this host. */
void arrivals_receive_multicast(struct qp *qp, const struct packet *packet, bool from_this_host);

#endif
