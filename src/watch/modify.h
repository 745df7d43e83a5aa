/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef WATCH_MODIFY_H
#define WATCH_MODIFY_H

#include "watch/watch.h"

/* 0: not known. Else the error that the rules have for it, and its reason is noted (base/refusal.h). */
int modify_breaks_rules(const struct qp_record *record, struct ibv_qp *qp, const struct ibv_qp_attr *attr,
                        int mask);

#endif
