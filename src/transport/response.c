/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the responder owes -> packets, in PSN order: responses to READ, atomic and FLUSH requests, then a NAK or an
 * acknowledgement, which acknowledges the responses before it too (IBA 9.7.5.1.2). Atomics and FLUSH are executed
 * here, when their response is due, so that all requests before them are executed (rd_atomic.c queues them). */
#include <errno.h>
#include <string.h>

#include "base/pkey.h"
#include "transport/cpu_atomic.h"
#include "transport/machine.h"
#include "transport/ordered_copy.h"

_Static_assert((int)ACK_AWAITED == (int)PACKET_AWAITED, "taken from the hints as it is");

struct slice {
    uint32_t packets, bytes; /* left */
};

/* --- packets -------------------------------------------------------------------------------------- */

static void fill_response(const struct transport_qp *qp, uint8_t operation, psn_t psn, struct packet *packet)
{
    const struct qp_record *record = qp->record;

    packet_clear(packet);
    /* UC acknowledges packets by reference (they expose memory); its service has no opcode for that, RC's is used. */
    packet->opcode = (uint8_t)((record->type == IBV_QPT_UC ? SERVICE_RC : service_of(record)) | operation);
    packet->pkey = DEFAULT_PKEY;
    packet->dest_qpn = record->attributes.dest_qpn;
    packet->src_qpn = atomic_load_explicit(&record->qpn, memory_order_relaxed);
    packet->psn = psn;
    packet->dest_ifindex = record->attributes.path.destination_ifindex;
    packet->syndrome = SYNDROME_ACK_NO_CREDITS;
    packet->msn = record->responder.msn & PSN_MASK;
}

/* 0 or -EAGAIN. A peer that does not exist (-EHOSTUNREACH) counts as sent: on a link that loses nothing the
 * requester's side learns that its link is down. */
static int send_response(struct transport_qp *qp, const struct packet *packet, const struct iovec *vector)
{
    int error = qp->ports->send(qp, packet, vector, vector ? 1 : 0, NULL);

    return error == -EAGAIN ? error : 0;
}

/* An acknowledgement or NAK. final: the QP will not send it again. */
static int send_control(struct transport_qp *qp, const struct packet *packet, bool final)
{
    if (!final || !qp->link.reliable)
        return send_response(qp, packet, NULL);
    qp->ports->send_notice(qp, packet);
    return 0;
}

static enum verdict check_read(const struct transport_qp *qp, const struct responder_resource *resource,
                               uint32_t length, struct memory_range *ret_range)
{
    return keys_check_remote(qp->keys, resource->pd, qp->record->attributes.access_flags, resource->rkey,
                             resource->address + resource->sent, length, REMOTE_READ, ret_range);
}

/* --- READ, atomic and FLUSH responses ------------------------------------------------------------- */

/* The request was valid when it came and is not any more (its key was withdrawn, or its memory unmapped). */
static int fail_response(struct transport_qp *qp, const struct responder_resource *resource,
                         enum verdict verdict)
{
    struct responder *responder = &qp->record->responder;

    fault_response(qp, resource, verdict);
    responder->resource_next = responder->resource_tail;
    responder->ack_owed = 0;
    qp->ports->raise_event(qp, IBV_EVENT_QP_ACCESS_ERR);
    responder->message = MESSAGE_DISCARD;
    responder->owed_syndrome = (uint8_t)(SYNDROME_NAK << 5 | verdict_nak_code(verdict));
    responder->owed_psn = psn_add(resource->first_psn, resource->sent / response_mtu(qp, resource));
    responder->fails = true;
    return 0;
}

/* A repeated READ, answered before: the requester may have had the answer, and then the QP must not end with it. If
 * it has not, the NAK ends the requester. */
