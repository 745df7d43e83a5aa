/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* State of the engine per QP: the lanes that packets take, and the lists that the QP is in. The state lies in the
 * private space behind struct qp (qp_private()), so that the data path loads no pointer to find it. */
#ifndef ENGINE_CORE_ROUTE_H
#define ENGINE_CORE_ROUTE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/timer.h"
#include "base/types.h"
#include "engine/core/capture.h"
#include "engine/paths/ack_delay.h"
#include "engine/paths/tx_batch.h"
#include "object/qp/qp.h"

struct access_slot;
struct blocked_list;
struct direct_peer;
struct direct_record;
struct lane;
struct udp_lane;

/* What was found of a key of the peer. */
struct direct_key {
    uint32_t rkey;                               /* 0: nothing */
    uint32_t slot, generation, place_generation; /* of the key, and of its mapped record */
    uint32_t access;
    uint64_t start, length; /* as requests name the memory */
    uintptr_t base;         /* where `start` is: in this process, or for copies in the peer's address space */
};

/* What was found of a key of this process. Its generation changes when the meaning of the key does. */
struct local_key {
    uint32_t lkey, generation; /* lkey 0: nothing */
    uint64_t start, length;    /* as requests name the memory */
    uintptr_t base;            /* where `start` is */
};

/* What a QP knows of the peer's memory, to execute requests without packets (engine/direct/direct.c). QP lock. */
struct direct_route {
    struct direct_peer *peer;           /* NULL: not known yet */
    const struct direct_record *record; /* of the peer's QP; its slot and fields: */
    uint32_t slot, record_generation, pd, access;
    /* The keys that were used last: here the part of the region that is mapped here, and below, in `copied`, the
     * region for the kernel's copy. */
    struct direct_key mapped;
    struct access_slot *access_slot; /* the one that was taken last */
    uint64_t access_slot_word;       /* what this process wrote there */
    struct direct_key copied;
    uint32_t misses, next_retry, requested_slot, requested_generation;
    /* engine/direct/copy.c: do small requests go through the ring though the kernel could copy? Because a thread of the
     * peer polls, or because they come in a stream. */
    enum ring_choice { RING_NOT, RING_POLLED, RING_STREAM } ring;
    uint32_t until_look, polls_seen;
    uint32_t copies_due;        /* requests that do not: the peer was asked to map memory */
    uint32_t unasked;           /* transport_qp.unasked, as it was set last */
    uint32_t stream;            /* requests that were copied one right after the other */
    ns_t copied_at, ring_since; /* end of the last copy; when the ring was looked at last */
    ns_t stream_from;           /* before that time, a stream does not take the ring */
    /* Accesses to memory that is not mapped, since the peer was asked to map it; how often it was asked for the
     * same. */
    uint32_t accesses, wishes, wished_slot, wished_generation;
    /* Of the region in `copied`: addresses of the peer whose pages are being switched; moving_to 0: none. */
    uint64_t moving_from, moving_to;
    uint32_t waited_generation; /* of a closed record: it was waited for */
    /* engine/direct/deposit.c, about receives of the peer: */
    bool receives_known;    /* first_receive is valid */
    uint32_t first_receive; /* number of the receive that the QP's first request with a receive took */
    struct {
        uint32_t number, lkey, rkey;
        uint64_t address;
    } receive; /* the receive of the request that was begun last */
};

#define PEER_CUT_OFF UINT64_MAX

/* Guarded by the QP's lock, list nodes by the lock of their list. */
struct qp_route {
    /* The region of this process that a plain request was read from last. With the first fields of `direct` it is
     * what a plain WRITE needs of this structure: two cache lines. */
    struct local_key read_key cache_aligned;
    struct direct_route direct;
    struct lane *lane;       /* requests: to the owner of the destination QP; NULL: not known, or gone */
    struct lane *reply_lane; /* acknowledgements and responses: to where the last request came from */
    struct lane
        *arrival_lane; /* connected QPs: admitted last, and so that of a packet that is being received */
    /* Connected QPs: link_process() of the peer; 0: not met yet. While the port is down, PEER_CUT_OFF, which is none,
     * and what it was is in cut_off_from (engine/paths/port_down.c). */
    uint64_t peer_process, cut_off_from;
    struct lane *relay_lane;       /* XRC_RECV: to the process that executes the QP's requests; NULL: none */
    bool by_network;               /* a connected QP whose peer is on another host, or SOFTHCA_PATH=wire */
    struct udp_lane *network_lane; /* packets to the network; never NULL after the QP was connected */
    struct ack_delay ack_delay;
    struct tx_batch tx_batch;
    struct list blocked;             /* under the lock of blocked_in */
    struct blocked_list *blocked_in; /* of a lane without space for the QP's packets; NULL: none */
    struct list waiting;             /* under waiting_lock: in the list that waits_for names */
    uint8_t waits_for;               /* enum route_wait */
    /* Where packets of the QP are recorded (engine/core/capture.c): what became of the last one; one that is
     * received. */
    uint8_t fate; /* enum capture_fate */
    struct capture_slot arriving;
    bool kick;                    /* doorbell pending: packets were put into `lane` */
    bool kick_reply;              /* doorbell pending: packets were put into reply_lane */
    bool kick_network;            /* something is to be flushed from `network_lane` */
    uint32_t end_waiters;         /* threads in qp_ports.flush_before_end() */
    uint32_t missing_block;       /* 1 + the block of QP numbers that was found to have no owner; 0: none */
    struct local_key receive_key; /* of the region that a plain SEND was received in last */
    /* RAW_PACKET: serials of links that have got the current frame, while other links have no space for it. */
    uint64_t *offered;
    uint32_t offered_count, offered_room;
    struct timer timer;   /* in the heap of timers.c, under timers_lock */
    ns_t timer_at;        /* when the transport's timer expires; NS_NEVER: not armed */
    ns_t timer_queued_at; /* when its entry in the heap fires, not later than timer_at; NS_NEVER: no entry */
    struct packet_history *history; /* for faults of packets (paths/packet_faults.c); NULL: none yet */
    ns_t notify_from;               /* earliest time of the next CNP (engine/paths/congestion.c) */
};

_Static_assert(offsetof(struct qp_route, direct.copied) == 2 * (size_t)CACHE_LINE, "two cache lines");
_Static_assert(_Alignof(struct qp_route) <= QP_PRIVATE_ALIGNMENT, "struct qp_route lies behind struct qp");

static inline struct qp_route *route_of(const struct qp *qp)
{
    return qp_private(qp);
}

static inline struct qp *qp_of_route(struct qp_route *route)
{
    return (struct qp *)((uintptr_t)route - sizeof(struct qp));
}

/* Doorbells to ring once the QP's lock is released. */
struct qp_kick {
    struct lane *lane, *reply_lane; /* NULL: none */
    struct udp_lane *network_lane;  /* to be flushed; NULL: none */
};

/* Takes the doorbells that are pending. QP lock held. */
static inline struct qp_kick qp_take_kick(struct qp *qp)
{
    struct qp_route *route = route_of(qp);
    struct qp_kick kick = {route->kick ? route->lane : NULL, route->kick_reply ? route->reply_lane : NULL,
                           route->kick_network ? route->network_lane : NULL};

    route->kick = route->kick_reply = route->kick_network = false;
    return kick;
}

#endif
