/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Queue pairs: identity, attributes, queues, state; transport_qp is the part that sends and receives.
 *
 * A slot of the QP table is never unmapped. Whoever found a QP by number locks it and checks record->qpn
 * again (qp_lock_number), so that no references are counted on the data path. Lock order: lane receive lock,
 * QP lock, SRQ lock, CQ lock, event queue lock; engine's lists are leaves.
 */
#ifndef OBJECT_QP_QP_H
#define OBJECT_QP_QP_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/timer.h"
#include "object/cq/cq.h"
#include "object/device/context.h"
#include "object/pd/pd.h"
#include "object/receive/srq.h"
#include "segment/provenance.h"
#include "transport/qp.h"

struct ind_table;
struct qp_handle;
struct qp_keeping;
struct qp_opener;
/* What is asked of the process that has a QP (open_qp.c). */
enum qp_request { QP_REQUEST_OPEN = 1, QP_REQUEST_MODIFY, QP_REQUEST_QUERY };
struct link;

/* Where its queues lie. */
struct qp_queues {
    struct queue_memory send, receive;
};

struct qp {
    union {
        struct ibv_qp ibv;
        struct ibv_qp_ex ex;
        struct { /* as programs see it that were built with a newer header */
            char before[offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof(void *)];
            void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_address, size_t length,
                             uint8_t types, uint8_t level);
        } newer;
    };
    struct lock lock; /* guards record, queues, and the engine's private state */
    /* Where its last WRITE or atomic went in mapped memory, NULL: nowhere. A hint that posting begins with,
     * before it takes locks; what was there may be gone. */
    _Atomic(const char *) prefetch_at;
    struct lock post_lock; /* extended posting: held from wr_start to wr_complete, above `lock` */
    struct transport_qp transport;
    struct qp_record *record;
    uint32_t slot;
    struct qp *next_idle; /* qp_slots.c */
    struct context *context;
    struct pd *pd;
    struct cq *send_cq, *recv_cq;
    struct srq *srq;   /* XRC_RECV: the one that the last request was for, or NULL */
    struct xrcd *xrcd; /* XRC_RECV, which has neither PD nor CQs of its own */
    /* RSS: what receives instead of it, which has no queues and no state of its own; else NULL. */
    struct ind_table *spreads_over;
    uint64_t hash_fields;
    uint8_t hash_key[40];
    uint32_t flows; /* rules that name it; under its lock */
    /* A delegate (delegate.c) executes for an XRC_RECV QP of another process, whose number it has: */
    struct link *origin; /* NULL: it is none */
    uint32_t origin_life;
    struct list by_origin, by_xrcd;
    /* XRC_RECV (open_qp.c): its creator's handle, if that is not let go, and those of ibv_open_qp(), and
     * whoever does something for one of them; 0: it ends. Under its lock. */
    uint32_t holders, opener_count;
    struct list openers;
    struct qp_keeping *keeping; /* NULL: nobody has ever opened it */
    bool let_go;
    struct qp_handle *handle; /* it is no QP but a handle of one; else NULL */
    struct qp_queues queues;
    char *receive_ring;
    uint32_t receive_mask;
    struct recv_wqe *srq_receive; /* copy of the WQE taken from the SRQ, for the message under way */
    bool receive_taken;           /* current_receive is valid */
    bool is_extended;
    uint32_t create_flags;
    uint64_t send_ops;
    struct ack_account async_events;
    /* For qp_note(): when the last post was, and what the record has told already. */
    uint32_t stamp, noted_begun;
    uint8_t noted_waiting;
    /* The program's work requests posted before the last RESET: they occupy nothing. */
    _Atomic uint32_t reset_at;
    /* The engine owes what the QP acknowledges at the end of a batch of arriving packets (engine/core/arrivals.c);
     * under `lock`. qp_run_sender() acknowledges before, so that an acknowledgement does not leave behind the
     * request of a program that has seen the message. */
    bool ack_due;
    bool settle_due;     /* peers may be at work by what the direct record said before (mapping.c) */
    struct list lending; /* in the list of QPs whose memory peers are reading (exposed.c) */
    /* extended posting, under post_lock */
    uint32_t build_posted; /* counter after the WRs built so far */
    uint32_t build_stamp;
    int build_error; /* first thing that was wrong with the batch; wr_complete returns it */
    struct send_wqe *build_wqe;
    bool build_needs_address; /* UD: the WR has no address yet */
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

