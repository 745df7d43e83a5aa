/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A party waits for nothing but what must come: completions, events, and words of the other party or its end. */
#include "party.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void party_mark(void)
{
#if defined(__x86_64__)
    __asm__ volatile("int3");
#endif
}

static void say(const struct party *party)
{
    if (party->role == PEER &&
        send(party->sockets.verdict, &party->verdict, sizeof(party->verdict), MSG_NOSIGNAL) < 0)
        _exit(3);
}

/* What must not be. The peer tells it, the others end with it. */
__attribute__((format(printf, 2, 3))) _Noreturn void wrong(struct party *party, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(party->verdict.text, sizeof(party->verdict.text), format, args);
    va_end(args);
    party->verdict.good = false;
    say(party);
    if (party->role != PEER)
        fprintf(stderr, "# %s: %s\n", party->role == VICTIM ? "victim" : "heir", party->verdict.text);
    _exit(2);
}

/* --- words ---------------------------------------------------------------------------------------------- */

void tell(struct party *party, enum word word)
{
    struct message message = {.word = word};

    if (word == WORD_CARD) {
        MUST(!ibv_query_gid(party->context, 1, 0, &message.gid), "ibv_query_gid: %s", strerror(errno));
        message.qpn = party->qp->qp_num;
        message.rkey = party->mr->rkey;
        message.address = (uintptr_t)party->memory + TARGET;
    }
    send(party->other, &message, sizeof(message), MSG_NOSIGNAL); /* an end is noticed by who listens */
}

/* False: there is none, or the other party is at its end. */
bool hear(struct party *party, struct message *ret_message, bool wait)
{
    ssize_t got;

    if (party->other_ended)
        return false;
    do
        got = recv(party->other, ret_message, sizeof(*ret_message), wait ? 0 : MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got == (ssize_t)sizeof(*ret_message))
        return true;
    if (got >= 0 || errno != EAGAIN)
        party->other_ended = true;
    return false;
}

bool other_is_there(struct party *party)
{
    struct message message;
    ssize_t got;

    if (party->other_ended)
        return false;
    /* A card stays for who waits for it. */
    got = recv(party->other, &message, sizeof(message), MSG_PEEK | MSG_DONTWAIT);
    if (got == (ssize_t)sizeof(message) ? message.word == WORD_BYE
                                        : got >= 0 || (errno != EAGAIN && errno != EINTR))
        if (hear(party, &message, false))
            party->other_left = true;
    return !party->other_ended;
}

/* --- work ----------------------------------------------------------------------------------------------- */

static const uint32_t lengths[] = {8, 64, 3000, 16384, SLOT};
#define LENGTHS (sizeof(lengths) / sizeof(lengths[0]))

/* All of one kind are alike, so that what arrives can be judged: SENDs consist of one byte value. */
static void post(struct party *party, enum ibv_wr_opcode opcode, uint32_t length)
{
    const bool send = opcode == IBV_WR_SEND;
    struct ibv_sge sge = {(uintptr_t)party->memory +
                              (send ? SOURCE + party->posted % 4 * SLOT : SCRATCH + party->posted % 8 * SLOT),
                          length, party->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = party->posted, .sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;

    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = party->theirs.address;
        wr.wr.atomic.rkey = party->theirs.rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = party->theirs.address + party->posted % 7 * SLOT;
        wr.wr.rdma.rkey = party->theirs.rkey;
    }
    MUST(!ibv_post_send(party->qp, &wr, &bad), "ibv_post_send: %s", strerror(errno));
    party->posted++;
}

