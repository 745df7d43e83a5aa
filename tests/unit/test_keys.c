/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Keys and access checks: verbs.md §4.1 (lkey and rkey differ) to §4.3. */
#include "keys_fixture.h"

#include <pthread.h>
#include <stdatomic.h>

/* --- keys --- */

static void lkey_and_rkey_differ_whatever_the_random_bits(void **state)
{
    for (uint32_t random = 0; random < 1u << 16; random++) {
        keys_publish_region(&table, SLOT, KEY_REGION, PD, ALL, IOVA, LENGTH, ADDRESS, random * 65537u);
        assert_int_not_equal(region()->lkey, region()->rkey);
    }
}

static void a_key_names_its_slot(void **state)
{
    static const uint32_t slots[] = {0, 1, SLOT, LIMIT_KEY_SLOTS - 1};

    for (size_t i = 0; i < array_size(slots); i++) {
        keys_publish_region(&table, slots[i], KEY_REGION, PD, ALL, IOVA, LENGTH, ADDRESS, 0xffffffff);
        assert_int_equal(key_slot(table.entry[slots[i]].lkey), slots[i]);
        assert_int_equal(key_slot(table.entry[slots[i]].rkey), slots[i]);
        keys_withdraw(&table, slots[i]);
    }
}

static void no_key_is_zero(void **state)
{
    keys_publish_region(&table, 0, KEY_REGION, PD, ALL, IOVA, LENGTH, ADDRESS, 0);
    assert_int_not_equal(table.entry[0].lkey, 0);
    assert_int_not_equal(table.entry[0].rkey, 0);
}

static void key_zero_is_never_valid(void **state)
{
    keys_publish_mw(&table, 0, KEY_MW_TYPE_1, PD, 0);
    assert_protection(keys_check_local(&table, PD, 0, IOVA, 1, false, &range));
    assert_remote_access(remote(0, IOVA, 1, REMOTE_READ));
}

static void a_reused_slot_gets_new_keys_even_from_the_same_random_bits(void **state)
{
    const uint32_t lkey = region()->lkey, rkey = region()->rkey;

    keys_withdraw(&table, SLOT);
    publish(ALL);
    assert_int_not_equal(region()->lkey, lkey);
    assert_int_not_equal(region()->rkey, rkey);
    assert_protection(keys_check_local(&table, PD, lkey, IOVA, 1, false, &range));
    assert_remote_access(remote(rkey, IOVA, 1, REMOTE_READ));
}

static void every_wrong_bit_of_a_key_is_noticed(void **state)
{
    for (unsigned bit = 0; bit < 32; bit++) {
        assert_protection(keys_check_local(&table, PD, region()->lkey ^ 1u << bit, IOVA, 1, false, &range));
        assert_remote_access(remote(region()->rkey ^ 1u << bit, IOVA, 1, REMOTE_READ));
    }
}

/* --- local --- */

static void an_address_is_translated_from_iova_to_memory(void **state)
{
    assert_ok(local(IOVA + 0x123, 4, true));
    assert_true(range.address == ADDRESS + 0x123);
    assert_int_equal(range.slot, SLOT);
    assert_int_equal(range.kind, KEY_REGION);
    assert_int_equal(range.generation, region()->generation);
}

static void an_rkey_is_no_lkey(void **state)
{
    assert_protection(keys_check_local(&table, PD, region()->rkey, IOVA, 1, false, &range));
}

static void a_local_key_of_another_pd_is_refused(void **state)
{
    assert_protection(keys_check_local(&table, OTHER_PD, region()->lkey, IOVA, 1, false, &range));
}

