/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QPs of one process (owner) that another process (client) has opened with ibv_open_qp(): messages between the two
 * (object/xrc/open_qp.c).
 *
 * Open, modify and query are requests, and the client waits for the reply; close, and events from the owner, have none.
 * All messages about a QP take one lane, which keeps their order; if its ring is full, they wait in the lane's list.
 * The owner serves requests in a thread of their own, because modifying a QP may have to wait for the helper thread.
 * When the link goes down, the owner closes the client's handles, and the client's handles of the owner's QPs become
 * invalid (IBV_EVENT_QP_FATAL). */
#include "engine/xrc/remote_open.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/budget.h"
#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "base/thread.h"
#include "base/user.h"
#include "engine/core/core.h"
#include "object/device/device.h"
#include "object/xrc/xrc.h"
#include "object/xrc/xrc_domain.h"
#include "wire/opcode.h"

/* How long a client waits for a reply: the owner may be a stopped process. */
#define REPLY_LIMIT (30 * NS_PER_S)
/* Messages that wait: with processes of our own user, and with those of all others together. Further ones are
 * dropped: a peer may send requests and read no replies. */
#define WAITING_MAX 16384u

/* A message that waits: in lane_state.remote_opens to be sent, or in `work` to be served. */
struct waiting {
    struct list node;
    struct charge charge;  /* to the user of the other process */
    struct qp_asker asker; /* in `work`: the requester */
    struct remote_open_message message;
};

/* A thread of the program that waits for a reply, or for the owner of a block to be found. On the thread's stack. */
struct call {
    struct list node;
    uint64_t number; /* remote_open_message.call */
    uint64_t serial; /* of the link that the reply comes from; 0: waits for the owner of `block` */
    uint32_t block;
    _Atomic uint32_t done; /* futex */
    int error;
    struct ibv_qp_attr *attributes; /* of a query, to be filled in */
};

/* Guards `calls`, and `handles`: handles of QPs of other processes. Below lane locks and QP locks, above those of event
 * queues. */
static struct lock remote_open_lock = LOCK_INIT;
static struct list calls = {&calls, &calls}, handles = {&handles, &handles};
static uint64_t last_number;

static struct lock work_lock = LOCK_INIT; /* a leaf */
static struct list work = {&work, &work};
static bool works;              /* the thread serve_all() runs; under work_lock */
static _Atomic uint32_t wanted; /* futex of that thread: incremented after each push to `work` */

static struct budget waiting_messages = BUDGET_INIT(
    waiting_messages, "messages of ibv_open_qp() waiting to be read",
    "The processes of that user do not read their messages: check whether they are stopped or hang");
static _Atomic bool told_of_loss;

/* --- sending -------------------------------------------------------------------------------------------- */

static bool may_wait(struct waiting *waiting, uid_t uid)
{
    if (budget_charge(&waiting_messages, uid, WAITING_MAX, &waiting->charge))
        return true;
    if (user_is_own(uid) && !atomic_exchange_explicit(&told_of_loss, true, memory_order_relaxed))
        log_error("ibv_open_qp(): a request or an event of a QP that is open in another process of this user "
                  "was lost: %u messages to such processes wait to be read (is one stopped?). Logged once",
                  WAITING_MAX);
    return false;
}

/* A message to or from a process of that user. NULL: too many wait, or memory is short. */
static struct waiting *waiting_new(const struct remote_open_message *message, uid_t uid)
{
    struct waiting *waiting = malloc(sizeof(*waiting));

    if (waiting && may_wait(waiting, uid)) {
        waiting->message = *message;
        return waiting;
    }
    free(waiting);
    return NULL;
}

static void waiting_free(struct waiting *waiting)
{
    budget_discharge(&waiting_messages, &waiting->charge);
    free(waiting);
}

