/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/handshake.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sys.h"
#include "local/blocks.h"
#include "local/handshake_message.h"
#include "local/names.h"
#include "local/reference.h"
#include "local/start.h"

#define MESSAGE_TIMEOUT  (2 * NS_PER_S) /* of a connection that says nothing */
#define RETRY_AFTER      (5 * NS_PER_MS)
#define ACCEPT_PAUSE     (100 * NS_PER_MS)
#define OUTGOING_AT_ONCE 64
#define INCOMING_AT_ONCE 128
#define ACCEPTS_AT_ONCE  64
/* More than one happens across pid namespaces when both ends connect at once. */
#define LINKS_PER_PROCESS 8
/* What other users, and processes that we do not see, may take of our descriptors and memory. */
#define LINKS_OF_OTHERS 512

/* An owner that does not answer is stopped, or waits for a processor behind many others: what it does not
 * know of is not lost. Only after so long is it as good as missing, and the QP's own limits decide (with a
 * timeout of 0, nobody ever does). */
ns_t handshake_timeout = 20 * NS_PER_S;

/* A handshake that is going on. Helper thread. */
struct handshake {
    struct event_source socket;
    struct list node; /* in outgoing or incoming, oldest first */
    bool is_outgoing;
    enum handshake_type awaits;
    uint32_t block;             /* that is looked for, unless it is: */
    struct name_search *search; /* a name; NULL: a block */
    ns_t began;
    ns_t deadline, retry_at; /* retry_at: NS_NEVER while there is a socket */
    struct ucred peer;
    struct link *link; /* being made; NULL before */
    bool is_coming;    /* counted in coming: the other end may have the link already */
};

static struct list outgoing = {&outgoing, &outgoing}, incoming = {&incoming, &incoming};
static unsigned outgoing_count, incoming_count;
static ns_t accept_again = NS_NEVER;
static _Atomic unsigned coming; /* written by the helper thread alone */
static bool settled;            /* it has become less since ops->settled() was told */

bool local_link_is_coming(void)
{
    return atomic_load_explicit(&coming, memory_order_acquire) > 0; /* partner: set_coming() */
}

void handshake_after_fork_in_child(void)
{
    /* The handshakes themselves are lost: the list may have been half linked when the parent forked. */
    list_init(&outgoing);
    list_init(&incoming);
    outgoing_count = incoming_count = 0;
    accept_again = NS_NEVER;
    atomic_store_explicit(&coming, 0, memory_order_relaxed);
    settled = false;
}

/* --- handshakes --------------------------------------------------------------------------------------------
 */

static void handshake_ready(struct event_source *source, uint32_t events);

static struct handshake *handshake_new(bool is_outgoing, uint32_t block)
{
    struct handshake *handshake = calloc(1, sizeof(*handshake));

    if (!handshake)
        return NULL;
    handshake->socket.fd = -1;
    handshake->socket.ready = handshake_ready;
    handshake->is_outgoing = is_outgoing;
    handshake->block = block;
    handshake->began = sys_now();
    handshake->deadline = handshake->began + MESSAGE_TIMEOUT;
    handshake->retry_at = NS_NEVER;
    list_push_back(is_outgoing ? &outgoing : &incoming, &handshake->node);
    if (is_outgoing)
        outgoing_count++;
    else
        incoming_count++;
    return handshake;
}

/* True before the word that lets the other end have its link is sent; false when ours is in place, or is not
 * going to be. The lock of a name may be held. */
