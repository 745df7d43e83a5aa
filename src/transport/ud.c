/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Datagrams: one packet each, without acknowledgement, order, or errors that the peer learns of (verbs.md §8). */
#include <errno.h>
#include <string.h>

#include "base/pkey.h"
#include "transport/machine.h"
#include "transport/ordered_copy.h"
#include "wire/ipudp.h"

/* Q_Keys of work requests with this bit stand for the QP's own Q_Key (verbs.md §8.5). */
#define QKEY_PRIVILEGED 0x80000000u

/* --- sending -------------------------------------------------------------------------------------- */

static enum verdict check(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    if (wqe->opcode != IBV_WR_SEND && wqe->opcode != IBV_WR_SEND_WITH_IMM)
        return VERDICT_LOCAL_QP_OPERATION;
    return wqe->length > min_of(qp->link.mtu, LIMIT_UD_PAYLOAD) ? VERDICT_LOCAL_LENGTH : VERDICT_OK;
}

static void fill(const struct transport_qp *qp, const struct send_wqe *wqe, const struct path_address *to,
                 struct packet *packet)
{
    const struct qp_record *record = qp->record;

    packet_clear(packet);
    packet->opcode = SERVICE_UD | (wqe->opcode == IBV_WR_SEND ? OP_SEND_ONLY : OP_SEND_ONLY_IMM);
    packet->flags = wqe->flags & WQE_SOLICITED ? PACKET_SOLICITED : 0;
    packet->pkey = DEFAULT_PKEY;
    packet->dest_qpn = wqe->ud.remote_qpn;
    packet->src_qpn = atomic_load_explicit(&record->qpn, memory_order_relaxed);
    packet->psn = record->sender.next_psn;
    packet->dest_ifindex = to->destination_ifindex;
    packet->imm_data = wqe->imm_or_rkey;
    packet->qkey = wqe->ud.remote_qkey & QKEY_PRIVILEGED ? record->attributes.qkey : wqe->ud.remote_qkey;
    packet->grh.flow_label = to->flow_label;
    packet->grh.traffic_class = to->traffic_class;
    packet->grh.hop_limit = to->hop_limit;
    packet->grh.service_level = to->service_level;
    packet->payload_length = wqe->length;
    memcpy(packet->grh.source, to->source_gid, sizeof(packet->grh.source));
    memcpy(packet->grh.destination, to->destination_gid, sizeof(packet->grh.destination));
}

static char *copy_at(const struct transport_qp *qp, uint32_t counter)
{
    return qp->copies + (size_t)(counter & qp->copies_mask) * LIMIT_UD_PAYLOAD;
}

static enum verdict gather_datagram(const struct transport_qp *qp, struct send_wqe *wqe,
                                    struct gather *ret_gather)
{
    void *body = send_wqe_body(wqe, IBV_QPT_UD);

    if (unlikely(wqe->flags & WQE_COPIED)) {
        ret_gather->count = 1;
        ret_gather->vector[0] =
            (struct iovec){.iov_base = copy_at(qp, qp->record->sender.next), .iov_len = wqe->length};
        return VERDICT_OK;
    }
    if (wqe->flags & WQE_INLINE) {
        ret_gather->count = wqe->length != 0;
        ret_gather->vector[0] = (struct iovec){.iov_base = body, .iov_len = wqe->length};
        return VERDICT_OK;
    }
    return gather_range(qp, body, wqe->num_sge, qp->record->pd, 0, wqe->length, false, ret_gather);
}

/* 0 or -EAGAIN. */
static int send_datagram(struct transport_qp *qp, struct send_wqe *wqe, enum verdict *ret_verdict)
{
    const struct path_address *to = send_wqe_address(wqe);
    struct gather gather;
    struct packet packet;

    *ret_verdict = check(qp, wqe);
    if (unlikely(*ret_verdict != VERDICT_OK || (wqe->flags & WQE_LOST)))
        return 0;
    *ret_verdict = gather_datagram(qp, wqe, &gather);
    if (unlikely(*ret_verdict != VERDICT_OK))
        return 0;
    fill(qp, wqe, to, &packet);
    /* Any result but -EAGAIN: the datagram was sent, even if there is no such destination. */
    return qp->ports->send(qp, &packet, gather.vector, gather.count, to) == -EAGAIN ? -EAGAIN : 0;
}

