/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Limits of the device, defined here only: ibv_query_device() reports them, and object creation enforces them. */
#ifndef RULES_LIMITS_H
#define RULES_LIMITS_H

#define LIMIT_QP                   (1u << 18)
#define LIMIT_QP_WR                16384u
#define LIMIT_SGE                  32u
#define LIMIT_INLINE               1024u
#define LIMIT_CQ                   65536u
#define LIMIT_CQE                  4194303u
#define LIMIT_SRQ                  65536u
#define LIMIT_SRQ_WR               32767u
#define LIMIT_SRQ_SGE              32u
#define LIMIT_TAGS                 4096u /* of one tag matching SRQ */
#define LIMIT_TAG_OPS              4096u
#define LIMIT_TAG_SGE              4u
#define LIMIT_RENDEZVOUS_HEADER    64u /* TMH, RVH and the program's data behind them */
#define LIMIT_WQ                   65536u
#define LIMIT_IND_TABLES           65536u
#define LIMIT_IND_TABLE_SIZE       2048u
#define LIMIT_PD                   65536u
#define LIMIT_MR                   (1u << 18)
#define LIMIT_MW                   (1u << 18)
#define LIMIT_KEY_SLOTS            (1u << 19) /* MRs and MWs share one key table */
#define LIMIT_DM_SIZE              (1u << 20) /* device memory of one opened device */
#define LIMIT_DM_LOG_ALIGNMENT     12u
#define LIMIT_AH                   1048576u
#define LIMIT_RD_ATOMIC            128u /* initiator depth and responder resources of one QP */
#define LIMIT_MULTICAST_GROUPS     8192u
#define LIMIT_MULTICAST_ATTACH     56u /* QPs of one group */
#define LIMIT_MESSAGE              (1u << 31)
#define LIMIT_UD_PAYLOAD           4096u
#define LIMIT_PORTS                1u
#define LIMIT_PKEYS                1u
#define LIMIT_GIDS                 16u
#define LIMIT_COMP_VECTORS         2u
#define LIMIT_CQ_MODERATION_COUNT  65535u
#define LIMIT_CQ_MODERATION_PERIOD 65535u /* microseconds */

#endif
