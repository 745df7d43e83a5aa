/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Capturing call stacks for explanations, and the tables of stacks and modules in the published segment. */
#include "segment/stack.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/frames.h"
#include "base/lock.h"
#include "base/sys.h"
#include "segment/segment.h"

#define PROBES     64u
#define OWN_FRAMES 10u /* frames of this library below the program's frame, at most */
#define FRAMES     (STACK_FRAMES + OWN_FRAMES)

/* A cache of unwound stacks. Unwinding takes microseconds, and a thread that reads events captures its stack
 * for each event, from the same place. A cached stack is still valid if every return address lies where it
 * lay then: each return address determines the size of the frame above it, and so the place of the next. */
struct memory {
    uint64_t stack_pointer;
    uint32_t thread, stack, depth;
    struct frame frame[FRAMES];
};

static struct lock lock = LOCK_INIT; /* guards all below, and writing of the records; a leaf */
static struct memory memories[16];
static struct frame_module ourselves;
static unsigned module_count;

void stacks_after_fork_in_child(void)
{
    lock_init(&lock);
    memset(memories, 0, sizeof(memories));
    module_count = 0;
}

/* --- modules -------------------------------------------------------------------------------------------- */

static bool module_is_known(uint64_t address)
{
    for (unsigned i = module_count; i-- > 0;) {
        const struct module_record *record = segment_module(i);

        if (address >= record->start && address < record->end)
            return true;
    }
    return false;
}

static void add_module(uint64_t address)
{
    struct frame_module module;
    struct module_record *record;
    ssize_t length;

    if (module_count == SEGMENT_MODULES || frames_module(address, &module) != 0)
        return;
    record = segment_module(module_count++);
    record->start = module.start;
    record->end = module.end;
    record->bias = module.bias;
    memcpy(record->path, module.path, sizeof(record->path));
    if (module.is_program) {
        length = readlink("/proc/self/exe", record->path, sizeof(record->path) - 1);
        record->path[length < 0 ? 0 : length] = '\0';
    }
    atomic_store_explicit(&record->state, 1, memory_order_release);
}

/* --- records -------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const struct frame *frames, unsigned depth)
{
    uint64_t hash = depth;

    for (unsigned i = 0; i < depth; i++) {
        hash = (hash ^ frames[i].address) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    return hash;
}

static bool holds(const struct stack_record *record, uint64_t hash, const struct frame *frames,
                  unsigned depth)
{
    if (record->hash != hash || atomic_load_explicit(&record->depth, memory_order_relaxed) != depth)
        return false;
    for (unsigned i = 0; i < depth; i++) {
        if (record->frame[i] != frames[i].address)
            return false;
    }
    return true;
}

static uint32_t number_of(const struct frame *frames, unsigned depth)
{
    uint64_t hash = hash_of(frames, depth);

    for (unsigned probe = 0; probe < PROBES; probe++) {
        uint32_t number = 1 + (uint32_t)((hash + probe) % (SEGMENT_STACKS - 1));
        struct stack_record *record = segment_stack(number);

        if (holds(record, hash, frames, depth))
            return number;
        if (atomic_load_explicit(&record->depth, memory_order_relaxed) != 0)
            continue;
        for (unsigned i = 0; i < depth; i++) {
            record->frame[i] = frames[i].address;
            if (!module_is_known(frames[i].address))
                add_module(frames[i].address);
        }
        record->hash = hash;
        /* Release: a reader that sees the depth also sees the frames. */
        atomic_store_explicit(&record->depth, depth, memory_order_release);
        return number;
    }
    return NO_STACK;
}

/* --- capturing ------------------------------------------------------------------------------------------ */

/* Is the cached stack still valid? Known on x86-64 only, where the return address is at a fixed distance from
 * the frame's top. */
static bool is_true(const struct memory *memory, uint64_t stack_pointer, uint32_t thread)
{
#ifdef __x86_64__
    if (memory->stack_pointer != stack_pointer || memory->thread != thread || !memory->depth)
        return false;
    for (unsigned i = 0; i < memory->depth; i++) {
        if (*(const volatile uint64_t *)(uintptr_t)(memory->frame[i].top - 8) != memory->frame[i].address)
            return false;
    }
    return true;
#else
    return false;
#endif
}

/* How many of the innermost frames are this library's; 0 where it is linked into the program (tests). */
static unsigned own_frames(const struct frame *frames, unsigned depth)
{
    unsigned own = 0;

    if (!ourselves.end)
        frames_module((uintptr_t)stack_capture, &ourselves);
    while (!ourselves.is_program && own < depth && frames[own].address >= ourselves.start &&
           frames[own].address < ourselves.end)
        own++;
    return own;
}

__attribute__((noinline)) uint32_t stack_capture(void)
{
    struct frame frames[FRAMES];
    uint64_t stack_pointer = (uintptr_t)__builtin_frame_address(0);
    uint32_t thread = (uint32_t)sys_gettid(), number;
    struct memory *memory = &memories[(stack_pointer / 16 + stack_pointer / 65536) % array_size(memories)];
    unsigned depth, own;

    lock_acquire(&lock);
    if (is_true(memory, stack_pointer, thread)) {
        number = memory->stack;
        lock_release(&lock);
        return number;
    }
    lock_release(&lock);
    depth = frames_take(frames, FRAMES);

    lock_acquire(&lock);
    own = own_frames(frames, depth);
    number = own < depth ? number_of(frames + own, min_of(depth - own, (unsigned)STACK_FRAMES)) : NO_STACK;
    memory->stack_pointer = stack_pointer;
    memory->thread = thread;
    memory->stack = number;
    memory->depth = depth;
    memcpy(memory->frame, frames, depth * sizeof(frames[0]));
    lock_release(&lock);
    return number;
}
