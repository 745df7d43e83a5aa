/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion queues and channels (verbs.md §5, §1.3). */
#include "object_fixture.h"

/* --- helpers -------------------------------------------------------------------------------------------- */

static struct {
    uint32_t qpn, retires;
} retired[16];
static unsigned retired_count;

void qp_retire_sends(uint32_t qpn, uint32_t retires)
{
    assert_in_range(retired_count, 0, 15);
    retired[retired_count].qpn = qpn;
    retired[retired_count++].retires = retires;
}

static struct cq *make_cq(uint32_t cqe, struct channel *channel)
{
    struct cq *cq;
    const struct cq_attributes attributes = {.cqe = cqe, .channel = channel, .user_context = &retired};

    retired_count = 0;
    assert_int_equal(cq_create(context, &attributes, &cq), 0);
    return cq;
}

static struct channel *make_channel(void)
{
    struct channel *channel;

    assert_int_equal(channel_create(context, &channel), 0);
    set_nonblocking(channel->ibv.fd);
    return channel;
}

static void push_receive(struct cq *cq, uint64_t wr_id, uint32_t qpn, enum ibv_wc_status status,
                         bool solicited)
{
    cq_push(cq,
            &(struct cqe){
                .wr_id = wr_id,
                .qpn = qpn,
                .status = (uint8_t)status,
                .opcode = IBV_WC_RECV,
                .byte_len = 40,
                .wc_flags = IBV_WC_WITH_IMM,
                .imm_or_rkey = 0x01020304,
                .src_qpn = 77,
                .service_level = 2,
                .vendor_err = 5,
            },
            solicited);
}

static void push(struct cq *cq, uint64_t wr_id)
{
    push_receive(cq, wr_id, 100, IBV_WC_SUCCESS, false);
}

static void push_send(struct cq *cq, uint64_t wr_id, uint32_t qpn, uint32_t retires)
{
    cq_push(cq, &(struct cqe){.wr_id = wr_id, .qpn = qpn, .kind = CQE_SEND, .retires = retires}, false);
}

static void assert_polls(struct cq *cq, uint64_t wr_id)
{
    struct ibv_wc wc;

    assert_int_equal(cq_poll(cq, 1, &wc), 1);
    assert_int_equal(wc.wr_id, wr_id);
}

static void assert_empty(struct cq *cq)
{
    struct ibv_wc wc;

    assert_int_equal(cq_poll(cq, 1, &wc), 0);
}

/* One event of this CQ is queued: reads and acknowledges it. */
static void assert_event(struct channel *channel, struct cq *expected)
{
    struct cq *cq = NULL;

    assert_true(readable(channel->ibv.fd));
    assert_int_equal(channel_get_event(channel, &cq), 0);
    assert_ptr_equal(cq, expected);
    cq_ack_events(cq, 1);
}

static void assert_no_event(struct channel *channel)
{
    struct cq *cq;

    assert_false(readable(channel->ibv.fd));
    assert_int_equal(channel_get_event(channel, &cq), -EAGAIN);
}

static void drop(struct cq *cq, struct channel *channel)
{
    assert_int_equal(cq_destroy(cq), 0);
    if (channel)
        assert_int_equal(channel_destroy(channel), 0);
}

/* --- life ----------------------------------------------------------------------------------------------- */

static void create_grants_at_least_what_was_asked(void **state)
{
    static const uint32_t wanted[] = {1, 2, 3, 4, 63, 64, 1000, LIMIT_CQE};

    for (size_t i = 0; i < array_size(wanted); i++) {
        struct cq *cq = make_cq(wanted[i], NULL);

        assert_in_range(cq->ibv.cqe, wanted[i], 2 * wanted[i]);
        assert_int_equal(cq->record->capacity, cq->ibv.cqe);
        assert_int_equal(cq->record->state, OBJECT_ALIVE);
        assert_ptr_equal(cq->ibv.context, &context->verbs.context);
        assert_ptr_equal(cq->ibv.cq_context, &retired);
        drop(cq, NULL);
    }
}

