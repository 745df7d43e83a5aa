/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The objects of all processes that this one may look at, for `rdma resource`. libsofthca-resources.so, which the shim
 * loads with the first question for them: it finds and reads what processes publish, as softhca ps does. */
#ifndef SHIM_RESOURCES_H
#define SHIM_RESOURCES_H

#include <stdint.h>
#include <sys/socket.h>

/* In the kernel's order of a summary. */
enum resource_kind {
    RESOURCE_PD,
    RESOURCE_CQ,
    RESOURCE_QP,
    RESOURCE_CM_ID,
    RESOURCE_MR,
    RESOURCE_CTX,
    RESOURCE_SRQ,
    RESOURCE_KINDS
};

#define RESOURCE_NONE UINT32_MAX

struct resource {
    enum resource_kind kind;
    char device[17];
    uint32_t pid;                   /* as this process sees it; 0: it does not */
    uint32_t number;                /* by which a program knows it: of a QP its QP number */
    uint32_t context, pd, cq;       /* numbers; RESOURCE_NONE: none */
    uint32_t users, entries;        /* PD, CQ; CQ */
    uint32_t type, state;           /* QP, SRQ; QP: enum ibv_qp_state, id: the kernel's enum rdma_cm_state */
    uint32_t qpn, remote_qpn;       /* id; QP: 0 where it is not connected */
    uint32_t send_psn, receive_psn; /* QP */
    uint8_t migration;              /* QP: enum ibv_mig_state */
    uint32_t lkey, rkey;            /* MR */
    uint64_t length;
    uint32_t port_space; /* id */
    struct sockaddr_storage source, destination;
};

typedef void resource_visit(const struct resource *resource, void *argument);

/* Of softhca_resources(), by which the shim finds it. */
typedef void resources_function(unsigned kinds, resource_visit *visit, void *argument);

#endif