static int write_message(struct lane *lane, struct remote_open_message *message)
{
    const struct iovec payload = {message, sizeof(*message)};
    const struct packet packet = {
        .opcode = SERVICE_XRC | OP_SEND_ONLY,
        .flags = PACKET_REMOTE_OPEN,
        .pkey = 0xffff,
        .dest_qpn = message->qpn,
        .src_qpn = message->qpn,
        .payload_length = sizeof(*message),
    };

    return lane_send(lane, &packet, &payload, 1);
}

void remote_open_lane_writable(struct lane *lane, struct lane_state *state)
{
    bool written = false;

    lock_acquire(&state->lock);
    while (!list_empty(&state->remote_opens)) {
        struct waiting *waiting = list_entry(state->remote_opens.next, struct waiting, node);

        if (write_message(lane, &waiting->message) == -EAGAIN) {
            if (lane_is_blocked(lane))
                break; /* this function is called again */
            continue;
        }
        list_remove(&waiting->node);
        waiting_free(waiting);
        written = true;
    }
    lock_release(&state->lock);
    if (written)
        lane_ring(lane);
}

void remote_open_lane_down(struct lane_state *state)
{
    struct list *node;

    while ((node = list_pop_front(&state->remote_opens)))
        waiting_free(list_entry(node, struct waiting, node));
}

/* Locks other than leaves may be held. false: the link is down, too many messages wait, or memory is short. */
static bool send_message(uint64_t serial, const struct remote_open_message *message)
{
    struct waiting *waiting = NULL;
    struct lane_state *state;
    struct link *link;
    struct lane *lane;

    rundown_enter();
    link = local_link_of_serial(serial);
    if (link)
        waiting = waiting_new(message, link_peer_uid(link));
    if (waiting) {
        lane = link_lane(link, message->qpn);
        state = lane_state(lane);
        lock_acquire(&state->lock);
        list_push_back(&state->remote_opens, &waiting->node);
        lock_release(&state->lock);
        remote_open_lane_writable(lane, state);
    }
    rundown_exit();
    return waiting != NULL;
}

/* --- client: requests ----------------------------------------------------------------------------------- */

static void call_begin(struct call *call)
{
    lock_acquire(&remote_open_lock);
    call->number = ++last_number;
    list_push_back(&calls, &call->node);
    lock_release(&remote_open_lock);
}

/* remote_open_lock held. */
static void call_end(struct call *call, int error)
{
    call->error = error;
    list_remove(&call->node);
    atomic_store_explicit(&call->done, 1, memory_order_release);
    sys_futex((uint32_t *)&call->done, FUTEX_WAKE_PRIVATE, 1, NS_NEVER);
}

static int call_wait(struct call *call)
{
    ns_t deadline = sys_now() + REPLY_LIMIT, now;

    while (!atomic_load_explicit(&call->done, memory_order_acquire) && (now = sys_now()) < deadline)
        sys_futex((uint32_t *)&call->done, FUTEX_WAIT_PRIVATE, 0, deadline - now);
    /* Under the lock: the thread in call_end() may still use *call, which is on this thread's stack. */
    lock_acquire(&remote_open_lock);
    if (!atomic_load_explicit(&call->done, memory_order_relaxed)) {
        list_remove(&call->node);
        call->error = -ETIMEDOUT;
    }
    lock_release(&remote_open_lock);
    return call->error;
}

/* Sends a request and waits for the reply: its error; -EIO: the link is down; -ETIMEDOUT. */
static int request_reply(uint64_t serial, struct remote_open_message *message,
                         struct ibv_qp_attr *ret_attributes)
{
    struct call call = {.serial = serial, .attributes = ret_attributes};

    call_begin(&call);
    message->call = call.number;
    if (!send_message(serial, message)) {
        lock_acquire(&remote_open_lock);
        if (!atomic_load_explicit(&call.done, memory_order_relaxed))
            call_end(&call, -EIO);
        lock_release(&remote_open_lock);
    }
    return call_wait(&call);
}

