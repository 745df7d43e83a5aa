/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of rsockets share (docs/rsockets.md). rsockets use the public functions rdma_* and ibv_*: a stream
 * is an RC QP and the state machine of stream.h; a datagram rsocket is a UDP socket with UD QPs. All connection
 * management events come through one event channel, which a service thread reads. Functions return 0 or -errno; those
 * that transfer bytes return the number of bytes. Locks: docs/locking.md. */
#ifndef RSOCKETS_RSOCKET_H
#define RSOCKETS_RSOCKET_H

#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/uio.h>

#include "base/lock.h"
#include "base/timer.h"
#include "front/rdmacm/front.h"
#include "front/rsockets/stream.h"

/* --- defaults (defaults.c): files of /etc/rdma/rsocket, read once ------------------------------- */

struct rsocket_defaults {
    uint32_t send_bytes, receive_bytes;       /* wmem_default, mem_default */
    uint32_t send_requests, receive_requests; /* sqsize_default, rqsize_default */
    uint32_t inline_bytes;                    /* inline_default */
    uint32_t mappings;                        /* iomap_size */
    ns_t polling;                             /* polling_time: how long a thread polls before it sleeps */
};

#define RSOCKET_REQUESTS_MIN 16u
#define RSOCKET_REQUESTS_MAX 0xfffeu
#define RSOCKET_BUFFER_MAX   (1u << 30)

const struct rsocket_defaults *rsocket_defaults(void);
void rsocket_defaults_after_fork_in_child(void);
/* The number in a file; `otherwise` if the file cannot be read. */
uint32_t rsocket_number_in(const char *path, uint32_t otherwise);

/* --- an rsocket ----------------------------------------------------------------------------------------- */

enum rsocket_phase {
    PHASE_NEW,
    PHASE_BOUND,
    PHASE_LISTENING,
    PHASE_CONNECTING, /* as initiator or as listener's child */
    PHASE_CONNECTED,  /* also after the end of the stream: see stream.connected */
    PHASE_FAILED,     /* rconnect() failed */
};

struct rsocket_options {
    uint32_t send_bytes, receive_bytes; /* twice the value that the program set, as in Linux */
    uint32_t send_requests, receive_requests, inline_bytes, mappings;
    bool reuse_address, one_family, one_family_set, no_delay, out_of_band_inline, keepalive;
    struct linger linger;
    uint32_t keepalive_idle, keepalive_interval, keepalive_count; /* seconds, seconds, probes */
    uint8_t tos;
    void *route; /* set by RDMA_ROUTE, until the connection uses it */
    size_t route_bytes;
};

/* Verbs objects and memory of a stream. */
struct rsocket_endpoint {
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *send_mr;
    struct ibv_mr *receive_mr; /* receive ring and table, which the peer writes */
    uint8_t *memory;           /* table, receive ring, send ring */
    size_t memory_bytes;
    uint8_t *receive_ring, *send_ring;
    unsigned unacknowledged;
    unsigned receives_owed;
};

struct datagram;

/* Type-stable: never returned to the heap. A thread that found an rsocket by its number locks it and checks the
 * number again. */
struct rsocket {
    struct lock lock;
    uint32_t generation;
    struct list node; /* in the list of free rsockets, or of a listener's children */
    int fd;           /* -1: not in the table */
    int domain, type;
    int status_flags, descriptor_flags;
    bool nonblocking;
    bool closing;
    unsigned users; /* calls inside */
    enum rsocket_phase phase;
    int error; /* SO_ERROR; positive errno */
    struct rsocket_options options;

    /* Waiting (wait.c). */
    uint32_t changes; /* futex word */
    uint32_t waiters;
    struct list sleepers; /* struct rsocket_sleeper */
    bool leading;         /* a thread sleeps in the completion channel */
    bool armed;           /* the CQ is armed and will report the next completion */

    /* Streams. */
    bool sending, receiving;    /* a call is inside of this direction */
    bool shut_read, shut_write; /* rshutdown() */
    bool told_connected;        /* rconnect() has reported success */
    bool was_bound;             /* bound before rconnect() */
    struct rdma_cm_id *id;
    struct sockaddr_storage local, remote; /* complete once known; until then only the family */
    unsigned connect_tries;
    struct lock cq_lock; /* ranks above lock */
    struct rsocket_endpoint endpoint;
    struct stream stream;
    struct timer keepalive_timer; /* guarded by the service lock, both */
    ns_t keepalive_period;
    struct list mappings; /* linked by struct mapping, iomap.c */
    struct mapping_slot *mapping_slots;
    bool mappings_unsaid;

    /* Listeners and their children (children_lock). */
    struct list children; /* linked by struct rsocket.node: arrived, and not yet accepted by the program */
    unsigned child_count, child_accepted, backlog;
    bool passive;
    struct rsocket *listener; /* set in a child */
    enum { CHILD_HELD, CHILD_ACCEPTED, CHILD_READY } child_state;
    struct rdma_conn_param child_param; /* parameters of a child's request */
    struct rsocket_offer child_offer;

