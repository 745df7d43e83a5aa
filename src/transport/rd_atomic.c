/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* READ, atomic, atomic write and FLUSH requests: each takes a resource of the responder when it is accepted, by PSN.
 * response.c executes it and sends the response. The resource is kept for duplicates (IBA 9.4.4, 9.4.5) until another
 * request needs it. */
#include <string.h>

#include "rules/alias.h"
#include "transport/machine.h"

/* --- acceptance ----------------------------------------------------------------------------------- */

/* The counters are free-running, but `resources` is no power of two, so they must not overflow: subtracts a multiple
 * of it in time. */
static void wind_back(struct responder *responder)
{
    uint32_t rounds;

    if (likely(responder->resource_tail < UINT32_MAX / 2))
        return;
    rounds = responder->resource_head / responder->resources * responder->resources;
    responder->resource_head -= rounds;
    responder->resource_next -= rounds;
    responder->resource_tail -= rounds;
}

static bool make_space(struct transport_qp *qp)
{
    struct responder *responder = &qp->record->responder;
    const struct responder_resource *oldest = responder_resource_at(qp, responder->resource_head);

    if (responder->resource_tail - responder->resource_head != responder->resources)
        return true;
    if (!oldest->responded && !oldest->repeated)
        return false;
    if (responder->resource_next == responder->resource_head)
        responder->resource_next++;
    responder->resource_head++;
    return true;
}

/* Is this READ request the next part of the READ before it (window.c)? The parts count as one request. */
static bool is_next_part(const struct transport_qp *qp, const struct packet *packet)
{
    const struct responder *responder = &qp->record->responder;
    const struct responder_resource *before;
    uint32_t mtu = 128u << qp->record->attributes.path_mtu;

    if (BTH_OPERATION(packet->opcode) != OP_READ_REQUEST ||
        responder->resource_tail == responder->resource_head)
        return false;
    before = responder_resource_at(qp, responder->resource_tail - 1);
    return before->operation == OP_READ_REQUEST && before->rkey == packet->rkey &&
           before->address + before->length == packet->address && before->length >= READ_PART_MIN * mtu &&
           before->length % mtu == 0;
}

/* More requests in one batch (PACKET_TOGETHER) than the QP granted (max_dest_rd_atomic) are invalid, though each may
 * have had its response before the next was received. */
static bool is_one_too_many(struct transport_qp *qp, const struct packet *packet)
{
    struct responder *responder = &qp->record->responder;

    if (!responder->together || (!is_next_part(qp, packet) && responder->together != UINT8_MAX))
        responder->together++;
    return responder->together > responder->resources;
}

/* A free resource, or that of the oldest request whose response is sent. NULL: none, and the request is rejected. On
 * a link that loses nothing it is postponed instead: there requests overtake the responses that free the resources,
 * which a requester that keeps to the limit would not see on a network. */
static struct responder_resource *new_resource(struct transport_qp *qp, const struct packet *packet)
{
    struct responder *responder = &qp->record->responder;
    struct responder_resource *resource;
    bool refused;

    refused = is_one_too_many(qp, packet);
    if (!refused && !make_space(qp)) {
        if (qp->link.reliable) {
            relay_postpone(qp);
            return NULL;
        }
        refused = true;
    }
    if (refused) {
        fault_request(qp, packet, FAULT_TOO_MANY_READS, 0, responder->resources);
        responder_violation(qp, packet->psn, VERDICT_INVALID_REQUEST, IBV_EVENT_QP_ACCESS_ERR);
        return NULL;
    }
    wind_back(responder);
    resource = responder_resource_at(qp, responder->resource_tail);
    *resource = (struct responder_resource){
        .first_psn = packet->psn,
        .packets = 1,
        .fresh = true,
        .operation = BTH_OPERATION(packet->opcode),
        .rkey = packet->rkey,
        .pd = remote_pd(qp),
        .address = packet->address,
    };
    return resource;
}

static void enqueue(struct transport_qp *qp, const struct responder_resource *resource)
{
    struct responder *responder = &qp->record->responder;

    responder->resource_tail++;
    responder_accepted(responder, resource->packets);
    responder->msn++;
}

static cold_path void note_access(struct transport_qp *qp, const struct packet *packet,
                                  const struct responder_resource *resource, uint32_t right,
                                  enum verdict verdict)
{
    const struct access access = {.pd = resource->pd,
                                  .key = resource->rkey,
                                  .address = resource->address,
                                  .length = resource->length,
                                  .right = right,
                                  .remote = true};

    fault_access(qp, packet, &access, verdict);
}

