/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §6.5: tag matching SRQs. a sends, b has the SRQ; its QP completes on the SRQ's CQ, an
 * extended one. */
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/tm_types.h>

#include "work.h"

enum {
    TAGS = 8,
    OPS = 4,
    HEADER = sizeof(struct ibv_tmh),
    RENDEZVOUS = sizeof(struct ibv_tmh) + sizeof(struct ibv_rvh),
    /* places in the buffers */
    MESSAGE = 0,      /* a: what is sent */
    DATA = 16 * 1024, /* a: what a rendezvous is about */
    REPLY = 48 * 1024 /* a: where FINs go */
};

struct tm_attr {
    uint32_t max_send_wr;
};

static struct ibv_srq *make_srq(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t tags, uint32_t ops)
{
    struct ibv_srq_init_attr_ex attr = {
        .attr = {.max_wr = 16, .max_sge = 1},
        .comp_mask =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
        .srq_type = IBV_SRQT_TM,
        .pd = pd,
        .cq = cq,
        .tm_cap = {.max_num_tags = tags, .max_ops = ops},
    };

    return ibv_create_srq_ex(pd->context, &attr);
}

static struct ibv_cq *make_cq(struct ibv_context *context)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_TM_INFO};

    return ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &attr));
}

/* The end's QP and receive queue become those of tag matching. */
static void change_here(struct end *end, void *arg)
{
    const struct tm_attr *tm = arg;
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC,
                                    .send_cq = end->send_cq,
                                    .cap = {.max_send_wr = tm->max_send_wr, .max_send_sge = 1},
                                    .sq_sig_all = 1};

    CHECK_ZERO(ibv_destroy_qp(end->qp));
    CHECK_ZERO(ibv_destroy_cq(end->recv_cq));
    end->recv_cq = make_cq(end->context);
    CHECK(end->recv_cq, "ibv_create_cq_ex: %s", strerror(errno));
    end->srq = make_srq(end->pd, end->recv_cq, TAGS, OPS);
    CHECK(end->srq, "ibv_create_srq_ex: %s", strerror(errno));
    attr.recv_cq = end->send_cq; /* nothing comes there */
    attr.srq = end->srq;
    end->qp = ibv_create_qp(end->pd, &attr);
    CHECK(end->qp, "ibv_create_qp: %s", strerror(errno));
    end->qp_num = end->qp->qp_num;
}

static void open_as(struct pair *p, struct tm_attr tm)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);

    pair_open(p, &attr, &attr);
    AT(&p->b, change_here, &tm);
    end_connect(&p->a, &p->b);
}

static void open(struct pair *p)
{
    open_as(p, (struct tm_attr){.max_send_wr = 4});
}

/* --- operations and completions ------------------------------------------------------------------- */

struct operation {
    enum ibv_ops_wr_opcode opcode;
    int flags;
    uint64_t id, receive, tag, mask;
    size_t offset, length;
    uint32_t count, handle; /* the latter is the answer of an add */
    int error;
};

static void operate_here(struct end *end, void *arg)
{
    struct operation *operation = arg;
    struct ibv_sge sge = {(uintptr_t)end->buf + operation->offset, (uint32_t)operation->length, end->lkey};
    struct ibv_ops_wr op = {
        .wr_id = operation->id,
        .opcode = operation->opcode,
        .flags = operation->flags,
        .tm = {.unexpected_cnt = operation->count,
               .handle = operation->handle,
               .add = {operation->receive, &sge, 1, operation->tag, operation->mask}},
    };
    struct ibv_ops_wr *bad = NULL;

    operation->error = ibv_post_srq_ops(end->srq, &op, &bad);
    CHECK(!operation->error || bad == &op, "bad_op");
    operation->handle = op.tm.handle;
}

static int operate(struct end *end, struct operation *operation)
{
    AT(end, operate_here, operation);
    return operation->error;
}

/* Its handle */
static uint32_t add(struct end *end, uint64_t receive, uint64_t tag, size_t offset, size_t length)
{
    struct operation operation = {.opcode = IBV_WR_TAG_ADD,
                                  .receive = receive,
                                  .tag = tag,
                                  .mask = UINT64_MAX,
                                  .offset = offset,
                                  .length = length};

    assert_int_equal(operate(end, &operation), 0);
    return operation.handle;
}

