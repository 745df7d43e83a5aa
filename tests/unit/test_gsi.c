/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QP1 of a process: MADs that another process of the host writes into the ring for it. One side is the engine with a
 * listener, the other one an arbitrary process with a link, which sends valid and invalid MADs. */
#include "test_local_sides.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/cm/agent.h"
#include "engine/cm/gsi.h"
#include "wire/opcode.h"

enum { LISTENING, ASKED, ANSWERED, DONE }; /* words of the board */

#define SERVICE 0x0000000001060000ull

static const uint8_t loopback[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
static const uint8_t foreign[16] = {[10] = 0xff, [11] = 0xff, [12] = 198, [13] = 51, [14] = 100, [15] = 7};

/* --- the engine's side --- */

static int refuse(void *listener, struct cm_agent_id *agent_id, const struct cm_request *request,
                  void **ret_context)
{
    CHECK(listener == &board);
    atomic_fetch_add(&board->word[ASKED], 1);
    return CM_REASON_CONSUMER;
}

static void ignore(void *context, const struct cm_event *event)
{
}

static void listens(unsigned number)
{
    static const struct cm_agent_owner owner = {.request = refuse, .event = ignore};
    const struct cm_agent_calls *calls = &cm_agent_calls;
    struct service_address address = {.service_id = SERVICE | (getpid() & 0x7fff)};
    struct service *service;
    uint32_t qpn;

    CHECK(calls->start(&owner) == 0);
    memcpy(address.gid, loopback, 16);
    CHECK(calls->service_reserve(&address, false, &service) == 0);
    CHECK(calls->service_listen(service, &board, 16) == 0);
    CHECK(local_qpn_allocate(&qpn) == 0);
    atomic_store(&board->value[0], address.service_id);
    atomic_store(&board->value[1], (uint64_t)getpid());
    atomic_store(&board->qpn[number], qpn);
    while (!atomic_load(&board->word[DONE]))
        usleep(1000);
    calls->service_release(service);
}

/* --- the other side --- */

static struct cm_mad request(void)
{
    struct cm_mad mad = {
        .attribute = CM_REQ,
        .transaction_id = 0x1122334455667788,
        .local_comm_id = atomic_load(&board->qpn[1]) >> 8 << 16 | 7,
        .req = {.service_id = atomic_load(&board->value[0]),
                .ca_guid = 1,
                .qpn = 0x1234,
                .starting_psn = 5,
                .remote_response_timeout = 20,
                .local_response_timeout = 20,
                .retry_count = 7,
                .max_cm_retries = 15,
                .pkey = 0xffff,
                .path_mtu = 3,
                .primary = {.local_lid = 0xffff, .remote_lid = 0xffff, .hop_limit = 64, .packet_rate = 3}},
    };

    memcpy(mad.req.primary.local_gid, loopback, 16);
    memcpy(mad.req.primary.remote_gid, loopback, 16);
    return mad;
}

struct mad_packet {
    struct packet packet;
    uint8_t payload[LOCAL_MTU];
};

static void write_request(struct mad_packet *out, const struct cm_mad *mad)
{
    memset(out, 0, sizeof(*out));
    out->packet = (struct packet){.opcode = SERVICE_UD | OP_SEND_ONLY,
                                  .pkey = 0xffff,
                                  .dest_qpn = MAD_QPN,
                                  .src_qpn = MAD_QPN,
                                  .qkey = MAD_QKEY,
                                  .dest_ifindex = 1,
                                  .payload_length = MAD_LENGTH,
                                  .grh = {.hop_limit = 64}};
    memcpy(out->packet.grh.source, loopback, 16);
    memcpy(out->packet.grh.destination, loopback, 16);
    cm_mad_encode(mad, out->payload);
}

static void write_mad_packet(struct mad_packet *out)
{
    const struct cm_mad mad = request();

    write_request(out, &mad);
}

/* A request from another host, as the process that reads the port forwards it. */
static void write_mad_packet_from(struct mad_packet *out, const uint8_t gid[16], uint32_t comm_id)
{
    struct cm_mad mad = request();

    mad.local_comm_id = comm_id;
    memcpy(mad.req.primary.local_gid, gid, 16);
    write_request(out, &mad);
    out->packet.flags = PACKET_FROM_NETWORK;
    memcpy(out->packet.grh.source, gid, 16);
}

/* A comm id in a QPN block of the receiving process, or in one without owner. */
static void write_forgery(struct mad_packet *out, uint32_t block)
{
    struct cm_mad mad = request();

    mad.local_comm_id = block << 16 | 9;
    write_request(out, &mad);
}

static void send_mad_packet(struct link *link, struct mad_packet *out)
{
    struct lane *lane = link_lane(link, MAD_QPN);
    struct iovec gather = {out->payload, out->packet.payload_length};
    int result;

    do {
        rundown_enter();
        result = lane_send(lane, &out->packet, &gather, 1);
        lane_ring(lane);
        rundown_exit();
        turn(1);
    } while (result == -EAGAIN);
    CHECK(result == 0);
}

static void note_answer(struct lane *lane, const struct packet *packet)
{
    struct cm_mad mad;

    CHECK(packet->dest_qpn == MAD_QPN && packet->qkey == MAD_QKEY && packet->payload_length == MAD_LENGTH);
    CHECK(cm_mad_decode(packet->payload, MAD_LENGTH, &mad) == 0);
    if (mad.attribute == CM_REJ && mad.rej.reason == CM_REASON_CONSUMER &&
        mad.remote_comm_id == request().local_comm_id)
        atomic_fetch_add(&board->word[ANSWERED], 1);
}

static void writes_nonsense(unsigned number)
{
    struct mad_packet out;
    struct link *link;
    uint32_t seed = 12345;

    publish_qpn(number);
    link = find_link(await_qpn(0));
    CHECK(link);
    on_packet = note_answer;

    write_mad_packet(&out); /* the Q_Key of a program, not of QP1 */
    out.packet.qkey = 0x11111111;
    send_mad_packet(link, &out);
    write_mad_packet(&out); /* too short, too long, empty */
    out.packet.payload_length = MAD_LENGTH - 1;
    send_mad_packet(link, &out);
    out.packet.payload_length = MAD_LENGTH + 1;
    send_mad_packet(link, &out);
    out.packet.payload_length = 0;
    send_mad_packet(link, &out);
    write_mad_packet(&out); /* not a UD packet */
    out.packet.opcode = SERVICE_RC | OP_SEND_ONLY;
    send_mad_packet(link, &out);
    write_mad_packet(&out); /* source, then destination, of another host */
    memcpy(out.packet.grh.source, foreign, 16);
    send_mad_packet(link, &out);
    write_mad_packet(&out);
    memcpy(out.packet.grh.destination, foreign, 16);
    send_mad_packet(link, &out);
    write_mad_packet(&out); /* another source GID, 127.0.0.2 */
    out.packet.grh.source[15] = 2;
    send_mad_packet(link, &out);
    for (unsigned i = 0; i < 2000; i++) { /* random changes of a valid MAD */
        write_mad_packet(&out);
        for (unsigned j = 0; j <= i % 8; j++) {
            seed = seed * 1664525 + 1013904223;
            out.payload[seed >> 8 & 0xff] = (uint8_t)(seed >> 24);
        }
        out.payload[2] = 99; /* another class version, so that none of them is a request by chance */
        send_mad_packet(link, &out);
    }
    write_forgery(&out, atomic_load(&board->qpn[0]) >> 8);
    send_mad_packet(link, &out);
    write_forgery(&out, 0);
    send_mad_packet(link, &out);
    /* From the network, with a source GID of this host. */
    write_mad_packet_from(&out, loopback, 0x12340001);
    send_mad_packet(link, &out);
    CHECK(atomic_load(&board->word[ASKED]) == 0);

    write_mad_packet(&out);
    send_mad_packet(link, &out);
    UNTIL(atomic_load(&board->word[ANSWERED]) > 0);
    CHECK(atomic_load(&board->word[ASKED]) == 1);

    /* From the network; the reply cannot be sent, because its source is 127.0.0.1. */
    write_mad_packet_from(&out, foreign, 0x12340002);
    send_mad_packet(link, &out);
    UNTIL(atomic_load(&board->word[ASKED]) == 2);
    atomic_store(&board->word[DONE], 1);
}

static void test_nonsense_leads_nowhere(void **state)
{
    pid_t engine, other;

    board_clear();
    engine = side_start_bare(listens, 0);
    other = side_start(writes_nonsense, 1);
    side_finish(other);
    side_finish(engine);
}

/* --- the process that reads the port --- */

enum { BURST = 4000 };

static void arrives_from_network(uint32_t comm_id)
{
    struct mad_packet in;

    write_mad_packet_from(&in, foreign, comm_id);
    in.packet.payload = in.payload;
    rundown_enter();
    gsi_receive_from_network(&in.packet);
    gsi_flush();
    rundown_exit();
}

/* The service has no processor while the MADs arrive. */
static void forwards_many(unsigned number)
{
    static const struct cm_agent_owner owner = {.request = refuse, .event = ignore};
    pid_t listener;

    CHECK(cm_agent_calls.start(&owner) == 0);
    (void)await_qpn(0);
    listener = (pid_t)atomic_load(&board->value[1]);
    arrives_from_network(0x12340000);
    while (!atomic_load(&board->word[ASKED]))
        usleep(1000);
    CHECK(kill(listener, SIGSTOP) == 0);
    for (uint32_t i = 1; i <= BURST; i++)
        arrives_from_network(0x12340000 + i);
    CHECK(kill(listener, SIGCONT) == 0);
    for (unsigned i = 0; i < 20000 && atomic_load(&board->word[ASKED]) < BURST + 1; i++)
        usleep(1000);
    CHECK(atomic_load(&board->word[ASKED]) == BURST + 1);
    atomic_store(&board->word[DONE], 1);
}

/* What is lost is sent again after a second. */
static void test_a_burst_from_the_network_waits_for_a_service_that_is_slow(void **state)
{
    pid_t engine, other;

    board_clear();
    engine = side_start_bare(listens, 0);
    other = side_start_bare(forwards_many, 1);
    side_finish(other);
    side_finish(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nonsense_leads_nowhere),
        cmocka_unit_test(test_a_burst_from_the_network_waits_for_a_service_that_is_slow),
    };

    /* In the test machine's own network: the addresses are checked. */
    return run_unit_tests("gsi", tests);
}