void remote_open_resolved(uint32_t block, const struct link *link)
{
    lock_acquire(&remote_open_lock);
    list_for_each_safe (node, following, &calls) {
        struct call *call = list_entry(node, struct call, node);

        if (!call->serial && call->block == block)
            call_end(call, link ? 0 : -EINVAL);
    }
    lock_release(&remote_open_lock);
}

/* The process that owns the QP number. -EINVAL: there is none, it is this one, or it may not use the XRC domain. */
static int find_owner(const struct qp *handle, uint64_t *ret_serial, pid_t *ret_pid)
{
    uint32_t qpn = handle->ibv.qp_num;
    struct call call;
    int error = 0;

    for (;;) {
        struct link *link;

        call = (struct call){.block = qpn / LOCAL_BLOCK_QPNS};
        call_begin(&call); /* before local_resolve(): remote_open_resolved() may come at once */
        rundown_enter();
        link = local_resolve(qpn);
        if (link) {
            *ret_serial = link_serial(link);
            *ret_pid = link_peer_pid(link);
            if (link_is_self(link) || !xrc_domain_admits(handle->xrcd->domain, link_peer_uid(link)))
                error = -EINVAL;
        }
        rundown_exit();
        if (link) {
            lock_acquire(&remote_open_lock);
            if (!atomic_load_explicit(&call.done, memory_order_relaxed))
                call_end(&call, 0);
            lock_release(&remote_open_lock);
            return error;
        }
        error = call_wait(&call);
        if (error)
            return error;
    }
}

static struct remote_open_message message_of(const struct qp *handle, uint32_t kind)
{
    struct remote_open_message message;

    memset(&message, 0, sizeof(message)); /* padding, too: another process reads it */
    message.kind = kind;
    message.name = handle->handle->name;
    message.qpn = handle->ibv.qp_num;
    return message;
}

/* qp_ports.open_elsewhere */
int remote_open_qp(struct qp *qp)
{
    struct qp_handle *handle = qp->handle;
    struct remote_open_message message;
    uint64_t serial;
    pid_t pid;
    int error = helper_start();

    if (!error)
        error = find_owner(qp, &serial, &pid);
    if (error)
        return error;
    lock_acquire(&remote_open_lock);
    handle->serial = serial;
    handle->name = ++last_number;
    list_push_back(&handles, &handle->all);
    lock_release(&remote_open_lock);
    qp->record->home_pid = pid;
    message = message_of(qp, QP_REQUEST_OPEN);
    message.device = qp->xrcd->domain->device;
    message.inode = qp->xrcd->domain->inode;
    message.ifindex = device_ifindex(qp->context->device);
    error = request_reply(serial, &message, NULL);
    if (error) {
        remote_open_close(qp); /* the owner may have opened the handle, and its reply be late */
        return error == -EIO ? -EINVAL : error;
    }
    return 0;
}

static bool is_lost(const struct qp_handle *handle)
{
    bool lost;

    lock_acquire(&remote_open_lock);
    lost = handle->lost;
    lock_release(&remote_open_lock);
    return lost;
}

/* qp_ports.request_elsewhere */
int remote_open_request(struct qp *handle, enum qp_request request, struct ibv_qp_attr *attributes, int mask)
{
    struct remote_open_message message = message_of(handle, request);
    int error = -EIO;

    message.mask = mask;
    if (request == QP_REQUEST_MODIFY)
        /* Only the attributes of the mask: the rest of the program's struct is not for another process. */
        qp_copy_attributes(&message.attributes, attributes, mask);
    if (!is_lost(handle->handle))
        error =
            request_reply(handle->handle->serial, &message, request == QP_REQUEST_QUERY ? attributes : NULL);
    if (error != -EIO || request != QP_REQUEST_QUERY)
        return error;
    /* The owner has ended: the QP is in error. */
    memset(attributes, 0, sizeof(*attributes));
    attributes->qp_state = attributes->cur_qp_state = IBV_QPS_ERR;
    return 0;
}

