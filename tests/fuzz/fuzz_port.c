/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The state machine that opens UDP port 4791 (udp/port.c), with discovery (discover.c) and claims (claims.c), and a
 * scheduler that does everything at the worst time: other processes of this and of other users listen, answer late,
 * wrongly or never, die and change; shards are taken, sockets cannot be made, the clock jumps. System calls and the
 * other files of the room are simulated here; descriptors are numbers, each of which has one owner and is closed
 * once.
 *
 * The port's state changes along the arrows of port.c only. Packets of another user's process are accepted only while
 * that user has the port; descriptors of the port only from our own user. A block is served only if its shard is held
 * or its owner has acknowledged it. A machine that is opening has something that wakes it.
 *
 * Input: steps. A step begins with a byte that selects it. */
#include "../../src/udp/claims.c" /* whose claims are compared with what was said of them */

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/sys.h"
#include "base/unix_names.h"
#include "base/user.h"
#include "fds.h"
#include "fuzz.h"
#include "simulated.h"
#include "udp/control_message.h"
#include "udp/internal.h"

#define TIMER_FD   4999
#define PROOF      4998
#define STEPS      64u
#define LISTENERS  6u
#define BLOCKS     4u
#define FORWARDING 4997 /* write end of our forwarding socket */

enum owner { PROBE = 1, MESSAGE, SHARDS, OWNER_SOCKET }; /* of descriptors */

/* --- the world ---------------------------------------------------------------------------------------------- */

static ns_t timer_at;
static bool timer_is_known;
static uid_t bound_uid; /* the user whose socket is bound to the port */
static bool is_bound, can_make_sockets;
static struct {
    bool there;
    uid_t uid;
} listeners[LISTENERS];
static unsigned connecting_to;
/* Connections: event sources by descriptor. */
static struct event_source *sources[FDS_MOST];
static uid_t peer_uids[FDS_MOST];
static struct event_source *timer_source;
static enum udp_state before;
static bool shards_there, is_owner;
static bool shard_taken[UDP_SHARDS], shard_held[UDP_SHARDS];
static int owner_socket = -1;
/* REQUESTs by serial: the connection that each went to, and whether the answer came over it. */
#define SERIALS 4096u
static int sent_to[SERIALS];
static bool answered[SERIALS];
static uint32_t sent_serial;

static const struct udp_ops ops;
struct network_counters *udp_counters;

static uid_t own_uid(void)
{
    return geteuid();
}

static uid_t some_uid(uint8_t choice)
{
    return choice % 3 ? own_uid() + choice % 3 : own_uid();
}

/* --- system calls ------------------------------------------------------------------------------------------- */

long __wrap_sys_futex(uint32_t *word, int operation, uint32_t value, ns_t timeout_ns);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int __wrap_timerfd_create(int clock, int flags);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *setting, struct itimerspec *old);
ssize_t __wrap_read(int fd, void *bytes, size_t length);
int __wrap_access(const char *path, int mode);

long __wrap_sys_futex(uint32_t *word, int operation, uint32_t value, ns_t timeout_ns)
{
    require(operation != FUTEX_WAIT_PRIVATE); /* every call has a timeout of 0 */
    return 0;
}

int __wrap_socket(int domain, int type, int protocol)
{
    if (input_8(&input) % 8 == 7) {
        errno = EMFILE;
        return -1;
    }
    return fds_make(PROBE);
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    if (!listeners[connecting_to].there || input_8(&input) % 8 == 7) {
        errno = ECONNREFUSED;
        return -1;
    }
    peer_uids[fds_index(fd)] = listeners[connecting_to].uid;
    return 0;
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
    const struct ucred peer = {.pid = 7, .uid = peer_uids[fds_index(fd)], .gid = 1};

    require(level == SOL_SOCKET && name == SO_PEERCRED && *length == sizeof(peer));
    memcpy(value, &peer, sizeof(peer));
    return 0;
}

