/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What softhca top shows, and what keys do. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "base/types.h"
#include "explain/names.h"
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

static struct identity identity_of(const struct top_row *row)
{
    struct identity identity = {.slot = row->qp ? row->qp->slot : 0, .qpn = row->qp ? row->qp->qpn : 0};

    memcpy(identity.instance, row->process->instance, sizeof(identity.instance));
    return identity;
}

static bool is_same(const struct identity *a, const struct identity *b)
{
    return memcmp(a->instance, b->instance, sizeof(a->instance)) == 0 && a->slot == b->slot &&
           a->qpn == b->qpn;
}

static bool shows_qps(const struct view_state *state)
{
    return state->page != PAGE_PROCESSES;
}

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

/* --- drawing --------------------------------------------------------------------------------------------- */

static __attribute__((format(printf, 5, 6))) void put(const struct view_state *state, int row, int column,
                                                      enum screen_style style, const char *format, ...)
{
    char text[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    state->screen->put(row, column, style, text);
}

static void draw_summary(const struct view_state *state)
{
    struct top_rows processes;
    struct top_rates sum = {0};
    char out[16], out_bytes[16], in[16], in_bytes[16];
    uint64_t qps = 0, unacked = 0;

    if (!top_rows(&state->now, &state->before, false, NULL, &processes))
        return;
    for (unsigned i = 0; i < processes.count; i++) {
        const struct stats_process *process = processes.list[i].process;

        sum.messages_out += processes.list[i].rates.messages_out;
        sum.bytes_out += processes.list[i].rates.bytes_out;
        sum.messages_in += processes.list[i].rates.messages_in;
        sum.bytes_in += processes.list[i].rates.bytes_in;
        qps += process->qps;
        unacked += process->completion.unacked + process->async.unacked + process->cm.unacked;
    }
    top_rows_free(&processes);
    top_scaled(sum.messages_out, false, out, sizeof(out));
    top_scaled(sum.bytes_out, true, out_bytes, sizeof(out_bytes));
    top_scaled(sum.messages_in, false, in, sizeof(in));
    top_scaled(sum.bytes_in, true, in_bytes, sizeof(in_bytes));
    put(state, 0, 0, SCREEN_BOLD, "softhca top");
    put(state, 0, 12, SCREEN_PLAIN, "%u processes%s, %llu QPs, %llu un-acked events%s", state->now.count,
        state->now.hidden ? " (others are hidden)" : "", (unsigned long long)qps, (unsigned long long)unacked,
        state->paused ? "  PAUSED" : "");
    put(state, 1, 0, SCREEN_PLAIN, "out %s msg/s %sB/s   in %s msg/s %sB/s   every %.1f s", out, out_bytes,
        in, in_bytes, state->delay_ms / 1000.0);
}

static void draw_footer(const struct view_state *state)
{
    int row = state->height - 1;

    if (state->filtering)
        put(state, row, 0, SCREEN_BOLD, "filter: %s_", state->filter);
    else if (state->page == PAGE_QP)
        put(state, row, 0, SCREEN_DIM, "ESC back  SPACE pause  h help  q quit");
    else
        put(state, row, 0, SCREEN_DIM,
            "%s%s%s< > sort  r reverse  / filter  ENTER open  TAB %s  SPACE pause  h help  q quit",
            state->filter[0] ? "[" : "", state->filter, state->filter[0] ? "] " : "",
            shows_qps(state) ? "processes" : "QPs");
}

static bool names_a_row(enum top_column column)
{
    return column <= TOP_QPN;
}

/* The columns that fit, after those that were shifted out. */
static unsigned choose_columns(const struct view_state *state, enum top_column *ret)
{
    unsigned count = 0, shifted = 0;
    int used = 0;

    for (unsigned i = 0; i < TOP_COLUMNS; i++) {
        enum top_column column = (enum top_column)i;

        if (!top_is_shown(column, shows_qps(state)) || (state->of_process && column == TOP_PROGRAM))
            continue;
        if (!names_a_row(column) && shifted < state->shift) {
            shifted++;
            continue;
        }
        used += abs(top_width(column)) + 1;
        if (used > state->width + 1)
            break;
        ret[count++] = column;
    }
    return count;
}

static void put_cell(const struct view_state *state, int row, int at, enum top_column column,
                     enum screen_style style, const char *text)
{
    int width = abs(top_width(column));

