/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Timers of QPs (local ACK timeout, RNR) and of moderated CQs: two heaps, and one timerfd in the helper thread's epoll
 * set. */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/cm/agent_events.h"
#include "engine/cm/gsi.h"
#include "engine/core/core.h"
#include "engine/core/route.h"
#include "engine/paths/paths.h"
#include "object/qp/late.h"

/* Leaf. Guards the heap and what the timerfd is set to. */
static struct lock timers_lock = LOCK_INIT;
static struct timer_heap qp_timers, moderation_timers;
static int timer_fd = -1;
static ns_t timer_fd_at = NS_NEVER;
/* Threads inside cq_moderation_due(); counted up under timers_lock. */
static _Atomic uint32_t moderation_firing;
_Atomic ns_t timers_next_deadline = NS_NEVER;
static ns_t late_at[LATES] /* under timers_lock */ = {[0 ... LATES - 1] = NS_NEVER};

int timers_fd(void)
{
    return timer_fd;
}

/* timers_lock held. */
static void program(void)
{
    ns_t at = min_of(timer_next(&qp_timers), timer_next(&moderation_timers));
    struct itimerspec when = {0};
    int saved = errno;

    atomic_store_explicit(&timers_next_deadline, at, memory_order_relaxed);
    for (int i = 0; i < LATES; i++)
        at = min_of(at, late_at[i]);
    /* The timerfd is set earlier only, never later: after a timer was cancelled the helper thread wakes once in vain,
     * which is cheaper than a system call for each timer that is armed and cancelled. */
    if (at >= timer_fd_at || timer_fd < 0)
        return;
    when.it_value.tv_sec = (time_t)(at / NS_PER_S);
    when.it_value.tv_nsec = (long)(at % NS_PER_S);
    if (timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL) == 0)
        timer_fd_at = at;
    errno = saved;
}

int timers_open(void)
{
    int fd = fd_lift(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));

    if (fd < 0)
        return -errno;
    lock_acquire(&timers_lock);
    timer_fd = fd;
    timer_fd_at = NS_NEVER;
    program(); /* timers may have been armed before the helper thread started */
    lock_release(&timers_lock);
    return 0;
}

void timers_close(void)
{
    lock_acquire(&timers_lock);
    if (timer_fd >= 0)
        close(timer_fd);
    timer_fd = -1;
    lock_release(&timers_lock);
}

/* The heaps hold objects of the parent, and another thread may have held the lock in the middle of a change. */
void timers_after_fork_in_child(void)
{
    lock_init(&timers_lock);
    memset(&qp_timers, 0, sizeof(qp_timers));
    memset(&moderation_timers, 0, sizeof(moderation_timers));
    atomic_store_explicit(&timers_next_deadline, NS_NEVER, memory_order_relaxed);
    for (int i = 0; i < LATES; i++)
        late_at[i] = NS_NEVER;
    atomic_store_explicit(&moderation_firing, 0, memory_order_relaxed);
}

static void set(struct timer_heap *heap, struct timer *timer, ns_t delay)
{
    lock_acquire(&timers_lock);
    if (delay == NS_NEVER)
        timer_cancel(heap, timer);
    else if (timer_arm(heap, timer, sys_now() + delay) != 0)
        log_error("out of memory: the timer of a CQ is not armed: a moderated completion event is not "
                  "raised, and a thread "
                  "in ibv_get_cq_event() may not wake");
    program();
    lock_release(&timers_lock);
}

/* QP lock held. */
static void queue_qp(struct qp *qp)
{
    lock_acquire(&timers_lock);
    if (timer_arm(&qp_timers, &route_of(qp)->timer, route_of(qp)->timer_at) == 0)
        route_of(qp)->timer_queued_at = route_of(qp)->timer_at;
    else
        log_error("QP 0x%06x: out of memory: the retransmission timer is not armed, so a lost packet is not "
                  "sent again",
                  qp->ibv.qp_num);
    program();
    lock_release(&timers_lock);
}

/* QP lock held. Each acknowledgement restarts the timer. Its entry in the heap stays at the earlier time, and is moved
 * when that time has come: no heap operation per acknowledgement. */
