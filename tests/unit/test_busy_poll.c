/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How long the helper thread polls: each rule of engine/core/busy_poll.h, and what it asks the kernel. */
#include "base/fd.h"
#include "base/processors.h"
#include "engine/core/busy_poll.h"
#include "unit.h"

static unsigned asked;

static bool is_free(void)
{
    asked++;
    return true;
}

static bool is_taken(void)
{
    asked++;
    return false;
}

static const ns_t begin = NS_PER_S; /* of what the tests do */

/* How long the thread polls after packets that were found at `now`, to a microsecond. Then it sleeps. */
static ns_t polls_for(struct busy_poll *poll, ns_t now, bool (*is_it_free)(void))
{
    ns_t polled = 0;

    busy_poll_found(poll, now);
    while (busy_poll_goes_on(poll, now, now + polled + NS_PER_US, is_it_free))
        polled += NS_PER_US;
    busy_poll_ends(poll);
    return polled;
}

/* So many packets, each with that pause before it, for none of which the thread waits. Returns when the last one
 * came. */
static ns_t packets_every(struct busy_poll *poll, ns_t now, ns_t pause, unsigned count)
{
    while (count--) {
        now += pause;
        busy_poll_found(poll, now);
        busy_poll_ends(poll);
    }
    return now;
}

static void it_begins_with_the_usual_time(void **state)
{
    struct busy_poll poll = {0};

    assert_int_equal(polls_for(&poll, begin, is_free), BUSY_POLL_USUAL);
}

static void in_vain_it_becomes_short(void **state)
{
    struct busy_poll poll = {0};
    ns_t now = begin;

    for (unsigned i = 0; i < BUSY_POLL_VAIN; i++, now += NS_PER_S)
        assert_int_equal(polls_for(&poll, now, is_free), BUSY_POLL_USUAL);
    assert_int_equal(polls_for(&poll, now, is_free), BUSY_POLL_SHORT);
}

static void the_usual_time_is_tried_again(void **state)
{
    struct busy_poll poll = {0};
    ns_t now = packets_every(&poll, begin, NS_PER_S, BUSY_POLL_TRY);

    assert_int_equal(polls_for(&poll, now + NS_PER_S, is_free), BUSY_POLL_USUAL);
    assert_int_equal(polls_for(&poll, now + 2 * NS_PER_S, is_free), BUSY_POLL_SHORT);
}

static void a_packet_within_the_usual_time_brings_it_back(void **state)
{
    struct busy_poll poll = {0};
    ns_t now = packets_every(&poll, begin, NS_PER_S, BUSY_POLL_VAIN);

    assert_int_equal(polls_for(&poll, now, is_free), BUSY_POLL_SHORT);
    assert_int_equal(polls_for(&poll, now + BUSY_POLL_USUAL, is_taken), BUSY_POLL_USUAL);
}

static void what_wakes_the_thread_without_a_packet_is_not_in_vain(void **state)
{
    struct busy_poll poll = {0};

    for (unsigned i = 0; i < BUSY_POLL_VAIN; i++)
        busy_poll_ends(&poll);
    assert_int_equal(polls_for(&poll, begin, is_free), BUSY_POLL_USUAL);
}

static void close_packets_make_it_long_where_a_processor_is_free(void **state)
{
    struct busy_poll poll = {0};
    ns_t now = packets_every(&poll, begin, BUSY_POLL_LONG, BUSY_POLL_CLOSE);

    assert_int_equal(polls_for(&poll, now + BUSY_POLL_LONG, is_free), BUSY_POLL_LONG);
}

static void not_where_none_is(void **state)
{
    struct busy_poll poll = {0};
    ns_t now = packets_every(&poll, begin, BUSY_POLL_LONG, BUSY_POLL_VAIN);

    assert_int_equal(polls_for(&poll, now + BUSY_POLL_LONG, is_taken), BUSY_POLL_SHORT);
}

