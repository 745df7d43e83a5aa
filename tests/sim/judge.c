/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "sim.h"

#include "wire/icrc.h"

static uint32_t hash_of(const struct iovec *gather, unsigned count)
{
    uint32_t crc = 0;

    for (unsigned i = 0; i < count; i++)
        crc = icrc_add(crc, gather[i].iov_base, gather[i].iov_len);
    return crc;
}

static uint32_t psns_of(const struct sim_qp *qp, const struct packet *packet)
{
    uint32_t mtu = qp->transport.link.mtu;

    if (BTH_OPERATION(packet->opcode) != OP_READ_REQUEST || packet->dma_length <= mtu)
        return 1;
    return (uint32_t)(((uint64_t)packet->dma_length + mtu - 1) / mtu);
}

static bool is_rd_atomic(const struct packet *packet)
{
    return (opcode_table[packet->opcode].properties & (OPCODE_READ | OPCODE_ATOMIC | OPCODE_FLUSH)) != 0;
}

static struct judged_rd_atomic rd_atomic_of(const struct sim_qp *qp, const struct packet *packet)
{
    return (struct judged_rd_atomic){
        .first = packet->psn,
        .psns = psns_of(qp, packet),
        .length = packet->dma_length,
        .rkey = packet->rkey,
        .address = packet->address,
        .opcode = packet->opcode,
        .srqn = packet->srqn,
        .answered = packet->psn,
    };
}

/* The latest request that contains the PSN; NULL: none. */
static struct judged_rd_atomic *find(struct judged_rd_atomic *requests, uint32_t count, psn_t psn)
{
    for (uint32_t i = count; i && count - i < JUDGE_RD_ATOMIC; i--) {
        struct judged_rd_atomic *request = &requests[(i - 1) % JUDGE_RD_ATOMIC];

        if (((psn.value - request->first.value) & PSN_MASK) < request->psns)
            return request;
    }
    return NULL;
}

static void check_size(const struct sim_qp *qp, const struct packet *packet, uint32_t properties)
{
    uint32_t mtu = qp->transport.link.mtu;

    if (properties & (OPCODE_FIRST | OPCODE_MIDDLE))
        assert_int_equal(packet->payload_length, mtu);
    else if (properties & OPCODE_LAST)
        assert_in_range(packet->payload_length, 1, mtu);
    else
        assert_in_range(packet->payload_length, 0, mtu);
}

/* --- requests ------------------------------------------------------------------------------------- */

static void new_request(struct sim_qp *qp, const struct packet *packet, uint32_t hash, uint32_t properties)
{
    struct judge *judge = &qp->judge;
    const uint32_t kind = OPCODE_SEND | OPCODE_WRITE;

    /* Messages are whole and follow each other. */
    if (properties & (OPCODE_FIRST | OPCODE_ONLY))
        assert_int_equal(judge->message, 0);
    else
        assert_int_equal(judge->message, properties & kind);
    judge->message = properties & (OPCODE_LAST | OPCODE_ONLY) ? 0 : properties & kind;
    if (is_rd_atomic(packet)) {
        const struct sender *sender = &qp->record.sender;
        unsigned outstanding = 1;

        for (uint32_t i = judge->asked_count; i && judge->asked_count - i < JUDGE_RD_ATOMIC; i--) {
            const struct judged_rd_atomic *asked = &judge->asked[(i - 1) % JUDGE_RD_ATOMIC];

            if (psn_diff(psn_add(asked->first, asked->psns), sender->unacked_psn) <= 0)
                break;
            outstanding++;
        }
        assert_in_range(outstanding, 1, qp->record.attributes.max_rd_atomic);
        judge->asked[judge->asked_count++ % JUDGE_RD_ATOMIC] = rd_atomic_of(qp, packet);
    }
    judge->sent[packet->psn.value % JUDGE_MEMORY] = (struct judged_packet){
        packet->psn, packet->opcode, packet->flags & PACKET_SOLICITED, packet->payload_length,
        hash,        packet->srqn};
    judge->next = psn_add(packet->psn, psns_of(qp, packet));
}

