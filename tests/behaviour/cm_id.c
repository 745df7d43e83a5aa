/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §11.1 to §11.3, §11.8: ids, event channels, options. */
#include "cm.h"
#include "threads.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Most of this is one process's own affair. */
static struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space ps)
{
    struct rdma_cm_id *id;

    CM_ZERO(rdma_create_id(channel, &id, NULL, ps));
    return id;
}

static struct rdma_event_channel *new_channel(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();

    assert_non_null(channel);
    return channel;
}

static void begin_resolving(struct rdma_cm_id *id)
{
    struct sockaddr_storage address = cm_address(4711);

    CM_ZERO(rdma_resolve_addr(id, NULL, as_sockaddr(&address), 2000));
}

static struct rdma_cm_event *take(struct rdma_event_channel *channel)
{
    struct rdma_cm_event *event;

    CM_ZERO(rdma_get_cm_event(channel, &event));
    return event;
}

static bool readable(const struct rdma_event_channel *channel)
{
    struct pollfd event = {.fd = channel->fd, .events = POLLIN};

    return poll(&event, 1, 0) == 1;
}

/* --- ids --- */

static void port_spaces_have_their_qp_types(void **state)
{
    static const struct {
        enum rdma_port_space ps;
        enum ibv_qp_type type;
    } rows[] = {{RDMA_PS_TCP, IBV_QPT_RC},
                {RDMA_PS_IB, IBV_QPT_RC},
                {RDMA_PS_UDP, IBV_QPT_UD},
                {RDMA_PS_IPOIB, IBV_QPT_UD}};
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id;
    int mine;

    for (size_t i = 0; i < COUNT(rows); i++) {
        CM_ZERO(rdma_create_id(channel, &id, &mine, rows[i].ps));
        assert_int_equal(id->qp_type, rows[i].type);
        assert_int_equal(id->ps, rows[i].ps);
        assert_ptr_equal(id->context, &mine);
        assert_ptr_equal(id->channel, channel);
        assert_null(id->verbs);
        assert_null(id->qp);
        assert_null(id->event);
        assert_int_equal(rdma_get_src_port(id), 0);
        assert_int_equal(rdma_get_dst_port(id), 0);
        CM_ZERO(rdma_destroy_id(id));
    }
    assert_int_equal(CM(rdma_create_id(channel, &id, NULL, (enum rdma_port_space)77)), EINVAL);
    rdma_destroy_event_channel(channel);
}

static void contexts_are_the_same_for_ever(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *a = new_id(channel, RDMA_PS_TCP), *b = new_id(channel, RDMA_PS_TCP);
    struct ibv_context **list, **again;
    struct ibv_context *verbs;
    int count, count_again;
    bool found = false;

    list = rdma_get_devices(&count);
    assert_non_null(list);
    assert_true(count > 0);
    assert_null(list[count]);
    begin_resolving(a);
    begin_resolving(b);
    assert_ptr_equal(a->verbs, b->verbs);
    assert_ptr_equal(a->pd, b->pd);
    assert_ptr_equal(a->pd->context, a->verbs);
    assert_int_equal(a->port_num, 1);
    for (int i = 0; i < count; i++)
        found = found || list[i] == a->verbs;
    assert_true(found);
    verbs = a->verbs;
    CM_ZERO(rdma_destroy_id(a));
    CM_ZERO(rdma_destroy_id(b));
    rdma_free_devices(list);
    again = rdma_get_devices(&count_again);
    assert_int_equal(count_again, count);
    found = false;
    for (int i = 0; i < count; i++)
        found = found || again[i] == verbs;
    assert_true(found);
    rdma_free_devices(again);
    rdma_destroy_event_channel(channel);
}

/* --- channels --- */

