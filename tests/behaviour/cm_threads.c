/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* docs/rdmacm.md, Events and ids: an event is the last that a call does with its id. The thread that reads
 * the channel may take the next step, or destroy the id, while the call has not returned yet. */
#include "cm.h"

#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { TIMES = 10000, CONNECTIONS = 300 };

/* What is used after it was freed is found out: it is neither zero nor what it was. The allocators of
 * sanitizers take no such wish, and find out by themselves. */
static void spoil_freed_memory(void)
{
    (void)mallopt(M_PERTURB, 0x5a);
}

/* On one processor the reader takes the place of the thread that wakes it. */
static void stay_on_one_processor(void)
{
    cpu_set_t set, one;

    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &set)) {
            CPU_SET(i, &one);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
}

static struct rdma_cm_event *take(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;

    CM_ZERO(rdma_get_cm_event(channel, &event));
    CHECK(event->event == type, "%s with status %d, expected %s", rdma_event_str(event->event), event->status,
          rdma_event_str(type));
    return event;
}

static struct rdma_cm_id *acknowledge(struct rdma_cm_event *event)
{
    struct rdma_cm_id *id = event->id;

    CM_ZERO(rdma_ack_cm_event(event));
    return id;
}

struct reader {
    struct rdma_event_channel *channel;
    unsigned times;
};

/* Each event leads to the next call, and the last one to the end of the id. */
static void *read_and_go_on(void *arg)
{
    struct reader *reader = arg;

    for (unsigned left = reader->times; left;) {
        struct rdma_cm_event *event;
        enum rdma_cm_event_type type;
        struct rdma_cm_id *id;

        CM_ZERO(rdma_get_cm_event(reader->channel, &event));
        type = event->event;
        id = acknowledge(event);
        CHECK(id->verbs && rdma_get_dst_port(id) == htons(4711), "the address is not all there");
        if (type == RDMA_CM_EVENT_ADDR_RESOLVED) {
            CM_ZERO(rdma_resolve_route(id, 2000));
            continue;
        }
        CHECK(type == RDMA_CM_EVENT_ROUTE_RESOLVED, "%s", rdma_event_str(type));
        CHECK(id->route.num_paths == 1, "the route is not there");
        CM_ZERO(rdma_destroy_id(id));
        left--;
    }
    return NULL;
}

