/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "rules/transitions.h"

#include <errno.h>
#include <string.h>

#include "base/refusal.h"
#include "rules/flush.h"
#include "rules/limits.h"

#define STATE      IBV_QP_STATE
#define CUR_STATE  IBV_QP_CUR_STATE
#define SQD_NOTIFY IBV_QP_EN_SQD_ASYNC_NOTIFY
#define ACCESS     IBV_QP_ACCESS_FLAGS
#define PKEY       IBV_QP_PKEY_INDEX
#define PORT       IBV_QP_PORT
#define QKEY       IBV_QP_QKEY
#define AV         IBV_QP_AV
#define MTU        IBV_QP_PATH_MTU
#define TIMEOUT    IBV_QP_TIMEOUT
#define RETRIES    (IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY)
#define RQ_PSN     IBV_QP_RQ_PSN
#define SQ_PSN     IBV_QP_SQ_PSN
#define INITIATOR  IBV_QP_MAX_QP_RD_ATOMIC
#define RESPONDER  IBV_QP_MAX_DEST_RD_ATOMIC
#define RNR_TIMER  IBV_QP_MIN_RNR_TIMER
#define DEST       IBV_QP_DEST_QPN
#define MIGRATION  IBV_QP_PATH_MIG_STATE
#define ALT_PATH   IBV_QP_ALT_PATH

#define STATES          (IBV_QPS_ERR + 1)
#define QKEY_CONTROLLED 0x80000000u

#define BIT(value) (1ull << (value))
#define KNOWN_TYPES                                                                                          \
    (BIT(IBV_QPT_RC) | BIT(IBV_QPT_UC) | BIT(IBV_QPT_UD) | BIT(IBV_QPT_RAW_PACKET) | BIT(IBV_QPT_XRC_SEND) | \
     BIT(IBV_QPT_XRC_RECV))

enum service { RC, UC, UD, RAW, SERVICES };

struct transition {
    bool legal;
    int required, optional; /* attribute masks, IBV_QP_STATE apart */
};

