/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A key table with one region, as the tests of keys and of windows begin with. */
#ifndef TESTS_UNIT_KEYS_FIXTURE_H
#define TESTS_UNIT_KEYS_FIXTURE_H

#include <stdbool.h>
#include <string.h>

#include "rules/keys.h"
#include "unit.h"

enum { PD = 7, OTHER_PD = 8, SLOT = 5, WINDOW = 6, OTHER_WINDOW = 9, NULL_SLOT = 11 };
#define IOVA    0x10000u
#define LENGTH  0x1000u
#define ADDRESS 0x7f0000002000u
#define ALL                                                                                                  \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |  \
     IBV_ACCESS_MW_BIND)

static struct key_table table;

static inline struct key_entry *region(void)
{
    return &table.entry[SLOT];
}

static inline struct key_entry *window(void)
{
    return &table.entry[WINDOW];
}

static inline void publish(uint32_t access)
{
    keys_publish_region(&table, SLOT, KEY_REGION, PD, access, IOVA, LENGTH, ADDRESS, 0x1234abcd);
}

static inline int setup(void **state)
{
    static const uint32_t used[] = {0, SLOT, WINDOW, OTHER_WINDOW, NULL_SLOT};

    for (size_t i = 0; i < array_size(used); i++)
        memset(&table.entry[used[i]], 0, sizeof(table.entry[0]));
    publish(ALL);
    return 0;
}

static struct memory_range range;

static inline enum verdict local(uint64_t address, uint32_t length, bool write)
{
    return keys_check_local(&table, PD, region()->lkey, address, length, write, &range);
}

static inline enum verdict remote(uint32_t rkey, uint64_t address, uint32_t length,
                                  enum remote_operation operation)
{
    return keys_check_remote(&table, PD, ALL, rkey, address, length, operation, &range);
}

#define assert_ok(call)            assert_int_equal(call, VERDICT_OK)
#define assert_protection(call)    assert_int_equal(call, VERDICT_LOCAL_PROTECTION)
#define assert_remote_access(call) assert_int_equal(call, VERDICT_REMOTE_ACCESS)
#define assert_invalid(call)       assert_int_equal(call, VERDICT_INVALID_REQUEST)

#define TEST(name) cmocka_unit_test_setup(name, setup)

#endif
