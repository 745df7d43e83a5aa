/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef TESTS_BEHAVIOUR_PLAIN_COUNT_H
#define TESTS_BEHAVIOUR_PLAIN_COUNT_H

#include <stdbool.h>
#include <stdint.h>

/* How many requests of a QP of this process were plain, as its published segment says. */
bool plain_requests_of(uint32_t qpn, uint32_t *ret_count);
/* The same of the requests of its peer. */
bool plain_receives_of(uint32_t qpn, uint32_t *ret_count);

#endif
