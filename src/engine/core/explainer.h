/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Explanations of this process: what the explain room says of our own segment, told on stderr or to whoever
 * asked for it (docs/teardown.md). */
#ifndef ENGINE_CORE_EXPLAINER_H
#define ENGINE_CORE_EXPLAINER_H

#include <stdbool.h>
#include <stdint.h>

#include "object/ports.h"

/* Once the segment is there: looks whether explanations are wanted (SOFTHCA_EXPLAIN, SOFTHCA_LOG). */
void explainer_start(void);
void explainer_after_fork_in_child(void);

/* object_ports. */
void explainer_explain(enum explanation what, enum object_kind kind, uint32_t number);
struct losses *explainer_note_losses(enum object_kind kind, uint32_t number);
void explainer_tell_losses(struct losses *losses);

/* CQs that overran and were not told of yet. No lock held. */
void explainer_tell_overruns(void);
/* The process ends: objects that it leaves. */
void explainer_tell_leaks(void);

/* Explanations go there, and no more to stderr; NULL: to stderr. They are on from now on. text lives during
 * the call; it ends with a newline. */
void explainer_set_handler(void (*handler)(const char *text, void *argument), void *argument, bool json);

/* What `softhca why` and `softhca ps` would say, or NULL (nothing there, no memory); to be freed. */
char *explainer_object(enum object_kind kind, uint32_t number, bool json);
char *explainer_work(uint64_t wr_id, uint32_t qpn, bool json);
char *explainer_list(bool json);

#endif
