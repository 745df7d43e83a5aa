/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* docs/rdmacm.md, Events and ids: of a request that the program has not answered yet, it hears nothing more.
 * The id's context is the listener's until then, so nobody could tell whose event it is. */
#include "cm.h"

#include <stdlib.h>

static const struct cm_parameters plain = {.retry_count = 7, .rnr_retry_count = 7, .qp_num = 4711};
static const struct cm_parameters other = {.retry_count = 7, .rnr_retry_count = 7, .qp_num = 4712};

static uint16_t open_listener(struct cm_end *far)
{
    cm_open(far, FAR, RDMA_PS_TCP);
    return cm_listen(far, 8);
}

static void ask(struct cm_end *near, uint16_t port, const struct cm_parameters *parameters)
{
    cm_open(near, NEAR, RDMA_PS_TCP);
    cm_resolve(near, port);
    CHECK_ZERO(cm_connect(near, parameters));
}

static void drop_child(struct cm_end *end, void *arg)
{
    CM_ZERO(rdma_destroy_id(end->child));
    end->child = NULL;
}

/* One more request comes after all that came before it, and nothing comes between. */
static void expect_only_a_request(struct cm_end *far, uint16_t port)
{
    struct cm_end near;

    ask(&near, port, &other);
    cm_expect(far, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK_ZERO(cm_reject(far, NULL, 0));
    cm_expect(&near, RDMA_CM_EVENT_REJECTED);
    cm_close(&near);
    CM_AT_PLAIN(far, drop_child);
}

/* Which is the child's that is to be kept meanwhile. */
struct kept {
    struct rdma_cm_id *id;
    int accept, reject, disconnect;
};

static void keep_child(struct cm_end *end, void *arg)
{
    struct kept *kept = arg;

    kept->id = end->child;
    end->child = NULL;
}

static void answer(struct cm_end *end, void *arg)
{
    struct rdma_conn_param param = {.qp_num = 17, .retry_count = 7};
    struct kept *kept = arg;

    CHECK(kept->id->context == end->id->context, "the context is not the listener's");
    kept->accept = CM(rdma_accept(kept->id, &param));
    kept->reject = CM(rdma_reject(kept->id, NULL, 0));
    kept->disconnect = CM(rdma_disconnect(kept->id));
    CM_ZERO(rdma_destroy_id(kept->id));
}

static void a_client_that_goes_away_makes_no_event(void **state)
{
    struct kept kept = {0};
    struct cm_end near, far;
    uint16_t port = open_listener(&far);

    ask(&near, port, &plain);
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    CM_AT(&far, keep_child, &kept);
    cm_close(&near);
    expect_only_a_request(&far, port);
    CM_AT(&far, answer, &kept);
    assert_int_equal(kept.accept, EINVAL);
    assert_int_equal(kept.reject, EINVAL);
    assert_int_equal(kept.disconnect, EINVAL);
    cm_expect_none(&far);
    cm_close(&far);
}

static void nor_before_the_request_was_read(void **state)
{
    struct kept kept = {0};
    struct cm_end near, second, far;
    uint16_t port = open_listener(&far);

    expect_only_a_request(&far, port); /* so that there is a way, on which all is in order */
    ask(&near, port, &plain);
    cm_close(&near);
    ask(&second, port, &other); /* comes behind what the first one's end has made */
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    CM_AT(&far, keep_child, &kept);
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    CM_AT(&far, answer, &kept);
    assert_int_equal(kept.accept, EINVAL);
    cm_expect_none(&far);
    cm_close(&second);
    cm_close(&far);
}

static void an_accepted_request_tells_that_its_client_went(void **state)
{
    struct cm_end near, far;
    uint16_t port = open_listener(&far);

    ask(&near, port, &plain);
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK_ZERO(cm_accept(&far, &plain));
    cm_close(&near); /* it has not said that it is ready */
    assert_true(cm_expect(&far, RDMA_CM_EVENT_REJECTED).of_child);
    cm_close(&far);
}

static void a_qp_does_not_make_it_an_answer(void **state)
{
    struct cm_end near, far;
    uint16_t port = open_listener(&far);
    struct kept kept = {0};

    ask(&near, port, &plain);
    cm_expect(&far, RDMA_CM_EVENT_CONNECT_REQUEST);
    cm_make_qp(&far, true);
    cm_close(&near);
    CM_AT(&far, keep_child, &kept);
    expect_only_a_request(&far, port);
    far.child = kept.id;
    assert_int_equal(cm_accept(&far, &plain), EINVAL);
    assert_int_equal(cm_state(&far, true), IBV_QPS_ERR);
    cm_expect_none(&far);
    cm_close(&far);
}

/* rdma_get_request() gives the id a channel of its own; nobody reads it before rdma_accept(). */
struct synchronous {
    struct rdma_cm_id *listener, *child;
    uint16_t port;
    int accept;
};

static void listen_synchronously(struct cm_end *end, void *arg)
{
    struct sockaddr_storage address = cm_address(0);
    struct synchronous *synchronous = arg;

    CM_ZERO(rdma_create_id(NULL, &synchronous->listener, NULL, RDMA_PS_TCP));
    CM_ZERO(rdma_bind_addr(synchronous->listener, as_sockaddr(&address)));
    CM_ZERO(rdma_listen(synchronous->listener, 8));
    synchronous->port = ntohs(rdma_get_src_port(synchronous->listener));
}

static void get_request(struct cm_end *end, void *arg)
{
    struct synchronous *synchronous = arg;

    CM_ZERO(rdma_get_request(synchronous->listener, &synchronous->child));
}

static void accept_late(struct cm_end *end, void *arg)
{
    struct rdma_conn_param param = {.qp_num = 17, .retry_count = 7};
    struct synchronous *synchronous = arg;

    synchronous->accept = CM(rdma_accept(synchronous->child, &param));
    CM_ZERO(rdma_destroy_id(synchronous->child));
}

static void close_child(struct cm_end *end, void *arg)
{
    struct synchronous *synchronous = arg;

    CM_ZERO(rdma_destroy_id(synchronous->child));
}

static void close_listener(struct cm_end *end, void *arg)
{
    struct synchronous *synchronous = arg;

    CM_ZERO(rdma_destroy_id(synchronous->listener));
}

static void a_synchronous_accept_fails_at_once(void **state)
{
    struct synchronous synchronous = {0};
    struct cm_end near, far = {.side = FAR};
    struct rdma_cm_id *gone;

    CM_AT(&far, listen_synchronously, &synchronous);
    ask(&near, synchronous.port, &plain);
    CM_AT(&far, get_request, &synchronous);
    gone = synchronous.child;
    cm_close(&near);
    /* When the second request is there, the end of the first one is, too. */
    ask(&near, synchronous.port, &other);
    CM_AT(&far, get_request, &synchronous);
    CM_AT(&far, close_child, &synchronous);
    synchronous.child = gone;
    CM_AT(&far, accept_late, &synchronous);
    assert_int_equal(synchronous.accept, EINVAL);
    cm_close(&near);
    CM_AT(&far, close_listener, &synchronous);
}

static void a_client_that_dies_makes_no_event(void **state)
{
    struct kept kept = {0};
    struct cm_end near, far;
    uint16_t port;

    if (path_under_test() == PATH_WIRE)
        skip_because("over the network nobody tells of a death");
    /* The far side asks, so that it can be killed. */
    cm_open(&near, NEAR, RDMA_PS_TCP);
    port = cm_listen(&near, 4);
    cm_open(&far, FAR, RDMA_PS_TCP);
    cm_resolve(&far, port);
    CHECK_ZERO(cm_connect(&far, &plain));
    cm_expect(&near, RDMA_CM_EVENT_CONNECT_REQUEST);
    CM_AT(&near, keep_child, &kept);
    side_kill(far.side);
    /* What the machine knows of it ends some time after the death. */
    EVENTUALLY(({
                   struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
                   int mask;

                   CM(rdma_init_qp_attr(kept.id, &attr, &mask)) == EINVAL;
               }),
               "the end of a request");
    cm_expect_none(&near);
    CM_AT(&near, answer, &kept);
    assert_int_equal(kept.accept, EINVAL);
    cm_close(&near);
}

static const struct test tests[] = {
    TEST(a_client_that_goes_away_makes_no_event),
    TEST(nor_before_the_request_was_read),
    TEST(an_accepted_request_tells_that_its_client_went),
    TEST(a_qp_does_not_make_it_an_answer),
    TEST(a_synchronous_accept_fails_at_once),
    TEST_WITH(a_client_that_dies_makes_no_event, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
