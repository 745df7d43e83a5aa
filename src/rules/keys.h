/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The key table: memory regions and memory windows (MWs) of one process. It has no pointers, so that the same checks
 * work on the process's own table and on a mapped table of a peer. Writer: the owner of the table, under its lock
 * (object/memory). Readers, in this and other processes, take no lock. The layout is a format shared between processes.
 *
 * A key is
 *
 *   bit 31      KEY_COPIED: peers cannot fetch from the memory, which a requester has to know from the rkey
 *   bits 28-30  random
 *   bits 9-27   slot in the table
 *   bit 8       KEY_REMOTE: rkey; so lkey and rkey of a region differ, and a program that mixes them up fails
 *               here and not later, on hardware
 *   bits 0-7    tag; of a type 2 MW it belongs to the program (ibv_inc_rkey)
 *
 * Tag and random bits make keys hard to guess, and the key of a reused slot new. No key is 0. */
#ifndef RULES_KEYS_H
#define RULES_KEYS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/types.h"
#include "base/verbs.h"
#include "rules/limits.h"
#include "rules/verdict.h"

enum key_kind {
    KEY_FREE,
    KEY_REGION,           /* plain MR */
    KEY_REGION_ON_DEMAND, /* pages may be missing, or not be there at all */
    KEY_REGION_NULL,
    KEY_MW_TYPE_1,
    KEY_MW_TYPE_2,
};

/* A seqlock: generation is odd while the owner changes the entry. A reader loads it (acquire), copies the fields, and
 * loads it again; see keys_read(). Every change of meaning (deregister, rereg, bind, invalidate) changes it. */
struct key_entry {
    _Atomic uint32_t generation;
    uint8_t kind;       /* enum key_kind */
    uint8_t bound;      /* MW: bound to a region */
    uint8_t zero_based; /* addresses are offsets from the start */
    uint8_t on_demand;  /* pages must be faulted in before an access; MW: that of its region */
    uint32_t lkey;      /* 0: none (MWs) */
    uint32_t rkey;
    uint32_t pd;     /* number of the protection domain */
    uint32_t access; /* enum ibv_access_flags; MW: those it was bound with */
    uint32_t region; /* MW: slot of the region it is bound to */
    uint32_t mws;    /* region: MWs bound to it */
    uint64_t iova;   /* address of the first byte in work requests */
    uint64_t length;
    uint64_t address; /* where iova is in the owner's address space */
    uint64_t handle;  /* ibv_mr.handle */
};
_Static_assert(sizeof(struct key_entry) == 64, "one cache line; readable by other builds");

struct key_table {
    struct key_entry entry[LIMIT_KEY_SLOTS];
};

static inline uint32_t key_slot(uint32_t key)
{
    return (key >> 9) & (LIMIT_KEY_SLOTS - 1);
}

#define KEY_TAG_MASK   0xffu
#define KEY_REMOTE     0x100u
#define KEY_COPIED     0x80000000u
#define KEY_SLOT_SHIFT 9
#define KEY_TOP_SHIFT  28
_Static_assert(LIMIT_KEY_SLOTS == 1u << (KEY_TOP_SHIFT - KEY_SLOT_SHIFT),
               "slot numbers fill the bits between");

/* --- owner's side; the caller holds the table's lock ---------------------------------------------------- */

/* Fills a free slot; `random` supplies unguessable bits. Keys are returned in the entry. IBV_ACCESS_ZERO_BASED
 * in `access` makes addresses start at 0, whatever iova is. A KEY_REGION_NULL has no rkey and accepts any range. The
 * caller has checked that iova + length and address + length do not wrap. */
/* In `access` of a region: other processes cannot fetch from it. */
#define ACCESS_COPIED (1u << 30)
/* In `access` of an MW that is not bound: it was. */
#define ACCESS_WAS_BOUND (1u << 29)
void keys_publish_region(struct key_table *table, uint32_t slot, enum key_kind kind, uint32_t pd,
                         uint32_t access, uint64_t iova, uint64_t length, uint64_t address, uint32_t random);
void keys_publish_mw(struct key_table *table, uint32_t slot, enum key_kind kind, uint32_t pd,
                     uint32_t random);
