/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The published segment: the state of a process's verbs objects, for other processes of the same user:
 * `softhca ps` and `softhca why` (src/explain) and peers that execute one-sided requests themselves
 * (src/engine/direct). It consists of two sealed, sparse memfds (enum segment_part), which the owner maps next to
 * each other. The segment holds no pointers. Its layout:
 *
 *   struct segment_header
 *   key table        LIMIT_KEY_SLOTS x struct key_entry
 *   mapped records   LIMIT_KEY_SLOTS x struct mapped_record: where peers can map a region
 *   direct records   LIMIT_QP  x struct direct_record: QPs whose peers may execute requests themselves
 *   CQ records       LIMIT_CQ  x struct cq_record
 *   SRQ records      LIMIT_SRQ x struct srq_record
 *   PD records       LIMIT_PD  x struct pd_record
 *   WQ records       LIMIT_WQ  x struct wq_record
 *   indirection      LIMIT_IND_TABLES x struct ind_table_record: tables of WQs (RSS)
 *   items            SEGMENT_ITEMS x struct item_record: objects without a queue
 *   id records       SEGMENT_IDS x struct id_record: librdmacm's ids
 *   key provenance   LIMIT_KEY_SLOTS x struct provenance_record: who created an MR or MW (explanations on)
 *   stacks           SEGMENT_STACKS x struct stack_record; number 0 means no stack
 *   modules          SEGMENT_MODULES x struct module_record: the files that return addresses lie in
 *   misuses          SEGMENT_MISUSES x struct misuse_record: calls with what was destroyed
 *   refusals         SEGMENT_REFUSALS x struct refused_record: calls that were refused
 *   ports            SEGMENT_PORTS x struct port_record: counters of destroyed QPs, by device
 *   QP records       LIMIT_QP  x struct qp_record, then as many struct qp_rare; the owner can access the first
 *                    qps_open of each (end of the first file, which is as long as arena_offset says)
 *   arena            queues (send, receive, completion, responder resources), in power of two extents of
 *                    at least 64 bytes (the second file)
 *
 * A page takes memory when it is first touched; freed extents of the arena are punched out. The first file is
 * sealed against new writable mappings and write(2) (F_SEAL_FUTURE_WRITE), so that nobody who gets a descriptor of
 * it can change keys; holes cannot be punched into such a file, hence the second one. The segment is
 * created with the first context and exists until the process ends. A forked child keeps a private copy of
 * what it inherited (segment_after_fork_in_child).
 *
 * Every field is a format between processes. A process reads the segments of processes that run other builds
 * of SoftHCA, and all of the layout has one version number, SEGMENT_VERSION. The format consists of the
 * structures and enums in this file, published/record.h, published/counters.h and published/drops.h, struct
 * qp_record and the structures in it (transport/qp.h; rules/fault.h), enum refusal_form (base/refusal.h), the work
 * queue elements (transport/wqe.h), struct key_entry (rules/keys.h), and of the limits that size the tables
 * (rules/limits.h).
 *
 * Raise SEGMENT_VERSION when a field or a table is added, removed, moved or resized, or when the meaning or
 * the unit of a field, or of a value of an enum, changes. Two processes with different versions still
 * communicate, with these losses:
 *   - softhca ps and why report that the process runs another version, and show none of its objects
 *     (view_open() in explain/view.c);
 *   - peers do not map the process's memory: requests go through rings and kernel copies (map_segment() in
 *     engine/direct/peer.c).
 * The version may stay for a new value at the end of an enum that all readers print as unknown, and for a
 * reserved field that gets a meaning if 0 says what the absence of the field said. Reserved fields are 0.
 *
 * Readers have no locks. The process that owns the segment is the only writer (of header.alive: also the
 * kernel), under the lock that is named at the record; what readers rely on is written with release order or
 * under a generation counter. Readers copy a record before they use it and check every number and offset in
 * the copy, because the owner may be hostile.
 */
#ifndef SEGMENT_SEGMENT_H
#define SEGMENT_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/types.h"
#include "published/counters.h"
#include "published/drops.h"
#include "published/record.h"
#include "rules/keys.h"
#include "rules/limits.h"
#include "transport/qp.h"

