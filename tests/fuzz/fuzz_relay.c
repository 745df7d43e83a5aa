/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC requests that are passed on between processes (engine/xrc/relay.c, transport/relay.c, object/xrc/delegate.c).
 * This process has an XRC_RECV QP, whose requests name SRQs of the processes behind the links, and it executes
 * requests for QPs of theirs. Two are of its user, one is of another one, whom the domain does not admit. All of them
 * write into their rings what they like; rings fill up, and links go down. The objects are real; the links are
 * simulated.
 *
 * A request goes to the process that has the SRQ, behind terms of this connection and epoch; nobody else hears of it.
 * What another process says changes nothing of the QP. Nothing is acknowledged that did not come. Delegates are those
 * of users whom the domain admits, and requests without one are answered by a drop notice. Nothing stays of a link
 * that is down.
 *
 * Input: steps. A step begins with a byte that selects it, and a byte with the link and the QP number. */
#include "base/rundown.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "engine/xrc/relay.h"
#include "engine/xrc/remote_open.h"
#include "input.h"
#include "object/xrc/delegate.h"
#include "wire/opcode.h"
#include "xrc_process.h"

#define LINKS     4u
#define STRANGER  2u /* of another user */
#define SELF      3u /* of the process with itself */
#define QPNS      3u /* of each of them that execute requests here */
#define SRQ_BLOCK 0x100u
#define REQUESTER 0x77u
#define STEPS     96u
#define MTU       1024u

struct lane {
    struct link *link;
};

struct link {
    struct lane lane;
    uid_t uid;
    bool down, full; /* the ring */
    /* What this process has sent to it about its QP */
    bool has_terms;
    uint32_t connection, epoch;
};

static struct input input;
static struct link links[LINKS];
static bool known[LINKS]; /* whose names the search has found */
static struct qp *qp;     /* XRC_RECV */
static bool opened_here;  /* the step is about a request of the requester */
static unsigned notices;
static uint32_t next_psn; /* of the requester */

/* --- links ------------------------------------------------------------------------------------------------ */

/* The block of a link's numbers; SRQs have the first ones. */
static uint32_t block_of(unsigned link)
{
    return SRQ_BLOCK + link;
}

static struct link *of_number(uint32_t qpn)
{
    const uint32_t link = qpn / LOCAL_BLOCK_QPNS - SRQ_BLOCK;

    return link < LINKS && !links[link].down ? &links[link] : NULL;
}

struct link *local_resolve(uint32_t qpn)
{
    struct link *link = of_number(qpn);

    return link && known[link - links] ? link : NULL;
}

struct link *route_resolve_or_wait(struct qp *waits, uint32_t qpn)
{
    require(waits == qp);
    return local_resolve(qpn);
}

struct link *lane_link(struct lane *lane)
{
    return lane->link;
}

struct lane *link_lane(struct link *link, uint32_t local_qpn)
{
    return &link->lane;
}

bool link_is_self(const struct link *link)
{
    return link == &links[SELF];
}

uid_t link_peer_uid(const struct link *link)
{
    return link->uid;
}

bool local_is_owner(struct link *link, uint32_t block)
{
    return block == block_of((unsigned)(link - links));
}

void local_for_each_link(void (*visit)(struct link *link, void *argument), void *argument)
{
    for (unsigned i = 0; i < LINKS; i++)
        if (!links[i].down)
            visit(&links[i], argument);
}

void lane_ring(struct lane *lane)
{
}

static void heard_terms(struct link *link, const struct packet *packet, const struct iovec *gather)
{
    struct delegate_terms terms;

    require(gather->iov_len == sizeof(terms) && packet->payload_length == sizeof(terms));
    require(packet->src_qpn == qp->ibv.qp_num);
    memcpy(&terms, gather->iov_base, sizeof(terms));
    if (terms.ends) {
        link->has_terms = false;
        return;
    }
    require(opened_here && link->uid == getuid() && !link_is_self(link));
    require(terms.device == device && terms.inode == inode && terms.mtu == qp->transport.link.mtu);
    require(!terms.resumes || (link->has_terms && link->connection == terms.connection));
    link->has_terms = true;
    link->connection = terms.connection;
    link->epoch = terms.epoch;
}

