/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QP transitions, all of them: verbs.md §2.1-2.4. The expectation below is written down type by type,
 * the way the contract prints it, and not the way rules/transitions.c does. */
#include "unit.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/refusal.h"
#include "rules/limits.h"
#include "rules/transitions.h"

static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
static const char *const state_names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
#define STATES 7

struct expectation {
    bool legal;
    int required, optional;
};

static struct expectation legal(int required, int optional)
{
    return (struct expectation){true, required, optional};
}

static int init_set(enum ibv_qp_type type)
{
    return IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
}

/* The optional column of RTR to RTS. */
static int rts_set(enum ibv_qp_type type)
{
    if (type == IBV_QPT_UD)
        return IBV_QP_CUR_STATE | IBV_QP_QKEY;
    return IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE |
           (type == IBV_QPT_RC ? IBV_QP_MIN_RNR_TIMER : 0);
}

static struct expectation expect(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
    const bool rc = type == IBV_QPT_RC, ud = type == IBV_QPT_UD;

    if (to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET))
        return legal(0, 0);
    if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
        return legal(init_set(type), 0);
    if (from == IBV_QPS_INIT && to == IBV_QPS_INIT)
        return legal(0, init_set(type));
    if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) {
        if (ud)
            return legal(0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY);
        return legal(IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0),
                     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX);
    }
    if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
        return legal(
            IBV_QP_SQ_PSN |
                (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0),
            rts_set(type));
    if ((from == IBV_QPS_RTS || from == IBV_QPS_SQD) && to == IBV_QPS_RTS)
        return legal(0, rts_set(type));
    if (from == IBV_QPS_RTS && to == IBV_QPS_SQD)
        return legal(0, IBV_QP_EN_SQD_ASYNC_NOTIFY);
    if (from == IBV_QPS_SQD && to == IBV_QPS_SQD) {
        int set = IBV_QP_PKEY_INDEX;

        if (ud)
            return legal(0, set | IBV_QP_QKEY);
        set |= IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
        if (rc)
            set |= IBV_QP_PORT | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                   IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        return legal(0, set);
    }
    if (from == IBV_QPS_SQE && to == IBV_QPS_RTS && !rc)
        return legal(0, IBV_QP_CUR_STATE | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
    return (struct expectation){false, 0, 0};
}

static const struct transition_limits limits = {.gid_entries_valid = 5, .active_mtu = IBV_MTU_4096};

/* Every value as it should be. */
static struct ibv_qp_attr good(enum ibv_qp_state from, enum ibv_qp_state to)
{
    struct ibv_qp_attr attributes = {
        .qp_state = to,
        .cur_qp_state = from,
        .path_mtu = IBV_MTU_1024,
        .path_mig_state = IBV_MIG_MIGRATED,
        .qkey = 0x11111111,
        .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                           IBV_ACCESS_REMOTE_ATOMIC,
        .ah_attr = {.is_global = 1, .port_num = 1},
        .port_num = 1,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .min_rnr_timer = 12,
        .max_rd_atomic = 16,
        .max_dest_rd_atomic = 16,
    };

    memcpy(attributes.ah_attr.grh.dgid.raw,
           (uint8_t[]){0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1}, 16);
    return attributes;
}

static int check(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    struct ibv_qp_attr attributes = good(from, to);
    int error = transition_check(type, from, &attributes, mask, &limits);
    struct refusal reason;

    /* Whatever is refused says why. */
    if (!error)
        return 0;
    assert_true(refusal_take(error, &reason));
    if (reason.form == REFUSAL_MASK) {
        assert_int_equal(reason.low & (unsigned)mask, 0);
        assert_int_equal(reason.high & ~(unsigned)mask, 0);
        assert_true(reason.low || reason.high);
    }
    /* The states that it says are possible are those that are. */
    for (enum ibv_qp_state next = IBV_QPS_RESET; reason.form == REFUSAL_TRANSITION && next < STATES; next++)
        assert_int_equal(reason.low >> next & 1, expect(type, from, next).legal);
    return error;
}

