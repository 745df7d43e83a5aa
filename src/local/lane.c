/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The writing side of a lane: records, doorbell, revocation of exposed memory. */
#include <errno.h>
#include <sched.h>

#include "local/link.h"
#include "local/notify.h"
#include "local/small.h"
#include "local/start.h"

struct lane *link_lane(struct link *link, uint32_t local_qpn)
{
    return &link->lanes[local_qpn % LOCAL_LANES];
}

struct link *lane_link(struct lane *lane)
{
    return lane->link;
}

static_assert(offsetof(struct lane, owner_data) == LANE_OWNER_AT, "lane_owner_data()");

bool lane_is_blocked(const struct lane *lane)
{
    return atomic_load_explicit(&lane->blocked, memory_order_acquire);
}

/* lane_send() without space, or with an invalid position of the reader. Under transmit_lock. */
static int cold_path send_failed(struct lane *lane, int error, const struct packet *packet,
                                 const struct iovec *gather, unsigned gather_count)
{
    if (error == -EAGAIN) {
        if (!lane_block(lane))
            return -EHOSTUNREACH;
        notify_full(lane);
        /* The reader may have made space before lane_block() told it to ring, and then does not ring. If this write
         * succeeds, ops->lane_writable() is called needlessly. */
        error = ring_write(&lane->writer, packet, gather, gather_count);
    }
    if (error == -EPROTO) {
        link_declare_broken(lane->link, "an invalid read position");
        error = -EHOSTUNREACH;
    }
    return error;
}

int lane_send(struct lane *lane, const struct packet *packet, const struct iovec *gather,
              unsigned gather_count)
{
    const char *next;
    int error;

    if (unlikely(!link_is_up(lane->link)))
        return -EHOSTUNREACH;
    lock_acquire(&lane->transmit_lock);
    error = ring_write(&lane->writer, packet, gather, gather_count);
    if (unlikely(error))
        error = send_failed(lane, error, packet, gather, gather_count);
    next = (const char *)ring_at(lane->writer.data, lane->writer.position);
    lock_release(&lane->transmit_lock);
    lane_prefetch(next);
    return error;
}

void lane_revoke(struct lane *lane)
{
    lock_acquire(&lane->transmit_lock);
    ring_revoke(&lane->writer);
    lock_release(&lane->transmit_lock);
    /* On the link to ourselves a copy that has begun would fault if the program unmaps the memory next, so wait for
     * its end; the copy takes no lock. Acquire; partner: the release in copy_in_process(). */
    while (unlikely(atomic_load_explicit(&lane->copies, memory_order_acquire)))
        sched_yield();
}

bool lane_reader_sleeps(const struct lane *lane)
{
    uint32_t sleeps = atomic_load_explicit(&lane->writer.control->reader_sleeps, memory_order_relaxed);

    return sleeps != READER_POLLS && (sleeps != READER_ATTENTION || notify_sleeps(lane->link));
}

void lane_ring(struct lane *lane)
{
    uint32_t sleeps;

    if (unlikely(atomic_load_explicit(&lane->ring_due, memory_order_relaxed))) {
        atomic_store_explicit(&lane->ring_due, 0, memory_order_relaxed);
        atomic_store_explicit(&lane->rung_late, 0, memory_order_relaxed);
    }
    /* Ensure that a reader which goes to sleep sees the published record, or we see reader_sleeps. Partners: the
     * fences in ring_arm_reader() and notify_set_attention(). */
    atomic_thread_fence(memory_order_seq_cst);
    sleeps = atomic_load_explicit(&lane->writer.control->reader_sleeps, memory_order_relaxed);
    if (unlikely(sleeps != READER_POLLS))
        notify_wake(lane, sleeps);
}
