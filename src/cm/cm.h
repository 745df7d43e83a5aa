/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Communication management (IBA chapter 12): connections (REQ, REP, RTU …) and resolution of datagram
 * services (SIDR). A machine without I/O: MADs, calls and the time go in; MADs, events and a deadline come
 * out.
 *
 *              active                                   passive
 *   cm_connect()        REQ ->      request()           the owner gives storage for a new id
 *   event REPLY         <- REP      cm_accept()
 *   cm_establish()      RTU ->      event ESTABLISHED
 *   event DISCONNECTED <- DREQ, DREP -> cm_disconnect(), event DISCONNECTED     (either side)
 *   event TIMEWAIT_EXIT             event TIMEWAIT_EXIT
 *
 *   cm_resolve()        SIDR_REQ -> request()
 *   event RESOLVED      <- SIDR_REP cm_resolve_accept()
 *
 * One struct cm serves a process. It is not thread-safe: whoever calls holds the owner's lock of it. Ports
 * are called with that lock held and call nothing of the machine; they put things aside for later (a MAD to
 * be sent, an event).
 *
 * Storage: an id is embedded in something of the owner. The machine uses it from the call that takes it (or
 * from request()) until it says released(); the owner says by cm_close() that it wants no more events. What
 * the protocol still owes the peer then (a DREQ that is to be answered, a REJ that is to be repeated,
 * timewait) goes on without the owner.
 *
 * Comm ids: the processes of a host share QP1, so a comm id tells whose it is. Its upper 16 bits are the
 * number of a QPN block that the process owns (local/), the lower 16 are a counter. cm_mad_addressee() finds
 * the number in a MAD. The owner grants blocks, and more of them when -ENOSPC says that there are too few.
 *
 * Times, retry counts and lengths that a peer sends are bounded; nothing that it sends makes the machine use
 * storage but request().
 */
#ifndef CM_CM_H
#define CM_CM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"
#include "wire/cm_mad.h"
#include "wire/cma_header.h"

#define CM_BLOCKS                   64    /* a process's blocks: four million ids */
#define CM_BUCKETS                  4096  /* of each hash table */
#define CM_LINGER_MAX               16384 /* ids without owner */
#define CM_PACKET_LIFETIME_DEFAULT  14    /* 67 ms */
#define CM_RESPONSE_TIMEOUT_DEFAULT 18    /* 1.07 s */
#define CM_RETRIES_DEFAULT          15
#define CM_MRA_TIMEOUT_DEFAULT      22 /* 17 s */
#define CM_ACK_DELAY_DEFAULT        15 /* local CA ACK delay: 134 ms */

struct cm;
struct cm_id;

/* Where a peer is, and how it sees us. The machine reads GIDs, GUID and flow labels; the rest it carries. */
struct cm_path {
    uint8_t local_gid[16], remote_gid[16];
    uint64_t local_guid; /* node GUID of the local device, host order */
    uint32_t flow_label;
    uint8_t service_level, traffic_class, hop_limit, packet_rate; /* enum ibv_rate */
    uint64_t way;  /* whatever the carriage wants to have back: device, interface … */
    uint64_t peer; /* the process there, if the carriage knows it, else 0: for cm_peer_gone(). The machine
                      takes it over from the MAD by which it comes to know the peer */
};

/* What a program needs to know of the other side (struct rdma_conn_param of an event, verbs.md §11.6).
 * From the view of whoever is told: responder_resources is the initiator depth of the peer. */
struct cm_offer {
    uint8_t responder_resources, initiator_depth;
    uint8_t retry_count, rnr_retry_count; /* an event of the active side has no retry_count */
    bool flow_control, srq;
    uint32_t qpn;
    uint32_t qkey; /* SIDR */
    struct cm_ece ece;
};

/* Somebody asks for a connection, or for a datagram service (`datagram`). Valid during the call. */
struct cm_request {
    bool datagram;
    uint64_t service_id;
    const struct cm_path *path; /* back to the peer */
    uint64_t remote_guid;
    uint8_t service;  /* enum cm_service: RC or UC */
    uint8_t path_mtu; /* enum ibv_mtu, valid */
    struct cm_offer offer;
    /* All that the message has room for (92 bytes; datagram: 216), zero padded. If cma_service_decode() knows
     * the service id and the listener is not one of AF_IB, it begins with a cma_header, and what the program
     * is given are the 56 (180) bytes behind it. */
    const uint8_t *private_data;
    uint8_t private_length;
};

