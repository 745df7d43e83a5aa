/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Communication management (CM, IBA chapter 12): connections (REQ, REP, RTU ...) and resolution of datagram services
 * (SIDR). A state machine without I/O: its input are MADs, calls and the time, its output are MADs, events and a
 * deadline. The caller of these functions, below called the user, is the CM agent (engine/cm) or a test.
 *
 *              active                                   passive
 *   cm_connect()        REQ ->      request()           the user provides storage for a new id
 *   event REPLY         <- REP      cm_accept()
 *   cm_establish()      RTU ->      event ESTABLISHED
 *   event DISCONNECTED <- DREQ, DREP -> cm_disconnect(), event DISCONNECTED     (either side)
 *   event TIMEWAIT_EXIT             event TIMEWAIT_EXIT
 *
 *   cm_resolve()        SIDR_REQ -> request()
 *   event RESOLVED      <- SIDR_REP cm_resolve_accept()
 *
 * Locking: one struct cm per process, not thread-safe; the user holds a lock of its own around every call. Ports are
 * called with that lock held and must not call back. They queue what they are given (a MAD to send, an event).
 *
 * Storage: an id is embedded in an object of the user. The state machine uses it from the call that takes it (or from
 * request()) until released(). After cm_close() the user gets no more events for the id, but the state machine
 * continues what the protocol still owes the peer (a DREP, a repeated REJ, timewait).
 *
 * Comm ids: the processes of a host share QP1, so a comm id identifies its process. The upper 16 bits are the number of
 * a QPN block that the process owns (src/local), the lower 16 bits a counter. cm_mad_addressee() finds the process of a
 * MAD. The user grants blocks, and further ones after -ENOSPC.
 *
 * Limits: times, retry counts and lengths from a peer are bounded, and no message makes the state machine use storage
 * except through request(). */
#ifndef CM_CM_H
#define CM_CM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"
#include "wire/cm_mad.h"
#include "wire/cma_header.h"

#define CM_BLOCKS                   64    /* QPN blocks of a process: four million comm ids */
#define CM_BUCKETS                  4096  /* per hash table */
#define CM_LINGER_MAX               16384 /* ids in timewait or kept to repeat a REJ or SIDR_REP */
#define CM_PACKET_LIFETIME_DEFAULT  14    /* 67 ms */
#define CM_RESPONSE_TIMEOUT_DEFAULT 18    /* 1.07 s */
#define CM_RETRIES_DEFAULT          15
#define CM_MRA_TIMEOUT_DEFAULT      22 /* 17 s */
#define CM_ACK_DELAY_DEFAULT        15 /* local CA ACK delay: 134 ms */

struct cm;
struct cm_id;

/* Address of a peer and of this side. The state machine uses GIDs, GUID and flow label and passes on the rest. */
struct cm_path {
    uint8_t local_gid[16], remote_gid[16];
    uint64_t local_guid; /* node GUID of the local device, host byte order */
    uint32_t flow_label;
    uint8_t service_level, traffic_class, hop_limit, packet_rate; /* enum ibv_rate */
    uint64_t cookie; /* opaque, of the user: device, interface ... */
    /* Peer process for cm_peer_gone(), 0 if the user does not know it. The state machine takes it from the first MAD
     * of the peer. */
    uint64_t peer;
};

/* Parameters of the peer (struct rdma_conn_param of an event, verbs.md §11.6) from the local view:
 * responder_resources is the initiator depth of the peer. */
struct cm_offer {
    uint8_t responder_resources, initiator_depth;
    uint8_t retry_count, rnr_retry_count; /* retry_count: passive side only */
    bool flow_control, srq;
    uint32_t qpn;
    uint32_t qkey; /* SIDR */
    struct cm_ece ece;
};

