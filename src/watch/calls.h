/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files with functions of libibverbs and librdmacm share. */
#ifndef WATCH_CALLS_H
#define WATCH_CALLS_H

#include <errno.h>
#include <infiniband/verbs.h>

#include "watch/originals.h"
#include "watch/watch.h"

/* verbs.h defines macros with the names of functions that are defined here. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define WATCH_EXPORT __attribute__((visibility("default")))

/* Calls an original with the guard up: what it calls by itself passes. */
#define INSIDE(call)                                                                                         \
    ({                                                                                                       \
        __typeof__(call) inside_result_;                                                                     \
        watch_enter();                                                                                       \
        inside_result_ = (call);                                                                             \
        watch_leave();                                                                                       \
        inside_result_;                                                                                      \
    })

/* An entry of a table of originals. */
#define VERBS(verb, node)                                                                                    \
    {                                                                                                        \
        .library = ORIGINAL_VERBS, .name = #verb, .version = "IBVERBS_" node, .ours = (void *)verb           \
    }

/* Declares `original`; a program that reaches us has it, unless it has libibverbs under another name. */
#define FIND(which, verb, failure)                                                                           \
    __typeof__(&verb) original = (__typeof__(&verb))original_find(&(which));                                 \
    if (unlikely(!original)) {                                                                               \
        errno = ENOSYS;                                                                                      \
        return failure;                                                                                      \
    }

/* Around the original destroy verb of a kind, which returns 0 or an errno. */
#define DESTROY(which, verb, object_kind, pointer)                                                           \
    struct watched *object;                                                                                  \
    struct blocked_destroy *blocked;                                                                         \
    int result;                                                                                              \
    FIND(which, verb, ENOSYS)                                                                                \
    if (watch_thread.inside)                                                                                 \
        return original(pointer);                                                                            \
    object = watched_find(pointer, object_kind);                                                             \
    blocked = destroy_begins(object);                                                                        \
    result = INSIDE(original(pointer));                                                                      \
    destroy_ends(object, blocked, result);                                                                   \
    return result

/* How deep the thread is in librdmacm: what that opens is its own. */
extern __thread unsigned watch_in_cm __attribute__((tls_model("initial-exec")));

/* ops.c: known, and its functions replaced. Also a context, PD or QP that was made unseen. NULL: cannot be recorded. */
struct watched_context *adopt_context(struct ibv_context *context);
struct watched_pd *adopt_pd(struct ibv_pd *pd);
void adopt_qp(struct ibv_qp *qp, const struct watched_qp_attr *attr);

/* extended.c: functions of an extended CQ; of a QP made for ibv_wr_start() with these operations, and again when the
 * provider has put back its own. */
void watch_cq_ex(struct watched_cq *known, struct ibv_cq_ex *cq);
void watch_qp_ex(struct watched_qp *known, struct ibv_qp *qp, uint64_t operations);
void replace_qp_ex(struct watched_qp *qp);

/* verbs.c: the original. */
struct ibv_qp_ex *original_qp_to_qp_ex(struct ibv_qp *qp);

#endif
