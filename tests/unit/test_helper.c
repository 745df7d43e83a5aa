/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The helper thread does not sleep while a request waits for it (engine/core/helper.c): whoever makes a request
 * writes to its eventfd, and any look at the descriptors takes that. Clock, sleep and the requests are the test's. */
#include "unit.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "engine/core/busy_poll.h"
#include "engine/core/core.h"
#include "engine/core/engine.h"
#include "engine/direct/direct.h"
#include "local/local.h"
#include "object/cq/cq.h"

/* The helper thread runs requests this often, at least, each time that it is woken. */
enum { RUNS = 2, ROUNDS = 50 };

static _Atomic unsigned
    ask_in; /* so many calls of direct_run() from now on, a request comes behind one; 0: none comes */
static _Atomic bool requested; /* and direct_run() has not seen it */
static _Atomic bool slept;     /* without a limit, while that was so */
static _Atomic ns_t away;      /* how long the helper thread had no processor in all */
static sem_t answered;

/* A writer rings the helper thread, and is stopped before it declares the process awake. */
static _Atomic bool rings;
static _Atomic uint64_t read_by_writer; /* the attention word, while the bell was on its way */
static _Atomic bool declared_awake;     /* and the helper thread looks seldom */

/* A thread finds that a writer owes an event, while the helper thread looks seldom. */
static _Atomic bool owes;
static _Atomic bool is_left; /* until the next look */

ns_t __real_sys_now(void);
int __real_sys_epoll_wait(int epoll, struct epoll_event *events, int most, ns_t timeout_ns);
ns_t __wrap_sys_now(void);
int __wrap_sys_epoll_wait(int epoll, struct epoll_event *events, int most, ns_t timeout_ns);
void __wrap_direct_run(void);

ns_t __wrap_sys_now(void)
{
    return __real_sys_now() + atomic_load(&away);
}

/* A request comes just after the requests were run, and the thread loses its processor there for longer than its
 * patience. */
void __wrap_direct_run(void)
{
    if (atomic_exchange(&requested, false))
        sem_post(&answered);
    if (atomic_load(&ask_in) && atomic_fetch_sub(&ask_in, 1) == 1) {
        atomic_store(&requested, true);
        helper_kick();
        atomic_fetch_add(&away, 10 * NS_PER_MS);
    }
}

/* Looks come late while the helper thread is to look seldom. */
static int wait_for(int epoll, struct epoll_event *events, int most, ns_t timeout_ns)
{
    int count = __real_sys_epoll_wait(epoll, events, most, timeout_ns);

    if (!count && timeout_ns != NS_NEVER && (atomic_load(&rings) || atomic_load(&owes)))
        atomic_fetch_add(&away, GLANCE_DELAY + NS_PER_US);
    return count;
}

int __wrap_sys_epoll_wait(int epoll, struct epoll_event *events, int most, ns_t timeout_ns)
{
    int count;

    if (atomic_load(&owes) && timeout_ns > GLANCE_SHORT && timeout_ns != NS_NEVER) {
        atomic_store(&owes, false);
        helper_event_owed(false);
        count = __real_sys_epoll_wait(epoll, events, most, 0);
        atomic_store(&is_left, count == 0);
        sem_post(&answered);
        return count;
    }
    if (atomic_load(&rings)) {
        if (atomic_load(&read_by_writer) && timeout_ns > GLANCE_SHORT && timeout_ns != NS_NEVER) {
            uint64_t seen = atomic_load(&read_by_writer);

            atomic_store(&declared_awake, seen == local_attention_word());
            atomic_store(&rings, false);
            sem_post(&answered);
        }
        count = wait_for(epoll, events, most, timeout_ns);
        if (count > 0)
            atomic_store(&read_by_writer, local_attention_word());
        return count;
    }
    if (timeout_ns != NS_NEVER || !atomic_load(&requested))
        return wait_for(epoll, events, most, timeout_ns);
    count = __real_sys_epoll_wait(epoll, events, most, 0);
    if (count)
        return count;
    atomic_store(&slept, true);
    sem_post(&answered);
    return __real_sys_epoll_wait(epoll, events, most, timeout_ns);
}

static void requests_are_seen_before_the_next_sleep(void **state)
{
    (void)state;
    assert_int_equal(engine_start(), 0);
    assert_int_equal(helper_start(), 0);
    for (unsigned round = 0; round < ROUNDS * RUNS; round++) {
        atomic_store(&ask_in, round % RUNS + 1);
        helper_kick();
        while (sem_wait(&answered) != 0) {
        }
        assert_false(atomic_load(&slept));
    }
}

/* A thread sleeps with an armed CQ, and the helper thread looks. Makes it look seldom until `answered`. */
static void look_seldom(_Atomic bool *wanted)
{
    int fd = eventfd(0, EFD_CLOEXEC), answers;
    unsigned line;

    assert_int_equal(engine_start(), 0);
    assert_int_equal(helper_start(), 0);
    assert_non_null(local_open_channel(fd, &line));
    atomic_store(&cq_armed_count, 1);
    assert_true(local_prepare_sleep(ATTENTION_DOZES));
    atomic_store(wanted, true);
    do { /* polls, so the helper thread goes on looking; again if it was late and had gone to sleep */
        struct timespec until;

        atomic_fetch_add(&progress_application_polls, 1);
        helper_kick();
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        answers = sem_timedwait(&answered, &until);
    } while (answers != 0);
    atomic_store(&cq_armed_count, 0);
    local_close_channel(line);
    close(fd);
}

/* Its compare-exchange would succeed, and until the next look nobody was woken for a message. */
static void a_writer_that_rang_before_a_long_pause_declares_nobody_awake(void **state)
{
    (void)state;
    look_seldom(&rings);
    assert_false(atomic_load(&declared_awake));
}

static void an_event_that_is_owed_does_not_wait_for_a_long_pause(void **state)
{
    (void)state;
    look_seldom(&owes);
    assert_false(atomic_load(&is_left));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_seen_before_the_next_sleep),
        cmocka_unit_test(a_writer_that_rang_before_a_long_pause_declares_nobody_awake),
        cmocka_unit_test(an_event_that_is_owed_does_not_wait_for_a_long_pause),
    };

    if (sem_init(&answered, 0, 0))
        return 1;
    return run_unit_tests("helper", tests);
}
