/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "frames.h"

#include <arpa/inet.h>

const uint8_t to_far[MAC_LENGTH] = {2, 0, 0, 0, 0, 1}, to_marker[MAC_LENGTH] = {2, 0, 0, 0, 0, 0xee},
              from_near[MAC_LENGTH] = {2, 0, 0, 0, 0, 2}, to_group[MAC_LENGTH] = {1, 0, 0x5e, 0, 0, 7},
              every_bit[MAC_LENGTH] = {255, 255, 255, 255, 255, 255};

/* --- rules, as values ----------------------------------------------------------------------------- */

struct rule a_rule(enum ibv_flow_attr_type type, uint16_t priority)
{
    return (struct rule){
        .attr = {.type = type, .size = sizeof(struct ibv_flow_attr), .priority = priority, .port = 1}};
}

void add_spec(struct rule *rule, const void *spec, uint16_t size)
{
    memcpy((char *)&rule->attr + rule->attr.size, spec, size);
    rule->attr.size = (uint16_t)(rule->attr.size + size);
    rule->attr.num_of_specs++;
}

struct rule with_eth(struct rule rule, const struct ibv_flow_eth_filter *val,
                     const struct ibv_flow_eth_filter *mask)
{
    struct ibv_flow_spec_eth eth = {
        .type = IBV_FLOW_SPEC_ETH, .size = sizeof eth, .val = *val, .mask = *mask};

    add_spec(&rule, &eth, sizeof eth);
    return rule;
}

struct rule with_mac(struct rule rule, const uint8_t mac[MAC_LENGTH])
{
    struct ibv_flow_eth_filter val = {0}, mask = {0};

    memcpy(val.dst_mac, mac, MAC_LENGTH);
    memcpy(mask.dst_mac, every_bit, MAC_LENGTH);
    return with_eth(rule, &val, &mask);
}

struct rule for_mac(const uint8_t mac[MAC_LENGTH], uint16_t priority)
{
    return with_mac(a_rule(IBV_FLOW_ATTR_NORMAL, priority), mac);
}

struct rule with_tag(struct rule rule, uint32_t tag)
{
    struct ibv_flow_spec_action_tag action = {IBV_FLOW_SPEC_ACTION_TAG, sizeof action, tag};

    add_spec(&rule, &action, sizeof action);
    return rule;
}

struct rule with_drop(struct rule rule)
{
    struct ibv_flow_spec_action_drop action = {IBV_FLOW_SPEC_ACTION_DROP, sizeof action};

    add_spec(&rule, &action, sizeof action);
    return rule;
}

struct rule with_count(struct rule rule, struct ibv_counters *counters)
{
    struct ibv_flow_spec_counter_action action = {IBV_FLOW_SPEC_ACTION_COUNT, sizeof action, counters};

    add_spec(&rule, &action, sizeof action);
    return rule;
}

static void create_flow_here(struct end *end, void *arg)
{
    struct rule *rule = arg;

    errno = 0;
    rule->flow = ibv_create_flow(end->qp, &rule->attr);
    rule->error = rule->flow ? 0 : errno;
}

int try_steer(struct end *end, struct rule *rule)
{
    AT(end, create_flow_here, rule);
    return rule->error;
}

struct ibv_flow *steer(struct end *end, struct rule rule)
{
    CHECK(!try_steer(end, &rule), "ibv_create_flow: %s", strerror(rule.error));
    return rule.flow;
}

static void destroy_flow_here(struct end *end, void *arg)
{
    CHECK_ZERO(ibv_destroy_flow(*(struct ibv_flow **)arg));
}

void unsteer(struct end *end, struct ibv_flow *flow)
{
    AT(end, destroy_flow_here, &flow);
}

static void destroy_qp_here(struct end *end, void *arg)
{
    *(int *)arg = ibv_destroy_qp(end->qp);
}

int try_destroy_qp(struct end *end)
{
    int error;

    AT(end, destroy_qp_here, &error);
    return error;
}

/* --- frames --------------------------------------------------------------------------------------- */

struct bytes a_frame(const uint8_t to[MAC_LENGTH], uint8_t first)
{
    struct bytes frame = {.length = 100};

