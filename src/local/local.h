/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Public header of local: how processes of one host, in one network namespace, exchange packets.
 *
 *   Names   QP numbers are granted in blocks of 256. A process owns a block while it listens on the abstract unix
 *           socket named after the block; a process that wants to reach a QP number connects to that socket. So the
 *           kernel arbitrates ownership, ends it at death, and limits it to the network namespace. A process can
 *           take further names in the same way, for services that peers find without knowing a QP number.
 *   Links   A link joins two processes, or a process with itself. It consists of a sealed memfd with LOCAL_LANES
 *           pairs of rings, which the connector creates and the acceptor checks, and of the connected socket, which
 *           stays open as doorbell. Both processes send on one link.
 *   Lanes   The QP number selects one of a link's lanes; packets of one lane keep their order. A hot lane, which
 *           had packets lately, is polled. The writer of a cold lane rings the doorbell, which wakes the helper
 *           thread.
 *   Death   When the peer died (pidfd) or closed the socket, the link is reported down once, and freed after a
 *           rundown (base/rundown.h).
 */
#ifndef LOCAL_LOCAL_H
#define LOCAL_LOCAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/notify.h"
#include "base/types.h"
#include "published/control_request.h"
#include "published/segment_request.h"
#include "wire/packet.h"

#define LOCAL_LANES      4
#define LOCAL_BLOCK_QPNS SEGMENT_REQUEST_BLOCK_QPNS
/* The lower bits of a block's number are its shard. All blocks of a process have one shard, and other processes have
 * other ones as long as there are free ones (local/blocks.c). Shard 0 belongs to no process: its blocks are for users
 * whom others leave no name (local/block_names.h). */
#define LOCAL_SHARDS 64u

struct link;
struct lane; /* of a link: a ring to the peer and one from the peer */

/* Files of memory that a peer asks for over the link. */
enum link_file {
    LINK_FILE_TABLES,    /* of the published segment, SEGMENT_TABLES; read-only */
    LINK_FILE_WRITABLE,  /* the arena of memory that peers write */
    LINK_FILE_READ_ONLY, /* the arena of memory that peers only read; read-only */
    LINK_FILES,
};
#define LINK_SECRET_BYTES 16

/* Callbacks of the engine. packet and batch_end run in local_poll(), inside a rundown section and with the lane's
 * receive lock held. A callback marked optional may be NULL. */
struct local_ops {
    /* A packet has arrived. Its payload and references are valid during the call only. */
    void (*packet)(struct lane *lane, const struct packet *packet);
    /* End of a batch of packets from one lane: acknowledge and send. */
    void (*batch_end)(struct lane *lane);
    /* The end of local_resolve(): the link to the block's owner; NULL: no owner, or the owner cannot be reached, and
     * local_resolve() may try again later. Helper thread. */
    void (*resolved)(uint32_t block, struct link *link);
    /* Optional. local_link_is_coming() may have become false. Helper thread. */
    void (*settled)(void);
    /* Optional. Records that lane_peek() shows have arrived: takes those it likes, at most `budget`, by lane_take(),
     * and returns their number. What it leaves goes to packet(), unless it sets *ret_ends: then the batch ends, and
     * nobody looks whether more has come. Under the lane's receive lock, in a rundown section. */
    unsigned (*small)(struct lane *lane, unsigned budget, bool *ret_ends);
    /* The end of local_name_search(): the link to the holder; NULL: no holder, or the holder cannot be reached.
     * Helper thread. */
    void (*found)(uint64_t cookie, struct link *link);
    /* The peer died or closed the link. Called once, by the helper thread, without a lane lock; the link is freed
     * after this callback and a rundown. */
    void (*link_down)(struct link *link);
    /* Optional. Precedes link_down(), while local_for_each_link() still visits the link. */
    void (*link_leaving)(struct link *link);
    /* Optional. The peer has called link_want_mapped(). Helper thread. */
    void (*wanted)(uint32_t slot, uint32_t step);
    /* The ring to the peer has space again after lane_send() returned -EAGAIN. Any thread, without locks. */
    void (*lane_writable)(struct lane *lane);
    /* Optional. A new link, which no other thread can find yet: the engine initialises lane_owner_data(). The helper
     * thread, or the thread that takes the first block. */
    void (*link_made)(struct link *link);
    /* Opens the files of this process's published segment (segment/segment.h), read-only. 0 or -errno. Helper
     * thread. */
    int (*published)(int ret_fds[SEGMENT_REQUEST_FILES]);
    /* Optional. The number of the published segment's descriptor, which peers open through /proc/PID/fd where the
     * kernel permits; -1: none. Helper thread. */
    int (*segment)(void);
    /* Optional. False: no peer has a reason yet to have the kernel copy from or to memory of this process. Helper
     * thread. */
    bool (*expects_copies)(void);
    /* Optional. Opens a file of this process for a peer. 0 or more, or -errno: there is none yet. Helper thread. */
    int (*open_file)(enum link_file which);
    /* Optional. Has the peer quoted the secret of our segment, which it can know only if it has read the segment?
     * Helper thread. */
    bool (*knows_segment)(const uint8_t secret[LINK_SECRET_BYTES]);
    /* Optional. A tool that may trace this process asks for something; file: the descriptor that it sent, which stays
     * the caller's, or -1. 0: done. 1: done, and it lasts until control_ended(). -errno, with the reason in why,
     * where a sentence stands already that says that the subject is not known. Helper thread, without locks. */
    int (*control)(enum control_subject subject, int file, char *why, size_t size);
    /* With `control`: what lasted ends, because the tool has closed the connection, or is gone. */
    void (*control_ended)(enum control_subject subject);
    /* Optional. The answer to link_ask_file(): a descriptor, which the callee takes over, or -1: the peer does not give
     * it. Helper thread. */
    void (*file_came)(struct link *link, enum link_file which, int fd);
};

