/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the engine's files share.
 *
 * Lock order (docs/locking.md): lane receive lock > QP lock > the leaves here: lane_state.lock, waiting_lock,
 * timers_lock. */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/timer.h"
#include "cm/cm.h"
#include "local/local.h"
#include "object/qp/qp.h"

/* --- waiting.c: QPs that wait --------------------------------------------------------------------------- */

enum route_wait { ROUTE_WAITS_FOR_NOTHING, ROUTE_WAITS_FOR_OWNER, ROUTE_WAITS_FOR_TURN };

/* QPs that a batch of packets has made owe an answer: answered at its end, once each. */
#define DUE_MAX 16u

/* What the engine keeps per lane (lane_owner_data). Allocated when first needed, freed with the link. */
struct lane_state {
    struct qp *due[DUE_MAX]; /* the lane's reader only (its receive lock) */
    unsigned due_count;
    struct lock lock;    /* guards the lists and words; the lane transmit lock is below it */
    struct list blocked; /* qp.route.blocked: waits for room in the ring */
    struct word *words;  /* notices.c: what must not get lost and found the ring full, in order */
    uint32_t word_count, word_room;
    struct list mads;     /* gsi.c: MADs that wait for room, in order */
    struct list openings; /* remote_open.c: messages, likewise */
    _Atomic bool kick;    /* something was sent from a batch: look at the doorbell at its end */
    _Atomic bool stalled; /* raw.c: its reader did not take frames for long, and is not waited for */
    _Atomic bool in_vain; /* exit_flush.c: nor did it make room for QPs that were about to end */
};

struct lane_state *lane_state(struct lane *lane);

/* Into the list of those who wait for it, out of the other one. QP lock held. */
void waiting_enter(struct qp *qp, enum route_wait what);
/* Into the lane's list of QPs that wait for room. QP lock held. */
void waiting_block(struct qp *qp, struct lane *lane);
/* Out of a lane's list, if the QP is still in it. QP lock held. */
void waiting_leave(struct lane **lane, struct list *node);
/* Answers what a QP owes, sends what it may send; QP lock held. Queues the QP where it must wait. */
void route_run(struct qp *qp);
/* Rings the doorbells of lanes that a QP sent on; without its lock, inside a rundown section. */
void route_ring(const struct qp_kick *kick);
/* Runs QPs that asked for another turn. */
void route_run_ready(void);
bool route_has_ready(void);
/* local_ops. */
void route_resolved(uint32_t block, struct link *link);
void route_settled(void);
void route_lane_writable(struct lane *lane);
void waiting_after_fork_in_child(void);

/* --- congestion.c -------------------------------------------------------------------------------- */

struct udp_arrival;
/* Tells the sender of a packet for this QP that it was marked. QP lock held. */
void congestion_notify(struct qp *qp, const struct packet *packet, const struct udp_arrival *arrival);

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

/* --- notices.c: what a peer has to hear though nobody is left to say it ------------------------------------
 */

/* To the sender of a request that was dropped: its ACK timer runs only if it hears of it. */
void words_send_drop(struct lane *lane, const struct packet *dropped);
/* transport_ports.tell */
void words_tell(struct transport_qp *transport, const struct packet *packet);
/* The QP begins a new life: what it said in the former one and is still here is not to be taken for an answer
 * of this one. QP lock held. */
void words_of_former_life(const struct qp *qp, struct lane *lane);
/* There is room. */
void words_flush(struct lane *lane, struct lane_state *state);

/* --- network.c: over the network --------------------------------------------------------------------------- */

/* Over the network, wherever it goes? (SOFTHCA_PATH=wire; constant.) */
bool wire_is_forced(void);
void wire_start(void);
/* transport_ports.send and qp_ports for what goes that way. QP lock held. */
int wire_send(struct qp *qp, const struct packet *packet, const struct iovec *gather, unsigned gather_count,
              const struct path_address *to);
void wire_leave_list(struct qp *qp);
/* MADs, to QP1 of another host. */
void wire_send_mad(const struct cm_path *to, const uint8_t mad[MAD_LENGTH]);
void wire_flush_mads(void);
/* Opens the port, for which it takes a block of ours. Waits a moment, without locks, outside every rundown
 * section, not in the helper thread. */
void wire_open_for_mads(uint32_t block);
/* Small packets that stay for others wait no longer. Without the lock of a lane. */
void wire_release(void);
/* Nor does an acknowledgement that gives way to an answer of the program. Outside every rundown section. */
void wire_settle(void);
/* qp_ports.prepare: opens the port where packets of the network may come for the QP. */
void wire_prepare(struct qp *qp, const struct ibv_qp_attr *attributes, int mask);
/* Does multicast of the QP go over the network? With wire_is_forced(), only over the network then. */
bool wire_has_groups(const struct qp *qp);
/* qp_ports.attached, qp_ports.detached. */
void wire_attached(struct qp *qp, const uint8_t gid[16]);
void wire_detached(struct qp *qp, const uint8_t gid[16]);
void wire_after_fork_in_child(void);

/* --- tx_batch.c: small requests that wait for others -------------------------------------------------------- */

/* It was put into the QP's lane: does it stay there? Else the lane is to be flushed. QP lock held. */
bool hold_stays(struct qp *qp, const struct packet *packet);
bool hold_is_whole_request(uint8_t opcode);
/* Lanes (bits) where something stays, which are the caller's to flush. */
uint32_t hold_take(void);

/* --- ack_delay.c: acknowledgements that give way to what a program answers ----------------------------------- */

/* Does the acknowledgement of the only QP that owes something after a batch, which an application thread has
 * taken, give way? QP lock and receive lock held. */
