/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The published segment of this process: creating, mapping and sealing it, its arena, and fork. */
#include "segment/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/memory_file.h"
#include "base/sys.h"
#include "segment/arena.h"
#include "segment/number.h"

/* The arena's size, of address space, not of memory. Where address space is limited (ulimit -v, -f) the arena
 * is halved until it fits. */
#define ARENA_LARGEST  (1ull << 36)
#define ARENA_SMALLEST (1ull << 28)
/* The arena is made accessible in steps of this size. */
#define ARENA_STEP (1ull << 21)
/* QP records likewise: mlockall() populates what is accessible. */
#define QPS_STEP 16384u

static struct {
    struct lock lock; /* guards opening, and the arena; a leaf */
    _Atomic(char *) base;
    struct {
        int fd;
        ino_t inode;
        dev_t device;
    } part[SEGMENT_PARTS];
    uint64_t arena_offset, arena_size;
    uint64_t arena_open; /* accessible so far */
    bool watched;        /* header.watched */
    struct arena arena;
    struct segment_table keys, mapped, directs, qps, qp_rares, cqs, srqs, pds, wqs, ind_tables, items, ids,
        key_provenance, stacks, modules, misuses, refusals, ports;
} segment = {.part = {{.fd = -1}, {.fd = -1}}};

static void place(struct segment_table *table, uint64_t *offset, size_t stride, uint32_t count)
{
    *table = (struct segment_table){.offset = *offset, .stride = (uint32_t)stride, .count = count};
    *offset += (stride * count + ARENA_UNIT - 1) & ~(uint64_t)(ARENA_UNIT - 1);
}

static uint64_t place_tables(void)
{
    uint64_t offset = ARENA_UNIT;

    _Static_assert(sizeof(struct segment_header) <= ARENA_UNIT, "the header has the first page");
    place(&segment.keys, &offset, sizeof(struct key_entry), LIMIT_KEY_SLOTS);
    /* Next to each other: peers map the segment up to segment_direct_end(). */
    place(&segment.mapped, &offset, sizeof(struct mapped_record), LIMIT_KEY_SLOTS);
    place(&segment.directs, &offset, sizeof(struct direct_record), LIMIT_QP);
    place(&segment.cqs, &offset, sizeof(struct cq_record), LIMIT_CQ);
    place(&segment.srqs, &offset, sizeof(struct srq_record), LIMIT_SRQ);
    place(&segment.pds, &offset, sizeof(struct pd_record), LIMIT_PD);
    place(&segment.wqs, &offset, sizeof(struct wq_record), LIMIT_WQ);
    place(&segment.ind_tables, &offset, sizeof(struct ind_table_record), LIMIT_IND_TABLES);
    place(&segment.items, &offset, sizeof(struct item_record), SEGMENT_ITEMS);
    place(&segment.ids, &offset, sizeof(struct id_record), SEGMENT_IDS);
    place(&segment.key_provenance, &offset, sizeof(struct provenance_record), LIMIT_KEY_SLOTS);
    place(&segment.stacks, &offset, sizeof(struct stack_record), SEGMENT_STACKS);
    place(&segment.modules, &offset, sizeof(struct module_record), SEGMENT_MODULES);
    place(&segment.misuses, &offset, sizeof(struct misuse_record), SEGMENT_MISUSES);
    place(&segment.refusals, &offset, sizeof(struct refused_record), SEGMENT_REFUSALS);
    place(&segment.ports, &offset, sizeof(struct port_record), SEGMENT_PORTS);
    place(&segment.qps, &offset, sizeof(struct qp_record), LIMIT_QP);
    place(&segment.qp_rares, &offset, sizeof(struct qp_rare), LIMIT_QP);
    return (offset + (2u << 20) - 1) & ~(uint64_t)((2u << 20) - 1);
}

