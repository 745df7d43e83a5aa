/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §4.1 to §4.3 and §4.8: registration, keys, and registering again. */
#include "work.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1 /* Linux 5.11 */
#endif

static struct ibv_context *context;
static struct ibv_pd *pd;
static char memory[16384] __attribute__((aligned(4096)));

static void open_all(void)
{
    context = open_the_device();
    pd = ibv_alloc_pd(context);
    assert_non_null(pd);
}

static void close_all(void)
{
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    assert_int_equal(ibv_close_device(context), 0);
}

static void registration_refused(void *addr, size_t length, int access, int error)
{
    struct ibv_mr *mr;

    /* both entry points behave the same: what the header's macro chooses must not matter */
    errno = 0;
    mr = (ibv_reg_mr)(pd, addr, length, access);
    CHECK(!mr && errno == error, "ibv_reg_mr(%p, %zu, 0x%x): %s", addr, length, (unsigned int)access,
          mr ? "accepted" : strerror(errno));
    errno = 0;
    mr = ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
    CHECK(!mr && errno == error, "ibv_reg_mr_iova2(%p, %zu, 0x%x): %s", addr, length, (unsigned int)access,
          mr ? "accepted" : strerror(errno));
}

static void reg_mr_fills_the_handle(void **state)
{
    struct ibv_mr *mr;

    open_all();
    mr = ibv_reg_mr(pd, memory + 3, 1000, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    assert_non_null(mr);
    assert_ptr_equal(mr->context, context);
    assert_ptr_equal(mr->pd, pd);
    assert_ptr_equal(mr->addr, memory + 3);
    assert_int_equal(mr->length, 1000);
    assert_int_not_equal(mr->lkey, 0);
    assert_int_not_equal(mr->rkey, 0);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    close_all();
}

static void lkey_and_rkey_differ(void **state)
{
    open_all();
    for (unsigned int i = 0; i < 100; i++) {
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

        assert_non_null(mr);
        assert_int_not_equal(mr->lkey, mr->rkey);
        assert_int_equal(ibv_dereg_mr(mr), 0);
    }
    close_all();
}

static void remote_write_and_atomic_need_local_write(void **state)
{
    open_all();
    registration_refused(memory, 100, IBV_ACCESS_REMOTE_WRITE, EINVAL);
    registration_refused(memory, 100, IBV_ACCESS_REMOTE_ATOMIC, EINVAL);
    registration_refused(memory, 100, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, EINVAL);
    close_all();
}

static void unknown_access_bits_are_einval_and_optional_ones_ignored(void **state)
{
    struct ibv_mr *mr;

    open_all();
    registration_refused(memory, 100, 1 << 15, EINVAL);
    registration_refused(memory, 100, 1 << 30, EINVAL);
    for (unsigned int bit = 20; bit < 30; bit++) {
        mr = ibv_reg_mr_iova2(pd, memory, 100, 0, IBV_ACCESS_LOCAL_WRITE | 1u << bit);
        assert_non_null(mr);
        assert_int_equal(ibv_dereg_mr(mr), 0);
    }
    close_all();
}

static void a_wrapping_range_is_einval(void **state)
{
    open_all();
    registration_refused((void *)(UINTPTR_MAX - 100), 200, IBV_ACCESS_LOCAL_WRITE, EINVAL);
    close_all();
}

static void an_empty_range_is_einval(void **state)
{
    const int access[] = {0, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_ON_DEMAND};
    struct ibv_mr *mr;

    open_all();
    for (unsigned int i = 0; i < COUNT(access); i++) {
        registration_refused(memory, 0, access[i], EINVAL);
        registration_refused(memory + 1, 0, access[i], EINVAL);
        registration_refused(NULL, 0, access[i], EINVAL);
        assert_refused((ibv_reg_mr_iova)(pd, memory, 0, 0, access[i]), EINVAL);
        assert_refused(ibv_reg_mr_iova2(pd, memory, 0, 4096, IBV_ACCESS_RELAXED_ORDERING), EINVAL);
    }
    mr = ibv_alloc_null_mr(pd);
    assert_non_null(mr);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    close_all();
}

static void an_unmapped_range_is_efault(void **state)
{
    char *hole = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    open_all();
    assert_ptr_not_equal(hole, MAP_FAILED);
    munmap(hole + 4096, 4096);
    registration_refused(hole, 4 * 4096, IBV_ACCESS_LOCAL_WRITE, EFAULT);
    registration_refused(hole + 4096, 100, 0, EFAULT);
    munmap(hole, 4 * 4096);
    close_all();
}

static void read_only_memory_is_efault_with_any_write_and_fine_without(void **state)
{
    char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr;

    open_all();
    assert_ptr_not_equal(page, MAP_FAILED);
    registration_refused(page, 4096, IBV_ACCESS_LOCAL_WRITE, EFAULT);
    mr = ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_READ);
    assert_non_null(mr);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    mr = ibv_reg_mr(pd, page, 4096, 0);
    assert_non_null(mr);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    munmap(page, 4096);
    close_all();
}

