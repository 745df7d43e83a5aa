/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion counters (verbs.md §7.8). */
#include "object/qp/comp_cntr.h"

#include "front/verbs/front.h"
#include "front/verbs/newer.h"
#include "object/qp/qp.h"

struct caps { /* struct ibv_comp_cntr_caps */
    uint64_t max_value;
    uint32_t max_counters;
    uint32_t supported_qp_attach_ops;
};

enum type { TYPE_REQUESTS, TYPE_BYTES }; /* enum ibv_comp_cntr_type */

struct init_attributes { /* struct ibv_comp_cntr_init_attr */
    uint32_t comp_mask;
    enum type type;
    uint32_t flags;
};

struct attach_attributes { /* struct ibv_qp_attach_comp_cntr_attr */
    uint32_t comp_mask;
    uint32_t op_mask;
};

static struct comp_cntr *counter_of(struct ibv_comp_cntr *counter)
{
    return (struct comp_cntr *)counter;
}
_Static_assert(offsetof(struct comp_cntr, ibv) == 0, "the public structure is the first member");

VERBS_EXPORT int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps,
                                           size_t size)
{
    const struct caps ours = {
        .max_value = UINT64_MAX,
        .max_counters = LIMIT_COMP_CNTR,
        .supported_qp_attach_ops = COUNTED_ALL,
    };

    copy_sized(caps, size, &ours, sizeof(ours));
    return 0;
}

VERBS_EXPORT struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context,
                                                        struct ibv_comp_cntr_init_attr *attributes)
{
    const struct init_attributes *wanted = (const struct init_attributes *)attributes;
    struct comp_cntr *counter;
    int result;

    if (wanted->comp_mask || wanted->flags || wanted->type > TYPE_BYTES)
        return null_with(EOPNOTSUPP);
    result = comp_cntr_create(context_of(context), wanted->type == TYPE_BYTES, &counter);
    return result < 0 ? null_with(result) : (struct ibv_comp_cntr *)&counter->ibv;
}

VERBS_EXPORT int ibv_destroy_comp_cntr(struct ibv_comp_cntr *counter)
{
    return positive(comp_cntr_destroy(counter_of(counter)));
}

VERBS_EXPORT int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *counter,
                                         struct ibv_qp_attach_comp_cntr_attr *attributes)
{
    const struct attach_attributes *wanted = (const struct attach_attributes *)attributes;

    if (wanted->comp_mask)
        return positive(-EOPNOTSUPP);
    return positive(comp_cntr_attach(counter_of(counter), qp_of(qp), wanted->op_mask));
}

/* --- values --------------------------------------------------------------------------------------------- */

static int set(struct ibv_comp_cntr *counter, _Atomic uint64_t *value, uint64_t to)
{
    if (context_is_inherited(counter_of(counter)->context))
        return positive(-EIO);
    atomic_store_explicit(value, to, memory_order_relaxed);
    return 0;
}

static int increase(struct ibv_comp_cntr *counter, _Atomic uint64_t *value, uint64_t by)
{
    if (context_is_inherited(counter_of(counter)->context))
        return positive(-EIO);
    atomic_fetch_add_explicit(value, by, memory_order_relaxed);
    return 0;
}

static int read_value(struct ibv_comp_cntr *counter, const _Atomic uint64_t *value, uint64_t *ret_value)
{
    if (context_is_inherited(counter_of(counter)->context))
        return positive(-EIO);
    /* Acquire: who finds a peer's WRITE counted finds its bytes. */
    *ret_value = atomic_load_explicit(value, memory_order_acquire);
    return 0;
}

VERBS_EXPORT int ibv_set_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value)
{
    return set(counter, &counter_of(counter)->completed, value);
}

VERBS_EXPORT int ibv_set_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value)
{
    return set(counter, &counter_of(counter)->failed, value);
}

VERBS_EXPORT int ibv_inc_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount)
{
    return increase(counter, &counter_of(counter)->completed, amount);
}

VERBS_EXPORT int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount)
{
    return increase(counter, &counter_of(counter)->failed, amount);
}

VERBS_EXPORT int ibv_read_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *ret_value)
{
    return read_value(counter, &counter_of(counter)->completed, ret_value);
}

VERBS_EXPORT int ibv_read_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *ret_value)
{
    return read_value(counter, &counter_of(counter)->failed, ret_value);
}
