/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The list of tagged buffers: order, masks, handles, and the count of unexpected messages. */
#include "unit.h"

#include <errno.h>
#include <infiniband/tm_types.h>
#include <stdlib.h>
#include <string.h>

#include "transport/tags.h"
#include "wire/tmh.h"

#define ALL UINT64_MAX
enum { ROOM = 8 };

static struct tag_entry entries[ROOM];
static struct tag_list list;

static int set_up(void **state)
{
    memset(entries, 0, sizeof(entries));
    tag_list_init(&list, entries, ROOM);
    return 0;
}

static uint32_t add(uint64_t tag, uint64_t mask)
{
    struct tag_entry *entry = tag_list_add(&list, tag, mask);

    assert_non_null(entry);
    return tag_list_handle(&list, entry);
}

static bool takes(uint64_t tag, uint32_t handle)
{
    struct tag_entry *entry = tag_list_match(&list, tag);
    bool right = entry && tag_list_handle(&list, entry) == handle;

    if (entry)
        tag_list_release(&list, entry);
    return right;
}

static void the_first_that_fits_takes_the_message(void **state)
{
    uint32_t other = add(7, ALL), wide = add(0x10, 0xf0), narrow = add(0x12, ALL);

    assert_true(takes(0x12, wide));
    assert_true(takes(0x12, narrow));
    assert_null(tag_list_match(&list, 0x12));
    assert_true(takes(7, other));
    assert_null(tag_list_match(&list, 7));
    /* The tag is not masked: bits outside of the mask match nothing. */
    add(0x13, 0xf0);
    assert_null(tag_list_match(&list, 0x13));
}

static void no_more_than_there_is_room_for(void **state)
{
    uint32_t handle[ROOM];

    for (uint32_t i = 0; i < ROOM; i++)
        handle[i] = add(i, ALL);
    assert_null(tag_list_add(&list, 9, ALL));
    assert_int_equal(tag_list_remove(&list, handle[3]), 0);
    handle[3] = add(3, ALL);
    assert_null(tag_list_add(&list, 9, ALL));
    for (uint32_t i = 0; i < ROOM; i++)
        assert_true(takes(i, handle[i]));
}

static void a_handle_names_one_buffer_only(void **state)
{
    uint32_t first = add(1, ALL), second;
    struct tag_entry *entry;

    assert_int_equal(tag_list_remove(&list, first + 1), -EINVAL);
    assert_int_equal(tag_list_remove(&list, first), 0);
    assert_int_equal(tag_list_remove(&list, first), -ENOENT);
    second = add(1, ALL);
    assert_int_not_equal(first, second);
    assert_int_equal(tag_list_remove(&list, first), -ENOENT);
    entry = tag_list_match(&list, 1);
    assert_non_null(entry);
    assert_int_equal(tag_list_remove(&list, second), -ENOENT); /* it is somebody's */
    tag_list_release(&list, entry);
    assert_int_equal(tag_list_remove(&list, second), -ENOENT);
}

static void what_is_added_out_of_sync_sleeps(void **state)
{
    uint32_t before = add(1, ALL), after;

    tag_list_count(&list);
    assert_false(tag_list_in_sync(&list));
    after = add(2, ALL);
    assert_true(takes(1, before)); /* what was there goes on */
    assert_null(tag_list_match(&list, 2));
    tag_list_count(&list);
    tag_list_sync(&list, 1); /* one behind */
    assert_null(tag_list_match(&list, 2));
    tag_list_sync(&list, 2);
    assert_true(takes(2, after));
}

static void one_that_sleeps_can_be_removed(void **state)
{
    uint32_t sleeps, other;

    tag_list_count(&list);
    sleeps = add(1, ALL);
    other = add(1, ALL);
    assert_int_equal(tag_list_remove(&list, sleeps), 0);
    tag_list_sync(&list, 1);
    assert_true(takes(1, other));
    assert_int_equal(list.dormant, 0);
}

static void a_message_that_came_to_nothing_is_not_counted(void **state)
{
    uint32_t sleeps;

    tag_list_count(&list);
    sleeps = add(1, ALL);
    tag_list_discount(&list);
    assert_true(tag_list_in_sync(&list));
    assert_true(takes(1, sleeps));
}

