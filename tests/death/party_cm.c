/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A party that connects by librdmacm, as a server or a client. */
#include "party.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static struct sockaddr_in address(void)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(PORT)};

    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return in;
}

/* The next event, or NULL when the other party ends before. */
struct rdma_cm_event *next_event(struct party *party, bool whatever)
{
    struct rdma_cm_event *event;
    struct pollfd fds[2] = {{party->channel->fd, POLLIN, 0}, {party->other, 0, 0}}; /* of that, the end */

    for (;;) {
        const bool there = whatever || !party->other_ended;

        if (poll(fds, whatever ? 1 : 2, there ? -1 : 0) < 0 && errno != EINTR)
            wrong(party, "poll: %s", strerror(errno));
        if (fds[0].revents) {
            MUST(!rdma_get_cm_event(party->channel, &event), "rdma_get_cm_event: %s", strerror(errno));
            return event;
        }
        if (!there)
            return NULL;
        if (!whatever && fds[1].revents)
            party->other_ended = true;
    }
}

/* The event comes, or false: something else, which says that the other party is gone. */
static bool await_event(struct party *party, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *const event = next_event(party, false);
    enum rdma_cm_event_type got;

    if (!event)
        return false;
    got = event->event;
    if (got != type)
        snprintf(party->unconnected, sizeof(party->unconnected), "%s, status %d, instead of %s",
                 rdma_event_str(got), event->status, rdma_event_str(type));
    if (got == RDMA_CM_EVENT_CONNECT_REQUEST)
        party->id = event->id;
    MUST(!rdma_ack_cm_event(event), "rdma_ack_cm_event");
    MUST(got == type || got == RDMA_CM_EVENT_DISCONNECTED || got == RDMA_CM_EVENT_REJECTED ||
             got == RDMA_CM_EVENT_UNREACHABLE || got == RDMA_CM_EVENT_CONNECT_ERROR,
         "event %s instead of %s", rdma_event_str(got), rdma_event_str(type));
    return got == type;
}

static void make_cm_qp(struct party *party)
{
    struct ibv_qp_init_attr init;

    party->context = party->id->verbs;
    if (!party->pd)
        make_objects(party);
    init = qp_attr(party);
    MUST(!rdma_create_qp(party->id, party->pd, &init), "rdma_create_qp: %s", strerror(errno));
    party->qp = party->id->qp;
    for (unsigned i = 0; i < SLOTS; i++)
        post_receive(party, i);
}

/* A victim that is stepped is slow: over the network its requests, and those to it, would end with an error. */
static void be_patient(struct party *party)
{
    uint8_t timeout = 22; /* 17 s */

    if (party->sockets.recording)
        MUST(!rdma_set_option(party->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout,
                              sizeof(timeout)),
             "rdma_set_option: %s", strerror(errno));
}

static struct rdma_conn_param cm_param(const struct party *party)
{
    return (struct rdma_conn_param){.responder_resources = 4,
                                    .initiator_depth = 4,
                                    .retry_count = party->sockets.recording ? 7 : 3,
                                    .rnr_retry_count = 7};
}

/* Requests that a server has accepted. Of a client that died before, or whose request to the server before was late,
 * nothing more is heard, or that it failed. */
enum { ACCEPTED_MAX = 8 };
struct accepted {
    struct rdma_cm_id *ids[ACCEPTED_MAX];
    unsigned count;
};

static void drop(struct party *party, struct rdma_cm_id *id)
{
    if (id->qp)
        rdma_destroy_qp(id);
    MUST(!rdma_destroy_id(id), "rdma_destroy_id: %s", strerror(errno));
    if (party->id != id)
        return;
    party->id = NULL;
    party->qp = NULL;
}

/* All but `kept`. */
static void drop_accepted(struct party *party, struct accepted *accepted, const struct rdma_cm_id *kept)
{
    while (accepted->count)
        if (accepted->ids[--accepted->count] != kept)
            drop(party, accepted->ids[accepted->count]);
}

static void accept_request(struct party *party, struct accepted *accepted, struct rdma_cm_id *id)
{
    struct rdma_conn_param param = cm_param(party);

    MUST(accepted->count < ACCEPTED_MAX, "%u requests, and no client", accepted->count);
    party->id = id;
    make_cm_qp(party);
    if (rdma_accept(id, &param))
        drop(party, id);
    else
        accepted->ids[accepted->count++] = id;
}

