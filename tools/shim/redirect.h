/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Which paths are ours, and where they lie: no allocation, no lock, errno untouched, usable before main(). */
#ifndef SHIM_REDIRECT_H
#define SHIM_REDIRECT_H

#include <stdbool.h>
#include <stddef.h>

/* Long enough for the root and the deepest sysfs name; what is longer is not one of our paths and passes
 * through. */
#define REDIRECT_MAX 1024

enum redirect_kind { REDIRECT_NONE, REDIRECT_SYSFS, REDIRECT_DEVICE };

struct redirect {
    enum redirect_kind kind;
    char path[REDIRECT_MAX];
};

/* The directory that stands for / where ours lie; NULL: nothing is redirected. */
const char *redirect_root(void);

/* Returns the path to hand to libc: `path` itself, or ret->path. */
const char *redirect_path(const char *path, struct redirect *ret);

/* The other direction, for what realpath() found: cuts the root off `path`, in place. */
void redirect_hide_root(char *path);

#endif
