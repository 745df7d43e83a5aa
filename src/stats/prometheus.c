/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The text format of Prometheus: each family once, with the samples of all processes. Labels pid and start name a
 * process: its counters end with it, and do not fall. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "base/types.h"
#include "explain/names.h"
#include "stats/stats.h"

static __attribute__((format(printf, 2, 3))) void add(struct stats_text *text, const char *format, ...)
{
    va_list arguments;
    int length;

    for (;;) {
        size_t left = text->room - text->length;
        char *larger;

        va_start(arguments, format);
        length = vsnprintf(text->text ? text->text + text->length : NULL, left, format, arguments);
        va_end(arguments);
        if (length >= 0 && (size_t)length < left) {
            text->length += (size_t)length;
            return;
        }
        larger =
            length < 0 || text->failed ? NULL : realloc(text->text, text->room * 2 + (size_t)length + 4096);
        if (!larger) {
            text->failed = true;
            return;
        }
        text->text = larger;
        text->room = text->room * 2 + (size_t)length + 4096;
    }
}

static void family(struct stats_text *text, const char *name, const char *type, const char *help)
{
    add(text, "# HELP softhca_%s %s\n# TYPE softhca_%s %s\n", name, help, name, type);
}

/* Names come from other processes: '"' and '\' would end the label. */
static void add_label(struct stats_text *text, const char *name, const char *value)
{
    add(text, ",%s=\"", name);
    for (; *value; value++)
        add(text, *value == '"' || *value == '\\' ? "\\%c" : "%c", *value);
    add(text, "\"");
}

/* Up to the labels of the sample itself. */
static void begin(struct stats_text *text, const char *name, const struct stats_process *process,
                  const struct stats_port *port)
{
    add(text, "softhca_%s{pid=\"%d\",start=\"%llu.%03u\"", name,
        (int)(process->pid ? process->pid : process->own_pid), process->start_ns / NS_PER_S,
        (unsigned)(process->start_ns / NS_PER_MS % 1000));
    add_label(text, "program", process->program);
    if (port) {
        add_label(text, "device", port->device);
        add(text, ",port=\"1\"");
    }
}

static void end(struct stats_text *text, uint64_t value)
{
    add(text, "} %" PRIu64 "\n", value);
}

/* --- of ports -------------------------------------------------------------------------------------------- */

struct crowd {
    struct stats_text *text;
    const struct stats_process *processes;
    unsigned count;
};

#define FOR_EACH_PORT(crowd, process, port)                                                                  \
    for (const struct stats_process *process = (crowd)->processes;                                           \
         process != (crowd)->processes + (crowd)->count; process++)                                          \
        for (const struct stats_port *port = process->ports; port != process->ports + process->port_count;   \
             port++)

static void requests(const struct crowd *crowd, const char *name, const char *help, bool bytes)
{
    static const char *const ways[] = {[TRAFFIC_BY_PACKETS] = "peer", [TRAFFIC_BY_REQUESTER] = "requester"};

    family(crowd->text, name, "counter", help);
    FOR_EACH_PORT(crowd, process, port)
    for (unsigned way = 0; way < TRAFFIC_WAYS; way++)
        for (unsigned kind = TRAFFIC_SEND; kind < TRAFFIC_KINDS; kind++) {
            const struct traffic_count *count = &port->sum.traffic.requested[way][kind];

            if ((way == TRAFFIC_BY_PACKETS ? kind == TRAFFIC_LOCAL
                                           : kind == TRAFFIC_SEND || kind == TRAFFIC_FLUSH) ||
                (bytes && kind >= TRAFFIC_FLUSH))
                continue;
            begin(crowd->text, name, process, port);
            add(crowd->text, ",opcode=\"%s\",executed_by=\"%s\"", stats_kind_name((enum traffic_kind)kind),
                ways[way]);
            end(crowd->text, bytes ? count->bytes : count->messages);
        }
}

static void executed(const struct crowd *crowd, const char *name, const char *help, bool bytes)
{
    family(crowd->text, name, "counter", help);
    FOR_EACH_PORT(crowd, process, port)
    for (unsigned kind = TRAFFIC_SEND; kind < (bytes ? TRAFFIC_FLUSH : TRAFFIC_LOCAL); kind++) {
        begin(crowd->text, name, process, port);
        add(crowd->text, ",opcode=\"%s\"", stats_kind_name((enum traffic_kind)kind));
        end(crowd->text,
            bytes ? port->sum.traffic.executed[kind].bytes : port->sum.traffic.executed[kind].messages);
    }
}

