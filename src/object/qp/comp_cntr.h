/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion counters (verbs.md §7.8): how many requests, or bytes, a QP has completed, beside its CQs. */
#ifndef OBJECT_QP_COMP_CNTR_H
#define OBJECT_QP_COMP_CNTR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "object/device/context.h"

struct qp;

#define LIMIT_COMP_CNTR 65536u

/* Bits of ibv_qp_attach_comp_cntr_attr.op_mask, by number; the values are ABI. */
enum counted_operation {
    COUNTED_SEND,
    COUNTED_RECV,
    COUNTED_READ,
    COUNTED_REMOTE_READ,
    COUNTED_WRITE,
    COUNTED_REMOTE_WRITE,
    COUNTED_OPERATIONS
};
#define COUNTED_BIT(operation) (1u << (operation))
#define COUNTED_ALL            (COUNTED_BIT(COUNTED_OPERATIONS) - 1)
#define COUNTED_REMOTE         (COUNTED_BIT(COUNTED_REMOTE_READ) | COUNTED_BIT(COUNTED_REMOTE_WRITE))

struct comp_cntr {
    struct { /* struct ibv_comp_cntr */
        struct ibv_context *context;
        uint32_t handle;
    } ibv;
    struct context *context;
    bool of_bytes;
    _Atomic uint64_t completed, failed;
    _Atomic uint32_t attached; /* pairs of QP and operation */
};

/* -ENOMEM: LIMIT_COMP_CNTR exist. */
int comp_cntr_create(struct context *context, bool of_bytes, struct comp_cntr **ret_counter);
int comp_cntr_destroy(struct comp_cntr *counter); /* -EBUSY: attached to a QP */
/* -EOPNOTSUPP: the QP's type has no such operation; -EINVAL: its state is neither RESET nor INIT; -EBUSY: it has a
 * counter of one of them. */
int comp_cntr_attach(struct comp_cntr *counter, struct qp *qp, uint32_t operations);
/* The QP ends; nothing is counted any more. */
void comp_cntr_detach_all(struct qp *qp);

/* Counts one completion; the QP's lock is held, and the QP has a counter of that operation. */
void comp_cntr_count(struct comp_cntr *counter, bool succeeded, uint32_t bytes);

#endif
