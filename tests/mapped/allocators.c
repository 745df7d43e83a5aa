/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Blocks of an allocator that are registered and freed at random, also in the wrong order: freed first, or
 * registered when they are somebody else's already. The allocator is whichever is preloaded;
 * SOFTHCA_TEST_ALLOCATOR names it. */
#include "fixture.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BLOCKS = 200, THREADS = 3, LARGEST = 300000 };

struct block {
    char *memory;
    size_t size;
    unsigned seed;
    struct mapped_region *region;
};

struct worker {
    struct block blocks[BLOCKS];
    unsigned number, rounds;
    uint64_t random;
    pthread_t thread;
};

static size_t below(struct worker *worker, size_t limit)
{
    worker->random = worker->random * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(worker->random >> 33) % limit;
}

static void check(const struct block *block)
{
    CHECK(filled(block->memory, block->size, block->seed), "a block of %zu bytes has changed", block->size);
}

static size_t random_size(struct worker *worker)
{
    switch (below(worker, 4)) {
    case 0:
        return 1 + below(worker, 200);
    case 1:
        return 1 + below(worker, 20000);
    default:
        return 1 + below(worker, LARGEST);
    }
}

static void allocate(struct worker *worker, struct block *block)
{
    block->size = random_size(worker);
    block->seed = (unsigned)below(worker, 256);
    if (below(worker, 3) == 0) {
        block->memory = malloc(block->size);
    } else {
        block->memory = calloc(1, block->size);
        for (size_t i = 0; i < block->size; i++)
            CHECK(block->memory[i] == 0, "calloc: byte %zu of %zu is %#x", i, block->size,
                  (unsigned char)block->memory[i]);
    }
    fill(block->memory, block->size, block->seed);
}

static void register_block(struct block *block)
{
    if (!block->region)
        block->region =
            mapped_add((uintptr_t)block->memory, block->size, MAPPED_PEERS_READ | MAPPED_PEERS_WRITE);
}

static void deregister_block(struct block *block)
{
    mapped_remove(block->region, false);
    block->region = NULL;
}

static void change(struct worker *worker, struct block *block)
{
    if (!block->memory) {
        allocate(worker, block);
        return;
    }
    check(block);
    switch (below(worker, 6)) {
    case 0:
    case 1:
        register_block(block);
        break;
    case 2:
        deregister_block(block);
        break;
    case 3: { /* in the right order */
        size_t size = random_size(worker);

        deregister_block(block);
        block->memory = realloc(block->memory, size);
        block->size = min_of(size, block->size);
        check(block);
        break;
    }
    case 4: /* freed while it is registered, as registration caches do */
        free(block->memory);
        block->memory = NULL;
        if (below(worker, 2))
            deregister_block(block);
        break;
    default:
        deregister_block(block);
        free(block->memory);
        block->memory = NULL;
    }
    if (block->memory)
        check(block);
}

/* What stays registered after the block was freed is deregistered before the slot is used again, or long
 * after. */
static void *work(void *argument)
{
    struct worker *worker = argument;

    for (unsigned round = 0; round < worker->rounds; round++) {
        struct block *block = &worker->blocks[below(worker, BLOCKS)];

        if (!block->memory && block->region && below(worker, 2))
            deregister_block(block);
        else if (!block->memory && block->region) {
            struct mapped_region *late = block->region;

            block->region = NULL;
            change(worker, block);
            mapped_remove(late, false);
        } else {
            change(worker, block);
        }
    }
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *block = &worker->blocks[i];

        if (block->memory)
            check(block);
        free(block->memory);
        deregister_block(block);
    }
    return NULL;
}

static void blocks_of_an_allocator(void **state)
{
    static struct worker workers[THREADS];
    enum way way = begin(1 << 20); /* what may not be locked is refused, and works all the same */
    const char *allocator = getenv("SOFTHCA_TEST_ALLOCATOR"), *mark = NULL;
    unsigned threads = way == WAY_ALONE ? 1 : THREADS;
    struct mapped_counts counts;

    if (allocator && strcmp(allocator, "jemalloc") == 0)
        mark = "mallctl";
    if (allocator && strcmp(allocator, "tcmalloc") == 0)
        mark = "tc_version";
    if (mark && !dlsym(RTLD_DEFAULT, mark))
        skip_because("%s is not installed", allocator);
    for (unsigned i = 0; i < threads; i++) {
        struct worker *worker = &workers[i];

        worker->number = i;
        worker->random = i + 1;
        worker->rounds = cycles(3000, 100000);
        if (threads > 1)
            CHECK_ZERO(pthread_create(&worker->thread, NULL, work, worker));
        else
            work(worker);
    }
    for (unsigned i = 0; i < threads && threads > 1; i++)
        pthread_join(workers[i].thread, NULL);
    mapped_count(&counts);
    CHECK(counts.bytes == 0 && arena_blocks() == 0, "%llu bytes left, %llu in the arenas",
          (unsigned long long)counts.bytes, (unsigned long long)arena_blocks());
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(blocks_of_an_allocator, .fars = 0, .seconds = 3600),
    };

    return run_mapped(tests, COUNT(tests), argc, argv);
}
