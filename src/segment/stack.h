/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Stacks in the published segment: each different one once, by number. */
#ifndef SEGMENT_STACK_H
#define SEGMENT_STACK_H

#include <stdint.h>

#define NO_STACK 0u

/* The calling thread's stack, from whoever called this library on. NO_STACK where there is none to be had, or
 * too many different ones. Any thread, any lock held. */
uint32_t stack_capture(void);
void stacks_after_fork_in_child(void);

#endif
