/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The memory that the two processes of a link share: one memfd, sealed against change of size, LAYOUT_SIZE
 * bytes, zero at first. Pages that nobody touches are never allocated. Both processes run on one host: all
 * numbers are in its byte order.
 *
 *      0        control lines of the rings: ring r at r * sizeof(struct ring_control)
 *      4096     access slots of requests that a process executes in the other's memory (local.h): those of the
 *               connector, then those of the acceptor, LOCAL_ACCESS_SLOTS of a line each, and one line more
 *      65536    data of ring 0, RING_SIZE bytes
 *      65536 + r * RING_SIZE   data of ring r
 *
 * Ring r = 2 * lane + direction; direction 0 goes from the connector to the acceptor, direction 1 back. Each
 * ring has one writing and one reading process. Nothing here is a lock, an index into private memory or an
 * address: either process may write anything anywhere at any time, or die between two stores, and the other
 * only ever loses the link.
 *
 * A ring is a sequence of 64-byte granules. Positions count bytes from the beginning of time and never go
 * back; a position's place is its remainder by RING_SIZE. A record is contiguous and begins at a granule; the
 * end of the ring that is too short for a record is filled by a skip record. A record:
 *
 *      0        word: one 64-bit store that publishes it
 *                 bits 0..31   stamp of the record's position, see record_stamp(); never 0
 *                 bits 32..47  length of the record in granules
 *                 bits 48..55  opcode (BTH), or RECORD_SKIP
 *                 bits 56..63  flags (enum packet_flags)
 *      8        the rest of struct record_header
 *      40       extension by opcode: record_reth | record_atomic | record_atomic_ack | record_deth
 *      ...      record_xrc, in requests of XRC
 *      ...      references, if the flags say so
 *      ...      payload, from the next granule on if it is RECORD_ALIGN_FROM bytes or more
 *
 * The writer makes the first word of the granule behind a record zero before it publishes the record. So
 * where the reader waits for the next record there is zero until the one store comes, whatever payload lay
 * there in the lap before, and the reader polls no line but the record's own.
 */
#ifndef LOCAL_LAYOUT_H
#define LOCAL_LAYOUT_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/types.h"
#include "local/local.h"

#define GRANULE 64u
/* Copying through a ring of 64 KiB, two cores fetch each line from the other; a quarter more goes through 256
 * KiB. Rings that carry small records only are not worth the memory: they stay in their beginning
 * (ring_write()). */
#define RING_SIZE 262144u
#define RING_HOME 65536u

/* ring_control.reader_sleeps. Another value than 0 is a wish to be rung, by whoever does not know them all.
 */
enum reader_sleeps {
    READER_POLLS,
    READER_SLEEPS,
    READER_HEEDED, /* whether it sleeps is in its notification page (base/notify.h) */
};

/* One line per writer and purpose, so that polling one does not take away another. */
struct ring_control {
    _Atomic uint64_t consumed
        cache_aligned; /* reader: all before this position may be overwritten; published now and then */
    _Atomic uint32_t reader_sleeps
        cache_aligned; /* reader sets it: ring me. Whoever takes it back to 0 rings */
    _Atomic uint32_t writer_waits cache_aligned; /* writer sets it: ring me when `consumed` moves. Likewise */
    _Atomic uint32_t writer_heeds; /* writer sets it once: it has the reader's notification page */
    /* writer: moves on when memory that records refer to is the program's again. A record carries the lower
     * half of what it was when the record was written; whoever has fetched what the record refers to
     * compares, and takes it for void if they differ. Half is enough: a step ends a connection that had lent
     * something, and while the reader stands still before one record, the ring takes but 4096 more of those.
     */
    _Atomic uint32_t reference_epoch cache_aligned;
};
static_assert(sizeof(struct ring_control) == 4 * CACHE_LINE, "control lines are part of the format");

#define LAYOUT_RINGS        (2 * LOCAL_LANES)
#define LAYOUT_CONTROL      65536u /* a whole page wherever pages have up to 64 KiB */
#define LAYOUT_SIZE         (LAYOUT_CONTROL + LAYOUT_RINGS * RING_SIZE)
#define LAYOUT_ACCESS_SLOTS 4096u
static_assert(LAYOUT_RINGS * sizeof(struct ring_control) <= LAYOUT_ACCESS_SLOTS,
              "all control lines in one small page");
static_assert(LAYOUT_ACCESS_SLOTS + 2 * (LOCAL_ACCESS_SLOTS + 1) * CACHE_LINE <= LAYOUT_CONTROL, "");

struct record_header {
    _Atomic uint64_t word;
    uint32_t dest_qpn;     /* 24 bits; above: number of references */
    uint32_t src_qpn;      /* 24 bits; above: AETH syndrome */
    uint32_t psn, ack_psn; /* 24 bits */
    uint32_t dest_ifindex;
    uint32_t payload_length;
    uint16_t pkey, reference_epoch;
    uint32_t
        argument; /* imm_data, IETH's rkey, AETH's MSN, AtomicETH's rkey or FETH: no opcode has two of them */
};
static_assert(sizeof(struct record_header) == 40, "with a RETH and 8 bytes of payload it fills one granule");

struct record_reth {
    uint64_t address;
    uint32_t rkey, dma_length;
};
struct record_atomic {
    uint64_t address, swap_add, compare;
};
struct record_atomic_ack {
    uint64_t original;
};
struct record_xrc {
    uint32_t srqn, reserved;
};
struct record_deth {
    uint32_t qkey, flow_label;
    uint8_t source[16], destination[16];
    uint8_t traffic_class, hop_limit, service_level, reserved[5];
};
static_assert(sizeof(struct record_header) + sizeof(struct record_reth) + 8 == GRANULE, "");
static_assert(sizeof(struct record_header) + sizeof(struct record_atomic) == GRANULE, "");
static_assert(sizeof(struct record_deth) == 48, "");
static_assert(sizeof(struct packet_reference) == 16, "");

#define RECORD_SKIP                                                                                          \
    0xffu /* no BTH opcode: bits 7..5 would be a service that IBA reserves for manufacturers */
#define RECORD_ALIGN_FROM 512u
#define RECORD_MAX_HEADER                                                                                    \
    (sizeof(struct record_header) + sizeof(struct record_deth) +                                             \
     PACKET_REFERENCES * sizeof(struct packet_reference))
#define RECORD_MAX ((RECORD_MAX_HEADER + LOCAL_MTU + 2 * GRANULE) / GRANULE * GRANULE)
/* Room in which any record can be written: itself, the end of the ring that it may have to skip, and the next
 * word. */
#define RING_ROOM_FOR_ANY (2 * RECORD_MAX + GRANULE)
static_assert(RING_ROOM_FOR_ANY <= RING_SIZE / 2,
              "a full ring must not be the normal state of large messages");

/* Odd, so never zero; distinct within 2^31 granules, where only a broken writer could confuse two laps. */
static inline uint32_t record_stamp(uint64_t position)
{
    return (uint32_t)(position / GRANULE) << 1 | 1;
}

static inline uint64_t record_word(uint64_t position, uint32_t granules, uint8_t opcode, uint8_t flags)
{
    return record_stamp(position) | (uint64_t)granules << 32 | (uint64_t)opcode << 48 | (uint64_t)flags << 56;
}

#endif
