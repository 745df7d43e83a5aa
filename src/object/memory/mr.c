/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory regions (verbs.md §4.1, §4.8). */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/refusal.h"
#include "base/rundown.h"
#include "object/destroyed.h"
#include "object/memory/dm.h"
#include "object/memory/dmah.h"
#include "object/memory/memory.h"
#include "object/memory/share.h"
#include "object/pd/pd.h"
#include "object/ports.h"
#include "object/qp/qp.h"
#include "rules/alias.h"
#include "rules/flush.h"
#include "segment/provenance.h"

#define ACCESS_KNOWN                                                                                         \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |  \
     IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB | IBV_ACCESS_ON_DEMAND |                \
     ACCESS_FLUSH_GLOBAL)

static _Atomic uint32_t regions;

/* The regions by key slot, for ibv_import_mr(); under keys_lock. NULL: the slot is free. */
static struct mr *by_slot[LIMIT_KEY_SLOTS];

/* A handle is the slot and, above it, the process's index (share.h): unique among all processes that have the
 * device open by the same file. */
#define HANDLE_PROCESS_SHIFT 19
_Static_assert(LIMIT_KEY_SLOTS == 1u << HANDLE_PROCESS_SHIFT, "slot and process");

/* ACCESS_FLUSH_PERSISTENT is refused: which memory is persistent is not known, and the data path does not write
 * back caches.
 *
 * Unknown optional flags are ignored (verbs.md §0.2): they are removed from *access. */