    memcpy(frame.at, to, MAC_LENGTH);
    memcpy(frame.at + 6, from_near, MAC_LENGTH);
    frame.at[12] = 0x88; /* IEEE 802 Local Experimental 1 */
    frame.at[13] = 0xb5;
    for (size_t i = 14; i < frame.length; i++)
        frame.at[i] = (uint8_t)(first + i);
    return frame;
}

struct bytes tagged(struct bytes frame, uint16_t tci)
{
    memmove(frame.at + 16, frame.at + 12, frame.length - 12);
    frame.at[12] = 0x81;
    frame.at[13] = 0;
    frame.at[14] = (uint8_t)(tci >> 8);
    frame.at[15] = (uint8_t)tci;
    frame.length += 4;
    return frame;
}

struct bytes ipv4_frame(uint32_t source, uint32_t destination, uint8_t protocol, uint16_t source_port,
                        uint16_t destination_port)
{
    static const uint8_t head[20] = {0x45, 0x20, 0, 86, 0, 0, 0x40, 0, 63};
    struct bytes frame = a_frame(to_far, 1);

    frame.at[12] = 8;
    frame.at[13] = 0;
    memcpy(frame.at + 14, head, sizeof head);
    frame.at[23] = protocol;
    memcpy(frame.at + 26, &(uint32_t){htonl(source)}, 4);
    memcpy(frame.at + 30, &(uint32_t){htonl(destination)}, 4);
    memcpy(frame.at + 34, &(uint16_t){htons(source_port)}, 2);
    memcpy(frame.at + 36, &(uint16_t){htons(destination_port)}, 2);
    return frame;
}

struct bytes ipv6_frame(uint8_t source, uint8_t destination, uint8_t next, uint16_t source_port,
                        uint16_t destination_port)
{
    struct bytes frame = a_frame(to_far, 1);

    frame.at[12] = 0x86;
    frame.at[13] = 0xdd;
    memset(frame.at + 14, 0, 40);
    frame.at[14] = 0x6b;
    frame.at[15] = 0x21;
    frame.at[17] = 0x11;
    frame.at[20] = next;
    frame.at[21] = 64;
    frame.at[22] = frame.at[38] = 0xfd;
    frame.at[37] = source;
    frame.at[53] = destination;
    memcpy(frame.at + 54, &(uint16_t){htons(source_port)}, 2);
    memcpy(frame.at + 56, &(uint16_t){htons(destination_port)}, 2);
    return frame;
}

void send_frame(struct end *from, const struct bytes *frame)
{
    for (size_t at = 0; at < frame->length; at += 1024)
        end_poke(from, at, frame->at + at, frame->length - at < 1024 ? frame->length - at : 1024);
    end_send(from, a_send(from, 1, 0, frame->length));
    end_expect_success(from, SQ, 1, IBV_WC_SEND);
}

void post_slot(struct end *end, uint64_t slot)
{
    end_recv(end, a_recv(end, slot, slot * SLOT, SLOT));
}

void expect_bytes(struct end *end, uint64_t slot, const struct bytes *frame)
{
    struct bytes got = {.length = frame->length};

    for (size_t at = 0; at < frame->length; at += 1024)
        end_peek(end, slot * SLOT + at, got.at + at, frame->length - at < 1024 ? frame->length - at : 1024);
    assert_memory_equal(got.at, frame->at, frame->length);
}

struct ibv_wc expect_frame(struct end *end, uint64_t slot, const struct bytes *frame)
{
    const struct ibv_wc wc = end_expect_success(end, RQ, slot, IBV_WC_RECV);

    assert_int_equal(wc.byte_len, frame->length);
    assert_int_equal(wc.qp_num, end->qp_num);
    expect_bytes(end, slot, frame);
    return wc;
}

/* Frames of the near end that came to nobody have come by now. */
void expect_nothing_before(struct end *near, struct end *far, uint64_t slot)
{
    const struct bytes marker = a_frame(to_marker, 0x77);

    send_frame(near, &marker);
    expect_frame(far, slot, &marker);
}

