/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Explanations of this process: texts of src/explain about the process's own segment, printed on stderr or passed to
 * the program's handler (docs/teardown.md). */
#ifndef ENGINE_CORE_EXPLAINER_H
#define ENGINE_CORE_EXPLAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "inject/plan.h"
#include "object/ports.h"

/* After segment_open(): reads SOFTHCA_EXPLAIN, SOFTHCA_EXPLAIN_WHAT and SOFTHCA_LOG. */
void explainer_start(void);
void explainer_after_fork_in_child(void);

/* object_ports. */
void explainer_explain(enum explanation what, enum object_kind kind, uint32_t number);
/* A call of the program fails: recorded, and told the first time. No lock held. */
struct refusal;
void explainer_refused(const char *call, const struct refusal *refusal);
struct losses *explainer_note_losses(enum object_kind kind, uint32_t number);
void explainer_report_losses(struct losses *losses);

/* A fault of inject/plan.h has struck, or (struck: 0) never did. */
void explainer_tell_strike(const struct inject_strike *strike);

/* object_ports.qp_failed, .qp_dropped, .tell_faults. */
void explainer_qp_failed(uint32_t slot);
void explainer_qp_dropped(uint32_t slot, enum drop_reason reason);
void explainer_tell_faults(void);

/* Explains each CQ overrun that was not explained yet. No lock held. */
void explainer_tell_overruns(void);
/* At exit: explains which objects were not destroyed; or, if only what is wrong is told and the exit status is not 0,
 * tells in one line what was counted. */
void explainer_tell_at_exit(void);

/* Turns explanations on, and passes them to the handler instead of stderr; NULL: to stderr. `text` is valid during the
 * call and ends with a newline. */
void explainer_set_handler(void (*handler)(const char *text, void *argument), void *argument, bool json);

/* The output of `softhca why` and `softhca ps`, to be freed by the caller; NULL: no segment, or no memory. */
char *explainer_object(enum object_kind kind, uint32_t number, bool json);
char *explainer_work(uint64_t wr_id, uint32_t qpn, bool json);
char *explainer_list(bool json);

#endif
