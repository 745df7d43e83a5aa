/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca top: the command, its terminal, and its JSON. */
#include "top.h"

#include <argp.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/sys.h"
#include "base/types.h"
#include "commands.h"
#include "explain/names.h"
#include "place.h"

/* --- JSON ------------------------------------------------------------------------------------------------ */

static void add_counts(struct out *out, const char *key, const struct traffic_count *counts)
{
    out_begin(out, key);
    for (unsigned kind = TRAFFIC_SEND; kind < TRAFFIC_KINDS; kind++) {
        if (!counts[kind].messages)
            continue;
        out_begin(out, stats_kind_name((enum traffic_kind)kind));
        out_number(out, "messages", counts[kind].messages);
        out_number(out, "bytes", counts[kind].bytes);
        out_end(out);
    }
    out_end(out);
}

static void add_latency(struct out *out, const struct traffic_sum *sum)
{
    const struct traffic_rare *traffic = &sum->rare;

    out_begin(out, "latency");
    out_number(out, "measured", stats_latency_count(traffic));
    out_number(out, "sum_ns", sum->traffic.latency_ns);
    out_number(out, "p50_below_ns", stats_latency(traffic, 500));
    out_number(out, "p99_below_ns", stats_latency(traffic, 990));
    out_begin_array(out, "buckets");
    for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
        if (!traffic->latency[i])
            continue;
        out_begin(out, NULL);
        if (i + 1 < LATENCY_BUCKETS)
            out_number(out, "below_ns", 1ull << (LATENCY_SHIFT + i));
        out_number(out, "count", traffic->latency[i]);
        out_end(out);
    }
    out_end_array(out);
    out_end(out);
}

static void add_sum(struct out *out, const struct traffic_sum *sum)
{
    const struct traffic_record *traffic = &sum->traffic;

    add_counts(out, "requests_executed_by_peer", traffic->requested[TRAFFIC_BY_PACKETS]);
    add_counts(out, "requests_executed_by_requester", traffic->requested[TRAFFIC_BY_REQUESTER]);
    add_counts(out, "executed_requests", traffic->executed);
    add_latency(out, sum);
    out_number(out, "packets_sent", sum->packets_sent);
    out_number(out, "packets_received", sum->packets_received);
    out_number(out, "retransmissions", sum->retries.retransmissions);
    out_number(out, "sequence_naks_received", sum->retries.sequence_naks);
    out_number(out, "rnr_naks_received", sum->retries.rnr_naks);
    out_number(out, "rnr_naks_sent", traffic->rnr_naks_sent);
    out_number(out, "ack_timeouts", sum->retries.timeouts);
    out_number(out, "probes", sum->retries.probes);
    out_number(out, "congestion_notifications", sum->retries.congestions);
    out_number(out, "duplicate_requests", sum->retries.duplicates);
    out_number(out, "dropped_requests", sum->retries.drops);
    out_begin(out, "failed_completions");
    for (unsigned i = 1; i < TRAFFIC_STATUSES; i++) {
        if (sum->rare.failed[i])
            out_number(out, name_status(i), sum->rare.failed[i]);
    }
    out_end(out);
}

static void add_flow(struct out *out, const struct stats_flow *flow)
{
    out_number(out, "messages_out", flow->messages_out);
    out_number(out, "bytes_out", flow->bytes_out);
    out_number(out, "messages_in", flow->messages_in);
    out_number(out, "bytes_in", flow->bytes_in);
}

/* Whole numbers: JSON of this project has no others. */
static void add_rates(struct out *out, const struct top_row *row)
{
    if (!row || !row->known)
        return;
    out_begin(out, "per_second");
    out_number(out, "messages_out", (uint64_t)row->rates.messages_out);
    out_number(out, "bytes_out", (uint64_t)row->rates.bytes_out);
    out_number(out, "messages_in", (uint64_t)row->rates.messages_in);
    out_number(out, "bytes_in", (uint64_t)row->rates.bytes_in);
    out_number(out, "retransmissions", (uint64_t)row->rates.retries);
    out_number(out, "rnr_naks_received", (uint64_t)row->rates.rnr_received);
    out_number(out, "rnr_naks_sent", (uint64_t)row->rates.rnr_sent);
    out_number(out, "dropped_requests", (uint64_t)row->rates.drops);
    out_end(out);
}

static void add_events(struct out *out, const char *key, const struct stats_events *events)
{
    out_begin(out, key);
    out_number(out, "unread", events->unread);
    out_number(out, "unacked", events->unacked);
    out_end(out);
}