    struct datagram *datagram;
    bool watched; /* guarded by serving_lock (service.c) */
};

static inline bool rsocket_is_stream(const struct rsocket *rsocket)
{
    return rsocket->type == SOCK_STREAM;
}

static inline bool rsocket_must_not_wait(const struct rsocket *rsocket, int flags)
{
    return rsocket->nonblocking || (flags & MSG_DONTWAIT);
}

/* Converts the result of an internal function into that of a socket call. */
static inline ssize_t rsocket_conclude(ssize_t result)
{
    if (likely(result >= 0))
        return result;
    errno = (int)-result;
    return -1;
}

/* --- table.c: numbers --------------------------------------------------------------------------- */

/* rsocket.c: copies an address from the program with the length of its family, and an address to the program. 0 or
 * -errno. */
int rsocket_copy_address(const struct rsocket *rsocket, const struct sockaddr *address, socklen_t length,
                         struct sockaddr_storage *ret_address);
int rsocket_give_address(const struct sockaddr_storage *from, struct sockaddr *to, socklen_t *length);

/* NULL: out of memory. Not in the table yet. */
struct rsocket *rsocket_new(int domain, int type);
/* Returns an rsocket to the list of free ones; no other thread refers to it. */
void rsocket_recycle(struct rsocket *rsocket);
/* Puts it into the table under the number of a descriptor, which it owns from now on. 0 or -errno. */
int rsocket_publish(struct rsocket *rsocket, int fd);
/* Lock held. */
void rsocket_unpublish(struct rsocket *rsocket);
void rsocket_unpublish_number(int fd);
/* Finds and locks the rsocket of a descriptor, until rsocket_leave(). 0 or -EBADF. */
int rsocket_enter(int fd, struct rsocket **ret_rsocket);
void rsocket_leave(struct rsocket *rsocket);
/* Is this number an rsocket's, even one of the parent? */
bool rsocket_is_one(int fd);
/* In a forked child: the parent's rsocket, which only rclose() accepts. NULL: none. */
struct rsocket *rsocket_inherited(int fd);
void rsockets_after_fork_in_child(void);

/* --- wait.c; all with the rsocket's lock held --------------------------------------------------- */

/* Wakes all calls that wait for a change of the rsocket. */
void rsocket_changed(struct rsocket *rsocket);
/* Sleeps until the rsocket changes, without the lock. 0, -EINTR, -ETIMEDOUT. */
int rsocket_sleep(struct rsocket *rsocket, uint32_t seen, ns_t deadline);

struct rsocket_patience {
    ns_t spin_until; /* 0: polling starts with the first wait */
    ns_t deadline;   /* 0: none */
    bool nonblocking;
};

/* One step of waiting for the peer. 0: check again; otherwise -EAGAIN, -EINTR, -ETIMEDOUT. */
int rsocket_wait(struct rsocket *rsocket, struct rsocket_patience *patience);
/* Enters a direction: one call at a time sends, and one receives. 0, -EAGAIN, -EINTR, -ETIMEDOUT. */
int rsocket_enter_direction(struct rsocket *rsocket, bool *busy, const struct rsocket_patience *patience);
void rsocket_leave_direction(struct rsocket *rsocket, bool *busy);

/* Link of a thread in rpoll() in one of its rsockets. */
struct rsocket_sleeper {
    struct list node;
    int wake_fd;
};

/* Does the rsocket have CQs that can complete? */
bool rsocket_can_progress(const struct rsocket *rsocket);
/* Polls its CQs. Drops the lock in between. wait: also if another thread is polling. */
void rsocket_progress(struct rsocket *rsocket, bool wait);
/* Arms the CQ: rsocket_event_fd() becomes readable with the next completion. */
void rsocket_arm(struct rsocket *rsocket);
int rsocket_event_fd(const struct rsocket *rsocket);
/* Reads the completion event, if there is one and no other thread will read it. */
void rsocket_drain(struct rsocket *rsocket);

/* --- endpoint.c --------------------------------------------------------------------------------- */

/* Creates QP, CQ, memory and receives of rsocket->id, which has a device. Lock held. */
int endpoint_open(struct rsocket *rsocket);
/* No other call is inside. The id loses its QP. */
void endpoint_close(struct rsocket *rsocket);
/* Polls the CQ and handles the completions. No lock held. Returns their number. wait: also if another thread is
 * polling. */
unsigned endpoint_progress(struct rsocket *rsocket, bool wait);
/* Lock held. */
void endpoint_fail(struct rsocket *rsocket, int error);
void endpoint_send_control(struct rsocket *rsocket, enum rsocket_control control);
void endpoint_send_credits(struct rsocket *rsocket);
/* Posts data; lock not held. `data`: the inlined bytes. 0 or -errno. */
int endpoint_write(struct rsocket *rsocket, const struct stream_write *write, const void *data);
uint32_t endpoint_inline_limit(void);

