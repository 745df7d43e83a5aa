/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §2.2 to §2.4: which transitions there are, with which attributes, and that a refusal changes
 * nothing. */
#include "work.h"

enum { ATTRIBUTE_BITS = 26 };

#define CUR     IBV_QP_CUR_STATE
#define ACCESS  IBV_QP_ACCESS_FLAGS
#define PKEY    IBV_QP_PKEY_INDEX
#define PORT    IBV_QP_PORT
#define QKEY    IBV_QP_QKEY
#define MIG     IBV_QP_PATH_MIG_STATE
#define CONNECT (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define RETRIES (IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)

/* §2.4, required and optional. ALT_PATH is optional by the table, but needs path migration, which this device
 * has not. */
static const struct transition {
    enum ibv_qp_type type;
    enum ibv_qp_state from, to;
    int required, optional;
} transitions[] = {
    {IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT, PKEY | PORT | ACCESS, 0},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_INIT, 0, PKEY | PORT | ACCESS},
    {IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, CONNECT | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     ACCESS | PKEY},
    {IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS, RETRIES | IBV_QP_SQ_PSN,
     CUR | ACCESS | IBV_QP_MIN_RNR_TIMER | MIG},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS, 0, CUR | ACCESS | IBV_QP_MIN_RNR_TIMER | MIG},
    {IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPT_RC, IBV_QPS_SQD, IBV_QPS_SQD, 0,
     PORT | IBV_QP_AV | RETRIES | IBV_QP_MAX_DEST_RD_ATOMIC | ACCESS | PKEY | IBV_QP_MIN_RNR_TIMER | MIG},
    {IBV_QPT_RC, IBV_QPS_SQD, IBV_QPS_RTS, 0, CUR | ACCESS | IBV_QP_MIN_RNR_TIMER | MIG},
    {IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT, PKEY | PORT | ACCESS, 0},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_INIT, 0, PKEY | PORT | ACCESS},
    {IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, CONNECT, ACCESS | PKEY},
    {IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, CUR | ACCESS | MIG},
    {IBV_QPT_UC, IBV_QPS_RTS, IBV_QPS_RTS, 0, CUR | ACCESS | MIG},
    {IBV_QPT_UC, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPT_UC, IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_AV | ACCESS | PKEY | MIG},
    {IBV_QPT_UC, IBV_QPS_SQD, IBV_QPS_RTS, 0, CUR | ACCESS | MIG},
    {IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT, PKEY | PORT | QKEY, 0},
    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_INIT, 0, PKEY | PORT | QKEY},
    {IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR, 0, PKEY | QKEY},
    {IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, CUR | QKEY},
    {IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_RTS, 0, CUR | QKEY},
    {IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPT_UD, IBV_QPS_SQD, IBV_QPS_SQD, 0, PKEY | QKEY},
    {IBV_QPT_UD, IBV_QPS_SQD, IBV_QPS_RTS, 0, CUR | QKEY},
};

static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
/* SQE is entered by an error only: effects.c */
static const enum ibv_qp_state settable[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
                                             IBV_QPS_RTS,   IBV_QPS_SQD,  IBV_QPS_ERR};

static const struct transition *find(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
    for (size_t i = 0; i < COUNT(transitions); i++)
        if (transitions[i].type == type && transitions[i].from == from && transitions[i].to == to)
            return &transitions[i];
    return NULL;
}

/* §2.3 */
static bool is_legal(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
    if (to == IBV_QPS_RESET)
        return true;
    if (to == IBV_QPS_ERR)
        return from != IBV_QPS_RESET;
    return find(type, from, to);
}

