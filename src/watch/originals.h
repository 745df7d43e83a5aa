/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The functions that stand behind those of this library: the program's libibverbs.so.1, librdmacm.so.1,
 * libmlx5.so.1. */
#ifndef WATCH_ORIGINALS_H
#define WATCH_ORIGINALS_H

#include <stdatomic.h>
#include <stddef.h>

enum original_library { ORIGINAL_VERBS, ORIGINAL_RDMACM, ORIGINAL_MLX5, ORIGINAL_LIBRARIES };

/* One function of one version. */
struct original {
    _Atomic(void *) function;
    enum original_library library;
    const char *name, *version;
    void *ours;
};

/* NULL: the library is not loaded, or lacks it. A library that was found once stays loaded. */
void *original_find(struct original *original);

/* verbs.c, verbs_memory.c, rdmacm.c: their functions, for dlsym(). */
extern struct original verbs_originals[], memory_originals[], rdmacm_originals[];
extern const size_t verbs_originals_count, memory_originals_count, rdmacm_originals_count;

/* Calls the original of a function of this library. */
#define ORIGINAL(entry, type) ((type)original_find(entry))

#endif
