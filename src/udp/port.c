/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The state machine that opens UDP port 4791. The port of a network namespace belongs to one user: the user
 * whose process binds it first. Processes of that user are members; each reads the sockets of its own shards
 * (shards.c), and one member is the port owner (port_owner.c). A process of another user is a client: the port
 * owner reads and forwards its packets.
 *
 *   CLOSED --udp_serve()--> OPENING --descriptor set received, or port bound--> OPEN
 *                            |   ^ \--reply of a port owner of another user---> FORWARDED
 *   port bound by another    |   \-----connection to the port owner lost---------/
 *   program, or no reply     v
 *                           OFF  (udp_serve() tries again after OFF_FOR)
 *
 * A member that loses the port owner stays OPEN and takes ownership or finds the new port owner. All of this
 * runs in the helper thread and never blocks; udp_serve() waits for the result. */
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sys.h"
#include "base/user.h"
#include "udp/control_message.h"
#include "udp/internal.h"

#define RETRY_AFTER (10 * NS_PER_MS)
#define SHARD_RETRY (100 * NS_PER_MS)
/* The port is bound, and no process of SoftHCA listens: its owner may be starting up or may have just died. */
#define UNKNOWN_OWNER_TIMEOUT (2 * NS_PER_S)
/* A process of SoftHCA has the port and does not reply: stopped, or waiting for a processor. */
#define MEMBER_TIMEOUT (20 * NS_PER_S)
#define OFF_FOR        (2 * NS_PER_S)

struct udp_settings udp_settings;

static _Atomic uint32_t state;      /* enum udp_state; written by the helper thread */
static _Atomic uint32_t owner_uid;  /* UDP_FORWARDED: uid of the port owner; written before `state` */
static _Atomic uint32_t changes;    /* futex: wakes udp_serve() to look at state and claims */
static _Atomic bool wake_requested; /* port_wake() was called; partner: run() */

static struct lock reason_lock = LOCK_INIT; /* leaf */
static char reason[UDP_REASON_MAX];

/* Only the helper thread uses these. */
static struct event_source timer = {.fd = -1};
static struct event_source upstream = {.fd = -1}; /* connection to the port owner */
static uint32_t serial, acknowledged;             /* of the last REQUEST sent upstream, of its last REPLY */
static bool is_port_owner;
static bool found_member; /* discovery has connected to a process whose user may have the port */
static ns_t began;        /* start of OPENING */
static ns_t off_until, retry_at = NS_NEVER;

static struct lock start_lock = LOCK_INIT; /* guards the timer's creation */

static void run(void);

/* --- state --------------------------------------------------------------------------------------- */

enum udp_state udp_state(void)
{
    return (enum udp_state)atomic_load_explicit(&state, memory_order_acquire);
}

void udp_reason(char ret_text[UDP_REASON_MAX])
{
    lock_acquire(&reason_lock);
    memcpy(ret_text, reason, sizeof(reason));
    lock_release(&reason_lock);
}

static void wake_waiters(void)
{
    atomic_fetch_add_explicit(&changes, 1, memory_order_release);
    sys_futex((uint32_t *)&changes, FUTEX_WAKE_PRIVATE, INT32_MAX, NS_NEVER);
}

static void set_state(enum udp_state to)
{
    atomic_store_explicit(&state, to, memory_order_release);
    wake_waiters();
}

static void __attribute__((format(printf, 1, 2))) set_off(const char *format, ...)
{
    va_list arguments;

    lock_acquire(&reason_lock);
    va_start(arguments, format);
    vsnprintf(reason, sizeof(reason), format, arguments);
    va_end(arguments);
    lock_release(&reason_lock);
    log_error("cannot receive from the network: %s. Traffic within this host is not affected. The next QP "
              "that needs the network tries again, after %u s at the earliest",
              reason, (unsigned)(OFF_FOR / NS_PER_S));
    discovery_end();
    off_until = sys_now() + OFF_FOR;
    retry_at = NS_NEVER;
    set_state(UDP_OFF);
}

