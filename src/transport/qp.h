/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A QP as transport sees it: a sender and a responder over one published record. Everything here is called
 * with the QP's lock held (the lock of its owner, object/qp/qp.h); transport itself takes none, reads no clock,
 * allocates nothing and does no I/O. */
#ifndef TRANSPORT_QP_H
#define TRANSPORT_QP_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/psn.h"
#include "base/types.h"
#include "published/record.h"
#include "transport/ports.h"

/* Attributes as ibv_modify_qp set them and ibv_query_qp reports them. */
struct qp_attributes {
    uint32_t qkey, dest_qpn, rq_psn, sq_psn, access_flags;
    uint16_t pkey_index;
    uint8_t port, path_mtu; /* enum ibv_mtu */
    uint8_t max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, timeout, retry_count, rnr_retry;
    uint8_t path_mig_state, sgid_index, signal_all, sq_drained_event; /* last: SQD was asked to tell */
    uint8_t static_rate, reserved[3];
    struct path_address path; /* connected QPs, from RTR on */
};

/* Counters of work requests run freely (32 bits) and are compared by distance; slot = counter & mask.
 *   completed <= next <= posted
 * `retired` counts the program's work requests alone, so posted - own_posted - retired is what counts as full
 * (verbs.md §3.7). */
struct sender {
    _Atomic uint32_t posted;  /* written under the QP's lock */
    uint32_t next;            /* WQE being or to be transmitted */
    uint32_t begun;           /* first WQE that was never begun; next is behind it while retransmitting */
    uint32_t completed;       /* oldest WQE without verdict */
    _Atomic uint32_t retired; /* written by whoever polls the completion, under that CQ's lock */
    uint32_t own_posted, own_completed; /* of the adapter's own requests (WQE_OWN) */
    psn_t next_psn;                     /* of the next new packet */
    psn_t unacked_psn;                  /* oldest PSN without acknowledgement */
    uint32_t next_offset;               /* packets of WQE `next` already sent (this time) */
    uint32_t rd_atomic_wqes;            /* READs and atomics begun and not answered */
    uint8_t retries_left, rnr_retries_left;
    uint8_t waiting;              /* enum sender_wait: why WQE `next` does not go on */
    uint8_t timer_armed;          /* enum sender_timer */
    uint8_t read_gap_seen;        /* the gap in READ responses was asked for again (IBA 9.7.5.2.8: once) */
    uint8_t references_requested; /* READs among rd_atomic_wqes that are answered by reference */
    uint8_t timer_moved;          /* the ACK timer was armed before the last acknowledgement or repetition */
    uint8_t timeouts, probes;     /* since unacked_psn moved */
    uint32_t read_offset;         /* bytes of the oldest READ that have arrived */
    uint32_t retransmissions, rnr_naks, sequence_naks; /* statistics */
    /* Stamps that the owner writes, where times are recorded: */
    uint32_t waits_since; /* when `waiting` became what it is */
    uint32_t heard;       /* latest packet of the peer */
    /* Of a link that may lose packets (window.c, retry.c): */
    psn_t sent_psn;     /* end of what was ever transmitted or asked for */
    psn_t recovery_psn; /* losses before it are known */
    psn_t ssn, lsn;     /* last message begun; last that the responder has a receive for (IBA 9.7.7.2) */
    uint16_t window, window_threshold, window_acked; /* packets */
    uint16_t rd_atomic_requests;                     /* READ requests and atomics asked and not answered */
    uint8_t recovering;                              /* unacked_psn has not reached recovery_psn yet */
    uint8_t probing; /* so many packets ask how things stand, others wait for the answer; 0: as many as may */
    uint8_t limited; /* lsn is known */
    uint8_t rtt_runs;   /* a round trip is being measured: rtt_psn was sent at rtt_at and not repeated */
    uint8_t probe_runs; /* the last that was transmitted is a probe */
    uint8_t rtt_rest;   /* so many that could be measured are not */
    psn_t rtt_psn;
    uint32_t rtt, rtt_deviation; /* ns, smoothed; rtt 0: none was measured */
    psn_t repeated_psn;          /* where it went back to, at repeated_at */
    psn_t probe_psn;             /* of the packet that a probe repeated */
    ns_t rtt_at, repeated_at;
    ns_t timer_delay,
        timeout_left; /* of the ACK timer: when it fires next, and what is left of the timeout */
    uint32_t expirations, probes_sent, congestions; /* statistics */
};

