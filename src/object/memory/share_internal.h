/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The content of the device file, for share.c and shared.c. A format between processes of different builds: a
 * change of layout or meaning raises SHARE_VERSION (share.c). */
#ifndef OBJECT_MEMORY_SHARE_INTERNAL_H
#define OBJECT_MEMORY_SHARE_INTERNAL_H

#include <stdatomic.h>

#include "object/memory/share.h"
#include "rules/limits.h"

#define UNITS ((uint32_t)(LIMIT_DM_SIZE / SHARE_UNIT))

/* The word of an object: a bit per process that uses it, a generation that changes with each object of the
 * handle, and two flags: */
#define WORD_ALIVE            (1ull << 63)
#define WORD_TAKEN            (1ull << 62) /* the handle is allocated; the object is not published yet or has ended */
#define WORD_GENERATION_SHIFT SHARE_PROCESSES
#define WORD_GENERATION_MASK  0x3fffull
#define WORD_USERS            ((1ull << SHARE_PROCESSES) - 1)
_Static_assert(SHARE_PROCESSES + 14 + 2 == 64, "users, generation, alive, taken");

struct share_process {
    /* Random, names the process; 0: the place is free. TAG_ARRIVES: the process is removing what the previous
     * process at this place, which has died, left in the file. */
    _Atomic uint64_t tag;
    _Atomic
        uint64_t namespace; /* inode of the network namespace where the tag's socket is bound; 0: not bound */
    _Atomic uint32_t pid;   /* for messages */
    uint32_t reserved;
};
#define TAG_ARRIVES 1ull

struct share_dm {
    _Atomic uint64_t word;
    uint32_t first, reserved; /* first: unit */
    uint64_t length;          /* bytes */
};

struct share_page {
    uint64_t magic;
    uint32_t version, size;
    uint8_t id[16], node_guid[8];
    _Atomic uint64_t taken[UNITS / 64]; /* a bit per unit of device memory */
    struct share_process process[SHARE_PROCESSES];
    struct share_dm dms[SHARE_DMS];
    _Atomic uint64_t regions[SHARE_REGIONS]; /* words */
    _Atomic uint64_t pds[LIMIT_PD];          /* words */
    struct share_region region[SHARE_REGIONS];
};
#define HEAD_SIZE ((sizeof(struct share_page) + SHARE_UNIT - 1) / SHARE_UNIT * SHARE_UNIT)
#define FILE_SIZE (HEAD_SIZE + LIMIT_DM_SIZE)
_Static_assert(UNITS % 64 == 0, "no bits beyond them");

/* Is the process running? True in doubt, so that the objects it uses stay in use. */
bool share_process_lives(const struct share_process *process);

#endif
