/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "cm.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>

struct box {
    struct cm_end end;
    cm_fn *fn;
    size_t length;
    unsigned char arg[4096] __attribute__((aligned(16)));
};

static void unbox(void *arg)
{
    struct box *box = arg;

    box->fn(&box->end, box->length ? box->arg : NULL);
}

void cm_call(struct cm_end *end, cm_fn *fn, void *arg, size_t length)
{
    struct box box;

    CHECK(length <= sizeof box.arg, "%zu bytes do not fit into a box", length);
    memset(&box, 0, offsetof(struct box, arg));
    box.end = *end;
    box.fn = fn;
    box.length = length;
    if (length)
        memcpy(box.arg, arg, length);
    side_call(end->side, unbox, &box, offsetof(struct box, arg) + length);
    *end = box.end;
    if (length)
        memcpy(arg, box.arg, length);
}

/* --- addresses --- */

struct sockaddr_storage cm_address(uint16_t port)
{
    const char *text = getenv("SOFTHCA_TEST_ADDRESS");
    struct sockaddr_storage storage = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&storage;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&storage;

    if (!text)
        text = "127.0.0.1";
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
    } else {
        CHECK(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1, "%s is no address", text);
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
    }
    return storage;
}

socklen_t cm_length(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* --- opening and closing --- */

static void open_it(struct cm_end *end, void *arg)
{
    const enum rdma_port_space *ps = arg;

    end->channel = rdma_create_event_channel();
    CHECK(end->channel, "rdma_create_event_channel: %s", strerror(errno));
    CM_ZERO(rdma_create_id(end->channel, &end->id, end, *ps));
}

void cm_open(struct cm_end *end, struct side *side, enum rdma_port_space ps)
{
    *end = (struct cm_end){.side = side};
    CM_AT(end, open_it, &ps);
}

static void destroy_id(struct rdma_cm_id *id)
{
    if (!id)
        return;
    rdma_destroy_qp(id);
    CM_ZERO(rdma_destroy_id(id));
}

static void close_it(struct cm_end *end, void *arg)
{
    if (end->mr)
        CHECK_ZERO(ibv_dereg_mr(end->mr));
    free(end->buf);
    destroy_id(end->child);
    destroy_id(end->id);
    if (end->channel)
        rdma_destroy_event_channel(end->channel);
    end->child = end->id = NULL;
    end->channel = NULL;
}

void cm_close(struct cm_end *end)
{
    CM_AT_PLAIN(end, close_it);
}

struct listening {
    int backlog;
    uint16_t port;
};

static void listen_here(struct cm_end *end, void *arg)
{
    struct sockaddr_storage address = cm_address(0);
    struct listening *listening = arg;

    CM_ZERO(rdma_bind_addr(end->id, as_sockaddr(&address)));
    CM_ZERO(rdma_listen(end->id, listening->backlog));
    listening->port = ntohs(rdma_get_src_port(end->id));
}

uint16_t cm_listen(struct cm_end *end, int backlog)
{
    struct listening listening = {.backlog = backlog};

    CM_AT(end, listen_here, &listening);
    return listening.port;
}

/* --- events --- */

static void wait_for_event(struct cm_end *end)
{
    struct pollfd event = {.fd = end->channel->fd, .events = POLLIN};
    struct patience patience = patience_begin("an event of rdma_cm");
    int left = patience_left_ms(&patience), ready;

    do
        ready = poll(&event, 1, left);
    while (ready < 0 && errno == EINTR);
    CHECK(ready == 1, "no event of rdma_cm within %d ms", left);
    patience_end();
}

static void copy_event(struct cm_end *end, const struct rdma_cm_event *event, struct cm_seen *seen)
{
    const struct rdma_conn_param *conn = &event->param.conn;
    const struct rdma_ud_param *ud = &event->param.ud;
    const bool datagrams = event->id->qp_type == IBV_QPT_UD;

    *seen = (struct cm_seen){.type = event->event,
                             .status = event->status,
                             .of_child = event->id == end->child,
                             .has_listener = event->listen_id != NULL,
                             .length = datagrams ? ud->private_data_len : conn->private_data_len};
    if (seen->length)
        memcpy(seen->data, datagrams ? ud->private_data : conn->private_data, seen->length);
    if (datagrams) {
        seen->qp_num = ud->qp_num;
        seen->qkey = ud->qkey;
        seen->ah_attr = ud->ah_attr;
        return;
    }
    seen->responder_resources = conn->responder_resources;
    seen->initiator_depth = conn->initiator_depth;
    seen->retry_count = conn->retry_count;
    seen->rnr_retry_count = conn->rnr_retry_count;
    seen->flow_control = conn->flow_control;
    seen->qp_num = conn->qp_num;
}

static void take_event(struct cm_end *end, void *arg)
{
    struct rdma_cm_event *event;

    wait_for_event(end);
    CM_ZERO(rdma_get_cm_event(end->channel, &event));
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        CHECK(event->listen_id == end->id, "a request for another listener");
        end->child = event->id;
    }
    copy_event(end, event, arg);
    CM_ZERO(rdma_ack_cm_event(event));
}

