/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Functions of libibverbs.so.1 of protection domains and what is registered in them, as verbs.c has the others. */
#include "base/refusal.h"
#include "explain/out.h"
#include "watch/calls.h"
#include "watch/registration.h"

enum call {
    ALLOC_PD,
    DEALLOC_PD,
    DEREG_MR,
    REG_MR,
    REREG_MR,
    REG_MR_IOVA,
    REG_MR_IOVA2,
    IMPORT_MR,
    IMPORT_PD,
    UNIMPORT_MR,
    UNIMPORT_PD,
    REG_DMABUF_MR,
    IMPORT_DM,
    UNIMPORT_DM,
    CALLS
};

struct original memory_originals[CALLS] = {
    [ALLOC_PD] = VERBS(ibv_alloc_pd, "1.1"),         [DEALLOC_PD] = VERBS(ibv_dealloc_pd, "1.1"),
    [DEREG_MR] = VERBS(ibv_dereg_mr, "1.1"),         [REG_MR] = VERBS(ibv_reg_mr, "1.1"),
    [REREG_MR] = VERBS(ibv_rereg_mr, "1.1"),         [REG_MR_IOVA] = VERBS(ibv_reg_mr_iova, "1.7"),
    [REG_MR_IOVA2] = VERBS(ibv_reg_mr_iova2, "1.8"), [IMPORT_MR] = VERBS(ibv_import_mr, "1.10"),
    [IMPORT_PD] = VERBS(ibv_import_pd, "1.10"),      [UNIMPORT_MR] = VERBS(ibv_unimport_mr, "1.10"),
    [UNIMPORT_PD] = VERBS(ibv_unimport_pd, "1.10"),  [REG_DMABUF_MR] = VERBS(ibv_reg_dmabuf_mr, "1.12"),
    [IMPORT_DM] = VERBS(ibv_import_dm, "1.13"),      [UNIMPORT_DM] = VERBS(ibv_unimport_dm, "1.13"),
};
const size_t memory_originals_count = CALLS;

/* --- PD, MR --------------------------------------------------------------------------------------------- */

struct watched_pd *adopt_pd(struct ibv_pd *pd)
{
    struct watched_pd *known = (struct watched_pd *)watched_find(pd, OBJECT_PD);

    if (known || !pd)
        return known;
    adopt_context(pd->context);
    known = watched_new_pd(pd, pd->context, NULL, NULL);
    if (known)
        segment_pd(known->base.number)->kept = 1;
    return known;
}

WATCH_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct watched_pd *known;
    struct ibv_pd *pd;
    FIND(memory_originals[ALLOC_PD], ibv_alloc_pd, NULL);

    if (watch_thread.inside)
        return original(context);
    pd = INSIDE(original(context));
    known = pd ? watched_new_pd(pd, context, NULL, NULL) : NULL;
    if (known && watch_in_cm)
        segment_pd(known->base.number)->kept = 1;
    return pd;
}

WATCH_EXPORT struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle)
{
    struct watched_pd *known;
    struct ibv_pd *pd;
    FIND(memory_originals[IMPORT_PD], ibv_import_pd, NULL);

    if (watch_thread.inside)
        return original(context, handle);
    pd = INSIDE(original(context, handle));
    known = pd ? watched_new_pd(pd, context, NULL, NULL) : NULL;
    if (known)
        segment_pd(known->base.number)->imported = 1;
    return pd;
}

static void forget(const void *key, enum object_kind kind)
{
    struct watched *object = watch_thread.inside ? NULL : watched_find(key, kind);

    if (object)
        watched_forget(object);
}

/* What an unimport frees may have a new owner at once: the record goes first. */
#define UNIMPORT(which, verb, object_kind, pointer)                                                          \
    __typeof__(&verb) original = (__typeof__(&verb))original_find(&(which));                                 \
    forget(pointer, object_kind);                                                                            \
    if (original)                                                                                            \
    original(pointer)

WATCH_EXPORT void ibv_unimport_pd(struct ibv_pd *pd)
{
    UNIMPORT(memory_originals[UNIMPORT_PD], ibv_unimport_pd, OBJECT_PD, pd);
}

WATCH_EXPORT void ibv_unimport_mr(struct ibv_mr *mr)
{
    UNIMPORT(memory_originals[UNIMPORT_MR], ibv_unimport_mr, OBJECT_MR, mr);
}

WATCH_EXPORT void ibv_unimport_dm(struct ibv_dm *dm)
{
    UNIMPORT(memory_originals[UNIMPORT_DM], ibv_unimport_dm, OBJECT_DM, dm);
}

WATCH_EXPORT struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle)
{
    struct ibv_dm *dm;
    FIND(memory_originals[IMPORT_DM], ibv_import_dm, NULL);

    if (watch_thread.inside)
        return original(context, handle);
    dm = INSIDE(original(context, handle));
    if (dm)
        watched_new_item(dm, OBJECT_DM, context, NO_OBJECT, NULL);
    return dm;
}