/* --- this process --------------------------------------------------------------------------------------- */

/* At first use, and again in a forked child: draws the instance ID, reads SOFTHCA_LOCAL, creates the epoll set. 0 or
 * -errno. */
int local_start(const struct local_ops *ops);
/* pthread_atfork, in the child: forgets all state and closes the descriptors, without touching shared memory. */
void local_after_fork_in_child(void);
/* A descriptor for the helper thread's epoll set: readable when local_dispatch() has something to do (handshakes,
 * doorbells, deaths, timers). */
int local_event_fd(void);
/* Handles what made the descriptor readable. Helper thread only, without locks and outside rundown sections, because
 * local_dispatch() waits for rundowns. True: packets may have arrived, or lanes may be writable, so the caller polls
 * now. *ret_look_later: a peer rang a completion channel, and the caller checks later that its reader came. */
bool local_dispatch(bool *ret_look_later);

/* Allocates a QP number that is unique on the host and never 0, 1 or 0xffffff. A released number is not granted again
 * before the others of the process. May take a new block, that is, bind a socket. 0, -EAGAIN, -EMFILE... */
int local_qpn_allocate(uint32_t *ret_qpn);
void local_qpn_release(uint32_t qpn);
/* Takes a further block, for a caller that uses all of its numbers at once. 0 or as above. */
int local_block_take(uint32_t *ret_block);
/* The listening socket by which this process owns the block, and which proves the ownership to others; -1: not the
 * owner. The socket stays open. */
int local_block_socket(uint32_t block);
/* True if fd, which came over the connection from another process, is the listening socket of the block in the network
 * namespace of the connection. */
bool local_is_block_socket(int fd, uint32_t block, int connection);
/* The name of the block's owner, for local_name_find() and local_name_search(). */
#define LOCAL_BLOCK_NAME_MAX 17
void local_block_name(uint32_t block, char ret_text[LOCAL_BLOCK_NAME_MAX + 1]);
/* The link to the block's owner if it is known already, else NULL. In a rundown section. */
struct link *local_known_owner(uint32_t block);
/* True if the peer of the link owns the block, and so speaks for the QP numbers in it (owners.c). Asks the kernel
 * unless that is known; false also if the kernel does not say, or the peer's user has caused too many questions. In a
 * rundown section. */
bool local_is_owner(struct link *link, uint32_t block);
/* False: what local_is_owner() said may have changed, so the caller does not keep it. */
bool link_owns_for_good(const struct link *link);

/* Connects to the abstract socket of a tool of this user, or of root, that waits there for this process to start, and
 * takes its request as if the tool had asked. Waits for the tool, for seconds at most; under the engine's start lock,
 * before there is a helper thread. */
void local_invite_control(const char *name);