int __wrap_timerfd_create(int clock, int flags)
{
    return TIMER_FD;
}

int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *setting, struct itimerspec *old)
{
    require(fd == TIMER_FD);
    timer_is_known = true;
    timer_at = (ns_t)setting->it_value.tv_sec * NS_PER_S + (ns_t)setting->it_value.tv_nsec;
    if (!timer_at)
        timer_at = NS_NEVER;
    else if (!(flags & TFD_TIMER_ABSTIME))
        timer_at += now;
    return 0;
}

ssize_t __wrap_read(int fd, void *bytes, size_t length)
{
    require(fd == TIMER_FD);
    memset(bytes, 0, length);
    return (ssize_t)length;
}

int __wrap_access(const char *path, int mode)
{
    return input_8(&input) % 4 ? -1 : 0;
}

/* --- base ----------------------------------------------------------------------------------------------------- */

int event_add(struct event_source *source, uint32_t events)
{
    if (source->fd == TIMER_FD) {
        timer_source = source;
        return 0;
    }
    if (input_8(&input) % 16 == 15)
        return -ENOSPC;
    sources[fds_index(source->fd)] = source;
    return 0;
}

int event_change(struct event_source *source, uint32_t events)
{
    if (input_8(&input) % 16 == 15)
        return -ENOMEM;
    require(sources[fds_index(source->fd)]);
    sources[fds_index(source->fd)] = source;
    return 0;
}

bool event_is_intact(const struct event_source *source)
{
    return true;
}

void event_close(struct event_source *source)
{
    if (source->fd < 0)
        return;
    sources[fds_index(source->fd)] = NULL;
    fds_end(source->fd);
    source->fd = -1;
}

void event_forget(struct event_source *source)
{
    require(sources[fds_index(source->fd)] != source);
    source->fd = -1;
}

bool user_is_own(uid_t uid)
{
    return uid == own_uid();
}

bool user_is_known(uid_t uid)
{
    return true;
}

int unix_names_visit(const char *prefix, size_t digits, void (*visit)(const char *digits, void *argument),
                     void *argument)
{
    char name[UDP_NAME_DIGITS + 1];

    if (input_8(&input) % 16 == 15)
        return -ENOMEM;
    for (connecting_to = 0; connecting_to < LISTENERS; connecting_to++) {
        snprintf(name, sizeof(name), "%016u", connecting_to);
        if (listeners[connecting_to].there)
            visit(name, argument);
        if (listeners[connecting_to].there && input_8(&input) % 2)
            visit(name, argument); /* /proc/net/unix lists connections, too */
    }
    return 0;
}

socklen_t unix_name_address(const char *name, struct sockaddr_un *ret_address)
{
    require(strlen(name) == sizeof(UDP_NAME_PREFIX) - 1 + UDP_NAME_DIGITS);
    return sizeof(*ret_address);
}

/* --- the other files of the room -------------------------------------------------------------------------------- */

int socket_port_uid(uid_t *ret_uid)
{
    *ret_uid = bound_uid;
    return is_bound ? 0 : -ENOENT;
}

bool shards_are_there(void)
{
    return shards_there;
}

int shards_make(void)
{
    require(!shards_there);
    if (!can_make_sockets)
        return -EMFILE;
    if (is_bound)
        return -EADDRINUSE;
    is_bound = shards_there = true;
    bound_uid = own_uid();
    return 0;
}

static uid_t replying_uid; /* of the reply that is being handled */

void shards_adopt(int descriptor_set, int lock_file)
{
    require(!shards_there && replying_uid == own_uid());
    fds_give(descriptor_set, MESSAGE, SHARDS);
    fds_give(lock_file, MESSAGE, SHARDS);
    shards_there = true;
}

bool shards_acquire(unsigned shard, bool polled)
{
    if (shard_held[shard])
        return true;
    if (!shards_there || shard_taken[shard])
        return false;
    return shard_held[shard] = true;
}