static void counts_wrap(void **state)
{
    uint32_t handle;

    list.unexpected = list.handled = UINT32_MAX;
    tag_list_count(&list);
    handle = add(1, ALL);
    tag_list_sync(&list, 0);
    assert_true(takes(1, handle));
}

/* Against a model that is nothing but an array in order. */
static void as_a_simple_list_would(void **state)
{
    struct model {
        uint64_t tag, mask;
        uint32_t handle;
        bool asleep;
    } model[ROOM];
    unsigned count = 0;
    uint32_t unexpected = 0, handled = 0;

    srand(1);
    for (unsigned step = 0; step < 100000; step++) {
        unsigned what = (unsigned)rand() % 8, at;
        uint64_t tag = (unsigned)rand() % 4;

        if (what < 3) {
            struct tag_entry *entry = tag_list_add(&list, tag, rand() & 1 ? ALL : tag);

            assert_int_equal(entry != NULL, count < ROOM);
            if (entry)
                model[count++] =
                    (struct model){tag, entry->mask, tag_list_handle(&list, entry), unexpected != handled};
        } else if (what < 6) {
            struct tag_entry *entry = tag_list_match(&list, tag);

            for (at = 0; at < count && (model[at].asleep || (tag & model[at].mask) != model[at].tag); at++) {
            }
            assert_int_equal(entry != NULL, at < count);
            if (!entry) {
                tag_list_count(&list);
                unexpected++;
                continue;
            }
            assert_int_equal(tag_list_handle(&list, entry), model[at].handle);
            tag_list_release(&list, entry);
            memmove(&model[at], &model[at + 1], (--count - at) * sizeof(model[0]));
        } else if (what == 6 && count) {
            at = (unsigned)rand() % count;
            assert_int_equal(tag_list_remove(&list, model[at].handle), 0);
            memmove(&model[at], &model[at + 1], (--count - at) * sizeof(model[0]));
        } else {
            handled = unexpected - (unsigned)rand() % 2;
            tag_list_sync(&list, handled);
            for (at = 0; at < count && handled == unexpected; at++)
                model[at].asleep = false;
        }
    }
}

static void headers_are_those_of_the_specification(void **state)
{
    const struct tmh tmh = {.opcode = TMH_EAGER, .app_ctx = 0x01020304, .tag = 0x1122334455667788};
    uint8_t bytes[TMH_SIZE];
    const uint8_t expected[TMH_SIZE] = {3,    0,    0,    0,    1,    2,    3,    4,
                                        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88};
    const uint8_t rvh_bytes[RVH_SIZE] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    struct tmh back;
    struct rvh rvh;

    assert_int_equal(sizeof(struct ibv_tmh), TMH_SIZE);
    assert_int_equal(sizeof(struct ibv_rvh), RVH_SIZE);
    assert_int_equal(TMH_NO_TAG, IBV_TMH_NO_TAG);
    assert_int_equal(TMH_RENDEZVOUS, IBV_TMH_RNDV);
    assert_int_equal(TMH_FIN, IBV_TMH_FIN);
    assert_int_equal(TMH_EAGER, IBV_TMH_EAGER);
    tmh_encode(&tmh, bytes);
    assert_memory_equal(bytes, expected, sizeof(bytes));
    back = tmh_decode(bytes);
    assert_int_equal(back.opcode, tmh.opcode);
    assert_int_equal(back.app_ctx, tmh.app_ctx);
    assert_true(back.tag == tmh.tag);
    rvh = rvh_decode(rvh_bytes);
    assert_true(rvh.address == 0x0001020304050607);
    assert_int_equal(rvh.rkey, 0x08090a0b);
    assert_int_equal(rvh.length, 0x0c0d0e0f);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_first_that_fits_takes_the_message, set_up),
        cmocka_unit_test_setup(no_more_than_there_is_room_for, set_up),
        cmocka_unit_test_setup(a_handle_names_one_buffer_only, set_up),
        cmocka_unit_test_setup(what_is_added_out_of_sync_sleeps, set_up),
        cmocka_unit_test_setup(one_that_sleeps_can_be_removed, set_up),
        cmocka_unit_test_setup(a_message_that_came_to_nothing_is_not_counted, set_up),
        cmocka_unit_test_setup(counts_wrap, set_up),
        cmocka_unit_test_setup(as_a_simple_list_would, set_up),
        cmocka_unit_test(headers_are_those_of_the_specification),
    };

    return run_unit_tests("tags", tests);
}
