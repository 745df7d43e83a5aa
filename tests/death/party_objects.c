/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A party's objects, and the connection of its QP by hand. */
#include "party.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

void open_device(struct party *party)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    MUST(list && list[0], "no device: %s", strerror(errno));
    party->context = ibv_open_device(list[0]);
    MUST(party->context, "ibv_open_device: %s", strerror(errno));
    ibv_free_device_list(list);
}

void make_objects(struct party *party)
{
    party->pd = ibv_alloc_pd(party->context);
    MUST(party->pd, "ibv_alloc_pd: %s", strerror(errno));
    party->memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(party->memory != MAP_FAILED, "mmap: %s", strerror(errno));
    for (unsigned i = 0; i < 4; i++)
        memset(party->memory + SOURCE + i * SLOT, (int)(0x60 + i), SLOT);
    party->mr = ibv_reg_mr(party->pd, party->memory, SIZE,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                               IBV_ACCESS_REMOTE_ATOMIC);
    MUST(party->mr, "ibv_reg_mr: %s", strerror(errno));
    party->cq = ibv_create_cq(party->context, 256, NULL, NULL, 0);
    MUST(party->cq, "ibv_create_cq: %s", strerror(errno));
}

struct ibv_qp_init_attr qp_attr(struct party *party)
{
    return (struct ibv_qp_init_attr){
        .send_cq = party->cq,
        .recv_cq = party->cq,
        .cap = {.max_send_wr = 64, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
}

void post_receive(struct party *party, unsigned slot)
{
    struct ibv_sge sge = {(uintptr_t)party->memory + RECEIVES + slot * SLOT, SLOT, party->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1000 + slot, .sg_list = &sge, .num_sge = 1}, *bad;

    MUST(!ibv_post_recv(party->qp, &wr, &bad), "ibv_post_recv: %s", strerror(errno));
}

void make_qp(struct party *party)
{
    struct ibv_qp_init_attr init = qp_attr(party);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_ATOMIC};

    party->qp = ibv_create_qp(party->pd, &init);
    MUST(party->qp, "ibv_create_qp: %s", strerror(errno));
    MUST(!ibv_modify_qp(party->qp, &attr,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
         "INIT");
    for (unsigned i = 0; i < SLOTS; i++)
        post_receive(party, i);
}

/* False: the other party has ended. */
bool connect_qp(struct party *party)
{
    const char *const path = getenv("SOFTHCA_PATH");
    const bool over_network =
        path && !strcmp(path, "wire"); /* where a victim that is stepped seems dead before */
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = IBV_MTU_1024,
                               .max_dest_rd_atomic = 4,
                               .min_rnr_timer = 1,
                               .ah_attr = {.is_global = 1, .port_num = 1, .grh.hop_limit = 64}};

    tell(party, WORD_CARD);
    if (!hear(party, &party->theirs, true))
        return false;
    attr.dest_qp_num = party->theirs.qpn;
    attr.ah_attr.grh.dgid = party->theirs.gid;
    MUST(!ibv_modify_qp(party->qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "RTR: %s", strerror(errno));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = party->patient || party->sockets.recording ? 18
                                           : over_network                             ? 13
                                                          : 10, /* s, 34 ms, 4 ms */
                                .retry_cnt = over_network ? 5 : 2,
                                .rnr_retry = 7,
                                .max_rd_atomic = 4};
    MUST(!ibv_modify_qp(party->qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC),
         "RTS: %s", strerror(errno));
    party->connected = true;
    return true;
}

void close_objects(struct party *party)
{
    if (party->id) {
        if (party->id->qp)
            rdma_destroy_qp(party->id);
        party->qp = NULL;
        MUST(!rdma_destroy_id(party->id), "rdma_destroy_id: %s", strerror(errno));
    }
    if (party->listener)
        MUST(!rdma_destroy_id(party->listener), "rdma_destroy_id: %s", strerror(errno));
    if (party->qp)
        MUST(!ibv_destroy_qp(party->qp), "ibv_destroy_qp");
    if (party->cq)
        MUST(!ibv_destroy_cq(party->cq), "ibv_destroy_cq");
    if (party->mr)
        MUST(!ibv_dereg_mr(party->mr), "ibv_dereg_mr");
    if (party->pd)
        MUST(!ibv_dealloc_pd(party->pd), "ibv_dealloc_pd");
    if (party->channel)
        rdma_destroy_event_channel(party->channel);
    else if (party->context)
        MUST(!ibv_close_device(party->context), "ibv_close_device");
    if (party->memory)
        munmap(party->memory, SIZE);
    party->id = party->listener = NULL;
    party->channel = NULL;
    party->qp = NULL;
    party->cq = NULL;
    party->mr = NULL;
    party->pd = NULL;
    party->context = NULL;
    party->memory = NULL;
    party->connected = false;
}
