/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Flow rules: from the argument of ibv_create_flow() to the rules that a frame matches (verbs.md §7.6). No
 * locks, no allocation, no knowledge of QPs. */
#ifndef STEERING_RULE_H
#define STEERING_RULE_H

#include "steering/frame.h"

#define RULE_COUNTERS_MAX 4u /* COUNT actions of one rule */

struct rule {
    enum ibv_flow_attr_type type;
    uint16_t priority;
    bool dont_trap, drops, tags;
    uint32_t tag;
    uint32_t layers; /* enum frame_layer that a frame must have */
    struct {
        struct ibv_flow_eth_filter eth;
        struct ibv_flow_ipv4_ext_filter ipv4;
        struct ibv_flow_ipv6_filter ipv6;
        struct ibv_flow_tcp_udp_filter ports;
    } value, mask; /* value: within its mask */
    unsigned counters_count;
    struct ibv_counters *counters[RULE_COUNTERS_MAX];
};

/* 0; -EINVAL: the structure contradicts itself or the contract; -EOPNOTSUPP: something that verbs has and we
 * have not. The attributes are the program's, of the length that they say. */
int rule_parse(const struct ibv_flow_attr *attributes, struct rule *ret_rule);

/* Order in which rules are tried: <0, 0, >0. NORMAL by priority, then MC_DEFAULT, then ALL_DEFAULT. */
int rule_compare(const struct rule *a, const struct rule *b);
/* Do both rules match the same frames at the same priority, so that only one receiver can get a frame? */
bool rule_excludes(const struct rule *a, const struct rule *b);
bool rule_matches(const struct rule *rule, const struct frame *frame);

/* Calls meet() for each rule of one port (in the order of rule_compare(), equal ones by creation) that gets
 * the frame. A sniffer gets every frame, without taking it from others. Of the other rules the first that
 * matches gets it; "don't trap" rules pass it on to rules further down; a multicast frame goes to all rules
 * of the same rank as that first one. A rule that drops also takes the frame. */
void rules_classify(const struct rule *(*rule_at)(void *argument, unsigned index), unsigned count,
                    const struct frame *frame, void (*meet)(void *argument, unsigned index), void *argument);

#endif
