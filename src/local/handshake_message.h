/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The messages of a handshake (local/handshake.h): one struct handshake_message each, on a SOCK_SEQPACKET socket. */
#ifndef LOCAL_HANDSHAKE_MESSAGE_H
#define LOCAL_HANDSHAKE_MESSAGE_H

#include <assert.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "local/link.h"
#include "published/segment_request.h"

#define HANDSHAKE_MAGIC   0x41434853u /* "SHCA" */
#define HANDSHAKE_VERSION 2u          /* as in the names of blocks: others do not meet us */

enum handshake_type { HANDSHAKE_HELLO = 1, HANDSHAKE_WELCOME, HANDSHAKE_READY };
enum handshake_result { HANDSHAKE_OK, HANDSHAKE_KNOWN, HANDSHAKE_REFUSED };
enum handshake_flags {
    HANDSHAKE_MAY_PROBE = 1, /* references are wanted: try to read my nonce */
    HANDSHAKE_CAN_READ = 2,  /* I have read yours */
    HANDSHAKE_ACCEPTED = 4,  /* HELLO: I have accepted one of yours, if it is still wanted */
};

struct handshake_message {
    uint32_t magic;
    uint16_t version, type; /* enum handshake_type */
    uint8_t instance[INSTANCE_BYTES];
    uint32_t layout_size;
    uint16_t result, flags;
    uint64_t nonce_address; /* in the sender's memory lie the bytes of */
    uint8_t nonce[INSTANCE_BYTES];
    uint32_t segment; /* descriptor of the sender's published segment, plus 1; 0: not said */
    uint32_t reserved;
};
static_assert(sizeof(struct handshake_message) == 64, "handshake messages are a format between versions");

void handshake_message_fill(struct handshake_message *message, enum handshake_type type,
                            enum handshake_result result, bool can_read);
/* What handshake_message_receive() took for no handshake: is it the request of somebody who wants to look at us? */
bool greeting_is_segment_request(const struct handshake_message *message);
/* memory_fd goes along, unless it is -1. 0 or -errno. */
int greeting_answer_segment_request(int fd, enum segment_request_result result, int segment_fd);
int handshake_message_send(int fd, const struct handshake_message *message, int memory_fd);
/* 0, -EAGAIN (not there yet), or why this is no handshake of that type. *ret_memory_fd: the descriptor that
 * came along, -1 if none; the caller closes it in any case. */
int handshake_message_receive(int fd, enum handshake_type type, struct handshake_message *message,
                              int *ret_memory_fd);

/* Takes the one descriptor out of a control message and closes what more there is; -1: there is none. */
int take_descriptor(struct msghdr *msg);

/* Who is at the other end. */
bool peer_credentials(int fd, struct ucred *ret_peer);
/* The process behind the socket: exactly, where the kernel can say (6.5); else by its number, which cannot be
 * another's yet as long as the probe finds its nonce or, failing that, the socket stays open. -1: neither is
 * possible, and the socket's end must do. */
int peer_pidfd(int fd, pid_t pid);

/* Followed by the block in four lower-case hexadecimal digits. */
#define BLOCK_NAME_PREFIX SEGMENT_REQUEST_NAME_PREFIX
#define BLOCKS_LAST       0xfffeu      /* 0 holds QPNs 0 and 1, 0xffff holds 0xffffff: nobody owns them */
#define NAME_PREFIX       "softhca/1/" /* of what else a process holds (local_name_take()) */
/* The abstract name of a block. Returns the length of the address. */
socklen_t block_address(uint32_t block, struct sockaddr_un *ret_address);

#endif