static void not_after_packets_in_a_row(void **state)
{
    struct busy_poll poll = {0};
    ns_t now = packets_every(&poll, begin, NS_PER_S, BUSY_POLL_VAIN);

    now = packets_every(&poll, now, NS_PER_US, 100);
    asked = 0;
    assert_int_equal(polls_for(&poll, now + NS_PER_US, is_free), BUSY_POLL_SHORT);
    assert_int_equal(asked, 0);
}

static void a_pause_ends_it(void **state)
{
    struct busy_poll poll = {0};
    ns_t now = packets_every(&poll, begin, BUSY_POLL_LONG, BUSY_POLL_VAIN);

    assert_int_equal(polls_for(&poll, now + BUSY_POLL_LONG + 1, is_free), BUSY_POLL_SHORT);
}

/* How many looks and wakes there are for each of many messages with that pause between them, in hundredths, if nobody
 * is late: while it watches the thread looks four times, and a message within that time does not wake it. */
static unsigned wakes_for(struct watch *watch, ns_t pause)
{
    unsigned wakes = 0;
    bool asleep = true;

    for (unsigned i = 0; i < 100; i++) {
        if (asleep) {
            wakes++;
            watch_woken(watch, pause);
        }
        asleep = !watch_goes_on(watch) || pause > WATCH_FOR;
        if (watch_goes_on(watch))
            wakes += (unsigned)min_of(pause / (WATCH_FOR / 4), 4u);
        else
            wakes++;
    }
    return wakes;
}

static void rare_messages_do_not_keep_it_awake(void **state)
{
    struct watch watch = {0};

    wakes_for(&watch, NS_PER_S);
    assert_int_equal(wakes_for(&watch, WATCH_FOR + 1),
                     200); /* woken, and one look that finds the program asleep again */
}

static void messages_that_come_soon_are_watched_for(void **state)
{
    struct watch watch = {0};

    wakes_for(&watch, NS_PER_S);
    assert_in_range(wakes_for(&watch, WATCH_FOR / 4), 100, 110);
    assert_true(watch_goes_on(&watch));
}

static void one_that_comes_soon_among_rare_ones_changes_nothing(void **state)
{
    struct watch watch = {0};

    for (unsigned i = 0; i < WATCH_SELDOM_MAX; i++)
        watch_woken(&watch, NS_PER_S);
    watch_woken(&watch, NS_PER_MS);
    assert_false(watch_goes_on(&watch));
    watch_woken(&watch, NS_PER_S);
    watch_woken(&watch, NS_PER_MS);
    watch_woken(&watch, NS_PER_MS);
    watch_woken(&watch, NS_PER_MS);
    assert_true(watch_goes_on(&watch));
}

static void looks(struct glance *glance, unsigned count, ns_t delay)
{
    while (count--)
        glance_came(glance, delay);
}

static void it_looks_soon_as_a_rule(void **state)
{
    struct glance glance = {0};

    assert_int_equal(glance_pause(&glance), GLANCE_SHORT);
    looks(&glance, 100, GLANCE_DELAY);
    assert_int_equal(glance_pause(&glance), GLANCE_SHORT);
    glance_found_late(&glance);
    assert_int_equal(glance_pause(&glance), GLANCE_SHORT);
}

static void looks_that_come_late_make_it_seldom(void **state)
{
    struct glance glance = {0};

    for (ns_t pause = 2 * GLANCE_SHORT; pause <= GLANCE_LONG; pause *= 2) {
        looks(&glance, 1, GLANCE_DELAY + 1);
        assert_int_equal(glance_pause(&glance), pause);
    }
    looks(&glance, 10, NS_PER_S);
    assert_int_equal(glance_pause(&glance), GLANCE_LONG);
    looks(&glance, 1, 0);
    assert_int_equal(glance_pause(&glance), GLANCE_LONG / 2);
    looks(&glance, 5, 0);
    assert_int_equal(glance_pause(&glance), GLANCE_SHORT);
}

