/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/direct/direct.h"

#include "base/prefetch.h"
#include "engine/core/route.h"
#include "object/memory/mapping.h"

/* Bytes. The copy holds the QP's lock; for longer requests the kernel copy (process_vm_readv) is as fast. */
#define DIRECT_LIMIT (1u << 20)
/* Bytes. From here on, one copy by the receiver from mapped memory takes less time than two through the ring. */
#define FETCH_FROM 8192u
/* Requests of a QP without mapped memory between two requests to the helper thread: the interval grows with the
 * number of misses, from the first value to the second. */
#define RETRY_FIRST 64u
#define RETRY_LAST  65536u

enum path_why direct_why_not(const struct link *link)
{
    return !local_wants_mapped()         ? PATH_WHY_OFF
           : !link_can_pull(link)        ? PATH_WHY_FORBIDDEN
           : link_peer_segment(link) < 0 ? PATH_WHY_HIDDEN
                                         : PATH_WHY_UNUSED;
}

bool direct_may_open(const struct link *link)
{
    return local_wants_direct() && link_can_pull(link) && link_peer_segment(link) >= 0 && !link_is_self(link);
}

bool direct_may_map(const struct link *link)
{
    return direct_why_not(link) == PATH_WHY_UNUSED && !link_is_self(link);
}

uint32_t direct_fetched_from(const struct link *link)
{
    uint32_t otherwise = local_reference_from();

    return mapping_is_enabled && otherwise > FETCH_FROM && direct_may_map(link) ? FETCH_FROM : 0;
}

uint32_t direct_limit(const struct qp *qp, const struct link *link)
{
    return qp->record->type == IBV_QPT_RC && direct_may_open(link) ? DIRECT_LIMIT : 0;
}

/* --- checks ----------------------------------------------------------------------------------------- */

/* The part of the region that is mapped here. */
static bool find_mapped(struct direct_route *direct, const struct key_view *key, uint32_t slot)
{
    const struct direct_view *view =
        atomic_load_explicit(&direct->peer->views[slot % DIRECT_VIEWS], memory_order_acquire);
    uint64_t first, end;

    if (!view || view->slot != slot || view->generation != direct->place_generation ||
        key->kind != KEY_REGION)
        return false;
    first = max_of(key->address, view->address);
    end = min_of(key->address + key->length, view->address + view->length);
    if (first >= end)
        return false;
    direct->start = key->iova + (first - key->address);
    direct->length = end - first;
    direct->base = (uintptr_t)(view->base + (first - view->address));
    if (!view->writable)
        direct->key_access &= (uint32_t)IBV_ACCESS_REMOTE_READ;
    direct->copied = false;
    return true;
}

/* The region in the peer's address space. */
static bool find_copied(struct direct_route *direct, const struct key_view *key)
{
    if (!atomic_load_explicit(&direct->peer->copies, memory_order_relaxed) || (key->rkey & KEY_COPIED) ||
        (key->kind != KEY_REGION && key->kind != KEY_REGION_ON_DEMAND))
        return false;
    direct->start = key->iova;
    direct->length = key->length;
    direct->base = (uintptr_t)key->address;
    direct->copied = true;
    return true;
}

/* Keys of memory windows are left to the peer's responder: the owner may invalidate one with a lock held, under which
 * it cannot wait for access slots. */
bool direct_find_key(struct direct_route *direct, uint32_t rkey)
{
    const struct direct_peer *peer = direct->peer;
    uint32_t slot = key_slot(rkey);
    struct key_view key;

    direct->rkey = 0;
    direct->place_generation = atomic_load_explicit(&peer->mapped[slot].generation, memory_order_acquire);
    if (!keys_try_read(&peer->keys[slot], &key) || key.rkey != rkey || key.pd != direct->pd)
        return false;
    direct->key_access = key.access & direct->access;
    if (!find_mapped(direct, &key, slot) && !find_copied(direct, &key))
        return false;
    direct->key_slot = slot;
    direct->key_generation = key.generation;
    direct->rkey = rkey;
    return true;
}

