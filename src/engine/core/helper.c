/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The helper thread. It sleeps in epoll_wait() and wakes for handshakes, doorbells, deaths of peers, timers and changes
 * of interfaces. Besides, it makes progress in place of an application that does not poll:
 *
 *   watching  an application thread polls and takes the packets; the helper thread checks every TICK_MS that it does
 *   working   no application thread polls and packets arrive: the helper thread polls, and for a while after the last
 *             (engine/core/busy_poll.h)
 *   asleep    no application thread polls and no packets arrive: writers ring the doorbell; no CPU time is used
 *
 * Some applications poll and yet leave packets in the rings: they spin on memory that an RDMA WRITE is to change, and
 * poll only for their own completions. The helper thread detects that by packets that stay (trust.c); it
 * then ignores polls for a while ("distrust") and works on every doorbell. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/processors.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "base/thread.h"
#include "engine/core/busy_poll.h"
#include "engine/core/core.h"
#include "engine/core/engine.h"
#include "engine/core/explainer.h"
#include "engine/core/trust.h"
#include "engine/direct/direct.h"
#include "engine/host/interfaces.h"
#include "engine/host/packet_socket.h"
#include "engine/paths/paths.h"
#include "object/cq/cq.h"
#include "udp/udp.h"

#define TICK_MS (WATCH_FOR / NS_PER_MS)
/* A thread that polled within this time and is still inside of the library counts as polling: on a slow
 * processor one poll with many packets may take longer than TICK_MS. */
#define LONG_POLL_NS (20 * NS_PER_MS)
/* Instead of TICK_MS while packets have been found to stay. */
#define SUSPECT_MS 1

static struct lock start_lock = LOCK_INIT;
static _Atomic bool running;
static _Atomic pid_t helper_thread; /* 0: not known yet */
static int epoll_fd = -1;
/* -1: the helper thread was not started. Read by any thread, without start_lock. */
static _Atomic int kick_fd = -1;

void helper_kick(void)
{
    const uint64_t one = 1;
    int fd = atomic_load_explicit(&kick_fd, memory_order_relaxed);
    ssize_t error = fd < 0 ? 0 : sys_write(fd, &one, sizeof(one));

    /* -EAGAIN: the counter is full, so the eventfd is readable already. */
    if (error < 0 && error != -EAGAIN)
        log_error("cannot wake the helper thread (write to its eventfd: %s; has the program closed file "
                  "descriptors of SoftHCA?): retransmissions, and progress while no thread polls, come late",
                  strerror((int)-error));
}

/* A peer rang a channel since the last look: the thread that it wakes may come later. Helper thread. */
static bool channel_rung;

static bool take_channel_rung(void)
{
    bool rung = channel_rung;

    channel_rung = false;
    return rung;
}

/* Handles a readable descriptor. Returns whether packets may have arrived. */
static bool dispatch(int fd)
{
    uint64_t kicks;

    if (fd == timers_fd()) {
        timers_run();
        return false;
    }
    if (fd == interfaces_monitor_fd()) {
        interfaces_changed();
        return false;
    }
    if (fd == kick_fd) {
        if (read(kick_fd, &kicks, sizeof(kicks)) < 0 && errno != EAGAIN)
            log_error(
                "the helper thread cannot read its eventfd (%s; has the program closed file descriptors "
                "of SoftHCA?): it may use a whole processor",
                strerror(errno));
        explainer_tell_faults();
    } else if (fd == local_event_fd()) {
        bool channel, packets = local_dispatch(&channel);

        channel_rung |= channel;
        return packets;
    } else {
        packet_socket_receive(fd);
    }
    return true;
}

/* Handles what is readable within that time. Returns the number of descriptors, or -errno. *rung: packets may have
 * arrived. */
static int dispatch_ready(ns_t timeout, bool *rung)
{
    struct epoll_event events[8];
    int count = sys_epoll_wait(epoll_fd, events, (int)array_size(events), timeout);

    if (count < 0 && count != -EINTR)
        return count;
    local_helper_sleeps(false);
    for (int i = 0; i < count; i++)
        *rung |= dispatch(events[i].data.fd);
    return count;
}

static struct busy_poll busy_poll;

/* Takes packets. Returns whether there were any, or QPs are ready. */
static bool take_packets(void)
{
    if (progress_run())
        busy_poll_found(&busy_poll, sys_now());
    else if (!route_has_ready())
        return false;
    return true;
}

/* Polls as long as it may pay (busy_poll_goes_on()), or until an application thread polls that is trusted, or is to be
 * trusted again. */