bool shards_acquire_ownership(void)
{
    return shards_acquire(0, false);
}

int port_owner_listen(void)
{
    return 0;
}

bool port_owner_is_own_name(const char digits[UDP_NAME_DIGITS])
{
    return false;
}

void port_owner_take_ownership(void)
{
    require(shard_held[0]);
    is_owner = true;
}

bool port_owner_acquire_missing(void)
{
    return false;
}

void port_owner_expire(ns_t time)
{
}

ns_t port_owner_deadline(void)
{
    return NS_NEVER;
}

void port_owner_use_forwarding_socket(int fd)
{
    if (fd >= 0) {
        require(replying_uid == own_uid());
        fds_give(fd, MESSAGE, OWNER_SOCKET);
    }
    if (owner_socket >= 0)
        fds_end(owner_socket);
    owner_socket = fd;
}

void groups_step(enum groups_mode mode, int upstream, uint32_t *serial, uint32_t acknowledged)
{
    require((mode == GROUPS_BY_PORT_OWNER) == (udp_state() == UDP_FORWARDED));
    require(mode != GROUPS_BY_PORT_OWNER || upstream >= 0);
}

void groups_forget_declarations(void)
{
}

int forwarding_open(void)
{
    return input_8(&input) % 16 == 15 ? -EMFILE : FORWARDING;
}

void forwarding_set_polled(void)
{
}

void lane_after_fork_in_child(void)
{
}

void receive_after_fork_in_child(void)
{
}

void shards_after_fork_in_child(void)
{
}

void groups_after_fork_in_child(void)
{
}

void forwarding_after_fork_in_child(void)
{
}

void port_owner_after_fork_in_child(void)
{
}

/* --- messages ---------------------------------------------------------------------------------------------------- */

int udp_message_send(int fd, const struct udp_message *message, const int *fds, unsigned fd_count)
{
    static const int errors[] = {-EAGAIN, -ETOOMANYREFS, -EPIPE, -ENOBUFS};
    uint8_t choice = input_8(&input) % 16;

    require(sources[fds_index(fd)] || fds_owner(fd) == PROBE);
    require(message->magic == UDP_MESSAGE_MAGIC && message->type == UDP_MESSAGE_REQUEST &&
            message->block_count <= UDP_MESSAGE_BLOCKS && fd_count <= UDP_MESSAGE_FDS);
    if (choice < array_size(errors))
        return errors[choice];
    if (!message->block_count) {
        require(fd_count == 1 && fds[0] == FORWARDING); /* the first one */
        return 0;
    }
    /* The proofs are for a port owner of another user. */
    require(fd_count == (udp_state() == UDP_OPEN ? 0 : message->block_count));
    require(message->serial > sent_serial && message->serial < SERIALS);
    sent_serial = message->serial;
    sent_to[sent_serial] = fd;
    return 0;
}

int udp_message_receive(int fd, enum udp_message_type type, struct udp_message *message,
                        int ret_fds[UDP_MESSAGE_FDS], unsigned *ret_fd_count)
{
    static const int errors[] = {-EAGAIN, -ECONNRESET, -EPROTO, -EMFILE};
    uint8_t choice = input_8(&input);

    require(type == UDP_MESSAGE_REPLY && fds_owner(fd) == PROBE);
    *ret_fd_count = 0;
    if (choice % 8 < array_size(errors) && choice % 8 != 0)
        return errors[choice % 8];
    if (choice == 0xf8)
        return -EAGAIN;
    *message = (struct udp_message){.magic = UDP_MESSAGE_MAGIC,
                                    .version = UDP_MESSAGE_VERSION,
                                    .type = UDP_MESSAGE_REPLY,
                                    .flags = choice >> 5};
    message->serial = input_8(&input) % 4 ? sent_serial : input_16(&input) % (2 * SERIALS);
    /* It answers what was sent over this connection, no more. */
    for (uint32_t i = 1; i <= min_of(message->serial, sent_serial); i++)
        answered[i] |= sent_to[i] == fd;
    *ret_fd_count = input_8(&input) % 5;
    for (unsigned i = 0; i < *ret_fd_count; i++)
        ret_fds[i] = fds_make(MESSAGE);
    return 0;
}

