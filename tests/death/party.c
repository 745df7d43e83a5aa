/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A party waits for nothing but what must come: completions, events, and words of the other party or its end. */
#include "death.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    SLOT = 65536,
    SLOTS = 32,
    SOURCE = 0,
    RECEIVES = 4 * SLOT,
    TARGET = RECEIVES + SLOTS * SLOT, /* of WRITEs, READs and atomics of the other party */
    SCRATCH = TARGET + 8 * SLOT,
    SIZE = SCRATCH + 8 * SLOT,
    PORT = 7471,
    ROUNDS = 12,
    PEER_SENDS = SLOTS / 2,
};

enum word { WORD_CARD, WORD_READY, WORD_BYE };

struct message {
    enum word word;
    uint32_t qpn, rkey;
    uint64_t address;
    union ibv_gid gid;
};

struct party {
    enum role role;
    struct party_sockets sockets;
    struct verdict verdict;
    int other; /* who plays with us now */
    bool other_ended, other_left, lying, patient;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    char *memory;
    struct message theirs;
    unsigned posted, completed, failed; /* send requests */
    unsigned received, sent;
    bool connected;
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id, *listener;
};

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
__attribute__((format(printf, 2, 3))) _Noreturn static void wrong(struct party *party, const char *format,
                                                                  ...)
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

#define MUST(condition, ...)                                                                                 \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            wrong(party, __VA_ARGS__);                                                                       \
    } while (0)

/* --- words ---------------------------------------------------------------------------------------------- */

static void tell(struct party *party, enum word word)
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
static bool hear(struct party *party, struct message *ret_message, bool wait)
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

static bool other_is_there(struct party *party)
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

/* --- objects -------------------------------------------------------------------------------------------- */

static void open_device(struct party *party)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    MUST(list && list[0], "no device: %s", strerror(errno));
    party->context = ibv_open_device(list[0]);
    MUST(party->context, "ibv_open_device: %s", strerror(errno));
    ibv_free_device_list(list);
}

static void make_objects(struct party *party)
{
    party->pd = ibv_alloc_pd(party->context);
    MUST(party->pd, "ibv_alloc_pd: %s", strerror(errno));
    party->memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(party->memory != MAP_FAILED, "mmap: %s", strerror(errno));
    for (unsigned i = 0; i < 4; i++)
        memset(party->memory + SOURCE + i * SLOT, (int)(0x60 + i), SLOT);
    party->mr = ibv_reg_mr(party->pd, party->memory, SIZE,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                               IBV_ACCESS_REMOTE_ATOMIC);
    MUST(party->mr, "ibv_reg_mr: %s", strerror(errno));
    party->cq = ibv_create_cq(party->context, 256, NULL, NULL, 0);
    MUST(party->cq, "ibv_create_cq: %s", strerror(errno));
}

