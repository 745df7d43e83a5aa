/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What transport asks of the rooms above: a core table, and one table per optional feature. A feature that the
 * owner of the QPs does not offer has no table (NULL), and transport does not use the feature:
 *
 *   table         used when                                            if it is absent
 *   reference     link.reference_mtu is not 0                          payload travels in packets
 *   direct        link.direct_up_to, .deposits, .fetched_from          every request travels as packets
 *   tag_matching  transport_qp.tag_matching                            the SRQ has no tags
 *   xrc           the QP is of type XRC_RECV                           the owner creates no such QP
 *   counter       transport_qp.counts_remote                           nobody counts the peer's requests
 *   plain         RC, neither link.reliable nor .local                 each request goes by send()
 *
 * The owner sets a link property or a QP attribute of the second column only if the table is there, so the data path
 * does not check for NULL, except for `plain`.
 *
 * Every port is called with the QP's lock held (exceptions are noted) and must not call back into transport for the
 * same QP, except that send() of a request and plain->end() may call responder_run() for an acknowledgement that is all
 * the QP owes. */
#ifndef TRANSPORT_PORTS_H
#define TRANSPORT_PORTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/types.h"
#include "base/verbs.h"
#include "published/drops.h"
#include "rules/keys.h"
#include "rules/verdict.h"
#include "transport/tags.h"
#include "transport/wqe.h"
#include "wire/packet.h"

struct transport_qp;

struct receive_completion {
    enum verdict verdict;
    enum ibv_wc_opcode opcode;
    uint32_t byte_len;
    uint32_t wc_flags;    /* enum ibv_wc_flags */
    uint32_t imm_or_rkey; /* imm_data in network order, or the invalidated rkey */
    uint32_t src_qpn;
    uint32_t flow_tag;
    uint16_t vlan; /* TCI of the stripped VLAN tag; 0: none */
    uint8_t service_level;
    bool solicited;
    uint32_t app_ctx; /* tag matching: of the message that matched a tagged buffer */
    uint64_t tag;
};

/* Bytes. A longer request to a peer of this host takes less time by one copy of the kernel than by two through a ring
 * that is polled. */
#define DIRECT_SMALL 4096u

/* Memory of the peer that this process executes requests in, without packets (transport/direct.c). */
struct transport_direct_ports {
    /* Address at which [address, address + length) of the peer's memory is mapped, after all checks of the rkey. NULL:
     * not available, and the request travels as packets, so that the peer's responder checks it. From here to map_end()
     * the peer waits before it withdraws the memory. */
    void *(*map)(struct transport_qp *qp, uint32_t rkey, uint64_t address, uint32_t length,
                 enum remote_operation operation);
    /* false: the peer has stopped waiting. The accesses since map() are void: their result must not be used. */
    bool (*map_end)(struct transport_qp *qp);
    /* Copies between `here` (checked addresses of this process) and [address, address + length) of the peer's memory
     * where map() has returned NULL: WRITE or READ, after the same checks. true: done. false: bytes of the range may
     * have been copied or not, and the request travels as packets. */
    bool (*copy)(struct transport_qp *qp, uint32_t rkey, uint64_t address, uint32_t length,
                 enum remote_operation operation, const struct iovec *here, unsigned count);
    /* Has it been found that a request like this takes less time as a packet, though copy() would succeed? Asked first,
     * so that such a request pays for nothing else here. qp->unasked: so many requests that follow, of up to
     * DIRECT_SMALL bytes, are not asked for while others are under way, and each takes one from it. */
    bool (*goes_by_packets)(struct transport_qp *qp, uint32_t rkey, uint64_t address, uint32_t length);
    /* Is map() or copy() likely to succeed for a request of that length? Then the request is worth waiting for. If not,
     * the owner starts to make it so where it can. */
    bool (*can_execute)(struct transport_qp *qp, uint32_t rkey, uint64_t address, uint32_t length);
    /* Deposit (link.deposits): is it known which receive of the peer the SEND that is begun now will take, and may this
     * process write there? number: how many requests that take a receive were begun before it since the QP was
     * connected. alone: all requests before it are complete. */
    bool (*peek_remote_receive)(struct transport_qp *qp, uint32_t number, uint32_t length, bool alone);
    /* Writes part of that SEND's payload into that receive, before the packet that refers to it is sent. true: written,
     * and *ret_deposit_bits is to be set in the slot of the packet's first reference. false: the peer fetches it. */
    bool (*deposit)(struct transport_qp *qp, uint32_t offset, const struct iovec *from, unsigned count,
                    uint32_t *ret_deposit_bits);
    /* Can peers read the region with the key in this slot without a system call? */
    bool (*is_mapped)(uint32_t slot);
};

