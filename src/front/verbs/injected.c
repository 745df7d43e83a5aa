/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "front/verbs/injected.h"

#include "engine/cm/agent_events.h"
#include "engine/core/faults.h"
#include "front/verbs/front.h"
#include "object/cq/cq.h"
#include "object/device/context.h"
#include "object/device/device.h"
#include "object/qp/late.h"
#include "object/qp/qp.h"
#include "object/receive/srq.h"
#include "rules/limits.h"
#include "segment/segment.h"

static const char *device_of(const struct ibv_context *context)
{
    return context && context->device ? context->device->name : "";
}

/* What a call is for. */
struct target {
    enum inject_call call;
    struct context *context; /* NULL: of ibv_open_device */
    struct qp *qp;           /* NULL: none */
    struct srq *srq;
    unsigned opcode; /* of a send */
};

static bool selects(const struct inject_rule *rule, const struct target *target)
{
    return inject_is_for_device(rule, target->context ? target->context->device->name : "") &&
           (!rule->qp || (target->qp && rule->qp == target->qp->order)) &&
           (!rule->opcodes || inject_is_for_opcode(rule, target->opcode));
}

/* One more of what the fault selects. */
static bool meets(struct inject_fault *fault, const struct target *target)
{
    struct inject_strike strike = {.fault = fault, .qpn = target->qp ? target->qp->ibv.qp_num : 0};

    if (!inject_select(fault, &(struct inject_point){.qp = target->qp ? target->qp->order : 0},
                       &strike.match))
        return false;
    faults_note(&strike);
    return true;
}

/* An event may end the device, and the call with it. */
static int error_of(const struct target *target)
{
    struct inject_plan *plan = inject_loaded();
    int error = 0;

    for (uint32_t i = 0; plan && i < plan->count; i++) {
        struct inject_fault *fault = plan->faults[i];
        const struct inject_rule *rule = &fault->rule;

        if (rule->kind == INJECT_EVENT && rule->at == target->call && selects(rule, target) &&
            meets(fault, target))
            injected_event(rule, target->context, target->qp, target->srq);
        if (rule->kind == INJECT_CM && rule->what == INJECT_DISCONNECTED && !rule->time &&
            rule->at == target->call && target->qp && selects(rule, target) && meets(fault, target))
            cm_agent_disconnect_qp(target->qp->ibv.qp_num);
        if (rule->kind == INJECT_CALL && rule->what == target->call && selects(rule, target) && !error &&
            meets(fault, target))
            error = rule->error;
    }
    faults_tell();
    if (!error && target->context && atomic_load_explicit(&target->context->fatal, memory_order_relaxed))
        error = EIO;
    return error ? -refuse(-error, REFUSAL_TOLD, "", 0, 0, 0) : 0;
}

int injected_error(enum inject_call call, const struct ibv_context *context)
{
    return error_of(&(struct target){
        call, context ? context_of((struct ibv_context *)(uintptr_t)context) : NULL, NULL, NULL, 0});
}

int injected_qp_error(enum inject_call call, const struct ibv_qp *qp, unsigned opcode)
{
    return error_of(
        &(struct target){call, context_of(qp->context), qp_of((struct ibv_qp *)(uintptr_t)qp), NULL, opcode});
}

/* --- limits ------------------------------------------------------------------------------------------------ */

/* The lowest limit, if a rule lowers it. */
static struct inject_fault *limit_of(enum inject_limit limit, const struct ibv_context *context)
{
    struct inject_plan *plan = inject_loaded();
    struct inject_fault *lowest = NULL;

    for (uint32_t i = 0; plan && i < plan->count; i++) {
        struct inject_fault *fault = plan->faults[i];

        if (fault->rule.kind == INJECT_LIMIT && fault->rule.what == limit &&
            inject_is_for_device(&fault->rule, device_of(context)) &&
            (!lowest || fault->rule.value < lowest->rule.value))
            lowest = fault;
    }
    return lowest;
}

/* As where the limits of the device are checked. */
static int errno_of(enum inject_limit limit)
{
    switch (limit) {
    case INJECT_MAX_QP:
    case INJECT_MAX_CQ:
    case INJECT_MAX_MR:
    case INJECT_MAX_PD:
    case INJECT_MAX_SRQ:
        return ENOMEM;
    case INJECT_MAX_QP_WR:
    case INJECT_MAX_SGE:
    case INJECT_MAX_INLINE:
    case INJECT_MAX_CQE:
    case INJECT_MAX_MR_SIZE:
    case INJECT_MAX_SRQ_WR:
    case INJECT_LIMITS:
        break;
    }
    return EINVAL;
}

