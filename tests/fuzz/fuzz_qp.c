/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "fuzz_qp.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "wire/codec.h"

enum { PD = 7, SEND_STRIDE = 64 + 64 + 64 };

enum event {
    EVENT_PACKET,
    EVENT_RECEIVE,
    EVENT_SEND,
    EVENT_TIMER,
    EVENT_LINK,
    EVENT_RUN,
    EVENT_KEYS,
    EVENT_STATE,
    EVENT_CONGESTED,
    EVENT_COUNT
};

static struct key_table *keys;
static unsigned char *memory[MEMORY_COUNT];
static char *send_queue, *receive_queue;

static const uint32_t access_of[] = {
    [MEMORY_ALL] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                   IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND,
    [MEMORY_READ_ONLY] = IBV_ACCESS_REMOTE_READ,
    [MEMORY_LOCAL] = IBV_ACCESS_LOCAL_WRITE,
};

/* --- input ---------------------------------------------------------------------------------------- */

uint8_t fuzz_take(struct fuzz_input *input)
{
    return input->at < input->end ? *input->at++ : 0;
}

uint32_t fuzz_take16(struct fuzz_input *input)
{
    uint32_t high = fuzz_take(input);

    return high << 8 | fuzz_take(input);
}

/* --- the owner's part ----------------------------------------------------------------------------- */

static struct fuzz_qp *owner(struct transport_qp *transport)
{
    return container_of(transport, struct fuzz_qp, transport);
}

static bool lies_in(const struct fuzz_qp *qp, enum fuzz_memory which, const void *address, size_t length)
{
    const unsigned char *begin = address;

    return begin >= qp->memory[which] && length <= FUZZ_MEMORY &&
           begin + length <= qp->memory[which] + FUZZ_MEMORY;
}

static void check_source(const struct fuzz_qp *qp, const struct packet *packet, const struct iovec *vector)
{
    bool answer = !(opcode_table[packet->opcode].properties & OPCODE_REQUEST);
    const char *at = vector->iov_base;

    if (lies_in(qp, MEMORY_ALL, at, vector->iov_len) || lies_in(qp, MEMORY_READ_ONLY, at, vector->iov_len))
        return;
    require(!answer); /* a peer reads what it may read */
    require(lies_in(qp, MEMORY_LOCAL, at, vector->iov_len) ||
            (at >= send_queue && at + vector->iov_len <= send_queue + FUZZ_DEPTH * SEND_STRIDE));
}

static int port_send(struct transport_qp *transport, const struct packet *packet, const struct iovec *gather,
                     unsigned count, const struct path_address *to)
{
    struct fuzz_qp *qp = owner(transport);
    const struct opcode_info *info = &opcode_table[packet->opcode];
    const struct sender *sender = &qp->record.sender;
    uint8_t headers[HEADER_LENGTH_MAX];
    size_t length = 0;

    require(info->name && codec_encode(packet, headers) == info->header_length);
    require(!(packet->flags & ~(PACKET_SOLICITED | PACKET_ACK_REQUEST)) && !packet->reference_count);
    require(packet->payload_length <= FUZZ_MTU);
    require(!packet->payload_length || (info->properties & OPCODE_HAS_PAYLOAD));
    require((to != NULL) == (qp->record.type == IBV_QPT_UD));
    for (unsigned i = 0; i < count; i++) {
        check_source(qp, packet, &gather[i]);
        length += gather[i].iov_len;
    }
    require(length == packet->payload_length);
    if (qp->link_full)
        return -EAGAIN;
    if (!(info->properties & OPCODE_REQUEST)) {
        require(is_reliable(&qp->record));
        qp->answers++;
        if (!(info->properties & OPCODE_READ))
            qp->bytes_out += codec_udp_payload_length(packet);
    } else if (is_reliable(&qp->record)) {
        /* What is on its way is bounded, whatever the peer says. */
        require(((packet->psn.value - sender->unacked_psn.value) & PSN_MASK) < WINDOW_DEFAULT + 32);
    }
    return 0;
}

static int port_pull(struct transport_qp *transport, const struct packet *packet, const struct iovec *to,
                     unsigned to_count)
{
    abort(); /* the link has no references */
}

static void port_revoke(struct transport_qp *transport)
{
    abort();
}

static void port_complete_send(struct transport_qp *transport, const struct send_wqe *wqe, uint32_t counter,
                               enum verdict verdict, uint32_t byte_len)
{
    struct fuzz_qp *qp = owner(transport);

    require(counter == qp->sends_completed && wqe == send_wqe_at(transport, counter));
    require(wqe->wr_id == counter);
    require((int32_t)(atomic_load(&qp->record.sender.posted) - counter) > 0);
    qp->sends_completed++;
    atomic_store(&qp->record.sender.retired, counter + 1);
}

