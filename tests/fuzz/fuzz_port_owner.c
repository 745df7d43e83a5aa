/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The owner of UDP port 4791 (udp/port_owner.c) and its clients: processes of this and of other users connect, send
 * what they want, fall silent, claim the same blocks, join groups, and end; descriptors, memory and budgets run out.
 * The file is part of this one, so that its tables can be compared after each step. System calls and the other files
 * of the room are simulated here; descriptors are numbers, each of which has one owner and is closed once.
 *
 * A block belongs to a client of another user only after its proof, and packets for it go to a socket that is open.
 * What is counted is what is there.
 *
 * Input: steps. A step begins with a byte that selects it. */
#include "../../src/udp/port_owner.c"

#include <unistd.h>

#include "allocations.h"
#include "base/user.h"
#include "fds.h"

#define STEPS       96u
#define PROOFS      4u
#define FORWARDING  4997
#define FIRST_BLOCK 0x1200u

enum owner { LISTENER = 1, CONNECTION, MESSAGE, CLIENT_SOCKET, GROUP, OWNER_SOCKET };

static bool accepting, ownership;
static unsigned queued; /* connections that wait for accept4() */
static uid_t queued_uid;
static struct event_source *sources[FDS_MOST];
static uid_t peer_uids[FDS_MOST];
static unsigned readers_there, descriptors_charged;
static uint32_t proven[FDS_MOST]; /* bits: blocks whose proof has come over the connection */

struct udp_settings udp_settings;
static struct network_counters counters;
struct network_counters *udp_counters = &counters;

/* --- system calls --------------------------------------------------------------------------------------- */

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t length);
int __wrap_listen(int fd, int backlog);
bool __real_budget_take_descriptors(uid_t uid, uint32_t count);
void __real_budget_return_descriptors(uid_t uid, uint32_t count);
bool __wrap_budget_take_descriptors(uid_t uid, uint32_t count);
void __wrap_budget_return_descriptors(uid_t uid, uint32_t count);

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    static const int errors[] = {EMFILE, ENFILE, ECONNABORTED, ENOBUFS};
    uint8_t choice = input_8(&input);
    int accepted;

    require(fds_owner(fd) == LISTENER);
    if (!queued || choice > 250) {
        errno = queued ? errors[choice % 4] : EAGAIN;
        return -1;
    }
    queued--;
    accepted = fds_make(CONNECTION);
    peer_uids[fds_index(accepted)] = queued_uid;
    return accepted;
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
    const struct ucred peer = {.pid = 7, .uid = peer_uids[fds_index(fd)], .gid = 1};

    if (input_8(&input) == 255)
        return -1;
    memcpy(value, &peer, sizeof(peer));
    return 0;
}

int __wrap_socket(int domain, int type, int protocol)
{
    return fds_make(LISTENER);
}

int __wrap_bind(int fd, const struct sockaddr *address, socklen_t length)
{
    return 0;
}

int __wrap_listen(int fd, int backlog)
{
    return 0;
}

bool __wrap_budget_take_descriptors(uid_t uid, uint32_t count)
{
    bool taken = input_8(&input) != 255 && __real_budget_take_descriptors(uid, count);

    descriptors_charged += taken ? count : 0;
    return taken;
}

void __wrap_budget_return_descriptors(uid_t uid, uint32_t count)
{
    require(descriptors_charged >= count);
    descriptors_charged -= count;
    __real_budget_return_descriptors(uid, count);
}

int event_add(struct event_source *source, uint32_t events)
{
    if (input_8(&input) == 255)
        return -ENOSPC;
    sources[fds_index(source->fd)] = source;
    return 0;
}

int event_change(struct event_source *source, uint32_t events)
{
    require(source == &listener);
    accepting = events != 0;
    return 0;
}

void event_close(struct event_source *source)
{
    if (source->fd < 0)
        return;
    sources[fds_index(source->fd)] = NULL;
    fds_end(source->fd);
    source->fd = -1;
}

