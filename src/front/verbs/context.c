/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Opening and closing devices, asynchronous events (verbs.md §1.4, §9.1). */
#include "base/log.h"
#include "base/sys.h"
#include "engine/core/engine.h"
#include "engine/core/faults.h"
#include "front/verbs/front.h"
#include "front/verbs/injected.h"
#include "object/destroyed.h"
#include "object/device/device.h"
#include "object/memory/dm.h"
#include "object/memory/share.h"
#include "object/pd/pd.h"
#include "object/ports.h"
#include "object/qp/qp.h"
#include "object/xrc/open_qp.h"

/* Port events come from the helper thread. Events of objects are delivered without it. */
static void watch_interfaces(void)
{
    if (engine_expect_events() < 0)
        log_warn("no helper thread: port events (IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE ...) will not "
                 "be delivered");
}

/* On success the context owns the share, the descriptor of its file and a reference on the device. */
static int open_with(struct ibv_device *device, struct share *share, int cmd_fd, struct context **ret_context)
{
    struct context *context;
    int result;

    faults_on_change(injected_changed);
    result = engine_start();
    if (result == 0)
        result = -injected(CALL_OPEN_DEVICE, NULL);
    if (result == 0)
        result = context_open(front_device(device), &context);
    if (result < 0)
        return result;
    context->share = share;
    context->verbs.context.cmd_fd = cmd_fd;
    context->verbs.context.device = device;
    context->verbs.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    context->verbs.sz = VERBS_HEAD + sizeof(context->verbs) - offsetof(struct verbs_context, context);
    front_fill_ops(&context->verbs);
    atomic_thread_fence(memory_order_seq_cst); /* partner: replace() in engine/core/faults.c */
    if (inject_loaded())
        injected_fill_ops(&context->verbs);
    /* After this, a program may only wait for async_fd to become readable, without another call: so start watching
     * now. */
    watch_interfaces();
    *ret_context = context;
    return 0;
}

VERBS_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct context *context;
    struct share *share;
    int result, cmd_fd;

    if (!device)
        return null_with(EINVAL);
    result = share_open(front_device(device)->node_guid, &share, &cmd_fd);
    if (result < 0)
        return null_with(result);
    front_device_get(device);
    result = open_with(device, share, cmd_fd, &context);
    if (result < 0) {
        front_device_put(device);
        share_close(share);
        sys_close(cmd_fd);
        return null_with(result);
    }
    return &context->verbs.context;
}

/* Runs after the program's exit handlers, which may have used verbs. For peers, a program that ends without exit
 * handlers ends like a killed one. */
__attribute__((destructor)) static void end_of_program(void)
{
    engine_before_exit();
}

/* --- closing -------------------------------------------------------------------------------------------- */

/* A QP that other processes have open (ibv_open_qp) continues; the handle of this process counts as destroyed. */
static void silence_qp(struct qp *qp, void *context)
{
    lock_acquire(&qp->lock);
    if (qp->context == context && !qp_is_open_elsewhere(qp, context) && !qp->handle &&
        atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) != 0) {
        qp_note_owner_fault(qp, FAULT_CLOSED);
        qp_enter_error(qp);
    }
    lock_release(&qp->lock);
}

static void flush_qp(struct qp *qp, void *context)
{
    bool is_its;

    lock_acquire(&qp->lock);
    is_its = qp->context == context && !qp->handle;
    lock_release(&qp->lock);
    if (is_its)
        qp_flush_before_end(qp);
}

/* In the kernel, objects that the program did not destroy are destroyed with the descriptor. Here the helper thread
 * may still use their memory: they stay, unusable, and so do the context and its device. */
VERBS_EXPORT int ibv_close_device(struct ibv_context *ibv)
{
    struct context *context = context_of(ibv);
    struct ibv_device *device = ibv->device;
    struct share *share = context->share;
    int cmd_fd = ibv->cmd_fd;

    if (destroyed_has(DESTROYED_CONTEXT, context, "ibv_close_device"))
        return positive(-EINVAL);
    if (!context_is_inherited(context) &&
        atomic_load_explicit(&context->objects, memory_order_relaxed) != 0) {
        if (explained())
            object_ports->explain(EXPLAIN_LEAKS, OBJECT_CONTEXT, context->number);
        else
            log_warn("ibv_close_device(%s): %u objects are not destroyed (softhca run --all lists them)",
                     device->name, atomic_load_explicit(&context->objects, memory_order_relaxed));
        qp_for_each(flush_qp, context);
        qp_for_each(silence_qp, context);
        context_close(context);
        return 0;
    }
    context_close(context);
    share_close(share);
    sys_close(cmd_fd);
    front_device_put(device);
    return 0;
}

/* --- asynchronous events -------------------------------------------------------------------------------- */

VERBS_EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    if (!context_is_inherited(context_of(context)))
        watch_interfaces(); /* again, if the first attempt failed */
    else if (destroyed_refuse(DESTROYED_CONTEXT, context_of(context), "ibv_get_async_event") == -EINVAL)
        return minus_one(-EINVAL);
    return minus_one(async_get(&context_of(context)->events, event));
}

VERBS_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    async_ack(event);
}

/* --- sharing of contexts (verbs.md §10.8) --------------------------------------------------------- */

VERBS_EXPORT struct ibv_context *ibv_import_device(int cmd_fd)
{
    struct ibv_device *device;
    struct context *context;
    uint8_t node_guid[8];
    struct share *share;
    int result = share_adopt(cmd_fd, node_guid, &share);

    if (result < 0)
        return null_with(result);
    device = front_device_by_guid(node_guid);
    result = device ? open_with(device, share, cmd_fd, &context) : -ENODEV;
    if (result < 0) {
        if (device)
            front_device_put(device);
        share_close(share); /* the caller still owns the descriptor */
        return null_with(result);
    }
    return &context->verbs.context;
}

VERBS_EXPORT struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle)
{
    struct pd *pd;
    int result = pd_import(context_of(context), handle, &pd);

    return result < 0 ? null_with(result) : &pd->ibv;
}

VERBS_EXPORT void ibv_unimport_pd(struct ibv_pd *pd)
{
    pd_unimport(pd_of(pd));
}

VERBS_EXPORT struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
    struct mr *mr;
    int result = mr_import(pd_of(pd), handle, &mr);

    return result < 0 ? null_with(result) : &mr->ibv;
}

VERBS_EXPORT void ibv_unimport_mr(struct ibv_mr *mr)
{
    mr_unimport(mr_of(mr));
}

VERBS_EXPORT struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle)
{
    struct dm *dm;
    int result = dm_import(context_of(context), handle, &dm);

    return result < 0 ? null_with(result) : &dm->ibv;
}

VERBS_EXPORT void ibv_unimport_dm(struct ibv_dm *dm)
{
    dm_unimport(dm_of(dm));
}
