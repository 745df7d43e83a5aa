/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Verbs of rdma-core since 44, by manual page, as programs call them that were built with a newer header:
 * names and layouts are this file's own. */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <infiniband/verbs.h>

#include "front/verbs/newer.h"

struct mr_init_attr {
    size_t length;
    int access;
    uint64_t comp_mask, iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    struct ibv_dmah *dmah;
    struct ibv_buf *buf;
};
enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };

static struct ibv_device **devices;
static struct ibv_context *context;
static struct ibv_pd *pd;

static int open_first(void **state)
{
    devices = ibv_get_device_list(NULL);
    context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
    pd = context ? ibv_alloc_pd(context) : NULL;
    return pd ? 0 : -1;
}

static int close_first(void **state)
{
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    assert_int_equal(ibv_close_device(context), 0);
    ibv_free_device_list(devices);
    return 0;
}

static struct ibv_mr *register_ex(const struct mr_init_attr *attr)
{
    struct mr_init_attr copy = *attr;

    errno = 0;
    return ibv_reg_mr_ex(pd, (struct ibv_mr_init_attr *)&copy);
}

static void assert_refused(const struct mr_init_attr *attr, int error)
{
    assert_null(register_ex(attr));
    assert_int_equal(errno, error);
}

static void reg_mr_ex_is_reg_mr_and_reg_mr_iova(void **state)
{
    static char memory[8192];
    struct mr_init_attr attr = {
        .length = 4096, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = ADDR, .addr = memory};
    struct ibv_mr *mr = register_ex(&attr);

    assert_non_null(mr);
    assert_ptr_equal(mr->addr, memory);
    assert_int_equal(mr->length, 4096);
    assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    attr.comp_mask |= IOVA;
    attr.iova = 0x10000;
    mr = register_ex(&attr);
    assert_non_null(mr);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    attr.access = IBV_ACCESS_REMOTE_WRITE; /* without LOCAL_WRITE */
    assert_refused(&attr, EINVAL);
}

static void reg_mr_ex_refuses_what_does_not_fit_together(void **state)
{
    static char memory[4096];
    struct mr_init_attr attr = {.length = 4096, .addr = memory, .fd = -1};

    assert_refused(&attr, EINVAL);
    for (unsigned mask = FD_OFFSET; mask; mask = mask == FD_OFFSET ? FD : mask == FD ? BUF : 0) {
        attr.comp_mask = ADDR | mask;
        assert_refused(&attr, EINVAL);
    }
    attr.comp_mask = FD | FD_OFFSET | IOVA;
    assert_refused(&attr, EBADF);
    attr.comp_mask = ADDR | 1ull << 40;
    assert_refused(&attr, EOPNOTSUPP);
}

static void a_buffer_is_pages_that_can_be_registered_in_its_pd_within_its_bounds(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = page + 100;
    struct ibv_pd *other = ibv_alloc_pd(context);
    struct ibv_buf *buffer = NULL;
    char *at = ibv_alloc_buf(pd, size, &buffer);
    struct ibv_mr *mr;

    assert_non_null(at);
    assert_non_null(buffer);
    assert_int_equal((uintptr_t)at % page, 0);
    memset(at, 1, size);
    mr = ibv_reg_buf_mr(pd, buffer, at + 100, page, IBV_ACCESS_LOCAL_WRITE);
    assert_non_null(mr);
    assert_ptr_equal(mr->addr, at + 100);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    assert_null(ibv_reg_buf_mr(other, buffer, at, size, 0));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_reg_buf_mr(pd, buffer, at + 101, page, 0));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_reg_buf_mr(pd, buffer, at - 1, 1, 0));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_reg_buf_mr(pd, buffer, at, SIZE_MAX, 0));
    assert_int_equal(errno, EINVAL);
    assert_int_equal(ibv_export_buf_dmabuf_fd(buffer), -1);
    assert_int_equal(errno, ENODATA);
    ibv_free_buf(buffer);
    assert_int_equal(ibv_dealloc_pd(other), 0);
    assert_null(ibv_alloc_buf(pd, 0, &buffer));
    assert_null(ibv_alloc_buf(pd, SIZE_MAX, &buffer));
}

