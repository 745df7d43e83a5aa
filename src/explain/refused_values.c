/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Arguments of refused calls: names of their bits and values, and which attribute limits them. */
#include <string.h>

#include "base/refusal.h"
#include "explain/names.h"
#include "explain/refused.h"

/* The attribute that limits an argument, for one kind of object and one call only, where they are given. */
struct named_limit {
    const char *argument;
    uint32_t kind;
    const char *call, *name;
};
#define DEVICE(attribute) attribute " of ibv_query_device()"

static const char *const qp_mask_names[] = {
    "IBV_QP_STATE",
    "IBV_QP_CUR_STATE",
    "IBV_QP_EN_SQD_ASYNC_NOTIFY",
    "IBV_QP_ACCESS_FLAGS",
    "IBV_QP_PKEY_INDEX",
    "IBV_QP_PORT",
    "IBV_QP_QKEY",
    "IBV_QP_AV",
    "IBV_QP_PATH_MTU",
    "IBV_QP_TIMEOUT",
    "IBV_QP_RETRY_CNT",
    "IBV_QP_RNR_RETRY",
    "IBV_QP_RQ_PSN",
    "IBV_QP_MAX_QP_RD_ATOMIC",
    "IBV_QP_ALT_PATH",
    "IBV_QP_MIN_RNR_TIMER",
    "IBV_QP_SQ_PSN",
    "IBV_QP_MAX_DEST_RD_ATOMIC",
    "IBV_QP_PATH_MIG_STATE",
    "IBV_QP_CAP",
    "IBV_QP_DEST_QPN",
    NULL,
    NULL,
    NULL,
    NULL,
    "IBV_QP_RATE_LIMIT",
};
static const char *const access_bit_names[] = {
    "IBV_ACCESS_LOCAL_WRITE",      "IBV_ACCESS_REMOTE_WRITE", "IBV_ACCESS_REMOTE_READ",
    "IBV_ACCESS_REMOTE_ATOMIC",    "IBV_ACCESS_MW_BIND",      "IBV_ACCESS_ZERO_BASED",
    "IBV_ACCESS_ON_DEMAND",        "IBV_ACCESS_HUGETLB",      "IBV_ACCESS_FLUSH_GLOBAL",
    "IBV_ACCESS_FLUSH_PERSISTENT",
};
static const char *const send_flag_names[] = {
    "IBV_SEND_FENCE", "IBV_SEND_SIGNALED", "IBV_SEND_SOLICITED", "IBV_SEND_INLINE", "IBV_SEND_IP_CSUM",
};

static const char *const create_flag_names[] = {
    NULL,
    "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB",
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    "IBV_QP_CREATE_SCATTER_FCS",
    "IBV_QP_CREATE_CVLAN_STRIPPING",
    "IBV_QP_CREATE_SOURCE_QPN",
    "IBV_QP_CREATE_PCI_WRITE_END_PADDING",
};
static const char *const wc_flag_names[] = {
    "IBV_WC_EX_WITH_BYTE_LEN",       "IBV_WC_EX_WITH_IMM",
    "IBV_WC_EX_WITH_QP_NUM",         "IBV_WC_EX_WITH_SRC_QP",
    "IBV_WC_EX_WITH_SLID",           "IBV_WC_EX_WITH_SL",
    "IBV_WC_EX_WITH_DLID_PATH_BITS", "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP",
    "IBV_WC_EX_WITH_CVLAN",          "IBV_WC_EX_WITH_FLOW_TAG",
    "IBV_WC_EX_WITH_TM_INFO",        "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK",
};
static const char *const flow_flag_names[] = {
    NULL,
    "IBV_FLOW_ATTR_FLAGS_DONT_TRAP",
    "IBV_FLOW_ATTR_FLAGS_EGRESS",
};
static const char *const flush_type_names[] = {"IBV_FLUSH_GLOBAL", "IBV_FLUSH_PERSISTENT"};

