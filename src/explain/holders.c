/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Who holds what, by the records of a view: what a destroy is refused for, and what a context leaves behind.
 */
#include <string.h>

#include "explain/objects.h"

static bool lists_wq(const struct view *view, const struct ind_table_record *table, uint32_t number)
{
    for (uint32_t i = 0; i < min_of(table->entries, LIMIT_IND_TABLE_SIZE); i++) {
        uint32_t entry;

        if (!view_copy(view, table->offset + i * sizeof(entry), &entry, sizeof(entry)))
            break;
        if (entry == number)
            return true;
    }
    return false;
}

static bool counts_in(const struct item_record *flow, uint32_t counters)
{
    for (size_t i = 0; i < array_size(flow->counters); i++) {
        if (flow->counters[i] == counters)
            return true;
    }
    return false;
}

bool object_holds(const struct view *view, const struct object *user, const struct object *object)
{
    switch (object->kind) {
    case OBJECT_PD:
        if (user->provenance.domain)
            return user->provenance.domain - 1 == object->number;
        /* Not recorded: what was made with a parent domain is of the PD that it stands for. */
        if (object->pd != NO_OBJECT)
            return user->kind != OBJECT_PD && user->pd == object->pd;
        return user->pd == object->number;
    case OBJECT_MR:
        return user->kind == OBJECT_MW && user->key.bound && user->key.region == object->number;
    case OBJECT_CQ:
        return (user->kind == OBJECT_QP &&
                (user->qp.send_cq == object->number || user->qp.recv_cq == object->number)) ||
               (user->kind == OBJECT_WQ && user->wq.cq == object->number) ||
               (user->kind == OBJECT_SRQ && user->srq.cq == object->number);
    case OBJECT_SRQ:
        return user->kind == OBJECT_QP && user->qp.srq == object->number;
    case OBJECT_CHANNEL:
        return user->kind == OBJECT_CQ && user->cq.channel == object->number;
    case OBJECT_QP:
        return (user->kind == OBJECT_ATTACHMENT || user->kind == OBJECT_FLOW) &&
               user->item.parent == object_qpn(object);
    case OBJECT_CONTEXT:
        return user->kind != OBJECT_CONTEXT && user->context == object->number;
    case OBJECT_WQ:
        return user->kind == OBJECT_IND_TABLE && lists_wq(view, &user->ind_table, object->number);
    case OBJECT_TD:
        return user->kind == OBJECT_PD && user->protection_domain.td == object->number;
    case OBJECT_XRCD:
        return user->provenance.xrcd == object->number + 1;
    case OBJECT_DM:
        return user->kind == OBJECT_MR && user->key.address - object->item.address < object->item.length;
    case OBJECT_IND_TABLE:
        return user->kind == OBJECT_QP && user->qp.ind_table == object->number;
    case OBJECT_COUNTERS:
        return user->kind == OBJECT_FLOW && counts_in(&user->item, object->number);
    case OBJECT_MW:
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_CM_ID:
    case OBJECT_FLOW:
        break;
    }
    return false;
}

void listed_add(struct listed *listed, const struct object *object)
{
    if (listed->count < LISTED_MAX) {
        listed->list[listed->count].kind = object->kind;
        listed->list[listed->count++].number = object->number;
    }
    listed->total++;
    listed->of_kind[object->kind]++;
}

struct listing {
    const struct object *held;
    uint32_t context;
    struct listed *listed;
};

static bool add_holder(const struct view *view, const struct object *object, void *argument)
{
    const struct listing *listing = argument;

    if (object_holds(view, object, listing->held))
        listed_add(listing->listed, object);
    return true;
}

static unsigned kinds_of_users(enum object_kind kind)
{
    switch (kind) {
    case OBJECT_PD:
        return 1u << OBJECT_MR | 1u << OBJECT_MW | 1u << OBJECT_QP | 1u << OBJECT_SRQ | 1u << OBJECT_WQ |
               1u << OBJECT_AH | 1u << OBJECT_PD | 1u << OBJECT_CQ;
    case OBJECT_MR:
        return 1u << OBJECT_MW;
    case OBJECT_CQ:
        return 1u << OBJECT_QP | 1u << OBJECT_WQ | 1u << OBJECT_SRQ;
    case OBJECT_SRQ:
        return 1u << OBJECT_QP;
    case OBJECT_CHANNEL:
        return 1u << OBJECT_CQ;
    case OBJECT_QP:
        return 1u << OBJECT_ATTACHMENT | 1u << OBJECT_FLOW;
    case OBJECT_COUNTERS:
        return 1u << OBJECT_FLOW;
    case OBJECT_WQ:
        return 1u << OBJECT_IND_TABLE;
    case OBJECT_IND_TABLE:
        return 1u << OBJECT_QP;
    case OBJECT_TD:
        return 1u << OBJECT_PD;
    case OBJECT_XRCD:
        return 1u << OBJECT_SRQ | 1u << OBJECT_QP;
    case OBJECT_DM:
        return 1u << OBJECT_MR;
    case OBJECT_CONTEXT:
        return ALL_KINDS;
    case OBJECT_MW:
    case OBJECT_AH:
    case OBJECT_ATTACHMENT:
    case OBJECT_CM_ID:
    case OBJECT_FLOW:
        break;
    }
    return 0;
}

void listed_holders(const struct view *view, const struct object *object, struct listed *ret)
{
    struct listing listing = {.held = object, .listed = ret};

    memset(ret, 0, sizeof(*ret));
    objects_for_each(view, kinds_of_users(object->kind), add_holder, &listing);
}

static bool add_child(const struct view *view, const struct object *object, void *argument)
{
    const struct listing *listing = argument;

    /* An attachment is no object of the program's. */
    if (object->kind != OBJECT_ATTACHMENT &&
        (listing->context == NO_OBJECT || listing->context == object->context))
        listed_add(listing->listed, object);
    return true;
}

void listed_children(const struct view *view, uint32_t context, struct listed *ret)
{
    struct listing listing = {.context = context, .listed = ret};

    memset(ret, 0, sizeof(*ret));
    objects_for_each(view, ALL_KINDS & ~(1u << OBJECT_CONTEXT), add_child, &listing);
}

void words_add_counts(struct words *words, const struct listed *listed)
{
    unsigned kinds = 0, reported = 0;

    for (unsigned kind = 0; kind < OBJECT_KINDS; kind++)
        kinds += listed->of_kind[kind] != 0;
    for (unsigned kind = 0; kind < OBJECT_KINDS; kind++) {
        if (!listed->of_kind[kind])
            continue;
        words_add(words, "%s%llu %s",
                  reported == 0           ? ""
                  : reported + 1 == kinds ? " and "
                                          : ", ",
                  (unsigned long long)listed->of_kind[kind],
                  object_kind_name((enum object_kind)kind, listed->of_kind[kind]));
        reported++;
    }
}
