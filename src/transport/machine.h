/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of transport share among themselves; nobody else includes it.
 *
 *   sender.c     posting order -> packets
 *   sender_lifecycle.c       a sender's start, flush and reset
 *   complete.c   answers -> send completions
 *   retry.c      timers, NAKs, going back
 *   direct.c     one-sided requests in memory of the peer's that is mapped here
 *   window.c     how much may be on its way where packets get lost
 *   receive.c    packets that arrive -> the machines below and above
 *   responder.c  request -> checks -> memory, receive completion
 *   response.c   what is owed -> packets
 *   tags.c       the list of tagged buffers of an SRQ
 *   tagged.c     messages to such an SRQ, and the rendezvous that the adapter makes of them
 *   relay.c      requests for an SRQ of another process -> there, and answers back
 *   ud.c         datagrams, both directions
 *   raw.c        Ethernet frames, both directions
 *   gather.c     SGEs -> checked addresses
 *   place.h      bytes -> the program's memory
 */
#ifndef TRANSPORT_MACHINE_H
#define TRANSPORT_MACHINE_H

#include "rules/limits.h"
#include "transport/qp.h"
#include "wire/opcode.h"

/* Work of one call of sender_run() and of responder_run(): the owner holds a lock meanwhile, and other QPs
 * wait for their turn. */
#define SLICE_PACKETS 64
#define SLICE_BYTES   (256u * 1024)

#define DEFAULT_PKEY 0xffff

/* PSNs on their way on any link: psn_t compares half its range (IBA 9.7.2). */
#define WINDOW_PSNS (1u << 23)

static inline uint32_t psn_distance(psn_t from, psn_t to)
{
    return (to.value - from.value) & PSN_MASK;
}

static inline uint32_t packets_of(uint32_t length, uint32_t mtu)
{
    return length <= mtu ? 1 : (uint32_t)(((uint64_t)length + mtu - 1) / mtu);
}

static inline enum ibv_qp_state qp_state(const struct transport_qp *qp)
{
    return (enum ibv_qp_state)atomic_load_explicit(&qp->record->state, memory_order_relaxed);
}

static inline uint8_t service_of(const struct qp_record *record)
{
    if (likely(record->type == IBV_QPT_RC))
        return SERVICE_RC;
    return record->type == IBV_QPT_UC ? SERVICE_UC : SERVICE_XRC;
}

/* Whose memory peers may name: that of the QP's PD, or (XRC) of the PD of the SRQ that was selected. */
static inline uint32_t remote_pd(const struct transport_qp *qp)
{
    return unlikely(qp->record->type == IBV_QPT_XRC_RECV) ? qp->receive_pd : qp->record->pd;
}

/* A packet by reference has gone out. */
static inline void note_exposed(struct transport_qp *qp)
{
    if (likely(qp->exposes))
        return;
    qp->exposes = true;
    qp->ports->reference->exposes(qp);
}

/* Memory that may be gone is looked at before it is touched: a packet must not crash its process. */
static inline bool is_resident(const struct transport_qp *qp, const struct memory_range *range,
                               uint32_t offset, uint32_t length, bool write)
{
    return likely(!range->on_demand) || qp->ports->fault_in(range->address + offset, length, write);
}

/* --- gather.c ------------------------------------------------------------------------------------- */

/* Memory of a null region is an iovec into these: reads of it give zeros, writes to it vanish. */
#define GATHER_NULL_CHUNK (64u * 1024)
/* Every SGE once, and null regions of a packet by reference in chunks. */
#define GATHER_MAX (LIMIT_SGE + 256u * 1024 / GATHER_NULL_CHUNK)

struct gather {
    unsigned count;
    struct iovec vector[GATHER_MAX];
    uint32_t slot[GATHER_MAX]; /* of its key; of null regions: not set */
};

