/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages per second of N threads to M processes, each thread with a QP of its own to each, and what that
 * costs a target which computes instead of polling. perftest has one thread and one peer. */
#include "common.h"
#include "endpoint.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_THREADS = 64, MAX_PEERS = 256, POLL_BATCH = 32, STEP = 4096 };

enum target { TARGET_POLL, TARGET_SLEEP, TARGET_COMPUTE };

static const char *const target_names[] = {"poll", "sleep", "compute"};

static struct {
    enum ibv_wr_opcode opcode;
    const char *op;
    const char *device;
    int gid_index;
    uint32_t size;
    int threads;
    int peers;
    enum target target;
    double seconds;
    uint32_t window; /* WRs in flight per QP */
    uint32_t batch;  /* WRs per post, the last of them signaled */
    bool extended;   /* posted by ibv_wr_*(), not by ibv_post_send() */
    int cpu[2];
} opt = {.opcode = IBV_WR_SEND,
         .op = "send",
         .size = 8,
         .threads = 1,
         .peers = 1,
         .seconds = 1,
         .window = 128,
         .batch = 16,
         .cpu = {-1, -1}};

struct lane {
    struct ibv_qp *qp;
    struct ibv_qp_ex *ex; /* the same, if opt.extended */
    struct contact far;
    uint32_t flying;
};

struct sender {
    pthread_t thread;
    struct endpoint *ep;
    struct ibv_cq *cq;
    struct lane *lanes; /* one per peer */
    _Alignas(128) _Atomic uint64_t done;
};

static _Atomic bool stop;

/* ---- the far side
 * ---------------------------------------------------------------------------------------------- */

static void post_receives(const struct endpoint *ep, struct ibv_qp *qp, uint32_t count)
{
    struct ibv_sge sge = {.addr = (uintptr_t)ep->buffer, .length = opt.size, .lkey = ep->mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1, .wr_id = (uintptr_t)qp}, *bad;

    while (count--)
        if ((errno = ibv_post_recv(qp, &wr, &bad)))
            give_up("ibv_post_recv");
}

/* Takes receives and posts them again; the number taken. */
static int drain(const struct endpoint *ep, struct ibv_cq *cq)
{
    struct ibv_wc wc[POLL_BATCH];
    int n = ibv_poll_cq(cq, POLL_BATCH, wc);

    if (n < 0)
        give_up("ibv_poll_cq");
    for (int i = 0; i < n; i++) {
        if (wc[i].status != IBV_WC_SUCCESS) {
            fprintf(stderr, "receive: %s\n", ibv_wc_status_str(wc[i].status));
            exit(1);
        }
        /* wr_id carries the QP: our own value, given back. */
        post_receives(ep, (struct ibv_qp *)(uintptr_t)wc[i].wr_id, 1);
    }
    return n;
}

static void sleep_until_told(const struct endpoint *ep, int fd, struct ibv_comp_channel *channel,
                             struct ibv_cq *cq)
{
    struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = channel->fd, .events = POLLIN}};
    struct ibv_cq *event_cq;
    void *context;

    for (;;) {
        if ((errno = ibv_req_notify_cq(cq, 0)))
            give_up("ibv_req_notify_cq");
        while (drain(ep, cq) > 0)
            ;
        if (poll(p, 2, -1) < 0)
            give_up("poll");
        if (p[0].revents)
            return;
        if (ibv_get_cq_event(channel, &event_cq, &context))
            give_up("ibv_get_cq_event");
        ibv_ack_cq_events(event_cq, 1);
    }
}

/* Arithmetic that stays in registers: what it loses, the traffic took. */
static double steps_per_second(int fd, double seconds)
{
    uint64_t began = now_ns(), until = began + (uint64_t)(seconds * 1e9), steps = 0, x = began | 1, t;

    do {
        for (int i = 0; i < STEP; i++)
            x = x * 6364136223846793005u + 1442695040888963407u;
        __asm__ volatile("" : : "r"(x));
        steps++;
        t = now_ns();
    } while (seconds > 0 ? t < until : !(steps % 16 == 0 && told(fd)));
    return (double)steps / ((double)(t - began) / 1e9);
}

