/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Several processes write to the page in front of the device memory, and each may die at any instruction:
 * there is no lock in it. A claim is a compare-and-swap; who dies in the middle leaves a part of the memory
 * taken, no more. What is read from it is checked: a process that has the descriptor may be anybody's. */
#include "object/dm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sys.h"
#include "object/device.h"
#include "object/life.h"
#include "object/ports.h"
#include "object/segment.h"
#include "rules/limits.h"

#define SHARE_MAGIC   0x3143484353414853ull
#define SHARE_VERSION 1u
#define SHARE_SEALS   (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

#define PAGE      4096u
#define UNITS     (LIMIT_DM_SIZE / PAGE)
#define DM_COUNT  128u
#define FILE_SIZE (PAGE + LIMIT_DM_SIZE)

enum dm_state { DM_FREE, DM_CHANGING, DM_ALIVE };

struct share_dm {
    _Atomic uint32_t state; /* enum dm_state */
    uint32_t first, units;
    uint32_t reserved;
    uint64_t length;
};

struct share_page {
    uint64_t magic;
    uint32_t version, size;
    uint8_t id[16], node_guid[8];
    _Atomic uint64_t taken[UNITS / 64];
    struct share_dm dms[DM_COUNT];
};
_Static_assert(sizeof(struct share_page) <= PAGE && UNITS % 64 == 0, "in front of the memory");

/* --- the file
 * --------------------------------------------------------------------------------------------------- */

static int map(int fd, struct share **ret_share)
{
    struct share *share = calloc(1, sizeof(*share));
    int error = -ENOMEM;

    if (!share)
        return error;
    share->fd = fd;
    share->page = sys_mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, &error);
    if (!share->page) {
        free(share);
        return error;
    }
    *ret_share = share;
    return 0;
}

int share_open(const uint8_t node_guid[8], struct share **ret_share)
{
    int error, fd = sys_memfd_create("softhca-device", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return fd;
    if (ftruncate(fd, FILE_SIZE) != 0 || fcntl(fd, F_ADD_SEALS, SHARE_SEALS) != 0)
        error = -errno;
    else
        error = map(fd, ret_share);
    if (error) {
        sys_close(fd);
        return error;
    }
    struct share *share = *ret_share;

    sys_random(share->id, sizeof(share->id));
    memcpy(share->page->id, share->id, sizeof(share->id));
    memcpy(share->page->node_guid, node_guid, sizeof(share->page->node_guid));
    share->page->version = SHARE_VERSION;
    share->page->size = FILE_SIZE;
    share->page->magic = SHARE_MAGIC;
    return 0;
}

int share_adopt(int fd, uint8_t ret_node_guid[8], struct share **ret_share)
{
    struct share_page head;
    struct stat status;
    int error;

    /* The seals come first: only then does the size stay as it is, and the mapping be safe to touch. */
    if (fcntl(fd, F_GET_SEALS) != SHARE_SEALS || fstat(fd, &status) != 0 || status.st_size != FILE_SIZE ||
        sys_pread(fd, &head, sizeof(head), 0) != sizeof(head) || head.magic != SHARE_MAGIC ||
        head.version != SHARE_VERSION || head.size != FILE_SIZE)
        return -EINVAL;
    error = map(fd, ret_share);
    if (error)
        return error;
    memcpy((*ret_share)->id, head.id, sizeof(head.id));
    memcpy(ret_node_guid, head.node_guid, sizeof(head.node_guid));
    return 0;
}

void share_abandon(struct share *share)
{
    sys_munmap(share->page, FILE_SIZE);
    free(share);
}

void share_close(struct share *share)
{
    sys_close(share->fd);
    share_abandon(share);
}

bool share_is_same(const struct share *a, const struct share *b)
{
    return a && b && !memcmp(a->id, b->id, sizeof(a->id));
}

/* --- which parts are taken
 * -------------------------------------------------------------------------------------- */

static bool take_unit(struct share_page *page, uint32_t unit)
{
    uint64_t bit = 1ull << (unit % 64);

    /* Acquire: partner of the release in give_units(); the memory was cleared before. */
    return !(atomic_fetch_or_explicit(&page->taken[unit / 64], bit, memory_order_acquire) & bit);
}

static void give_units(struct share_page *page, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i != first + count; i++)
        atomic_fetch_and_explicit(&page->taken[i / 64], ~(1ull << (i % 64)), memory_order_release);
}

/* The lowest run of free units; UNITS: there is none. */
static uint32_t take_units(struct share_page *page, uint32_t count)
{
    for (uint32_t first = 0; first + count <= UNITS;) {
        uint32_t got = 0;

        while (got < count && take_unit(page, first + got))
            got++;
        if (got == count)
            return first;
        give_units(page, first, got);
        first += got + 1;
    }
    return UNITS;
}

static struct share_dm *take_entry(struct share_page *page)
{
    for (uint32_t i = 0; i < DM_COUNT; i++) {
        uint32_t expected = DM_FREE;

        if (atomic_compare_exchange_strong_explicit(&page->dms[i].state, &expected, DM_CHANGING,
                                                    memory_order_acquire, memory_order_relaxed))
            return &page->dms[i];
    }
    return NULL;
}

/* --- device memory
 * ---------------------------------------------------------------------------------------------- */

/* A forked child that goes on with its parent's context publishes nothing. */
static uint32_t publish(const struct dm *dm)
{
    const uint64_t place[2] = {(uintptr_t)dm->at, dm->length};

    if (context_is_inherited(dm->context))
        return NO_OBJECT;
    return item_take(OBJECT_DM, 0, dm->context->number, NO_OBJECT, place);
}

