/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a process has told its user of itself: programs retry what is refused, so a topic is told once, and not more
 * than some of a kind. The caller has a lock. */
#ifndef EXPLAIN_TOLD_ONCE_H
#define EXPLAIN_TOLD_ONCE_H

#include <stdbool.h>
#include <stdint.h>

#define TOLD_TEXT_LIMIT (256u << 10) /* bytes of one text */
#define TOLD_OF_A_KIND  32u
#define TOLD_TOPICS     64u
#define TOLD_KINDS_MAX  32u

struct told_once {
    uint64_t topics[TOLD_TOPICS]; /* call sites, or hashes of the first line */
    unsigned next, of_kind[TOLD_KINDS_MAX];
};

/* False: it was told before. */
bool told_once_topic(struct told_once *told, uint64_t topic);
/* False: TOLD_OF_A_KIND were told before. *ret_last: no text of this kind follows. */
bool told_once_kind(struct told_once *told, unsigned kind, bool *ret_last);

#endif
