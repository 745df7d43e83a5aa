/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Peers whose memory is mapped in this process. The helper thread opens a peer's files (peer_files.c), and maps its
 * segment and the regions that requests need. The contents are not trusted: numbers are checked and offsets bounded,
 * and the files are sealed against shrinking. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/event.h"
#include "base/log.h"
#include "base/rundown.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/direct/direct.h"
#include "engine/direct/peer_files.h"
#include "engine/paths/paths.h"
#include "object/device/device.h"
#include "object/memory/mapping.h"

/* --- requests to the helper thread ------------------------------------------------------------------ */

#define REQUESTS 64u /* pending at a time; QPs repeat what finds the list full */

/* Map the region with the key in `slot`: of the peer of QP `qpn`, or, if that is 0, of the peer behind link `serial`,
 * whose packets refer to the region. */
struct request {
    uint32_t qpn, slot;
    uint64_t serial; /* if qpn is 0 */
};

static struct lock requests_lock = LOCK_INIT; /* a leaf */
static struct request requests[REQUESTS];
static _Atomic uint32_t request_count; /* changes under requests_lock; direct_run() polls it without */

static bool add_request(const struct request *request)
{
    uint32_t count;

    lock_acquire(&requests_lock);
    count = atomic_load_explicit(&request_count, memory_order_relaxed);
    if (count < REQUESTS) {
        requests[count] = *request;
        atomic_store_explicit(&request_count, count + 1, memory_order_relaxed);
    }
    lock_release(&requests_lock);
    if (count < REQUESTS)
        helper_kick();
    return count < REQUESTS;
}

bool direct_request_map(const struct qp *qp, uint32_t rkey)
{
    return add_request(&(struct request){.qpn = qp->ibv.qp_num, .slot = key_slot(rkey)});
}

void direct_request_fetch(const struct link *link, uint32_t slot)
{
    add_request(&(struct request){.slot = slot, .serial = link_serial(link)});
}

/* All that are pending. */
static uint32_t take_requests(struct request taken[static REQUESTS])
{
    uint32_t count;

    lock_acquire(&requests_lock);
    count = atomic_load_explicit(&request_count, memory_order_relaxed);
    memcpy(taken, requests, count * sizeof(*taken));
    atomic_store_explicit(&request_count, 0, memory_order_relaxed);
    lock_release(&requests_lock);
    return count;
}

/* Requests for which a file is on its way. Helper thread. */
static struct parked {
    struct request request;
    uint64_t link; /* serial */
} parked[REQUESTS];
static unsigned parked_count;

/* Such a request is repeated when the file is there; meanwhile packets go. */
static void park(const struct request *request, const struct link *link)
{
    if (parked_count < REQUESTS)
        parked[parked_count++] = (struct parked){.request = *request, .link = link_serial(link)};
}

/* again: adds the parked requests of the link to those of above; else forgets them. */
static void unpark(const struct link *link, bool again)
{
    unsigned left = 0;

    for (unsigned i = 0; i < parked_count; i++) {
        if (parked[i].link != link_serial(link))
            parked[left++] = parked[i];
        else if (again)
            add_request(&parked[i].request);
    }
    parked_count = left;
}

/* --- peers ------------------------------------------------------------------------------------------ */

static bool table_fits(const struct segment_table *table, size_t stride, uint32_t count, uint64_t end)
{
    return table->stride == stride && table->count == count && table->offset <= end &&
           (uint64_t)count * stride <= end - table->offset && table->offset % CACHE_LINE == 0;
}

/* Maps the peer's first QP records and the beginning of the segment's arena, where most programs have all their
 * queues. No more, because mlockall() in this program populates and locks the mapping. Without the mapping, nothing
 * is deposited: so across pid namespaces, where payload by reference, which a deposit is part of, is not possible
 * either. */
static void map_queues(struct direct_peer *peer, const struct segment_header *header, uint64_t page)
{
    uint64_t end = header->arena_offset, length = min_of(header->arena_size, (uint64_t)DIRECT_QUEUES);
    struct mapped_view *qps, *queues = NULL;
    int error;

    if (!table_fits(&header->qps, sizeof(struct qp_record), LIMIT_QP, end) || header->qps.offset % page ||
        end > UINT64_MAX - length)
        return;
    peer->queue_file = peer->by_link ? NULL : peer_files_open_queues(peer, header);
    qps = mapped_attach(peer->tables, header->qps.offset,
                        (DIRECT_QPS * sizeof(struct qp_record) + page - 1) & ~(page - 1), &error);
    if (qps && peer->queue_file)
        queues = mapped_attach(peer->queue_file, 0, length & ~(page - 1), &error);
    if (!queues) {
        if (qps)
            mapped_detach(qps);
        return;
    }
    peer->qps_view = qps;
    peer->queues_view = queues;
    peer->qps = mapped_view_address(qps, header->qps.offset);
    peer->queues = mapped_view_address(queues, 0);
    peer->queues_from = header->arena_offset;
    peer->queues_end = header->arena_offset + (length & ~(page - 1));
}

