/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The acceptor's side of the handshake: accept, HELLO, WELCOME, READY; and requests for the published segment, which
 * come on the same sockets. Helper thread. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "local/blocks.h"
#include "local/handshake_internal.h"
#include "local/names.h"
#include "local/ptrace_access.h"
#include "local/reference.h"
#include "local/start.h"

#define ACCEPT_PAUSE    (100 * NS_PER_MS)
#define ACCEPTS_AT_ONCE 64
/* Two processes in different pid namespaces can end up with more than one link if they connect at the same time. */
#define LINKS_PER_PROCESS 8

static ns_t accept_again = NS_NEVER;

/* --- HELLO ---------------------------------------------------------------------------------------------- */

/* True if a link to that process is installed, or will be when its READY arrives. identity: of that process. */
static bool is_known(const struct handshake *except, const struct handshake_message *hello, uint64_t identity)
{
    if (link_find(hello->instance, identity, except->peer.uid))
        return true;
    list_for_each (node, &handshakes_incoming) {
        const struct handshake *other = list_entry(node, struct handshake, node);

        if (other != except && other->awaits == HANDSHAKE_READY && other->peer.pid == except->peer.pid &&
            other->peer.uid == except->peer.uid &&
            memcmp(other->link->instance, hello->instance, sizeof(hello->instance)) == 0)
            return true;
    }
    return false;
}

/* Both processes sent HELLO at once. Both keep the same one of the two links, by comparison of the instance IDs:
 * packets that travel through two links have no order. */
static bool crosses_outgoing(const struct handshake *handshake, const struct handshake_message *hello)
{
    return handshake_is_pending(&handshakes_outgoing, HANDSHAKE_WELCOME, &handshake->peer) &&
           ((hello->flags & HANDSHAKE_ACCEPTED) ||
            memcmp(local.instance, hello->instance, INSTANCE_BYTES) < 0);
}

/* Also the links count that will be installed when READY arrives: the process may send all its HELLOs first. */
static unsigned coming_from(pid_t pid)
{
    unsigned count = 0;

    list_for_each (node, &handshakes_incoming) {
        const struct handshake *handshake = list_entry(node, struct handshake, node);

        /* 0: outside our pid namespace, as in link_count() */
        count += handshake->awaits == HANDSHAKE_READY && pid > 0 && handshake->peer.pid == pid;
    }
    return count;
}

static bool exceeds_limits(const struct ucred *peer)
{
    if (link_count(peer->pid) + coming_from(peer->pid) < LINKS_PER_PROCESS)
        return false;
    log_warn("handshake: shared-memory link from process %d (uid %u) refused: there may be at most %d with "
             "one process",
             (int)peer->pid, (unsigned)peer->uid, LINKS_PER_PROCESS);
    return true;
}

/* Processes outside our pid namespace may be of a container, whose users are not ours by number alone. */
static bool is_counted(const struct ucred *peer)
{
    return !reference_same_user(peer->uid) || peer->pid <= 0;
}

void handshake_refuse(struct handshake *handshake, enum handshake_result result)
{
    struct handshake_message welcome;

    handshake_message_fill(&welcome, HANDSHAKE_WELCOME, result, false);
    /* If the send fails, the connector sees the end of the socket. */
    (void)handshake_message_send(handshake->socket.fd, &welcome, -1);
    handshake_fail(handshake);
}

/* Creates handshake->link over the connector's memory. 0 or -errno. */
static int create_link(struct handshake *handshake, int memory_fd)
{
    void *memory;
    int error = link_memory_accept(memory_fd, &memory);

    if (error_may_pass(error))
        return error;
    if (error) {
        log_error("handshake: shared memory of process %d (uid %u) rejected (not a sealed memfd of the right "
                  "size?): %s",
                  (int)handshake->peer.pid, (unsigned)handshake->peer.uid, strerror(-error));
        return error;
    }
    handshake->link = link_new(memory, false);
    if (handshake->link)
        return 0;
    sys_munmap(memory, LAYOUT_SIZE);
    return -ENOMEM;
}

/* Refuses for good, or closes the connection: the connector then tries again. */
static void cannot_accept(struct handshake *handshake, int error)
{
    if (error_may_pass(error)) {
        log_warn("cannot accept the shared-memory link of process %d (uid %u) now: %s",
                 (int)handshake->peer.pid, (unsigned)handshake->peer.uid, strerror(-error));
        handshake_fail(handshake);
    } else {
        handshake_refuse(handshake, HANDSHAKE_REFUSED);
    }
}

void handshake_receive_hello(struct handshake *handshake, const struct handshake_message *hello,
                             int memory_fd)
{
    struct handshake_message welcome;
    uint64_t identity;
    int error = peer_identity(handshake->socket.fd, &identity);

    if (error) {
        cannot_accept(handshake, error);
        return;
    }
    if (is_known(handshake, hello, identity) || crosses_outgoing(handshake, hello)) {
        handshake_refuse(handshake, HANDSHAKE_KNOWN);
        return;
    }
    if (exceeds_limits(&handshake->peer)) {
        handshake_refuse(handshake, HANDSHAKE_REFUSED);
        return;
    }
    error = create_link(handshake, memory_fd);
    if (!error)
        error = handshake_set_link_peer(handshake, hello);
    if (error) {
        cannot_accept(handshake, error);
        return;
    }
    if (is_counted(&handshake->peer) && !link_charge(handshake->link)) {
        handshake_refuse(handshake, HANDSHAKE_REFUSED);
        return;
    }
    handshake_permit_copies(&handshake->peer);
    handshake->link->may_pull = handshake_probe(&handshake->peer, hello);
    handshake_message_fill(&welcome, HANDSHAKE_WELCOME, HANDSHAKE_OK, handshake->link->may_pull);
    handshake_tell_own_user(&handshake->peer, &welcome);
    handshake->awaits = HANDSHAKE_READY;
    /* Only processes of our own user count as coming: another user could delay the waiting threads for ever. */
    handshake_set_coming(handshake, reference_same_user(handshake->peer.uid));
    if (handshake_message_send(handshake->socket.fd, &welcome, -1) != 0)
        handshake_fail(handshake);
}