enum cm_event_type {
    /* Active side: the peer accepted. Bring the QP to RTS and cm_establish(), or cm_reject(). With offer and
     * 196 bytes of private data. rdma_cm: CONNECT_RESPONSE, or ESTABLISHED after cm_establish(). */
    CM_EVENT_REPLY,
    /* Passive side: the peer is ready. rdma_cm: ESTABLISHED. */
    CM_EVENT_ESTABLISHED,
    /* Either side, before ESTABLISHED: status is the enum cm_reason, 148 bytes of private data. The id is
     * idle. rdma_cm: REJECTED. */
    CM_EVENT_REJECTED,
    /* Nobody answers: status -ETIMEDOUT; resolution: or the enum cm_sidr_status, with 136 bytes of private
     * data. The id is idle; on the passive side (no RTU came) soon. rdma_cm: UNREACHABLE. */
    CM_EVENT_UNREACHABLE,
    /* Once for each id that was established (or, on the active side, had its REPLY): status 0, -ETIMEDOUT
     * (nobody answered our DREQ) or -ECONNRESET (the peer's process is gone). */
    CM_EVENT_DISCONNECTED,
    /* QP and id may be used again; the id is idle. */
    CM_EVENT_TIMEWAIT_EXIT,
    /* Resolution: offer.qpn and offer.qkey, 136 bytes of private data. The id is idle. rdma_cm: ESTABLISHED.
     */
    CM_EVENT_RESOLVED,
};

/* Valid during the call. */
struct cm_event {
    enum cm_event_type type;
    int status;
    struct cm_offer offer;
    const uint8_t
        *private_data; /* zero padded to what the message has room for; NULL if the event has none */
    uint8_t private_length;
};

struct cm_ports {
    /* Sends a copy of the MAD to QP1 there, or loses it. `id` is whose it is: the carriage may look at
     * cm_id_service(); NULL for an answer to somebody whom no id knows. */
    void (*send)(struct cm *cm, const struct cm_path *to, const struct cm_id *id,
                 const uint8_t mad[MAD_LENGTH]);
    /* 0: *ret_id is storage for it (no need to clear it); the owner comes back with cm_accept() or
     * cm_reject() (datagram: cm_resolve_accept(), cm_resolve_reject()), any time, and may cm_close() instead.
     * -ENOENT: nobody listens there; the peer is told. -EAGAIN: no room now; the peer is not told and asks
     * again. Greater than 0: an enum cm_reason (datagram: enum cm_sidr_status) that the peer is told. */
    int (*request)(struct cm *cm, const struct cm_request *request, struct cm_id **ret_id);
    void (*event)(struct cm *cm, struct cm_id *id, const struct cm_event *event);
    /* The machine does not know this storage any more. Only after cm_close(), perhaps within it. */
    void (*released)(struct cm *cm, struct cm_id *id);
    uint64_t (*random)(struct cm *cm); /* unguessable */
};

/* --- the machine ---------------------------------------------------------------------------------- */

/* *cm is the owner's storage, some 130 KiB. */
void cm_init(struct cm *cm, const struct cm_ports *ports);
/* The process owns this QPN block: its number makes comm ids. 0, -EEXIST, or -ENOSPC (CM_BLOCKS). A machine
 * without a block only answers, as one that has no services. */
int cm_grant_block(struct cm *cm, uint16_t block);
/* A MAD that arrived at our QP1, from a process of this host or from the wire. Whoever carries MADs hands
 * over what cm_mad_addressee() says is for this process, and one that is for nobody who lives: then the
 * machine answers what is to be answered (REJ, DREP). 0, or -errno why nothing came of it: -EPROTO
 * (malformed), -ENOENT (no such id; answered, if there is an answer), -EALREADY (a duplicate; answered
 * likewise), -EINVAL (does not fit the state), -ENOSPC (a REQ: as if it had not come; cm_grant_block()). */
int cm_receive(struct cm *cm, const struct cm_path *from, const void *bytes, size_t length, ns_t now);
/* When cm_run() is due; NS_NEVER if it is not. Changes with every other call. */
ns_t cm_next(const struct cm *cm);
/* Does what is due. */
void cm_run(struct cm *cm, ns_t now);
/* The process that cm_path.peer names is gone: its connections are disconnected, what it was to answer is
 * asked again (somebody else may listen now). */
