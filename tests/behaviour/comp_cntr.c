/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §7.8: completion counters, as a program uses them that was built with rdma-core 65's header. */
#include "work.h"

#include <dlfcn.h>

enum { SEND = 1, RECV = 2, READ = 4, REMOTE_READ = 8, WRITE = 16, REMOTE_WRITE = 32 };
enum { REQUESTS, BYTES };
enum { LENGTH = 8192 };

struct counter;
struct init_attr {
    uint32_t comp_mask;
    int type;
    uint32_t flags;
};
struct attach_attr {
    uint32_t comp_mask, op_mask;
};

static struct {
    struct counter *(*create)(struct ibv_context *, struct init_attr *);
    int (*destroy)(struct counter *);
    int (*attach)(struct ibv_qp *, struct counter *, struct attach_attr *);
    int (*read)(struct counter *, uint64_t *);
    int (*read_err)(struct counter *, uint64_t *);
} verbs;

/* The distribution's library, which the program is linked with, may be older. */
static void look_up(void)
{
    *(void **)&verbs.create = dlsym(RTLD_DEFAULT, "ibv_create_comp_cntr");
    *(void **)&verbs.destroy = dlsym(RTLD_DEFAULT, "ibv_destroy_comp_cntr");
    *(void **)&verbs.attach = dlsym(RTLD_DEFAULT, "ibv_qp_attach_comp_cntr");
    *(void **)&verbs.read = dlsym(RTLD_DEFAULT, "ibv_read_comp_cntr");
    *(void **)&verbs.read_err = dlsym(RTLD_DEFAULT, "ibv_read_err_comp_cntr");
}

/* What is done to a counter of an end, where that lives. */
struct request {
    struct counter *counter;
    int type;
    uint32_t operations;
    int error; /* of the attachment or the destroy */
    uint64_t completed, failed;
};

static void create_there(struct end *end, void *argument)
{
    struct request *request = argument;
    struct init_attr init = {.type = request->type};
    struct attach_attr attach = {.op_mask = request->operations};

    look_up();
    if (!request->counter)
        request->counter = verbs.create(end->context, &init);
    request->error = request->counter ? verbs.attach(end->qp, request->counter, &attach) : ENOMEM;
}

static void read_there(struct end *end, void *argument)
{
    struct request *request = argument;

    verbs.read(request->counter, &request->completed);
    verbs.read_err(request->counter, &request->failed);
}

static void destroy_there(struct end *end, void *argument)
{
    struct request *request = argument;

    request->error = verbs.destroy(request->counter);
}

static struct request count_at(struct end *end, int type, uint32_t operations)
{
    struct request request = {.type = type, .operations = operations};

    AT(end, create_there, &request);
    assert_non_null(request.counter);
    assert_int_equal(request.error, 0);
    return request;
}

static int attach_at(struct end *end, struct counter *counter, uint32_t operations)
{
    struct request request = {.counter = counter, .operations = operations};

    AT(end, create_there, &request);
    return request.error;
}

static void expect_count(struct end *end, struct request *request, uint64_t completed, uint64_t failed)
{
    /* A peer's request is counted with its acknowledgement, of which another process knows nothing. */
    do
        AT(end, read_there, request);
    while (request->completed < completed || request->failed < failed);
    assert_int_equal(request->completed, completed);
    assert_int_equal(request->failed, failed);
}

static void destroy_at(struct end *end, struct request *request)
{
    AT(end, destroy_there, request);
    assert_int_equal(request->error, 0);
}

static void open_pair(struct pair *p, enum ibv_qp_type type)
{
    struct end_attr attr = attr_of(type);

    attr.size = 2 * LENGTH;
    pair_open(p, &attr, &attr);
}

/* The QP ends before its counters, which the end's close does not know. */
static void close_pair(struct pair *p, struct request *of_a, struct request *of_b)
{
    end_close_qp(&p->a);
    end_close_qp(&p->b);
    if (of_a)
        destroy_at(&p->a, of_a);
    if (of_b)
        destroy_at(&p->b, of_b);
    pair_close(p);
}

static void each_request_counts_signaled_or_not(void **state)
{
    struct request sends, receives;
    struct pair p;

    open_pair(&p, IBV_QPT_RC);
    sends = count_at(&p.a, REQUESTS, SEND);
    receives = count_at(&p.b, BYTES, RECV);
    end_connect(&p.a, &p.b);
    for (unsigned i = 0; i < 5; i++)
        end_recv(&p.b, a_recv(&p.b, i, 0, LENGTH));
    for (unsigned i = 0; i < 4; i++)
        end_send(&p.a, unsignaled(a_send(&p.a, i, 0, 100)));
    end_send(&p.a, a_write(&p.a, 9, 0, 64, &p.b, 0)); /* of which there is no counter */
    end_send(&p.a, a_send(&p.a, 4, 0, LENGTH));
    end_expect_success(&p.a, SQ, 9, IBV_WC_RDMA_WRITE);
    end_expect_success(&p.a, SQ, 4, IBV_WC_SEND);
    for (unsigned i = 0; i < 5; i++)
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
    expect_count(&p.a, &sends, 5, 0);
    expect_count(&p.b, &receives, 400 + LENGTH, 0);
    close_pair(&p, &sends, &receives);
}

