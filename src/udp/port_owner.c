/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a process with the port's sockets does for others. Every member listens, and gives newcomers of the
 * same user the descriptor set. One of them, the warden, is whom all others keep in touch with: it reads slot 0, reads
 * for processes of other users, who cannot have the sockets, and passes on what was read by the wrong one.
 * When it dies another takes office (port.c); who reads a socket of its own does not notice.
 *
 * Trust: whoever is asked to read for a block of another user wants to see the socket by which the asker owns
 * it. */
#include <errno.h>
#include <stdio.h>
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

#define BLOCKS          65536u
#define BACKLOG         64
#define VISITORS_MAX    1024u
#define STRANGERS_MAX   256u /* of other users */
#define GROUPS_OF_ONE   64u
#define BLOCKS_OF_ONE   4096u
#define ACCEPTS_AT_ONCE 64

struct visitor {
    struct event_source source;
    struct list node;
    struct ucred peer;
    int mailbox; /* -1: it has not said hello yet */
    bool is_stranger;
    uint32_t blocks;
    struct list groups; /* struct visitor_group */
    unsigned group_count;
};

/* A group that we listen to for somebody of another user, who cannot bind the port. */
struct visitor_group {
    struct list node;
    struct reader reader;
    uint8_t gid[16];
    uint32_t ifindex;
};

static struct event_source listener = {.fd = -1};
static char own_digits[UDP_NAME_DIGITS + 1];
static struct list visitors = {&visitors, &visitors};
static unsigned visitor_count, stranger_count;
static bool in_office;
/* These two are read by threads that receive: changed under the receive lock. */
static struct visitor *owners[BLOCKS]; /* by block: who wants its packets */
static int wardens_mailbox = -1;
static bool owners_used;

/* --- handing on ---------------------------------------------------------------------------------- */

void warden_hand_on(const struct datagram *datagram, const uint8_t *bytes, bool from_mailbox)
{
    uint32_t block = (uint32_t)bytes[5] << 8 | bytes[6];

    if (owners[block])
        mailbox_put(owners[block]->mailbox, datagram, bytes);
    else if (wardens_mailbox >= 0 && !from_mailbox)
        mailbox_put(wardens_mailbox, datagram, bytes);
    else
        udp_count(&udp_counters->strangers, 1);
}

void warden_use_mailbox(int fd)
{
    int before;

    receive_lock_acquire();
    before = wardens_mailbox;
    wardens_mailbox = fd;
    receive_lock_release();
    fd_close(before);
}

/* --- visitors ------------------------------------------------------------------------------------ */

static void group_free(struct visitor *visitor, struct visitor_group *group)
{
    reader_remove(&group->reader);
    list_remove(&group->node);
    visitor->group_count--;
    free(group);
}

static struct visitor_group *find_group(struct visitor *visitor, const struct udp_message *message)
{
    list_for_each (node, &visitor->groups) {
        struct visitor_group *group = list_entry(node, struct visitor_group, node);

        if (group->ifindex == message->ifindex && memcmp(group->gid, message->group, sizeof(group->gid)) == 0)
            return group;
    }
    return NULL;
}

static int join_for(struct visitor *visitor, const struct udp_message *message)
{
    struct visitor_group *group;
    int fd, error;

    if (visitor->group_count >= GROUPS_OF_ONE)
        return -EDQUOT;
    group = calloc(1, sizeof(*group));
    fd = group ? socket_join(message->group, message->ifindex) : -ENOMEM;
    if (fd < 0) {
        free(group);
        return fd;
    }
    group->reader = (struct reader){.source.fd = fd, .is_group = true, .hand_to = visitor->mailbox};
    error = reader_add(&group->reader);
    if (error) {
        fd_close(fd);
        free(group);
        return error;
    }
    memcpy(group->gid, message->group, sizeof(group->gid));
    group->ifindex = message->ifindex;
    list_push_back(&visitor->groups, &group->node);
    visitor->group_count++;
    return 0;
}

