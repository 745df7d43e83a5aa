/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the counters of a published segment say: for `softhca top`, `softhca stats`, and the counter files that programs
 * under `softhca run` open. docs/counters.md says what each counts.
 *
 * The segment is another process's, running, stopped or hostile: records are copied once, names are made printable, and
 * sums stop at their largest value. */
#ifndef STATS_STATS_H
#define STATS_STATS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "explain/names.h"
#include "explain/view.h"

#define STATS_DEVICE 64
#define STATS_PATHS  9 /* enum path_kind */
#define STATS_STATES 8 /* enum ibv_qp_state */
#define STATS_NET    NETWORK_COUNTERS

/* Of payload, by the way that it goes: a READ brings bytes in. */
struct stats_flow {
    uint64_t messages_out, bytes_out, messages_in, bytes_in;
};

struct stats_port {
    char device[STATS_DEVICE];
    uint64_t qps; /* that exist */
    struct traffic_sum sum;
};

/* Read and not acknowledged; raised and not read. */
struct stats_events {
    uint64_t unacked, unread;
};

struct stats_qp {
    uint32_t slot, qpn, dest_qpn, type, state, path;
    int32_t peer_pid; /* 0: not known */
    char device[STATS_DEVICE];
    char name[NAME_BYTES + 1];
    uint32_t sends, send_depth;       /* posted and not completed */
    uint32_t receives, receive_depth; /* posted and not taken; of the SRQ, if it has one */
    uint32_t send_cq, receive_cq;     /* numbers */
    uint32_t unpolled, capacity;      /* of the CQ that is fuller */
    struct stats_events events;       /* its own, and of its CQs */
    uint64_t created_ns;
    struct traffic_sum sum;
    struct stats_flow flow;
};

#define STATS_PORTS_MAX 64

struct stats_process {
    pid_t pid; /* 0: we do not see its number */
    int32_t own_pid;
    uint32_t uid;
    uint8_t instance[16];
    char program[64];
    bool watched;      /* another adapter's objects: nothing is counted */
    bool settled;      /* false: a QP that was destroyed meanwhile may be in the sums twice, or not at all */
    uint64_t start_ns; /* CLOCK_MONOTONIC, when its first device was opened */
    uint64_t read_ns;  /* CLOCK_MONOTONIC, when this was read */
    unsigned port_count;
    struct stats_port ports[STATS_PORTS_MAX];
    struct traffic_sum sum; /* of the ports */
    struct stats_flow flow;
    uint64_t network[STATS_NET];
    uint64_t qps, qps_by_state[STATS_STATES], qps_by_path[STATS_PATHS];
    uint64_t cqs, cq_capacity, cq_unpolled, cq_fullest, cq_lost;
    uint64_t mrs, registered_bytes, mapped_bytes;
    struct stats_events completion, async, cm;
    struct stats_qp *list; /* qps of them; NULL if they were not asked for */
};

/* 0; -ENOMEM. with_qps: ret->list too. */
int stats_read(const struct view *view, bool with_qps, struct stats_process *ret);
void stats_free(struct stats_process *process);

struct stats_flow stats_flow(const struct traffic_record *traffic);
/* Upper end, in nanoseconds, of the bucket in which a part of the latencies lies (500 of 1000: the median); 0: none was
 * measured. */
uint64_t stats_latency(const struct traffic_rare *traffic, unsigned of_1000);
uint64_t stats_latency_count(const struct traffic_rare *traffic);

/* names.c */
const char *stats_kind_name(enum traffic_kind kind); /* "send"; NULL: not shown */

/* port.c: the counters of a port by the names that drivers give them in sysfs. */
#define STATS_FILES_MAX 64
struct stats_file {
    const char *folder, *name; /* "counters", "hw_counters" */
};
unsigned stats_files(const struct stats_file **ret);
/* Values in the order of stats_files(). */
struct stats_values {
    uint64_t value[STATS_FILES_MAX];
};
void stats_port_values(const struct traffic_sum *sum, struct stats_values *ret);

/* ledger.c: sums over the processes that were seen, so that they do not fall when one ends. */
struct ledger_port {
    char device[STATS_DEVICE];
    struct stats_values values;
};
/* Brings the ledger in the file `name` of a directory up to date, and returns the sums of all ports, at most `room`, in
 * *ret_count. If it cannot be written, the sums are those of the processes that exist; -errno says so. space: what the
 * device names are of (a network namespace, since the machine was started); a ledger of another one begins anew. */
int ledger_update(int directory, const char *name, const char *space, const struct stats_process *processes,
                  unsigned count, struct ledger_port *ret_ports, unsigned room, unsigned *ret_count);

/* prometheus.c: the text format, version 0.0.4. */
struct out;
struct stats_text {
    char *text;
    size_t length, room;
    bool failed; /* no memory */
};
void stats_prometheus(struct stats_text *text, const struct stats_process *processes, unsigned count,
                      unsigned hidden);

#endif
