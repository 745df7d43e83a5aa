/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "segment/refused.h"

#include <stdio.h>
#include <string.h>

#include "base/lock.h"
#include "base/refusal.h"
#include "base/sys.h"
#include "segment/provenance.h"
#include "segment/segment.h"
#include "segment/stack.h"

static struct lock lock = LOCK_INIT; /* guards the records, whose state readers load; a leaf */
static uint32_t used;

void refused_after_fork_in_child(void)
{
    lock_init(&lock);
    used = 0;
}

/* A program that waits for room in a queue by posting until that succeeds is refused a million times a second:
 * nothing is taken down about it but the first time. */
static bool is_repeated(const struct refusal *refusal)
{
    return refusal->form == REFUSAL_FULL || refusal->form == REFUSAL_SILENT;
}

/* The record of the same refusal from the same place; NULL: there is none. Lock held. */
static struct refused_record *find(const char *call, const struct refusal *refusal, uint32_t stack)
{
    for (uint32_t i = 0; i < used; i++) {
        struct refused_record *record = segment_refused(i);

        if (record->form == refusal->form && record->number == refusal->number &&
            record->kind == refusal->kind && record->error == (uint32_t)-refusal->error &&
            (record->called_stack == stack || is_repeated(refusal)) &&
            strncmp(record->argument, refusal->argument, sizeof(record->argument) - 1) == 0 &&
            strncmp(record->call, call, sizeof(record->call) - 1) == 0)
            return record;
    }
    return NULL;
}

/* A free record, or the one whose last refusal is the oldest. Lock held. */
static uint32_t choose(void)
{
    uint32_t oldest = 0;

    if (used < SEGMENT_REFUSALS)
        return used++;
    for (uint32_t i = 1; i < SEGMENT_REFUSALS; i++) {
        if (segment_refused(i)->last_ns < segment_refused(oldest)->last_ns)
            oldest = i;
    }
    return oldest;
}

static void fill(struct refused_record *record, const char *call, const struct refusal *refusal,
                 uint32_t stack)
{
    /* A reader that copies the record meanwhile may see parts of two refusals; it prints either. */
    atomic_store_explicit(&record->state, 0, memory_order_release);
    record->form = refusal->form;
    record->error = (uint32_t)-refusal->error;
    record->count = 1;
    record->called_by = (uint32_t)sys_gettid();
    record->called_stack = stack;
    record->kind = refusal->kind;
    record->number = refusal->number;
    record->first_ns = record->last_ns = sys_now();
    record->value = refusal->value;
    record->low = refusal->low;
    record->high = refusal->high;
    snprintf(record->call, sizeof(record->call), "%s", call);
    _Static_assert(sizeof(record->argument) == REFUSAL_TEXT, "all of it");
    snprintf(record->argument, sizeof(record->argument), "%s", refusal->argument);
    /* Release: a reader that sees the state also sees the rest. */
    atomic_store_explicit(&record->state, 1, memory_order_release);
}

uint32_t refused_record(const char *call, const struct refusal *refusal)
{
    uint32_t stack = NO_STACK, number = NO_OBJECT;
    struct refused_record *record;

    if (!segment_is_open())
        return NO_OBJECT;
    if (explained() && !is_repeated(refusal))
        stack = stack_capture();
    lock_acquire(&lock);
    record = find(call, refusal, stack);
    if (record) {
        record->count++;
        if (!is_repeated(refusal))
            record->last_ns = sys_now();
    } else {
        if (explained() && is_repeated(refusal))
            stack = stack_capture();
        number = choose();
        fill(segment_refused(number), call, refusal, stack);
    }
    lock_release(&lock);
    return number;
}
