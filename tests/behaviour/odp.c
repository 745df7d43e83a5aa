/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §4.7: on-demand regions and advice. b owns the memory, which comes and goes. */
#include "base/newer_kernel.h"
#include "work.h"

#include <sys/mman.h>

enum {
    SIZE = 1 << 20,
    RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
             IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ON_DEMAND
};

/* What a test does where the memory is; pointers mean something only there. */
struct place {
    uint8_t *at;
    struct ibv_mr *mr;
    uint32_t lkey, rkey;
    bool implicit;
};

static void reserve_here(struct end *end, void *arg)
{
    struct place *place = arg;

    place->at = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(place->at != MAP_FAILED, "mmap: %s", strerror(errno));
    /* Nothing is there yet, and nobody minds. */
    place->mr = place->implicit ? ibv_reg_mr(end->pd, NULL, SIZE_MAX, RIGHTS)
                                : ibv_reg_mr(end->pd, place->at, SIZE, RIGHTS);
    CHECK(place->mr, "ibv_reg_mr: %s", strerror(errno));
    place->lkey = place->mr->lkey;
    place->rkey = place->mr->rkey;
}

static void map_here(struct end *end, void *arg)
{
    struct place *place = arg;

    CHECK(mmap(place->at, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
              place->at,
          "mmap: %s", strerror(errno));
}

static void map_read_only_here(struct end *end, void *arg)
{
    struct place *place = arg;

    CHECK(!mprotect(place->at, SIZE, PROT_READ), "mprotect: %s", strerror(errno));
}

static void unmap_here(struct end *end, void *arg)
{
    struct place *place = arg;

    CHECK(mmap(place->at, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
              place->at,
          "mmap: %s", strerror(errno));
}

static void forget_here(struct end *end, void *arg)
{
    struct place *place = arg;

    CHECK(!ibv_dereg_mr(place->mr), "ibv_dereg_mr");
    CHECK(!munmap(place->at, SIZE), "munmap: %s", strerror(errno));
}

static void copy_here(struct end *end, void *arg)
{
    struct place *place = arg;

    memcpy(end->buf, place->at, 65536);
}

static void open_with(struct pair *p, struct place *place, enum ibv_qp_type type)
{
    const struct end_attr attr = attr_of(type);

    pair_open(p, &attr, &attr);
    end_connect(&p->a, &p->b);
    AT(&p->b, reserve_here, place);
}

static void close_with(struct pair *p, struct place *place)
{
    AT(&p->b, forget_here, place);
    pair_close(p);
}

static struct send onto(struct send send, const struct place *place, size_t offset)
{
    if (send.wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        send.wr.wr.atomic.rkey = place->rkey;
        send.wr.wr.atomic.remote_addr = (uintptr_t)place->at + offset;
    } else {
        send.wr.wr.rdma.rkey = place->rkey;
        send.wr.wr.rdma.remote_addr = (uintptr_t)place->at + offset;
    }
    return send;
}

static const size_t sizes[] = {8, 4096, 65536};

static void memory_that_appears_after_registration_is_reached(void **state)
{
    for (int implicit = 0; implicit < 2; implicit++) {
        struct place place = {.implicit = implicit};
        struct pair p;

        open_with(&p, &place, IBV_QPT_RC);
        AT(&p.b, map_here, &place);
        for (size_t i = 0; i < COUNT(sizes); i++) {
            end_fill(&p.a, 0, sizes[i], i);
            end_send(&p.a, onto(a_write(&p.a, i, 0, sizes[i], &p.b, 0), &place, 4096));
            end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_WRITE);
            end_fill(&p.a, 0, sizes[i], 99);
            end_send(&p.a, onto(a_read(&p.a, i, 0, sizes[i], &p.b, 0), &place, 4096));
            end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_READ);
            end_expect_data(&p.a, 0, sizes[i], i);
        }
        end_send(&p.a, onto(a_fetch_add(&p.a, 9, 0, &p.b, 0, 5), &place, 0));
        end_expect_success(&p.a, SQ, 9, IBV_WC_FETCH_ADD);
        assert_int_equal(end_peek64(&p.a, 0), 0); /* a fresh page */
        close_with(&p, &place);
    }
}

static void a_write_sees_the_mapping_of_its_time(void **state)
{
    struct place place = {0};
    struct pair p;

    open_with(&p, &place, IBV_QPT_RC);
    for (uint64_t round = 0; round < 5; round++) {
        AT(&p.b, map_here, &place);
        end_fill(&p.a, 0, 65536, round);
        end_send(&p.a, onto(a_write(&p.a, round, 0, 65536, &p.b, 0), &place, 0));
        end_expect_success(&p.a, SQ, round, IBV_WC_RDMA_WRITE);
        AT(&p.b, copy_here, &place);
        end_expect_data(&p.b, 0, 65536, round);
        AT(&p.b, unmap_here, &place);
    }
    close_with(&p, &place);
}

