/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §1.4: thread domains, parent domains and their allocators. */
#include <stdlib.h>

#include "work.h"

/* What the program's allocator was asked for. */
enum { CALLS = 32 };
static struct call_record {
    void *memory;
    size_t size;
    uint64_t type;
    bool freed;
} calls[CALLS];
static unsigned int call_count;
static uint64_t fail_from = UINT64_MAX; /* this call and those behind it get nothing */
static int the_context;

static void *allocate(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment, uint64_t type)
{
    void *memory;

    CHECK(pd_context == &the_context, "another pd_context");
    CHECK(alignment && !(alignment & (alignment - 1)), "alignment %zu", alignment);
    CHECK(call_count < CALLS, "too many calls");
    if (call_count >= fail_from)
        return NULL;
    CHECK(!posix_memalign(&memory, alignment, size), "out of memory");
    memset(memory, 0xa5, size);
    calls[call_count++] = (struct call_record){.memory = memory, .size = size, .type = type};
    return memory;
}

static void release(struct ibv_pd *pd, void *pd_context, void *memory, uint64_t type)
{
    CHECK(pd_context == &the_context, "another pd_context");
    for (unsigned int i = 0; i < call_count; i++) {
        if (calls[i].memory == memory && !calls[i].freed) {
            CHECK(calls[i].type == type, "freed as type %llu", (unsigned long long)type);
            memset(memory, 0x5a, calls[i].size);
            calls[i].freed = true;
            free(memory);
            return;
        }
    }
    CHECK(false, "memory that is not the allocator's");
}

static void *use_default(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment, uint64_t type)
{
    call_count++;
    return IBV_ALLOCATOR_USE_DEFAULT;
}

static unsigned int held(void)
{
    unsigned int count = 0;

    for (unsigned int i = 0; i < call_count; i++)
        count += !calls[i].freed;
    return count;
}

static struct ibv_pd *parent_with(struct ibv_pd *pd,
                                  void *(*alloc)(struct ibv_pd *, void *, size_t, size_t, uint64_t))
{
    struct ibv_parent_domain_init_attr attr = {
        .pd = pd,
        .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
        .alloc = alloc,
        .free = release,
        .pd_context = &the_context,
    };
    struct ibv_pd *parent = ibv_alloc_parent_domain(pd->context, &attr);

    CHECK(parent, "ibv_alloc_parent_domain: %s", strerror(errno));
    return parent;
}

/* a's QP becomes one of the parent domain. */
static void replace_qp(struct end *end, struct ibv_pd *parent)
{
    struct ibv_qp_init_attr init = {
        .qp_type = end->attr.type,
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .srq = end->srq,
        .cap = end->attr.cap,
    };

    if (end->qp)
        assert_int_equal(ibv_destroy_qp(end->qp), 0);
    end->qp = ibv_create_qp(parent, &init);
    CHECK(end->qp, "ibv_create_qp: %s", strerror(errno));
    end->qp_num = end->qp->qp_num;
}

static void both_ways(struct pair *p)
{
    for (uint64_t i = 0; i < 40; i++) {
        end_recv(&p->b, a_recv(&p->b, i, 0, 4096));
        end_fill(&p->a, 0, 4096, i);
        end_send(&p->a, a_send(&p->a, i, 0, 4096));
        end_expect_success(&p->a, SQ, i, IBV_WC_SEND);
        end_expect_success(&p->b, RQ, i, IBV_WC_RECV);
        end_expect_data(&p->b, 0, 4096, i);
        end_recv(&p->a, a_recv(&p->a, i, 0, 4096));
        end_fill(&p->b, 0, 4096, ~i);
        end_send(&p->b, a_send(&p->b, i, 0, 4096));
        end_expect_success(&p->b, SQ, i, IBV_WC_SEND);
        end_expect_success(&p->a, RQ, i, IBV_WC_RECV);
        end_expect_data(&p->a, 0, 4096, ~i);
    }
}

static void queues_of_a_qp_lie_in_the_programs_memory(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_pd *parent;
    struct pair p;

    pair_open(&p, &attr, &attr);
    parent = parent_with(p.a.pd, allocate);
    assert_int_equal(call_count, 0);
    replace_qp(&p.a, parent);
    assert_int_equal(held(), 2);
    assert_int_not_equal(calls[0].type, calls[1].type);
    end_connect(&p.a, &p.b);
    both_ways(&p);
    assert_int_equal(call_count, 2);
    assert_int_equal(ibv_dealloc_pd(parent), EBUSY);
    assert_int_equal(ibv_destroy_qp(p.a.qp), 0);
    assert_int_equal(held(), 0);
    p.a.qp = NULL;
    replace_qp(&p.a, p.a.pd); /* as it was, for pair_close() */
    assert_int_equal(ibv_dealloc_pd(parent), 0);
    pair_close(&p);
}