static bool is_member(void)
{
    return udp_state() == UDP_OPEN;
}

bool port_is_own_user(const struct ucred *peer)
{
    return user_is_own(peer->uid);
}

bool udp_trusts(uid_t uid)
{
    return user_is_own(uid) ||
           (udp_state() == UDP_FORWARDED && atomic_load_explicit(&owner_uid, memory_order_relaxed) == uid);
}

static void retry_in(ns_t delay)
{
    retry_at = min_of(retry_at, sys_now() + delay);
}

/* --- connection to the port owner ---------------------------------------------------------------- */

/* Declares claims that the port owner does not know. true: there are more. */
static bool declare_some(bool with_proof)
{
    struct udp_message message = {.magic = UDP_MESSAGE_MAGIC,
                                  .version = UDP_MESSAGE_VERSION,
                                  .type = UDP_MESSAGE_REQUEST,
                                  .serial = serial + 1};
    int proofs[UDP_MESSAGE_BLOCKS];
    bool more = claims_declare(&message, proofs);
    int error;

    serial++;
    if (message.block_count == 0)
        return false;
    error = udp_message_send(upstream.fd, &message, proofs, with_proof ? message.block_count : 0);
    if (!error)
        return more;
    /* The socket is full, or too many descriptors are on their way, because the port owner is stopped or busy; or the
     * connection is lost, which is reported, too. */
    claims_take_back(message.serial);
    if (error != -EAGAIN && error != -ETOOMANYREFS)
        log_warn("cannot register QPNs with the owner of UDP port 4791: %s: this process receives nothing "
                 "from other hosts",
                 strerror(-error));
    retry_in(SHARD_RETRY);
    return false;
}

static void declare_all(void)
{
    while (upstream.fd >= 0 && declare_some(!is_member())) {
    }
}

static void forget_declarations(void)
{
    claims_forget_declarations();
    groups_forget_declarations();
}

static void lose_upstream(void)
{
    event_close(&upstream);
    port_owner_use_forwarding_socket(-1);
    forget_declarations();
    /* What was declared arrives no more, until another port owner has acknowledged it. */
    (void)claims_update(is_member(), is_port_owner, acknowledged);
}

static void upstream_ready(struct event_source *source, uint32_t events)
{
    int fds[UDP_MESSAGE_FDS], error;
    struct udp_message message;
    unsigned fd_count;

    error = udp_message_receive(source->fd, UDP_MESSAGE_REPLY, &message, fds, &fd_count);
    for (unsigned i = 0; i < fd_count; i++)
        fd_close(fds[i]);
    if (error == -EAGAIN)
        return;
    if (error) {
        log_info("owner of UDP port 4791 disconnected, looking for a new one");
        lose_upstream();
        if (udp_state() == UDP_FORWARDED) {
            began = sys_now();
            set_state(UDP_OPENING);
        }
    } else if ((int32_t)(serial - message.serial) >= 0) {
        acknowledged = message.serial; /* one ahead would count for the next port owner, too */
    }
    run();
}

/* A client accepts forwarded packets only from the user whose socket is bound to the port. */
static bool has_bound_port(const struct ucred *peer)
{
    uid_t owner;

    if (socket_port_uid(&owner) == 0 && owner == peer->uid && user_is_known(owner))
        return true;
    log_warn("process %d (uid %u) offered to forward packets of UDP port 4791, but the port is bound by "
             "another user: offer ignored, so this process receives nothing from other hosts",
             (int)peer->pid, (unsigned)peer->uid);
    return false;
}

static bool keep_upstream(const struct event_source *connection)
{
    upstream = (struct event_source){.fd = connection->fd, .ready = upstream_ready};
    if (event_change(&upstream, EPOLLIN) != 0) {
        upstream.fd = -1;
        return false;
    }
    forget_declarations();
    return true;
}