static struct ibv_qp_init_attr qp_attr(struct party *party)
{
    return (struct ibv_qp_init_attr){
        .send_cq = party->cq,
        .recv_cq = party->cq,
        .cap = {.max_send_wr = 64, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
}

static void post_receive(struct party *party, unsigned slot)
{
    struct ibv_sge sge = {(uintptr_t)party->memory + RECEIVES + slot * SLOT, SLOT, party->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1000 + slot, .sg_list = &sge, .num_sge = 1}, *bad;

    MUST(!ibv_post_recv(party->qp, &wr, &bad), "ibv_post_recv: %s", strerror(errno));
}

static void make_qp(struct party *party)
{
    struct ibv_qp_init_attr init = qp_attr(party);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_ATOMIC};

    party->qp = ibv_create_qp(party->pd, &init);
    MUST(party->qp, "ibv_create_qp: %s", strerror(errno));
    MUST(!ibv_modify_qp(party->qp, &attr,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
         "INIT");
    for (unsigned i = 0; i < SLOTS; i++)
        post_receive(party, i);
}

/* False: the other party has ended. */
static bool connect_qp(struct party *party)
{
    const char *const path = getenv("SOFTHCA_PATH");
    const bool over_network =
        path && !strcmp(path, "wire"); /* where a victim that is stepped seems dead before */
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = IBV_MTU_1024,
                               .max_dest_rd_atomic = 4,
                               .min_rnr_timer = 1,
                               .ah_attr = {.is_global = 1, .port_num = 1, .grh.hop_limit = 64}};

    tell(party, WORD_CARD);
    if (!hear(party, &party->theirs, true))
        return false;
    attr.dest_qp_num = party->theirs.qpn;
    attr.ah_attr.grh.dgid = party->theirs.gid;
    MUST(!ibv_modify_qp(party->qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "RTR: %s", strerror(errno));
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = party->patient ? 18
                                           : over_network ? 13
                                                          : 10, /* s, 34 ms, 4 ms */
                                .retry_cnt = over_network ? 5 : 2,
                                .rnr_retry = 7,
                                .max_rd_atomic = 4};
    MUST(!ibv_modify_qp(party->qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC),
         "RTS: %s", strerror(errno));
    party->connected = true;
    return true;
}

static void close_objects(struct party *party)
{
    if (party->id) {
        if (party->id->qp)
            rdma_destroy_qp(party->id);
        party->qp = NULL;
        MUST(!rdma_destroy_id(party->id), "rdma_destroy_id: %s", strerror(errno));
    }
    if (party->listener)
        MUST(!rdma_destroy_id(party->listener), "rdma_destroy_id: %s", strerror(errno));
    if (party->qp)
        MUST(!ibv_destroy_qp(party->qp), "ibv_destroy_qp");
    if (party->cq)
        MUST(!ibv_destroy_cq(party->cq), "ibv_destroy_cq");
    if (party->mr)
        MUST(!ibv_dereg_mr(party->mr), "ibv_dereg_mr");
    if (party->pd)
        MUST(!ibv_dealloc_pd(party->pd), "ibv_dealloc_pd");
    if (party->channel)
        rdma_destroy_event_channel(party->channel);
    else if (party->context)
        MUST(!ibv_close_device(party->context), "ibv_close_device");
    if (party->memory)
        munmap(party->memory, SIZE);
    party->id = party->listener = NULL;
    party->channel = NULL;
    party->qp = NULL;
    party->cq = NULL;
    party->mr = NULL;
    party->pd = NULL;
    party->context = NULL;
    party->memory = NULL;
    party->connected = false;
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
    if (!party->connected || party->patient)
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

/* --- rdma_cm -------------------------------------------------------------------------------------------- */

static struct sockaddr_in address(void)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(PORT)};

    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return in;
}

/* The next event, or NULL when the other party ends before. */
static struct rdma_cm_event *next_event(struct party *party, bool whatever)
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
    make_objects(party);
    init = qp_attr(party);
    MUST(!rdma_create_qp(party->id, party->pd, &init), "rdma_create_qp: %s", strerror(errno));
    party->qp = party->id->qp;
    for (unsigned i = 0; i < SLOTS; i++)
        post_receive(party, i);
}

static struct rdma_conn_param cm_param(void)
{
    return (struct rdma_conn_param){
        .responder_resources = 4, .initiator_depth = 4, .retry_count = 3, .rnr_retry_count = 7};
}

static bool cm_passive(struct party *party)
{
    struct sockaddr_in in = address();
    struct rdma_conn_param param = cm_param();
    int tries = 0;

    party->channel = rdma_create_event_channel();
    MUST(party->channel, "rdma_create_event_channel: %s", strerror(errno));
    MUST(!rdma_create_id(party->channel, &party->listener, NULL, RDMA_PS_TCP), "rdma_create_id: %s",
         strerror(errno));
    MUST(!rdma_bind_addr(party->listener, (struct sockaddr *)&in), "rdma_bind_addr: %s", strerror(errno));
    MUST(!rdma_listen(party->listener, 4), "rdma_listen: %s", strerror(errno));
    tell(party, WORD_READY);
    do
        if (!await_event(party, RDMA_CM_EVENT_CONNECT_REQUEST))
            return false;
    while (!party->id && tries++ < 4);
    make_cm_qp(party);
    if (rdma_accept(party->id, &param))
        return false;
    return party->connected = await_event(party, RDMA_CM_EVENT_ESTABLISHED);
}