static void work(void)
{
    ns_t now = sys_now(), idle_since = now, looked_at = now;
    struct steadiness steadiness = {application_polls(), now, now};
    uint32_t polls = steadiness.polls;

    while (!trust_holds(now) || application_polls() == polls) {
        bool busy, rung = false;

        /* A stream of packets must not keep timers, handshakes and deaths of peers waiting. This comes first: it also
         * takes kicks (helper_kick()), and what those are for is done below before the thread sleeps. */
        if (now - looked_at > TICK_MS * NS_PER_MS) {
            (void)dispatch_ready(0, &rung);
            looked_at = now;
        }
        busy = take_packets();
        direct_run();
        now = sys_now();
        if (!trust_holds(now) && trust_polls_are_steady(&steadiness, now)) {
            trust_again(now);
            return;
        }
        if (busy) {
            idle_since = now;
            continue;
        }
        if (!busy_poll_goes_on(&busy_poll, idle_since, now, processor_is_free)) {
            busy_poll_ends(&busy_poll);
            return;
        }
        cpu_relax();
    }
}

/* Polls of application threads, as the helper thread has seen them at its last look. */
struct polling {
    uint32_t polls;
    ns_t polled_at, seen_at;
    bool inside; /* a thread that had polled was inside of the library */
};

/* Does an application thread poll? A thread inside of the library, at this look or the last one, counts: it may be in a
 * long poll, or have just left one. If the helper thread worked as well, it would wait for the thread's locks or, with
 * one processor, keep the thread from running. */
static bool is_polled(struct polling *polling, ns_t now)
{
    uint32_t polls = application_polls();
    bool inside;

    if (polls != polling->polls) {
        polling->polls = polls;
        polling->polled_at = polling->seen_at = now;
    }
    inside = now - polling->polled_at < LONG_POLL_NS && rundown_others_are_inside();
    if (inside || polling->inside)
        polling->seen_at = now;
    polling->inside = inside;
    return now - polling->seen_at < TICK_MS * NS_PER_MS;
}

/* Works until no packets arrive, and tells writers to ring. Returns false when a trusted application thread polls, or
 * packets of the network cannot ring (udp_prepare_sleep()). */
static bool work_until_quiet(void)
{
    uint32_t polls = application_polls();
    bool quiet;

    do {
        work();
        if (trust_holds(sys_now()) && application_polls() != polls)
            return false;
        local_helper_sleeps(true);
        quiet = local_prepare_sleep(ATTENTION_ASLEEP);
        if (!quiet)
            local_helper_sleeps(false);
    } while (!quiet);
    /* Datagrams that have arrived by now make the sockets readable at once. */
    return !atomic_load_explicit(&udp_has_sockets, memory_order_relaxed) || udp_prepare_sleep();
}

/* --- programs that sleep -------------------------------------------------------------------------------- */

/* Packets for a thread that was woken: a peer rang its channel (base/notify.h), or the thread has armed a CQ while
 * writers took it to be awake. The counters at the last look. */
static struct {
    bool active;
    uint32_t polls, packets;
} called;

static bool packets_lie_there(void)
{
    bool left;

    rundown_enter();
    left = local_has_packets();
    rundown_exit();
    return left;
}

/* Do packets wait for a thread that was woken, and did no thread poll between two looks? Packets for other threads must
 * not wait for a program that does not read its channel. */
static bool woken_thread_is_late(void)
{
    enum attention attention = local_attention();
    uint32_t polls = application_polls();
    uint32_t packets = atomic_load_explicit(&progress_packets, memory_order_relaxed);
    bool left = (attention == ATTENTION_RUNG || (attention == ATTENTION_AWAKE && cq_armed_count)) &&
                packets_lie_there();
    bool again = left && called.active && called.polls == polls && called.packets == packets;

    called.active = left;
    called.polls = polls;
    called.packets = packets;
    return again;
}

/* Delivers completion events that a peer has claimed (base/notify.h) but has not delivered since the last
 * check: the peer was stopped or died in between. Returns whether another check is needed. */
static bool deliver_late_events(void)
{
    static uint32_t last_changes;
    uint32_t changes;

    if (!channels_owe(&changes))
        return false;
    if (changes == last_changes)
        channels_make_owed();
    last_changes = changes;
    return true;
}

static _Atomic uint32_t armings_seen,
    armings_before; /* progress_armings at the last look, and at the one before */

/* Periodic work, at most every GLANCE_SHORT: overdue doorbells and acknowledgements, and the count of
 * armings. */
