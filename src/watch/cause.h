/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef WATCH_CAUSE_H
#define WATCH_CAUSE_H

#include "watch/watch.h"

/* Of the first completion of a QP in error, when it is in record->failure: notes the cause in record->fault, if there
 * is more to say than its status. cq->lock held. */
void cause_of_send(struct watched_qp *qp, const struct completion *completion,
                   const struct watched_send *send);
void cause_of_receive(struct watched_qp *qp, const struct completion *completion, const struct recv_wqe *wqe);

#endif
