/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Discovery: connects to every process of this host that shares the port and listens for others. Helper thread;
 * never blocks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/log.h"
#include "base/sys.h"
#include "base/unix_names.h"
#include "udp/control_message.h"
#include "udp/internal.h"

/* Bounds what the names of users who may have the port can cost. /proc/net/unix has no order, so a member that is left
 * out now can be found by the next discovery. */
#define PROBES_MAX    128
#define PROBE_TIMEOUT (2 * NS_PER_S) /* a stopped process does not reply */

/* A connection to a process that listens, from connect() to its reply. */
struct probe {
    struct event_source source;
    struct list node;
    struct ucred peer;
    ns_t deadline;
    char digits[UDP_NAME_DIGITS]; /* of the abstract socket's name */
};

static struct list probes = {&probes, &probes};
static unsigned probe_count;
/* The user whose socket is bound to the port, during discovery_begin(). */
static bool port_has_owner;
static uid_t port_uid;

static void probe_free(struct probe *probe)
{
    event_close(&probe->source);
    list_remove(&probe->node);
    probe_count--;
    free(probe);
}

bool discovery_is_running(void)
{
    return !list_empty(&probes);
}

void discovery_end(void)
{
    while (discovery_is_running())
        probe_free(list_entry(probes.next, struct probe, node));
}

static void reply_ready(struct event_source *source, uint32_t events)
{
    struct probe *probe = container_of(source, struct probe, source);
    int fds[UDP_MESSAGE_FDS], error;
    struct udp_message message;
    unsigned fd_count;
    bool kept = false;

    error = udp_message_receive(source->fd, UDP_MESSAGE_REPLY, &message, fds, &fd_count);

    if (error == -EAGAIN)
        return;
    if (error && error != -ECONNRESET)
        log_warn("UDP port 4791: process %d (uid %u) has an incompatible protocol version: all processes "
                 "that share the port "
                 "have to run the same SoftHCA release",
                 (int)probe->peer.pid, (unsigned)probe->peer.uid);
    list_remove(&probe->node); /* before port_reply_received(), which may call discovery_end() */
    probe_count--;
    if (!error)
        kept = port_reply_received(&probe->peer, &message, fds, fd_count, source);
    for (unsigned i = 0; i < fd_count; i++)
        fd_close(fds[i]);
    if (kept)
        event_forget(source);
    else
        event_close(source);
    free(probe);
    if (!discovery_is_running())
        port_discovery_ended();
}

/* Only the user whose socket is bound to the port can give packets of it, or a process of our own user the sockets.
 * Names of others are decoys, in any number. */
static bool may_have_port(const struct ucred *peer)
{
    return port_is_own_user(peer) || (port_has_owner && peer->uid == port_uid);
}

static bool send_first_request(struct probe *probe)
{
    const struct udp_message message = {
        .magic = UDP_MESSAGE_MAGIC,
        .version = UDP_MESSAGE_VERSION,
        .type = UDP_MESSAGE_REQUEST,
        .flags = shards_are_there() ? 0 : UDP_MESSAGE_WANTS_DESCRIPTOR_SET,
    };
    socklen_t length = sizeof(probe->peer);
    int forwarding_socket = forwarding_open();

    if (forwarding_socket < 0 ||
        getsockopt(probe->source.fd, SOL_SOCKET, SO_PEERCRED, &probe->peer, &length) < 0 ||
        !may_have_port(&probe->peer))
        return false;
    port_peer_found(&probe->peer);
    return udp_message_send(probe->source.fd, &message, &forwarding_socket, 1) == 0 &&
           event_add(&probe->source, EPOLLIN) == 0;
}

/* /proc/net/unix lists a listener once for itself and once for each of its connections. */
static bool is_probed(const char *digits)
{
    list_for_each (node, &probes) {
        if (memcmp(list_entry(node, struct probe, node)->digits, digits, UDP_NAME_DIGITS) == 0)
            return true;
    }
    return false;
}

static void start_probe(const char *digits, void *argument)
{
    char name[sizeof(UDP_NAME_PREFIX) + UDP_NAME_DIGITS] = UDP_NAME_PREFIX;
    struct sockaddr_un address;
    socklen_t length;
    struct probe *probe;
    int fd;

    memcpy(name + sizeof(UDP_NAME_PREFIX) - 1, digits, UDP_NAME_DIGITS);
    if (probe_count == PROBES_MAX || port_owner_is_own_name(digits) || is_probed(digits))
        return;
    length = unix_name_address(name, &address);
    fd = fd_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return;
    probe = connect(fd, (struct sockaddr *)&address, length) < 0 ? NULL : calloc(1, sizeof(*probe));
    if (!probe) { /* listener closed, or its backlog is full */
        fd_close(fd);
        return;
    }
    probe->source.fd = fd;
    probe->source.ready = reply_ready;
    memcpy(probe->digits, digits, sizeof(probe->digits));
    probe->deadline = sys_now() + PROBE_TIMEOUT;
    list_push_back(&probes, &probe->node);
    probe_count++;
    if (!send_first_request(probe))
        probe_free(probe);
}

void discovery_begin(void)
{
    int saved = errno, error;

    discovery_end();
    port_has_owner = socket_port_uid(&port_uid) == 0;
    error = unix_names_visit(UDP_NAME_PREFIX, UDP_NAME_DIGITS, start_probe, NULL);
    if (error)
        log_warn("cannot find the processes that share UDP port 4791: reading /proc/net/unix: %s",
                 strerror(-error));
    errno = saved;
    if (!discovery_is_running())
        port_discovery_ended();
}

void discovery_expire(ns_t now)
{
    bool any = false;

    list_for_each_safe (node, following, &probes) {
        struct probe *probe = list_entry(node, struct probe, node);

        if (probe->deadline > now)
            continue;
        log_warn("UDP port 4791: process %d (uid %u) did not answer within 2 s (stopped?)",
                 (int)probe->peer.pid, (unsigned)probe->peer.uid);
        probe_free(probe);
        any = true;
    }
    if (any && !discovery_is_running())
        port_discovery_ended();
}

ns_t discovery_deadline(void)
{
    return discovery_is_running() ? list_entry(probes.next, struct probe, node)->deadline : NS_NEVER;
}

void discovery_after_fork_in_child(void)
{
    list_init(&probes); /* leaked: the helper thread may have been changing the list at the fork */
    probe_count = 0;
}