static void add_qp(struct out *out, const struct stats_qp *qp, const struct top_row *row)
{
    out_begin(out, NULL);
    out_number(out, "qpn", qp->qpn);
    out_string(out, "type", name_qp_type(qp->type));
    out_string(out, "state", name_qp_state(qp->state));
    out_string(out, "path", name_path(qp->path));
    out_string(out, "device", qp->device);
    if (qp->name[0])
        out_string(out, "name", qp->name);
    if (qp->dest_qpn)
        out_number(out, "dest_qpn", qp->dest_qpn);
    if (qp->peer_pid)
        out_signed(out, "peer_pid", qp->peer_pid);
    add_flow(out, &qp->flow);
    add_rates(out, row);
    out_number(out, "outstanding_sends", qp->sends);
    out_number(out, "outstanding_receives", qp->receives);
    out_number(out, "cq_unpolled", qp->unpolled);
    out_number(out, "cq_capacity", qp->capacity);
    add_events(out, "events", &qp->events);
    add_sum(out, &qp->sum);
    out_end(out);
}

static void add_ports(struct out *out, const struct stats_process *process)
{
    out_begin_array(out, "ports");
    for (unsigned i = 0; i < process->port_count; i++) {
        out_begin(out, NULL);
        out_string(out, "device", process->ports[i].device);
        out_number(out, "port", 1);
        out_number(out, "qps", process->ports[i].qps);
        add_sum(out, &process->ports[i].sum);
        out_end(out);
    }
    out_end_array(out);
}

static void add_process(struct out *out, const struct stats_process *process, const struct top_row *row,
                        const struct top_row *qps)
{
    out_begin(out, NULL);
    out_signed(out, "pid", process->pid ? process->pid : process->own_pid);
    out_bool(out, "pid_visible", process->pid != 0);
    out_number(out, "uid", process->uid);
    out_string(out, "program", process->program);
    out_number(out, "start_ms", process->start_ns / NS_PER_MS); /* since the machine was started */
    out_number(out, "up_ms", (process->read_ns - process->start_ns) / NS_PER_MS);
    out_bool(out, "watched", process->watched);
    out_bool(out, "settled", process->settled);
    add_flow(out, &process->flow);
    add_rates(out, row);
    out_number(out, "cqs", process->cqs);
    out_number(out, "cq_unpolled", process->cq_unpolled);
    out_number(out, "cq_capacity", process->cq_capacity);
    out_number(out, "cq_lost", process->cq_lost);
    out_number(out, "mrs", process->mrs);
    out_number(out, "registered_bytes", process->registered_bytes);
    out_number(out, "mapped_bytes", process->mapped_bytes);
    add_events(out, "completion_events", &process->completion);
    add_events(out, "async_events", &process->async);
    add_events(out, "cm_events", &process->cm);
    out_begin(out, "network");
    for (unsigned i = 0; i < STATS_NET; i++)
        out_number(out, network_names[i].name, process->network[i]);
    out_end(out);
    add_ports(out, process);
    out_begin_array(out, "qps");
    for (uint64_t i = 0; process->list && i < process->qps; i++)
        add_qp(out, &process->list[i], qps ? &qps[i] : NULL);
    out_end_array(out);
    out_end(out);
}

void top_json_rates(struct out *out, const struct counted *now, const struct counted *before)
{
    struct top_rows processes = {0}, qps = {0};
    const struct top_row *qp;

    /* Rows are in the order of the lists as long as nobody sorts them. */
    if (before &&
        (!top_rows(now, before, false, NULL, &processes) || !top_rows(now, before, true, NULL, &qps)))
        before = NULL;
    qp = qps.list;
    out_begin(out, NULL);
    out_number(out, "hidden", now->hidden);
    out_begin_array(out, "processes");
    for (unsigned i = 0; i < now->count; i++) {
        add_process(out, &now->list[i], before ? &processes.list[i] : NULL, before ? qp : NULL);
        qp += before && now->list[i].list ? now->list[i].qps : 0;
    }
    out_end_array(out);
    out_end(out);
    out_newline(out);
    top_rows_free(&processes);
    top_rows_free(&qps);
}

void top_json(struct out *out, const struct counted *now)
{
    top_json_rates(out, now, NULL);
}

/* --- the command ----------------------------------------------------------------------------------------- */

struct options {
    bool once, json;
    int delay_ms;
};

enum { OPTION_JSON = 256, OPTION_ONCE };

