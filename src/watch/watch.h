/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Records of verbs objects that another adapter serves, in the published segment. src/watch/calls fills them in when
 * the program calls a verb; explain reads them as it reads those of SoftHCA's own objects.
 *
 * Only what passes through the calls is known: what was created, posted, polled, read, acknowledged. Where a work
 * request is between its post and its poll only the adapter knows.
 *
 * Each object that the program knows by a pointer has a struct watched, found by that pointer without a lock
 * (table.h). After a fork the child's inherited objects are stale: calls for them pass, and nothing is recorded. */
#ifndef WATCH_WATCH_H
#define WATCH_WATCH_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/verbs.h"
#include "segment/provenance.h"
#include "segment/segment.h"
#include "watch/bias.h"
#include "watch/table.h"

/* Variables of this library: found without its offset table. */
#define WATCH_OURS __attribute__((visibility("hidden")))

struct watched_context;

/* The beginning of each of the structures below. */
struct watched {
    const void *key; /* the program's structure */
    struct watched_context *context;
    enum object_kind kind;
    uint32_t found_as; /* the kind; OBJECT_KINDS: stale, inherited by fork() */
    uint32_t number;   /* in its table of the segment; contexts and channels: that which other records use */
    uint32_t item;     /* of a kind without a table of its own; NO_OBJECT: none */
    struct watched *next_free;
};

static inline bool is_stale(const struct watched *object)
{
    return object->found_as != object->kind;
}

/* Originals of what is inline in verbs.h, and of which the program's copy is replaced. */
struct watched_originals {
    struct ibv_context_ops ops;
    struct verbs_context extended; /* members that were not replaced are NULL */
};

struct watched_context {
    struct watched base;
    struct watched_originals original;
};

struct watched_pd {
    struct watched base;
};

struct watched_key { /* MR and MW */
    struct watched base;
    struct watched_pd *pd;
    struct watched *dm;
};

struct watched_qp;

/* Of a CQ: QPs that completed here lately, found without the table. */
#define RECENT_QPS 16u

/* Of a poll: what it has to tell. */
enum news { NEWS_NONE, NEWS_FAILURE, NEWS_UNSEEN };

struct watched_cq {
    struct watched base;
    struct cq_record *record;
    struct bias lock; /* guards the completion side of QPs and SRQs that complete here, and these: */
    const struct ibv_wc *polled_into;
    enum news news; /* the first of this poll */
    const struct watched_qp *news_of;
    struct watched_qp *recent[RECENT_QPS]; /* by QP number; no_qp: none */
    struct watched *channel;
    struct watched_pd *domain;
    int (*poll)(struct ibv_cq *cq, int count, struct ibv_wc *wc);
    int (*req_notify)(struct ibv_cq *cq, int solicited_only);
    struct { /* of a struct ibv_cq_ex */
        int (*start_poll)(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr);
        int (*next_poll)(struct ibv_cq_ex *cq);
    } ex;
};

/* A ring of records of work requests in the segment; slot = counter & mask. */
struct watched_ring {
    struct bias
        lock; /* of posts: held from before the original post to behind it. A leaf but for the adapter's locks */
    char *slots;
    uint64_t offset;
    size_t size;
    uint32_t depth; /* slots; 0: nothing is recorded */
    uint32_t plain; /* the same for posts of which no time is recorded, else 0 */
    uint32_t room;  /* sends: plain less one, or 0 */
    uint32_t limit; /* receives: slots are known to be free up to this counter */
    uint32_t mask, stride, max_sge;
    /* Each work request gives a completion, so completions are counted. Else they are compared with what was posted,
     * one by one. Cleared for good before the post that ends it. */
    _Atomic bool counted;
};

