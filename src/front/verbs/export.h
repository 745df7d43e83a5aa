/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Marks an exported function of libibverbs. abi/libibverbs.map gives the symbol its version. A name that is missing
 * in the map stays local; a name of the map without a definition fails to link. */
#ifndef FRONT_VERBS_EXPORT_H
#define FRONT_VERBS_EXPORT_H

#define VERBS_EXPORT __attribute__((visibility("default")))

#endif
