/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Structures of verbs.h that have grown between rdma-core 33 and 65 on 64-bit machines, by release: the header that the
 * library is built with agrees with the table, and with what the library itself declares. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/types.h"
#include "base/verbs.h"

#ifndef HEADER_RELEASE
#error "HEADER_RELEASE: the release of rdma-core that verbs.h is of"
#endif

#define NEWEST 65
/* The sizes of the table hold where pthread types have these. */
#define USUAL_PTHREAD (sizeof(pthread_mutex_t) == 40 && sizeof(pthread_cond_t) == 48)

static const struct row {
    const char *name;
    size_t here; /* in the header */
    struct {
        int since;
        size_t size;
    } sizes[5];
} table[] = {
    /* A newest member in what was padding changes no size. */
    {"ibv_device_attr_ex", sizeof(struct ibv_device_attr_ex), {{33, 400}}},
    {"ibv_dm", sizeof(struct ibv_dm), {{33, 32}}},
    {"ibv_port_attr", sizeof(struct ibv_port_attr), {{33, 52}, {49, 56}}},
    {"ibv_qp_ex", sizeof(struct ibv_qp_ex), {{33, 344}, {44, 352}, {45, 360}}},
    {"verbs_context", sizeof(struct verbs_context), {{33, 648}, {59, 672}, {62, 680}, {64, 696}}},
};

static size_t size_in(const struct row *row, int release)
{
    size_t size = 0;

    for (size_t i = 0; i < array_size(row->sizes) && row->sizes[i].since && row->sizes[i].since <= release;
         i++)
        size = row->sizes[i].size;
    return size;
}

static void the_header_is_as_the_table_says_for_its_release(void **state)
{
    if (!USUAL_PTHREAD)
        skip();
    for (size_t i = 0; i < array_size(table); i++) {
        print_message("%s of %d: %zu\n", table[i].name, HEADER_RELEASE, table[i].here);
        if (HEADER_RELEASE > NEWEST)
            assert_true(table[i].here >= size_in(&table[i], NEWEST));
        else
            assert_int_equal(table[i].here, size_in(&table[i], HEADER_RELEASE));
    }
}

static void our_declarations_have_all_of_the_newest(void **state)
{
    assert_true(sizeof(union newest_device_attr) >= size_in(&table[0], NEWEST));
    assert_true(sizeof(union newest_dm) >= size_in(&table[1], NEWEST));
    if (USUAL_PTHREAD)
        assert_true(sizeof(union newest_qp) >= size_in(&table[3], NEWEST));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_header_is_as_the_table_says_for_its_release),
        cmocka_unit_test(our_declarations_have_all_of_the_newest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
