/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Numbers of table entries: a bitmap, searched from where the last search ended, so that a freed number is
 * reused only after a whole round. The round of keys is the whole table: peers hold keys, and access by a
 * stale key must fail. All other numbers are known in this process only, and their objects keep memory while
 * the number is free. Their round is therefore twice the numbers in use: a program that creates and destroys
 * one QP after the other must not end up with memory for the maximum number of QPs. */
#include <string.h>

#include "base/lock.h"
#include "base/sys.h"
#include "segment/number.h"
#include "segment/segment.h"

struct number_pool {
    struct lock lock; /* guards everything below; a leaf */
    uint32_t limit, cursor, used;
    bool started;
    bool random_start; /* other hosts see these numbers, which must not tell the order of creation */
    uint64_t *taken;   /* one bit per number */
};

#define DEFINE_POOL(name, count, random)                                                                     \
    static uint64_t name##_taken[((count) + 63) / 64];                                                       \
    struct number_pool name = {.limit = (count), .random_start = (random), .taken = name##_taken}

DEFINE_POOL(pool_pds, LIMIT_PD, false);
DEFINE_POOL(pool_cqs, LIMIT_CQ, false);
DEFINE_POOL(pool_srqs, LIMIT_SRQ, false);
DEFINE_POOL(pool_qps, LIMIT_QP, false);
DEFINE_POOL(pool_wqs, LIMIT_WQ, false);
DEFINE_POOL(pool_ind_tables, LIMIT_IND_TABLES, false);
DEFINE_POOL(pool_keys, LIMIT_KEY_SLOTS, true);
DEFINE_POOL(pool_contexts, 65536u, false);
DEFINE_POOL(pool_channels, 65536u, false);
DEFINE_POOL(pool_items, SEGMENT_ITEMS, false);
DEFINE_POOL(pool_ids, SEGMENT_IDS, false);

static struct number_pool *const all_pools[] = {
    &pool_pds,  &pool_cqs,      &pool_srqs,     &pool_qps,   &pool_wqs, &pool_ind_tables,
    &pool_keys, &pool_contexts, &pool_channels, &pool_items, &pool_ids,
};

_Static_assert(LIMIT_PD % 64 == 0 && LIMIT_CQ % 64 == 0 && LIMIT_SRQ % 64 == 0 && LIMIT_QP % 64 == 0 &&
                   LIMIT_WQ % 64 == 0 && LIMIT_IND_TABLES % 64 == 0 && LIMIT_KEY_SLOTS % 64 == 0,
               "no bits beyond the limit");

static void start(struct number_pool *pool)
{
    pool->started = true;
    if (pool->random_start) {
        uint32_t first;

        sys_random(&first, sizeof(first));
        pool->cursor = first % pool->limit;
    }
}

/* The end of the round: numbers from here on are not taken while lower ones are free. */
static uint32_t horizon(const struct number_pool *pool)
{
    uint32_t wanted = 2 * pool->used + 64;

    return pool->random_start ? pool->limit : min_of(pool->limit, wanted);
}

static uint32_t find_free(const struct number_pool *pool)
{
    uint32_t words = pool->limit / 64, word = pool->cursor / 64;
    uint64_t candidates = ~pool->taken[word] & (UINT64_MAX << (pool->cursor % 64));

    /* One iteration more than words: the first word is searched on both sides of the cursor. */
    for (uint32_t i = 0; i <= words && candidates == 0; i++) {
        word = word + 1 == words ? 0 : word + 1;
        candidates = ~pool->taken[word];
    }
    return word * 64 + (uint32_t)__builtin_ctzll(candidates);
}

uint32_t number_take(struct number_pool *pool)
{
    uint32_t number = NO_OBJECT;

    lock_acquire(&pool->lock);
    if (!pool->started)
        start(pool);
    if (pool->used < pool->limit) {
        if (pool->cursor >= horizon(pool))
            pool->cursor = 0;
        number = find_free(pool);
        pool->taken[number / 64] |= 1ull << (number % 64);
        pool->used++;
        pool->cursor = (number + 1) % pool->limit;
    }
    lock_release(&pool->lock);
    return number;
}

uint32_t number_used(struct number_pool *pool)
{
    uint32_t used;

    lock_acquire(&pool->lock);
    used = pool->used;
    lock_release(&pool->lock);
    return used;
}

void number_return(struct number_pool *pool, uint32_t number)
{
    lock_acquire(&pool->lock);
    pool->taken[number / 64] &= ~(1ull << (number % 64));
    pool->used--;
    lock_release(&pool->lock);
}

void number_pools_reset(void)
{
    for (size_t i = 0; i < array_size(all_pools); i++) {
        struct number_pool *pool = all_pools[i];

        lock_init(&pool->lock);
        if (pool->used)
            memset(pool->taken, 0, pool->limit / 64 * sizeof(*pool->taken));
        pool->used = 0;
        pool->started = false; /* the child's keys start at another random number */
    }
}
