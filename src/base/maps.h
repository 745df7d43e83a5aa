/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The mappings of a process (/proc/PID/maps), one at a time and in ascending order.
 *
 * Measured (Linux 6.18): opening the file and one PROCMAP_QUERY take 1.3 us, each further mapping 0.2 us;
 * reading the file takes 7.5 us in a small process, and more in larger ones. Before Linux 6.11 the file is read. */
#ifndef BASE_MAPS_H
#define BASE_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct mapping {
    uintptr_t start, end;
    bool readable, writable, executable, shared;
    /* Of the mapped file; all 0 for anonymous private memory. */
    uint32_t device_major, device_minor;
    uint64_t inode, offset;
};

struct maps {
    int fd;
    bool by_query;
    uint64_t left; /* bytes that may be read */
    /* Without PROCMAP_QUERY: the unread rest of the buffer, the last line (end 0: none), and the end of the mapping
     * before that. */
    unsigned at, filled;
    struct mapping last;
    uintptr_t before;
    char buffer[4096];
};

/* 0 or -errno. The descriptor may stay open; it shows the current mappings. */
int maps_open(struct maps *maps);
/* Of another process. Reads no more than its first 16 MiB where PROCMAP_QUERY is not available, because the process
 * chooses how long its list is. */
int maps_open_of(struct maps *maps, pid_t pid);
/* Reads the file even where PROCMAP_QUERY is available; for tests. */
int maps_open_text(struct maps *maps);
void maps_close(struct maps *maps);
/* The mapping that contains the address, or the first one behind it. 0; -ENOENT: none; another -errno: the file
 * cannot be read. Callers pass ascending addresses, because a lower one restarts reading from the top. */
int maps_find(struct maps *maps, uintptr_t address, struct mapping *ret_mapping);
/* The same, restarting from the top, so that mappings that have changed since are seen. */
int maps_find_now(struct maps *maps, uintptr_t address, struct mapping *ret_mapping);
/* Is each page of [first, end) mapped and readable, and writable if `write`? 0; -EFAULT: which one is not is noted
 * (base/refusal.h); another -errno: the file cannot be read. *ret_first: the mapping of the first byte, if it is not
 * NULL. */
int maps_check(struct maps *maps, uintptr_t first, uintptr_t end, bool write, struct mapping *ret_first);
/* The name of the mapping that starts at `start`: a path, or the kernel's name in brackets. Returns its length, 0:
 * none; truncated to size - 1. */
size_t maps_name(uintptr_t start, char *ret_name, size_t size);

#endif
