/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Many connections by address: at once, one after another, and with either side killed in the middle of it.
 */
#include "cm.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A number for a QP that nobody has: these connections carry nothing. */
static uint32_t next_qp_num(void)
{
    static uint32_t counter; /* both sides of one process count on */
    uint32_t number =
        ((uint32_t)getpid() * 7919u + __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED)) & 0xffffff;

    return number < 2 ? number + 2 : number;
}

static unsigned int count_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned int count = 0;

    CHECK(directory, "/proc/self/fd: %s", strerror(errno));
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static bool has_event(struct rdma_event_channel *channel, int timeout_ms)
{
    struct pollfd event = {.fd = channel->fd, .events = POLLIN};

    return poll(&event, 1, timeout_ms) == 1;
}

/* Waits, takes and acknowledges. */
static enum rdma_cm_event_type next_type(struct rdma_event_channel *channel, struct rdma_cm_id **ret_id,
                                         int *ret_status)
{
    enum rdma_cm_event_type type;
    struct rdma_cm_event *event;

    EVENTUALLY(has_event(channel, 10), "an event of rdma_cm");
    CM_ZERO(rdma_get_cm_event(channel, &event));
    type = event->event;
    *ret_id = event->id;
    *ret_status = event->status;
    CM_ZERO(rdma_ack_cm_event(event));
    return type;
}

static struct rdma_cm_id *resolved_id(struct rdma_event_channel *channel, uint16_t port)
{
    struct sockaddr_storage address = cm_address(port);
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;

    CM_ZERO(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    CM_ZERO(rdma_migrate_id(id, NULL)); /* its events apart from the others' */
    CM_ZERO(rdma_resolve_addr(id, NULL, as_sockaddr(&address), 2000));
    CM_ZERO(rdma_resolve_route(id, 2000));
    event = id->event;
    CHECK(event->event == RDMA_CM_EVENT_ROUTE_RESOLVED, "%s", rdma_event_str(event->event));
    CM_ZERO(rdma_migrate_id(id, channel));
    return id;
}

/* --- a server that answers whatever comes --- */

struct served {
    unsigned int requests, established, ended, alive;
    int fds;
};

/* Handles what is there. Answers every request; a child that has come to an end goes. */
static void serve(struct rdma_event_channel *channel, struct served *served)
{
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    struct rdma_cm_id *id;
    int status;

    while (has_event(channel, 0)) {
        const enum rdma_cm_event_type type = next_type(channel, &id, &status);

        if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
            served->requests++;
            param.qp_num = next_qp_num();
            if (rdma_accept(id, &param) == 0) {
                served->alive++;
            } else {
                served->ended++; /* the client was quicker with its end */
                CM_ZERO(rdma_destroy_id(id));
            }
        } else if (type == RDMA_CM_EVENT_ESTABLISHED) {
            served->established++;
        } else if (type != RDMA_CM_EVENT_TIMEWAIT_EXIT) { /* one way or another */
            served->ended++;
            served->alive--;
            CM_ZERO(rdma_destroy_id(id));
        }
    }
}

struct server {
    uint16_t port;
    unsigned int wanted; /* connections to be ended */
    struct served served;
};

static void open_server(struct cm_end *end, void *arg)
{
    struct sockaddr_storage address = cm_address(0);
    struct server *server = arg;

    CM_ZERO(rdma_bind_addr(end->id, as_sockaddr(&address)));
    CM_ZERO(rdma_listen(end->id, 0));
    server->port = ntohs(rdma_get_src_port(end->id));
    server->served.fds = (int)count_fds();
}

static void run_server(struct cm_end *end, void *arg)
{
    struct server *server = arg;

    while (server->served.ended < server->wanted) {
        EVENTUALLY(has_event(end->channel, 10), "the end of connection %u", server->served.ended);
        serve(end->channel, &server->served);
    }
    CHECK(server->served.alive == 0, "%u connections are left", server->served.alive);
    /* The link to the client; and where that is this process, its source ports in sets of 32, the first and the last of
     * which it need not fill. */
    CHECK((int)(count_fds() - server->wanted / 32 - 2) <= server->served.fds + 8,
          "%u descriptors, %d at first", count_fds(), server->served.fds);
}

