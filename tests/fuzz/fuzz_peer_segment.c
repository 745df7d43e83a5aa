/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A peer's segment and memory, as a requester maps and uses them (engine/direct/peer.c, peer_files.c, direct.c,
 * deposit.c, fetch.c, copy.c, mapped/peer.c). The peer is this process itself: its segment is a real one, in which
 * the input changes the header, keys, records of memory and of QPs, queues and files, also between two steps. Opening
 * goes through /proc, or over the link, as in two pid namespaces.
 *
 * An address that a request may use lies in a view of the peer's arena, which is writable if the request writes; each
 * access slot is free again; nothing stays mapped or open when the link is down. A QP that waits for the helper
 * thread is run once for each time that it asked, before the thread looks at what else there is: at the end of the
 * link, for one.
 *
 * Input: steps. A step begins with a byte that selects it. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/event.h"
#include "base/memory_file.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/direct/direct.h"
#include "engine/paths/paths.h"
#include "fuzz.h"
#include "input.h"
#include "object/device/device.h"
#include "object/memory/mapping.h"

#define STEPS        40u
#define KEYS         4u
#define ARENA        (1u << 20) /* bytes of an arena that records name */
#define REGION       65536u
#define QPN          0x1234u
#define PEER_PD      5u
#define DEPTH        8u
#define BYTES        4096u
#define REQUESTS_MAX 64u /* that the helper thread is asked for at a time */

struct lane {
    struct link *link;
};

struct link {
    void *owner_data;
    struct lane lane;
    bool by_link;
    bool can_pull;
};

static struct input input;
static struct link the_link;
static struct access_slot access_slots[LOCAL_ACCESS_SLOTS + 1];
static struct qp *qp;
static int arenas[SEGMENT_FILES], other_file, queue_fd;
static struct segment_header pristine;
static struct file_record pristine_files[SEGMENT_FILES];
static uint64_t queue;
static char memory_here[BYTES];
static struct {
    uint32_t rkey, length;
    uint64_t address;
    unsigned runs;     /* in this step */
} waiting;             /* the request that the QP is at */
static int asked = -1; /* enum link_file that the peer was asked for */

bool mapping_is_enabled = true;

/* --- the rooms and files around it ------------------------------------------------------------------------------- */

struct lane *link_lane(struct link *link, uint32_t local_qpn)
{
    return &link->lane;
}

struct link *lane_link(struct lane *lane)
{
    return lane->link;
}

void **link_owner_data(struct link *link)
{
    return &link->owner_data;
}

void *link_access_slot(struct link *link, bool ours, uint32_t number)
{
    return &access_slots[number];
}

bool link_can_pull(const struct link *link)
{
    return link->can_pull;
}

bool link_is_self(const struct link *link)
{
    return false;
}

bool link_is_watched(struct link *link, bool ours)
{
    return true;
}

bool link_waits_for_copies(struct link *link, bool ours)
{
    return true;
}

pid_t link_peer_pid(const struct link *link)
{
    return link->by_link ? 0 : getpid();
}

int link_peer_segment(const struct link *link)
{
    return segment_fd_intact(SEGMENT_TABLES);
}

uint64_t link_serial(const struct link *link)
{
    return 77;
}

struct link *local_link_of_serial(uint64_t serial)
{
    return serial == 77 ? &the_link : NULL;
}

int link_open_descriptor(const struct link *link, int number)
{
    return input_8(&input) & 1 ? fcntl(number, F_DUPFD_CLOEXEC, 0) : -EPERM;
}

bool link_ask_file(struct link *link, enum link_file which, const uint8_t *secret)
{
    if (asked >= 0)
        return false;
    asked = (int)which;
    return true;
}

bool link_peer_is_there(const struct link *link)
{
    return true;
}

bool link_peer_thread_may_copy(const struct link *link, pid_t thread)
{
    return false;
}

void link_want_mapped(struct link *link, uint32_t slot, uint32_t step)
{
}

/* The peer is hostile: what the kernel copies to or from is its own matter. */
ssize_t link_copy(const struct link *link, bool to_peer, const struct iovec *here, unsigned here_count,
                  const struct iovec *there, unsigned there_count)
{
    size_t near = 0, far = 0;

    for (unsigned i = 0; i < here_count; i++) {
        require((char *)here[i].iov_base >= memory_here &&
                (char *)here[i].iov_base + here[i].iov_len <= memory_here + BYTES);
        near += here[i].iov_len;
    }
    for (unsigned i = 0; i < there_count; i++)
        far += there[i].iov_len;
    require(near == far);
    return input_8(&input) & 1 ? (ssize_t)near : -EFAULT;
}