int injected_limit(enum inject_limit limit, const struct ibv_context *context, uint64_t value)
{
    struct inject_fault *fault = limit_of(limit, context);
    struct inject_strike strike = {.fault = fault, .value = value};

    if (!fault)
        return 0;
    (void)inject_select(fault, &(struct inject_point){0}, &strike.match);
    if (value <= fault->rule.value)
        return 0;
    faults_note(&strike);
    faults_tell();
    return -refuse(-errno_of(limit), REFUSAL_TOLD, "", 0, 0, 0);
}

int injected_qp_limits(const struct ibv_context *context, const struct ibv_qp_cap *cap, bool has_srq)
{
    int error = injected_limit(INJECT_MAX_QP_WR, context, cap->max_send_wr);

    if (!error)
        error = injected_limit(INJECT_MAX_SGE, context, cap->max_send_sge);
    if (!error)
        error = injected_limit(INJECT_MAX_INLINE, context, cap->max_inline_data);
    if (!error && !has_srq)
        error = injected_limit(INJECT_MAX_QP_WR, context, cap->max_recv_wr);
    if (!error && !has_srq)
        error = injected_limit(INJECT_MAX_SGE, context, cap->max_recv_sge);
    return error ? error : injected_limit(INJECT_MAX_QP, context, number_used(&pool_qps) + 1ull);
}

static void lower(int *value, enum inject_limit limit, const struct ibv_context *context)
{
    const struct inject_fault *fault = limit_of(limit, context);

    if (fault && fault->rule.value < (uint64_t)*value)
        *value = (int)fault->rule.value;
}

void injected_device_attributes(const struct ibv_context *context, struct ibv_device_attr *attributes)
{
    const struct inject_fault *size = limit_of(INJECT_MAX_MR_SIZE, context);

    lower(&attributes->max_qp, INJECT_MAX_QP, context);
    lower(&attributes->max_qp_wr, INJECT_MAX_QP_WR, context);
    lower(&attributes->max_sge, INJECT_MAX_SGE, context);
    lower(&attributes->max_sge_rd, INJECT_MAX_SGE, context);
    lower(&attributes->max_cq, INJECT_MAX_CQ, context);
    lower(&attributes->max_cqe, INJECT_MAX_CQE, context);
    lower(&attributes->max_mr, INJECT_MAX_MR, context);
    lower(&attributes->max_pd, INJECT_MAX_PD, context);
    lower(&attributes->max_srq, INJECT_MAX_SRQ, context);
    lower(&attributes->max_srq_wr, INJECT_MAX_SRQ_WR, context);
    if (size && size->rule.value < attributes->max_mr_size)
        attributes->max_mr_size = size->rule.value;
}

/* --- completions ------------------------------------------------------------------------------------------- */

/* Another variant of the same key, which the owner has not given out. */
#define OTHER_KEY 0x80u

/* Can a request of this QP end so? What the parser cannot know. */
static bool may_end_so(const struct qp *qp, const struct send_wqe *wqe, enum inject_outcome outcome)
{
    const struct inject_outcome_row *row = &inject_outcomes_table[outcome];
    const struct qp_attributes *attributes = &qp->record->attributes;

    if (wqe->opcode >= 32 || !(row->sends >> wqe->opcode & 1) ||
        (row->needs_peer && !is_reliable(qp->record)))
        return false;
    if (outcome == OUTCOME_RETRY_EXC_ERR) /* 0 waits for ever (verbs.md §3.12) */
        return attributes->timeout != 0;
    if (outcome == OUTCOME_RNR_RETRY_EXC_ERR) /* 7 tries for ever */
        return attributes->rnr_retry != 7;
    if (outcome == OUTCOME_NEVER || outcome == OUTCOME_DELAYED)
        return wqe->flags & WQE_SIGNALED;
    return outcome != OUTCOME_LOC_PROT_ERR || (!(wqe->flags & WQE_INLINE) && wqe->length);
}

/* The counter of the WQE among the program's requests; of a batch of ibv_wr_*() none is posted yet. */
static uint32_t counter_of(const struct qp *qp, const struct send_wqe *wqe)
{
    const struct sender *sender = &qp->record->sender;
    uint32_t posted = atomic_load_explicit(&sender->posted, memory_order_relaxed);
    uint32_t slot = (uint32_t)(((const char *)wqe - qp->transport.send_queue) / qp->record->send_stride);

    return posted + ((slot - posted) & qp->transport.send_mask) - sender->own_posted;
}

