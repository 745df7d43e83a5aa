/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The grammar of fault specifications, and the decisions (softhca-fault(7), docs/design/faults.md). */
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "inject/rule.h"

static struct inject_rule rule;
static char why[256];

static void assert_refused(const char *text, const char *part)
{
    assert_false(inject_parse(text, &rule, why, sizeof(why)));
    if (!strstr(why, part))
        fail_msg("'%s': '%s' lacks '%s'", text, why, part);
}

static void assert_read(const char *text)
{
    if (!inject_parse(text, &rule, why, sizeof(why)))
        fail_msg("'%s': %s", text, why);
}

static void a_call_fails_once_unless_it_says_more(void **state)
{
    assert_read("call=ibv_reg_mr errno=ENOMEM");
    assert_int_equal(rule.kind, INJECT_CALL);
    assert_int_equal(rule.what, CALL_REG_MR);
    assert_int_equal(rule.error, ENOMEM);
    assert_true(inject_strikes(&rule, 1, &(struct inject_point){0}));
    assert_false(inject_strikes(&rule, 2, &(struct inject_point){0}));
}

static void n_count_and_every_select_by_counting(void **state)
{
    static const struct {
        const char *words, *struck; /* of the matches from 1 on */
    } cases[] = {
        {"n=3", "001000000"},     {"n=3 count=2", "001100000"},         {"n=3 count=all", "001111111"},
        {"every=3", "100100100"}, {"n=2 every=3 count=2", "010010000"},
    };

    for (size_t i = 0; i < array_size(cases); i++) {
        char text[100], got[10] = "";

        snprintf(text, sizeof(text), "call=ibv_create_qp,errno=12, %s", cases[i].words);
        assert_read(text);
        for (uint32_t match = 1; match <= 9; match++)
            got[match - 1] = inject_strikes(&rule, match, &(struct inject_point){0}) ? '1' : '0';
        assert_string_equal(got, cases[i].struck);
    }
}

static void chance_is_a_function_of_seed_and_point(void **state)
{
    unsigned struck = 0, differs = 0;
    struct inject_rule other;

    assert_read("call=ibv_post_send errno=ENOMEM percent=10 seed=8");
    other = rule;
    assert_read("call=ibv_post_send errno=ENOMEM percent=10 seed=7");
    for (uint32_t i = 0; i < 100000; i++) {
        struct inject_point point = {.qp = i % 5, .direction = i & 1, .index = i, .transmission = 0};
        bool strikes = inject_strikes(&rule, 1, &point);

        assert_int_equal(strikes, inject_strikes(&rule, i, &point));
        struck += strikes;
        differs += strikes != inject_strikes(&other, 1, &point);
        point.transmission = 1;
        differs += strikes != inject_strikes(&rule, 1, &point);
    }
    assert_in_range(struck, 9500, 10500);
    assert_true(differs > 10000);
    assert_read("call=ibv_post_send errno=ENOMEM percent=100");
    assert_true(inject_strikes(&rule, 1, &(struct inject_point){.index = 5}));
    assert_read("call=ibv_post_send errno=ENOMEM percent=0.0001");
    assert_int_equal(rule.parts, 1);
}

static void an_unknown_word_names_the_nearest(void **state)
{
    assert_refused("cal=ibv_reg_mr", "nearest is 'call'");
    assert_refused("call=ibv_regmr errno=ENOMEM", "nearest is 'ibv_reg_mr'");
    assert_refused("call=ibv_reg_mr errno=ENOMME", "'ENOMME' is not an errno; the nearest is 'ENOMEM'");
    assert_refused("call=ibv_reg_mr errno=ENOMEM counts=2", "nearest is 'count'");
    assert_refused("limit=max_qq value=1", "nearest is 'max_qp'");
}

