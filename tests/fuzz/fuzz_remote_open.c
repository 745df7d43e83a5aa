/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages of a peer process about QPs that both processes have open (engine/xrc/remote_open.c). The peer opens,
 * modifies and closes handles of QPs of this process, and replies to requests for its own QPs. The code under test is
 * the receiver of the messages, the objects and their locks; the link is simulated here.
 *
 * Input: steps. A step begins with a byte that selects the operation. If that has a message of the peer, a valid one is
 * changed: a byte with the number of changes follows, and two bytes per change, offset and value. */
#include <errno.h>
#include <semaphore.h>
#include <string.h>

#include "base/rundown.h"
#include "engine/core/core.h"
#include "engine/xrc/remote_open.h"
#include "object/qp/qp_table.h"
#include "segment/segment.h"
#include "wire/opcode.h"
#include "xrc_process.h"

#define QPS      2u            /* of this process */
#define HANDLES  3u            /* of this process, for QPs of the peer */
#define PEER_QPN 0x9000u       /* number of the peer's first QP */
#define LAST     0xffffffffull /* remote_open_message.call of the request in await_service() */
#define STEPS    64u

enum step {
    PEER_OPENS,
    PEER_MODIFIES,
    PEER_QUERIES,
    PEER_CLOSES,
    PEER_SENDS_EVENT,
    PEER_REPLIES,
    LINK_DOWN,
    OPENS,
    MODIFIES,
    QUERIES,
    CLOSES,
    DESTROYS,
    STEP_KINDS
};

struct lane {
    char before[LANE_OWNER_AT];
    struct lane_state state; /* lane_owner_data() */
};

struct link {
    _Atomic uint64_t serial; /* 0: the link is down */
    uid_t uid;
    struct lane lane;
} the_link;

static struct qp *qps[QPS], *handles[HANDLES];
static uint32_t last_qpn;
static uint32_t
    given_up_qpn; /* of the QP that its creator destroyed last: it exists while the peer has it open */
static sem_t served;

static const uint8_t *input;
static size_t left;

static uint8_t next_byte(void)
{
    if (!left)
        return 0;
    left--;
    return *input++;
}

/* --- the local room ---------------------------------------------------------------------------------- */

struct link *lane_link(struct lane *lane)
{
    return &the_link;
}

struct lane *link_lane(struct link *link, uint32_t local_qpn)
{
    return &link->lane;
}

struct link *local_link_of_serial(uint64_t serial)
{
    return serial == the_link.serial ? &the_link : NULL;
}

struct link *local_resolve(uint32_t qpn)
{
    return &the_link;
}

uint64_t link_serial(const struct link *link)
{
    return link->serial;
}

pid_t link_peer_pid(const struct link *link)
{
    return 1;
}

uid_t link_peer_uid(const struct link *link)
{
    return link->uid;
}

bool link_is_self(const struct link *link)
{
    return false;
}

bool lane_is_blocked(const struct lane *lane)
{
    return false;
}

void lane_ring(struct lane *lane)
{
}

int helper_start(void)
{
    return 0;
}

/* --- the peer ---------------------------------------------------------------------------------------- */

static void receive_message(const struct remote_open_message *message)
{
    /* In memory of exactly its size, so that a sanitizer finds reads beyond it. */
    struct remote_open_message *copy = malloc(sizeof(*copy));
    const struct packet packet = {.opcode = SERVICE_XRC | OP_SEND_ONLY,
                                  .flags = PACKET_REMOTE_OPEN,
                                  .payload = copy,
                                  .payload_length = sizeof(*copy)};

    require(copy);
    memcpy(copy, message, sizeof(*copy));
    remote_open_receive(&the_link.lane, &packet);
    free(copy);
}

static void receive_mutated(struct remote_open_message message)
{
    for (uint8_t changes = next_byte() % 16; changes; changes--) {
        size_t at = next_byte() % sizeof(message);

        ((uint8_t *)&message)[at] = next_byte();
    }
    receive_message(&message);
}

static struct remote_open_message reply_to(const struct remote_open_message *request)
{
    struct remote_open_message reply;

    memset(&reply, 0, sizeof(reply));
    reply.kind = REMOTE_OPEN_REPLY;
    reply.call = request->call;
    reply.qpn = request->qpn;
    reply.attributes.qp_state = reply.attributes.cur_qp_state = IBV_QPS_INIT;
    return reply;
}

/* Messages of this process. A request gets two replies: one changed by the input, and then a valid one, so that no call
 * waits for ever. */
int lane_send(struct lane *lane, const struct packet *packet, const struct iovec *gather,
              unsigned gather_count)
{
    struct remote_open_message message;

    require(gather_count == 1 && gather->iov_len == sizeof(message) &&
            packet->payload_length == sizeof(message));
    memcpy(&message, gather->iov_base, sizeof(message));
    switch (message.kind) {
    case REMOTE_OPEN_REPLY:
        require(message.error <= 0 && message.error > -4096);
        require(message.attributes.qp_state <= IBV_QPS_UNKNOWN);
        if (message.call == LAST)
            require(sem_post(&served) == 0);
        break;
    case REMOTE_OPEN_EVENT:
    case REMOTE_OPEN_CLOSE:
        break;
    default:
        require(message.kind <= QP_REQUEST_QUERY);
        message = reply_to(&message);
        receive_mutated(message);
        receive_message(&message);
    }
    return 0;
}