static void keys_say_whether_others_can_fetch(void **state)
{
    for (uint32_t random = 0; random < 16; random++) {
        keys_publish_region(&table, SLOT, KEY_REGION, PD, ALL, IOVA, LENGTH, ADDRESS, random << 28);
        assert_false((region()->lkey | region()->rkey) & KEY_COPIED);
        keys_publish_region(&table, SLOT, KEY_REGION, PD, ALL | ACCESS_COPIED, IOVA, LENGTH, ADDRESS,
                            random << 28);
        assert_true(region()->lkey & region()->rkey & KEY_COPIED);
        assert_int_equal(key_slot(region()->lkey), SLOT);
        assert_int_equal(key_slot(region()->rkey), SLOT);
        assert_ok(local(IOVA, 1, true));
        assert_ok(remote(region()->rkey, IOVA, 1, REMOTE_READ));
        keys_publish_mw(&table, WINDOW, KEY_MW_TYPE_2, PD, random << 28);
        assert_false(window()->rkey & KEY_COPIED);
    }
}

static void local_reading_needs_no_right(void **state)
{
    publish(0);
    assert_ok(local(IOVA, 1, false));
}

static void local_writing_needs_local_write(void **state)
{
    publish(IBV_ACCESS_REMOTE_READ);
    assert_protection(local(IOVA, 1, true));
    publish(IBV_ACCESS_LOCAL_WRITE);
    assert_ok(local(IOVA, 1, true));
}

static void a_local_range_must_be_inside(void **state)
{
    assert_ok(local(IOVA, LENGTH, true));
    assert_ok(local(IOVA + LENGTH - 1, 1, true));
    assert_protection(local(IOVA, LENGTH + 1, true));
    assert_protection(local(IOVA - 1, 1, true));
    assert_protection(local(IOVA - 1, LENGTH, true));
    assert_protection(local(IOVA + LENGTH - 1, 2, true));
    assert_protection(local(IOVA + LENGTH, 1, true));
    assert_protection(local(0, UINT32_MAX, true));
}

static void a_range_that_wraps_is_outside(void **state)
{
    const uint64_t top = UINT64_MAX - LENGTH + 1;

    assert_protection(local(UINT64_MAX, 1, true));
    assert_protection(local(UINT64_MAX - 1, UINT32_MAX, true));
    keys_publish_region(&table, SLOT, KEY_REGION, PD, ALL, top, LENGTH, ADDRESS, 3);
    assert_ok(local(top, LENGTH, true));
    assert_ok(local(UINT64_MAX, 1, true));
    assert_protection(local(UINT64_MAX, 2, true));
    assert_protection(local(top, LENGTH + 1, true));
    assert_protection(local(0, 1, true));
    assert_remote_access(remote(region()->rkey, UINT64_MAX, 2, REMOTE_WRITE));
    assert_remote_access(remote(region()->rkey, 0, 1, REMOTE_WRITE));
}

static void length_zero_needs_no_key(void **state)
{
    range.address = 1;
    assert_ok(keys_check_local(&table, OTHER_PD, 0xdeadbeef, 1, 0, true, &range));
    assert_true(range.address == 0);
    assert_true(keys_is_current(&table, &range));
    range.address = 1;
    assert_ok(keys_check_remote(&table, OTHER_PD, 0, 0xdeadbeef, 1, 0, REMOTE_WRITE, &range));
    assert_true(range.address == 0);
    assert_ok(keys_check_remote(&table, OTHER_PD, 0, 0xdeadbeef, 1, 0, REMOTE_READ, &range));
}

static void a_withdrawn_region_is_gone(void **state)
{
    const uint32_t lkey = region()->lkey, rkey = region()->rkey;

    keys_withdraw(&table, SLOT);
    assert_protection(keys_check_local(&table, PD, lkey, IOVA, 1, false, &range));
    assert_remote_access(remote(rkey, IOVA, 1, REMOTE_READ));
}

static void a_zero_based_region_counts_from_its_start(void **state)
{
    publish(ALL | IBV_ACCESS_ZERO_BASED);
    assert_ok(local(0x10, 1, true));
    assert_true(range.address == ADDRESS + 0x10);
    assert_protection(local(IOVA, 1, true));
    assert_ok(remote(region()->rkey, LENGTH - 1, 1, REMOTE_WRITE));
    assert_remote_access(remote(region()->rkey, LENGTH - 1, 2, REMOTE_WRITE));
}