/* The flag allows what a confidential guest may need, and ordinary memory does not. */
static void a_parent_domain_may_allow_unprotected_buffers(void **state)
{
    struct ibv_parent_domain_init_attr attr = {.pd = pd, .comp_mask = 1 << 2};
    struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
    struct ibv_buf *buffer = NULL;
    char *at;
    struct ibv_mr *mr;

    assert_non_null(parent);
    at = ibv_alloc_buf(parent, 4096, &buffer);
    assert_non_null(at);
    assert_null(ibv_reg_buf_mr(pd, buffer, at, 4096, 0));
    mr = ibv_reg_buf_mr(parent, buffer, at, 4096, 0);
    assert_non_null(mr);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    ibv_free_buf(buffer);
    assert_int_equal(ibv_dealloc_pd(parent), 0);
}

static void the_speed_is_width_times_lane(void **state)
{
    uint64_t speed = 0;

    assert_int_equal(ibv_query_port_speed(context, 1, &speed), 0);
    assert_int_equal(speed, 1000); /* 4X EDR */
    assert_int_equal(ibv_query_port_speed(context, 0, &speed), EINVAL);
    assert_int_equal(ibv_query_port_speed(context, 2, &speed), EINVAL);
}

struct dmah_init_attr {
    uint32_t comp_mask, cpu_id;
    uint8_t ph, tph_mem_type;
};
enum { CPU_ID = 1, HINT = 2, MEMORY_TYPE = 4 };

static struct ibv_dmah *allocate_dmah(struct dmah_init_attr attr)
{
    errno = 0;
    return ibv_alloc_dmah(context, (struct ibv_dmah_init_attr *)&attr);
}

static uint32_t a_processor(void)
{
    cpu_set_t set;

    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set))
            return cpu;
    }
    return 0;
}

static void a_dma_handle_belongs_to_the_regions_that_name_it(void **state)
{
    static char memory[4096];
    struct ibv_dmah *dmah =
        allocate_dmah((struct dmah_init_attr){CPU_ID | HINT | MEMORY_TYPE, a_processor(), 3, 1});
    struct mr_init_attr attr = {.length = 4096,
                                .access = IBV_ACCESS_LOCAL_WRITE,
                                .comp_mask = ADDR | DMAH,
                                .addr = memory,
                                .dmah = dmah};
    struct ibv_mr *mr;

    assert_non_null(dmah);
    mr = register_ex(&attr);
    assert_non_null(mr);
    assert_int_equal(ibv_dealloc_dmah(dmah), EBUSY);
    attr.access |= IBV_ACCESS_ON_DEMAND;
    assert_refused(&attr, EINVAL);
    attr.access = IBV_ACCESS_LOCAL_WRITE;
    attr.dmah = NULL;
    assert_refused(&attr, EINVAL);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    assert_int_equal(ibv_dealloc_dmah(dmah), 0);
}

static void a_dma_handle_needs_a_hint_and_all_of_its_tag(void **state)
{
    struct ibv_dmah *dmah = allocate_dmah((struct dmah_init_attr){.comp_mask = HINT});

    assert_non_null(dmah);
    assert_int_equal(ibv_dealloc_dmah(dmah), 0);
    assert_null(allocate_dmah((struct dmah_init_attr){.comp_mask = 0}));
    assert_int_equal(errno, EINVAL);
    assert_null(allocate_dmah((struct dmah_init_attr){.comp_mask = HINT, .ph = 4}));
    assert_int_equal(errno, EINVAL);
    assert_null(allocate_dmah((struct dmah_init_attr){.comp_mask = HINT | CPU_ID, .cpu_id = a_processor()}));
    assert_int_equal(errno, EINVAL);
    assert_null(allocate_dmah((struct dmah_init_attr){HINT | CPU_ID | MEMORY_TYPE, a_processor(), 0, 2}));
    assert_int_equal(errno, EINVAL);
    assert_null(allocate_dmah((struct dmah_init_attr){HINT | CPU_ID | MEMORY_TYPE, 0xffff, 0, 0}));
    assert_int_equal(errno, EPERM);
    assert_null(allocate_dmah((struct dmah_init_attr){.comp_mask = HINT | 8}));
    assert_int_equal(errno, EOPNOTSUPP);
}

struct comp_cntr_init_attr {
    uint32_t comp_mask;
    int type;
    uint32_t flags;
};

