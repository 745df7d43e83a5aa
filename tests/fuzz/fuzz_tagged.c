/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages to a tag matching SRQ: headers (wire/tmh.h), matching (transport/tags.c), rendezvous and its own READs and
 * FINs (transport/tagged.c), by way of responder and sender. The peer sends what it wants, answers READs wrongly,
 * late or never; the program adds and removes buffers, and the QP fails at any time.
 *
 * Each buffer that a message has matched is completed as the message's kind demands, and released, once. Each receive
 * that is taken is completed. Bytes go into the buffer of the message, which has just its size. A FIN has tag and
 * context of its message. The adapter has a bounded number of requests of its own. Unexpected messages are counted
 * once.
 *
 * Input: steps. A step begins with a byte that selects it. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "fuzz.h"
#include "input.h"
#include "rules/keys.h"
#include "transport/machine.h"
#include "transport/qp.h"
#include "wire/codec.h"
#include "wire/tmh.h"

#define TAGS      8u
#define RECEIVES  8u
#define SLOTS     32u /* of the send queue: all are for own requests */
#define STRIDE    192u
#define PD        7u
#define MTU       1024u
#define BUFFER    512u
#define STEPS     96u
#define RESOURCES 4u

static struct input input;
static struct qp_record record;
static struct qp_rare rare;
static struct transport_qp qp;
static struct responder_resource resources[RESOURCES];
static struct key_table *keys;
static char *send_queue;
static struct tag_list list;
static struct tag_entry entries[TAGS];
static unsigned char *tag_buffers[TAGS], *receive_buffers[RECEIVES];
static struct {
    bool matched;
    unsigned completions;
    bool rendezvous, has_data, failed;
} uses[TAGS];
static struct {
    _Alignas(8) unsigned char bytes[RECV_WQE_SIZE(1)];
} receives[RECEIVES];
static unsigned receives_posted, receives_taken;
static bool taken, link_full;
static uint32_t unexpected_reported;
static unsigned fins, reads;

/* --- the owner's part ----------------------------------------------------------------------------------- */

static unsigned index_of(uint64_t wr_id)
{
    require(wr_id >= 0x100 && wr_id < 0x100 + TAGS);
    return (unsigned)(wr_id - 0x100);
}

static int port_send(struct transport_qp *transport, const struct packet *packet, const struct iovec *gather,
                     unsigned count, const struct path_address *to)
{
    uint8_t headers[HEADER_LENGTH_MAX];
    size_t length = 0;

    require(codec_encode(packet, headers) == opcode_table[packet->opcode].header_length);
    for (unsigned i = 0; i < count; i++)
        length += gather[i].iov_len;
    require(length == packet->payload_length);
    if (link_full)
        return -EAGAIN;
    if ((opcode_table[packet->opcode].properties & OPCODE_SEND)) {
        struct tmh fin;

        require(length == TMH_SIZE);
        fin = tmh_decode(gather->iov_base);
        require(fin.opcode == TMH_FIN);
        fins++;
    } else if (packet->opcode == OP_READ_REQUEST) {
        require(packet->dma_length <= BUFFER);
        reads++;
    }
    return 0;
}

static void port_complete_send(struct transport_qp *transport, const struct send_wqe *wqe, uint32_t counter,
                               enum verdict verdict, uint32_t byte_len)
{
    require(false); /* the program has posted nothing */
}

static void port_complete_sends(struct transport_qp *transport, uint32_t counter, uint32_t count)
{
    for (uint32_t end = counter + count; counter != end; counter++) {
        const struct send_wqe *wqe = send_wqe_at(transport, counter);

        port_complete_send(transport, wqe, counter, VERDICT_OK, wqe->length);
    }
}

static const struct recv_wqe *take_next(void)
{
    require(!taken);
    if (receives_taken == receives_posted)
        return NULL;
    taken = true;
    return (const void *)receives[receives_taken % RECEIVES].bytes;
}

static int port_take_receive(struct transport_qp *transport, const struct recv_wqe **ret_wqe)
{
    *ret_wqe = take_next();
    return *ret_wqe ? 0 : -ENOENT;
}