/* Maps the tables by which requests are checked. The header is checked in a private copy: the peer could change it
 * between check and use. */
static bool map_segment(struct direct_peer *peer)
{
    long page = sysconf(_SC_PAGESIZE);
    struct mapped_view *first;
    struct segment_header header;
    uint64_t end;
    int error;

    first = mapped_attach(peer->tables, 0, (uint64_t)page, &error);
    if (!first)
        return false;
    memcpy(&header, mapped_view_address(first, 0), sizeof(header));
    mapped_detach(first);
    if (header.magic != SEGMENT_MAGIC || header.version != SEGMENT_VERSION ||
        header.header_size != sizeof(header))
        return false;
    /* Another number here: the peer is of another pid namespace, and so is the thread that has the arenas. */
    peer->by_link = peer->by_link || header.pid != link_peer_pid(peer->link);
    end = segment_direct_end(&header);
    if (end > header.total_size ||
        !table_fits(&header.keys, sizeof(struct key_entry), LIMIT_KEY_SLOTS, end) ||
        !table_fits(&header.mapped, sizeof(struct mapped_record), LIMIT_KEY_SLOTS, end) ||
        !table_fits(&header.directs, sizeof(struct direct_record), LIMIT_QP, end))
        return false;
    end = (end + (uint64_t)page - 1) & ~((uint64_t)page - 1);
    peer->segment_view = mapped_attach(peer->tables, 0, end, &error);
    if (!peer->segment_view)
        return false;
    peer->header = mapped_view_address(peer->segment_view, 0);
    peer->keys = mapped_view_address(peer->segment_view, header.keys.offset);
    peer->mapped = mapped_view_address(peer->segment_view, header.mapped.offset);
    peer->directs = mapped_view_address(peer->segment_view, header.directs.offset);
    peer->alive = atomic_load_explicit(&peer->header->alive, memory_order_relaxed);
    map_queues(peer, &header, (uint64_t)page);
    return peer->alive != 0;
}

/* The peer's tables are open. */
static bool begin_access(struct direct_peer *peer)
{
    if (!peer->tables || !map_segment(peer))
        return false;
    peer->access_slots = access_slot_of(peer->link, true, 0);
    peer->admission = admission_of(peer->link, true);
    /* Before the first access slot is taken: from now on the owner looks at the slots (settle_link()). */
    atomic_compare_exchange_strong(peer->admission, &(uint64_t){ADMISSION_NEW}, ADMISSION_OPEN);
    /* If the peer has died, its pid may belong to another process by now: the files are the peer's only if the link's
     * process is still there. */
    return link_peer_is_there(peer->link);
}

static void set_state(struct direct_peer *peer, enum direct_peer_state state)
{
    /* Release: publishes the initialised peer. Partner: direct_peer_of(). */
    atomic_store_explicit(&peer->state, state, memory_order_release);
    log_info(
        "mapped memory: registered memory of peer process %d %s", (int)link_peer_pid(peer->link),
        state == DIRECT_PEER_USELESS
            ? "cannot be mapped here, because its published segment (the memory in which it publishes its "
              "objects) cannot be used: the shared-memory ring and the kernel copy are used (slower)"
        : state == DIRECT_PEER_ASKED ? "is being requested"
                                     : "can be mapped here");
}

static void open_peer(struct direct_peer *peer)
{
    peer->tables = peer_files_open_tables(peer);
    if (peer->tables)
        set_state(peer, begin_access(peer) ? DIRECT_PEER_USABLE : DIRECT_PEER_USELESS);
    else if (!peer->by_link)
        set_state(peer, DIRECT_PEER_USELESS);
    else if (link_ask_file(peer->link, LINK_FILE_TABLES, NULL))
        set_state(peer, DIRECT_PEER_ASKED);
}