bool user_is_own(uid_t uid)
{
    return uid == geteuid();
}

socklen_t unix_name_address(const char *name, struct sockaddr_un *ret_address)
{
    return sizeof(*ret_address);
}

/* --- the other files of the room ------------------------------------------------------------------------ */

bool port_is_own_user(const struct ucred *peer)
{
    return user_is_own(peer->uid);
}

void port_wake(void)
{
}

int forwarding_open(void)
{
    return input_8(&input) == 255 ? -EMFILE : FORWARDING;
}

bool forwarding_socket_is_valid(int fd)
{
    return input_8(&input) % 8 != 7;
}

void forwarding_send(int fd, const struct datagram *datagram, const uint8_t *bytes)
{
    require(fds_owner(fd) == CLIENT_SOCKET || (fd == port_owner_socket && fds_owner(fd) == OWNER_SOCKET));
}

bool shards_acquire(unsigned shard, bool polled)
{
    require(shard < UDP_SHARDS && !polled);
    return input_8(&input) % 2;
}

void shards_share(int ret_set_and_lock_file[2])
{
    ret_set_and_lock_file[0] = ret_set_and_lock_file[1] = FORWARDING;
}

int socket_join(const uint8_t group[16], uint32_t ifindex)
{
    return input_8(&input) > 250 ? -ENODEV : fds_make(GROUP);
}

void groups_not_joined(const uint8_t gid[16], uint32_t ifindex, const struct ucred *client, int error)
{
    require(client && error < 0);
}

int reader_add(struct reader *reader)
{
    require(reader->is_group && fds_owner(reader->forward_to) == CLIENT_SOCKET);
    if (input_8(&input) > 250)
        return -ENOSPC;
    readers_there++;
    return 0;
}

void reader_remove(struct reader *reader)
{
    /* Until here the reader may have forwarded. */
    require(readers_there && fds_owner(reader->forward_to) == CLIENT_SOCKET);
    readers_there--;
    fds_end(reader->source.fd);
    reader->source.fd = -1;
}

static bool locked;

void receive_lock_acquire(void)
{
    require(!locked);
    locked = true;
}

void receive_lock_release(void)
{
    require(locked);
    locked = false;
}

/* --- messages ------------------------------------------------------------------------------------------- */

int udp_message_send(int fd, const struct udp_message *message, const int *fds, unsigned fd_count)
{
    static const int errors[] = {-EAGAIN, -EPIPE, -ETOOMANYREFS};
    uid_t uid = peer_uids[fds_index(fd)];

    require(fds_owner(fd) == CONNECTION && message->type == UDP_MESSAGE_REPLY && fd_count <= 3);
    /* Nobody of another user gets a descriptor. */
    require(!fd_count || user_is_own(uid));
    require(!(message->flags & UDP_MESSAGE_FROM_PORT_OWNER) == !ownership);
    return input_8(&input) > 252 ? errors[fd % 3] : 0;
}

int udp_message_receive(int fd, enum udp_message_type type, struct udp_message *message,
                        int ret_fds[UDP_MESSAGE_FDS], unsigned *ret_fd_count)
{
    static const int errors[] = {-EAGAIN, -ECONNRESET, -EPROTO, -EMFILE};
    uint8_t choice = input_8(&input);

    require(type == UDP_MESSAGE_REQUEST && fds_owner(fd) == CONNECTION);
    *ret_fd_count = input_8(&input) % (UDP_MESSAGE_FDS + 1);
    if (choice > 247)
        *ret_fd_count = 0;
    for (unsigned i = 0; i < *ret_fd_count; i++)
        ret_fds[i] = fds_make(MESSAGE);
    *message = (struct udp_message){.magic = UDP_MESSAGE_MAGIC,
                                    .version = UDP_MESSAGE_VERSION,
                                    .type = UDP_MESSAGE_REQUEST,
                                    .block_count = (choice >> 3) % (UDP_MESSAGE_BLOCKS + 1),
                                    .flags = (uint16_t)((choice & 7) << 3),
                                    .ifindex = 3};
    if (choice > 247)
        return errors[choice % 4];
    if (message->block_count > *ret_fd_count && choice & 1)
        message->block_count = (uint16_t)*ret_fd_count;
    message->group[15] = (uint8_t)(choice & 3);
    for (unsigned i = 0; i < message->block_count; i++)
        message->blocks[i] = (uint16_t)(FIRST_BLOCK + input_8(&input) % 32);
    return 0;
}