static int refuse_repeated(struct transport_qp *qp, struct responder_resource *resource, enum verdict verdict)
{
    struct packet packet;
    int error;

    fill_response(qp, OP_ACKNOWLEDGE,
                  psn_add(resource->first_psn, resource->sent / response_mtu(qp, resource)), &packet);
    packet.syndrome = (uint8_t)(SYNDROME_NAK << 5 | verdict_nak_code(verdict));
    error = send_control(qp, &packet, false);
    if (!error)
        resource->responded = true;
    return error;
}

/* Sends one packet of a READ response. By reference, the requester fetches the bytes when the packet arrives: only it
 * knows whether the READ is still wanted and its buffer still registered. */
static int respond_to_read(struct transport_qp *qp, struct responder_resource *resource, struct slice *slice)
{
    uint32_t mtu = response_mtu(qp, resource), left = resource->end - resource->sent;
    uint32_t length = min_of(left, mtu);
    bool first = resource->fresh, last = length == left;
    struct packet_reference reference;
    struct memory_range range;
    struct packet packet;
    struct iovec vector;
    enum verdict verdict;
    int error;

    verdict = check_read(qp, resource, length, &range);
    if (verdict == VERDICT_OK && length && unlikely(!is_resident(qp, &range, 0, length, false)))
        verdict = VERDICT_REMOTE_ACCESS;
    if (unlikely(verdict != VERDICT_OK))
        return resource->repeated && !qp->link.reliable ? refuse_repeated(qp, resource, verdict)
                                                        : fail_response(qp, resource, verdict);
    fill_response(qp,
                  first  ? last ? OP_READ_RESPONSE_ONLY : OP_READ_RESPONSE_FIRST
                  : last ? OP_READ_RESPONSE_LAST
                         : OP_READ_RESPONSE_MIDDLE,
                  psn_add(resource->first_psn, resource->sent / mtu), &packet);
    packet.payload_length = length;
    if (resource->by_reference) {
        reference = (struct packet_reference){.address = range.address, .length = length, .slot = range.slot};
        packet.flags = PACKET_BY_REFERENCE;
        packet.reference = &reference;
        packet.reference_count = 1;
        error = send_response(qp, &packet, NULL);
    } else {
        vector = (struct iovec){.iov_base = (void *)(uintptr_t)range.address, .iov_len = length};
        error = send_response(qp, &packet, length ? &vector : NULL);
    }
    if (error)
        return error;
    resource->exposed = resource->by_reference;
    if (resource->exposed)
        note_exposed(qp);
    resource->fresh = false;
    resource->sent += length;
    resource->responded = last;
    if (last && !resource->repeated) {
        traffic_add(&qp->record->traffic.executed[TRAFFIC_READ], resource->end);
        if (unlikely(qp->counts_remote))
            qp->ports->counter->executed(qp, true, resource->end);
    }
    slice->packets--;
    if (!resource->by_reference)
        slice->bytes -= min_of(slice->bytes, length);
    return 0;
}

static uint64_t execute_atomic(const struct responder_resource *resource, uint64_t *target)
{
    if (resource->operation == OP_FETCH_ADD)
        return cpu_fetch_add(target, resource->atomic.swap_add);
    return cpu_compare_swap(target, resource->atomic.compare, resource->atomic.swap_add);
}

/* A response of one packet. */
static int send_only_response(struct transport_qp *qp, struct responder_resource *resource,
                              struct slice *slice, const struct packet *packet)
{
    int error = send_response(qp, packet, NULL);

    if (error)
        return error;
    resource->responded = true;
    slice->packets--;
    return 0;
}

static int respond_to_atomic(struct transport_qp *qp, struct responder_resource *resource,
                             struct slice *slice)
{
    struct packet packet;

