/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Plain requests: small RDMA WRITEs, READs and atomics at the head of what is posted, of memory that is mapped here
 * already (docs/design/plain-requests.md). They go one straight way from the work request to the copy and the
 * completion: the rules are those of object/qp/post.c, transport/sender.c, direct.c and complete.c with the constants
 * of such a request put in. A request that is not plain ends this, and goes through those files, with all that is
 * behind it.
 *
 * WRITEs or READs for one rkey that follow each other are a run, with one access slot; an atomic is one alone,
 * because it must not be executed again if the access turns out void. What is checked of the keys holds until its
 * end: the peer waits for the access slot, and this process for the rundown section, before the memory is another's. */
#include "engine/core/plain.h"
#include "engine/direct/direct.h"
#include "object/qp/traffic.h"
#include "transport/cpu_atomic.h"
#include "transport/ordered_copy.h"

/* Bytes of a request: place() copies so many in line. */
#define PLAIN_BYTES ((uint32_t)PLACE_SMALL)
/* Requests of a run, whose completions take the CQ's lock once. */
#define PLAIN_RUN 16u

struct run {
    struct qp *qp;
    struct direct_route *direct;
    uint32_t counter; /* of the next request */
    enum traffic_kind kind;
    uint32_t completions;
    uint64_t bytes;
    ns_t began;     /* 0: is not measured */
    uintptr_t last; /* where the last WRITE was placed */
    struct cq_success sent[PLAIN_RUN];
};

_Static_assert(offsetof(struct transport_qp, link.mtu) <= CACHE_LINE, "what is asked here is one cache line");

/* All that was posted before is complete, and nothing is due with a request but its execution. QP lock held. */
static inline bool is_possible(const struct qp *qp)
{
    const struct transport_qp *transport = &qp->transport;
    const struct sender *sender = &qp->record->sender;

    __builtin_prefetch(route_of(qp)->direct.record); /* qp_prefetch_plain() could not name it yet */
    return route_of(qp)->direct.peer && qp_state(qp) == IBV_QPS_RTS &&
           sender->completed == atomic_load_explicit(&sender->posted, memory_order_relaxed) && !qp->ack_due &&
           !qp->counted && !transport->tag_matching && !transport->map_later && !times_recorded();
}

/* --- which requests are plain ------------------------------------------------------------------------ */

/* Lengths from 1 on that are plain. */
static inline uint32_t longest(const struct qp *qp)
{
    return min_of(PLAIN_BYTES, qp->transport.link.direct_up_to);
}

/* is_one_sided(). */
static inline bool may_read(const struct qp *qp)
{
    return qp->record->attributes.max_rd_atomic && !qp->transport.link.rd_atomic_by_packets;
}

/* is_one_sided(). All before it is complete, so a fence has nothing to wait for; these requests are never solicited. */
static inline bool is_plain_wr(const struct qp *qp, const struct ibv_send_wr *wr)
{
    return (wr->opcode == IBV_WR_RDMA_WRITE ||
            (wr->opcode == IBV_WR_RDMA_READ && may_read(qp) && !(wr->send_flags & IBV_SEND_INLINE))) &&
           plain_wr_fits(qp, wr, longest(qp));
}

static inline bool is_plain_wqe(const struct qp *qp, const struct send_wqe *wqe)
{
    return (wqe->opcode == IBV_WR_RDMA_WRITE || (wqe->opcode == IBV_WR_RDMA_READ && may_read(qp))) &&
           plain_wqe_fits(wqe, longest(qp));
}

/* Where a READ places its bytes; NULL: the key is not known to allow it. */
static inline void *read_target(const struct qp *qp, uint32_t lkey, uint64_t address, uint32_t length)
{
    if (unlikely(qp->transport.receive_pd != qp->record->pd))
        return NULL; /* an SRQ has a PD of its own, for which the receives have found their key */
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return (void *)local_key_address(&route_of(qp)->receive_key, qp->transport.keys, qp->record->pd, lkey,
                                     address, length, true);
}

/* --- a run ------------------------------------------------------------------------------------------- */

/* Takes an access slot and checks the peer's QP and key, as direct_map(). What that would have to look for is not
 * plain. */
static always_inline bool run_begin(struct run *run, struct qp *qp, uint32_t counter, uint32_t rkey,
                                    enum traffic_kind kind)
{
    struct direct_route *direct = &route_of(qp)->direct;