static void change_send(struct qp *qp, struct send_wqe *wqe, const struct inject_rule *rule)
{
    enum inject_outcome outcome = (enum inject_outcome)rule->what;

    if (outcome == OUTCOME_DELAYED) {
        late_mark(qp, LATE_SENDS, counter_of(qp, wqe), rule->time);
        return;
    }
    if (outcome == OUTCOME_NEVER) {
        wqe->flags &= (uint8_t)~WQE_SIGNALED;
        qp->record->withheld_completions++;
        return;
    }
    if (outcome == OUTCOME_REM_ACCESS_ERR) {
        wqe->rkey ^= OTHER_KEY;
    } else {
        wqe->imm_or_rkey = inject_outcomes_table[outcome].verdict | (uint32_t)wqe->opcode << 8;
        wqe->opcode = WR_INJECTED;
    }
    if (!qp->injected)
        qp->injected_wr_id = wqe->wr_id;
    qp->injected = true;
}

/* The first fault that strikes decides. */
static struct inject_fault *completion_fault(const struct qp *qp, enum inject_side side,
                                             const struct send_wqe *wqe, uint64_t wr_id, uint32_t index)
{
    struct inject_plan *plan = inject_loaded();
    const struct inject_point point = {.qp = qp->order, .direction = side, .index = index + 1};

    for (uint32_t i = 0; plan && i < plan->count; i++) {
        struct inject_fault *fault = plan->faults[i];
        const struct inject_rule *rule = &fault->rule;
        struct inject_strike strike = {.fault = fault, .qpn = qp->ibv.qp_num, .wr_id = wr_id};

        if (rule->kind != INJECT_COMPLETION || rule->side != side || (rule->qp && rule->qp != qp->order) ||
            !inject_is_for_device(rule, device_of(qp->ibv.context)) ||
            (wqe && (!inject_is_for_opcode(rule, wqe->opcode) ||
                     !may_end_so(qp, wqe, (enum inject_outcome)rule->what))) ||
            !inject_select(fault, &point, &strike.match))
            continue;
        faults_note(&strike);
        return fault;
    }
    return NULL;
}

/* qp_alter_send */
static void alter_send(struct qp *qp, struct send_wqe *wqe)
{
    uint32_t posted = atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed);
    const struct inject_fault *fault = completion_fault(qp, INJECT_SEND, wqe, wqe->wr_id, posted);

    if (fault)
        change_send(qp, wqe, &fault->rule);
}

static void delay_receive(struct qp *qp, uint32_t counter, ns_t delay)
{
    lock_acquire(&qp->lock);
    late_mark(qp, LATE_RECEIVES, counter, delay);
    lock_release(&qp->lock);
}

/* As a program posts a receive that is too short, or that names a wrong key. */
static void change_receive(struct qp *qp, const struct inject_rule *rule, struct ibv_recv_wr *wr,
                           struct ibv_sge *list)
{
    for (int i = 0; i < wr->num_sge; i++) {
        list[i] = wr->sg_list[i];
        if (rule->what == OUTCOME_LOC_LEN_ERR)
            list[i].length = 0;
        else
            list[i].lkey ^= OTHER_KEY;
    }
    if (rule->what == OUTCOME_LOC_LEN_ERR)
        wr->num_sge = 0;
    wr->sg_list = list;
    lock_acquire(&qp->lock);
    if (!qp->injected)
        qp->injected_wr_id = wr->wr_id;
    qp->injected = true;
    lock_release(&qp->lock);
}

/* --- posts ------------------------------------------------------------------------------------------------- */

/* Each work request of the list counts; those before the one that fails are posted. */
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
    for (; wr; wr = wr->next) {
        struct ibv_send_wr one = *wr;
        int error = injected_qp_error(CALL_POST_SEND, qp, wr->opcode);

        one.next = NULL;
        if (!error)
            error = -qp_post_altered(qp_of(qp), &one, alter_send);
        faults_tell();
        if (error) {
            *bad_wr = wr;
            return positive(-error);
        }
    }
    return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    for (; wr; wr = wr->next) {
        uint32_t posted = atomic_load_explicit(&qp_of(qp)->record->receive.posted, memory_order_relaxed);
        struct ibv_recv_wr one = *wr, *ignored;
        struct ibv_sge list[LIMIT_SGE];
        const struct inject_fault *fault;
        int error = injected_qp_error(CALL_POST_RECV, qp, 0);

        one.next = NULL;
        fault = error || one.num_sge < 0 || one.num_sge > (int)LIMIT_SGE
                    ? NULL
                    : completion_fault(qp_of(qp), INJECT_RECEIVE, NULL, one.wr_id, posted);
        if (fault && fault->rule.what == OUTCOME_DELAYED)
            delay_receive(qp_of(qp), posted, fault->rule.time);
        else if (fault)
            change_receive(qp_of(qp), &fault->rule, &one, list);
        if (!error)
            error = -qp_post_recv(qp_of(qp), &one, &ignored);
        faults_tell();
        if (error) {
            *bad_wr = wr;
            return positive(-error);
        }
    }
    return 0;
}