#define ROW(from, to, service, required, optional)                                                           \
    [IBV_QPS_##from][IBV_QPS_##to][service] = {true, required, optional}
#define PLAIN(from, to)                                                                                      \
    ROW(from, to, RC, 0, 0), ROW(from, to, UC, 0, 0), ROW(from, to, UD, 0, 0), ROW(from, to, RAW, 0, 0)

/* verbs.md §2.3 and §2.4, row by row. Transitions without a row are invalid, also RESET to ERR, which IBA allows and
 * Linux does not. A QP enters SQE by itself only, after an error. */
static const struct transition transitions[STATES][STATES][SERVICES] = {
    PLAIN(RESET, RESET),
    ROW(RESET, INIT, RC, PKEY | PORT | ACCESS, 0),
    ROW(RESET, INIT, UC, PKEY | PORT | ACCESS, 0),
    ROW(RESET, INIT, UD, PKEY | PORT | QKEY, 0),
    ROW(RESET, INIT, RAW, PORT, 0),

    PLAIN(INIT, RESET),
    ROW(INIT, INIT, RC, 0, PKEY | PORT | ACCESS),
    ROW(INIT, INIT, UC, 0, PKEY | PORT | ACCESS),
    ROW(INIT, INIT, UD, 0, PKEY | PORT | QKEY),
    ROW(INIT, INIT, RAW, 0, PORT),
    ROW(INIT, RTR, RC, AV | MTU | DEST | RQ_PSN | RESPONDER | RNR_TIMER, ALT_PATH | ACCESS | PKEY),
    ROW(INIT, RTR, UC, AV | MTU | DEST | RQ_PSN, ALT_PATH | ACCESS | PKEY),
    ROW(INIT, RTR, UD, 0, PKEY | QKEY),
    ROW(INIT, RTR, RAW, 0, 0),
    PLAIN(INIT, ERR),

    PLAIN(RTR, RESET),
    ROW(RTR, RTS, RC, TIMEOUT | RETRIES | SQ_PSN | INITIATOR,
        CUR_STATE | ALT_PATH | ACCESS | RNR_TIMER | MIGRATION),
    ROW(RTR, RTS, UC, SQ_PSN, CUR_STATE | ALT_PATH | ACCESS | MIGRATION),
    ROW(RTR, RTS, UD, SQ_PSN, CUR_STATE | QKEY),
    ROW(RTR, RTS, RAW, 0, 0),
    PLAIN(RTR, ERR),

    PLAIN(RTS, RESET),
    ROW(RTS, RTS, RC, 0, CUR_STATE | ALT_PATH | ACCESS | RNR_TIMER | MIGRATION),
    ROW(RTS, RTS, UC, 0, CUR_STATE | ALT_PATH | ACCESS | MIGRATION),
    ROW(RTS, RTS, UD, 0, CUR_STATE | QKEY),
    ROW(RTS, RTS, RAW, 0, 0),
    ROW(RTS, SQD, RC, 0, SQD_NOTIFY),
    ROW(RTS, SQD, UC, 0, SQD_NOTIFY),
    ROW(RTS, SQD, UD, 0, SQD_NOTIFY),
    ROW(RTS, SQD, RAW, 0, 0),
    PLAIN(RTS, ERR),

    PLAIN(SQD, RESET),
    ROW(SQD, RTS, RC, 0, CUR_STATE | ALT_PATH | ACCESS | RNR_TIMER | MIGRATION),
    ROW(SQD, RTS, UC, 0, CUR_STATE | ALT_PATH | ACCESS | MIGRATION),
    ROW(SQD, RTS, UD, 0, CUR_STATE | QKEY),
    ROW(SQD, RTS, RAW, 0, 0),
    ROW(SQD, SQD, RC, 0,
        PORT | AV | TIMEOUT | RETRIES | INITIATOR | RESPONDER | ALT_PATH | ACCESS | PKEY | RNR_TIMER |
            MIGRATION),
    ROW(SQD, SQD, UC, 0, AV | ALT_PATH | ACCESS | PKEY | MIGRATION),
    ROW(SQD, SQD, UD, 0, PKEY | QKEY),
    ROW(SQD, SQD, RAW, 0, 0),
    PLAIN(SQD, ERR),

    PLAIN(SQE, RESET),
    ROW(SQE, RTS, UC, 0, CUR_STATE | ACCESS),
    ROW(SQE, RTS, UD, 0, CUR_STATE | QKEY),
    ROW(SQE, RTS, RAW, 0, 0),
    PLAIN(SQE, ERR),

    PLAIN(ERR, RESET),
    PLAIN(ERR, ERR),
};

/* 0; -EOPNOTSUPP or -EINVAL: the type has no row. */
static int service_of(enum ibv_qp_type type, enum service *ret_service)
{
    switch (type) {
    case IBV_QPT_RC:
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
        *ret_service = RC;
        return 0;
    case IBV_QPT_UC:
        *ret_service = UC;
        return 0;
    case IBV_QPT_UD:
        *ret_service = UD;
        return 0;
    case IBV_QPT_RAW_PACKET:
        *ret_service = RAW;
        return 0;
    case IBV_QPT_DRIVER:
        return refuse_unsupported("qp_type", type);
    }
    return refuse_invalid("qp_type", type);
}

/* An XRC QP, which has one half of an RC QP, does not need the attributes of the other half; they are accepted
 * (verbs.md §2.4). */
static int not_needed(enum ibv_qp_type type)
{
    if (type == IBV_QPT_XRC_SEND)
        return RESPONDER | RNR_TIMER;
    return type == IBV_QPT_XRC_RECV ? RETRIES | INITIATOR : 0;
}

static bool gid_is_multicast(const uint8_t gid[16])
{
    static const uint8_t ipv4_mapped[12] = {[10] = 0xff, [11] = 0xff};

    return gid[0] == 0xff || (!memcmp(gid, ipv4_mapped, sizeof(ipv4_mapped)) && gid[12] >> 4 == 0xe);
}

/* RoCE needs a GRH (verbs.md §2.2). The path of a connected QP leads to one peer, so it cannot be a multicast GID. */
static int check_path(const struct ibv_ah_attr *path, const struct transition_limits *limits)
{
    static const union ibv_gid zero;

    if (!path->is_global)
        return refuse(-EINVAL, REFUSAL_NO_GRH, "ah_attr.is_global", 0, 0, 0);
    if (path->port_num < 1 || path->port_num > LIMIT_PORTS)
        return refuse_range("ah_attr.port_num", path->port_num, 1, LIMIT_PORTS);
    if (path->grh.sgid_index >= LIMIT_GIDS || !(limits->gid_entries_valid >> path->grh.sgid_index & 1))
        return refuse(-EINVAL, REFUSAL_NO_GID, "ah_attr.grh.sgid_index", path->grh.sgid_index,
                      limits->gid_entries_valid, 0);
    if (memcmp(&path->grh.dgid, &zero, sizeof(zero)) == 0)
        return refuse(-EINVAL, REFUSAL_ZERO, "ah_attr.grh.dgid", 0, 0, 0);
    if (gid_is_multicast(path->grh.dgid.raw))
        return refuse(-EINVAL, REFUSAL_MULTICAST, "ah_attr.grh.dgid", 0, 0, 0);
    return 0;
}

static int check_values(const struct ibv_qp_attr *attributes, int mask, enum ibv_qp_state current,
                        const struct transition_limits *limits)
{
    /* LOCAL_WRITE, MW_BIND and ON_DEMAND have no meaning for a responder, but programs pass the flags of their
     * MR. */
    const unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_WRITE |
                            IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ON_DEMAND |
                            IBV_ACCESS_OPTIONAL_RANGE | ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT;

    if ((mask & CUR_STATE) && attributes->cur_qp_state != current)
        return refuse(-EINVAL, REFUSAL_CURRENT, "cur_qp_state", attributes->cur_qp_state, current, 0);
    if ((mask & PORT) && (attributes->port_num < 1 || attributes->port_num > LIMIT_PORTS))
        return refuse_range("port_num", attributes->port_num, 1, LIMIT_PORTS);
    if ((mask & PKEY) && attributes->pkey_index >= LIMIT_PKEYS)
        return refuse_range("pkey_index", attributes->pkey_index, 0, LIMIT_PKEYS - 1);
    if ((mask & ACCESS) && (attributes->qp_access_flags & ~access))
        return refuse_bits(-EINVAL, "qp_access_flags", BITS_ACCESS, attributes->qp_access_flags,
                           access & ~(unsigned)IBV_ACCESS_OPTIONAL_RANGE);
    if ((mask & AV) && check_path(&attributes->ah_attr, limits) < 0)
        return -EINVAL;
    if ((mask & MTU) && (attributes->path_mtu < IBV_MTU_256 || attributes->path_mtu > limits->active_mtu))
        return refuse(-EINVAL, REFUSAL_MTU, "path_mtu", attributes->path_mtu, limits->active_mtu, 0);
    if ((mask & TIMEOUT) && attributes->timeout > 31)
        return refuse_range("timeout", attributes->timeout, 0, 31);
    if ((mask & IBV_QP_RETRY_CNT) && attributes->retry_cnt > 7)
        return refuse_range("retry_cnt", attributes->retry_cnt, 0, 7);
    if ((mask & IBV_QP_RNR_RETRY) && attributes->rnr_retry > 7)
        return refuse_range("rnr_retry", attributes->rnr_retry, 0, 7);
    if ((mask & RNR_TIMER) && attributes->min_rnr_timer > 31)
        return refuse_range("min_rnr_timer", attributes->min_rnr_timer, 0, 31);
    if ((mask & INITIATOR) && attributes->max_rd_atomic > LIMIT_RD_ATOMIC)
        return refuse_range("max_rd_atomic", attributes->max_rd_atomic, 0, LIMIT_RD_ATOMIC);
    if ((mask & RESPONDER) && attributes->max_dest_rd_atomic > LIMIT_RD_ATOMIC)
        return refuse_range("max_dest_rd_atomic", attributes->max_dest_rd_atomic, 0, LIMIT_RD_ATOMIC);
    /* Automatic path migration is not supported: no alternate path, and the only valid state is the current one
     * (verbs.md §2.10). */
    if (mask & ALT_PATH)
        return refuse(-EINVAL, REFUSAL_MIGRATION, "alt_ah_attr", 0, 0, 0);
    if ((mask & MIGRATION) && attributes->path_mig_state != IBV_MIG_MIGRATED)
        return refuse(-EINVAL, REFUSAL_MIGRATION, "path_mig_state", attributes->path_mig_state, 0, 0);
    if ((mask & QKEY) && (attributes->qkey & QKEY_CONTROLLED) && !limits->controlled_qkeys)
        return refuse(-EPERM, REFUSAL_QKEY, "qkey", attributes->qkey, 0, 0);
    return 0;
}

static cold_path int refuse_mask(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
                                 int missing, int extra)
{
    int64_t which = (int64_t)type << 16 | (int64_t)to << 8 | (int64_t)from;

    return refuse(-EINVAL, REFUSAL_MASK, "attr_mask", which, (unsigned)missing, (unsigned)extra);
}

static cold_path int refuse_transition(enum service service, enum ibv_qp_state from, enum ibv_qp_state to)
{
    uint64_t possible = 0;

    for (unsigned i = 0; i < STATES; i++)
        possible |= transitions[from][i][service].legal ? 1ull << i : 0;
    return refuse(-EINVAL, REFUSAL_TRANSITION, "qp_state", (int64_t)to << 8 | (int64_t)from, possible, 0);
}

int transition_check(enum ibv_qp_type type, enum ibv_qp_state current, const struct ibv_qp_attr *attributes,
                     int mask, const struct transition_limits *limits)
{
    enum ibv_qp_state next = mask & STATE ? attributes->qp_state : current;
    enum service service = RC; /* gcc 13 does not know that a refusal is never 0 */
    int error = service_of(type, &service);

    if (error)
        return error;
    if ((unsigned)current >= STATES || (unsigned)next >= STATES)
        return refuse_invalid("qp_state", next);

    const struct transition *row = &transitions[current][next][service];
    /* rdma-core: EOPNOTSUPP for every attribute from the rate limit on, unless the adapter knows it. */
    int unsupported = mask & ~(IBV_QP_RATE_LIMIT - 1);
    int missing = row->required & ~not_needed(type) & ~mask;
    int extra = mask & ~(row->required | row->optional | STATE | unsupported);

    if (!row->legal)
        return refuse_transition(service, current, next);
    if (missing || extra)
        return refuse_mask(type, current, next, missing, extra);
    /* Messages in transmission still use the attributes (verbs.md §2.5). */
    if (limits->draining && current == IBV_QPS_SQD && next != IBV_QPS_RESET && next != IBV_QPS_ERR)
        return refuse(-EINVAL, REFUSAL_DRAINING, "qp_state", next, 0, 0);
    error = check_values(attributes, mask, current, limits);
    return !error && unsupported ? refuse_unsupported("rate_limit", attributes->rate_limit) : error;
}

int transition_check_post_send(enum ibv_qp_type type, enum ibv_qp_state state)
{
    enum service service;

    if (service_of(type, &service) || type == IBV_QPT_XRC_RECV)
        return refuse(-EINVAL, REFUSAL_TYPE, "sending", type, KNOWN_TYPES & ~BIT(IBV_QPT_XRC_RECV), 0);
    switch (state) {
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
    case IBV_QPS_SQE:
    case IBV_QPS_ERR:
        return 0;
    case IBV_QPS_RESET:
    case IBV_QPS_INIT:
    case IBV_QPS_RTR:
    case IBV_QPS_UNKNOWN:
        break;
    }
    return refuse(-EINVAL, REFUSAL_STATE, "a send", state, BIT(IBV_QPS_RTS), 1);
}

int transition_check_post_recv(enum ibv_qp_type type, enum ibv_qp_state state)
{
    enum service service;

    if (service_of(type, &service) || type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV)
        return refuse(-EINVAL, REFUSAL_TYPE, "ibv_post_recv", type,
                      KNOWN_TYPES & ~BIT(IBV_QPT_XRC_SEND) & ~BIT(IBV_QPT_XRC_RECV), 0);
    switch (state) {
    case IBV_QPS_INIT:
    case IBV_QPS_RTR:
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
    case IBV_QPS_SQE:
    case IBV_QPS_ERR:
        return 0;
    case IBV_QPS_RESET:
    case IBV_QPS_UNKNOWN:
        break;
    }
    return refuse(-EINVAL, REFUSAL_STATE, "a receive", state, BIT(IBV_QPS_INIT), 1);
}
