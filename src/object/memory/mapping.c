/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The owner's side of memory that peers map: mapped records of regions, direct records of QPs, and moving
 * memory away from a peer that does not respond (docs/mapped.md). What is switched after a registration is in
 * mapping_grow.c. */
#include "object/memory/mapping.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "mapped/mapped.h"
#include "object/device/device.h"
#include "object/memory/mapping_internal.h"
#include "object/pd/pd.h"
#include "object/ports.h"
#include "object/qp/qp.h"

/* The largest page size of any machine. */
#define PAGE_MAX 65536u
/* Regions without remote access are mapped for messages that are sent from them, from this length on: peers
 * fetch messages of at least direct_fetched_from() bytes. */
#define SENT_FROM 8192u

bool mapping_is_enabled, peers_execute; /* set before the first registration */
/* UINT64_MAX unless SOFTHCA_LOCAL asks for mapping: only regions with remote access are mapped, because moving
 * the pages of others takes more time than sending messages from them saves. */
static uint64_t sent_from = UINT64_MAX;

enum mapping_when mapping_when; /* set before the first registration */

struct lock mapping_lock = LOCK_INIT;
struct list mapping_regions = {&mapping_regions, &mapping_regions};

/* A record is closed (odd generation) while it changes. Readers load the generation before and after, and
 * discard what they read if it changed or is odd. Partner of the fence here and of the release in open_record():
 * the reading side in engine/direct/direct.c. */