/* A request for a connection (REQ) or for a datagram service (SIDR_REQ, `datagram`). Valid during the call. */
struct cm_request {
    bool datagram;
    uint64_t service_id;
    const struct cm_path *path; /* to the peer */
    uint64_t remote_guid;
    uint8_t service;  /* enum cm_service: RC or UC */
    uint8_t path_mtu; /* enum ibv_mtu, valid */
    struct cm_offer offer;
    /* The whole private data field (92 bytes; datagram: 216), zero padded. If cma_service_decode() accepts the
     * service id and the listener is not of AF_IB, it starts with a cma_header, and the program gets the 56 (180)
     * bytes after that. */
    const uint8_t *private_data;
    uint8_t private_length;
};

enum cm_event_type {
    /* Active side: the peer accepted. The user moves the QP to RTS and calls cm_establish(), or calls cm_reject().
     * Has offer and 196 bytes of private data. rdma_cm: CONNECT_RESPONSE, or ESTABLISHED after cm_establish(). */
    CM_EVENT_REPLY,
    /* Passive side: RTU or equivalent received. rdma_cm: ESTABLISHED. */
    CM_EVENT_ESTABLISHED,
    /* Either side, before ESTABLISHED. status is an enum cm_reason; 148 bytes of private data. The id is idle.
     * rdma_cm: REJECTED. */
    CM_EVENT_REJECTED,
    /* No response: status -ETIMEDOUT. Resolution: also an enum cm_sidr_status with 136 bytes of private data. The id is
     * idle; on the passive side (no RTU received) after timewait. rdma_cm: UNREACHABLE. */
    CM_EVENT_UNREACHABLE,
    /* Once per id that was established (active side: that had its REPLY event). status 0, -ETIMEDOUT (no DREP) or
     * -ECONNRESET (the peer process is gone). */
    CM_EVENT_DISCONNECTED,
    /* Timewait is over: the QP may be reused, the id is idle. */
    CM_EVENT_TIMEWAIT_EXIT,
    /* Resolution: offer.qpn and offer.qkey, 136 bytes of private data. The id is idle. rdma_cm: ESTABLISHED. */
    CM_EVENT_RESOLVED,
};

/* Valid during the call. */
struct cm_event {
    enum cm_event_type type;
    int status;
    struct cm_offer offer;
    const uint8_t *private_data; /* the whole field, zero padded; NULL if the event has none */
    uint8_t private_length;
};

/* Functions of the user that the state machine calls. */
struct cm_ports {
    /* Sends a copy of the MAD to QP1 of the peer, or drops it. `id` is the sender, of which the user may read
     * cm_id_service(); NULL for a response to a message without a matching id. */
    void (*send)(struct cm *cm, const struct cm_path *to, const struct cm_id *id,
                 const uint8_t mad[MAD_LENGTH]);
    /* 0: *ret_id is storage for a new id (need not be cleared). The user calls cm_accept(), cm_reject() (datagram:
     * cm_resolve_accept(), cm_resolve_reject()) or cm_close() at any later time. -ENOENT: no listener; the peer gets
     * a REJ. -EAGAIN: no memory now; the request is dropped, and the peer repeats it. Greater than 0: the peer gets
     * this enum cm_reason (datagram: enum cm_sidr_status). */
    int (*request)(struct cm *cm, const struct cm_request *request, struct cm_id **ret_id);
    void (*event)(struct cm *cm, struct cm_id *id, const struct cm_event *event);
    /* The storage of an id is no longer used. Only after cm_close(), possibly during it. */
    void (*released)(struct cm *cm, struct cm_id *id);
    uint64_t (*random)(struct cm *cm); /* unpredictable for peers */
};

/* --- the state machine ---------------------------------------------------------------------------- */

/* Initializes *cm, about 130 KiB of the user's memory. */
void cm_init(struct cm *cm, const struct cm_ports *ports);
/* Adds a QPN block that the process owns, for comm ids. 0, -EEXIST, or -ENOSPC (CM_BLOCKS). Without a block the state
 * machine rejects all requests, as without services. */