/* Every attribute has a good value; the mask says which count. */
static struct ibv_qp_attr good_attr(const struct end *end, enum ibv_qp_state from, enum ibv_qp_state to)
{
    return (struct ibv_qp_attr){
        .qp_state = to,
        .cur_qp_state = from,
        .path_mtu = IBV_MTU_1024,
        .path_mig_state = IBV_MIG_MIGRATED,
        .qkey = 0x22222222,
        .rq_psn = 17,
        .sq_psn = 18,
        .dest_qp_num = end->qp_num,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
        .cap = end->attr.cap,
        .ah_attr = {.is_global = 1,
                    .port_num = end->port,
                    .grh = {.dgid = end->gid, .sgid_index = (uint8_t)end->attr.gid_index, .hop_limit = 9}},
        .max_rd_atomic = 2,
        .max_dest_rd_atomic = 3,
        .min_rnr_timer = 12,
        .port_num = end->port,
        .timeout = 14,
        .retry_cnt = 3,
        .rnr_retry = 4,
    };
}

static int try(struct end *end, enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    const struct ibv_qp_attr attr = good_attr(end, from, to);

    return end_modify(end, &attr, mask | IBV_QP_STATE);
}

static void go(struct end *end, enum ibv_qp_state state)
{
    static const enum ibv_qp_state way[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
                                            IBV_QPS_SQD};

    CHECK_ZERO(try(end, IBV_QPS_UNKNOWN, IBV_QPS_RESET, 0));
    if (state == IBV_QPS_ERR) {
        go(end, IBV_QPS_INIT);
        CHECK_ZERO(try(end, IBV_QPS_INIT, IBV_QPS_ERR, 0));
        return;
    }
    for (size_t i = 1; i < COUNT(way) && way[i - 1] != state; i++)
        CHECK_ZERO(try(end, way[i - 1], way[i], find(end->attr.type, way[i - 1], way[i])->required));
}

static void open_type(struct end *end, enum ibv_qp_type type)
{
    const struct end_attr attr = attr_of(type);

    end_open(end, NEAR, &attr);
}

static void exactly_the_transitions_of_the_matrix_are_legal(void **state)
{
    for (size_t t = 0; t < COUNT(types); t++) {
        struct end end;

        open_type(&end, types[t]);
        for (size_t f = 0; f < COUNT(settable); f++) {
            for (int to = IBV_QPS_RESET; to <= IBV_QPS_ERR; to++) {
                const enum ibv_qp_state from = settable[f], target = (enum ibv_qp_state)to;
                const struct transition *row = find(types[t], from, target);
                const bool legal = is_legal(types[t], from, target);
                int error;

                go(&end, from);
                error = try(&end, from, target, row ? row->required : 0);
                CHECK(error == (legal ? 0 : EINVAL), "type %d, state %d to %d: %d", types[t], from, to,
                      error);
                CHECK(end_state(&end) == (legal ? target : from), "type %d, state %d to %d: now %d", types[t],
                      from, to, end_state(&end));
                CHECK(end.qp->state == (legal ? target : from), "type %d, state %d to %d: qp->state %d",
                      types[t], from, to, end.qp->state);
            }
        }
        end_close(&end);
    }
}

static void a_transition_without_a_required_attribute_is_einval_and_changes_nothing(void **state)
{
    for (size_t i = 0; i < COUNT(transitions); i++) {
        const struct transition *row = &transitions[i];
        struct end end;

        open_type(&end, row->type);
        go(&end, row->from);
        for (int bit = 0; bit < ATTRIBUTE_BITS; bit++) {
            int error;

            if (!(row->required & 1 << bit))
                continue;
            error = try(&end, row->from, row->to, row->required & ~(1 << bit));
            CHECK(error == EINVAL, "type %d, state %d to %d without bit %d: %d", row->type, row->from,
                  row->to, bit, error);
            CHECK(end_state(&end) == row->from, "the state changed");
        }
        end_close(&end);
    }
}

static void a_transition_with_a_foreign_attribute_is_einval_and_changes_nothing(void **state)
{
    for (size_t i = 0; i < COUNT(transitions); i++) {
        const struct transition *row = &transitions[i];
        struct end end;

        open_type(&end, row->type);
        go(&end, row->from);
        for (int bit = 1; bit < ATTRIBUTE_BITS; bit++) {
            int error;

            if ((row->required | row->optional) & 1 << bit)
                continue;
            error = try(&end, row->from, row->to, row->required | 1 << bit);
            CHECK((1 << bit) < IBV_QP_RATE_LIMIT
                      ? error == EINVAL || ((1 << bit) == IBV_QP_CAP && error == EOPNOTSUPP)
                      : error == EOPNOTSUPP,
                  "type %d, state %d to %d with bit %d: %d", row->type, row->from, row->to, bit, error);
            CHECK(end_state(&end) == row->from, "the state changed");
        }
        end_close(&end);
    }
}

