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

#define GREETING_TIMEOUT (2 * NS_PER_S) /* of a connection that says nothing */
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
ns_t rendezvous_patience = 20 * NS_PER_S;

/* A greeting that is going on. Helper thread. */
struct greeter {
    struct event_source socket;
    struct list node; /* in outgoing or incoming, oldest first */
    bool is_outgoing;
    enum greeting_type awaits;
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

void rendezvous_after_fork_in_child(void)
{
    /* The greeters themselves are lost: the list may have been half linked when the parent forked. */
    list_init(&outgoing);
    list_init(&incoming);
    outgoing_count = incoming_count = 0;
    accept_again = NS_NEVER;
    atomic_store_explicit(&coming, 0, memory_order_relaxed);
    settled = false;
}

/* --- greeters --------------------------------------------------------------------------------------------
 */

static void greeter_ready(struct event_source *source, uint32_t events);

static struct greeter *greeter_new(bool is_outgoing, uint32_t block)
{
    struct greeter *greeter = calloc(1, sizeof(*greeter));

    if (!greeter)
        return NULL;
    greeter->socket.fd = -1;
    greeter->socket.ready = greeter_ready;
    greeter->is_outgoing = is_outgoing;
    greeter->block = block;
    greeter->began = sys_now();
    greeter->deadline = greeter->began + GREETING_TIMEOUT;
    greeter->retry_at = NS_NEVER;
    list_push_back(is_outgoing ? &outgoing : &incoming, &greeter->node);
    if (is_outgoing)
        outgoing_count++;
    else
        incoming_count++;
    return greeter;
}

/* True before the word that lets the other end have its link is sent; false when ours is in place, or is not
 * going to be. The lock of a name may be held. */
static void set_coming(struct greeter *greeter, bool is_coming)
{
    if (greeter->is_coming == is_coming)
        return;
    greeter->is_coming = is_coming;
    if (is_coming) {
        atomic_fetch_add_explicit(&coming, 1, memory_order_relaxed); /* sending orders it */
    } else {
        atomic_fetch_sub_explicit(&coming, 1, memory_order_release);
        settled = true;
    }
}

void rendezvous_tell_settled(void)
{
    if (likely(!settled))
        return;
    settled = false;
    if (local.ops->settled)
        local.ops->settled();
}

static void greeter_free(struct greeter *greeter)
{
    set_coming(greeter, false);
    if (greeter->is_outgoing)
        outgoing_count--;
    else
        incoming_count--;
    list_remove(&greeter->node);
    event_close(&greeter->socket);
    link_free(greeter->link);
    free(greeter->search);
    free(greeter);
}

/* What is looked for, for messages. */
static const char *wanted_name(const struct greeter *greeter, char buffer[static 24])
{
    if (greeter->search)
        return greeter->search->text;
    snprintf(buffer, 24, "QPN block %04x", greeter->block);
    return buffer;
}

/* Ends a greeting of ours: what was looked for is behind `link`, or nobody that we can reach has it. */
static void answer(struct greeter *greeter, struct link *link)
{
    uint64_t cookie = greeter->search ? greeter->search->cookie : 0;
    bool is_name = greeter->search != NULL;
    uint32_t block = greeter->block;

    greeter_free(greeter);
    if (is_name)
        local.ops->found(cookie, link);
    else
        requests_answer(block, link);
}

/* Ends a greeting without a link. */
static void give_up(struct greeter *greeter)
{
    if (greeter->is_outgoing)
        answer(greeter, NULL);
    else
        greeter_free(greeter);
}

static void try_again_later(struct greeter *greeter)
{
    event_close(&greeter->socket);
    link_free(greeter->link);
    greeter->link = NULL;
    greeter->retry_at = sys_now() + RETRY_AFTER;
}

/* The link takes over the socket. False: it could not be, and is freed with the greeter. */
static bool hand_over(struct greeter *greeter)
{
    struct link *link = greeter->link;
    int error;

    link->socket.fd = greeter->socket.fd;
    error = link_install(link);
    if (error) {
        log_warn("no link to process %d: %s", (int)greeter->peer.pid, strerror(-error));
        link->socket.fd = -1; /* still the greeter's */
        return false;
    }
    event_forget(&greeter->socket);
    greeter->link = NULL;
    return true;
}

/* We may read and write the other's memory. */
static bool probe(const struct ucred *peer, const struct greeting *greeting)
{
    return local.mechanism != MECHANISM_RING && (greeting->flags & GREETING_MAY_PROBE) &&
           reference_same_user(peer->uid) && reference_probe(peer->pid, greeting);
}

static void name_peer(struct link *link, const struct greeter *greeter, const struct greeting *greeting)
{
    link->peer_pid = greeter->peer.pid;
    link->peer_uid = greeter->peer.uid;
    memcpy(link->instance, greeting->instance, sizeof(link->instance));
    link->peer_segment = (int)(min_of(greeting->segment, (uint32_t)INT32_MAX)) - 1;
    link->pidfd.fd = greeting_pidfd(greeter->socket.fd, greeter->peer.pid);
}

/* A greeting with that process is at that point. Processes whose number we do not see cannot be told apart.
 */
static bool going_on(const struct list *greeters, enum greeting_type awaits, const struct ucred *peer)
{
    list_for_each (node, greeters) {
        const struct greeter *greeter = list_entry(node, struct greeter, node);

        if (greeter->socket.fd >= 0 && greeter->awaits == awaits && peer->pid > 0 &&
            greeter->peer.pid == peer->pid && greeter->peer.uid == peer->uid)
            return true;
    }
    return false;
}

/* --- connector -------------------------------------------------------------------------------------------
 */

/* 0; -EAGAIN: the owner has too many connections that it has not looked at. */
static int open_connection(struct greeter *greeter)
{
    char buffer[24], block[LOCAL_BLOCK_NAME_MAX + 1];
    int fd;

    local_block_name(greeter->block, block);
    fd = names_connect(greeter->search ? greeter->search->text : block);
    if (fd < 0) {
        if (fd != -EAGAIN && fd != -ECONNREFUSED)
            log_warn("%s cannot be reached: %s", wanted_name(greeter, buffer), strerror(-fd));
        return fd;
    }
    greeter->socket.fd = fd;
    return 0;
}

static int say_hello(struct greeter *greeter)
{
    struct greeting hello;
    void *memory;
    int memory_fd, error;

    if (!greeting_credentials(greeter->socket.fd, &greeter->peer))
        return -errno;
    error = link_memory_create(&memory_fd, &memory);
    if (error) {
        log_error("no shared memory for a link to process %d: %s", (int)greeter->peer.pid, strerror(-error));
        return error;
    }
    greeter->link = link_new(memory, true);
    if (!greeter->link) {
        sys_munmap(memory, LAYOUT_SIZE);
        fd_close(memory_fd);
        return -ENOMEM;
    }
    if (local.mechanism != MECHANISM_RING && reference_same_user(greeter->peer.uid))
        reference_permit();
    greeting_fill(&hello, GREETING_HELLO, GREETING_OK, false);
    if (going_on(&incoming, GREETING_READY, &greeter->peer))
        hello.flags |= GREETING_ACCEPTED;
    error = greeting_send(greeter->socket.fd, &hello, memory_fd);
    fd_close(memory_fd); /* the mapping keeps the memory */
    greeter->awaits = GREETING_WELCOME;
    return error ? error : event_add(&greeter->socket, EPOLLIN);
}

static void start_connection(struct greeter *greeter)
{
    int error;

    greeter->retry_at = NS_NEVER;
    error = open_connection(greeter);
    if (error == -EAGAIN) {
        try_again_later(greeter);
        return;
    }
    if (!error && greeter->search) {
        /* Without a rundown section: this thread is the one that takes links down. */
        struct link *link = names_link_behind(greeter->socket.fd);

        if (link) {
            answer(greeter, link);
            return;
        }
    }
    if (!error)
        error = say_hello(greeter);
    if (error)
        give_up(greeter);
}

static void welcomed(struct greeter *greeter, const struct greeting *welcome)
{
    struct link *link = greeter->link;
    struct greeting ready;
    char buffer[24];

    switch (welcome->result) {
    case GREETING_KNOWN:
        link = link_find(welcome->instance, greeter->peer.pid, greeter->peer.uid);
        if (!link) {
            /* We have not heard of it yet, or the other end has not heard yet that it is down. */
            try_again_later(greeter);
            return;
        }
        answer(greeter, link);
        return;
    case GREETING_OK:
        break;
    default:
        log_warn("process %d, which has %s, does not want a link", (int)greeter->peer.pid,
                 wanted_name(greeter, buffer));
        give_up(greeter);
        return;
    }
    name_peer(link, greeter, welcome);
    link->may_refer = local.mechanism != MECHANISM_RING && (welcome->flags & GREETING_CAN_READ) &&
                      reference_same_user(greeter->peer.uid);
    link->may_pull = probe(&greeter->peer, welcome);
    greeting_fill(&ready, GREETING_READY, GREETING_OK, link->may_pull);
    set_coming(greeter, true);
    if (greeting_send(greeter->socket.fd, &ready, -1) != 0 || !hand_over(greeter)) {
        give_up(greeter);
        return;
    }
    answer(greeter, link);
}

bool rendezvous_has_room(void)
{
    return outgoing_count < OUTGOING_AT_ONCE;
}

void rendezvous_begin(uint32_t block, struct name_search *search)
{
    struct greeter *greeter = greeter_new(true, block);

    if (greeter) {
        greeter->search = search;
        start_connection(greeter);
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
static bool known(const struct greeter *except, const struct greeting *hello)
{
    if (link_find(hello->instance, except->peer.pid, except->peer.uid))
        return true;
    list_for_each (node, &incoming) {
        const struct greeter *other = list_entry(node, struct greeter, node);

        if (other != except && other->awaits == GREETING_READY && other->peer.pid == except->peer.pid &&
            other->peer.uid == except->peer.uid &&
            memcmp(other->link->instance, hello->instance, sizeof(hello->instance)) == 0)
            return true;
    }
    return false;
}

/* Both say HELLO at once. One of the two counts, for both sides the same one: what goes through two links
 * comes in no order. */
static bool crosses_ours(const struct greeter *greeter, const struct greeting *hello)
{
    return going_on(&outgoing, GREETING_WELCOME, &greeter->peer) &&
           ((hello->flags & GREETING_ACCEPTED) ||
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
    log_warn("process %d (uid %u) wants too many links", (int)peer->pid, (unsigned)peer->uid);
    return true;
}

static void refuse(struct greeter *greeter, enum greeting_result result)
{
    struct greeting welcome;

    greeting_fill(&welcome, GREETING_WELCOME, result, false);
    /* If it cannot be sent the connector sees the end of the socket. */
    (void)greeting_send(greeter->socket.fd, &welcome, -1);
    give_up(greeter);
}

static void greeted(struct greeter *greeter, const struct greeting *hello, int memory_fd)
{
    struct greeting welcome;
    void *memory;
    int error;

    if (known(greeter, hello) || crosses_ours(greeter, hello)) {
        refuse(greeter, GREETING_KNOWN);
        return;
    }
    if (too_many(&greeter->peer)) {
        refuse(greeter, GREETING_REFUSED);
        return;
    }
    error = link_memory_accept(memory_fd, &memory);
    if (error) {
        log_error("process %d (uid %u) offers memory that cannot be shared safely: %s",
                  (int)greeter->peer.pid, (unsigned)greeter->peer.uid, strerror(-error));
        refuse(greeter, GREETING_REFUSED);
        return;
    }
    greeter->link = link_new(memory, false);
    if (!greeter->link) {
        sys_munmap(memory, LAYOUT_SIZE);
        refuse(greeter, GREETING_REFUSED);
        return;
    }
    name_peer(greeter->link, greeter, hello);
    if (local.mechanism != MECHANISM_RING && reference_same_user(greeter->peer.uid))
        reference_permit();
    greeter->link->may_pull = probe(&greeter->peer, hello);
    greeting_fill(&welcome, GREETING_WELCOME, GREETING_OK, greeter->link->may_pull);
    greeter->awaits = GREETING_READY;
    /* Who waits for links waits for its own user's: another could hold it up again and again. */
    set_coming(greeter, reference_same_user(greeter->peer.uid));
    if (greeting_send(greeter->socket.fd, &welcome, -1) != 0)
        give_up(greeter);
}

static void confirmed(struct greeter *greeter, const struct greeting *ready)
{
    greeter->link->may_refer = local.mechanism != MECHANISM_RING && (ready->flags & GREETING_CAN_READ) &&
                               reference_same_user(greeter->peer.uid);
    if (memcmp(ready->instance, greeter->link->instance, sizeof(ready->instance)) != 0)
        log_error("process %d changes its name while it greets", (int)greeter->peer.pid);
    else
        hand_over(greeter);
    give_up(greeter);
}

/* Somebody wants to see what we publish. It shows what ptrace would: so to our own user and root only, and
 * not where the program has forbidden that (PR_SET_DUMPABLE). */
static void show(struct greeter *greeter)
{
    bool allowed =
        (reference_same_user(greeter->peer.uid) || greeter->peer.uid == 0) && prctl(PR_GET_DUMPABLE) == 1;
    int fd = allowed ? fd_own(local.ops->published()) : -1;

    if (fd < 0)
        log_info("process %d (uid %u) may not look at us", (int)greeter->peer.pid,
                 (unsigned)greeter->peer.uid);
    /* If it cannot be sent, whoever asked sees the end of the socket. */
    (void)greeting_answer_segment_request(greeter->socket.fd, fd >= 0 ? SEGMENT_GRANTED : SEGMENT_REFUSED,
                                          fd);
    fd_close(fd);
    give_up(greeter);
}

void rendezvous_pause_accepting(void)
{
    log_error("no descriptor for a new connection");
    blocks_watch(false); /* else it would be reported again at once */
    names_watch(false);
    accept_again = sys_now() + ACCEPT_PAUSE;
}

bool rendezvous_accept_some(struct event_source *listener)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = fd_own(accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
        struct greeter *greeter;

        if (fd < 0)
            return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
        /* The oldest has had its chance: a crowd that says nothing cannot keep others out. */
        if (incoming_count >= INCOMING_AT_ONCE)
            give_up(list_entry(incoming.next, struct greeter, node));
        greeter = greeter_new(false, 0);
        if (!greeter) {
            fd_close(fd);
            return true;
        }
        greeter->socket.fd = fd;
        greeter->awaits = GREETING_HELLO;
        if (!greeting_credentials(fd, &greeter->peer) || event_add(&greeter->socket, EPOLLIN) != 0)
            give_up(greeter);
        else
            greeter_ready(&greeter->socket, EPOLLIN); /* it may have spoken, or asked only who is here */
    }
    return true;
}

void rendezvous_accept(struct event_source *listener, uint32_t events)
{
    if (!rendezvous_accept_some(listener))
        rendezvous_pause_accepting();
}

/* --- progress --------------------------------------------------------------------------------------------
 */

/* A process can fail to greet as often as it likes: it is told of once. Helper thread. */
static void tell_failure(const struct greeter *greeter, int error)
{
    static struct log_once failures;
    uint64_t cause = (uint64_t)(uint32_t)error << 32 | (uint32_t)greeter->peer.pid, untold;
    char more[80] = "";

    if (!log_first(&failures, cause, &untold))
        return;
    if (untold)
        snprintf(more, sizeof(more), "; before, %llu times more that were told of already",
                 (unsigned long long)untold);
    log_warn("greeting with process %d (uid %u) failed: %s%s%s", (int)greeter->peer.pid,
             (unsigned)greeter->peer.uid, strerror(-error),
             error == -EPROTO ? " (does it use another version of SoftHCA?)" : "", more);
}

static void greeter_ready(struct event_source *source, uint32_t events)
{
    struct greeter *greeter = container_of(source, struct greeter, socket);
    struct greeting greeting = {0};
    int memory_fd = -1;
    int error = greeting_receive(source->fd, greeter->awaits, &greeting, &memory_fd);

    if (error == -EAGAIN) {
        fd_close(memory_fd);
        return;
    }
    if (error == -EPROTO && greeter->awaits == GREETING_HELLO && greeting_is_segment_request(&greeting)) {
        fd_close(memory_fd);
        show(greeter);
        return;
    }
    if (error) {
        fd_close(memory_fd);
        /* Somebody wanted to know who holds the name, and knows us. */
        if (greeter->awaits == GREETING_HELLO && error == -ECONNRESET) {
            give_up(greeter);
            return;
        }
        /* The owner has closed it, dead or overworked: connecting again tells. What it said wrong counts. */
        if (greeter->is_outgoing && (error == -ECONNRESET || error == -EPIPE) &&
            sys_now() - greeter->began < rendezvous_patience) {
            try_again_later(greeter);
            return;
        }
        tell_failure(greeter, error);
        /* An end of the socket without a word would be tried again at once, for each block of ours. */
        if (error == -EPROTO && greeter->awaits == GREETING_HELLO && greeting.magic == GREETING_MAGIC)
            refuse(greeter, GREETING_REFUSED);
        else
            give_up(greeter);
        return;
    }
    switch (greeter->awaits) {
    case GREETING_HELLO:
        greeted(greeter, &greeting, memory_fd);
        break;
    case GREETING_WELCOME:
        welcomed(greeter, &greeting);
        break;
    case GREETING_READY:
        confirmed(greeter, &greeting);
        break;
    }
    fd_close(memory_fd);
}

void rendezvous_expire(void)
{
    ns_t now;

    if (list_empty(&outgoing) && list_empty(&incoming) && accept_again == NS_NEVER && !requests_any())
        return;
    now = sys_now();
    list_for_each_safe (node, following, &incoming) {
        struct greeter *greeter = list_entry(node, struct greeter, node);

        if (greeter->deadline > now)
            continue;
        if (greeter->awaits == GREETING_READY && now - greeter->began < rendezvous_patience) {
            greeter->deadline = now + GREETING_TIMEOUT;
            set_coming(greeter, false); /* stopped: nobody waits any longer */
            continue;
        }
        log_warn("process %d (uid %u) connected and said nothing", (int)greeter->peer.pid,
                 (unsigned)greeter->peer.uid);
        give_up(greeter);
    }
    list_for_each_safe (node, following, &outgoing) {
        struct greeter *greeter = list_entry(node, struct greeter, node);
        char buffer[24];

        if (greeter->deadline <= now && now - greeter->began < rendezvous_patience) {
            log_info("whoever has %s has not answered yet", wanted_name(greeter, buffer));
            greeter->deadline = now + GREETING_TIMEOUT;
        } else if (greeter->deadline <= now) {
            log_warn("whoever has %s does not answer", wanted_name(greeter, buffer));
            give_up(greeter);
        } else if (greeter->retry_at <= now) {
            start_connection(greeter);
        }
    }
    if (accept_again <= now) {
        accept_again = NS_NEVER;
        blocks_watch(true);
        names_watch(true);
    }
    requests_begin();
}

ns_t rendezvous_deadline(void)
{
    ns_t earliest = accept_again;

    list_for_each (node, &incoming)
        earliest = min_of(earliest, list_entry(node, struct greeter, node)->deadline);
    list_for_each (node, &outgoing) {
        const struct greeter *greeter = list_entry(node, struct greeter, node);

        earliest = min_of(earliest, greeter->deadline);
        earliest = min_of(earliest, greeter->retry_at);
    }
    return earliest;
}