static void access_to_memory_that_is_gone_is_an_error_and_no_crash(void **state)
{
    for (int operation = 0; operation < 3; operation++) {
        for (size_t i = 0; i < COUNT(sizes); i++) {
            struct place place = {0};
            struct send send;
            struct ibv_wc wc;
            struct pair p;

            open_with(&p, &place, IBV_QPT_RC);
            send = operation == 0   ? a_write(&p.a, 1, 0, sizes[i], &p.b, 0)
                   : operation == 1 ? a_read(&p.a, 1, 0, sizes[i], &p.b, 0)
                                    : a_fetch_add(&p.a, 1, 0, &p.b, 0, 5);
            AT(&p.b, map_here, &place);
            end_send(&p.a, onto(send, &place, 4096));
            wc = end_wc(&p.a, SQ);
            assert_int_equal(wc.status, IBV_WC_SUCCESS);
            AT(&p.b, unmap_here, &place);
            end_send(&p.a, onto(send, &place, 4096));
            wc = end_wc(&p.a, SQ);
            CHECK(wc.status == IBV_WC_REM_ACCESS_ERR, "operation %d of %zu bytes: %s", operation, sizes[i],
                  ibv_wc_status_str(wc.status));
            end_expect_event(&p.b, IBV_EVENT_QP_ACCESS_ERR);
            close_with(&p, &place);
        }
    }
}