static const struct argp_option option_table[] = {
    {"delay", 'd', "SECONDS", 0, "Time between two readings (default 1; at least 0.1)", 0},
    {"once", OPTION_ONCE, NULL, 0, "Read twice, print the table to stdout, and end", 0},
    {"json", OPTION_JSON, NULL, 0, "With --once: one JSON object, with all counters and rates", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    char *end;
    double seconds;

    switch (key) {
    case 'd':
        seconds = strtod(argument, &end);
        if (end == argument || *end || !(seconds >= 0.1 && seconds <= 3600))
            argp_error(state, "'%s' is not a time from 0.1 to 3600 seconds", argument);
        options->delay_ms = (int)(seconds * 1000);
        return 0;
    case OPTION_ONCE:
        options->once = true;
        return 0;
    case OPTION_JSON:
        options->json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_usage(state);
        return 0;
    case ARGP_KEY_END:
        if (options->json && !options->once)
            argp_error(state, "--json needs --once");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_table(const struct counted *now, const struct counted *before)
{
    struct top_rows rows;

    if (!top_rows(now, before, false, NULL, &rows))
        return;
    top_sort(&rows, TOP_BYTES_OUT, false);
    for (unsigned line = 0; line <= rows.count; line++) {
        for (unsigned i = 0; i < TOP_COLUMNS; i++) {
            enum top_column column = (enum top_column)i;
            char text[80];
            int width = abs(top_width(column));

            if (!top_is_shown(column, false))
                continue;
            if (line)
                top_cell(&rows.list[line - 1], column, text, sizeof(text));
            else
                snprintf(text, sizeof(text), "%s", top_title(column));
            printf(top_width(column) < 0 ? "%-*.*s " : "%*.*s ", width, width, text);
        }
        putchar('\n');
    }
    top_rows_free(&rows);
}

static int once(const struct options *options)
{
    struct timespec delay = {options->delay_ms / 1000, options->delay_ms % 1000 * 1000000};
    struct counted now, before;
    struct out out;
    int status = 1;

    if (counted_read(true, false, true, &before)) {
        fprintf(stderr, "softhca: out of memory\n");
        return 1;
    }
    while (nanosleep(&delay, &delay) && errno == EINTR) {
    }
    if (counted_read(true, false, true, &now) == 0) {
        out_init(&out, true, SIZE_MAX);
        if (options->json) {
            top_json_rates(&out, &now, &before);
            if (out.text)
                fputs(out.text, stdout);
        } else {
            print_table(&now, &before);
        }
        status = out.cut || fflush(stdout) ? 1 : 0;
        out_fini(&out);
        counted_free(&now);
    }
    counted_free(&before);
    return status;
}

static const struct screen *load_screen(void)
{
    const struct screen *screen;
    char path[PATH_MAX + 32];
    struct place place;
    static void *module; /* stays loaded */

    if (place_find(&place))
        return NULL;
    snprintf(path, sizeof(path), "%s/libsofthca-screen.so", place.directory);
    if (access(path, R_OK)) {
        fprintf(stderr,
                "softhca: this build of softhca top has no terminal interface: %s is missing. Install "
                "ncurses' headers "
                "(Debian: "
                "libncurses-dev, Fedora: ncurses-devel) and build again; softhca top --once works without\n",
                path);
        return NULL;
    }
    module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    screen = module ? dlsym(module, SCREEN_SYMBOL) : NULL;
    if (!screen || screen->interface != SCREEN_INTERFACE) {
        fprintf(stderr,
                "softhca: cannot load the terminal interface of softhca top: %s. Install ncurses (Debian: "
                "libncursesw6, Fedora: "
                "ncurses-libs); softhca top --once works without\n",
                screen ? "it is of another release of SoftHCA" : dlerror());
        return NULL;
    }
    return screen;
}

int command_top(int argc, char **argv)
{
    static const struct argp argp = {
        .options = option_table,
        .parser = parse,
        .doc = "Shows the processes of this host that use SoftHCA and their QPs, live: messages and bytes "
               "per second, "
               "latencies, retries, queues, events, memory. Key h lists the keys. The processes are not "
               "stopped or "
               "disturbed.",
    };
    struct options options = {.delay_ms = 1000};
    const struct screen *screen;
    const char *terminal = getenv("TERM");
    int status;

    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, &options);
    if (options.once)
        return once(&options);
    screen = load_screen();
    if (!screen)
        return 1;
    if (screen->begin()) {
        fprintf(stderr, "softhca: softhca top needs a terminal%s%s; softhca top --once does not\n",
                terminal ? ", and TERM is unknown: " : "", terminal ? terminal : "");
        return 1;
    }
    status = top_view(screen, options.delay_ms);
    screen->end();
    return status;
}
