/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Names on this host. A name is an abstract unix socket on which its holder listens, like the name of a block; a
 * process that connects there can set up a link by a handshake. Mostly the two processes have a link already: the
 * kernel says without the holder's help who listens (SO_PEERCRED), and the connection is closed again. */
#include "local/names.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/unix_names.h"
#include "local/block_names.h"
#include "local/handshake.h"
#include "local/handshake_message.h"
#include "local/start.h"

/* text comes from this process, not from a peer. */
socklen_t names_address(const char *text, struct sockaddr_un *ret_address)
{
    char name[sizeof(NAME_PREFIX) + LOCAL_NAME_MAX];

    snprintf(name, sizeof(name), NAME_PREFIX "%s", text);
    return unix_name_address(name, ret_address);
}

struct local_name {
    struct event_source listener;
    struct list node, by_text; /* by_text: in own_names, as long as the name is held */
    char text[LOCAL_NAME_MAX + 1];
    /* Held while connections are accepted and while the socket is closed, because the program may reuse the number of
     * a closed descriptor at once. */
    struct lock lock;
};

static struct lock names_lock = LOCK_INIT; /* guards all variables below; outside of local_name.lock */
static struct list names = {&names, &names}, released = {&released, &released};
static bool watching = true;
#define OWN_BUCKETS 64u
static struct list own_names[OWN_BUCKETS]; /* by hash of the text; next is NULL before the first */

/* ended_lock is a leaf. It guards names_ended, and that of every link (ring_control). */
static struct lock ended_lock = LOCK_INIT;
static uint32_t names_ended = 1;

/* Holders of names that local_name_find() has found. */
struct finding {
    char text[LOCAL_NAME_MAX + 1];
    uint64_t link; /* link_serial() */
    uint32_t
        ended; /* ring_control.names_ended of the holder before it was found there again; 0: found once */
};
#define FINDINGS 8                            /* a program has connections to few services at a time */
static struct lock findings_lock = LOCK_INIT; /* leaf */
static struct finding findings[FINDINGS];
static unsigned next_finding;

void names_after_fork_in_child(void)
{
    lock_init(&names_lock);
    lock_init(&ended_lock);
    lock_init(&findings_lock);
    memset(findings, 0, sizeof(findings));
    /* Their elements are leaked: another thread may have been linking one. */
    list_init(&names);
    list_init(&released);
    memset(own_names, 0, sizeof(own_names));
    watching = true;
}

static struct local_name *name_of(struct list *node)
{
    return list_entry(node, struct local_name, node);
}

void names_watch(bool watch)
{
    lock_acquire(&names_lock);
    watching = watch;
    list_for_each (node, &names)
        event_change(&name_of(node)->listener, watch ? EPOLLIN : 0);
    lock_release(&names_lock);
}

void names_free_released(void)
{
    struct list *node;

    lock_acquire(&names_lock);
    while ((node = list_pop_front(&released)))
        free(name_of(node));
    lock_release(&names_lock);
}

void names_tell(struct link *link, void *unused)
{
    (void)unused;
    lock_acquire(&ended_lock);
    atomic_store_explicit(&link->lanes[0].writer.control->names_ended, names_ended, memory_order_release);
    lock_release(&ended_lock);
}

/* --- own names ------------------------------------------------------------------------------------------ */

static void listener_ready(struct event_source *source, uint32_t events)
{
    struct local_name *name = container_of(source, struct local_name, listener);
    bool descriptors_are_short;

    lock_acquire(&name->lock);
    descriptors_are_short = source->fd >= 0 && !handshake_accept_some(source);
    lock_release(&name->lock);
    if (descriptors_are_short)
        handshake_pause_accepting();
}

/* FNV-1a. names_lock held. */
static struct list *bucket_of(const char *text)
{
    struct list *bucket;
    uint32_t hash = 2166136261u;

    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * 16777619u;
    bucket = &own_names[hash % OWN_BUCKETS];
    if (!bucket->next)
        list_init(bucket);
    return bucket;
}

static int open_name(struct local_name *name, const char *text)
{
    struct sockaddr_un address;
    socklen_t length = names_address(text, &address);
    int fd = fd_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), error = 0;

    if (fd < 0)
        return -errno;
    if (bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, LISTEN_MAX) < 0)
        error = -errno;
    name->listener.fd = fd;
    name->listener.ready = listener_ready;
    if (!error)
        error = event_add(&name->listener, watching ? EPOLLIN : 0);
    if (error)
        fd_close(fd);
    return error;
}

int local_name_take(const char *text, struct local_name **ret_name)
{
    struct local_name *name = calloc(1, sizeof(*name));
    int error, saved = errno;

    if (!name)
        return -ENOMEM;
    snprintf(name->text, sizeof(name->text), "%s", text);
    lock_acquire(&names_lock);
    error = open_name(name, text);
    if (!error) {
        list_push_back(&names, &name->node);
        list_push_back(bucket_of(text), &name->by_text);
    }
    lock_release(&names_lock);
    errno = saved;
    if (error) {
        free(name);
        return error;
    }
    *ret_name = name;
    return 0;
}

