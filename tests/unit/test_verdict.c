/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Verdicts, syndromes and timer codes: verbs.md §3.10-3.12. */
#include "unit.h"

#include <string.h>

#include "rules/timing.h"
#include "rules/verdict.h"

static void every_verdict_has_a_name_of_its_own(void **state)
{
    for (enum verdict a = VERDICT_OK; a < VERDICT_COUNT; a++) {
        assert_non_null(verdict_name(a));
        for (enum verdict b = VERDICT_OK; b < a; b++)
            assert_string_not_equal(verdict_name(a), verdict_name(b));
    }
}

static void a_number_that_is_no_verdict_is_fatal(void **state)
{
    assert_string_equal(verdict_name(VERDICT_COUNT), verdict_name(VERDICT_FATAL));
    assert_string_equal(verdict_name((enum verdict) - 1), verdict_name(VERDICT_FATAL));
    assert_int_equal(verdict_wc_status((enum verdict)1000), IBV_WC_FATAL_ERR);
}

static void completion_statuses_follow_the_contract(void **state)
{
    assert_int_equal(verdict_wc_status(VERDICT_OK), 0);
    assert_int_equal(verdict_wc_status(VERDICT_LOCAL_LENGTH), 1);
    assert_int_equal(verdict_wc_status(VERDICT_LOCAL_QP_OPERATION), 2);
    assert_int_equal(verdict_wc_status(VERDICT_LOCAL_PROTECTION), 4);
    assert_int_equal(verdict_wc_status(VERDICT_FLUSHED), 5);
    assert_int_equal(verdict_wc_status(VERDICT_MW_BIND), 6);
    assert_int_equal(verdict_wc_status(VERDICT_BAD_RESPONSE), 7);
    assert_int_equal(verdict_wc_status(VERDICT_LOCAL_ACCESS), 8);
    assert_int_equal(verdict_wc_status(VERDICT_INVALID_REQUEST), 9);
    assert_int_equal(verdict_wc_status(VERDICT_REMOTE_ACCESS), 10);
    assert_int_equal(verdict_wc_status(VERDICT_REMOTE_OPERATION), 11);
    assert_int_equal(verdict_wc_status(VERDICT_RETRY_EXCEEDED), 12);
    assert_int_equal(verdict_wc_status(VERDICT_RNR_RETRY_EXCEEDED), 13);
    assert_int_equal(verdict_wc_status(VERDICT_FATAL), 19);
}

/* What the requester's completion says of what the responder found. */
static enum ibv_wc_status told(enum verdict found)
{
    return verdict_wc_status(verdict_of_nak((uint8_t)verdict_nak_code(found)));
}

static void a_short_receive_is_an_invalid_request_to_the_peer(void **state)
{
    assert_int_equal(told(VERDICT_LOCAL_LENGTH), IBV_WC_REM_INV_REQ_ERR);
}

static void a_faulty_receive_buffer_is_a_remote_operation_error_to_the_peer(void **state)
{
    assert_int_equal(told(VERDICT_LOCAL_PROTECTION), IBV_WC_REM_OP_ERR);
    assert_int_equal(told(VERDICT_LOCAL_QP_OPERATION), IBV_WC_REM_OP_ERR);
    assert_int_equal(told(VERDICT_REMOTE_OPERATION), IBV_WC_REM_OP_ERR);
}

static void a_bad_rkey_is_a_remote_access_error_to_the_peer(void **state)
{
    assert_int_equal(told(VERDICT_REMOTE_ACCESS), IBV_WC_REM_ACCESS_ERR);
    assert_int_equal(told(VERDICT_LOCAL_ACCESS), IBV_WC_REM_ACCESS_ERR);
}

static void a_forbidden_request_is_an_invalid_request_to_the_peer(void **state)
{
    assert_int_equal(told(VERDICT_INVALID_REQUEST), IBV_WC_REM_INV_REQ_ERR);
}

static void verdicts_of_a_requester_answer_nobody(void **state)
{
    static const enum verdict silent[] = {
        VERDICT_OK,
        VERDICT_MW_BIND,
        VERDICT_RECEIVER_NOT_READY,
        VERDICT_RETRY_EXCEEDED,
        VERDICT_BAD_RESPONSE,
        VERDICT_RNR_RETRY_EXCEEDED,
        VERDICT_FLUSHED,
    };

    for (size_t i = 0; i < array_size(silent); i++)
        assert_int_equal(verdict_nak_code(silent[i]), -1);
}

