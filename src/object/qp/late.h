/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completions that a user makes come late (completion=delayed): the request or receive is executed at once, and its
 * completion is held here, with those behind it in the same queue, so that they stay in order. While a queue of the
 * QP has one, QP_LATE is set in qp.counted, and no request goes the straight way. The QP's lock is held. */
#ifndef OBJECT_QP_LATE_H
#define OBJECT_QP_LATE_H

#include "base/types.h"
#include "object/qp/comp_cntr.h"

struct cq;
struct cqe;
struct qp;

#define QP_LATE COUNTED_BIT(31) /* of qp.counted: no operation */

enum late_queue { LATE_SENDS, LATE_RECEIVES, LATE_QUEUES };

/* The completion of the work request with this counter, which is posted now, comes `delay` later. Without memory it
 * comes as any other. */
void late_mark(struct qp *qp, enum late_queue queue, uint32_t counter, ns_t delay);
/* The completion of the work request with this counter: true: it is held, and pushed later. Called if QP_LATE is
 * set. */
bool late_hold(struct qp *qp, enum late_queue queue, uint32_t counter, struct cq *cq, const struct cqe *cqe,
               bool solicited);
/* The QP is reset, or ends: nothing of it is held any more. */
void late_forget(struct qp *qp);
/* The time that object_ports.late_at() was given has come. No lock held. */
void late_due(void);

#endif
