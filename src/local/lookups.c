/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/lookups.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "local/handshake.h"
#include "local/link.h"
#include "local/owners.h"
#include "local/start.h"

#define BLOCKS 65536

/* A bit per block. wanted: lookup requested and not ended. fresh: requested, and the helper thread has not begun it. */
static _Atomic uint64_t wanted[BLOCKS / 64], fresh[BLOCKS / 64];
static _Atomic bool fresh_any;

static struct lock searches_lock = LOCK_INIT;
static struct list searches = {&searches,
                               &searches}; /* lookups of names that have not begun; searches_lock */
static _Atomic bool searches_any;

void lookups_after_fork_in_child(void)
{
    for (unsigned i = 0; i < BLOCKS / 64; i++) {
        atomic_store_explicit(&wanted[i], 0, memory_order_relaxed);
        atomic_store_explicit(&fresh[i], 0, memory_order_relaxed);
    }
    atomic_store_explicit(&fresh_any, false, memory_order_relaxed);
    lock_init(&searches_lock);
    list_init(&searches); /* leaked: another thread may have been linking one */
    atomic_store_explicit(&searches_any, false, memory_order_relaxed);
}

bool lookups_any(void)
{
    return atomic_load_explicit(&fresh_any, memory_order_relaxed) ||
           atomic_load_explicit(&searches_any, memory_order_relaxed);
}

/* --- blocks --------------------------------------------------------------------------------------------- */

void lookup_block(uint32_t block)
{
    _Atomic uint64_t *word = &wanted[block / 64];
    uint64_t bit = 1ull << (block % 64);

    if ((atomic_load_explicit(word, memory_order_acquire) & bit) ||
        (atomic_fetch_or_explicit(word, bit, memory_order_acq_rel) & bit))
        return;
    atomic_fetch_or_explicit(&fresh[block / 64], bit, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst); /* partner: begin_fresh() */
    atomic_store_explicit(&fresh_any, true, memory_order_relaxed);
    local_kick();
}

void lookup_finish(uint32_t block, struct link *link)
{
    if (link) {
        owners_note(link, block);
        link_table_set(block, link);
    }
    atomic_fetch_and_explicit(&wanted[block / 64], ~(1ull << (block % 64)), memory_order_release);
    local.ops->resolved(block, link);
}

static void begin_fresh(void)
{
    /* Of processes that start together each begins with others: no owner has all of them before its door at once. */
    unsigned first = (uint32_t)getpid() * 2654435761u % (BLOCKS / 64);

    atomic_store_explicit(&fresh_any, false, memory_order_relaxed);
    /* Ensure that a bit set after this scan finds fresh_any false and sets it. Partner: lookup_block(). */
    atomic_thread_fence(memory_order_seq_cst);
    for (unsigned step = 0; step < BLOCKS / 64; step++) {
        unsigned i = (first + step) % (BLOCKS / 64);
        uint64_t bits = atomic_load_explicit(&fresh[i], memory_order_acquire);

        for (unsigned bit = 0; bit < 64 && bits >> bit; bit++) {
            if (!(bits >> bit & 1))
                continue;
            if (!handshake_can_begin()) {
                atomic_store_explicit(&fresh_any, true, memory_order_relaxed);
                return;
            }
            atomic_fetch_and_explicit(&fresh[i], ~(1ull << bit), memory_order_acquire);
            handshake_begin(i * 64 + bit, NULL);
        }
    }
}

/* link: what the table says, NULL or a process of another user. */
static struct link *cold_path resolve_slowly(uint32_t block, struct link *link)
{
    if (link && local_is_owner(link, block))
        return link;
    if (link)
        link_table_clear(block, link);
    lookup_block(block);
    return NULL;
}

struct link *local_resolve(uint32_t qpn)
{
    uint32_t block = qpn / LOCAL_BLOCK_QPNS % BLOCKS;
    struct link *link = link_table_get(block);

    return likely(link && !link->is_of_other_user) ? link : resolve_slowly(block, link);
}

unsigned local_discover_peers(void)
{
    return discover_blocks();
}

/* --- names ---------------------------------------------------------------------------------------------- */

int local_name_search(const char *text, uint64_t cookie)
{
    struct name_search *search = calloc(1, sizeof(*search));

    if (!search)
        return -ENOMEM;
    search->cookie = cookie;
    memcpy(search->text, text, min_of(strlen(text), (size_t)LOCAL_NAME_MAX));
    lock_acquire(&searches_lock);
    list_push_back(&searches, &search->node);
    atomic_store_explicit(&searches_any, true, memory_order_release);
    lock_release(&searches_lock);
    local_kick();
    return 0;
}

static struct name_search *next_search(void)
{
    struct list *node;

    lock_acquire(&searches_lock);
    node = list_pop_front(&searches);
    atomic_store_explicit(&searches_any, !list_empty(&searches), memory_order_relaxed);
    lock_release(&searches_lock);
    return node ? list_entry(node, struct name_search, node) : NULL;
}

void lookups_begin(void)
{
    if (atomic_load_explicit(&fresh_any, memory_order_acquire))
        begin_fresh();
    while (atomic_load_explicit(&searches_any, memory_order_acquire) && handshake_can_begin()) {
        struct name_search *search = next_search();

        if (search)
            handshake_begin(0, search);
    }
}