/* "IBV_QP_AV and IBV_QP_PATH_MTU", and bits without a name as a number. */
void words_add_bits(struct words *words, enum refusal_bits names, uint64_t bits)
{
    static const struct {
        const char *const *names;
        unsigned count;
    } tables[] = {
        [BITS_PLAIN] = {NULL, 0},
        [BITS_QP_MASK] = {qp_mask_names, array_size(qp_mask_names)},
        [BITS_ACCESS] = {access_bit_names, array_size(access_bit_names)},
        [BITS_SEND_FLAGS] = {send_flag_names, array_size(send_flag_names)},
        [BITS_CREATE_FLAGS] = {create_flag_names, array_size(create_flag_names)},
        [BITS_WC_FLAGS] = {wc_flag_names, array_size(wc_flag_names)},
        [BITS_FLOW_FLAGS] = {flow_flag_names, array_size(flow_flag_names)},
        [BITS_FLUSH_TYPES] = {flush_type_names, array_size(flush_type_names)},
    };
    uint64_t rest = bits, named = 0;

    if ((unsigned)names >= array_size(tables))
        names = BITS_PLAIN;
    for (unsigned i = 0; i < tables[names].count; i++)
        named |= tables[names].names[i] ? 1ull << i : 0;
    for (unsigned i = 0; i < tables[names].count; i++) {
        if (!(rest & named & 1ull << i))
            continue;
        rest &= ~(1ull << i);
        words_add(words, "%s%s", tables[names].names[i], !rest ? "" : rest & (rest - 1) ? ", " : " and ");
    }
    if (rest)
        words_add(words, "0x%llx", (unsigned long long)rest);
    if (!bits)
        words_add(words, "none");
}

/* Names of the numbers that are set in a mask: "RTS, SQD or ERR". */
void words_add_choice(struct words *words, uint64_t mask, const char *(*name)(uint32_t value))
{
    for (uint32_t i = 0; i < 32 && mask; i++) {
        if (!(mask & 1ull << i))
            continue;
        mask &= ~(1ull << i);
        words_add(words, "%s%s", name(i), !mask ? "" : mask & (mask - 1) ? ", " : " or ");
    }
}

/* Where the name of an attribute depends on the object or the call: call is how the call's name begins. */
static const char *find_limit(const struct named_limit *limits, size_t count,
                              const struct refused_record *record, const char *argument)
{
    for (size_t i = 0; i < count; i++) {
        const struct named_limit *limit = &limits[i];

        if (strcmp(limit->argument, argument) == 0 && (!limit->kind || limit->kind == record->kind) &&
            (!limit->call || strncmp(record->call, limit->call, strlen(limit->call)) == 0))
            return limit->name;
    }
    return NULL;
}

/* Which attribute says how large the argument may be. NULL: the number is the specification's. */
static const char *limit_of(const struct refused_record *record, const char *argument)
{
    static const struct named_limit limits[] = {
        {"cap.max_send_wr", 0, NULL, DEVICE("max_qp_wr")},
        {"cap.max_recv_wr", 0, NULL, DEVICE("max_qp_wr")},
        {"cap.max_send_sge", 0, NULL, DEVICE("max_sge")},
        {"cap.max_recv_sge", 0, NULL, DEVICE("max_sge")},
        {"cap.max_inline_data", 0, NULL, "SoftHCA's limit, which ibv_query_device() does not report"},
        {"attr.max_wr", 0, NULL, DEVICE("max_srq_wr")},
        {"attr.max_sge", 0, NULL, DEVICE("max_srq_sge")},
        {"attr.srq_limit", 0, NULL, "attr.max_wr"},
        {"srq_limit", 0, NULL, "max_wr of the SRQ"},
        {"max_wr", OBJECT_SRQ, NULL, DEVICE("max_srq_wr")},
        {"max_wr", 0, NULL, DEVICE("max_qp_wr")},
        {"max_sge", 0, NULL, DEVICE("max_sge")},
        {"num_sge", OBJECT_SRQ, NULL, "max_sge of the SRQ"},
        {"num_sge", OBJECT_WQ, NULL, "max_sge of the WQ"},
        {"num_sge", 0, "ibv_post_recv", "max_recv_sge of the QP"},
        {"num_sge", 0, NULL, "max_send_sge of the QP"},
        {"length of the inline data", 0, NULL, "max_inline_data of the QP"},
        {"cqe", 0, NULL, DEVICE("max_cqe")},
        {"comp_vector", 0, NULL, "num_comp_vectors of struct ibv_context, less 1"},
        {"max_rd_atomic", 0, NULL, DEVICE("max_qp_init_rd_atom")},
        {"initiator_depth", 0, NULL, DEVICE("max_qp_init_rd_atom")},
        {"max_dest_rd_atomic", 0, NULL, DEVICE("max_qp_rd_atom")},
        {"responder_resources", 0, NULL, DEVICE("max_qp_rd_atom")},
        {"pkey_index", 0, NULL, "pkey_tbl_len of ibv_query_port(), less 1"},
        {"log_ind_tbl_size", 0, NULL,
         "the base-2 logarithm of max_rwq_indirection_table_size of ibv_query_device_ex()"},
        {"length", 0, "ibv_alloc_dm", "max_dm_size of ibv_query_device_ex()"},
        {"private_data_len", 0, NULL, "what that CM message has room for"},
        {"timeout", 0, NULL, "an attribute of 5 bits"},
        {"min_rnr_timer", 0, NULL, "an attribute of 5 bits"},
        {"retry_cnt", 0, NULL, "an attribute of 3 bits"},
        {"rnr_retry", 0, NULL, "an attribute of 3 bits"},
        {"sl", 0, NULL, "an attribute of 4 bits"},
    };

    return find_limit(limits, array_size(limits), record, argument);
}