static void be_target(int fd)
{
    struct ibv_comp_channel *channel = NULL;
    struct ibv_qp *qps[MAX_THREADS];
    struct endpoint ep;
    struct ibv_cq *cq;
    double kept = 1;
    char word;

    pin(opt.cpu[1]);
    endpoint_open(&ep, opt.device, opt.gid_index, opt.size);
    if (opt.target == TARGET_SLEEP && !(channel = ibv_create_comp_channel(ep.context)))
        give_up("ibv_create_comp_channel");
    cq = ibv_create_cq(ep.context, (int)(2 * opt.window) * opt.threads + 1, NULL, channel, 0);
    if (!cq)
        give_up("ibv_create_cq");
    for (int t = 0; t < opt.threads; t++) {
        struct contact near, far;

        qps[t] = endpoint_qp(&ep, cq, cq, (struct qp_shape){.send_wr = 1, .recv_wr = 2 * opt.window});
        near = endpoint_contact(&ep, qps[t]);
        tell(fd, &near, sizeof(near));
        hear(fd, &far, sizeof(far));
        if (opt.opcode == IBV_WR_SEND)
            post_receives(&ep, qps[t], 2 * opt.window);
        endpoint_connect(&ep, qps[t], &far);
    }
    if (opt.target == TARGET_COMPUTE)
        kept = steps_per_second(fd, 0.3);
    tell(fd, "r", 1);
    hear(fd, &word, 1);
    switch (opt.target) {
    case TARGET_POLL:
        for (uint32_t i = 1; i % 1024 || !told(fd); i++)
            drain(&ep, cq);
        break;
    case TARGET_SLEEP:
        sleep_until_told(&ep, fd, channel, cq);
        break;
    case TARGET_COMPUTE:
        kept = steps_per_second(fd, 0) / kept;
        break;
    }
    hear(fd, &word, 1);
    tell(fd, &kept, sizeof(kept));
    /* The initiator has drained its queues, so nothing is under way and the order of destruction is the
     * verbs' own. */
    for (int t = 0; t < opt.threads; t++)
        if ((errno = ibv_destroy_qp(qps[t])))
            give_up("ibv_destroy_qp");
    if ((errno = ibv_destroy_cq(cq)) || (channel && (errno = ibv_destroy_comp_channel(channel))))
        give_up("ibv_destroy_cq");
    endpoint_close(&ep);
    exit(0);
}

/* ---- the near side
 * --------------------------------------------------------------------------------------------- */

static void post_extended(const struct sender *s, const struct lane *lane, uint64_t index)
{
    struct ibv_qp_ex *ex = lane->ex;

    ibv_wr_start(ex);
    for (uint32_t i = 0; i < opt.batch; i++) {
        ex->wr_id = index;
        ex->wr_flags = i + 1 == opt.batch ? IBV_SEND_SIGNALED : 0;
        if (opt.opcode == IBV_WR_SEND)
            ibv_wr_send(ex);
        else if (opt.opcode == IBV_WR_RDMA_WRITE)
            ibv_wr_rdma_write(ex, lane->far.rkey, lane->far.address);
        else if (opt.opcode == IBV_WR_RDMA_READ)
            ibv_wr_rdma_read(ex, lane->far.rkey, lane->far.address);
        else
            ibv_wr_atomic_fetch_add(ex, lane->far.rkey, lane->far.address, 1);
        ibv_wr_set_sge(ex, s->ep->mr->lkey, (uintptr_t)s->ep->buffer, opt.size);
    }
    if ((errno = ibv_wr_complete(ex)))
        give_up("ibv_wr_complete");
}

static void post_list(const struct sender *s, const struct lane *lane, uint64_t index)
{
    struct ibv_sge sge = {.addr = (uintptr_t)s->ep->buffer, .length = opt.size, .lkey = s->ep->mr->lkey};
    struct ibv_send_wr wr[POLL_BATCH], *bad;

    for (uint32_t i = 0; i < opt.batch; i++) {
        wr[i] = (struct ibv_send_wr){
            .wr_id = index,
            .next = i + 1 < opt.batch ? &wr[i + 1] : NULL,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = opt.opcode,
            .send_flags = i + 1 == opt.batch ? IBV_SEND_SIGNALED : 0,
        };
        if (opt.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            wr[i].wr.atomic.remote_addr = lane->far.address;
            wr[i].wr.atomic.rkey = lane->far.rkey;
            wr[i].wr.atomic.compare_add = 1;
        } else {
            wr[i].wr.rdma.remote_addr = lane->far.address;
            wr[i].wr.rdma.rkey = lane->far.rkey;
        }
    }
    if ((errno = ibv_post_send(lane->qp, wr, &bad)))
        give_up("ibv_post_send");
}

static void post_batch(const struct sender *s, struct lane *lane, uint64_t index)
{
    if (opt.extended)
        post_extended(s, lane, index);
    else
        post_list(s, lane, index);
    lane->flying += opt.batch;
}

