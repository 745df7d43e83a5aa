/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Format of the memory that the two processes of a link share: one memfd of LAYOUT_SIZE bytes, sealed against changes
 * of its size, zero at first. Pages that neither process touches are never allocated. All numbers are in the byte order
 * of the host.
 *
 *      0        control lines of the rings: ring r at r * sizeof(struct ring_control)
 *      4096     access slots and admission flag of the connector, then those of the acceptor: each
 *               LOCAL_ACCESS_SLOTS + 1 cache lines each (link_access_slot(), engine/direct/access_slot.h)
 *      65536    data of ring 0, RING_SIZE bytes
 *      65536 + r * RING_SIZE   data of ring r
 *
 * Ring r = 2 * lane + direction. The connector writes rings of direction 0 and reads those of direction 1, the acceptor
 * the other way round. No word here is a lock, an index into private memory or an address: either process may write
 * anything anywhere at any time, or die between two stores, and the other process only loses the link.
 *
 * A ring is a sequence of 64-byte granules. A position counts bytes since the ring was created and never decreases; its
 * place in the ring is the remainder by RING_SIZE. A record is contiguous and begins at a granule. If the end of the
 * ring is too short for a record, a skip record fills it. A record:
 *
 *      0        word: one 64-bit store publishes the record
 *                 bits 0..31   stamp of the record's position, see record_stamp(); never 0
 *                 bits 32..47  length of the record in granules
 *                 bits 48..55  opcode (BTH), or RECORD_SKIP
 *                 bits 56..63  flags (enum packet_flags)
 *      8        the rest of struct record_header
 *      40       extension by opcode: record_reth | record_atomic | record_atomic_ack | record_deth
 *      ...      record_xrc, in requests of XRC
 *      ...      struct packet_reference[], with flag PACKET_BY_REFERENCE
 *      ...      payload; at the next granule if it has RECORD_ALIGN_FROM bytes or more
 *
 * Before the writer publishes a record, it zeroes the first word of the granule behind the record. So the word at which
 * the reader waits is zero until the next record is published, whatever the last lap left there, and the reader polls
 * only that line.
 */
#ifndef LOCAL_LAYOUT_H
#define LOCAL_LAYOUT_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/types.h"
#include "local/local.h"

#define GRANULE 64u
/* With 64 KiB, each core fetches every line from the other core's cache; a quarter more bytes per second go through
 * 256 KiB. A ring of small records stays in its first RING_SMALL bytes and touches no more memory (ring_write()). */
#define RING_SIZE  262144u
#define RING_SMALL 65536u

/* Values of ring_control.reader_sleeps. A writer that does not know a value treats it as
 * READER_SLEEPS. */
enum reader_sleeps {
    READER_POLLS,
    READER_SLEEPS, /* the writer rings the doorbell */
    READER_ATTENTION, /* the attention word in the reader's notification page says whether to ring (base/notify.h) */
    /* The reader does not look at the ring: the writer that resets the word marks the ring in that page, then it does
     * as with READER_ATTENTION. So who sleeps with many rings looks at few of them when it wakes. */
    READER_LISTED,
};

/* Words of different writers or purposes are in different lines, so that polling one does not delay another. */
struct ring_control {
    /* Written by the reader: the writer may overwrite all bytes before this position. Updated in steps. Released by
     * ring_publish_position(), acquired by ring_refresh_consumed(). */
    _Atomic uint64_t consumed cache_aligned;
    /* enum reader_sleeps. Set by the reader before it stops polling (ring_arm_reader()); the writer that resets it to
     * 0 rings (lane_ring()). A full fence on both sides. */
    _Atomic uint32_t reader_sleeps cache_aligned;
    /* Written by the reader before READER_LISTED: the bit in notify_page.marks. */
    _Atomic uint32_t listed_as;
    /* Set by the writer when the ring is full and it sleeps (ring_arm_writer()); the reader that resets it to 0 after
     * moving `consumed` rings (ring_take_writer_waits()). A full fence on both sides. */
    _Atomic uint32_t writer_waits cache_aligned;
    /* Set once by the writer: it has mapped the reader's notification page. */
    _Atomic uint32_t writer_reads_attention;
    /* Lane 0: how many names of the writer's process have ended, from 1 on; 0: it does not say. Incremented before a
     * name ends. The reader believes it of a process of its own user (local_name_recall()). */
    _Atomic uint32_t names_ended;
    /* Incremented by the writer before memory that its records refer to goes back to the program
     * (ring_revoke()). A record carries the lower 16 bits of the value at its time; a reader that has
     * fetched the bytes compares (ring_has_revoked()) and discards them if the values differ. 16 bits
     * suffice: a QP increments the value only if it has written a record by reference since its last
     * increment, and while the reader is at one record the ring takes at most 4096 more. So the value
     * advances by at most 4096 and by one for each QP whose memory was exposed before. (A QP whose reply
     * lane is another one increments the value of both lanes, also for records of the other lane: the
     * fetch of one record would have to last for 65536 of those.) */
    _Atomic uint32_t reference_epoch cache_aligned;
};
static_assert(sizeof(struct ring_control) == 4 * CACHE_LINE, "control lines are part of the format");

