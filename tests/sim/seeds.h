/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Random work: a test for each range of seeds. A failing seed prints itself, and the argument SEED [trace]
 * repeats it alone. SOFTHCA_SIM_SEEDS says how many there are to be (a few hundred without it,
 * SOFTHCA_TEST_LONG: 10000), SOFTHCA_SIM_FIRST where they begin. */
#ifndef TESTS_SIM_SEEDS_H
#define TESTS_SIM_SEEDS_H

#include <stdbool.h>
#include <stdint.h>

int run_seeds(const char *group, unsigned seeds, void (*run)(uint64_t seed, bool traced), int argc,
              char **argv);

#endif
