/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What happens to the QP, as the input says. */
#include "fuzz_qp_parts.h"

#include <string.h>

#include "wire/codec.h"

uint8_t fuzz_take(struct fuzz_input *input)
{
    return input->at < input->end ? *input->at++ : 0;
}

uint32_t fuzz_take16(struct fuzz_input *input)
{
    uint32_t high = fuzz_take(input);

    return high << 8 | fuzz_take(input);
}

static uint32_t key_of(uint8_t choice, bool remote)
{
    const struct key_entry *entry = &keys->entry[1 + choice % (MEMORY_COUNT + 1)];

    return choice >= 250 ? 0xdead : remote ? entry->rkey : entry->lkey;
}

/* Mostly a range that there is; else one that is too long, or elsewhere. */
static struct wqe_sge take_sge(struct fuzz_qp *qp)
{
    uint8_t choice = fuzz_take(&qp->input);
    uint32_t length = fuzz_take16(&qp->input) & 0x1fff, offset = fuzz_take(&qp->input);

    return (struct wqe_sge){
        .address = (uintptr_t)qp->memory[choice % MEMORY_COUNT] + offset - (choice >= 248),
        .length = length,
        .lkey = key_of(choice % MEMORY_COUNT, choice >= 240),
    };
}

/* Numbers that nobody would guess are chosen among: the PSN near the base, the key, an address in its memory.
 */
static void make_plausible(struct fuzz_qp *qp, struct packet *packet, psn_t base)
{
    if (packet->psn.value < 0x10000)
        packet->psn = psn_add(base, (uint32_t)(int32_t)(int16_t)packet->psn.value);
    if (packet->rkey < 256) {
        unsigned char *begin = qp->memory[packet->rkey % MEMORY_COUNT];

        packet->rkey = key_of((uint8_t)packet->rkey, true);
        if (packet->address < UINT32_MAX)
            packet->address = (uintptr_t)begin + (uint64_t)(int32_t)packet->address;
    }
    if (packet->invalidate_rkey < 256)
        packet->invalidate_rkey = key_of((uint8_t)packet->invalidate_rkey, true);
    if (packet->pkey < 0x100)
        packet->pkey = 0xffff;
    if (packet->qkey < 0x100)
        packet->qkey = qp->record.attributes.qkey;
}

/* false: what the input says is none. */
static bool take_packet(struct fuzz_qp *qp, psn_t base, uint8_t bytes[HEADER_LENGTH_MAX + 2 * FUZZ_MTU + 4],
                        struct packet *ret_packet)
{
    uint32_t headers, payload;

    bytes[0] = fuzz_take(&qp->input);
    headers = max_of(opcode_table[bytes[0]].header_length + 0u, (uint32_t)BTH_LENGTH);
    for (uint32_t i = 1; i < headers; i++)
        bytes[i] = fuzz_take(&qp->input);
    payload = (fuzz_take16(&qp->input) % (2 * FUZZ_MTU + 4)) & ~3u;
    memset(bytes + headers, 0xa5, payload);
    if (codec_decode(bytes, headers + payload, ret_packet))
        return false;
    make_plausible(qp, ret_packet, base);
    qp->packets_in++;
    qp->bytes_in += codec_udp_payload_length(ret_packet);
    return true;
}

static void receive_packet(struct fuzz_qp *qp, psn_t (*base)(const struct fuzz_qp *qp))
{
    uint8_t bytes[HEADER_LENGTH_MAX + 2 * FUZZ_MTU + 4];
    struct packet packet;

    if (take_packet(qp, base(qp), bytes, &packet) && qp->record.state != IBV_QPS_RESET)
        transport_receive(&qp->transport, &packet);
}

/* XRC: what becomes of requests that other processes got. */
static void hear_of_others(struct fuzz_qp *qp)
{
    uint8_t bytes[HEADER_LENGTH_MAX + 2 * FUZZ_MTU + 4], choice = fuzz_take(&qp->input);
    struct packet packet;

    if (qp->record.state == IBV_QPS_ERR)
        return;
    if (choice >= 250) {
        relay_lost(&qp->transport);
    } else if (choice >= 200) {
        relay_again(&qp->transport);
    } else if (take_packet(qp, qp->transport.relay.done, bytes, &packet) &&
               !(opcode_table[packet.opcode].properties & OPCODE_REQUEST)) {
        if (choice & 1) /* on a ring, memory may be named instead */
            packet.flags |= PACKET_BY_REFERENCE;
        if (choice >= 190)
            packet.flags |= PACKET_DROPPED;
        packet.payload = qp->memory[MEMORY_ALL];
        relay_response(&qp->transport, &packet, opcode_table[packet.opcode].properties);
    }
}

static void post_receive(struct fuzz_qp *qp)
{
    struct recv_wqe *wqe = receive_at(qp, qp->receives_posted);
    unsigned count = fuzz_take(&qp->input) % (FUZZ_SGE + 1);

    if (qp->receives_posted - qp->receives_taken == FUZZ_DEPTH)
        return;
    wqe->num_sge = count;
    for (unsigned i = 0; i < count; i++)
        wqe->sge[i] = take_sge(qp);
    qp->receives_posted++;
}

static void take_bind(struct fuzz_qp *qp, struct mw_bind *bind)
{
    struct wqe_sge sge = take_sge(qp);

    *bind = (struct mw_bind){
        .mw_rkey = keys->entry[1 + MEMORY_COUNT].rkey,
        .new_rkey = keys->entry[1 + MEMORY_COUNT].rkey ^ 1,
        .region_lkey = sge.lkey,
        .address = sge.address,
        .length = sge.length,
        .access = fuzz_take(&qp->input) & 0xe,
    };
}