/* Changes a live region (ibv_rereg_mr); its keys do not change. The caller has refused it (EBUSY) if MWs are bound.
 */
void keys_change_region(struct key_table *table, uint32_t slot, uint32_t pd, uint32_t access, uint64_t iova,
                        uint64_t length, uint64_t address);
/* After this no new access finds the slot; the caller waits with rundown_wait() for those in progress and frees it.
 * The caller has refused (EBUSY) a region with MWs bound to it (`mws`). */
void keys_withdraw(struct key_table *table, uint32_t slot);

struct mw_bind {
    uint32_t mw_rkey;     /* current key of the MW; of a type 2 MW the tag is ignored */
    uint32_t new_rkey;    /* type 2: the key it shall have; type 1: ignored */
    uint32_t region_lkey; /* region to bind to; with length 0 and type 1: ignored */
    uint32_t pd;          /* of the QP that executes the bind */
    uint64_t address, length;
    uint32_t access;
    uint32_t random; /* type 1: bits of the new key */
};
/* What is wrong with a bind. The numbers are in published segments: new ones go to the end. */
enum bind_fault {
    BIND_ACCEPTED,
    BIND_NO_MW,
    BIND_MW_PD,
    BIND_MW_KEY,   /* mw_rkey or new_rkey is of another MW, or an old one */
    BIND_MW_BOUND, /* type 2 */
    BIND_NOTHING,  /* type 2 with length 0 */
    BIND_REGION,   /* region_lkey is of no region that MWs can be bound to */
    BIND_REGION_PD,
    BIND_REGION_ACCESS, /* the region lacks MW_BIND */
    BIND_FLAGS,         /* access has what no MW can have */
    BIND_LOCAL_WRITE,   /* the region lacks LOCAL_WRITE, which the MW's write or atomic right needs */
    BIND_RANGE,
};
enum bind_fault keys_bind_fault(struct key_table *table, const struct mw_bind *bind, bool type_2);
/* All rules of verbs.md §4.5. On VERDICT_OK *ret_rkey is the MW's new key. */
enum verdict keys_bind_mw(struct key_table *table, const struct mw_bind *bind, bool type_2,
                          uint32_t *ret_rkey);
/* The key that keys_bind_mw() will give a type 1 MW: ibv_bind_mw() returns it when it posts, before the bind is
 * executed. Never the current key. */
static inline uint32_t keys_next_mw_rkey(uint32_t rkey, uint32_t random)
{
    const uint32_t fixed = (LIMIT_KEY_SLOTS - 1) << KEY_SLOT_SHIFT | KEY_REMOTE;
    uint32_t next = (rkey & fixed) | (random & ~fixed & ~KEY_COPIED);

    return next != rkey ? next : next ^ 1;
}
/* ibv_dealloc_mw: unbinds the MW if it is bound. */
void keys_unbind_mw(struct key_table *table, uint32_t slot);
/* LOCAL_INV: VERDICT_MW_BIND when refused. SEND with invalidate: VERDICT_REMOTE_ACCESS.
 * (verbs.md §4.6) */
enum verdict keys_invalidate(struct key_table *table, uint32_t rkey, uint32_t pd, bool remote_request);

/* --- checks; any thread, any process that mapped the table ---------------------------------------------- */

enum remote_operation { REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC };

struct memory_range {
    uint64_t address;          /* in the owner's address space */
    uint32_t slot, generation; /* for keys_is_current() after the access */
    enum key_kind kind;        /* KEY_FREE: no access (length 0) */
    bool on_demand;            /* pages must be faulted in before an access */
};

/* What a check needs of an entry, copied while its generation did not change. */
struct key_view {
    uint32_t generation;
    uint8_t kind, bound, zero_based, on_demand; /* as in key_entry, read as one word */
    uint32_t lkey, rkey, pd, access;
    uint64_t iova, length, address;
};
_Static_assert(offsetof(struct key_entry, kind) % 4 == 0 &&
                   offsetof(struct key_entry, on_demand) - offsetof(struct key_entry, kind) == 3,
               "one word");

/* A consistent copy of an entry. Waits a bounded time for an owner that is changing it. false: still changing, so the
 * owner died in the middle of the change, and the key is void. */
bool keys_read(const struct key_table *table, uint32_t slot, struct key_view *ret_view);

