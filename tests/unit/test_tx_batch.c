/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Transmit batching: each rule of engine/paths/tx_batch.h. */
#include "engine/paths/tx_batch.h"
#include "unit.h"

static struct tx_batch batch;
static struct tx_batch_counters counters;

static int reset(void **state)
{
    batch = (struct tx_batch){0};
    counters = (struct tx_batch_counters){.polls = 1, .flushes = 1, .inflight = 1000};
    return 0;
}

static enum tx_batch_decision request(void)
{
    return tx_batch_step(&batch, TX_BATCH_REQUEST, &counters);
}

/* As the counters go: what is flushed is in flight, too. */
static enum tx_batch_decision request_with_inflight(int32_t inflight)
{
    counters.inflight = inflight;
    return request();
}

static void poll(void)
{
    counters.polls++;
}

/* A poll flushes all batched packets of the process. */
static void poll_and_flush(void)
{
    counters.polls++;
    counters.flushes++;
}

static void burst(unsigned packets)
{
    for (unsigned i = 0; i < packets; i++)
        (void)request();
    poll_and_flush();
}

static void the_first_packets_are_flushed(void **state)
{
    for (int32_t i = 0; i < (int32_t)BATCH_MIN_INFLIGHT; i++) {
        assert_int_equal(request_with_inflight(i), TX_BATCH_FLUSH);
        assert_int_equal(batch.batched, 0);
    }
    assert_int_equal(request_with_inflight(BATCH_MIN_INFLIGHT), TX_BATCH_WAIT);
    assert_int_equal(batch.batched, 1);
}

/* Packets that wait are among those that are not acknowledged, but the peer has not seen them. */
static void batched_packets_are_not_in_flight(void **state)
{
    assert_int_equal(request_with_inflight(BATCH_MIN_INFLIGHT), TX_BATCH_WAIT);
    assert_int_equal(request_with_inflight(BATCH_MIN_INFLIGHT + 1), TX_BATCH_WAIT);
    assert_int_equal(batch.batched, 2);
    /* One packet was acknowledged meanwhile. */
    assert_int_equal(request_with_inflight(BATCH_MIN_INFLIGHT + 1), TX_BATCH_FLUSH);
    assert_int_equal(batch.batched, 0);
}

static void a_batch_has_a_bound(void **state)
{
    for (unsigned i = 0; i < BATCH_MAX; i++)
        assert_int_equal(request(), TX_BATCH_WAIT);
    assert_int_equal(batch.batched, BATCH_MAX);
    assert_int_equal(request(), TX_BATCH_FLUSH);
    assert_int_equal(request(), TX_BATCH_WAIT); /* the next batch */
    assert_int_equal(batch.batched, 1);
}

static void another_packet_flushes_the_batch(void **state)
{
    (void)request();
    (void)request();
    assert_int_equal(batch.batched, 2);
    assert_int_equal(tx_batch_step(&batch, TX_BATCH_OTHER, &counters), TX_BATCH_FLUSH);
    assert_int_equal(batch.batched, 0);
}

static void another_packet_is_not_counted(void **state)
{
    struct tx_batch before;

    burst(BATCH_BURST);
    (void)request();
    before = batch;
    poll();
    for (unsigned i = 0; i < 2 * BATCH_MAX_UNPOLLED; i++)
        assert_int_equal(tx_batch_step(&batch, TX_BATCH_OTHER, &counters), TX_BATCH_FLUSH);
    before.batched = 0;
    assert_memory_equal(&batch, &before, sizeof(batch));
}

static void a_flush_of_the_process_empties_the_batch(void **state)
{
    for (unsigned i = 0; i < BATCH_MAX; i++)
        (void)request();
    counters.flushes++;
    assert_int_equal(request_with_inflight(BATCH_MIN_INFLIGHT), TX_BATCH_WAIT);
    assert_int_equal(batch.batched, 1);
}

