/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Runs tests one by one, each in a process of its own, and reports in TAP. A process per test because a test
 * of a library that is loaded once per process must not inherit what the test before it left behind, and
 * because a crash or a hang is then one failed test.
 */
#ifndef TESTS_SUPPORT_RUNNER_H
#define TESTS_SUPPORT_RUNNER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum test_needs {
    NEEDS_NOTHING = 0,
    NEEDS_TWO_PROCESSES = 1 << 0, /* a peer that can be stopped or killed */
    NEEDS_LONG = 1 << 1,          /* runs only where SOFTHCA_TEST_LONG is set */
};

struct test {
    const char *name;
    CMUnitTestFunction body;
    unsigned int fars; /* far sides, each a process where the path says so */
    unsigned int needs;
    unsigned int seconds; /* time limit, 0: the default */
};

#define TEST(fn)                                                                                             \
    {                                                                                                        \
        .name = #fn, .body = fn, .fars = 1                                                                   \
    }
/* … with .fars and whatever else differs */
#define TEST_WITH(fn, ...)                                                                                   \
    {                                                                                                        \
        .name = #fn, .body = fn, __VA_ARGS__                                                                 \
    }
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* argv[1…]: run only the tests whose name contains one of them */
int run_topic(const struct test *tests, size_t count, int argc, char **argv);

/* Ends the test as skipped; the reason is printed. */
void skip_because(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* How much slower than usual everything is allowed to be (sanitizers, emulation): SOFTHCA_TEST_SLOW, at least
 * 1 */
unsigned int slowness(void);
/* So slow that limits of the library itself are met: in an emulator, not with a sanitizer. */
bool is_emulated(void);
bool long_tests(void);

#endif
