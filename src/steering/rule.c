/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "steering/rule.h"

#include "base/refusal.h"

#include <errno.h>
#include <string.h>

/* --- from verbs ----------------------------------------------------------------------------------- */

static void take_masked(void *value, void *mask, const void *from_value, const void *from_mask, size_t length)
{
    const uint8_t *values = from_value, *masks = from_mask;
    uint8_t *to_value = value, *to_mask = mask;

    for (size_t i = 0; i < length; i++) {
        to_mask[i] = masks[i];
        to_value[i] = values[i] & masks[i];
    }
}

#define TAKE(rule, layer, spec)                                                                              \
    take_masked(&(rule)->value.layer, &(rule)->mask.layer, &(spec)->val, &(spec)->mask, sizeof((spec)->val))

/* A layer that occurs twice in one rule, or beside one that excludes it, is invalid. */
static int need_layer(struct rule *rule, uint32_t layer, uint32_t excluded)
{
    if (rule->layers & layer)
        return refuse_because(-EINVAL, "two specs are of the same layer (IBV_FLOW_SPEC_...)");
    if (rule->layers & excluded)
        return refuse_because(-EINVAL, "two specs exclude each other: IPv4 and IPv6, or TCP and UDP");
    rule->layers |= layer;
    return 0;
}

static int parse_action(const struct ibv_flow_spec *spec, struct rule *rule)
{
    switch (spec->hdr.type) {
    case IBV_FLOW_SPEC_ACTION_TAG:
        if (spec->hdr.size != sizeof(spec->flow_tag) || rule->tags)
            return -EINVAL;
        rule->tags = true;
        rule->tag = spec->flow_tag.tag_id;
        return 0;
    case IBV_FLOW_SPEC_ACTION_DROP:
        if (spec->hdr.size != sizeof(spec->drop))
            return -EINVAL;
        rule->drops = true;
        return 0;
    case IBV_FLOW_SPEC_ACTION_COUNT:
        if (spec->hdr.size != sizeof(spec->flow_count) || !spec->flow_count.counters)
            return -EINVAL;
        if (rule->counters_count == RULE_COUNTERS_MAX)
            return -EOPNOTSUPP;
        rule->counters[rule->counters_count++] = spec->flow_count.counters;
        return 0;
    case IBV_FLOW_SPEC_ACTION_HANDLE:
    case IBV_FLOW_SPEC_ETH:
    case IBV_FLOW_SPEC_IPV4:
    case IBV_FLOW_SPEC_IPV6:
    case IBV_FLOW_SPEC_IPV4_EXT:
    case IBV_FLOW_SPEC_ESP:
    case IBV_FLOW_SPEC_TCP:
    case IBV_FLOW_SPEC_UDP:
    case IBV_FLOW_SPEC_VXLAN_TUNNEL:
    case IBV_FLOW_SPEC_GRE:
    case IBV_FLOW_SPEC_MPLS:
    case IBV_FLOW_SPEC_INNER:
        break;
    }
    return refuse_unsupported("type of a spec", spec->hdr.type);
}

