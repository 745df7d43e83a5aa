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

/* The record of a device, by its name: its position in the table of devices may become another one's. The last record
 * is that of all that find no other. Lock held. */
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

void port_retire_qp(const char *device, struct qp_record *qp, const struct qp_rare *rare)
{
    struct segment_header *header = segment_header();
    struct port_record *port;
    struct traffic_sum sum;
    uint32_t generation;

    lock_acquire(&lock);
    generation = atomic_load_explicit(&header->ports_generation, memory_order_relaxed);
    atomic_store_explicit(&header->ports_generation, generation + 1, memory_order_relaxed);
    /* Partner: sum_up() in stats/read.c, which reads the generation before and after. */
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&qp->qpn, 0, memory_order_relaxed);
    if (device) {
        port = find(device);
        qp_sum(qp, rare, &sum);
        port->qps++;
        traffic_sum_add(&port->sum, &sum);
    }
    atomic_store_explicit(&header->ports_generation, generation + 2, memory_order_release);
    lock_release(&lock);
}
