/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Parts that records of the published segment have in common: what explanations live on. Whoever fills them
 * is segment/provenance.h. */
#ifndef PUBLISHED_RECORD_H
#define PUBLISHED_RECORD_H

#include <stdint.h>

/* What a number of the segment names. Values are a format between versions: only ever added to. */
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
    OBJECT_CM_ID,      /* of librdmacm.so.1 */
    OBJECT_TD,
    OBJECT_XRCD,
    OBJECT_DM,
    OBJECT_FLOW,
    OBJECT_COUNTERS, /* of flows */
};
#define OBJECT_KINDS 19

/* Time of a work request or of a packet: milliseconds of CLOCK_MONOTONIC in 32 bits, compared by distance. */
#define STAMP_NONE 0u

#define NAME_BYTES 16

/* Who made an object and when, who is destroying it. Stacks are numbers in the segment's table, 0: none was
 * taken.
 */
struct provenance_record {
    uint64_t created_ns; /* CLOCK_MONOTONIC; 0: not recorded */
    uint32_t created_by; /* thread id, in the process's own namespace */
    uint32_t created_stack;
    char name[NAME_BYTES];  /* softhca_set_name(); may lack its end */
    uint64_t destroying_ns; /* its destroy waits since then; 0: none does */
    uint32_t destroying_by, destroying_stack;
    uint32_t domain; /* the PD or parent domain that it was made in, plus 1; 0: none, or not recorded */
    uint32_t xrcd;   /* item of the XRC domain that it was made in, plus 1; 0: none */
};
_Static_assert(sizeof(struct provenance_record) == 56, "readable by other builds");

/* Events of one object and one kind: how many there were, how many of those the program has read, and how
 * many of those it has acknowledged. All run freely, and acknowledgements may be ahead. The rest is about the
 * first event that was read when nothing was left to be acknowledged. */
struct event_record {
    uint32_t raised, reported, acked;
    uint32_t acked_by; /* thread of the latest acknowledgement, where stacks are recorded */
    uint32_t type;     /* enum ibv_event_type; of completion events nothing */
    uint32_t read_by, read_stack;
    uint32_t reserved;
    uint64_t read_ns;
};
_Static_assert(sizeof(struct event_record) == 40, "readable by other builds");

/* verbs.md §11.2. Nothing here is waited for, so the states of queries are missing. */
enum id_state {
    ID_IDLE,
    ID_BOUND,
    ID_ADDRESS_RESOLVED,
    ID_ROUTE_RESOLVED,
    ID_CONNECTING, /* active: REQ is out; passive: request to be answered */
    ID_CONNECTED,  /* rdma_accept() or rdma_connect() has come to its end */
    ID_LISTENING,
    ID_DISCONNECTED,
};

/* Which call of librdmacm waits for acknowledgements. */
enum id_call { ID_CALL_DESTROY, ID_CALL_MIGRATE, ID_CALL_LEAVE_MULTICAST };

/* How far the way to the other end of a QP is known. */
enum path_kind {
    PATH_UNKNOWN,
    PATH_RING,     /* to a process of this host; its memory is not read */
    PATH_CMA,      /* the same, and large payload is fetched from its memory */
    PATH_SELF,     /* the other end is in this process */
    PATH_SEARCHED, /* the owner of the QP number is being looked for */
    PATH_NOBODY,   /* nobody on this host owns the number */
    PATH_GONE,     /* the other process has ended */
    PATH_WIRE,
    PATH_MAPPED, /* as PATH_CMA, and memory of that process is mapped here: one-sided requests are executed in
                    it, or large payload is copied from it */
};

/* Of PATH_RING and PATH_CMA: why no memory of the other process is mapped here. */
enum path_why {
    PATH_WHY_UNKNOWN,
    PATH_WHY_OFF,       /* this process does not: SOFTHCA_LOCAL, or what it may do on this machine */
    PATH_WHY_FORBIDDEN, /* it may not read the other's memory */
    PATH_WHY_HIDDEN,    /* the other does not show its segment */
    PATH_WHY_UNUSED,    /* no request was for memory of the other that is mapped */
};

struct path_record {
    uint16_t kind;    /* enum path_kind */
    uint16_t why;     /* enum path_why */
    int32_t peer_pid; /* as this process sees it; 0: it does not */
    uint32_t peer_uid;
    uint32_t since; /* stamp, also where nothing else is stamped */
};

#endif
