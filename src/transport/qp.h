/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A QP as transport sees it: a sender and a responder over one published record. Every function here is called with the
 * QP's lock held (the lock of its owner, object/qp/qp.h), except raw_place(). Transport takes no lock itself,
 * reads no clock, allocates nothing and does no I/O. */
#ifndef TRANSPORT_QP_H
#define TRANSPORT_QP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/psn.h"
#include "base/types.h"
#include "base/verbs.h"
#include "published/counters.h"
#include "published/drops.h"
#include "published/record.h"
#include "rules/fault.h"
#include "transport/ports.h"

/* Most PSNs in flight on any link: psn_t compares within half its range (IBA 9.7.2). */
#define WINDOW_PSNS (1u << 23)

/* Attributes as ibv_modify_qp() set them and ibv_query_qp() reports them. */
struct qp_attributes {
    uint32_t qkey, dest_qpn, rq_psn, sq_psn, access_flags;
    uint16_t pkey_index;
    uint8_t port, path_mtu; /* enum ibv_mtu */
    uint8_t max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, timeout, retry_count, rnr_retry;
    uint8_t path_mig_state, sgid_index, signal_all, sq_drained_event; /* last: SQ_DRAINED was requested */
    uint8_t static_rate, reserved[3];
    struct path_address path; /* connected QPs, from RTR on */
};

/* The sender: requester and completer of IBA. Counters of WQEs are free-running (32 bits) and compared by distance;
 * slot = counter & send_mask.
 *
 *   completed <= next <= posted       completed <= begun <= posted       next < begun while it retransmits
 *
 * `retired` counts the program's requests only: the queue is full when posted - own_posted - retired is its depth
 * (verbs.md §3.7). */
struct sender {
    _Atomic uint32_t posted; /* written under the QP's lock */
    uint32_t next;           /* the WQE that is transmitted now, or would be */
    uint32_t begun;          /* the first WQE that was never begun */
    uint32_t completed;      /* the oldest WQE without verdict */
    /* Written under the CQ's poll_lock, by the thread that polls the completion; only grows. */
    _Atomic uint32_t retired;
    uint32_t own_posted; /* of the adapter's own requests (WQE_OWN); and own_completed */
    uint32_t plain;  /* statistics: of engine/direct/plain.c, paths/plain_send.c, transport/sender_plain.c */
    uint8_t waiting; /* enum sender_wait: why WQE `next` is not transmitted */
    uint8_t retries_left, rnr_retries_left;
    uint8_t timer_armed;     /* enum sender_timer */
    psn_t next_psn;          /* of the next new packet */
    psn_t unacked_psn;       /* oldest PSN without acknowledgement */
    uint32_t next_offset;    /* packets of WQE `next` that are sent (in this transmission) */
    uint32_t rd_atomic_wqes; /* READ and atomic WQEs begun and without complete response */
    uint32_t own_completed;
    uint8_t read_gap_seen;        /* a gap in READ responses was retried (once, IBA 9.7.5.2.8) */
    uint8_t references_requested; /* those of rd_atomic_wqes whose response comes by reference */
    uint8_t timer_moved;      /* ACK timer: there was an acknowledgement or a repetition since it was armed */
    uint8_t timeouts, probes; /* since unacked_psn moved */
    uint32_t read_offset;     /* bytes of the oldest READ that have arrived */
    uint32_t retransmissions, rnr_naks, sequence_naks; /* statistics */
    /* Time stamps, written by the owner if times are recorded: */
    uint32_t waits_since; /* when `waiting` got its value */
    uint32_t heard;       /* latest packet of the peer */
    /* Used on links that may lose packets only (window.c, retry.c): */
    psn_t sent_psn;     /* end of what was ever transmitted, or requested by a READ */
    psn_t recovery_psn; /* losses before it have halved the window already */
    psn_t ssn, lsn; /* last message begun; last message that the responder has a receive for (IBA 9.7.7.2) */
    uint16_t window, window_threshold, window_acked; /* congestion window, in packets */
    uint16_t rd_atomic_packets; /* READ (parts) and atomic requests sent and without complete response */
    uint8_t recovering;         /* unacked_psn has not reached recovery_psn */
    uint8_t probing;    /* packets that may be sent until the next acknowledgement; 0: as the window says */
    uint8_t limited;    /* lsn is known */
    uint8_t rtt_runs;   /* a round trip is being measured: rtt_psn was sent, once, at rtt_at */
    uint8_t probe_runs; /* the last packet that was transmitted is a probe */
    uint8_t rtt_rest;   /* packets to skip before the next measurement */
    psn_t rtt_psn;
    uint32_t rtt, rtt_deviation; /* ns, smoothed; rtt 0: none was measured */
    psn_t repeated_psn;          /* where retransmission began last, at repeated_at */
    psn_t probe_psn;             /* of the packet that a probe repeated */
    ns_t rtt_at, repeated_at;
    ns_t timer_delay,
        timeout_left; /* of the ACK timer: the delay it was armed with; what is left of the timeout */
    uint32_t expirations, probes_sent, congestions; /* statistics */
};

