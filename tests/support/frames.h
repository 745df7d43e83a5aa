/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Ethernet frames and flow rules for tests of RAW_PACKET QPs. Frames are sent by the near end and received by
 * the far one, which is another process where the path says so. That a frame is not received shows by one
 * that is sent after it: frames of one QP come in order.
 */
#ifndef TESTS_SUPPORT_FRAMES_H
#define TESTS_SUPPORT_FRAMES_H

#include "work.h"

enum { FRAMES_BUFFER = 65536, SLOT = 2048, MAC_LENGTH = 6 };

/* Locally administered, so nobody's; and a group. */
extern const uint8_t to_far[MAC_LENGTH], to_marker[MAC_LENGTH], from_near[MAC_LENGTH], to_group[MAC_LENGTH],
    every_bit[MAC_LENGTH];

struct rule {
    struct ibv_flow_attr attr;
    char specs[512];
    /* what came of it, where it was made */
    struct ibv_flow *flow;
    int error;
};

struct bytes {
    uint8_t at[1500];
    size_t length;
};

/* b has a rule for to_marker. */
struct two {
    struct end a, b;
    struct ibv_flow *marker;
};

/* Own CQ, near only: tags are read from an extended CQ. */
struct stand {
    struct ibv_cq_ex *cq;
    struct end end; /* sends */
};

struct seen {
    uint64_t id;
    uint32_t length, qp_num, tag;
    uint16_t vlan;
};

struct rule a_rule(enum ibv_flow_attr_type type, uint16_t priority);
void add_spec(struct rule *rule, const void *spec, uint16_t size);
struct rule with_eth(struct rule rule, const struct ibv_flow_eth_filter *val,
                     const struct ibv_flow_eth_filter *mask);
struct rule with_mac(struct rule rule, const uint8_t mac[MAC_LENGTH]);
struct rule for_mac(const uint8_t mac[MAC_LENGTH], uint16_t priority);
struct rule with_tag(struct rule rule, uint32_t tag);
struct rule with_drop(struct rule rule);
struct rule with_count(struct rule rule, struct ibv_counters *counters);
int try_steer(struct end *end, struct rule *rule);
struct ibv_flow *steer(struct end *end, struct rule rule);
void unsteer(struct end *end, struct ibv_flow *flow);
int try_destroy_qp(struct end *end);
struct bytes a_frame(const uint8_t to[MAC_LENGTH], uint8_t first);
struct bytes tagged(struct bytes frame, uint16_t tci);
struct bytes ipv4_frame(uint32_t source, uint32_t destination, uint8_t protocol, uint16_t source_port,
                        uint16_t destination_port);
struct bytes ipv6_frame(uint8_t source, uint8_t destination, uint8_t next, uint16_t source_port,
                        uint16_t destination_port);
void send_frame(struct end *from, const struct bytes *frame);
void post_slot(struct end *end, uint64_t slot);
void expect_bytes(struct end *end, uint64_t slot, const struct bytes *frame);
struct ibv_wc expect_frame(struct end *end, uint64_t slot, const struct bytes *frame);
void expect_nothing_before(struct end *near, struct end *far, uint64_t slot);
struct end_attr raw_attr(void);
void raw_to_rts(struct end *end);
void open_raw(struct end *end, struct side *side);
void two_open(struct two *two);
void two_close(struct two *two);
void stand_open(struct stand *stand);
void stand_close(struct stand *stand);
struct seen next_seen(struct stand *stand);
struct ibv_qp *qp_with_flags(struct stand *stand, uint32_t flags);
void post_on(struct ibv_qp *qp, struct stand *stand, uint64_t slot);
struct ibv_flow *flow_on(struct ibv_qp *qp, struct rule rule);
struct bytes with_fcs(struct bytes frame, const struct bytes *of);

#endif
