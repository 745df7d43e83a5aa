/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* usage: leaver ADDRESS PORT PID
 * A client that asks the server for a connection and goes away before it is answered. Meanwhile it holds the
 * server's first thread, which is the one that would answer; the others go on. After each step it prints a
 * line, and waits for one. Exit status 77: the thread cannot be held. */
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

static struct rdma_event_channel *channel;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void expect(enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;

    if (rdma_get_cm_event(channel, &event))
        fail("rdma_get_cm_event");
    if (event->event != type) {
        fprintf(stderr, "%s\n", rdma_event_str(event->event));
        exit(1);
    }
    rdma_ack_cm_event(event);
}

static struct rdma_cm_id *ask(struct sockaddr_in *address, uint32_t qpn)
{
    /* UCX's own header, a length and a status, then as much of zeros: with a length of 0 it reads memory that it has
     * not written, and ends by what it finds there. */
    static const char nothing[56] = {sizeof nothing - 2};
    struct rdma_conn_param param = {.private_data = nothing,
                                    .private_data_len = sizeof nothing,
                                    .responder_resources = 1,
                                    .initiator_depth = 1,
                                    .retry_count = 7,
                                    .qp_num = qpn};
    struct rdma_cm_id *id;

    if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
        rdma_resolve_addr(id, NULL, (struct sockaddr *)address, 2000))
        fail("rdma_resolve_addr");
    expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    if (rdma_resolve_route(id, 2000))
        fail("rdma_resolve_route");
    expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
    if (rdma_connect(id, &param))
        fail("rdma_connect");
    return id;
}

static void tell(struct rdma_cm_id *id)
{
    printf("asked from port %u\n", ntohs(rdma_get_src_port(id)));
    fflush(stdout);
    if (getchar() != '\n')
        exit(1);
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct rdma_cm_id *first, *second;
    pid_t server;

    if (argc != 4 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1)
        return 2;
    address.sin_port = htons((uint16_t)atoi(argv[2]));
    server = atoi(argv[3]);
    channel = rdma_create_event_channel();
    if (!channel)
        fail("rdma_create_event_channel");
    if (ptrace(PTRACE_ATTACH, server, 0, 0) || waitpid(server, NULL, __WALL) < 0) {
        printf("the server's thread cannot be held: %s\n", strerror(errno));
        return 77;
    }
    first = ask(&address, 1001);
    tell(first);
    rdma_destroy_id(first);
    second = ask(&address, 1002); /* is seen behind the end of the first one */
    tell(second);
    rdma_destroy_id(second);
    ptrace(PTRACE_DETACH, server, 0, 0);
    return 0;
}
