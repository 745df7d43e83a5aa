/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Records of objects: made when a verb has created one, free when it is destroyed. */
#include <stdlib.h>
#include <string.h>

#include "watch/state.h"

struct table watched_objects;
/* Readers may hold the address of an object that is being destroyed: such memory stays of its kind. */
static struct lock free_lock = LOCK_INIT; /* guards the lists; a leaf */
static struct watched *free_list[OBJECT_KINDS];

static uint64_t key_of(const void *key)
{
    return (uintptr_t)key;
}

struct watched_context *watched_context_of(const struct ibv_context *context)
{
    struct watched *object = context ? table_find(&watched_objects, key_of(context)) : NULL;

    return object && object->kind == OBJECT_CONTEXT ? (struct watched_context *)object : NULL;
}

struct watched_cq *table_find_cq(const struct ibv_cq_ex *cq)
{
    return table_find(&watched_objects, key_of(cq));
}

struct watched_qp *table_find_qp(const struct ibv_qp *qp)
{
    return table_find(&watched_objects, key_of(qp));
}

/* --- making and dropping -------------------------------------------------------------------------------- */

void *object_make(enum object_kind kind, size_t size, const void *key, const struct ibv_context *ibv)
{
    struct watched_context *context = watched_context_of(ibv);
    struct watched *object = NULL;

    if (!watch_start() || !key || (ibv && (!context || is_stale(&context->base))))
        return NULL;
    lock_acquire(&free_lock);
    if (free_list[kind]) {
        object = free_list[kind];
        free_list[kind] = object->next_free;
    }
    lock_release(&free_lock);
    if (object)
        memset(object, 0, size);
    else
        object = calloc(1, size);
    if (!object)
        return NULL;
    object->key = key;
    object->context = context;
    object->kind = kind;
    object->found_as = kind;
    object->number = object->item = NO_OBJECT;
    return object;
}

void object_discard(struct watched *object)
{
    object->key = NULL; /* struct watch_thread of some thread may have it */
    lock_acquire(&free_lock);
    object->next_free = free_list[object->kind];
    free_list[object->kind] = object;
    lock_release(&free_lock);
}

/* The record is filled in. An object that was destroyed unseen may have had the same address. */
void *object_publish(void *made)
{
    struct watched *object = made, *old = table_find(&watched_objects, key_of(object->key));

    if (old && !is_stale(old))
        watched_forget(old);
    if (!table_put(&watched_objects, key_of(object->key), object)) {
        watched_forget(object);
        return NULL;
    }
    return object;
}

/* --- items ---------------------------------------------------------------------------------------------- */

struct watched_context *watched_new_context(struct ibv_context *ibv, const char *device)
{
    struct watched_context *context = object_make(OBJECT_CONTEXT, sizeof(*context), ibv, NULL);
    char name[16] = "";

    if (!context)
        return NULL;
    memcpy(name, device, strnlen(device, sizeof(name)));
    context->base.number = number_take(&pool_contexts);
    context->base.item =
        item_take(OBJECT_CONTEXT, context->base.number, context->base.number, NO_OBJECT, name);
    return object_publish(context);
}

struct watched *watched_new_item(const void *key, enum object_kind kind, struct ibv_context *ibv,
                                 uint32_t parent, const void *detail)
{
    struct watched_item *item = object_make(kind, sizeof(*item), key, ibv);

    if (!item)
        return NULL;
    if (kind == OBJECT_CHANNEL)
        item->base.number = number_take(&pool_channels);
    item->base.item = item_take(kind, item->base.number, context_number(&item->base), parent, detail);
    if (kind != OBJECT_CHANNEL)
        item->base.number = item->base.item;
    return object_publish(item);
}

/* --- multicast ------------------------------------------------------------------------------------------ */

/* An attachment has no structure of the program's: it is found by its QP and group. */
static uint32_t find_attachment(uint32_t qpn, const union ibv_gid *gid)
{
    const struct segment_table *items = &segment_header()->items;

    for (uint32_t i = 0; i < min_of(items->count, 4096u); i++) {
        const struct item_record *record = segment_item(i);

        if (record->state == OBJECT_ALIVE && record->kind == OBJECT_ATTACHMENT && record->parent == qpn &&
            memcmp(record->gid, gid, sizeof(record->gid)) == 0)
            return i;
    }
    return NO_OBJECT;
}