static void a_null_region_takes_any_local_range(void **state)
{
    keys_publish_region(&table, NULL_SLOT, KEY_REGION_NULL, PD, 0, 0, 0, 0, 77);
    const uint32_t lkey = table.entry[NULL_SLOT].lkey;

    assert_ok(keys_check_local(&table, PD, lkey, 0x123456789, UINT32_MAX, true, &range));
    assert_int_equal(range.kind, KEY_REGION_NULL);
    assert_true(range.address == 0);
    assert_ok(keys_check_local(&table, PD, lkey, 0, 1, false, &range));
    assert_protection(keys_check_local(&table, OTHER_PD, lkey, 0, 1, false, &range));
}

static void a_null_region_has_no_remote_key(void **state)
{
    keys_publish_region(&table, NULL_SLOT, KEY_REGION_NULL, PD, ALL, 0, 0, 0, 77);
    assert_int_equal(table.entry[NULL_SLOT].rkey, 0);
    assert_remote_access(remote(table.entry[NULL_SLOT].lkey, 0, 1, REMOTE_READ));
    assert_remote_access(remote(table.entry[NULL_SLOT].lkey | KEY_REMOTE, 0, 1, REMOTE_READ));
    assert_remote_access(remote(table.entry[NULL_SLOT].rkey, 0, 1, REMOTE_READ));
}

static void an_on_demand_region_is_checked_like_any_other(void **state)
{
    keys_publish_region(&table, SLOT, KEY_REGION_ON_DEMAND, PD, ALL, 0, UINT64_MAX, 0, 5);
    assert_ok(local(0x7fffffffe000, 4096, true));
    assert_true(range.address == 0x7fffffffe000);
    assert_ok(remote(region()->rkey, 0x7fffffffe000, 4096, REMOTE_WRITE));
}

/* --- rereg --- */

static void a_changed_region_keeps_its_keys_and_takes_the_new_range(void **state)
{
    const uint32_t lkey = region()->lkey, rkey = region()->rkey;

    keys_change_region(&table, SLOT, OTHER_PD, IBV_ACCESS_REMOTE_READ, 0, 16, 0x5000);
    assert_int_equal(region()->lkey, lkey);
    assert_int_equal(region()->rkey, rkey);
    assert_protection(local(IOVA, 1, false));
    assert_ok(keys_check_local(&table, OTHER_PD, lkey, 15, 1, false, &range));
    assert_true(range.address == 0x500f);
    assert_protection(keys_check_local(&table, OTHER_PD, lkey, 15, 1, true, &range));
}

static void every_change_of_meaning_is_noticed_after_the_access(void **state)
{
    assert_ok(local(IOVA, 1, true));
    assert_true(keys_is_current(&table, &range));
    keys_change_region(&table, SLOT, PD, ALL, IOVA, LENGTH, ADDRESS);
    assert_false(keys_is_current(&table, &range));
    assert_ok(local(IOVA, 1, true));
    keys_withdraw(&table, SLOT);
    assert_false(keys_is_current(&table, &range));
}

/* --- remote --- */

static void an_lkey_is_no_rkey(void **state)
{
    assert_remote_access(remote(region()->lkey, IOVA, 1, REMOTE_READ));
}

static void a_remote_key_of_another_pd_is_refused(void **state)
{
    assert_remote_access(
        keys_check_remote(&table, OTHER_PD, ALL, region()->rkey, IOVA, 1, REMOTE_READ, &range));
}

static void each_operation_needs_its_flag_on_the_qp(void **state)
{
    static const uint32_t flags[] = {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
                                     IBV_ACCESS_REMOTE_ATOMIC};

    for (enum remote_operation operation = REMOTE_WRITE; operation <= REMOTE_ATOMIC; operation++) {
        assert_ok(
            keys_check_remote(&table, PD, flags[operation], region()->rkey, IOVA, 8, operation, &range));
        assert_invalid(keys_check_remote(&table, PD, ALL & ~flags[operation], region()->rkey, IOVA, 8,
                                         operation, &range));
    }
}