static void a_transition_takes_each_optional_attribute(void **state)
{
    for (size_t i = 0; i < COUNT(transitions); i++) {
        const struct transition *row = &transitions[i];
        struct end end;

        open_type(&end, row->type);
        for (int bit = 0; bit < ATTRIBUTE_BITS; bit++) {
            int error;

            if (!(row->optional & 1 << bit))
                continue;
            go(&end, row->from);
            error = try(&end, row->from, row->to, row->required | 1 << bit);
            CHECK(error == 0, "type %d, state %d to %d with bit %d: %d", row->type, row->from, row->to, bit,
                  error);
        }
        go(&end, row->from);
        CHECK_ZERO(try(&end, row->from, row->to, row->required | row->optional));
        end_close(&end);
    }
}

static void to_reset_and_to_error_take_no_attribute(void **state)
{
    struct end end;

    open_type(&end, IBV_QPT_RC);
    go(&end, IBV_QPS_RTS);
    for (int bit = 1; bit < ATTRIBUTE_BITS; bit++) {
        assert_int_not_equal(try(&end, IBV_QPS_RTS, IBV_QPS_RESET, 1 << bit), 0);
        assert_int_not_equal(try(&end, IBV_QPS_RTS, IBV_QPS_ERR, 1 << bit), 0);
    }
    assert_int_equal(end_state(&end), IBV_QPS_RTS);
    end_close(&end);
}

static void without_the_state_bit_the_transition_is_to_the_current_state(void **state)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET, .min_rnr_timer = 5}, now;
    struct ibv_qp_init_attr init;
    struct end end;

    open_type(&end, IBV_QPT_RC);
    go(&end, IBV_QPS_RTS);
    assert_int_equal(end_modify(&end, &attr, IBV_QP_MIN_RNR_TIMER), 0);
    assert_int_equal(end.qp->state, IBV_QPS_RTS);
    assert_int_equal(ibv_query_qp(end.qp, &now, IBV_QP_MIN_RNR_TIMER | IBV_QP_STATE, &init), 0);
    assert_int_equal(now.min_rnr_timer, 5);
    assert_int_equal(now.qp_state, IBV_QPS_RTS);
    assert_int_equal(end_modify(&end, &attr, IBV_QP_SQ_PSN), EINVAL);
    end_close(&end);
}