static bool is_proof(int fd, uint32_t block, int connection)
{
    require(fds_owner(fd) == MESSAGE);
    if (input_8(&input) % 4 == 3)
        return false;
    proven[fds_index(connection)] |= 1u << (block - FIRST_BLOCK);
    return true;
}

/* --- checks --------------------------------------------------------------------------------------------- */

static void check(void)
{
    unsigned all = 0, of_others = 0, groups = 0, groups_of_others = 0, blocks = 0, sockets = 0, used = 0;

    require(!locked && fds_count(MESSAGE) == 0);
    list_for_each (node, &clients) {
        const struct client *client = list_entry(node, struct client, node);
        unsigned own = 0;

        all++;
        of_others += client->is_other_user;
        require(client->is_other_user == !user_is_own(client->peer.uid));
        require(fds_owner(client->source.fd) == CONNECTION);
        require(sources[fds_index(client->source.fd)] == &client->source);
        if (client->forwarding_socket >= 0) {
            require(fds_owner(client->forwarding_socket) == CLIENT_SOCKET);
            sockets++;
        }
        for (uint32_t i = 0; i < 32; i++) {
            if (client_of_block[FIRST_BLOCK + i] != client)
                continue;
            own++;
            require(!client->is_other_user || (proven[fds_index(client->source.fd)] >> i & 1));
            require(client->forwarding_socket >= 0);
        }
        require(own == client->blocks);
        blocks += own;
        list_for_each (group, &((struct client *)client)->groups)
            groups_of_others += client->is_other_user;
        groups += client->group_count;
        require(client->group_count <= CLIENT_GROUPS_MAX);
        /* Silence has a deadline. */
        require(!client->is_other_user || client->blocks || client->deadline != NS_NEVER || ownership);
    }
    for (uint32_t i = 0; i < 32; i++)
        used += client_of_block[FIRST_BLOCK + i] != NULL;
    require(used == blocks && groups == readers_there && groups == fds_count(GROUP));
    require(all == client_count && all <= CLIENTS_MAX && all == fds_count(CONNECTION));
    require(of_others == other_user_count && of_others == clients_of_others.used);
    require(descriptors_charged == CLIENT_DESCRIPTORS * of_others + groups_of_others);
    require(sockets == fds_count(CLIENT_SOCKET));
    require(fds_count(OWNER_SOCKET) == (port_owner_socket >= 0));
    require(accepting == (accept_again == NS_NEVER));
    require(port_owner_deadline() <= accept_again);
}

/* --- steps ---------------------------------------------------------------------------------------------- */

enum step { CONNECTS, SENDS, TIME_PASSES, FORWARDS, OWNS, OWNER_SOCKET_COMES, MISSING, FAILS, STEP_KINDS };

static void connect_some(unsigned number)
{
    queued = 1 + number % 8;
    queued_uid = geteuid() + number / 8 % 3;
    if (accepting)
        listener.ready(&listener, 1);
}

/* The socket that a client keeps is the first one of its first message. */
static void note_sockets(void)
{
    list_for_each (node, &clients) {
        int fd = list_entry(node, struct client, node)->forwarding_socket;

        if (fd >= 0 && fds_owner(fd) == MESSAGE)
            fds_give(fd, MESSAGE, CLIENT_SOCKET);
    }
}

static void send_one(unsigned number)
{
    unsigned seen = 0;

    for (unsigned i = 0; i < fds_made; i++) {
        if (!sources[i] || sources[i] == &listener || seen++ != number)
            continue;
        sources[i]->ready(sources[i], 1);
        note_sockets();
        return;
    }
}

