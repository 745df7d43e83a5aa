/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Provenance of objects, time stamps, and the records of ids and items. */
#include "segment/provenance.h"

#include <string.h>
#include <time.h>

#include "base/sys.h"
#include "segment/segment.h"
#include "segment/stack.h"

_Atomic bool provenance_is_explained, provenance_has_times;

void provenance_explain(bool times)
{
    if (times)
        atomic_store_explicit(&provenance_has_times, true, memory_order_relaxed);
    atomic_store_explicit(&provenance_is_explained, true, memory_order_relaxed);
    atomic_store_explicit(&segment_header()->explains, 1, memory_order_relaxed);
}

void provenance_created(struct provenance_record *provenance)
{
    *provenance = (struct provenance_record){
        .created_ns = sys_now(),
        .created_by = (uint32_t)sys_gettid(),
        .created_stack = explained() ? stack_capture() : NO_STACK,
    };
}

void provenance_destroying(struct provenance_record *provenance)
{
    provenance->destroying_by = (uint32_t)sys_gettid();
    provenance->destroying_stack = explained() ? stack_capture() : NO_STACK;
    /* Release: a reader that sees the time also sees thread and stack. */
    __atomic_store_n(&provenance->destroying_ns, sys_now(), __ATOMIC_RELEASE);
}

void provenance_destroy_unblocked(struct provenance_record *provenance)
{
    __atomic_store_n(&provenance->destroying_ns, 0, __ATOMIC_RELAXED);
}

void provenance_key_created(uint32_t slot, uint32_t domain)
{
    if (explained()) {
        provenance_created(segment_key_provenance(slot));
        provenance_in_domain(segment_key_provenance(slot), domain);
    }
}

void provenance_key_moved(uint32_t slot, uint32_t domain)
{
    if (explained())
        provenance_in_domain(segment_key_provenance(slot), domain);
}

/* The coarse clock advances every few milliseconds and is read without a system call. */
cold_path uint32_t provenance_stamp_now(void)
{
    struct timespec now;
    uint32_t stamp;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    stamp = (uint32_t)((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / NS_PER_MS);
    return stamp != STAMP_NONE ? stamp : 1;
}

struct provenance_batch provenance_batch;

cold_path uint32_t provenance_batch_stamp(void)
{
    uint32_t stamp = atomic_load_explicit(&provenance_batch.stamp, memory_order_relaxed);

    if (stamp == STAMP_NONE) {
        stamp = provenance_stamp_now();
        atomic_store_explicit(&provenance_batch.stamp, stamp, memory_order_relaxed);
    }
    return stamp;
}

static void oldest_is_latest(struct event_record *record)
{
    record->type = record->latest_type;
    record->read_by = record->latest_by;
    record->read_stack = record->latest_stack;
    record->read_ns = record->latest_ns;
}

void provenance_event_read(struct event_record *record, uint32_t type, uint32_t reported)
{
    uint32_t acked = __atomic_load_n(&record->acked, __ATOMIC_RELAXED);
    bool is_oldest = (int32_t)(acked - record->reported) >= 0;

    /* Completion events are frequent, and alike. */
    if (is_oldest || type) {
        record->latest_type = type;
        record->latest_by = (uint32_t)sys_gettid();
        record->latest_stack = explained() ? stack_capture() : NO_STACK;
        record->latest_ns = sys_now();
    }
    /* All earlier events are acknowledged: this one is now the oldest that is not. */
    if (is_oldest)
        oldest_is_latest(record);
    __atomic_store_n(&record->reported, reported, __ATOMIC_RELEASE);
}

void provenance_event_acked(struct event_record *record, uint32_t type)
{
    if (record->reported - record->acked == 1 && record->type == type)
        oldest_is_latest(record);
}

struct id_record *id_publish(void)
{
    uint32_t number = segment_is_open() ? number_take(&pool_ids) : NO_OBJECT;
    struct id_record *record;

    if (number == NO_OBJECT)
        return NULL;
    record = segment_id(number);
    memset(record, 0, sizeof(*record));
    provenance_created(&record->provenance);
    atomic_store_explicit(&record->state, OBJECT_ALIVE, memory_order_release);
    return record;
}

uint32_t id_number(const struct id_record *record)
{
    return (uint32_t)(record - segment_id(0));
}

void id_withdraw(struct id_record *record)
{
    atomic_store_explicit(&record->state, OBJECT_FREE, memory_order_release);
    number_return(&pool_ids, id_number(record));
}

uint32_t item_take(enum object_kind kind, uint32_t number, uint32_t context, uint32_t parent,
                   const void *detail)
{
    uint32_t item = number_take(&pool_items);
    struct item_record *record;

    if (item == NO_OBJECT)
        return NO_OBJECT;
    record = segment_item(item);
    memset(record, 0, sizeof(*record));
    record->kind = kind;
    record->number = number;
    record->context = context;
    record->parent = parent;
    if (detail)
        memcpy(record->gid, detail, sizeof(record->gid));
    provenance_created(&record->provenance);
    atomic_store_explicit(&record->state, OBJECT_ALIVE, memory_order_release);
    return item;
}

/* Release: waiting_by is that of this wait; partner: readers of the segment. */
void item_wait_begins(uint32_t item)
{
    struct item_record *record = item != NO_OBJECT ? segment_item(item) : NULL;

    if (!record)
        return;
    __atomic_store_n(&record->waiting_by, (uint32_t)sys_gettid(), __ATOMIC_RELAXED);
    __atomic_store_n(&record->waiting_ns, sys_now(), __ATOMIC_RELEASE);
}

void item_wait_ends(uint32_t item)
{
    if (item != NO_OBJECT)
        __atomic_store_n(&segment_item(item)->waiting_ns, 0, __ATOMIC_RELAXED);
}

void item_use(uint32_t item, int users)
{
    if (item != NO_OBJECT)
        atomic_fetch_add_explicit(&segment_item(item)->users, (uint32_t)users, memory_order_relaxed);
}

void item_orphaned(uint32_t item)
{
    if (item != NO_OBJECT)
        atomic_store_explicit(&segment_item(item)->state, OBJECT_DESTROYING, memory_order_relaxed);
}

void item_return(uint32_t item)
{
    if (item == NO_OBJECT)
        return;
    atomic_store_explicit(&segment_item(item)->state, OBJECT_FREE, memory_order_release);
    number_return(&pool_items, item);
}
