/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The calling thread's stack, by the unwind tables of the loaded files. Not by backtrace() of glibc, whose first call
 * loads libgcc_s into the program; our unwinder is linked in (-static-libgcc). */
#ifndef BASE_FRAMES_H
#define BASE_FRAMES_H

#include <stddef.h>
#include <stdint.h>

struct frame {
    uint64_t address; /* return address */
    uint64_t top;     /* CFA of the called frame: on x86-64 the return address is stored right below it */
};

/* Returns the number of frames, innermost first, beginning with the caller of the caller. */
unsigned frames_take(struct frame *frames, unsigned count);

/* The loaded file that contains an address. */
struct frame_module {
    uint64_t start, end, bias;
    int is_program; /* the executable, whose path is empty */
    char path[224]; /* truncated if longer */
};
/* 0, or -ENOENT. */
int frames_module(uint64_t address, struct frame_module *ret_module);

#endif
