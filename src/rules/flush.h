/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* FLUSH (IBA A19) as rdma-core's newer headers define it; Debian 12's do not. The values are ABI. */
#ifndef RULES_FLUSH_H
#define RULES_FLUSH_H

#include <stdint.h>

#include "base/verbs.h"

#define WR_FLUSH 14u /* enum ibv_wr_opcode */
#define WC_FLUSH 8u  /* enum ibv_wc_opcode */

#define QP_EX_WITH_FLUSH ((uint64_t)1 << 11) /* enum ibv_qp_create_send_ops_flags */

#define ACCESS_FLUSH_GLOBAL     ((uint32_t)1 << 8) /* enum ibv_access_flags */
#define ACCESS_FLUSH_PERSISTENT ((uint32_t)1 << 9)

/* FETH: placement types, selectivity level. */
#define FLUSH_GLOBAL      1u
#define FLUSH_PERSISTENT  2u
#define FLUSH_TYPES       (FLUSH_GLOBAL | FLUSH_PERSISTENT)
#define FLUSH_RANGE       0u
#define FLUSH_REGION      1u
#define FLUSH_LEVEL_SHIFT 4

/* device_cap_flags_ex */
#define DEVICE_FLUSH_GLOBAL ((uint64_t)1 << 38)
#define DEVICE_ATOMIC_WRITE ((uint64_t)1 << 40)

#define ODP_SUPPORT_FLUSH        (1u << 6) /* enum ibv_odp_transport_cap_bits */
#define ODP_SUPPORT_ATOMIC_WRITE (1u << 7)

/* The right to flush so is that bit of the access flags. */
static inline uint32_t flush_access(uint32_t types)
{
    return types * ACCESS_FLUSH_GLOBAL;
}
_Static_assert(FLUSH_PERSISTENT *ACCESS_FLUSH_GLOBAL == ACCESS_FLUSH_PERSISTENT, "order of the flags");

#endif