static void expect_result(int expected, enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
                          int mask)
{
    int result = check(type, from, to, mask);

    if (result != expected)
        fail_msg("type %d, %s to %s, mask %#x: %d instead of %d", type, state_names[from], state_names[to],
                 (unsigned)mask, result, expected);
}

typedef void visitor(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
                     const struct expectation *expected);

static void for_all(visitor *visit)
{
    for (size_t i = 0; i < array_size(types); i++)
        for (enum ibv_qp_state from = IBV_QPS_RESET; from < STATES; from++)
            for (enum ibv_qp_state to = IBV_QPS_RESET; to < STATES; to++) {
                const struct expectation expected = expect(types[i], from, to);

                visit(types[i], from, to, &expected);
            }
}

static void visit_required(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
                           const struct expectation *expected)
{
    expect_result(expected->legal ? 0 : -EINVAL, type, from, to, IBV_QP_STATE | expected->required);
}

static void every_legal_transition_passes_with_its_required_attributes_and_no_other_does(void **state)
{
    for_all(visit_required);
}

static void visit_missing(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
                          const struct expectation *expected)
{
    for (int bit = 1; bit && bit <= expected->required; bit <<= 1)
        if (expected->required & bit)
            expect_result(-EINVAL, type, from, to, IBV_QP_STATE | (expected->required & ~bit));
}

static void each_missing_attribute_is_refused(void **state)
{
    for_all(visit_missing);
}

static void visit_optional(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
                           const struct expectation *expected)
{
    const int usable = expected->optional & ~IBV_QP_ALT_PATH;

    if (!expected->legal)
        return;
    for (unsigned bit = 0; bit < 31; bit++)
        if (usable >> bit & 1)
            expect_result(0, type, from, to, IBV_QP_STATE | expected->required | (int)(1u << bit));
    expect_result(0, type, from, to, IBV_QP_STATE | expected->required | usable);
}

static void each_optional_attribute_is_accepted(void **state)
{
    for_all(visit_optional);
}

static void visit_extra(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
                        const struct expectation *expected)
{
    const unsigned allowed = (unsigned)(IBV_QP_STATE | expected->required | expected->optional);

    for (unsigned bit = 0; bit < 32; bit++)
        if (!(allowed >> bit & 1))
            expect_result(expected->legal && 1u << bit >= IBV_QP_RATE_LIMIT ? -EOPNOTSUPP : -EINVAL, type,
                          from, to, (int)((unsigned)(IBV_QP_STATE | expected->required) | 1u << bit));
}

static void each_extra_attribute_is_refused(void **state)
{
    for_all(visit_extra);
}

static void visit_stateless(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to,
                            const struct expectation *expected)
{
    if (from == to)
        expect_result(expected->legal ? 0 : -EINVAL, type, from, IBV_QPS_RTR, expected->required);
}

static void without_a_state_the_transition_is_from_current_to_current(void **state)
{
    for_all(visit_stateless);
}

static void reset_to_error_is_refused(void **state)
{
    expect_result(-EINVAL, IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_ERR, IBV_QP_STATE);
}

static void states_that_do_not_exist_are_refused(void **state)
{
    struct ibv_qp_attr attributes = good(IBV_QPS_RTS, IBV_QPS_RTS);

    for (int wrong = STATES; wrong < 40; wrong++) {
        attributes.qp_state = (enum ibv_qp_state)wrong;
        assert_int_equal(transition_check(IBV_QPT_RC, IBV_QPS_RTS, &attributes, IBV_QP_STATE, &limits),
                         -EINVAL);
    }
    attributes.qp_state = (enum ibv_qp_state) - 1;
    assert_int_equal(transition_check(IBV_QPT_RC, IBV_QPS_RTS, &attributes, IBV_QP_STATE, &limits), -EINVAL);
}

static void types_that_are_not_there_are_not_supported(void **state)
{
    assert_int_equal(check((enum ibv_qp_type)0, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QP_STATE), -EINVAL);
    assert_int_equal(check((enum ibv_qp_type)77, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QP_STATE), -EINVAL);
}

/* Values: one attribute wrong, all others right. */

