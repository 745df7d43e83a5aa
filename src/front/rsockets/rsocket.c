/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* rsockets: creation, addresses, peers, and end (verbs.md §11.12). */
#include "front/rsockets/rsocket.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"

/* How long rclose() and rshutdown() wait until the peer has received everything. */
#define LINGER_NS (10 * NS_PER_S)

/* --- rsocket() ------------------------------------------------------------------------------------------ */

/* Debian's librspreload intercepts socket() but not accept4(): after a call with flags, the program would use
 * accept4(), which nothing translates. If the call fails, the library falls back to a kernel socket. */
static bool flags_can_be_kept(void)
{
    Dl_info of_socket, of_accept4;
    void *socket_symbol = dlsym(RTLD_DEFAULT, "socket"), *accept4_symbol = dlsym(RTLD_DEFAULT, "accept4");

    return !socket_symbol || !accept4_symbol || !dladdr(socket_symbol, &of_socket) ||
           !dladdr(accept4_symbol, &of_accept4) || of_socket.dli_fbase == of_accept4.dli_fbase;
}

static int check_kind(int domain, int type, int protocol)
{
    bool stream = type == SOCK_STREAM && (!protocol || protocol == IPPROTO_TCP);
    bool datagram = type == SOCK_DGRAM && (!protocol || protocol == IPPROTO_UDP);

    if (domain != AF_INET && domain != AF_INET6 && (domain != AF_IB || !stream))
        return -ENOTSUP;
    return stream || datagram ? 0 : -ENOTSUP;
}

/* A stream's descriptor is an eventfd, which only reserves the number. */
static int open_stream(struct rsocket *rsocket)
{
    int fd, error = connect_make_id(rsocket);

    if (error)
        return error;
    fd = fd_lift(eventfd(0, EFD_CLOEXEC));
    error = fd < 0 ? -errno : rsocket_publish(rsocket, fd);
    if (!error)
        return fd;
    if (fd >= 0)
        sys_close(fd);
    rdma_destroy_id(rsocket->id);
    return error;
}

static int open_socket(int domain, int type, int protocol)
{
    int flags = type & (SOCK_CLOEXEC | SOCK_NONBLOCK), fd;
    int error = check_kind(domain, type & ~flags, protocol);
    struct rsocket *rsocket;

    if (!error && flags && !flags_can_be_kept())
        error = -ENOTSUP;
    if (!error)
        error = start();
    if (error)
        return error;
    rsocket = rsocket_new(domain, type & ~flags);
    if (!rsocket)
        return -ENOMEM;
    rsocket->nonblocking = flags & SOCK_NONBLOCK;
    rsocket->status_flags = flags & SOCK_NONBLOCK ? O_RDWR | O_NONBLOCK : O_RDWR;
    rsocket->descriptor_flags = flags & SOCK_CLOEXEC ? FD_CLOEXEC : 0;
    fd = rsocket_is_stream(rsocket) ? open_stream(rsocket) : datagram_open(rsocket);
    if (fd < 0)
        rsocket_recycle(rsocket);
    return fd;
}

RDMACM_EXPORT int rsocket(int domain, int type, int protocol)
{
    return (int)rsocket_conclude(open_socket(domain, type, protocol));
}

/* --- addresses ------------------------------------------------------------------------------------------ */

/* Copies an address with the length of its family. */
int rsocket_copy_address(const struct rsocket *rsocket, const struct sockaddr *address, socklen_t length,
                         struct sockaddr_storage *ret_address)
{
    int needed;

    if (!address)
        return -EFAULT;
    if (length < sizeof(address->sa_family))
        return -EINVAL;
    if (address->sa_family != rsocket->domain)
        return -EAFNOSUPPORT;
    needed = address_length(address);
    if (needed < 0 || length < (socklen_t)needed)
        return -EINVAL;
    memset(ret_address, 0, sizeof(*ret_address));
    memcpy(ret_address, address, (size_t)needed);
    return 0;
}

static int bind_stream(struct rsocket *rsocket, const struct sockaddr *address, socklen_t length)
{
    struct sockaddr_storage copy;
    int error = rsocket_copy_address(rsocket, address, length, &copy);

    if (error)
        return error;
    if (rsocket->phase != PHASE_NEW)
        return -EINVAL;
    if (rdma_bind_addr(rsocket->id, (struct sockaddr *)&copy))
        return -errno;
    rsocket->local = rsocket->id->route.addr.src_storage;
    rsocket->phase = PHASE_BOUND;
    return 0;
}

