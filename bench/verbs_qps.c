/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What many QPs between two processes cost: to create, connect and destroy each, the memory of each in use, and
 * 8-byte WRITEs one by one, each over a QP that is drawn at random, against the same over two of them. The two take
 * turns, and a figure is the least of its turns. Times are processor time of the thread that calls, on a processor of
 * its own. Exits 1 if a completion fails.
 *
 * usage: verbs_qps CPU CPU QPS [TURNS] */
#include "common.h"
#include "endpoint.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>

enum { QPS_MAX = 1 << 20, TURN_WRITES = 200000, WARM_WRITES = 4, FEW = 2, TOGETHER = 16, WORDS = 512 };

struct side {
    struct endpoint ep;
    struct ibv_cq *cq;
    struct ibv_qp **qp;
    uint32_t *number;     /* of the QPs here, then of those there */
    struct contact other; /* its first QP: all have the rest in common */
    uint32_t count;
    uint32_t polled;                 /* completions, in this turn */
    double create, connect, destroy; /* us each */
    double bytes;                    /* before there is any; then each, when all have been used */
};

/* Not the time in which other programs have the processor. */
static uint64_t thread_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double each_us(const struct side *side, uint64_t began)
{
    return (double)(thread_ns() - began) / 1000 / side->count;
}

static void create_all(struct side *side)
{
    uint64_t began = thread_ns();

    for (uint32_t i = 0; i < side->count; i++) {
        side->qp[i] =
            endpoint_qp(&side->ep, side->cq, side->cq, (struct qp_shape){.send_wr = 2, .recv_wr = 1});
        side->number[i] = side->qp[i]->qp_num;
    }
    side->create = each_us(side, began);
}

static void connect_all(struct side *side)
{
    struct contact far = side->other;
    uint64_t began = thread_ns();

    for (uint32_t i = 0; i < side->count; i++) {
        far.qp_num = side->number[i];
        endpoint_connect(&side->ep, side->qp[i], &far);
    }
    side->connect = each_us(side, began);
}

static void destroy_all(struct side *side)
{
    uint64_t began = thread_ns();

    for (uint32_t i = 0; i < side->count; i++)
        if ((errno = ibv_destroy_qp(side->qp[i])))
            give_up("ibv_destroy_qp");
    side->destroy = each_us(side, began);
}

/* The two take turns, so that neither's figures have the other's work in them. */
static void exchange(struct side *side, int fd, bool first, void (*work)(struct side *side))
{
    char word;

    if (!first)
        hear(fd, &word, 1);
    work(side);
    tell(fd, "w", 1);
    if (first)
        hear(fd, &word, 1);
}

static void meet(struct side *side, int fd, bool first)
{
    size_t size = side->count * sizeof(*side->number);
    uint32_t *theirs = malloc(size);
    struct contact near = endpoint_contact(&side->ep, side->qp[0]);

    if (!theirs)
        give_up("malloc");
    tell(fd, &near, sizeof(near));
    hear(fd, &side->other, sizeof(side->other));
    for (size_t done = 0, part; done < size; done += part) {
        part = size - done < 65536 ? size - done : 65536;
        if (first)
            tell(fd, (char *)side->number + done, part);
        hear(fd, (char *)theirs + done, part);
        if (!first)
            tell(fd, (char *)side->number + done, part);
    }
    memcpy(side->number, theirs, size);
    free(theirs);
}

static void open_all(struct side *side, int fd, uint32_t count, bool first)
{
    side->count = count;
    side->qp = calloc(count, sizeof(*side->qp));
    side->number = calloc(count, sizeof(*side->number));
    if (!side->qp || !side->number)
        give_up("calloc");
    memset(side->qp, 1, count * sizeof(*side->qp)); /* populated, so that they count for no QP */
    memset(side->number, 1, count * sizeof(*side->number));
    endpoint_open(&side->ep, NULL, 0, WORDS * 8);
    side->cq = ibv_create_cq(side->ep.context, 4 * TOGETHER, NULL, NULL, 0);
    if (!side->cq)
        give_up("ibv_create_cq");
    side->bytes = (double)memory_used();
    exchange(side, fd, first, create_all);
    meet(side, fd, first);
    exchange(side, fd, first, connect_all);
}

static int poll_some(struct side *side)
{
    struct ibv_wc wc[TOGETHER];
    int n = ibv_poll_cq(side->cq, TOGETHER, wc);

    if (n < 0)
        give_up("ibv_poll_cq");
    for (int i = 0; i < n; i++)
        if (wc[i].status != IBV_WC_SUCCESS) {
            fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc[i].status));
            exit(1);
        }
    side->polled += (uint32_t)n;
    return n;
}

static void write_over(struct side *side, uint32_t qp)
{
    struct ibv_sge sge = {(uintptr_t)side->ep.buffer, 8, side->ep.mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {side->other.address + 8 * (qp % WORDS), side->other.rkey}};

    while ((errno = ibv_post_send(side->qp[qp], &wr, &bad)))
        if (errno != ENOMEM || poll_some(side) < 0) /* ENOMEM: drawn a third time before a poll */
            give_up("ibv_post_send");
}

static double write_turn(struct side *side, uint32_t among, uint32_t writes, bool in_turn)
{
    uint64_t began = thread_ns();

    side->polled = 0;
    for (uint32_t i = 0; i < writes; i++) {
        write_over(side, in_turn ? i % among : draw(among));
        if (i % FEW == FEW - 1)
            (void)poll_some(side);
        while (i + 1 - side->polled > 2 * TOGETHER) /* they go as packets; the CQ has room for so many */
            (void)poll_some(side);
    }
    while (side->polled < writes)
        (void)poll_some(side);
    return (double)(thread_ns() - began) / writes;
}

static void near_side(int fd, uint32_t count, int turns)
{
    double few = 0, many = 0;
    struct side side;

    open_all(&side, fd, count, true);
    for (int i = 0; i < WARM_WRITES; i++)
        (void)write_turn(&side, count, count, true);
    side.bytes = ((double)memory_used() - side.bytes) / count;
    for (int i = 0; i < turns; i++) {
        double of_few = write_turn(&side, FEW, TURN_WRITES, false);
        double of_all = write_turn(&side, count, TURN_WRITES, false);

        few = i == 0 || of_few < few ? of_few : few;
        many = i == 0 || of_all < many ? of_all : many;
    }
    tell(fd, "d", 1);
    exchange(&side, fd, true, destroy_all);
    printf(
        "qps=%u create_us=%.2f connect_us=%.2f destroy_us=%.2f bytes=%.0f write_2_ns=%.1f write_all_ns=%.1f "
        "ratio=%.2f\n",
        count, side.create, side.connect, side.destroy, side.bytes, few, many, many / few);
}

static void far_side(int fd, uint32_t count)
{
    struct side side;
    char word;

    open_all(&side, fd, count, false);
    hear(fd, &word, 1);
    exchange(&side, fd, false, destroy_all);
    exit(0);
}

int main(int argc, char **argv)
{
    long count = argc > 3 ? atol(argv[3]) : 0, turns = argc > 4 ? atol(argv[4]) : 9;
    pid_t child;
    int fd, status;

    if (count < FEW || count > QPS_MAX || turns < 1 || turns > 99) {
        fprintf(stderr, "usage: %s CPU CPU QPS [TURNS]\n", argv[0]);
        return 2;
    }
    child = fork_peer(&fd);
    pin(atoi(argv[child == 0 ? 2 : 1]));
    if (child == 0)
        far_side(fd, (uint32_t)count);
    near_side(fd, (uint32_t)count, (int)turns);
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