    if (direct->mapped.rkey != rkey || unlikely(!rkey))
        return false;
    direct->access_slot = access_slot_take(direct->peer->access_slots, qp->slot, ACCESS_STORES, direct->slot,
                                           key_slot(rkey), &direct->access_slot_word);
    if (unlikely(!direct->access_slot))
        return false;
    if (unlikely(!direct_is_open(direct) || !direct_key_is_current(direct->peer, &direct->mapped, rkey))) {
        access_slot_release(direct->access_slot, direct->access_slot_word);
        return false;
    }
    run->qp = qp;
    run->direct = direct;
    run->counter = counter;
    run->kind = kind;
    run->completions = 0;
    run->bytes = 0;
    run->began = 0;
    return true;
}

/* A request that makes a completion is about to be executed. */
static always_inline void run_time(struct run *run)
{
    if (traffic_is_due(run->qp, run->counter + 1) && !run->began)
        run->began = traffic_begin_plain(run->qp, run->counter + 1);
}

/* The next request was executed. */
static always_inline void run_add(struct run *run, uint64_t wr_id, bool signaled, uint32_t length,
                                  enum ibv_wc_opcode opcode)
{
    run->bytes += length;
    run->sent[run->completions] = (struct cq_success){
        .wr_id = wr_id, .retires = ++run->counter, .byte_len = length, .opcode = (uint8_t)opcode};
    run->completions += signaled;
}

/* Executes the next WRITE or READ. here: bytes of this process, or NULL; a READ writes them. False: it is not executed,
 * because a key may not allow it. */
static always_inline bool run_execute(struct run *run, const void *here, uint32_t length,
                                      uint64_t remote_address, uint64_t wr_id, bool signaled)
{
    bool reads = run->kind == TRAFFIC_READ;
    uintptr_t there =
        direct_address_in(&run->direct->mapped, remote_address, length, reads ? REMOTE_READ : REMOTE_WRITE);

    if (unlikely(!here || !there))
        return false;
    if (signaled)
        run_time(run);
    if (reads) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr)
        place_inline((void *)(uintptr_t)here, (const void *)there, length);
    } else {
        place_inline((void *)there, here, length); // NOLINT(performance-no-int-to-ptr)
        run->last = there;
    }
    run_add(run, wr_id, signaled, length, reads ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
    return true;
}

/* The bytes of this process. */
static inline const void *local_bytes(const struct run *run, uint32_t lkey, uint64_t address, uint32_t length)
{
    return run->kind == TRAFFIC_READ ? read_target(run->qp, lkey, address, length)
                                     : plain_local(run->qp, lkey, address, length);
}

static always_inline bool execute_wr(struct run *run, const struct ibv_send_wr *wr)
{
    struct qp *qp = run->qp;
    const struct ibv_sge *sge = wr->sg_list;
    bool is_inline = wr->send_flags & IBV_SEND_INLINE;
    uint8_t flags = post_wqe_flags(qp, wr->send_flags);
    struct send_wqe *wqe = send_wqe_at(&qp->transport, run->counter);

    if (!run_execute(run,
                     is_inline ? (const void *)(uintptr_t)sge->addr
                               : local_bytes(run, sge->lkey, sge->addr, sge->length),
                     sge->length, wr->wr.rdma.remote_addr, wr->wr_id, flags & WQE_SIGNALED))
        return false;
    send_wqe_note(wqe, wr->wr_id, (uint8_t)wr->opcode, flags, sge->length);
    return true;
}

static inline bool execute_wqe(struct run *run, struct send_wqe *wqe)
{
    const struct wqe_sge *body = send_wqe_body(wqe, IBV_QPT_RC);

    return run_execute(run,
                       wqe->flags & WQE_INLINE ? (const void *)body
                                               : local_bytes(run, body->lkey, body->address, wqe->length),
                       wqe->length, wqe->remote_address, wqe->wr_id, wqe->flags & WQE_SIGNALED);
}

/* False: the peer has stopped waiting, and the accesses are void. */
static always_inline bool run_release(const struct run *run)
{
    return access_slot_release(run->direct->access_slot, run->direct->access_slot_word);
}

/* Completes the requests, at least one: counters first, because a completion that is polled frees slots of the queue by
 * them. */
