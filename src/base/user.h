/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef BASE_USER_H
#define BASE_USER_H

#include <stdbool.h>
#include <sys/types.h>

/* True if the number names one user. 65534 does not where some users have no number in our user namespace (it is the
 * overflow uid), and does where all have one. */
bool user_is_known(uid_t uid);
/* So for groups, whose overflow number is the same. */
bool group_is_known(gid_t gid);
/* True if that is certainly the user of this process. */
bool user_is_own(uid_t uid);

#endif
