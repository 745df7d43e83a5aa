/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Why an object cannot be destroyed, and who loses when it can. */
#include <string.h>
#include <unistd.h>

#include "explain/explain.h"

#define STACK_LINES 6u
#define HEAD_ROOM   2048u /* quoting makes the cause twice as long at most */

void explanation_begin(const struct view *view, struct out *out, const char *what, const char *cause)
{
    char program[sizeof(view->header.program) + 1];

    out->topic = 14695981039346656037ull;
    for (const char *c = cause; *c; c++)
        out->topic = (out->topic ^ (uint8_t)*c) * 1099511628211ull;
    printable(program, view->header.program, sizeof(view->header.program));
    out_keep_room(out, HEAD_ROOM);
    out_begin(out, NULL);
    out_string(out, "explanation", what);
    out_signed(out, "pid", view_pid(view));
    out_string(out, "program", program);
    out_string(out, "cause", cause);
    out_line(out, 0, "%s", cause);
    out_mark(out);
}

void explanation_end(struct out *out)
{
    out_fit(out);
    out_end(out);
    out_newline(out);
    if (out->cut && out->json) /* no memory even for that */
        out_fini(out);
}

/* --- busy ----------------------------------------------------------------------------------------------- */

/* What the holders do with it, in the singular and the plural. */
static const char *holding(enum object_kind kind, enum object_kind holder, bool many)
{
    switch (kind) {
    case OBJECT_CQ:
        return many ? "still complete into it" : "still completes into it";
    case OBJECT_SRQ:
        return many ? "still receive from it" : "still receives from it";
    case OBJECT_PD:
        if (holder == OBJECT_MR)
            return many ? "are still registered in it" : "is still registered in it";
        if (holder == OBJECT_PD)
            return many ? "are still parent domains of it" : "is still a parent domain of it";
        return many ? "still belong to it" : "still belongs to it";
    case OBJECT_MR:
        return many ? "are still bound to it" : "is still bound to it";
    case OBJECT_QP:
        if (holder == OBJECT_FLOW)
            return many ? "still direct packets to it" : "still directs packets to it";
        return many ? "still have it attached" : "still has it attached";
    case OBJECT_IND_TABLE:
        return many ? "still use it for RSS" : "still uses it for RSS";
    case OBJECT_COUNTERS:
        return many ? "are still attached to it" : "is still attached to it";
    case OBJECT_WQ:
        return many ? "still contain it" : "still contains it";
    case OBJECT_CHANNEL:
    case OBJECT_CONTEXT:
    case OBJECT_MW:
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_CM_ID:
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
        break;
    }
    return many ? "still use it" : "still uses it";
}

static void add_holders(const struct view *view, struct words *words, const struct object *object,
                        const struct listed *holders)
{
    struct object holder;
    bool one_kind = holders->count && holders->of_kind[holders->list[0].kind] == holders->total;
    enum object_kind kind = one_kind ? holders->list[0].kind : OBJECT_QP;
    const char *verb = NULL;

    if (holders->total == 1 && object_read(view, holders->list[0].kind, holders->list[0].number, &holder)) {
        words_add(words, "%s %s", object_label(view, &holder).text, holding(object->kind, kind, false));
        if (holder.destroying)
            words_add(words, ", whose own destroy is blocked");
        return;
    }
    if (object->kind == OBJECT_PD && object->pd != NO_OBJECT &&
        holders->total != object->protection_domain.users)
        words_add(words, "%u objects of its PD still use it (which ones is not recorded); the PD has ",
                  (uint32_t)object->protection_domain.users);
    else
        verb = holding(object->kind, kind, holders->total != 1);
    words_add_counts(words, holders);
    if (verb)
        words_add(words, " %s", verb);
}

bool explain_busy(const struct view *view, struct out *out, enum object_kind kind, uint32_t number)
{
    struct words cause = {.length = 0};
    struct listed holders;
    struct object object;

    /* The program does not ask whether librdmacm's own PD can be destroyed. */
    if (!object_read(view, kind, number, &object) || (kind == OBJECT_PD && object.protection_domain.kept))
        return false;
    listed_holders(view, &object, &holders);
    words_add(&cause, "%s(%s) fails with EBUSY: ", object_destroy_verb(kind),
              object_label(view, &object).text);
    if (holders.total)
        add_holders(view, &cause, &object, &holders);
    else
        words_add(&cause, "it was in use at the call, and no user of it is left now");
    out->remarks[REMARK_BUSY] = 1;
    explanation_begin(view, out, "busy", cause.text);
    out_string(out, "call", object_destroy_verb(kind));
    out_string(out, "errno", "EBUSY");
    object_describe(view, out, "object", 1, &object, STACK_LINES);
    holders_describe(view, out, &holders, STACK_LINES);
    explanation_end(out);
    return true;
}

/* --- keys in use ---------------------------------------------------------------------------------------- */

/* Must stay cheap: some programs register memory for each message. */
#define ENTRIES_SEARCHED_MAX 4096u

struct users {
    const struct object *region;
    uint32_t budget;
    unsigned queues;
    uint64_t total;
    struct out *out; /* NULL: only count */
    char first[96];  /* the first queue that was found */
};

static bool names_key(const struct view *view, uint64_t queue, uint32_t stride, uint32_t slots,
                      uint32_t counter, size_t header, uint32_t count, uint32_t lkey)
{
    return sges_name_key(view, queue + (uint64_t)(counter & (slots - 1)) * stride + header, count, lkey);
}