void timers_set_qp(struct qp *qp, ns_t delay)
{
    route_of(qp)->timer_at = delay == NS_NEVER ? NS_NEVER : sys_now() + delay;
    if (route_of(qp)->timer_at < route_of(qp)->timer_queued_at)
        queue_qp(qp);
}

void timers_set_moderation(struct cq *cq, ns_t delay)
{
    set(&moderation_timers, &cq->moderation_timer, delay);
}

/* When this returns, cq_moderation_due() is not running for the CQ and is not called any more. CQ lock not held. */
void timers_cancel_moderation(struct cq *cq)
{
    set(&moderation_timers, &cq->moderation_timer, NS_NEVER);
    while (atomic_load_explicit(&moderation_firing, memory_order_acquire))
        sched_yield();
}

void timers_set_late(enum late which, ns_t at)
{
    lock_acquire(&timers_lock);
    late_at[which] = at;
    program();
    lock_release(&timers_lock);
}

void timers_lower_completions(ns_t at)
{
    lock_acquire(&timers_lock);
    late_at[LATE_COMPLETIONS] = min_of(late_at[LATE_COMPLETIONS], at);
    program();
    lock_release(&timers_lock);
}

static void fire_qp(struct qp *qp, ns_t now)
{
    struct qp_kick kick;
    bool queued_again;

    rundown_enter();
    lock_acquire(&qp->lock);
    /* Between timer_take_due() and this lock, another thread may have queued the timer again, or have reset or
     * destroyed the QP. */
    lock_acquire(&timers_lock);
    queued_again = route_of(qp)->timer.index != 0;
    lock_release(&timers_lock);
    if (!queued_again)
        route_of(qp)->timer_queued_at = NS_NEVER;
    if (route_of(qp)->timer_at > now) {
        if (route_of(qp)->timer_at < route_of(qp)->timer_queued_at)
            queue_qp(qp);
    } else {
        route_of(qp)->timer_at = NS_NEVER;
        if (atomic_load_explicit(&qp->record->qpn, memory_order_relaxed)) {
            if (unlikely(qp->record->type == IBV_QPT_RAW_PACKET))
                raw_timer(qp);
            sender_timer(&qp->transport);
            route_run(qp);
        }
    }
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    route_ring(&kick);
    rundown_exit();
}

void timers_run_due(void)
{
    ns_t now = sys_now();
    struct timer *timer;

    if (now < atomic_load_explicit(&timers_next_deadline, memory_order_relaxed))
        return;
    lock_acquire(&timers_lock);
    while ((timer = timer_take_due(&qp_timers, now))) {
        lock_release(&timers_lock);
        fire_qp(qp_of_route(container_of(timer, struct qp_route, timer)), now);
        lock_acquire(&timers_lock);
    }
    while ((timer = timer_take_due(&moderation_timers, now))) {
        struct cq *cq = container_of(timer, struct cq, moderation_timer);

        atomic_fetch_add_explicit(&moderation_firing, 1, memory_order_relaxed);
        lock_release(&timers_lock);
        cq_moderation_due(cq);
        atomic_fetch_sub_explicit(&moderation_firing, 1, memory_order_release);
        lock_acquire(&timers_lock);
    }
    program();
    lock_release(&timers_lock);
}

void timers_run(void)
{
    uint64_t expirations;
    ns_t now = sys_now();
    bool due[LATES];

    if (read(timer_fd, &expirations, sizeof(expirations)) < 0 && errno != EAGAIN)
        log_error("the helper thread cannot read its timerfd (%s; has the program closed file descriptors of "
                  "SoftHCA?): timers run, but it may use a whole processor",
                  strerror(errno));
    lock_acquire(&timers_lock);
    timer_fd_at = NS_NEVER;
    for (int i = 0; i < LATES; i++) {
        due[i] = now >= late_at[i];
        if (due[i])
            late_at[i] = NS_NEVER;
    }
    program();
    lock_release(&timers_lock);
    timers_run_due();
    if (due[LATE_CM_AGENT])
        cm_agent_due();
    if (due[LATE_GSI])
        gsi_due();
    if (due[LATE_HANGS])
        hangs_look();
    if (due[LATE_PACKETS])
        held_packets_due();
    if (due[LATE_PORTS])
        ports_due();
    if (due[LATE_COMPLETIONS])
        late_due();
}
