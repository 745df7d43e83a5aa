/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The forwarding socket of this process: a pair of unix datagram sockets. Other processes get the write end and
 * send packets that they have read for us. Packets that find it full are dropped, as a network may do. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/log.h"
#include "base/sys.h"
#include "udp/internal.h"

#define FORWARDING_SOCKET_SIZE (4 << 20)

static struct reader reader = {.source.fd = -1};
static int write_end = -1;

int forwarding_open(void)
{
    int pair[2], size = FORWARDING_SOCKET_SIZE, saved = errno, error = 0;

    if (write_end >= 0)
        return write_end;
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        error = -errno;
        errno = saved;
        log_error("UDP port 4791: forwarded packets are not received: socketpair: %s (limit: ulimit -n)",
                  strerror(-error));
        return error;
    }
    pair[0] = fd_own(pair[0]);
    write_end = fd_own(pair[1]);
    /* The kernel charges queued datagrams of a unix socket to the sender's buffer. */
    (void)setsockopt(write_end, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    reader = (struct reader){.source.fd = pair[0], .is_forwarding = true, .forward_to = -1};
    error = reader_add(&reader);
    if (error) {
        fd_close(pair[0]);
        fd_close(write_end);
        reader.source.fd = write_end = -1;
    }
    errno = saved;
    return error ? error : write_end;
}

void forwarding_set_polled(void)
{
    reader_set_polled(&reader);
}

/* A socket connected to a named one would make us send datagrams to a third process under our credentials. */
bool forwarding_socket_is_valid(int fd)
{
    int domain = 0, type = 0, saved = errno;
    socklen_t length = sizeof(domain), type_length = sizeof(type), name_length = sizeof(struct sockaddr_un);
    struct sockaddr_un name;
    bool is_valid = getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX &&
                    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_length) == 0 && type == SOCK_DGRAM &&
                    getpeername(fd, (struct sockaddr *)&name, &name_length) == 0 &&
                    name_length == offsetof(struct sockaddr_un, sun_path);

    errno = saved;
    return is_valid;
}

void forwarding_send(int fd, const struct datagram *datagram, const uint8_t *bytes)
{
    struct iovec parts[2] = {
        {(void *)(uintptr_t)datagram, sizeof(*datagram)},
        {(void *)(uintptr_t)bytes, datagram->length},
    };
    struct mmsghdr header = {.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}};
    bool sent = sys_sendmmsg(fd, &header, 1) == 1;

    udp_count(sent ? &udp_counters->forwarded : &udp_counters->unknown_qpn, 1);
}

void forwarding_after_fork_in_child(void)
{
    reader = (struct reader){.source.fd = -1};
    write_end = -1;
}
