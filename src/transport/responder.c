/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Requests of connected QPs -> checks -> memory -> receive completion. The steps and their order are IBA's (9.7.1):
 * PSN, opcode sequence, receive, length, access, execution. Each step is a function that returns false if the packet
 * ends there. No request waits here: a packet is executed, or a response is owed (response.c). */
#include <errno.h>
#include <string.h>

#include "transport/machine.h"
#include "transport/ordered_copy.h"

/* The request that passes through the steps. */
struct request {
    struct transport_qp *qp;
    const struct packet *packet;
    uint32_t properties; /* enum opcode_properties */
    uint32_t length;     /* of the payload, or of what reference[] names */
};

/* --- errors --------------------------------------------------------------------------------------- */

void responder_fail(struct transport_qp *qp, psn_t psn, uint8_t nak_code)
{
    struct responder *responder = &qp->record->responder;

    responder->message = MESSAGE_DISCARD;
    responder->owed_syndrome = (uint8_t)(SYNDROME_NAK << 5 | nak_code);
    responder->owed_psn = psn;
    responder->fails = true;
    /* Sends the NAK at once if nothing has to precede it, so that a program which polls the completion soon
     * finds the QP in ERR. */
    responder_run(qp);
}

void responder_violation(struct transport_qp *qp, psn_t psn, enum verdict verdict, enum ibv_event_type event)
{
    if (qp->record->type == IBV_QPT_UC) {
        /* Dropped silently up to the next message (verbs.md §3.10), which uses the receive that was taken. */
        qp->record->responder.message = MESSAGE_DISCARD;
        fault_forget(qp);
        return;
    }
    qp->ports->raise_event(qp, event);
    responder_fail(qp, psn, (uint8_t)verdict_nak_code(verdict));
}

/* The receive of the message completes in error, and the QP enters ERR (verbs.md §3.10). */
static bool fail_receive(struct request *request, enum verdict verdict)
{
    struct transport_qp *qp = request->qp;
    struct receive_completion completion = {
        .verdict = verdict,
        .opcode = request->properties & OPCODE_WRITE ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
    };

    fault_receive(qp, request->packet, verdict, request->length);
    finish_receive(qp, &completion);
    if (is_reliable(qp->record)) {
        responder_fail(qp, request->packet->psn, (uint8_t)verdict_nak_code(verdict));
    } else {
        qp->record->responder.message = MESSAGE_DISCARD;
        qp->ports->responder_failed(qp);
    }
    return false;
}

static bool reject(struct request *request, enum verdict verdict, enum ibv_event_type event)
{
    responder_violation(request->qp, request->packet->psn, verdict, event);
    return false;
}

/* --- PSN ------------------------------------------------------------------------------------------ */

static cold_path bool rc_out_of_sequence(struct request *request, int32_t distance)
{
    struct responder *responder = &request->qp->record->responder;

    if (distance < 0) {
        responder->duplicates++;
        if (!relay_duplicate(request->qp, request->packet, request->properties))
            responder_repeat(request->qp, request->packet, request->properties);
    } else if (!relay_postpones_gap(request->qp)) {
        /* A second NAK for the same gap. Lossy link: the packet behind the missing one has come twice, so the
         * requester has repeated both and the missing one was lost again; without this NAK the requester's timer
         * would have to expire. Link that loses nothing: the requester begins here (PACKET_BEGINS), so the missing
         * packet never comes, and the two ends do not agree on the PSNs. */
        bool again = request->qp->link.reliable ? (request->packet->syndrome & PACKET_BEGINS) != 0
                                                : distance == 1 && responder->nak_sent == NAK_OF_GAP;

        responder->drops++;
        if (responder->nak_sent == NAK_NONE || again) {
            responder->nak_sent = NAK_OF_GAP;
            responder->owed_syndrome = SYNDROME_NAK << 5 | NAK_SEQUENCE;
        }
    }
    return false;
}

