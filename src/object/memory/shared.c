/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Objects in the device file. Several processes write to the file, and each may die at any instruction, so there
 * are no locks in it. An object is one word that holds whether the object is alive, its generation, and the
 * processes that use it. A process uses the object, ends it, or finds it ended, by one compare-and-swap. A process
 * that wants to end an object ignores users that have died: each process has bound an abstract unix socket named
 * by its tag, and the kernel says whether that is still bound.
 *
 * Values from the file are checked, because any process that has a descriptor can write them. Such a process can
 * end the file's objects or keep them busy, as with the device file of a kernel driver, and nothing else. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/log.h"
#include "object/memory/share_internal.h"

static _Atomic uint64_t *word_of(const struct share *share, enum share_kind kind, uint32_t handle)
{
    switch (kind) {
    case SHARE_PD:
        return &share->page->pds[handle];
    case SHARE_MR:
        return &share->page->regions[handle];
    case SHARE_DM:
        break;
    }
    return &share->page->dms[handle].word;
}

static uint32_t handles_of(enum share_kind kind)
{
    return kind == SHARE_PD ? LIMIT_PD : kind == SHARE_DM ? SHARE_DMS : SHARE_REGIONS;
}

static uint32_t generation_of(uint64_t word)
{
    return (uint32_t)(word >> WORD_GENERATION_SHIFT & WORD_GENERATION_MASK);
}

static bool is_alive(uint64_t word, uint32_t generation)
{
    return (word & WORD_ALIVE) && generation_of(word) == generation;
}

static uint64_t make_word(uint64_t flags, uint32_t generation)
{
    return flags | (uint64_t)generation << WORD_GENERATION_SHIFT;
}

static uint64_t my_bit(const struct share *share)
{
    return 1ull << share->index;
}

static bool take_handle(struct share *share, enum share_kind kind, uint32_t handle, uint32_t *ret_generation)
{
    _Atomic uint64_t *word = word_of(share, kind, handle);
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);

    *ret_generation = (generation_of(old) + 1) & WORD_GENERATION_MASK;
    return !(old & (WORD_ALIVE | WORD_TAKEN)) &&
           atomic_compare_exchange_strong_explicit(word, &old, make_word(WORD_TAKEN, *ret_generation),
                                                   memory_order_acquire, memory_order_relaxed);
}

/* Lock held. Takes the lowest free handle, except for PD handles that other processes have freed since. */
static bool find_handle(struct share *share, enum share_kind kind, uint32_t *ret_handle,
                        uint32_t *ret_generation)
{
    uint32_t count = handles_of(kind), first = kind == SHARE_PD ? share->first_free : 0;

    for (uint32_t i = 0; i < count; i++) {
        *ret_handle = (first + i) % count;
        if (take_handle(share, kind, *ret_handle, ret_generation)) {
            if (kind == SHARE_PD)
                share->first_free = (*ret_handle + 1) % count;
            return true;
        }
    }
    return false;
}

static struct shared *note(struct share *share, enum share_kind kind, uint32_t handle, uint32_t generation,
                           uint32_t number)
{
    struct shared *shared = calloc(1, sizeof(*shared));

    if (!shared)
        return NULL;
    shared->share = share;
    shared->kind = kind;
    shared->handle = handle;
    shared->generation = generation;
    shared->structures = 1;
    shared->number = number;
    list_push_back(&share->objects, &shared->node);
    return shared;
}

int shared_create(struct share *share, enum share_kind kind, uint32_t number, struct shared **ret_shared)
{
    uint32_t handle, generation;
    int error = -ENOMEM;

    lock_acquire(&share->lock);
    if (find_handle(share, kind, &handle, &generation)) {
        *ret_shared = note(share, kind, handle, generation, number);
        if (*ret_shared)
            error = 0;
        else
            atomic_store_explicit(word_of(share, kind, handle), make_word(0, generation),
                                  memory_order_release);
    }
    lock_release(&share->lock);
    return error;
}

void shared_publish(struct shared *shared)
{
    /* Release: the object's entry is filled in. Partner: the acquire in shared_find(). */
    atomic_store_explicit(word_of(shared->share, shared->kind, shared->handle),
                          make_word(WORD_ALIVE, shared->generation), memory_order_release);
}

/* Lock held. */
static struct shared *known(const struct share *share, enum share_kind kind, uint32_t handle,
                            uint32_t generation)
{
    list_for_each (node, &share->objects) {
        struct shared *shared = list_entry(node, struct shared, node);

        if (shared->kind == kind && shared->handle == handle && shared->generation == generation)
            return shared;
    }
    return NULL;
}

int shared_find(struct share *share, enum share_kind kind, uint32_t handle, uint32_t number,
                struct shared **ret_shared)
{
    uint32_t generation;
    int error = 0;
    uint64_t word;

    if (handle >= handles_of(kind))
        return -EINVAL;
    lock_acquire(&share->lock);
    word = atomic_load_explicit(word_of(share, kind, handle), memory_order_acquire);
    generation = generation_of(word);
    if (!(word & WORD_ALIVE)) {
        error = -EINVAL;
    } else if ((*ret_shared = known(share, kind, handle, generation))) {
        (*ret_shared)->structures++;
    } else {
        *ret_shared = note(share, kind, handle, generation, number);
        error = *ret_shared ? 0 : -ENOMEM;
    }
    lock_release(&share->lock);
    return error;
}

bool shared_is_alive(const struct shared *shared)
{
    return is_alive(
        atomic_load_explicit(word_of(shared->share, shared->kind, shared->handle), memory_order_relaxed),
        shared->generation);
}

