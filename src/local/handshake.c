/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Handshakes of both directions: creation and end, dispatch of messages, timeouts. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "local/control.h"
#include "local/handshake_internal.h"
#include "local/reference.h"
#include "local/start.h"

/* How long a message may take. An incoming connection without HELLO is closed then. A handshake that
 * awaits READY is no longer waited for by local threads, and ends at handshake_timeout. An outgoing one is
 * logged as pending. */
#define MESSAGE_TIMEOUT  (2 * NS_PER_S)
#define OUTGOING_AT_ONCE 64u

/* A peer that does not answer is stopped or waits for a processor, and comes back as a rule. After this time the
 * owner counts as missing, and requests to its QPs fail by the timeout and retry count of their QP; with a timeout
 * of 0 they wait for ever. */
ns_t handshake_timeout = 20 * NS_PER_S;

struct list handshakes_outgoing = {&handshakes_outgoing, &handshakes_outgoing};
struct list handshakes_incoming = {&handshakes_incoming, &handshakes_incoming};
unsigned handshakes_outgoing_count, handshakes_incoming_count;

/* How many outgoing handshakes have a connection at once. The kernel bounds the descriptors that all processes of a
 * user have sent and that are not received (ETOOMANYREFS), and each HELLO has one: processes that start together
 * share that bound. */
static unsigned at_once = OUTGOING_AT_ONCE;

static _Atomic unsigned coming; /* handshakes with is_coming; only the helper thread writes */
static bool settled;            /* `coming` has decreased since the last ops->settled() */

bool local_link_is_coming(void)
{
    return atomic_load_explicit(&coming, memory_order_acquire) > 0; /* partner: handshake_set_coming() */
}

void handshake_after_fork_in_child(void)
{
    /* The handshakes themselves are leaked: the parent may have been linking one when it forked. */
    list_init(&handshakes_outgoing);
    list_init(&handshakes_incoming);
    handshakes_outgoing_count = handshakes_incoming_count = 0;
    handshake_accept_after_fork_in_child();
    at_once = OUTGOING_AT_ONCE;
    atomic_store_explicit(&coming, 0, memory_order_relaxed);
    settled = false;
}

/* --- creation and end ----------------------------------------------------------------------------------- */

void handshake_wait_from_now(struct handshake *handshake)
{
    handshake->began = sys_now();
    handshake->deadline = handshake->began + MESSAGE_TIMEOUT;
}

struct handshake *handshake_new(bool is_outgoing, uint32_t block)
{
    struct handshake *handshake = calloc(1, sizeof(*handshake));

    if (!handshake)
        return NULL;
    handshake->socket.fd = -1;
    handshake->socket.ready = handshake_ready;
    handshake->is_outgoing = is_outgoing;
    handshake->block = block;
    handshake_wait_from_now(handshake);
    handshake->retry_at = NS_NEVER;
    list_push_back(is_outgoing ? &handshakes_outgoing : &handshakes_incoming, &handshake->node);
    if (is_outgoing)
        handshakes_outgoing_count++;
    else
        handshakes_incoming_count++;
    return handshake;
}

static void handshake_free(struct handshake *handshake)
{
    handshake_set_coming(handshake, false);
    if (handshake->is_outgoing)
        handshakes_outgoing_count--;
    else
        handshakes_incoming_count--;
    list_remove(&handshake->node);
    event_close(&handshake->socket);
    link_free(handshake->link);
    free(handshake->search);
    free(handshake);
}

void handshake_finish(struct handshake *handshake, struct link *link)
{
    uint64_t cookie = handshake->search ? handshake->search->cookie : 0;
    bool is_name = handshake->search != NULL;
    uint32_t block = handshake->block;

    if (link && at_once < OUTGOING_AT_ONCE)
        at_once++;
    handshake_free(handshake);
    if (is_name)
        local.ops->found(cookie, link);
    else
        lookup_finish(block, link);
}

void handshake_fail(struct handshake *handshake)
{
    if (handshake->is_outgoing)
        handshake_finish(handshake, NULL);
    else
        handshake_free(handshake);
}

int handshake_install_link(struct handshake *handshake)
{
    struct link *link = handshake->link;
    int error;

    link->socket.fd = handshake->socket.fd;
    error = link_install(link);
    if (error) {
        link->socket.fd = -1; /* handshake_free() closes it */
        return error;
    }
    event_forget(&handshake->socket);
    handshake->link = NULL;
    return 0;
}

/* --- links that the peer may have before this process does ---------------------------------------------- */

void handshake_set_coming(struct handshake *handshake, bool is_coming)
{
    if (handshake->is_coming == is_coming)
        return;
    handshake->is_coming = is_coming;
    if (is_coming) {
        atomic_fetch_add_explicit(&coming, 1, memory_order_relaxed); /* the send that follows orders it */
    } else {
        /* Release: a thread that sees the count decreased sees the installed link. Partner: local_link_is_coming(). */
        atomic_fetch_sub_explicit(&coming, 1, memory_order_release);
        settled = true;
    }
}

