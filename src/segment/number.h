/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Allocation of object numbers; number_take() and number_return() are in segment/segment.h. */
#ifndef SEGMENT_NUMBER_H
#define SEGMENT_NUMBER_H

/* In the child of a fork: makes all numbers free. */
void number_pools_reset(void);

#endif
