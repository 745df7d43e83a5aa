/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "explain/objects.h"

#include <string.h>

#include "explain/names.h"

static bool is_window(const struct key_entry *key)
{
    return key->kind == KEY_MW_TYPE_1 || key->kind == KEY_MW_TYPE_2;
}

/* --- reading -------------------------------------------------------------------------------------------- */

/* Each: is this record an object, and which? */

static bool take_qp(const struct view *view, uint32_t number, struct object *object)
{
    object->kind = OBJECT_QP;
    object->number = number;
    if (!object->qp.has_rare || !view_record(view, &view->header.qp_rares, number, &object->rare))
        memset(&object->rare, 0, sizeof(object->rare));
    object->destroying = object->qp.qpn == 0;
    object->context = object->qp.context;
    object->pd = object->qp.pd;
    object->provenance = object->qp.provenance;
    return object->qp.qpn != 0 || object->qp.destroying_qpn != 0;
}

static bool take_cq(const struct view *view, uint32_t number, struct object *object)
{
    object->kind = OBJECT_CQ;
    object->number = number;
    object->destroying = object->cq.state == OBJECT_DESTROYING;
    object->context = object->cq.context;
    object->pd = NO_OBJECT;
    object->provenance = object->cq.provenance;
    return object->cq.state != OBJECT_FREE;
}

static bool take_srq(const struct view *view, uint32_t number, struct object *object)
{
    object->kind = OBJECT_SRQ;
    object->number = number;
    object->destroying = object->srq.state == OBJECT_DESTROYING;
    object->context = object->srq.context;
    object->pd = object->srq.pd;
    object->provenance = object->srq.provenance;
    return object->srq.state != OBJECT_FREE;
}

static bool take_wq(const struct view *view, uint32_t number, struct object *object)
{
    object->kind = OBJECT_WQ;
    object->number = number;
    object->destroying = object->wq.state == OBJECT_DESTROYING;
    object->context = object->wq.context;
    object->pd = object->wq.pd;
    object->provenance = object->wq.provenance;
    return object->wq.state != OBJECT_FREE;
}

static bool take_ind_table(const struct view *view, uint32_t number, struct object *object)
{
    object->kind = OBJECT_IND_TABLE;
    object->number = number;
    object->destroying = false;
    object->context = object->ind_table.context;
    object->pd = NO_OBJECT;
    object->provenance = object->ind_table.provenance;
    return object->ind_table.state != OBJECT_FREE;
}

static bool take_id(const struct view *view, uint32_t number, struct object *object)
{
    object->kind = OBJECT_CM_ID;
    object->number = number;
    object->destroying = object->id.provenance.destroying_ns != 0;
    object->context = NO_OBJECT;
    object->pd = NO_OBJECT;
    object->provenance = object->id.provenance;
    return object->id.state != OBJECT_FREE && object->id.given;
}

static bool take_pd(const struct view *view, uint32_t number, struct object *object)
{
    object->kind = OBJECT_PD;
    object->number = number;
    object->destroying = false;
    object->context = object->protection_domain.context;
    object->pd = object->protection_domain.protects;
    object->provenance = object->protection_domain.provenance;
    return object->protection_domain.state != OBJECT_FREE;
}

static bool take_key(const struct view *view, uint32_t number, struct object *object)
{
    struct pd_record pd;

    if (object->key.kind == KEY_FREE || object->key.kind > KEY_MW_TYPE_2)
        return false;
    object->kind = is_window(&object->key) ? OBJECT_MW : OBJECT_MR;
    object->number = number;
    object->destroying = false;
    object->pd = object->key.pd;
    object->context = view_record(view, &view->header.pds, object->pd, &pd) ? pd.context : NO_OBJECT;
    if (!view_record(view, &view->header.key_provenance, number, &object->provenance))
        memset(&object->provenance, 0, sizeof(object->provenance));
    return true;
}

static bool take_item(const struct view *view, uint32_t number, struct object *object)
{
    object->kind = (enum object_kind)object->item.kind;
    object->number = number;
    object->destroying = object->item.state == OBJECT_DESTROYING;
    object->context = object->item.context;
    object->pd = object->kind == OBJECT_AH ? object->item.parent : NO_OBJECT;
    object->provenance = object->item.provenance;
    if (object->item.state == OBJECT_FREE)
        return false;
    switch (object->kind) {
    case OBJECT_CONTEXT:
    case OBJECT_CHANNEL:
        object->number = object->item.number;
        return true;
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
    case OBJECT_COUNTERS:
        return true;
    case OBJECT_PD:
    case OBJECT_MR:
    case OBJECT_MW:
    case OBJECT_CQ:
    case OBJECT_QP:
    case OBJECT_SRQ:
    case OBJECT_WQ:
    case OBJECT_IND_TABLE:
    case OBJECT_CM_ID:
        break;
    }
    return false;
}

