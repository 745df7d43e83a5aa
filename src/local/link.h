/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Links and their lanes, inside the room.
 *
 * A link is made by the helper thread (handshake.c; the link to ourselves by whoever takes the first QPN
 * block), becomes visible in links[] and in the table of blocks, and is taken down by the helper thread:
 * state DOWN, out of the tables and lists, ops->link_down(), a rundown, and only then unmapped. Threads that
 * found it are in a rundown section all the while.
 *
 * Locks, all leaves among themselves unless an arrow says so:
 *   lane.receive_lock    the reading side; held while ops->packet() and ops->batch_end() run, so engine locks
 * are below it lane.transmit_lock → blocked_lock hot_lock             membership of hot[]; may be taken under
 * receive_lock blocked_lock         membership of the list of blocked lanes
 */
#ifndef LOCAL_LINK_H
#define LOCAL_LINK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/event.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/types.h"
#include "local/local.h"
#include "local/ring.h"

#define INSTANCE_BYTES 16
#define LINKS_MAX      16384

struct lane {
    /* What pollers look at while nothing comes: one line that nobody writes then. */
    _Atomic(const _Atomic uint64_t *)
        next; /* word of the next record; written under receive_lock, read by anybody in a section */
    struct lock receive_lock;
    struct link *link;
    _Atomic int hot_index;              /* in hot[], -1: cold; written under hot_lock */
    unsigned idle_sweeps;               /* hot_lock */
    const _Atomic uint64_t *swept_next; /* hot_lock: `next` at the last sweep */
    void *owner_data;
    struct ring_reader reader cache_aligned; /* receive_lock */
    _Atomic bool copies;                     /* from memory of this process, just now; receive_lock */
    struct lock transmit_lock cache_aligned;
    struct ring_writer writer; /* transmit_lock */
    _Atomic(const char *)
        prefetch_at;           /* where the next record is likely to be written; likewise; read by anybody */
    _Atomic uint32_t ring_due; /* lane_ring_later(): in which look of the helper thread; 0: nothing waits */
    uint8_t ring_at_once;      /* so often it does not wait; receive_lock */
    _Atomic uint8_t rung_late; /* how often in a row it has waited in vain */
    _Atomic bool blocked;      /* ops->lane_writable() is still to come; written under blocked_lock */
    struct list blocked_node;  /* blocked_lock */
} cache_aligned;

enum link_state { LINK_NEW, LINK_UP, LINK_DOWN };

#define LINK_OWNED 8u

struct notify_peer;

struct link {
    struct lane lanes[LOCAL_LANES];
    _Atomic uint32_t state; /* enum link_state */
    _Atomic bool broken;    /* the peer wrote nonsense: the helper thread will take the link down */
    bool is_self, is_connector;
    int peer_segment; /* -1: not said */
    void *owner_data;
    bool may_pull;        /* we can read the peer's memory: its references are accepted */
    bool may_refer;       /* it can read ours: it said so */
    _Atomic bool primary; /* the first of our links to that process; written by the helper thread */
    unsigned index;       /* in links[] */
    uint64_t serial;      /* index in the lower bits */
    pid_t peer_pid;
    uid_t peer_uid;
    uint8_t instance[INSTANCE_BYTES];
    /* Blocks that the kernel says the peer owns, 0: none; the next one takes the place of the oldest. */
    _Atomic uint32_t owned[LINK_OWNED];
    _Atomic uint32_t owned_turn;
    void *memory;                       /* LAYOUT_SIZE bytes, shared; private in the link to ourselves */
    struct event_source socket;         /* doorbell */
    _Atomic(struct notify_peer *) peer; /* notify.c: what it has offered us; NULL: nothing */
    _Atomic uint64_t offered;           /* bits: channels that we have offered; the highest: the page */
    struct event_source pidfd;          /* readable: the peer is dead; fd -1 where there are no pidfds */
};

/* Makes a link over `memory`, not yet visible. connector: we write direction 0 of each lane. NULL: no memory.
 */
struct link *link_new(void *memory, bool connector);
void link_free(struct link *link);
/* Creates a sealed memfd for a link, maps it and arms all doorbells. 0 or -errno. */
int link_memory_create(int *ret_fd, void **ret_memory);
/* Maps what a connector sent, if it is what it should be. 0 or -errno. */
int link_memory_accept(int fd, void **ret_memory);

/* Helper thread (the link to ourselves: local_self_link()): makes it visible. 0, -ENFILE when there are too
 * many. */
int link_install(struct link *link);
/* Takes an installed link down and frees it; drain: what the peer wrote before it left is delivered first.
 * Helper thread. */
void link_remove(struct link *link, bool drain, const char *why);
/* Any thread: the helper thread shall remove it. */
void link_declare_broken(struct link *link, const char *what);
/* Helper thread: removes links declared broken. */
void link_remove_broken(void);
/* The first installed link to that process, NULL if there is none. Helper thread. */
struct link *link_find(const uint8_t *instance, pid_t pid, uid_t uid);
/* Our primary link to a process of this number, NULL if there is none; whether it is that process is not
 * said. In a section, or the helper thread. */
struct link *link_find_process(pid_t pid, uid_t uid);
/* How many links a process, and how many processes of other users, have made with us. Helper thread. */
void link_count(pid_t pid, unsigned *ret_of_pid, unsigned *ret_of_others);
/* The link to ourselves, made at the first call; NULL without memory. Any thread; the caller serialises. */
struct link *local_self_link(void);
/* Rings the peer's helper thread; message: LINK_RINGS, LINK_RINGS_LATER. */
void link_ring(struct link *link, uint8_t message);
/* A memfd of that size, sealed against change of size, or -errno. */
int shared_memory_create(const char *name, size_t size);
/* Is it one, whoever made it? */
bool shared_memory_is_sound(int fd, size_t size);
void link_table_set(uint32_t block, struct link *link);
struct link *link_table_get(uint32_t block);
int link_start(void);
void link_after_fork_in_child(void);

static inline bool link_is_up(const struct link *link)
{
    return atomic_load_explicit(&link->state, memory_order_acquire) == LINK_UP;
}

/* --- progress.c: hot and blocked lanes -------------------------------------------------------------------
 */

int progress_start(void);
void progress_after_fork_in_child(void);
/* After a doorbell: heats the lanes of the link that were rung. Returns true if any became hot. glance: there
 * was none, but there may be one on the way; the look is cheap and may miss a lane. */
bool progress_rung(struct link *link, bool glance);
/* Takes the lanes of a link that is DOWN off every list. */
void progress_forget(struct link *link);
/* Puts the lane on the list of blocked ones; false if its link is going down. Under its transmit_lock. */
bool lane_block(struct lane *lane);
/* The helper thread is awake, and what it slept for may be over: true if there is something to poll for. */
bool progress_awake(void);

#endif
