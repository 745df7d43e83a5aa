/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Small packets, which nearly all packets of small messages are: a SEND of RC in one packet of at most LANE_SMALL
 * bytes, with or without immediate data, or an acknowledgement of RC. Neither carries an acknowledgement of the other
 * direction.
 *
 * These are ring_write() and ring_read() with the constants of such a packet put in, and inline: what a caller fills
 * in, and what it looks at, then stays in registers. As arguments of a call they are written in pieces and read in
 * other pieces, which the processor waits for while the peer waits for the record. */
#ifndef LOCAL_SMALL_H
#define LOCAL_SMALL_H

#include <string.h>

#include "base/prefetch.h"
#include "local/link.h"
#include "wire/opcode.h"

static_assert(LANE_SMALL < RECORD_ALIGN_FROM, "the payload of a small packet lies behind the header");

struct lane_small {
    uint8_t opcode;   /* OP_SEND_ONLY, OP_SEND_ONLY_IMM, OP_ACKNOWLEDGE */
    uint8_t flags;    /* PACKET_SOLICITED, PACKET_ACK_REQUEST */
    uint8_t syndrome; /* as in struct packet, like all that follows */
    uint16_t pkey;
    uint32_t dest_qpn, src_qpn;
    psn_t psn;
    uint32_t dest_ifindex;
    uint32_t argument; /* imm_data, or the acknowledgement's msn */
    uint32_t length;   /* of the payload; 0: an acknowledgement */
    uint32_t granules; /* received: of the record */
    const void *payload;
};

/* --- writing ---------------------------------------------------------------------------------------------- */

static inline uint32_t small_bytes(const struct lane_small *small)
{
    return ((uint32_t)sizeof(struct record_header) + small->length + GRANULE - 1) / GRANULE * GRANULE;
}

/* Is there room for such a record at writer->position, without a skip record? */
static inline bool small_fits(struct ring_writer *writer, uint32_t bytes)
{
    const uint32_t offset = (uint32_t)(writer->position % RING_SIZE);

    if (unlikely(offset >= RING_SMALL)) { /* ring_write() decides whether to wrap early, or has decided */
        if (!writer->uses_all || bytes > RING_SIZE - offset)
            return false;
    } else {
        writer->uses_all = false;
    }
    return likely(bytes + GRANULE <= ring_free_bytes(writer)) ||
           (ring_refresh_consumed(writer) == 0 && bytes + GRANULE <= ring_free_bytes(writer));
}

/* All but the word. */
static inline void write_small(struct record_header *record, const struct ring_writer *writer,
                               const struct lane_small *small)
{
    record->dest_qpn = small->dest_qpn;
    record->src_qpn = small->src_qpn | (uint32_t)small->syndrome << 24;
    record->psn = small->psn.value;
    record->ack_psn = 0;
    record->dest_ifindex = small->dest_ifindex;
    record->payload_length = small->length;
    record->pkey = small->pkey;
    record->reference_epoch = (uint16_t)writer->reference_epoch;
    record->argument = small->argument;
    if (likely(small->length == sizeof(uint64_t)))
        memcpy(record + 1, small->payload, sizeof(uint64_t));
    else if (small->length)
        memcpy(record + 1, small->payload, small->length);
}

static inline void ring_wrote(struct ring_writer *writer, uint32_t bytes)
{
    writer->last = writer->position;
    writer->position += bytes;
}

/* See lane_put(). The word of the first record is held back: the reader, which waits for that, touches none of the
 * lines behind it while they are written. */
static always_inline bool ring_put(struct ring_writer *writer, const struct lane_small *small)
{
    const uint32_t bytes = small_bytes(small);
    struct record_header *record = ring_at(writer->data, writer->position);
    uint64_t word;

    if (unlikely(!small_fits(writer, bytes)))
        return false;
    write_small(record, writer, small);
    word = record_word(writer->position, bytes / GRANULE, small->opcode, small->flags);
    if (!writer->held) {
        writer->held = word;
        writer->held_at = writer->position;
    } else {
        atomic_store_explicit(&record->word, word, memory_order_relaxed);
    }
    ring_wrote(writer, bytes);
    return true;
}

/* Publishes all that ring_put() has written. */
static inline void ring_publish_held(struct ring_writer *writer)
{
    if (!writer->held)
        return;
    atomic_store_explicit(&ring_at(writer->data, writer->position)->word, 0, memory_order_relaxed);
    /* Release, and its partner, as in ring_write(). */
    atomic_store_explicit(&ring_at(writer->data, writer->held_at)->word, writer->held, memory_order_release);
    writer->held = 0;
}

/* The same as ring_put(), and publishes it; nothing is held back. A reader that waits for the record takes its line
 * back as soon as the first byte has been written. So all stores follow each other here, that to the next line first,
 * and the line moves once. */
static always_inline bool ring_put_alone(struct ring_writer *writer, const struct lane_small *small)
{
    const uint32_t bytes = small_bytes(small);
    struct record_header *record = ring_at(writer->data, writer->position);

    if (unlikely(!small_fits(writer, bytes)))
        return false;
    atomic_store_explicit(&ring_at(writer->data, writer->position + bytes)->word, 0, memory_order_relaxed);
    write_small(record, writer, small);
    /* Release, and its partner, as in ring_write(). */
    atomic_store_explicit(&record->word,
                          record_word(writer->position, bytes / GRANULE, small->opcode, small->flags),
                          memory_order_release);
    ring_wrote(writer, bytes);
    return true;
}