static void take(struct party *party)
{
    struct ibv_wc wc[8];
    const int n = ibv_poll_cq(party->cq, 8, wc);

    MUST(n >= 0, "ibv_poll_cq");
    for (int i = 0; i < n; i++) {
        const bool good = wc[i].status == IBV_WC_SUCCESS;

        MUST(good || wc[i].status == IBV_WC_RETRY_EXC_ERR || wc[i].status == IBV_WC_WR_FLUSH_ERR,
             "status %s of request %u", ibv_wc_status_str(wc[i].status), (unsigned)wc[i].wr_id);
        if (wc[i].wr_id < 1000) {
            MUST(wc[i].wr_id == party->completed % 1000, "completion of request %u, not %u",
                 (unsigned)wc[i].wr_id, party->completed);
            MUST(!good || !party->failed, "success behind a failure");
            party->completed++;
            party->failed += !good;
        } else if (good) {
            const unsigned slot = (unsigned)wc[i].wr_id - 1000;
            const char *const at = party->memory + RECEIVES + slot * SLOT;

            party->received++;
            for (uint32_t k = 1; k < wc[i].byte_len; k++)
                MUST(at[k] == at[0] && (at[0] & ~3) == 0x60, "byte %u of a message is %02x behind %02x", k,
                     at[k] & 0xff, at[0] & 0xff);
            post_receive(party, slot);
        }
    }
    if (!n)
        sched_yield();
}

static void finish_posted(struct party *party)
{
    while (party->completed < party->posted)
        take(party);
}

