/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One-sided requests executed in mapped memory of a peer (docs/mapped.md, "The initiator's side").
 *
 *   direct.c   requester: access slots, checks of keys, addresses in mapped memory
 *   peer.c     requester: maps the peer's segment and regions (helper thread)
 *   fetch.c    receiver of packets by reference: copies their bytes from mapped memory
 *   deposit.c  sender of a large SEND: writes half of it into the peer's receive buffer
 *   owner.c    owner of the memory: waits for peers that access it
 *
 * Requester and owner synchronise by access slots (hazard pointers). The requester takes an access slot, which names
 * the owner's QP and key slot, then checks QP and key, then accesses the memory, then releases the slot. The owner
 * changes QP or key first and then looks at the access slots. So once the owner has found no slot that names the
 * object, every later access sees the change. */
#ifndef ENGINE_DIRECT_DIRECT_H
#define ENGINE_DIRECT_DIRECT_H

#include "engine/core/route.h"
#include "local/local.h"
#include "mapped/mapped.h"
#include "object/qp/qp.h"
#include "segment/segment.h"

/* Bits of an access slot, a word in the memory of the link (local/layout.h). The generation counts how often the slot
 * was taken: the owner, who compares two loads of the word, does not mistake a new access for the one it waits for. */
#define ACCESS_SLOT_BUSY       1u
#define ACCESS_SLOT_GIVEN_UP   2u /* set by the owner, which no longer waits: the access is void */
#define ACCESS_SLOT_KEY_SHIFT  2
#define ACCESS_SLOT_QP_SHIFT   21
#define ACCESS_SLOT_GENERATION ((uint64_t)1 << 37)
_Static_assert(LIMIT_KEY_SLOTS <= 1u << (ACCESS_SLOT_QP_SHIFT - ACCESS_SLOT_KEY_SHIFT) && LIMIT_QP <= 65536,
               "key slot and QP slot fit below the generation");

static inline uint32_t access_slot_key(uint64_t access_slot)
{
    return (uint32_t)(access_slot >> ACCESS_SLOT_KEY_SHIFT) & (LIMIT_KEY_SLOTS - 1);
}

static inline uint32_t access_slot_qp(uint64_t access_slot)
{
    return (uint32_t)(access_slot >> ACCESS_SLOT_QP_SHIFT) & (LIMIT_QP - 1);
}

/* Values of the admission flag, a word beside the access slots. The requester opens it before it takes its first access
 * slot; the owner of the memory closes it when the link goes down. The requester checks it while it holds a slot. */
enum { ADMISSION_NEW, ADMISSION_OPEN, ADMISSION_CLOSED };

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

/* A process whose memory this process may access. Created by the helper thread, published in link_owner_data(), freed
 * when no QP uses the link. The peer's segment may contain anything: sizes and offsets are checked. */
struct direct_peer {
    struct link *link;
    /* Written by this process, read by the owner; in the link's memory, each in its own cache line. */
    _Atomic uint64_t *access_slots, *admission;
    uint32_t alive; /* header->alive when the segment was mapped; another value: the peer has ended */
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
    /* Used by the helper thread only, but for `useless`, which is set before the peer is published: */
    bool useless; /* the segment could not be opened, or failed its checks; not tried again */
    struct mapped_file *segment;
    struct mapped_view *segment_view, *qps_view, *queues_view;
    struct mapped_file *files[SEGMENT_FILES];
    bool file_tried[SEGMENT_FILES];
};

/* --- direct.c ------------------------------------------------------------------------------------------- */

/* transport_direct_ports. */
void *direct_map(struct transport_qp *transport, uint32_t rkey, uint64_t address, uint32_t length,
                 enum remote_operation operation);
bool direct_map_end(struct transport_qp *transport);
bool direct_can_map(struct transport_qp *transport, uint32_t rkey);
/* As direct_map(), but a failure does not make the helper thread map the memory. */
char *direct_try_map(struct qp *qp, uint32_t rkey, uint64_t address, uint32_t length,
                     enum remote_operation operation);
/* qp_ports.prefetch: prefetches the cache lines that the request will be written to. */
void direct_prefetch(const struct qp *qp, const struct send_wqe *wqe);
/* link_properties.direct_up_to of a connected QP whose requests take that link. */
uint32_t direct_limit(const struct qp *qp, const struct link *link);
/* link_properties.fetched_from of QPs whose requests take that link. */
uint32_t direct_fetched_from(const struct link *link);
/* Why memory of the peer is not mapped, for path explanations. */
enum path_why direct_why_not(const struct link *link);
/* Do the settings want memory of the peer mapped, and may this process open the peer's files (link_can_pull())? */
bool direct_may_map(const struct link *link);
/* The region with the key in that slot is needed and not mapped here. Is a request to the helper thread worth its cost?
 * Yes when the region's record has changed since the last request, else after ever more misses. peer: NULL before the
 * first contact. QP lock held. */
bool direct_should_request(struct direct_route *direct, const struct direct_peer *peer, uint32_t slot);

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
 * that link refer to. QP lock held. */
void direct_request_fetch(struct qp *qp, const struct direct_peer *peer, const struct link *link,
                          uint32_t slot);
/* NULL: its segment is not mapped yet, or cannot be. In a rundown section. */
const struct direct_peer *direct_peer_of(struct link *link);
/* Executes the requests above. Helper thread, without locks. */
void direct_run(void);
/* Unmaps the peer. Helper thread, when no QP uses the link any more. */
void direct_link_down(struct link *link);
void direct_after_fork_in_child(void);

/* --- owner.c -------------------------------------------------------------------------------------------- */

/* object_ports.settle, forget_orphans, evict_soon */
bool direct_settle(enum object_kind kind, uint32_t slot, bool evict);
void direct_forget_orphans(void);
void direct_evict_soon(void);
/* A link is down: perhaps the last peer that was given up is gone. Helper thread. */
void direct_link_gone(void);
/* local_ops.link_leaving: ends the peer's accesses. The peer may be alive, and continue them for a while. */
void direct_link_leaving(struct link *link);

#endif
