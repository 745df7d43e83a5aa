/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Flow rules of this process, their counters, and steering frames to RAW_PACKET QPs (verbs.md §7.4-7.7). The engine
 * supplies the frames. */
#ifndef OBJECT_STEERING_FLOW_H
#define OBJECT_STEERING_FLOW_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/verbs.h"
#include "object/qp/qp.h"
#include "steering/rule.h"

#define FRAME_LENGTH_MAX 8192u /* without FCS */

struct device;

struct counters {
    struct ibv_counters ibv;
    struct context *context;
    uint32_t item;
    uint32_t bound; /* how many flows use the counters; this and points under flows_lock */
    struct {
        enum ibv_counter_description description;
        uint32_t index;
    } points[16];
    unsigned points_count;
    uint32_t values_needed; /* the largest index plus one */
    _Atomic uint64_t packets, bytes;
};

static inline struct counters *counters_of(struct ibv_counters *counters)
{
    return container_of(counters, struct counters, ibv);
}

int counters_create(struct context *context, const struct ibv_counters_init_attr *attributes,
                    struct counters **ret_counters);
int counters_destroy(struct counters *counters); /* -EBUSY */
int counters_attach(struct counters *counters, const struct ibv_counter_attach_attr *attributes,
                    const struct ibv_flow *flow);
int counters_read(struct counters *counters, uint64_t *ret_values, uint32_t count, uint32_t flags);
/* flow.c; flows_lock held. */
int counters_bind(struct counters *counters);

struct flow {
    struct ibv_flow ibv;
    struct rule rule;
    struct qp *qp;
    uint32_t qpn, item;
};

static inline struct flow *flow_of(struct ibv_flow *flow)
{
    return container_of(flow, struct flow, ibv);
}

int flow_create(struct qp *qp, const struct ibv_flow_attr *attributes, struct flow **ret_flow);
int flow_destroy(struct flow *flow);
/* In the child of a fork. */
void flows_after_fork_in_child(void);

extern struct lock flows_lock; /* guards the table of rules, and bindings of counters; a leaf */
extern _Atomic uint32_t flow_count, sniffer_count;

/* Is there any rule? If not, callers need not prepare a frame for flows_deliver(). Any thread. */
static inline bool flows_exist(void)
{
    return atomic_load_explicit(&flow_count, memory_order_relaxed) != 0;
}
static inline bool sniffers_exist(void)
{
    return atomic_load_explicit(&sniffer_count, memory_order_relaxed) != 0;
}

/* Are there rules of this device? */
bool flows_on(const struct device *device);

struct steered {
    uint32_t ifindex; /* the interface that the frame was received or sent on */
    const uint8_t *bytes;
    uint32_t length;
    uint32_t src_qpn;  /* the sending QP if it is of this process, or 0 */
    bool only_sniffed; /* only sniffer rules apply */
};

/* Steers a frame to the QPs of matching rules; false: no rule matches. The bytes are a private copy. Inside a rundown
 * section, no lock held. */
bool flows_deliver(const struct steered *frame);

/* raw.c: delivers the frame to one QP. QP lock held. */
void raw_deliver(struct qp *qp, const struct steered *frame, const struct frame *fields, uint32_t flow_tag);

/* A frame as a receive queue takes it. */
struct arrival {
    const uint8_t *bytes;
    uint32_t length;
    uint32_t flow_tag;
    uint16_t vlan;
};

#endif