enum sender_wait {
    SENDER_RUNS,
    SENDER_WAITS_FOR_LINK, /* the ring or the socket is full */
    SENDER_WAITS_FOR_FENCE,
    SENDER_WAITS_FOR_READ_DEPTH, /* max_rd_atomic requests are in flight */
    SENDER_WAITS_FOR_RNR_TIMER,
    SENDER_WAITS_FOR_RETRY, /* the peer does not respond: the local ACK timeout runs */
    SENDER_WAITS_IN_SQD,
    SENDER_WAITS_FOR_WINDOW,
    SENDER_WAITS_TO_FAIL, /* WQE `next` failed on this side; its verdict follows those of the WQEs before it */
    SENDER_WAITS_FOR_MAPPING,  /* the owner maps the memory of the peer first (DIRECT_LATER) */
    SENDER_WAITS_AFTER_LOSSES, /* those before it end first, as they were sent (sender_end_losses()) */
};
enum sender_timer { SENDER_TIMER_NONE, SENDER_TIMER_ACK, SENDER_TIMER_RNR };

/* A READ, atomic, atomic write or FLUSH request that the responder has accepted. Kept after its response was sent until
 * another request takes its place, so that a duplicate gets a response: READ is executed again, an atomic responds with
 * the saved result (IBA 9.4.4, 9.4.5). */
struct responder_resource {
    psn_t first_psn;
    uint32_t packets;
    uint8_t operation;    /* of the request, without the service */
    uint8_t by_reference; /* READ: the response goes by reference, in packets of reference_mtu */
    uint8_t responded;
    uint8_t exposed;   /* a response by reference was sent; it is not known when the requester fetches it */
    uint32_t rkey, pd; /* of the memory */
    uint64_t address;
    uint32_t length, sent; /* bytes requested; bytes sent */
    uint32_t end;          /* where this response ends: a duplicate may ask for less than `length` */
    uint8_t executed;      /* not a READ: must not be executed again (atomic: original is valid) */
    uint8_t fresh;         /* no packet of this response was sent yet */
    uint8_t repeated;      /* a response was sent before: the resource may be given to another request */
    uint8_t mtu;           /* enum ibv_mtu of the response's packets; 0: that of the link */
    uint64_t original;     /* atomic: value before */
    union {                /* operands, until executed: execution waits for the READs before it */
        struct {
            uint64_t compare, swap_add;
        } atomic;
        uint64_t written; /* atomic write */
        uint32_t flush;   /* FETH */
    };
};

/* The responder had no receive for the oldest request, and has not acknowledged it since: the request waits for the RNR
 * timer, or has been sent again. */
static inline bool sender_is_refused(const struct qp_attributes *attributes, const struct sender *sender)
{
    return sender->rnr_retries_left < attributes->rnr_retry && sender->begun != sender->completed;
}