static void each_operation_needs_its_flag_on_the_region(void **state)
{
    static const uint32_t flags[] = {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ,
                                     IBV_ACCESS_REMOTE_ATOMIC};

    for (enum remote_operation operation = REMOTE_WRITE; operation <= REMOTE_ATOMIC; operation++) {
        publish(flags[operation] | IBV_ACCESS_LOCAL_WRITE);
        assert_ok(remote(region()->rkey, IOVA, 8, operation));
        publish(ALL & ~flags[operation]);
        assert_remote_access(remote(region()->rkey, IOVA, 8, operation));
    }
}

static void the_flag_of_the_qp_is_looked_at_before_the_key(void **state)
{
    assert_invalid(keys_check_remote(&table, PD, 0, 0xdeadbeef, IOVA, 8, REMOTE_WRITE, &range));
}

static void a_remote_range_must_be_inside(void **state)
{
    const uint32_t rkey = region()->rkey;

    assert_ok(remote(rkey, IOVA, LENGTH, REMOTE_WRITE));
    assert_true(range.address == ADDRESS);
    assert_remote_access(remote(rkey, IOVA, LENGTH + 1, REMOTE_WRITE));
    assert_remote_access(remote(rkey, IOVA - 1, 2, REMOTE_READ));
    assert_remote_access(remote(rkey, IOVA + LENGTH, 1, REMOTE_READ));
    assert_remote_access(remote(rkey, UINT64_MAX, UINT32_MAX, REMOTE_READ));
}

static void an_atomic_must_be_aligned(void **state)
{
    for (unsigned offset = 1; offset < 8; offset++)
        assert_invalid(remote(region()->rkey, IOVA + offset, 8, REMOTE_ATOMIC));
    assert_ok(remote(region()->rkey, IOVA + 8, 8, REMOTE_ATOMIC));
}

static void an_atomic_must_be_aligned_in_memory_too(void **state)
{
    keys_publish_region(&table, SLOT, KEY_REGION, PD, ALL, 0, LENGTH, ADDRESS + 4, 9);
    assert_invalid(remote(region()->rkey, 8, 8, REMOTE_ATOMIC));
}

static void an_atomic_is_eight_bytes(void **state)
{
    assert_invalid(remote(region()->rkey, IOVA, 0, REMOTE_ATOMIC));
    assert_invalid(remote(region()->rkey, IOVA, 4, REMOTE_ATOMIC));
    assert_invalid(remote(region()->rkey, IOVA, 16, REMOTE_ATOMIC));
}

static void access_comes_before_alignment(void **state)
{
    assert_remote_access(remote(region()->rkey, IOVA + LENGTH + 1, 8, REMOTE_ATOMIC));
}

/* --- readers without a lock --- */

static void an_entry_is_read_as_a_whole(void **state)
{
    struct key_view view;

    assert_true(keys_read(&table, SLOT, &view));
    assert_int_equal(view.generation, region()->generation);
    assert_int_equal(view.kind, KEY_REGION);
    assert_int_equal(view.lkey, region()->lkey);
    assert_int_equal(view.rkey, region()->rkey);
    assert_int_equal(view.pd, PD);
    assert_int_equal(view.access, ALL);
    assert_true(view.iova == IOVA && view.length == LENGTH && view.address == ADDRESS);
}

static void *finish_change(void *argument)
{
    atomic_fetch_add(&region()->generation, 1);
    return NULL;
}

static void a_reader_waits_for_an_owner_in_the_middle_of_a_change(void **state)
{
    pthread_t owner;
    struct key_view view;

    atomic_fetch_or(&region()->generation, 1);
    assert_int_equal(pthread_create(&owner, NULL, finish_change, NULL), 0);
    /* Bounded, and the owner may get no processor for so long: then the reader refuses, and asks again here.
     */
    while (!keys_read(&table, SLOT, &view))
        ;
    pthread_join(owner, NULL);
    assert_int_equal(view.generation & 1, 0);
    assert_ok(local(IOVA, 1, true));
}

