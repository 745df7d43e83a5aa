/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The connector's side of the handshake: connect, HELLO, WELCOME, READY. Helper thread. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "local/handshake_internal.h"
#include "local/names.h"
#include "local/reference.h"
#include "local/start.h"

#define RETRY_AFTER (5 * NS_PER_MS)
#define CROWD_AFTER 16u /* times as long, at most: others wait, too */

const char *handshake_target(const struct handshake *handshake, char buffer[static 24])
{
    if (handshake->search)
        return handshake->search->text;
    snprintf(buffer, 24, "QPNs 0x%04x00 and up", handshake->block);
    return buffer;
}

void handshake_retry_later(struct handshake *handshake)
{
    handshake_set_coming(handshake, false);
    event_close(&handshake->socket);
    link_free(handshake->link);
    handshake->link = NULL;
    handshake->retry_at = sys_now() + RETRY_AFTER;
}

/* Each process of the crowd for another time. */
static ns_t crowd_pause(void)
{
    uint8_t random;

    sys_random(&random, sizeof(random));
    return RETRY_AFTER * (1 + random % CROWD_AFTER);
}

void handshake_retry_or_fail(struct handshake *handshake, int error)
{
    char buffer[24];

    /* The owner closed the connection: it died, lacks something, or dropped the oldest handshakes. The next connection
     * attempt shows which. */
    if (error == -ECONNRESET || error == -EPIPE)
        error = -EAGAIN;
    if (error_may_pass(error) && sys_now() - handshake->began < handshake_timeout) {
        if (error != -EAGAIN && !handshake->has_warned)
            log_warn("no shared-memory link to the owner of %s yet: %s; trying again for %llu s",
                     handshake_target(handshake, buffer), strerror(-error),
                     (unsigned long long)(handshake_timeout / NS_PER_S));
        handshake->has_warned |= error != -EAGAIN;
        handshake_retry_later(handshake);
        if (error == -ETOOMANYREFS) {
            handshake_is_crowded();
            handshake->retry_at += crowd_pause();
        }
        return;
    }
    /* Refused: nobody has the name. */
    if (error != -ECONNREFUSED)
        log_warn("no shared-memory link to the owner of %s: %s; QPs here cannot reach it",
                 handshake_target(handshake, buffer), strerror(-error));
    handshake_fail(handshake);
}

/* 0 or -errno; -EAGAIN: the owner's listen backlog is full. */
static int open_connection(struct handshake *handshake)
{
    char block[LOCAL_BLOCK_NAME_MAX + 1];
    int fd;

    local_block_name(handshake->block, block);
    fd = names_connect(handshake->search ? handshake->search->text : block);
    if (fd < 0)
        return fd;
    handshake->socket.fd = fd;
    return 0;
}

static int send_hello(struct handshake *handshake)
{
    struct handshake_message hello;
    void *memory;
    int memory_fd, error;

    if (!peer_credentials(handshake->socket.fd, &handshake->peer))
        return -errno;
    error = handshake_want_sender(handshake->socket.fd, true);
    if (error)
        return error;
    error = link_memory_create(&memory_fd, &memory);
    if (error)
        return error;
    handshake->link = link_new(memory, true);
    if (!handshake->link) {
        sys_munmap(memory, LAYOUT_SIZE);
        fd_close(memory_fd);
        return -ENOMEM;
    }
    handshake_permit_copies(&handshake->peer);
    handshake_message_fill(&hello, HANDSHAKE_HELLO, HANDSHAKE_OK, false);
    handshake_tell_own_user(&handshake->peer, &hello);
    if (handshake_is_pending(&handshakes_incoming, HANDSHAKE_READY, &handshake->peer))
        hello.flags |= HANDSHAKE_ACCEPTED;
    error = handshake_message_send(handshake->socket.fd, &hello, memory_fd);
    fd_close(memory_fd); /* the mapping keeps the memory */
    handshake->awaits = HANDSHAKE_WELCOME;
    return error ? error : event_add(&handshake->socket, EPOLLIN);
}

void handshake_connect(struct handshake *handshake)
{
    int error;

    if (!handshake_may_connect()) {
        handshake_wait_from_now(handshake); /* nobody has been asked yet */
        handshake->retry_at = handshake->began + RETRY_AFTER;
        return;
    }
    handshake->retry_at = NS_NEVER;
    error = open_connection(handshake);
    if (!error && handshake->search) {
        /* No rundown section: only this thread takes links down. */
        struct link *link = names_link_behind(handshake->socket.fd);

        if (link) {
            handshake_finish(handshake, link);
            return;
        }
    }
    if (!error)
        error = send_hello(handshake);
    if (error)
        handshake_retry_or_fail(handshake, error);
}

/* WELCOME with result KNOWN: the two processes have a link already. */
static void use_known_link(struct handshake *handshake, const struct handshake_message *welcome)
{
    uint64_t identity;
    struct link *link = NULL;

    if (peer_identity(handshake->socket.fd, &identity) == 0)
        link = link_find(welcome->instance, identity, handshake->peer.uid);
    /* Without a link here, the peer's READY is still on its way, or the peer has not seen yet that its link is
     * down. */
    if (link)
        handshake_finish(handshake, link);
    else
        handshake_retry_later(handshake);
}

static void install_welcomed_link(struct handshake *handshake, const struct handshake_message *welcome)
{
    struct link *link = handshake->link;
    struct handshake_message ready;
    int error = handshake_set_link_peer(handshake, welcome);

    if (error) {
        handshake_retry_or_fail(handshake, error);
        return;
    }
    link->may_refer = handshake_peer_may_refer(&handshake->peer, welcome);
    link->may_pull = handshake_probe(&handshake->peer, welcome);
    handshake_message_fill(&ready, HANDSHAKE_READY, HANDSHAKE_OK, link->may_pull);
    handshake_tell_own_user(&handshake->peer, &ready);
    handshake_set_coming(handshake, true);
    error = handshake_message_send(handshake->socket.fd, &ready, -1);
    if (!error)
        error = handshake_install_link(handshake);
    if (error)
        handshake_retry_or_fail(handshake, error);
    else
        handshake_finish(handshake, link);
}

/* The kernel's word about the peer is about the process that called listen(), and a descriptor of the listener may
 * have been given away: the owner of UDP port 4791 gets one as a proof. Of two processes outside of our pid namespace
 * only the user is known. */
static bool is_from_owner(const struct handshake *handshake, pid_t sender)
{
    if (sender == handshake->peer.pid)
        return true;
    log_warn(
        "handshake: process %d answered on the socket of process %d (impersonation, or a socket that was "
        "given away): shared-memory link refused",
        (int)sender, (int)handshake->peer.pid);
    return false;
}

void handshake_receive_welcome(struct handshake *handshake, const struct handshake_message *welcome,
                               pid_t sender)
{
    char buffer[24];
    int error;

    if (!is_from_owner(handshake, sender)) {
        handshake_fail(handshake);
        return;
    }
    error = handshake_want_sender(handshake->socket.fd, false);
    if (error) {
        handshake_retry_or_fail(handshake, error);
        return;
    }
    switch (welcome->result) {
    case HANDSHAKE_OK:
        install_welcomed_link(handshake, welcome);
        return;
    case HANDSHAKE_KNOWN:
        use_known_link(handshake, welcome);
        return;
    default:
        log_warn("handshake: process %d, owner of %s, refused the shared-memory link: its log has the reason",
                 (int)handshake->peer.pid, handshake_target(handshake, buffer));
        handshake_fail(handshake);
    }
}
