/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The reader's side of a capture ring (published/capture_ring.h). What the process writes is copied once and checked; a
 * process that writes nonsense spoils its own records only. */
#ifndef CAPTURE_RING_H
#define CAPTURE_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "published/capture_ring.h"

struct capture_ring {
    int file; /* -1: none */
    struct capture_header *header;
    uint8_t *bytes;
    uint32_t size;  /* of the ring */
    uint64_t tail;  /* up to here all is read */
    uint64_t limit; /* up to here the present look goes */
};

/* A new ring, whose pages are there, so that they count as memory of this process. 0 or -errno. */
int capture_ring_make(struct capture_ring *ring, uint32_t size, uint32_t snap, const uint32_t *qpns,
                      uint32_t qpn_count);
void capture_ring_free(struct capture_ring *ring);

/* A look takes what is reserved now. */
void capture_ring_look(struct capture_ring *ring);
enum capture_look {
    CAPTURE_NOTHING,  /* no further entry */
    CAPTURE_UNFILLED, /* the next entry is reserved, and not filled in yet */
    CAPTURE_ENTRY, /* *ret_record is a copy; *ret_payload has record.captured bytes until capture_ring_next() */
    CAPTURE_NONSENSE, /* no process of ours has written that: the ring cannot be read any further */
};
enum capture_look capture_ring_peek(struct capture_ring *ring, struct capture_record *ret_record,
                                    const uint8_t **ret_payload);
/* Gives the entry back that capture_ring_peek() has returned. */
void capture_ring_next(struct capture_ring *ring, const struct capture_record *record);

uint64_t capture_ring_dropped(const struct capture_ring *ring);

#endif