/* --- ends ----------------------------------------------------------------------------------------- */

struct end_attr raw_attr(void)
{
    struct end_attr attr = attr_of(IBV_QPT_RAW_PACKET);

    attr.size = FRAMES_BUFFER;
    attr.mr_access = IBV_ACCESS_LOCAL_WRITE;
    return attr;
}

void raw_to_rts(struct end *end)
{
    const struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};

    CHECK_ZERO(end_modify(end, &init, IBV_QP_STATE | IBV_QP_PORT));
    CHECK_ZERO(end_to_state(end, IBV_QPS_RTR));
    CHECK_ZERO(end_to_state(end, IBV_QPS_RTS));
}

void open_raw(struct end *end, struct side *side)
{
    const struct end_attr attr = raw_attr();

    end_open(end, side, &attr);
    raw_to_rts(end);
}

void two_open(struct two *two)
{
    open_raw(&two->a, NEAR);
    open_raw(&two->b, FAR);
    two->marker = steer(&two->b, for_mac(to_marker, 0));
}

void two_close(struct two *two)
{
    unsteer(&two->b, two->marker);
    end_close(&two->b);
    end_close(&two->a);
}

void stand_open(struct stand *stand)
{
    struct ibv_cq_init_attr_ex init = {.cqe = 64,
                                       .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_QP_NUM |
                                                   IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG};

    open_raw(&stand->end, NEAR);
    stand->cq = ibv_create_cq_ex(stand->end.context, &init);
    CHECK(stand->cq, "ibv_create_cq_ex: %s", strerror(errno));
}

void stand_close(struct stand *stand)
{
    CHECK_ZERO(ibv_destroy_cq(ibv_cq_ex_to_cq(stand->cq)));
    end_close(&stand->end);
}

struct seen next_seen(struct stand *stand)
{
    struct ibv_poll_cq_attr attr = {0};
    struct seen seen;

    EVENTUALLY(!ibv_start_poll(stand->cq, &attr), "a completion of the extended CQ");
    assert_int_equal(stand->cq->status, IBV_WC_SUCCESS);
    seen = (struct seen){stand->cq->wr_id, ibv_wc_read_byte_len(stand->cq), ibv_wc_read_qp_num(stand->cq),
                         ibv_wc_read_flow_tag(stand->cq), ibv_wc_read_cvlan(stand->cq)};
    ibv_end_poll(stand->cq);
    return seen;
}

struct ibv_qp *qp_with_flags(struct stand *stand, uint32_t flags)
{
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_RAW_PACKET,
        .send_cq = ibv_cq_ex_to_cq(stand->cq),
        .recv_cq = ibv_cq_ex_to_cq(stand->cq),
        .cap = {1, 8, 1, 1, 0},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
        .pd = stand->end.pd,
        .create_flags = flags,
    };
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_qp *qp = ibv_create_qp_ex(stand->end.context, &init);

    CHECK(qp, "ibv_create_qp_ex: %s", strerror(errno));
    CHECK_ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
    attr.qp_state = IBV_QPS_RTR;
    CHECK_ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    return qp;
}

void post_on(struct ibv_qp *qp, struct stand *stand, uint64_t slot)
{
    struct recv recv = a_recv(&stand->end, slot, slot * SLOT, SLOT);
    struct ibv_recv_wr *bad;

    recv.wr.sg_list = recv.sge;
    CHECK_ZERO(ibv_post_recv(qp, &recv.wr, &bad));
}

struct ibv_flow *flow_on(struct ibv_qp *qp, struct rule rule)
{
    struct ibv_flow *flow = ibv_create_flow(qp, &rule.attr);

    CHECK(flow, "ibv_create_flow: %s", strerror(errno));
    return flow;
}

struct bytes with_fcs(struct bytes frame, const struct bytes *of)
{
    uint32_t crc = 0xffffffff;

    for (size_t i = 0; i < of->length; i++) {
        crc ^= of->at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    crc = ~crc;
    for (int i = 0; i < 4; i++)
        frame.at[frame.length++] = (uint8_t)(crc >> 8 * i);
    return frame;
}
