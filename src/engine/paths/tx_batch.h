/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Transmit batching on the network path, as a pure function of counters: no QP, lock, socket or clock.
 * engine/paths/network.c reports packets and carries out the decisions.
 *
 * A datagram costs about the same with one small packet as with many. While a program keeps posting and much
 * of what it has posted is in flight, the next packet waits in the lane for those that follow: the peer has
 * work, and its acknowledgements wake the program or the helper thread, which flushes. All batched packets of
 * the process are flushed when a thread polls, when the helper thread runs, and when the program exits. A
 * program that posts and does not poll is bounded by BATCH_MAX_UNPOLLED. */
#ifndef ENGINE_PATHS_TX_BATCH_H
#define ENGINE_PATHS_TX_BATCH_H

#include <stdint.h>

#define BATCH_MIN_INFLIGHT 8u /* packets that have left and are not acknowledged */
#define BATCH_MAX          63u /* packets of a QP that wait: with the one that flushes, as many as UDP_SEGMENT takes */
#define BATCH_MAX_UNPOLLED 256u /* packets since the program polled; from this one on each is flushed */
/* A program that sent BATCH_BURST packets between two polls, BATCH_BURSTS_TO_TRUST times in a row, is expected
 * to do so again: then one packet in flight is enough. A shorter burst ends the trust. */
#define BATCH_BURST           32u
#define BATCH_BURSTS_TO_TRUST 4u

/* Of a QP, under its lock. All zero: nothing was sent. */
struct tx_batch {
    uint32_t polls_seen;   /* tx_batch_counters.polls at the last request */
    uint32_t flushes_seen; /* tx_batch_counters.flushes at the last request */
    uint16_t unpolled;     /* requests since polls_seen changed; BATCH_MAX_UNPOLLED at most */
    uint16_t batched;      /* packets that wait in the lane since flushes_seen changed */
    uint8_t bursts;        /* in a row, of BATCH_BURST requests or more; BATCH_BURSTS_TO_TRUST at most */
};

struct tx_batch_counters {
    uint32_t polls;   /* by threads of the program */
    uint32_t flushes; /* of all batched packets of the process */
    int32_t inflight; /* packets of the QP before this one that are batched or sent, and not acknowledged */
};

enum tx_batch_event {
    TX_BATCH_REQUEST, /* a request of a single packet, which the peer acknowledges */
    TX_BATCH_OTHER,   /* any other packet; the counters are not looked at */
};

/* TX_BATCH_FLUSH: the caller flushes the lane, with all that waits there. */
enum tx_batch_decision { TX_BATCH_FLUSH, TX_BATCH_WAIT };

/* The packet of the event has been put into the QP's lane. */
enum tx_batch_decision tx_batch_step(struct tx_batch *batch, enum tx_batch_event event,
                                     const struct tx_batch_counters *counters);

#endif