static int create_part(enum segment_part part)
{
    static const char *const names[][SEGMENT_PARTS] = {
        {[SEGMENT_TABLES] = "softhca", [SEGMENT_QUEUES] = "softhca-queues"},
        {[SEGMENT_TABLES] = "softhca-watch", [SEGMENT_QUEUES] = "softhca-watch-queues"},
    };
    int fd = memory_file_create(names[segment.watched][part]);
    struct stat file;

    if (fd < 0)
        return fd;
    segment.part[part].fd = fd;
    if (fstat(fd, &file) != 0)
        return -errno;
    segment.part[part].inode = file.st_ino;
    segment.part[part].device = file.st_dev;
    return 0;
}

static void close_parts(void)
{
    for (enum segment_part i = 0; i < SEGMENT_PARTS; i++) {
        int fd = segment_fd_intact(i);

        if (fd >= 0)
            sys_close(fd);
        segment.part[i].fd = -1;
    }
}

static int map_part(enum segment_part part, char *at, uint64_t size)
{
    int error = memory_file_resize(segment.part[part].fd, size);

    if (!error)
        sys_mmap(at, size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, segment.part[part].fd, 0,
                 &error);
    return error;
}

/* Sizes and maps the files, with the largest arena that fits. The mappings are inaccessible (PROT_NONE):
 * mlockall(MCL_FUTURE) would populate accessible memory. */
static char *map_parts(int *ret_error)
{
    char *base = NULL;

    *ret_error = -ENOMEM;
    for (uint64_t size = ARENA_LARGEST; size >= ARENA_SMALLEST && !base; size /= 2) {
        uint64_t total = segment.arena_offset + size;

        base =
            sys_mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, ret_error);
        if (!base)
            continue;
        *ret_error = map_part(SEGMENT_TABLES, base, segment.arena_offset);
        if (!*ret_error)
            *ret_error = map_part(SEGMENT_QUEUES, base + segment.arena_offset, size);
        if (*ret_error) {
            sys_munmap(base, total);
            base = NULL;
        }
        segment.arena_size = size;
    }
    return base;
}

/* A process that maps a part may rely on its size. The mapping of this process stays writable. */
static int seal_parts(void)
{
    int error = memory_file_seal_writes(segment.part[SEGMENT_TABLES].fd);

    return error ? error : memory_file_seal(segment.part[SEGMENT_QUEUES].fd);
}

static void read_program_name(char *name, size_t size)
{
    (void)fd_read_text("/proc/self/comm", name, size);
    name[strcspn(name, "\n")] = '\0';
}

static void fill_header(struct segment_header *header)
{
    header->version = SEGMENT_VERSION;
    header->header_size = sizeof(*header);
    header->total_size = segment.arena_offset + segment.arena_size;
    sys_random(header->instance, sizeof(header->instance));
    header->pid = getpid();
    header->uid = getuid();
    header->start_ns = sys_now();
    header->watched = segment.watched;
    read_program_name(header->program, sizeof(header->program));
    header->keys = segment.keys;
    header->mapped = segment.mapped;
    header->directs = segment.directs;
    header->qps = segment.qps;
    header->qp_rares = segment.qp_rares;
    header->cqs = segment.cqs;
    header->srqs = segment.srqs;
    header->pds = segment.pds;
    header->wqs = segment.wqs;
    header->ind_tables = segment.ind_tables;
    header->items = segment.items;
    header->ids = segment.ids;
    header->key_provenance = segment.key_provenance;
    header->stacks = segment.stacks;
    header->modules = segment.modules;
    header->misuses = segment.misuses;
    header->refusals = segment.refusals;
    header->ports = segment.ports;
    header->arena_offset = segment.arena_offset;
    header->arena_size = segment.arena_size;
    header->queues = (struct file_record){.fd = segment.part[SEGMENT_QUEUES].fd,
                                          .inode = segment.part[SEGMENT_QUEUES].inode,
                                          .device = segment.part[SEGMENT_QUEUES].device};
    /* Last, with release order: a reader that sees the magic sees the other fields. */
    atomic_thread_fence(memory_order_release);
    __atomic_store_n(&header->magic, SEGMENT_MAGIC, __ATOMIC_RELEASE);
}