/* Addresses of `length` bytes from `offset` on of a scatter/gather list. To be written, these bytes are what
 * is checked, for a receive may be longer than its region if the message is not. To be read, each SGE is
 * checked as a whole (verbs.md §4.3), so that nothing of a bad list is sent. The list is long enough:
 * the caller compared. */
enum verdict gather_range(const struct transport_qp *qp, const struct wqe_sge *sge, uint32_t num_sge,
                          uint32_t pd, uint32_t offset, uint32_t length, bool write,
                          struct gather *ret_gather);
/* Bytes in a list; more than 2^32 - 1 is 2^32 - 1. */
uint32_t gather_length(const struct wqe_sge *sge, uint32_t num_sge);
/* Every SGE as a whole, without addresses. How many references would name them to a peer (empty ones need
 * none); 0: they cannot be named. */
enum verdict gather_check(const struct transport_qp *qp, const struct wqe_sge *sge, uint32_t num_sge,
                          uint32_t pd, bool write, unsigned *ret_references);
/* Bytes that a received packet by reference names; 2^32 - 1: too many. */
uint32_t gather_referenced(const struct packet *packet);
/* Puts received bytes into the list. */
void gather_place(const struct gather *gather, const void *payload);

/* --- sender.c ------------------------------------------------------------------------------------- */

enum request_kind {
    REQUEST_UNKNOWN,
    REQUEST_SEND,
    REQUEST_WRITE,
    REQUEST_READ,
    REQUEST_ATOMIC,
    REQUEST_ATOMIC_WRITE,
    REQUEST_FLUSH,
    REQUEST_LOCAL
};

/* The program is going to hear that it may reuse what requests by reference still lend to the peer. */
void sender_revoke(struct transport_qp *qp);
/* UC: completes what needs no word from the peer. false as in sender_advance(). */
bool sender_complete_unacknowledged(struct transport_qp *qp);

/* Bytes of a packet of the message, or of the answer to a READ. */
static inline uint32_t packet_mtu(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    return wqe->by_reference ? qp->link.reference_mtu : qp->link.mtu;
}

/* --- direct.c ------------------------------------------------------------------------------------- */

/* The WQE that is next and was never begun: executed here, and begun, if that is possible. Its verdict is
 * VERDICT_OK then, unless nobody knows what became of it. DIRECT_LATER: the owner sees to it. DIRECT_BEHIND:
 * it will be when those before it are done. */
enum direct { DIRECT_NOT, DIRECT_DONE, DIRECT_LATER, DIRECT_BEHIND };
enum direct direct_execute(struct transport_qp *qp, struct send_wqe *wqe, enum request_kind kind);

/* --- window.c, on links that may lose packets ------------------------------------------------------- */

/* Packets of an answer that one READ request asks for: a power of two between these. */
#define READ_PART_MIN 4u
#define READ_PART_MAX 32u

void window_start(struct transport_qp *qp);
/* So many PSNs, up to unacked_psn, have come to be acknowledged. */
void window_acknowledged(struct transport_qp *qp, uint32_t psns);
/* The peer misses a packet; or nobody has said anything for long. */
void window_lost(struct transport_qp *qp);
void window_expired(struct transport_qp *qp);
/* The AETH of an acknowledgement, which is no NAK. */
void window_credits(struct transport_qp *qp, const struct packet *answer);
/* Gives a WQE that is begun its place among messages and cuts a READ into parts. */
void window_number(struct transport_qp *qp, struct send_wqe *wqe);
/* May what comes next of the WQE be transmitted? */
enum sender_wait window_admits(const struct transport_qp *qp, const struct send_wqe *wqe);
/* Packets that the request for what comes next of an answer asks for. */
uint32_t window_read_part(const struct transport_qp *qp, const struct send_wqe *wqe);
bool window_wants_ack(const struct transport_qp *qp, const struct send_wqe *wqe);
/* What came next is on its way, stands for so many PSNs, and is to be acknowledged. */
void window_sent(struct transport_qp *qp, const struct send_wqe *wqe, uint32_t packets, bool acknowledged);

