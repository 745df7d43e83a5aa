/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "rules/transitions.h"

#include <errno.h>
#include <string.h>

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
        return -EOPNOTSUPP;
    }
    return -EINVAL;
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
static bool path_is_valid(const struct ibv_ah_attr *path, const struct transition_limits *limits)
{
    static const union ibv_gid zero;

    return path->is_global && path->port_num >= 1 && path->port_num <= LIMIT_PORTS &&
           path->grh.sgid_index < LIMIT_GIDS && (limits->gid_entries_valid >> path->grh.sgid_index & 1) &&
           memcmp(&path->grh.dgid, &zero, sizeof(zero)) != 0 && !gid_is_multicast(path->grh.dgid.raw);
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
        return -EINVAL;
    if ((mask & PORT) && (attributes->port_num < 1 || attributes->port_num > LIMIT_PORTS))
        return -EINVAL;
    if ((mask & PKEY) && attributes->pkey_index >= LIMIT_PKEYS)
        return -EINVAL;
    if ((mask & ACCESS) && (attributes->qp_access_flags & ~access))
        return -EINVAL;
    if ((mask & AV) && !path_is_valid(&attributes->ah_attr, limits))
        return -EINVAL;
    if ((mask & MTU) && (attributes->path_mtu < IBV_MTU_256 || attributes->path_mtu > limits->active_mtu))
        return -EINVAL;
    if ((mask & TIMEOUT) && attributes->timeout > 31)
        return -EINVAL;
    if ((mask & IBV_QP_RETRY_CNT) && attributes->retry_cnt > 7)
        return -EINVAL;
    if ((mask & IBV_QP_RNR_RETRY) && attributes->rnr_retry > 7)
        return -EINVAL;
    if ((mask & RNR_TIMER) && attributes->min_rnr_timer > 31)
        return -EINVAL;
    if ((mask & INITIATOR) && attributes->max_rd_atomic > LIMIT_RD_ATOMIC)
        return -EINVAL;
    if ((mask & RESPONDER) && attributes->max_dest_rd_atomic > LIMIT_RD_ATOMIC)
        return -EINVAL;
    /* Automatic path migration is not supported: no alternate path, and the only valid state is the current one
     * (verbs.md §2.10). */
    if (mask & ALT_PATH)
        return -EINVAL;
    if ((mask & MIGRATION) && attributes->path_mig_state != IBV_MIG_MIGRATED)
        return -EINVAL;
    if ((mask & QKEY) && (attributes->qkey & QKEY_CONTROLLED) && !limits->controlled_qkeys)
        return -EPERM;
    return 0;
}

int transition_check(enum ibv_qp_type type, enum ibv_qp_state current, const struct ibv_qp_attr *attributes,
                     int mask, const struct transition_limits *limits)
{
    enum ibv_qp_state next = mask & STATE ? attributes->qp_state : current;
    enum service service;
    int error = service_of(type, &service);

    if (error)
        return error;
    if ((unsigned)current >= STATES || (unsigned)next >= STATES)
        return -EINVAL;

    const struct transition *row = &transitions[current][next][service];
    /* rdma-core: EOPNOTSUPP for every attribute from the rate limit on, unless the adapter knows it. */
    int unsupported = mask & ~(IBV_QP_RATE_LIMIT - 1);

    if (!row->legal || (mask & row->required & ~not_needed(type)) != (row->required & ~not_needed(type)) ||
        (mask & ~(row->required | row->optional | STATE | unsupported)))
        return -EINVAL;
    /* Messages in transmission still use the attributes (verbs.md §2.5). */
    if (limits->draining && current == IBV_QPS_SQD && next != IBV_QPS_RESET && next != IBV_QPS_ERR)
        return -EINVAL;
    error = check_values(attributes, mask, current, limits);
    return !error && unsupported ? -EOPNOTSUPP : error;
}

int transition_check_post_send(enum ibv_qp_type type, enum ibv_qp_state state)
{
    enum service service;

    if (service_of(type, &service) || type == IBV_QPT_XRC_RECV)
        return -EINVAL;
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
    return -EINVAL;
}

int transition_check_post_recv(enum ibv_qp_type type, enum ibv_qp_state state)
{
    enum service service;

    if (service_of(type, &service) || type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV)
        return -EINVAL;
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
    return -EINVAL;
}