static void the_same_memory_may_be_registered_many_times(void **state)
{
    struct ibv_mr *mr[300];
    struct ibv_pd *other;

    open_all();
    other = ibv_alloc_pd(context);
    for (unsigned int i = 0; i < COUNT(mr); i++) {
        mr[i] = ibv_reg_mr(i % 2 ? pd : other, memory + i, 1000 + i, IBV_ACCESS_LOCAL_WRITE);
        assert_non_null(mr[i]);
        for (unsigned int j = 0; j < i; j++) {
            assert_int_not_equal(mr[i]->lkey, mr[j]->lkey);
            assert_int_not_equal(mr[i]->rkey, mr[j]->rkey);
        }
    }
    for (unsigned int i = 0; i < COUNT(mr); i++)
        assert_int_equal(ibv_dereg_mr(mr[i]), 0);
    assert_int_equal(ibv_dealloc_pd(other), 0);
    close_all();
}

static void a_key_is_not_reused_soon(void **state)
{
    uint32_t seen[300];

    open_all();
    for (unsigned int i = 0; i < COUNT(seen); i++) {
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, 1000, IBV_ACCESS_LOCAL_WRITE);

        assert_non_null(mr);
        seen[i] = mr->rkey;
        for (unsigned int j = 0; j < i; j++)
            assert_int_not_equal(seen[i], seen[j]);
        assert_int_equal(ibv_dereg_mr(mr), 0);
    }
    close_all();
}

/* A far MR of the test's choice */
struct remr {
    unsigned int access;
    size_t offset, length;
    uint64_t iova;
    bool with_iova, other_pd;
    uint32_t lkey, rkey;
    struct ibv_mr *mr;
    struct ibv_pd *pd;
    int flags, result;
};

static void make_mr(struct end *end, void *arg)
{
    struct remr *remr = arg;
    struct ibv_pd *in = end->pd;

    if (remr->other_pd)
        in = remr->pd = ibv_alloc_pd(end->context);
    if (remr->with_iova)
        remr->mr = ibv_reg_mr_iova(in, end->buf + remr->offset, remr->length, remr->iova, remr->access);
    else
        remr->mr = ibv_reg_mr(in, end->buf + remr->offset, remr->length, remr->access);
    CHECK(remr->mr, "registration: %s", strerror(errno));
    remr->lkey = remr->mr->lkey;
    remr->rkey = remr->mr->rkey;
}

static void drop_mr(struct end *end, void *arg)
{
    struct remr *remr = arg;

    CHECK_ZERO(ibv_dereg_mr(remr->mr));
    if (remr->pd)
        CHECK_ZERO(ibv_dealloc_pd(remr->pd));
}

enum {
    ALL_ACCESS =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
};

