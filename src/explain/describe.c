/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A paragraph about an object. */
#include <string.h>

#include "explain/names.h"
#include "explain/objects.h"
#include "mapped/mapped.h"

enum detail {
    DETAIL_LISTED,
    DETAIL_EXPLAINED,
    DETAIL_FAILED, /* a QP in the paragraph of its error */
};

/* Errors that were repaired: retries, drops, duplicates. In the paragraph of an error the words have what belongs to
 * it: retries of before are not its cause, unless no acknowledgement came. */
static void describe_repairs(struct out *out, const struct qp_record *qp, bool retried, struct words *words)
{
    const struct sender *sender = &qp->sender;
    const struct responder *responder = &qp->responder;
    const struct {
        const char *key, *words;
        uint32_t count;
        bool of_retry;
    } counts[] = {
        {"retransmissions", "retransmissions", sender->retransmissions, true},
        {"sequence_naks_received", "PSN sequence error NAKs received", sender->sequence_naks, false},
        {"rnr_naks_received", "RNR NAKs received", sender->rnr_naks, false},
        {"ack_timeouts", "local ACK timeouts", sender->expirations, true},
        {"probes", "probes (a packet sent again early, because its acknowledgement is missing)",
         sender->probes_sent, true},
        {"congestion_notifications", "CNPs received", sender->congestions, false},
        {"duplicate_requests", "duplicate requests", responder->duplicates, false},
        {"held_completions", "completions held back by an injected fault", qp->held_completions, false},
        {"withheld_completions", "requests that an injected fault leaves without a completion",
         qp->withheld_completions, false},
        /* Of datagrams describe_drops() has the reasons. */
        {"dropped_requests", qp->type == IBV_QPT_UD ? NULL : "requests dropped", responder->drops, false},
    };
    bool any = false;

    out_number(out, "plain_requests", sender->plain);
    out_number(out, "plain_receives", responder->plain);
    for (unsigned i = 0; i < array_size(counts); i++) {
        out_number(out, counts[i].key, counts[i].count);
        if (!counts[i].count || !counts[i].words || (counts[i].of_retry && !retried))
            continue;
        words_add(words, "%s%s: %u", any ? ", " : "; ", counts[i].words, counts[i].count);
        any = true;
    }
}

/* How a request travels matters to its speed: it is in the words of lists only. */
static void describe_path(struct out *out, const struct path_record *path, enum detail detail,
                          struct words *words)
{
    const char *why = name_path_why(path->why);

    if (why)
        out_string(out, "not_mapped_because", why);
    if (detail != DETAIL_LISTED)
        return;
    words_add(words, " (path: %s", path_words(path->kind));
    if (why)
        words_add(words, ", peer's memory not mapped: %s", why);
    words_add(words, ")");
}

/* Who else has it open. */
static void describe_openers(struct out *out, const struct qp_record *qp, struct words *words)
{
    out_number(out, "openers", qp->openers);
    if (!qp->openers)
        return;
    words_add(words, ", %u more handle%s from ibv_open_qp()", qp->openers, qp->openers == 1 ? "" : "s");
    if (qp->opener_pid > 0) {
        out_signed(out, "opener_pid", qp->opener_pid);
        words_add(words, ", one of them in process %d", (int)qp->opener_pid);
    }
    if (qp->context == NO_OBJECT)
        words_add(words, "; the process that created it has destroyed its handle");
}

static void describe_handle(struct out *out, const struct qp_record *qp, struct words *words)
{
    out_number(out, "qpn", qp->qpn ? qp->qpn : qp->destroying_qpn);
    out_string(out, "type", name_qp_type(qp->type));
    out_bool(out, "opened", true);
    words_add(words, ": %s, a handle from ibv_open_qp()%s", name_qp_type(qp->type),
              qp->qpn ? "" : ", being destroyed");
    if (qp->home_pid > 0) {
        out_signed(out, "owner_pid", qp->home_pid);
        words_add(words, ", QP owned by process %d", (int)qp->home_pid);
    }
}

