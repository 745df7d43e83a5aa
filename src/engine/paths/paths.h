/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The paths of a QP's packets: lanes to processes of this host, the network, and packet sockets. */
#ifndef ENGINE_PATHS_PATHS_H
#define ENGINE_PATHS_PATHS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/timer.h"
#include "cm/cm.h"
#include "local/local.h"
#include "object/device/device.h"
#include "object/qp/qp.h"

struct lane_state;
struct udp_path;

/* --- datagrams.c ------------------------------------------------------------------------------------------- */

/* As transport_ports.send. QP lock held. */
int datagram_transmit(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                      unsigned gather_count, const struct path_address *to);

/* To all processes of this host; a lane without space loses its copy. In a rundown section. */
void datagram_send_to_group(const struct packet *packet, const struct iovec *gather, unsigned gather_count);

/* --- route.c: the engine's transport ports --------------------------------------------------------------- */

extern const struct qp_ports engine_qp_ports;

/* 0: the lane has to be rung; -EAGAIN: the QP is in the lane's list of blocked QPs; -errno. QP lock held. */
int route_send_on(struct qp *qp, struct lane *lane, const struct packet *packet, const struct iovec *gather,
                  unsigned gather_count);
/* local_resolve(). NULL: the QP waits for route_resolved(). QP lock held. */
struct link *route_resolve_or_wait(struct qp *qp, uint32_t qpn);
/* Responses take the lane of the last request. QP lock held. */
void route_set_reply_lane(struct qp *qp, struct lane *lane);
/* What the path of the QP may be used for has changed (qp.by_packets). QP lock held, in a rundown section. */
void route_path_changed(struct qp *qp);
/* The lane has to be rung once the QP's lock is released. QP lock held. */
void route_kick(struct qp *qp, struct lane *lane);
/* Requests of the QP are executed in the peer's mapped memory (engine/direct/direct.h). QP lock held. */
void route_note_direct(struct qp *qp);
/* The kernel refuses to copy from and to the peer: WRITEs and READs go as packets from now on. QP lock held. */
void route_note_refused(struct qp *qp);
/* Where packets of a connected QP go; NULL: not known, or gone. QP lock held. */
void route_set_lane(struct qp *qp, struct lane *lane);
/* Where peers find the CQ (base/notify.h); channel NOTIFY_CHANNELS: they cannot ring its channel. */
struct notify_cq route_notify_cq(const struct cq *cq);
struct lane *route_connection_lane(struct link *link, uint32_t qpn, uint32_t dest_qpn);
/* For explanations: where the peer of a connected QP is. QP lock held. */
void route_publish_path(struct qp *qp, enum path_kind kind, const struct link *link);

/* --- route_connect.c: a QP finds its peer, and leaves it --------------------------------------------------- */

/* qp_ports. */
void route_take_arrived(uint32_t qpn, uint32_t dest_qpn, bool by_lane, bool by_network);
void route_connect(struct qp *qp);
void route_disconnect(struct qp *qp);
void route_forget(struct qp *qp);
/* The QP's port is down, and up again (port_down.c): the lanes do not lead to the peer. QP lock held. */
void route_cut_off(struct qp *qp);
void route_bring_back(struct qp *qp);
/* local_ops. */
void route_link_down(struct link *link);

/* --- plain_send.c ----------------------------------------------------------------------------------------- */

/* qp_ports.post_plain, run_plain */
struct ibv_send_wr *plain_post(struct qp *qp, struct ibv_send_wr *wr);
bool plain_run(struct qp *qp, uint32_t end);

/* --- plain_network.c ------------------------------------------------------------------------------------- */

extern const struct transport_plain_ports network_plain_ports;

/* --- admission.c: who may speak to a QP ------------------------------------------------------------------- */

/* A link to the process that the connected QP speaks to; NULL: it is gone or, with route.peer_process 0, not known yet,
 * and ops->resolved() follows. QP lock held, in a rundown section. */
struct link *admission_find_peer(struct qp *qp, uint32_t dest_qpn);
/* May packets of this lane be for the QP, which is not a UD QP? If so, route.arrival_lane is the lane. QP lock and the
 * lane's receive lock held. */
bool admission_of_lane(struct qp *qp, struct lane *lane);
/* Datagrams: are the packet's source QP a number of the process behind the lane, and its source GID an address of this
 * host? The lane's receive lock held. */
bool admission_of_source(struct lane *lane, const struct packet *packet);

/* --- network.c: the network path ------------------------------------------------------------------------- */

/* SOFTHCA_PATH=wire: packets to this host take the network path, too. Constant after network_start(). */
bool network_is_forced(void);
void network_start(void);
/* transport_ports.send of the network path. QP lock held. */
int network_send(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                 unsigned gather_count, const struct path_address *to);
/* The path for udp_send() from the QP to `to`. False: the device has no address from which that can be reached. */
bool network_fill_path(const struct qp *qp, const struct path_address *to, struct udp_path *path);
/* So many requests of one packet were put into the QP's lane, and are sent as far as the transport knows: they wait
 * there for others, or are flushed when the QP's lock is released. QP lock held. */