static void port_complete_receive(struct transport_qp *transport, const struct receive_completion *completion)
{
    require(taken);
    taken = false;
    receives_taken++;
    require(completion->opcode == IBV_WC_TM_NO_TAG || completion->opcode == IBV_WC_TM_RECV ||
            completion->opcode == IBV_WC_RECV || completion->opcode == IBV_WC_RECV_RDMA_WITH_IMM);
    if (completion->opcode == IBV_WC_TM_RECV && completion->verdict == VERDICT_OK)
        unexpected_reported++;
    require(completion->verdict != VERDICT_OK || completion->opcode == IBV_WC_RECV_RDMA_WITH_IMM ||
            completion->byte_len <= BUFFER);
}

static int port_match(struct transport_qp *transport, uint64_t tag, struct tag_match *ret_match)
{
    unsigned which;

    ret_match->entry = tag_list_match(&list, tag);
    if (!ret_match->entry) {
        ret_match->receive = take_next();
        if (!ret_match->receive)
            return -ENOENT;
        tag_list_count(&list);
        return 0;
    }
    require((tag & ret_match->entry->mask) == ret_match->entry->tag);
    which = index_of(tag_receive(ret_match->entry)->wr_id);
    require(!uses[which].matched);
    memset(&uses[which], 0, sizeof(uses[which]));
    uses[which].matched = true;
    return 0;
}

static void port_release(struct transport_qp *transport, struct tag_entry *entry)
{
    unsigned which = index_of(tag_receive(entry)->wr_id);

    /* A rendezvous completes with the match, and with its data or an error. */
    require(uses[which].matched && entry->state == TAG_MATCHED);
    if (record.state != IBV_QPS_RESET)
        require(uses[which].completions == (uses[which].rendezvous ? 2 : 1));
    uses[which].matched = false;
    tag_list_release(&list, entry);
}

static void port_discount(struct transport_qp *transport)
{
    tag_list_discount(&list);
}

static void port_complete_tagged(struct transport_qp *transport, uint64_t wr_id,
                                 const struct receive_completion *completion)
{
    unsigned which = index_of(wr_id);

    require(uses[which].matched);
    if (completion->verdict == VERDICT_OK && (completion->wc_flags & IBV_WC_TM_MATCH) &&
        !(completion->wc_flags & IBV_WC_TM_DATA_VALID))
        uses[which].rendezvous = true;
    require(++uses[which].completions <= (uses[which].rendezvous ? 2 : 1));
    require(completion->verdict != VERDICT_OK || completion->byte_len <= BUFFER);
}

static void port_raise_event(struct transport_qp *transport, enum ibv_event_type event)
{
}

static void enter_error(void)
{
    if (record.state == IBV_QPS_ERR)
        return;
    atomic_store(&record.state, IBV_QPS_ERR);
    sender_flush(&qp);
    tagged_flush(&qp);
    responder_flush(&qp);
    require(!taken && !qp.tagged.fetch_first && !qp.tagged.entry);
    for (unsigned i = 0; i < TAGS; i++)
        require(!uses[i].matched);
}

static void port_failed(struct transport_qp *transport)
{
    enter_error();
}

static ns_t port_now(struct transport_qp *transport)
{
    return 1;
}

static void port_set_timer(struct transport_qp *transport, ns_t delay)
{
}

static uint32_t port_random(struct transport_qp *transport)
{
    return 1;
}

static void port_nothing(struct transport_qp *transport)
{
}

static void port_send_notice(struct transport_qp *transport, const struct packet *packet)
{
}

static const struct transport_tag_ports tag_ports = {.match = port_match,
                                                     .release = port_release,
                                                     .discount = port_discount,
                                                     .complete_tagged = port_complete_tagged};
static const struct transport_ports ports = {
    .send = port_send,
    .send_notice = port_send_notice,
    .complete_send = port_complete_send,
    .complete_sends = port_complete_sends,
    .take_receive = port_take_receive,
    .complete_receive = port_complete_receive,
    .raise_event = port_raise_event,
    .sender_failed = port_failed,
    .responder_failed = port_failed,
    .drained = port_nothing,
    .now = port_now,
    .set_timer = port_set_timer,
    .random = port_random,
    .lock_keys = port_nothing,
    .unlock_keys = port_nothing,
    .tag_matching = &tag_ports,
};