#define SEGMENT_MAGIC   0x0041434874666f53ull /* "SoftHCA" */
#define SEGMENT_VERSION 17u
#define NO_OBJECT       UINT32_MAX

struct segment_table {
    uint64_t offset;
    uint32_t stride, count;
};

/* A file of this process by its descriptor, which readers open through /proc. Inode and device tell whether the
 * descriptor is still that file. */
struct file_record {
    int32_t fd;
    uint32_t reserved;
    uint64_t inode, device;
};
/* Files of memory that peers may map: /proc/PID/task/files_thread/fd/FD. Written once, before header.files_thread
 * (publish_files() in object/memory/mapping.c). */
#define SEGMENT_FILES 2

/* May peers execute requests by the kernel's copy? */
enum segment_copies {
    SEGMENT_NO_COPIES,
    SEGMENT_COPIES,          /* nothing is mapped */
    SEGMENT_COPIES_AND_MAPS, /* where the mapped record is not closed; what they access often is mapped */
};

/* Written once when the segment is opened (fill_header() in segment.c), except for: explains, copies,
 * directs_used, files_thread, files, ports_generation, network, application_polls, growing, alive, robust. */
struct segment_header {
    uint64_t magic; /* written last, with release order */
    uint32_t version, header_size;
    uint64_t total_size;
    uint8_t instance[16]; /* random; names this segment. Whoever quotes it has read it (local/files.h) */
    int32_t pid;          /* in the owner's pid namespace */
    uint32_t uid;
    uint64_t start_ns;         /* CLOCK_MONOTONIC, when the segment was opened */
    char program[64];          /* /proc/self/comm; shown to users */
    _Atomic uint32_t explains; /* 1: stacks and times are recorded (provenance_explain()) */
    _Atomic uint32_t copies;   /* enum segment_copies */
    /* 1: the objects are another adapter's, and src/watch keeps the records: what only the adapter knows is not in
     * them (docs/watch.md). */
    uint32_t watched;
    /* Odd while the counters of a QP move from its record to that of its port. A sum over both that saw it even, and
     * the same afterwards, has each QP once (port_retire_qp() in segment/port.c). */
    _Atomic uint32_t ports_generation;
    struct segment_table keys, qps, qp_rares, cqs, srqs, pds, wqs, ind_tables, items, ids, key_provenance,
        stacks, modules, misuses, refusals, ports;
    uint64_t arena_offset, arena_size;
    /* For peers that execute requests themselves (docs/mapped.md): */
    struct segment_table mapped, directs;
    _Atomic uint32_t
        qps_open; /* QP records, and what they rarely need, from here on were never used; only grows, in large steps */
    _Atomic uint32_t directs_used; /* direct records from this slot on were never used; only grows */
    _Atomic int32_t files_thread;  /* thread id; 0: files[] unset. Release; acquire in direct/peer_files.c */
    struct file_record files[SEGMENT_FILES];
    struct file_record queues; /* SEGMENT_QUEUES: /proc/PID/fd/FD */
    struct network_counters network cache_aligned;
    struct drop_record strays[STRAY_REASONS]; /* enum stray_reason; written under a lock of drops.c */
    /* How often threads of the program have polled an empty CQ. A peer that sees it grow leaves small requests to
     * them. Concurrent pollers may lose an increment. */
    _Atomic uint32_t application_polls cache_aligned;
    /* Thread id of the helper thread. The kernel changes the value when that thread ends
     * (set_robust_list(2): FUTEX_OWNER_DIED), which is before other processes can observe the death. */
    _Atomic uint32_t alive cache_aligned;
    /* Regions whose memory is being mapped. While there are any, a thread that polls may be busy with that, or wait
     * for a processor: small requests are not left to it. Peers read it for each of those: not in the line of
     * application_polls, which each poll takes away from them. */
    _Atomic uint32_t growing;
    uint64_t robust[4]; /* the robust list for the kernel: pointers that are valid in the owner only */
};
_Static_assert(offsetof(struct segment_header, growing) -
                       offsetof(struct segment_header, application_polls) >=
                   CACHE_LINE,
               "what peers read for each request is in no line that the owner writes all the time");

