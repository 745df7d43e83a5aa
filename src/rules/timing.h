/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Times as QP attributes encode them (verbs.md §3.12, IBA tables 45 and 140). */
#ifndef RULES_TIMING_H
#define RULES_TIMING_H

#include "base/types.h"

/* Local ACK timeout: 4.096 us * 2^code; code 0: infinite (NS_NEVER). */
ns_t timing_ack_timeout(uint8_t code);
/* RNR NAK timer; code 0 is the longest, 655.36 ms. */
ns_t timing_rnr(uint8_t code);

#endif
