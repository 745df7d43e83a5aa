/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The thread that owns the room's descriptors and uses them.
 *
 * The keeper has a descriptor table of its own: programs close, truncate or replace descriptors that they do not
 * know, and none of that affects this table; a child does not inherit it either. While pages of the program are
 * switched, the keeper touches no memory of the program: its stack and thread control block are never registered, and
 * every signal is blocked. The keeper starts with the first call and sleeps between calls. */
#ifndef MAPPED_KEEPER_H
#define MAPPED_KEEPER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define KEEPER_ARENAS 2

struct keeper {
    pid_t thread;
    int arena[KEEPER_ARENAS];
    int pagemap, status;
    int uffd;         /* negative: not allowed in this process */
    bool uffd_full;   /* system calls wait, too; otherwise user mode only */
    bool can_protect; /* UFFD_FEATURE_WP_HUGETLBFS_SHMEM: shared pages can be write-protected */
    /* Length of a thread's control block, from the list of robust mutexes to its end; 0: not known. */
    size_t control_block;
    uint64_t arena_inode[KEEPER_ARENAS];
    uint64_t arena_device;
};
/* The descriptors of the thread; constant from the success of keeper_start() until a fork. */
extern struct keeper keeper;

/* For tests: pretend that the kernel allows less. Set before the first keeper_start(). */
enum keeper_limits {
    KEEPER_NO_UFFD = 1,
    KEEPER_USER_MODE = 2,
    KEEPER_NO_SHARED_PROTECT = 4,
    KEEPER_SINGLE_MREMAP = 8, /* mremap() moves one mapping at a time */
    KEEPER_READ_MAPS = 16,    /* no PROCMAP_QUERY */
    KEEPER_OLD_UFFD = 32,     /* as before Linux 5.14 */
};
extern unsigned keeper_limits;
/* For tests: the step of a switch with this number, counted from now, fails; 0: none does. */
extern unsigned keeper_fail_in;

/* 0 or -errno; a failed start is not tried again. */
int keeper_start(void);
/* Runs the function in the keeper and waits for its return. One call at a time. The function copies its argument
 * before it switches pages: the argument may be on a page that is being switched. */
void keeper_call(void (*function)(void *argument), void *argument);
/* In the keeper: moves a new descriptor to its final number. Returns it, or -errno. */
int keeper_keep(int fd);
/* Opens a file of the keeper in the descriptor table of the caller: the same file, another open file description.
 * -errno. */
int keeper_open(int fd, int flags);
/* In any thread, of a userfaultfd just opened, which is of no use afterwards: UFFDIO_API works once per descriptor. 0;
 * -EOPNOTSUPP: it cannot do what switching takes. */
int keeper_features(int uffd, uint64_t *ret_features);
void keeper_after_fork_in_child(void);

#endif
