/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A client that connects by rdma_cm and says which events it gets, and a server in a child that accepts.
 *
 * usage: connector ATTEMPTS leave|wait     after five WRITEs the client disconnects, or waits until it is disconnected
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT   7171
#define WRITES 5u
#define REQUIRE(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            perror(#condition);                                                                              \
            exit(2);                                                                                         \
        }                                                                                                    \
    } while (0)

static struct rdma_conn_param parameters = {
    .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};

static void create_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr attributes = {.cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};

    REQUIRE(rdma_create_qp(id, NULL, &attributes) == 0);
}

static struct sockaddr_in address_of_server(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* Told, and acknowledged. */
static enum rdma_cm_event_type next_event(struct rdma_event_channel *channel, const char *who,
                                          struct rdma_cm_id **ret_id)
{
    enum rdma_cm_event_type type;
    struct rdma_cm_event *event;

    REQUIRE(rdma_get_cm_event(channel, &event) == 0);
    type = event->event;
    *ret_id = event->id;
    printf("%s %s %d\n", who, rdma_event_str(type) + strlen("RDMA_CM_EVENT_"), event->status);
    fflush(stdout);
    REQUIRE(rdma_ack_cm_event(event) == 0);
    return type;
}

/* True: the client has ended, and every event before its end was taken. */
static int client_has_ended(int channel, int leave)
{
    struct pollfd fds[] = {{.fd = channel, .events = POLLIN}, {.fd = leave, .events = POLLIN}};

    while (poll(fds, 2, -1) < 0)
        REQUIRE(errno == EINTR);
    return !fds[0].revents;
}

/* leave: it ends when this does. It ends by exit(), which waits until the faults that were injected are told. */
static void serve(int ready, int leave)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct sockaddr_in address = address_of_server();
    struct rdma_cm_id *listener, *id;

    REQUIRE(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    REQUIRE(channel && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    REQUIRE(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0 && rdma_listen(listener, 8) == 0);
    REQUIRE(write(ready, "r", 1) == 1);
    while (!client_has_ended(channel->fd, leave)) {
        switch ((int)next_event(channel, "server", &id)) {
        case RDMA_CM_EVENT_CONNECT_REQUEST:
            create_qp(id);
            REQUIRE(rdma_accept(id, &parameters) == 0);
            break;
        case RDMA_CM_EVENT_DISCONNECTED:
            (void)rdma_disconnect(id);
            REQUIRE(write(ready, "d", 1) == 1);
            break;
        }
    }
    exit(0);
}

/* As far as it gets. False: the connection was not established. */
static int connect_once(struct rdma_event_channel *channel, struct rdma_cm_id *id)
{
    struct sockaddr_in address = address_of_server();
    struct rdma_cm_id *same;

    REQUIRE(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000) == 0);
    if (next_event(channel, "client", &same) != RDMA_CM_EVENT_ADDR_RESOLVED)
        return 0;
    REQUIRE(rdma_resolve_route(id, 1000) == 0);
    if (next_event(channel, "client", &same) != RDMA_CM_EVENT_ROUTE_RESOLVED)
        return 0;
    create_qp(id);
    REQUIRE(rdma_connect(id, &parameters) == 0);
    return next_event(channel, "client", &same) == RDMA_CM_EVENT_ESTABLISHED;
}

static void write_some(struct rdma_cm_id *id)
{
    for (unsigned i = 1; i <= WRITES; i++) {
        struct ibv_send_wr wr = {.wr_id = i, .opcode = IBV_WR_RDMA_WRITE}, *bad; /* of no bytes */
        struct ibv_wc wc;
        int count;

        REQUIRE(ibv_post_send(id->qp, &wr, &bad) == 0);
        while ((count = ibv_poll_cq(id->send_cq, 1, &wc)) == 0) {
        }
        REQUIRE(count == 1);
    }
}

int main(int argc, char **argv)
{
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id, *same;
    int ready[2], leave[2], status;
    pid_t server;
    char byte;

    REQUIRE(argc == 3 && pipe(ready) == 0 && pipe(leave) == 0);
    server = fork();
    if (server == 0) {
        close(leave[1]);
        serve(ready[1], leave[0]);
    }
    REQUIRE(read(ready[0], &byte, 1) == 1);
    channel = rdma_create_event_channel();
    REQUIRE(channel);
    for (int i = 0; i < atoi(argv[1]); i++) {
        REQUIRE(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
        if (connect_once(channel, id)) {
            write_some(id);
            if (strcmp(argv[2], "leave") == 0)
                REQUIRE(rdma_disconnect(id) == 0);
            REQUIRE(next_event(channel, "client", &same) == RDMA_CM_EVENT_DISCONNECTED);
            REQUIRE(read(ready[0], &byte, 1) == 1); /* the server has seen it, too */
        }
        if (id->qp)
            rdma_destroy_qp(id);
        REQUIRE(rdma_destroy_id(id) == 0);
    }
    rdma_destroy_event_channel(channel);
    close(leave[1]);
    REQUIRE(waitpid(server, &status, 0) == server && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}
