/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The service thread of rsockets: reads the event channel that all their ids share, so that connections are made,
 * accepted and lost independently of the program's calls; sends keepalives; answers datagrams that arrive by UDP.
 * Started by the first rconnect(), rlisten(), keepalive or datagram, with every signal blocked. */
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/thread.h"
#include "front/rsockets/rsocket.h"

static struct {
    struct lock lock; /* guards the whole structure */
    bool running;
    int epoll_fd, wake_fd;
    struct rdma_event_channel *channel;
    struct timer_heap timers;
    bool check_listeners;
} service = {LOCK_INIT, .epoll_fd = -1, .wake_fd = -1};

/* Held while a datagram socket is served: service_unwatch_datagrams() waits for it. */
static struct lock serving_lock = LOCK_INIT;

/* Data of epoll events: one of the thread's own descriptors, or the UDP socket of an rsocket. */
#define READY_CHANNEL 0
#define READY_WAKE    1

static void forget_descriptors(void)
{
    if (service.epoll_fd >= 0)
        sys_close(service.epoll_fd);
    if (service.wake_fd >= 0)
        sys_close(service.wake_fd);
    service.epoll_fd = service.wake_fd = -1;
}

/* The child has no service thread, and the channel is the parent's. */
void service_after_fork_in_child(void)
{
    lock_init(&service.lock);
    lock_init(&serving_lock);
    forget_descriptors();
    if (service.channel)
        sys_close(service.channel->fd);
    service.channel = NULL;
    service.timers.count = 0;
    service.running = service.check_listeners = false;
}

/* --- the thread ----------------------------------------------------------------------------------------- */

static void wake(void)
{
    const uint64_t one = 1;

    sys_write(service.wake_fd, &one, sizeof(one));
}

static void read_channel(void)
{
    struct rdma_cm_event *event;

    while (rdma_get_cm_event(service.channel, &event) == 0)
        connect_handle_event(event);
}

static void take_wake(void)
{
    uint64_t count;
    bool check;

    sys_read(service.wake_fd, &count, sizeof(count));
    lock_acquire(&service.lock);
    check = service.check_listeners;
    service.check_listeners = false;
    lock_release(&service.lock);
    if (check)
        connect_tend_children();
}

static void serve_datagrams(struct rsocket *rsocket)
{
    lock_acquire(&serving_lock);
    if (rsocket->watched) /* false: unwatched after epoll_wait() returned */
        datagram_udp_ready(rsocket);
    lock_release(&serving_lock);
}

static void send_keepalive(struct rsocket *rsocket)
{
    lock_acquire(&rsocket->lock);
    if (!rsocket->closing && rsocket->phase == PHASE_CONNECTED && stream_can_control(&rsocket->stream))
        endpoint_send_control(rsocket, RSOCKET_KEEPALIVE);
    lock_release(&rsocket->lock);
}

/* Runs due timers and returns how long to sleep. Drops the lock for each, because an rsocket's lock ranks above it. */
static ns_t run_timers(void)
{
    ns_t now = sys_now(), next;
    struct timer *timer;

    lock_acquire(&service.lock);
    while ((timer = timer_take_due(&service.timers, now))) {
        struct rsocket *rsocket = container_of(timer, struct rsocket, keepalive_timer);

        timer_arm(&service.timers, timer, now + rsocket->keepalive_period);
        lock_release(&service.lock);
        send_keepalive(rsocket);
        lock_acquire(&service.lock);
    }
    next = timer_next(&service.timers);
    lock_release(&service.lock);
    return next == NS_NEVER ? NS_NEVER : next - now;
}

static void *service_main(void *argument)
{
    struct epoll_event ready;

    pthread_setname_np(pthread_self(), "softhca-rsocket");
    for (;;) {
        if (sys_epoll_wait(service.epoll_fd, &ready, 1, run_timers()) <= 0)
            continue;
        if (ready.data.u64 == READY_CHANNEL)
            read_channel();
        else if (ready.data.u64 == READY_WAKE)
            take_wake();
        else
            serve_datagrams(ready.data.ptr);
    }
    return NULL;
}

/* --- starting ------------------------------------------------------------------------------------------- */

static int open_channel(void)
{
    int flags;

    if (service.channel)
        return 0;
    service.channel = rdma_create_event_channel();
    if (!service.channel)
        return -errno;
    flags = fcntl(service.channel->fd, F_GETFL);
    fcntl(service.channel->fd, F_SETFL, flags | O_NONBLOCK);
    return 0;
}

struct rdma_event_channel *service_channel(void)
{
    int error;

    lock_acquire(&service.lock);
    error = open_channel();
    lock_release(&service.lock);
    if (error)
        errno = -error;
    return error ? NULL : service.channel;
}

static int watch(int fd, uint64_t what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = what};

    return sys_epoll_ctl(service.epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static int start_thread(void)
{
    int error = open_channel();

    if (error)
        return error;
    service.epoll_fd = sys_epoll_create();
    service.wake_fd = fd_lift(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    error = service.wake_fd < 0 ? -errno : min_of(service.epoll_fd, 0);
    if (!error)
        error = watch(service.channel->fd, READY_CHANNEL);
    if (!error)
        error = watch(service.wake_fd, READY_WAKE);
    if (!error)
        error = thread_start(service_main, NULL);
    if (error)
        forget_descriptors();
    return error;
}

int service_start(void)
{
    int error = 0, saved = errno;

    lock_acquire(&service.lock);
    if (!service.running) {
        error = start_thread();
        service.running = !error;
        if (error)
            log_error("rsocket: cannot create the service thread: %s (limits: ulimit -u, and pids.max of the "
                      "cgroup)",
                      strerror(-error));
    }
    lock_release(&service.lock);
    errno = saved;
    return error;
}

/* --- requests to the service thread ---------------------------------------------------------------------- */

void service_tend_children(void)
{
    lock_acquire(&service.lock);
    service.check_listeners = true;
    if (service.running)
        wake();
    lock_release(&service.lock);
}

int service_keepalive(struct rsocket *rsocket, uint32_t seconds)
{
    int error = seconds ? service_start() : 0;

    if (error)
        return error;
    lock_acquire(&service.lock);
    timer_cancel(&service.timers, &rsocket->keepalive_timer);
    rsocket->keepalive_period = seconds * NS_PER_S;
    if (seconds)
        error = timer_arm(&service.timers, &rsocket->keepalive_timer, sys_now() + rsocket->keepalive_period);
    if (service.running)
        wake();
    lock_release(&service.lock);
    return error;
}

int service_watch_datagrams(struct rsocket *rsocket, int udp)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = rsocket};
    int error = service_start();

    if (error)
        return error;
    rsocket->watched = true;
    return sys_epoll_ctl(service.epoll_fd, EPOLL_CTL_ADD, udp, &event);
}

void service_unwatch_datagrams(struct rsocket *rsocket, int udp)
{
    sys_epoll_ctl(service.epoll_fd, EPOLL_CTL_DEL, udp, NULL);
    lock_acquire(&serving_lock);
    rsocket->watched = false;
    lock_release(&serving_lock);
}
