/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* WRITE and READ of RC that the requester executes by the kernel's copy (process_vm_writev(2), process_vm_readv(2)),
 * where the peer's memory is not mapped: after the same checks as in mapped memory, with an access slot. Neither a
 * processor nor the helper thread of the peer takes part. What is not plain success goes as packets, so that the peer's
 * responder judges it. */
#include <errno.h>

#include "base/sys.h"
#include "engine/core/route.h"
#include "engine/direct/direct.h"
#include "engine/paths/paths.h"
#include "local/local.h"

/* A peer that polls this often during one system call spins on its CQ: the ring takes less time then. */
#define POLLS_OF_A_SPIN 8u
/* Requests through the ring between two looks at what they cost. */
#define LOOK_EVERY 64u
/* A request that begins within STREAM_GAP after the one before follows it in a stream. After STREAM of those the ring
 * is tried: the helper thread of the peer is woken once for many requests. It takes less time for each than a system
 * call, unless it gets no processor; then the ring is not tried again for STREAM_PAUSE. */
#define STREAM       16u
#define STREAM_GAP   ((ns_t)500)
#define STREAM_COST  (LOOK_EVERY * (ns_t)1500)
#define STREAM_PAUSE (100 * NS_PER_MS)

/* A WRITE ends with its last word, which programs spin on: the kernel's copy of one piece promises no order of
 * bytes. */
#define LAST_PIECE ((uint64_t)sizeof(uint64_t))

static uint32_t polls_of(const struct direct_peer *peer)
{
    return atomic_load_explicit(&peer->header->application_polls, memory_order_relaxed);
}

static void use_ring(struct direct_route *direct, enum ring_choice why, ns_t now)
{
    direct->ring = why;
    direct->until_look = LOOK_EVERY;
    direct->polls_seen = polls_of(direct->peer);
    direct->ring_since = now;
    direct->stream = 0;
}

/* Requests have gone through the ring. Goes on with that if the peer still polls, or if it was quick. */
static void look(struct direct_route *direct)
{
    ns_t now = 0;

    if (direct->ring == RING_STREAM) {
        now = sys_now();
        if (now - direct->ring_since > STREAM_COST) {
            direct->stream_from = now + STREAM_PAUSE;
            direct->ring = RING_NOT;
        }
    } else if (polls_of(direct->peer) == direct->polls_seen) {
        direct->ring = RING_NOT;
    }
    if (direct->ring != RING_NOT)
        use_ring(direct, direct->ring, now);
}

bool direct_prefers_ring(const struct qp *qp, struct direct_route *direct, uint32_t length)
{
    if (likely(direct->ring == RING_NOT) || length > DIRECT_SMALL)
        return false;
    if (unlikely(atomic_load_explicit(&direct->peer->header->growing, memory_order_relaxed))) {
        direct->ring = RING_NOT;
        return false;
    }
    /* The first request wakes the peer. */
    if (direct->until_look != LOOK_EVERY && lane_reader_sleeps(route_of(qp)->lane))
        direct->ring = RING_NOT;
    else if (--direct->until_look == 0)
        look(direct);
    return direct->ring != RING_NOT;
}

/* Small requests, one after the other. */
static void count_stream(struct direct_route *direct, ns_t began)
{
    direct->stream = began - direct->copied_at < STREAM_GAP ? direct->stream + 1 : 0;
    direct->copied_at = sys_now();
    if (unlikely(direct->stream >= STREAM) && began >= direct->stream_from)
        use_ring(direct, RING_STREAM, direct->copied_at);
}

/* Fills in the addresses that the system call reads from the slot, and lets the owner see them. The owner looks at no
 * field before the word says ACCESS_COPIES, and this process writes none from then on. */
static unsigned begin(struct direct_route *direct, uintptr_t there, uint32_t length,
                      enum remote_operation operation)
{
    struct access_slot *slot = direct->access_slot;
    uint64_t last = 0;
    unsigned count = 0;