struct seen {
    uint64_t id, tag;
    enum ibv_wc_status status;
    enum ibv_wc_opcode opcode;
    uint32_t flags, length, context, qp_num, imm;
    bool any;
};

static void look_here(struct end *end, void *arg)
{
    struct ibv_cq_ex *cq = (struct ibv_cq_ex *)end->recv_cq; /* the inverse of ibv_cq_ex_to_cq() */
    struct ibv_poll_cq_attr attr = {0};
    struct seen *seen = arg;
    struct ibv_wc_tm_info info;

    seen->any = ibv_start_poll(cq, &attr) == 0;
    if (!seen->any)
        return;
    ibv_wc_read_tm_info(cq, &info);
    *seen = (struct seen){.id = cq->wr_id,
                          .status = cq->status,
                          .opcode = ibv_wc_read_opcode(cq),
                          .flags = ibv_wc_read_wc_flags(cq),
                          .length = ibv_wc_read_byte_len(cq),
                          .qp_num = ibv_wc_read_qp_num(cq),
                          .imm = ibv_wc_read_imm_data(cq),
                          .tag = info.tag,
                          .context = info.priv,
                          .any = true};
    ibv_end_poll(cq);
}

static struct seen look(struct end *end)
{
    struct seen seen = {0};

    EVENTUALLY(seen.any, "a completion of the SRQ")
    {
        AT(end, look_here, &seen);
    }
    return seen;
}

static struct seen expect(struct end *end, uint64_t id, enum ibv_wc_opcode opcode, unsigned int flags)
{
    struct seen seen = look(end);

    assert_int_equal(seen.status, IBV_WC_SUCCESS);
    assert_int_equal(seen.id, id);
    assert_int_equal(seen.opcode, opcode);
    assert_int_equal(seen.flags, flags);
    return seen;
}

static void expect_nothing(struct end *end)
{
    struct seen seen = {0};

    AT(end, look_here, &seen);
    assert_false(seen.any);
}

/* --- messages ------------------------------------------------------------------------------------- */

static void put_header(struct end *end, uint8_t opcode, uint32_t context, uint64_t tag)
{
    const struct ibv_tmh header = {.opcode = opcode, .app_ctx = htonl(context), .tag = htobe64(tag)};

    end_poke(end, MESSAGE, &header, sizeof(header));
}

/* `length` bytes behind the header. */
static void send_message(struct end *a, uint64_t id, uint8_t opcode, uint64_t tag, size_t length)
{
    put_header(a, opcode, (uint32_t)tag + 1, tag);
    end_fill(a, MESSAGE + HEADER, length, tag);
    end_send(a, a_send(a, id, MESSAGE, HEADER + length));
}

static void send_rendezvous(struct end *a, uint64_t id, uint64_t tag, size_t offset, size_t length,
                            uint32_t rkey)
{
    const struct ibv_rvh header = {
        .va = htobe64((uintptr_t)a->buf + offset), .rkey = htonl(rkey), .len = htonl((uint32_t)length)};

    put_header(a, IBV_TMH_RNDV, (uint32_t)tag + 1, tag);
    end_poke(a, MESSAGE + HEADER, &header, sizeof(header));
    end_send(a, a_send(a, id, MESSAGE, RENDEZVOUS));
}

static void expect_fin(struct end *a, uint64_t id, uint64_t tag)
{
    struct ibv_wc wc = end_expect_success(a, RQ, id, IBV_WC_RECV);
    struct ibv_tmh fin;

    assert_int_equal(wc.byte_len, sizeof(fin));
    end_peek(a, REPLY, &fin, sizeof(fin));
    assert_int_equal(fin.opcode, IBV_TMH_FIN);
    assert_int_equal(ntohl(fin.app_ctx), (uint32_t)tag + 1);
    assert_true(be64toh(fin.tag) == tag);
}