/* UC: a gap ends the message that is being received; the next one resynchronises (verbs.md §3.10). */
static bool uc_check_psn(struct request *request)
{
    struct responder *responder = &request->qp->record->responder;
    bool begins = request->properties & (OPCODE_FIRST | OPCODE_ONLY);
    bool lost = !psn_equal(request->packet->psn, responder->expected_psn);

    responder->expected_psn = psn_add(request->packet->psn, 1);
    /* The acknowledgement ends the exposure of the peer's buffer, whatever becomes of the message. */
    if (request->packet->flags & PACKET_BY_REFERENCE)
        responder->ack_owed = ACK_OWED;
    if (begins) {
        responder->drops += responder->message != MESSAGE_NONE;
        responder->message = MESSAGE_NONE;
        return true;
    }
    if (lost)
        responder->message = MESSAGE_DISCARD;
    return responder->message != MESSAGE_DISCARD && responder->message != MESSAGE_NONE;
}

static inline bool check_psn(struct request *request)
{
    struct responder *responder = &request->qp->record->responder;
    int32_t distance;

    if (unlikely(request->qp->record->type == IBV_QPT_UC))
        return uc_check_psn(request);
    distance = psn_diff(request->packet->psn, responder->expected_psn);
    if (unlikely(distance))
        return rc_out_of_sequence(request, distance);
    return true;
}

/* --- opcode sequence ------------------------------------------------------------------------------ */