/* Payload by reference: a packet names memory of its sender (PACKET_BY_REFERENCE), and the receiver fetches it. */
struct transport_reference_ports {
    /* Fetches what the packet that is being received refers to; the lengths agree. 0; -ESRCH: the peer process is gone;
     * -ESTALE: the peer has revoked the reference (revoke()) before the fetch ended; another -errno: the peer's memory
     * cannot be read. Nothing is written to the peer's memory. */
    int (*pull)(struct transport_qp *qp, const struct packet *packet, const struct iovec *to,
                unsigned to_count);
    /* Revokes all references that this QP has sent, and those of every QP that sends on the same lanes: a
     * fetch that ends after this has returned fails with -ESTALE. */
    void (*revoke)(struct transport_qp *qp);
    /* The first packet by reference since the QP exposed nothing is on its way (transport_revoke_key()). */
    void (*exposes)(struct transport_qp *qp);
};

/* What a message to a tag matching SRQ takes. */
struct tag_match {
    struct tag_entry *entry;        /* until release(); NULL: the message is unexpected and takes */
    const struct recv_wqe *receive; /* this, as from take_receive() */
    bool sync_due;                  /* software lags behind by many unexpected messages (TM_SYNC_REQ) */
};

struct transport_tag_ports {
    /* The tagged buffer that the tag matches; else a receive, and the message is counted as unexpected, in one step.
     * -ENOENT: neither, and nothing is counted. */
    int (*match)(struct transport_qp *qp, uint64_t tag, struct tag_match *ret_match);
    void (*release)(struct transport_qp *qp, struct tag_entry *entry);
    /* A message that was counted as unexpected will not be reported to the program. */
    void (*discount)(struct transport_qp *qp);
    /* As complete_receive(), for a tagged buffer. */
    void (*complete_tagged)(struct transport_qp *qp, uint64_t wr_id,
                            const struct receive_completion *completion);
};

struct transport_xrc_ports {
    /* Makes the SRQ that a packet names the one that take_receive() and receive_pd use. false: the QP's XRC domain has
     * no such SRQ, or a message for another SRQ is being received. */
    bool (*select_srq)(struct transport_qp *qp, uint32_t srqn);
    /* Forwards a request to the process that owns the SRQ it names (transport/relay.c). may_move: that may be another
     * process than the one that executed the request before. 0; -ENOENT: the SRQ is not another process's. -EAGAIN: not
     * now; relay_again() follows if may_move. */
    int (*hand_over)(struct transport_qp *qp, const struct packet *packet, bool may_move);
};

struct transport_counter_ports {
    /* An RDMA WRITE (or READ) of the peer is executed: for the first time, and to its end. */
    void (*executed)(struct transport_qp *qp, bool read, uint32_t bytes);
};

/* Requests of one packet each, one behind the other (sender_plain.c). From begin() to end() no port but these and now()
 * is called. */
struct transport_plain_ports {
    /* Holds the link for so many packets; 0: for none, and all requests go by send(). sge: of the first request, NULL
     * if its payload is inline. */
    uint32_t (*begin)(struct transport_qp *qp, const struct wqe_sge *sge);
    /* As send(). The payload is that of the SGE, to which packet->payload is set then, or with NULL packet->payload.
     * false: the packet was not taken, and send() decides what becomes of it. */
    bool (*put)(struct transport_qp *qp, struct packet *packet, const struct wqe_sge *sge);
    /* So many were sent, with PSNs from `first` on, and the sender is done with them. */
    void (*end)(struct transport_qp *qp, psn_t first, uint32_t count);
};