RDMACM_EXPORT int rbind(int fd, const struct sockaddr *address, socklen_t length)
{
    struct rsocket *rsocket;
    int error = rsocket_enter(fd, &rsocket);

    if (error)
        return conclude(error);
    error = rsocket_is_stream(rsocket) ? bind_stream(rsocket, address, length)
                                       : datagram_bind(rsocket, address, length);
    rsocket_leave(rsocket);
    return conclude(error);
}

int rsocket_give_address(const struct sockaddr_storage *from, struct sockaddr *to, socklen_t *length)
{
    socklen_t has = (socklen_t)address_length((const struct sockaddr *)from), room;

    if (!length)
        return -EFAULT;
    room = *length;
    if (room && !to)
        return -EFAULT;
    if (room)
        memcpy(to, from, min_of(room, has));
    *length = has;
    return 0;
}

static int name_of(int fd, struct sockaddr *address, socklen_t *length, bool peer)
{
    struct rsocket *rsocket;
    int error = rsocket_enter(fd, &rsocket);

    if (error)
        return error;
    if (!rsocket_is_stream(rsocket))
        error = datagram_name(rsocket, address, length, peer);
    else if (peer && rsocket->phase != PHASE_CONNECTED)
        error = -ENOTCONN;
    else
        error = rsocket_give_address(peer ? &rsocket->remote : &rsocket->local, address, length);
    rsocket_leave(rsocket);
    return error;
}

RDMACM_EXPORT int rgetpeername(int fd, struct sockaddr *address, socklen_t *length)
{
    return conclude(name_of(fd, address, length, true));
}

RDMACM_EXPORT int rgetsockname(int fd, struct sockaddr *address, socklen_t *length)
{
    return conclude(name_of(fd, address, length, false));
}

/* --- listening ------------------------------------------------------------------------------------------ */

static int listen_at(struct rsocket *rsocket, int backlog)
{
    struct sockaddr_storage any = {.ss_family = (sa_family_t)rsocket->domain};
    int error = 0;

    if (!rsocket_is_stream(rsocket))
        return -EOPNOTSUPP;
    if (rsocket->phase == PHASE_NEW)
        error = bind_stream(rsocket, (struct sockaddr *)&any, sizeof(any));
    if (!error && rsocket->phase != PHASE_BOUND && rsocket->phase != PHASE_LISTENING)
        error = -EINVAL;
    if (!error)
        error = service_start();
    if (error)
        return error;
    rsocket->backlog = backlog <= 0 || backlog > BACKLOG_MAX ? BACKLOG_MAX : (unsigned)backlog;
    if (rsocket->phase == PHASE_LISTENING)
        return 0;
    rsocket->phase = PHASE_LISTENING; /* first: requests may arrive at once */
    if (!rdma_listen(rsocket->id, backlog))
        return 0;
    rsocket->phase = PHASE_BOUND;
    return -errno;
}

RDMACM_EXPORT int rlisten(int fd, int backlog)
{
    struct rsocket *rsocket;
    int error = rsocket_enter(fd, &rsocket);

    if (error)
        return conclude(error);
    error = listen_at(rsocket, backlog);
    rsocket_leave(rsocket);
    return conclude(error);
}

static int publish_child(struct rsocket *listener, struct rsocket *child)
{
    int fd = fd_lift(eventfd(0, EFD_CLOEXEC)), error = fd < 0 ? -errno : 0;

    if (!error) {
        child->status_flags = O_RDWR;
        error = rsocket_publish(child, fd);
    }
    if (!error)
        return fd;
    if (fd >= 0)
        sys_close(fd);
    connect_return_child(listener, child);
    return error;
}

static int accept_from(struct rsocket *listener, struct sockaddr *address, socklen_t *length)
{
    struct rsocket *child;
    int error;

    if (!rsocket_is_stream(listener))
        return -EOPNOTSUPP;
    if (listener->phase != PHASE_LISTENING)
        return -EINVAL;
    while (!(child = connect_take_child(listener))) {
        if (listener->nonblocking)
            return -EAGAIN;
        error = listener->closing ? -EBADF : rsocket_sleep(listener, listener->changes, 0);
        if (error)
            return error;
    }
    if (address) {
        error = rsocket_give_address(&child->remote, address, length);
        if (error) {
            connect_return_child(listener, child);
            return error;
        }
    }
    error = publish_child(listener, child);
    if (error >= 0 && listener->options.keepalive)
        service_keepalive(child, listener->options.keepalive_idle);
    return error;
}

