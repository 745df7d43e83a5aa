/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of rsockets share (docs/rsockets.md). They are a program of rdma_* and ibv_* like any other:
 * a stream is an RC QP and what stream.h says of it, a datagram socket a UDP socket with UD QPs.
 * Everything of connection management comes through one event channel, and a service thread that reads it.
 *
 * Functions return 0 or -errno, those that move bytes how many. Locks: docs/locking.md.
 */
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
    ns_t polling;                             /* polling_time: before a thread goes to sleep */
};

#define RSOCKET_REQUESTS_MIN 16u
#define RSOCKET_REQUESTS_MAX 0xfffeu
#define RSOCKET_BUFFER_MAX   (1u << 30)

const struct rsocket_defaults *rsocket_defaults(void);
void rsocket_defaults_after_fork_in_child(void);
/* What a file says that holds a number; `otherwise` if there is none. */
uint32_t rsocket_number_in(const char *path, uint32_t otherwise);

/* --- an rsocket ----------------------------------------------------------------------------------------- */

enum rsocket_phase {
    PHASE_NEW,
    PHASE_BOUND,
    PHASE_LISTENING,
    PHASE_CONNECTING, /* either side */
    PHASE_CONNECTED,  /* and afterwards: stream.connected */
    PHASE_FAILED,     /* rconnect() */
};

struct rsocket_options {
    uint32_t send_bytes, receive_bytes; /* twice what the program asked for, as Linux */
    uint32_t send_requests, receive_requests, inline_bytes, mappings;
    bool reuse_address, one_family, one_family_set, no_delay, out_of_band_inline, keepalive;
    struct linger linger;
    uint32_t keepalive_idle, keepalive_interval, keepalive_count; /* s, s, - */
    uint8_t tos;
    void *route; /* RDMA_ROUTE, until it is used */
    size_t route_bytes;
};

/* Of a stream: verbs objects and memory. */
struct rsocket_endpoint {
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *send_mr;
    struct ibv_mr *receive_mr; /* of the ring and of the table, which peers write */
    uint8_t *memory;           /* table, receive ring, send ring */
    size_t memory_bytes;
    uint8_t *receive_ring, *send_ring;
    unsigned unacknowledged;
    unsigned receives_owed;
};

struct datagram;

/* Type-stable: never given back to the heap. Whoever found one by its number locks it and looks again. */
struct rsocket {
    struct lock lock;
    uint32_t generation;
    struct list node; /* free ones; children of a listener */
    int fd;           /* -1: not (any more) in the table */
    int domain, type;
    int status_flags, descriptor_flags;
    bool nonblocking;
    bool closing;
    unsigned users; /* calls that are in it */
    enum rsocket_phase phase;
    int error; /* SO_ERROR, positive */
    struct rsocket_options options;

    /* Waiting (wait.c). */
    uint32_t changes; /* futex word */
    uint32_t waiters;
    struct list sleepers; /* struct rsocket_sleeper */
    bool leading;         /* a thread reads the completion channel */
    bool armed;           /* the CQ will tell it */

    /* Streams. */
    bool sending, receiving;    /* a call has the turn */
    bool shut_read, shut_write; /* rshutdown() */
    bool told_connected;        /* rconnect() */
    bool was_bound;             /* before it */
    struct rdma_cm_id *id;
    struct sockaddr_storage local, remote; /* once known; else the family only */
    unsigned connect_tries;
    struct lock cq_lock; /* before lock */
    struct rsocket_endpoint endpoint;
    struct stream stream;
    struct timer keepalive_timer; /* service lock, both */
    ns_t keepalive_period;
    struct list mappings; /* struct mapping, iomap.c */
    struct mapping_slot *mapping_slots;
    bool mappings_unsaid;

    /* Listeners and their children (children_lock). */
    struct list children; /* struct rsocket.node: arrived, and not yet the program's */
    unsigned child_count, child_accepted, backlog;
    bool passive;
    struct rsocket *listener; /* of a child */
    enum { CHILD_HELD, CHILD_ACCEPTED, CHILD_READY } child_state;
    struct rdma_conn_param child_param; /* of the request */
    struct rsocket_offer child_offer;

    struct datagram *datagram;
    bool watched; /* serving lock (service.c) */
};

static inline bool rsocket_is_stream(const struct rsocket *rsocket)
{
    return rsocket->type == SOCK_STREAM;
}

static inline bool rsocket_must_not_wait(const struct rsocket *rsocket, int flags)
{
    return rsocket->nonblocking || (flags & MSG_DONTWAIT);
}

/* Returns what a function of ours says, as one of sockets does. */
static inline ssize_t rsocket_conclude(ssize_t result)
{
    if (likely(result >= 0))
        return result;
    errno = (int)-result;
    return -1;
}

/* --- table.c: numbers --------------------------------------------------------------------------- */

/* Of rsocket.c: a copy that is as long as its family says; what a program is given. 0 or -errno. */
int rsocket_copy_address(const struct rsocket *rsocket, const struct sockaddr *address, socklen_t length,
                         struct sockaddr_storage *ret_address);
int rsocket_give_address(const struct sockaddr_storage *from, struct sockaddr *to, socklen_t *length);

/* NULL: no memory. Not in the table yet. */
struct rsocket *rsocket_new(int domain, int type);
/* Nobody knows it any more. */
void rsocket_recycle(struct rsocket *rsocket);
/* Enters it under the number of a descriptor, which is its from now on. 0 or -errno. */
int rsocket_publish(struct rsocket *rsocket, int fd);
/* Lock held. */
void rsocket_unpublish(struct rsocket *rsocket);
void rsocket_unpublish_number(int fd);
/* Enters and locks it, until rsocket_leave(). -EBADF. */
int rsocket_enter(int fd, struct rsocket **ret_rsocket);
void rsocket_leave(struct rsocket *rsocket);
/* Is there one under this number, dead or alive? */
bool rsocket_is_one(int fd);
/* Of a parent, in its forked child: only rclose() takes it. NULL: not that. */
struct rsocket *rsocket_inherited(int fd);
void rsockets_after_fork_in_child(void);

