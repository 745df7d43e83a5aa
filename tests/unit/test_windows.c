/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory windows: binding and invalidation, verbs.md §4.4-4.6. */
#include "keys_fixture.h"

static struct mw_bind bind_of(enum key_kind kind, uint32_t access)
{
    keys_publish_mw(&table, WINDOW, kind, PD, 0x55aa55aa);
    return (struct mw_bind){
        .mw_rkey = window()->rkey,
        .new_rkey = (window()->rkey & ~KEY_TAG_MASK) | ((window()->rkey + 1) & KEY_TAG_MASK),
        .region_lkey = region()->lkey,
        .pd = PD,
        .address = IOVA + 0x100,
        .length = 0x200,
        .access = access,
        .random = 0x99887766,
    };
}

static uint32_t new_rkey;

static enum verdict bind_1(const struct mw_bind *bind)
{
    return keys_bind_mw(&table, bind, false, &new_rkey);
}

static enum verdict bind_2(const struct mw_bind *bind)
{
    return keys_bind_mw(&table, bind, true, &new_rkey);
}

static void assert_bind_refused_(struct mw_bind bind, enum bind_fault why)
{
    const struct key_entry before_window = *window(), before_region = *region();

    bind.new_rkey = (window()->rkey & ~KEY_TAG_MASK) | ((window()->rkey + 1) & KEY_TAG_MASK);
    new_rkey = 0;
    assert_int_equal(keys_bind_fault(&table, &bind, window()->kind == KEY_MW_TYPE_2), why);
    assert_int_equal(keys_bind_mw(&table, &bind, window()->kind == KEY_MW_TYPE_2, &new_rkey),
                     VERDICT_MW_BIND);
    assert_int_equal(new_rkey, 0);
    assert_memory_equal(&before_window, window(), sizeof(before_window));
    assert_memory_equal(&before_region, region(), sizeof(before_region));
}

/* For both types: a good bind with one thing changed is refused and changes nothing. */
#define assert_bind_refused(why, statement)                                                                  \
    do {                                                                                                     \
        struct mw_bind b = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);                                  \
        statement;                                                                                           \
        assert_bind_refused_(b, why);                                                                        \
        b = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);                                                 \
        statement;                                                                                           \
        assert_bind_refused_(b, why);                                                                        \
    } while (0)

static void a_bound_window_gives_access_to_its_part_of_the_region(void **state)
{
    const struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    assert_int_equal(window()->rkey, new_rkey);
    assert_ok(remote(new_rkey, IOVA + 0x100, 0x200, REMOTE_WRITE));
    assert_true(range.address == ADDRESS + 0x100);
    assert_int_equal(range.kind, KEY_MW_TYPE_1);
    assert_remote_access(remote(new_rkey, IOVA + 0xff, 1, REMOTE_WRITE));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 0x201, REMOTE_WRITE));
}

static void an_unbound_window_gives_no_access(void **state)
{
    bind_of(KEY_MW_TYPE_1, 0);
    assert_remote_access(remote(window()->rkey, IOVA + 0x100, 1, REMOTE_WRITE));
    assert_remote_access(remote(window()->rkey, 0, 1, REMOTE_WRITE));
}

static void the_rights_of_the_window_decide(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_READ);

    assert_ok(bind_1(&bind));
    assert_ok(remote(new_rkey, IOVA + 0x100, 8, REMOTE_READ));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 8, REMOTE_WRITE));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 8, REMOTE_ATOMIC));
}

static void the_region_need_not_have_the_rights_of_the_window(void **state)
{
    publish(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    const struct mw_bind bind =
        bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);

    assert_ok(bind_1(&bind));
    assert_ok(remote(new_rkey, IOVA + 0x100, 8, REMOTE_WRITE));
    assert_ok(remote(new_rkey, IOVA + 0x100, 8, REMOTE_ATOMIC));
    assert_remote_access(remote(region()->rkey, IOVA + 0x100, 8, REMOTE_WRITE));
}

static void a_window_key_is_remote_only(void **state)
{
    const struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    assert_int_equal(window()->lkey, 0);
    assert_protection(keys_check_local(&table, PD, new_rkey, IOVA + 0x100, 1, false, &range));
    assert_protection(keys_check_local(&table, PD, new_rkey & ~KEY_REMOTE, IOVA + 0x100, 1, false, &range));
}

