/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "object_fixture.h"

#include "base/sys.h"
#include "object/memory/share.h"

struct port_calls port_calls;
struct notify_channel *port_line;
struct context *context, *other_context;

static void progress(void)
{
    port_calls.progress++;
    if (port_calls.on_progress)
        port_calls.on_progress();
}

static struct notify_channel *open_channel(int fd, unsigned *ret_number)
{
    *ret_number = 0;
    return port_line;
}

static void close_channel(unsigned number)
{
}

static void event_owed(bool rung)
{
    port_calls.event_owed++;
}

static void take_arrived(void)
{
}

static void expect_sleep(void)
{
    port_calls.expect_sleep++;
}

static void cq_overrun(struct cq *cq)
{
    port_calls.cq_overrun++;
}

static int start_timers(void)
{
    return port_calls.start_timers_error;
}

static void moderation_timer(struct cq *cq, ns_t delay)
{
    port_calls.moderation_timer++;
    port_calls.moderation_delay = delay;
}

static void late_at(ns_t at)
{
}

static void moderation_cancel(struct cq *cq)
{
    port_calls.moderation_cancel++;
}

static void explain(enum explanation what, enum object_kind kind, uint32_t number)
{
    port_calls.explained_kind = kind;
    port_calls.explained_number = number;
    __atomic_fetch_add(&port_calls.explained[what], 1, __ATOMIC_RELEASE);
}

static bool settle(enum object_kind kind, uint32_t slot, enum settle how)
{
    return false;
}

static void forget_orphans(void)
{
}

static struct losses *note_losses_of(enum object_kind kind, uint32_t number)
{
    port_calls.losses_noted++;
    return (struct losses *)&port_calls;
}

static void tell_losses_of(struct losses *losses)
{
    port_calls.losses_told++;
}

static const struct object_ports ports = {
    .progress = progress,
    .take_arrived = take_arrived,
    .expect_sleep = expect_sleep,
    .open_channel = open_channel,
    .close_channel = close_channel,
    .event_owed = event_owed,
    .cq_overrun = cq_overrun,
    .start_timers = start_timers,
    .moderation_timer = moderation_timer,
    .moderation_cancel = moderation_cancel,
    .late_at = late_at,
    .settle = settle,
    .forget_orphans = forget_orphans,
    .explain = explain,
    .note_losses = note_losses_of,
    .report_losses = tell_losses_of,
};

static int open_one(unsigned number, struct context **ret_context)
{
    struct device *device = &host_devices.devices[number];

    return context_open(device, ret_context) ||
           share_open(device->node_guid, &(*ret_context)->share, &(*ret_context)->verbs.context.cmd_fd);
}

int open_contexts(void **state)
{
    memset(&port_calls, 0, sizeof(port_calls));
    object_ports = &ports;
    return open_one(0, &context) || open_one(1, &other_context);
}

static int close_one(struct context *one)
{
    int leaked = one->objects != 0, fd = one->verbs.context.cmd_fd;
    struct share *share = one->share;

    context_close(one);
    share_close(share);
    sys_close(fd);
    return leaked;
}

/* Every test gives back what it made. */
int close_contexts(void **state)
{
    int leaked = close_one(context);

    return close_one(other_context) || leaked;
}
