/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QPs, SRQs and CQs of an id, and their state transitions (verbs.md §11.7). */
#include <stdlib.h>

#include "base/refusal.h"
#include "front/rdmacm/front.h"
#include "rules/flush.h"

/* --- attributes ----------------------------------------------------------------------------------------- */

void path_to_ah(const struct id *id, const struct cm_path *path, struct ibv_ah_attr *ret_attributes)
{
    *ret_attributes = (struct ibv_ah_attr){
        .grh = {.flow_label = path->flow_label,
                .sgid_index = id->sgid_index,
                .hop_limit = path->hop_limit ? path->hop_limit : HOP_LIMIT,
                .traffic_class = id->tos_set ? id->tos : path->traffic_class},
        .sl = path->service_level,
        .is_global = 1,
        .port_num = 1,
    };
    memcpy(&ret_attributes->grh.dgid, path->remote_gid, 16);
}

/* Attributes that need no peer; for UD, all that are needed. */
static void attributes_of_port(const struct id *id, struct ibv_qp_attr *attributes, int *ret_mask)
{
    attributes->pkey_index = 0;
    attributes->port_num = 1;
    *ret_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if (id->public.qp_type == IBV_QPT_UD) {
        attributes->qkey = id->qkey;
        *ret_mask |= IBV_QP_QKEY;
    } else {
        attributes->qp_access_flags = 0;
        *ret_mask |= IBV_QP_ACCESS_FLAGS;
    }
}

static void attributes_for_rtr(const struct id *id, const struct cm_qp_attributes *known,
                               struct ibv_qp_attr *attributes, int *ret_mask)
{
    path_to_ah(id, &known->path, &attributes->ah_attr);
    attributes->path_mtu = (enum ibv_mtu)known->path_mtu;
    attributes->dest_qp_num = known->dest_qpn;
    attributes->rq_psn = known->rq_psn;
    *ret_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (known->service == CM_SERVICE_RC) {
        attributes->max_dest_rd_atomic = known->max_dest_rd_atomic;
        attributes->min_rnr_timer = 0;
        if (id->public.qp_type != IBV_QPT_XRC_SEND) /* an XRC_SEND QP never responds */
            *ret_mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    }
}

static void attributes_for_rts(const struct id *id, const struct cm_qp_attributes *known,
                               struct ibv_qp_attr *attributes, int *ret_mask)
{
    attributes->sq_psn = known->sq_psn;
    *ret_mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (known->service == CM_SERVICE_RC) {
        attributes->timeout = id->ack_timeout ? id->ack_timeout : known->timeout;
        attributes->retry_cnt = known->retry_count;
        attributes->rnr_retry = known->rnr_retry;
        attributes->max_rd_atomic = known->max_rd_atomic;
        *ret_mask |= IBV_QP_TIMEOUT;
        if (id->public.qp_type != IBV_QPT_XRC_RECV) /* an XRC_RECV QP never requests */
            *ret_mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
}

/* What the messages say of the connection. Not valid: they say nothing yet. */
struct negotiated {
    bool valid;
    struct cm_qp_attributes attributes;
};

static struct negotiated ask_agent(const struct id *id)
{
    struct negotiated negotiated;

