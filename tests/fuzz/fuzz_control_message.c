/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages from another process over a unix socket, with descriptors: a handshake message
 * (local/handshake_message.h), a control message or a descriptor set of processes that share UDP port 4791
 * (udp/control_message.h). Accepted messages are valid, and no descriptor leaks.
 *
 * Input: one byte selects the reader, one the number of descriptors, then the message. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/event.h"
#include "fuzz.h"
#include "local/handshake_message.h"
#include "udp/control_message.h"
#include "udp/udp.h"

#define FDS_MOST 80u /* more than any reader accepts */

enum reader { READS_HANDSHAKE, READS_CONTROL_MESSAGE, READS_DESCRIPTOR_SET, READERS };

static int ends[2] = {-1, -1};

static void send_message(const uint8_t *bytes, size_t length, unsigned fd_count)
{
    struct iovec part = {(void *)(uintptr_t)bytes, length};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(FDS_MOST * sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    if (fd_count) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        for (unsigned i = 0; i < fd_count; i++)
            memcpy(CMSG_DATA(&control.header) + i * sizeof(int), &ends[1], sizeof(int));
    }
    require(sendmsg(ends[1], &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)length);
}

/* The lowest unused descriptor, which stays the same unless one leaks. */
static int lowest_free(void)
{
    int fd = dup(ends[1]);

    require(fd >= 0);
    close(fd);
    return fd;
}

static void read_handshake_message(uint8_t choice)
{
    enum handshake_type type = HANDSHAKE_HELLO + choice % 3;
    struct handshake_message handshake;
    pid_t sender;
    int fd, error = handshake_message_receive(ends[0], type, &handshake, &fd, &sender);

    require(error <= 0 && fd >= -1);
    if (!error)
        require(handshake.magic == HANDSHAKE_MAGIC && handshake.type == type &&
                handshake.layout_size == LAYOUT_SIZE);
    else if (error == -EPROTO)
        require(!handshake_message_is_segment_request(&handshake) ||
                !handshake_message_is_control_request(&handshake));
    if (fd >= 0)
        fd_close(fd);
}

static void read_control_message(uint8_t choice)
{
    enum udp_message_type type = UDP_MESSAGE_REQUEST + choice % 2;
    int fds[UDP_MESSAGE_FDS], error;
    struct udp_message message;
    unsigned count;

    error = udp_message_receive(ends[0], type, &message, fds, &count);
    require(error <= 0 && count <= UDP_MESSAGE_FDS);
    if (!error)
        require(message.magic == UDP_MESSAGE_MAGIC && message.type == type &&
                message.block_count <= UDP_MESSAGE_BLOCKS);
    while (count)
        fd_close(fds[--count]);
}

/* Reading a descriptor set leaves its message in the socket. */
static void read_descriptor_set(uint8_t choice, unsigned fd_count)
{
    int fd = descriptor_set_get(ends[0], choice % UDP_SHARDS, UDP_SHARDS);
    char bytes[1024];

    require(fd < 0 || fd_count == UDP_SHARDS);
    if (fd >= 0)
        fd_close(fd);
    require(recv(ends[0], bytes, sizeof(bytes), MSG_DONTWAIT) >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned fd_count;
    int before;

    if (size < 2)
        return 0;
    if (ends[0] < 0)
        require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    before = lowest_free();
    fd_count = data[1] % (FDS_MOST + 1);
    send_message(data + 2, size - 2, fd_count);
    switch ((enum reader)(data[0] % READERS)) {
    case READS_HANDSHAKE:
        read_handshake_message(data[0] / READERS);
        break;
    case READS_CONTROL_MESSAGE:
        read_control_message(data[0] / READERS);
        break;
    case READS_DESCRIPTOR_SET:
    case READERS:
        read_descriptor_set(data[0] / READERS, fd_count);
        break;
    }
    require(lowest_free() == before);
    return 0;
}

/* --- seeds ------------------------------------------------------------------------------------------ */

static void add_input(fuzz_add *add, unsigned reader, uint8_t fds, const void *message, size_t length)
{
    uint8_t input[256] = {(uint8_t)reader, fds};

    memcpy(input + 2, message, length);
    add(input, 2 + length);
}

void fuzz_seeds(fuzz_add *add)
{
    for (unsigned type = 0; type < 3; type++) {
        const struct handshake_message handshake = {.magic = HANDSHAKE_MAGIC,
                                                    .version = HANDSHAKE_VERSION,
                                                    .type = (uint16_t)(HANDSHAKE_HELLO + type),
                                                    .layout_size = LAYOUT_SIZE};

        add_input(add, READERS * type + READS_HANDSHAKE, type == 0, &handshake, sizeof(handshake));
    }
    for (unsigned type = 0; type < 2; type++) {
        const struct udp_message message = {.magic = UDP_MESSAGE_MAGIC,
                                            .version = UDP_MESSAGE_VERSION,
                                            .type = (uint16_t)(UDP_MESSAGE_REQUEST + type),
                                            .block_count = 2};

        add_input(add, READERS * type + READS_CONTROL_MESSAGE, 2, &message, sizeof(message));
        add_input(add, READERS * type + READS_CONTROL_MESSAGE, UDP_MESSAGE_FDS + 4, &message,
                  sizeof(message));
    }
    add_input(add, READS_DESCRIPTOR_SET, UDP_SHARDS, "box", 4);
    add_input(add, READS_DESCRIPTOR_SET, UDP_SHARDS + 1, "box", 4);
}
