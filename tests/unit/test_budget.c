/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/budget.h"

enum { LIMIT = 1200, GREEDY = 1001, SECOND = 1002, LAST = 2000, TOLD = 3000 };

static struct budget budget = BUDGET_INIT(budget, "things", "ask for fewer");

static uint32_t take_all(uid_t uid)
{
    uint32_t taken = 0;

    while (budget_take(&budget, uid, 1, LIMIT))
        taken++;
    return taken;
}

static void a_user_gets_what_is_free_and_leaves_as_much(void **state)
{
    uint32_t greedy = take_all(GREEDY), second = take_all(SECOND);

    assert_int_equal(greedy, LIMIT / 2);
    assert_int_equal(second, LIMIT / 4);
    budget_return(&budget, GREEDY, greedy);
    greedy = take_all(GREEDY);
    assert_true(greedy > second && greedy < LIMIT / 2);
    budget_return(&budget, GREEDY, greedy);
    budget_return(&budget, SECOND, second);
    assert_int_equal(budget.used, 0);
    assert_true(list_empty(&budget.users));
}

static void however_many_users_there_are_something_is_left(void **state)
{
    uint32_t taken[10];

    for (unsigned i = 0; i < 10; i++) {
        taken[i] = take_all(GREEDY + i);
        assert_true(taken[i] > 0);
        assert_true(budget.used < LIMIT);
    }
    for (unsigned i = 0; i < 10; i++)
        budget_return(&budget, GREEDY + i, taken[i]);
    assert_true(budget_take(&budget, LAST, LIMIT / 2, LIMIT));
    assert_false(budget_take(&budget, LAST, UINT32_MAX, LIMIT)); /* nor by a sum that wraps */
    budget_return(&budget, LAST, LIMIT / 2);
    assert_int_equal(budget.used, 0);
}

static void a_refusal_is_told_once_with_who_what_and_how_many(void **state)
{
    int words = memfd_create("stderr", MFD_CLOEXEC), out = dup(STDERR_FILENO);
    char text[4096] = "";
    uint32_t taken;

    dup2(words, STDERR_FILENO);
    taken = take_all(TOLD);
    for (unsigned i = 0; i < 10; i++)
        assert_false(budget_take(&budget, TOLD, 1, LIMIT));
    dup2(out, STDERR_FILENO);
    close(out);
    budget_return(&budget, TOLD, taken);
    assert_true(pread(words, text, sizeof(text) - 1, 0) > 0);
    close(words);
    assert_non_null(strstr(text, "limit per user reached: uid 3000 has 600 "));
    assert_non_null(strstr(text, "ask for fewer"));
    assert_true(strchr(text, '\n') == text + strlen(text) - 1);
}

static void each_thing_is_charged_to_its_user(void **state)
{
    enum { THINGS = 8, FOREIGN = THINGS / 2 };
    struct charge own[THINGS] = {{0}}, foreign[FOREIGN] = {{0}}, more = {0};

    for (unsigned i = 0; i < FOREIGN; i++)
        assert_true(budget_charge(&budget, GREEDY, THINGS, &foreign[i]));
    assert_false(budget_charge(&budget, GREEDY, THINGS, &more));
    assert_int_equal(more.kind, CHARGE_NONE);
    /* Whatever others have, our own user gets his. */
    for (unsigned i = 0; i < THINGS; i++)
        assert_true(i % 2 ? budget_charge_own(&budget, THINGS, &own[i])
                          : budget_charge(&budget, geteuid(), THINGS, &own[i]));
    assert_false(budget_charge(&budget, geteuid(), THINGS, &more));
    assert_int_equal(more.kind, CHARGE_NONE);
    assert_true(budget_charge(&budget, SECOND, THINGS, &more));
    budget_discharge(&budget, &more);
    budget_discharge(&budget, &more); /* of nobody by now */
    for (unsigned i = 0; i < THINGS; i++)
        budget_discharge(&budget, &own[i]);
    for (unsigned i = 0; i < FOREIGN; i++)
        budget_discharge(&budget, &foreign[i]);
    assert_int_equal(budget.own, 0);
    assert_int_equal(budget.used, 0);
    assert_true(list_empty(&budget.users));
}

static void descriptors_follow_the_limit_of_the_process(void **state)
{
    struct rlimit before, limit;
    uint32_t taken = 0;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){64, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (budget_take_descriptors(GREEDY, 2))
        taken += 2;
    assert_int_equal(taken, 16); /* half of what is for others, which is half of all */
    budget_return_descriptors(GREEDY, taken);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_user_gets_what_is_free_and_leaves_as_much),
        cmocka_unit_test(however_many_users_there_are_something_is_left),
        cmocka_unit_test(a_refusal_is_told_once_with_who_what_and_how_many),
        cmocka_unit_test(each_thing_is_charged_to_its_user),
        cmocka_unit_test(descriptors_follow_the_limit_of_the_process),
    };

    setenv("SOFTHCA_LOG", "warn", 1);
    return run_unit_tests("budget", tests);
}
