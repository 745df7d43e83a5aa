/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "capture/cut.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/psn.h"
#include "base/types.h"
#include "wire/opcode.h"

/* AETH of an acknowledgement without flow control information (IBA 9.7.5.2.1). */
#define PLAIN_ACK 0x1f
#define NAK_BITS  0x60 /* of the syndrome: set in RNR NAKs and NAKs */

/* PSNs that are kept per direction of a connection: as many as are not acknowledged, within bounds. */
#define SENT_MIN 64u
#define SENT_MAX 32768u
/* A PSN that far ahead of the expected one is of packets that are missing; any other is of another connection. */
#define GAP_MAX     32768
#define CUT_MTU_MIN 256u
/* No link has larger packets, so a record makes no more than 1024. */
#define LINK_MTU_MAX (256u << 10)

/* What a packet of the link became. span: PSNs that a READ request takes on the link. */
struct sent {
    psn_t psn, cut_psn;
    uint32_t span, count;
    uint32_t parts;    /* that a packet of the response to a READ becomes, if it is full */
    uint32_t messages; /* that had ended with it */
};

/* Requests from one QP to another. */
struct flow {
    uint64_t key; /* source and destination QPN; 0: unused */
    bool begun;
    psn_t expected, next;         /* of the link, and its cut PSN */
    psn_t acked;                  /* of the link */
    uint32_t messages, msn_ahead; /* ended; added to that, the MSN */
    struct sent *sent;            /* by psn & (capacity - 1) */
    uint32_t capacity;
    struct sent last; /* that was looked for */
};

struct cutter {
    cut_emit *emit;
    void *argument;
    struct flow *flows; /* open addressing; capacity is a power of two */
    uint32_t flow_count, flow_capacity;
    char pending[CUT_COMMENT_MAX]; /* for the next packet */
    struct cut_packet out;
    uint32_t snap;
};

struct cutter *cutter_new(cut_emit *emit, void *argument)
{
    struct cutter *cutter = calloc(1, sizeof(*cutter));

    if (!cutter)
        return NULL;
    cutter->emit = emit;
    cutter->argument = argument;
    cutter->flow_capacity = 64;
    cutter->flows = calloc(cutter->flow_capacity, sizeof(*cutter->flows));
    if (cutter->flows)
        return cutter;
    free(cutter);
    return NULL;
}

void cutter_free(struct cutter *cutter)
{
    for (uint32_t i = 0; i < cutter->flow_capacity; i++)
        free(cutter->flows[i].sent);
    free(cutter->flows);
    free(cutter);
}

/* --- comments -------------------------------------------------------------------------------------------- */

static __attribute__((format(printf, 2, 3))) void add_comment(char *comment, const char *format, ...)
{
    size_t length = strlen(comment);
    va_list arguments;

    if (length && length + 3 < CUT_COMMENT_MAX) {
        memcpy(comment + length, "; ", 3);
        length += 2;
    }
    va_start(arguments, format);
    vsnprintf(comment + length, CUT_COMMENT_MAX - length, format, arguments);
    va_end(arguments);
}

static void add_fate(char *comment, const struct capture_record *record)
{
    static const char *const texts[CAPTURE_FATES] = {
        [CAPTURE_LOST] = "injected fault: the packet did not leave",
        [CAPTURE_TWICE] = "injected fault: the packet left twice",
        [CAPTURE_BROKEN] = "injected fault: the packet left with a wrong ICRC",
        [CAPTURE_HELD] = "injected fault: the packet left later",
        [CAPTURE_MARKED] = "injected fault: the packet left with the mark ECN CE",
    };

    if (record->fate < CAPTURE_FATES && texts[record->fate])
        add_comment(comment, "%s", texts[record->fate]);
    if (record->flags & CAPTURE_NOT_FETCHED)
        add_comment(comment, "payload unknown: the receiver dropped the message before it read it");
}

static void emit(struct cutter *cutter)
{
    if (cutter->pending[0]) {
        add_comment(cutter->out.comment, "%s", cutter->pending);
        cutter->pending[0] = '\0';
    }
    cutter->emit(&cutter->out, cutter->argument);
}

/* --- flows ----------------------------------------------------------------------------------------------- */

