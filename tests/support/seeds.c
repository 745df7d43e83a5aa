/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "seeds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/types.h"

static bool traced;
static void (*run_one)(uint64_t seed, bool traced);

static void run_range(void **state)
{
    const uint64_t *range = *state;

    for (uint64_t seed = range[0]; seed < range[1]; seed++)
        run_one(seed, traced);
}

int run_seeds(const struct seeds *what, int argc, char **argv)
{
    const char *wanted = getenv("SOFTHCA_SIM_SEEDS"), *first = getenv("SOFTHCA_SIM_FIRST");
    uint64_t seeds = wanted                        ? strtoull(wanted, NULL, 0)
                     : getenv("SOFTHCA_TEST_LONG") ? what->in_long
                                                   : what->usual,
             begin = first ? strtoull(first, NULL, 0) : 1;
    size_t count;
    struct CMUnitTest *tests;
    uint64_t(*ranges)[2];
    char(*names)[64];
    int failed;

    run_one = what->run;
    if (argc > 1) {
        begin = strtoull(argv[1], NULL, 0);
        seeds = 1;
        traced = argc > 2;
    }
    count = (seeds + what->per_test - 1) / what->per_test;
    tests = calloc(count, sizeof(*tests));
    ranges = calloc(count, sizeof(*ranges));
    names = calloc(count, sizeof(*names));
    for (size_t i = 0; i < count; i++) {
        ranges[i][0] = begin + i * what->per_test;
        ranges[i][1] = min_of(begin + seeds, ranges[i][0] + what->per_test);
        snprintf(names[i], sizeof(names[i]), "seeds %llu to %llu", (unsigned long long)ranges[i][0],
                 (unsigned long long)ranges[i][1] - 1);
        tests[i] = (struct CMUnitTest){.name = names[i], .test_func = run_range, .initial_state = ranges[i]};
    }
    cmocka_set_message_output(CM_OUTPUT_TAP);
    failed = _cmocka_run_group_tests(what->group, tests, count, NULL, NULL);
    free(tests);
    free(ranges);
    free(names);
    return failed;
}
