/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Declarations that the files of transport share among themselves; no other room includes this header.
 *
 *   sender.c            posting order -> packets
 *   sender_rd_atomic.c  what READ, atomic and FLUSH requests carry
 *   sender_plain.c      the same for requests of one packet that nothing keeps back
 *   sender_lifecycle.c  start, flush, reset and revocation of a sender
 *   complete.c          responses and acknowledgements -> send completions
 *   retry.c             timers, NAKs, going back
 *   window.c            congestion window, on links that may lose packets
 *   direct.c            one-sided requests executed here, in mapped memory of the peer
 *   receive.c           packet that arrives -> sender, responder or datagram
 *   responder.c         request -> checks -> memory, receive completion
 *   rd_atomic.c         READ, atomic and FLUSH requests -> queue of the responder; duplicates
 *   response.c          what the responder owes -> packets
 *   tags.c              the list of tagged buffers of an SRQ
 *   tagged.c            messages to a tag matching SRQ; rendezvous
 *   relay.c             XRC requests for an SRQ of another process, and their responses
 *   ud.c                datagrams, both directions
 *   raw.c               Ethernet frames, both directions
 *   fault.c             why the QP fails -> its published record
 *   gather.c            SGEs -> checked addresses
 *   ordered_copy.h      bytes -> the program's memory
 */
#ifndef TRANSPORT_MACHINE_H
#define TRANSPORT_MACHINE_H

#include "rules/limits.h"
#include "transport/qp.h"
#include "wire/opcode.h"

/* Bound of the work of one call of sender_run() or responder_run(): the caller holds the QP's lock, and other QPs
 * wait. */
#define SLICE_PACKETS 64
#define SLICE_BYTES   (256u * 1024)

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

/* The PD whose memory the peer may name: the QP's, or (XRC) that of the selected SRQ. */
static inline uint32_t remote_pd(const struct transport_qp *qp)
{
    return unlikely(qp->record->type == IBV_QPT_XRC_RECV) ? qp->receive_pd : qp->record->pd;
}

static inline bool is_mw_of_type_2(const struct transport_qp *qp, uint32_t rkey)
{
    return qp->keys->entry[key_slot(rkey)].kind == KEY_MW_TYPE_2;
}

/* A packet by reference was sent. */
static inline void note_exposed(struct transport_qp *qp)
{
    if (likely(qp->exposes))
        return;
    qp->exposes = true;
    qp->ports->reference->exposes(qp);
}

/* Memory of an on-demand region may be unmapped, and an access to it must not crash the process: asks first. */
static inline bool is_resident(const struct transport_qp *qp, const struct memory_range *range,
                               uint32_t offset, uint32_t length, bool write)
{
    return likely(!range->on_demand) || qp->ports->fault_in(range->address + offset, length, write);
}

/* --- gather.c ------------------------------------------------------------------------------------- */

/* An SGE of a null region becomes iovecs of this size: reads give zeros, writes are discarded. */
#define GATHER_NULL_CHUNK (64u * 1024)
/* Every SGE once, and the null regions of a packet by reference in chunks. */
#define GATHER_MAX (LIMIT_SGE + 256u * 1024 / GATHER_NULL_CHUNK)

struct gather {
    unsigned count;
    struct iovec vector[GATHER_MAX];
    uint32_t slot[GATHER_MAX]; /* of the key; null regions: not set */
};

/* Addresses of `length` bytes from `offset` of a scatter/gather list, which the caller knows to be long enough. For
 * writing only these bytes are checked: a receive may be longer than its region if the message is not. For reading each
 * SGE is checked as a whole (verbs.md §4.3), so that nothing of a bad list is sent. */
enum verdict gather_range(const struct transport_qp *qp, const struct wqe_sge *sge, uint32_t num_sge,
                          uint32_t pd, uint32_t offset, uint32_t length, bool write,
                          struct gather *ret_gather);
