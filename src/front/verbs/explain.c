/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Public interface to explanations (include/softhca/softhca.h), and the report of leaks at the end of the process. */
#include <softhca/softhca.h>
#include <stdlib.h>

#include "engine/core/engine.h"
#include "engine/core/explainer.h"
#include "front/verbs/front.h"
#include "object/cq/cq.h"
#include "object/qp/qp.h"
#include "object/receive/srq.h"
#include "object/receive/wq.h"

/* An object's number in the segment, and its provenance record. */
struct named {
    enum object_kind kind;
    uint32_t number;
    struct provenance_record *provenance;
};

static bool find(enum softhca_kind kind, const void *object, struct named *ret)
{
    void *it = (void *)(uintptr_t)object;

    if (!object)
        return false;
    switch (kind) {
    case SOFTHCA_CONTEXT: {
        const struct context *context = context_of(it);

        *ret = (struct named){OBJECT_CONTEXT, context->number,
                              context->item == NO_OBJECT ? NULL : &segment_item(context->item)->provenance};
        return !context_is_inherited(context);
    }
    case SOFTHCA_PD: {
        const struct pd *pd = pd_of(it);

        *ret = (struct named){OBJECT_PD, pd->record_number, &pd->record->provenance};
        return !context_is_inherited(pd->context);
    }
    case SOFTHCA_MR: {
        const struct mr *mr = mr_of(it);

        *ret = (struct named){OBJECT_MR, mr->slot, segment_key_provenance(mr->slot)};
        return !context_is_inherited(context_of(mr->ibv.context));
    }
    case SOFTHCA_MW: {
        const struct mw *mw = mw_of(it);

        *ret = (struct named){OBJECT_MW, mw->slot, segment_key_provenance(mw->slot)};
        return !context_is_inherited(mw->pd->context);
    }
    case SOFTHCA_CQ: {
        const struct cq *cq = cq_of(it);

        *ret = (struct named){OBJECT_CQ, cq->number, &cq->record->provenance};
        return !context_is_inherited(cq->context);
    }
    case SOFTHCA_CHANNEL: {
        const struct channel *channel = channel_of(it);

        *ret = (struct named){OBJECT_CHANNEL, channel->number,
                              channel->item == NO_OBJECT ? NULL : &segment_item(channel->item)->provenance};
        return !context_is_inherited(channel->context);
    }
    case SOFTHCA_QP: {
        const struct qp *qp = qp_of(it);

        *ret = (struct named){OBJECT_QP, qp->slot, &qp->record->provenance};
        return !context_is_inherited(qp->context);
    }
    case SOFTHCA_SRQ: {
        const struct srq *srq = srq_of(it);

        *ret = (struct named){OBJECT_SRQ, srq->number, &srq->record->provenance};
        return !context_is_inherited(srq->pd->context);
    }
    case SOFTHCA_AH: {
        const struct ah *ah = ah_of(it);

        *ret = (struct named){OBJECT_AH, ah->item,
                              ah->item == NO_OBJECT ? NULL : &segment_item(ah->item)->provenance};
        return ah->item != NO_OBJECT && !context_is_inherited(ah->pd->context);
    }
    case SOFTHCA_WQ: {
        const struct wq *wq = wq_of(it);

        *ret = (struct named){OBJECT_WQ, wq->number, &wq->record->provenance};
        return !context_is_inherited(wq->context);
    }
    case SOFTHCA_IND_TABLE: {
        const struct ind_table *table = ind_table_of(it);

        *ret = (struct named){OBJECT_IND_TABLE, table->number, &table->record->provenance};
        return !context_is_inherited(table->context);
    }
    }
    return false;
}

static char *answer(char *text)
{
    if (!text)
        errno = ENOENT;
    return text;
}

static int set_name(enum softhca_kind kind, const void *object, const char *name)
{
    struct named named;

    if (!find(kind, object, &named) || !named.provenance)
        return EINVAL;
    memset(named.provenance->name, 0, sizeof(named.provenance->name));
    if (name)
        memcpy(named.provenance->name, name, min_of(strlen(name), sizeof(named.provenance->name)));
    return 0;
}

static char *why_object(enum softhca_kind kind, const void *object, enum softhca_format format)
{
    struct named named;

    if (!find(kind, object, &named)) {
        errno = EINVAL;
        return NULL;
    }
    return answer(explainer_object(named.kind, named.number, format == SOFTHCA_JSON));
}

static char *why_wr(const struct ibv_qp *qp, uint64_t wr_id, enum softhca_format format)
{
    return answer(explainer_work(wr_id, qp ? qp->qp_num : 0, format == SOFTHCA_JSON));
}

static char *list(enum softhca_format format)
{
    return answer(explainer_list(format == SOFTHCA_JSON));
}

static void set_handler(softhca_handler *handler, void *argument, enum softhca_format format)
{
    explainer_set_handler(handler, argument, format == SOFTHCA_JSON);
}

VERBS_EXPORT const struct softhca_api softhca_api = {
    .size = sizeof(softhca_api),
    .version = SOFTHCA_VERSION,
    .set_name = set_name,
    .why_object = why_object,
    .why_wr = why_wr,
    .list = list,
    .set_handler = set_handler,
};

/* Runs after the program's atexit() handlers and the destructors of libraries that use this one, so that objects
 * destroyed there are no leaks. Does nothing unless explanations are on. */
__attribute__((destructor)) static void report_leaks_at_exit(void)
{
    explainer_tell_at_exit();
}
