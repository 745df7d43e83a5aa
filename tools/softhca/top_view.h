/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is on the screen of softhca top: kept by top_view.c, drawn by top_draw.c. */
#ifndef TOOLS_SOFTHCA_TOP_VIEW_H
#define TOOLS_SOFTHCA_TOP_VIEW_H

#include <string.h>

#include "top.h"

enum page { PAGE_PROCESSES, PAGE_QPS, PAGE_QP, PAGE_HELP };

/* Names a row from one reading to the next. */
struct identity {
    uint8_t instance[16];
    uint32_t slot, qpn; /* qpn 0: the process */
};

struct view_state {
    const struct screen *screen;
    int delay_ms;
    enum page page, back;      /* back: where help returns to */
    enum top_column sorted[2]; /* by page */
    bool reversed[2];
    char filter[64];
    bool filtering; /* the filter is being typed */
    bool paused, of_process, finished;
    uint8_t instance[16]; /* of_process: the QPs of this one */
    struct identity selected;
    unsigned cursor, first; /* rows */
    unsigned shift;         /* columns that are left out after those that name a row */
    struct counted now, before;
    struct top_rows rows;
    int height, width;
};

static inline struct identity identity_of(const struct top_row *row)
{
    struct identity identity = {.slot = row->qp ? row->qp->slot : 0, .qpn = row->qp ? row->qp->qpn : 0};

    memcpy(identity.instance, row->process->instance, sizeof(identity.instance));
    return identity;
}

static inline bool is_same(const struct identity *a, const struct identity *b)
{
    return memcmp(a->instance, b->instance, sizeof(a->instance)) == 0 && a->slot == b->slot &&
           a->qpn == b->qpn;
}

static inline bool shows_qps(const struct view_state *state)
{
    return state->page != PAGE_PROCESSES;
}

/* All of the screen. */
void top_draw(struct view_state *state);

#endif