void responder_enqueue_read(struct transport_qp *qp, const struct packet *packet)
{
    struct responder_resource *resource = new_resource(qp, packet);
    struct memory_range range;
    enum verdict verdict;

    if (!resource)
        return;
    resource->length = resource->end = packet->dma_length;
    if (packet->dma_length > LIMIT_MESSAGE) {
        fault_request(qp, packet, FAULT_LENGTH, packet->dma_length, LIMIT_MESSAGE);
        responder_violation(qp, packet->psn, VERDICT_INVALID_REQUEST, IBV_EVENT_QP_ACCESS_ERR);
        return;
    }
    /* A response without payload does not go by reference. */
    resource->by_reference =
        (packet->flags & PACKET_BY_REFERENCE) && qp->link.reference_mtu && packet->dma_length;
    /* The path MTUs of the two ends differ: responds in packets of the smaller one, which the requester finds
     * invalid, as it would on a network. */
    if (qp->link.local && unlikely((packet->syndrome & PACKET_BY_PATH_MTU) ||
                                   packet->dma_length > responder_common_mtu(qp, packet))) {
        resource->mtu = responder_asked_mtu(qp, packet);
        resource->by_reference = false;
    }
    resource->packets = packets_of(packet->dma_length, response_mtu(qp, resource));
    verdict = keys_check_remote(qp->keys, resource->pd, qp->record->attributes.access_flags, packet->rkey,
                                packet->address, packet->dma_length, REMOTE_READ, &range);
    if (verdict != VERDICT_OK) {
        note_access(qp, packet, resource, IBV_ACCESS_REMOTE_READ, verdict);
        responder_violation(qp, packet->psn, verdict, IBV_EVENT_QP_ACCESS_ERR);
        return;
    }
    enqueue(qp, resource);
}

void responder_enqueue_atomic(struct transport_qp *qp, const struct packet *packet)
{
    struct responder_resource *resource = new_resource(qp, packet);
    struct memory_range range;
    enum verdict verdict;

    if (!resource)
        return;
    resource->length = resource->end = sizeof(uint64_t);
    resource->atomic.compare = packet->compare;
    resource->atomic.swap_add = packet->swap_add;
    verdict = keys_check_remote(qp->keys, resource->pd, qp->record->attributes.access_flags, packet->rkey,
                                packet->address, sizeof(uint64_t), REMOTE_ATOMIC, &range);
    if (verdict != VERDICT_OK) {
        note_access(qp, packet, resource, IBV_ACCESS_REMOTE_ATOMIC, verdict);
        responder_violation(qp, packet->psn, verdict, IBV_EVENT_QP_ACCESS_ERR);
        return;
    }
    enqueue(qp, resource);
}

enum verdict responder_check_atomic_write(const struct transport_qp *qp,
                                          const struct responder_resource *resource,
                                          struct memory_range *ret_range)
{
    enum verdict verdict =
        keys_check_remote(qp->keys, resource->pd, qp->record->attributes.access_flags, resource->rkey,
                          resource->address, sizeof(uint64_t), REMOTE_WRITE, ret_range);

    /* The address in the request and the address in memory, as for the other atomics. */
    if (verdict == VERDICT_OK && ((resource->address | ret_range->address) & 7))
        return VERDICT_INVALID_REQUEST;
    return verdict;
}

void responder_enqueue_atomic_write(struct transport_qp *qp, const struct packet *packet)
{
    struct responder_resource *resource = new_resource(qp, packet);
    enum verdict verdict = VERDICT_INVALID_REQUEST;
    struct memory_range range;

    if (!resource)
        return;
    if (packet->dma_length == sizeof(uint64_t) && packet->payload_length == sizeof(uint64_t) &&
        !(packet->flags & PACKET_BY_REFERENCE)) {
        memcpy(&resource->written, packet->payload, sizeof(resource->written));
        verdict = responder_check_atomic_write(qp, resource, &range);
    }
    if (verdict != VERDICT_OK) {
        note_access(qp, packet, resource, IBV_ACCESS_REMOTE_WRITE, verdict);
        responder_violation(qp, packet->psn, verdict, IBV_EVENT_QP_ACCESS_ERR);
        return;
    }
    enqueue(qp, resource);
}

enum verdict responder_check_flush(const struct transport_qp *qp, const struct responder_resource *resource)
{
    return keys_check_flush(qp->keys, resource->pd, qp->record->attributes.access_flags, resource->rkey,
                            resource->address, resource->length, resource->flush & 0xf,
                            resource->flush >> FLUSH_LEVEL_SHIFT & 3);
}

