/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Structures that the records of the published segment have in common. Explanations read them
 * (src/explain); segment/provenance.h writes most of them.
 *
 * Every field here is part of the segment's format between processes: a change of layout or meaning raises
 * SEGMENT_VERSION (segment/segment.h says when, and what a different version means). */
#ifndef PUBLISHED_RECORD_H
#define PUBLISHED_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/verbs.h"

/* The kind of an object. New values go to the end: the numbers are in segments of other builds. */
enum object_kind {
    OBJECT_CONTEXT = 1,
    OBJECT_PD,
    OBJECT_MR, /* numbers of MRs and MWs are slots of the key table */
    OBJECT_MW,
    OBJECT_CQ,
    OBJECT_CHANNEL,
    OBJECT_QP, /* the slot, not the QP number */
    OBJECT_SRQ,
    OBJECT_WQ,
    OBJECT_IND_TABLE,
    OBJECT_AH,
    OBJECT_ATTACHMENT, /* of a QP to a multicast group */
    OBJECT_CM_ID,      /* struct rdma_cm_id, of librdmacm.so.1 */
    OBJECT_TD,
    OBJECT_XRCD,
    OBJECT_DM,
    OBJECT_FLOW,
    OBJECT_COUNTERS, /* struct ibv_counters */
};
#define OBJECT_KINDS 19

/* A time stamp of a work request or packet: milliseconds of CLOCK_MONOTONIC in 32 bits, compared by distance.
 * STAMP_NONE: not recorded. */
#define STAMP_NONE 0u

#define NAME_BYTES 16

/* Which thread created an object and when, and which thread is destroying it. Written by the thread that
 * creates or destroys. Stacks are numbers of struct stack_record, 0: not taken. */
struct provenance_record {
    uint64_t created_ns; /* CLOCK_MONOTONIC; 0: not recorded */
    uint32_t created_by; /* thread id, in the owner's pid namespace */
    uint32_t created_stack;
    char name[NAME_BYTES];  /* softhca_set_name(); a name of NAME_BYTES has no NUL */
    uint64_t destroying_ns; /* CLOCK_MONOTONIC: the destroy verb waits since; 0: not waiting. Release */
    uint32_t destroying_by, destroying_stack; /* the thread in the destroy verb */
    uint32_t domain; /* number of the PD or parent domain it was created in, plus 1; 0: none, not recorded */
    uint32_t xrcd;   /* item of the XRC domain it was created in, plus 1; 0: none */
};
_Static_assert(sizeof(struct provenance_record) == 56, "readable by other builds");

/* Events of one object, of one kind (completion or asynchronous): how many were raised, read by the program,
 * and acknowledged. The counters are free-running; acked may be ahead of reported (compatibility.md §7).
 * raised and reported are written under the lock of the event queue, acked and acked_by under the mutex of
 * the public structure. type and read_* describe the oldest event that is read and not acknowledged. */
struct event_record {
    uint32_t raised, reported, acked;
    uint32_t acked_by; /* thread id of the latest acknowledgement; 0 unless stacks are recorded */
    uint32_t type;     /* enum ibv_event_type (ids: enum rdma_cm_event_type); completion events: 0 */
    uint32_t read_by, read_stack; /* the thread that read it */
    uint32_t latest_type;         /* the same of the event that was read last; not of completion events */
    uint64_t read_ns, latest_ns;  /* CLOCK_MONOTONIC */
    uint32_t latest_by, latest_stack;
};
_Static_assert(sizeof(struct event_record) == 56, "readable by other builds");

/* Who destroyed an object, when and from where. Kept next to the object's memory while that rests; not in the
 * segment. */
struct destroy_note {
    uint64_t ns; /* CLOCK_MONOTONIC; 0: not known */
    uint32_t by, stack;
    uint32_t number; /* by which programs know the object */
};

enum misuse_form {
    MISUSE_NONE,
    MISUSE_TWICE,   /* a destroyed object was destroyed again */
    MISUSE_AFTER,   /* it was used */
    MISUSE_CHANNEL, /* an id was used, or destroyed, after its event channel was destroyed */
};

/* Does the destroy of the object wait, because an event was read and not acknowledged (ibv_ack_cq_events(3),
 * ibv_get_async_event(3), rdma_get_cm_event(3))? The rule of blocking, for whoever keeps such a record. */
static inline bool events_block_destroy(const struct event_record *events)
{
    return (int32_t)(events->acked - events->reported) < 0;
}

/* More was acknowledged than read: libibverbs of rdma-core, which waits for equality, then waits for ever; SoftHCA does
 * not. */
static inline bool events_are_overpaid(const struct event_record *events)
{
    return (int32_t)(events->acked - events->reported) > 0;
}

/* The first work request of a QP that completed in error, other than flushed. Watched processes only. */
struct failure_record {
    uint64_t wr_id;
    uint64_t ns;     /* CLOCK_MONOTONIC, when it was polled; 0: none. Release, after the other fields */
    uint32_t status; /* enum ibv_wc_status */
    uint32_t vendor_err;
    uint32_t length, rkey; /* of a send: bytes, and the rkey that it names */
    uint64_t remote_address;
    uint8_t receive; /* 1: a receive */
    uint8_t opcode;  /* of a send: enum ibv_wr_opcode */
    uint8_t reserved[6];
};
_Static_assert(sizeof(struct failure_record) == 48, "readable by other builds");

