/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Plain SENDs (docs/design/plain-requests.md): small ones to a peer of this host, at the head of what is posted. They
 * go one straight way from the work request to the record in the ring: the rules are those of object/qp/post.c,
 * transport/sender.c and route.c with the constants of such a request put in. A request that is not plain ends this,
 * and goes through those files, with all that is behind it. The WQE is written as those would: the packet may have to
 * be sent again, and the acknowledgement completes the request as any other. */
#include "base/pkey.h"
#include "engine/core/plain.h"
#include "engine/direct/direct.h"
#include "engine/paths/paths.h"
#include "local/small.h"
#include "object/qp/traffic.h"
#include "wire/opcode.h"

struct run {
    struct qp *qp;
    uint32_t first, counter; /* of the run; of the next request */
    uint64_t bytes;
    struct lane *lane;
    uint8_t awaited;         /* hint of signaled requests */
    bool rings;              /* lane_ring() has to be called */
    struct lane_small small; /* what is the same in all packets; PSN of the next */
};

/* All that was posted before is transmitted, and nothing is due with a request but its packet. QP lock held. */
static inline bool is_possible(const struct qp *qp, uint32_t posted)
{
    const struct transport_qp *transport = &qp->transport;
    const struct sender *sender = &qp->record->sender;

    return transport->link.plain_send_up_to && qp_state(qp) == IBV_QPS_RTS && sender->next == posted &&
           sender->begun == posted && sender->waiting == SENDER_RUNS && !responder_owes(transport) &&
           !qp->counted && !transport->tag_matching && !qp->origin && !times_recorded() &&
           psn_distance(sender->unacked_psn, sender->next_psn) + PLAIN_CALL <= WINDOW_PSNS;
}

static inline bool is_send(unsigned opcode)
{
    return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}

/* may_begin(): a fence has nothing to wait for. */
static inline bool is_plain_wr(const struct qp *qp, const struct ibv_send_wr *wr)
{
    return is_send(wr->opcode) && plain_wr_fits(qp, wr, qp->transport.link.plain_send_up_to) &&
           (!(wr->send_flags & IBV_SEND_FENCE) || !qp->record->sender.rd_atomic_wqes);
}

static inline bool is_plain_wqe(const struct qp *qp, const struct send_wqe *wqe)
{
    return is_send(wqe->opcode) && plain_wqe_fits(wqe, qp->transport.link.plain_send_up_to) &&
           (!(wqe->flags & WQE_FENCE) || !qp->record->sender.rd_atomic_wqes);
}

/* alone, here and below: the only request that is posted. A constant, so that gcc makes two ways of it, and keeps the
 * packet of that request in registers.
 *
 * False: the link is down. */
static always_inline bool run_begin(struct run *run, struct qp *qp, uint32_t posted, bool alone)
{
    const struct qp_record *record = qp->record;

    run->lane = route_of(qp)->lane;
    run->rings = false;
    if (!alone && !lane_begin(run->lane))
        return false;
    run->qp = qp;
    run->first = run->counter = posted;
    run->bytes = 0;
    run->small = (struct lane_small){.dest_qpn = record->attributes.dest_qpn,
                                     .src_qpn = qp->ibv.qp_num,
                                     .psn = record->sender.next_psn,
                                     .dest_ifindex = record->attributes.path.destination_ifindex,
                                     .pkey = DEFAULT_PKEY,
                                     .syndrome = qp->transport.next_hints};
    run->awaited = qp->transport.link.awaited;
    return true;
}

