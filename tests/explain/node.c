/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "node.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

void node_open(struct node *node)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);

    memset(node, 0, sizeof(*node));
    REQUIRE(list && count > 0);
    node->context = ibv_open_device(list[0]);
    REQUIRE(node->context);
    ibv_free_device_list(list);
    REQUIRE(ibv_query_gid(node->context, 1, 0, &node->gid) == 0);
    node->pd = ibv_alloc_pd(node->context);
    REQUIRE(node->pd);
    node->buffer = calloc(1, BUFFER_BYTES);
    REQUIRE(node->buffer);
    node->mr = ibv_reg_mr(node->pd, node->buffer, BUFFER_BYTES,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_ATOMIC);
    REQUIRE(node->mr);
}

void node_close(struct node *node)
{
    REQUIRE(ibv_dereg_mr(node->mr) == 0);
    REQUIRE(ibv_dealloc_pd(node->pd) == 0);
    REQUIRE(ibv_close_device(node->context) == 0);
    free(node->buffer);
}

struct ibv_qp *make_qp(const struct node *node, struct ibv_cq *cq, struct ibv_srq *srq, uint32_t wrs)
{
    struct ibv_qp_init_attr attributes = {
        .send_cq = cq,
        .recv_cq = cq,
        .srq = srq,
        .cap = {.max_send_wr = wrs, .max_recv_wr = wrs, .max_send_sge = 2, .max_recv_sge = 2},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp *qp = ibv_create_qp(node->pd, &attributes);

    REQUIRE(qp);
    return qp;
}

void to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
    };

    REQUIRE(ibv_modify_qp(qp, &attributes,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}

void to_rtr(const struct node *node, struct ibv_qp *qp, uint32_t dest_qpn, const union ibv_gid *gid)
{
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = dest_qpn,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 1}},
    };

    REQUIRE(ibv_modify_qp(qp, &attributes,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
}

void to_rts(struct ibv_qp *qp, uint8_t timeout, uint8_t retries, uint8_t rnr_retries)
{
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTS,
        .timeout = timeout,
        .retry_cnt = retries,
        .rnr_retry = rnr_retries,
        .max_rd_atomic = 4,
    };

    REQUIRE(ibv_modify_qp(qp, &attributes,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

void to_error(struct ibv_qp *qp)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};

    REQUIRE(ibv_modify_qp(qp, &attributes, IBV_QP_STATE) == 0);
}

void connect_qps(const struct node *node, struct ibv_qp *a, struct ibv_qp *b, uint8_t timeout,
                 uint8_t retries, uint8_t rnr_retries)
{
    to_init(a);
    to_init(b);
    to_rtr(node, a, b->qp_num, &node->gid);
    to_rtr(node, b, a->qp_num, &node->gid);
    to_rts(a, timeout, retries, rnr_retries);
    to_rts(b, timeout, retries, rnr_retries);
}

void post_receive(const struct node *node, struct ibv_qp *qp, uint64_t wr_id, uint32_t length)
{
    struct ibv_sge sge = {(uintptr_t)node->buffer, length, node->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;

    REQUIRE(ibv_post_recv(qp, &wr, &bad) == 0);
}

void post_send(const struct node *node, struct ibv_qp *qp, uint64_t wr_id, enum ibv_wr_opcode opcode,
               uint32_t length, unsigned flags)
{
    struct ibv_sge sge = {(uintptr_t)node->buffer, length, node->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = flags},
                       *bad;

    wr.wr.rdma.remote_addr = (uintptr_t)node->buffer + BUFFER_BYTES / 2;
    wr.wr.rdma.rkey = node->mr->rkey;
    REQUIRE(ibv_post_send(qp, &wr, &bad) == 0);
}

struct ibv_wc wait_for_completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int count;

    do {
        count = ibv_poll_cq(cq, 1, &wc);
    } while (count == 0);
    REQUIRE(count == 1);
    return wc;
}

void say(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

void wait_for_word(void)
{
    char byte;

    while (read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n') {
    }
}

const struct situation *situation_wanted(int argc, char **argv, const struct situation *situations,
                                         size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (argc < 2)
            puts(situations[i].name);
        else if (strcmp(argv[1], situations[i].name) == 0)
            return &situations[i];
    }
    return NULL;
}
