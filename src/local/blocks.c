/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QP numbers. They are granted round robin over all blocks of the process, in each block from a random number on. A
 * new block is taken while fewer than RESTING numbers are free. So at least RESTING other numbers are granted before
 * a released number is granted again, and late packets of a peer find no QP.
 *
 * A process owns blocks by names: the first ALONE blocks by one each, then areas of blocks
 * (published/segment_request.h), because each name is a descriptor.
 *
 * The lower bits of a block's number are its shard. All blocks of a process have the same shard, which no other
 * process has if one is free. By the shard, the kernel selects the socket that gets a packet from the network
 * (udp/udp.h). */
#include "local/blocks.h"

#include <errno.h>
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
#include "base/user.h"
#include "local/block_names.h"
#include "local/handshake.h"
#include "local/handshake_message.h"
#include "local/names.h"
#include "local/start.h"

#define RESTING       64   /* numbers */
#define ALONE         16   /* blocks: for 4,096 QPs */
#define BLOCKS_MAX    4096 /* for a million QPs */
#define BIND_TRIES    256
#define BLOCKS        65536u
#define OF_USER_TRIES 4096
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

/* An abstract socket of this name shows that a process has the shard. The name is a format between processes. */
#define SHARD_NAME "softhca/1/lot/%02x"

/* A block, or an area of blocks. */
struct name {
    struct event_source listener;
    uint32_t block; /* the first */
    uint32_t taken; /* blocks of it that numbers are granted of, or were */
};

struct block {
    struct name *name;
    uint32_t number;
    uint32_t first; /* number at which the round begins */
    uint64_t used[LOCAL_BLOCK_QPNS / 64];
};

static struct lock lock = LOCK_INIT;   /* guards all variables below */
static struct name *names[BLOCKS_MAX]; /* each has a block at least */
static unsigned name_count;
static struct block *blocks[BLOCKS_MAX];
static unsigned block_count, used_count;
static struct block *block_of[BLOCKS]; /* by number */
static unsigned cursor;                /* next candidate: block cursor / 256, its (cursor % 256)th number */
static bool watching = true;
static bool complained;   /* logged that there is no further block */
static unsigned shard;    /* 0: not chosen yet */
static int shard_fd = -1; /* bound to the shard's name; -1: another process has the shard, too */

void blocks_after_fork_in_child(void)
{
    lock_init(&lock);
    /* The names and blocks are leaked: another thread may have been changing them. */
    for (unsigned i = 0; i < block_count; i++)
        block_of[blocks[i]->number] = NULL;
    name_count = block_count = used_count = cursor = shard = 0;
    shard_fd = -1;
    watching = true;
}

void blocks_watch(bool watch)
{
    lock_acquire(&lock);
    watching = watch;
    for (unsigned i = 0; i < name_count; i++)
        event_change(&names[i]->listener, watch ? EPOLLIN : 0);
    lock_release(&lock);
}