/* What cannot be joined stays silent: the visitor lives without. */
static void change_groups(struct visitor *visitor, const struct udp_message *message)
{
    struct visitor_group *group = find_group(visitor, message);
    int error = 0;

    if (group && (message->flags & UDP_MESSAGE_LEAVE))
        group_free(visitor, group);
    if (!group && (message->flags & UDP_MESSAGE_JOIN))
        error = join_for(visitor, message);
    if (error)
        log_warn("process %d (uid %u) wants a multicast group of interface %u: %s", (int)visitor->peer.pid,
                 (unsigned)visitor->peer.uid, message->ifindex, strerror(-error));
}

static void visitor_free(struct visitor *visitor)
{
    while (!list_empty(&visitor->groups))
        group_free(visitor, list_entry(visitor->groups.next, struct visitor_group, node));
    receive_lock_acquire();
    for (uint32_t block = 0; visitor->blocks && block < BLOCKS; block++) {
        if (owners[block] != visitor)
            continue;
        owners[block] = NULL;
        visitor->blocks--;
    }
    receive_lock_release();
    visitor_count--;
    stranger_count -= visitor->is_stranger;
    list_remove(&visitor->node);
    event_close(&visitor->source);
    fd_close(visitor->mailbox);
    free(visitor);
}

static bool may_own(const struct visitor *visitor, uint32_t block, int proof)
{
    if (visitor->is_stranger)
        return visitor->blocks < BLOCKS_OF_ONE && udp_room.ops->is_proof(proof, block);
    return true; /* what processes of one user can do to each other they can do without us */
}

static void serve_block(struct visitor *visitor, uint32_t block)
{
    receive_lock_acquire();
    if (owners[block] != visitor) {
        if (owners[block])
            owners[block]->blocks--;
        owners[block] = visitor;
        owners_used = true;
        visitor->blocks++;
    }
    receive_lock_release();
    if (visitor->is_stranger)
        slots_hold(block % UDP_SLOTS, false); /* or whoever reads it hands it on */
}

static bool called(struct visitor *visitor, const struct udp_message *message, const int *fds,
                   unsigned fd_count)
{
    if (visitor->mailbox < 0) {
        if (message->block_count || fd_count != 1 || !mailbox_is_sane(fds[0]))
            return false;
        visitor->mailbox = fds[0];
        return true;
    }
    if (!in_office || fd_count != (visitor->is_stranger ? message->block_count : 0))
        return false;
    for (unsigned i = 0; i < message->block_count; i++) {
        if (!may_own(visitor, message->blocks[i], fd_count ? fds[i] : -1))
            return false;
        serve_block(visitor, message->blocks[i]);
    }
    if (message->flags & (UDP_MESSAGE_JOIN | UDP_MESSAGE_LEAVE))
        change_groups(visitor, message);
    return true;
}

static int welcome(const struct visitor *visitor, const struct udp_message *message)
{
    struct udp_message answer = {
        .magic = UDP_MESSAGE_MAGIC,
        .version = UDP_MESSAGE_VERSION,
        .type = UDP_MESSAGE_REPLY,
        .serial = message->serial,
        .flags = in_office ? UDP_MESSAGE_FROM_PORT_OWNER : 0,
    };
    unsigned fd_count = 0;
    int fds[3];

    if (message->block_count == 0 && !visitor->is_stranger) {
        if (message->flags & UDP_MESSAGE_WANTS_DESCRIPTOR_SET) {
            slots_share(fds);
            answer.flags |= UDP_MESSAGE_HAS_DESCRIPTOR_SET;
            fd_count = 2;
        }
        if (in_office) {
            fds[fd_count] = mailbox_open();
            if (fds[fd_count] < 0)
                return fds[fd_count];
            answer.flags |= UDP_MESSAGE_HAS_FORWARDING_SOCKET;
            fd_count++;
        }
    }
    return udp_message_send(visitor->source.fd, &answer, fds, fd_count);
}

