/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What programs see whose threads sit in system calls, and whose memory is malloc()'s: latency and bandwidth
 * with a target that spins on its memory, or polls its CQ. After the figure it waits for the end of its input,
 * so that others can look at the processes. process_vm measures the same without verbs. */
#include "endpoint.h"
#include "filter.h"
#include "sides.h"

#include <errno.h>
#include <getopt.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

/* NOTE: the size of the SEND that says that an I/O's data is there. */
enum { SITTERS_MAX = 64, NOTE = 16, BATCH = 16, SMALL_DEPTH = 64, PAGE = 4096, SPINS = 1 << 16 };

static const double warm_seconds = 0.05, seconds = 0.25;

enum op { OP_WRITE, OP_READ, OP_FAA, OP_CAS, OP_SEND, OP_IO };

static const char *const op_names[] = {"write", "read", "faa", "cas", "send", "io"};

static struct {
    int cpu[2];
    enum op op;
    size_t size;
    bool latency;
    bool polls;        /* the target, all the time */
    bool sleeps;       /* the target, in a system call */
    uint64_t pause_ns; /* before each exchange of a latency */
    unsigned sitters;
    unsigned depth;      /* messages under way at once */
    unsigned buffers;    /* twice as many where receives need them */
    const char *meeting; /* NULL: the program starts its target itself; else the name of their socket */
    bool is_target;      /* with a meeting */
    bool pages;          /* memory of whole pages */
    const char *refused; /* system calls that both sides have refused to them once they are connected */
} opt = {.sitters = 4};

struct side {
    int fd; /* to the other side */
    struct endpoint ep;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct contact far;
    struct memory memory;
    struct ibv_mr *mr; /* of memory */
    unsigned flying;   /* own requests that are not known to be complete */
    uint64_t sent, received;
};

/* --- threads that sit in system calls -------------------------------------------------------------------- */

static struct sitter {
    pthread_t thread;
    _Atomic pid_t id;
} sitters[SITTERS_MAX];

static int sitters_pipe[2];
static _Atomic uint32_t sitters_word;

static void *sit(void *arg)
{
    struct sitter *sitter = arg;
    char end;

    atomic_store(&sitter->id, gettid());
    if ((sitter - sitters) % 2 == 0) {
        if (read(sitters_pipe[0], &end, 1) < 0)
            give_up("read");
    } else {
        while (atomic_load(&sitters_word) == 0)
            syscall(SYS_futex, &sitters_word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    }
    return NULL;
}

static bool sleeps(const struct sitter *sitter)
{
    char path[64], line[256] = "", *name_end;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)atomic_load(&sitter->id));
    file = fopen(path, "re");
    if (!file)
        return false; /* it has not said its number yet */
    name_end = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return name_end && name_end[1] && name_end[2] == 'S';
}

static void start_sitters(void)
{
    if (pipe(sitters_pipe))
        give_up("pipe");
    for (unsigned i = 0; i < opt.sitters; i++)
        if ((errno = pthread_create(&sitters[i].thread, NULL, sit, &sitters[i])))
            give_up("pthread_create");
    for (unsigned i = 0; i < opt.sitters; i++)
        while (!sleeps(&sitters[i]))
            sched_yield();
}

static void end_sitters(void)
{
    atomic_store(&sitters_word, 1);
    syscall(SYS_futex, &sitters_word, FUTEX_WAKE_PRIVATE, SITTERS_MAX, NULL, NULL, 0);
    close(sitters_pipe[1]);
    for (unsigned i = 0; i < opt.sitters; i++)
        pthread_join(sitters[i].thread, NULL);
    close(sitters_pipe[0]);
}

/* --- both sides ------------------------------------------------------------------------------------------ */

static bool takes_receives(void)
{
    return opt.op == OP_SEND || opt.op == OP_IO;
}

static size_t buffer_at(uint64_t number)
{
    return BUFFERS + number % opt.buffers * opt.size;
}

static size_t note_at(uint64_t number)
{
    return BUFFERS + opt.buffers * opt.size + number % opt.buffers * NOTE;
}

/* Where receives take messages, and how long those are. */
static size_t receive_at(uint64_t number)
{
    return opt.op == OP_IO ? note_at(number) : buffer_at(number);
}

