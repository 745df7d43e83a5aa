/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Flow rules and their counters (verbs.md §7.6-7.7). */
#include "object/steering/flow.h"
#include "front/verbs/front.h"
#include "front/verbs/injected.h"

struct ibv_flow *front_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attributes)
{
    struct flow *flow;
    int result = injected(CALL_CREATE_FLOW, qp->context);

    if (result)
        return null_with(result);
    result = flow_create(qp_of(qp), attributes, &flow);

    return result < 0 ? null_with(result) : &flow->ibv;
}

int front_destroy_flow(struct ibv_flow *flow)
{
    return positive(flow_destroy(flow_of(flow)));
}

struct ibv_counters *front_create_counters(struct ibv_context *context,
                                           struct ibv_counters_init_attr *attributes)
{
    struct counters *counters;
    int result = counters_create(context_of(context), attributes, &counters);

    return result < 0 ? null_with(result) : &counters->ibv;
}

int front_destroy_counters(struct ibv_counters *counters)
{
    return positive(counters_destroy(counters_of(counters)));
}

int front_attach_counters_point_flow(struct ibv_counters *counters,
                                     struct ibv_counter_attach_attr *attributes, struct ibv_flow *flow)
{
    return positive(counters_attach(counters_of(counters), attributes, flow));
}

int front_read_counters(struct ibv_counters *counters, uint64_t *values, uint32_t count, uint32_t flags)
{
    return positive(counters_read(counters_of(counters), values, count, flags));
}