/* A WQE that cannot be gathered is left alone: it fails when it is transmitted. */
static void copy_datagram_payload(struct transport_qp *qp, uint32_t counter)
{
    struct send_wqe *wqe = send_wqe_at(qp, counter);
    struct gather gather;
    char *to;

    if ((wqe->flags & (WQE_INLINE | WQE_COPIED | WQE_LOST)) || !wqe->length || check(qp, wqe) != VERDICT_OK ||
        gather_datagram(qp, wqe, &gather) != VERDICT_OK)
        return;
    if ((!qp->copies && !qp->ports->alloc_copies(qp)) ||
        counter - qp->record->sender.next > qp->copies_mask) {
        wqe->flags |= WQE_LOST;
        return;
    }
    to = copy_at(qp, counter);
    for (unsigned i = 0; i < gather.count; i++) {
        memcpy(to, gather.vector[i].iov_base, gather.vector[i].iov_len);
        to += gather.vector[i].iov_len;
    }
    wqe->flags |= WQE_COPIED;
}

/* A hardware adapter sends a datagram within microseconds, and programs rely on that: they reuse its memory when
 * a message from the peer, which may have crossed the datagram, tells that it is not needed any more. So the payload
 * of a datagram that has to wait is copied now; without memory for the copy the datagram is lost, as on any network. */
static cold_path void copy_waiting(struct transport_qp *qp, uint32_t limit)
{
    uint32_t next = qp->record->sender.next;

    if ((int32_t)(qp->copied_end - next) < 0) /* what was posted in SQD may have been flushed */
        qp->copied_end = next;
    for (; qp->copied_end != limit; qp->copied_end++)
        copy_datagram_payload(qp, qp->copied_end);
}

static void send_up_to(struct transport_qp *qp, uint32_t limit)
{
    struct sender *sender = &qp->record->sender;
    uint32_t packets = 0, bytes = 0;

    sender->waiting = SENDER_RUNS;
    while (sender->next != limit && packets < SLICE_PACKETS && bytes < SLICE_BYTES) {
        struct send_wqe *wqe = send_wqe_at(qp, sender->next);
        enum verdict verdict;

        if (unlikely(qp->record->type == IBV_QPT_RAW_PACKET) ? raw_send(qp, wqe, &verdict)
                                                             : send_datagram(qp, wqe, &verdict)) {
            sender->waiting = SENDER_WAITS_FOR_LINK;
            return;
        }
        wqe->verdict = (uint8_t)verdict;
        wqe->first_psn = sender->next_psn;
        wqe->packets = 1;
        sender->next++;
        sender->begun = sender->next;
        if (unlikely(verdict != VERDICT_OK)) {
            sender_fail_oldest(qp, verdict); /* not sent: it takes no PSN */
            return;
        }
        sender->next_psn = sender->unacked_psn = psn_add(sender->next_psn, 1);
        sender->completed++;
        traffic_add(&qp->record->traffic.requested[TRAFFIC_BY_PACKETS][TRAFFIC_SEND], wqe->length);
        qp->ports->complete_send(qp, wqe, sender->completed - 1, VERDICT_OK, wqe->length);
        packets++;
        bytes += wqe->length;
    }
}

void ud_send_run(struct transport_qp *qp, uint32_t limit)
{
    const struct sender *sender = &qp->record->sender;

    send_up_to(qp, limit);
    if (likely(sender->next == limit))
        qp->copied_end = limit;
    else if (likely(qp->record->type != IBV_QPT_RAW_PACKET))
        copy_waiting(qp, limit);
}

/* --- receiving ------------------------------------------------------------------------------------ */

#define ICRC_LENGTH 4

/* The 40 bytes in front of the payload as a RoCEv2 adapter writes them, also for a datagram from shared memory: an
 * IPv6 header, or an IPv4 header behind 20 bytes that are not written. Returns the offset of the first byte written. */
static unsigned build_header(const struct packet *packet, uint32_t udp_payload_length,
                             uint8_t header[GRH_AREA_LENGTH])
{
    const struct packet_grh *grh = &packet->grh;

    ipudp_build_grh_area(grh, udp_payload_length, header);
    return ipudp_gid_is_ipv4(grh->source) && ipudp_gid_is_ipv4(grh->destination)
               ? GRH_AREA_LENGTH - IPV4_LENGTH
               : 0;
}

