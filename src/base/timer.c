/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/timer.h"

#include <errno.h>
#include <stdlib.h>

static void place(struct timer_heap *heap, uint32_t index, struct timer *timer)
{
    heap->entries[index] = timer;
    timer->index = index;
}

static void sift_up(struct timer_heap *heap, uint32_t index, struct timer *timer)
{
    for (; index > 1 && heap->entries[index / 2]->at > timer->at; index /= 2)
        place(heap, index, heap->entries[index / 2]);
    place(heap, index, timer);
}

static void sift_down(struct timer_heap *heap, uint32_t index, struct timer *timer)
{
    for (;;) {
        uint32_t child = index * 2;

        if (child < heap->count && heap->entries[child + 1]->at < heap->entries[child]->at)
            child++;
        if (child > heap->count || heap->entries[child]->at >= timer->at)
            break;
        place(heap, index, heap->entries[child]);
        index = child;
    }
    place(heap, index, timer);
}

int timer_arm(struct timer_heap *heap, struct timer *timer, ns_t at)
{
    timer_cancel(heap, timer);
    if (heap->count + 2 > heap->capacity) {
        uint32_t capacity = heap->capacity ? heap->capacity * 2 : 64;
        struct timer **entries = realloc(heap->entries, capacity * sizeof(struct timer *));

        if (!entries)
            return -ENOMEM;
        heap->entries = entries;
        heap->capacity = capacity;
    }
    timer->at = at;
    sift_up(heap, ++heap->count, timer);
    return 0;
}

void timer_cancel(struct timer_heap *heap, struct timer *timer)
{
    uint32_t index = timer->index;
    struct timer *last;

    if (!index)
        return;
    timer->index = 0;
    last = heap->entries[heap->count--];
    if (last == timer)
        return;
    if (index > 1 && heap->entries[index / 2]->at > last->at)
        sift_up(heap, index, last);
    else
        sift_down(heap, index, last);
}

ns_t timer_next(const struct timer_heap *heap)
{
    return heap->count ? heap->entries[1]->at : NS_NEVER;
}

struct timer *timer_take_due(struct timer_heap *heap, ns_t now)
{
    struct timer *timer = heap->count ? heap->entries[1] : NULL;

    if (!timer || timer->at > now)
        return NULL;
    timer_cancel(heap, timer);
    return timer;
}