static void spoke(struct event_source *source, uint32_t events)
{
    struct visitor *visitor = container_of(source, struct visitor, source);
    int fds[UDP_MESSAGE_FDS], error;
    struct udp_message message;
    unsigned fd_count;

    error = udp_message_receive(source->fd, UDP_MESSAGE_REQUEST, &message, fds, &fd_count);
    if (!error && !called(visitor, &message, fds, fd_count))
        error = -EPROTO;
    for (unsigned i = 0; i < fd_count; i++) {
        if (fds[i] != visitor->mailbox)
            fd_close(fds[i]);
    }
    if (error == -EAGAIN)
        return;
    if (!error)
        error = welcome(visitor, &message);
    if (error && error != -ECONNRESET && error != -EPIPE)
        log_warn("process %d (uid %u) asks wrongly for its packets from the network: %s",
                 (int)visitor->peer.pid, (unsigned)visitor->peer.uid, strerror(-error));
    if (error)
        visitor_free(visitor);
}

static void accept_visitor(int fd)
{
    struct visitor *visitor;
    struct ucred peer;
    socklen_t length = sizeof(peer);
    bool is_stranger;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) {
        fd_close(fd);
        return;
    }
    is_stranger = !port_is_own_user(&peer);
    visitor = visitor_count < VISITORS_MAX && (!is_stranger || stranger_count < STRANGERS_MAX)
                  ? calloc(1, sizeof(*visitor))
                  : NULL;
    if (!visitor) {
        log_warn("process %d (uid %u) is one too many who share UDP port 4791", (int)peer.pid,
                 (unsigned)peer.uid);
        fd_close(fd);
        return;
    }
    *visitor = (struct visitor){
        .source = {.fd = fd, .ready = spoke}, .peer = peer, .mailbox = -1, .is_stranger = is_stranger};
    list_init(&visitor->groups);
    list_push_back(&visitors, &visitor->node);
    visitor_count++;
    stranger_count += is_stranger;
    if (event_add(&visitor->source, EPOLLIN) != 0)
        visitor_free(visitor);
}

static void visitors_come(struct event_source *source, uint32_t events)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = fd_own(accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));

        if (fd < 0)
            return;
        accept_visitor(fd);
    }
}

/* --- being found --------------------------------------------------------------------------------- */

bool warden_is_own_name(const char digits[UDP_NAME_DIGITS])
{
    return listener.fd >= 0 && memcmp(digits, own_digits, UDP_NAME_DIGITS) == 0;
}

int warden_listen(void)
{
    char name[sizeof(UDP_NAME_PREFIX) + UDP_NAME_DIGITS];
    struct sockaddr_un address;
    int fd, error = 0, saved = errno;
    socklen_t length;
    uint64_t random;

    if (listener.fd >= 0)
        return 0;
    sys_random(&random, sizeof(random)); /* so that nobody can take the name before us */
    snprintf(own_digits, sizeof(own_digits), "%016llx", (unsigned long long)random);
    snprintf(name, sizeof(name), UDP_NAME_PREFIX "%s", own_digits);
    length = unix_name_address(name, &address);
    fd = fd_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, BACKLOG) < 0)
        error = -errno;
    listener = (struct event_source){.fd = fd, .ready = visitors_come};
    if (!error)
        error = event_add(&listener, EPOLLIN);
    if (error) {
        log_error("nobody can share UDP port 4791 with us: %s", strerror(-error));
        listener.fd = -1;
        fd_close(fd);
    }
    errno = saved;
    return error;
}

void warden_take_office(void)
{
    in_office = true;
    warden_use_mailbox(-1);
}

bool warden_hold_missing(void)
{
    bool missing = false;

    for (uint32_t block = 0; stranger_count && block < BLOCKS; block++) {
        if (owners[block] && owners[block]->is_stranger)
            missing |= !slots_hold(block % UDP_SLOTS, false);
    }
    return missing;
}

void warden_after_fork_in_child(void)
{
    listener.fd = -1;
    list_init(&visitors); /* lost: the list may have been half linked */
    visitor_count = stranger_count = 0;
    in_office = false;
    wardens_mailbox = -1;
    if (owners_used) /* else its pages have never been touched */
        memset(owners, 0, sizeof(owners));
    owners_used = false;
}