static void post_send(struct fuzz_qp *qp)
{
    struct sender *sender = &qp->record.sender;
    struct send_wqe *wqe = send_wqe_at(&qp->transport, sender->posted);
    uint8_t opcode = fuzz_take(&qp->input), flags = fuzz_take(&qp->input);
    struct wqe_sge *sge = send_wqe_body(wqe, qp->record.type);

    if (sender->posted - sender->retired == FUZZ_DEPTH || qp->record.type == IBV_QPT_XRC_RECV)
        return;
    memset(wqe, 0xee, SEND_STRIDE);
    wqe->wr_id = sender->posted;
    wqe->opcode = opcode % (IBV_WR_DRIVER1 + 4);
    wqe->flags = flags & (WQE_SIGNALED | WQE_SOLICITED | WQE_FENCE);
    wqe->num_sge = 1 + (flags >> 7);
    wqe->length = 0;
    wqe->imm_or_rkey = key_of(fuzz_take(&qp->input), true);
    wqe->rkey = 1;
    wqe->remote_address = 0x1000;
    if (qp->record.type == IBV_QPT_UD) {
        wqe->ud.remote_qpn = 1;
        wqe->ud.remote_qkey = qp->record.attributes.qkey;
        memset(send_wqe_address(wqe), 0, sizeof(struct path_address));
    }
    if (qp->record.type == IBV_QPT_XRC_SEND)
        wqe_set_srqn(wqe, 1);
    if (wqe->opcode == IBV_WR_BIND_MW) {
        take_bind(qp, (struct mw_bind *)sge);
    } else if (flags & 0x40) {
        wqe->flags |= WQE_INLINE;
        wqe->num_sge = 0;
        wqe->length = fuzz_take(&qp->input) % 64;
    } else {
        for (unsigned i = 0; i < wqe->num_sge; i++) {
            sge[i] = take_sge(qp);
            wqe->length += sge[i].length;
        }
        if (wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            wqe->length = sge[0].length = 8;
    }
    atomic_store(&sender->posted, sender->posted + 1);
    sender_run(&qp->transport);
}

static void change_keys(struct fuzz_qp *qp)
{
    unsigned which = fuzz_take(&qp->input) % MEMORY_FOREIGN;

    if (keys->entry[1 + which].mws)
        return;
    keys_withdraw(keys, 1 + which);
    if (fuzz_take(&qp->input) & 1)
        publish_memory(which);
}

static void change_state(struct fuzz_qp *qp)
{
    uint8_t choice = fuzz_take(&qp->input);

    if (qp->record.state == IBV_QPS_ERR)
        return;
    if (choice == 255) {
        enter_error(qp);
        return;
    }
    /* Those that a program may ask for. */
    atomic_store(&qp->record.state,
                 qp->record.state == IBV_QPS_RTS && (choice & 1) ? IBV_QPS_SQD : IBV_QPS_RTS);
    sender_run(&qp->transport);
}

static void pass_time(struct fuzz_qp *qp)
{
    qp->now += 1000u << (fuzz_take(&qp->input) % 20);
    if (!qp->timer_runs)
        return;
    qp->timer_runs = false;
    sender_timer(&qp->transport);
}

void settle(struct fuzz_qp *qp)
{
    for (unsigned turns = 0; responder_owes(&qp->transport) && !qp->link_full; turns++) {
        require(turns < 10000);
        if (!responder_run(&qp->transport))
            break;
    }
    for (unsigned turns = 0; sender_wants_to_run(&qp->transport) && !qp->link_full; turns++) {
        require(turns < 10000);
        if (qp->record.state != IBV_QPS_RTS && qp->record.state != IBV_QPS_SQD)
            break;
        sender_run(&qp->transport);
    }
}

void check(const struct fuzz_qp *qp)
{
    const struct sender *sender = &qp->record.sender;
    uint32_t posted = atomic_load(&sender->posted), retired = atomic_load(&sender->retired);

    require(posted - retired <= FUZZ_DEPTH && sender->completed - retired <= posted - retired);
    require(sender->begun - sender->completed <= posted - sender->completed);
    require(sender->next - sender->completed <= sender->begun - sender->completed);
    require(sender->completed == qp->sends_completed);
    require(sender->window >= 1 && sender->window <= WINDOW_DEFAULT);
    require(sender->rd_atomic_packets <= qp->record.attributes.max_rd_atomic);
    /* One acknowledgement per packet, of four bytes more than the least request. */
    require(qp->bytes_out <= qp->bytes_in + 4 * qp->packets_in);
}

bool fuzz_qp_step(struct fuzz_qp *qp, psn_t (*base)(const struct fuzz_qp *qp))
{
    if (qp->input.at >= qp->input.end)
        return false;
    qp->now += 1000;
    switch ((enum event)(fuzz_take(&qp->input) % EVENT_COUNT)) {
    case EVENT_PACKET:
        receive_packet(qp, base);
        break;
    case EVENT_RECEIVE:
        post_receive(qp);
        break;
    case EVENT_SEND:
        post_send(qp);
        break;
    case EVENT_TIMER:
        pass_time(qp);
        break;
    case EVENT_LINK:
        qp->link_full = !qp->link_full;
        if (!qp->link_full && (qp->record.state == IBV_QPS_RTS || qp->record.state == IBV_QPS_SQD))
            sender_run(&qp->transport);
        break;
    case EVENT_RUN:
        responder_run(&qp->transport);
        break;
    case EVENT_KEYS:
        change_keys(qp);
        break;
    case EVENT_STATE:
        change_state(qp);
        break;
    case EVENT_CONGESTED:
        if (qp->record.type == IBV_QPT_XRC_RECV)
            hear_of_others(qp);
        else
            transport_congested(&qp->transport);
        break;
    case EVENT_COUNT:
        break;
    }
    settle(qp);
    check(qp);
    return true;
}
