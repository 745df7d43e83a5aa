/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* docs/rsockets.md: peers that lie, and forks. The liar is a program of rdma_cm and verbs. */
#include "rs.h"

#include <endian.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DATA = 0, UNKNOWN = 2, CREDITS = 4, IOMAP = 6, CONTROL = 7 };

struct offer {
    uint8_t version, flags;
    uint16_t credits;
    uint8_t reserved[3], mappings;
    uint64_t table_address;
    uint32_t table_key, table_length;
    uint64_t window_address;
    uint32_t window_key, window_length;
} __attribute__((packed));

/* What the liar says in its request, and afterwards. */
struct lie {
    uint16_t port;
    uint8_t version, offer_bytes;
    uint32_t table_length;
    bool bad_key;
    uint32_t immediate;
    bool as_send;   /* not as an RDMA WRITE with immediate */
    bool connected; /* told */
};

static struct liar {
    struct cm_end end;
    uint8_t *memory;
    struct ibv_mr *mr;
} liar;

static void send_lie(struct cm_end *end, void *arg)
{
    const struct lie *lie = arg;
    struct ibv_send_wr *bad, wr = {
                                 .opcode = lie->as_send ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .imm_data = htobe32(lie->immediate),
                             };
    struct ibv_wc wc;

    assert_int_equal(ibv_post_send(end->id->qp, &wr, &bad), 0);
    EVENTUALLY(ibv_poll_cq(end->id->qp->send_cq, 1, &wc) == 1, "the lie to be told");
}

