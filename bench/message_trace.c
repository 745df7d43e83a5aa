/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Every instruction that one side of a connection executes for its messages, counted by single steps: whatever else
 * the machine does changes nothing, so this compares variants of the library on a busy machine and where the
 * processor's counters are not to be had. Two processes exchange messages until nothing of the connection is new;
 * then the side that is looked at stops, its thread is stepped through ROUNDS of them, and each step is written to
 * FILE for message_trace.py. x86-64 only.
 *
 * usage: message_trace FILE send|write|read|faa|poll [inline] [chain] [extended] [receiver] [turns] [size=BYTES]
 *        [qps=N]
 * turns: each completion is polled before the next request, and the receiver answers each SEND by one; poll: polls
 * that find nothing. */
#include "common.h"
#include "endpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

enum { TOGETHER = 16, WARM = 500, ROUNDS = 8, RECEIVES = 512, QPS_MAX = 16384 };

/* What the stepped side does now: steps are attributed to it. */
enum phase { ELSEWHERE, POSTS, POLLS, POSTS_RECEIVES };

static struct options {
    const char *file;
    enum ibv_wr_opcode opcode;
    bool sends, polls, is_inline, chain, extended, receiver, turns;
    uint32_t size, qps;
} opt = {.opcode = IBV_WR_RDMA_WRITE, .size = 8, .qps = 1};

/* In memory that the three processes share. */
static struct shared {
    _Atomic uint32_t phase;          /* enum phase */
    _Atomic uint32_t ready;          /* the stepped side is warm, and waits */
    _Atomic uint32_t go;             /* it may begin to be stepped */
    _Atomic uint32_t done;           /* it has ended */
    _Atomic uint64_t sent, received; /* messages; of the last, the receiver has polled the completion */
} * shared;

struct step {
    uint64_t phase;
    struct user_regs_struct registers;
};

struct side {
    struct endpoint ep;
    struct ibv_cq *cq;
    struct ibv_qp **qp;
    struct ibv_qp_ex **ex;
    struct contact *far;
    struct ibv_send_wr wr[TOGETHER];
    struct ibv_sge sge, into;
    uint64_t posted;
};

static void open_side(struct side *side, int fd, bool receiver)
{
    struct qp_shape shape = {
        .send_wr = 2 * TOGETHER,
        .recv_wr = opt.sends && (receiver || opt.turns) ? RECEIVES : 1,
        .inline_data = opt.is_inline ? 64 : 0,
        .send_ops = opt.extended && !receiver ? IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND : 0};

    endpoint_open(&side->ep, NULL, 0, 65536);
    side->cq = ibv_create_cq(side->ep.context, 2 * RECEIVES, NULL, NULL, 0);
    side->qp = calloc(opt.qps, sizeof(*side->qp));
    side->ex = calloc(opt.qps, sizeof(*side->ex));
    side->far = calloc(opt.qps, sizeof(*side->far));
    if (!side->cq || !side->qp || !side->ex || !side->far)
        give_up("CQ");
    for (uint32_t i = 0; i < opt.qps; i++) {
        struct contact near;

        side->qp[i] = endpoint_qp(&side->ep, side->cq, side->cq, shape);
        side->ex[i] = ibv_qp_to_qp_ex(side->qp[i]);
        near = endpoint_contact(&side->ep, side->qp[i]);
        tell(fd, &near, sizeof(near));
        hear(fd, &side->far[i], sizeof(side->far[i]));
        endpoint_connect(&side->ep, side->qp[i], &side->far[i]);
    }
    tell(fd, "", 1);
    hear(fd, &(char){0}, 1);
}

static bool is_stepped; /* this process */

static void set_phase(enum phase phase)
{
    if (!is_stepped)
        return;
    atomic_store_explicit(&shared->phase, phase, memory_order_relaxed);
}

static int poll_some(struct side *side)
{
    struct ibv_wc wc[TOGETHER];
    int n;

    set_phase(POLLS);
    n = ibv_poll_cq(side->cq, TOGETHER, wc);
    set_phase(ELSEWHERE);
    if (n < 0)
        give_up("ibv_poll_cq");
    for (int i = 0; i < n; i++)
        if (wc[i].status != IBV_WC_SUCCESS) {
            fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc[i].status));
            exit(1);
        }
    return n;
}