/* Opens the peer at its first use. NULL: it cannot be used, or not yet. */
static struct direct_peer *open_peer_once(struct link *link)
{
    void **place = link_owner_data(link);
    struct direct_peer *peer = *place;

    if (!peer) {
        peer = calloc(1, sizeof(*peer));
        if (!peer)
            return NULL;
        peer->link = link;
        __atomic_store_n(place, peer, __ATOMIC_RELEASE);
    }
    /* If the peer does not watch the slots yet, its end of the link is not up, or it does not want it. */
    if (peer->state == DIRECT_PEER_NEW &&
        (link_can_pull(link) || link_peer_pid(link) <= 0 || link_is_watched(link, false)))
        open_peer(peer);
    return peer->state == DIRECT_PEER_USABLE ? peer : NULL;
}

static bool is_asked(struct link *link)
{
    const struct direct_peer *peer = *link_owner_data(link);

    return peer && peer->state == DIRECT_PEER_ASKED;
}

const struct direct_peer *direct_peer_of(struct link *link)
{
    const struct direct_peer *peer = __atomic_load_n(link_owner_data(link), __ATOMIC_ACQUIRE);

    return peer && atomic_load_explicit(&peer->state, memory_order_acquire) == DIRECT_PEER_USABLE ? peer
                                                                                                  : NULL;
}

void direct_file_came(struct link *link, enum link_file which, int fd)
{
    struct direct_peer *peer = *link_owner_data(link);

    if (peer && peer->state == DIRECT_PEER_ASKED && which == LINK_FILE_TABLES) {
        peer->tables = fd < 0 ? NULL : peer_files_accept_tables(fd);
        set_state(peer, begin_access(peer) ? DIRECT_PEER_USABLE : DIRECT_PEER_USELESS);
    } else if (peer && peer->state == DIRECT_PEER_USABLE && which != LINK_FILE_TABLES) {
        peer_files_arena_came(peer, which, fd);
    }
    fd_close(fd);
    unpark(link, fd >= 0);
}

static void drop_view(struct direct_view *view)
{
    if (!view)
        return;
    mapped_detach(view->view);
    free(view);
}

void direct_link_down(struct link *link)
{
    void **place = link_owner_data(link);
    struct direct_peer *peer = *place;

    *place = NULL;
    unpark(link, false);
    if (peer) {
        for (uint32_t i = 0; i < DIRECT_VIEWS; i++)
            drop_view(atomic_load_explicit(&peer->views[i], memory_order_relaxed));
        for (uint32_t i = 0; i < SEGMENT_FILES; i++)
            mapped_file_drop(peer->files[i]);
        if (peer->qps_view)
            mapped_detach(peer->qps_view);
        if (peer->queues_view)
            mapped_detach(peer->queues_view);
        if (peer->segment_view)
            mapped_detach(peer->segment_view);
        mapped_file_drop(peer->tables);
        mapped_file_drop(peer->queue_file);
        free(peer);
    }
    direct_link_gone();
}

/* --- regions and QPs -------------------------------------------------------------------------------- */

/* As direct_read_record(), with the place in a file. */
static bool read_place(const struct mapped_record *record, struct direct_view *ret_view, uint32_t *ret_file,
                       uint64_t *ret_offset)
{
    uint32_t generation = atomic_load_explicit(&record->generation, memory_order_acquire);

    *ret_view = (struct direct_view){.generation = generation};
    if (!generation || (generation & 1))
        return false;
    ret_view->address = __atomic_load_n(&record->address, __ATOMIC_RELAXED);
    ret_view->length = __atomic_load_n(&record->length, __ATOMIC_RELAXED);
    *ret_file = __atomic_load_n(&record->file, __ATOMIC_RELAXED);
    *ret_offset = __atomic_load_n(&record->offset, __ATOMIC_RELAXED);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&record->generation, memory_order_relaxed) == generation &&
        ret_view->address + ret_view->length > ret_view->address)
        return true;
    ret_view->length = 0;
    return false;
}

bool direct_read_record(const struct mapped_record *record, struct direct_view *ret_view)
{
    uint64_t offset;
    uint32_t file;

    return read_place(record, ret_view, &file, &offset);
}

/* Maps the region whose key is in that slot, unless another region that is still valid has its place in the table.
 * True: the file that it is in is on its way. is_awaited: requests wait for it; else the kernel copies meanwhile, and
 * a thread that has to share its processor with this one, pinned by the program, gets it between two steps: all
 * together take longer than its next request should wait. */