static void an_entry_whose_owner_died_in_the_middle_of_a_change_is_refused(void **state)
{
    struct key_view view;

    atomic_fetch_or(&region()->generation, 1);
    assert_false(keys_read(&table, SLOT, &view));
    assert_protection(local(IOVA, 1, true));
    assert_remote_access(remote(region()->rkey, IOVA, 1, REMOTE_READ));
}

static atomic_bool stop;

/* Two meanings under one key: [IOVA, +LENGTH) at ADDRESS and [IOVA, +2 LENGTH) at 2 ADDRESS. */
static void *change_region(void *argument)
{
    for (unsigned i = 0; i < 100000; i++)
        keys_change_region(&table, SLOT, PD, ALL, IOVA, i & 1 ? LENGTH : 2 * LENGTH,
                           i & 1 ? ADDRESS : 2 * (uint64_t)ADDRESS);
    atomic_store(&stop, true);
    return NULL;
}

static void a_reader_sees_the_old_meaning_or_the_new_and_never_a_mixture(void **state)
{
    pthread_t owner;
    unsigned mixtures = 0, refusals = 0;

    atomic_store(&stop, false);
    assert_int_equal(pthread_create(&owner, NULL, change_region, NULL), 0);
    while (!atomic_load(&stop)) {
        /* In both meanings: never refused. */
        if (local(IOVA + 8, 8, true) != VERDICT_OK)
            refusals++;
        else if (range.address != ADDRESS + 8 && range.address != 2 * (uint64_t)ADDRESS + 8)
            mixtures++;
        /* Only in the longer one. */
        if (remote(region()->rkey, IOVA + LENGTH, 8, REMOTE_READ) == VERDICT_OK &&
            range.address != 2 * (uint64_t)ADDRESS + LENGTH)
            mixtures++;
    }
    pthread_join(owner, NULL);
    assert_int_equal(mixtures, 0);
    assert_int_equal(refusals, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(lkey_and_rkey_differ_whatever_the_random_bits),
        TEST(a_key_names_its_slot),
        TEST(no_key_is_zero),
        TEST(key_zero_is_never_valid),
        TEST(a_reused_slot_gets_new_keys_even_from_the_same_random_bits),
        TEST(every_wrong_bit_of_a_key_is_noticed),
        TEST(an_address_is_translated_from_iova_to_memory),
        TEST(an_rkey_is_no_lkey),
        TEST(a_local_key_of_another_pd_is_refused),
        TEST(keys_say_whether_others_can_fetch),
        TEST(local_reading_needs_no_right),
        TEST(local_writing_needs_local_write),
        TEST(a_local_range_must_be_inside),
        TEST(a_range_that_wraps_is_outside),
        TEST(length_zero_needs_no_key),
        TEST(a_withdrawn_region_is_gone),
        TEST(a_zero_based_region_counts_from_its_start),
        TEST(a_null_region_takes_any_local_range),
        TEST(a_null_region_has_no_remote_key),
        TEST(an_on_demand_region_is_checked_like_any_other),
        TEST(a_changed_region_keeps_its_keys_and_takes_the_new_range),
        TEST(every_change_of_meaning_is_noticed_after_the_access),
        TEST(an_lkey_is_no_rkey),
        TEST(a_remote_key_of_another_pd_is_refused),
        TEST(each_operation_needs_its_flag_on_the_qp),
        TEST(each_operation_needs_its_flag_on_the_region),
        TEST(the_flag_of_the_qp_is_looked_at_before_the_key),
        TEST(a_remote_range_must_be_inside),
        TEST(an_atomic_must_be_aligned),
        TEST(an_atomic_must_be_aligned_in_memory_too),
        TEST(an_atomic_is_eight_bytes),
        TEST(access_comes_before_alignment),
        TEST(an_entry_is_read_as_a_whole),
        TEST(a_reader_waits_for_an_owner_in_the_middle_of_a_change),
        TEST(an_entry_whose_owner_died_in_the_middle_of_a_change_is_refused),
        TEST(a_reader_sees_the_old_meaning_or_the_new_and_never_a_mixture),
    };

    return run_unit_tests("keys", tests);
}