/* Bytes in a list; at most 2^32 - 1. */
uint32_t gather_length(const struct wqe_sge *sge, uint32_t num_sge);
/* Checks every SGE as a whole. *ret_references: how many references name them in a packet by reference (empty SGEs need
 * none); 0: not possible. */
enum verdict gather_check(const struct transport_qp *qp, const struct wqe_sge *sge, uint32_t num_sge,
                          uint32_t pd, bool write, unsigned *ret_references);
/* Bytes that a received packet by reference names; 2^32 - 1: too many references or bytes. */
uint32_t gather_referenced(const struct packet *packet);
/* Copies received bytes into the list. */
void gather_place(const struct gather *gather, const void *payload);

/* --- fault.c -------------------------------------------------------------------------------------- */

/* Each notes why the QP is about to fail; what was noted first stays. Of a request: what it asked for. */
void fault_request(struct transport_qp *qp, const struct packet *packet, enum fault_cause cause,
                   uint64_t value, uint64_t wanted);
/* A check of rkey, range, rights or alignment has failed. */
void fault_access(struct transport_qp *qp, const struct packet *packet, const struct access *access,
                  enum verdict verdict);
/* The same for a request that was accepted before. */
void fault_response(struct transport_qp *qp, const struct responder_resource *resource, enum verdict verdict);
/* The current receive fails; length: of the packet. */
void fault_receive(struct transport_qp *qp, const struct packet *packet, enum verdict verdict,
                   uint32_t length);
/* The same of a datagram, which does not fail the QP. */
void fault_datagram(struct transport_qp *qp, const struct recv_wqe *receive, const struct packet *packet,
                    enum verdict verdict);
void fault_send(struct transport_qp *qp, struct send_wqe *wqe, enum verdict verdict);
/* The QP does not fail (UC). */
void fault_forget(struct transport_qp *qp);

/* --- sender.c ------------------------------------------------------------------------------------- */

/* Also the indices of counters. */
enum request_kind {
    REQUEST_UNKNOWN = TRAFFIC_UNKNOWN,
    REQUEST_SEND = TRAFFIC_SEND,
    REQUEST_WRITE = TRAFFIC_WRITE,
    REQUEST_READ = TRAFFIC_READ,
    REQUEST_ATOMIC = TRAFFIC_ATOMIC,
    REQUEST_ATOMIC_WRITE = TRAFFIC_ATOMIC_WRITE,
    REQUEST_FLUSH = TRAFFIC_FLUSH,
    REQUEST_LOCAL = TRAFFIC_LOCAL,
};

/* A completion is about to tell the program that it may reuse memory that requests by reference still expose. */
void sender_revoke(struct transport_qp *qp);
/* UC: completes what needs no acknowledgement of the peer. false as in sender_advance(). */
bool sender_complete_unacknowledged(struct transport_qp *qp);

static inline bool goes_by_reference(const struct send_wqe *wqe)
{
    return wqe->carriage == WQE_BY_REFERENCE;
}

/* Payload of a packet of the message, or of the response to a READ. */
static inline uint32_t packet_mtu(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    if (likely(wqe->carriage == WQE_BY_BYTES))
        return qp->link.mtu;
    return goes_by_reference(wqe) ? qp->link.reference_mtu : 128u << qp->record->attributes.path_mtu;
}

/* --- direct.c ------------------------------------------------------------------------------------- */

enum direct {
    DIRECT_NOT,  /* the request has to travel as packets */
    DIRECT_DONE, /* executed and begun; the verdict is VERDICT_OK, unless the result of an atomic is unknown */
    DIRECT_LATER, /* the owner maps the memory first, then calls sender_run() */
    DIRECT_BEHIND /* possible when all requests before it are complete */
};
/* Tries to execute WQE `next`, which was never begun, in mapped memory of the peer. */
enum direct direct_execute(struct transport_qp *qp, struct send_wqe *wqe, enum request_kind kind);

/* --- window.c, on links that may lose packets ------------------------------------------------------- */