WATCH_EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    DESTROY(memory_originals[DEALLOC_PD], ibv_dealloc_pd, OBJECT_PD, pd);
}

#define NEEDS_WRITABLE                                                                                       \
    (unsigned)(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC |                 \
               IBV_ACCESS_MW_BIND)

static void check_registration(size_t length, unsigned access)
{
    if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) && !(access & IBV_ACCESS_LOCAL_WRITE))
        refuse(-EINVAL, REFUSAL_NEEDS_LOCAL_WRITE, "access", access, 0, 0);
    else if (!length)
        refuse_range("length", 0, 1, UINT64_MAX);
}

/* Of a PD, because there is no MR: which range, and what the kernel answers. */
static void refused_registration(const struct ibv_pd *pd, const char *call, const void *address,
                                 size_t length, unsigned access)
{
    const struct watched *known = watched_find(pd, OBJECT_PD);
    struct words words = {.length = 0};
    int error = errno;

    if (!known)
        return;
    words_add(&words, "%zu bytes at 0x%llx, access 0x%x", length, (unsigned long long)(uintptr_t)address,
              access);
    if (error == EFAULT) {
        words_add_unpinned(&words, (uintptr_t)address, length, access & NEEDS_WRITABLE);
    } else if (error == ENOMEM) {
        struct pin_limit pins = pin_limit_now();

        words_add_no_memory(&words, &pins, (uintptr_t)address, length);
    } else if (error == EINVAL) {
        check_registration(length, access);
    }
    if (tell_reason(call, error, 0, 0)) {
        errno = error;
        return;
    }
    tell_refused(call, OBJECT_PD, known->number, error, words.text);
    errno = error;
}

WATCH_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    struct ibv_mr *mr;
    FIND(memory_originals[REG_MR], ibv_reg_mr, NULL);

    if (watch_thread.inside)
        return original(pd, address, length, access);
    mr = INSIDE(original(pd, address, length, access));
    if (mr)
        watched_new_mr(mr, pd, (uintptr_t)address, (unsigned)access, NULL, 0);
    else
        refused_registration(pd, "ibv_reg_mr", address, length, (unsigned)access);
    return mr;
}

WATCH_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                            int access)
{
    struct ibv_mr *mr;
    FIND(memory_originals[REG_MR_IOVA], ibv_reg_mr_iova, NULL);

    if (watch_thread.inside)
        return original(pd, address, length, iova, access);
    mr = INSIDE(original(pd, address, length, iova, access));
    if (mr)
        watched_new_mr(mr, pd, iova, (unsigned)access, NULL, 0);
    else
        refused_registration(pd, "ibv_reg_mr_iova", address, length, (unsigned)access);
    return mr;
}

WATCH_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                             unsigned access)
{
    struct ibv_mr *mr;
    FIND(memory_originals[REG_MR_IOVA2], ibv_reg_mr_iova2, NULL);

    if (watch_thread.inside)
        return original(pd, address, length, iova, access);
    mr = INSIDE(original(pd, address, length, iova, access));
    if (mr)
        watched_new_mr(mr, pd, iova, access, NULL, 0);
    else
        refused_registration(pd, "ibv_reg_mr", address, length, access);
    return mr;
}

WATCH_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                              uint64_t iova, int fd, int access)
{
    struct ibv_mr *mr;
    FIND(memory_originals[REG_DMABUF_MR], ibv_reg_dmabuf_mr, NULL);

    if (watch_thread.inside)
        return original(pd, offset, length, iova, fd, access);
    mr = INSIDE(original(pd, offset, length, iova, fd, access));
    if (mr)
        watched_new_mr(mr, pd, iova, (unsigned)access, NULL, 0);
    return mr;
}

WATCH_EXPORT struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
    struct ibv_mr *mr;
    FIND(memory_originals[IMPORT_MR], ibv_import_mr, NULL);

    if (watch_thread.inside)
        return original(pd, handle);
    mr = INSIDE(original(pd, handle));
    if (mr)
        watched_new_mr(mr, pd, (uintptr_t)mr->addr, 0, NULL, 0);
    return mr;
}

WATCH_EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *address, size_t length,
                              int access)
{
    struct watched *known = watch_thread.inside ? NULL : watched_find(mr, OBJECT_MR);
    unsigned before = known ? segment_keys()->entry[known->number].access : 0;
    int result;
    FIND(memory_originals[REREG_MR], ibv_rereg_mr, -1);

    if (!known)
        return original(mr, flags, pd, address, length, access);
    result = INSIDE(original(mr, flags, pd, address, length, access));
    if (result == 0)
        watched_mr_changed(mr, flags & IBV_REREG_MR_CHANGE_PD ? pd : NULL, (uintptr_t)mr->addr,
                           flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned)access : before);
    return result;
}

WATCH_EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    struct watched *known = watch_thread.inside ? NULL : watched_find(mr, OBJECT_MR);

    if (known)
        tell(TOLD_IN_USE, OBJECT_MR, known->number);
    DESTROY(memory_originals[DEREG_MR], ibv_dereg_mr, OBJECT_MR, mr);
}