/* begin(), transmit() and lane_send() of the next request. False: nothing was sent. */
static always_inline bool run_send(struct run *run, struct send_wqe *wqe, const void *from, uint32_t length,
                                   uint8_t opcode, uint8_t flags, uint32_t immediate, bool alone)
{
    struct lane_small *small = &run->small;

    if (unlikely(!from))
        return false;
    small->opcode = opcode == IBV_WR_SEND ? OP_SEND_ONLY : OP_SEND_ONLY_IMM;
    small->flags = (uint8_t)(PACKET_ACK_REQUEST | (flags & WQE_SOLICITED ? PACKET_SOLICITED : 0));
    small->syndrome =
        (uint8_t)((small->syndrome & ~PACKET_AWAITED) | (flags & WQE_SIGNALED ? run->awaited : 0));
    small->argument = opcode == IBV_WR_SEND ? 0 : immediate;
    small->length = length;
    small->payload = from;
    if (unlikely(!(alone ? lane_put_alone(run->lane, small, &run->rings) : lane_put(run->lane, small))))
        return false;
    small->syndrome &= (uint8_t) ~(PACKET_TOGETHER | PACKET_BEGINS);
    wqe->first_psn = small->psn;
    wqe->packets = 1;
    wqe->verdict = VERDICT_OK;
    wqe->carriage = WQE_BY_BYTES;
    wqe->exposed = false;
    wqe->read_part = 0;
    small->psn = psn_add(small->psn, 1);
    run->bytes += length;
    run->counter++;
    return true;
}

static always_inline bool send_wr(struct run *run, const struct ibv_send_wr *wr, bool alone)
{
    struct qp *qp = run->qp;
    const struct wqe_sge sge = {wr->sg_list->addr, wr->sg_list->length, wr->sg_list->lkey};
    struct send_wqe *wqe = send_wqe_at(&qp->transport, run->counter);
    bool is_inline = wr->send_flags & IBV_SEND_INLINE;
    uint8_t flags = post_wqe_flags(qp, wr->send_flags);
    const void *from =
        is_inline ? (const void *)(uintptr_t)sge.address : plain_local(qp, sge.lkey, sge.address, sge.length);
    uint8_t chained = !alone && run->counter != run->first ? WQE_CHAINED : 0;

    if (!run_send(run, wqe, from, sge.length, (uint8_t)wr->opcode, flags, wr->imm_data, alone))
        return false;
    wqe->wr_id = wr->wr_id;
    wqe->opcode = (uint8_t)wr->opcode;
    wqe->flags = (uint8_t)(flags | chained | (is_inline ? WQE_INLINE : 0));
    wqe->num_sge = !is_inline;
    wqe->length = sge.length;
    wqe->imm_or_rkey = wr->imm_data;
    wqe->stamp = STAMP_NONE; /* times are not recorded */
    if (is_inline)
        memcpy(wqe + 1, from, sge.length);
    else
        *(struct wqe_sge *)(wqe + 1) = sge;
    return true;
}

static always_inline bool send_wqe(struct run *run, struct send_wqe *wqe, bool alone)
{
    const struct wqe_sge *body = send_wqe_body(wqe, IBV_QPT_RC);
    const void *from = wqe->flags & WQE_INLINE ? (const void *)body
                                               : plain_local(run->qp, body->lkey, body->address, wqe->length);

    return run_send(run, wqe, from, wqe->length, wqe->opcode, wqe->flags, wqe->imm_or_rkey, alone);
}

/* The requests are posted, begun and transmitted. */
static always_inline void run_end(struct run *run, bool alone)
{
    struct qp *qp = run->qp;
    struct transport_qp *transport = &qp->transport;
    struct sender *sender = &qp->record->sender;
    struct traffic_count *traffic = &qp->record->traffic.requested[TRAFFIC_BY_PACKETS][TRAFFIC_SEND];
    uint32_t count = run->counter - run->first;

    if (!alone)
        run->rings = lane_end(run->lane);
    if (unlikely(!count))
        return;
    atomic_store_explicit(&sender->posted, run->counter, memory_order_release);
    sender->begun = sender->next = run->counter;
    sender->next_psn = run->small.psn;
    sender->plain += count;
    transport->next_hints = run->small.syndrome & (uint8_t)~PACKET_AWAITED;
    transport->two_sided += count;
    transport->two_sided_end = run->counter;
    transport->deposits = false;
    traffic->messages += count;
    traffic->bytes += run->bytes;
    traffic_posted(qp, run->counter);
}

