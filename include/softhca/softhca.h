/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What SoftHCA offers beyond verbs: explanations of what its objects wait for (softhca.h(3),
 * docs/teardown.md).
 *
 * A program that uses this needs nothing of SoftHCA to be built, and runs on any libibverbs:
 *
 *     const struct softhca_api *softhca = softhca_find();
 *
 *     if (ibv_destroy_cq(cq) == EBUSY && softhca) {
 *         char *text = softhca->why_object(SOFTHCA_CQ, cq, SOFTHCA_TEXT);
 *
 *         fputs(text ? text : "", stderr);
 *         free(text);
 *     }
 */
#ifndef SOFTHCA_SOFTHCA_H
#define SOFTHCA_SOFTHCA_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_qp;

/* What `object` points to: struct ibv_context, ibv_pd, ibv_mr, ibv_mw, ibv_cq, ibv_comp_channel, ibv_qp,
 * ibv_srq, ibv_ah, ibv_wq, ibv_rwq_ind_table. */
enum softhca_kind {
    SOFTHCA_CONTEXT = 1,
    SOFTHCA_PD,
    SOFTHCA_MR,
    SOFTHCA_MW,
    SOFTHCA_CQ,
    SOFTHCA_CHANNEL,
    SOFTHCA_QP,
    SOFTHCA_SRQ,
    SOFTHCA_AH,
    SOFTHCA_WQ,
    SOFTHCA_IND_TABLE
};

enum softhca_format {
    SOFTHCA_TEXT, /* a line that names the cause, and indented lines of detail */
    SOFTHCA_JSON  /* one object on one line */
};

/* text ends with a newline and is valid during the call. The thread is the one whose verb is explained, or
 * one that made progress; it holds no lock of SoftHCA and may call verbs. */
typedef void softhca_handler(const char *text, void *argument);

/* Text that is returned is to be freed. NULL with errno: EINVAL (no such object), ENOENT (nothing to tell),
 * ENOMEM. */
struct softhca_api {
    size_t size; /* of this struct as the library has it: later versions add to its end */
    const char *version;
    /* A name that explanations use for the object; its first 16 bytes. NULL: none. 0 or an errno value. */
    int (*set_name)(enum softhca_kind kind, const void *object, const char *name);
    /* What holds the object, what its destruction would wait for, what its queues wait for. */
    char *(*why_object)(enum softhca_kind kind, const void *object, enum softhca_format format);
    /* Where the work request is, and why its completion has not come. qp NULL: of any. */
    char *(*why_wr)(const struct ibv_qp *qp, uint64_t wr_id, enum softhca_format format);
    /* All objects of this process. */
    char *(*list)(enum softhca_format format);
    /* Switches explanations on, and sends them there instead of to stderr; NULL: to stderr. */
    void (*set_handler)(softhca_handler *handler, void *argument, enum softhca_format format);
};

/* NULL: the libibverbs that is loaded is another one, or none is. */
static inline const struct softhca_api *softhca_find(void)
{
    void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD), *api;

    if (!library)
        return NULL;
    api = dlsym(library, "softhca_api");
    dlclose(library);
    return (const struct softhca_api *)api;
}

#ifdef __cplusplus
}
#endif

#endif
