/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The owner's side of memory that peers map: mapped records of regions, direct records of QPs, and moving
 * memory away from a peer that does not respond (docs/mapped.md). */
#include "object/memory/mapping.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "mapped/mapped.h"
#include "object/device/device.h"
#include "object/pd/pd.h"
#include "object/ports.h"
#include "object/qp/qp.h"

/* The largest page size of any machine. */
#define PAGE_MAX 65536u
/* Regions without remote access are mapped for messages that are sent from them, from this length on: peers
 * fetch messages of at least direct_fetched_from() bytes. */
#define SENT_FROM     8192u
#define REMOTE_WRITES (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

bool mapping_is_enabled, peers_execute; /* set before the first registration */
/* UINT64_MAX unless SOFTHCA_LOCAL asks for mapping: only regions with remote access are mapped, because moving
 * the pages of others takes more time than sending messages from them saves. */
static uint64_t sent_from = UINT64_MAX;

/* Nothing is mapped before the first connection to this host, so that programs that only communicate with other
 * hosts do not pay for it. Changes under mapping_lock, to false only. */
static _Atomic bool put_off;

/* Guards the list and all mapped records. Held while pages are copied. Above mapped_lock. */
static struct lock mapping_lock = LOCK_INIT;
static struct list regions = {&regions, &regions}; /* mr.mapping_node */

/* A record is closed (odd generation) while it changes. Readers load the generation before and after, and
 * discard what they read if it changed or is odd. Partner of the fence here and of the release in open_record():
 * the reading side in engine/direct/direct.c. */
