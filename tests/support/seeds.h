/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Random work: a test for each range of seeds. A failing seed prints itself, and the argument SEED [trace]
 * repeats it alone. SOFTHCA_SIM_SEEDS says how many there are to be (without it as many as are usual, or
 * with SOFTHCA_TEST_LONG as in_long says), SOFTHCA_SIM_FIRST where they begin. */
#ifndef TESTS_SUPPORT_SEEDS_H
#define TESTS_SUPPORT_SEEDS_H

#include <stdbool.h>
#include <stdint.h>

struct seeds {
    const char *group;
    unsigned usual, in_long, per_test;
    void (*run)(uint64_t seed, bool traced);
};

int run_seeds(const struct seeds *what, int argc, char **argv);

#endif