static int check_access(unsigned *access)
{
    *access &= ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE;
    if (*access & ~(unsigned)ACCESS_KNOWN)
        return refuse_bits(-EINVAL, "access", BITS_ACCESS, *access, ACCESS_KNOWN);
    if ((*access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
        !(*access & IBV_ACCESS_LOCAL_WRITE))
        return refuse(-EINVAL, REFUSAL_NEEDS_LOCAL_WRITE, "access", *access, 0, 0);
    return 0;
}

/* Empty ranges are refused, as the kernel's pinning refuses them. An implicit on-demand region has the length
 * SIZE_MAX: all of the address space. */
static int check_range(const void *address, size_t length, uint64_t iova, unsigned access,
                       struct memory_file *ret_file)
{
    uint64_t end;

    *ret_file = (struct memory_file){.inode = 0};
    if (!length)
        return refuse_range("length", 0, 1, UINT64_MAX);
    if (__builtin_add_overflow((uintptr_t)address, length, &end))
        return refuse(-EINVAL, REFUSAL_WRAPS, "addr", (int64_t)(uintptr_t)address, length, 0);
    if (__builtin_add_overflow(iova, length, &end))
        return refuse(-EINVAL, REFUSAL_WRAPS, "iova", (int64_t)iova, length, 0);
    if (access & IBV_ACCESS_ON_DEMAND) /* memory is checked when it is accessed */
        return length == SIZE_MAX && (access & IBV_ACCESS_HUGETLB)
                   ? refuse_because(-EINVAL, "access has IBV_ACCESS_HUGETLB, which an implicit on-demand MR "
                                             "cannot have")
                   : 0;
    return memory_check_file((uintptr_t)address, length, access & IBV_ACCESS_LOCAL_WRITE, ret_file);
}

uint32_t mr_count(void)
{
    return atomic_load_explicit(&regions, memory_order_relaxed);
}

int mr_publish(struct pd *pd, enum key_kind kind, bool mappable, void *address, size_t length, uint64_t iova,
               unsigned access, struct mr **ret_mr)
{
    const struct key_entry *entry;
    struct mr *mr;
    int error = pd_use(pd, "ibv_reg_mr");

    if (error)
        return error;
    mr = calloc(1, sizeof(*mr));
    if (!mr) {
        error = refuse_memory();
        goto unuse_pd;
    }
    if (atomic_fetch_add_explicit(&regions, 1, memory_order_relaxed) >= LIMIT_MR) {
        error = refuse_count("MRs", LIMIT_MR);
        goto free_mr;
    }
    mr->slot = number_take(&pool_keys);
    if (mr->slot == NO_OBJECT) {
        error = refuse_count("MRs and MWs together", LIMIT_KEY_SLOTS);
        goto free_mr;
    }
    mapping_begin(&mr->mapping, (uintptr_t)address, mappable ? length : 0, access);
    if (access &
        (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND))
        memory_expect_copies();
    mr->pd = pd;
    mr->access = access;
    mr->iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
    entry = &segment_keys()->entry[mr->slot];
    lock_acquire(&keys_lock);
    do {
        keys_publish_region(segment_keys(), mr->slot, kind, pd->number, access, mr->iova, length,
                            (uintptr_t)address, key_random());
        /* Again if a key equals a key of another process that is an alias of an imported region's. */
    } while (key_alias_resolve(segment_keys(), entry->lkey) ||
             key_alias_resolve(segment_keys(), entry->rkey));
    mr->ibv.lkey = entry->lkey;
    mr->ibv.rkey = entry->rkey;
    mr->structures = 1;
    by_slot[mr->slot] = mr;
    lock_release(&keys_lock);
    provenance_key_created(mr->slot, pd->record_number);
    mr->ibv.context = pd->ibv.context;
    mr->ibv.pd = &pd->ibv;
    mr->ibv.addr = address;
    mr->ibv.length = length;
    mr->ibv.handle = mr->slot | pd->context->share->index << HANDLE_PROCESS_SHIFT;
    mapping_publish(mr);
    *ret_mr = mr;
    return 0;

free_mr:
    atomic_fetch_sub_explicit(&regions, 1, memory_order_relaxed);
    free(mr);
unuse_pd:
    pd_unuse(pd);
    return error;
}

int mr_register(struct pd *pd, void *address, size_t length, uint64_t iova, unsigned access,
                struct mr **ret_mr)
{
    struct memory_file file;
    int error = check_access(&access);

    if (!error)
        error = check_range(address, length, iova, access, &file);
    if (error)
        return error;
    if (access & IBV_ACCESS_ON_DEMAND)
        return mr_publish(pd, KEY_REGION_ON_DEMAND, true, address, length, iova, access, ret_mr);
    error = mr_publish(pd, KEY_REGION, true, address, length, iova, access, ret_mr);
    if (!error)
        region_export(*ret_mr, &file);
    return error;
}

int mr_register_null(struct pd *pd, struct mr **ret_mr)
{
    int error = mr_publish(pd, KEY_REGION_NULL, false, NULL, 0, 0, IBV_ACCESS_LOCAL_WRITE, ret_mr);

    if (!error)
        (*ret_mr)->fixed = true;
    return error;
}

int mr_register_dm(struct pd *pd, struct dm *dm, uint64_t offset, size_t length, unsigned access,
                   struct mr **ret_mr)
{
    int error = context_is_inherited(pd->context) ? destroyed_refuse(DESTROYED_PD, pd, "ibv_reg_dm_mr")
                                                  : check_access(&access);
    struct memory_file file;

    if (error)
        return error;
    if (!(access & IBV_ACCESS_ZERO_BASED))
        return refuse_because(-EINVAL, "access of device memory needs IBV_ACCESS_ZERO_BASED");
    if (access & (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB))
        return refuse_bits(-EINVAL, "access of device memory", BITS_ACCESS,
                           access & (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB),
                           ACCESS_KNOWN & ~(unsigned)(IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB));
    if (offset > dm->length)
        return refuse_range("dm_offset", (int64_t)offset, 0, dm->length);
    if (length > dm->length - offset)
        return refuse_range("length", (int64_t)length, 0, dm->length - offset);
    if (pd->context != dm->context)
        return refuse_elsewhere("dm");
    error = dm_use(dm);
    if (error)
        return error;
    error = mr_publish(pd, KEY_REGION, false, dm->at + offset, length, 0, access, ret_mr);
    if (error) {
        dm_unuse(dm);
        return error;
    }
    (*ret_mr)->dm = dm;
    (*ret_mr)->fixed = true;
    (*ret_mr)->ibv.addr = NULL;
    if (memory_check_file((uintptr_t)dm->at + offset, length, false, &file) == 0)
        region_export(*ret_mr, &file);
    return 0;
}

#define DMABUF_ACCESS                                                                                        \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

int mr_register_dmabuf(struct pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, unsigned access,
                       struct mr **ret_mr)
{
    uint64_t in_page = (uint64_t)sysconf(_SC_PAGESIZE) - 1, end;
    struct dmabuf dmabuf = {.at = NULL};
    int error = check_access(&access);

    if (!error && (access & ~(unsigned)DMABUF_ACCESS))
        error = refuse_bits(-EINVAL, "access", BITS_ACCESS, access, DMABUF_ACCESS);
    if (!error && ((offset ^ iova) & in_page))
        error =
            refuse(-EINVAL, REFUSAL_UNALIGNED, "(offset - iova)", (int64_t)(offset - iova), in_page + 1, 0);
    if (!error && __builtin_add_overflow(iova, length, &end))
        error = refuse(-EINVAL, REFUSAL_WRAPS, "iova", (int64_t)iova, length, 0);
    if (!error)
        error = dmabuf_map(fd, offset, length, access & IBV_ACCESS_LOCAL_WRITE, &dmabuf);
    if (error)
        return error;
    /* Device pages, which process_vm_readv() may be unable to read. */
    error = mr_publish(pd, KEY_REGION, false, dmabuf.at, length, iova, access | ACCESS_COPIED, ret_mr);
    if (error) {
        dmabuf_unmap(&dmabuf);
        return error;
    }
    (*ret_mr)->dmabuf = dmabuf;
    (*ret_mr)->fixed = true;
    (*ret_mr)->ibv.addr = (void *)(uintptr_t)offset;
    return 0;
}

int mr_import(struct pd *pd, uint32_t handle, struct mr **ret_mr)
{
    uint32_t slot = handle & (LIMIT_KEY_SLOTS - 1);
    const struct key_entry *entry;
    struct mr *mr, *region;

    if (context_is_inherited(pd->context))
        return -EIO;
    if (pd_is_parent_domain(pd))
        return -EINVAL;
    if (handle >> HANDLE_PROCESS_SHIFT != pd->context->share->index)
        return region_import(pd, handle, ret_mr);
    mr = calloc(1, sizeof(*mr));
    if (!mr)
        return -ENOMEM;
    lock_acquire(&keys_lock);
    entry = &segment_keys()->entry[slot];
    region = by_slot[slot];
    /* In a forked child inherited regions are still in by_slot, but their slots of the child's table are free. */
    if (region && entry->kind >= KEY_REGION && entry->kind <= KEY_REGION_NULL && entry->pd == pd->number) {
        region->structures++;
        mr->of = region;
        mr->ibv.lkey = region->ibv.lkey;
        mr->ibv.rkey = region->ibv.rkey;
    }
    lock_release(&keys_lock);
    if (!mr->of) {
        free(mr);
        return -EINVAL;
    }
    mr->pd = pd;
    mr->slot = slot;
    mr->ibv.context = pd->ibv.context;
    mr->ibv.pd = &pd->ibv;
    mr->ibv.handle = handle;
    *ret_mr = mr;
    return 0;
}

static struct mr *region_of(struct mr *mr)
{
    return mr->of ? mr->of : mr;
}

/* The program has given the structure back. The memory is freed with the last structure of the region. */
static void forget(struct mr *mr)
{
    struct mr *region = region_of(mr);
    bool last;

    lock_acquire(&keys_lock);
    last = --region->structures == 0 && region->ended;
    mr->forgotten = true;
    lock_release(&keys_lock);
    if (last)
        destroyed_free(DESTROYED_MR, region, sizeof(*region), region->ibv.lkey);
    if (mr != region)
        destroyed_free(DESTROYED_MR, mr, sizeof(*mr), mr->ibv.lkey);
}

/* Withdraws the key; keys_lock held. -ENOENT: the region was deregistered before. */
static int withdraw(struct mr *region)
{
    if (region->ended)
        return -ENOENT;
    if (segment_keys()->entry[region->slot].mws != 0)
        return -EBUSY;
    keys_withdraw(segment_keys(), region->slot);
    by_slot[region->slot] = NULL;
    region->ended = true;
    return 0;
}

/* The end of a region whose key is withdrawn. Waits for rundown sections that may have found the key, because
 * the program may free the memory when the verb returns. */
static void end_region(struct mr *region)
{
    region_unexport(region);
    rundown_wait();
    exposed_revoke(region->slot, false);
    mapping_end(region);
    if (region->imported)
        region_release_import(region);
    number_return(&pool_keys, region->slot);
    atomic_fetch_sub_explicit(&regions, 1, memory_order_relaxed);
    if (region->dm)
        dm_unuse(region->dm);
    if (region->dmah)
        dmah_unuse(region->dmah);
    if (region->dmabuf.at)
        dmabuf_unmap(&region->dmabuf);
    pd_unuse(region->pd);
}

void mr_unimport(struct mr *mr)
{
    int error = -ENOENT;

    if (context_is_inherited(context_of(mr->ibv.context)))
        return;
    if (mr->imported) { /* another process's region: this structure is all that this process has of it */
        lock_acquire(&keys_lock);
        error = withdraw(mr);
        lock_release(&keys_lock);
    }
    if (!error)
        end_region(mr);
    forget(mr);
}

struct mr *mr_in_slot(uint32_t slot)
{
    struct mr *mr;

    lock_acquire(&keys_lock);
    mr = by_slot[slot];
    lock_release(&keys_lock);
    return mr;
}

int mr_deregister(struct mr *mr)
{
    struct mr *region;
    int error;

    if (destroyed_has(DESTROYED_MR, mr, "ibv_dereg_mr"))
        return -EINVAL;
    if (context_is_inherited(context_of(mr->ibv.context)))
        return 0;
    if (mr->forgotten)
        return -EINVAL;
    region = region_of(mr);
    if (mr->imported) {
        log_warn(
            "ibv_dereg_mr: MR handle %u is imported: with SoftHCA only the process that registered it can "
            "deregister it (here: ibv_unimport_mr)",
            mr->ibv.handle);
        return -EOPNOTSUPP;
    }
    if (explained())
        object_ports->explain(EXPLAIN_IN_USE, OBJECT_MR, region->slot);
    lock_acquire(&keys_lock);
    error = withdraw(region);
    if (!error && explained()) /* the slot keeps it until another region has it */
        provenance_destroying(segment_key_provenance(region->slot));
    lock_release(&keys_lock);
    if (error == -EBUSY)
        return busy_because(OBJECT_MR, region->slot);
    if (error)
        return error;
    end_region(region);
    forget(mr);
    return 0;
}

/* --- changing ------------------------------------------------------------------------------------------- */

#define REREG_KNOWN (IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS)

/* The attributes of the region after ibv_rereg_mr(). */
struct change {
    struct pd *pd;
    void *address;
    size_t length;
    uint64_t iova;
    unsigned access;
    struct memory_file file;
};

static int check_change(const struct mr *mr, int flags, struct pd *pd, void *address, size_t length,
                        int access, struct change *ret_change)
{
    int error = 0;

    if (mr->fixed || mr->of)
        return refuse_because(-EINVAL,
                              "an MR of device memory or of a dma-buf, or an imported one, cannot be "
                              "re-registered");
    if (flags & ~REREG_KNOWN)
        return refuse_bits(-EINVAL, "flags", BITS_PLAIN, (unsigned)flags, REREG_KNOWN);
    if (access && !(flags & IBV_REREG_MR_CHANGE_ACCESS))
        return refuse_because(-EINVAL, "access is not 0, but flags lack IBV_REREG_MR_CHANGE_ACCESS");
    if (flags & IBV_REREG_MR_CHANGE_PD) {
        if (!pd)
            return refuse_null("pd");
        if (pd->ibv.context != mr->ibv.context)
            return refuse_elsewhere("pd");
        ret_change->pd = pd;
    }
    if (flags & IBV_REREG_MR_CHANGE_ACCESS) {
        ret_change->access = (unsigned)access;
        error = check_access(&ret_change->access);
        /* On-demand cannot be turned on or off. */
        if (!error && ((ret_change->access ^ mr->access) & IBV_ACCESS_ON_DEMAND))
            return -EINVAL;
    }
    if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
        if (!address)
            return refuse_null("addr");
        if (!length)
            return refuse_range("length", 0, 1, UINT64_MAX);
        ret_change->address = address;
        ret_change->length = length;
        ret_change->iova = (uintptr_t)address;
    }
    if (!error && (flags & (IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS)))
        error = check_range(ret_change->address, ret_change->length, ret_change->iova, ret_change->access,
                            &ret_change->file);
    return error;
}

