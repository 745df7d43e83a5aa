/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One process's adapter, and RC QPs that meet over a socket pair. Public verbs only: the same source measures
 * hardware. */
#ifndef SOFTHCA_BENCH_ENDPOINT_H
#define SOFTHCA_BENCH_ENDPOINT_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct endpoint {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    void *buffer;
    size_t size;
    union ibv_gid gid;
    int gid_index;
    enum ibv_mtu mtu;
    uint8_t rd_atomic;
};

/* What the far end must know of a QP. */
struct contact {
    union ibv_gid gid;
    uint64_t address;
    uint32_t qp_num;
    uint32_t rkey;
};

struct qp_shape {
    uint32_t send_wr;
    uint32_t recv_wr;
    uint32_t inline_data;
    uint64_t send_ops; /* enum ibv_qp_create_send_ops_flags: an extended QP; 0: a plain one */
};

_Noreturn void give_up(const char *what);
void endpoint_open(struct endpoint *ep, const char *device, int gid_index, size_t size);
void endpoint_close(struct endpoint *ep);
struct ibv_qp *endpoint_qp(struct endpoint *ep, struct ibv_cq *send_cq, struct ibv_cq *recv_cq,
                           struct qp_shape shape);
struct contact endpoint_contact(const struct endpoint *ep, const struct ibv_qp *qp);
void endpoint_connect(const struct endpoint *ep, struct ibv_qp *qp, const struct contact *far);

/* Whole messages over a stream socket; the far end's death ends us too. */
void tell(int fd, const void *data, size_t size);
void hear(int fd, void *data, size_t size);
bool told(int fd); /* without waiting: has the far end said something, or gone? */

#endif
