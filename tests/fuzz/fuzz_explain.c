/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A published segment of a hostile process: whatever it says, the explain room stays inside it, comes to an
 * end, and writes lines of printable characters.
 *
 * Input: one byte that chooses the question, then changes to a segment that has one of everything: three
 * bytes of place, one that says how, and four of value. The length chooses how much may be said. */
#include <string.h>

#include "../unit/json.h"
#include "../unit/segment_fixture.h"
#include "fuzz.h"
#include "stats/stats.h"

#define CHANGE 8

static void change(struct fixture *fixture, const uint8_t *bytes)
{
    /* Records more often than what lies between them. */
    const struct {
        void *at;
        size_t size;
    } places[] = {
        {fixture->base, fixture->size},
        {fixture->header, sizeof(*fixture->header)},
        {fixture->qps, 2 * sizeof(*fixture->qps)},
        {fixture->cqs, 2 * sizeof(*fixture->cqs)},
        {fixture->srqs, sizeof(*fixture->srqs)},
        {fixture->wqs, sizeof(*fixture->wqs)},
        {fixture->items, 4 * sizeof(*fixture->items)},
        {fixture->stacks, 2 * sizeof(*fixture->stacks)},
    };
    const size_t which = bytes[0] % array_size(places);
    const size_t place = ((size_t)bytes[1] << 8 | bytes[2]) * 4 % places[which].size;
    uint32_t value;

    memcpy(&value, bytes + 4, sizeof(value));
    if (bytes[3] & 1) /* near the ends of the range */
        value = bytes[3] & 2 ? UINT32_MAX - value % 16 : value % 16;
    memcpy((char *)places[which].at + place, &value, bytes[3] & 4 ? 1 : sizeof(value));
}

static void check(const struct out *out)
{
    for (size_t i = 0; i < out->length; i++)
        require(out->text[i] == '\n' || (out->text[i] >= ' ' && out->text[i] <= '~'));
    require(out->depth == 0);
    require(!out->json || !out->text || json_lines(out->text));
}

static void ask(const struct view *view, struct out *out, unsigned question)
{
    enum object_kind kind = 1 + question / 16 % (OBJECT_KINDS - 1);

    switch (question % 10) {
    case 0:
        explain_list(view, out, true);
        out_newline(out);
        break;
    case 1:
        explain_process(view, out);
        break;
    case 2:
        explain_work(view, out, question / 16, 0);
        break;
    case 3:
        explain_work(view, out, 0, FIXTURE_QPN);
        break;
    case 4:
        explain_busy(view, out, kind, 0);
        break;
    case 5:
        explain_blocked(view, out, kind, 0);
        break;
    case 6:
        explain_losses(view, out, kind, 0);
        break;
    case 7:
        explain_object(view, out, kind, 0);
        break;
    case 8:
        explain_leaks(view, out, question & 16 ? NO_OBJECT : 0);
        break;
    case 9:
        explain_in_use(view, out, 0);
        explain_overrun(view, out, 0);
        explain_resumed(view, out, kind, 0);
        break;
    }
}

/* softhca stats and top. */
static void count(const struct view *view)
{
    struct stats_process process;
    struct stats_text text = {0};
    struct stats_values values;

    if (stats_read(view, true, &process) != 0)
        abort();
    for (unsigned i = 0; i < process.port_count; i++) {
        if (strpbrk(process.ports[i].device, "/\"\n") || !process.ports[i].device[0])
            abort();
        stats_port_values(&process.ports[i].sum, &values);
    }
    stats_prometheus(&text, &process, 1, 0);
    free(text.text);
    stats_free(&process);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fixture *fixture = fixture_make();
    struct view view;
    struct out out;

    if (size < 1)
        return 0;
    /* Something is under way everywhere. */
    fixture->qps[0].sender.posted = 4;
    fixture->qps[0].sender.begun = fixture->qps[0].sender.next = 2;
    fixture->qps[0].receive.posted = fixture->srqs[0].posted = fixture->cqs[0].produced = 3;
    fixture->qps[0].events.reported = fixture->cqs[0].events.reported = 1;
    fixture->qps[0].provenance.destroying_ns = 1;
    for (size_t at = 1; at + CHANGE <= size; at += CHANGE)
        change(fixture, data + at);
    if (view_open(&view, fixture->base, fixture->size, -1, 0) != 0)
        return 0;
    /* A list is not cut: nobody limits it. */
    out_init(&out, data[0] & 128, data[0] % 10 && size % 3 == 0 ? 1000 : 1u << 20);
    ask(&view, &out, data[0]);
    check(&out);
    out_fini(&out);
    if (data[0] & 64)
        count(&view);
    return 0;
}

void fuzz_seeds(fuzz_add *add)
{
    static const uint8_t more[4 * CHANGE];
    uint8_t input[1 + sizeof(more)] = {0};

    for (unsigned question = 0; question < 256; question++) {
        input[0] = (uint8_t)question;
        add(input, question % 3 ? sizeof(input) : 1 + CHANGE);
    }
}