int lane_send(struct lane *lane, const struct packet *packet, const struct iovec *gather,
              unsigned gather_count)
{
    struct link *link = lane->link;

    require(!link->down);
    if (link->full)
        return -EAGAIN;
    if ((packet->flags & PACKET_TERMS) == PACKET_TERMS) {
        heard_terms(link, packet, gather);
        return 0;
    }
    require(packet->flags & PACKET_RELAYED && opened_here && link == of_number(packet->dest_qpn));
    require(packet->dest_qpn == packet->srqn && packet->src_qpn == qp->ibv.qp_num);
    require(link->has_terms && link->connection == qp->transport.relay.connection &&
            link->epoch == qp->transport.relay.epoch);
    require(!(packet->flags & PACKET_BY_REFERENCE) && packet->payload_length <= qp->transport.link.mtu);
    return 0;
}

int route_send_on(struct qp *from, struct lane *lane, const struct packet *packet, const struct iovec *gather,
                  unsigned gather_count)
{
    require(from == qp);
    return lane_send(lane, packet, gather, gather_count);
}

void notice_send_drop(struct lane *lane, const struct packet *packet)
{
    require(!lane->link->down);
    notices++;
}

void remote_open_receive(struct lane *lane, const struct packet *packet)
{
}

void progress_receive(struct qp *delegate, struct lane *lane, const struct packet *packet)
{
    require(delegate->origin == lane->link);
    transport_receive(&delegate->transport, packet);
    (void)responder_run(&delegate->transport);
}

void progress_note_kick(struct lane *lane, const struct qp_kick *kick)
{
}

void route_run(struct qp *runs)
{
    (void)responder_run(&runs->transport);
}

/* --- the QP's requester, and those whose requests are executed here ---------------------------------------------- */

static int send_packet(struct transport_qp *transport, const struct packet *packet,
                       const struct iovec *gather, unsigned count, const struct path_address *to)
{
    const uint32_t properties = opcode_table[packet->opcode].properties;

    require(!(properties & OPCODE_REQUEST) && packet->payload_length <= MTU);
    require(packet->psn.value <= PSN_MASK && packet->msn <= PSN_MASK);
    if (transport != &qp->transport)
        return input_8(&input) % 8 == 7 ? -EAGAIN : 0;
    require(packet->dest_qpn == REQUESTER && packet->src_qpn == qp->ibv.qp_num);
    if ((properties & OPCODE_ACK) && SYNDROME_KIND(packet->syndrome) == SYNDROME_ACK)
        require(psn_diff(packet->psn, psn_make(next_psn)) < 0);
    return input_8(&input) % 8 == 7 ? -EAGAIN : 0;
}

/* The requester is a process of this host, or of another one. */
static bool by_network;

static void connect_link(struct qp *connected)
{
    connected->transport.link.mtu = MTU;
    connected->transport.link.reliable = connected->transport.link.local = !by_network;
    connected->transport.link.reference_from = connected->transport.link.read_reference_from = UINT32_MAX;
}

/* As route_disconnect(). */
static void disconnect_link(struct qp *disconnected)
{
    relay_end(disconnected);
    route_of(disconnected)->relay_lane = NULL;
}

static void modify(enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state,
                               .port_num = 1,
                               .path_mtu = IBV_MTU_1024,
                               .dest_qp_num = REQUESTER,
                               .rq_psn = next_psn,
                               .max_dest_rd_atomic = 4,
                               .min_rnr_timer = 12,
                               .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
                               .ah_attr = {.is_global = 1, .port_num = 1, .grh.hop_limit = 1}};
    int mask = IBV_QP_STATE;

    memcpy(attr.ah_attr.grh.dgid.raw, (const uint8_t[16]){[10] = 0xff, 0xff, 192, 0, 2, 9}, 16);
    if (state == IBV_QPS_INIT)
        mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    if (state == IBV_QPS_RTR)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                IBV_QP_MIN_RNR_TIMER;
    require(qp_modify(qp, &attr, mask) == 0);
}

static void connect_qp(void)
{
    modify(IBV_QPS_RESET);
    modify(IBV_QPS_INIT);
    modify(IBV_QPS_RTR);
}