static uint64_t reap(struct sender *s)
{
    struct ibv_wc wc[POLL_BATCH];
    int n = ibv_poll_cq(s->cq, POLL_BATCH, wc);

    if (n < 0)
        give_up("ibv_poll_cq");
    for (int i = 0; i < n; i++) {
        if (wc[i].status != IBV_WC_SUCCESS) {
            fprintf(stderr, "%s: %s\n", opt.op, ibv_wc_status_str(wc[i].status));
            exit(1);
        }
        s->lanes[wc[i].wr_id].flying -= opt.batch;
    }
    return (uint64_t)n * opt.batch;
}

static void *initiate(void *arg)
{
    struct sender *s = arg;
    uint64_t done = 0;
    bool flying = true;

    if (opt.threads == 1)
        pin(opt.cpu[0]);
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        for (int p = 0; p < opt.peers; p++) {
            struct lane *lane = &s->lanes[p];

            while (lane->flying + opt.batch <= opt.window)
                post_batch(s, lane, (uint64_t)p);
            done += reap(s);
            atomic_store_explicit(&s->done, done, memory_order_relaxed);
        }
    }
    while (flying) {
        flying = false;
        reap(s);
        for (int p = 0; p < opt.peers; p++)
            flying |= s->lanes[p].flying > 0;
    }
    return NULL;
}

static uint64_t total(const struct sender *senders)
{
    uint64_t sum = 0;

    for (int t = 0; t < opt.threads; t++)
        sum += atomic_load_explicit(&senders[t].done, memory_order_relaxed);
    return sum;
}

static void nap(double seconds)
{
    struct timespec ts = {.tv_sec = (time_t)seconds,
                          .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};

    while (nanosleep(&ts, &ts) && errno == EINTR)
        ;
}

static void be_initiator(const int *fds)
{
    static struct sender senders[MAX_THREADS];
    const struct qp_shape shape = {
        .send_wr = opt.window,
        .recv_wr = 1,
        .send_ops = opt.extended ? IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE |
                                       IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
                                 : 0};
    uint64_t first, began, took, moved;
    struct endpoint ep;
    double kept = 0, rate;
    char word;

    endpoint_open(&ep, opt.device, opt.gid_index, opt.size);
    for (int t = 0; t < opt.threads; t++) {
        struct sender *s = &senders[t];

        s->ep = &ep;
        s->lanes = calloc((size_t)opt.peers, sizeof(*s->lanes));
        s->cq = ibv_create_cq(ep.context, (int)opt.window * opt.peers + 1, NULL, NULL, 0);
        if (!s->lanes || !s->cq)
            give_up("ibv_create_cq");
    }
    for (int p = 0; p < opt.peers; p++)
        for (int t = 0; t < opt.threads; t++) {
            struct lane *lane = &senders[t].lanes[p];
            struct contact near;

            lane->qp = endpoint_qp(&ep, senders[t].cq, senders[t].cq, shape);
            lane->ex = opt.extended ? ibv_qp_to_qp_ex(lane->qp) : NULL;
            near = endpoint_contact(&ep, lane->qp);
            hear(fds[p], &lane->far, sizeof(lane->far));
            tell(fds[p], &near, sizeof(near));
            endpoint_connect(&ep, lane->qp, &lane->far);
        }
    for (int p = 0; p < opt.peers; p++)
        hear(fds[p], &word, 1);
    for (int p = 0; p < opt.peers; p++)
        tell(fds[p], "g", 1);
    for (int t = 0; t < opt.threads; t++)
        if ((errno = pthread_create(&senders[t].thread, NULL, initiate, &senders[t])))
            give_up("pthread_create");
    nap(opt.seconds / 4);
    first = total(senders);
    began = now_ns();
    nap(opt.seconds);
    moved = total(senders) - first;
    took = now_ns() - began;
    atomic_store_explicit(&stop, true, memory_order_relaxed);
    for (int t = 0; t < opt.threads; t++)
        pthread_join(senders[t].thread, NULL);
    for (int p = 0; p < opt.peers; p++) {
        double k;

        tell(fds[p], "s", 1);
        hear(fds[p], &k, sizeof(k));
        kept += k / opt.peers;
    }
    for (int t = 0; t < opt.threads; t++) {
        for (int p = 0; p < opt.peers; p++)
            if ((errno = ibv_destroy_qp(senders[t].lanes[p].qp)))
                give_up("ibv_destroy_qp");
        if ((errno = ibv_destroy_cq(senders[t].cq)))
            give_up("ibv_destroy_cq");
        free(senders[t].lanes);
    }
    endpoint_close(&ep);
    rate = (double)moved / ((double)took / 1e9);
    printf("op %s size %u threads %d peers %d target %s msgs %.0f gbps %.3f computing %.3f\n", opt.op,
           opt.size, opt.threads, opt.peers, target_names[opt.target], rate, rate * opt.size / 1e9,
           opt.target == TARGET_COMPUTE ? kept : 0);
}