static void a_wrong_current_state_is_einval(void **state)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQD};
    struct end end;

    open_type(&end, IBV_QPT_RC);
    go(&end, IBV_QPS_RTS);
    assert_int_equal(end_modify(&end, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
    attr.cur_qp_state = IBV_QPS_RTS;
    assert_int_equal(end_modify(&end, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), 0);
    end_close(&end);
}

/* One attribute out of range at a time (§2.2, value checks) */
static void check_value(struct end *end, enum ibv_qp_state from, enum ibv_qp_state to,
                        const struct ibv_qp_attr *attr, int extra, const char *what)
{
    const struct transition *row = find(end->attr.type, from, to);
    int error;

    go(end, from);
    error = end_modify(end, attr, row->required | extra | IBV_QP_STATE);
    CHECK(error == EINVAL, "%s: %d", what, error);
    CHECK(end_state(end) == from, "%s: the state changed", what);
}

static void values_out_of_range_are_einval_and_change_nothing(void **state)
{
    struct ibv_device_attr device;
    struct ibv_port_attr port;
    struct ibv_qp_attr bad;
    struct end end;

    open_type(&end, IBV_QPT_RC);
    assert_int_equal(ibv_query_device(end.context, &device), 0);
    assert_int_equal(ibv_query_port(end.context, end.port, &port), 0);

#define BAD(from, to, extra, field, value)                                                                   \
    do {                                                                                                     \
        bad = good_attr(&end, from, to);                                                                     \
        bad.field = value;                                                                                   \
        check_value(&end, from, to, &bad, extra, #field " = " #value);                                       \
    } while (0)

    BAD(IBV_QPS_RESET, IBV_QPS_INIT, 0, port_num, 0);
    BAD(IBV_QPS_RESET, IBV_QPS_INIT, 0, port_num, (uint8_t)(device.phys_port_cnt + 1));
    BAD(IBV_QPS_RESET, IBV_QPS_INIT, 0, pkey_index, port.pkey_tbl_len);
    BAD(IBV_QPS_RESET, IBV_QPS_INIT, 0, qp_access_flags, 1u << 15);
    BAD(IBV_QPS_INIT, IBV_QPS_RTR, 0, path_mtu, 0);
    BAD(IBV_QPS_INIT, IBV_QPS_RTR, 0, path_mtu, 6);
    BAD(IBV_QPS_INIT, IBV_QPS_RTR, 0, ah_attr.is_global, 0);
    BAD(IBV_QPS_INIT, IBV_QPS_RTR, 0, ah_attr.port_num, 2);
    BAD(IBV_QPS_INIT, IBV_QPS_RTR, 0, ah_attr.grh.sgid_index, (uint8_t)port.gid_tbl_len);
    BAD(IBV_QPS_INIT, IBV_QPS_RTR, 0, ah_attr.grh.dgid, (union ibv_gid){0});
    BAD(IBV_QPS_INIT, IBV_QPS_RTR, 0, ah_attr.grh.dgid, ((union ibv_gid){.raw = {0xff, 0x0e, [15] = 1}}));
    BAD(IBV_QPS_INIT, IBV_QPS_RTR, 0, max_dest_rd_atomic, (uint8_t)(device.max_qp_rd_atom + 1));
    BAD(IBV_QPS_INIT, IBV_QPS_RTR, 0, min_rnr_timer, 32);
    BAD(IBV_QPS_RTR, IBV_QPS_RTS, 0, timeout, 32);
    BAD(IBV_QPS_RTR, IBV_QPS_RTS, 0, retry_cnt, 8);
    BAD(IBV_QPS_RTR, IBV_QPS_RTS, 0, rnr_retry, 8);
    BAD(IBV_QPS_RTR, IBV_QPS_RTS, 0, max_rd_atomic, (uint8_t)(device.max_qp_init_rd_atom + 1));
    BAD(IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_MIN_RNR_TIMER, min_rnr_timer, 32);
    BAD(IBV_QPS_SQD, IBV_QPS_SQD, IBV_QP_TIMEOUT, timeout, 32);
#undef BAD
    end_close(&end);
}

static void path_migration_is_refused_but_staying_migrated_is_not(void **state)
{
    struct ibv_qp_attr attr;
    struct end end;

    open_type(&end, IBV_QPT_RC);
    go(&end, IBV_QPS_RTS);
    attr = good_attr(&end, IBV_QPS_RTS, IBV_QPS_RTS);
    attr.path_mig_state = IBV_MIG_REARM;
    assert_int_equal(end_modify(&end, &attr, IBV_QP_PATH_MIG_STATE), EINVAL);
    attr.path_mig_state = IBV_MIG_ARMED;
    assert_int_equal(end_modify(&end, &attr, IBV_QP_PATH_MIG_STATE), EINVAL);
    assert_int_equal(end_modify(&end, &attr, IBV_QP_ALT_PATH), EINVAL);
    attr.path_mig_state = IBV_MIG_MIGRATED;
    assert_int_equal(end_modify(&end, &attr, IBV_QP_PATH_MIG_STATE), 0);
    end_close(&end);
}

static void query_returns_what_was_set(void **state)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr now;
    struct end end;

    open_type(&end, IBV_QPT_RC);
    go(&end, IBV_QPS_RTS);
    assert_int_equal(ibv_query_qp(end.qp, &now, 0x1fffff, &init), 0);
    assert_int_equal(now.qp_state, IBV_QPS_RTS);
    assert_int_equal(now.cur_qp_state, IBV_QPS_RTS);
    assert_int_equal(now.path_mtu, IBV_MTU_1024);
    assert_int_equal(now.path_mig_state, IBV_MIG_MIGRATED);
    assert_int_equal(now.rq_psn, 17);
    assert_int_equal(now.sq_psn, 18);
    assert_int_equal(now.dest_qp_num, end.qp_num);
    assert_int_equal(now.qp_access_flags, IBV_ACCESS_REMOTE_WRITE);
    assert_true(now.max_rd_atomic >= 2);
    assert_true(now.max_dest_rd_atomic >= 3);
    assert_int_equal(now.min_rnr_timer, 12);
    assert_int_equal(now.port_num, end.port);
    assert_int_equal(now.timeout, 14);
    assert_int_equal(now.retry_cnt, 3);
    assert_int_equal(now.rnr_retry, 4);
    assert_int_equal(now.sq_draining, 0);
    assert_int_equal(now.ah_attr.is_global, 1);
    assert_int_equal(now.ah_attr.port_num, end.port);
    assert_memory_equal(&now.ah_attr.grh.dgid, &end.gid, sizeof end.gid);
    assert_int_equal(now.ah_attr.grh.sgid_index, end.attr.gid_index);
    assert_int_equal(now.cap.max_send_wr, end.attr.cap.max_send_wr);
    assert_ptr_equal(init.send_cq, end.send_cq);
    assert_ptr_equal(init.recv_cq, end.recv_cq);
    assert_null(init.srq);
    assert_int_equal(init.sq_sig_all, 0);
    end_close(&end);
}

static void query_returns_the_static_rate(void **state)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr, now;
    struct end end;

    open_type(&end, IBV_QPT_RC);
    go(&end, IBV_QPS_INIT);
    attr = good_attr(&end, IBV_QPS_INIT, IBV_QPS_RTR);
    attr.ah_attr.static_rate = IBV_RATE_40_GBPS;
    assert_int_equal(
        end_modify(&end, &attr, find(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR)->required | IBV_QP_STATE), 0);
    assert_int_equal(ibv_query_qp(end.qp, &now, IBV_QP_AV, &init), 0);
    assert_int_equal(now.ah_attr.static_rate, IBV_RATE_40_GBPS);
    CHECK_ZERO(end_to_state(&end, IBV_QPS_RESET));
    go(&end, IBV_QPS_RTR);
    assert_int_equal(ibv_query_qp(end.qp, &now, IBV_QP_AV, &init), 0);
    assert_int_equal(now.ah_attr.static_rate, 0);
    end_close(&end);
}

