/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Calls of the program that were refused: the last ones, as records in the published segment. */
#ifndef SEGMENT_REFUSED_H
#define SEGMENT_REFUSED_H

#include <stdbool.h>
#include <stdint.h>

struct refusal;

/* Records a call that fails. Returns the number of the record; NO_OBJECT: the same is recorded already, and was
 * counted, or there is no segment. */
uint32_t refused_record(const char *call, const struct refusal *refusal);
void refused_after_fork_in_child(void);

#endif