static void access_through_a_window_needs_its_pd(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    assert_remote_access(
        keys_check_remote(&table, OTHER_PD, ALL, new_rkey, IOVA + 0x100, 8, REMOTE_WRITE, &range));
    bind = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);
    assert_ok(bind_2(&bind));
    assert_ok(remote(new_rkey, IOVA + 0x100, 8, REMOTE_WRITE));
    assert_remote_access(
        keys_check_remote(&table, OTHER_PD, ALL, new_rkey, IOVA + 0x100, 8, REMOTE_WRITE, &range));
}

static void a_zero_based_window_counts_from_its_start(void **state)
{
    const struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED);

    assert_ok(bind_1(&bind));
    assert_ok(remote(new_rkey, 0x10, 0x1f0, REMOTE_WRITE));
    assert_true(range.address == ADDRESS + 0x110);
    assert_remote_access(remote(new_rkey, 0x10, 0x1f1, REMOTE_WRITE));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
}

static void an_atomic_through_a_zero_based_window_must_be_aligned_in_memory(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED);

    bind.address += 4;
    assert_ok(bind_1(&bind));
    assert_invalid(remote(new_rkey, 8, 8, REMOTE_ATOMIC));
}

static void a_window_on_a_zero_based_region_is_bound_by_offset(void **state)
{
    publish(ALL | IBV_ACCESS_ZERO_BASED);
    struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_bind_refused_(bind, BIND_RANGE);
    bind.address = 0x100;
    assert_ok(bind_1(&bind));
    assert_ok(remote(new_rkey, 0x101, 1, REMOTE_WRITE));
    assert_true(range.address == ADDRESS + 0x101);
}

static void a_bind_needs_a_region_that_allows_it(void **state)
{
    publish(ALL & ~(uint32_t)IBV_ACCESS_MW_BIND);
    assert_bind_refused(BIND_REGION_ACCESS, (void)0);
}

static void a_writable_window_needs_a_locally_writable_region(void **state)
{
    publish(IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_READ);
    assert_bind_refused(BIND_LOCAL_WRITE, (void)0);
    assert_bind_refused(BIND_LOCAL_WRITE, b.access = IBV_ACCESS_REMOTE_ATOMIC);

    const struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_READ);

    assert_ok(bind_1(&bind));
}

static void a_window_must_lie_inside_its_region(void **state)
{
    assert_bind_refused(BIND_RANGE, b.address = IOVA - 1);
    assert_bind_refused(BIND_RANGE, b.address = IOVA + LENGTH);
    assert_bind_refused(BIND_RANGE, b.length = LENGTH);
    assert_bind_refused(BIND_RANGE, b.length = UINT64_MAX);
    assert_bind_refused(BIND_RANGE, (b.address = UINT64_MAX, b.length = 2));

    struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_READ);

    bind.address = IOVA;
    bind.length = LENGTH;
    assert_ok(bind_1(&bind));
}

static void window_region_and_qp_share_a_pd(void **state)
{
    assert_bind_refused(BIND_MW_PD, b.pd = OTHER_PD);
    assert_bind_refused(BIND_MW_PD, window()->pd = OTHER_PD);
    region()->pd = OTHER_PD;
    assert_bind_refused(BIND_REGION_PD, (void)0);
}

static void unknown_window_flags_are_refused(void **state)
{
    assert_bind_refused(BIND_FLAGS, b.access |= IBV_ACCESS_MW_BIND);
    assert_bind_refused(BIND_FLAGS, b.access |= IBV_ACCESS_ON_DEMAND);
    assert_bind_refused(BIND_FLAGS, b.access |= 1u << 31);
}

static void harmless_window_flags_are_ignored(void **state)
{
    const struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);

    assert_ok(bind_1(&bind));
    assert_int_equal(window()->access, 0);
}

static void only_a_live_plain_region_can_be_bound(void **state)
{
    keys_publish_region(&table, NULL_SLOT, KEY_REGION_NULL, PD, ALL, 0, 0, 0, 77);
    assert_bind_refused(BIND_REGION, b.region_lkey = table.entry[NULL_SLOT].lkey);
    assert_bind_refused(BIND_REGION, b.region_lkey = region()->rkey);
    assert_bind_refused(BIND_REGION, b.region_lkey ^= 1);
    assert_bind_refused(BIND_REGION, b.region_lkey = window()->rkey);
    assert_bind_refused(BIND_REGION, b.region_lkey = 0);
    keys_withdraw(&table, SLOT);
    assert_bind_refused(BIND_REGION, (void)0);
}