#define LAYOUT_RINGS        (2 * LOCAL_LANES)
#define LAYOUT_CONTROL      65536u /* at least one page on kernels with pages of up to 64 KiB */
#define LAYOUT_SIZE         (LAYOUT_CONTROL + LAYOUT_RINGS * RING_SIZE)
#define LAYOUT_ACCESS_SLOTS 4096u
static_assert(LAYOUT_RINGS * sizeof(struct ring_control) <= LAYOUT_ACCESS_SLOTS,
              "all control lines are in the first page");
static_assert(LAYOUT_ACCESS_SLOTS + 2 * (LOCAL_ACCESS_SLOTS + 1) * CACHE_LINE <= LAYOUT_CONTROL, "");

#define RECORD_QPN_MASK 0xffffffu

struct record_header {
    _Atomic uint64_t word;   /* released by publish_record(), acquired by find_record() */
    uint32_t dest_qpn;       /* bits 0..23; bits 24..31: number of references */
    uint32_t src_qpn;        /* bits 0..23; bits 24..31: AETH syndrome, in requests enum packet_hints */
    uint32_t psn, ack_psn;   /* bits 0..23 */
    uint32_t dest_ifindex;   /* network interface of the destination address */
    uint32_t payload_length; /* bytes */
    uint16_t pkey, reference_epoch;
    /* imm_data, rkey of the IETH, MSN of the AETH, rkey of the AtomicETH, or FETH: no opcode has two of them. */
    uint32_t argument;
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

/* Not a BTH opcode: IBA reserves the service in its bits 7..5 for manufacturers. */
#define RECORD_SKIP       0xffu
#define RECORD_ALIGN_FROM 512u
#define RECORD_MAX_HEADER                                                                                    \
    (sizeof(struct record_header) + sizeof(struct record_deth) +                                             \
     PACKET_REFERENCES * sizeof(struct packet_reference))
#define RECORD_MAX ((RECORD_MAX_HEADER + LOCAL_MTU + 2 * GRANULE) / GRANULE * GRANULE)
/* Free bytes that suffice for every record: the record, the end of the ring that it may have to skip, and the word
 * behind it. */
#define RING_SPACE_FOR_ANY (2 * RECORD_MAX + GRANULE)
static_assert(RING_SPACE_FOR_ANY <= RING_SIZE / 2,
              "a full ring must not be the normal state of large messages");

/* Odd, so never zero. Repeats after 2^31 granules, so only an invalid record can have the stamp of another lap. */
static inline uint32_t record_stamp(uint64_t position)
{
    return (uint32_t)(position / GRANULE) << 1 | 1;
}

static inline uint64_t record_word(uint64_t position, uint32_t granules, uint8_t opcode, uint8_t flags)
{
    return record_stamp(position) | (uint64_t)granules << 32 | (uint64_t)opcode << 48 | (uint64_t)flags << 56;
}

/* Of that type, and not a mask: gcc 14.2 for aarch64 drops a mask of 16 bits here and there, so that what is above them
 * becomes part of the length. */
static inline uint16_t record_granules(uint64_t word)
{
    return (uint16_t)(word >> 32);
}

#endif