    if (operation == REMOTE_WRITE)
        last = min_of(((there + length - 1) & (LAST_PIECE - 1)) + 1, (uint64_t)length);
    if (length > last)
        slot->remote[count++] = (struct iovec){(void *)there, length - last};
    if (last)
        slot->remote[count++] = (struct iovec){(void *)(there + length - last), last};
    atomic_store_explicit(&slot->thread, sys_gettid(), memory_order_relaxed);
    direct->access_slot_word = (direct->access_slot_word & ~(uint64_t)ACCESS_SLOT_KIND) | ACCESS_COPIES;
    atomic_exchange_explicit(&slot->word, direct->access_slot_word, memory_order_seq_cst);
    access_slot_fence();
    return count;
}

/* The error says something about the peer, not about this range of its memory. */
static bool is_refused(ssize_t error)
{
    return error == -EPERM || error == -ENOSYS || error == -EACCES || error == -ESRCH;
}

static bool moves(const struct direct_route *direct, uint64_t there, uint32_t length)
{
    return there < direct->moving_to && there + length > direct->moving_from;
}

/* A request whose key has changed while it was being begun, or whose pages move, begins anew, so often: portions
 * follow each other closely, and a long request needs several. */
#define ATTEMPTS 8u

/* The copy's bytes, or an error; -ESTALE: the key has changed; -EBUSY: not now. *ret_open: direct_is_open(). */
static ssize_t attempt(struct qp *qp, struct direct_route *direct, uint32_t rkey, uintptr_t there,
                       uint32_t length, enum remote_operation operation, const struct iovec *here,
                       unsigned count, bool *ret_open)
{
    struct direct_peer *peer = direct->peer;
    ssize_t copied = -ESTALE;
    unsigned pieces;

    direct->access_slot = access_slot_take(peer->access_slots, qp->slot, ACCESS_BEGINS, direct->slot,
                                           direct->copied.slot, &direct->access_slot_word);
    if (!direct->access_slot)
        return -EBUSY;
    pieces = begin(direct, there, length, operation);
    *ret_open = direct_is_open(direct);
    if (likely(*ret_open && direct_key_is_current(peer, &direct->copied, rkey)))
        copied = link_copy(peer->link, operation == REMOTE_WRITE, here, count, direct->access_slot->remote,
                           pieces);
    /* All bytes moved before the owner went on, even if it has given up waiting since: the owner had not set the
     * lengths to 0 when the call began. */
    (void)access_slot_release(direct->access_slot, direct->access_slot_word);
    return copied;
}

bool direct_copy(struct transport_qp *transport, uint32_t rkey, uint64_t address, uint32_t length,
                 enum remote_operation operation, const struct iovec *here, unsigned count)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct direct_route *direct = &route_of(qp)->direct;
    struct direct_peer *peer = direct->peer;
    ns_t began;
    ssize_t copied = -ESTALE;
    uint32_t polls;
    bool open = true;

    if (peer && unlikely(atomic_load_explicit(&peer->refused, memory_order_relaxed)) &&
        qp->record->path.kind == PATH_CMA)
        route_note_refused(qp); /* another QP may have been the one that was refused */
    if (!peer || !direct_has_copied(direct, rkey) || direct_prefers_ring(qp, direct, length))
        return false;
    began = length > DIRECT_SMALL ? 0 : sys_now();
    polls = polls_of(peer);
    for (unsigned i = 0; i < ATTEMPTS && open && copied == -ESTALE; i++) {
        uintptr_t there = direct_has_copied(direct, rkey)
                              ? direct_address_in(&direct->copied, address, length, operation)
                              : 0;

        if (!there)
            copied = -EBUSY;
        else if (unlikely(moves(direct, there, length)))
            direct_wait_for_portion(direct, key_slot(rkey));
        else
            copied = attempt(qp, direct, rkey, there, length, operation, here, count, &open);
    }
    if (copied == -EBUSY)
        return false;
    if (unlikely(is_refused(copied)))
        atomic_store_explicit(&peer->refused, true, memory_order_relaxed);
    else if (unlikely(copied == -EFAULT))
        direct->copied.length = 0; /* as long as the key stays as it is */
    if (!open)
        direct->peer = NULL; /* the helper thread connects the QP anew */
    else if (atomic_load_explicit(&peer->header->growing, memory_order_relaxed))
        direct->stream = 0;
    else if (unlikely(direct->copies_due != 0))
        direct->copies_due--;
    else if (polls_of(peer) - polls >= POLLS_OF_A_SPIN)
        use_ring(direct, RING_POLLED, 0);
    else if (began)
        count_stream(direct, began);
    return copied == (ssize_t)length;
}
