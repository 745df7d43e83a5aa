/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Functions of extended CQs and QPs, in whose structures they are replaced. */
#include <stdlib.h>

#include "watch/calls.h"
#include "watch/ring.h"

/* --- extended CQs --------------------------------------------------------------------------------------- */

/* The QP number can be read only if it was asked for, which op_create_cq_ex() does. */
static void note_current(struct watched_cq *cq, struct ibv_cq_ex *ex)
{
    if (!ex->read_qp_num)
        return;
    watched_completed(cq, &(struct completion){
                              .wr_id = ex->wr_id,
                              .qpn = ex->read_qp_num(ex),
                              .status = ex->status,
                              .vendor_err = ex->status != IBV_WC_SUCCESS ? ex->read_vendor_err(ex) : 0,
                              .receive = ex->read_opcode(ex) & IBV_WC_RECV,
                          });
}

static int ex_start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
    struct watched_cq *cq = (struct watched_cq *)table_find_cq(ex);
    int result = cq->ex.start_poll(ex, attr);

    if (is_stale(&cq->base) || watch_thread.inside)
        return result;
    segment_cq(cq->base.number)->polled = 1;
    if (result == 0)
        note_current(cq, ex);
    return result;
}

static int ex_next_poll(struct ibv_cq_ex *ex)
{
    struct watched_cq *cq = (struct watched_cq *)table_find_cq(ex);
    int result = cq->ex.next_poll(ex);

    if (result == 0 && !is_stale(&cq->base) && !watch_thread.inside)
        note_current(cq, ex);
    return result;
}

void watch_cq_ex(struct watched_cq *known, struct ibv_cq_ex *cq)
{
    if (!cq->start_poll || !cq->next_poll)
        return;
    known->ex.start_poll = cq->start_poll;
    known->ex.next_poll = cq->next_poll;
    cq->start_poll = ex_start_poll;
    cq->next_poll = ex_next_poll;
}

/* --- extended QPs --------------------------------------------------------------------------------------- */

/* Stale QPs have their originals, too. */
static inline struct watched_qp *of_ex(struct ibv_qp_ex *ex)
{
    return table_find_qp(&ex->qp_base);
}

#define BUILDS(name, opcode, parameters, ...) BUILDS_AT(ex.name, name, opcode, parameters, __VA_ARGS__)
#define BUILDS_AT(place, name, opcode, parameters, ...)                                                      \
    static void ex_##name parameters                                                                         \
    {                                                                                                        \
        struct watched_qp *known = of_ex(qp);                                                                \
        struct watched_send *wqe;                                                                            \
                                                                                                             \
        if (!is_stale(&known->base) && known->building) {                                                    \
            wqe = build_send(known, qp->wr_id, qp->wr_flags, opcode);                                        \
            if (wqe) {                                                                                       \
                SET(send_rest(known, wqe));                                                                  \
            }                                                                                                \
        }                                                                                                    \
        known->original->place(__VA_ARGS__);                                                                 \
    }

#define SET(rest) (rest->rkey = rkey, rest->remote_address = remote_addr)
BUILDS(wr_atomic_cmp_swp, IBV_WR_ATOMIC_CMP_AND_SWP,
       (struct ibv_qp_ex * qp, uint32_t rkey, uint64_t remote_addr, uint64_t compare, uint64_t swap), qp,
       rkey, remote_addr, compare, swap)
BUILDS(wr_atomic_fetch_add, IBV_WR_ATOMIC_FETCH_AND_ADD,
       (struct ibv_qp_ex * qp, uint32_t rkey, uint64_t remote_addr, uint64_t add), qp, rkey, remote_addr, add)
BUILDS(wr_rdma_read, IBV_WR_RDMA_READ, (struct ibv_qp_ex * qp, uint32_t rkey, uint64_t remote_addr), qp, rkey,
       remote_addr)
BUILDS(wr_rdma_write, IBV_WR_RDMA_WRITE, (struct ibv_qp_ex * qp, uint32_t rkey, uint64_t remote_addr), qp,
       rkey, remote_addr)
BUILDS(wr_rdma_write_imm, IBV_WR_RDMA_WRITE_WITH_IMM,
       (struct ibv_qp_ex * qp, uint32_t rkey, uint64_t remote_addr, __be32 imm), qp, rkey, remote_addr, imm)
BUILDS_AT(wr_atomic_write, wr_atomic_write, IBV_WR_ATOMIC_WRITE,
          (struct ibv_qp_ex * qp, uint32_t rkey, uint64_t remote_addr, const void *data), qp, rkey,
          remote_addr, data)
#undef SET
#define SET(rest) (void)rest
BUILDS(wr_send, IBV_WR_SEND, (struct ibv_qp_ex * qp), qp)
BUILDS(wr_send_imm, IBV_WR_SEND_WITH_IMM, (struct ibv_qp_ex * qp, __be32 imm), qp, imm)
BUILDS(wr_send_inv, IBV_WR_SEND_WITH_INV, (struct ibv_qp_ex * qp, uint32_t rkey), qp, rkey)
BUILDS(wr_local_inv, IBV_WR_LOCAL_INV, (struct ibv_qp_ex * qp, uint32_t rkey), qp, rkey)
BUILDS(wr_send_tso, IBV_WR_TSO, (struct ibv_qp_ex * qp, void *header, uint16_t size, uint16_t mss), qp,
       header, size, mss)