/* A slot in the send queue of a watched QP: what the program posted. Most have nothing more, and are small: what is
 * written for each post takes room in the processor's cache from the adapter. */
struct watched_send {
    uint64_t wr_id;
    uint32_t opcode;     /* enum ibv_wr_opcode, and WATCHED_REST */
    uint32_t send_flags; /* enum ibv_send_flags; a QP that signals all may add to them */
    uint64_t address;    /* the first SGE; without one, length is that of the inline data */
    uint32_t length, lkey;
};
_Static_assert(sizeof(struct watched_send) == 32, "readable by other builds");

/* Without it a slot has one SGE and no stamp, and only the remote address and rkey of its rest are valid, if its
 * opcode has these. */
#define WATCHED_REST (1u << 31)

/* The rest of a slot, in an array behind that of the slots. Behind each are SGEs (struct wqe_sge). */
struct watched_rest {
    uint64_t remote_address; /* of RDMA and atomics; of others without meaning */
    uint32_t rkey;           /* as remote_address */
    uint32_t stamp;          /* when it was posted; STAMP_NONE: not recorded */
    int32_t more_sges;       /* behind the first; -1: there is none */
    uint32_t reserved;
};
_Static_assert(sizeof(struct watched_rest) == 24, "readable by other builds");

/* Has it a remote address and an rkey? */
static inline bool watched_send_names_memory(uint32_t opcode)
{
    return opcode <= IBV_WR_RDMA_WRITE_WITH_IMM ||
           (opcode >= IBV_WR_RDMA_READ && opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD) ||
           opcode == IBV_WR_ATOMIC_WRITE;
}

/* What the records of a watched QP do not show. */
enum unseen {
    UNSEEN_SENDS = 1,    /* sends were posted by direct verbs */
    UNSEEN_RECEIVES = 2, /* receives were */
};

/* The state of an id (verbs.md §11.2). Address and route resolution do not wait for an answer of another
 * host, so there is no state for a query under way. */
enum id_state {
    ID_IDLE,
    ID_BOUND,
    ID_ADDRESS_RESOLVED,
    ID_ROUTE_RESOLVED,
    ID_CONNECTING, /* active: the REQ is sent; passive: the program has not accepted or rejected yet */
    ID_CONNECTED,  /* rdma_accept() or rdma_connect() has completed */
    ID_LISTENING,
    ID_DISCONNECTED,
};

/* The librdmacm call that waits for acknowledgements of events. */
enum id_call { ID_CALL_DESTROY, ID_CALL_MIGRATE, ID_CALL_LEAVE_MULTICAST };

/* Which path the packets of a QP take to its destination. */
enum path_kind {
    PATH_UNKNOWN,
    PATH_RING,     /* shared rings to a process of this host; payload goes through the rings */
    PATH_CMA,      /* shared rings; large payload is copied by process_vm_readv() */
    PATH_SELF,     /* the destination is in this process */
    PATH_SEARCHED, /* the process that owns the QP number is being searched */
    PATH_NOBODY,   /* no process of this host owns the QP number */
    PATH_GONE,     /* the peer process has ended */
    PATH_WIRE,     /* the network (RoCE v2 over UDP) */
    PATH_MAPPED,   /* as PATH_CMA, and memory of the peer is mapped: one-sided requests are executed in it, or
                      large payload is copied from it */
    PATH_PORT_DOWN, /* an injected fault has taken the port down */
};

/* Why no memory of the peer is mapped on a PATH_RING or PATH_CMA. */
enum path_why {
    PATH_WHY_UNKNOWN,
    PATH_WHY_OFF,       /* mapping is off in this process: SOFTHCA_LOCAL, or the machine does not permit it */
    PATH_WHY_FORBIDDEN, /* this process may not read the peer's memory */
    PATH_WHY_HIDDEN,    /* the peer does not show its segment */
    PATH_WHY_UNUSED,    /* no request accessed memory that the peer has made mappable */
    PATH_WHY_REFUSED,   /* the kernel has begun to refuse copies; large payload comes through a file */
    /* Each request goes as packets (engine/paths/by_packets.c): */
    PATH_WHY_CAPTURE,     /* softhca capture records them */
    PATH_WHY_FAULTS,      /* injected faults of packets are loaded for the QP */
    PATH_WHY_PEER_FAULTS, /* they are for its peer, or were for either, and what was lost is being sent again */
};

/* Written under the QP's lock. */
struct path_record {
    uint16_t kind;    /* enum path_kind */
    uint16_t why;     /* enum path_why */
    int32_t peer_pid; /* in the pid namespace of this process; 0: not visible there */
    uint32_t peer_uid;
    uint32_t since; /* stamp of the latest change; set even if nothing else is stamped */
};

#endif