static void a_sequence_nak_ends_no_request(void **state)
{
    assert_int_equal(verdict_of_nak(NAK_SEQUENCE), VERDICT_OK);
}

static void reserved_nak_codes_are_bad_responses(void **state)
{
    for (unsigned code = NAK_INVALID_RD; code < 256; code++)
        assert_int_equal(verdict_of_nak((uint8_t)code), VERDICT_BAD_RESPONSE);
}

static void a_syndrome_is_two_bits_of_kind_and_five_of_value(void **state)
{
    assert_int_equal(SYNDROME_KIND(0x1f), SYNDROME_ACK);
    assert_int_equal(SYNDROME_KIND(0x2c), SYNDROME_RNR);
    assert_int_equal(SYNDROME_VALUE(0x2c), 12);
    assert_int_equal(SYNDROME_KIND(0x62), SYNDROME_NAK);
    assert_int_equal(SYNDROME_VALUE(0x62), NAK_REMOTE_ACCESS);
}

static void ack_timeout_code_0_is_for_ever(void **state)
{
    assert_true(timing_ack_timeout(0) == NS_NEVER);
    assert_true(timing_ack_timeout(32) == NS_NEVER);
}

static void ack_timeout_doubles_with_each_code(void **state)
{
    assert_true(timing_ack_timeout(1) == 8192);
    assert_true(timing_ack_timeout(14) == 67108864);
    assert_true(timing_ack_timeout(18) == 1073741824);
    assert_true(timing_ack_timeout(31) == 8796093022208);
    for (uint8_t code = 2; code < 32; code++)
        assert_true(timing_ack_timeout(code) == 2 * timing_ack_timeout((uint8_t)(code - 1)));
}

static void rnr_times_follow_the_table(void **state)
{
    static const double milliseconds[32] = {
        655.36, 0.01,  0.02,  0.03,  0.04,  0.06,   0.08,   0.12,   0.16,   0.24,   0.32,
        0.48,   0.64,  0.96,  1.28,  1.92,  2.56,   3.84,   5.12,   7.68,   10.24,  15.36,
        20.48,  30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
    };

    for (uint8_t code = 0; code < 32; code++)
        assert_true(timing_rnr(code) == (ns_t)(milliseconds[code] * 100 + 0.5) * 10 * NS_PER_US);
}

static void rnr_code_0_is_the_longest(void **state)
{
    for (uint8_t code = 1; code < 32; code++)
        assert_true(timing_rnr(code) < timing_rnr(0));
}

static void only_five_bits_of_an_rnr_code_count(void **state)
{
    assert_true(timing_rnr(32 + 5) == timing_rnr(5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_verdict_has_a_name_of_its_own),
        cmocka_unit_test(a_number_that_is_no_verdict_is_fatal),
        cmocka_unit_test(completion_statuses_follow_the_contract),
        cmocka_unit_test(a_short_receive_is_an_invalid_request_to_the_peer),
        cmocka_unit_test(a_faulty_receive_buffer_is_a_remote_operation_error_to_the_peer),
        cmocka_unit_test(a_bad_rkey_is_a_remote_access_error_to_the_peer),
        cmocka_unit_test(a_forbidden_request_is_an_invalid_request_to_the_peer),
        cmocka_unit_test(verdicts_of_a_requester_answer_nobody),
        cmocka_unit_test(a_sequence_nak_ends_no_request),
        cmocka_unit_test(reserved_nak_codes_are_bad_responses),
        cmocka_unit_test(a_syndrome_is_two_bits_of_kind_and_five_of_value),
        cmocka_unit_test(ack_timeout_code_0_is_for_ever),
        cmocka_unit_test(ack_timeout_doubles_with_each_code),
        cmocka_unit_test(rnr_times_follow_the_table),
        cmocka_unit_test(rnr_code_0_is_the_longest),
        cmocka_unit_test(only_five_bits_of_an_rnr_code_count),
    };

    return run_unit_tests("verdict", tests);
}
