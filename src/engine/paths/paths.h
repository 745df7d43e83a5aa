/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The ways that packets of QPs take: lanes to processes of this host, the network, and the real interface. */
#ifndef ENGINE_PATHS_PATHS_H
#define ENGINE_PATHS_PATHS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/timer.h"
#include "cm/cm.h"
#include "local/local.h"
#include "object/qp/qp.h"

struct lane_state;

/* --- route.c: the transport ports that are the engine's ------------------------------------------------- */

extern const struct qp_ports engine_qp_ports;

/* To a lane that is not the QP's own: 0, -EAGAIN (the QP is in the list of those that wait for room), or
 * -errno. QP lock held. */
int route_send_on(struct qp *qp, struct lane *lane, const struct packet *packet, const struct iovec *gather,
                  unsigned gather_count);
/* local_resolve(); NULL: the QP waits for the answer (route_resolved()). QP lock held. */
struct link *route_resolve_or_wait(struct qp *qp, uint32_t qpn);
void route_set_reply_lane(struct qp *qp, struct lane *lane);
/* The QP's requests may be executed in memory of the peer's (direct.h). QP lock held. */
void route_is_direct(struct qp *qp);
/* local_ops. */
void route_link_down(struct link *link);

/* --- network.c: over the network --------------------------------------------------------------------------- */

/* Over the network, wherever it goes? (SOFTHCA_PATH=wire; constant.) */
bool network_is_forced(void);
void network_start(void);
/* transport_ports.send and qp_ports for what goes that way. QP lock held. */
int network_send(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                 unsigned gather_count, const struct path_address *to);
/* MADs, to QP1 of another host. */
void network_send_mad(const struct cm_path *to, const uint8_t mad[MAD_LENGTH]);
void network_flush_mads(void);
/* Opens the port, for which it takes a block of ours. Waits a moment, without locks, outside every rundown
 * section, not in the helper thread. */
void network_open_for_mads(uint32_t block);
/* Small packets that stay for others wait no longer. Without the lock of a lane. */
void network_flush_batched(void);
/* The lanes (bits) where they wait, which the caller flushes. */
uint32_t network_take_batched(void);
/* Nor does an acknowledgement that gives way to an answer of the program. Outside every rundown section. */
void network_flush_delayed(void);
/* qp_ports.prepare: opens the port where packets of the network may come for the QP. */
void network_prepare(struct qp *qp, const struct ibv_qp_attr *attributes, int mask);
/* Does multicast of the QP go over the network? With network_is_forced(), only over the network then. */
bool network_has_groups(const struct qp *qp);
/* qp_ports.attached, qp_ports.detached. */
void network_attached(struct qp *qp, const uint8_t gid[16]);
void network_detached(struct qp *qp, const uint8_t gid[16]);
void network_after_fork_in_child(void);

/* --- network_ack.c: delayed acknowledgements (ack_delay.h) ---------------------------------------------- */

/* At the end of a batch for which ack_delay_may_begin(): false if the QP is to acknowledge now. QP lock and
 * udp receive lock held. */
bool network_ack_delay(struct qp *qp);
/* A request of a single packet was put into the QP's lane, which is flushed next. A delayed acknowledgement
 * follows it in the same datagram (a GSO segment may be smaller than the others only at the end), and both
 * leave before the rest of the post is done: the peer waits for them. QP lock held. */
void network_ack_request(struct qp *qp);
/* The program has posted on the QP. Returns a lane to be flushed, or NULL. Without the QP's lock, inside a
 * rundown section. */
struct udp_lane *network_ack_posted(struct qp *qp);
/* Is a delay under way? A hint, for the helper thread. */
bool network_ack_is_pending(void);
/* Helper thread, at each tick: is the delay overdue? Then network_flush_delayed(). */
bool network_ack_tick(void);
/* For ack_delay_ends(): the QP whose delay is under way, to be locked for network_ack_end(), or NULL. udp
 * receive lock held. */
struct qp *network_ack_take(void);
/* Sends the acknowledgement that the QP owes. QP lock held. */
void network_ack_end(struct qp *qp);
/* Likewise, when the program exits. QP lock held. */
void network_ack_exit(struct qp *qp);
/* The QP loses its path. QP lock held. */
void network_ack_reset(struct qp *qp);
/* At the start, and in a forked child: no delay is under way. */
void network_ack_start(void);

/* --- notices.c: what a peer has to hear though nobody is left to say it ------------------------------------
 */

/* To the sender of a request that was dropped: its ACK timer runs only if it hears of it. */
void notice_send_drop(struct lane *lane, const struct packet *dropped);
/* transport_ports.send_notice */
void notice_send(struct transport_qp *transport, const struct packet *packet);
/* The QP begins a new life: what it said in the former one and is still here is not to be taken for an answer
 * of this one. QP lock held. */
void notice_mark_stale(const struct qp *qp, struct lane *lane);
/* There is room. */
void notice_flush(struct lane *lane, struct lane_state *state);

/* --- exit_flush.c ------------------------------------------------------------------------------------------ */

/* The program ends. Any locks may be held. */
void exit_flush_process(void);
/* qp_ports.flush_before_end */
void exit_flush_qp(struct qp *qp);
/* Its sender has run, and somebody is in there. QP lock held. */
void exit_flush_sender_ran(void);
/* It is known who has that block, or that nobody has it. */
void exit_flush_resolved(uint32_t block);
void exit_flush_after_fork_in_child(void);

/* --- congestion.c -------------------------------------------------------------------------------- */

struct udp_arrival;
/* Tells the sender of a packet for this QP that it was marked. QP lock held. */
void congestion_notify(struct qp *qp, const struct packet *packet, const struct udp_arrival *arrival);

/* --- multicast.c ---------------------------------------------------------------------------------------- */

/* Is this process linked to all others, so that a multicast packet reaches every member? If not, a QP waits
 * for the next route_resolved() or route_settled() and asks again. */
bool multicast_ready(void);
/* Links this process to all others; waits for those that do not answer no longer than that. */
void multicast_announce(ns_t limit);
/* An answer of the rendezvous came. */
void multicast_resolved(void);
void multicast_after_fork_in_child(void);

/* --- raw.c: layer 2 ------------------------------------------------------------------------------------- */

/* Longest frame of the QP's device, without FCS. */
uint32_t raw_frame_limit(const struct qp *qp);
/* transport_ports.send of a frame. QP lock held. 0 or -EAGAIN. */
int raw_transmit(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                 unsigned gather_count);
/* It has waited for room for long: QP lock held, called before the QP goes on. */
void raw_timer(struct qp *qp);
/* The QP has no frame under way any more. QP lock held. */
void raw_forget(struct qp *qp);
/* A frame from a process of this host. */
void raw_arrived(struct lane *lane, const struct packet *packet);
/* qp_ports.prepare */
void raw_prepare(struct qp *qp, const struct ibv_qp_attr *attributes, int mask);
/* qp_ports.steers */
void raw_steers(struct qp *qp);
void raw_after_fork_in_child(void);

#endif