static struct recv_wqe *receive_at(const struct fuzz_qp *qp, uint32_t counter)
{
    return (struct recv_wqe *)(qp->receives + (counter % FUZZ_DEPTH) * RECV_WQE_SIZE(FUZZ_SGE));
}

static int port_take_receive(struct transport_qp *transport, const struct recv_wqe **ret_wqe)
{
    struct fuzz_qp *qp = owner(transport);

    require(!qp->taken);
    if (qp->receives_taken == qp->receives_posted)
        return -ENOENT;
    qp->taken = true;
    *ret_wqe = receive_at(qp, qp->receives_taken);
    return 0;
}

static bool port_select_srq(struct transport_qp *transport, uint32_t srqn)
{
    return srqn % 5 != 4;
}

/* Processes by the number of the SRQ: this one, two others, and one that the input knows. */
static int port_hand_over(struct transport_qp *transport, const struct packet *packet, bool may_move)
{
    static const int answers[] = {0, -ENOENT, -EAGAIN, -EINVAL};
    struct fuzz_qp *qp = owner(transport);
    uint32_t place = packet->srqn % 4;

    require(!(packet->flags & PACKET_BY_REFERENCE));
    if (place == 3)
        return answers[fuzz_take(&qp->input) % 4];
    if (!place)
        return -ENOENT;
    if (transport->relay.away && qp->place != place && !may_move)
        return -EAGAIN;
    qp->place = place;
    return 0;
}

static void port_complete_receive(struct transport_qp *transport, const struct receive_completion *completion)
{
    struct fuzz_qp *qp = owner(transport);
    uint64_t room = qp->record.type == IBV_QPT_UD ? 0 : FUZZ_SGE * (uint64_t)FUZZ_MEMORY;

    require(qp->taken);
    qp->taken = false;
    qp->receives_taken++;
    require(completion->verdict != VERDICT_OK || completion->opcode != IBV_WC_RECV || !room ||
            completion->byte_len <= room);
}

static void port_raise_event(struct transport_qp *transport, enum ibv_event_type event)
{
    require(event == IBV_EVENT_COMM_EST || event == IBV_EVENT_QP_ACCESS_ERR || event == IBV_EVENT_QP_REQ_ERR);
}

static void enter_error(struct fuzz_qp *qp)
{
    atomic_store(&qp->record.state, IBV_QPS_ERR);
    sender_flush(&qp->transport);
    responder_flush(&qp->transport);
    require(!qp->taken);
    require(qp->sends_completed == atomic_load(&qp->record.sender.posted));
}

static void port_failed(struct transport_qp *transport)
{
    struct fuzz_qp *qp = owner(transport);

    require(qp->record.state != IBV_QPS_ERR);
    qp->failures++;
    if (is_reliable(&qp->record)) {
        enter_error(qp);
    } else {
        atomic_store(&qp->record.state, IBV_QPS_SQE);
        sender_flush(transport);
    }
}

static void port_responder_failed(struct transport_qp *transport)
{
    struct fuzz_qp *qp = owner(transport);

    require(qp->record.type != IBV_QPT_UD && qp->record.state != IBV_QPS_ERR);
    enter_error(qp);
}

static void port_drained(struct transport_qp *transport)
{
    require(sender_is_drained(transport));
}

static ns_t port_now(struct transport_qp *transport)
{
    return owner(transport)->now;
}

static void port_set_timer(struct transport_qp *transport, ns_t delay)
{
    struct fuzz_qp *qp = owner(transport);

    require(delay);
    qp->timer_runs = delay != NS_NEVER;
}

static uint32_t port_random(struct transport_qp *transport)
{
    return 0x5bd1e995;
}

static void port_lock(struct transport_qp *transport)
{
}

static const struct transport_ports ports = {
    .send = port_send,
    .pull = port_pull,
    .revoke = port_revoke,
    .complete_send = port_complete_send,
    .take_receive = port_take_receive,
    .select_srq = port_select_srq,
    .hand_over = port_hand_over,
    .complete_receive = port_complete_receive,
    .raise_event = port_raise_event,
    .sender_failed = port_failed,
    .responder_failed = port_responder_failed,
    .drained = port_drained,
    .now = port_now,
    .set_timer = port_set_timer,
    .random = port_random,
    .lock_keys = port_lock,
    .unlock_keys = port_lock,
};

/* --- events --------------------------------------------------------------------------------------- */

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
        packet.flags |= choice >= 190 ? PACKET_DROPPED : 0;
        packet.payload = qp->memory[MEMORY_ALL];
        relay_answer(&qp->transport, &packet, opcode_table[packet.opcode].properties);
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

