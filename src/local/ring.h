/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One ring of a link, from the writing and from the reading side (format: local/layout.h). Each side is used
 * by one thread at a time (the lane's transmit lock, the lane's receive lock) and keeps what it needs to know
 * in private memory. */
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
    uint64_t consumed; /* last seen of control->consumed */
    uint64_t last;     /* where the last record was written */
    uint32_t reference_epoch;
    bool roams; /* beyond RING_HOME, in this lap */
};

struct ring_reader {
    char *data;
    struct ring_control *control;
    uint64_t position;
    uint64_t published; /* last value of control->consumed */
    bool references;    /* records by reference are welcome */
};

/* `memory`: LAYOUT_SIZE bytes. */
void ring_writer_init(struct ring_writer *writer, void *memory, unsigned ring);
void ring_reader_init(struct ring_reader *reader, void *memory, unsigned ring);

/* Writes and publishes one record. 0, -EAGAIN (no room), -EMSGSIZE or -EINVAL (not a packet that may go this
 * way), -EPROTO (the reader wrote nonsense into its position). */
int ring_write(struct ring_writer *writer, const struct packet *packet, const struct iovec *gather,
               unsigned gather_count);
/* Whether any record can be written. -EPROTO as above. */
int ring_has_room(struct ring_writer *writer);

static inline struct record_header *ring_at(char *data, uint64_t position)
{
    return (struct record_header *)(data + position % RING_SIZE);
}

/* Where the next record will be published: not zero when there is one. */
static inline const _Atomic uint64_t *ring_next_word(const struct ring_reader *reader)
{
    return &ring_at(reader->data, reader->position)->word;
}

/* Decodes the next record: 1, 0 (there is none), -EPROTO (no writer of ours writes that). What is in the
 * packet is private and checked, but the payload, which stays in the ring until ring_release(). references:
 * room for PACKET_REFERENCES. */
int ring_read(struct ring_reader *reader, struct packet *packet, struct packet_reference *references,
              uint32_t *ret_granules);
/* Gives back the record that ring_read() returned. Returns true if the new position became visible to the
 * writer: see ring_writer_rung(). */
bool ring_release(struct ring_reader *reader, uint32_t granules);
/* The reader found nothing and will not come back soon (all), or may: makes its position visible if it is
 * worth it. As above. */
bool ring_publish(struct ring_reader *reader, bool all);

/* What records written so far refer to is void. Between the store and all that the program stores to that
 * memory, in whatever thread it hears that it may, stands the fence. Partner: the one in
 * ring_has_revoked(). */
static inline void ring_revoke(struct ring_writer *writer)
{
    atomic_store_explicit(&writer->control->reference_epoch, ++writer->reference_epoch, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

/* After fetching what a record refers to: if any of it is younger than ring_revoke(), the epoch is, too. */
static inline bool ring_has_revoked(const struct ring_reader *reader, uint16_t reference_epoch)
{
    atomic_thread_fence(memory_order_acquire);
    return (uint16_t)atomic_load_explicit(&reader->control->reference_epoch, memory_order_relaxed) !=
           reference_epoch;
}

/* After a publication of the position: takes back the writer's wish to be rung. Partner of the fence in
 * ring_arm_writer(). */
static inline bool ring_take_writer_waits(struct ring_control *control)
{
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(&control->writer_waits, memory_order_relaxed) != 0 &&
           atomic_exchange_explicit(&control->writer_waits, 0, memory_order_relaxed) != 0;
}

/* The writer wants to be rung; it must look for room once more afterwards. */
static inline void ring_arm_writer(struct ring_control *control)
{
    atomic_store_explicit(&control->writer_waits, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

/* The reader wants to be rung; it must look for a record once more afterwards. */
static inline void ring_arm_reader(struct ring_control *control)
{
    atomic_store_explicit(&control->reader_sleeps, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

#endif
