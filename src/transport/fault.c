/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Why a QP fails, noted where the check is made that fails: in the QP's record, with the numbers of the request. The
 * first cause stays; the owner stamps it when the QP enters ERR. */
#include <string.h>

#include "transport/machine.h"
#include "wire/ipudp.h"

/* NULL: the QP has failed already. */
static struct fault_record *begin(struct transport_qp *qp, enum fault_side side, enum fault_cause cause)
{
    struct fault_record *fault = &qp_rare(qp)->fault;

    if (fault->ns)
        return NULL;
    *fault = (struct fault_record){.cause = (uint16_t)cause, .side = (uint8_t)side};
    return fault;
}

void fault_forget(struct transport_qp *qp)
{
    if (qp->record->has_rare && !qp->rare->fault.ns)
        qp->rare->fault.cause = FAULT_NONE;
}

static uint8_t opcode_of(const struct packet *packet)
{
    uint32_t properties = opcode_table[packet->opcode].properties;

    if (properties & OPCODE_SEND)
        return IBV_WR_SEND;
    if (properties & OPCODE_WRITE)
        return IBV_WR_RDMA_WRITE;
    if (properties & OPCODE_READ)
        return IBV_WR_RDMA_READ;
    if (properties & OPCODE_FLUSH)
        return WR_FLUSH;
    if (BTH_OPERATION(packet->opcode) == OP_FETCH_ADD)
        return IBV_WR_ATOMIC_FETCH_AND_ADD;
    return properties & OPCODE_HAS_ATOMIC_ETH ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_WRITE;
}

/* --- responder ------------------------------------------------------------------------------------------ */

cold_path void fault_request(struct transport_qp *qp, const struct packet *packet, enum fault_cause cause,
                             uint64_t value, uint64_t wanted)
{
    struct fault_record *fault = begin(qp, FAULT_OF_RESPONDER, cause);

    if (!fault)
        return;
    fault->opcode = opcode_of(packet);
    fault->key = packet->rkey;
    fault->address = packet->address;
    fault->length = packet->dma_length ? packet->dma_length : packet->payload_length;
    fault->value = value;
    fault->wanted = wanted;
}

cold_path void fault_access(struct transport_qp *qp, const struct packet *packet, const struct access *access,
                            enum verdict verdict)
{
    struct fault_record *fault = begin(qp, FAULT_OF_RESPONDER, FAULT_UNSPECIFIED);
    uint32_t missing = access->right & ~qp->record->attributes.access_flags;

    if (!fault)
        return;
    fault->opcode = opcode_of(packet);
    fault->verdict = (uint8_t)verdict;
    fault->key = access->key;
    fault->address = access->address;
    fault->length = access->length;
    if (verdict == VERDICT_INVALID_REQUEST && missing) {
        fault->cause = FAULT_QP_ACCESS;
        fault->wanted = missing;
    } else if (verdict == VERDICT_INVALID_REQUEST) {
        fault->cause = FAULT_ATOMIC_ALIGNMENT;
    } else {
        fault_diagnose(qp->keys, access, fault);
    }
}

cold_path void fault_response(struct transport_qp *qp, const struct responder_resource *resource,
                              enum verdict verdict)
{
    const struct packet packet = {.opcode = (uint8_t)(service_of(qp->record) | resource->operation)};
    const struct access access = {.pd = resource->pd,
                                  .key = resource->rkey,
                                  .address = resource->address,
                                  .length = resource->length,
                                  .right = opcode_of(&packet) == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
                                           : opcode_of(&packet) == IBV_WR_ATOMIC_WRITE
                                               ? IBV_ACCESS_REMOTE_WRITE
                                           : opcode_of(&packet) == WR_FLUSH ? 0
                                                                            : IBV_ACCESS_REMOTE_ATOMIC,
                                  .remote = true};

    fault_access(qp, &packet, &access, verdict);
}