static void create_refuses(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq;
    static const struct {
        struct cq_attributes attributes;
        int error;
    } bad[] = {
        {{.cqe = 0}, -EINVAL},
        {{.cqe = LIMIT_CQE + 1}, -EINVAL},
        {{.cqe = UINT32_MAX}, -EINVAL},
        {{.cqe = 1, .comp_vector = LIMIT_COMP_VECTORS}, -EINVAL},
        {{.cqe = 1, .flags = 1u << 20}, -EOPNOTSUPP},
        {{.cqe = 1, .wc_flags = IBV_WC_EX_WITH_TM_INFO << 2}, -EOPNOTSUPP},
    };

    for (size_t i = 0; i < array_size(bad); i++)
        assert_int_equal(cq_create(context, &bad[i].attributes, &cq), bad[i].error);
    assert_int_equal(cq_create(other_context, &(struct cq_attributes){.cqe = 1, .channel = channel}, &cq),
                     -EINVAL);
    assert_int_equal(channel_destroy(channel), 0);
}

static void destroy_is_refused_while_used(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(4, channel);

    assert_int_equal(channel->ibv.refcnt, 1);
    assert_int_equal(channel_destroy(channel), -EBUSY);
    assert_int_equal(cq_use(cq, "test"), 0);
    assert_int_equal(cq_destroy(cq), -EBUSY);
    push(cq, 1); /* no side effect: it still works */
    assert_polls(cq, 1);
    cq_unuse(cq);
    drop(cq, channel);
}

/* --- polling -------------------------------------------------------------------------------------------- */

static void poll_returns_completions_in_order(void **state)
{
    struct cq *cq = make_cq(7, NULL);
    struct ibv_wc wc[8];

    for (unsigned round = 0; round < 5; round++) {
        for (uint64_t i = 0; i < 5; i++)
            push(cq, round * 10 + i);
        assert_int_equal(cq_poll(cq, 3, wc), 3);
        assert_int_equal(cq_poll(cq, 8, wc + 3), 2);
        for (uint64_t i = 0; i < 5; i++)
            assert_int_equal(wc[i].wr_id, round * 10 + i);
    }
    assert_int_equal(wc[0].opcode, IBV_WC_RECV);
    assert_int_equal(wc[0].qp_num, 100);
    assert_int_equal(wc[0].byte_len, 40);
    assert_int_equal(wc[0].imm_data, 0x01020304);
    assert_int_equal(wc[0].wc_flags, IBV_WC_WITH_IMM);
    assert_int_equal(wc[0].src_qp, 77);
    assert_int_equal(wc[0].sl, 2);
    assert_int_equal(wc[0].vendor_err, 5);
    assert_int_equal(cq_poll(cq, 0, wc), 0);
    assert_int_equal(cq_poll(cq, -1, wc), 0);
    drop(cq, NULL);
}

static struct cq *arriving;

static void arrive(void)
{
    push(arriving, 9);
    port_calls.on_progress = NULL;
}

static void poll_makes_progress_only_when_empty(void **state)
{
    struct cq *cq = make_cq(4, NULL);

    push(cq, 1);
    assert_polls(cq, 1);
    assert_int_equal(port_calls.progress, 0);
    arriving = cq;
    port_calls.on_progress = arrive;
    assert_polls(cq, 9); /* what progress brings is returned by the same call */
    assert_int_equal(port_calls.progress, 1);
    assert_empty(cq);
    assert_int_equal(port_calls.progress, 2);

    port_calls.on_progress = arrive;
    assert_int_equal(cq_start_poll(cq), 0);
    assert_int_equal(cq->current->wr_id, 9);
    cq_end_poll(cq);
    drop(cq, NULL);
}

static void poll_frees_send_slots(void **state)
{
    struct cq *cq = make_cq(15, NULL);
    struct ibv_wc wc[15];

    push_send(cq, 1, 7, 11);
    push_send(cq, 2, 7, 12);
    push(cq, 3);
    push_send(cq, 4, 8, 1);
    push_send(cq, 5, 7, 13);
    assert_int_equal(cq_poll(cq, 15, wc), 5);
    /* The last of consecutive ones of a QP will do. */
    assert_int_equal(retired_count, 3);
    assert_int_equal(retired[0].qpn, 7);
    assert_int_equal(retired[0].retires, 12);
    assert_int_equal(retired[1].qpn, 8);
    assert_int_equal(retired[1].retires, 1);
    assert_int_equal(retired[2].qpn, 7);
    assert_int_equal(retired[2].retires, 13);
    drop(cq, NULL);
}

