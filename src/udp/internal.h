/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Interfaces between the files of the udp room.
 *
 * Lock order: claims_lock (claims.c) and groups_lock (groups.c), then receive_lock (receive.c), under which
 * ops->packet() and ops->batch_end() run, then the lock of a lane (lane.c). The functions of udp.h run in
 * any thread; all other code runs in the helper thread. */
#ifndef UDP_INTERNAL_H
#define UDP_INTERNAL_H

#include <netinet/in.h>
#include <netinet/udp.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include "base/event.h"
#include "base/list.h"
#include "base/lock.h"
#include "udp/udp.h"

/* From linux/in6.h and linux/udp.h, which conflict with libc's headers or are newer than them. */
#ifndef IPV6_FLOWINFO
#define IPV6_FLOWINFO 11
#endif
#ifndef IPV6_FLOWINFO_SEND
#define IPV6_FLOWINFO_SEND 33
#endif
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

/* Set by udp_start(), constant until a fork. */
struct udp_settings {
    const struct udp_ops *ops;
    struct udp_options options;
    bool plain;    /* SOFTHCA_UDP=plain: one packet per datagram in both directions */
    unsigned loss; /* SOFTHCA_UDP_LOSS: percentage of received packets to drop, for tests */
};
extern struct udp_settings udp_settings;

/* --- socket.c ------------------------------------------------------------------------------------ */

/* Opens a socket for sending and returns it, its port, and in *ret_segments how many packets one datagram may
 * have; or -errno. The socket is bound to the source address and hop limit of *usual, so that packets of this
 * path need no control messages for them; *usual becomes all zero where that is impossible. */
int socket_for_sending(int family, struct udp_path *usual, uint16_t *ret_port, unsigned *ret_segments);
/* Sets the socket's default segment size (UDP_SEGMENT), 0 for none. 0 or -errno. */
int socket_set_segment(int fd, uint16_t segment);
/* Before Linux 5.4 the kernel drops a datagram that is not longer than the default segment size of its socket. Asked
 * of it once, by a datagram over lo; false also where that cannot be sent. */
bool socket_keeps_short_datagrams(void);
/* From now on the kernel chooses the flow labels of a socket for sending over IPv6. 0 or -errno. */
int socket_leave_out_labels(int fd);
/* Opens the SO_REUSEPORT group of the port, one socket per shard. 0 or -errno; -EADDRINUSE: the port is bound
 * already. */
int socket_make_group(int ret_fds[UDP_SHARDS]);
/* Sets receive buffer and UDP_GRO of a socket that this process is going to read. */
void socket_prepare_reading(int fd);
/* Opens a socket that receives what a multicast group is sent through an interface, and nothing else; or
 * -errno. */
int socket_join(const uint8_t group[16], uint32_t ifindex);
/* Returns the user whose socket is bound to the port: 0, or -errno (-ENOENT: the kernel lists none). */
int socket_port_uid(uid_t *ret_uid);

/* --- lane.c -------------------------------------------------------------------------------------- */

void lane_after_fork_in_child(void);

/* --- receive.c ----------------------------------------------------------------------------------- */

/* One datagram: a packet, or several of one flow that the kernel coalesced (UDP_GRO). Also the header of each
 * message through a forwarding socket, in host byte order: a format between processes, versioned by
 * UDP_NAME_PREFIX. Written by the process that read the port, read by the process that owns the QPN. */
struct datagram {
    uint8_t source[16], destination[16]; /* GIDs */
    uint32_t ifindex, flow_label;
    uint16_t source_port;
    uint16_t segment; /* bytes of each packet except the last, which may be smaller */
    uint8_t traffic_class, hop_limit;
    uint8_t reserved[2];
    uint32_t length; /* bytes of all packets */
};

static inline uint32_t dest_qpn_of(const uint8_t *bytes)
{
    return (uint32_t)bytes[5] << 16 | (uint32_t)bytes[6] << 8 | bytes[7];
}