static void describe_drops(struct out *out, const struct qp_record *qp, const struct qp_rare *rare,
                           struct words *words)
{
    static const struct {
        const char *key, *words;
    } reasons[DROP_REASONS] = {
        [DROP_QKEY] = {"dropped_for_qkey", "with a wrong Q_Key"},
        [DROP_NO_RECEIVE] = {"dropped_without_receive", "without a posted receive"},
        [DROP_TOO_SMALL] = {"dropped_by_small_receive", "longer than the receive"},
        [DROP_STATE] = {"dropped_in_state", "in a state that takes none"},
        [DROP_NOBODY] = {"sent_to_nobody", "to a QP that does not exist"},
    };
    bool any = false;

    if (is_connected(qp)) {
        out_number(out, reasons[DROP_STATE].key, rare->drops[DROP_STATE].count);
        return;
    }
    for (unsigned i = 0; i < DROP_REASONS; i++) {
        if (!rare->drops[i].count)
            continue;
        out_number(out, reasons[i].key, rare->drops[i].count);
        words_add(words, "%s%llu %s",
                  any ? ", " : "; datagrams dropped: ", (unsigned long long)rare->drops[i].count,
                  reasons[i].words);
        any = true;
    }
}

static void describe_qp(const struct view *view, struct out *out, const struct object *object,
                        enum detail detail, struct words *words)
{
    const struct qp_record *qp = &object->qp;
    uint16_t cause = object->rare.fault.cause;
    bool failed = detail == DETAIL_FAILED;
    uint32_t state = failed ? fault_state(view, object) : qp->state;
    const struct sender *sender = &qp->sender;
    uint32_t sends = sender->posted - sender->completed, receives = qp->receive.posted - qp->receive.taken;

    if (qp->opened) {
        describe_handle(out, qp, words);
        return;
    }
    out_number(out, "qpn", qp->qpn ? qp->qpn : qp->destroying_qpn);
    out_string(out, "type", name_qp_type(qp->type));
    out_string(out, "state", name_qp_state(state));
    out_number(out, "send_cq", qp->send_cq);
    out_number(out, "recv_cq", qp->recv_cq);
    words_add(words, ": %s, %s", name_qp_type(qp->type), qp->qpn ? name_qp_state(state) : "being destroyed");
    if (qp->srq != NO_OBJECT) {
        out_number(out, "srq", qp->srq);
        words_add(words, ", SRQ %u", qp->srq);
    }
    out_number(out, "outstanding_sends", sends);
    words_add(words, ", %u send%s", sends, sends == 1 ? "" : "s");
    if (qp->srq == NO_OBJECT) {
        out_number(out, "outstanding_receives", receives);
        words_add(words, " and %u receive%s", receives, receives == 1 ? "" : "s");
    }
    words_add(words, " outstanding");
    out_number(out, "sends_posted_total", sender->posted);
    out_number(out, "receives_posted_total", qp->receive.posted);
    out_string(out, "sender_waits_for", name_sender_wait(sender->waiting));
    if (qp->attributes.dest_qpn && qp->type != IBV_QPT_UD) {
        out_number(out, "dest_qpn", qp->attributes.dest_qpn);
        out_string(out, "path", name_path(qp->path.kind));
        words_add(words, ", to QP 0x%06x", qp->attributes.dest_qpn);
        if (qp->path.peer_pid > 0) {
            out_signed(out, "peer_pid", qp->path.peer_pid);
            words_add(words, " of process %d", (int)qp->path.peer_pid);
        }
        if (qp->path.kind == PATH_WIRE) {
            words_add(words, " at ");
            words_add_gid(words, qp->attributes.path.destination_gid);
        }
        describe_path(out, &qp->path, detail, words);
    }
    describe_repairs(out, qp, !failed || cause == FAULT_SILENCE || cause == FAULT_PSN, words);
    describe_drops(out, qp, &object->rare, words);
    if (qp->type == IBV_QPT_XRC_RECV)
        describe_openers(out, qp, words);
    out_number(out, "multicast_groups", qp->multicast_groups);
    if (qp->type == IBV_QPT_RAW_PACKET && qp->ind_table != NO_OBJECT) {
        out_number(out, "indirection_table", qp->ind_table);
        words_add(words, ", RSS by indirection table %u", qp->ind_table);
    }
}

static void describe_cq(const struct view *view, struct out *out, unsigned level, const struct cq_record *cq,
                        struct words *words)
{
    uint32_t unpolled = cq->produced - cq->consumed;

