/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Queue pairs: identity, attributes, queues and state. The part that sends and receives is struct
 * transport_qp.
 *
 * A struct qp is never freed, only reused. A thread that finds a QP by number locks it and then checks
 * record->qpn (qp_lock_number()), so the data path counts no references. Lock order: lane receive lock, QP
 * lock, SRQ lock, CQ lock, event queue lock; the locks of the engine's lists are leaves.
 */
#ifndef OBJECT_QP_QP_H
#define OBJECT_QP_QP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/budget.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/timer.h"
#include "base/verbs.h"
#include "object/cq/cq.h"
#include "object/device/context.h"
#include "object/pd/pd.h"
#include "object/qp/comp_cntr.h"
#include "object/receive/srq.h"
#include "segment/provenance.h"
#include "transport/qp.h"

struct ind_table;
struct qp_handle;
struct qp_keeping;
struct qp_opener;
/* Requests to the process that owns a QP which other processes have open (object/xrc/open_qp.c). Values go to
 * other processes. */
enum qp_request { QP_REQUEST_OPEN = 1, QP_REQUEST_MODIFY, QP_REQUEST_QUERY };
struct link;

struct qp_queues {
    struct queue_memory send, receive;
};

struct qp {
    union {
        struct ibv_qp ibv;
        struct ibv_qp_ex ex;
        union newest_qp newest; /* programs may be built with a newer verbs.h */
    };
    /* What a plain request needs (docs/design/many-qps.md) lies in this cache line, the first one of `transport`
     * behind it, and the first two of the engine's private state. */
    /* Guards record, queues, the engine's private state, and all fields that name no other lock. */
    struct lock lock cache_aligned;
    uint32_t slot;
    /* Hints for the prefetch that posting begins with before it takes locks: the address in mapped memory of the last
     * WRITE or atomic, which may be unmapped by now, and where the next WQE will be; or NULL. */
    _Atomic(const char *) prefetch_at, prefetch_wqe;
    struct qp_record *record; /* in the published segment */
    struct context *context;
    struct cq *send_cq;
    uint32_t counted; /* operations that have a completion counter (comp_cntr.h), by bit; QP_LATE (late.h) */
    uint32_t time_from; /* see `timed` */
    /* The `retired` counter that a RESET implies: work requests posted before it occupy no slots. */
    _Atomic uint32_t reset_at;
    bool is_extended;
    /* An acknowledgement is due at the end of the batch of packets that the engine is receiving
     * (engine/core/arrivals.c). On a link that loses nothing qp_run_sender() sends it earlier, so that it is
     * not sent after a request of a program that has seen the message already. */
    bool ack_due;
    struct transport_qp transport cache_aligned;
    /* Above `lock`. Extended posting holds it from wr_start to wr_complete or wr_abort; the other posting
     * verbs of an extended QP hold it while they use the send queue. */
    struct lock post_lock;
    struct qp *next_idle; /* in the list of unused structures; under idle_lock (qp_slots.c) */
    struct pd *pd;
    struct cq *recv_cq;
    struct srq *srq;   /* XRC_RECV: the SRQ of the last request, or NULL */
    struct xrcd *xrcd; /* XRC_RECV, which has neither PD nor CQs; else NULL */
    /* RSS QP: the table of WQs that receive for it; such a QP has no queues and no state. Else NULL. */
    struct ind_table *spreads_over;
    uint64_t hash_fields;
    uint8_t hash_key[40];
    uint32_t flows;                /* flow rules that steer to the QP */
    struct late_completions *late; /* NULL: no completion is made to come late */
    struct comp_cntr *comp_cntrs[COUNTED_OPERATIONS];
    /* A delegate (xrc/delegate.c) executes requests for an XRC_RECV QP of another process, and has its QPN: */
    struct link *origin; /* to the process with that QP; NULL: not a delegate */
    uint32_t origin_connection;
    struct charge charge; /* of the delegate, to that process's user */
    struct list by_origin, by_xrcd;
    /* XRC_RECV (xrc/open_qp.c). holders counts the creator's handle until qp_close_creator(), the handles of
     * ibv_open_qp(), and threads that work for one of them; the QP ends at 0. */
    uint32_t holders, opener_count;
    struct list openers;
    struct qp_keeping *keeping; /* NULL: the QP was never opened by ibv_open_qp() */
    bool creator_closed;        /* the creator has destroyed its handle */
    struct qp_handle *handle;   /* this structure is a handle of ibv_open_qp(); NULL: it is a QP */
    struct qp_queues queues;
    char *receive_ring;
    uint32_t receive_mask;
    struct recv_wqe *srq_receive; /* copy of the WQE taken from the SRQ for the message being received */
    bool receive_taken;           /* transport.current_receive is valid */
    uint32_t create_flags;        /* enum ibv_qp_create_flags */
    uint64_t send_ops;            /* enum ibv_qp_create_send_ops_flags */
    uint32_t order;               /* of creation in this process, from 1; 0: a delegate, or a handle */
    /* An injected fault has changed the work request with this wr_id, and its completion is due. */
    uint64_t injected_wr_id;
    bool injected;
    bool packets_struck; /* by an injected fault; lock */
    struct ack_account async_events;
    /* For qp_note_times(): the stamp of the last post, and which changes have their stamp already. */
    uint32_t stamp, noted_begun;
    uint8_t noted_waiting;
    /* traffic.c: posting the request before time_from begins the next measurement; the counter among the program's
     * requests of the one that is measured, which was posted at timed_ns (0: none is); how many requests are not
     * measured after it. */
    uint32_t timed, time_gap;
    ns_t timed_ns;
    /* enum qp_by_packets: why each request comes and goes as packets, so that nobody executes or fetches anything in
     * the other's memory (engine/paths/by_packets.c). 0: it need not. */
    uint8_t by_packets;
    bool settle_due;      /* peers may still act by the previous direct record (mapping_settle_qp()) */
    struct list exposing; /* in the list of QPs with exposed buffers; under the lock in exposed.c */
    /* Extended posting, under post_lock: */
    uint32_t build_posted; /* counter after the WRs built so far */
    uint32_t build_stamp;
    int build_error; /* the first error of the batch, which wr_complete returns */
    struct send_wqe *build_wqe;
    bool build_needs_address; /* UD and XRC: the WR has no address yet */
};
_Static_assert(offsetof(struct qp, transport) - offsetof(struct qp, lock) == CACHE_LINE, "one cache line");

