/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of the room share.
 *
 * Locks: claims_lock (claims.c), then receive_lock (receive.c), under which ops->packet() and
 * ops->batch_end() run, then the lock of a lane (lane.c). All but lane.c and the polling half of receive.c is
 * the helper thread's alone. */
#ifndef UDP_INTERNAL_H
#define UDP_INTERNAL_H

#include <netinet/in.h>
#include <netinet/udp.h>
#include <stddef.h>
#include <sys/socket.h>

#include "base/event.h"
#include "base/list.h"
#include "base/lock.h"
#include "udp/udp.h"

/* Of linux/in6.h and linux/udp.h, which do not go together with the headers of libc, or are newer than those.
 */
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
    bool plain;    /* SOFTHCA_UDP=plain: one packet per datagram, both ways */
    unsigned loss; /* SOFTHCA_UDP_LOSS: so many of a hundred packets are thrown away when they have come */
};
extern struct udp_settings udp_settings;

/* --- socket.c ------------------------------------------------------------------------------------ */

/* A socket to send from, of the family, with its port; or -errno. What takes the usual path needs no control
 * messages for its source and hop limit; all zero if there is no such path. *ret_segments: how many packets
 * it takes at once. */
int socket_for_sending(int family, struct udp_path *usual, uint16_t *ret_port, unsigned *ret_segments);
/* What says nothing else is cut into packets of so many bytes; 0: is not. 0 or -errno. */
int socket_set_segment(int fd, uint16_t segment);
/* The sockets of the port, each behind its shard's number. 0 or -errno; -EADDRINUSE: somebody has the port. */
int socket_make_group(int ret_fds[UDP_SHARDS]);
/* What whoever reads one of them wants of it. */
void socket_prepare_reading(int fd);
/* A socket that gets what a group is sent through an interface, and nothing else; or -errno. */
int socket_join(const uint8_t group[16], uint32_t ifindex);
/* Who has the port: 0 and the user, or -errno (-ENOENT: nobody that we are told of). */
int socket_port_uid(uid_t *ret_uid);

/* --- lane.c -------------------------------------------------------------------------------------- */

void lane_after_fork_in_child(void);

/* --- receive.c ----------------------------------------------------------------------------------- */

/* Packets of one datagram, or several of one flow that the kernel has put together (UDP_GRO). */
struct datagram {
    uint8_t source[16], destination[16];
    uint32_t ifindex, flow_label;
    uint16_t source_port;
    uint16_t segment; /* bytes of each packet but the last */
    uint8_t traffic_class, hop_limit;
    uint8_t reserved[2];
    uint32_t length;
};
#define DATAGRAM_MAX 65536u
#define OPCODE_CNP   0x81 /* congestion notification (IBA annex A17.9) */

/* Where packets come from: a socket of the port, or the forwarding socket into which others put what they read for us,
 * each datagram behind its description. */
struct reader {
    struct event_source source; /* fd -1: none */
    bool is_forwarding, is_group;
    int forward_to; /* -1; or somebody's forwarding socket, for whom all of it is */
    bool was_full;  /* the last batch was as many as it could be: the next may be larger */
    bool polled;    /* by whoever polls; the others the helper thread reads when epoll says so */
    bool armed;     /* watched; receive lock */
    struct list node;
};

void receive_after_fork_in_child(void);
/* Begins to read source.fd. 0 or -errno; then the descriptor is still the caller's. */
int reader_add(struct reader *reader);
/* Stops, and closes. */
void reader_remove(struct reader *reader);
void reader_set_polled(struct reader *reader);
/* Tables that port_owner_forward() uses are changed with this held. */
void receive_lock_acquire(void);
void receive_lock_release(void);

/* --- shards.c: the sockets of the port, of which we keep all and read some ------------------------ */

/* Makes them: 0 or -errno (-EADDRINUSE: somebody has the port). */
int shards_make(void);
/* Or takes over those that a process of the same user has made; the descriptors are its from now on. */
void shards_adopt(int descriptor_set, int lock_file);
bool shards_are_there(void);
/* What shards_adopt() takes, to be handed out. */
void shards_share(int ret_set_and_lock_file[2]);
/* Reads the socket of a shard, unless another process does. polled as in struct reader. */
bool shards_hold(unsigned shard, bool polled);
bool shards_is_held(unsigned shard);
/* Shard 0 is the port owner's. */
bool shards_hold_ownership(void);
void shards_after_fork_in_child(void);