int mr_reregister(struct mr *mr, int flags, struct pd *pd, void *address, size_t length, int access,
                  int *ret_error)
{
    struct change change;
    struct pd *old_pd;
    struct mapping mapping;
    int error = destroyed_refuse(DESTROYED_MR, mr, "ibv_rereg_mr");

    if (error != -EINVAL) {
        change = (struct change){mr->pd, mr->ibv.addr, mr->ibv.length, mr->iova, mr->access, {0}};
        error = context_is_inherited(context_of(mr->ibv.context)) ? -EIO
                : mr->ended                                       ? -EINVAL
                            : check_change(mr, flags, pd, address, length, access, &change);
    }
    if (!error)
        error = pd_use(change.pd, "ibv_rereg_mr");
    if (error) {
        *ret_error = error;
        return IBV_REREG_MR_ERR_INPUT; /* the region is unchanged */
    }
    old_pd = mr->pd;
    /* Before the old mapping is dropped, so that pages in both ranges do not move. */
    mapping_begin(&mapping, (uintptr_t)change.address, change.length, change.access);
    lock_acquire(&keys_lock);
    if (segment_keys()->entry[mr->slot].mws) /* the windows' rights derive from the MR (IBA 10.6.7.2.1) */
        error = -EBUSY;
    else
        keys_change_region(segment_keys(), mr->slot, change.pd->number, change.access, change.iova,
                           change.length, (uintptr_t)change.address);
    lock_release(&keys_lock);
    if (error) {
        mapping_drop(&mapping);
        pd_unuse(change.pd);
        *ret_error = error;
        return IBV_REREG_MR_ERR_INPUT;
    }
    /* The program may free the old memory. Other processes have to import the region again. */
    region_unexport(mr);
    rundown_wait();
    exposed_revoke(mr->slot, false);
    mapping_end(mr);
    mapping_set(mr, &mapping);
    mr->pd = change.pd;
    provenance_key_moved(mr->slot, change.pd->record_number);
    mr->access = change.access;
    mr->iova = change.iova;
    mr->ibv.pd = &change.pd->ibv;
    mr->ibv.addr = change.address;
    mr->ibv.length = change.length;
    mapping_publish(mr);
    region_export(mr, &change.file);
    pd_unuse(old_pd);
    return 0;
}