/* Waits until the serving thread has served all requests. */
static void await_service(void)
{
    struct remote_open_message message;

    memset(&message, 0, sizeof(message));
    message.kind = QP_REQUEST_QUERY;
    message.call = LAST;
    receive_message(&message);
    while (sem_wait(&served) != 0)
        require(errno == EINTR);
}

/* The peer ends, and another one connects, with the next serial number. */
static void end_link(void)
{
    uint64_t serial = the_link.serial;

    atomic_store(&the_link.serial, 0);
    rundown_wait();
    remote_open_lane_down(&the_link.lane.state);
    remote_open_link_down(serial);
    for (unsigned i = 0; i < QPS; i++)
        require(qps[i]->opener_count == 0 && qps[i]->holders == 1);
    atomic_store(&the_link.serial, serial + 1);
}

/* --- objects ----------------------------------------------------------------------------------------- */

static int allocate_next(uint32_t *ret_qpn)
{
    *ret_qpn = ++last_qpn;
    return 0;
}

static struct qp *create(void)
{
    struct ibv_qp_init_attr_ex attributes = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = &xrcd->ibv};
    struct qp *qp;

    require(qp_create(context, NULL, &attributes, &qp) == 0);
    return qp;
}

static void set_up(void)
{
    static struct qp_ports ports;

    ports = idle_engine;
    ports.open_elsewhere = remote_open_qp;
    ports.request_elsewhere = remote_open_request;
    ports.close_elsewhere = remote_open_close;
    ports.send_opener_event = remote_open_send_event;
    ports.allocate_number = allocate_next;
    open_process(&ports);
    the_link.serial = 1;
    list_init(&the_link.lane.state.remote_opens);
    lock_init(&the_link.lane.state.lock);
    require(sem_init(&served, 0, 0) == 0);
}

/* --- steps ------------------------------------------------------------------------------------------- */

static struct remote_open_message message_of_peer(uint32_t kind, unsigned number)
{
    struct remote_open_message message;

    memset(&message, 0, sizeof(message));
    message.kind = kind;
    message.call = 1;
    message.name = number & 4;
    message.qpn = number & 2 ? given_up_qpn : qps[number % QPS]->ibv.qp_num;
    message.device = xrcd->domain->device;
    message.inode = xrcd->domain->inode;
    message.ifindex = DEVICE_IFINDEX;
    message.event = IBV_EVENT_COMM_EST;
    return message;
}

/* Attributes that modify a QP to the next state on the way to RTS. */
static void fill_in(struct remote_open_message *message, enum ibv_qp_state from)
{
    struct ibv_qp_attr *to = &message->attributes;

    message->mask = IBV_QP_STATE;
    to->port_num = 1;
    to->qp_state = from < IBV_QPS_RTS ? from + 1 : IBV_QPS_RESET;
    if (from == IBV_QPS_RESET)
        message->mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    if (from == IBV_QPS_INIT) {
        message->mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        to->path_mtu = IBV_MTU_1024;
        to->max_dest_rd_atomic = 2;
        to->ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh.hop_limit = 1};
        memcpy(to->ah_attr.grh.dgid.raw, (const uint8_t[16]){[10] = 0xff, 0xff, 192, 0, 2, 9}, 16);
    }
    if (from == IBV_QPS_RTR)
        message->mask |= IBV_QP_TIMEOUT | IBV_QP_SQ_PSN;
}

static void peer_requests(uint32_t kind, unsigned number)
{
    struct remote_open_message message = message_of_peer(kind, number);

    if (kind == QP_REQUEST_MODIFY)
        fill_in(&message, qp_state(qps[number % QPS]));
    receive_mutated(message);
}

/* Messages about handles of this process for QPs of the peer. */
static void peer_sends(uint32_t kind, unsigned number)
{
    struct remote_open_message message = message_of_peer(kind, number);
    const struct qp *handle = handles[number % HANDLES];

    message.name = handle ? handle->handle->name : 0;
    receive_mutated(message);
}

static void open_handle(unsigned number)
{
    struct ibv_qp_open_attr attributes = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
                                                       IBV_QP_OPEN_ATTR_TYPE,
                                          .qp_num = PEER_QPN + number,
                                          .xrcd = &xrcd->ibv,
                                          .qp_type = IBV_QPT_XRC_RECV};
    struct qp *handle;

    if (!handles[number] && qp_open(context, &attributes, &handle) == 0)
        handles[number] = handle;
}

static void close_handle(unsigned number)
{
    if (handles[number])
        require(qp_handle_destroy(handles[number]) == 0);
    handles[number] = NULL;
}