    if (top_width(column) < 0)
        put(state, row, at, style, "%-*.*s", width, width, text);
    else
        put(state, row, at, style, "%*.*s", width, width, text);
}

static void draw_table(struct view_state *state)
{
    enum top_column columns[TOP_COLUMNS];
    unsigned count = choose_columns(state, columns), lines;
    bool qps = shows_qps(state);
    int at = 0;

    put(state, 2, 0, SCREEN_TITLE, "%*s", state->width, "");
    for (unsigned i = 0; i < count; i++) {
        put_cell(state, 2, at, columns[i], columns[i] == state->sorted[qps] ? SCREEN_SELECTED : SCREEN_TITLE,
                 top_title(columns[i]));
        at += abs(top_width(columns[i])) + 1;
    }
    lines = state->height > 4 ? (unsigned)state->height - 4 : 0;
    if (state->cursor < state->first)
        state->first = state->cursor;
    if (lines && state->cursor >= state->first + lines)
        state->first = state->cursor - lines + 1;
    if (state->first + lines > state->rows.count)
        state->first = state->rows.count > lines ? state->rows.count - lines : 0;
    for (unsigned line = 0; line < lines && state->first + line < state->rows.count; line++) {
        const struct top_row *row = &state->rows.list[state->first + line];
        bool chosen = state->first + line == state->cursor;

        if (chosen)
            put(state, 3 + (int)line, 0, SCREEN_SELECTED, "%*s", state->width, "");
        at = 0;
        for (unsigned i = 0; i < count; i++) {
            char text[80];
            bool wrong = top_cell(row, columns[i], text, sizeof(text));

            put_cell(state, 3 + (int)line, at, columns[i],
                     chosen  ? SCREEN_SELECTED
                     : wrong ? SCREEN_BAD
                             : SCREEN_PLAIN,
                     text);
            at += abs(top_width(columns[i])) + 1;
        }
    }
    if (!state->rows.count)
        put(state, 4, 2, SCREEN_DIM, "%s",
            state->filter[0] ? "Nothing matches the filter."
            : qps            ? "No QPs."
                             : "No process uses SoftHCA, or none lets you look.");
}

/* Latencies as bars: from the first bucket with one to the last. */
static int draw_histogram(const struct view_state *state, const struct traffic_record *traffic, int line)
{
    unsigned first = LATENCY_BUCKETS, last = 0;
    uint64_t most = 0;
    char bar[128], low[16], high[16];

    for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
        if (!traffic->latency[i])
            continue;
        first = min_of(first, i);
        last = i;
        most = max_of(most, traffic->latency[i]);
    }
    put(state, line++, 0, SCREEN_BOLD, "Latency, post to completion (%llu measured since the reading before)",
        (unsigned long long)stats_latency_count(traffic));
    for (unsigned i = first; i <= last && most && line < state->height - 2; i++) {
        int room = max_of(10, min_of(state->width - 40, 100));
        int length = (int)((double)traffic->latency[i] / (double)most * room);

        memset(bar, '#', sizeof(bar));
        bar[length] = '\0';
        top_duration(i ? 1ull << (LATENCY_SHIFT + i - 1) : 0, low, sizeof(low));
        top_duration(1ull << (LATENCY_SHIFT + i), high, sizeof(high));
        put(state, line, 2, SCREEN_PLAIN, "%8s to %8s %10llu ", i ? low : "0",
            i + 1 < LATENCY_BUCKETS ? high : "...", (unsigned long long)traffic->latency[i]);
        put(state, line++, 35, SCREEN_GOOD, "%s", bar);
    }
    return line;
}

static int draw_counts(const struct view_state *state, const struct traffic_record *traffic, int line)
{
    static const enum traffic_kind kinds[] = {TRAFFIC_SEND, TRAFFIC_WRITE, TRAFFIC_READ, TRAFFIC_ATOMIC,
                                              TRAFFIC_ATOMIC_WRITE};

    put(state, line++, 0, SCREEN_BOLD, "%-14s %10s %15s %12s %15s %11s %15s", "Requests", "as packets",
        "bytes", "by itself", "bytes", "of the peer", "bytes");
    for (unsigned i = 0; i < array_size(kinds); i++) {
        const struct traffic_count *sent = &traffic->requested[TRAFFIC_BY_PACKETS][kinds[i]];
        const struct traffic_count *direct = &traffic->requested[TRAFFIC_BY_REQUESTER][kinds[i]];
        const struct traffic_count *executed = &traffic->executed[kinds[i]];

        put(state, line++, 2, SCREEN_PLAIN, "%-12s %10llu %15llu %12llu %15llu %11llu %15llu",
            stats_kind_name(kinds[i]), (unsigned long long)sent->messages, (unsigned long long)sent->bytes,
            (unsigned long long)direct->messages, (unsigned long long)direct->bytes,
            (unsigned long long)executed->messages, (unsigned long long)executed->bytes);
    }
    return line;
}