enum qp_by_packets {
    QP_CAPTURED = 1,   /* its packets are recorded (engine/core/capture.c) */
    QP_LOSES = 2,      /* injected faults of packets are loaded for it */
    QP_PEER_LOSES = 4, /* they are for its peer on this host, which says so with each packet (PACKET_LOSSY) */
    QP_RECOVERS = 8,   /* they were; requests that were sent meanwhile are not complete yet */
};

/* The engine's state of the QP: qp_ports.private_size bytes. */
#define QP_PRIVATE_ALIGNMENT _Alignof(struct qp)
static inline void *qp_private(const struct qp *qp)
{
    return (void *)((uintptr_t)qp + sizeof(*qp));
}

/* How many receives the calling thread has completed. */
extern __thread uint32_t qp_receives_completed __attribute__((tls_model("initial-exec")));

static inline struct qp *qp_of(struct ibv_qp *qp)
{
    return container_of(qp, struct qp, ibv);
}

static inline enum ibv_qp_state qp_state(const struct qp *qp)
{
    return (enum ibv_qp_state)atomic_load_explicit(&qp->record->state, memory_order_relaxed);
}

/* The number of free send slots; QP lock or post_lock held. Acquire: partner of the release in
 * qp_retire_sends(). */
static inline uint32_t send_queue_room(const struct qp *qp, uint32_t posted)
{
    uint32_t retired = atomic_load_explicit(&qp->record->sender.retired, memory_order_acquire);
    uint32_t reset_at = atomic_load_explicit(&qp->reset_at, memory_order_relaxed);

    if (unlikely((int32_t)(reset_at - retired) > 0))
        retired = reset_at;
    return qp->record->send_depth - (posted - qp->record->sender.own_posted - retired);
}

static inline struct recv_wqe *qp_receive_at(const struct qp *qp, uint32_t counter)
{
    return (struct recv_wqe *)(qp->receive_ring +
                               (size_t)(counter & qp->receive_mask) * qp->record->receive.stride);
}

static inline bool qp_may_be_plain(const struct qp *qp)
{
    return (qp->transport.link.direct_up_to | qp->transport.link.plain_send_up_to) != 0;
}

/* The flags of a WQE; send_flags: enum ibv_send_flags. */
static inline uint8_t post_wqe_flags(const struct qp *qp, unsigned send_flags)
{
    uint8_t flags = 0;

    if ((send_flags & IBV_SEND_SIGNALED) || qp->record->attributes.signal_all)
        flags |= WQE_SIGNALED;
    if (send_flags & IBV_SEND_SOLICITED)
        flags |= WQE_SOLICITED;
    if (send_flags & IBV_SEND_FENCE)
        flags |= WQE_FENCE;
    return flags;
}

