/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What marks a function as one of libibverbs' names. abi/libibverbs.map gives it its version; a name that is
 * missing there stays local, a name that is missing here does not link. */
#ifndef FRONT_VERBS_EXPORT_H
#define FRONT_VERBS_EXPORT_H

#define VERBS_EXPORT __attribute__((visibility("default")))

#endif
