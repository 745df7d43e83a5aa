/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* As situations.c, with connections of librdmacm.
 *
 * usage: situations_cm NAME [ADDRESS]        (without one: lists them)
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <string.h>

#include "node.h"

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;

    REQUIRE(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != type) {
        fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(type));
        exit(2);
    }
    return event;
}

static void expect_event(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
    REQUIRE(rdma_ack_cm_event(next_event(channel, type)) == 0);
}

/* Of an adapter; some have none for the loopback address. */
static const char *address_text = "127.0.0.1";

static struct sockaddr_in loopback(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = port};

    REQUIRE(inet_pton(AF_INET, address_text, &address.sin_addr) == 1);
    return address;
}

/* Listening where there is room. */
static struct rdma_cm_id *listen_somewhere(struct rdma_event_channel *channel)
{
    struct sockaddr_in address = loopback(0);
    struct rdma_cm_id *id;

    REQUIRE(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    REQUIRE(rdma_bind_addr(id, (struct sockaddr *)&address) == 0);
    REQUIRE(rdma_listen(id, 1) == 0);
    return id;
}

static void create_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr attributes = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};

    REQUIRE(rdma_create_qp(id, NULL, &attributes) == 0);
}

static struct rdma_cm_id *begin_connection(struct rdma_event_channel *channel, uint16_t port)
{
    struct sockaddr_in address = loopback(port);
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};
    struct rdma_cm_id *id;

    REQUIRE(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    REQUIRE(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 5000) == 0);
    expect_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_resolve_route(id, 5000) == 0);
    expect_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    create_qp(id);
    REQUIRE(rdma_connect(id, &param) == 0);
    return id;
}

struct connection {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *listener, *client, *server;
};

/* Both ends are established. */
static void open_connection(struct connection *ret)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1}; /* rnr_retry_count: 0 */
    struct rdma_cm_event *event;

    REQUIRE(channel);
    ret->channel = channel;
    ret->listener = listen_somewhere(channel);
    ret->client = begin_connection(channel, rdma_get_src_port(ret->listener));
    event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    ret->server = event->id;
    create_qp(ret->server);
    REQUIRE(rdma_accept(ret->server, &param) == 0);
    REQUIRE(rdma_ack_cm_event(event) == 0);
    for (int i = 0; i < 2; i++) /* of either */
        expect_event(channel, RDMA_CM_EVENT_ESTABLISHED);
}

/* What is left of it when the client has ended. */
static void close_server(struct connection *connection)
{
    rdma_destroy_qp(connection->server);
    REQUIRE(rdma_destroy_id(connection->server) == 0);
    REQUIRE(rdma_destroy_id(connection->listener) == 0);
    rdma_destroy_event_channel(connection->channel);
}

static void *acknowledge_later(void *event)
{
    wait_for_word();
    rdma_ack_cm_event(event);
    return NULL;
}

static void destroy_with_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
    pthread_t thread;

    REQUIRE(pthread_create(&thread, NULL, acknowledge_later, event) == 0);
    say("hangs");
    rdma_destroy_qp(id);
    REQUIRE(rdma_destroy_id(id) == 0);
    pthread_join(thread, NULL);
}

/* --- an error event is not acknowledged (linux-rdma/perftest#60) ---------------------------------------- */

static void error_event(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener, *id;
    struct rdma_cm_event *event;
    uint16_t port;

    REQUIRE(channel);
    listener = listen_somewhere(channel);
    port = rdma_get_src_port(listener);
    id = begin_connection(channel, port);
    event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    REQUIRE(rdma_reject(event->id, NULL, 0) == 0);
    listener = event->listen_id;
    REQUIRE(rdma_destroy_id(event->id) == 0);
    REQUIRE(rdma_ack_cm_event(event) == 0);
    event = next_event(channel, RDMA_CM_EVENT_REJECTED);
    /* The mistake: errors go to the end of the function, past the acknowledgement. */
    destroy_with_event(id, event);
    REQUIRE(rdma_destroy_id(listener) == 0);
    rdma_destroy_event_channel(channel);
}

/* --- an event is put aside, and its id destroyed by the thread that has it (spdk/spdk#3347) ------------- */

static void kept_event(void)
{
    struct connection connection;
    struct rdma_cm_id *whose;
    struct rdma_cm_event *event;

    open_connection(&connection);
    REQUIRE(rdma_disconnect(connection.server) == 0);
    do {
        event = next_event(connection.channel, RDMA_CM_EVENT_DISCONNECTED);
        whose = event->id;
        if (whose == connection.server)
            REQUIRE(rdma_ack_cm_event(event) == 0);
    } while (whose == connection.server);
    /* The mistake: the client's event waits in a list for its turn, which is after this. */
    destroy_with_event(connection.client, event);
    close_server(&connection);
}

/* --- a receive is posted after rdma_accept() (w180112/RDMA-example#4, spdk/spdk#2429) ------------------- */

static void send_first(struct rdma_cm_id *id)
{
    struct ibv_send_wr wr = {.wr_id = 4711, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;

    REQUIRE(ibv_post_send(id->qp, &wr, &bad) == 0);
    REQUIRE(wait_for_completion(id->send_cq).status == IBV_WC_RNR_RETRY_EXC_ERR);
}

static void receive_after_accept(void)
{
    struct connection connection;
    struct ibv_recv_wr wr = {.wr_id = 77}, *bad;

    open_connection(&connection);
    send_first(connection.client);
    REQUIRE(ibv_post_recv(connection.server->qp, &wr, &bad) == 0); /* the mistake: too late */
    say("hangs");
    wait_for_word();
    rdma_destroy_qp(connection.client);
    REQUIRE(rdma_destroy_id(connection.client) == 0);
    close_server(&connection);
}

/* --- an id is forgotten --------------------------------------------------------------------------------- */

static void forgotten_id(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();

    REQUIRE(channel);
    listen_somewhere(channel);
}

static const struct situation situations[] = {
    {"error-event", error_event},
    {"kept-event", kept_event},
    {"receive-after-accept", receive_after_accept},
    {"forgotten-id", forgotten_id},
};

int main(int argc, char **argv)
{
    const struct situation *wanted =
        situation_wanted(argc, argv, situations, sizeof(situations) / sizeof(situations[0]));

    if (!wanted)
        return argc < 2 ? 0 : 1;
    if (argc > 2)
        address_text = argv[2];
    wanted->happen();
    return 0;
}
