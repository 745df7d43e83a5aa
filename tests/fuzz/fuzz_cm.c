/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A process whose peer sends whatever it likes, whenever it likes, while its program calls whatever it likes:
 * the machine of cm/ stays consistent, tells the program nothing that cannot follow what it told before,
 * sends a bounded number of MADs, and gives all storage back.
 *
 * Input: commands, each a byte and what it needs. A MAD comes as its kind, a choice of fields that are to be
 * right (else no input would get past comm and transaction ids), and bytes for the rest of it. */
#include <errno.h>
#include <string.h>

#include "cm/cm.h"
#include "fuzz.h"

enum { ENDS = 8, SENT_MAX = 4000 };

enum command {
    CONNECT,
    RESOLVE,
    ACCEPT,
    ESTABLISH,
    REJECT,
    DISCONNECT,
    CLOSE,
    ASK_FOR_TIME,
    DATA_ARRIVED,
    WAIT,
    PEER_GONE,
    RECEIVE,
    RECEIVE_RAW,
    COMMANDS
};

enum fix { FIX_REMOTE = 1, FIX_LOCAL = 2, FIX_TRANSACTION = 4, FIX_NUMBERS = 8, FIX_DISCONNECT = 16 };

struct end {
    struct cm_id id;
    bool used, closed, passive, datagram;
    unsigned last; /* 1 << event, or START */
};
#define START (1u << 31)

static struct cm *cm;
static struct end ends[ENDS];
static unsigned sent, used;
static uint64_t counter;
static ns_t now;
static const uint8_t *at, *end_of_input;

static uint8_t take(void)
{
    return at < end_of_input ? *at++ : 0;
}

/* --- ports ------------------------------------------------------------------------------------------ */

static void send_mad(struct cm *machine, const struct cm_path *to, const struct cm_id *id,
                     const uint8_t bytes[MAD_LENGTH])
{
    struct cm_mad mad;

    require(!cm_mad_decode(bytes, MAD_LENGTH, &mad));
    require(to->local_gid[15] == 1 && !to->remote_gid[1]);
    sent++;
}

static struct end *free_end(void)
{
    for (unsigned i = 0; i < ENDS; i++)
        if (!ends[i].used) {
            ends[i] = (struct end){.used = true, .last = START};
            used++;
            return &ends[i];
        }
    return NULL;
}

static int take_request(struct cm *machine, const struct cm_request *request, struct cm_id **ret_id)
{
    struct end *end;
    uint8_t answer = take();

    require(request->private_length == (request->datagram ? CM_SIDR_REQ_PRIVATE : CM_REQ_PRIVATE));
    require(request->datagram || (request->path_mtu >= 1 && request->path_mtu <= 5));
    require(request->datagram || request->service <= CM_SERVICE_UC);
    if (answer & 1)
        return answer & 2 ? -ENOENT : answer & 4 ? -EAGAIN : 1 + (answer >> 3);
    end = free_end();
    if (!end)
        return -EAGAIN;
    end->passive = true;
    end->datagram = request->datagram;
    memset(&end->id, 0xee, sizeof(end->id));
    *ret_id = &end->id;
    return 0;
}

static void take_event(struct cm *machine, struct cm_id *id, const struct cm_event *event)
{
    struct end *end = container_of(id, struct end, id);
    unsigned allowed = 0;

    require(end->used && !end->closed);
    switch (event->type) {
    case CM_EVENT_REPLY:
        allowed = end->passive || end->datagram ? 0 : START;
        break;
    case CM_EVENT_ESTABLISHED:
        allowed = end->passive && !end->datagram ? START : 0;
        break;
    case CM_EVENT_REJECTED:
        allowed = end->datagram ? 0 : START | 1u << CM_EVENT_REPLY;
        break;
    case CM_EVENT_UNREACHABLE:
        allowed = START;
        break;
    case CM_EVENT_DISCONNECTED:
        allowed = 1u << CM_EVENT_REPLY | 1u << CM_EVENT_ESTABLISHED;
        break;
    case CM_EVENT_TIMEWAIT_EXIT:
        allowed = 1u << CM_EVENT_DISCONNECTED;
        break;
    case CM_EVENT_RESOLVED:
        allowed = end->datagram && !end->passive ? START : 0;
        break;
    }
    require(end->last & allowed);
    require(!event->private_data == !event->private_length);
    end->last = 1u << event->type;
}

static void take_back(struct cm *machine, struct cm_id *id)
{
    struct end *end = container_of(id, struct end, id);

    require(end->used && end->closed);
    memset(end, 0xdd, sizeof(*end));
    end->used = false;
    used--;
}

