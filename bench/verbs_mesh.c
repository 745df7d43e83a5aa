/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Many processes of one host, each connected to each by RC, that sleep on their completion channel: each sends 8
 * bytes to all others in turn, and waits after each message for one of theirs. Prints messages/s, the memory of the
 * largest process (pages that it shares count as a whole) and its descriptors. Each process has 1,024 descriptors and
 * no more. With two processes and many QPs for each peer it is a program that sleeps with many QPs: each QP is used
 * once in a round, the last one first. Exits 1 if a completion fails, or an event comes that no CQ has.
 *
 * usage: verbs_mesh PROCESSES ROUNDS [QPS-PER-PEER] */
#include "crowd.h"
#include "endpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { PROCESSES_MAX = 1024, DESCRIPTORS = 1024, RECEIVES = 2, TOGETHER = 16, WORD = 8 };

struct result {
    struct contact contact;
    uint64_t memory, descriptors;
    uint64_t sleeps;   /* waits for an event */
    uint64_t cpu_ns;   /* processor time of all threads */
    uint64_t switches; /* how often one of them has waited */
};

/* Of all processes, mapped before they are forked. */
struct meeting {
    pthread_barrier_t barrier;
    uint64_t began, ended;
    struct result of[PROCESSES_MAX];
    uint32_t number[]; /* of the QP of process i to process j, number k: at (i * processes + j) * qps + k */
};

static struct meeting *meeting;
static uint32_t processes, rounds, qps;

static struct side {
    struct endpoint ep;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp **qp; /* to process j, number k: at j * qps + k */
    uint32_t me;
    uint64_t sent, received, unacknowledged, sleeps;
} side;

static uint64_t descriptors_used(void)
{
    DIR *folder = opendir("/proc/self/fd");
    uint64_t count = 0;

    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count > 3 ? count - 3 : 0; /* . and .., and the one that looks */
}

static void meet(void)
{
    (void)pthread_barrier_wait(&meeting->barrier);
}

static uint32_t *number_of(uint32_t from, uint32_t to, uint32_t qp)
{
    return &meeting->number[((size_t)from * processes + to) * qps + qp];
}

static void post_receive(uint32_t at)
{
    struct ibv_sge sge = {(uintptr_t)side.ep.buffer + WORD, WORD, side.ep.mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = at, .sg_list = &sge, .num_sge = 1};

    if ((errno = ibv_post_recv(side.qp[at], &wr, &bad)))
        give_up("ibv_post_recv");
}

static void open_all(void)
{
    const struct rlimit limit = {DESCRIPTORS, DESCRIPTORS};
    uint32_t room = 4 * RECEIVES * (processes < qps ? qps : processes);

    if (setrlimit(RLIMIT_NOFILE, &limit))
        give_up("RLIMIT_NOFILE");
    side.qp = calloc((size_t)processes * qps, sizeof(struct ibv_qp *));
    if (!side.qp)
        give_up("calloc");
    endpoint_open(&side.ep, NULL, 0, (size_t)2 * WORD);
    side.channel = ibv_create_comp_channel(side.ep.context);
    if (!side.channel)
        give_up("ibv_create_comp_channel");
    side.cq = ibv_create_cq(side.ep.context, (int)room, NULL, side.channel, 0);
    if (!side.cq)
        give_up("ibv_create_cq");
    for (uint32_t to = 0; to < processes; to++)
        for (uint32_t i = 0; to != side.me && i < qps; i++) {
            uint32_t at = to * qps + i;

            side.qp[at] =
                endpoint_qp(&side.ep, side.cq, side.cq,
                            (struct qp_shape){.send_wr = 4, .recv_wr = RECEIVES, .inline_data = WORD});
            *number_of(side.me, to, i) = side.qp[at]->qp_num;
            for (int receive = 0; receive < RECEIVES; receive++)
                post_receive(at);
        }
    meeting->of[side.me].contact = endpoint_contact(&side.ep, side.qp[side.me ? 0 : qps]);
}

static void connect_all(void)
{
    for (uint32_t to = 0; to < processes; to++)
        for (uint32_t i = 0; to != side.me && i < qps; i++) {
            struct contact far = meeting->of[to].contact;

            far.qp_num = *number_of(to, side.me, i);
            endpoint_connect(&side.ep, side.qp[to * qps + i], &far);
        }
}

static void take_completions(void)
{
    struct ibv_wc wc[TOGETHER];
    int n;

    while ((n = ibv_poll_cq(side.cq, TOGETHER, wc)) > 0)
        for (int i = 0; i < n; i++) {
            if (wc[i].status != IBV_WC_SUCCESS) {
                fprintf(stderr, "process %u, QP 0x%06x: %s\n", side.me, wc[i].qp_num,
                        ibv_wc_status_str(wc[i].status));
                exit(1);
            }
            if (wc[i].opcode & IBV_WC_RECV) {
                side.received++;
                post_receive((uint32_t)wc[i].wr_id);
            }
        }
    if (n < 0)
        give_up("ibv_poll_cq");
}