/* The first SGE whose part of the message must not be accessed. */
static void diagnose_list(const struct transport_qp *qp, const struct wqe_sge *sge, uint32_t num_sge,
                          uint32_t pd, uint32_t length, bool write, struct fault_record *fault)
{
    struct memory_range range;

    for (; num_sge && (length || !write); num_sge--, sge++) {
        uint32_t part = write ? min_of(length, sge->length) : sge->length;
        const struct access access = {.pd = pd,
                                      .key = sge->lkey,
                                      .address = sge->address,
                                      .length = part,
                                      .right = write ? IBV_ACCESS_LOCAL_WRITE : 0};

        length -= part;
        if (keys_check_local(qp->keys, pd, sge->lkey, sge->address, part, write, &range) == VERDICT_OK)
            continue;
        fault->key = access.key;
        fault->address = access.address;
        fault->length = access.length;
        fault_diagnose(qp->keys, &access, fault);
        return;
    }
    fault->cause = FAULT_PAGES;
}

cold_path void fault_receive(struct transport_qp *qp, const struct packet *packet, enum verdict verdict,
                             uint32_t length)
{
    const struct recv_wqe *receive = qp->current_receive;
    struct fault_record *fault;

    if (qp_fault_cause(qp) != FAULT_NONE && !qp->rare->fault.ns) { /* WRITE with immediate: the access */
        qp->rare->fault.verdict = (uint8_t)verdict;
        return;
    }
    fault = begin(qp, FAULT_OF_RECEIVE, FAULT_UNSPECIFIED);
    if (!fault)
        return;
    fault->opcode = opcode_of(packet);
    fault->verdict = (uint8_t)verdict;
    fault->length = qp->record->responder.offset + length;
    if (!receive)
        return;
    fault->wr_id = receive->wr_id;
    fault->by_srq = qp->record->srq != UINT32_MAX;
    if (verdict == VERDICT_LOCAL_LENGTH && !(opcode_table[packet->opcode].properties & OPCODE_WRITE)) {
        fault->cause = FAULT_RECEIVE_SHORT;
        fault->value = fault->length;
        fault->wanted = gather_length(receive->sge, receive->num_sge);
    } else if (verdict == VERDICT_LOCAL_LENGTH) {
        fault->cause = FAULT_MESSAGE_SHORT;
        fault->value = fault->length;
        fault->wanted = qp->record->responder.write_length;
    } else if (verdict == VERDICT_LOCAL_PROTECTION) {
        diagnose_list(qp, receive->sge, receive->num_sge, qp->receive_pd, fault->length, true, fault);
    } else if (verdict == VERDICT_REMOTE_ACCESS) {
        fault->cause = FAULT_INVALIDATE;
        fault->key = packet->invalidate_rkey;
    }
}

cold_path void fault_datagram(struct transport_qp *qp, const struct recv_wqe *receive,
                              const struct packet *packet, enum verdict verdict)
{
    struct fault_record *fault = begin(qp, FAULT_OF_RECEIVE, FAULT_RECEIVE_SHORT);

    if (!fault)
        return;
    fault->wr_id = receive->wr_id;
    fault->opcode = IBV_WR_SEND;
    fault->verdict = (uint8_t)verdict;
    fault->by_srq = qp->record->srq != UINT32_MAX;
    fault->length = packet->payload_length;
    fault->value = GRH_AREA_LENGTH + packet->payload_length;
    fault->wanted = gather_length(receive->sge, receive->num_sge);
    if (verdict != VERDICT_LOCAL_LENGTH)
        diagnose_list(qp, receive->sge, receive->num_sge, qp->receive_pd, (uint32_t)fault->value, true,
                      fault);
}

/* --- requester ------------------------------------------------------------------------------------------ */

/* A bind or local invalidate: whichever of the two keys is wrong. */
static void diagnose_bind(const struct transport_qp *qp, struct send_wqe *wqe, struct fault_record *fault)
{
    const struct mw_bind *bind = send_wqe_body(wqe, IBV_QPT_RC);

    if (wqe->opcode != IBV_WR_BIND_MW) {
        fault->key = wqe->imm_or_rkey;
        fault->cause = FAULT_INVALIDATE;
        return;
    }
    const struct access access = {.pd = qp->record->pd,
                                  .key = bind->region_lkey,
                                  .address = bind->address,
                                  .length = (uint32_t)min_of(bind->length, (uint64_t)UINT32_MAX),
                                  .right = IBV_ACCESS_MW_BIND};

    fault->key = access.key;
    fault->address = access.address;
    fault->length = access.length;
    fault_diagnose(qp->keys, &access, fault);
    if (fault->cause == FAULT_PAGES) { /* the region permits it */
        struct mw_bind whole = *bind;

        whole.pd = qp->record->pd;
        fault->cause = FAULT_BIND;
        fault->value = keys_bind_fault(qp->keys, &whole, is_mw_of_type_2(qp, bind->mw_rkey));
    }
}