static uint32_t hash_of(uint64_t key)
{
    return (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> 32);
}

static struct flow *place_of(struct flow *flows, uint32_t capacity, uint64_t key)
{
    uint32_t i = hash_of(key) & (capacity - 1);

    while (flows[i].key && flows[i].key != key)
        i = (i + 1) & (capacity - 1);
    return &flows[i];
}

static bool grow_flows(struct cutter *cutter)
{
    uint32_t capacity = cutter->flow_capacity * 2;
    struct flow *flows = calloc(capacity, sizeof(*flows));

    if (!flows)
        return false;
    for (uint32_t i = 0; i < cutter->flow_capacity; i++) {
        if (cutter->flows[i].key)
            *place_of(flows, capacity, cutter->flows[i].key) = cutter->flows[i];
    }
    free(cutter->flows);
    cutter->flows = flows;
    cutter->flow_capacity = capacity;
    return true;
}

/* NULL: no memory. */
static struct flow *flow_of(struct cutter *cutter, uint32_t source, uint32_t destination)
{
    const uint64_t key = 1ull << 63 | (uint64_t)(source & PSN_MASK) << 24 | (destination & PSN_MASK);
    struct flow *flow = place_of(cutter->flows, cutter->flow_capacity, key);

    if (flow->key)
        return flow;
    if (cutter->flow_count * 2 >= cutter->flow_capacity) {
        if (!grow_flows(cutter))
            return NULL;
        flow = place_of(cutter->flows, cutter->flow_capacity, key);
    }
    flow->sent = calloc(SENT_MIN, sizeof(*flow->sent));
    if (!flow->sent)
        return NULL;
    flow->capacity = SENT_MIN;
    flow->key = key;
    cutter->flow_count++;
    return flow;
}

static void begin_flow(struct flow *flow, psn_t psn)
{
    memset(flow->sent, 0, flow->capacity * sizeof(*flow->sent));
    memset(&flow->last, 0, sizeof(flow->last));
    flow->begun = true;
    flow->expected = flow->next = psn;
    flow->acked = psn_add(psn, PSN_MASK);
    flow->messages = flow->msn_ahead = 0;
}

/* span 0: the slot was not used. */
static struct sent *slot_of(const struct flow *flow, psn_t psn)
{
    return &flow->sent[psn.value & (flow->capacity - 1)];
}

static void grow_sent(struct flow *flow)
{
    struct flow larger = *flow;

    larger.capacity = flow->capacity * 2;
    larger.sent = calloc(larger.capacity, sizeof(*larger.sent));
    if (!larger.sent)
        return; /* older ones are forgotten */
    for (uint32_t i = 0; i < flow->capacity; i++) {
        if (flow->sent[i].span)
            *slot_of(&larger, flow->sent[i].psn) = flow->sent[i];
    }
    free(flow->sent);
    *flow = larger;
}

static void remember(struct flow *flow, const struct sent *sent)
{
    const struct sent *old = slot_of(flow, sent->psn);

    if (old->span && !psn_equal(old->psn, sent->psn) && psn_diff(old->psn, flow->acked) > 0 &&
        flow->capacity < SENT_MAX)
        grow_sent(flow);
    *slot_of(flow, sent->psn) = *sent;
}

static bool covers(const struct sent *sent, psn_t psn)
{
    int32_t ahead = psn_diff(psn, sent->psn);

    return sent->span && ahead >= 0 && (uint32_t)ahead < sent->span;
}

/* The request that has the PSN; NULL: it was not seen. */
static const struct sent *find(struct flow *flow, psn_t psn)
{
    if (covers(&flow->last, psn))
        return &flow->last;
    for (uint32_t back = 0; flow->begun && back < flow->capacity; back++) {
        psn_t first = psn_add(psn, PSN_MASK + 1 - back);
        const struct sent *sent = slot_of(flow, first);

        if (!sent->span || !psn_equal(sent->psn, first))
            continue;
        if (!covers(sent, psn))
            return NULL;
        flow->last = *sent;
        return &flow->last;
    }
    return NULL;
}

/* --- packets --------------------------------------------------------------------------------------------- */