static void periodic_work(ns_t now)
{
    static ns_t last;
    uint32_t armings = atomic_load_explicit(&progress_armings, memory_order_relaxed);

    if (now - last < GLANCE_SHORT)
        return;
    last = now;
    local_ring_overdue();
    if (network_ack_tick())
        network_flush_delayed();
    atomic_store_explicit(&armings_before, atomic_load_explicit(&armings_seen, memory_order_relaxed),
                          memory_order_relaxed);
    atomic_store_explicit(&armings_seen, armings, memory_order_relaxed);
}

bool helper_saw_arming(void)
{
    return atomic_load_explicit(&progress_armings, memory_order_relaxed) !=
           atomic_load_explicit(&armings_before, memory_order_relaxed);
}

void helper_event_owed(bool rung)
{
    /* Either we see that the next look comes late, or this thread sees the debt. Partners: wait_watching(),
     * local_helper_sleeps(). */
    atomic_thread_fence(memory_order_seq_cst);
    if (rung ? local_helper_is_asleep() : !helper_looks_soon())
        helper_kick();
}

/* After this thread has taken packets that writers rang for, the attention word is AWAKE. While CQs are
 * armed it must be DOZES again, or no further packet would ring. */
static void rearm_doorbells(void)
{
    for (int i = 0; i < 2 && cq_armed_count && local_attention() == ATTENTION_AWAKE; i++) {
        if (!local_prepare_sleep(ATTENTION_DOZES))
            progress_run();
    }
}

static struct watch watched;
static struct glance glance;
static _Atomic bool looks_seldom; /* the next look comes later than GLANCE_SHORT */

bool helper_looks_soon(void)
{
    return !local_helper_is_asleep() && !atomic_load_explicit(&looks_seldom, memory_order_relaxed);
}

/* All threads of the program sleep, and found the rings empty before. Where looks come late, a message would wake this
 * thread, too, at a time at which the program waits for a processor. */
static bool may_sleep_now(void)
{
    return !watch_goes_on(&watched) && glance_pause(&glance) == GLANCE_SHORT &&
           local_attention() == ATTENTION_DOZES && !called.active &&
           !atomic_load_explicit(&udp_has_sockets, memory_order_relaxed);
}

/* Until the next look. */
static ns_t pause_while_watching(void)
{
    if (local_has_ring_due() || network_ack_is_pending())
        return GLANCE_SHORT;
    if (cq_armed_count || called.active || helper_saw_arming())
        return atomic_load_explicit(&udp_has_sockets, memory_order_relaxed) ? GLANCE_SHORT
                                                                            : glance_pause(&glance);
    return (trust_suspects() ? SUSPECT_MS : TICK_MS) * NS_PER_MS;
}

/* Does something wait for the next look that nobody wakes this thread for? A thread that was called takes what lies
 * there. Where a thread sleeps, and the process is awake for writers, no message wakes it; nor does an event whose
 * writer was stopped. */
static bool is_needed_soon(void)
{
    enum attention attention = local_attention();
    uint32_t changes;

    return channels_owe(&changes) || (attention != ATTENTION_RUNG && packets_lie_there()) ||
           (attention == ATTENTION_AWAKE && cq_armed_count);
}

/* Waits for the next look. Returns as dispatch_ready(). */
static int wait_watching(bool *rung)
{
    ns_t pause = pause_while_watching(), begin = sys_now();
    int count;

    if (pause > GLANCE_SHORT) {
        atomic_store_explicit(&looks_seldom, true, memory_order_relaxed);
        /* Who leaves packets sees that, and wakes this thread, or this thread sees the packets. Partner: the fence in
         * notify_set_attention(), before who goes to sleep looks into the rings. */
        atomic_thread_fence(memory_order_seq_cst);
        /* A writer that has rung this thread may declare the process awake only now, and until the next look nobody
         * would be woken. */
        local_renew_sleep();
        if (is_needed_soon())
            pause = GLANCE_SHORT;
    }
    count = dispatch_ready(pause, rung);
    atomic_store_explicit(&looks_seldom, false, memory_order_relaxed);
    if (!count)
        glance_came(&glance, max_of(sys_now(), begin + pause) - begin - pause);
    return count;
}

/* One look, after each return of epoll_wait(): takes packets and does delayed work where no application thread does.
 * Returns whether the next look follows after pause_while_watching(); false: the thread sleeps until a descriptor is
 * readable. */
