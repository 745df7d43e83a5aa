/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Switches private pages into an arena (switch.h). */
#include <errno.h>
#include <sys/mman.h>

#include "base/newer_kernel.h"
#include "base/sys.h"
#include "base/types.h"
#include "mapped/keeper.h"
#include "mapped/window.h"

struct job {
    struct maps maps;
    uintptr_t address;
    size_t length, done;
    int fd;
    uint64_t offset;
    uintptr_t scratch; /* the part of the shared mapping that is not in place yet */
    uintptr_t shadow;  /* address for pages that are moved aside; as long as the range */
    bool move_aside;   /* move whole chunks aside before copying; otherwise only the first page, afterwards */
    bool alone;
    bool lock_after;
    const struct mapped_portions *portions; /* NULL: chunks have their usual size, and nobody is told */
    const struct mapped_ports *ports;       /* NULL: nobody has to wait */
};

static enum mapped_reason reason_of(int error)
{
    switch (-error) {
    case EBUSY:
        return MAPPED_USERFAULTFD;
    case EINVAL:
    case EPERM: /* a sealed mapping */
        return MAPPED_SPECIAL;
    case EFAULT:
        return MAPPED_CHANGED;
    case EAGAIN:
        return MAPPED_PUT_OFF;
    default:
        return MAPPED_NO_MEMORY;
    }
}

/* Length of a chunk that is populated. */
static size_t dense(const struct job *job)
{
    uintptr_t address = job->address + job->done;
    size_t length = min_of(job->length - job->done, dense_chunk()), portion = length;

    if (job->portions)
        portion = max_of((size_t)job->portions->size, page_size());
    return min_of(length, portion - (address & (portion - 1)));
}

/* Length of the next chunk. */
static size_t next_chunk(const struct job *job)
{
    uintptr_t address = job->address + job->done;
    size_t left = job->length - job->done, chunk = dense(job), at = 0, start, length;

    /* The first page is a chunk of its own where moving it leaves the address unmapped for an instant. */
    if (!job->done && !job->move_aside)
        return page_size();
    if (pages_read(address, chunk) != 0 || pages_next(&at, &start, &length))
        return chunk;
    chunk = min_of(left, SPARSE_CHUNK / 4096 * page_size());
    chunk = min_of(chunk, SPARSE_CHUNK);
    at = 0;
    if (pages_read(address, chunk) != 0)
        return dense(job);
    return pages_next(&at, &start, &length) ? start : chunk;
}

/* Copies only populated pages, with a system call: an unreadable page is an error and not a signal. */
static int copy_populated(const struct job *job, uintptr_t source, size_t length)
{
    size_t at = 0, start, part;
    int error = window_step();

    if (!error)
        error = pages_read(source, length);
    if (error)
        return error;
    if (pages_guarded())
        return -EINVAL;
    while (pages_next(&at, &start, &part)) {
        ssize_t copied = sys_pwrite(job->fd, (const void *)(source + start), part,
                                    (off_t)(job->offset + job->done + start));

        if (copied != (ssize_t)part)
            return copied < 0 ? (int)copied : -EFAULT;
    }
    return 0;
}

/* Populates the page, so that the program's next access takes no page fault, as before the switch. */
static void populate(uintptr_t target)
{
    size_t at = 0, start, part;

    while (pages_next(&at, &start, &part))
        sys_madvise((void *)(target + start), part, MADV_POPULATE_WRITE);
}

static int switch_chunk(struct job *job, size_t length)
{
    uintptr_t target = job->address + job->done, aside = job->shadow + job->done;
    bool moved = false;
    int error = 0;

    if (!job->alone) {
        error = window_arm(target, length, false);
        if (error)
            return error;
        if (!job->move_aside)
            error = window_protect(target, length);
    }
    /* Linux 6.18 miscounts locked pages that are moved out of a mapping which stays. */
    if (job->lock_after)
        sys_munlock((void *)target, length);
    if (!error && job->move_aside) {
        error = move_pages_over(target, length, aside);
        moved = !error;
    }
    if (!error)
        error = copy_populated(job, moved ? aside : target, length);
    if (!error && !job->done && !job->move_aside) {
        error = move_pages_over(target, page_size(), aside);
        moved = !error;
    }
    /* Checked as late as possible: the program may have freed the memory and mapped something else there. */
    if (!error && !is_private(&job->maps, target, length, true))
        error = -EFAULT;
    if (!error)
        error = move_over(job->scratch + job->done, length, target);
    if (error) {
        if (moved && is_private(&job->maps, target, length, false))
            move_over(aside, job->move_aside ? length : page_size(), target);
        if (job->lock_after)
            sys_mlock((void *)target, length, MLOCK_ONFAULT);
        if (!job->alone)
            window_disarm(target, length);
        punch(job->fd, job->offset + job->done, length);
        return error;
    }
    if (!job->alone)
        window_wake(target, length);
    return 0;
}

