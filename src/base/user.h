/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef BASE_USER_H
#define BASE_USER_H

#include <stdbool.h>
#include <sys/types.h>

/* Is it one user's number? 65534 is nobody's in particular where some users have none (user namespaces), and
 * a user like others where all have one. */
bool user_is_known(uid_t uid);

#endif