static void forget_accepted(struct accepted *accepted, const struct rdma_cm_id *id)
{
    for (unsigned i = 0; i < accepted->count; i++)
        if (accepted->ids[i] == id)
            accepted->ids[i--] = accepted->ids[--accepted->count];
}

/* A server: all requests are accepted, and the client is who answers. A request that a process wrote before its end, or
 * that was late for the listener that is gone, may come before that of the client, and behind it. */
static bool accept_who_lives(struct party *party)
{
    struct accepted accepted = {.count = 0};

    for (;;) {
        struct rdma_cm_event *const event = next_event(party, false);
        struct rdma_cm_id *id;
        enum rdma_cm_event_type type;

        if (!event) {
            drop_accepted(party, &accepted, NULL);
            return false;
        }
        id = event->id;
        type = event->event;
        MUST(!rdma_ack_cm_event(event), "rdma_ack_cm_event");
        if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
            accept_request(party, &accepted, id);
        } else if (type == RDMA_CM_EVENT_ESTABLISHED) {
            drop_accepted(party, &accepted, id);
            party->id = id;
            party->qp = id->qp;
            return true;
        } else {
            MUST(type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_REJECTED ||
                     type == RDMA_CM_EVENT_UNREACHABLE || type == RDMA_CM_EVENT_CONNECT_ERROR,
                 "event %s of a listener", rdma_event_str(type));
            forget_accepted(&accepted, id);
            drop(party, id);
        }
    }
}

static bool cm_passive(struct party *party)
{
    struct sockaddr_in in = address();
    struct rdma_conn_param param = cm_param(party);
    int tries = 0;

    party->channel = rdma_create_event_channel();
    MUST(party->channel, "rdma_create_event_channel: %s", strerror(errno));
    MUST(!rdma_create_id(party->channel, &party->listener, NULL, RDMA_PS_TCP), "rdma_create_id: %s",
         strerror(errno));
    MUST(!rdma_bind_addr(party->listener, (struct sockaddr *)&in), "rdma_bind_addr: %s", strerror(errno));
    MUST(!rdma_listen(party->listener, 4), "rdma_listen: %s", strerror(errno));
    tell(party, WORD_READY);
    if (party->patient || party->sockets.recording)
        return party->connected = accept_who_lives(party);
    do
        if (!await_event(party, RDMA_CM_EVENT_CONNECT_REQUEST))
            return false;
    while (!party->id && tries++ < 4);
    make_cm_qp(party);
    if (rdma_accept(party->id, &param))
        return false;
    return party->connected = await_event(party, RDMA_CM_EVENT_ESTABLISHED);
}

static bool try_to_connect(struct party *party)
{
    struct sockaddr_in in = address();
    struct rdma_conn_param param = cm_param(party);
    const int patience_ms = party->sockets.recording ? 60000 : 2000;

    MUST(!rdma_create_id(party->channel, &party->id, NULL, RDMA_PS_TCP), "rdma_create_id: %s",
         strerror(errno));
    be_patient(party);
    MUST(!rdma_resolve_addr(party->id, NULL, (struct sockaddr *)&in, patience_ms), "rdma_resolve_addr: %s",
         strerror(errno));
    if (!await_event(party, RDMA_CM_EVENT_ADDR_RESOLVED))
        return false;
    MUST(!rdma_resolve_route(party->id, patience_ms), "rdma_resolve_route: %s", strerror(errno));
    if (!await_event(party, RDMA_CM_EVENT_ROUTE_RESOLVED))
        return false;
    make_cm_qp(party);
    if (rdma_connect(party->id, &param))
        return false;
    return await_event(party, RDMA_CM_EVENT_ESTABLISHED);
}

/* While one of both is stepped, requests are given up and made again. */
static bool cm_active(struct party *party)
{
    struct message message;

    if (!hear(party, &message, true))
        return false;
    party->channel = rdma_create_event_channel();
    MUST(party->channel, "rdma_create_event_channel: %s", strerror(errno));
    while (!(party->connected = try_to_connect(party)) && party->sockets.recording && !party->other_ended)
        drop(party, party->id);
    return party->connected;
}

bool connect_by_cm(struct party *party, bool passive)
{
    if (!(passive ? cm_passive(party) : cm_active(party)))
        return false;
    tell(party, WORD_CARD);
    if (!hear(party, &party->theirs, true) || party->theirs.word != WORD_CARD)
        return false;
    return true;
}
