/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The owner's side of the key table. Every function runs under the table's lock, so entries are read plainly; they
 * are written with relaxed atomic stores, because readers take no lock. */
#include "rules/keys.h"

#define MW_RIGHTS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
/* LOCAL_WRITE has no meaning for an MW, but programs pass the flags of the region. */
#define MW_FLAGS (MW_RIGHTS | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_OPTIONAL_RANGE)

#define set(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

static struct key_entry *entry_at(struct key_table *table, uint32_t slot)
{
    return &table->entry[slot & (LIMIT_KEY_SLOTS - 1)];
}

static void begin_change(struct key_entry *entry)
{
    uint32_t generation = atomic_load_explicit(&entry->generation, memory_order_relaxed);

    atomic_store_explicit(&entry->generation, generation | 1, memory_order_relaxed);
    /* Release: odd is seen before any field; partner: the acquire fence of keys_try_read(). */
    atomic_thread_fence(memory_order_release);
}

static void end_change(struct key_entry *entry)
{
    uint32_t generation = atomic_load_explicit(&entry->generation, memory_order_relaxed);

    /* Release: fields are seen before even; partner: the acquire load of keys_try_read(). */
    atomic_store_explicit(&entry->generation, generation + 1, memory_order_release);
}

/* One word, as keys_try_read() reads it. */
static void set_traits(struct key_entry *entry, enum key_kind kind, bool bound, bool zero_based,
                       bool on_demand)
{
    const uint8_t bytes[4] = {(uint8_t)kind, bound, zero_based, on_demand};
    uint32_t word;

    memcpy(&word, bytes, sizeof(word));
    set(*(uint32_t *)(void *)&entry->kind, word);
}

static void set_memory(struct key_entry *entry, uint32_t access, uint64_t iova, uint64_t length,
                       uint64_t address)
{
    set(entry->access, access);
    set(entry->iova, access & IBV_ACCESS_ZERO_BASED ? 0 : iova);
    set(entry->length, length);
    set(entry->address, address);
}

/* Never 0, which means no key, and never the last key of the slot, which a program may still use. */
static uint32_t make_key(uint32_t slot, uint32_t marks, uint32_t random, uint8_t tag, uint32_t previous)
{
    uint32_t key;

    do {
        key = (random >> KEY_TOP_SHIFT << KEY_TOP_SHIFT & ~KEY_COPIED) | marks |
              (slot & (LIMIT_KEY_SLOTS - 1)) << KEY_SLOT_SHIFT | tag++;
    } while (!key || key == previous);
    return key;
}

void keys_publish_region(struct key_table *table, uint32_t slot, enum key_kind kind, uint32_t pd,
                         uint32_t access, uint64_t iova, uint64_t length, uint64_t address, uint32_t random)
{
    struct key_entry *entry = entry_at(table, slot);
    bool null = kind == KEY_REGION_NULL;
    uint32_t marks = access & ACCESS_COPIED ? KEY_COPIED : 0;

    begin_change(entry);
    set_traits(entry, kind, false, access & IBV_ACCESS_ZERO_BASED, kind == KEY_REGION_ON_DEMAND);
    set(entry->lkey, make_key(slot, marks, random, (uint8_t)random, entry->lkey));
    set(entry->rkey,
        null ? 0 : make_key(slot, marks | KEY_REMOTE, random, (uint8_t)(random >> 8), entry->rkey));
    set(entry->pd, pd);
    set(entry->region, 0);
    set(entry->mws, 0);
    set(entry->handle, slot);
    if (null)
        set_memory(entry, IBV_ACCESS_LOCAL_WRITE, 0, UINT64_MAX, 0);
    else
        set_memory(entry, access, iova, length, address);
    end_change(entry);
}

void keys_publish_mw(struct key_table *table, uint32_t slot, enum key_kind kind, uint32_t pd, uint32_t random)
{
    struct key_entry *entry = entry_at(table, slot);

    begin_change(entry);
    set_traits(entry, kind, false, false, false);
    set(entry->lkey, 0);
    set(entry->rkey, make_key(slot, KEY_REMOTE, random, (uint8_t)(random >> 8), entry->rkey));
    set(entry->pd, pd);
    set(entry->region, 0);
    set(entry->mws, 0);
    set(entry->handle, slot);
    set_memory(entry, 0, 0, 0, 0);
    end_change(entry);
}

void keys_change_region(struct key_table *table, uint32_t slot, uint32_t pd, uint32_t access, uint64_t iova,
                        uint64_t length, uint64_t address)
{
    struct key_entry *entry = entry_at(table, slot);

    begin_change(entry);
    set_traits(entry, (enum key_kind)entry->kind, false, access & IBV_ACCESS_ZERO_BASED, entry->on_demand);
    set(entry->pd, pd);
    set_memory(entry, access, iova, length, address);
    end_change(entry);
}

/* The count is not part of the meaning of a key, so the generation does not change. */
static void count_mw(struct key_table *table, uint32_t region, bool more)
{
    struct key_entry *entry = entry_at(table, region);

    if (more)
        set(entry->mws, entry->mws + 1);
    else if (entry->mws)
        set(entry->mws, entry->mws - 1);
}

