/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Helper functions that libibverbs exports for historical reasons: sysfs files, conversions between structures of the
 * kernel and the public ones, fork (verbs.md §10.10, §10.13). The distribution's librdmacm imports several of them. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>

#include "base/fd.h"
#include "base/types.h"
#include "base/verbs.h"
#include "front/verbs/export.h"

/* Not declared in any public header. */
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *directory, const char *file, char *buffer, size_t size);
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, const struct ib_uverbs_ah_attr *from);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, const struct ib_uverbs_qp_attr *from);
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, const struct ib_user_path_rec *from);
void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *to, const struct ibv_sa_path_rec *from);
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);

static char sysfs_path[IBV_SYSFS_PATH_MAX] = "/sys";

static void read_sysfs_path(void)
{
    const char *wanted = secure_getenv("SYSFS_PATH");
    size_t length = wanted ? strlen(wanted) : 0;

    if (length == 0 || length >= sizeof(sysfs_path))
        return;
    while (length > 0 && wanted[length - 1] == '/')
        length--;
    memcpy(sysfs_path, wanted, length);
    sysfs_path[length] = '\0';
}

VERBS_EXPORT const char *ibv_get_sysfs_path(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, read_sysfs_path);
    return sysfs_path;
}

/* Returns the length of the text without its newline, or -1 if the file is missing or the text and its terminating
 * zero do not fit. */
VERBS_EXPORT int ibv_read_sysfs_file(const char *directory, const char *file, char *buffer, size_t size)
{
    char path[PATH_MAX];
    size_t length = 0;
    ssize_t got;
    int fd;

    size_t directory_length = strlen(directory), file_length = strlen(file);
    if (directory_length + 1 + file_length >= sizeof(path) || size == 0 || size > INT_MAX) {
        errno = EINVAL;
        return -1;
    }
    memcpy(path, directory, directory_length);
    path[directory_length] = '/';
    memcpy(path + directory_length + 1, file, file_length + 1);

    fd = fd_lift(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0)
        return -1;
    do {
        got = read(fd, buffer + length, size - length);
        if (got > 0)
            length += (size_t)got;
    } while (got > 0 && length < size);
    close(fd);
    if (got < 0)
        return -1;
    if (length > 0 && buffer[length - 1] == '\n')
        length--;
    else if (length == size)
        return -1;
    buffer[length] = '\0';
    return (int)length;
}

VERBS_EXPORT void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, const struct ib_uverbs_ah_attr *from)
{
    memcpy(to->grh.dgid.raw, from->grh.dgid, sizeof(to->grh.dgid.raw));
    to->grh.flow_label = from->grh.flow_label;
    to->grh.sgid_index = from->grh.sgid_index;
    to->grh.hop_limit = from->grh.hop_limit;
    to->grh.traffic_class = from->grh.traffic_class;
    to->dlid = from->dlid;
    to->sl = from->sl;
    to->src_path_bits = from->src_path_bits;
    to->static_rate = from->static_rate;
    to->is_global = from->is_global;
    to->port_num = from->port_num;
}

/* qp_state keeps the value that the caller requested; the kernel's structure has no rate_limit. */
VERBS_EXPORT void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, const struct ib_uverbs_qp_attr *from)
{
    to->cur_qp_state = (enum ibv_qp_state)from->cur_qp_state;
    to->path_mtu = (enum ibv_mtu)from->path_mtu;
    to->path_mig_state = (enum ibv_mig_state)from->path_mig_state;
    to->qkey = from->qkey;
    to->rq_psn = from->rq_psn;
    to->sq_psn = from->sq_psn;
    to->dest_qp_num = from->dest_qp_num;
    to->qp_access_flags = from->qp_access_flags;
    to->cap.max_send_wr = from->max_send_wr;
    to->cap.max_recv_wr = from->max_recv_wr;
    to->cap.max_send_sge = from->max_send_sge;
    to->cap.max_recv_sge = from->max_recv_sge;
    to->cap.max_inline_data = from->max_inline_data;
    ibv_copy_ah_attr_from_kern(&to->ah_attr, &from->ah_attr);
    ibv_copy_ah_attr_from_kern(&to->alt_ah_attr, &from->alt_ah_attr);
    to->pkey_index = from->pkey_index;
    to->alt_pkey_index = from->alt_pkey_index;
    to->en_sqd_async_notify = from->en_sqd_async_notify;
    to->sq_draining = from->sq_draining;
    to->max_rd_atomic = from->max_rd_atomic;
    to->max_dest_rd_atomic = from->max_dest_rd_atomic;
    to->min_rnr_timer = from->min_rnr_timer;
    to->port_num = from->port_num;
    to->timeout = from->timeout;
    to->retry_cnt = from->retry_cnt;
    to->rnr_retry = from->rnr_retry;
    to->alt_port_num = from->alt_port_num;
    to->alt_timeout = from->alt_timeout;
}

VERBS_EXPORT void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, const struct ib_user_path_rec *from)
{
    memcpy(to->dgid.raw, from->dgid, sizeof(to->dgid.raw));
    memcpy(to->sgid.raw, from->sgid, sizeof(to->sgid.raw));
    to->dlid = from->dlid;
    to->slid = from->slid;
    to->raw_traffic = (int)from->raw_traffic;
    to->flow_label = from->flow_label;
    to->hop_limit = from->hop_limit;
    to->traffic_class = from->traffic_class;
    to->reversible = (int)from->reversible;
    to->numb_path = from->numb_path;
    to->pkey = from->pkey;
    to->sl = from->sl;
    to->mtu_selector = from->mtu_selector;
    to->mtu = (uint8_t)from->mtu;
    to->rate_selector = from->rate_selector;
    to->rate = from->rate;
    to->packet_life_time_selector = from->packet_life_time_selector;
    to->packet_life_time = from->packet_life_time;
    to->preference = from->preference;
}

VERBS_EXPORT void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *to, const struct ibv_sa_path_rec *from)
{
    memcpy(to->dgid, from->dgid.raw, sizeof(to->dgid));
    memcpy(to->sgid, from->sgid.raw, sizeof(to->sgid));
    to->dlid = from->dlid;
    to->slid = from->slid;
    to->raw_traffic = (uint32_t)from->raw_traffic;
    to->flow_label = from->flow_label;
    to->reversible = (uint32_t)from->reversible;
    to->mtu = from->mtu;
    to->pkey = from->pkey;
    to->hop_limit = from->hop_limit;
    to->traffic_class = from->traffic_class;
    to->numb_path = from->numb_path;
    to->sl = from->sl;
    to->mtu_selector = from->mtu_selector;
    to->rate_selector = from->rate_selector;
    to->rate = from->rate;
    to->packet_life_time_selector = from->packet_life_time_selector;
    to->packet_life_time = from->packet_life_time;
    to->preference = from->preference;
}

/* Registered memory is accessed through the process's own page tables, so copy-on-write cannot separate the adapter
 * from it: no preparation is needed. */
VERBS_EXPORT int ibv_fork_init(void)
{
    return 0;
}

VERBS_EXPORT enum ibv_fork_status ibv_is_fork_initialized(void)
{
    return IBV_FORK_UNNEEDED;
}

VERBS_EXPORT int ibv_dontfork_range(void *base, size_t size)
{
    return 0;
}

VERBS_EXPORT int ibv_dofork_range(void *base, size_t size)
{
    return 0;
}
