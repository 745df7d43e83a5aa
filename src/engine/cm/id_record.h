/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Published records of cm_ids, for explanations: the id_ calls of struct cm_agent_calls, which agent.h describes. */
#ifndef ENGINE_CM_ID_RECORD_H
#define ENGINE_CM_ID_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "published/record.h"

struct id_record; /* segment/segment.h */

void id_record_withdraw(struct id_record *record);
void id_record_event_read(struct id_record *record, uint32_t type);
void id_record_event_acknowledged(struct id_record *record, uint32_t type);
void id_record_waits(struct id_record *record, enum id_call call);
void id_record_still_waits(struct id_record *record);
void id_record_waited(struct id_record *record, bool told);
void id_record_destroyed(struct destroy_note *ret_note, const struct id_record *record, int fd);
void id_record_misused(enum misuse_form form, const char *call, const char *kind, uint32_t number, int error,
                       const struct destroy_note *note);

#endif
