/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Where an instruction of x86-64 may store. What is not known to leave memory alone counts as a store, because a
 * store that is taken for none would be a point that no sweep has. */
#ifndef DEATH_DECODE_H
#define DEATH_DECODE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/user.h>

/* As far as a store reaches behind its address, at most; but for string instructions, and what saves a thread's
 * state. */
#define DECODE_STORE_MAX 64u

enum access {
    ACCESS_NONE, /* it stores nothing, or onto the stack (push, call), or to a variable of the library (rip) */
    ACCESS_AT,   /* to `address` */
    ACCESS_STRING, /* to `address`, `length` bytes from there, or behind it where the direction flag is set */
    ACCESS_ANYWHERE /* unknown */
};

struct access_of {
    enum access access;
    bool repeats; /* rep: a single step is one round of it */
    uint64_t address, length;
    unsigned size, bytes; /* of string instructions: of an element, and of the instruction itself */
};

/* `code`: at least 15 bytes. */
struct access_of decode(const uint8_t *code, const struct user_regs_struct *regs);

#endif