int cm_grant_block(struct cm *cm, uint16_t block);
/* Handles a MAD that arrived at QP1 from a local process or the network. The user passes the MADs that
 * cm_mad_addressee() assigns to this process, and those for comm ids without a live process, to which REJ or DREP may
 * be due. 0, or -errno if the MAD changed no id: -EPROTO (malformed), -ENOENT (no such id; a response was sent if one
 * is due), -EALREADY (duplicate; likewise), -EINVAL (wrong in the id's state), -EAGAIN (request dropped), -ENOSPC (REQ
 * dropped: cm_grant_block() and repeat the call). */
int cm_receive(struct cm *cm, const struct cm_path *from, const void *bytes, size_t length, ns_t now);
/* When to call cm_run(), or NS_NEVER. Every call of another function may change it. */
ns_t cm_next(const struct cm *cm);
/* Handles the deadlines that have passed. */
void cm_run(struct cm *cm, ns_t now);
/* The process cm_path.peer is gone: disconnects its connections and repeats requests that it has not answered, because
 * another process may listen now. */
void cm_peer_gone(struct cm *cm, uint64_t peer, ns_t now);

/* --- ids ------------------------------------------------------------------------------------------ */

/* Initializes an idle id before its first cm_connect() or cm_resolve(). Not for ids of request(). */
void cm_id_init(struct cm_id *id);
/* Ends the use of an id: no more events follow, a pending request is rejected (CM_REASON_CONSUMER), a connection is
 * disconnected. released() follows during the call or later. */
void cm_close(struct cm *cm, struct cm_id *id, ns_t now);