static int take_fd(int *fds, unsigned fd_count, unsigned index)
{
    int fd = -1;

    if (index < fd_count) {
        fd = fds[index];
        fds[index] = -1;
    }
    return fd;
}

static void become_member(void)
{
    discovery_end(); /* a later reply would bring a second descriptor of the lock file (control_message.h) */
    set_state(UDP_OPEN);
    (void)port_owner_listen(); /* after a failure new processes find other members */
    port_wake();
}

/* A listening process of a user who may have the port does have it, however late its reply comes. */
void port_peer_found(const struct ucred *peer)
{
    uid_t owner;

    if (!found_member)
        found_member = port_is_own_user(peer) || (socket_port_uid(&owner) == 0 && owner == peer->uid);
}

bool port_reply_received(const struct ucred *peer, const struct udp_message *message, int *fds,
                         unsigned fd_count, struct event_source *connection)
{
    bool is_own = port_is_own_user(peer), kept = false;
    unsigned after_set = message->flags & UDP_MESSAGE_HAS_DESCRIPTOR_SET ? 2 : 0;

    found_member = true;
    if (is_own && after_set == 2 && fd_count >= 2 && !shards_are_there()) {
        shards_adopt(take_fd(fds, fd_count, 0), take_fd(fds, fd_count, 1));
        log_debug("UDP port 4791: using the sockets of process %d", (int)peer->pid);
        become_member();
    }
    if ((message->flags & UDP_MESSAGE_FROM_PORT_OWNER) && upstream.fd < 0 && !is_port_owner &&
        (is_own ? is_member() : !is_member() && has_bound_port(peer)))
        kept = keep_upstream(connection);
    if (!kept)
        return false;
    if (is_own) {
        if (message->flags & UDP_MESSAGE_HAS_FORWARDING_SOCKET)
            port_owner_use_forwarding_socket(take_fd(fds, fd_count, after_set));
    } else {
        log_info("UDP port 4791 is owned by uid %u: process %d forwards the packets for this process",
                 (unsigned)peer->uid, (int)peer->pid);
        forwarding_set_polled();
        atomic_store_explicit(&owner_uid, peer->uid, memory_order_relaxed);
        set_state(UDP_FORWARDED);
    }
    discovery_end();
    port_wake();
    return true;
}

/* --- opening ------------------------------------------------------------------------------------- */

static void explain_owner(void)
{
    bool kernel = access("/sys/module/rdma_rxe", F_OK) == 0;
    uid_t uid;

    if (found_member)
        set_off(
            "the process that owns UDP port 4791 does not answer (stopped? As root, ss -uanp 'sport = 4791' "
            "names it)");
    else if (socket_port_uid(&uid) != 0)
        set_off("UDP port 4791 is in use, but by no socket that /proc/net/udp or udp6 shows bound to all "
                "addresses (as root, "
                "ss -uanp 'sport = 4791' shows those of one address)");
    else if (uid == 0 && kernel)
        set_off("UDP port 4791 is in use by the kernel's Soft-RoCE: remove it (modprobe -r rdma_rxe), or use "
                "another "
                "network namespace");
    else
        set_off("UDP port 4791 is in use by another program of uid %u (as root, ss -uanp 'sport = 4791' "
                "names it)",
                (unsigned)uid);
}

static bool kernel_has_port(void)
{
    uid_t uid;

    return !found_member && access("/sys/module/rdma_rxe", F_OK) == 0 && socket_port_uid(&uid) == 0 &&
           uid == 0;
}

/* No member has replied: bind the port if it is free. */
static void try_to_bind(void)
{
    int error = shards_make();

    if (!error) {
        log_debug("UDP port 4791 bound");
        become_member();
    } else if (error != -EADDRINUSE) {
        set_off("cannot create the sockets of UDP port 4791: %s", strerror(-error));
    } else if (kernel_has_port() ||
               sys_now() - began > (found_member ? MEMBER_TIMEOUT : UNKNOWN_OWNER_TIMEOUT)) {
        explain_owner();
    } else {
        retry_in(RETRY_AFTER);
    }
}

