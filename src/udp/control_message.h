/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What processes that share the port say to each other, over SOCK_SEQPACKET connections: one struct udp_message
 * each.
 *
 *   caller → member    CALL      at first with the caller's forwarding socket; later with blocks, each with its proof
 * if the two are of different users member → caller    WELCOME   for each CALL, with its serial. To the same
 * user with the descriptor set and the lock file; from the port owner to the same user with its forwarding socket, too
 *
 * Who the other end is, the kernel says. */
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
    UDP_MESSAGE_FROM_PORT_OWNER = 1,
    UDP_MESSAGE_HAS_DESCRIPTOR_SET = 2,    /* descriptors: descriptor set, lock file */
    UDP_MESSAGE_HAS_FORWARDING_SOCKET = 4, /* behind those */
    UDP_MESSAGE_JOIN = 16,                 /* CALL, of another user: packets of this group, too */
    UDP_MESSAGE_LEAVE = 32,
    UDP_MESSAGE_WANTS_DESCRIPTOR_SET =
        8, /* CALL. Whoever has the lock file must not get it again: to close it once is to give
                             up all   locks on it */
};

struct udp_message {
    uint32_t magic;
    uint16_t version, type; /* enum udp_message_type */
    uint32_t serial;
    uint16_t flags;       /* enum udp_message_flags */
    uint16_t block_count; /* CALL */
    uint16_t blocks[UDP_MESSAGE_BLOCKS];
    uint8_t group[16]; /* UDP_MESSAGE_JOIN, UDP_MESSAGE_LEAVE */
    uint32_t ifindex;
    uint8_t reserved[12];
};
static_assert(sizeof(struct udp_message) == 80, "control messages are a format between versions");

/* 0 or -errno. */
int udp_message_send(int fd, const struct udp_message *message, const int *fds, unsigned fd_count);
/* 0, -EAGAIN (nothing there), -ECONNRESET (the end), -EPROTO. Descriptors, at most UDP_MESSAGE_FDS, are the
 * caller's to close in any case. */
int udp_message_receive(int fd, enum udp_message_type type, struct udp_message *message,
                        int ret_fds[UDP_MESSAGE_FDS], unsigned *ret_fd_count);

/* The descriptor set: a socket with one message in it, which nobody takes out and everybody can look at: the descriptors
 * of all sockets of the port. So they stay open, in their places, as long as anybody has the descriptor set, and a
 * process needs few descriptors to keep them all. Makes one of the sockets, which stay the caller's; or
 * -errno. */
int descriptor_set_make(const int *sockets, unsigned count);
/* The descriptor of one of the sockets in it, or -errno. */
int descriptor_set_get(int descriptor_set, unsigned index, unsigned count);

#endif