/* Timeouts and retries. Times are codes, 4.096 us * 2^code, at most CM_TIME_MAX. */
struct cm_timing {
    uint8_t packet_lifetime;  /* one way */
    uint8_t response_timeout; /* maximum time between request and response, of the peer and of us */
    uint8_t retries;          /* of a MAD, at most 15; also the peer's (Max CM Retries of the REQ) */
    uint8_t ack_timeout; /* local ACK timeout of the QPs; 0: computed from packet_lifetime and ACK delays */
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
    uint8_t retry_count, rnr_retry_count; /* values above 7 mean 7 */
    bool flow_control, srq;
    struct cm_ece ece;
    const void *private_data; /* at most 92 bytes, including a cma_header */
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

/* These return 0, -EINVAL (wrong state or argument) or -ENOSPC (cm_grant_block() is necessary). */
int cm_connect(struct cm *cm, struct cm_id *id, const struct cm_connect *connect, ns_t now);
int cm_accept(struct cm *cm, struct cm_id *id, const struct cm_accept *accept, ns_t now);
/* Active side, after REPLY: sends the RTU. */
int cm_establish(struct cm *cm, struct cm_id *id, ns_t now);
/* Passive side: data arrived before the RTU (IBV_EVENT_COMM_EST), so the id becomes ESTABLISHED; 0 also if it is. */
int cm_communication_established(struct cm *cm, struct cm_id *id, ns_t now);
/* Either side, before ESTABLISHED. At most 148 bytes of private data. */
int cm_reject(struct cm *cm, struct cm_id *id, enum cm_reason reason, const void *private_data,
              size_t private_length, ns_t now);
/* Sends an MRA to extend the peer's timeout. Optional: a repeated message of the peer also triggers one. */
int cm_delay(struct cm *cm, struct cm_id *id, uint8_t service_timeout, ns_t now);
/* 0 also if the peer has already disconnected; -EINVAL if the id was never established. */
int cm_disconnect(struct cm *cm, struct cm_id *id, ns_t now);

struct cm_resolve {
    struct cm_path path;
    uint64_t service_id;
    struct cm_timing timing;
    const void *private_data; /* at most 216 bytes, including a cma_header */
    size_t private_length;
};
int cm_resolve(struct cm *cm, struct cm_id *id, const struct cm_resolve *resolve, ns_t now);
/* At most 136 bytes of private data. The id lingers to repeat the response, then becomes idle without an event. */
int cm_resolve_accept(struct cm *cm, struct cm_id *id, uint32_t qpn, uint32_t qkey, const void *private_data,
                      size_t private_length, ns_t now);
int cm_resolve_reject(struct cm *cm, struct cm_id *id, enum cm_sidr_status status, const void *private_data,
                      size_t private_length, ns_t now);

/* --- queries -------------------------------------------------------------------------------------- */

/* Attributes for ibv_modify_qp() (verbs.md §11.7, rdma_init_qp_attr). */
struct cm_qp_attributes {
    struct cm_path path; /* ah_attr */
    uint8_t service;     /* enum cm_service */
    uint8_t path_mtu;
    uint32_t dest_qpn, rq_psn, sq_psn;
    uint8_t
        max_dest_rd_atomic; /* responder resources; access flags have REMOTE_READ and REMOTE_ATOMIC unless 0 */
    uint8_t max_rd_atomic;  /* initiator depth */
    uint8_t timeout, retry_count, rnr_retry;
};
/* 0 from request() or REPLY until timewait, else -EINVAL. Before cm_accept() the resources are those of the offer,
 * afterwards those of cm_accept(). */
int cm_qp_attributes(const struct cm_id *id, struct cm_qp_attributes *ret_attributes);

/* States of IBA 12.9 and 12.11. The user implements LISTEN. */
enum cm_state {
    CM_STATE_IDLE,
    CM_STATE_REQ_SENT,
    CM_STATE_REQ_RCVD,
    CM_STATE_MRA_REQ_SENT, /* passive: MRA sent */
    CM_STATE_MRA_REQ_RCVD, /* active: MRA received */
    CM_STATE_REP_SENT,
    CM_STATE_REP_RCVD,
    CM_STATE_MRA_REP_SENT,
    CM_STATE_MRA_REP_RCVD,
    CM_STATE_ESTABLISHED,
    CM_STATE_DREQ_SENT,
    CM_STATE_TIMEWAIT, /* also after our own REJ, to repeat it */
    CM_STATE_SIDR_REQ_SENT,
    CM_STATE_SIDR_REQ_RCVD,
    CM_STATE_SIDR_REP_SENT,
    CM_STATES,
};
const char *cm_state_name(enum cm_state state);
enum cm_state cm_id_state(const struct cm_id *id);
uint64_t cm_id_service(const struct cm_id *id);
/* 0: none. */
uint32_t cm_id_local_comm_id(const struct cm_id *id);
uint32_t cm_id_remote_comm_id(const struct cm_id *id);

/* --- storage; private to src/cm ------------------------------------------------------------------- */

struct cm_link {
    struct cm_link *next, **to_this; /* NULL: in no table */
};

struct cm_id {
    uint8_t state; /* enum cm_state */
    bool closed;   /* cm_close() was called: no events */
    bool passive, datagram;
    bool exit_due;          /* TIMEWAIT_EXIT event is outstanding */
    bool peer_disconnected; /* the peer sent a DREQ or a late REJ */
    bool final_drep_due;    /* send another DREP at cm_close() */
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
    ns_t interval;      /* between retries */
    ns_t timewait;      /* duration of timewait */
    uint16_t last_sent; /* enum cm_attribute of `mad`, the last message sent; 0: none to repeat */
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
    uint32_t block_count, next_block;
    uint32_t lingering;
    struct cm_id *earliest;                /* root of the pairing heap of deadlines */
    struct cm_link *by_local[CM_BUCKETS];  /* by local comm id */
    struct cm_link *by_remote[CM_BUCKETS]; /* by the peer's GID and comm id or request id */
    struct cm_link *by_qpn[CM_BUCKETS];    /* connections by the peer's GID and QPN */
    struct {
        uint64_t received, duplicates, malformed, unknown, retries, rejected, dropped;
    } counters;
};

#endif
