/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What programs that use their memory see, and perftest's do not: messages whose buffers are rewritten before
 * each SEND and read after each receive; round trips to a line that the target writes to all along; 8 bytes
 * in the middle of a region as malloc() gives it. After the figure it waits for the end of its input, so that
 * others can look at the processes. */
#include "common.h"
#include "endpoint.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECEIVES = 32, WARM = 2000, SAMPLES = 20000 };

static struct {
    int cpu[2];
    const char *op;
    enum ibv_wr_opcode opcode;
    uint32_t size, buffers;
    size_t from_malloc; /* bytes; 0: whole pages */
    bool touched;
    double seconds;
} opt = {.seconds = 0.5};

struct side {
    struct endpoint ep;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct contact far;
    char *memory;
    struct ibv_mr *mr; /* of memory */
    int fd;
};

static void open_side(struct side *side, int fd)
{
    size_t size = opt.from_malloc ? opt.from_malloc : (size_t)opt.size * opt.buffers;
    struct contact near;

    side->fd = fd;
    endpoint_open(&side->ep, NULL, 0, opt.from_malloc ? 1 : size);
    side->memory = side->ep.buffer;
    side->mr = side->ep.mr;
    if (opt.from_malloc) {
        side->memory = malloc(size);
        if (!side->memory)
            give_up("malloc");
        memset(side->memory, 0, size);
        side->mr = ibv_reg_mr(side->ep.pd, side->memory, size,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                  IBV_ACCESS_REMOTE_ATOMIC);
        if (!side->mr)
            give_up("ibv_reg_mr");
        side->memory += size / 2;
    }
    side->cq = ibv_create_cq(side->ep.context, 4 * RECEIVES, NULL, NULL, 0);
    if (!side->cq)
        give_up("ibv_create_cq");
    side->qp = endpoint_qp(&side->ep, side->cq, side->cq,
                           (struct qp_shape){.send_wr = RECEIVES, .recv_wr = RECEIVES});
    near = endpoint_contact(&side->ep, side->qp);
    near.address = (uintptr_t)side->memory;
    near.rkey = side->mr->rkey;
    tell(fd, &near, sizeof(near));
    hear(fd, &side->far, sizeof(side->far));
    endpoint_connect(&side->ep, side->qp, &side->far);
}

static void close_side(struct side *side)
{
    if ((errno = ibv_destroy_qp(side->qp)) || (errno = ibv_destroy_cq(side->cq)))
        give_up("ibv_destroy_qp");
    if (opt.from_malloc) {
        if ((errno = ibv_dereg_mr(side->mr)))
            give_up("ibv_dereg_mr");
        free(side->memory - opt.from_malloc / 2);
    }
    endpoint_close(&side->ep);
}

static struct ibv_wc wait_for_one(struct side *side)
{
    struct ibv_wc wc;
    int count;

    while ((count = ibv_poll_cq(side->cq, 1, &wc)) == 0)
        ;
    if (count < 0 || wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "%s: %s\n", opt.op, count < 0 ? "ibv_poll_cq" : ibv_wc_status_str(wc.status));
        exit(1);
    }
    return wc;
}

static struct ibv_sge piece(const struct side *side, uint64_t buffer)
{
    return (struct ibv_sge){
        .addr = (uintptr_t)side->memory + buffer * opt.size, .length = opt.size, .lkey = side->mr->lkey};
}

static void post_receive(struct side *side, uint64_t buffer)
{
    struct ibv_sge sge = piece(side, buffer);
    struct ibv_recv_wr wr = {.wr_id = buffer, .sg_list = &sge, .num_sge = 1}, *bad;

    if ((errno = ibv_post_recv(side->qp, &wr, &bad)))
        give_up("ibv_post_recv");
}