/* qp_ports.close_elsewhere: no event follows. */
void remote_open_close(struct qp *qp)
{
    const struct remote_open_message message = message_of(qp, REMOTE_OPEN_CLOSE);
    bool lost;

    lock_acquire(&remote_open_lock);
    list_remove(&qp->handle->all);
    lost = qp->handle->lost;
    lock_release(&remote_open_lock);
    if (!lost)
        (void)send_message(qp->handle->serial, &message);
}

/* Are the enumerations in range? Programs index tables with them. */
static bool is_plausible(const struct ibv_qp_attr *attributes)
{
    return attributes->qp_state <= IBV_QPS_ERR && attributes->cur_qp_state <= IBV_QPS_ERR &&
           attributes->path_mtu <= IBV_MTU_4096 && attributes->path_mig_state <= IBV_MIG_ARMED;
}

static void receive_reply(uint64_t serial, const struct remote_open_message *message)
{
    int error = min_of(message->error, 0);

    lock_acquire(&remote_open_lock);
    list_for_each (node, &calls) {
        struct call *call = list_entry(node, struct call, node);

        if (call->number != message->call || call->serial != serial)
            continue;
        if (call->attributes && !error && !is_plausible(&message->attributes))
            error = -EIO;
        if (call->attributes && !error)
            *call->attributes = message->attributes;
        call_end(call, error);
        break;
    }
    lock_release(&remote_open_lock);
}

/* remote_open_lock held. */
static void raise_event(struct qp_handle *handle, enum ibv_event_type type)
{
    struct qp *qp = handle->opener.handle;
    const struct ibv_async_event event = {.element.qp = &qp->ibv, .event_type = type};

    async_raise(&qp->context->events, &event, &qp->async_events);
}

static bool is_qp_event(uint32_t type)
{
    switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
        return true;
    default:
        return false;
    }
}

static void receive_event(uint64_t serial, const struct remote_open_message *message)
{
    if (!is_qp_event(message->event))
        return;
    lock_acquire(&remote_open_lock);
    list_for_each (node, &handles) {
        struct qp_handle *handle = list_entry(node, struct qp_handle, all);

        if (handle->serial == serial && handle->name == message->name) {
            raise_event(handle, (enum ibv_event_type)message->event);
            break;
        }
    }
    lock_release(&remote_open_lock);
}

/* --- owner: events, and serving requests ---------------------------------------------------------------- */

/* qp_ports.send_opener_event: QP lock held. */
void remote_open_send_event(const struct qp_opener *opener, uint32_t qpn, enum ibv_event_type type)
{
    struct remote_open_message message;

    memset(&message, 0, sizeof(message));
    message.kind = REMOTE_OPEN_EVENT;
    message.name = opener->name;
    message.qpn = qpn;
    message.event = (uint32_t)type;
    (void)send_message(opener->serial, &message);
}

static bool is_up(uint64_t serial)
{
    bool up;

    rundown_enter();
    up = local_link_of_serial(serial) != NULL;
    rundown_exit();
    return up;
}

static void serve(const struct waiting *waiting)
{
    const struct qp_asker *asker = &waiting->asker;
    const struct remote_open_message *message = &waiting->message;
    struct remote_open_message reply;

    memset(&reply, 0, sizeof(reply));
    reply.kind = REMOTE_OPEN_REPLY;
    reply.call = message->call;
    reply.qpn = message->qpn;
    switch (message->kind) {
    case QP_REQUEST_OPEN:
        reply.error = qp_open_for(asker, message->ifindex, message->device, message->inode);
        if (!reply.error && !is_up(asker->serial))
            qp_close_all_for(asker->serial); /* remote_open_link_down() may have run before qp_open_for() */
        break;
    case QP_REQUEST_MODIFY:
        reply.error = qp_modify_for(asker, &message->attributes, message->mask);
        break;
    case QP_REQUEST_QUERY:
        reply.error = qp_query_for(asker, &reply.attributes, message->mask);
        break;
    default:
        qp_close_for(asker);
        return;
    }
    (void)send_message(asker->serial, &reply);
}