bool turn_gives_way(struct qp *qp);
/* A request was put into the QP's lane, which is to be flushed: what gave way to it goes behind it (only the
 * last packet of a datagram may be smaller). The peer waits for nothing but that, so both leave before all
 * else is done about them. QP lock held. */
void turn_sent(struct qp *qp, const struct packet *packet);
/* The program has posted on the QP, without its lock, inside a rundown section. Returns a lane to be flushed,
 * or NULL. */
struct udp_lane *turn_posted(struct qp *qp);
/* Is there a QP that the program may be about to answer on? */
bool turn_is_on(void);
/* Helper thread, once in a while: has it waited since the last time but one? */
bool turn_is_overdue(void);
/* The program polls before it has answered: that QP, which is to be locked for turn_end(); or NULL. Receive
 * lock held. */
struct qp *turn_take(void);
/* What gave way is sent, and the next does not give way for a while. QP lock held. */
void turn_end(struct qp *qp);
/* The QP's way ends. QP lock held. */
void turn_forget(struct qp *qp);
/* It is nobody's turn: at the start, and in a forked child. */
void turn_start(void);

/* --- exit_flush.c ------------------------------------------------------------------------------------------ */

/* The program ends. Any locks may be held. */
void parting_before_exit(void);
/* qp_ports.see_off */
void parting_see_off(struct qp *qp);
/* Its sender has run, and somebody is in there. QP lock held. */
void parting_has_run(void);
/* It is known who has that block, or that nobody has it. */
void parting_resolved(uint32_t block);
void parting_after_fork_in_child(void);

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

/* --- progress.c ----------------------------------------------------------------------------------------- */

extern const struct local_ops engine_local_ops;
/* Does the QP take requests (or answers) in its state (verbs.md §2.1), and is the packet for it at all?
 * QP lock held. */
bool progress_accepts(const struct qp *qp, const struct packet *packet, bool request);
/* A request for this QP, which is locked: what it comes to owe leaves now or at the end of the batch. */
void progress_receive(struct qp *qp, struct lane *lane, const struct packet *packet);
/* Doorbells: of the lane whose batch is under way at its end, of others now. */
void progress_note_kick(struct lane *lane, const struct qp_kick *kick);
/* A packet has come, whatever of it. */
void progress_count_packet(void);
/* An acknowledgement covers what comes in the same batch, but not more than this many packets. */
#define ACKS_BEFORE_ANSWER 16u
/* Polls, flushes, runs the ready. Returns the number of packets. Any thread. */
unsigned progress_run(void);
/* Called by application threads: also says that somebody polls. */
void progress_from_application(void);
/* Is it in that function that this thread takes packets? */
bool progress_is_application(void);
void progress_expect_sleep(void);
void progress_take_arrived(void);
void progress_cq_overrun(struct cq *cq);
/* Counts application polls; the helper compares. */
extern _Atomic uint32_t progress_application_polls;
/* Counts packets, by whomever; likewise. */
extern _Atomic uint32_t progress_packets;

/* Counts armings of CQs, by whomever; likewise. */
extern _Atomic uint32_t progress_armings;

/* --- timers.c ------------------------------------------------------------------------------------------- */

int timers_open(void);
int timers_fd(void);
void timers_close(void);
void timers_after_fork_in_child(void);
void timers_set_qp(struct qp *qp, ns_t delay);
void timers_set_moderation(struct cq *cq, ns_t delay);
void timers_cancel_moderation(struct cq *cq);
/* communication_due(), or gsi_due(), is to be called then, by the helper thread; a point of time. */
void timers_set_communication(ns_t at);
void timers_set_gsi(ns_t at);
/* The timerfd is readable: fires what is due. Helper thread. */
void timers_run(void);
/* Is a timer armed? Then timers_run_due() fires what is due; any thread, no lock held. */
bool timers_armed(void);
void timers_run_due(void);

/* --- agent.c: the CM's machine (engine/cm/agent.h) ----------------------------------------- */

/* A MAD for this process, or for nobody on this host. */
void communication_receive(const struct cm_path *from, const uint8_t mad[MAD_LENGTH]);
/* The time has come that timers_set_communication() was told. */
void communication_due(void);
/* The process behind the link of that serial number is gone. */
void communication_peer_gone(uint64_t serial);
void communication_after_fork_in_child(void);

/* --- id_record.c: communication_calls, id_... ----------------------------------------------------------- */

void id_record_withdraw(struct id_record *record);
void id_record_event_read(struct id_record *record, uint32_t type);
void id_record_event_acknowledged(struct id_record *record);
void id_record_waits(struct id_record *record, enum id_call call);
void id_record_still_waits(struct id_record *record);
void id_record_waited(struct id_record *record, bool told);

/* --- helper.c ------------------------------------------------------------------------------------------- */

/* Starts the thread if it does not run. 0 or -errno. */
int helper_start(void);
/* It calls packet_socket_receive() when the descriptor is readable, until that is closed. -errno. */
int helper_watch(int fd);
/* Was a CQ armed since the helper thread has looked? */
bool helper_saw_arming(void);
/* Has a batch of this thread completed a receive, whose program sleeps? Then its acknowledgement may wait for
 * an answer. Once for each batch. */
bool progress_expects_answer(void);
/* object_ports.event_owed */
void helper_event_owed(void);
/* Wakes it: there is something for route_run_ready() or a CQ failed. */
void helper_kick(void);
void helper_after_fork_in_child(void);

/* --- interfaces.c --------------------------------------------------------------------------------------- */

int interfaces_monitor_fd(void);
void interfaces_changed(void);
void interfaces_after_fork_in_child(void);

#endif
