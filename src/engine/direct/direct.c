/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/direct/direct.h"

#include "base/prefetch.h"
#include "base/sys.h"
#include "engine/core/route.h"
#include "object/memory/mapping.h"

/* Bytes. The copy holds the lock of the QP; longer requests go as packets by reference. */
#define DIRECT_LIMIT (16u << 20)
/* Bytes. From here on, one copy by the receiver from mapped memory takes less time than two through the ring. */
#define FETCH_FROM 8192u
/* Requests of a QP without mapped memory between two requests to the helper thread: the interval grows with the
 * number of misses, from the first value to the second. */
#define RETRY_FIRST 64u
#define RETRY_LAST  65536u

enum path_why direct_why_not(const struct link *link)
{
    return !local_wants_direct()         ? PATH_WHY_OFF
           : !link_can_pull(link)        ? PATH_WHY_FORBIDDEN
           : !local_wants_mapped()       ? PATH_WHY_OFF
           : link_peer_segment(link) < 0 ? PATH_WHY_HIDDEN
                                         : PATH_WHY_UNUSED;
}

bool direct_may_open(const struct link *link)
{
    /* Only peers of the same user have told where their segment is. */
    return local_wants_direct() && link_peer_segment(link) >= 0 && !link_is_self(link);
}

bool direct_may_map(const struct link *link)
{
    return local_wants_mapped() && direct_may_open(link);
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

/* The peer closes a record while it switches a portion of the region's pages: for some 20 us, if it has a
 * processor. A packet would wait for the end of that, too, and then for a thread of the peer. Not twice for the same
 * portion: a peer that has no processor, or takes the memory back, is left to packets. */
#define WAIT_FOR_PORTION (100 * NS_PER_US)

void direct_wait_for_portion(struct direct_route *direct, uint32_t slot)
{
    const _Atomic uint32_t *generation = &direct->peer->mapped[slot].generation;
    uint32_t seen = atomic_load_explicit(generation, memory_order_relaxed);
    ns_t until;

    if (likely(!(seen & 1)) || direct->waited_generation == seen)
        return;
    direct->waited_generation = seen;
    until = sys_now() + WAIT_FOR_PORTION;
    while (atomic_load_explicit(generation, memory_order_relaxed) == seen && sys_now() < until)
        cpu_relax();
}

/* Reads the key, and checks what both ways have in common. */
static bool read_key(const struct direct_route *direct, uint32_t rkey, struct key_view *ret_key,
                     struct direct_key *ret_found)
{
    const struct direct_peer *peer = direct->peer;
    uint32_t slot = key_slot(rkey);

    ret_found->rkey = 0;
    ret_found->place_generation = atomic_load_explicit(&peer->mapped[slot].generation, memory_order_acquire);
    if (!keys_try_read(&peer->keys[slot], ret_key) || ret_key->rkey != rkey || ret_key->pd != direct->pd)
        return false;
    ret_found->slot = slot;
    ret_found->generation = ret_key->generation;
    ret_found->access = ret_key->access & direct->access;
    return true;
}

/* Keys of memory windows are left to the peer's responder, here and for copies: the owner may invalidate one with a
 * lock held, under which it cannot wait for access slots. */
static bool find_mapped(struct direct_route *direct, uint32_t rkey)
{
    struct direct_key *found = &direct->mapped;
    const struct direct_view *view =
        atomic_load_explicit(&direct->peer->views[key_slot(rkey) % DIRECT_VIEWS], memory_order_acquire);
    struct key_view key;
    uint64_t first, end;

    if (!read_key(direct, rkey, &key, found) || !view || view->slot != found->slot ||
        view->generation != found->place_generation || key.kind != KEY_REGION)
        return false;
    first = max_of(key.address, view->address);
    end = min_of(key.address + key.length, view->address + view->length);
    if (first >= end)
        return false;
    found->start = key.iova + (first - key.address);
    found->length = end - first;
    found->base = (uintptr_t)(view->base + (first - view->address));
    if (!view->writable)
        found->access &= (uint32_t)IBV_ACCESS_REMOTE_READ;
    found->rkey = rkey;
    return true;
}

/* What of the region is moving, after its key was read. False: all of it. */
static bool read_moving(struct direct_route *direct, const struct direct_key *found)
{
    const struct mapped_record *record = &direct->peer->mapped[found->slot];

    direct->moving_from = direct->moving_to = 0;
    if (likely(!(found->place_generation & 1)))
        return true;
    direct->moving_from = __atomic_load_n(&record->moving_from, __ATOMIC_RELAXED);
    direct->moving_to = __atomic_load_n(&record->moving_to, __ATOMIC_RELAXED);
    atomic_thread_fence(memory_order_acquire); /* partner: close_region() in object/memory/mapping.c */
    return direct->moving_to &&
           atomic_load_explicit(&record->generation, memory_order_relaxed) == found->place_generation;
}

bool direct_find_copied(struct direct_route *direct, uint32_t rkey)
{
    struct direct_key *found = &direct->copied;
    struct key_view key;

    if (!__atomic_load_n(&direct->peer->mapped[key_slot(rkey)].moving_to, __ATOMIC_RELAXED))
        direct_wait_for_portion(direct, key_slot(rkey));
    if (!read_key(direct, rkey, &key, found) || direct_copies(direct->peer) == SEGMENT_NO_COPIES ||
        (rkey & KEY_COPIED) || !read_moving(direct, found) ||
        (key.kind != KEY_REGION && key.kind != KEY_REGION_ON_DEMAND)) {
        found->rkey = 0;
        return false;
    }
    found->start = key.iova;
    found->length = key.length;
    found->base = (uintptr_t)key.address;
    found->rkey = rkey;
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

enum direct_wish direct_ask_to_map(struct direct_route *direct, const struct direct_peer *peer, uint32_t slot,
                                   const struct key_view *key, uint64_t there, uint32_t length)
{
    uint64_t from = there - mapping_step_start(key->address, 0);
    uint32_t first = (uint32_t)(from / MAPPING_STEP), last = (uint32_t)((from + length - 1) / MAPPING_STEP);
    struct direct_view view;

    direct_read_record(&peer->mapped[slot], &view);
    /* More and more seldom, unless something has changed. */
    direct->wishes = direct->wished_slot == slot && direct->wished_generation == view.generation
                         ? min_of(direct->wishes + 1, DIRECT_WISHES)
                         : 0;
    direct->wished_slot = slot;
    direct->wished_generation = view.generation;
    /* While the peer switches more, the record changes with each portion, and what is mapped here is void again. */
    if (view.length && there >= view.address && there + length <= view.address + view.length)
        return direct->wishes || !atomic_load_explicit(&peer->header->growing, memory_order_relaxed)
                   ? DIRECT_IS_MAPPED
                   : DIRECT_GROWS;
    link_want_mapped(peer->link, slot, first);
    if (last != first) /* what is in between comes with it */
        link_want_mapped(peer->link, slot, last);
    return DIRECT_WAS_ASKED;
}

/* Requests that go by the kernel's copy until the peer that was asked to map shows that it does so (header.growing). */
#define COPIES_WHEN_ASKED 16u

static cold_path void want_mapped(const struct qp *qp, struct direct_route *direct, uint32_t rkey,
                                  uint64_t address, uint32_t length)
{
    const struct direct_peer *peer = direct->peer;
    uint32_t slot = key_slot(rkey);
    struct key_view key;

    if (!keys_try_read(&peer->keys[slot], &key) || key.rkey != rkey || key.kind != KEY_REGION ||
        !key_view_covers(&key, address, length))
        return;
    switch (direct_ask_to_map(direct, peer, slot, &key, key_view_translate(&key, address), length)) {
    case DIRECT_IS_MAPPED:
        direct_request_map(qp, rkey);
        break;
    case DIRECT_GROWS:
        break;
    case DIRECT_WAS_ASKED:
        /* The thread of the peer that polls may begin to switch at once, and leave packets for some 0.1 ms. */
        direct->ring = RING_NOT;
        direct->copies_due = COPIES_WHEN_ASKED;
        break;
    }
}

/* A request is not executed in mapped memory. */
static inline void note_unmapped(const struct qp *qp, struct direct_route *direct, uint32_t rkey,
                                 uint64_t address, uint32_t length)
{
    if (unlikely(direct_is_hot(direct, direct->peer, length)))
        want_mapped(qp, direct, rkey, address, length);
}

/* Where the peer permits copies, nobody waits for a mapping. */
static bool waits_for_map(const struct qp *qp, struct direct_route *direct, uint32_t rkey)
{
    return !(direct->peer && direct_copies(direct->peer) != SEGMENT_NO_COPIES) &&
           direct_should_request(direct, direct->peer, key_slot(rkey)) && direct_request_map(qp, rkey);
}

static inline bool has_mapped(struct direct_route *direct, uint32_t rkey)
{
    return likely(direct_key_is_current(direct->peer, &direct->mapped, rkey)) || find_mapped(direct, rkey);
}

/* Was the region found for copies, and not to be mapped? Until its record changes, or the helper thread has mapped it
 * (resume() in peer.c), it is not looked for again. */
static inline bool is_copied_only(const struct direct_route *direct, uint32_t rkey)
{
    return direct->copied.rkey == rkey && direct->mapped.rkey != rkey &&
           direct_key_is_current(direct->peer, &direct->copied, rkey);
}

/* Of a stream through the ring, one request in so many looks at whether the peer sleeps, and at what else would end
 * that. */
#define RING_UNASKED 63u

/* Those of them count that have come. */
static void end_unasked(struct direct_route *direct, struct transport_qp *transport)
{
    uint32_t came = direct->unasked - min_of((uint32_t)transport->unasked, direct->unasked);

    direct->accesses += came;
    direct->until_look -= min_of(came, direct->until_look - 1);
    direct->unasked = transport->unasked = 0;
}

/* Of a key that was looked for: memory behind another one may be mapped here. */
bool direct_goes_by_packets(struct transport_qp *transport, uint32_t rkey, uint64_t address, uint32_t length)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct direct_route *direct = &route_of(qp)->direct;

    if (likely(direct->ring == RING_NOT) || direct->copied.rkey != rkey || direct->mapped.rkey == rkey ||
        !direct->peer)
        return false;
    note_unmapped(qp, direct, rkey, address, length);
    end_unasked(direct, transport);
    if (!direct_prefers_ring(qp, direct, length))
        return false;
    direct->unasked = transport->unasked = RING_UNASKED;
    return true;
}

bool direct_can_execute(struct transport_qp *transport, uint32_t rkey, uint64_t address, uint32_t length)
{
    struct qp *qp = container_of(transport, struct qp, transport);
    struct direct_route *direct = &route_of(qp)->direct;

    /* First, because these have the least time to lose. What is mapped ends it (resume() in peer.c). */
    if (direct->ring != RING_NOT && direct->peer && direct->mapped.rkey != rkey &&
        direct_prefers_ring(qp, direct, length)) {
        note_unmapped(qp, direct, rkey, address, length);
        return false;
    }
    if (direct->peer && direct_is_open(direct)) {
        if (!is_copied_only(direct, rkey) && has_mapped(direct, rkey))
            return true;
        if (direct_has_copied(direct, rkey))
            return true;
    }
    (void)waits_for_map(qp, direct, rkey);
    return false;
}

static inline char *try_map(struct qp *qp, uint32_t rkey, uint64_t address, uint32_t length,
                            enum remote_operation operation)
{
    struct direct_route *direct = &route_of(qp)->direct;
    uintptr_t there = 0;
    bool open;

    if (unlikely(!direct->peer || is_copied_only(direct, rkey)))
        return NULL;
    direct->access_slot = access_slot_take(direct->peer->access_slots, qp->slot, ACCESS_STORES, direct->slot,
                                           key_slot(rkey), &direct->access_slot_word);
    if (!direct->access_slot)
        return NULL;
    open = direct_is_open(direct);
    if (likely(open) && has_mapped(direct, rkey))
        there = direct_address_in(&direct->mapped, address, length, operation);
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
    note_unmapped(qp, direct, rkey, address, length);
    transport->map_later = transport->map_later || waits_for_map(qp, direct, rkey);
    return NULL;
}

void direct_prefetch(const struct qp *qp, const struct send_wqe *wqe)
{
    const struct direct_route *direct = &route_of(qp)->direct;
    uint64_t offset = wqe->remote_address - direct->mapped.start;

    if (!direct->peer || wqe->opcode == IBV_WR_SEND || direct->mapped.rkey != wqe->rkey ||
        offset >= direct->mapped.length)
        return;
    if (wqe->opcode == IBV_WR_RDMA_READ)
        __builtin_prefetch((const char *)direct->mapped.base + offset);
    else
        prefetch_for_write((const char *)direct->mapped.base + offset);
}

bool direct_map_end(struct transport_qp *transport)
{
    struct direct_route *direct = &route_of(container_of(transport, struct qp, transport))->direct;

    return access_slot_release(direct->access_slot, direct->access_slot_word);
}