static void a_bind_of_the_wrong_type_is_refused(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_READ);

    assert_int_equal(bind_2(&bind), VERDICT_MW_BIND);
    bind = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_READ);
    assert_int_equal(bind_1(&bind), VERDICT_MW_BIND);
    bind.mw_rkey = region()->rkey;
    assert_int_equal(bind_1(&bind), VERDICT_MW_BIND);
    assert_int_equal(bind_2(&bind), VERDICT_MW_BIND);
}

static void a_type_1_window_gets_a_new_key_at_each_bind(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);
    uint32_t old = window()->rkey;

    for (unsigned i = 0; i < 10; i++) {
        bind.mw_rkey = old;
        assert_ok(bind_1(&bind));
        assert_int_not_equal(new_rkey, old);
        assert_int_equal(key_slot(new_rkey), WINDOW);
        assert_remote_access(remote(old, IOVA + 0x100, 1, REMOTE_WRITE));
        assert_ok(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
        old = new_rkey;
    }
}

static void the_next_key_of_a_type_1_window_can_be_told_before_the_bind(void **state)
{
    const struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);
    const uint32_t expected = keys_next_mw_rkey(bind.mw_rkey, bind.random);

    assert_ok(bind_1(&bind));
    assert_int_equal(new_rkey, expected);
    for (uint32_t random = 0; random < 4096; random++) {
        const uint32_t next = keys_next_mw_rkey(expected, (random >> 8) << 28 | (random & 0xff));

        assert_false(next & KEY_COPIED);
        assert_int_not_equal(next, expected);
        assert_int_equal(key_slot(next), WINDOW);
        assert_true(next & KEY_REMOTE);
    }
}

static void a_stale_key_of_a_type_1_window_cannot_be_bound(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    assert_int_equal(bind_1(&bind), VERDICT_MW_BIND);
}

static void a_type_1_window_is_rebound_without_unbinding(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    bind.mw_rkey = new_rkey;
    bind.address = IOVA;
    assert_ok(bind_1(&bind));
    assert_ok(remote(new_rkey, IOVA, 1, REMOTE_WRITE));
    assert_int_equal(region()->mws, 1);
}

static void a_type_1_bind_of_length_0_unbinds(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    const uint32_t bound = new_rkey;

    bind = (struct mw_bind){.mw_rkey = bound, .pd = PD, .random = 1};
    assert_ok(bind_1(&bind));
    assert_int_not_equal(new_rkey, bound);
    assert_int_equal(window()->bound, 0);
    assert_int_equal(region()->mws, 0);
    assert_remote_access(remote(bound, IOVA + 0x100, 1, REMOTE_WRITE));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
}

static void the_application_chooses_the_tag_of_a_type_2_window(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    bind.new_rkey = (window()->rkey & ~KEY_TAG_MASK) | 0x42;
    assert_ok(bind_2(&bind));
    assert_int_equal(new_rkey, bind.new_rkey);
    assert_int_equal(window()->rkey, bind.new_rkey);
    assert_ok(remote(bind.new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
    assert_remote_access(remote(bind.new_rkey ^ 1, IOVA + 0x100, 1, REMOTE_WRITE));
}

static void the_index_of_a_type_2_key_must_stay(void **state)
{
    for (unsigned bit = 8; bit < 32; bit++) {
        struct mw_bind bind = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

        bind.new_rkey ^= 1u << bit;
        assert_int_equal(bind_2(&bind), VERDICT_MW_BIND);
        bind.new_rkey ^= 1u << bit;
        bind.mw_rkey ^= 1u << bit;
        assert_int_equal(bind_2(&bind), VERDICT_MW_BIND);
    }
}

static void the_tag_of_the_old_type_2_key_does_not_matter(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    bind.mw_rkey ^= 0xff;
    assert_ok(bind_2(&bind));
}

static void a_bound_type_2_window_must_be_invalidated_before_the_next_bind(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_2(&bind));
    bind.mw_rkey = new_rkey;
    assert_bind_refused_(bind, BIND_MW_BOUND);
    assert_ok(keys_invalidate(&table, bind.mw_rkey, PD, false));
    bind.new_rkey ^= 1;
    assert_ok(bind_2(&bind));
}

static void a_type_2_bind_of_length_0_is_refused(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    bind.length = 0;
    assert_bind_refused_(bind, BIND_NOTHING);
}

static void a_region_counts_the_windows_bound_to_it(void **state)
{
    struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE), other;

    assert_int_equal(region()->mws, 0);
    assert_ok(bind_1(&bind));
    assert_int_equal(region()->mws, 1);

    keys_publish_mw(&table, OTHER_WINDOW, KEY_MW_TYPE_2, PD, 4);
    other = bind;
    other.mw_rkey = other.new_rkey = table.entry[OTHER_WINDOW].rkey;
    assert_ok(bind_2(&other));
    assert_int_equal(region()->mws, 2);

    keys_unbind_mw(&table, WINDOW);
    assert_int_equal(region()->mws, 1);
    keys_unbind_mw(&table, WINDOW);
    assert_int_equal(region()->mws, 1);
    assert_ok(keys_invalidate(&table, other.new_rkey, PD, true));
    assert_int_equal(region()->mws, 0);
}

