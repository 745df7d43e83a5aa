/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of librdmacm.so.1 share. The adapter is in libibverbs.so.1: devices, QPs and what belongs to
 * them are reached through verbs; connections, services and ports through engine/cm/agent.h. Here are
 * ids, event channels, addresses, and the conventions of rdma_cm (verbs.md §0.1, §11): 0, or -1 with
 * errno.
 *
 * Below the exported functions, functions return 0 or -errno.
 */
#ifndef FRONT_RDMACM_FRONT_H
#define FRONT_RDMACM_FRONT_H

#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/list.h"
#include "base/types.h"
#include "engine/cm/agent.h"
#include "segment/segment.h"

#define RDMACM_EXPORT __attribute__((visibility("default")))

/* IBA A11: what the header takes of a REQ's private data is not the program's. */
#define CONNECT_PRIVATE   (CM_REQ_PRIVATE - CMA_HEADER_LENGTH)
#define RESOLVE_PRIVATE   (CM_SIDR_REQ_PRIVATE - CMA_HEADER_LENGTH)
#define MULTICAST_QPN     0xffffffu
#define DEFAULT_PKEY      0xffffu
#define HOP_LIMIT         64
#define ROUTE_TIMEOUT_MS  2000
#define BACKLOG_MAX       1024 /* the kernel's default of /proc/sys/net/rdma_ucm/max_backlog */
#define ADDRESS_BYTES_MAX sizeof(struct sockaddr_storage)

/* 0 or -1 with errno. */
static inline int conclude(int result)
{
    if (likely(result >= 0))
        return 0;
    errno = -result;
    return -1;
}

/* --- start.c: the other library ------------------------------------------------------------------------- */

extern const struct cm_agent_calls *calls;
/* Before anything else in every function that makes something: 0, -ENODEV (no RDMA device)... Again in the
 * child of a fork. */
int start(void);
/* Forks since the first process; what was made before one is dead in the child. */
uint32_t generation(void);

/* --- adapter.c: devices, opened once and for the life of the process ------------------------------------ */

struct adapter {
    struct ibv_context *verbs;
    uint64_t guid;
    uint8_t responder_resources, initiator_depth; /* of one QP at most */
    struct ibv_pd *pd;                            /* NULL: nobody uses it */
    unsigned pd_users;
    struct ibv_xrcd *xrcd; /* of all its XRC ids; stays open; NULL: there was none yet */
};

#define ADAPTERS_MAX 64
/* 0 or -errno; all that there are now. */
int adapters_list(struct ibv_context *ret_verbs[ADAPTERS_MAX], unsigned *ret_count);
/* The device that has the address, and the index of the GID to use. ifindex: of the interface, 0: any.
 * -ENODEV: there is none. */
int adapter_find(const union ibv_gid *gid, uint32_t ifindex, struct adapter **ret_adapter,
                 uint8_t *ret_sgid_index);
/* The device that has the address, as far as it is known without looking at the interfaces again; NULL: none.
 */
const struct adapter *adapter_known(const union ibv_gid *gid);
/* A GID of that index; of the device's port. */
int adapter_gid(const struct adapter *adapter, uint8_t sgid_index, union ibv_gid *ret_gid);
/* The default PD, for one id; NULL with errno. */
struct ibv_pd *adapter_get_pd(struct adapter *adapter);
void adapter_put_pd(struct adapter *adapter);
/* NULL and errno. */
struct ibv_xrcd *adapter_get_xrcd(struct adapter *adapter);
void adapters_forget(void);

/* --- address.c: addresses and what they mean to InfiniBand ---------------------------------------------- */

/* -EINVAL: not an address of a family that we know. The length that the family has. */
int address_length(const struct sockaddr *address);
bool address_is_any(const struct sockaddr *address);
/* 127/8 and ::1. Bound to it, as to none, an id has no device. */
bool address_is_loopback(const struct sockaddr *address);
bool address_is_multicast(const struct sockaddr *address);
/* In host order. */
uint16_t address_port(const struct sockaddr *address);
void address_set_port(struct sockaddr *address, uint16_t port);
union ibv_gid address_gid(const struct sockaddr *address);
/* The interface that an address with a scope names; 0: none. */
uint32_t address_scope(const struct sockaddr *address);
bool addresses_equal(const struct sockaddr *a, const struct sockaddr *b);
/* Where packets to `to` come from, as the kernel's routing says; `from` (may be NULL) as far as it is
 * specific. 0 or -errno. */
