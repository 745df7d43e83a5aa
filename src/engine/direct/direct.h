/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One-sided requests that their requester executes: in mapped memory of the peer (docs/mapped.md, "The initiator's
 * side"), or by the kernel's copy (docs/design/direct-execution.md).
 *
 *   direct.c      requester: checks of keys, addresses in mapped memory
 *   copy.c        requester: the kernel's copy, and when the ring is quicker
 *   peer.c        requester: maps the peer's segment and regions (helper thread)
 *   peer_files.c  requester: opens the peer's files; owner: opens its own for a peer that asks (helper thread)
 *   fetch.c       receiver of packets by reference: copies their bytes from mapped memory
 *   plain.c       requester: small WRITEs into mapped memory, the straight way
 *   deposit.c     sender of a large SEND: writes half of it into the peer's receive buffer
 *   owner.c       owner of the memory: waits for peers that access it
 *
 * Requester and owner synchronise by access slots (access_slot.h). The requester takes an access slot, which names the
 * owner's QP and key slot, then checks QP and key, then accesses the memory, then releases the slot. The owner changes
 * QP or key first and then looks at the access slots. So once the owner has found no slot that names the
 * object, every later access sees the change. */
#ifndef ENGINE_DIRECT_DIRECT_H
#define ENGINE_DIRECT_DIRECT_H

#include "engine/core/route.h"
#include "engine/direct/access_slot.h"
#include "local/local.h"
#include "mapped/mapped.h"
#include "object/ports.h"
#include "object/qp/qp.h"
#include "segment/segment.h"

/* A region of a peer that is mapped in this process. Immutable once published in direct_peer.views. */
struct direct_view {
    uint32_t slot, generation; /* of the region's mapped record in the peer's segment */
    uint64_t address, length;  /* in the peer's address space */
    char *base;
    bool writable;
    struct mapped_view *view;
};

/* How much of a peer's receive queues is mapped: records of its first QPs, bytes of its arena. */
#define DIRECT_QPS    1024u
#define DIRECT_QUEUES (4u << 20)

/* A peer's views are a direct-mapped table, indexed by key slot modulo this. */
#define DIRECT_VIEWS 1024u

enum direct_peer_state {
    DIRECT_PEER_NEW,
    DIRECT_PEER_ASKED,   /* for its tables, which come over the link */
    DIRECT_PEER_USABLE,  /* all that other threads use is set, and does not change any more */
    DIRECT_PEER_USELESS, /* the segment could not be opened, or failed its checks; not tried again */
};

/* A process whose memory this process may access. Created by the helper thread, published in link_owner_data(), freed
 * when no QP uses the link. The peer's segment may contain anything: sizes and offsets are checked. */
struct direct_peer {
    struct link *link;
    /* Written by this process, read by the owner; in the link's memory. */
    struct access_slot *access_slots;
    _Atomic uint64_t *admission;
    _Atomic bool refused; /* the kernel has refused a copy; direct_copies() */
    uint32_t alive;       /* header->alive when the segment was mapped; another value: the peer has ended */
    /* Tables in the peer's segment, mapped read-only: */
    const struct segment_header *header;
    const struct key_entry *keys;
    const struct mapped_record *mapped;
    const struct direct_record *directs;
    /* For deposits: the first DIRECT_QPS records, NULL if they could not be mapped, and arena offsets
     * [queues_from, queues_end), mapped at `queues`. */
    const struct qp_record *qps;
    const char *queues;
    uint64_t queues_from, queues_end;
    _Atomic(struct direct_view *) views[DIRECT_VIEWS];
    /* Used by the helper thread only, but for `state`: */
    _Atomic enum direct_peer_state state;
    bool by_link; /* the peer's files come over the link: /proc does not show them here */
    struct mapped_file *tables, *queue_file;
    struct mapped_view *segment_view, *qps_view, *queues_view;
    struct mapped_file *files[SEGMENT_FILES];
    bool file_tried[SEGMENT_FILES], file_asked[SEGMENT_FILES];
};

/* --- direct.c ------------------------------------------------------------------------------------------- */

/* transport_direct_ports. */
void *direct_map(struct transport_qp *transport, uint32_t rkey, uint64_t address, uint32_t length,
                 enum remote_operation operation);
bool direct_map_end(struct transport_qp *transport);
bool direct_goes_by_packets(struct transport_qp *transport, uint32_t rkey, uint64_t address, uint32_t length);
bool direct_can_execute(struct transport_qp *transport, uint32_t rkey, uint64_t address, uint32_t length);
/* Which copies the peer permits. The peer decides when it sets its end of the link up, which may come later than the
 * beginning of this process's. */
static inline enum segment_copies direct_copies(const struct direct_peer *peer)
{
    if (atomic_load_explicit(&peer->refused, memory_order_relaxed) || !link_can_pull(peer->link) ||
        !link_waits_for_copies(peer->link, false))
        return SEGMENT_NO_COPIES;
    return (enum segment_copies)atomic_load_explicit(&peer->header->copies, memory_order_acquire);
}

/* Does the peer map memory that is accessed often? */
static inline bool direct_maps_on_demand(const struct direct_peer *peer)
{
    return (enum segment_copies)atomic_load_explicit(&peer->header->copies, memory_order_acquire) ==
           SEGMENT_COPIES_AND_MAPS;
}

/* Is the peer alive and the admission flag open, and is its QP unchanged since the helper thread connected to it? */
static inline bool direct_is_open(const struct direct_route *direct)
{
    return atomic_load_explicit(&direct->record->generation, memory_order_acquire) ==
               direct->record_generation &&
           atomic_load_explicit(&direct->peer->header->alive, memory_order_relaxed) == direct->peer->alive &&
           atomic_load_explicit(direct->peer->admission, memory_order_relaxed) == ADMISSION_OPEN;
}

/* Is what was found of this key still valid? */
static inline bool direct_key_is_current(const struct direct_peer *peer, const struct direct_key *key,
                                         uint32_t rkey)
{
    return key->rkey == rkey && likely(rkey != 0) &&
           atomic_load_explicit(&peer->keys[key->slot].generation, memory_order_acquire) == key->generation &&
           atomic_load_explicit(&peer->mapped[key->slot].generation, memory_order_acquire) ==
               key->place_generation;
}

/* Where the range is, see direct_key.base. 0: the key does not allow it. */
static inline uintptr_t direct_address_in(const struct direct_key *key, uint64_t address, uint32_t length,
                                          enum remote_operation operation)
{
    uint64_t offset = address - key->start;

    if (!(key->access & remote_operation_access(operation)) || address < key->start ||
        offset >= key->length || length > key->length - offset)
        return 0;
    if (operation == REMOTE_ATOMIC && ((address | (key->base + offset)) & 7))
        return 0;
    return key->base + offset;
}

/* The region of the key for kernel copies, as direct_route.copied. False: the request goes as packets. QP lock held. */
bool direct_find_copied(struct direct_route *direct, uint32_t rkey);
static inline bool direct_has_copied(struct direct_route *direct, uint32_t rkey)
{
    return direct_copies(direct->peer) != SEGMENT_NO_COPIES &&
           (direct_key_is_current(direct->peer, &direct->copied, rkey) || direct_find_copied(direct, rkey)) &&
           direct->copied.length;
}
/* Waits for a moment if the record of the key in that slot is closed. QP lock held. */
void direct_wait_for_portion(struct direct_route *direct, uint32_t slot);
/* As direct_map(), but a failure does not make the helper thread map the memory. */
char *direct_try_map(struct qp *qp, uint32_t rkey, uint64_t address, uint32_t length,
                     enum remote_operation operation);
/* qp_ports.prefetch: prefetches the cache lines that the request will be written to. */
void direct_prefetch(const struct qp *qp, const struct send_wqe *wqe);
/* link_properties.direct_up_to of a connected QP whose requests take that link. */
uint32_t direct_limit(const struct qp *qp, const struct link *link);
/* link_properties.fetched_from of QPs whose requests take that link. */
uint32_t direct_fetched_from(const struct link *link);
/* Accesses to memory that the peer has not mapped, until it is asked to map the memory: each counts 1, and 1 for so
 * many bytes. A step of 1 MiB takes as long to switch as some hundred system calls. */
#define DIRECT_WISH_FIRST 16u
#define DIRECT_WISH_BYTES 65536u
/* How often that number doubles while nothing changes at the peer. */
#define DIRECT_WISHES 12u
/* Counts an access. True: the peer maps what is accessed often, and it is time to call direct_ask_to_map(). QP lock
 * held. */
static inline bool direct_is_hot(struct direct_route *direct, const struct direct_peer *peer, uint32_t length)
{
    direct->accesses += 1 + length / DIRECT_WISH_BYTES;
    if (likely(direct->accesses < DIRECT_WISH_FIRST << direct->wishes) || !peer ||
        !direct_maps_on_demand(peer))
        return false;
    direct->accesses = 0;
    return true;
}
enum direct_wish {
    DIRECT_IS_MAPPED, /* by the peer: this process has to map it, too */
    DIRECT_GROWS,     /* so, but the peer goes on with it */
    DIRECT_WAS_ASKED,
};
/* Asks the peer to map [there, there + length) of the region with the key in that slot, addresses of the peer, if it
 * has not done so. QP lock held. */
enum direct_wish direct_ask_to_map(struct direct_route *direct, const struct direct_peer *peer, uint32_t slot,
                                   const struct key_view *key, uint64_t there, uint32_t length);
/* Why memory of the peer is not mapped, for path explanations. */
enum path_why direct_why_not(const struct link *link);
/* Do the settings want memory of the peer mapped, and may this process open the peer's files? */
bool direct_may_map(const struct link *link);
/* May this process try to open the peer's segment, to execute requests there in either way? The kernel, or the peer,
 * may refuse it still. */
bool direct_may_open(const struct link *link);
/* The region with the key in that slot is needed and not mapped here. Is a request to the helper thread worth its cost?
 * Yes when the region's record has changed since the last request, else after ever more misses. peer: NULL before the
 * first contact. QP lock held. */
bool direct_should_request(struct direct_route *direct, const struct direct_peer *peer, uint32_t slot);

/* --- copy.c --------------------------------------------------------------------------------------------- */

/* transport_direct_ports. */
bool direct_copy(struct transport_qp *transport, uint32_t rkey, uint64_t address, uint32_t length,
                 enum remote_operation operation, const struct iovec *here, unsigned count);
/* Will the request go through the ring though the kernel could copy, because the peer polls? QP lock held. */
bool direct_prefers_ring(const struct qp *qp, struct direct_route *direct, uint32_t length);

/* --- plain.c -------------------------------------------------------------------------------------------- */

/* The WRITEs of qp_ports.post_plain and run_plain; the QP's lock is held. */
struct ibv_send_wr *direct_post_plain(struct qp *qp, struct ibv_send_wr *wr);
bool direct_run_plain(struct qp *qp, uint32_t end);

/* --- fetch.c -------------------------------------------------------------------------------------------- */

/* Where the memory that a received packet refers to is mapped in this process. */
struct direct_mapped {
    const struct direct_peer *peer;
    uint32_t count;
    const struct direct_view *view[PACKET_REFERENCES];
    struct packet_reference here[PACKET_REFERENCES];
};
/* false: at least one reference is not mapped. QP lock held, in a rundown section that the caller leaves only after
 * direct_still_mapped(). */
bool direct_find_mapped(struct qp *qp, const struct packet *packet, struct direct_mapped *ret_mapped);
/* To be called after the copy. false: the peer has withdrawn the memory meanwhile, and the copied bytes are void. */
bool direct_still_mapped(const struct direct_mapped *mapped);

/* --- deposit.c ------------------------------------------------------------------------------------------ */

/* transport_direct_ports. */
bool direct_peek_remote_receive(struct transport_qp *transport, uint32_t number, uint32_t length, bool alone);
bool direct_deposit(struct transport_qp *transport, uint32_t offset, const struct iovec *from, unsigned count,
                    uint32_t *ret_deposit_bits);
/* Has the sender deposited the payload that this packet refers to in the receive that is being filled? QP lock held. */
bool direct_was_deposited(const struct qp *qp, const struct packet *packet);
/* link_properties.deposits of a connected QP whose requests take that link. */
bool direct_deposits(const struct qp *qp, const struct link *link);

/* --- peer.c --------------------------------------------------------------------------------------------- */

/* Has the helper thread map the region with that key for requests of the QP, and then run the QP, whether or not that
 * succeeded (transport_qp.map_later). false: REQUESTS are pending already. QP lock held. */
bool direct_request_map(const struct qp *qp, uint32_t rkey);
/* Has the helper thread map the region with the key in that slot, so that this process fetches from it what packets of
 * that link refer to. */
void direct_request_fetch(const struct link *link, uint32_t slot);
/* Reads address, length and generation of a record that its owner does not change meanwhile: the generation is even and
 * the same before and after. False: closed, or never used; the generation is valid, and the length 0. */
bool direct_read_record(const struct mapped_record *record, struct direct_view *ret_view);
/* NULL: its segment is not mapped yet, or cannot be. In a rundown section. */
const struct direct_peer *direct_peer_of(struct link *link);
/* Executes the requests above. Helper thread, without locks. */
void direct_run(void);
/* Unmaps the peer. Helper thread, when no QP uses the link any more. */
void direct_link_down(struct link *link);
/* local_ops.file_came */
void direct_file_came(struct link *link, enum link_file which, int fd);
void direct_after_fork_in_child(void);

/* --- peer_files.c --------------------------------------------------------------------------------------- */

/* local_ops.open_file, knows_segment */
int direct_open_file(enum link_file which);
bool direct_knows_segment(const uint8_t secret[LINK_SECRET_BYTES]);

/* --- owner.c -------------------------------------------------------------------------------------------- */

/* object_ports.settle, forget_orphans, evict_soon */
bool direct_settle(enum object_kind kind, uint32_t slot, enum settle how);
void direct_forget_orphans(void);
void direct_evict_soon(void);
/* A link is down: perhaps the last peer that was given up is gone. Helper thread. */
void direct_link_gone(void);
void direct_owner_after_fork_in_child(void);
/* local_ops.wanted: a peer accesses that step of the region with the key in this slot often. */
void direct_wanted(uint32_t slot, uint32_t step);
/* local_ops.link_leaving: ends the peer's accesses. The peer may be alive, and continue them for a while. */
void direct_link_leaving(struct link *link);

#endif
