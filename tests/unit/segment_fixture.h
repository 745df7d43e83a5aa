/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A published segment made by hand: one of everything, small enough to be written over completely. */
#ifndef UNIT_SEGMENT_FIXTURE_H
#define UNIT_SEGMENT_FIXTURE_H

#include <stddef.h>

#include "explain/explain.h"

#define FIXTURE_QPN    0x12u
#define FIXTURE_PEER   0x13u /* another QP of the same process, which FIXTURE_QPN sends to */
#define FIXTURE_WQN    0x14u
#define FIXTURE_LKEY   0x4711u
#define FIXTURE_THREAD 77u
#define FIXTURE_SLOTS  8u /* of each queue */
#define FIXTURE_STRIDE 128u
#define FIXTURE_GROUP                                                                                        \
    {                                                                                                        \
        [10] = 0xff, 0xff, 239, 1, 2, 3                                                                      \
    }
#define FIXTURE_AGO(ms) (sys_now() - (ms)*NS_PER_MS)

struct fixture {
    char *base;
    size_t size;
    struct segment_header *header;
    struct qp_rare *qp_rares;
    struct qp_record *qps; /* 0: RC in RTS, 1: its peer */
    struct cq_record *cqs; /* 0: of both QPs, with channel 0; 1: nobody's */
    struct srq_record *srqs;
    struct pd_record *pds;
    struct wq_record *wqs;
    struct ind_table_record *ind_tables;
    struct item_record *items; /* 0: context 0, 1: channel 0, 2: an AH, 3: an attachment of the peer */
    struct id_record *ids;     /* 0: connected */
    struct key_entry *keys;    /* 0: an MR */
    struct provenance_record *key_provenance;
    struct stack_record *stacks;  /* 1: in this program */
    struct mapped_record *mapped; /* as the keys */
    struct module_record *modules;
    struct misuse_record *misuses; /* none */
    struct refused_record *refusals;
    struct port_record *ports; /* none */
};

/* The same memory each time, as if nobody had touched it. */
struct fixture *fixture_make(void);
struct view fixture_view(void);

/* Entries of the queues, by counter. */
struct send_wqe *fixture_send(struct qp_record *qp, uint32_t counter);
struct recv_wqe *fixture_receive(struct qp_record *qp, uint32_t counter);
struct recv_wqe *fixture_srq_receive(uint32_t counter);
struct cqe *fixture_cqe(struct cq_record *cq, uint32_t counter);

#endif