struct responder {
    psn_t expected_psn;
    uint32_t msn;
    uint8_t message;                   /* enum responder_message: what is being received */
    uint8_t ack_owed;                  /* enum ack_owed: an acknowledgement up to expected_psn - 1 is due */
    uint8_t nak_sent;                  /* enum responder_nak: for the expected packet */
    uint8_t established;               /* COMM_EST was raised */
    uint32_t acks_owed;                /* packets that the owed acknowledgement covers */
    uint32_t offset;                   /* bytes of the current message that are placed */
    uint32_t write_rkey, write_length; /* of the current RDMA WRITE */
    uint32_t wanting_write; /* 1: what last found no receive was an RDMA WRITE with immediate; 0: a SEND */
    uint64_t write_address;
    uint32_t resources; /* number of responder_resource (max_dest_rd_atomic) */
    uint32_t resource_head, resource_tail, resource_next; /* oldest, end, next to respond to; free-running */
    uint8_t owed_syndrome; /* NAK or RNR NAK that is due instead of an acknowledgement; 0: none */
    uint8_t fails;         /* after that NAK the QP is in error */
    uint8_t fatal_nak;     /* that NAK, once it was sent */
    uint8_t together; /* READ, atomic and FLUSH requests accepted of the current batch (PACKET_TOGETHER) */
    psn_t owed_psn;
    uint32_t duplicates, drops; /* statistics */
    uint32_t plain; /* statistics: requests that went the straight way (engine/core/plain_receive.c) */
};
/* Bits; 0: none is due. */
enum ack_owed {
    ACK_OWED = 1,
    ACK_AWAITED = 64, /* of a request with PACKET_AWAITED, which is the same bit */
};
enum responder_message {
    MESSAGE_NONE,
    MESSAGE_SEND,
    MESSAGE_WRITE,
    MESSAGE_DISCARD, /* UC: the rest of a message that is given up; RC: the QP fails and drops every request */
};

/* One NAK per gap (IBA 9.7.5.2.8), and none for packets behind one that has to come again anyway. */
enum responder_nak { NAK_NONE, NAK_OF_GAP, NAK_OF_PACKET };

struct receive_queue {
    _Atomic uint32_t posted;
    _Atomic uint32_t taken; /* free-running, as the sender's counters */
    uint32_t depth, max_sge, stride;
    uint32_t from_srq; /* a WQE of the SRQ is taken and not completed: */
    uint64_t srq_wr_id;
    uint64_t offset; /* of the ring, in the segment */
};

/* The record of one QP in the published segment, which `softhca ps`, `softhca why` and peers with mapped
 * memory read. Each field, also of the structures in it, is a format between processes behind one version
 * number: a change of layout, unit or meaning raises SEGMENT_VERSION (segment/segment.h says what follows).
 * Written under the QP's lock except where noted. */
struct qp_record {
    _Atomic uint32_t qpn;   /* 0: the slot is free */
    _Atomic uint32_t state; /* enum ibv_qp_state */
    uint32_t type;          /* enum ibv_qp_type */
    uint32_t pd;            /* numbers of the objects it uses; ~0: none */
    uint32_t send_depth, send_stride, max_send_sge, max_inline;
    struct sender sender; /* its first fields are in the cache line of the fields above */
    uint32_t send_cq, recv_cq, srq, context;
    uint32_t ind_table;                          /* RSS */
    uint32_t own_depth;                          /* slots of the send queue for the adapter's own requests */
    uint64_t send_offset;                        /* of the send queue, in the segment */
    struct traffic_record traffic cache_aligned; /* near to that line, because each request counts there */
    uint64_t resources_offset;                   /* of the responder_resource array, in the segment */
    /* Latencies, as in struct traffic_rare; a count that would not fit is moved there. */
    uint32_t latency[LATENCY_BUCKETS];
    uint32_t multicast_groups;
    uint32_t has_rare; /* 1: there is something in its struct qp_rare */
    /* Number of the QP while its destroy waits for acknowledgements; qpn is 0 then. */
    _Atomic uint32_t destroying_qpn;
    struct qp_attributes attributes;
    struct responder responder;
    struct receive_queue receive;
    /* Not used on the data path: */
    uint32_t opened;  /* this is a handle of ibv_open_qp() for the QP with this number in process home_pid */
    int32_t home_pid; /* in this process's PID namespace; 0: this process */
    uint32_t openers; /* handles of ibv_open_qp() for this QP */
    int32_t opener_pid; /* process of one of them; 0: this process */
    struct path_record path;
    struct event_record events;
    struct provenance_record provenance;
    uint32_t unseen; /* watched: enum unseen */
    /* Injected faults: completions that are made to come late, and are not there yet; requests that get none if they
     * succeed. */
    uint32_t held_completions, withheld_completions;
    /* The latest change of state by ibv_modify_qp(), or the destroy: stamp, set even if nothing else is stamped, and
     * thread. STAMP_NONE: none since it was created. */
    uint32_t changed, changed_by;
    uint32_t
        destroyed_qpn; /* number of the QP that was destroyed here; 0: none was, or the slot is in use again */
} cache_aligned;
_Static_assert(offsetof(struct qp_record, sender.next_psn) == CACHE_LINE,
               "what a plain request needs is one cache line");

