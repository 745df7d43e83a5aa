/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Deposit: the sender of a large SEND copies the second half of the payload into the receive buffer that the message
 * will take, while the receiver fetches the first half (fetch.c). Two processors copy, each from its own cache.
 *
 * The sender knows the receive by counting. The peer's QP takes one receive per request that needs one, in order, and
 * serves no other requester. So when a request begins while no other is outstanding, the peer's counter `taken` gives
 * the number of its receive, and each later request takes the next one.
 *
 * The deposit needs the rights of an RDMA WRITE and an access slot (direct.c), and goes only into a receive that is
 * posted and that no packet of this sender has completed. The packet still carries its references; the slot of the
 * first one says which receive has the payload. The receiver fetches nothing if that is the receive it fills. */
#include <string.h>

#include "engine/core/route.h"
#include "engine/direct/direct.h"
#include "wire/opcode.h"

/* Bytes. The posting thread does the copy: a larger message would block it for too long. */
#define DEPOSIT_LIMIT (1u << 20)
#define STRIDE_MAX    (1u << 20) /* bytes of a peer's receive WQE that are believed */
/* Bits of packet_reference.slot: payload is deposited, in the receive with this number (lower bits), above the key
 * slot. Written by the sender, read by direct_was_deposited(). */
#define DEPOSITED      (1u << 31)
#define DEPOSITED_AT   19
#define DEPOSITED_BITS 0xfffu
_Static_assert(LIMIT_KEY_SLOTS <= 1u << DEPOSITED_AT, "key slots are in the bits below");

bool direct_deposits(const struct qp *qp, const struct link *link)
{
    return qp->record->type == IBV_QPT_RC && direct_may_map(link);
}

static uint32_t deposit_bits_of(uint32_t receive)
{
    return DEPOSITED | (receive & DEPOSITED_BITS) << DEPOSITED_AT;
}

/* --- sender ------------------------------------------------------------------------------------------ */

static uint64_t slots_for(uint32_t depth)
{
    uint64_t slots = 1;

    while (slots < depth)
        slots *= 2;
    return slots;
}

/* Copies a posted receive with one SGE. All numbers are in the peer's memory, may be anything, and are checked. */
static bool read_receive(const struct direct_peer *peer, const struct receive_queue *queue, uint32_t number,
                         struct wqe_sge *ret_sge)
{
    uint32_t posted = atomic_load_explicit(&queue->posted, memory_order_acquire) - number;
    uint32_t depth = __atomic_load_n(&queue->depth, __ATOMIC_RELAXED);
    uint64_t stride = __atomic_load_n(&queue->stride, __ATOMIC_RELAXED);
    uint64_t offset = __atomic_load_n(&queue->offset, __ATOMIC_RELAXED), slots;
    const struct recv_wqe *wqe;

    if (!posted || posted > LIMIT_QP_WR || !depth || depth > LIMIT_QP_WR || stride < RECV_WQE_SIZE(1) ||
        stride > STRIDE_MAX || stride % 8 || offset % 8)
        return false;
    slots = slots_for(depth);
    if (offset < peer->queues_from || offset > peer->queues_end || slots * stride > peer->queues_end - offset)
        return false;
    wqe = (const void *)(peer->queues + (offset - peer->queues_from) + (number & (slots - 1)) * stride);
    if (__atomic_load_n(&wqe->num_sge, __ATOMIC_RELAXED) != 1)
        return false;
    *ret_sge = (struct wqe_sge){.address = __atomic_load_n(&wqe->sge[0].address, __ATOMIC_RELAXED),
                                .length = __atomic_load_n(&wqe->sge[0].length, __ATOMIC_RELAXED),
                                .lkey = __atomic_load_n(&wqe->sge[0].lkey, __ATOMIC_RELAXED)};
    return true;
}

/* Reads the region of the receive's lkey: the peer must permit local writes, and remote writes by this QP. */
static bool read_region(const struct direct_route *direct, uint32_t lkey, struct key_view *ret_key)
{
    return keys_try_read(&direct->peer->keys[key_slot(lkey)], ret_key) && ret_key->kind == KEY_REGION &&
           ret_key->lkey == lkey && ret_key->pd == direct->pd && (ret_key->access & IBV_ACCESS_LOCAL_WRITE) &&
           (ret_key->access & direct->access & IBV_ACCESS_REMOTE_WRITE);
}

