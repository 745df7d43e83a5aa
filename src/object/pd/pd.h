/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Protection domains, memory regions and windows, address handles (verbs.md §4, §8.2). */
#ifndef OBJECT_PD_PD_H
#define OBJECT_PD_PD_H

#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/verbs.h"
#include "object/device/context.h"
#include "object/memory/dmabuf.h"
#include "object/memory/mapping.h"
#include "segment/segment.h"

struct pd {
    struct ibv_pd ibv;
    struct context *context;
    struct pd_record *record;
    uint32_t number;        /* what access checks compare; equal in all structures of one protection domain */
    uint32_t record_number; /* of this structure's record; differs in a parent domain and an imported PD */
    struct lock lock;       /* guards state and users of the record */
    struct pd *protects;    /* the PD of a parent domain (ibv_alloc_parent_domain()); NULL: this is a PD */
    struct shared *shared;  /* common state of all structures of the PD; NULL in a parent domain */
    bool abandoned;         /* unimported: the structure is freed with its last user */
    struct td *td;          /* of a parent domain, or NULL */
    void *(*allocate)(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment, uint64_t type);
    void (*release)(struct ibv_pd *pd, void *pd_context, void *memory, uint64_t type);
    void *pd_context;
};

/* A thread domain: the program promises to use its objects from one thread at a time. No lock is saved by that,
 * because uncontended locks take little time. */
struct td {
    struct ibv_td ibv;
    struct context *context;
    _Atomic uint32_t users; /* parent domains */
    uint32_t item;
};

struct mr {
    struct ibv_mr ibv;
    struct pd *pd;
    struct dm *dm;        /* registered device memory, or NULL */
    struct dmabuf dmabuf; /* registered dma-buf; at is NULL: none */
    struct dmah *dmah;    /* used by the region, or NULL */
    uint32_t slot;        /* of the key table */
    uint32_t access;      /* enum ibv_access_flags */
    uint64_t iova;
    struct mapping mapping;
    struct list mapping_node; /* in the list of mapped regions; under mapping_lock */
    bool fixed;               /* ibv_rereg_mr() is refused */
    /* ibv_import_mr() adds structures to a region; the first one is the region. Under keys_lock: */
    struct mr *of;       /* the region of an added structure; NULL: this is the region */
    uint32_t structures; /* of the region; freed when it has ended and the count is 0 */
    bool ended;          /* the region is deregistered */
    bool forgotten;      /* the program has given this structure back */
    /* Regions of other processes (object/memory/imported.c): */
    struct shared *exported; /* the entry by which other processes import this region, or NULL */
    struct shared *imported; /* the entry that this region was imported by, or NULL */
    uint32_t aliases[2];     /* imported: lkey and rkey of the original (rules/alias.h) */
    char *second;            /* imported: the second mapping of the memory */
    size_t second_length;
};

struct mw {
    struct ibv_mw ibv;
    struct pd *pd;
    uint32_t slot;
};

struct ah {
    struct ibv_ah ibv;
    struct pd *pd;
    uint8_t port, sgid_index;
    uint32_t item;
    struct path_address path;
};

static inline struct pd *pd_of(struct ibv_pd *pd)
{
    return container_of(pd, struct pd, ibv);
}
static inline struct td *td_of(struct ibv_td *td)
{
    return container_of(td, struct td, ibv);
}
static inline struct mr *mr_of(struct ibv_mr *mr)
{
    return container_of(mr, struct mr, ibv);
}
static inline struct mw *mw_of(struct ibv_mw *mw)
{
    return container_of(mw, struct mw, ibv);
}
static inline struct ah *ah_of(struct ibv_ah *ah)
{
    return container_of(ah, struct ah, ibv);
}

/* Guards changes of the key table; a leaf, below the QP's lock. */
extern struct lock keys_lock;

/* Unguessable bits for a new key; keys_lock held. */
uint32_t key_random(void);
/* In the child of a fork: frees keys_lock, and discards random bits that the parent may use, too. */
void keys_after_fork_in_child(void);

int pd_allocate(struct context *context, struct pd **ret_pd);
/* Ends the PD for all its structures. -EBUSY; -ENOENT: the PD has ended already, and the structure remains
 * until it is unimported. */
int pd_deallocate(struct pd *pd);
/* A structure for the PD with this handle, of any process that has the same device file (share.h). -EINVAL. */
int pd_import(struct context *context, uint32_t handle, struct pd **ret_pd);
/* Frees the structure when it has no users; the PD remains. */
void pd_unimport(struct pd *pd);
/* verb: the call, for explanations. */
int pd_use(struct pd *pd, const char *verb);
void pd_unuse(struct pd *pd);

static inline bool pd_is_parent_domain(const struct pd *pd)
{
    return pd->protects != NULL;
}

/* Makes a parent domain; the caller has called pd_use(protects), which the parent domain takes over. */
int pd_make_parent(struct context *context, struct pd *protects, struct pd **ret_pd);

