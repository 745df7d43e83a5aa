/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "base/types.h"
#include "explain/names.h"
#include "top.h"

/* --- texts ----------------------------------------------------------------------------------------------- */

void top_scaled(double value, bool bytes, char *text, size_t size)
{
    static const char units[] = " KMGTPE";
    double step = bytes ? 1024 : 1000;
    unsigned unit = 0;

    while (value >= step * 0.9995 && unit + 2 < sizeof(units)) {
        value /= step;
        unit++;
    }
    if (unit == 0)
        snprintf(text, size, value < 9.95 && value != (double)(int)value ? "%.1f" : "%.0f", value);
    else
        snprintf(text, size,
                 value < 9.995   ? "%.2f%c"
                 : value < 99.95 ? "%.1f%c"
                                 : "%.0f%c",
                 value, units[unit]);
}

void top_duration(uint64_t ns, char *text, size_t size)
{
    if (ns == 0)
        snprintf(text, size, "-");
    else if (ns < 10 * NS_PER_US)
        snprintf(text, size, "%.2fus", (double)ns / NS_PER_US);
    else if (ns < 10 * NS_PER_MS)
        snprintf(text, size, "%lluus", (unsigned long long)(ns / NS_PER_US));
    else if (ns < 10 * NS_PER_S)
        snprintf(text, size, "%llums", (unsigned long long)(ns / NS_PER_MS));
    else
        snprintf(text, size, "%llus", (unsigned long long)(ns / NS_PER_S));
}

void top_path_of(const struct stats_process *process, char *text, size_t size)
{
    unsigned most = 0, others = 0;

    for (unsigned i = 0; i < STATS_PATHS; i++) {
        if (process->qps_by_path[i] > process->qps_by_path[most])
            most = i;
    }
    for (unsigned i = 0; i < STATS_PATHS; i++)
        others += i != most && process->qps_by_path[i];
    if (!process->qps)
        snprintf(text, size, "-");
    else if (others)
        snprintf(text, size, "%s+%u", name_path(most), others);
    else
        snprintf(text, size, "%s", name_path(most));
}

/* --- rates ----------------------------------------------------------------------------------------------- */

static double rate(uint64_t now, uint64_t before, double seconds)
{
    return now > before && seconds > 0 ? (double)(now - before) / seconds : 0;
}

/* Latencies of the time between; if there are none, of all the time. */
static void note_latencies(const struct traffic_rare *now, const struct traffic_rare *before,
                           struct top_row *row)
{
    row->recent = *now;
    if (before && stats_latency_count(now) > stats_latency_count(before)) {
        for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
            row->recent.latency[i] = now->latency[i] - min_of(before->latency[i], now->latency[i]);
    }
    row->rates.p50_ns = stats_latency(&row->recent, 500);
    row->rates.p99_ns = stats_latency(&row->recent, 990);
}

static void note_rates(const struct stats_flow *flow, const struct stats_flow *flow_before,
                       const struct traffic_sum *sum, const struct traffic_sum *sum_before, double seconds,
                       struct top_row *row)
{
    struct top_rates *rates = &row->rates;

    note_latencies(&sum->rare, sum_before ? &sum_before->rare : NULL, row);
    row->known = sum_before != NULL;
    if (!row->known)
        return;
    rates->messages_out = rate(flow->messages_out, flow_before->messages_out, seconds);
    rates->bytes_out = rate(flow->bytes_out, flow_before->bytes_out, seconds);
    rates->messages_in = rate(flow->messages_in, flow_before->messages_in, seconds);
    rates->bytes_in = rate(flow->bytes_in, flow_before->bytes_in, seconds);
    rates->retries = rate(sum->retries.retransmissions, sum_before->retries.retransmissions, seconds);
    rates->rnr_received = rate(sum->retries.rnr_naks, sum_before->retries.rnr_naks, seconds);
    rates->rnr_sent = rate(sum->traffic.rnr_naks_sent, sum_before->traffic.rnr_naks_sent, seconds);
    rates->drops = rate(sum->retries.drops, sum_before->retries.drops, seconds);
}

static const struct stats_process *earlier(const struct counted *before, const struct stats_process *process)
{
    for (unsigned i = 0; i < before->count; i++) {
        if (memcmp(before->list[i].instance, process->instance, sizeof(process->instance)) == 0)
            return &before->list[i];
    }
    return NULL;
}

