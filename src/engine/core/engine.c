/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Starts the engine, and makes it new in the child of a fork. */
#include "engine/core/engine.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/budget.h"
#include "base/log.h"
#include "base/rundown.h"
#include "engine/cm/agent_events.h"
#include "engine/cm/gsi.h"
#include "engine/core/capture.h"
#include "engine/core/core.h"
#include "engine/core/explainer.h"
#include "engine/core/faults.h"
#include "engine/direct/direct.h"
#include "engine/host/interfaces.h"
#include "engine/paths/paths.h"
#include "engine/xrc/remote_open.h"
#include "mapped/mapped.h"
#include "object/device/context.h"
#include "object/device/device.h"
#include "object/memory/mapping.h"
#include "object/ports.h"
#include "segment/segment.h"

static struct lock start_lock = LOCK_INIT;
static bool started, fork_handler_installed;

static const struct object_ports ports = {
    .progress = progress_from_application,
    .take_arrived = progress_take_arrived,
    .expect_sleep = progress_expect_sleep,
    .open_channel = local_open_channel,
    .close_channel = local_close_channel,
    .event_owed = helper_event_owed,
    .cq_overrun = progress_cq_overrun,
    .start_timers = helper_start,
    .moderation_timer = timers_set_moderation,
    .moderation_cancel = timers_cancel_moderation,
    .late_at = timers_lower_completions,
    .settle = direct_settle,
    .forget_orphans = direct_forget_orphans,
    .evict_soon = direct_evict_soon,
    .explain = explainer_explain,
    .qp_failed = explainer_qp_failed,
    .qp_dropped = explainer_qp_dropped,
    .tell_faults = explainer_tell_faults,
    .note_losses = explainer_note_losses,
    .report_losses = explainer_report_losses,
};

/* The child has one thread, and no helper thread. It must neither use what it inherited nor disturb the parent:
 * descriptors are closed, the segment becomes a private copy, and the engine is in its state before engine_start(), so
 * that the child may open devices of its own. Contexts of the parent have another generation (context_is_inherited()).
 */
static void after_fork_in_child(void)
{
    fence_after_fork_in_child();
    lock_after_fork_in_child();
    mapped_fork_child(); /* before what follows: registered memory has its contents of before the fork again */
    /* Also if the engine was not started: another thread of the parent may have been in engine_start(). */
    rundown_after_fork_in_child();
    budget_descriptors_after_fork_in_child();
    lock_init(&start_lock);
    started = false;
    helper_after_fork_in_child();
    interfaces_after_fork_in_child();
    device_table_after_fork_in_child(&host_devices);
    local_after_fork_in_child();
    network_after_fork_in_child();
    waiting_after_fork_in_child();
    exit_flush_after_fork_in_child();
    multicast_after_fork_in_child();
    raw_after_fork_in_child();
    explainer_after_fork_in_child();
    faults_after_fork_in_child();
    held_packets_after_fork_in_child();
    ports_after_fork_in_child();
    capture_after_fork_in_child();
    hangs_after_fork_in_child();
    gsi_after_fork_in_child();
    notices_after_fork_in_child();
    remote_open_after_fork_in_child();
    cm_agent_after_fork_in_child();
    direct_after_fork_in_child();
    qp_after_fork_in_child();
    object_after_fork_in_child();
}

/* SOFTHCA_LOCAL=mapped, or automatic where mapped_unasked() allows it. A program that did not ask for mapped memory
 * must not notice it: no thread before there is a region. */
static void choose_mapped(void)
{
    static const struct mapped_ports mapped_ports = {helper_is_thread, rundown_hold, rundown_release};
    enum mapping_when when = MAPPING_AT_REGISTRATION;
    bool in_calls;

    mapped_set_ports(&mapped_ports);
    if (local_is_automatic() && !network_is_forced() && mapped_unasked(&in_calls) == MAPPED_YES) {
        when = in_calls ? MAPPING_IN_CALLS : MAPPING_IN_BACKGROUND;
        local_choose_mapped();
    }
    if (local_wants_mapped())
        mapping_enable(when);
    if (local_wants_direct() && !network_is_forced())
        mapping_allow_peers();
}

static int start_locked(void)
{
    int error;

    if (!fork_handler_installed) {
        error = -pthread_atfork(mapped_fork_prepare, mapped_fork_parent, after_fork_in_child);
        if (error)
            return error;
        fork_handler_installed = true;
    }
    error = segment_open();
    if (error) {
        log_error(
            "cannot create the published segment (memory that peers and softhca read): %s (limits: ulimit "
            "-n, -v and -f): no device can be opened",
            strerror(-error));
        return error;
    }
    object_ports = &ports;
    qp_ports_install(&engine_qp_ports);
    explainer_start();
    faults_start();
    error = local_start(&engine_local_ops);
    if (error)
        log_error("cannot start communication with other processes of this host: %s (softhca doctor looks "
                  "for the cause)",
                  strerror(-error));
    network_start();
    choose_mapped();
    if (!error)
        capture_start();
    return error;
}

int engine_start(void)
{
    int saved = errno;
    int error = 0;

    lock_acquire(&start_lock);
    if (!started) {
        error = start_locked();
        started = !error;
    }
    lock_release(&start_lock);
    errno = saved;
    return error;
}

void engine_before_exit(void)
{
    exit_flush_process();
}

int engine_expect_events(void)
{
    return helper_start();
}
