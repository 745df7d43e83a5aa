/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* rpoll() and rselect(), for rsockets and other descriptors. The thread first polls everything for the configured
 * time, then sleeps in poll(2) on the completion channels, the other descriptors, and an eventfd of its own, through
 * which other threads report changes (wait.c). */
#include <limits.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "base/fd.h"
#include "base/sys.h"
#include "front/rsockets/rsocket.h"

#ifndef POLLRDHUP
#define POLLRDHUP 0x2000
#endif

/* --- descriptors to be woken through -------------------------------------------------------------------- */

#define POOL_MAX 16

static struct {
    struct lock lock;
    int fds[POOL_MAX];
    unsigned count;
} pool = {LOCK_INIT, {0}, 0};

void poll_after_fork_in_child(void)
{
    lock_init(&pool.lock);
    while (pool.count)
        sys_close(pool.fds[--pool.count]);
}

int poll_take_wake_fd(void)
{
    int fd = -1;

    lock_acquire(&pool.lock);
    if (pool.count)
        fd = pool.fds[--pool.count];
    lock_release(&pool.lock);
    if (fd < 0)
        fd = fd_lift(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return fd < 0 ? -errno : fd;
}

void poll_return_wake_fd(int fd)
{
    uint64_t count;
    bool kept;

    sys_read(fd, &count, sizeof(count));
    lock_acquire(&pool.lock);
    kept = pool.count < POOL_MAX;
    if (kept)
        pool.fds[pool.count++] = fd;
    lock_release(&pool.lock);
    if (!kept)
        sys_close(fd);
}

/* --- what an rsocket is ready for; its lock held -------------------------------------------------------- */

static short stream_events(const struct rsocket *rsocket, short events)
{
    const struct stream *stream = &rsocket->stream;
    short ready = 0;

    if (stream->readable_bytes || !stream->readable)
        ready |= POLLIN | POLLRDNORM;
    if (stream_can_send(stream) || !stream->writable)
        ready |= POLLOUT | POLLWRNORM;
    if (!stream->readable)
        ready |= POLLRDHUP;
    ready &= events;
    /* A program stops reading after a hangup, so data that has arrived is reported first, as with TCP (rstream -T a).
     */
    if (!stream->readable && !stream->writable && !stream->readable_bytes)
        ready |= POLLHUP;
    if (rsocket->error)
        ready |= POLLERR;
    return ready;
}

static short events_of(struct rsocket *rsocket, short events)
{
    const short data = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM;

    if (!rsocket_is_stream(rsocket))
        return datagram_events(rsocket, events);
    switch (rsocket->phase) {
    case PHASE_NEW:
    case PHASE_BOUND:
        return (short)((events & (POLLOUT | POLLWRNORM)) | POLLHUP);
    case PHASE_LISTENING:
        return connect_has_ready_child(rsocket) ? (short)(events & (POLLIN | POLLRDNORM)) : 0;
    case PHASE_CONNECTING:
        return 0;
    case PHASE_FAILED:
        return (short)((events & (data | POLLRDHUP)) | POLLHUP | (rsocket->error ? POLLERR : 0));
    case PHASE_CONNECTED:
        return stream_events(rsocket, events);
    }
    return POLLNVAL;
}

/* Polls the CQ first, unless all requested events are known already: a program that can always write may wait for
 * data to read. */
static short poll_rsocket(struct rsocket *rsocket, short events)
{
    short ready = events_of(rsocket, events);

    if ((ready && (ready & events) == events) || !rsocket_can_progress(rsocket))
        return ready;
    rsocket_progress(rsocket, false);
    return events_of(rsocket, events);
}

/* --- looking -------------------------------------------------------------------------------------------- */

/* The link of a sleeping thread in one rsocket. */
struct place {
    struct rsocket *rsocket;
    struct rsocket_sleeper sleeper;
};

struct poll {
    struct pollfd *fds;
    nfds_t count;
    bool has_rsockets, has_others;
    /* While it sleeps: the poll(2) array, one longer than fds, and the links through which changes are reported. */
    struct pollfd *watched;
    struct place *places;
    int wake_fd;
};

static void survey(struct poll *poll)
{
    for (nfds_t i = 0; i < poll->count; i++) {
        poll->fds[i].revents = 0;
        if (poll->fds[i].fd < 0)
            continue;
        if (rsocket_is_one(poll->fds[i].fd))
            poll->has_rsockets = true;
    }
}

static void poll_rsockets(struct poll *poll)
{
    for (nfds_t i = 0; i < poll->count; i++) {
        struct pollfd *fd = &poll->fds[i];
        struct rsocket *rsocket;

        if (fd->fd < 0)
            continue;
        if (!rsocket_is_one(fd->fd)) {
            poll->has_others = true; /* also what was an rsocket, and is closed: poll(2) tells that */
            continue;
        }
        fd->revents = POLLNVAL;
        if (rsocket_enter(fd->fd, &rsocket))
            continue;
        fd->revents = poll_rsocket(rsocket, fd->events);
        rsocket_leave(rsocket);
    }
}

/* Polls the other descriptors without waiting. poll(2) ignores negative ones. */
static int poll_others(struct poll *poll)
{
    int result;

    for (nfds_t i = 0; i < poll->count; i++) {
        poll->watched[i] = poll->fds[i];
        if (rsocket_is_one(poll->fds[i].fd))
            poll->watched[i].fd = -1;
    }
    result = sys_poll(poll->watched, poll->count, 0);
    for (nfds_t i = 0; result > 0 && i < poll->count; i++)
        if (poll->watched[i].fd >= 0)
            poll->fds[i].revents = poll->watched[i].revents;
    return min_of(result, 0);
}

static int count_ready(const struct poll *poll)
{
    int ready = 0;

    for (nfds_t i = 0; i < poll->count; i++)
        ready += poll->fds[i].revents != 0;
    return ready;
}

static int poll_once(struct poll *poll)
{
    int error = 0;

    poll_rsockets(poll);
    if (poll->has_others)
        error = poll_others(poll);
    return error ? error : count_ready(poll);
}

/* --- sleeping ------------------------------------------------------------------------------------------- */

/* The descriptor that reports changes of the rsocket, besides the thread's eventfd; -1: none. */
static int descriptor_of(struct rsocket *rsocket)
{
    if (!rsocket_can_progress(rsocket))
        return -1;
    rsocket_arm(rsocket);
    return rsocket->leading ? -1 : rsocket_event_fd(rsocket); /* the leading thread reports changes */
}

/* Links the thread to the rsocket until wake_up(). */
static void lie_down(struct poll *poll, nfds_t i)
{
    struct pollfd *fd = &poll->fds[i];
    struct rsocket *rsocket;

    poll->places[i].rsocket = NULL;
    poll->watched[i] = *fd;
    if (!rsocket_is_one(fd->fd))
        return;
    poll->watched[i].fd = -1;
    if (rsocket_enter(fd->fd, &rsocket))
        return;
    poll->places[i].rsocket = rsocket;
    poll->places[i].sleeper.wake_fd = poll->wake_fd;
    list_push_back(&rsocket->sleepers, &poll->places[i].sleeper.node);
    poll->watched[i].fd = descriptor_of(rsocket);
    poll->watched[i].events = POLLIN;
    lock_release(&rsocket->lock);
}

static void wake_up(struct poll *poll, nfds_t i)
{
    struct rsocket *rsocket = poll->places[i].rsocket;

    if (!rsocket)
        return;
    lock_acquire(&rsocket->lock);
    list_remove(&poll->places[i].sleeper.node);
    if (poll->watched[i].fd >= 0 && poll->watched[i].revents)
        rsocket_drain(rsocket);
    rsocket_leave(rsocket);
}

/* Sleeps once. -errno (-EINTR ...), or how many descriptors are ready afterwards, which may be 0. */
static int sleep_once(struct poll *poll, ns_t timeout)
{
    int result;

    for (nfds_t i = 0; i < poll->count; i++)
        lie_down(poll, i);
    poll->watched[poll->count] = (struct pollfd){.fd = poll->wake_fd, .events = POLLIN};
    /* Completions from before the CQs were armed cause no event. The other descriptors are level-triggered. */
    poll_rsockets(poll);
    if (count_ready(poll))
        timeout = 0;
    result = sys_poll(poll->watched, poll->count + 1, timeout);
    for (nfds_t i = 0; i < poll->count; i++)
        wake_up(poll, i);
    if (result < 0)
        return result;
    if (poll->watched[poll->count].revents) {
        uint64_t count;

        sys_read(poll->wake_fd, &count, sizeof(count));
    }
    return poll_once(poll);
}

static int sleep_until(struct poll *poll, ns_t deadline)
{
    ns_t now;
    int ready;

    do {
        now = deadline == NS_NEVER ? 0 : sys_now();
        ready = sleep_once(poll, deadline == NS_NEVER ? NS_NEVER : deadline - min_of(deadline, now));
    } while (!ready && (deadline == NS_NEVER || sys_now() < deadline));
    return ready;
}

static int poll_all(struct poll *poll, int timeout)
{
    ns_t start = sys_now(), deadline = timeout < 0 ? NS_NEVER : start + (unsigned)timeout * NS_PER_MS;
    int ready;

    if (!poll->has_rsockets) {
        ready = sys_poll(poll->fds, poll->count, timeout < 0 ? NS_NEVER : (unsigned)timeout * NS_PER_MS);
        return ready;
    }
    do {
        ready = poll_once(poll);
        if (ready || !timeout)
            return ready;
    } while (sys_now() - start < min_of(rsocket_defaults()->polling, deadline - start));
    poll->wake_fd = poll_take_wake_fd();
    if (poll->wake_fd < 0)
        return poll->wake_fd;
    ready = sleep_until(poll, deadline);
    poll_return_wake_fd(poll->wake_fd);
    return ready;
}

#define ON_STACK 64

RDMACM_EXPORT int rpoll(struct pollfd *fds, nfds_t count, int timeout)
{
    struct pollfd watched[ON_STACK + 1];
    struct place places[ON_STACK];
    struct poll poll = {.fds = fds, .count = count, .watched = watched, .places = places};
    int ready;

    if (count > INT_MAX)
        return conclude(-EINVAL);
    survey(&poll);
    if (count > ON_STACK) {
        poll.watched = malloc((count + 1) * sizeof(*poll.watched));
        poll.places = malloc(count * sizeof(*poll.places));
    }
    ready = poll.watched && poll.places ? poll_all(&poll, timeout) : -ENOMEM;
    if (count > ON_STACK) {
        free(poll.watched);
        free(poll.places);
    }
    return (int)rsocket_conclude(ready);
}

/* --- rselect() ------------------------------------------------------------------------------------------ */

/* How select(2) maps the bits of poll(2). */
#define SELECT_IN     (POLLRDNORM | POLLIN | POLLHUP | POLLERR)
#define SELECT_OUT    (POLLWRNORM | POLLOUT | POLLERR)
#define SELECT_EXCEPT POLLPRI

static bool is_in(int fd, const fd_set *set)
{
    return set && FD_ISSET(fd, set);
}

static nfds_t gather(int count, const fd_set *readable, const fd_set *writable, const fd_set *exceptional,
                     struct pollfd *ret_fds)
{
    nfds_t found = 0;

    for (int fd = 0; fd < count; fd++) {
        short events = (short)((is_in(fd, readable) ? POLLIN : 0) | (is_in(fd, writable) ? POLLOUT : 0) |
                               (is_in(fd, exceptional) ? POLLPRI : 0));

        if (events)
            ret_fds[found++] = (struct pollfd){.fd = fd, .events = events};
    }
    return found;
}

static int mark(const struct pollfd *fd, short wanted, short bits, fd_set *set)
{
    if (!set || !(fd->events & wanted))
        return 0;
    if (!(fd->revents & bits)) {
        FD_CLR(fd->fd, set);
        return 0;
    }
    return 1;
}

static int timeout_of(const struct timeval *timeout)
{
    long long milliseconds;

    if (!timeout)
        return -1;
    milliseconds = (long long)timeout->tv_sec * 1000 + (timeout->tv_usec + 999) / 1000;
    return (int)min_of(milliseconds, (long long)INT32_MAX);
}

static int select_some(int count, fd_set *readable, fd_set *writable, fd_set *exceptional,
                       const struct timeval *timeout)
{
    struct pollfd fds[FD_SETSIZE];
    nfds_t watched;
    int ready, marked = 0;

    if (count < 0 || count > FD_SETSIZE ||
        (timeout && (timeout->tv_sec < 0 || timeout->tv_usec < 0 || timeout->tv_usec >= 1000000)))
        return -EINVAL;
    watched = gather(count, readable, writable, exceptional, fds);
    ready = rpoll(fds, watched, timeout_of(timeout));
    if (ready < 0)
        return -errno;
    for (nfds_t i = 0; i < watched; i++)
        if (fds[i].revents & POLLNVAL)
            return -EBADF;
    for (nfds_t i = 0; i < watched; i++) {
        marked += mark(&fds[i], POLLIN, SELECT_IN, readable);
        marked += mark(&fds[i], POLLOUT, SELECT_OUT, writable);
        marked += mark(&fds[i], POLLPRI, SELECT_EXCEPT, exceptional);
    }
    return marked;
}

RDMACM_EXPORT int rselect(int count, fd_set *readable, fd_set *writable, fd_set *exceptional,
                          struct timeval *timeout)
{
    return (int)rsocket_conclude(select_some(count, readable, writable, exceptional, timeout));
}
