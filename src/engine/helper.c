/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The helper thread. It sleeps in epoll and wakes for rendezvous, doorbells, deaths of peers, timers and changes of interfaces. Besides, it stands in
 * for an application that does not poll:
 *
 *   watching  an application thread polls: lanes are hot and left to it; the helper looks in every TICK whether that is still so
 *   working   nobody polls and packets come: the helper polls, and goes on for a while after the last packet
 *   asleep    nobody polls and nothing comes: lanes are cold, writers ring the doorbell; no CPU time at all
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/internal.h"

#define TICK_MS 2
/* How long the helper goes on polling after the last packet before it lets itself be rung. */
#define LINGER_NS (20 * NS_PER_US)

static struct lock start_lock = LOCK_INIT;
static _Atomic bool running;
static int epoll_fd = -1, kick_fd = -1;

void helper_kick(void)
{
    const uint64_t one = 1;
    int saved = errno;

    /* A full counter is as good as a kick; before the thread runs nobody needs one. */
    if (kick_fd >= 0 && write(kick_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
        log_error("eventfd: errno %d", errno);
    errno = saved;
}

/* Polls as long as packets come, and a little longer. Returns when nothing came for LINGER_NS, or an application thread polls. */
static void work(void)
{
    uint32_t polls = atomic_load_explicit(&progress_application_polls, memory_order_relaxed);
    ns_t idle_since = sys_now();

    while (atomic_load_explicit(&progress_application_polls, memory_order_relaxed) == polls) {
        if (progress_run() || route_has_ready()) {
            idle_since = sys_now();
            continue;
        }
        if (sys_now() - idle_since > LINGER_NS)
            return;
        cpu_relax();
    }
}

static void dispatch(int fd)
{
    uint64_t kicks;

    if (fd == timers_fd()) {
        timers_run();
    } else if (fd == interfaces_monitor_fd()) {
        interfaces_changed();
    } else if (fd == kick_fd) {
        if (read(kick_fd, &kicks, sizeof(kicks)) < 0 && errno != EAGAIN)
            log_error("eventfd: errno %d", errno);
    } else {
        local_dispatch();
    }
}

static void *helper_main(void *argument)
{
    uint32_t polls_seen = 0;
    bool watching = false;

    pthread_setname_np(pthread_self(), "softhca");
    for (;;) {
        struct epoll_event events[8];
        int count = epoll_wait(epoll_fd, events, (int)array_size(events), watching ? TICK_MS : -1);
        uint32_t polls;

        for (int i = 0; i < count; i++)
            dispatch(events[i].data.fd);
        /* What a doorbell announced is taken at once, also where an application polls: it may just have stopped. */
        if (count > 0)
            progress_run();
        polls = atomic_load_explicit(&progress_application_polls, memory_order_relaxed);
        watching = polls != polls_seen;
        polls_seen = polls;
        if (watching)
            continue;
        do {
            work();
            rundown_enter();
            watching = !local_prepare_sleep();
            rundown_exit();
        } while (watching && polls_seen == atomic_load_explicit(&progress_application_polls,
                                                                memory_order_relaxed));
    }
    return NULL;
}

static int watch(int fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

    if (fd < 0)
        return 0;
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

static int open_descriptors(void)
{
    int error;

    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (epoll_fd < 0 || kick_fd < 0)
        return -errno;
    error = timers_open();
    if (!error)
        error = watch(kick_fd);
    if (!error)
        error = watch(timers_fd());
    if (!error)
        error = watch(local_event_fd());
    if (!error)
        error = watch(interfaces_monitor_fd());
    return error;
}

static int create_thread(void)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    int error;

    /* Signals are the application's: none may land on our thread. */
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread, &attributes, helper_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return -error;
}

int helper_start(void)
{
    int saved = errno;
    int error = 0;

    if (atomic_load_explicit(&running, memory_order_acquire))
        return 0;
    lock_acquire(&start_lock);
    if (!atomic_load_explicit(&running, memory_order_relaxed)) {
        error = epoll_fd < 0 ? open_descriptors() : 0;
        if (!error)
            error = create_thread();
        if (error)
            log_error("the helper thread does not start: errno %d", -error);
        else
            atomic_store_explicit(&running, true, memory_order_release);
    }
    lock_release(&start_lock);
    errno = saved;
    return error;
}

void helper_after_fork_in_child(void)
{
    if (epoll_fd >= 0)
        close(epoll_fd);
    if (kick_fd >= 0)
        close(kick_fd);
    epoll_fd = kick_fd = -1;
    timers_close();
    lock_init(&start_lock);
    atomic_store_explicit(&running, false, memory_order_relaxed);
}