static uint32_t packets_of(uint32_t length, uint32_t mtu)
{
    return length <= mtu ? 1 : (uint32_t)(((uint64_t)length + mtu - 1) / mtu);
}

/* A part of a packet with that opcode. first, last: of the message. */
static uint8_t opcode_of_part(uint8_t opcode, bool first, bool last)
{
    const uint8_t service = BTH_SERVICE(opcode);
    const uint32_t properties = opcode_table[opcode].properties;
    const uint8_t begin = properties & OPCODE_SEND    ? OP_SEND_FIRST
                          : properties & OPCODE_WRITE ? OP_WRITE_FIRST
                                                      : OP_READ_RESPONSE_FIRST;

    if (first)
        return last ? opcode : service | begin;
    if (!last)
        return (uint8_t)(service | (begin + 1));
    switch (BTH_OPERATION(opcode)) {
    case OP_SEND_ONLY:
        return service | OP_SEND_LAST;
    case OP_SEND_ONLY_IMM:
        return service | OP_SEND_LAST_IMM;
    case OP_SEND_ONLY_INVALIDATE:
        return service | OP_SEND_LAST_INVALIDATE;
    case OP_WRITE_ONLY:
        return service | OP_WRITE_LAST;
    case OP_WRITE_ONLY_IMM:
        return service | OP_WRITE_LAST_IMM;
    case OP_READ_RESPONSE_ONLY:
        return service | OP_READ_RESPONSE_LAST;
    default:
        return opcode;
    }
}

static void fill(const struct capture_record *record, struct packet *packet)
{
    packet_clear(packet);
    packet->opcode = record->opcode;
    packet->flags = record->packet_flags & (PACKET_SOLICITED | PACKET_ACK_REQUEST);
    if (!(opcode_table[record->opcode].properties & OPCODE_REQUEST))
        packet->flags = 0; /* PACKET_COMPLETES is between processes */
    packet->pkey = record->pkey;
    packet->dest_qpn = record->dest_qpn & PSN_MASK;
    packet->src_qpn = record->src_qpn & PSN_MASK;
    packet->psn = psn_make(record->psn);
    packet->syndrome = record->syndrome;
    packet->flush = record->flush;
    packet->msn = record->msn;
    packet->imm_data = record->imm_data;
    packet->invalidate_rkey = record->invalidate_rkey;
    packet->qkey = record->qkey;
    packet->rkey = record->rkey;
    packet->dma_length = record->dma_length;
    packet->address = record->address;
    packet->swap_add = record->swap_add;
    packet->compare = record->compare;
    packet->original = record->original;
    packet->payload_length = record->payload_length;
}

/* Takes the bytes that were captured of the next `length` bytes of payload. */
static void take_payload(struct cutter *cutter, uint32_t length, const uint8_t **payload, uint32_t *left)
{
    const uint32_t wanted = min_of(length, cutter->snap);

    cutter->out.payload = *payload;
    cutter->out.captured = min_of(wanted, *left);
    *payload += cutter->out.captured;
    *left -= cutter->out.captured;
}

/* Cuts a packet whose first part has that PSN. */
static void emit_parts(struct cutter *cutter, const struct packet *whole, uint32_t mtu, psn_t psn,
                       const uint8_t *payload, uint32_t captured, const char *comment)
{
    const uint32_t properties = opcode_table[whole->opcode].properties;
    const uint32_t parts = packets_of(whole->payload_length, mtu);

    for (uint32_t i = 0; i < parts; i++) {
        const uint32_t length = min_of(mtu, whole->payload_length - i * mtu);
        const bool last = i + 1 == parts;
        struct packet *packet = &cutter->out.packet;

        *packet = *whole;
        packet->psn = psn_add(psn, i);
        packet->payload_length = length;
        if (parts > 1)
            packet->opcode =
                opcode_of_part(whole->opcode, i == 0 && (properties & (OPCODE_FIRST | OPCODE_ONLY)),
                               last && (properties & (OPCODE_LAST | OPCODE_ONLY)));
        if (!last)
            packet->flags = 0;
        take_payload(cutter, length, &payload, &captured);
        snprintf(cutter->out.comment, sizeof(cutter->out.comment), "%s", i ? "" : comment);
        if (i)
            add_fate(cutter->out.comment, cutter->out.record); /* all parts have that of the whole */
        emit(cutter);
    }
}