/* The engine's functions for QPs, installed once. Called with the QP's lock held unless noted. */
struct qp_ports {
    /* Size of the engine's private state of a QP, which lies behind struct qp (qp_private()); aligned as
     * QP_PRIVATE_ALIGNMENT. */
    size_t private_size;
    /* Initialises the private state, which is zero, of a slot that was never used. No lock held. */
    void (*init_private)(struct qp *qp);
    /* The engine fills in send, send_notice, now, set_timer, random, reference (without exposes) and direct (without
     * is_mapped); qp_ports_install() adds object's. */
    struct transport_ports transport;
    /* Before the QP is modified. May sleep, bounded. No lock held, outside of rundown sections. */
    void (*prepare)(struct qp *qp, const struct ibv_qp_attr *attributes, int mask);
    /* Before the QP stops sending (ERR, RESET, destroy): requests posted in RTS that wait for their path are
     * sent, if the path opens within a bounded time. May sleep, bounded. No lock held, outside of rundown
     * sections, not in the helper thread. */
    void (*flush_before_end)(struct qp *qp);
    /* Receives the packets that the destination has sent so far by the given paths, before the QP is connected
     * or stops. Otherwise packets that were sent before the change would meet the QP's new state. Without the
     * QP's lock, inside a rundown section. */
    void (*take_arrived)(uint32_t qpn, uint32_t dest_qpn, bool by_lane, bool by_network);
    /* The QP has got its destination (RTR) or lost it (RESET, destroy). */
    void (*connect)(struct qp *qp);
    void (*disconnect)(struct qp *qp);
    /* A hint to prefetch: the sender is about to run, with `wqe` as its next request. */
    void (*prefetch)(const struct qp *qp, const struct send_wqe *wqe);
    /* Releases the QP's lock after work was posted or the QP was changed. Inside the caller's rundown section it
     * then rings pending doorbells, and schedules the sender again (more: it stopped at its bound). */
    void (*unlock)(struct qp *qp, bool more);
    /* Executes and completes, or sends, requests at the head of the list as long as they are plain
     * (engine/direct/plain.c, paths/plain_send.c): what the program sees is what qp_run_sender() would have done.
     * Returns the first that is left; NULL: none is, and the QP's lock is released. Called if qp_may_be_plain().
     * Inside a rundown section. */
    struct ibv_send_wr *(*post_plain)(struct qp *qp, struct ibv_send_wr *wr);
    /* The same for WQEs that are built and not posted, up to counter `end`; `posted` moves behind what was executed or
     * sent. True: none is left. */
    bool (*run_plain)(struct qp *qp, uint32_t end);
    /* XRC: hands a request to the process that has its SRQ (transport_xrc_ports.hand_over). */
    int (*hand_over)(struct qp *qp, const struct packet *packet, bool may_move);
    /* XRC: ends the delegates that execute requests for this QP in other processes. */
    void (*end_relay)(struct qp *qp);
    /* XRC: ibv_open_qp() of a QP of another process, and modify, query and destroy by that handle. May sleep,
     * bounded: -ETIMEDOUT; -EIO: that process has ended. No lock held. */
    int (*open_elsewhere)(struct qp *handle);
    int (*request_elsewhere)(struct qp *handle, enum qp_request request, struct ibv_qp_attr *attributes,
                             int mask);
    void (*close_elsewhere)(struct qp *handle);
    /* Sends an event to a process that has the QP open. */
    void (*send_opener_event)(const struct qp_opener *opener, uint32_t qpn, enum ibv_event_type type);
    /* The QP is being destroyed: removes it from all lists of the engine. No lock held. */
    void (*forget)(struct qp *qp);
    /* The QP was attached to or detached from a multicast group. No lock held; may sleep, bounded. */
    void (*attached)(struct qp *qp, const uint8_t gid[16]);
    void (*detached)(struct qp *qp, const uint8_t gid[16]);
    /* A flow rule of the QP was created or destroyed. No lock held; may sleep, bounded. */
    void (*steers)(struct qp *qp);
    int (*allocate_number)(uint32_t *ret_qpn);
    void (*release_number)(uint32_t qpn);
};
extern const struct qp_ports *qp_ports;
void qp_ports_install(const struct qp_ports *ports);

/* pd: NULL for XRC_RECV, which belongs to attributes->xrcd. */
int qp_create(struct context *context, struct pd *pd, struct ibv_qp_init_attr_ex *attributes,
              struct qp **ret_qp);
int qp_modify(struct qp *qp, const struct ibv_qp_attr *attributes, int mask);
int qp_query(struct qp *qp, struct ibv_qp_attr *ret_attributes, int mask, struct ibv_qp_init_attr *ret_init);
/* Enhanced connection establishment (ECE): options that two adapters of one vendor agree on. SoftHCA has none:
 * options of our vendor id are accepted and ignored; -EOPNOTSUPP for another vendor's. */
int qp_set_ece(struct qp *qp, const struct ibv_ece *ece);
int qp_query_ece(const struct qp *qp, struct ibv_ece *ret_ece);
int qp_destroy(struct qp *qp); /* -EBUSY (multicast); blocks on unacknowledged events */

/* Calls qp_ports.flush_before_end; for contexts that are closed with QPs in them. */
void qp_flush_before_end(struct qp *qp);

