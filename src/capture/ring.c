/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "capture/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory_file.h"
#include "base/sys.h"

int capture_ring_make(struct capture_ring *ring, uint32_t size, uint32_t snap, const uint32_t *qpns,
                      uint32_t qpn_count)
{
    const size_t bytes = CAPTURE_DATA + (size_t)size;
    int error = 0;

    *ring = (struct capture_ring){.file = memory_file_make("softhca-capture", bytes), .size = size};
    if (ring->file < 0)
        return ring->file;
    ring->header =
        sys_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->file, 0, &error);
    if (error) {
        sys_close(ring->file);
        return error;
    }
    ring->bytes = (uint8_t *)ring->header + CAPTURE_DATA;
    ring->header->version = CAPTURE_VERSION;
    ring->header->ring_bytes = size;
    ring->header->snap = snap;
    ring->header->qpn_count = qpn_count;
    if (qpn_count)
        memcpy(ring->header->qpns, qpns, qpn_count * sizeof(*qpns));
    ring->header->magic = CAPTURE_MAGIC;
    return 0;
}

void capture_ring_free(struct capture_ring *ring)
{
    sys_munmap(ring->header, CAPTURE_DATA + (size_t)ring->size);
    sys_close(ring->file);
    ring->file = -1;
}

void capture_ring_look(struct capture_ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->header->head, memory_order_acquire);

    ring->limit = min_of(head, ring->tail + ring->size);
}

static struct capture_record *entry_at(const struct capture_ring *ring, uint32_t *ret_room)
{
    const uint32_t at = (uint32_t)(ring->tail & (ring->size - 1));

    *ret_room = ring->size - at;
    return (struct capture_record *)(void *)(ring->bytes + at);
}

/* Zeros first: the process finds an entry of state CAPTURE_RESERVED there. */
static void give_back(struct capture_ring *ring, uint32_t size)
{
    uint32_t room;

    memset(entry_at(ring, &room), 0, size);
    ring->tail += size;
    atomic_store_explicit(&ring->header->tail, ring->tail, memory_order_release); /* partner: reserve() */
}

enum capture_look capture_ring_peek(struct capture_ring *ring, struct capture_record *ret_record,
                                    const uint8_t **ret_payload)
{
    while ((int64_t)(ring->limit - ring->tail) > 0) {
        uint32_t room, size;
        struct capture_record *entry = entry_at(ring, &room);
        uint32_t state = atomic_load_explicit(&entry->state, memory_order_acquire);

        if (state == CAPTURE_RESERVED)
            return CAPTURE_UNFILLED;
        size = __atomic_load_n(&entry->size, __ATOMIC_RELAXED);
        if (!size || size % CAPTURE_ALIGNMENT || size > room || size > ring->limit - ring->tail)
            return CAPTURE_NONSENSE;
        if (state == CAPTURE_VOID) {
            give_back(ring, size);
            continue;
        }
        if (state != CAPTURE_PACKET || size < sizeof(*entry))
            return CAPTURE_NONSENSE;
        memcpy((void *)ret_record, entry, sizeof(*entry));
        ret_record->size = size;
        if (ret_record->captured > size - sizeof(*entry))
            return CAPTURE_NONSENSE;
        *ret_payload = (const uint8_t *)(entry + 1);
        return CAPTURE_ENTRY;
    }
    return CAPTURE_NOTHING;
}

void capture_ring_next(struct capture_ring *ring, const struct capture_record *record)
{
    give_back(ring, record->size);
}

uint64_t capture_ring_dropped(const struct capture_ring *ring)
{
    return atomic_load_explicit(&ring->header->dropped, memory_order_relaxed);
}