/* What few QPs ever have: in a table of its own, whose pages exist once something is written there, which
 * record.has_rare says; else it is not even read. Zero at first. */
struct qp_rare {
    struct fault_record fault;
    struct failure_record failure;
    struct drop_record drops[DROP_REASONS]; /* UD, RAW_PACKET; enum drop_reason */
    struct traffic_rare traffic;
};

/* RC, and both ends of XRC. */
static inline bool is_reliable(const struct qp_record *record)
{
    return record->type != IBV_QPT_UC && record->type != IBV_QPT_UD && record->type != IBV_QPT_RAW_PACKET;
}

static inline bool is_connected(const struct qp_record *record)
{
    return record->type != IBV_QPT_UD && record->type != IBV_QPT_RAW_PACKET;
}

/* What a port counts for the QP. On one host a message is no packet, and is counted as one; a datagram always is
 * one. */
static inline void qp_sum(const struct qp_record *record, const struct qp_rare *rare, struct traffic_sum *ret)
{
    const struct traffic_record *traffic = &record->traffic;

    *ret = (struct traffic_sum){
        .packets_sent = traffic->packets_sent,
        .packets_received = traffic->packets_received,
        .traffic = *traffic,
        .retries =
            {
                .retransmissions = record->sender.retransmissions,
                .sequence_naks = record->sender.sequence_naks,
                .rnr_naks = record->sender.rnr_naks,
                .timeouts = record->sender.expirations,
                .probes = record->sender.probes_sent,
                .congestions = record->sender.congestions,
                .duplicates = record->responder.duplicates,
                .drops = record->responder.drops,
            },
    };
    if (record->has_rare)
        ret->rare = rare->traffic;
    for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
        counter_add(&ret->rare.latency[i], record->latency[i]);
    if (is_connected(record) && record->path.kind == PATH_WIRE)
        return;
    ret->packets_sent = ret->packets_received = 0;
    for (unsigned kind = TRAFFIC_SEND; kind < TRAFFIC_LOCAL; kind++) {
        ret->packets_sent += traffic->requested[TRAFFIC_BY_PACKETS][kind].messages +
                             traffic->requested[TRAFFIC_BY_REQUESTER][kind].messages;
        ret->packets_received += traffic->executed[kind].messages;
    }
}