static bool check(struct polling *polling, ns_t now)
{
    bool polled = is_polled(polling, now), late, watching;

    if (!polled)
        network_flush_delayed(); /* a thread that polls does that itself, and may be about to reply */
    else if (!helper_saw_arming())
        udp_disarm();
    watching = polled && trust_holds(now);
    /* A program that sleeps leaves packets in the rings as long as its channel was not rung. */
    if (!helper_saw_arming() && (watching || trust_suspects()) && trust_packets_are_left()) {
        trust_lose(now);
        watching = false;
    }
    late = watching && woken_thread_is_late();
    if (late) {
        glance_found_late(&glance);
        progress_run();
        watching = false;
    }
    watching &= !may_sleep_now();
    periodic_work(now);
    if (!watching)
        watching = !work_until_quiet();
    if (take_channel_rung()) {
        polling->seen_at = sys_now();
        watching = true;
    }
    watching |= local_has_ring_due();
    watching |= deliver_late_events();
    if (watching)
        rearm_doorbells();
    return watching;
}

static void *helper_main(void *argument)
{
    struct polling polling = {0};
    bool watching = false;
    int error;

    atomic_store_explicit(&helper_thread, sys_gettid(), memory_order_relaxed);
    pthread_setname_np(pthread_self(), "softhca");
    segment_tie_to_thread();
    /* Interfaces may have changed between the last snapshot and the opening of the monitor. */
    error = engine_refresh_devices();
    if (error)
        log_warn("cannot list the network interfaces: %s; devices and GIDs may be missing or out of date",
                 strerror(-error));
    for (;;) {
        bool rung = false;
        int count = watching ? wait_watching(&rung) : dispatch_ready(NS_NEVER, &rung);
        ns_t now;

        if (count < 0 && count != -EINTR) {
            /* The program has closed descriptors of others. A thread that went on would spin. */
            log_error("helper thread exits: the program closed file descriptors of SoftHCA (epoll_wait: %s); "
                      "from now on packets are handled only while a thread polls",
                      strerror(-count));
            atomic_store_explicit(&helper_thread, 0, memory_order_relaxed);
            return NULL;
        }
        /* Packets that a doorbell announced are taken at once, also where an application thread polls: the thread
         * may just have stopped. */
        if (rung)
            (void)take_packets();
        direct_run();
        now = sys_now();
        if (take_channel_rung())
            polling.seen_at = now;
        if (!watching)
            watch_woken(&watched, now - polling.polled_at);
        watching = check(&polling, now);
    }
    return NULL;
}

static int watch(int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    if (fd < 0)
        return 0;
    return sys_epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

int helper_watch(int fd)
{
    int error = helper_start();

    return error ? error : watch(fd);
}

static int open_descriptors(void)
{
    int error;

    int fd;

    epoll_fd = sys_epoll_create();
    if (epoll_fd < 0)
        return epoll_fd;
    fd = fd_lift(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (fd < 0)
        return -errno;
    atomic_store_explicit(&kick_fd, fd, memory_order_relaxed);
    error = timers_open();
    if (!error)
        error = watch(fd);
    if (!error)
        error = watch(timers_fd());
    if (!error)
        error = watch(local_event_fd());
    if (!error)
        error = watch(interfaces_monitor_fd());
    return error;
}

static void close_descriptors(void)
{
    int fd = atomic_exchange_explicit(&kick_fd, -1, memory_order_relaxed);

    if (epoll_fd >= 0)
        close(epoll_fd);
    if (fd >= 0)
        close(fd);
    epoll_fd = -1;
    timers_close();
}

int helper_start(void)
{
    int saved = errno;
    int error = 0;

    if (atomic_load_explicit(&running, memory_order_acquire))
        return 0;
    lock_acquire(&start_lock);
    if (!atomic_load_explicit(&running, memory_order_relaxed)) {
        error = open_descriptors();
        if (!error)
            error = thread_start(helper_main, NULL);
        /* From the beginning it is known as ours (helper_is_thread()). */
        while (!error && !atomic_load_explicit(&helper_thread, memory_order_relaxed))
            sched_yield();
        if (error) {
            close_descriptors();
            log_error("cannot start the helper thread: %s (limits: ulimit -u and pids.max of the cgroup for "
                      "threads, ulimit -n for file descriptors)",
                      strerror(-error));
        } else {
            atomic_store_explicit(&running, true, memory_order_release);
        }
    }
    lock_release(&start_lock);
    errno = saved;
    return error;
}

bool helper_is_thread(pid_t thread)
{
    return thread == atomic_load_explicit(&helper_thread, memory_order_relaxed);
}

void helper_after_fork_in_child(void)
{
    atomic_store_explicit(&helper_thread, 0, memory_order_relaxed);
    timers_after_fork_in_child();
    close_descriptors();
    lock_init(&start_lock);
    trust_after_fork_in_child();
    atomic_store_explicit(&looks_seldom, false, memory_order_relaxed);
    atomic_store_explicit(&running, false, memory_order_relaxed);
}
