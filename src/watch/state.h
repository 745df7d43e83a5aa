/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of src/watch share among themselves. */
#ifndef WATCH_STATE_H
#define WATCH_STATE_H

#include "watch/table.h"
#include "watch/watch.h"

/* NULL: a kind whose destroy does not block. */
struct provenance_record *watched_provenance(const struct watched *object);

void objects_after_fork_in_child(void);
void work_after_fork_in_child(void);
void destroy_after_fork_in_child(void);
void events_after_fork_in_child(void);

#endif
