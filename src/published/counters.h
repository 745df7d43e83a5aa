/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Counters in the published segment: part of its format (SEGMENT_VERSION in segment/segment.h). docs/counters.md says
 * what each counts, and for whom. */
#ifndef PUBLISHED_COUNTERS_H
#define PUBLISHED_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

/* Of a process's network path. src/udp increments them from any thread, relaxed. */
struct network_counters {
    _Atomic uint64_t packets_sent, packets_received, bytes_sent, bytes_received;
    _Atomic uint64_t bad_icrc, malformed; /* received and dropped */
    _Atomic uint64_t unknown_qpn;         /* received for an unknown QPN and dropped */
    _Atomic uint64_t forwarded,
        forwarded_to_us;        /* forwarded to, and forwarded by, other processes of this host */
    _Atomic uint64_t not_sent;  /* the kernel refused to send: no route, larger than the path MTU ... */
    _Atomic uint64_t congested; /* received with ECN's congestion experienced mark */
    _Atomic uint64_t cnps_received, cnps_sent; /* congestion notification packets (CNP) received, sent */
};

/* What a request is counted as. New values go to the end, before TRAFFIC_KINDS. */
enum traffic_kind {
    TRAFFIC_UNKNOWN,
    TRAFFIC_SEND,
    TRAFFIC_WRITE,
    TRAFFIC_READ,
    TRAFFIC_ATOMIC,
    TRAFFIC_ATOMIC_WRITE,
    TRAFFIC_FLUSH,
    TRAFFIC_LOCAL, /* LOCAL_INV, BIND_MW */
    TRAFFIC_KINDS,
};

/* How a request is executed. */
enum traffic_way {
    TRAFFIC_BY_PACKETS,
    TRAFFIC_BY_REQUESTER, /* in the peer's memory, without packets (docs/mapped.md) */
    TRAFFIC_WAYS,
};

struct traffic_count {
    uint64_t messages, bytes; /* bytes of payload */
};

/* Bucket i counts latencies below 2^(LATENCY_SHIFT + i) ns that no bucket before it counts, the last one all others. */
#define LATENCY_BUCKETS 32u
#define LATENCY_SHIFT   7u

/* enum ibv_wc_status has fewer values. */
#define TRAFFIC_STATUSES 32u

/* Of one QP, or of those of a device that were destroyed. Only grows, also by RESET. Plain integers: there is one
 * writer, who holds the QP's lock, and a reader that copies one of them sees a value that it had. */
struct traffic_record {
    struct traffic_count requested[TRAFFIC_WAYS][TRAFFIC_KINDS]; /* begun; none is counted twice */
    struct traffic_count executed[TRAFFIC_KINDS];                /* the peer's, by packets */
    /* On the network, also acknowledgements and what is sent again. On one host a message is no packet. */
    uint64_t packets_sent, packets_received;
    uint64_t latency_ns; /* sum of the latencies that the buckets count */
    uint64_t rnr_naks_sent;
};

/* The part of it that few QPs need (struct qp_rare in transport/qp.h). */
struct traffic_rare {
    uint64_t latency[LATENCY_BUCKETS]; /* from post to completion, of some requests (object/qp/traffic.c) */
    uint32_t failed[TRAFFIC_STATUSES]; /* completions, of sends and receives, by enum ibv_wc_status */
};

/* The store is atomic so that the compiler does not join both into one addition of vectors, which takes longer. */
static inline void traffic_add(struct traffic_count *count, uint32_t bytes)
{
    __atomic_store_n(&count->messages, count->messages + 1, __ATOMIC_RELAXED);
    count->bytes += bytes;
}

/* Statistics of struct sender and struct responder (transport/qp.h), of destroyed QPs. */
struct retry_record {
    uint64_t retransmissions, sequence_naks, rnr_naks, timeouts, probes, congestions;
    uint64_t duplicates, drops;
};

/* Of one QP (qp_sum() in transport/qp.h), or of several. */
struct traffic_sum {
    uint64_t packets_sent, packets_received; /* a message that met no network is one */
    struct traffic_record traffic;
    struct traffic_rare rare;
    struct retry_record retries;
};

/* QPs of one device that this process has destroyed, so that sums over a port do not fall. */
struct port_record {
    char device[64]; /* its name; "": not used */
    uint64_t qps;    /* destroyed */
    struct traffic_sum sum;
};

/* Saturates: what another process publishes may be any value. */
static inline void counter_add(uint64_t *sum, uint64_t value)
{
    if (__builtin_add_overflow(*sum, value, sum))
        *sum = UINT64_MAX;
}

static inline void traffic_counts_add(struct traffic_count *to, const struct traffic_count *from,
                                      unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        counter_add(&to[i].messages, from[i].messages);
        counter_add(&to[i].bytes, from[i].bytes);
    }
}

static inline void traffic_sum_add(struct traffic_sum *sum, const struct traffic_sum *from)
{
    struct traffic_record *traffic = &sum->traffic;
    struct retry_record *retries = &sum->retries;

    counter_add(&sum->packets_sent, from->packets_sent);
    counter_add(&sum->packets_received, from->packets_received);
    traffic_counts_add(traffic->requested[0], from->traffic.requested[0],
                       (unsigned)TRAFFIC_WAYS * TRAFFIC_KINDS);
    traffic_counts_add(traffic->executed, from->traffic.executed, TRAFFIC_KINDS);
    counter_add(&traffic->packets_sent, from->traffic.packets_sent);
    counter_add(&traffic->packets_received, from->traffic.packets_received);
    counter_add(&traffic->latency_ns, from->traffic.latency_ns);
    for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
        counter_add(&sum->rare.latency[i], from->rare.latency[i]);
    for (unsigned i = 0; i < TRAFFIC_STATUSES; i++)
        sum->rare.failed[i] += from->rare.failed[i];
    counter_add(&traffic->rnr_naks_sent, from->traffic.rnr_naks_sent);
    counter_add(&retries->retransmissions, from->retries.retransmissions);
    counter_add(&retries->sequence_naks, from->retries.sequence_naks);
    counter_add(&retries->rnr_naks, from->retries.rnr_naks);
    counter_add(&retries->timeouts, from->retries.timeouts);
    counter_add(&retries->probes, from->retries.probes);
    counter_add(&retries->congestions, from->retries.congestions);
    counter_add(&retries->duplicates, from->retries.duplicates);
    counter_add(&retries->drops, from->retries.drops);
}

#endif
