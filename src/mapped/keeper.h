/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The thread that keeps the room's descriptors, and works with them.
 *
 * It has a descriptor table of its own: programs close descriptors that they do not know, truncate them or
 * put others in their place, and none of that reaches it; nor does a child inherit them. And while pages of
 * the program are switched, it touches no memory but its own: it has a stack and a thread control block that
 * nobody registers, and every signal blocked. It starts when it is needed first and sleeps when nothing is
 * asked of it. */
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
    int uffd;             /* -1: not allowed here */
    bool uffd_full;       /* system calls wait, too; otherwise user mode only */
    bool can_protect;     /* UFFD_FEATURE_WP_HUGETLBFS_SHMEM: shared pages can be write-protected */
    size_t control_block; /* of every thread, from the list of robust mutexes to the end; 0: not known */
    uint64_t arena_inode[KEEPER_ARENAS];
    uint64_t arena_device;
};
/* What the thread opened; constant once keeper_start() has succeeded, until a fork. */
extern struct keeper keeper;

/* For tests: as if the kernel allowed less. Before the first keeper_start(). */
enum keeper_limits {
    KEEPER_NO_UFFD = 1,
    KEEPER_USER_MODE = 2,
    KEEPER_NO_SHARED_PROTECT = 4,
    KEEPER_SINGLE_MREMAP = 8, /* one mapping at a time */
    KEEPER_READ_MAPS = 16,    /* no PROCMAP_QUERY */
};
extern unsigned keeper_limits;
/* And: the so-manieth step of a switch from now on fails; 0: none does. */
extern unsigned keeper_fail_in;

/* 0 or -errno; what failed once is not tried again. */
int keeper_start(void);
/* Runs the function in the thread and waits until it has returned. One at a time. Copies what it needs out of
 * the argument before it switches pages: the argument may be on a page that is being switched. */
void keeper_call(void (*function)(void *argument), void *argument);
/* In the thread: gives a descriptor that was just opened its place. -errno. */
int keeper_keep(int fd);
/* Opens a descriptor of the thread's in the table of the caller: the same file, another description. -errno.
 */
int keeper_open(int fd, int flags);
void keeper_after_fork_in_child(void);

#endif