BUILDS(wr_bind_mw, IBV_WR_BIND_MW,
       (struct ibv_qp_ex * qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info), qp, mw,
       rkey, info)
#undef SET

static bool records(const struct watched_qp *qp)
{
    return !is_stale(&qp->base) && qp->building;
}

static void ex_wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t address, uint32_t length)
{
    struct watched_qp *known = of_ex(qp);

    if (records(known))
        build_sge(known, &(struct ibv_sge){address, length, lkey}, 1);
    known->original->ex.wr_set_sge(qp, lkey, address, length);
}

static void ex_wr_set_sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *sges)
{
    struct watched_qp *known = of_ex(qp);

    if (records(known))
        build_sge(known, sges, count);
    known->original->ex.wr_set_sge_list(qp, count, sges);
}

static void ex_wr_set_inline_data(struct ibv_qp_ex *qp, void *data, size_t length)
{
    struct watched_qp *known = of_ex(qp);

    if (records(known))
        build_inline(known, length);
    known->original->ex.wr_set_inline_data(qp, data, length);
}

static void ex_wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_data_buf *buffers)
{
    struct watched_qp *known = of_ex(qp);
    size_t length = 0;

    for (size_t i = 0; i < count; i++)
        length += buffers[i].length;
    if (records(known))
        build_inline(known, length);
    known->original->ex.wr_set_inline_data_list(qp, count, buffers);
}

/* Behind the original: whoever shares the QP has left it, so that the lock here is not held by a thread that waits
 * for the adapter's. */
static void ex_wr_start(struct ibv_qp_ex *qp)
{
    struct watched_qp *known = of_ex(qp);

    if (!is_stale(&known->base) && !watch_thread.inside)
        build_begin(known);
    known->original->ex.wr_start(qp);
}

static int ex_wr_complete(struct ibv_qp_ex *qp)
{
    struct watched_qp *known = of_ex(qp);
    uint32_t published;
    int result;

    if (!records(known))
        return known->original->ex.wr_complete(qp);
    published = build_publish(known);
    result = INSIDE(known->original->ex.wr_complete(qp));
    build_end(known, published, result != 0);
    if (result)
        tell_refused("ibv_wr_complete", OBJECT_QP, known->base.number, result, NULL);
    return result;
}

static void ex_wr_abort(struct ibv_qp_ex *qp)
{
    struct watched_qp *known = of_ex(qp);

    known->original->ex.wr_abort(qp);
    if (records(known))
        build_end(known, 0, false);
}

#define REPLACE_IN(structure, saved, name)                                                                   \
    do {                                                                                                     \
        if ((structure)->name && (structure)->name != ex_##name) {                                           \
            (saved)->name = (structure)->name;                                                               \
            (structure)->name = ex_##name;                                                                   \
        }                                                                                                    \
    } while (0)

void replace_qp_ex(struct watched_qp *known)
{
    struct ibv_qp_ex *qp = known->ex, *saved;
    union newest_qp *newest = (union newest_qp *)qp;

    if (!qp)
        return;
    saved = &known->original->ex;
    REPLACE_IN(qp, saved, wr_atomic_cmp_swp);
    REPLACE_IN(qp, saved, wr_atomic_fetch_add);
    REPLACE_IN(qp, saved, wr_bind_mw);
    REPLACE_IN(qp, saved, wr_local_inv);
    REPLACE_IN(qp, saved, wr_rdma_read);
    REPLACE_IN(qp, saved, wr_rdma_write);
    REPLACE_IN(qp, saved, wr_rdma_write_imm);
    REPLACE_IN(qp, saved, wr_send);
    REPLACE_IN(qp, saved, wr_send_imm);
    REPLACE_IN(qp, saved, wr_send_inv);
    REPLACE_IN(qp, saved, wr_send_tso);
    REPLACE_IN(qp, saved, wr_set_inline_data);
    REPLACE_IN(qp, saved, wr_set_inline_data_list);
    REPLACE_IN(qp, saved, wr_set_sge);
    REPLACE_IN(qp, saved, wr_set_sge_list);
    REPLACE_IN(qp, saved, wr_start);
    REPLACE_IN(qp, saved, wr_complete);
    REPLACE_IN(qp, saved, wr_abort);
    if (known->atomic_write) /* the structure of older libraries ends before it */
        REPLACE_IN(newest, known->original, wr_atomic_write);
}

void watch_qp_ex(struct watched_qp *known, struct ibv_qp *qp, uint64_t operations)
{
    struct ibv_qp_ex *ex = original_qp_to_qp_ex(qp);

    known->original = ex ? calloc(1, sizeof(*known->original)) : NULL;
    if (!known->original)
        return;
    known->ex = ex;
    known->atomic_write = operations & IBV_QP_EX_WITH_ATOMIC_WRITE;
    replace_qp_ex(known);
}
