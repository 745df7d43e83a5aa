/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The published segment: one sealed, sparse memfd per process with everything that another process of the
 * same user may want to see, without pointers. Layout first, so that a reader can predict the code:
 *
 *   struct segment_header
 *   key table        LIMIT_KEY_SLOTS x struct key_entry
 *   mapped records   LIMIT_KEY_SLOTS x struct mapped_record: where peers can map a region
 *   direct records   LIMIT_QP  x struct direct_record: which peers may execute requests by themselves
 *   QP records       LIMIT_QP  x struct qp_record
 *   CQ records       LIMIT_CQ  x struct cq_record
 *   SRQ records      LIMIT_SRQ x struct srq_record
 *   PD records       LIMIT_PD  x struct pd_record
 *   WQ records       LIMIT_WQ  x struct wq_record
 *   tables of WQs    LIMIT_IND_TABLES x struct ind_table_record
 *   items            SEGMENT_ITEMS x struct item_record: objects without a queue
 *   id records       SEGMENT_IDS x struct id_record
 *   key provenance   LIMIT_KEY_SLOTS x struct provenance_record: who made an MR or MW, where that is recorded
 *   stacks           SEGMENT_STACKS x struct stack_record, 0 is none
 *   modules          SEGMENT_MODULES x struct module_record: what the addresses of stacks are in
 *   arena            queues (send, receive, completion, responder resources), in power of two extents of at
 * least 4 KiB
 *
 * Pages cost memory once touched; what is freed in the arena is punched out. The segment is created with the
 * first context and lives as long as the process; a forked child sees a private copy
 * (segment_after_fork_in_child).
 */
#ifndef SEGMENT_SEGMENT_H
#define SEGMENT_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/types.h"
#include "published/counters.h"
#include "published/record.h"
#include "rules/keys.h"
#include "rules/limits.h"
#include "transport/qp.h"

#define SEGMENT_MAGIC   0x0041434874666f53ull /* "SoftHCA" */
#define SEGMENT_VERSION 8u
#define NO_OBJECT       UINT32_MAX

struct segment_table {
    uint64_t offset;
    uint32_t stride, count;
};

/* A file of the process that holds memory which peers may map: how to open it by way of /proc. */
struct file_record {
    int32_t fd; /* in the table of header.files_thread */
    uint32_t reserved;
    uint64_t inode, device;
};
#define SEGMENT_FILES 2

struct segment_header {
    uint64_t magic;
    uint32_t version, header_size;
    uint64_t total_size;
    uint8_t instance[16]; /* random, per process lifetime */
    int32_t pid;          /* in the process's own namespace */
    uint32_t uid;
    uint64_t start_ns;         /* CLOCK_MONOTONIC */
    char program[64];          /* /proc/self/comm, for people */
    _Atomic uint32_t explains; /* stacks and times are recorded */
    uint32_t reserved;
    struct segment_table keys, qps, cqs, srqs, pds, wqs, ind_tables, items, ids, key_provenance, stacks,
        modules;
    uint64_t arena_offset, arena_size;
    /* For peers that execute requests by themselves (docs/mapped.md): */
    struct segment_table mapped, directs;
    _Atomic uint32_t directs_used; /* records from here on were never used */
    _Atomic int32_t files_thread;  /* 0: there are no files yet */
    struct file_record files[SEGMENT_FILES];
    struct network_counters network cache_aligned;
    /* Thread number of the helper thread; when that ends, and with it the process, the kernel makes it
     * another number (set_robust_list(2)), before anybody can learn of the death. */
    _Atomic uint32_t alive cache_aligned;
    uint64_t robust[4]; /* what the kernel goes by: pointers of the owner, of use to nobody else */
};

/* Both kinds of record: odd while there is nothing, or it is being changed. One line each, which is written
 * seldom, so that whoever looks at it again and again has it in his cache. */
struct mapped_record {
    _Atomic uint32_t generation;
    uint32_t file;
    uint64_t address, length, offset; /* the largest part that is mapped, and where that is in the file */
    uint32_t reason;                  /* enum mapped_reason of the rest; of 0 bytes if there is none */
    uint32_t reserved;
    uint64_t mapped; /* bytes */
    uint64_t reserved2[2];
};
_Static_assert(sizeof(struct mapped_record) == 64, "one cache line");
/* A QP that takes requests: what a requester has to know of it, apart from what changes with every packet. */
struct direct_record {
    _Atomic uint32_t generation;
    uint32_t qpn, dest_qpn;
    uint32_t pd, access; /* enum ibv_access_flags */
    uint32_t ifindex;    /* of its device */
    uint32_t rq_psn;     /* as it was connected */
    uint32_t path_mtu;   /* enum ibv_mtu */
    uint32_t granted;    /* max_dest_rd_atomic */
    uint32_t reserved[7];
};
_Static_assert(sizeof(struct direct_record) == 64, "one cache line");