/* Which table has the records of which kind, in the order of the report. */
static const struct kind_table {
    unsigned kinds;
    size_t offset; /* of a struct segment_table in the header */
    bool (*take)(const struct view *view, uint32_t number, struct object *object);
} kind_tables[] = {
    {1u << OBJECT_PD, offsetof(struct segment_header, pds), take_pd},
    {1u << OBJECT_MR | 1u << OBJECT_MW, offsetof(struct segment_header, keys), take_key},
    {1u << OBJECT_CQ, offsetof(struct segment_header, cqs), take_cq},
    {1u << OBJECT_SRQ, offsetof(struct segment_header, srqs), take_srq},
    {1u << OBJECT_QP, offsetof(struct segment_header, qps), take_qp},
    {1u << OBJECT_WQ, offsetof(struct segment_header, wqs), take_wq},
    {1u << OBJECT_IND_TABLE, offsetof(struct segment_header, ind_tables), take_ind_table},
    {1u << OBJECT_CM_ID, offsetof(struct segment_header, ids), take_id},
    {1u << OBJECT_CONTEXT | 1u << OBJECT_CHANNEL | 1u << OBJECT_AH | 1u << OBJECT_ATTACHMENT |
         1u << OBJECT_TD | 1u << OBJECT_XRCD | 1u << OBJECT_DM | 1u << OBJECT_FLOW | 1u << OBJECT_COUNTERS,
     offsetof(struct segment_header, items), take_item},
};

/* Of whichever kind: they are in one place. */
static void *record_of(struct object *object)
{
    return &object->qp;
}

struct search {
    uint32_t number, qpn;
    struct object *found;
    bool any;
};

static bool is_it(const struct view *view, const struct object *object, void *argument)
{
    struct search *search = argument;

    if (search->qpn ? object_qpn(object) != search->qpn : object->number != search->number)
        return true;
    *search->found = *object;
    search->any = true;
    return search->qpn && object->qp.opened; /* a handle of it: the QP itself may be here, too */
}

static const struct kind_table *table_of(enum object_kind kind)
{
    for (size_t i = 0; i < array_size(kind_tables); i++) {
        if (kind_tables[i].kinds & 1u << kind)
            return &kind_tables[i];
    }
    return NULL;
}

static const struct segment_table *segment_table(const struct view *view, const struct kind_table *table)
{
    return (const struct segment_table *)(const void *)((const char *)&view->header + table->offset);
}

bool object_read(const struct view *view, enum object_kind kind, uint32_t number, struct object *ret)
{
    const struct kind_table *table = table_of(kind);

    if (kind == OBJECT_CONTEXT || kind == OBJECT_CHANNEL) {
        struct search search = {.number = number, .found = ret};

        objects_for_each(view, 1u << kind, is_it, &search);
        return search.any;
    }
    return table && view_record(view, segment_table(view, table), number, record_of(ret)) &&
           table->take(view, number, ret) && ret->kind == kind;
}

bool object_read_qpn(const struct view *view, uint32_t qpn, struct object *ret)
{
    struct search search = {.qpn = qpn, .found = ret};

    if (qpn)
        objects_for_each(view, 1u << OBJECT_QP, is_it, &search);
    return search.any;
}

bool words_add_destroyed_qp(const struct view *view, struct words *words, uint32_t qpn)
{
    struct view_walk walk = view_walk(view, &view->header.qps);
    uint32_t number, changed = STAMP_NONE, by = 0;
    struct qp_record record;

    while (qpn && view_next(&walk, &number, &record)) {
        if (record.qpn || record.destroying_qpn || record.destroyed_qpn != qpn)
            continue;
        if (changed == STAMP_NONE || (int32_t)(record.changed - changed) > 0) {
            changed = record.changed;
            by = record.changed_by;
        }
    }
    if (changed == STAMP_NONE)
        return false;
    words_add(words, "was destroyed ");
    words_add_age(words, view_stamp_age(view, changed));
    words_add(words, " by ");
    words_add_thread(view, words, by);
    return true;
}