/* One attempt of keys_read(). The fields are read with relaxed atomic loads because the owner may be writing them;
 * the copy is valid if the generation was even before and is the same after. */
static inline bool keys_try_read(const struct key_entry *entry, struct key_view *ret_view)
{
    /* Acquire: the loads below stay behind; partner: the release store of end_change() in keys.c. */
    uint32_t generation = atomic_load_explicit(&entry->generation, memory_order_acquire);
    uint32_t traits = __atomic_load_n((const uint32_t *)(const void *)&entry->kind, __ATOMIC_RELAXED);

    memcpy(&ret_view->kind, &traits, sizeof(traits));
    ret_view->generation = generation;
    ret_view->lkey = __atomic_load_n(&entry->lkey, __ATOMIC_RELAXED);
    ret_view->rkey = __atomic_load_n(&entry->rkey, __ATOMIC_RELAXED);
    ret_view->pd = __atomic_load_n(&entry->pd, __ATOMIC_RELAXED);
    ret_view->access = __atomic_load_n(&entry->access, __ATOMIC_RELAXED);
    ret_view->iova = __atomic_load_n(&entry->iova, __ATOMIC_RELAXED);
    ret_view->length = __atomic_load_n(&entry->length, __ATOMIC_RELAXED);
    ret_view->address = __atomic_load_n(&entry->address, __ATOMIC_RELAXED);
    /* Acquire: the loads above stay before the one below; partner: the release fence of begin_change(). */
    atomic_thread_fence(memory_order_acquire);
    return !(generation & 1) && atomic_load_explicit(&entry->generation, memory_order_relaxed) == generation;
}

/* Does the entry still have the meaning that it had at the check? For a requester that has accessed memory of another
 * process, whose owner does not wait for a rundown section of this process. */
static inline bool keys_is_current(const struct key_table *table, const struct memory_range *range)
{
    if (range->kind == KEY_FREE)
        return true;
    /* Orders the accesses to the memory, loads and stores, before this load; partner: begin_change() in keys.c, and
     * the barrier by which the owner makes its change visible before it reuses the memory. */
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(&table->entry[range->slot & (LIMIT_KEY_SLOTS - 1)].generation,
                                memory_order_relaxed) == range->generation;
}

/* [address, address + length) inside the view, without a sum that could wrap; length > 0. */
static inline bool key_view_covers(const struct key_view *view, uint64_t address, uint64_t length)
{
    uint64_t offset = address - view->iova;

    return address >= view->iova && offset < view->length && length <= view->length - offset;
}

static inline uint64_t key_view_translate(const struct key_view *view, uint64_t address)
{
    return view->kind == KEY_REGION_NULL ? 0 : view->address + (address - view->iova);
}

/* Local rights; MWs give rights to peers only (verbs.md §4.3). */
static inline bool key_view_allows_local(const struct key_view *view, uint32_t pd, uint32_t lkey,
                                         uint64_t address, uint32_t length, bool write)
{
    return view->kind >= KEY_REGION && view->kind <= KEY_REGION_NULL && view->lkey == lkey &&
           view->pd == pd && (!write || (view->access & IBV_ACCESS_LOCAL_WRITE)) &&
           key_view_covers(view, address, length);
}

/* enum remote_operation in the order of the access flags. */
static inline uint32_t remote_operation_access(enum remote_operation operation)
{
    return (uint32_t)IBV_ACCESS_REMOTE_WRITE << operation;
}
_Static_assert(IBV_ACCESS_REMOTE_READ == IBV_ACCESS_REMOTE_WRITE << REMOTE_READ &&
                   IBV_ACCESS_REMOTE_ATOMIC == IBV_ACCESS_REMOTE_WRITE << REMOTE_ATOMIC,
               "order of the flags");

/* Remote rights; of an MW its own, not those of its region (verbs.md §4.5). */
static inline bool key_view_allows_remote(const struct key_view *view, uint32_t pd, uint32_t rkey,
                                          uint64_t address, uint32_t length, enum remote_operation operation)
{
    bool named = view->kind == KEY_REGION || view->kind == KEY_REGION_ON_DEMAND ||
                 (view->kind >= KEY_MW_TYPE_1 && view->kind <= KEY_MW_TYPE_2 && view->bound);

    return named && view->rkey == rkey && view->pd == pd &&
           (view->access & remote_operation_access(operation)) && key_view_covers(view, address, length);
}