/* --- checks ------------------------------------------------------------------------------------------------------ */

static bool is_allowed(enum udp_state from, enum udp_state to)
{
    switch (from) {
    case UDP_CLOSED:
        return to != UDP_CLOSED;
    case UDP_OPENING:
        return to != UDP_CLOSED;
    case UDP_OPEN:
        return false;
    case UDP_FORWARDED:
        return to != UDP_CLOSED;
    case UDP_OFF:
        return to != UDP_CLOSED;
    }
    return false;
}

static void check(void)
{
    enum udp_state state = udp_state();

    if (state != before)
        require(is_allowed(before, state));
    require(state != UDP_OPEN || shards_there);
    require(fds_count(MESSAGE) == 0);
    require(fds_count(OWNER_SOCKET) == (owner_socket >= 0));
    require(!is_owner || state == UDP_OPEN);
    for (unsigned i = 0; i < claim_count; i++) {
        const struct claim *claim = &claims[i];

        if (udp_serves(claim->block))
            require(is_owner || shard_held[claim->block] || (claim->serial && answered[claim->serial]));
    }
    /* Something has to wake a machine that is opening: a probe whose deadline comes, or a time to try again. */
    if (state == UDP_OPENING && timer_source)
        require(timer_at != NS_NEVER);
    if (discovery_is_running())
        require(discovery_deadline() != NS_NEVER && fds_count(PROBE) > 0 &&
                fds_count(PROBE) <= LISTENERS + 1);
    /* Only user who has the port forwards for us. */
    for (uid_t other = own_uid() + 1; other < own_uid() + 3; other++)
        require(!udp_trusts(other) || state == UDP_FORWARDED);
    require(udp_trusts(own_uid()));
    before = state;
}

/* --- steps ------------------------------------------------------------------------------------------------------- */

enum step { SERVES, TIMER, TIME_PASSES, ANSWERS, LISTENS, DIES, BINDS, SHARD, SOCKETS, STEP_KINDS };

/* A connection has something to read: with an end, always. */
static void make_ready(unsigned number)
{
    unsigned seen = 0;

    for (unsigned i = 0; i < fds_made; i++) {
        struct event_source *source = sources[i];
        enum udp_state state = udp_state();
        uid_t uid = peer_uids[i];

        if (!source || fds_owners[i] != PROBE || seen++ != number)
            continue;
        replying_uid = uid;
        source->ready(source, 1);
        if (udp_state() == UDP_FORWARDED && state != UDP_FORWARDED)
            require(uid != own_uid() && is_bound && bound_uid == uid && udp_trusts(uid));
        return;
    }
}

static void take_step(uint8_t choice)
{
    unsigned number = choice / STEP_KINDS;

    replying_uid = (uid_t)-1;
    switch ((enum step)(choice % STEP_KINDS)) {
    case SERVES:
        (void)udp_serve_within(number % BLOCKS, PROOF, 0);
        break;
    case TIMER:
        if (timer_source && timer_at != NS_NEVER) {
            now = max_of(now, timer_at);
            timer_source->ready(timer_source, 1);
        }
        break;
    case TIME_PASSES:
        now += (ns_t)input_8(&input) * (number + 1) * 10 * NS_PER_MS;
        break;
    case ANSWERS:
        make_ready(number % 8);
        break;
    case LISTENS:
        listeners[number % LISTENERS].there = true;
        listeners[number % LISTENERS].uid = some_uid(input_8(&input));
        break;
    case DIES:
        listeners[number % LISTENERS].there = false;
        break;
    case BINDS:
        if (!shards_there) {
            is_bound = number & 1;
            bound_uid = some_uid(input_8(&input));
        }
        break;
    case SHARD:
        if (!shard_held[number % BLOCKS])
            shard_taken[number % BLOCKS] ^= true;
        break;
    case SOCKETS:
        can_make_sockets = number & 1;
        break;
    case STEP_KINDS:
        break;
    }
}

