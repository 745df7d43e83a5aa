/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The door of the udp room: RoCEv2 packets (IBA annex A17) to and from the network, through unprivileged
 * sockets.
 *
 * Sending takes sockets of the process's own, the lanes; QPs are spread over them, so that their packets have
 * different source ports. Receiving takes UDP port 4791, of which a network namespace has one, for all
 * processes and users: port.c tells how they share it.
 */
#ifndef UDP_UDP_H
#define UDP_UDP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/types.h"
#include "published/counters.h"
#include "wire/packet.h"

/* Lower bits of a QPN block by which the kernel finds the socket of whoever owns it (local/local.h,
 * LOCAL_SHARDS). */
#define UDP_SHARDS     64u
#define UDP_BLOCK_QPNS 256u

struct udp_lane;

/* How a packet goes. GIDs as on the wire; both are IPv4 ones, or both IPv6. */
struct udp_path {
    uint8_t source[16], destination[16];
    uint32_t flow_label; /* 0: the kernel chooses */
    uint32_t ifindex;    /* for multicast and link-local addresses, else unused */
    uint8_t traffic_class, hop_limit;
    uint8_t reserved[6];
};

/* How one came, besides what packet->grh says. */
struct udp_arrival {
    uint32_t ifindex;
    uint16_t source_port;
    bool congested; /* a router marked it (RFC 3168: CE) */
    bool follows;   /* it came in one piece with the packet before it */
};

struct udp_ops {
    /* A packet with the right ICRC for a QP of this process, or a multicast. Valid during the call, and the
     * callee's to change. In a rundown section, with the receive lock held. */
    void (*packet)(struct packet *packet, const struct udp_arrival *arrival);
    /* A congestion notification packet (IBA annex A17.9.3), of which only dest_qpn and grh are set. As above.
     */
    void (*congestion)(const struct packet *packet);
    /* All that had come by now was handed over, with every udp_poll() even if that is nothing. As above. */
    void (*batch_end)(void);
    /* The lane takes packets again after -EAGAIN. Helper thread, no lock held. */
    void (*writable)(struct udp_lane *lane);
    /* Does this process own the block of this number? Any thread. */
    bool (*is_ours)(uint32_t qpn);
    /* Is the descriptor the proof that whoever sent it owns the block? */
    bool (*is_proof)(int fd, uint32_t block);
};

struct udp_options {
    bool multicast_loops;              /* members on this host hear us through the network */
    struct network_counters *counters; /* where to count; NULL: in the room's own */
};

/* First use, and again in a forked child. Opens no socket. SOFTHCA_UDP is read here. */
void udp_start(const struct udp_ops *ops, const struct udp_options *options);
void udp_after_fork_in_child(void);

/* --- the port ------------------------------------------------------------------------------------ */

enum udp_state {
    UDP_CLOSED, /* nobody has asked for it yet */
    UDP_OPENING,
    UDP_OPEN,      /* packets come out of a socket of ours */
    UDP_FORWARDED, /* another user's process hands them on */
    UDP_OFF,       /* none come; udp_reason() says why */
};
enum udp_state udp_state(void);
/* One line for people; copied. */
#define UDP_REASON_MAX 160
void udp_reason(char ret_text[UDP_REASON_MAX]);

/* Packets for the numbers of this block shall come here: 0 when they do, or -errno (-ETIMEDOUT, -EADDRINUSE).
 * Opens the port if need be; the helper thread must run, and does all of it. `proof` is the socket by which
 * the block is owned; it stays the caller's. Any thread, without locks, outside every rundown section; may
 * sleep, bounded. */
int udp_serve(uint32_t block, int proof);
/* Likewise, but who calls has only so much patience (-ETIMEDOUT): what has begun goes on. */
int udp_serve_within(uint32_t block, int proof, ns_t patience);
/* Is that done? Any thread, at any time. */
bool udp_serves(uint32_t block);

/* Packets to a multicast group that arrive at an interface shall come here, too, until as many calls of
 * udp_leave(). 0 when they do, or -errno: they may do so later. As udp_serve(). */
int udp_join(const uint8_t group[16], uint32_t ifindex);
/* Does not wait. */
void udp_leave(const uint8_t group[16], uint32_t ifindex);

/* May a process of this user hand us what it has read from the port? Any thread. */
bool udp_trusts(uid_t uid);

/* --- sending ------------------------------------------------------------------------------------- */

/* The lane of a QP; UD: of the QP that sends. */
struct udp_lane *udp_lane(uint32_t qpn);
/* Takes a copy of packet and payload. 0; -EAGAIN: the network does not keep up, ops->writable() follows;
 * -EHOSTUNREACH: it cannot be sent, now or ever. Any thread. Leaves with udp_flush(), or sooner. */
int udp_send(struct udp_lane *lane, const struct udp_path *path, const struct packet *packet,
             const struct iovec *gather, unsigned gather_count);
/* A congestion notification packet (IBA annex A17.9.3) for that QP; if it cannot be sent just now it is not
 * sent. */
void udp_notify(struct udp_lane *lane, const struct udp_path *path, uint32_t dest_qpn);
/* After a batch of udp_send(). A system call: without other locks, but where nothing can wait. */
void udp_flush(struct udp_lane *lane);
/* Likewise; false: somebody is at work there. */
bool udp_try_flush(struct udp_lane *lane);
/* After -EAGAIN: is ops->writable() still to come? (As lane_is_blocked() of local/local.h.) */
bool udp_is_blocked(struct udp_lane *lane);
/* Every lane has a number below this. */
#define UDP_LANES 8u
unsigned udp_lane_number(const struct udp_lane *lane);
struct udp_lane *udp_lane_by_number(unsigned number);

/* --- receiving ----------------------------------------------------------------------------------- */

/* Set once there is something that udp_poll() could read. */
extern _Atomic bool udp_has_sockets;

/* Takes what has come, bounded; not if another thread is at it. Returns the number of packets. Inside a
 * rundown section, without locks. */
unsigned udp_poll(void);
/* Takes all that has come, waiting for other threads. */
void udp_drain(void);
/* Calls ops->batch_end() and takes nothing, waiting for other threads. Inside a rundown section. */
void udp_end_batch(void);
/* Is there something to take, and nobody at it? A system call. */
bool udp_has_packets(void);
/* Nobody is going to poll: the next arrival shall wake the helper thread, at once if something is there.
 * false: the kernel has no memory for that now. */
bool udp_prepare_sleep(void);
/* Somebody polls, and arrivals shall wake nobody, until the next udp_prepare_sleep(). */
void udp_disarm(void);

/* Never NULL: udp_options.counters, or before that some of the room's own. */
extern struct network_counters *udp_counters;

/* Of a counter that nobody else counts on at the same time. */
static inline void udp_count_alone(_Atomic uint64_t *counter, uint64_t count)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + count,
                          memory_order_relaxed);
}

static inline void udp_count(_Atomic uint64_t *counter, uint64_t count)
{
    atomic_fetch_add_explicit(counter, count, memory_order_relaxed);
}

#endif
