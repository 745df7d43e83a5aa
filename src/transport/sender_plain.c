/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Plain requests on a link that may lose packets (docs/design/plain-requests.md): SENDs and WRITEs of one packet, which
 * are the next ones to be sent. They go one straight way from the WQE to the link, which is held for all of them: the
 * rules are those of sender.c and window.c with the constants of such a request put in. A request that is not plain
 * ends this, and goes through those files with all that is behind it. */
#include "base/pkey.h"
#include "transport/machine.h"

/* Does the link carry plain requests? Has all that was begun been sent, but for one request at most, which has not
 * failed? And were none of the next packets sent before? */
static inline bool is_possible(const struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;
    uint32_t unsent = sender->begun - sender->next;

    return !qp->link.local && qp->record->type == IBV_QPT_RC && qp->ports->plain && !sender->next_offset &&
           unsent <= 1 && !qp->tag_matching && psn_distance(sender->sent_psn, sender->next_psn) == unsent &&
           psn_distance(sender->unacked_psn, sender->next_psn) + SLICE_PACKETS <= WINDOW_PSNS &&
           (!unsent || send_wqe_at(qp, sender->next)->verdict == VERDICT_OK);
}

/* check_kind() and may_begin() say yes, and the message is one packet. */
static inline bool is_plain(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    return (wqe->opcode == IBV_WR_SEND || wqe->opcode == IBV_WR_SEND_WITH_IMM ||
            wqe->opcode == IBV_WR_RDMA_WRITE) &&
           wqe->num_sge == !(wqe->flags & WQE_INLINE) && wqe->length - 1 < qp->link.mtu &&
           (!(wqe->flags & WQE_FENCE) || !qp->record->sender.rd_atomic_wqes);
}

/* NULL: the payload is inline. */
static inline const struct wqe_sge *sge_of(struct send_wqe *wqe)
{
    return wqe->flags & WQE_INLINE ? NULL : send_wqe_body(wqe, IBV_QPT_RC);
}

/* transmit(). False: nothing was sent. */
static inline bool send_packet(struct transport_qp *qp, struct packet *packet, struct send_wqe *wqe)
{
    bool write = wqe->opcode == IBV_WR_RDMA_WRITE;

    packet->opcode = write ? OP_WRITE_ONLY : wqe->opcode == IBV_WR_SEND ? OP_SEND_ONLY : OP_SEND_ONLY_IMM;
    packet->flags = PACKET_ACK_REQUEST | (!write && wqe->flags & WQE_SOLICITED ? PACKET_SOLICITED : 0);
    packet->payload_length = wqe->length;
    packet->imm_data = wqe->imm_or_rkey;
    if (write) {
        packet->rkey = wqe->rkey;
        packet->address = wqe->remote_address;
        packet->dma_length = wqe->length;
    }
    packet->payload = send_wqe_body(wqe, IBV_QPT_RC);
    return qp->ports->plain->put(qp, packet, sge_of(wqe));
}

/* begin() of what was sent. */
static inline void begin(struct transport_qp *qp, struct send_wqe *wqe, psn_t psn)
{
    struct sender *sender = &qp->record->sender;
    bool write = wqe->opcode == IBV_WR_RDMA_WRITE;

    wqe->first_psn = psn;
    wqe->packets = 1;
    wqe->verdict = VERDICT_OK;
    wqe->carriage = qp->link.carriage;
    wqe->exposed = false;
    wqe->read_part = 0;
    sender->begun++;
    sender->next_psn = psn_add(psn, 1);
    sender->ssn = psn_add(sender->ssn, 1);
    traffic_add(&qp->record->traffic.requested[TRAFFIC_BY_PACKETS][write ? REQUEST_WRITE : REQUEST_SEND],
                wqe->length);
    if (write)
        return;
    qp->two_sided++;
    qp->two_sided_end = sender->begun;
    qp->deposits = false;
}

static uint32_t run(struct transport_qp *qp, uint32_t most)
{
    struct sender *sender = &qp->record->sender;
    struct packet packet;
    uint32_t count = 0;

    packet_clear(&packet);
    packet.pkey = DEFAULT_PKEY;
    packet.dest_qpn = qp->record->attributes.dest_qpn;
    packet.dest_ifindex = qp->record->attributes.path.destination_ifindex;
    packet.psn = sender->sent_psn;
    for (; count < most; count++) {
        struct send_wqe *wqe = send_wqe_at(qp, sender->next);

        if (!is_plain(qp, wqe) || !send_packet(qp, &packet, wqe))
            break;
        if (likely(sender->next == sender->begun))
            begin(qp, wqe, packet.psn);
        if (!sender->rtt_runs)
            sender_measure(qp, packet.psn);
        packet.psn = sender->sent_psn = psn_add(packet.psn, 1);
        sender->next++;
    }
    return count;
}

uint32_t sender_run_plain(struct transport_qp *qp, uint32_t limit)
{
    struct sender *sender = &qp->record->sender;
    struct send_wqe *wqe = send_wqe_at(qp, sender->next);
    uint32_t most = min_of(limit - sender->next, SLICE_PACKETS), count;
    psn_t first = sender->sent_psn;

    if (!most || !is_possible(qp))
        return 0;
    most = min_of(most, window_room(qp));
    if (!most || !is_plain(qp, wqe))
        return 0;
    most = min_of(most, qp->ports->plain->begin(qp, sge_of(wqe)));
    if (!most)
        return 0;
    count = run(qp, most);
    sender->plain += count;
    if (count) {
        qp->next_hints &= (uint8_t) ~(PACKET_TOGETHER | PACKET_BEGINS);
        sender_arm(qp);
    }
    qp->ports->plain->end(qp, first, count);
    return count;
}
