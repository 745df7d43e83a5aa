/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the programs here have in common: a device, and QPs that are connected to each other. Public verbs
 * only: they run on any adapter. */
#ifndef TESTS_EXPLAIN_NODE_H
#define TESTS_EXPLAIN_NODE_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                  \
            exit(2);                                                                                         \
        }                                                                                                    \
    } while (0)

#define BUFFER_BYTES (1u << 20)

struct node {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    union ibv_gid gid;
    char *buffer;
};

/* The first device that has a GID. */
void node_open(struct node *node);
/* All of it, in the right order; the QPs and CQs are gone. */
void node_close(struct node *node);

struct ibv_qp *make_qp(const struct node *node, struct ibv_cq *cq, struct ibv_srq *srq, uint32_t wrs);
/* Both to RTS. retry counts as given. */
void connect_qps(const struct node *node, struct ibv_qp *a, struct ibv_qp *b, uint8_t timeout,
                 uint8_t retries, uint8_t rnr_retries);
void to_init(struct ibv_qp *qp);
void to_rtr(const struct node *node, struct ibv_qp *qp, uint32_t dest_qpn, const union ibv_gid *gid);
void to_rts(struct ibv_qp *qp, uint8_t timeout, uint8_t retries, uint8_t rnr_retries);
void to_error(struct ibv_qp *qp);

void post_receive(const struct node *node, struct ibv_qp *qp, uint64_t wr_id, uint32_t length);
void post_send(const struct node *node, struct ibv_qp *qp, uint64_t wr_id, enum ibv_wr_opcode opcode,
               uint32_t length, unsigned flags);
/* Polls until one completion is there. */
struct ibv_wc wait_for_completion(struct ibv_cq *cq);

/* What a program here can do, by name. */
struct situation {
    const char *name;
    void (*happen)(void);
};
/* The one that argv[1] names, or NULL; lists the names if there is no argument. */
const struct situation *situation_wanted(int argc, char **argv, const struct situation *situations,
                                         size_t count);

/* Tells whoever runs us how far we are, and waits until he says something. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void wait_for_word(void);

#endif