struct transport_ports {
    /* Hands a packet to the link; the payload is gathered from `gather` (checked addresses of this process) unless the
     * packet is by reference. 0: on its way. -EAGAIN: no space; the owner calls sender_run() and responder_run() when
     * there is. -EHOSTUNREACH: no such destination, equal to a lost packet. `to` is the destination of a UD packet,
     * NULL for connected QPs. */
    int (*send)(struct transport_qp *qp, const struct packet *packet, const struct iovec *gather,
                unsigned gather_count, const struct path_address *to);
    /* The same on a link that loses nothing, for a packet without payload that is never repeated: if the link has no
     * space, the owner stores the packet and sends it later, even if the QP does not exist any more by then. */
    void (*send_notice)(struct transport_qp *qp, const struct packet *packet);
    /* A send work request of the program has got its verdict. counter: its free-running number among the
     * program's requests (its slot becomes free when this or a later completion is polled). Called in posting
     * order, also for unsignaled requests that succeed (the owner makes no CQE for those). */
    void (*complete_send)(struct transport_qp *qp, const struct send_wqe *wqe, uint32_t counter,
                          enum verdict verdict, uint32_t byte_len);
    /* The same for `count` requests from that counter on, all of which have succeeded. */
    void (*complete_sends)(struct transport_qp *qp, uint32_t counter, uint32_t count);
    /* Takes the next receive (own queue or SRQ): 0, or -ENOENT. Valid until complete_receive(). */
    int (*take_receive)(struct transport_qp *qp, const struct recv_wqe **ret_wqe);
    /* Completes the receive that was taken. */
    void (*complete_receive)(struct transport_qp *qp, const struct receive_completion *completion);
    void (*raise_event)(struct transport_qp *qp, enum ibv_event_type event);
    /* A datagram, or a frame, was dropped: notes the time of the record, which is filled in (published/drops.h). NULL:
     * nobody wants to know. */
    void (*dropped)(struct transport_qp *qp, enum drop_reason reason);
    /* The QP cannot go on after a fatal completion or a responder error: the owner moves it to ERR (UD and the send
     * side of UC: SQE), which calls sender_flush(), and flushes the receives. */
    void (*sender_failed)(struct transport_qp *qp);
    void (*responder_failed)(struct transport_qp *qp);
    /* SQD: the last send that was begun is complete. The owner raises SQ_DRAINED if the program asked for it. */
    void (*drained)(struct transport_qp *qp);
    /* The current time. Used on links that may lose packets only, about twice per round trip. */
    ns_t (*now)(struct transport_qp *qp);
    /* One timer per QP: sender_timer() is called after `delay`; NS_NEVER cancels. */
    void (*set_timer)(struct transport_qp *qp, ns_t delay);
    /* Unguessable bits: for the key of a type 1 MW, and the back-off of retries. */
    uint32_t (*random)(struct transport_qp *qp);
    /* UD: a datagram has to wait for the first time. Allocates transport_qp.copies. false: no memory. */
    bool (*alloc_copies)(struct transport_qp *qp);
    /* Is this memory of an on-demand region resident, and writable if `write`? Faults missing pages in. For
     * raw_place() the lock of the receive's owner is held. */
    bool (*fault_in)(uint64_t address, uint32_t length, bool write);
    /* The lock of the key table, which keys_bind_mw() and keys_invalidate() change. */
    void (*lock_keys)(struct transport_qp *qp);
    void (*unlock_keys)(struct transport_qp *qp);
    /* Optional features; NULL: absent. */
    const struct transport_reference_ports *reference;
    const struct transport_direct_ports *direct;
    const struct transport_tag_ports *tag_matching;
    const struct transport_xrc_ports *xrc;
    const struct transport_counter_ports *counter;
    const struct transport_plain_ports *plain;
};

#endif
