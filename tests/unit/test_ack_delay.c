/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Delayed acknowledgements: each rule of engine/paths/ack_delay.h. */
#include "engine/paths/ack_delay.h"
#include "unit.h"

/* A packet was received alone, and the program replied with a post before it polled. */
static void ping_pong(struct ack_delay *delay)
{
    (void)ack_delay_step(delay, ACK_DELAY_RECEIVED);
    (void)ack_delay_step(delay, ACK_DELAY_POSTED);
}

static struct ack_delay after_replies(unsigned count)
{
    struct ack_delay delay = {0};

    for (unsigned i = 0; i < count; i++)
        ping_pong(&delay);
    return delay;
}

static void assert_state(const struct ack_delay *delay, enum ack_delay_state state, unsigned replies)
{
    assert_int_equal(ack_delay_state(delay), state);
    assert_int_equal(delay->replies, replies);
}

static void zero_is_no_delay(void **state)
{
    struct ack_delay delay = {0};

    assert_state(&delay, ACK_DELAY_NONE, 0);
}

static void the_first_acknowledgement_is_sent_at_once(void **state)
{
    struct ack_delay delay = {0};

    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_RECEIVED), ACK_NOW);
    assert_state(&delay, ACK_DELAY_SENT, 0);
}

static void a_reply_to_a_packet_that_was_acknowledged_counts(void **state)
{
    struct ack_delay delay = {0};

    (void)ack_delay_step(&delay, ACK_DELAY_RECEIVED);
    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_POSTED), ACK_LATER);
    assert_state(&delay, ACK_DELAY_NONE, 1);
}

static void a_post_without_a_packet_before_does_not_count(void **state)
{
    struct ack_delay delay = after_replies(3);

    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_POSTED), ACK_LATER);
    assert_state(&delay, ACK_DELAY_NONE, 3);
}

static void a_second_post_to_the_same_packet_does_not_count(void **state)
{
    struct ack_delay delay = {0};

    ping_pong(&delay);
    (void)ack_delay_step(&delay, ACK_DELAY_POSTED);
    assert_state(&delay, ACK_DELAY_NONE, 1);
}

static void acknowledgements_wait_from_the_threshold_on(void **state)
{
    struct ack_delay below = after_replies(REPLIES_TO_TRUST - 1), at = after_replies(REPLIES_TO_TRUST);

    assert_int_equal(ack_delay_step(&below, ACK_DELAY_RECEIVED), ACK_NOW);
    assert_state(&below, ACK_DELAY_SENT, REPLIES_TO_TRUST - 1);
    assert_int_equal(ack_delay_step(&at, ACK_DELAY_RECEIVED), ACK_LATER);
    assert_state(&at, ACK_DELAY_WAITS, REPLIES_TO_TRUST);
}

static void replies_are_not_counted_beyond_the_threshold(void **state)
{
    struct ack_delay delay = after_replies(1000);

    assert_state(&delay, ACK_DELAY_NONE, REPLIES_TO_TRUST);
}

static void a_request_takes_the_waiting_acknowledgement_along(void **state)
{
    struct ack_delay delay = after_replies(REPLIES_TO_TRUST);

    (void)ack_delay_step(&delay, ACK_DELAY_RECEIVED);
    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_REQUEST), ACK_NOW);
    assert_state(&delay, ACK_DELAY_NONE, REPLIES_TO_TRUST);
    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_REQUEST), ACK_LATER); /* once only */
    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_POSTED), ACK_LATER);
    assert_state(&delay, ACK_DELAY_NONE, REPLIES_TO_TRUST);
}

static void the_trust_lasts_from_one_reply_to_the_next(void **state)
{
    struct ack_delay delay = after_replies(REPLIES_TO_TRUST);

    for (int i = 0; i < 100; i++) {
        assert_int_equal(ack_delay_step(&delay, ACK_DELAY_RECEIVED), ACK_LATER);
        assert_int_equal(ack_delay_step(&delay, ACK_DELAY_REQUEST), ACK_NOW);
        assert_int_equal(ack_delay_step(&delay, ACK_DELAY_POSTED), ACK_LATER);
    }
}