#define TO_INIT  IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT
#define TO_RTR   IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR
#define TO_RTS   IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS
#define STAY_RTS IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS
#define INIT_UD  IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT

#define assert_value_in(limits_, expected, type, from, to, extra, statement)                                 \
    do {                                                                                                     \
        struct ibv_qp_attr a = good(from, to);                                                               \
        statement;                                                                                           \
        assert_int_equal(transition_check(type, from, &a,                                                    \
                                          IBV_QP_STATE | expect(type, from, to).required | (extra),          \
                                          limits_),                                                          \
                         expected);                                                                          \
    } while (0)
#define expand(macro, ...) macro(__VA_ARGS__)
#define assert_value(expected, transition, extra, statement)                                                 \
    expand(assert_value_in, &limits, expected, transition, extra, statement)

static void the_only_port_is_1(void **state)
{
    assert_value(-EINVAL, TO_INIT, 0, a.port_num = 0);
    assert_value(-EINVAL, TO_INIT, 0, a.port_num = 2);
}

static void the_only_pkey_index_is_0(void **state)
{
    assert_value(-EINVAL, TO_INIT, 0, a.pkey_index = 1);
}

static void access_flags_are_remote_rights(void **state)
{
    assert_value(0, TO_INIT, 0, a.qp_access_flags = 0);
    assert_value(0, TO_INIT, 0, a.qp_access_flags = IBV_ACCESS_MW_BIND | IBV_ACCESS_RELAXED_ORDERING);
    assert_value(-EINVAL, TO_INIT, 0, a.qp_access_flags = IBV_ACCESS_ZERO_BASED);
    assert_value(0, TO_INIT, 0, a.qp_access_flags = IBV_ACCESS_ON_DEMAND); /* the region's, passed on */
    assert_value(-EINVAL, TO_INIT, 0, a.qp_access_flags = 1u << 31);
}

static void a_path_needs_a_grh(void **state)
{
    assert_value(-EINVAL, TO_RTR, 0, a.ah_attr.is_global = 0);
}

static void a_path_leaves_by_the_port_of_the_qp(void **state)
{
    assert_value(-EINVAL, TO_RTR, 0, a.ah_attr.port_num = 0);
    assert_value(-EINVAL, TO_RTR, 0, a.ah_attr.port_num = 2);
}

static void a_path_names_a_valid_gid(void **state)
{
    assert_value(0, TO_RTR, 0, a.ah_attr.grh.sgid_index = 2);
    assert_value(-EINVAL, TO_RTR, 0, a.ah_attr.grh.sgid_index = 1);
    assert_value(-EINVAL, TO_RTR, 0, a.ah_attr.grh.sgid_index = LIMIT_GIDS);
    assert_value(-EINVAL, TO_RTR, 0, a.ah_attr.grh.sgid_index = 32);
    assert_value(-EINVAL, TO_RTR, 0, a.ah_attr.grh.sgid_index = 255);
}

static void a_path_has_a_destination(void **state)
{
    assert_value(-EINVAL, TO_RTR, 0, memset(&a.ah_attr.grh.dgid, 0, 16));
}

static void a_connected_path_is_not_multicast(void **state)
{
    assert_value(-EINVAL, TO_RTR, 0, a.ah_attr.grh.dgid.raw[12] = 224);
    assert_value(-EINVAL, TO_RTR, 0, a.ah_attr.grh.dgid.raw[12] = 239);
    assert_value(0, TO_RTR, 0, a.ah_attr.grh.dgid.raw[12] = 240);
    assert_value(0, TO_RTR, 0, a.ah_attr.grh.dgid.raw[12] = 223);
    assert_value(-EINVAL, TO_RTR, 0, a.ah_attr.grh.dgid.raw[0] = 0xff);
    assert_value(0, TO_RTR, 0, (a.ah_attr.grh.dgid.raw[0] = 0xfe, a.ah_attr.grh.dgid.raw[12] = 224));
}