static uint32_t receive_size(void)
{
    return opt.op == OP_IO ? NOTE : (uint32_t)opt.size;
}

static void post_receive(struct side *side, uint64_t number)
{
    struct ibv_sge sge = {.addr = (uintptr_t)side->memory.start + receive_at(number),
                          .length = receive_size(),
                          .lkey = side->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = number, .sg_list = &sge, .num_sge = 1}, *bad;

    if ((errno = ibv_post_recv(side->qp, &wr, &bad)))
        give_up("ibv_post_recv");
}

static void open_side(struct side *side, int fd)
{
    uint32_t receives = takes_receives() ? opt.buffers : 1;
    struct contact near;

    side->fd = fd;
    start_sitters();
    endpoint_open(&side->ep, NULL, 0, 1);
    if (!memory_allocate(&side->memory, BUFFERS + opt.buffers * (opt.size + NOTE), opt.pages ? PAGE : LINE))
        give_up("malloc");
    memset(side->memory.start, 0, side->memory.length);
    side->mr = ibv_reg_mr(side->ep.pd, side->memory.start, side->memory.length,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                              IBV_ACCESS_REMOTE_ATOMIC);
    if (!side->mr)
        give_up("ibv_reg_mr");
    side->cq = ibv_create_cq(side->ep.context, (int)(2 * opt.depth + receives + 1), NULL, NULL, 0);
    if (!side->cq)
        give_up("ibv_create_cq");
    side->qp = endpoint_qp(&side->ep, side->cq, side->cq,
                           (struct qp_shape){.send_wr = 2 * opt.depth, .recv_wr = receives});
    near = endpoint_contact(&side->ep, side->qp);
    near.address = (uintptr_t)side->memory.start;
    near.rkey = side->mr->rkey;
    tell(fd, &near, sizeof(near));
    hear(fd, &side->far, sizeof(side->far));
    endpoint_connect(&side->ep, side->qp, &side->far);
    for (uint64_t i = 0; i < receives && takes_receives(); i++)
        post_receive(side, i);
}

static void close_side(struct side *side)
{
    if ((errno = ibv_destroy_qp(side->qp)) || (errno = ibv_destroy_cq(side->cq)))
        give_up("ibv_destroy_qp");
    if ((errno = ibv_dereg_mr(side->mr)))
        give_up("ibv_dereg_mr");
    free(side->memory.block);
    endpoint_close(&side->ep);
    end_sitters();
}

static _Noreturn void differs(const char *what)
{
    fprintf(stderr, "verbs_threads: %s: not the bytes that were sent\n", what);
    exit(1);
}

/* Of a latency's receive: the number of its turn. */
static void took_receive(struct side *side, uint64_t number)
{
    uint64_t turn;

    side->received++;
    memcpy(&turn, side->memory.start + receive_at(number), sizeof(turn));
    if (opt.latency && turn != side->received)
        differs("SEND");
    post_receive(side, number);
}

/* Returns how many of the own requests are complete. */
static unsigned take_completions(struct side *side)
{
    struct ibv_wc wc[BATCH];
    int count = ibv_poll_cq(side->cq, BATCH, wc);
    unsigned own = 0;

    if (count < 0)
        give_up("ibv_poll_cq");
    for (int i = 0; i < count; i++) {
        if (wc[i].status != IBV_WC_SUCCESS) {
            fprintf(stderr, "%s: %s\n", op_names[opt.op], ibv_wc_status_str(wc[i].status));
            exit(1);
        }
        if (wc[i].opcode & IBV_WC_RECV)
            took_receive(side, wc[i].wr_id);
        else
            own++;
    }
    side->flying -= own;
    return own;
}

static void take_all(struct side *side)
{
    while (side->flying)
        take_completions(side);
}