enum sender_wait {
    SENDER_RUNS,
    SENDER_WAITS_FOR_LINK, /* ring or socket full */
    SENDER_WAITS_FOR_FENCE,
    SENDER_WAITS_FOR_READ_DEPTH, /* max_rd_atomic requests in flight */
    SENDER_WAITS_FOR_RNR_TIMER,
    SENDER_WAITS_FOR_RETRY, /* nobody answered: the local ACK timeout runs */
    SENDER_WAITS_IN_SQD,
    SENDER_WAITS_FOR_WINDOW,
    SENDER_WAITS_TO_FAIL, /* WQE `next` has failed here; those before it get their verdicts first */
};
enum sender_timer { SENDER_TIMER_NONE, SENDER_TIMER_ACK, SENDER_TIMER_RNR };

/* What the responder owes for a READ, an atomic or a FLUSH: kept until the PSN window has passed it, so that
 * a duplicate is answered (READ again, atomic from the saved result, IBA 9.4.4-9.4.5). */
struct responder_resource {
    psn_t first_psn;
    uint32_t packets;
    uint8_t operation;    /* of the request, without the service */
    uint8_t by_reference; /* READ: answered by reference; its packets have reference_mtu */
    uint8_t responded;
    uint8_t exposed;   /* an answer by reference went out; when it was fetched, nobody says */
    uint32_t rkey, pd; /* of the memory */
    uint64_t address;
    uint32_t length, sent; /* bytes asked for; bytes already sent */
    uint32_t end;          /* a duplicate may ask for less: where this answer ends */
    uint8_t executed;      /* not a READ: (original is valid,) never execute again */
    uint8_t fresh;         /* nothing of this answer was sent yet */
    uint8_t repeated;      /* answered before: nothing is lost when another request takes its place */
    uint8_t mtu;           /* enum ibv_mtu of the packets of the answer; 0: that of the link */
    uint64_t original;     /* atomic: value before */
    union {                /* kept until executed: what is to be done waits for the READs before it */
        struct {
            uint64_t compare, swap_add;
        } atomic;
        uint64_t written; /* atomic write */
        uint32_t flush;   /* FETH */
    };
};

struct responder {
    psn_t expected_psn;
    uint32_t msn;
    uint8_t message;                   /* enum responder_message: what is being received */
    uint8_t ack_owed;                  /* an acknowledgement up to expected_psn - 1 is due */
    uint8_t nak_sent;                  /* enum responder_nak: of the packet that is expected */
    uint8_t established;               /* COMM_EST was raised */
    uint32_t acks_owed;                /* packets that the owed acknowledgement covers */
    uint32_t offset;                   /* bytes of the current message already placed */
    uint32_t write_rkey, write_length; /* of the current RDMA WRITE */
    uint64_t write_address;
    uint32_t resources; /* how many responder_resource there are (max_dest_rd_atomic) */
    uint32_t resource_head, resource_tail, resource_next; /* oldest kept, end, next to answer; free-running */
    uint8_t owed_syndrome; /* NAK or RNR that is due instead of an acknowledgement, 0 if none */
    uint8_t fails;         /* after that NAK the QP is in error */
    uint8_t fatal_nak;     /* that NAK, when it was sent */
    uint8_t together;      /* READs, atomics and FLUSH of the last go that were accepted */
    psn_t owed_psn;
    uint32_t duplicates, drops; /* statistics */
};
enum responder_message {
    MESSAGE_NONE,
    MESSAGE_SEND,
    MESSAGE_WRITE,
    MESSAGE_DISCARD, /* UC: the rest of a message that was given up; RC: the QP fails, every request is
                        dropped */
};

