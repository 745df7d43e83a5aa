/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Delayed acknowledgements on the network path, as a pure state machine: no QP, lock, socket or clock.
 * engine/paths/network_ack.c reports events and carries out the decisions.
 *
 * An acknowledgement costs a system call here and a datagram at the peer. In a ping-pong, where the program
 * replies to each message with a request of its own, the acknowledgement can leave in the datagram of that
 * request (RFC 1122 4.2.3.2 does the same for TCP). The delay begins after REPLIES_TO_TRUST replies in a row,
 * each between one received packet and the next poll. A program that does not reply may have taken its last
 * message, and may exit before the acknowledgement: one poll without a reply starts the count anew. */
#ifndef ENGINE_PATHS_ACK_DELAY_H
#define ENGINE_PATHS_ACK_DELAY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define REPLIES_TO_TRUST 8u
/* The helper thread sends a delayed acknowledgement after so many of its looks: at least one whole interval has
 * passed then. */
#define ACK_DELAY_TICKS 2u

enum ack_delay_state {
    ACK_DELAY_NONE,  /* nothing was received since the last reply or poll */
    ACK_DELAY_SENT,  /* a packet was received and acknowledged at once; a reply now counts */
    ACK_DELAY_WAITS, /* a packet was received, and its acknowledgement waits for the reply */
};

/* Of a QP. All zero: ACK_DELAY_NONE. Written under the QP lock; `state` is read without, as a hint. */
struct ack_delay {
    _Atomic uint8_t state; /* enum ack_delay_state */
    uint8_t replies;       /* in a row, without a poll in between; REPLIES_TO_TRUST at most */
};

enum ack_delay_event {
    ACK_DELAY_RECEIVED, /* ack_delay_may_begin(), and the QP owes the acknowledgement of one packet only */
    ACK_DELAY_REQUEST,  /* a request of a single packet is in the lane that is flushed next */
    ACK_DELAY_POSTED,   /* a post of the program has put its requests into the lane */
    /* ack_delay_ends(): the program's poll, or the helper thread, has ended a batch, and no reply came in
     * between */
    ACK_DELAY_POLLED,
    ACK_DELAY_RESET, /* the QP loses its path */
    ACK_DELAY_EXIT,  /* the program exits */
};

/* ACK_NOW: the caller sends the acknowledgement if the QP owes one. */
enum ack_delay_decision { ACK_LATER, ACK_NOW };

enum ack_delay_decision ack_delay_step(struct ack_delay *delay, enum ack_delay_event event);

static inline enum ack_delay_state ack_delay_state(const struct ack_delay *delay)
{
    return (enum ack_delay_state)atomic_load_explicit(&delay->state, memory_order_relaxed);
}

/* May a delay begin at the end of this batch of received packets? qps: how many owe an acknowledgement; by_program:
 * one of its threads polled, and so is awake to reply; wakes_program: the batch completed a receive that a thread
 * sleeps for. */
bool ack_delay_may_begin(unsigned qps, bool by_program, bool wakes_program);
/* Likewise: does the batch end a delay that an earlier one began? flushes: the helper thread ended the batch
 * for that purpose; armed: a CQ was armed a short time ago, and the program still has to wake up and reply. */
bool ack_delay_ends(bool by_program, bool flushes, bool armed);

/* Counts ticks of the helper thread, for one delay at a time. */
struct ack_delay_clock {
    _Atomic uint32_t ticks;    /* written by the helper thread */
    _Atomic uint32_t begun_at; /* ticks when the delay began; written under the udp receive lock */
};

void ack_delay_clock_begin(struct ack_delay_clock *clock);
/* A tick has passed. pending: a delay is under way. True: it is overdue. */
bool ack_delay_clock_tick(struct ack_delay_clock *clock, bool pending);

#endif
