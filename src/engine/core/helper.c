/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The helper thread. It sleeps in epoll and wakes for rendezvous, doorbells, deaths of peers, timers and
 * changes of interfaces. Besides, it stands in for an application that does not poll:
 *
 *   watching  an application thread polls: lanes are hot and left to it; the helper looks in every TICK
 * whether that is still so working   nobody polls and packets come: the helper polls, and goes on for a while
 * after the last packet asleep    nobody polls and nothing comes: lanes are cold, writers ring the doorbell;
 * no CPU time at all
 *
 * Some applications poll and yet leave packets lying: they spin on memory that an RDMA WRITE is to change,
 * and poll only for their own completions. Where the helper finds that, it stops trusting the polls for a
 * while and works on every doorbell.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "base/thread.h"
#include "engine/core/core.h"
#include "engine/core/engine.h"
#include "engine/direct/direct.h"
#include "engine/host/interfaces.h"
#include "engine/host/packet_socket.h"
#include "engine/paths/paths.h"
#include "object/cq/cq.h"
#include "udp/udp.h"

#define TICK_MS 2
/* On a slow processor, a poll in which there is much to do takes longer than a tick: so long since its last
 * poll, a thread that is inside of the library is taken to be at it still. */
#define LONG_POLL_NS (20 * NS_PER_MS)
/* How long the helper goes on polling after the last packet before it lets itself be rung. */
#define LINGER_NS (20 * NS_PER_US)
/* An application that spins on its CQ polls sooner than this. */
#define PATIENCE_NS (10 * NS_PER_US)
/* One that polls, and uses its memory between two polls, takes packets sooner than this, of its processor
 * time: to rewrite or read a buffer of a MiB takes 0.1 ms. To poll along with it meanwhile would take the
 * processor from it, where it has only that one. */
#define AWAY_NS (500 * NS_PER_US)
/* Instead of TICK_MS where packets have been found lying. */
#define LOOK_MS 1
/* The same where threads sleep on channels: two looks are a millisecond. */
#define GLANCE_NS (500 * NS_PER_US)
/* So long without a gap of PATIENCE_NS, and polls are trusted again. */
#define STEADY_NS (200 * NS_PER_US)
/* How long polls are not trusted after packets were left lying: doubles each time. */
#define DISTRUST_MIN_NS (4 * NS_PER_MS)
#define DISTRUST_MAX_NS NS_PER_S

static struct lock start_lock = LOCK_INIT;
static _Atomic bool running;
static int epoll_fd = -1;
static _Atomic int kick_fd = -1; /* any thread kicks, also while another one starts the helper */

void helper_kick(void)
{
    const uint64_t one = 1;
    int fd = atomic_load_explicit(&kick_fd, memory_order_relaxed);
    ssize_t error = fd < 0 ? 0 : sys_write(fd, &one, sizeof(one));

    /* A full counter is as good as a kick; before the thread runs nobody needs one. */
    if (error < 0 && error != -EAGAIN)
        log_error("eventfd: errno %d", (int)-error);
}

static uint32_t application_polls(void)
{
    return atomic_load_explicit(&progress_application_polls, memory_order_relaxed);
}

static struct {
    ns_t until, length; /* polls do not count before `until` */
} distrust;

static bool trusted(ns_t now)
{
    return now >= distrust.until;
}

static ns_t clock_of(clockid_t clock)
{
    struct timespec time = {0};

    clock_gettime(clock, &time);
    return (ns_t)time.tv_sec * NS_PER_S + (ns_t)time.tv_nsec;
}

/* Processor time of all threads but this. */
static ns_t application_ran(void)
{
    return clock_of(CLOCK_PROCESS_CPUTIME_ID) - clock_of(CLOCK_THREAD_CPUTIME_ID);
}

/* Packets lay in the rings, and neither this thread nor another was at them: what was counted then. */
static struct {
    bool active;
    uint32_t polls, packets;
    ns_t ran;
} suspicion;

/* Do packets lie in the rings while application threads run and do not poll, though one did lately? One that
 * does not get a processor cannot poll, so only time that it ran counts. Found by two looks: a poll, some
 * posts before the next poll, or what the program does with the messages may take a while. */