static void close_record(_Atomic uint32_t *generation)
{
    atomic_store_explicit(generation, atomic_load_explicit(generation, memory_order_relaxed) | 1,
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

static void open_record(_Atomic uint32_t *generation)
{
    uint32_t next = (atomic_load_explicit(generation, memory_order_relaxed) | 1) + 1;

    /* Not 0, which means that the record was never used. */
    atomic_store_explicit(generation, next ? next : 2, memory_order_release);
}

#define set(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)

/* --- regions ----------------------------------------------------------------------------------------- */

/* Publishes in the header how peers open the files of our arenas. Written once: the files stay open. */
static void publish_files(void)
{
    struct segment_header *header = segment_header();
    pid_t thread = 0;
    int fd;

    if (atomic_load_explicit(&header->files_thread, memory_order_relaxed))
        return;
    for (uint32_t i = 0; i < SEGMENT_FILES; i++) {
        struct mapped_file_description description;

        if (mapped_file_place(i, &thread, &fd) != 0 || mapped_file_describe(i, &description) != 0)
            return;
        header->files[i] =
            (struct file_record){.fd = fd, .inode = description.inode, .device = description.device};
    }
    atomic_store_explicit(&header->files_thread, thread, memory_order_release);
}

/* Writes the region's mapped record; mapping_lock held. Only memory in our own arenas is published: memory that
 * the program itself shares cannot be moved away from a peer that was stopped in the middle of a store. */
static void write_record(struct mr *mr)
{
    struct mapped_record *record = segment_mapped(mr->slot);
    struct mapped_piece pieces[16] = {0}, best = {0};
    struct mapped_refusal refusal = {.reason = mapping_is_behind() ? MAPPED_PUT_OFF : MAPPED_NO_MEMORY};
    unsigned count =
        min_of(mapped_pieces(mr->mapping.region, pieces, array_size(pieces)), (unsigned)array_size(pieces));

    for (unsigned i = 0; i < count; i++) {
        if (pieces[i].file < SEGMENT_FILES && pieces[i].length > best.length)
            best = pieces[i];
    }
    close_record(&record->generation);
    set(record->file, best.file);
    set(record->address, best.address);
    set(record->length, best.length);
    set(record->offset, best.offset);
    set(record->mapped, best.length);
    set(record->reason, !mr->mapping.region || mapped_refusals(mr->mapping.region, &refusal, 1)
                            ? (uint32_t)refusal.reason
                            : 0u);
    if (!best.length)
        return;
    publish_files();
    open_record(&record->generation);
}

static struct mapped_region *map_region(uint64_t address, uint64_t length, unsigned access)
{
    return mapped_add(address, length, MAPPED_PEERS_READ | (access & REMOTE_WRITES ? MAPPED_PEERS_WRITE : 0));
}

void mapping_begin(struct mapping *mapping, uint64_t address, uint64_t length, unsigned access)
{
    *mapping = (struct mapping){0};
    if (likely(!mapping_is_enabled) || !length ||
        (!(access & (REMOTE_WRITES | IBV_ACCESS_REMOTE_READ)) && length < sent_from))
        return;
    mapping->wanted = true;
    if (!mapping_is_behind())
        mapping->region = map_region(address, length, access);
}

/* mapping_lock held. */
static void map_late(struct mr *mr)
{
    if (!mr->mapping.region)
        mr->mapping.region = map_region((uintptr_t)mr->ibv.addr, mr->ibv.length, mr->access);
}

void mapping_publish(struct mr *mr)
{
    if (likely(!mr->mapping.wanted))
        return;
    lock_acquire(&mapping_lock);
    if (!mapping_is_behind()) /* mapping_catch_up() may have run since mapping_begin() */
        map_late(mr);
    write_record(mr);
    list_push_back(&regions, &mr->mapping_node);
    object_ports->forget_orphans();
    lock_release(&mapping_lock);
}

/* Waits until no peer executes a request by this key, or until peers that do not respond are given up. Returns
 * whether one of those may still write. */
static bool key_settles(uint32_t slot)
{
    return object_ports->settle(OBJECT_MR, slot, SETTLE_WAIT);
}

static bool overlap(const struct mr *one, const struct mr *other)
{
    uint64_t a = (uintptr_t)one->ibv.addr, b = (uintptr_t)other->ibv.addr;

    return a < b + other->ibv.length + PAGE_MAX && b < a + one->ibv.length + PAGE_MAX;
}

/* The region cannot move within the arena (no space, or no memory): it becomes private memory that peers cannot
 * map. A late store of a peer goes to the old pages. */
static void make_private(const struct mr *mr)
{
    list_for_each (node, &regions) {
        struct mr *other = list_entry(node, struct mr, mapping_node);

        if (!overlap(mr, other))
            continue;
        mapped_remove(other->mapping.region, true);
        other->mapping.region = NULL;
    }
}

/* Moves the region's pages to another place in the arena; mapping_lock held. Other regions on the same pages
 * move with them: their records are closed, and peers settled, before, and written again afterwards. */
static void move_away(const struct mr *mr)
{
    list_for_each (node, &regions) {
        struct mr *other = list_entry(node, struct mr, mapping_node);

        if (!overlap(mr, other))
            continue;
        close_record(&segment_mapped(other->slot)->generation);
        if (other != mr)
            key_settles(other->slot);
    }
    if (mapped_move((uintptr_t)mr->ibv.addr, mr->ibv.length) != 0)
        make_private(mr);
    list_for_each (node, &regions) {
        struct mr *other = list_entry(node, struct mr, mapping_node);

        if (overlap(mr, other))
            write_record(other);
    }
}

void mapping_end(struct mr *mr)
{
    bool stores_may_come;

    if (!mr->mapping.wanted) {
        if (peers_execute && (mr->access & (REMOTE_WRITES | IBV_ACCESS_REMOTE_READ)))
            key_settles(mr->slot);
        return;
    }
    lock_acquire(&mapping_lock);
    close_record(&segment_mapped(mr->slot)->generation);
    stores_may_come = key_settles(mr->slot);
    if (stores_may_come)
        move_away(mr);
    close_record(&segment_mapped(mr->slot)->generation);
    list_remove(&mr->mapping_node);
    lock_release(&mapping_lock);
    mapping_drop(&mr->mapping);
}

bool mapping_is_open(uint32_t slot)
{
    uint32_t generation = atomic_load_explicit(&segment_mapped(slot)->generation, memory_order_relaxed);

    return generation && !(generation & 1);
}

void mapping_drop(struct mapping *mapping)
{
    mapped_remove(mapping->region, false);
    *mapping = (struct mapping){0};
}

bool mapping_is_behind(void)
{
    return atomic_load_explicit(&put_off, memory_order_acquire);
}

/* Threads that connect at the same time wait here until all regions are mapped, so that their peers find them
 * mapped. */
void mapping_catch_up(void)
{
    lock_acquire(&mapping_lock);
    list_for_each (node, &regions) {
        struct mr *mr = list_entry(node, struct mr, mapping_node);

        map_late(mr);
        write_record(mr);
    }
    atomic_store_explicit(&put_off, false, memory_order_release);
    lock_release(&mapping_lock);
}

/* --- memory that has to move ------------------------------------------------------------------------- */

static struct lock evictions_lock = LOCK_INIT; /* a leaf */
/* A bit per key slot, so that noting one never fails; under evictions_lock. Untouched pages take no memory. */
static uint64_t evictions[LIMIT_KEY_SLOTS / 64];
/* How many regions are noted or being moved; increases under evictions_lock. 0: all have moved. */
static _Atomic uint32_t evictions_to_do;

void mapping_evict_later(uint32_t slot)
{
    uint64_t *word = &evictions[slot / 64], bit = (uint64_t)1 << slot % 64;

    lock_acquire(&evictions_lock);
    if (!(*word & bit))
        atomic_fetch_add_explicit(&evictions_to_do, 1, memory_order_relaxed);
    *word |= bit;
    lock_release(&evictions_lock);
}

static bool next_eviction(uint32_t *ret_slot)
{
    uint32_t word = 0;
    bool found;

    lock_acquire(&evictions_lock);
    while (word < array_size(evictions) && !evictions[word])
        word++;
    found = word < array_size(evictions);
    if (found) {
        *ret_slot = word * 64 + (uint32_t)__builtin_ctzll(evictions[word]);
        evictions[word] &= evictions[word] - 1;
    }
    lock_release(&evictions_lock);
    return found;
}

bool mapping_must_evict(void)
{
    return unlikely(atomic_load_explicit(&evictions_to_do, memory_order_acquire) != 0);
}

/* Returns when all regions noted before have moved: a thread that moves them holds mapping_lock. */
void mapping_evict(void)
{
    uint32_t slot;

    lock_acquire(&mapping_lock);
    while (next_eviction(&slot)) {
        key_settles(slot); /* kernel copies end */
        list_for_each (node, &regions) {
            struct mr *mr = list_entry(node, struct mr, mapping_node);

            if (mr->slot != slot)
                continue;
            close_record(&segment_mapped(slot)->generation);
            key_settles(slot);
            move_away(mr);
            break;
        }
        /* Release: the memory has moved. Partner: the acquire in mapping_must_evict(). */
        atomic_fetch_sub_explicit(&evictions_to_do, 1, memory_order_release);
    }
    lock_release(&mapping_lock);
}

void mapping_forget_orphans(void)
{
    lock_acquire(&mapping_lock);
    object_ports->forget_orphans();
    lock_release(&mapping_lock);
}

/* --- QPs --------------------------------------------------------------------------------------------- */

static uint32_t open_access(const struct qp *qp)
{
    const struct qp_attributes *attributes = &qp->record->attributes;
    enum ibv_qp_state state = qp_state(qp);

    /* In RTR only after the first packet, which has to raise COMM_EST. */
    if (qp->record->type != IBV_QPT_RC ||
        (state != IBV_QPS_RTS && state != IBV_QPS_SQD &&
         (state != IBV_QPS_RTR || !qp->record->responder.established)) ||
        !attributes->path.destination_ifindex || !qp->transport.link.reliable)
        return 0;
    return attributes->access_flags &
           (IBV_ACCESS_REMOTE_WRITE |
            (attributes->max_dest_rd_atomic ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0u));
}

static void raise_used(uint32_t used)
{
    _Atomic uint32_t *place = &segment_header()->directs_used;
    uint32_t seen = atomic_load_explicit(place, memory_order_relaxed);

    while (seen < used && !atomic_compare_exchange_weak_explicit(place, &seen, used, memory_order_release,
                                                                 memory_order_relaxed)) {
    }
}

void mapping_update_qp(struct qp *qp)
{
    struct direct_record *record = segment_direct(qp->slot);
    uint32_t access = peers_execute ? open_access(qp) : 0;
    uint32_t qpn = atomic_load_explicit(&qp->record->qpn, memory_order_relaxed);
    uint32_t generation = atomic_load_explicit(&record->generation, memory_order_relaxed);
    bool open = generation && !(generation & 1);

    if (open && record->access == access && record->dest_qpn == qp->record->attributes.dest_qpn)
        return;
    if (open) {
        close_record(&record->generation);
        qp->settle_due = true;
    }
    if (!access)
        return;
    set(record->qpn, qpn);
    set(record->dest_qpn, qp->record->attributes.dest_qpn);
    set(record->pd, qp->pd->number);
    set(record->access, access);
    set(record->ifindex, device_ifindex(qp->context->device));
    set(record->rq_psn, qp->record->attributes.rq_psn);
    set(record->path_mtu, qp->record->attributes.path_mtu);
    set(record->granted, qp->record->attributes.max_dest_rd_atomic);
    raise_used(qp->slot + 1);
    open_record(&record->generation);
}

void mapping_settle_qp(struct qp *qp)
{
    if (likely(!qp->settle_due))
        return;
    qp->settle_due = false;
    if (object_ports->settle(OBJECT_QP, qp->slot, SETTLE_BRIEFLY))
        object_ports->evict_soon();
}

/* --- process ----------------------------------------------------------------------------------------- */

void mapping_enable(bool asked)
{
    struct mapped_means means;

    sent_from = asked ? SENT_FROM : UINT64_MAX;
    atomic_store_explicit(&put_off, !asked, memory_order_relaxed);
    if (!asked) {
        mapping_is_enabled = true;
        return;
    }
    mapped_probe(&means);
    /* Where memory can only be switched while the process has one thread it could not be switched back, because
     * the helper thread is running then. */
    mapping_is_enabled =
        (means.reason == MAPPED_YES || means.reason == MAPPED_PINNED) && !means.single_thread;
}

void mapping_allow_peers(void)
{
    peers_execute = true;
    atomic_store_explicit(&segment_header()->copies, !mapping_is_enabled, memory_order_release);
}

void mapping_after_fork_in_child(void)
{
    lock_init(&mapping_lock);
    lock_init(&evictions_lock);
    if (atomic_exchange_explicit(&evictions_to_do, 0, memory_order_relaxed))
        memset(evictions, 0, sizeof(evictions));
    list_init(&regions);
    mapping_is_enabled = peers_execute = false;
    atomic_store_explicit(&put_off, false, memory_order_relaxed);
}
