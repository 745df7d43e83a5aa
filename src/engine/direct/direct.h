/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One-sided requests executed in mapped memory of a peer (docs/mapped.md, "The initiator's side").
 *
 *   direct.c        a QP's requests: access slots, checks, addresses
 *   peer.c   what is known of a peer, and how it comes to be known: the helper thread's
 *   fetch.c  packets by reference: their bytes are fetched from mapped memory
 *   deposit.c  half of a large SEND: its sender puts it into the receive that it takes
 *   owner.c  the other end: waiting for peers that are at work in memory of ours
 *
 * An access slot says that its process is at work, for which QP of the other and by which key. It is taken before the
 * checks and given back after the last store, so whoever changes what is checked and then finds no access slot knows
 * that nobody is at work by what was before. */
#ifndef ENGINE_DIRECT_DIRECT_H
#define ENGINE_DIRECT_DIRECT_H

#include "engine/core/route.h"
#include "local/local.h"
#include "mapped/mapped.h"
#include "object/qp/qp.h"
#include "segment/segment.h"

/* Bits of an access slot (local.h): what the peer waits for, and how often the access slot was taken, so that one and the
 * same word does not come again soon. */
#define ACCESS_SLOT_BUSY       1u
#define ACCESS_SLOT_GIVEN_UP   2u /* by the peer: what is done under it is void */
#define ACCESS_SLOT_KEY_SHIFT  2
#define ACCESS_SLOT_QP_SHIFT   21
#define ACCESS_SLOT_GENERATION ((uint64_t)1 << 37)
_Static_assert(LIMIT_KEY_SLOTS <= 1u << (ACCESS_SLOT_QP_SHIFT - ACCESS_SLOT_KEY_SHIFT) && LIMIT_QP <= 65536,
               "they fit");

static inline uint32_t access_slot_key(uint64_t access_slot)
{
    return (uint32_t)(access_slot >> ACCESS_SLOT_KEY_SHIFT) & (LIMIT_KEY_SLOTS - 1);
}

static inline uint32_t access_slot_qp(uint64_t access_slot)
{
    return (uint32_t)(access_slot >> ACCESS_SLOT_QP_SHIFT) & (LIMIT_QP - 1);
}

/* The admission flag: 0 at first, opened by who wants to take access slots, closed by the owner of the memory when the link
 * goes. It is looked at while holding an access slot. */
enum { ADMISSION_NEW, ADMISSION_OPEN, ADMISSION_CLOSED };

/* A region of a peer's that is mapped here. Never changed. */
struct direct_view {
    uint32_t slot, generation; /* of its mapped record */
    uint64_t address, length;  /* of the owner */
    char *base;
    bool writable;
    struct mapped_view *view;
};

/* What is mapped of a peer's queues. */
#define DIRECT_QPS    1024u
#define DIRECT_QUEUES (4u << 20)

/* Views of one peer: one place for each slot number modulo this. */
#define DIRECT_VIEWS 1024u

struct direct_peer {
    struct link *link;
    _Atomic uint64_t *access_slots, *admission; /* ours, one line each */
    uint32_t alive; /* the peer's thread that header->alive names as long as it lives */
    /* Of its segment, mapped for reading: */
    const struct segment_header *header;
    const struct key_entry *keys;
    const struct mapped_record *mapped;
    const struct direct_record *directs;
    /* The first DIRECT_QPS, NULL if they could not be mapped; and the arena from there to there. */
    const struct qp_record *qps;
    const char *queues;
    uint64_t queues_from, queues_end;
    _Atomic(struct direct_view *) views[DIRECT_VIEWS];
    /* The helper thread's: */
    bool useless; /* something about it is not as it has to be; it is not asked again */
    struct mapped_file *segment;
    struct mapped_view *segment_view, *qps_view, *queues_view;
    struct mapped_file *files[SEGMENT_FILES];
    bool file_tried[SEGMENT_FILES];
};

/* --- direct.c --------------------------------------------------------------------------------------- */

