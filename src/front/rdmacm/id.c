/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Ids: creation, migration between channels, options, destruction (verbs.md §11.2, §11.3, §11.8). */
#include <stdlib.h>

#include "base/log.h"
#include "base/refusal.h"
#include "base/thread.h"
#include "front/rdmacm/front.h"
#include "front/rdmacm/rest.h"

static struct rest resting = REST_INIT(resting);

void ids_after_fork_in_child(void)
{
    rest_after_fork_in_child(&resting);
}

static struct id *allocate(void)
{
    struct list *node = rest_take(&resting);
    struct id *id;

    if (!node)
        return calloc(1, sizeof(*id));
    id = list_entry(node, struct id, node);
    memset(id, 0, sizeof(*id));
    return id;
}

struct id *id_new(void *context, enum rdma_port_space ps, enum ibv_qp_type qp_type)
{
    struct event *reserve = calloc(1, sizeof(*reserve));
    struct id *id = reserve ? allocate() : NULL;

    if (!id) {
        free(reserve);
        return NULL;
    }
    id->reserve = reserve;
    id->public.context = context;
    id->public.ps = ps;
    id->public.qp_type = qp_type;
    id->generation = generation();
    id->qkey = RDMA_UDP_QKEY;
    id->record = calls->id_publish();
    calls->destroyed(&id->note, id->record, -1);
    id->number = id->note.number;
    id_enter(id, ID_IDLE);
    list_init(&id->multicasts);
    list_init(&id->node);
    list_init(&id->handed);
    pthread_mutex_init(&id->mutex, NULL);
    thread_cond_init(&id->cond);
    return id;
}

/* Sets the state, and publishes the state and addresses for explanations. */
void id_enter(struct id *id, enum id_state state)
{
    struct id_record *record = id->record;
    union ibv_gid gid;

    atomic_store_explicit(&id->state, state, memory_order_relaxed);
    if (!record)
        return;
    record->phase = state;
    record->port_space = id->public.ps;
    gid = address_gid(id_source(id));
    memcpy(record->source, gid.raw, sizeof(record->source));
    record->source_port = address_port(id_source(id));
    gid = address_gid(id_destination(id));
    memcpy(record->destination, gid.raw, sizeof(record->destination));
    record->destination_port = address_port(id_destination(id));
}

void id_free(struct id *id)
{
    atomic_store_explicit(&id->destroyed, true, memory_order_relaxed);
    channel_leave(id);
    calls->id_withdraw(id->record);
    id->record = NULL;
    if (id->adapter)
        adapter_put_pd(id->adapter);
    if (id->own_port)
        calls->port_return(id->own_port);
    /* Not if the program has destroyed the channel: another channel may use its memory by now. */
    if (id->synchronous && !atomic_load_explicit(&id->ended, memory_order_relaxed))
        channel_free(id->public.channel);
    free(id->public.route.path_rec);
    id->public.route.path_rec = NULL;
    free(id->reserve);
    free(id->endpoint);
    free(id->connect_data);
    rdma_freeaddrinfo(atomic_load_explicit(&id->resolved, memory_order_relaxed));
    pthread_mutex_destroy(&id->mutex);
    pthread_cond_destroy(&id->cond);
    rest_put(&resting, &id->node);
}

/* channel NULL: makes one for the id alone. */
static int enter_channel(struct id *id, struct rdma_event_channel *channel)
{
    if (channel)
        return channel_join(channel, id);
    channel = channel_new();
    if (!channel)
        return -errno;
    id->synchronous = true;
    return channel_join(channel, id);
}

int id_create(struct rdma_event_channel *channel, struct rdma_cm_id **ret_id, void *context,
              enum rdma_port_space ps, enum ibv_qp_type qp_type)
{
    struct id *id;
    int error = start();

    if (error)
        return error;
    id = id_new(context, ps, qp_type);
    if (!id)
        return -ENOMEM;
    id->agent_id = calls->create(id);
    error = id->agent_id ? enter_channel(id, channel) : -ENOMEM;
    if (error) {
        calls->close(id->agent_id);
        id_free(id);
        return error;
    }
    if (id->record)
        id->record->given = true;
    *ret_id = &id->public;
    return 0;
}

