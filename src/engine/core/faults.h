/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Faults that the user asks for: loading them, and telling of each that strikes (docs/faults.md). */
#ifndef ENGINE_CORE_FAULTS_H
#define ENGINE_CORE_FAULTS_H

#include "inject/plan.h"

/* At start, also in a forked child: reads SOFTHCA_FAULT. A specification that cannot be read is reported and left
 * out. */
void faults_start(void);
void faults_after_fork_in_child(void);
/* Notes a strike, which is told soon, or by faults_tell(). Any lock may be held. */
void faults_note(const struct inject_strike *strike);
/* Tells of all noted strikes. No lock held, except maybe a CQ's poll_lock. */
void faults_tell(void);
/* At exit: tells of faults that never struck. */
void faults_tell_idle(void);

#endif
