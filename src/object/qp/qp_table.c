/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The writers' side of the table of QPs by number. */
#include "object/qp/qp_table.h"

#include <errno.h>
#include <stdlib.h>

#include "base/lock.h"

_Atomic(_Atomic(struct qp *) *) qp_table[QP_TABLE_BLOCKS];

static struct lock writers = LOCK_INIT;

int qp_table_insert(uint32_t qpn, struct qp *qp)
{
    _Atomic(_Atomic(struct qp *) *) *entry = &qp_table[(qpn >> 8) & (QP_TABLE_BLOCKS - 1)];
    _Atomic(struct qp *) *block;

    lock_acquire(&writers);
    block = atomic_load_explicit(entry, memory_order_relaxed);
    if (!block) {
        block = calloc(QP_TABLE_BLOCK_SIZE, sizeof(*block));
        if (!block) {
            lock_release(&writers);
            return -ENOMEM;
        }
        atomic_store_explicit(entry, block, memory_order_release);
    }
    atomic_store_explicit(&block[qpn & (QP_TABLE_BLOCK_SIZE - 1)], qp, memory_order_release);
    lock_release(&writers);
    return 0;
}

void qp_table_remove(uint32_t qpn)
{
    _Atomic(struct qp *) *block =
        atomic_load_explicit(&qp_table[(qpn >> 8) & (QP_TABLE_BLOCKS - 1)], memory_order_relaxed);

    if (block)
        atomic_store_explicit(&block[qpn & (QP_TABLE_BLOCK_SIZE - 1)], NULL, memory_order_release);
}

void qp_table_after_fork_in_child(void)
{
    lock_init(&writers);
}