int address_source(const struct sockaddr *to, const struct sockaddr *from,
                   struct sockaddr_storage *ret_source);
/* What the service id of an address is in a port space. */
uint64_t address_service(const struct sockaddr *address, enum rdma_port_space ps);

/* --- channel.c: queues of events ------------------------------------------------------------------------ */

struct channel;
struct id;

struct multicast {
    struct list node;
    struct sockaddr_storage address;
    union ibv_gid gid;
    bool attached;
    void *context;
    uint32_t reported, acknowledged; /* as in struct id */
};

struct event {
    struct rdma_cm_event public;
    struct list node;            /* of a channel's events; of id.handed, once the program has it */
    struct id *account;          /* acknowledging it counts there, or, if it has one: */
    struct multicast *multicast; /* there */
    struct id *child;            /* CONNECT_REQUEST: the new id, until the program has it */
    struct cm_ece ece;           /* CONNECT_RESPONSE */
    uint8_t private_data[CM_PRIVATE_MAX];
};

/* NULL without memory. */
struct event *event_new(struct id *id, enum rdma_cm_event_type type, int status);
/* Into the queue of the id's channel. Any thread. */
void event_push(struct event *event);
/* Hands event->account over to another id (rdma_get_request()). */
void event_transfer(struct event *event, struct id *to);
/* Makes an event of it and queues it: 0 or -ENOMEM. */
int event_raise(struct id *id, enum rdma_cm_event_type type, int status);
/* Takes the unread events of an id, and of children that nobody knows of yet, out of its channel. */
void events_take(struct id *id, struct list *ret_events);
/* Takes the unread event of a group out, and forgets it. */
void events_drop_multicast(struct id *id, const struct multicast *multicast);
/* Waits until all events that were handed out are acknowledged. call: who waits, for explanations. */
void events_settle(struct id *id, enum id_call call);
void multicast_settle(struct id *id, struct multicast *multicast);
/* Moves an id and its unread events. -EBADF: that channel is destroyed. */
int events_move(struct id *id, struct rdma_event_channel *to);
/* Acknowledges in the program's name what it has: afterwards that has no id. */
void events_disown(struct id *id);
/* 0 or -errno; *ret_event belongs to the program until it is acknowledged. */
int events_next(struct rdma_event_channel *channel, struct event **ret_event);
struct rdma_event_channel *channel_new(void);
/* Its ids end (id_end()). Again: nothing. */
void channel_free(struct rdma_event_channel *channel);
/* The id's events come there. -EBADF: it is destroyed. */
int channel_join(struct rdma_event_channel *channel, struct id *id);
void channel_leave(struct id *id);
void channels_after_fork_in_child(void);

/* --- id.c ----------------------------------------------------------------------------------------------- */

struct id {
    struct rdma_cm_id public;
    struct id_record *record; /* what explanations know of it; NULL: nothing */
    uint32_t generation;
    _Atomic uint32_t state; /* enum id_state */
    _Atomic bool destroyed; /* its memory rests, or its thread is about to see to that */
    _Atomic bool ended;     /* its channel is destroyed */
    bool synchronous;       /* has a channel of its own */
    bool passive;
    bool reuse_address, one_family, one_family_set;
    bool tos_set;
    bool connect_failed;          /* CONNECT_ERROR was told: what follows is not told */
    _Atomic bool disconnect_told; /* one thread may read events while another disconnects */
    uint8_t tos, ack_timeout;     /* 0: not set */
    uint8_t responder_resources, initiator_depth;
    uint8_t sgid_index;
    uint16_t own_port; /* granted by port_take(); 0: none */
    uint32_t qkey;
    struct adapter *adapter;
    struct service *service;
    struct cm_agent_id *agent_id;
    struct cm_ece local_ece, remote_ece;
    struct ibv_qp_init_attr *endpoint; /* rdma_create_ep(): of QPs that rdma_get_request() makes */
    struct ibv_pd *endpoint_pd;
    void *connect_data; /* rdma_addrinfo.ai_connect */
    size_t connect_length;
    _Atomic(struct rdma_addrinfo *) resolved; /* rdma_resolve_addrinfo(): nobody has asked for it yet */
    struct list multicasts;
    struct list node;    /* of its channel's ids, once the program has it; events_lock. Of those that rest */
    struct list handed;  /* events that the program has (struct event.node); events_lock */
    struct id *listener; /* of a child that was not handed out yet; events_lock */
    struct list orphan;  /* such a child, when its listener goes */
    /* Events that were handed out, and of those the acknowledged ones (mutex). */
    uint32_t reported, acknowledged;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
};

