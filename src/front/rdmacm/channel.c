/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Event channels (verbs.md §11.1). The descriptor is an eventfd in semaphore mode, with a token while there are unread
 * events: programs poll it, set O_NONBLOCK on it, and cancel a thread that blocks in it. An event goes to the channel
 * that its id has at that moment. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/sys.h"
#include "front/rdmacm/front.h"
#include "front/rdmacm/rest.h"

struct channel {
    struct rdma_event_channel public;
    uint32_t generation;
    _Atomic bool gone; /* destroyed; set with events_lock held */
    struct destroy_note note;
    struct list resting;
    struct list ids;    /* linked by struct id.node */
    struct list events; /* linked by struct event.node */
    uint32_t unread;    /* length of that list */
    /* In the descriptor, or read by a thread that has not got events_lock yet: it looks for an event, and leaves a
     * token if there are more. */
    uint32_t tokens;
};

/* Guards all lists of events and ids, the channel of an id, and its counts of reported events. Ranks above an id's
 * mutex alone. */
static struct lock events_lock = LOCK_INIT;
static struct rest resting = REST_INIT(resting);

void cm_channels_after_fork_in_child(void)
{
    lock_init(&events_lock);
    rest_after_fork_in_child(&resting);
}

static struct channel *channel_of(struct rdma_event_channel *channel)
{
    return container_of(channel, struct channel, public);
}

/* --- tokens; events_lock held, so by raw system calls: libc's are cancellation points ------------------- */

static bool put_token(const struct channel *channel)
{
    const uint64_t one = 1;
    int saved = errno;
    bool put = syscall(SYS_write, channel->public.fd, &one, sizeof(one)) >= 0;

    if (!put)
        log_error("rdma event channel: write to eventfd %d: %s; rdma_get_cm_event() may not wake up",
                  channel->public.fd, strerror(errno));
    errno = saved;
    return put;
}

/* False: there is none, or a reader has it. */
static bool take_token_back(const struct channel *channel)
{
    uint64_t token;

    return sys_read_now(channel->public.fd, &token, sizeof(token)) > 0;
}

/* Makes the descriptor readable if there are events, and not otherwise. After each change of either. A burst of
 * events costs one token, not a system call for each. */
static void settle_tokens(struct channel *channel)
{
    uint32_t wanted = min_of(channel->unread, 1u);

    while (channel->tokens < wanted && put_token(channel))
        channel->tokens++;
    while (channel->tokens > wanted && take_token_back(channel))
        channel->tokens--;
}

static bool reads_block(const struct channel *channel)
{
    bool block;

    lock_acquire(&events_lock); /* no take_token_back() is under way */
    block = sys_reads_block(channel->public.fd);
    lock_release(&events_lock);
    return block;
}

/* --- channels ------------------------------------------------------------------------------------------- */

static struct channel *allocate(void)
{
    struct list *node = rest_take(&resting);

    return node ? list_entry(node, struct channel, resting) : calloc(1, sizeof(struct channel));
}

struct rdma_event_channel *channel_new(void)
{
    int fd = fd_lift(eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC));
    struct channel *channel = fd < 0 ? NULL : allocate();

    if (!channel) {
        if (fd >= 0)
            sys_close(fd);
        return NULL;
    }
    memset(channel, 0, sizeof(*channel));
    list_init(&channel->resting);
    list_init(&channel->ids);
    list_init(&channel->events);
    channel->generation = generation();
    channel->public.fd = fd;
    return &channel->public;
}

static bool is_gone(const struct channel *channel)
{
    return atomic_load_explicit(&channel->gone, memory_order_relaxed);
}

/* False: the channel is already destroyed. */
static bool take_leave(struct channel *channel)
{
    bool was_there;

    lock_acquire(&events_lock);
    was_there = !atomic_exchange_explicit(&channel->gone, true, memory_order_relaxed);
    lock_release(&events_lock);
    return was_there;
}

static struct id *take_id(struct channel *channel)
{
    struct list *node;

    lock_acquire(&events_lock);
    node = list_pop_front(&channel->ids);
    lock_release(&events_lock);
    return node ? list_entry(node, struct id, node) : NULL;
}

bool channel_free(struct rdma_event_channel *public)
{
    struct channel *channel = channel_of(public);
    bool inherited = channel->generation != generation();
    struct id *id;
    int fd, saved = errno;

    if (!take_leave(channel))
        return false;
    calls->destroyed(&channel->note, NULL, public->fd);
    /* Unread events are freed with their ids. After a fork the parent's ids are void. */
    while (!inherited && (id = take_id(channel)))
        id_end(id, &channel->note);
    fd = public->fd;
    public->fd = -1;
    sys_close(fd);
    rest_put(&resting, &channel->resting);
    errno = saved;
    return true;
}