static bool cm_active(struct party *party)
{
    struct sockaddr_in in = address();
    struct rdma_conn_param param = cm_param();
    struct message message;

    if (!hear(party, &message, true))
        return false;
    party->channel = rdma_create_event_channel();
    MUST(party->channel, "rdma_create_event_channel: %s", strerror(errno));
    MUST(!rdma_create_id(party->channel, &party->id, NULL, RDMA_PS_TCP), "rdma_create_id: %s",
         strerror(errno));
    MUST(!rdma_resolve_addr(party->id, NULL, (struct sockaddr *)&in, 2000), "rdma_resolve_addr: %s",
         strerror(errno));
    if (!await_event(party, RDMA_CM_EVENT_ADDR_RESOLVED))
        return false;
    MUST(!rdma_resolve_route(party->id, 2000), "rdma_resolve_route: %s", strerror(errno));
    if (!await_event(party, RDMA_CM_EVENT_ROUTE_RESOLVED))
        return false;
    make_cm_qp(party);
    if (rdma_connect(party->id, &param))
        return false;
    return party->connected = await_event(party, RDMA_CM_EVENT_ESTABLISHED);
}

static bool connect_by_cm(struct party *party, bool passive)
{
    if (!(passive ? cm_passive(party) : cm_active(party)))
        return false;
    tell(party, WORD_CARD);
    if (!hear(party, &party->theirs, true) || party->theirs.word != WORD_CARD)
        return false;
    return true;
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
    struct message message;

    if (marks && (scenario == SCENARIO_SETUP || is_cm(scenario)))
        party_mark();
    if (begin(party, scenario)) {
        play_script(party, 1);
        if (marks && scenario == SCENARIO_TRANSFER)
            party_mark();
        if (scenario == SCENARIO_TRANSFER)
            play_script(party, ROUNDS);
        else if (scenario == SCENARIO_TEARDOWN)
            play_script(party, 6);
        if (marks && scenario == SCENARIO_TRANSFER)
            party_mark();
        tell(party, WORD_BYE);
        while (hear(party, &message, true) && message.word != WORD_BYE)
            ;
        MUST(marks || !party->failed, "a request of the heir failed");
    } else {
        MUST(marks, "the heir is not connected");
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

/* How much of the process's is left. */
static void count(struct party *party, int *ret_fds, int *ret_maps)
{
    DIR *const dir = opendir("/proc/self/fd");
    FILE *const maps = fopen("/proc/self/maps", "re");
    char line[4400];

    *ret_fds = *ret_maps = 0;
    MUST(dir && maps, "/proc/self");
    while (readdir(dir))
        ++*ret_fds;
    while (fgets(line, sizeof(line), maps))
        *ret_maps += strstr(line, "memfd:") != NULL;
    closedir(dir);
    fclose(maps);
}

/* Tells whoever reads a failed test which descriptors are left; of a socket its name, and who is at its other end. */
static void list_descriptors(void)
{
    DIR *const dir = opendir("/proc/self/fd");

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        const int fd = atoi(entry->d_name);
        struct sockaddr_un name = {0};
        struct ucred owner = {0};
        socklen_t name_length = sizeof(name), owner_length = sizeof(owner);
        char link[300], target[200];
        ssize_t length;
        char byte;

        snprintf(link, sizeof(link), "/proc/self/fd/%s", entry->d_name);
        length = readlink(link, target, sizeof(target));
        if (length < 0)
            continue;
        fprintf(stderr, "# descriptor %d: %.*s", fd, (int)length, target);
        if (!getsockname(fd, (struct sockaddr *)&name, &name_length) && name.sun_family == AF_UNIX) {
            getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &owner_length);
            fprintf(stderr, " '%.*s' of process %d, peer %d%s", (int)(name_length - sizeof(sa_family_t)),
                    name.sun_path[0] ? name.sun_path : name.sun_path + 1, getpid(), owner.pid,
                    recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0 ? ", which has closed it" : "");
        }
        fprintf(stderr, "\n");
    }
    if (dir)
        closedir(dir);
}

/* Links go down in the background: until no more is left than in a trial without a death. */
static void count_rest(struct party *party, int *ret_fds, int *ret_maps, int fds_most, int maps_most)
{
    for (unsigned i = 0; i < 5000; i++) {
        count(party, ret_fds, ret_maps);
        if (!fds_most || (*ret_fds <= fds_most && *ret_maps <= maps_most))
            return;
        poll(NULL, 0, 2);
    }
    list_descriptors();
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