/* The result is a guess: direct_deposit() checks QP and region again with an access slot held, before the first byte is
 * written. */
bool direct_peek_remote_receive(struct transport_qp *transport, uint32_t number, uint32_t length, bool alone)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct direct_route *direct = &route_of(qp)->direct;
    const struct receive_queue *queue;
    const struct qp_record *record;
    const struct direct_view *view;
    struct key_view key;
    struct wqe_sge sge;
    uint32_t slot;

    if (length > DEPOSIT_LIMIT)
        return false;
    if (!direct->peer) {
        if (direct_should_request(direct, NULL, 0))
            direct_request_map(qp, 0);
        return false;
    }
    if (!direct->peer->qps || direct->slot >= DIRECT_QPS)
        return false;
    record = &direct->peer->qps[direct->slot];
    queue = &record->receive;
    if (alone) {
        /* No request is outstanding: the peer updated `taken` before the acknowledgement that this QP has seen. */
        direct->first_receive = atomic_load_explicit(&queue->taken, memory_order_relaxed) - number;
        direct->receives_known = true;
    }
    if (!direct->receives_known || __atomic_load_n(&record->srq, __ATOMIC_RELAXED) != NO_OBJECT)
        return false;
    direct->receive.number = direct->first_receive + number;
    if (!read_receive(direct->peer, queue, direct->receive.number, &sge) || sge.length < length ||
        !read_region(direct, sge.lkey, &key))
        return false;
    slot = key_slot(sge.lkey);
    view = atomic_load_explicit(&direct->peer->views[slot % DIRECT_VIEWS], memory_order_acquire);
    if (!view || view->slot != slot ||
        atomic_load_explicit(&direct->peer->mapped[slot].generation, memory_order_relaxed) !=
            view->generation) {
        if (direct_copies(direct->peer) == SEGMENT_NO_COPIES
                ? direct_should_request(direct, direct->peer, slot)
                : direct_is_hot(direct, direct->peer, length) && key_view_covers(&key, sge.address, length) &&
                      direct_ask_to_map(direct, direct->peer, slot, &key,
                                        key_view_translate(&key, sge.address), length) == DIRECT_IS_MAPPED)
            direct_request_map(qp, key.rkey);
        return false;
    }
    direct->receive.lkey = sge.lkey;
    direct->receive.rkey = key.rkey;
    direct->receive.address = sge.address;
    return view->writable;
}

bool direct_deposit(struct transport_qp *transport, uint32_t offset, const struct iovec *from, unsigned count,
                    uint32_t *ret_deposit_bits)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct direct_route *direct = &route_of(qp)->direct;
    struct key_view key;
    size_t length = 0;
    char *to;

    for (unsigned i = 0; i < count; i++)
        length += from[i].iov_len;
    to = direct_try_map(qp, direct->receive.rkey, direct->receive.address + offset, (uint32_t)length,
                        REMOTE_WRITE);
    if (!to)
        return false;
    if (!read_region(direct, direct->receive.lkey, &key) || key.rkey != direct->receive.rkey) {
        direct_map_end(transport);
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        memcpy(to, from[i].iov_base, from[i].iov_len);
        to += from[i].iov_len;
    }
    *ret_deposit_bits = deposit_bits_of(direct->receive.number);
    return direct_map_end(transport);
}

/* --- receiver ---------------------------------------------------------------------------------------- */

bool direct_was_deposited(const struct qp *qp, const struct packet *packet)
{
    uint32_t mask = ~(LIMIT_KEY_SLOTS - 1);

    if (likely(!packet->reference_count || !(packet->reference[0].slot & DEPOSITED)))
        return false;
    return (packet->reference[0].slot & mask) ==
               deposit_bits_of(atomic_load_explicit(&qp->record->receive.taken, memory_order_relaxed)) &&
           qp->record->type == IBV_QPT_RC && !qp->srq &&
           (opcode_table[packet->opcode].properties & OPCODE_SEND);
}