/* One NAK per gap (IBA 9.7.5.2.8), and none for what follows a packet that has to come again anyway. */
enum responder_nak { NAK_NONE, NAK_OF_GAP, NAK_OF_PACKET };

struct receive_queue {
    _Atomic uint32_t posted;
    _Atomic uint32_t taken; /* free-running like the sender's */
    uint32_t depth, max_sge, stride;
    uint32_t from_srq; /* a WQE of the SRQ is taken and not completed: */
    uint64_t srq_wr_id;
    uint64_t offset; /* of the ring, in the segment */
};

/* The published record of one QP: what `softhca ps` and `softhca why` read. Guarded by the QP's lock except
 * where noted. */
struct qp_record {
    _Atomic uint32_t qpn;   /* 0: the slot is free */
    _Atomic uint32_t state; /* enum ibv_qp_state */
    uint32_t type;          /* enum ibv_qp_type */
    uint32_t pd;            /* numbers of the objects it uses; ~0: none */
    uint32_t send_cq, recv_cq, srq, context;
    uint32_t ind_table; /* RSS */
    uint32_t own_depth; /* slots of the send queue for requests of the adapter's own */
    uint32_t send_depth, send_stride, max_send_sge, max_inline;
    uint64_t send_offset;      /* of the send queue, in the segment */
    uint64_t resources_offset; /* of the responder_resource array, in the segment */
    uint32_t multicast_groups;
    _Atomic uint32_t
        destroying_qpn; /* its number while its destroy waits for acknowledgements; then qpn is 0 */
    struct qp_attributes attributes;
    struct sender sender;
    struct responder responder;
    struct receive_queue receive;
    /* What the data path does not touch: */
    uint32_t opened;    /* a handle of ibv_open_qp(), of the QP with this number, in the process home_pid */
    int32_t home_pid;   /* as this process sees it; 0: this one */
    uint32_t openers;   /* handles of ibv_open_qp() that the QP has */
    int32_t opener_pid; /* of one of them, the process; 0: this one */
    struct path_record path;
    struct event_record events;
    struct provenance_record provenance;
} cache_aligned;

/* RC, and the two halves of XRC. */
static inline bool is_reliable(const struct qp_record *record)
{
    return record->type != IBV_QPT_UC && record->type != IBV_QPT_UD && record->type != IBV_QPT_RAW_PACKET;
}

/* Datagrams of whatever kind: no peer that the QP knows of. */
static inline bool is_connected(const struct qp_record *record)
{
    return record->type != IBV_QPT_UD && record->type != IBV_QPT_RAW_PACKET;
}

/* What the link of a QP can do; set by the owner when the path is known (for UD: once, for all local links).
 */
struct link_properties {
    uint32_t mtu;           /* payload of a packet that carries its bytes; at most the path MTU on the wire */
    uint32_t reference_mtu; /* payload of a packet by reference, the same on both sides; 0: the link has
                               none */
    uint32_t reference_from;      /* message length from which by reference is chosen */
    uint32_t fetched_from;        /* the same where ports->direct->is_mapped() says yes; 0: not asked */
    uint32_t read_reference_from; /* the same of READs, which are answered so: by whom we can read */
    uint16_t window; /* may lose packets: so many of a QP may be on their way at most (answers to its READs
                        among them); 0: WINDOW_DEFAULT */
    bool reliable;   /* loses nothing: no ACK timer unless sender_silence() says that nobody listens */
    bool piggyback_acks;   /* carries PACKET_HAS_ACK */
    uint32_t direct_up_to; /* one-sided requests of up to so many bytes: ports->direct->map() may be asked */
    bool deposits;         /* ports->direct->peek_remote_receive() may be asked */
    bool
        rd_atomic_by_packets; /* … but ports->direct->map() only for WRITE: the peer grants fewer READs and atomics at
                             once than may be asked */
};

