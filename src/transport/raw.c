/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* RAW_PACKET QPs: the payload of a work request is an Ethernet frame (verbs.md §7.5). Which QPs receive a frame is
 * decided by flow rules (src/steering), not here. */
#include <errno.h>
#include <string.h>

#include "transport/machine.h"

/* IEEE 802.3 3.2.8: shorter frames are padded, before the FCS. */
#define HEADER_LENGTH 14u
#define LENGTH_MIN    60u

static enum verdict check(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    if (wqe->opcode != IBV_WR_SEND)
        return VERDICT_LOCAL_QP_OPERATION;
    return wqe->length < HEADER_LENGTH || wqe->length > qp->link.mtu ? VERDICT_LOCAL_LENGTH : VERDICT_OK;
}

int raw_send(struct transport_qp *qp, struct send_wqe *wqe, enum verdict *ret_verdict)
{
    static const char zeros[LENGTH_MIN];
    void *body = send_wqe_body(wqe, IBV_QPT_RAW_PACKET);
    struct iovec parts[GATHER_MAX + 1];
    struct gather gather = {.count = 0};
    struct packet packet;

    *ret_verdict = check(qp, wqe);
    if (unlikely(*ret_verdict != VERDICT_OK))
        return 0;
    if (!(wqe->flags & WQE_INLINE)) {
        *ret_verdict = gather_range(qp, body, wqe->num_sge, qp->record->pd, 0, wqe->length, false, &gather);
        if (unlikely(*ret_verdict != VERDICT_OK))
            return 0;
    } else {
        gather.vector[gather.count++] = (struct iovec){.iov_base = body, .iov_len = wqe->length};
    }
    memcpy(parts, gather.vector, gather.count * sizeof(parts[0]));
    if (wqe->length < LENGTH_MIN)
        parts[gather.count++] =
            (struct iovec){.iov_base = (void *)(uintptr_t)zeros, .iov_len = LENGTH_MIN - wqe->length};
    packet_clear(&packet);
    packet.opcode = SERVICE_UC | OP_SEND_ONLY; /* an opcode without extension headers */
    packet.flags = PACKET_FRAME;
    packet.src_qpn = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed);
    packet.payload_length = max_of(wqe->length, LENGTH_MIN);
    return qp->ports->send(qp, &packet, parts, gather.count, NULL) == -EAGAIN ? -EAGAIN : 0;
}

enum verdict raw_place(const struct transport_qp *qp, uint32_t pd, const struct recv_wqe *receive,
                       const void *frame, uint32_t length)
{
    struct gather gather;
    enum verdict verdict;

    if (gather_length(receive->sge, receive->num_sge) < length)
        return VERDICT_LOCAL_LENGTH;
    verdict = gather_range(qp, receive->sge, receive->num_sge, pd, 0, length, true, &gather);
    if (verdict == VERDICT_OK)
        gather_place(&gather, frame);
    return verdict;
}

static cold_path void frame_dropped(struct transport_qp *qp, uint32_t length)
{
    struct drop_record *drop = &qp_rare(qp)->drops[DROP_NO_RECEIVE];

    drop->count++;
    drop->seen = length;
    if (qp->ports->dropped)
        qp->ports->dropped(qp, DROP_NO_RECEIVE);
}

bool raw_receive(struct transport_qp *qp, const void *frame, uint32_t length,
                 const struct receive_completion *completion)
{
    struct receive_completion done = *completion;
    const struct recv_wqe *receive;

    if (qp->ports->take_receive(qp, &receive)) {
        qp->record->responder.drops++;
        frame_dropped(qp, length);
        return false;
    }
    /* As with datagrams, a frame that does not fit fails its receive and not the QP. */
    done.verdict = raw_place(qp, qp->receive_pd, receive, frame, length);
    done.opcode = IBV_WC_RECV;
    done.byte_len = length;
    if (done.verdict == VERDICT_OK)
        traffic_add(&qp->record->traffic.executed[TRAFFIC_SEND], length);
    qp->ports->complete_receive(qp, &done);
    return true;
}
