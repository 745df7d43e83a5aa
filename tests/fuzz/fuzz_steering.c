/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A flow rule from verbs, and a frame from whoever sends one: the first byte says how long the rule is, the
 * next ones are it, the rest is the frame. */
#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "steering/rule.h"
#include "steering/toeplitz.h"

#define ROOM 1024u

static void check_rule(const struct rule *rule)
{
    const uint8_t *value = (const uint8_t *)&rule->value, *mask = (const uint8_t *)&rule->mask;

    require(rule->counters_count <= RULE_COUNTERS_MAX);
    require(rule_compare(rule, rule) == 0);
    for (size_t i = 0; i < sizeof(rule->value); i++)
        require(!(value[i] & ~mask[i]));
}

static void met(void *argument, unsigned index)
{
    *(unsigned *)argument += 1;
}

static const struct rule *the_rule;

static const struct rule *the_one(void *argument, unsigned index)
{
    return the_rule;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t key[TOEPLITZ_KEY_LENGTH] = {0x6d, 0x5a, 0x56, 0xda};
    union {
        struct ibv_flow_attr attr;
        uint8_t bytes[sizeof(struct ibv_flow_attr) + 256];
    } attributes;
    size_t length = size ? data[0] : 0;
    struct frame frame;
    struct rule rule;
    unsigned count = 0;
    int error;

    if (!size || size - 1 < length || length < sizeof(attributes.attr))
        return 0;
    memset(&attributes, 0, sizeof(attributes));
    memcpy(attributes.bytes, data + 1, length);
    attributes.attr.size = (uint16_t)length;
    if (length == sizeof(attributes.attr)) /* says nothing of what follows */
        attributes.attr.num_of_specs = 0;
    error = rule_parse(&attributes.attr, &rule);
    require(error == 0 || error == -EINVAL || error == -EOPNOTSUPP);
    if (!error)
        check_rule(&rule);
    if (!frame_dissect(data + 1 + length, size - 1 - length, &frame)) {
        require(size - 1 - length < ETHERNET_LENGTH);
        return 0;
    }
    require(!(frame.layers & FRAME_IPV4) || !(frame.layers & FRAME_IPV6));
    for (unsigned bit = 0; bit < 9; bit++)
        (void)toeplitz_of_frame(key, 1ull << bit, &frame);
    if (!error) {
        the_rule = &rule;
        rules_classify(the_one, 1, &frame, met, &count);
        require(count == rule_matches(&rule, &frame));
    }
    return 0;
}

static void add_input(fuzz_add *add, const void *rule, uint8_t rule_length, const void *frame,
                      size_t frame_length)
{
    uint8_t input[ROOM];

    input[0] = rule_length;
    memcpy(input + 1, rule, rule_length);
    memcpy(input + 1 + rule_length, frame, frame_length);
    add(input, 1u + rule_length + frame_length);
}

void fuzz_seeds(fuzz_add *add)
{
    static const uint8_t frame[] = {1, 0, 0x5e, 0, 0, 1,  2, 0, 0, 0, 0, 2,  0x81, 0, 0, 5,
                                    8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 9, 17, 0,    0, 1, 2,
                                    3, 4, 5,    6, 7, 8,  0, 1, 0, 2, 0, 8,  0,    0};
    struct {
        struct ibv_flow_attr attr;
        struct ibv_flow_spec_eth eth;
        struct ibv_flow_spec_ipv4_ext ipv4;
        struct ibv_flow_spec_tcp_udp udp;
        struct ibv_flow_spec_action_tag tag;
    } rule = {
        .attr = {.type = IBV_FLOW_ATTR_NORMAL, .num_of_specs = 4, .port = 1},
        .eth = {IBV_FLOW_SPEC_ETH, sizeof(rule.eth), {.dst_mac = {1}}, {.dst_mac = {255}}},
        .ipv4 = {IBV_FLOW_SPEC_IPV4_EXT, sizeof(rule.ipv4), {.proto = 17}, {.proto = 255}},
        .udp = {IBV_FLOW_SPEC_UDP, sizeof(rule.udp), {.dst_port = 0x200}, {.dst_port = 0xffff}},
        .tag = {IBV_FLOW_SPEC_ACTION_TAG, sizeof(rule.tag), 7},
    };

    for (int type = 0; type < 4; type++) {
        rule.attr.type = (enum ibv_flow_attr_type)type;
        rule.attr.num_of_specs = 4;
        add_input(add, &rule, sizeof(rule), frame, sizeof(frame));
        rule.attr.num_of_specs = 0;
        add_input(add, &rule, sizeof(rule.attr), frame, sizeof(frame));
    }
}