RDMACM_EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **ret_id,
                                 void *context, enum rdma_port_space ps)
{
    switch (ps) {
    case RDMA_PS_TCP:
    case RDMA_PS_IB:
        return conclude(id_create(channel, ret_id, context, ps, IBV_QPT_RC));
    case RDMA_PS_UDP:
    case RDMA_PS_IPOIB:
        return conclude(id_create(channel, ret_id, context, ps, IBV_QPT_UD));
    }
    return conclude(refuse_invalid("ps", ps));
}

int id_set_device(struct id *id, struct adapter *adapter, uint8_t sgid_index)
{
    struct ibv_pd *pd = id->adapter ? NULL : adapter_get_pd(adapter);

    if (id->adapter)
        return id->adapter == adapter ? 0 : -EINVAL;
    if (!pd)
        return -errno;
    id->adapter = adapter;
    id->sgid_index = sgid_index;
    id->public.verbs = adapter->verbs;
    id->public.port_num = 1;
    id->public.pd = pd;
    return 0;
}

void id_clear_device(struct id *id)
{
    if (!id->adapter)
        return;
    adapter_put_pd(id->adapter);
    id->adapter = NULL;
    id->public.verbs = NULL;
    id->public.port_num = 0;
    id->public.pd = NULL;
}

int id_complete(struct id *id, bool synchronous)
{
    struct rdma_cm_id *public = &id->public;

    if (!synchronous)
        return 0;
    if (public->event) {
        rdma_ack_cm_event(public->event);
        public->event = NULL;
    }
    if (rdma_get_cm_event(public->channel, &public->event) != 0)
        return -errno;
    if (!public->event->status)
        return 0;
    if (public->event->event == RDMA_CM_EVENT_REJECTED)
        return -ECONNREFUSED;
    return -abs(public->event->status);
}

/* --- destroying ----------------------------------------------------------------------------------------- */

/* Frees events that will not be read. A child is destroyed after the events, because its own events are among them. */
static void drop_events(struct list *events)
{
    struct list children, *node;

    list_init(&children);
    while ((node = list_pop_front(events))) {
        struct event *event = list_entry(node, struct event, node);

        if (event->child)
            list_push_back(&children, &event->child->orphan);
        free(event);
    }
    while ((node = list_pop_front(&children)))
        id_drop(list_entry(node, struct id, orphan));
}

void id_drop(struct id *id)
{
    struct list unread;

    calls->close(id->agent_id);
    events_take(id, &unread);
    drop_events(&unread);
    id_free(id);
}

/* The order matters: no new children, then reject the requests of existing ones, then no new events. A second call
 * does nothing. */
static void retire(struct id *id)
{
    struct list unread;

    calls->service_release(id->service);
    id->service = NULL;
    events_take(id, &unread);
    drop_events(&unread);
    calls->close(id->agent_id);
    id->agent_id = NULL;
    events_take(id, &unread);
    drop_events(&unread);
}

int id_refuse(const struct id *id, const char *call)
{
    int error = id_check(id);

    if (error == -EINVAL)
        calls->misused(MISUSE_AFTER, call, "cm_id", id->number, error, &id->note);
    else if (error == -EBADF)
        calls->misused(MISUSE_CHANNEL, call, "cm_id", id->number, error, &id->note);
    return error;
}

void id_end(struct id *id, const struct destroy_note *channel)
{
    id->note = *channel;
    atomic_store_explicit(&id->ended, true, memory_order_relaxed);
    retire(id);
    if (id->own_port)
        calls->port_return(id->own_port);
    id->own_port = 0;
    id_enter(id, ID_IDLE);
}

RDMACM_EXPORT int rdma_destroy_id(struct rdma_cm_id *public)
{
    struct id *id = id_of(public);

    if (atomic_exchange_explicit(&id->destroyed, true, memory_order_relaxed)) {
        calls->misused(MISUSE_TWICE, "rdma_destroy_id", "cm_id", id->number, -EINVAL, &id->note);
        return conclude(-EINVAL);
    }
    if (id_is_inherited(id)) {
        list_init(&id->node);
        rest_put(&resting, &id->node); /* all that it refers to belongs to the parent, or is lost */
        return 0;
    }
    if (atomic_load_explicit(&id->ended, memory_order_relaxed)) {
        calls->misused(MISUSE_CHANNEL, "rdma_destroy_id", "cm_id", id->number, 0, &id->note);
        events_disown(id); /* no thread could acknowledge them any more */
    } else {
        retire(id);
    }
    calls->destroyed(&id->note, id->record, -1);
    if (public->event) {
        rdma_ack_cm_event(public->event);
        public->event = NULL;
    }
    multicast_leave_all(id);
    events_settle(id, ID_CALL_DESTROY);
    id_free(id);
    return 0;
}

