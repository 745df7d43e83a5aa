/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Random numbers that are taken in advance: none comes twice, in whichever process. */
#include "unit.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random_pool.h"

#define NUMBERS 2000 /* more than a pool has */

static int compare(const void *a, const void *b)
{
    const uint64_t *left = a, *right = b;

    return *left < *right ? -1 : *left > *right;
}

static bool any_twice(uint64_t *numbers, size_t count)
{
    qsort(numbers, count, sizeof(*numbers), compare);
    for (size_t i = 1; i < count; i++) {
        if (numbers[i] == numbers[i - 1])
            return true;
    }
    return false;
}

static void no_number_comes_twice(void **state)
{
    struct random_pool pool = {0};
    static uint64_t numbers[NUMBERS];
    uint64_t ones = 0, zeros = 0;

    for (size_t i = 0; i < NUMBERS; i++) {
        numbers[i] = random_pool_take(&pool);
        ones |= numbers[i];
        zeros |= ~numbers[i];
    }
    assert_int_equal(ones, UINT64_MAX); /* each bit is both in some of them */
    assert_int_equal(zeros, UINT64_MAX);
    assert_false(any_twice(numbers, NUMBERS));
}

/* By libc, whose handlers run, and by a system call, of which libc knows nothing. */
static pid_t fork_by(bool libc)
{
    return libc ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static void parent_and_child_take_different_numbers(bool libc)
{
    enum { EACH = 100 };
    struct random_pool pool = {0};
    uint64_t *shared =
        mmap(NULL, 2 * EACH * sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status;
    pid_t child;

    assert_ptr_not_equal(shared, MAP_FAILED);
    (void)random_pool_take(&pool); /* so that there is a pool to inherit */
    child = fork_by(libc);
    assert_true(child >= 0);
    for (int i = 0; i < EACH; i++)
        shared[(child ? 0 : EACH) + i] = random_pool_take(&pool);
    if (child == 0)
        _exit(0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_false(any_twice(shared, 2 * EACH));
    munmap(shared, 2 * EACH * sizeof(*shared));
}

static void a_forked_child_takes_other_numbers(void **state)
{
    parent_and_child_take_different_numbers(true);
}

static void a_child_that_libc_knows_nothing_of_takes_other_numbers(void **state)
{
    parent_and_child_take_different_numbers(false);
}

/* Who reads the memory later does not learn what was handed out. */
static void a_number_is_erased_when_it_is_handed_out(void **state)
{
    struct random_pool pool = {0};
    uint64_t taken[64], page[512];

    for (size_t i = 0; i < array_size(taken); i++)
        taken[i] = random_pool_take(&pool);
    if (!pool.page)
        skip(); /* a kernel without MADV_WIPEONFORK */
    memcpy(page, pool.page, sizeof(page));
    for (size_t i = 0; i < array_size(taken); i++) {
        for (size_t j = 0; j < array_size(page); j++)
            assert_int_not_equal(taken[i], page[j]);
    }
}

static void errno_is_kept(void **state)
{
    struct random_pool pool = {0};

    errno = ENXIO;
    (void)random_pool_take(&pool);
    assert_int_equal(errno, ENXIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_number_comes_twice),
        cmocka_unit_test(a_forked_child_takes_other_numbers),
        cmocka_unit_test(a_child_that_libc_knows_nothing_of_takes_other_numbers),
        cmocka_unit_test(a_number_is_erased_when_it_is_handed_out),
        cmocka_unit_test(errno_is_kept),
    };

    return run_unit_tests("random_pool", tests);
}