struct server_box {
    struct cm_end end;
    struct server server;
};

static void run_server_box(void *arg)
{
    struct server_box *box = arg;

    run_server(&box->end, &box->server);
}

/* --- all at once --- */

static void many_at_once(void **state)
{
    const unsigned int many = long_tests() ? 2000 : 300;
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    unsigned int responses = 0, disconnected = 0;
    struct server_box box = {.server.wanted = many};
    struct rdma_cm_id **ids = calloc(many, sizeof *ids), *id;
    struct cm_end near;
    struct call call;
    int status;

    cm_open(&box.end, FAR, RDMA_PS_TCP);
    CM_AT(&box.end, open_server, &box.server);
    cm_open(&near, NEAR, RDMA_PS_TCP);
    side_start(&call, FAR, run_server_box, &box, sizeof box);
    for (unsigned int i = 0; i < many; i++) {
        ids[i] = resolved_id(near.channel, box.server.port);
        param.qp_num = next_qp_num();
        CM_ZERO(rdma_connect(ids[i], &param));
    }
    while (responses < many) {
        enum rdma_cm_event_type type = next_type(near.channel, &id, &status);

        CHECK(type == RDMA_CM_EVENT_CONNECT_RESPONSE, "%s, status %d", rdma_event_str(type), status);
        CM_ZERO(rdma_establish(id));
        responses++;
    }
    for (unsigned int i = 0; i < many; i++)
        CM_ZERO(rdma_disconnect(ids[i]));
    while (disconnected < many)
        disconnected += next_type(near.channel, &id, &status) == RDMA_CM_EVENT_DISCONNECTED;
    side_finish(&call);
    assert_int_equal(box.server.served.requests, many);
    assert_int_equal(box.server.served.established, many);
    for (unsigned int i = 0; i < many; i++)
        CM_ZERO(rdma_destroy_id(ids[i]));
    free(ids);
    cm_close(&near);
    cm_close(&box.end);
}

/* --- one after another --- */

/* One connection from beginning to end; false: the other side is gone. */
static bool connect_once(struct rdma_event_channel *channel, uint16_t port)
{
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7, .qp_num = next_qp_num()};
    struct rdma_cm_id *id = resolved_id(channel, port), *of;
    enum rdma_cm_event_type type;
    bool done = false;
    int status;

    CM_ZERO(rdma_connect(id, &param));
    type = next_type(channel, &of, &status);
    if (type == RDMA_CM_EVENT_CONNECT_RESPONSE && rdma_establish(id) == 0) {
        CM_ZERO(rdma_disconnect(id));
        while ((type = next_type(channel, &of, &status)) == RDMA_CM_EVENT_ESTABLISHED) {
        }
        done = type == RDMA_CM_EVENT_DISCONNECTED;
    }
    CM_ZERO(rdma_destroy_id(id));
    return done;
}

static void one_after_another(void **state)
{
    const unsigned int many = long_tests() ? 10000 : 500;
    struct server_box box = {.server.wanted = many};
    unsigned int fds = 0;
    struct cm_end near;
    struct call call;

    cm_open(&box.end, FAR, RDMA_PS_TCP);
    CM_AT(&box.end, open_server, &box.server);
    cm_open(&near, NEAR, RDMA_PS_TCP);
    side_start(&call, FAR, run_server_box, &box, sizeof box);
    for (unsigned int i = 0; i < many; i++) {
        CHECK(connect_once(near.channel, box.server.port), "connection %u was refused", i);
        if (i == 10)
            fds = count_fds();
    }
    assert_in_range(count_fds(), 0, fds + 2);
    side_finish(&call);
    cm_close(&near);
    cm_close(&box.end);
}

/* --- killed in the middle --- */

static void connect_for_ever(void *arg)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();

    CHECK(channel, "rdma_create_event_channel: %s", strerror(errno));
    for (;;)
        connect_once(channel, *(uint16_t *)arg);
}