/* The thread that serves requests. */
static void *serve_all(void *argument)
{
    for (;;) {
        uint32_t seen = atomic_load_explicit(&wanted, memory_order_acquire);
        struct waiting *waiting;
        struct list *node;

        lock_acquire(&work_lock);
        node = list_pop_front(&work);
        lock_release(&work_lock);
        if (!node) {
            sys_futex((uint32_t *)&wanted, FUTEX_WAIT_PRIVATE, seen, NS_NEVER);
            continue;
        }
        waiting = list_entry(node, struct waiting, node);
        serve(waiting);
        waiting_free(waiting);
    }
    return NULL;
}

static void queue_work(struct link *link, const struct remote_open_message *message)
{
    struct waiting *waiting = waiting_new(message, link_peer_uid(link));
    int error = 0;

    if (!waiting)
        return; /* the client's call ends with -ETIMEDOUT */
    waiting->asker = (struct qp_asker){.serial = link_serial(link),
                                       .name = message->name,
                                       .uid = link_peer_uid(link),
                                       .pid = link_peer_pid(link),
                                       .qpn = message->qpn};
    lock_acquire(&work_lock);
    if (!works)
        error = thread_start(serve_all, NULL);
    works = !error;
    if (works)
        list_push_back(&work, &waiting->node);
    lock_release(&work_lock);
    if (error) {
        log_error("cannot create the thread that serves ibv_open_qp() of other processes: %s (limits: ulimit "
                  "-u, and "
                  "pids.max of the cgroup): they cannot open QPs of this one",
                  strerror(-error));
        waiting_free(waiting);
        return;
    }
    atomic_fetch_add_explicit(&wanted, 1, memory_order_release);
    sys_futex((uint32_t *)&wanted, FUTEX_WAKE_PRIVATE, 1, NS_NEVER);
}

/* --- arriving messages; links --------------------------------------------------------------------------- */

void remote_open_receive(struct lane *lane, const struct packet *packet)
{
    struct link *link = lane_link(lane);
    struct remote_open_message message;

    if (packet->payload_length != sizeof(message) || (packet->flags & PACKET_BY_REFERENCE))
        return;
    memcpy(&message, packet->payload, sizeof(message)); /* shared memory: copied before it is checked */
    switch (message.kind) {
    case REMOTE_OPEN_REPLY:
        receive_reply(link_serial(link), &message);
        break;
    case REMOTE_OPEN_EVENT:
        receive_event(link_serial(link), &message);
        break;
    case QP_REQUEST_OPEN:
    case QP_REQUEST_MODIFY:
    case QP_REQUEST_QUERY:
    case REMOTE_OPEN_CLOSE:
        queue_work(link, &message);
        break;
    default:
        break;
    }
}

void remote_open_link_down(uint64_t serial)
{
    lock_acquire(&remote_open_lock);
    list_for_each_safe (node, following, &calls) {
        struct call *call = list_entry(node, struct call, node);

        if (call->serial == serial)
            call_end(call, -EIO);
    }
    list_for_each (node, &handles) {
        struct qp_handle *handle = list_entry(node, struct qp_handle, all);
        struct qp *qp = handle->opener.handle;

        if (handle->serial != serial || handle->lost)
            continue;
        handle->lost = true;
        atomic_store_explicit(&qp->record->state, IBV_QPS_ERR, memory_order_relaxed);
        raise_event(handle, IBV_EVENT_QP_FATAL);
    }
    lock_release(&remote_open_lock);
    qp_close_all_for(serial);
}

void remote_open_after_fork_in_child(void)
{
    lock_init(&remote_open_lock);
    lock_init(&work_lock);
    list_init(&calls);
    list_init(&handles);
    list_init(&work);
    works = false;
    budget_after_fork_in_child(&waiting_messages);
}
