/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Connections of streams: the service thread handles CM events and changes the state of rsockets.
 *
 *   rconnect()   resolve address, then route; create QP; send REQ with the local offer;
 *                REP with the peer's offer: connected
 *   REQ          makes a child of the listener, held while the backlog is full; create QP; send REP;
 *                RTU: ready for raccept()
 *
 * Only the service thread uses a child before raccept() takes it. A listener that closes leaves its children as
 * orphans, which the service thread drops. */
#include <infiniband/ib.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "front/rsockets/rsocket.h"

#define CONNECT_TRIES   6 /* of rdma_resolve_addr() and rdma_resolve_route(); the timeout doubles each time */
#define FIRST_TRY_MS    1000
#define RETRY_COUNT     7 /* retry_cnt of the QP; 7 as rnr_retry_cnt: infinite */
#define REQUEST_PRIVATE (RSOCKET_OFFER_HEADER + RSOCKET_OFFER_BYTES)

/* Leaf lock; guards lists of children and their links. */
static struct lock children_lock = LOCK_INIT;
static struct list orphans = {&orphans, &orphans};
/* Listeners with held children and a free place in the backlog (struct rsocket.node). */
static struct list listeners_with_room = {&listeners_with_room, &listeners_with_room};

void connect_after_fork_in_child(void)
{
    lock_init(&children_lock);
    list_init(&orphans);
    list_init(&listeners_with_room);
}

/* --- ids ------------------------------------------------------------------------------------------------ */

int connect_make_id(struct rsocket *rsocket)
{
    struct rdma_event_channel *channel = service_channel();

    if (!channel || rdma_create_id(channel, &rsocket->id, rsocket, RDMA_PS_TCP))
        return -errno;
    return 0;
}

static void learn_addresses(struct rsocket *rsocket)
{
    rsocket->local = rsocket->id->route.addr.src_storage;
    rsocket->remote = rsocket->id->route.addr.dst_storage;
}

/* --- the active side; the rsocket's lock held ----------------------------------------------------------- */

static void fail(struct rsocket *rsocket, int error)
{
    rsocket->phase = PHASE_FAILED;
    rsocket->error = -error;
    rsocket_changed(rsocket);
}

static int result_of(int returned)
{
    return returned ? -errno : 0;
}

static int timeout_of(struct rsocket *rsocket)
{
    return FIRST_TRY_MS << rsocket->connect_tries++;
}

int connect_begin(struct rsocket *rsocket)
{
    return result_of(
        rdma_resolve_addr(rsocket->id, NULL, (struct sockaddr *)&rsocket->remote, timeout_of(rsocket)));
}

static int resolve_route(struct rsocket *rsocket)
{
    struct rsocket_options *options = &rsocket->options;
    int error;

    if (!options->route)
        return result_of(rdma_resolve_route(rsocket->id, timeout_of(rsocket)));
    error = result_of(rdma_set_option(rsocket->id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, options->route,
                                      options->route_bytes));
    free(options->route);
    options->route = NULL;
    return error;
}

static void offer_of(const struct rsocket *rsocket, uint8_t ret_bytes[RSOCKET_OFFER_BYTES])
{
    struct rsocket_offer offer;

    stream_offer(&rsocket->stream, &offer);
    rsocket_offer_encode(&offer, ret_bytes);
}

/* An AF_IB request has no CMA header with IP addresses, but the listener expects space for one. */
static size_t header_of(const struct rsocket *rsocket)
{
    return rsocket->local.ss_family == AF_IB ? RSOCKET_OFFER_HEADER : 0;
}

static int send_request(struct rsocket *rsocket)
{
    uint8_t data[REQUEST_PRIVATE] = {0};
    size_t header = header_of(rsocket);
    struct rdma_conn_param param = {
        .private_data = data,
        .private_data_len = (uint8_t)(header + RSOCKET_OFFER_BYTES),
        .flow_control = 1,
        .retry_count = RETRY_COUNT,
        .rnr_retry_count = RETRY_COUNT,
    };
    int error = endpoint_open(rsocket);

    if (error)
        return error;
    offer_of(rsocket, data + header);
    return result_of(rdma_connect(rsocket->id, &param));
}

