/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "front/rdmacm/known_routes.h"

#include <linux/rtnetlink.h>
#include <string.h>

#include "base/fd.h"
#include "base/lock.h"
#include "base/netlink.h"
#include "base/sys.h"
#include "front/rdmacm/front.h"

#define KNOWN     16u /* destinations */
#define VALID_FOR NS_PER_S
#define NOT_NOW   0 /* a stamp: the answer must not be remembered */

static const int groups[] = {
    RTNLGRP_LINK,        RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE,
    RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE,  RTNLGRP_IPV6_RULE,
#ifdef RTNLGRP_NEXTHOP
    RTNLGRP_NEXTHOP,
#endif
};

struct known {
    struct sockaddr_storage to, source;
    ns_t until; /* 0: empty */
};

static struct lock routes_lock = LOCK_INIT; /* guards what follows; a leaf */
static struct known known[KNOWN];
static unsigned next_known;
static struct netlink_watch watch = {.fd = -1};
static bool unheard; /* there are no notifications to be had: nothing is remembered */
static uint64_t stamp =
    1; /* counts what made answers void: one that was asked for before is not remembered */

static void forget_all(void)
{
    memset(known, 0, sizeof(known));
    stamp++;
}

/* Are the answers known to be good until now? routes_lock held. */
static bool is_watched(void)
{
    int changed;

    if (unheard)
        return false;
    if (watch.fd >= 0) {
        changed = netlink_watch_changed(&watch);
        if (changed)
            forget_all();
        if (changed >= 0)
            return true;
        netlink_watch_close(&watch);
    }
    changed = netlink_watch_open(&watch, groups, array_size(groups));
    unheard = changed && !error_may_pass(changed);
    return !changed;
}

/* routes_lock held. NULL: unknown. */
static struct known *find(const struct sockaddr *to)
{
    for (unsigned i = 0; i < KNOWN; i++) {
        if (known[i].until && addresses_equal((const struct sockaddr *)&known[i].to, to))
            return &known[i];
    }
    return NULL;
}

bool routes_recall(const struct sockaddr *to, struct sockaddr_storage *ret_source, uint64_t *ret_stamp)
{
    struct known *found = NULL;

    lock_acquire(&routes_lock);
    *ret_stamp = NOT_NOW;
    if (is_watched()) {
        *ret_stamp = stamp;
        found = find(to);
    }
    if (found && sys_now() >= found->until) {
        found->until = 0;
        found = NULL;
    }
    if (found)
        memcpy(ret_source, &found->source, sizeof(*ret_source));
    lock_release(&routes_lock);
    return found != NULL;
}

void routes_remember(const struct sockaddr *to, const struct sockaddr_storage *source, uint64_t asked_at)
{
    struct known *entry;

    lock_acquire(&routes_lock);
    if (asked_at == stamp) {
        entry = find(to); /* another thread may have asked, too */
        if (!entry)
            entry = &known[next_known++ % KNOWN];
        *entry = (struct known){.source = *source, .until = sys_now() + VALID_FOR};
        memcpy(&entry->to, to, (size_t)address_length(to));
    }
    lock_release(&routes_lock);
}

/* The socket is the parent's, and what is read from it is lost to the parent. */
void routes_after_fork_in_child(void)
{
    lock_init(&routes_lock);
    netlink_watch_close(&watch);
    unheard = false;
    forget_all();
}
