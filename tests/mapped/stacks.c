/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Stacks, control blocks of threads and private mappings of files are not switched; what is next to them is.
 */
#include "fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static char in_data[3 * 4096] = {1};

static void *on_own_stack(void *argument)
{
    char buffer[8 * 4096] __attribute__((aligned(4096)));
    int *ret = argument;

    memset(buffer, 1, sizeof buffer);
    *ret = (int)refused(buffer, sizeof buffer);
    return NULL;
}

struct parked {
    char *buffer;
    size_t length;
    atomic_int stage;
};

static void *park(void *argument)
{
    char buffer[8 * 4096] __attribute__((aligned(4096)));
    struct parked *parked = argument;

    memset(buffer, 1, sizeof buffer);
    parked->buffer = buffer;
    parked->length = sizeof buffer;
    atomic_store(&parked->stage, 1);
    while (atomic_load(&parked->stage) == 1)
        sched_yield();
    return NULL;
}

static void stacks_and_files_stay(void **state)
{
    char buffer[8 * 4096] __attribute__((aligned(4096)));
    struct parked parked = {0};
    pthread_t thread;
    int reason = -1, fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    char *file = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    char *device = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, open("/dev/zero", O_RDWR), 0);
    enum way way = begin(16 * PAGE);

    memset(buffer, 1, sizeof buffer);
    CHECK(refused(buffer, sizeof buffer) == MAPPED_STACK, "the first stack");
    if (way != WAY_ALONE) {
        CHECK_ZERO(pthread_create(&thread, NULL, on_own_stack, &reason));
        pthread_join(thread, NULL);
        CHECK(reason == MAPPED_STACK, "the stack of the caller: %d", reason);
        CHECK_ZERO(pthread_create(&thread, NULL, park, &parked));
        while (atomic_load(&parked.stage) == 0)
            sched_yield();
        CHECK(refused(parked.buffer, parked.length) == MAPPED_STACK, "the stack of another thread");
        atomic_store(&parked.stage, 2);
        pthread_join(thread, NULL);
        errno = 0;
        CHECK(refused((void *)((uintptr_t)&errno & ~(PAGE - 1)), PAGE) == MAPPED_STACK, "the control block");
    }
    CHECK(file != MAP_FAILED && refused(file, PAGE) == MAPPED_PRIVATE_FILE, "a private mapping of a file");
    CHECK(device != MAP_FAILED, "mmap of /dev/zero: %m");
    refused((void *)(((uintptr_t)in_data + 4095) & ~(uintptr_t)4095),
            PAGE); /* .data: a file or not, no crash */
}

/* A thread on a part of memory that is one mapping with what is behind it, as stacks and other memory are
 * before Linux 6.7. Below is a page that nobody may touch. */
struct neighbours {
    char *below, *stack, *above;
    size_t stack_length;
    pthread_t thread;
};

enum { BESIDE = 16 }; /* pages */

static void start_between(struct neighbours *beside, void *(*function)(void *argument), void *argument)
{
    pthread_attr_t attributes;

    beside->stack_length = (size_t)2 << 20; /* a sanitizer has much thread-local memory */
    beside->below = map(beside->stack_length + (2 * BESIDE + 1) * PAGE);
    beside->stack = beside->below + (BESIDE + 1) * PAGE;
    beside->above = beside->stack + beside->stack_length;
    fill(beside->below, BESIDE * PAGE, 1);
    fill(beside->above, BESIDE * PAGE, 2);
    CHECK_ZERO(mprotect(beside->stack - PAGE, PAGE, PROT_NONE));
    CHECK(count_maps_in(beside->stack, beside->stack_length + BESIDE * PAGE) == 1, "not one mapping");
    CHECK_ZERO(pthread_attr_init(&attributes));
    CHECK_ZERO(pthread_attr_setstack(&attributes, beside->stack, beside->stack_length));
    CHECK_ZERO(pthread_create(&beside->thread, &attributes, function, argument));
    CHECK_ZERO(pthread_attr_destroy(&attributes));
}