/* --- beginning ------------------------------------------------------------------------------------------ */

static uint32_t publish(uint32_t slot, unsigned char *buffer)
{
    keys_publish_region(keys, slot, KEY_REGION, PD, IBV_ACCESS_LOCAL_WRITE, (uintptr_t)buffer, BUFFER,
                        (uintptr_t)buffer, slot);
    return keys->entry[slot].lkey;
}

static void set_up(void)
{
    keys =
        mmap(NULL, sizeof(*keys), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    send_queue = aligned_alloc(CACHE_LINE, SLOTS * STRIDE);
    require(keys != MAP_FAILED && send_queue);
    for (unsigned i = 0; i < TAGS; i++)
        tag_buffers[i] = malloc(BUFFER); /* of its own, so that a sanitizer sees its ends */
    for (unsigned i = 0; i < RECEIVES; i++) {
        struct recv_wqe *wqe = (void *)receives[i].bytes;

        receive_buffers[i] = malloc(BUFFER);
        require(receive_buffers[i]);
        *wqe = (struct recv_wqe){.wr_id = i, .num_sge = 1};
        wqe->sge[0] =
            (struct wqe_sge){(uintptr_t)receive_buffers[i], BUFFER, publish(1 + i, receive_buffers[i])};
    }
    for (unsigned i = 0; i < TAGS; i++) {
        require(tag_buffers[i]);
        publish(1 + RECEIVES + i, tag_buffers[i]);
    }
}

static void start(void)
{
    memset(&record, 0, sizeof(record));
    memset(&rare, 0, sizeof(rare));
    memset(&qp, 0, sizeof(qp));
    memset(entries, 0, sizeof(entries));
    memset(uses, 0, sizeof(uses));
    memset(resources, 0, sizeof(resources));
    receives_posted = RECEIVES / 2;
    receives_taken = 0;
    taken = link_full = false;
    unexpected_reported = fins = reads = 0;
    tag_list_init(&list, entries, TAGS);
    record.qpn = 0x11;
    record.type = IBV_QPT_RC;
    record.pd = PD;
    record.state = IBV_QPS_RTS;
    record.send_depth = SLOTS;
    record.own_depth = SLOTS;
    record.send_stride = STRIDE;
    record.responder.resources = RESOURCES;
    record.attributes = (struct qp_attributes){.dest_qpn = 0x22,
                                               .rq_psn = 5,
                                               .sq_psn = 9,
                                               .max_rd_atomic = 2,
                                               .min_rnr_timer = 1,
                                               .timeout = 14,
                                               .retry_count = 2,
                                               .rnr_retry = 2};
    qp.record = &record;
    qp.rare = &rare;
    qp.ports = &ports;
    qp.keys = keys;
    qp.send_queue = send_queue;
    qp.send_mask = SLOTS - 1;
    qp.resources = resources;
    qp.link.mtu = MTU;
    qp.receive_pd = PD;
    qp.tag_matching = true;
    responder_start(&qp);
    sender_start(&qp);
}

/* --- steps ---------------------------------------------------------------------------------------------- */

enum step { MESSAGE, ANSWER, ADDS, REMOVES, SYNCS, POSTS, RUNS, TIMER, FAILS, FULL, STEP_KINDS };

static void deliver(struct packet *packet, const uint8_t *bytes)
{
    uint8_t *copy = malloc(packet->payload_length ? packet->payload_length : 1);

    require(copy);
    memcpy(copy, bytes, packet->payload_length);
    packet->payload = copy;
    if (record.state == IBV_QPS_RTS) {
        transport_receive(&qp, packet);
        responder_run(&qp);
    }
    if (record.state == IBV_QPS_RTS)
        sender_run(&qp);
    free(copy);
}

static void send_message(uint8_t choice)
{
    static const uint8_t opcodes[] = {OP_SEND_ONLY,   OP_SEND_FIRST,    OP_SEND_LAST,
                                      OP_SEND_MIDDLE, OP_SEND_ONLY_IMM, OP_WRITE_ONLY_IMM};
    uint8_t bytes[MTU] = {0}, header = input_8(&input), change = input_8(&input);
    const struct tmh tmh = {.opcode = header % 5, .app_ctx = 0x77, .tag = header / 5 % 4};
    struct packet packet = {.opcode = SERVICE_RC | opcodes[choice % array_size(opcodes)],
                            .flags = PACKET_ACK_REQUEST,
                            .pkey = 0xffff,
                            .dest_qpn = 0x11,
                            .psn = psn_add(record.responder.expected_psn, change & 0x80 ? 3 : 0)};

    tmh_encode(&tmh, bytes);
    bytes[22] = 1; /* RVH: an address, an rkey, and a length */
    bytes[27] = 9;
    bytes[30] = change & 7;
    packet.payload_length = choice / 6 ? (uint32_t)(choice / 6) * 16u : change;
    if (packet.opcode == OP_SEND_FIRST || packet.opcode == OP_SEND_MIDDLE)
        packet.payload_length = MTU;
    if (packet.opcode == OP_WRITE_ONLY_IMM)
        packet.payload_length = 0;
    input_mutate(&input, bytes, 32);
    deliver(&packet, bytes);
}

/* The answer to the oldest request: right, or not. */
static void answer(uint8_t choice)
{
    static const uint8_t opcodes[] = {OP_READ_RESPONSE_ONLY, OP_ACKNOWLEDGE, OP_READ_RESPONSE_FIRST,
                                      OP_READ_RESPONSE_LAST, OP_ATOMIC_ACKNOWLEDGE};
    const struct sender *sender = &record.sender;
    const struct send_wqe *wqe = NULL;
    uint8_t bytes[MTU] = {0}, change = input_8(&input);
    struct packet packet = {.opcode = SERVICE_RC | opcodes[choice % array_size(opcodes)],
                            .pkey = 0xffff,
                            .dest_qpn = 0x11,
                            .psn = psn_add(sender->unacked_psn, choice / 5 % 4),
                            .syndrome = change & 0x80 ? change : 0x1f,
                            .msn = change};

    if (sender->own_posted != sender->own_completed)
        wqe = send_wqe_at(&qp, sender->own_completed);
    packet.payload_length = change & 0x40 ? change % 64 : wqe ? min_of(wqe->length, MTU) : 0;
    if (packet.opcode == OP_ACKNOWLEDGE || packet.opcode == OP_ATOMIC_ACKNOWLEDGE)
        packet.payload_length = 0;
    deliver(&packet, bytes);
}

static void add_buffer(uint8_t choice)
{
    struct tag_entry *entry = tag_list_add(&list, choice % 4, choice & 0x80 ? 0 : 3);
    unsigned which = 0;

    if (!entry)
        return;
    if (entry->mask == 0)
        entry->tag = 0;
    which = (unsigned)(entry - entries);
    tag_receive(entry)->wr_id = 0x100 + which;
    tag_receive(entry)->num_sge = 1;
    tag_receive(entry)->sge[0] =
        (struct wqe_sge){(uintptr_t)tag_buffers[which], BUFFER, keys->entry[1 + RECEIVES + which].lkey};
}

static void take_step(uint8_t choice)
{
    unsigned number = choice / STEP_KINDS;

    switch ((enum step)(choice % STEP_KINDS)) {
    case MESSAGE:
        send_message((uint8_t)number);
        break;
    case ANSWER:
        answer((uint8_t)number);
        break;
    case ADDS:
        add_buffer(input_8(&input));
        break;
    case REMOVES:
        (void)tag_list_remove(&list, input_8(&input) & 1 ? input_32(&input)
                                                         : tag_list_handle(&list, &entries[number % TAGS]));
        break;
    case SYNCS:
        tag_list_sync(&list, list.unexpected - number);
        break;
    case POSTS:
        if (receives_posted - receives_taken < RECEIVES - 1)
            receives_posted++;
        break;
    case RUNS:
        qp.building = number & 1;
        if (record.state == IBV_QPS_RTS)
            sender_run(&qp);
        break;
    case TIMER:
        if (record.state == IBV_QPS_RTS)
            sender_timer(&qp);
        break;
    case FAILS:
        if (number % 8 == 7)
            enter_error();
        break;
    case FULL:
        link_full = number & 1;
        if (!link_full && record.state == IBV_QPS_RTS)
            sender_run(&qp);
        break;
    case STEP_KINDS:
        break;
    }
}

static void check(void)
{
    unsigned matched = 0, dormant = 0, linked = 0, queued = 0, in_state = 0;
    uint32_t previous = UINT32_MAX;

    require(record.sender.own_posted - record.sender.own_completed <= OWN_REQUESTS);
    for (uint32_t slot = list.first; slot != UINT32_MAX; slot = entries[slot].next) {
        require(slot < TAGS && entries[slot].previous == previous && ++linked <= TAGS);
        require(entries[slot].state == TAG_LISTED || entries[slot].state == TAG_DORMANT);
        dormant += entries[slot].state == TAG_DORMANT;
        previous = slot;
    }
    require(list.last == previous && list.dormant == dormant);
    for (unsigned i = 0; i < TAGS; i++) {
        matched += uses[i].matched;
        in_state += entries[i].state == TAG_MATCHED;
    }
    for (const struct tag_entry *entry = qp.tagged.fetch_first; entry; entry = entry->next_fetch)
        require(++queued <= TAGS && entry->state == TAG_MATCHED);
    require(matched == in_state && queued + (qp.tagged.entry != NULL) == matched);
    require(unexpected_reported + (qp.tagged.kind == TAGGED_UNEXPECTED) == list.unexpected);
    require(fins <= 1000 && reads <= 1000);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!keys)
        set_up();
    input = (struct input){data, size};
    start();
    for (unsigned step = 0; input.left && step < STEPS; step++) {
        take_step(input_8(&input));
        check();
    }
    enter_error();
    check();
    return 0;
}

