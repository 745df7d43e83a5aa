/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The published segment: one sealed, sparse memfd per process with everything that another process of the
 * same user may want to see, without pointers. Layout first, so that a reader can predict the code:
 *
 *   struct segment_header
 *   key table        LIMIT_KEY_SLOTS x struct key_entry
 *   QP records       LIMIT_QP  x struct qp_record
 *   CQ records       LIMIT_CQ  x struct cq_record
 *   SRQ records      LIMIT_SRQ x struct srq_record
 *   PD records       LIMIT_PD  x struct pd_record
 *   arena            queues (send, receive, completion, responder resources), in power of two extents of at
 * least 4 KiB
 *
 * Pages cost memory once touched; what is freed in the arena is punched out. The segment is created with the
 * first context and lives as long as the process; a forked child sees a private copy
 * (segment_after_fork_in_child).
 */
#ifndef OBJECT_SEGMENT_H
#define OBJECT_SEGMENT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/types.h"
#include "rules/keys.h"
#include "rules/limits.h"
#include "transport/qp.h"

#define SEGMENT_MAGIC   0x0041434874666f53ull /* "SoftHCA" */
#define SEGMENT_VERSION 1u
#define NO_OBJECT       UINT32_MAX

struct segment_table {
    uint64_t offset;
    uint32_t stride, count;
};

struct segment_header {
    uint64_t magic;
    uint32_t version, header_size;
    uint64_t total_size;
    uint8_t instance[16]; /* random, per process lifetime */
    int32_t pid;          /* in the process's own namespace */
    uint32_t uid;
    uint64_t start_ns; /* CLOCK_MONOTONIC */
    char program[64];  /* /proc/self/comm, for people */
    struct segment_table keys, qps, cqs, srqs, pds;
    uint64_t arena_offset, arena_size;
};

/* state words: 0 free, 1 alive, 2 being destroyed (its destroy waits for acknowledgements). */
enum object_state { OBJECT_FREE, OBJECT_ALIVE, OBJECT_DYING };

struct pd_record {
    _Atomic uint32_t state;
    uint32_t context;
    _Atomic uint32_t users; /* MRs, MWs, AHs, QPs, SRQs */
    uint32_t created_by;
    uint64_t created_ns;
};

/* Slot of completion number n: n & (power of two above capacity) - 1. The first cache line is the producer's,
 * the second the consumer's. */
struct cq_record {
    _Atomic uint32_t state;
    uint32_t context, channel;     /* numbers; NO_OBJECT: none */
    _Atomic uint32_t users;        /* QPs and WQs that complete here; a QP counts once per side */
    uint32_t capacity, entry_size; /* as cq->cqe says */
    _Atomic uint32_t produced;     /* free-running; unpolled = produced - consumed, some may be purged */
    uint32_t armed;                /* enum cq_arm */
    uint32_t failed;               /* overrun */
    uint32_t created_by;
    uint64_t ring_offset;
    uint64_t created_ns;

    _Atomic uint32_t consumed cache_aligned;
    uint32_t events_reported, events_acked; /* completion events read, acknowledged */
    uint32_t async_reported, async_acked;
};
_Static_assert(sizeof(struct cq_record) == 2 * CACHE_LINE, "one line of the producer, one of the consumer");

struct srq_record {
    _Atomic uint32_t state;
    uint32_t context, pd;
    _Atomic uint32_t users; /* QPs */
    uint32_t max_wr, max_sge, stride, limit;
    _Atomic uint32_t posted, taken; /* free-running; slot of number n: n & max_wr - 1 */
    uint32_t events_reported, events_acked;
    uint64_t ring_offset;
    uint64_t created_ns;
    uint32_t created_by, reserved;
};

/* Creates and maps it once per process: 0 or -errno. */
int segment_open(void);
struct segment_header *segment_header(void);
int segment_fd(void);
struct key_table *segment_keys(void);
struct qp_record *segment_qp(uint32_t slot);
struct cq_record *segment_cq(uint32_t number);
struct srq_record *segment_srq(uint32_t number);
struct pd_record *segment_pd(uint32_t number);

/* Zeroed queue memory, aligned to 4 KiB; 0 on failure is impossible as an offset (the header is there), so 0
 * means -ENOMEM. */
uint64_t segment_allocate(size_t size);
void segment_release(uint64_t offset, size_t size);
void *segment_at(uint64_t offset);

/* Numbers of table entries: cyclic, so that a freed number is not reused soon. NO_OBJECT when full. */
struct number_pool;
extern struct number_pool pool_pds, pool_cqs, pool_srqs, pool_qps, pool_keys, pool_contexts, pool_channels;
uint32_t number_take(struct number_pool *pool);
void number_return(struct number_pool *pool, uint32_t number);

/* The child's objects must not disturb the parent's: maps the same address range privately, so that pointers
 * into inherited objects stay good, and forgets it. The child's first context makes a segment of its own. */
void segment_after_fork_in_child(void);

#endif