static bool packets_are_left(void)
{
    uint32_t polls = application_polls();
    uint32_t packets = atomic_load_explicit(&progress_packets, memory_order_relaxed);
    bool left;

    rundown_enter();
    left = local_has_packets() ||
           (atomic_load_explicit(&udp_has_sockets, memory_order_relaxed) && udp_has_packets());
    rundown_exit();
    if (!left || rundown_others_are_inside()) {
        suspicion.active = false;
        return false;
    }
    if (suspicion.active && suspicion.polls == polls && suspicion.packets == packets)
        return application_ran() - suspicion.ran >= AWAY_NS;
    suspicion.active = true;
    suspicion.polls = polls;
    suspicion.packets = packets;
    suspicion.ran = application_ran();
    return false;
}

static void lose_trust(ns_t now)
{
    /* A long time of trust forgives. */
    if (now > distrust.until + DISTRUST_MAX_NS)
        distrust.length = 0;
    distrust.length = distrust.length ? min_of(distrust.length * 2, DISTRUST_MAX_NS) : DISTRUST_MIN_NS;
    distrust.until = now + distrust.length;
    suspicion.active = false;
}

/* Watches how steadily application threads poll while the helper works, so that trust comes back. */
struct steadiness {
    uint32_t polls;
    ns_t last_poll, since; /* no gap in polls since then */
};

static bool polls_are_steady(struct steadiness *steadiness, ns_t now)
{
    uint32_t polls = application_polls();

    if (now - steadiness->last_poll > PATIENCE_NS)
        steadiness->since = now;
    if (polls != steadiness->polls) {
        steadiness->polls = polls;
        steadiness->last_poll = now;
    }
    return now - steadiness->since > STEADY_NS;
}

/* Polls as long as packets come, and a little longer. Returns when nothing came for LINGER_NS, or an
 * application thread polls that is trusted, or is to be trusted again. */
static void work(void)
{
    ns_t now = sys_now(), idle_since = now;
    struct steadiness steadiness = {application_polls(), now, now};
    uint32_t polls = steadiness.polls;
    while (!trusted(now) || application_polls() == polls) {
        bool busy = progress_run() || route_has_ready();

        direct_run();
        now = sys_now();
        if (!trusted(now) && polls_are_steady(&steadiness, now)) {
            distrust.until = now;
            return;
        }
        if (busy) {
            idle_since = now;
            continue;
        }
        if (now - idle_since > LINGER_NS)
            return;
        cpu_relax();
    }
}

/* Polls of application threads, as far as the helper has seen them. */
struct polling {
    uint32_t polls;
    ns_t polled_at, seen_at;
    bool inside; /* one of them was at it at the last look */
};

/* To work along with a thread that is at it would be to wait for its locks, and where there is one processor
 * for both, to keep it from it. Between two events, or when it has just left, there may have been no time for
 * a poll. */
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

/* Returns whether it may be that packets have come. *later: a channel was rung. */
static bool dispatch(int fd, bool *later)
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
            log_error("eventfd: errno %d", errno);
    } else if (fd == local_event_fd()) {
        bool look_later, packets = local_dispatch(&look_later);

        *later |= look_later;
        return packets;
    } else {
        packet_socket_receive(fd);
    }
    return true;
}

/* Works until everything is quiet, and lets itself be rung. Returns false when a trusted application thread
 * has taken over, or the network cannot ring. */
static bool work_until_quiet(void)
{
    uint32_t polls = application_polls();
    bool quiet;

    do {
        work();
        if (trusted(sys_now()) && application_polls() != polls)
            return false;
        local_helper_sleeps(true);
        quiet = local_prepare_sleep(ATTENTION_ASLEEP);
        if (!quiet)
            local_helper_sleeps(false);
    } while (!quiet);
    /* What lies there by now wakes us at once. */
    return !atomic_load_explicit(&udp_has_sockets, memory_order_relaxed) || udp_prepare_sleep();
}

/* --- programs that sleep -------------------------------------------------------------------------------- */

/* A channel was rung (base/notify.h), or its program has armed a CQ and was taken for awake: what the last
 * look has found. */
static struct {
    bool active;
    uint32_t polls, packets;
} called;

/* Do packets wait for a thread that was called, and nobody has come from one look to the next? What others
 * wait for must not wait for a program that does not read its channel. */
