/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/paths/ack_delay.h"

static void set_state(struct ack_delay *delay, enum ack_delay_state state)
{
    atomic_store_explicit(&delay->state, (uint8_t)state, memory_order_relaxed);
}

static enum ack_delay_decision received(struct ack_delay *delay)
{
    if (delay->replies < REPLIES_TO_TRUST) {
        set_state(delay, ACK_DELAY_SENT);
        return ACK_NOW;
    }
    set_state(delay, ACK_DELAY_WAITS);
    return ACK_LATER;
}

/* The acknowledgement joins the datagram of the reply. `replies` has reached its bound already. */
static enum ack_delay_decision request(struct ack_delay *delay)
{
    if (ack_delay_state(delay) != ACK_DELAY_WAITS)
        return ACK_LATER;
    set_state(delay, ACK_DELAY_NONE);
    return ACK_NOW;
}

static enum ack_delay_decision posted(struct ack_delay *delay)
{
    enum ack_delay_state before = ack_delay_state(delay);

    if (before == ACK_DELAY_NONE)
        return ACK_LATER;
    if (delay->replies < REPLIES_TO_TRUST)
        delay->replies++;
    set_state(delay, ACK_DELAY_NONE);
    return before == ACK_DELAY_WAITS ? ACK_NOW : ACK_LATER;
}

static void reset(struct ack_delay *delay)
{
    set_state(delay, ACK_DELAY_NONE);
    delay->replies = 0;
}

enum ack_delay_decision ack_delay_step(struct ack_delay *delay, enum ack_delay_event event)
{
    switch (event) {
    case ACK_DELAY_RECEIVED:
        return received(delay);
    case ACK_DELAY_REQUEST:
        return request(delay);
    case ACK_DELAY_POSTED:
        return posted(delay);
    case ACK_DELAY_POLLED:
        if (ack_delay_state(delay) == ACK_DELAY_NONE)
            return ACK_LATER;
        reset(delay);
        return ACK_NOW;
    case ACK_DELAY_RESET:
        reset(delay);
        return ACK_LATER;
    case ACK_DELAY_EXIT:
        reset(delay);
        return ACK_NOW;
    }
    return ACK_NOW;
}

bool ack_delay_may_begin(unsigned qps, bool by_program, bool wakes_program)
{
    return qps == 1 && (by_program || wakes_program);
}

bool ack_delay_ends(bool by_program, bool flushes, bool armed)
{
    return by_program || flushes || !armed;
}

void ack_delay_clock_begin(struct ack_delay_clock *clock)
{
    atomic_store_explicit(&clock->begun_at, atomic_load_explicit(&clock->ticks, memory_order_relaxed),
                          memory_order_relaxed);
}

bool ack_delay_clock_tick(struct ack_delay_clock *clock, bool pending)
{
    uint32_t now = atomic_load_explicit(&clock->ticks, memory_order_relaxed) + 1;

    atomic_store_explicit(&clock->ticks, now, memory_order_relaxed);
    return pending && now - atomic_load_explicit(&clock->begun_at, memory_order_relaxed) >= ACK_DELAY_TICKS;
}