/* state words: 0 free, 1 alive, 2 being destroyed (its destroy waits for acknowledgements). */
enum object_state { OBJECT_FREE, OBJECT_ALIVE, OBJECT_DESTROYING };

struct pd_record {
    _Atomic uint32_t state;
    uint32_t context;
    _Atomic uint32_t users; /* MRs, MWs, AHs, QPs, SRQs, WQs, parent domains */
    uint32_t kept;          /* librdmacm's own: no leak of the program's */
    uint32_t protects;      /* the PD that a parent domain or an imported PD stands for, or NO_OBJECT */
    uint32_t imported;
    uint32_t td; /* item of a parent domain's thread domain, or NO_OBJECT */
    uint32_t reserved;
    struct provenance_record provenance;
};

/* One completion as it waits in the ring. */
struct cqe {
    uint64_t wr_id;
    uint32_t qpn;
    union {
        uint32_t retires; /* sends and list operations: counter after which the slot is free, once polled */
        uint32_t app_ctx; /* of a message that took a tagged buffer */
    };
    uint8_t status;  /* enum ibv_wc_status */
    uint8_t opcode;  /* enum ibv_wc_opcode, the low 8 bits; IBV_WC_RECV is bit 7 */
    uint8_t is_send; /* enum cqe_kind */
    uint8_t service_level;
    uint32_t byte_len;
    uint32_t wc_flags;
    uint32_t imm_or_rkey;
    uint32_t src_qpn;
    uint32_t vendor_err;
    uint64_t timestamp_ns; /* CLOCK_MONOTONIC; 0 unless the CQ asked for time stamps */
    uint64_t wallclock_ns;
    union {
        struct {
            uint16_t vlan; /* TCI of the tag that was taken off; 0: none */
            uint16_t reserved;
            uint32_t flow_tag; /* of the flow rule that steered the frame here */
        };
        uint64_t tag; /* CQE_TAGGED */
    };
};
_Static_assert(sizeof(struct cqe) == 64, "one cache line");

enum cqe_kind {
    CQE_RECEIVE = 0,
    CQE_SEND = 1,
    CQE_PURGED = 2,    /* dead, to be skipped */
    CQE_TAGGED = 3,    /* of a tag matching SRQ, whose count of messages goes on when a QP has gone */
    CQE_OPERATION = 4, /* on the list of such an SRQ, whose number is src_qpn */
};
enum cq_arm { CQ_UNARMED, CQ_ARMED_SOLICITED, CQ_ARMED_ANY };

/* Slot of completion number n: n & (power of two above capacity) - 1. The first cache line is the producer's,
 * the second the consumer's, the rest is cold. */
struct cq_record {
    _Atomic uint32_t state;
    uint32_t context, channel;     /* numbers; NO_OBJECT: none */
    _Atomic uint32_t users;        /* QPs and WQs that complete here; a QP counts once per side */
    uint32_t capacity, entry_size; /* as cq->cqe says */
    _Atomic uint32_t produced;     /* free-running; unpolled = produced - consumed, some may be purged */
    uint32_t armed;                /* enum cq_arm */
    uint32_t failed;               /* overrun */
    uint32_t lost;                 /* completions that found no room; of the first of them: */
    uint32_t lost_qpn;
    uint32_t reserved;
    uint64_t ring_offset;

    _Atomic uint32_t consumed cache_aligned;

    struct event_record events cache_aligned; /* of its channel */
    struct event_record async_events;
    uint64_t lost_wr_id, lost_ns;
    struct provenance_record provenance;
};
_Static_assert(offsetof(struct cq_record, consumed) == CACHE_LINE &&
                   offsetof(struct cq_record, events) == 2 * CACHE_LINE,
               "one line of the producer, one of the consumer");

struct srq_record {
    _Atomic uint32_t state;
    uint32_t context, pd;
    _Atomic uint32_t users; /* QPs */
    uint32_t max_wr, max_sge, stride, limit;
    _Atomic uint32_t posted, taken; /* free-running; slot of number n: n & max_wr */
    uint32_t cq;                    /* of an XRC or tag matching SRQ, else NO_OBJECT */
    uint32_t tm_number;             /* tag matching: what completions of its list operations have for a QP */
    uint32_t ops_posted;            /* list operations that complete; free-running */
    _Atomic uint32_t ops_retired;   /* of these, were polled */
    uint64_t ring_offset;
    struct event_record events;
    struct provenance_record provenance;
};

struct wq_record {
    _Atomic uint32_t state;
    uint32_t context, pd, cq;
    _Atomic uint32_t users;    /* entries of indirection tables */
    _Atomic uint32_t wq_state; /* enum ibv_wq_state */
    uint32_t wqn;              /* one of the QP numbers: what its completions say */
    uint32_t flags;            /* enum ibv_wq_flags */
    struct receive_queue receive;
    struct event_record events;
    struct provenance_record provenance;
};

