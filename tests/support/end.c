/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "end.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

struct end_attr attr_of(enum ibv_qp_type type)
{
    return (struct end_attr){
        .type = type,
        .cap = {.max_send_wr = 64,
                .max_recv_wr = 64,
                .max_send_sge = 4,
                .max_recv_sge = 4,
                .max_inline_data = 64},
        .send_cqe = 256,
        .recv_cqe = 256,
        .size = 64 * 1024,
        .mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_REMOTE_ATOMIC,
        .qp_access = IBV_ACCESS_REMOTE_WRITE |
                     (type == IBV_QPT_RC ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0),
        .mtu = IBV_MTU_1024,
        .timeout = 18,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .min_rnr_timer = 1,
        .max_rd_atomic = 4,
        .max_dest_rd_atomic = 4,
        .qkey = 0x11111111,
        .gid_index = -1,
    };
}

/* An end and its argument in one piece, as they travel */
struct parcel {
    end_fn *fn;
    struct end end;
    size_t length;
    unsigned char arg[] __attribute__((aligned(16)));
};

static void unpack_and_run(void *arg)
{
    struct parcel *parcel = arg;

    parcel->fn(&parcel->end, parcel->length ? parcel->arg : NULL);
}

static struct parcel *pack(struct end *end, end_fn *fn, const void *arg, size_t length)
{
    struct parcel *parcel = calloc(1, sizeof *parcel + length);

    parcel->fn = fn;
    parcel->end = *end;
    parcel->length = length;
    if (arg)
        memcpy(parcel->arg, arg, length);
    return parcel;
}

static void unpack(struct parcel *parcel, struct end *end, void *arg)
{
    *end = parcel->end;
    if (arg)
        memcpy(arg, parcel->arg, parcel->length);
    free(parcel);
}

void end_call(struct end *end, end_fn *fn, void *arg, size_t length)
{
    struct parcel *parcel;

    if (side_is_here(end->side)) {
        fn(end, arg);
        return;
    }
    parcel = pack(end, fn, arg, length);
    side_call(end->side, unpack_and_run, parcel, sizeof *parcel + length);
    unpack(parcel, end, arg);
}

void end_start(struct end_call *call, struct end *end, end_fn *fn, void *arg, size_t length)
{
    *call = (struct end_call){.end = end, .arg = arg, .length = length, .box = pack(end, fn, arg, length)};
    side_start(&call->call, end->side, unpack_and_run, call->box, sizeof(struct parcel) + length);
}

void end_finish(struct end_call *call)
{
    side_finish(&call->call);
    unpack(call->box, call->end, call->arg);
}

struct ibv_context *open_the_device(void)
{
    const char *wanted = getenv("SOFTHCA_TEST_DEVICE");
    struct ibv_context *context = NULL;
    struct ibv_device **list;
    int count = 0;

    list = ibv_get_device_list(&count);
    CHECK(list, "ibv_get_device_list: %s", strerror(errno));
    CHECK(count > 0, "there is no device");
    for (int i = 0; i < count && !context; i++)
        if (!wanted || !strcmp(wanted, ibv_get_device_name(list[i])))
            context = ibv_open_device(list[i]);
    CHECK(context, "ibv_open_device: %s", strerror(errno));
    ibv_free_device_list(list);
    return context;
}

