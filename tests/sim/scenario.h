/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A table of scenarios. Each is run on the kinds of links that it names, and is a test of its own on each. */
#ifndef TESTS_SIM_SCENARIO_H
#define TESTS_SIM_SCENARIO_H

#include "sim.h"

enum scenario_links { ON_RING = 1, ON_REFERENCES = 2, ON_WIRE = 4, ON_LOCAL = 3, ON_ALL = 7 };

struct scenario {
    const char *name;
    void (*run)(struct sim *sim);
    unsigned links; /* enum scenario_links */
};

#define SCENARIO(function)                                                                                   \
    {                                                                                                        \
        .name = #function, .run = function, .links = ON_ALL                                                  \
    }
#define SCENARIO_ON(function, where)                                                                         \
    {                                                                                                        \
        .name = #function, .run = function, .links = (where)                                                 \
    }

/* With an argument: only the tests whose name contains it, with a trace of packets. */
int run_scenarios(const char *group, const struct scenario *scenarios, size_t count, int argc, char **argv);

#endif
