/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Public header of the udp room: RoCEv2 packets (IBA annex A17) to and from the network, through
 * unprivileged sockets.
 *
 * Sending uses sockets of the process itself, the lanes. QPs are distributed over the lanes, so their packets
 * have different UDP source ports. Receiving uses UDP port 4791, which all processes and users of a network
 * namespace share; port.c explains how. */
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

/* Number of sockets bound to UDP port 4791. The lower bits of a QPN block select the socket in the kernel's
 * SO_REUSEPORT filter. local/local.h draws QPN blocks with the same division (LOCAL_SHARDS). */
#define UDP_SHARDS     64u
#define UDP_BLOCK_QPNS 256u

struct udp_lane;

/* Path of an outgoing packet. GIDs in network byte order; both are IPv4-mapped or both are IPv6. */
struct udp_path {
    uint8_t source[16], destination[16];
    uint32_t flow_label; /* 0: the kernel chooses; IPv6 only */
    uint32_t ifindex;    /* for multicast and link-local addresses, else 0 */
    uint8_t traffic_class, hop_limit;
    uint8_t reserved[6];
};

/* What is known about an incoming packet besides its headers and packet->grh. */
struct udp_arrival {
    uint32_t ifindex;
    uint16_t source_port;
    bool congested; /* ECN field is CE (RFC 3168) */
    bool follows;   /* same datagram (UDP_GRO) as the packet before */
};

struct udp_ops {
    /* A packet with a valid ICRC for a QP of this process or a multicast group. The packet is valid during
     * the call and may be modified. Runs in a rundown section with the receive lock held. */
    void (*packet)(struct packet *packet, const struct udp_arrival *arrival);
    /* A congestion notification packet (CNP, IBA annex A17.9.3); only dest_qpn and grh are set. Context as
     * for packet(). */
    void (*congestion)(const struct packet *packet);
    /* End of a batch of packets. Every udp_poll() ends with this call, even without packets. Context as for
     * packet(). */
    void (*batch_end)(void);
    /* The lane accepts packets again after -EAGAIN. Helper thread, no lock held. */
    void (*writable)(struct udp_lane *lane);
    /* Does this process own the block of this number? Any thread. */
    bool (*is_ours)(uint32_t qpn);
    /* Does the descriptor prove that the process which sent it over the connection owns the QPN block? */
    bool (*is_proof)(int fd, uint32_t block, int connection);
    /* A packet for a number that no process of this host owns was dropped; its ICRC is not checked. Only opcode,
     * dest_qpn and grh are set. NULL: nobody asks. Receive lock held. */
    void (*unclaimed)(const struct packet *packet);
};

struct udp_options {
    bool multicast_loops;              /* IP_MULTICAST_LOOP of the sending sockets */
    struct network_counters *counters; /* in the published segment; NULL: counters of this room */
};

/* Called at first use and again in a forked child. Opens no socket. Reads SOFTHCA_UDP and SOFTHCA_UDP_LOSS. */
void udp_start(const struct udp_ops *ops, const struct udp_options *options);
void udp_after_fork_in_child(void);

/* --- the port ------------------------------------------------------------------------------------ */

enum udp_state {
    UDP_CLOSED, /* no call of udp_serve() yet */
    UDP_OPENING,
    UDP_OPEN,      /* this process has the port's sockets and reads its shards */
    UDP_FORWARDED, /* the port owner, a process of another user, forwards packets */
    UDP_OFF,       /* no packets arrive; udp_reason() has the cause */
};
enum udp_state udp_state(void);
/* Copies the cause of UDP_OFF, one line of text. */
#define UDP_REASON_MAX 160
void udp_reason(char ret_text[UDP_REASON_MAX]);

/* Makes packets for the QPNs of this block arrive in this process: 0 when they do, or -errno (-ETIMEDOUT,
 * -EADDRINUSE). Opens the port if necessary. The helper thread must run, because it does the work. `proof` is
 * the bound socket by which this process owns the block (local/blocks.c); the caller keeps it. Any thread,
 * without locks, outside rundown sections; sleeps for a bounded time. */
