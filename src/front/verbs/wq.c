/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Receive work queues and indirection tables (verbs.md §7.1-7.3). */
#include "object/receive/wq.h"
#include "front/verbs/front.h"
#include "front/verbs/injected.h"

/* Called through the function pointer in struct ibv_wq. */
static int post_recv(struct ibv_wq *wq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
    return front_positive("post_wq_recv", wq_post(wq_of(wq), wr, bad_wr));
}

struct ibv_wq *front_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *attributes)
{
    struct wq *wq;
    int result = injected(CALL_CREATE_WQ, context);

    if (result)
        return null_with(result);
    result = wq_create(context_of(context), attributes, &wq);

    if (result < 0)
        return null_with(result);
    wq->ibv.post_recv = post_recv;
    return &wq->ibv;
}

int front_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *attributes)
{
    int error = injected(CALL_MODIFY_WQ, wq->context);

    return positive(error ? -error : wq_modify(wq_of(wq), attributes));
}

int front_destroy_wq(struct ibv_wq *wq)
{
    return positive(wq_destroy(wq_of(wq)));
}

struct ibv_rwq_ind_table *front_create_rwq_ind_table(struct ibv_context *context,
                                                     struct ibv_rwq_ind_table_init_attr *attributes)
{
    struct ind_table *table;
    int result = ind_table_create(context_of(context), attributes, &table);

    return result < 0 ? null_with(result) : &table->ibv;
}

int front_destroy_rwq_ind_table(struct ibv_rwq_ind_table *table)
{
    return positive(ind_table_destroy(ind_table_of(table)));
}
