/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Faults that the user asks for, in calls of verbs: each creation, registration and modification asks here first. Posts
 * do not: where a fault names them, the tables of operations hold other functions. */
#ifndef FRONT_VERBS_INJECTED_H
#define FRONT_VERBS_INJECTED_H

#include "base/verbs.h"
#include "inject/plan.h"

/* A positive errno with which the call is to fail, or 0. */
int injected_error(enum inject_call call, const struct ibv_context *context);
/* The same of a call for a QP. opcode: of a send; else 0. */
int injected_qp_error(enum inject_call call, const struct ibv_qp *qp, unsigned opcode);
static inline int injected(enum inject_call call, const struct ibv_context *context)
{
    return __builtin_expect(inject_loaded() != NULL, 0) ? injected_error(call, context) : 0;
}

/* An event of a call for these: context, and where the event is for one, QP or SRQ. No lock held. */
struct context;
struct qp;
struct srq;
void injected_event(const struct inject_rule *rule, struct context *context, struct qp *qp, struct srq *srq);

/* The positive errno of a call that asks for more than a lowered limit, or 0. Worth asking if
 * inject_has(INJECT_LIMIT). */
int injected_limit(enum inject_limit limit, const struct ibv_context *context, uint64_t value);
/* The same of all limits of a QP. */
int injected_qp_limits(const struct ibv_context *context, const struct ibv_qp_cap *cap, bool has_srq);
/* Puts the lowered limits in place of the adapter's. */
void injected_device_attributes(const struct ibv_context *context, struct ibv_device_attr *attributes);

/* Operations that meet the faults, in place of front's. */
void injected_fill_ops(struct verbs_context *verbs);
void injected_fill_wr_ops(struct ibv_qp_ex *qp);
/* The plan has changed (faults_on_change()): the tables of open contexts and extended QPs follow. No lock held. */
void injected_changed(void);

#endif
