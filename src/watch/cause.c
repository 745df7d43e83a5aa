/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Why a work request failed, as far as its status, the QP's attributes and the process's own MRs say it: the same
 * record that SoftHCA makes (rules/fault.h). What the other end knows, and what packets came, stays unknown. */
#include "watch/cause.h"
#include "base/sys.h"
#include "rules/fault.h"
#include "rules/verdict.h"
#include "watch/ring.h"
#include "watch/state.h"

/* A search among the MRs for the one that an SGE means. */
struct search {
    struct access access;
    struct fault_record fault;
    bool found; /* by its lkey; else what is in the fault is a guess */
};

static void look_at(void *value, void *argument)
{
    const struct watched *object = value;
    struct search *search = argument;
    struct fault_record fault = {.cause = FAULT_NONE};
    struct key_view view;

    if (search->found || object->kind != OBJECT_MR || is_stale(object) ||
        !keys_try_read(&segment_keys()->entry[object->number], &view) ||
        !fault_diagnose_one(&view, &search->access, &fault))
        return;
    search->found = view.lkey == search->access.key;
    search->fault = fault;
}

/* Is it clear that the adapter refuses this SGE? */
static bool is_refused(const struct wqe_sge *sge, uint32_t pd, uint32_t right, struct fault_record *fault)
{
    struct search search = {.access = {pd, sge->lkey, sge->length, sge->address, right, false},
                            .fault = {.cause = FAULT_KEY_UNKNOWN}};

    if (!sge->length)
        return false;
    lock_acquire(&watched_objects.lock);
    table_each(&watched_objects, look_at, &search);
    lock_release(&watched_objects.lock);
    /* Memory that is not there only the adapter knows. */
    if (search.fault.cause == FAULT_PAGES)
        return false;
    search.fault.wr_id = fault->wr_id;
    search.fault.side = fault->side;
    search.fault.opcode = fault->opcode;
    search.fault.key = sge->lkey;
    search.fault.address = sge->address;
    search.fault.length = sge->length;
    *fault = search.fault;
    return true;
}

/* An lkey that no known MR has may be of an MR that was not seen: another SGE goes first. */
static void find_local_cause(const struct wqe_sge *first, const struct wqe_sge *more, uint32_t count,
                             uint32_t pd, uint32_t right, struct fault_record *fault)
{
    struct fault_record unknown = {.cause = FAULT_NONE};

    for (uint32_t i = 0; i < count; i++) {
        struct fault_record found = *fault;

        if (!is_refused(i ? &more[i - 1] : first, pd, right, &found))
            continue;
        if (found.cause != FAULT_KEY_UNKNOWN) {
            *fault = found;
            return;
        }
        if (unknown.cause == FAULT_NONE)
            unknown = found;
    }
    if (unknown.cause != FAULT_NONE)
        *fault = unknown;
}

static bool is_read_or_atomic(uint32_t opcode)
{
    return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
           opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* FAULT_NONE: the status says all that is known. */
static enum fault_cause cause_of(const struct qp_record *record, enum ibv_wc_status status, uint32_t opcode,
                                 uint64_t *ret_value)
{
    switch (status) {
    case IBV_WC_REM_INV_REQ_ERR:
        *ret_value = NAK_INVALID_REQUEST;
        return FAULT_NAK;
    case IBV_WC_REM_ACCESS_ERR:
        *ret_value = NAK_REMOTE_ACCESS;
        return FAULT_NAK;
    case IBV_WC_REM_OP_ERR:
        *ret_value = NAK_REMOTE_OPERATION;
        return FAULT_NAK;
    case IBV_WC_RNR_RETRY_EXC_ERR:
        *ret_value = record->attributes.rnr_retry;
        return FAULT_NO_RECEIVE;
    case IBV_WC_RETRY_EXC_ERR:
        *ret_value = PATH_WIRE;
        return FAULT_SILENCE;
    case IBV_WC_LOC_QP_OP_ERR:
        return is_read_or_atomic(opcode) && !record->attributes.max_rd_atomic ? FAULT_READ_DEPTH : FAULT_NONE;
    case IBV_WC_SUCCESS:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_EEC_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_MW_BIND_ERR:
    case IBV_WC_BAD_RESP_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_LOC_RDD_VIOL_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_INV_EECN_ERR:
    case IBV_WC_INV_EEC_STATE_ERR:
    case IBV_WC_FATAL_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_GENERAL_ERR:
    case IBV_WC_TM_ERR:
    case IBV_WC_TM_RNDV_INCOMPLETE:
        break;
    }
    return FAULT_NONE;
}

/* note_failure() has set record->has_rare. */
static void keep(struct watched_qp *qp, const struct fault_record *found)
{
    if (found->cause == FAULT_NONE)
        return;
    qp->rare->fault = *found;
    __atomic_store_n(&qp->rare->fault.ns, sys_now(), __ATOMIC_RELEASE);
}

void cause_of_send(struct watched_qp *qp, const struct completion *completion,
                   const struct watched_send *send)
{
    struct qp_record *record = qp->record;
    const struct failure_record *failure = &qp->rare->failure;
    struct watched_rest *rest = send_rest(qp, send);
    uint32_t count = send->opcode & WATCHED_REST ? (uint32_t)rest->more_sges + 1 : 1;
    struct wqe_sge first = {send->address, send->length, send->lkey};
    struct fault_record found = {.wr_id = completion->wr_id,
                                 .side = FAULT_OF_REQUESTER,
                                 .opcode = failure->opcode,
                                 .key = failure->rkey,
                                 .address = failure->remote_address,
                                 .length = failure->length};

    /* Linux' rxe has LOC_QP_OP_ERR for most of the former's causes. */
    if ((completion->status == IBV_WC_LOC_PROT_ERR || completion->status == IBV_WC_LOC_QP_OP_ERR) &&
        !(send->send_flags & IBV_SEND_INLINE))
        find_local_cause(&first, rest_sges(rest), min_of(count, qp->send.max_sge), pd_number(qp->pd),
                         is_read_or_atomic(failure->opcode) ? IBV_ACCESS_LOCAL_WRITE : 0, &found);
    if (found.cause == FAULT_NONE && record->attributes.dest_qpn) {
        found.cause =
            (uint16_t)cause_of(record, (enum ibv_wc_status)completion->status, failure->opcode, &found.value);
        record->path.kind = PATH_WIRE;
    }
    keep(qp, &found);
}

void cause_of_receive(struct watched_qp *qp, const struct completion *completion, const struct recv_wqe *wqe)
{
    struct fault_record found = {.wr_id = completion->wr_id, .side = FAULT_OF_RECEIVE};

    if (completion->status != IBV_WC_LOC_PROT_ERR || !wqe->num_sge)
        return;
    find_local_cause(&wqe->sge[0], &wqe->sge[1], min_of(wqe->num_sge, qp->receive.max_sge), pd_number(qp->pd),
                     IBV_ACCESS_LOCAL_WRITE, &found);
    keep(qp, &found);
}