void cm_peer_gone(struct cm *cm, uint64_t peer, ns_t now);

/* --- ids ------------------------------------------------------------------------------------------ */

/* Makes the storage an idle id. Before the first cm_connect() or cm_resolve(); not for those of request(). */
void cm_id_init(struct cm_id *id);
/* The owner wants no more events, and gives up what was going on: a request is rejected (CM_REASON_CONSUMER),
 * a connection disconnected. released() follows, at once or later. */
void cm_close(struct cm *cm, struct cm_id *id, ns_t now);

/* How long, and how often. Codes are 4.096 us * 2^code, at most CM_TIME_MAX. */
struct cm_timing {
    uint8_t packet_lifetime;  /* one way */
    uint8_t response_timeout; /* the peer's time to answer, and ours */
    uint8_t retries;          /* further attempts, at most 15; the peer's, too */
    uint8_t ack_timeout;      /* of the QPs; 0: computed from packet_lifetime and ACK delays */
};
#define CM_TIMING_DEFAULT                                                                                    \
    {                                                                                                        \
        CM_PACKET_LIFETIME_DEFAULT, CM_RESPONSE_TIMEOUT_DEFAULT, CM_RETRIES_DEFAULT, 0                       \
    }

struct cm_connect {
    struct cm_path path;
    uint64_t service_id;
    struct cm_timing timing;
    uint8_t service;  /* enum cm_service: RC or UC */
    uint8_t path_mtu; /* enum ibv_mtu */
    uint32_t qpn;
    uint8_t responder_resources, initiator_depth;
    uint8_t retry_count, rnr_retry_count; /* more than 7 is 7 */
    bool flow_control, srq;
    struct cm_ece ece;
    const void *private_data; /* at most 92 bytes, the cma_header, if there is one, among them */
    size_t private_length;
};

struct cm_accept {
    uint32_t qpn;
    uint8_t responder_resources, initiator_depth;
    uint8_t rnr_retry_count;
    bool flow_control, srq;
    struct cm_ece ece;
    const void *private_data; /* at most 196 bytes */
    size_t private_length;
};

/* These return 0, -EINVAL (the id's state, or an argument), -ENOSPC (cm_grant_block()). What leads to an
 * event says so above. */
int cm_connect(struct cm *cm, struct cm_id *id, const struct cm_connect *connect, ns_t now);
int cm_accept(struct cm *cm, struct cm_id *id, const struct cm_accept *accept, ns_t now);
/* Active side, after REPLY: RTU. */
int cm_establish(struct cm *cm, struct cm_id *id, ns_t now);
/* Passive side, data arrived before the RTU (IBV_EVENT_COMM_EST): ESTABLISHED now. 0, too, if it is already.
 */
int cm_communication_established(struct cm *cm, struct cm_id *id, ns_t now);
/* Before ESTABLISHED, either side: at most 148 bytes. */
int cm_reject(struct cm *cm, struct cm_id *id, enum cm_reason reason, const void *private_data,
              size_t private_length, ns_t now);
/* The owner takes its time: MRA. Needs no call: the machine sends one when the peer asks again. */
int cm_delay(struct cm *cm, struct cm_id *id, uint8_t service_timeout, ns_t now);
/* 0, too, if the peer disconnected already; -EINVAL if it was never established. */
int cm_disconnect(struct cm *cm, struct cm_id *id, ns_t now);

struct cm_resolve {
    struct cm_path path;
    uint64_t service_id;
    struct cm_timing timing;
    const void *private_data; /* at most 216 bytes, with the cma_header */
    size_t private_length;
};
int cm_resolve(struct cm *cm, struct cm_id *id, const struct cm_resolve *resolve, ns_t now);
/* At most 136 bytes. The id is idle then (and still answers repeated requests). */
int cm_resolve_accept(struct cm *cm, struct cm_id *id, uint32_t qpn, uint32_t qkey, const void *private_data,
                      size_t private_length, ns_t now);
int cm_resolve_reject(struct cm *cm, struct cm_id *id, enum cm_sidr_status status, const void *private_data,
                      size_t private_length, ns_t now);