/* Where peers can map one MR, by its slot in the key table. Written under mapping_lock
 * (object/memory/mapping.c), read by engine/direct. generation is odd while the record is invalid or changes:
 * a reader loads it before and after. One cache line that is written rarely, so it stays in the caches of
 * peers that read it for each request. */
struct mapped_record {
    _Atomic uint32_t generation;
    uint32_t file;                    /* index in header.files */
    uint64_t address, length, offset; /* the largest part that is mapped, in bytes; offset in the file */
    uint32_t reason; /* enum mapped_reason: why other parts are not mapped; 0: all is mapped */
    uint32_t reserved;
    uint64_t mapped; /* as length; kept for the layout */
    /* Of a closed record, the addresses whose pages are being switched: the others may be copied from and to as before.
     * moving_to 0: none may. Another range has another generation. */
    uint64_t moving_from, moving_to;
};
_Static_assert(sizeof(struct mapped_record) == 64, "one cache line");
/* What a requester has to know of a QP whose memory it accesses directly, by QP slot. Written under the QP's
 * lock (mapping_update_qp()), read by engine/direct; generation as in struct mapped_record. Values that
 * change with every packet are in struct qp_record. */
struct direct_record {
    _Atomic uint32_t generation;
    uint32_t qpn, dest_qpn;
    uint32_t pd, access; /* PD number; enum ibv_access_flags that the QP allows its peer */
    uint32_t ifindex;    /* network interface of the QP's device */
    uint32_t rq_psn;     /* the attribute, as set in RTR */
    uint8_t path_mtu;    /* enum ibv_mtu */
    uint8_t granted;     /* max_dest_rd_atomic */
    uint16_t reserved;
};
_Static_assert(sizeof(struct direct_record) == 32, "two in a cache line: they are seldom written");

/* The state word of a record. OBJECT_FREE: the slot is unused, other fields are stale. OBJECT_ALIVE is stored
 * with release order after the other fields. OBJECT_DESTROYING: the destroy verb waits for acknowledgements
 * of events. */
enum object_state { OBJECT_FREE, OBJECT_ALIVE, OBJECT_DESTROYING };

/* Written by the thread that creates the PD, except for state and users: under pd->lock. td and kept are
 * written after OBJECT_ALIVE. */
struct pd_record {
    _Atomic uint32_t state;
    uint32_t context;       /* number */
    _Atomic uint32_t users; /* MRs, MWs, AHs, QPs, SRQs, WQs, parent domains */
    uint32_t kept;          /* 1: librdmacm created it for itself; not reported as a leak of the program */
    uint32_t protects; /* number of the PD that a parent domain or an imported PD stands for, or NO_OBJECT */
    uint32_t imported; /* 1: by ibv_import_pd() */
    uint32_t td;       /* item of a parent domain's thread domain, or NO_OBJECT */
    uint32_t reserved;
    struct provenance_record provenance;
};

