/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Records of protection domains and of what is registered or made in them: MRs, MWs, AHs. */
#include <string.h>

#include "watch/state.h"

/* --- PD, MR, MW ----------------------------------------------------------------------------------------- */

struct watched_pd *watched_new_pd(struct ibv_pd *ibv, struct ibv_context *context, struct ibv_pd *protects,
                                  struct ibv_td *td)
{
    struct watched_pd *base = protects ? (struct watched_pd *)watched_find(protects, OBJECT_PD) : NULL;
    struct watched_pd *pd = object_make(OBJECT_PD, sizeof(*pd), ibv, context);
    uint32_t number = pd ? number_take(&pool_pds) : NO_OBJECT;
    struct pd_record *record;

    if (number == NO_OBJECT) {
        if (pd)
            object_discard(&pd->base);
        return NULL;
    }
    pd->base.number = number;
    record = segment_pd(number);
    memset(record, 0, sizeof(*record));
    record->context = context_number(&pd->base);
    record->protects = number_of(base);
    record->td = number_of(td ? watched_find(td, OBJECT_TD) : NULL);
    provenance_created(&record->provenance);
    atomic_store_explicit(&record->state, OBJECT_ALIVE, memory_order_release);
    pd_use(base, 1);
    return object_publish(pd);
}

static struct key_entry *key_entry_of(const struct watched *object)
{
    return &segment_keys()->entry[object->number];
}

static struct watched_key *make_key(enum object_kind kind, const void *key, struct ibv_pd *ibv)
{
    struct watched_key *made = object_make(kind, sizeof(*made), key, ibv->context);
    uint32_t slot = made ? number_take(&pool_keys) : NO_OBJECT;

    if (slot == NO_OBJECT) {
        if (made)
            object_discard(&made->base);
        return NULL;
    }
    made->base.number = slot;
    made->pd = (struct watched_pd *)watched_find(ibv, OBJECT_PD);
    memset(key_entry_of(&made->base), 0, sizeof(struct key_entry));
    provenance_created(segment_key_provenance(slot));
    created_in(segment_key_provenance(slot), made->pd);
    pd_use(made->pd, 1);
    return made;
}

/* Only explanations read these entries, without its generation; the kind is written last. */
static void fill_region(struct watched_key *mr, const struct ibv_mr *ibv, uint64_t iova, unsigned access)
{
    struct key_entry *entry = key_entry_of(&mr->base);

    entry->lkey = ibv->lkey;
    entry->rkey = ibv->rkey;
    entry->pd = pd_number(mr->pd);
    entry->access = access;
    entry->iova = iova;
    entry->length = ibv->length;
    entry->address = (uintptr_t)ibv->addr;
    entry->handle = ibv->handle;
    __atomic_store_n(&entry->kind, (uint8_t)KEY_REGION, __ATOMIC_RELEASE);
}

void watched_new_mr(struct ibv_mr *ibv, struct ibv_pd *pd, uint64_t iova, unsigned access, struct ibv_dm *dm,
                    uint64_t dm_offset)
{
    struct watched_key *mr = make_key(OBJECT_MR, ibv, pd);

    if (!mr)
        return;
    fill_region(mr, ibv, iova, access);
    mr->dm = dm ? watched_find(dm, OBJECT_DM) : NULL;
    if (mr->dm && mr->dm->item != NO_OBJECT)
        key_entry_of(&mr->base)->address = segment_item(mr->dm->item)->address + dm_offset;
    object_publish(mr);
}

void watched_mr_changed(struct ibv_mr *ibv, struct ibv_pd *ibv_pd, uint64_t iova, unsigned access)
{
    struct watched_key *mr = (struct watched_key *)watched_find(ibv, OBJECT_MR);

    if (!mr)
        return;
    if (ibv_pd) {
        pd_use(mr->pd, -1);
        mr->pd = (struct watched_pd *)watched_find(ibv_pd, OBJECT_PD);
        pd_use(mr->pd, 1);
        created_in(segment_key_provenance(mr->base.number), mr->pd);
    }
    fill_region(mr, ibv, iova, access);
}

void watched_new_mw(struct ibv_mw *ibv, struct ibv_pd *pd)
{
    struct watched_key *mw = make_key(OBJECT_MW, ibv, pd);
    struct key_entry *entry;

    if (!mw)
        return;
    entry = key_entry_of(&mw->base);
    entry->rkey = ibv->rkey;
    entry->pd = pd_number(mw->pd);
    __atomic_store_n(&entry->kind, (uint8_t)(ibv->type == IBV_MW_TYPE_2 ? KEY_MW_TYPE_2 : KEY_MW_TYPE_1),
                     __ATOMIC_RELEASE);
    object_publish(mw);
}

void watched_mw_bound(struct ibv_mw *ibv, struct ibv_mr *ibv_mr, uint32_t rkey)
{
    struct watched *mw = watched_find(ibv, OBJECT_MW), *mr = watched_find(ibv_mr, OBJECT_MR);
    struct key_entry *entry;

    if (!mw)
        return;
    entry = key_entry_of(mw);
    entry->rkey = rkey;
    entry->region = number_of(mr);
    entry->bound = mr != NULL;
}

/* --- AH, destroyed -------------------------------------------------------------------------------------- */

struct watched *watched_new_ah(struct ibv_ah *ah, struct ibv_pd *ibv, const union ibv_gid *gid)
{
    struct watched_pd *pd = (struct watched_pd *)watched_find(ibv, OBJECT_PD);
    struct watched_item *item =
        (struct watched_item *)watched_new_item(ah, OBJECT_AH, ibv->context, pd_number(pd), gid);

    if (!item)
        return NULL;
    item->pd = pd;
    pd_use(pd, 1);
    if (item->base.item != NO_OBJECT)
        created_in(&segment_item(item->base.item)->provenance, pd);
    return &item->base;
}

void free_domain_record(struct watched *object)
{
    struct watched_key *key = (struct watched_key *)object;
    struct pd_record *record;

    if (object->kind == OBJECT_AH) {
        pd_use(((struct watched_item *)object)->pd, -1);
        item_return(object->item);
    } else if (object->kind == OBJECT_PD) {
        record = segment_pd(object->number);
        if (record->protects != NO_OBJECT)
            atomic_fetch_sub_explicit(&segment_pd(record->protects)->users, 1, memory_order_relaxed);
        atomic_store_explicit(&record->state, OBJECT_FREE, memory_order_release);
        number_return(&pool_pds, object->number);
    } else {
        pd_use(key->pd, -1);
        __atomic_store_n(&key_entry_of(object)->kind, (uint8_t)KEY_FREE, __ATOMIC_RELEASE);
        number_return(&pool_keys, object->number);
    }
}