static struct dm *make(struct context *context, uint32_t handle, uint32_t first, uint64_t length)
{
    struct dm *dm = calloc(1, sizeof(*dm));

    if (!dm)
        return NULL;
    dm->context = context;
    dm->generation = process_generation();
    dm->at = (char *)context->share->page + PAGE + (size_t)first * PAGE;
    dm->length = length;
    dm->ibv.context = &context->verbs.context;
    dm->ibv.memcpy_to_dm = dm_copy_to;
    dm->ibv.memcpy_from_dm = dm_copy_from;
    dm->ibv.handle = handle;
    dm->item = publish(dm);
    atomic_fetch_add_explicit(&context->objects, 1, memory_order_relaxed);
    return dm;
}

int dm_allocate(struct context *context, const struct ibv_alloc_dm_attr *attributes, struct dm **ret_dm)
{
    struct share_page *page = context->share ? context->share->page : NULL;
    struct share_dm *entry;
    uint32_t first, units;

    if (!page)
        return -EOPNOTSUPP;
    if (attributes->comp_mask || !attributes->length || attributes->length > LIMIT_DM_SIZE ||
        attributes->log_align_req > LIMIT_DM_LOG_ALIGNMENT)
        return -EINVAL;
    units = (uint32_t)((attributes->length + PAGE - 1) / PAGE);
    entry = take_entry(page);
    if (!entry)
        return -ENOMEM;
    first = take_units(page, units);
    if (first != UNITS)
        *ret_dm = make(context, (uint32_t)(entry - page->dms), first, attributes->length);
    if (first == UNITS || !*ret_dm) {
        if (first != UNITS)
            give_units(page, first, units);
        atomic_store_explicit(&entry->state, DM_FREE, memory_order_release);
        return -ENOMEM;
    }
    entry->first = first;
    entry->units = units;
    entry->length = attributes->length;
    atomic_store_explicit(&entry->state, DM_ALIVE, memory_order_release);
    return 0;
}

static void forget(struct dm *dm)
{
    item_return(dm->item);
    atomic_fetch_sub_explicit(&dm->context->objects, 1, memory_order_release);
    free(dm);
}

int dm_free(struct dm *dm)
{
    struct share *share = dm->context->share;
    struct share_dm *entry = &share->page->dms[dm->ibv.handle];
    uint32_t first = (uint32_t)((dm->at - (char *)share->page) / PAGE - 1), expected = DM_ALIVE;
    uint32_t units = (uint32_t)((dm->length + PAGE - 1) / PAGE);
    off_t offset = (off_t)PAGE + (off_t)first * PAGE;

    if (dm->generation != process_generation())
        return 0; /* the parent's */
    if (dm->imported)
        return -EOPNOTSUPP; /* the exporter has a structure of his own */
    if (atomic_load_explicit(&dm->users, memory_order_acquire))
        return busy_because(OBJECT_DM, dm->item);
    if (atomic_compare_exchange_strong_explicit(&entry->state, &expected, DM_CHANGING, memory_order_acquire,
                                                memory_order_relaxed)) {
        if (sys_punch_hole(share->fd, offset, (off_t)units * PAGE) != 0)
            memset(dm->at, 0, (size_t)units * PAGE);
        give_units(share->page, first, units);
        atomic_store_explicit(&entry->state, DM_FREE, memory_order_release);
    }
    forget(dm);
    return 0;
}

int dm_import(struct context *context, uint32_t handle, struct dm **ret_dm)
{
    struct share_page *page = context->share ? context->share->page : NULL;
    uint64_t length;
    uint32_t first;

    if (context_is_inherited(context))
        return -EIO;
    if (!page || handle >= DM_COUNT ||
        atomic_load_explicit(&page->dms[handle].state, memory_order_acquire) != DM_ALIVE)
        return -EINVAL;
    /* Copied, then checked. */
    first = __atomic_load_n(&page->dms[handle].first, __ATOMIC_RELAXED);
    length = __atomic_load_n(&page->dms[handle].length, __ATOMIC_RELAXED);
    if (first >= UNITS || length > (uint64_t)(UNITS - first) * PAGE)
        return -EINVAL;
    *ret_dm = make(context, handle, first, length);
    if (!*ret_dm)
        return -ENOMEM;
    (*ret_dm)->imported = true;
    return 0;
}

void dm_unimport(struct dm *dm)
{
    if (dm->generation == process_generation() && dm->imported &&
        !atomic_load_explicit(&dm->users, memory_order_acquire))
        forget(dm);
}

void dm_use(struct dm *dm)
{
    atomic_fetch_add_explicit(&dm->users, 1, memory_order_relaxed);
}

void dm_unuse(struct dm *dm)
{
    atomic_fetch_sub_explicit(&dm->users, 1, memory_order_release);
}

static int check_copy(const struct dm *dm, uint64_t offset, size_t length)
{
    if (offset % 4 || length % 4)
        return EINVAL;
    return offset > dm->length || length > dm->length - offset ? EFAULT : 0;
}

int dm_copy_to(struct ibv_dm *ibv, uint64_t offset, const void *from, size_t length)
{
    int error = check_copy(dm_of(ibv), offset, length);

    if (error) {
        errno = error;
        return error;
    }
    memcpy(dm_of(ibv)->at + offset, from, length);
    return 0;
}

int dm_copy_from(void *to, struct ibv_dm *ibv, uint64_t offset, size_t length)
{
    int error = check_copy(dm_of(ibv), offset, length);

    if (error) {
        errno = error;
        return error;
    }
    memcpy(to, dm_of(ibv)->at + offset, length);
    return 0;
}