static void an_iova_translates_remote_and_local_addresses(void **state)
{
    const uint64_t iovas[] = {0, 0x1000, 0x7ffffff00123, UINT64_MAX - 65535};

    for (size_t i = 0; i < COUNT(iovas); i++) {
        struct remr remr = {
            .access = ALL_ACCESS, .offset = 1024, .length = 8192, .iova = iovas[i], .with_iova = true};
        struct send send;
        struct recv recv;
        struct pair p;

        pair_connect(&p, IBV_QPT_RC);
        AT(&p.b, make_mr, &remr);
        end_fill(&p.a, 0, 5000, i);
        send = a_write(&p.a, 1, 0, 5000, &p.b, 0);
        send.wr.wr.rdma.remote_addr = iovas[i] + 100;
        send.wr.wr.rdma.rkey = remr.rkey;
        end_send(&p.a, send);
        end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
        end_expect_data(&p.b, 1024 + 100, 5000, i);
        recv = a_recv(&p.b, 2, 0, 1000);
        recv.sge[0].addr = iovas[i] + 7000;
        recv.sge[0].lkey = remr.lkey;
        end_recv(&p.b, recv);
        end_send(&p.a, a_send(&p.a, 2, 0, 1000));
        end_expect_success(&p.b, RQ, 2, IBV_WC_RECV);
        end_expect_success(&p.a, SQ, 2, IBV_WC_SEND);
        end_expect_data(&p.b, 1024 + 7000, 1000, i);
        AT(&p.b, drop_mr, &remr);
        pair_close(&p);
    }
}

static void a_zero_based_mr_counts_from_0(void **state)
{
    struct remr remr = {.access = ALL_ACCESS | IBV_ACCESS_ZERO_BASED, .offset = 512, .length = 4096};
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    AT(&p.b, make_mr, &remr);
    end_fill(&p.a, 0, 64, 1);
    send = a_write(&p.a, 1, 0, 64, &p.b, 0);
    send.wr.wr.rdma.remote_addr = 8;
    send.wr.wr.rdma.rkey = remr.rkey;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_expect_data(&p.b, 520, 64, 1);
    AT(&p.b, drop_mr, &remr);
    pair_close(&p);
}

static void a_deregistered_key_fails_and_touches_nothing(void **state)
{
    struct remr remr = {.access = ALL_ACCESS, .length = 8192};
    struct send send;
    struct recv recv;
    struct pair p;

    /* remote */
    pair_connect(&p, IBV_QPT_RC);
    AT(&p.b, make_mr, &remr);
    send = a_write(&p.a, 1, 0, 64, &p.b, 0);
    send.wr.wr.rdma.rkey = remr.rkey;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    AT(&p.b, drop_mr, &remr);
    end_fill(&p.b, 0, 64, 1);
    end_send(&p.a, send);
    end_expect_status(&p.a, SQ, 1, IBV_WC_REM_ACCESS_ERR);
    end_expect_data(&p.b, 0, 64, 1);
    pair_close(&p);
    /* a receive that was posted before */
    pair_connect(&p, IBV_QPT_RC);
    AT(&p.b, make_mr, &remr);
    recv = a_recv(&p.b, 2, 0, 64);
    recv.sge[0].lkey = remr.lkey;
    end_recv(&p.b, recv);
    AT(&p.b, drop_mr, &remr);
    end_fill(&p.b, 0, 64, 1);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_expect_status(&p.b, RQ, 2, IBV_WC_LOC_PROT_ERR);
    end_expect_status(&p.a, SQ, 1, IBV_WC_REM_OP_ERR);
    end_expect_data(&p.b, 0, 64, 1);
    pair_close(&p);
}

static void memory_is_free_to_use_after_dereg_while_a_peer_writes(void **state)
{
    for (unsigned int round = 0; round < 20; round++) {
        struct remr remr = {.access = ALL_ACCESS, .length = 32768};
        unsigned int done = 0;
        struct ibv_wc wc[32];
        struct send send;
        struct pair p;

        pair_connect(&p, IBV_QPT_RC);
        AT(&p.b, make_mr, &remr);
        send = a_write(&p.a, 1, 0, 32768, &p.b, 0);
        send.wr.wr.rdma.rkey = remr.rkey;
        for (unsigned int i = 0; i < 32; i++)
            end_send(&p.a, send);
        AT(&p.b, drop_mr, &remr);
        end_fill(&p.b, 0, 32768, round); /* from here on it is the program's */
        end_poll(&p.a, SQ, wc, 32);
        for (unsigned int i = 0; i < 32; i++)
            done += wc[i].status == IBV_WC_SUCCESS;
        end_expect_data(&p.b, 0, 32768, round);
        assert_true(done <= 32);
        pair_close(&p);
    }
}

