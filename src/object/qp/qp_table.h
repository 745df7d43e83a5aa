/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QPs by number. Two levels: the block (high 16 bits) and the number in it. Entries are published with
 * release and read with acquire; neither level is ever freed, nor is a struct qp: its slot is reused (see
 * object/qp/qp.h). */
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

/* Has this process ever had a QP with a number of this block? Then the block is its own. */
static inline bool qp_table_has_block(uint32_t qpn)
{
    return atomic_load_explicit(&qp_table[(qpn >> 8) & (QP_TABLE_BLOCKS - 1)], memory_order_relaxed) != NULL;
}

int qp_table_insert(uint32_t qpn, struct qp *qp);
void qp_table_remove(uint32_t qpn);
/* In the child of a fork; its lock may have been held. */
void qp_table_after_fork_in_child(void);

#endif