void port_discovery_ended(void)
{
    if (udp_state() == UDP_OPENING)
        try_to_bind();
    else if (is_member() && !is_port_owner && upstream.fd < 0)
        retry_in(RETRY_AFTER);
}

static void find_port_owner(void)
{
    if (shards_acquire_ownership()) {
        is_port_owner = true;
        port_owner_take_ownership();
        log_debug("this process is now the owner of UDP port 4791");
    } else if (!discovery_is_running()) {
        discovery_begin();
    }
}

static void open_port(void)
{
    if (udp_state() != UDP_OPENING) {
        began = sys_now();
        found_member = false;
        set_state(UDP_OPENING);
    }
    if (!discovery_is_running())
        discovery_begin();
}

/* One step of the state machine. asked: a thread has called port_wake() since the last step. */
static void step(bool asked)
{
    bool missing;

    switch (udp_state()) {
    case UDP_CLOSED:
    case UDP_OPENING:
        if (claims_exist())
            open_port();
        groups_step(GROUPS_NOT_YET, -1, &serial, acknowledged);
        break;
    case UDP_OFF:
        if (asked && sys_now() >= off_until)
            open_port();
        break;
    case UDP_OPEN:
        if (!is_port_owner && upstream.fd < 0)
            find_port_owner();
        declare_all();
        missing = claims_update(true, is_port_owner, acknowledged);
        if (port_owner_acquire_missing() || missing)
            retry_in(SHARD_RETRY);
        groups_step(GROUPS_BY_SOCKET, -1, &serial, acknowledged);
        break;
    case UDP_FORWARDED:
        declare_all();
        (void)claims_update(false, is_port_owner, acknowledged);
        groups_step(GROUPS_BY_PORT_OWNER, upstream.fd, &serial, acknowledged);
        break;
    }
    wake_waiters();
}

/* --- running the state machine ------------------------------------------------------------------- */

static void set_timer(ns_t when, int flags)
{
    struct itimerspec setting = {0};
    int saved = errno;

    if (when != NS_NEVER) {
        setting.it_value.tv_sec = (time_t)(when / NS_PER_S);
        setting.it_value.tv_nsec = (long)(when % NS_PER_S) | 1; /* all zero would disarm it */
    }
    if (event_is_intact(&timer) && timerfd_settime(timer.fd, flags, &setting, NULL) < 0)
        log_error("UDP port 4791: cannot set the timer (timerfd_settime: %m): the port may stay unopened, or "
                  "without an owner when its owner ends, and then no packets from other hosts arrive");
    errno = saved;
}

static void run(void)
{
    do {
        bool asked = atomic_exchange_explicit(&wake_requested, false, memory_order_seq_cst);
        ns_t now = sys_now(), expiry;

        discovery_expire(now);
        port_owner_expire(now);
        if (retry_at <= now)
            retry_at = NS_NEVER;
        step(asked);
        expiry = min_of(discovery_deadline(), port_owner_deadline());
        set_timer(min_of(retry_at, expiry), TFD_TIMER_ABSTIME);
        /* port_wake() sets `wake_requested` before the timer. If set_timer() above has overwritten its setting, the
         * loop sees the flag. */
    } while (atomic_load_explicit(&wake_requested, memory_order_seq_cst));
}

static void timer_ready(struct event_source *source, uint32_t events)
{
    uint64_t expirations;

    if (read(source->fd, &expirations, sizeof(expirations)) < 0 && errno != EAGAIN)
        log_error("UDP port 4791: cannot read the timerfd (%s; has the program closed file descriptors of "
                  "SoftHCA?): the helper thread may use a whole processor",
                  strerror(errno));
    run();
}

