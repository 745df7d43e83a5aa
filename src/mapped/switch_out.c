/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Switches pages out of an arena or to another offset of it, and copies them for fork() (switch.h). */
#include <errno.h>
#include <sys/mman.h>

#include "base/newer_kernel.h"
#include "base/sys.h"
#include "base/types.h"
#include "mapped/keeper.h"
#include "mapped/window.h"

#define HOLE_CHUNK ((size_t)1 << 30)

struct job {
    struct maps maps;
    uintptr_t address;
    size_t length, done;
    unsigned arena;
    int fd;
    uint64_t offset;  /* offset of the contents */
    uint64_t to;      /* switch_over(): their new offset */
    uintptr_t source; /* replacement: shadow, or the scratch mapping of the new offset */
    bool private;     /* source is a shadow */
    bool alone;
    bool lock_after;
};

/* Length of the next chunk: memory without data is switched in large chunks. */
static size_t next_chunk(const struct job *job, size_t left)
{
    /* A look-up is expensive where the list of mappings has to be read as text. */
    size_t at = 0, start, length,
           chunk = min_of(left, job->maps.by_query ? dense_chunk() : 4 * dense_chunk());
    uint64_t offset = job->offset + job->done;

    if (data_next(job->fd, offset, chunk, &at, &start, &length))
        return chunk;
    chunk = min_of(left, HOLE_CHUNK);
    at = 0;
    return data_next(job->fd, offset, chunk, &at, &start, &length) ? start : chunk;
}

/* From now on every access to the chunk waits, except reads of pages that are present. */
static int hold_up(const struct job *job, uintptr_t target, size_t length)
{
    int error;

    if (job->alone)
        return 0;
    error = window_arm(target, length, true);
    if (error || keeper.can_protect)
        return error;
    /* Linux 5.14 to 5.18 cannot write-protect shared pages. Without page table entries, every access faults. */
    sys_munlock((void *)target, length);
    return sys_madvise((void *)target, length, MADV_DONTNEED);
}

static int copy_part(const struct job *job, size_t start, size_t length)
{
    static char buffer[1 << 16]; /* used by the keeper only */
    off_t from = (off_t)(job->offset + job->done + start);
    int error = window_step();

    if (error)
        return error;

    if (job->private) {
        ssize_t copied = sys_pread(job->fd, (void *)(job->source + job->done + start), length, from);

        return copied == (ssize_t)length ? 0 : copied < 0 ? (int)copied : -EIO;
    }
    for (size_t at = 0; at < length; at += sizeof(buffer)) {
        size_t part = min_of(length - at, sizeof(buffer));
        off_t to = (off_t)(job->to + job->done + start + at);
        ssize_t copied = sys_pread(job->fd, buffer, part, from + (off_t)at);

        if (copied == (ssize_t)part)
            copied = sys_pwrite(job->fd, buffer, part, to);
        if (copied != (ssize_t)part)
            return copied < 0 ? (int)copied : -EIO;
    }
    return 0;
}

static int copy_chunk(const struct job *job, uintptr_t target, size_t length)
{
    size_t at = 0, start, part;

    while (data_next(job->fd, job->offset + job->done, length, &at, &start, &part)) {
        int error = !job->alone && keeper.can_protect ? window_protect(target + start, part) : 0;

        if (!error)
            error = copy_part(job, start, part);
        if (error)
            return error;
    }
    return 0;
}

/* Allocates page tables and pages first, while no access is stopped. */
static void prepare(const struct job *job, size_t length)
{
    size_t at = 0, start, part;

    while (job->private && data_next(job->fd, job->offset + job->done, length, &at, &start, &part))
        sys_madvise((void *)(job->source + job->done + start), part, MADV_POPULATE_WRITE);
}

