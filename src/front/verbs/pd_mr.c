/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Protection domains, memory regions and windows (verbs.md §1.4, §4). */
#include "front/verbs/front.h"
#include "front/verbs/injected.h"
#include "object/memory/dm.h"
#include "object/pd/pd.h"
#include "object/qp/qp.h"
#include "segment/segment.h"

VERBS_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct pd *pd;
    int result = injected(CALL_ALLOC_PD, context);

    if (!result && inject_has(INJECT_LIMIT))
        result = injected_limit(INJECT_MAX_PD, context, number_used(&pool_pds) + 1ull);
    if (result)
        return null_with(result);
    result = pd_allocate(context_of(context), &pd);

    if (result < 0)
        return null_with(result);
    return &pd->ibv;
}

VERBS_EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    return positive(pd_deallocate(pd_of(pd)));
}

struct ibv_td *front_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attributes)
{
    struct td *td;
    int result = td_allocate(context_of(context), attributes, &td);

    return result < 0 ? null_with(result) : &td->ibv;
}

int front_dealloc_td(struct ibv_td *td)
{
    return positive(td_deallocate(td_of(td)));
}

struct ibv_pd *front_alloc_parent_domain(struct ibv_context *context,
                                         struct ibv_parent_domain_init_attr *attributes)
{
    struct pd *pd;
    int result = parent_domain_allocate(context_of(context), attributes, &pd);

    return result < 0 ? null_with(result) : &pd->ibv;
}

static struct ibv_mr *register_region(const char *call, struct ibv_pd *pd, void *address, size_t length,
                                      uint64_t iova, unsigned access)
{
    struct mr *mr;
    int result = injected(CALL_REG_MR, pd->context);

    if (!result && inject_has(INJECT_LIMIT))
        result = injected_limit(INJECT_MAX_MR_SIZE, pd->context, length);
    if (!result && inject_has(INJECT_LIMIT))
        result = injected_limit(INJECT_MAX_MR, pd->context, mr_count() + 1ull);
    if (result)
        return front_null_with(call, result);
    result = mr_register(pd_of(pd), address, length, iova, access, &mr);
    return result < 0 ? front_null_with(call, result) : &mr->ibv;
}

VERBS_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    return register_region(__func__, pd, address, length, (uintptr_t)address, (unsigned)access);
}

VERBS_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                            int access)
{
    return register_region(__func__, pd, address, length, iova, (unsigned)access);
}

VERBS_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                             unsigned access)
{
    return register_region(__func__, pd, address, length, iova, access);
}

struct ibv_mr *front_alloc_null_mr(struct ibv_pd *pd)
{
    struct mr *mr;
    int result = mr_register_null(pd_of(pd), &mr);

    return result < 0 ? null_with(result) : &mr->ibv;
}

int front_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list,
                    uint32_t count)
{
    return positive(mr_advise(pd_of(pd), advice, flags, list, count));
}

VERBS_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                                              uint64_t iova, int fd, int access)
{
    struct mr *mr;
    int result = injected(CALL_REG_MR, pd->context);

    if (result)
        return null_with(result);
    result = mr_register_dmabuf(pd_of(pd), offset, length, iova, fd, (unsigned)access, &mr);

    return result < 0 ? null_with(result) : &mr->ibv;
}

/* The only verb that returns an enumeration of its own, together with errno (verbs.md §4.8). */
VERBS_EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *address, size_t length,
                              int access)
{
    int error = injected(CALL_REREG_MR, mr->context), result = IBV_REREG_MR_ERR_CMD;

    if (!error)
        result = mr_reregister(mr_of(mr), flags, pd ? pd_of(pd) : NULL, address, length, access, &error);
    if (result < 0) {
        front_refused(__func__, error < 0 ? error : -error);
        errno = error < 0 ? -error : error;
    }
    return result;
}

VERBS_EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    return positive(mr_deregister(mr_of(mr)));
}

/* --- device memory -------------------------------------------------------------------------------------- */

struct ibv_dm *front_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attributes)
{
    struct dm *dm;
    int result = injected(CALL_ALLOC_DM, context);

    if (result)
        return null_with(result);
    result = dm_allocate(context_of(context), attributes, &dm);

    return result < 0 ? null_with(result) : &dm->ibv;
}

int front_free_dm(struct ibv_dm *dm)
{
    return positive(dm_free(dm_of(dm)));
}

struct ibv_mr *front_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
                               unsigned int access)
{
    struct mr *mr;
    int result = mr_register_dm(pd_of(pd), dm_of(dm), offset, length, access, &mr);

    return result < 0 ? null_with(result) : &mr->ibv;
}

/* --- memory windows ------------------------------------------------------------------------------------- */

struct ibv_mw *front_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    struct mw *mw;
    int result = injected(CALL_ALLOC_MW, pd->context);

    if (result)
        return null_with(result);
    result = mw_allocate(pd_of(pd), type, &mw);

    return result < 0 ? null_with(result) : &mw->ibv;
}

int front_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    return positive(qp_bind_window(qp_of(qp), mw_of(mw), bind));
}

int front_dealloc_mw(struct ibv_mw *mw)
{
    return positive(mw_deallocate(mw_of(mw)));
}