/* transport_direct_ports. */
void *direct_map(struct transport_qp *transport, uint32_t rkey, uint64_t address, uint32_t length,
                 enum remote_operation operation);
bool direct_map_end(struct transport_qp *transport);
bool direct_can_map(struct transport_qp *transport, uint32_t rkey);
/* The same as direct_map(), and nothing is asked for if it fails. */
char *direct_try_map(struct qp *qp, uint32_t rkey, uint64_t address, uint32_t length,
                     enum remote_operation operation);
/* qp_ports.prefetch: what the request is going to be written to. */
void direct_prefetch(const struct qp *qp, const struct send_wqe *wqe);
/* link_properties.direct_up_to of a connected QP whose requests go to that link. */
uint32_t direct_limit(const struct qp *qp, const struct link *link);
/* link_properties.fetched_from of QPs whose requests go to that link. */
uint32_t direct_fetched_from(const struct link *link);
/* Why nothing of that process is mapped. */
enum path_why direct_why_not(const struct link *link);
/* Is it wanted, and allowed as far as we know, that this process maps memory of the other? */
bool direct_may_map(const struct link *link);
/* Something that is needed, by the key in that slot, is not mapped here, but could be: shall it be asked for?
 * Not again and again what cannot be had. peer: NULL as long as nothing is known. QP lock held. */
bool direct_should_ask(struct direct_route *direct, const struct direct_peer *peer, uint32_t slot);

/* --- fetch.c --------------------------------------------------------------------------------- */

/* Where what a received packet refers to is mapped here. */
struct direct_found {
    const struct direct_peer *peer;
    uint32_t count;
    const struct direct_view *view[PACKET_REFERENCES];
    struct packet_reference here[PACKET_REFERENCES];
};
/* false: not all of it is. QP lock held, in a rundown section that lasts until direct_was_there(). */
bool direct_find(struct qp *qp, const struct packet *packet, struct direct_found *ret_found);
/* Afterwards: was it the peer's memory all the time? If not, what was copied is void. */
bool direct_was_there(const struct direct_found *found);

/* --- deposit.c ------------------------------------------------------------------------------- */

/* transport_direct_ports. */
bool direct_peek_remote_receive(struct transport_qp *transport, uint32_t number, uint32_t length, bool alone);
bool direct_deposit(struct transport_qp *transport, uint32_t offset, const struct iovec *from, unsigned count,
                    uint32_t *ret_mark);
/* What the packet brings is in the receive already that is being filled. QP lock held. */
bool direct_was_deposited(const struct qp *qp, const struct packet *packet);
/* link_properties.deposits */
bool direct_deposits(const struct qp *qp, const struct link *link);

/* --- peer.c ---------------------------------------------------------------------------------- */

/* The helper thread shall see to it that this QP reaches memory by that key, and then runs the QP
 * (map_later). False: it has too much to do. QP lock held. */
bool direct_ask(const struct qp *qp, uint32_t rkey);
/* What packets from that link name by the key in the slot shall be mapped. QP lock held. */
void direct_ask_to_fetch(struct qp *qp, const struct direct_peer *peer, const struct link *link,
                         uint32_t slot);
/* NULL: not met yet, or useless. In a rundown section. */
const struct direct_peer *direct_peer_of(struct link *link);
/* Does what was asked. Helper thread, without locks. */
void direct_run(void);
/* No QP uses the link any more. Helper thread. */
void direct_link_down(struct link *link);
void direct_after_fork_in_child(void);

/* --- owner.c --------------------------------------------------------------------------------- */

/* object_ports.settle, forget_orphans, evict_soon */
bool direct_settle(enum object_kind kind, uint32_t slot, bool evict);
void direct_forget_orphans(void);
void direct_evict_soon(void);
/* A link has gone: nobody who was given up may be left. Helper thread. */
void direct_link_gone(void);
/* local_ops.link_leaving: the peer may be alive, and go on for a while. */
void direct_link_leaving(struct link *link);

#endif