static void post_request(struct side *side, uint64_t buffer)
{
    struct ibv_sge sge = piece(side, buffer);
    struct ibv_send_wr wr = {.wr_id = buffer,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opt.opcode,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;

    if (opt.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = side->far.address;
        wr.wr.atomic.rkey = side->far.rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = side->far.address;
        wr.wr.rdma.rkey = side->far.rkey;
    }
    if ((errno = ibv_post_send(side->qp, &wr, &bad)))
        give_up("ibv_post_send");
}

/* --- target ------------------------------------------------------------------------------------------ */

static void receive(struct side *side)
{
    uint64_t sum = 0;

    for (uint32_t polls = 1; polls % 4096 || !told(side->fd); polls++) {
        struct ibv_wc wc;
        int count = ibv_poll_cq(side->cq, 1, &wc);

        if (count == 0)
            continue;
        if (count < 0 || wc.status != IBV_WC_SUCCESS)
            give_up("receive");
        if (opt.touched)
            sum += read_all(side->memory + wc.wr_id * opt.size, opt.size);
        post_receive(side, wc.wr_id);
    }
    __asm__ volatile("" : : "r"(sum));
}

/* The word itself belongs to the atomics; the next is of the same line. */
static void touch(struct side *side)
{
    _Atomic uint64_t *word = (void *)(side->memory + sizeof(uint64_t));

    for (uint32_t i = 1; i % (1u << 16) || !told(side->fd); i++) {
        atomic_store_explicit(word, i, memory_order_relaxed);
        for (int pause = 0; pause < 8; pause++)
            relax();
    }
}

static void be_target(int fd)
{
    struct side side;
    char word;

    pin(opt.cpu[1]);
    open_side(&side, fd);
    if (opt.opcode == IBV_WR_SEND)
        for (uint64_t i = 0; i < opt.buffers; i++)
            post_receive(&side, i);
    tell(fd, "r", 1);
    if (opt.opcode == IBV_WR_SEND)
        receive(&side);
    else if (opt.touched)
        touch(&side);
    hear(fd, &word, 1);
    close_side(&side);
    exit(0);
}

/* --- initiator --------------------------------------------------------------------------------------- */

static double messages(struct side *side, double seconds)
{
    uint64_t began = now_ns(), until = began + (uint64_t)(seconds * 1e9), done = 0, flying = 0, now = began;

    for (uint64_t next = 0; now < until || flying; next++) {
        if (flying == opt.buffers || now >= until) {
            wait_for_one(side);
            flying--;
            done++;
            now = now_ns();
            if (now >= until)
                continue;
        }
        if (opt.touched)
            rewrite_all(side->memory + next % opt.buffers * opt.size, opt.size, next);
        post_request(side, next % opt.buffers);
        flying++;
    }
    return (double)done / ((double)(now - began) / 1e9);
}

static double round_trip(struct side *side)
{
    static uint64_t took[SAMPLES];

    for (int i = -WARM; i < SAMPLES; i++) {
        uint64_t began = now_ns();

        post_request(side, 0);
        wait_for_one(side);
        if (i >= 0)
            took[i] = now_ns() - began;
    }
    return (double)median(took, SAMPLES) / 1e3;
}

/* What reading the clock twice takes is not the path's. */
static double clock_us(void)
{
    static uint64_t took[SAMPLES];

    for (int i = 0; i < SAMPLES; i++) {
        uint64_t began = now_ns();

        took[i] = now_ns() - began;
    }
    return (double)median(took, SAMPLES) / 1e3;
}

static void be_initiator(int fd)
{
    struct side side;
    char word;

    pin(opt.cpu[0]);
    open_side(&side, fd);
    hear(fd, &word, 1);
    if (opt.opcode == IBV_WR_SEND) {
        messages(&side, opt.seconds / 4);
        printf("msgs %.1f\n", messages(&side, opt.seconds));
    } else {
        printf("us %.4f\n", round_trip(&side) - clock_us());
    }
    fflush(stdout);
    while (read(STDIN_FILENO, &word, 1) > 0)
        ;
    tell(fd, "s", 1);
    close_side(&side);
}

static bool parse(int argc, char **argv)
{
    static const struct {
        const char *name;
        enum ibv_wr_opcode opcode;
    } ops[] = {{"send", IBV_WR_SEND},
               {"write", IBV_WR_RDMA_WRITE},
               {"read", IBV_WR_RDMA_READ},
               {"faa", IBV_WR_ATOMIC_FETCH_AND_ADD}};

    if (argc < 5 || argc > 6)
        return false;
    opt.cpu[0] = atoi(argv[1]);
    opt.cpu[1] = atoi(argv[2]);
    opt.size = (uint32_t)strtoul(argv[4], NULL, 0);
    opt.touched = argc == 6 && strcmp(argv[5], "touched") == 0;
    if (argc == 6 && sscanf(argv[5], "malloc=%zu", &opt.from_malloc) == 1 && opt.from_malloc < 64)
        return false;
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        if (!strcmp(argv[3], ops[i].name)) {
            opt.op = ops[i].name;
            opt.opcode = ops[i].opcode;
        }
    opt.buffers = opt.opcode == IBV_WR_SEND ? touched_buffers(opt.size) : 1;
    return opt.op && opt.size >= 8 && opt.size <= 1u << 26 && (argc == 5 || opt.touched || opt.from_malloc) &&
           !(opt.touched && opt.opcode == IBV_WR_SEND && opt.size % 64) &&
           !(opt.from_malloc && (opt.opcode == IBV_WR_SEND || opt.size > opt.from_malloc / 2));
}

int main(int argc, char **argv)
{
    int fd, status;
    pid_t target;

    if (!parse(argc, argv)) {
        fprintf(stderr,
                "usage: %s CPU CPU send|write|read|faa SIZE [touched|malloc=BYTES]\n"
                "touched: send: buffers, of a multiple of 64 bytes, are rewritten and read; others: the "
                "target writes to the line\n"
                "malloc: not send; in the middle of so many bytes of malloc()\n",
                argv[0]);
        return 2;
    }
    target = fork_peer(&fd);
    if (target == 0)
        be_target(fd);
    be_initiator(fd);
    return waitpid(target, &status, 0) != target || status;
}
