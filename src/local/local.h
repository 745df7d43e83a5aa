/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The door of the local room: how processes of one host (one network namespace) reach each other.
 *
 * Names. QP numbers are granted in blocks of 256; a process owns a block by holding the abstract unix socket
 * named after it, which it listens on. Whoever wants to reach a QP number connects there. The kernel
 * arbitrates, releases at death, scopes to the namespace. A process can hold other names in the same way, for
 * what it offers to whoever does not know a number of it yet. Links. A link joins two processes (or a process
 * with itself): a sealed memfd with LOCAL_LANES ring pairs, made by the connector and checked by the
 * acceptor, and the connected socket, which stays open as doorbell. A link is usable in both directions.
 * Lanes. QPs of a link are spread over its lanes by QP number; order holds within a lane. A lane that carried
 * something lately is hot and is polled; a cold one makes the writer ring the doorbell, which wakes the
 * helper thread. Death. A link whose peer is dead (pidfd) or gone (end of the socket) is reported down once,
 * and freed after a rundown.
 */
#ifndef LOCAL_LOCAL_H
#define LOCAL_LOCAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/notify.h"
#include "base/types.h"
#include "wire/packet.h"

#define LOCAL_LANES      4
#define LOCAL_BLOCK_QPNS 256
/* The lower bits of a block's number, its shard, tell processes apart as far as possible. No process draws shard
 * 0. */
#define LOCAL_SHARDS 64u

struct link;
struct lane; /* one lane of one link: a ring to the peer and one from it */

/* What arrives, called by local_poll() inside a rundown section with the lane's receive lock held. */
struct local_ops {
    /* payload and references are valid during the call only. */
    void (*packet)(struct lane *lane, const struct packet *packet);
    /* End of a batch of one lane: flush what is owed. */
    void (*batch_end)(struct lane *lane);
    /* A block's owner was found, or is known to be missing (link NULL, retry by local_resolve later). Helper
     * thread. */
    void (*resolved)(uint32_t block, struct link *link);
    /* local_link_is_coming() may have become false. Helper thread. NULL: nobody cares. */
    void (*settled)(void);
    /* The end of local_name_search(): the link to the holder; NULL: nobody holds the name, or its holder
     * cannot be reached. Helper thread. */
    void (*found)(uint64_t cookie, struct link *link);
    /* The peer died or left. Called once, by the helper thread, no lane lock held; after it returns and a
     * rundown, the link is freed. */
    void (*link_down)(struct link *link);
    /* The same is about to happen, and local_for_each_link() still comes to the link. NULL: nobody cares. */
    void (*link_leaving)(struct link *link);
    /* The ring to the peer has room again after -EAGAIN. Any thread, no lock held. */
    void (*lane_writable)(struct lane *lane);
    /* A new descriptor, good for reading only, of what this process shows of itself; -errno. Helper thread.
     */
    int (*published)(void);
    /* The number of the descriptor of the same, which peers may open by way of /proc where the kernel lets
     * them; -1: none. NULL: likewise. Helper thread. */
    int (*segment)(void);
};

/* --- this process ----------------------------------------------------------------------------------------
 */

/* First use (and again in a forked child): instance identity and the epoll set. 0 or -errno. mechanism:
 * SOFTHCA_LOCAL. */
int local_start(const struct local_ops *ops);
/* atfork, in the child: forgets everything, closes our descriptors, touches no shared memory. */
void local_after_fork_in_child(void);
/* A descriptor for the helper's epoll: readable when local_dispatch() has something to do (handshakes,
 * doorbell, death). */
int local_event_fd(void);
/* Handles what made the descriptor readable. Helper thread only, outside every rundown section and lock (it
 * waits for rundowns). Returns true if packets may have come, or lanes may be writable (poll now).
 * *ret_look_later: a channel was rung, and it is to be seen that its reader comes. */
bool local_dispatch(bool *ret_look_later);

/* QP numbers: unique on the host, never 0, 1 or 0xffffff, not reused before a whole round of the process's
 * numbers. May take a new block (binds a socket). 0 or -EAGAIN/-EMFILE... */
int local_qpn_allocate(uint32_t *ret_qpn);
void local_qpn_release(uint32_t qpn);
/* A further block, of all whose numbers the caller is going to make something else as well. 0 or as above. */
int local_block_take(uint32_t *ret_block);
/* The socket by which this process owns the block, which proves it to others; -1: it does not. It stays open.
 */
