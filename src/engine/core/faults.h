/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Faults that the user asks for: loading them, and telling of each that strikes (docs/faults.md). */
#ifndef ENGINE_CORE_FAULTS_H
#define ENGINE_CORE_FAULTS_H

#include "inject/plan.h"

/* At start, also in a forked child: reads SOFTHCA_FAULT. A specification that cannot be read is reported and left
 * out. */
void faults_start(void);
void faults_after_fork_in_child(void);
/* One more of what rules of that kind select: a connection, a request, a call of rdma_cm. The rule that strikes; NULL:
 * none. Any lock may be held. */
const struct inject_rule *faults_meet_cm(enum inject_cm what, enum inject_end end);
/* While the process runs: adds faults to those that are loaded. 0, or -errno with a sentence in `why`. */
int faults_add(const char *list, char *why, size_t size);
/* None is loaded any more, and ports that one has taken down come up. */
void faults_clear(void);
/* A line for each fault: how often it struck. */
void faults_list(char *text, size_t size);
/* The function is called after each change of the plan: tables of operations have to look at faults, or need not any
 * more. Set before the first context is opened. */
void faults_on_change(void (*function)(void));
/* CONTROL_FAULTS (fault_requests.c). Helper thread, no lock held. */
int faults_requested(int file, char *why, size_t size);
/* Counts a strike, and notes it: it is told soon, or by faults_tell(). Any lock may be held. */
void faults_note(const struct inject_strike *strike);
/* The fault is not for what the program does now, as a receive of an SRQ: noted likewise, once. */
void faults_leave_out(struct inject_fault *fault);
/* Tells of all noted strikes. No lock held, except maybe a CQ's poll_lock. */
void faults_tell(void);
/* At exit: tells of faults that never struck. */
void faults_tell_idle(void);

#endif
