/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Calls with a handle that the program has destroyed: records in the published segment. */
#ifndef SEGMENT_MISUSE_H
#define SEGMENT_MISUSE_H

#include <stdint.h>

#include "published/record.h"

/* The calling thread destroys the object now. */
void destroy_note(struct destroy_note *ret, uint32_t number);

/* Records a call that fails with `error` for that. object: in words. Returns the number of the record; NO_OBJECT: the
 * same was recorded before, or the table is full. */
uint32_t misuse_record(enum misuse_form form, const char *call, const char *object, int error,
                       const struct destroy_note *note);
void misuses_after_fork_in_child(void);

#endif
