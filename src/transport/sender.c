/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Posting order -> packets, of connected QPs. A WQE is begun once: it gets its PSNs, and how it travels is decided.
 * Its packets may be transmitted several times (retry.c). A WQE that fails here keeps its verdict until those before
 * it have theirs, so that completions stay in order (verbs.md §2.6). */
#include <errno.h>

#include "base/pkey.h"
#include "rules/alias.h"
#include "transport/machine.h"

struct request_form {
    uint8_t kind; /* enum request_kind */
    uint8_t first, middle, last, only;
};

static const struct request_form forms[] = {
    [IBV_WR_RDMA_WRITE] = {REQUEST_WRITE, OP_WRITE_FIRST, OP_WRITE_MIDDLE, OP_WRITE_LAST, OP_WRITE_ONLY},
    [IBV_WR_RDMA_WRITE_WITH_IMM] = {REQUEST_WRITE, OP_WRITE_FIRST, OP_WRITE_MIDDLE, OP_WRITE_LAST_IMM,
                                    OP_WRITE_ONLY_IMM},
    [IBV_WR_SEND] = {REQUEST_SEND, OP_SEND_FIRST, OP_SEND_MIDDLE, OP_SEND_LAST, OP_SEND_ONLY},
    [IBV_WR_SEND_WITH_IMM] = {REQUEST_SEND, OP_SEND_FIRST, OP_SEND_MIDDLE, OP_SEND_LAST_IMM,
                              OP_SEND_ONLY_IMM},
    [IBV_WR_SEND_WITH_INV] = {REQUEST_SEND, OP_SEND_FIRST, OP_SEND_MIDDLE, OP_SEND_LAST_INVALIDATE,
                              OP_SEND_ONLY_INVALIDATE},
    [IBV_WR_RDMA_READ] = {REQUEST_READ, .only = OP_READ_REQUEST},
    [IBV_WR_ATOMIC_CMP_AND_SWP] = {REQUEST_ATOMIC, .only = OP_COMPARE_SWAP},
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = {REQUEST_ATOMIC, .only = OP_FETCH_ADD},
    [IBV_WR_LOCAL_INV] = {REQUEST_LOCAL},
    [IBV_WR_BIND_MW] = {REQUEST_LOCAL},
    [IBV_WR_ATOMIC_WRITE] = {REQUEST_ATOMIC_WRITE, .only = OP_ATOMIC_WRITE},
    [WR_FLUSH] = {REQUEST_FLUSH, .only = OP_FLUSH},
};

static const struct request_form *form_of(const struct send_wqe *wqe)
{
    static const struct request_form unknown;

    return wqe->opcode < array_size(forms) ? &forms[wqe->opcode] : &unknown;
}

/* --- beginning ------------------------------------------------------------------------------------ */

/* LOCAL_INV and BIND_MW: executed now, completed in order. */
static cold_path enum verdict execute_local(struct transport_qp *qp, struct send_wqe *wqe)
{
    enum verdict verdict;
    uint32_t mw_rkey;

    qp->ports->lock_keys(qp);
    if (wqe->opcode == IBV_WR_LOCAL_INV) {
        mw_rkey = wqe->imm_or_rkey;
        verdict = keys_invalidate(qp->keys, mw_rkey, qp->record->pd, false);
    } else {
        struct mw_bind bind = *(const struct mw_bind *)send_wqe_body(wqe, IBV_QPT_RC);
        bool type_2 = is_mw_of_type_2(qp, bind.mw_rkey);
        uint32_t new_rkey;

        bind.pd = qp->record->pd;
        mw_rkey = bind.mw_rkey;
        verdict = keys_bind_mw(qp->keys, &bind, type_2, &new_rkey);
    }
    qp->ports->unlock_keys(qp);
    /* Revokes READ responses through the MW that the peer has not fetched yet. (A SEND with invalidate needs no such
     * step: it comes from that peer.) */
    if (verdict == VERDICT_OK)
        transport_revoke_key(qp, key_slot(mw_rkey), true);
    return verdict;
}

static bool takes_one_psn(enum request_kind kind)
{
    return kind == REQUEST_ATOMIC || kind == REQUEST_ATOMIC_WRITE || kind == REQUEST_FLUSH;
}

