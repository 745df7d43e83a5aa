/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/direct/direct.h"

#include "base/prefetch.h"
#include "engine/core/route.h"
#include "object/memory/mapping.h"

/* Beyond, the kernel's copy (process_vm_readv) is as quick, and holds the QP for no longer. */
#define DIRECT_LIMIT (1u << 20)
/* Messages that the peer fetches from mapped memory: where one copy by the receiver and two through the ring
 * take equally long. */
#define FETCH_FROM 8192u
/* What was not to be had is asked for again after so many requests, and then more and more seldom. */
#define ASK_FIRST 64u
#define ASK_LAST  65536u

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

/* What is checked while holding an access slot is loaded after the access slot is to be seen; partner: the fence in direct_settle().
 */
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

/* False: the peer has given us up. Release: stores, and loads, of before are done when it sees the access slot free.
 */
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

/* The peer lives, and its QP is what it was when we came to know it. */
static inline bool is_open(const struct direct_route *direct)
{
    return atomic_load_explicit(&direct->record->generation, memory_order_acquire) ==
               direct->record_generation &&
           atomic_load_explicit(&direct->peer->header->alive, memory_order_relaxed) == direct->peer->alive &&
           atomic_load_explicit(direct->peer->admission, memory_order_relaxed) == ADMISSION_OPEN;
}

/* What was found by the key last is still so. */
static inline bool key_is_current(const struct direct_route *direct, uint32_t rkey)
{
    const struct direct_peer *peer = direct->peer;

    return direct->rkey == rkey &&
           atomic_load_explicit(&peer->keys[direct->key_slot].generation, memory_order_acquire) ==
               direct->key_generation &&
           atomic_load_explicit(&peer->mapped[direct->key_slot].generation, memory_order_acquire) ==
               direct->place_generation;
}

/* Finds what the key names, if that is mapped here. Windows are not looked through: they may be taken back
 * with a lock held. */
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

bool direct_should_ask(struct direct_route *direct, const struct direct_peer *peer, uint32_t slot)
{
    const struct direct_view *view;
    uint32_t generation;

    if (direct->misses++ == direct->next_ask) {
        direct->next_ask += max_of(min_of(direct->misses, ASK_LAST), ASK_FIRST);
        return true;
    }
    if (!peer)
        return false;
    generation = atomic_load_explicit(&peer->mapped[slot].generation, memory_order_acquire);
    view = atomic_load_explicit(&peer->views[slot % DIRECT_VIEWS], memory_order_acquire);
    if (!generation || (generation & 1) || (view && view->slot == slot && view->generation == generation) ||
        (direct->asked_slot == slot && direct->asked_generation == generation))
        return false;
    direct->asked_slot = slot;
    direct->asked_generation = generation;
    return true;
}

bool direct_can_map(struct transport_qp *transport, uint32_t rkey)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct direct_route *direct = &route_of(qp)->direct;

    if (direct->peer && is_open(direct) && (key_is_current(direct, rkey) || find_key(direct, rkey)))
        return true;
    if (direct_should_ask(direct, direct->peer, key_slot(rkey)))
        direct_ask(qp, rkey);
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
        direct->peer = NULL; /* to be met anew */
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
    if (unlikely(transport->map_later || direct_should_ask(direct, direct->peer, key_slot(rkey))))
        transport->map_later = transport->map_later || direct_ask(qp, rkey);
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
