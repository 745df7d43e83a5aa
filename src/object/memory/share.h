/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The file that stands for an open device (verbs.md §4.9, §10.8): a sealed memfd, which
 * ibv_context.cmd_fd is a descriptor of. Whoever has one, in this process or another, imports the device by
 * it, as with the device file of a kernel driver: its PDs and its device memory are those of all who have it.
 */
#ifndef OBJECT_MEMORY_SHARE_H
#define OBJECT_MEMORY_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/lock.h"
#include "object/memory/memory.h"

#define SHARE_PROCESSES 48u  /* that have one device open by its file, at a time */
#define SHARE_DMS       128u /* device memories of one file */
#define SHARE_REGIONS   2048u

/* One per process and file, whatever number of contexts it has of it. */
struct share_page;
struct share {
    struct list all;     /* of this process */
    uint32_t generation; /* of the process */
    uint32_t references; /* contexts */
    uint32_t index;      /* which of its processes we are */
    uint32_t first_free; /* no PD's handle below is free, as far as this process knows; under lock */
    uint8_t id[16];
    uint64_t device, inode; /* of the file */
    uint32_t owner;         /* user whose file it is */
    struct share_page *page;
    struct lock lock;    /* a leaf: what follows, and the counts of what is in it */
    struct list objects; /* struct shared */
};

/* *ret_fd is the caller's. -EMFILE, -ENOMEM... */
int share_open(const uint8_t node_guid[8], struct share **ret_share, int *ret_fd);
/* The descriptor stays the caller's. -EINVAL: it is none of ours; -ENOMEM, also: too many processes. */
int share_adopt(int fd, uint8_t ret_node_guid[8], struct share **ret_share);
/* A context less. */
void share_close(struct share *share);
void share_after_fork_in_child(void);
/* Has another process that place, and lives? Its number, for people. */
bool share_knows_process(const struct share *share, uint32_t index, uint32_t *ret_pid);

/* --- objects that processes share ----------------------------------------------------------------------- */

enum share_kind { SHARE_PD, SHARE_DM, SHARE_MR };

/* What the structures of this process (ibv_pd, ibv_dm) that name one object have in common. The object ends
 * for all of them, and for other processes, with the first destroy that succeeds; a structure goes by that,
 * or by unimport. */
struct shared {
    struct list node;
    struct share *share;
    enum share_kind kind;
    uint32_t handle, generation;
    uint32_t structures;
    uint32_t users;  /* of all of these */
    uint32_t number; /* of a PD: what access checks compare; the first structure's own */
};

/* Takes a handle; number: see above. With it, its first structure. Nobody finds it before
 * shared_publish(). -ENOMEM. */
int shared_create(struct share *share, enum share_kind kind, uint32_t number, struct shared **ret_shared);
void shared_publish(struct shared *shared);
/* A further structure; `number` if it is the first of this process. -EINVAL: there is no such object. */
int shared_find(struct share *share, enum share_kind kind, uint32_t handle, uint32_t number,
                struct shared **ret_shared);
/* -EINVAL: it has ended. */
int shared_use(struct shared *shared);
void shared_unuse(struct shared *shared);
bool shared_is_alive(const struct shared *shared);
/* The same without *shared: as long as (*word & mask) == value. */
const _Atomic uint64_t *shared_word(const struct shared *shared, uint64_t *ret_mask, uint64_t *ret_value);
/* The end for everybody: -EBUSY, in this process or another; -ENOENT: it has ended already. What belongs to
 * the handle stays the caller's until shared_give_handle(). */
int shared_end(struct shared *shared);
void shared_give_handle(struct shared *shared);
/* A structure less. Was it the last one of this process? Then *shared is gone. */
bool shared_drop(struct shared *shared);

/* --- regions -------------------------------------------------------------------------------------------- */

/* A region of memory that other processes may have, too: shared mappings of files, and device memory. */
struct share_region {
    uint32_t handle; /* ibv_mr.handle */
    uint32_t lkey, rkey, access;
    uint32_t pd, pd_generation;
    uint64_t iova, length;
    struct memory_file file;
};
/* Of one that was created, before shared_publish(). */
void share_region_fill(const struct shared *shared, const struct share_region *region);
/* That of the PD with the handle of an ibv_mr, whichever process's; *ret_shared as shared_find(). -EINVAL:
 * there is none. */
int share_region_find(const struct shared *pd, uint32_t handle, struct share_region *ret_region,
                      struct shared **ret_shared);
/* Is the file the device's own, so that it is device memory? */
bool share_is_file(const struct share *share, const struct memory_file *file);

/* --- device memory -------------------------------------------------------------------------------------- */

#define SHARE_UNIT 4096u

/* Clears nothing: what is free is zero. Units, consecutive; -ENOMEM. */
int share_memory_take(struct share *share, uint32_t handle, uint64_t length);
/* Where it is, and its length; -EINVAL: what other processes say of it cannot be. */
int share_memory_find(const struct share *share, uint32_t handle, char **ret_at, uint64_t *ret_length);
/* fd: of the file. */
void share_memory_give(struct share *share, int fd, const char *at, uint64_t length);

#endif