static void the_device_says_what_there_is(void **state)
{
    struct ibv_context *context = open_the_device();
    struct ibv_device_attr_ex attr;

    assert_int_equal(ibv_query_device_ex(context, NULL, &attr), 0);
    assert_int_equal(attr.tm_caps.flags, IBV_TM_CAP_RC);
    assert_true(attr.tm_caps.max_num_tags >= TAGS && attr.tm_caps.max_ops >= OPS);
    assert_true(attr.tm_caps.max_rndv_hdr_size >= RENDEZVOUS && attr.tm_caps.max_sge >= 1);
    assert_int_equal(ibv_close_device(context), 0);
}

static void creation_refuses_what_cannot_be(void **state)
{
    struct end end = {0};
    struct end_attr end_attr = attr_of(IBV_QPT_RC);
    struct ibv_qp_init_attr attr;
    struct ibv_device_attr_ex device;
    struct ibv_srq *srq;
    uint32_t number;

    end_open(&end, NEAR, &end_attr);
    assert_int_equal(ibv_query_device_ex(end.context, NULL, &device), 0);
    errno = 0;
    assert_null(make_srq(end.pd, end.recv_cq, 0, 1));
    assert_int_equal(errno, EINVAL);
    assert_null(make_srq(end.pd, end.recv_cq, 1, 0));
    assert_null(make_srq(end.pd, end.recv_cq, device.tm_caps.max_num_tags + 1, 1));
    assert_null(make_srq(end.pd, end.recv_cq, 1, device.tm_caps.max_ops + 1));
    assert_null(make_srq(end.pd, NULL, 1, 1));
    srq = make_srq(end.pd, end.recv_cq, device.tm_caps.max_num_tags, device.tm_caps.max_ops);
    assert_non_null(srq);
    assert_int_equal(ibv_get_srq_num(srq, &number), EINVAL);
    for (enum ibv_qp_type type = IBV_QPT_UC; type <= IBV_QPT_UD; type++) {
        attr = (struct ibv_qp_init_attr){
            .qp_type = type, .send_cq = end.send_cq, .recv_cq = end.recv_cq, .srq = srq};
        errno = 0;
        assert_null(ibv_create_qp(end.pd, &attr));
        assert_int_equal(errno, EINVAL);
    }
    assert_int_equal(ibv_destroy_qp(end.qp), 0);
    assert_int_equal(ibv_destroy_cq(end.recv_cq), EBUSY);
    assert_int_equal(ibv_destroy_srq(srq), 0);
    end.qp = NULL;
    end_close(&end);
}

static void operations_on_other_srqs_are_not_supported(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct operation operation = {.opcode = IBV_WR_TAG_SYNC};
    struct end end = {0};

    attr.srq_wr = 4;
    end_open(&end, NEAR, &attr);
    assert_int_equal(operate(&end, &operation), EOPNOTSUPP);
    end_close(&end);
}

