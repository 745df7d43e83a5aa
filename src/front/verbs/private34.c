/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The node IBVERBS_PRIVATE_34: what the distribution's provider libraries (libmlx5, libefa) need to load.
 * They register themselves before main() and are ignored; __verbs_log and ibv_query_gid_type (query.c) are
 * called and work; the rest commands a kernel driver that is not there, and says so (compat-surface §1.3,
 * §2). */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#include "base/fd.h"
#include "base/sys.h"
#include "front/verbs/export.h"

extern bool verbs_allow_disassociate_destroy;
void verbs_register_driver_34(const void *driver_ops);
void __verbs_log(struct verbs_context *context, uint32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Read by providers when a destroy fails because the device is gone; ours never goes that way. */
VERBS_EXPORT bool verbs_allow_disassociate_destroy;

VERBS_EXPORT void verbs_register_driver_34(const void *driver_ops)
{
}

/* Levels: 0 none, 1 error, 2 warning, 3 information, 4 debug. As in rdma-core, what providers say is heard
 * only where VERBS_LOG_LEVEL asks for it, in the file that VERBS_LOG_FILE names or on stderr. Programs ask
 * libmlx5 and libefa of each device whether it is theirs, and these call a no an error. */
static bool wants(uint32_t level)
{
    static _Atomic int wanted = -1; /* -1: the environment was not read yet */
    int limit = atomic_load_explicit(&wanted, memory_order_relaxed);

    if (limit < 0) {
        const char *text = secure_getenv("VERBS_LOG_LEVEL");

        limit = text ? (int)max_of(strtol(text, NULL, 0), 0l) : 0;
        atomic_store_explicit(&wanted, limit, memory_order_relaxed);
    }
    return level && level <= (uint32_t)limit;
}

/* The context may be NULL or a provider's idea of one, so it is not looked at. */
VERBS_EXPORT void __verbs_log(struct verbs_context *context, uint32_t level, const char *format, ...)
{
    const char *path = secure_getenv("VERBS_LOG_FILE");
    int saved = errno, length, file = -1;
    char text[512];
    va_list arguments;

    if (!wants(level))
        return;
    va_start(arguments, format);
    length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    length = min_of(length, (int)sizeof(text) - 1);
    if (path)
        file = fd_lift(open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
    if (length > 0)
        (void)sys_write(file < 0 ? STDERR_FILENO : file, text, (size_t)length);
    if (file >= 0)
        sys_close(file);
    errno = saved;
}

/* A caller passes more arguments than these take, which the calling conventions that we build for allow. */
#define COMMAND(name)                                                                                        \
    int name(void);                                                                                          \
    VERBS_EXPORT int name(void)                                                                              \
    {                                                                                                        \
        errno = EOPNOTSUPP;                                                                                  \
        return EOPNOTSUPP;                                                                                   \
    }

#define COMMAND_POINTER(name)                                                                                \
    void *name(void);                                                                                        \
    VERBS_EXPORT void *name(void)                                                                            \
    {                                                                                                        \
        errno = EOPNOTSUPP;                                                                                  \
        return NULL;                                                                                         \
    }

#define COMMAND_VOID(name)                                                                                   \
    void name(void);                                                                                         \
    VERBS_EXPORT void name(void)                                                                             \
    {                                                                                                        \
    }

/* clang-format off */
COMMAND_POINTER(_verbs_init_and_alloc_context)
COMMAND(execute_ioctl)
COMMAND(ibv_cmd_advise_mr)
COMMAND(ibv_cmd_alloc_dm)
COMMAND(ibv_cmd_alloc_mw)
COMMAND(ibv_cmd_alloc_pd)
COMMAND(ibv_cmd_attach_mcast)
COMMAND(ibv_cmd_close_xrcd)
COMMAND(ibv_cmd_create_ah)
COMMAND(ibv_cmd_create_counters)
COMMAND(ibv_cmd_create_cq)
COMMAND(ibv_cmd_create_cq_ex)
COMMAND(ibv_cmd_create_flow)
COMMAND(ibv_cmd_create_flow_action_esp)
COMMAND(ibv_cmd_create_qp)
COMMAND(ibv_cmd_create_qp_ex)
COMMAND(ibv_cmd_create_qp_ex2)
COMMAND(ibv_cmd_create_rwq_ind_table)
COMMAND(ibv_cmd_create_srq)
COMMAND(ibv_cmd_create_srq_ex)
COMMAND(ibv_cmd_create_wq)
COMMAND(ibv_cmd_dealloc_mw)
COMMAND(ibv_cmd_dealloc_pd)
COMMAND(ibv_cmd_dereg_mr)
COMMAND(ibv_cmd_destroy_ah)
COMMAND(ibv_cmd_destroy_counters)
COMMAND(ibv_cmd_destroy_cq)
COMMAND(ibv_cmd_destroy_flow)
COMMAND(ibv_cmd_destroy_flow_action)
COMMAND(ibv_cmd_destroy_qp)
COMMAND(ibv_cmd_destroy_rwq_ind_table)
COMMAND(ibv_cmd_destroy_srq)
COMMAND(ibv_cmd_destroy_wq)
COMMAND(ibv_cmd_detach_mcast)
COMMAND(ibv_cmd_free_dm)
COMMAND(ibv_cmd_get_context)
COMMAND(ibv_cmd_modify_cq)
COMMAND(ibv_cmd_modify_flow_action_esp)
COMMAND(ibv_cmd_modify_qp)
COMMAND(ibv_cmd_modify_qp_ex)
COMMAND(ibv_cmd_modify_srq)
COMMAND(ibv_cmd_modify_wq)
COMMAND(ibv_cmd_open_qp)
COMMAND(ibv_cmd_open_xrcd)
COMMAND(ibv_cmd_poll_cq)
COMMAND(ibv_cmd_post_recv)
COMMAND(ibv_cmd_post_send)
COMMAND(ibv_cmd_post_srq_recv)
COMMAND(ibv_cmd_query_context)
COMMAND(ibv_cmd_query_device_any)
COMMAND(ibv_cmd_query_mr)
COMMAND(ibv_cmd_query_port)
COMMAND(ibv_cmd_query_qp)
COMMAND(ibv_cmd_query_srq)
COMMAND(ibv_cmd_read_counters)
COMMAND(ibv_cmd_reg_dm_mr)
COMMAND(ibv_cmd_reg_dmabuf_mr)
COMMAND(ibv_cmd_reg_mr)
COMMAND(ibv_cmd_req_notify_cq)
COMMAND(ibv_cmd_rereg_mr)
COMMAND(ibv_cmd_resize_cq)
COMMAND_VOID(verbs_init_cq)
COMMAND_POINTER(verbs_open_device)
COMMAND_VOID(verbs_set_ops)
COMMAND_VOID(verbs_uninit_context)
/* clang-format on */

unsigned int __ioctl_final_num_attrs(unsigned int num_attrs, const void *link);
int ibv_read_ibdev_sysfs_file(char *buffer, size_t size, const void *sysfs_device, const char *format, ...);

VERBS_EXPORT unsigned int __ioctl_final_num_attrs(unsigned int num_attrs, const void *link)
{
    return num_attrs;
}

VERBS_EXPORT int ibv_read_ibdev_sysfs_file(char *buffer, size_t size, const void *sysfs_device,
                                           const char *format, ...)
{
    errno = ENOENT;
    return -1;
}