RDMACM_EXPORT int raccept(int fd, struct sockaddr *address, socklen_t *length)
{
    struct rsocket *listener;
    int result = rsocket_enter(fd, &listener);

    if (result)
        return conclude(result);
    result = accept_from(listener, address, length);
    rsocket_leave(listener);
    return (int)rsocket_conclude(result);
}

/* --- connecting ----------------------------------------------------------------------------------------- */

/* After a failed connect, a socket may try again: with a new id, bound to the same address. */
static int renew(struct rsocket *rsocket)
{
    struct sockaddr_storage local = rsocket->local;
    struct rdma_cm_id *old = rsocket->id;
    struct rsocket_endpoint none = {0};
    int error;

    if (memcmp(&rsocket->endpoint, &none, sizeof(none)) != 0)
        endpoint_close(rsocket);
    rsocket->id = NULL;
    rsocket->phase = PHASE_CONNECTING; /* keeps other calls away */
    lock_release(&rsocket->lock);
    rdma_destroy_id(old); /* waits until the service thread has acknowledged its events */
    lock_acquire(&rsocket->lock);
    rsocket->phase = PHASE_NEW;
    memset(&rsocket->local, 0, sizeof(rsocket->local));
    rsocket->local.ss_family = (sa_family_t)rsocket->domain;
    error = connect_make_id(rsocket);
    if (!error)
        error = options_apply(rsocket);
    if (!error && rsocket->was_bound)
        error = bind_stream(rsocket, (struct sockaddr *)&local, sizeof(local));
    return error;
}

static int check_phase(struct rsocket *rsocket)
{
    switch (rsocket->phase) {
    case PHASE_NEW:
    case PHASE_BOUND:
        return 0;
    case PHASE_FAILED:
        return rsocket->error ? connect_finish(rsocket, true) : renew(rsocket);
    case PHASE_CONNECTING:
        return rsocket->nonblocking ? -EALREADY : 0;
    case PHASE_LISTENING:
        return -EISCONN;
    case PHASE_CONNECTED:
        return rsocket->told_connected ? -EISCONN : 0;
    }
    return -EINVAL;
}

static int connect_to(struct rsocket *rsocket, const struct sockaddr *address, socklen_t length)
{
    struct sockaddr_storage to;
    int error = rsocket_copy_address(rsocket, address, length, &to);

    if (!error)
        error = check_phase(rsocket);
    if (error)
        return error;
    if (rsocket->phase == PHASE_NEW || rsocket->phase == PHASE_BOUND) {
        error = service_start();
        if (error)
            return error;
        rsocket->was_bound = rsocket->phase == PHASE_BOUND;
        rsocket->remote = to;
        rsocket->connect_tries = 0;
        rsocket->phase = PHASE_CONNECTING;
        error = connect_begin(rsocket);
        if (error) {
            rsocket->phase = rsocket->was_bound ? PHASE_BOUND : PHASE_NEW;
            return error;
        }
        if (rsocket->nonblocking)
            return -EINPROGRESS;
    }
    error = connect_finish(rsocket, false);
    if (!error)
        rsocket->told_connected = true;
    return error;
}

RDMACM_EXPORT int rconnect(int fd, const struct sockaddr *address, socklen_t length)
{
    struct rsocket *rsocket;
    int error = rsocket_enter(fd, &rsocket);

    if (error)
        return conclude(error);
    error = rsocket_is_stream(rsocket) ? connect_to(rsocket, address, length)
                                       : datagram_connect(rsocket, address, length);
    rsocket_leave(rsocket);
    return conclude(error);
}

/* --- the end -------------------------------------------------------------------------------------------- */

/* Waits until everything sent has arrived or has failed. The caller is inside of the send direction. */
static int flush(struct rsocket *rsocket, struct rsocket_patience *patience)
{
    int error = 0;

    while (!stream_is_idle(&rsocket->stream) && !rsocket->stream.broken && !error) {
        error = rsocket_wait(rsocket, patience);
        if (error == -EINTR)
            error = 0;
    }
    return error;
}

/* A thread that sleeps in the completion channel wakes up only for a completion: cause one. */
static void wake_leader(struct rsocket *rsocket)
{
    rsocket_changed(rsocket);
    if (rsocket->leading && stream_can_control(&rsocket->stream))
        endpoint_send_control(rsocket, RSOCKET_KEEPALIVE);
}

