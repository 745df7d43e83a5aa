/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion queues and channels, extended polling (verbs.md §5). */
#include "object/cq/cq.h"
#include "front/verbs/front.h"
#include "front/verbs/injected.h"
#include "segment/segment.h"

/* --- channels ------------------------------------------------------------------------------------------- */

VERBS_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct channel *channel;
    int result = injected(CALL_CREATE_COMP_CHANNEL, context);

    if (result)
        return null_with(result);
    result = channel_create(context_of(context), &channel);

    if (result < 0)
        return null_with(result);
    return &channel->ibv;
}

VERBS_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    return positive(channel_destroy(channel_of(channel)));
}

VERBS_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **ret_cq,
                                  void **ret_cq_context)
{
    struct cq *cq;
    int result = channel_get_event(channel_of(channel), &cq);

    if (result == 0) {
        *ret_cq = &cq->ibv;
        *ret_cq_context = cq->ibv.cq_context;
    }
    return minus_one(result);
}

VERBS_EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    if (count)
        cq_ack_events(cq_of(cq), count);
}

/* --- queues --------------------------------------------------------------------------------------------- */

/* A positive errno if the creation fails by a fault, or meets a lowered limit. */
static int injected_creation(const struct ibv_context *context, uint32_t cqe)
{
    int error = injected(CALL_CREATE_CQ, context);

    if (error || !inject_has(INJECT_LIMIT))
        return error;
    error = injected_limit(INJECT_MAX_CQE, context, cqe);
    return error ? error : injected_limit(INJECT_MAX_CQ, context, number_used(&pool_cqs) + 1ull);
}

VERBS_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                                          struct ibv_comp_channel *channel, int comp_vector)
{
    const struct cq_attributes attributes = {
        .cqe = (uint32_t)cqe,
        .user_context = cq_context,
        .channel = channel ? channel_of(channel) : NULL,
        .comp_vector = (uint32_t)comp_vector,
    };
    struct cq *cq;
    int result;

    if (cqe < 1)
        return null_with(refuse_range("cqe", cqe, 1, LIMIT_CQE));
    if (comp_vector < 0)
        return null_with(refuse_range("comp_vector", comp_vector, 0, LIMIT_COMP_VECTORS - 1));
    if (channel && channel->context != context)
        return null_with(refuse_elsewhere("channel"));
    result = injected_creation(context, attributes.cqe);
    if (result)
        return null_with(result);
    result = cq_create(context_of(context), &attributes, &cq);
    return result < 0 ? null_with(result) : &cq->ibv;
}

VERBS_EXPORT int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
    int error = injected(CALL_RESIZE_CQ, cq->context);

    if (!error && cqe > 0 && inject_has(INJECT_LIMIT))
        error = injected_limit(INJECT_MAX_CQE, cq->context, (uint32_t)cqe);
    if (error)
        return positive(-error);
    return positive(cqe < 1 ? refuse_range("cqe", cqe, 1, LIMIT_CQE) : cq_resize(cq_of(cq), (uint32_t)cqe));
}

int front_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attributes)
{
    if (attributes->attr_mask >= IBV_CQ_ATTR_RESERVED)
        return positive(
            refuse_bits(-EINVAL, "attr_mask", BITS_PLAIN, attributes->attr_mask, IBV_CQ_ATTR_RESERVED - 1));
    if (!(attributes->attr_mask & IBV_CQ_ATTR_MODERATE))
        return 0;
    return positive(cq_moderate(cq_of(cq), attributes->moderate.cq_count, attributes->moderate.cq_period));
}

VERBS_EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
    return positive(cq_destroy(cq_of(cq)));
}

int front_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
    return cq_poll(cq_of(cq), count, wc);
}

int front_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    return positive(cq_arm(cq_of(cq), solicited_only != 0));
}

/* --- extended polling ----------------------------------------------------------------------------------- */

#define SUPPORTED_WC_FLAGS                                                                                   \
    (IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |                                           \
     IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG |        \
     IBV_WC_EX_WITH_TM_INFO)
#define SUPPORTED_FLAGS (IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN)

static struct cq *cq_of_extended(struct ibv_cq_ex *cq)
{
    return container_of(cq, struct cq, ex);
}

/* Sets wr_id and status, which programs read without a call. */
static int show_current(struct cq *cq, int result)
{
    if (likely(result == 0)) {
        cq->ex.wr_id = cq->current->wr_id;
        cq->ex.status = (enum ibv_wc_status)cq->current->status;
    }
    return -result; /* an empty queue is not an error: errno is unchanged */
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attributes)
{
    if (unlikely(attributes && attributes->comp_mask))
        return front_positive("start_poll",
                              refuse_bits(-EINVAL, "comp_mask", BITS_PLAIN, attributes->comp_mask, 0));
    return show_current(cq_of_extended(cq), cq_start_poll(cq_of_extended(cq)));
}

static int next_poll(struct ibv_cq_ex *cq)
{
    return show_current(cq_of_extended(cq), cq_next_poll(cq_of_extended(cq)));
}

static void end_poll(struct ibv_cq_ex *cq)
{
    cq_end_poll(cq_of_extended(cq));
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq)
{
    return (enum ibv_wc_opcode)cq_of_extended(cq)->current->opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *cq)
{
    return cq_of_extended(cq)->current->vendor_err;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *cq)
{
    return cq_of_extended(cq)->current->wc_flags;
}

static uint32_t read_byte_len(struct ibv_cq_ex *cq)
{
    return cq_of_extended(cq)->current->byte_len;
}

/* Also called by ibv_wc_read_invalidated_rkey(). */
static __be32 read_imm_data(struct ibv_cq_ex *cq)
{
    return cq_of_extended(cq)->current->imm_or_rkey;
}