/* --- connect.c ---------------------------------------------------------------------------------- */

/* Creates the id of a stream. */
int connect_make_id(struct rsocket *rsocket);
/* Starts connecting to rsocket->remote. Lock held. */
int connect_begin(struct rsocket *rsocket);
/* Waits for the end of connecting. Lock held. 0 or -errno. */
int connect_finish(struct rsocket *rsocket, bool nonblocking);
/* Takes a connected child from the backlog; NULL: none. */
struct rsocket *connect_take_child(struct rsocket *listener);
void connect_return_child(struct rsocket *listener, struct rsocket *child);
bool connect_has_ready_child(struct rsocket *listener);
/* Drops the children of a listener that closes and no longer listens. No lock held. */
void connect_drop_children(struct rsocket *listener);
/* Service thread. */
void connect_handle_event(struct rdma_cm_event *event);
void connect_tend_children(void);
void connect_after_fork_in_child(void);

/* --- service.c: one thread, started when it is needed ------------------------------------------- */

/* NULL with errno. */
struct rdma_event_channel *service_channel(void);
/* 0 or -errno. */
int service_start(void);
/* Makes the service thread call connect_tend_children(). */
void service_tend_children(void);
/* seconds: 0 stops it. 0 or -errno. */
int service_keepalive(struct rsocket *rsocket, uint32_t seconds);
/* The service thread calls datagram_udp_ready() when the UDP socket is readable. 0 or -errno. */
int service_watch_datagrams(struct rsocket *rsocket, int udp);
/* Ends that; on return the service thread is not inside the rsocket. */
void service_unwatch_datagrams(struct rsocket *rsocket, int udp);
void service_after_fork_in_child(void);

/* --- options.c ---------------------------------------------------------------------------------- */

/* Applies options that were set earlier to a new id. Lock held. 0 or -errno. */
int options_apply(struct rsocket *rsocket);

/* --- transfer.c; lock held, and dropped meanwhile ----------------------------------------------- */

ssize_t transfer_send(struct rsocket *rsocket, const struct iovec *parts, size_t count, int flags);
ssize_t transfer_receive(struct rsocket *rsocket, const struct iovec *parts, size_t count, int flags);
/* The error of a send on a connection that cannot send. */
int transfer_send_error(struct rsocket *rsocket);

/* --- iomap.c ------------------------------------------------------------------------------------ */

/* Writes new mappings into the peer's table. Lock held, inside of the send direction. 0 or -errno. */
int mappings_say(struct rsocket *rsocket, struct rsocket_patience *patience);
/* No other call is inside; no lock held. */
void mappings_close(struct rsocket *rsocket);

/* --- poll.c ------------------------------------------------------------------------------------- */

void poll_after_fork_in_child(void);
/* An eventfd that nobody else has, or -errno. */
int poll_take_wake_fd(void);
void poll_return_wake_fd(int fd);

/* --- epoll.c ------------------------------------------------------------------------------------ */

/* Takes a descriptor out of all sets; the rsocket's lock held, and `closing` set. */
void epoll_forget(int fd);
/* 0, or -EBADF: not a set. */
int epoll_close(int fd);
void epoll_after_fork_in_child(void);

/* --- datagram.c; lock held, but for datagram_udp_ready() ---------------------------------------- */

/* The descriptor, or -errno. */
int datagram_open(struct rsocket *rsocket);
/* No other call is inside; no lock held. */
void datagram_close(struct rsocket *rsocket);
int datagram_bind(struct rsocket *rsocket, const struct sockaddr *address, socklen_t length);
int datagram_connect(struct rsocket *rsocket, const struct sockaddr *address, socklen_t length);
ssize_t datagram_send(struct rsocket *rsocket, const struct iovec *parts, size_t count, int flags,
                      const struct sockaddr *to, socklen_t length);
ssize_t datagram_receive(struct rsocket *rsocket, const struct iovec *parts, size_t count, int flags,
                         struct sockaddr *from, socklen_t *from_bytes, int *ret_flags);
int datagram_name(struct rsocket *rsocket, struct sockaddr *address, socklen_t *length, bool peer);
int datagram_set_option(struct rsocket *rsocket, int level, int option, const void *value, socklen_t length);
int datagram_get_option(struct rsocket *rsocket, int level, int option, void *value, socklen_t *length);
/* The UDP socket is readable. Service thread. */
void datagram_udp_ready(struct rsocket *rsocket);
short datagram_events(struct rsocket *rsocket, short events);
void datagram_progress(struct rsocket *rsocket);
void datagram_arm(struct rsocket *rsocket);
/* Clears the wake-up of datagram_wake(). True: there was one. */
bool datagram_drain(struct rsocket *rsocket);
int datagram_event_fd(const struct rsocket *rsocket);
/* Wakes threads that sleep on the rsocket's epoll descriptor. */
void datagram_wake(const struct rsocket *rsocket);

#endif