/* Also where the requester would execute them itself, without the peer. */
static void what_the_peer_executes_counts_at_both_ends(void **state)
{
    struct request own, remote;
    struct pair p;

    open_pair(&p, IBV_QPT_RC);
    own = count_at(&p.a, BYTES, READ | WRITE);
    remote = count_at(&p.b, REQUESTS, REMOTE_READ | REMOTE_WRITE);
    end_connect(&p.a, &p.b);
    for (unsigned i = 0; i < 20; i++) {
        end_send(&p.a, a_write(&p.a, i, 0, LENGTH, &p.b, 0));
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_WRITE);
        end_send(&p.a, a_read(&p.a, i, 0, 100, &p.b, 0));
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_READ);
    }
    expect_count(&p.a, &own, 20 * (LENGTH + 100), 0);
    expect_count(&p.b, &remote, 40, 0);
    close_pair(&p, &own, &remote);
}

static void one_direction_is_counted_alone(void **state)
{
    struct request writes;
    struct pair p;

    open_pair(&p, IBV_QPT_RC);
    writes = count_at(&p.b, BYTES, REMOTE_WRITE);
    end_connect(&p.a, &p.b);
    end_send(&p.a, a_read(&p.a, 1, 0, LENGTH, &p.b, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_READ);
    end_send(&p.a, a_write(&p.a, 2, 0, LENGTH, &p.b, 0));
    end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_WRITE);
    expect_count(&p.b, &writes, LENGTH, 0);
    close_pair(&p, NULL, &writes);
}

static void errors_and_flushes_count_as_errors(void **state)
{
    struct request sends, receives;
    struct pair p;

    open_pair(&p, IBV_QPT_RC);
    sends = count_at(&p.a, BYTES, SEND | WRITE);
    receives = count_at(&p.b, REQUESTS, RECV);
    end_connect(&p.a, &p.b);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 64));
    end_recv(&p.b, a_recv(&p.b, 2, 0, 64));
    end_send(&p.a, a_send(&p.a, 1, 0, 65)); /* longer than the receive */
    end_poll(&p.a, SQ, &(struct ibv_wc){0}, 1);
    end_expect_status(&p.b, RQ, 1, IBV_WC_LOC_LEN_ERR);
    end_expect_status(&p.b, RQ, 2, IBV_WC_WR_FLUSH_ERR);
    end_send(&p.a, a_write(&p.a, 3, 0, 8, &p.b, 0));
    end_expect_status(&p.a, SQ, 3, IBV_WC_WR_FLUSH_ERR);
    expect_count(&p.a, &sends, 0, 2);
    expect_count(&p.b, &receives, 0, 2);
    close_pair(&p, &sends, &receives);
}

static void an_operation_has_one_counter_and_a_counter_has_its_qps(void **state)
{
    struct request counter, other;
    struct pair p;

    open_pair(&p, IBV_QPT_RC);
    counter = count_at(&p.a, REQUESTS, SEND);
    assert_int_equal(attach_at(&p.a, counter.counter, SEND), EBUSY);
    assert_int_equal(attach_at(&p.a, counter.counter, SEND | RECV), EBUSY);
    assert_int_equal(attach_at(&p.a, counter.counter, 0), EINVAL);
    assert_int_equal(attach_at(&p.a, counter.counter, 64), EOPNOTSUPP);
    other = count_at(&p.a, REQUESTS, RECV);
    end_connect(&p.a, &p.b);
    assert_int_equal(attach_at(&p.a, counter.counter, WRITE), EINVAL);
    AT(&p.a, destroy_there, &counter);
    assert_int_equal(counter.error, EBUSY);
    end_close_qp(&p.a);
    destroy_at(&p.a, &counter);
    destroy_at(&p.a, &other);
    end_close_qp(&p.b);
    pair_close(&p);
}

static void datagrams_are_sent_and_received_only(void **state)
{
    struct request sends, receives;
    struct pair p;

    open_pair(&p, IBV_QPT_UD);
    sends = count_at(&p.a, BYTES, SEND);
    assert_int_equal(attach_at(&p.a, sends.counter, WRITE), EOPNOTSUPP);
    receives = count_at(&p.b, BYTES, RECV);
    end_connect(&p.a, &p.b);
    end_recv(&p.b, a_recv(&p.b, 1, 0, LENGTH));
    end_send(&p.a, a_datagram(&p.a, 1, 0, 100, &p.b));
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    expect_count(&p.a, &sends, 100, 0);
    expect_count(&p.b, &receives, 140, 0); /* with the 40 bytes in front */
    close_pair(&p, &sends, &receives);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(each_request_counts_signaled_or_not),
        TEST(what_the_peer_executes_counts_at_both_ends),
        TEST(one_direction_is_counted_alone),
        TEST(errors_and_flushes_count_as_errors),
        TEST(an_operation_has_one_counter_and_a_counter_has_its_qps),
        TEST(datagrams_are_sent_and_received_only),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
