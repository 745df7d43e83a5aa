/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/processors.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"

/* proc_loadavg(5): three averages, then the threads that run, a slash, and all threads. */
bool loadavg_allows(const char *text, long processors)
{
    const char *slash = strchr(text, '/'), *running = slash;
    long count;

    while (running && running > text && running[-1] != ' ')
        running--;
    count = running ? strtol(running, NULL, 10) : 0;
    return count > 0 && count <= processors;
}

bool processor_is_free(void)
{
    cpu_set_t allowed;
    char text[128];

    /* A machine with more processors than the set has room for: EINVAL. */
    return sched_getaffinity(0, sizeof(allowed), &allowed) == 0 &&
           fd_read_text("/proc/loadavg", text, sizeof(text)) > 0 && loadavg_allows(text, CPU_COUNT(&allowed));
}