bool local_wants_direct(void)
{
    return true;
}

bool local_wants_mapped(void)
{
    return true;
}

uint32_t local_reference_from(void)
{
    return 16384;
}

void helper_kick(void)
{
}

void route_run(struct qp *which)
{
    require(++waiting.runs <= REQUESTS_MAX);
    if (waiting.rkey &&
        direct_map(&which->transport, waiting.rkey, waiting.address, waiting.length, REMOTE_READ))
        (void)direct_map_end(&which->transport);
}

void route_ring(const struct qp_kick *kick)
{
}

void route_note_direct(struct qp *which)
{
}

void route_note_refused(struct qp *which)
{
}

bool lane_reader_sleeps(const struct lane *lane)
{
    return false;
}

void mapping_move(void)
{
}

bool mapping_grow(void)
{
    return false;
}

void direct_link_gone(void)
{
}

void direct_owner_after_fork_in_child(void)
{
}

struct qp *qp_lock_number(uint32_t qpn)
{
    if (qpn != QPN)
        return NULL;
    lock_acquire(&qp->lock);
    return qp;
}

/* --- the peer ------------------------------------------------------------------------------------------- */

static struct qp_record *peer_qp(void)
{
    return segment_qp(0);
}

static uint32_t rkey_of(uint32_t slot)
{
    return segment_keys()->entry[slot].rkey;
}

static void publish_key(uint32_t slot)
{
    const uint32_t access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    struct mapped_record *record = segment_mapped(slot);
    uint64_t address = 0x10000000ull + (uint64_t)slot * REGION;

    memset(&segment_keys()->entry[slot], 0, sizeof(segment_keys()->entry[slot]));
    keys_publish_region(segment_keys(), slot, KEY_REGION, PEER_PD, access, address, REGION, address, slot);
    memset(record, 0, sizeof(*record));
    record->file = slot & 1;
    record->address = address;
    record->length = REGION;
    record->offset = (uint64_t)slot * REGION;
    atomic_store(&record->generation, 2);
}

static void publish_qp(void)
{
    struct direct_record *direct = segment_direct(0);
    struct qp_record *record = peer_qp();

    memset(direct, 0, sizeof(*direct));
    direct->qpn = 0x22;
    direct->dest_qpn = QPN;
    direct->pd = PEER_PD;
    direct->access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    direct->rq_psn = 9;
    direct->path_mtu = IBV_MTU_1024;
    direct->granted = 4;
    atomic_store(&direct->generation, 2);
    memset(record, 0, sizeof(*record));
    record->srq = NO_OBJECT;
    record->responder.expected_psn = psn_make(9);
    record->receive.depth = DEPTH;
    record->receive.max_sge = 1;
    record->receive.stride = RECV_WQE_SIZE(1);
    record->receive.offset = queue;
    atomic_store(&record->receive.posted, DEPTH);
    for (unsigned i = 0; i < DEPTH; i++) {
        struct recv_wqe *wqe = segment_at(queue + i * RECV_WQE_SIZE(1));

        wqe->num_sge = 1;
        wqe->sge[0] =
            (struct wqe_sge){0x10000000ull + 2 * REGION + i * BYTES, BYTES, segment_keys()->entry[2].lkey};
    }
}

static void publish_header(void)
{
    struct segment_header *header = segment_header();

    *header = pristine;
    memcpy(header->files, pristine_files, sizeof(pristine_files));
    atomic_store(&header->directs_used, 1);
    atomic_store(&header->files_thread, sys_gettid());
    atomic_store(&header->copies, SEGMENT_COPIES_AND_MAPS);
    atomic_store(&header->alive, 1);
}

