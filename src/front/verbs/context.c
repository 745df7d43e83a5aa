/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Opening and closing devices, asynchronous events (verbs-contract §1.4, §9.1). */
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/engine.h"
#include "front/verbs/front.h"
#include "object/ports.h"
#include "object/qp.h"

VERBS_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct context *context;
    int result, command_fd;

    if (!device)
        return null_with(EINVAL);
    /* There is no kernel driver to command. Programs duplicate this descriptor and watch it, no more. */
    command_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (command_fd < 0)
        return NULL;
    result = engine_start();
    if (result == 0)
        result = context_open(front_device(device), &context);
    if (result < 0) {
        close(command_fd);
        return null_with(result);
    }
    front_device_get(device);
    context->verbs.context.cmd_fd = command_fd;
    context->verbs.context.device = device;
    context->verbs.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    context->verbs.sz = sizeof(context->verbs);
    front_fill_ops(&context->verbs);
    return &context->verbs.context;
}

/* Runs after the handlers of the program, which may have used verbs. A program that ends otherwise is as one
 * that was killed. */
__attribute__((destructor)) static void end_of_program(void)
{
    engine_before_exit();
}

/* --- closing
 * --------------------------------------------------------------------------------------------------- */

static void silence_qp(struct qp *qp, void *context)
{
    lock_acquire(&qp->lock);
    if (qp->context == context && atomic_load_explicit(&qp->record->qpn, memory_order_relaxed) != 0)
        qp_enter_error(qp);
    lock_release(&qp->lock);
}

/* Objects that the program left behind die with the descriptor in the kernel's world. Here their memory may
 * still be in use by a helper: they stay, unusable, and the context and its device with them. */
VERBS_EXPORT int ibv_close_device(struct ibv_context *ibv)
{
    struct context *context = context_of(ibv);
    struct ibv_device *device = ibv->device;
    int command_fd = ibv->cmd_fd;

    if (!context_is_inherited(context) &&
        atomic_load_explicit(&context->objects, memory_order_relaxed) != 0) {
        if (explained())
            object_ports->explain(EXPLAIN_LEAKS, OBJECT_CONTEXT, context->number);
        else
            log_warn("%s was closed with objects alive", device->name);
        qp_for_each(silence_qp, context);
        context_close(context);
        return 0;
    }
    context_close(context);
    close(command_fd);
    front_device_put(device);
    return 0;
}

/* --- asynchronous events
 * ----------------------------------------------------------------------------------------- */

VERBS_EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    /* Without the helper thread, events of objects arrive all the same. */
    if (!context_is_inherited(context_of(context)) && engine_expect_events() < 0)
        log_warn("events of the port will not be seen");
    return minus_one(async_get(&context_of(context)->events, event));
}

VERBS_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    async_ack(event);
}

/* --- sharing of contexts between processes: there is no kernel object to share
 * ------------------------------------- */

VERBS_EXPORT struct ibv_context *ibv_import_device(int cmd_fd)
{
    return null_with(EOPNOTSUPP);
}

VERBS_EXPORT struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle)
{
    return null_with(EOPNOTSUPP);
}

VERBS_EXPORT void ibv_unimport_pd(struct ibv_pd *pd)
{
}

VERBS_EXPORT struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
    return null_with(EOPNOTSUPP);
}

VERBS_EXPORT void ibv_unimport_mr(struct ibv_mr *mr)
{
}

VERBS_EXPORT struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t handle)
{
    return null_with(EOPNOTSUPP);
}

VERBS_EXPORT void ibv_unimport_dm(struct ibv_dm *dm)
{
}