static void query_refuses_bits_above_the_attributes(void **state)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr now;
    struct end end;

    open_type(&end, IBV_QPT_RC);
    assert_int_equal(ibv_query_qp(end.qp, &now, IBV_QP_RATE_LIMIT, &init), EOPNOTSUPP);
    assert_int_equal(ibv_query_qp(end.qp, &now, 1 << 26, &init), EOPNOTSUPP);
    end_close(&end);
}

/* rdma-core: attributes from IBV_QP_RATE_LIMIT on are unknown to an adapter that paces nothing. */
static void attributes_from_the_rate_limit_on_are_not_supported(void **state)
{
    static const enum ibv_qp_type unpaced[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

    for (size_t i = 0; i < COUNT(unpaced); i++) {
        struct ibv_qp_attr attr = {.rate_limit = 1000};
        struct end end;

        open_type(&end, unpaced[i]);
        end_to_init(&end);
        assert_int_equal(end_modify(&end, &attr, IBV_QP_RATE_LIMIT), EOPNOTSUPP);
        assert_int_equal(end_modify(&end, &attr, 1 << 26), EOPNOTSUPP);
        assert_int_equal(end_modify(&end, &attr, IBV_QP_RATE_LIMIT | IBV_QP_CAP), EINVAL);
        assert_int_equal(end_state(&end), IBV_QPS_INIT);
        end_close(&end);
    }
}

static void upper_bits_of_24_bit_attributes_are_masked_off(void **state)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr, now;
    struct end end;

    open_type(&end, IBV_QPT_RC);
    go(&end, IBV_QPS_INIT);
    attr = good_attr(&end, IBV_QPS_INIT, IBV_QPS_RTR);
    attr.rq_psn |= 0x5a000000;
    CHECK_ZERO(end_modify(&end, &attr, find(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR)->required | IBV_QP_STATE));
    attr = good_attr(&end, IBV_QPS_RTR, IBV_QPS_RTS);
    attr.sq_psn |= 0xa5000000;
    CHECK_ZERO(end_modify(&end, &attr, find(IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS)->required | IBV_QP_STATE));
    assert_int_equal(ibv_query_qp(end.qp, &now, IBV_QP_RQ_PSN | IBV_QP_SQ_PSN, &init), 0);
    assert_int_equal(now.rq_psn, 17);
    assert_int_equal(now.sq_psn, 18);
    end_close(&end);
}