/* What is left to do when the chunk is in place and may be accessed. */
static void finish_chunk(const struct job *job, size_t length)
{
    uintptr_t target = job->address + job->done, aside = job->shadow + job->done;

    if (job->lock_after)
        sys_mlock((void *)target, length, MLOCK_ONFAULT);
    populate(target);
    if (job->move_aside)
        sys_madvise((void *)aside, length, MADV_DONTNEED);
    else if (!job->done)
        sys_madvise((void *)aside, page_size(), MADV_DONTNEED);
}

/* The same, while nobody accesses the pages. */
static int switch_portion(struct job *job, size_t length)
{
    uintptr_t start = job->address + job->done;
    int error = -EAGAIN;

    if (job->portions && !job->portions->before(start, start + length))
        goto after;
    if (job->ports)
        job->ports->pause();
    error = switch_chunk(job, length);
    if (job->ports)
        job->ports->resume();
after:
    if (job->portions)
        job->portions->after(start, start + length);
    if (!error)
        finish_chunk(job, length);
    return error;
}

/* The one page that was moved aside grows to the length of the range: a mapping of the same kind and origin. */
static int grow_shadow(struct job *job)
{
    void *grown = NULL;
    int error = window_step();

    unmap(job->shadow + page_size(), job->length - page_size());
    if (!error)
        grown = sys_mremap((void *)job->shadow, page_size(), job->length, 0, NULL, NULL);
    if (!grown && !error) /* another thread took the address */
        grown = sys_mremap((void *)job->shadow, page_size(), job->length, MREMAP_MAYMOVE, NULL, &error);
    if (!grown) {
        job->length = page_size();
        return error;
    }
    job->shadow = (uintptr_t)grown;
    return 0;
}

static int switch_chunks(struct job *job)
{
    if (!job->shadow)
        return -ENOMEM;
    while (job->done < job->length) {
        size_t chunk = next_chunk(job);
        int error = switch_portion(job, chunk);

        if (error)
            return error;
        job->done += chunk;
        if (!job->move_aside && job->done == page_size() && job->length > page_size()) {
            error = grow_shadow(job);
            if (error)
                return error;
        }
    }
    return 0;
}

void switch_in(struct switch_in *request)
{
    struct switch_in copy = *request; /* the original may be in the range being switched */
    struct job job = {
        .address = copy.address,
        .length = copy.length,
        .fd = keeper.arena[copy.arena],
        .offset = copy.offset,
        .move_aside = keeper.uffd_full && !copy.alone,
        .alone = copy.alone,
        .lock_after = copy.locked_by_program,
        .portions = copy.portions,
        .ports = copy.ports,
    };
    size_t length = copy.length; /* length of the mapping made below; job.length may shrink */
    int error;

    copy.done = 0;
    copy.shadow = 0;
    /* Discards late writes of an initiator to these offsets. */
    punch(job.fd, copy.offset, length);
    /* A populated page gives the mapping an anon_vma, which all its parts then share: when switched back, they can be
     * merged. */
    sys_madvise((void *)job.address, page_size(), MADV_POPULATE_WRITE);
    error = scratch_map(job.fd, copy.offset, length, !copy.locked_by_program, &job.scratch);
    if (error) {
        request->reason = error == -EPERM ? MAPPED_LOCK_LIMIT : MAPPED_NO_MEMORY;
        request->done = 0;
        return;
    }
    job.shadow = reserve(length, copy.preferred);
    error = window_maps(&job.maps);
    if (!error) {
        epoch_begin();
        error = switch_chunks(&job);
        epoch_end();
        maps_close(&job.maps);
    }
    unmap(job.scratch + job.done, length - job.done);
    if (job.shadow) {
        unmap(job.shadow + job.done, job.length - job.done);
        if (job.done)
            sys_mprotect((void *)job.shadow, job.done, PROT_NONE);
    }
    copy.done = job.done;
    copy.shadow = job.shadow;
    copy.reason = error ? reason_of(error) : MAPPED_YES;
    *request = copy;
}