static void resolve_many(unsigned times)
{
    struct sockaddr_storage address = cm_address(4711);
    struct reader reader = {.channel = rdma_create_event_channel(), .times = times};
    pthread_t thread;

    assert_non_null(reader.channel);
    assert_int_equal(pthread_create(&thread, NULL, read_and_go_on, &reader), 0);
    for (unsigned i = 0; i < times; i++) {
        struct rdma_cm_id *id;

        CM_ZERO(rdma_create_id(reader.channel, &id, NULL, RDMA_PS_TCP));
        CM_ZERO(rdma_resolve_addr(id, NULL, as_sockaddr(&address), 2000));
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    rdma_destroy_event_channel(reader.channel);
}

static void whoever_reads_an_address_may_take_the_next_step(void **state)
{
    spoil_freed_memory();
    resolve_many(TIMES / 2);
    stay_on_one_processor();
    resolve_many(TIMES / 2);
}

/* The thread that resolves the route is not the one that reads of it. */
static void *read_and_destroy(void *arg)
{
    struct reader *reader = arg;

    for (unsigned i = 0; i < reader->times; i++)
        CM_ZERO(rdma_destroy_id(acknowledge(take(reader->channel, RDMA_CM_EVENT_ROUTE_RESOLVED))));
    return NULL;
}

static void resolve_routes(unsigned times)
{
    struct sockaddr_storage address = cm_address(4711);
    struct rdma_event_channel *first = rdma_create_event_channel();
    struct reader reader = {.channel = rdma_create_event_channel(), .times = times};
    pthread_t thread;

    assert_non_null(first);
    assert_non_null(reader.channel);
    assert_int_equal(pthread_create(&thread, NULL, read_and_destroy, &reader), 0);
    for (unsigned i = 0; i < times; i++) {
        struct rdma_cm_id *id;

        CM_ZERO(rdma_create_id(first, &id, NULL, RDMA_PS_TCP));
        CM_ZERO(rdma_resolve_addr(id, NULL, as_sockaddr(&address), 2000));
        acknowledge(take(first, RDMA_CM_EVENT_ADDR_RESOLVED));
        CM_ZERO(rdma_migrate_id(id, reader.channel));
        CM_ZERO(rdma_resolve_route(id, 2000));
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    rdma_destroy_event_channel(reader.channel);
    rdma_destroy_event_channel(first);
}

static void whoever_reads_a_route_may_destroy_the_id(void **state)
{
    spoil_freed_memory();
    resolve_routes(TIMES / 2);
    stay_on_one_processor();
    resolve_routes(TIMES / 2);
}

/* The same of a connection: its answer is read, and the id destroyed, by another thread than the one that
 * asked.
 */
static void *read_refusals(void *arg)
{
    struct reader *reader = arg;

    for (unsigned i = 0; i < reader->times; i++)
        CM_ZERO(rdma_destroy_id(acknowledge(take(reader->channel, RDMA_CM_EVENT_REJECTED))));
    return NULL;
}

static void refuse_all(struct cm_end *far, void *arg)
{
    const unsigned *times = arg;

    for (unsigned i = 0; i < *times; i++) {
        struct rdma_cm_event *event = take(far->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
        struct rdma_cm_id *child = acknowledge(event);

        CM_ZERO(rdma_reject(child, NULL, 0));
        CM_ZERO(rdma_destroy_id(child));
    }
}

static void *refuse_there(void *arg)
{
    unsigned times = CONNECTIONS;

    CM_AT((struct cm_end *)arg, refuse_all, &times);
    return NULL;
}

static void whoever_reads_an_answer_may_destroy_the_id(void **state)
{
    struct rdma_event_channel *first = rdma_create_event_channel();
    struct reader reader = {.channel = rdma_create_event_channel(), .times = CONNECTIONS};
    struct rdma_conn_param param = {.retry_count = 7};
    struct sockaddr_storage address;
    pthread_t readers, refuser;
    struct cm_end far;

    assert_non_null(first);
    assert_non_null(reader.channel);
    cm_open(&far, FAR, RDMA_PS_TCP);
    /* A request that finds the backlog full comes again after a second. */
    address = cm_address(cm_listen(&far, CONNECTIONS));
    spoil_freed_memory();
    assert_int_equal(pthread_create(&readers, NULL, read_refusals, &reader), 0);
    assert_int_equal(pthread_create(&refuser, NULL, refuse_there, &far), 0);
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        struct rdma_cm_id *id;

        CM_ZERO(rdma_create_id(first, &id, NULL, RDMA_PS_TCP));
        CM_ZERO(rdma_resolve_addr(id, NULL, as_sockaddr(&address), 2000));
        acknowledge(take(first, RDMA_CM_EVENT_ADDR_RESOLVED));
        CM_ZERO(rdma_resolve_route(id, 2000));
        acknowledge(take(first, RDMA_CM_EVENT_ROUTE_RESOLVED));
        CM_ZERO(rdma_migrate_id(id, reader.channel));
        param.qp_num = 1000 + i;
        CM_ZERO(rdma_connect(id, &param));
    }
    assert_int_equal(pthread_join(readers, NULL), 0);
    assert_int_equal(pthread_join(refuser, NULL), 0);
    rdma_destroy_event_channel(reader.channel);
    rdma_destroy_event_channel(first);
    cm_close(&far);
}

static const struct test tests[] = {
    TEST(whoever_reads_an_address_may_take_the_next_step),
    TEST(whoever_reads_a_route_may_destroy_the_id),
    TEST(whoever_reads_an_answer_may_destroy_the_id),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