/* Each request by itself, so that the points are the same in each run. */
static void play_script(struct party *party, unsigned rounds)
{
    for (unsigned round = 0; round < rounds && !party->failed; round++) {
        const uint32_t length = lengths[round % LENGTHS];

        for (unsigned kind = 0; kind < 4 && !party->failed; kind++) {
            if (kind == 3)
                post(party, IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
            else
                post(party,
                     (const enum ibv_wr_opcode[]){IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}[kind],
                     length);
            finish_posted(party);
        }
    }
}

/* One after another, until the peer's memory is mapped and for a while longer: then these are plain requests. */
static void play_small(struct party *party)
{
    static const enum ibv_wr_opcode kinds[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                               IBV_WR_ATOMIC_FETCH_AND_ADD};

    for (unsigned round = 0; round < SMALL_ROUNDS && !party->failed; round++) {
        for (unsigned kind = 0; kind < 3 && !party->failed; kind++) {
            post(party, kinds[kind], 8);
            finish_posted(party);
        }
    }
}

/* The peer's part: all kinds and sizes at once, until the other party leaves or ends. */
static void play_along(struct party *party)
{
    while (other_is_there(party) && !party->other_left && !party->failed) {
        if (party->posted - party->completed < 4 && party->posted < 900) {
            const uint32_t length = lengths[party->posted % LENGTHS];

            switch (party->posted % 4) {
            case 0:
                post(party, IBV_WR_RDMA_WRITE, length);
                break;
            case 1:
                post(party, IBV_WR_RDMA_READ, length);
                break;
            case 2:
                post(party, IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
                break;
            default:
                if (party->sent++ < PEER_SENDS)
                    post(party, IBV_WR_SEND, length);
                else
                    post(party, IBV_WR_RDMA_WRITE, length);
            }
        }
        take(party);
    }
}

/* What a dead NIC gives: once and for all an error, and the rest flushed. */
static void judge_end(struct party *party)
{
    if (!party->connected || party->patient || party->sockets.recording)
        return;
    party->verdict.connected = true;
    if (party->lying) { /* Stopped for longer than a timeout counts; a reliable link has no timer. */
        for (unsigned i = 0; i < 500 && party->completed < party->posted; i++) {
            take(party);
            poll(NULL, 0, 1);
        }
        return;
    }
    finish_posted(party);
    post(party, IBV_WR_RDMA_WRITE, 64);
    post(party, IBV_WR_SEND, 64);
    finish_posted(party);
    MUST(party->failed >= 2, "a request to a dead peer succeeded");
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    MUST(!ibv_query_qp(party->qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR,
         "the QP is not in ERR");
}

/* --- parts ---------------------------------------------------------------------------------------------- */

static bool is_cm(enum scenario scenario)
{
    return scenario == SCENARIO_LISTEN || scenario == SCENARIO_CONNECT;
}

static bool begin(struct party *party, enum scenario scenario)
{
    if (is_cm(scenario))
        return connect_by_cm(party, (scenario == SCENARIO_LISTEN) == (party->role != PEER));
    open_device(party);
    make_objects(party);
    make_qp(party);
    return connect_qp(party);
}

/* The one who is looked at; the heir plays the same. */
static void play_looked_at(struct party *party, enum scenario scenario)
{
    const bool marks = party->role == VICTIM;
    const bool may_fail = marks && !party->sockets.recording; /* what is not done is not found */
    struct message message;

    if (marks && (scenario == SCENARIO_SETUP || is_cm(scenario)))
        party_mark();
    if (begin(party, scenario)) {
        play_script(party, 1);
        if (marks && scenario == SCENARIO_TRANSFER)
            party_mark();
        if (scenario == SCENARIO_TRANSFER) {
            play_script(party, ROUNDS);
            play_small(party);
        } else if (scenario == SCENARIO_TEARDOWN) {
            play_script(party, 6);
        }
        if (marks && scenario == SCENARIO_TRANSFER)
            party_mark();
        tell(party, WORD_BYE);
        while (hear(party, &message, true) && message.word != WORD_BYE)
            ;
        MUST(may_fail || !party->failed, "a request failed");
    } else {
        MUST(may_fail, "it is not connected: %s", party->unconnected);
    }
    if (marks && scenario == SCENARIO_TEARDOWN)
        party_mark();
    if (party->connected && is_cm(scenario)) {
        (void)rdma_disconnect(party->id);
        close_objects(party);
    } else {
        close_objects(party);
    }
}

static void play_peer(struct party *party, enum scenario scenario, int other)
{
    party->other = other;
    party->other_ended = party->other_left = false;
    party->posted = party->completed = party->failed = party->received = party->sent = 0;
    if (begin(party, scenario)) {
        play_along(party);
        if (party->other_left) {
            /* A victim that is whole gets its answer, and ends by itself or at its point. */
            struct message message;

            finish_posted(party);
            tell(party, WORD_BYE);
            while (hear(party, &message, true))
                ;
        }
        judge_end(party);
    } else {
        MUST(!party->patient && !party->sockets.recording, "no connection: %s", party->unconnected);
    }
    if (is_cm(scenario) && party->connected && !party->lying && !party->patient) {
        struct rdma_cm_event *event = NULL;
        enum rdma_cm_event_type type;

        (void)rdma_disconnect(party->id);
        event = next_event(party, true);
        type = event->event;
        MUST(!rdma_ack_cm_event(event), "rdma_ack_cm_event");
        MUST(type == RDMA_CM_EVENT_DISCONNECTED, "event %s instead of DISCONNECTED", rdma_event_str(type));
    }
    close_objects(party);
}

_Noreturn void party_play(enum scenario scenario, enum role role, const struct party_sockets *sockets,
                          bool lying)
{
    struct party *const party = calloc(1, sizeof(*party));

    if (!party)
        _exit(4);
    party->role = role;
    party->sockets = *sockets;
    party->other = sockets->other;
    party->lying = lying && role == PEER;
    party->verdict.good = true;
    party->patient = role == HEIR;
    if (role != PEER) {
        play_looked_at(party, scenario);
        exit(0);
    }
    play_peer(party, scenario, sockets->other);
    close(sockets->other);
    count_rest(party, &party->verdict.fds, &party->verdict.maps, lying ? 0 : sockets->most.fds,
               sockets->most.maps);
    say(party);
    party->lying = false;
    party->patient = true;
    play_peer(party, scenario, sockets->heir);
    close(sockets->heir);
    count_rest(party, &party->verdict.fds_end, &party->verdict.maps_end, sockets->most.fds_end,
               sockets->most.maps_end);
    say(party);
    exit(0);
}