static void start(void)
{
    now = 100 * NS_PER_S;
    timer_at = NS_NEVER;
    timer_source = NULL;
    is_bound = shards_there = is_owner = false;
    can_make_sockets = true;
    owner_socket = -1;
    fds_reset();
    sent_serial = 0;
    memset(sent_to, 0, sizeof(sent_to));
    memset(answered, 0, sizeof(answered));
    memset(listeners, 0, sizeof(listeners));
    memset(shard_taken, 0, sizeof(shard_taken));
    memset(shard_held, 0, sizeof(shard_held));
    memset(sources, 0, sizeof(sources));
    udp_settings.ops = &ops;
    before = UDP_CLOSED;
}

/* As in a forked child: nothing of this input is left. What the child leaks is given back here first. */
static void finish(void)
{
    struct claim *leaked = claims;

    discovery_end();
    udp_after_fork_in_child();
    free(leaked);
    require(udp_state() == UDP_CLOSED && !claims_exist());
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input = (struct input){data, size};
    start();
    for (unsigned step = 0; input.left && step < STEPS && fds_made < FDS_MOST - 64; step++) {
        take_step(input_8(&input));
        check();
    }
    finish();
    return 0;
}

/* --- seeds ------------------------------------------------------------------------------------------------------- */

#define STEP(step, number) (uint8_t)((number)*STEP_KINDS + (step))

void fuzz_seeds(fuzz_add *add)
{
    for (uint8_t choice = 0; choice < 32; choice++) {
        /* Nobody has the port; another program has it; a member of our user, or the port owner of another one. */
        const uint8_t alone[] = {STEP(SERVES, 1),
                                 STEP(TIMER, 0),
                                 0,
                                 0,
                                 STEP(TIMER, 0),
                                 choice,
                                 choice,
                                 STEP(TIMER, 0),
                                 choice,
                                 STEP(SERVES, 2),
                                 STEP(TIMER, 0),
                                 STEP(SHARD, 3),
                                 STEP(SERVES, 3),
                                 STEP(TIMER, 0)};
        const uint8_t taken[] = {STEP(BINDS, 1),
                                 choice,
                                 STEP(SERVES, 0),
                                 STEP(TIMER, 0),
                                 0,
                                 STEP(TIME_PASSES, 8),
                                 255,
                                 STEP(TIMER, 0),
                                 0,
                                 choice,
                                 STEP(TIME_PASSES, 8),
                                 255,
                                 STEP(SERVES, 1),
                                 STEP(TIMER, 0),
                                 0};
        const uint8_t others[] = {STEP(BINDS, 1),
                                  choice,
                                  STEP(LISTENS, 0),
                                  choice,
                                  STEP(SERVES, 0),
                                  STEP(TIMER, 0),
                                  0,
                                  0,
                                  0,
                                  0,
                                  5,
                                  STEP(ANSWERS, 0),
                                  (uint8_t)(choice << 5),
                                  1,
                                  choice,
                                  STEP(TIMER, 0),
                                  5,
                                  5,
                                  STEP(ANSWERS, 0),
                                  (uint8_t)(choice << 5),
                                  1,
                                  0,
                                  STEP(TIMER, 0),
                                  STEP(ANSWERS, 0),
                                  1,
                                  STEP(TIMER, 0),
                                  0};

        add(alone, sizeof(alone));
        add(taken, sizeof(taken));
        add(others, sizeof(others));
    }
}