/* What the link of a QP can do. Set by the owner when the path is known (UD: once, for all local links). */
struct link_properties {
    /* One-sided requests up to this length are offered to ports->direct->map(); 0: none. */
    uint32_t direct_up_to;
    /* The owner's: SENDs up to this length carry their bytes in one packet, and may be plain; 0: none. */
    uint32_t plain_send_up_to;
    uint32_t mtu; /* payload of a packet that carries its bytes; on the network at most the path MTU */
    uint32_t reference_mtu; /* payload of a packet by reference, the same on both sides; 0: not possible */
    /* Message length from which payload goes by reference: in general; from regions that ports->direct->is_mapped()
     * (0: is_mapped() is not called); and READ responses. */
    uint32_t reference_from;
    uint32_t fetched_from;
    uint32_t read_reference_from;
    /* Upper bound of the congestion window, in packets; 0: WINDOW_DEFAULT. Links that may lose packets. */
    uint16_t window;
    /* Loses nothing: no ACK timer until sender_peer_silent(). A local link may begin and end to lose packets
     * (sender_expect_losses()). */
    bool reliable;
    bool local;          /* between processes of a host: packets have src_qpn and enum packet_hints */
    bool piggyback_acks; /* carries PACKET_HAS_ACK */
    uint8_t carriage;    /* enum wqe_carriage of requests that are begun: WQE_BY_BYTES or WQE_BY_PATH_MTU */
    uint8_t awaited;     /* PACKET_AWAITED, of signaled requests, or 0 */
    bool deposits;       /* ports->direct->peek_remote_receive() is called */
    /* Only WRITE is offered to map(): max_rd_atomic exceeds what the peer granted, which its responder checks. */
    bool rd_atomic_by_packets;
};

#define WINDOW_DEFAULT 128

/* Tag matching (tagged.c): the message that is being received, and the fetches. */
enum tagged_kind {
    TAGGED_NOT, /* no SEND is being received */
    TAGGED_NO_TAG,
    TAGGED_UNEXPECTED,
    TAGGED_EAGER,
    TAGGED_RENDEZVOUS,
    TAGGED_INCOMPLETE, /* a rendezvous that software has to handle */
};
struct tagged {
    uint8_t kind;            /* enum tagged_kind */
    uint8_t header;          /* bytes at the beginning of the message that are not placed */
    bool sync_due;           /* report IBV_WC_TM_SYNC_REQ with its completion */
    struct tag_entry *entry; /* current_receive is this entry's */
    /* Buffers matched by a rendezvous, in order: READ complete and FIN not posted; READ posted; READ not posted. */
    struct tag_entry *fetch_first, *fetch_last;
};

/* The adapter's own requests in a send queue at once. */
#define OWN_REQUESTS 16u

/* Of the port. Every thread counts, relaxed. */
struct port_counters {
    _Atomic uint32_t bad_pkeys, bad_qkeys;
};

/* XRC_RECV: which process executes the requests (relay.c has the transitions). */
enum relay_state {
    RELAY_HERE,      /* this one */
    RELAY_AWAY,      /* the last request, in sequence, went to another process */
    RELAY_DUPLICATE, /* a duplicate went to another process, and its response is not complete */
    RELAY_OVERDUE,   /* the same, and a request was postponed for that response: the next one does not wait */
};

/* A dropped request that the requester has to send again (NAK sequence error). */
enum relay_retry {
    RELAY_RETRY_NONE,
    RELAY_RETRY_DUE, /* a NAK asks for it as soon as all requests before it are executed */
    /* The same, but not before the owner calls relay_again() or another request is forwarded. */
    RELAY_RETRY_BLOCKED,
};

struct relay {
    bool possible; /* set by the owner: the XRC domain is shared with other processes */
    bool used;     /* the owner's: another process knows of this QP */
    bool resumes;  /* the owner's: the process that executes continues, but has to learn the epoch */
    uint8_t state; /* enum relay_state */
    /* The process of the last request in sequence executes (RELAY_AWAY), and no duplicate went out since. */
    bool in_sequence;
    /* A duplicate went out after it, so that this process may have to resume. */
    bool displaced;
    uint8_t retry;       /* enum relay_retry */
    bool srqn_unknown;   /* expected_psn went back: `srqn` may not be that of the next request */
    bool duplicate_lost; /* the response of a duplicate was lost from lost_psn on: a NAK is due */
    bool ack_due;        /* the requester asked for an acknowledgement of ack_psn */
    uint32_t srqn;       /* of the last request in sequence */
    uint32_t connection; /* counts connections of the QP */
    uint32_t epoch;      /* responses of another epoch are void */
    psn_t duplicate_psn; /* last PSN of the duplicate's response */
    psn_t lost_psn, ack_psn;
    psn_t done; /* relay_is_away(): first PSN that is not executed */
};