static void draw_qp(const struct view_state *state, const struct top_row *row)
{
    const struct stats_qp *qp = row->qp;
    const struct retry_record *retries = &qp->sum.retries;
    char pid[32], peer[64], a[16], b[16], c[16], d[16];
    int line = 3;

    top_cell(row, TOP_PID, pid, sizeof(pid));
    top_cell(row, TOP_PEER, peer, sizeof(peer));
    put(state, 2, 0, SCREEN_TITLE, "%-*.*s", state->width, state->width, "");
    put(state, 2, 0, SCREEN_TITLE, "QP 0x%06x %s%s%s of %s %s", qp->qpn, name_qp_type(qp->type),
        qp->name[0] ? " " : "", qp->name, pid, row->process->program);
    put(state, line++, 0, SCREEN_PLAIN, "state %s   device %s   path %s   peer %s", name_qp_state(qp->state),
        qp->device, path_words(qp->path), peer);
    top_scaled(row->rates.messages_out, false, a, sizeof(a));
    top_scaled(row->rates.bytes_out, true, b, sizeof(b));
    top_scaled(row->rates.messages_in, false, c, sizeof(c));
    top_scaled(row->rates.bytes_in, true, d, sizeof(d));
    put(state, line++, 0, SCREEN_PLAIN, "out %s msg/s %sB/s   in %s msg/s %sB/s", a, b, c, d);
    put(state, line++, 0, SCREEN_PLAIN,
        "sends outstanding %u of %u   receives posted %u of %u   CQ %u/%u: %u unpolled of %u   un-acked "
        "events %llu",
        qp->sends, qp->send_depth, qp->receives, qp->receive_depth, qp->send_cq, qp->receive_cq, qp->unpolled,
        qp->capacity, (unsigned long long)qp->events.unacked);
    line = draw_counts(state, &qp->sum.traffic, line + 1) + 1;
    put(state, line++, 0, SCREEN_BOLD, "Retries");
    put(state, line++, 2, SCREEN_PLAIN,
        "retransmissions %llu   sequence NAKs %llu   RNR NAKs %llu received, %llu sent   timeouts %llu   "
        "probes %llu",
        (unsigned long long)retries->retransmissions, (unsigned long long)retries->sequence_naks,
        (unsigned long long)retries->rnr_naks, (unsigned long long)qp->sum.traffic.rnr_naks_sent,
        (unsigned long long)retries->timeouts, (unsigned long long)retries->probes);
    put(state, line++, 2, SCREEN_PLAIN, "duplicates %llu   drops %llu   congestion notifications %llu",
        (unsigned long long)retries->duplicates, (unsigned long long)retries->drops,
        (unsigned long long)retries->congestions);
    for (unsigned status = 1; status < TRAFFIC_STATUSES; status++) {
        if (qp->sum.traffic.failed[status])
            put(state, line++, 2, SCREEN_BAD, "%u completions with %s", qp->sum.traffic.failed[status],
                name_status(status));
    }
    draw_histogram(state, &row->recent, line + 1);
}

static void draw_help(const struct view_state *state)
{
    static const char *const lines[] = {
        "q          quit",
        "up, down   choose a row (also k, j, page keys, g and G)",
        "left,right columns that do not fit",
        "ENTER      open: the QPs of a process; all counters of a QP",
        "ESC        back",
        "TAB        all processes, or all QPs",
        "< >        sort by the column before, after",
        "r          reverse the order",
        "/          show rows with this text only; ENTER keeps it, ESC removes it",
        "+ -        refresh less often, more often",
        "SPACE      pause",
        "",
        "PATH       ring, cma (kernel copy), self, mapped (memory), wire (network); +N: QPs with another one",
        "PEER       QP, and process, if it is of this host",
        "OUT, IN    messages and bytes of payload per second. What a requester executes by itself, in mapped",
        "           memory of the peer or by kernel copy, is counted at the requester only.",
        "P50<, P99< this part of the requests took less, from post to completion",
        "RETR, RNR  retransmissions, and RNR NAKs received, per second",
        "CQ         unpolled completions / capacity; of a QP, of the fuller of its CQs",
        "SENDS      send requests outstanding / slots;  RECVS  receives posted / slots",
        "UNACK      events that were read and not acknowledged",
        "DROPS      requests and datagrams dropped;  FAILED  completions with an error",
        "REG,MAPPED bytes of registered memory, and of those that are mapped memory",
    };

    put(state, 2, 0, SCREEN_TITLE, "%-*.*s", state->width, state->width, "Keys and columns (any key: back)");
    for (unsigned i = 0; i < array_size(lines); i++)
        put(state, 4 + (int)i, 2, SCREEN_PLAIN, "%s", lines[i]);
}

static const struct top_row *opened(const struct view_state *state)
{
    for (unsigned i = 0; i < state->rows.count; i++) {
        struct identity identity = identity_of(&state->rows.list[i]);

        if (is_same(&identity, &state->selected))
            return &state->rows.list[i];
    }
    return NULL;
}

static void draw(struct view_state *state)
{
    const struct top_row *row;

    state->screen->size(&state->height, &state->width);
    state->width = min_of(state->width, 500);
    state->screen->clear();
    draw_summary(state);
    switch (state->page) {
    case PAGE_PROCESSES:
    case PAGE_QPS:
        draw_table(state);
        break;
    case PAGE_QP:
        row = opened(state);
        if (row)
            draw_qp(state, row);
        else
            put(state, 4, 2, SCREEN_DIM, "This QP does not exist any more.");
        break;
    case PAGE_HELP:
        draw_help(state);
        break;
    }
    draw_footer(state);
    state->screen->show();
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

            draw(&state);
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