/* --- READY ---------------------------------------------------------------------------------------------- */

void handshake_receive_ready(struct handshake *handshake, const struct handshake_message *ready)
{
    int error = 0;

    handshake->link->may_refer = handshake_peer_may_refer(&handshake->peer, ready);
    if (memcmp(ready->instance, handshake->link->instance, sizeof(ready->instance)) != 0)
        log_error("handshake: messages of process %d contradict each other (a bug there, or an attack): "
                  "shared-memory link refused",
                  (int)handshake->peer.pid);
    else
        error = handshake_install_link(handshake);
    if (error)
        log_warn("cannot set up the shared-memory link to process %d: %s", (int)handshake->peer.pid,
                 strerror(-error));
    handshake_fail(handshake); /* frees the handshake; an installed link is no longer part of it */
}

/* --- requests for the published segment ----------------------------------------------------------------- */

/* The segment shows what ptrace(2) would show. Processes of our pid namespace, and root's, open it through /proc. */
void handshake_serve_segment_request(struct handshake *handshake)
{
    int files[SEGMENT_REQUEST_FILES];
    bool granted = ptrace_access_of_peer(handshake->socket.fd) && local.ops->published(files) == 0;

    for (unsigned i = 0; granted && i < SEGMENT_REQUEST_FILES; i++)
        files[i] = fd_own(files[i]);
    if (!granted)
        log_info(
            "process %d (uid %u) may not read the SoftHCA state of this process, because its ptrace access "
            "cannot be verified (required: both processes have the same user, group, user namespace and "
            "capabilities, and this one is dumpable); communication does not need it",
            (int)handshake->peer.pid, (unsigned)handshake->peer.uid);
    /* If the send fails, the requester sees the end of the socket. */
    (void)handshake_answer_segment_request(handshake->socket.fd, granted ? SEGMENT_GRANTED : SEGMENT_REFUSED,
                                           granted ? files : NULL);
    for (unsigned i = 0; granted && i < SEGMENT_REQUEST_FILES; i++)
        fd_close(files[i]);
    handshake_fail(handshake);
}

/* --- listeners ------------------------------------------------------------------------------------------ */

void handshake_pause_accepting(void)
{
    log_error("cannot accept shared-memory links: out of file descriptors (ulimit -n) or memory; next try in "
              "100 ms");
    blocks_watch(false); /* epoll would report the listeners again at once */
    names_watch(false);
    accept_again = sys_now() + ACCEPT_PAUSE;
}

void handshake_resume_accepting(ns_t now)
{
    if (accept_again > now)
        return;
    accept_again = NS_NEVER;
    blocks_watch(true);
    names_watch(true);
}

ns_t handshake_accept_again_at(void)
{
    return accept_again;
}

void handshake_accept_after_fork_in_child(void)
{
    accept_again = NS_NEVER;
}

static unsigned incoming_of(uid_t uid)
{
    unsigned count = 0;

    list_for_each (node, &handshakes_incoming)
        count += list_entry(node, struct handshake, node)->peer.uid == uid;
    return count;
}

/* The oldest handshake of the user who has the most, so that silent connections in any number keep no other user out.
 * Of these one that awaits HELLO, if there is any. */
static struct handshake *choose_victim(void)
{
    struct handshake *victim = NULL;
    unsigned most = 0;

    list_for_each (node, &handshakes_incoming) {
        struct handshake *handshake = list_entry(node, struct handshake, node);
        unsigned count = incoming_of(handshake->peer.uid);

        if (count > most || (count == most && victim->peer.uid == handshake->peer.uid &&
                             victim->awaits == HANDSHAKE_READY && handshake->awaits == HANDSHAKE_HELLO)) {
            victim = handshake;
            most = count;
        }
    }
    return victim;
}

/* A message that has come is read first: where many processes connect at once, this thread is late, and not they. A
 * connector that has sent READY has the link, and takes its end for the end of this process. */
static void make_room(void)
{
    while (handshakes_incoming_count >= HANDSHAKES_INCOMING_MAX) {
        struct handshake *victim = choose_victim();

        if (handshake_goes_on(victim))
            continue;
        log_info("%u processes have connected and did not finish the handshake: the connection of process %d "
                 "(uid %u) is closed",
                 handshakes_incoming_count, (int)victim->peer.pid, (unsigned)victim->peer.uid);
        handshake_fail(victim);
    }
}

bool handshake_accept_some(struct event_source *listener)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = fd_own(accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
        struct handshake *handshake;

        if (fd < 0)
            return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
        if (handshakes_incoming_count >= HANDSHAKES_INCOMING_MAX)
            make_room();
        handshake = handshake_new(false, 0);
        if (!handshake) {
            fd_close(fd);
            return true;
        }
        handshake->socket.fd = fd;
        handshake->awaits = HANDSHAKE_HELLO;
        if (!peer_credentials(fd, &handshake->peer) || event_add(&handshake->socket, EPOLLIN) != 0)
            handshake_fail(handshake);
        else
            handshake_ready(&handshake->socket, EPOLLIN); /* HELLO, or the end of the socket, may be there */
    }
    return true;
}

void handshake_accept(struct event_source *listener, uint32_t events)
{
    if (!handshake_accept_some(listener))
        handshake_pause_accepting();
}