static int parse_spec(const struct ibv_flow_spec *spec, struct rule *rule, bool *seen_eth)
{
    int error;

    switch (spec->hdr.type) {
    case IBV_FLOW_SPEC_ETH:
        if (spec->hdr.size != sizeof(spec->eth) || *seen_eth)
            return -EINVAL;
        *seen_eth = true;
        TAKE(rule, eth, &spec->eth);
        if (rule->mask.eth.vlan_tag)
            rule->layers |= FRAME_CVLAN;
        return 0;
    case IBV_FLOW_SPEC_IPV4:
        error = spec->hdr.size != sizeof(spec->ipv4) ? refuse_invalid("size of a spec", spec->hdr.size)
                                                     : need_layer(rule, FRAME_IPV4, FRAME_IPV6);
        if (!error)
            TAKE(rule, ipv4, &spec->ipv4); /* what the longer filter begins with */
        return error;
    case IBV_FLOW_SPEC_IPV4_EXT:
        error = spec->hdr.size != sizeof(spec->ipv4_ext) ? refuse_invalid("size of a spec", spec->hdr.size)
                                                         : need_layer(rule, FRAME_IPV4, FRAME_IPV6);
        if (!error)
            TAKE(rule, ipv4, &spec->ipv4_ext);
        return error;
    case IBV_FLOW_SPEC_IPV6:
        error = spec->hdr.size != sizeof(spec->ipv6) ? refuse_invalid("size of a spec", spec->hdr.size)
                                                     : need_layer(rule, FRAME_IPV6, FRAME_IPV4);
        if (!error)
            take_masked(&rule->value.ipv6, &rule->mask.ipv6, &spec->ipv6.val, &spec->ipv6.mask,
                        offsetof(struct ibv_flow_ipv6_filter, hop_limit) + 1); /* behind it is padding */
        return error;
    case IBV_FLOW_SPEC_TCP:
    case IBV_FLOW_SPEC_UDP:
        error = spec->hdr.size != sizeof(spec->tcp_udp) ? refuse_invalid("size of a spec", spec->hdr.size)
                : spec->hdr.type == IBV_FLOW_SPEC_TCP   ? need_layer(rule, FRAME_TCP, FRAME_UDP)
                                                        : need_layer(rule, FRAME_UDP, FRAME_TCP);
        if (!error)
            TAKE(rule, ports, &spec->tcp_udp);
        return error;
    case IBV_FLOW_SPEC_ESP:
    case IBV_FLOW_SPEC_VXLAN_TUNNEL:
    case IBV_FLOW_SPEC_GRE:
    case IBV_FLOW_SPEC_MPLS:
    case IBV_FLOW_SPEC_INNER:
        return refuse_unsupported("type of a spec", spec->hdr.type);
    case IBV_FLOW_SPEC_ACTION_TAG:
    case IBV_FLOW_SPEC_ACTION_DROP:
    case IBV_FLOW_SPEC_ACTION_HANDLE:
    case IBV_FLOW_SPEC_ACTION_COUNT:
        break;
    }
    return parse_action(spec, rule);
}

static int check_head(const struct ibv_flow_attr *attributes)
{
    const uint32_t known = IBV_FLOW_ATTR_FLAGS_DONT_TRAP | IBV_FLOW_ATTR_FLAGS_EGRESS | 1u;

    if (attributes->comp_mask)
        return refuse_bits(-EINVAL, "comp_mask", BITS_PLAIN, attributes->comp_mask, 0);
    if (attributes->port != 1)
        return refuse_range("port", attributes->port, 1, 1);
    if (attributes->size < sizeof(*attributes))
        return refuse_range("size", attributes->size, sizeof(*attributes), UINT16_MAX);
    if (attributes->flags & ~known)
        return refuse_bits(-EINVAL, "flags", BITS_FLOW_FLAGS, attributes->flags & ~known,
                           IBV_FLOW_ATTR_FLAGS_DONT_TRAP);
    if (attributes->flags & IBV_FLOW_ATTR_FLAGS_EGRESS)
        return refuse_unsupported("flags: IBV_FLOW_ATTR_FLAGS_EGRESS", attributes->flags);
    switch (attributes->type) {
    case IBV_FLOW_ATTR_NORMAL:
        return 0;
    case IBV_FLOW_ATTR_ALL_DEFAULT:
    case IBV_FLOW_ATTR_MC_DEFAULT:
        return attributes->flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP
                   ? refuse_because(-EINVAL, "flags has IBV_FLOW_ATTR_FLAGS_DONT_TRAP, which only "
                                             "IBV_FLOW_ATTR_NORMAL can have")
                   : 0;
    case IBV_FLOW_ATTR_SNIFFER:
        if (attributes->num_of_specs)
            return refuse_range("num_of_specs of a sniffer", attributes->num_of_specs, 0, 0);
        return attributes->flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP
                   ? refuse_because(-EINVAL, "flags has IBV_FLOW_ATTR_FLAGS_DONT_TRAP, which only "
                                             "IBV_FLOW_ATTR_NORMAL can have")
                   : 0;
    }
    return refuse_invalid("type", attributes->type);
}

static int refuse_size(const struct ibv_flow_attr *attributes)
{
    return refuse(-EINVAL, REFUSAL_SPECS, "size", attributes->size, attributes->num_of_specs, 0);
}

