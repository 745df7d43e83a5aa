/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two pairs of QPs that get the same random requests, of which the second is kept off the plain way: what both have
 * in common for WRITEs (plain.c) and SENDs (plain_sends.c). */
#ifndef TESTS_BEHAVIOUR_BOTH_WAYS_H
#define TESTS_BEHAVIOUR_BOTH_WAYS_H

#include "work.h"

enum { BOTH_SIZE = 4096, BOTH_OUTCOMES = 1024 };

extern uint64_t state_of_random;
uint32_t below(uint32_t limit);
bool one_in(uint32_t n);

/* Through side_call(). A QP with a completion counter (comp_cntr.c): nothing of it goes the plain way. arg: void **,
 * the counter. */
void count_operations(struct end *end, void *arg);
void destroy_counter(struct end *end, void *arg);

struct outcome {
    struct ibv_wc wc[BOTH_OUTCOMES];
    unsigned int count, most; /* most: of completions that may come */
};
void outcome_poll(struct end *end, enum queue queue, struct outcome *outcome, struct patience *patience);
/* Of the send queue, until the completion with this wr_id. */
void outcome_until(struct end *end, uint64_t last, struct outcome *ret);
void outcome_compare(const struct outcome *a, const struct outcome *b);

/* The memory of all four ends, BOTH_SIZE bytes each. */
void compare_memory(struct pair pairs[2]);

/* By ibv_wr_*(): WRITEs, READs and SENDs, all or none. */
int post_by_builders(struct end *end, const struct send *sends, unsigned int count, unsigned int *ret_posted);

#endif