static uint64_t random_of(struct cm *machine)
{
    return ++counter * 0x9e3779b97f4a7c15u;
}

static const struct cm_ports ports = {.send = send_mad,
                                      .request = take_request,
                                      .event = take_event,
                                      .released = take_back,
                                      .random = random_of};

/* --- commands ----------------------------------------------------------------------------------------- */

static struct cm_path path_of(uint8_t choice)
{
    struct cm_path path = {.local_guid = 1, .hop_limit = 64, .peer = choice >> 1 & 3};

    path.local_gid[15] = 1;
    path.remote_gid[0] = choice & 1; /* one of two hosts */
    path.remote_gid[15] = 2;
    return path;
}

static struct cm_timing timing_of(uint8_t choice)
{
    return (struct cm_timing){
        .packet_lifetime = choice & 15, .response_timeout = 12 + (choice & 7), .retries = choice >> 4};
}

static void do_connect(struct end *end, uint8_t choice)
{
    const struct cm_connect connect = {
        .path = path_of(choice),
        .service_id = 0x1060001,
        .timing = timing_of(choice),
        .path_mtu = 1 + choice % 5,
        .qpn = 0x100 + (choice & 3), /* some of them used twice */
    };

    if (!cm_connect(cm, &end->id, &connect, now)) {
        end->last = START;
        end->passive = end->datagram = false;
    }
}

static void do_resolve(struct end *end, uint8_t choice)
{
    const struct cm_resolve resolve = {
        .path = path_of(choice), .service_id = 0x1110001, .timing = timing_of(choice)};

    if (!cm_resolve(cm, &end->id, &resolve, now)) {
        end->last = START;
        end->passive = false;
        end->datagram = true;
    }
}

static void do_accept(struct end *end)
{
    const struct cm_accept accept = {.qpn = 0x200, .private_data = "hello", .private_length = 5};

    cm_accept(cm, &end->id, &accept, now);
    cm_resolve_accept(cm, &end->id, 0x201, 1, "hello", 5, now);
}

/* Numbers that a receiver checks before it looks at anything else. */
static void fix_numbers(struct cm_mad *mad, const struct end *end, const struct cm_path *from)
{
    switch (mad->attribute) {
    case CM_REQ:
        memcpy(mad->req.primary.local_gid, from->remote_gid, 16);
        mad->req.pkey = 0xffff;
        mad->req.path_mtu = 1 + mad->req.path_mtu % 5;
        mad->req.service &= 1;
        mad->req.qpn = 0x300 + (mad->req.qpn & 3);
        break;
    case CM_REP:
        mad->rep.qpn = 0x300 + (mad->rep.qpn & 3);
        break;
    case CM_DREQ:
        mad->dreq.remote_qpn = end->id.local_qpn;
        break;
    case CM_REJ:
        mad->rej.message = (uint8_t)(end->id.state == CM_STATE_REQ_SENT ? CM_MESSAGE_REQ : mad->rej.message);
        break;
    case CM_SIDR_REP:
        mad->sidr_rep.qpn = 0x300;
        break;
    }
}

static void do_receive(const struct end *end, bool raw)
{
    const struct cm_path from = path_of(take());
    const uint8_t kind = take(), fix = take();
    uint8_t count = take(),
            bytes[MAD_LENGTH] = {MAD_BASE_VERSION, MAD_CLASS_CM, CM_CLASS_VERSION, MAD_METHOD_SEND};
    struct cm_mad mad;
    size_t length;
    int result;

    for (unsigned i = 0; i < count && i < MAD_LENGTH - MAD_HEADER_LENGTH; i++)
        bytes[MAD_HEADER_LENGTH + i] = take();
    bytes[17] = (uint8_t)(CM_REQ + kind % 11);
    if (raw) {
        for (unsigned i = 0; i < MAD_HEADER_LENGTH; i++)
            bytes[i] = take();
        length = count == UINT8_MAX ? MAD_LENGTH : count;
        result = cm_receive(cm, &from, bytes, length, now);
        require(length == MAD_LENGTH || result == -EPROTO);
        return;
    }
    require(!cm_mad_decode(bytes, sizeof(bytes), &mad));
    mad.transaction_id = mad.local_comm_id & 7;
    mad.local_comm_id = 1 + (mad.local_comm_id & 7);
    if (fix & FIX_REMOTE)
        mad.remote_comm_id = end->id.local_comm_id;
    if (fix & FIX_LOCAL)
        mad.local_comm_id = end->id.remote_comm_id;
    if (fix & FIX_TRANSACTION)
        mad.transaction_id = end->id.transaction_id;
    if (fix & FIX_DISCONNECT)
        mad.transaction_id = end->id.disconnect_transaction;
    if (fix & FIX_NUMBERS)
        fix_numbers(&mad, end, &from);
    cm_mad_encode(&mad, bytes);
    cm_receive(cm, &from, bytes, sizeof(bytes), now);
}