#define WINDOW_DEFAULT 128

/* Tag matching (tagged.c): the message under way, and what is being fetched. */
enum tagged_kind {
    TAGGED_NOT, /* no SEND is under way */
    TAGGED_NO_TAG,
    TAGGED_UNEXPECTED,
    TAGGED_EAGER,
    TAGGED_RENDEZVOUS,
    TAGGED_INCOMPLETE, /* a rendezvous that software has to see to */
};
struct tagged {
    uint8_t kind;            /* enum tagged_kind */
    uint8_t header;          /* bytes at the beginning of the message that are not placed */
    bool sync_due;           /* tell the program so with it */
    struct tag_entry *entry; /* current_receive is its */
    /* Matched by a rendezvous, in order: fetched and without a FIN yet; asked for; to be asked for. */
    struct tag_entry *fetch_first, *fetch_last;
};

/* So many of the adapter's own requests are in the send queue at most. */
#define OWN_REQUESTS 16u

/* Of the port; any thread counts, relaxed. */
struct port_counters {
    _Atomic uint32_t bad_pkeys, bad_qkeys;
};

/* XRC_RECV: which process executes the requests (relay.c has the transitions). */
enum relay_state {
    RELAY_HERE,    /* this one */
    RELAY_AWAY,    /* the last request, in sequence, went to another process */
    RELAY_VISIT,   /* a duplicate went to another process, and its response is not complete */
    RELAY_OVERDUE, /* the same, and a request was postponed for that response: the next one does not wait */
};

/* A dropped request that the requester has to send again (NAK sequence error). */
enum relay_retry {
    RELAY_RETRY_NONE,
    RELAY_RETRY_DUE,     /* asked for as soon as all requests before it are executed */
    RELAY_RETRY_BLOCKED, /* … and relay_again() was called */
};

struct relay {
    bool possible; /* set by the owner: the XRC domain is shared with other processes */
    bool used;     /* the owner's: another process has heard of this QP */
    bool resumes;  /* the owner's: the process that executes continues, but has to learn the epoch */
    uint8_t state; /* enum relay_state */
    bool
        displaced; /* a duplicate went elsewhere than the last request in sequence, whose process has to resume */
    uint8_t retry;       /* enum relay_retry */
    bool srqn_unknown;   /* expected_psn went back: `srqn` may not be that of the next request */
    bool duplicate_lost; /* the response of a duplicate was lost from lost_psn on: a NAK is due */
    bool ack_due;        /* the requester asked for an acknowledgement of ack_psn */
    uint32_t srqn;       /* of the last request in sequence */
    uint32_t life;       /* counts connections of the QP */
    uint32_t epoch;      /* responses of another epoch are void */
    psn_t visit_psn;     /* last PSN of the duplicate's response */
    psn_t lost_psn, ack_psn;
    psn_t done; /* relay_is_away(): first PSN that is not executed */
};

static inline bool relay_is_away(const struct relay *relay)
{
    return relay->state >= RELAY_AWAY;
}

static inline bool relay_visits(const struct relay *relay)
{
    return relay->state >= RELAY_VISIT;
}