/* Both lists are in the order of slots. */
static const struct stats_qp *earlier_qp(const struct stats_process *process, const struct stats_qp *qp,
                                         uint64_t *at)
{
    if (!process || !process->list)
        return NULL;
    while (*at < process->qps && process->list[*at].slot < qp->slot)
        (*at)++;
    if (*at < process->qps && process->list[*at].slot == qp->slot && process->list[*at].qpn == qp->qpn &&
        process->list[*at].created_ns == qp->created_ns)
        return &process->list[*at];
    return NULL;
}

static void add_process(struct top_rows *rows, const struct stats_process *process,
                        const struct stats_process *before)
{
    struct top_row *row = &rows->list[rows->count++];

    *row = (struct top_row){.process = process};
    note_rates(&process->flow, before ? &before->flow : NULL, &process->sum, before ? &before->sum : NULL,
               before ? (double)(process->read_ns - before->read_ns) / (double)NS_PER_S : 0, row);
}

static void add_qps(struct top_rows *rows, const struct stats_process *process,
                    const struct stats_process *before)
{
    uint64_t at = 0;

    for (uint64_t i = 0; process->list && i < process->qps; i++) {
        const struct stats_qp *qp = &process->list[i], *then = earlier_qp(before, qp, &at);
        struct top_row *row = &rows->list[rows->count++];

        *row = (struct top_row){.process = process, .qp = qp};
        note_rates(&qp->flow, then ? &then->flow : NULL, &qp->sum, then ? &then->sum : NULL,
                   then ? (double)(process->read_ns - before->read_ns) / (double)NS_PER_S : 0, row);
    }
}

bool top_rows(const struct counted *now, const struct counted *before, bool qps, const uint8_t *instance,
              struct top_rows *ret)
{
    uint64_t room = 1;

    for (unsigned i = 0; i < now->count; i++)
        room += qps ? now->list[i].qps : 1;
    *ret = (struct top_rows){.list = calloc(room, sizeof(*ret->list))};
    if (!ret->list)
        return false;
    for (unsigned i = 0; i < now->count; i++) {
        const struct stats_process *process = &now->list[i], *then = earlier(before, process);

        if (instance && memcmp(instance, process->instance, sizeof(process->instance)) != 0)
            continue;
        if (qps)
            add_qps(ret, process, then);
        else
            add_process(ret, process, then);
    }
    return true;
}

void top_rows_free(struct top_rows *rows)
{
    free(rows->list);
    *rows = (struct top_rows){0};
}

/* --- columns --------------------------------------------------------------------------------------------- */

enum { OF_PROCESSES = 1, OF_QPS = 2, OF_BOTH = 3 };

static const struct {
    const char *title;
    int width;
    int of;
} columns[TOP_COLUMNS] = {
    [TOP_PID] = {"PID", 8, OF_BOTH},
    [TOP_PROGRAM] = {"PROGRAM", -15, OF_BOTH},
    [TOP_QPN] = {"QPN", -8, OF_QPS},
    [TOP_TYPE] = {"TYPE", -4, OF_QPS},
    [TOP_STATE] = {"STATE", -5, OF_QPS},
    [TOP_PATH] = {"PATH", -9, OF_BOTH},
    [TOP_PEER] = {"PEER", -17, OF_QPS},
    [TOP_QPS] = {"QPS", 5, OF_PROCESSES},
    [TOP_MESSAGES_OUT] = {"OUT/s", 6, OF_BOTH},
    [TOP_BYTES_OUT] = {"OUT B/s", 7, OF_BOTH},
    [TOP_MESSAGES_IN] = {"IN/s", 6, OF_BOTH},
    [TOP_BYTES_IN] = {"IN B/s", 7, OF_BOTH},
    [TOP_P50] = {"P50<", 6, OF_BOTH},
    [TOP_P99] = {"P99<", 6, OF_BOTH},
    [TOP_RETRIES] = {"RETR/s", 6, OF_BOTH},
    [TOP_RNR] = {"RNR/s", 6, OF_BOTH},
    [TOP_CQ] = {"CQ", 11, OF_BOTH},
    [TOP_EVENTS] = {"UNACK", 5, OF_BOTH},
    [TOP_SENDS] = {"SENDS", 11, OF_QPS},
    [TOP_RECEIVES] = {"RECVS", 11, OF_QPS},
    [TOP_DROPS] = {"DROPS", 6, OF_BOTH},
    [TOP_FAILED] = {"FAILED", 6, OF_BOTH},
    [TOP_REGISTERED] = {"REG", 6, OF_PROCESSES},
    [TOP_MAPPED] = {"MAPPED", 6, OF_PROCESSES},
    [TOP_UP] = {"UP", 6, OF_PROCESSES},
};

