/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Control messages between processes that share UDP port 4791. Each is one struct udp_message over a unix
 * SOCK_SEQPACKET connection from a client to a member (a process that has the port's sockets). The kernel
 * identifies the peer (SO_PEERCRED).
 *
 *   client -> member  REQUEST  the first: the client's forwarding socket. Later ones: QPN blocks, each with
 *                              its proof of ownership if client and port owner run as different users
 *   member -> client  REPLY    one per REQUEST, with the same serial. To the same user: the descriptor set and
 *                              the lock file if requested. From the port owner to the same user: also the port
 *                              owner's forwarding socket */
#ifndef UDP_CONTROL_MESSAGE_H
#define UDP_CONTROL_MESSAGE_H

#include <assert.h>
#include <stdint.h>

#define UDP_MESSAGE_MAGIC   0x55434853u /* "SHCU" */
#define UDP_MESSAGE_VERSION 1u
#define UDP_MESSAGE_BLOCKS  16
#define UDP_MESSAGE_FDS     UDP_MESSAGE_BLOCKS

enum udp_message_type { UDP_MESSAGE_REQUEST = 1, UDP_MESSAGE_REPLY };
enum udp_message_flags {
    UDP_MESSAGE_FROM_PORT_OWNER = 1,    /* REPLY */
    UDP_MESSAGE_HAS_DESCRIPTOR_SET = 2, /* REPLY: descriptors 0 and 1 are the descriptor set, the lock file */
    UDP_MESSAGE_HAS_FORWARDING_SOCKET = 4, /* REPLY: the descriptor after those */
    UDP_MESSAGE_JOIN = 16,  /* REQUEST of another user: forward packets of this multicast group */
    UDP_MESSAGE_LEAVE = 32, /* REQUEST: stop forwarding them */
    /* First REQUEST of a process that has no lock file. A second descriptor of the lock file would be fatal:
     * closing either one releases all POSIX locks of the process on the file. */
    UDP_MESSAGE_WANTS_DESCRIPTOR_SET = 8,
};

/* A format between processes of different versions. Host byte order. */
struct udp_message {
    uint32_t magic;
    uint16_t version, type; /* enum udp_message_type */
    uint32_t serial;        /* chosen by the client, returned in the REPLY */
    uint16_t flags;         /* enum udp_message_flags */
    uint16_t block_count;   /* REQUEST: QPN blocks that the client owns */
    uint16_t blocks[UDP_MESSAGE_BLOCKS];
    uint8_t group[16]; /* JOIN, LEAVE: multicast GID */
    uint32_t ifindex;  /* JOIN, LEAVE: interface of the group */
    uint8_t reserved[12];
};
static_assert(sizeof(struct udp_message) == 80, "control messages are a format between versions");

/* 0 or -errno. Does not block. */
int udp_message_send(int fd, const struct udp_message *message, const int *fds, unsigned fd_count);
/* 0, -EAGAIN (no message), -ECONNRESET (peer closed the connection), -EPROTO (invalid, or another version).
 * The caller closes the received descriptors, at most UDP_MESSAGE_FDS, whatever the result. */
int udp_message_receive(int fd, enum udp_message_type type, struct udp_message *message,
                        int ret_fds[UDP_MESSAGE_FDS], unsigned *ret_fd_count);

/* A descriptor set is a unix socket with one queued message that carries the descriptors of all sockets of the
 * port. Readers only peek at the message. The port's sockets stay open, in their order, while any process has
 * the descriptor set, and each process needs few descriptors to keep them all. Returns the new set or -errno;
 * the caller keeps `sockets`. */
int descriptor_set_make(const int *sockets, unsigned count);
/* Returns a descriptor of one socket of the set, or -errno. */
int descriptor_set_get(int descriptor_set, unsigned index, unsigned count);

#endif