/* --- what an id knows ----------------------------------------------------------------------------- */

/* For ibv_modify_qp (verbs.md §11.7, rdma_init_qp_attr). */
struct cm_qp_attributes {
    struct cm_path path; /* ah_attr */
    uint8_t service;     /* enum cm_service */
    uint8_t path_mtu;
    uint32_t dest_qpn, rq_psn, sq_psn;
    uint8_t max_dest_rd_atomic; /* responder resources; not 0: REMOTE_READ and REMOTE_ATOMIC */
    uint8_t max_rd_atomic;      /* initiator depth */
    uint8_t timeout, retry_count, rnr_retry;
};
/* Known from request() or REPLY on, until the id is idle again: 0, else -EINVAL. After cm_accept() with its
 * resources, before it with those of the offer. */
int cm_qp_attributes(const struct cm_id *id, struct cm_qp_attributes *ret_attributes);

/* States of IBA 12.9 and 12.11 (listening is the owner's). */
enum cm_state {
    CM_STATE_IDLE,
    CM_STATE_REQ_SENT,
    CM_STATE_REQ_RCVD,
    CM_STATE_MRA_REQ_SENT, /* passive: we asked for time */
    CM_STATE_MRA_REQ_RCVD, /* active: the peer asked for time */
    CM_STATE_REP_SENT,
    CM_STATE_REP_RCVD,
    CM_STATE_MRA_REP_SENT,
    CM_STATE_MRA_REP_RCVD,
    CM_STATE_ESTABLISHED,
    CM_STATE_DREQ_SENT,
    CM_STATE_TIMEWAIT, /* also after a REJ of ours, which is repeated if need be */
    CM_STATE_SIDR_REQ_SENT,
    CM_STATE_SIDR_REQ_RCVD,
    CM_STATE_SIDR_REP_SENT,
    CM_STATES,
};
const char *cm_state_name(enum cm_state state);
enum cm_state cm_id_state(const struct cm_id *id);
uint64_t cm_id_service(const struct cm_id *id);
/* 0 while it has none. */
uint32_t cm_id_local_comm_id(const struct cm_id *id);
uint32_t cm_id_remote_comm_id(const struct cm_id *id);

/* --- storage; the rest of this page is the machine's own ------------------------------------------- */

struct cm_link {
    struct cm_link *next, **to_this; /* NULL: in no table */
};

struct cm_id {
    uint8_t state; /* enum cm_state */
    bool closed;   /* no owner: no events */
    bool passive, datagram;
    bool exit_due;     /* TIMEWAIT_EXIT is to come */
    bool left_by_peer; /* it was the peer who disconnected */
    bool drep_again;   /* its DREQ is answered once more when the owner closes the id */
    struct cm_link by_local, by_remote, by_qpn;
    struct {
        struct cm_id *child, *next, *previous;
        ns_t at;
    } deadline; /* pairing heap */
    struct cm_path path;
    uint64_t service_id, remote_guid, transaction_id, disconnect_transaction;
    uint32_t local_comm_id, remote_comm_id;
    uint32_t local_qpn, remote_qpn, rq_psn, sq_psn;
    struct cm_timing timing;
    uint8_t service, path_mtu, retry_count, rnr_retry_count;
    uint8_t responder_resources, initiator_depth;
    uint8_t retries_left, mras_left;
    ns_t interval;   /* between attempts */
    ns_t timewait;   /* how long */
    uint16_t answer; /* enum cm_attribute of `mad`: what is repeated; 0: nothing */
    uint8_t mad[MAD_LENGTH];
};

struct cm_block {
    uint16_t number, next;
    uint32_t used;
};

struct cm {
    const struct cm_ports *ports;
    uint64_t hash_key[2];
    struct cm_block blocks[CM_BLOCKS];
    uint32_t block_count, block_turn;
    uint32_t lingering;
    struct cm_id *earliest;                /* root of the heap of deadlines */
    struct cm_link *by_local[CM_BUCKETS];  /* comm id */
    struct cm_link *by_remote[CM_BUCKETS]; /* the peer's GID and comm id or request id */
    struct cm_link *by_qpn[CM_BUCKETS];    /* the peer's GID and QPN: connections */
    struct {
        uint64_t received, duplicates, malformed, unknown, retries, rejected, dropped;
    } counters;
};

#endif