static void pass(ns_t time)
{
    now += time;
    while (cm_next(cm) <= now) {
        const ns_t due = cm_next(cm);

        cm_run(cm, due);
        require(cm_next(cm) > due);
    }
}

static void do_one(void)
{
    const uint8_t first = take();
    const enum command command = (enum command)(first % COMMANDS);
    struct end *end = &ends[first / COMMANDS % ENDS];

    if (command == WAIT) {
        pass(4096ull << (take() & 31));
        return;
    }
    if (command == PEER_GONE) {
        cm_peer_gone(cm, take() & 3, now);
        return;
    }
    if (command == RECEIVE || command == RECEIVE_RAW) {
        do_receive(end, command == RECEIVE_RAW);
        return;
    }
    if (!end->used && (command == CONNECT || command == RESOLVE)) {
        end = free_end();
        if (!end)
            return;
        cm_id_init(&end->id);
    }
    if (!end->used || end->closed)
        return;
    switch (command) {
    case CONNECT:
        do_connect(end, take());
        break;
    case RESOLVE:
        do_resolve(end, take());
        break;
    case ACCEPT:
        do_accept(end);
        break;
    case ESTABLISH:
        cm_establish(cm, &end->id, now);
        break;
    case REJECT:
        cm_reject(cm, &end->id, CM_REASON_CONSUMER, "no", 2, now);
        cm_resolve_reject(cm, &end->id, CM_SIDR_NO_QP, "no", 2, now);
        break;
    case DISCONNECT:
        cm_disconnect(cm, &end->id, now);
        break;
    case CLOSE:
        end->closed = true;
        cm_close(cm, &end->id, now);
        break;
    case ASK_FOR_TIME:
        cm_delay(cm, &end->id, take() & 31, now);
        break;
    case DATA_ARRIVED:
        cm_communication_established(cm, &end->id, now);
        break;
    case WAIT:
    case PEER_GONE:
    case RECEIVE:
    case RECEIVE_RAW:
    case COMMANDS:
        break;
    }
}

/* --- consistency -------------------------------------------------------------------------------------- */

static unsigned count_heap(const struct cm_id *id, const struct cm_id *previous, ns_t not_before)
{
    unsigned count = 0;

    for (; id; previous = id, id = id->deadline.next) {
        require(id->deadline.previous == previous && id->deadline.at >= not_before);
        count += 1 + count_heap(id->deadline.child, id, id->deadline.at);
    }
    return count;
}

static void check_machine(void)
{
    unsigned armed = 0, lingering = 0, numbered = 0;

    for (unsigned i = 0; i < ENDS; i++) {
        const struct cm_id *id = &ends[i].id;

        if (!ends[i].used)
            continue;
        armed += id->deadline.at != NS_NEVER;
        lingering += id->state == CM_STATE_TIMEWAIT || id->state == CM_STATE_SIDR_REP_SENT;
        numbered += id->local_comm_id != 0;
        require((id->local_comm_id != 0) == (id->by_local.to_this != NULL));
        require(id->state != CM_STATE_IDLE ||
                (id->deadline.at == NS_NEVER && !id->by_remote.to_this && !id->by_qpn.to_this));
    }
    require(count_heap(cm->earliest, NULL, 0) == armed);
    require(cm->lingering == lingering);
    require(cm->blocks[0].used == numbered);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!cm)
        cm = malloc(sizeof(*cm));
    require(cm);
    memset(ends, 0, sizeof(ends));
    sent = used = 0;
    counter = 0;
    now = NS_PER_S;
    at = data;
    end_of_input = data + size;
    cm_init(cm, &ports);
    require(!cm_grant_block(cm, 0x1234));

    while (at < end_of_input) {
        do_one();
        check_machine();
    }
    for (unsigned i = 0; i < ENDS; i++)
        if (ends[i].used && !ends[i].closed) {
            ends[i].closed = true;
            cm_close(cm, &ends[i].id, now);
        }
    while (cm_next(cm) != NS_NEVER)
        pass(max_of(cm_next(cm), now) - now);
    require(!used && !cm->lingering && !cm->blocks[0].used);
    /* Each call and each MAD leads to at most sixteen repetitions and an answer or two. */
    require(sent <= 20 * (size + ENDS));
    return 0;
}

/* --- seeds -------------------------------------------------------------------------------------------- */

#define ON(end, command) (uint8_t)((end)*COMMANDS + (command))
#define MAD(attribute)   (attribute) - CM_REQ
#define RIGHT            (FIX_REMOTE | FIX_LOCAL | FIX_TRANSACTION | FIX_NUMBERS)