static inline void describe_grh(const struct datagram *datagram, struct packet_grh *ret_grh)
{
    memcpy(ret_grh->source, datagram->source, sizeof(ret_grh->source));
    memcpy(ret_grh->destination, datagram->destination, sizeof(ret_grh->destination));
    ret_grh->flow_label = datagram->flow_label;
    ret_grh->traffic_class = datagram->traffic_class;
    ret_grh->hop_limit = datagram->hop_limit;
}
#define DATAGRAM_MAX 65536u

/* A socket that packets are read from: a shard, a multicast group's socket, or the read end of our forwarding
 * socket, where each datagram follows its struct datagram. */
struct reader {
    struct event_source source; /* fd -1: none */
    bool is_forwarding, is_group;
    int forward_to; /* forwarding socket of the client that gets every datagram; -1: this process */
    bool was_full;  /* the last batch filled the buffers: the next one reads more datagrams at once */
    bool polled; /* read by udp_poll(); the helper thread reads the other sockets when epoll reports them */
    bool armed;  /* watched by epoll; guarded by the receive lock */
    struct list node;
};

void receive_after_fork_in_child(void);
/* Starts to read source.fd: 0, or -errno, and the caller keeps the descriptor. */
int reader_add(struct reader *reader);
/* Stops reading and closes the descriptor. */
void reader_remove(struct reader *reader);
void reader_set_polled(struct reader *reader);
/* The receive lock guards the tables that port_owner_forward() reads. */
void receive_lock_acquire(void);
void receive_lock_release(void);

/* --- shards.c: every member has all sockets of the port and reads those of its shards -------------- */

/* Creates the sockets: 0 or -errno (-EADDRINUSE: the port is bound already). */
int shards_make(void);
/* Takes over the sockets of a member of the same user, and with them both descriptors. */
void shards_adopt(int descriptor_set, int lock_file);
bool shards_are_there(void);
/* Returns the arguments of shards_adopt() for another process. */
void shards_share(int ret_set_and_lock_file[2]);
/* Locks and reads the socket of a shard; false if another process reads it. polled: as in struct reader. */
bool shards_acquire(unsigned shard, bool polled);
/* Holds shard 0, which makes this process the port owner. */
bool shards_acquire_ownership(void);
void shards_after_fork_in_child(void);

/* Abstract unix socket of a member: the prefix and 16 random hexadecimal digits. A format between processes. */
#define UDP_NAME_PREFIX "softhca/1/udp/"
#define UDP_NAME_DIGITS 16

/* --- port_owner.c: services of a member and of the port owner for clients --------------------------- */

/* Starts to accept clients. 0 or -errno. */
int port_owner_listen(void);
bool port_owner_is_own_name(const char digits[UDP_NAME_DIGITS]);
/* This process becomes the port owner. */
void port_owner_take_ownership(void);
/* Retries to hold the unread shards of clients of other users. true: some are still missing. */
bool port_owner_acquire_missing(void);
/* Disconnects clients that stay without a block, and ends a pause of accepting that is over. */
void port_owner_expire(ns_t now);
/* When to call that; NS_NEVER. */
ns_t port_owner_deadline(void);
extern ns_t port_owner_patience;
/* Forwards a datagram read here whose packets are for a QPN of another process: to the client that declared
 * the block, else to the port owner, else drops it. was_forwarded: the datagram came through our forwarding
 * socket and does not go back to the port owner. Receive lock held. */
void port_owner_forward(const struct datagram *datagram, const uint8_t *bytes, bool was_forwarded);
/* Sets and owns the port owner's forwarding socket, where other processes' packets go; -1: none. */
void port_owner_use_forwarding_socket(int fd);
void port_owner_after_fork_in_child(void);

/* --- groups.c ------------------------------------------------------------------------------------ */