static inline void memory_range_set(struct memory_range *range, const struct key_view *view, uint32_t key,
                                    uint64_t address)
{
    range->address = key_view_translate(view, address);
    range->slot = key_slot(key);
    range->generation = view->generation;
    range->kind = (enum key_kind)view->kind;
    range->on_demand = view->on_demand;
}

#define MEMORY_RANGE_NONE ((struct memory_range){.kind = KEY_FREE})

/* Slow path of the checks below: the entry is being changed, the key is an alias (rules/alias.h), or access is
 * denied. */
enum verdict keys_check_local_again(const struct key_table *table, uint32_t pd, uint32_t lkey,
                                    uint64_t address, uint32_t length, bool write,
                                    struct memory_range *ret_range);
enum verdict keys_check_remote_again(const struct key_table *table, uint32_t pd, uint32_t rkey,
                                     uint64_t address, uint32_t length, enum remote_operation operation,
                                     struct memory_range *ret_range);

/* One local SGE of a work request (verbs.md §4.3, first part): VERDICT_OK or VERDICT_LOCAL_PROTECTION. Length 0 is
 * always allowed and yields address 0, as does a KEY_REGION_NULL: reads give zeros, writes are discarded. */
static inline enum verdict keys_check_local(const struct key_table *table, uint32_t pd, uint32_t lkey,
                                            uint64_t address, uint32_t length, bool write,
                                            struct memory_range *ret_range)
{
    struct key_view view;

    if (unlikely(!length)) {
        *ret_range = MEMORY_RANGE_NONE;
        return VERDICT_OK;
    }
    if (unlikely(!keys_try_read(&table->entry[key_slot(lkey)], &view) ||
                 !key_view_allows_local(&view, pd, lkey, address, length, write)))
        return keys_check_local_again(table, pd, lkey, address, length, write, ret_range);
    memory_range_set(ret_range, &view, lkey, address);
    return VERDICT_OK;
}

/* One remote access (verbs.md §4.3, second part): qp_access are the responder QP's access flags.
 * VERDICT_OK, VERDICT_INVALID_REQUEST (QP flags; atomics: alignment, length not 8) or VERDICT_REMOTE_ACCESS.
 * Length 0 of READ and WRITE is always allowed. */
static inline enum verdict keys_check_remote(const struct key_table *table, uint32_t pd, uint32_t qp_access,
                                             uint32_t rkey, uint64_t address, uint32_t length,
                                             enum remote_operation operation, struct memory_range *ret_range)
{
    struct key_view view;

    if (operation == REMOTE_ATOMIC && unlikely(length != 8))
        return VERDICT_INVALID_REQUEST;
    if (unlikely(!length)) {
        *ret_range = MEMORY_RANGE_NONE;
        return VERDICT_OK;
    }
    if (unlikely(!(qp_access & remote_operation_access(operation))))
        return VERDICT_INVALID_REQUEST;
    if (unlikely(!keys_try_read(&table->entry[key_slot(rkey)], &view) ||
                 !key_view_allows_remote(&view, pd, rkey, address, length, operation))) {
        enum verdict verdict =
            keys_check_remote_again(table, pd, rkey, address, length, operation, ret_range);
        if (verdict != VERDICT_OK)
            return verdict;
    } else {
        memory_range_set(ret_range, &view, rkey, address);
    }
    /* The address in the request, and the one in memory: a zero-based MW may start anywhere, and CPU atomics need the
     * alignment in memory. */
    if (operation == REMOTE_ATOMIC && unlikely((address | ret_range->address) & 7))
        return VERDICT_INVALID_REQUEST;
    return VERDICT_OK;
}

/* FLUSH (IBA A19) of a range or of the whole region. types and level are those of a FETH, unchecked. Not through MWs,
 * which cannot be bound with such rights. */
enum verdict keys_check_flush(const struct key_table *table, uint32_t pd, uint32_t qp_access, uint32_t rkey,
                              uint64_t address, uint32_t length, uint32_t types, uint32_t level);

#endif