static void tell_of_use(const struct channel *channel, enum misuse_form form, const char *call, int error)
{
    calls->misused(form, call, "event channel with descriptor", channel->note.number, error, &channel->note);
}

int channel_join(struct rdma_event_channel *public, struct id *id)
{
    struct channel *channel = channel_of(public);
    int error = 0;

    lock_acquire(&events_lock);
    if (is_gone(channel)) {
        error = -EBADF;
    } else {
        id->public.channel = public;
        list_push_back(&channel->ids, &id->node);
    }
    lock_release(&events_lock);
    if (error)
        tell_of_use(channel, MISUSE_AFTER, "rdma_create_id", error);
    return error;
}

void channel_leave(struct id *id)
{
    lock_acquire(&events_lock);
    list_remove(&id->node);
    lock_release(&events_lock);
}

RDMACM_EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
    int error = start();

    if (error) {
        errno = -error;
        return NULL;
    }
    return channel_new();
}

RDMACM_EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
    if (channel && !channel_free(channel))
        tell_of_use(channel_of(channel), MISUSE_TWICE, "rdma_destroy_event_channel", 0);
}

/* --- events --------------------------------------------------------------------------------------------- */

static void event_fill(struct event *event, struct id *id, enum rdma_cm_event_type type, int status)
{
    event->account = id;
    event->public.id = &id->public;
    event->public.event = type;
    event->public.status = status;
    list_init(&event->node);
}

struct event *event_new(struct id *id, enum rdma_cm_event_type type, int status)
{
    struct event *event = calloc(1, sizeof(*event));

    if (event)
        event_fill(event, id, type, status);
    return event;
}

struct event *event_new_or_reserve(struct id *id, enum rdma_cm_event_type type, int status)
{
    struct event *event = event_new(id, type, status);

    if (event || !id->reserve)
        return event;
    event = id->reserve;
    id->reserve = NULL;
    event_fill(event, id, type, status);
    return event;
}

/* For explanations. events_lock held. */
static void count_raised(const struct event *event, uint32_t more)
{
    if (event->account->record)
        event->account->record->events.raised += more;
}

void event_push(struct event *event)
{
    struct channel *channel;

    lock_acquire(&events_lock);
    channel = channel_of(event->account->public.channel);
    if (event->child) {
        event->child->public.channel = &channel->public;
        event->child->listener = event->account;
    }
    list_push_back(&channel->events, &event->node);
    channel->unread++;
    settle_tokens(channel);
    count_raised(event, 1);
    lock_release(&events_lock);
}

int event_raise(struct id *id, enum rdma_cm_event_type type, int status)
{
    struct event *event = event_new(id, type, status);

    if (!event)
        return -ENOMEM;
    event_push(event);
    return 0;
}

static bool concerns(const struct event *event, const struct id *id)
{
    return event->account == id || event->account->listener == id;
}

/* Moves the events of an id to a list. */
static void extract(struct channel *channel, const struct id *id, struct list *ret_events)
{
    list_for_each_safe (node, following, &channel->events) {
        if (!concerns(list_entry(node, struct event, node), id))
            continue;
        list_remove(node);
        count_raised(list_entry(node, struct event, node), (uint32_t)-1);
        list_push_back(ret_events, node);
        channel->unread--;
    }
    settle_tokens(channel);
}

void events_take(struct id *id, struct list *ret_events)
{
    list_init(ret_events);
    lock_acquire(&events_lock);
    extract(channel_of(id->public.channel), id, ret_events);
    lock_release(&events_lock);
}

void events_drop_multicast(struct id *id, const struct multicast *multicast)
{
    struct channel *channel;

    lock_acquire(&events_lock);
    channel = channel_of(id->public.channel);
    list_for_each_safe (node, following, &channel->events) {
        struct event *event = list_entry(node, struct event, node);

        if (event->multicast != multicast)
            continue;
        list_remove(node);
        count_raised(event, (uint32_t)-1);
        free(event);
        channel->unread--;
    }
    settle_tokens(channel);
    lock_release(&events_lock);
}

