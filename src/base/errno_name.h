/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef BASE_ERRNO_NAME_H
#define BASE_ERRNO_NAME_H

/* Numbers from here on have no name. */
#define ERRNO_NAMES_END 134

/* "EINVAL"; NULL: a number that is none, or that has no name here. strerrorname_np() came with glibc 2.32. */
const char *errno_name(int error);

#endif