static void modify_handle(struct qp *handle)
{
    struct remote_open_message message;

    if (!handle)
        return;
    memset(&message, 0, sizeof(message));
    fill_in(&message, IBV_QPS_RESET);
    (void)qp_modify(handle, &message.attributes, message.mask);
}

static void query_handle(struct qp *handle)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attributes;

    if (handle && qp_query(handle, &attributes, IBV_QP_STATE, &init) == 0)
        require(attributes.qp_state <= IBV_QPS_UNKNOWN && init.qp_type == IBV_QPT_XRC_RECV);
}

static void take_step(uint8_t choice)
{
    unsigned number = choice / STEP_KINDS;
    struct qp *handle = handles[number % HANDLES];

    switch ((enum step)(choice % STEP_KINDS)) {
    case PEER_OPENS:
        the_link.uid = number & 8 ? getuid() + 1 : getuid();
        peer_requests(QP_REQUEST_OPEN, number);
        break;
    case PEER_MODIFIES:
        peer_requests(QP_REQUEST_MODIFY, number);
        break;
    case PEER_QUERIES:
        peer_requests(QP_REQUEST_QUERY, number);
        break;
    case PEER_CLOSES:
        peer_requests(REMOTE_OPEN_CLOSE, number);
        break;
    case PEER_SENDS_EVENT:
        peer_sends(REMOTE_OPEN_EVENT, number);
        break;
    case PEER_REPLIES:
        peer_sends(REMOTE_OPEN_REPLY, number);
        break;
    case LINK_DOWN:
        end_link();
        break;
    case OPENS:
        the_link.uid = getuid();
        open_handle(number % HANDLES);
        break;
    case MODIFIES:
        modify_handle(handle);
        break;
    case QUERIES:
        query_handle(handle);
        break;
    case CLOSES:
        close_handle(number % HANDLES);
        break;
    case DESTROYS:
        given_up_qpn = qps[number % QPS]->ibv.qp_num;
        require(qp_destroy(qps[number % QPS]) == 0);
        qps[number % QPS] = create();
        break;
    case STEP_KINDS:
        break;
    }
}

static void check(void)
{
    await_service();
    for (unsigned i = 0; i < QPS; i++)
        require(qp_state(qps[i]) <= IBV_QPS_ERR && qps[i]->holders == qps[i]->opener_count + 1);
    for (unsigned i = 0; i < HANDLES; i++)
        require(!handles[i] || qp_state(handles[i]) <= IBV_QPS_UNKNOWN);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!context)
        set_up();
    input = data;
    left = size;
    last_qpn = 1;
    given_up_qpn = 0;
    for (unsigned i = 0; i < QPS; i++)
        qps[i] = create();
    for (unsigned step = 0; left && step < STEPS; step++) {
        take_step(next_byte());
        check();
    }
    left = 0;
    for (unsigned i = 0; i < HANDLES; i++)
        close_handle(i);
    await_service();
    end_link();
    for (unsigned i = 0; i < QPS; i++)
        require(qp_destroy(qps[i]) == 0);
    require(atomic_load(&xrcd->users) == 0 && atomic_load(&xrcd->domain->references) == 1);
    return 0;
}

/* --- seeds ------------------------------------------------------------------------------------------- */

static size_t add_step(uint8_t *bytes, enum step step, unsigned number)
{
    bytes[0] = (uint8_t)(number * STEP_KINDS + step);
    bytes[1] = 0;
    return step == LINK_DOWN || step == CLOSES || step == DESTROYS ? 1 : 2;
}

static void add_steps(fuzz_add *add, const enum step *steps, size_t count, unsigned number)
{
    uint8_t bytes[2 * STEPS];
    size_t length = 0;

    for (size_t i = 0; i < count; i++)
        length += add_step(bytes + length, steps[i], number);
    add(bytes, length);
}

void fuzz_seeds(fuzz_add *add)
{
    static const enum step theirs[] = {PEER_OPENS,  PEER_MODIFIES, PEER_MODIFIES, PEER_MODIFIES, PEER_QUERIES,
                                       PEER_CLOSES, PEER_OPENS,    LINK_DOWN,     PEER_MODIFIES, PEER_OPENS},
                           ours[] = {OPENS,        MODIFIES, QUERIES,   PEER_SENDS_EVENT,
                                     PEER_REPLIES, QUERIES,  LINK_DOWN, QUERIES,
                                     CLOSES,       OPENS,    MODIFIES},
                           outlived[] = {PEER_OPENS, DESTROYS, PEER_OPENS, DESTROYS, LINK_DOWN};

    for (unsigned number = 0; number < 16; number++) {
        add_steps(add, theirs, array_size(theirs), number);
        add_steps(add, ours, array_size(ours), number);
        add_steps(add, outlived, array_size(outlived), number);
    }
    add((const uint8_t[]){PEER_OPENS, 0, DESTROYS, 2 * STEP_KINDS + PEER_MODIFIES, 0,
                          2 * STEP_KINDS + PEER_MODIFIES, 0, 2 * STEP_KINDS + PEER_QUERIES, 0,
                          2 * STEP_KINDS + PEER_CLOSES, 0},
        11);
}
