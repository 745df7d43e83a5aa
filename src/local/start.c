/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Start of local, reset in a forked child, and local_dispatch(). */
#include "local/start.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sys.h"
#include "local/blocks.h"
#include "local/control.h"
#include "local/doorbell.h"
#include "local/handshake.h"
#include "local/names.h"
#include "local/notify.h"
#include "local/owners.h"

struct local_state local;

static bool started;
static bool hot_now, rung_now, later_now; /* results of the running local_dispatch(); helper thread */
static _Atomic bool self_rung;
static struct event_source kick = {.fd = -1}, timer = {.fd = -1};
static ns_t timer_at = NS_NEVER; /* helper thread */

static enum mechanism wanted_mechanism(void)
{
    const char *wanted = secure_getenv("SOFTHCA_LOCAL");

    if (!wanted || strcmp(wanted, "auto") == 0)
        return MECHANISM_AUTO;
    if (strcmp(wanted, "ring") == 0)
        return MECHANISM_RING;
    if (strcmp(wanted, "cma") == 0)
        return MECHANISM_CMA;
    if (strcmp(wanted, "copy") == 0)
        return MECHANISM_COPY;
    if (strcmp(wanted, "mapped") == 0)
        return MECHANISM_MAPPED;
    log_warn("SOFTHCA_LOCAL=%s: invalid (valid: auto, ring, cma, copy, mapped); using auto", wanted);
    return MECHANISM_AUTO;
}

bool local_is_automatic(void)
{
    return local.mechanism == MECHANISM_AUTO;
}

void local_choose_mapped(void)
{
    local.mechanism = MECHANISM_MAPPED;
}

bool local_wants_mapped(void)
{
    return local.mechanism == MECHANISM_MAPPED;
}

bool local_wants_direct(void)
{
    return local.mechanism != MECHANISM_RING && local.mechanism != MECHANISM_CMA;
}

static void drain_counter(struct event_source *source)
{
    uint64_t count;

    /* A failed read (EAGAIN) means that the counter is 0 already. */
    if (read(source->fd, &count, sizeof(count)) < 0)
        return;
}

static void kicked(struct event_source *source, uint32_t events)
{
    drain_counter(source);
    if (atomic_exchange_explicit(&self_rung, false, memory_order_acquire)) {
        rung_now = true;
        hot_now |= progress_rung(local_self_link(), false);
    }
    link_remove_broken();
    lookups_begin();
}

static void timer_ready(struct event_source *source, uint32_t events)
{
    drain_counter(source);
    timer_at = NS_NEVER;
}

static int open_source(struct event_source *source, int fd)
{
    source->fd = fd_own(fd < 0 ? -errno : fd);
    if (source->fd < 0) {
        int error = source->fd;

        source->fd = -1;
        log_error("cannot create a descriptor for the helper thread (eventfd or timerfd): %s (limit: ulimit "
                  "-n): no "
                  "device can be opened",
                  strerror(-error));
        return error;
    }
    return event_add(source, EPOLLIN);
}

int local_start(const struct local_ops *ops)
{
    int error, saved = errno;

    if (started)
        return 0;
    local.ops = ops;
    local.mechanism = wanted_mechanism();
    sys_random(local.instance, sizeof(local.instance));
    sys_random(local.nonce, sizeof(local.nonce));
    kick.ready = kicked;
    timer.ready = timer_ready;
    error = progress_start();
    if (!error)
        error = link_start();
    if (!error)
        error = event_start();
    if (!error)
        error = open_source(&kick, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!error)
        error = open_source(&timer, timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (error)
        local_after_fork_in_child(); /* closes what was opened */
    else
        started = true;
    errno = saved;
    return error;
}

void local_after_fork_in_child(void)
{
    started = hot_now = rung_now = later_now = false;
    timer_at = NS_NEVER;
    atomic_store_explicit(&self_rung, false, memory_order_relaxed);
    kick.fd = timer.fd = -1;
    event_after_fork_in_child();
    handshake_after_fork_in_child();
    control_after_fork_in_child();
    lookups_after_fork_in_child();
    blocks_after_fork_in_child();
    names_after_fork_in_child();
    owners_after_fork_in_child();
    progress_after_fork_in_child();
    notify_after_fork_in_child();
    doorbell_after_fork_in_child();
    link_after_fork_in_child();
}

int local_event_fd(void)
{
    return event_epoll_fd();
}

void local_kick(void)
{
    static const uint64_t one = 1;

    if (event_is_intact(&kick))
        (void)sys_write(kick.fd, &one, sizeof(one)); /* EAGAIN: the counter is full, so readable */
}

void local_ring_self(void)
{
    atomic_store_explicit(&self_rung, true, memory_order_release);
    local_kick();
}

void local_became_hot(void)
{
    hot_now = true;
}

void local_was_rung(void)
{
    rung_now = true;
}

void local_check_later(void)
{
    later_now = true;
}

static void set_timer(ns_t when)
{
    struct itimerspec setting = {0};

    if (when == timer_at)
        return;
    timer_at = when;
    if (when != NS_NEVER) {
        setting.it_value.tv_sec = (time_t)(when / NS_PER_S);
        setting.it_value.tv_nsec = (long)(when % NS_PER_S) | 1; /* all zero would disarm it */
    }
    if (timerfd_settime(timer.fd, TFD_TIMER_ABSTIME, &setting, NULL) < 0)
        log_error("the helper thread cannot set its timer (timerfd_settime: %m): handshakes expire late, and "
                  "processes that sleep may be woken late");
}

bool local_dispatch(bool *ret_look_later)
{
    int saved = errno;
    bool writable;

    hot_now = rung_now = later_now = false;
    writable = progress_awake();
    names_free_released();
    event_dispatch();
    handshake_expire();
    control_run();
    handshake_report_settled();
    doorbell_ring_owed();
    set_timer(min_of(handshake_deadline(), doorbell_deadline()));
    errno = saved;
    *ret_look_later = later_now;
    return hot_now || rung_now || writable || !later_now;
}
