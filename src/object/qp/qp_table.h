/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QPs by number, in two levels: the block (high 16 bits of the QPN) and the number in the block. Entries are
 * stored with release and loaded with acquire order. Neither level is ever freed, and neither is a struct qp
 * (object/qp/qp.h), so lookups take no lock. */
#ifndef OBJECT_QP_QP_TABLE_H
#define OBJECT_QP_QP_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"

struct qp;

#define QP_TABLE_BLOCKS     65536u
#define QP_TABLE_BLOCK_SIZE 256u

extern _Atomic(_Atomic(struct qp *) *) qp_table[QP_TABLE_BLOCKS];

static inline struct qp *qp_table_find(uint32_t qpn)
{
    _Atomic(struct qp *) *block =
        atomic_load_explicit(&qp_table[(qpn >> 8) & (QP_TABLE_BLOCKS - 1)], memory_order_acquire);

    return likely(block) ? atomic_load_explicit(&block[qpn & (QP_TABLE_BLOCK_SIZE - 1)], memory_order_acquire)
                         : NULL;
}

/* Has this process ever had a QP with a number of this block? Then the process owns the block. */
static inline bool qp_table_has_block(uint32_t qpn)
{
    return atomic_load_explicit(&qp_table[(qpn >> 8) & (QP_TABLE_BLOCKS - 1)], memory_order_relaxed) != NULL;
}

int qp_table_insert(uint32_t qpn, struct qp *qp);
void qp_table_remove(uint32_t qpn);
/* In the child of a fork: the lock may have been held by another thread. */
void qp_table_after_fork_in_child(void);

#endif