void port_wake(void)
{
    atomic_store_explicit(&wake_requested, true, memory_order_seq_cst);
    set_timer(0, 0);
}

static int start_timer(void)
{
    int saved = errno, error = 0;

    lock_acquire(&start_lock);
    if (timer.fd < 0) {
        int fd = fd_own(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
        const char *failed = fd < 0 ? "timerfd_create" : "epoll_ctl";

        error = fd < 0 ? -errno : 0;
        timer.ready = timer_ready;
        if (!error) {
            timer.fd = fd;
            error = event_add(&timer, EPOLLIN);
        }
        if (error) {
            timer.fd = -1;
            fd_close(fd);
            log_error("UDP port 4791: cannot make its timer (%s: %s): this process receives nothing from "
                      "other hosts",
                      failed, strerror(-error));
        }
    }
    lock_release(&start_lock);
    errno = saved;
    return error;
}

/* --- public functions ---------------------------------------------------------------------------- */

int udp_serve(uint32_t block, int proof)
{
    return udp_serve_within(block, proof, MEMBER_TIMEOUT + UNKNOWN_OWNER_TIMEOUT);
}

int udp_serve_within(uint32_t block, int proof, ns_t timeout)
{
    ns_t deadline = sys_now() + timeout;
    uint32_t first;
    int error;

    if (likely(udp_serves(block)))
        return 0;
    error = start_timer();
    if (!error)
        error = claims_add(block, proof);
    if (error)
        return error;
    first = atomic_load_explicit(&changes, memory_order_acquire);
    port_wake();
    for (;;) {
        uint32_t seen = atomic_load_explicit(&changes, memory_order_acquire);
        ns_t now = sys_now();

        if (udp_serves(block))
            return 0;
        if (seen != first && udp_state() == UDP_OFF)
            return -EADDRINUSE;
        if (now >= deadline)
            return -ETIMEDOUT;
        sys_futex((uint32_t *)&changes, FUTEX_WAIT_PRIVATE, seen, deadline - now);
    }
}

/* For tests of the transport under packet loss. */
static unsigned percent_to_lose(void)
{
    const char *text = secure_getenv("SOFTHCA_UDP_LOSS");
    char *end;
    unsigned long percent;

    if (!text)
        return 0;
    percent = strtoul(text, &end, 10);
    if (end != text && !*end && percent <= 100)
        return (unsigned)percent;
    log_warn("SOFTHCA_UDP_LOSS=%s: invalid percentage (0 to 100); no packet loss is simulated", text);
    return 0;
}

void udp_start(const struct udp_ops *ops, const struct udp_options *options)
{
    const char *mode = secure_getenv("SOFTHCA_UDP");

    udp_settings = (struct udp_settings){.ops = ops, .options = *options, .loss = percent_to_lose()};
    if (options->counters)
        udp_counters = options->counters;
    if (!mode || strcmp(mode, "auto") == 0)
        return;
    if (strcmp(mode, "plain") == 0)
        udp_settings.plain = true;
    else
        log_warn("SOFTHCA_UDP=%s: invalid (valid: auto, plain); using auto", mode);
}

void udp_after_fork_in_child(void)
{
    lane_after_fork_in_child();
    receive_after_fork_in_child();
    shards_after_fork_in_child();
    groups_after_fork_in_child();
    forwarding_after_fork_in_child();
    discovery_after_fork_in_child();
    port_owner_after_fork_in_child();
    claims_after_fork_in_child();
    lock_init(&reason_lock);
    lock_init(&start_lock);
    atomic_store_explicit(&state, UDP_CLOSED, memory_order_relaxed);
    atomic_store_explicit(&wake_requested, false, memory_order_relaxed);
    timer.fd = upstream.fd = -1;
    is_port_owner = found_member = false;
    serial = acknowledged = 0;
    began = off_until = 0;
    retry_at = NS_NEVER;
}
