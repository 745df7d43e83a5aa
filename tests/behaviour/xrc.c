/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §1.4, §1.5, §2.11, §6.4: XRC. Each side has both halves of a connection and two SRQs, the
 * second of another PD. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "work.h"

enum { SRQS = 2, RECEIVES = 16 };

/* Pointers mean something only on their side. */
struct half {
    struct ibv_xrcd *xrcd;
    struct ibv_pd *pd; /* of the second SRQ */
    struct ibv_mr *mr; /* likewise */
    struct ibv_cq *cq; /* of the SRQs */
    struct ibv_srq *srq[SRQS];
    struct ibv_qp *send, *receive;
    uint32_t srqn[SRQS], send_qpn, receive_qpn, lkey, rkey;
    bool foreign_second; /* the second SRQ is of another domain */
    struct ibv_xrcd *other;
    /* for connect_here() */
    struct end peer;
    uint32_t peer_send_qpn, peer_receive_qpn;
};

static struct ibv_xrcd *open_domain(struct ibv_context *context, int fd, int flags)
{
    struct ibv_xrcd_init_attr attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = flags};

    return ibv_open_xrcd(context, &attr);
}

static struct ibv_srq *make_srq(struct ibv_pd *pd, struct ibv_xrcd *xrcd, struct ibv_cq *cq)
{
    struct ibv_srq_init_attr_ex attr = {
        .attr = {.max_wr = RECEIVES, .max_sge = 1},
        .comp_mask =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
        .srq_type = IBV_SRQT_XRC,
        .pd = pd,
        .xrcd = xrcd,
        .cq = cq,
    };

    return ibv_create_srq_ex(pd->context, &attr);
}

static struct ibv_qp *make_receive(struct ibv_context *context, struct ibv_xrcd *xrcd)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};

    return ibv_create_qp_ex(context, &attr);
}

static struct ibv_qp *make_send(struct end *end)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_XRC_SEND,
        .send_cq = end->send_cq,
        .cap = {.max_send_wr = RECEIVES, .max_send_sge = 1, .max_recv_wr = 7 /* of no meaning */},
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = end->pd,
    };

    return ibv_create_qp_ex(end->context, &attr);
}

static void open_here(struct end *end, void *arg)
{
    struct half *half = arg;

    half->xrcd = open_domain(end->context, -1, O_CREAT);
    CHECK(half->xrcd, "ibv_open_xrcd: %s", strerror(errno));
    half->pd = ibv_alloc_pd(end->context);
    half->mr = ibv_reg_mr(half->pd, end->buf, end->attr.size,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                              IBV_ACCESS_REMOTE_ATOMIC);
    half->lkey = half->mr->lkey;
    half->rkey = half->mr->rkey;
    half->cq = ibv_create_cq(end->context, 64, NULL, NULL, 0);
    half->srq[0] = make_srq(end->pd, half->xrcd, half->cq);
    if (half->foreign_second)
        half->other = open_domain(end->context, -1, O_CREAT);
    half->srq[1] = make_srq(half->pd, half->foreign_second ? half->other : half->xrcd, half->cq);
    for (int i = 0; i < SRQS; i++) {
        CHECK(half->srq[i], "ibv_create_srq_ex: %s", strerror(errno));
        CHECK(!ibv_get_srq_num(half->srq[i], &half->srqn[i]), "ibv_get_srq_num");
    }
    half->receive = make_receive(end->context, half->xrcd);
    half->send = make_send(end);
    CHECK(half->receive && half->send, "ibv_create_qp_ex: %s", strerror(errno));
    CHECK(!half->receive->pd && !half->receive->send_cq && !half->receive->srq, "it has none of these");
    half->receive_qpn = half->receive->qp_num;
    half->send_qpn = half->send->qp_num;
}