int udp_serve(uint32_t block, int proof);
/* Likewise with a timeout (-ETIMEDOUT), after which the helper thread continues in the background. */
int udp_serve_within(uint32_t block, int proof, ns_t timeout);
/* Do packets for this block arrive here? Any thread, at any time. */
bool udp_serves(uint32_t block);

/* Joins a multicast group on an interface; calls nest with udp_leave(). 0 when packets of the group arrive
 * here, or -errno; after -ENETDOWN or -ETIMEDOUT the join completes later if it can. Context as for
 * udp_serve(). */
int udp_join(const uint8_t group[16], uint32_t ifindex);
/* Does not wait for the helper thread. */
void udp_leave(const uint8_t group[16], uint32_t ifindex);

/* May a process of this user forward packets and MADs from the port to this process? True for the own user
 * and for the user of the port owner. Any thread. */
bool udp_trusts(uid_t uid);

/* --- sending ------------------------------------------------------------------------------------- */

/* In packet.flags, where a local link has another meaning for the bit: the packet leaves with a wrong ICRC, because a
 * user asks for it (engine/paths/packet_faults.c). */
#define PACKET_BAD_ICRC PACKET_FRAME

/* The lane of a QP, chosen by the QPN of the sender. */
struct udp_lane *udp_lane(uint32_t qpn);
/* Copies packet and payload into the lane, which udp_flush() or a full buffer sends. 0; -EAGAIN: the socket's
 * send buffer is full and ops->writable() follows; -EHOSTUNREACH: the packet can never be sent. Any thread. */
int udp_send(struct udp_lane *lane, const struct udp_path *path, const struct packet *packet,
             const struct iovec *gather, unsigned gather_count);
/* Packets of one path, one behind the other, under one lock of the lane: udp_hold(), then udp_put() for each, which is
 * udp_send() of its payload, then udp_release(). Other threads wait for the lane meanwhile. udp_put() says false if the
 * packet was not taken, and udp_send() says why. */
void udp_hold(struct udp_lane *lane, const struct udp_path *path);
bool udp_put(struct udp_lane *lane, const struct packet *packet);
void udp_release(struct udp_lane *lane);
/* The UDP port from which packets of the lane to that address leave; 0: none has left yet. */
uint16_t udp_source_port(struct udp_lane *lane, const uint8_t destination[16]);
/* Sends a CNP (IBA annex A17.9.3) to that QP. False: it is dropped, because the lane is blocked or leads nowhere. */
bool udp_notify(struct udp_lane *lane, const struct udp_path *path, uint32_t dest_qpn);
/* Ends a batch of udp_send(). Makes a system call, so the caller holds no lock that another thread waits
 * for. */
void udp_flush(struct udp_lane *lane);
/* Likewise; false without effect if another thread holds the lane's lock. */
bool udp_try_flush(struct udp_lane *lane);
/* After -EAGAIN: is the call of ops->writable() still outstanding? (Like lane_is_blocked() of local/local.h.) */
bool udp_is_blocked(struct udp_lane *lane);
/* Lane numbers are below this. */
#define UDP_LANES 8u
unsigned udp_lane_number(const struct udp_lane *lane);
struct udp_lane *udp_lane_by_number(unsigned number);

/* --- receiving ----------------------------------------------------------------------------------- */

/* True once there is a socket for udp_poll() to read. */
extern _Atomic bool udp_has_sockets;

/* Receives a bounded number of packets and returns how many; 0 if another thread is receiving. Inside a
 * rundown section, without locks. */
unsigned udp_poll(void);
/* Receives everything that had arrived before the call; waits for other receiving threads. */
void udp_drain(void);
/* Calls ops->batch_end() without receiving; waits for other receiving threads. Inside a rundown section. */
void udp_end_batch(void);
/* Are packets available that no other thread is receiving? Makes a system call. */
bool udp_has_packets(void);
/* Polling stops: the next arrival wakes the helper thread, immediately if packets are available. false: the
 * kernel has no memory to watch the sockets. */
bool udp_prepare_sleep(void);
/* Polling starts: arrivals wake no thread until the next udp_prepare_sleep(). */
void udp_disarm(void);

/* Never NULL: udp_options.counters, or counters of this room before udp_start(). */
extern struct network_counters *udp_counters;

/* For a counter that only the holder of one lock changes. */
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