static void make_qp(struct end *end)
{
    const struct end_attr *attr = &end->attr;

    if (attr->send_ops) {
        struct ibv_qp_init_attr_ex init = {
            .qp_context = end->side,
            .send_cq = end->send_cq,
            .recv_cq = end->recv_cq,
            .srq = end->srq,
            .cap = attr->cap,
            .qp_type = attr->type,
            .sq_sig_all = attr->sq_sig_all,
            .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            .pd = end->pd,
            .send_ops_flags = attr->send_ops,
        };

        end->qp = ibv_create_qp_ex(end->context, &init);
        CHECK(end->qp, "ibv_create_qp_ex: %s", strerror(errno));
        end->qpx = ibv_qp_to_qp_ex(end->qp);
        CHECK(end->qpx, "ibv_qp_to_qp_ex gave none");
        end->attr.cap = init.cap;
    } else {
        struct ibv_qp_init_attr init = {
            .qp_context = end->side,
            .send_cq = end->send_cq,
            .recv_cq = end->recv_cq,
            .srq = end->srq,
            .cap = attr->cap,
            .qp_type = attr->type,
            .sq_sig_all = attr->sq_sig_all,
        };

        end->qp = ibv_create_qp(end->pd, &init);
        CHECK(end->qp, "ibv_create_qp: %s", strerror(errno));
        end->attr.cap = init.cap;
    }
    end->qp_num = end->qp->qp_num;
    end->psn = (uint32_t)(now_ns() * 2654435761u >> 7) & 0xffffff;
}

static void open_here(struct end *end, void *arg)
{
    const struct end_attr *attr = &end->attr;
    const int gid_index = attr->gid_index < 0 ? 0 : attr->gid_index;

    end->port = TEST_PORT;
    if (!end->context)
        end->context = open_the_device();
    end->attr.gid_index = gid_index;
    CHECK(!ibv_query_gid(end->context, end->port, gid_index, &end->gid), "ibv_query_gid: %s",
          strerror(errno));
    if (!end->pd)
        end->pd = ibv_alloc_pd(end->context);
    CHECK(end->pd, "ibv_alloc_pd: %s", strerror(errno));
    if (attr->channel) {
        end->channel = ibv_create_comp_channel(end->context);
        CHECK(end->channel, "ibv_create_comp_channel: %s", strerror(errno));
    }
    end->send_cq = ibv_create_cq(end->context, attr->send_cqe, end->side, end->channel, 0);
    CHECK(end->send_cq, "ibv_create_cq: %s", strerror(errno));
    end->recv_cq = end->send_cq;
    if (!attr->one_cq) {
        end->recv_cq = ibv_create_cq(end->context, attr->recv_cqe, end->side, end->channel, 0);
        CHECK(end->recv_cq, "ibv_create_cq: %s", strerror(errno));
    }
    if (attr->srq_wr) {
        struct ibv_srq_init_attr init = {.attr = {.max_wr = attr->srq_wr, .max_sge = 4}};

        end->srq = ibv_create_srq(end->pd, &init);
        CHECK(end->srq, "ibv_create_srq: %s", strerror(errno));
    }
    end->buf = mmap(NULL, attr->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(end->buf != MAP_FAILED, "mmap: %s", strerror(errno));
    end->mr = ibv_reg_mr(end->pd, end->buf, attr->size, attr->mr_access);
    CHECK(end->mr, "ibv_reg_mr: %s", strerror(errno));
    end->lkey = end->mr->lkey;
    end->rkey = end->mr->rkey;
    make_qp(end);
}

void end_open(struct end *end, struct side *side, const struct end_attr *attr)
{
    *end = (struct end){.side = side, .attr = *attr};
    AT_PLAIN(end, open_here);
}

void end_open_in(struct end *end, struct side *side, const struct end_attr *attr, struct ibv_pd *pd,
                 struct ibv_context *context)
{
    *end = (struct end){.side = side, .attr = *attr, .pd = pd, .context = context};
    AT_PLAIN(end, open_here);
}

static void share_here(struct end *end, void *arg)
{
    make_qp(end);
}

void end_share(struct end *end, const struct end *with)
{
    *end = *with;
    end->ah = NULL;
    AT_PLAIN(end, share_here);
}

static void close_qp_here(struct end *end, void *arg)
{
    if (end->qp)
        CHECK_ZERO(ibv_destroy_qp(end->qp));
    if (end->ah)
        CHECK_ZERO(ibv_destroy_ah(end->ah));
    end->qp = NULL;
    end->qpx = NULL;
    end->ah = NULL;
}

void end_close_qp(struct end *end)
{
    AT_PLAIN(end, close_qp_here);
}

static void close_objects_here(struct end *end, void *arg)
{
    close_qp_here(end, NULL);
    if (end->srq)
        CHECK_ZERO(ibv_destroy_srq(end->srq));
    if (end->mr)
        CHECK_ZERO(ibv_dereg_mr(end->mr));
    CHECK_ZERO(ibv_destroy_cq(end->send_cq));
    if (end->recv_cq != end->send_cq)
        CHECK_ZERO(ibv_destroy_cq(end->recv_cq));
    if (end->channel)
        CHECK_ZERO(ibv_destroy_comp_channel(end->channel));
    munmap(end->buf, end->attr.size);
}

static void close_here(struct end *end, void *arg)
{
    close_objects_here(end, NULL);
    CHECK_ZERO(ibv_dealloc_pd(end->pd));
    CHECK_ZERO(ibv_close_device(end->context));
}

void end_close_objects(struct end *end)
{
    AT_PLAIN(end, close_objects_here);
    *end = (struct end){.side = end->side, .pd = end->pd, .context = end->context};
}

void end_close(struct end *end)
{
    AT_PLAIN(end, close_here);
    *end = (struct end){.side = end->side};
}

struct modify {
    struct ibv_qp_attr attr;
    int mask;
    int error;
};

static void modify_here(struct end *end, void *arg)
{
    struct modify *modify = arg;

    modify->error = ibv_modify_qp(end->qp, &modify->attr, modify->mask);
}

int end_modify(struct end *end, const struct ibv_qp_attr *attr, int mask)
{
    struct modify modify = {.attr = *attr, .mask = mask};

    AT(end, modify_here, &modify);
    return modify.error;
}

int end_to_state(struct end *end, enum ibv_qp_state state)
{
    const struct ibv_qp_attr attr = {.qp_state = state};

    return end_modify(end, &attr, IBV_QP_STATE);
}

int attr_for_init(const struct end *end, struct ibv_qp_attr *ret_attr)
{
    *ret_attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = end->port};
    if (end->attr.type == IBV_QPT_UD) {
        ret_attr->qkey = end->attr.qkey;
        return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    }
    ret_attr->qp_access_flags = end->attr.qp_access;
    return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
}