struct transport_qp {
    struct qp_record *record;
    const struct transport_ports *ports;
    struct key_table *keys;
    struct port_counters *counters; /* NULL: nobody asks for them */
    char *send_queue;               /* record->send_offset, mapped */
    uint32_t send_mask;             /* slots - 1; slots is a power of two >= record->send_depth */
    /* UD: payload of datagrams that wait, LIMIT_UD_PAYLOAD bytes each, at the WQE's counter & copies_mask. The
     * owner's; NULL: ports->alloc_copies() was not called yet. */
    char *copies;
    uint32_t copies_mask, copied_end; /* copied_end: WQEs from here on have not been looked at for that */
    struct responder_resource *resources;
    struct link_properties link;
    const struct recv_wqe *current_receive; /* taken and not completed: of the message being received, or (UC:
                                               it was given up; RC: to be repeated) of the next one */
    uint32_t receive_pd;                    /* of receive buffers: the SRQ's, or the QP's own */
    struct tagged tagged;
    bool tag_matching; /* its SRQ is a tag matching one */
    bool building;     /* tag_matching: the owner builds WQEs behind `posted` */
    uint8_t manner;    /* enum packet_manner, of the request that is sent next */
    bool exposes;      /* ports->reference->exposes() was told */
    struct relay relay;
    uint32_t two_sided_end; /* behind the last request begun that takes a receive of the peer's */
    uint32_t two_sided;     /* so many of these were begun since the QP was connected */
    /* The request begun last is one whose receive is known, and none of its packets was sent before: what a
     * packet brings may be received already when it is repeated, and the memory the program's. */
    bool deposits;
    bool
        map_later; /* ports->direct->map() is being seen to: the owner takes this back and calls sender_run() */
};

static inline struct send_wqe *send_wqe_at(const struct transport_qp *qp, uint32_t counter)
{
    return (struct send_wqe *)(qp->send_queue + (size_t)(counter & qp->send_mask) * qp->record->send_stride);
}

/* --- sender.c, sender_lifecycle.c, retry.c, window.c ------------------------------------------------------- */

/* RTR -> RTS: first PSN is attributes.sq_psn. */
void sender_start(struct transport_qp *qp);
/* Transmits what may be transmitted: after posting, after room on the link, after SQD -> RTS. */
void sender_run(struct transport_qp *qp);
/* The QP's timer has run out. */
void sender_timer(struct transport_qp *qp);
/* The link says that packets went nowhere (peer dead, no such QP, or its state drops): from now on the ACK
 * timer decides. */
void sender_silence(struct transport_qp *qp);
/* A router on the way to the peer has marked packets of this QP as having met congestion, and the peer says
 * so (RoCEv2 congestion notification packet): the QP sends less for a while. */
void transport_congested(struct transport_qp *qp);
/* Completes every outstanding send with VERDICT_FLUSHED, in order. */
void sender_flush(struct transport_qp *qp);
/* Takes back what packets by reference, requests and answers, lend to the peer: the owner calls it before the
 * QP loses its way there. The sender does so by itself before it ends a work request that the peer is not
 * done with. In ERR, answers stay: a READ that was answered before what the QP failed of is to end well. */
void transport_revoke(struct transport_qp *qp);
/* Memory that the key in this slot named is going to be the program's again, and no packet names it any more
 * that is not sent yet: revokes if this QP has lent it. window: the key is a window's. Returns whether the QP
 * lends anything else; if not, ports->reference->exposes() comes again. */
bool transport_revoke_key(struct transport_qp *qp, uint32_t slot, bool mw);
/* No send has been begun and not finished: what SQD waits for. */
bool sender_is_drained(const struct transport_qp *qp);
/* sender_run() does a bounded amount of work (64 packets, 256 KiB): true if it stopped for that alone and
 * wants to be called again. When it waits for something, whatever ends the wait calls it: sender_timer(), an
 * answer (transport_receive() itself), the owner for SENDER_WAITS_FOR_LINK. */
static inline bool sender_wants_to_run(const struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    return sender->waiting == SENDER_RUNS &&
           sender->next != atomic_load_explicit(&sender->posted, memory_order_relaxed);
}
/* Forgets everything (RESET), but counters go on where they were; slots of before are free to the owner,
 * whatever `retired` says. */
void sender_reset(struct transport_qp *qp);

/* --- responder.c, response.c ---------------------------------------------------------------------- */

/* INIT -> RTR: first PSN is attributes.rq_psn. */
void responder_start(struct transport_qp *qp);
/* Sends what is owed: READ responses, atomic results, acknowledgements; a bounded amount of work per call.
 * Returns false when the link had no room (call again when it has); true with responder_owes() means that
 * there is more to do: call again soon. */
