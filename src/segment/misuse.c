/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "segment/misuse.h"

#include <stdio.h>
#include <string.h>

#include "base/lock.h"
#include "base/sys.h"
#include "segment/provenance.h"
#include "segment/segment.h"
#include "segment/stack.h"

static struct lock lock = LOCK_INIT; /* guards the records, whose state readers load; a leaf */
static uint32_t used;

void destroy_note(struct destroy_note *ret, uint32_t number)
{
    *ret = (struct destroy_note){
        .ns = sys_now(),
        .by = (uint32_t)sys_gettid(),
        .stack = explained() ? stack_capture() : NO_STACK,
        .number = number,
    };
}

void misuses_after_fork_in_child(void)
{
    lock_init(&lock);
    used = 0;
}

/* The record of the same call on the same object from the same place; NULL: there is none. Lock held. */
static struct misuse_record *find(const char *call, const char *object, uint32_t stack)
{
    for (uint32_t i = 0; i < used; i++) {
        struct misuse_record *record = segment_misuse(i);

        if (record->called_stack == stack && strcmp(record->call, call) == 0 &&
            strcmp(record->object, object) == 0)
            return record;
    }
    return NULL;
}

uint32_t misuse_record(enum misuse_form form, const char *call, const char *object, int error,
                       const struct destroy_note *note)
{
    uint32_t stack = explained() ? stack_capture() : NO_STACK, number = NO_OBJECT;
    struct misuse_record *record;

    if (!segment_is_open())
        return NO_OBJECT;
    lock_acquire(&lock);
    record = find(call, object, stack);
    if (record) {
        record->count++;
    } else if (used < SEGMENT_MISUSES) {
        number = used++;
        record = segment_misuse(number);
        record->form = form;
        record->error = (uint32_t)(error < 0 ? -error : error);
        record->count = 1;
        record->called_by = (uint32_t)sys_gettid();
        record->called_stack = stack;
        record->called_ns = sys_now();
        record->destroyed_by = note->by;
        record->destroyed_stack = note->stack;
        record->destroyed_ns = note->ns;
        snprintf(record->call, sizeof(record->call), "%s", call);
        snprintf(record->object, sizeof(record->object), "%s", object);
        /* Release: a reader that sees the state also sees the rest. */
        atomic_store_explicit(&record->state, 1, memory_order_release);
    }
    lock_release(&lock);
    return number;
}