static void failures(const struct crowd *crowd)
{
    family(crowd->text, "failed_completions_total", "counter", "Completions with an error, by status");
    FOR_EACH_PORT(crowd, process, port)
    for (unsigned status = 1; status < TRAFFIC_STATUSES; status++) {
        if (!port->sum.rare.failed[status])
            continue;
        begin(crowd->text, "failed_completions_total", process, port);
        add_label(crowd->text, "status", name_status(status));
        end(crowd->text, port->sum.rare.failed[status]);
    }
}

static void latencies(const struct crowd *crowd)
{
    static const char name[] = "completion_latency_seconds";

    family(crowd->text, name, "histogram",
           "Time from post to completion, of the requests that were measured");
    FOR_EACH_PORT(crowd, process, port)
    {
        const struct traffic_rare *traffic = &port->sum.rare;
        uint64_t sum = 0;

        for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
            counter_add(&sum, traffic->latency[i]);
            begin(crowd->text, "completion_latency_seconds_bucket", process, port);
            if (i + 1 < LATENCY_BUCKETS)
                add(crowd->text, ",le=\"%.10g\"", (double)(1ull << (LATENCY_SHIFT + i)) / (double)NS_PER_S);
            else
                add(crowd->text, ",le=\"+Inf\"");
            end(crowd->text, sum);
        }
        begin(crowd->text, "completion_latency_seconds_sum", process, port);
        add(crowd->text, "} %.9f\n", (double)port->sum.traffic.latency_ns / (double)NS_PER_S);
        begin(crowd->text, "completion_latency_seconds_count", process, port);
        end(crowd->text, sum);
    }
}

#define RETRY(member) offsetof(struct traffic_sum, member)

static void retries(const struct crowd *crowd)
{
    static const struct {
        const char *name, *help;
        size_t at;
    } counters[] = {
        {"retransmissions_total",
         "Times that a requester went back to an earlier PSN and sent again (go-back-N)",
         RETRY(retries.retransmissions)},
        {"sequence_naks_received_total", "PSN sequence error NAKs received", RETRY(retries.sequence_naks)},
        {"rnr_naks_received_total",
         "RNR NAKs received (the peer had no receive posted, or was not ready otherwise)",
         RETRY(retries.rnr_naks)},
        {"rnr_naks_sent_total", "RNR NAKs sent, because no receive was posted", RETRY(traffic.rnr_naks_sent)},
        {"ack_timeouts_total", "Local ACK timeouts", RETRY(retries.timeouts)},
        {"probes_total", "Probes: packets sent again early, because their acknowledgement is missing",
         RETRY(retries.probes)},
        {"congestion_notifications_total", "CNPs received by QPs", RETRY(retries.congestions)},
        {"duplicate_requests_total", "Duplicate requests received", RETRY(retries.duplicates)},
        {"dropped_requests_total", "Requests and datagrams dropped by their QP", RETRY(retries.drops)},
        {"packets_sent_total",
         "Packets sent; between processes of one host each message counts as one packet",
         RETRY(packets_sent)},
        {"packets_received_total",
         "Packets received; between processes of one host each message counts as one packet",
         RETRY(packets_received)},
    };

    for (size_t i = 0; i < array_size(counters); i++) {
        family(crowd->text, counters[i].name, "counter", counters[i].help);
        FOR_EACH_PORT(crowd, process, port)
        {
            uint64_t value;

            memcpy(&value, (const char *)&port->sum + counters[i].at, sizeof(value));
            begin(crowd->text, counters[i].name, process, port);
            end(crowd->text, value);
        }
    }
}

/* --- of processes ---------------------------------------------------------------------------------------- */

#define GAUGE(member) offsetof(struct stats_process, member)

