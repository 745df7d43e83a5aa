/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the specification calls values; "?" for what is none. */
#ifndef EXPLAIN_NAMES_H
#define EXPLAIN_NAMES_H

#include <stdint.h>

#include "published/counters.h"

const char *name_qp_type(uint32_t type);
const char *name_qp_state(uint32_t state);
const char *name_status(uint32_t status);
const char *name_send_opcode(uint32_t opcode);
const char *name_cm_event(uint32_t type);
const char *name_id_state(uint32_t state);
const char *name_path(uint32_t kind);  /* in JSON and labels */
const char *path_words(uint32_t kind); /* in text */
/* Why it is not "mapped"; NULL: there is nothing to be said. */
const char *name_path_why(uint32_t why);
const char *name_sender_wait(uint32_t wait);
/* "EINVAL" */
const char *name_errno(uint32_t error);

/* Counters of the network, in the order of struct network_counters. told: the words of one that is told only if it is
 * not 0; NULL: none. */
#define NETWORK_COUNTERS (sizeof(struct network_counters) / sizeof(uint64_t))
struct network_name {
    const char *name, *help, *told;
};
extern const struct network_name network_names[NETWORK_COUNTERS];

#endif