/* The same packet; or the rest of a READ, or a part of that. */
static void repeated_request(struct sim_qp *qp, const struct packet *packet, uint32_t hash)
{
    struct judge *judge = &qp->judge;
    const struct judged_packet *sent = &judge->sent[packet->psn.value % JUDGE_MEMORY];
    const struct judged_rd_atomic *asked;
    uint32_t offset;

    if (!is_rd_atomic(packet)) {
        assert_int_equal(sent->psn.value, packet->psn.value);
        assert_int_equal(sent->opcode, packet->opcode);
        assert_int_equal(sent->flags, packet->flags & PACKET_SOLICITED);
        assert_int_equal(sent->length, packet->payload_length);
        assert_int_equal(sent->hash, hash);
        assert_int_equal(sent->srqn, packet->srqn);
        return;
    }
    asked = find(judge->asked, judge->asked_count, packet->psn);
    assert_non_null(asked);
    offset = ((packet->psn.value - asked->first.value) & PSN_MASK) * qp->transport.link.mtu;
    assert_int_equal(asked->opcode, packet->opcode);
    assert_int_equal(asked->rkey, packet->rkey);
    assert_int_equal(asked->srqn, packet->srqn);
    assert_true(asked->address + offset == packet->address);
    if (BTH_OPERATION(packet->opcode) == OP_READ_REQUEST)
        assert_true((uint64_t)offset + packet->dma_length <= asked->length);
}

static void judge_request(struct sim_qp *qp, const struct packet *packet, uint32_t hash)
{
    struct judge *judge = &qp->judge;
    uint32_t properties = opcode_table[packet->opcode].properties;
    int32_t distance;

    if (!judge->begun)
        judge->next = psn_make(qp->record.attributes.sq_psn);
    judge->begun = true;
    distance = psn_diff(packet->psn, judge->next);
    assert_true(distance <= 0); /* no PSN is skipped */
    check_size(qp, packet, properties);
    if (is_reliable(&qp->record) && (properties & (OPCODE_LAST | OPCODE_ONLY)))
        assert_true(packet->flags & PACKET_ACK_REQUEST);
    if (!distance) {
        new_request(qp, packet, hash, properties);
    } else {
        assert_true(is_reliable(&qp->record));
        repeated_request(qp, packet, hash);
    }
}

/* --- responses ------------------------------------------------------------------------------------ */

/* An acknowledgement covers the responses before it, so these must have been sent. */
static void check_responded(const struct judge *judge, psn_t acknowledged)
{
    for (uint32_t i = 0; i < min_of(judge->received_count, (uint32_t)JUDGE_RD_ATOMIC); i++) {
        const struct judged_rd_atomic *request = &judge->received[i];
        psn_t end = psn_add(request->first, request->psns);

        if (!request->psns)
            continue;
        assert_true(psn_diff(end, acknowledged) > 0 || psn_diff(request->answered, end) >= 0);
    }
}

static void judge_acknowledgement(struct sim_qp *qp, const struct packet *packet)
{
    psn_t expected = qp->record.responder.expected_psn;

    switch (SYNDROME_KIND(packet->syndrome)) {
    case SYNDROME_ACK:
        assert_true(psn_diff(packet->psn, expected) < 0);
        check_responded(&qp->judge, psn_add(packet->psn, 1));
        break;
    case SYNDROME_RNR:
        assert_int_equal(packet->psn.value, expected.value);
        break;
    case SYNDROME_NAK:
        if (SYNDROME_VALUE(packet->syndrome) == NAK_SEQUENCE)
            assert_int_equal(packet->psn.value, expected.value);
        assert_true(psn_diff(packet->psn, expected) <= 0);
        break;
    default:
        fail();
    }
}

static bool answers_without_bytes(const struct judged_rd_atomic *request)
{
    return BTH_OPERATION(request->opcode) == OP_FLUSH || BTH_OPERATION(request->opcode) == OP_ATOMIC_WRITE;
}