static void connect_one(struct end *end, struct half *half, struct ibv_qp *qp, uint32_t to)
{
    struct ibv_qp_attr attr;
    int mask;

    mask = attr_for_init(end, &attr);
    CHECK(!ibv_modify_qp(qp, &attr, mask), "INIT");
    mask = attr_for_rtr(end, &half->peer, &attr);
    attr.dest_qp_num = to;
    if (qp == half->send) /* it answers nothing */
        mask &= ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    CHECK(!ibv_modify_qp(qp, &attr, mask), "RTR");
    mask = attr_for_rts(end, &attr);
    if (qp == half->receive)
        mask &= ~(IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    CHECK(!ibv_modify_qp(qp, &attr, mask), "RTS");
}

static void connect_here(struct end *end, void *arg)
{
    struct half *half = arg;

    connect_one(end, half, half->receive, half->peer_send_qpn);
    connect_one(end, half, half->send, half->peer_receive_qpn);
}

static void close_here(struct end *end, void *arg)
{
    struct half *half = arg;

    CHECK(ibv_close_xrcd(half->xrcd) == EBUSY, "close with objects in it");
    CHECK(!half->srq[1] || ibv_destroy_cq(half->cq) == EBUSY, "destroy of the SRQs' CQ");
    CHECK(!ibv_destroy_qp(half->send), "destroy");
    for (int i = 0; i < SRQS; i++)
        CHECK(!half->srq[i] || !ibv_destroy_srq(half->srq[i]), "destroy");
    CHECK(ibv_close_xrcd(half->xrcd) == EBUSY, "close with a QP in it");
    CHECK(!ibv_destroy_qp(half->receive), "destroy");
    CHECK(!ibv_close_xrcd(half->xrcd), "close");
    CHECK(!half->other || !ibv_close_xrcd(half->other), "close");
    CHECK(!ibv_destroy_cq(half->cq), "destroy");
    CHECK(!ibv_dereg_mr(half->mr), "dereg");
    CHECK(!ibv_dealloc_pd(half->pd), "dealloc");
}

struct link {
    struct pair p;
    struct half a, b;
};

static void open_link(struct link *link, bool foreign_second)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);

    memset(link, 0, sizeof(*link));
    pair_open(&link->p, &attr, &attr);
    link->b.foreign_second = foreign_second;
    AT(&link->p.a, open_here, &link->a);
    AT(&link->p.b, open_here, &link->b);
    link->a.peer = link->p.b;
    link->a.peer_send_qpn = link->b.send_qpn;
    link->a.peer_receive_qpn = link->b.receive_qpn;
    link->b.peer = link->p.a;
    link->b.peer_send_qpn = link->a.send_qpn;
    link->b.peer_receive_qpn = link->a.receive_qpn;
    AT(&link->p.a, connect_here, &link->a);
    AT(&link->p.b, connect_here, &link->b);
    link->p.a.qp_num = link->a.send_qpn; /* whose completions are expected */
    link->p.b.qp_num = link->b.send_qpn;
}

static void close_link(struct link *link)
{
    AT(&link->p.a, close_here, &link->a);
    AT(&link->p.b, close_here, &link->b);
    pair_close(&link->p);
}

/* --- work ----------------------------------------------------------------------------------------------- */

struct posting {
    struct half half;
    int srq;
    uint64_t id;
    size_t offset, length;
};

static void receive_here(struct end *end, void *arg)
{
    struct posting *posting = arg;
    struct ibv_sge sge = {(uintptr_t)end->buf + posting->offset, (uint32_t)posting->length,
                          posting->srq ? posting->half.lkey : end->lkey};
    struct ibv_recv_wr wr = {.wr_id = posting->id, .sg_list = &sge, .num_sge = 1}, *bad;

    CHECK(!ibv_post_srq_recv(posting->half.srq[posting->srq], &wr, &bad), "ibv_post_srq_recv");
}

static void receive_at(struct end *end, const struct half *half, int srq, uint64_t id, size_t offset,
                       size_t length)
{
    struct posting posting = {.half = *half, .srq = srq, .id = id, .offset = offset, .length = length};

    AT(end, receive_here, &posting);
}