static void diagnose_send(struct transport_qp *qp, struct send_wqe *wqe, enum verdict verdict,
                          struct fault_record *fault)
{
    const struct qp_record *record = qp->record;
    uint8_t service = (uint8_t)record->type;

    switch (verdict) {
    case VERDICT_LOCAL_LENGTH:
        fault->cause = FAULT_LENGTH;
        fault->value = wqe->length;
        fault->wanted = wqe_is_atomic(wqe) || wqe->opcode == IBV_WR_ATOMIC_WRITE ? sizeof(uint64_t)
                        : service == IBV_QPT_UD         ? min_of(qp->link.mtu, LIMIT_UD_PAYLOAD)
                        : service == IBV_QPT_RAW_PACKET ? qp->link.mtu
                                                        : LIMIT_MESSAGE;
        return;
    case VERDICT_LOCAL_PROTECTION:
        if (!(wqe->flags & (WQE_INLINE | WQE_COPIED)))
            diagnose_list(qp, send_wqe_body(wqe, (enum ibv_qp_type)record->type), wqe->num_sge, record->pd,
                          wqe->length, wqe->opcode == IBV_WR_RDMA_READ || wqe_is_atomic(wqe), fault);
        if (fault->cause == FAULT_PAGES && goes_by_reference(wqe))
            fault->cause = FAULT_REFERENCE;
        return;
    case VERDICT_LOCAL_QP_OPERATION:
        fault->cause = awaits_response(wqe) ? FAULT_READ_DEPTH : FAULT_WORK_REQUEST;
        return;
    case VERDICT_MW_BIND:
        diagnose_bind(qp, wqe, fault);
        return;
    case VERDICT_INVALID_REQUEST:
    case VERDICT_REMOTE_ACCESS:
    case VERDICT_REMOTE_OPERATION:
        fault->cause = FAULT_NAK;
        fault->value = (uint64_t)verdict_nak_code(verdict);
        return;
    case VERDICT_RNR_RETRY_EXCEEDED:
        fault->cause = FAULT_NO_RECEIVE;
        fault->value = record->attributes.rnr_retry;
        return;
    case VERDICT_RETRY_EXCEEDED:
        fault->cause =
            record->sender.sequence_naks && record->sender.unacked_psn.value == record->attributes.sq_psn
                ? FAULT_PSN
                : FAULT_SILENCE;
        fault->value = record->path.kind;
        fault->wanted = (uint32_t)record->path.peer_pid;
        return;
    case VERDICT_BAD_RESPONSE:
        fault->cause = FAULT_RESPONSE;
        return;
    case VERDICT_OK:
    case VERDICT_LOCAL_ACCESS:
    case VERDICT_RECEIVER_NOT_READY:
    case VERDICT_FLUSHED:
    case VERDICT_FATAL:
    case VERDICT_RENDEZVOUS_INCOMPLETE:
    case VERDICT_TAG:
    case VERDICT_COUNT:
        return;
    }
}

cold_path void fault_send(struct transport_qp *qp, struct send_wqe *wqe, enum verdict verdict)
{
    struct fault_record *fault = begin(qp, FAULT_OF_REQUESTER, FAULT_UNSPECIFIED);

    if (!fault)
        return;
    fault->wr_id = wqe->wr_id;
    fault->opcode = wqe_posted_opcode(wqe);
    fault->verdict = (uint8_t)verdict;
    fault->length = wqe->length;
    fault->key = wqe->rkey;
    fault->address = wqe->remote_address;
    if (wqe->opcode == WR_INJECTED)
        fault->cause = FAULT_INJECTED;
    else
        diagnose_send(qp, wqe, verdict, fault);
}
