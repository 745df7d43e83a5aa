/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The messages of a handshake (local/handshake.h): one struct handshake_message each, on a SOCK_SEQPACKET socket. */
#ifndef LOCAL_HANDSHAKE_MESSAGE_H
#define LOCAL_HANDSHAKE_MESSAGE_H

#include <assert.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "local/link.h"
#include "published/control_request.h"
#include "published/segment_request.h"

#define HANDSHAKE_MAGIC   0x41434853u /* "SHCA" */
#define HANDSHAKE_VERSION 3u          /* the names of blocks carry it too, so versions rarely meet */

enum handshake_type { HANDSHAKE_HELLO = 1, HANDSHAKE_WELCOME, HANDSHAKE_READY };
enum handshake_result {
    HANDSHAKE_OK,
    HANDSHAKE_KNOWN, /* the two processes have a link, or the connection in the other direction is kept */
    HANDSHAKE_REFUSED,
};
enum handshake_flags {
    HANDSHAKE_MAY_PROBE = 1, /* the sender accepts references: the receiver may read its nonce */
    HANDSHAKE_CAN_READ = 2,  /* the sender has read the receiver's nonce */
    HANDSHAKE_ACCEPTED = 4,  /* HELLO: the sender has accepted a HELLO of the receiver and awaits READY */
};

/* A format between processes, and between versions of SoftHCA. All numbers are in the byte order of the host. */
struct handshake_message {
    uint32_t magic;
    uint16_t version, type;           /* HANDSHAKE_VERSION, enum handshake_type */
    uint8_t instance[INSTANCE_BYTES]; /* instance ID: random, new at each local_start() */
    uint32_t layout_size;             /* LAYOUT_SIZE of the sender */
    uint16_t result, flags;           /* enum handshake_result (WELCOME), enum handshake_flags */
    uint64_t nonce_address; /* in the sender's memory: where the bytes of nonce[] are; 0: not for you */
    uint8_t nonce[INSTANCE_BYTES];
    uint32_t segment; /* descriptor of the published segment in the sender, plus 1; 0: unknown */
    uint32_t reserved;
};
static_assert(sizeof(struct handshake_message) == 64, "a format between processes of different versions");

/* Fills in a message of this process that any user may get. */
void handshake_message_fill(struct handshake_message *message, enum handshake_type type,
                            enum handshake_result result, bool can_read);
/* Adds what only processes of the same user may get: an address of this process, by which another user would know where
 * the library is (ASLR), and the descriptor of the published segment. */
void handshake_message_add_private(struct handshake_message *message);
/* For a message that handshake_message_receive() rejected: is it a request for the published segment instead? */
bool handshake_message_is_segment_request(const struct handshake_message *message);
/* Likewise, is it a control request (published/control_request.h)? */
bool handshake_message_is_control_request(const struct handshake_message *message);
/* Answers a segment request; files: SEGMENT_REQUEST_FILES descriptors, NULL: none. 0 or -errno. */
int handshake_answer_segment_request(int fd, enum segment_request_result result, const int *files);
/* memory_fd -1: without a descriptor. 0 or -errno. */
int handshake_message_send(int fd, const struct handshake_message *message, int memory_fd);
/* 0; -EAGAIN: nothing has arrived; -ECONNRESET: end of the socket; -EPROTO: not a message of that type and version;
 * another -errno. *ret_memory_fd is the descriptor that came with the message, -1 if none; the caller closes it in
 * every case. *ret_sender is the process that sent the message, as the kernel says (SCM_CREDENTIALS): 0 if it is
 * outside of our pid namespace, -1 without handshake_want_sender(). */
int handshake_message_receive(int fd, enum handshake_type type, struct handshake_message *message,
                              int *ret_memory_fd, pid_t *ret_sender);
/* From here on (true), messages that fd receives come with their sender; or no longer. 0 or -errno. */
int handshake_want_sender(int fd, bool wanted);

/* recvmsg() of a message that may bring a descriptor: -1: none. Others that come with it are closed. */
ssize_t receive_with_descriptor(int socket, void *data, size_t size, int flags, int *ret_fd);

/* Process and user at the other end of the socket (SO_PEERCRED); false with errno. */
bool peer_credentials(int fd, struct ucred *ret_peer);
/* A pidfd of the process at the other end: SO_PEERPIDFD from Linux 6.5 on, else pidfd_open(pid). The number cannot
 * belong to another process yet if the probe finds the nonce there or, without a probe, while the socket stays open.
 * -1: no pidfd; the end of the socket is then the only sign of death. Another -errno: one that may pass. */
int peer_pidfd(int fd, pid_t pid);
/* A number of the process which no other process has as long as this one is there, and with pidfs (Linux 6.9) never
 * again: the inode of its pidfd. Else it is made of pid, which the kernel uses again. 0: outside of our pid namespace,
 * without pidfs. */
uint64_t process_identity(int pidfd, pid_t pid);
/* It is such an inode. */
bool identity_is_for_good(uint64_t identity);
/* Of the process at the other end: the one that connected or, seen from there, that called listen(). 0, or -errno: the
 * kernel lacks what it takes to tell, and may tell later. */
int peer_identity(int fd, uint64_t *ret_identity);

/* Followed by the block, or the first of its area, in four lower-case hexadecimal digits. */
#define BLOCK_NAME_PREFIX SEGMENT_REQUEST_NAME_PREFIX
#define BLOCKS_LAST       0xfffeu      /* block 0 (QPNs 0 and 1) and 0xffff (QPN 0xffffff) have no owner */
#define NAME_PREFIX       "softhca/2/" /* names that local_name_take() takes */
/* The address of the abstract socket whose owner has the block; returns its length. */
socklen_t block_address(uint32_t block, struct sockaddr_un *ret_address);

#endif