int attr_for_rtr(const struct end *end, const struct end *peer, struct ibv_qp_attr *ret_attr)
{
    int mask = IBV_QP_STATE;

    *ret_attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR};
    if (end->attr.type == IBV_QPT_UD)
        return mask;
    ret_attr->path_mtu = end->attr.mtu;
    ret_attr->dest_qp_num = peer->qp_num;
    ret_attr->rq_psn = peer->psn;
    ret_attr->ah_attr = (struct ibv_ah_attr){
        .is_global = 1,
        .port_num = end->port,
        .grh = {.dgid = peer->gid, .sgid_index = (uint8_t)end->attr.gid_index, .hop_limit = 64},
    };
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (end->attr.type == IBV_QPT_RC) {
        ret_attr->max_dest_rd_atomic = end->attr.max_dest_rd_atomic;
        ret_attr->min_rnr_timer = end->attr.min_rnr_timer;
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    }
    return mask;
}

int attr_for_rts(const struct end *end, struct ibv_qp_attr *ret_attr)
{
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

    *ret_attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = end->psn};
    if (end->attr.type == IBV_QPT_RC) {
        ret_attr->timeout = end->attr.timeout;
        ret_attr->retry_cnt = end->attr.retry_cnt;
        ret_attr->rnr_retry = end->attr.rnr_retry;
        ret_attr->max_rd_atomic = end->attr.max_rd_atomic;
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    return mask;
}

void end_to_init(struct end *end)
{
    struct ibv_qp_attr attr;
    const int mask = attr_for_init(end, &attr);

    CHECK_ZERO(end_modify(end, &attr, mask));
}

void end_to_rtr(struct end *end, const struct end *peer)
{
    struct ibv_qp_attr attr;
    const int mask = attr_for_rtr(end, peer, &attr);

    CHECK_ZERO(end_modify(end, &attr, mask));
}