static void a_null_mr_swallows_writes_and_reads_as_zeros(void **state)
{
    struct send send;
    struct ibv_mr *null;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    null = ibv_alloc_null_mr(p.a.pd);
    if (!null && errno == EOPNOTSUPP)
        skip_because("no null MRs");
    assert_non_null(null);
    assert_int_not_equal(null->lkey, 0);
    end_fill(&p.b, 0, 5000, 1);
    send = a_read(&p.a, 1, 0, 5000, &p.b, 0); /* into nothing */
    send.sge[0].addr = 0;
    send.sge[0].lkey = null->lkey;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_READ);
    send.wr.opcode = IBV_WR_RDMA_WRITE; /* from nothing */
    send.wr.wr_id = 2;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_WRITE);
    end_send(&p.a, a_read(&p.a, 3, 0, 5000, &p.b, 0));
    end_expect_success(&p.a, SQ, 3, IBV_WC_RDMA_READ);
    for (size_t i = 0; i < 5000; i++)
        assert_int_equal(p.a.buf[i], 0);
    assert_int_not_equal(
        ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), 0);
    assert_int_equal(ibv_dereg_mr(null), 0);
    pair_close(&p);
}

/* §4.8 */

static void rereg_here(struct end *end, void *arg)
{
    struct remr *remr = arg;

    errno = 0;
    remr->result = ibv_rereg_mr(end->mr, remr->flags, remr->pd, remr->length ? end->buf + remr->offset : NULL,
                                remr->length, (int)remr->access);
    end->lkey = end->mr->lkey;
    end->rkey = end->mr->rkey;
    if (remr->result == IBV_REREG_MR_ERR_INPUT && errno != EINVAL)
        remr->result = -100;
}

static void alloc_pd_here(struct end *end, void *arg)
{
    struct ibv_pd **other = arg;

    *other = ibv_alloc_pd(end->context);
}

static void dealloc_pd_here(struct end *end, void *arg)
{
    struct ibv_pd **other = arg;

    CHECK_ZERO(ibv_dealloc_pd(*other));
}