static void set_up(void)
{
    struct stat file;

    require(segment_open() == 0);
    pristine = *segment_header();
    queue_fd = segment_fd_intact(SEGMENT_QUEUES);
    require(queue_fd >= 0);
    queue = segment_allocate(DEPTH * RECV_WQE_SIZE(1));
    require(queue);
    for (unsigned i = 0; i < SEGMENT_FILES; i++) {
        arenas[i] = memory_file_make("arena", MAPPED_ARENA_SIZE);
        require(arenas[i] >= 0 && fstat(arenas[i], &file) == 0);
        pristine_files[i] = (struct file_record){arenas[i], 0, file.st_ino, file.st_dev};
    }
    other_file = memory_file_make("other", 12345); /* sealed, and of another size */
    require(other_file >= 0);
    qp = aligned_alloc(_Alignof(struct qp), sizeof(struct qp) + sizeof(struct qp_route));
    require(qp);
    rundown_enter(); /* what the thread allocates once */
    rundown_exit();
}

static void begin_qp(void)
{
    static struct qp_record record;
    static struct qp_rare rare;

    memset(&record, 0, sizeof(record));
    memset(qp, 0, sizeof(struct qp) + sizeof(struct qp_route));
    record.type = IBV_QPT_RC;
    record.attributes.dest_qpn = 0x22;
    record.attributes.sq_psn = 9;
    record.attributes.path_mtu = IBV_MTU_1024;
    record.sender.unacked_psn = record.sender.next_psn = psn_make(9);
    qp->record = &record;
    qp->transport.record = &record;
    qp->transport.rare = &rare;
    qp->ibv.qp_num = QPN;
    qp->transport.link.direct_up_to = 16u << 20;
    lock_init(&qp->lock);
    route_of(qp)->lane = route_of(qp)->arrival_lane = &the_link.lane;
}

/* --- checks --------------------------------------------------------------------------------------------- */

static bool is_in_view(const void *address, uint64_t length, bool writes)
{
    const struct direct_peer *peer = the_link.owner_data;
    const char *at = address;

    for (unsigned i = 0; i < DIRECT_VIEWS; i++) {
        const struct direct_view *view = atomic_load(&peer->views[i]);

        if (view && at >= view->base && (uint64_t)(at - view->base) < view->length &&
            length <= view->length - (uint64_t)(at - view->base) && (!writes || view->writable))
            return true;
    }
    return false;
}

static void check(void)
{
    for (unsigned i = 0; i < LOCAL_ACCESS_SLOTS; i++)
        require(access_slot_kind(atomic_load(&access_slots[i].word)) == ACCESS_NONE);
}

/* --- steps ---------------------------------------------------------------------------------------------- */

enum step {
    MAPS,
    REQUESTS,
    RUNS,
    FETCHES,
    DEPOSITS,
    COPIES,
    CHANGES_HEADER,
    CHANGES_KEY,
    CHANGES_RECORD,
    CHANGES_QP,
    CHANGES_QUEUE,
    CHANGES_FILES,
    ANSWERS,
    LINK_DOWN,
    STEP_KINDS
};

static uint64_t some_address(uint32_t slot)
{
    uint16_t offset = input_16(&input);

    return 0x10000000ull + (uint64_t)slot * REGION + (offset & 0x8000 ? (uint64_t)offset << 1 : offset);
}

static uint32_t some_length(void)
{
    uint16_t length = input_16(&input);

    return length & 0x8000 ? ((uint32_t)(length & 0x7fff) << 9) + 1 : length % BYTES + 1u;
}

static void map_one(uint32_t slot)
{
    enum remote_operation operation = input_8(&input) % 3;
    uint64_t address = some_address(slot);
    uint32_t length = operation == REMOTE_ATOMIC ? 8 : some_length();
    volatile char *at;

    waiting.rkey = rkey_of(slot);
    waiting.address = address;
    waiting.length = length;
    rundown_enter();
    (void)direct_can_execute(&qp->transport, rkey_of(slot), address, length);
    at = direct_map(&qp->transport, rkey_of(slot), address, length, operation);
    if (at) {
        require(is_in_view((const void *)at, length, operation != REMOTE_READ));
        require(operation != REMOTE_ATOMIC || ((uintptr_t)at & 7) == 0);
        if (operation == REMOTE_READ) {
            (void)at[0];
            (void)at[length - 1];
        } else {
            at[0] = at[length - 1] = 1;
        }
        (void)direct_map_end(&qp->transport);
    }
    rundown_exit();
}

