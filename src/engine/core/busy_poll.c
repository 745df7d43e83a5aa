/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/core/busy_poll.h"

void busy_poll_found(struct busy_poll *poll, ns_t now)
{
    ns_t pause = now - poll->found_at;

    /* Of packets in a row only the first one had to be waited for. */
    if (pause > BUSY_POLL_LONG)
        poll->close = 0;
    else if (pause > BUSY_POLL_SHORT && poll->close < BUSY_POLL_CLOSE)
        poll->close++;
    if (pause > BUSY_POLL_SHORT && pause <= BUSY_POLL_USUAL)
        poll->vain = 0;
    poll->found = true;
    poll->found_at = now;
}

static bool ask(struct busy_poll *poll, ns_t now, bool (*is_free)(void))
{
    if (now - poll->asked_at > BUSY_POLL_ASK) {
        poll->is_free = is_free();
        poll->asked_at = now;
    }
    return poll->is_free;
}

bool busy_poll_goes_on(struct busy_poll *poll, ns_t since, ns_t now, bool (*is_free)(void))
{
    ns_t waited = now - since;

    if (waited <= BUSY_POLL_SHORT)
        return true;
    if (waited <= BUSY_POLL_USUAL && (poll->vain < BUSY_POLL_VAIN || poll->vain % BUSY_POLL_TRY == 0))
        return true;
    return waited <= BUSY_POLL_LONG && poll->close >= BUSY_POLL_CLOSE && ask(poll, now, is_free);
}

void busy_poll_ends(struct busy_poll *poll)
{
    if (poll->found)
        poll->vain++;
    poll->found = false;
}

static void set_pause(struct glance *glance, ns_t pause)
{
    glance->extra = min_of(max_of(pause, GLANCE_SHORT), GLANCE_LONG) - GLANCE_SHORT;
}

void glance_came(struct glance *glance, ns_t delay)
{
    set_pause(glance, delay > GLANCE_DELAY ? glance_pause(glance) * 2 : glance_pause(glance) / 2);
}

void glance_found_late(struct glance *glance)
{
    set_pause(glance, min_of(glance_pause(glance), GLANCE_LATE));
}

void watch_woken(struct watch *watch, ns_t pause)
{
    if (pause > WATCH_FOR)
        watch->seldom += watch->seldom < WATCH_SELDOM_MAX;
    else
        watch->seldom -= watch->seldom < 2 ? watch->seldom : 2;
}

bool watch_goes_on(const struct watch *watch)
{
    return watch->seldom < WATCH_SELDOM;
}
