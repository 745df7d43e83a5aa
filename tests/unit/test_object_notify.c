/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Completion channels that peers ring (base/notify.h): here the test is the peer. */
#include "object_fixture.h"

static struct notify_channel line;

void qp_retire_sends(uint32_t qpn, uint32_t retires)
{
}

static int show_channels(void **state)
{
    memset(&line, 0, sizeof(line));
    port_line = &line;
    return open_contexts(state);
}

static int hide_channels(void **state)
{
    port_line = NULL;
    return close_contexts(state);
}

static struct channel *make_channel(void)
{
    struct channel *channel;

    assert_int_equal(channel_create(context, &channel), 0);
    set_nonblocking(channel->ibv.fd);
    return channel;
}

static struct cq *make_cq(struct channel *channel)
{
    const struct cq_attributes attributes = {.cqe = 63, .channel = channel};
    struct cq *cq;

    assert_int_equal(cq_create(context, &attributes, &cq), 0);
    return cq;
}

static void complete(struct cq *cq, bool solicited)
{
    cq_push(cq, &(struct cqe){.qpn = 100, .status = IBV_WC_SUCCESS, .opcode = IBV_WC_RECV}, solicited);
}

/* The steps of a peer. */
static bool claim(const struct cq *cq, bool solicited)
{
    return notify_disarm(&line, cq->bit, solicited);
}

static void ring(const struct cq *cq)
{
    atomic_fetch_or_explicit(&line.rung, 1ull << cq->bit, memory_order_release);
}

static void write_token(const struct channel *channel)
{
    const uint64_t one = 1;

    assert_int_equal(write(channel->ibv.fd, &one, sizeof(one)), sizeof(one));
}

static void wake(struct channel *channel, const struct cq *cq)
{
    assert_true(claim(cq, false));
    ring(cq);
    write_token(channel);
}

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

static void drop(struct cq *cq, struct cq *other, struct channel *channel)
{
    assert_int_equal(cq_destroy(cq), 0);
    if (other)
        assert_int_equal(cq_destroy(other), 0);
    assert_int_equal(channel_destroy(channel), 0);
    assert_int_equal(atomic_load(&cq_armed_count), 0);
}

static void a_peer_makes_the_event_of_an_arming(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(channel);

    assert_false(claim(cq, true)); /* not armed */
    cq_arm(cq, false);
    wake(channel, cq);
    assert_false(claim(cq, true)); /* once */
    complete(cq, false);           /* the message that it was for: no second event */
    assert_event(channel, cq);
    assert_no_event(channel);
    cq_arm(cq, false);
    complete(cq, false); /* our own again */
    assert_false(claim(cq, true));
    assert_event(channel, cq);
    assert_no_event(channel);
    drop(cq, NULL, channel);
}

static void the_event_may_be_read_before_its_completion_is_there(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(channel);

    cq_arm(cq, false);
    wake(channel, cq);
    assert_event(channel, cq);
    assert_int_equal(cq->record->armed, CQ_UNARMED);
    complete(cq, false);
    assert_no_event(channel);
    drop(cq, NULL, channel);
}

static void solicited_only_is_for_solicited_messages(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(channel);

    cq_arm(cq, true);
    assert_false(claim(cq, false));
    assert_true(claim(cq, true));
    ring(cq);
    write_token(channel);
    assert_event(channel, cq);
    cq_arm(cq, true);
    cq_arm(cq, false); /* any wins */
    assert_true(claim(cq, false));
    ring(cq);
    write_token(channel);
    assert_event(channel, cq);
    drop(cq, NULL, channel);
}

/* Armed again before the event was read: that is one more. */
static void an_arming_after_a_claim_is_the_next_one(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(channel);

    cq_arm(cq, false);
    wake(channel, cq);
    cq_arm(cq, false);
    complete(cq, false);
    assert_event(channel, cq);
    assert_event(channel, cq);
    assert_no_event(channel);
    drop(cq, NULL, channel);
}

/* Of two events that peers make of one CQ before one is read, `rung` could tell one only. */
static void while_an_event_of_a_peer_waits_the_next_is_ours(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(channel);

    cq_arm(cq, false);
    wake(channel, cq);
    cq_arm(cq, false);
    assert_false(claim(cq, true));
    complete(cq, false);
    assert_event(channel, cq);
    assert_event(channel, cq);
    assert_no_event(channel);
    cq_arm(cq, false);
    assert_true(claim(cq, false)); /* all is read: a peer may again */
    ring(cq);
    write_token(channel);
    assert_event(channel, cq);
    drop(cq, NULL, channel);
}