/* Grants the whole receive ring at once, because the program may not read for long. */
static void be_connected(struct rsocket *rsocket)
{
    rsocket->phase = PHASE_CONNECTED;
    endpoint_send_credits(rsocket);
    rsocket_changed(rsocket);
}

static int take_reply(struct rsocket *rsocket, const struct rdma_conn_param *param)
{
    struct rsocket_offer offer;
    int error = rsocket_offer_decode(param->private_data, param->private_data_len, &offer);

    if (error) {
        rdma_disconnect(rsocket->id);
        return error;
    }
    learn_addresses(rsocket);
    stream_connect(&rsocket->stream, &offer);
    be_connected(rsocket);
    return 0;
}

static int error_of(const struct rdma_cm_event *event)
{
    if (event->event == RDMA_CM_EVENT_REJECTED)
        return -ECONNREFUSED;
    return event->status < 0 ? event->status : -ETIMEDOUT;
}

static int retry(struct rsocket *rsocket, const struct rdma_cm_event *event, int (*again)(struct rsocket *))
{
    return event->status == -ETIMEDOUT && rsocket->connect_tries <= CONNECT_TRIES ? again(rsocket)
                                                                                  : error_of(event);
}

static int advance(struct rsocket *rsocket, const struct rdma_cm_event *event)
{
    switch ((int)event->event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        rsocket->connect_tries = 0;
        return resolve_route(rsocket);
    case RDMA_CM_EVENT_ADDR_ERROR:
        return retry(rsocket, event, connect_begin);
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        learn_addresses(rsocket);
        return send_request(rsocket);
    case RDMA_CM_EVENT_ROUTE_ERROR:
        return retry(rsocket, event, resolve_route);
    case RDMA_CM_EVENT_ESTABLISHED:
        return take_reply(rsocket, &event->param.conn);
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return error_of(event);
    default:
        return 0;
    }
}

int connect_finish(struct rsocket *rsocket, bool nonblocking)
{
    int error = 0;

    while (rsocket->phase == PHASE_CONNECTING && !error) {
        if (nonblocking)
            return -EAGAIN;
        error = rsocket->closing ? -EBADF : rsocket_sleep(rsocket, rsocket->changes, 0);
    }
    if (error || rsocket->phase == PHASE_CONNECTED)
        return error;
    error = -rsocket->error;
    rsocket->error = 0;
    return error;
}

/* --- children; the service thread's --------------------------------------------------------------------- */

/* One that was accepted cannot be rejected once the peer has confirmed it, which this thread may not have read yet. */
static void drop_child(struct rsocket *child)
{
    if (child->phase == PHASE_CONNECTED || rdma_reject(child->id, NULL, 0) != 0)
        rdma_disconnect(child->id);
    endpoint_close(child);
    rdma_destroy_id(child->id);
    rsocket_recycle(child);
}

static int accept_child(struct rsocket *child)
{
    struct rdma_conn_param param = child->child_param;
    uint8_t offer[RSOCKET_OFFER_BYTES];
    int error = endpoint_open(child);

    if (error)
        return error;
    offer_of(child, offer);
    param.private_data = offer;
    param.private_data_len = sizeof(offer);
    param.rnr_retry_count = RETRY_COUNT;
    stream_connect(&child->stream, &child->child_offer);
    return result_of(rdma_accept(child->id, &param));
}

/* Removes a child from its listener's list. children_lock held. */
static void leave_family(struct rsocket *child)
{
    list_remove(&child->node);
    if (!child->listener)
        return;
    child->listener->child_count--;
    if (child->child_state != CHILD_HELD)
        child->listener->child_accepted--;
    child->listener = NULL;
}

