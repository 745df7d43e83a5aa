/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "explain/view.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"

#ifndef SEEK_DATA
#define SEEK_DATA 3
#define SEEK_HOLE 4
#endif

/* The owner writes meanwhile, so a copy may be torn: the report then has a stale or mixed value. Intended,
 * therefore hidden from ThreadSanitizer. */
__attribute__((no_sanitize("thread"))) static void copy_foreign(void *to, const void *from, size_t size)
{
    typedef uint64_t word __attribute__((may_alias, aligned(1)));
    char *to_byte = to;
    const char *from_byte = from;

    for (; size >= sizeof(word); size -= sizeof(word)) {
        *(word *)to_byte = *(const volatile word *)from_byte;
        to_byte += sizeof(word);
        from_byte += sizeof(word);
    }
    for (; size; size--)
        *to_byte++ = *(const volatile char *)from_byte++;
}

bool view_copy(const struct view *view, uint64_t offset, void *ret, size_t size)
{
    if (offset > view->size || size > view->size - offset)
        return false;
    if (!view->base && offset < view->tables_size)
        return sys_pread(view->fd, ret, size, (off_t)offset) == (ssize_t)size;
    if (!view->base)
        return sys_pread(view->queues_fd, ret, size, (off_t)(offset - view->tables_size)) == (ssize_t)size;
    copy_foreign(ret, view->base + offset, size);
    return true;
}

static bool table_fits(const struct view *view, const struct segment_table *table, size_t stride,
                       uint32_t count_max)
{
    return table->stride == stride && table->count <= count_max && table->offset <= view->size &&
           (uint64_t)table->count * stride <= view->size - table->offset;
}

static int read_header(struct view *view)
{
    const struct segment_header *header = &view->header;

    if (!view_copy(view, 0, &view->header, sizeof(view->header)) || header->magic != SEGMENT_MAGIC)
        return -EPROTO;
    if (header->version != SEGMENT_VERSION || header->header_size != sizeof(*header))
        return -EPROTONOSUPPORT;
    if (header->total_size > view->size ||
        !table_fits(view, &header->keys, sizeof(struct key_entry), LIMIT_KEY_SLOTS) ||
        !table_fits(view, &header->mapped, sizeof(struct mapped_record), LIMIT_KEY_SLOTS) ||
        !table_fits(view, &header->directs, sizeof(struct direct_record), LIMIT_QP) ||
        !table_fits(view, &header->qps, sizeof(struct qp_record), LIMIT_QP) ||
        !table_fits(view, &header->qp_rares, sizeof(struct qp_rare), LIMIT_QP) ||
        !table_fits(view, &header->cqs, sizeof(struct cq_record), LIMIT_CQ) ||
        !table_fits(view, &header->srqs, sizeof(struct srq_record), LIMIT_SRQ) ||
        !table_fits(view, &header->pds, sizeof(struct pd_record), LIMIT_PD) ||
        !table_fits(view, &header->wqs, sizeof(struct wq_record), LIMIT_WQ) ||
        !table_fits(view, &header->ind_tables, sizeof(struct ind_table_record), LIMIT_IND_TABLES) ||
        !table_fits(view, &header->items, sizeof(struct item_record), SEGMENT_ITEMS) ||
        !table_fits(view, &header->ids, sizeof(struct id_record), SEGMENT_IDS) ||
        !table_fits(view, &header->key_provenance, sizeof(struct provenance_record), LIMIT_KEY_SLOTS) ||
        !table_fits(view, &header->stacks, sizeof(struct stack_record), SEGMENT_STACKS) ||
        !table_fits(view, &header->modules, sizeof(struct module_record), SEGMENT_MODULES) ||
        !table_fits(view, &header->misuses, sizeof(struct misuse_record), SEGMENT_MISUSES) ||
        !table_fits(view, &header->refusals, sizeof(struct refused_record), SEGMENT_REFUSALS) ||
        !table_fits(view, &header->ports, sizeof(struct port_record), SEGMENT_PORTS))
        return -EPROTO;
    view->header.qps.count =
        min_of(header->qps.count, atomic_load_explicit(&header->qps_open, memory_order_relaxed));
    view->header.qp_rares.count = min_of(header->qp_rares.count, header->qps.count);
    view->now_ns = sys_now();
    view->stamp = (uint32_t)(view->now_ns / NS_PER_MS);
    view->same_pids = view->pid != 0 && header->pid == view->pid;
    return 0;
}

static int keep(struct view *ret_view, struct view *view)
{
    int error = read_header(view);

    if (!error)
        *ret_view = *view;
    return error;
}

int view_open(struct view *ret_view, const void *base, uint64_t size, int fd, pid_t pid)
{
    struct view view = {.base = base, .size = size, .fd = fd, .queues_fd = -1, .pid = pid};

    return keep(ret_view, &view);
}

int view_open_files(struct view *ret_view, const int files[SEGMENT_PARTS],
                    const uint64_t sizes[SEGMENT_PARTS], pid_t pid)
{
    struct view view = {.size = sizes[SEGMENT_TABLES] + sizes[SEGMENT_QUEUES],
                        .fd = files[SEGMENT_TABLES],
                        .queues_fd = files[SEGMENT_QUEUES],
                        .tables_size = sizes[SEGMENT_TABLES],
                        .pid = pid};

    return keep(ret_view, &view);
}

bool view_record(const struct view *view, const struct segment_table *table, uint32_t number, void *ret)
{
    return number < table->count &&
           view_copy(view, table->offset + (uint64_t)number * table->stride, ret, table->stride);
}

struct view_walk view_walk(const struct view *view, const struct segment_table *table)
{
    return (struct view_walk){.view = view, .table = table, .filled = view->fd < 0 ? table->count : 0};
}

/* Empty pages are passed: a load from one of ours would take memory, and the tables are large. */
static void pass_empty(struct view_walk *walk)
{
    const struct segment_table *table = walk->table;
    uint64_t offset = table->offset + walk->next * table->stride;
    /* cppcheck-suppress invalidFunctionArg; it knows no SEEK_DATA */
    off_t data = lseek(walk->view->fd, (off_t)offset, SEEK_DATA), hole;
    uint64_t skipped;

    if (data < 0) { /* nothing behind it (ENXIO), or a file that cannot tell */
        if (errno == ENXIO)
            walk->next = table->count;
        walk->filled = table->count;
        return;
    }
    /* cppcheck-suppress invalidFunctionArg; nor SEEK_HOLE */
    hole = lseek(walk->view->fd, data, SEEK_HOLE);
    skipped = ((uint64_t)data - table->offset) / table->stride;
    walk->next = max_of(walk->next, skipped);
    walk->filled =
        hole <= data ? table->count : ((uint64_t)hole - table->offset + table->stride - 1) / table->stride;
    walk->filled = max_of(walk->filled, walk->next + 1);
}

bool view_next(struct view_walk *walk, uint32_t *ret_number, void *ret_record)
{
    int saved = errno;

    if (walk->next >= walk->filled && walk->next < walk->table->count)
        pass_empty(walk);
    errno = saved;
    if (walk->next >= walk->table->count)
        return false;
    *ret_number = (uint32_t)walk->next++;
    return view_record(walk->view, walk->table, *ret_number, ret_record);
}

uint64_t view_age(const struct view *view, uint64_t ns)
{
    return ns < view->now_ns ? (view->now_ns - ns) / NS_PER_MS : 0;
}

uint64_t view_stamp_age(const struct view *view, uint32_t stamp)
{
    int32_t distance = (int32_t)(view->stamp - stamp);

    return distance > 0 ? (uint64_t)distance : 0;
}