/* --- names ---------------------------------------------------------------------------------------------- */

#define LOCAL_NAME_MAX 80

struct local_name;
/* Takes a name on this host, of at most LOCAL_NAME_MAX characters; the kernel releases it when the process dies. 0,
 * -EADDRINUSE, -EMFILE... Any thread; the helper thread accepts the connections of peers. */
int local_name_take(const char *text, struct local_name **ret_name);
/* When this returns, another process can take the name. NULL is allowed. */
void local_name_release(struct local_name *name);
/* True if a process of this host, or this process, holds the name. */
bool local_name_is_held(const char *text);
/* The link to the holder of the name. In a rundown section. 0; -ECONNREFUSED: no holder; -EAGAIN: there is a holder,
 * but no link yet, which local_name_search() sets up; -EMFILE, -ENOMEM... */
int local_name_find(const char *text, struct link **ret_link);
/* As local_name_find(), without a system call that the holder has to answer: of a name of this process, or one that
 * was found twice, of a process of this user, none of whose names has ended since. NULL: local_name_find() tells. In
 * a rundown section. */
struct link *local_name_recall(const char *text);
/* Sets up a link to the holder of the name. 0: ops->found(cookie) follows; -ENOMEM. */
int local_name_search(const char *text, uint64_t cookie);

/* --- links ---------------------------------------------------------------------------------------------- */

/* The link to the owner of the QP number. NULL: not known yet; ops->resolved() follows, with NULL if the block has no
 * owner. Lock-free when known. In a rundown section. */
struct link *local_resolve(uint32_t qpn);
/* The lane that a QP number uses on a link. */
struct lane *link_lane(struct link *link, uint32_t local_qpn);
struct link *lane_link(struct lane *lane);
/* LANE_OWNER_BYTES of the engine's in each lane: aligned to a cache line, zero at first, and there as long as the link,
 * so that no packet has to allocate them. */
#define LANE_OWNER_BYTES 256u
#define LANE_OWNER_AT    256u /* asserted in lane.c */
static inline void *lane_owner_data(struct lane *lane)
{
    return (char *)lane + LANE_OWNER_AT;
}
bool link_is_self(const struct link *link);
/* True if this process may send payload by reference on the link: the peer can read its memory, as the handshake has
 * probed. On the link to ourselves always, unless SOFTHCA_LOCAL=ring. */
bool link_can_reference(const struct link *link);
/* True if the peer may send payload by reference: this process can read the peer's memory (lane_pull()). */
bool link_can_pull(const struct link *link);
/* A number of the link that is never reused in this process; not 0. */
uint64_t link_serial(const struct link *link);
/* NULL: the link is down. In a rundown section. */
struct link *local_link_of_serial(uint64_t serial);
/* The process at the other end of a link: the serial of the first link to it. A process that calls exec, or comes back
 * after its links have broken, is another one. */
uint64_t link_process(const struct link *link);
/* A link to that process; NULL: it is gone. In a rundown section. */
struct link *local_link_of_process(uint64_t process);
/* The serial of the link to ourselves, which exists once this process owns a block. */
uint64_t local_self_serial(void);
/* The number of the descriptor of the peer's published segment (segment/segment.h) in the peer; -1: unknown. */
int link_peer_segment(const struct link *link);
/* One pointer per link for the engine's helper thread, NULL at first. */
void **link_owner_data(struct link *link);
/* Access slots (hazard pointers) in the shared memory of a link, a cache line each and zero at first, for requests
 * that one process executes in the memory of the other (engine/direct/access_slot.h). ours: slots that this process
 * takes and the peer watches; else the slots of the peer. Number LOCAL_ACCESS_SLOTS is the admission flag of those
 * slots. */
#define LOCAL_ACCESS_SLOTS 16u
void *link_access_slot(struct link *link, bool ours, uint32_t number);
/* Does the owner of memory wait for kernel copies of the requester when it takes memory back? Each process says so in
 * the memory of the link when the link is up, because a requester must not copy where the owner does not wait. ours:
 * what this process says; else the peer. */
bool link_waits_for_copies(struct link *link, bool ours);
/* Does the owner of memory look at the access slots of the requester when it takes memory back? Each process says so in
 * the memory of the link when the link is up, or when it gives the first file. ours: what this process says; else the
 * peer. */