static void path_mtu_is_at_most_that_of_the_port(void **state)
{
    static const struct transition_limits small = {.gid_entries_valid = 1, .active_mtu = IBV_MTU_1024};

    assert_value(0, TO_RTR, 0, a.path_mtu = IBV_MTU_4096);
    assert_value(0, TO_RTR, 0, a.path_mtu = IBV_MTU_256);
    assert_value(-EINVAL, TO_RTR, 0, a.path_mtu = (enum ibv_mtu)0);
    assert_value(-EINVAL, TO_RTR, 0, a.path_mtu = (enum ibv_mtu)6);
    assert_value(-EINVAL, TO_RTR, 0, a.path_mtu = (enum ibv_mtu) - 1);
    expand(assert_value_in, &small, 0, TO_RTR, 0, a.path_mtu = IBV_MTU_1024);
    expand(assert_value_in, &small, -EINVAL, TO_RTR, 0, a.path_mtu = IBV_MTU_2048);
}

static void psns_and_qpns_have_24_bits_and_the_rest_is_ignored(void **state)
{
    assert_value(0, TO_RTR, 0, a.rq_psn = 0xffffffff);
    assert_value(0, TO_RTR, 0, a.dest_qp_num = 0xff000001);
    assert_value(0, TO_RTS, 0, a.sq_psn = 0xffffffff);
}

static void read_and_atomic_depths_are_at_most_those_of_the_device(void **state)
{
    assert_value(0, TO_RTR, 0, a.max_dest_rd_atomic = LIMIT_RD_ATOMIC);
    assert_value(0, TO_RTR, 0, a.max_dest_rd_atomic = 0);
    assert_value(-EINVAL, TO_RTR, 0, a.max_dest_rd_atomic = LIMIT_RD_ATOMIC + 1);
    assert_value(0, TO_RTS, 0, a.max_rd_atomic = LIMIT_RD_ATOMIC);
    assert_value(-EINVAL, TO_RTS, 0, a.max_rd_atomic = LIMIT_RD_ATOMIC + 1);
}

static void timeout_has_five_bits(void **state)
{
    assert_value(0, TO_RTS, 0, a.timeout = 0);
    assert_value(0, TO_RTS, 0, a.timeout = 31);
    assert_value(-EINVAL, TO_RTS, 0, a.timeout = 32);
}

static void retry_counts_have_three_bits(void **state)
{
    assert_value(-EINVAL, TO_RTS, 0, a.retry_cnt = 8);
    assert_value(-EINVAL, TO_RTS, 0, a.rnr_retry = 8);
    assert_value(0, TO_RTS, 0, (a.retry_cnt = 0, a.rnr_retry = 0));
}

static void rnr_timer_has_five_bits(void **state)
{
    assert_value(0, TO_RTR, 0, a.min_rnr_timer = 31);
    assert_value(-EINVAL, TO_RTR, 0, a.min_rnr_timer = 32);
}

static void the_belief_about_the_current_state_must_be_true(void **state)
{
    assert_value(0, STAY_RTS, IBV_QP_CUR_STATE, a.cur_qp_state = IBV_QPS_RTS);
    assert_value(-EINVAL, STAY_RTS, IBV_QP_CUR_STATE, a.cur_qp_state = IBV_QPS_SQE);
    assert_value(-EINVAL, TO_RTS, IBV_QP_CUR_STATE, a.cur_qp_state = IBV_QPS_RTS);
}

static void an_alternate_path_is_refused(void **state)
{
    assert_value(-EINVAL, TO_RTR, IBV_QP_ALT_PATH, (void)0);
    assert_value(-EINVAL, STAY_RTS, IBV_QP_ALT_PATH, (void)0);
}

static void the_only_migration_state_is_migrated(void **state)
{
    assert_value(0, STAY_RTS, IBV_QP_PATH_MIG_STATE, a.path_mig_state = IBV_MIG_MIGRATED);
    assert_value(-EINVAL, STAY_RTS, IBV_QP_PATH_MIG_STATE, a.path_mig_state = IBV_MIG_REARM);
    assert_value(-EINVAL, STAY_RTS, IBV_QP_PATH_MIG_STATE, a.path_mig_state = IBV_MIG_ARMED);
}