static void rereg_refuses_bad_input_and_leaves_the_mr_valid(void **state)
{
    const struct remr bad[] = {
        {.flags = 1 << 5},
        {.flags = IBV_REREG_MR_CHANGE_TRANSLATION}, /* no address, no length */
        {.flags = IBV_REREG_MR_CHANGE_TRANSLATION, .offset = 0, .length = 0},
        {.flags = IBV_REREG_MR_CHANGE_TRANSLATION, .length = 4096, .access = IBV_ACCESS_LOCAL_WRITE},
        {.flags = IBV_REREG_MR_CHANGE_ACCESS, .access = IBV_ACCESS_REMOTE_WRITE},
    };
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct remr remr = bad[i];

        AT(&p.b, rereg_here, &remr);
        CHECK(remr.result == IBV_REREG_MR_ERR_INPUT, "case %zu: %d", i, remr.result);
    }
    end_send(&p.a, a_write(&p.a, 1, 0, 64, &p.b, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void rereg_changes_the_access(void **state)
{
    struct remr remr = {.flags = IBV_REREG_MR_CHANGE_ACCESS,
                        .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ};
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    AT(&p.b, rereg_here, &remr);
    assert_int_equal(remr.result, 0);
    end_send(&p.a, a_read(&p.a, 1, 0, 64, &p.b, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_READ);
    end_send(&p.a, a_write(&p.a, 2, 0, 64, &p.b, 0));
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    pair_close(&p);
}

static void rereg_changes_the_translation(void **state)
{
    struct remr remr = {.flags = IBV_REREG_MR_CHANGE_TRANSLATION, .offset = 8192, .length = 4096};
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    AT(&p.b, rereg_here, &remr);
    assert_int_equal(remr.result, 0);
    end_fill(&p.a, 0, 64, 1);
    end_send(&p.a, a_write(&p.a, 1, 0, 64, &p.b, 8192));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_expect_data(&p.b, 8192, 64, 1);
    end_send(&p.a, a_write(&p.a, 2, 0, 64, &p.b, 0));
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    pair_close(&p);
}

static void rereg_to_another_pd_fails_pending_receives_and_the_sender_sees_it(void **state)
{
    struct remr remr = {.flags = IBV_REREG_MR_CHANGE_PD};
    struct ibv_pd *home;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    home = p.b.pd;
    AT(&p.b, alloc_pd_here, &remr.pd);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 64));
    AT(&p.b, rereg_here, &remr);
    assert_int_equal(remr.result, 0);
    end_send(&p.a, a_send(&p.a, 1, 0, 64));
    end_expect_status(&p.b, RQ, 1, IBV_WC_LOC_PROT_ERR);
    end_expect_status(&p.a, SQ, 1, IBV_WC_REM_OP_ERR);
    /* and back: the other PD is free again */
    {
        struct ibv_pd *other = remr.pd;

        remr.pd = home;
        AT(&p.b, rereg_here, &remr);
        assert_int_equal(remr.result, 0);
        AT(&p.b, dealloc_pd_here, &other);
    }
    pair_close(&p);
}

/* What SOFTHCA_LOCAL=auto asks for on this machine: with the full userfaultfd, memory is mapped in the background;
 * with the user-mode one, in calls of a program with one thread. */
static bool maps_unasked(int flags)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | flags);

    if (fd >= 0)
        close(fd);
    return fd >= 0 && prctl(PR_GET_SECCOMP) == 0 && slowness() == 1;
}