    negotiated.valid = calls->qp_attributes(id->agent_id, &negotiated.attributes) == 0;
    return negotiated;
}

static int attributes_for(struct id *id, const struct negotiated *negotiated, struct ibv_qp_attr *attributes,
                          int *ret_mask)
{
    const struct cm_qp_attributes *known = &negotiated->attributes;

    if (!id->adapter)
        return refuse_missing_device();
    if (!negotiated->valid || id->public.qp_type == IBV_QPT_UD) {
        if (attributes->qp_state != IBV_QPS_INIT && id->public.qp_type != IBV_QPT_UD)
            return refuse_because(-EINVAL,
                                  "the cm_id is not connected yet: qp_state may only be IBV_QPS_INIT");
        attributes_of_port(id, attributes, ret_mask);
        return 0;
    }
    switch (attributes->qp_state) {
    case IBV_QPS_INIT:
        attributes_of_port(id, attributes, ret_mask);
        attributes->qp_access_flags =
            IBV_ACCESS_REMOTE_WRITE |
            (known->max_dest_rd_atomic
                 ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | ACCESS_FLUSH_GLOBAL
                 : 0u);
        return 0;
    case IBV_QPS_RTR:
        attributes_for_rtr(id, known, attributes, ret_mask);
        return 0;
    case IBV_QPS_RTS:
        attributes_for_rts(id, known, attributes, ret_mask);
        return 0;
    case IBV_QPS_RESET:
    case IBV_QPS_SQD:
    case IBV_QPS_SQE:
    case IBV_QPS_ERR:
    case IBV_QPS_UNKNOWN:
        break;
    }
    return -EINVAL;
}

RDMACM_EXPORT int rdma_init_qp_attr(struct rdma_cm_id *public, struct ibv_qp_attr *attributes, int *ret_mask)
{
    struct id *id = id_of(public);
    struct negotiated negotiated;

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_init_qp_attr"));
    if (!attributes || !ret_mask)
        return conclude(-EINVAL);
    negotiated = ask_agent(id);
    return conclude(attributes_for(id, &negotiated, attributes, ret_mask));
}

/* --- states --------------------------------------------------------------------------------------------- */

int qp_to_error(struct id *id)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};

    return id->public.qp ? -ibv_modify_qp(id->public.qp, &attributes, IBV_QP_STATE) : 0;
}

static int enter_state(struct id *id, const struct negotiated *negotiated, enum ibv_qp_state state)
{
    struct ibv_qp_attr attributes = {.qp_state = state};
    int mask, error = attributes_for(id, negotiated, &attributes, &mask);

    /* The program's value overrides the values from the messages, and may have been set before them. */
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC && id->passive)
        attributes.max_dest_rd_atomic = id->responder_resources;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC && id->passive)
        attributes.max_rd_atomic = id->initiator_depth;
    return error ? error : -ibv_modify_qp(id->public.qp, &attributes, mask);
}

/* INIT again: the access rights are known only now. */
int qp_connect(struct id *id)
{
    const struct negotiated negotiated = ask_agent(id);
    int error = enter_state(id, &negotiated, IBV_QPS_INIT);

    if (!error)
        error = enter_state(id, &negotiated, IBV_QPS_RTR);
    if (!error)
        error = enter_state(id, &negotiated, IBV_QPS_RTS);
    if (error)
        qp_to_error(id);
    return error;
}

/* A connected QP waits in INIT, where receives can be posted; a UD QP becomes ready at once. */
static int prepare(struct id *id, struct ibv_qp *qp)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT};
    int mask;

    attributes_of_port(id, &attributes, &mask);
    int error = -ibv_modify_qp(qp, &attributes, mask);

    if (error || id->public.qp_type != IBV_QPT_UD)
        return error;
    attributes.qp_state = IBV_QPS_RTR;
    error = -ibv_modify_qp(qp, &attributes, IBV_QP_STATE);
    if (error)
        return error;
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = 0;
    return -ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

/* --- completion queues that an id makes for itself ------------------------------------------------------ */

static int make_cq(struct id *id, uint32_t size, struct ibv_comp_channel **channel, struct ibv_cq **cq)
{
    *channel = ibv_create_comp_channel(id->public.verbs);
    if (!*channel)
        return -errno;
    *cq = ibv_create_cq(id->public.verbs, (int)size, id, *channel, 0);
    return *cq ? 0 : -errno;
}

static void destroy_cqs(struct rdma_cm_id *public)
{
    if (public->send_cq && public->send_cq != public->recv_cq)
        ibv_destroy_cq(public->send_cq);
    if (public->recv_cq)
        ibv_destroy_cq(public->recv_cq);
    if (public->send_cq_channel && public->send_cq_channel != public->recv_cq_channel)
        ibv_destroy_comp_channel(public->send_cq_channel);
    if (public->recv_cq_channel)
        ibv_destroy_comp_channel(public->recv_cq_channel);
    public->send_cq = public->recv_cq = NULL;
    public->send_cq_channel = public->recv_cq_channel = NULL;
}

