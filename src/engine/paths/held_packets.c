/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packets that a user has delayed, reordered or paced: copies that wait as in a router, of which the QP knows nothing
 * any more. */
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "udp/udp.h"

/* What is held at a time; further packets are lost, as where a router's queue is full. */
#define HELD_PACKETS 4096u
#define HELD_BYTES   (8u << 20)

struct held {
    struct list node;
    const struct qp *qp;   /* compared only */
    struct udp_lane *lane; /* to the network; NULL: to this host, to all processes, or by that link: */
    bool to_all;
    uint64_t link_serial;
    uint32_t lane_qpn; /* for link_lane() */
    ns_t at;
    uint32_t later; /* packets of the QP that have to leave before, unless its time comes; 0: by time only */
    uint32_t length;
    struct udp_path path;
    struct packet packet;
    uint8_t payload[];
};

static struct lock held_lock = LOCK_INIT; /* guards what follows; timers_lock is below it */
static struct list held_packets = {&held_packets, &held_packets}; /* by time, then by age */
static uint64_t held_bytes;
static _Atomic uint32_t held_count; /* also read without the lock */

static struct held *held_of(struct list *node)
{
    return list_entry(node, struct held, node);
}

/* held_lock held. */
static void set_timer(void)
{
    timers_set_late(LATE_PACKETS, list_empty(&held_packets) ? NS_NEVER : held_of(held_packets.next)->at);
}

/* held_lock held. */
static bool has_room(uint32_t length)
{
    return atomic_load_explicit(&held_count, memory_order_relaxed) < HELD_PACKETS &&
           held_bytes + length <= HELD_BYTES;
}

/* held_lock held. */
static void insert(struct held *held)
{
    struct list *behind = held_packets.prev;

    while (behind != &held_packets && held_of(behind)->at > held->at)
        behind = behind->prev;
    list_push_back(behind->next, &held->node); /* directly behind it */
    held_bytes += held->length;
    atomic_fetch_add_explicit(&held_count, 1, memory_order_relaxed);
    if (held_packets.next == &held->node)
        set_timer();
}

/* held_lock held. */
static void take_out(struct held *held, struct list *to)
{
    list_remove(&held->node);
    held_bytes -= held->length;
    atomic_fetch_sub_explicit(&held_count, 1, memory_order_relaxed);
    list_push_back(to, &held->node);
}

static void copy_payload(struct held *held, const struct iovec *gather, unsigned gather_count)
{
    for (unsigned i = 0; i < gather_count; i++) {
        memcpy(held->payload + held->length, gather[i].iov_base, gather[i].iov_len);
        held->length += (uint32_t)gather[i].iov_len;
    }
}

void held_packets_add(struct qp *qp, struct lane *lane, const struct udp_path *path,
                      const struct packet *packet, const struct iovec *gather, unsigned gather_count,
                      const struct packet_fate *fate)
{
    struct held *held;
    size_t length = 0;
    bool room;

    for (unsigned i = 0; i < gather_count; i++)
        length += gather[i].iov_len;
    held = malloc(sizeof(*held) + length);
    if (!held)
        return;
    *held = (struct held){.qp = qp,
                          .lane = path ? route_of(qp)->network_lane : NULL,
                          .to_all = !path && !lane,
                          .link_serial = lane ? link_serial(lane_link(lane)) : 0,
                          .lane_qpn = is_connected(qp->record) ? min_of(packet->src_qpn, packet->dest_qpn)
                                                               : packet->src_qpn,
                          .at = sys_now() + fate->wait,
                          .later = fate->later,
                          .packet = *packet};
    if (path)
        held->path = *path;
    copy_payload(held, gather, gather_count);
    lock_acquire(&held_lock);
    room = has_room(held->length);
    if (room)
        insert(held);
    lock_release(&held_lock);
    if (room)
        qp->record->traffic.packets_sent++;
    else
        free(held);
}

static void send_on_host(const struct held *held, const struct iovec *payload)
{
    struct link *link = local_link_of_serial(held->link_serial);
    struct lane *lane = link ? link_lane(link, held->lane_qpn) : NULL;

    if (lane && !lane_send(lane, &held->packet, payload, held->length ? 1 : 0))
        lane_ring(lane);
}

/* A lane without space loses the packet, too. Frees it. In a rundown section. */
static void send_now(struct held *held)
{
    const struct iovec payload = {held->payload, held->length};

    if (held->lane)
        (void)udp_send(held->lane, &held->path, &held->packet, &payload, held->length ? 1 : 0);
    else if (held->to_all && (held->packet.flags & PACKET_FRAME))
        raw_send_late(&held->packet, &payload);
    else if (held->to_all)
        datagram_send_to_group(&held->packet, &payload, held->length ? 1 : 0);
    else
        send_on_host(held, &payload);
    free(held);
}

void held_packets_passed(struct qp *qp)
{
    struct list ready, *first;

    if (!atomic_load_explicit(&held_count, memory_order_relaxed))
        return;
    list_init(&ready);
    lock_acquire(&held_lock);
    list_for_each_safe (node, next, &held_packets) {
        struct held *held = held_of(node);

        if (held->qp == qp && held->later && --held->later == 0)
            take_out(held, &ready);
    }
    lock_release(&held_lock);
    while ((first = list_pop_front(&ready))) {
        route_of(qp)->kick_network |= held_of(first)->lane != NULL;
        send_now(held_of(first));
    }
}

void held_packets_forget(const struct qp *qp)
{
    struct list ended, *first;

    if (!atomic_load_explicit(&held_count, memory_order_relaxed))
        return;
    list_init(&ended);
    lock_acquire(&held_lock);
    list_for_each_safe (node, next, &held_packets) {
        if (held_of(node)->qp == qp)
            take_out(held_of(node), &ended);
    }
    lock_release(&held_lock);
    while ((first = list_pop_front(&ended)))
        free(held_of(first));
}

void held_packets_due(void)
{
    struct list due, *first;
    uint32_t lanes = 0;
    ns_t now = sys_now();

    list_init(&due);
    lock_acquire(&held_lock);
    while (!list_empty(&held_packets) && held_of(held_packets.next)->at <= now)
        take_out(held_of(held_packets.next), &due);
    set_timer();
    lock_release(&held_lock);
    rundown_enter();
    while ((first = list_pop_front(&due))) {
        if (held_of(first)->lane)
            lanes |= 1u << udp_lane_number(held_of(first)->lane);
        send_now(held_of(first));
    }
    rundown_exit();
    network_flush_lanes(lanes);
}

/* What the parent held is the parent's to send. Another thread may have held the lock in the middle of a change: the
 * memory is not freed. */
void held_packets_after_fork_in_child(void)
{
    lock_init(&held_lock);
    list_init(&held_packets);
    held_bytes = 0;
    atomic_store_explicit(&held_count, 0, memory_order_relaxed);
}