static void controlled_qkeys_need_the_privilege(void **state)
{
    static const struct transition_limits privileged = {.active_mtu = IBV_MTU_4096, .controlled_qkeys = true};

    assert_value(0, INIT_UD, 0, a.qkey = 0x7fffffff);
    assert_value(-EPERM, INIT_UD, 0, a.qkey = 0x80000000);
    expand(assert_value_in, &privileged, 0, INIT_UD, 0, a.qkey = 0x80000000);
}

static void values_outside_the_mask_do_not_matter(void **state)
{
    struct ibv_qp_attr attributes;

    memset(&attributes, 0xff, sizeof(attributes));
    attributes.qp_state = IBV_QPS_RTS;
    assert_int_equal(transition_check(IBV_QPT_RC, IBV_QPS_RTS, &attributes, IBV_QP_STATE, &limits), 0);
    assert_int_equal(transition_check(IBV_QPT_RC, IBV_QPS_RTS, &attributes, 0, &limits), 0);
}

static void a_draining_queue_can_only_be_given_up(void **state)
{
    static const struct transition_limits draining = {
        .gid_entries_valid = 1, .active_mtu = IBV_MTU_4096, .draining = true};
    struct ibv_qp_attr attributes = good(IBV_QPS_SQD, IBV_QPS_RTS);

    for (size_t i = 0; i < array_size(types); i++) {
        for (enum ibv_qp_state to = IBV_QPS_RESET; to < STATES; to++) {
            attributes.qp_state = to;
            assert_int_equal(transition_check(types[i], IBV_QPS_SQD, &attributes, IBV_QP_STATE, &draining),
                             to == IBV_QPS_RESET || to == IBV_QPS_ERR ? 0 : -EINVAL);
        }
        /* Elsewhere the word means nothing. */
        attributes.qp_state = IBV_QPS_RTS;
        assert_int_equal(transition_check(types[i], IBV_QPS_RTS, &attributes, IBV_QP_STATE, &draining), 0);
    }
}

static void a_current_state_that_does_not_exist_is_refused(void **state)
{
    const struct ibv_qp_attr attributes = good(IBV_QPS_RTS, IBV_QPS_RESET);

    for (int wrong = STATES; wrong < 40; wrong++)
        assert_int_equal(
            transition_check(IBV_QPT_RC, (enum ibv_qp_state)wrong, &attributes, IBV_QP_STATE, &limits),
            -EINVAL);
}

static void gid_indices_end_with_the_table(void **state)
{
    static const struct transition_limits all = {.gid_entries_valid = UINT32_MAX, .active_mtu = IBV_MTU_4096};

    expand(assert_value_in, &all, 0, TO_RTR, 0, a.ah_attr.grh.sgid_index = LIMIT_GIDS - 1);
    expand(assert_value_in, &all, -EINVAL, TO_RTR, 0, a.ah_attr.grh.sgid_index = LIMIT_GIDS);
}

static void sends_are_accepted_from_rts_on(void **state)
{
    static const int expected[STATES + 1] = {-EINVAL, -EINVAL, -EINVAL, 0, 0, 0, 0, -EINVAL};

    for (size_t i = 0; i < array_size(types); i++)
        for (enum ibv_qp_state at = IBV_QPS_RESET; at <= STATES; at++)
            assert_int_equal(transition_check_post_send(types[i], at), expected[at]);
}

static void receives_are_accepted_from_init_on(void **state)
{
    static const int expected[STATES + 1] = {-EINVAL, 0, 0, 0, 0, 0, 0, -EINVAL};

    for (size_t i = 0; i < array_size(types); i++)
        for (enum ibv_qp_state at = IBV_QPS_RESET; at <= STATES; at++)
            assert_int_equal(transition_check_post_recv(types[i], at), expected[at]);
}

