/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* docs/rdmacm.md, Events and ids: what was destroyed before its time, or twice. */
#include "cm.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

static const struct cm_parameters plain = {.retry_count = 7, .rnr_retry_count = 7, .qp_num = 4711};

static struct rdma_event_channel *new_channel(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();

    assert_non_null(channel);
    return channel;
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel)
{
    struct rdma_cm_id *id;

    CM_ZERO(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    return id;
}

static void begin_resolving(struct rdma_cm_id *id)
{
    struct sockaddr_storage address = cm_address(4711);

    CM_ZERO(rdma_resolve_addr(id, NULL, as_sockaddr(&address), 2000));
}

static struct rdma_cm_event *take(struct rdma_event_channel *channel)
{
    struct rdma_cm_event *event;

    CM_ZERO(rdma_get_cm_event(channel, &event));
    return event;
}

static void expect_works(struct rdma_event_channel *channel, struct rdma_cm_id *id)
{
    begin_resolving(id);
    CM_ZERO(rdma_ack_cm_event(take(channel)));
}

/* --- channels before their ids --- */

static void ids_can_be_destroyed_after_their_channel(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *idle = new_id(channel), *resolved = new_id(channel), *unread = new_id(channel);

    expect_works(channel, resolved);
    begin_resolving(unread);
    rdma_destroy_event_channel(channel);
    CM_ZERO(rdma_destroy_id(unread));
    CM_ZERO(rdma_destroy_id(resolved));
    CM_ZERO(rdma_destroy_id(idle));
}

static void without_its_channel_an_id_does_nothing(void **state)
{
    struct rdma_event_channel *channel = new_channel(), *other = new_channel();
    struct sockaddr_storage address = cm_address(0);
    struct rdma_conn_param param = {.qp_num = 1};
    struct rdma_cm_id *id = new_id(channel);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
    int mask, one = 1;

    expect_works(channel, id);
    rdma_destroy_event_channel(channel);
    assert_int_equal(CM(rdma_bind_addr(id, as_sockaddr(&address))), EBADF);
    assert_int_equal(CM(rdma_listen(id, 1)), EBADF);
    assert_int_equal(CM(rdma_resolve_addr(id, NULL, as_sockaddr(&address), 2000)), EBADF);
    assert_int_equal(CM(rdma_resolve_route(id, 2000)), EBADF);
    assert_int_equal(CM(rdma_connect(id, &param)), EBADF);
    assert_int_equal(CM(rdma_establish(id)), EBADF);
    assert_int_equal(CM(rdma_accept(id, &param)), EBADF);
    assert_int_equal(CM(rdma_reject(id, NULL, 0)), EBADF);
    assert_int_equal(CM(rdma_notify(id, IBV_EVENT_COMM_EST)), EBADF);
    assert_int_equal(CM(rdma_disconnect(id)), EBADF);
    assert_int_equal(CM(rdma_init_qp_attr(id, &attr, &mask)), EBADF);
    assert_int_equal(CM(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof one)), EBADF);
    assert_int_equal(CM(rdma_migrate_id(id, other)), EBADF);
    CM_ZERO(rdma_destroy_id(id));
    rdma_destroy_event_channel(other);
}

static void nor_does_the_channel(void **state)
{
    struct rdma_event_channel *channel = new_channel(), *other = new_channel();
    struct rdma_cm_id *id = new_id(other), *none;
    struct rdma_cm_event *event;
    int fd = channel->fd;

    rdma_destroy_event_channel(channel);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    assert_int_equal(errno, EBADF);
    assert_int_equal(CM(rdma_get_cm_event(channel, &event)), EBADF);
    assert_int_equal(CM(rdma_create_id(channel, &none, NULL, RDMA_PS_TCP)), EBADF);
    assert_int_equal(CM(rdma_migrate_id(id, channel)), EBADF);
    expect_works(other, id);
    CM_ZERO(rdma_destroy_id(id));
    rdma_destroy_event_channel(other);
    rdma_destroy_event_channel(NULL);
}

static void destroy_channel(struct cm_end *end, void *arg)
{
    rdma_destroy_event_channel(end->channel);
    end->channel = NULL;
}

static void a_listener_ends_with_its_channel(void **state)
{
    struct sockaddr_storage address;
    struct cm_end near, waiting, far, heir;
    uint16_t port;

    cm_open(&far, FAR, RDMA_PS_TCP);
    port = cm_listen(&far, 8);
    cm_open(&near, NEAR, RDMA_PS_TCP);
    cm_resolve(&near, port);
    CHECK_ZERO(cm_connect(&near, &plain));
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    /* One request in the program's hands, one perhaps unread. */
    cm_open(&waiting, NEAR, RDMA_PS_TCP);
    cm_resolve(&waiting, port);
    CHECK_ZERO(cm_connect(&waiting, &(struct cm_parameters){.qp_num = 4712, .retry_count = 7}));
    CM_AT_PLAIN(&far, destroy_channel);
    cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    cm_expect(&waiting, RDMA_CM_EVENT_REJECTED);
    address = cm_address(port);
    cm_open(&heir, NEAR, RDMA_PS_TCP);
    CM_ZERO(rdma_bind_addr(heir.id, as_sockaddr(&address)));
    cm_close(&heir);
    cm_close(&near);
    cm_close(&waiting);
    cm_close(&far); /* the ids */
}