/* A READ is requested in parts of so many response packets: a power of two between these. */
#define READ_PART_MIN 4u
#define READ_PART_MAX 32u

void window_start(struct transport_qp *qp);
/* unacked_psn has moved by so many PSNs. */
void window_acknowledged(struct transport_qp *qp, uint32_t psns);
/* The peer misses a packet; the ACK timer has expired. */
void window_lost(struct transport_qp *qp);
void window_expired(struct transport_qp *qp);
/* Takes the credits from the AETH of an acknowledgement that is no NAK. */
void window_credits(struct transport_qp *qp, const struct packet *packet);
/* A WQE is begun: counts its messages (SSN) and chooses the size of the parts of a READ. */
void window_number(struct transport_qp *qp, struct send_wqe *wqe);
/* May the next packet of the WQE be transmitted? SENDER_RUNS: yes. */
enum sender_wait window_admits(const struct transport_qp *qp, const struct send_wqe *wqe);
/* Response packets that the next request of a READ asks for: up to the end of the part. */
uint32_t window_read_part(const struct transport_qp *qp, const struct send_wqe *wqe);
bool window_wants_ack(const struct transport_qp *qp, const struct send_wqe *wqe);
/* The next packet was sent. It takes so many PSNs; acknowledged: it carries AckReq. */
void window_sent(struct transport_qp *qp, const struct send_wqe *wqe, uint32_t packets, bool acknowledged);

/* How many SENDs of one packet window_admits() would let go, one behind the other. Nothing is being repeated, and at
 * most the next request is begun. */
uint32_t window_room(const struct transport_qp *qp);

/* --- sender_plain.c --------------------------------------------------------------------------------- */

/* Sends plain requests that are the next ones, up to WQE `limit`; returns how many. */
uint32_t sender_run_plain(struct transport_qp *qp, uint32_t limit);

/* --- raw.c ---------------------------------------------------------------------------------------- */

/* Sends a frame: 0 or -EAGAIN. Nothing was sent if the verdict is not VERDICT_OK. */
int raw_send(struct transport_qp *qp, struct send_wqe *wqe, enum verdict *ret_verdict);

/* --- sender_rd_atomic.c ----------------------------------------------------------------------------- */

/* Fills the packet of a request that awaits a response (awaits_response()). asked: packets of the response. */
enum verdict sender_fill_rd_atomic(struct transport_qp *qp, struct send_wqe *wqe, enum request_kind kind,
                                   uint32_t asked, struct packet *packet, struct gather *ret_gather);

/* --- complete.c ----------------------------------------------------------------------------------- */

/* All PSNs before `limit` are acknowledged: completes the WQEs before it, up to the first READ or atomic without
 * response, and WQEs that failed on this side in their place. false: the sender failed and was flushed; the caller
 * returns. */
