/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the engine keeps per QP: which way packets go, and the lists that the QP is in. The state lies in the
 * private space behind struct qp (qp_private()), so that the data path needs no pointer to find it. */
#ifndef ENGINE_CORE_ROUTE_H
#define ENGINE_CORE_ROUTE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/timer.h"
#include "base/types.h"
#include "engine/paths/ack_delay.h"
#include "engine/paths/tx_batch.h"
#include "object/qp/qp.h"

struct blocked_list;
struct direct_peer;
struct direct_record;
struct lane;
struct udp_lane;

/* What the requests of a QP need to know of memory that they reach without packets (engine/direct/direct.c). */
struct direct_route {
    struct direct_peer *peer;           /* NULL: nothing is known */
    const struct direct_record *record; /* of the QP at the other end, whose slot that is; of it: */
    uint32_t slot, record_generation, pd, access;
    /* What the key that was used last names, as far as it is mapped: */
    uint32_t rkey, key_slot, key_generation, place_generation, key_access;
    uint32_t misses, next_ask, asked_slot, asked_generation;
    uint64_t start, length;        /* in the peer's addresses */
    char *base;                    /* in ours */
    _Atomic uint64_t *access_slot; /* taken; and what was written there */
    uint64_t access_slot_word;
    /* engine/direct/deposit.c: */
    bool receives_known; /* the peer's receive that the first request took which takes one */
    uint32_t first_receive;
    struct {
        uint32_t number, lkey, rkey;
        uint64_t address;
    } receive; /* of the request that was begun last */
};

/* The engine's part: which way packets go, and its lists. Under the QP's lock; list nodes under the lock of
 * their list. */
struct qp_route {
    struct lane *lane;             /* to the owner of the destination; NULL: unknown or gone */
    struct lane *reply_lane;       /* where the last request came from: answers go back on it */
    struct lane *arrival_lane;     /* of the packet that is being received */
    struct lane *relay_lane;       /* XRC_RECV: to the process that executes its requests, NULL: none has */
    bool by_network;               /* connected QPs: over the network, not through lanes */
    struct udp_lane *network_lane; /* what goes over the network takes this one */
    struct ack_delay ack_delay;
    struct tx_batch tx_batch;
    struct list blocked;             /* under the lock of blocked_in */
    struct blocked_list *blocked_in; /* of a lane without space for the QP's packets; NULL: none */
    struct list
        waiting; /* in the engine's list of QPs that wait for an owner to be found, or for another turn */
    uint8_t waits_for;      /* enum route_wait */
    bool kick;              /* something was sent on `lane` since its doorbell was looked at */
    bool kick_reply;        /* the same of reply_lane */
    bool kick_network;      /* something is to be flushed from `network_lane` */
    uint32_t end_waiters;   /* threads in qp_ports.flush_before_end() */
    uint32_t missing_block; /* UD: block of QP numbers that has no owner; packets there go nowhere */
    struct direct_route direct;
    /* RAW_PACKET: links that have the frame already which others have no room for. */
    uint64_t *offered;
    uint32_t offered_count, offered_room;
    struct timer timer;   /* in the engine's heap, under its lock */
    ns_t timer_at;        /* when transport's timer runs out; NS_NEVER: it does not */
    ns_t timer_queued_at; /* when its entry in the heap is looked at, which is not later; NS_NEVER: none */
    ns_t notify_from;     /* no congestion notification packet before that (engine/paths/congestion.c) */
};

_Static_assert(_Alignof(struct qp_route) <= QP_PRIVATE_ALIGNMENT, "it lies behind struct qp");

static inline struct qp_route *route_of(const struct qp *qp)
{
    return qp_private(qp);
}

static inline struct qp *qp_of_route(struct qp_route *route)
{
    return (struct qp *)((uintptr_t)route - sizeof(struct qp));
}

/* What is left to do once the QP's lock is released. */
struct qp_kick {
    struct lane *lane, *reply_lane; /* doorbells to look at; NULL: none */
    struct udp_lane *network_lane;  /* to be flushed; NULL: none */
};

/* QP lock held. */
static inline struct qp_kick qp_take_kick(struct qp *qp)
{
    struct qp_route *route = route_of(qp);
    struct qp_kick kick = {route->kick ? route->lane : NULL, route->kick_reply ? route->reply_lane : NULL,
                           route->kick_network ? route->network_lane : NULL};

    route->kick = route->kick_reply = route->kick_network = false;
    return kick;
}

#endif