static void take_bind(struct fuzz_qp *qp, struct window_bind *bind)
{
    struct wqe_sge sge = take_sge(qp);

    *bind = (struct window_bind){
        .window_rkey = keys->entry[1 + MEMORY_COUNT].rkey,
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
        take_bind(qp, (struct window_bind *)sge);
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

static void publish_memory(unsigned which)
{
    keys_publish_region(keys, 1 + which, KEY_REGION, PD, access_of[which], (uintptr_t)memory[which],
                        FUZZ_MEMORY, (uintptr_t)memory[which], which);
}

static void change_keys(struct fuzz_qp *qp)
{
    unsigned which = fuzz_take(&qp->input) % MEMORY_FOREIGN;

    if (keys->entry[1 + which].windows)
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

/* What the owner does after everything that happens. */
static void settle(struct fuzz_qp *qp)
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

static void check(const struct fuzz_qp *qp)
{
    const struct sender *sender = &qp->record.sender;
    uint32_t posted = atomic_load(&sender->posted), retired = atomic_load(&sender->retired);

    require(posted - retired <= FUZZ_DEPTH && sender->completed - retired <= posted - retired);
    require(sender->begun - sender->completed <= posted - sender->completed);
    require(sender->next - sender->completed <= sender->begun - sender->completed);
    require(sender->completed == qp->sends_completed);
    require(sender->window >= 1 && sender->window <= WINDOW_DEFAULT);
    require(sender->questions <= qp->record.attributes.max_rd_atomic);
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

/* --- beginning and end ---------------------------------------------------------------------------- */

static void set_up(void)
{
    keys =
        mmap(NULL, sizeof(*keys), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(keys != MAP_FAILED);
    for (unsigned i = 0; i < MEMORY_COUNT; i++) {
        memory[i] = malloc(FUZZ_MEMORY); /* of its own, so that a sanitizer sees its ends */
        require(memory[i]);
    }
    send_queue = aligned_alloc(CACHE_LINE, FUZZ_DEPTH * SEND_STRIDE);
    receive_queue = malloc(FUZZ_DEPTH * RECV_WQE_SIZE(FUZZ_SGE));
    require(send_queue && receive_queue);
}

static unsigned char pattern(unsigned which)
{
    return (unsigned char)(0x30 + which);
}

/* All bytes are those of the pattern if the first is, and each is what the one before it is. */
static bool is_untouched(unsigned which)
{
    return memory[which][0] == pattern(which) && !memcmp(memory[which], memory[which] + 1, FUZZ_MEMORY - 1);
}

void fuzz_qp_begin(struct fuzz_qp *qp, const uint8_t *data, size_t size)
{
    static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_XRC_SEND, IBV_QPT_UC, IBV_QPT_UD};
    uint8_t choice;

    if (!keys)
        set_up();
    memset(qp, 0, sizeof(*qp));
    qp->input = (struct fuzz_input){data, data + size};
    for (unsigned i = 0; i < MEMORY_COUNT; i++) {
        memset(memory[i], pattern(i), FUZZ_MEMORY);
        qp->memory[i] = memory[i];
        if (i != MEMORY_FOREIGN)
            publish_memory(i);
    }
    keys_publish_window(keys, 1 + MEMORY_COUNT, KEY_WINDOW_TYPE_2, PD, 9);
    choice = fuzz_take(&qp->input);
    qp->record.qpn = 0x11;
    qp->record.type = (choice & 7) == 5 ? IBV_QPT_XRC_RECV : types[choice & 3];
    qp->record.pd = PD;
    qp->record.state = choice & 8 ? IBV_QPS_RTR : IBV_QPS_RTS;
    qp->record.send_depth = FUZZ_DEPTH;
    qp->record.send_stride = SEND_STRIDE;
    qp->record.responder.resources = 1 + (choice >> 2) % FUZZ_RESOURCES;
    qp->record.attributes = (struct qp_attributes){
        .dest_qpn = 0x22,
        .qkey = 0x1234,
        .access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
        .rq_psn = PSN_MASK - 3,
        .sq_psn = PSN_MASK - 5,
        .max_rd_atomic = (uint8_t)(1 + (choice >> 4) % 4),
        .min_rnr_timer = 12,
        .timeout = 14,
        .retry_count = choice >> 6,
        .rnr_retry = 3,
    };
    qp->transport = (struct transport_qp){
        .record = &qp->record,
        .ports = &ports,
        .keys = keys,
        .send_queue = send_queue,
        .send_mask = FUZZ_DEPTH - 1,
        .resources = qp->resources,
        .link = {.mtu = FUZZ_MTU},
        .receive_pd = PD,
    };
    qp->transport.relay.possible = qp->record.type == IBV_QPT_XRC_RECV;
    qp->receives = receive_queue;
    responder_start(&qp->transport);
    sender_start(&qp->transport);
}

/* Nobody answers any more: every work request ends, soon. */
static void let_it_end(struct fuzz_qp *qp)
{
    qp->link_full = false;
    if (qp->record.state == IBV_QPS_RTR || qp->record.state == IBV_QPS_SQD)
        atomic_store(&qp->record.state, IBV_QPS_RTS);
    if (qp->record.state == IBV_QPS_RTS)
        sender_run(&qp->transport);
    settle(qp);
    for (unsigned i = 0; qp->sends_completed != atomic_load(&qp->record.sender.posted); i++) {
        require(i < 64 && qp->timer_runs);
        qp->timer_runs = false;
        sender_timer(&qp->transport);
        settle(qp);
        check(qp);
    }
}

void fuzz_qp_end(struct fuzz_qp *qp)
{
    settle(qp);
    let_it_end(qp);
    if (qp->record.state != IBV_QPS_ERR)
        enter_error(qp);
    require(is_untouched(MEMORY_READ_ONLY) && is_untouched(MEMORY_FOREIGN));
    keys_unbind_window(keys, 1 + MEMORY_COUNT);
    for (unsigned i = 0; i <= MEMORY_COUNT; i++)
        keys_withdraw(keys, 1 + i);
}

/* --- seeds ---------------------------------------------------------------------------------------- */

void fuzz_write(struct fuzz_writer *writer, const void *bytes, size_t length)
{
    require(writer->length + length <= sizeof(writer->bytes));
    memcpy(writer->bytes + writer->length, bytes, length);
    writer->length += length;
}

static void write16(struct fuzz_writer *writer, uint32_t value)
{
    fuzz_write(writer, (uint8_t[]){(uint8_t)(value >> 8), (uint8_t)value}, 2);
}

static void write_packet(struct fuzz_writer *writer, uint8_t opcode, int psn, uint8_t syndrome, uint32_t srqn,
                         uint32_t length)
{
    struct packet packet = {
        .opcode = opcode,
        .flags = PACKET_ACK_REQUEST,
        .dest_qpn = 0x11,
        .psn = psn_make((uint16_t)psn),
        .syndrome = syndrome,
        .srqn = srqn,
        .dma_length = length,
        .payload_length = opcode_table[opcode].properties & OPCODE_HAS_PAYLOAD ? length : 0,
    };
    uint8_t bytes[HEADER_LENGTH_MAX];
    size_t headers = codec_encode(&packet, bytes);

    fuzz_write(writer, bytes, headers);
    write16(writer, packet.payload_length + codec_pad(packet.payload_length));
}

void fuzz_write_packet(struct fuzz_writer *writer, uint8_t opcode, int psn, uint8_t syndrome, uint32_t length)
{
    fuzz_write(writer, (uint8_t[]){EVENT_PACKET}, 1);
    write_packet(writer, opcode, psn, syndrome, 0, length);
}

void fuzz_write_xrc(struct fuzz_writer *writer, uint8_t opcode, int psn, uint32_t srqn, uint32_t length)
{
    fuzz_write(writer, (uint8_t[]){EVENT_PACKET}, 1);
    write_packet(writer, opcode, psn, 0x1f, srqn, length);
}

void fuzz_write_answer(struct fuzz_writer *writer, uint8_t choice, uint8_t opcode, int psn, uint8_t syndrome,
                       uint32_t length)
{
    fuzz_write(writer, (uint8_t[]){EVENT_CONGESTED, choice}, 2);
    if (choice < 200)
        write_packet(writer, opcode, psn, syndrome, 0, length);
}

void fuzz_write_receive(struct fuzz_writer *writer, uint32_t length)
{
    fuzz_write(writer, (uint8_t[]){EVENT_RECEIVE, 1, MEMORY_ALL}, 3);
    write16(writer, length);
    fuzz_write(writer, (uint8_t[]){0}, 1);
}

void fuzz_write_send(struct fuzz_writer *writer, uint8_t opcode, uint32_t length)
{
    fuzz_write(writer, (uint8_t[]){EVENT_SEND, opcode, WQE_SIGNALED, MEMORY_ALL, MEMORY_ALL}, 5);
    write16(writer, length);
    fuzz_write(writer, (uint8_t[]){0}, 1);
}

void fuzz_write_time(struct fuzz_writer *writer)
{
    fuzz_write(writer, (uint8_t[]){EVENT_TIMER, 12}, 2);
}