static void post_extended(struct side *side, uint32_t q, int count)
{
    struct ibv_qp_ex *ex = side->ex[q];

    ibv_wr_start(ex);
    for (int i = 0; i < count; i++) {
        ex->wr_flags = IBV_SEND_SIGNALED;
        if (opt.sends)
            ibv_wr_send(ex);
        else
            ibv_wr_rdma_write(ex, side->far[q].rkey, side->far[q].address);
        if (opt.is_inline)
            ibv_wr_set_inline_data(ex, side->ep.buffer, opt.size);
        else
            ibv_wr_set_sge(ex, side->sge.lkey, side->sge.addr, side->sge.length);
    }
    if ((errno = ibv_wr_complete(ex)))
        give_up("ibv_wr_complete");
}

static void aim(struct ibv_send_wr *wr, const struct contact *far)
{
    if (opt.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr->wr.atomic.remote_addr = far->address;
        wr->wr.atomic.rkey = far->rkey;
    } else {
        wr->wr.rdma.remote_addr = far->address;
        wr->wr.rdma.rkey = far->rkey;
    }
}

static void post(struct side *side, uint32_t q, int count)
{
    struct ibv_send_wr *bad;

    if (opt.extended) {
        post_extended(side, q, count);
        return;
    }
    aim(&side->wr[0], &side->far[q]);
    if ((errno = ibv_post_send(side->qp[q], side->wr, &bad)))
        give_up("ibv_post_send");
}

/* TOGETHER messages, in a list or one by one, then all their completions. */
static void send_round(struct side *side)
{
    int left = TOGETHER;
    uint64_t sent = atomic_load(&shared->sent);

    for (int i = 0; i < TOGETHER; i += opt.chain ? TOGETHER : 1) {
        uint32_t q = (uint32_t)(side->posted++ % opt.qps);

        set_phase(POSTS);
        post(side, q, opt.chain ? TOGETHER : 1);
        set_phase(ELSEWHERE);
    }
    atomic_store(&shared->sent, sent + TOGETHER);
    /* The receiver has all of it before the first poll, so that no poll finds nothing. */
    while (opt.sends && atomic_load(&shared->received) != sent + TOGETHER)
        sched_yield(); /* the other side may need this processor */
    while (left > 0)
        left -= poll_some(side);
}

static void post_receive(struct side *side)
{
    struct ibv_recv_wr wr = {.sg_list = &side->into, .num_sge = 1}, *bad;

    set_phase(POSTS_RECEIVES);
    errno = ibv_post_recv(side->qp[side->posted++ % opt.qps], &wr, &bad);
    set_phase(ELSEWHERE);
    if (errno)
        give_up("ibv_post_recv");
}

static void receive_round(struct side *side)
{
    uint64_t received = atomic_load(&shared->received);
    int left = TOGETHER;

    while (atomic_load(&shared->sent) < received + TOGETHER)
        sched_yield(); /* the other side may need this processor */
    while (left > 0)
        left -= poll_some(side);
    for (int i = 0; i < TOGETHER; i++)
        post_receive(side);
    /* What it owes goes out. */
    atomic_store(&shared->received, received + TOGETHER);
}

/* One message and its completion, so often; of a SEND also the answer, which is there before the first poll. */
static void turns_round(struct side *side)
{
    for (int i = 0; i < TOGETHER; i++) {
        uint64_t sent = atomic_load(&shared->sent);
        int left = opt.sends ? 2 : 1; /* completions: of the request, and of the receive */

        if (opt.sends)
            post_receive(side);
        set_phase(POSTS);
        post(side, 0, 1);
        set_phase(ELSEWHERE);
        atomic_store(&shared->sent, sent + 1);
        while (opt.sends && atomic_load(&shared->received) != sent + 1)
            sched_yield(); /* the other side may need this processor */
        while (left > 0)
            left -= poll_some(side);
    }
}

/* The other side of turns_round(). */
static void answer(struct side *side)
{
    uint64_t received = atomic_load(&shared->received);
    int left = received ? 2 : 1; /* completions: of the receive, and of the answer before */

    while (left > 0 && !atomic_load(&shared->done)) {
        left -= poll_some(side);
        sched_yield(); /* the other side may need this processor */
    }
    post_receive(side);
    post(side, 0, 1);
    atomic_store(&shared->received, received + 1);
}