struct polling {
    struct half half;
    struct ibv_wc wc;
};

static void poll_here(struct end *end, void *arg)
{
    struct polling *polling = arg;
    int count;

    do {
        count = ibv_poll_cq(polling->half.cq, 1, &polling->wc);
    } while (!count);
    CHECK(count == 1, "ibv_poll_cq: %d", count);
}

static struct ibv_wc received(struct end *end, const struct half *half)
{
    struct polling polling = {.half = *half};

    AT(end, poll_here, &polling);
    return polling.wc;
}

/* a's XRC_SEND QP is near: pointers hold here. */
static void send_to(struct link *link, struct send send, uint32_t srqn)
{
    struct ibv_send_wr *bad;

    send.wr.sg_list = send.sge;
    send.wr.qp_type.xrc.remote_srqn = srqn;
    CHECK(!ibv_post_send(link->a.send, &send.wr, &bad), "ibv_post_send");
}

static void messages_go_to_the_srq_that_they_name(void **state)
{
    const size_t sizes[] = {1, 64, 4096, 65536};
    struct link link;

    open_link(&link, false);
    for (uint64_t i = 0; i < 12; i++) {
        size_t length = sizes[i % COUNT(sizes)];
        int srq = (int)(i / 2 % SRQS);
        struct send send =
            i % 3 ? a_send(&link.p.a, i, 0, length) : a_send_imm(&link.p.a, i, 0, length, 0x1234);
        struct ibv_wc wc;

        end_fill(&link.p.a, 0, length, i);
        receive_at(&link.p.b, &link.b, srq, 100 + i, 0, length);
        send_to(&link, send, link.b.srqn[srq]);
        wc = received(&link.p.b, &link.b);
        check_success(&wc, 100 + i, IBV_WC_RECV);
        assert_int_equal(wc.qp_num, link.b.receive_qpn);
        assert_int_equal(wc.byte_len, length);
        assert_int_equal(!!(wc.wc_flags & IBV_WC_WITH_IMM), i % 3 == 0);
        end_expect_success(&link.p.a, SQ, i, IBV_WC_SEND);
        end_expect_data(&link.p.b, 0, length, i);
    }
    close_link(&link);
}

/* What a message does not use of its receive is not looked at. */
static void a_receive_may_be_longer_than_its_region_but_not_the_message(void **state)
{
    const size_t sizes[] = {64, 4096, 60000};
    struct link link;

    for (unsigned int i = 0; i < 2 * COUNT(sizes); i++) {
        size_t length = sizes[i / 2], excess = i % 2;
        struct ibv_wc wc;

        open_link(&link, false);
        end_fill(&link.p.a, 0, length + excess, i);
        receive_at(&link.p.b, &link.b, 0, 1, link.p.b.attr.size - length, 2 * link.p.b.attr.size);
        send_to(&link, a_send(&link.p.a, 2, 0, length + excess), link.b.srqn[0]);
        wc = received(&link.p.b, &link.b);
        assert_int_equal(wc.status, excess ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS);
        end_expect_status(&link.p.a, SQ, 2, excess ? IBV_WC_REM_OP_ERR : IBV_WC_SUCCESS);
        if (!excess)
            end_expect_data(&link.p.b, link.p.b.attr.size - length, length, i);
        close_link(&link);
    }
}

