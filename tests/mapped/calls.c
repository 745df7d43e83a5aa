/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory of programs that did not ask, where system calls of theirs could fail during a switch: it is switched only in
 * calls of a program with a single thread. */
#include "fixture.h"

#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

static void begin_in_calls(void)
{
    enum mapped_reason reason;
    bool in_calls = false;

    begin(1024 * PAGE);
    reason = mapped_unasked(&in_calls);
    if (sanitized() || reason == MAPPED_SANDBOX || reason == MAPPED_OVERCOMMIT)
        skip_because("%s", mapped_reason_text(reason));
    CHECK(reason == MAPPED_YES && in_calls, "%s", mapped_reason_text(reason));
}

/* --- another thread ---------------------------------------------------------------------------------- */

struct other {
    pthread_t thread;
    atomic_int stage;
    atomic_int id;
};

static void *be_other(void *argument)
{
    struct other *other = argument;

    atomic_store(&other->id, (int)syscall(SYS_gettid));
    atomic_store(&other->stage, 1);
    while (atomic_load(&other->stage) == 1)
        usleep(100);
    return NULL;
}

static void other_start(struct other *other)
{
    atomic_store(&other->stage, 0);
    CHECK_ZERO(pthread_create(&other->thread, NULL, be_other, other));
    while (atomic_load(&other->stage) == 0)
        sched_yield();
}

/* pthread_join() may return before the kernel has taken the thread off its list. */
static void other_end(struct other *other)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/task/%d", atomic_load(&other->id));
    atomic_store(&other->stage, 2);
    CHECK_ZERO(pthread_join(other->thread, NULL));
    while (access(path, F_OK) == 0)
        sched_yield();
}

static void a_program_with_threads_keeps_its_memory(void **state)
{
    char *memory;
    struct other other;

    begin_in_calls();
    memory = map(16 * PAGE);
    fill(memory, 16 * PAGE, 1);
    other_start(&other);
    CHECK(refused(memory, 16 * PAGE) == MAPPED_THREADS, "with two threads");
    other_end(&other);
    mapped_remove(add(memory, 16 * PAGE), false);
    CHECK(!is_shared(memory) && filled(memory, 16 * PAGE, 1), "switched back");
}

/* In a child, which has no keeper yet. */
static void a_program_with_threads_gets_no_further_one(void **state)
{
    char *memory;
    pid_t child;
    int status;

    begin_in_calls();
    CHECK_ZERO(pthread_atfork(mapped_fork_prepare, mapped_fork_parent, mapped_fork_child));
    memory = map(16 * PAGE);
    child = fork();
    if (child == 0) {
        struct other other;
        bool in_calls;

        mapped_unasked(&in_calls);
        other_start(&other);
        _exit(refused(memory, 16 * PAGE) != MAPPED_THREADS || keeper.thread);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the thread that switches memory");
}

static uint64_t lingering(void)
{
    struct mapped_counts counts;

    mapped_count(&counts);
    return counts.lingering;
}

static void memory_stays_when_threads_have_come(void **state)
{
    struct mapped_region *region, *next;
    char *memory, *view;
    struct other other;

    begin_in_calls();
    memory = map(32 * PAGE);
    fill(memory, 32 * PAGE, 2);
    region = add(memory, 16 * PAGE);
    view = peer_view(region, memory);
    other_start(&other);
    mapped_remove(region, false);
    CHECK(is_shared(memory) && lingering() == 16 * PAGE, "nobody can switch it back");
    CHECK(filled(memory, 16 * PAGE, 2), "contents");
    memory[0] = 7;
    CHECK(view[0] == 7, "the same page");
    /* The pages need no switch to be registered again. */
    region = add(memory, 16 * PAGE);
    CHECK(lingering() == 0, "in use again");
    mapped_remove(region, false);
    other_end(&other);
    next = add(memory + 16 * PAGE, 16 * PAGE); /* the next call finds the program with one thread */
    CHECK(!is_shared(memory) && lingering() == 0, "switched back");
    CHECK(memory[0] == 7, "contents");
    mapped_remove(next, false);
}

/* A peer that was stopped in a store may go on at any time, so memory has to move whatever threads there are. */
static void memory_moves_away_from_a_peer_with_threads_about(void **state)
{
    struct mapped_region *region;
    struct writers *writers;
    char *memory, *view;

    begin_in_calls();
    memory = map(64 * PAGE);
    region = add(memory, 64 * PAGE);
    view = peer_view(region, memory);
    writers = writers_start(memory + PAGE, 63 * PAGE, 2);
    CHECK_ZERO(mapped_move((uintptr_t)memory, 64 * PAGE));
    memset(view, 0xff, PAGE);
    CHECK(memory[0] == 0, "a late store of the peer");
    CHECK(writers_finish(writers, NULL) == 0, "writes are lost");
    mapped_remove(region, false);
}

static void stores_may_come_though_threads_have_come(void **state)
{
    struct mapped_region *region;
    char *memory, *view;
    struct other other;

    begin_in_calls();
    memory = map(16 * PAGE);
    fill(memory, 16 * PAGE, 3);
    region = add(memory, 16 * PAGE);
    view = peer_view(region, memory);
    other_start(&other);
    mapped_remove(region, true);
    memset(view, 0xff, 16 * PAGE);
    CHECK(!is_shared(memory) && filled(memory, 16 * PAGE, 3), "a late store of the peer");
    other_end(&other);
}

/* --- writers that are not threads ---------------------------------------------------------------------- */

static uint64_t *counters;
static size_t counter_count;
static volatile uint64_t counted;

static void count(int signal)
{
    counters[counted * 7919 % counter_count]++; /* all over the pages */
    counted++;
}

static void signal_handlers_lose_no_write(void **state)
{
    const struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART}, before;
    uint64_t sum = 0;
    size_t length;

    begin_in_calls();
    length = 256 * PAGE;
    counters = (uint64_t *)(void *)map(length);
    counter_count = length / sizeof(*counters);
    CHECK_ZERO(sigaction(SIGALRM, &action, &before));
    CHECK_ZERO(setitimer(ITIMER_REAL, &often, NULL));
    for (unsigned i = 0; i < cycles(30, 1000); i++)
        mapped_remove(add(counters, length), false);
    CHECK_ZERO(setitimer(ITIMER_REAL, &never, NULL));
    CHECK_ZERO(sigaction(SIGALRM, &before, NULL));
    CHECK(counted > 0, "no signal came");
    for (size_t i = 0; i < counter_count; i++)
        sum += counters[i];
    CHECK(sum == counted, "%llu of %llu writes are lost", (unsigned long long)(counted - sum),
          (unsigned long long)counted);
}