/* Anywhere in the first connections of a process that begins now. */
static uint64_t random_moment(unsigned int *seed)
{
    return now_ns() + 1000u * (uint64_t)(rand_r(seed) % 12000);
}

static void clients_are_killed(void **state)
{
    const unsigned int victims = long_tests() ? 60 : 6;
    struct server server = {0};
    struct cm_end near;
    unsigned int seed = (unsigned int)now_ns();

    print_message("seed %u\n", seed);
    cm_open(&near, NEAR, RDMA_PS_TCP);
    CM_AT(&near, open_server, &server);
    for (unsigned int i = 0; i < victims; i++) {
        struct side *victim = &sides[1 + i];
        struct call call;
        uint64_t until;

        side_start(&call, victim, connect_for_ever, &server.port, sizeof server.port);
        until = random_moment(&seed);
        while (now_ns() < until)
            serve(near.channel, &server.served);
        side_kill(victim);
        EVENTUALLY(server.served.alive == 0, "the connections of a client that was killed to end")
        serve(near.channel, &server.served);
    }
    print_message("%u requests, %u established, %u ended\n", server.served.requests,
                  server.served.established, server.served.ended);
    assert_int_equal(server.served.requests, server.served.ended);
    /* Nothing is left of any of them. */
    EVENTUALLY((int)count_fds() <= server.served.fds + 8, "descriptors to be given back");
    cm_close(&near);
}

static void serve_for_ever(void *arg)
{
    struct server_box *box = arg;

    for (;;) {
        has_event(box->end.channel, 100);
        serve(box->end.channel, &box->server.served);
    }
}

struct killer {
    struct side *side;
    pthread_t thread;
    uint64_t at;
    bool done;
};

static void *kill_in_time(void *arg)
{
    struct killer *killer = arg;

    while (now_ns() < killer->at)
        sched_yield();
    kill(killer->side->pid, SIGKILL);
    __atomic_store_n(&killer->done, true, __ATOMIC_RELEASE);
    return NULL;
}

static void servers_are_killed(void **state)
{
    const unsigned int victims = long_tests() ? 60 : 6;
    unsigned int seed = (unsigned int)now_ns(), connected = 0, refused = 0;
    struct cm_end near;

    print_message("seed %u\n", seed);
    cm_open(&near, NEAR, RDMA_PS_TCP);
    for (unsigned int i = 0; i < victims; i++) {
        struct server_box box = {.end = {.side = &sides[1 + i]}};
        struct killer killer = {.side = &sides[1 + i], .at = random_moment(&seed)};
        struct sockaddr_storage address;
        struct cm_end heir;
        struct call call;

        cm_open(&box.end, &sides[1 + i], RDMA_PS_TCP);
        CM_AT(&box.end, open_server, &box.server);
        side_start(&call, box.end.side, serve_for_ever, &box, sizeof box);
        CHECK_ZERO(pthread_create(&killer.thread, NULL, kill_in_time, &killer));
        while (!__atomic_load_n(&killer.done, __ATOMIC_ACQUIRE)) {
            if (connect_once(near.channel, box.server.port))
                connected++;
            else
                refused++;
        }
        CHECK_ZERO(pthread_join(killer.thread, NULL));
        side_kill(killer.side); /* waits for it */
        /* Its port is anybody's at once. */
        address = cm_address(box.server.port);
        cm_open(&heir, NEAR, RDMA_PS_TCP);
        CM_ZERO(rdma_bind_addr(heir.id, as_sockaddr(&address)));
        CM_ZERO(rdma_listen(heir.id, 0));
        cm_close(&heir);
    }
    print_message("%u connected, %u refused\n", connected, refused);
    cm_close(&near);
}

static const struct test tests[] = {
    TEST_WITH(many_at_once, .fars = 1, .seconds = 300),
    TEST_WITH(one_after_another, .fars = 1, .seconds = 600),
    TEST_WITH(clients_are_killed, .fars = 60, .needs = NEEDS_TWO_PROCESSES, .seconds = 300),
    TEST_WITH(servers_are_killed, .fars = 60, .needs = NEEDS_TWO_PROCESSES, .seconds = 300),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