/* Where the accessible parts of the two tables end that grow, which are the last ones. */
static uint64_t qps_end(uint32_t count)
{
    return segment.qps.offset + (uint64_t)count * sizeof(struct qp_record);
}

static uint64_t rares_end(uint32_t count)
{
    return segment.qp_rares.offset + (uint64_t)count * sizeof(struct qp_rare);
}

static uint32_t qps_open(const char *base)
{
    return atomic_load_explicit(&((const struct segment_header *)base)->qps_open, memory_order_relaxed);
}

/* The new part is accessible when header.qps_open says so. */
static int open_qps(char *base, uint32_t count)
{
    struct segment_header *header = (struct segment_header *)base;
    uint32_t open = qps_open(base);
    int error = sys_mprotect(base + qps_end(open), qps_end(count) - qps_end(open), PROT_READ | PROT_WRITE);

    _Static_assert(LIMIT_QP % QPS_STEP == 0 && QPS_STEP * sizeof(struct qp_record) % ARENA_UNIT == 0 &&
                       QPS_STEP * sizeof(struct qp_rare) % ARENA_UNIT == 0,
                   "whole pages");
    if (!error)
        error =
            sys_mprotect(base + rares_end(open), rares_end(count) - rares_end(open), PROT_READ | PROT_WRITE);
    if (!error)
        atomic_store_explicit(&header->qps_open, count, memory_order_release);
    return error;
}

static int open_locked(void)
{
    int saved = errno, error = 0;
    char *base = NULL;

    segment.arena_offset = place_tables();
    for (enum segment_part i = 0; i < SEGMENT_PARTS && !error; i++)
        error = create_part(i);
    if (error)
        goto close_files;
    base = map_parts(&error);
    if (!base) {
        log_error("published segment (memory that peers and softhca read): cannot map %llu MiB: %s (limits: "
                  "ulimit -v, ulimit -f)",
                  (ARENA_SMALLEST + segment.arena_offset) >> 20, strerror(-error));
        goto close_files;
    }
    error = sys_mprotect(base, segment.qps.offset, PROT_READ | PROT_WRITE);
    if (!error)
        error = open_qps(base, QPS_STEP);
    if (!error)
        error = arena_init(&segment.arena, segment.arena_size);
    if (error)
        goto unmap;
    error = seal_parts();
    if (error)
        goto free_arena;
    /* A core dump would walk every page of the arena's address range (PROT_NONE does not prevent that). The
     * tables are dumped. */
    syscall(SYS_madvise, base + segment.arena_offset, segment.arena_size, MADV_DONTDUMP);
    segment.arena_open = 0;
    fill_header((struct segment_header *)base);
    atomic_store_explicit(&segment.base, base, memory_order_release);
    errno = saved;
    return 0;

free_arena:
    arena_fini(&segment.arena);
unmap:
    sys_munmap(base, segment.arena_offset + segment.arena_size);
close_files:
    close_parts();
    errno = saved;
    return error;
}

static int open_once(bool watched)
{
    int error = 0;

    lock_acquire(&segment.lock);
    if (!atomic_load_explicit(&segment.base, memory_order_relaxed)) {
        segment.watched = watched;
        error = open_locked();
    }
    lock_release(&segment.lock);
    return error;
}

int segment_open(void)
{
    return open_once(false);
}

int segment_open_watched(void)
{
    return open_once(true);
}

void *segment_at(uint64_t offset)
{
    return atomic_load_explicit(&segment.base, memory_order_relaxed) + offset;
}

struct segment_header *segment_header(void)
{
    return segment_at(0);
}

bool segment_is_open(void)
{
    return atomic_load_explicit(&segment.base, memory_order_acquire) != NULL;
}

int segment_fd_intact(enum segment_part part)
{
    int saved = errno, fd = segment.part[part].fd;
    struct stat file;

    if (fstat(fd, &file) != 0 || file.st_ino != segment.part[part].inode ||
        file.st_dev != segment.part[part].device)
        fd = -1;
    errno = saved;
    return fd;
}

