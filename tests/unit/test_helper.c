/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The helper thread does not sleep while a request waits for it (engine/core/helper.c): whoever makes a request writes to its
 * eventfd, and any look at the descriptors takes that. Clock, sleep and the requests are the test's. */
#include "unit.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/epoll.h>

#include "engine/core/core.h"
#include "engine/core/engine.h"
#include "engine/direct/direct.h"

/* The helper thread runs requests this often, at least, each time that it is woken. */
enum { RUNS = 2, ROUNDS = 50 };

static _Atomic unsigned
    ask_in; /* so many calls of direct_run() from now on, a request comes behind one; 0: none comes */
static _Atomic bool requested; /* and direct_run() has not seen it */
static _Atomic bool slept;     /* without a limit, while that was so */
static _Atomic ns_t away;      /* how long the helper thread had no processor in all */
static sem_t answered;

ns_t __real_sys_now(void);
int __real_sys_epoll_wait(int epoll, struct epoll_event *events, int most, ns_t timeout_ns);
ns_t __wrap_sys_now(void);
int __wrap_sys_epoll_wait(int epoll, struct epoll_event *events, int most, ns_t timeout_ns);
void __wrap_direct_run(void);

ns_t __wrap_sys_now(void)
{
    return __real_sys_now() + atomic_load(&away);
}

/* A request comes just after the requests were run, and the thread loses its processor there for longer than its patience. */
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

int __wrap_sys_epoll_wait(int epoll, struct epoll_event *events, int most, ns_t timeout_ns)
{
    int count;

    if (timeout_ns != NS_NEVER || !atomic_load(&requested))
        return __real_sys_epoll_wait(epoll, events, most, timeout_ns);
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

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(requests_are_seen_before_the_next_sleep)};

    if (sem_init(&answered, 0, 0))
        return 1;
    return run_unit_tests("helper", tests);
}