static cold_path bool all_mapped(const struct transport_qp *qp, struct send_wqe *wqe)
{
    const struct wqe_sge *sge = send_wqe_body(wqe, IBV_QPT_RC);

    for (uint32_t i = 0; i < wqe->num_sge; i++) {
        if (sge[i].length && !qp->ports->direct->is_mapped(key_alias_slot(qp->keys, sge[i].lkey)))
            return false;
    }
    return true;
}

/* Decides whether the payload goes by reference: it does if that is faster (reference_from, fetched_from,
 * read_reference_from) and, except for a READ, at most PACKET_REFERENCES references name the SGEs. Another
 * verdict than OK: an SGE that would be named is invalid. */
static enum verdict choose_reference(const struct transport_qp *qp, struct send_wqe *wqe,
                                     enum request_kind kind)
{
    bool read = kind == REQUEST_READ;
    enum verdict verdict;
    unsigned references;

    /* KEY_COPIED in an rkey: the responder's memory cannot be fetched, so its response must carry the bytes.
     * (Another vendor's rkey may have this bit, too; on the link to such a peer nothing goes by
     * reference.) */
    if (read && (wqe->rkey & KEY_COPIED))
        return VERDICT_OK;
    if (!qp->link.reference_mtu || !wqe->length || (wqe->flags & WQE_INLINE) || takes_one_psn(kind) ||
        (wqe->length < (read ? qp->link.read_reference_from : qp->link.reference_from) &&
         likely(read || !qp->link.fetched_from || wqe->length < qp->link.fetched_from ||
                !all_mapped(qp, wqe))))
        return VERDICT_OK;
    verdict =
        gather_check(qp, send_wqe_body(wqe, IBV_QPT_RC), wqe->num_sge, qp->record->pd, read, &references);
    if (verdict != VERDICT_OK)
        return verdict;
    if (read || (references && references <= PACKET_REFERENCES))
        wqe->carriage = WQE_BY_REFERENCE;
    return VERDICT_OK;
}

static enum verdict check_kind(const struct transport_qp *qp, const struct send_wqe *wqe,
                               enum request_kind kind)
{
    const struct qp_attributes *attributes = &qp->record->attributes;

    switch (kind) {
    case REQUEST_SEND:
    case REQUEST_WRITE:
        return wqe->length > LIMIT_MESSAGE ? VERDICT_LOCAL_LENGTH : VERDICT_OK;
    case REQUEST_READ:
    case REQUEST_ATOMIC:
    case REQUEST_ATOMIC_WRITE:
    case REQUEST_FLUSH:
        if (!is_reliable(qp->record) || !attributes->max_rd_atomic)
            return VERDICT_LOCAL_QP_OPERATION;
        if (kind == REQUEST_FLUSH)
            return VERDICT_OK;
        if (kind != REQUEST_READ)
            return wqe->length == sizeof(uint64_t) ? VERDICT_OK : VERDICT_LOCAL_LENGTH;
        return wqe->length > LIMIT_MESSAGE ? VERDICT_LOCAL_LENGTH : VERDICT_OK;
    case REQUEST_LOCAL:
        return VERDICT_OK;
    case REQUEST_UNKNOWN:
        if (wqe->opcode == WR_INJECTED)
            return (enum verdict)(wqe->imm_or_rkey & 0xff);
        break;
    }
    return VERDICT_LOCAL_QP_OPERATION;
}

/* PSNs that the message takes: one per packet, or per packet of the READ response (IBA 9.7.4). */
static uint32_t psns_of(const struct transport_qp *qp, const struct send_wqe *wqe, enum request_kind kind)
{
    if (takes_one_psn(kind))
        return 1;
    return packets_of(wqe->length, packet_mtu(qp, wqe));
}

static bool is_atomic(const struct send_wqe *wqe)
{
    return awaits_response(wqe) && wqe->opcode != IBV_WR_RDMA_READ;
}

static enum sender_wait may_begin(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    const struct sender *sender = &qp->record->sender;

    if (unlikely(wqe->flags & WQE_FENCE) && sender->rd_atomic_wqes)
        return SENDER_WAITS_FOR_FENCE;
    /* READ and atomic requests execute in order (verbs.md §3.6 rule 4). A READ response by reference holds the bytes
     * of the time when it is fetched, so an atomic behind such a READ waits for it. */
    if (is_atomic(wqe) && sender->references_requested)
        return SENDER_WAITS_FOR_FENCE;
    if (awaits_response(wqe) && sender->rd_atomic_wqes &&
        sender->rd_atomic_wqes >= qp->record->attributes.max_rd_atomic)
        return SENDER_WAITS_FOR_READ_DEPTH;
    return SENDER_RUNS;
}