static bool nobody_comes(void)
{
    enum attention attention = local_attention();
    uint32_t polls = application_polls();
    uint32_t packets = atomic_load_explicit(&progress_packets, memory_order_relaxed);
    bool left = false, again;

    if (attention == ATTENTION_RUNG || (attention == ATTENTION_AWAKE && cq_armed_count)) {
        rundown_enter();
        left = local_has_packets();
        rundown_exit();
    }
    again = left && called.active && called.polls == polls && called.packets == packets;
    called.active = left;
    called.polls = polls;
    called.packets = packets;
    return again;
}

/* Events whose peer was stopped before it wrote their token. Returns whether another look is needed. */
static bool see_to_owed_events(void)
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

static _Atomic uint32_t armings_seen, armings_before; /* at the last two looks */

static void glance(ns_t now)
{
    static ns_t last;
    uint32_t armings = atomic_load_explicit(&progress_armings, memory_order_relaxed);

    if (now - last < GLANCE_NS)
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

void helper_event_owed(void)
{
    if (local_helper_is_asleep())
        helper_kick();
}

/* While CQs are armed writers must ring, also after this thread has taken what they rang for. */
static void let_doze(void)
{
    for (int i = 0; i < 2 && cq_armed_count && local_attention() == ATTENTION_AWAKE; i++) {
        if (!local_prepare_sleep(ATTENTION_DOZES))
            progress_run();
    }
}

static int wait_for_events(struct epoll_event *events, int most, ns_t timeout)
{
    int count;

    if (timeout != NS_NEVER)
        return sys_epoll_wait(epoll_fd, events, most, timeout);
    count = epoll_wait(epoll_fd, events, most, -1);
    return count < 0 ? -errno : count;
}

static ns_t pause_while_watching(void)
{
    if (cq_armed_count || called.active || helper_saw_arming() || local_has_ring_due() ||
        network_ack_is_pending())
        return GLANCE_NS;
    return (suspicion.active ? LOOK_MS : TICK_MS) * NS_PER_MS;
}

static void *helper_main(void *argument)
{
    struct polling polling = {0};
    bool watching = false;

    pthread_setname_np(pthread_self(), "softhca");
    segment_tie_to_thread();
    /* What changed between the last listing and the opening of the monitor. */
    if (engine_refresh_devices() != 0)
        log_warn("the interfaces cannot be read");
    for (;;) {
        struct epoll_event events[8];
        int count =
            wait_for_events(events, (int)array_size(events), watching ? pause_while_watching() : NS_NEVER);
        bool rung = false, later = false, polled;
        ns_t now;

        if (count < 0 && count != -EINTR) {
            /* Somebody closed descriptors that he does not know. Better no helper than one that spins. */
            log_error("the helper thread ends: its descriptors are gone, errno %d", -count);
            return NULL;
        }
        local_helper_sleeps(false);
        for (int i = 0; i < count; i++)
            rung |= dispatch(events[i].data.fd, &later);
        /* What a doorbell announced is taken at once, also where an application polls: it may just have
         * stopped. */
        if (rung)
            progress_run();
        direct_run();
        now = sys_now();
        if (later)
            polling.seen_at = now;
        polled = is_polled(&polling, now);
        if (!polled)
            network_flush_delayed(); /* whoever polls does so itself, and may be about to answer */
        else if (!helper_saw_arming())
            udp_disarm();
        watching = polled && trusted(now);
        /* A program that sleeps leaves them lying when it has not been called. */
        if (!helper_saw_arming() && (watching || suspicion.active) && packets_are_left()) {
            lose_trust(now);
            watching = false;
        }
        if (watching && nobody_comes()) {
            progress_run();
            watching = false;
        }
        glance(now);
        if (!watching)
            watching = !work_until_quiet();
        watching |= local_has_ring_due();
        watching |= see_to_owed_events();
        if (watching)
            let_doze();
    }
    return NULL;
}

static int watch(int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    if (fd < 0)
        return 0;
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
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

    epoll_fd = fd_lift(epoll_create1(EPOLL_CLOEXEC));
    if (epoll_fd < 0)
        return -errno;
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
        if (error) {
            /* All or nothing: the next try begins anew. */
            close_descriptors();
            log_error("the helper thread does not start: errno %d", -error);
        } else {
            atomic_store_explicit(&running, true, memory_order_release);
        }
    }
    lock_release(&start_lock);
    errno = saved;
    return error;
}

void helper_after_fork_in_child(void)
{
    timers_after_fork_in_child();
    close_descriptors();
    lock_init(&start_lock);
    suspicion.active = false;
    atomic_store_explicit(&running, false, memory_order_relaxed);
}
