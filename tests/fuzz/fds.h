/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Descriptors that are only numbers, for targets whose system calls are simulated. Each has an owner, a number above
 * 0 of the target, until it is closed: once. In place of base/event.h's functions for descriptors. */
#ifndef TESTS_FUZZ_FDS_H
#define TESTS_FUZZ_FDS_H

#include <string.h>

#include "base/event.h"
#include "fuzz.h"

#define FDS_MOST  2048
#define FDS_FIRST 5000

static uint8_t fds_owners[FDS_MOST]; /* 0: closed */
static unsigned fds_made;

static inline void fds_reset(void)
{
    memset(fds_owners, 0, sizeof(fds_owners));
    fds_made = 0;
}

static inline int fds_make(uint8_t owner)
{
    require(fds_made < FDS_MOST);
    fds_owners[fds_made] = owner;
    return FDS_FIRST + (int)fds_made++;
}

static inline unsigned fds_index(int fd)
{
    require(fd >= FDS_FIRST && fd < FDS_FIRST + (int)fds_made);
    return (unsigned)(fd - FDS_FIRST);
}

static inline uint8_t fds_owner(int fd)
{
    return fds_owners[fds_index(fd)];
}

static inline void fds_end(int fd)
{
    require(fds_owner(fd));
    fds_owners[fds_index(fd)] = 0;
}

static inline void fds_give(int fd, uint8_t from, uint8_t to)
{
    require(fds_owner(fd) == from);
    fds_owners[fds_index(fd)] = to;
}

static inline unsigned fds_count(uint8_t owner)
{
    unsigned count = 0;

    for (unsigned i = 0; i < fds_made; i++)
        count += fds_owners[i] == owner;
    return count;
}

int fd_own(int fd)
{
    return fd;
}

void fd_close(int fd)
{
    if (fd >= 0)
        fds_end(fd);
}

#endif
