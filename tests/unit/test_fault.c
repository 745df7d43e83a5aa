/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Which mistake a refused access is (rules/fault.h). */
#include "keys_fixture.h"

#include "rules/fault.h"

static struct fault_record fault;

static struct access remote_access(uint32_t key, uint64_t address, uint32_t length, uint32_t right)
{
    return (struct access){
        .pd = PD, .key = key, .address = address, .length = length, .right = right, .remote = true};
}

static enum fault_cause diagnose(struct access access)
{
    fault = (struct fault_record){.cause = FAULT_NONE};
    fault_diagnose(&table, &access, &fault);
    return (enum fault_cause)fault.cause;
}

static enum fault_cause write_to(uint32_t key, uint64_t address, uint32_t length)
{
    return diagnose(remote_access(key, address, length, IBV_ACCESS_REMOTE_WRITE));
}

static enum fault_cause read_here(uint32_t lkey, uint32_t pd)
{
    return diagnose((struct access){.pd = pd, .key = lkey, .address = IOVA, .length = 8});
}

static void keys_that_are_mixed_up(void **state)
{
    assert_int_equal(write_to(region()->lkey, IOVA, 8), FAULT_KEY_IS_LKEY);
    assert_int_equal(fault.region_rkey, region()->rkey);
    assert_int_equal(fault.region_length, LENGTH);
    assert_int_equal(read_here(region()->rkey, PD), FAULT_KEY_IS_RKEY);
    assert_int_equal(fault.region_lkey, region()->lkey);
    assert_int_equal(write_to(__builtin_bswap32(region()->rkey), IOVA, 8), FAULT_KEY_SWAPPED);
}

static void keys_that_are_none(void **state)
{
    assert_int_equal(write_to(0, IOVA, 8), FAULT_KEY_UNKNOWN);
    assert_int_equal(write_to(region()->rkey ^ 100u << KEY_SLOT_SHIFT, IOVA, 8), FAULT_KEY_UNKNOWN);
    assert_int_equal(write_to(region()->rkey ^ 1, IOVA, 8), FAULT_KEY_REPLACED);
}

static void a_key_that_was_withdrawn(void **state)
{
    uint32_t rkey = region()->rkey, lkey = region()->lkey;

    keys_withdraw(&table, SLOT);
    assert_int_equal(write_to(rkey, IOVA, 8), FAULT_KEY_WITHDRAWN);
    assert_int_equal(read_here(lkey, PD), FAULT_KEY_WITHDRAWN);
    publish(ALL);
    assert_int_equal(write_to(rkey, IOVA, 8), FAULT_KEY_REPLACED);
}

static void rights_and_domains(void **state)
{
    struct access access = remote_access(region()->rkey, IOVA, 8, IBV_ACCESS_REMOTE_ATOMIC);

    publish(ALL & ~(uint32_t)IBV_ACCESS_REMOTE_ATOMIC);
    access.key = region()->rkey;
    assert_int_equal(diagnose(access), FAULT_ACCESS);
    assert_int_equal(fault.wanted, IBV_ACCESS_REMOTE_ATOMIC);
    access.pd = OTHER_PD;
    assert_int_equal(diagnose(access), FAULT_PD);
    assert_int_equal(fault.value, PD);
    assert_int_equal(fault.wanted, OTHER_PD);
    assert_int_equal(read_here(region()->lkey, OTHER_PD), FAULT_PD);
}

static void ranges(void **state)
{
    uint32_t rkey = region()->rkey;

    assert_int_equal(write_to(rkey, IOVA + LENGTH - 4, 8), FAULT_RANGE_END);
    assert_int_equal(fault.value, 4);
    assert_int_equal(write_to(rkey, IOVA + LENGTH, 8), FAULT_RANGE_END);
    assert_int_equal(fault.value, 8);
    assert_int_equal(write_to(rkey, IOVA - 3, 8), FAULT_RANGE_BEGIN);
    assert_int_equal(fault.value, 3);
    assert_int_equal(write_to(rkey, IOVA - 8, 8), FAULT_RANGE_OUTSIDE);
    assert_int_equal(write_to(rkey, UINT64_MAX, 8), FAULT_RANGE_OUTSIDE);
    assert_int_equal(write_to(rkey, __builtin_bswap64(IOVA + 16), 8), FAULT_ADDRESS_SWAPPED);
    assert_int_equal(write_to(rkey, IOVA, 8), FAULT_PAGES); /* the key permits it */
}

