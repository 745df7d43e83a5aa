/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/handshake_message.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "base/fd.h"
#include "base/newer_kernel.h"
#include "base/sys.h"
#include "base/unix_names.h"
#include "local/start.h"

#define IS_PID      (UINT64_C(1) << 63) /* the rest is a pid: this kernel has no pidfs */
#define PIDFS_MAGIC 0x50494446          /* PID_FS_MAGIC of linux/magic.h since Linux 6.9 */

socklen_t block_address(uint32_t block, struct sockaddr_un *ret_address)
{
    char name[sizeof(BLOCK_NAME_PREFIX) + 4];

    snprintf(name, sizeof(name), BLOCK_NAME_PREFIX "%04x", segment_request_named_block(block & 0xffff));
    return unix_name_address(name, ret_address);
}

void handshake_message_fill(struct handshake_message *message, enum handshake_type type,
                            enum handshake_result result, bool can_read)
{
    *message = (struct handshake_message){
        .magic = HANDSHAKE_MAGIC,
        .version = HANDSHAKE_VERSION,
        .type = (uint16_t)type,
        .layout_size = LAYOUT_SIZE,
        .result = (uint16_t)result,
        .flags = can_read ? HANDSHAKE_CAN_READ : 0,
    };
    memcpy(message->instance, local.instance, sizeof(message->instance));
}

void handshake_message_add_private(struct handshake_message *message)
{
    if (local.mechanism != MECHANISM_RING) {
        message->flags |= HANDSHAKE_MAY_PROBE;
        message->nonce_address = (uintptr_t)local.nonce;
        memcpy(message->nonce, local.nonce, sizeof(message->nonce));
    }
    message->segment = local.ops->segment ? (uint32_t)(local.ops->segment() + 1) : 0;
}

#define DESCRIPTORS_MAX 4u

static int send_with_descriptors(int fd, const void *message_bytes, size_t size, const int *fds,
                                 unsigned count)
{
    struct iovec part = {(void *)(uintptr_t)message_bytes, size};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};

    if (count) {
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
    }
    return sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size ? 0 : -errno;
}

int handshake_message_send(int fd, const struct handshake_message *message, int memory_fd)
{
    return send_with_descriptors(fd, message, sizeof(*message), &memory_fd, memory_fd >= 0);
}

static_assert(sizeof(struct segment_request) == sizeof(struct handshake_message) &&
                  SEGMENT_REQUEST_MAGIC == HANDSHAKE_MAGIC &&
                  offsetof(struct segment_request, type) == offsetof(struct handshake_message, type),
              "an acceptor tells the two apart by their type");

bool handshake_message_is_segment_request(const struct handshake_message *message)
{
    return message->magic == SEGMENT_REQUEST_MAGIC && message->version == SEGMENT_REQUEST_VERSION &&
           message->type == SEGMENT_REQUEST_TYPE;
}

bool handshake_message_is_control_request(const struct handshake_message *message)
{
    return message->magic == SEGMENT_REQUEST_MAGIC && message->version == SEGMENT_REQUEST_VERSION &&
           message->type == CONTROL_REQUEST_TYPE;
}

int handshake_answer_segment_request(int fd, enum segment_request_result result, const int *files)
{
    const struct segment_request answer = {.magic = SEGMENT_REQUEST_MAGIC,
                                           .version = SEGMENT_REQUEST_VERSION,
                                           .type = SEGMENT_REQUEST_TYPE,
                                           .result = result};

    return send_with_descriptors(fd, &answer, sizeof(answer), files, files ? SEGMENT_REQUEST_FILES : 0);
}

/* Returns the first descriptor in the ancillary data and closes all others; -1: none. */
static int take_descriptor(struct msghdr *msg)
{
    int kept = -1;

    for (struct cmsghdr *header = CMSG_FIRSTHDR(msg); header; header = CMSG_NXTHDR(msg, header)) {
        size_t bytes = header->cmsg_len - CMSG_LEN(0);

        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
            int fd;

            memcpy(&fd, CMSG_DATA(header) + at, sizeof(fd));
            fd = fd_own(fd);
            if (kept < 0)
                kept = fd;
            else
                fd_close(fd);
        }
    }
    return kept;
}

ssize_t receive_with_descriptor(int socket, void *data, size_t size, int flags, int *ret_fd)
{
    struct iovec part = {data, size};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t length = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);

    *ret_fd = length > 0 ? take_descriptor(&message) : -1;
    return length;
}

int handshake_want_sender(int fd, bool wanted)
{
    const int value = wanted;

    return setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &value, sizeof(value)) < 0 ? -errno : 0;
}

static pid_t sender_of(struct msghdr *msg)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(msg); header; header = CMSG_NXTHDR(msg, header)) {
        struct ucred sender;

        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_CREDENTIALS &&
            header->cmsg_len == CMSG_LEN(sizeof(sender))) {
            memcpy(&sender, CMSG_DATA(header), sizeof(sender));
            return sender.pid;
        }
    }
    return -1;
}

int handshake_message_receive(int fd, enum handshake_type type, struct handshake_message *message,
                              int *ret_memory_fd, pid_t *ret_sender)
{
    struct iovec part = {message, sizeof(*message)};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(4 * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct msghdr msg = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    ssize_t length = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    *ret_memory_fd = -1;
    *ret_sender = -1;
    if (length < 0)
        return error_may_pass(-errno) ? -EAGAIN : -errno; /* the message is still there */
    *ret_memory_fd = take_descriptor(&msg);
    *ret_sender = sender_of(&msg);
    if (length == 0)
        return -ECONNRESET;
    if (msg.msg_flags & MSG_CTRUNC) /* the descriptor was cut off: this process may have no more */
        return -EMFILE;
    if (length != (ssize_t)sizeof(*message) || (msg.msg_flags & MSG_TRUNC) ||
        message->magic != HANDSHAKE_MAGIC || message->version != HANDSHAKE_VERSION || message->type != type ||
        message->layout_size != LAYOUT_SIZE)
        return -EPROTO;
    return 0;
}

bool peer_credentials(int fd, struct ucred *ret_peer)
{
    socklen_t length = sizeof(*ret_peer);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret_peer, &length) == 0;
}

int peer_pidfd(int fd, pid_t pid)
{
    int pidfd = -1;
    socklen_t length = sizeof(pidfd);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) < 0)
        pidfd = error_may_pass(-errno) ? -errno : pid > 0 ? sys_pidfd_open(pid) : -1;
    if (pidfd >= 0)
        return fd_own(pidfd);
    return error_may_pass(pidfd) ? pidfd : -1;
}

uint64_t process_identity(int pidfd, pid_t pid)
{
    struct statfs system;
    struct stat status;

    if (pidfd >= 0 && fd_statfs(pidfd, &system) == 0 && system.f_type == PIDFS_MAGIC &&
        fd_stat(pidfd, &status) == 0)
        return status.st_ino;
    return pid > 0 ? IS_PID | (uint64_t)pid : 0;
}

bool identity_is_for_good(uint64_t identity)
{
    return identity && !(identity & IS_PID);
}

int peer_identity(int fd, uint64_t *ret_identity)
{
    struct ucred peer = {.pid = 0};
    int pidfd = peer_pidfd(fd, 0);

    if (error_may_pass(pidfd))
        return pidfd;
    if (!peer_credentials(fd, &peer)) {
        int error = -errno;

        fd_close(pidfd);
        return error;
    }
    *ret_identity = process_identity(pidfd, peer.pid);
    fd_close(pidfd);
    return 0;
}