uint32_t object_qpn(const struct object *object)
{
    if (object->kind != OBJECT_QP)
        return 0;
    return object->qp.qpn ? object->qp.qpn : object->qp.destroying_qpn;
}

bool qp_is_of_id(const struct view *view, uint32_t qpn)
{
    struct view_walk walk = view_walk(view, &view->header.ids);
    struct id_record record;
    uint32_t number;

    while (view_next(&walk, &number, &record)) {
        if (record.state != OBJECT_FREE && record.qpn == qpn)
            return true;
    }
    return false;
}

const struct event_record *object_async_events(const struct object *object)
{
    switch (object->kind) {
    case OBJECT_CQ:
        return &object->cq.async_events;
    case OBJECT_QP:
        return &object->qp.events;
    case OBJECT_SRQ:
        return &object->srq.events;
    case OBJECT_WQ:
        return &object->wq.events;
    case OBJECT_CM_ID:
        return &object->id.events;
    case OBJECT_CONTEXT:
    case OBJECT_PD:
    case OBJECT_MR:
    case OBJECT_MW:
    case OBJECT_CHANNEL:
    case OBJECT_IND_TABLE:
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_DM:
    case OBJECT_FLOW:
    case OBJECT_COUNTERS:
        break;
    }
    return NULL;
}

/* --- walking -------------------------------------------------------------------------------------------- */

void objects_for_each(const struct view *view, unsigned kinds,
                      bool (*visit)(const struct view *view, const struct object *object, void *argument),
                      void *argument)
{
    struct object object;
    struct view_walk walk;
    uint32_t number;

    for (size_t i = 0; i < array_size(kind_tables); i++) {
        if (!(kinds & kind_tables[i].kinds))
            continue;
        walk = view_walk(view, segment_table(view, &kind_tables[i]));
        while (view_next(&walk, &number, record_of(&object))) {
            if (kind_tables[i].take(view, number, &object) && (kinds & 1u << object.kind) &&
                !visit(view, &object, argument))
                return;
        }
    }
}

/* --- labels --------------------------------------------------------------------------------------------- */

const char *object_kind_name(enum object_kind kind, uint64_t count)
{
    static const char *const names[OBJECT_KINDS][2] = {
        [OBJECT_CONTEXT] = {"context", "contexts"},
        [OBJECT_PD] = {"PD", "PDs"},
        [OBJECT_MR] = {"MR", "MRs"},
        [OBJECT_MW] = {"MW", "MWs"},
        [OBJECT_CQ] = {"CQ", "CQs"},
        [OBJECT_CHANNEL] = {"channel", "channels"},
        [OBJECT_QP] = {"QP", "QPs"},
        [OBJECT_SRQ] = {"SRQ", "SRQs"},
        [OBJECT_WQ] = {"WQ", "WQs"},
        [OBJECT_IND_TABLE] = {"indirection table", "indirection tables"},
        [OBJECT_AH] = {"AH", "AHs"},
        [OBJECT_ATTACHMENT] = {"multicast group", "multicast groups"},
        [OBJECT_CM_ID] = {"cm_id", "cm_ids"},
        [OBJECT_TD] = {"TD", "TDs"},
        [OBJECT_XRCD] = {"XRCD", "XRCDs"},
        [OBJECT_DM] = {"DM", "DMs"},
        [OBJECT_FLOW] = {"flow", "flows"},
        [OBJECT_COUNTERS] = {"set of counters", "sets of counters"},
    };

    return (unsigned)kind < OBJECT_KINDS && names[kind][0] ? names[kind][count != 1] : "object";
}