/* object/pd/domain.c. Unknown comp_mask: -EINVAL. */
int td_allocate(struct context *context, const struct ibv_td_init_attr *attributes, struct td **ret_td);
int td_deallocate(struct td *td); /* -EBUSY */
int parent_domain_allocate(struct context *context, const struct ibv_parent_domain_init_attr *attributes,
                           struct pd **ret_pd);

/* The resource_type that a program's allocator gets (docs/conformance.md). */
enum queue_kind {
    QUEUE_SEND = 1,
    QUEUE_RECEIVE,
    QUEUE_SHARED_RECEIVE,
    QUEUE_WORK, /* of an ibv_wq */
    QUEUE_COMPLETION,
};

/* Memory of a queue: in the published segment, or from a parent domain's allocator, where other processes cannot
 * read it. */
struct queue_memory {
    char *at;
    uint64_t offset; /* in the segment; 0: from the program's allocator */
    size_t size;
};
/* Allocates zeroed memory; pd may be NULL. 0 or -ENOMEM; a size of 0 takes nothing. No lock held, because
 * allocators are code of the program. */
int queue_memory_take(struct pd *pd, enum queue_kind kind, size_t size, struct queue_memory *ret_memory);
void queue_memory_give(struct pd *pd, enum queue_kind kind, struct queue_memory *memory);

/* How many there are in this process. */
uint32_t mr_count(void);
/* ibv_reg_mr_iova2() with the checks of verbs.md §4.1. -EFAULT: the range is not mapped, or write access to
 * read-only memory. */
int mr_register(struct pd *pd, void *address, size_t length, uint64_t iova, unsigned access,
                struct mr **ret_mr);
struct dm;
/* ibv_alloc_null_mr(): reads return zeros, writes are discarded; without remote access. */
int mr_register_null(struct pd *pd, struct mr **ret_mr);
/* A range of device memory, zero based. -EINVAL: outside of the device memory. */
int mr_register_dm(struct pd *pd, struct dm *dm, uint64_t offset, size_t length, unsigned access,
                   struct mr **ret_mr);
/* Memory of a dma-buf (dmabuf_map()); iova and offset are equal modulo the page size. ibv_mr.addr is the offset. */
int mr_register_dmabuf(struct pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, unsigned access,
                       struct mr **ret_mr);
/* A further structure of a region of the PD, by its handle. -EINVAL: there is none; -EOPNOTSUPP: the region is
 * another process's, of memory that this process does not have. */
int mr_import(struct pd *pd, uint32_t handle, struct mr **ret_mr);
/* Frees the structure; the region remains. */
void mr_unimport(struct mr *mr);
/* Makes a region of any memory in a free slot of the key table. mappable: peers may map it; not for on-demand
 * memory, nor for memory that is shared between processes already. */
int mr_publish(struct pd *pd, enum key_kind kind, bool mappable, void *address, size_t length, uint64_t iova,
               unsigned access, struct mr **ret_mr);

/* object/memory/imported.c. Makes a region whose memory is of a file available for import to processes with the
 * same device file, and withdraws it. */
struct memory_file;
void region_export(struct mr *mr, const struct memory_file *file);
void region_unexport(struct mr *mr);
int region_import(struct pd *pd, uint32_t handle, struct mr **ret_mr);
/* Releases the aliases and the second mapping of an imported region. Its key is withdrawn, and its exposed
 * buffers are revoked, before. */
void region_release_import(struct mr *mr);

/* ibv_advise_mr(); -errno as verbs.md §4.7. */
int mr_advise(struct pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, const struct ibv_sge *list,
              uint32_t count);
/* ibv_rereg_mr(). 0, or enum ibv_rereg_mr_err_code (negative) with the -errno of the reason in *ret_error. */
int mr_reregister(struct mr *mr, int flags, struct pd *pd, void *address, size_t length, int access,
                  int *ret_error);
/* Ends the region for all its structures, and waits for accesses in progress. -EBUSY: windows are bound; -ENOENT:
 * the region has ended already, and the structure remains until it is unimported; -EOPNOTSUPP: the region is
 * another process's. */
int mr_deregister(struct mr *mr);
/* The region with the key in that slot; NULL: none. The caller prevents that it ends (mapping_lock). */
struct mr *mr_in_slot(uint32_t slot);

int mw_allocate(struct pd *pd, enum ibv_mw_type type, struct mw **ret_mw);
int mw_deallocate(struct mw *mw);

/* -EINVAL as verbs.md §8.2 says. Resolves whether the destination is on this host. */
int ah_create(struct pd *pd, const struct ibv_ah_attr *attributes, struct ah **ret_ah);
int ah_destroy(struct ah *ah);
/* Resolves the address vector of a connected QP to a path. */
int path_resolve(struct context *context, const struct ibv_ah_attr *attributes,
                 struct path_address *ret_path);

#endif
