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
/* Bytes that a call of the program switches besides its own work: some 0.1 ms. */
#define STEP_IN_CALL ((uint64_t)128 << 10)
/* Regions that mapping_connected() switches at most: each takes some 0.2 ms, however small. */
#define REGIONS_AT_ONCE 64u

bool mapping_is_enabled, peers_execute; /* set before the first registration */
/* UINT64_MAX unless SOFTHCA_LOCAL asks for mapping: only regions with remote access are mapped, because moving
 * the pages of others takes more time than sending messages from them saves. */
static uint64_t sent_from = UINT64_MAX;

/* Set before the first registration. */
static enum mapping_when when;

/* Nothing is mapped at registration, but later what peers access often (mapping_want()). So memory that no peer accesses
 * is never switched. */
static bool on_demand(void)
{
    return when != MAPPING_AT_REGISTRATION;
}

/* Guards the lists and all mapped records. Held while pages are copied. Above mapped_lock. */
static struct lock mapping_lock = LOCK_INIT;
static struct list regions = {&regions, &regions}; /* mr.mapping_node */
static struct list growing = {&growing,
                              &growing}; /* mr.mapping.growing: the window is smaller than what is wanted */
_Atomic uint32_t mapping_growing;        /* how many; changes under mapping_lock */
/* With MAPPING_IN_CALLS: published regions that mapping_connected() has not seen. Changes under mapping_lock. */
static _Atomic uint32_t untried;

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

/* The largest part of the region in our own arenas. Memory that the program itself shares cannot be moved away from a
 * peer that was stopped in the middle of a store. */
static struct mapped_piece largest_piece(const struct mapped_region *region)
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
    if (on_demand() && !mapping->refused && mapped < mr->ibv.length)
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
    struct mapped_piece best = largest_piece(mr->mapping.region);

    close_record(&record->generation);
    set(record->file, best.file);
    set(record->address, best.address);
    set(record->length, best.length);
    set(record->offset, best.offset);
    set(record->mapped, best.length);
    set(record->reason, reason_of(&mr->mapping, mr, best.length));
    if (mr->mapping.ending || (!best.length && !on_demand()))
        return;
    if (best.length)
        publish_files();
    open_record(&record->generation);
}

/* The access that peers get. */
static unsigned mapped_access(unsigned access)
{
    return MAPPED_PEERS_READ | (access & REMOTE_WRITES ? MAPPED_PEERS_WRITE : 0);
}

void mapping_begin(struct mapping *mapping, uint64_t address, uint64_t length, unsigned access)
{
    *mapping = (struct mapping){0};
    if (likely(!mapping_is_enabled) || !length ||
        (!(access & (REMOTE_WRITES | IBV_ACCESS_REMOTE_READ)) && length < sent_from))
        return;
    if (access & IBV_ACCESS_ON_DEMAND) {
        /* It is never mapped. Its record is closed while its pages are switched for another region. */
        mapping->wanted = mapping->refused = on_demand();
        return;
    }
    mapping->wanted = true;
    if (!on_demand())
        mapping->region = mapped_add(address, length, mapped_access(access));
}

/* mapping_lock held. */
static void note_tried(struct mr *mr)
{
    if (mr->mapping.untried)
        atomic_fetch_sub_explicit(&untried, 1, memory_order_relaxed);
    mr->mapping.untried = false;
}

