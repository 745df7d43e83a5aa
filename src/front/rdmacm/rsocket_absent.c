/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Built without rsockets (-Drsockets=false, the default as long as they are not finished). Their names are
 * there all the same: rping, ucmatose and others bind to them when they are loaded. */
#include <rdma/rsocket.h>

#include "front/rdmacm/rsocket.h"

#define NOT_THERE(type, name, ...)                                                                           \
    RDMACM_EXPORT type name(__VA_ARGS__)                                                                     \
    {                                                                                                        \
        return (type)conclude(-EOPNOTSUPP);                                                                  \
    }

NOT_THERE(int, rsocket, int domain, int type, int protocol)
NOT_THERE(int, rbind, int socket, const struct sockaddr *address, socklen_t length)
NOT_THERE(int, rlisten, int socket, int backlog)
NOT_THERE(int, raccept, int socket, struct sockaddr *address, socklen_t *length)
NOT_THERE(int, rconnect, int socket, const struct sockaddr *address, socklen_t length)
NOT_THERE(int, rshutdown, int socket, int how)
NOT_THERE(int, rclose, int socket)
NOT_THERE(ssize_t, rrecv, int socket, void *buffer, size_t length, int flags)
NOT_THERE(ssize_t, rrecvfrom, int socket, void *buffer, size_t length, int flags, struct sockaddr *address,
          socklen_t *address_bytes)
NOT_THERE(ssize_t, rrecvmsg, int socket, struct msghdr *message, int flags)
NOT_THERE(ssize_t, rsend, int socket, const void *buffer, size_t length, int flags)
NOT_THERE(ssize_t, rsendto, int socket, const void *buffer, size_t length, int flags,
          const struct sockaddr *address, socklen_t address_bytes)
NOT_THERE(ssize_t, rsendmsg, int socket, const struct msghdr *message, int flags)
NOT_THERE(ssize_t, rread, int socket, void *buffer, size_t length)
NOT_THERE(ssize_t, rreadv, int socket, const struct iovec *parts, int count)
NOT_THERE(ssize_t, rwrite, int socket, const void *buffer, size_t length)
NOT_THERE(ssize_t, rwritev, int socket, const struct iovec *parts, int count)
NOT_THERE(int, rpoll, struct pollfd *watched, nfds_t count, int timeout)
NOT_THERE(int, rselect, int count, fd_set *readable, fd_set *writable, fd_set *exceptional,
          struct timeval *timeout)
NOT_THERE(int, rgetpeername, int socket, struct sockaddr *address, socklen_t *length)
NOT_THERE(int, rgetsockname, int socket, struct sockaddr *address, socklen_t *length)
NOT_THERE(int, rsetsockopt, int socket, int level, int option, const void *value, socklen_t length)
NOT_THERE(int, rgetsockopt, int socket, int level, int option, void *value, socklen_t *length)
NOT_THERE(int, rfcntl, int socket, int command, ...)
NOT_THERE(off_t, riomap, int socket, void *buffer, size_t length, int protection, int flags, off_t offset)
NOT_THERE(int, riounmap, int socket, void *buffer, size_t length)
NOT_THERE(size_t, riowrite, int socket, const void *buffer, size_t count, off_t offset, int flags)

void rsockets_after_fork_in_child(void)
{
}