static void polls_round(struct side *side)
{
    for (int i = 0; i < TOGETHER; i++)
        (void)poll_some(side);
}

static void run_stepped(struct side *side, void (*round)(struct side *side))
{
    is_stepped = true;
    for (uint32_t i = 0; i < WARM + 4 * opt.qps / TOGETHER; i++)
        round(side);
    atomic_store(&shared->ready, 1);
    while (!atomic_load(&shared->go))
        sched_yield(); /* the other side may need this processor */
    for (int i = 0; i < ROUNDS; i++)
        round(side);
    atomic_store(&shared->done, 1);
}

static void make_requests(struct side *side)
{
    side->sge = (struct ibv_sge){(uintptr_t)side->ep.buffer, opt.size, side->ep.mr->lkey};
    side->into = (struct ibv_sge){(uintptr_t)side->ep.buffer + 32768, opt.size, side->ep.mr->lkey};
    for (int i = 0; i < TOGETHER; i++) {
        side->wr[i] = (struct ibv_send_wr){
            .next = opt.chain && i + 1 < TOGETHER ? &side->wr[i + 1] : NULL,
            .sg_list = &side->sge,
            .num_sge = 1,
            .opcode = opt.opcode,
            .send_flags = IBV_SEND_SIGNALED | (opt.is_inline ? IBV_SEND_INLINE : 0),
        };
        aim(&side->wr[i], &side->far[0]);
    }
}

static void run_sender(int fd)
{
    struct side side = {0};

    open_side(&side, fd, false);
    make_requests(&side);
    if (!opt.receiver) {
        run_stepped(&side, opt.polls ? polls_round : opt.turns ? turns_round : send_round);
        _exit(0);
    }
    for (;;)
        send_round(&side);
}

static void run_receiver(int fd)
{
    struct side side = {0};

    open_side(&side, fd, true);
    make_requests(&side);
    for (uint32_t i = 0; opt.sends && i < RECEIVES / 2 * opt.qps; i++)
        post_receive(&side);
    if (opt.receiver) {
        run_stepped(&side, receive_round);
        _exit(0);
    }
    for (;;) {
        uint64_t received = atomic_load(&shared->received);

        if (atomic_load(&shared->done))
            _exit(0);
        if (opt.turns && opt.sends)
            answer(&side);
        else if (opt.sends && atomic_load(&shared->sent) >= received + TOGETHER)
            receive_round(&side);
        else if (!opt.sends)
            (void)poll_some(&side); /* a program that polls; also for what peers ask of it */
        sched_yield();
    }
}

enum { OTHERS_MAX = 16 };
struct others {
    pid_t thread[OTHERS_MAX];
    unsigned count;
};

/* Calls in which the library's threads wait for something to do. */
static bool waits(const struct user_regs_struct *registers)
{
    static const unsigned long long calls[] = {
        SYS_epoll_wait,   SYS_epoll_pwait, SYS_ppoll, SYS_poll, SYS_futex, SYS_read, SYS_recvmsg,
#ifdef SYS_epoll_pwait2
        SYS_epoll_pwait2, /* Linux 5.11 */
#endif
    };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (registers->orig_rax == calls[i])
            return true;
    return false;
}

/* The library's other threads would take packets for the stepped one, which is slow. They are stopped where they wait
 * in the kernel, because elsewhere they may hold a lock. */
static void stop_waiting(pid_t thread)
{
    struct user_regs_struct registers;
    int status;

    if (ptrace(PTRACE_SEIZE, thread, NULL, NULL))
        give_up("PTRACE_SEIZE");
    for (;;) {
        if (ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) || waitpid(thread, &status, __WALL) != thread ||
            ptrace(PTRACE_GETREGS, thread, NULL, &registers))
            give_up("PTRACE_INTERRUPT");
        if (waits(&registers))
            return;
        if (ptrace(PTRACE_CONT, thread, NULL, NULL))
            give_up("PTRACE_CONT");
        usleep(1000);
    }
}

static void stop_others(pid_t stepped, struct others *others)
{
    char path[64];
    const struct dirent *entry;
    DIR *threads;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)stepped);
    threads = opendir(path);
    if (!threads)
        give_up(path);
    while ((entry = readdir(threads))) {
        pid_t thread = (pid_t)atol(entry->d_name);

        if (thread <= 0 || thread == stepped)
            continue;
        if (others->count == OTHERS_MAX)
            give_up("threads");
        stop_waiting(thread);
        others->thread[others->count++] = thread;
    }
    closedir(threads);
}