/* --- between processes of one host ----------------------------------------------------------------------- */

/* Which PSN the request gets; true: it was seen before. */
static bool place_request(struct flow *flow, psn_t psn, char *comment, struct sent *ret)
{
    const struct sent *before;
    int32_t ahead;

    if (!flow->begun)
        begin_flow(flow, psn);
    ret->psn = psn;
    ahead = psn_diff(psn, flow->expected);
    before = ahead < 0 ? find(flow, psn) : NULL;
    if (before) { /* of a READ, the rest may be asked for again */
        *ret = *before;
        ret->cut_psn = psn_add(before->cut_psn, (uint32_t)psn_diff(psn, before->psn) * before->parts);
        return true;
    }
    if (ahead > 0 && ahead < GAP_MAX) {
        add_comment(comment, "packets before this one are missing in the capture");
        flow->next = psn_add(flow->next, (uint32_t)ahead);
    } else if (ahead) {
        begin_flow(flow, psn);
    }
    ret->cut_psn = flow->next;
    return false;
}

static void take_request(struct cutter *cutter, struct flow *flow, const struct capture_record *record,
                         const struct packet *packet, const uint8_t *payload)
{
    const uint32_t properties = opcode_table[packet->opcode].properties;
    const bool is_read = (properties & OPCODE_READ) != 0;
    char comment[CUT_COMMENT_MAX] = "";
    struct sent sent = {.span = 0};

    add_fate(comment, record);
    if (place_request(flow, packet->psn, comment, &sent)) {
        add_comment(comment, "sent again");
    } else {
        sent.parts = record->link_mtu / record->mtu;
        sent.span = is_read ? packets_of(packet->dma_length, record->link_mtu) : 1;
        sent.count = packets_of(is_read ? packet->dma_length : packet->payload_length, record->mtu);
        flow->messages += (properties & (OPCODE_LAST | OPCODE_ONLY)) != 0;
        sent.messages = flow->messages;
        flow->expected = psn_add(sent.psn, sent.span);
        flow->next = psn_add(sent.cut_psn, sent.count);
        remember(flow, &sent);
    }
    emit_parts(cutter, packet, record->mtu, sent.cut_psn, payload, record->captured, comment);
}

/* An acknowledgement names the last packet that it covers, a NAK the first that it does not. */
static psn_t cut_psn_of_answer(const struct flow *flow, const struct sent *sent, psn_t psn, bool is_nak)
{
    if (!sent)
        return flow->begun ? psn_add(flow->next, psn_distance(flow->expected, psn)) : psn;
    return is_nak ? sent->cut_psn : psn_add(sent->cut_psn, sent->count - 1);
}

/* sent: what it is about; NULL: that was not seen. */
static void take_acknowledgement(struct cutter *cutter, struct flow *flow, const struct sent *sent,
                                 struct packet *packet, const char *comment)
{
    const bool is_nak = packet->syndrome & NAK_BITS;

    if (sent && !is_nak) {
        flow->msn_ahead = packet->msn - sent->messages;
        flow->acked = packet->psn;
    }
    packet->psn = cut_psn_of_answer(flow, sent, packet->psn, is_nak);
    emit_parts(cutter, packet, UINT32_MAX, packet->psn, NULL, 0, comment);
}

static void take_response(struct cutter *cutter, struct flow *flow, const struct capture_record *record,
                          const struct packet *packet, const uint8_t *payload)
{
    const struct sent *sent = find(flow, packet->psn);
    char comment[CUT_COMMENT_MAX] = "";
    psn_t psn = packet->psn;

    add_fate(comment, record);
    if (sent) {
        psn = psn_add(sent->cut_psn, (uint32_t)psn_diff(packet->psn, sent->psn) * sent->parts);
        flow->acked = packet->psn;
        flow->msn_ahead = packet->msn - sent->messages;
    }
    emit_parts(cutter, packet, record->mtu, psn, payload, record->captured, comment);
}

