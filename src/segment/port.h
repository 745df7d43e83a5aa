/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Counters of a device's QPs, beyond the QPs themselves. */
#ifndef SEGMENT_PORT_H
#define SEGMENT_PORT_H

struct qp_record;
struct qp_rare;

/* The QP ends: takes its number off its record, and adds what it has counted to the record of its device. The QP's
 * lock is held. device: NULL if it has none (a delegate, xrc/delegate.h). */
void port_retire_qp(const char *device, struct qp_record *qp, const struct qp_rare *rare);
void port_after_fork_in_child(void);

#endif
