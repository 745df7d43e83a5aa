/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "scenario.h"

#include <stdio.h>

#define TESTS_MAX 256

static const struct sim_link *const links[] = {&sim_ring, &sim_ring_cma, &sim_wire};

struct bound {
    const struct scenario *scenario;
    const struct sim_link *link;
    char name[128];
};

static struct bound bounds[TESTS_MAX];
static struct CMUnitTest tests[TESTS_MAX];
static bool traced;

static void run_bound(void **state)
{
    const struct bound *bound = *state;
    struct sim *sim = sim_new(bound->link, 1);

    sim->trace = traced;
    bound->scenario->run(sim);
    sim_free(sim);
}

int run_scenarios(const char *group, const struct scenario *scenarios, size_t count, int argc, char **argv)
{
    size_t used = 0;

    traced = argc > 1;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < array_size(links); j++) {
            struct bound *bound = &bounds[used];

            if (!(scenarios[i].links & 1u << j))
                continue;
            bound->scenario = &scenarios[i];
            bound->link = links[j];
            snprintf(bound->name, sizeof(bound->name), "%s (%s)", scenarios[i].name, links[j]->name);
            if (argc > 1 && !strstr(bound->name, argv[1]))
                continue;
            assert_true(used < TESTS_MAX);
            tests[used++] =
                (struct CMUnitTest){.name = bound->name, .test_func = run_bound, .initial_state = bound};
        }
    }
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return _cmocka_run_group_tests(group, tests, used, NULL, NULL);
}
