/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the packets of READ, atomic, ATOMIC WRITE and FLUSH requests carry beside the headers that all requests have. */
#include "transport/machine.h"

static enum verdict fill_read(struct transport_qp *qp, struct send_wqe *wqe, uint32_t asked,
                              struct packet *packet)
{
    uint32_t at = qp->record->sender.next_offset, mtu = packet_mtu(qp, wqe), offset = at * mtu;
    unsigned ignored;

    packet->rkey = wqe->rkey;
    packet->address = wqe->remote_address + offset;
    packet->dma_length = at + asked == wqe->packets ? wqe->length - offset : asked * mtu;
    if (goes_by_reference(wqe))
        packet->flags |= PACKET_BY_REFERENCE;
    else if (unlikely(wqe->carriage == WQE_BY_PATH_MTU))
        packet->syndrome |= PACKET_BY_PATH_MTU;
    /* The addresses are needed only when the response comes, but a READ into memory without rights must not be sent. */
    return gather_check(qp, send_wqe_body(wqe, IBV_QPT_RC), wqe->num_sge, qp->record->pd, true, &ignored);
}

static enum verdict fill_atomic(struct transport_qp *qp, struct send_wqe *wqe, struct packet *packet)
{
    struct gather gather;

    packet->rkey = wqe->rkey;
    packet->address = wqe->remote_address;
    if (wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        packet->compare = wqe->atomic.compare_add;
        packet->swap_add = wqe->atomic.swap;
    } else {
        packet->swap_add = wqe->atomic.compare_add;
    }
    return gather_range(qp, send_wqe_body(wqe, IBV_QPT_RC), wqe->num_sge, qp->record->pd, 0, wqe->length,
                        true, &gather);
}

static void fill_flush(const struct send_wqe *wqe, struct packet *packet)
{
    packet->rkey = wqe->rkey;
    packet->address = wqe->remote_address;
    packet->dma_length = wqe->length;
    packet->flush = (uint8_t)wqe->imm_or_rkey;
}

/* The only one of these requests with a payload. */
static enum verdict fill_atomic_write(struct transport_qp *qp, struct send_wqe *wqe, struct packet *packet,
                                      struct gather *gather)
{
    struct wqe_sge *sge = send_wqe_body(wqe, IBV_QPT_RC);

    packet->rkey = wqe->rkey;
    packet->address = wqe->remote_address;
    packet->dma_length = packet->payload_length = wqe->length;
    if (!(wqe->flags & WQE_INLINE))
        return gather_range(qp, sge, wqe->num_sge, qp->record->pd, 0, wqe->length, false, gather);
    gather->count = 1;
    gather->vector[0] = (struct iovec){.iov_base = sge, .iov_len = wqe->length};
    return VERDICT_OK;
}

enum verdict sender_fill_rd_atomic(struct transport_qp *qp, struct send_wqe *wqe, enum request_kind kind,
                                   uint32_t asked, struct packet *packet, struct gather *ret_gather)
{
    if (kind == REQUEST_READ)
        return fill_read(qp, wqe, asked, packet);
    if (kind == REQUEST_ATOMIC)
        return fill_atomic(qp, wqe, packet);
    if (kind == REQUEST_ATOMIC_WRITE)
        return fill_atomic_write(qp, wqe, packet, ret_gather);
    fill_flush(wqe, packet);
    return VERDICT_OK;
}