static void forward(unsigned number)
{
    const struct datagram datagram = {.length = 16, .segment = 16};
    uint8_t bytes[16] = {0};

    bytes[5] = FIRST_BLOCK >> 8;
    bytes[6] = (uint8_t)number;
    port_owner_forward(&datagram, bytes, number & 1);
}

static void take_step(uint8_t choice)
{
    unsigned number = choice / STEP_KINDS;

    switch ((enum step)(choice % STEP_KINDS)) {
    case CONNECTS:
        connect_some(number);
        break;
    case SENDS:
        send_one(number);
        break;
    case TIME_PASSES:
        now += (ns_t)(number + 1) * 100 * NS_PER_MS;
        port_owner_expire(now);
        require(port_owner_deadline() > now);
        break;
    case FORWARDS:
        forward(number);
        break;
    case OWNS:
        ownership = true;
        port_owner_take_ownership();
        break;
    case OWNER_SOCKET_COMES:
        if (!ownership)
            port_owner_use_forwarding_socket(number & 1 ? fds_make(OWNER_SOCKET) : -1);
        break;
    case MISSING:
        (void)port_owner_acquire_missing();
        break;
    case FAILS:
        allocations_fail = number & 1;
        break;
    case STEP_KINDS:
        break;
    }
}

static void finish(void)
{
    struct client *client;

    allocations_fail = false;
    while (!list_empty(&clients)) {
        client = list_entry(clients.next, struct client, node);
        client_free(client);
        check();
    }
    port_owner_use_forwarding_socket(-1);
    event_close(&listener);
    for (unsigned i = 0; i < fds_made; i++)
        require(!fds_owners[i]);
    require(live == 0 && descriptors_charged == 0);
    port_owner_after_fork_in_child();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct udp_ops ops = {.is_proof = is_proof};

    fds_reset();
    memset(sources, 0, sizeof(sources));
    memset(proven, 0, sizeof(proven));
    live = readers_there = descriptors_charged = 0;
    now = 100 * NS_PER_S;
    udp_settings.ops = &ops;
    allocations_fail = ownership = false;
    input = (struct input){NULL, 0};
    require(port_owner_listen() == 0);
    accepting = true;
    input = (struct input){data, size};
    for (unsigned step = 0; input.left && step < STEPS && fds_made < FDS_MOST - 128; step++) {
        take_step(input_8(&input));
        check();
    }
    finish();
    return 0;
}

/* --- seeds ---------------------------------------------------------------------------------------------- */

#define STEP(step, number) (uint8_t)((number)*STEP_KINDS + (step))

void fuzz_seeds(fuzz_add *add)
{
    for (unsigned user = 0; user < 3; user++) {
        for (uint8_t flags = 0; flags < 8; flags++) {
            const uint8_t bytes[] = {
                STEP(OWNS, flags & 1), STEP(OWNER_SOCKET_COMES, 1), STEP(CONNECTS, 8 * user + 1), 0, 0, 0, 0,
                0, 0, 0, 0,
                /* first REQUEST, with a socket; then blocks with their proofs */
                STEP(SENDS, 0), flags, 1, 0, 0, STEP(SENDS, 1), flags, 1, 0, 0, STEP(OWNS, 0), STEP(SENDS, 0),
                (uint8_t)(2 << 3 | flags), (uint8_t)(user ? 2 : 0), 3, 4, 0, 0, 0, 0, 0, STEP(FORWARDS, 3),
                STEP(SENDS, 1), (uint8_t)(2 << 3 | flags), (uint8_t)(user ? 2 : 0), 4, 5, 0, 0, 0, 0, 0,
                STEP(MISSING, 0), 1, 1, 1, STEP(TIME_PASSES, 31), STEP(SENDS, 0), 249, STEP(TIME_PASSES, 31),
                STEP(CONNECTS, 3), 251, STEP(TIME_PASSES, 3)};

            add(bytes, sizeof(bytes));
        }
    }
}