static void judge_read_response(struct sim_qp *qp, const struct packet *packet, uint32_t properties)
{
    struct judged_rd_atomic *request = find(qp->judge.received, qp->judge.received_count, packet->psn);

    assert_non_null(request);
    if (answers_without_bytes(request)) {
        assert_true(properties & OPCODE_ONLY);
        assert_int_equal(packet->payload_length, 0);
    } else {
        assert_int_equal(BTH_OPERATION(request->opcode), OP_READ_REQUEST);
    }
    check_size(qp, packet, properties);
    if (properties & (OPCODE_MIDDLE | OPCODE_LAST)) {
        assert_true(request->goes_on);
        assert_int_equal(packet->psn.value, request->next.value);
    }
    request->next = psn_add(packet->psn, 1);
    request->goes_on = (properties & (OPCODE_FIRST | OPCODE_MIDDLE)) != 0;
    if (psn_diff(request->next, request->answered) > 0)
        request->answered = request->next;
}

static void judge_response(struct sim_qp *qp, const struct packet *packet)
{
    uint32_t properties = opcode_table[packet->opcode].properties;
    struct judge *judge = &qp->judge;

    assert_true(is_reliable(&qp->record));
    if (properties & OPCODE_HAS_AETH) {
        assert_true(psn_diff(psn_make(packet->msn), psn_make(judge->msn)) >= 0);
        judge->msn = packet->msn;
    }
    if (properties & OPCODE_READ) {
        judge_read_response(qp, packet, properties);
    } else if (properties & OPCODE_ATOMIC) {
        struct judged_rd_atomic *request = find(judge->received, judge->received_count, packet->psn);

        assert_non_null(request);
        assert_int_not_equal(BTH_OPERATION(request->opcode), OP_READ_REQUEST);
        assert_false(answers_without_bytes(request));
        request->answered = psn_add(packet->psn, 1);
    } else {
        judge_acknowledgement(qp, packet);
    }
}

static unsigned service_of(uint32_t type)
{
    return type == IBV_QPT_RC ? SERVICE_RC : type == IBV_QPT_UC ? SERVICE_UC : SERVICE_XRC;
}

/* --- both ----------------------------------------------------------------------------------------- */

void judge_sent(struct sim_qp *qp, const struct packet *packet, const struct iovec *gather, unsigned count)
{
    assert_non_null(opcode_table[packet->opcode].name);
    assert_int_equal(packet->pkey, 0xffff);
    if (qp->record.type == IBV_QPT_UD)
        assert_int_equal(packet->opcode & 0xe0, SERVICE_UD);
    else
        assert_int_equal(packet->opcode & 0xe0, service_of(qp->record.type));
    if (opcode_table[packet->opcode].properties & OPCODE_HAS_XRCETH)
        assert_in_range(packet->srqn, SIM_SRQN, SIM_SRQN + 2 * SIM_OTHER_SRQ);
    if (opcode_table[packet->opcode].properties & OPCODE_REQUEST)
        judge_request(qp, packet, hash_of(gather, count));
    else
        judge_response(qp, packet);
}

/* Called before the QP receives the packet. */
void judge_received(struct sim_qp *qp, const struct packet *packet)
{
    struct judge *judge = &qp->judge;
    struct judged_rd_atomic *before;

    if (!is_reliable(&qp->record) || !is_rd_atomic(packet) ||
        !(opcode_table[packet->opcode].properties & OPCODE_REQUEST))
        return;
    if (!psn_equal(packet->psn, qp->record.responder.expected_psn))
        return; /* a duplicate, or behind a gap */
    before = find(judge->received, judge->received_count, packet->psn);
    if (before) /* repeated, as a whole or from here, because the response could not be passed on (XRC) */
        before->psns = (packet->psn.value - before->first.value) & PSN_MASK;
    judge->received[judge->received_count++ % JUDGE_RD_ATOMIC] = rd_atomic_of(qp, packet);
}

void judge_reset_sender(struct sim_qp *qp)
{
    struct judge *judge = &qp->judge;

    judge->begun = false;
    judge->message = 0;
    judge->asked_count = 0;
}

void judge_reset_responder(struct sim_qp *qp)
{
    struct judge *judge = &qp->judge;

    judge->received_count = 0;
    judge->msn = 0;
}