static void remote_memory_is_that_of_the_srqs_pd(void **state)
{
    struct link link;

    for (int wrong = 0; wrong < 4; wrong++) { /* 0: nothing is; else which operation */
        for (int operation = 1; operation < 4; operation++) {
            struct ibv_wc wc;

            if (wrong && wrong != operation)
                continue;
            open_link(&link, false);
            for (int srq = 0; srq < SRQS; srq++) {
                uint32_t rkey = srq ? link.b.rkey : link.p.b.rkey;
                struct send send = operation == 1   ? a_write(&link.p.a, 1, 0, 9000, &link.p.b, 0)
                                   : operation == 2 ? a_read(&link.p.a, 1, 0, 9000, &link.p.b, 0)
                                                    : a_fetch_add(&link.p.a, 1, 0, &link.p.b, 0, 5);

                if (operation == 3)
                    send.wr.wr.atomic.rkey = rkey;
                else
                    send.wr.wr.rdma.rkey = rkey;
                end_fill(operation == 1 ? &link.p.a : &link.p.b, 0, 9000, 8);
                send_to(&link, send, link.b.srqn[wrong ? !srq : srq]);
                wc = end_wc(&link.p.a, SQ);
                assert_int_equal(wc.status, wrong ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS);
                if (wrong)
                    break; /* the QP is in error */
                if (operation < 3)
                    end_expect_data(operation == 1 ? &link.p.b : &link.p.a, 0, 9000, 8);
            }
            close_link(&link);
        }
    }
}

static void an_srq_that_is_not_there_ends_the_connection(void **state)
{
    /* no number; an SRQ's of another domain; a QP's; one that is destroyed */
    for (int which = 0; which < 3; which++) {
        struct link link;
        uint32_t srqn;

        open_link(&link, true);
        srqn = which == 0 ? 5 : which == 1 ? link.b.srqn[1] : link.b.receive_qpn;
        send_to(&link, a_send(&link.p.a, 1, 0, 64), srqn);
        end_expect_status(&link.p.a, SQ, 1, IBV_WC_REM_INV_REQ_ERR);
        close_link(&link);
    }
}

static void destroy_here(struct end *end, void *arg)
{
    struct half *half = arg;

    CHECK(!ibv_destroy_srq(half->srq[0]), "ibv_destroy_srq");
    half->srq[0] = NULL;
}

static void an_srq_can_be_destroyed_while_a_qp_has_used_it(void **state)
{
    struct ibv_wc wc;
    struct link link;

    open_link(&link, false);
    receive_at(&link.p.b, &link.b, 0, 7, 0, 64);
    send_to(&link, a_send(&link.p.a, 1, 0, 64), link.b.srqn[0]);
    wc = received(&link.p.b, &link.b);
    check_success(&wc, 7, IBV_WC_RECV);
    end_expect_success(&link.p.a, SQ, 1, IBV_WC_SEND);
    AT(&link.p.b, destroy_here, &link.b);
    receive_at(&link.p.b, &link.b, 1, 8, 0, 64);
    send_to(&link, a_send(&link.p.a, 2, 0, 64), link.b.srqn[1]); /* the other one goes on */
    wc = received(&link.p.b, &link.b);
    check_success(&wc, 8, IBV_WC_RECV);
    end_expect_success(&link.p.a, SQ, 2, IBV_WC_SEND);
    send_to(&link, a_send(&link.p.a, 3, 0, 64), link.b.srqn[0]);
    end_expect_status(&link.p.a, SQ, 3, IBV_WC_REM_INV_REQ_ERR);
    close_link(&link);
}

static void an_empty_srq_is_waited_for(void **state)
{
    struct ibv_wc wc;
    struct link link;

    open_link(&link, false);
    send_to(&link, a_send(&link.p.a, 1, 0, 64), link.b.srqn[0]);
    receive_at(&link.p.b, &link.b, 1, 9, 0, 64); /* not this one */
    receive_at(&link.p.b, &link.b, 0, 8, 0, 64);
    wc = received(&link.p.b, &link.b);
    check_success(&wc, 8, IBV_WC_RECV);
    end_expect_success(&link.p.a, SQ, 1, IBV_WC_SEND);
    close_link(&link);
}

static void refuse_here(struct end *end, void *arg)
{
    struct half *half = arg;

    CHECK(ibv_close_xrcd(half->xrcd) == EBUSY, "ibv_close_xrcd");
    CHECK(ibv_destroy_cq(half->cq) == EBUSY, "ibv_destroy_cq");
}

