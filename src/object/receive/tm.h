/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Tag matching SRQs (verbs.md §6.5): the list of tagged buffers (transport/tags.h), guarded by the SRQ's lock, and
 * the list operations, which are executed when they are posted. */
#ifndef OBJECT_RECEIVE_TM_H
#define OBJECT_RECEIVE_TM_H

#include "object/receive/srq.h"
#include "transport/qp.h"

/* attributes and tag_cap are updated with what was granted. */
int srq_create_tm(struct pd *pd, struct cq *cq, void *user_context, struct ibv_srq_attr *attributes,
                  struct ibv_tm_cap *tag_cap, struct srq **ret_srq);
/* Posts a list: 0 or -errno with *bad_op set; -EOPNOTSUPP: the SRQ has no tags. */
int srq_post_ops(struct srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad_op);

/* Functions of transport_tag_ports; a QP's lock is held. */
int tm_match(struct transport_qp *transport, uint64_t tag, struct tag_match *ret_match);
void tm_release(struct transport_qp *transport, struct tag_entry *entry);
void tm_discount(struct transport_qp *transport);

#endif