static inline bool relay_is_away(const struct relay *relay)
{
    return relay->state >= RELAY_AWAY;
}

static inline bool relay_has_duplicate(const struct relay *relay)
{
    return relay->state >= RELAY_DUPLICATE;
}

struct transport_qp {
    /* A plain request (engine/direct/plain.c, paths/plain_send.c) needs what comes up to `link`, and its first
     * fields. */
    struct qp_record *record;
    struct key_table *keys;
    char *send_queue;   /* record->send_offset, mapped */
    uint32_t send_mask; /* slots - 1; slots is a power of two >= record->send_depth */
    bool tag_matching;  /* its SRQ is a tag matching one */
    /* ports->direct->map() is being prepared. The owner clears this and calls sender_run(). */
    bool map_later;
    /* The owner has executed the next request, an atomic, and the peer had stopped waiting for it: as if its response
     * was lost. direct_execute() completes it and clears this. */
    bool atomic_unknown;
    struct link_properties link;
    const struct transport_ports *ports;
    struct qp_rare *rare;           /* of the record; written by qp_rare() */
    struct port_counters *counters; /* NULL: not counted */
    /* UD: copies of the payload of waiting datagrams, LIMIT_UD_PAYLOAD bytes each, at the WQE's counter & copies_mask.
     * Owned by the owner; NULL: ports->alloc_copies() was not called yet. */
    char *copies;
    uint32_t copies_mask, copied_end; /* copied_end: first WQE that was not considered for a copy */
    struct responder_resource *resources;
    /* Taken and not completed: of the message being received, or of the next one if that was given up (UC) or has to
     * come again (RC). */
    const struct recv_wqe *current_receive;
    uint32_t receive_pd; /* of receive buffers: the SRQ's, or the QP's own */
    struct tagged tagged;
    bool counts_remote; /* the owner counts what the peer's requests have done */
    bool building;      /* tag_matching: the owner builds WQEs behind `posted` */
    uint8_t next_hints; /* enum packet_hints, of the next request */
    bool exposes;       /* ports->reference->exposes() was called */
    struct relay relay;
    uint32_t two_sided_end; /* behind the last request begun that takes a receive of the peer */
    uint32_t two_sided;     /* such requests begun since the QP was connected */
    uint32_t
        rtt_least; /* shortest round trip since then, in ns: that of empty queues; 0: none was measured */
    /* Deposit is possible for the request begun last: its receive is known, and no packet of it is a repetition (a
     * repeated packet may have been received before, and the receive be the program's again). */
    bool deposits;
    bool holds; /* no request is begun until those before it are complete (sender_end_losses()) */
    /* Of the next requests, so many go as packets (ports->direct->goes_by_packets). */
    uint8_t unasked;
};

/* To write there. Lock held. */
static inline struct qp_rare *qp_rare(struct transport_qp *qp)
{
    qp->record->has_rare = 1;
    return qp->rare;
}

/* enum fault_cause of the QP. */
static inline uint16_t qp_fault_cause(const struct transport_qp *qp)
{
    return unlikely(qp->record->has_rare) ? qp->rare->fault.cause : FAULT_NONE;
}

static inline struct send_wqe *send_wqe_at(const struct transport_qp *qp, uint32_t counter)
{
    return (struct send_wqe *)(qp->send_queue + (size_t)(counter & qp->send_mask) * qp->record->send_stride);
}

/* --- sender.c, sender_lifecycle.c, retry.c, window.c ------------------------------------------------------- */

/* RTR -> RTS: the first PSN is attributes.sq_psn. */
void sender_start(struct transport_qp *qp);
/* The reliable QP has lost nothing so far, and its link may lose packets from now on: clears link.reliable. */
void sender_expect_losses(struct transport_qp *qp);
/* The link loses nothing any more. True: link.reliable is set. False: what is outstanding may be lost, so no request is
 * begun, and the owner calls again when packets have arrived. */
