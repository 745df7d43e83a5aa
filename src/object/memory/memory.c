/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Is memory mapped (verbs.md §4.1)? Drivers learn that by pinning; SoftHCA pins nothing and reads the kernel's
 * list of mappings each time, because mappings change without notice.
 *
 * Not by mincore(), which takes a byte per page, nor by madvise() and msync(), which do not check for write
 * permission. */
#include "object/memory/memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/maps.h"
#include "base/newer_kernel.h"
#include "base/sys.h"

static _Atomic bool expects_copies;

void memory_expect_copies(void)
{
    if (!atomic_load_explicit(&expects_copies, memory_order_relaxed))
        atomic_store_explicit(&expects_copies, true, memory_order_relaxed);
}

bool memory_expects_copies(void)
{
    return atomic_load_explicit(&expects_copies, memory_order_relaxed);
}

static int walk(struct maps *maps, uintptr_t first, uintptr_t end, bool write, struct memory_file *file)
{
    struct mapping mapping = {0};
    int error = maps_check(maps, first, end, write, file ? &mapping : NULL);

    if (!error && mapping.shared && mapping.end >= end)
        *file = (struct memory_file){mapping.device_major, mapping.device_minor, mapping.inode,
                                     mapping.offset + (first - mapping.start)};
    return error;
}

static int check(uintptr_t address, size_t length, bool write, struct memory_file *file,
                 int (*open_way)(struct maps *maps))
{
    struct maps maps;
    int saved = errno, error;

    if (length == 0)
        return 0;
    error = open_way(&maps);
    if (!error) {
        error = walk(&maps, address, address + length, write, file);
        maps_close(&maps);
    }
    if (error != 0 && error != -EFAULT) {
        /* No /proc, or no free descriptor: msync() checks that the range is mapped, but not that it is writable.
         * MS_ASYNC has no other effect. */
        uintptr_t page = address & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);

        error = syscall(SYS_msync, page, address + length - page, MS_ASYNC) == 0 ? 0 : -EFAULT;
    }
    errno = saved;
    return error;
}

int memory_check(uintptr_t address, size_t length, bool write)
{
    return check(address, length, write, NULL, maps_open);
}

int memory_check_by_text(uintptr_t address, size_t length, bool write)
{
    return check(address, length, write, NULL, maps_open_text);
}

int memory_check_file(uintptr_t address, size_t length, bool write, struct memory_file *ret_file)
{
    *ret_file = (struct memory_file){.inode = 0};
    return check(address, length, write, ret_file, maps_open);
}

/* --- a second mapping ----------------------------------------------------------------------------------- */

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Bytes from the start of the page to the end of the last one. */
static size_t span(uint64_t in_page, size_t length)
{
    return (size_t)(in_page + length + page_size() - 1) & ~(page_size() - 1);
}

static bool shows(const struct mapping *mapping, const struct memory_file *file, size_t length, bool write)
{
    return mapping->shared && mapping->readable && (mapping->writable || !write) &&
           mapping->inode == file->inode && mapping->device_major == file->device_major &&
           mapping->device_minor == file->device_minor && file->offset >= mapping->offset &&
           file->offset - mapping->offset < mapping->end - mapping->start &&
           length <= mapping->end - mapping->start - (file->offset - mapping->offset);
}

/* The address where this process has the part of the file mapped; 0: nowhere. */
static uintptr_t find_file(const struct memory_file *file, size_t length, bool write)
{
    struct mapping mapping;
    uintptr_t found = 0;
    struct maps maps;

    if (maps_open(&maps) != 0)
        return 0;
    for (uintptr_t next = 0; !found && maps_find(&maps, next, &mapping) == 0; next = mapping.end) {
        if (shows(&mapping, file, length, write))
            found = mapping.start + (uintptr_t)(file->offset - mapping.offset);
    }
    maps_close(&maps);
    return found;
}

int memory_alias(const struct memory_file *file, size_t length, bool write, char **ret_at)
{
    uint64_t in_page = file->offset & (page_size() - 1);
    struct memory_file mapped;
    uintptr_t found = find_file(file, length, write);
    int error = 0;
    char *base;

    if (!found)
        return -ENOENT;
    /* With an old length of 0 mremap() makes a second mapping of shared memory. */
    base = sys_mremap((char *)found - in_page, 0, span(in_page, length), MREMAP_MAYMOVE, NULL, &error);
    if (!base)
        return -EOPNOTSUPP;
    *ret_at = base + in_page;
    /* Another thread may have mapped something else there after find_file(). */
    error = memory_check_file((uintptr_t)*ret_at, length, write, &mapped);
    if (error || mapped.inode != file->inode || mapped.offset != file->offset ||
        mapped.device_major != file->device_major || mapped.device_minor != file->device_minor) {
        sys_munmap(base, span(in_page, length));
        return -ENOENT;
    }
    return 0;
}

void memory_unalias(char *at, size_t length)
{
    uint64_t in_page = (uintptr_t)at & (page_size() - 1);

    sys_munmap(at - in_page, span(in_page, length));
}

bool memory_reach(uint64_t address, uint64_t length, bool write)
{
    uintptr_t page_size = (uintptr_t)sysconf(_SC_PAGESIZE), page = address & ~(page_size - 1);
    size_t size = (size_t)(address - page + length + page_size - 1) & ~(page_size - 1);
    int error;

    do {
        error = sys_madvise((void *)page, size, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    } while (error == -EINTR || error == -EAGAIN);
    if (error != -EINVAL)
        return error == 0;
    /* A kernel before 5.14, or a mapping of a device, which has no pages to populate. */
    return memory_check(address, length, write) == 0;
}