static void copy_one(uint32_t slot)
{
    enum remote_operation operation = input_8(&input) % 2;
    uint32_t length = some_length() % BYTES + 1;
    uint32_t first = input_16(&input) % (length + 1);
    const struct iovec here[2] = {{memory_here, first}, {memory_here + first, length - first}};

    rundown_enter();
    (void)direct_copy(&qp->transport, rkey_of(slot), some_address(slot), length, operation, here, 2);
    rundown_exit();
}

static void fetch_one(uint32_t slot)
{
    struct packet_reference references[3];
    struct packet packet = {
        .flags = PACKET_BY_REFERENCE, .reference_count = 1 + input_8(&input) % 3, .reference = references};
    struct direct_mapped mapped;

    for (unsigned i = 0; i < array_size(references); i++) {
        references[i].address = some_address(slot);
        references[i].length = some_length();
        references[i].slot = input_8(&input) & 0x80 ? input_32(&input) : slot;
    }
    rundown_enter();
    if (direct_find_mapped(qp, &packet, &mapped)) {
        require(mapped.count == packet.reference_count);
        for (unsigned i = 0; i < mapped.count; i++) {
            const volatile char *at =
                (const char *)(uintptr_t)mapped.here[i].address; // NOLINT(performance-no-int-to-ptr)

            require(mapped.here[i].length == references[i].length);
            require(is_in_view((const void *)at, mapped.here[i].length, false));
            if (mapped.here[i].length) {
                (void)at[0];
                (void)at[mapped.here[i].length - 1];
            }
        }
        (void)direct_still_mapped(&mapped);
    }
    (void)direct_was_deposited(qp, &packet);
    rundown_exit();
}

static void deposit_one(uint8_t number)
{
    uint32_t length = some_length(), bits = 0, offset = input_16(&input) % BYTES;
    const struct iovec from = {memory_here, input_16(&input) % BYTES};

    rundown_enter();
    if (direct_peek_remote_receive(&qp->transport, number, length, input_8(&input) & 1) &&
        direct_deposit(&qp->transport, offset, &from, 1, &bits))
        require(bits >> 31);
    rundown_exit();
}

static void change_files(unsigned number)
{
    struct file_record *record =
        number % 3 == 2 ? &segment_header()->queues : &segment_header()->files[number % 3];
    struct stat file;

    record->fd = number / 3 % 2 ? other_file : arenas[0];
    if (number / 6 % 2 && fstat(record->fd, &file) == 0)
        record->inode = file.st_ino;
}

/* What the peer was asked for comes, or something else, or nothing. */
static void answer(unsigned number)
{
    const int files[] = {segment_fd_intact(SEGMENT_TABLES), arenas[0], arenas[1], other_file, -1};
    int fd = files[number % array_size(files)], which = asked;

    if (asked < 0)
        which = (int)(number % LINK_FILES);
    asked = -1;
    direct_file_came(&the_link, (enum link_file)which, fd < 0 ? -1 : fd_own(fcntl(fd, F_DUPFD_CLOEXEC, 0)));
}

static void bring_down(void)
{
    route_of(qp)->direct.peer = NULL; /* as route.c does before */
    direct_link_down(&the_link);
    require(!the_link.owner_data);
    asked = -1;
}

static void take_step(uint8_t choice)
{
    unsigned number = choice / STEP_KINDS, slot = number % KEYS;

    waiting.runs = 0;
    switch ((enum step)(choice % STEP_KINDS)) {
    case MAPS:
        map_one(slot);
        break;
    case REQUESTS:
        (void)direct_request_map(qp, rkey_of(slot));
        break;
    case RUNS:
        if (number % 4 == 3) /* the kernel says so before it closes the link */
            atomic_store(&segment_header()->alive, 0);
        direct_run();
        break;
    case FETCHES:
        fetch_one(slot);
        break;
    case DEPOSITS:
        deposit_one((uint8_t)number);
        break;
    case COPIES:
        copy_one(slot);
        break;
    case CHANGES_HEADER:
        input_mutate(&input, segment_header(), offsetof(struct segment_header, robust));
        break;
    case CHANGES_KEY:
        input_mutate(&input, &segment_keys()->entry[slot], sizeof(struct key_entry));
        break;
    case CHANGES_RECORD:
        input_mutate(&input, segment_mapped(slot), sizeof(struct mapped_record));
        break;
    case CHANGES_QP:
        if (number & 1)
            input_mutate(&input, segment_direct(0), sizeof(struct direct_record));
        else
            input_mutate(&input, &peer_qp()->receive, sizeof(struct receive_queue));
        break;
    case CHANGES_QUEUE:
        input_mutate(&input, segment_at(queue), DEPTH * RECV_WQE_SIZE(1));
        break;
    case CHANGES_FILES:
        change_files(number);
        break;
    case ANSWERS:
        answer(number);
        break;
    case LINK_DOWN:
        bring_down();
        the_link.by_link = number & 1;
        the_link.can_pull = number & 2;
        break;
    case STEP_KINDS:
        break;
    }
}

