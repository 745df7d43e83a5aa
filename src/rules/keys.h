/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The key table: memory regions and windows of one process, pointer-free, so that the same check works on our
 * own table and on a peer's that we mapped. One writer: the owner of the table, under its own lock; readers
 * take no lock.
 *
 * A key is slot << 9 | remote << 8 | tag, plus four random bits on top: the remote bit makes lkey and rkey of
 * a region differ (programs that mix them up fail here and not later, on hardware), tag and top bits make
 * keys hard to guess and a reused slot's key new. For a type 2 window the tag belongs to the application
 * (ibv_inc_rkey).
 */
#ifndef RULES_KEYS_H
#define RULES_KEYS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "rules/limits.h"
#include "rules/verdict.h"

enum key_kind {
    KEY_FREE,
    KEY_REGION,           /* plain MR */
    KEY_REGION_ON_DEMAND, /* reserved: pages may be missing */
    KEY_REGION_NULL,
    KEY_WINDOW_TYPE_1,
    KEY_WINDOW_TYPE_2,
};

/* generation is odd while the owner changes the entry. A reader loads it (acquire), copies what it needs, and
 * loads it again; see keys_read(). Every change of meaning (deregister, rereg, bind, invalidate) changes it.
 */
struct key_entry {
    _Atomic uint32_t generation;
    uint8_t kind;       /* enum key_kind */
    uint8_t bound;      /* window: it names memory */
    uint8_t zero_based; /* addresses are offsets from the start */
    uint8_t reserved;
    uint32_t lkey; /* 0: none (windows) */
    uint32_t rkey;
    uint32_t pd;      /* number of the protection domain */
    uint32_t access;  /* enum ibv_access_flags; of a window: those it was bound with */
    uint32_t region;  /* window: slot of the region it is bound to */
    uint32_t windows; /* region: windows bound to it */
    uint64_t iova;    /* what addresses in work requests are relative to */
    uint64_t length;
    uint64_t address; /* where iova is in the owner's address space */
    uint64_t handle;  /* what ibv_mr.handle says */
};
_Static_assert(sizeof(struct key_entry) == 64, "one cache line; readable by other builds");

struct key_table {
    struct key_entry entry[LIMIT_KEY_SLOTS];
};

static inline uint32_t key_slot(uint32_t key)
{
    return (key >> 9) & (LIMIT_KEY_SLOTS - 1);
}

/* --- owner's side; the caller holds the table's lock -------------------------------------------------------
 */

/* Fills a free slot; random supplies unguessable bits. Keys are returned in the entry. */
void keys_publish_region(struct key_table *table, uint32_t slot, enum key_kind kind, uint32_t pd,
                         uint32_t access, uint64_t iova, uint64_t length, uint64_t address, uint32_t random);
void keys_publish_window(struct key_table *table, uint32_t slot, enum key_kind kind, uint32_t pd,
                         uint32_t random);
/* Changes a live region (ibv_rereg_mr); keys stay. */
void keys_change_region(struct key_table *table, uint32_t slot, uint32_t pd, uint32_t access, uint64_t iova,
                        uint64_t length, uint64_t address);
/* After this no new access finds the slot; the caller then waits with rundown_wait() and frees it. */
void keys_withdraw(struct key_table *table, uint32_t slot);

struct window_bind {
    uint32_t window_rkey; /* current key: which window */
    uint32_t new_rkey;    /* type 2: the key it shall have; type 1: ignored */
    uint32_t region_lkey; /* region to bind to; with length 0 and type 1: ignored */
    uint32_t pd;          /* of the QP that executes the bind */
    uint64_t address, length;
    uint32_t access;
    uint32_t random; /* type 1: bits of the new key */
};
/* All rules of verbs-contract §4.5. On VERDICT_OK *ret_rkey is the window's new key. */
enum verdict keys_bind_window(struct key_table *table, const struct window_bind *bind, bool type_2,
                              uint32_t *ret_rkey);
/* ibv_dealloc_mw: unbinds whatever is bound. */
void keys_unbind_window(struct key_table *table, uint32_t slot);
/* LOCAL_INV: VERDICT_WINDOW_BIND when refused. SEND with invalidate: VERDICT_REMOTE_ACCESS. (verbs-contract
 * §4.6) */
enum verdict keys_invalidate(struct key_table *table, uint32_t rkey, uint32_t pd, bool remote_request);

/* --- checks; any thread, any process that mapped the table
 * -------------------------------------------------- */

enum remote_operation { REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC };

struct memory_range {
    uint64_t address;          /* in the owner's address space */
    uint32_t slot, generation; /* to check again after the access */
    enum key_kind kind;
};

/* One local SGE of a work request (verbs-contract §4.3, first part): VERDICT_OK or VERDICT_LOCAL_PROTECTION.
 * Length 0 is always fine and yields address 0. */
enum verdict keys_check_local(const struct key_table *table, uint32_t pd, uint32_t lkey, uint64_t address,
                              uint32_t length, bool write, struct memory_range *ret_range);
/* One remote access (verbs-contract §4.3, second part): qp_access are the responder QP's access flags.
 * VERDICT_OK, VERDICT_INVALID_REQUEST (QP flags, alignment of atomics) or VERDICT_REMOTE_ACCESS. Length 0 is
 * always fine. */
enum verdict keys_check_remote(const struct key_table *table, uint32_t pd, uint32_t qp_access, uint32_t rkey,
                               uint64_t address, uint32_t length, enum remote_operation operation,
                               struct memory_range *ret_range);

#endif