bool sender_end_losses(struct transport_qp *qp);
/* Transmits what may be transmitted: after posting, after space on the link, after SQD -> RTS. */
void sender_run(struct transport_qp *qp);
/* The QP's timer has expired. */
void sender_timer(struct transport_qp *qp);
/* The link reports that packets were not delivered (peer dead, no such QP, or its state drops them): from now
 * on the ACK timer runs. UC: buffers that packets refer to are no longer exposed. */
void sender_peer_silent(struct transport_qp *qp);
/* A congestion notification packet arrived (RoCEv2 CNP): the QP sends less for a while. */
void transport_congested(struct transport_qp *qp);
/* A router marked a packet of a READ response (ECN): the QP asks for less for a while, since its window bounds what
 * the responder sends. */
void transport_response_congested(struct transport_qp *qp);
/* Completes every outstanding send with VERDICT_FLUSHED, in order. */
void sender_flush(struct transport_qp *qp);
/* Revokes all references that the QP has sent, in requests and responses. The owner calls it before the QP loses its
 * path to the peer. The sender does so by itself before it completes a work request that the peer may still read. In
 * ERR responses are not revoked: a READ before the request that failed the QP is to complete. */
void transport_revoke(struct transport_qp *qp);
/* The memory of the key in this slot is about to become the program's again, and no packet that is not sent yet
 * names it: revokes if the QP has exposed it. mw: the key is a memory window's. Returns whether the QP exposes other
 * memory; if not, ports->reference->exposes() is called again for the next. */
bool transport_revoke_key(struct transport_qp *qp, uint32_t slot, bool mw);
/* No send is begun and not complete: SQD is reached. */
bool sender_is_drained(const struct transport_qp *qp);
/* sender_run() does a bounded amount of work (64 packets, 256 KiB). true: it stopped at that bound and has to be called
 * again. When it waits for something, sender_run() is called at the end of the wait: by sender_timer(), by
 * transport_receive() for a response, by the owner for SENDER_WAITS_FOR_LINK. */
static inline bool sender_wants_to_run(const struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;

    return sender->waiting == SENDER_RUNS &&
           sender->next != atomic_load_explicit(&sender->posted, memory_order_relaxed);
}
/* -> RESET: forgets everything but the counters. Slots posted before are free to the owner, whatever `retired` says. */
void sender_reset(struct transport_qp *qp);

/* --- responder.c, response.c, rd_atomic.c, tagged.c -------------------------------------------------------- */

/* INIT -> RTR: the first PSN is attributes.rq_psn. */
void responder_start(struct transport_qp *qp);
/* Sends what is owed: READ responses, atomic results, acknowledgements; a bounded amount of work per call. false: the
 * link has no space, call again when it has. true and responder_owes(): it stopped at the bound, call again soon. */
bool responder_run(struct transport_qp *qp);
/* Posts the adapter's own requests of tag matching (READ and FIN); sender_run() has to follow. */
void tagged_post(struct transport_qp *qp);
/* -> ERR, after sender_flush(): completes the tagged buffers that messages have taken, as flushed. */
void tagged_flush(struct transport_qp *qp);
/* -> RESET or destroy: gives them back without completion. */
void tagged_forget(struct transport_qp *qp);
/* The QP is about to stop responding (ERR, RESET, destroy): acknowledges what was accepted. On a link that loses
 * nothing, where the requester's ACK timer does not run, it also sends a drop notice for READ and atomic requests that
 * will get no response. responder_run() does this in ERR. false: no space on a link that may lose packets; the caller
 * may call again. */
bool responder_finish(struct transport_qp *qp);
/* Before the process ends, with nothing owed: repeats the last acknowledgement where it may have been lost. */
void responder_resend_last_ack(struct transport_qp *qp);
/* -> ERR: completes the receive that is being filled, if any, as flushed. The owner calls it before it flushes the
 * receives that were not taken. */
