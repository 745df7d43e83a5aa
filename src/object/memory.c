/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What hardware learns by pinning: is the memory there (verbs-contract §4.1)? We pin nothing and ask the
 * kernel for its mappings. Nothing is remembered, since they change without our knowledge.
 *
 * mincore() costs a byte per page, madvise() and msync() know nothing of write permission. */
#include "object/memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/maps.h"
#include "base/sys.h"

/* linux/mman.h has them since 5.14 */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

/* Each mapping must continue where the one before ended. 0, -EFAULT, or another error when the kernel cannot
 * be asked like this. */
static int walk(struct maps *maps, uintptr_t next, uintptr_t end, bool write)
{
    while (next < end) {
        struct mapping mapping;
        int error = maps_find(maps, next, &mapping);

        if (error)
            return error == -ENOENT ? -EFAULT : error;
        if (mapping.start > next || !mapping.readable || (write && !mapping.writable))
            return -EFAULT;
        next = mapping.end;
    }
    return 0;
}

static int check(uintptr_t address, size_t length, bool write, int (*open_way)(struct maps *maps))
{
    struct maps maps;
    int saved = errno, error;

    if (length == 0)
        return 0;
    error = open_way(&maps);
    if (!error) {
        error = walk(&maps, address, address + length, write);
        maps_close(&maps);
    }
    if (error != 0 && error != -EFAULT) {
        /* No /proc, or no descriptor left: whether it is mapped can be told, whether it is writable not.
         * MS_ASYNC does nothing but look for the mappings. */
        uintptr_t page = address & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);

        error = syscall(SYS_msync, page, address + length - page, MS_ASYNC) == 0 ? 0 : -EFAULT;
    }
    errno = saved;
    return error;
}

int memory_check(uintptr_t address, size_t length, bool write)
{
    return check(address, length, write, maps_open);
}

int memory_check_by_text(uintptr_t address, size_t length, bool write)
{
    return check(address, length, write, maps_open_text);
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
    /* A kernel before 5.14, or a mapping of a device: there is nothing to bring in. */
    return memory_check(address, length, write) == 0;
}