static void refuse_without_srqs_here(struct end *end, void *arg)
{
    struct half *half = arg;

    destroy_here(end, half);
    CHECK(!ibv_destroy_srq(half->srq[1]), "ibv_destroy_srq");
    half->srq[1] = NULL;
    CHECK(ibv_close_xrcd(half->xrcd) == EBUSY, "ibv_close_xrcd while it has a QP");
}

/* verbs.md §1.2 */
static void a_domain_is_ebusy_while_an_srq_or_a_qp_uses_it_and_they_go_on(void **state)
{
    struct ibv_wc wc;
    struct link link;

    open_link(&link, false);
    receive_at(&link.p.b, &link.b, 0, 7, 0, 64); /* there before the refusal, taken after it */
    for (uint64_t i = 0; i < 4; i++) {
        AT(&link.p.a, refuse_here, &link.a);
        AT(&link.p.b, refuse_here, &link.b);
        end_fill(&link.p.a, 0, 64, i);
        send_to(&link, a_send(&link.p.a, i, 0, 64), link.b.srqn[i % SRQS]);
        if (i)
            receive_at(&link.p.b, &link.b, (int)(i % SRQS), 7 + i, 0, 64);
        wc = received(&link.p.b, &link.b);
        check_success(&wc, 7 + i, IBV_WC_RECV);
        end_expect_success(&link.p.a, SQ, i, IBV_WC_SEND);
        end_expect_data(&link.p.b, 0, 64, i);
    }
    AT(&link.p.b, refuse_without_srqs_here, &link.b);
    send_to(&link, a_send(&link.p.a, 9, 0, 64), link.b.srqn[0]); /* the QP is there: it answers */
    end_expect_status(&link.p.a, SQ, 9, IBV_WC_REM_INV_REQ_ERR);
    close_link(&link);
}

/* b's own XRC_SEND QP, over there. */
struct sending {
    struct half half;
    uint32_t srqn;
    uint64_t id;
};

static void send_here(struct end *end, void *arg)
{
    struct sending *sending = arg;
    struct send send = a_send(end, sending->id, 0, 1000);
    struct ibv_send_wr *bad;

    send.wr.sg_list = send.sge;
    send.wr.qp_type.xrc.remote_srqn = sending->srqn;
    CHECK(!ibv_post_send(sending->half.send, &send.wr, &bad), "ibv_post_send");
}

static void both_directions_carry(void **state)
{
    struct ibv_wc wc;
    struct link link;

    open_link(&link, false);
    for (uint64_t i = 0; i < 100; i++) {
        struct sending back = {.half = link.b, .srqn = link.a.srqn[i % 2], .id = i};

        receive_at(&link.p.b, &link.b, 0, i, 0, 1000);
        receive_at(&link.p.a, &link.a, (int)(i % 2), i, 0, 1000);
        send_to(&link, a_send(&link.p.a, i, 0, 1000), link.b.srqn[0]);
        AT(&link.p.b, send_here, &back);
        wc = received(&link.p.b, &link.b);
        check_success(&wc, i, IBV_WC_RECV);
        wc = received(&link.p.a, &link.a);
        check_success(&wc, i, IBV_WC_RECV);
        end_expect_success(&link.p.a, SQ, i, IBV_WC_SEND);
        end_expect_success(&link.p.b, SQ, i, IBV_WC_SEND);
    }
    close_link(&link);
}

/* --- creation ------------------------------------------------------------------------------------------- */

static void refused(void *object, int error)
{
    CHECK(!object && errno == error, "%s instead of %s", object ? "accepted" : strerror(errno),
          strerror(error));
    errno = 0;
}