/* One completion in a CQ's ring. */
struct cqe {
    uint64_t wr_id;
    uint32_t qpn;
    union {
        uint32_t
            retires; /* send or list operation: the new `retired` counter once this completion is polled */
        uint32_t app_ctx; /* CQE_TAGGED: application context of the message (TMH) */
    };
    uint8_t status; /* enum ibv_wc_status */
    uint8_t opcode; /* enum ibv_wc_opcode, the low 8 bits; IBV_WC_RECV is bit 7 */
    uint8_t kind;   /* enum cqe_kind; cq_purge_qp() changes it, consumers load it atomically */
    uint8_t service_level;
    uint32_t byte_len;
    uint32_t wc_flags;    /* enum ibv_wc_flags */
    uint32_t imm_or_rkey; /* immediate data in network order, or the invalidated rkey */
    uint32_t src_qpn;
    uint32_t vendor_err;
    uint64_t timestamp_ns; /* CLOCK_MONOTONIC; 0 unless the CQ was created with time stamps */
    uint64_t wallclock_ns; /* CLOCK_REALTIME; 0 unless the CQ was created with wall clock time stamps */
    union {
        struct {
            uint16_t vlan; /* TCI of the VLAN tag that was stripped; 0: none */
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
    CQE_PURGED = 2, /* of a QP that was destroyed or reset; consumers skip it */
    CQE_TAGGED = 3, /* message for a tag matching SRQ; not purged with its QP, because messages are counted */
    CQE_OPERATION = 4, /* list operation (ibv_post_srq_ops) of the SRQ with the number src_qpn */
};
enum cq_poll_call { CQ_IN_POLL = 1, CQ_IN_START_POLL, CQ_IN_RESIZE };
enum cq_arm { CQ_UNARMED, CQ_ARMED_SOLICITED, CQ_ARMED_ANY };

/* The slot of completion number n is n & capacity (capacity + 1 is a power of two). The first cache line is
 * written by producers under cq->lock, the second by consumers under cq->poll_lock; the rest is written
 * rarely. */
struct cq_record {
    _Atomic uint32_t state;
    uint32_t context, channel;     /* numbers; NO_OBJECT: none */
    _Atomic uint32_t users;        /* QPs and WQs that complete here; a QP counts once per side */
    uint32_t capacity, entry_size; /* ibv_cq.cqe; bytes of one struct cqe */
    _Atomic uint32_t produced;     /* free-running; produced - consumed are unpolled, some of them purged */
    uint32_t armed;                /* enum cq_arm */
    uint32_t failed;               /* 1: the CQ has overrun */
    uint32_t lost;                 /* completions dropped because the ring was full; of the first of them: */
    uint32_t lost_qpn;
    uint32_t owed;   /* events that peers have announced and that are not counted as raised yet (channel.c) */
    uint32_t polled; /* watched: polled since it was armed */
    uint32_t reserved;
    uint64_t ring_offset; /* from the start of the segment; 0: the adapter does not show it (watched) */

    _Atomic uint32_t consumed
        cache_aligned; /* free-running; also written by compact() in object/cq/cq_ring.c */
    /* Thread ids, 0: none. Which thread is between ibv_start_poll() and ibv_end_poll(), and since when one waits for
     * it; window_waits_ns is 0 while none does, and written last. */
    _Atomic uint32_t window_by, window_waits_by;
    _Atomic uint32_t window_waits_in; /* enum cq_poll_call; 0: not known */
    _Atomic uint64_t window_waits_ns; /* CLOCK_MONOTONIC */

