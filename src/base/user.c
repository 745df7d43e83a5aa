/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/user.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "base/event.h"

#define OVERFLOW_ID 65534u

/* path: of a map in our user namespace (user_namespaces(7)). */
static bool all_are_mapped(const char *path)
{
    char map[128];
    unsigned long inside, outside, count;
    int saved = errno, fd = fd_own(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t length = -1;

    if (fd >= 0) {
        length = read(fd, map, sizeof(map) - 1);
        fd_close(fd);
    }
    errno = saved;
    map[length < 0 ? 0 : length] = '\0';
    return sscanf(map, "%lu %lu %lu", &inside, &outside, &count) == 3 && inside == 0 && count == UINT32_MAX;
}

bool user_is_known(uid_t uid)
{
    return uid != OVERFLOW_ID || all_are_mapped("/proc/self/uid_map");
}

bool group_is_known(gid_t gid)
{
    return gid != OVERFLOW_ID || all_are_mapped("/proc/self/gid_map");
}

bool user_is_own(uid_t uid)
{
    return uid == geteuid() && user_is_known(uid);
}