static void a_request_changes_nothing_where_no_acknowledgement_waits(void **state)
{
    struct ack_delay none = after_replies(2), sent = after_replies(2);

    assert_int_equal(ack_delay_step(&none, ACK_DELAY_REQUEST), ACK_LATER);
    assert_state(&none, ACK_DELAY_NONE, 2);
    (void)ack_delay_step(&sent, ACK_DELAY_RECEIVED);
    assert_int_equal(ack_delay_step(&sent, ACK_DELAY_REQUEST), ACK_LATER);
    assert_state(&sent, ACK_DELAY_SENT, 2); /* the post counts it */
}

/* A reply of several packets: ACK_DELAY_REQUEST does not occur. */
static void the_end_of_a_post_sends_what_no_request_took_along(void **state)
{
    struct ack_delay delay = after_replies(REPLIES_TO_TRUST);

    (void)ack_delay_step(&delay, ACK_DELAY_RECEIVED);
    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_POSTED), ACK_NOW);
    assert_state(&delay, ACK_DELAY_NONE, REPLIES_TO_TRUST);
}

static void a_poll_without_a_reply_sends_and_ends_the_trust(void **state)
{
    struct ack_delay delay = after_replies(REPLIES_TO_TRUST);

    (void)ack_delay_step(&delay, ACK_DELAY_RECEIVED);
    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_POLLED), ACK_NOW);
    assert_state(&delay, ACK_DELAY_NONE, 0);
    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_RECEIVED), ACK_NOW);
}

static void a_poll_without_a_reply_ends_the_counting(void **state)
{
    struct ack_delay delay = after_replies(REPLIES_TO_TRUST - 1);

    (void)ack_delay_step(&delay, ACK_DELAY_RECEIVED);
    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_POLLED), ACK_NOW);
    assert_state(&delay, ACK_DELAY_NONE, 0);
}

static void a_poll_after_the_reply_changes_nothing(void **state)
{
    struct ack_delay delay = after_replies(REPLIES_TO_TRUST);

    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_POLLED), ACK_LATER);
    assert_state(&delay, ACK_DELAY_NONE, REPLIES_TO_TRUST);
}

static void a_reset_sends_nothing(void **state)
{
    struct ack_delay delay = after_replies(REPLIES_TO_TRUST);

    (void)ack_delay_step(&delay, ACK_DELAY_RECEIVED);
    assert_int_equal(ack_delay_step(&delay, ACK_DELAY_RESET), ACK_LATER);
    assert_state(&delay, ACK_DELAY_NONE, 0);
}

static void an_exit_sends_in_every_state(void **state)
{
    struct ack_delay none = {0}, sent = {0}, waits = after_replies(REPLIES_TO_TRUST);

    (void)ack_delay_step(&sent, ACK_DELAY_RECEIVED);
    (void)ack_delay_step(&waits, ACK_DELAY_RECEIVED);
    assert_int_equal(ack_delay_step(&none, ACK_DELAY_EXIT), ACK_NOW);
    assert_int_equal(ack_delay_step(&sent, ACK_DELAY_EXIT), ACK_NOW);
    assert_int_equal(ack_delay_step(&waits, ACK_DELAY_EXIT), ACK_NOW);
    assert_state(&none, ACK_DELAY_NONE, 0);
    assert_state(&sent, ACK_DELAY_NONE, 0);
    assert_state(&waits, ACK_DELAY_NONE, 0);
}

static void a_batch_delays_only_for_a_program_that_is_awake_or_woken(void **state)
{
    assert_true(ack_delay_may_begin(1, true, false));
    assert_true(ack_delay_may_begin(1, false, true));
    assert_false(ack_delay_may_begin(1, false, false));
}