const char *top_title(enum top_column column)
{
    return columns[column].title;
}

int top_width(enum top_column column)
{
    return columns[column].width;
}

bool top_is_shown(enum top_column column, bool qps)
{
    return columns[column].of & (qps ? OF_QPS : OF_PROCESSES);
}

static const struct traffic_sum *sum_of(const struct top_row *row)
{
    return row->qp ? &row->qp->sum : &row->process->sum;
}

static uint64_t failed(const struct traffic_rare *traffic)
{
    uint64_t sum = 0;

    for (unsigned i = 1; i < TRAFFIC_STATUSES; i++)
        sum += traffic->failed[i];
    return sum;
}

static uint64_t unacked(const struct top_row *row)
{
    const struct stats_process *process = row->process;

    return row->qp ? row->qp->events.unacked
                   : process->completion.unacked + process->async.unacked + process->cm.unacked;
}

static double network(const struct top_row *row, size_t offset)
{
    return (double)row->process->network[offset / sizeof(uint64_t)];
}

static double drops_of(const struct top_row *row)
{
    double drops = (double)sum_of(row)->retries.drops;

    if (row->qp)
        return drops;
    return drops + network(row, offsetof(struct network_counters, bad_icrc)) +
           network(row, offsetof(struct network_counters, malformed)) +
           network(row, offsetof(struct network_counters, unknown_qpn));
}

/* By which a column is sorted; text columns by their text. */
static double number(const struct top_row *row, enum top_column column)
{
    const struct stats_process *process = row->process;

    switch (column) {
    case TOP_PID:
        return process->pid ? process->pid : process->own_pid;
    case TOP_QPN:
        return row->qp ? row->qp->qpn : 0;
    case TOP_QPS:
        return (double)process->qps;
    case TOP_MESSAGES_OUT:
        return row->rates.messages_out;
    case TOP_BYTES_OUT:
        return row->rates.bytes_out;
    case TOP_MESSAGES_IN:
        return row->rates.messages_in;
    case TOP_BYTES_IN:
        return row->rates.bytes_in;
    case TOP_P50:
        return (double)row->rates.p50_ns;
    case TOP_P99:
        return (double)row->rates.p99_ns;
    case TOP_RETRIES:
        return row->rates.retries;
    case TOP_RNR:
        return row->rates.rnr_received + row->rates.rnr_sent;
    case TOP_CQ:
        return row->qp ? row->qp->unpolled : (double)process->cq_unpolled;
    case TOP_EVENTS:
        return (double)unacked(row);
    case TOP_SENDS:
        return row->qp ? row->qp->sends : 0;
    case TOP_RECEIVES:
        return row->qp ? row->qp->receives : 0;
    case TOP_DROPS:
        return drops_of(row);
    case TOP_FAILED:
        return (double)failed(&sum_of(row)->rare);
    case TOP_REGISTERED:
        return (double)process->registered_bytes;
    case TOP_MAPPED:
        return (double)process->mapped_bytes;
    case TOP_UP:
        return -(double)process->start_ns;
    case TOP_PROGRAM:
    case TOP_TYPE:
    case TOP_STATE:
    case TOP_PATH:
    case TOP_PEER:
    case TOP_COLUMNS:
        break;
    }
    return 0;
}

static void pid_text(const struct stats_process *process, char *text, size_t size)
{
    /* "?": the number that it has in a PID namespace that is not ours. */
    if (process->pid)
        snprintf(text, size, "%d", (int)process->pid);
    else
        snprintf(text, size, "?%d", (int)process->own_pid);
}

static void peer_text(const struct stats_qp *qp, char *text, size_t size)
{
    if (!qp->dest_qpn)
        snprintf(text, size, "-");
    else if (qp->peer_pid)
        snprintf(text, size, "0x%06x %d", qp->dest_qpn, (int)qp->peer_pid);
    else
        snprintf(text, size, "0x%06x", qp->dest_qpn);
}

static bool fill(uint64_t used, uint64_t room, char *text, size_t size)
{
    char whole[16];

    top_scaled((double)room, false, whole, sizeof(whole));
    snprintf(text, size, "%llu/%s", (unsigned long long)used, whole);
    return room > 8 && used * 10 >= room * 9;
}