/* --- steps ------------------------------------------------------------------------------------------------ */

enum step { REQUESTS, RESPONDS, SAYS_TERMS, SAYS_REQUEST, FILLS, FINDS, GOES_DOWN, RECONNECTS, STEP_KINDS };

static const uint8_t requests[] = {OP_SEND_ONLY,  OP_SEND_FIRST,   OP_SEND_MIDDLE, OP_SEND_LAST,
                                   OP_WRITE_ONLY, OP_READ_REQUEST, OP_FETCH_ADD,   OP_COMPARE_SWAP};
static const uint8_t responses[] = {OP_ACKNOWLEDGE, OP_ATOMIC_ACKNOWLEDGE, OP_READ_RESPONSE_ONLY,
                                    OP_READ_RESPONSE_FIRST, OP_READ_RESPONSE_LAST};

/* In memory of exactly its size, so that a sanitizer finds reads beyond it. */
static uint8_t *payload_of(struct packet *packet)
{
    uint8_t *payload = malloc(packet->payload_length ? packet->payload_length : 1);

    require(payload);
    memset(payload, 7, packet->payload_length);
    packet->payload = payload;
    return payload;
}

static struct packet a_request(uint32_t psn)
{
    const uint8_t choice = input_8(&input), number = input_8(&input);
    const uint8_t opcode = requests[choice % array_size(requests)];
    const bool begins = opcode == OP_SEND_FIRST || opcode == OP_SEND_MIDDLE;

    return (struct packet){.opcode = SERVICE_XRC | opcode,
                           .pkey = 0xffff,
                           .flags = choice & 0x80 ? PACKET_ACK_REQUEST : 0,
                           .psn = psn_make(psn),
                           .srqn = block_of(number % LINKS) * LOCAL_BLOCK_QPNS + number / LINKS % 2,
                           .dma_length = number * 16u,
                           .payload_length = begins ? MTU : number % 64u};
}

/* Of the requester: next in sequence, repeated, or ahead. */
static void request(uint8_t choice)
{
    struct packet packet =
        a_request((next_psn + (choice < 3 ? choice : 0) - (choice > 4 ? choice : 0)) & PSN_MASK);
    uint8_t *payload = payload_of(&packet);

    packet.dest_qpn = qp->ibv.qp_num;
    packet.src_qpn = REQUESTER;
    opened_here = true;
    lock_acquire(&qp->lock);
    transport_receive(&qp->transport, &packet);
    (void)responder_run(&qp->transport);
    next_psn = qp->record->responder.expected_psn.value;
    lock_release(&qp->lock);
    opened_here = false;
    free(payload);
}

/* What is compared before and after somebody has spoken who is nothing to the QP. */
struct state {
    struct relay relay;
    enum ibv_qp_state state;
    uint32_t expected_psn, msn;
};

static struct state state_of_qp(void)
{
    struct state state;

    memset(&state, 0, sizeof(state));
    state.relay = qp->transport.relay;
    state.state = qp_state(qp);
    state.expected_psn = qp->record->responder.expected_psn.value;
    state.msn = qp->record->responder.msn;
    return state;
}

static void receive(struct link *link, const struct packet *packet)
{
    const struct state before = state_of_qp();
    const struct lane *executes = route_of(qp)->relay_lane;

    opened_here = executes == &link->lane;
    rundown_enter();
    relay_receive(&link->lane, packet);
    rundown_exit();
    opened_here = false;
    if (executes != &link->lane) {
        const struct state after = state_of_qp();

        require(!memcmp(&before, &after, sizeof(before)));
    }
    next_psn = qp->record->responder.expected_psn.value;
}

static void respond(struct link *link)
{
    const uint8_t choice = input_8(&input), syndrome = input_8(&input), back = input_8(&input);
    struct packet packet = {.opcode = SERVICE_XRC | responses[choice % array_size(responses)],
                            .flags = choice & 0x80 ? PACKET_DROPPED : PACKET_RELAYED,
                            .dest_qpn = qp->ibv.qp_num,
                            .dest_ifindex = qp->transport.relay.epoch,
                            .psn = psn_make((next_psn - back % 8 + (back > 250)) & PSN_MASK),
                            .syndrome = syndrome,
                            .msn = back,
                            .payload_length = choice & 0x40 ? MTU : choice % 32u};
    uint8_t *payload;

    input_mutate(&input, &packet.dest_ifindex, sizeof(packet.dest_ifindex));
    payload = payload_of(&packet);
    receive(link, &packet);
    free(payload);
}