/* Chooses a shard that no process has; if there is none, a shard of another process. */
static void choose_shard(void)
{
    int fd = fd_own(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    uint8_t first;

    sys_random(&first, sizeof(first));
    for (unsigned i = 0; i < LOCAL_SHARDS - 1; i++) {
        struct sockaddr_un address;
        socklen_t length;
        char name[32];

        shard = 1 + (first + i) % (LOCAL_SHARDS - 1);
        snprintf(name, sizeof(name), SHARD_NAME, shard);
        length = unix_name_address(name, &address);
        /* The socket never listens: only its name counts. */
        if (fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0) {
            shard_fd = fd;
            return;
        }
    }
    fd_close(fd);
}

/* Of a random number: a block that has a name alone, or the first block of an area. */
static uint32_t candidate(uint32_t number, bool is_area)
{
    return is_area ? segment_request_named_block(number | SEGMENT_REQUEST_AREAS_FROM)
                   : number % SEGMENT_REQUEST_AREAS_FROM;
}

/* Binds the name of a block, or an area, without an owner. 0 or -errno. */
static int bind_block(int fd, bool is_area, uint32_t *ret_number)
{
    if (!shard)
        choose_shard();
    for (int i = 0; i < BIND_TRIES; i++) {
        struct sockaddr_un address;
        uint16_t random;
        uint32_t number;
        socklen_t length;

        sys_random(&random, sizeof(random));
        if (i < BIND_TRIES / 2) /* afterwards: our shard has no free block left */
            random = (uint16_t)((random & ~(LOCAL_SHARDS - 1)) | shard);
        number = candidate(random, is_area);
        if (block_is_of_user(number))
            continue;
        length = block_address(number, &address);
        if (bind(fd, (struct sockaddr *)&address, length) == 0) {
            *ret_number = number;
            return 0;
        }
        if (errno != EADDRINUSE)
            return -errno;
    }
    return -EAGAIN;
}

static void note_taken(uint32_t block, uid_t uid, void *argument)
{
    uint64_t *taken = argument;
    uint32_t number = block / LOCAL_SHARDS;

    taken[number / 64] |= 1ull << number % 64;
}

/* Binds a name with our uid: of a block or area that no other user has, if there is one. 0 or -errno. */
static int bind_block_of_user(int fd, bool is_area, uint32_t *ret_number)
{
    uint64_t taken[BLOCKS / LOCAL_SHARDS / 64] = {0};

    block_names_of_users(note_taken, taken);
    for (int i = 0; i < OF_USER_TRIES; i++) {
        char text[LOCAL_BLOCK_NAME_MAX + 1];
        struct sockaddr_un address;
        uint16_t random;
        uint32_t block, number;
        socklen_t length;

        sys_random(&random, sizeof(random));
        block = candidate(random & ~(LOCAL_SHARDS - 1), is_area);
        number = block / LOCAL_SHARDS;
        if (!number || (i < OF_USER_TRIES / 2 && taken[number / 64] >> number % 64 & 1))
            continue;
        block_name_of(block, geteuid(), text);
        length = names_address(text, &address);
        if (bind(fd, (struct sockaddr *)&address, length) == 0) {
            *ret_number = block;
            return 0;
        }
        if (errno != EADDRINUSE)
            return -errno;
    }
    return -EAGAIN;
}

static int bind_any_block(int fd, bool is_area, uint32_t *ret_number)
{
    static bool told; /* lock */
    int error = bind_block(fd, is_area, ret_number);

    if (error != -EAGAIN)
        return error;
    error = bind_block_of_user(fd, is_area, ret_number);
    if (!error && !told)
        log_warn("the QP numbers of this host are nearly used up: this process now takes numbers from the "
                 "reserve of its user; end programs that are not needed (softhca ps lists them)");
    told = true;
    return error;
}

static int listen_by(struct name *name, bool is_area)
{
    int fd = fd_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), error;

    if (fd < 0)
        return -errno;
    error = bind_any_block(fd, is_area, &name->block);
    if (!error && listen(fd, LISTEN_MAX) < 0)
        error = -errno;
    name->listener.fd = fd;
    name->listener.ready = handshake_accept;
    if (!error)
        error = event_add(&name->listener, watching ? EPOLLIN : 0);
    if (error)
        fd_close(fd);
    return error;
}

/* How many blocks there are by the name. */
static uint32_t blocks_of(const struct name *name)
{
    uint32_t last = name->block + (SEGMENT_REQUEST_AREA_BLOCKS - 1) * SEGMENT_REQUEST_AREA_STRIDE;

    if (name->block < SEGMENT_REQUEST_AREAS_FROM)
        return 1;
    return SEGMENT_REQUEST_AREA_BLOCKS - (last > BLOCKS_LAST);
}

/* Takes a name that has a further block. Where areas have run out, a block alone will do. 0 or -errno. */
static int take_name(struct link *self, struct name **ret_name)
{
    struct name *name = name_count ? names[name_count - 1] : NULL;
    bool wants_area = name_count >= ALONE;
    int error;

    if (name && name->taken < blocks_of(name)) {
        *ret_name = name;
        return 0;
    }
    name = calloc(1, sizeof(*name));
    if (!name)
        return -ENOMEM;
    error = listen_by(name, wants_area);
    if (error == -EAGAIN && wants_area)
        error = listen_by(name, false);
    if (error) {
        free(name);
        return error;
    }
    for (uint32_t i = 0; i < blocks_of(name); i++)
        link_table_set(name->block + i * SEGMENT_REQUEST_AREA_STRIDE, self);
    names[name_count++] = *ret_name = name;
    return 0;
}

static const char *why_no_name(int error)
{
    if (error == -EAGAIN)
        return "all of this host are taken: end programs that are not needed (softhca ps lists them)";
    return error == -EMFILE ? "too many open files (ulimit -n)" : strerror(-error);
}

static int take_block(void)
{
    struct link *self = local_self_link();
    struct block *block;
    struct name *name;
    int error;

    if (!self)
        return -ENOMEM;
    if (block_count == BLOCKS_MAX)
        return -EAGAIN;
    block = calloc(1, sizeof(*block));
    if (!block)
        return -ENOMEM;
    error = take_name(self, &name);
    if (error) {
        if (!complained)
            log_error(
                "this process gets no more QP numbers, and ibv_create_qp() fails once its own are in use: "
                "%s",
                why_no_name(error));
        complained = true; /* each allocation tries again */
        free(block);
        return error;
    }
    complained = false;
    block->name = name;
    block->number = name->block + name->taken++ * SEGMENT_REQUEST_AREA_STRIDE;
    sys_random(&block->first, sizeof(block->first));
    cursor = block_count * LOCAL_BLOCK_QPNS;
    blocks[block_count++] = block_of[block->number] = block;
    log_debug("QPN block %04x allocated (QPNs 0x%04x00 to 0x%04xff)", block->number, block->number,
              block->number);
    return 0;
}