static always_inline void run_complete(const struct run *run)
{
    struct qp *qp = run->qp;
    struct sender *sender = &qp->record->sender;
    struct traffic_count *traffic = &qp->record->traffic.requested[TRAFFIC_BY_REQUESTER][run->kind];

    sender->waiting = SENDER_RUNS;
    sender->plain += run->counter - sender->completed;
    traffic->messages += run->counter - sender->completed;
    traffic->bytes += run->bytes;
    atomic_store_explicit(&sender->posted, run->counter, memory_order_release);
    sender->begun = sender->next = sender->completed = run->counter;
    if (run->kind != TRAFFIC_READ)
        atomic_store_explicit(&qp->prefetch_at, (const char *)run->last, // NOLINT(performance-no-int-to-ptr)
                              memory_order_relaxed);
    atomic_store_explicit(&qp->prefetch_wqe, (const char *)send_wqe_at(&qp->transport, run->counter),
                          memory_order_relaxed);
    if (run->completions)
        cq_push_run(qp->send_cq, run->sent, run->completions, CQE_SEND, qp->ibv.qp_num, 0);
    if (unlikely(run->began))
        traffic_end_plain(qp, run->began);
}

/* False: the accesses are void. The requests count as not executed: to execute a WRITE or READ twice is harmless. */
static always_inline bool run_end(const struct run *run)
{
    if (unlikely(!run_release(run)))
        return false;
    if (likely(run->counter != run->qp->record->sender.completed))
        run_complete(run);
    return true;
}

/* --- atomics ----------------------------------------------------------------------------------------- */

struct plain_atomic {
    enum ibv_wr_opcode opcode;
    uint32_t rkey, lkey;
    uint64_t remote_address, local_address, compare_add, swap;
    uint64_t wr_id;
    bool signaled;
};

static inline bool is_atomic(unsigned int opcode)
{
    return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}

/* Is executed, or not (false). */
static always_inline bool execute_atomic(struct qp *qp, uint32_t counter, const struct plain_atomic *atomic)
{
    const uint32_t length = sizeof(uint64_t);
    bool adds = atomic->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    uint64_t *there, before;
    struct run run;
    void *here;

    if (!run_begin(&run, qp, counter, atomic->rkey, TRAFFIC_ATOMIC))
        return false;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    there = (uint64_t *)direct_address_in(&run.direct->mapped, atomic->remote_address, length, REMOTE_ATOMIC);
    here = read_target(qp, atomic->lkey, atomic->local_address, length);
    if (unlikely(!here || !there)) {
        (void)run_release(&run);
        return false;
    }
    if (atomic->signaled)
        run_time(&run);
    before = adds ? cpu_fetch_add(there, atomic->compare_add)
                  : cpu_compare_swap(there, atomic->compare_add, atomic->swap);
    run.last = (uintptr_t)there;
    if (unlikely(!run_release(&run))) {
        qp->transport.atomic_unknown = true;
        return false;
    }
    place_end(here, (const unsigned char *)&before, length);
    run_add(&run, atomic->wr_id, atomic->signaled, length, adds ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP);
    run_complete(&run);
    return true;
}

/* is_one_sided(), of an atomic. Not inline, here and below: the loops over WRITEs and READs keep their registers. */
static __attribute__((noinline)) bool atomic_wr(struct qp *qp, uint32_t counter, const struct ibv_send_wr *wr)
{
    const struct ibv_sge *sge = wr->sg_list;
    uint8_t flags = post_wqe_flags(qp, wr->send_flags);

    if (!is_atomic(wr->opcode) || !may_read(qp) || (wr->send_flags & IBV_SEND_INLINE) ||
        !plain_wr_fits(qp, wr, longest(qp)) || sge->length != sizeof(uint64_t) ||
        !execute_atomic(qp, counter,
                        &(struct plain_atomic){.opcode = wr->opcode,
                                               .rkey = wr->wr.atomic.rkey,
                                               .lkey = sge->lkey,
                                               .remote_address = wr->wr.atomic.remote_addr,
                                               .local_address = sge->addr,
                                               .compare_add = wr->wr.atomic.compare_add,
                                               .swap = wr->wr.atomic.swap,
                                               .wr_id = wr->wr_id,
                                               .signaled = flags & WQE_SIGNALED}))
        return false;
    send_wqe_note(send_wqe_at(&qp->transport, counter), wr->wr_id, (uint8_t)wr->opcode, flags, sge->length);
    return true;
}