/* Some programs do not count the specs in attributes->size; any other value must be right. */
int rule_parse(const struct ibv_flow_attr *attributes, struct rule *rule)
{
    const char *at = (const char *)(attributes + 1);
    const char *end = (const char *)attributes + attributes->size;
    bool sized = attributes->size != sizeof(*attributes), seen_eth = false;
    int error = check_head(attributes);

    memset(rule, 0, sizeof(*rule));
    for (unsigned i = 0; !error && i < attributes->num_of_specs; i++) {
        struct ibv_flow_spec spec = {0};

        if (sized && (size_t)(end - at) < sizeof(spec.hdr))
            return refuse_size(attributes);
        memcpy(&spec.hdr, at, sizeof(spec.hdr));
        if (spec.hdr.size < sizeof(spec.hdr))
            return refuse_invalid("size of a spec", spec.hdr.size);
        if (sized && spec.hdr.size > (size_t)(end - at))
            return refuse_size(attributes);
        /* One of a longer kind than we know is refused by its type. */
        memcpy(&spec, at, spec.hdr.size < sizeof(spec) ? spec.hdr.size : sizeof(spec));
        at += spec.hdr.size;
        error = parse_spec(&spec, rule, &seen_eth);
    }
    if (error)
        return error;
    if (sized && at != end)
        return refuse_size(attributes);
    if (attributes->type != IBV_FLOW_ATTR_NORMAL && (seen_eth || rule->layers))
        return refuse_because(-EINVAL, "only a rule of type IBV_FLOW_ATTR_NORMAL has specs that filter");
    rule->type = attributes->type;
    rule->priority = attributes->type == IBV_FLOW_ATTR_NORMAL ? attributes->priority : 0;
    rule->dont_trap = attributes->flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
    return rule->drops && rule->dont_trap
               ? refuse_because(-EINVAL, "flags has IBV_FLOW_ATTR_FLAGS_DONT_TRAP, which a rule that drops "
                                         "cannot have")
               : 0;
}

/* --- matching ------------------------------------------------------------------------------------- */

static int rank(const struct rule *rule)
{
    switch (rule->type) {
    case IBV_FLOW_ATTR_SNIFFER:
        return 0;
    case IBV_FLOW_ATTR_NORMAL:
        return 1;
    case IBV_FLOW_ATTR_MC_DEFAULT:
        return 2;
    case IBV_FLOW_ATTR_ALL_DEFAULT:
        break;
    }
    return 3;
}

int rule_compare(const struct rule *a, const struct rule *b)
{
    return rank(a) != rank(b) ? rank(a) - rank(b) : (int)a->priority - (int)b->priority;
}

static bool is_for_multicast(const struct rule *rule)
{
    return rule->type == IBV_FLOW_ATTR_MC_DEFAULT ||
           (rule->type == IBV_FLOW_ATTR_NORMAL && (rule->value.eth.dst_mac[0] & 1));
}

bool rule_excludes(const struct rule *a, const struct rule *b)
{
    if (rule_compare(a, b) != 0 || a->type == IBV_FLOW_ATTR_SNIFFER || is_for_multicast(a) || a->dont_trap ||
        b->dont_trap)
        return false;
    return a->layers == b->layers && memcmp(&a->value, &b->value, sizeof(a->value)) == 0 &&
           memcmp(&a->mask, &b->mask, sizeof(a->mask)) == 0;
}

static bool agrees(const void *field, const void *value, const void *mask, size_t length)
{
    const uint8_t *fields = field, *values = value, *masks = mask;
    uint8_t difference = 0;

    for (size_t i = 0; i < length; i++)
        difference |= (fields[i] & masks[i]) ^ values[i];
    return !difference;
}

#define AGREES(rule, frame, layer)                                                                           \
    agrees(&(frame)->layer, &(rule)->value.layer, &(rule)->mask.layer, sizeof((frame)->layer))

bool rule_matches(const struct rule *rule, const struct frame *frame)
{
    if (rule->type == IBV_FLOW_ATTR_MC_DEFAULT)
        return frame_is_multicast(frame);
    if (rule->type != IBV_FLOW_ATTR_NORMAL)
        return true;
    /* Fields of a layer that the rule does not name have an empty mask. */
    return !(rule->layers & ~frame->layers) && AGREES(rule, frame, eth) && AGREES(rule, frame, ipv4) &&
           AGREES(rule, frame, ipv6) && AGREES(rule, frame, ports);
}

void rules_classify(const struct rule *(*rule_at)(void *argument, unsigned index), unsigned count,
                    const struct frame *frame, void (*meet)(void *argument, unsigned index), void *argument)
{
    const struct rule *trapped_by = NULL;

    for (unsigned i = 0; i < count; i++) {
        const struct rule *rule = rule_at(argument, i);

        if (!rule)
            continue; /* of another port */
        if (trapped_by && rule_compare(trapped_by, rule) != 0)
            return;
        if (!rule_matches(rule, frame))
            continue;
        meet(argument, i);
        if (rule->type == IBV_FLOW_ATTR_SNIFFER || rule->dont_trap)
            continue;
        if (!frame_is_multicast(frame))
            return;
        trapped_by = rule;
    }
}
