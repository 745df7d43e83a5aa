/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What packets by reference name, where it is mapped here: copied once, by whoever receives the packet, from
 * the peer's memory to where it belongs. Nothing is written to the peer, so there is no access slot: what was copied
 * while its owner took the memory back is void, and is copied once more in the other way, which finds out
 * why. */
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

bool direct_find(struct qp *qp, const struct packet *packet, struct direct_found *ret_found)
{
    struct link *link = lane_link(route_of(qp)->arrival_lane);
    const struct direct_peer *peer;

    if (likely(!direct_may_map(link)))
        return false;
    peer = direct_peer_of(link);
    ret_found->peer = peer;
    ret_found->count = packet->reference_count;
    for (uint32_t i = 0; i < packet->reference_count; i++) {
        const struct packet_reference *reference = &packet->reference[i];
        const struct direct_view *view = peer ? find_view(peer, reference) : NULL;

        if (!view) {
            direct_ask_to_fetch(qp, peer, link, reference->slot & (LIMIT_KEY_SLOTS - 1));
            return false;
        }
        ret_found->view[i] = view;
        ret_found->here[i] = (struct packet_reference){
            .address = (uintptr_t)(view->base + (reference->address - view->address)),
            .length = reference->length};
    }
    return true;
}

bool direct_was_there(const struct direct_found *found)
{
    /* What was copied was loaded before; partner: close_record() in object/memory/mapping.c. */
    atomic_thread_fence(memory_order_acquire);
    for (uint32_t i = 0; i < found->count; i++) {
        const struct direct_view *view = found->view[i];

        if (atomic_load_explicit(&found->peer->mapped[view->slot].generation, memory_order_relaxed) !=
            view->generation)
            return false;
    }
    return true;
}