void network_note_requests(struct qp *qp, psn_t first, uint32_t count);
/* MADs to QP1 of another host. */
void network_send_mad(const struct cm_path *to, const uint8_t mad[MAD_LENGTH]);
void network_flush_mads(void);
/* Opens the UDP port, on behalf of a block of QP numbers that this process owns. Waits up to a second: no lock
 * held, outside every rundown section, not in the helper thread. */
void network_open_for_mads(uint32_t block);
/* Lanes in which packets are batched (tx_batch.h), by bit of udp_lane_number(). */
extern _Atomic uint32_t network_batched_lanes;
/* The lanes (bits) in which packets are batched, for the caller to flush. */
uint32_t network_take_batched(void);
void network_flush_lanes(uint32_t lanes);
/* Flushes all batched packets of the process. No lane lock held. */
static inline void network_flush_batched(void)
{
    if (unlikely(atomic_load_explicit(&network_batched_lanes, memory_order_relaxed)))
        network_flush_lanes(network_take_batched());
}

/* Also sends a delayed acknowledgement (ack_delay.h). Outside every rundown section. */
void network_flush_delayed(void);
/* qp_ports.prepare: opens the UDP port if the QP may receive from the network. */
void network_prepare(struct qp *qp, const struct ibv_qp_attr *attributes, int mask);
/* Does multicast of the QP take the network path? If network_is_forced(), no other path then. */
bool network_has_groups(const struct qp *qp);
/* qp_ports.attached, qp_ports.detached. */
void network_attached(struct qp *qp, const uint8_t gid[16]);
void network_detached(struct qp *qp, const uint8_t gid[16]);
void network_after_fork_in_child(void);

/* --- network_ack.c: delayed acknowledgements (ack_delay.h) ---------------------------------------------- */

/* At the end of a batch for which ack_delay_may_begin(): false if the QP is to acknowledge now. QP lock and
 * udp receive lock held. */
bool network_ack_delay(struct qp *qp);
/* A request of a single packet, which `next` follows, was put into the QP's lane, which is flushed next. A delayed
 * acknowledgement follows it in the same datagram (a GSO segment may be smaller than the others only at the end). If
 * nothing else is posted, both leave before the rest of the post is done: the peer waits for them. QP lock held. */
void network_ack_request(struct qp *qp, uint32_t next);
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

/* --- notices.c: drop notices and last responses ---------------------------------------------------------- */

/* Drop notice: the requester of a dropped request starts its ACK timer. */
void notice_send_drop(struct lane *lane, const struct packet *dropped);
/* transport_ports.send_notice */
void notice_send(struct transport_qp *transport, const struct packet *packet);
/* Says something about a packet that the user makes get lost. QP lock held. */
void notice_send_word(struct qp *qp, struct lane *lane, psn_t psn, bool read_response, enum lossy_word word);
/* The QP is connected anew: queued responses of its earlier connection must not be taken for responses of the
 * new one. QP lock held. */
void notice_mark_stale(const struct qp *qp, struct lane *lane);
/* The lane has space. */
void notice_flush(struct lane *lane, struct lane_state *state);
/* The link is down: drops the notices that wait. */
void notices_lane_down(struct lane *lane, struct lane_state *state);
void notices_after_fork_in_child(void);

/* --- exit_flush.c: before a QP ends, and at exit ---------------------------------------------------------- */

/* The process exits. The calling thread may hold any locks. */
void exit_flush_process(void);
/* qp_ports.flush_before_end */
void exit_flush_qp(struct qp *qp);
/* The sender of a QP with end_waiters has run. QP lock held. */
void exit_flush_sender_ran(void);
/* The owner of the block of QP numbers is known, or that there is none. */
void exit_flush_resolved(uint32_t block);
void exit_flush_after_fork_in_child(void);

/* --- congestion.c: congestion notification packets ------------------------------------------------------- */

struct udp_arrival;
/* A packet for the QP was marked by a router: sends a CNP to its sender. QP lock held. */
void congestion_notify(struct qp *qp, const struct packet *packet, const struct udp_arrival *arrival);
/* Is a packet of that size answered by a CNP? */
bool congestion_is_notified(const struct packet *packet);
/* The peer, on this host, marks a packet, as a user asks for. QP lock held. */
void congestion_notify_on_host(struct qp *qp, bool read_response);

/* --- multicast.c: links to all processes ----------------------------------------------------------------- */

/* Is this process linked to all others, so that a multicast packet reaches every member? If not, the QP waits
 * for the next route_resolved() or route_settled() and checks again. */
bool multicast_ready(void);
/* Links this process to all others. Processes that do not answer are waited for up to `limit`. */
void multicast_announce(ns_t limit);
/* A link was made, or an owner was found to be missing. */
void multicast_resolved(void);
void multicast_after_fork_in_child(void);

/* --- raw.c: frames of RAW_PACKET QPs --------------------------------------------------------------------- */