/* One request, and behind it, of an I/O, its note. Bytes have the same place at both sides, words do not. */
static void post(struct side *side, enum ibv_wr_opcode opcode, size_t near, size_t far, size_t size,
                 const uint64_t *note)
{
    struct ibv_sge sge = {
        .addr = (uintptr_t)side->memory.start + near, .length = (uint32_t)size, .lkey = side->mr->lkey};
    struct ibv_sge note_sge = {.length = NOTE, .lkey = side->mr->lkey};
    struct ibv_send_wr second = {
        .sg_list = &note_sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr first = {.sg_list = &sge,
                                .num_sge = 1,
                                .opcode = opcode,
                                .send_flags = note ? 0 : IBV_SEND_SIGNALED,
                                .next = note ? &second : NULL},
                       *bad;

    if (note)
        note_sge.addr = (uintptr_t)side->memory.start + note_at(*note);
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        first.wr.atomic.remote_addr = side->far.address + far;
        first.wr.atomic.rkey = side->far.rkey;
        first.wr.atomic.compare_add = 1;
    } else {
        first.wr.rdma.remote_addr = side->far.address + far;
        first.wr.rdma.rkey = side->far.rkey;
    }
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        first.wr.atomic.compare_add = atomic_load(word(&side->memory, IN));
        first.wr.atomic.swap = first.wr.atomic.compare_add + 1;
    }
    if ((errno = ibv_post_send(side->qp, &first, &bad)))
        give_up("ibv_post_send");
    side->flying++;
}

static void send_word(struct side *side, enum ibv_wr_opcode opcode, uint64_t value)
{
    take_all(side); /* of the last turn: its word is about to change */
    atomic_store_explicit(word(&side->memory, OUT), value, memory_order_relaxed);
    post(side, opcode, OUT, IN, sizeof(value), NULL);
}

/* Of a program that did not start the other side, nobody tells it. */
static void end_with(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};

    if (opt.meeting && poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR))) {
        fputs("verbs_threads: the other side has ended early\n", stderr);
        exit(1);
    }
}

/* Until the word of this turn is there, or a message. False: the run is over. */
static bool wait_for(struct side *side, uint64_t turn, bool polls)
{
    const _Atomic uint64_t *in = word(&side->memory, IN);

    for (unsigned spins = 1;; spins++) {
        uint64_t value = atomic_load_explicit(in, memory_order_acquire);

        if (value == OVER)
            return false;
        if (opt.op == OP_SEND ? side->received >= turn : value >= turn)
            return true;
        if (polls)
            take_completions(side);
        else
            relax();
        if (spins % SPINS == 0)
            end_with(side->fd);
    }
}

static bool ping_pong(void)
{
    return opt.latency && (opt.op == OP_WRITE || opt.op == OP_SEND);
}

static enum ibv_wr_opcode opcode(void)
{
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_RDMA_WRITE,         IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_SEND,      IBV_WR_RDMA_WRITE,
    };

    return opcodes[opt.op];
}

/* --- target ---------------------------------------------------------------------------------------------- */

static void fill(const struct side *side)
{
    for (unsigned i = 0; i < opt.buffers; i++) {
        fill_buffer(side->memory.start + buffer_at(i), opt.size, i % opt.depth);
        fill_buffer(side->memory.start + note_at(i), NOTE, i % opt.depth);
    }
}

static void look_at_bytes(const struct side *side, unsigned buffers)
{
    for (unsigned i = 0; i < buffers; i++)
        if (!is_filled(side->memory.start + buffer_at(i), opt.size, i % opt.depth))
            differs(op_names[opt.op]);
    for (unsigned i = 0; i < opt.buffers && opt.op == OP_IO; i++)
        if (!is_filled(side->memory.start + note_at(i), NOTE, i % opt.depth))
            differs("note");
}

/* At its end the target says this. */
struct report {
    uint64_t value;    /* of the word that the initiator reads; of atomics: how many there were */
    double busy_share; /* processor time of all its threads to the time of the run */
};

