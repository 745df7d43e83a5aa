/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Watches for hangs while explanations are on: what is in such a state (explain/hangs.h) at three looks in a row, a second
 * apart, and has not moved, is told once. Helper thread. */
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/explainer.h"
#include "explain/hangs.h"
#include "segment/segment.h"

#define LOOK_NS   NS_PER_S
#define SUSPECTED 64u
#define TOLD_AT   3u /* looks */

struct suspect {
    enum object_kind kind;
    enum hang_form form;
    uint32_t number, looks;
    uint64_t mark;
};

/* The helper thread's alone. */
static struct suspect suspects[SUSPECTED];
static unsigned suspect_count;

struct look {
    struct suspect found[SUSPECTED];
    unsigned count;
};

static uint32_t looks_before(const struct suspect *suspect)
{
    for (unsigned i = 0; i < suspect_count; i++) {
        const struct suspect *before = &suspects[i];

        if (before->kind == suspect->kind && before->number == suspect->number &&
            before->form == suspect->form && before->mark == suspect->mark)
            return before->looks;
    }
    return 0;
}

static bool suspect_object(const struct view *view, const struct object *object, void *argument)
{
    struct look *look = argument;
    struct suspect *suspect = &look->found[look->count];
    struct hang hang;

    if (!hang_find(view, object, &hang) || !hang.watched)
        return true;
    *suspect = (struct suspect){object->kind, hang.form, object->number, 0, hang.mark};
    suspect->looks = min_of(looks_before(suspect) + 1, TOLD_AT + 1);
    return ++look->count < SUSPECTED;
}

void hangs_look(void)
{
    const struct segment_header *header = segment_header();
    struct look look = {.count = 0};
    struct view view;

    if (view_open(&view, header, header->total_size, segment_fd_intact(SEGMENT_TABLES), getpid()) != 0)
        return;
    objects_for_each(&view, HANG_KINDS, suspect_object, &look);
    memcpy(suspects, look.found, sizeof(suspects));
    suspect_count = look.count;
    for (unsigned i = 0; i < suspect_count; i++) {
        if (suspects[i].looks == TOLD_AT)
            explainer_explain(EXPLAIN_HANG, suspects[i].kind, suspects[i].number);
    }
    timers_set_hangs(sys_now() + LOOK_NS);
}

void hangs_start(void)
{
    timers_set_hangs(sys_now() + LOOK_NS);
}

void hangs_after_fork_in_child(void)
{
    suspect_count = 0;
}