static int usage(const char *name)
{
    fprintf(stderr,
            "usage: %s [--op send|write|read|faa] [--size BYTES] [--threads N] [--peers M]\n"
            "          [--target poll|sleep|compute] [--seconds S] [--window WRS] [--batch WRS]\n"
            "          [--extended] [--cpus NEAR,FAR] [--device NAME] [--gid INDEX]\n"
            "--extended: a batch is posted by ibv_wr_start() to ibv_wr_complete(), else by one "
            "ibv_post_send().\n"
            "A computing target calls no verbs while the clock runs, so it cannot post receives: not with "
            "send.\n",
            name);
    return 2;
}

static bool parse_op(const char *op)
{
    static const struct {
        const char *name;
        enum ibv_wr_opcode opcode;
    } ops[] = {{"send", IBV_WR_SEND},
               {"write", IBV_WR_RDMA_WRITE},
               {"read", IBV_WR_RDMA_READ},
               {"faa", IBV_WR_ATOMIC_FETCH_AND_ADD}};

    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        if (!strcmp(op, ops[i].name)) {
            opt.op = ops[i].name;
            opt.opcode = ops[i].opcode;
            return true;
        }
    return false;
}

static bool parse_target(const char *name)
{
    for (unsigned i = 0; i < 3; i++)
        if (!strcmp(name, target_names[i])) {
            opt.target = (enum target)i;
            return true;
        }
    return false;
}

static bool parse(int argc, char **argv)
{
    static const struct option options[] = {
        {"op", 1, NULL, 'o'},     {"size", 1, NULL, 's'},   {"threads", 1, NULL, 't'},
        {"peers", 1, NULL, 'p'},  {"target", 1, NULL, 'T'}, {"seconds", 1, NULL, 'S'},
        {"window", 1, NULL, 'w'}, {"batch", 1, NULL, 'b'},  {"cpus", 1, NULL, 'c'},
        {"device", 1, NULL, 'd'}, {"gid", 1, NULL, 'g'},    {"extended", 0, NULL, 'x'},
        {NULL, 0, NULL, 0},
    };
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'o':
            if (!parse_op(optarg))
                return false;
            break;
        case 'T':
            if (!parse_target(optarg))
                return false;
            break;
        case 's':
            opt.size = (uint32_t)strtoul(optarg, NULL, 0);
            break;
        case 't':
            opt.threads = atoi(optarg);
            break;
        case 'p':
            opt.peers = atoi(optarg);
            break;
        case 'S':
            opt.seconds = atof(optarg);
            break;
        case 'w':
            opt.window = (uint32_t)atoi(optarg);
            break;
        case 'b':
            opt.batch = (uint32_t)atoi(optarg);
            break;
        case 'd':
            opt.device = optarg;
            break;
        case 'g':
            opt.gid_index = atoi(optarg);
            break;
        case 'x':
            opt.extended = true;
            break;
        case 'c':
            if (sscanf(optarg, "%d,%d", &opt.cpu[0], &opt.cpu[1]) != 2)
                return false;
            break;
        default:
            return false;
        }
    }
    if (opt.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        opt.size = 8;
    return optind == argc && opt.size > 0 && opt.size <= 1u << 30 && opt.threads > 0 &&
           opt.threads <= MAX_THREADS && opt.peers > 0 && opt.peers <= MAX_PEERS && opt.seconds > 0 &&
           opt.batch > 0 && opt.batch <= POLL_BATCH && opt.window >= opt.batch &&
           !(opt.opcode == IBV_WR_SEND && opt.target == TARGET_COMPUTE);
}

int main(int argc, char **argv)
{
    static int fds[MAX_PEERS];
    static pid_t children[MAX_PEERS];
    int bad = 0;

    if (!parse(argc, argv))
        return usage(argv[0]);
    /* Before any verb: each target is a process that opens its own adapter. */
    for (int p = 0; p < opt.peers; p++) {
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
            give_up("socketpair");
        children[p] = fork();
        if (children[p] < 0)
            give_up("fork");
        if (children[p] == 0) {
            for (int q = 0; q < p; q++)
                close(fds[q]);
            close(pair[0]);
            be_target(pair[1]);
        }
        close(pair[1]);
        fds[p] = pair[0];
    }
    be_initiator(fds);
    for (int p = 0; p < opt.peers; p++) {
        int status;

        if (waitpid(children[p], &status, 0) != children[p] || status)
            bad = 1;
    }
    return bad;
}
