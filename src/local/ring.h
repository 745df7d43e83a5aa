/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The writing and the reading side of one ring of a link (format: local/layout.h). Each side is used by one thread at
 * a time, under the lane's transmit_lock or receive_lock, and keeps its own state in private memory, which the peer
 * cannot change. */
#ifndef LOCAL_RING_H
#define LOCAL_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "local/layout.h"
#include "wire/packet.h"

struct ring_writer {
    char *data;
    struct ring_control *control;
    uint64_t position;
    uint64_t consumed; /* last value read from control->consumed */
    uint64_t last;     /* position of the record written last */
    uint32_t reference_epoch;
    bool uses_all; /* uses more than the first RING_SMALL bytes in this lap */
    /* Between ring_put() and ring_publish_held() (local/small.h): the word of the first record that is not published,
     * and its position; 0: none is. */
    uint64_t held, held_at;
};

struct ring_reader {
    char *data;
    struct ring_control *control;
    uint64_t position;
    uint64_t published; /* last value written to control->consumed */
    bool references;    /* records by reference are accepted (link.may_pull) */
};

/* memory: LAYOUT_SIZE bytes; ring: 0 to LAYOUT_RINGS - 1. */
void ring_writer_init(struct ring_writer *writer, void *memory, unsigned ring);
void ring_reader_init(struct ring_reader *reader, void *memory, unsigned ring);

/* Writes and publishes one record. 0; -EAGAIN: no space; -EMSGSIZE: the payload or the number of references is too
 * large; -EINVAL: `gather` is shorter than the payload; -EPROTO: the reader published an invalid position. */
int ring_write(struct ring_writer *writer, const struct packet *packet, const struct iovec *gather,
               unsigned gather_count);
/* Reads how far the reader is. -EPROTO: that position is invalid. */
int ring_refresh_consumed(struct ring_writer *writer);
/* 1: any record can be written; 0: not; -EPROTO as above. */
int ring_has_space(struct ring_writer *writer);

static inline struct record_header *ring_at(char *data, uint64_t position)
{
    return (struct record_header *)(data + position % RING_SIZE);
}

/* Bytes that are free behind writer->position, as far as the writer knows. */
static inline uint64_t ring_free_bytes(const struct ring_writer *writer)
{
    return RING_SIZE - (writer->position - writer->consumed);
}

/* The word of the next record: not 0 once the record is published. */
static inline const _Atomic uint64_t *ring_next_word(const struct ring_reader *reader)
{
    return &ring_at(reader->data, reader->position)->word;
}

/* Decodes the next record. 1; 0: no record; -EPROTO: the record is invalid. All fields of the packet are checked
 * private copies, except the payload, which stays in the ring until ring_release(). references: PACKET_REFERENCES
 * elements. */
int ring_read(struct ring_reader *reader, struct packet *packet, struct packet_reference *references,
              uint32_t *ret_granules);
/* Bytes. The reader publishes its position in steps of RING_PUBLISH_STEP, and of RING_PUBLISH_EMPTY when the ring is
 * empty. So the writer sees at least RING_SIZE - RING_PUBLISH_EMPTY bytes of an empty ring as free. */
#define RING_PUBLISH_STEP  (RING_SMALL / 4)
#define RING_PUBLISH_EMPTY (RING_SMALL / 16)
/* Publishes how far the reader is. Returns true. */
bool ring_publish_position(struct ring_reader *reader);

/* Releases the record that ring_read() returned. True: the new position was published to the writer, and the caller
 * calls ring_take_writer_waits(). */
static inline bool ring_release(struct ring_reader *reader, uint32_t granules)
{
    reader->position += granules * GRANULE;
    return unlikely(reader->position - reader->published >= RING_PUBLISH_STEP) &&
           ring_publish_position(reader);
}

/* The ring is empty: publishes the reader's position. all: always, because the reader will not return soon; else only
 * if enough bytes are unpublished. True as above. */
static inline bool ring_publish(struct ring_reader *reader, bool all)
{
    uint64_t unpublished = reader->position - reader->published;

    return unlikely(unpublished >= RING_PUBLISH_EMPTY || (all && unpublished)) &&
           ring_publish_position(reader);
}

/* Revokes what the records written so far refer to. The fence orders the new epoch before everything that the program
 * stores to that memory afterwards. Partner: the fence in ring_has_revoked(). */
static inline void ring_revoke(struct ring_writer *writer)
{
    atomic_store_explicit(&writer->control->reference_epoch, ++writer->reference_epoch, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

/* After the copy of what a record refers to: if the copy contains a byte stored after ring_revoke(), this sees the
 * new epoch. */
static inline bool ring_has_revoked(const struct ring_reader *reader, uint16_t reference_epoch)
{
    atomic_thread_fence(memory_order_acquire);
    return (uint16_t)atomic_load_explicit(&reader->control->reference_epoch, memory_order_relaxed) !=
           reference_epoch;
}

/* After the reader has published its position: true if the writer waits for space, and the caller rings. Partner: the
 * fence in ring_arm_writer(). */
static inline bool ring_take_writer_waits(struct ring_control *control)
{
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(&control->writer_waits, memory_order_relaxed) != 0 &&
           atomic_exchange_explicit(&control->writer_waits, 0, memory_order_relaxed) != 0;
}

/* The writer asks to be rung when there is space, and checks for space once more afterwards. */
static inline void ring_arm_writer(struct ring_control *control)
{
    atomic_store_explicit(&control->writer_waits, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

/* The reader asks to be rung for the next record, and checks for a record once more afterwards. Partner: the fence in
 * lane_ring(). */
static inline void ring_arm_reader(struct ring_control *control)
{
    atomic_store_explicit(&control->reader_sleeps, READER_SLEEPS, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

#endif