bool link_is_watched(struct link *link, bool ours);
/* Asks the peer for a file; ops->file_came() brings the answer, unless the link goes down or the peer does not answer.
 * secret: of the peer's segment, NULL if this process has not read it. False: not asked; a later call may. Helper
 * thread. */
bool link_ask_file(struct link *link, enum link_file which, const uint8_t *secret);
/* A duplicate of the peer's descriptor, as the kernel permits it to whoever may trace the peer (pidfd_getfd(2)), or
 * -errno. Needs no number of the peer. The caller closes it. */
int link_open_descriptor(const struct link *link, int number);
/* Copies by the kernel between `here` and the peer's memory at the addresses `there`, without further checks. The
 * number of bytes; -ESRCH, -EFAULT, -EPERM, -ENOSYS... */
ssize_t link_copy(const struct link *link, bool to_peer, const struct iovec *here, unsigned here_count,
                  const struct iovec *there, unsigned there_count);
/* Asks the peer to map a part of its memory: step `step`, of 24 bits, of the region with the key in that slot. Believed
 * from processes of the same user only. */
void link_want_mapped(struct link *link, uint32_t slot, uint32_t step);
/* May that thread of the peer be inside process_vm_readv(2) or process_vm_writev(2)? Not if it is stopped, frozen or at
 * its end, or waits in another system call. True also if the kernel does not say. */
bool link_peer_thread_may_copy(const struct link *link, pid_t thread);
pid_t link_peer_pid(const struct link *link);
uid_t link_peer_uid(const struct link *link);

/* SOFTHCA_LOCAL=auto (the default): the engine may still choose mapped memory, before there is a link. */
bool local_is_automatic(void);
void local_choose_mapped(void);
/* True after local_choose_mapped() or with SOFTHCA_LOCAL=mapped: initiators execute one-sided requests themselves in
 * the mapped memory of the target. */
bool local_wants_mapped(void);
/* True if the settings allow that a requester executes one-sided requests itself, in mapped memory or by the kernel's
 * copy: not with SOFTHCA_LOCAL=ring or cma. */
bool local_wants_direct(void);
/* Bytes: messages of this length or more go by reference. 1 with SOFTHCA_LOCAL=cma, UINT32_MAX with
 * SOFTHCA_LOCAL=ring. */
uint32_t local_reference_from(void);

/* Bytes: largest payload of a packet whose bytes are in the ring, and of a packet by reference. */
#define LOCAL_MTU           8192u
#define LOCAL_REFERENCE_MTU (256u * 1024)

/* Writes one packet with its gathered payload into the lane's ring. 0; -EAGAIN: the ring is full,
 * ops->lane_writable() follows; -EHOSTUNREACH: the link is down. Any thread, in a rundown section; takes the lane's
 * transmit lock. Does not ring the doorbell: see lane_ring(). */
int lane_send(struct lane *lane, const struct packet *packet, const struct iovec *gather,
              unsigned gather_count);
/* Bytes: the longest payload of a small packet (local/small.h). */
#define LANE_SMALL 256u

/* Does the reader of the lane sleep, or wait to be rung? A guess, without a fence. */
bool lane_reader_sleeps(const struct lane *lane);
/* Rings the doorbell if the reader of the lane sleeps. Once after a batch of lane_send(), without locks. */
void lane_ring(struct lane *lane);

/* Delays the doorbell until local_ring_due(), because the program is likely to send more on this lane soon (an
 * acknowledgement that its next request can carry). Rings at once if the lane was overdue lately. Under the receive
 * lock. */
void lane_ring_later(struct lane *lane);
extern _Atomic bool local_rings_due; /* a lane has a delayed doorbell */
static inline bool local_has_ring_due(void)
{
    return atomic_load_explicit(&local_rings_due, memory_order_relaxed);
}

void local_ring_all_due(void);
/* Rings all delayed doorbells. */
static inline void local_ring_due(void)
{
    if (unlikely(local_has_ring_due()))
        local_ring_all_due();
}

/* Helper thread, periodically: rings the doorbells that were due at the last call but one. Such a lane is overdue,
 * and its next doorbells are not delayed. */
void local_ring_overdue(void);

/* After -EAGAIN: true if ops->lane_writable() is still to come. A caller that queues work for the lane calls this
 * afterwards; false means that lane_writable() may have come before the work was queued, so the caller tries again. */
