/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef SEGMENT_NUMBER_H
#define SEGMENT_NUMBER_H

/* In the child of a fork: no number is taken. */
void number_pools_reset(void);

#endif