struct watched_srq {
    struct watched base;
    struct watched_ring ring;
    struct lock take_lock; /* taken, by completions of several CQs. Behind a CQ's lock */
    struct watched_pd *pd;
    struct watched_cq *cq;
    struct watched *xrcd;
    bool unseen; /* its receives are posted by direct verbs, or are tag matching */
    int (*post)(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
};

struct watched_qp {
    struct watched base;
    struct qp_record *record;
    struct qp_rare *rare; /* read and written only if record->has_rare */
    uint32_t qpn;
    uint32_t always;          /* IBV_SEND_SIGNALED with sq_sig_all */
    bool unsignaled_is_first; /* send.counted, and an unsignaled work request ends it */
    struct watched_ring send, receive;
    char *rests; /* of send: struct watched_rest, whose stride send.stride is */
    struct watched_cq *send_cq, *recv_cq;
    struct watched_srq *srq;
    struct watched_pd *pd;
    struct watched *xrcd, *ind_table;
    bool building;
    bool build_locked; /* of bias_acquire() by build_begin() */
    uint32_t built;    /* sends since wr_start; behind sender.posted */
    int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
    int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
    struct ibv_qp_ex *ex;      /* NULL: not made for wr_start() */
    union newest_qp *original; /* its functions */
    bool atomic_write;         /* ex has wr_atomic_write */
};

struct watched_wq {
    struct watched base;
    struct watched_pd *pd;
    struct watched_cq *cq;
};

struct watched_item { /* channel, AH, TD, XRCD, DM, flow, counters, attachment */
    struct watched base;
    struct watched_pd *pd;
};

struct watched_id { /* struct rdma_cm_id */
    struct watched base;
};

/* --- start.c -------------------------------------------------------------------------------------------- */

/* Opens the segment once. False: nothing can be recorded, and calls pass. */
bool watch_start(void);

/* --- objects.c: each returns NULL if nothing can be recorded -------------------------------------------- */

/* Of that kind, by the program's pointer; NULL: not known, or stale. */
extern struct table watched_objects WATCH_OURS;
static inline struct watched *watched_find(const void *key, enum object_kind kind)
{
    struct watched *object = likely(key) ? table_find(&watched_objects, (uintptr_t)key) : NULL;

    return likely(object && object->found_as == kind) ? object : NULL;
}
/* The same as watched_find(), also a stale one: only for its originals. */
struct watched_context *watched_context_of(const struct ibv_context *context);
static inline struct watched_originals *originals_of(const struct ibv_context *context)
{
    return &watched_context_of(context)->original;
}

/* The same of a CQ and QP whose functions were replaced, and which are therefore known. */
struct watched_cq *table_find_cq(const struct ibv_cq_ex *cq);
struct watched_qp *table_find_qp(const struct ibv_qp *qp);

struct watched_context *watched_new_context(struct ibv_context *context, const char *device);
struct watched_pd *watched_new_pd(struct ibv_pd *pd, struct ibv_context *context, struct ibv_pd *protects,
                                  struct ibv_td *td);
void watched_new_mr(struct ibv_mr *mr, struct ibv_pd *pd, uint64_t iova, unsigned access, struct ibv_dm *dm,
                    uint64_t dm_offset);
void watched_mr_changed(struct ibv_mr *mr, struct ibv_pd *pd, uint64_t iova, unsigned access);
void watched_new_mw(struct ibv_mw *mw, struct ibv_pd *pd);
void watched_mw_bound(struct ibv_mw *mw, struct ibv_mr *mr, uint32_t rkey);
struct watched_cq *watched_new_cq(struct ibv_cq *cq, struct ibv_pd *domain);
struct watched_srq *watched_new_srq(struct ibv_srq *srq, struct ibv_pd *pd, struct ibv_cq *cq,
                                    struct ibv_xrcd *xrcd, uint32_t max_wr, uint32_t max_sge);
struct watched_qp_attr {
    struct ibv_pd *pd;
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_srq *srq;
    struct ibv_xrcd *xrcd;
    struct ibv_rwq_ind_table *ind_table;
    struct ibv_qp_cap cap;
    bool signal_all, opened;
};
struct watched_qp *watched_new_qp(struct ibv_qp *qp, const struct watched_qp_attr *attr);
void watched_qp_modified(struct watched_qp *qp, const struct ibv_qp_attr *attr, int mask);
struct watched_wq *watched_new_wq(struct ibv_wq *wq, struct ibv_pd *pd, struct ibv_cq *cq, uint32_t state);
void watched_new_ind_table(struct ibv_rwq_ind_table *table, struct ibv_wq *const *wqs, uint32_t count);
/* Kinds whose record is an item. parent: as in struct item_record; detail: 16 bytes, or NULL. */
struct watched *watched_new_item(const void *key, enum object_kind kind, struct ibv_context *context,
                                 uint32_t parent, const void *detail);
struct watched *watched_new_ah(struct ibv_ah *ah, struct ibv_pd *pd, const union ibv_gid *gid);
void watched_attached(struct ibv_qp *qp, const union ibv_gid *gid, bool attached);
struct watched_id *watched_new_id(const void *id);

/* The object was destroyed: its record is free, if the program's pointer still stands for it. */
void watched_forget(struct watched *object);
/* Of a context, with all that is left in it. */
void watched_context_closed(struct watched_context *context);

/* --- destroy.c ------------------------------------------------------------------------------------------ */

/* Around the original destroy of an object, which may block. NULL: it does not. */
struct blocked_destroy *destroy_begins(struct watched *object);
/* result: 0, or the error of the original. Tells, and forgets the object if it is gone. */
void destroy_ends(struct watched *object, struct blocked_destroy *blocked, int result);
/* Of a call that waits as a destroy does, and leaves the object. */
void destroy_waited(struct watched *object, struct blocked_destroy *blocked);

/* --- post.c, build.c, complete.c: what is posted and polled --------------------------------------------- */

/* What contexts call: the program's arguments. */
int op_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int op_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int op_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int op_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wc);
/* The same, and whom they are for. */
int watched_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad,
                      struct watched_qp *qp);