static enum verdict place_datagram(struct transport_qp *qp, const struct recv_wqe *receive,
                                   const struct packet *packet)
{
    uint32_t headers = opcode_table[packet->opcode].header_length;
    uint32_t padded = (packet->payload_length + 3) & ~3u;
    uint8_t header[GRH_AREA_LENGTH];
    unsigned begin = build_header(packet, headers + padded + ICRC_LENGTH, header);
    struct gather gather;
    enum verdict verdict;

    if (gather_length(receive->sge, receive->num_sge) < GRH_AREA_LENGTH + packet->payload_length)
        return VERDICT_LOCAL_LENGTH;
    verdict = gather_range(qp, receive->sge, receive->num_sge, qp->receive_pd, begin, GRH_AREA_LENGTH - begin,
                           true, &gather);
    if (verdict != VERDICT_OK)
        return verdict;
    gather_place(&gather, header + begin);
    verdict = gather_range(qp, receive->sge, receive->num_sge, qp->receive_pd, GRH_AREA_LENGTH,
                           packet->payload_length, true, &gather);
    if (verdict == VERDICT_OK)
        gather_place(&gather, packet->payload);
    return verdict;
}

cold_path void datagram_dropped(struct transport_qp *qp, const struct packet *packet, enum drop_reason reason,
                                uint32_t seen, uint32_t wanted)
{
    struct drop_record *drop = &qp_rare(qp)->drops[reason];

    drop->count++;
    drop->seen = seen;
    drop->wanted = wanted;
    drop->src_qpn = packet->src_qpn;
    memcpy(drop->source, packet->grh.source, sizeof(drop->source));
    if (qp->ports->dropped)
        qp->ports->dropped(qp, reason);
}

static cold_path void drop_for_qkey(struct transport_qp *qp, const struct packet *packet)
{
    if (qp->counters)
        atomic_fetch_add_explicit(&qp->counters->bad_qkeys, 1, memory_order_relaxed);
    qp->record->responder.drops++;
    datagram_dropped(qp, packet, DROP_QKEY, packet->qkey, qp->record->attributes.qkey);
}

static cold_path void note_failed_receive(struct transport_qp *qp, const struct recv_wqe *receive,
                                          const struct packet *packet, enum verdict verdict)
{
    fault_datagram(qp, receive, packet, verdict);
    if (verdict == VERDICT_LOCAL_LENGTH)
        datagram_dropped(qp, packet, DROP_TOO_SMALL, GRH_AREA_LENGTH + packet->payload_length,
                         (uint32_t)gather_length(receive->sge, receive->num_sge));
}

void ud_receive(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    struct receive_completion completion = {
        .opcode = IBV_WC_RECV,
        .byte_len = GRH_AREA_LENGTH + packet->payload_length,
        .wc_flags = IBV_WC_GRH,
        .src_qpn = packet->src_qpn,
        /* The network type, which programs read here (compatibility.md §7). */
        .service_level = ipudp_gid_is_ipv4(packet->grh.destination) ? 2 : 1,
        .solicited = packet->flags & PACKET_SOLICITED,
    };
    const struct recv_wqe *receive;

    if (BTH_SERVICE(packet->opcode) != SERVICE_UD || !(properties & OPCODE_REQUEST) ||
        (packet->flags & (PACKET_BY_REFERENCE | PACKET_DROPPED)) ||
        packet->payload_length > LIMIT_UD_PAYLOAD) {
        qp->record->responder.drops++;
        return;
    }
    if (unlikely(packet->qkey != qp->record->attributes.qkey)) {
        drop_for_qkey(qp, packet);
        return;
    }
    if (unlikely(qp->ports->take_receive(qp, &receive))) {
        qp->record->responder.drops++;
        datagram_dropped(qp, packet, DROP_NO_RECEIVE, packet->payload_length, 0);
        return;
    }
    if (properties & OPCODE_HAS_IMM) {
        completion.wc_flags |= IBV_WC_WITH_IMM;
        completion.imm_or_rkey = packet->imm_data;
    }
    /* The completion reports errors of the receive; the QP does not fail, since any host may send it a packet
     * (verbs.md §3.10). */
    completion.verdict = place_datagram(qp, receive, packet);
    if (unlikely(completion.verdict != VERDICT_OK))
        note_failed_receive(qp, receive, packet, completion.verdict);
    else
        traffic_add(&qp->record->traffic.executed[TRAFFIC_SEND], packet->payload_length);
    qp->ports->complete_receive(qp, &completion);
}