int shared_use(struct shared *shared)
{
    struct share *share = shared->share;
    _Atomic uint64_t *word = word_of(share, shared->kind, shared->handle);
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    int error = 0;

    lock_acquire(&share->lock);
    if (!shared->users) {
        do {
            if (!is_alive(old, shared->generation)) {
                error = -EINVAL;
                break;
            }
        } while (!atomic_compare_exchange_weak_explicit(word, &old, old | my_bit(share), memory_order_acquire,
                                                        memory_order_relaxed));
    }
    if (!error)
        shared->users++;
    lock_release(&share->lock);
    return error;
}

void shared_unuse(struct shared *shared)
{
    struct share *share = shared->share;
    _Atomic uint64_t *word = word_of(share, shared->kind, shared->handle);
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);

    lock_acquire(&share->lock);
    if (--shared->users == 0) {
        /* Release: this process's use is over. Partner: the acquire in end(). The loop stops if the object has
         * ended: another process may have taken this one for dead. */
        while (is_alive(old, shared->generation) &&
               !atomic_compare_exchange_weak_explicit(word, &old, old & ~my_bit(share), memory_order_release,
                                                      memory_order_relaxed))
            continue;
    }
    lock_release(&share->lock);
}

/* --- ending --------------------------------------------------------------------------------------------- */

static const char *kind_name(enum share_kind kind)
{
    return kind == SHARE_PD ? "PD" : kind == SHARE_DM ? "DM" : "MR";
}

/* The index of another running process that uses the object; SHARE_PROCESSES: none does. */
static uint32_t find_user(const struct share *share, uint64_t word)
{
    for (uint64_t users = word & WORD_USERS; users; users &= users - 1) {
        uint32_t index = (uint32_t)__builtin_ctzll(users);

        if (index != share->index && share_process_lives(&share->page->process[index]))
            return index;
    }
    return SHARE_PROCESSES;
}

/* Lock held. */
static int end(struct shared *shared)
{
    struct share *share = shared->share;
    _Atomic uint64_t *word = word_of(share, shared->kind, shared->handle);
    uint64_t old = atomic_load_explicit(word, memory_order_relaxed);
    uint32_t user;

    do {
        if (!is_alive(old, shared->generation))
            return -ENOENT;
        user = find_user(share, old);
        if (user != SHARE_PROCESSES) {
            log_warn("%s handle %u cannot be destroyed (EBUSY): process %u, which imported the same device, "
                     "uses it",
                     kind_name(shared->kind), shared->handle,
                     (unsigned)atomic_load_explicit(&share->page->process[user].pid, memory_order_relaxed));
            return -EBUSY;
        }
        /* Acquire: partner of the release in shared_unuse(). */
    } while (!atomic_compare_exchange_strong_explicit(word, &old, make_word(WORD_TAKEN, shared->generation),
                                                      memory_order_acquire, memory_order_relaxed));
    return 0;
}

int shared_end(struct shared *shared)
{
    struct share *share = shared->share;
    int error;

    lock_acquire(&share->lock);
    if (shared->users) {
        log_warn("%s handle %u cannot be destroyed (EBUSY): this process has imported it, and still uses it",
                 kind_name(shared->kind), shared->handle);
        error = -EBUSY;
    } else {
        error = end(shared);
    }
    lock_release(&share->lock);
    return error;
}

void shared_give_handle(struct shared *shared)
{
    struct share *share = shared->share;

    lock_acquire(&share->lock);
    atomic_store_explicit(word_of(share, shared->kind, shared->handle), make_word(0, shared->generation),
                          memory_order_release);
    if (shared->kind == SHARE_PD && shared->handle < share->first_free)
        share->first_free = shared->handle;
    lock_release(&share->lock);
}

bool shared_drop(struct shared *shared)
{
    struct share *share = shared->share;
    bool last;

    lock_acquire(&share->lock);
    last = --shared->structures == 0;
    if (last)
        list_remove(&shared->node);
    lock_release(&share->lock);
    if (last)
        free(shared);
    return last;
}

const _Atomic uint64_t *shared_word(const struct shared *shared, uint64_t *ret_mask, uint64_t *ret_value)
{
    *ret_mask = ~WORD_USERS;
    *ret_value = make_word(WORD_ALIVE, shared->generation);
    return word_of(shared->share, shared->kind, shared->handle);
}

/* --- regions -------------------------------------------------------------------------------------------- */

void share_region_fill(const struct shared *shared, const struct share_region *region)
{
    shared->share->page->region[shared->handle] = *region;
}

int share_region_find(const struct shared *pd, uint32_t handle, struct share_region *ret_region,
                      struct shared **ret_shared)
{
    struct share *share = pd->share;

    for (uint32_t i = 0; i < SHARE_REGIONS; i++) {
        uint64_t word = atomic_load_explicit(&share->page->regions[i], memory_order_acquire);

        if (!(word & WORD_ALIVE))
            continue;
        /* Copied, then checked: the copy is valid if the word still has the same generation. */
        memcpy(ret_region, &share->page->region[i], sizeof(*ret_region));
        atomic_thread_fence(memory_order_acquire);
        if (ret_region->handle != handle || ret_region->pd != pd->handle ||
            ret_region->pd_generation != pd->generation)
            continue;
        if (shared_find(share, SHARE_MR, i, 0, ret_shared) != 0)
            return -EINVAL;
        if ((*ret_shared)->generation == generation_of(word))
            return 0;
        shared_drop(*ret_shared);
    }
    return -EINVAL;
}

bool share_is_file(const struct share *share, const struct memory_file *file)
{
    return file->inode == share->inode && makedev(file->device_major, file->device_minor) == share->device;
}