static bool attach(struct direct_peer *peer, uint32_t slot, bool is_awaited)
{
    _Atomic(struct direct_view *) *place = &peer->views[slot % DIRECT_VIEWS];
    struct direct_view *old = atomic_load_explicit(place, memory_order_relaxed), *view;
    struct direct_view found;
    struct mapped_file *file;
    uint64_t offset;
    uint32_t number;
    int error;

    /* A valid view may be in use by QPs, and stays. */
    if (old &&
        atomic_load_explicit(&peer->mapped[old->slot].generation, memory_order_relaxed) == old->generation)
        return false;
    if (!read_place(&peer->mapped[slot], &found, &number, &offset) || number >= SEGMENT_FILES)
        return false;
    found.slot = slot;
    file = peer_files_arena(peer, number, is_awaited);
    if (!file)
        return peer->file_asked[number];
    peer_files_give_way(is_awaited);
    found.view = mapped_attach(file, offset, found.length, &error);
    if (!found.view)
        return false;
    peer_files_give_way(is_awaited);
    found.writable = number == 0;
    found.base = mapped_view_address(found.view, offset);
    view = malloc(sizeof(*view));
    if (!view) {
        mapped_detach(found.view);
        return false;
    }
    *view = found;
    atomic_store_explicit(place, view, memory_order_release);
    if (old) {
        rundown_wait(); /* threads that use the old view are in a rundown section */
        drop_view(old);
    }
    return false;
}

/* The direct record of the peer's QP that is connected to QP `requester` of this process. */
static const struct direct_record *find_qp(const struct direct_peer *peer, uint32_t qpn, uint32_t requester)
{
    uint32_t used =
        min_of(atomic_load_explicit(&peer->header->directs_used, memory_order_acquire), (uint32_t)LIMIT_QP);

    for (uint32_t i = 0; i < used; i++) {
        const struct direct_record *record = &peer->directs[i];

        if (__atomic_load_n(&record->qpn, __ATOMIC_RELAXED) == qpn &&
            __atomic_load_n(&record->dest_qpn, __ATOMIC_RELAXED) == requester)
            return record;
    }
    return NULL;
}

/* Direct execution checks no PSNs. So it is not allowed where the responder would drop packets of this QP for their
 * PSNs: the two QPs were given different initial PSNs, or one of them was connected anew. QP lock held. */
static bool psns_agree(const struct qp *qp, const struct direct_peer *peer, uint32_t slot, uint32_t rq_psn)
{
    const struct sender *sender = &qp->record->sender;
    psn_t expected;

    if (!peer->qps || slot >= DIRECT_QPS)
        return rq_psn == qp->record->attributes.sq_psn;
    expected = psn_make(__atomic_load_n(&peer->qps[slot].responder.expected_psn.value, __ATOMIC_RELAXED));
    return psn_diff(expected, sender->unacked_psn) >= 0 && psn_diff(expected, sender->next_psn) <= 0;
}

/* Enables direct execution for the QP if the peer's QP is connected to it with the same attributes. The fields are
 * loaded between two loads of the generation, as in read_record(). QP lock held. */
static void connect_qp(struct qp *qp, struct direct_peer *peer, const struct direct_record *record)
{
    const struct qp_attributes *attributes = &qp->record->attributes;
    struct direct_route direct = {.peer = peer, .record = record};
    uint32_t generation = atomic_load_explicit(&record->generation, memory_order_acquire);
    uint32_t qpn, dest_qpn, ifindex, rq_psn, path_mtu, granted;

    qpn = __atomic_load_n(&record->qpn, __ATOMIC_RELAXED);
    dest_qpn = __atomic_load_n(&record->dest_qpn, __ATOMIC_RELAXED);
    ifindex = __atomic_load_n(&record->ifindex, __ATOMIC_RELAXED);
    rq_psn = __atomic_load_n(&record->rq_psn, __ATOMIC_RELAXED);
    path_mtu = __atomic_load_n(&record->path_mtu, __ATOMIC_RELAXED);
    granted = __atomic_load_n(&record->granted, __ATOMIC_RELAXED);
    direct.pd = __atomic_load_n(&record->pd, __ATOMIC_RELAXED);
    direct.access = __atomic_load_n(&record->access, __ATOMIC_RELAXED);
    direct.slot = (uint32_t)(record - peer->directs);
    direct.record_generation = generation;
    atomic_thread_fence(memory_order_acquire);
    if (!generation || (generation & 1) ||
        !direct_is_open(&direct) || /* also where the peer has died since */
        qpn != attributes->dest_qpn || dest_qpn != qp->ibv.qp_num ||
        ifindex != attributes->path.destination_ifindex || path_mtu != attributes->path_mtu ||
        !psns_agree(qp, peer, direct.slot, rq_psn))
        return;
    route_of(qp)->direct = direct;
    qp->transport.link.rd_atomic_by_packets = attributes->max_rd_atomic > granted;
}