void words_add_range(struct words *words, const struct refused_record *record, const char *argument)
{
    unsigned long long low = record->low, high = record->high;
    const char *limit = limit_of(record, argument);

    words_add(words, "%s is %lld, but ", argument, (long long)record->value);
    if (low == high)
        words_add(words, "has to be %llu", low);
    else if (high == UINT64_MAX)
        words_add(words, "has to be at least %llu", low);
    else if (low == 0 && record->value >= 0)
        words_add(words, "may be at most %llu", high);
    else
        words_add(words, "has to be %llu to %llu", low, high);
    if (limit && record->value > 0 && (uint64_t)record->value > record->high)
        words_add(words, " (%s)", limit);
}

/* Objects of which the process has as many as may be. */
void words_add_count(struct words *words, const struct refused_record *record, const char *what)
{
    static const struct named_limit limits[] = {
        {"CQs", 0, NULL, DEVICE("max_cq")}, {"MRs", 0, NULL, DEVICE("max_mr")},
        {"MWs", 0, NULL, DEVICE("max_mw")}, {"MRs and MWs together", 0, NULL, DEVICE("max_mr and max_mw")},
        {"PDs", 0, NULL, DEVICE("max_pd")}, {"AHs", 0, NULL, DEVICE("max_ah")},
    };
    const char *limit = find_limit(limits, array_size(limits), record, what);

    words_add(words, "this process has %lld %s, and may have no more", (long long)record->value, what);
    if (limit)
        words_add(words, " (%s)", limit);
}

/* What an argument may be of which no number is the limit. */
static const char *valid_values(const char *argument)
{
    static const struct {
        const char *argument, *values;
    } all[] = {
        {"qp_type",
         "IBV_QPT_RC (2), IBV_QPT_UC (3), IBV_QPT_UD (4), IBV_QPT_RAW_PACKET (8), IBV_QPT_XRC_SEND "
         "(9) and IBV_QPT_XRC_RECV (10)"},
        {"qp_state", "IBV_QPS_RESET (0) to IBV_QPS_ERR (6)"},
        {"srq_type", "IBV_SRQT_BASIC (0), IBV_SRQT_XRC (1) and IBV_SRQT_TM (2)"},
        {"sa_family", "AF_INET (2), AF_INET6 (10) and AF_IB (27)"},
        {"ps", "RDMA_PS_IPOIB (2), RDMA_PS_TCP (262), RDMA_PS_UDP (273) and RDMA_PS_IB (319)"},
        {"wq_type", "IBV_WQT_RQ (0)"},
        {"type of the MW", "IBV_MW_TYPE_1 (1) and IBV_MW_TYPE_2 (2)"},
        {"level", "IBV_FLUSH_RANGE (0) and IBV_FLUSH_MR (1)"},
        {"event", "IBV_EVENT_COMM_EST (4)"},
        {"size of a spec", "the size of the struct of its type"},
        {"type", "IBV_FLOW_ATTR_NORMAL (0), IBV_FLOW_ATTR_ALL_DEFAULT (1), IBV_FLOW_ATTR_MC_DEFAULT (2) and "
                 "IBV_FLOW_ATTR_SNIFFER (3)"},
    };

    for (size_t i = 0; i < array_size(all); i++) {
        if (strcmp(all[i].argument, argument) == 0)
            return all[i].values;
    }
    return NULL;
}

void words_add_invalid(struct words *words, const struct refused_record *record, const char *argument)
{
    const char *values = valid_values(argument);

    words_add(words, "%s is %lld, but %s", argument, (long long)record->value,
              values ? "may only be " : "no such value is defined");
    if (values)
        words_add(words, "%s", values);
}

void words_add_unsupported(struct words *words, const struct refused_record *record, const char *argument)
{
    words_add(words, "SoftHCA does not support %s", argument);
    if (record->value)
        words_add(words, " (0x%llx)", (unsigned long long)record->value);
}
