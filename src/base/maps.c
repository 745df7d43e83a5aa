/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/maps.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/sys.h"
#include "base/types.h"

/* From linux/fs.h of Linux 6.11; the build headers are older. */
struct procmap_query {
    uint64_t size;
    uint64_t query_flags;
    uint64_t query_addr;
    uint64_t vma_start, vma_end;
    uint64_t vma_flags;
    uint64_t vma_page_size, vma_offset, inode;
    uint32_t dev_major, dev_minor;
    uint32_t vma_name_size, build_id_size;
    uint64_t vma_name_addr, build_id_addr;
};
#define OTHERS_TEXT_MAX          (16u << 20)
#define PROCMAP_QUERY_IOCTL      _IOWR('f', 17, struct procmap_query)
#define PROCMAP_VMA_READABLE     0x01u
#define PROCMAP_VMA_WRITABLE     0x02u
#define PROCMAP_VMA_EXECUTABLE   0x04u
#define PROCMAP_VMA_SHARED       0x08u
#define PROCMAP_COVERING_OR_NEXT 0x10u
#define PROCMAP_QUERY_MINIMUM    104
_Static_assert(sizeof(struct procmap_query) == PROCMAP_QUERY_MINIMUM, "layout of the kernel");

/* Raw system calls throughout, because open(), read() and close() of libc are cancellation points. */
static int open_maps(struct maps *maps, const char *path, bool by_query)
{
    long fd = sys_open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return (int)fd;
    maps->fd = (int)fd;
    maps->by_query = by_query;
    maps->left = UINT64_MAX;
    maps->at = maps->filled = 0;
    maps->last = (struct mapping){0};
    maps->before = 0;
    return 0;
}

int maps_open(struct maps *maps)
{
    return open_maps(maps, "/proc/self/maps", true);
}

int maps_open_of(struct maps *maps, pid_t pid)
{
    char path[32];
    int error;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    error = open_maps(maps, path, true);
    maps->left = OTHERS_TEXT_MAX;
    return error;
}

int maps_open_text(struct maps *maps)
{
    return open_maps(maps, "/proc/self/maps", false);
}

void maps_close(struct maps *maps)
{
    sys_close(maps->fd);
    maps->fd = -1;
}

static int find_by_query(const struct maps *maps, uintptr_t address, struct mapping *ret)
{
    struct procmap_query query = {
        .size = sizeof(query), .query_flags = PROCMAP_COVERING_OR_NEXT, .query_addr = address};
    int error = sys_ioctl(maps->fd, PROCMAP_QUERY_IOCTL, &query);

    if (error)
        return error;
    *ret = (struct mapping){
        .start = query.vma_start,
        .end = query.vma_end,
        .readable = query.vma_flags & PROCMAP_VMA_READABLE,
        .writable = query.vma_flags & PROCMAP_VMA_WRITABLE,
        .executable = query.vma_flags & PROCMAP_VMA_EXECUTABLE,
        .shared = query.vma_flags & PROCMAP_VMA_SHARED,
        .device_major = query.dev_major,
        .device_minor = query.dev_minor,
        .inode = query.inode,
        .offset = query.vma_offset,
    };
    return 0;
}

/* --- reading -------------------------------------------------------------------------------------------- */

/* One line: "start-end rwxp offset major:minor inode   name"; the name is skipped. */
enum field {
    FIELD_START,
    FIELD_END,
    FIELD_FLAGS,
    FIELD_OFFSET,
    FIELD_MAJOR,
    FIELD_MINOR,
    FIELD_INODE,
    FIELD_REST
};

struct line {
    enum field field;
    unsigned flag;
    uint64_t number;
    struct mapping mapping;
};

static void end_number(struct line *line)
{
    struct mapping *mapping = &line->mapping;

    switch (line->field) {
    case FIELD_START:
        mapping->start = line->number;
        break;
    case FIELD_END:
        mapping->end = line->number;
        break;
    case FIELD_OFFSET:
        mapping->offset = line->number;
        break;
    case FIELD_MAJOR:
        mapping->device_major = (uint32_t)line->number;
        break;
    case FIELD_MINOR:
        mapping->device_minor = (uint32_t)line->number;
        break;
    case FIELD_INODE:
        mapping->inode = line->number;
        break;
    case FIELD_FLAGS:
    case FIELD_REST:
        break;
    }
    line->number = 0;
    line->field++;
}

