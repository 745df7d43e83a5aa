/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The device file (verbs.md §4.9, §10.8): a sealed memfd that stands for an open device. ibv_context.cmd_fd is a
 * descriptor of it. A process that gets such a descriptor imports the device by it, as by the device file of a
 * kernel driver: all processes with the file share its PDs, its device memory and its exported regions. */
#ifndef OBJECT_MEMORY_SHARE_H
#define OBJECT_MEMORY_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "object/memory/memory.h"

#define SHARE_PROCESSES 48u   /* processes that have the device file open at the same time */
#define SHARE_DMS       128u  /* device memories of one file */
#define SHARE_REGIONS   2048u /* exported regions of one file */

/* A device file as this process has it open: one per process and file, for any number of contexts. */
struct share_page;
struct share {
    struct list all;     /* in the list of this process; under shares_lock */
    uint32_t generation; /* process_generation() when opened */
    uint32_t references; /* contexts; under shares_lock */
    uint32_t index;      /* of this process in page->process */
    uint32_t first_free; /* PD handles below are in use, as far as this process knows; under lock */
    uint8_t id[16];
    uint64_t device, inode; /* of the file */
    uint32_t owner;         /* user id of the file's owner */
    struct share_page *page;
    struct lock lock;    /* a leaf; guards the list, and the counts in its entries */
    struct list objects; /* struct shared */
};

/* Creates a device file; the caller owns *ret_fd. -EMFILE, -ENOMEM... */
int share_open(const uint8_t node_guid[8], struct share **ret_share, int *ret_fd);
/* Opens the device file of a descriptor, which the caller keeps. -EINVAL: not a device file of SoftHCA; -ENOMEM:
 * no memory, or too many processes. */
int share_adopt(int fd, uint8_t ret_node_guid[8], struct share **ret_share);
/* Drops the reference of a context. */
void share_close(struct share *share);
void share_after_fork_in_child(void);
/* Is another, running process at this index? *ret_pid: its pid, for messages. */
bool share_knows_process(const struct share *share, uint32_t index, uint32_t *ret_pid);

/* --- objects that processes share ----------------------------------------------------------------------- */

enum share_kind { SHARE_PD, SHARE_DM, SHARE_MR };

/* An object of the device file, as this process uses it: common to all its structures (ibv_pd, ibv_dm) for the
 * object. The first destroy that succeeds ends the object for all structures in all processes. A structure is
 * freed by that destroy, or by unimport. */
struct shared {
    struct list node;
    struct share *share;
    enum share_kind kind;
    uint32_t handle, generation;
    uint32_t structures;
    uint32_t users;  /* of all structures */
    uint32_t number; /* PD: what access checks compare, the record number of the process's first structure */
};

/* Allocates a handle with its first structure; not found by others before shared_publish(). -ENOMEM. */
int shared_create(struct share *share, enum share_kind kind, uint32_t number, struct shared **ret_shared);
void shared_publish(struct shared *shared);
/* Adds a structure; number: for the first structure of this process. -EINVAL: there is no such object. */
int shared_find(struct share *share, enum share_kind kind, uint32_t handle, uint32_t number,
                struct shared **ret_shared);
/* -EINVAL: the object has ended. */
int shared_use(struct shared *shared);
void shared_unuse(struct shared *shared);
bool shared_is_alive(const struct shared *shared);
/* The condition for shared_is_alive(), to be checked without *shared: (*word & mask) == value. */
const _Atomic uint64_t *shared_word(const struct shared *shared, uint64_t *ret_mask, uint64_t *ret_value);
/* Ends the object for all processes. -EBUSY: in use in this process or another; -ENOENT: it has ended already.
 * The handle, and what is stored for it, belongs to the caller until shared_give_handle(). */
int shared_end(struct shared *shared);
void shared_give_handle(struct shared *shared);
/* Removes a structure. True: it was the last one of this process, and *shared is freed. */
bool shared_drop(struct shared *shared);

/* --- regions -------------------------------------------------------------------------------------------- */

/* An exported region: of a shared mapping of a file, or of device memory. In the device file, so a format between
 * processes (SHARE_VERSION in share.c). */
struct share_region {
    uint32_t handle; /* ibv_mr.handle */
    uint32_t lkey, rkey, access;
    uint32_t pd, pd_generation;
    uint64_t iova, length;
    struct memory_file file;
};
/* After shared_create() and before shared_publish(). */
void share_region_fill(const struct shared *shared, const struct share_region *region);
/* Finds the region of the PD with the handle of an ibv_mr, of any process; *ret_shared as by shared_find().
 * -EINVAL: there is none. */
int share_region_find(const struct shared *pd, uint32_t handle, struct share_region *ret_region,
                      struct shared **ret_shared);
/* Is the file the device file, and the memory device memory? */
bool share_is_file(const struct share *share, const struct memory_file *file);

/* --- device memory -------------------------------------------------------------------------------------- */

#define SHARE_UNIT 4096u

/* Allocates consecutive units for a device memory; free units are zero. -ENOMEM. */
int share_memory_take(struct share *share, uint32_t handle, uint64_t length);
/* The address and length of a device memory; -EINVAL: the values in the file are impossible. */
int share_memory_find(const struct share *share, uint32_t handle, char **ret_at, uint64_t *ret_length);
/* Clears and frees the units. fd: of the device file. */
void share_memory_give(struct share *share, int fd, const char *at, uint64_t length);

#endif