/* Asleep, as the manual page has it: armed, looked once more, then the descriptor. */
static void sleep_until_received(uint64_t count)
{
    struct ibv_cq *cq;
    void *context;

    take_completions();
    while (side.received < count) {
        if ((errno = ibv_req_notify_cq(side.cq, 0)))
            give_up("ibv_req_notify_cq");
        take_completions();
        if (side.received >= count)
            break;
        if (ibv_get_cq_event(side.channel, &cq, &context) || cq != side.cq)
            give_up("ibv_get_cq_event");
        side.sleeps++;
        if (++side.unacknowledged == 64) {
            ibv_ack_cq_events(side.cq, 64);
            side.unacknowledged = 0;
        }
        take_completions();
    }
}

static void send_over(uint32_t at)
{
    struct ibv_sge sge = {(uintptr_t)side.ep.buffer, WORD, side.ep.mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_SEND,
                                   .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE};

    while ((errno = ibv_post_send(side.qp[at], &wr, &bad))) {
        if (errno != ENOMEM)
            give_up("ibv_post_send");
        take_completions();
    }
    side.sent++;
}

/* In its turn, process i sends to the first behind it while the first before it sends to i, and so on. */
static void talk(void)
{
    for (uint32_t i = qps; i-- > 0;)
        for (uint32_t step = 1; step < processes; step++) {
            send_over((side.me + step) % processes * qps + i);
            sleep_until_received(side.sent);
        }
}

static void close_all(void)
{
    ibv_ack_cq_events(side.cq, (unsigned)side.unacknowledged);
    for (uint32_t at = 0; at < processes * qps; at++)
        if (side.qp[at] && (errno = ibv_destroy_qp(side.qp[at])))
            give_up("ibv_destroy_qp");
    if ((errno = ibv_destroy_cq(side.cq)))
        give_up("ibv_destroy_cq");
    if ((errno = ibv_destroy_comp_channel(side.channel)))
        give_up("ibv_destroy_comp_channel");
    endpoint_close(&side.ep);
}

static void run(uint32_t me)
{
    uint64_t cpu, switches;

    side.me = me;
    open_all();
    meet();
    connect_all();
    meet();
    talk(); /* each process has met each other */
    meet();
    side.sleeps = 0;
    cpu = processor_ns();
    switches = switches_so_far();
    if (me == 0)
        meeting->began = now_ns();
    for (uint32_t round = 0; round < rounds; round++)
        talk();
    meeting->of[me].cpu_ns = processor_ns() - cpu;
    meeting->of[me].switches = switches_so_far() - switches;
    meet();
    if (me == 0)
        meeting->ended = now_ns();
    meeting->of[me].memory = memory_used();
    meeting->of[me].descriptors = descriptors_used();
    meeting->of[me].sleeps = side.sleeps;
    meet();
    close_all();
    exit(0);
}

static void report(uint64_t began)
{
    uint64_t memory = 0, descriptors = 0, sleeps = 0, cpu = 0, switches = 0;
    double messages = (double)rounds * qps * processes * (processes - 1);
    double seconds = (double)(meeting->ended - meeting->began) / 1e9;

    for (uint32_t i = 0; i < processes; i++) {
        const struct result *of = &meeting->of[i];

        memory = of->memory > memory ? of->memory : memory;
        descriptors = of->descriptors > descriptors ? of->descriptors : descriptors;
        sleeps += of->sleeps;
        cpu += of->cpu_ns;
        switches += of->switches;
    }
    printf("processes=%u qps=%u messages_per_s=%.0f cpu_us_per_message=%.2f sleeps_per_message=%.2f "
           "switches_per_message=%.2f memory_mib=%.2f descriptors=%lu all_s=%.1f\n",
           processes, (processes - 1) * qps, messages / seconds, (double)cpu / 1000 / messages,
           (double)sleeps / messages, (double)switches / messages, (double)memory / (1 << 20), descriptors,
           (double)(now_ns() - began) / 1e9);
}

int main(int argc, char **argv)
{
    uint64_t began = now_ns();
    size_t size;

    processes = argc > 2 ? (uint32_t)atoi(argv[1]) : 0;
    rounds = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    qps = argc > 3 ? (uint32_t)atoi(argv[3]) : 1;
    if (processes < 2 || processes > PROCESSES_MAX || rounds < 1 || qps < 1) {
        fprintf(stderr, "usage: %s PROCESSES ROUNDS [QPS-PER-PEER]\n", argv[0]);
        return 2;
    }
    size = sizeof(*meeting) + sizeof(uint32_t) * processes * processes * qps;
    meeting = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (meeting == MAP_FAILED)
        give_up("mmap");
    if (!crowd_run(&meeting->barrier, processes, run))
        return 1;
    report(began);
    return 0;
}