/* --- seeds ---------------------------------------------------------------------------------------------- */

#define STEP(step, number) (uint8_t)((number)*STEP_KINDS + (step))

void fuzz_seeds(fuzz_add *add)
{
    for (uint8_t kind = 0; kind < 5; kind++) {
        for (uint8_t tag = 0; tag < 3; tag++) {
            for (uint8_t change = 0; change < 4; change++) {
                const uint8_t header = (uint8_t)(kind + 5 * tag);
                const uint8_t bytes[] = {STEP(ADDS, 0),
                                         1,
                                         STEP(ADDS, 0),
                                         2,
                                         STEP(ADDS, 0),
                                         0x81,
                                         STEP(MESSAGE, 12),
                                         header,
                                         1,
                                         0,
                                         STEP(ANSWER, 0),
                                         0,
                                         STEP(ANSWER, 1),
                                         0,
                                         STEP(MESSAGE, 12),
                                         header,
                                         2,
                                         0,
                                         STEP(ANSWER, 1 + change),
                                         0,
                                         STEP(MESSAGE, change),
                                         header,
                                         32,
                                         0,
                                         STEP(MESSAGE, 2),
                                         header,
                                         9,
                                         0,
                                         STEP(SYNCS, 0),
                                         STEP(ADDS, 0),
                                         1,
                                         STEP(REMOVES, change),
                                         0,
                                         STEP(RUNS, 1),
                                         STEP(MESSAGE, 12),
                                         11,
                                         1,
                                         0,
                                         STEP(RUNS, 0),
                                         STEP(FULL, 1),
                                         STEP(ANSWER, 0),
                                         0x40,
                                         STEP(FULL, 0),
                                         STEP(TIMER, 0),
                                         STEP(POSTS, 0),
                                         STEP(MESSAGE, 12),
                                         header,
                                         1,
                                         2,
                                         0,
                                         3,
                                         8,
                                         0,
                                         9,
                                         9,
                                         STEP(FAILS, 7 * (change & 1))};

                add(bytes, sizeof(bytes));
            }
        }
    }
}
