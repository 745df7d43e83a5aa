/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef TESTS_SUPPORT_NETWORK_H
#define TESTS_SUPPORT_NETWORK_H

#include <stdbool.h>

/* Moves the process, which must have one thread, into a network namespace of its own in which lo is up. An
 * ordinary user gets a user namespace for that, in which it is the same user and may do no more than before.
 * false with errno: the machine does not allow it, and everything is as it was. */
bool own_network(void);

#endif
