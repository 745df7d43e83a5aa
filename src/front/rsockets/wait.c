/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How calls wait. A call that waits for the peer polls the CQ for a while and then sleeps. One thread of an rsocket
 * at a time, the leader, sleeps in its completion channel; the others sleep on `changes`, which the leader and every
 * other thread update when something has changed. A thread in rpoll() sleeps in poll(2) on many descriptors: it
 * watches the completion channel itself, and is woken through its eventfd if another thread has read the event. The
 * channel is read with read(2), so that SA_RESTART applies to signals, as with sockets. */
#include <limits.h>
#include <linux/futex.h>

#include "base/sys.h"
#include "front/rsockets/rsocket.h"

/* --- telling -------------------------------------------------------------------------------------------- */

static void wake_sleepers(struct rsocket *rsocket)
{
    const uint64_t one = 1;
    struct list *node;

    while ((node = list_pop_front(&rsocket->sleepers)))
        sys_write(list_entry(node, struct rsocket_sleeper, node)->wake_fd, &one, sizeof(one));
}

void rsocket_changed(struct rsocket *rsocket)
{
    __atomic_store_n(&rsocket->changes, rsocket->changes + 1, __ATOMIC_RELAXED);
    if (rsocket->waiters)
        sys_futex(&rsocket->changes, FUTEX_WAKE_PRIVATE, INT_MAX, NS_NEVER);
    if (unlikely(!list_empty(&rsocket->sleepers)))
        wake_sleepers(rsocket);
}

static ns_t time_left(ns_t deadline)
{
    ns_t now;

    if (!deadline)
        return NS_NEVER;
    now = sys_now();
    return deadline > now ? deadline - now : 0;
}

int rsocket_sleep(struct rsocket *rsocket, uint32_t seen, ns_t deadline)
{
    ns_t left = time_left(deadline);
    long error;

    if (!left)
        return -ETIMEDOUT;
    rsocket->waiters++;
    lock_release(&rsocket->lock);
    /* The futex call fails if a wake-up came in between: `changes` then differs from `seen`. */
    error = sys_futex(&rsocket->changes, FUTEX_WAIT_PRIVATE, seen, left);
    lock_acquire(&rsocket->lock);
    rsocket->waiters--;
    return error == -EINTR || error == -ETIMEDOUT ? (int)error : 0;
}

/* --- directions ----------------------------------------------------------------------------------------- */

int rsocket_enter_direction(struct rsocket *rsocket, bool *busy, const struct rsocket_patience *patience)
{
    int error = 0;

    while (*busy && !error)
        error =
            patience->nonblocking ? -EAGAIN : rsocket_sleep(rsocket, rsocket->changes, patience->deadline);
    if (!error)
        *busy = true;
    return error;
}

void rsocket_leave_direction(struct rsocket *rsocket, bool *busy)
{
    *busy = false;
    if (unlikely(rsocket->waiters))
        rsocket_changed(rsocket);
}

/* --- completions and their channels --------------------------------------------------------------------- */

bool rsocket_can_progress(const struct rsocket *rsocket)
{
    return !rsocket_is_stream(rsocket) || (rsocket->phase == PHASE_CONNECTED && rsocket->endpoint.cq);
}

void rsocket_progress(struct rsocket *rsocket, bool wait)
{
    if (!rsocket_is_stream(rsocket)) {
        datagram_progress(rsocket);
        return;
    }
    lock_release(&rsocket->lock);
    endpoint_progress(rsocket, wait);
    lock_acquire(&rsocket->lock);
}

void rsocket_arm(struct rsocket *rsocket)
{
    if (!rsocket_is_stream(rsocket)) {
        datagram_arm(rsocket);
    } else if (!rsocket->armed) {
        rsocket->armed = true;
        ibv_req_notify_cq(rsocket->endpoint.cq, 0);
    }
}

int rsocket_event_fd(const struct rsocket *rsocket)
{
    return rsocket_is_stream(rsocket) ? rsocket->endpoint.channel->fd : datagram_event_fd(rsocket);
}

static int read_event(struct rsocket *rsocket)
{
    struct ibv_cq *cq;
    void *context;

    return ibv_get_cq_event(rsocket->endpoint.channel, &cq, &context) ? -errno : 0;
}

static void note_event(struct rsocket *rsocket)
{
    rsocket->armed = false;
    rsocket->endpoint.unacknowledged++;
    rsocket_changed(rsocket); /* other threads have waited for that event */
}

void rsocket_drain(struct rsocket *rsocket)
{
    struct pollfd watched;

    if (rsocket->leading)
        return;
    if (!rsocket_is_stream(rsocket)) {
        if (datagram_drain(rsocket))
            rsocket_changed(rsocket);
        return;
    }
    if (!rsocket->armed)
        return;
    watched = (struct pollfd){.fd = rsocket->endpoint.channel->fd, .events = POLLIN};
    if (sys_poll_now(&watched, 1) == 1 && !read_event(rsocket))
        note_event(rsocket);
}

/* No other thread reads the channel in between. */
static int sleep_in_channel(struct rsocket *rsocket, ns_t deadline)
{
    struct pollfd watched = {.fd = rsocket_event_fd(rsocket), .events = POLLIN};
    int result, saved = errno;

    if (deadline || !rsocket_is_stream(rsocket)) {
        result = sys_poll(&watched, 1, time_left(deadline));
        if (result <= 0)
            return result ? result : -ETIMEDOUT;
    }
    result = rsocket_is_stream(rsocket) ? read_event(rsocket) : 0;
    errno = saved;
    return result;
}

static int lead(struct rsocket *rsocket, uint32_t seen, ns_t deadline)
{
    int error = 0;

    rsocket->leading = true;
    rsocket_arm(rsocket);
    /* Completions from before the CQ was armed cause no event. */
    rsocket_progress(rsocket, true);
    if (rsocket->changes == seen) {
        lock_release(&rsocket->lock);
        error = sleep_in_channel(rsocket, deadline);
        lock_acquire(&rsocket->lock);
        if (!error && rsocket_is_stream(rsocket))
            note_event(rsocket);
        else if (!error && datagram_drain(rsocket))
            rsocket_changed(rsocket);
    }
    rsocket->leading = false;
    if (rsocket->waiters || !list_empty(&rsocket->sleepers))
        rsocket_changed(rsocket); /* another thread leads now, or watches the channel itself */
    return error;
}

int rsocket_wait(struct rsocket *rsocket, struct rsocket_patience *patience)
{
    uint32_t seen = rsocket->changes;
    ns_t now;

    rsocket_progress(rsocket, false);
    if (rsocket->changes != seen)
        return 0;
    if (patience->nonblocking)
        return -EAGAIN;
    now = sys_now();
    if (!patience->spin_until)
        patience->spin_until = now + rsocket_defaults()->polling;
    if (now < patience->spin_until) {
        lock_release(&rsocket->lock);
        cpu_relax();
        lock_acquire(&rsocket->lock);
        return 0;
    }
    return rsocket->leading ? rsocket_sleep(rsocket, seen, patience->deadline)
                            : lead(rsocket, seen, patience->deadline);
}