static void a_program_with_aio_keeps_its_memory(void **state)
{
    aio_context_t context = 0;
    struct mapped_region *region;
    char *memory;

    begin_in_calls();
    memory = map(16 * PAGE);
    region = add(memory, 8 * PAGE);
    if (syscall(SYS_io_setup, 8l, &context) != 0)
        skip_because("io_setup: %s", strerror(errno));
    CHECK(refused(memory + 8 * PAGE, 8 * PAGE) == MAPPED_ASYNC, "with a context");
    mapped_remove(region, false);
    CHECK(is_shared(memory), "not switched back while the kernel may write");
    CHECK_ZERO((int)syscall(SYS_io_destroy, context));
    mapped_remove(add(memory + 8 * PAGE, 8 * PAGE), false);
    CHECK(!is_shared(memory), "switched back afterwards");
}

static void a_program_with_io_uring_keeps_its_memory(void **state)
{
    struct io_uring_params params = {0};
    char *memory;
    void *ring;
    int fd;

    begin_in_calls();
    memory = map(16 * PAGE);
    fd = (int)syscall(SYS_io_uring_setup, 8l, &params);
    if (fd < 0)
        skip_because("io_uring_setup: %s", strerror(errno));
    CHECK(refused(memory, 16 * PAGE) == MAPPED_ASYNC, "with a descriptor");
    ring = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
    CHECK(ring != MAP_FAILED, "mmap: %m");
    close(fd); /* a registered descriptor keeps the ring */
    CHECK(refused(memory, 16 * PAGE) == MAPPED_ASYNC, "with a mapping");
    munmap(ring, PAGE);
    mapped_remove(add(memory, 16 * PAGE), false);
}

static void fork_gives_the_child_a_copy(void **state)
{
    struct mapped_region *region;
    char *memory;
    pid_t child;
    int status;

    begin_in_calls();
    CHECK_ZERO(pthread_atfork(mapped_fork_prepare, mapped_fork_parent, mapped_fork_child));
    memory = map(16 * PAGE);
    fill(memory, 16 * PAGE, 4);
    region = add(memory, 16 * PAGE);
    child = fork();
    if (child == 0) {
        bool good = filled(memory, 16 * PAGE, 4) && !is_shared(memory);

        memset(memory, 0, 16 * PAGE);
        _exit(!good);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child's memory");
    CHECK(filled(memory, 16 * PAGE, 4), "the parent's memory");
    mapped_remove(region, false);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(a_program_with_threads_keeps_its_memory, .fars = 0),
        TEST_WITH(a_program_with_threads_gets_no_further_one, .fars = 0),
        TEST_WITH(memory_stays_when_threads_have_come, .fars = 0),
        TEST_WITH(memory_moves_away_from_a_peer_with_threads_about, .fars = 0),
        TEST_WITH(stores_may_come_though_threads_have_come, .fars = 0),
        TEST_WITH(signal_handlers_lose_no_write, .fars = 0),
        TEST_WITH(a_program_with_aio_keeps_its_memory, .fars = 0),
        TEST_WITH(a_program_with_io_uring_keeps_its_memory, .fars = 0),
        TEST_WITH(fork_gives_the_child_a_copy, .fars = 0),
    };

    return run_mapped(tests, COUNT(tests), argc, argv);
}