/* Engine's half of the ports, installed once. Called with the QP's lock held unless noted. */
struct qp_ports {
    /* Size of the engine's private state of a QP, which lies behind struct qp (qp_private()); aligned as
     * QP_PRIVATE_ALIGNMENT. */
    size_t private_size;
    /* Initialises the private state, which is zero, of a slot that was never used. No lock held. */
    void (*init_private)(struct qp *qp);
    /* The engine fills in send, send_notice, now, set_timer, random, reference (without exposes) and direct (without
     * is_mapped); qp_ports_install() adds object's. */
    struct transport_ports transport_link;
    /* Before the QP is changed: may sleep, bounded. No lock held, outside every rundown section. */
    void (*prepare)(struct qp *qp, const struct ibv_qp_attr *attributes, int mask);
    /* The QP is going to stop sending (ERR, RESET, destroy): what was posted in RTS and waits for its way
     * leaves first, if that opens within a moment. May sleep, bounded. No lock held, outside every rundown
     * section, not in the helper thread. */
    void (*flush_before_end)(struct qp *qp);
    /* A packet arrives when it is written, whenever it is taken: what the destination has sent so far meets
     * the QP as it is now, before it is connected or goes away. By whichever ways it may come. Without the
     * QP's lock, inside a rundown section. */
    void (*take_arrived)(uint32_t qpn, uint32_t dest_qpn, bool by_lane, bool by_network);
    /* The QP has learned its destination (RTR) or lost it (RESET, destroy). */
    void (*connect)(struct qp *qp);
    void (*disconnect)(struct qp *qp);
    /* A hint: the send queue is about to run, with that request next. */
    void (*prefetch)(const struct qp *qp, const struct send_wqe *wqe);
    /* Releases the QP's lock after work was posted or the QP was changed, and then, inside the caller's rundown
     * section, rings the doorbells that are pending. more: the sender stopped at its bound, and the QP is to be
     * scheduled again. */
    void (*unlock)(struct qp *qp, bool more);
    /* XRC: the request is for that SRQ, which is not of this process (transport_xrc_ports.hand_over). */
    int (*hand_over)(struct qp *qp, const struct packet *packet, bool may_move);
    /* XRC: whoever executes for this QP is to stop. */
    void (*call_back)(struct qp *qp);
    /* XRC: ibv_open_qp() of a QP of another process, and what is done to that by the handle. May sleep,
     * bounded: -ETIMEDOUT; -EIO: that process has ended. No lock held. */
    int (*open_elsewhere)(struct qp *handle);
    int (*ask_elsewhere)(struct qp *handle, enum qp_request request, struct ibv_qp_attr *attributes,
                         int mask);
    void (*close_elsewhere)(struct qp *handle);
    /* An event for a handle that another process has. */
    void (*tell_opener)(const struct qp_opener *opener, uint32_t qpn, enum ibv_event_type type);
    /* The QP is going away: out of every list. No lock held. */
    void (*forget)(struct qp *qp);
    /* The QP was attached to a group, or is not any more. No lock held; may sleep, bounded. */
    void (*attached)(struct qp *qp, const uint8_t gid[16]);
    void (*detached)(struct qp *qp, const uint8_t gid[16]);
    /* A flow rule of the QP has come, or gone. No lock held; may sleep, bounded. */
    void (*steers)(struct qp *qp);
    int (*allocate_number)(uint32_t *ret_qpn);
    void (*release_number)(uint32_t qpn);
};
extern const struct qp_ports *qp_ports;
void qp_ports_install(const struct qp_ports *ports);

/* pd: NULL for XRC_RECV, which is of attributes->xrcd. */
int qp_create(struct context *context, struct pd *pd, struct ibv_qp_init_attr_ex *attributes,
              struct qp **ret_qp);
int qp_modify(struct qp *qp, const struct ibv_qp_attr *attributes, int mask);
int qp_query(struct qp *qp, struct ibv_qp_attr *ret_attributes, int mask, struct ibv_qp_init_attr *ret_init);
/* Enhanced connection establishment: what a vendor's adapters agree on beyond the specification. Ours have
 * nothing of the kind, so of any options of ours none is accepted. -EOPNOTSUPP: another vendor's. */