void responder_enqueue_flush(struct transport_qp *qp, const struct packet *packet)
{
    struct responder_resource *resource = new_resource(qp, packet);
    enum verdict verdict;

    if (!resource)
        return;
    resource->length = packet->dma_length;
    resource->flush = packet->flush;
    verdict = responder_check_flush(qp, resource);
    if (verdict != VERDICT_OK) {
        note_access(qp, packet, resource, flush_access(packet->flush & FLUSH_TYPES), verdict);
        responder_violation(qp, packet->psn, verdict, IBV_EVENT_QP_ACCESS_ERR);
        return;
    }
    enqueue(qp, resource);
}

/* --- duplicates ----------------------------------------------------------------------------------- */

static struct responder_resource *find_resource(const struct transport_qp *qp, psn_t psn,
                                                uint32_t *ret_counter)
{
    const struct responder *responder = &qp->record->responder;

    /* The latest first: an older request of 2^24 PSNs ago may have the same PSN. */
    for (uint32_t i = responder->resource_tail; i != responder->resource_head; i--) {
        struct responder_resource *resource = responder_resource_at(qp, i - 1);

        if (psn_distance(resource->first_psn, psn) < resource->packets) {
            *ret_counter = i - 1;
            return resource;
        }
    }
    return NULL;
}

/* A duplicate READ may be for any part of the original one (IBA 9.4.4). */
static bool reposition_read(const struct transport_qp *qp, struct responder_resource *resource,
                            const struct packet *packet)
{
    uint64_t offset = (uint64_t)psn_distance(resource->first_psn, packet->psn) * response_mtu(qp, resource);

    if (packet->rkey != resource->rkey || packet->address != resource->address + offset ||
        offset + packet->dma_length > resource->length ||
        resource->by_reference != (packet->dma_length && (packet->flags & PACKET_BY_REFERENCE)))
        return false;
    resource->sent = (uint32_t)offset;
    resource->end = (uint32_t)offset + packet->dma_length;
    return true;
}

/* false: no response can be sent again. */
static bool repeat_response(struct transport_qp *qp, const struct packet *packet)
{
    struct responder *responder = &qp->record->responder;
    struct responder_resource *resource;
    uint32_t counter;

    if (!responder->resources)
        return false;
    resource = find_resource(qp, packet->psn, &counter);
    if (!resource || resource->operation != BTH_OPERATION(packet->opcode))
        return false; /* too old, or another request */
    if (resource->operation == OP_READ_REQUEST) {
        if (!reposition_read(qp, resource, packet))
            return false;
    } else if (packet->rkey != resource->rkey || packet->address != resource->address) {
        return false;
    }
    resource->repeated |= resource->responded;
    resource->responded = false;
    resource->fresh = true;
    /* Back to that request; those behind it have `responded` set and are skipped. */
    if (responder->resource_next - responder->resource_head > counter - responder->resource_head)
        responder->resource_next = counter;
    return true;
}

void responder_repeat(struct transport_qp *qp, const struct packet *packet, uint32_t properties)
{
    if (!(properties & (OPCODE_READ | OPCODE_ATOMIC | OPCODE_FLUSH)))
        qp->record->responder.ack_owed |= ACK_OWED; /* the acknowledgement was lost */
    else if (!repeat_response(qp, packet))
        responder_send_drop_notice(qp, packet->psn, DROPPED_DUPLICATE);
}

bool responder_clear_exposed(struct transport_qp *qp)
{
    const struct responder *responder = &qp->record->responder;
    bool exposed = false;

    for (uint32_t i = responder->resource_head; i != responder->resource_tail; i++) {
        exposed |= responder_resource_at(qp, i)->exposed;
        responder_resource_at(qp, i)->exposed = false;
    }
    return exposed;
}

/* Does the rkey name the key in this slot? An MW that was bound
 * again does not tell which region it named before, so it counts as any. */
static bool may_name(const struct transport_qp *qp, uint32_t rkey, uint32_t slot, bool mw)
{
    uint32_t named = key_alias_slot(qp->keys, rkey);
    const struct key_entry *entry = &qp->keys->entry[named];

    return named == slot || (!mw && entry->kind > KEY_REGION_NULL);
}

bool responder_exposes(const struct transport_qp *qp, uint32_t slot, bool mw, bool *ret_named)
{
    const struct responder *responder = &qp->record->responder;
    bool exposes = false;

    for (uint32_t i = responder->resource_head; i != responder->resource_tail; i++) {
        const struct responder_resource *resource = responder_resource_at(qp, i);

        if (!resource->exposed)
            continue;
        exposes = true;
        *ret_named = *ret_named || may_name(qp, resource->rkey, slot, mw);
    }
    return exposes;
}