static void close_record(_Atomic uint32_t *generation)
{
    atomic_store_explicit(generation, atomic_load_explicit(generation, memory_order_relaxed) | 1,
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

/* Of a region: kernel copies may go on outside of [moving_from, moving_to); moving_to 0: nowhere. Release, of the
 * range: whoever sees it sees that the record was opened since it had the one before; of the generation: who sees it
 * has the range. Partner: read_moving() in engine/direct/direct.c. */
static void close_region(struct mapped_record *record, uint64_t moving_from, uint64_t moving_to)
{
    uint32_t generation = atomic_load_explicit(&record->generation, memory_order_relaxed);

    if (unlikely((generation & 1) && record->moving_to)) /* copies go on by this generation */
        generation++;
    __atomic_store_n(&record->moving_from, moving_from, __ATOMIC_RELEASE);
    __atomic_store_n(&record->moving_to, moving_to, __ATOMIC_RELEASE);
    atomic_store_explicit(&record->generation, generation | 1, memory_order_release);
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

/* Of our own arenas, because memory that the program itself shares cannot be moved away from a peer that was stopped in
 * the middle of a store. */
struct mapped_piece mapping_largest_piece(const struct mapped_region *region)
{
    struct mapped_piece pieces[16] = {0}, best = {0};
    unsigned count = min_of(mapped_pieces(region, pieces, array_size(pieces)), (unsigned)array_size(pieces));

    for (unsigned i = 0; i < count; i++) {
        if (pieces[i].file < SEGMENT_FILES && pieces[i].length > best.length)
            best = pieces[i];
    }
    return best;
}

/* Why not all of the region is mapped; 0: it is. */
static uint32_t reason_of(const struct mapping *mapping, const struct mr *mr, uint64_t mapped)
{
    struct mapped_refusal refusal;

    if (mr->access & IBV_ACCESS_ON_DEMAND)
        return 0;
    if (mapping_on_demand() && !mapping->refused && mapped < mr->ibv.length)
        return mapping->hindrance ? mapping->hindrance : (uint32_t)MAPPED_PUT_OFF;
    if (!mapping->region)
        return MAPPED_NO_MEMORY;
    return mapped_refusals(mapping->region, &refusal, 1) ? (uint32_t)refusal.reason : 0;
}

/* Writes the region's mapped record; mapping_lock held. An open record without length says that peers may have the
 * kernel copy. */
static void write_record(struct mr *mr)
{
    struct mapped_record *record = segment_mapped(mr->slot);
    struct mapped_piece best = mapping_largest_piece(mr->mapping.region);

    close_region(record, 0, 0);
    set(record->file, best.file);
    set(record->address, best.address);
    set(record->length, best.length);
    set(record->offset, best.offset);
    set(record->mapped, best.length);
    set(record->reason, reason_of(&mr->mapping, mr, best.length));
    if (mr->mapping.ending || (!best.length && !mapping_on_demand()))
        return;
    if (best.length)
        publish_files();
    open_record(&record->generation);
}

void mapping_begin(struct mapping *mapping, uint64_t address, uint64_t length, unsigned access)
{
    *mapping = (struct mapping){0};
    if (likely(!mapping_is_enabled) || !length ||
        (!(access & (REMOTE_WRITES | IBV_ACCESS_REMOTE_READ)) && length < sent_from))
        return;
    if (access & IBV_ACCESS_ON_DEMAND) {
        /* It is never mapped. Its record is closed while its pages are switched for another region. */
        mapping->wanted = mapping->refused = mapping_on_demand();
        return;
    }
    mapping->wanted = true;
    if (!mapping_on_demand())
        mapping->region = mapped_add(address, length, mapping_peers_access(access));
}

void mapping_publish(struct mr *mr)
{
    if (likely(!mr->mapping.wanted))
        return;
    lock_acquire(&mapping_lock);
    write_record(mr);
    list_push_back(&mapping_regions, &mr->mapping_node);
    mr->mapping.published = true;
    mapping_grow_begin(mr);
    object_ports->forget_orphans();
    lock_release(&mapping_lock);
}

/* Waits until no peer executes a request by this key, or until peers that do not respond are given up. Returns
 * whether one of those may still write. */
static bool key_settles(uint32_t slot)
{
    return object_ports->settle(OBJECT_MR, slot, SETTLE_WAIT);
}

/* Does the region share a page with [start, end)? */
static bool overlaps(const struct mr *mr, uint64_t start, uint64_t end)
{
    uint64_t address = (uintptr_t)mr->ibv.addr;
    uint64_t length = min_of((uint64_t)mr->ibv.length, UINT64_MAX - PAGE_MAX - address); /* implicit ODP */

    return address < end + PAGE_MAX && start < address + length + PAGE_MAX;
}

void mapping_write_records(uint64_t start, uint64_t end)
{
    list_for_each (node, &mapping_regions) {
        struct mr *mr = list_entry(node, struct mr, mapping_node);

        if (overlaps(mr, start, end))
            write_record(mr);
    }
}

bool mapping_close_records(uint64_t start, uint64_t end)
{
    bool ended = true;

    list_for_each (node, &mapping_regions) {
        struct mr *mr = list_entry(node, struct mr, mapping_node);

        if (!overlaps(mr, start, end))
            continue;
        if (!mr->mapping.ending) /* else it is closed already, and nothing may go on */
            close_region(segment_mapped(mr->slot), start, end);
        ended = ended && !object_ports->settle(OBJECT_MR, mr->slot, SETTLE_TRY);
    }
    return ended;
}

void mapping_open_records(uint64_t start, uint64_t end)
{
    list_for_each (node, &mapping_regions) {
        struct mr *mr = list_entry(node, struct mr, mapping_node);

        if (overlaps(mr, start, end) && !mr->mapping.ending)
            open_record(&segment_mapped(mr->slot)->generation);
    }
}

/* The pages cannot move within the arena (no space, or no memory): they become private memory that peers cannot
 * map. A late store of a peer goes to the old pages. */
static void make_private(uint64_t start, uint64_t end)
{
    list_for_each (node, &mapping_regions) {
        struct mr *mr = list_entry(node, struct mr, mapping_node);

        if (!overlaps(mr, start, end))
            continue;
        mapped_remove(mr->mapping.region, true);
        mr->mapping.region = NULL;
        mr->mapping.refused = true;
    }
}

/* Moves the region's pages to another place in the arena; mapping_lock held. Other regions on the same pages
 * move with them: their records are closed, and peers settled, before, and written again afterwards. */
static void move_away(const struct mr *mr)
{
    uint64_t start = (uintptr_t)mr->ibv.addr, end = start + mr->ibv.length;

    list_for_each (node, &mapping_regions) {
        struct mr *other = list_entry(node, struct mr, mapping_node);

        if (!overlaps(other, start, end))
            continue;
        close_region(segment_mapped(other->slot), 0, 0);
        if (other != mr)
            object_ports->settle(OBJECT_MR, other->slot, SETTLE_STORES);
        object_ports->settle(OBJECT_MR, other->slot, SETTLE_TRY);
    }
    if (mapped_move(start, mr->ibv.length) != 0)
        make_private(start, end);
    mapping_write_records(start, end);
}

void mapping_end(struct mr *mr)
{
    struct mapping ended;
    bool stores_may_come;

    if (!mr->mapping.wanted) {
        if (peers_execute && (mr->access & (REMOTE_WRITES | IBV_ACCESS_REMOTE_READ)))
            key_settles(mr->slot);
        return;
    }
    lock_acquire(&mapping_lock);
    mr->mapping.ending = true;
    close_region(segment_mapped(mr->slot), 0, 0);
    mapping_grow_end(mr);
    lock_release(&mapping_lock);
    stores_may_come = key_settles(mr->slot);
    lock_acquire(&mapping_lock);
    if (stores_may_come)
        move_away(mr);
    list_remove(&mr->mapping_node);
    ended = mr->mapping;
    mr->mapping = (struct mapping){0};
    lock_release(&mapping_lock);
    mapping_drop(&ended);
}

void mapping_set(struct mr *mr, const struct mapping *mapping)
{
    lock_acquire(&mapping_lock);
    mr->mapping = *mapping;
    lock_release(&mapping_lock);
}

bool mapping_is_open(uint32_t slot)
{
    uint32_t generation = atomic_load_explicit(&segment_mapped(slot)->generation, memory_order_relaxed);

    return generation && !(generation & 1) &&
           __atomic_load_n(&segment_mapped(slot)->length, __ATOMIC_RELAXED) != 0;
}

void mapping_drop(struct mapping *mapping)
{
    mapped_remove(mapping->region, false);
    *mapping = (struct mapping){0};
}

struct mr *mapping_region_in(uint32_t slot)
{
    struct mr *mr = mr_in_slot(slot);

    return mr && mr->mapping.published && !mr->mapping.ending ? mr : NULL;
}

/* --- memory that has to move, or is copied from or to ---------------------------------------------------- */

/* Regions by their key slots, a bit each, so that noting one never fails. Untouched pages take no memory. */
struct noted {
    uint64_t bits[LIMIT_KEY_SLOTS / 64]; /* under noted_lock */
    _Atomic uint32_t count;              /* noted, or being settled; increases under noted_lock */
};

static struct lock noted_lock = LOCK_INIT; /* a leaf */
static struct noted moves, copies;

static void note(struct noted *noted, uint32_t slot)
{
    uint64_t *word = &noted->bits[slot / 64], bit = (uint64_t)1 << slot % 64;

    lock_acquire(&noted_lock);
    if (!(*word & bit))
        atomic_fetch_add_explicit(&noted->count, 1, memory_order_relaxed);
    *word |= bit;
    lock_release(&noted_lock);
}

static bool next_noted(struct noted *noted, uint32_t *ret_slot)
{
    uint32_t word = 0;
    bool found;

    lock_acquire(&noted_lock);
    while (word < array_size(noted->bits) && !noted->bits[word])
        word++;
    found = word < array_size(noted->bits);
    if (found) {
        *ret_slot = word * 64 + (uint32_t)__builtin_ctzll(noted->bits[word]);
        noted->bits[word] &= noted->bits[word] - 1;
    }
    lock_release(&noted_lock);
    return found;
}

/* Release: the memory has moved, or the copy has ended. Partner: the acquire in is_noted(). */
static void done(struct noted *noted)
{
    atomic_fetch_sub_explicit(&noted->count, 1, memory_order_release);
}

static bool is_noted(const struct noted *noted)
{
    return unlikely(atomic_load_explicit(&noted->count, memory_order_acquire) != 0);
}

void mapping_evict_later(uint32_t slot)
{
    note(&moves, slot);
}

void mapping_wait_later(uint32_t slot)
{
    note(&copies, slot);
}

bool mapping_must_evict(void)
{
    return is_noted(&moves) || is_noted(&copies);
}

/* Returns when all regions noted before have moved: a thread that moves them holds mapping_lock. */
void mapping_move(void)
{
    struct mr *mr;
    uint32_t slot;

    if (!is_noted(&moves))
        return;
    lock_acquire(&mapping_lock);
    while (next_noted(&moves, &slot)) {
        mr = mapping_region_in(slot);
        if (mr) { /* else mapping_end() moves it */
            close_region(segment_mapped(slot), 0, 0);
            object_ports->settle(OBJECT_MR, slot, SETTLE_STORES);
            move_away(mr);
        }
        done(&moves);
    }
    lock_release(&mapping_lock);
}

/* Threads that come while one of them waits for a copy wait here, too. */
static struct lock copies_lock = LOCK_INIT; /* above noted_lock */

void mapping_evict(void)
{
    uint32_t slot;

    mapping_move();
    if (!is_noted(&copies))
        return;
    lock_acquire(&copies_lock);
    while (next_noted(&copies, &slot)) {
        object_ports->settle(OBJECT_MR, slot, SETTLE_COPIES);
        done(&copies);
    }
    lock_release(&copies_lock);
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
    uint32_t access = attributes->access_flags;

    /* What is counted here must come as packets: a peer that executes it tells nobody. */
    if (qp->counted & COUNTED_BIT(COUNTED_REMOTE_READ))
        access &= ~(uint32_t)IBV_ACCESS_REMOTE_READ;
    if (qp->counted & COUNTED_BIT(COUNTED_REMOTE_WRITE))
        access &= ~(uint32_t)IBV_ACCESS_REMOTE_WRITE;

    /* In RTR only after the first packet, which has to raise COMM_EST. */
    if (qp->record->type != IBV_QPT_RC || (qp->by_packets & (QP_CAPTURED | QP_LOSES)) ||
        (state != IBV_QPS_RTS && state != IBV_QPS_SQD &&
         (state != IBV_QPS_RTR || !qp->record->responder.established)) ||
        !attributes->path.destination_ifindex || !qp->transport.link.local ||
        device_port_is_down(qp->context->device))
        return 0;
    return access &
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

void mapping_enable(enum mapping_when wanted)
{
    struct mapped_means means;

    mapping_when = wanted;
    sent_from = mapping_on_demand() ? UINT64_MAX : SENT_FROM;
    if (mapping_on_demand()) {
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
    atomic_store_explicit(&segment_header()->copies,
                          !mapping_is_enabled   ? SEGMENT_COPIES
                          : mapping_on_demand() ? SEGMENT_COPIES_AND_MAPS
                                                : SEGMENT_NO_COPIES,
                          memory_order_release);
}

void mapping_after_fork_in_child(void)
{
    lock_init(&mapping_lock);
    lock_init(&noted_lock);
    lock_init(&copies_lock);
    if (atomic_exchange_explicit(&moves.count, 0, memory_order_relaxed))
        memset(moves.bits, 0, sizeof(moves.bits));
    if (atomic_exchange_explicit(&copies.count, 0, memory_order_relaxed))
        memset(copies.bits, 0, sizeof(copies.bits));
    list_init(&mapping_regions);
    mapping_grow_after_fork_in_child();
    mapping_is_enabled = peers_execute = false;
    mapping_when = MAPPING_AT_REGISTRATION;
}
