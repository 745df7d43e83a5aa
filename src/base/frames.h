/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The calling thread's stack, by the unwind tables of whatever is loaded. glibc's backtrace() would load
 * libgcc_s at its first call, in the middle of somebody's program; ours is linked in (-static-libgcc). */
#ifndef BASE_FRAMES_H
#define BASE_FRAMES_H

#include <stddef.h>
#include <stdint.h>

struct frame {
    uint64_t address; /* behind the call */
    uint64_t top;     /* of the frame that was called from there: x86-64 keeps the address right below it */
};

/* Returns how many frames were filled in, the innermost first, beginning with who called the caller. */
unsigned frames_take(struct frame *frames, unsigned count);

/* The loaded file that an address is in. */
struct frame_module {
    uint64_t start, end, bias;
    int is_program; /* the executable itself, whose name is empty */
    char path[224]; /* cut if longer */
};
/* 0, or -ENOENT. */
int frames_module(uint64_t address, struct frame_module *ret_module);

#endif