int qp_set_ece(struct qp *qp, const struct ibv_ece *ece);
int qp_query_ece(const struct qp *qp, struct ibv_ece *ret_ece);
int qp_destroy(struct qp *qp); /* -EBUSY (multicast); blocks on unacknowledged events */

/* Before its context is closed: qp_ports.flush_before_end. */
void qp_flush_before_end(struct qp *qp);

/* Finds and locks; NULL if there is no such QP (any more). */
struct qp *qp_lock_number(uint32_t qpn);
/* Visits every QP there is or was, unlocked: visit locks and checks for itself. */
void qp_for_each(void (*visit)(struct qp *qp, void *argument), void *argument);

/* Moves to ERR and flushes; lock held. */
void qp_enter_error(struct qp *qp);
/* QP_FATAL and ERR if an overrun took one of its CQs away. No lock held. */
void qp_fail_on_overrun(struct qp *qp);
/* Runs the sender or flushes, whichever the state says; lock held, inside a rundown section. True if there is
 * more to do at once (transport bounds what it does per call). stamp: now, where the caller has asked the
 * clock already, else STAMP_NONE. */
bool qp_run_sender(struct qp *qp, uint32_t stamp);

/* Writes down when work requests were begun and since when the sender waits; lock held, after everything that
 * may have changed that. heard: by a packet of the peer. */
void qp_note_times(struct qp *qp, bool heard, uint32_t now);
static inline void qp_note(struct qp *qp, bool heard)
{
    if (explained())
        qp_note_times(qp, heard, heard ? provenance_batch_stamp() : provenance_stamp_now());
}

/* In the child of a fork: no QP is found by number any more, and none is attached to a group. */
void qp_after_fork_in_child(void);

/* object/qp/post.c: 0 or -errno with *bad_wr. */
int qp_post_send(struct qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int qp_post_recv(struct qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
int qp_bind_window(struct qp *qp, struct mw *mw, const struct ibv_mw_bind *bind);

/* Extended posting (ibv_wr_*), object/qp/build.c: the front's function pointers call these. */
void qp_build_start(struct qp *qp);
int qp_build_complete(struct qp *qp);
void qp_build_abort(struct qp *qp);
/* Begins a WR with qp->ex.wr_id and wr_flags; NULL when the batch has failed already (ENOMEM, EINVAL
 * remembered). */
struct send_wqe *qp_build_wr(struct qp *qp, enum ibv_wr_opcode opcode);
/* BIND_MW of a type 2 window. */
void qp_build_bind(struct qp *qp, const struct mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info);
/* ATOMIC_WRITE: 8 bytes, copied now, which become visible at once. */
void qp_build_atomic_write(struct qp *qp, uint32_t rkey, uint64_t remote_address, const void *value);
/* FLUSH: completes when what was written before is where `types` say (rules/flush.h). */
void qp_build_flush(struct qp *qp, uint32_t rkey, uint64_t remote_address, size_t length, uint8_t types,
                    uint8_t level);
/* Something else is wrong with the batch; the first error stays. */
void qp_build_fail(struct qp *qp, int error);
void qp_build_sge_list(struct qp *qp, size_t count, const struct ibv_sge *list);
void qp_build_inline_list(struct qp *qp, size_t count, const struct ibv_data_buf *list);
void qp_build_srq_number(struct qp *qp, uint32_t srqn);
void qp_build_ud_address(struct qp *qp, struct ah *ah, uint32_t remote_qpn, uint32_t remote_qkey);

/* The memory that a key named is going to be the program's again, and nobody finds the key any more: what
 * peers have been told to fetch from it is void when this returns. window: it is a window's key. No lock
 * held, inside no rundown section. */
void lending_take_back(uint32_t slot, bool window);

/* Multicast, object/steering/multicast.c. */
int multicast_attach(struct qp *qp, const union ibv_gid *gid, uint16_t lid);
int multicast_detach(struct qp *qp, const union ibv_gid *gid, uint16_t lid);
/* Visits the QPs of a group, each locked during the visit. */
void multicast_deliver(const uint8_t gid[16], void (*visit)(struct qp *qp, void *argument), void *argument);

#endif
