/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * An end of a connection of rdma_cm, on one side: an event channel and an id. As struct end, it is a value
 * whose pointers mean something on that side only, and every cm_…() function runs where the end lives. Calls
 * of rdma_cm are collected as results: 0 or the errno they left.
 */
#ifndef TESTS_SUPPORT_CM_H
#define TESTS_SUPPORT_CM_H

#include "runner.h"
#include "side.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

enum { CM_BUFFER = 4096 };

struct cm_end {
    struct side *side;
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;    /* listener, or the active id */
    struct rdma_cm_id *child; /* of the last CONNECT_REQUEST */
    struct ibv_mr *mr;
    uint8_t *buf;
};

/* What was in an event; it is acknowledged. */
struct cm_seen {
    enum rdma_cm_event_type type;
    int status;
    bool of_child, has_listener;
    uint8_t length; /* of private data */
    uint8_t data[256];
    uint8_t responder_resources, initiator_depth, retry_count, rnr_retry_count, flow_control;
    uint32_t qp_num, qkey;
    struct ibv_ah_attr ah_attr;
};

typedef void cm_fn(struct cm_end *end, void *arg);
void cm_call(struct cm_end *end, cm_fn *fn, void *arg, size_t length);
#define CM_AT(end, fn, arg)  cm_call(end, fn, arg, sizeof *(arg))
#define CM_AT_PLAIN(end, fn) cm_call(end, fn, NULL, 0)

/* The result of a call of rdma_cm */
static inline int result_of(int value)
{
    return value == 0 ? 0 : value == -1 ? errno : -1;
}
#define CM(call) result_of(call)
#define CM_ZERO(call)                                                                                        \
    do {                                                                                                     \
        const int error_ = CM(call);                                                                         \
        if (error_)                                                                                          \
            complain(__FILE__, __LINE__, "%s: %s", #call, strerror(error_));                                 \
    } while (0)

/* The address under test, SOFTHCA_TEST_ADDRESS or 127.0.0.1, with a port. */
struct sockaddr_storage cm_address(uint16_t port);
socklen_t cm_length(const struct sockaddr_storage *address);
static inline struct sockaddr *as_sockaddr(struct sockaddr_storage *address)
{
    return (struct sockaddr *)address;
}

/* A channel and an id on it. */
void cm_open(struct cm_end *end, struct side *side, enum rdma_port_space ps);
/* Child first, then id, then channel; QPs, too. */
void cm_close(struct cm_end *end);
/* Bound to the address under test, any port, and listening: the port. */
uint16_t cm_listen(struct cm_end *end, int backlog);
/* Address and route. */
void cm_resolve(struct cm_end *end, uint16_t port);
/* The same and a QP of its own, CQs of 16. */
void cm_prepare(struct cm_end *end, uint16_t port);
void cm_make_qp(struct cm_end *end, bool of_child);

/* Waits for an event, whatever it is; the one that must be next; that there is none now. */
struct cm_seen cm_next(struct cm_end *end);
struct cm_seen cm_expect(struct cm_end *end, enum rdma_cm_event_type type);
void cm_expect_none(struct cm_end *end);

struct cm_parameters {
    uint8_t length;
    uint8_t data[256];
    uint8_t responder_resources, initiator_depth, retry_count, rnr_retry_count;
    uint32_t qp_num;
    bool none; /* NULL */
};
int cm_connect(struct cm_end *end, const struct cm_parameters *parameters);
int cm_accept(struct cm_end *end, const struct cm_parameters *parameters);
int cm_reject(struct cm_end *end, const void *data, uint8_t length);
int cm_disconnect(struct cm_end *end, bool of_child);
enum ibv_qp_state cm_state(struct cm_end *end, bool of_child);

/* near: active, far: passive, with QPs, established on both sides. */
struct cm_pair {
    struct cm_end near, far;
};
void cm_pair_open(struct cm_pair *pair);
void cm_pair_close(struct cm_pair *pair);
/* A message each way. */
void cm_pair_talk(struct cm_pair *pair);

#endif