enum groups_mode {
    GROUPS_NOT_YET,
    GROUPS_BY_SOCKET,     /* UDP_OPEN: a socket of this process per group */
    GROUPS_BY_PORT_OWNER, /* UDP_FORWARDED: the port owner has the sockets and forwards */
};
/* Carries out pending joins and leaves. upstream: the connection to the port owner. *serial: of the last
 * control message sent there. acknowledged: of its last reply. */
void groups_step(enum groups_mode mode, int upstream, uint32_t *serial, uint32_t acknowledged);
/* The port owner changed: every group has to be declared again. */
void groups_forget_declarations(void);
/* Logs it. client: of another user, for which it was tried; NULL: for this process. */
void groups_not_joined(const uint8_t gid[16], uint32_t ifindex, const struct ucred *client, int error);
void groups_after_fork_in_child(void);

/* --- forwarding.c ----------------------------------------------------------------------------------- */

/* Creates our forwarding socket if necessary and returns its write end, which the caller passes to other
 * processes but does not close; or -errno. */
int forwarding_open(void);
/* udp_poll() reads it from now on: all packets of this process arrive there. */
void forwarding_set_polled(void);
/* Is a descriptor received from a client an unnamed AF_UNIX datagram socket? */
bool forwarding_socket_is_valid(int fd);
/* Sends a datagram to another process, or drops it if the socket is full. */
void forwarding_send(int fd, const struct datagram *datagram, const uint8_t *bytes);
void forwarding_after_fork_in_child(void);

/* --- discover.c: finding the other members ------------------------------------------------------------ */

/* Connects to every member that listens. port_reply_received() follows for each that replies, and
 * port_discovery_ended() at the end, possibly within the call. */
void discovery_begin(void);
bool discovery_is_running(void);
/* Closes the connections that have had no reply; port_discovery_ended() does not follow. */
void discovery_end(void);
void discovery_expire(ns_t now);
ns_t discovery_deadline(void);
void discovery_after_fork_in_child(void);

/* --- claims.c ------------------------------------------------------------------------------------ */

struct udp_message;
/* Claims the packets for a QPN block of this process. 0 or -ENOMEM. Any thread. */
int claims_add(uint32_t block, int proof);
bool claims_exist(void);
/* Adds claims that the port owner does not know to a control message, with the proofs of ownership. true: there
 * are more. */
bool claims_declare(struct udp_message *message, int *ret_proofs);
/* The port owner changed: every claim has to be declared again. */
void claims_forget_declarations(void);
/* That message was not sent: what was in it has to be declared again. */
void claims_take_back(uint32_t serial);
/* Holds the shards of the claims if this process is a member, and updates udp_serves(). acknowledged: serial of
 * the port owner's last reply. true: another process holds the shard of a claim. */
bool claims_update(bool is_member, bool is_port_owner, uint32_t acknowledged);
void claims_after_fork_in_child(void);

/* --- port.c -------------------------------------------------------------------------------------- */

/* Discovery has connected to a process that listens. */
void port_peer_found(const struct ucred *peer);
/* A process replied. The callee sets each descriptor that it keeps to -1. true: the callee keeps the connection,
 * under another event source. */
bool port_reply_received(const struct ucred *peer, const struct udp_message *message, int *fds,
                         unsigned fd_count, struct event_source *connection);
/* Every connection of the discovery has had a reply or failed. */
void port_discovery_ended(void);
/* Makes the helper thread run the state machine of port.c. Any thread. */
void port_wake(void);
/* Is the peer certainly of the same user? false also where user namespaces hide the uid (base/user.h). */
bool port_is_own_user(const struct ucred *peer);

/* datagram_header.c: destination, and the control messages that its path and segments need; header has room for them.
 * usual: the socket's own source address and hop limit suit the path. */
void datagram_to_ipv4(struct msghdr *header, const struct udp_path *path, bool usual);
void datagram_to_ipv6(struct msghdr *header, const struct udp_path *path);
void datagram_segment(struct msghdr *header, uint16_t segment);

#endif
