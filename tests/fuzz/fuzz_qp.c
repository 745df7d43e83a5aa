/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "fuzz_qp_parts.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "wire/codec.h"

struct key_table *keys;
static unsigned char *memory[MEMORY_COUNT];
static char *send_queue, *receive_queue;

static const uint32_t access_of[] = {
    [MEMORY_ALL] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                   IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND,
    [MEMORY_READ_ONLY] = IBV_ACCESS_REMOTE_READ,
    [MEMORY_LOCAL] = IBV_ACCESS_LOCAL_WRITE,
};

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

/* Copies of datagrams that wait. */
static char kept[FUZZ_DEPTH / 2][LIMIT_UD_PAYLOAD];

static void check_source(const struct fuzz_qp *qp, const struct packet *packet, const struct iovec *vector)
{
    bool answer = !(opcode_table[packet->opcode].properties & OPCODE_REQUEST);
    const char *at = vector->iov_base;

    if (lies_in(qp, MEMORY_ALL, at, vector->iov_len) || lies_in(qp, MEMORY_READ_ONLY, at, vector->iov_len))
        return;
    require(!answer); /* a peer reads what it may read */
    require(lies_in(qp, MEMORY_LOCAL, at, vector->iov_len) ||
            (at >= send_queue && at + vector->iov_len <= send_queue + FUZZ_DEPTH * SEND_STRIDE) ||
            (at >= kept[0] && at + vector->iov_len <= kept[0] + sizeof(kept)));
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

static void port_send_notice(struct transport_qp *transport, const struct packet *packet)
{
    abort(); /* the link loses packets */
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

static void port_complete_sends(struct transport_qp *transport, uint32_t counter, uint32_t count)
{
    for (uint32_t end = counter + count; counter != end; counter++) {
        const struct send_wqe *wqe = send_wqe_at(transport, counter);

        port_complete_send(transport, wqe, counter, VERDICT_OK, wqe->length);
    }
}

struct recv_wqe *receive_at(const struct fuzz_qp *qp, uint32_t counter)
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
    if (relay_is_away(&transport->relay) && qp->place != place && !may_move)
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

void enter_error(struct fuzz_qp *qp)
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

static bool port_alloc_copies(struct transport_qp *transport)
{
    transport->copies = kept[0];
    transport->copies_mask = FUZZ_DEPTH / 2 - 1;
    return true;
}

static void port_lock(struct transport_qp *transport)
{
}

/* Now and then no request is plain. */
static uint32_t port_begin_plain(struct transport_qp *transport, const struct wqe_sge *sge)
{
    return owner(transport)->plain_asked++ % 3;
}

static bool port_put_plain(struct transport_qp *transport, struct packet *packet, const struct wqe_sge *sge)
{
    struct iovec payload = {(void *)(uintptr_t)packet->payload, packet->payload_length};
    struct memory_range range;

    if (sge) {
        if (keys_check_local(transport->keys, PD, sge->lkey, sge->address, sge->length, false, &range) !=
                VERDICT_OK ||
            range.kind != KEY_REGION)
            return false;
        payload.iov_base = (void *)(uintptr_t)range.address;
    }
    return port_send(transport, packet, &payload, 1, NULL) == 0;
}

static void port_end_plain(struct transport_qp *transport, psn_t first, uint32_t count)
{
}

static const struct transport_plain_ports plain_ports = {
    .begin = port_begin_plain,
    .put = port_put_plain,
    .end = port_end_plain,
};

static const struct transport_reference_ports reference_ports = {
    .pull = port_pull,
    .revoke = port_revoke,
};

static const struct transport_xrc_ports xrc_ports = {
    .select_srq = port_select_srq,
    .hand_over = port_hand_over,
};

/* Direct execution and tag matching are absent. */
static const struct transport_ports ports = {
    .send = port_send,
    .send_notice = port_send_notice,
    .alloc_copies = port_alloc_copies,
    .complete_send = port_complete_send,
    .complete_sends = port_complete_sends,
    .take_receive = port_take_receive,
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
    .reference = &reference_ports,
    .xrc = &xrc_ports,
    .plain = &plain_ports,
};

void publish_memory(enum fuzz_memory which)
{
    keys_publish_region(keys, 1 + which, KEY_REGION, PD, access_of[which], (uintptr_t)memory[which],
                        FUZZ_MEMORY, (uintptr_t)memory[which], which);
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
    keys_publish_mw(keys, 1 + MEMORY_COUNT, KEY_MW_TYPE_2, PD, 9);
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
        .rare = &qp->rare,
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
    keys_unbind_mw(keys, 1 + MEMORY_COUNT);
    for (unsigned i = 0; i <= MEMORY_COUNT; i++)
        keys_withdraw(keys, 1 + i);
}