int segment_open_for_reading(enum segment_part part)
{
    char path[32];
    int saved = errno, fd = segment_fd_intact(part);

    if (fd < 0)
        return -EBADF;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    fd = fd_lift(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0)
        fd = -errno;
    errno = saved;
    return fd;
}

struct key_table *segment_keys(void)
{
    return segment_at(segment.keys.offset);
}

struct mapped_record *segment_mapped(uint32_t slot)
{
    return (struct mapped_record *)segment_at(segment.mapped.offset) + slot;
}

struct direct_record *segment_direct(uint32_t slot)
{
    return (struct direct_record *)segment_at(segment.directs.offset) + slot;
}

uint64_t segment_direct_end(const struct segment_header *header)
{
    return header->directs.offset + (uint64_t)header->directs.count * header->directs.stride;
}

/* header->robust holds a struct robust_list_head and one entry, which the kernel walks when the thread ends;
 * the futex word of the entry is header->alive. */
void segment_tie_to_thread(void)
{
    struct segment_header *header = segment_header();
    uint64_t *head = header->robust, *entry = &header->robust[3];

    head[0] = (uintptr_t)entry;
    head[1] = (uint64_t)((char *)&header->alive - (char *)entry);
    head[2] = 0;
    *entry = (uintptr_t)head;
    if (syscall(SYS_set_robust_list, head, 3 * sizeof(*head)) == 0)
        atomic_store_explicit(&header->alive, (uint32_t)sys_gettid(), memory_order_release);
}

int segment_open_qp(uint32_t slot)
{
    const _Atomic uint32_t *open = &segment_header()->qps_open;
    int error = 0;

    if (slot < atomic_load_explicit(open, memory_order_acquire))
        return 0;
    lock_acquire(&segment.lock);
    if (slot >= atomic_load_explicit(open, memory_order_relaxed))
        error = open_qps(segment_at(0), (slot / QPS_STEP + 1) * QPS_STEP);
    lock_release(&segment.lock);
    return error;
}

struct qp_record *segment_qp(uint32_t slot)
{
    return (struct qp_record *)segment_at(segment.qps.offset) + slot;
}

struct qp_rare *segment_qp_rare(uint32_t slot)
{
    return (struct qp_rare *)segment_at(segment.qp_rares.offset) + slot;
}

struct cq_record *segment_cq(uint32_t number)
{
    return (struct cq_record *)segment_at(segment.cqs.offset) + number;
}

struct srq_record *segment_srq(uint32_t number)
{
    return (struct srq_record *)segment_at(segment.srqs.offset) + number;
}

struct pd_record *segment_pd(uint32_t number)
{
    return (struct pd_record *)segment_at(segment.pds.offset) + number;
}

struct wq_record *segment_wq(uint32_t number)
{
    return (struct wq_record *)segment_at(segment.wqs.offset) + number;
}

struct ind_table_record *segment_ind_table(uint32_t number)
{
    return (struct ind_table_record *)segment_at(segment.ind_tables.offset) + number;
}

struct item_record *segment_item(uint32_t number)
{
    return (struct item_record *)segment_at(segment.items.offset) + number;
}

struct id_record *segment_id(uint32_t number)
{
    return (struct id_record *)segment_at(segment.ids.offset) + number;
}

struct provenance_record *segment_key_provenance(uint32_t slot)
{
    return (struct provenance_record *)segment_at(segment.key_provenance.offset) + slot;
}

struct stack_record *segment_stack(uint32_t number)
{
    return (struct stack_record *)segment_at(segment.stacks.offset) + number;
}

struct module_record *segment_module(uint32_t number)
{
    return (struct module_record *)segment_at(segment.modules.offset) + number;
}

struct misuse_record *segment_misuse(uint32_t number)
{
    return (struct misuse_record *)segment_at(segment.misuses.offset) + number;
}

struct refused_record *segment_refused(uint32_t number)
{
    return (struct refused_record *)segment_at(segment.refusals.offset) + number;
}

struct port_record *segment_port(uint32_t number)
{
    return (struct port_record *)segment_at(segment.ports.offset) + number;
}