    out_number(out, "capacity", cq->capacity);
    if (!view->header.watched)
        out_number(out, "unpolled", unpolled);
    out_number(out, "completions", cq->produced);
    out_bool(out, "armed", cq->armed != CQ_UNARMED);
    out_bool(out, "overrun", cq->failed != 0);
    out_number(out, "lost", cq->lost);
    out_number(out, "users", cq->users);
    if (view->header.watched)
        words_add(words, ": %u polled", cq->produced);
    else
        words_add(words, ": %u unpolled", unpolled);
    words_add(words, " (%u entries)%s%s", cq->capacity, cq->armed != CQ_UNARMED ? ", notification armed" : "",
              cq->failed ? ", overrun" : "");
    if (cq->channel != NO_OBJECT) {
        out_number(out, "channel", cq->channel);
        words_add(words, ", channel %u", cq->channel);
    }
}

static void describe_srq(struct out *out, const struct srq_record *srq, struct words *words)
{
    uint32_t waiting = srq->posted - srq->taken;

    out_number(out, "max_wr", srq->max_wr);
    out_number(out, "outstanding_receives", waiting);
    out_number(out, "receives_posted_total", srq->posted);
    out_number(out, "limit", srq->limit);
    out_number(out, "users", srq->users);
    if (srq->cq != NO_OBJECT)
        out_number(out, "cq", srq->cq);
    words_add(words, ": %u of %u receives posted", waiting, srq->max_wr);
    if (srq->limit)
        words_add(words, ", limit %u armed", srq->limit);
}

static void describe_wq(struct out *out, const struct wq_record *wq, struct words *words)
{
    static const char *const states[] = {
        [IBV_WQS_RESET] = "RESET", [IBV_WQS_RDY] = "RDY", [IBV_WQS_ERR] = "ERR"};
    const char *state = wq->wq_state < array_size(states) ? states[wq->wq_state] : "?";
    uint32_t receives = wq->receive.posted - wq->receive.taken;

    out_number(out, "wq_num", wq->wqn);
    out_string(out, "state", state);
    out_number(out, "cq", wq->cq);
    out_number(out, "outstanding_receives", receives);
    out_number(out, "users", wq->users);
    words_add(words, ": %s, %u receive%s outstanding", state, receives, receives == 1 ? "" : "s");
}

static void describe_id(struct out *out, const struct id_record *id, struct words *words)
{
    out_string(out, "state", name_id_state(id->phase));
    out_number(out, "source_port", id->source_port);
    out_number(out, "destination_port", id->destination_port);
    words_add(words, ": %s", name_id_state(id->phase));
    if (id->qpn) {
        out_number(out, "qpn", id->qpn);
        words_add(words, ", QP 0x%06x", id->qpn);
    }
}

/* Whether peers can reach the region's memory by themselves; nothing where that was never considered. In words only in
 * lists, as paths. */
static void describe_mapped(const struct view *view, struct out *out, const struct object *object,
                            enum detail detail, struct words *words)
{
    struct mapped_record record;
    uint32_t generation;
    bool whole;

    if (!view_record(view, &view->header.mapped, object->number, &record))
        return;
    generation = atomic_load_explicit(&record.generation, memory_order_relaxed);
    if (!generation)
        return;
    if (generation & 1)
        record.length = 0;
    whole = record.length == object->key.length;
    out_number(out, "mapped", record.length);
    if (record.length && detail == DETAIL_LISTED)
        words_add(words, ", mapped for peers: %s", whole ? "all" : "in part");
    if (whole || record.reason >= MAPPED_REASONS || !record.reason)
        return;
    out_string(out, "not_mapped_because", mapped_reason_text((enum mapped_reason)record.reason));
    if (detail == DETAIL_LISTED)
        words_add(words, record.length ? ", rest not mapped: %s" : ", not mapped for peers: %s",
                  mapped_reason_text((enum mapped_reason)record.reason));
}

static void describe_key(const struct view *view, struct out *out, const struct object *object,
                         enum detail detail, struct words *words)
{
    const struct key_entry *key = &object->key;