static bool has_delegate(struct link *link, uint32_t qpn)
{
    struct qp *found;

    rundown_enter();
    found = delegate_lock(link, qpn);
    if (found)
        lock_release(&found->lock);
    rundown_exit();
    return found != NULL;
}

static void say_terms(struct link *link, uint32_t qpn)
{
    struct delegate_terms terms = {.device = device,
                                   .inode = inode,
                                   .connection = input_8(&input) % 4,
                                   .epoch = 1,
                                   .expected_psn = 5,
                                   .access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
                                   .mtu = MTU,
                                   .min_rnr_timer = 12,
                                   .max_dest_rd_atomic = 4};
    struct packet packet = {.opcode = SERVICE_XRC | OP_SEND_ONLY,
                            .flags = PACKET_TERMS,
                            .src_qpn = qpn,
                            .payload_length = sizeof(terms)};
    const bool had = has_delegate(link, qpn);
    uint8_t *payload;

    input_mutate(&input, &terms, sizeof(terms));
    if (input_8(&input) % 8 == 7)
        packet.payload_length -= 8;
    payload = payload_of(&packet);
    memcpy(payload, &terms, packet.payload_length);
    receive(link, &packet);
    free(payload);
    if (!had && has_delegate(link, qpn))
        require(link->uid == getuid() && terms.device == device && terms.inode == inode && !terms.ends &&
                local_is_owner(link, qpn / LOCAL_BLOCK_QPNS) && packet.payload_length == sizeof(terms));
}

/* Of a process that has a QP, for an SRQ that does not exist here. */
static void say_request(struct link *link, uint32_t qpn)
{
    struct packet packet = a_request(5u + input_8(&input) % 4);
    const unsigned before = notices;
    const bool executed = has_delegate(link, qpn);
    uint8_t *payload = payload_of(&packet);

    packet.flags |= PACKET_RELAYED;
    packet.src_qpn = qpn;
    packet.dest_qpn = packet.srqn;
    receive(link, &packet);
    require(executed || notices == before + 1);
    free(payload);
}

static void go_down(struct link *link)
{
    link->down = true;
    known[link - links] = false;
    link->has_terms = false;
    rundown_enter();
    lock_acquire(&qp->lock);
    opened_here = true; /* what waited may go elsewhere */
    relay_leave(qp, link);
    opened_here = false;
    next_psn = qp->record->responder.expected_psn.value;
    lock_release(&qp->lock);
    rundown_exit();
    delegates_leave(link);
    require(route_of(qp)->relay_lane != &link->lane);
    for (uint32_t i = 0; i < QPNS; i++)
        require(!has_delegate(link, block_of((unsigned)(link - links)) * LOCAL_BLOCK_QPNS + 16 + i));
    link->down = link->full = false; /* the next process with that block */
}

static void take_step(uint8_t choice)
{
    const uint8_t which = input_8(&input);
    struct link *link = &links[which % (LINKS - 1)];
    /* Of its own block, or of the next one's. */
    const uint32_t block = block_of((which % (LINKS - 1) + (which & 0x80 ? 1 : 0)) % LINKS);
    const uint32_t qpn = block * LOCAL_BLOCK_QPNS + 16 + which / LINKS % QPNS;

    switch ((enum step)(choice % STEP_KINDS)) {
    case REQUESTS:
        request(choice / STEP_KINDS % 8);
        break;
    case RESPONDS:
        respond(link);
        break;
    case SAYS_TERMS:
        say_terms(link, qpn);
        break;
    case SAYS_REQUEST:
        say_request(link, qpn);
        break;
    case FILLS:
        link->full = !link->full;
        break;
    case FINDS:
        known[which % LINKS] = !known[which % LINKS];
        lock_acquire(&qp->lock);
        opened_here = true;
        relay_again(&qp->transport);
        (void)responder_run(&qp->transport);
        opened_here = false;
        lock_release(&qp->lock);
        break;
    case GOES_DOWN:
        go_down(link);
        break;
    case RECONNECTS:
        by_network = which & 1;
        connect_qp();
        require(!route_of(qp)->relay_lane);
        break;
    case STEP_KINDS:
        break;
    }
}

