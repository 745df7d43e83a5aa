/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "segment/port.h"

#include <stdio.h>
#include <string.h>

#include "base/lock.h"
#include "segment/segment.h"

static struct lock lock = LOCK_INIT; /* guards the records and header.ports_generation; a leaf */

void port_after_fork_in_child(void)
{
    lock_init(&lock);
}

/* The record of a device, by its name: its position in the table of devices may become another one's. The last record is
 * that of all that find no other. Lock held. */
static struct port_record *find(const char *device)
{
    struct port_record *record = NULL;

    for (uint32_t i = 0; i < SEGMENT_PORTS; i++) {
        record = segment_port(i);
        if (!record->device[0])
            snprintf(record->device, sizeof(record->device), "%s", device);
        if (strncmp(record->device, device, sizeof(record->device) - 1) == 0)
            break;
    }
    return record;
}

static void add_counts(struct traffic_count *to, const struct traffic_count *from, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        to[i].messages += from[i].messages;
        to[i].bytes += from[i].bytes;
    }
}

static void add_traffic(struct traffic_record *to, const struct traffic_record *from)
{
    add_counts(to->requested[0], from->requested[0], TRAFFIC_WAYS * TRAFFIC_KINDS);
    add_counts(to->executed, from->executed, TRAFFIC_KINDS);
    to->packets_sent += from->packets_sent;
    to->packets_received += from->packets_received;
    to->latency_ns += from->latency_ns;
    for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
        to->latency[i] += from->latency[i];
    for (unsigned i = 0; i < TRAFFIC_STATUSES; i++)
        to->failed[i] += from->failed[i];
    to->rnr_naks_sent += from->rnr_naks_sent;
}

static void add_retries(struct retry_record *to, const struct sender *sender,
                        const struct responder *responder)
{
    to->retransmissions += sender->retransmissions;
    to->sequence_naks += sender->sequence_naks;
    to->rnr_naks += sender->rnr_naks;
    to->timeouts += sender->expirations;
    to->probes += sender->probes_sent;
    to->congestions += sender->congestions;
    to->duplicates += responder->duplicates;
    to->drops += responder->drops;
}

void port_retire_qp(const char *device, struct qp_record *qp)
{
    struct segment_header *header = segment_header();
    struct port_record *port;
    uint64_t sent, received;
    uint32_t generation;

    lock_acquire(&lock);
    generation = atomic_load_explicit(&header->ports_generation, memory_order_relaxed);
    atomic_store_explicit(&header->ports_generation, generation + 1, memory_order_relaxed);
    /* Partner: sum_up() in stats/read.c, which reads the generation before and after. */
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&qp->qpn, 0, memory_order_relaxed);
    if (device) {
        port = find(device);
        qp_packets(qp, &sent, &received);
        port->qps++;
        port->packets_sent += sent;
        port->packets_received += received;
        add_traffic(&port->traffic, &qp->traffic);
        add_retries(&port->retries, &qp->sender, &qp->responder);
    }
    atomic_store_explicit(&header->ports_generation, generation + 2, memory_order_release);
    lock_release(&lock);
}
