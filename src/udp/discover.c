/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Calls everybody on this host who listens for those that share the port. Helper thread; never waits. */
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

/* Names may be somebody's decoys; whom we do not call now may be called next time, for the list has no order.
 */
#define CALLS_MAX    128
#define CALL_TIMEOUT (2 * NS_PER_S) /* stopped, perhaps; others answer */

struct call {
    struct event_source source;
    struct list node;
    struct ucred peer;
    ns_t deadline;
    char digits[UDP_NAME_DIGITS]; /* of the name */
};

static struct list calls = {&calls, &calls};
static unsigned call_count;

static void call_free(struct call *call)
{
    event_close(&call->source);
    list_remove(&call->node);
    call_count--;
    free(call);
}

bool discovery_is_running(void)
{
    return !list_empty(&calls);
}

void discovery_end(void)
{
    while (discovery_is_running())
        call_free(list_entry(calls.next, struct call, node));
}

static void answered(struct event_source *source, uint32_t events)
{
    struct call *call = container_of(source, struct call, source);
    int fds[UDP_MESSAGE_FDS], error;
    struct udp_message message;
    unsigned fd_count;
    bool kept = false;

    error = udp_message_receive(source->fd, UDP_MESSAGE_REPLY, &message, fds, &fd_count);

    if (error == -EAGAIN)
        return;
    if (error && error != -ECONNRESET)
        log_warn("UDP port 4791: process %d (uid %u) has an incompatible protocol version",
                 (int)call->peer.pid, (unsigned)call->peer.uid);
    list_remove(&call->node); /* whatever happens next, it is over */
    call_count--;
    if (!error)
        kept = port_reply_received(&call->peer, &message, fds, fd_count, source);
    for (unsigned i = 0; i < fd_count; i++)
        fd_close(fds[i]);
    if (kept)
        event_forget(source);
    else
        event_close(source);
    free(call);
    if (!discovery_is_running())
        port_discovery_ended();
}

static bool say_hello(struct call *call)
{
    const struct udp_message message = {
        .magic = UDP_MESSAGE_MAGIC,
        .version = UDP_MESSAGE_VERSION,
        .type = UDP_MESSAGE_REQUEST,
        .flags = shards_are_there() ? 0 : UDP_MESSAGE_WANTS_DESCRIPTOR_SET,
    };
    socklen_t length = sizeof(call->peer);
    int forwarding_socket = forwarding_open();

    if (forwarding_socket < 0 ||
        getsockopt(call->source.fd, SOL_SOCKET, SO_PEERCRED, &call->peer, &length) < 0)
        return false;
    port_peer_found(&call->peer);
    /* It is going to put there what it reads for us. */
    return udp_message_send(call->source.fd, &message, &forwarding_socket, 1) == 0 &&
           event_add(&call->source, EPOLLIN) == 0;
}

/* The list names a listener and every connection to it. */
static bool is_called(const char *digits)
{
    list_for_each (node, &calls) {
        if (memcmp(list_entry(node, struct call, node)->digits, digits, UDP_NAME_DIGITS) == 0)
            return true;
    }
    return false;
}

static void start_call(const char *digits, void *argument)
{
    char name[sizeof(UDP_NAME_PREFIX) + UDP_NAME_DIGITS] = UDP_NAME_PREFIX;
    struct sockaddr_un address;
    socklen_t length;
    struct call *call;
    int fd;

    memcpy(name + sizeof(UDP_NAME_PREFIX) - 1, digits, UDP_NAME_DIGITS);
    if (call_count == CALLS_MAX || port_owner_is_own_name(digits) || is_called(digits))
        return;
    length = unix_name_address(name, &address);
    fd = fd_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return;
    call = connect(fd, (struct sockaddr *)&address, length) < 0 ? NULL : calloc(1, sizeof(*call));
    if (!call) { /* gone, or too many call it */
        fd_close(fd);
        return;
    }
    call->source.fd = fd;
    call->source.ready = answered;
    memcpy(call->digits, digits, sizeof(call->digits));
    call->deadline = sys_now() + CALL_TIMEOUT;
    list_push_back(&calls, &call->node);
    call_count++;
    if (!say_hello(call))
        call_free(call);
}

void discovery_begin(void)
{
    int saved = errno, error;

    discovery_end();
    error = unix_names_visit(UDP_NAME_PREFIX, UDP_NAME_DIGITS, start_call, NULL);
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

    list_for_each_safe (node, following, &calls) {
        struct call *call = list_entry(node, struct call, node);

        if (call->deadline > now)
            continue;
        log_warn("UDP port 4791: process %d (uid %u) did not answer within 2 s (stopped?)",
                 (int)call->peer.pid, (unsigned)call->peer.uid);
        call_free(call);
        any = true;
    }
    if (any && !discovery_is_running())
        port_discovery_ended();
}

ns_t discovery_deadline(void)
{
    return discovery_is_running() ? list_entry(calls.next, struct call, node)->deadline : NS_NEVER;
}

void discovery_after_fork_in_child(void)
{
    list_init(&calls); /* lost: the list may have been half linked */
    call_count = 0;
}