static void halves_of_xrc_need_half_of_the_attributes(void **state)
{
    const int common = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    const int answers = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    const int asks = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    const int begins = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN;

    assert_int_equal(check(IBV_QPT_XRC_SEND, IBV_QPS_INIT, IBV_QPS_RTR, common), 0);
    assert_int_equal(check(IBV_QPT_XRC_RECV, IBV_QPS_INIT, IBV_QPS_RTR, common), -EINVAL);
    assert_int_equal(check(IBV_QPT_XRC_RECV, IBV_QPS_INIT, IBV_QPS_RTR, common | answers), 0);
    assert_int_equal(check(IBV_QPT_XRC_SEND, IBV_QPS_RTR, IBV_QPS_RTS, begins), -EINVAL);
    assert_int_equal(check(IBV_QPT_XRC_SEND, IBV_QPS_RTR, IBV_QPS_RTS, begins | asks), 0);
    assert_int_equal(check(IBV_QPT_XRC_RECV, IBV_QPS_RTR, IBV_QPS_RTS, begins), 0);
    /* What the half has no use for is let pass. */
    assert_int_equal(check(IBV_QPT_XRC_SEND, IBV_QPS_INIT, IBV_QPS_RTR, common | answers), 0);
    assert_int_equal(check(IBV_QPT_XRC_RECV, IBV_QPS_RTR, IBV_QPS_RTS, begins | asks), 0);
}

static void other_types_accept_no_work(void **state)
{
    assert_int_equal(transition_check_post_send(IBV_QPT_XRC_RECV, IBV_QPS_RTS), -EINVAL);
    assert_int_equal(transition_check_post_recv(IBV_QPT_XRC_RECV, IBV_QPS_RTS), -EINVAL);
    assert_int_equal(transition_check_post_recv((enum ibv_qp_type)0, IBV_QPS_RTS), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_legal_transition_passes_with_its_required_attributes_and_no_other_does),
        cmocka_unit_test(each_missing_attribute_is_refused),
        cmocka_unit_test(each_optional_attribute_is_accepted),
        cmocka_unit_test(each_extra_attribute_is_refused),
        cmocka_unit_test(without_a_state_the_transition_is_from_current_to_current),
        cmocka_unit_test(reset_to_error_is_refused),
        cmocka_unit_test(states_that_do_not_exist_are_refused),
        cmocka_unit_test(types_that_are_not_there_are_not_supported),
        cmocka_unit_test(the_only_port_is_1),
        cmocka_unit_test(the_only_pkey_index_is_0),
        cmocka_unit_test(access_flags_are_remote_rights),
        cmocka_unit_test(a_path_needs_a_grh),
        cmocka_unit_test(a_path_leaves_by_the_port_of_the_qp),
        cmocka_unit_test(a_path_names_a_valid_gid),
        cmocka_unit_test(a_path_has_a_destination),
        cmocka_unit_test(a_connected_path_is_not_multicast),
        cmocka_unit_test(path_mtu_is_at_most_that_of_the_port),
        cmocka_unit_test(psns_and_qpns_have_24_bits_and_the_rest_is_ignored),
        cmocka_unit_test(read_and_atomic_depths_are_at_most_those_of_the_device),
        cmocka_unit_test(timeout_has_five_bits),
        cmocka_unit_test(retry_counts_have_three_bits),
        cmocka_unit_test(rnr_timer_has_five_bits),
        cmocka_unit_test(the_belief_about_the_current_state_must_be_true),
        cmocka_unit_test(an_alternate_path_is_refused),
        cmocka_unit_test(the_only_migration_state_is_migrated),
        cmocka_unit_test(controlled_qkeys_need_the_privilege),
        cmocka_unit_test(values_outside_the_mask_do_not_matter),
        cmocka_unit_test(a_draining_queue_can_only_be_given_up),
        cmocka_unit_test(sends_are_accepted_from_rts_on),
        cmocka_unit_test(receives_are_accepted_from_init_on),
        cmocka_unit_test(halves_of_xrc_need_half_of_the_attributes),
        cmocka_unit_test(other_types_accept_no_work),
        cmocka_unit_test(a_current_state_that_does_not_exist_is_refused),
        cmocka_unit_test(gid_indices_end_with_the_table),
    };

    return run_unit_tests("transitions", tests);
}