    if (!resource->executed) {
        struct memory_range range;
        enum verdict verdict =
            keys_check_remote(qp->keys, resource->pd, qp->record->attributes.access_flags, resource->rkey,
                              resource->address, sizeof(uint64_t), REMOTE_ATOMIC, &range);

        if (verdict == VERDICT_OK && unlikely(!is_resident(qp, &range, 0, sizeof(uint64_t), true)))
            verdict = VERDICT_REMOTE_ACCESS;
        if (unlikely(verdict != VERDICT_OK))
            return fail_response(qp, resource, verdict);
        resource->original = execute_atomic(resource, (uint64_t *)(uintptr_t)range.address);
        resource->executed = true;
        traffic_add(&qp->record->traffic.executed[TRAFFIC_ATOMIC], sizeof(uint64_t));
    }
    fill_response(qp, OP_ATOMIC_ACKNOWLEDGE, resource->first_psn, &packet);
    packet.original = resource->original;
    return send_only_response(qp, resource, slice, &packet);
}

static enum verdict execute_atomic_write(const struct transport_qp *qp,
                                         const struct responder_resource *resource)
{
    struct memory_range range;
    enum verdict verdict = responder_check_atomic_write(qp, resource, &range);

    if (verdict != VERDICT_OK)
        return verdict;
    if (unlikely(!is_resident(qp, &range, 0, sizeof(uint64_t), true)))
        return VERDICT_REMOTE_ACCESS;
    place((void *)(uintptr_t)range.address, &resource->written, sizeof(uint64_t));
    return VERDICT_OK;
}

/* The requests before the FLUSH were executed by stores of this process, when they came. Memory is coherent for its
 * threads and for peers on this host, so the fence is all that is left to do. */
static enum verdict execute_flush(const struct transport_qp *qp, const struct responder_resource *resource)
{
    enum verdict verdict = responder_check_flush(qp, resource);

    atomic_thread_fence(memory_order_seq_cst);
    return verdict;
}

/* FLUSH and atomic write: the response says only that they were executed, a READ response without payload (IBA A19). */
static int respond_to_flush_or_write(struct transport_qp *qp, struct responder_resource *resource,
                                     struct slice *slice)
{
    struct packet packet;

    if (!resource->executed) {
        enum verdict verdict = resource->operation == OP_FLUSH ? execute_flush(qp, resource)
                                                               : execute_atomic_write(qp, resource);

        if (unlikely(verdict != VERDICT_OK))
            return fail_response(qp, resource, verdict);
        resource->executed = true;
        if (resource->operation == OP_FLUSH)
            traffic_add(&qp->record->traffic.executed[TRAFFIC_FLUSH], resource->length);
        else
            traffic_add(&qp->record->traffic.executed[TRAFFIC_ATOMIC_WRITE], sizeof(uint64_t));
    }
    fill_response(qp, OP_READ_RESPONSE_ONLY, resource->first_psn, &packet);
    return send_only_response(qp, resource, slice, &packet);
}

static int respond(struct transport_qp *qp, struct responder_resource *resource, struct slice *slice)
{
    if (resource->operation == OP_READ_REQUEST)
        return respond_to_read(qp, resource, slice);
    if (resource->operation == OP_FLUSH || resource->operation == OP_ATOMIC_WRITE)
        return respond_to_flush_or_write(qp, resource, slice);
    return respond_to_atomic(qp, resource, slice);
}

static psn_t nak_psn(const struct transport_qp *qp)
{
    const struct responder *responder = &qp->record->responder;

    if (responder->fails)
        return responder->owed_psn;
    return qp->relay.duplicate_lost ? qp->relay.lost_psn : responder_limit(qp);
}

static int send_nak(struct transport_qp *qp, bool final)
{
    struct responder *responder = &qp->record->responder;
    struct packet packet;
    int error;

    fill_response(qp, OP_ACKNOWLEDGE, nak_psn(qp), &packet);
    packet.syndrome = responder->owed_syndrome;
    error = send_control(qp, &packet, final);
    if (error)
        return error;
    if (responder->fails)
        responder->fatal_nak = responder->owed_syndrome;
    responder->owed_syndrome = 0;
    qp->relay.duplicate_lost = false;
    responder->ack_owed = 0; /* the NAK acknowledges all before it */
    responder->acks_owed = 0;
    return 0;
}