static inline struct id *id_of(struct rdma_cm_id *id)
{
    return container_of(id, struct id, public);
}

static inline enum id_state id_state(const struct id *id)
{
    return (enum id_state)atomic_load_explicit(&id->state, memory_order_relaxed);
}

void id_enter(struct id *id, enum id_state state);

/* An id that was made before a fork is of no use in the child. */
static inline bool id_is_inherited(const struct id *id)
{
    return id->generation != generation();
}

/* Before anything that a program asks of an id: 0, -EINVAL (destroyed), -EIO (inherited), -EBADF (its channel
 * is destroyed). */
static inline int id_check(const struct id *id)
{
    if (atomic_load_explicit(&id->destroyed, memory_order_relaxed))
        return -EINVAL;
    if (id_is_inherited(id))
        return -EIO;
    return atomic_load_explicit(&id->ended, memory_order_relaxed) ? -EBADF : 0;
}

static inline struct sockaddr *id_source(struct id *id)
{
    return &id->public.route.addr.src_addr;
}

static inline struct sockaddr *id_destination(struct id *id)
{
    return &id->public.route.addr.dst_addr;
}

/* Not in any channel, yet. NULL: no memory. */
struct id *id_new(void *context, enum rdma_port_space ps, enum ibv_qp_type qp_type);
/* Everything but what the program made on it. Its events are settled. */
void id_free(struct id *id);
int id_create(struct rdma_event_channel *channel, struct rdma_cm_id **ret_id, void *context,
              enum rdma_port_space ps, enum ibv_qp_type qp_type);
/* Its channel is destroyed: what it is to others ends, and it can only be destroyed, too. */
void id_end(struct id *id);
void ids_after_fork_in_child(void);
/* Gives a child that is not the program's any more, or never was, to nobody. */
void id_drop(struct id *id);
int id_set_device(struct id *id, struct adapter *adapter, uint8_t sgid_index);
void id_clear_device(struct id *id);
/* Of a synchronous id: waits for the event of what was just begun. 0 or -errno. synchronous: what the id was
 * before that. Else it is not touched: whoever has read the event may have destroyed it. */
int id_complete(struct id *id, bool synchronous);

/* --- bind.c --------------------------------------------------------------------------------------------- */

/* Gives the id a source port, and the address with its device, if it is specific and no loopback address. */
int bind_address(struct id *id, const struct sockaddr *address);
/* The device that has the address, whatever kind of address that is. */
int bind_to_device(struct id *id, const struct sockaddr *address);

/* --- route.c -------------------------------------------------------------------------------------------- */

/* RDMA_OPTION_IB_PATH: struct ibv_path_data[]. */
int route_set(struct id *id, const void *paths, size_t length);

/* --- arrival.c ------------------------------------------------------------------------------------------ */

extern const struct cm_agent_owner cm_agent_owner;
/* What an event means to the QP and the id, before the program sees it; in its thread. False: it does not. */
bool connect_handle(struct event *event);

/* --- qp.c ----------------------------------------------------------------------------------------------- */

int qp_to_error(struct id *id);
/* INIT, RTR and RTS with what the CM knows. */
int qp_connect(struct id *id);
/* The address vector of a path, from its local end. */
void path_to_ah(const struct id *id, const struct cm_path *path, struct ibv_ah_attr *ret_attributes);

/* --- multicast.c ---------------------------------------------------------------------------------------- */

void multicast_leave_all(struct id *id);

#endif
