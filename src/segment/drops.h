/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What no QP of the process takes, counted in the header of the published segment. */
#ifndef SEGMENT_DROPS_H
#define SEGMENT_DROPS_H

#include <stdbool.h>

#include "published/drops.h"

struct packet;

/* local: the sender is on this host. Any thread, any lock held. */
void stray_note(enum stray_reason reason, const struct packet *packet, bool local);
void strays_after_fork_in_child(void);

#endif