static void describe_queue(const struct view *view, struct users *users, const char *queue,
                           const struct object *owner, struct wr_ids *ids)
{
    struct label label = object_label(view, owner);

    if (!ids->total)
        return;
    wr_ids_finish(ids);
    users->queues++;
    users->total += ids->total;
    if (!users->first[0]) {
        struct words words = {.length = 0};

        words_add(&words, "%s of %s", queue, label.text);
        memcpy(users->first, words.text, sizeof(users->first));
        users->first[sizeof(users->first) - 1] = '\0';
    }
    if (!users->out)
        return;
    out_begin(users->out, NULL);
    out_string(users->out, "queue", queue);
    out_string(users->out, "of", label.text);
    out_number(users->out, "work_requests", ids->total);
    out_string(users->out, "wr_ids", ids->words.text);
    out_end(users->out);
    out_line(users->out, 1, "%s of %s: wr_id %s", queue, label.text, ids->words.text);
}

static void search_sends(const struct view *view, struct users *users, const struct object *owner)
{
    const struct qp_record *qp = &owner->qp;
    uint32_t count = entries_between(qp->sender.completed, qp->sender.posted, LIMIT_QP_WR);
    struct wr_ids ids = {.total = 0};
    struct send_wqe wqe;

    for (uint32_t i = 0; i < count && users->budget; i++, users->budget--) {
        uint32_t counter = qp->sender.completed + i;

        if (!send_wqe_read(view, qp, counter, &wqe))
            return;
        if (!(wqe.flags & (WQE_INLINE | WQE_COPIED | WQE_LOST)) && wqe.opcode != IBV_WR_BIND_MW &&
            send_names_key(view, qp, counter, wqe.num_sge, users->region->key.lkey))
            wr_ids_add(&ids, wqe.wr_id);
    }
    describe_queue(view, users, "send queue", owner, &ids);
}

static void search_receives(const struct view *view, struct users *users, const struct object *owner)
{
    const struct receive_queue *queue = owner->kind == OBJECT_WQ ? &owner->wq.receive : &owner->qp.receive;
    uint32_t count = entries_between(queue->taken, queue->posted, LIMIT_QP_WR);
    struct wr_ids ids = {.total = 0};
    struct recv_wqe wqe;

    for (uint32_t i = 0; i < count && users->budget; i++, users->budget--) {
        if (!receive_read(view, queue, queue->taken + i, &wqe))
            return;
        if (names_key(view, queue->offset, queue->stride, slots_for(queue->depth), queue->taken + i,
                      offsetof(struct recv_wqe, sge), wqe.num_sge, users->region->key.lkey))
            wr_ids_add(&ids, wqe.wr_id);
    }
    describe_queue(view, users, "receive queue", owner, &ids);
}

static void search_srq(const struct view *view, struct users *users, const struct object *owner)
{
    const struct srq_record *srq = &owner->srq;
    uint32_t count = entries_between(srq->taken, srq->posted, LIMIT_SRQ_WR);
    struct wr_ids ids = {.total = 0};
    struct recv_wqe wqe;

    for (uint32_t i = 0; i < count && users->budget; i++, users->budget--) {
        if (!srq_receive_read(view, srq, srq->taken + i, &wqe))
            return;
        if (names_key(view, srq->ring_offset, srq->stride, slots_for(srq->max_wr + 1), srq->taken + i,
                      offsetof(struct recv_wqe, sge), wqe.num_sge, users->region->key.lkey))
            wr_ids_add(&ids, wqe.wr_id);
    }
    describe_queue(view, users, "receive queue", owner, &ids);
}

static bool look_at(const struct view *view, const struct object *object, void *argument)
{
    struct users *users = argument;

    if (object->pd != users->region->pd)
        return true;
    if (object->kind == OBJECT_SRQ) {
        search_srq(view, users, object);
    } else {
        if (object->kind == OBJECT_QP)
            search_sends(view, users, object);
        search_receives(view, users, object);
    }
    return users->budget != 0;
}

bool explain_in_use(const struct view *view, struct out *out, uint32_t number)
{
    struct words cause = {.length = 0};
    struct object region;
    struct users users = {.region = &region, .budget = ENTRIES_SEARCHED_MAX};

    if (!object_read(view, OBJECT_MR, number, &region))
        return false;
    objects_for_each(view, 1u << OBJECT_QP | 1u << OBJECT_SRQ | 1u << OBJECT_WQ, look_at, &users);
    if (!users.total)
        return false;
    words_add(&cause, "ibv_dereg_mr(%s): %llu outstanding work request%s still use%s its lkey, in the %s",
              object_label(view, &region).text, (unsigned long long)users.total, users.total == 1 ? "" : "s",
              users.total == 1 ? "s" : "", users.first);
    if (users.queues > 1)
        words_add(&cause, " and %u more queue%s", users.queues - 1, users.queues == 2 ? "" : "s");
    out->remarks[REMARK_IN_USE] = 1;
    explanation_begin(view, out, "in_use", cause.text);
    out_string(out, "call", "ibv_dereg_mr");
    object_describe(view, out, "object", 1, &region, STACK_LINES);
    out_line(
        out, 1,
        "each of them fails with IBV_WC_LOC_PROT_ERR when it is executed, unless its QP goes to ERR first "
        "(IBV_WC_WR_FLUSH_ERR)");
    users = (struct users){.region = &region, .budget = ENTRIES_SEARCHED_MAX, .out = out};
    out_begin_array(out, "queues");
    objects_for_each(view, 1u << OBJECT_QP | 1u << OBJECT_SRQ | 1u << OBJECT_WQ, look_at, &users);
    out_end_array(out);
    explanation_end(out);
    return true;
}