/* No QP is known yet, which a fault selects and counts by. */
static void leave_out_srq(const struct ibv_srq *srq)
{
    struct inject_plan *plan = inject_loaded();

    for (uint32_t i = 0; plan && i < plan->count; i++) {
        struct inject_fault *fault = plan->faults[i];

        if (fault->rule.kind == INJECT_COMPLETION && fault->rule.side == INJECT_RECEIVE &&
            inject_is_for_device(&fault->rule, device_of(srq->context)))
            faults_leave_out(fault);
    }
    faults_tell();
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    leave_out_srq(srq);
    for (; wr; wr = wr->next) {
        struct ibv_recv_wr one = *wr, *ignored;
        int error =
            error_of(&(struct target){CALL_POST_SRQ_RECV, context_of(srq->context), NULL, srq_of(srq), 0});

        one.next = NULL;
        if (!error)
            error = -srq_post(srq_of(srq), &one, &ignored);
        if (error) {
            *bad_wr = wr;
            return positive(-error);
        }
    }
    return 0;
}

static int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    int error = injected_qp_error(CALL_BIND_MW, qp, 0);

    return error ? positive(-error) : front_bind_mw(qp, mw, bind);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    int error = injected_error(CALL_REQ_NOTIFY_CQ, cq->context);

    return error ? positive(-error) : front_req_notify_cq(cq, solicited_only);
}

/* The batch fails as a whole: nothing of it is posted. */
static int wr_complete(struct ibv_qp_ex *ex)
{
    struct qp *qp = qp_of(&ex->qp_base);
    int error = injected_qp_error(CALL_POST_SEND, &ex->qp_base, 0);

    if (error)
        qp_build_fail(qp, -error);
    else
        qp_build_alter(qp, alter_send);
    error = qp_build_complete(qp);
    faults_tell();
    return positive(error);
}

/* --- tables of operations ----------------------------------------------------------------------------------- */

/* Programs read these at any time, in inline functions of verbs.h. */
#define SET(place, function) __atomic_store_n(&(place), function, __ATOMIC_RELAXED)

static void set_ops(struct ibv_context_ops *to, const struct ibv_context_ops *from)
{
    SET(to->post_send, from->post_send);
    SET(to->post_recv, from->post_recv);
    SET(to->post_srq_recv, from->post_srq_recv);
    SET(to->bind_mw, from->bind_mw);
    SET(to->req_notify_cq, from->req_notify_cq);
}

void injected_fill_ops(struct verbs_context *verbs)
{
    static const struct ibv_context_ops ops = {.post_send = post_send,
                                               .post_recv = post_recv,
                                               .post_srq_recv = post_srq_recv,
                                               .bind_mw = bind_mw,
                                               .req_notify_cq = req_notify_cq};

    set_ops(&verbs->context.ops, &ops);
}

void injected_fill_wr_ops(struct ibv_qp_ex *qp)
{
    SET(qp->wr_complete, wr_complete);
}

static void change_qp(struct qp *qp, void *argument)
{
    lock_acquire(&qp->lock);
    if (qp->is_extended && atomic_load_explicit(&qp->record->qpn, memory_order_relaxed)) {
        if (inject_loaded())
            injected_fill_wr_ops(&qp->ex);
        else
            SET(qp->ex.wr_complete, front_wr_complete);
    }
    lock_release(&qp->lock);
}

void injected_changed(void)
{
    struct ibv_context_ops plain = {0};

    front_fill_context_ops(&plain);
    lock_acquire(&contexts_lock);
    list_for_each (node, &contexts) {
        struct context *context = list_entry(node, struct context, all);

        if (inject_loaded())
            injected_fill_ops(&context->verbs);
        else
            set_ops(&context->verbs.context.ops, &plain);
    }
    lock_release(&contexts_lock);
    qp_for_each(change_qp, NULL);
}
