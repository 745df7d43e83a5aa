/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What tools ask this process for (published/control_request.h), by subject. */
#ifndef ENGINE_CORE_CONTROL_H
#define ENGINE_CORE_CONTROL_H

#include <stddef.h>

#include "published/control_request.h"

/* local_ops.control, .control_ended. Helper thread, without locks. */
int control_decide(enum control_subject subject, int file, char *why, size_t size);
void control_end(enum control_subject subject);

#endif