/* A link that is installed meanwhile tells the new number itself, or is found. */
static void tell_that_a_name_ends(void)
{
    lock_acquire(&ended_lock);
    names_ended++;
    lock_release(&ended_lock);
    local_for_each_link(names_tell, NULL);
}

void local_name_release(struct local_name *name)
{
    if (!name)
        return;
    lock_acquire(&names_lock);
    tell_that_a_name_ends();
    list_remove(&name->node);
    list_remove(&name->by_text);
    lock_acquire(&name->lock);
    event_close_now(&name->listener);
    lock_release(&name->lock);
    /* The helper thread may be about to call listener_ready(). */
    list_push_back(&released, &name->node);
    lock_release(&names_lock);
}

/* --- names of other processes --------------------------------------------------------------------------- */

int names_connect(const char *text)
{
    struct sockaddr_un address;
    socklen_t length = names_address(text, &address);
    int fd = fd_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    struct ucred holder;
    uid_t uid;

    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&address, length) < 0) {
        int error = -errno;

        fd_close(fd);
        return error;
    }
    /* Any user can take a name with the uid of another one. */
    if (block_name_uid(text, &uid) && !(peer_credentials(fd, &holder) && holder.uid == uid)) {
        fd_close(fd);
        return -ECONNREFUSED;
    }
    return fd;
}

/* False if the peer has died and its process number may belong to another process, although the helper thread has not
 * taken the link down yet. */
static bool is_alive(const struct link *link)
{
    struct pollfd death = {.fd = link->pidfd.fd, .events = POLLIN};

    if (link->is_self)
        return true;
    if (link->pidfd.fd < 0) /* before Linux 5.3 the closed socket has to do */
        return event_is_intact(&link->socket) && link_peer_is_there(link);
    return event_is_intact(&link->pidfd) && sys_poll_now(&death, 1) == 0;
}

struct link *names_link_behind(int fd)
{
    uint64_t identity;
    struct link *link = peer_identity(fd, &identity) == 0 ? link_find_process(identity) : NULL;

    return link && is_alive(link) ? link : NULL;
}

bool local_name_is_held(const char *text)
{
    int saved = errno, fd = names_connect(text);

    fd_close(fd);
    errno = saved;
    return fd >= 0 || fd == -EAGAIN;
}

/* --- holders that were found before --------------------------------------------------------------------- */

/* A connection to the name costs both processes several system calls. */

/* What the holder says; 0: nothing that is believed. Another user may keep what is no longer his. */
static uint32_t ended_names_of(const struct link *link)
{
    return link->is_self || link->is_of_other_user
               ? 0
               : atomic_load_explicit(&link->lanes[0].reader.control->names_ended, memory_order_acquire);
}

/* findings_lock held. NULL: none. */
static struct finding *finding_of(const char *text)
{
    for (unsigned i = 0; i < FINDINGS; i++) {
        if (findings[i].link && strcmp(findings[i].text, text) == 0)
            return &findings[i];
    }
    return NULL;
}

static struct finding recall(const char *text)
{
    struct finding copy = {0}, *finding;

    lock_acquire(&findings_lock);
    finding = finding_of(text);
    if (finding)
        copy = *finding;
    lock_release(&findings_lock);
    return copy;
}

/* ended: what the holder said before the name was found there; 0: not known. */
static void remember(const char *text, const struct link *link, uint32_t ended)
{
    struct finding *finding;

    lock_acquire(&findings_lock);
    finding = finding_of(text);
    if (!finding)
        finding = &findings[next_finding++ % FINDINGS];
    *finding = (struct finding){.link = link_serial(link), .ended = ended};
    snprintf(finding->text, sizeof(finding->text), "%s", text);
    lock_release(&findings_lock);
}

/* Is it a name of this process? Then nobody has to be asked; the socket is looked at, because the program may have
 * closed it. */
static bool is_own(const char *text)
{
    struct event_source listener = {.fd = -1};

    lock_acquire(&names_lock);
    list_for_each (node, bucket_of(text)) {
        const struct local_name *name = list_entry(node, struct local_name, by_text);

        if (strcmp(name->text, text) == 0) {
            listener = name->listener;
            break;
        }
    }
    lock_release(&names_lock);
    return listener.fd >= 0 && event_is_intact(&listener);
}

struct link *local_name_recall(const char *text)
{
    if (is_own(text))
        return local_link_of_serial(local_self_serial());

    struct finding finding = recall(text);
    struct link *link = finding.ended ? local_link_of_serial(finding.link) : NULL;

    return link && ended_names_of(link) == finding.ended && is_alive(link) ? link : NULL;
}

int local_name_find(const char *text, struct link **ret_link)
{
    struct finding before = recall(text);
    struct link *expected = before.link ? local_link_of_serial(before.link) : NULL;
    /* Read before the name is found: a name that ends afterwards changes it. */
    uint32_t ended = expected ? ended_names_of(expected) : 0;
    int saved = errno, fd = names_connect(text);

    if (fd >= 0) {
        *ret_link = names_link_behind(fd);
        fd_close(fd);
        fd = *ret_link ? 0 : -EAGAIN;
    }
    if (!fd)
        remember(text, *ret_link, *ret_link == expected ? ended : 0);
    errno = saved;
    return fd;
}
