/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC domains, and the SRQs that requests name by number (verbs.md §6.4, IBA A14). */
#ifndef OBJECT_XRC_XRC_H
#define OBJECT_XRC_XRC_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "object/device/context.h"
#include "object/qp/qp.h"
#include "object/receive/srq.h"

struct xrc_domain;
struct xrcd {
    struct ibv_xrcd ibv;
    struct context *context;
    struct xrc_domain *domain; /* the same for all that were opened with one file */
    _Atomic uint32_t users;    /* SRQs, XRC_RECV QPs */
    uint32_t item;
    struct list all, delegates; /* object/xrc/xrc.c */
    void (*end_delegate)(struct qp *delegate);
    /* QP lock held: a request for this SRQ. false: there is none in the domain, or a message for another one
     * is under way. */
    bool (*select)(struct qp *qp, uint32_t srqn);
    /* Is the SRQ with that number one of this process, and of the QP's domain? QP lock held. */
    bool (*is_here)(const struct qp *qp, uint32_t srqn);
};

static inline struct xrcd *xrcd_of(struct ibv_xrcd *xrcd)
{
    return container_of(xrcd, struct xrcd, ibv);
}

/* -EINVAL: a bit of comp_mask is missing, or O_EXCL and there is one; -EOPNOTSUPP: one is unknown; -EAGAIN:
 * there is none, and no O_CREAT; -EBADF. */
int xrcd_open(struct context *context, const struct ibv_xrcd_init_attr *attributes, struct xrcd **ret_xrcd);
int xrcd_close(struct xrcd *xrcd); /* -EBUSY */
void xrcd_use(struct xrcd *xrcd);
void xrcd_unuse(struct xrcd *xrcd);

/* Do other processes reach it? */
bool xrcd_is_shared(const struct xrcd *xrcd);

/* Delegates (delegate.h): gives one an XRCD of the domain of that file, if this process has it open and a
 * process of that user may have it, too; takes it away again. */
bool xrc_adopt(struct qp *delegate, void (*end)(struct qp *delegate), uint64_t device, uint64_t inode,
               uid_t uid);
void xrc_abandon(struct qp *delegate);

/* In the child of a fork. */
void xrc_after_fork_in_child(void);

#endif
