/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Where our own files are, in a checkout's build directory or installed, found from /proc/self/exe: so a
 * moved or DESTDIR'd tree works. */
#ifndef SOFTHCA_PLACE_H
#define SOFTHCA_PLACE_H

#include <limits.h>

struct place {
    char directory[PATH_MAX]; /* goes in front of LD_LIBRARY_PATH */
    char verbs[PATH_MAX];     /* directory/libibverbs.so.1 */
    char shim[PATH_MAX];      /* libsofthca-shim.so */
    char watch[PATH_MAX];     /* libsofthca-watch.so, which some builds lack */
};

/* 0, or -errno with a sentence on stderr. */
int place_find(struct place *ret);

#endif
