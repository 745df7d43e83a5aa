/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Access slots: hazard pointers of requesters that access memory of a peer, in the memory of the link. The format is
 * shared between processes. SEGMENT_VERSION covers it: a process takes access slots only of peers that publish a
 * segment of its own version.
 *
 * Word of an access slot:
 *
 *   bits 0-1     enum access_kind
 *   bit 2        ACCESS_SLOT_GIVEN_UP
 *   bit 3        ACCESS_SLOT_VOIDED
 *   bits 4-22    slot in the owner's key table
 *   bits 23-40   slot in the owner's QP table
 *   bits 41-63   generation: how often the slot was taken. The owner, who compares two loads of the word, does not
 *                mistake a new access for the one it waits for. */
#ifndef ENGINE_DIRECT_ACCESS_SLOT_H
#define ENGINE_DIRECT_ACCESS_SLOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/types.h"
#include "local/local.h"
#include "rules/limits.h"

enum access_kind {
    ACCESS_NONE,   /* the slot is free */
    ACCESS_STORES, /* loads and stores in mapped memory */
    ACCESS_BEGINS, /* of a kernel copy: `remote` is being filled in, nothing was checked yet */
    ACCESS_COPIES, /* the kernel copies what `remote` says */
};

#define ACCESS_SLOT_KIND     3u
#define ACCESS_SLOT_GIVEN_UP 4u /* set by the owner, which no longer waits: the access is void */
/* Set by the owner before it writes to `remote`. The requester takes the slot no more, even when its access has ended,
 * before the owner has cleared the bit. */
#define ACCESS_SLOT_VOIDED     8u
#define ACCESS_SLOT_KEY_SHIFT  4
#define ACCESS_SLOT_QP_SHIFT   23
#define ACCESS_SLOT_GENERATION ((uint64_t)1 << 41)
_Static_assert(LIMIT_KEY_SLOTS <= 1u << (ACCESS_SLOT_QP_SHIFT - ACCESS_SLOT_KEY_SHIFT) &&
                   LIMIT_QP <= ACCESS_SLOT_GENERATION >> ACCESS_SLOT_QP_SHIFT,
               "key slot and QP slot fit below the generation");

#define ACCESS_PIECES 2

struct access_slot {
    /* The requester writes this word and then reads the owner's records; the owner writes those and then reads this
     * word. Each has a full fence in between (access_slot_fence(), direct_settle()). */
    _Atomic uint64_t word;
    /* Of a kernel copy, written before the word says ACCESS_COPIES. thread: who copies. remote: the addresses of the
     * owner that the system call reads from here. The owner sets the lengths to 0 when it takes the memory back: a
     * requester that has not begun its call then moves nothing. */
    _Atomic int32_t thread;
    uint32_t reserved;
    struct iovec remote[ACCESS_PIECES];
} cache_aligned;
_Static_assert(sizeof(struct access_slot) == CACHE_LINE, "format of the link's memory (local/layout.h)");

static inline enum access_kind access_slot_kind(uint64_t word)
{
    return (enum access_kind)(word & ACCESS_SLOT_KIND);
}

static inline uint32_t access_slot_key(uint64_t word)
{
    return (uint32_t)(word >> ACCESS_SLOT_KEY_SHIFT) & (LIMIT_KEY_SLOTS - 1);
}

static inline uint32_t access_slot_qp(uint64_t word)
{
    return (uint32_t)(word >> ACCESS_SLOT_QP_SHIFT) & (LIMIT_QP - 1);
}

static inline struct access_slot *access_slot_of(struct link *link, bool ours, uint32_t number)
{
    return link_access_slot(link, ours, number);
}

/* The admission flag, behind the access slots. The requester opens it before it takes its first access slot; the
 * owner of the memory closes it when the link goes down. The requester checks it while it holds a slot. (The word
 * behind it is link_waits_for_copies().) */
enum { ADMISSION_NEW, ADMISSION_OPEN, ADMISSION_CLOSED };

static inline _Atomic uint64_t *admission_of(struct link *link, bool ours)
{
    return link_access_slot(link, ours, LOCAL_ACCESS_SLOTS);
}

/* --- requester ------------------------------------------------------------------------------------------ */

/* Orders the store to the access slot before the loads of the checks: either the owner sees the slot, or the checks see
 * the owner's change. Partner: the fence in direct_settle(). */
static inline void access_slot_fence(void)
{
#if defined(__x86_64__) || defined(__i386__)
    atomic_signal_fence(memory_order_seq_cst); /* a locked instruction is a fence */
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Takes one of the link's slots, from number `first` on, for an access of that kind: by the key in slot `key`, as the
 * requester of the owner's QP in slot `qp`. NULL: all are taken. *ret_word: what the slot says now. */
static inline struct access_slot *access_slot_take(struct access_slot *slots, uint32_t first,
                                                   enum access_kind kind, uint32_t qp, uint32_t key,
                                                   uint64_t *ret_word)
{
    const uint64_t what =
        (uint64_t)qp << ACCESS_SLOT_QP_SHIFT | (uint64_t)key << ACCESS_SLOT_KEY_SHIFT | (uint64_t)kind;

    for (uint32_t i = 0; i < LOCAL_ACCESS_SLOTS; i++) {
        struct access_slot *slot = &slots[(first + i) % LOCAL_ACCESS_SLOTS];
        uint64_t seen = atomic_load_explicit(&slot->word, memory_order_relaxed);

        if (seen & (ACCESS_SLOT_KIND | ACCESS_SLOT_VOIDED))
            continue;
        *ret_word = ((seen / ACCESS_SLOT_GENERATION + 1) * ACCESS_SLOT_GENERATION) | what;
        if (likely(atomic_compare_exchange_strong_explicit(&slot->word, &seen, *ret_word,
                                                           memory_order_seq_cst, memory_order_relaxed))) {
            access_slot_fence();
            return slot;
        }
    }
    return NULL;
}

/* False: the owner has given up waiting, and the access is void. Release: the accesses are complete before the owner
 * sees the slot free (settle_access_slot()). */
static inline bool access_slot_release(struct access_slot *slot, uint64_t word)
{
    uint64_t seen = word, idle = word & ~(ACCESS_SLOT_GENERATION - 1);

    if (likely(atomic_compare_exchange_strong_explicit(&slot->word, &seen, idle, memory_order_release,
                                                       memory_order_relaxed)))
        return true;
    /* The owner's bits may still change. ACCESS_SLOT_VOIDED stays for the owner to clear. */
    atomic_fetch_and_explicit(&slot->word, ~(ACCESS_SLOT_GENERATION - 1) | ACCESS_SLOT_VOIDED,
                              memory_order_release);
    return !(seen & ACCESS_SLOT_GIVEN_UP);
}

#endif