/* --- wait.c; all with the rsocket's lock held --------------------------------------------------- */

/* Somebody may be waiting for what has just changed. */
void rsocket_changed(struct rsocket *rsocket);
/* Sleeps until something changes; without the lock meanwhile. 0, -EINTR, -ETIMEDOUT. */
int rsocket_sleep(struct rsocket *rsocket, uint32_t seen, ns_t deadline);

struct rsocket_patience {
    ns_t spin_until; /* 0: begins now */
    ns_t deadline;   /* 0: none */
    bool nonblocking;
};

/* One step of waiting for something of a peer. 0: look again; else -EAGAIN, -EINTR, -ETIMEDOUT. */
int rsocket_wait(struct rsocket *rsocket, struct rsocket_patience *patience);
/* The turn of a direction: 0, -EAGAIN, -EINTR, -ETIMEDOUT. */
int rsocket_take_turn(struct rsocket *rsocket, bool *turn, const struct rsocket_patience *patience);
void rsocket_return_turn(struct rsocket *rsocket, bool *turn);

/* A thread in rpoll(), at one of its rsockets. */
struct rsocket_sleeper {
    struct list node;
    int wake_fd;
};

/* Are there CQs from which something may come? */
bool rsocket_can_progress(const struct rsocket *rsocket);
/* Takes what has completed. Drops the lock meanwhile. wait: also if another thread is at it. */
void rsocket_progress(struct rsocket *rsocket, bool wait);
/* From now on rsocket_event_fd() becomes readable with the next completion. */
void rsocket_arm(struct rsocket *rsocket);
int rsocket_event_fd(const struct rsocket *rsocket);
/* Reads the completion event if it is there and nobody else is going to. */
void rsocket_drain(struct rsocket *rsocket);

/* --- endpoint.c --------------------------------------------------------------------------------- */

/* QP, CQ, memory and receives of rsocket->id, which has a device. Lock held. */
int endpoint_open(struct rsocket *rsocket);
/* With nobody else in the rsocket; the id loses its QP. */
void endpoint_close(struct rsocket *rsocket);
/* Takes what has completed and what follows from it. No lock held. Returns how many. wait: also if another
 * thread is at it. */
unsigned endpoint_progress(struct rsocket *rsocket, bool wait);
/* Lock held. */
void endpoint_fail(struct rsocket *rsocket, int error);
void endpoint_send_control(struct rsocket *rsocket, enum rsocket_control control);
void endpoint_send_credits(struct rsocket *rsocket);
/* Posts data; without the lock. `data`: what is inlined. 0 or -errno. */
int endpoint_write(struct rsocket *rsocket, const struct stream_write *write, const void *data);
uint32_t endpoint_inline_limit(void);

/* --- connect.c ---------------------------------------------------------------------------------- */

/* Makes the id of a stream. */
int connect_make_id(struct rsocket *rsocket);
/* To rsocket->remote; lock held. */
int connect_begin(struct rsocket *rsocket);
/* Waits until a connection that is being made is there; lock held. 0 or -errno. */
int connect_finish(struct rsocket *rsocket, bool nonblocking);
/* A child that is connected; NULL: there is none. */
struct rsocket *connect_take_child(struct rsocket *listener);
void connect_return_child(struct rsocket *listener, struct rsocket *child);
bool connect_has_ready_child(struct rsocket *listener);
/* Of a listener that closes, and listens no more. No lock held. */
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
/* Has connect_tend_children() called. */
void service_tend_children(void);
/* seconds: 0 stops it. 0 or -errno. */
int service_keepalive(struct rsocket *rsocket, uint32_t seconds);
/* Tells the datagram socket when its UDP socket is readable. 0 or -errno. */
int service_watch_datagrams(struct rsocket *rsocket, int udp);
/* Afterwards the service thread is not in it. */
void service_unwatch_datagrams(struct rsocket *rsocket, int udp);
void service_after_fork_in_child(void);

/* --- options.c ---------------------------------------------------------------------------------- */

/* Tells a new id what was set before. Lock held. 0 or -errno. */
int options_apply(struct rsocket *rsocket);

/* --- transfer.c; lock held, and dropped meanwhile ----------------------------------------------- */

ssize_t transfer_send(struct rsocket *rsocket, const struct iovec *parts, size_t count, int flags);
ssize_t transfer_receive(struct rsocket *rsocket, const struct iovec *parts, size_t count, int flags);
/* Why nothing can be sent any more. */
int transfer_send_error(struct rsocket *rsocket);

/* --- iomap.c ------------------------------------------------------------------------------------ */

/* Says what has been mapped since. Lock and the turn to send held. 0 or -errno. */
int mappings_say(struct rsocket *rsocket, struct rsocket_patience *patience);
/* With nobody else in it; no lock. */
void mappings_close(struct rsocket *rsocket);

/* --- poll.c ------------------------------------------------------------------------------------- */

void poll_after_fork_in_child(void);

/* --- datagram.c; lock held, but for datagram_udp_ready() ---------------------------------------- */

/* The descriptor, or -errno. */
int datagram_open(struct rsocket *rsocket);
/* With nobody else in it; no lock. */
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
/* Forgets what has been told. True: there was something. */
bool datagram_drain(struct rsocket *rsocket);
int datagram_event_fd(const struct rsocket *rsocket);
/* Whoever sleeps on that descriptor wakes up. */
void datagram_wake(const struct rsocket *rsocket);

#endif