/* Makes the arena accessible up to its high-water mark. segment.lock held. */
static int open_arena(void)
{
    uint64_t end =
        min_of((segment.arena.high_water + ARENA_STEP - 1) & ~(ARENA_STEP - 1), segment.arena_size);
    int error;

    if (end <= segment.arena_open)
        return 0;
    error = sys_mprotect(segment_at(segment.arena_offset + segment.arena_open), end - segment.arena_open,
                         PROT_READ | PROT_WRITE);
    if (!error)
        segment.arena_open = end;
    return error;
}

uint64_t segment_allocate(size_t size)
{
    int64_t offset;

    lock_acquire(&segment.lock);
    offset = size <= segment.arena_size ? arena_take(&segment.arena, size) : -ENOMEM;
    if (offset >= 0 && open_arena() != 0) {
        if (!arena_is_piece(&segment.arena, (uint64_t)offset, size) ||
            arena_return_piece(&segment.arena, (uint64_t)offset, size))
            arena_return(&segment.arena, (uint64_t)offset / ARENA_UNIT * ARENA_UNIT, size);
        offset = -ENOMEM;
    }
    lock_release(&segment.lock);
    return offset < 0 ? 0 : segment.arena_offset + (uint64_t)offset;
}

/* Before the extent can be taken again, because allocated memory is zeroed memory. */
static void release_pages(uint64_t offset, size_t size)
{
    int fd = segment_fd_intact(SEGMENT_QUEUES);

    if (fd < 0 || sys_punch_hole(fd, (off_t)(offset - segment.arena_offset), (off_t)arena_extent(size)) < 0)
        memset(segment_at(offset), 0, arena_extent(size));
    lock_acquire(&segment.lock);
    arena_return(&segment.arena, offset - segment.arena_offset, size);
    lock_release(&segment.lock);
}

void segment_release(uint64_t offset, size_t size)
{
    bool page_is_free;

    if (!arena_is_piece(&segment.arena, offset - segment.arena_offset, size)) {
        release_pages(offset, size);
        return;
    }
    memset(segment_at(offset), 0, arena_extent(size));
    lock_acquire(&segment.lock);
    page_is_free = arena_return_piece(&segment.arena, offset - segment.arena_offset, size);
    lock_release(&segment.lock);
    if (page_is_free)
        release_pages(offset / ARENA_UNIT * ARENA_UNIT, ARENA_UNIT);
}

/* Maps `size` bytes of the part, at their address, as private memory. */
static void make_private(enum segment_part part, uint64_t offset, char *at, uint64_t size)
{
    int error = 0;

    if (!size || sys_mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                          segment_fd_intact(part), (off_t)offset, &error))
        return;
    log_error(
        "fork: cannot give the child its own copy of the published segment (memory that peers and softhca "
        "read): %s; the child has the parent's, read-only, and crashes when it calls verbs",
        strerror(-error));
    sys_mprotect(at, size, PROT_READ);
}

void segment_after_fork_in_child(void)
{
    char *base = atomic_load_explicit(&segment.base, memory_order_relaxed);

    number_pools_reset();
    if (base) {
        /* Only the used part: with overcommit_memory 2 the kernel charges private mappings. The rest becomes
         * inaccessible, because nothing points there. */
        char *arena = base + segment.arena_offset;
        uint64_t used = segment.arena.high_water, rest = segment.arena_size - used;

        uint64_t rares = segment.qp_rares.offset, end = qps_end(qps_open(base)),
                 size = rares_end(qps_open(base)) - rares;

        make_private(SEGMENT_TABLES, 0, base, end);
        sys_mmap(base + end, segment.arena_offset - end, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0, NULL);
        make_private(SEGMENT_TABLES, rares, base + rares, size);
        make_private(SEGMENT_QUEUES, 0, arena, used);
        if (rest)
            sys_mmap(arena + used, rest, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
                     -1, 0, NULL);
        close_parts();
    }
    arena_fini(&segment.arena);
    memset(&segment, 0, sizeof(segment));
    for (int i = 0; i < SEGMENT_PARTS; i++)
        segment.part[i].fd = -1;
}
