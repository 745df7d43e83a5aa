/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Protection domains, memory regions and windows, address handles (verbs.md §4, §8.2). */
#ifndef OBJECT_PD_PD_H
#define OBJECT_PD_PD_H

#include <infiniband/verbs.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "object/device/context.h"
#include "object/memory/dmabuf.h"
#include "object/memory/mapping.h"
#include "segment/segment.h"

struct pd {
    struct ibv_pd ibv;
    struct context *context;
    struct pd_record *record;
    uint32_t number;        /* of the protection domain: what access checks compare */
    uint32_t record_number; /* its own; differs from number in a parent domain */
    struct lock lock;       /* state and users of the record change under it */
    /* A parent domain (ibv_alloc_parent_domain): */
    struct pd *protects;   /* the PD that it stands for; NULL: this is a PD itself */
    struct shared *shared; /* of a PD: what all that name the same one have in common */
    bool abandoned;        /* unimported, and goes with its last user */
    struct td *td;         /* or NULL */
    void *(*allocate)(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment, uint64_t type);
    void (*release)(struct ibv_pd *pd, void *pd_context, void *memory, uint64_t type);
    void *pd_context;
};

/* A promise of the program's to use what is made in it by one thread at a time. Our locks cost next to
 * nothing where they are free, so nothing follows from it. */
struct td {
    struct ibv_td ibv;
    struct context *context;
    _Atomic uint32_t users; /* parent domains */
    uint32_t item;
};