void responder_flush(struct transport_qp *qp);
void responder_reset(struct transport_qp *qp);

/* --- relay.c, called by the owner ---------------------------------------------------------------------------- */

/* A response of the process that executes; responder_run() has to follow. */
void relay_response(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* hand_over() returned -EAGAIN, because the lane was full or the SRQ's process was not known. It may be tried
 * again; responder_run() has to follow. */
void relay_again(struct transport_qp *qp);
/* The process that executes is gone. */
void relay_lost(struct transport_qp *qp);
/* hand_over() had to move to another process and could not send it the terms: it returns -EAGAIN. */
void relay_move_failed(struct transport_qp *qp);

/* --- receive.c ----------------------------------------------------------------------------------------------- */

/* A packet for this QP (its number matched): requests go to the responder, responses to the sender, which may continue
 * to transmit at once. What the responder owes is not sent here, except a NAK that ends the QP: the caller calls
 * responder_run() after a batch of packets. It may delay mere acknowledgements (responder_owes_only_ack()), so that
 * they ride on requests of the other direction. A PACKET_DROPPED for a QP calls sender_peer_silent().
 *
 * false: dropped silently, for the state or the identity of the QP. On a link that loses nothing the caller then sends
 * PACKET_DROPPED for an RC request, and for a UC packet by reference (the sender's buffer is exposed until then). */
bool transport_receive(struct transport_qp *qp, const struct packet *packet);
/* The same for an acknowledgement that is no NAK, of a reliable QP in RTS, by its peer, on a link that loses
 * nothing. */
void transport_acknowledged(struct transport_qp *qp, psn_t psn);

/* --- ud.c ---------------------------------------------------------------------------------------------------- */

/* A datagram is lost: counted with its values, and told to the owner. Lock held. */
void datagram_dropped(struct transport_qp *qp, const struct packet *packet, enum drop_reason reason,
                      uint32_t seen, uint32_t wanted);

/* --- raw.c --------------------------------------------------------------------------------------------------- */

/* A RAW_PACKET QP receives an Ethernet frame, shaped as the QP asked (VLAN tag, FCS). `completion` says what
 * else is known of it. false: no receive was posted, and the frame is lost. */
bool raw_receive(struct transport_qp *qp, const void *frame, uint32_t length,
                 const struct receive_completion *completion);
/* Copies the frame into a receive of any queue, with memory of this PD. The lock of that queue's owner (QP or
 * WQ) is held. */
enum verdict raw_place(const struct transport_qp *qp, uint32_t pd, const struct recv_wqe *receive,
                       const void *frame, uint32_t length);

/* --- what a QP has to do next ---------------------------------------------------------------------------------- */

static inline bool responder_owes(const struct transport_qp *qp)
{
    const struct responder *responder = &qp->record->responder;

    return responder->ack_owed || responder->owed_syndrome ||
           responder->resource_next != responder->resource_tail;
}

/* The QP is in error because of a request, and the link may have lost the NAK for it: the NAK is sent again when a
 * request comes. Everything else that comes is dropped (verbs.md §2.1). */
static inline bool responder_has_fatal_nak(const struct transport_qp *qp)
{
    return !qp->link.reliable && qp->record->responder.fatal_nak;
}

/* A request made the adapter post a request of its own: the caller runs the sender at once. */
static inline bool tagged_has_posted(const struct transport_qp *qp)
{
    return unlikely(qp->tag_matching) && sender_wants_to_run(qp);
}

/* hints: enum packet_hints of the request. */
static inline void responder_owe_ack(struct responder *responder, uint8_t hints)
{
    responder->ack_owed |= (uint8_t)(ACK_OWED | (hints & ACK_AWAITED));
}

static inline bool responder_owes_only_ack(const struct transport_qp *qp)
{
    const struct responder *responder = &qp->record->responder;

    return responder->ack_owed && !responder->owed_syndrome &&
           responder->resource_next == responder->resource_tail;
}

#endif
