/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "mappings.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decode.h"

#define RANGES_MAX 4096u
#define AGE_MAX    4096u /* questions; other threads map meanwhile */

static struct {
    uint64_t from, to;
} ranges[RANGES_MAX]; /* in order of addresses */
static unsigned range_count, age;
static bool known, too_many;

void mappings_forget(void)
{
    known = false;
}

static void note(const char *line)
{
    char *end;
    const uint64_t from = strtoull(line, &end, 16), to = strtoull(end + 1, &end, 16);

    if (end[4] != 's')
        return;
    if (range_count && ranges[range_count - 1].to == from) {
        ranges[range_count - 1].to = to;
        return;
    }
    too_many |= range_count == RANGES_MAX;
    if (too_many)
        return;
    ranges[range_count].from = from;
    ranges[range_count++].to = to;
}

static void read_mappings(pid_t pid)
{
    static char text[65536];
    char name[64];
    size_t have = 0;
    ssize_t got;
    int fd;

    snprintf(name, sizeof(name), "/proc/%d/maps", pid);
    range_count = age = 0;
    too_many = false;
    fd = open(name, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && (got = read(fd, text + have, sizeof(text) - 1 - have)) > 0) {
        char *line = text, *end;

        have += (size_t)got;
        text[have] = '\0';
        while ((end = memchr(line, '\n', have - (size_t)(line - text)))) {
            note(line);
            line = end + 1;
        }
        have -= (size_t)(line - text);
        memmove(text, line, have);
    }
    if (fd >= 0)
        close(fd);
    known = true;
}

static bool is_shared(uint64_t from, uint64_t to)
{
    unsigned low = 0, high = range_count;

    while (low < high) { /* the first range that ends behind `from` */
        const unsigned middle = (low + high) / 2;

        if (ranges[middle].to > from)
            high = middle;
        else
            low = middle + 1;
    }
    return low < range_count && ranges[low].from < to;
}

bool mappings_others_see(pid_t pid, const struct access_of *access)
{
    if (access->access == ACCESS_NONE)
        return false;
    if (access->access == ACCESS_ANYWHERE)
        return true;
    if (!known || ++age > AGE_MAX)
        read_mappings(pid);
    if (too_many)
        return true;
    /* Also backwards, as with the direction flag. */
    if (access->access == ACCESS_STRING)
        return is_shared(access->address - access->length, access->address + access->length);
    return is_shared(access->address, access->address + DECODE_STORE_MAX);
}
