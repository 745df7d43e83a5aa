/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * An end: one QP and what it needs, on one side. struct end is a value: a test body holds a copy of a far
 * end, whose pointers mean something only on that side, and every end_…() function runs where the end lives.
 */
#ifndef TESTS_SUPPORT_END_H
#define TESTS_SUPPORT_END_H

#include "runner.h"
#include "side.h"

#include <errno.h>
#include <string.h>

#include "base/verbs.h"

struct end_attr {
    enum ibv_qp_type type;
    struct ibv_qp_cap cap;
    int send_cqe, recv_cqe;
    bool one_cq;  /* both queues complete in send_cq */
    bool channel; /* the CQs have a completion channel */
    bool sq_sig_all;
    uint32_t srq_wr;   /* 0: no SRQ */
    uint64_t send_ops; /* IBV_QP_EX_WITH_…, 0: no ibv_qp_ex */
    size_t size;       /* of the buffer */
    unsigned int mr_access;
    /* connection */
    unsigned int qp_access;
    enum ibv_mtu mtu;
    uint8_t timeout, retry_cnt, rnr_retry, min_rnr_timer, max_rd_atomic, max_dest_rd_atomic;
    uint32_t qkey;
    int gid_index; /* −1: the default of the path */
};

struct end {
    struct side *side;
    struct end_attr attr;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_qp_ex *qpx;
    struct ibv_mr *mr;
    struct ibv_ah *ah; /* to the peer, UD */
    uint8_t *buf;
    /* what the peer needs to know */
    uint32_t lkey, rkey, qp_num, psn;
    uint8_t port;
    union ibv_gid gid;
};

struct pair {
    struct end a, b; /* near and far */
};

struct end_attr attr_of(enum ibv_qp_type type);

/* Runs fn(end, arg) where the end lives; both travel there and back. */
typedef void end_fn(struct end *end, void *arg);
void end_call(struct end *end, end_fn *fn, void *arg, size_t length);
#define AT(end, fn, arg)  end_call(end, fn, arg, sizeof *(arg))
#define AT_PLAIN(end, fn) end_call(end, fn, NULL, 0)

struct end_call {
    struct call call;
    struct end *end;
    void *arg;
    size_t length;
    void *box;
};
void end_start(struct end_call *call, struct end *end, end_fn *fn, void *arg, size_t length);
void end_finish(struct end_call *call);

/* Objects up to a QP in RESET; the address of it all. */
void end_open(struct end *end, struct side *side, const struct end_attr *attr);
/* A further QP on the same context, PD, CQs, SRQ and buffer. Closed with end_close_qp. */
void end_share(struct end *end, const struct end *with);
void end_close_qp(struct end *end);
void end_close(struct end *end);
/* The same in a PD that is there, of that side; which stays, with its context. */
void end_open_in(struct end *end, struct side *side, const struct end_attr *attr, struct ibv_pd *pd,
                 struct ibv_context *context);
void end_close_objects(struct end *end);

/* Devices of this process; the one under test */
struct ibv_context *open_the_device(void);
enum { TEST_PORT = 1 };

/* 0 or the errno that ibv_modify_qp returned */
int end_modify(struct end *end, const struct ibv_qp_attr *attr, int mask);
int end_to_state(struct end *end, enum ibv_qp_state state); /* with no other attribute */
void end_to_init(struct end *end);
void end_to_rtr(struct end *end, const struct end *peer);
void end_to_rts(struct end *end);
void end_connect(struct end *a, struct end *b);
int attr_for_init(const struct end *end, struct ibv_qp_attr *ret_attr);
int attr_for_rtr(const struct end *end, const struct end *peer, struct ibv_qp_attr *ret_attr);
int attr_for_rts(const struct end *end, struct ibv_qp_attr *ret_attr);
enum ibv_qp_state end_state(struct end *end);
void end_wait_state(struct end *end, enum ibv_qp_state state);

void pair_open(struct pair *pair, const struct end_attr *a, const struct end_attr *b); /* not connected */
void pair_connect(struct pair *pair, enum ibv_qp_type type); /* opened with attr_of(type) */
void pair_connect_as(struct pair *pair, const struct end_attr *attr);
void pair_close(struct pair *pair);

/* Asynchronous events; waited for with poll(2) on the context's descriptor, acknowledged at once. */
struct end_event {
    enum ibv_event_type type;
    bool of_qp, of_send_cq, of_recv_cq, of_srq;
    uint32_t qp_num; /* of a QP event */
};
struct end_event end_event(struct end *end);
void end_expect_event(struct end *end, enum ibv_event_type type);

/* The buffer */
void end_fill(struct end *end, size_t offset, size_t length, uint64_t seed);
void end_expect_data(struct end *end, size_t offset, size_t length, uint64_t seed);
void end_poke(struct end *end, size_t offset, const void *bytes, size_t length); /* ≤ 1024 */
void end_peek(struct end *end, size_t offset, void *bytes, size_t length);
uint64_t end_peek64(struct end *end, size_t offset);
void end_poke64(struct end *end, size_t offset, uint64_t value);
void fill_pattern(uint8_t *at, size_t length, uint64_t seed);
/* the first offset that differs, length if none */
size_t find_difference(const uint8_t *at, size_t length, uint64_t seed);

#endif