static void who_does_not_come_is_looked_after_sooner(void **state)
{
    struct glance glance = {0};

    looks(&glance, 10, NS_PER_MS);
    for (unsigned i = 0; i < 10; i++) {
        glance_found_late(&glance);
        assert_int_equal(glance_pause(&glance), GLANCE_LATE);
        looks(&glance, 1, NS_PER_MS);
    }
}

static void it_asks_once_a_millisecond(void **state)
{
    struct busy_poll poll = {0};
    ns_t now = packets_every(&poll, begin, BUSY_POLL_LONG, BUSY_POLL_CLOSE + 1);

    asked = 0;
    polls_for(&poll, now, is_free);
    assert_int_equal(asked, 1);
    polls_for(&poll, now + BUSY_POLL_LONG, is_taken); /* the answer of before */
    assert_int_equal(asked, 1);
    now = packets_every(&poll, now, BUSY_POLL_LONG, (unsigned)(BUSY_POLL_ASK / BUSY_POLL_LONG));
    assert_int_equal(polls_for(&poll, now + BUSY_POLL_LONG, is_taken), BUSY_POLL_SHORT);
    assert_int_equal(asked, 2);
}

static void a_processor_is_free_if_no_more_threads_run_than_there_are(void **state)
{
    assert_true(loadavg_allows("0.20 0.18 0.12 1/80 11206\n", 1));
    assert_false(loadavg_allows("0.20 0.18 0.12 2/80 11206\n", 1));
    assert_true(loadavg_allows("10.20 0.18 0.12 16/1180 11206\n", 16));
    assert_false(loadavg_allows("10.20 0.18 0.12 17/1180 11206\n", 16));
}

static void what_cannot_be_read_is_not_free(void **state)
{
    static const char *const texts[] = {"",
                                        "/",
                                        "0.20 0.18 0.12",
                                        "0.20 0.18 0.12 /80 1",
                                        "0.20 0.18 0.12 -1/80 1",
                                        "0.20 0.18 0.12 none/80 1"};

    for (size_t i = 0; i < array_size(texts); i++)
        assert_false(loadavg_allows(texts[i], 16));
}

static void the_kernel_says_it(void **state)
{
    char text[128];

    assert_true(fd_read_text("/proc/loadavg", text, sizeof(text)) > 0);
    assert_true(loadavg_allows(text, INT32_MAX)); /* this thread runs at least */
    assert_true(fd_read_text("/proc/self/nothing", text, sizeof(text)) < 0);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_begins_with_the_usual_time),
        cmocka_unit_test(in_vain_it_becomes_short),
        cmocka_unit_test(the_usual_time_is_tried_again),
        cmocka_unit_test(a_packet_within_the_usual_time_brings_it_back),
        cmocka_unit_test(what_wakes_the_thread_without_a_packet_is_not_in_vain),
        cmocka_unit_test(close_packets_make_it_long_where_a_processor_is_free),
        cmocka_unit_test(not_where_none_is),
        cmocka_unit_test(not_after_packets_in_a_row),
        cmocka_unit_test(a_pause_ends_it),
        cmocka_unit_test(it_asks_once_a_millisecond),
        cmocka_unit_test(rare_messages_do_not_keep_it_awake),
        cmocka_unit_test(messages_that_come_soon_are_watched_for),
        cmocka_unit_test(one_that_comes_soon_among_rare_ones_changes_nothing),
        cmocka_unit_test(it_looks_soon_as_a_rule),
        cmocka_unit_test(looks_that_come_late_make_it_seldom),
        cmocka_unit_test(who_does_not_come_is_looked_after_sooner),
        cmocka_unit_test(a_processor_is_free_if_no_more_threads_run_than_there_are),
        cmocka_unit_test(what_cannot_be_read_is_not_free),
        cmocka_unit_test(the_kernel_says_it),
    };

    return run_unit_tests("busy_poll", tests);
}
