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
    return qp->record->type == IBV_QPT_RC && direct_may_map(link) ? DIRECT_LIMIT : 0;
}

/* --- access slots ------------------------------------------------------------------------------------------ */

/* Orders the store to the access slot before the loads of the checks: either the owner sees the slot, or the checks see
 * the owner's change. Partner: the fence in direct_settle(). */
static inline void fence_behind_access_slot(void)
{
#if defined(__x86_64__) || defined(__i386__)
    atomic_signal_fence(memory_order_seq_cst); /* a locked instruction is a fence */
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static bool take_access_slot(struct direct_route *direct, uint32_t first, uint32_t key)
{
    const uint64_t what = (uint64_t)direct->slot << ACCESS_SLOT_QP_SHIFT |
                          (uint64_t)key << ACCESS_SLOT_KEY_SHIFT | ACCESS_SLOT_BUSY;

    for (uint32_t i = 0; i < LOCAL_ACCESS_SLOTS; i++) {
        size_t line = (first + i) % LOCAL_ACCESS_SLOTS;
        _Atomic uint64_t *access_slot =
            (_Atomic uint64_t *)(void *)((char *)direct->peer->access_slots + line * CACHE_LINE);
        uint64_t seen = atomic_load_explicit(access_slot, memory_order_relaxed);

        if (seen & ACCESS_SLOT_BUSY)
            continue;
        direct->access_slot = access_slot;
        direct->access_slot_word = ((seen / ACCESS_SLOT_GENERATION + 1) * ACCESS_SLOT_GENERATION) | what;
        if (likely(atomic_compare_exchange_strong_explicit(access_slot, &seen, direct->access_slot_word,
                                                           memory_order_seq_cst, memory_order_relaxed))) {
            fence_behind_access_slot();
            return true;
        }
    }
    return false;
}

/* False: the owner has given up waiting, and the access is void. Release: the accesses are complete before the owner
 * sees the slot free (settle_access_slot()). */
static bool release_access_slot(struct direct_route *direct)
{
    uint64_t seen = direct->access_slot_word, idle = seen & ~(ACCESS_SLOT_GENERATION - 1);

    if (likely(atomic_compare_exchange_strong_explicit(direct->access_slot, &seen, idle, memory_order_release,
                                                       memory_order_relaxed)))
        return true;
    atomic_store_explicit(direct->access_slot, idle, memory_order_release);
    return false;
}

/* --- checks ----------------------------------------------------------------------------------------- */

/* Is the peer alive, the admission flag open, and the peer's QP unchanged since connect_qp()? */
static inline bool is_open(const struct direct_route *direct)
{
    return atomic_load_explicit(&direct->record->generation, memory_order_acquire) ==
               direct->record_generation &&
           atomic_load_explicit(&direct->peer->header->alive, memory_order_relaxed) == direct->peer->alive &&
           atomic_load_explicit(direct->peer->admission, memory_order_relaxed) == ADMISSION_OPEN;
}

/* Is what find_key() found for this key still valid? */
static inline bool key_is_current(const struct direct_route *direct, uint32_t rkey)
{
    const struct direct_peer *peer = direct->peer;

    return direct->rkey == rkey &&
           atomic_load_explicit(&peer->keys[direct->key_slot].generation, memory_order_acquire) ==
               direct->key_generation &&
           atomic_load_explicit(&peer->mapped[direct->key_slot].generation, memory_order_acquire) ==
               direct->place_generation;
}

/* Looks up the key's region in the peer's tables, if it is mapped here. Keys of memory windows are left to the peer's
 * responder: the owner may invalidate one with a lock held, under which it cannot wait for access slots. */
static bool find_key(struct direct_route *direct, uint32_t rkey)
{
    const struct direct_peer *peer = direct->peer;
    uint32_t slot = key_slot(rkey);
    const struct direct_view *view =
        atomic_load_explicit(&peer->views[slot % DIRECT_VIEWS], memory_order_acquire);
    struct key_view key;
    uint64_t first, end;

    direct->rkey = 0;
    if (!view || view->slot != slot ||
        atomic_load_explicit(&peer->mapped[slot].generation, memory_order_acquire) != view->generation ||
        !keys_try_read(&peer->keys[slot], &key) || key.kind != KEY_REGION || key.rkey != rkey ||
        key.pd != direct->pd)
        return false;
    first = max_of(key.address, view->address);
    end = min_of(key.address + key.length, view->address + view->length);
    if (first >= end)
        return false;
    direct->start = key.iova + (first - key.address);
    direct->length = end - first;
    direct->base = view->base + (first - view->address);
    direct->key_access = key.access & direct->access;
    if (!view->writable)
        direct->key_access &= (uint32_t)IBV_ACCESS_REMOTE_READ;
    direct->key_slot = slot;
    direct->key_generation = key.generation;
    direct->place_generation = view->generation;
    direct->rkey = rkey;
    return true;
}

static inline char *address_in(const struct direct_route *direct, uint64_t address, uint32_t length,
                               enum remote_operation operation)
{
    uint64_t offset = address - direct->start;

    if (!(direct->key_access & remote_operation_access(operation)) || address < direct->start ||
        offset >= direct->length || length > direct->length - offset)
        return NULL;
    if (operation == REMOTE_ATOMIC && ((address | (uintptr_t)(direct->base + offset)) & 7))
        return NULL;
    return direct->base + offset;
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

bool direct_can_map(struct transport_qp *transport, uint32_t rkey)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct direct_route *direct = &route_of(qp)->direct;

    if (direct->peer && is_open(direct) && (key_is_current(direct, rkey) || find_key(direct, rkey)))
        return true;
    if (direct_should_request(direct, direct->peer, key_slot(rkey)))
        direct_request_map(qp, rkey);
    return false;
}

static inline char *try_map(struct qp *qp, uint32_t rkey, uint64_t address, uint32_t length,
                            enum remote_operation operation)
{
    struct direct_route *direct = &route_of(qp)->direct;
    char *there = NULL;
    bool open;

    if (unlikely(!direct->peer) || !take_access_slot(direct, qp->slot, key_slot(rkey)))
        return NULL;
    open = is_open(direct);
    if (likely(open) && (likely(key_is_current(direct, rkey)) || find_key(direct, rkey)))
        there = address_in(direct, address, length, operation);
    if (likely(there != NULL))
        return there;
    release_access_slot(direct);
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
    if (unlikely(transport->map_later || direct_should_request(direct, direct->peer, key_slot(rkey))))
        transport->map_later = transport->map_later || direct_request_map(qp, rkey);
    return NULL;
}

void direct_prefetch(const struct qp *qp, const struct send_wqe *wqe)
{
    const struct direct_route *direct = &route_of(qp)->direct;
    uint64_t offset = wqe->remote_address - direct->start;

    if (!route_of(qp)->lane)
        return;
    if (!direct->peer || wqe->opcode == IBV_WR_SEND || direct->rkey != wqe->rkey || offset >= direct->length)
        lane_prefetch(route_of(qp)->lane);
    else if (wqe->opcode == IBV_WR_RDMA_READ)
        __builtin_prefetch(direct->base + offset);
    else
        prefetch_for_write(direct->base + offset);
}

bool direct_map_end(struct transport_qp *transport)
{
    return release_access_slot(&route_of(container_of(transport, struct qp, transport))->direct);
}