static int make_cqs(struct id *id, uint32_t send_size, uint32_t receive_size)
{
    struct rdma_cm_id *public = &id->public;
    int error = 0;

    if (send_size)
        error = make_cq(id, send_size, &public->send_cq_channel, &public->send_cq);
    if (!error && receive_size)
        error = make_cq(id, receive_size, &public->recv_cq_channel, &public->recv_cq);
    if (error)
        destroy_cqs(public);
    return error;
}

/* --- QPs ------------------------------------------------------------------------------------------------ */

static int check_cqs(const struct rdma_cm_id *public, const struct ibv_qp_init_attr_ex *attributes)
{
    return (public->send_cq && attributes->send_cq && public->send_cq != attributes->send_cq) ||
                   (public->recv_cq && attributes->recv_cq && public->recv_cq != attributes->recv_cq)
               ? -EINVAL
               : 0;
}

static int make_qp(struct id *id, struct ibv_qp_init_attr_ex *attributes)
{
    struct rdma_cm_id *public = &id->public;
    struct ibv_qp *qp = ibv_create_qp_ex(public->verbs, attributes);
    int error = qp ? prepare(id, qp) : -errno;

    if (error) {
        if (qp)
            ibv_destroy_qp(qp);
        return error;
    }
    if (qp->pd)
    public->pd = qp->pd;
    public->qp = qp;
    if (id->record)
        id->record->qpn = qp->qp_num;
    return 0;
}

