/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC domains, and the SRQs that requests address by number (verbs.md §6.4, IBA A14). */
#ifndef OBJECT_XRC_XRC_H
#define OBJECT_XRC_XRC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/verbs.h"
#include "object/device/context.h"
#include "object/qp/qp.h"
#include "object/receive/srq.h"

struct xrc_domain;
struct xrcd {
    struct ibv_xrcd ibv;
    struct context *context;
    struct xrc_domain *domain; /* shared by all XRCDs that were opened with one file */
    _Atomic uint32_t users;    /* SRQs, XRC_RECV QPs */
    uint32_t item;
    struct list all, delegates; /* under xrc_lock (object/xrc/xrc.c) */
    void (*end_delegate)(struct qp *delegate);
    /* Selects the SRQ of a request. False: the domain has no such SRQ in this process, or a message for another SRQ
     * is being received. QP lock held. */
    bool (*select)(struct qp *qp, uint32_t srqn);
    /* Is there an SRQ with that number in this process and in the QP's domain? QP lock held. */
    bool (*is_here)(const struct qp *qp, uint32_t srqn);
};

static inline struct xrcd *xrcd_of(struct ibv_xrcd *xrcd)
{
    return container_of(xrcd, struct xrcd, ibv);
}

/* -EINVAL: a bit of comp_mask is missing, or O_EXCL and the domain exists; -EOPNOTSUPP: unknown bit of comp_mask;
 * -EAGAIN: no O_CREAT and the domain does not exist; -EBADF. */
int xrcd_open(struct context *context, const struct ibv_xrcd_init_attr *attributes, struct xrcd **ret_xrcd);
int xrcd_close(struct xrcd *xrcd); /* -EBUSY */
void xrcd_use(struct xrcd *xrcd);
void xrcd_unuse(struct xrcd *xrcd);

/* Can other processes open the domain? */
bool xrcd_is_shared(const struct xrcd *xrcd);

/* Delegates (delegate.h): gives a delegate an XRCD of the domain of that file, if this process has the domain open
 * and a process of user `uid` may open it, too. xrc_abandon() takes the XRCD away. */
bool xrc_adopt(struct qp *delegate, void (*end)(struct qp *delegate), uint64_t device, uint64_t inode,
               uid_t uid);
void xrc_abandon(struct qp *delegate);

/* In the child of a fork. */
void xrc_after_fork_in_child(void);

#endif