void watched_attached(struct ibv_qp *ibv, const union ibv_gid *gid, bool attached)
{
    struct watched_qp *qp = (struct watched_qp *)watched_find(ibv, OBJECT_QP);
    struct qp_record *record;

    if (!qp)
        return;
    record = segment_qp(qp->base.number);
    if (attached) {
        item_take(OBJECT_ATTACHMENT, NO_OBJECT, context_number(&qp->base), ibv->qp_num, gid);
        record->multicast_groups++;
    } else {
        item_return(find_attachment(ibv->qp_num, gid));
        record->multicast_groups -= record->multicast_groups != 0;
    }
}

/* --- ids ------------------------------------------------------------------------------------------------ */

struct watched_id *watched_new_id(const void *key)
{
    struct watched_id *id = object_make(OBJECT_CM_ID, sizeof(*id), key, NULL);
    struct id_record *record = id ? id_publish() : NULL;

    if (!record) {
        if (id)
            object_discard(&id->base);
        return NULL;
    }
    record->given = 1;
    id->base.number = id_number(record);
    return object_publish(id);
}

/* --- destroyed ------------------------------------------------------------------------------------------ */

static void free_record(struct watched *object)
{
    switch (object->kind) {
    case OBJECT_CONTEXT:
        item_return(object->item);
        number_return(&pool_contexts, object->number);
        return;
    case OBJECT_CHANNEL:
        item_return(object->item);
        number_return(&pool_channels, object->number);
        return;
    case OBJECT_AH:
    case OBJECT_PD:
    case OBJECT_MR:
    case OBJECT_MW:
        free_domain_record(object);
        return;
    case OBJECT_CQ:
    case OBJECT_SRQ:
    case OBJECT_QP:
    case OBJECT_WQ:
    case OBJECT_IND_TABLE:
        free_queue_record(object);
        return;
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
    case OBJECT_COUNTERS:
    case OBJECT_ATTACHMENT:
        item_return(object->item);
        return;
    case OBJECT_CM_ID:
        id_withdraw(segment_id(object->number));
        return;
    }
}

void watched_forget(struct watched *object)
{
    table_drop(&watched_objects, key_of(object->key), object);
    if (!is_stale(object))
        free_record(object);
    object_discard(object);
}

struct provenance_record *watched_provenance(const struct watched *object)
{
    switch (object->kind) {
    case OBJECT_CQ:
        return &segment_cq(object->number)->provenance;
    case OBJECT_QP:
        return &segment_qp(object->number)->provenance;
    case OBJECT_SRQ:
        return &segment_srq(object->number)->provenance;
    case OBJECT_WQ:
        return &segment_wq(object->number)->provenance;
    case OBJECT_CM_ID:
        return &segment_id(object->number)->provenance;
    case OBJECT_CONTEXT:
    case OBJECT_PD:
    case OBJECT_MR:
    case OBJECT_MW:
    case OBJECT_CHANNEL:
    case OBJECT_IND_TABLE:
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
    case OBJECT_COUNTERS:
        break;
    }
    return NULL;
}

struct closing {
    const struct watched_context *context;
};

static void forget_if_inside(void *value, void *argument)
{
    const struct closing *closing = argument;
    struct watched *object = value;

    if (object->context == closing->context && !is_stale(object))
        watched_forget(object);
}

/* The adapter has freed what was left in it. */
void watched_context_closed(struct watched_context *context)
{
    struct closing closing = {context};

    table_each(&watched_objects, forget_if_inside, &closing);
    watched_forget(&context->base);
}

/* --- fork ----------------------------------------------------------------------------------------------- */

/* The child has one thread. Locks that others held are free, and what they guarded is no longer used. */
static void make_stale(void *value, void *argument)
{
    struct watched *object = value;

    object->found_as = OBJECT_KINDS;
}

void objects_after_fork_in_child(void)
{
    lock_init(&watched_objects.lock);
    lock_init(&free_lock);
    table_each(&watched_objects, make_stale, NULL);
}