void handshake_report_settled(void)
{
    if (likely(!settled))
        return;
    settled = false;
    if (local.ops->settled)
        local.ops->settled();
}

/* --- the peer ------------------------------------------------------------------------------------------- */

void handshake_permit_copies(const struct ucred *peer)
{
    if (local.mechanism != MECHANISM_RING && reference_same_user(peer->uid) &&
        (!local.ops->expects_copies || local.ops->expects_copies()))
        reference_permit();
}

void handshake_tell_own_user(const struct ucred *peer, struct handshake_message *message)
{
    if (reference_same_user(peer->uid))
        handshake_message_add_private(message);
}

bool handshake_probe(const struct ucred *peer, const struct handshake_message *message)
{
    return local.mechanism != MECHANISM_RING && (message->flags & HANDSHAKE_MAY_PROBE) &&
           reference_same_user(peer->uid) && reference_probe(peer->pid, message);
}

bool handshake_peer_may_refer(const struct ucred *peer, const struct handshake_message *message)
{
    return local.mechanism != MECHANISM_RING && (message->flags & HANDSHAKE_CAN_READ) &&
           reference_same_user(peer->uid);
}

int handshake_set_link_peer(struct handshake *handshake, const struct handshake_message *message)
{
    struct link *link = handshake->link;
    int pidfd = peer_pidfd(handshake->socket.fd, handshake->peer.pid);

    if (error_may_pass(pidfd))
        return pidfd;

    link->peer_pid = handshake->peer.pid;
    link->peer_uid = handshake->peer.uid;
    memcpy(link->instance, message->instance, sizeof(link->instance));
    link->peer_segment = (int)(min_of(message->segment, (uint32_t)INT32_MAX)) - 1;
    link->pidfd.fd = pidfd;
    link->identity = process_identity(pidfd, handshake->peer.pid);
    return 0;
}

bool handshake_is_pending(const struct list *handshakes, enum handshake_type awaits, const struct ucred *peer)
{
    list_for_each (node, handshakes) {
        const struct handshake *handshake = list_entry(node, struct handshake, node);

        if (handshake->socket.fd >= 0 && handshake->awaits == awaits && peer->pid > 0 &&
            handshake->peer.pid == peer->pid && handshake->peer.uid == peer->uid)
            return true;
    }
    return false;
}

/* --- messages ------------------------------------------------------------------------------------------- */

/* A process can repeat a failing handshake without limit, so each combination of process and error is logged once. */
static void log_failure(const struct handshake *handshake, int error)
{
    static struct log_once failures; /* helper thread */
    uint64_t cause = (uint64_t)(uint32_t)error << 32 | (uint32_t)handshake->peer.pid, unlogged;
    char more[80] = "";

    if (!log_first(&failures, cause, &unlogged))
        return;
    if (unlogged)
        snprintf(more, sizeof(more), "; %llu repeated failures before this one were not logged",
                 (unsigned long long)unlogged);
    log_warn("no shared-memory link with process %d (uid %u), so its QPs cannot be reached: %s%s%s",
             (int)handshake->peer.pid, (unsigned)handshake->peer.uid, strerror(-error),
             error == -EPROTO ? " (incompatible protocol version: another SoftHCA release?)" : "", more);
}

static void receive_failed(struct handshake *handshake, const struct handshake_message *message, int error)
{
    /* Normal: local_is_owner(), local_name_is_held() and local_name_find() connect only to learn who
     * listens, and handshake_connect() finds that the link exists; they close at once. */
    if (handshake->awaits == HANDSHAKE_HELLO && error == -ECONNRESET) {
        handshake_fail(handshake);
        return;
    }
    if (handshake->is_outgoing && error != -EPROTO) {
        handshake_retry_or_fail(handshake, error);
        return;
    }
    log_failure(handshake, error);
    /* A peer of another version gets an explicit refusal: after a plain close it would retry at once, for each of
     * our blocks. */
    if (error == -EPROTO && handshake->awaits == HANDSHAKE_HELLO && message->magic == HANDSHAKE_MAGIC)
        handshake_refuse(handshake, HANDSHAKE_REFUSED);
    else
        handshake_fail(handshake);
}