static void give_up(struct rsocket *child)
{
    lock_acquire(&children_lock);
    leave_family(child);
    lock_release(&children_lock);
    drop_child(child);
}

static struct rsocket *next_held(struct rsocket *listener)
{
    struct rsocket *found = NULL;

    lock_acquire(&children_lock);
    list_for_each (node, &listener->children) {
        struct rsocket *child = list_entry(node, struct rsocket, node);

        if (child->child_state != CHILD_HELD || listener->child_accepted >= listener->backlog)
            continue;
        child->child_state = CHILD_ACCEPTED;
        listener->child_accepted++;
        found = child;
        break;
    }
    lock_release(&children_lock);
    return found;
}

/* Accepts held children while the backlog has space. */
static void accept_pending(struct rsocket *listener)
{
    struct rsocket *child;

    while ((child = next_held(listener))) {
        int error = accept_child(child);

        if (!error)
            continue;
        log_warn("rsocket: cannot accept a connection: %s", strerror(-error));
        give_up(child);
    }
}

static struct rsocket *make_child(struct rsocket *listener, const struct rdma_cm_event *event)
{
    struct rsocket *child = rsocket_new(listener->domain, listener->type);

    if (!child)
        return NULL;
    child->id = event->id;
    child->id->context = child;
    child->phase = PHASE_CONNECTING;
    child->passive = true;
    child->child_param = event->param.conn;
    child->child_param.private_data = NULL;
    learn_addresses(child);
    rsocket_address_map(&child->local, listener->domain);
    rsocket_address_map(&child->remote, listener->domain);
    return child;
}

/* The child gets the listener's options of this moment. */
static bool adopt(struct rsocket *listener, struct rsocket *child)
{
    bool adopted;

    lock_acquire(&listener->lock);
    child->options = listener->options;
    child->options.route = NULL;
    lock_acquire(&children_lock);
    adopted = listener->phase == PHASE_LISTENING && !listener->closing &&
              listener->child_count < 2 * listener->backlog;
    if (adopted) {
        child->listener = listener;
        child->child_state = CHILD_HELD;
        listener->child_count++;
        list_push_back(&listener->children, &child->node);
    }
    lock_release(&children_lock);
    lock_release(&listener->lock);
    return adopted;
}

/* No request is adopted after the listener has closed: rclose() waits until this event is acknowledged. */
static void handle_request(const struct rdma_cm_event *event)
{
    struct rsocket *listener = event->listen_id->context, *child;
    const struct rdma_conn_param *param = &event->param.conn;
    size_t header = header_of(listener);
    struct rsocket_offer offer;
    int error = -EPROTO;

    if (param->private_data && param->private_data_len >= header)
        error = rsocket_offer_decode((const uint8_t *)param->private_data + header,
                                     param->private_data_len - header, &offer);
    child = error ? NULL : make_child(listener, event);
    if (!child) {
        rdma_reject(event->id, NULL, 0);
        rdma_destroy_id(event->id);
        return;
    }
    child->child_offer = offer;
    if (adopt(listener, child))
        accept_pending(listener);
    else
        drop_child(child);
}

static void make_ready(struct rsocket *child)
{
    struct rsocket *listener;

    lock_acquire(&child->lock);
    child->told_connected = true;
    be_connected(child);
    lock_release(&child->lock);
    lock_acquire(&children_lock);
    child->child_state = CHILD_READY;
    listener = child->listener;
    lock_release(&children_lock);
    if (!listener)
        return;
    /* The listener may have closed, and its memory may be another rsocket's: then the wake-up is spurious. */
    lock_acquire(&listener->lock);
    rsocket_changed(listener);
    lock_release(&listener->lock);
}

/* --- events --------------------------------------------------------------------------------------------- */

/* The peer has disconnected or died: the QP moves to error, and waiting calls wake up. */
static void handle_end(struct rsocket *rsocket, enum rdma_cm_event_type type)
{
    if (type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_DEVICE_REMOVAL)
        rdma_disconnect(rsocket->id);
}

