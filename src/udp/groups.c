/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Multicast groups that QPs of this process are attached to. A member has a socket for each group; for a client
 * of another user the port owner has it. The kernel reports memberships to the network (IGMP, MLD). */
#include <errno.h>
#include <linux/futex.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/gid_text.h"
#include "base/log.h"
#include "base/sys.h"
#include "udp/control_message.h"
#include "udp/internal.h"

#define JOIN_TIMEOUT (5 * NS_PER_S)

struct group {
    struct list node;
    uint8_t gid[16];
    uint32_t ifindex;
    unsigned users; /* calls of udp_join() less those of udp_leave(); 0: leave it */
    struct reader reader;
    bool is_declared; /* to the current port owner */
    uint32_t serial;  /* of the control message that declared it */
    int result;       /* 0: joined; -EINPROGRESS; else -errno */
};

static struct lock groups_lock = LOCK_INIT; /* guards `groups`; taken before receive_lock */
static struct list groups = {&groups, &groups};
static _Atomic uint32_t results; /* futex: counts changes of any `result` */

static struct group *find(const uint8_t gid[16], uint32_t ifindex)
{
    list_for_each (node, &groups) {
        struct group *group = list_entry(node, struct group, node);

        if (group->ifindex == ifindex && memcmp(group->gid, gid, sizeof(group->gid)) == 0)
            return group;
    }
    return NULL;
}

/* --- helper thread ------------------------------------------------------------------------------- */

void groups_not_joined(const uint8_t gid[16], uint32_t ifindex, const struct ucred *client, int error)
{
    char group[GID_TEXT], interface[IF_NAMESIZE], whose[64] = "";
    int saved = errno;

    if (!if_indextoname(ifindex, interface))
        snprintf(interface, sizeof(interface), "%u", ifindex);
    if (client)
        snprintf(whose, sizeof(whose), " for client process %d (uid %u)", (int)client->pid,
                 (unsigned)client->uid);
    log_warn("cannot join multicast group %s on interface %s%s: %s. Datagrams of that group from other hosts "
             "do not arrive%s",
             gid_text(gid, group), interface, whose, strerror(-error),
             error == -ENOBUFS ? " (limit: net.ipv4.igmp_max_memberships)" : "");
    errno = saved;
}

static void settle(struct group *group, int result)
{
    if (group->result == result)
        return;
    group->result = result;
    if (result != 0 && result != -EINPROGRESS)
        groups_not_joined(group->gid, group->ifindex, NULL, result);
    atomic_fetch_add_explicit(&results, 1, memory_order_release);
    sys_futex((uint32_t *)&results, FUTEX_WAKE_PRIVATE, INT32_MAX, NS_NEVER);
}

static int open_socket(struct group *group)
{
    int fd = socket_join(group->gid, group->ifindex), error;

    if (fd < 0)
        return fd;
    group->reader = (struct reader){.source.fd = fd, .is_group = true, .forward_to = -1};
    error = reader_add(&group->reader);
    if (error) {
        group->reader.source.fd = -1;
        fd_close(fd);
    }
    return error;
}

static void declare_group(struct group *group, int upstream, uint32_t *serial)
{
    struct udp_message message = {
        .magic = UDP_MESSAGE_MAGIC,
        .version = UDP_MESSAGE_VERSION,
        .type = UDP_MESSAGE_REQUEST,
        .serial = ++*serial,
        .flags = group->users ? UDP_MESSAGE_JOIN : UDP_MESSAGE_LEAVE,
        .ifindex = group->ifindex,
    };

    memcpy(message.group, group->gid, sizeof(message.group));
    group->is_declared = udp_message_send(upstream, &message, NULL, 0) == 0;
    group->serial = *serial;
}

static void leave(struct group *group, enum groups_mode mode, int upstream, uint32_t *serial)
{
    reader_remove(&group->reader);
    if (mode == GROUPS_BY_PORT_OWNER && group->is_declared)
        declare_group(group, upstream, serial);
    list_remove(&group->node);
    free(group);
}

static void join(struct group *group, enum groups_mode mode, int upstream, uint32_t *serial,
                 uint32_t acknowledged)
{
    switch (mode) {
    case GROUPS_NOT_YET:
        break;
    case GROUPS_BY_SOCKET:
        if (group->reader.source.fd < 0 && (group->result == 0 || group->result == -EINPROGRESS))
            settle(group, open_socket(group));
        break;
    case GROUPS_BY_PORT_OWNER:
        if (!group->is_declared)
            declare_group(group, upstream, serial);
        else if ((int32_t)(acknowledged - group->serial) >= 0)
            settle(group, 0);
        break;
    }
}

void groups_step(enum groups_mode mode, int upstream, uint32_t *serial, uint32_t acknowledged)
{
    lock_acquire(&groups_lock);
    list_for_each_safe (node, following, &groups) {
        struct group *group = list_entry(node, struct group, node);

        if (group->users)
            join(group, mode, upstream, serial, acknowledged);
        else
            leave(group, mode, upstream, serial);
    }
    lock_release(&groups_lock);
}

void groups_forget_declarations(void)
{
    lock_acquire(&groups_lock);
    list_for_each (node, &groups)
        list_entry(node, struct group, node)->is_declared = false;
    lock_release(&groups_lock);
}

/* --- public functions ---------------------------------------------------------------------------- */

static struct group *use(const uint8_t gid[16], uint32_t ifindex)
{
    struct group *group = find(gid, ifindex);

    if (!group) {
        group = calloc(1, sizeof(*group));
        if (!group)
            return NULL;
        memcpy(group->gid, gid, sizeof(group->gid));
        group->ifindex = ifindex;
        group->reader.source.fd = -1;
        list_push_back(&groups, &group->node);
    }
    if (group->users++ == 0)
        group->result = group->reader.source.fd >= 0 ? 0 : -EINPROGRESS;
    return group;
}

/* -ENOENT: another thread left the group. */
static int result_of(const uint8_t gid[16], uint32_t ifindex)
{
    struct group *group;
    int result;

    lock_acquire(&groups_lock);
    group = find(gid, ifindex);
    result = group ? group->result : -ENOENT;
    lock_release(&groups_lock);
    return result;
}

int udp_join(const uint8_t gid[16], uint32_t ifindex)
{
    ns_t deadline = sys_now() + JOIN_TIMEOUT;
    struct group *group;

    lock_acquire(&groups_lock);
    group = use(gid, ifindex);
    lock_release(&groups_lock);
    if (!group)
        return -ENOMEM;
    port_wake();
    for (;;) {
        uint32_t seen = atomic_load_explicit(&results, memory_order_acquire);
        int result = result_of(gid, ifindex);
        ns_t now = sys_now();

        if (result != -EINPROGRESS)
            return result;
        if (udp_state() != UDP_OPEN && udp_state() != UDP_FORWARDED)
            return -ENETDOWN; /* the helper thread joins when the port opens */
        if (now >= deadline)
            return -ETIMEDOUT;
        sys_futex((uint32_t *)&results, FUTEX_WAIT_PRIVATE, seen, deadline - now);
    }
}

void udp_leave(const uint8_t gid[16], uint32_t ifindex)
{
    struct group *group;

    lock_acquire(&groups_lock);
    group = find(gid, ifindex);
    if (group && group->users)
        group->users--;
    lock_release(&groups_lock);
    port_wake();
}

void groups_after_fork_in_child(void)
{
    lock_init(&groups_lock);
    list_init(&groups); /* leaked: another thread may have been changing the list at the fork */
}
