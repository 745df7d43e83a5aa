/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Ports that an injected fault takes down, as where a cable is pulled: nothing leaves the device, and nothing arrives
 * at it, on any path. Connected QPs lose their peer for that time (PEER_CUT_OFF), so that the data path asks nothing
 * more: what they send is lost, what comes for them is refused, and no peer executes requests in their memory. The
 * local ACK timer and the retries do the rest (verbs.md §3.12). */
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/engine.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "object/device/context.h"
#include "object/memory/mapping.h"

/* One change of a port at a time. QP locks, contexts_lock and timers_lock are below it. */
static struct lock change_lock = LOCK_INIT;
_Atomic uint32_t ports_down;
/* By device number, under change_lock: when the port comes up by itself; NS_NEVER: not. 0: it is up. */
static ns_t up_at[DEVICES_MAX];

/* The QP no longer knows its peer. false: it knew none. QP lock held. */
static bool lose_peer(struct qp *qp)
{
    struct qp_route *route = route_of(qp);

    if (!is_connected(qp->record) || route->peer_process == PEER_CUT_OFF)
        return false;
    route->cut_off_from = route->peer_process;
    route->peer_process = PEER_CUT_OFF;
    return true;
}

/* QP lock held. */
static void cut_off(struct qp *qp)
{
    enum ibv_qp_state state = qp_state(qp);

    if (!lose_peer(qp))
        return;
    blocked_leave(qp);
    transport_revoke(&qp->transport);
    route_cut_off(qp);
    /* On the network the ACK timer runs already. */
    if (!route_of(qp)->by_network && (state == IBV_QPS_RTS || state == IBV_QPS_SQD))
        sender_peer_silent(&qp->transport);
}

/* QP lock held. */
static void bring_back(struct qp *qp)
{
    struct qp_route *route = route_of(qp);

    if (route->peer_process != PEER_CUT_OFF)
        return;
    route->peer_process = route->cut_off_from;
    route_bring_back(qp);
}

static void change_qp(struct qp *qp, void *argument)
{
    const struct device *device = argument;
    struct qp_kick kick;

    rundown_enter();
    lock_acquire(&qp->lock);
    if (qp->context && qp->context->device == device &&
        atomic_load_explicit(&qp->record->qpn, memory_order_relaxed)) {
        if (device_port_is_down(device))
            cut_off(qp);
        else
            bring_back(qp);
        if (peers_execute) {
            mapping_update_qp(qp);
            mapping_settle_qp(qp);
        }
        qp_note(qp, false);
    }
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    route_ring(&kick);
    rundown_exit();
}

/* change_lock held. */
static void set_timer(void)
{
    ns_t earliest = NS_NEVER;

    for (unsigned i = 0; i < DEVICES_MAX; i++)
        earliest = up_at[i] ? min_of(earliest, up_at[i]) : earliest;
    timers_set_late(LATE_PORTS, earliest);
}

/* change_lock held. The device has a reference for as long as its port is down. */
static void change(struct device *device, bool down, ns_t at)
{
    bool was_down = up_at[device->number] != 0;

    up_at[device->number] = down ? at : 0;
    set_timer();
    if (down == was_down)
        return;
    if (down)
        device_get(&host_devices, device);
    atomic_fetch_add_explicit(&ports_down, down ? 1 : UINT32_MAX, memory_order_relaxed);
    atomic_store_explicit(&device->port_down, down, memory_order_relaxed);
    qp_for_each(change_qp, device);
    context_raise_port_event(device, down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE);
    if (!down)
        device_put(&host_devices, device);
}

void engine_change_port(struct device *device, bool down, ns_t time)
{
    lock_acquire(&change_lock);
    change(device, down, time ? sys_now() + time : NS_NEVER);
    lock_release(&change_lock);
}

static void bring_up_due(ns_t now)
{
    lock_acquire(&change_lock);
    for (unsigned i = 0; i < DEVICES_MAX; i++) {
        if (up_at[i] && up_at[i] <= now)
            change(&host_devices.devices[i], false, 0);
    }
    lock_release(&change_lock);
}

void engine_restore_ports(void)
{
    bring_up_due(NS_NEVER);
}

void ports_due(void)
{
    bring_up_due(sys_now());
}

void port_connect(struct qp *qp)
{
    if (port_is_down(qp))
        lose_peer(qp);
}

bool port_of_gid_is_down(const uint8_t gid[16])
{
    struct device *device;
    bool down;

    if (likely(!atomic_load_explicit(&ports_down, memory_order_relaxed)))
        return false;
    device = device_table_find_gid(&host_devices, gid, NULL);
    down = device && device_port_is_down(device);
    if (device)
        device_put(&host_devices, device);
    return down;
}

/* The child's ports are up: it has neither the faults of its parent nor its QPs. */
void ports_after_fork_in_child(void)
{
    lock_init(&change_lock);
    for (unsigned i = 0; i < DEVICES_MAX; i++) {
        if (up_at[i])
            atomic_store_explicit(&host_devices.devices[i].port_down, false, memory_order_relaxed);
        up_at[i] = 0;
    }
    atomic_store_explicit(&ports_down, 0, memory_order_relaxed);
}