/* Writes several of them under one lock: lane_begin(); lane_put() for each; lane_end(), which publishes all at once.
 * In a rundown section. False: the link is down, and lane_end() must not be called. */
static inline bool lane_begin(struct lane *lane)
{
    if (unlikely(!link_is_up(lane->link)))
        return false;
    lock_acquire(&lane->transmit_lock);
    return true;
}

/* False: the ring has no space, or only behind its end; nothing was written, and lane_send() may do it. */
static always_inline bool lane_put(struct lane *lane, const struct lane_small *small)
{
    return ring_put(&lane->writer, small);
}

/* Publishing the next record, if it is small, also writes a zero into the line behind it, which the reader's cache
 * holds since the last lap; now nobody waits for that. The record's own line stays where it is: the reader looks at
 * it all along. */
static inline void lane_prefetch(const char *next)
{
    prefetch_for_write(next + GRANULE);
}

/* Releases the lock. True: lane_ring() has to be called, because the reader sleeps, or its doorbell was delayed. */
static inline bool lane_unlock(struct lane *lane)
{
    const char *next = (const char *)ring_at(lane->writer.data, lane->writer.position);

    /* The fence is that of lane_ring(), with the same partners. */
    lock_release(&lane->transmit_lock);
    atomic_thread_fence(memory_order_seq_cst);
    lane_prefetch(next);
    return unlikely(atomic_load_explicit(&lane->ring_due, memory_order_relaxed)) ||
           (atomic_load_explicit(&lane->writer.control->reader_sleeps, memory_order_relaxed) !=
                READER_POLLS &&
            lane_reader_sleeps(lane));
}

static inline bool lane_end(struct lane *lane)
{
    ring_publish_held(&lane->writer);
    return lane_unlock(lane);
}

/* All three for one packet that is alone. False: the link is down, or as lane_put(). *ret_rings becomes true as
 * lane_end() would return it. */
static always_inline bool lane_put_alone(struct lane *lane, const struct lane_small *small, bool *ret_rings)
{
    bool sent;

    if (unlikely(!lane_begin(lane)))
        return false;
    sent = ring_put_alone(&lane->writer, small);
    *ret_rings |= lane_unlock(lane);
    return sent;
}

/* --- reading ---------------------------------------------------------------------------------------------- */

static inline bool is_small(uint8_t opcode, uint8_t flags)
{
    if (opcode == OP_ACKNOWLEDGE)
        return !(flags & ~PACKET_COMPLETES);
    return (opcode == OP_SEND_ONLY || opcode == OP_SEND_ONLY_IMM) &&
           !(flags & ~(PACKET_SOLICITED | PACKET_ACK_REQUEST));
}

/* The peer may change the record at any time: each field is read once. */
#define RECORD_READ(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

/* A checked copy of the next record, but for the payload, which stays in the ring. False: the next record is another,
 * or not there, or invalid; ring_read() says which. */
static always_inline bool ring_peek(const struct ring_reader *reader, struct lane_small *ret_small)
{
    const uint32_t offset = (uint32_t)(reader->position % RING_SIZE);
    const struct record_header *record = ring_at(reader->data, reader->position);
    /* Acquire; partner: the release in ring_put_alone(), ring_publish_held() and ring_write(). */
    const uint64_t word = atomic_load_explicit(&record->word, memory_order_acquire);
    const uint8_t opcode = (uint8_t)(word >> 48), flags = (uint8_t)(word >> 56);
    const uint32_t granules = record_granules(word);
    uint32_t dest_qpn, src_qpn, length;

    if ((uint32_t)word != record_stamp(reader->position) || !is_small(opcode, flags))
        return false;
    dest_qpn = RECORD_READ(record->dest_qpn);
    src_qpn = RECORD_READ(record->src_qpn);
    length = RECORD_READ(record->payload_length);
    if (unlikely(dest_qpn > RECORD_QPN_MASK || length > LANE_SMALL ||
                 (sizeof(*record) + length + GRANULE - 1) / GRANULE != granules ||
                 granules > (RING_SIZE - offset) / GRANULE || (opcode == OP_ACKNOWLEDGE && length)))
        return false;
    *ret_small = (struct lane_small){
        .opcode = opcode,
        .flags = flags,
        .syndrome = (uint8_t)(src_qpn >> 24),
        .pkey = RECORD_READ(record->pkey),
        .dest_qpn = dest_qpn,
        .src_qpn = src_qpn & RECORD_QPN_MASK,
        .psn = psn_make(RECORD_READ(record->psn)),
        .dest_ifindex = RECORD_READ(record->dest_ifindex),
        .argument = RECORD_READ(record->argument),
        .length = length,
        .granules = granules,
        .payload = record + 1,
    };
    return true;
}

/* While ops->small() runs: ring_peek() of the lane's. */
static always_inline bool lane_peek(const struct lane *lane, struct lane_small *ret_small)
{
    return ring_peek(&lane->reader, ret_small);
}

/* The packet that lane_peek() has shown is taken, and its payload no longer looked at. */
static inline void lane_take(struct lane *lane, const struct lane_small *small)
{
    lane->reader.position += small->granules * GRANULE;
}

#endif