static void default_and_no_allocators_use_the_librarys_memory(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_parent_domain_init_attr plain = {0};
    struct ibv_pd *parent;
    struct pair p;

    for (int i = 0; i < 2; i++) {
        pair_open(&p, &attr, &attr);
        plain.pd = p.a.pd;
        parent = i ? ibv_alloc_parent_domain(p.a.context, &plain) : parent_with(p.a.pd, use_default);
        assert_non_null(parent);
        replace_qp(&p.a, parent);
        end_connect(&p.a, &p.b);
        both_ways(&p);
        assert_int_equal(call_count, 2);
        replace_qp(&p.a, p.a.pd);
        assert_int_equal(ibv_dealloc_pd(parent), 0);
        pair_close(&p);
    }
}

static void an_allocator_without_memory_fails_the_verb(void **state)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 4, .max_send_sge = 1, .max_recv_wr = 4}};
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_context *context = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context), *parent = parent_with(pd, allocate);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);

    init.send_cq = init.recv_cq = cq;
    for (fail_from = 0; fail_from < 2; fail_from++) {
        errno = 0;
        assert_null(ibv_create_qp(parent, &init));
        assert_int_equal(errno, ENOMEM);
        assert_int_equal(held(), 0); /* what it had got it gave back */
        call_count = 0;
    }
    fail_from = 0;
    errno = 0;
    assert_null(ibv_create_srq(parent, &srq));
    assert_int_equal(errno, ENOMEM);
    assert_int_equal(ibv_dealloc_pd(parent), 0); /* nothing stayed behind */
    assert_int_equal(ibv_destroy_cq(cq), 0);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    ibv_close_device(context);
}

static void rings_of_srqs_and_cqs_lie_there_too_and_move_with_a_resize(void **state)
{
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD};
    struct ibv_srq_attr resize = {.max_wr = 64};
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_srq *old_srq;
    struct ibv_cq *old_cq;
    struct ibv_pd *parent;
    struct pair p;

    attr.srq_wr = 16;
    pair_open(&p, &attr, &attr);
    parent = parent_with(p.a.pd, allocate);
    old_srq = p.a.srq;
    old_cq = p.a.recv_cq;
    cq_attr.parent_domain = parent;
    p.a.srq = ibv_create_srq(parent, &srq_attr);
    p.a.recv_cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(p.a.context, &cq_attr));
    assert_non_null(p.a.srq);
    assert_non_null(p.a.recv_cq);
    replace_qp(&p.a, parent);
    assert_int_equal(held(), 3); /* of the QP only the send queue */
    end_connect(&p.a, &p.b);
    both_ways(&p);
    end_recv(&p.a, a_recv(&p.a, 1000, 0, 64));
    assert_int_equal(ibv_modify_srq(p.a.srq, &resize, IBV_SRQ_MAX_WR), 0);
    assert_int_equal(ibv_resize_cq(p.a.recv_cq, 200), 0);
    assert_int_equal(call_count, 5);
    assert_int_equal(held(), 3);
    end_send(&p.b, a_send(&p.b, 1, 0, 64));
    end_expect_success(&p.a, RQ, 1000, IBV_WC_RECV); /* went along */
    end_expect_success(&p.b, SQ, 1, IBV_WC_SEND);
    both_ways(&p);
    assert_int_equal(ibv_destroy_qp(p.a.qp), 0);
    assert_int_equal(ibv_destroy_srq(p.a.srq), 0);
    assert_int_equal(ibv_dealloc_pd(parent), EBUSY); /* the CQ */
    assert_int_equal(ibv_destroy_cq(p.a.recv_cq), 0);
    assert_int_equal(held(), 0);
    assert_int_equal(ibv_dealloc_pd(parent), 0);
    p.a.srq = old_srq;
    p.a.recv_cq = old_cq;
    p.a.qp = NULL;
    replace_qp(&p.a, p.a.pd);
    pair_close(&p);
}

static void everything_can_be_made_of_a_parent_domain(void **state)
{
    struct ibv_parent_domain_init_attr attr = {0};
    struct ibv_pd *parent, *pd;
    struct ibv_mw *mw;
    struct pair p;

    pair_connect(&p, IBV_QPT_UD);
    pd = p.a.pd;
    attr.pd = pd;
    parent = ibv_alloc_parent_domain(p.a.context, &attr);
    assert_non_null(parent);
    /* An AH of the parent domain serves a QP of the PD. */
    {
        struct ibv_ah_attr to = {.is_global = 1, .port_num = TEST_PORT, .grh.hop_limit = 64};
        struct ibv_ah *ah, *old = p.a.ah;

        to.grh.dgid = p.b.gid;
        to.grh.sgid_index = (uint8_t)p.a.attr.gid_index;
        ah = ibv_create_ah(parent, &to);
        CHECK(ah, "ibv_create_ah: %s", strerror(errno));
        p.a.ah = ah;
        end_recv(&p.b, a_recv(&p.b, 1, 0, 200));
        end_send(&p.a, a_datagram(&p.a, 1, 0, 100, &p.b));
        end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
        end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
        assert_int_equal(ibv_dealloc_pd(parent), EBUSY);
        assert_int_equal(ibv_destroy_ah(ah), 0);
        p.a.ah = old;
    }
    mw = ibv_alloc_mw(parent, IBV_MW_TYPE_2);
    assert_non_null(mw);
    assert_int_equal(ibv_dealloc_pd(parent), EBUSY);
    assert_int_equal(ibv_dealloc_mw(mw), 0);
    assert_int_equal(ibv_dealloc_pd(parent), 0);
    pair_close(&p);
}

