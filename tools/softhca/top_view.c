/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What softhca top reads, and what keys do. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "base/types.h"
#include "explain/names.h"
#include "top_view.h"

/* --- reading --------------------------------------------------------------------------------------------- */

static bool read_all(struct view_state *state, bool by_sockets)
{
    struct counted next;

    if (counted_read(by_sockets, false, true, &next))
        return false;
    top_rows_free(&state->rows);
    counted_free(&state->before);
    state->before = state->now;
    state->now = next;
    return true;
}

/* The cursor stays on its row, wherever that is now. */
static bool arrange(struct view_state *state)
{
    bool qps = shows_qps(state);

    top_rows_free(&state->rows);
    if (!top_rows(&state->now, &state->before, qps, qps && state->of_process ? state->instance : NULL,
                  &state->rows))
        return false;
    if (state->page != PAGE_QP)
        top_filter(&state->rows, state->filter);
    top_sort(&state->rows, state->sorted[qps], state->reversed[qps]);
    for (unsigned i = 0; i < state->rows.count; i++) {
        struct identity identity = identity_of(&state->rows.list[i]);

        if (is_same(&identity, &state->selected))
            state->cursor = i;
    }
    if (state->cursor >= state->rows.count)
        state->cursor = state->rows.count ? state->rows.count - 1 : 0;
    return true;
}

static void select_row(struct view_state *state, long row)
{
    if (!state->rows.count)
        return;
    state->cursor = row < 0 ? 0 : (unsigned)min_of((unsigned long)row, (unsigned long)state->rows.count - 1);
    state->selected = identity_of(&state->rows.list[state->cursor]);
}

/* --- keys ------------------------------------------------------------------------------------------------ */

static void sort_by_next(struct view_state *state, int step)
{
    bool qps = shows_qps(state);
    int column = (int)state->sorted[qps];

    do
        column = (column + step + TOP_COLUMNS) % TOP_COLUMNS;
    while (!top_is_shown((enum top_column)column, qps));
    state->sorted[qps] = (enum top_column)column;
    state->first = 0;
}

static void go(struct view_state *state, enum page page)
{
    state->page = page;
    state->cursor = state->first = 0;
    if (page == PAGE_PROCESSES)
        state->of_process = false;
}

static void open_selected(struct view_state *state)
{
    if (state->cursor >= state->rows.count)
        return;
    state->selected = identity_of(&state->rows.list[state->cursor]);
    if (state->page == PAGE_QPS) {
        state->page = PAGE_QP;
        return;
    }
    memcpy(state->instance, state->selected.instance, sizeof(state->instance));
    go(state, PAGE_QPS);
    state->of_process = true;
    state->filter[0] = '\0';
}

static void go_back(struct view_state *state)
{
    if (state->page == PAGE_QP)
        state->page = PAGE_QPS;
    else if (state->filter[0])
        state->filter[0] = '\0';
    else
        go(state, PAGE_PROCESSES);
}

static void type_filter(struct view_state *state, int key)
{
    size_t length = strlen(state->filter);

    if (key == SCREEN_ENTER) {
        state->filtering = false;
    } else if (key == SCREEN_ESCAPE) {
        state->filtering = false;
        state->filter[0] = '\0';
    } else if (key == SCREEN_ERASE) {
        if (length)
            state->filter[length - 1] = '\0';
    } else if (key > 0 && key < 0x7f && isprint(key) && length + 1 < sizeof(state->filter)) {
        state->filter[length] = (char)key;
        state->filter[length + 1] = '\0';
    }
}

static void move_or_choose(struct view_state *state, int key)
{
    long page = max_of(1, state->height - 5);

    switch (key) {
    case SCREEN_UP:
    case 'k':
        select_row(state, (long)state->cursor - 1);
        break;
    case SCREEN_DOWN:
    case 'j':
        select_row(state, (long)state->cursor + 1);
        break;
    case SCREEN_PAGE_UP:
        select_row(state, (long)state->cursor - page);
        break;
    case SCREEN_PAGE_DOWN:
        select_row(state, (long)state->cursor + page);
        break;
    case SCREEN_HOME:
    case 'g':
        select_row(state, 0);
        break;
    case SCREEN_END:
    case 'G':
        select_row(state, (long)state->rows.count - 1);
        break;
    case SCREEN_ENTER:
        open_selected(state);
        break;
    case SCREEN_LEFT:
        state->shift -= state->shift > 0;
        break;
    case SCREEN_RIGHT:
        state->shift += state->shift < TOP_COLUMNS / 2;
        break;
    case '<':
    case '>':
        sort_by_next(state, key == '<' ? -1 : 1);
        break;
    case 'r':
        state->reversed[shows_qps(state)] ^= true;
        break;
    case '/':
        state->filtering = true;
        break;
    default:
        break;
    }
}

static void act(struct view_state *state, int key)
{
    if (state->filtering) {
        type_filter(state, key);
        return;
    }
    if (state->page == PAGE_HELP) {
        state->page = state->back;
        return;
    }
    switch (key) {
    case 'q':
        state->finished = true;
        return;
    case 'h':
    case '?':
        state->back = state->page;
        state->page = PAGE_HELP;
        return;
    case ' ':
        state->paused ^= true;
        return;
    case '+':
        state->delay_ms = min_of(state->delay_ms * 2, 60000);
        return;
    case '-':
        state->delay_ms = max_of(state->delay_ms / 2, 100);
        return;
    case SCREEN_ESCAPE:
    case SCREEN_ERASE:
        go_back(state);
        return;
    case '\t':
        go(state, state->page == PAGE_PROCESSES ? PAGE_QPS : PAGE_PROCESSES);
        state->of_process = false;
        return;
    default:
        if (state->page != PAGE_QP)
            move_or_choose(state, key);
    }
}

/* --- the loop -------------------------------------------------------------------------------------------- */

/* Readings by sockets wake the helper threads of those that they ask, so they are rare. */
#define SOCKETS_EVERY 16

int top_view(const struct screen *screen, int delay_ms)
{
    struct view_state state = {
        .screen = screen, .delay_ms = delay_ms, .sorted = {TOP_BYTES_OUT, TOP_BYTES_OUT}};
    unsigned readings = 0;
    bool enough = read_all(&state, true);

    while (enough && !state.finished) {
        const uint64_t end = sys_now() + (unsigned)state.delay_ms * NS_PER_MS;

        enough = arrange(&state);
        /* Keys change what is shown at once, and the time of the next reading not. */
        while (enough && !state.finished) {
            uint64_t now = sys_now();
            int key;

            top_draw(&state);
            key = now < end ? screen->key((int)((end - now) / NS_PER_MS) + 1) : SCREEN_NO_KEY;
            if (key == SCREEN_CLOSED)
                state.finished = true;
            if (key < 0)
                break;
            act(&state, key);
            enough = arrange(&state);
        }
        if (enough && !state.finished && !state.paused)
            enough = read_all(&state, ++readings % SOCKETS_EVERY == 0);
    }
    top_rows_free(&state.rows);
    counted_free(&state.now);
    counted_free(&state.before);
    return enough ? 0 : 1;
}