bool sender_advance(struct transport_qp *qp, psn_t limit);
/* Completes the oldest WQE with this verdict; the sender fails. */
void sender_fail_oldest(struct transport_qp *qp, enum verdict verdict);
/* A packet of the peer's responder. */
void sender_receive(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* An acknowledgement that rides on a request (PACKET_HAS_ACK). */
void sender_piggybacked(struct transport_qp *qp, psn_t psn);

/* --- retry.c -------------------------------------------------------------------------------------- */

/* Transmission continues at unacked_psn. */
void sender_go_back(struct transport_qp *qp);
/* Goes back and transmits. */
void sender_repeat(struct transport_qp *qp);
/* The same because packets were lost: uses one retry, or fails if none is left. */
void sender_retry(struct transport_qp *qp);
void sender_receiver_not_ready(struct transport_qp *qp, uint8_t timer_code);
/* unacked_psn has moved by so many: retry counters start again (verbs.md §3.12). */
void sender_progressed(struct transport_qp *qp, uint32_t psns);
/* A packet was sent that may get lost: arms the ACK timer if no timer runs. */
void sender_arm(struct transport_qp *qp);
/* The peer acknowledged a PSN that is not outstanding. On a link that loses nothing that means that the two ends do not
 * agree on the PSNs, and the ACK timer decides. Transmission continues. */
void sender_psn_mismatch(struct transport_qp *qp);
/* The packet with this PSN carries AckReq and is sent for the first time: may measure a round trip by it. */
void sender_measure(struct transport_qp *qp, psn_t psn);

/* UC: the peer will not fetch anything any more for packets up to this PSN. */
void sender_exposure_ended(struct transport_qp *qp, psn_t psn);

/* --- responder.c ---------------------------------------------------------------------------------- */

/* A request that takes so many PSNs was accepted. */
static inline void responder_accepted(struct responder *responder, uint32_t psns)
{
    responder->expected_psn = psn_add(responder->expected_psn, psns);
    responder->acks_owed++;
    if (likely(!responder->nak_sent))
        return;
    responder->nak_sent = NAK_NONE;
    /* An RNR NAK is obsolete: the packet has come again. A sequence NAK is not: the gap is closed, but packets behind
     * it were dropped, so it is sent with the PSN that is expected now. */
    if (responder->owed_syndrome != (SYNDROME_NAK << 5 | NAK_SEQUENCE))
        responder->owed_syndrome = 0;
}

/* A NAK that ends the QP is due at `psn`; no request is accepted any more. */
void responder_fail(struct transport_qp *qp, psn_t psn, uint8_t nak_code);
void responder_receive(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* An error that no receive completion can report: an event, and a NAK (verbs.md §3.10). */
void responder_violation(struct transport_qp *qp, psn_t psn, enum verdict verdict, enum ibv_event_type event);

/* --- rd_atomic.c ---------------------------------------------------------------------------------- */

static inline struct responder_resource *responder_resource_at(const struct transport_qp *qp,
                                                               uint32_t counter)
{
    return &qp->resources[counter % qp->record->responder.resources];
}

/* Payload of a packet of the response. */
static inline uint32_t response_mtu(const struct transport_qp *qp, const struct responder_resource *resource)
{
    if (unlikely(resource->mtu))
        return 128u << resource->mtu;
    return resource->by_reference ? qp->link.reference_mtu : qp->link.mtu;
}

/* Rights and range: when the request comes, and again before it is executed. */
enum verdict responder_check_atomic_write(const struct transport_qp *qp,
                                          const struct responder_resource *resource,
                                          struct memory_range *ret_range);
enum verdict responder_check_flush(const struct transport_qp *qp, const struct responder_resource *resource);
/* READ, atomic and FLUSH requests: queued in PSN order; responder_run() sends the responses. */
void responder_enqueue_read(struct transport_qp *qp, const struct packet *packet);
void responder_enqueue_atomic(struct transport_qp *qp, const struct packet *packet);
void responder_enqueue_atomic_write(struct transport_qp *qp, const struct packet *packet);
void responder_enqueue_flush(struct transport_qp *qp, const struct packet *packet);
void responder_repeat(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* Do responses expose memory? Forgets it. */
bool responder_clear_exposed(struct transport_qp *qp);
/* Do they, and (*ret_named) does one name memory of the key in this slot? */
bool responder_exposes(const struct transport_qp *qp, uint32_t slot, bool mw, bool *ret_named);

/* --- response.c ----------------------------------------------------------------------------------- */

/* Drop notice, on a link that loses nothing: the request with this PSN will get no response, because the QP ends or
 * because its resource was given to another request. `why` takes the place of the syndrome. */
enum { DROPPED_QP_ENDS = 0, DROPPED_DUPLICATE = 0xff };
void responder_send_drop_notice(struct transport_qp *qp, psn_t psn, uint8_t why);
/* --- tagged.c ------------------------------------------------------------------------------------- */

/* A SEND begins: reads its header and sets current_receive. whole: the packet is the whole message. 0; -ENOENT: no
 * receive; -errno of pull(). */
int tagged_take(struct transport_qp *qp, const struct packet *packet, uint32_t length, bool whole);
void tagged_finish(struct transport_qp *qp, struct receive_completion *completion);
void tagged_own_completed(struct transport_qp *qp, const struct send_wqe *wqe, enum verdict verdict);
/* The packet, reduced to `length` bytes of its payload from `offset`. */
void packet_slice(const struct packet *packet, uint32_t offset, uint32_t length, struct packet *ret_packet,
                  struct packet_reference references[PACKET_REFERENCES]);

/* The receive of the message is complete. */
static inline void finish_receive(struct transport_qp *qp, struct receive_completion *completion)
{
    qp->current_receive = NULL;
    if (unlikely(qp->tag_matching))
        tagged_finish(qp, completion);
    else
        qp->ports->complete_receive(qp, completion);
}

/* A WQE has got its verdict. */
static inline void complete_request(struct transport_qp *qp, const struct send_wqe *wqe, uint32_t counter,
                                    enum verdict verdict, uint32_t byte_len)
{
    if (unlikely(wqe->flags & WQE_OWN))
        tagged_own_completed(qp, wqe, verdict);
    else
        qp->ports->complete_send(qp, wqe, counter - qp->record->sender.own_completed, verdict, byte_len);
}

/* On a link that loses nothing packets are larger than the path MTU. If the path MTUs of the two ends differ, messages
 * that the two would segment differently are invalid all the same: those longer than this. */
static inline uint32_t responder_common_mtu(const struct transport_qp *qp, const struct packet *packet)
{
    uint32_t theirs = packet->syndrome & PACKET_MTU, ours = qp->record->attributes.path_mtu;

    if (likely(theirs == ours) || !theirs || !ours)
        return UINT32_MAX;
    return 128u << min_of(theirs, ours);
}

/* enum ibv_mtu of the response's packets, where a READ request asks for those of the path MTU. The other end may say
 * anything, and a QP whose requests another process executes has no path MTU there. */
static inline uint8_t responder_asked_mtu(const struct transport_qp *qp, const struct packet *packet)
{
    const uint32_t theirs = packet->syndrome & PACKET_MTU, ours = qp->record->attributes.path_mtu;

    return (uint8_t)min_of(theirs, ours ? ours : IBV_MTU_4096 + 0u);
}

/* Does the packet contradict itself, or segment its message wrongly? On the network all packets of a message
 * but the last must be full (IBA 9.7.2.1.3); a local peer is bound by responder_common_mtu() only. */
bool responder_is_segmented_wrong(const struct transport_qp *qp, const struct packet *packet,
                                  uint32_t properties);

/* All requests before it are executed and may be acknowledged. */
static inline psn_t responder_limit(const struct transport_qp *qp)
{
    return unlikely(relay_is_away(&qp->relay)) ? qp->relay.done : qp->record->responder.expected_psn;
}

/* --- relay.c -------------------------------------------------------------------------------------- */

/* A request in sequence. true: it was forwarded, or is dropped until it can be. */
bool relay_request(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* A duplicate: the same, if it needs a response. */
bool relay_duplicate(struct transport_qp *qp, const struct packet *packet, uint32_t properties);
/* The request cannot be executed yet: drops it, to be asked for again when all before it are executed. */
void relay_postpone(struct transport_qp *qp);
/* There is a gap. true: requests before it are not executed, and its NAK is postponed. */
bool relay_postpones_gap(struct transport_qp *qp);
/* Responses were sent: asks for a postponed request that only waited for them. */
void relay_settle(struct transport_qp *qp);
void relay_reset(struct transport_qp *qp);

/* --- ud.c ----------------------------------------------------------------------------------------- */

/* Transmits up to counter `limit`. */
void ud_send_run(struct transport_qp *qp, uint32_t limit);
void ud_receive(struct transport_qp *qp, const struct packet *packet, uint32_t properties);

#endif