static void trace(pid_t stepped)
{
    FILE *out = fopen(opt.file, "w");
    struct others others = {.count = 0};
    char line[512];
    FILE *maps;
    int status;

    if (!out)
        give_up(opt.file);
    while (!atomic_load(&shared->ready)) {
        if (waitpid(stepped, &status, WNOHANG) == stepped)
            exit(1);
        usleep(1000);
    }
    snprintf(line, sizeof(line), "/proc/%d/maps", (int)stepped);
    maps = fopen(line, "r");
    if (!maps)
        give_up(line);
    while (fgets(line, sizeof(line), maps))
        if (strstr(line, " r-xp "))
            fputs(line, out);
    fclose(maps);
    fputs("\n", out);
    if (ptrace(PTRACE_SEIZE, stepped, NULL, NULL) || ptrace(PTRACE_INTERRUPT, stepped, NULL, NULL) ||
        waitpid(stepped, &status, __WALL) != stepped)
        give_up("ptrace");
    stop_others(stepped, &others);
    atomic_store(&shared->go, 1);
    while (!atomic_load(&shared->done)) {
        struct step step = {.phase = atomic_load_explicit(&shared->phase, memory_order_relaxed)};

        if (step.phase != ELSEWHERE) {
            if (ptrace(PTRACE_GETREGS, stepped, NULL, &step.registers))
                give_up("PTRACE_GETREGS");
            fwrite(&step, sizeof(step), 1, out);
        }
        if (ptrace(PTRACE_SINGLESTEP, stepped, NULL, NULL) || waitpid(stepped, &status, __WALL) != stepped ||
            !WIFSTOPPED(status))
            give_up("PTRACE_SINGLESTEP");
    }
    fclose(out);
    while (others.count)
        ptrace(PTRACE_DETACH, others.thread[--others.count], NULL, NULL);
    ptrace(PTRACE_DETACH, stepped, NULL, NULL);
}

static pid_t start(void (*run)(int fd), int fd)
{
    pid_t parent = getpid(), child = fork();

    if (child < 0)
        give_up("fork");
    if (child == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
            _exit(1);
        run(fd);
        _exit(0);
    }
    return child;
}

int main(int argc, char **argv)
{
    pid_t sender, receiver;
    int pair[2];

    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "send"))
            opt.opcode = IBV_WR_SEND;
        if (!strcmp(argv[i], "read"))
            opt.opcode = IBV_WR_RDMA_READ;
        if (!strcmp(argv[i], "faa"))
            opt.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        opt.polls |= !strcmp(argv[i], "poll");
        opt.turns |= !strcmp(argv[i], "turns");
        opt.is_inline |= !strcmp(argv[i], "inline");
        opt.chain |= !strcmp(argv[i], "chain");
        opt.extended |= !strcmp(argv[i], "extended");
        opt.receiver |= !strcmp(argv[i], "receiver");
        if (!strncmp(argv[i], "size=", 5))
            opt.size = (uint32_t)atol(argv[i] + 5);
        if (!strncmp(argv[i], "qps=", 4))
            opt.qps = (uint32_t)atol(argv[i] + 4);
    }
    opt.sends = opt.opcode == IBV_WR_SEND;
    if (argc < 3 || !opt.size || opt.size > 16384 || !opt.qps || opt.qps > QPS_MAX ||
        (opt.receiver && (!opt.sends || opt.turns)) ||
        (opt.extended && !opt.sends && opt.opcode != IBV_WR_RDMA_WRITE)) {
        fprintf(stderr,
                "usage: %s FILE send|write|read|faa|poll [inline] [chain] [extended] [receiver] [turns] "
                "[size=BYTES] "
                "[qps=N]\n",
                argv[0]);
        return 2;
    }
    opt.file = argv[1];
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        give_up("shared memory");
    sender = start(run_sender, pair[0]);
    receiver = start(run_receiver, pair[1]);
    trace(opt.receiver ? receiver : sender);
    kill(sender, SIGKILL);
    kill(receiver, SIGKILL);
    waitpid(sender, NULL, 0);
    waitpid(receiver, NULL, 0);
    return 0;
}
