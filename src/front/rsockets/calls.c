/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Calls that transfer bytes, in all their forms (verbs.md §11.12). */
#include <limits.h>
#include <sys/uio.h>

#include "front/rsockets/rsocket.h"

static int check_parts(const struct iovec *parts, size_t count)
{
    size_t total = 0;

    if (count > IOV_MAX || (count && !parts))
        return count > IOV_MAX ? -EINVAL : -EFAULT;
    for (size_t i = 0; i < count; i++)
        if (parts[i].iov_len > SSIZE_MAX || (total += parts[i].iov_len) > SSIZE_MAX)
            return -EINVAL;
    return 0;
}

static int check_message(const struct msghdr *message)
{
    if (!message)
        return -EFAULT;
    if (message->msg_control && message->msg_controllen)
        return -ENOTSUP;
    return check_parts(message->msg_iov, message->msg_iovlen);
}

/* --- sending -------------------------------------------------------------------------------------------- */

static ssize_t send_parts(int fd, const struct iovec *parts, size_t count, int flags,
                          const struct sockaddr *to, socklen_t length)
{
    struct rsocket *rsocket;
    ssize_t result;
    int error = rsocket_enter(fd, &rsocket);

    if (error)
        return error;
    if (flags & MSG_OOB)
        result = -EOPNOTSUPP;
    else if (!rsocket_is_stream(rsocket))
        result = datagram_send(rsocket, parts, count, flags, to, length);
    else if (to || length)
        result = -EISCONN;
    else
        result = transfer_send(rsocket, parts, count, flags);
    rsocket_leave(rsocket);
    return result;
}

RDMACM_EXPORT ssize_t rsendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to,
                              socklen_t to_bytes)
{
    struct iovec part = {(void *)(uintptr_t)data, min_of(length, (size_t)SSIZE_MAX)};

    return rsocket_conclude(send_parts(fd, &part, 1, flags, to, to_bytes));
}

RDMACM_EXPORT ssize_t rsend(int fd, const void *data, size_t length, int flags)
{
    return rsendto(fd, data, length, flags, NULL, 0);
}

RDMACM_EXPORT ssize_t rwrite(int fd, const void *data, size_t length)
{
    return rsendto(fd, data, length, 0, NULL, 0);
}

RDMACM_EXPORT ssize_t rsendmsg(int fd, const struct msghdr *message, int flags)
{
    int error = check_message(message);

    if (error)
        return conclude(error);
    return rsocket_conclude(send_parts(fd, message->msg_iov, message->msg_iovlen, flags,
                                       message->msg_namelen ? message->msg_name : NULL,
                                       message->msg_namelen));
}

RDMACM_EXPORT ssize_t rwritev(int fd, const struct iovec *parts, int count)
{
    int error = count < 0 ? -EINVAL : check_parts(parts, (size_t)count);

    if (error)
        return conclude(error);
    return rsocket_conclude(send_parts(fd, parts, (size_t)count, 0, NULL, 0));
}

/* --- receiving ------------------------------------------------------------------------------------------ */

/* Unlike TCP, a stream returns the peer's address if the caller asks for it. */
static ssize_t receive_parts(int fd, const struct iovec *parts, size_t count, int flags,
                             struct sockaddr *from, socklen_t *from_bytes, int *ret_flags)
{
    struct rsocket *rsocket;
    ssize_t result;
    int error = rsocket_enter(fd, &rsocket);

    if (error)
        return error;
    *ret_flags = 0;
    if (flags & MSG_OOB) {
        result = -EINVAL;
    } else if (!rsocket_is_stream(rsocket)) {
        result = datagram_receive(rsocket, parts, count, flags, from, from_bytes, ret_flags);
    } else {
        result = transfer_receive(rsocket, parts, count, flags);
        if (result > 0 && from && from_bytes)
            rsocket_give_address(&rsocket->remote, from, from_bytes);
    }
    rsocket_leave(rsocket);
    return result;
}

RDMACM_EXPORT ssize_t rrecvfrom(int fd, void *data, size_t length, int flags, struct sockaddr *from,
                                socklen_t *from_bytes)
{
    struct iovec part = {data, min_of(length, (size_t)SSIZE_MAX)};
    int ignored;

    return rsocket_conclude(receive_parts(fd, &part, 1, flags, from, from_bytes, &ignored));
}

RDMACM_EXPORT ssize_t rrecv(int fd, void *data, size_t length, int flags)
{
    return rrecvfrom(fd, data, length, flags, NULL, NULL);
}

RDMACM_EXPORT ssize_t rread(int fd, void *data, size_t length)
{
    return rrecvfrom(fd, data, length, 0, NULL, NULL);
}

RDMACM_EXPORT ssize_t rrecvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t result;
    int error = check_message(message);

    if (error)
        return conclude(error);
    result = receive_parts(fd, message->msg_iov, message->msg_iovlen, flags, message->msg_name,
                           message->msg_name ? &message->msg_namelen : NULL, &message->msg_flags);
    if (result >= 0)
        message->msg_controllen = 0;
    return rsocket_conclude(result);
}

RDMACM_EXPORT ssize_t rreadv(int fd, const struct iovec *parts, int count)
{
    int ignored, error = count < 0 ? -EINVAL : check_parts(parts, (size_t)count);

    if (error)
        return conclude(error);
    return rsocket_conclude(receive_parts(fd, parts, (size_t)count, 0, NULL, NULL, &ignored));
}
