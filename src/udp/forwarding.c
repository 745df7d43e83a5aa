/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Where others put packets that they read for us: a pair of datagram sockets, of which they get the one end.
 * What it does not take is lost, as packets may be. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/log.h"
#include "base/sys.h"
#include "udp/internal.h"

#define MAILBOX_SIZE (4 << 20)

static struct reader mailbox = {.source.fd = -1};
static int their_end = -1;

int mailbox_open(void)
{
    int pair[2], size = MAILBOX_SIZE, saved = errno, error = 0;

    if (their_end >= 0)
        return their_end;
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        error = -errno;
        errno = saved;
        log_error("no mailbox for packets from the network: %s", strerror(-error));
        return error;
    }
    pair[0] = fd_own(pair[0]);
    their_end = fd_own(pair[1]);
    (void)setsockopt(their_end, SOL_SOCKET, SO_SNDBUF, &size,
                     sizeof(size)); /* what lies there counts at the writer */
    mailbox = (struct reader){.source.fd = pair[0], .is_mailbox = true, .hand_to = -1};
    error = reader_add(&mailbox);
    if (error) {
        fd_close(pair[0]);
        fd_close(their_end);
        mailbox.source.fd = their_end = -1;
    }
    errno = saved;
    return error ? error : their_end;
}

void mailbox_set_polled(void)
{
    reader_set_polled(&mailbox);
}

/* A socket that leads to somebody with a name would make us speak in his place. */
bool mailbox_is_sane(int fd)
{
    int domain = 0, type = 0, saved = errno;
    socklen_t length = sizeof(domain), type_length = sizeof(type), name_length = sizeof(struct sockaddr_un);
    struct sockaddr_un name;
    bool sane = getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX &&
                getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_length) == 0 && type == SOCK_DGRAM &&
                getpeername(fd, (struct sockaddr *)&name, &name_length) == 0 &&
                name_length == offsetof(struct sockaddr_un, sun_path);

    errno = saved;
    return sane;
}

void mailbox_put(int fd, const struct datagram *datagram, const uint8_t *bytes)
{
    struct iovec parts[2] = {
        {(void *)(uintptr_t)datagram, sizeof(*datagram)},
        {(void *)(uintptr_t)bytes, datagram->length},
    };
    struct mmsghdr header = {.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}};
    bool taken = sys_sendmmsg(fd, &header, 1) == 1;

    udp_count(taken ? &udp_counters->handed_on : &udp_counters->strangers, 1);
}

void mailbox_after_fork_in_child(void)
{
    mailbox = (struct reader){.source.fd = -1};
    their_end = -1;
}