/* verbs.md §1.2 */
static void domains_are_ebusy_while_they_are_used_and_all_goes_on(void **state)
{
    const struct end_attr end_attr = attr_of(IBV_QPT_RC);
    struct ibv_td_init_attr none = {0};
    struct ibv_parent_domain_init_attr attr = {0};
    struct ibv_pd *parent;
    struct ibv_mr *mr;
    struct pair p;

    pair_open(&p, &end_attr, &end_attr);
    attr.pd = p.a.pd;
    attr.td = ibv_alloc_td(p.a.context, &none);
    assert_non_null(attr.td);
    parent = ibv_alloc_parent_domain(p.a.context, &attr);
    assert_non_null(parent);
    replace_qp(&p.a, parent);
    end_connect(&p.a, &p.b);
    assert_int_equal(ibv_dealloc_td(attr.td), EBUSY);
    assert_int_equal(ibv_dealloc_pd(p.a.pd), EBUSY);
    assert_int_equal(ibv_dealloc_pd(parent), EBUSY);
    both_ways(&p);
    replace_qp(&p.a, p.a.pd);
    assert_int_equal(ibv_dealloc_td(attr.td), EBUSY); /* the parent domain is still there */
    assert_int_equal(ibv_dealloc_pd(parent), 0);
    assert_int_equal(ibv_dealloc_td(attr.td), 0);
    mr = ibv_reg_mr(p.a.pd, p.a.buf, 64, IBV_ACCESS_LOCAL_WRITE); /* and the PD outlives it */
    assert_non_null(mr);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    pair_close(&p);
}

static void refused(struct ibv_context *context, struct ibv_parent_domain_init_attr attr)
{
    errno = 0;
    assert_null(ibv_alloc_parent_domain(context, &attr));
    assert_int_equal(errno, EINVAL);
}

static void parent_domains_check_what_they_are_made_of(void **state)
{
    struct ibv_context *context = open_the_device(), *other = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context), *foreign = ibv_alloc_pd(other), *parent;
    struct ibv_cq_init_attr_ex cq = {.cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = pd};
    const uint32_t allocators = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    struct ibv_td_init_attr none = {0};
    struct ibv_td *td = ibv_alloc_td(other, &none);

    refused(context, (struct ibv_parent_domain_init_attr){.pd = foreign});
    refused(context, (struct ibv_parent_domain_init_attr){.pd = pd, .td = td});
    refused(context, (struct ibv_parent_domain_init_attr){.pd = pd, .comp_mask = allocators});
    refused(context,
            (struct ibv_parent_domain_init_attr){.pd = pd, .comp_mask = allocators, .alloc = allocate});
    refused(context,
            (struct ibv_parent_domain_init_attr){.pd = pd, .comp_mask = allocators, .free = release});
    parent = parent_with(pd, allocate);
    refused(context, (struct ibv_parent_domain_init_attr){.pd = parent});
    /* A PD is no parent domain. */
    errno = 0;
    assert_null(ibv_create_cq_ex(context, &cq));
    assert_int_equal(errno, EINVAL);
    cq.parent_domain = NULL;
    assert_null(ibv_create_cq_ex(context, &cq));
    assert_int_equal(ibv_dealloc_pd(parent), 0);
    assert_int_equal(ibv_dealloc_td(td), 0);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    assert_int_equal(ibv_dealloc_pd(foreign), 0);
    ibv_close_device(other);
    ibv_close_device(context);
}

/* Flags of newer libraries: who asks for one tells that it is not there from a mistake. */
static void a_flag_that_is_not_there_is_unsupported(void **state)
{
    struct ibv_context *context = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);

    /* The first three are there. */
    for (unsigned int bit = 3; bit < 32; bit++) {
        struct ibv_parent_domain_init_attr attr = {.pd = pd, .comp_mask = 1u << bit};

        assert_refused(ibv_alloc_parent_domain(context, &attr), EOPNOTSUPP);
        attr.pd = NULL;
        assert_refused(ibv_alloc_parent_domain(context, &attr), EINVAL);
    }
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    ibv_close_device(context);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(queues_of_a_qp_lie_in_the_programs_memory),
        TEST(default_and_no_allocators_use_the_librarys_memory),
        TEST(an_allocator_without_memory_fails_the_verb),
        TEST(rings_of_srqs_and_cqs_lie_there_too_and_move_with_a_resize),
        TEST(everything_can_be_made_of_a_parent_domain),
        TEST(domains_are_ebusy_while_they_are_used_and_all_goes_on),
        TEST(a_flag_that_is_not_there_is_unsupported),
        TEST(parent_domains_check_what_they_are_made_of),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