static uint64_t processor_time(void)
{
    struct timespec time;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static _Noreturn void be_target(int fd)
{
    struct side side = {0};
    struct report report;
    uint64_t began, began_busy;
    char end;

    pin(opt.cpu[1]);
    open_side(&side, fd);
    if (opt.op == OP_READ)
        fill(&side);
    atomic_store(word(&side.memory, OUT), opt.op == OP_READ ? pattern(0, 0) : 0);
    if (opt.refused)
        filter_install(opt.refused);
    began = now_ns();
    began_busy = processor_time();
    tell(fd, "r", 1);
    if (opt.sleeps)
        hear(fd, &end, 1);
    for (uint64_t turn = 1; wait_for(&side, ping_pong() ? turn : OVER, opt.polls); turn++)
        send_word(&side, opcode(), turn);
    if (!opt.latency && opt.op != OP_READ)
        look_at_bytes(&side, opt.op == OP_SEND ? opt.buffers : opt.depth);
    take_all(&side);
    report =
        (struct report){.value = atomic_load(word(&side.memory, OUT)),
                        .busy_share = (double)(processor_time() - began_busy) / (double)(now_ns() - began)};
    tell(fd, &report, sizeof(report));
    hear(fd, &end, 1);
    close_side(&side);
    exit(0);
}

/* --- initiator ------------------------------------------------------------------------------------------- */

static void exchange(void *arg, uint64_t turn)
{
    struct side *side = arg;

    if (ping_pong()) {
        send_word(side, opcode(), turn);
        wait_for(side, turn, opt.polls);
        return;
    }
    post(side, opcode(), IN, OUT, sizeof(turn), NULL);
    take_all(side);
    /* The next one compares with what this one has left there. */
    if (opt.op == OP_CAS)
        atomic_fetch_add_explicit(word(&side->memory, IN), 1, memory_order_relaxed);
}

static struct typical latency(struct side *side, uint64_t *turn)
{
    struct typical typical;

    typical_us(exchange, side, warm_seconds, opt.pause_ns, turn);
    if (opt.refused)
        filter_install(opt.refused);
    typical = typical_us(exchange, side, seconds, opt.pause_ns, turn);
    take_all(side);
    if (opt.op == OP_READ && atomic_load(word(&side->memory, IN)) != pattern(0, 0))
        differs("READ");
    return ping_pong() ? (struct typical){typical.us / 2, typical.mean_us / 2} : typical;
}

static double rate(struct side *side, double duration)
{
    uint64_t began = now_ns(), until = began + (uint64_t)(duration * 1e9), now = began, done = 0;

    while (now < until || side->sent < opt.buffers || side->flying) {
        bool more = now < until || side->sent < opt.buffers;

        while (more && side->flying < opt.depth) {
            /* Receives are filled in turn, so what they take comes from the buffer with their number. */
            uint64_t number = side->sent++ % opt.depth;

            post(side, opcode(), buffer_at(number), buffer_at(number), opt.size,
                 opt.op == OP_IO ? &number : NULL);
        }
        done += take_completions(side);
        now = now_ns();
    }
    return (double)done / ((double)(now - began) / 1e9);
}

static void be_initiator(int fd)
{
    struct side side = {0};
    struct report report;
    uint64_t turn = 0;
    struct typical typical = {0};
    double per_second = 0;
    char byte;

    pin(opt.cpu[0]);
    open_side(&side, fd);
    hear(fd, &byte, 1);
    if (!opt.latency && opt.op != OP_READ)
        fill(&side);
    if (opt.latency) {
        typical = latency(&side, &turn);
    } else {
        rate(&side, warm_seconds);
        if (opt.refused)
            filter_install(opt.refused);
        per_second = rate(&side, seconds);
        if (opt.op == OP_READ)
            look_at_bytes(&side, opt.depth);
    }
    send_word(&side, IBV_WR_RDMA_WRITE, OVER);
    take_all(&side);
    if (opt.sleeps)
        tell(fd, "o", 1);
    hear(fd, &report, sizeof(report));
    if ((opt.op == OP_FAA || opt.op == OP_CAS) && report.value != turn)
        differs("atomics");
    if (opt.latency)
        printf("us %.4f mean_us %.4f target_busy %.4f\n", typical.us, typical.mean_us, report.busy_share);
    else
        printf("msgs %.1f\n", per_second);
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    end_with_child(false);
    tell(fd, "e", 1);
    close_side(&side);
}

static const char usage[] =
    "usage: verbs_threads [-p] [-t THREADS] [-g US] [-r CALL,...] [-i NAME | -w NAME] CPU CPU OP SIZE "
    "latency|rate spin|poll|sleep\n"
    "  CPU        of initiator and target; behind --, -1: any\n"
    "  OP         write, read, faa, cas, send, or io: a WRITE and a SEND of 16 bytes\n"
    "  latency    of 8 bytes, one way; read, faa, cas: the round trip. faa, cas: nothing else\n"
    "  spin|poll  what the target does: spin on its memory, or poll its CQ all along (send, io)\n"
    "  sleep      it sits in a system call: latency of read, faa, cas\n"
    "  -g         microseconds of pause before each exchange of a latency\n"
    "  -t         threads that sit in system calls meanwhile, in each process (4)\n"
    "  -p         memory of whole pages, not as malloc() has it\n"
    "  -r         once connected, both sides install a seccomp filter that refuses these system calls\n"
    "  -w, -i     only the target, which waits for the initiator until its input ends, or only the\n"
    "             initiator; NAME: of an abstract socket\n";

static bool parse(int argc, char **argv)
{
    int c;

    while ((c = getopt(argc, argv, "+pt:g:r:i:w:")) != -1) {
        switch (c) {
        case 't':
            if (atoi(optarg) < 0 || atoi(optarg) > SITTERS_MAX)
                return false;
            opt.sitters = (unsigned)atoi(optarg);
            break;
        case 'p':
            opt.pages = true;
            break;
        case 'g':
            opt.pause_ns = strtoul(optarg, NULL, 0) * 1000;
            break;
        case 'r':
            opt.refused = optarg;
            break;
        case 'i':
        case 'w':
            opt.meeting = optarg;
            opt.is_target = c == 'w';
            break;
        default:
            return false;
        }
    }
    argv += optind;
    if (argc - optind != 6)
        return false;
    opt.cpu[0] = atoi(argv[0]);
    opt.cpu[1] = atoi(argv[1]);
    for (opt.op = OP_WRITE; strcmp(argv[2], op_names[opt.op]);)
        if (++opt.op > OP_IO)
            return false;
    opt.size = strtoul(argv[3], NULL, 0);
    opt.latency = !strcmp(argv[4], "latency");
    opt.polls = !strcmp(argv[5], "poll");
    opt.sleeps = !strcmp(argv[5], "sleep");
    opt.depth = opt.size < 4096 ? SMALL_DEPTH : buffers_of(opt.size);
    opt.buffers = takes_receives() ? 2 * opt.depth : opt.depth;
    return opt.size >= 8 && opt.size % 8 == 0 && opt.size <= (size_t)1 << 26 &&
           (opt.latency ? opt.size == 8 && opt.op != OP_IO : !strcmp(argv[4], "rate")) &&
           (opt.polls || opt.sleeps || !strcmp(argv[5], "spin")) && (opt.polls || !takes_receives()) &&
           (!opt.sleeps || (opt.latency && opt.op != OP_WRITE)) && (opt.latency || !opt.pause_ns) &&
           (opt.latency || (opt.op != OP_FAA && opt.op != OP_CAS));
}

static int run_both(void)
{
    pid_t target;
    int fd, status;

    end_with_child(true);
    target = fork_peer(&fd);
    if (target == 0) {
        end_with_child(false);
        be_target(fd);
    }
    be_initiator(fd);
    return waitpid(target, &status, 0) != target || status;
}

/* Whoever started this side may have ended since, and starts no other one then: the input ends. */
static void wait_for_initiator(int listener)
{
    struct pollfd p[] = {{.fd = listener, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    char byte;

    do {
        if (poll(p, 2, -1) < 0)
            give_up("poll");
        if (p[1].revents && read(STDIN_FILENO, &byte, 1) <= 0)
            exit(1);
    } while (!p[0].revents);
}

/* The two sides may be different users', and in different containers of one network namespace: whoever starts them
 * starts the initiator when the target has said that it listens. */
static int run_one(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "verbs_threads/%s", opt.meeting);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), other;

    if (size > sizeof(name))
        return 2;
    if (fd < 0)
        give_up("socket");
    if (!opt.is_target) {
        if (connect(fd, (struct sockaddr *)&name, size))
            give_up("connect");
        be_initiator(fd);
        return 0;
    }
    if (bind(fd, (struct sockaddr *)&name, size) || listen(fd, 1))
        give_up("bind");
    puts("listens");
    fflush(stdout);
    wait_for_initiator(fd);
    other = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    if (other < 0)
        give_up("accept4");
    close(fd);
    be_target(other);
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        fputs(usage, stderr);
        return 2;
    }
    return opt.meeting ? run_one() : run_both();
}
