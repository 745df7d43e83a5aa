/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of librdmacm.so.1 share. libibverbs.so.1 contains the adapter: verbs give access to devices, QPs and
 * their objects, and engine/cm/agent.h to connections, services and ports. This folder has ids, event channels,
 * addresses, and the calling conventions of rdma_cm (verbs.md §0.1, §11): 0, or -1 with errno. Functions below the
 * exported ones return 0 or -errno. */
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
#include "base/refusal.h"
#include "base/types.h"
#include "engine/cm/agent.h"
#include "segment/segment.h"

#define RDMACM_EXPORT __attribute__((visibility("default")))

/* IBA A11: the header takes part of a REQ's private data. */
#define CONNECT_PRIVATE   (CM_REQ_PRIVATE - CMA_HEADER_LENGTH)
#define RESOLVE_PRIVATE   (CM_SIDR_REQ_PRIVATE - CMA_HEADER_LENGTH)
#define MULTICAST_QPN     0xffffffu
#define DEFAULT_PKEY      0xffffu
#define HOP_LIMIT         64
#define ROUTE_TIMEOUT_MS  2000
#define BACKLOG_MAX       1024 /* the kernel's default for /proc/sys/net/rdma_ucm/max_backlog */
#define ADDRESS_BYTES_MAX sizeof(struct sockaddr_storage)

/* start.c: the call fails. If a rule of this library has noted why, that is recorded and told; a verb that it called
 * has done so itself. */
void refused(const char *call, int error);

/* For functions that return 0, or -1 with errno. */
#define conclude(result) conclude_call(__func__, result)
static inline int conclude_call(const char *call, int result)
{
    if (likely(result >= 0))
        return 0;
    refused(call, result);
    errno = -result;
    return -1;
}

/* --- start.c: the other library ------------------------------------------------------------------------- */

extern const struct cm_agent_calls *calls;
/* Called first by every function that makes something: 0, or -errno (-ENODEV: no RDMA device). Starts anew in the
 * child of a fork. */
int start(void);
/* Number of forks since the first process; objects of an earlier generation are void in the child. */
uint32_t generation(void);

/* --- adapter.c: devices, opened once, until the process ends ------------------------------------------- */

struct adapter {
    struct ibv_context *verbs;
    uint64_t guid;
    uint8_t responder_resources, initiator_depth; /* limits of one QP */
    struct ibv_pd *pd;                            /* NULL: not in use */
    unsigned pd_users;
    struct ibv_xrcd *xrcd; /* shared by its XRC ids and kept open; NULL: not yet opened */
};

#define ADAPTERS_MAX 64
/* All devices that exist now. 0 or -errno. */
int adapters_list(struct ibv_context *ret_verbs[ADAPTERS_MAX], unsigned *ret_count);
/* The device that has the address, and the index of the GID to use. ifindex: of the interface, or 0 for any. -ENODEV:
 * none. */
int adapter_find(const union ibv_gid *gid, uint32_t ifindex, struct adapter **ret_adapter,
                 uint8_t *ret_sgid_index);
/* The device that has the address, without reading the interfaces again; NULL: none known. */
const struct adapter *adapter_known(const union ibv_gid *gid);
/* The GID at that index of the device's port. */
int adapter_gid(const struct adapter *adapter, uint8_t sgid_index, union ibv_gid *ret_gid);
/* The default PD, referenced by one id; NULL with errno. */
struct ibv_pd *adapter_get_pd(struct adapter *adapter);
void adapter_put_pd(struct adapter *adapter);
/* NULL with errno. */
struct ibv_xrcd *adapter_get_xrcd(struct adapter *adapter);
void adapters_forget(void);

/* --- address.c: addresses and what they mean to InfiniBand ---------------------------------------------- */

/* The length of an address of this family; -EINVAL: unknown family. */
int address_length(const struct sockaddr *address);
bool address_is_any(const struct sockaddr *address);
/* 127/8 and ::1. An id bound to a loopback address, like an unbound one, has no device. */
bool address_is_loopback(const struct sockaddr *address);
bool address_is_multicast(const struct sockaddr *address);
/* The port in host byte order. */
uint16_t address_port(const struct sockaddr *address);
void address_set_port(struct sockaddr *address, uint16_t port);
union ibv_gid address_gid(const struct sockaddr *address);
/* The interface of an address with a scope; 0: none. */
uint32_t address_scope(const struct sockaddr *address);
bool addresses_equal(const struct sockaddr *a, const struct sockaddr *b);
/* The source address of packets to `to` by the kernel's routes; `from` (may be NULL) as far as it is specific. 0 or
 * -errno. */