bool lane_is_blocked(const struct lane *lane);

/* Copies the payload of a packet by reference, while ops->packet() delivers that packet. The lengths of both sides
 * must agree, and are checked. mapped: where the packet's references are mapped in this process, one for each; NULL:
 * process_vm_readv(2) copies. 0, -EFAULT, -EPERM; -ESRCH: the peer died, and -ESTALE: the peer has called
 * lane_revoke() since it sent the packet: the copied bytes are void. */
int lane_pull(struct lane *lane, const struct packet *packet, const struct packet_reference *mapped,
              const struct iovec *to, unsigned to_count);
/* A sender calls this before memory that its packets by reference expose goes back to the program. After the return,
 * the peer discards every copy for packets sent before. This revokes for all QPs of the lane; those whose packets are
 * still wanted send them again. Takes the lane's transmit lock. */
void lane_revoke(struct lane *lane);

/* --- progress ------------------------------------------------------------------------------------------- */

/* Takes at most `budget` packets from each hot lane; skips lanes that another thread is polling. Returns the number
 * taken. In a rundown section. */
unsigned local_poll(unsigned budget);
/* True: local_poll() would find nothing and has nothing else to do, and this counts as its call. In a rundown
 * section. */
bool local_poll_is_idle(void);
/* Delivers the records that are in the lane's ring now, at most one ring of them. In a rundown section, without
 * locks. */
void lane_drain(struct lane *lane);
/* Makes cold lanes hot whose doorbell was rung, for a thread that polls while the helper thread does not get a
 * processor to run local_dispatch(). Linear in the number of links. */
void local_poll_rung(void);
/* True if a hot lane may have a packet. In a rundown section. */
bool local_has_packets(void);
/* The caller stops polling: writers ring from now on (attention: ATTENTION_DOZES, or ATTENTION_ASLEEP for the helper
 * thread). Then looks into the lanes once more. False: packets have come meanwhile: the caller polls and
 * tries again. */
bool local_prepare_sleep(enum attention attention);

/* --- notification pages (base/notify.h) ----------------------------------------------------------------- */

/* Publishes a completion channel's eventfd to peers. Returns its line in the notification page, and the line's
 * number; NULL: no free line, or no memory. */
struct notify_channel *local_open_channel(int fd, unsigned *ret_number);
void local_close_channel(unsigned number);
/* Publishes on which CQs receives and sends of the QP complete. */
void local_show_qp(uint32_t qpn, struct notify_cq receives, struct notify_cq sends);
void local_hide_qp(uint32_t qpn);
/* Sends the channel's eventfd to the peer, if the peer is of the same user and does not have it. In a rundown
 * section; cheap when repeated. */
void local_offer_channel(struct link *link, unsigned number);
/* The attention word of this process as writers see it; AWAKE without a notification page. */
enum attention local_attention(void);
/* The same with the number of sleeps; 0 without a page. What is read behind it is at least as new. */
uint64_t local_attention_word(void);
/* A thread polls now: sets AWAKE, if the word is still `seen`, so no thread has gone to sleep since. */
void local_set_awake(uint64_t seen);
/* Counts a sleep that goes on as a new one: a writer that rang in it, and then was stopped, does not change it any
 * more. */
void local_renew_sleep(void);
/* True: the helper thread no longer wakes periodically; false: it does again. */
void local_helper_sleeps(bool sleeps);
bool local_helper_is_asleep(void);

/* True if the peer is alive and has the link's socket open. */
bool link_peer_is_there(const struct link *link);
/* True if the pidfd says that the peer has ended. */
bool link_peer_is_dead(const struct link *link);
/* Calls visit for each link to another process. */
void local_for_each_link(void (*visit)(struct link *link, void *argument), void *argument);
/* Calls visit for one link to each linked process, including this process if it owns a block. */
void local_for_each_peer(void (*visit)(struct link *link, void *argument), void *argument);
/* Resolves every block on this host that has an owner and no link yet (for multicast). Returns the number of those
 * blocks; ops->resolved() follows for each. Any thread. */
unsigned local_discover_peers(void);
/* True if a process of this user may have installed a link whose other end is not installed here yet: what the
 * program of that process already expects would not reach it. ops->settled() reports the end, after two seconds at
 * the latest if that process is stopped. Any thread. */
bool local_link_is_coming(void);

#endif