bool direct_should_request(struct direct_route *direct, const struct direct_peer *peer, uint32_t slot)
{
    const struct direct_view *view;
    uint32_t generation;

    if (direct->misses++ == direct->next_retry) {
        direct->next_retry += max_of(min_of(direct->misses, RETRY_LAST), RETRY_FIRST);
        return true;
    }
    if (!peer)
        return false;
    generation = atomic_load_explicit(&peer->mapped[slot].generation, memory_order_acquire);
    view = atomic_load_explicit(&peer->views[slot % DIRECT_VIEWS], memory_order_acquire);
    if (!generation || (generation & 1) || (view && view->slot == slot && view->generation == generation) ||
        (direct->requested_slot == slot && direct->requested_generation == generation))
        return false;
    direct->requested_slot = slot;
    direct->requested_generation = generation;
    return true;
}

/* Where the peer does not map memory, only its segment has to be mapped. */
static bool wants_map(const struct qp *qp, struct direct_route *direct, uint32_t rkey)
{
    return !(direct->peer && atomic_load_explicit(&direct->peer->copies, memory_order_relaxed)) &&
           direct_should_request(direct, direct->peer, key_slot(rkey));
}

bool direct_can_execute(struct transport_qp *transport, uint32_t rkey, uint32_t length)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct direct_route *direct = &route_of(qp)->direct;

    if (direct->peer && direct_is_open(direct) &&
        (direct_key_is_current(direct, rkey) || direct_find_key(direct, rkey)))
        return !direct->copied || !direct_prefers_ring(qp, direct, length);
    if (wants_map(qp, direct, rkey))
        direct_request_map(qp, rkey);
    return false;
}

static inline char *try_map(struct qp *qp, uint32_t rkey, uint64_t address, uint32_t length,
                            enum remote_operation operation)
{
    struct direct_route *direct = &route_of(qp)->direct;
    uintptr_t there = 0;
    bool open;

    if (unlikely(!direct->peer || (direct->copied && direct->rkey == rkey)))
        return NULL;
    direct->access_slot = access_slot_take(direct->peer->access_slots, qp->slot, ACCESS_STORES, direct->slot,
                                           key_slot(rkey), &direct->access_slot_word);
    if (!direct->access_slot)
        return NULL;
    open = direct_is_open(direct);
    if (likely(open) && (likely(direct_key_is_current(direct, rkey)) || direct_find_key(direct, rkey)) &&
        !direct->copied)
        there = direct_address_in(direct, address, length, operation);
    if (likely(there != 0))
        return (char *)there; // NOLINT(performance-no-int-to-ptr)
    access_slot_release(direct->access_slot, direct->access_slot_word);
    if (!open)
        direct->peer = NULL; /* the helper thread connects the QP anew */
    return NULL;
}

char *direct_try_map(struct qp *qp, uint32_t rkey, uint64_t address, uint32_t length,
                     enum remote_operation operation)
{
    return try_map(qp, rkey, address, length, operation);
}

void *direct_map(struct transport_qp *transport, uint32_t rkey, uint64_t address, uint32_t length,
                 enum remote_operation operation)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct direct_route *direct = &route_of(qp)->direct;
    char *there = try_map(qp, rkey, address, length, operation);

    if (likely(there != NULL)) {
        if (operation != REMOTE_READ)
            atomic_store_explicit(&qp->prefetch_at, there, memory_order_relaxed);
        return there;
    }
    if (unlikely(transport->map_later || wants_map(qp, direct, rkey)))
        transport->map_later = transport->map_later || direct_request_map(qp, rkey);
    return NULL;
}

void direct_prefetch(const struct qp *qp, const struct send_wqe *wqe)
{
    const struct direct_route *direct = &route_of(qp)->direct;
    uint64_t offset = wqe->remote_address - direct->start;

    if (!route_of(qp)->lane)
        return;
    if (!direct->peer || wqe->opcode == IBV_WR_SEND || direct->copied || direct->rkey != wqe->rkey ||
        offset >= direct->length)
        lane_prefetch(route_of(qp)->lane);
    else if (wqe->opcode == IBV_WR_RDMA_READ)
        __builtin_prefetch((const char *)direct->base + offset);
    else
        prefetch_for_write((const char *)direct->base + offset);
}

bool direct_map_end(struct transport_qp *transport)
{
    struct direct_route *direct = &route_of(container_of(transport, struct qp, transport))->direct;

    return access_slot_release(direct->access_slot, direct->access_slot_word);
}
