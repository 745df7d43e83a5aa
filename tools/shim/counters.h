/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Counter files of a port, made when a program opens them. */
#ifndef SHIM_COUNTERS_H
#define SHIM_COUNTERS_H

#include <stdio.h>

/* path: as redirect_path() has returned it. A descriptor of a file that says what the counter is now; -1: it is none
 * of these files, or no number can be had: then the file in the tree is opened, which says that there is none. errno
 * is kept. */
int counters_open(const char *path, int flags);
FILE *counters_fopen(const char *path, const char *mode);

#endif
