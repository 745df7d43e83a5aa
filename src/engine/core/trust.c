/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/core/trust.h"

#include <time.h>

#include "base/rundown.h"
#include "local/local.h"
#include "udp/udp.h"

/* An application that spins on its CQ polls sooner than this. */
#define PATIENCE_NS (10 * NS_PER_US)
/* An application that polls, and works on its memory between two polls, takes packets within this much of its processor
 * time (to write or read a buffer of 1 MiB takes 0.1 ms). If the helper thread polled meanwhile, it would take the
 * processor from an application that has only one. */
#define AWAY_NS (500 * NS_PER_US)
/* After polls without a gap of PATIENCE_NS for so long, polls are trusted again. */
#define STEADY_NS (200 * NS_PER_US)
/* How long polls are not trusted after packets were left; doubles each time. */
#define DISTRUST_MIN_NS (4 * NS_PER_MS)
#define DISTRUST_MAX_NS NS_PER_S

static struct {
    ns_t until, length; /* polls are ignored before `until`; how long the last distrust lasted */
} distrust;

bool trust_holds(ns_t now)
{
    return now >= distrust.until;
}

static ns_t clock_of(clockid_t clock)
{
    struct timespec time = {0};

    clock_gettime(clock, &time);
    return (ns_t)time.tv_sec * NS_PER_S + (ns_t)time.tv_nsec;
}

/* Processor time of all other threads of the process. */
static ns_t application_ran(void)
{
    return clock_of(CLOCK_PROCESS_CPUTIME_ID) - clock_of(CLOCK_THREAD_CPUTIME_ID);
}

/* The last look found packets in the rings, and no thread inside of the library: the counters at that time. */
static struct {
    bool active;
    uint32_t polls, packets;
    ns_t ran;
} suspicion;

bool trust_packets_are_left(void)
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

void trust_lose(ns_t now)
{
    /* After a long time without distrust, distrust starts at its minimum again. */
    if (now > distrust.until + DISTRUST_MAX_NS)
        distrust.length = 0;
    distrust.length = distrust.length ? min_of(distrust.length * 2, DISTRUST_MAX_NS) : DISTRUST_MIN_NS;
    distrust.until = now + distrust.length;
    suspicion.active = false;
}

bool trust_polls_are_steady(struct steadiness *steadiness, ns_t now)
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

void trust_again(ns_t now)
{
    distrust.until = now;
}

bool trust_suspects(void)
{
    return suspicion.active;
}

void trust_after_fork_in_child(void)
{
    suspicion.active = false;
}