static void what_cannot_be_meant_is_refused(void **state)
{
    assert_refused("", "empty");
    assert_refused("call", "needs '=' and a call that");
    assert_refused("event", "'event' needs '=' and an event that can be injected");
    assert_refused("call=ibv_reg_mr", "needs the error");
    assert_refused("limit=max_qp", "needs the limit");
    assert_refused("limit=max_qp value=4 n=2", "no meaning");
    assert_refused("limit=max_qp value=4 errno=ENOMEM", "no meaning");
    assert_refused("call=ibv_reg_mr errno=ENOMEM n=0", "not a number");
    assert_refused("call=ibv_reg_mr errno=ENOMEM n=4294967296", "not a number");
    assert_refused("call=ibv_reg_mr errno=ENOMEM n=", "not a number");
    assert_refused("call=ibv_reg_mr errno=ENOMEM n", "needs '='");
    assert_refused("call=ibv_reg_mr errno=ENOMEM n=1 n=2", "twice");
    assert_refused("call=ibv_reg_mr errno=0", "errno");
    assert_refused("call=ibv_reg_mr errno=4096", "errno");
    assert_refused("call=ibv_reg_mr errno=ENOMEM percent=0", "not a number");
    assert_refused("call=ibv_reg_mr errno=ENOMEM percent=101", "not a number");
    assert_refused("call=ibv_reg_mr errno=ENOMEM percent=1 n=2", "'percent' cannot be combined with");
    assert_refused("call=ibv_reg_mr errno=ENOMEM seed=1", "'percent' only");
}

static void only_completions_that_can_arise_are_read(void **state)
{
    assert_read("completion=REM_ACCESS_ERR opcode=rdma_write qp=2 n=5");
    assert_int_equal(rule.opcodes, 1u << IBV_WR_RDMA_WRITE | 1u << IBV_WR_RDMA_WRITE_WITH_IMM);
    assert_int_equal(rule.qp, 2);
    assert_read("completion=LOC_LEN_ERR side=receive");
    assert_read("completion=never opcode=BIND_MW");
    assert_refused("completion=REM_ACCESS_ERR opcode=SEND", "cannot end with");
    assert_refused("completion=RNR_RETRY_EXC_ERR opcode=RDMA_WRITE", "cannot end with");
    assert_refused("completion=MW_BIND_ERR opcode=ATOMIC", "cannot end with");
    assert_refused("completion=REM_OP_ERR", "comes from the peer");
    assert_refused("completion=REM_ACCESS_ERR side=receive", "no receive");
    assert_refused("completion=LOC_LEN_ERR side=receive opcode=SEND", "no meaning");
    assert_refused("completion=WR_FLUSH", "nearest is");
    assert_refused("call=ibv_reg_mr errno=EIO opcode=SEND", "no meaning");
}

static void an_event_needs_the_object_of_its_call(void **state)
{
    assert_read("event=qp_fatal");
    assert_int_equal(rule.at, CALL_POST_SEND);
    assert_read("event=srq_limit n=4");
    assert_int_equal(rule.at, CALL_POST_SRQ_RECV);
    assert_read("event=device_fatal at=ibv_reg_mr n=2");
    assert_refused("event=qp_fatal at=ibv_reg_mr", "happens to a QP");
    assert_refused("event=srq_limit at=ibv_post_send", "only possible with 'at=ibv_post_srq_recv'");
    assert_refused("event=gid_change at=ibv_reg_mr qp=1", "no meaning");
    assert_read("event=port_down time=2s n=5");
    assert_int_equal(rule.time, 2000000000);
    assert_read("event=port_up at=ibv_post_recv");
    assert_refused("event=port_downn", "nearest is 'port_down'");
    assert_refused("event=port_up time=2s", "'time' has no meaning with 'event=port_up'");
    assert_refused("event=port_down qp=2 at=ibv_reg_mr", "no meaning");
}

static void packets_are_of_a_class(void **state)
{
    assert_read("packet=drop percent=10 of=requests seed=5");
    assert_int_equal(rule.of, INJECT_REQUESTS);
    assert_refused("packet=drip", "nearest is 'drop'");
    assert_refused("packet=drop of=reqests", "nearest is 'requests'");
    assert_refused("packet=drop errno=EIO", "no meaning");
}