static void counting_windows_does_not_disturb_users_of_the_region(void **state)
{
    const struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(local(IOVA, 1, true));
    const struct memory_range before = range;

    assert_ok(bind_1(&bind));
    assert_true(keys_is_current(&table, &before));
}

static void withdrawing_a_bound_window_unbinds_it(void **state)
{
    const struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    keys_withdraw(&table, WINDOW);
    assert_int_equal(region()->mws, 0);
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
}

static void an_on_demand_region_can_be_bound(void **state)
{
    keys_publish_region(&table, SLOT, KEY_REGION_ON_DEMAND, PD, ALL, IOVA, LENGTH, ADDRESS, 5);
    const struct mw_bind bind = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_2(&bind));
    assert_ok(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
}

static void assert_traits(const struct key_entry *entry, enum key_kind kind, bool bound, bool zero_based)
{
    assert_int_equal(entry->kind, kind);
    assert_int_equal(entry->bound, bound);
    assert_int_equal(entry->zero_based, zero_based);
}

/* What `softhca` prints of the table. */
static void an_entry_says_what_it_is(void **state)
{
    struct mw_bind bind;

    assert_traits(region(), KEY_REGION, false, false);
    keys_change_region(&table, SLOT, PD, ALL | IBV_ACCESS_ZERO_BASED, IOVA, LENGTH, ADDRESS);
    assert_traits(region(), KEY_REGION, false, true);
    keys_change_region(&table, SLOT, PD, ALL, IOVA, LENGTH, ADDRESS);
    assert_traits(region(), KEY_REGION, false, false);

    bind = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED);
    assert_traits(window(), KEY_MW_TYPE_2, false, false);
    assert_ok(bind_2(&bind));
    assert_traits(window(), KEY_MW_TYPE_2, true, true);
    assert_int_equal(window()->region, SLOT);
    assert_ok(keys_invalidate(&table, new_rkey, PD, false));
    assert_traits(window(), KEY_MW_TYPE_2, false, false);
    keys_withdraw(&table, WINDOW);
    assert_traits(window(), KEY_FREE, false, false);
    assert_int_equal(window()->handle, WINDOW);
}

/* A mapped table is what its owner wrote into it. */
static void an_entry_that_is_neither_region_nor_bound_window_gives_no_access(void **state)
{
    region()->bound = 1;
    for (unsigned kind = 0; kind < 256; kind++) {
        region()->kind = (uint8_t)kind;
        const bool is_region = kind == KEY_REGION || kind == KEY_REGION_ON_DEMAND;
        const bool is_window = kind == KEY_MW_TYPE_1 || kind == KEY_MW_TYPE_2;

        assert_int_equal(remote(region()->rkey, IOVA, 1, REMOTE_READ),
                         is_region || is_window ? VERDICT_OK : VERDICT_REMOTE_ACCESS);
        assert_int_equal(local(IOVA, 1, false),
                         is_region || kind == KEY_REGION_NULL ? VERDICT_OK : VERDICT_LOCAL_PROTECTION);
    }
    region()->kind = KEY_MW_TYPE_1;
    region()->bound = 0;
    assert_remote_access(remote(region()->rkey, IOVA, 1, REMOTE_READ));
}

/* --- invalidation --- */