static void memory_is_shared_once_a_peer_uses_it(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_mr *late;
    uint64_t id = 0;
    struct pair p;

    if (path_under_test() != PATH_AUTO)
        skip_because("a matter of SOFTHCA_LOCAL=auto");
    if (!maps_unasked(0))
        skip_because("memory is not mapped unasked here (softhca doctor says why)");
    attr.size = 65536;
    pair_connect_as(&p, &attr);
    late = ibv_reg_mr(p.a.pd, p.a.buf + 32768, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    assert_non_null(late);
    for (unsigned i = 0; i < 8; i++) {
        end_send(&p.b, a_write(&p.b, ++id, 0, 8, &p.a, 0));
        end_expect_success(&p.b, SQ, id, IBV_WC_RDMA_WRITE);
    }
    /* What the peer's process has asked of this one by now has arrived. */
    pair_marker(&p.b, &p.a);
    assert_false(is_mapped(getpid(), p.a.buf));
    EVENTUALLY(is_mapped(getpid(), p.a.buf), "the memory to be mapped")
    {
        end_poke64(&p.b, 0, ++id);
        end_send(&p.b, a_write(&p.b, id, 0, 8, &p.a, 0));
        end_expect_success(&p.b, SQ, id, IBV_WC_RDMA_WRITE);
        assert_int_equal(end_peek64(&p.a, 0), id);
    }
    assert_true(is_mapped(getpid(), p.a.buf));
    assert_false(is_mapped(p.b.side->pid, p.b.buf)); /* nobody has used it */
    CHECK_ZERO(ibv_dereg_mr(late));
    assert_true(is_mapped(getpid(), p.a.buf));
    CHECK_ZERO(ibv_dereg_mr(p.a.mr));
    p.a.mr = NULL;
    assert_false(is_mapped(getpid(), p.a.buf));
    assert_int_equal(end_peek64(&p.a, 0), id);
    pair_close(&p);
}

static void *sit_in_a_call(void *fd)
{
    char byte;

    return read(*(int *)fd, &byte, 1) < 0 ? fd : NULL;
}

static struct ibv_mr *writable(struct pair *p, size_t offset)
{
    struct ibv_mr *mr =
        ibv_reg_mr(p->a.pd, p->a.buf + offset, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

    assert_non_null(mr);
    return mr;
}

/* So many WRITEs of the peer, between two polls of this process. */
static void peer_writes(struct pair *p, const struct ibv_mr *mr, unsigned count)
{
    struct end to = p->a;
    struct ibv_wc wc;

    to.rkey = mr->rkey;
    for (unsigned i = 1; i <= count; i++) {
        end_poke64(&p->b, 0, i);
        end_send(&p->b, a_write(&p->b, i, 0, 8, &to, (size_t)((uint8_t *)mr->addr - p->a.buf)));
        end_expect_success(&p->b, SQ, i, IBV_WC_RDMA_WRITE);
        assert_int_equal(*(uint64_t *)mr->addr, i);
        assert_int_equal(ibv_poll_cq(p->a.send_cq, 1, &wc), 0);
    }
}

/* Where system calls of other threads could fail, memory is mapped only while there are none, and stays so. */
static void memory_of_one_thread_is_mapped_in_its_calls(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct ibv_mr *early, *late, *threaded;
    pthread_t thread;
    int fds[2];
    struct pair p;

    if (path_under_test() != PATH_AUTO)
        skip_because("a matter of SOFTHCA_LOCAL=auto");
    if (maps_unasked(0) || !maps_unasked(UFFD_USER_MODE_ONLY))
        skip_because("memory is mapped in the background here, or not unasked");
    attr.size = 65536;
    pair_connect_as(&p, &attr);
    early = p.a.mr;
    assert_true(is_mapped(getpid(), p.a.buf + 4096)); /* registered before the connection */
    CHECK_ZERO(ibv_dereg_mr(early));
    p.a.mr = NULL;
    assert_false(is_mapped(getpid(), p.a.buf + 4096));

    late = writable(&p, 8192);
    peer_writes(&p, late, 8);
    assert_false(is_mapped(getpid(), late->addr)); /* not often enough */
    EVENTUALLY(is_mapped(getpid(), late->addr), "the memory to be mapped")
    peer_writes(&p, late, 16);

    CHECK_ZERO(pipe(fds));
    CHECK_ZERO(pthread_create(&thread, NULL, sit_in_a_call, &fds[0]));
    threaded = writable(&p, 16384);
    peer_writes(&p, threaded, 1000);
    assert_false(is_mapped(getpid(), threaded->addr));
    CHECK_ZERO(ibv_dereg_mr(threaded));
    peer_writes(&p, late, 100);
    CHECK_ZERO(ibv_dereg_mr(late));
    assert_true(is_mapped(getpid(), p.a.buf + 8192)); /* nobody has a key */
    assert_int_equal(*(uint64_t *)(void *)(p.a.buf + 8192), 100);
    assert_int_equal(write(fds[1], "", 1), 1);
    CHECK_ZERO(pthread_join(thread, NULL));
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(reg_mr_fills_the_handle),
        TEST(lkey_and_rkey_differ),
        TEST(remote_write_and_atomic_need_local_write),
        TEST(unknown_access_bits_are_einval_and_optional_ones_ignored),
        TEST(a_wrapping_range_is_einval),
        TEST(an_empty_range_is_einval),
        TEST(an_unmapped_range_is_efault),
        TEST(read_only_memory_is_efault_with_any_write_and_fine_without),
        TEST(the_same_memory_may_be_registered_many_times),
        TEST(a_key_is_not_reused_soon),
        TEST(an_iova_translates_remote_and_local_addresses),
        TEST(a_zero_based_mr_counts_from_0),
        TEST(a_deregistered_key_fails_and_touches_nothing),
        TEST(memory_is_free_to_use_after_dereg_while_a_peer_writes),
        TEST(a_null_mr_swallows_writes_and_reads_as_zeros),
        TEST(rereg_refuses_bad_input_and_leaves_the_mr_valid),
        TEST(rereg_changes_the_access),
        TEST(rereg_changes_the_translation),
        TEST(rereg_to_another_pd_fails_pending_receives_and_the_sender_sees_it),
        TEST_WITH(memory_is_shared_once_a_peer_uses_it, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(memory_of_one_thread_is_mapped_in_its_calls, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
