/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Call stacks in the published segment. Each distinct stack is stored once and has a number. */
#ifndef SEGMENT_STACK_H
#define SEGMENT_STACK_H

#include <stdint.h>

#define NO_STACK 0u

/* The number of the calling thread's stack, without the frames of this library. NO_STACK: the stack cannot be
 * unwound, or the table is full. Any thread; may be called with any lock held. */
uint32_t stack_capture(void);
void stacks_after_fork_in_child(void);

#endif
