/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Asynchronous events: the queue of a context (verbs.md §9.1, §1.3). */
#include "object_fixture.h"
#include "refused_calls.h"

void qp_retire_sends(uint32_t qpn, uint32_t retires)
{
}

static void raise_on(struct ack_account *account, enum ibv_event_type type)
{
    /* Any address will do as the object. */
    const struct ibv_async_event event = {.element.qp = (struct ibv_qp *)account, .event_type = type};

    async_raise(&context->events, &event, account);
}

static void raise_port(enum ibv_event_type type)
{
    const struct ibv_async_event event = {.element.port_num = 1, .event_type = type};

    async_raise(&context->events, &event, NULL);
}

static struct ibv_async_event get(void)
{
    struct ibv_async_event event;

    assert_true(readable(context->verbs.context.async_fd));
    assert_int_equal(async_get(&context->events, &event), 0);
    return event;
}

static void assert_nothing_queued(void)
{
    struct ibv_async_event event;

    set_nonblocking(context->verbs.context.async_fd);
    assert_false(readable(context->verbs.context.async_fd));
    assert_int_equal(async_get(&context->events, &event), -EAGAIN);
}

static void events_of_an_object_come_in_order(void **state)
{
    struct ack_account qp, other;
    struct event_record published = {0};
    struct ibv_async_event event;

    ack_account_init(&qp, &published);
    ack_account_init(&other, NULL);
    raise_on(&qp, IBV_EVENT_COMM_EST);
    raise_on(&qp, IBV_EVENT_QP_ACCESS_ERR);
    raise_on(&other, IBV_EVENT_CQ_ERR); /* type 0 */
    raise_on(&qp, IBV_EVENT_QP_LAST_WQE_REACHED);
    unsigned of_qp = 0, of_other = 0;
    static const enum ibv_event_type expected[] = {IBV_EVENT_COMM_EST, IBV_EVENT_QP_ACCESS_ERR,
                                                   IBV_EVENT_QP_LAST_WQE_REACHED};

    for (int i = 0; i < 4; i++) {
        event = get();
        if (event.element.qp == (struct ibv_qp *)&qp) {
            assert_int_equal(event.event_type, expected[of_qp++]);
        } else {
            assert_int_equal(event.event_type, IBV_EVENT_CQ_ERR);
            of_other++;
        }
    }
    assert_int_equal(of_qp, 3);
    assert_int_equal(of_other, 1);
    assert_int_equal(published.reported, 3);
    assert_int_equal(published.type, IBV_EVENT_COMM_EST); /* the first that is not acknowledged */
    assert_nothing_queued();
}

static void a_full_account_drops_the_newest(void **state)
{
    struct ack_account qp;

    ack_account_init(&qp, NULL);
    for (unsigned i = 0; i < ASYNC_PENDING_LIMIT + 3; i++)
        raise_on(&qp, i < ASYNC_PENDING_LIMIT ? IBV_EVENT_COMM_EST : IBV_EVENT_QP_FATAL);
    for (unsigned i = 0; i < ASYNC_PENDING_LIMIT; i++)
        assert_int_equal(get().event_type, IBV_EVENT_COMM_EST);
    assert_nothing_queued();
    raise_on(&qp, IBV_EVENT_QP_FATAL);
    assert_int_equal(get().event_type, IBV_EVENT_QP_FATAL);
}

static void port_events_coalesce_but_keep_their_order(void **state)
{
    struct ibv_async_event event;

    raise_port(IBV_EVENT_PORT_ERR);
    raise_port(IBV_EVENT_PORT_ERR);
    raise_port(IBV_EVENT_PORT_ACTIVE);
    raise_port(IBV_EVENT_PORT_ERR);
    event = get();
    assert_int_equal(event.event_type, IBV_EVENT_PORT_ERR);
    assert_int_equal(event.element.port_num, 1);
    async_ack(&event); /* counts nowhere */
    assert_int_equal(get().event_type, IBV_EVENT_PORT_ACTIVE);
    assert_int_equal(get().event_type, IBV_EVENT_PORT_ERR);
    assert_nothing_queued();
}

static void purge_takes_events_and_tokens(void **state)
{
    struct ack_account qp, other;

    ack_account_init(&qp, NULL);
    ack_account_init(&other, NULL);
    raise_on(&qp, IBV_EVENT_COMM_EST);
    raise_on(&other, IBV_EVENT_SQ_DRAINED);
    raise_on(&qp, IBV_EVENT_QP_FATAL);
    async_purge(&context->events, &qp);
    raise_on(&qp, IBV_EVENT_QP_FATAL); /* a straggler of the engine */
    assert_int_equal(get().event_type, IBV_EVENT_SQ_DRAINED);
    assert_int_equal(qp.reported, 0);
    assert_nothing_queued();
    async_purge(&context->events, &other);
}

static void *read_one(void *unused)
{
    struct ibv_async_event event;

    return (void *)(intptr_t)(async_get(&context->events, &event) ? 0 : (int)event.event_type);
}

/* A reader that holds the token of an event that is purged reads on, and no later event is lost. */
static void purge_races_with_a_reader(void **state)
{
    struct ack_account qp;

    for (int i = 0; i < 300; i++) {
        pthread_t thread;
        void *result;

        ack_account_init(&qp, NULL);
        assert_int_equal(pthread_create(&thread, NULL, read_one, NULL), 0);
        raise_on(&qp, IBV_EVENT_QP_FATAL);
        async_purge(&context->events, &qp);
        if (qp.reported == 0)
            raise_port(IBV_EVENT_GID_CHANGE);
        assert_int_equal(pthread_join(thread, &result), 0);
        assert_int_equal((intptr_t)result, qp.reported ? IBV_EVENT_QP_FATAL : IBV_EVENT_GID_CHANGE);
    }
    assert_nothing_queued();
}

static void several_readers_get_each_event_once(void **state)
{
    pthread_t threads[4];
    struct ack_account qp;

    ack_account_init(&qp, NULL);
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 4; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, read_one, NULL), 0);
        for (int i = 0; i < 4; i++)
            raise_on(&qp, IBV_EVENT_COMM_EST);
        for (int i = 0; i < 4; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(qp.reported, 400);
    assert_nothing_queued();
}

/* From now on preadv2(2) fails as it does for an eventfd before Linux 5.8. */
static void refuse_reads_that_do_not_wait(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_preadv2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    refuse_calls(filter, array_size(filter));
}

/* The last test: the filter stays. */
static void a_purge_leaves_nothing_to_read_on_old_kernels(void **state)
{
    struct ack_account qp;
    int fd = context->verbs.context.async_fd;

    refuse_reads_that_do_not_wait();
    ack_account_init(&qp, NULL);
    raise_on(&qp, IBV_EVENT_COMM_EST);
    assert_true(readable(fd));
    async_purge(&context->events, &qp);
    assert_false(readable(fd));
    assert_false(fcntl(fd, F_GETFL) & O_NONBLOCK);
    purge_races_with_a_reader(state);
}

#define test(name) cmocka_unit_test_setup_teardown(name, open_contexts, close_contexts)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(events_of_an_object_come_in_order),
        test(a_full_account_drops_the_newest),
        test(port_events_coalesce_but_keep_their_order),
        test(purge_takes_events_and_tokens),
        test(purge_races_with_a_reader),
        test(several_readers_get_each_event_once),
        test(a_purge_leaves_nothing_to_read_on_old_kernels),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("object_event", tests, NULL, NULL);
}