void mapping_publish(struct mr *mr)
{
    if (likely(!mr->mapping.wanted))
        return;
    lock_acquire(&mapping_lock);
    write_record(mr);
    list_push_back(&regions, &mr->mapping_node);
    list_init(&mr->mapping.growing);
    mr->mapping.published = true;
    if (when == MAPPING_IN_CALLS) {
        mr->mapping.untried = true;
        atomic_fetch_add_explicit(&untried, 1, memory_order_relaxed);
    }
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

/* Of all regions on these pages; mapping_lock held. */
static void write_records(uint64_t start, uint64_t end)
{
    list_for_each (node, &regions) {
        struct mr *mr = list_entry(node, struct mr, mapping_node);

        if (overlaps(mr, start, end))
            write_record(mr);
    }
}

/* Peers get to know before the first step begins. mapping_lock held. */
static void count_growing(uint32_t count)
{
    atomic_store_explicit(&segment_header()->growing, count, memory_order_relaxed);
    atomic_store_explicit(&mapping_growing, count, memory_order_release);
}

/* mapping_lock held. */
static void stop_growing(struct mr *mr)
{
    if (!list_linked(&mr->mapping.growing))
        return;
    list_remove(&mr->mapping.growing);
    count_growing(atomic_load_explicit(&mapping_growing, memory_order_relaxed) - 1);
}

/* The pages cannot move within the arena (no space, or no memory): they become private memory that peers cannot
 * map. A late store of a peer goes to the old pages. */
static void make_private(uint64_t start, uint64_t end)
{
    list_for_each (node, &regions) {
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

    list_for_each (node, &regions) {
        struct mr *other = list_entry(node, struct mr, mapping_node);

        if (!overlaps(other, start, end))
            continue;
        close_record(&segment_mapped(other->slot)->generation);
        if (other != mr)
            object_ports->settle(OBJECT_MR, other->slot, SETTLE_STORES);
        object_ports->settle(OBJECT_MR, other->slot, SETTLE_TRY);
    }
    if (mapped_move(start, mr->ibv.length) != 0)
        make_private(start, end);
    write_records(start, end);
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
    note_tried(mr);
    close_record(&segment_mapped(mr->slot)->generation);
    stop_growing(mr);
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

/* The region with the key in that slot, of the list `regions`; NULL: none, or it is being deregistered. mapping_lock
 * held, without which its mapping does not end. */
static struct mr *region_in(uint32_t slot)
{
    struct mr *mr = mr_in_slot(slot);

    return mr && mr->mapping.published && !mr->mapping.ending ? mr : NULL;
}

/* --- in the background ------------------------------------------------------------------------------- */

/* The window of a region is the part that was switched so far, contiguous, because a record describes one part. It
 * grows by steps towards what peers have asked for. Peers have the kernel copy meanwhile. A step is switched in portions, and
 * while one is, the records of all regions on its pages are closed, because a copy into pages that are moving would be
 * lost. A requester that finds a closed record waits for a moment (direct_find_copied()). */

/* Bytes. A portion takes some tens of microseconds, mostly for system calls. */
#define PORTION ((uint64_t)16 << 10)

static void ask_for(struct mr *mr, uint64_t start, uint64_t end)
{
    struct mapping *mapping = &mr->mapping;

    if (mapping->wanted_from == mapping->wanted_to) {
        mapping->wanted_from = mapping->from = mapping->to = start;
        mapping->wanted_to = end;
    } else {
        mapping->wanted_from = min_of(mapping->wanted_from, start);
        mapping->wanted_to = max_of(mapping->wanted_to, end);
    }
    if (list_linked(&mapping->growing) ||
        (mapping->from == mapping->wanted_from && mapping->to == mapping->wanted_to))
        return;
    list_push_back(&growing, &mapping->growing);
    count_growing(atomic_load_explicit(&mapping_growing, memory_order_relaxed) + 1);
}

bool mapping_want(uint32_t slot, uint32_t step)
{
    struct mr *mr;
    uint64_t start, end;

    if (!on_demand() || slot >= LIMIT_KEY_SLOTS)
        return false;
    lock_acquire(&mapping_lock);
    mr = region_in(slot);
    if (mr && !mr->mapping.refused) {
        start = mapping_step_start((uintptr_t)mr->ibv.addr, step);
        end = min_of(start + MAPPING_STEP, (uintptr_t)mr->ibv.addr + mr->ibv.length);
        start = max_of(start, (uint64_t)(uintptr_t)mr->ibv.addr);
        if (start < end)
            ask_for(mr, start, end);
    }
    lock_release(&mapping_lock);
    return mapping_is_growing();
}

/* The next window, by a step of that length; false: it is as large as wanted. */
static bool next_window(const struct mapping *mapping, uint64_t step, uint64_t *ret_from, uint64_t *ret_to)
{
    *ret_from = mapping->from;
    *ret_to = mapping->to;
    if (mapping->to < mapping->wanted_to)
        *ret_to = min_of((mapping->to & ~(step - 1)) + step, mapping->wanted_to);
    else if (mapping->from > mapping->wanted_from)
        *ret_from = max_of((mapping->from - 1) & ~(step - 1), mapping->wanted_from);
    else
        return false;
    return true;
}

/* A copy into the portion has not ended in time. mapping_lock held. */
static bool copies_hinder;

/* mapped_portions.before: closes the records of all regions on these pages. mapping_lock held. */
static bool close_all(uint64_t start, uint64_t end)
{
    bool ended = true;

    list_for_each (node, &regions) {
        struct mr *mr = list_entry(node, struct mr, mapping_node);

        if (!overlaps(mr, start, end))
            continue;
        close_record(&segment_mapped(mr->slot)->generation);
        ended = ended && !object_ports->settle(OBJECT_MR, mr->slot, SETTLE_TRY);
    }
    copies_hinder = !ended;
    return ended;
}

/* mapped_portions.after: what the records say has not changed. mapping_lock held. */
static void open_all(uint64_t start, uint64_t end)
{
    list_for_each (node, &regions) {
        struct mr *mr = list_entry(node, struct mr, mapping_node);

        if (overlaps(mr, start, end) && !mr->mapping.ending)
            open_record(&segment_mapped(mr->slot)->generation);
    }
}

static const struct mapped_portions portions = {
    .size = PORTION, .unhindered = true, .before = close_all, .after = open_all};

/* Until a peer asks again. */
static void ask_for_no_more(struct mr *mr)
{
    mr->mapping.wanted_from = mr->mapping.from;
    mr->mapping.wanted_to = mr->mapping.to;
}

/* Switches what is new in the window; mapping_lock held. */
static void grow(struct mr *mr, uint64_t from, uint64_t to)
{
    struct mapped_region *before = mr->mapping.region, *grown;
    uint64_t start = to > mr->mapping.to ? mr->mapping.to : from;
    uint64_t end = to > mr->mapping.to ? to : mr->mapping.from;
    uint64_t mapped = largest_piece(before).length;

    /* The record stays as it is, so that peers ask for it more and more seldom. */
    mr->mapping.hindrance = (uint32_t)mapped_hindrance();
    if (mr->mapping.hindrance) {
        set(segment_mapped(mr->slot)->reason, mr->mapping.hindrance);
        ask_for_no_more(mr);
        return;
    }
    copies_hinder = false;
    grown = mapped_add_in_portions(from, to - from, mapped_access(mr->access), &portions);
    if (grown) {
        mr->mapping.region = grown;
        mapped_remove(before, false); /* its pages are those of the larger one, too */
    }
    if (copies_hinder) { /* what is switched already is found by the next step */
        ask_for_no_more(mr);
    } else {
        mr->mapping.from = from;
        mr->mapping.to = to;
        mr->mapping.refused = largest_piece(mr->mapping.region).length <= mapped;
    }
    if (mr->mapping.refused)
        stop_growing(mr);
    write_records(start, end);
}

/* One step; mapping_lock held. False: there are no more. */
static bool grow_once(uint64_t step)
{
    struct mr *mr;
    uint64_t from, to;

    if (list_empty(&growing))
        return false;
    mr = list_entry(growing.next, struct mr, mapping.growing);
    if (next_window(&mr->mapping, step, &from, &to))
        grow(mr, from, to);
    else
        stop_growing(mr);
    return !list_empty(&growing);
}

static bool grow_by(uint64_t step)
{
    bool more;

    lock_acquire(&mapping_lock);
    more = grow_once(step);
    lock_release(&mapping_lock);
    return more;
}

bool mapping_grow(void)
{
    return mapping_is_growing() && when == MAPPING_IN_BACKGROUND && grow_by(MAPPING_STEP);
}

void mapping_grow_in_call(void)
{
    if (when == MAPPING_IN_CALLS)
        grow_by(STEP_IN_CALL);
}

/* As much of a region as there is room for, from its beginning on. Bytes that were taken; mapping_lock held. */
static uint64_t ask_for_beginning(struct mr *mr, uint64_t room)
{
    uint64_t start = (uintptr_t)mr->ibv.addr, length = min_of((uint64_t)mr->ibv.length, room);

    note_tried(mr);
    if (!(mr->access & (REMOTE_WRITES | IBV_ACCESS_REMOTE_READ)) || mr->mapping.refused ||
        mr->mapping.ending || !length)
        return 0;
    ask_for(mr, start, start + length);
    return length;
}

/* What is switched before a peer has accessed it takes three quarters of the room: the rest is for what peers turn out
 * to access often. */
static uint64_t room_of_the_untried(void)
{
    struct mapped_means means;
    struct mapped_counts counts;
    uint64_t most;

    mapped_probe(&means);
    if (means.reason != MAPPED_YES)
        return 0;
    mapped_count(&counts);
    most = means.lock_limit / 4 * 3;
    return most - min_of(most, counts.bytes);
}

void mapping_connected(void)
{
    unsigned tried = 0;
    uint64_t room;

    if (likely(!atomic_load_explicit(&untried, memory_order_relaxed)))
        return;
    room = room_of_the_untried();
    lock_acquire(&mapping_lock);
    list_for_each (node, &regions) {
        struct mr *mr = list_entry(node, struct mr, mapping_node);

        if (!mr->mapping.untried)
            continue;
        if (tried++ < REGIONS_AT_ONCE)
            room -= ask_for_beginning(mr, room);
        else
            note_tried(mr); /* if peers access it often */
    }
    while (grow_once(MAPPING_STEP))
        ;
    lock_release(&mapping_lock);
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
        mr = region_in(slot);
        if (mr) { /* else mapping_end() moves it */
            close_record(&segment_mapped(slot)->generation);
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
    if (qp->record->type != IBV_QPT_RC ||
        (state != IBV_QPS_RTS && state != IBV_QPS_SQD &&
         (state != IBV_QPS_RTR || !qp->record->responder.established)) ||
        !attributes->path.destination_ifindex || !qp->transport.link.reliable)
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

    when = wanted;
    sent_from = on_demand() ? UINT64_MAX : SENT_FROM;
    if (on_demand()) {
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
                          !mapping_is_enabled ? SEGMENT_COPIES
                          : on_demand()       ? SEGMENT_COPIES_AND_MAPS
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
    list_init(&regions);
    list_init(&growing);
    atomic_store_explicit(&mapping_growing, 0, memory_order_relaxed);
    atomic_store_explicit(&untried, 0, memory_order_relaxed);
    mapping_is_enabled = peers_execute = false;
    when = MAPPING_AT_REGISTRATION;
}