/* --- moving --------------------------------------------------------------------------------------------- */

RDMACM_EXPORT int rdma_migrate_id(struct rdma_cm_id *public, struct rdma_event_channel *channel)
{
    struct id *id = id_of(public);
    struct rdma_event_channel *old = public->channel, *own = NULL;
    int error;

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_migrate_id") == -EBADF ? -EBADF : -EINVAL);
    if (id->synchronous && !channel)
        return conclude(-EINVAL);
    if (!channel) {
        own = channel_new();
        if (!own)
            return -1;
    }
    /* The event counts at the reader of the old channel. */
    if (public->event && id->synchronous) {
        rdma_ack_cm_event(public->event);
        public->event = NULL;
    }
    error = events_move(id, own ? own : channel);
    if (error)
        return conclude(error);
    if (id->synchronous)
        channel_free(old);
    id->synchronous = own != NULL;
    events_settle(id, ID_CALL_MIGRATE);
    return 0;
}

/* --- options -------------------------------------------------------------------------------------------- */

static int get_int(const void *value, size_t length, int *ret_value)
{
    if (length != sizeof(*ret_value))
        return refuse_range("optlen", (int64_t)length, sizeof(*ret_value), sizeof(*ret_value));
    memcpy(ret_value, value, sizeof(*ret_value));
    return 0;
}

static int set_tos(struct id *id, const void *value, size_t length)
{
    if (length != sizeof(id->tos))
        return refuse_range("optlen", (int64_t)length, sizeof(id->tos), sizeof(id->tos));
    memcpy(&id->tos, value, sizeof(id->tos));
    id->tos_set = true;
    return 0;
}

static int set_ack_timeout(struct id *id, const void *value, size_t length)
{
    uint8_t timeout;

    if (length != sizeof(timeout))
        return refuse_range("optlen", (int64_t)length, sizeof(timeout), sizeof(timeout));
    memcpy(&timeout, value, sizeof(timeout));
    if (timeout == 0 || timeout > 31)
        return refuse_range("ACK timeout", timeout, 1, 31);
    if (id->public.qp_type == IBV_QPT_UD)
        return refuse(-EINVAL, REFUSAL_TYPE, "an ACK timeout", IBV_QPT_UD, 1ull << IBV_QPT_RC, 0);
    id->ack_timeout = timeout;
    return 0;
}

static int set_reuse_address(struct id *id, const void *value, size_t length)
{
    int wanted = 0, error = get_int(value, length, &wanted);

    if (error || (id_state(id) != ID_IDLE && (!wanted || id_state(id) == ID_LISTENING)))
        return -EINVAL;
    id->reuse_address = wanted;
    return 0;
}

static int set_one_family(struct id *id, const void *value, size_t length)
{
    int wanted = 0, error = get_int(value, length, &wanted);

    if (error || (id_state(id) != ID_IDLE && id_state(id) != ID_BOUND))
        return -EINVAL;
    id->one_family = wanted;
    id->one_family_set = true;
    return 0;
}

static int set_of_id(struct id *id, int option, const void *value, size_t length)
{
    switch (option) {
    case RDMA_OPTION_ID_TOS:
        return set_tos(id, value, length);
    case RDMA_OPTION_ID_REUSEADDR:
        return set_reuse_address(id, value, length);
    case RDMA_OPTION_ID_AFONLY:
        return set_one_family(id, value, length);
    case RDMA_OPTION_ID_ACK_TIMEOUT:
        return set_ack_timeout(id, value, length);
    default:
        return -ENOSYS;
    }
}

RDMACM_EXPORT int rdma_set_option(struct rdma_cm_id *public, int level, int option, void *value,
                                  size_t length)
{
    struct id *id = id_of(public);

    if (id_check(id) != 0)
        return conclude(id_refuse(id, "rdma_set_option"));
    if (!value)
        return conclude(-EINVAL);
    if (level == RDMA_OPTION_ID)
        return conclude(set_of_id(id, option, value, length));
    if (level == RDMA_OPTION_IB && option == RDMA_OPTION_IB_PATH)
        return conclude(route_set(id, value, length));
    return conclude(-ENOSYS);
}
