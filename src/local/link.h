/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Links and their lanes; internal to local.
 *
 * The helper thread makes links (handshake.c); the link to ourselves is made by the thread that takes the
 * first QPN block. link_install() makes a link visible in links[]; link_table_set() enters it in the table of
 * blocks, for each block that was looked up (lookups.c) or that this process has taken (blocks.c). The helper
 * thread takes a link down: the rest of the rings is delivered, ops->link_leaving(), state DOWN, out of
 * tables and lists, ops->link_down(), rundown_wait(), free. Threads that found the link in a table are in a
 * rundown section while they use it.
 *
 * Locks of lanes (the other locks of local, and of other rooms: docs/locking.md):
 *
 *   lane.receive_lock    the reading side of a lane; held during ops->packet() and ops->batch_end()
 *   lane.transmit_lock   the writing side of a lane
 *   hot_lock             membership of hot[]; never acquired under receive_lock
 *   blocked_lock         membership of the list of blocked lanes
 *
 * Order:
 *
 *   receive_lock → locks of the engine → transmit_lock → blocked_lock
 *   hot_lock → transmit_lock
 *
 * hot_lock → receive_lock and blocked_lock → transmit_lock only with lock_try().
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
    /* The first cache line is all that a poller of an idle lane reads. Meanwhile it is rarely written: by
     * sweep(), by a thread that goes to sleep, and when a lane leaves hot[].
     *
     * next: word of the next record. Written under receive_lock; read by any thread in a rundown section. */
    _Atomic(const _Atomic uint64_t *) next;
    struct lock receive_lock;
    struct link *link;
    _Atomic int hot_index;                   /* in hot[], -1: cold; written under hot_lock */
    unsigned idle_sweeps;                    /* in a row without a record; hot_lock */
    const _Atomic uint64_t *swept_next;      /* `next` at the last sweep; hot_lock */
    struct ring_reader reader cache_aligned; /* receive_lock */
    /* Link to ourselves: payload by reference is being copied. Written under receive_lock; lane_revoke() waits. */
    _Atomic bool copies;
    struct lock transmit_lock cache_aligned;
    struct ring_writer writer; /* transmit_lock */
    /* lane_ring_later(): number of the helper's check at which the doorbell was delayed; 0: none is delayed. */
    _Atomic uint32_t ring_due;
    uint8_t ring_at_once;      /* so many of the next doorbells are not delayed; receive_lock */
    _Atomic uint8_t rung_late; /* delayed doorbells in a row that became overdue */
    _Atomic bool blocked;      /* ops->lane_writable() is still to come; written under blocked_lock */
    struct list blocked_node;  /* blocked_lock */
    char owner_data[LANE_OWNER_BYTES] cache_aligned;
} cache_aligned;

enum link_state { LINK_NEW, LINK_UP, LINK_DOWN };

struct notify_peer;

struct link {
    struct lane lanes[LOCAL_LANES];
    _Atomic uint32_t state; /* enum link_state */
    _Atomic bool broken;    /* the peer wrote invalid data: the helper thread will take the link down */
    bool is_self, is_connector;
    bool is_charged;  /* to the budget of the peer's user, by link_charge() */
    int peer_segment; /* descriptor of the published segment in the peer; -1: unknown */
    void *owner_data;
    bool may_pull;  /* this process can read the peer's memory, so the peer may send by reference */
    bool may_refer; /* the peer said that it can read our memory, so this process may send by reference */
    /* This process looks at the access slots that the peer takes, when it takes memory back. Set before the peer can
     * have mapped any; read by any thread. */
    _Atomic bool is_watched;
    uint8_t files_asked, files_given, files_owed; /* bits of enum link_file; helper thread */
    _Atomic bool primary; /* the first link to that process; written by the helper thread */
    unsigned index;       /* in links[] */
    uint64_t serial;      /* index in the lower bits */
    uint64_t process;     /* serial of the first link to that process, of those that were there at once */
    uint64_t identity;    /* process_identity() */
    pid_t peer_pid;
    uid_t peer_uid;
    uint8_t instance[INSTANCE_BYTES];
    /* owners.c: the blocks that the peer is known to own, a bit each; NULL: none. Of another user they are forgotten
     * OWNED_FOR after owned_since. Any thread in a rundown section. */
    _Atomic(_Atomic uint64_t *) owned;
    _Atomic ns_t owned_since;
    bool is_of_other_user;
    void *memory;               /* LAYOUT_SIZE bytes, shared; private memory in the link to ourselves */
    struct event_source socket; /* doorbell, and messages of notify.h */
    _Atomic uint8_t owed;       /* bit per message that the kernel did not take (doorbell.c) */
    _Atomic(struct notify_peer *) peer; /* notification page and channels that the peer offered; NULL: none */
    _Atomic uint64_t offered;  /* bit per channel that this process offered; the highest bit: the page */
    struct event_source pidfd; /* readable: the peer is dead; fd -1: the kernel has no pidfds */
};