    out_number(out, "rkey", key->rkey);
    if (object->kind == OBJECT_MR) {
        out_number(out, "lkey", key->lkey);
        out_number(out, "address", key->address);
        out_number(out, "length", key->length);
        words_add(words, ": at 0x%llx", (unsigned long long)key->address);
        if (key->rkey)
            words_add(words, ", rkey 0x%08x", key->rkey);
        if (key->mws)
            words_add(words, ", %u MWs bound", key->mws);
        describe_mapped(view, out, object, detail, words);
    } else if (key->bound) {
        out_number(out, "region", key->region);
        words_add(words, ": bound");
    }
    out_number(out, "access", key->access & ~ACCESS_WAS_BOUND);
}

static void describe_item(struct out *out, const struct object *object, struct words *words)
{
    struct words gid = {.length = 0};
    char device[sizeof(object->item.device) + 1];

    if (object->kind == OBJECT_AH || object->kind == OBJECT_ATTACHMENT) {
        words_add_gid(&gid, object->item.gid);
        out_string(out, "gid", gid.text);
    }
    if (object->kind == OBJECT_ATTACHMENT)
        out_number(out, "qpn", object->item.parent);
    if (object->kind == OBJECT_FLOW) {
        out_number(out, "qpn", object->item.parent);
        words_add(words, ": to QP 0x%06x", object->item.parent);
    }
    if (object->kind == OBJECT_COUNTERS)
        out_number(out, "users", object->item.users);
    if (object->kind == OBJECT_CONTEXT) {
        printable(device, object->item.device, sizeof(object->item.device));
        out_string(out, "device", device);
    }
    if (object->kind == OBJECT_CHANNEL)
        out_number(out, "users", object->item.users);
    if (object->kind == OBJECT_DM)
        out_number(out, "length", object->item.length);
}

static void describe_events(const struct view *view, struct out *out, const char *key,
                            const struct event_record *events, const char *what, struct words *words)
{
    int64_t unacknowledged = (int32_t)(events->reported - events->acked);

    if (!events->raised && !events->reported && !events->acked)
        return;
    out_begin(out, key);
    out_number(out, "raised", events->raised);
    out_number(out, "read", events->reported);
    out_number(out, "acknowledged", events->acked);
    out_end(out);
    if (events->raised != events->reported)
        words_add(words, ", %u %s%s unread", events->raised - events->reported, what,
                  events->raised - events->reported == 1 ? "" : "s");
    if (unacknowledged)
        words_add(words, ", %u %s%s %s",
                  unacknowledged < 0 ? (uint32_t)-unacknowledged : (uint32_t)unacknowledged, what,
                  unacknowledged == 1 || unacknowledged == -1 ? "" : "s",
                  unacknowledged < 0 ? "acknowledged too often" : "read and not acknowledged");
}

static void describe_provenance(const struct view *view, struct out *out, unsigned level,
                                const struct object *object, unsigned stack_frames)
{
    const struct provenance_record *provenance = &object->provenance;
    struct words words = {.length = 0};

    if (!provenance->created_ns)
        return;
    out_begin(out, "created");
    out_number(out, "ms_ago", view_age(view, provenance->created_ns));
    out_number(out, "thread", provenance->created_by);
    words_add(&words, object->kind == OBJECT_ATTACHMENT ? "attached "
                      : object->kind == OBJECT_CONTEXT  ? "opened "
                                                        : "created ");
    words_add_age(&words, view_age(view, provenance->created_ns));
    words_add(&words, " by ");
    words_add_thread(view, &words, provenance->created_by);
    out_line(out, level, "%s", words.text);
    stack_describe(view, out, "stack", level + 1, provenance->created_stack, stack_frames);
    out_end(out);
}

static void describe_pd(struct out *out, const struct object *object, struct words *words)
{
    out_number(out, "users", object->protection_domain.users);
    words_add(words, ": used by %u object%s", (uint32_t)object->protection_domain.users,
              object->protection_domain.users == 1 ? "" : "s");
    if (object->pd != NO_OBJECT)
        words_add(words, ", made of PD %u", object->pd);
    if (object->protection_domain.td != NO_OBJECT) {
        out_number(out, "td", object->protection_domain.td);
        words_add(words, " and TD %u", object->protection_domain.td);
    }
}