void end_to_rts(struct end *end)
{
    struct ibv_qp_attr attr;
    const int mask = attr_for_rts(end, &attr);

    CHECK_ZERO(end_modify(end, &attr, mask));
}

struct address {
    union ibv_gid gid;
};

static void make_ah_here(struct end *end, void *arg)
{
    const struct address *address = arg;
    struct ibv_ah_attr attr = {
        .is_global = 1,
        .port_num = end->port,
        .grh = {.dgid = address->gid, .sgid_index = (uint8_t)end->attr.gid_index, .hop_limit = 64},
    };

    end->ah = ibv_create_ah(end->pd, &attr);
    CHECK(end->ah, "ibv_create_ah: %s", strerror(errno));
}

void end_connect(struct end *a, struct end *b)
{
    end_to_init(a);
    end_to_init(b);
    end_to_rtr(a, b);
    end_to_rtr(b, a);
    end_to_rts(a);
    end_to_rts(b);
    if (a->attr.type == IBV_QPT_UD) {
        struct address to_a = {a->gid}, to_b = {b->gid};

        AT(a, make_ah_here, &to_b);
        AT(b, make_ah_here, &to_a);
    }
}

static void query_state_here(struct end *end, void *arg)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    enum ibv_qp_state *state = arg;

    CHECK_ZERO(ibv_query_qp(end->qp, &attr, IBV_QP_STATE, &init));
    *state = attr.qp_state;
}

enum ibv_qp_state end_state(struct end *end)
{
    enum ibv_qp_state state = IBV_QPS_UNKNOWN;

    AT(end, query_state_here, &state);
    return state;
}

void end_wait_state(struct end *end, enum ibv_qp_state state)
{
    EVENTUALLY(end_state(end) == state, "QP state %d", state);
}

void pair_open(struct pair *pair, const struct end_attr *a, const struct end_attr *b)
{
    end_open(&pair->a, NEAR, a);
    end_open(&pair->b, FAR, b);
}

void pair_connect_as(struct pair *pair, const struct end_attr *attr)
{
    pair_open(pair, attr, attr);
    end_connect(&pair->a, &pair->b);
}

void pair_connect(struct pair *pair, enum ibv_qp_type type)
{
    const struct end_attr attr = attr_of(type);

    pair_connect_as(pair, &attr);
}

void pair_close(struct pair *pair)
{
    end_close(&pair->a);
    end_close(&pair->b);
}

static void event_here(struct end *end, void *arg)
{
    struct end_event *out = arg;
    struct ibv_async_event event;
    struct pollfd ready = {.fd = end->context->async_fd, .events = POLLIN};
    struct patience patience = patience_begin("an asynchronous event");

    while (poll(&ready, 1, patience_left_ms(&patience)) != 1)
        patience_wait(&patience, __FILE__, __LINE__);
    patience_end();
    CHECK(!ibv_get_async_event(end->context, &event), "ibv_get_async_event: %s", strerror(errno));
    *out = (struct end_event){.type = event.event_type};
    switch ((int)event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        out->of_qp = event.element.qp == end->qp;
        out->qp_num = event.element.qp->qp_num;
        break;
    case IBV_EVENT_CQ_ERR:
        out->of_send_cq = event.element.cq == end->send_cq;
        out->of_recv_cq = event.element.cq == end->recv_cq;
        break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        out->of_srq = event.element.srq == end->srq;
        break;
    default:
        break;
    }
    ibv_ack_async_event(&event);
}

struct end_event end_event(struct end *end)
{
    struct end_event event = {0};

    AT(end, event_here, &event);
    return event;
}

void end_expect_event(struct end *end, enum ibv_event_type type)
{
    const struct end_event event = end_event(end);

    CHECK(event.type == type, "event is \"%s\", not \"%s\"", ibv_event_type_str(event.type),
          ibv_event_type_str(type));
}