static void addresses_that_lost_their_upper_half(void **state)
{
    const uint64_t begin = 0x7ffffff00; /* a multiple of 4 GiB lies within */

    keys_publish_region(&table, SLOT, KEY_REGION, PD, ALL, begin, LENGTH, ADDRESS, 0x1234abcd);
    assert_int_equal(write_to(region()->rkey, 0xffffff00 + 16, 8), FAULT_ADDRESS_TRUNCATED);
    assert_int_equal(fault.value, begin + 16);
    assert_int_equal(write_to(region()->rkey, 32, 8), FAULT_ADDRESS_TRUNCATED);
    assert_int_equal(fault.value, 0x800000000 + 32);
    assert_int_equal(write_to(region()->rkey, LENGTH, 8), FAULT_RANGE_OUTSIDE);
    assert_int_equal(write_to(region()->rkey, begin + (1ull << 32), 8), FAULT_RANGE_OUTSIDE);
}

static void windows(void **state)
{
    uint32_t first, rkey, again;
    struct mw_bind bind = {.region_lkey = region()->lkey,
                           .pd = PD,
                           .address = IOVA,
                           .length = 64,
                           .access = IBV_ACCESS_REMOTE_WRITE};

    keys_publish_mw(&table, WINDOW, KEY_MW_TYPE_2, PD, 0x5555);
    first = window()->rkey;
    assert_int_equal(write_to(first, IOVA, 8), FAULT_WINDOW_UNBOUND);
    assert_false(fault.region_access & ACCESS_WAS_BOUND);
    bind.mw_rkey = first;
    bind.new_rkey = (first & ~KEY_TAG_MASK) | ((first + 1) & KEY_TAG_MASK);
    assert_int_equal(keys_bind_mw(&table, &bind, true, &rkey), VERDICT_OK);
    assert_int_equal(write_to(first, IOVA, 8), FAULT_WINDOW_REBOUND);
    assert_int_equal(fault.region_rkey, rkey);
    assert_int_equal(write_to(rkey, IOVA + 60, 8), FAULT_RANGE_END);
    assert_true(fault.window);
    assert_int_equal(keys_invalidate(&table, rkey, PD, false), VERDICT_OK);
    assert_int_equal(write_to(rkey, IOVA, 8), FAULT_WINDOW_UNBOUND);
    assert_true(fault.region_access & ACCESS_WAS_BOUND);
    keys_publish_mw(&table, OTHER_WINDOW, KEY_MW_TYPE_1, PD, 0x7777);
    bind.mw_rkey = table.entry[OTHER_WINDOW].rkey;
    bind.random = 0x1234;
    assert_int_equal(keys_bind_mw(&table, &bind, false, &again), VERDICT_OK);
    assert_int_equal(write_to(bind.mw_rkey, IOVA, 8), FAULT_WINDOW_REBOUND);
}

static void what_a_completion_says_in_a_number(void **state)
{
    assert_int_equal(fault_vendor_err(VERDICT_REMOTE_ACCESS, FAULT_NAK),
                     FAULT_NAK << 8 | VERDICT_REMOTE_ACCESS);
    /* They are documented, and keep their meaning. */
    assert_int_equal(FAULT_KEY_IS_LKEY, 2);
    assert_int_equal(FAULT_PAGES, 15);
    assert_int_equal(FAULT_ADDRESS_TRUNCATED, 16);
    assert_int_equal(FAULT_INVALIDATE, 41);
    assert_int_equal(FAULT_REFERENCE, 72);
    assert_int_equal(FAULT_OVERRUN, 97);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(keys_that_are_mixed_up, setup),
        cmocka_unit_test_setup(keys_that_are_none, setup),
        cmocka_unit_test_setup(a_key_that_was_withdrawn, setup),
        cmocka_unit_test_setup(rights_and_domains, setup),
        cmocka_unit_test_setup(ranges, setup),
        cmocka_unit_test_setup(addresses_that_lost_their_upper_half, setup),
        cmocka_unit_test_setup(windows, setup),
        cmocka_unit_test_setup(what_a_completion_says_in_a_number, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