static cold_path void fail_here(struct sender *sender, struct send_wqe *wqe, enum verdict verdict)
{
    wqe->verdict = (uint8_t)verdict;
    sender->waiting = SENDER_WAITS_TO_FAIL;
}

/* A request that takes a receive of the peer: counts it, and decides whether its second half is deposited. */
static inline void begin_two_sided(struct transport_qp *qp, const struct send_wqe *wqe,
                                   enum request_kind kind)
{
    const struct sender *sender = &qp->record->sender;
    uint32_t number = qp->two_sided++;

    qp->two_sided_end = sender->begun;
    qp->deposits = unlikely(qp->link.deposits) && goes_by_reference(wqe) && kind == REQUEST_SEND &&
                   wqe->packets > 1 &&
                   qp->ports->direct->peek_remote_receive(qp, number, wqe->length,
                                                          sender->begun - sender->completed == 1);
}

/* false: the WQE waits (sender->waiting). true: it is begun; if it has a verdict or no packets, nothing is
 * transmitted. */
static bool begin(struct transport_qp *qp, struct send_wqe *wqe, const struct request_form *form)
{
    struct sender *sender = &qp->record->sender;
    enum request_kind kind = form->kind;
    enum verdict verdict;
    uint32_t packets;

    sender->waiting = (uint8_t)may_begin(qp, wqe);
    if (unlikely(sender->waiting != SENDER_RUNS))
        return false;
    wqe->verdict = VERDICT_OK;
    wqe->carriage = qp->link.carriage;
    wqe->exposed = false;
    wqe->read_part = 0;
    wqe->packets = 0;
    verdict = check_kind(qp, wqe, kind);
    if (likely(verdict == VERDICT_OK))
        verdict = unlikely(kind == REQUEST_LOCAL) ? execute_local(qp, wqe) : choose_reference(qp, wqe, kind);
    if (unlikely(verdict != VERDICT_OK)) {
        sender->begun++;
        fail_here(sender, wqe, verdict);
        return true;
    }
    if (unlikely(kind == REQUEST_LOCAL)) {
        sender->begun++;
        traffic_add(&qp->record->traffic.requested[TRAFFIC_BY_REQUESTER][TRAFFIC_LOCAL], 0);
        return true;
    }
    packets = psns_of(qp, wqe, kind);
    if (unlikely(psn_distance(sender->unacked_psn, sender->next_psn) + packets > WINDOW_PSNS)) {
        sender->waiting = SENDER_WAITS_FOR_WINDOW;
        return false;
    }
    sender->begun++;
    wqe->first_psn = sender->next_psn;
    wqe->packets = packets;
    sender->next_psn = psn_add(sender->next_psn, packets);
    traffic_add(&qp->record->traffic.requested[TRAFFIC_BY_PACKETS][kind], wqe->length);
    if (kind == REQUEST_SEND || wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        begin_two_sided(qp, wqe, kind);
    if (awaits_response(wqe)) {
        sender->rd_atomic_wqes++;
        sender->references_requested += goes_by_reference(wqe);
    }
    if (unlikely(!qp->link.reliable))
        window_number(qp, wqe);
    return true;
}

/* --- transmitting --------------------------------------------------------------------------------- */

/* An acknowledgement that is due rides on the request, unless a response or NAK has to go before it. */
static inline bool add_ack(const struct transport_qp *qp, struct packet *packet)
{
    const struct responder *responder = &qp->record->responder;

    if (!qp->link.piggyback_acks || !responder_owes_only_ack(qp))
        return false;
    packet->flags |= PACKET_HAS_ACK;
    packet->ack_psn = psn_add(responder->expected_psn, PSN_MASK);
    return true;
}

static void clear_ack(struct responder *responder)
{
    responder->ack_owed = 0;
    responder->acks_owed = 0;
}

static bool wants_ack(const struct transport_qp *qp, const struct send_wqe *wqe, bool last)
{
    return is_reliable(qp->record) && (last || window_wants_ack(qp, wqe));
}

/* Opcode, and the headers that only the first or the last packet of a message has. */
static inline void fill_message(struct transport_qp *qp, const struct send_wqe *wqe,
                                const struct request_form *form, struct packet *packet)
{
    uint32_t at = qp->record->sender.next_offset;
    bool first = at == 0, last = at + 1 == wqe->packets;
    uint8_t opcode = first ? last ? form->only : form->first : last ? form->last : form->middle;

    packet->opcode |= opcode;
    if (first && form->kind == REQUEST_WRITE) {
        packet->rkey = wqe->rkey;
        packet->address = wqe->remote_address;
        packet->dma_length = wqe->length;
    }
    if (last) {
        if ((wqe->flags & WQE_SOLICITED) && wqe->opcode != IBV_WR_RDMA_WRITE)
            packet->flags |= PACKET_SOLICITED;
        packet->imm_data = wqe->imm_or_rkey;
        packet->invalidate_rkey = wqe->imm_or_rkey;
    }
    if (likely(qp->link.reliable) ? last : wants_ack(qp, wqe, last))
        packet->flags |= PACKET_ACK_REQUEST;
}

/* Is the next packet in the second half of a message that is deposited? The peer fetches the first half meanwhile. */
static bool is_deposited(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    const struct sender *sender = &qp->record->sender;

    return qp->deposits && sender->next + 1 == sender->begun &&
           sender->next_offset >= wqe->packets - wqe->packets / 2;
}

/* Sends one packet with its payload, after the last checks. -EPROTO: the WQE has failed. */
static int transmit_message(struct transport_qp *qp, struct send_wqe *wqe, const struct request_form *form,
                            struct packet *packet)
{
    uint32_t mtu = packet_mtu(qp, wqe);
    uint32_t offset = qp->record->sender.next_offset * mtu;
    uint32_t length = min_of(wqe->length - offset, mtu);
    struct packet_reference references[PACKET_REFERENCES];
    struct wqe_sge *sge = send_wqe_body(wqe, IBV_QPT_RC);
    struct gather gather;
    enum verdict verdict;
    uint32_t deposit_bits;
    int error;

    fill_message(qp, wqe, form, packet);
    packet->payload_length = length;
    if (!length)
        return qp->ports->send(qp, packet, NULL, 0, NULL);
    if (wqe->flags & WQE_INLINE) {
        struct iovec vector = {.iov_base = (char *)sge + offset, .iov_len = length};

        return qp->ports->send(qp, packet, &vector, 1, NULL);
    }
    if (likely(wqe->num_sge == 1 && !goes_by_reference(wqe))) {
        struct memory_range range;

        verdict =
            keys_check_local(qp->keys, qp->record->pd, sge->lkey, sge->address, sge->length, false, &range);
        if (likely(verdict == VERDICT_OK && range.kind != KEY_REGION_NULL && !range.on_demand)) {
            struct iovec vector = {.iov_base = (void *)(uintptr_t)(range.address + offset),
                                   .iov_len = length};

            return qp->ports->send(qp, packet, &vector, 1, NULL);
        }
    }
    verdict = gather_range(qp, sge, wqe->num_sge, qp->record->pd, offset, length, false, &gather);
    if (unlikely(verdict != VERDICT_OK)) {
        fail_here(&qp->record->sender, wqe, verdict);
        return -EPROTO;
    }
    if (!goes_by_reference(wqe))
        return qp->ports->send(qp, packet, gather.vector, gather.count, NULL);

    packet->flags |= PACKET_BY_REFERENCE;
    packet->reference = references;
    packet->reference_count = gather.count;
    for (unsigned i = 0; i < gather.count; i++)
        references[i] = (struct packet_reference){.address = (uintptr_t)gather.vector[i].iov_base,
                                                  .length = (uint32_t)gather.vector[i].iov_len,
                                                  .slot = gather.slot[i]};
    if (unlikely(is_deposited(qp, wqe)) &&
        qp->ports->direct->deposit(qp, offset, gather.vector, gather.count, &deposit_bits))
        references[0].slot |= deposit_bits;
    error = qp->ports->send(qp, packet, NULL, 0, NULL);
    if (!error) {
        wqe->exposed = true;
        note_exposed(qp);
    }
    return error;
}

static int transmit_rd_atomic(struct transport_qp *qp, struct send_wqe *wqe, const struct request_form *form,
                              uint32_t asked, struct packet *packet)
{
    enum verdict verdict;
    struct gather gather;

    gather.count = 0;
    packet->opcode |= form->only;
    packet->flags |= PACKET_ACK_REQUEST;
    verdict = sender_fill_rd_atomic(qp, wqe, (enum request_kind)form->kind, asked, packet, &gather);
    if (verdict != VERDICT_OK) {
        fail_here(&qp->record->sender, wqe, verdict);
        return -EPROTO;
    }
    return qp->ports->send(qp, packet, gather.vector, gather.count, NULL);
}

/* Sends the next packet of WQE `next`. 0, or -EHOSTUNREACH (the packet is lost): the sender has moved to the
 * following packet. Another error: it has not. */
static int transmit(struct transport_qp *qp, struct send_wqe *wqe, const struct request_form *form)
{
    struct qp_record *record = qp->record;
    struct sender *sender = &record->sender;
    bool rd_atomic = awaits_response(wqe);
    uint32_t psns = rd_atomic ? window_read_part(qp, wqe) : 1;
    struct packet packet;
    bool acknowledges;
    int error;

    packet_clear(&packet);
    packet.opcode = service_of(record);
    if (unlikely(record->type == IBV_QPT_XRC_SEND))
        packet.srqn = wqe_srqn(wqe);
    packet.pkey = DEFAULT_PKEY;
    packet.dest_qpn = record->attributes.dest_qpn;
    packet.src_qpn = atomic_load_explicit(&record->qpn, memory_order_relaxed);
    packet.psn = psn_add(wqe->first_psn, sender->next_offset);
    packet.dest_ifindex = record->attributes.path.destination_ifindex;
    packet.syndrome = (uint8_t)(qp->next_hints | (wqe->flags & WQE_SIGNALED ? qp->link.awaited : 0));
    qp->next_hints &= (uint8_t)~PACKET_TOGETHER;
    acknowledges = add_ack(qp, &packet);
    error = rd_atomic ? transmit_rd_atomic(qp, wqe, form, psns, &packet)
                      : transmit_message(qp, wqe, form, &packet);

    if (unlikely(error && error != -EHOSTUNREACH))
        return error;
    if (acknowledges)
        clear_ack(&record->responder);
    qp->next_hints &= (uint8_t)~PACKET_BEGINS;
    if (unlikely(!qp->link.reliable))
        window_sent(qp, wqe, psns, packet.flags & PACKET_ACK_REQUEST);
    sender->next_offset += psns;
    if (sender->next_offset == wqe->packets) {
        sender->next_offset = 0;
        sender->next++;
    }
    return error;
}

/* UC: a message whose bytes were sent is complete at once. A buffer that packets only refer to is exposed until the
 * peer acknowledges it (not a packet of IBA). */
bool sender_complete_unacknowledged(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;
    psn_t limit = sender->unacked_psn;

    for (uint32_t i = sender->completed; i != sender->next; i++) {
        const struct send_wqe *wqe = send_wqe_at(qp, i);

        if (wqe->verdict != VERDICT_OK)
            break;
        if (!wqe->packets)
            continue;
        if (goes_by_reference(wqe) &&
            psn_diff(sender->unacked_psn, psn_add(wqe->first_psn, wqe->packets)) < 0)
            break;
        limit = psn_add(wqe->first_psn, wqe->packets);
    }
    return sender_advance(qp, limit);
}

/* WQE `next` was never begun: executes it in mapped memory of the peer, or begins it. false: it waits. */
static inline bool begin_or_execute(struct transport_qp *qp, struct send_wqe *wqe,
                                    const struct request_form *form, uint32_t *bytes)
{
    enum direct direct = unlikely(qp->link.direct_up_to) ? direct_execute(qp, wqe, form->kind) : DIRECT_NOT;

    switch (direct) {
    case DIRECT_NOT:
        break;
    case DIRECT_DONE:
        *bytes += wqe->length;
        return true;
    case DIRECT_LATER:
        qp->record->sender.waiting = SENDER_WAITS_FOR_MAPPING;
        return false;
    case DIRECT_BEHIND:
        qp->record->sender.waiting = SENDER_WAITS_FOR_FENCE;
        return false;
    }
    return begin(qp, wqe, form);
}

/* Bytes that this process copies for the next packet: what one call of sender_run() is bounded by. A
 * deposited half is counted at the last packet. */
static inline uint32_t bytes_copied(const struct transport_qp *qp, const struct send_wqe *wqe)
{
    if (!goes_by_reference(wqe) && !awaits_response(wqe))
        return min_of(wqe->length, qp->link.mtu);
    if (unlikely(is_deposited(qp, wqe)) && qp->record->sender.next_offset + 1 == wqe->packets)
        return wqe->length / 2;
    return 0;
}

/* After transmit() has failed. false: nothing more is sent now. UC goes on after a lost packet. */
static cold_path bool go_on_after(struct transport_qp *qp, int error)
{
    struct sender *sender = &qp->record->sender;

    if (error == -EAGAIN) {
        sender->waiting = SENDER_WAITS_FOR_LINK;
        return false;
    }
    if (error == -EPROTO) {
        sender_advance(qp, sender->unacked_psn);
        return false;
    }
    sender_peer_silent(qp);
    return qp->record->type == IBV_QPT_UC;
}

static void run(struct transport_qp *qp, uint32_t limit)
{
    struct sender *sender = &qp->record->sender;
    bool uc = qp->record->type == IBV_QPT_UC, windowed = !qp->link.reliable && !uc;
    bool after_rd_atomic = false; /* the packet before was a READ, atomic or FLUSH request */
    uint32_t packets = 0, bytes = 0;

    sender->waiting = SENDER_RUNS;
    if (windowed)
        packets = sender_run_plain(qp, limit);
    while (sender->next != limit && packets < SLICE_PACKETS && bytes < SLICE_BYTES) {
        struct send_wqe *wqe = send_wqe_at(qp, sender->next);
        const struct request_form *form = form_of(wqe);
        bool together = false;
        int error;

        if (sender->next == sender->begun) {
            if (!begin_or_execute(qp, wqe, form, &bytes))
                return;
            together = after_rd_atomic;
        }
        if (unlikely(wqe->verdict != VERDICT_OK)) {
            sender->waiting = SENDER_WAITS_TO_FAIL;
            sender_advance(qp, sender->unacked_psn);
            return;
        }
        packets++;
        if (unlikely(!wqe->packets)) {
            sender->next++;
            if (!sender_advance(qp, sender->unacked_psn))
                return;
            continue;
        }
        if (windowed) {
            sender->waiting = (uint8_t)window_admits(qp, wqe);
            if (sender->waiting != SENDER_RUNS)
                return;
        }
        bytes += bytes_copied(qp, wqe);
        after_rd_atomic = awaits_response(wqe);
        if (unlikely(together && after_rd_atomic && (wqe->flags & WQE_CHAINED)))
            qp->next_hints |= PACKET_TOGETHER;
        error = transmit(qp, wqe, form);
        if (unlikely(error) && !go_on_after(qp, error))
            return;
        if (windowed)
            sender_arm(qp);
        if (uc && !sender_complete_unacknowledged(qp))
            return;
    }
}

/* sender_end_losses() */
static cold_path void run_held(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    run(qp, sender->begun);
    if (sender->waiting == SENDER_RUNS && sender->next == sender->begun)
        sender->waiting = SENDER_WAITS_AFTER_LOSSES;
}

static void run_up_to(struct transport_qp *qp, uint32_t limit)
{
    uint8_t waiting = qp->record->sender.waiting;

    if (waiting == SENDER_WAITS_FOR_RNR_TIMER || waiting == SENDER_WAITS_FOR_RETRY)
        return;
    if (unlikely(!is_connected(qp->record)))
        ud_send_run(qp, limit);
    else if (unlikely(qp->holds))
        run_held(qp);
    else
        run(qp, limit);
}

/* SQD: WQEs that are begun are completed; no WQE is begun. */
static cold_path void run_in_sqd(struct transport_qp *qp)
{
    struct sender *sender = &qp->record->sender;

    run_up_to(qp, sender->begun);
    if (sender->waiting == SENDER_RUNS && sender->next == sender->begun &&
        sender->begun != atomic_load_explicit(&sender->posted, memory_order_relaxed))
        sender->waiting = SENDER_WAITS_IN_SQD;
}

void sender_run(struct transport_qp *qp)
{
    switch (qp_state(qp)) {
    case IBV_QPS_RTS:
        run_up_to(qp, atomic_load_explicit(&qp->record->sender.posted, memory_order_relaxed));
        return;
    case IBV_QPS_SQD:
        run_in_sqd(qp);
        return;
    case IBV_QPS_SQE:
    case IBV_QPS_ERR:
        sender_flush(qp);
        return;
    case IBV_QPS_RESET:
    case IBV_QPS_INIT:
    case IBV_QPS_RTR:
    case IBV_QPS_UNKNOWN:
        return;
    }
}
