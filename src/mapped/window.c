/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "mapped/window.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/newer_kernel.h"
#include "base/sys.h"
#include "base/types.h"
#include "mapped/keeper.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

static _Atomic uint32_t epoch;

size_t page_size(void)
{
    static _Atomic size_t known;
    size_t size = atomic_load_explicit(&known, memory_order_relaxed);

    if (unlikely(!size)) {
        size = (size_t)sysconf(_SC_PAGESIZE);
        atomic_store_explicit(&known, size, memory_order_relaxed);
    }
    return size;
}

size_t dense_chunk(void)
{
    return (size_t)(keeper.uffd_full || keeper.uffd < 0 ? 256 : 64) << 10;
}

int window_step(void)
{
    return keeper_fail_in && --keeper_fail_in == 0 ? -ENOMEM : 0;
}

int window_maps(struct maps *maps)
{
    return keeper_limits & KEEPER_READ_MAPS ? maps_open_text(maps) : maps_open(maps);
}

/* --- what is there ----------------------------------------------------------------------------------- */

#define PAGE_PRESENT (1ull << 63)
#define PAGE_SWAPPED (1ull << 62)
#define PAGE_GUARD   (1ull << 58) /* Linux 6.15; on older kernels the copy of such a page fails */

static uint64_t page_bits[SPARSE_CHUNK / 4096];
static size_t page_count;

int pages_read(uintptr_t address, size_t length)
{
    size_t size = length / page_size() * sizeof(page_bits[0]);
    ssize_t got =
        sys_pread(keeper.pagemap, page_bits, size, (off_t)(address / page_size() * sizeof(page_bits[0])));

    page_count = got > 0 ? (size_t)got / sizeof(page_bits[0]) : 0;
    if (got < 0)
        return (int)got;
    return (size_t)got == size ? 0 : -EFAULT;
}

static bool is_populated(size_t index)
{
    return page_bits[index] & (PAGE_PRESENT | PAGE_SWAPPED);
}

bool pages_next(size_t *at, size_t *ret_start, size_t *ret_length)
{
    size_t start = *at / page_size(), end;

    while (start < page_count && !is_populated(start))
        start++;
    if (start >= page_count)
        return false;
    for (end = start + 1; end < page_count && is_populated(end); end++) {
    }
    *ret_start = start * page_size();
    *ret_length = (end - start) * page_size();
    *at = end * page_size();
    return true;
}

bool pages_guarded(void)
{
    for (size_t i = 0; i < page_count; i++) {
        if (page_bits[i] & PAGE_GUARD)
            return true;
    }
    return false;
}

/* SEEK_HOLE would scan all pages up to the next hole, which may be gigabytes away: so one page at a time. */
bool data_next(int fd, uint64_t offset, size_t length, size_t *at, size_t *ret_start, size_t *ret_length)
{
    off_t limit = (off_t)(offset + length);
    off_t start = sys_lseek(fd, (off_t)(offset + *at), SEEK_DATA), end;

    if (start < 0 || start >= limit)
        return false;
    for (end = start + (off_t)page_size(); end < limit && sys_lseek(fd, end, SEEK_DATA) == end;
         end += (off_t)page_size()) {
    }
    *ret_start = (size_t)start - offset;
    *ret_length = (size_t)(end - start);
    *at = (size_t)end - offset;
    return true;
}

bool mapping_is_arena(const struct mapping *mapping, unsigned arena)
{
    return mapping->shared && mapping->inode == keeper.arena_inode[arena] &&
           mapping->device_major == major(keeper.arena_device) &&
           mapping->device_minor == minor(keeper.arena_device);
}

bool is_ours(struct maps *maps, uintptr_t address, unsigned arena, uint64_t offset, uintptr_t *ret_end,
             int *ret_protection)
{
    struct mapping mapping;

    if (maps_find_now(maps, address, &mapping) != 0 || mapping.start > address ||
        !mapping_is_arena(&mapping, arena) || mapping.offset + (address - mapping.start) != offset)
        return false;
    *ret_end = mapping.end;
    *ret_protection = (mapping.readable ? PROT_READ : 0) | (mapping.writable ? PROT_WRITE : 0) |
                      (mapping.executable ? PROT_EXEC : 0);
    return true;
}

bool is_private(struct maps *maps, uintptr_t address, size_t length, bool writable)
{
    uintptr_t next = address;
    struct mapping mapping;

    while (next < address + length) {
        if (maps_find_now(maps, next, &mapping) != 0 || mapping.start > next || mapping.shared ||
            mapping.inode || (writable && !mapping.writable))
            return false;
        next = mapping.end;
    }
    return true;
}

/* --- holding up -------------------------------------------------------------------------------------- */

int window_arm(uintptr_t address, size_t length, bool shared)
{
    struct uffdio_register request = {.range = {address, length}, .mode = UFFDIO_REGISTER_MODE_MISSING};

    /* With a full userfaultfd, private pages are moved away, so that all are missing. */
    if (!shared)
        request.mode |= keeper.uffd_full ? 0 : UFFDIO_REGISTER_MODE_WP;
    else
        request.mode |= keeper.can_protect ? UFFDIO_REGISTER_MODE_WP : UFFDIO_REGISTER_MODE_MINOR;
    int error = window_step();

    return error ? error : sys_ioctl(keeper.uffd, UFFDIO_REGISTER, &request);
}