static void a_connection_ends_with_its_channel(void **state)
{
    struct cm_pair pair;

    cm_pair_open(&pair);
    CM_AT_PLAIN(&pair.near, destroy_channel);
    cm_expect(&pair.far, RDMA_CM_EVENT_DISCONNECTED);
    assert_non_null(pair.near.id->qp); /* which is the program's */
    cm_pair_close(&pair);
    cm_pair_open(&pair);
    CM_AT_PLAIN(&pair.far, destroy_channel);
    cm_expect(&pair.near, RDMA_CM_EVENT_DISCONNECTED);
    cm_pair_close(&pair);
}

static void a_moved_id_is_of_its_new_channel(void **state)
{
    struct rdma_event_channel *from = new_channel(), *to = new_channel();
    struct rdma_cm_id *id = new_id(from);

    CM_ZERO(rdma_migrate_id(id, to));
    rdma_destroy_event_channel(from);
    expect_works(to, id);
    rdma_destroy_event_channel(to);
    CM_ZERO(rdma_destroy_id(id));
}

static void a_synchronous_id_may_lose_its_channel(void **state)
{
    struct rdma_cm_id *id = new_id(NULL);

    begin_resolving(id);
    assert_non_null(id->event);
    rdma_destroy_event_channel(id->channel);
    assert_int_equal(CM(rdma_resolve_route(id, 2000)), EBADF);
    rdma_destroy_ep(id);
}

/* Nobody could acknowledge what holds it: whoever destroys the channel has done with its events. */
static void events_do_not_hold_an_id_without_a_channel(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel), *late = new_id(channel);
    struct rdma_cm_event *event, *late_event;

    begin_resolving(id);
    event = take(channel);
    begin_resolving(late);
    late_event = take(channel);
    rdma_destroy_event_channel(channel);
    CM_ZERO(rdma_ack_cm_event(event));
    CM_ZERO(rdma_destroy_id(id));
    CM_ZERO(rdma_destroy_id(late));
    CM_ZERO(rdma_ack_cm_event(late_event));
}

/* --- twice --- */

static void destroying_a_channel_twice_does_nothing(void **state)
{
    struct rdma_event_channel *channel = new_channel(), *other;
    struct rdma_cm_id *id;

    rdma_destroy_event_channel(channel);
    other = new_channel(); /* its descriptor has the number of the other */
    id = new_id(other);
    rdma_destroy_event_channel(channel);
    rdma_destroy_event_channel(channel);
    assert_true(fcntl(other->fd, F_GETFD) >= 0);
    expect_works(other, id);
    CM_ZERO(rdma_destroy_id(id));
    rdma_destroy_event_channel(other);
}

static void destroying_an_id_twice_is_refused(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel), *other = new_id(channel);
    struct rdma_conn_param param = {.qp_num = 1};
    struct ibv_pd *pd;

    expect_works(channel, id);
    expect_works(channel, other);
    pd = other->pd;
    CM_ZERO(rdma_destroy_id(id));
    assert_int_equal(CM(rdma_destroy_id(id)), EINVAL);
    assert_int_equal(CM(rdma_destroy_id(id)), EINVAL);
    assert_int_equal(CM(rdma_connect(id, &param)), EINVAL);
    rdma_destroy_ep(id);
    /* The PD that both had is the other's still, and counted once. */
    assert_ptr_equal(other->pd, pd);
    struct ibv_mr *mr = ibv_reg_mr(other->pd, &param, sizeof param, 0);

    assert_non_null(mr);
    CHECK_ZERO(ibv_dereg_mr(mr));
    id = new_id(channel);
    expect_works(channel, id);
    assert_ptr_equal(id->pd, pd);
    CM_ZERO(rdma_destroy_id(id));
    CM_ZERO(rdma_destroy_id(other));
    rdma_destroy_event_channel(channel);
}

/* Memory of what was destroyed is used again, but not at once. */
static void many_come_and_go(void **state)
{
    struct rdma_event_channel *first = new_channel();

    rdma_destroy_event_channel(first);
    for (int i = 0; i < 2000; i++) {
        struct rdma_event_channel *channel = new_channel();
        struct rdma_cm_id *id = new_id(channel);

        if (i < 100)
            rdma_destroy_event_channel(first);
        if (i % 16 == 0)
            expect_works(channel, id);
        if (i % 2)
            CM_ZERO(rdma_destroy_id(id));
        rdma_destroy_event_channel(channel);
        if (i % 2 == 0)
            CM_ZERO(rdma_destroy_id(id));
        assert_int_equal(CM(rdma_destroy_id(id)), EINVAL);
    }
}

static const struct test tests[] = {
    TEST(ids_can_be_destroyed_after_their_channel),
    TEST(without_its_channel_an_id_does_nothing),
    TEST(nor_does_the_channel),
    TEST(a_listener_ends_with_its_channel),
    TEST(a_connection_ends_with_its_channel),
    TEST(a_moved_id_is_of_its_new_channel),
    TEST(a_synchronous_id_may_lose_its_channel),
    TEST(events_do_not_hold_an_id_without_a_channel),
    TEST(destroying_a_channel_twice_does_nothing),
    TEST(destroying_an_id_twice_is_refused),
    TEST(many_come_and_go),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
