/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Services for clients, that is, for the processes that connect to this one. Every member listens and gives new
 * processes of its user the descriptor set. One member, the port owner, holds shard 0, and all other processes
 * stay connected to it. The port owner reads packets for processes of other users, which must not have the
 * port's sockets, and forwards packets that the wrong member has read. When the port owner dies, another member
 * takes ownership (port.c); processes that read sockets of their own are not affected.
 *
 * Trust: a client of another user proves that it owns a QPN block with the bound socket of the block
 * (ops->is_proof()). Processes of our user are believed; whoever loses a block may declare it again (serve_block()). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/budget.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/unix_names.h"
#include "udp/control_message.h"
#include "udp/internal.h"

#define BLOCKS                 65536u
#define CLIENTS_MAX            1024u
#define OTHER_USER_CLIENTS_MAX 256u
#define CLIENT_GROUPS_MAX      64u
#define CLIENT_BLOCKS_MAX      4096u
#define ACCEPTS_AT_ONCE        64
#define ACCEPT_PAUSE           (100 * NS_PER_MS)
#define CLIENT_DESCRIPTORS     2 /* its connection, its forwarding socket */

/* How long a client of another user may stay without a block whose packets it is to get. */
ns_t port_owner_patience = 10 * NS_PER_S;

struct client {
    struct event_source source;
    struct list node;
    struct ucred peer;
    int forwarding_socket; /* -1: before its first REQUEST */
    bool is_other_user;
    ns_t deadline;      /* for the first block; NS_NEVER: it has one, or is of our own user */
    uint32_t blocks;    /* how many entries of `client_of_block` are this client */
    struct list groups; /* struct client_group */
    unsigned group_count;
};

/* A multicast group that the port owner joined for a client of another user, which cannot bind the port. */
struct client_group {
    struct list node;
    struct reader reader;
    uint8_t gid[16];
    uint32_t ifindex;
};

static struct event_source listener = {.fd = -1};
static char own_digits[UDP_NAME_DIGITS + 1];
static struct list clients = {&clients, &clients};
static unsigned client_count, other_user_count;
static struct budget clients_of_others =
    BUDGET_INIT(clients_of_others, "processes that share UDP port 4791 through this one",
                "The owner of UDP port 4791 has no limit for its own user: start a program of that user "
                "before those of others");
static ns_t accept_again = NS_NEVER; /* end of a pause of accepting */
static bool is_port_owner;
/* Written by the helper thread with the receive lock held; receiving threads read them with it held. */
static struct client *client_of_block[BLOCKS]; /* by block: the client that declared it */
static int port_owner_socket = -1;
static bool owners_used;

/* --- forwarding ---------------------------------------------------------------------------------- */

static void drop_unclaimed(const struct datagram *datagram, const uint8_t *bytes)
{
    struct packet packet = {.opcode = bytes[0], .dest_qpn = dest_qpn_of(bytes)};

    udp_count(&udp_counters->unknown_qpn, 1);
    describe_grh(datagram, &packet.grh);
    if (udp_settings.ops->unclaimed)
        udp_settings.ops->unclaimed(&packet);
}

void port_owner_forward(const struct datagram *datagram, const uint8_t *bytes, bool was_forwarded)
{
    uint32_t block = (uint32_t)bytes[5] << 8 | bytes[6];

    if (client_of_block[block])
        forwarding_send(client_of_block[block]->forwarding_socket, datagram, bytes);
    else if (port_owner_socket >= 0 && !was_forwarded)
        forwarding_send(port_owner_socket, datagram, bytes);
    else
        drop_unclaimed(datagram, bytes);
}

void port_owner_use_forwarding_socket(int fd)
{
    int before;

    receive_lock_acquire();
    before = port_owner_socket;
    port_owner_socket = fd;
    receive_lock_release();
    fd_close(before);
}

/* --- clients ------------------------------------------------------------------------------------ */

static void group_free(struct client *client, struct client_group *group)
{
    reader_remove(&group->reader);
    list_remove(&group->node);
    client->group_count--;
    if (client->is_other_user)
        budget_return_descriptors(client->peer.uid, 1);
    free(group);
}