/* Sends the control message that ends a direction, after all data. */
static int say_goodbye(struct rsocket *rsocket, int how, ns_t linger)
{
    struct rsocket_patience patience = {.deadline = sys_now() + linger};
    enum rsocket_control control;
    bool unsaid;
    int error;

    rsocket_progress(rsocket, true); /* the peer may have ended the stream first */
    unsaid = stream_shutdown(&rsocket->stream, how, &control);
    wake_leader(rsocket); /* calls that send or receive return */
    if (!unsaid)
        return 0;
    error = rsocket_enter_direction(rsocket, &rsocket->sending, &patience);
    if (error)
        return error;
    while (rsocket->stream.connected && !stream_can_control(&rsocket->stream) && !error)
        error = rsocket_wait(rsocket, &patience);
    if (stream_can_control(&rsocket->stream)) {
        endpoint_send_control(rsocket, control);
        error = flush(rsocket, &patience);
    }
    rsocket_leave_direction(rsocket, &rsocket->sending);
    return error;
}

static int shut_stream(struct rsocket *rsocket, int how)
{
    if (rsocket->phase != PHASE_CONNECTED)
        return -ENOTCONN;
    if (how != SHUT_WR)
        rsocket->shut_read = true;
    if (how != SHUT_RD)
        rsocket->shut_write = true;
    say_goodbye(rsocket, how, LINGER_NS);
    return 0;
}

RDMACM_EXPORT int rshutdown(int fd, int how)
{
    struct rsocket *rsocket;
    int error = rsocket_enter(fd, &rsocket);

    if (error)
        return conclude(error);
    if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR)
        error = -EINVAL;
    else if (rsocket_is_stream(rsocket))
        error = shut_stream(rsocket, how);
    rsocket_leave(rsocket);
    return conclude(error);
}

static ns_t linger_of(const struct rsocket *rsocket)
{
    const struct linger *linger = &rsocket->options.linger;

    return linger->l_onoff ? (ns_t)(uint32_t)max_of(linger->l_linger, 0) * NS_PER_S : LINGER_NS;
}

/* Unpublishes the rsocket, wakes the calls in it, and waits until they have left. */
static void be_alone(struct rsocket *rsocket)
{
    while (rsocket->users > 1) {
        rsocket_changed(rsocket);
        if (!rsocket_is_stream(rsocket))
            datagram_wake(rsocket);
        rsocket_sleep(rsocket, rsocket->changes, sys_now() + 10 * NS_PER_MS);
    }
}

static void close_stream(struct rsocket *rsocket)
{
    bool listening = rsocket->phase == PHASE_LISTENING;

    if (rsocket->phase == PHASE_CONNECTED && linger_of(rsocket))
        say_goodbye(rsocket, SHUT_RDWR, linger_of(rsocket));
    stream_break(&rsocket->stream);
    if (rsocket->phase == PHASE_CONNECTED)
        rdma_disconnect(rsocket->id); /* flushes the QP, which wakes a call that sleeps in its channel */
    be_alone(rsocket);
    rsocket->phase = PHASE_FAILED; /* the service thread does not touch the id from now on */
    lock_release(&rsocket->lock);
    service_keepalive(rsocket, 0);
    mappings_close(rsocket);
    endpoint_close(rsocket);
    if (rsocket->id)
        rdma_destroy_id(rsocket->id);
    if (listening)
        connect_drop_children(rsocket);
    free(rsocket->options.route);
}

/* In the child of a fork: leaves the parent's objects as they are. */
static int close_inherited(int fd, struct rsocket *rsocket)
{
    rsocket_unpublish_number(fd);
    if (rsocket_is_stream(rsocket) && rsocket->id)
        rdma_destroy_id(rsocket->id);
    return sys_close(fd);
}

static int close_socket(int fd)
{
    struct rsocket *rsocket = rsocket_inherited(fd);
    int error;

    if (rsocket)
        return close_inherited(fd, rsocket);
    error = rsocket_enter(fd, &rsocket);
    if (error)
        return epoll_close(fd);
    rsocket->closing = true;
    epoll_forget(fd);
    if (rsocket_is_stream(rsocket)) {
        close_stream(rsocket);
    } else {
        be_alone(rsocket);
        lock_release(&rsocket->lock);
        datagram_close(rsocket);
    }
    lock_acquire(&rsocket->lock);
    rsocket_unpublish(rsocket);
    lock_release(&rsocket->lock);
    rsocket_recycle(rsocket);
    sys_close(fd);
    return 0;
}

RDMACM_EXPORT int rclose(int fd)
{
    int saved = errno, error = close_socket(fd);

    errno = saved;
    return conclude(error);
}