static void a_tagged_message_takes_its_buffer(void **state)
{
    const size_t lengths[] = {0, 1, 100, 1024 - HEADER, 1024, 5000, 15000};
    struct pair p;

    open(&p);
    for (uint64_t i = 0; i < COUNT(lengths); i++) {
        struct seen seen;

        add(&p.b, 100 + i, 5, 0, 64);
        add(&p.b, 200 + i, 7000 + i, 1024, 16 * 1024);
        send_message(&p.a, i, IBV_TMH_EAGER, 7000 + i, lengths[i]);
        seen = expect(&p.b, 200 + i, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
        assert_int_equal(seen.length, lengths[i]);
        assert_true(seen.tag == 7000 + i);
        assert_int_equal(seen.context, 7001 + i);
        assert_int_equal(seen.qp_num, p.b.qp_num);
        end_expect_data(&p.b, 1024, lengths[i], 7000 + i);
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        /* The other one is still there. */
        send_message(&p.a, i, IBV_TMH_EAGER, 5, 1);
        expect(&p.b, 100 + i, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
    }
    pair_close(&p);
}

static void an_immediate_comes_along(void **state)
{
    struct pair p;
    struct seen seen;

    open(&p);
    add(&p.b, 1, 9, 0, 64);
    put_header(&p.a, IBV_TMH_EAGER, 0, 9);
    end_send(&p.a, a_send_imm(&p.a, 2, MESSAGE, HEADER + 8, 0x1234));
    seen = expect(&p.b, 1, IBV_WC_TM_RECV, IBV_WC_WITH_IMM | IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
    assert_int_equal(seen.imm, htonl(0x1234));
    assert_int_equal(seen.length, 8);
    end_expect_success(&p.a, SQ, 2, IBV_WC_SEND);
    pair_close(&p);
}

static void one_without_a_buffer_goes_to_the_srq_as_it_is(void **state)
{
    struct pair p;
    struct seen seen;

    open(&p);
    for (uint64_t i = 0; i < 2; i++) {
        end_recv(&p.b, a_recv(&p.b, 10 + i, i * 1024, 1024));
        send_message(&p.a, i, i ? IBV_TMH_NO_TAG : IBV_TMH_EAGER, 3, 100);
        seen = expect(&p.b, 10 + i, i ? IBV_WC_TM_NO_TAG : IBV_WC_TM_RECV, 0);
        assert_int_equal(seen.length, HEADER + 100);
        assert_true(seen.tag == 0 && seen.context == 0);
        end_expect_data(&p.b, i * 1024 + HEADER, 100, 3);
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
    }
    /* Nor does a message without room for a header, or with something else in it. */
    end_fill(&p.a, MESSAGE, 64, 1);
    for (uint32_t length = 0; length <= 3; length += 3) {
        end_recv(&p.b, a_recv(&p.b, 20, 0, 1024));
        end_send(&p.a, a_send(&p.a, 21, MESSAGE, length));
        seen = expect(&p.b, 20, IBV_WC_TM_NO_TAG, 0);
        assert_int_equal(seen.length, length);
        end_expect_success(&p.a, SQ, 21, IBV_WC_SEND);
    }
    end_recv(&p.b, a_recv(&p.b, 22, 0, 1024));
    send_message(&p.a, 23, 77, 3, 5);
    expect(&p.b, 22, IBV_WC_TM_NO_TAG, 0);
    end_expect_success(&p.a, SQ, 23, IBV_WC_SEND);
    pair_close(&p);
}

static void a_write_with_immediate_takes_a_receive_of_the_srq(void **state)
{
    struct pair p;
    struct send write;

    open(&p);
    add(&p.b, 1, 3, 0, 64);
    end_recv(&p.b, a_recv(&p.b, 2, 0, 64));
    put_header(&p.a, IBV_TMH_EAGER, 0, 3);
    write = a_write(&p.a, 3, MESSAGE, HEADER, &p.b, 1024);
    write.wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    end_send(&p.a, write);
    expect(&p.b, 2, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM);
    end_expect_success(&p.a, SQ, 3, IBV_WC_RDMA_WRITE);
    pair_close(&p);
}

static void unexpected(struct pair *p, uint64_t id, uint64_t tag)
{
    end_recv(&p->b, a_recv(&p->b, id, 0, 1024));
    send_message(&p->a, id, IBV_TMH_EAGER, tag, 8);
    expect(&p->b, id, IBV_WC_TM_RECV, 0);
    end_expect_success(&p->a, SQ, id, IBV_WC_SEND);
}

static void what_is_added_before_a_message_was_heard_of_waits(void **state)
{
    struct operation sync = {
        .opcode = IBV_WR_TAG_SYNC, .id = 50, .flags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC};
    struct operation late = {.opcode = IBV_WR_TAG_ADD,
                             .id = 51,
                             .flags = IBV_OPS_SIGNALED,
                             .receive = 60,
                             .tag = 2,
                             .mask = UINT64_MAX,
                             .length = 64};
    struct pair p;

    open(&p);
    add(&p.b, 1, 1, 0, 64);
    unexpected(&p, 10, 2);
    assert_int_equal(operate(&p.b, &late), 0);
    expect(&p.b, 51, IBV_WC_TM_ADD, IBV_WC_TM_SYNC_REQ);
    /* It would change places with the one before. */
    unexpected(&p, 11, 2);
    /* What was there before goes on. */
    send_message(&p.a, 12, IBV_TMH_EAGER, 1, 8);
    expect(&p.b, 1, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
    end_expect_success(&p.a, SQ, 12, IBV_WC_SEND);

    sync.count = 1;
    assert_int_equal(operate(&p.b, &sync), 0);
    expect(&p.b, 50, IBV_WC_TM_SYNC, IBV_WC_TM_SYNC_REQ);
    unexpected(&p, 13, 2);
    sync.count = 3;
    assert_int_equal(operate(&p.b, &sync), 0);
    expect(&p.b, 50, IBV_WC_TM_SYNC, 0);
    send_message(&p.a, 14, IBV_TMH_EAGER, 2, 8);
    expect(&p.b, 60, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
    end_expect_success(&p.a, SQ, 14, IBV_WC_SEND);

    /* The word may come with the buffer. */
    unexpected(&p, 15, 4);
    late.tag = 5;
    late.count = 4;
    late.flags |= IBV_OPS_TM_SYNC;
    assert_int_equal(operate(&p.b, &late), 0);
    expect(&p.b, 51, IBV_WC_TM_ADD, 0);
    send_message(&p.a, 16, IBV_TMH_EAGER, 5, 8);
    expect(&p.b, 60, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
    end_expect_success(&p.a, SQ, 16, IBV_WC_SEND);
    pair_close(&p);
}

static void a_buffer_can_be_taken_back_unless_a_message_has_it(void **state)
{
    struct operation del = {.opcode = IBV_WR_TAG_DEL, .id = 70, .flags = IBV_OPS_SIGNALED};
    struct pair p;
    struct seen seen;

    open(&p);
    del.handle = add(&p.b, 1, 1, 0, 64);
    assert_int_equal(operate(&p.b, &del), 0);
    expect(&p.b, 70, IBV_WC_TM_DEL, 0);
    unexpected(&p, 10, 1);

    del.handle = add(&p.b, 2, 2, 0, 64);
    assert_int_equal(operate(&p.b, &del), 0); /* one that sleeps */
    expect(&p.b, 70, IBV_WC_TM_DEL, IBV_WC_TM_SYNC_REQ);
    del.flags |= IBV_OPS_TM_SYNC;
    del.count = 1;

    del.handle = add(&p.b, 3, 3, 0, 64);
    assert_int_equal(
        operate(&p.b, &(struct operation){.opcode = IBV_WR_TAG_SYNC, .flags = IBV_OPS_TM_SYNC, .count = 1}),
        0);
    send_message(&p.a, 11, IBV_TMH_EAGER, 3, 8);
    end_expect_success(&p.a, SQ, 11, IBV_WC_SEND);
    expect(&p.b, 3, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
    del.flags = 0; /* what fails is told all the same */
    assert_int_equal(operate(&p.b, &del), 0);
    seen = look(&p.b);
    assert_int_equal(seen.id, 70);
    assert_int_equal(seen.status, IBV_WC_TM_ERR);
    del.handle = 0xffff; /* no buffer ever had it */
    assert_int_equal(operate(&p.b, &del), EINVAL);
    pair_close(&p);
}

static void there_is_only_so_much_room(void **state)
{
    struct operation sync = {.opcode = IBV_WR_TAG_SYNC, .id = 1, .flags = IBV_OPS_SIGNALED};
    struct operation more = {.opcode = IBV_WR_TAG_ADD, .length = 8, .flags = IBV_OPS_SIGNALED << 5};
    struct pair p;

    open(&p);
    assert_int_equal(operate(&p.b, &more), EINVAL);
    more.flags = 0;
    for (uint64_t i = 0; i < TAGS; i++)
        add(&p.b, i, i, 0, 8);
    assert_int_equal(operate(&p.b, &more), ENOMEM);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < OPS; i++)
            assert_int_equal(operate(&p.b, &sync), 0);
        assert_int_equal(operate(&p.b, &sync), ENOMEM);
        for (int i = 0; i < OPS; i++)
            expect(&p.b, 1, IBV_WC_TM_SYNC, 0);
    }
    pair_close(&p);
}

static void an_empty_srq_is_waited_for(void **state)
{
    struct pair p;

    open(&p);
    send_message(&p.a, 1, IBV_TMH_EAGER, 1, 8);
    expect_nothing(&p.b);
    end_recv(&p.b, a_recv(&p.b, 2, 0, 1024));
    expect(&p.b, 2, IBV_WC_TM_RECV, 0);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    pair_close(&p);
}

static void a_rendezvous_is_fetched(void **state)
{
    const size_t lengths[] = {0, 1, 1000, 4096, 30000};
    struct pair p;

    open_as(&p, (struct tm_attr){.max_send_wr = 0}); /* the adapter's requests are not the program's */
    for (uint64_t i = 0; i < COUNT(lengths); i++) {
        const uint64_t tag = 40 + i;
        struct seen seen;

        add(&p.b, 200 + i, tag, 64, 32 * 1024);
        end_recv(&p.a, a_recv(&p.a, 300 + i, REPLY, 64));
        end_fill(&p.a, DATA, lengths[i], i);
        send_rendezvous(&p.a, i, tag, DATA, lengths[i], p.a.rkey);
        seen = expect(&p.b, 200 + i, IBV_WC_TM_RECV, IBV_WC_TM_MATCH);
        assert_true(seen.tag == tag);
        assert_int_equal(seen.context, tag + 1);
        assert_int_equal(seen.length, lengths[i]);
        seen = expect(&p.b, 200 + i, IBV_WC_TM_RECV, IBV_WC_TM_DATA_VALID);
        assert_int_equal(seen.length, lengths[i]);
        end_expect_data(&p.b, 64, lengths[i], i);
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        expect_fin(&p.a, 300 + i, tag);
    }
    pair_close(&p);
}

/* More of them than a QP has slots for, and requests of the program between. */
static void many_rendezvous_and_the_programs_requests_share_a_queue(void **state)
{
    enum { ROUNDS = 12, SIZE = 512 };
    struct pair p;

    open(&p);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        unsigned int matched = 0, valid = 0;

        for (uint64_t i = 0; i < TAGS; i++) {
            add(&p.b, i, i, 1024 + i * SIZE, SIZE);
            end_recv(&p.a, a_recv(&p.a, i, REPLY, 64));
            end_fill(&p.a, DATA + i * SIZE, SIZE, round * TAGS + i);
        }
        for (uint64_t i = 0; i < TAGS; i++) {
            send_rendezvous(&p.a, i, i, DATA + i * SIZE, SIZE, p.a.rkey);
            end_expect_success(&p.a, SQ, i, IBV_WC_SEND); /* the header is used again */
            if (i % 2)
                end_send(&p.b, a_write(&p.b, 500 + i, 0, 8, &p.a, 8192));
        }
        for (uint64_t i = 1; i < TAGS; i += 2)
            end_expect_success(&p.b, SQ, 500 + i, IBV_WC_RDMA_WRITE);
        while (valid < TAGS) {
            struct seen seen = look(&p.b);

            assert_int_equal(seen.status, IBV_WC_SUCCESS);
            assert_int_equal(seen.opcode, IBV_WC_TM_RECV);
            if (seen.flags == IBV_WC_TM_MATCH) {
                assert_int_equal(seen.id, matched++);
                continue;
            }
            assert_int_equal(seen.flags, IBV_WC_TM_DATA_VALID);
            assert_int_equal(seen.id, valid++);
            end_expect_data(&p.b, 1024 + seen.id * SIZE, SIZE, round * TAGS + seen.id);
        }
        for (uint64_t i = 0; i < TAGS; i++)
            end_expect_success(&p.a, RQ, i, IBV_WC_RECV);
    }
    pair_close(&p);
}

static void what_cannot_be_fetched_is_left_to_the_program(void **state)
{
    struct ibv_tmh header;
    struct pair p;
    struct seen seen;

    open(&p);
    for (uint64_t i = 0; i < 2; i++) {
        add(&p.b, 1, 4, 0, 64);
        if (i) { /* a header that is cut off */
            put_header(&p.a, IBV_TMH_RNDV, 5, 4);
            end_send(&p.a, a_send(&p.a, 2, MESSAGE, HEADER + 4));
        } else { /* more than the buffer holds */
            send_rendezvous(&p.a, 2, 4, DATA, 65, p.a.rkey);
        }
        seen = look(&p.b);
        assert_int_equal(seen.id, 1);
        assert_int_equal(seen.status, IBV_WC_TM_RNDV_INCOMPLETE);
        assert_int_equal(seen.length, i ? HEADER + 4 : RENDEZVOUS);
        end_peek(&p.b, 0, &header, sizeof(header));
        assert_int_equal(header.opcode, IBV_TMH_RNDV);
        assert_int_equal(ntohl(header.app_ctx), 5);
        end_expect_success(&p.a, SQ, 2, IBV_WC_SEND);
    }
    /* The connection goes on. */
    add(&p.b, 1, 4, 0, 64);
    send_message(&p.a, 3, IBV_TMH_EAGER, 4, 8);
    expect(&p.b, 1, IBV_WC_TM_RECV, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID);
    end_expect_success(&p.a, SQ, 3, IBV_WC_SEND);
    pair_close(&p);
}

static void a_rendezvous_without_a_buffer_is_unexpected(void **state)
{
    struct pair p;
    struct seen seen;

    open(&p);
    end_recv(&p.b, a_recv(&p.b, 1, 0, 64));
    send_rendezvous(&p.a, 2, 4, DATA, 100, p.a.rkey);
    seen = expect(&p.b, 1, IBV_WC_TM_RECV, 0);
    assert_int_equal(seen.length, RENDEZVOUS);
    end_expect_success(&p.a, SQ, 2, IBV_WC_SEND);
    pair_close(&p);
}

static void a_rendezvous_with_a_wrong_key_ends_the_connection(void **state)
{
    struct pair p;
    struct seen seen;

    open(&p);
    add(&p.b, 1, 4, 0, 4096);
    add(&p.b, 2, 5, 0, 4096);
    send_rendezvous(&p.a, 2, 4, DATA, 100, p.a.lkey);
    expect(&p.b, 1, IBV_WC_TM_RECV, IBV_WC_TM_MATCH);
    seen = look(&p.b);
    assert_int_equal(seen.id, 1);
    assert_int_equal(seen.status, IBV_WC_REM_ACCESS_ERR);
    end_wait_state(&p.b, IBV_QPS_ERR);
    expect_nothing(&p.b); /* the list is the SRQ's, not the QP's */
    pair_close(&p);
}

/* The program builds a batch while a rendezvous comes: neither gets into the other's way. */
static void build_here(struct end *end, void *arg)
{
    struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(end->qp);

    ibv_wr_start(qpx);
}

static void complete_here(struct end *end, void *arg)
{
    const uint64_t *where = arg; /* address and key */
    struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(end->qp);

    if (!where[0]) {
        ibv_wr_abort(qpx);
        return;
    }
    qpx->wr_id = 7;
    qpx->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qpx, (uint32_t)where[1], where[0]);
    ibv_wr_set_sge(qpx, end->lkey, (uintptr_t)end->buf + 8192, 8);
    CHECK_ZERO(ibv_wr_complete(qpx));
}

static void change_to_extended_here(struct end *end, void *arg)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_RC,
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .srq = end->srq,
        .cap = {.max_send_wr = 4, .max_send_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = end->pd,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
    };

    CHECK_ZERO(ibv_destroy_qp(end->qp));
    end->qp = ibv_create_qp_ex(end->context, &attr);
    CHECK(end->qp, "ibv_create_qp_ex: %s", strerror(errno));
    end->qp_num = end->qp->qp_num;
}

static void a_message_longer_than_its_buffer_ends_the_connection(void **state)
{
    struct pair p;
    struct seen seen;

    open(&p);
    add(&p.b, 1, 4, 0, 4096);
    send_message(&p.a, 2, IBV_TMH_EAGER, 4, 4097);
    seen = look(&p.b);
    assert_int_equal(seen.id, 1);
    assert_int_equal(seen.status, IBV_WC_LOC_LEN_ERR);
    end_wait_state(&p.b, IBV_QPS_ERR);
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_INV_REQ_ERR);
    expect_nothing(&p.b);
    pair_close(&p);
}

/* The READ of a rendezvous, in front of which a batch stands that is never completed. */
static void what_is_to_be_fetched_is_flushed_or_given_back(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct tm_attr tm = {.max_send_wr = 4};

    for (int reset = 0; reset < 2; reset++) {
        struct pair p;

        pair_open(&p, &attr, &attr);
        AT(&p.b, change_here, &tm);
        AT_PLAIN(&p.b, change_to_extended_here);
        end_connect(&p.a, &p.b);
        AT_PLAIN(&p.b, build_here);
        for (uint64_t i = 0; i < TAGS; i++) {
            add(&p.b, i, i, 0, 4096);
            send_rendezvous(&p.a, i, i, DATA, 4096, p.a.rkey);
            expect(&p.b, i, IBV_WC_TM_RECV, IBV_WC_TM_MATCH);
            end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        }
        assert_int_equal(end_to_state(&p.b, reset ? IBV_QPS_RESET : IBV_QPS_ERR), 0);
        for (uint64_t i = 0; i < TAGS && !reset; i++) {
            struct seen seen = look(&p.b);

            assert_int_equal(seen.id, i);
            assert_int_equal(seen.status, IBV_WC_WR_FLUSH_ERR);
        }
        expect_nothing(&p.b);
        AT(&p.b, complete_here, &(uint64_t[2]){0});
        for (uint64_t i = 0; i < TAGS; i++)
            add(&p.b, i, i, 0, 8); /* there is room again */
        pair_close(&p);
    }
}

static void a_batch_being_built_and_a_rendezvous_do_not_mix(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct tm_attr tm = {.max_send_wr = 4};
    struct pair p;

    pair_open(&p, &attr, &attr);
    AT(&p.b, change_here, &tm);
    AT_PLAIN(&p.b, change_to_extended_here);
    end_connect(&p.a, &p.b);
    for (uint64_t i = 0; i < 6; i++) {
        uint64_t where[2] = {i % 2 ? 0 : (uintptr_t)p.a.buf + 8192, p.a.rkey};

        add(&p.b, i, i, 0, 4096);
        end_recv(&p.a, a_recv(&p.a, i, REPLY, 64));
        end_fill(&p.a, DATA, 4096, i);
        end_poke64(&p.b, 8192, 1000 + i);
        AT_PLAIN(&p.b, build_here);
        send_rendezvous(&p.a, i, i, DATA, 4096, p.a.rkey);
        expect(&p.b, i, IBV_WC_TM_RECV, IBV_WC_TM_MATCH);
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        AT(&p.b, complete_here, &where);
        expect(&p.b, i, IBV_WC_TM_RECV, IBV_WC_TM_DATA_VALID);
        end_expect_data(&p.b, 0, 4096, i);
        expect_fin(&p.a, i, i);
        if (where[0]) {
            end_expect_success(&p.b, SQ, 7, IBV_WC_RDMA_WRITE);
            assert_int_equal(end_peek64(&p.a, 8192), 1000 + i);
        }
    }
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(the_device_says_what_there_is),
        TEST(creation_refuses_what_cannot_be),
        TEST(operations_on_other_srqs_are_not_supported),
        TEST(a_tagged_message_takes_its_buffer),
        TEST(an_immediate_comes_along),
        TEST(one_without_a_buffer_goes_to_the_srq_as_it_is),
        TEST(a_write_with_immediate_takes_a_receive_of_the_srq),
        TEST(what_is_added_before_a_message_was_heard_of_waits),
        TEST(a_buffer_can_be_taken_back_unless_a_message_has_it),
        TEST(there_is_only_so_much_room),
        TEST(an_empty_srq_is_waited_for),
        TEST(a_rendezvous_is_fetched),
        TEST(many_rendezvous_and_the_programs_requests_share_a_queue),
        TEST(what_cannot_be_fetched_is_left_to_the_program),
        TEST(a_rendezvous_without_a_buffer_is_unexpected),
        TEST(a_rendezvous_with_a_wrong_key_ends_the_connection),
        TEST(a_message_longer_than_its_buffer_ends_the_connection),
        TEST(what_is_to_be_fetched_is_flushed_or_given_back),
        TEST(a_batch_being_built_and_a_rendezvous_do_not_mix),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