int watched_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad,
                      struct watched_qp *qp);
int watched_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad,
                          struct watched_srq *srq);
int watched_poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wc, struct watched_cq *cq);
/* One completion; no lock held. */
struct completion {
    uint64_t wr_id;
    uint32_t qpn, vendor_err;
    uint32_t status; /* enum ibv_wc_status */
    bool receive;    /* as its opcode says, which is not valid in an error */
};
void watched_completed(struct watched_cq *cq, const struct completion *completion);
/* ibv_wr_*(): builds in the slots behind sender.posted. send.lock is held from build_begin() to build_end(). */
void build_begin(struct watched_qp *qp);
struct watched_send *build_send(struct watched_qp *qp, uint64_t wr_id, unsigned flags, uint8_t opcode);
void build_sge(struct watched_qp *qp, const struct ibv_sge *sges, size_t count);
void build_inline(struct watched_qp *qp, size_t length);
/* Before the original wr_complete(); the number is given to build_end(). */
uint32_t build_publish(struct watched_qp *qp);
/* failed: none of them was posted. */
void build_end(struct watched_qp *qp, uint32_t published, bool failed);
/* QP to RESET, or destroyed: its work requests are gone. */
void work_forget(struct watched_qp *qp);
/* By QP number, where completions name it. */
void work_know_qp(struct watched_qp *qp, uint32_t qpn);
void work_forget_qp(struct watched_qp *qp);
/* Have a number that no QP has, and a key that no object has. */
extern struct watched_qp no_qp WATCH_OURS;
extern struct watched_cq no_cq WATCH_OURS;

/* --- events.c ------------------------------------------------------------------------------------------- */

void watched_event_read(struct event_record *record, uint32_t type);
/* type: as when it was read. */
void watched_events_acked(struct event_record *record, uint32_t count, uint32_t type);
/* NULL: not an event that has to be acknowledged, or not of a known object. */
struct event_record *watched_async_record(const struct ibv_async_event *event);

/* Are the times of all work requests recorded? */
extern bool watch_times WATCH_OURS;

/* --- tell.c: explanations on stderr --------------------------------------------------------------------- */

enum told {
    TOLD_BUSY,
    TOLD_BLOCKED,
    TOLD_RESUMED,
    TOLD_IN_USE,
    TOLD_LEAKS,
    TOLD_FAILURE,
    TOLD_REFUSED,
    TOLD_UNSEEN,
    TOLD_KINDS
};
void tell_start(void);
void tell(enum told what, enum object_kind kind, uint32_t number);
/* A call that failed, by the reason that a rule has noted for that error (base/refusal.h); known_as: the number by
 * which programs know the object. False: none was noted. */
bool tell_reason(const char *call, int error, enum object_kind kind, uint32_t known_as);
/* A call that failed: detail says why, if that is known. */
void tell_refused(const char *call, enum object_kind kind, uint32_t number, int error, const char *detail);
void tell_after_fork_in_child(void);

#endif