static struct ibv_comp_cntr *create_counter(struct comp_cntr_init_attr attr)
{
    errno = 0;
    return ibv_create_comp_cntr(context, (struct ibv_comp_cntr_init_attr *)&attr);
}

static void a_counter_has_two_values_that_are_set_and_increased_and_wrap(void **state)
{
    struct {
        uint64_t max_value;
        uint32_t max_counters, operations;
        char guard[8];
    } caps = {.guard = "unused."};
    struct ibv_comp_cntr *counter = create_counter((struct comp_cntr_init_attr){0});
    uint64_t value = 7;

    assert_int_equal(_ibv_query_comp_cntr_caps(context, (struct ibv_comp_cntr_caps *)&caps, 16), 0);
    assert_int_equal(caps.max_value, UINT64_MAX);
    assert_true(caps.max_counters > 0);
    assert_int_equal(caps.operations, 0x3f);
    assert_string_equal(caps.guard, "unused.");
    assert_non_null(counter);
    assert_ptr_equal(*(struct ibv_context **)counter, context);
    assert_int_equal(ibv_read_comp_cntr(counter, &value), 0);
    assert_int_equal(value, 0);
    assert_int_equal(ibv_set_comp_cntr(counter, UINT64_MAX), 0);
    assert_int_equal(ibv_inc_err_comp_cntr(counter, 5), 0);
    assert_int_equal(ibv_read_comp_cntr(counter, &value), 0);
    assert_int_equal(value, UINT64_MAX);
    assert_int_equal(ibv_inc_comp_cntr(counter, 3), 0);
    assert_int_equal(ibv_read_comp_cntr(counter, &value), 0);
    assert_int_equal(value, 2);
    assert_int_equal(ibv_read_err_comp_cntr(counter, &value), 0);
    assert_int_equal(value, 5);
    assert_int_equal(ibv_set_err_comp_cntr(counter, 0), 0);
    assert_int_equal(ibv_read_err_comp_cntr(counter, &value), 0);
    assert_int_equal(value, 0);
    assert_int_equal(ibv_destroy_comp_cntr(counter), 0);
    assert_null(create_counter((struct comp_cntr_init_attr){.comp_mask = 1}));
    assert_int_equal(errno, EOPNOTSUPP);
    assert_null(create_counter((struct comp_cntr_init_attr){.type = 2}));
    assert_int_equal(errno, EOPNOTSUPP);
    assert_null(create_counter((struct comp_cntr_init_attr){.flags = 1}));
    assert_int_equal(errno, EOPNOTSUPP);
}

static void what_is_not_there_is_eopnotsupp(void **state)
{
    uint64_t room[4] = {0};

    errno = 0;
    assert_int_equal(ibv_dm_export_dmabuf_fd((struct ibv_dm *)room), -1);
    assert_int_equal(errno, EOPNOTSUPP);
}

/* verbs_context of rdma-core 64 begins 368 bytes in front of the context. */
static void the_newest_table_is_there_and_full(void **state)
{
    const char *head = (const char *)context - 368;
    const void *slot;

    assert_true(verbs_get_ctx(context)->sz - (sizeof(*context)) >= 368);
    for (size_t at = 0; at < 6 * sizeof(slot); at += sizeof(slot)) {
        memcpy(&slot, head + at, sizeof(slot));
        assert_non_null(slot);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reg_mr_ex_is_reg_mr_and_reg_mr_iova),
        cmocka_unit_test(reg_mr_ex_refuses_what_does_not_fit_together),
        cmocka_unit_test(a_buffer_is_pages_that_can_be_registered_in_its_pd_within_its_bounds),
        cmocka_unit_test(a_parent_domain_may_allow_unprotected_buffers),
        cmocka_unit_test(the_speed_is_width_times_lane),
        cmocka_unit_test(a_dma_handle_belongs_to_the_regions_that_name_it),
        cmocka_unit_test(a_dma_handle_needs_a_hint_and_all_of_its_tag),
        cmocka_unit_test(a_counter_has_two_values_that_are_set_and_increased_and_wrap),
        cmocka_unit_test(what_is_not_there_is_eopnotsupp),
        cmocka_unit_test(the_newest_table_is_there_and_full),
    };

    return cmocka_run_group_tests(tests, open_first, close_first);
}
