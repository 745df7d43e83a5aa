/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packets of captured QPs -> the capture ring of the tool that is attached (published/capture_ring.h,
 * docs/design/capture.md).
 *
 * A captured QP sends and receives packets on every path: it executes nothing in the peer's memory, refers to no
 * payload of its own, and its peer executes nothing here. So each packet of it passes one of these places:
 *
 *   sent       engine_send() in paths/route.c; notice_send() for the last acknowledgement of a QP that ends
 *   arrived    arrival_receive() in core/arrivals.c
 *   MADs       send_mad() and gsi_receive() in cm/gsi.c
 *   groups     where a datagram to a group arrives, before it is offered to the members
 *   frames     sent as all; arrived in capture_steer(), if a rule takes them
 *   CNPs       paths/congestion.c; arrived on_congestion() in paths/network.c, by_packets_is_word()
 *
 * Nobody waits here: without room in the ring the packet is counted as dropped. */
#ifndef ENGINE_CORE_CAPTURE_H
#define ENGINE_CORE_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "cm/cm.h"
#include "object/qp/qp.h"
#include "object/steering/flow.h"
#include "published/capture_ring.h"
#include "wire/packet.h"

struct capture;

/* A record that is reserved and not written yet. */
struct capture_slot {
    const struct capture *capture;
    struct capture_record *record; /* NULL: the ring has no room */
    uint64_t end;                  /* position behind it */
    uint32_t size;
    uint64_t time;
};

/* --- attaching ------------------------------------------------------------------------------------------- */

/* file: of the tool. 1: it lasts until capture_detach(); -errno with the reason in why. Without locks, outside of
 * rundown sections; one thread at a time. */
int capture_attach(int file, char *why, size_t size);
/* Captured QPs return to what they did before. Context as capture_attach(). */
void capture_detach(void);
/* SOFTHCA_CAPTURE names the socket of a tool that captures from the beginning: attaches to it. */
void capture_start(void);
void capture_after_fork_in_child(void);
/* Are the QP's packets to be recorded? QP lock held. */
bool capture_wants(const struct qp *qp);

/* --- packets of captured QPs: QP lock held, in a rundown section ----------------------------------------- */

/* Before the packet is handed to its path, and afterwards. to: of a UD packet, NULL for connected QPs. */
void capture_begin(struct qp *qp, uint32_t payload_length, struct capture_slot *ret_slot);
void capture_sent(struct qp *qp, struct capture_slot *slot, const struct packet *packet,
                  const struct iovec *gather, unsigned gather_count, const struct path_address *to);
/* The packet was not sent. */
void capture_cancel(struct capture_slot *slot);
/* What was sent without payload, and later than now. */
void capture_sent_notice(struct qp *qp, const struct packet *packet);
/* A packet has arrived, and is about to be received. */
void capture_arriving(struct qp *qp, const struct packet *packet);
/* Its payload, which it referred to, was fetched. */
void capture_fetched(struct qp *qp, const struct packet *packet, const struct iovec *payload, unsigned count);
/* It has been received, or refused. */
void capture_arrived(struct qp *qp, const struct packet *packet);
/* A congestion notification packet. path: its own addresses. */
void capture_cnp_sent(struct qp *qp, const struct packet_grh *path, uint32_t dest_qpn);
void capture_cnp_arrived(struct qp *qp, const struct packet_grh *path);
/* Addresses of what a connected QP sends, or receives. */
void capture_path_of(const struct qp *qp, bool arrived, struct packet_grh *ret_path);

/* --- packets without a QP: in a rundown section ---------------------------------------------------------- */

extern _Atomic(struct capture *) capture_attached;
static inline bool capture_is_attached(void)
{
    return unlikely(atomic_load_explicit(&capture_attached, memory_order_acquire) != NULL);
}

/* A datagram to a group. from_host: its sender is on this host. */
void capture_group_arrived(const struct packet *packet, bool from_host);
/* flows_deliver(); what a rule takes is recorded. src_qpn: the sender; 0: the interface. */
bool capture_steer(const struct steered *frame, uint32_t src_qpn);
void capture_mad_sent(const struct cm_path *to, const uint8_t *mad);
void capture_mad_arrived(const struct packet *packet, const uint8_t *mad, bool from_host);

#endif
