/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "endpoint.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { PSN = 0x123456, PORT = 1, PAGE = 4096 };

_Noreturn void give_up(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void check(int error, const char *what)
{
    if (error) {
        errno = error;
        give_up(what);
    }
}

void endpoint_open(struct endpoint *ep, const char *device, int gid_index, size_t size)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    struct ibv_device **found;

    if (!list)
        give_up("ibv_get_device_list");
    for (found = list; *found && device && strcmp(ibv_get_device_name(*found), device); found++)
        ;
    if (!*found) {
        errno = ENODEV;
        give_up(device ? device : "no device");
    }
    *ep = (struct endpoint){.gid_index = gid_index, .size = (size + PAGE - 1) / PAGE * PAGE};
    ep->context = ibv_open_device(*found);
    if (!ep->context)
        give_up("ibv_open_device");
    ibv_free_device_list(list);
    check(ibv_query_device(ep->context, &attr), "ibv_query_device");
    check(ibv_query_port(ep->context, PORT, &port), "ibv_query_port");
    if (ibv_query_gid(ep->context, PORT, gid_index, &ep->gid))
        give_up("ibv_query_gid");
    ep->mtu = port.active_mtu;
    ep->rd_atomic = (uint8_t)(attr.max_qp_rd_atom > 16 ? 16 : attr.max_qp_rd_atom);
    ep->pd = ibv_alloc_pd(ep->context);
    if (!ep->pd)
        give_up("ibv_alloc_pd");
    ep->buffer = aligned_alloc(PAGE, ep->size);
    if (!ep->buffer)
        give_up("aligned_alloc");
    memset(ep->buffer, 0, ep->size);
    ep->mr = ibv_reg_mr(ep->pd, ep->buffer, ep->size,
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                            IBV_ACCESS_REMOTE_ATOMIC);
    if (!ep->mr)
        give_up("ibv_reg_mr");
}

void endpoint_close(struct endpoint *ep)
{
    check(ibv_dereg_mr(ep->mr), "ibv_dereg_mr");
    check(ibv_dealloc_pd(ep->pd), "ibv_dealloc_pd");
    check(ibv_close_device(ep->context), "ibv_close_device");
    free(ep->buffer);
}

struct ibv_qp *endpoint_qp(struct endpoint *ep, struct ibv_cq *send_cq, struct ibv_cq *recv_cq,
                           struct qp_shape shape)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = send_cq,
        .recv_cq = recv_cq,
        .cap = {.max_send_wr = shape.send_wr,
                .max_recv_wr = shape.recv_wr,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = shape.inline_data},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = ep->pd,
        .send_ops_flags = shape.send_ops,
    };
    struct ibv_qp_init_attr plain = {
        .send_cq = send_cq, .recv_cq = recv_cq, .cap = init.cap, .qp_type = init.qp_type};
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = PORT,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    struct ibv_qp *qp = shape.send_ops ? ibv_create_qp_ex(ep->context, &init) : ibv_create_qp(ep->pd, &plain);

    if (!qp)
        give_up(shape.send_ops ? "ibv_create_qp_ex" : "ibv_create_qp");
    check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
          "INIT");
    return qp;
}

struct contact endpoint_contact(const struct endpoint *ep, const struct ibv_qp *qp)
{
    return (struct contact){
        .gid = ep->gid,
        .address = (uintptr_t)ep->buffer,
        .qp_num = qp->qp_num,
        .rkey = ep->mr->rkey,
    };
}

void endpoint_connect(const struct endpoint *ep, struct ibv_qp *qp, const struct contact *far)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = ep->mtu,
        .dest_qp_num = far->qp_num,
        .rq_psn = PSN,
        .max_dest_rd_atomic = ep->rd_atomic,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = PORT,
                    .grh = {.dgid = far->gid, .sgid_index = (uint8_t)ep->gid_index, .hop_limit = 64}},
    };

    check(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
          "RTR");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .sq_psn = PSN,
        .max_rd_atomic = ep->rd_atomic,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
    };
    check(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
                            IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY),
          "RTS");
}

void tell(int fd, const void *data, size_t size)
{
    if (send(fd, data, size, MSG_NOSIGNAL) != (ssize_t)size)
        give_up("the other process is gone");
}

void hear(int fd, void *data, size_t size)
{
    if (recv(fd, data, size, MSG_WAITALL) != (ssize_t)size)
        give_up("the other process is gone");
}

bool told(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, 0) > 0;
}