static int switch_chunk(struct job *job, size_t length, int protection)
{
    uintptr_t target = job->address + job->done, source = job->source + job->done, end;
    int error, protection_now;

    prepare(job, length);
    error = hold_up(job, target, length);
    if (!error)
        error = copy_chunk(job, target, length);
    if (!error && protection != (PROT_READ | PROT_WRITE))
        error = sys_mprotect((void *)source, length, protection);
    /* Checked as late as possible: the program may have mapped something else there. */
    if (!error && !(is_ours(&job->maps, target, job->arena, job->offset + job->done, &end, &protection_now) &&
                    end >= target + length))
        error = -ESTALE;
    if (!error)
        error = move_over(source, length, target);
    if (!job->alone) {
        if (error)
            window_disarm(target, length);
        else
            window_wake(target, length);
    }
    if (error)
        return error;
    if (job->lock_after)
        sys_mlock((void *)target, length, MLOCK_ONFAULT);
    punch(job->fd, job->offset + job->done, length);
    return 0;
}

/* One mapping: mprotect() of the program may have split the range. */
static int switch_run(struct job *job)
{
    uintptr_t target = job->address + job->done, end;
    size_t run_end;
    int protection, error = 0;

    if (!is_ours(&job->maps, target, job->arena, job->offset + job->done, &end, &protection))
        return -ESTALE;
    run_end = min_of(end - job->address, job->length);
    while (job->done < run_end && !error) {
        size_t chunk = next_chunk(job, run_end - job->done);

        error = switch_chunk(job, chunk, protection);
        if (!error)
            job->done += chunk;
    }
    return error;
}

static int switch_runs(struct job *job)
{
    int error = window_maps(&job->maps);

    if (error)
        return error;
    epoch_begin();
    while (job->done < job->length && !error)
        error = switch_run(job);
    epoch_end();
    maps_close(&job->maps);
    return error;
}

void switch_out(struct switch_out *request)
{
    struct switch_out copy = *request;
    struct job job = {
        .address = copy.address,
        .length = copy.length,
        .arena = copy.arena,
        .fd = keeper.arena[copy.arena],
        .offset = copy.offset,
        .source = copy.shadow,
        .private = true,
        .alone = copy.alone,
        .lock_after = copy.locked_by_program,
    };

    copy.error = sys_mprotect((void *)job.source, job.length, PROT_READ | PROT_WRITE);
    if (!copy.error)
        copy.error = switch_runs(&job);
    copy.done = job.done;
    *request = copy;
}

void switch_over(struct switch_over *request)
{
    struct switch_over copy = *request;
    struct job job = {
        .address = copy.address,
        .length = copy.length,
        .arena = copy.arena,
        .fd = keeper.arena[copy.arena],
        .offset = copy.from,
        .to = copy.to,
        .alone = copy.alone,
        .lock_after = true, /* locked before by the program or the switch, and counted once */
    };

    punch(job.fd, copy.to, job.length);
    copy.error = scratch_map(job.fd, copy.to, job.length, false, &job.source);
    if (!copy.error) {
        copy.error = switch_runs(&job);
        unmap(job.source + job.done, job.length - job.done);
    }
    copy.done = job.done;
    *request = copy;
}

/* --- a copy for a child ------------------------------------------------------------------------------ */

static int copy_to_shadow(const struct switch_copy *request)
{
    size_t at = 0, start, part;
    int fd = keeper.arena[request->arena];

    while (data_next(fd, request->offset, request->length, &at, &start, &part)) {
        for (size_t done = 0; done < part;) {
            ssize_t copied = sys_pread(fd, (void *)(request->shadow + start + done), part - done,
                                       (off_t)(request->offset + start + done));

            if (copied <= 0)
                return copied < 0 ? (int)copied : -EIO;
            done += (size_t)copied;
        }
    }
    return 0;
}

static int protect_alike(const struct switch_copy *request)
{
    struct maps maps;
    int error = window_maps(&maps);

    if (error)
        return error;
    for (uint64_t done = 0; done < request->length && !error;) {
        uintptr_t address = request->address + done, end;
        int protection;
        size_t part;

        if (!is_ours(&maps, address, request->arena, request->offset + done, &end, &protection)) {
            error = -ESTALE;
            break;
        }
        part = min_of(end - address, request->length - done);
        error = sys_mprotect((void *)(request->shadow + done), part, protection);
        done += part;
    }
    maps_close(&maps);
    return error;
}

void switch_copy(struct switch_copy *request)
{
    request->error = sys_mprotect((void *)request->shadow, request->length, PROT_READ | PROT_WRITE);
    if (!request->error)
        request->error = copy_to_shadow(request);
    if (!request->error)
        request->error = protect_alike(request);
}