static struct client_group *find_group(struct client *client, const struct udp_message *message)
{
    list_for_each (node, &client->groups) {
        struct client_group *group = list_entry(node, struct client_group, node);

        if (group->ifindex == message->ifindex && memcmp(group->gid, message->group, sizeof(group->gid)) == 0)
            return group;
    }
    return NULL;
}

static int open_group(struct client *client, const struct udp_message *message)
{
    struct client_group *group = calloc(1, sizeof(*group));
    int fd = group ? socket_join(message->group, message->ifindex) : -ENOMEM, error;

    if (fd < 0) {
        free(group);
        return fd;
    }
    group->reader =
        (struct reader){.source.fd = fd, .is_group = true, .forward_to = client->forwarding_socket};
    error = reader_add(&group->reader);
    if (error) {
        fd_close(fd);
        free(group);
        return error;
    }
    memcpy(group->gid, message->group, sizeof(group->gid));
    group->ifindex = message->ifindex;
    list_push_back(&client->groups, &group->node);
    client->group_count++;
    return 0;
}

static int join_for(struct client *client, const struct udp_message *message)
{
    int error;

    if (client->group_count >= CLIENT_GROUPS_MAX ||
        (client->is_other_user && !budget_take_descriptors(client->peer.uid, 1)))
        return -EDQUOT;
    error = open_group(client, message);
    if (error && client->is_other_user)
        budget_return_descriptors(client->peer.uid, 1);
    return error;
}

/* No error is reported to the client: its join succeeds, but no packets of the group arrive. */
static void change_groups(struct client *client, const struct udp_message *message)
{
    struct client_group *group = find_group(client, message);
    int error = 0;

    if (group && (message->flags & UDP_MESSAGE_LEAVE))
        group_free(client, group);
    if (!group && (message->flags & UDP_MESSAGE_JOIN))
        error = join_for(client, message);
    if (error)
        groups_not_joined(message->group, message->ifindex, &client->peer, error);
}

static void client_free(struct client *client)
{
    while (!list_empty(&client->groups))
        group_free(client, list_entry(client->groups.next, struct client_group, node));
    receive_lock_acquire();
    for (uint32_t block = 0; client->blocks && block < BLOCKS; block++) {
        if (client_of_block[block] != client)
            continue;
        client_of_block[block] = NULL;
        client->blocks--;
    }
    receive_lock_release();
    client_count--;
    other_user_count -= client->is_other_user;
    if (client->is_other_user) {
        budget_return(&clients_of_others, client->peer.uid, 1);
        budget_return_descriptors(client->peer.uid, CLIENT_DESCRIPTORS);
    }
    list_remove(&client->node);
    event_close(&client->source);
    fd_close(client->forwarding_socket);
    free(client);
}

static bool may_own(const struct client *client, uint32_t block, int proof)
{
    if (client->is_other_user)
        return client->blocks < CLIENT_BLOCKS_MAX &&
               udp_settings.ops->is_proof(proof, block, client->source.fd);
    return true; /* processes of one user are not protected from each other (SECURITY.md) */
}

/* The client that had the block before has ended, or was declared for by somebody who has no proof to show. It is
 * disconnected: a client that still lives connects again, and declares all its blocks with their proofs. */
static void serve_block(struct client *client, uint32_t block)
{
    struct client *before = client_of_block[block];

    receive_lock_acquire();
    if (before != client) {
        if (before)
            before->blocks--;
        client_of_block[block] = client;
        owners_used = true;
        client->blocks++;
    }
    receive_lock_release();
    if (before && before != client) {
        log_info("UDP port 4791: process %d (uid %u) was registered for QPNs 0x%04x00 to 0x%04xff, and "
                 "process %d (uid %u) has proved that it owns them now: the former is disconnected, and "
                 "registers again if it still runs",
                 (int)before->peer.pid, (unsigned)before->peer.uid, block, block, (int)client->peer.pid,
                 (unsigned)client->peer.uid);
        client_free(before);
    }
    if (client->is_other_user)
        shards_acquire(block % UDP_SHARDS, false); /* a member that reads the shard already forwards to us */
}

