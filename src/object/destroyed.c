/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The quarantine of destroyed handles: a ring of addresses per kind, and a hash table to look one up. */
#include "object/destroyed.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/refusal.h"
#include "base/types.h"
#include "object/ports.h"
#include "segment/misuse.h"
#include "segment/provenance.h"
#include "segment/segment.h"

#if defined(__has_feature) && !defined(__SANITIZE_ADDRESS__)
#if __has_feature(address_sanitizer) /* clang has no __SANITIZE_ADDRESS__ */
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size)   ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

#define QUARANTINED 1024u
#define BUCKETS     4096u
enum {
    PUBLIC = sizeof(struct ibv_context *)
}; /* bytes of a handle that stay readable: struct ibv_*.context */
#define POISON    0xdd
#define HASH_BITS 12
_Static_assert(BUCKETS == 1u << HASH_BITS, "a bucket for each hash");

/* Without a lock: places are exchanged atomically, and a handle is looked up only after its own destroy. */
struct destroyed_handles {
    _Atomic(void *) handle[QUARANTINED];
    struct destroy_note note[QUARANTINED]; /* written before the handle, with release order */
    _Atomic uint32_t next;
    _Atomic uint16_t bucket[BUCKETS]; /* how many handles have that hash; 0 ends most lookups */
};

static struct destroyed_handles destroyed[DESTROYED_KINDS];

static _Atomic uint16_t *bucket_of(struct destroyed_handles *of, const void *handle)
{
    return &of->bucket[((uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15ull) >> (64 - HASH_BITS)];
}

/* NULL: it is not in quarantine. */
static const struct destroy_note *find(enum destroyed_kind kind, const void *handle)
{
    struct destroyed_handles *of = &destroyed[kind];

    if (likely(!atomic_load_explicit(bucket_of(of, handle), memory_order_relaxed)))
        return NULL;
    for (unsigned i = 0; i < QUARANTINED; i++) {
        if (atomic_load_explicit(&of->handle[i], memory_order_acquire) == handle)
            return &of->note[i];
    }
    return NULL;
}

static void name(enum destroyed_kind kind, uint32_t number, char ret[48])
{
    static const char *const names[DESTROYED_KINDS] = {
        [DESTROYED_AH] = "AH %u",
        [DESTROYED_CHANNEL] = "channel %u",
        [DESTROYED_CONTEXT] = "context %u",
        [DESTROYED_COUNTERS] = "set of counters %u",
        [DESTROYED_CQ] = "CQ %u",
        [DESTROYED_DM] = "DM %u",
        [DESTROYED_FLOW] = "flow %u",
        [DESTROYED_IND_TABLE] = "indirection table %u",
        [DESTROYED_MR] = "MR with lkey 0x%08x",
        [DESTROYED_MW] = "MW with rkey 0x%08x",
        [DESTROYED_PD] = "PD %u",
        [DESTROYED_QP] = "QP 0x%06x",
        [DESTROYED_SRQ] = "SRQ %u",
        [DESTROYED_TD] = "TD %u",
        [DESTROYED_WQ] = "WQ 0x%06x",
        [DESTROYED_XRCD] = "XRCD %u",
    };

    snprintf(ret, 48, names[kind], number);
}

static cold_path void tell(enum misuse_form form, enum destroyed_kind kind, const struct destroy_note *note,
                           const char *verb)
{
    const struct destroy_note copy = *note;
    char object[48];
    uint32_t record;

    refuse(-EINVAL, REFUSAL_TOLD, "", 0, 0, 0);
    name(kind, copy.number, object);
    record = misuse_record(form, verb, object, -EINVAL, &copy);
    if (record != NO_OBJECT && explained())
        object_ports->explain(EXPLAIN_MISUSE, OBJECT_CONTEXT, record);
}

bool destroyed_has(enum destroyed_kind kind, const void *handle, const char *verb)
{
    const struct destroy_note *note = find(kind, handle);

    if (likely(!note))
        return false;
    tell(MISUSE_TWICE, kind, note, verb);
    return true;
}

cold_path int destroyed_refuse(enum destroyed_kind kind, const void *handle, const char *verb)
{
    const struct destroy_note *note = find(kind, handle);

    if (!note)
        return -EIO;
    tell(MISUSE_AFTER, kind, note, verb);
    return -EINVAL;
}

void *destroyed_exchange(enum destroyed_kind kind, void *handle, uint32_t number)
{
    struct destroyed_handles *of = &destroyed[kind];
    uint32_t place = atomic_fetch_add_explicit(&of->next, 1, memory_order_relaxed) % QUARANTINED;
    void *oldest;

    destroy_note(&of->note[place], number);
    atomic_fetch_add_explicit(bucket_of(of, handle), 1, memory_order_relaxed);
    /* Release: the last use of `handle`. Acquire: partner of the release of `oldest`, which may be reused now. */
    oldest = atomic_exchange_explicit(&of->handle[place], handle, memory_order_acq_rel);
    if (oldest)
        atomic_fetch_sub_explicit(bucket_of(of, oldest), 1, memory_order_relaxed);
    return oldest;
}

void destroyed_keep(enum destroyed_kind kind, void *handle, uint32_t number)
{
    free(destroyed_exchange(kind, handle, number));
}

void destroyed_free(enum destroyed_kind kind, void *handle, size_t size, uint32_t number)
{
    char *private = (char *)handle + PUBLIC;
    void *oldest;

    memset(private, POISON, size - PUBLIC);
    ASAN_POISON_MEMORY_REGION(private, size - PUBLIC);
    oldest = destroyed_exchange(kind, handle, number);
    if (!oldest)
        return;
    /* All memory of a kind has the same size. */
    ASAN_UNPOISON_MEMORY_REGION((char *)oldest + PUBLIC, size - PUBLIC);
    free(oldest);
}

void destroyed_after_fork_in_child(void)
{
    memset(destroyed, 0, sizeof(destroyed));
}
