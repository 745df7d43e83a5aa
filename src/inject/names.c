/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "inject/names.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/errno_name.h"
#include "base/types.h"
#include "base/verbs.h"
#include "rules/flush.h"

#define WORD_MAX 40u

const char *const inject_kind_names[INJECT_KINDS] = {
    [INJECT_CALL] = "call",   [INJECT_LIMIT] = "limit",   [INJECT_COMPLETION] = "completion",
    [INJECT_EVENT] = "event", [INJECT_PACKET] = "packet", [INJECT_CM] = "cm",
};

const char *const inject_call_names[INJECT_CALLS] = {
    [CALL_OPEN_DEVICE] = "ibv_open_device",
    [CALL_ALLOC_PD] = "ibv_alloc_pd",
    [CALL_ALLOC_MW] = "ibv_alloc_mw",
    [CALL_ALLOC_DM] = "ibv_alloc_dm",
    [CALL_REG_MR] = "ibv_reg_mr",
    [CALL_REREG_MR] = "ibv_rereg_mr",
    [CALL_CREATE_COMP_CHANNEL] = "ibv_create_comp_channel",
    [CALL_CREATE_CQ] = "ibv_create_cq",
    [CALL_RESIZE_CQ] = "ibv_resize_cq",
    [CALL_REQ_NOTIFY_CQ] = "ibv_req_notify_cq",
    [CALL_CREATE_SRQ] = "ibv_create_srq",
    [CALL_MODIFY_SRQ] = "ibv_modify_srq",
    [CALL_CREATE_QP] = "ibv_create_qp",
    [CALL_MODIFY_QP] = "ibv_modify_qp",
    [CALL_CREATE_AH] = "ibv_create_ah",
    [CALL_CREATE_WQ] = "ibv_create_wq",
    [CALL_MODIFY_WQ] = "ibv_modify_wq",
    [CALL_CREATE_FLOW] = "ibv_create_flow",
    [CALL_ATTACH_MCAST] = "ibv_attach_mcast",
    [CALL_BIND_MW] = "ibv_bind_mw",
    [CALL_POST_SEND] = "ibv_post_send",
    [CALL_POST_RECV] = "ibv_post_recv",
    [CALL_POST_SRQ_RECV] = "ibv_post_srq_recv",
};

const char *const inject_limit_names[INJECT_LIMITS] = {
    [INJECT_MAX_QP] = "max_qp",         [INJECT_MAX_QP_WR] = "max_qp_wr",
    [INJECT_MAX_SGE] = "max_sge",       [INJECT_MAX_INLINE] = "max_inline_data",
    [INJECT_MAX_CQ] = "max_cq",         [INJECT_MAX_CQE] = "max_cqe",
    [INJECT_MAX_MR] = "max_mr",         [INJECT_MAX_MR_SIZE] = "max_mr_size",
    [INJECT_MAX_PD] = "max_pd",         [INJECT_MAX_SRQ] = "max_srq",
    [INJECT_MAX_SRQ_WR] = "max_srq_wr",
};

const char *const inject_event_names[INJECT_EVENTS] = {
    [INJECT_DEVICE_FATAL] = "device_fatal",
    [INJECT_QP_FATAL] = "qp_fatal",
    [INJECT_CQ_ERR] = "cq_err",
    [INJECT_SRQ_LIMIT] = "srq_limit",
    [INJECT_PATH_MIG_ERR] = "path_mig_err",
    [INJECT_GID_CHANGE] = "gid_change",
    [INJECT_CLIENT_REREGISTER] = "client_reregister",
    [INJECT_PORT_DOWN] = "port_down",
    [INJECT_PORT_UP] = "port_up",
};

const char *const inject_cm_names[INJECT_CMS] = {
    [INJECT_ADDR_ERROR] = "ADDR_ERROR",     [INJECT_ROUTE_ERROR] = "ROUTE_ERROR",
    [INJECT_REJECTED] = "REJECTED",         [INJECT_UNREACHABLE] = "UNREACHABLE",
    [INJECT_DISCONNECTED] = "DISCONNECTED",
};

static const char *const reasons[INJECT_REASONS] = {
    [1] = "NO_QP",
    [2] = "NO_EEC",
    [3] = "NO_RESOURCES",
    [4] = "TIMEOUT",
    [5] = "UNSUPPORTED",
    [6] = "INVALID_COMM_ID",
    [7] = "INVALID_COMM_INSTANCE",
    [8] = "INVALID_SERVICE_ID",
    [9] = "INVALID_SERVICE_TYPE",
    [10] = "STALE_CONNECTION",
    [11] = "NO_RDC",
    [12] = "INVALID_GID",
    [13] = "INVALID_LID",
    [14] = "INVALID_SL",
    [15] = "INVALID_TRAFFIC_CLASS",
    [16] = "INVALID_HOP_LIMIT",
    [17] = "INVALID_PACKET_RATE",
    [24] = "PORT_CM_REDIRECT",
    [25] = "PORT_REDIRECT",
    [26] = "INVALID_PATH_MTU",
    [27] = "INSUFFICIENT_RESP_RESOURCES",
    [INJECT_CONSUMER] = "CONSUMER_DEFINED",
    [29] = "INVALID_RNR_RETRY",
    [30] = "DUPLICATE_COMM_ID",
    [31] = "INVALID_CLASS_VERSION",
    [32] = "INVALID_FLOW_LABEL",
    [35] = "VENDOR_OPTION",
};