/* Between begin_change() and end_change(). */
static void unbind(struct key_table *table, struct key_entry *mw)
{
    if (!mw->bound)
        return;
    count_mw(table, mw->region, false);
    set_traits(mw, (enum key_kind)mw->kind, false, false, false);
    set(mw->region, 0);
    set_memory(mw, ACCESS_WAS_BOUND, 0, 0, 0);
}

void keys_unbind_mw(struct key_table *table, uint32_t slot)
{
    struct key_entry *mw = entry_at(table, slot);

    begin_change(mw);
    unbind(table, mw);
    end_change(mw);
}

void keys_withdraw(struct key_table *table, uint32_t slot)
{
    struct key_entry *entry = entry_at(table, slot);

    begin_change(entry);
    unbind(table, entry);
    /* The keys stay in the entry, so that make_key() does not give them out again at once. */
    set_traits(entry, KEY_FREE, false, false, false);
    set_memory(entry, 0, 0, 0, 0);
    end_change(entry);
}

/* May this MW be bound now, by this QP, with that key? */
static enum bind_fault mw_fault(const struct key_entry *mw, const struct mw_bind *bind, bool type_2)
{
    if (mw->kind != (type_2 ? KEY_MW_TYPE_2 : KEY_MW_TYPE_1))
        return BIND_NO_MW;
    if (mw->pd != bind->pd)
        return BIND_MW_PD;
    if (!type_2)
        return mw->rkey == bind->mw_rkey ? BIND_ACCEPTED : BIND_MW_KEY;
    if (mw->bound)
        return BIND_MW_BOUND;
    if (!bind->length)
        return BIND_NOTHING;
    /* The program may have changed the tag in ibv_mw.rkey: the index alone identifies the MW. */
    return ((mw->rkey ^ bind->mw_rkey) | (mw->rkey ^ bind->new_rkey)) & ~KEY_TAG_MASK ? BIND_MW_KEY
                                                                                      : BIND_ACCEPTED;
}

/* May an MW be bound to this range of this region? An MW with a remote write or atomic right needs LOCAL_WRITE of the
 * region. */
static enum bind_fault region_fault(const struct key_entry *region, const struct mw_bind *bind)
{
    const struct key_view view = {.iova = region->iova, .length = region->length};

    if ((region->kind != KEY_REGION && region->kind != KEY_REGION_ON_DEMAND) ||
        region->lkey != bind->region_lkey)
        return BIND_REGION;
    if (region->pd != bind->pd)
        return BIND_REGION_PD;
    if (!(region->access & IBV_ACCESS_MW_BIND))
        return BIND_REGION_ACCESS;
    if (bind->access & ~(uint32_t)MW_FLAGS)
        return BIND_FLAGS;
    if ((bind->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
        !(region->access & IBV_ACCESS_LOCAL_WRITE))
        return BIND_LOCAL_WRITE;
    return key_view_covers(&view, bind->address, bind->length) ? BIND_ACCEPTED : BIND_RANGE;
}

enum bind_fault keys_bind_fault(struct key_table *table, const struct mw_bind *bind, bool type_2)
{
    enum bind_fault fault = mw_fault(entry_at(table, key_slot(bind->mw_rkey)), bind, type_2);

    if (fault != BIND_ACCEPTED || !bind->length)
        return fault;
    return region_fault(entry_at(table, key_slot(bind->region_lkey)), bind);
}

enum verdict keys_bind_mw(struct key_table *table, const struct mw_bind *bind, bool type_2,
                          uint32_t *ret_rkey)
{
    struct key_entry *mw = entry_at(table, key_slot(bind->mw_rkey));
    struct key_entry *region = entry_at(table, key_slot(bind->region_lkey));

    if (keys_bind_fault(table, bind, type_2) != BIND_ACCEPTED)
        return VERDICT_MW_BIND;

    uint32_t rkey = type_2 ? bind->new_rkey : keys_next_mw_rkey(mw->rkey, bind->random);

    begin_change(mw);
    unbind(table, mw);
    set(mw->rkey, rkey);
    if (bind->length) {
        uint32_t access = bind->access & (MW_RIGHTS | IBV_ACCESS_ZERO_BASED);

        set_traits(mw, (enum key_kind)mw->kind, true, access & IBV_ACCESS_ZERO_BASED, region->on_demand);
        set(mw->region, key_slot(bind->region_lkey));
        set_memory(mw, access, bind->address, bind->length, region->address + (bind->address - region->iova));
        count_mw(table, mw->region, true);
    }
    end_change(mw);
    *ret_rkey = rkey;
    return VERDICT_OK;
}

enum verdict keys_invalidate(struct key_table *table, uint32_t rkey, uint32_t pd, bool remote_request)
{
    struct key_entry *mw = entry_at(table, key_slot(rkey));

    if (mw->kind != KEY_MW_TYPE_2 || !mw->bound || mw->rkey != rkey || mw->pd != pd)
        return remote_request ? VERDICT_REMOTE_ACCESS : VERDICT_MW_BIND;
    begin_change(mw);
    unbind(table, mw);
    end_change(mw);
    return VERDICT_OK;
}