/* Acknowledges all PSNs before `limit`. */
static int send_ack(struct transport_qp *qp, psn_t limit, bool final)
{
    struct responder *responder = &qp->record->responder;
    struct packet packet;
    int error;

    fill_response(qp, OP_ACKNOWLEDGE, psn_add(limit, PSN_MASK), &packet);
    if (responder->ack_owed & ACK_AWAITED)
        packet.flags = PACKET_COMPLETES;
    error = send_control(qp, &packet, final);
    if (error)
        return error;
    responder->ack_owed = 0;
    responder->acks_owed = 0;
    return 0;
}

/* On links that may lose packets the requester's ACK timer runs, and no notice is needed. */
void responder_send_drop_notice(struct transport_qp *qp, psn_t psn, uint8_t why)
{
    struct packet packet;

    if (!qp->link.reliable)
        return;
    fill_response(qp, OP_ACKNOWLEDGE, psn, &packet);
    packet.flags = PACKET_DROPPED;
    packet.syndrome = why;
    qp->ports->send_notice(qp, &packet);
}

static struct responder_resource *next_pending(const struct transport_qp *qp)
{
    struct responder *responder = &qp->record->responder;

    for (; responder->resource_next != responder->resource_tail; responder->resource_next++) {
        struct responder_resource *resource = responder_resource_at(qp, responder->resource_next);

        if (!resource->responded)
            return resource;
    }
    return NULL;
}

bool responder_finish(struct transport_qp *qp)
{
    struct responder *responder = &qp->record->responder;
    const struct responder_resource *pending = next_pending(qp);

    if (responder->ack_owed && send_ack(qp, pending ? pending->first_psn : responder_limit(qp), true))
        return false;
    if (pending) {
        responder_send_drop_notice(qp, pending->first_psn, DROPPED_QP_ENDS);
        responder->resource_next = responder->resource_tail;
        responder->owed_syndrome = 0; /* of a request behind it */
    }
    return !responder->owed_syndrome || !send_nak(qp, true);
}

/* After the process has ended, nobody acknowledges a repeated request. If the last acknowledgement was lost, the
 * requester would end with RETRY_EXC_ERR, so it is sent this many times more. */
#define LAST_ACK_REPEATS 2

void responder_resend_last_ack(struct transport_qp *qp)
{
    bool serves = qp_state(qp) >= IBV_QPS_RTR && qp_state(qp) <= IBV_QPS_SQE;

    if (qp->link.reliable || !is_reliable(qp->record) || !serves || !qp->record->responder.established ||
        responder_owes(qp))
        return;
    for (unsigned i = 0; i < LAST_ACK_REPEATS; i++)
        (void)send_ack(qp, responder_limit(qp), false); /* no space: lost, as any packet may be */
}

bool responder_run(struct transport_qp *qp)
{
    struct responder *responder = &qp->record->responder;
    struct slice slice = {.packets = SLICE_PACKETS, .bytes = SLICE_BYTES};
    struct responder_resource *resource;

    if (unlikely(qp_state(qp) == IBV_QPS_ERR))
        return responder_finish(qp);
    while ((resource = next_pending(qp))) {
        if (!slice.packets || !slice.bytes)
            return true;
        if (respond(qp, resource, &slice))
            return false;
    }
    if (unlikely(qp->relay.retry != RELAY_RETRY_NONE))
        relay_settle(qp);
    if (unlikely(responder->owed_syndrome)) {
        if (send_nak(qp, false))
            return false;
        if (responder->fails)
            qp->ports->responder_failed(qp);
        return true;
    }
    return !responder->ack_owed || !send_ack(qp, responder_limit(qp), false);
}

void responder_flush(struct transport_qp *qp)
{
    struct receive_completion completion = {.verdict = VERDICT_FLUSHED, .opcode = IBV_WC_RECV};

    qp->record->responder.message = MESSAGE_DISCARD;
    if (qp->current_receive)
        finish_receive(qp, &completion);
    if (unlikely(qp->tag_matching))
        tagged_flush(qp);
}