const char *object_destroy_verb(enum object_kind kind)
{
    static const char *const verbs[OBJECT_KINDS] = {
        [OBJECT_CONTEXT] = "ibv_close_device", [OBJECT_PD] = "ibv_dealloc_pd",
        [OBJECT_MR] = "ibv_dereg_mr",          [OBJECT_MW] = "ibv_dealloc_mw",
        [OBJECT_CQ] = "ibv_destroy_cq",        [OBJECT_CHANNEL] = "ibv_destroy_comp_channel",
        [OBJECT_QP] = "ibv_destroy_qp",        [OBJECT_SRQ] = "ibv_destroy_srq",
        [OBJECT_WQ] = "ibv_destroy_wq",        [OBJECT_IND_TABLE] = "ibv_destroy_rwq_ind_table",
        [OBJECT_AH] = "ibv_destroy_ah",        [OBJECT_ATTACHMENT] = "ibv_detach_mcast",
        [OBJECT_CM_ID] = "rdma_destroy_id",    [OBJECT_TD] = "ibv_dealloc_td",
        [OBJECT_XRCD] = "ibv_close_xrcd",      [OBJECT_DM] = "ibv_free_dm",
        [OBJECT_FLOW] = "ibv_destroy_flow",    [OBJECT_COUNTERS] = "ibv_destroy_counters",
    };

    return (unsigned)kind < OBJECT_KINDS && verbs[kind] ? verbs[kind] : "destroy";
}

const char *object_waiting_verb(const struct object *object)
{
    static const char *const calls[] = {
        [ID_CALL_DESTROY] = "rdma_destroy_id",
        [ID_CALL_MIGRATE] = "rdma_migrate_id",
        [ID_CALL_LEAVE_MULTICAST] = "rdma_leave_multicast",
    };

    if (object->kind == OBJECT_CM_ID && object->id.waits_in < array_size(calls))
        return calls[object->id.waits_in];
    return object_destroy_verb(object->kind);
}

static void add_address(struct words *words, const uint8_t gid[16], uint16_t port)
{
    static const uint8_t none[16];

    if (memcmp(gid, none, sizeof(none)) == 0)
        words_add(words, "*");
    else
        words_add_gid(words, gid);
    words_add(words, " port %u", port);
}

static void add_id(struct words *words, const struct object *object)
{
    words_add(words, "cm_id %u", object->number);
    if (!object->id.source_port && !object->id.destination_port)
        return;
    words_add(words, " from ");
    add_address(words, object->id.source, object->id.source_port);
    if (object->id.destination_port) {
        words_add(words, " to ");
        add_address(words, object->id.destination, object->id.destination_port);
    }
}

static void add_label(struct words *words, const struct object *object)
{
    char device[sizeof(object->item.device) + 1];

    switch (object->kind) {
    case OBJECT_QP:
        words_add(words, "QP 0x%06x", object_qpn(object));
        break;
    case OBJECT_MR:
        words_add(words, "MR of %llu bytes with lkey 0x%08x", (unsigned long long)object->key.length,
                  object->key.lkey);
        break;
    case OBJECT_MW:
        words_add(words, "MW with rkey 0x%08x", object->key.rkey);
        break;
    case OBJECT_CONTEXT:
        printable(device, object->item.device, sizeof(object->item.device));
        words_add(words, "context %u of %s", object->number, device[0] ? device : "a device");
        break;
    case OBJECT_AH:
        words_add(words, "AH to ");
        words_add_gid(words, object->item.gid);
        break;
    case OBJECT_ATTACHMENT:
        words_add(words, "multicast group ");
        words_add_gid(words, object->item.gid);
        break;
    case OBJECT_WQ:
        words_add(words, "WQ 0x%06x", object->wq.wqn);
        break;
    case OBJECT_CM_ID:
        add_id(words, object);
        break;
    case OBJECT_PD:
        words_add(words, "%s %u",
                  object->protection_domain.imported ? "imported PD"
                  : object->pd == NO_OBJECT          ? "PD"
                                                     : "parent domain",
                  object->number);
        break;
    case OBJECT_DM:
        words_add(words, "DM %u of %llu bytes", object->number, (unsigned long long)object->item.length);
        break;
    case OBJECT_COUNTERS:
    case OBJECT_CQ:
    case OBJECT_CHANNEL:
    case OBJECT_SRQ:
    case OBJECT_IND_TABLE:
    case OBJECT_TD:
    case OBJECT_XRCD:
    case OBJECT_FLOW:
        words_add(words, "%s %u", object_kind_name(object->kind, 1), object->number);
        break;
    }
}

struct label object_label(const struct view *view, const struct object *object)
{
    char name[NAME_BYTES + 1];
    struct words words = {.length = 0};
    struct label label;

    add_label(&words, object);
    printable(name, object->provenance.name, NAME_BYTES);
    if (name[0])
        words_add(&words, " \"%s\"", name);
    memcpy(label.text, words.text, sizeof(label.text));
    label.text[min_of(words.length, sizeof(label.text) - 1)] = '\0';
    return label;
}
