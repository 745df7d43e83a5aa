/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ibv_wr_*: builders and setters (verbs.md §3.8). A failing builder leaves its error for ibv_wr_complete(). */
#include "front/verbs/front.h"
#include "front/verbs/injected.h"
#include "object/qp/qp.h"

static struct qp *qp_of_extended(struct ibv_qp_ex *qp)
{
    return container_of(qp, struct qp, ex);
}

static void wr_start(struct ibv_qp_ex *qp)
{
    qp_build_start(qp_of_extended(qp));
}

int front_wr_complete(struct ibv_qp_ex *qp)
{
    return positive(qp_build_complete(qp_of_extended(qp)));
}

static void wr_abort(struct ibv_qp_ex *qp)
{
    qp_build_abort(qp_of_extended(qp));
}

static struct send_wqe *remote_wr(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey,
                                  uint64_t address)
{
    struct send_wqe *wqe = qp_build_wr(qp_of_extended(qp), opcode);

    if (likely(wqe != NULL)) {
        wqe->rkey = rkey;
        wqe->remote_address = address;
    }
    return wqe;
}

static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address)
{
    remote_wr(qp, IBV_WR_RDMA_READ, rkey, address);
}

static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address)
{
    remote_wr(qp, IBV_WR_RDMA_WRITE, rkey, address);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address, __be32 imm_data)
{
    struct send_wqe *wqe = remote_wr(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address);

    if (likely(wqe != NULL))
        wqe->imm_or_rkey = imm_data;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address, uint64_t compare,
                              uint64_t swap)
{
    struct send_wqe *wqe = remote_wr(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, address);

    if (likely(wqe != NULL)) {
        wqe->atomic.compare_add = compare;
        wqe->atomic.swap = swap;
    }
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address, uint64_t add)
{
    struct send_wqe *wqe = remote_wr(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, address);

    if (likely(wqe != NULL))
        wqe->atomic.compare_add = add;
}

static void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address, const void *value)
{
    qp_build_atomic_write(qp_of_extended(qp), rkey, address, value);
}

static void wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address, size_t length, uint8_t types,
                     uint8_t level)
{
    qp_build_flush(qp_of_extended(qp), rkey, address, length, types, level);
}

static void send_wr(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t imm_or_rkey)
{
    struct send_wqe *wqe = qp_build_wr(qp_of_extended(qp), opcode);

    if (likely(wqe != NULL))
        wqe->imm_or_rkey = imm_or_rkey;
}

static void wr_send(struct ibv_qp_ex *qp)
{
    send_wr(qp, IBV_WR_SEND, 0);
}

static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm_data)
{
    send_wr(qp, IBV_WR_SEND_WITH_IMM, imm_data);
}

static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
    send_wr(qp, IBV_WR_SEND_WITH_INV, rkey);
}

static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
    send_wr(qp, IBV_WR_LOCAL_INV, rkey);
}

static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey,
                       const struct ibv_mw_bind_info *bind_info)
{
    qp_build_bind(qp_of_extended(qp), mw_of(mw), rkey, bind_info);
}

static void wr_send_tso(struct ibv_qp_ex *qp, void *header, uint16_t header_size, uint16_t segment_size)
{
    qp_build_wr(qp_of_extended(qp), IBV_WR_TSO); /* no QP type supports TSO: fails */
}

static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn, uint32_t remote_qkey)
{
    qp_build_ud_address(qp_of_extended(qp), ah_of(ah), remote_qpn, remote_qkey);
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t remote_srqn)
{
    qp_build_srq_number(qp_of_extended(qp), remote_srqn);
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *address, size_t length)
{
    struct ibv_data_buf buffer = {.addr = address, .length = length};

    qp_build_inline_list(qp_of_extended(qp), 1, &buffer);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_data_buf *list)
{
    qp_build_inline_list(qp_of_extended(qp), count, list);
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t address, uint32_t length)
{
    struct ibv_sge sge = {.addr = address, .length = length, .lkey = lkey};

    qp_build_sge_list(qp_of_extended(qp), 1, &sge);
}

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *list)
{
    qp_build_sge_list(qp_of_extended(qp), count, list);
}

/* Every extended QP gets all functions; the program's send_ops_flags say which ones it may call. */
void front_fill_wr_ops(struct ibv_qp_ex *qp)
{
    qp->wr_start = wr_start;
    qp->wr_complete = front_wr_complete;
    qp->wr_abort = wr_abort;
    qp->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
    qp->wr_atomic_fetch_add = wr_atomic_fetch_add;
    qp_of_extended(qp)->newest.wr_atomic_write = wr_atomic_write;
    qp_of_extended(qp)->newest.wr_flush = wr_flush;
    qp->wr_bind_mw = wr_bind_mw;
    qp->wr_local_inv = wr_local_inv;
    qp->wr_rdma_read = wr_rdma_read;
    qp->wr_rdma_write = wr_rdma_write;
    qp->wr_rdma_write_imm = wr_rdma_write_imm;
    qp->wr_send = wr_send;
    qp->wr_send_imm = wr_send_imm;
    qp->wr_send_inv = wr_send_inv;
    qp->wr_send_tso = wr_send_tso;
    qp->wr_set_ud_addr = wr_set_ud_addr;
    qp->wr_set_xrc_srqn = wr_set_xrc_srqn;
    qp->wr_set_inline_data = wr_set_inline_data;
    qp->wr_set_inline_data_list = wr_set_inline_data_list;
    qp->wr_set_sge = wr_set_sge;
    qp->wr_set_sge_list = wr_set_sge_list;
    atomic_thread_fence(memory_order_seq_cst); /* partner: replace() in engine/core/faults.c */
    if (inject_loaded())
        injected_fill_wr_ops(qp);
}
