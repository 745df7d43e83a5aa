/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the kernel says is mapped in this process: /proc/self/maps, one mapping at a time and in ascending
 * order.
 *
 * Measured (Linux 6.18): opening the file and one PROCMAP_QUERY take 1.3 us, each further mapping 0.2 us;
 * reading the file takes 7.5 us in a small process and grows with it. Before Linux 6.11 it has to be read. */
#ifndef BASE_MAPS_H
#define BASE_MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mapping {
    uintptr_t start, end;
    bool readable, writable, executable, shared;
    /* Of the file behind it; anonymous private memory has none: all 0. */
    uint32_t device_major, device_minor;
    uint64_t inode, offset;
};

struct maps {
    int fd;
    bool by_query;
    /* Reading: the unread rest of the buffer, the last line that was read (end 0: none), and where the one
     * before it ended. */
    unsigned at, filled;
    struct mapping last;
    uintptr_t before;
    char buffer[4096];
};

/* 0 or -errno. The descriptor may stay open; it shows the process as it is, not as it was. */
int maps_open(struct maps *maps);
/* The way without PROCMAP_QUERY; for tests. */
int maps_open_text(struct maps *maps);
void maps_close(struct maps *maps);
/* The mapping that contains the address, or the first behind it. 0; -ENOENT: there is none; another -errno:
 * the kernel cannot be asked. Reading starts again from the top when the address is not behind the one
 * before, so ask in ascending order. */
int maps_find(struct maps *maps, uintptr_t address, struct mapping *ret_mapping);
/* The same from the top: nothing that was read earlier is believed. */
int maps_find_now(struct maps *maps, uintptr_t address, struct mapping *ret_mapping);
/* The name of the file, or what the kernel writes there instead, of the mapping that starts at `start`.
 * Returns its length, 0 for none; the name is cut off at size - 1. */
size_t maps_name(uintptr_t start, char *ret_name, size_t size);

#endif