static void memory_beside_a_stack(void **state)
{
    enum way way = begin((2 * BESIDE + 1) * PAGE);
    struct mapped_refusal refusals[4];
    struct mapped_region *region;
    struct neighbours beside;
    struct parked parked = {0};

    if (way == WAY_ALONE)
        skip_because("another thread");
    start_between(&beside, park, &parked);
    while (atomic_load(&parked.stage) == 0)
        sched_yield();
    mapped_remove(add(beside.above, BESIDE * PAGE), false);
    mapped_remove(add(beside.below, BESIDE * PAGE), false);
    CHECK(refused(beside.stack, beside.stack_length) == MAPPED_STACK, "the stack");
    CHECK(refused(beside.above - PAGE, PAGE) == MAPPED_STACK, "the page with the control block");

    /* In one region, too. */
    region = mapped_add((uintptr_t)beside.below, beside.stack_length + (2 * BESIDE + 1) * PAGE,
                        MAPPED_PEERS_WRITE);
    CHECK(mapped_bytes(region) == 2 * BESIDE * PAGE, "%llu pages",
          (unsigned long long)(mapped_bytes(region) / PAGE));
    CHECK(is_shared(beside.above) && is_shared(beside.below) && !is_shared(beside.above - 1), "both sides");
    CHECK(mapped_refusals(region, refusals, COUNT(refusals)) == 2, "two refusals");
    CHECK(refusals[0].reason == MAPPED_NOT_WRITABLE && refusals[0].length == PAGE, "below the stack");
    CHECK(refusals[1].reason == MAPPED_STACK && refusals[1].address == (uintptr_t)beside.stack &&
              refusals[1].length == beside.stack_length,
          "the stack, no more");
    mapped_remove(region, false);
    atomic_store(&parked.stage, 2);
    pthread_join(beside.thread, NULL);
    CHECK(filled(beside.below, BESIDE * PAGE, 1) && filled(beside.above, BESIDE * PAGE, 2), "contents");
}

static void *add_what_is_above(void *argument)
{
    struct neighbours *beside = argument;

    mapped_remove(add(beside->above, BESIDE * PAGE), false);
    return NULL;
}

static void memory_above_the_stack_of_the_caller(void **state)
{
    struct neighbours beside;

    if (begin(BESIDE * PAGE) == WAY_ALONE)
        skip_because("another thread");
    start_between(&beside, add_what_is_above, &beside);
    pthread_join(beside.thread, NULL);
    CHECK(filled(beside.above, BESIDE * PAGE, 2) && !is_shared(beside.above), "contents");
}

static void *measure_own_stack(void *argument)
{
    void *head = NULL, *stack = NULL;
    pthread_attr_t attributes;
    size_t length, size = 0;

    CHECK_ZERO(pthread_getattr_np(pthread_self(), &attributes));
    CHECK_ZERO(pthread_attr_getstack(&attributes, &stack, &size));
    CHECK_ZERO(pthread_attr_destroy(&attributes));
    CHECK_ZERO((int)syscall(SYS_get_robust_list, 0, &head, &length));
    *(size_t *)argument = (size_t)((char *)stack + size - (char *)head);
    return NULL;
}

static void all_control_blocks_are_as_long(void **state)
{
    size_t length = 0;
    pthread_t thread;

    begin(0);
    CHECK_ZERO(pthread_create(&thread, NULL, measure_own_stack, &length));
    CHECK_ZERO(pthread_join(thread, NULL));
    CHECK(keeper.control_block == length, "%zu and %zu bytes", keeper.control_block, length);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(stacks_and_files_stay, .fars = 0),
        TEST_WITH(memory_beside_a_stack, .fars = 0),
        TEST_WITH(memory_above_the_stack_of_the_caller, .fars = 0),
        TEST_WITH(all_control_blocks_are_as_long, .fars = 0),
    };

    return run_mapped(tests, COUNT(tests), argc, argv);
}
