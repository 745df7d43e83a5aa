/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The directory that the path shim shows as /sys/class/infiniband and /dev/infiniband.
 *
 * `softhca run` replaces itself by the program, so that pid, signals and job control are the program's own;
 * then no process is left to remove a temporary directory. Therefore the tree is named by a hash of its content
 * and stays: every run of this user on an unchanged machine uses the same one, and missing files (removed by a
 * cleaner of /tmp) are written again. It shows the interfaces at the time of the run.
 */
#ifndef SOFTHCA_TREE_H
#define SOFTHCA_TREE_H

#include <limits.h>

#include "adapters.h"
#include "manifest.h"
#include "stats/stats.h"

/* What the tree has below sys and dev. ports: counters of devices by their name, those of others are 0; NULL: none is
 * known. */
void tree_describe(struct manifest *manifest, const struct adapters *adapters,
                   const struct ledger_port *ports, unsigned count);
/* Writes the tree if it is not there; ret_root needs PATH_MAX. 0, or -errno with a sentence in `why`. */
int tree_publish(const struct adapters *adapters, char *ret_root, char *why, size_t why_size);

#endif