/* Those of a call that are plain, up to `left`; the first one is. The first that was not sent, NULL: all were. */
static always_inline struct ibv_send_wr *post_run(struct qp *qp, struct ibv_send_wr *wr, uint32_t posted,
                                                  uint32_t left, bool *ret_rings, bool alone)
{
    struct run run;

    if (!run_begin(&run, qp, posted, alone))
        return wr;
    while (send_wr(&run, wr, alone)) {
        wr = alone ? NULL : wr->next;
        if (!wr || !--left || !is_plain_wr(qp, wr))
            break;
    }
    run_end(&run, alone);
    *ret_rings = run.rings;
    return wr;
}

static inline struct ibv_send_wr *post_sends(struct qp *qp, struct ibv_send_wr *wr, bool *ret_rings)
{
    uint32_t posted = atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed);
    uint32_t left = min_of(send_queue_room(qp, posted), PLAIN_CALL);

    if (!is_possible(qp, posted) || !left || !is_plain_wr(qp, wr))
        return wr;
    return wr->next ? post_run(qp, wr, posted, left, ret_rings, false)
                    : post_run(qp, wr, posted, left, ret_rings, true);
}

static always_inline void run_built(struct qp *qp, struct send_wqe *wqe, uint32_t posted, uint32_t last,
                                    bool *ret_rings, bool alone)
{
    struct run run;

    if (!run_begin(&run, qp, posted, alone))
        return;
    while (send_wqe(&run, wqe, alone) && run.counter != last) {
        wqe = send_wqe_at(&qp->transport, run.counter);
        if (!is_plain_wqe(qp, wqe))
            break;
    }
    run_end(&run, alone);
    *ret_rings = run.rings;
}

static void run_sends(struct qp *qp, uint32_t end, bool *ret_rings)
{
    uint32_t posted = atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed);
    uint32_t last = posted + min_of(end - posted, PLAIN_CALL);
    struct send_wqe *wqe = send_wqe_at(&qp->transport, posted);

    if (!is_possible(qp, posted) || posted == end || !is_plain_wqe(qp, wqe))
        return;
    if (end == posted + 1)
        run_built(qp, wqe, posted, last, ret_rings, true);
    else
        run_built(qp, wqe, posted, last, ret_rings, false);
}

/* Of SENDs that were put into the lane while the QP was locked. complete: nothing is left to be posted, and the lock is
 * released here; else route_ring() follows. */
static inline void end_post(struct qp *qp, bool complete, bool rings)
{
    struct lane *lane = route_of(qp)->lane;

    if (!complete) {
        route_of(qp)->kick |= rings;
        return;
    }
    lock_release(&qp->lock);
    if (unlikely(rings))
        lane_ring(lane);
}

struct ibv_send_wr *plain_post(struct qp *qp, struct ibv_send_wr *wr)
{
    bool rings = false;

    if (qp->transport.link.direct_up_to &&
        (wr->opcode == IBV_WR_RDMA_WRITE ||
         (wr->opcode >= IBV_WR_RDMA_READ && wr->opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD))) {
        wr = direct_post_plain(qp, wr);
        if (likely(!wr)) {
            lock_release(&qp->lock);
            return NULL;
        }
    }
    wr = post_sends(qp, wr, &rings);
    end_post(qp, !wr, rings);
    return wr;
}

bool plain_run(struct qp *qp, uint32_t end)
{
    bool rings = false, complete = false;

    if (qp->transport.link.direct_up_to)
        complete = direct_run_plain(qp, end);
    if (!complete) {
        run_sends(qp, end, &rings);
        complete = atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed) == end;
    }
    end_post(qp, complete, rings);
    return complete;
}