static void an_invalidated_window_gives_no_access(void **state)
{
    const struct mw_bind bind = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_2(&bind));
    assert_ok(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
    const struct memory_range before = range;

    assert_ok(keys_invalidate(&table, new_rkey, PD, true));
    assert_remote_access(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
    assert_false(keys_is_current(&table, &before));
}

static void assert_not_invalidatable(uint32_t rkey, uint32_t pd)
{
    assert_int_equal(keys_invalidate(&table, rkey, pd, false), VERDICT_MW_BIND);
    assert_int_equal(keys_invalidate(&table, rkey, pd, true), VERDICT_REMOTE_ACCESS);
}

static void a_region_cannot_be_invalidated(void **state)
{
    assert_not_invalidatable(region()->rkey, PD);
    assert_not_invalidatable(region()->lkey, PD);
    assert_ok(local(IOVA, 1, true));
}

static void a_type_1_window_cannot_be_invalidated(void **state)
{
    const struct mw_bind bind = bind_of(KEY_MW_TYPE_1, IBV_ACCESS_REMOTE_WRITE);

    assert_ok(bind_1(&bind));
    assert_not_invalidatable(new_rkey, PD);
    assert_ok(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
}

static void only_a_bound_window_of_the_pd_named_by_its_key_can_be_invalidated(void **state)
{
    const struct mw_bind bind = bind_of(KEY_MW_TYPE_2, IBV_ACCESS_REMOTE_WRITE);

    assert_not_invalidatable(window()->rkey, PD);
    assert_ok(bind_2(&bind));
    assert_not_invalidatable(new_rkey, OTHER_PD);
    for (unsigned bit = 0; bit < 32; bit++)
        assert_not_invalidatable(new_rkey ^ 1u << bit, PD);
    assert_ok(remote(new_rkey, IOVA + 0x100, 1, REMOTE_WRITE));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_bound_window_gives_access_to_its_part_of_the_region),
        TEST(an_unbound_window_gives_no_access),
        TEST(the_rights_of_the_window_decide),
        TEST(the_region_need_not_have_the_rights_of_the_window),
        TEST(a_window_key_is_remote_only),
        TEST(access_through_a_window_needs_its_pd),
        TEST(a_zero_based_window_counts_from_its_start),
        TEST(an_atomic_through_a_zero_based_window_must_be_aligned_in_memory),
        TEST(a_window_on_a_zero_based_region_is_bound_by_offset),
        TEST(a_bind_needs_a_region_that_allows_it),
        TEST(a_writable_window_needs_a_locally_writable_region),
        TEST(a_window_must_lie_inside_its_region),
        TEST(window_region_and_qp_share_a_pd),
        TEST(unknown_window_flags_are_refused),
        TEST(harmless_window_flags_are_ignored),
        TEST(only_a_live_plain_region_can_be_bound),
        TEST(a_bind_of_the_wrong_type_is_refused),
        TEST(a_type_1_window_gets_a_new_key_at_each_bind),
        TEST(the_next_key_of_a_type_1_window_can_be_told_before_the_bind),
        TEST(a_stale_key_of_a_type_1_window_cannot_be_bound),
        TEST(a_type_1_window_is_rebound_without_unbinding),
        TEST(a_type_1_bind_of_length_0_unbinds),
        TEST(the_application_chooses_the_tag_of_a_type_2_window),
        TEST(the_index_of_a_type_2_key_must_stay),
        TEST(the_tag_of_the_old_type_2_key_does_not_matter),
        TEST(a_bound_type_2_window_must_be_invalidated_before_the_next_bind),
        TEST(a_type_2_bind_of_length_0_is_refused),
        TEST(a_region_counts_the_windows_bound_to_it),
        TEST(counting_windows_does_not_disturb_users_of_the_region),
        TEST(withdrawing_a_bound_window_unbinds_it),
        TEST(an_on_demand_region_can_be_bound),
        TEST(an_entry_says_what_it_is),
        TEST(an_entry_that_is_neither_region_nor_bound_window_gives_no_access),
        TEST(an_invalidated_window_gives_no_access),
        TEST(a_region_cannot_be_invalidated),
        TEST(a_type_1_window_cannot_be_invalidated),
        TEST(only_a_bound_window_of_the_pd_named_by_its_key_can_be_invalidated),
    };

    return run_unit_tests("windows", tests);
}
