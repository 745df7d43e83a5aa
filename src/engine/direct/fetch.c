/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packets by reference whose memory is mapped here: the receiving thread copies the payload from the peer's memory to
 * its destination. Nothing is written to the peer's memory, so no access slot is needed. If the peer withdrew the
 * memory during the copy, the bytes are void; the caller fetches them with the kernel copy, which reports the error. */
#include "engine/core/route.h"
#include "engine/direct/direct.h"

static const struct direct_view *find_view(const struct direct_peer *peer,
                                           const struct packet_reference *reference)
{
    uint32_t slot = reference->slot & (LIMIT_KEY_SLOTS - 1);
    const struct direct_view *view =
        atomic_load_explicit(&peer->views[slot % DIRECT_VIEWS], memory_order_acquire);
    uint64_t offset;

    if (!view || view->slot != slot ||
        atomic_load_explicit(&peer->mapped[slot].generation, memory_order_acquire) != view->generation)
        return NULL;
    offset = reference->address - view->address;
    if (reference->address < view->address || offset >= view->length ||
        reference->length > view->length - offset)
        return NULL;
    return view;
}

/* The peer maps memory when it is registered, or when it is asked to. */
static cold_path void want_view(struct qp *qp, const struct direct_peer *peer, const struct link *link,
                                const struct packet_reference *reference)
{
    struct direct_route *direct = &route_of(qp)->direct;
    uint32_t slot = reference->slot & (LIMIT_KEY_SLOTS - 1);
    struct key_view key;

    if (!peer || direct_copies(peer) == SEGMENT_NO_COPIES) {
        if (direct_should_request(direct, peer, slot))
            direct_request_fetch(link, slot);
        return;
    }
    if (direct_is_hot(direct, peer, reference->length) && keys_try_read(&peer->keys[slot], &key) &&
        key.kind == KEY_REGION && reference->address - key.address < key.length && reference->length &&
        direct_ask_to_map(direct, peer, slot, &key, reference->address, reference->length) ==
            DIRECT_IS_MAPPED)
        direct_request_fetch(link, slot);
}

bool direct_find_mapped(struct qp *qp, const struct packet *packet, struct direct_mapped *ret_mapped)
{
    struct link *link = lane_link(route_of(qp)->arrival_lane);
    const struct direct_peer *peer;

    if (likely(!direct_may_map(link)))
        return false;
    peer = direct_peer_of(link);
    ret_mapped->peer = peer;
    ret_mapped->count = packet->reference_count;
    for (uint32_t i = 0; i < packet->reference_count; i++) {
        const struct packet_reference *reference = &packet->reference[i];
        const struct direct_view *view = peer ? find_view(peer, reference) : NULL;

        if (!view) {
            want_view(qp, peer, link, reference);
            return false;
        }
        ret_mapped->view[i] = view;
        ret_mapped->here[i] = (struct packet_reference){
            .address = (uintptr_t)(view->base + (reference->address - view->address)),
            .length = reference->length};
    }
    return true;
}

bool direct_still_mapped(const struct direct_mapped *mapped)
{
    /* Orders the loads of the copy before those of the generations. Partner: close_record() in
     * object/memory/mapping.c. */
    atomic_thread_fence(memory_order_acquire);
    for (uint32_t i = 0; i < mapped->count; i++) {
        const struct direct_view *view = mapped->view[i];

        if (atomic_load_explicit(&mapped->peer->mapped[view->slot].generation, memory_order_relaxed) !=
            view->generation)
            return false;
    }
    return true;
}