static void a_channel_is_a_descriptor(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
    struct rdma_cm_event *event;
    int flags;

    assert_false(readable(channel));
    flags = fcntl(channel->fd, F_GETFL);
    assert_false(flags & O_NONBLOCK);
    assert_true(fcntl(channel->fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK), 0);
    assert_int_equal(CM(rdma_get_cm_event(channel, &event)), EAGAIN);
    begin_resolving(id);
    assert_true(readable(channel));
    assert_true(readable(channel)); /* as long as the event is there */
    event = take(channel);
    assert_false(readable(channel));
    assert_int_equal(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_int_equal(event->status, 0);
    assert_ptr_equal(event->id, id);
    assert_null(event->listen_id);
    assert_int_equal(CM(rdma_get_cm_event(channel, &event)), EAGAIN);
    CM_ZERO(rdma_ack_cm_event(event));
    CM_ZERO(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

static void null_is_no_event(void **state)
{
    struct rdma_event_channel *channel = new_channel();

    assert_int_equal(CM(rdma_get_cm_event(channel, NULL)), EINVAL);
    assert_int_equal(CM(rdma_ack_cm_event(NULL)), EINVAL);
    rdma_destroy_event_channel(channel);
}

static void *wait_for_event(void *arg)
{
    struct rdma_cm_event *event;

    return rdma_get_cm_event(arg, &event) == 0 ? event : NULL;
}

static void reading_waits_for_an_event(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
    pthread_t reader;
    void *event;

    assert_int_equal(pthread_create(&reader, NULL, wait_for_event, channel), 0);
    begin_resolving(id);
    assert_int_equal(pthread_join(reader, &event), 0);
    assert_non_null(event);
    CM_ZERO(rdma_ack_cm_event(event));
    CM_ZERO(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

/* How often the descriptor has to be read before it is not readable any more. */
static unsigned int tokens(const struct rdma_event_channel *channel)
{
    char path[64], line[128];
    unsigned int count = 0;
    FILE *info;

    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", channel->fd);
    info = fopen(path, "re");
    assert_non_null(info);
    while (fgets(line, sizeof line, info))
        sscanf(line, "eventfd-count: %x", &count);
    fclose(info);
    return count;
}

/* A system call, and a thread that is woken, for all of them and not for each. */
static void a_burst_of_events_makes_the_descriptor_readable_once(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *ids[8];

    for (size_t i = 0; i < COUNT(ids); i++) {
        ids[i] = new_id(channel, RDMA_PS_TCP);
        begin_resolving(ids[i]);
        assert_int_equal(tokens(channel), 1);
    }
    for (size_t i = 0; i < COUNT(ids); i++) {
        struct rdma_cm_event *event;

        assert_true(readable(channel));
        event = take(channel);
        assert_ptr_equal(event->id, ids[i]);
        CM_ZERO(rdma_ack_cm_event(event));
    }
    assert_false(readable(channel));
    for (size_t i = 0; i < COUNT(ids); i++)
        CM_ZERO(rdma_destroy_id(ids[i]));
    rdma_destroy_event_channel(channel);
}

static int acknowledge_one(void *channel)
{
    struct rdma_cm_event *event = wait_for_event(channel);

    return event ? CM(rdma_ack_cm_event(event)) : errno;
}

static void each_of_several_readers_gets_an_event(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct caller readers[6];
    struct rdma_cm_id *ids[COUNT(readers)];

    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < COUNT(readers); i++) {
            ids[i] = new_id(channel, RDMA_PS_TCP);
            caller_start(&readers[i], acknowledge_one, channel);
        }
        /* Once all sleep, once as it comes. */
        for (size_t i = 0; i < COUNT(readers) && round % 2; i++)
            assert_true(caller_is_blocked(&readers[i]));
        for (size_t i = 0; i < COUNT(readers); i++)
            begin_resolving(ids[i]);
        for (size_t i = 0; i < COUNT(readers); i++)
            assert_int_equal(caller_finish(&readers[i]), 0);
        assert_false(readable(channel));
        for (size_t i = 0; i < COUNT(readers); i++)
            CM_ZERO(rdma_destroy_id(ids[i]));
    }
    rdma_destroy_event_channel(channel);
}

/* rping cancels the thread that reads its events. */
static void a_reader_can_be_cancelled(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
    pthread_t reader;
    void *result;

    assert_int_equal(pthread_create(&reader, NULL, wait_for_event, channel), 0);
    assert_int_equal(pthread_cancel(reader), 0);
    assert_int_equal(pthread_join(reader, &result), 0);
    assert_ptr_equal(result, PTHREAD_CANCELED);
    /* And nothing is held that others need. */
    begin_resolving(id);
    CM_ZERO(rdma_ack_cm_event(take(channel)));
    CM_ZERO(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

static void *take_without_end(void *arg)
{
    struct rdma_cm_event *event;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    event = take(arg);
    CM_ZERO(rdma_ack_cm_event(event));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    return rdma_get_cm_event(arg, &event) == 0 ? event : NULL;
}

static void a_reader_that_finds_events_can_be_cancelled(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *first = new_id(channel, RDMA_PS_TCP), *second = new_id(channel, RDMA_PS_TCP);
    pthread_t reader;
    void *result;

    assert_int_equal(pthread_create(&reader, NULL, take_without_end, channel), 0);
    assert_int_equal(pthread_cancel(reader), 0);
    begin_resolving(first);
    begin_resolving(second);
    assert_int_equal(pthread_join(reader, &result), 0);
    assert_ptr_equal(result, PTHREAD_CANCELED);
    assert_true(readable(channel)); /* nothing is lost */
    CM_ZERO(rdma_ack_cm_event(take(channel)));
    assert_false(readable(channel));
    CM_ZERO(rdma_destroy_id(first));
    CM_ZERO(rdma_destroy_id(second));
    rdma_destroy_event_channel(channel);
}

static void events_have_names(void **state)
{
    static const char *const names[] = {
        "ADDR_RESOLVED",   "ADDR_ERROR",       "ROUTE_RESOLVED", "ROUTE_ERROR",
        "CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR",  "UNREACHABLE",
        "REJECTED",        "ESTABLISHED",      "DISCONNECTED",   "DEVICE_REMOVAL",
        "MULTICAST_JOIN",  "MULTICAST_ERROR",  "ADDR_CHANGE",    "TIMEWAIT_EXIT"};
    char want[64];

    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(want, sizeof want, "RDMA_CM_EVENT_%s", names[i]);
        assert_string_equal(rdma_event_str((enum rdma_cm_event_type)i), want);
    }
    assert_string_equal(rdma_event_str((enum rdma_cm_event_type)99), "UNKNOWN EVENT");
}

/* --- destroying --- */

static void unread_events_go_with_the_id(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *gone = new_id(channel, RDMA_PS_TCP), *stays = new_id(channel, RDMA_PS_TCP);
    struct rdma_cm_event *event;

    begin_resolving(gone);
    begin_resolving(stays);
    CM_ZERO(rdma_resolve_route(gone, 2000));
    CM_ZERO(rdma_destroy_id(gone));
    event = take(channel);
    assert_ptr_equal(event->id, stays);
    assert_false(readable(channel));
    CM_ZERO(rdma_ack_cm_event(event));
    CM_ZERO(rdma_destroy_id(stays));
    rdma_destroy_event_channel(channel);
}

struct destroyer {
    struct rdma_cm_id *id;
    _Atomic int done;
};

static void *destroy(void *arg)
{
    struct destroyer *destroyer = arg;

    CHECK(rdma_destroy_id(destroyer->id) == 0, "rdma_destroy_id: %s", strerror(errno));
    __atomic_store_n((int *)&destroyer->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void destroying_waits_for_acknowledgements(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct destroyer destroyer = {.id = new_id(channel, RDMA_PS_TCP)};
    struct rdma_cm_event *first, *second;
    pthread_t thread;

    begin_resolving(destroyer.id);
    CM_ZERO(rdma_resolve_route(destroyer.id, 2000));
    first = take(channel);
    second = take(channel);
    assert_int_equal(pthread_create(&thread, NULL, destroy, &destroyer), 0);
    CM_ZERO(rdma_ack_cm_event(second));
    /* One is missing: it cannot have come back, however long this takes. */
    assert_int_equal(__atomic_load_n((int *)&destroyer.done, __ATOMIC_ACQUIRE), 0);
    CM_ZERO(rdma_ack_cm_event(first));
    assert_int_equal(pthread_join(thread, NULL), 0);
    rdma_destroy_event_channel(channel);
}

/* --- moving between channels --- */

static void unread_events_move_with_the_id(void **state)
{
    struct rdma_event_channel *from = new_channel(), *to = new_channel();
    struct rdma_cm_id *moves = new_id(from, RDMA_PS_TCP), *stays = new_id(from, RDMA_PS_TCP);
    struct rdma_cm_event *event;

    begin_resolving(stays);
    begin_resolving(moves);
    CM_ZERO(rdma_resolve_route(moves, 2000));
    CM_ZERO(rdma_migrate_id(moves, to));
    assert_ptr_equal(moves->channel, to);
    event = take(from);
    assert_ptr_equal(event->id, stays);
    CM_ZERO(rdma_ack_cm_event(event));
    assert_false(readable(from));
    event = take(to);
    assert_int_equal(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_ptr_equal(event->id, moves);
    CM_ZERO(rdma_ack_cm_event(event));
    event = take(to);
    assert_int_equal(event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
    CM_ZERO(rdma_ack_cm_event(event));
    assert_false(readable(to));
    CM_ZERO(rdma_destroy_id(moves));
    CM_ZERO(rdma_destroy_id(stays));
    rdma_destroy_event_channel(from);
    rdma_destroy_event_channel(to);
}

static void an_id_without_a_channel_waits_for_itself(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(NULL, RDMA_PS_TCP);

    assert_non_null(id->channel); /* of its own */
    begin_resolving(id);
    assert_non_null(id->event);
    assert_int_equal(id->event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_int_equal(CM(rdma_migrate_id(id, NULL)), EINVAL); /* it has one already */
    CM_ZERO(rdma_migrate_id(id, channel));
    assert_null(id->event);
    CM_ZERO(rdma_resolve_route(id, 2000)); /* does not wait any more */
    assert_null(id->event);
    assert_true(readable(channel));
    CM_ZERO(rdma_ack_cm_event(take(channel)));
    CM_ZERO(rdma_migrate_id(id, NULL));
    assert_ptr_not_equal(id->channel, channel);
    rdma_destroy_event_channel(channel);
    CM_ZERO(rdma_destroy_id(id));
}

struct mover {
    struct rdma_cm_id *id;
    struct rdma_event_channel *to;
};

static void *migrate(void *arg)
{
    struct mover *mover = arg;

    CHECK(rdma_migrate_id(mover->id, mover->to) == 0, "rdma_migrate_id: %s", strerror(errno));
    return NULL;
}

static void moving_waits_for_acknowledgements(void **state)
{
    struct rdma_event_channel *from = new_channel();
    struct mover mover = {.id = new_id(from, RDMA_PS_TCP), .to = new_channel()};
    struct rdma_cm_event *event;
    pthread_t thread;

    begin_resolving(mover.id);
    event = take(from);
    assert_int_equal(pthread_create(&thread, NULL, migrate, &mover), 0);
    CM_ZERO(rdma_ack_cm_event(event));
    assert_int_equal(pthread_join(thread, NULL), 0);
    rdma_destroy_event_channel(from);
    CM_ZERO(rdma_destroy_id(mover.id));
    rdma_destroy_event_channel(mover.to);
}

/* --- options --- */

static int set(struct rdma_cm_id *id, int level, int option, const void *value, size_t length)
{
    return CM(rdma_set_option(id, level, option, (void *)(uintptr_t)value, length));
}

static void options_are_checked(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *datagrams = new_id(channel, RDMA_PS_UDP);
    const uint8_t tos = 8, timeout = 21, none = 0, too_long = 32;
    const uint32_t four = 1;
    const int one = 1, zero = 0;

    assert_int_equal(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1), 0);
    assert_int_equal(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &four, 4), EINVAL);
    assert_int_equal(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1), 0);
    assert_int_equal(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &none, 1), EINVAL);
    assert_int_equal(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &too_long, 1), EINVAL);
    assert_int_equal(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &four, 4), EINVAL);
    assert_int_equal(set(datagrams, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1), EINVAL);
    assert_int_equal(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one), 0);
    assert_int_equal(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &tos, 1), EINVAL);
    assert_int_equal(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof one), 0);
    assert_int_equal(set(id, RDMA_OPTION_ID, 99, &one, sizeof one), ENOSYS);
    assert_int_equal(set(id, 99, 0, &one, sizeof one), ENOSYS);
    assert_int_equal(set(id, RDMA_OPTION_IB, 99, &one, sizeof one), ENOSYS);
    assert_int_equal(set(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &one, sizeof one), EINVAL);
    begin_resolving(id);
    assert_int_equal(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof one), EINVAL);
    assert_int_equal(set(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &zero, sizeof zero), EINVAL);
    CM_ZERO(rdma_destroy_id(id));
    CM_ZERO(rdma_destroy_id(datagrams));
    rdma_destroy_event_channel(channel);
}

