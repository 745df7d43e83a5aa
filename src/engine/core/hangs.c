/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Watches for hangs while explanations are on: what is in such a state (explain/hangs.h) at three looks in a row, a
 * second apart, and has not moved, is told once; of QPs that wait for one stopped process, one. Helper thread.
 *
 * A look is at all objects, or only at those that were in such a state at the look before: where there are many
 * objects, so many looks in a row that an idle process looks at OBJECTS_PER_LOOK a second at most, in the long run. */
#include <string.h>
#include <unistd.h>

#include "base/sys.h"
#include "engine/core/core.h"
#include "engine/core/explainer.h"
#include "explain/hangs.h"
#include "segment/segment.h"

#define LOOK_NS          NS_PER_S
#define SUSPECTED        64u
#define TOLD_AT          3u /* looks */
#define OBJECTS_PER_LOOK 1024u

struct suspect {
    enum object_kind kind;
    enum hang_form form;
    uint32_t number, looks;
    uint64_t mark;
};

/* The helper thread's alone. */
static struct suspect suspects[SUSPECTED];
static unsigned suspect_count;
static uint32_t small_looks; /* to come before the next one at all objects */

struct look {
    struct suspect found[SUSPECTED];
    unsigned count;
    uint32_t objects;
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

static bool is_told_by_another(const struct look *look, const struct hang *hang)
{
    for (unsigned i = 0; hang->form == HANG_PEER_STOPPED && i < look->count; i++) {
        if (look->found[i].form == hang->form && look->found[i].mark == hang->mark)
            return true;
    }
    return false;
}

static bool suspect_object(const struct view *view, const struct object *object, void *argument)
{
    struct look *look = argument;
    struct suspect *suspect = &look->found[look->count];
    struct hang hang;

    look->objects++;
    if (!hang_find(view, object, &hang) || !hang.watched || is_told_by_another(look, &hang))
        return true;
    *suspect = (struct suspect){object->kind, hang.form, object->number, 0, hang.mark};
    suspect->looks = min_of(looks_before(suspect) + 1, TOLD_AT + 1);
    return ++look->count < SUSPECTED;
}

void hangs_look(void)
{
    const struct segment_header *header = segment_header();
    struct view_asked asked = {.count = 0};
    struct look look = {.count = 0};
    struct object object;
    struct view view;

    if (view_open(&view, header, header->total_size, segment_fd_intact(SEGMENT_TABLES), getpid()) != 0)
        return;
    view.asked = &asked;
    if (small_looks) {
        small_looks--;
        for (unsigned i = 0; i < suspect_count; i++) {
            if (object_read(&view, suspects[i].kind, suspects[i].number, &object))
                suspect_object(&view, &object, &look);
        }
    } else {
        objects_for_each(&view, HANG_KINDS, suspect_object, &look);
        small_looks = look.objects / OBJECTS_PER_LOOK;
    }
    memcpy(suspects, look.found, sizeof(suspects));
    suspect_count = look.count;
    for (unsigned i = 0; i < suspect_count; i++) {
        if (suspects[i].looks == TOLD_AT)
            explainer_explain(EXPLAIN_HANG, suspects[i].kind, suspects[i].number);
    }
    timers_set_late(LATE_HANGS, sys_now() + LOOK_NS);
}

void hangs_start(void)
{
    timers_set_late(LATE_HANGS, sys_now() + LOOK_NS);
}

void hangs_after_fork_in_child(void)
{
    suspect_count = 0;
    small_looks = 0;
}