struct cm_seen cm_next(struct cm_end *end)
{
    struct cm_seen seen = {0};

    CM_AT(end, take_event, &seen);
    return seen;
}

struct cm_seen cm_expect(struct cm_end *end, enum rdma_cm_event_type type)
{
    struct cm_seen seen = cm_next(end);

    CHECK(seen.type == type, "%s with status %d, expected %s", rdma_event_str(seen.type), seen.status,
          rdma_event_str(type));
    return seen;
}

static void look_for_events(struct cm_end *end, void *arg)
{
    struct pollfd event = {.fd = end->channel->fd, .events = POLLIN};

    *(bool *)arg = poll(&event, 1, 0) == 1;
}

void cm_expect_none(struct cm_end *end)
{
    bool there;

    CM_AT(end, look_for_events, &there);
    CHECK(!there, "an event where there should be none");
}

/* --- the active side up to the route --- */

static void resolve_address(struct cm_end *end, void *arg)
{
    struct sockaddr_storage address = cm_address(*(uint16_t *)arg);

    CM_ZERO(rdma_resolve_addr(end->id, NULL, as_sockaddr(&address), 2000));
}

static void resolve_route(struct cm_end *end, void *arg)
{
    CM_ZERO(rdma_resolve_route(end->id, 2000));
}