static void a_program_that_does_not_poll_is_not_batched_for_ever(void **state)
{
    for (unsigned i = 1; i < BATCH_MAX_UNPOLLED; i++)
        assert_int_equal(request(), i % (BATCH_MAX + 1) ? TX_BATCH_WAIT : TX_BATCH_FLUSH);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(request(), TX_BATCH_FLUSH);
    assert_int_equal(batch.unpolled, BATCH_MAX_UNPOLLED);
    poll();
    assert_int_equal(request(), TX_BATCH_WAIT);
    assert_int_equal(batch.unpolled, 1);
}

static void one_packet_in_flight_is_enough_after_bursts(void **state)
{
    for (unsigned i = 0; i < BATCH_BURSTS_TO_TRUST; i++) {
        assert_int_equal(request_with_inflight(1), TX_BATCH_FLUSH);
        assert_int_equal(batch.bursts, i);
        burst(BATCH_BURST - 1);
    }
    assert_int_equal(request_with_inflight(0), TX_BATCH_FLUSH);
    assert_int_equal(batch.bursts, BATCH_BURSTS_TO_TRUST);
    assert_int_equal(request_with_inflight(1), TX_BATCH_WAIT);
    assert_int_equal(request_with_inflight(2), TX_BATCH_WAIT);
    assert_int_equal(request_with_inflight(2), TX_BATCH_FLUSH);
}

static void bursts_are_not_counted_beyond_the_threshold(void **state)
{
    for (unsigned i = 0; i < 1000; i++)
        burst(BATCH_BURST);
    (void)request();
    assert_int_equal(batch.bursts, BATCH_BURSTS_TO_TRUST);
}

static void a_short_burst_ends_the_trust(void **state)
{
    for (unsigned i = 0; i < BATCH_BURSTS_TO_TRUST; i++)
        burst(BATCH_BURST);
    burst(BATCH_BURST - 1);
    assert_int_equal(request_with_inflight(1), TX_BATCH_FLUSH);
    assert_int_equal(batch.bursts, 0);
}

static void polls_without_a_packet_in_between_are_one(void **state)
{
    for (unsigned i = 0; i < BATCH_BURSTS_TO_TRUST; i++)
        burst(BATCH_BURST);
    for (unsigned i = 0; i < 1000; i++)
        poll_and_flush();
    assert_int_equal(request_with_inflight(1), TX_BATCH_WAIT);
}

static void the_counters_may_wrap(void **state)
{
    counters.polls = counters.flushes = UINT32_MAX;
    for (unsigned i = 0; i < BATCH_BURSTS_TO_TRUST; i++)
        burst(BATCH_BURST);
    assert_int_equal(request_with_inflight(1), TX_BATCH_WAIT);
    assert_int_equal(batch.batched, 1);
}

/* The PSN of the oldest packet that is not acknowledged may lie ahead where packets are sent again. */
static void nothing_waits_behind_what_is_acknowledged(void **state)
{
    assert_int_equal(request_with_inflight(-5), TX_BATCH_FLUSH);
    assert_int_equal(batch.batched, 0);
}

#define TEST(function) cmocka_unit_test_setup(function, reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_first_packets_are_flushed),
        TEST(batched_packets_are_not_in_flight),
        TEST(a_batch_has_a_bound),
        TEST(another_packet_flushes_the_batch),
        TEST(another_packet_is_not_counted),
        TEST(a_flush_of_the_process_empties_the_batch),
        TEST(a_program_that_does_not_poll_is_not_batched_for_ever),
        TEST(one_packet_in_flight_is_enough_after_bursts),
        TEST(bursts_are_not_counted_beyond_the_threshold),
        TEST(a_short_burst_ends_the_trust),
        TEST(polls_without_a_packet_in_between_are_one),
        TEST(the_counters_may_wrap),
        TEST(nothing_waits_behind_what_is_acknowledged),
    };

    return run_unit_tests("tx_batch", tests);
}