static void a_path_replaces_the_route(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
    struct ibv_path_data path = {.flags =
                                     IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL};
    struct rdma_cm_event *event;

    begin_resolving(id);
    CM_ZERO(rdma_ack_cm_event(take(channel)));
    path.path.mtu = 2 << 6 | IBV_MTU_256;
    assert_int_equal(set(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path), EINVAL);
    path.path.sgid = id->route.addr.addr.ibaddr.sgid;
    path.path.dgid = id->route.addr.addr.ibaddr.dgid;
    path.path.tclass = 7;
    assert_int_equal(set(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path, sizeof path), 0);
    event = take(channel);
    assert_int_equal(event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
    CM_ZERO(rdma_ack_cm_event(event));
    assert_int_equal(id->route.num_paths, 1);
    assert_int_equal(id->route.path_rec->mtu, IBV_MTU_256);
    assert_int_equal(id->route.path_rec->traffic_class, 7);
    CM_ZERO(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

/* --- after a fork --- */

static void a_child_begins_anew(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
    struct rdma_cm_event *event;
    pid_t pid;
    int status;

    begin_resolving(id);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rdma_event_channel *own;
        struct rdma_cm_id *ours;

        /* What was the parent's is dead, and does not disturb it. */
        if (CM(rdma_resolve_route(id, 2000)) != EIO || CM(rdma_get_cm_event(channel, &event)) != EIO ||
            CM(rdma_destroy_id(id)) != 0)
            _exit(1);
        own = rdma_create_event_channel();
        if (!own || rdma_create_id(own, &ours, NULL, RDMA_PS_TCP) != 0)
            _exit(2);
        begin_resolving(ours);
        event = take(own);
        if (event->event != RDMA_CM_EVENT_ADDR_RESOLVED)
            _exit(3);
        rdma_ack_cm_event(event);
        if (rdma_destroy_id(ours) != 0)
            _exit(4);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    event = take(channel);
    assert_ptr_equal(event->id, id);
    CM_ZERO(rdma_ack_cm_event(event));
    CM_ZERO(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

/* --- what newer headers declare --- */

enum { EVENT_ADDRINFO_RESOLVED = 16, EVENT_ADDRINFO_ERROR, EVENT_USER };

/* The distribution's library, with which this is linked, may be too old to have them. */
typedef int resolve_fn(struct rdma_cm_id *id, const char *node, const char *service,
                       const struct rdma_addrinfo *hints);
typedef int query_fn(struct rdma_cm_id *id, struct rdma_addrinfo **info);
typedef int write_fn(struct rdma_cm_id *id, int event, int status, uint64_t argument);

static void *newer(const char *name)
{
    void *function = dlsym(RTLD_DEFAULT, name);

    assert_non_null(function);
    return function;
}

static void a_program_writes_events_of_its_own(void **state)
{
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *waiting = new_id(NULL, RDMA_PS_TCP);
    write_fn *write_event = (write_fn *)newer("rdma_write_cm_event");
    struct rdma_cm_event *event;
    uint64_t argument;

    assert_false(readable(channel));
    CM_ZERO(write_event(id, EVENT_USER, -7, 0x1122334455667788));
    assert_true(readable(channel));
    event = take(channel);
    memcpy(&argument, &event->param, sizeof(argument));
    assert_ptr_equal(event->id, id);
    assert_int_equal(event->event, EVENT_USER);
    assert_int_equal(event->status, -7);
    assert_true(argument == 0x1122334455667788);
    CM_ZERO(rdma_ack_cm_event(event));
    assert_int_equal(CM(write_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0)), EINVAL);
    assert_int_equal(CM(write_event(waiting, EVENT_USER, 0, 0)), EINVAL);
    CM_ZERO(rdma_destroy_id(waiting));
    CM_ZERO(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

static void names_are_resolved_by_an_event(void **state)
{
    const struct rdma_addrinfo numbers = {.ai_flags = RAI_NUMERICHOST}, subnet = {.ai_flags = 0x10};
    struct rdma_event_channel *channel = new_channel();
    struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
    resolve_fn *resolve = (resolve_fn *)newer("rdma_resolve_addrinfo");
    query_fn *query = (query_fn *)newer("rdma_query_addrinfo");
    struct rdma_addrinfo *info = NULL;
    struct rdma_cm_event *event;

    assert_int_equal(CM(query(id, &info)), ENODATA);
    assert_int_equal(CM(resolve(id, NULL, NULL, NULL)), EINVAL);
    assert_int_equal(CM(resolve(id, NULL, "7471", &subnet)), EOPNOTSUPP);
    assert_false(readable(channel));
    CM_ZERO(resolve(id, "127.0.0.1", "7471", &numbers));
    event = take(channel);
    assert_int_equal(event->event, EVENT_ADDRINFO_RESOLVED);
    assert_int_equal(event->status, 0);
    CM_ZERO(rdma_ack_cm_event(event));
    CM_ZERO(query(id, &info));
    assert_int_equal(info->ai_dst_addr->sa_family, AF_INET);
    assert_int_equal(((struct sockaddr_in *)info->ai_dst_addr)->sin_port, htons(7471));
    rdma_freeaddrinfo(info);
    assert_int_equal(CM(query(id, &info)), ENODATA);

    CM_ZERO(resolve(id, "no number", "7471", &numbers));
    event = take(channel);
    assert_int_equal(event->event, EVENT_ADDRINFO_ERROR);
    assert_int_not_equal(event->status, 0);
    CM_ZERO(rdma_ack_cm_event(event));
    assert_int_equal(CM(query(id, &info)), ENODATA);

    /* The id takes with it what nobody has asked for. */
    CM_ZERO(resolve(id, "127.0.0.1", "7471", &numbers));
    CM_ZERO(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

static const struct test tests[] = {
    TEST(port_spaces_have_their_qp_types),
    TEST(contexts_are_the_same_for_ever),
    TEST(a_channel_is_a_descriptor),
    TEST(null_is_no_event),
    TEST(reading_waits_for_an_event),
    TEST(a_burst_of_events_makes_the_descriptor_readable_once),
    TEST(each_of_several_readers_gets_an_event),
    TEST(a_reader_can_be_cancelled),
    TEST(a_reader_that_finds_events_can_be_cancelled),
    TEST(events_have_names),
    TEST(unread_events_go_with_the_id),
    TEST(destroying_waits_for_acknowledgements),
    TEST(unread_events_move_with_the_id),
    TEST(an_id_without_a_channel_waits_for_itself),
    TEST(moving_waits_for_acknowledgements),
    TEST(options_are_checked),
    TEST(a_path_replaces_the_route),
    TEST(a_child_begins_anew),
    TEST(a_program_writes_events_of_its_own),
    TEST(names_are_resolved_by_an_event),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