int events_move(struct id *id, struct rdma_event_channel *to)
{
    struct channel *channel;
    struct list moved, *node;

    list_init(&moved);
    lock_acquire(&events_lock);
    if (is_gone(channel_of(to))) {
        lock_release(&events_lock);
        tell_of_use(channel_of(to), MISUSE_AFTER, "rdma_migrate_id", -EBADF);
        return -EBADF;
    }
    extract(channel_of(id->public.channel), id, &moved);
    channel = channel_of(to);
    id->public.channel = to;
    list_remove(&id->node);
    list_push_back(&channel->ids, &id->node);
    while ((node = list_pop_front(&moved))) {
        struct event *event = list_entry(node, struct event, node);

        if (event->child)
            event->child->public.channel = to;
        list_push_back(&channel->events, node);
        channel->unread++;
        count_raised(event, 1);
    }
    settle_tokens(channel);
    lock_release(&events_lock);
    return 0;
}

/* events_lock held. */
static void report(struct channel *channel, struct event *event)
{
    uint32_t *reported = event->multicast ? &event->multicast->reported : &event->account->reported;

    __atomic_store_n(reported, *reported + 1, __ATOMIC_RELAXED);
    calls->id_event_read(event->account->record, event->public.event);
    list_push_back(&event->account->handed, &event->node);
    if (!event->child)
        return;
    event->child->listener = NULL;
    list_push_back(&channel->ids, &event->child->node);
    if (event->child->record)
        event->child->record->given = true;
}

/* The first event, NULL if there is none. with_token: the caller has read a token. */
static struct event *take_first(struct channel *channel, bool with_token)
{
    struct event *event = NULL;
    struct list *first;

    lock_acquire(&events_lock);
    channel->tokens -= with_token;
    first = list_pop_front(&channel->events);
    if (first) {
        event = list_entry(first, struct event, node);
        channel->unread--;
        report(channel, event);
    }
    settle_tokens(channel);
    lock_release(&events_lock);
    return event;
}

int events_next(struct rdma_event_channel *public, struct event **ret_event)
{
    struct channel *channel = channel_of(public);
    bool with_token = false;
    uint64_t token;

    for (;;) {
        if (is_gone(channel)) {
            tell_of_use(channel, MISUSE_AFTER, "rdma_get_cm_event", -EBADF);
            return -EBADF;
        }
        if (channel->generation != generation())
            return -EIO; /* a forked child would read its parent's tokens */
        if (!with_token)
            pthread_testcancel(); /* what is read below may not be reached */
        *ret_event = take_first(channel, with_token);
        if (*ret_event)
            return 0;
        with_token = read(public->fd, &token, sizeof(token)) > 0;
        if (!with_token) {
            int error = -errno;

            if (error != -EAGAIN || !reads_block(channel))
                return error;
        }
    }
}

void event_transfer(struct event *event, struct id *to)
{
    lock_acquire(&events_lock);
    event->account->reported--;
    /* The id that counts the event. */
    calls->id_event_acknowledged(event->account->record, event->public.event);
    event->account = to;
    list_remove(&event->node);
    list_push_back(&to->handed, &event->node);
    to->reported++;
    count_raised(event, 1);
    calls->id_event_read(to->record, event->public.event);
    lock_release(&events_lock);
}

/* --- acknowledging -------------------------------------------------------------------------------------- */

/* Caller holds events_lock, so that the id exists as long as it has the event. */
static void acknowledge_locked(struct event *event)
{
    struct id *id = event->account;

    list_remove(&event->node);
    pthread_mutex_lock(&id->mutex);
    calls->id_event_acknowledged(id->record, event->public.event);
    if (event->multicast)
        event->multicast->acknowledged++;
    else
        id->acknowledged++;
    pthread_cond_broadcast(&id->cond);
    pthread_mutex_unlock(&id->mutex);
}

static void acknowledge(struct event *event)
{
    lock_acquire(&events_lock);
    if (event->account && !id_is_inherited(event->account))
        acknowledge_locked(event);
    lock_release(&events_lock);
}

void events_disown(struct id *id)
{
    lock_acquire(&events_lock);
    while (!list_empty(&id->handed)) {
        struct event *event = list_entry(id->handed.next, struct event, node);

        acknowledge_locked(event);
        event->account = NULL;
    }
    lock_release(&events_lock);
}

static void unlock(void *mutex)
{
    pthread_mutex_unlock(mutex);
}

/* False: the deadline has passed (NULL: no deadline). A cancellation point. */
static bool wait_until_equal(struct id *id, const uint32_t *reported, const uint32_t *acknowledged,
                             const struct timespec *deadline)
{
    int error = 0;

    pthread_mutex_lock(&id->mutex);
    pthread_cleanup_push(unlock, &id->mutex);
    while ((int32_t)(*acknowledged - __atomic_load_n(reported, __ATOMIC_RELAXED)) < 0 && error != ETIMEDOUT)
        error = deadline ? pthread_cond_timedwait(&id->cond, &id->mutex, deadline)
                         : pthread_cond_wait(&id->cond, &id->mutex);
    pthread_cleanup_pop(1);
    return error != ETIMEDOUT;
}