int address_source(const struct sockaddr *to, const struct sockaddr *from,
                   struct sockaddr_storage *ret_source);
/* The service ID of an address in a port space. */
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
    struct list node;            /* in the channel's events; later in id.handed, while the program has it */
    struct id *account;          /* the id that counts the acknowledgement, unless `multicast` is set */
    struct multicast *multicast; /* the group that counts the acknowledgement */
    struct id *child;            /* CONNECT_REQUEST: the new id, until the program has it */
    struct cm_ece ece;           /* CONNECT_RESPONSE */
    uint8_t private_data[CM_PRIVATE_MAX];
};

/* NULL: out of memory. */
struct event *event_new(struct id *id, enum rdma_cm_event_type type, int status);
/* The same, or the id's reserve; NULL: that is used. */
struct event *event_new_or_reserve(struct id *id, enum rdma_cm_event_type type, int status);
/* Queues the event at the id's channel. Any thread. */
void event_push(struct event *event);
/* Moves the event to another id (rdma_get_request()). */
void event_transfer(struct event *event, struct id *to);
/* Allocates an event and queues it. 0 or -ENOMEM. */
int event_raise(struct id *id, enum rdma_cm_event_type type, int status);
/* Removes the unread events of an id, and of its children that the program does not have yet, from its channel. */
void events_take(struct id *id, struct list *ret_events);
/* Removes the unread event of a group and frees it. */
void events_drop_multicast(struct id *id, const struct multicast *multicast);
/* Waits until all events that the program has are acknowledged. call: the waiting call, for explanations. */
void events_settle(struct id *id, enum id_call call);
void multicast_settle(struct id *id, struct multicast *multicast);
/* Moves an id and its unread events to another channel. -EBADF: that channel is destroyed. */
int events_move(struct id *id, struct rdma_event_channel *to);
/* Acknowledges the events that the program has in its place: afterwards they belong to no id. */
void events_disown(struct id *id);
/* 0 or -errno. *ret_event belongs to the program until the program acknowledges it. */
int events_next(struct rdma_event_channel *channel, struct event **ret_event);
struct rdma_event_channel *channel_new(void);
/* Ends all its ids (id_end()). False: it is destroyed already, and nothing was done. */
bool channel_free(struct rdma_event_channel *channel);
/* From now on the id's events go to this channel. -EBADF: the channel is destroyed. */
int channel_join(struct rdma_event_channel *channel, struct id *id);
void channel_leave(struct id *id);
void cm_channels_after_fork_in_child(void);

/* --- id.c ----------------------------------------------------------------------------------------------- */