static void read_only_memory_refuses_writes_and_gives_reads(void **state)
{
    struct place place = {0};
    struct pair p;

    open_with(&p, &place, IBV_QPT_RC);
    AT(&p.b, map_here, &place);
    AT(&p.b, map_read_only_here, &place);
    end_send(&p.a, onto(a_read(&p.a, 1, 0, 4096, &p.b, 0), &place, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_READ);
    end_send(&p.a, onto(a_write(&p.a, 2, 0, 4096, &p.b, 0), &place, 0));
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    close_with(&p, &place);
}

/* b uses its own memory. */
struct local_use {
    struct place place;
    uint64_t id;
    size_t length;
    bool receive;
};

static void use_here(struct end *end, void *arg)
{
    struct local_use *use = arg;
    struct ibv_sge sge = {(uintptr_t)use->place.at, (uint32_t)use->length, use->place.lkey};
    struct ibv_send_wr send = {.wr_id = use->id,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED},
                       *bad_send;
    struct ibv_recv_wr receive = {.wr_id = use->id, .sg_list = &sge, .num_sge = 1}, *bad_receive;

    CHECK(!(use->receive ? ibv_post_recv(end->qp, &receive, &bad_receive)
                         : ibv_post_send(end->qp, &send, &bad_send)),
          "post");
}

static void local_work_requests_reach_it_or_fail(void **state)
{
    for (size_t i = 0; i < COUNT(sizes); i++) {
        for (int receive = 0; receive < 2; receive++) {
            struct local_use use = {.id = 7, .length = sizes[i], .receive = receive};
            struct pair p;

            open_with(&p, &use.place, IBV_QPT_RC);
            for (int there = 1; there >= 0; there--) {
                AT(&p.b, there ? map_here : unmap_here, &use.place);
                if (receive) {
                    AT(&p.b, use_here, &use);
                    end_fill(&p.a, 0, sizes[i], i);
                    end_send(&p.a, a_send(&p.a, 1, 0, sizes[i]));
                    if (there) {
                        end_expect_success(&p.b, RQ, 7, IBV_WC_RECV);
                        end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
                    } else {
                        end_expect_status(&p.b, RQ, 7, IBV_WC_LOC_PROT_ERR);
                        end_expect_status(&p.a, SQ, 1, IBV_WC_REM_OP_ERR);
                    }
                } else {
                    end_recv(&p.a, a_recv(&p.a, 2, 0, sizes[i]));
                    AT(&p.b, use_here, &use);
                    if (there) {
                        end_expect_success(&p.b, SQ, 7, IBV_WC_SEND);
                        end_expect_success(&p.a, RQ, 2, IBV_WC_RECV);
                    } else {
                        end_expect_status(&p.b, SQ, 7, IBV_WC_LOC_PROT_ERR);
                    }
                }
            }
            close_with(&p, &use.place);
        }
    }
}

static void a_datagram_reaches_it(void **state)
{
    struct local_use use = {.id = 7, .length = 1024, .receive = true};
    struct pair p;

    open_with(&p, &use.place, IBV_QPT_UD);
    AT(&p.b, map_here, &use.place);
    AT(&p.b, use_here, &use);
    end_send(&p.a, a_datagram(&p.a, 1, 0, 512, &p.b));
    end_expect_success(&p.b, RQ, 7, IBV_WC_RECV);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    /* Gone: the receive fails, the QP lives on. */
    AT(&p.b, unmap_here, &use.place);
    AT(&p.b, use_here, &use);
    end_send(&p.a, a_datagram(&p.a, 1, 0, 512, &p.b));
    end_expect_status(&p.b, RQ, 7, IBV_WC_LOC_PROT_ERR);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    assert_int_equal(end_state(&p.b), IBV_QPS_RTS);
    close_with(&p, &use.place);
}

static int advise(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, uint32_t lkey,
                  void *at, uint32_t length)
{
    struct ibv_sge sge = {(uintptr_t)at, length, lkey};

    return ibv_advise_mr(pd, advice, flags, &sge, 1);
}

/* From Linux 5.14 on; before, advice is checked and nothing else. */
static bool pages_can_be_brought_in(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool can = madvise(page, 4096, MADV_POPULATE_WRITE) == 0;

    munmap(page, 4096);
    return can;
}

static void advice_brings_pages_in_and_checks_what_it_is_given(void **state)
{
    const uint32_t flush = IBV_ADVISE_MR_FLAG_FLUSH;
    const enum ibv_advise_mr_advice prefetch = IBV_ADVISE_MR_ADVICE_PREFETCH,
                                    to_write = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                                    no_fault = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
    struct ibv_context *context = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
    uint8_t *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, at, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
    struct ibv_mr *read_only = ibv_reg_mr(pd, at, SIZE, IBV_ACCESS_ON_DEMAND);
    unsigned char there[2] = {0, 0};

    assert_non_null(mr);
    assert_int_equal(advise(pd, no_fault, flush, mr->lkey, at, 8192), 0);
    assert_int_equal(mincore(at, 8192, there), 0);
    assert_int_equal(there[0] & 1, 0);
    assert_int_equal(advise(pd, to_write, flush, mr->lkey, at + 100, 4096), 0);
    assert_int_equal(mincore(at, 8192, there), 0);
    assert_int_equal(there[0] & there[1] & 1, pages_can_be_brought_in());
    assert_int_equal(advise(pd, prefetch, 0, mr->lkey, at, SIZE), 0);
    assert_int_equal(advise(pd, prefetch, 0, mr->lkey, at, 0), 0);

    assert_int_equal(advise(pd, (enum ibv_advise_mr_advice)77, 0, mr->lkey, at, 8), ENOTSUP);
    assert_int_equal(advise(pd, prefetch, 1u << 9, mr->lkey, at, 8), EINVAL);
    assert_int_equal(ibv_advise_mr(pd, prefetch, 0, NULL, 0), EINVAL);
    assert_int_equal(advise(pd, prefetch, flush, mr->lkey, at + 8, SIZE), EFAULT);
    assert_int_equal(advise(pd, prefetch, flush, mr->rkey, at, 8), EFAULT);
    assert_int_equal(advise(other, prefetch, flush, mr->lkey, at, 8), EPERM);
    assert_int_equal(advise(pd, to_write, flush, read_only->lkey, at, 8), EPERM);
    assert_int_equal(mprotect(at, 4096, PROT_NONE), 0);
    assert_int_equal(advise(pd, prefetch, flush, mr->lkey, at, 8), EFAULT);
    assert_int_equal(advise(pd, prefetch, 0, mr->lkey, at, 8), 0); /* a wish */
    assert_int_equal(ibv_dereg_mr(read_only), 0);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    assert_int_equal(ibv_dealloc_pd(other), 0);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    ibv_close_device(context);
}

static void capabilities_and_odd_registrations(void **state)
{
    struct ibv_context *context = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_device_attr_ex attr;

    assert_int_equal(ibv_query_device_ex(context, NULL, &attr), 0);
    assert_true(attr.odp_caps.general_caps & IBV_ODP_SUPPORT);
    assert_true(attr.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT);
    errno = 0;
    assert_null(ibv_reg_mr(pd, (void *)4096, SIZE_MAX, IBV_ACCESS_ON_DEMAND));
    assert_int_equal(errno, EINVAL);
    errno = 0;
    assert_null(ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB));
    assert_int_equal(errno, EINVAL);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    ibv_close_device(context);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(memory_that_appears_after_registration_is_reached),
        TEST(a_write_sees_the_mapping_of_its_time),
        TEST(access_to_memory_that_is_gone_is_an_error_and_no_crash),
        TEST(read_only_memory_refuses_writes_and_gives_reads),
        TEST(local_work_requests_reach_it_or_fail),
        TEST(a_datagram_reaches_it),
        TEST(advice_brings_pages_in_and_checks_what_it_is_given),
        TEST(capabilities_and_odd_registrations),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
