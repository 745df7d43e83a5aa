/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* infiniband/verbs.h of any rdma-core since 33, and what the older ones lack of it. The values and layouts are ABI;
 * abi/layout_asserts.c compares them with the header where it has them. HAVE_* come from meson.build. */
#ifndef BASE_VERBS_H
#define BASE_VERBS_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

/* Since 34 and 35. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                 int access);
struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t dm_handle);
void ibv_unimport_dm(struct ibv_dm *dm);
#ifndef HAVE_IBV_FORK_UNNEEDED
enum ibv_fork_status { IBV_FORK_DISABLED, IBV_FORK_ENABLED, IBV_FORK_UNNEEDED };
#endif
enum ibv_fork_status ibv_is_fork_initialized(void);

/* Since 36. */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t flags);

/* Since 39. */
#ifndef HAVE_IBV_RATE_1200_GBPS
#define IBV_RATE_800_GBPS  ((enum ibv_rate)23)
#define IBV_RATE_1200_GBPS ((enum ibv_rate)24)
#endif

/* Since 44. */
#ifndef HAVE_IBV_WR_ATOMIC_WRITE
#define IBV_WR_ATOMIC_WRITE         15u /* enum ibv_wr_opcode */
#define IBV_WC_ATOMIC_WRITE         9u  /* enum ibv_wc_opcode */
#define IBV_QP_EX_WITH_ATOMIC_WRITE ((uint64_t)1 << 12)
#endif

/* Structures that have grown: all of their newest members. */

#define PHYS_PORT_CNT_EX 396 /* since 35, in what was padding */

union newest_device_attr { /* struct ibv_device_attr_ex */
    struct ibv_device_attr_ex ibv;
    struct {
        char before[PHYS_PORT_CNT_EX];
        uint32_t phys_port_cnt_ex;
    };
};

static inline uint32_t newest_phys_port_cnt_ex(const struct ibv_device_attr_ex *attributes)
{
    return ((const union newest_device_attr *)attributes)->phys_port_cnt_ex;
}

#define DM_HANDLE 28 /* likewise */

union newest_dm { /* struct ibv_dm */
    struct ibv_dm ibv;
    struct {
        char before[DM_HANDLE];
        uint32_t handle;
    };
};

static inline uint32_t newest_dm_handle(const struct ibv_dm *dm)
{
    return ((const union newest_dm *)dm)->handle;
}

union newest_qp { /* struct ibv_qp_ex */
    struct ibv_qp ibv;
    struct ibv_qp_ex ex;
    struct {
        char before[offsetof(struct ibv_qp_ex, wr_abort) + sizeof(void *)];
        void (*wr_atomic_write)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address,
                                const void *value); /* since 44 */
        void (*wr_flush)(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address, size_t length, uint8_t types,
                         uint8_t level); /* since 45 */
    };
};

#ifndef HAVE_IBV_WR_ATOMIC_WRITE
static inline void ibv_wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address,
                                       const void *value)
{
    ((union newest_qp *)qp)->wr_atomic_write(qp, rkey, address, value);
}
#endif
#ifndef HAVE_IBV_WR_FLUSH
static inline void ibv_wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t address, size_t length,
                                uint8_t types, uint8_t level)
{
    ((union newest_qp *)qp)->wr_flush(qp, rkey, address, length, types, level);
}
#endif

#endif