/* --- raw.c ---------------------------------------------------------------------------------------- */

/* Hands a frame to the link: 0 or -EAGAIN; nothing was sent if the verdict is not VERDICT_OK. */
int raw_send(struct transport_qp *qp, struct send_wqe *wqe, enum verdict *ret_verdict);

/* --- complete.c ----------------------------------------------------------------------------------- */

/* Everything before `limit` is acknowledged: completes WQEs up to there, but not beyond a pending READ or
 * atomic, and reports WQEs that failed on this side when their turn comes. false: the sender failed and was
 * flushed, touch nothing. */
bool sender_advance(struct transport_qp *qp, psn_t limit);
/* The oldest WQE ends with this verdict and the sender with it. */
void sender_fail_oldest(struct transport_qp *qp, enum verdict verdict);
/* A packet of the responder on the other side. */
void sender_receive(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* PACKET_HAS_ACK. */
void sender_piggybacked(struct transport_qp *qp, psn_t psn);

/* --- retry.c -------------------------------------------------------------------------------------- */

/* Transmission goes on at unacked_psn. */
void sender_go_back(struct transport_qp *qp);
/* Goes back and transmits. */
void sender_repeat(struct transport_qp *qp);
/* The same since packets were lost, and one retry is used up; or fails. */
void sender_retry(struct transport_qp *qp);
void sender_receiver_not_ready(struct transport_qp *qp, uint8_t timer_code);
/* unacked_psn has moved by so many: counters start again (verbs.md §3.12). */
void sender_progressed(struct transport_qp *qp, uint32_t psns);
/* A packet is on its way that may get lost. */
void sender_arm(struct transport_qp *qp);
/* The peer has answered what is not on its way: on a link that loses nothing, it does not hear what is (the
 * PSNs of the connection do not agree), and the ACK timer decides. Transmission goes on. */
void sender_doubt(struct transport_qp *qp);
/* The packet with this number asks for an acknowledgement, and is sent for the first time. */
void sender_measure(struct transport_qp *qp, psn_t psn);

/* The word that a packet by reference of UC was dropped: nobody reads our memory for it, or those before. */
void sender_exposure_ended(struct transport_qp *qp, psn_t psn);

/* --- responder.c, response.c ---------------------------------------------------------------------- */

/* A request was accepted that takes so many PSNs. */
static inline void responder_accepted(struct responder *responder, uint32_t psns)
{
    responder->expected_psn = psn_add(responder->expected_psn, psns);
    responder->acks_owed++;
    if (likely(!responder->nak_sent))
        return;
    responder->nak_sent = NAK_NONE;
    /* The receiver was not ready when this packet came for the first time. A gap has closed, but what came
     * behind it is gone: that NAK still holds, of the next PSN. */
    if (responder->owed_syndrome != (SYNDROME_NAK << 5 | NAK_SEQUENCE))
        responder->owed_syndrome = 0;
}

/* A NAK that ends the QP is due at psn; nothing is accepted any more. */
void responder_fail(struct transport_qp *qp, psn_t psn, uint8_t nak_code);
void responder_receive(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* READ, atomic and FLUSH requests: queued in PSN order, answered by responder_run(). */
void responder_enqueue_read(struct transport_qp *qp, const struct packet *packet);
void responder_enqueue_atomic(struct transport_qp *qp, const struct packet *packet);
void responder_enqueue_atomic_write(struct transport_qp *qp, const struct packet *packet);
void responder_enqueue_flush(struct transport_qp *qp, const struct packet *packet);
void responder_repeat(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* On a link that loses nothing: the word that the request with this number is not going to be answered, since
 * the QP goes away, or (in place of a syndrome) since it is a duplicate that nobody can answer again. */
enum { DROPPED_QP_ENDS = 0, DROPPED_DUPLICATE = 0xff };
void responder_send_drop_notice(struct transport_qp *qp, psn_t psn, uint8_t why);
/* Were answers by reference sent? Forgets it. */
bool responder_clear_exposed(struct transport_qp *qp);
/* Were they, and (*ret_named) did one name memory by the key in this slot? */
bool responder_exposes(const struct transport_qp *qp, uint32_t slot, bool mw, bool *ret_named);
/* The NAK of an error that no receive can report, and the event that does (verbs.md §3.10). */
void responder_violation(struct transport_qp *qp, psn_t psn, enum verdict verdict, enum ibv_event_type event);

/* --- tagged.c ------------------------------------------------------------------------------------- */

/* A SEND begins: finds out what it is and sets current_receive. whole: the packet is all of it. 0, -ENOENT:
 * no receive; -errno of ports->reference->pull(). */
int tagged_take(struct transport_qp *qp, const struct packet *packet, uint32_t length, bool whole);
void tagged_finish(struct transport_qp *qp, struct receive_completion *completion);
void tagged_own_completed(struct transport_qp *qp, const struct send_wqe *wqe, enum verdict verdict);
/* The packet without what is outside of `length` bytes from `offset` on. */
void packet_slice(const struct packet *packet, uint32_t offset, uint32_t length, struct packet *ret_packet,
                  struct packet_reference references[PACKET_REFERENCES]);

/* The message is through with its receive. */
static inline void finish_receive(struct transport_qp *qp, struct receive_completion *completion)
{
    qp->current_receive = NULL;
    if (unlikely(qp->tag_matching))
        tagged_finish(qp, completion);
    else
        qp->ports->complete_receive(qp, completion);
}

/* A WQE got its verdict. */
static inline void complete_request(struct transport_qp *qp, const struct send_wqe *wqe, uint32_t counter,
                                    enum verdict verdict, uint32_t byte_len)
{
    if (unlikely(wqe->flags & WQE_OWN))
        tagged_own_completed(qp, wqe, verdict);
    else
        qp->ports->complete_send(qp, wqe, counter - qp->record->sender.own_completed, verdict, byte_len);
}

/* On a link that loses nothing packets are not cut to the path MTU. What would not be cut alike by both ends,
 * if theirs differ, is invalid all the same: messages longer than this. */
static inline uint32_t responder_agrees_up_to(const struct transport_qp *qp, const struct packet *packet)
{
    uint32_t theirs = packet->syndrome & PACKET_MTU, ours = qp->record->attributes.path_mtu;

    if (likely(theirs == ours) || !theirs || !ours)
        return UINT32_MAX;
    return 128u << min_of(theirs, ours);
}

/* On the wire all packets of a message but the last are full (IBA 9.7.2.1.3). */
bool responder_is_cut_wrong(const struct transport_qp *qp, const struct packet *packet, uint32_t properties);

/* Everything before is executed: what may be acknowledged. */
static inline psn_t responder_limit(const struct transport_qp *qp)
{
    return unlikely(relay_is_away(&qp->relay)) ? qp->relay.done : qp->record->responder.expected_psn;
}

/* --- relay.c -------------------------------------------------------------------------------------- */

/* A request in its turn: did it go to another process, or will it? */
bool relay_request(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* A duplicate: likewise, if it asks for an answer. */
bool relay_duplicate(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* What has come cannot be executed now: it is dropped, and asked for again when what was before it is done.
 */
void relay_postpone(struct transport_qp *qp);
/* There is a gap. Is it too early to say so, since what was before is not done? Then it is said later. */
bool relay_postpones_gap(struct transport_qp *qp);
/* What was done has been answered: what waits for that alone is asked for. */
void relay_settle(struct transport_qp *qp);
void relay_reset(struct transport_qp *qp);

/* --- ud.c ----------------------------------------------------------------------------------------- */

/* Transmits up to counter `limit`. */
void ud_send_run(struct transport_qp *qp, uint32_t limit);
void ud_receive(struct transport_qp *qp, const struct packet *packet, uint32_t properties);

#endif
