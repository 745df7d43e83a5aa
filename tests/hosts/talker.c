/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One of many processes that talk to each other by RC and check that every message comes once, whole and in
 * order. tests/hosts/kills.py starts and kills them, and tells each by lines on standard input what to do:
 *
 *   rtr PEER CONNECTION GID QPN   ready to receive from that peer, whatever was before; "ready PEER
 * CONNECTION" rts PEER                      talk to it until told otherwise report "report
 * PEER:CONNECTION:MESSAGES ..." received stop                          send no more; "stopped" when nothing
 * is on its way any more quit
 *
 * It says "card GID QPN..." first, "lost PEER CONNECTION STATUS" when a connection ends with an error. It
 * sleeps when there is nothing to do. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PEERS_MAX = 64, RECVS = 2, SLOT = 8192, LINE = 256, BATCH = 16 };

struct message {
    uint32_t from, to, connection, number;
};

struct peer {
    struct ibv_qp *qp;
    uint32_t connection, sent, received;
    bool talks, on_its_way;
};

static struct {
    unsigned int index, count;
    struct ibv_context *context;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    union ibv_gid gid;
    uint8_t *memory; /* RECVS + 1 slots per peer */
    struct peer peers[PEERS_MAX];
    bool stops, told;
} me;

static _Noreturn void fail(const char *what)
{
    printf("wrong %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static uint8_t *slot_of(unsigned int peer, unsigned int slot)
{
    return me.memory + ((size_t)peer * (RECVS + 1) + slot) * SLOT;
}

/* --- messages --------------------------------------------------------------------------------------- */

static size_t length_of(const struct message *message)
{
    uint32_t mixed = (message->from * 31 + message->to) * 31 + message->number * 2654435761u;

    return sizeof(*message) + (mixed >> 8) % (SLOT - sizeof(*message));
}

static uint8_t byte_of(const struct message *message, size_t at)
{
    return (uint8_t)(at * 7 + message->number * 13 + message->from + message->to * 3);
}

static uint64_t id_of(unsigned int peer, unsigned int slot)
{
    return (uint64_t)me.peers[peer].connection << 32 | peer << 8 | slot;
}

static void post_recv(unsigned int peer, unsigned int slot)
{
    struct ibv_sge sge = {.addr = (uintptr_t)slot_of(peer, slot), .length = SLOT, .lkey = me.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id_of(peer, slot), .sg_list = &sge, .num_sge = 1}, *bad;

    if (ibv_post_recv(me.peers[peer].qp, &wr, &bad))
        fail("ibv_post_recv");
}

static void send_next(unsigned int number)
{
    struct peer *peer = &me.peers[number];
    const struct message message = {me.index, number, peer->connection, peer->sent};
    uint8_t *to = slot_of(number, RECVS);
    struct ibv_sge sge = {
        .addr = (uintptr_t)to, .length = (uint32_t)length_of(&message), .lkey = me.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id_of(number, RECVS),
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;

    if (!peer->talks || peer->on_its_way || me.stops)
        return;
    memcpy(to, &message, sizeof(message));
    for (size_t i = sizeof(message); i < sge.length; i++)
        to[i] = byte_of(&message, i);
    if (ibv_post_send(peer->qp, &wr, &bad))
        fail("ibv_post_send");
    peer->on_its_way = true;
    peer->sent++;
}

static void check(unsigned int number, const uint8_t *bytes, size_t length)
{
    struct peer *peer = &me.peers[number];
    const struct message expected = {number, me.index, peer->connection, peer->received};

    if (length != length_of(&expected) || memcmp(bytes, &expected, sizeof(expected)))
        fail("message");
    for (size_t i = sizeof(expected); i < length; i++)
        if (bytes[i] != byte_of(&expected, i))
            fail("byte");
    peer->received++;
}

static void complete(const struct ibv_wc *wc)
{
    unsigned int number = wc->wr_id >> 8 & 0xff, slot = wc->wr_id & 0xff;
    struct peer *peer = &me.peers[number];

    if (wc->wr_id >> 32 != peer->connection)
        return; /* of before */
    if (wc->status != IBV_WC_SUCCESS) {
        if (wc->status != IBV_WC_WR_FLUSH_ERR)
            printf("lost %u %u %s\n", number, peer->connection, ibv_wc_status_str(wc->status));
        peer->talks = peer->on_its_way = false;
        return;
    }
    if (slot == RECVS) {
        peer->on_its_way = false;
        send_next(number);
    } else {
        check(number, slot_of(number, slot), wc->byte_len);
        post_recv(number, slot);
    }
}

static void take_completions(void)
{
    struct ibv_wc wc[BATCH];
    int count;

    while ((count = ibv_poll_cq(me.cq, BATCH, wc)) > 0)
        for (int i = 0; i < count; i++)
            complete(&wc[i]);
    if (count < 0)
        fail("ibv_poll_cq");
}

/* --- connections -------------------------------------------------------------------------------------- */

static void to_rtr(unsigned int number, uint32_t connection, const union ibv_gid *gid, uint32_t qpn)
{
    struct peer *peer = &me.peers[number];
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

    if (ibv_modify_qp(peer->qp, &attr, IBV_QP_STATE))
        fail("RESET");
    take_completions();
    *peer = (struct peer){.qp = peer->qp, .connection = connection};
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1};
    if (ibv_modify_qp(peer->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        fail("INIT");
    for (unsigned int slot = 0; slot < RECVS; slot++)
        post_recv(number, slot);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = qpn,
        .rq_psn = connection * 7919 & 0xffffff,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 64}},
    };
    if (ibv_modify_qp(peer->qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        fail("RTR");
    printf("ready %u %u\n", number, connection);
}

static void to_rts(unsigned int number)
{
    struct peer *peer = &me.peers[number];
    /* A second and seven retries: where 64 processes share two processors, one may have to wait. */
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
                               .sq_psn = peer->connection * 7919 & 0xffffff,
                               .timeout = 18,
                               .retry_cnt = 7,
                               .rnr_retry = 7};

    if (ibv_modify_qp(peer->qp, &attr,
                      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_MAX_QP_RD_ATOMIC))
        fail("RTS");
    peer->talks = true;
    send_next(number);
}

/* The first device that is not the loopback interface's. */
static void open_device(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    if (!list || !list[0])
        fail("no device");
    me.context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    if (!me.context || ibv_query_gid(me.context, 1, 0, &me.gid))
        fail("device");
}

static void say_gid(void)
{
    for (unsigned int i = 0; i < sizeof(me.gid.raw); i++)
        printf("%02x", me.gid.raw[i]);
}

static void open_all(void)
{
    size_t size = (size_t)me.count * (RECVS + 1) * SLOT;

    open_device();
    me.pd = ibv_alloc_pd(me.context);
    me.channel = ibv_create_comp_channel(me.context);
    me.cq =
        me.channel ? ibv_create_cq(me.context, (int)me.count * (RECVS + 1) * 2, NULL, me.channel, 0) : NULL;
    me.memory = calloc(1, size);
    me.mr = me.pd && me.memory ? ibv_reg_mr(me.pd, me.memory, size, IBV_ACCESS_LOCAL_WRITE) : NULL;
    if (!me.cq || !me.mr || ibv_req_notify_cq(me.cq, 0))
        fail("objects");
    printf("card ");
    say_gid();
    for (unsigned int i = 0; i < me.count; i++) {
        struct ibv_qp_init_attr init = {
            .send_cq = me.cq,
            .recv_cq = me.cq,
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = 2, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1}};

        me.peers[i].qp = ibv_create_qp(me.pd, &init);
        if (!me.peers[i].qp)
            fail("ibv_create_qp");
        printf(" %u", me.peers[i].qp->qp_num);
    }
    printf("\n");
}

/* --- orders --------------------------------------------------------------------------------------------- */

static void parse_gid(const char *text, union ibv_gid *ret_gid)
{
    for (unsigned int i = 0; i < sizeof(ret_gid->raw); i++) {
        unsigned int byte;

        if (sscanf(text + 2 * i, "%2x", &byte) != 1)
            fail("GID");
        ret_gid->raw[i] = (uint8_t)byte;
    }
}

static void obey(const char *line)
{
    unsigned int number, connection, qpn;
    union ibv_gid gid;
    char text[LINE];

    if (sscanf(line, "rtr %u %u %255s %u", &number, &connection, text, &qpn) == 4 && number < me.count) {
        parse_gid(text, &gid);
        to_rtr(number, connection, &gid, qpn);
    } else if (sscanf(line, "rts %u", &number) == 1 && number < me.count) {
        to_rts(number);
    } else if (!strcmp(line, "report")) {
        printf("report");
        for (unsigned int i = 0; i < me.count; i++)
            printf(" %u:%u:%u", i, me.peers[i].connection, me.peers[i].received);
        printf("\n");
    } else if (!strcmp(line, "stop")) {
        me.stops = true;
    } else if (!strcmp(line, "quit")) {
        exit(0);
    } else {
        fail("order");
    }
}

static void read_orders(void)
{
    static char buffer[16 * LINE];
    static size_t filled;
    ssize_t got = read(STDIN_FILENO, buffer + filled, sizeof(buffer) - 1 - filled);
    char *line = buffer, *end;

    if (got <= 0)
        exit(0); /* whoever started us is gone */
    filled += (size_t)got;
    buffer[filled] = '\0';
    for (; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        obey(line);
    }
    filled = (size_t)(buffer + filled - line);
    memmove(buffer, line, filled);
}

static void say_when_stopped(void)
{
    if (!me.stops || me.told)
        return;
    for (unsigned int i = 0; i < me.count; i++)
        if (me.peers[i].on_its_way)
            return;
    me.told = true;
    printf("stopped\n");
}

static void take_event(void)
{
    struct ibv_cq *cq;
    void *context;

    if (ibv_get_cq_event(me.channel, &cq, &context))
        fail("ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
    if (ibv_req_notify_cq(cq, 0))
        fail("ibv_req_notify_cq");
}

int main(int argc, char **argv)
{
    struct pollfd watched[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.events = POLLIN}};

    if (argc != 3) {
        fprintf(stderr, "usage: %s OWN-NUMBER PEERS\n", argv[0]);
        return 2;
    }
    me.index = (unsigned int)atoi(argv[1]);
    me.count = (unsigned int)atoi(argv[2]);
    if (me.count > PEERS_MAX)
        return 2;
    open_all();
    watched[1].fd = me.channel->fd;
    for (;;) {
        take_completions();
        say_when_stopped();
        fflush(stdout);
        if (poll(watched, 2, -1) < 0 && errno != EINTR)
            fail("poll");
        if (watched[1].revents)
            take_event();
        if (watched[0].revents)
            read_orders();
    }
}