/* --- advice --------------------------------------------------------------------------------------------- */

static int advise(struct pd *pd, const struct ibv_sge *sge, enum ibv_advise_mr_advice advice, uint32_t flags)
{
    bool write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    uint32_t own = key_alias_resolve(segment_keys(), sge->lkey), lkey = own ? own : sge->lkey;
    struct key_view view;

    if (!keys_read(segment_keys(), key_slot(lkey), &view) || view.kind < KEY_REGION ||
        view.kind > KEY_REGION_NULL || view.lkey != lkey)
        return -EFAULT;
    if (view.pd != pd->number || (write && !(view.access & IBV_ACCESS_LOCAL_WRITE)))
        return -EPERM;
    if (!sge->length)
        return 0;
    if (!key_view_covers(&view, sge->addr, sge->length))
        return -EFAULT;
    if (view.kind == KEY_REGION_NULL || advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
        return 0; /* there is no adapter page table to update */
    /* Without IBV_ADVISE_MR_FLAG_FLUSH advice is a hint, and missing memory is no error. */
    if (!memory_reach(key_view_translate(&view, sge->addr), sge->length, write) &&
        (flags & IBV_ADVISE_MR_FLAG_FLUSH))
        return -EFAULT;
    return 0;
}

int mr_advise(struct pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, const struct ibv_sge *list,
              uint32_t count)
{
    int error = 0;

    if (context_is_inherited(pd->context))
        return -EIO;
    if (advice != IBV_ADVISE_MR_ADVICE_PREFETCH && advice != IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE &&
        advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
        return -EOPNOTSUPP;
    if ((flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH) || !count)
        return -EINVAL;
    for (uint32_t i = 0; i < count && !error; i++)
        error = advise(pd, &list[i], advice, flags);
    return error;
}