static void parse_flag(struct line *line, char c)
{
    struct mapping *mapping = &line->mapping;

    switch (line->flag++) {
    case 0:
        mapping->readable = c == 'r';
        break;
    case 1:
        mapping->writable = c == 'w';
        break;
    case 2:
        mapping->executable = c == 'x';
        break;
    case 3:
        mapping->shared = c == 's';
        break;
    default:
        break;
    }
}

/* Returns true at the end of a line. */
static bool parse_character(struct line *line, char c)
{
    uint64_t base = line->field == FIELD_INODE ? 10 : 16;

    if (c == '\n') {
        if (line->field == FIELD_INODE)
            end_number(line);
        return true;
    }
    if (line->field == FIELD_REST)
        return false;
    if (c == '-' && line->field != FIELD_FLAGS)
        end_number(line);
    else if (c == ' ' || c == ':')
        end_number(line);
    else if (line->field == FIELD_FLAGS)
        parse_flag(line, c);
    else
        line->number = line->number * base + (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    return false;
}

static void rewind_text(struct maps *maps)
{
    maps->at = maps->filled = 0;
    maps->last = (struct mapping){0};
    maps->before = 0;
    sys_lseek(maps->fd, 0, SEEK_SET);
}

/* The next line into maps->last: 0, -ENOENT at the end, or -errno. */
static int read_line(struct maps *maps)
{
    struct line line = {0};

    for (;;) {
        while (maps->at < maps->filled) {
            if (parse_character(&line, maps->buffer[maps->at++])) {
                maps->before = maps->last.end;
                maps->last = line.mapping;
                return 0;
            }
        }
        ssize_t length = maps->left ? sys_read(maps->fd, maps->buffer, sizeof(maps->buffer)) : -E2BIG;

        if (length <= 0)
            return length < 0 ? (int)length : -ENOENT;
        maps->left -= min_of(maps->left, (uint64_t)length);
        maps->at = 0;
        maps->filled = (unsigned)length;
    }
}

static int find_by_reading(struct maps *maps, uintptr_t address, struct mapping *ret)
{
    if (address < maps->before)
        rewind_text(maps);
    while (maps->last.end <= address) {
        int error = read_line(maps);

        if (error) {
            rewind_text(maps);
            return error;
        }
    }
    *ret = maps->last;
    return 0;
}

/* --- either way ----------------------------------------------------------------------------------------- */

int maps_find(struct maps *maps, uintptr_t address, struct mapping *ret_mapping)
{
    int saved = errno, error = -ENOTTY;

    if (maps->by_query) {
        error = find_by_query(maps, address, ret_mapping);
        if (error && error != -ENOENT)
            maps->by_query = false;
    }
    if (!maps->by_query)
        error = find_by_reading(maps, address, ret_mapping);
    errno = saved;
    return error;
}

int maps_find_now(struct maps *maps, uintptr_t address, struct mapping *ret_mapping)
{
    int saved = errno;

    if (!maps->by_query)
        rewind_text(maps);
    errno = saved;
    return maps_find(maps, address, ret_mapping);
}

size_t maps_name(uintptr_t start, char *ret_name, size_t size)
{
    char buffer[1024], *out = ret_name;
    struct line line = {0};
    long fd = sys_open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    bool named = false, done = false;
    ssize_t length;

    if (fd < 0 || !size)
        return 0;
    while (!done && (length = sys_read((int)fd, buffer, sizeof(buffer))) > 0) {
        for (ssize_t i = 0; i < length && !done; i++) {
            char c = buffer[i];

            if (line.field == FIELD_REST && line.mapping.start == start && c != '\n') {
                named |= c != ' ';
                if (named && (size_t)(out - ret_name) < size - 1)
                    *out++ = c;
            }
            if (parse_character(&line, c)) {
                done = line.mapping.start >= start;
                line = (struct line){0};
            }
        }
    }
    sys_close((int)fd);
    *out = '\0';
    return (size_t)(out - ret_name);
}