static bool is_settled(struct id *id, const uint32_t *reported, const uint32_t *acknowledged)
{
    bool settled;

    pthread_mutex_lock(&id->mutex);
    settled = (int32_t)(*acknowledged - __atomic_load_n(reported, __ATOMIC_RELAXED)) >= 0;
    pthread_mutex_unlock(&id->mutex);
    return settled;
}

static void settle(struct id *id, const uint32_t *reported, const uint32_t *acknowledged, enum id_call call)
{
    struct timespec deadline;
    bool told = false;

    if (is_settled(id, reported, acknowledged))
        return;
    calls->id_waits(id->record, call);
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec++;
    if (!wait_until_equal(id, reported, acknowledged, &deadline)) {
        calls->id_still_waits(id->record);
        told = true;
        wait_until_equal(id, reported, acknowledged, NULL);
    }
    calls->id_waited(id->record, told);
}

void events_settle(struct id *id, enum id_call call)
{
    settle(id, &id->reported, &id->acknowledged, call);
}

void multicast_settle(struct id *id, struct multicast *multicast)
{
    settle(id, &multicast->reported, &multicast->acknowledged, ID_CALL_LEAVE_MULTICAST);
}

RDMACM_EXPORT int rdma_ack_cm_event(struct rdma_cm_event *public)
{
    struct event *event;

    if (!public)
        return conclude(-EINVAL);
    event = container_of(public, struct event, public);
    acknowledge(event);
    free(event);
    return 0;
}

RDMACM_EXPORT int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **ret_event)
{
    struct event *event;
    int error = start();

    if (!error && (!channel || !ret_event))
        error = -EINVAL;
    while (!error) {
        error = events_next(channel, &event);
        if (error)
            break;
        if (connect_handle(event)) {
            *ret_event = &event->public;
            return 0;
        }
        rdma_ack_cm_event(&event->public);
    }
    return conclude(error);
}

RDMACM_EXPORT const char *rdma_event_str(enum rdma_cm_event_type type)
{
    static const char *const texts[] = {
        [RDMA_CM_EVENT_ADDR_RESOLVED] = "RDMA_CM_EVENT_ADDR_RESOLVED",
        [RDMA_CM_EVENT_ADDR_ERROR] = "RDMA_CM_EVENT_ADDR_ERROR",
        [RDMA_CM_EVENT_ROUTE_RESOLVED] = "RDMA_CM_EVENT_ROUTE_RESOLVED",
        [RDMA_CM_EVENT_ROUTE_ERROR] = "RDMA_CM_EVENT_ROUTE_ERROR",
        [RDMA_CM_EVENT_CONNECT_REQUEST] = "RDMA_CM_EVENT_CONNECT_REQUEST",
        [RDMA_CM_EVENT_CONNECT_RESPONSE] = "RDMA_CM_EVENT_CONNECT_RESPONSE",
        [RDMA_CM_EVENT_CONNECT_ERROR] = "RDMA_CM_EVENT_CONNECT_ERROR",
        [RDMA_CM_EVENT_UNREACHABLE] = "RDMA_CM_EVENT_UNREACHABLE",
        [RDMA_CM_EVENT_REJECTED] = "RDMA_CM_EVENT_REJECTED",
        [RDMA_CM_EVENT_ESTABLISHED] = "RDMA_CM_EVENT_ESTABLISHED",
        [RDMA_CM_EVENT_DISCONNECTED] = "RDMA_CM_EVENT_DISCONNECTED",
        [RDMA_CM_EVENT_DEVICE_REMOVAL] = "RDMA_CM_EVENT_DEVICE_REMOVAL",
        [RDMA_CM_EVENT_MULTICAST_JOIN] = "RDMA_CM_EVENT_MULTICAST_JOIN",
        [RDMA_CM_EVENT_MULTICAST_ERROR] = "RDMA_CM_EVENT_MULTICAST_ERROR",
        [RDMA_CM_EVENT_ADDR_CHANGE] = "RDMA_CM_EVENT_ADDR_CHANGE",
        [RDMA_CM_EVENT_TIMEWAIT_EXIT] = "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        /* not in older headers */
        [RDMA_CM_EVENT_TIMEWAIT_EXIT + 1] = "RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        [RDMA_CM_EVENT_TIMEWAIT_EXIT + 2] = "RDMA_CM_EVENT_ADDRINFO_ERROR",
    };

    return (unsigned)type < array_size(texts) ? texts[type] : "UNKNOWN EVENT";
}