static bool handle_request(struct client *client, const struct udp_message *message, const int *fds,
                           unsigned fd_count)
{
    if (client->forwarding_socket < 0) {
        if (message->block_count || fd_count != 1 || !forwarding_socket_is_valid(fds[0]))
            return false;
        client->forwarding_socket = fds[0];
        return true;
    }
    if (!is_port_owner || fd_count != (client->is_other_user ? message->block_count : 0))
        return false;
    for (unsigned i = 0; i < message->block_count; i++) {
        if (!may_own(client, message->blocks[i], fd_count ? fds[i] : -1))
            return false;
        serve_block(client, message->blocks[i]);
        client->deadline = NS_NEVER;
    }
    if (message->flags & (UDP_MESSAGE_JOIN | UDP_MESSAGE_LEAVE))
        change_groups(client, message);
    return true;
}

static int send_reply(const struct client *client, const struct udp_message *message)
{
    struct udp_message reply = {
        .magic = UDP_MESSAGE_MAGIC,
        .version = UDP_MESSAGE_VERSION,
        .type = UDP_MESSAGE_REPLY,
        .serial = message->serial,
        .flags = is_port_owner ? UDP_MESSAGE_FROM_PORT_OWNER : 0,
    };
    unsigned fd_count = 0;
    int fds[3];

    if (message->block_count == 0 && !client->is_other_user) {
        if (message->flags & UDP_MESSAGE_WANTS_DESCRIPTOR_SET) {
            shards_share(fds);
            reply.flags |= UDP_MESSAGE_HAS_DESCRIPTOR_SET;
            fd_count = 2;
        }
        if (is_port_owner) {
            fds[fd_count] = forwarding_open();
            if (fds[fd_count] < 0)
                return fds[fd_count];
            reply.flags |= UDP_MESSAGE_HAS_FORWARDING_SOCKET;
            fd_count++;
        }
    }
    return udp_message_send(client->source.fd, &reply, fds, fd_count);
}

static void client_ready(struct event_source *source, uint32_t events)
{
    struct client *client = container_of(source, struct client, source);
    int fds[UDP_MESSAGE_FDS], error;
    struct udp_message message;
    unsigned fd_count;

    error = udp_message_receive(source->fd, UDP_MESSAGE_REQUEST, &message, fds, &fd_count);
    if (!error && !handle_request(client, &message, fds, fd_count))
        error = -EPROTO;
    for (unsigned i = 0; i < fd_count; i++) {
        if (fds[i] != client->forwarding_socket)
            fd_close(fds[i]);
    }
    if (error == -EAGAIN)
        return;
    if (!error)
        error = send_reply(client, &message);
    if (error && error != -ECONNRESET && error != -EPIPE)
        log_warn("UDP port 4791: invalid request from client process %d (uid %u): %s; disconnected, so it "
                 "gets no packets "
                 "from other hosts (is it of another SoftHCA release?)",
                 (int)client->peer.pid, (unsigned)client->peer.uid, strerror(-error));
    if (error)
        client_free(client);
}

static bool may_connect(const struct ucred *peer, bool is_other_user)
{
    if (client_count == CLIENTS_MAX) {
        log_warn("UDP port 4791: client process %d (uid %u) gets no packets from other hosts: at most %u "
                 "processes "
                 "can share the port",
                 (int)peer->pid, (unsigned)peer->uid, CLIENTS_MAX);
        return false;
    }
    if (!is_other_user)
        return true;
    if (!budget_take(&clients_of_others, peer->uid, 1, OTHER_USER_CLIENTS_MAX))
        return false;
    if (budget_take_descriptors(peer->uid, CLIENT_DESCRIPTORS))
        return true;
    budget_return(&clients_of_others, peer->uid, 1);
    return false;
}

static void accept_client(int fd)
{
    struct ucred peer = {.pid = 0};
    socklen_t length = sizeof(peer);
    bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0;
    bool is_other_user = !port_is_own_user(&peer);
    struct client *client = known ? calloc(1, sizeof(*client)) : NULL;

    if (!client || !may_connect(&peer, is_other_user)) {
        free(client);
        fd_close(fd);
        return;
    }
    *client = (struct client){.source = {.fd = fd, .ready = client_ready},
                              .peer = peer,
                              .forwarding_socket = -1,
                              .is_other_user = is_other_user,
                              .deadline = is_other_user ? sys_now() + port_owner_patience : NS_NEVER};
    list_init(&client->groups);
    list_push_back(&clients, &client->node);
    client_count++;
    other_user_count += is_other_user;
    if (event_add(&client->source, EPOLLIN) != 0)
        client_free(client);
}