static void a_batch_delays_only_for_a_single_qp(void **state)
{
    assert_false(ack_delay_may_begin(0, true, true));
    assert_false(ack_delay_may_begin(2, true, true));
}

static void a_batch_of_the_program_ends_the_delay(void **state)
{
    assert_true(ack_delay_ends(true, false, true));
    assert_true(ack_delay_ends(true, false, false));
}

static void a_batch_of_the_helper_thread_ends_the_delay_unless_a_thread_has_to_wake_up(void **state)
{
    assert_true(ack_delay_ends(false, false, false));
    assert_false(ack_delay_ends(false, false, true));
    assert_true(ack_delay_ends(false, true, true));
}

static void a_delay_is_overdue_at_the_second_tick(void **state)
{
    struct ack_delay_clock clock = {0};

    for (int i = 0; i < 5; i++) {
        ack_delay_clock_begin(&clock);
        assert_false(ack_delay_clock_tick(&clock, true));
        assert_true(ack_delay_clock_tick(&clock, true));
        assert_true(ack_delay_clock_tick(&clock, true)); /* until it is ended */
    }
}

static void a_delay_that_has_ended_is_not_overdue(void **state)
{
    struct ack_delay_clock clock = {0};

    ack_delay_clock_begin(&clock);
    for (int i = 0; i < 5; i++)
        assert_false(ack_delay_clock_tick(&clock, false));
}

static void a_delay_starts_its_time_anew(void **state)
{
    struct ack_delay_clock clock = {0};

    for (int i = 0; i < 5; i++) {
        ack_delay_clock_begin(&clock);
        assert_false(ack_delay_clock_tick(&clock, true));
    }
}

static void the_ticks_may_wrap(void **state)
{
    struct ack_delay_clock clock = {.ticks = UINT32_MAX};

    ack_delay_clock_begin(&clock);
    assert_false(ack_delay_clock_tick(&clock, true));
    assert_true(ack_delay_clock_tick(&clock, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_is_no_delay),
        cmocka_unit_test(the_first_acknowledgement_is_sent_at_once),
        cmocka_unit_test(a_reply_to_a_packet_that_was_acknowledged_counts),
        cmocka_unit_test(a_post_without_a_packet_before_does_not_count),
        cmocka_unit_test(a_second_post_to_the_same_packet_does_not_count),
        cmocka_unit_test(acknowledgements_wait_from_the_threshold_on),
        cmocka_unit_test(replies_are_not_counted_beyond_the_threshold),
        cmocka_unit_test(a_request_takes_the_waiting_acknowledgement_along),
        cmocka_unit_test(the_trust_lasts_from_one_reply_to_the_next),
        cmocka_unit_test(a_request_changes_nothing_where_no_acknowledgement_waits),
        cmocka_unit_test(the_end_of_a_post_sends_what_no_request_took_along),
        cmocka_unit_test(a_poll_without_a_reply_sends_and_ends_the_trust),
        cmocka_unit_test(a_poll_without_a_reply_ends_the_counting),
        cmocka_unit_test(a_poll_after_the_reply_changes_nothing),
        cmocka_unit_test(a_reset_sends_nothing),
        cmocka_unit_test(an_exit_sends_in_every_state),
        cmocka_unit_test(a_batch_delays_only_for_a_program_that_is_awake_or_woken),
        cmocka_unit_test(a_batch_delays_only_for_a_single_qp),
        cmocka_unit_test(a_batch_of_the_program_ends_the_delay),
        cmocka_unit_test(a_batch_of_the_helper_thread_ends_the_delay_unless_a_thread_has_to_wake_up),
        cmocka_unit_test(a_delay_is_overdue_at_the_second_tick),
        cmocka_unit_test(a_delay_that_has_ended_is_not_overdue),
        cmocka_unit_test(a_delay_starts_its_time_anew),
        cmocka_unit_test(the_ticks_may_wrap),
    };

    return run_unit_tests("ack_delay", tests);
}