/* The link that requests of the QP take, and their destination QP. *ret_known: the QP is connected already;
 * *ret_waits: it waits for the helper thread. */
static struct link *link_of(uint32_t qpn, uint32_t *ret_dest_qpn, bool *ret_known, bool *ret_waits)
{
    struct link *link = NULL;
    struct qp *qp;

    rundown_enter();
    qp = qp_lock_number(qpn);
    if (qp) {
        if (qp->transport.link.direct_up_to && route_of(qp)->lane)
            link = lane_link(route_of(qp)->lane);
        *ret_dest_qpn = qp->record->attributes.dest_qpn;
        *ret_known = route_of(qp)->direct.peer != NULL;
        *ret_waits = qp->transport.map_later;
        lock_release(&qp->lock);
    }
    rundown_exit();
    return link; /* valid outside of the section: only this thread frees links */
}

static struct link *link_named(uint64_t serial)
{
    struct link *link;

    rundown_enter();
    link = local_link_of_serial(serial);
    rundown_exit();
    return link; /* valid as in link_of() */
}

static void serve(const struct request *request)
{
    const struct direct_record *record;
    struct direct_peer *peer;
    uint32_t dest_qpn = 0;
    bool known = false, waits = false;
    struct link *link =
        request->qpn ? link_of(request->qpn, &dest_qpn, &known, &waits) : link_named(request->serial);
    struct qp *qp;

    peer = link ? open_peer_once(link) : NULL;
    if (link && (peer ? attach(peer, request->slot, waits) : is_asked(link)))
        park(request, link);
    if (!peer || known || !request->qpn)
        return;
    record = find_qp(peer, dest_qpn, request->qpn);
    if (!record)
        return;
    rundown_enter();
    qp = qp_lock_number(request->qpn);
    if (qp) {
        if (qp->transport.link.direct_up_to && route_of(qp)->lane && lane_link(route_of(qp)->lane) == link &&
            !route_of(qp)->direct.peer)
            connect_qp(qp, peer, record);
        lock_release(&qp->lock);
    }
    rundown_exit();
}

static bool is_attached(const struct direct_peer *peer, uint32_t slot)
{
    const struct direct_view *view =
        atomic_load_explicit(&peer->views[slot % DIRECT_VIEWS], memory_order_relaxed);

    return view && view->slot == slot;
}

/* Runs the QP that has waited for the request (map_later), whether or not memory was mapped. */
static void resume(uint32_t qpn, uint32_t slot)
{
    struct qp *qp;
    struct qp_kick kick = {0};

    rundown_enter();
    qp = qp_lock_number(qpn);
    if (qp) {
        struct direct_route *direct = &route_of(qp)->direct;

        qp->transport.map_later = false;
        direct->copied.rkey = 0; /* perhaps it is mapped now */
        direct->ring = RING_NOT;
        if (direct->peer && is_attached(direct->peer, slot))
            route_note_direct(qp);
        route_run(qp);
        kick = qp_take_kick(qp);
        lock_release(&qp->lock);
        route_ring(&kick);
    }
    rundown_exit();
}

void direct_run(void)
{
    struct request taken[REQUESTS];
    uint32_t count = 0;

    mapping_move();
    if (mapping_grow())
        helper_kick(); /* the next step comes after what else there is to do */
    /* Not what QPs ask for meanwhile: if the peer has died, they ask until this thread has seen the end of the link. */
    if (unlikely(atomic_load_explicit(&request_count, memory_order_relaxed) != 0))
        count = take_requests(taken);
    for (uint32_t i = 0; i < count; i++) {
        serve(&taken[i]);
        if (taken[i].qpn)
            resume(taken[i].qpn, taken[i].slot);
    }
}

void direct_after_fork_in_child(void)
{
    direct_owner_after_fork_in_child();
    lock_init(&requests_lock);
    atomic_store_explicit(&request_count, 0, memory_order_relaxed);
    parked_count = 0;
}