int local_block_socket(uint32_t block);
/* Is it that socket of whatever process? */
bool local_is_block_socket(int fd, uint32_t block);
/* What leads to the block's owner as the name of what somebody holds does: local_name_find() and so on. */
#define LOCAL_BLOCK_NAME_MAX 8
void local_block_name(uint32_t block, char ret_text[LOCAL_BLOCK_NAME_MAX + 1]);
/* The link to the block's owner, if that is known already. In a rundown section. */
struct link *local_known_owner(uint32_t block);
/* Does the process behind the link own the block? It is asked of the kernel unless it is known; false, too,
 * if the kernel does not say. In a rundown section. */
bool local_is_owner(struct link *link, uint32_t block);

/* --- names -----------------------------------------------------------------------------------------------
 */

#define LOCAL_NAME_MAX 80

struct local_name;
/* Takes a name on this host; the text has at most LOCAL_NAME_MAX characters. It is released at death, too. 0,
 * -EADDRINUSE, -EMFILE... Any thread; the helper thread answers those who ask. */
int local_name_take(const char *text, struct local_name **ret_name);
/* Others can take it as soon as this returns. NULL is allowed. */
void local_name_release(struct local_name *name);
/* Does somebody on this host hold it, this process included? */
bool local_name_is_held(const char *text);
/* The link to whoever holds the name, inside a rundown section. 0; -ECONNREFUSED: nobody does; -EAGAIN:
 * somebody does, and it takes local_name_search() to come to a link; -EMFILE, -ENOMEM... */
int local_name_find(const char *text, struct link **ret_link);
/* 0: ops->found(cookie) follows. -ENOMEM. */
int local_name_search(const char *text, uint64_t cookie);

/* --- links -----------------------------------------------------------------------------------------------
 */

/* The link to the owner of the number; NULL if not known yet (then ops->resolved() follows, unless nobody
 * owns the block: it follows with NULL and the caller may ask again later). Lock-free when known; inside a
 * rundown section. */
struct link *local_resolve(uint32_t qpn);
/* The lane that a QP number uses on a link. */
struct lane *link_lane(struct link *link, uint32_t local_qpn);
struct link *lane_link(struct lane *lane);
/* For the owner's lists: one pointer each, NULL at first. */
void **lane_owner_data(struct lane *lane);
bool link_is_self(const struct link *link);
/* May payload go by reference on this link (probed at connection; self: always)? */
bool link_can_reference(const struct link *link);
/* Would lane_pull() succeed: may the peer's payload come by reference? */
bool link_can_pull(const struct link *link);
/* Names a link as long as the process lives, and never another one; not 0. */
uint64_t link_serial(const struct link *link);
/* NULL: it is down. In a rundown section. */
struct link *local_link_of_serial(uint64_t serial);
/* Of the link to ourselves, which exists once this process owns a block. */
uint64_t local_self_serial(void);
/* The other end of a mapped segment (segment/segment.h): number of its descriptor in the peer; -1: not said.
 */
int link_peer_segment(const struct link *link);
/* One pointer of the owner's per link, NULL at first; the helper thread's. */
void **link_owner_data(struct link *link);
/* Words that both ends can write, zero at first, for requests that a process executes in the memory of the
 * other: access slots of us, or of the peer; a line each. Number LOCAL_ACCESS_SLOTS is the admission flag of them
 * (engine/direct/direct.h). */
#define LOCAL_ACCESS_SLOTS 16u
_Atomic uint64_t *link_access_slot(struct link *link, bool ours, uint32_t number);
pid_t link_peer_pid(const struct link *link);
uid_t link_peer_uid(const struct link *link);

/* Is it for us to choose, SOFTHCA_LOCAL=auto? Then mapped memory may be chosen, before there is a link. */
bool local_is_automatic(void);
void local_choose_mapped(void);
/* Was that, or was SOFTHCA_LOCAL=mapped asked for: are peers to execute one-sided requests by themselves? */
bool local_wants_mapped(void);
/* From which message length on by reference pays: 1 with SOFTHCA_LOCAL=cma, UINT32_MAX with
 * SOFTHCA_LOCAL=ring. */
uint32_t local_reference_from(void);

/* Largest payload of a packet that carries its bytes, and of one by reference. */
#define LOCAL_MTU           8192u
#define LOCAL_REFERENCE_MTU (256u * 1024)

/* Writes one packet with its gathered payload into the lane's ring. 0, -EAGAIN (full; lane_writable()
 * follows), -EHOSTUNREACH (dead). Any thread inside a rundown section; takes the lane's transmit lock, a
 * leaf. Does not ring: see lane_ring(). */
int lane_send(struct lane *lane, const struct packet *packet, const struct iovec *gather,
              unsigned gather_count);