int window_protect(uintptr_t address, size_t length)
{
    struct uffdio_writeprotect request = {.range = {address, length}, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
    int error = window_step();

    while (!error) {
        error = sys_ioctl(keeper.uffd, UFFDIO_WRITEPROTECT, &request);
        if (error != -EAGAIN)
            break;
        error = 0;
    }
    return error;
}

void window_wake(uintptr_t address, size_t length)
{
    struct uffdio_range range = {address, length};

    sys_ioctl(keeper.uffd, UFFDIO_WAKE, &range);
}

void window_disarm(uintptr_t address, size_t length)
{
    struct uffdio_range range = {address, length};

    sys_ioctl(keeper.uffd, UFFDIO_UNREGISTER, &range);
    window_wake(address, length);
}

void epoch_begin(void)
{
    atomic_fetch_add_explicit(&epoch, 1, memory_order_seq_cst);
}

void epoch_end(void)
{
    atomic_fetch_add_explicit(&epoch, 1, memory_order_seq_cst);
    sys_futex((uint32_t *)&epoch, FUTEX_WAKE_PRIVATE, INT32_MAX, NS_NEVER);
}

uint32_t mapped_epoch(void)
{
    return atomic_load_explicit(&epoch, memory_order_seq_cst);
}

bool mapped_disturbed(uint32_t epoch_before)
{
    uint32_t now = atomic_load_explicit(&epoch, memory_order_seq_cst);

    if (now == epoch_before && !(now & 1))
        return false;
    while (now & 1) {
        sys_futex((uint32_t *)&epoch, FUTEX_WAIT_PRIVATE, now, NS_NEVER);
        now = atomic_load_explicit(&epoch, memory_order_seq_cst);
    }
    return true;
}

/* --- putting in place -------------------------------------------------------------------------------- */

/* Before Linux 6.17 mremap() moves one mapping at a time, and mprotect() of the program splits mappings. All contents
 * have been copied before, so each part can be moved by itself. */
static int move_each_over(uintptr_t from, size_t length, uintptr_t to)
{
    struct maps maps;
    struct mapping mapping;
    size_t done = 0;
    int error = window_maps(&maps);

    if (error)
        return error;
    while (done < length && !error) {
        size_t part;

        error = maps_find_now(&maps, from + done, &mapping);
        if (!error && mapping.start > from + done)
            error = -EFAULT;
        if (error)
            break;
        part = min_of(length - done, mapping.end - (from + done));
        sys_mremap((void *)(from + done), part, part, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(to + done),
                   &error);
        done += part;
    }
    maps_close(&maps);
    return error;
}

int move_over(uintptr_t from, size_t length, uintptr_t to)
{
    int error = window_step();

    if (error)
        return error;
    if (!(keeper_limits & KEEPER_SINGLE_MREMAP))
        sys_mremap((void *)from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)to, &error);
    return error == -EFAULT || (keeper_limits & KEEPER_SINGLE_MREMAP) ? move_each_over(from, length, to)
                                                                      : error;
}

int move_pages_over(uintptr_t from, size_t length, uintptr_t to)
{
    int error = window_step();

    if (!error)
        sys_mremap((void *)from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, (void *)to,
                   &error);
    return error;
}

uintptr_t reserve(size_t length, uintptr_t preferred)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *at = NULL;

    if (preferred)
        at = sys_mmap((void *)preferred, length, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0, NULL);
    if (at && (uintptr_t)at != preferred) { /* kernels before 4.17 take the address as a hint */
        sys_munmap(at, length);
        at = NULL;
    }
    if (!at)
        at = sys_mmap(NULL, length, PROT_NONE, flags, -1, 0, NULL);
    return (uintptr_t)at;
}

int scratch_map(int fd, uint64_t offset, size_t length, bool lock, uintptr_t *ret_scratch)
{
    int error = 0;
    /* Inaccessible at first: under mlockall(MCL_FUTURE) an accessible mapping would be populated at once. */
    void *scratch = sys_mmap(NULL, length, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset, &error);

    if (!scratch)
        return error;
    /* madvise(MADV_DONTNEED) refuses locked memory. On other shared memory it would succeed, and the program or its
     * allocator would rely on zeroes and find the old contents. */
    error = lock ? sys_mlock(scratch, length, MLOCK_ONFAULT) : sys_munlock(scratch, length);
    if (error && lock)
        error = -EPERM;
    if (!error)
        error = sys_madvise(scratch, length, MADV_DONTFORK);
    if (!error)
        error = sys_mprotect(scratch, length, PROT_READ | PROT_WRITE);
    if (error) {
        sys_munmap(scratch, length);
        return error;
    }
    *ret_scratch = (uintptr_t)scratch;
    return 0;
}

void unmap(uintptr_t address, size_t length)
{
    if (length)
        sys_munmap((void *)address, length);
}

void punch(int fd, uint64_t offset, size_t length)
{
    sys_punch_hole(fd, (off_t)offset, (off_t)length);
}