static uint32_t grant(void)
{
    for (;;) {
        struct block *block = blocks[cursor / LOCAL_BLOCK_QPNS];
        uint32_t number = (block->first + cursor) % LOCAL_BLOCK_QPNS;
        uint64_t later =
            ~block->used[number / 64] >> number % 64; /* those of 64 that are free from this one on */
        unsigned skip = later ? (unsigned)__builtin_ctzll(later) : 64 - number % 64;

        cursor += min_of(max_of(skip, 1u), LOCAL_BLOCK_QPNS - cursor % LOCAL_BLOCK_QPNS);
        cursor %= block_count * LOCAL_BLOCK_QPNS;
        if (skip)
            continue;
        block->used[number / 64] |= 1ull << (number % 64);
        used_count++;
        return block->number * LOCAL_BLOCK_QPNS + number;
    }
}

int local_qpn_allocate(uint32_t *ret_qpn)
{
    int saved = errno, error = 0;
    unsigned unused;

    lock_acquire(&lock);
    unused = block_count * LOCAL_BLOCK_QPNS - used_count;
    if (unused < RESTING)
        error = take_block();
    /* Without a new block: a number that was released lately is better than none. */
    if (unused || !error) {
        *ret_qpn = grant();
        error = 0;
    }
    lock_release(&lock);
    errno = saved;
    return error;
}

int local_block_take(uint32_t *ret_block)
{
    int saved = errno, error;

    lock_acquire(&lock);
    error = take_block();
    if (!error)
        *ret_block = blocks[block_count - 1]->number;
    lock_release(&lock);
    errno = saved;
    return error;
}

void local_qpn_release(uint32_t qpn)
{
    uint32_t number = qpn % LOCAL_BLOCK_QPNS;
    uint64_t bit = 1ull << (number % 64);
    struct block *block;

    lock_acquire(&lock);
    block = block_of[qpn / LOCAL_BLOCK_QPNS % BLOCKS];
    if (block && block->used[number / 64] & bit) {
        block->used[number / 64] &= ~bit;
        used_count--;
    }
    lock_release(&lock);
}

int local_block_socket(uint32_t block)
{
    int fd;

    lock_acquire(&lock);
    fd = block_of[block % BLOCKS] ? block_of[block % BLOCKS]->name->listener.fd : -1;
    lock_release(&lock);
    return fd;
}

/* --- proofs of ownership, shown by another process ------------------------------------------------------- */

static bool has_option(int fd, int option, int wanted)
{
    socklen_t size = sizeof(int);
    int value = -1;

    return getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 && value == wanted;
}

/* A socket of another type may have the same name: the kernel tells names apart by type and namespace. */
static bool listens_by_name_of(int fd, const char *block_name)
{
    struct sockaddr_un expected, name = {0};
    socklen_t expected_length = names_address(block_name, &expected), length = sizeof(name);

    return has_option(fd, SO_TYPE, SOCK_SEQPACKET) && has_option(fd, SO_ACCEPTCONN, 1) &&
           getsockname(fd, (struct sockaddr *)&name, &length) == 0 && length == expected_length &&
           memcmp(&name, &expected, length) == 0;
}

/* The kernel's number of the network namespace of a socket, which it never uses again. False: it does not say (before
 * Linux 5.14). */
static bool namespace_of(int fd, uint64_t *ret_cookie)
{
    socklen_t size = sizeof(*ret_cookie);

    return getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, ret_cookie, &size) == 0;
}

/* Did the process at the other end of the connection make the socket that has the block's name in our namespace? Of two
 * processes that are outside of our pid namespace, only the user is compared. */
static bool made_listener(int connection, const char *block_name)
{
    int fd = names_connect(block_name);
    struct ucred peer, maker;
    bool is_it;

    is_it = fd >= 0 && peer_credentials(fd, &maker) && peer_credentials(connection, &peer) &&
            maker.pid == peer.pid && maker.uid == peer.uid && user_is_known(peer.uid);
    fd_close(fd);
    return is_it;
}

bool local_is_block_socket(int fd, uint32_t block, int connection)
{
    char text[LOCAL_BLOCK_NAME_MAX + 1];
    struct ucred peer;
    uint64_t here, there;
    int saved = errno;
    bool is_it = peer_credentials(connection, &peer);

    if (is_it) {
        block_name_of(block, peer.uid, text);
        is_it = listens_by_name_of(fd, text);
    }
    if (is_it && namespace_of(connection, &here) && namespace_of(fd, &there))
        is_it = here == there;
    else if (is_it)
        is_it = made_listener(connection, text);
    errno = saved;
    return is_it;
}