/* A hint: something will be written into the lane soon. */
void lane_prefetch(const struct lane *lane);
/* Rings the doorbell if the reader of this lane sleeps. Once after a batch of lane_send(), without locks. */
void lane_ring(struct lane *lane);

/* The same, but what was sent is no hurry: the program is likely to send more on this lane soon. Else with
 * local_ring_due(). Under the receive lock. False: it has not been so lately, and was rung. */
void lane_ring_later(struct lane *lane);
/* Rings what waits for that. */
void local_ring_due(void);
/* Helper thread, once in a while: rings what has waited since the last time but one; such a lane does not
 * wait again for a while. */
void local_ring_overdue(void);
bool local_has_ring_due(void);

/* After -EAGAIN: is lane_writable() still to come? Whoever notes down that something waits for the lane asks
 * this afterwards: if not, the notification may have come before the note, and it is time to try again. */
bool lane_is_blocked(const struct lane *lane);

/* Fetches what a packet refers to that was received from this lane, as long as that is being delivered. The
 * lengths of both sides agree: checked. mapped: where that is mapped in this process, one for each of the
 * packet's references; NULL: the kernel copies. 0, -EFAULT, -EPERM; what was copied is void: -ESRCH (the peer
 * died), -ESTALE (it has called lane_revoke() since it sent the packet). */
int lane_pull(struct lane *lane, const struct packet *packet, const struct packet_reference *mapped,
              const struct iovec *to, unsigned to_count);
/* Before memory that packets by reference lent to the peer is the program's again: when this has returned,
 * nothing that the peer fetches for packets sent before is taken for good. That concerns everybody who uses
 * the lane, and those who still want to be heard repeat themselves. Takes the lane's transmit lock. */
void lane_revoke(struct lane *lane);

/* --- progress --------------------------------------------------------------------------------------------
 */

/* Takes packets from all hot lanes, at most `budget` from each; lanes that another thread is polling are left
 * to it. Returns the number taken. Inside a rundown section. */
unsigned local_poll(unsigned budget);
/* Delivers what is in the lane's ring now, at most one ring full, rung or not. In a rundown section, without
 * locks. */
void lane_drain(struct lane *lane);
/* Makes cold lanes hot whose doorbell was rung, ahead of local_dispatch(): for a thread that polls while the
 * helper thread does not get a processor. Linear in links. */
void local_poll_rung(void);
/* Has a hot lane something to take? Inside a rundown section. */
bool local_has_packets(void);
/* Nobody is going to poll: from now on writers ring (ATTENTION_DOZES, or ATTENTION_ASLEEP, of the helper
 * thread); then looks once more. Returns false if something had come meanwhile: somebody has to poll, and to
 * try again. */
bool local_prepare_sleep(enum attention attention);

/* --- who is woken (base/notify.h) ------------------------------------------------------------------------
 */

/* A completion channel's eventfd is shown to peers: its line, and the line's number; NULL: no room. */
struct notify_channel *local_open_channel(int fd, unsigned *ret_number);
void local_close_channel(unsigned number);
/* Messages for the QP complete on a CQ of that channel; or there is no such QP any more. */
void local_show_qp(uint32_t qpn, unsigned channel, unsigned bit);
void local_hide_qp(uint32_t qpn);
/* The peer may ring the channel, if it is of this user. In a rundown section; cheap when repeated. */
void local_offer_channel(struct link *link, unsigned number);
/* What writers know of us; AWAKE where there is no channel. */
enum attention local_attention(void);
/* Somebody polls now: AWAKE, if it is still as seen. */
void local_attend(enum attention seen);
/* The helper thread does not look in any more by itself; or it does again. */
void local_helper_sleeps(bool sleeps);
bool local_helper_is_asleep(void);

/* Is the process at the other end alive, and on the link? */
bool link_peer_is_there(const struct link *link);
/* Has the process at the other end ended, for certain? */
bool link_peer_is_dead(const struct link *link);
/* Calls visit for each link to another process. */
void local_for_each_link(void (*visit)(struct link *link, void *argument), void *argument);
/* Calls visit for one link to each process that we are linked to, this process included if it owns a block.
 */
void local_for_each_peer(void (*visit)(struct link *link, void *argument), void *argument);
/* Starts connecting to every process of this host that owns a block and is not linked yet (multicast).
 * Returns how many blocks that concerns; ops->resolved() follows for each. Any thread. */
unsigned local_discover_peers(void);
/* May another process of this user have a link to this one that is not in place here yet? What it has been
 * told to expect would not reach it. Ends with ops->settled(), after two seconds at the latest if that
 * process is stopped. Any thread. */
bool local_link_is_coming(void);

#endif