static void set_coming(struct handshake *handshake, bool is_coming)
{
    if (handshake->is_coming == is_coming)
        return;
    handshake->is_coming = is_coming;
    if (is_coming) {
        atomic_fetch_add_explicit(&coming, 1, memory_order_relaxed); /* sending orders it */
    } else {
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

static void handshake_free(struct handshake *handshake)
{
    set_coming(handshake, false);
    if (handshake->is_outgoing)
        outgoing_count--;
    else
        incoming_count--;
    list_remove(&handshake->node);
    event_close(&handshake->socket);
    link_free(handshake->link);
    free(handshake->search);
    free(handshake);
}

/* What is looked for, for messages. */
static const char *wanted_name(const struct handshake *handshake, char buffer[static 24])
{
    if (handshake->search)
        return handshake->search->text;
    snprintf(buffer, 24, "QPN block %04x", handshake->block);
    return buffer;
}

/* Ends a handshake of ours: what was looked for is behind `link`, or nobody that we can reach has it. */
static void answer(struct handshake *handshake, struct link *link)
{
    uint64_t cookie = handshake->search ? handshake->search->cookie : 0;
    bool is_name = handshake->search != NULL;
    uint32_t block = handshake->block;

    handshake_free(handshake);
    if (is_name)
        local.ops->found(cookie, link);
    else
        requests_answer(block, link);
}

/* Ends a handshake without a link. */
static void give_up(struct handshake *handshake)
{
    if (handshake->is_outgoing)
        answer(handshake, NULL);
    else
        handshake_free(handshake);
}

static void try_again_later(struct handshake *handshake)
{
    event_close(&handshake->socket);
    link_free(handshake->link);
    handshake->link = NULL;
    handshake->retry_at = sys_now() + RETRY_AFTER;
}

/* The link takes over the socket. False: it could not be, and is freed with the handshake. */
static bool hand_over(struct handshake *handshake)
{
    struct link *link = handshake->link;
    int error;

    link->socket.fd = handshake->socket.fd;
    error = link_install(link);
    if (error) {
        log_warn("cannot set up the link to process %d: %s", (int)handshake->peer.pid, strerror(-error));
        link->socket.fd = -1; /* still the handshake's */
        return false;
    }
    event_forget(&handshake->socket);
    handshake->link = NULL;
    return true;
}

/* We may read and write the other's memory. */
static bool probe(const struct ucred *peer, const struct handshake_message *message)
{
    return local.mechanism != MECHANISM_RING && (message->flags & HANDSHAKE_MAY_PROBE) &&
           reference_same_user(peer->uid) && reference_probe(peer->pid, message);
}

static void name_peer(struct link *link, const struct handshake *handshake,
                      const struct handshake_message *message)
{
    link->peer_pid = handshake->peer.pid;
    link->peer_uid = handshake->peer.uid;
    memcpy(link->instance, message->instance, sizeof(link->instance));
    link->peer_segment = (int)(min_of(message->segment, (uint32_t)INT32_MAX)) - 1;
    link->pidfd.fd = peer_pidfd(handshake->socket.fd, handshake->peer.pid);
}

/* A handshake with that process is at that point. Processes whose number we do not see cannot be told apart.
 */
static bool going_on(const struct list *handshakes, enum handshake_type awaits, const struct ucred *peer)
{
    list_for_each (node, handshakes) {
        const struct handshake *handshake = list_entry(node, struct handshake, node);

        if (handshake->socket.fd >= 0 && handshake->awaits == awaits && peer->pid > 0 &&
            handshake->peer.pid == peer->pid && handshake->peer.uid == peer->uid)
            return true;
    }
    return false;
}

/* --- connector -------------------------------------------------------------------------------------------
 */

/* 0; -EAGAIN: the owner has too many connections that it has not looked at. */
static int open_connection(struct handshake *handshake)
{
    char buffer[24], block[LOCAL_BLOCK_NAME_MAX + 1];
    int fd;

    local_block_name(handshake->block, block);
    fd = names_connect(handshake->search ? handshake->search->text : block);
    if (fd < 0) {
        if (fd != -EAGAIN && fd != -ECONNREFUSED)
            log_warn("cannot connect to the owner of %s: %s", wanted_name(handshake, buffer), strerror(-fd));
        return fd;
    }
    handshake->socket.fd = fd;
    return 0;
}

static int say_hello(struct handshake *handshake)
{
    struct handshake_message hello;
    void *memory;
    int memory_fd, error;

    if (!peer_credentials(handshake->socket.fd, &handshake->peer))
        return -errno;
    error = link_memory_create(&memory_fd, &memory);
    if (error) {
        log_error("cannot create the shared memory of the link to process %d: %s", (int)handshake->peer.pid,
                  strerror(-error));
        return error;
    }
    handshake->link = link_new(memory, true);
    if (!handshake->link) {
        sys_munmap(memory, LAYOUT_SIZE);
        fd_close(memory_fd);
        return -ENOMEM;
    }
    if (local.mechanism != MECHANISM_RING && reference_same_user(handshake->peer.uid))
        reference_permit();
    handshake_message_fill(&hello, HANDSHAKE_HELLO, HANDSHAKE_OK, false);
    if (going_on(&incoming, HANDSHAKE_READY, &handshake->peer))
        hello.flags |= HANDSHAKE_ACCEPTED;
    error = handshake_message_send(handshake->socket.fd, &hello, memory_fd);
    fd_close(memory_fd); /* the mapping keeps the memory */
    handshake->awaits = HANDSHAKE_WELCOME;
    return error ? error : event_add(&handshake->socket, EPOLLIN);
}

static void start_connection(struct handshake *handshake)
{
    int error;

    handshake->retry_at = NS_NEVER;
    error = open_connection(handshake);
    if (error == -EAGAIN) {
        try_again_later(handshake);
        return;
    }
    if (!error && handshake->search) {
        /* Without a rundown section: this thread is the one that takes links down. */
        struct link *link = names_link_behind(handshake->socket.fd);

        if (link) {
            answer(handshake, link);
            return;
        }
    }
    if (!error)
        error = say_hello(handshake);
    if (error)
        give_up(handshake);
}

static void welcomed(struct handshake *handshake, const struct handshake_message *welcome)
{
    struct link *link = handshake->link;
    struct handshake_message ready;
    char buffer[24];

    switch (welcome->result) {
    case HANDSHAKE_KNOWN:
        link = link_find(welcome->instance, handshake->peer.pid, handshake->peer.uid);
        if (!link) {
            /* We have not heard of it yet, or the other end has not heard yet that it is down. */
            try_again_later(handshake);
            return;
        }
        answer(handshake, link);
        return;
    case HANDSHAKE_OK:
        break;
    default:
        log_warn("handshake: process %d, owner of %s, refused the link (too many links, or the shared memory "
                 "was not accepted: see its log)",
                 (int)handshake->peer.pid, wanted_name(handshake, buffer));
        give_up(handshake);
        return;
    }
    name_peer(link, handshake, welcome);
    link->may_refer = local.mechanism != MECHANISM_RING && (welcome->flags & HANDSHAKE_CAN_READ) &&
                      reference_same_user(handshake->peer.uid);
    link->may_pull = probe(&handshake->peer, welcome);
    handshake_message_fill(&ready, HANDSHAKE_READY, HANDSHAKE_OK, link->may_pull);
    set_coming(handshake, true);
    if (handshake_message_send(handshake->socket.fd, &ready, -1) != 0 || !hand_over(handshake)) {
        give_up(handshake);
        return;
    }
    answer(handshake, link);
}

bool handshake_can_begin(void)
{
    return outgoing_count < OUTGOING_AT_ONCE;
}

void handshake_begin(uint32_t block, struct name_search *search)
{
    struct handshake *handshake = handshake_new(true, block);

    if (handshake) {
        handshake->search = search;
        start_connection(handshake);
    } else if (search) {
        local.ops->found(search->cookie, NULL);
        free(search);
    } else {
        requests_answer(block, NULL);
    }
}

/* --- acceptor --------------------------------------------------------------------------------------------
 */

/* A link to that process exists, or is made as soon as it says READY. */
static bool known(const struct handshake *except, const struct handshake_message *hello)
{
    if (link_find(hello->instance, except->peer.pid, except->peer.uid))
        return true;
    list_for_each (node, &incoming) {
        const struct handshake *other = list_entry(node, struct handshake, node);

        if (other != except && other->awaits == HANDSHAKE_READY && other->peer.pid == except->peer.pid &&
            other->peer.uid == except->peer.uid &&
            memcmp(other->link->instance, hello->instance, sizeof(hello->instance)) == 0)
            return true;
    }
    return false;
}

/* Both say HELLO at once. One of the two counts, for both sides the same one: what goes through two links
 * comes in no order. */
static bool crosses_ours(const struct handshake *handshake, const struct handshake_message *hello)
{
    return going_on(&outgoing, HANDSHAKE_WELCOME, &handshake->peer) &&
           ((hello->flags & HANDSHAKE_ACCEPTED) ||
            memcmp(local.instance, hello->instance, INSTANCE_BYTES) < 0);
}

/* Bounds what one process, or all other users together, can make us hold. */
static bool too_many(const struct ucred *peer)
{
    unsigned of_pid, of_others;

    link_count(peer->pid, &of_pid, &of_others);
    if (of_pid < LINKS_PER_PROCESS &&
        ((peer->uid == geteuid() && peer->pid > 0) || of_others < LINKS_OF_OTHERS))
        return false;
    log_warn("handshake: link from process %d (uid %u) refused: limit reached (%d links per process, %d of "
             "other users)",
             (int)peer->pid, (unsigned)peer->uid, LINKS_PER_PROCESS, LINKS_OF_OTHERS);
    return true;
}

static void refuse(struct handshake *handshake, enum handshake_result result)
{
    struct handshake_message welcome;

    handshake_message_fill(&welcome, HANDSHAKE_WELCOME, result, false);
    /* If it cannot be sent the connector sees the end of the socket. */
    (void)handshake_message_send(handshake->socket.fd, &welcome, -1);
    give_up(handshake);
}

static void greeted(struct handshake *handshake, const struct handshake_message *hello, int memory_fd)
{
    struct handshake_message welcome;
    void *memory;
    int error;

    if (known(handshake, hello) || crosses_ours(handshake, hello)) {
        refuse(handshake, HANDSHAKE_KNOWN);
        return;
    }
    if (too_many(&handshake->peer)) {
        refuse(handshake, HANDSHAKE_REFUSED);
        return;
    }
    error = link_memory_accept(memory_fd, &memory);
    if (error) {
        log_error("handshake: shared memory of process %d (uid %u) rejected (not a sealed memfd of the right "
                  "size?): %s",
                  (int)handshake->peer.pid, (unsigned)handshake->peer.uid, strerror(-error));
        refuse(handshake, HANDSHAKE_REFUSED);
        return;
    }
    handshake->link = link_new(memory, false);
    if (!handshake->link) {
        sys_munmap(memory, LAYOUT_SIZE);
        refuse(handshake, HANDSHAKE_REFUSED);
        return;
    }
    name_peer(handshake->link, handshake, hello);
    if (local.mechanism != MECHANISM_RING && reference_same_user(handshake->peer.uid))
        reference_permit();
    handshake->link->may_pull = probe(&handshake->peer, hello);
    handshake_message_fill(&welcome, HANDSHAKE_WELCOME, HANDSHAKE_OK, handshake->link->may_pull);
    handshake->awaits = HANDSHAKE_READY;
    /* Who waits for links waits for its own user's: another could hold it up again and again. */
    set_coming(handshake, reference_same_user(handshake->peer.uid));
    if (handshake_message_send(handshake->socket.fd, &welcome, -1) != 0)
        give_up(handshake);
}

static void confirmed(struct handshake *handshake, const struct handshake_message *ready)
{
    handshake->link->may_refer = local.mechanism != MECHANISM_RING && (ready->flags & HANDSHAKE_CAN_READ) &&
                                 reference_same_user(handshake->peer.uid);
    if (memcmp(ready->instance, handshake->link->instance, sizeof(ready->instance)) != 0)
        log_error("handshake: instance ID of process %d changed between HELLO and READY, link refused",
                  (int)handshake->peer.pid);
    else
        hand_over(handshake);
    give_up(handshake);
}

/* Somebody wants to see what we publish. It shows what ptrace would: so to our own user and root only, and
 * not where the program has forbidden that (PR_SET_DUMPABLE). */
static void show(struct handshake *handshake)
{
    bool allowed =
        (reference_same_user(handshake->peer.uid) || handshake->peer.uid == 0) && prctl(PR_GET_DUMPABLE) == 1;
    int fd = allowed ? fd_own(local.ops->published()) : -1;

    if (fd < 0)
        log_info("process %d (uid %u) was refused access to the published segment (other user, or "
                 "PR_SET_DUMPABLE is 0)",
                 (int)handshake->peer.pid, (unsigned)handshake->peer.uid);
    /* If it cannot be sent, whoever asked sees the end of the socket. */
    (void)greeting_answer_segment_request(handshake->socket.fd, fd >= 0 ? SEGMENT_GRANTED : SEGMENT_REFUSED,
                                          fd);
    fd_close(fd);
    give_up(handshake);
}

void handshake_pause_accepting(void)
{
    log_error("cannot accept connections: out of file descriptors or memory; next try in 100 ms");
    blocks_watch(false); /* else it would be reported again at once */
    names_watch(false);
    accept_again = sys_now() + ACCEPT_PAUSE;
}

bool handshake_accept_some(struct event_source *listener)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = fd_own(accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
        struct handshake *handshake;

        if (fd < 0)
            return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
        /* The oldest has had its chance: a crowd that says nothing cannot keep others out. */
        if (incoming_count >= INCOMING_AT_ONCE)
            give_up(list_entry(incoming.next, struct handshake, node));
        handshake = handshake_new(false, 0);
        if (!handshake) {
            fd_close(fd);
            return true;
        }
        handshake->socket.fd = fd;
        handshake->awaits = HANDSHAKE_HELLO;
        if (!peer_credentials(fd, &handshake->peer) || event_add(&handshake->socket, EPOLLIN) != 0)
            give_up(handshake);
        else
            handshake_ready(&handshake->socket, EPOLLIN); /* it may have spoken, or asked only who is here */
    }
    return true;
}

void handshake_accept(struct event_source *listener, uint32_t events)
{
    if (!handshake_accept_some(listener))
        handshake_pause_accepting();
}

/* --- progress --------------------------------------------------------------------------------------------
 */

/* A process can fail in its handshake as often as it likes: it is told of once. Helper thread. */
static void tell_failure(const struct handshake *handshake, int error)
{
    static struct log_once failures;
    uint64_t cause = (uint64_t)(uint32_t)error << 32 | (uint32_t)handshake->peer.pid, untold;
    char more[80] = "";

    if (!log_first(&failures, cause, &untold))
        return;
    if (untold)
        snprintf(more, sizeof(more), "; %llu repeated failures before this one were not logged",
                 (unsigned long long)untold);
    log_warn("handshake with process %d (uid %u) failed: %s%s%s", (int)handshake->peer.pid,
             (unsigned)handshake->peer.uid, strerror(-error),
             error == -EPROTO ? " (incompatible protocol version: another SoftHCA release?)" : "", more);
}

static void handshake_ready(struct event_source *source, uint32_t events)
{
    struct handshake *handshake = container_of(source, struct handshake, socket);
    struct handshake_message message = {0};
    int memory_fd = -1;
    int error = handshake_message_receive(source->fd, handshake->awaits, &message, &memory_fd);

    if (error == -EAGAIN) {
        fd_close(memory_fd);
        return;
    }
    if (error == -EPROTO && handshake->awaits == HANDSHAKE_HELLO && greeting_is_segment_request(&message)) {
        fd_close(memory_fd);
        show(handshake);
        return;
    }
    if (error) {
        fd_close(memory_fd);
        /* Somebody wanted to know who holds the name, and knows us. */
        if (handshake->awaits == HANDSHAKE_HELLO && error == -ECONNRESET) {
            give_up(handshake);
            return;
        }
        /* The owner has closed it, dead or overworked: connecting again tells. What it said wrong counts. */
        if (handshake->is_outgoing && (error == -ECONNRESET || error == -EPIPE) &&
            sys_now() - handshake->began < handshake_timeout) {
            try_again_later(handshake);
            return;
        }
        tell_failure(handshake, error);
        /* An end of the socket without a word would be tried again at once, for each block of ours. */
        if (error == -EPROTO && handshake->awaits == HANDSHAKE_HELLO && message.magic == HANDSHAKE_MAGIC)
            refuse(handshake, HANDSHAKE_REFUSED);
        else
            give_up(handshake);
        return;
    }
    switch (handshake->awaits) {
    case HANDSHAKE_HELLO:
        greeted(handshake, &message, memory_fd);
        break;
    case HANDSHAKE_WELCOME:
        welcomed(handshake, &message);
        break;
    case HANDSHAKE_READY:
        confirmed(handshake, &message);
        break;
    }
    fd_close(memory_fd);
}

void handshake_expire(void)
{
    ns_t now;

    if (list_empty(&outgoing) && list_empty(&incoming) && accept_again == NS_NEVER && !requests_any())
        return;
    now = sys_now();
    list_for_each_safe (node, following, &incoming) {
        struct handshake *handshake = list_entry(node, struct handshake, node);

        if (handshake->deadline > now)
            continue;
        if (handshake->awaits == HANDSHAKE_READY && now - handshake->began < handshake_timeout) {
            handshake->deadline = now + MESSAGE_TIMEOUT;
            set_coming(handshake, false); /* stopped: nobody waits any longer */
            continue;
        }
        log_warn("handshake timed out: process %d (uid %u) connected and did not finish the handshake",
                 (int)handshake->peer.pid, (unsigned)handshake->peer.uid);
        give_up(handshake);
    }
    list_for_each_safe (node, following, &outgoing) {
        struct handshake *handshake = list_entry(node, struct handshake, node);
        char buffer[24];

        if (handshake->deadline <= now && now - handshake->began < handshake_timeout) {
            log_info("handshake with the owner of %s pending for %llu ms, still waiting",
                     wanted_name(handshake, buffer),
                     (unsigned long long)((now - handshake->began) / NS_PER_MS));
            handshake->deadline = now + MESSAGE_TIMEOUT;
        } else if (handshake->deadline <= now) {
            log_warn("handshake timed out: the owner of %s did not answer within %llu ms (stopped, or in a "
                     "debugger?)",
                     wanted_name(handshake, buffer), (unsigned long long)(handshake_timeout / NS_PER_MS));
            give_up(handshake);
        } else if (handshake->retry_at <= now) {
            start_connection(handshake);
        }
    }
    if (accept_again <= now) {
        accept_again = NS_NEVER;
        blocks_watch(true);
        names_watch(true);
    }
    requests_begin();
}

ns_t handshake_deadline(void)
{
    ns_t earliest = accept_again;

    list_for_each (node, &incoming)
        earliest = min_of(earliest, list_entry(node, struct handshake, node)->deadline);
    list_for_each (node, &outgoing) {
        const struct handshake *handshake = list_entry(node, struct handshake, node);

        earliest = min_of(earliest, handshake->deadline);
        earliest = min_of(earliest, handshake->retry_at);
    }
    return earliest;
}