/* Creates a link over `memory`, which is not visible yet. connector: this process writes direction 0 of each lane.
 * NULL: no memory. */
struct link *link_new(void *memory, bool connector);
void link_free(struct link *link);
/* Creates and maps a sealed memfd for a link; all lanes are cold. 0 or -errno. */
int link_memory_create(int *ret_fd, void **ret_memory);
/* Maps the memory that a connector sent, if it is a sealed memfd of LAYOUT_SIZE bytes. 0 or -errno. */
int link_memory_accept(int fd, void **ret_memory);

/* Makes a link visible and watches its socket and pidfd. 0; -ENFILE: LINKS_MAX links exist; another -errno. Helper
 * thread. */
int link_install(struct link *link);
/* Takes an installed link down and frees it. drain: first delivers what the peer wrote before it left. Helper
 * thread. */
void link_remove(struct link *link, bool drain, const char *why);
/* The peer wrote `what`, which is invalid: logs that, and the helper thread will remove the link. Any thread. */
void link_declare_broken(struct link *link, const char *what);
/* Removes the links that were declared broken. Helper thread. */
void link_remove_broken(void);
/* The link with this index; NULL: none, or it is not up. In a rundown section. */
struct link *link_at(unsigned index);
/* The first installed link to that process, NULL if there is none. uid: if the identity is 0. Helper thread. */
struct link *link_find(const uint8_t *instance, uint64_t identity, uid_t uid);
/* The primary link to a process of this identity, NULL if there is none. Without pidfs the number may have been reused
 * since: the caller checks the link's pidfd. In a rundown section, or the helper thread. */
struct link *link_find_process(uint64_t identity);
/* The number of links with one process. Helper thread. */
unsigned link_count(pid_t pid);
/* Counts the link and its descriptors in what the peer's user, another one than ours, may have of this process, until
 * link_free(). False: the user has enough. */
bool link_charge(struct link *link);
/* The link to ourselves, created by the first call; NULL: no memory. Any thread; callers serialise. */
struct link *local_self_link(void);
/* From here on this process looks at the access slots that the peer takes. Helper thread. */
void link_watch(struct link *link);
/* Rings the peer's helper thread (doorbell.c); message: LINK_RINGS, LINK_CHECK_LATER. */
void link_ring(struct link *link, uint8_t message);
/* True if fd, which may come from another process, is a memfd of that size that is safe to map. */
bool shared_memory_is_sound(int fd, size_t size);
void link_table_set(uint32_t block, struct link *link);
/* Forgets that the block leads to that link. Any thread. */
void link_table_clear(uint32_t block, struct link *link);
struct link *link_table_get(uint32_t block);
int link_start(void);
void link_after_fork_in_child(void);

static inline bool link_is_up(const struct link *link)
{
    return atomic_load_explicit(&link->state, memory_order_acquire) == LINK_UP;
}

/* --- progress.c: hot and blocked lanes ------------------------------------------------------------------ */

int progress_start(void);
void progress_after_fork_in_child(void);
/* Makes the rung lanes of the link hot; true if one became hot. speculative: no doorbell was received, but one may
 * be on its way; the check is cheap and may miss a lane. */
bool progress_rung(struct link *link, bool speculative);
/* Takes the lanes of a link that is DOWN off hot[] and the list of blocked lanes. */
void progress_forget(struct link *link);
/* Puts the lane on the list of blocked lanes; false: its link is down. Under its transmit_lock. */
bool lane_block(struct lane *lane);
/* The helper thread has woken: true if there are blocked lanes, which it has to poll. */
bool progress_awake(void);

#endif