/* Handles an event of a child before it is connected. True: it was one. */
static bool handle_own(struct rsocket *rsocket, const struct rdma_cm_event *event)
{
    bool of_child = false;
    int error;

    lock_acquire(&rsocket->lock);
    if (rsocket->id != event->id || (rsocket->closing && rsocket->phase != PHASE_CONNECTED)) {
        /* The event belongs to a connection attempt that has ended. rclose() waits for the peer's disconnect, and
         * wakes up. */
    } else if (rsocket->phase == PHASE_CONNECTED) {
        handle_end(rsocket, event->event);
    } else if (rsocket->phase == PHASE_CONNECTING && rsocket->passive) {
        of_child = true;
    } else if (rsocket->phase == PHASE_CONNECTING) {
        error = advance(rsocket, event);
        if (error)
            fail(rsocket, error);
    }
    lock_release(&rsocket->lock);
    return of_child;
}

void connect_handle_event(struct rdma_cm_event *event)
{
    enum rdma_cm_event_type type = event->event;
    struct rsocket *rsocket = event->id->context;
    bool of_child = false;

    if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
        handle_request(event);
    else
        of_child = handle_own(rsocket, event);
    rdma_ack_cm_event(event); /* the id cannot be destroyed before */
    if (!of_child || type == RDMA_CM_EVENT_ADDR_CHANGE || type == RDMA_CM_EVENT_TIMEWAIT_EXIT)
        return;
    if (type == RDMA_CM_EVENT_ESTABLISHED)
        make_ready(rsocket);
    else
        give_up(rsocket);
}

static struct rsocket *take_from(struct list *list)
{
    struct list *node;

    lock_acquire(&children_lock);
    node = list_pop_front(list);
    lock_release(&children_lock);
    return node ? list_entry(node, struct rsocket, node) : NULL;
}

void connect_tend_children(void)
{
    struct rsocket *rsocket;

    while ((rsocket = take_from(&orphans)))
        drop_child(rsocket);
    while ((rsocket = take_from(&listeners_with_room)))
        accept_pending(rsocket);
}

/* --- calls of the program ------------------------------------------------------------------------------- */

struct rsocket *connect_take_child(struct rsocket *listener)
{
    struct rsocket *found = NULL;
    bool held = false;

    lock_acquire(&children_lock);
    list_for_each (node, &listener->children) {
        struct rsocket *child = list_entry(node, struct rsocket, node);

        if (!found && child->child_state == CHILD_READY)
            found = child;
        held |= child->child_state == CHILD_HELD;
    }
    if (found)
        leave_family(found);
    held &= found && !list_linked(&listener->node);
    if (held)
        list_push_back(&listeners_with_room, &listener->node);
    lock_release(&children_lock);
    if (held)
        service_tend_children();
    return found;
}

bool connect_has_ready_child(struct rsocket *listener)
{
    bool ready = false;

    lock_acquire(&children_lock);
    list_for_each (node, &listener->children)
        ready |= list_entry(node, struct rsocket, node)->child_state == CHILD_READY;
    lock_release(&children_lock);
    return ready;
}

/* The process has no free descriptor for the child: it becomes the first in the backlog again. */
void connect_return_child(struct rsocket *listener, struct rsocket *child)
{
    lock_acquire(&children_lock);
    child->listener = listener;
    listener->child_count++;
    listener->child_accepted++;
    list_push_back(listener->children.next, &child->node);
    lock_release(&children_lock);
}

void connect_drop_children(struct rsocket *listener)
{
    struct list *node;

    lock_acquire(&children_lock);
    while ((node = list_pop_front(&listener->children))) {
        list_entry(node, struct rsocket, node)->listener = NULL;
        list_push_back(&orphans, node);
    }
    listener->child_count = listener->child_accepted = 0;
    list_remove(&listener->node);
    lock_release(&children_lock);
    service_tend_children();
}