static uint32_t read_qp_num(struct ibv_cq_ex *cq)
{
    return cq_of_extended(cq)->current->qpn;
}

static uint32_t read_src_qp(struct ibv_cq_ex *cq)
{
    const struct cqe *cqe = cq_of_extended(cq)->current;

    return cqe->kind == CQE_OPERATION ? 0 : cqe->src_qpn;
}

static uint32_t read_slid(struct ibv_cq_ex *cq)
{
    return 0;
}

static uint8_t read_sl(struct ibv_cq_ex *cq)
{
    return cq_of_extended(cq)->current->service_level;
}

static uint8_t read_dlid_path_bits(struct ibv_cq_ex *cq)
{
    return 0;
}

static uint64_t read_completion_ts(struct ibv_cq_ex *cq)
{
    return cq_of_extended(cq)->current->timestamp_ns;
}

static uint64_t read_completion_wallclock_ns(struct ibv_cq_ex *cq)
{
    return cq_of_extended(cq)->current->wallclock_ns;
}

static uint16_t read_cvlan(struct ibv_cq_ex *cq)
{
    const struct cqe *cqe = cq_of_extended(cq)->current;

    return cqe->kind == CQE_TAGGED ? 0 : cqe->vlan;
}

static uint32_t read_flow_tag(struct ibv_cq_ex *cq)
{
    const struct cqe *cqe = cq_of_extended(cq)->current;

    return cqe->kind == CQE_TAGGED ? 0 : cqe->flow_tag;
}

/* Zero, except for a message that took a tagged buffer: the tag header of other messages is in their receive buffer. */
static void read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *ret_info)
{
    const struct cqe *cqe = cq_of_extended(cq)->current;
    bool tagged = cqe->kind == CQE_TAGGED;

    ret_info->tag = tagged ? cqe->tag : 0;
    ret_info->priv = tagged ? cqe->app_ctx : 0;
}

static void fill_readers(struct ibv_cq_ex *cq, uint64_t wc_flags)
{
    cq->start_poll = start_poll;
    cq->next_poll = next_poll;
    cq->end_poll = end_poll;
    cq->read_opcode = read_opcode;
    cq->read_vendor_err = read_vendor_err;
    cq->read_wc_flags = read_wc_flags;
    if (wc_flags & IBV_WC_EX_WITH_BYTE_LEN)
        cq->read_byte_len = read_byte_len;
    if (wc_flags & IBV_WC_EX_WITH_IMM)
        cq->read_imm_data = read_imm_data;
    if (wc_flags & IBV_WC_EX_WITH_QP_NUM)
        cq->read_qp_num = read_qp_num;
    if (wc_flags & IBV_WC_EX_WITH_SRC_QP)
        cq->read_src_qp = read_src_qp;
    if (wc_flags & IBV_WC_EX_WITH_SLID)
        cq->read_slid = read_slid;
    if (wc_flags & IBV_WC_EX_WITH_SL)
        cq->read_sl = read_sl;
    if (wc_flags & IBV_WC_EX_WITH_DLID_PATH_BITS)
        cq->read_dlid_path_bits = read_dlid_path_bits;
    if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
        cq->read_completion_ts = read_completion_ts;
    if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
        cq->read_completion_wallclock_ns = read_completion_wallclock_ns;
    if (wc_flags & IBV_WC_EX_WITH_CVLAN)
        cq->read_cvlan = read_cvlan;
    if (wc_flags & IBV_WC_EX_WITH_FLOW_TAG)
        cq->read_flow_tag = read_flow_tag;
    if (wc_flags & IBV_WC_EX_WITH_TM_INFO)
        cq->read_tm_info = read_tm_info;
}

struct ibv_cq_ex *front_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attributes)
{
    uint32_t flags = attributes->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attributes->flags : 0;
    const uint32_t known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    struct pd *parent = NULL;
    struct cq *cq;
    int result;

    if (attributes->comp_mask & ~known)
        return null_with(refuse_bits(-EOPNOTSUPP, "comp_mask", BITS_PLAIN, attributes->comp_mask, known));
    if (attributes->wc_flags & ~(uint64_t)SUPPORTED_WC_FLAGS)
        return null_with(
            refuse_bits(-EOPNOTSUPP, "wc_flags", BITS_WC_FLAGS, attributes->wc_flags, SUPPORTED_WC_FLAGS));
    if (flags & ~(uint32_t)SUPPORTED_FLAGS)
        return null_with(refuse_bits(-EOPNOTSUPP, "flags", BITS_PLAIN, flags, SUPPORTED_FLAGS));
    if (attributes->cqe < 1)
        return null_with(refuse_range("cqe", attributes->cqe, 1, LIMIT_CQE));
    if (attributes->channel && attributes->channel->context != context)
        return null_with(refuse_elsewhere("channel"));
    if (attributes->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) {
        parent = attributes->parent_domain ? pd_of(attributes->parent_domain) : NULL;
        if (!parent)
            return null_with(refuse_null("parent_domain"));
        if (!pd_is_parent_domain(parent) || parent->context != context_of(context))
            return null_with(refuse_elsewhere("parent_domain"));
    }
    result = injected_creation(context, attributes->cqe);
    if (result)
        return null_with(result);
    result = cq_create(context_of(context),
                       &(struct cq_attributes){
                           .cqe = attributes->cqe,
                           .user_context = attributes->cq_context,
                           .channel = attributes->channel ? channel_of(attributes->channel) : NULL,
                           .comp_vector = attributes->comp_vector,
                           .wc_flags = attributes->wc_flags,
                           .flags = flags,
                           .parent = parent,
                           .extended = true,
                       },
                       &cq);
    if (result < 0)
        return null_with(result);
    fill_readers(&cq->ex, attributes->wc_flags);
    return &cq->ex;
}
