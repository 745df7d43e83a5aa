/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Why the kernel does not pin memory that is to be registered. */
#ifndef WATCH_REGISTRATION_H
#define WATCH_REGISTRATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "explain/out.h"

/* What the kernel compares: RLIMIT_MEMLOCK with the memory that is pinned already. */
struct pin_limit {
    uint64_t limit, pinned; /* bytes; limit UINT64_MAX: none */
    bool known;             /* pinned is */
    bool privileged; /* CAP_IPC_LOCK: the limit does not count, except in a user namespace of a container */
};

struct pin_limit pin_limit_now(void);
/* ENOMEM. */
void words_add_no_memory(struct words *words, const struct pin_limit *pins, uintptr_t address, size_t length);
/* EFAULT: which page of the range is the reason is noted as a refusal (base/refusal.h). If none is: the words. */
void words_add_unpinned(struct words *words, uintptr_t address, size_t length, bool write);

#endif