const char *const inject_packet_names[INJECT_PACKETS] = {
    [INJECT_DROP] = "drop",   [INJECT_DUPLICATE] = "duplicate", [INJECT_CORRUPT] = "corrupt",
    [INJECT_DELAY] = "delay", [INJECT_REORDER] = "reorder",     [INJECT_RATE] = "rate",
    [INJECT_MARK] = "mark",
};

#define BIT(opcode) (1u << (opcode))

static const struct {
    const char *name;
    uint32_t bits;
} opcodes[] = {
    {"SEND", BIT(IBV_WR_SEND) | BIT(IBV_WR_SEND_WITH_IMM) | BIT(IBV_WR_SEND_WITH_INV)},
    {"SEND_WITH_IMM", BIT(IBV_WR_SEND_WITH_IMM)},
    {"SEND_WITH_INV", BIT(IBV_WR_SEND_WITH_INV)},
    {"RDMA_WRITE", BIT(IBV_WR_RDMA_WRITE) | BIT(IBV_WR_RDMA_WRITE_WITH_IMM)},
    {"RDMA_WRITE_WITH_IMM", BIT(IBV_WR_RDMA_WRITE_WITH_IMM)},
    {"RDMA_READ", BIT(IBV_WR_RDMA_READ)},
    {"ATOMIC", BIT(IBV_WR_ATOMIC_CMP_AND_SWP) | BIT(IBV_WR_ATOMIC_FETCH_AND_ADD)},
    {"ATOMIC_CMP_AND_SWP", BIT(IBV_WR_ATOMIC_CMP_AND_SWP)},
    {"ATOMIC_FETCH_AND_ADD", BIT(IBV_WR_ATOMIC_FETCH_AND_ADD)},
    {"LOCAL_INV", BIT(IBV_WR_LOCAL_INV)},
    {"BIND_MW", BIT(IBV_WR_BIND_MW)},
    {"ATOMIC_WRITE", BIT(IBV_WR_ATOMIC_WRITE)},
    {"FLUSH", BIT(WR_FLUSH)},
};

bool inject_is_word(const char *name, const char *word, size_t length)
{
    return strncasecmp(name, word, length) == 0 && !name[length];
}

int inject_find(const char *const *names, size_t count, const char *word, size_t length)
{
    for (size_t i = 0; i < count; i++) {
        if (inject_is_word(names[i], word, length))
            return (int)i;
    }
    return -1;
}

/* Levenshtein's distance, without case; of a long word its beginning. */
static unsigned distance(const char *name, const char *word, size_t length)
{
    unsigned row[WORD_MAX + 1];
    size_t name_length = min_of(strlen(name), (size_t)WORD_MAX);

    length = min_of(length, (size_t)WORD_MAX);
    for (unsigned i = 0; i <= length; i++)
        row[i] = i;
    for (size_t i = 0; i < name_length; i++) {
        unsigned diagonal = row[0];

        row[0] = (unsigned)i + 1;
        for (size_t j = 0; j < length; j++) {
            unsigned changed = diagonal + (strncasecmp(name + i, word + j, 1) != 0);
            unsigned added = min_of(row[j + 1], row[j]) + 1;

            diagonal = row[j + 1];
            row[j + 1] = min_of(changed, added);
        }
    }
    return row[length];
}

struct nearest {
    const char *name;
    unsigned distance;
};

static void consider(struct nearest *nearest, const char *name, const char *word, size_t length)
{
    unsigned now = distance(name, word, length);

    if (!nearest->name || now < nearest->distance)
        *nearest = (struct nearest){name, now};
}

const char *inject_nearest(const char *const *names, size_t count, const char *word, size_t length)
{
    struct nearest nearest = {NULL, 0};

    for (size_t i = 0; i < count; i++)
        consider(&nearest, names[i], word, length);
    return nearest.name;
}

/* A number of up to `most`; -1: none. */
static int read_digits(const char *word, size_t length, int most)
{
    uint64_t number = 0;

    return length && inject_digits(word, length, (uint64_t)most, &number) == length ? (int)number : -1;
}

uint16_t inject_reason(const char *word, size_t length, const char **ret_nearest)
{
    struct nearest nearest = {NULL, 0};

    for (int i = 0; i < INJECT_REASONS; i++) {
        if (!reasons[i])
            continue;
        if (inject_is_word(reasons[i], word, length))
            return (uint16_t)i;
        consider(&nearest, reasons[i], word, length);
    }
    *ret_nearest = nearest.name;
    return (uint16_t)max_of(read_digits(word, length, UINT16_MAX), 0);
}

const char *inject_reason_name(uint64_t reason)
{
    return reason < INJECT_REASONS ? reasons[reason] : NULL;
}

int inject_errno(const char *word, size_t length, const char **ret_nearest)
{
    struct nearest nearest = {NULL, 0};

    if (inject_is_word("ENOTSUP", word, length)) /* a second name of EOPNOTSUPP */
        return ENOTSUP;
    for (int error = 1; error < ERRNO_NAMES_END; error++) {
        const char *name = errno_name(error);

        if (!name)
            continue;
        if (inject_is_word(name, word, length))
            return error;
        consider(&nearest, name, word, length);
    }
    *ret_nearest = nearest.name;
    return max_of(read_digits(word, length, 4095), 0);
}

const char *inject_errno_name(int error)
{
    const char *name = errno_name(error);

    return name ? name : strerror(error);
}

uint32_t inject_opcodes(const char *word, size_t length, const char **ret_nearest)
{
    struct nearest nearest = {NULL, 0};

    for (size_t i = 0; i < array_size(opcodes); i++) {
        if (inject_is_word(opcodes[i].name, word, length))
            return opcodes[i].bits;
        consider(&nearest, opcodes[i].name, word, length);
    }
    *ret_nearest = nearest.name;
    return 0;
}