/* What objects of one kind have. */
static void describe_kind(const struct view *view, struct out *out, unsigned level,
                          const struct object *object, enum detail detail, struct words *words)
{
    switch (object->kind) {
    case OBJECT_QP:
        describe_qp(view, out, object, detail, words);
        describe_events(view, out, "events", &object->qp.events, "event", words);
        break;
    case OBJECT_CQ:
        describe_cq(view, out, level, &object->cq, words);
        describe_events(view, out, "completion_events", &object->cq.events, "completion event", words);
        describe_events(view, out, "events", &object->cq.async_events, "asynchronous event", words);
        break;
    case OBJECT_SRQ:
        describe_srq(out, &object->srq, words);
        describe_events(view, out, "events", &object->srq.events, "event", words);
        break;
    case OBJECT_PD:
        describe_pd(out, object, words);
        break;
    case OBJECT_MR:
    case OBJECT_MW:
        describe_key(view, out, object, detail, words);
        break;
    case OBJECT_CONTEXT:
    case OBJECT_CHANNEL:
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
    case OBJECT_COUNTERS:
        describe_item(out, object, words);
        break;
    case OBJECT_WQ:
        describe_wq(out, &object->wq, words);
        describe_events(view, out, "events", &object->wq.events, "event", words);
        break;
    case OBJECT_CM_ID:
        describe_id(out, &object->id, words);
        describe_events(view, out, "events", &object->id.events, "event", words);
        break;
    case OBJECT_IND_TABLE:
        out_number(out, "entries", object->ind_table.entries);
        words_add(words, ": %u entries", object->ind_table.entries);
        break;
    }
}

static void describe(const struct view *view, struct out *out, const char *key, unsigned level,
                     const struct object *object, enum detail detail, unsigned stack_frames)
{
    struct label label = object_label(view, object);
    char name[NAME_BYTES + 1];
    struct words words = {.length = 0};

    words_add(&words, "%s", label.text);
    out_begin(out, key);
    out_string(out, "kind", object_kind_name(object->kind, 1));
    out_number(out, "number", object->number);
    out_string(out, "label", label.text);
    printable(name, object->provenance.name, NAME_BYTES);
    if (name[0])
        out_string(out, "name", name);
    if (object->pd != NO_OBJECT)
        out_number(out, "pd", object->pd);
    if (object->kind != OBJECT_CONTEXT && object->context != NO_OBJECT)
        out_number(out, "context", object->context);
    if (object->provenance.xrcd)
        out_number(out, "xrcd", object->provenance.xrcd - 1);
    describe_kind(view, out, level, object, detail, &words);
    if (object->destroying) {
        out_bool(out, "destroy_waits", object->provenance.destroying_ns != 0);
        words_add(&words, object->kind == OBJECT_CONTEXT     ? ", closed"
                          : object->provenance.destroying_ns ? ", destroy is blocked"
                                                             : ", being destroyed");
    }
    out_line(out, level, "%s", words.text);
    describe_provenance(view, out, level + 1, object, stack_frames);
    out_end(out);
}

void object_describe(const struct view *view, struct out *out, const char *key, unsigned level,
                     const struct object *object, unsigned stack_frames)
{
    describe(view, out, key, level, object, DETAIL_EXPLAINED, stack_frames);
}

void object_describe_listed(const struct view *view, struct out *out, const char *key, unsigned level,
                            const struct object *object, unsigned stack_frames)
{
    describe(view, out, key, level, object, DETAIL_LISTED, stack_frames);
}

void object_describe_failed(const struct view *view, struct out *out, const char *key, unsigned level,
                            const struct object *object, unsigned stack_frames)
{
    describe(view, out, key, level, object, DETAIL_FAILED, stack_frames);
}

void listed_describe(const struct view *view, struct out *out, const char *key, unsigned level,
                     const struct listed *listed, unsigned stack_frames)
{
    struct object object;

    out_begin_array(out, key);
    for (unsigned i = 0; i < listed->count; i++) {
        /* It may be gone by now. */
        if (object_read(view, listed->list[i].kind, listed->list[i].number, &object))
            object_describe(view, out, NULL, level, &object, stack_frames);
    }
    out_end_array(out);
    if (listed->total > listed->count)
        out_line(out, level, "and %llu more", (unsigned long long)(listed->total - listed->count));
}

void holders_describe(const struct view *view, struct out *out, const struct listed *holders,
                      unsigned stack_frames)
{
    if (holders->total)
        out_line(out, 1, "used by:");
    out_number(out, "used_by_total", holders->total);
    listed_describe(view, out, "used_by", 2, holders, stack_frames);
}
