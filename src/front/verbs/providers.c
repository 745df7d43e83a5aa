/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Version nodes IBVERBS_PRIVATE_*: symbols that the provider libraries (libmlx5, libefa) of any distribution need to
 * load. Providers register themselves before main(), and the registration is ignored. __verbs_log, ibv_query_gid_type
 * (query.c) and ibv_wr_opcode_str (strings.c) work. All other functions command a kernel driver and return an error
 * (compatibility.md §1, §2). */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/sys.h"
#include "base/verbs.h"
#include "front/verbs/export.h"
#include "front/verbs/nodes.h"

extern bool provided_verbs_allow_disassociate_destroy;
void provided___verbs_log(struct verbs_context *context, uint32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Providers read it when a destroy fails because the device was removed, which does not happen here. */
VERBS_EXPORT bool provided_verbs_allow_disassociate_destroy;
SINCE_22(verbs_allow_disassociate_destroy)

#define REGISTER_DRIVER(node)                                                                                \
    void verbs_register_driver_##node(const void *driver_ops);                                               \
    VERBS_EXPORT void verbs_register_driver_##node(const void *driver_ops)                                   \
    {                                                                                                        \
    }

REGISTER_DRIVER(22)
REGISTER_DRIVER(25)
REGISTER_DRIVER(33)
REGISTER_DRIVER(34)
REGISTER_DRIVER(57)
REGISTER_DRIVER(59)
REGISTER_DRIVER(64)
REGISTER_DRIVER(65)

/* Levels: 0 none, 1 error, 2 warning, 3 information, 4 debug. As in rdma-core, messages of providers appear only if
 * VERBS_LOG_LEVEL asks for them, in the file VERBS_LOG_FILE or on stderr. Programs ask libmlx5 and libefa about every
 * device, and these report a device of another provider as an error. */
static bool wants(uint32_t level)
{
    static _Atomic int wanted = -1; /* -1: the environment has not been read yet */
    int limit = atomic_load_explicit(&wanted, memory_order_relaxed);

    if (limit < 0) {
        const char *text = secure_getenv("VERBS_LOG_LEVEL");

        limit = text ? (int)max_of(strtol(text, NULL, 0), 0l) : 0;
        atomic_store_explicit(&wanted, limit, memory_order_relaxed);
    }
    return level && level <= (uint32_t)limit;
}

/* The context is not used: it may be NULL or a structure of the provider. */
VERBS_EXPORT void provided___verbs_log(struct verbs_context *context, uint32_t level, const char *format, ...)
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
SINCE_34(__verbs_log)

/* Callers pass more arguments than these functions take, which the supported calling conventions allow. */
#define COMMAND(since, name)                                                                                 \
    int provided_##name(void);                                                                               \
    VERBS_EXPORT int provided_##name(void)                                                                   \
    {                                                                                                        \
        errno = EOPNOTSUPP;                                                                                  \
        return EOPNOTSUPP;                                                                                   \
    }                                                                                                        \
    since(name)

#define COMMAND_DESCRIPTOR(since, name)                                                                      \
    int provided_##name(void);                                                                               \
    VERBS_EXPORT int provided_##name(void)                                                                   \
    {                                                                                                        \
        errno = EOPNOTSUPP;                                                                                  \
        return -1;                                                                                           \
    }                                                                                                        \
    since(name)

#define COMMAND_POINTER(since, name)                                                                         \
    void *provided_##name(void);                                                                             \
    VERBS_EXPORT void *provided_##name(void)                                                                 \
    {                                                                                                        \
        errno = EOPNOTSUPP;                                                                                  \
        return NULL;                                                                                         \
    }                                                                                                        \
    since(name)

#define COMMAND_VOID(since, name)                                                                            \
    void provided_##name(void);                                                                              \
    VERBS_EXPORT void provided_##name(void)                                                                  \
    {                                                                                                        \
    }                                                                                                        \
    since(name)

/* clang-format off */
COMMAND_POINTER(SINCE_22, _verbs_init_and_alloc_context)
COMMAND(SINCE_22, execute_ioctl)
COMMAND(SINCE_22, ibv_cmd_advise_mr)
COMMAND(SINCE_22, ibv_cmd_alloc_dm)
COMMAND(SINCE_59, ibv_cmd_alloc_dmah)
COMMAND(SINCE_22, ibv_cmd_alloc_mw)
COMMAND(SINCE_22, ibv_cmd_alloc_pd)
COMMAND(SINCE_22, ibv_cmd_attach_mcast)
COMMAND(SINCE_22, ibv_cmd_close_xrcd)
COMMAND(SINCE_22, ibv_cmd_create_ah)
COMMAND(SINCE_65, ibv_cmd_create_comp_cntr)
COMMAND(SINCE_22, ibv_cmd_create_counters)
COMMAND(SINCE_22, ibv_cmd_create_cq)
COMMAND(SINCE_22, ibv_cmd_create_cq_ex)
COMMAND(SINCE_34, ibv_cmd_create_cq_ex2)
COMMAND(SINCE_22, ibv_cmd_create_flow)
COMMAND(SINCE_22, ibv_cmd_create_flow_action_esp)
COMMAND(SINCE_22, ibv_cmd_create_qp)
COMMAND(SINCE_22, ibv_cmd_create_qp_ex)
COMMAND(SINCE_22, ibv_cmd_create_qp_ex2)
COMMAND(SINCE_22, ibv_cmd_create_rwq_ind_table)
COMMAND(SINCE_22, ibv_cmd_create_srq)
COMMAND(SINCE_22, ibv_cmd_create_srq_ex)
COMMAND(SINCE_22, ibv_cmd_create_wq)
COMMAND(SINCE_22, ibv_cmd_dealloc_mw)
COMMAND(SINCE_22, ibv_cmd_dealloc_pd)
COMMAND(SINCE_22, ibv_cmd_dereg_mr)
COMMAND(SINCE_22, ibv_cmd_destroy_ah)
COMMAND(SINCE_65, ibv_cmd_destroy_comp_cntr)
COMMAND(SINCE_22, ibv_cmd_destroy_counters)
COMMAND(SINCE_22, ibv_cmd_destroy_cq)
COMMAND(SINCE_22, ibv_cmd_destroy_flow)
COMMAND(SINCE_22, ibv_cmd_destroy_flow_action)
COMMAND(SINCE_22, ibv_cmd_destroy_qp)
COMMAND(SINCE_22, ibv_cmd_destroy_rwq_ind_table)
COMMAND(SINCE_22, ibv_cmd_destroy_srq)
COMMAND(SINCE_22, ibv_cmd_destroy_wq)
COMMAND(SINCE_22, ibv_cmd_detach_mcast)
COMMAND_DESCRIPTOR(SINCE_59, ibv_cmd_export_dmabuf_fd)
COMMAND(SINCE_22, ibv_cmd_free_dm)
COMMAND(SINCE_59, ibv_cmd_free_dmah)
COMMAND(SINCE_22, ibv_cmd_get_context)
COMMAND(SINCE_65, ibv_cmd_inc_comp_cntr)
COMMAND(SINCE_65, ibv_cmd_inc_err_comp_cntr)
COMMAND(SINCE_22, ibv_cmd_modify_cq)
COMMAND(SINCE_22, ibv_cmd_modify_flow_action_esp)
COMMAND(SINCE_22, ibv_cmd_modify_qp)
COMMAND(SINCE_22, ibv_cmd_modify_qp_ex)
COMMAND(SINCE_22, ibv_cmd_modify_srq)
COMMAND(SINCE_22, ibv_cmd_modify_wq)
COMMAND(SINCE_22, ibv_cmd_open_qp)
COMMAND(SINCE_22, ibv_cmd_open_xrcd)
COMMAND(SINCE_22, ibv_cmd_poll_cq)
COMMAND(SINCE_22, ibv_cmd_post_recv)
COMMAND(SINCE_22, ibv_cmd_post_send)
COMMAND(SINCE_22, ibv_cmd_post_srq_recv)
COMMAND(SINCE_65, ibv_cmd_qp_attach_comp_cntr)
COMMAND(SINCE_65, ibv_cmd_query_comp_cntr_caps)
COMMAND(SINCE_25, ibv_cmd_query_context)
COMMAND(ONLY_22_TO_25, ibv_cmd_query_device)
COMMAND(SINCE_33, ibv_cmd_query_device_any)
COMMAND(ONLY_22_TO_25, ibv_cmd_query_device_ex)
COMMAND(SINCE_25, ibv_cmd_query_mr)
COMMAND(SINCE_22, ibv_cmd_query_port)
COMMAND(SINCE_59, ibv_cmd_query_port_speed)
COMMAND(SINCE_22, ibv_cmd_query_qp)
COMMAND(SINCE_22, ibv_cmd_query_srq)
COMMAND(SINCE_65, ibv_cmd_read_comp_cntr)
COMMAND(SINCE_22, ibv_cmd_read_counters)
COMMAND(SINCE_65, ibv_cmd_read_err_comp_cntr)
COMMAND(SINCE_22, ibv_cmd_reg_dm_mr)
COMMAND(SINCE_34, ibv_cmd_reg_dmabuf_mr)
COMMAND(SINCE_22, ibv_cmd_reg_mr)
COMMAND(SINCE_59, ibv_cmd_reg_mr_ex)
COMMAND(SINCE_22, ibv_cmd_req_notify_cq)
COMMAND(SINCE_22, ibv_cmd_rereg_mr)
COMMAND(SINCE_22, ibv_cmd_resize_cq)
COMMAND(SINCE_65, ibv_cmd_set_comp_cntr)
COMMAND(SINCE_65, ibv_cmd_set_err_comp_cntr)
COMMAND_POINTER(SINCE_64, ibv_dmabuf_heap_alloc)
COMMAND_POINTER(SINCE_64, ibv_dmabuf_heap_cc_shared_init)
COMMAND_VOID(SINCE_64, ibv_dmabuf_heap_destroy)
COMMAND_VOID(SINCE_64, ibv_dmabuf_heap_free)
COMMAND(ONLY_25, ibv_get_fw_ver)
COMMAND_VOID(SINCE_22, verbs_init_cq)
COMMAND_POINTER(SINCE_22, verbs_open_device)
COMMAND_VOID(SINCE_22, verbs_set_ops)
COMMAND_VOID(SINCE_22, verbs_uninit_context)
/* clang-format on */

unsigned int provided___ioctl_final_num_attrs(unsigned int num_attrs, const void *link);
int provided_ibv_read_ibdev_sysfs_file(char *buffer, size_t size, const void *sysfs_device,
                                       const char *format, ...);

VERBS_EXPORT unsigned int provided___ioctl_final_num_attrs(unsigned int num_attrs, const void *link)
{
    return num_attrs;
}
SINCE_22(__ioctl_final_num_attrs)

VERBS_EXPORT int provided_ibv_read_ibdev_sysfs_file(char *buffer, size_t size, const void *sysfs_device,
                                                    const char *format, ...)
{
    errno = ENOENT;
    return -1;
}
SINCE_25(ibv_read_ibdev_sysfs_file)