static void reset_forgets_the_attributes(void **state)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr now;
    struct end end;

    open_type(&end, IBV_QPT_RC);
    go(&end, IBV_QPS_RTS);
    CHECK_ZERO(end_to_state(&end, IBV_QPS_RESET));
    assert_int_equal(ibv_query_qp(end.qp, &now, 0x1fffff, &init), 0);
    assert_int_equal(now.qp_state, IBV_QPS_RESET);
    assert_int_equal(now.dest_qp_num, 0);
    assert_int_equal(now.rq_psn, 0);
    assert_int_equal(now.timeout, 0);
    end_close(&end);
}

static void every_24_bit_psn_is_a_start(void **state)
{
    const uint32_t starts[] = {0, 1, 0x7fffff, 0x800000, 0xfffff0, 0xffffff};

    for (size_t i = 0; i < COUNT(starts); i++) {
        const struct end_attr attr = attr_of(IBV_QPT_RC);
        struct pair p;

        pair_open(&p, &attr, &attr);
        p.a.psn = starts[i];
        p.b.psn = starts[COUNT(starts) - 1 - i];
        end_connect(&p.a, &p.b);
        end_fill(&p.a, 0, 32768, i);
        for (unsigned int n = 0; n < 4; n++) {
            end_send(&p.a, a_write(&p.a, n, 0, 32768, &p.b, 0));
            end_expect_success(&p.a, SQ, n, IBV_WC_RDMA_WRITE);
            end_send(&p.a, a_read(&p.a, n, 0, 32768, &p.b, 0));
            end_expect_success(&p.a, SQ, n, IBV_WC_RDMA_READ);
        }
        end_expect_data(&p.b, 0, 32768, i);
        pair_marker(&p.b, &p.a);
        pair_close(&p);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(exactly_the_transitions_of_the_matrix_are_legal),
        TEST(a_transition_without_a_required_attribute_is_einval_and_changes_nothing),
        TEST(a_transition_with_a_foreign_attribute_is_einval_and_changes_nothing),
        TEST(a_transition_takes_each_optional_attribute),
        TEST(to_reset_and_to_error_take_no_attribute),
        TEST(without_the_state_bit_the_transition_is_to_the_current_state),
        TEST(a_wrong_current_state_is_einval),
        TEST(values_out_of_range_are_einval_and_change_nothing),
        TEST(path_migration_is_refused_but_staying_migrated_is_not),
        TEST(query_returns_what_was_set),
        TEST(query_returns_the_static_rate),
        TEST(query_refuses_bits_above_the_attributes),
        TEST(attributes_from_the_rate_limit_on_are_not_supported),
        TEST(upper_bits_of_24_bit_attributes_are_masked_off),
        TEST(reset_forgets_the_attributes),
        TEST(every_24_bit_psn_is_a_start),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