static int lowest_free(void)
{
    int fd = dup(arenas[0]);

    require(fd >= 0);
    close(fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int before;
    uint8_t choice;

    if (!qp)
        set_up();
    before = lowest_free();
    input = (struct input){data, size};
    choice = input_8(&input);
    the_link = (struct link){.lane = {&the_link}, .by_link = choice & 1, .can_pull = choice & 2};
    memset(access_slots, 0, sizeof(access_slots));
    waiting.rkey = 0;
    publish_header();
    for (uint32_t slot = 0; slot < KEYS; slot++)
        publish_key(slot);
    publish_qp();
    begin_qp();
    for (unsigned step = 0; input.left && step < STEPS; step++) {
        take_step(input_8(&input));
        check();
    }
    bring_down();
    direct_after_fork_in_child(); /* requests that are still to be served */
    publish_header();
    require(lowest_free() == before);
    return 0;
}

/* --- seeds ---------------------------------------------------------------------------------------------- */

#define STEP(step, number) (uint8_t)((number)*STEP_KINDS + (step))

void fuzz_seeds(fuzz_add *add)
{
    for (uint8_t choice = 0; choice < 4; choice++) {
        for (uint8_t slot = 0; slot < KEYS; slot++) {
            for (uint8_t changes = CHANGES_HEADER; changes <= CHANGES_FILES; changes++) {
                const uint8_t bytes[] = {choice,
                                         STEP(REQUESTS, slot),
                                         STEP(RUNS, 0),
                                         1,
                                         STEP(ANSWERS, 0),
                                         STEP(RUNS, 0),
                                         STEP(ANSWERS, 1 + slot % 2),
                                         STEP(RUNS, 0),
                                         STEP(MAPS, slot),
                                         slot,
                                         0x00,
                                         0x10,
                                         0x00,
                                         0x40,
                                         STEP(DEPOSITS, 1),
                                         0x01,
                                         0x00,
                                         0x00,
                                         0x10,
                                         0x00,
                                         0x20,
                                         1,
                                         STEP(FETCHES, slot),
                                         0,
                                         0,
                                         0,
                                         0,
                                         8,
                                         0,
                                         0,
                                         0,
                                         0,
                                         8,
                                         0,
                                         0,
                                         0,
                                         0,
                                         8,
                                         0,
                                         STEP(COPIES, slot),
                                         1,
                                         0,
                                         64,
                                         0,
                                         8,
                                         0,
                                         0,
                                         1,
                                         STEP(changes, slot),
                                         1,
                                         0,
                                         8,
                                         3,
                                         STEP(MAPS, slot),
                                         0,
                                         0,
                                         16,
                                         0,
                                         64,
                                         STEP(REQUESTS, slot),
                                         STEP(RUNS, 0),
                                         STEP(DEPOSITS, 2),
                                         0x01,
                                         0x00,
                                         0x00,
                                         0x10,
                                         0x00,
                                         0x20,
                                         1,
                                         STEP(LINK_DOWN, choice),
                                         STEP(REQUESTS, slot),
                                         STEP(RUNS, 0),
                                         STEP(MAPS, slot),
                                         1,
                                         0,
                                         0,
                                         0,
                                         9};

                add(bytes, sizeof(bytes));
            }
            {
                /* The peer ends while the QP's request is at the helper thread. */
                const uint8_t bytes[] = {
                    choice, STEP(REQUESTS, slot), STEP(RUNS, 0), STEP(MAPS, slot), 0, 0x00, 0x10, 0x00,
                    0x40,   STEP(REQUESTS, slot), STEP(RUNS, 3)};

                add(bytes, sizeof(bytes));
            }
        }
    }
}