static __attribute__((noinline)) bool atomic_wqe(struct qp *qp, uint32_t counter, struct send_wqe *wqe)
{
    const struct wqe_sge *sge = send_wqe_body(wqe, IBV_QPT_RC);

    return is_atomic(wqe->opcode) && may_read(qp) && !(wqe->flags & WQE_INLINE) &&
           plain_wqe_fits(wqe, longest(qp)) && wqe->length == sizeof(uint64_t) &&
           execute_atomic(qp, counter,
                          &(struct plain_atomic){.opcode = (enum ibv_wr_opcode)wqe->opcode,
                                                 .rkey = wqe->rkey,
                                                 .lkey = sge->lkey,
                                                 .remote_address = wqe->remote_address,
                                                 .local_address = sge->address,
                                                 .compare_add = wqe->atomic.compare_add,
                                                 .swap = wqe->atomic.swap,
                                                 .wr_id = wqe->wr_id,
                                                 .signaled = wqe->flags & WQE_SIGNALED});
}

/* --- posting ----------------------------------------------------------------------------------------- */

/* Nothing of the peer is mapped that was looked for last: so nothing else is asked. */
static inline bool has_none(const struct qp *qp)
{
    return unlikely(!route_of(qp)->direct.mapped.rkey);
}

/* post_runs() of a request that is posted alone. */
static __attribute__((noinline)) struct ibv_send_wr *post_one(struct qp *qp, struct ibv_send_wr *wr)
{
    uint32_t posted = atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed);
    struct run run;

    if (unlikely(!is_possible(qp) || !send_queue_room(qp, posted)))
        return wr;
    if (!is_plain_wr(qp, wr))
        return atomic_wr(qp, posted, wr) ? NULL : wr;
    if (!run_begin(&run, qp, posted, wr->wr.rdma.rkey,
                   wr->opcode == IBV_WR_RDMA_READ ? TRAFFIC_READ : TRAFFIC_WRITE))
        return wr;
    (void)execute_wr(&run, wr);
    return run_end(&run) && run.counter != posted ? NULL : wr;
}

static __attribute__((noinline)) struct ibv_send_wr *post_runs(struct qp *qp, struct ibv_send_wr *wr)
{
    uint32_t posted = atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed);
    uint32_t left = min_of(send_queue_room(qp, posted), PLAIN_CALL);
    struct run run;

    if (!is_possible(qp))
        return wr;
    while (wr && left) {
        uint32_t end = posted + min_of(left, PLAIN_RUN), rkey = wr->wr.rdma.rkey;
        struct ibv_send_wr *next = wr;

        if (!is_plain_wr(qp, wr)) {
            if (!atomic_wr(qp, posted, wr))
                break;
            wr = wr->next;
            left--;
            posted++;
            continue;
        }
        if (!run_begin(&run, qp, posted, rkey, wr->opcode == IBV_WR_RDMA_READ ? TRAFFIC_READ : TRAFFIC_WRITE))
            break;
        while (execute_wr(&run, next)) {
            next = next->next;
            if (run.counter == end || !next || next->opcode != wr->opcode || !is_plain_wr(qp, next) ||
                next->wr.rdma.rkey != rkey)
                break;
        }
        if (!run_end(&run) || run.counter == posted)
            break;
        wr = next;
        left -= run.counter - posted;
        posted = run.counter;
    }
    return wr;
}

struct ibv_send_wr *direct_post_plain(struct qp *qp, struct ibv_send_wr *wr)
{
    if (has_none(qp))
        return wr;
    return wr->next ? post_runs(qp, wr) : post_one(qp, wr);
}

bool direct_run_plain(struct qp *qp, uint32_t end)
{
    uint32_t posted = atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed);
    uint32_t last = posted + min_of(end - posted, PLAIN_CALL);
    struct run run;

    if (has_none(qp) || !is_possible(qp))
        return false;
    while (posted != last) {
        struct send_wqe *wqe = send_wqe_at(&qp->transport, posted);
        uint32_t until = posted + min_of(last - posted, PLAIN_RUN), rkey = wqe->rkey;

        if (!is_plain_wqe(qp, wqe)) {
            if (!atomic_wqe(qp, posted, wqe))
                break;
            posted++;
            continue;
        }
        if (!run_begin(&run, qp, posted, rkey,
                       wqe->opcode == IBV_WR_RDMA_READ ? TRAFFIC_READ : TRAFFIC_WRITE))
            break;
        while (execute_wqe(&run, wqe) && run.counter != until) {
            wqe = send_wqe_at(&qp->transport, run.counter);
            if ((wqe->opcode == IBV_WR_RDMA_READ) != (run.kind == TRAFFIC_READ) || !is_plain_wqe(qp, wqe) ||
                wqe->rkey != rkey)
                break;
        }
        if (!run_end(&run) || run.counter == posted)
            break;
        posted = run.counter;
    }
    return posted == end;
}
