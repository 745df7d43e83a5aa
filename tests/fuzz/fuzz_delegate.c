/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Delegates (object/xrc/delegate.c), by the terms of processes of this and of other users, and the requests that they
 * relay (transport/relay.c's peer): terms begin, change, resume and end delegates, links go down, the domain is
 * closed and opened. The objects are real; links are only addresses.
 *
 * A delegate exists only for a user whom the domain admits, with values in their range, however the terms are; one
 * per link and number; none of a link that is down or of a domain that is closed; what it took is given back.
 *
 * Input: steps. A step begins with a byte that selects it. */
#include "base/rundown.h"
#include "fuzz.h"
#include "input.h"
#include "object/xrc/delegate.h"
#include "wire/opcode.h"
#include "xrc_process.h"

#define LINKS   3u
#define QPNS    4u
#define STEPS   64u
#define MTU_MAX 8192u

static struct input input;
static char links[LINKS]; /* their addresses */
static bool exists[LINKS][QPNS];

static struct link *link_at(unsigned number)
{
    return (struct link *)(void *)&links[number];
}

static uid_t uid_of(unsigned link)
{
    return getuid() + (link == LINKS - 1);
}

/* --- the engine's part ---------------------------------------------------------------------------------- */

static unsigned answers;

static int send_packet(struct transport_qp *transport, const struct packet *packet,
                       const struct iovec *gather, unsigned count, const struct path_address *to)
{
    answers++;
    require(packet->payload_length <= MTU_MAX && !(opcode_table[packet->opcode].properties & OPCODE_REQUEST));
    return input_8(&input) % 8 == 7 ? -EAGAIN : 0;
}

static void set_up(void)
{
    static struct qp_ports ports;

    ports = idle_engine;
    ports.transport.send = send_packet;
    open_process(&ports);
}

/* --- checks --------------------------------------------------------------------------------------------- */

static void check_one(unsigned link, uint32_t qpn)
{
    struct qp *qp = delegate_lock(link_at(link), qpn);
    const struct qp_record *record;

    if (!qp) {
        exists[link][qpn - 1] = false;
        return;
    }
    record = qp->record;
    require(uid_of(link) == getuid() && exists[link][qpn - 1] && xrcd);
    require(qp->origin == link_at(link) && qp->ibv.qp_num == qpn && qp->xrcd == xrcd);
    require(qp->transport.link.mtu && qp->transport.link.mtu <= MTU_MAX);
    require(record->attributes.min_rnr_timer < 32 && record->responder.resources <= LIMIT_RD_ATOMIC);
    require(record->responder.expected_psn.value <= PSN_MASK && record->responder.msn <= PSN_MASK);
    require(qp_state(qp) == IBV_QPS_RTS || qp_state(qp) == IBV_QPS_ERR);
    lock_release(&qp->lock);
    /* It is not found by its number. */
    require(!qp_lock_number(qpn));
}

static void check(void)
{
    rundown_enter();
    for (unsigned link = 0; link < LINKS; link++) {
        for (uint32_t qpn = 1; qpn <= QPNS; qpn++)
            check_one(link, qpn);
    }
    rundown_exit();
}

/* --- steps ---------------------------------------------------------------------------------------------- */

enum step { TERMS, ENDS, REQUEST, LINK_DOWN, CLOSES, STEP_KINDS };

static void send_terms(unsigned link, uint32_t qpn, bool ends)
{
    struct delegate_terms terms = {.device = device,
                                   .inode = inode,
                                   .connection = input_8(&input) % 4,
                                   .epoch = 1,
                                   .expected_psn = 5,
                                   .access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
                                   .mtu = 1024,
                                   .min_rnr_timer = 12,
                                   .max_dest_rd_atomic = 4,
                                   .ends = ends};
    bool accepted;

    input_mutate(&input, &terms, sizeof(terms));
    rundown_enter();
    accepted = delegate_accept(link_at(link), uid_of(link), qpn, &terms);
    rundown_exit();
    require(!accepted || terms.ends || (uid_of(link) == getuid() && xrcd));
    require(accepted || !terms.ends);
    if (accepted && !terms.ends) {
        /* One that goes on is of the domain that made it. */
        require(exists[link][qpn - 1] || (terms.device == device && terms.inode == inode));
        exists[link][qpn - 1] = true;
    }
    if (terms.ends) {
        rundown_enter();
        require(!delegate_lock(link_at(link), qpn));
        rundown_exit();
    }
}

/* A request that the process with the QP relays: to an SRQ that does not exist here. */
static void send_request(unsigned link, uint32_t qpn)
{
    static const uint8_t opcodes[] = {OP_SEND_ONLY,  OP_WRITE_ONLY, OP_READ_REQUEST,
                                      OP_SEND_FIRST, OP_SEND_LAST,  OP_FETCH_ADD};
    uint8_t choice = input_8(&input);
    struct packet packet = {.opcode = SERVICE_XRC | opcodes[choice % array_size(opcodes)],
                            .flags = PACKET_ACK_REQUEST,
                            .pkey = 0xffff,
                            .dest_qpn = 9,
                            .src_qpn = qpn,
                            .psn = psn_make(5u + choice / 16),
                            .srqn = 9,
                            .dma_length = choice,
                            .payload_length = choice % 64};
    uint8_t *payload = malloc(packet.payload_length ? packet.payload_length : 1);
    struct qp *qp;

    require(payload);
    memset(payload, 7, packet.payload_length);
    packet.payload = payload;
    rundown_enter();
    qp = delegate_lock(link_at(link), qpn);
    if (qp) {
        if (qp_state(qp) == IBV_QPS_RTS)
            transport_receive(&qp->transport, &packet);
        lock_release(&qp->lock);
    }
    rundown_exit();
    free(payload);
}

static void take_step(uint8_t choice)
{
    unsigned number = choice / STEP_KINDS, link = number % LINKS;
    uint32_t qpn = 1 + number / LINKS % QPNS;

    switch ((enum step)(choice % STEP_KINDS)) {
    case TERMS:
        send_terms(link, qpn, false);
        break;
    case ENDS:
        send_terms(link, qpn, true);
        break;
    case REQUEST:
        send_request(link, qpn);
        break;
    case LINK_DOWN:
        delegates_leave(link_at(link));
        for (uint32_t i = 1; i <= QPNS; i++)
            require(!delegate_lock(link_at(link), i));
        break;
    case CLOSES:
        if (xrcd) {
            require(xrcd_close(xrcd) == 0); /* delegates do not keep it */
            xrcd = NULL;
        } else {
            open_domain();
        }
        break;
    case STEP_KINDS:
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!context)
        set_up();
    if (!xrcd)
        open_domain();
    input = (struct input){data, size};
    memset(exists, 0, sizeof(exists));
    for (unsigned step = 0; input.left && step < STEPS; step++) {
        take_step(input_8(&input));
        check();
    }
    for (unsigned link = 0; link < LINKS; link++)
        delegates_leave(link_at(link));
    check();
    for (unsigned link = 0; link < LINKS; link++) {
        for (uint32_t qpn = 0; qpn < QPNS; qpn++)
            require(!exists[link][qpn]);
    }
    if (xrcd)
        require(list_empty(&xrcd->delegates));
    return 0;
}

/* --- seeds ---------------------------------------------------------------------------------------------- */

#define STEP(step, number) (uint8_t)((number)*STEP_KINDS + (step))

void fuzz_seeds(fuzz_add *add)
{
    for (uint8_t number = 0; number < LINKS * QPNS; number++) {
        for (uint8_t change = 0; change < sizeof(struct delegate_terms); change++) {
            const uint8_t bytes[] = {STEP(TERMS, number),
                                     1,
                                     0,
                                     STEP(REQUEST, number),
                                     change,
                                     0,
                                     STEP(TERMS, number),
                                     1,
                                     1,
                                     0,
                                     change,
                                     1,
                                     STEP(REQUEST, number),
                                     (uint8_t)(change + 1),
                                     0,
                                     STEP(TERMS, number),
                                     2,
                                     1,
                                     0,
                                     change,
                                     255,
                                     STEP(ENDS, number),
                                     2,
                                     0,
                                     STEP(TERMS, number),
                                     1,
                                     0,
                                     STEP(CLOSES, 0),
                                     STEP(TERMS, number),
                                     1,
                                     0,
                                     STEP(CLOSES, 0),
                                     STEP(TERMS, number),
                                     1,
                                     0,
                                     STEP(LINK_DOWN, number)};

            add(bytes, sizeof(bytes));
        }
    }
}
