/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Changing what lies behind a range of pages while the program writes to them. Runs in the keeper.
 *
 * Chunk by chunk: writers are held up by userfaultfd, the contents are copied, mremap() puts the new pages in
 * place of the old in one step, and the writers are woken: their fault is repeated and finds the new pages.
 *
 * Where the full userfaultfd is allowed, a chunk is first moved aside (mremap DONTUNMAP), so that every
 * access waits, by the program and by the kernel for it, and copied from there. Where only the user-mode one
 * is, chunks are write-protected and copied in place: system calls that read go on, those that write into the
 * chunk fail with EFAULT for these microseconds. */
#ifndef MAPPED_SWITCH_H
#define MAPPED_SWITCH_H

#include <stdbool.h>
#include <stdint.h>

#include "mapped/mapped.h"

/* Private pages into the arena. */
struct switch_in {
    uint64_t address, length;
    unsigned arena;
    uint64_t offset;
    bool locked_by_program; /* locked memory stays locked */
    bool alone;             /* no userfaultfd, and nobody else writes */
    uintptr_t wish;         /* where the shadow should be, if there is room; 0: anywhere */
    /* answer */
    uint64_t done;    /* from the start */
    uintptr_t shadow; /* of these */
    enum mapped_reason reason;
};
void switch_in(struct switch_in *request);

/* And out of it, into the shadow, which takes the place of the shared pages. Stops at the first page that is
 * not what it should be; that page belongs to somebody else. */
struct switch_out {
    uint64_t address, length;
    unsigned arena;
    uint64_t offset;
    uintptr_t shadow;
    bool locked_by_program;
    bool alone;
    /* answer */
    uint64_t done;
    int error; /* -ESTALE: something else is there */
};
void switch_out(struct switch_out *request);

/* From one place in the arenas to another. */
struct switch_over {
    uint64_t address, length;
    unsigned arena;
    uint64_t from, to;
    bool locked_by_program;
    bool alone;
    /* answer */
    uint64_t done;
    int error;
};
void switch_over(struct switch_over *request);

/* Fills the shadow with a copy and gives it the protection of the shared mapping: what a child of fork() will
 * see. */
struct switch_copy {
    uint64_t address, length;
    unsigned arena;
    uint64_t offset;
    uintptr_t shadow;
    int error;
};
void switch_copy(struct switch_copy *request);

size_t page_size(void);

#endif
