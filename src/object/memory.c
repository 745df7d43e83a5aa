/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What hardware learns by pinning: is the memory there (verbs-contract §4.1)? We pin nothing and ask the
 * kernel for its mappings. Nothing is remembered, since they change without our knowledge.
 *
 * Measured (Linux 6.18): opening /proc/self/maps and one PROCMAP_QUERY take 1.3 us, each further mapping 0.2
 * us; reading the file takes 7.5 us in a small process and grows with it. mincore() costs a byte per page,
 * madvise() and msync() know nothing of write permission. */
#include "object/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/types.h"

/* linux/fs.h since Linux 6.11; newer than the headers we build against. */
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
#define PROCMAP_QUERY_IOCTL   _IOWR('f', 17, struct procmap_query)
#define PROCMAP_VMA_READABLE  1u
#define PROCMAP_VMA_WRITABLE  2u
#define PROCMAP_QUERY_MINIMUM 104
_Static_assert(sizeof(struct procmap_query) == PROCMAP_QUERY_MINIMUM, "layout of the kernel");

/* A walk along the range: each mapping must continue where the one before ended. */
struct walk {
    uintptr_t next, end; /* not covered yet */
    bool write;
};

enum step { STEP_ON, STEP_DONE, STEP_FAULT };

static enum step walk_mapping(struct walk *walk, uintptr_t start, uintptr_t end, bool readable, bool writable)
{
    if (start > walk->next || !readable || (walk->write && !writable))
        return STEP_FAULT;
    walk->next = end;
    return end >= walk->end ? STEP_DONE : STEP_ON;
}

/* 0, -EFAULT, or another error when the kernel cannot be asked like this. */
static int check_by_query(int fd, struct walk *walk)
{
    enum step step = STEP_ON;

    while (step == STEP_ON) {
        struct procmap_query query = {.size = sizeof(query), .query_addr = walk->next};

        if (ioctl(fd, PROCMAP_QUERY_IOCTL, &query) != 0)
            return errno == ENOENT ? -EFAULT : -errno;
        step = walk_mapping(walk, query.vma_start, query.vma_end, query.vma_flags & PROCMAP_VMA_READABLE,
                            query.vma_flags & PROCMAP_VMA_WRITABLE);
    }
    return step == STEP_DONE ? 0 : -EFAULT;
}

/* One line: "start-end rwxp …"; what follows the flags is skipped. */
struct line {
    uintptr_t bound[2];
    unsigned field; /* 0, 1: bounds; 2: flags; 3: the rest */
    unsigned flag;
    bool readable, writable;
};

/* Returns true at the end of a line. */
static bool parse_character(struct line *line, char c)
{
    if (c == '\n')
        return true;
    if (line->field < 2) {
        if (c == '-' || c == ' ')
            line->field++;
        else
            line->bound[line->field] =
                line->bound[line->field] << 4 | (uintptr_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    } else if (line->field == 2) {
        if (line->flag == 0)
            line->readable = c == 'r';
        else if (line->flag == 1)
            line->writable = c == 'w';
        if (++line->flag == 4)
            line->field++;
    }
    return false;
}

static int check_by_reading(int fd, struct walk *walk)
{
    char buffer[4096];
    struct line line = {0};
    enum step step = STEP_ON;
    ssize_t length;

    while ((length = syscall(SYS_read, fd, buffer, sizeof(buffer))) > 0) {
        for (ssize_t i = 0; i < length; i++) {
            if (!parse_character(&line, buffer[i]))
                continue;
            if (line.bound[1] > walk->next)
                step = walk_mapping(walk, line.bound[0], line.bound[1], line.readable, line.writable);
            if (step != STEP_ON)
                return step == STEP_DONE ? 0 : -EFAULT;
            line = (struct line){0};
        }
    }
    return length < 0 ? -errno : -EFAULT;
}

static int check(uintptr_t address, size_t length, bool write, bool by_query)
{
    struct walk walk = {.next = address, .end = address + length, .write = write};
    int saved = errno, error = -ENOTTY, fd;

    if (length == 0)
        return 0;
    /* By raw system calls: open() and close() of libc are cancellation points. */
    fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (by_query)
            error = check_by_query(fd, &walk);
        if (error != 0 && error != -EFAULT) {
            walk.next = address;
            error = check_by_reading(fd, &walk);
        }
        syscall(SYS_close, fd);
    }
    if (error != 0 && error != -EFAULT) {
        /* No /proc, or no descriptor left: whether it is mapped can be told, whether it is writable not.
         * MS_ASYNC does nothing but look for the mappings. */
        uintptr_t page = address & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);

        error = syscall(SYS_msync, page, walk.end - page, MS_ASYNC) == 0 ? 0 : -EFAULT;
    }
    errno = saved;
    return error;
}

int memory_check(uintptr_t address, size_t length, bool write)
{
    return check(address, length, write, true);
}

int memory_check_by_text(uintptr_t address, size_t length, bool write)
{
    return check(address, length, write, false);
}