    struct event_record events cache_aligned; /* completion events */
    struct event_record async_events;
    uint64_t lost_wr_id, lost_ns; /* of the first lost completion; CLOCK_MONOTONIC */
    struct provenance_record provenance;
};
_Static_assert(offsetof(struct cq_record, consumed) == CACHE_LINE &&
                   offsetof(struct cq_record, events) == 2 * CACHE_LINE,
               "one line of the producer, one of the consumer");

/* Written under srq->lock. */
struct srq_record {
    _Atomic uint32_t state;
    uint32_t context, pd;                    /* numbers */
    _Atomic uint32_t users;                  /* QPs */
    uint32_t max_wr, max_sge, stride, limit; /* stride: bytes per slot; limit: ibv_srq_attr.srq_limit */
    _Atomic uint32_t posted, taken;          /* free-running; the slot of WQE number n is n & max_wr */
    uint32_t cq;                  /* number of the CQ of an XRC or tag matching SRQ, else NO_OBJECT */
    uint32_t tm_number;           /* tag matching: the qpn in completions of list operations; 0: none */
    uint32_t ops_posted;          /* list operations posted that complete; free-running */
    _Atomic uint32_t ops_retired; /* of these, polled; written under the CQ's poll_lock */
    uint64_t ring_offset;         /* from the start of the segment */
    struct event_record events;
    struct provenance_record provenance;
};

/* Written under wq->lock. */
struct wq_record {
    _Atomic uint32_t state;
    uint32_t context, pd, cq;  /* numbers */
    _Atomic uint32_t users;    /* entries of indirection tables */
    _Atomic uint32_t wq_state; /* enum ibv_wq_state */
    uint32_t wqn;              /* taken from the QP numbers; the qpn in its completions */
    uint32_t flags;            /* enum ibv_wq_flags */
    struct receive_queue receive;
    struct event_record events;
    struct provenance_record provenance;
};

/* Written by the thread that creates or destroys the table; users atomically, without a lock. */
struct ind_table_record {
    _Atomic uint32_t state;
    uint32_t context;
    uint32_t entries;       /* a power of two */
    _Atomic uint32_t users; /* RSS QPs */
    uint64_t offset;        /* of the entries from the start of the segment: numbers of WQs, 32 bits each */
    struct provenance_record provenance;
};

/* Contexts, channels, AHs, attachments to multicast groups, thread domains, XRC domains, device memory,
 * flows, counters. If the table is full an object is created without a record, and is not shown. Written by
 * the thread that creates or destroys the object; users atomically, without a lock. */
struct item_record {
    _Atomic uint32_t state;
    uint32_t kind;          /* enum object_kind */
    uint32_t number;        /* contexts and channels: the number that other records use */
    uint32_t context;       /* number */
    uint32_t parent;        /* AH: PD number; attachment and flow: QP number */
    _Atomic uint32_t users; /* channel: CQs; context: 1 if librdmacm keeps it open until exit */
    union {
        uint8_t gid[16]; /* AH: destination; attachment: group */
        char device[16]; /* context: device name; a name of 16 bytes has no NUL */
        struct {
            uint64_t address, length; /* device memory: as in the keys of its MRs; bytes */
        };
        struct {
            /* Channel: ibv_get_cq_event() waits since; 0: it does not. Release. */
            uint64_t waiting_ns;
            uint32_t waiting_by; /* thread id */
        };
        uint32_t counters[4]; /* flow: items of its counters objects; NO_OBJECT: none */
    };
    struct provenance_record provenance;
};

/* An id (struct rdma_cm_id). librdmacm.so.1 writes it: id_enter() in front/rdmacm/id.c and
 * engine/cm/id_record.c. */
struct id_record {
    _Atomic uint32_t state; /* enum object_state */
    uint32_t phase;         /* enum id_state */
    uint32_t port_space;    /* enum rdma_port_space */
    uint32_t qpn;           /* of its QP; 0: none */
    uint16_t source_port, destination_port;
    uint8_t given;    /* 1: the program holds the id; 0: of a connect request that is not reported yet */
    uint8_t waits_in; /* enum id_call: which call waits, valid while provenance.destroying_ns is not 0 */
    uint8_t passive;  /* 1: of a connect request */
    uint8_t reserved;
    uint8_t source[16], destination[16]; /* addresses as GIDs; all zero: none */
    struct event_record events;          /* type: enum rdma_cm_event_type */
    struct provenance_record provenance;
};

#define STACK_FRAMES 30
/* The call stack of a verb: return addresses, innermost first, without frames of this library. Written once
 * (segment/stack.c). */
struct stack_record {
    uint64_t hash;
    _Atomic uint32_t depth; /* frames; 0: free. Stored with release order after the frames */
    uint32_t reserved;
    uint64_t frame[STACK_FRAMES];
};
_Static_assert(sizeof(struct stack_record) == 256, "readable by other builds");

/* An executable or library that a return address lay in when its stack was taken. Written once. */
struct module_record {
    _Atomic uint32_t state; /* 1: valid; stored with release order */
    uint32_t reserved;
    uint64_t start, end; /* addresses in the owner's address space */
    uint64_t bias;       /* load bias: address - bias is the address in the file's symbol table */
    char path[224];
};
_Static_assert(sizeof(struct module_record) == 256, "readable by other builds");

/* A call with an object that the program has destroyed. Written once, apart from count (segment/misuse.c). */
struct misuse_record {
    _Atomic uint32_t state;      /* 1: valid; stored with release order */
    uint32_t form, error, count; /* enum misuse_form; errno; how often from there */
    uint32_t called_by, called_stack, destroyed_by, destroyed_stack; /* the first time */
    uint64_t called_ns, destroyed_ns;                                /* CLOCK_MONOTONIC */
    char call[32], object[48];                                       /* "ibv_destroy_qp", "QP 0x00012a" */
};
_Static_assert(sizeof(struct misuse_record) == 128, "readable by other builds");

/* Calls that were refused for one reason at one place (segment/refused.c): the last ones. */
struct refused_record {
    _Atomic uint32_t state;           /* 1: valid; stored with release order */
    uint32_t form, error, count;      /* enum refusal_form; errno; how often from there */
    uint32_t called_by, called_stack; /* the first time */
    uint32_t kind, number;            /* of the object: enum object_kind, 0: none; as programs know it */
    uint64_t first_ns, last_ns;       /* CLOCK_MONOTONIC */
    int64_t value;                    /* as base/refusal.h says */
    uint64_t low, high;
    char call[40], argument[96]; /* "ibv_create_qp", "cap.max_send_wr"; or a sentence */
    uint64_t reserved[6];
};
_Static_assert(sizeof(struct refused_record) == 256, "readable by other builds");

#define SEGMENT_MISUSES  64u
#define SEGMENT_REFUSALS 64u
#define SEGMENT_PORTS    64u
#define SEGMENT_ITEMS    (1u << 20)
#define SEGMENT_IDS      65536u
#define SEGMENT_STACKS   8192u
#define SEGMENT_MODULES  512u

/* The files of the segment. */
enum segment_part { SEGMENT_TABLES, SEGMENT_QUEUES, SEGMENT_PARTS };

/* Creates and maps the segment once per process: 0 or -errno. */
int segment_open(void);
/* The same, with header.watched. Its files have names of their own: a process may have both. */
int segment_open_watched(void);
struct segment_header *segment_header(void);
bool segment_is_open(void);
/* -1 if the program closed that descriptor: the number may be another file's now. */
int segment_fd_intact(enum segment_part part);
/* A new, read-only descriptor; -errno. */
int segment_open_for_reading(enum segment_part part);
struct key_table *segment_keys(void);
struct mapped_record *segment_mapped(uint32_t slot);
struct direct_record *segment_direct(uint32_t slot);
/* The end of the tables that peers map to execute requests: keys, mapped records, direct records. */
uint64_t segment_direct_end(const struct segment_header *header);
/* Sets header.alive for the calling thread, which must exist until the process ends (the helper thread). */
void segment_tie_to_thread(void);
/* Makes the record accessible, before its first use. 0 or -errno. */
int segment_open_qp(uint32_t slot);
struct qp_record *segment_qp(uint32_t slot);
struct qp_rare *segment_qp_rare(uint32_t slot);
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
struct misuse_record *segment_misuse(uint32_t number);
struct refused_record *segment_refused(uint32_t number);
struct port_record *segment_port(uint32_t number);

/* The offset of zeroed queue memory, aligned to 64 bytes, and from 4 KiB on to 4 KiB; 0: -ENOMEM (offset 0 is the
 * header). */
uint64_t segment_allocate(size_t size);
void segment_release(uint64_t offset, size_t size);
void *segment_at(uint64_t offset);

/* Numbers of table entries, allocated cyclically so that a freed number is not reused soon (number.c).
 * NO_OBJECT: the table is full. */
struct number_pool;
extern struct number_pool pool_pds, pool_cqs, pool_srqs, pool_qps, pool_wqs, pool_ind_tables, pool_keys,
    pool_contexts, pool_channels, pool_items, pool_ids;
uint32_t number_take(struct number_pool *pool);
uint32_t number_used(struct number_pool *pool);
void number_return(struct number_pool *pool, uint32_t number);

/* In the child of a fork: maps a private copy at the same addresses, because inherited objects point there
 * and the child must not write the parent's segment. The child's first context opens a segment of its own. */
void segment_after_fork_in_child(void);

#endif
