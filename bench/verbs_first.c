/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory that a peer begins to access: how many bytes it moves until the memory is mapped, and what the slowest request
 * waited. One thread each; the target registers its memory when the QPs are connected, and polls its CQ. */
#include "common.h"
#include "endpoint.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 1 << 20, REQUESTS_MAX = 20000, LOOK_EVERY = 16 };

struct offer {
    uint64_t address;
    uint32_t rkey;
};

static struct endpoint ep;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void connect_to(int fd, struct contact *ret_far)
{
    struct contact near;

    endpoint_open(&ep, NULL, 0, SIZE);
    cq = ibv_create_cq(ep.context, 16, NULL, NULL, 0);
    if (!cq)
        give_up("ibv_create_cq");
    qp = endpoint_qp(&ep, cq, cq, (struct qp_shape){.send_wr = 1, .recv_wr = 1});
    near = endpoint_contact(&ep, qp);
    tell(fd, &near, sizeof(near));
    hear(fd, ret_far, sizeof(*ret_far));
    endpoint_connect(&ep, qp, ret_far);
}

static void disconnect(void)
{
    if ((errno = ibv_destroy_qp(qp)) || (errno = ibv_destroy_cq(cq)))
        give_up("destroy");
    endpoint_close(&ep);
}

/* Bytes of [memory, memory + SIZE) in the files that SoftHCA maps memory to. */
static uint64_t mapped_bytes(const char *memory)
{
    uint64_t first = (uintptr_t)memory, end = first + SIZE, bytes = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    char line[512];

    if (!file)
        give_up("/proc/self/maps");
    while (fgets(line, sizeof(line), file)) {
        unsigned long long from, to;

        if (!strstr(line, "softhca-mapped") || sscanf(line, "%llx-%llx", &from, &to) != 2)
            continue;
        from = from > first ? from : first;
        to = to < end ? to : end;
        bytes += from < to ? to - from : 0;
    }
    fclose(file);
    return bytes;
}

static _Noreturn void be_target(int fd, int cpu)
{
    struct contact far;
    struct offer offer;
    struct ibv_mr *mr;
    struct ibv_wc wc;
    char *memory;

    pin(cpu);
    connect_to(fd, &far);
    memory = aligned_alloc(4096, SIZE);
    if (!memory)
        give_up("aligned_alloc");
    memset(memory, 0, SIZE);
    mr = ibv_reg_mr(ep.pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!mr)
        give_up("ibv_reg_mr");
    offer = (struct offer){(uintptr_t)memory, mr->rkey};
    tell(fd, &offer, sizeof(offer));
    for (;;) {
        uint64_t bytes;
        char question;

        if (ibv_poll_cq(cq, 1, &wc) < 0)
            give_up("ibv_poll_cq");
        if (!told(fd))
            continue;
        hear(fd, &question, 1);
        if (question == 'e')
            break;
        bytes = mapped_bytes(memory);
        tell(fd, &bytes, sizeof(bytes));
    }
    if ((errno = ibv_dereg_mr(mr)))
        give_up("ibv_dereg_mr");
    disconnect();
    exit(0);
}

static void write_once(const struct offer *offer, uint32_t length, unsigned number)
{
    struct ibv_sge sge = {.addr = (uintptr_t)ep.buffer, .length = length, .lkey = ep.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {.remote_addr = offer->address + (uint64_t)number * length % SIZE,
                                         .rkey = offer->rkey}},
                       *bad;
    struct ibv_wc wc;
    int polled;

    if ((errno = ibv_post_send(qp, &wr, &bad)))
        give_up("ibv_post_send");
    while ((polled = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    if (polled < 0 || wc.status != IBV_WC_SUCCESS)
        give_up("WRITE");
}

static long switches(void)
{
    struct rusage usage;

    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw + usage.ru_nivcsw;
}

enum { MEETING = 4 };

/* The two processes meet with the first requests of all: with one, a link; with the next, the helper thread opens and
 * maps the files of the other process, which takes some 0.5 ms of the processor that this thread is pinned to, too.
 * That is over before anything is measured, whatever memory is accessed. */
static void meet(const struct offer *offer, uint32_t length)
{
    for (unsigned i = 0; i < MEETING; i++) {
        write_once(offer, length, i);
        usleep(20000);
    }
}

/* first_us: the median of the first requests, before a peer has been asked to map anything. switched: how often the
 * thread lost its processor during the slowest one, mostly to its own helper thread. */
static void measure(int fd, const struct offer *offer, uint32_t length)
{
    static uint64_t took[REQUESTS_MAX];
    uint64_t bytes = 0, slowest = 0;
    long switched = 0;
    size_t count = 0;

    meet(offer, length);
    while (bytes < SIZE && count < REQUESTS_MAX) {
        long before = switches();
        uint64_t began = now_ns();

        write_once(offer, length, (unsigned)count + MEETING);
        took[count++] = now_ns() - began;
        if (took[count - 1] > slowest) {
            slowest = took[count - 1];
            switched = switches() - before;
        }
        if (count % LOOK_EVERY == 0) {
            tell(fd, "m", 1);
            hear(fd, &bytes, sizeof(bytes));
        }
    }
    printf("size %u moved %zu mapped %llu first_us %.2f slowest_us %.2f switched %ld\n", length,
           (count + MEETING) * length, (unsigned long long)bytes, (double)median(took, LOOK_EVERY) / 1e3,
           (double)slowest / 1e3, switched);
}

int main(int argc, char **argv)
{
    struct contact far;
    struct offer offer;
    int fd, status;
    pid_t target;
    long length = argc == 4 ? atol(argv[3]) : 0;

    if (length < 8 || length > SIZE || SIZE % length) {
        fprintf(stderr, "usage: %s CPU CPU BYTES\nBYTES: of each WRITE to 1 MiB, a power of two\n", argv[0]);
        return 2;
    }
    target = fork_peer(&fd);
    if (target == 0)
        be_target(fd, atoi(argv[2]));
    pin(atoi(argv[1]));
    connect_to(fd, &far);
    hear(fd, &offer, sizeof(offer));
    measure(fd, &offer, (uint32_t)length);
    tell(fd, "e", 1);
    disconnect();
    return waitpid(target, &status, 0) != target || status;
}
