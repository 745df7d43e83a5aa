/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Indirection tables: which WQ receives the packets of a hash value (verbs.md §7.3). A table never changes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/refusal.h"
#include "object/destroyed.h"
#include "object/ports.h"
#include "object/receive/wq.h"
#include "segment/provenance.h"

_Static_assert((LIMIT_IND_TABLE_SIZE & (LIMIT_IND_TABLE_SIZE - 1)) == 0, "sizes are powers of two");

static int check_create(const struct context *context, const struct ibv_rwq_ind_table_init_attr *attributes)
{
    if (attributes->comp_mask)
        return refuse_bits(-EINVAL, "comp_mask", BITS_PLAIN, attributes->comp_mask, 0);
    if (!attributes->ind_tbl)
        return refuse_null("ind_tbl");
    if (attributes->log_ind_tbl_size >= 32 || 1u << attributes->log_ind_tbl_size > LIMIT_IND_TABLE_SIZE)
        return refuse_range("log_ind_tbl_size", attributes->log_ind_tbl_size, 0,
                            31 - (unsigned)__builtin_clz(LIMIT_IND_TABLE_SIZE));
    for (uint32_t i = 0; i < 1u << attributes->log_ind_tbl_size; i++) {
        const struct ibv_wq *wq = attributes->ind_tbl[i];

        if (!wq)
            return refuse_null("an entry of ind_tbl");
        if (wq->context != &context->verbs.context)
            return refuse_elsewhere("an entry of ind_tbl");
    }
    return 0;
}

static void unuse_entries(struct ind_table *table, uint32_t count)
{
    while (count)
        wq_unuse(table->wqs[--count]);
}

/* Counts one use per entry: a table may contain a WQ several times. */
static int use_entries(struct ind_table *table, struct ibv_wq *const *wqs)
{
    for (uint32_t i = 0; i < table->count; i++) {
        int error;

        table->wqs[i] = wq_of(wqs[i]);
        error = wq_use(table->wqs[i]);
        if (error) {
            unuse_entries(table, i);
            return error;
        }
    }
    return 0;
}

static void publish(struct ind_table *table, uint64_t offset)
{
    struct ind_table_record *record = segment_ind_table(table->number);
    uint32_t *entries = segment_at(offset);

    for (uint32_t i = 0; i < table->count; i++)
        entries[i] = table->wqs[i]->number;
    table->record = record;
    memset(record, 0, sizeof(*record));
    record->context = table->context->number;
    record->entries = table->count;
    record->offset = offset;
    provenance_created(&record->provenance);
    atomic_store_explicit(&record->state, OBJECT_ALIVE, memory_order_release);
}

int ind_table_create(struct context *context, const struct ibv_rwq_ind_table_init_attr *attributes,
                     struct ind_table **ret_table)
{
    int error = context_is_inherited(context)
                    ? destroyed_refuse(DESTROYED_CONTEXT, context, "ibv_create_rwq_ind_table")
                    : check_create(context, attributes);
    struct ind_table *table;
    uint64_t offset;
    uint32_t count;

    if (error)
        return error;
    count = 1u << attributes->log_ind_tbl_size;
    table = calloc(1, sizeof(*table) + count * sizeof(table->wqs[0]));
    if (!table)
        return -ENOMEM;
    table->context = context;
    table->count = count;
    error = use_entries(table, attributes->ind_tbl);
    if (error)
        goto free_table;
    error = -ENOMEM;
    table->number = number_take(&pool_ind_tables);
    if (table->number == NO_OBJECT)
        goto unuse;
    offset = segment_allocate(count * sizeof(uint32_t));
    if (!offset)
        goto return_number;
    publish(table, offset);
    table->ibv.context = &context->verbs.context;
    table->ibv.ind_tbl_handle = table->ibv.ind_tbl_num = (int)table->number;
    *ret_table = table;
    return 0;

return_number:
    number_return(&pool_ind_tables, table->number);
unuse:
    unuse_entries(table, count);
free_table:
    free(table);
    return error;
}

int ind_table_destroy(struct ind_table *table)
{
    if (destroyed_has(DESTROYED_IND_TABLE, table, "ibv_destroy_rwq_ind_table"))
        return -EINVAL;
    if (context_is_inherited(table->context))
        return 0;
    if (atomic_load_explicit(&table->record->users, memory_order_relaxed))
        return busy_because(OBJECT_IND_TABLE, table->number);
    atomic_store_explicit(&table->record->state, OBJECT_FREE, memory_order_release);
    segment_release(table->record->offset, table->count * sizeof(uint32_t));
    number_return(&pool_ind_tables, table->number);
    unuse_entries(table, table->count);
    table->context = &destroyed_context;
    destroyed_keep(DESTROYED_IND_TABLE, table, table->number);
    return 0;
}