struct ind_table_record {
    _Atomic uint32_t state;
    uint32_t context;
    uint32_t entries;
    _Atomic uint32_t users; /* RSS QPs */
    uint64_t offset;        /* of the entries: numbers of WQs, 32 bits each */
    struct provenance_record provenance;
};

/* Contexts, channels, AHs, attachments to multicast groups, thread domains, XRC domains, device memory,
 * flows, counters. An object that finds no room here lives on without. */
struct item_record {
    _Atomic uint32_t state;
    uint32_t kind;   /* enum object_kind */
    uint32_t number; /* contexts and channels: by which others name it */
    uint32_t context;
    uint32_t parent;        /* PD of an AH, QP number of an attachment and of a flow */
    _Atomic uint32_t users; /* of a channel: CQs; of a context: 1 if librdmacm keeps it open to the end */
    union {
        uint8_t gid[16]; /* destination of an AH, group of an attachment */
        char device[16]; /* of a context; may lack its end */
        struct {
            uint64_t address, length; /* of device memory: as in the keys of its MRs */
        };
        uint32_t counters[4]; /* of a flow: items of those that it counts in; NO_OBJECT: none */
    };
    struct provenance_record provenance;
};

/* An id of librdmacm.so.1, which writes what it knows of it. */
struct id_record {
    _Atomic uint32_t state; /* enum object_state */
    uint32_t phase;         /* enum id_state */
    uint32_t port_space;    /* enum rdma_port_space */
    uint32_t qpn;           /* of its QP; 0: none */
    uint16_t source_port, destination_port;
    uint8_t given;    /* the program has it */
    uint8_t waits_in; /* enum id_call */
    uint16_t reserved;
    uint8_t source[16], destination[16]; /* as GIDs; all zero: none */
    struct event_record events;          /* type: enum rdma_cm_event_type */
    struct provenance_record provenance;
};

#define STACK_FRAMES 30
/* Return addresses, the innermost first; without our own. */
struct stack_record {
    uint64_t hash;
    _Atomic uint32_t depth; /* 0: not filled in yet */
    uint32_t reserved;
    uint64_t frame[STACK_FRAMES];
};
_Static_assert(sizeof(struct stack_record) == 256, "readable by other builds");

/* A part of the address space that was mapped from a file when a stack was taken. */
struct module_record {
    _Atomic uint32_t state; /* 1: filled in, and stays so */
    uint32_t reserved;
    uint64_t start, end;
    uint64_t bias; /* address minus bias: as the file says */
    char path[224];
};
_Static_assert(sizeof(struct module_record) == 256, "readable by other builds");

#define SEGMENT_ITEMS   (1u << 20)
#define SEGMENT_IDS     65536u
#define SEGMENT_STACKS  8192u
#define SEGMENT_MODULES 512u

/* Creates and maps it once per process: 0 or -errno. */
int segment_open(void);
struct segment_header *segment_header(void);
bool segment_is_open(void);
int segment_fd(void);
/* The same, or -1 if the program closed it: the number may be another file's by now. */
int segment_fd_intact(void);
/* A new descriptor of it that is good for reading only; -errno. */
int segment_open_for_reading(void);
struct key_table *segment_keys(void);
struct mapped_record *segment_mapped(uint32_t slot);
struct direct_record *segment_direct(uint32_t slot);
/* Where the tables end that peers map to execute requests. */
uint64_t segment_direct_end(const struct segment_header *header);
/* By the calling thread, which lives as long as the process: header.alive. */
void segment_tie_to_thread(void);
struct qp_record *segment_qp(uint32_t slot);
struct cq_record *segment_cq(uint32_t number);
struct srq_record *segment_srq(uint32_t number);
struct pd_record *segment_pd(uint32_t number);
struct wq_record *segment_wq(uint32_t number);
struct ind_table_record *segment_ind_table(uint32_t number);
struct item_record *segment_item(uint32_t number);
struct id_record *segment_id(uint32_t number);
struct provenance_record *segment_key_provenance(uint32_t slot);
struct stack_record *segment_stack(uint32_t number);
struct module_record *segment_module(uint32_t number);

/* Zeroed queue memory, aligned to 4 KiB; 0 on failure is impossible as an offset (the header is there), so 0
 * means -ENOMEM. */
uint64_t segment_allocate(size_t size);
void segment_release(uint64_t offset, size_t size);
void *segment_at(uint64_t offset);

/* Numbers of table entries: cyclic, so that a freed number is not reused soon. NO_OBJECT when full. */
struct number_pool;
extern struct number_pool pool_pds, pool_cqs, pool_srqs, pool_qps, pool_wqs, pool_ind_tables, pool_keys,
    pool_contexts, pool_channels, pool_items, pool_ids;
uint32_t number_take(struct number_pool *pool);
void number_return(struct number_pool *pool, uint32_t number);

/* The child's objects must not disturb the parent's: maps the same address range privately, so that pointers
 * into inherited objects stay good, and forgets it. The child's first context makes a segment of its own. */
void segment_after_fork_in_child(void);

#endif
