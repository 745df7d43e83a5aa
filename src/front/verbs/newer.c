/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Verbs newer than rdma-core 44, but for completion counters (comp_cntr.c). Dma-bufs of device memory are not
 * supported. */
#include "front/verbs/newer.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sys.h"
#include "front/verbs/front.h"
#include "object/device/device.h"
#include "object/memory/dmah.h"
#include "object/pd/pd.h"

/* --- regions -------------------------------------------------------------------------------------------- */

struct mr_init_attr { /* struct ibv_mr_init_attr */
    size_t length;
    int access;
    uint64_t comp_mask;
    uint64_t iova;
    void *address;
    int fd;
    uint64_t fd_offset;
    struct dmah *dmah;
    struct ibv_buf *buffer;
};

enum {
    MR_IOVA = 1 << 0,
    MR_ADDRESS = 1 << 1,
    MR_FD = 1 << 2,
    MR_FD_OFFSET = 1 << 3,
    MR_DMAH = 1 << 4,
    MR_BUFFER = 1 << 5,
    MR_KNOWN = MR_IOVA | MR_ADDRESS | MR_FD | MR_FD_OFFSET | MR_DMAH | MR_BUFFER
};

struct ibv_buf {
    struct ibv_pd *pd;
    char *address;
    size_t size, mapped;
};

static bool is_within(const struct ibv_buf *buffer, const char *address, size_t length)
{
    uintptr_t offset = (uintptr_t)address - (uintptr_t)buffer->address;

    return offset <= buffer->size && length <= buffer->size - offset;
}

VERBS_EXPORT struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attributes)
{
    const struct mr_init_attr *wanted = (const struct mr_init_attr *)attributes;
    const bool of_memory = wanted->comp_mask & MR_ADDRESS, of_file = wanted->comp_mask & MR_FD;
    struct dmah *dmah = wanted->comp_mask & MR_DMAH ? wanted->dmah : NULL;
    uint64_t iova = of_file ? 0 : (uintptr_t)wanted->address, offset = 0;
    struct ibv_mr *mr;

    if (wanted->comp_mask & ~(uint64_t)MR_KNOWN)
        return null_with(EOPNOTSUPP);
    if (of_memory == of_file || (!of_file && (wanted->comp_mask & MR_FD_OFFSET)))
        return null_with(EINVAL);
    if ((wanted->comp_mask & MR_BUFFER) && (of_file || !wanted->buffer || wanted->buffer->pd != pd ||
                                            !is_within(wanted->buffer, wanted->address, wanted->length)))
        return null_with(EINVAL);
    /* Pages of on-demand memory move, and steering tags do not (kernel). */
    if ((wanted->comp_mask & MR_DMAH) &&
        (!dmah || dmah->ibv.context != pd->context || ((unsigned)wanted->access & IBV_ACCESS_ON_DEMAND)))
        return null_with(EINVAL);
    if (wanted->comp_mask & MR_FD_OFFSET)
        iova = offset = wanted->fd_offset;
    if (wanted->comp_mask & MR_IOVA)
        iova = wanted->iova;
    mr = of_file ? ibv_reg_dmabuf_mr(pd, offset, wanted->length, iova, wanted->fd, wanted->access)
                 : ibv_reg_mr_iova2(pd, wanted->address, wanted->length, iova, (unsigned)wanted->access);
    if (mr && dmah) {
        mr_of(mr)->dmah = dmah;
        dmah_use(dmah);
    }
    return mr;
}

VERBS_EXPORT void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **ret_buffer)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct ibv_buf *buffer;
    int error;

    if (size == 0 || size > SIZE_MAX - page)
        return null_with(EINVAL);
    buffer = malloc(sizeof(*buffer));
    if (!buffer)
        return null_with(ENOMEM);
    buffer->pd = pd;
    buffer->size = size;
    buffer->mapped = (size + page - 1) & ~(page - 1);
    buffer->address =
        sys_mmap(NULL, buffer->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &error);
    if (!buffer->address) {
        free(buffer);
        return null_with(error);
    }
    *ret_buffer = buffer;
    return buffer->address;
}

VERBS_EXPORT void ibv_free_buf(struct ibv_buf *buffer)
{
    sys_munmap(buffer->address, buffer->mapped);
    free(buffer);
}

VERBS_EXPORT struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buffer, void *address,
                                           size_t length, int access)
{
    struct mr_init_attr wanted = {
        .comp_mask = MR_ADDRESS | MR_BUFFER,
        .address = address,
        .length = length,
        .access = access,
        .buffer = buffer,
    };

    return ibv_reg_mr_ex(pd, (struct ibv_mr_init_attr *)&wanted);
}

VERBS_EXPORT int ibv_export_buf_dmabuf_fd(struct ibv_buf *buffer)
{
    return minus_one(-ENODATA); /* not a dma-buf, but ordinary memory */
}

VERBS_EXPORT int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm)
{
    return minus_one(-EOPNOTSUPP);
}

/* --- DMA handles ---------------------------------------------------------------------------------------- */

VERBS_EXPORT struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context,
                                             struct ibv_dmah_init_attr *attributes)
{
    struct dmah *dmah;
    int result = dmah_allocate(context_of(context), (const struct dmah_attributes *)attributes, &dmah);

    return result < 0 ? null_with(result) : (struct ibv_dmah *)&dmah->ibv;
}

VERBS_EXPORT int ibv_dealloc_dmah(struct ibv_dmah *dmah)
{
    return positive(dmah_deallocate((struct dmah *)dmah));
}

/* --- the port ------------------------------------------------------------------------------------------- */

/* In units of 100 Mb/s, from the codes of ibv_port_attr. */
static uint64_t lane_speed(unsigned code)
{
    static const uint16_t speeds[] = {25, 50, 100, 100, 140, 250, 500, 1000};

    for (unsigned i = 0; i < array_size(speeds); i++) {
        if (code == 1u << i)
            return speeds[i];
    }
    return 0;
}

static unsigned lane_count(unsigned code)
{
    return code == 2 ? 4 : code == 4 ? 8 : code == 8 ? 12 : code == 16 ? 2 : 1;
}

VERBS_EXPORT int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *ret_speed)
{
    struct ibv_port_attr attributes;
    int result = device_query_port(&host_devices, context_of(context)->device, port, &attributes);

    if (result == 0)
        *ret_speed = lane_speed(attributes.active_speed) * lane_count(attributes.active_width);
    return positive(result);
}