bool responder_run(struct transport_qp *qp);
/* Posts what the adapter itself has to ask and to tell for tag matching; sender_run() is due after it. */
void tagged_post(struct transport_qp *qp);
/* -> ERR, after sender_flush(): completes tagged buffers that messages have taken, as flushed. -> RESET, or
 * the QP goes: only gives them back. */
void tagged_flush(struct transport_qp *qp);
void tagged_forget(struct transport_qp *qp);
/* The QP is going to stop answering (ERR, RESET, destroy): acknowledges what was accepted, and on a link that
 * loses nothing tells the requester of the questions that stay without an answer, since its timer does not
 * run. responder_run() does that in ERR. false: no room on a link that may lose packets, call again, or not.
 */
bool responder_finish(struct transport_qp *qp);
/* Before it does, and when everything was answered: says the last acknowledgement again where it may have got
 * lost. */
void responder_resend_last_ack(struct transport_qp *qp);
/* -> ERR: completes the receive that is being filled, if any, as flushed. The owner calls it before it
 * flushes the receives that nobody took. */
void responder_flush(struct transport_qp *qp);
void responder_reset(struct transport_qp *qp);

/* relay.c. An answer of the process that executes; then the owner calls responder_run(). */
void relay_response(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* What hand_over() had no room for, or did not know where to send, may go now: before responder_run(). */
void relay_again(struct transport_qp *qp);
/* The process that executes is gone. */
void relay_lost(struct transport_qp *qp);
/* hand_over() had to move to another process, which it could not tell so: it returns -EAGAIN. */
void relay_move_failed(struct transport_qp *qp);

/* A packet for this QP (its number matched): requests go to the responder, answers to the sender (which may
 * go on transmitting at once). Does not send what the responder comes to owe (but a NAK that ends the QP, if
 * it can): the caller calls responder_run() after a batch; it may leave mere acknowledgements
 * (responder_owes_only_ack()) for later, so that they ride on requests of the other direction. A
 * PACKET_DROPPED for a QP makes its sender silent.
 *
 * false: dropped silently, for the state or the identity of the QP. On a link that loses nothing the caller
 * answers a request of RC, and one of UC by reference (the sender's buffer is lent until it is answered),
 * with PACKET_DROPPED. */
bool transport_receive(struct transport_qp *qp, const struct packet *packet);

/* raw.c: a RAW_PACKET QP receives a frame, which is shaped as it wants it. `completion` says what else is to
 * be said of it; false: there was no receive, and it is lost. */
bool raw_receive(struct transport_qp *qp, const void *frame, uint32_t length,
                 const struct receive_completion *completion);
/* The frame into a receive of whatever queue, with memory of this PD. */
enum verdict raw_place(const struct transport_qp *qp, uint32_t pd, const struct recv_wqe *receive,
                       const void *frame, uint32_t length);

static inline bool responder_owes(const struct transport_qp *qp)
{
    const struct responder *responder = &qp->record->responder;

    return responder->ack_owed || responder->owed_syndrome ||
           responder->resource_next != responder->resource_tail;
}

/* The QP is in error because of a request, and the link may have lost the NAK that said so: it is said again
 * when a request comes, because nobody else can tell the requester what became of it. Everything else that
 * comes is dropped (verbs.md §2.1). */
static inline bool responder_has_fatal_nak(const struct transport_qp *qp)
{
    return !qp->link.reliable && qp->record->responder.fatal_nak;
}

/* A request has made the adapter post something: the caller runs the sender at once. */
static inline bool tagged_has_posted(const struct transport_qp *qp)
{
    return unlikely(qp->tag_matching) && sender_wants_to_run(qp);
}

static inline bool responder_owes_only_ack(const struct transport_qp *qp)
{
    const struct responder *responder = &qp->record->responder;

    return responder->ack_owed && !responder->owed_syndrome &&
           responder->resource_next == responder->resource_tail;
}

#endif