static bool sequence_error(struct request *request)
{
    /* UC gets here with a packet that continues another kind of message. */
    fault_request(request->qp, request->packet, FAULT_SEQUENCE, 0, 0);
    return reject(request, VERDICT_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
}

static inline bool check_sequence(struct request *request)
{
    bool begins = request->properties & (OPCODE_FIRST | OPCODE_ONLY);

    switch ((enum responder_message)request->qp->record->responder.message) {
    case MESSAGE_NONE:
        return begins || sequence_error(request);
    case MESSAGE_SEND:
        return (!begins && (request->properties & OPCODE_SEND)) || sequence_error(request);
    case MESSAGE_WRITE:
        return (!begins && (request->properties & OPCODE_WRITE)) || sequence_error(request);
    case MESSAGE_DISCARD:
        return false;
    }
    return false;
}

/* --- SRQ of XRC ----------------------------------------------------------------------------------- */

/* The SRQ decides which receives and which PD's memory the request may use (IBA A14). */
static inline bool check_srq(struct request *request)
{
    if (likely(request->qp->record->type != IBV_QPT_XRC_RECV) ||
        request->qp->ports->xrc->select_srq(request->qp, request->packet->srqn))
        return true;
    fault_request(request->qp, request->packet, FAULT_SRQ, request->packet->srqn, 0);
    return reject(request, VERDICT_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
}

/* --- receive -------------------------------------------------------------------------------------- */

static cold_path bool not_ready(struct request *request)
{
    struct responder *responder = &request->qp->record->responder;

    if (request->qp->record->type == IBV_QPT_UC) {
        responder->message = MESSAGE_DISCARD;
        return false;
    }
    /* Packets behind this one are out of sequence until it is repeated; they get no NAK. */
    request->qp->record->traffic.rnr_naks_sent++;
    responder->wanting_write = !!(request->properties & OPCODE_WRITE);
    responder->nak_sent = NAK_OF_PACKET;
    responder->owed_syndrome =
        (uint8_t)(SYNDROME_RNR << 5 | (request->qp->record->attributes.min_rnr_timer & 0x1f));
    return false;
}

/* The payload of a packet by reference cannot be fetched. */
static cold_path bool pull_failed(struct transport_qp *qp, int error)
{
    qp->record->responder.drops++;
    if (qp->record->type == IBV_QPT_UC) {
        qp->record->responder.message = MESSAGE_DISCARD;
        return false;
    }
    if (error == -ESRCH)
        return false; /* the peer is dead: as if the packet was lost */
    if (error == -ESTALE) {
        /* A QP of the peer process revoked its references. The reference epoch belongs to the lane, so this
         * voids the references of every QP that sends on it. If it was another QP than this one's peer, the
         * packet is repeated. Bytes that an RDMA WRITE has placed already are undefined until the message is
         * complete. */
        qp->record->responder.nak_sent = NAK_OF_PACKET;
        qp->record->responder.owed_syndrome = SYNDROME_NAK << 5 | NAK_SEQUENCE;
        return false;
    }
    /* The requester's memory cannot be read, an error that a link which copies would have found on the requester's
     * side. This side only reports it, by a NAK code that an RC responder has no other use for (complete.c). */
    qp->record->responder.nak_sent = NAK_OF_PACKET;
    qp->record->responder.owed_syndrome = SYNDROME_NAK << 5 | NAK_INVALID_RD;
    return false;
}

static inline bool take_receive(struct request *request)
{
    struct transport_qp *qp = request->qp;
    int error;

    if (!(request->properties & OPCODE_NEEDS_RECEIVE) || unlikely(qp->current_receive != NULL))
        return true;
    if (unlikely(qp->tag_matching) && (request->properties & OPCODE_SEND))
        error = tagged_take(qp, request->packet, request->length, request->properties & OPCODE_ONLY);
    else
        error = qp->ports->take_receive(qp, &qp->current_receive);
    if (likely(!error))
        return true;
    qp->current_receive = NULL;
    return error == -ENOENT ? not_ready(request) : pull_failed(qp, error);
}

/* --- length --------------------------------------------------------------------------------------- */

/* Payload length; false: the packet contradicts itself. */
static inline bool measure(struct request *request)
{
    const struct packet *packet = request->packet;

    if (likely(!(packet->flags & PACKET_BY_REFERENCE))) {
        request->length = packet->payload_length;
        return packet->payload_length <= request->qp->link.mtu;
    }
    request->length = gather_referenced(packet);
    return request->length <= request->qp->link.reference_mtu;
}

/* On the network all packets of a message but the last must be full (IBA 9.7.2.1.3). A local peer may segment
 * messages as it likes, unless the two ends have different path MTUs: then a message must be one packet that
 * is no longer than the smaller one. */
static inline bool is_segmented_wrong(const struct request *request)
{
    if (likely(request->qp->link.local)) {
        uint32_t limit = responder_common_mtu(request->qp, request->packet);

        return unlikely(limit != UINT32_MAX) &&
               (!(request->properties & OPCODE_ONLY) || request->length > limit);
    }
    if (request->properties & (OPCODE_FIRST | OPCODE_MIDDLE))
        return request->length != request->qp->link.mtu;
    return (request->properties & OPCODE_LAST) && !request->length;
}

bool responder_is_segmented_wrong(const struct transport_qp *qp, const struct packet *packet,
                                  uint32_t properties)
{
    struct request request = {
        .qp = (struct transport_qp *)(uintptr_t)qp, .packet = packet, .properties = properties};

    return !measure(&request) || is_segmented_wrong(&request);
}

static bool begin_write(struct request *request)
{
    struct responder *responder = &request->qp->record->responder;

    responder->write_rkey = request->packet->rkey;
    responder->write_address = request->packet->address;
    responder->write_length = request->packet->dma_length;
    return responder->write_length <= LIMIT_MESSAGE;
}

static bool length_error(struct request *request)
{
    if (request->qp->current_receive && is_reliable(request->qp->record) &&
        (request->properties & OPCODE_NEEDS_RECEIVE))
        return fail_receive(request, VERDICT_LOCAL_LENGTH);
    fault_request(request->qp, request->packet, FAULT_MESSAGE_SHORT,
                  request->qp->record->responder.offset + request->length,
                  request->qp->record->responder.write_length);
    return reject(request, VERDICT_INVALID_REQUEST, IBV_EVENT_QP_ACCESS_ERR);
}

/* The message must be exactly as long as its RETH says. */
static inline bool check_write_length(struct request *request)
{
    struct responder *responder = &request->qp->record->responder;
    uint32_t left;

    if ((request->properties & (OPCODE_FIRST | OPCODE_ONLY)) && !begin_write(request))
        return length_error(request);
    left = responder->write_length - responder->offset;
    if (request->properties & (OPCODE_LAST | OPCODE_ONLY))
        return request->length == left || length_error(request);
    return request->length < left || length_error(request);
}

/* --- execution ------------------------------------------------------------------------------------ */

/* Fetches the payload of a packet by reference into place. spun_on: the program may poll the last byte, so the
 * last word is fetched into a variable first and stored after all others. */
static bool pull(struct request *request, struct gather *gather, bool spun_on)
{
    struct transport_qp *qp = request->qp;
    struct iovec *last = &gather->vector[gather->count - 1];
    size_t end = spun_on ? min_of(last->iov_len, sizeof(uint64_t)) : 0;
    char *place_of_end = (char *)last->iov_base + last->iov_len - end;
    struct iovec vector[GATHER_MAX + 1];
    unsigned char word[sizeof(uint64_t)];
    unsigned count = gather->count;
    int error;

    memcpy(vector, gather->vector, count * sizeof(*vector));
    if (end) {
        vector[count - 1].iov_len -= end;
        count -= !vector[count - 1].iov_len;
        vector[count++] = (struct iovec){.iov_base = word, .iov_len = end};
    }
    error = qp->ports->reference->pull(qp, request->packet, vector, count);
    if (likely(!error)) {
        place(place_of_end, word, end);
        return true;
    }
    return pull_failed(qp, error);
}

static bool deliver(struct request *request, struct gather *gather, bool spun_on)
{
    if (request->packet->flags & PACKET_BY_REFERENCE)
        return pull(request, gather, spun_on);
    gather_place(gather, request->packet->payload);
    return true;
}

/* at: offset in the receive. */
static bool place_send(struct request *request, uint32_t at)
{
    struct transport_qp *qp = request->qp;
    const struct recv_wqe *receive = qp->current_receive;
    struct gather gather;
    enum verdict verdict;

    if (unlikely(!request->length))
        return true;
    if (likely(receive->num_sge == 1 && !(request->packet->flags & PACKET_BY_REFERENCE))) {
        const struct wqe_sge *sge = receive->sge;
        struct memory_range range;

        if (unlikely(sge->length - at < request->length))
            return fail_receive(request, VERDICT_LOCAL_LENGTH);
        verdict = keys_check_local(qp->keys, qp->receive_pd, sge->lkey, sge->address + at, request->length,
                                   true, &range);
        if (unlikely(verdict != VERDICT_OK))
            return fail_receive(request, verdict);
        if (unlikely(!is_resident(qp, &range, 0, request->length, true)))
            return fail_receive(request, VERDICT_LOCAL_PROTECTION);
        if (likely(range.kind != KEY_REGION_NULL))
            place((char *)(uintptr_t)range.address, request->packet->payload, request->length);
        return true;
    }
    if (gather_length(receive->sge, receive->num_sge) - at < request->length)
        return fail_receive(request, VERDICT_LOCAL_LENGTH);
    verdict =
        gather_range(qp, receive->sge, receive->num_sge, qp->receive_pd, at, request->length, true, &gather);
    if (verdict != VERDICT_OK)
        return fail_receive(request, verdict);
    return deliver(request, &gather, false);
}

/* A tagged buffer receives the message without its tag matching header. */
static cold_path bool execute_tagged_send(struct request *request)
{
    struct packet_reference references[PACKET_REFERENCES];
    const struct tagged *tagged = &request->qp->tagged;
    uint32_t offset = request->qp->record->responder.offset, header = tagged->header;
    struct request rest = *request;
    struct packet packet;

    if (tagged->kind == TAGGED_RENDEZVOUS)
        return true;
    if (offset || !header)
        return place_send(request, offset - header);
    if (request->length < header) /* the packet was longer when it came for the first time */
        return reject(request, VERDICT_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
    rest.length = request->length - header;
    rest.packet = &packet;
    packet_slice(request->packet, header, rest.length, &packet, references);
    return place_send(&rest, 0);
}

static bool execute_send(struct request *request)
{
    if (unlikely(request->qp->tag_matching))
        return execute_tagged_send(request);
    return place_send(request, request->qp->record->responder.offset);
}

static cold_path bool write_violation(struct request *request, enum verdict verdict)
{
    struct transport_qp *qp = request->qp;
    const struct responder *responder = &qp->record->responder;
    const struct access access = {.pd = remote_pd(qp),
                                  .key = responder->write_rkey,
                                  .address = responder->write_address + responder->offset,
                                  .length = responder->write_length - responder->offset,
                                  .right = IBV_ACCESS_REMOTE_WRITE,
                                  .remote = true};

    fault_access(qp, request->packet, &access, verdict);
    /* With immediate data a receive reports it, as "local access" (verbs.md §3.10). */
    if (is_reliable(qp->record) && qp->current_receive && verdict == VERDICT_REMOTE_ACCESS)
        return fail_receive(request, VERDICT_LOCAL_ACCESS);
    return reject(request, verdict, IBV_EVENT_QP_ACCESS_ERR);
}

static bool execute_write(struct request *request)
{
    struct transport_qp *qp = request->qp;
    struct responder *responder = &qp->record->responder;
    struct memory_range range;
    struct gather gather;
    enum verdict verdict;

    /* The first packet checks the whole message. Every other packet checks the rest of it again, because the key may
     * have been withdrawn meanwhile. */
    verdict = keys_check_remote(qp->keys, remote_pd(qp), qp->record->attributes.access_flags,
                                responder->write_rkey, responder->write_address + responder->offset,
                                responder->write_length - responder->offset, REMOTE_WRITE, &range);
    if (unlikely(verdict != VERDICT_OK))
        return write_violation(request, verdict);
    if (!request->length)
        return true;
    if (unlikely(!is_resident(qp, &range, 0, request->length, true)))
        return write_violation(request, VERDICT_REMOTE_ACCESS);
    if (likely(!(request->packet->flags & PACKET_BY_REFERENCE))) {
        place((void *)(uintptr_t)range.address, request->packet->payload, request->length);
        return true;
    }
    gather.count = 1;
    gather.vector[0] =
        (struct iovec){.iov_base = (void *)(uintptr_t)range.address, .iov_len = request->length};
    return deliver(request, &gather, request->properties & (OPCODE_LAST | OPCODE_ONLY));
}

static cold_path bool invalidate(struct request *request)
{
    struct transport_qp *qp = request->qp;
    enum verdict verdict;

    qp->ports->lock_keys(qp);
    verdict = keys_invalidate(qp->keys, request->packet->invalidate_rkey, remote_pd(qp), true);
    qp->ports->unlock_keys(qp);
    return verdict == VERDICT_OK || fail_receive(request, verdict);
}

/* --- after execution ------------------------------------------------------------------------------ */

static inline void complete_receive(struct request *request)
{
    struct transport_qp *qp = request->qp;
    const struct packet *packet = request->packet;
    struct receive_completion completion = {
        .verdict = VERDICT_OK,
        .opcode = IBV_WC_RECV,
        .byte_len = qp->record->responder.offset + request->length,
        .src_qpn = qp->record->attributes.dest_qpn,
        .solicited = packet->flags & PACKET_SOLICITED,
    };

    if (request->properties & OPCODE_WRITE)
        completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    else
        completion.byte_len -= qp->tagged.header;
    if (request->properties & OPCODE_HAS_IMM) {
        completion.wc_flags = IBV_WC_WITH_IMM;
        completion.imm_or_rkey = packet->imm_data;
    } else if (request->properties & OPCODE_HAS_INVALIDATE) {
        completion.wc_flags = IBV_WC_WITH_INV;
        completion.imm_or_rkey = packet->invalidate_rkey;
    }
    finish_receive(qp, &completion);
}

static void advance(struct request *request)
{
    struct responder *responder = &request->qp->record->responder;

    if (likely(is_reliable(request->qp->record))) {
        responder_accepted(responder, 1);
        if (request->packet->flags & PACKET_ACK_REQUEST)
            responder_owe_ack(responder, request->packet->syndrome);
    }
    if (request->properties & (OPCODE_LAST | OPCODE_ONLY)) {
        traffic_add(&request->qp->record->traffic
                         .executed[request->properties & OPCODE_WRITE ? TRAFFIC_WRITE : TRAFFIC_SEND],
                    responder->offset + request->length);
        if (unlikely(request->qp->counts_remote) && (request->properties & OPCODE_WRITE))
            request->qp->ports->counter->executed(request->qp, false, responder->write_length);
        responder->message = MESSAGE_NONE;
        responder->offset = 0;
        responder->msn++;
    } else {
        responder->message = request->properties & OPCODE_SEND ? MESSAGE_SEND : MESSAGE_WRITE;
        responder->offset += request->length;
    }
}

static inline void communication_established(struct transport_qp *qp)
{
    if (likely(qp->record->responder.established))
        return;
    qp->record->responder.established = true;
    if (qp_state(qp) == IBV_QPS_RTR)
        qp->ports->raise_event(qp, IBV_EVENT_COMM_EST);
}

static void receive_message(struct request *request)
{
    struct transport_qp *qp = request->qp;
    bool ends = request->properties & (OPCODE_LAST | OPCODE_ONLY);

    if (request->properties & (OPCODE_FIRST | OPCODE_ONLY))
        qp->record->responder.offset = 0;
    if (unlikely(!measure(request) || is_segmented_wrong(request))) {
        fault_request(qp, request->packet, FAULT_PACKET_LENGTH, request->length,
                      responder_common_mtu(qp, request->packet));
        reject(request, VERDICT_INVALID_REQUEST, IBV_EVENT_QP_REQ_ERR);
        return;
    }
    if (!take_receive(request))
        return;
    if (request->properties & OPCODE_SEND) {
        if (!execute_send(request))
            return;
        if (unlikely(request->properties & OPCODE_HAS_INVALIDATE) && !invalidate(request))
            return;
    } else if (!check_write_length(request) || !execute_write(request)) {
        return;
    }
    if (ends && ((request->properties & OPCODE_SEND) || (request->properties & OPCODE_HAS_IMM)))
        complete_receive(request);
    advance(request);
    if (unlikely(qp->tagged.fetch_first != NULL))
        tagged_post(qp);
}

static void receive_rd_atomic(struct request *request)
{
    struct transport_qp *qp = request->qp;

    if (request->properties & OPCODE_READ)
        responder_enqueue_read(qp, request->packet);
    else if (request->properties & OPCODE_HAS_ATOMIC_ETH)
        responder_enqueue_atomic(qp, request->packet);
    else if (request->properties & OPCODE_FLUSH)
        responder_enqueue_flush(qp, request->packet);
    else
        responder_enqueue_atomic_write(qp, request->packet);
}

void responder_receive(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    struct request request = {.qp = qp, .packet = packet, .properties = properties};

    /* A READ, atomic or FLUSH request without PACKET_TOGETHER starts a new batch, also if it is a duplicate
     * or is forwarded to another process. */
    if (unlikely(properties & (OPCODE_READ | OPCODE_ATOMIC | OPCODE_FLUSH)) &&
        !(packet->syndrome & PACKET_TOGETHER))
        qp->record->responder.together = 0;
    if (unlikely(qp->record->responder.fails) || !check_psn(&request))
        return;
    communication_established(qp);
    if (unlikely(qp->relay.possible) && relay_request(qp, packet, properties))
        return;
    if (!check_sequence(&request) || !check_srq(&request))
        return;
    if (likely(properties & (OPCODE_SEND | OPCODE_WRITE)))
        receive_message(&request);
    else
        receive_rd_atomic(&request);
}

/* --- start and reset ------------------------------------------------------------------------------ */

void responder_start(struct transport_qp *qp)
{
    struct responder *responder = &qp->record->responder;
    uint32_t resources = responder->resources;

    *responder = (struct responder){
        .expected_psn = psn_make(qp->record->attributes.rq_psn),
        .resources = resources,
    };
    qp->current_receive = NULL;
    relay_reset(qp);
}

void responder_reset(struct transport_qp *qp)
{
    struct responder *responder = &qp->record->responder;
    uint32_t resources = responder->resources;

    *responder = (struct responder){.resources = resources};
    qp->current_receive = NULL;
    relay_reset(qp);
}
