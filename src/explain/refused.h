/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What explain/refused.c, refused_reason.c and refused_values.c share. */
#ifndef EXPLAIN_REFUSED_H
#define EXPLAIN_REFUSED_H

#include "base/refusal.h"
#include "explain/out.h"
#include "segment/segment.h"

/* refused_reason.c. false: there is nothing to say. argument: printable. */
bool words_add_refused(struct words *words, const struct refused_record *record, const char *argument);

/* refused_values.c: "IBV_QP_AV and IBV_QP_PATH_MTU", and bits without a name as a number. */
void words_add_bits(struct words *words, enum refusal_bits names, uint64_t bits);
/* Names of the numbers that are set in a mask: "RTS, SQD or ERR". */
void words_add_choice(struct words *words, uint64_t mask, const char *(*name)(uint32_t value));
void words_add_range(struct words *words, const struct refused_record *record, const char *argument);
/* Objects of which the process has as many as may be. */
void words_add_count(struct words *words, const struct refused_record *record, const char *what);
void words_add_invalid(struct words *words, const struct refused_record *record, const char *argument);
void words_add_unsupported(struct words *words, const struct refused_record *record, const char *argument);

#endif
