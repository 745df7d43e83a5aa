/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Makes each call that a fault may strike, and says what it returned: public verbs only. */
#include <errno.h>
#include <string.h>

#include "../explain/node.h"

static void tell(const char *name, int error)
{
    say("%s %d", name, error);
}

static int of(const void *object)
{
    return object ? 0 : errno;
}

static void bind(const struct node *node, struct ibv_qp *qp)
{
    struct ibv_mw *mw = ibv_alloc_mw(node->pd, IBV_MW_TYPE_1);
    struct ibv_mw_bind attributes = {.bind_info = {.mr = node->mr,
                                                   .addr = (uintptr_t)node->buffer,
                                                   .length = 64,
                                                   .mw_access_flags = IBV_ACCESS_REMOTE_READ}};

    tell("ibv_alloc_mw", of(mw));
    if (mw)
        tell("ibv_bind_mw", ibv_bind_mw(qp, mw, &attributes));
}

static void shared(const struct node *node)
{
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_srq_attr limit = {.srq_limit = 1};
    struct ibv_recv_wr receive = {.wr_id = 1}, *bad;
    struct ibv_srq *srq = ibv_create_srq(node->pd, &attributes);

    tell("ibv_create_srq", of(srq));
    if (!srq)
        return;
    tell("ibv_modify_srq", ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
    tell("ibv_post_srq_recv", ibv_post_srq_recv(srq, &receive, &bad));
}

static void receive_queue(const struct node *node, struct ibv_cq *cq)
{
    struct ibv_wq_init_attr attributes = {
        .wq_type = IBV_WQT_RQ, .max_wr = 16, .max_sge = 1, .pd = node->pd, .cq = cq};
    struct ibv_wq_attr ready = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
    struct ibv_wq *wq = ibv_create_wq(node->context, &attributes);

    tell("ibv_create_wq", of(wq));
    if (wq)
        tell("ibv_modify_wq", ibv_modify_wq(wq, &ready));
}

static void datagrams(const struct node *node, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr attributes = {
        .send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_UD};
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = node->gid}};
    union ibv_gid group = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, [15] = 1}};
    struct ibv_qp *qp;

    tell("ibv_create_ah", of(ibv_create_ah(node->pd, &to)));
    REQUIRE((qp = ibv_create_qp(node->pd, &attributes)));
    REQUIRE(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    tell("ibv_attach_mcast", ibv_attach_mcast(qp, &group, 0));
    attributes.qp_type = IBV_QPT_RAW_PACKET;
    REQUIRE((qp = ibv_create_qp(node->pd, &attributes)));
    REQUIRE(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PORT) == 0);
    {
        struct ibv_flow_attr all = {.type = IBV_FLOW_ATTR_ALL_DEFAULT, .size = sizeof(all), .port = 1};

        tell("ibv_create_flow", of(ibv_create_flow(qp, &all)));
    }
}

int main(void)
{
    struct ibv_alloc_dm_attr memory = {.length = 64};
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_comp_channel *channel;
    struct node node;
    struct ibv_cq *cq;
    struct ibv_qp *qp;

    node_open(&node);
    tell("ibv_open_device", of(ibv_open_device(devices[0]))); /* the second time */
    channel = ibv_create_comp_channel(node.context);
    tell("ibv_create_comp_channel", of(channel));
    REQUIRE((cq = ibv_create_cq(node.context, 16, NULL, channel, 0)));
    tell("ibv_resize_cq", ibv_resize_cq(cq, 32));
    tell("ibv_req_notify_cq", ibv_req_notify_cq(cq, 0));
    tell("ibv_alloc_dm", of(ibv_alloc_dm(node.context, &memory)));
    tell("ibv_rereg_mr", ibv_rereg_mr(node.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
                                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)
                             ? errno
                             : 0);
    qp = make_qp(&node, cq, NULL, 16);
    to_init(qp);
    to_rtr(&node, qp, qp->qp_num, &node.gid);
    to_rts(qp, 12, 7, 0);
    bind(&node, qp);
    shared(&node);
    receive_queue(&node, cq);
    datagrams(&node, cq);
    return 0;
}
