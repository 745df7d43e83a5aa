/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The messages of a rendezvous (local/handshake.h): one struct greeting each, on a SOCK_SEQPACKET socket. */
#ifndef LOCAL_HANDSHAKE_MESSAGE_H
#define LOCAL_HANDSHAKE_MESSAGE_H

#include <assert.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "local/link.h"
#include "published/segment_request.h"

#define GREETING_MAGIC   0x41434853u /* "SHCA" */
#define GREETING_VERSION 2u          /* as in the names of blocks: others do not meet us */

enum greeting_type { GREETING_HELLO = 1, GREETING_WELCOME, GREETING_READY };
enum greeting_result { GREETING_OK, GREETING_KNOWN, GREETING_REFUSED };
enum greeting_flags {
    GREETING_MAY_PROBE = 1, /* references are wanted: try to read my nonce */
    GREETING_CAN_READ = 2,  /* I have read yours */
    GREETING_ACCEPTED = 4,  /* HELLO: I have accepted one of yours, if it is still wanted */
};

struct greeting {
    uint32_t magic;
    uint16_t version, type; /* enum greeting_type */
    uint8_t instance[INSTANCE_BYTES];
    uint32_t layout_size;
    uint16_t result, flags;
    uint64_t nonce_address; /* in the sender's memory lie the bytes of */
    uint8_t nonce[INSTANCE_BYTES];
    uint32_t segment; /* descriptor of the sender's published segment, plus 1; 0: not said */
    uint32_t reserved;
};
static_assert(sizeof(struct greeting) == 64, "greetings are a format between versions");

void greeting_fill(struct greeting *greeting, enum greeting_type type, enum greeting_result result,
                   bool can_read);
/* What greeting_receive() took for no greeting: is it the request of somebody who wants to look at us? */
bool greeting_is_segment_request(const struct greeting *greeting);
/* memory_fd goes along, unless it is -1. 0 or -errno. */
int greeting_answer_segment_request(int fd, enum segment_request_result result, int segment_fd);
int greeting_send(int fd, const struct greeting *greeting, int memory_fd);
/* 0, -EAGAIN (not there yet), or why this is no greeting of that type. *ret_memory_fd: the descriptor that
 * came along, -1 if none; the caller closes it in any case. */
int greeting_receive(int fd, enum greeting_type type, struct greeting *greeting, int *ret_memory_fd);

/* Takes the one descriptor out of a control message and closes what more there is; -1: there is none. */
int take_descriptor(struct msghdr *message);

/* Who is at the other end. */
bool greeting_credentials(int fd, struct ucred *ret_peer);
/* The process behind the socket: exactly, where the kernel can say (6.5); else by its number, which cannot be
 * another's yet as long as the probe finds its nonce or, failing that, the socket stays open. -1: neither is
 * possible, and the socket's end must do. */
int greeting_pidfd(int fd, pid_t pid);

/* Followed by the block in four lower-case hexadecimal digits. */
#define BLOCK_NAME_PREFIX SEGMENT_REQUEST_NAME_PREFIX
#define BLOCKS_LAST       0xfffeu      /* 0 holds QPNs 0 and 1, 0xffff holds 0xffffff: nobody owns them */
#define NAME_PREFIX       "softhca/1/" /* of what else a process holds (local_name_take()) */
/* The abstract name of a block. Returns the length of the address. */
socklen_t block_address(uint32_t block, struct sockaddr_un *ret_address);

#endif