static void add_script(fuzz_add *add, const uint8_t *script, size_t length)
{
    add(script, length);
}
#define SCRIPT(...) add_script(add, (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))

void fuzz_seeds(fuzz_add *add)
{
    /* Active: connect, REP, RTU, then leave in each way. */
    SCRIPT(ON(0, CONNECT), 0x30, ON(0, RECEIVE), 0, MAD(CM_REP), FIX_REMOTE | FIX_TRANSACTION | FIX_NUMBERS,
           0, ON(0, ESTABLISH), ON(0, DISCONNECT), ON(0, RECEIVE), 0, MAD(CM_DREP),
           FIX_REMOTE | FIX_LOCAL | FIX_DISCONNECT, 0, ON(0, WAIT), 20);
    SCRIPT(ON(0, CONNECT), 0x30, ON(0, RECEIVE), 0, MAD(CM_MRA), FIX_REMOTE | FIX_TRANSACTION, 0,
           ON(0, RECEIVE), 0, MAD(CM_REP), FIX_REMOTE | FIX_TRANSACTION | FIX_NUMBERS, 0, ON(0, ASK_FOR_TIME),
           20, ON(0, ESTABLISH), ON(0, RECEIVE), 0, MAD(CM_REP), RIGHT, 0, ON(0, RECEIVE), 0, MAD(CM_DREQ),
           RIGHT, 0, ON(0, CLOSE));
    SCRIPT(ON(0, CONNECT), 0xf0, ON(0, RECEIVE), 0, MAD(CM_REJ), FIX_REMOTE | FIX_TRANSACTION | FIX_NUMBERS,
           0);
    SCRIPT(ON(0, CONNECT), 0x20, ON(0, WAIT), 18, ON(0, WAIT), 24, ON(0, CONNECT), 0x21, ON(0, CLOSE));
    SCRIPT(ON(0, CONNECT), 0x22, ON(0, RECEIVE), 2, MAD(CM_MRA), FIX_REMOTE | FIX_TRANSACTION, 0,
           ON(0, PEER_GONE), 1);
    /* Passive: REQ, accept, RTU; again; LAP; leave. */
    SCRIPT(ON(0, RECEIVE), 0, MAD(CM_REQ), FIX_NUMBERS, 4, 0, 0, 0, 1, 0, ON(0, ACCEPT), ON(0, RECEIVE), 0,
           MAD(CM_RTU), RIGHT, 0, ON(0, RECEIVE), 0, MAD(CM_LAP), RIGHT, 0, ON(0, RECEIVE), 0, MAD(CM_REQ),
           RIGHT, 0, ON(0, DISCONNECT), ON(0, RECEIVE), 0, MAD(CM_DREQ), RIGHT, 0, ON(0, CLOSE));
    SCRIPT(ON(0, RECEIVE), 0, MAD(CM_REQ), FIX_NUMBERS, 0, 0, ON(0, RECEIVE), 0, MAD(CM_REQ), RIGHT, 0,
           ON(0, REJECT), ON(0, RECEIVE), 0, MAD(CM_REQ), RIGHT, 0);
    SCRIPT(ON(0, RECEIVE), 0, MAD(CM_REQ), FIX_NUMBERS, 0, 0, ON(0, ACCEPT), ON(0, DATA_ARRIVED),
           ON(0, CLOSE));
    SCRIPT(ON(0, RECEIVE), 0, MAD(CM_REQ), FIX_NUMBERS, 0, 1, ON(0, RECEIVE), 0, MAD(CM_REQ), FIX_NUMBERS, 0,
           3, ON(0, RECEIVE), 0, MAD(CM_REQ), FIX_NUMBERS, 0, 9);
    /* Datagrams, both sides. */
    SCRIPT(ON(0, RESOLVE), 0x30, ON(0, RECEIVE), 0, MAD(CM_SIDR_REP),
           FIX_REMOTE | FIX_TRANSACTION | FIX_NUMBERS, 0);
    SCRIPT(ON(0, RECEIVE), 0, MAD(CM_SIDR_REQ), 0, 0, 0, ON(0, ACCEPT), ON(0, RECEIVE), 0, MAD(CM_SIDR_REQ),
           RIGHT, 0, ON(0, CLOSE));
    SCRIPT(ON(0, RECEIVE_RAW), 0, 0, 0, 0);
    /* Strangers. */
    for (uint8_t kind = 0; kind < 11; kind++)
        SCRIPT(ON(0, RECEIVE), 0, kind, 0, 8, 0, 0, 0, 1, 0, 0, 0, 2);
}
