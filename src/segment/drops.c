/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "segment/drops.h"

#include <string.h>

#include "base/lock.h"
#include "base/sys.h"
#include "segment/segment.h"
#include "wire/packet.h"

static struct lock lock = LOCK_INIT; /* guards the records; a leaf */

void strays_after_fork_in_child(void)
{
    lock_init(&lock);
}

cold_path void stray_note(enum stray_reason reason, const struct packet *packet, bool local)
{
    struct drop_record *record;

    if (!segment_is_open())
        return;
    lock_acquire(&lock);
    record = &segment_header()->strays[reason];
    record->count++;
    record->seen = reason == STRAY_FRAME ? packet->payload_length : packet->dest_qpn;
    record->src_qpn = packet->src_qpn;
    record->local = local;
    memcpy(record->source, packet->grh.source, sizeof(record->source));
    memcpy(record->group, packet->grh.destination, sizeof(record->group));
    record->ns = sys_now();
    lock_release(&lock);
}