#define UDP_NAME_PREFIX "softhca/1/udp/"
#define UDP_NAME_DIGITS 16

/* --- port_owner.c: what members do for others -------------------------------------------------------- */

/* Other processes can find us from now on. 0 or -errno. */
int port_owner_listen(void);
bool port_owner_is_own_name(const char digits[UDP_NAME_DIGITS]);
/* We are the one whom all others keep in touch with. */
void port_owner_take_ownership(void);
/* Blocks of our clients whose shards nobody reads: tries again. true: there are some. */
bool port_owner_hold_missing(void);
/* A packet, or several, that were read here and are for a number of somebody else's block. Receive lock held.
 * was_forwarded: somebody else has handed it on already. */
void port_owner_forward(const struct datagram *datagram, const uint8_t *bytes, bool was_forwarded);
/* Where packets go that are not ours, if we are not the port owner; -1: nowhere. The descriptor is the port owner's.
 */
void port_owner_use_forwarding_socket(int fd);
void port_owner_after_fork_in_child(void);

/* --- groups.c ------------------------------------------------------------------------------------ */

enum groups_mode {
    GROUPS_NOT_YET,
    GROUPS_BY_SOCKET,     /* we have the port */
    GROUPS_BY_PORT_OWNER, /* he has it */
};
/* Joins and leaves what has not been yet. upstream: the connection to the port owner; *serial counts what he is
 * told. */
void groups_step(enum groups_mode way, int upstream, uint32_t *serial, uint32_t acknowledged);
/* The port owner does not know of ours any more. */
void groups_forget_declarations(void);
void groups_after_fork_in_child(void);

/* --- forwarding.c ----------------------------------------------------------------------------------- */

/* Ours. The end that others write to is to be handed out; -errno. */
int forwarding_open(void);
/* Much comes through it: it is polled. */
void forwarding_set_polled(void);
/* Is that something that somebody may have made for us to write to? */
bool forwarding_socket_is_valid(int fd);
void forwarding_send(int fd, const struct datagram *datagram, const uint8_t *bytes);
void forwarding_after_fork_in_child(void);

/* --- discover.c: the others -------------------------------------------------------------------------- */

/* Calls everybody who listens; port_reply_received() follows for those who answer, then port_discovery_ended(). */
void discovery_begin(void);
bool discovery_is_running(void);
/* Calls that are under way lead nowhere any more. */
void discovery_end(void);
void discovery_expire(ns_t now);
ns_t discovery_deadline(void);
void discovery_after_fork_in_child(void);

/* --- claims.c ------------------------------------------------------------------------------------ */

struct udp_message;
/* A block of ours whose packets are to come here. 0 or -ENOMEM. Any thread. */
int claims_add(uint32_t block, int proof);
bool claims_exist(void);
/* Puts those that the port owner does not know of into a control message to him, with what proves that they are ours.
 * true: there are more. */
bool claims_declare(struct udp_message *message, int *ret_proofs);
/* The port owner does not know of ours any more. */
void claims_forget_declarations(void);
/* Which of them have their packets come here (udp_serves())? acknowledged: the last control message that the port owner
 * has confirmed. true: the shard of one of them is not read here. */
bool claims_update(bool is_member, bool is_port_owner, uint32_t acknowledged);
void claims_after_fork_in_child(void);

/* --- port.c -------------------------------------------------------------------------------------- */

/* Somebody listens whom we have called. */
void port_peer_found(const struct ucred *peer);
/* An answer. Descriptors as in the control message: who keeps one sets it to -1. true: the connection is kept, under
 * another source. */
bool port_reply_received(const struct ucred *peer, const struct udp_message *message, int *fds,
                         unsigned fd_count, struct event_source *connection);
/* All calls have ended. */
void port_discovery_ended(void);
/* The helper thread shall look at everything again. Any thread. */
void port_wake(void);
/* Is it the user that this process runs as, for certain? */
bool port_is_own_user(const struct ucred *peer);

#endif
