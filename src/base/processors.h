/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef BASE_PROCESSORS_H
#define BASE_PROCESSORS_H

#include <stdbool.h>

/* Has each thread of the machine that runs at this moment, the calling one included, a processor among those that the
 * calling thread may use? Then nobody waits for the one that it is on. Some microseconds. False also if the kernel
 * does not say. */
bool processor_is_free(void);
/* Does /proc/loadavg say that at most so many threads run? */
bool loadavg_allows(const char *text, long processors);

#endif