/* The token of one event must not stand for another whose own is still to come. */
static void no_event_is_taken_without_its_token(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(channel), *other = make_cq(channel);

    cq_arm(cq, false);
    cq_arm(other, false);
    assert_true(claim(cq, false));
    ring(cq); /* and is stopped */
    complete(other, false);
    assert_event(channel, other);
    assert_no_event(channel);
    write_token(channel); /* and goes on */
    assert_event(channel, cq);
    assert_no_event(channel);
    drop(cq, other, channel);
}

static void events_of_peers_and_our_own_come_together(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(channel), *other = make_cq(channel);
    struct cq *first, *second;

    for (int i = 0; i < 3; i++) {
        cq_arm(cq, false);
        cq_arm(other, false);
        wake(channel, cq);
        complete(other, false);
        assert_true(readable(channel->ibv.fd));
        assert_int_equal(channel_get_event(channel, &first), 0);
        assert_true(readable(channel->ibv.fd));
        assert_int_equal(channel_get_event(channel, &second), 0);
        assert_ptr_not_equal(first, second);
        cq_ack_events(first, 1);
        cq_ack_events(second, 1);
        assert_no_event(channel);
    }
    drop(cq, other, channel);
}

/* A peer that stops, or dies, between its steps keeps nobody asleep for ever. */
static void an_event_that_a_peer_owes_is_made_for_it(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(channel);
    uint32_t changes;

    cq_arm(cq, false);
    assert_true(claim(cq, false));
    assert_false(channels_owe(&changes)); /* nobody knows yet */
    complete(cq, false);                  /* by the helper thread, say */
    assert_no_event(channel);
    assert_int_equal(port_calls.event_owed, 1);
    assert_true(channels_owe(&changes));
    channels_make_owed();
    assert_false(channels_owe(&changes));
    assert_event(channel, cq);
    assert_no_event(channel);
    drop(cq, NULL, channel);
}

static void a_destroyed_cq_takes_the_event_of_a_peer_along(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(channel), *other = make_cq(channel);

    cq_arm(cq, false);
    cq_arm(other, false);
    wake(channel, cq);
    wake(channel, other);
    assert_int_equal(cq_destroy(cq), 0);
    assert_event(channel, other); /* that of the other is still there, and only that */
    assert_no_event(channel);
    cq_arm(other, false);
    wake(channel, other);
    assert_int_equal(cq_destroy(other), 0);
    assert_no_event(channel);
    assert_int_equal(channel_destroy(channel), 0);
}

static void moderation_is_not_shown_to_peers(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(channel);

    cq_arm(cq, false);
    assert_int_equal(cq_moderate(cq, 2, 100), 0);
    assert_false(claim(cq, true));
    complete(cq, false);
    assert_no_event(channel);
    complete(cq, false);
    assert_event(channel, cq);
    cq_arm(cq, false);
    assert_false(claim(cq, true));
    drop(cq, NULL, channel);
}

static void a_held_event_is_readable_when_it_is_released(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cq = make_cq(channel);

    cq_arm(cq, false);
    events_defer();
    complete(cq, false);
    assert_false(readable(channel->ibv.fd));
    events_write();
    assert_event(channel, cq);
    assert_no_event(channel);
    drop(cq, NULL, channel);
}

static void more_cqs_than_bits_do_without(void **state)
{
    struct channel *channel = make_channel();
    struct cq *cqs[NOTIFY_CQS + 1];

    for (unsigned i = 0; i <= NOTIFY_CQS; i++)
        cqs[i] = make_cq(channel);
    assert_int_equal(cqs[NOTIFY_CQS]->bit, NOTIFY_CQS);
    cq_arm(cqs[NOTIFY_CQS], false);
    complete(cqs[NOTIFY_CQS], false);
    assert_event(channel, cqs[NOTIFY_CQS]);
    for (unsigned i = 0; i <= NOTIFY_CQS; i++)
        assert_int_equal(cq_destroy(cqs[i]), 0);
    assert_int_equal(channel_destroy(channel), 0);
}

int main(void)
{
#define test(name) cmocka_unit_test_setup_teardown(name, show_channels, hide_channels)
    const struct CMUnitTest tests[] = {
        test(a_peer_makes_the_event_of_an_arming),
        test(the_event_may_be_read_before_its_completion_is_there),
        test(solicited_only_is_for_solicited_messages),
        test(an_arming_after_a_claim_is_the_next_one),
        test(while_an_event_of_a_peer_waits_the_next_is_ours),
        test(no_event_is_taken_without_its_token),
        test(events_of_peers_and_our_own_come_together),
        test(an_event_that_a_peer_owes_is_made_for_it),
        test(a_destroyed_cq_takes_the_event_of_a_peer_along),
        test(moderation_is_not_shown_to_peers),
        test(a_held_event_is_readable_when_it_is_released),
        test(more_cqs_than_bits_do_without),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
