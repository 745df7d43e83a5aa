/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is normal at the end of a program: counted, and told in one line if the program fails. */
#ifndef EXPLAIN_REMARKS_H
#define EXPLAIN_REMARKS_H

#include <stdbool.h>
#include <stdint.h>

struct words;

enum remark {
    REMARK_BUSY,     /* refused destroys (EBUSY) of a program that goes on */
    REMARK_IN_USE,   /* MRs deregistered while work requests name them */
    REMARK_SENDS,    /* outstanding sends of destroyed QPs */
    REMARK_RECEIVES, /* unused receives */
    REMARK_COMPLETIONS,
    REMARK_EVENTS,
    REMARK_ARMED,   /* notifications that were requested, and SRQ limits */
    REMARK_DROPPED, /* QPs, and reasons for which each dropped datagrams */
    REMARK_REFUSED, /* calls that programs make to learn whether they are possible */
};
#define REMARKS 9

/* "2 refused destroys (EBUSY), 512 unused receives"; false: all are 0, and nothing is added. */
bool words_add_remarks(struct words *words, const uint64_t counts[REMARKS]);

#endif