struct id {
    struct rdma_cm_id public;
    struct id_record *record; /* its record for explanations; NULL: none */
    uint32_t generation;
    _Atomic uint32_t state; /* enum id_state */
    /* Set by the destroy call; afterwards the memory goes to struct rest. */
    _Atomic bool destroyed;
    _Atomic bool ended; /* its channel is destroyed */
    /* Of its destroy call, or of its channel's, whichever was first. */
    struct destroy_note note;
    uint32_t number;  /* of its record, which goes before the id */
    bool synchronous; /* has a channel of its own */
    bool passive;
    bool reuse_address, one_family, one_family_set;
    bool tos_set;
    bool connect_failed;              /* CONNECT_ERROR was reported: no later event is */
    _Atomic bool disconnect_reported; /* atomic: one thread may read events while another disconnects */
    uint8_t tos, ack_timeout;         /* 0: not set */
    uint8_t responder_resources, initiator_depth;
    uint8_t sgid_index;
    uint16_t own_port; /* allocated by port_take(); 0: none */
    uint32_t qkey;
    struct adapter *adapter;
    struct service *service;
    struct cm_agent_id *agent_id;
    struct cm_ece local_ece, remote_ece;
    /* rdma_create_ep(): attributes of QPs that rdma_get_request() creates. */
    struct ibv_qp_init_attr *endpoint;
    struct ibv_pd *endpoint_pd;
    void *connect_data; /* rdma_addrinfo.ai_connect */
    size_t connect_length;
    /* rdma_resolve_addrinfo(): result that the program has not fetched yet. */
    _Atomic(struct rdma_addrinfo *) resolved;
    struct list multicasts;
    /* For an event from the peer that finds no memory, made with the id; NULL: it is used. The CM agent's lock guards
     * it. */
    struct event *reserve;
    /* In its channel's ids (events_lock), once the program has the id; later in struct rest. */
    struct list node;
    struct list handed;  /* events that the program has (struct event.node); events_lock guards it */
    struct id *listener; /* of a child that the program does not have yet; events_lock guards it */
    struct list orphan;  /* link of such a child while its listener is destroyed */
    /* Events given to the program, and how many of them are acknowledged. The mutex guards both. */
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

#define STATE_BIT(state) (1ull << (state))
/* The id is in none of these states: -EINVAL. */
static inline int id_refuse_state(const struct id *id, uint64_t states)
{
    return refuse(-EINVAL, REFUSAL_ID_STATE, "", id_state(id), states, 0);
}
static inline int refuse_missing_device(void)
{
    return refuse(-EINVAL, REFUSAL_NO_DEVICE, "", 0, 0, 0);
}
static inline int refuse_second(const char *what)
{
    return refuse(-EINVAL, REFUSAL_HAS_ONE, what, 0, 0, 0);
}

/* An id from before a fork is void in the child. */
static inline bool id_is_inherited(const struct id *id)
{
    return id->generation != generation();
}

/* Called first by every function on an id: 0, -EINVAL (destroyed), -EIO (inherited), -EBADF (its channel is
 * destroyed). */
static inline int id_check(const struct id *id)
{
    if (atomic_load_explicit(&id->destroyed, memory_order_relaxed))
        return -EINVAL;
    if (id_is_inherited(id))
        return -EIO;
    return atomic_load_explicit(&id->ended, memory_order_relaxed) ? -EBADF : 0;
}

/* The result of id_check(), which is not 0, and is told. call: the function of librdmacm. */
int id_refuse(const struct id *id, const char *call);

static inline struct sockaddr *id_source(struct id *id)
{
    return &id->public.route.addr.src_addr;
}

static inline struct sockaddr *id_destination(struct id *id)
{
    return &id->public.route.addr.dst_addr;
}

/* Not in a channel yet. NULL: out of memory. */
struct id *id_new(void *context, enum rdma_port_space ps, enum ibv_qp_type qp_type);
/* Frees the id, but no object that the program created on it. Its events are acknowledged. */
void id_free(struct id *id);
int id_create(struct rdma_event_channel *channel, struct rdma_cm_id **ret_id, void *context,
              enum rdma_port_space ps, enum ibv_qp_type qp_type);
/* For an id whose channel is destroyed: ends its connection and services; the id can only be destroyed. */
void id_end(struct id *id, const struct destroy_note *channel);
void ids_after_fork_in_child(void);
/* Destroys a child that the program does not have. */
void id_drop(struct id *id);
int id_set_device(struct id *id, struct adapter *adapter, uint8_t sgid_index);
void id_clear_device(struct id *id);
/* For a synchronous id: waits for the event of the operation just begun. 0 or -errno. synchronous: the id's mode
 * before the operation. If false, the id is not touched: the thread that read the event may have destroyed it. */
int id_complete(struct id *id, bool synchronous);

/* --- bind.c --------------------------------------------------------------------------------------------- */

/* Binds the id to a source port, and to the address and its device if the address is specific and not a loopback
 * address. */
int bind_address(struct id *id, const struct sockaddr *address);
/* Binds the id to the device that has the address, of any kind. */
int bind_to_device(struct id *id, const struct sockaddr *address);

/* --- route.c -------------------------------------------------------------------------------------------- */

/* RDMA_OPTION_IB_PATH: struct ibv_path_data[]. */
int route_set(struct id *id, const void *paths, size_t length);

/* --- arrival.c ------------------------------------------------------------------------------------------ */

extern const struct cm_agent_owner cm_agent_owner;
/* Applies an event to the QP and the id, in the program's thread, before the program sees the event. False: the
 * program does not see it. */
bool connect_handle(struct event *event);

/* --- qp.c ----------------------------------------------------------------------------------------------- */

int qp_to_error(struct id *id);
/* Modifies the QP to INIT, RTR and RTS with the attributes that the CM knows. */
int qp_connect(struct id *id);
/* The address vector of a path, as seen from its local end. */
void path_to_ah(const struct id *id, const struct cm_path *path, struct ibv_ah_attr *ret_attributes);

/* --- multicast.c ---------------------------------------------------------------------------------------- */

void multicast_leave_all(struct id *id);

#endif