/* Longest frame of the QP's device, without FCS. */
uint32_t raw_frame_limit(const struct qp *qp);
/* transport_ports.send of a frame. QP lock held. 0 or -EAGAIN. */
int raw_transmit(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                 unsigned gather_count);
/* The QP's frame has waited too long for a process: the frame goes on without it. QP lock held, before
 * route_run(). */
void raw_timer(struct qp *qp);
/* A frame that was held: a lane without space loses it. In a rundown section. */
void raw_send_late(const struct packet *packet, const struct iovec *frame);
/* The QP has no frame in progress any more. QP lock held. */
void raw_forget(struct qp *qp);
/* A frame from a process of this host has arrived. */
void raw_arrived(struct lane *lane, const struct packet *packet);
/* qp_ports.prepare */
void raw_prepare(struct qp *qp, const struct ibv_qp_attr *attributes, int mask);
/* qp_ports.steers */
void raw_steers(struct qp *qp);
void raw_after_fork_in_child(void);

/* --- port_down.c: ports that an injected fault takes down ----------------------------------------------------- */

extern _Atomic uint32_t ports_down; /* how many */

/* Of datagrams, packets of the network, and frames: connected QPs on lanes need not ask (PEER_CUT_OFF). */
static inline bool port_is_down(const struct qp *qp)
{
    return unlikely(atomic_load_explicit(&ports_down, memory_order_relaxed) != 0) &&
           device_port_is_down(qp->context->device);
}

/* Of the device with that address. */
bool port_of_gid_is_down(const uint8_t gid[16]);
/* The QP is about to be connected: without a peer, if its port is down. QP lock held. */
void port_connect(struct qp *qp);
/* Helper thread, no lock held: the time for which a port was to be down has passed. */
void ports_due(void);
void ports_after_fork_in_child(void);

/* --- by_packets.c: QPs whose requests go as packets, one and all ------------------------------------------------ */

/* Sets qp.by_packets, and whether the link may lose packets. In a rundown section, QP lock held, before the other
 * properties of the path are set. */
void by_packets_choose(struct qp *qp);
/* A capture or faults were loaded or removed: all QPs. No lock held, outside of rundown sections. */
void by_packets_choose_all(void);
/* A packet has arrived: notes whether its sender may lose packets. True: it was only a word, and no packet. QP lock
 * held. */
bool by_packets_is_word(struct qp *qp, const struct packet *packet);
/* It has been received: the QP may be able to return. QP lock held. */
void by_packets_received(struct qp *qp);

/* --- packet_faults.c ------------------------------------------------------------------------------------- */

/* What becomes of a packet by the faults that the user asks for. */
struct packet_fate {
    bool lost, twice;
    bool broken; /* its ICRC */
    bool marked; /* with ECN's "congestion experienced" (RFC 3168) */
    ns_t wait;   /* leaves after this time; 0: at once */
    uint32_t
        later; /* leaves when so many later packets of the QP have left, if that comes first; 0: by time */
};
/* Do faults of packets name the QP, and does it send to this host? QP lock held. */
bool packet_faults_name(const struct qp *qp);
/* Decides, and notes for captures what becomes of the packet. QP lock held; a plan with faults of packets is loaded. */
struct packet_fate packet_fault(struct qp *qp, const struct packet *packet);
/* The path had no space for the packet (-EAGAIN): when it is sent again, it has the same fate. QP lock held. */
void packet_fault_keep(struct qp *qp, const struct packet *packet, const struct packet_fate *fate);
/* As route_send_on(), as if a network had the packet. QP lock held. */
int packet_faults_send(struct qp *qp, struct lane *lane, const struct packet *packet,
                       const struct iovec *gather, unsigned gather_count);
/* What becomes of the packet where each process of this host gets it. False: it does not leave now; else it leaves, and
 * once more if fate->twice. QP lock held. */
bool packet_faults_spread(struct qp *qp, const struct packet *packet, const struct iovec *gather,
                          unsigned gather_count, struct packet_fate *fate);
/* The same fate again, of the other part of a datagram to a group that goes to the network, too. QP lock held. */
struct packet_fate packet_fault_of_last(const struct qp *qp);
/* The QP is not connected any more. QP lock held. */
void packet_faults_forget(struct qp *qp);

/* --- held_packets.c -------------------------------------------------------------------------------------- */

/* Keeps a copy of a packet until its time, or until fate->later packets of the QP have left. Without room the packet
 * is lost. By the path to the network, or if that is NULL by the lane, or if that is NULL to all processes of this
 * host. QP lock held. */
void held_packets_add(struct qp *qp, struct lane *lane, const struct udp_path *path,
                      const struct packet *packet, const struct iovec *gather, unsigned gather_count,
                      const struct packet_fate *fate);
/* A packet of the QP has left: those that wait for it follow, in the same lane. QP lock held. */
void held_packets_passed(struct qp *qp);
/* Gives up what is held of the QP. QP lock held. */
void held_packets_forget(const struct qp *qp);
/* Sends those whose time has come. Helper thread, no lock held. */
void held_packets_due(void);
void held_packets_after_fork_in_child(void);

#endif