static void domains_follow_the_file_and_the_flags(void **state)
{
    struct ibv_context *context = open_the_device();
    struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1, .oflags = O_CREAT};
    char name[] = "/tmp/softhca-xrc-XXXXXX";
    int fd = mkstemp(name), again;
    struct ibv_xrcd *one, *two;

    assert_true(fd >= 0);
    again = open(name, O_RDONLY | O_CLOEXEC);
    unlink(name);
    errno = 0;
    refused(ibv_open_xrcd(context, &attr), EINVAL);
    attr.comp_mask = ~0u;
    refused(ibv_open_xrcd(context, &attr), EOPNOTSUPP);
    refused(open_domain(context, 1 << 20, O_CREAT), EBADF);
    refused(open_domain(context, fd, 0), EAGAIN); /* there is none */
    one = open_domain(context, fd, O_CREAT);
    assert_non_null(one);
    refused(open_domain(context, again, O_CREAT | O_EXCL), EINVAL);
    two = open_domain(context, again, 0);
    assert_non_null(two);
    assert_int_equal(ibv_close_xrcd(one), 0);
    assert_int_equal(ibv_close_xrcd(two), 0);
    refused(open_domain(context, fd, 0), EAGAIN); /* gone with the last */
    close(fd);
    close(again);
    ibv_close_device(context);
}

static void halves_refuse_what_is_not_theirs(void **state)
{
    struct ibv_srq_init_attr basic_attr = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_PD};
    struct ibv_qp_init_attr plain = {.qp_type = IBV_QPT_XRC_RECV};
    struct ibv_recv_wr receive = {0}, *bad_receive;
    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
    struct ibv_srq *basic;
    uint32_t number;
    struct link link;

    open_link(&link, false);
    errno = 0;
    refused(ibv_create_qp(link.p.a.pd, &plain), EINVAL);
    attr.pd = link.p.a.pd;
    refused(ibv_create_qp_ex(link.p.a.context, &attr), EINVAL); /* no domain */
    basic = ibv_create_srq(link.p.a.pd, &basic_attr);
    assert_int_equal(ibv_get_srq_num(basic, &number), EINVAL);
    attr = (struct ibv_qp_init_attr_ex){.qp_type = IBV_QPT_XRC_SEND,
                                        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                        .pd = link.p.a.pd,
                                        .send_cq = link.p.a.send_cq,
                                        .srq = basic};
    refused(ibv_create_qp_ex(link.p.a.context, &attr), EINVAL);
    attr.srq = NULL;
    attr.send_cq = NULL;
    refused(ibv_create_qp_ex(link.p.a.context, &attr), EINVAL);
    /* An XRC SRQ serves no QP of another type. */
    plain = (struct ibv_qp_init_attr){.qp_type = IBV_QPT_RC,
                                      .send_cq = link.p.a.send_cq,
                                      .recv_cq = link.p.a.recv_cq,
                                      .srq = link.a.srq[0]};
    refused(ibv_create_qp(link.p.a.pd, &plain), EINVAL);
    assert_int_equal(ibv_post_recv(link.a.send, &receive, &bad_receive), EINVAL);
    assert_int_equal(ibv_post_recv(link.a.receive, &receive, &bad_receive), EINVAL);
    assert_int_equal(ibv_post_send(link.a.receive, &send, &bad_send), EINVAL);
    assert_int_equal(ibv_destroy_srq(basic), 0);
    close_link(&link);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(messages_go_to_the_srq_that_they_name),
        TEST(a_receive_may_be_longer_than_its_region_but_not_the_message),
        TEST(remote_memory_is_that_of_the_srqs_pd),
        TEST(an_srq_that_is_not_there_ends_the_connection),
        TEST(an_srq_can_be_destroyed_while_a_qp_has_used_it),
        TEST(a_domain_is_ebusy_while_an_srq_or_a_qp_uses_it_and_they_go_on),
        TEST(an_empty_srq_is_waited_for),
        TEST(both_directions_carry),
        TEST(domains_follow_the_file_and_the_flags),
        TEST(halves_refuse_what_is_not_theirs),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