static void set_up(void)
{
    static struct qp_ports ports;
    struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};

    ports = idle_engine;
    ports.private_size = sizeof(struct qp_route);
    ports.transport.send = send_packet;
    ports.hand_over = relay_hand_over;
    ports.end_relay = relay_end;
    ports.connect = connect_link;
    ports.disconnect = disconnect_link;
    open_process(&ports);
    attr.xrcd = &xrcd->ibv;
    require(qp_create(context, NULL, &attr, &qp) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!context)
        set_up();
    input = (struct input){data, size};
    notices = 0;
    next_psn = 0xfffff8; /* it wraps soon */
    for (unsigned i = 0; i < LINKS; i++) {
        links[i] = (struct link){.lane.link = &links[i], .uid = getuid() + (i == STRANGER)};
        known[i] = true;
    }
    by_network = false;
    connect_qp();
    for (unsigned step = 0; input.left && step < STEPS; step++)
        take_step(input_8(&input));
    input.left = 0;
    for (unsigned i = 0; i < LINKS; i++)
        go_down(&links[i]);
    modify(IBV_QPS_RESET);
    require(list_empty(&xrcd->delegates));
    return 0;
}

/* --- seeds ------------------------------------------------------------------------------------------------ */

#define STEP(step, number) (uint8_t)((number)*STEP_KINDS + (step))

void fuzz_seeds(fuzz_add *add)
{
    for (uint8_t link = 0; link < LINKS; link++) {
        for (uint8_t opcode = 0; opcode < 2 * array_size(requests); opcode++) {
            const uint8_t flags = (uint8_t)((opcode & 1 ? 0x80 : 0) + opcode / 2);
            const uint8_t relays[] = {STEP(REQUESTS, 0),
                                      0,
                                      flags,
                                      link,
                                      0,
                                      STEP(REQUESTS, 0),
                                      0,
                                      flags,
                                      link,
                                      0,
                                      STEP(RESPONDS, 0),
                                      link,
                                      opcode,
                                      0x1f,
                                      1,
                                      0,
                                      STEP(RESPONDS, 0),
                                      link,
                                      (uint8_t)(opcode % 5),
                                      opcode,
                                      2,
                                      0,
                                      STEP(REQUESTS, 0),
                                      0,
                                      flags,
                                      (uint8_t)(link + 1),
                                      0,
                                      STEP(FILLS, 0),
                                      link,
                                      STEP(REQUESTS, 5),
                                      0,
                                      flags,
                                      link,
                                      0,
                                      STEP(FINDS, 0),
                                      link,
                                      STEP(GOES_DOWN, 0),
                                      link,
                                      STEP(REQUESTS, 0),
                                      0,
                                      flags,
                                      1,
                                      0,
                                      STEP(RECONNECTS, 0),
                                      0,
                                      STEP(REQUESTS, 0),
                                      0,
                                      flags,
                                      link,
                                      0};
            const uint8_t executes[] = {STEP(SAYS_REQUEST, 0),
                                        link,
                                        flags,
                                        0,
                                        0,
                                        STEP(SAYS_TERMS, 0),
                                        link,
                                        1,
                                        0,
                                        0,
                                        STEP(SAYS_REQUEST, 0),
                                        link,
                                        flags,
                                        opcode,
                                        0,
                                        0,
                                        STEP(SAYS_TERMS, 0),
                                        link,
                                        2,
                                        1,
                                        0,
                                        (uint8_t)(opcode * 2),
                                        255,
                                        0,
                                        STEP(SAYS_REQUEST, 0),
                                        link,
                                        flags,
                                        opcode,
                                        1,
                                        STEP(GOES_DOWN, 0),
                                        link};

            add(relays, sizeof(relays));
            add(executes, sizeof(executes));
        }
    }
}
