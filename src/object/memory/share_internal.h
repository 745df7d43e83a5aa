/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is in the file that stands for a device: for share.c and shared.c. */
#ifndef OBJECT_MEMORY_SHARE_INTERNAL_H
#define OBJECT_MEMORY_SHARE_INTERNAL_H

#include <stdatomic.h>

#include "object/memory/share.h"
#include "rules/limits.h"

#define UNITS ((uint32_t)(LIMIT_DM_SIZE / SHARE_UNIT))

/* The word of an object: */
#define WORD_ALIVE            (1ull << 63)
#define WORD_TAKEN            (1ull << 62) /* not yet or no more alive, and somebody's */
#define WORD_GENERATION_SHIFT SHARE_PROCESSES
#define WORD_GENERATION_MASK  0x3fffull
#define WORD_USERS            ((1ull << SHARE_PROCESSES) - 1)
_Static_assert(SHARE_PROCESSES + 14 + 2 == 64, "users, generation, alive, taken");

struct share_process {
    /* 0: nobody. The lowest bit: whose place it was is gone, and traces of his are being removed. */
    _Atomic uint64_t tag;
    _Atomic uint64_t namespace; /* of the network, where the tag is bound; 0: nowhere */
    _Atomic uint32_t pid;       /* for people */
    uint32_t reserved;
};
#define TAG_ARRIVES 1ull

struct share_dm {
    _Atomic uint64_t word;
    uint32_t first, reserved;
    uint64_t length;
};

struct share_page {
    uint64_t magic;
    uint32_t version, size;
    uint8_t id[16], node_guid[8];
    _Atomic uint64_t taken[UNITS / 64];
    struct share_process process[SHARE_PROCESSES];
    struct share_dm dms[SHARE_DMS];
    _Atomic uint64_t regions[SHARE_REGIONS];
    _Atomic uint64_t pds[LIMIT_PD];
    struct share_region region[SHARE_REGIONS];
};
#define HEAD_SIZE ((sizeof(struct share_page) + SHARE_UNIT - 1) / SHARE_UNIT * SHARE_UNIT)
#define FILE_SIZE (HEAD_SIZE + LIMIT_DM_SIZE)
_Static_assert(UNITS % 64 == 0, "no bits beyond them");

/* Does the process live? In doubt it does: what it uses stays in use. */
bool share_process_lives(const struct share_process *process);

#endif