bool top_cell(const struct top_row *row, enum top_column column, char *text, size_t size)
{
    const struct stats_process *process = row->process;
    const struct stats_qp *qp = row->qp;
    double value = number(row, column);

    text[0] = '\0';
    switch (column) {
    case TOP_PID:
        pid_text(process, text, size);
        return false;
    case TOP_PROGRAM:
        snprintf(text, size, "%s", process->program);
        return false;
    case TOP_QPN:
        snprintf(text, size, "0x%06x", qp ? qp->qpn : 0);
        return false;
    case TOP_TYPE:
        snprintf(text, size, "%s", qp ? name_qp_type(qp->type) : "");
        return false;
    case TOP_STATE:
        snprintf(text, size, "%s", qp ? name_qp_state(qp->state) : "");
        return qp && (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_SQE);
    case TOP_PATH:
        if (qp)
            snprintf(text, size, "%s", name_path(qp->path));
        else
            top_path_of(process, text, size);
        return false;
    case TOP_PEER:
        if (qp)
            peer_text(qp, text, size);
        return false;
    case TOP_P50:
        top_duration(row->rates.p50_ns, text, size);
        return false;
    case TOP_P99:
        top_duration(row->rates.p99_ns, text, size);
        return false;
    case TOP_CQ:
        if (qp)
            return fill(qp->unpolled, qp->capacity, text, size);
        return fill(process->cq_unpolled, process->cq_capacity, text, size) || process->cq_lost;
    case TOP_SENDS:
        if (qp)
            fill(qp->sends, qp->send_depth, text, size);
        return false;
    case TOP_RECEIVES:
        if (qp)
            fill(qp->receives, qp->receive_depth, text, size);
        return qp && qp->receive_depth && !qp->receives;
    case TOP_UP:
        top_duration(process->read_ns - process->start_ns, text, size);
        return false;
    case TOP_BYTES_OUT:
    case TOP_BYTES_IN:
    case TOP_REGISTERED:
    case TOP_MAPPED:
        top_scaled(value, true, text, size);
        return false;
    case TOP_RETRIES:
    case TOP_RNR:
    case TOP_DROPS:
    case TOP_FAILED:
        top_scaled(value, false, text, size);
        return value > 0;
    case TOP_QPS:
    case TOP_MESSAGES_OUT:
    case TOP_MESSAGES_IN:
    case TOP_EVENTS:
        top_scaled(value, false, text, size);
        return false;
    case TOP_COLUMNS:
        break;
    }
    return false;
}

/* --- order ----------------------------------------------------------------------------------------------- */

static struct {
    enum top_column column;
    bool reversed;
} order;

static int compare(const void *a_, const void *b_)
{
    const struct top_row *a = a_, *b = b_;
    double x = number(a, order.column), y = number(b, order.column);
    char text_a[80], text_b[80];
    int result = (y > x) - (y < x);

    /* Numbers with the largest first, numbers that name something and texts in their order. */
    if (order.column == TOP_PID || order.column == TOP_QPN)
        result = -result;
    if (!result && top_width(order.column) < 0) {
        top_cell(a, order.column, text_a, sizeof(text_a));
        top_cell(b, order.column, text_b, sizeof(text_b));
        result = strcmp(text_a, text_b);
    }
    if (order.reversed)
        result = -result;
    if (!result)
        result = (number(a, TOP_PID) > number(b, TOP_PID)) - (number(a, TOP_PID) < number(b, TOP_PID));
    if (!result && a->qp && b->qp)
        result = (a->qp->slot > b->qp->slot) - (a->qp->slot < b->qp->slot);
    return result;
}

void top_sort(struct top_rows *rows, enum top_column column, bool reversed)
{
    order.column = column;
    order.reversed = reversed;
    if (rows->count)
        qsort(rows->list, rows->count, sizeof(*rows->list), compare);
}

static bool matches(const struct top_row *row, const char *text)
{
    static const enum top_column texts[] = {TOP_PID,   TOP_PROGRAM, TOP_QPN, TOP_TYPE,
                                            TOP_STATE, TOP_PATH,    TOP_PEER};
    char cell[80];

    for (size_t i = 0; i < array_size(texts); i++) {
        if (!top_is_shown(texts[i], row->qp != NULL))
            continue;
        top_cell(row, texts[i], cell, sizeof(cell));
        if (strcasestr(cell, text))
            return true;
    }
    return row->qp && row->qp->name[0] && strcasestr(row->qp->name, text);
}

void top_filter(struct top_rows *rows, const char *text)
{
    unsigned kept = 0;

    if (!text[0])
        return;
    for (unsigned i = 0; i < rows->count; i++) {
        if (matches(&rows->list[i], text))
            rows->list[kept++] = rows->list[i];
    }
    rows->count = kept;
}