/* On the link an acknowledgement may ride on a request. */
static void take_piggyback(struct cutter *cutter, const struct capture_record *record)
{
    struct flow *flow = flow_of(cutter, record->dest_qpn, record->src_qpn);
    const struct sent *sent = flow ? find(flow, psn_make(record->ack_psn)) : NULL;
    struct packet packet;

    if (!flow)
        return;
    fill(record, &packet);
    packet.opcode = (uint8_t)(BTH_SERVICE(record->opcode) | OP_ACKNOWLEDGE);
    packet.flags = 0;
    packet.payload_length = 0;
    packet.psn = psn_make(record->ack_psn);
    packet.syndrome = PLAIN_ACK;
    packet.msn = ((sent ? sent->messages : flow->messages) + flow->msn_ahead) & PSN_MASK;
    take_acknowledgement(cutter, flow, sent, &packet,
                         "reconstructed: this acknowledgement was carried by the request that follows");
}

static void take_of_link(struct cutter *cutter, const struct capture_record *record, const uint8_t *payload)
{
    const bool is_request = opcode_table[record->opcode].properties & OPCODE_REQUEST;
    struct packet packet;
    struct flow *flow;

    if (record->packet_flags & PACKET_HAS_ACK)
        take_piggyback(cutter, record);
    flow = is_request ? flow_of(cutter, record->src_qpn, record->dest_qpn)
                      : flow_of(cutter, record->dest_qpn, record->src_qpn);
    if (!flow)
        return;
    fill(record, &packet);
    if (is_request)
        take_request(cutter, flow, record, &packet, payload);
    else if (BTH_OPERATION(record->opcode) == OP_ACKNOWLEDGE)
        take_acknowledgement(cutter, flow, find(flow, packet.psn), &packet, "");
    else
        take_response(cutter, flow, record, &packet, payload);
}

/* --- all ------------------------------------------------------------------------------------------------- */

/* What the link says to itself is no packet of IBA. True: it was that. */
static bool take_control(struct cutter *cutter, const struct capture_record *record)
{
    const bool is_response = !(opcode_table[record->opcode].properties & OPCODE_REQUEST);

    if (record->opcode == OPCODE_CNP)
        return false;
    if (!opcode_table[record->opcode].name)
        add_comment(cutter->pending, "QP 0x%06x sent a request of unknown opcode 0x%02x to QP 0x%06x",
                    record->src_qpn & PSN_MASK, record->opcode, record->dest_qpn & PSN_MASK);
    else if (record->packet_flags & PACKET_DROPPED)
        add_comment(cutter->pending,
                    "SoftHCA's drop notice, which is not a packet of IBA: QP 0x%06x told QP 0x%06x that it "
                    "dropped a request",
                    record->src_qpn & PSN_MASK, record->dest_qpn & PSN_MASK);
    else if (!((record->flags & CAPTURE_UNACKED) && is_response))
        return false;
    return true;
}

static bool is_plausible(const struct capture_record *record)
{
    if (record->captured > record->payload_length)
        return false;
    if (record->opcode == OPCODE_CNP)
        return !record->payload_length && !(record->flags & CAPTURE_BY_LINK);
    if (!(record->flags & CAPTURE_BY_LINK))
        return record->payload_length <=
               (record->packet_flags & PACKET_FRAME ? CUT_PAYLOAD_MAX : CUT_PACKET_MAX);
    return record->mtu >= CUT_MTU_MIN && record->mtu <= CUT_PACKET_MAX && record->link_mtu >= record->mtu &&
           record->link_mtu <= LINK_MTU_MAX && record->payload_length <= record->link_mtu;
}

void cutter_take(struct cutter *cutter, const struct capture_record *record, const uint8_t *payload,
                 uint32_t snap)
{
    struct packet packet;
    char comment[CUT_COMMENT_MAX] = "";

    if (!is_plausible(record) || take_control(cutter, record))
        return;
    cutter->out.record = record;
    cutter->snap = snap;
    if (record->flags & CAPTURE_BY_LINK) {
        take_of_link(cutter, record, payload);
        return;
    }
    fill(record, &packet);
    add_fate(comment, record);
    emit_parts(cutter, &packet, UINT32_MAX, packet.psn, payload, record->captured, comment);
}