/* No PD and no queues; its receives are those of the SRQ. */
static int create_xrc_receive(struct id *id, struct ibv_qp_init_attr_ex *attributes)
{
    attributes->comp_mask &= ~(uint32_t)IBV_QP_INIT_ATTR_PD;
    if (!(attributes->comp_mask & IBV_QP_INIT_ATTR_XRCD)) {
        attributes->xrcd = adapter_get_xrcd(id->adapter);
        attributes->comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    if (!attributes->xrcd)
        return -errno;
    return make_qp(id, attributes);
}

static int create_qp(struct id *id, struct ibv_qp_init_attr_ex *attributes)
{
    struct rdma_cm_id *public = &id->public;
    int error;

    if (id_check(id) != 0)
        return id_refuse(id, "rdma_create_qp");
    if (public->qp)
        return refuse_second("a QP");
    if (!public->verbs)
        return refuse_missing_device();
    if (!(attributes->comp_mask & IBV_QP_INIT_ATTR_PD) || !attributes->pd) {
        attributes->comp_mask |= IBV_QP_INIT_ATTR_PD;
        attributes->pd = public->pd;
    } else if (attributes->pd->context != public->verbs) {
        return refuse(-EINVAL, REFUSAL_NOT_OF_ID, "pd", 0, 0, 0);
    }
    if (attributes->qp_type == IBV_QPT_XRC_RECV)
        return create_xrc_receive(id, attributes);
    error = check_cqs(public, attributes);
    if (!error)
        error = make_cqs(id, attributes->send_cq || public->send_cq ? 0 : attributes->cap.max_send_wr,
                         attributes->recv_cq || public->recv_cq || attributes->qp_type == IBV_QPT_XRC_SEND
                             ? 0
                             : attributes->cap.max_recv_wr);
    if (error)
        return error;
    if (!attributes->send_cq)
        attributes->send_cq = public->send_cq;
    if (!attributes->recv_cq)
        attributes->recv_cq = public->recv_cq;
    if (public->srq && !attributes->srq)
        attributes->srq = public->srq;
    error = make_qp(id, attributes);
    if (error)
        destroy_cqs(public);
    return error;
}

RDMACM_EXPORT int rdma_create_qp_ex(struct rdma_cm_id *public, struct ibv_qp_init_attr_ex *attributes)
{
    return conclude(create_qp(id_of(public), attributes));
}

RDMACM_EXPORT int rdma_create_qp(struct rdma_cm_id *public, struct ibv_pd *pd,
                                 struct ibv_qp_init_attr *attributes)
{
    struct ibv_qp_init_attr_ex extended = {0};
    int error;

    memcpy(&extended, attributes, sizeof(*attributes));
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    extended.pd = pd ? pd : public->pd;
    error = create_qp(id_of(public), &extended);
    memcpy(attributes, &extended, sizeof(*attributes));
    return conclude(error);
}

RDMACM_EXPORT void rdma_destroy_qp(struct rdma_cm_id *public)
{
    if (!public->qp)
        return; /* qperf calls this on a listener */
    ibv_destroy_qp(public->qp);
    if (public->qp_type != IBV_QPT_XRC_RECV || !public->srq) /* the SRQ's completions go there otherwise */
        destroy_cqs(public);
    public->qp = NULL;
    if (id_of(public)->record)
        id_of(public)->record->qpn = 0;
}

/* --- SRQs ----------------------------------------------------------------------------------------------- */

/* An XRC SRQ has a CQ of its own: the id's, if the program names none. */
static int complete_xrc_attributes(struct id *id, struct ibv_srq_init_attr_ex *attributes)
{
    struct rdma_cm_id *public = &id->public;
    int error;

    if (!(attributes->comp_mask & IBV_SRQ_INIT_ATTR_XRCD)) {
        attributes->xrcd = adapter_get_xrcd(id->adapter);
        attributes->comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
        if (!attributes->xrcd)
            return -errno;
    }
    if (attributes->comp_mask & IBV_SRQ_INIT_ATTR_CQ)
        return 0;
    error = public->recv_cq ? 0 : make_cqs(id, 0, attributes->attr.max_wr);
    attributes->cq = public->recv_cq;
    attributes->comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
    return error;
}

static int create_srq(struct id *id, struct ibv_srq_init_attr_ex *attributes)
{
    struct rdma_cm_id *public = &id->public;
    struct ibv_srq *srq;

    if (id_check(id) != 0)
        return id_refuse(id, "rdma_create_srq");
    if (public->srq)
        return refuse_second("an SRQ");
    if (!public->verbs)
        return refuse_missing_device();
    if (!(attributes->comp_mask & IBV_SRQ_INIT_ATTR_TYPE))
        return refuse_because(-EINVAL, "comp_mask lacks IBV_SRQ_INIT_ATTR_TYPE");
    if (!(attributes->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attributes->pd) {
        attributes->pd = public->pd;
        attributes->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    if (attributes->pd->context != public->verbs)
        return refuse(-EINVAL, REFUSAL_NOT_OF_ID, "pd", 0, 0, 0);
    if (attributes->srq_type == IBV_SRQT_XRC) {
        int error = complete_xrc_attributes(id, attributes);

        if (error)
            return error;
    }
    srq = ibv_create_srq_ex(public->verbs, attributes);
    if (!srq) {
        int error = -errno;

        if (!public->qp || public->qp_type == IBV_QPT_XRC_RECV)
            destroy_cqs(public);
        return error;
    }
    public->pd = srq->pd;
    public->srq = srq;
    return 0;
}

RDMACM_EXPORT int rdma_create_srq_ex(struct rdma_cm_id *public, struct ibv_srq_init_attr_ex *attributes)
{
    return conclude(create_srq(id_of(public), attributes));
}

RDMACM_EXPORT int rdma_create_srq(struct rdma_cm_id *public, struct ibv_pd *pd,
                                  struct ibv_srq_init_attr *attributes)
{
    struct ibv_srq_init_attr_ex extended = {
        .srq_context = attributes->srq_context,
        .attr = attributes->attr,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
        .srq_type = public->qp_type == IBV_QPT_XRC_RECV ? IBV_SRQT_XRC : IBV_SRQT_BASIC,
        .pd = pd,
    };
    int error = create_srq(id_of(public), &extended);

    attributes->attr = extended.attr;
    return conclude(error);
}

RDMACM_EXPORT void rdma_destroy_srq(struct rdma_cm_id *public)
{
    if (!public->srq)
        return;
    ibv_destroy_srq(public->srq);
    public->srq = NULL;
    if (!public->qp)
        destroy_cqs(public);
}
