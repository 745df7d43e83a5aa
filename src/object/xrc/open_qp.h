/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ibv_open_qp (verbs.md §2.11): further handles of an XRC_RECV QP, in the process that made it and in
 * others that have its domain open. The QP is served by the process that made it, and ends with the last
 * handle; its creator's is one of them. A handle takes a slot of the table of QPs, so that every verb that is
 * given one finds what it looks for, but nobody finds it by number. */
#ifndef OBJECT_XRC_OPEN_QP_H
#define OBJECT_XRC_OPEN_QP_H

#include "object/qp/qp.h"

/* A handle, as its QP knows it; under the QP's lock. */
struct qp_opener {
    struct list node;
    struct qp *handle;     /* of this process; NULL: of another one, */
    uint64_t serial, name; /* behind that link, and what it is called there */
    pid_t pid;
};

struct qp_handle {
    struct qp *target;       /* NULL: another process has the QP */
    struct qp_opener opener; /* in the target's list */
    /* The engine's, of the QP of another process: */
    struct list all;
    uint64_t serial, name; /* the link to that process, and what this handle is called on it */
    bool lost;             /* the process has ended, and with it the QP */
};

/* -EOPNOTSUPP: an unknown bit of comp_mask; -EINVAL: one is missing, or there is no such QP in the domain. */
int qp_open(struct context *context, const struct ibv_qp_open_attr *attributes, struct qp **ret_handle);
int qp_handle_modify(struct qp *handle, const struct ibv_qp_attr *attributes, int mask);
int qp_handle_query(struct qp *handle, struct ibv_qp_attr *ret_attributes, int mask,
                    struct ibv_qp_init_attr *ret_init);
int qp_handle_destroy(struct qp *handle);

/* The creator destroys its handle: does the QP end with it? If not, the handle is gone when this returns. */
bool qp_let_go(struct qp *qp);
/* Has another context than this one, or another process, the QP open? QP lock held. */
bool qp_is_open_elsewhere(const struct qp *qp, const struct context *context);
/* The end of a QP that others had open. */
void qp_forget_openers(struct qp *qp);

/* Those that the mask names, and nothing else. */
void qp_copy_attributes(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask);

/* --- for other processes (engine/xrc/remote_open.c); without locks, outside every rundown section --------------- */

/* Who asks: a process of that user behind the link, which calls its handle so. */
struct qp_asker {
    uint64_t serial, name;
    uid_t uid;
    pid_t pid;
    uint32_t qpn;
};
/* -EINVAL: this process has no such QP of the domain, on the device of that interface. */
int qp_open_for(const struct qp_asker *asker, uint32_t ifindex, uint64_t device, uint64_t inode);
int qp_modify_for(const struct qp_asker *asker, const struct ibv_qp_attr *attributes, int mask);
int qp_query_for(const struct qp_asker *asker, struct ibv_qp_attr *ret_attributes, int mask);
void qp_close_for(const struct qp_asker *asker);
/* All handles of the process behind that link. */
void qp_close_all_for(uint64_t serial);

#endif