void cm_resolve(struct cm_end *end, uint16_t port)
{
    CM_AT(end, resolve_address, &port);
    cm_expect(end, RDMA_CM_EVENT_ADDR_RESOLVED);
    CM_AT_PLAIN(end, resolve_route);
    cm_expect(end, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

static void make_qp(struct cm_end *end, void *arg)
{
    struct rdma_cm_id *id = *(bool *)arg ? end->child : end->id;
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = id->qp_type,
        .sq_sig_all = 1,
    };

    CM_ZERO(rdma_create_qp(id, NULL, &attr));
    end->buf = calloc(1, CM_BUFFER);
    end->mr = ibv_reg_mr(id->pd, end->buf, CM_BUFFER,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    CHECK(end->mr, "ibv_reg_mr: %s", strerror(errno));
}

void cm_make_qp(struct cm_end *end, bool of_child)
{
    CM_AT(end, make_qp, &of_child);
}

void cm_prepare(struct cm_end *end, uint16_t port)
{
    cm_resolve(end, port);
    cm_make_qp(end, false);
}

/* --- calls --- */

struct call_with_parameters {
    struct cm_parameters parameters;
    bool accept;
    int result;
};

static void connect_or_accept(struct cm_end *end, void *arg)
{
    struct call_with_parameters *call = arg;
    const struct cm_parameters *wanted = &call->parameters;
    struct rdma_conn_param param = {
        .private_data = wanted->length ? wanted->data : NULL,
        .private_data_len = wanted->length,
        .responder_resources = wanted->responder_resources,
        .initiator_depth = wanted->initiator_depth,
        .retry_count = wanted->retry_count,
        .rnr_retry_count = wanted->rnr_retry_count,
        .qp_num = wanted->qp_num,
    };
    struct rdma_conn_param *which = wanted->none ? NULL : &param;

    call->result = CM(call->accept ? rdma_accept(end->child, which) : rdma_connect(end->id, which));
}

static int with_parameters(struct cm_end *end, const struct cm_parameters *parameters, bool accept)
{
    struct call_with_parameters call = {.accept = accept};

    if (parameters)
        call.parameters = *parameters;
    CM_AT(end, connect_or_accept, &call);
    return call.result;
}

int cm_connect(struct cm_end *end, const struct cm_parameters *parameters)
{
    return with_parameters(end, parameters, false);
}

int cm_accept(struct cm_end *end, const struct cm_parameters *parameters)
{
    return with_parameters(end, parameters, true);
}

struct rejection {
    uint8_t data[256];
    uint8_t length;
    int result;
};

static void reject(struct cm_end *end, void *arg)
{
    struct rejection *rejection = arg;

    rejection->result = CM(rdma_reject(end->child, rejection->data, rejection->length));
}

int cm_reject(struct cm_end *end, const void *data, uint8_t length)
{
    struct rejection rejection = {.length = length};

    if (data)
        memcpy(rejection.data, data, length);
    CM_AT(end, reject, &rejection);
    return rejection.result;
}

struct of_child {
    bool of_child;
    int result;
};

static void disconnect(struct cm_end *end, void *arg)
{
    struct of_child *of = arg;

    of->result = CM(rdma_disconnect(of->of_child ? end->child : end->id));
}

int cm_disconnect(struct cm_end *end, bool of_child)
{
    struct of_child of = {.of_child = of_child};

    CM_AT(end, disconnect, &of);
    return of.result;
}

static void state_of(struct cm_end *end, void *arg)
{
    struct of_child *of = arg;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    CHECK_ZERO(ibv_query_qp((of->of_child ? end->child : end->id)->qp, &attr, IBV_QP_STATE, &init));
    of->result = (int)attr.qp_state;
}

enum ibv_qp_state cm_state(struct cm_end *end, bool of_child)
{
    struct of_child of = {.of_child = of_child};

    CM_AT(end, state_of, &of);
    return (enum ibv_qp_state)of.result;
}

/* --- pairs --- */

void cm_pair_open(struct cm_pair *pair)
{
    const struct cm_parameters parameters = {
        .responder_resources = 4, .initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7};
    uint16_t port;

    cm_open(&pair->far, FAR, RDMA_PS_TCP);
    port = cm_listen(&pair->far, 8);
    cm_open(&pair->near, NEAR, RDMA_PS_TCP);
    cm_prepare(&pair->near, port);
    CHECK_ZERO(cm_connect(&pair->near, &parameters));
    cm_expect(&pair->far, RDMA_CM_EVENT_CONNECT_REQUEST);
    cm_make_qp(&pair->far, true);
    CHECK_ZERO(cm_accept(&pair->far, &parameters));
    cm_expect(&pair->near, RDMA_CM_EVENT_ESTABLISHED);
    cm_expect(&pair->far, RDMA_CM_EVENT_ESTABLISHED);
}

void cm_pair_close(struct cm_pair *pair)
{
    cm_close(&pair->near);
    cm_close(&pair->far);
}

struct message {
    bool of_child, send;
    uint8_t byte;
};

static void post(struct cm_end *end, void *arg)
{
    const struct message *message = arg;
    struct rdma_cm_id *id = message->of_child ? end->child : end->id;
    struct ibv_sge sge = {.addr = (uintptr_t)end->buf, .length = 64, .lkey = end->mr->lkey};
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad_receive;

    if (message->send) {
        memset(end->buf, message->byte, 64);
        CHECK_ZERO(ibv_post_send(id->qp, &send, &bad_send));
    } else {
        memset(end->buf, 0, 64);
        CHECK_ZERO(ibv_post_recv(id->qp, &receive, &bad_receive));
    }
}

static void complete(struct cm_end *end, void *arg)
{
    const struct message *message = arg;
    struct rdma_cm_id *id = message->of_child ? end->child : end->id;
    struct ibv_cq *cq = message->send ? id->send_cq : id->recv_cq;
    struct ibv_wc wc;

    EVENTUALLY(ibv_poll_cq(cq, 1, &wc) == 1, "a completion");
    CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
    if (!message->send)
        CHECK(end->buf[0] == message->byte && end->buf[63] == message->byte, "other bytes arrived");
}

static void pass(struct cm_end *from, bool from_child, struct cm_end *to, bool to_child, uint8_t byte)
{
    struct message receive = {.of_child = to_child, .byte = byte};
    struct message send = {.of_child = from_child, .send = true, .byte = byte};

    CM_AT(to, post, &receive);
    CM_AT(from, post, &send);
    CM_AT(from, complete, &send);
    CM_AT(to, complete, &receive);
}

void cm_pair_talk(struct cm_pair *pair)
{
    pass(&pair->near, false, &pair->far, true, 0x5a);
    pass(&pair->far, true, &pair->near, false, 0xa5);
}