static void make_memory(struct cm_end *end, void *arg)
{
    liar.memory = calloc(1, 4096);
    liar.mr = ibv_reg_mr(end->id->pd, liar.memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    assert_non_null(liar.mr);
}

static void post_receives(struct cm_end *end, void *arg)
{
    struct ibv_recv_wr *bad, wr = {0};

    for (int i = 0; i < 8; i++)
        assert_int_equal(ibv_post_recv(end->id->qp, &wr, &bad), 0);
}

/* Here, in the near process. The rsocket is its peer wherever it is. */
static void lie_to(struct lie *lie)
{
    struct cm_parameters parameters = {.retry_count = 7, .rnr_retry_count = 7};
    struct cm_seen seen;

    cm_open(&liar.end, NEAR, RDMA_PS_TCP);
    cm_prepare(&liar.end, lie->port);
    CM_AT_PLAIN(&liar.end, make_memory);
    CM_AT_PLAIN(&liar.end, post_receives);
    struct offer offer = {
        .version = lie->version,
        .flags = 2,
        .credits = htobe16(100),
        .mappings = 4,
        .table_address = htobe64((uintptr_t)liar.memory),
        .table_key = htobe32(liar.mr->rkey ^ (lie->bad_key ? 0x10101u : 0)),
        .table_length = htobe32(lie->table_length),
        .window_address = htobe64((uintptr_t)liar.memory + 1024),
        .window_key = htobe32(liar.mr->rkey),
        .window_length = htobe32(1024),
    };
    parameters.length = lie->offer_bytes;
    memcpy(parameters.data, &offer, sizeof offer);
    assert_int_equal(cm_connect(&liar.end, &parameters), 0);
    seen = cm_next(&liar.end);
    lie->connected = seen.type == RDMA_CM_EVENT_ESTABLISHED;
    if (!lie->connected)
        assert_int_equal(seen.type, RDMA_CM_EVENT_REJECTED);
}

static void end_of_liar(void)
{
    CHECK_ZERO(ibv_dereg_mr(liar.mr));
    cm_close(&liar.end);
    free(liar.memory);
}

static struct lie truth(uint16_t port)
{
    return (struct lie){.port = port, .version = 1, .offer_bytes = sizeof(struct offer), .table_length = 2};
}

static const struct rs_setting with_mappings[] = {{SOL_RDMA, RDMA_IOMAPSIZE, 4}, {0, 0, 0}};

/* So that what follows is due to the lie. */
static void who_tells_the_truth_is_heard(void **state)
{
    struct rs_end listener, child;
    struct lie lie;

    rs_open(&listener, NEAR, SOCK_STREAM, with_mappings);
    lie = truth(rs_listen(&listener, 4));
    lie_to(&lie);
    assert_true(lie.connected);
    child = rs_accept(&listener);
    lie.immediate = (uint32_t)DATA << 29 | 5;
    CM_AT(&liar.end, send_lie, &lie);
    rs_await(child.fd, POLLIN);
    RS_IS(rrecv(child.fd, liar.memory + 2048, 100, 0), 5);
    lie.immediate = (uint32_t)IOMAP << 29 | 3;
    CM_AT(&liar.end, send_lie, &lie);
    lie.immediate = (uint32_t)CONTROL << 29 | 2;
    CM_AT(&liar.end, send_lie, &lie);
    RS_IS(rrecv(child.fd, liar.memory + 2048, 100, 0), 0);
    rs_close(&child);
    end_of_liar();
    rs_close(&listener);
}

static void an_offer_without_sense_is_rejected(void **state)
{
    struct rs_end listener;
    struct lie lie;
    uint16_t port;

    rs_open(&listener, NEAR, SOCK_STREAM, NULL);
    port = rs_listen(&listener, 4);
    for (int what = 0; what < 4; what++) {
        lie = truth(port);
        if (what == 0)
            lie.version = 2;
        else if (what == 1)
            lie.table_length = 0;
        else
            lie.offer_bytes = what == 2 ? 0 : 39;
        /* What is short arrives padded with zeroes, as IB does it: a version of 0, or a last byte that is
         * missing. */
        lie_to(&lie);
        assert_int_equal(lie.connected, what == 3);
        end_of_liar();
    }
    rs_close(&listener);
}

static void a_message_without_sense_ends_the_stream(void **state)
{
    static const uint32_t messages[] = {
        (uint32_t)DATA << 29 | 0x1fffffff, (uint32_t)DATA << 29 | 131073, (uint32_t)IOMAP << 29 | 4,
        (uint32_t)UNKNOWN << 29,           (uint32_t)5 << 29 | 1,         (uint32_t)1 << 29 | 1,
    };
    struct rs_end listener, child;
    uint8_t byte;

    rs_open(&listener, NEAR, SOCK_STREAM, with_mappings);
    uint16_t port = rs_listen(&listener, 4);
    for (size_t i = 0; i < COUNT(messages); i++) {
        struct lie lie = truth(port);

        lie_to(&lie);
        assert_true(lie.connected);
        child = rs_accept(&listener);
        lie.immediate = messages[i];
        CM_AT(&liar.end, send_lie, &lie);
        assert_true(rs_await(child.fd, POLLHUP) & POLLERR);
        RS_FAILS(rrecv(child.fd, &byte, 1, 0), EPROTO);
        RS_IS(rrecv(child.fd, &byte, 1, 0), 0);
        RS_FAILS(rsend(child.fd, &byte, 1, 0), ECONNRESET);
        cm_expect(&liar.end, RDMA_CM_EVENT_DISCONNECTED);
        rs_close(&child);
        end_of_liar();
    }
    rs_close(&listener);
}

/* What is logged has no immediate data, which a SEND does not have. */
static void a_send_ends_the_stream(void **state)
{
    const int words = memfd_create("stderr", MFD_CLOEXEC), err = dup(STDERR_FILENO);
    struct rs_end listener, child;
    char text[4096] = "", byte;
    struct lie lie;

    setenv("SOFTHCA_LOG", "warn", 1);
    rs_open(&listener, NEAR, SOCK_STREAM, NULL);
    lie = truth(rs_listen(&listener, 4));
    lie_to(&lie);
    assert_true(lie.connected);
    child = rs_accept(&listener);
    dup2(words, STDERR_FILENO);
    lie.as_send = true;
    CM_AT(&liar.end, send_lie, &lie);
    rs_await(child.fd, POLLHUP);
    RS_FAILS(rrecv(child.fd, &byte, 1, 0), EPROTO);
    dup2(err, STDERR_FILENO);
    close(err);
    assert_true(pread(words, text, sizeof text - 1, 0) > 0);
    close(words);
    assert_non_null(strstr(text, "a SEND from the peer"));
    assert_null(strstr(text, "immediate data 0x"));
    rs_close(&child);
    end_of_liar();
    rs_close(&listener);
}

/* Credits without end, and windows that are not there: only what the liar has registered can be written. */
static void credits_for_memory_that_is_not_there(void **state)
{
    struct rs_end listener, child;
    uint8_t bytes[4096] = {0};

    rs_open(&listener, NEAR, SOCK_STREAM, NULL);
    uint16_t port = rs_listen(&listener, 4);
    for (int what = 0; what < 2; what++) {
        struct lie lie = truth(port);

        lie.bad_key = what == 0; /* of the table, into which credits are told */
        lie_to(&lie);
        assert_true(lie.connected);
        child = rs_accept(&listener);
        if (what == 1) {
            /* In the second window there is nothing that could be written. */
            lie.immediate = (uint32_t)CREDITS << 29 | 0xffff;
            CM_AT(&liar.end, send_lie, &lie);
            RS_IS(rsend(child.fd, bytes, sizeof bytes, MSG_DONTWAIT), 1024);
            RS_FAILS(rsend(child.fd, bytes, sizeof bytes, MSG_DONTWAIT), EAGAIN);
        } else {
            rs_await(child.fd, POLLHUP);
            RS_FAILS(rsend(child.fd, bytes, 1, 0), ECONNRESET);
        }
        rs_close(&child);
        end_of_liar();
    }
    rs_close(&listener);
}

/* --- forks --- */

static void in_the_child(int fd, int listener)
{
    struct rs_pair own;
    char byte = 1;

    RS_FAILS(rsend(fd, &byte, 1, 0), EBADF);
    RS_FAILS(rrecv(fd, &byte, 1, 0), EBADF);
    RS_FAILS(raccept(listener, NULL, NULL), EBADF);
    RS_IS(rclose(fd), 0);
    RS_IS(rclose(listener), 0);
    RS_FAILS(rclose(fd), EBADF);
    own.listener.fd = -1;
    rs_open(&own.listener, NEAR, SOCK_STREAM, NULL);
    own.port = rs_listen(&own.listener, 4);
    rs_open(&own.near, NEAR, SOCK_STREAM, NULL);
    rs_connect(&own.near, own.port);
    own.far = rs_accept(&own.listener);
    RS_IS(rsend(own.near.fd, &byte, 1, 0), 1);
    RS_IS(rrecv(own.far.fd, &byte, 1, MSG_WAITALL), 1);
    rs_pair_close(&own);
}

static void a_forked_child_has_rsockets_of_its_own(void **state)
{
    struct rs_end listener;
    struct rs_pair pair;
    pid_t child;
    int status;

#ifdef __SANITIZE_ADDRESS__
    skip_because("the address sanitizer's allocator may be locked for ever in a child of several threads");
#endif
    rs_pair_open(&pair);
    rs_open(&listener, NEAR, SOCK_STREAM, NULL);
    rs_listen(&listener, 4);
    child = fork();
    assert_true(child >= 0);
    if (!child) {
        in_the_child(pair.near.fd, listener.fd);
        _exit(0);
    }
    EVENTUALLY(waitpid(child, &status, WNOHANG) == child, "the child to end");
    assert_int_equal(status, 0);
    rs_talk(&pair);
    rs_close(&listener);
    rs_pair_close(&pair);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(who_tells_the_truth_is_heard),
        TEST(an_offer_without_sense_is_rejected),
        TEST(a_message_without_sense_ends_the_stream),
        TEST(a_send_ends_the_stream),
        TEST(credits_for_memory_that_is_not_there),
        TEST(a_forked_child_has_rsockets_of_its_own),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