/* Finds the QP with this number and locks it; NULL: there is none. */
struct qp *qp_lock_number(uint32_t qpn);
/* Visits every slot that is or was a QP's, unlocked: `visit` locks the QP, and checks its number where that
 * matters. */
void qp_for_each(void (*visit)(struct qp *qp, void *argument), void *argument);

/* The owner's reason to move the QP to ERR; lock held. What was noted first stays. */
void qp_note_owner_fault(struct qp *qp, enum fault_cause cause);
/* Moves the QP to ERR and flushes its queues; lock held. */
void qp_enter_error(struct qp *qp);
/* Moves the QP to ERR with QP_FATAL if one of its CQs has overrun. No lock held. */
void qp_fail_on_overrun(struct qp *qp);
/* Runs the sender, or flushes, as the state requires; lock held, inside a rundown section. True: the sender has
 * more to send at once (transport bounds the work per call). stamp: the present time if the caller has it, else
 * STAMP_NONE. */
bool qp_run_sender(struct qp *qp, uint32_t stamp);

/* Stamps the work requests that the sender has begun, and the time since when it waits; lock held, after every
 * change of those. heard: the change is due to a packet of the peer. */
void qp_note_times(struct qp *qp, bool heard, uint32_t now);
static inline void qp_note(struct qp *qp, bool heard)
{
    if (times_recorded())
        qp_note_times(qp, heard, heard ? provenance_batch_stamp() : provenance_stamp_now());
}

/* In the child of a fork: inherited QPs are not found by number, and are in no multicast group. */
void qp_after_fork_in_child(void);

/* object/qp/post.c: 0 or -errno with *bad_wr. */
int qp_post_send(struct qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int qp_post_recv(struct qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
/* An injected fault: raises the event (enum ibv_event_type; -1: none), and moves the QP to ERR if it fails. */
void qp_inject_event(struct qp *qp, int event, bool fails);
/* Posts one work request, which `alter` changes before the adapter takes it. QP lock held in alter(). */
typedef void qp_alter_send(struct qp *qp, struct send_wqe *wqe);
int qp_post_altered(struct qp *qp, struct ibv_send_wr *wr, qp_alter_send *alter);
/* The same for each of a batch, between its last work request and qp_build_complete(). */
void qp_build_alter(struct qp *qp, qp_alter_send *alter);
int qp_bind_window(struct qp *qp, struct mw *mw, const struct ibv_mw_bind *bind);

/* Extended posting (ibv_wr_*), object/qp/build.c; called by the function pointers in struct ibv_qp_ex. */
void qp_build_start(struct qp *qp);
int qp_build_complete(struct qp *qp);
void qp_build_abort(struct qp *qp);
/* Begins a WR with qp->ex.wr_id and wr_flags; NULL: the batch has failed (qp->build_error). */
struct send_wqe *qp_build_wr(struct qp *qp, enum ibv_wr_opcode opcode);
/* BIND_MW of a type 2 window. */
void qp_build_bind(struct qp *qp, const struct mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info);
/* ATOMIC WRITE of 8 bytes, which are copied now. */
void qp_build_atomic_write(struct qp *qp, uint32_t rkey, uint64_t remote_address, const void *value);
/* FLUSH of previous WRITEs to the placement that `types` name (rules/flush.h). */
void qp_build_flush(struct qp *qp, uint32_t rkey, uint64_t remote_address, size_t length, uint8_t types,
                    uint8_t level);
/* Notes an error of the batch; the first error is kept. */
void qp_build_fail(struct qp *qp, int error);
void qp_build_sge_list(struct qp *qp, size_t count, const struct ibv_sge *list);
void qp_build_inline_list(struct qp *qp, size_t count, const struct ibv_data_buf *list);
void qp_build_srq_number(struct qp *qp, uint32_t srqn);
void qp_build_ud_address(struct qp *qp, struct ah *ah, uint32_t remote_qpn, uint32_t remote_qkey);

/* Revokes exposed buffers: packets by reference that name memory of the key in this slot. When the call
 * returns, what peers fetch by them is discarded, so the memory may be returned to the program. The caller
 * has withdrawn or changed the key and called rundown_wait(), so that every QP that exposed memory of the old
 * key is in the list. window: the key is a memory window's. No lock held, outside of rundown sections. */
void exposed_revoke(uint32_t slot, bool window);

/* Multicast, object/steering/multicast.c. */
int multicast_attach(struct qp *qp, const union ibv_gid *gid, uint16_t lid);
int multicast_detach(struct qp *qp, const union ibv_gid *gid, uint16_t lid);
/* Visits the QPs of a group, each with its lock held; false: no QP is attached to it. */
bool multicast_deliver(const uint8_t gid[16], void (*visit)(struct qp *qp, void *argument), void *argument);

#endif
