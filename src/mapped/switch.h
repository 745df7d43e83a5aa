/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Replaces the pages behind a range of addresses while the program writes to them. Runs in the keeper.
 *
 * Chunk by chunk: userfaultfd stops writers, the contents are copied, mremap() replaces the old pages by the new ones
 * in one step, and the writers are woken: they repeat their page fault and find the new pages.
 *
 * With a full userfaultfd, a chunk is first moved aside (MREMAP_DONTUNMAP), so that every access of the program, and
 * of the kernel on its behalf, waits; the chunk is copied from there. With a user-mode userfaultfd, a chunk is
 * write-protected and copied in place: system calls that read the chunk proceed, and those that write into it fail
 * with EFAULT for these microseconds. */
#ifndef MAPPED_SWITCH_H
#define MAPPED_SWITCH_H

#include <stdbool.h>
#include <stdint.h>

#include "mapped/mapped.h"

/* Switches private pages into the arena. */
struct switch_in {
    uint64_t address, length;
    unsigned arena;
    uint64_t offset;
    bool locked_by_program;                 /* locked memory stays locked */
    bool alone;                             /* no userfaultfd, and no other thread writes */
    const struct mapped_portions *portions; /* NULL: nobody is told of chunks, which have their usual size */
    const struct mapped_ports *ports;       /* pauses other threads for each chunk; NULL: nobody */
    uintptr_t preferred;                    /* preferred address of the shadow; 0: anywhere */
    /* output */
    uint64_t done;    /* bytes from the start */
    uintptr_t shadow; /* shadow of the switched bytes */
    enum mapped_reason reason;
};
void switch_in(struct switch_in *request);

/* Switches pages out of the arena, into the shadow, which replaces the shared pages. Stops with -ESTALE at the first
 * page that is not mapped as expected; that page belongs to the program. */
struct switch_out {
    uint64_t address, length;
    unsigned arena;
    uint64_t offset;
    uintptr_t shadow;
    bool locked_by_program;
    bool alone;
    /* output */
    uint64_t done;
    int error; /* -ESTALE: something else is mapped there */
};
void switch_out(struct switch_out *request);

/* Moves pages from one offset of an arena to another. */
struct switch_over {
    uint64_t address, length;
    unsigned arena;
    uint64_t from, to;
    bool locked_by_program;
    bool alone;
    /* output */
    uint64_t done;
    int error;
};
void switch_over(struct switch_over *request);

/* Copies the contents into the shadow and gives the shadow the protection of the shared mapping: a child of fork()
 * will have these pages. */
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
