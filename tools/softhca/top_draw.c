/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The screen of softhca top. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/types.h"
#include "explain/names.h"
#include "top_view.h"

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
    put(state, 0, 12, SCREEN_PLAIN, "%u processes%s, %llu QPs, %llu unacknowledged events%s",
        state->now.count, state->now.hidden ? " (others are hidden)" : "", (unsigned long long)qps,
        (unsigned long long)unacked, state->paused ? "  PAUSED" : "");
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
            state->filter[0]    ? "Nothing matches the filter."
            : qps               ? "No QPs."
            : state->now.hidden ? "The processes that use SoftHCA cannot be read: they are of other users, "
                                  "or not dumpable. Run softhca top as root."
                                : "No process of this host uses SoftHCA.");
}

/* Latencies as bars: from the first bucket with one to the last. */
static int draw_histogram(const struct view_state *state, const struct traffic_rare *traffic, int line)
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
    put(state, line++, 0, SCREEN_BOLD,
        "Latency, post to completion (%llu measured since the previous reading)",
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

    put(state, line++, 0, SCREEN_BOLD, "%-14s %10s %15s %13s %15s %11s %15s", "Executed", "by peer", "bytes",
        "by requester", "bytes", "for peer", "bytes");
    for (unsigned i = 0; i < array_size(kinds); i++) {
        const struct traffic_count *sent = &traffic->requested[TRAFFIC_BY_PACKETS][kinds[i]];
        const struct traffic_count *direct = &traffic->requested[TRAFFIC_BY_REQUESTER][kinds[i]];
        const struct traffic_count *executed = &traffic->executed[kinds[i]];

        put(state, line++, 2, SCREEN_PLAIN, "%-12s %10llu %15llu %13llu %15llu %11llu %15llu",
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
        "sends outstanding %u of %u   receives posted %u of %u   unacknowledged events %llu", qp->sends,
        qp->send_depth, qp->receives, qp->receive_depth, (unsigned long long)qp->events.unacked);
    if (qp->send_cq == qp->receive_cq)
        put(state, line++, 0, SCREEN_PLAIN, "CQ %u: %u unpolled of %u", qp->send_cq, qp->unpolled,
            qp->capacity);
    else
        put(state, line++, 0, SCREEN_PLAIN, "send CQ %u, receive CQ %u, the fuller one: %u unpolled of %u",
            qp->send_cq, qp->receive_cq, qp->unpolled, qp->capacity);
    line = draw_counts(state, &qp->sum.traffic, line + 1) + 1;
    put(state, line++, 0, SCREEN_BOLD, "Retries");
    put(state, line++, 2, SCREEN_PLAIN,
        "retransmissions %llu   PSN sequence error NAKs %llu   RNR NAKs %llu received, %llu sent",
        (unsigned long long)retries->retransmissions, (unsigned long long)retries->sequence_naks,
        (unsigned long long)retries->rnr_naks, (unsigned long long)qp->sum.traffic.rnr_naks_sent);
    put(state, line++, 2, SCREEN_PLAIN,
        "local ACK timeouts %llu   probes %llu   CNPs received %llu   duplicate requests %llu   requests "
        "dropped %llu",
        (unsigned long long)retries->timeouts, (unsigned long long)retries->probes,
        (unsigned long long)retries->congestions, (unsigned long long)retries->duplicates,
        (unsigned long long)retries->drops);
    for (unsigned status = 1; status < TRAFFIC_STATUSES; status++) {
        if (qp->sum.rare.failed[status])
            put(state, line++, 2, SCREEN_BAD, "%u completions with %s", qp->sum.rare.failed[status],
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
        "PATH       ring, cma (kernel copy), self (same process), mapped (memory), wire (network), or none:",
        "           searched (peer not found yet), nobody (no such QP), gone (peer process ended),",
        "           port down, unknown (not known yet); +N: QPs with another one",
        "PEER       QP, and process, if it is of this host",
        "OUT, IN    messages and bytes of payload per second. What a requester executes by itself, in mapped",
        "           memory of the peer or by kernel copy, is counted at the requester only.",
        "P50<, P99< 50 % and 99 % of the requests took less than this, from post to completion",
        "RETR, RNR  retransmissions, and RNR NAKs received and sent, per second",
        "CQ         unpolled completions / capacity; of a QP, of the fuller of its CQs",
        "SENDS      send requests outstanding / slots;  RECVS  receives posted / slots",
        "UNACK      events that were read and not acknowledged",
        "DROPS      requests and datagrams dropped;  FAILED  completions with an error",
        "REG,MAPPED bytes of registered memory, and how many of them peers can map",
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

void top_draw(struct view_state *state)
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