struct mr {
    struct ibv_mr ibv;
    struct pd *pd;
    struct dm *dm;        /* the device memory that it is of, or NULL */
    struct dmabuf dmabuf; /* likewise */
    uint32_t slot;
    uint32_t access;
    uint64_t iova;
    struct mapping mapping;
    struct list mapping_node; /* in the list of mapped regions */
    bool fixed;               /* cannot be registered anew */
    /* ibv_import_mr() makes further structures of a region: */
    struct mr *of;       /* the first one, which is the region; NULL: this one */
    uint32_t structures; /* of the region, until it has ended and none is left; under keys_lock */
    bool ended;          /* likewise */
    bool forgotten;      /* likewise: the program has given this structure back */
    /* object/memory/imported.c: what other processes see of it, or it is another process's: */
    struct shared *exported, *imported;
    uint32_t aliases[2]; /* of an imported one: its keys */
    char *second;        /* likewise: our second mapping of the memory */
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

/* Serialises changes of the key table; a leaf below the QP's lock. */
extern struct lock keys_lock;

/* Unguessable bits for a new key; keys_lock held. */
uint32_t key_random(void);
/* In the child of a fork: keys_lock is free, and its keys are not those that the parent goes on with. */
void keys_after_fork_in_child(void);

int pd_allocate(struct context *context, struct pd **ret_pd);
/* The end of the PD, whichever of its structures that is: -EBUSY; -ENOENT: it has ended already, and the
 * structure stays until it is unimported. */
int pd_deallocate(struct pd *pd);
/* The PD with this handle, of whichever process has the device by the same file (share.h). -EINVAL. */
int pd_import(struct context *context, uint32_t handle, struct pd **ret_pd);
/* The structure goes, when nothing uses it any more; the PD stays. */
void pd_unimport(struct pd *pd);
int pd_use(struct pd *pd);
void pd_unuse(struct pd *pd);

static inline bool pd_is_parent_domain(const struct pd *pd)
{
    return pd->protects != NULL;
}

/* A parent domain of a PD that is in use: by it, from now on. */
int pd_make_parent(struct context *context, struct pd *protects, struct pd **ret_pd);

/* object/pd/domain.c. Unknown comp_mask: -EINVAL. */
int td_allocate(struct context *context, const struct ibv_td_init_attr *attributes, struct td **ret_td);
int td_deallocate(struct td *td); /* -EBUSY */
int parent_domain_allocate(struct context *context, const struct ibv_parent_domain_init_attr *attributes,
                           struct pd **ret_pd);

/* What a program's allocator is asked for: the resource_type that it gets (docs/conformance.md). */
enum queue_kind {
    QUEUE_SEND = 1,
    QUEUE_RECEIVE,
    QUEUE_SHARED_RECEIVE,
    QUEUE_WORK, /* of an ibv_wq */
    QUEUE_COMPLETION,
};

/* Memory of a queue: in the published segment, or from a parent domain's allocator, where nobody outside the
 * process can look into it. */
struct queue_memory {
    char *at;
    uint64_t offset; /* in the segment; 0: the program's */
    size_t size;
};
/* Zeroed. pd may be NULL. No lock held: allocators are the program's code. 0 or -ENOMEM; size 0: nothing. */
int queue_memory_take(struct pd *pd, enum queue_kind kind, size_t size, struct queue_memory *ret_memory);
void queue_memory_give(struct pd *pd, enum queue_kind kind, struct queue_memory *memory);

/* addr, length, iova, access as ibv_reg_mr_iova2; checks the rules of §4.1 (ranges mapped: -EFAULT; write
 * rights on read-only memory: -EFAULT). */
int mr_register(struct pd *pd, void *address, size_t length, uint64_t iova, unsigned access,
                struct mr **ret_mr);
struct dm;
/* Reads give zeros, writes vanish; of no use to peers. */
int mr_register_null(struct pd *pd, struct mr **ret_mr);
/* A part of device memory, zero based: -EINVAL if it is not inside. */
int mr_register_dm(struct pd *pd, struct dm *dm, uint64_t offset, size_t length, unsigned access,
                   struct mr **ret_mr);
/* Memory of a dma-buf (dmabuf_map()); iova and offset agree within a page. ibv_mr.addr is the offset. */
int mr_register_dmabuf(struct pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, unsigned access,
                       struct mr **ret_mr);
/* A region of the PD, by its handle. -EINVAL: there is none; -EOPNOTSUPP: another process's, of memory that
 * this one does not have. */
int mr_import(struct pd *pd, uint32_t handle, struct mr **ret_mr);
/* The structure goes, the region stays. */
void mr_unimport(struct mr *mr);
/* In a free slot of the key table, of whatever memory. mappable: by peers; not what need not be there, nor
 * what other processes share already. */
int mr_publish(struct pd *pd, enum key_kind kind, bool mappable, void *address, size_t length, uint64_t iova,
               unsigned access, struct mr **ret_mr);

/* object/memory/imported.c. Other processes that have the device by the same file import it, if the memory is of a
 * file; then they have it no more. */
struct memory_file;
void region_export(struct mr *mr, const struct memory_file *file);
void region_unexport(struct mr *mr);
int region_import(struct pd *pd, uint32_t handle, struct mr **ret_mr);
/* Of an imported one: its key is withdrawn, and nothing is lent any more. */
void region_let_go(struct mr *mr);

/* ibv_advise_mr(); -errno as verbs.md §4.7. */
int mr_advise(struct pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, const struct ibv_sge *list,
              uint32_t count);
/* enum ibv_rereg_mr_err_code on failure (negative), 0 on success; errno of the reason in *ret_error. */
int mr_reregister(struct mr *mr, int flags, struct pd *pd, void *address, size_t length, int access,
                  int *ret_error);
/* The end of the region, whichever of its structures that is: -EBUSY while windows are bound; -ENOENT: it has
 * ended already, and the structure stays until it is unimported; -EOPNOTSUPP: another process's. Waits for
 * accesses under way. */
int mr_deregister(struct mr *mr);

int mw_allocate(struct pd *pd, enum ibv_mw_type type, struct mw **ret_mw);
int mw_deallocate(struct mw *mw);

/* -EINVAL as §8.2; resolves whether the destination is on this host. */
int ah_create(struct pd *pd, const struct ibv_ah_attr *attributes, struct ah **ret_ah);
int ah_destroy(struct ah *ah);
/* The same resolution for connected QPs: fills a path from an address vector. */
int path_resolve(struct context *context, const struct ibv_ah_attr *attributes,
                 struct path_address *ret_path);

#endif
