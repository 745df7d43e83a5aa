/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ibv_open_qp (verbs.md §2.11): further handles of an XRC_RECV QP, in the process that created it and in others that
 * have its domain open. The QP stays in the process that created it, and ends with its last handle, of which the
 * creator's is one. A handle has a struct qp and a slot of the table of QPs, so that all verbs accept it, but it is
 * not found by its number. */
#ifndef OBJECT_XRC_OPEN_QP_H
#define OBJECT_XRC_OPEN_QP_H

#include "object/qp/qp.h"

/* A handle in the list of its QP; under the QP's lock. */
struct qp_opener {
    struct list node;
    struct qp *handle; /* the handle in this process; NULL: it is in another process */
    uint64_t serial,
        name; /* of another process: the serial number of the link, and the handle's name there */
    pid_t pid;
};

struct qp_handle {
    struct qp *target;       /* NULL: another process has the QP */
    struct qp_opener opener; /* in the target's list */
    /* Of a QP in another process, used by the engine: */
    struct list all;
    uint64_t serial, name; /* the serial number of the link to that process, and this handle's name on it */
    bool lost;             /* that process has ended, and the QP with it */
};

/* -EOPNOTSUPP: an unknown bit of comp_mask; -EINVAL: a bit is missing, or there is no such QP in the domain. */
int qp_open(struct context *context, const struct ibv_qp_open_attr *attributes, struct qp **ret_handle);
int qp_handle_modify(struct qp *handle, const struct ibv_qp_attr *attributes, int mask);
int qp_handle_query(struct qp *handle, struct ibv_qp_attr *ret_attributes, int mask,
                    struct ibv_qp_init_attr *ret_init);
int qp_handle_destroy(struct qp *handle);

/* The creator destroys its handle. True: the caller has to end the QP; false: other handles keep it. */
bool qp_close_creator(struct qp *qp);
/* Does another context or another process have the QP open? QP lock held. */
bool qp_is_open_elsewhere(const struct qp *qp, const struct context *context);
/* Frees what a QP that was opened by others has in addition. */
void qp_forget_openers(struct qp *qp);

/* Copies the attributes in the mask. */
void qp_copy_attributes(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask);

/* --- for other processes (engine/xrc/remote_open.c); without locks, outside every rundown section --------------- */

/* The requester: a handle of another process, by the link's serial number and the handle's name there. */
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
/* Closes all handles of the process behind that link. */
void qp_close_all_for(uint64_t serial);

#endif