/* epoll would report the listener again at once. */
static void pause_accepting(void)
{
    log_error("UDP port 4791: cannot accept other processes that share it: %m (limit: ulimit -n); next try "
              "in 100 ms");
    event_change(&listener, 0);
    accept_again = sys_now() + ACCEPT_PAUSE;
}

static void accept_clients(struct event_source *source, uint32_t events)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = fd_own(accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));

        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                pause_accepting();
            break;
        }
        accept_client(fd);
    }
    port_wake(); /* which sets the timer for port_owner_expire() */
}

void port_owner_expire(ns_t now)
{
    list_for_each_safe (node, following, &clients) {
        struct client *client = list_entry(node, struct client, node);

        if (client->deadline > now)
            continue;
        log_warn(
            "UDP port 4791: client process %d of another user (uid %u) has registered no QPN within %llu s: "
            "disconnected, to make room for others; it can connect again",
            (int)client->peer.pid, (unsigned)client->peer.uid,
            (unsigned long long)(port_owner_patience / NS_PER_S));
        client_free(client);
    }
    if (accept_again <= now) {
        accept_again = NS_NEVER;
        event_change(&listener, EPOLLIN);
    }
}

ns_t port_owner_deadline(void)
{
    ns_t earliest = accept_again;

    list_for_each (node, &clients)
        earliest = min_of(earliest, list_entry(node, struct client, node)->deadline);
    return earliest;
}

/* --- listening ----------------------------------------------------------------------------------- */

bool port_owner_is_own_name(const char digits[UDP_NAME_DIGITS])
{
    return listener.fd >= 0 && memcmp(digits, own_digits, UDP_NAME_DIGITS) == 0;
}

int port_owner_listen(void)
{
    char name[sizeof(UDP_NAME_PREFIX) + UDP_NAME_DIGITS];
    struct sockaddr_un address;
    int fd, error = 0, saved = errno;
    socklen_t length;
    uint64_t random;

    if (listener.fd >= 0)
        return 0;
    sys_random(&random, sizeof(random)); /* another user cannot bind the name before us */
    snprintf(own_digits, sizeof(own_digits), "%016llx", (unsigned long long)random);
    snprintf(name, sizeof(name), UDP_NAME_PREFIX "%s", own_digits);
    length = unix_name_address(name, &address);
    fd = fd_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, LISTEN_MAX) < 0)
        error = -errno;
    listener = (struct event_source){.fd = fd, .ready = accept_clients};
    if (!error)
        error = event_add(&listener, EPOLLIN);
    if (error) {
        log_error("UDP port 4791: cannot listen for client processes: %s; other processes receive nothing "
                  "from other hosts",
                  strerror(-error));
        listener.fd = -1;
        fd_close(fd);
    }
    errno = saved;
    return error;
}

void port_owner_take_ownership(void)
{
    is_port_owner = true;
    port_owner_use_forwarding_socket(-1);
}

bool port_owner_acquire_missing(void)
{
    bool missing = false;

    for (uint32_t block = 0; other_user_count && block < BLOCKS; block++) {
        if (client_of_block[block] && client_of_block[block]->is_other_user)
            missing |= !shards_acquire(block % UDP_SHARDS, false);
    }
    return missing;
}

void port_owner_after_fork_in_child(void)
{
    listener.fd = -1;
    list_init(&clients); /* leaked: the helper thread may have been changing the list at the fork */
    client_count = other_user_count = 0;
    accept_again = NS_NEVER;
    budget_after_fork_in_child(&clients_of_others);
    is_port_owner = false;
    port_owner_socket = -1;
    if (owners_used) /* do not touch half a megabyte of zero pages otherwise */
        memset(client_of_block, 0, sizeof(client_of_block));
    owners_used = false;
}