static void extended_polling_window(void **state)
{
    struct cq *cq = make_cq(1, NULL);

    assert_int_equal(cq_start_poll(cq), -ENOENT);
    push_send(cq, 1, 7, 11);
    assert_int_equal(cq_start_poll(cq), 0);
    assert_int_equal(cq->current->wr_id, 1);
    assert_int_equal(retired_count, 1); /* the slot is free within the window */
    push(cq, 2);                        /* and so is the place in the ring */
    assert_int_equal(cq->current->wr_id, 1);
    assert_int_equal(cq_next_poll(cq), 0);
    assert_int_equal(cq->current->wr_id, 2);
    assert_int_equal(cq_next_poll(cq), -ENOENT);
    cq_end_poll(cq);
    push(cq, 3);
    assert_polls(cq, 3); /* ordinary polling remains legal */
    assert_int_equal(port_calls.cq_overrun, 0);
    drop(cq, NULL);
}

static void stamps_are_taken_only_when_asked_for(void **state)
{
    struct cq *cq = make_cq(1, NULL);

    push(cq, 1);
    assert_int_equal(cq_start_poll(cq), 0);
    assert_int_equal(cq->current->timestamp_ns, 0);
    cq_end_poll(cq);
    drop(cq, NULL);

    const struct cq_attributes attributes = {.cqe = 1,
                                             .extended = true,
                                             .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                                                         IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
    assert_int_equal(cq_create(context, &attributes, &cq), 0);
    push(cq, 1);
    assert_int_equal(cq_start_poll(cq), 0);
    assert_true(cq->current->timestamp_ns > 0);
    assert_true(cq->current->wallclock_ns > cq->current->timestamp_ns);
    cq_end_poll(cq);
    drop(cq, NULL);
}

/* --- overrun, resize, purge ----------------------------------------------------------------------------- */

static void overrun_kills_the_cq(void **state)
{
    struct cq *cq = make_cq(3, NULL);
    struct ibv_async_event event;

    for (uint64_t i = 0; i < 3; i++)
        push(cq, i);
    assert_int_equal(port_calls.cq_overrun, 0);
    push(cq, 3);
    push(cq, 4);
    assert_int_equal(port_calls.cq_overrun, 1);
    assert_int_equal(cq->record->failed, 1);
    assert_int_equal(async_get(&context->events, &event), 0);
    assert_int_equal(event.event_type, IBV_EVENT_CQ_ERR);
    assert_ptr_equal(event.element.cq, &cq->ibv);
    set_nonblocking(context->verbs.context.async_fd);
    assert_int_equal(async_get(&context->events, &event), -EAGAIN);
    assert_polls(cq, 0); /* earlier ones are still there */
    assert_int_equal(cq_resize(cq, 100), 0);
    push(cq, 5); /* and nothing heals it */
    assert_polls(cq, 1);
    assert_polls(cq, 2);
    assert_empty(cq);
    event.element.cq = &cq->ibv;
    event.event_type = IBV_EVENT_CQ_ERR;
    async_ack(&event);
    assert_int_equal(cq->ibv.async_events_completed, 1);
    assert_int_equal(cq->record->async_events.acked, 1);
    drop(cq, NULL);
    assert_int_equal(port_calls.moderation_cancel, 1);
}

static void ignored_overrun_only_loses(void **state)
{
    struct cq *cq;
    const struct cq_attributes attributes = {.cqe = 1, .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN};

    assert_int_equal(cq_create(context, &attributes, &cq), 0);
    push(cq, 1);
    push(cq, 2);
    assert_polls(cq, 1);
    push(cq, 3);
    assert_polls(cq, 3);
    assert_int_equal(port_calls.cq_overrun, 0);
    drop(cq, NULL);
}

static void resize_keeps_completions(void **state)
{
    struct cq *cq = make_cq(3, NULL);

    push(cq, 0);
    push(cq, 1);
    assert_polls(cq, 0);
    push(cq, 2);
    push(cq, 3);
    assert_int_equal(cq_resize(cq, 0), -EINVAL);
    assert_int_equal(cq_resize(cq, LIMIT_CQE + 1), -EINVAL);
    assert_int_equal(cq_resize(cq, 2), -EINVAL); /* three are unpolled */
    assert_int_equal(cq_resize(cq, 100), 0);
    assert_in_range(cq->ibv.cqe, 100, 200);
    for (int i = 3; i < cq->ibv.cqe; i++)
        push(cq, (uint64_t)i + 1);
    assert_int_equal(port_calls.cq_overrun, 0);
    for (int i = 0; i < cq->ibv.cqe; i++)
        assert_polls(cq, (uint64_t)i + 1);
    assert_int_equal(cq_resize(cq, 1), 0);
    assert_int_equal(cq->ibv.cqe, 1);
    push(cq, 1000);
    assert_polls(cq, 1000);
    drop(cq, NULL);
}

static void purge_removes_completions_of_one_qp(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(7, channel);

    for (uint64_t i = 0; i < 7; i++)
        push_receive(cq, i, i % 2 ? 1 : 2, IBV_WC_SUCCESS, false);
    cq_arm(cq, false);
    cq_purge_qp(cq, 1);
    /* Their places are free at once. */
    for (uint64_t i = 7; i < 10; i++)
        push_receive(cq, i, 3, IBV_WC_SUCCESS, false);
    assert_int_equal(port_calls.cq_overrun, 0);
    assert_event(channel, cq); /* the arm state stayed */
    for (uint64_t i = 0; i < 7; i += 2)
        assert_polls(cq, i);
    for (uint64_t i = 7; i < 10; i++)
        assert_polls(cq, i);
    assert_empty(cq);
    drop(cq, channel);
}

static void purge_in_an_open_window_is_skipped(void **state)
{
    struct cq *cq = make_cq(7, NULL);

    for (uint64_t i = 0; i < 5; i++)
        push_receive(cq, i, i == 0 || i == 3 ? 2 : 1, IBV_WC_SUCCESS, false);
    assert_int_equal(cq_start_poll(cq), 0);
    cq_purge_qp(cq, 1); /* does not wait for the window: the application may post in it */
    assert_int_equal(cq_next_poll(cq), 0);
    assert_int_equal(cq->current->wr_id, 3);
    assert_int_equal(cq_next_poll(cq), -ENOENT);
    cq_end_poll(cq);
    push(cq, 6);
    assert_polls(cq, 6);

    /* Dead ones that the window left give way when room is needed. */
    push(cq, 7);
    push(cq, 8);
    assert_int_equal(cq_start_poll(cq), 0);
    for (uint64_t i = 0; i < 5; i++)
        push_receive(cq, i, 1, IBV_WC_SUCCESS, false);
    cq_purge_qp(cq, 1);
    cq_end_poll(cq);
    for (uint64_t i = 10; i < 16; i++)
        push(cq, i);
    assert_int_equal(port_calls.cq_overrun, 0);
    assert_polls(cq, 8);
    for (uint64_t i = 10; i < 16; i++)
        assert_polls(cq, i);
    drop(cq, NULL);
}

/* --- notification --------------------------------------------------------------------------------------- */

static void arming_is_one_shot_and_for_what_comes(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(63, channel);

    push(cq, 1);
    assert_no_event(channel);
    cq_arm(cq, false);
    assert_int_equal(port_calls.expect_sleep, 1);
    assert_no_event(channel); /* what is there already does not count */
    push(cq, 2);
    push(cq, 3);
    assert_event(channel, cq);
    assert_no_event(channel);
    cq_arm(cq, false);
    push(cq, 4);
    cq_arm(cq, false);
    push(cq, 5); /* one event per firing, also while the first is unread */
    assert_event(channel, cq);
    assert_event(channel, cq);
    assert_no_event(channel);
    assert_int_equal(cq->record->events.reported, 3);
    assert_int_equal(cq->record->events.acked, 3);
    drop(cq, channel);
}

static void solicited_arming(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(63, channel);

    cq_arm(cq, true);
    push(cq, 1);
    push_send(cq, 2, 1, 1);
    assert_no_event(channel);
    push_receive(cq, 3, 1, IBV_WC_SUCCESS, true);
    assert_event(channel, cq);
    cq_arm(cq, true);
    push_receive(cq, 4, 1, IBV_WC_WR_FLUSH_ERR, false); /* whatever fails is solicited */
    assert_event(channel, cq);
    cq_arm(cq, false);
    cq_arm(cq, true); /* does not weaken the first */
    push(cq, 5);
    assert_event(channel, cq);
    cq_arm(cq, true);
    cq_arm(cq, false);
    push(cq, 6);
    assert_event(channel, cq);
    drop(cq, channel);
}

static void channel_serves_its_cqs_in_turn(void **state)
{
    struct channel *channel = make_channel();
    struct cq *first = make_cq(4, channel), *second = make_cq(4, channel);

    cq_arm(first, false);
    push(first, 1);
    cq_arm(first, false);
    push(first, 2);
    cq_arm(second, false);
    push(second, 3);
    assert_event(channel, first);
    assert_event(channel, second);
    assert_event(channel, first);
    drop(first, NULL);
    drop(second, channel);
}

static void moderation_holds_events_back(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(63, channel);

    port_calls.start_timers_error = -EAGAIN; /* without timers it would hold them back for ever */
    assert_int_equal(cq_moderate(cq, 3, 20), -EAGAIN);
    port_calls.start_timers_error = 0;
    assert_int_equal(cq_moderate(cq, 3, 20), 0);
    cq_arm(cq, false);
    push(cq, 1);
    assert_int_equal(port_calls.moderation_timer, 1);
    assert_int_equal(port_calls.moderation_delay, 20 * NS_PER_US);
    push(cq, 2);
    assert_no_event(channel);
    push(cq, 3);
    assert_event(channel, cq);
    cq_moderation_due(cq); /* the timer of the batch that is gone */
    assert_no_event(channel);

    cq_arm(cq, false);
    push(cq, 4);
    assert_no_event(channel);
    cq_moderation_due(cq);
    assert_event(channel, cq);

    assert_int_equal(cq_moderate(cq, 0, 20), 0); /* only the time counts */
    cq_arm(cq, false);
    push(cq, 5);
    assert_no_event(channel);
    assert_int_equal(cq_moderate(cq, 0, 0), 0); /* off: what was held back is due */
    assert_event(channel, cq);
    cq_arm(cq, false);
    push(cq, 6);
    assert_event(channel, cq);
    drop(cq, channel);
    assert_int_equal(port_calls.moderation_cancel, 1);
}

/* --- acknowledgement ------------------------------------------------------------------------------------ */

static void destroy_drops_unread_events(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(4, channel), *other = make_cq(4, channel);

    for (uint64_t i = 0; i < 3; i++) {
        cq_arm(cq, false);
        push(cq, i);
    }
    cq_arm(other, false);
    push(other, 1);
    drop(cq, NULL);
    assert_event(channel, other); /* the other's token is still there, and only that */
    assert_no_event(channel);
    drop(other, channel);
}

static void *destroy(void *cq)
{
    return (void *)(intptr_t)cq_destroy(cq);
}

static void destroy_waits_for_acknowledgements(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(4, channel), *read;
    pthread_t thread;
    void *result;

    for (uint64_t i = 0; i < 2; i++) {
        cq_arm(cq, false);
        push(cq, i);
        assert_int_equal(channel_get_event(channel, &read), 0);
    }
    assert_int_equal(pthread_create(&thread, NULL, destroy, cq), 0);
    /* Published: a stuck destroy is explained from outside. */
    while (atomic_load(&cq->record->state) != OBJECT_DESTROYING)
        sched_yield();
    assert_int_equal(cq_use(cq, "test"), -EINVAL);
    cq_ack_events(cq, 1);
    assert_int_equal(pthread_tryjoin_np(thread, &result), EBUSY);
    cq_ack_events(cq, 1);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_int_equal((intptr_t)result, 0);
    assert_int_equal(channel_destroy(channel), 0);
}

static void over_acking_does_not_hang(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(4, channel);
    struct cq *read;

    /* Three times a quarter of the counter's range ahead: it must not wrap to "behind". */
    for (int i = 0; i < 3; i++)
        cq_ack_events(cq, 1u << 30);
    cq_ack_events(cq, UINT32_MAX);
    cq_arm(cq, false);
    push(cq, 1);
    assert_int_equal(channel_get_event(channel, &read), 0);
    drop(cq, channel);
}

static void *get_event(void *channel)
{
    struct cq *cq;

    return (void *)(intptr_t)channel_get_event(channel, &cq);
}

static void blocked_reader_can_be_cancelled(void **state)
{
    struct channel *channel;
    struct cq *cq;
    pthread_t thread;
    void *result;

    assert_int_equal(channel_create(context, &channel), 0);
    cq = make_cq(4, channel);
    assert_int_equal(pthread_create(&thread, NULL, get_event, channel), 0);
    assert_int_equal(pthread_cancel(thread), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, PTHREAD_CANCELED);
    /* Nothing was left locked, and no token lost. */
    cq_arm(cq, false);
    push(cq, 1);
    assert_event(channel, cq);
    drop(cq, channel);
}

static void blocked_reader_is_woken(void **state)
{
    struct channel *channel;
    struct cq *cq;
    pthread_t thread;
    void *result;

    assert_int_equal(channel_create(context, &channel), 0);
    cq = make_cq(4, channel);
    assert_int_equal(pthread_create(&thread, NULL, get_event, channel), 0);
    cq_arm(cq, false);
    push(cq, 1);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_int_equal((intptr_t)result, 0);
    cq_ack_events(cq, 1);
    drop(cq, channel);
}

/* --- producers and consumers at once -------------------------------------------------------------------- */

#define STRESS_COMPLETIONS 200000u
#define STRESS_UNPOLLED    15u

static void *produce(void *argument)
{
    struct cq *cq = argument;

    for (uint32_t i = 0; i < STRESS_COMPLETIONS; i++) {
        while (atomic_load(&cq->record->produced) - atomic_load(&cq->record->consumed) >= STRESS_UNPOLLED)
            sched_yield();
        push_receive(cq, i, i % 3, IBV_WC_SUCCESS, false);
        if (i % 64 == 0)
            cq_purge_qp(cq, 9); /* nobody's */
    }
    return NULL;
}

static void one_producer_one_consumer(void **state)
{
    struct cq *cq = make_cq(STRESS_UNPOLLED, NULL);
    pthread_t thread;
    uint32_t next = 0;

    assert_int_equal(pthread_create(&thread, NULL, produce, cq), 0);
    while (next < STRESS_COMPLETIONS) {
        struct ibv_wc wc[4];
        int count = cq_poll(cq, 4, wc);

        for (int i = 0; i < count; i++)
            assert_int_equal(wc[i].wr_id, next++);
        if (count == 0)
            sched_yield();
        if (next % 1000 == 0)
            assert_int_equal(cq_resize(cq, STRESS_UNPOLLED + next % 7000), 0);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    drop(cq, NULL);
}

enum consumption { POLLS, OPENS_WINDOWS, RESIZES };

struct consumer {
    struct cq *cq;
    enum consumption how;
    atomic_bool stop;
};

static void *consume(void *argument)
{
    struct consumer *consumer = argument;
    struct ibv_wc wc[3];

    while (!atomic_load(&consumer->stop)) {
        if (consumer->how == POLLS) {
            cq_poll(consumer->cq, 3, wc);
        } else if (consumer->how == RESIZES) {
            cq_resize(consumer->cq, 7);
        } else if (cq_start_poll(consumer->cq) == 0) {
            cq_next_poll(consumer->cq);
            cq_end_poll(consumer->cq);
        }
    }
    return NULL;
}

/* Neither does the producer take a CQ for full that holds only the dead, nor does it wait for ever. */
static void dead_completions_take_no_room_whatever_consumers_do(void **state)
{
    for (enum consumption how = POLLS; how <= RESIZES; how++) {
        struct consumer consumer = {.cq = make_cq(7, NULL), .how = how};
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, consume, &consumer), 0);
        for (uint32_t round = 0; round < 20000; round++) {
            for (uint64_t i = 0; i < 7; i++)
                push_receive(consumer.cq, i, 1 + round % 2, IBV_WC_SUCCESS, false);
            cq_purge_qp(consumer.cq, 1 + round % 2);
        }
        atomic_store(&consumer.stop, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(port_calls.cq_overrun, 0);
        drop(consumer.cq, NULL);
    }
}

#define test(name) cmocka_unit_test_setup_teardown(name, open_contexts, close_contexts)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(create_grants_at_least_what_was_asked),
        test(create_refuses),
        test(destroy_is_refused_while_used),
        test(poll_returns_completions_in_order),
        test(poll_makes_progress_only_when_empty),
        test(poll_frees_send_slots),
        test(extended_polling_window),
        test(stamps_are_taken_only_when_asked_for),
        test(overrun_kills_the_cq),
        test(ignored_overrun_only_loses),
        test(resize_keeps_completions),
        test(purge_removes_completions_of_one_qp),
        test(purge_in_an_open_window_is_skipped),
        test(arming_is_one_shot_and_for_what_comes),
        test(solicited_arming),
        test(channel_serves_its_cqs_in_turn),
        test(moderation_holds_events_back),
        test(destroy_drops_unread_events),
        test(destroy_waits_for_acknowledgements),
        test(over_acking_does_not_hang),
        test(blocked_reader_can_be_cancelled),
        test(blocked_reader_is_woken),
        test(one_producer_one_consumer),
        test(dead_completions_take_no_room_whatever_consumers_do),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("object_cq", tests, NULL, NULL);
}
