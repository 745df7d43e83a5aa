/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Random numbers of the kernel, taken in advance: a connection needs four, and each would be a system call. A number
 * is erased when it is handed out. The kernel empties the pool in a forked child (MADV_WIPEONFORK), whichever call
 * made the child, so that it never hands out what its parent does. Where the kernel cannot, each number is a system
 * call. */
#ifndef BASE_RANDOM_POOL_H
#define BASE_RANDOM_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct random_page;

/* Zeros: empty. The caller's lock guards it, and is made free in a forked child. */
struct random_pool {
    struct random_page *page; /* NULL: none yet */
    bool refused;             /* there will be none */
};

uint64_t random_pool_take(struct random_pool *pool);

#endif
