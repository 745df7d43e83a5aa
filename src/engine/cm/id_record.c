/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Published records of rdma_cm ids, for explanations. A record is NULL if the segment had no space for it. */
#include "engine/cm/id_record.h"

#include <stdio.h>

#include "base/sys.h"
#include "engine/core/explainer.h"
#include "segment/misuse.h"
#include "segment/provenance.h"
#include "segment/segment.h"

void id_record_withdraw(struct id_record *record)
{
    if (record)
        id_withdraw(record);
}

void id_record_event_read(struct id_record *record, uint32_t type)
{
    if (record)
        provenance_event_read(&record->events, type, record->events.reported + 1);
}

void id_record_event_acknowledged(struct id_record *record, uint32_t type)
{
    if (!record)
        return;
    record->events.acked_by = explained() ? (uint32_t)sys_gettid() : 0;
    __atomic_fetch_add(&record->events.acked, 1, __ATOMIC_RELAXED);
    provenance_event_acked(&record->events, type);
}

void id_record_waits(struct id_record *record, enum id_call call)
{
    if (!record)
        return;
    record->waits_in = (uint8_t)call;
    provenance_destroying(&record->provenance);
}

void id_record_still_waits(struct id_record *record)
{
    if (record && explained())
        explainer_explain(EXPLAIN_BLOCKED, OBJECT_CM_ID, id_number(record));
}

void id_record_waited(struct id_record *record, bool told)
{
    if (!record)
        return;
    if (told && explained())
        explainer_explain(EXPLAIN_RESUMED, OBJECT_CM_ID, id_number(record));
    provenance_destroy_unblocked(&record->provenance);
}

void id_record_destroyed(struct destroy_note *ret_note, const struct id_record *record, int fd)
{
    destroy_note(ret_note, record ? id_number(record) : (uint32_t)fd);
}

void id_record_misused(enum misuse_form form, const char *call, const char *kind, uint32_t number, int error,
                       const struct destroy_note *note)
{
    char object[48];
    uint32_t record;

    snprintf(object, sizeof(object), "%s %u", kind, number);
    record = misuse_record(form, call, object, error, note);
    if (record != NO_OBJECT && explained())
        explainer_explain(EXPLAIN_MISUSE, OBJECT_CM_ID, record);
}