static void connections_have_keys_of_their_own(void **state)
{
    assert_read("cm=ADDR_ERROR");
    assert_int_equal(rule.error, ETIMEDOUT);
    assert_read("cm=route_error errno=ENETUNREACH n=2");
    assert_int_equal(rule.error, ENETUNREACH);
    assert_read("cm=REJECTED");
    assert_int_equal(rule.value, 28);
    assert_read("cm=REJECTED reason=stale_connection side=passive");
    assert_int_equal(rule.value, 10);
    assert_int_equal(rule.side, INJECT_PASSIVE);
    assert_read("cm=REJECTED reason=33");
    assert_int_equal(rule.value, 33);
    assert_read("cm=DISCONNECTED time=200ms");
    assert_read("cm=DISCONNECTED n=1000 qp=2");
    assert_int_equal(rule.at, CALL_POST_SEND);
    assert_refused("cm=REJECT", "nearest is 'REJECTED'");
    assert_refused("cm=REJECTED reason=stale_conection", "nearest is 'STALE_CONNECTION'");
    assert_refused("cm=REJECTED reason=65536", "is not a reason of a REJ");
    assert_refused("cm=REJECTED errno=EIO", "'errno' has no meaning with 'cm=REJECTED'");
    assert_refused("cm=REJECTED side=send", "nearest is");
    assert_refused("cm=UNREACHABLE side=passive", "no meaning");
    assert_refused("cm=ADDR_ERROR device=softhca0", "no meaning");
    assert_refused("cm=DISCONNECTED at=ibv_reg_mr", "has none");
    assert_refused("cm=DISCONNECTED time=2s at=ibv_post_send", "'time' cannot be combined with");
}

static void packets_that_wait_say_for_what(void **state)
{
    assert_read("packet=delay time=250us count=all");
    assert_int_equal(rule.time, 250000);
    assert_read("packet=reorder by=3");
    assert_int_equal(rule.value, 3);
    assert_int_equal(rule.time, 10000000);
    assert_read("packet=reorder by=1 time=2s");
    assert_int_equal(rule.time, 2000000000);
    assert_read("packet=rate limit=64kbit of=requests");
    assert_int_equal(rule.value, 64000);
    assert_true(inject_strikes(&rule, 5, &(struct inject_point){0})); /* all of them */
    assert_read("packet=mark percent=5");
    assert_refused("packet=delay", "needs 'time', for example 'time=5ms'");
    assert_refused("packet=reorder", "needs 'by', for example 'by=3'");
    assert_refused("packet=rate", "needs 'limit', for example 'limit=10Mbit'");
    assert_refused("packet=delay time=5", "not a time");
    assert_refused("packet=delay time=0ms", "not a time");
    assert_refused("packet=delay time=61min", "not a time");
    assert_refused("packet=delay time=9999999999s", "not a time");
    assert_refused("packet=rate limit=10", "not a rate");
    assert_refused("packet=rate limit=1001Gbit", "not a rate");
    assert_refused("packet=reorder by=0", "not a number");
    assert_refused("packet=drop time=5ms", "no meaning with 'packet=drop'");
    assert_refused("packet=mark by=5", "no meaning with 'packet=mark'");
    assert_refused("packet=rate limit=1Gbit percent=5", "no meaning with 'packet=rate'");
    assert_refused("limit=max_qp value=4 limit=5Mbit", "no meaning with 'limit='");
}

static void a_rule_is_for_the_processes_that_it_names(void **state)
{
    assert_read("limit=max_qp value=4 exe=server");
    assert_true(inject_is_for_process(&rule, "server", 5));
    assert_false(inject_is_for_process(&rule, "serve", 5));
    assert_read("limit=max_qp value=4 pid=7");
    assert_true(inject_is_for_process(&rule, "server", 7));
    assert_false(inject_is_for_process(&rule, "server", 5));
}

static void a_list_is_split_at_semicolons_and_lines(void **state)
{
    const char *text = "# two\n call=a ; limit=b \r\n\n;; event=c # end\n#x";
    static const char *const parts[] = {"call=a", "limit=b", "event=c"};
    size_t length;

    for (size_t i = 0; i < array_size(parts); i++) {
        length = inject_next(&text);
        assert_int_equal(length, strlen(parts[i]));
        assert_memory_equal(text, parts[i], length);
        text += length;
    }
    assert_int_equal(inject_next(&text), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_fails_once_unless_it_says_more),
        cmocka_unit_test(n_count_and_every_select_by_counting),
        cmocka_unit_test(chance_is_a_function_of_seed_and_point),
        cmocka_unit_test(an_unknown_word_names_the_nearest),
        cmocka_unit_test(what_cannot_be_meant_is_refused),
        cmocka_unit_test(only_completions_that_can_arise_are_read),
        cmocka_unit_test(an_event_needs_the_object_of_its_call),
        cmocka_unit_test(packets_are_of_a_class),
        cmocka_unit_test(packets_that_wait_say_for_what),
        cmocka_unit_test(connections_have_keys_of_their_own),
        cmocka_unit_test(a_rule_is_for_the_processes_that_it_names),
        cmocka_unit_test(a_list_is_split_at_semicolons_and_lines),
    };

    return run_unit_tests("inject", tests);
}