void handshake_ready(struct event_source *source, uint32_t events)
{
    struct handshake *handshake = container_of(source, struct handshake, socket);
    struct handshake_message message = {0};
    int memory_fd = -1;
    pid_t sender;
    int error = handshake_message_receive(source->fd, handshake->awaits, &message, &memory_fd, &sender);

    if (error == -EAGAIN) {
        fd_close(memory_fd);
        return;
    }
    if (error == -EPROTO && handshake->awaits == HANDSHAKE_HELLO &&
        handshake_message_is_segment_request(&message)) {
        fd_close(memory_fd);
        handshake_serve_segment_request(handshake);
        return;
    }
    if (error == -EPROTO && handshake->awaits == HANDSHAKE_HELLO &&
        handshake_message_is_control_request(&message)) {
        struct control_request request;

        memcpy(&request, &message, sizeof(request));
        control_receive(handshake, &request, memory_fd);
        return;
    }
    if (error) {
        fd_close(memory_fd);
        receive_failed(handshake, &message, error);
        return;
    }
    switch (handshake->awaits) {
    case HANDSHAKE_HELLO:
        handshake_receive_hello(handshake, &message, memory_fd);
        break;
    case HANDSHAKE_WELCOME:
        handshake_receive_welcome(handshake, &message, sender);
        break;
    case HANDSHAKE_READY:
        handshake_receive_ready(handshake, &message);
        break;
    }
    fd_close(memory_fd);
}

/* --- begin and timeouts --------------------------------------------------------------------------------- */

bool handshake_can_begin(void)
{
    return handshakes_outgoing_count < at_once;
}

bool handshake_may_connect(void)
{
    unsigned connected = 0;

    list_for_each (node, &handshakes_outgoing)
        connected += list_entry(node, struct handshake, node)->socket.fd >= 0;
    return connected < at_once;
}

void handshake_is_crowded(void)
{
    at_once = max_of(at_once / 2, 1u);
}

void handshake_begin(uint32_t block, struct name_search *search)
{
    struct handshake *handshake = handshake_new(true, block);

    if (handshake) {
        handshake->search = search;
        handshake_connect(handshake);
    } else if (search) {
        local.ops->found(search->cookie, NULL);
        free(search);
    } else {
        lookup_finish(block, NULL);
    }
}

static bool is_in(const struct list *handshakes, const struct handshake *wanted)
{
    list_for_each (node, handshakes) {
        if (list_entry(node, struct handshake, node) == wanted)
            return true;
    }
    return false;
}

/* One that has ended may be followed by another at once: its owner has other names to look for. */
bool handshake_goes_on(struct handshake *handshake)
{
    const struct list *handshakes = handshake->is_outgoing ? &handshakes_outgoing : &handshakes_incoming;
    const enum handshake_type awaits = handshake->awaits;

    if (handshake->socket.fd < 0)
        return false;
    handshake_ready(&handshake->socket, EPOLLIN);
    return !is_in(handshakes, handshake) || handshake->awaits != awaits || handshake->socket.fd < 0;
}

static void expire_incoming(struct handshake *handshake, ns_t now)
{
    if (handshake->deadline > now || handshake_goes_on(handshake))
        return;
    if (handshake->awaits == HANDSHAKE_READY && now - handshake->began < handshake_timeout) {
        handshake->deadline = now + MESSAGE_TIMEOUT;
        /* The peer is stopped between WELCOME and READY: threads no longer wait for its link. */
        handshake_set_coming(handshake, false);
        return;
    }
    log_warn("handshake timed out: process %d (uid %u) connected and did not finish the handshake",
             (int)handshake->peer.pid, (unsigned)handshake->peer.uid);
    handshake_fail(handshake);
}

static void expire_outgoing(struct handshake *handshake, ns_t now)
{
    char buffer[24];

    if (handshake->deadline > now) {
        if (handshake->retry_at <= now)
            handshake_connect(handshake);
        return;
    }
    if (handshake_goes_on(handshake))
        return;
    if (now - handshake->began < handshake_timeout) {
        log_info("handshake with the owner of %s pending for %llu ms, still waiting",
                 handshake_target(handshake, buffer),
                 (unsigned long long)((now - handshake->began) / NS_PER_MS));
        handshake->deadline = now + MESSAGE_TIMEOUT;
        return;
    }
    log_warn(
        "handshake timed out: the owner of %s did not answer within %llu ms (stopped, or in a debugger?)",
        handshake_target(handshake, buffer), (unsigned long long)(handshake_timeout / NS_PER_MS));
    handshake_fail(handshake);
}

void handshake_expire(void)
{
    ns_t now;

    if (list_empty(&handshakes_outgoing) && list_empty(&handshakes_incoming) &&
        handshake_accept_again_at() == NS_NEVER && !lookups_any())
        return;
    now = sys_now();
    list_for_each_safe (node, following, &handshakes_incoming)
        expire_incoming(list_entry(node, struct handshake, node), now);
    list_for_each_safe (node, following, &handshakes_outgoing)
        expire_outgoing(list_entry(node, struct handshake, node), now);
    handshake_resume_accepting(now);
    lookups_begin();
}

ns_t handshake_deadline(void)
{
    ns_t earliest = handshake_accept_again_at();

    list_for_each (node, &handshakes_incoming)
        earliest = min_of(earliest, list_entry(node, struct handshake, node)->deadline);
    list_for_each (node, &handshakes_outgoing) {
        const struct handshake *handshake = list_entry(node, struct handshake, node);

        earliest = min_of(earliest, handshake->deadline);
        earliest = min_of(earliest, handshake->retry_at);
    }
    return earliest;
}