static void gauges(const struct crowd *crowd)
{
    static const struct {
        const char *name, *help;
        size_t at;
    } list[] = {
        {"cqs", "Completion queues", GAUGE(cqs)},
        {"cq_capacity", "Sum of the capacities (cqe) of all CQs", GAUGE(cq_capacity)},
        {"cq_unpolled", "Completions that were not polled yet", GAUGE(cq_unpolled)},
        {"cq_lost", "Completions that existing CQs lost because they were full", GAUGE(cq_lost)},
        {"mrs", "Memory regions", GAUGE(mrs)},
        {"memory_registered_bytes", "Sum of the lengths of the memory regions", GAUGE(registered_bytes)},
        {"memory_mapped_bytes", "Bytes of registered memory that processes of this host can map",
         GAUGE(mapped_bytes)},
        {"completion_events_unread", "Completion events raised and not read", GAUGE(completion.unread)},
        {"completion_events_unacked", "Completion events read and not acknowledged",
         GAUGE(completion.unacked)},
        {"async_events_unread", "Asynchronous events raised and not read", GAUGE(async.unread)},
        {"async_events_unacked", "Asynchronous events read and not acknowledged", GAUGE(async.unacked)},
        {"cm_events_unread", "RDMA CM events raised and not read", GAUGE(cm.unread)},
        {"cm_events_unacked", "RDMA CM events read and not acknowledged", GAUGE(cm.unacked)},
    };

    for (size_t i = 0; i < array_size(list); i++) {
        family(crowd->text, list[i].name, "gauge", list[i].help);
        for (unsigned j = 0; j < crowd->count; j++) {
            uint64_t value;

            memcpy(&value, (const char *)&crowd->processes[j] + list[i].at, sizeof(value));
            begin(crowd->text, list[i].name, &crowd->processes[j], NULL);
            end(crowd->text, value);
        }
    }
}

static void qps(const struct crowd *crowd)
{
    family(crowd->text, "qps", "gauge", "Queue pairs, by state");
    for (unsigned i = 0; i < crowd->count; i++)
        for (unsigned state = 0; state < STATS_STATES - 1; state++) {
            begin(crowd->text, "qps", &crowd->processes[i], NULL);
            add_label(crowd->text, "state", name_qp_state(state));
            end(crowd->text, crowd->processes[i].qps_by_state[state]);
        }
    family(crowd->text, "qps_by_path", "gauge", "Queue pairs, by the path of their packets");
    for (unsigned i = 0; i < crowd->count; i++)
        for (unsigned path = 0; path < STATS_PATHS; path++) {
            begin(crowd->text, "qps_by_path", &crowd->processes[i], NULL);
            add_label(crowd->text, "path", name_path(path));
            end(crowd->text, crowd->processes[i].qps_by_path[path]);
        }
}

static void network(const struct crowd *crowd)
{
    char name[64];

    for (unsigned which = 0; which < STATS_NET; which++) {
        snprintf(name, sizeof(name), "network_%s_total", network_names[which].name);
        family(crowd->text, name, "counter", network_names[which].help);
        for (unsigned i = 0; i < crowd->count; i++) {
            begin(crowd->text, name, &crowd->processes[i], NULL);
            end(crowd->text, crowd->processes[i].network[which]);
        }
    }
}

void stats_prometheus(struct stats_text *text, const struct stats_process *processes, unsigned count,
                      unsigned hidden)
{
    const struct crowd crowd = {text, processes, count};

    family(text, "processes", "gauge", "Processes that use SoftHCA, and whose state can be read");
    add(text, "softhca_processes %u\n", count);
    family(text, "processes_hidden", "gauge",
           "Processes that use SoftHCA, and whose state cannot be read (of another user, or not dumpable)");
    add(text, "softhca_processes_hidden %u\n", hidden);
    requests(&crowd, "requests_total",
             "Work requests begun. executed_by peer: sent as packets for the peer to execute; executed_by "
             "requester: executed by the requester, without packets (mapped memory, kernel copy)",
             false);
    requests(&crowd, "request_bytes_total", "Payload bytes of the work requests in softhca_requests_total",
             true);
    executed(&crowd, "executed_requests_total",
             "Requests that came from peers as packets and were executed here", false);
    executed(&crowd, "executed_request_bytes_total",
             "Payload bytes of the requests in softhca_executed_requests_total", true);
    failures(&crowd);
    latencies(&crowd);
    retries(&crowd);
    qps(&crowd);
    gauges(&crowd);
    network(&crowd);
}
