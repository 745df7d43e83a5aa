/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Bare process_vm_writev() and process_vm_readv() between two processes: what the kernel takes to copy between
 * programs that do not share memory. The target spins on a word of its memory. */
#include "sides.h"

#include <errno.h>
#include <sys/uio.h>
#include <sys/wait.h>

static const double warm_seconds = 0.05, seconds = 0.25;

static struct side {
    struct memory memory; /* at the same address in both processes */
    pid_t peer;
    bool reads;
    size_t size;
} side;

static _Noreturn void die(const char *what)
{
    perror(what);
    exit(1);
}

static void copy(const struct side *s, bool reads, size_t near, size_t far, size_t size)
{
    struct iovec local = {.iov_base = s->memory.start + near, .iov_len = size};
    struct iovec remote = {.iov_base = s->memory.start + far, .iov_len = size};
    ssize_t copied = reads ? process_vm_readv(s->peer, &local, 1, &remote, 1, 0)
                           : process_vm_writev(s->peer, &local, 1, &remote, 1, 0);

    if (copied != (ssize_t)size)
        die(reads ? "process_vm_readv" : "process_vm_writev");
}

static void write_word(const struct side *s, uint64_t value)
{
    atomic_store_explicit(word(&s->memory, OUT), value, memory_order_relaxed);
    copy(s, false, OUT, IN, sizeof(value));
}

/* Returns what came: the turn, or OVER. */
static uint64_t spin(const struct side *s, uint64_t turn)
{
    uint64_t value;

    while ((value = atomic_load_explicit(word(&s->memory, IN), memory_order_acquire)) < turn)
        relax();
    return value;
}

/* --- target -------------------------------------------------------------------------------------------- */

static int be_target(const struct side *s, int fd)
{
    bool ping_pong = s->size == sizeof(uint64_t) && !s->reads, good = true;
    unsigned buffers = buffers_of(s->size);

    atomic_store(word(&s->memory, OUT), pattern(0, 0));
    for (unsigned i = 0; i < buffers; i++)
        memset(s->memory.start + BUFFERS + i * s->size, 0, s->size);
    for (unsigned i = 0; i < buffers && s->reads; i++)
        fill_buffer(s->memory.start + BUFFERS + i * s->size, s->size, i);
    if (send(fd, "r", 1, MSG_NOSIGNAL) != 1)
        die("send");
    for (uint64_t turn = 1; spin(s, ping_pong ? turn : OVER) != OVER; turn++)
        write_word(s, turn);
    for (unsigned i = 0; i < buffers && s->size > sizeof(uint64_t); i++)
        good &= is_filled(s->memory.start + BUFFERS + i * s->size, s->size, i);
    return good ? 0 : 1;
}

/* --- initiator ----------------------------------------------------------------------------------------- */

static void exchange(void *arg, uint64_t turn)
{
    const struct side *s = arg;

    if (s->reads) {
        copy(s, true, IN, OUT, sizeof(turn));
        return;
    }
    write_word(s, turn);
    spin(s, turn);
}

static double per_second(const struct side *s, double duration)
{
    uint64_t began = now_ns(), until = began + (uint64_t)(duration * 1e9), now = began, done = 0;

    while (now < until || done < buffers_of(s->size)) {
        size_t at = BUFFERS + done % buffers_of(s->size) * s->size;

        copy(s, s->reads, at, at, s->size);
        done++;
        now = now_ns();
    }
    return (double)done / ((double)(now - began) / 1e9);
}

static void measure(struct side *s, char *text, size_t room)
{
    unsigned buffers = buffers_of(s->size);
    uint64_t turn = 0;
    bool good = true;

    for (unsigned i = 0; i < buffers; i++)
        fill_buffer(s->memory.start + BUFFERS + i * s->size, s->size, s->reads ? buffers : i);
    if (s->size == sizeof(uint64_t)) {
        double parts = s->reads ? 1 : 2;
        struct typical typical;

        typical_us(exchange, s, warm_seconds, 0, &turn);
        typical = typical_us(exchange, s, seconds, 0, &turn);
        good = atomic_load(word(&s->memory, IN)) == (s->reads ? pattern(0, 0) : turn);
        snprintf(text, room, "latency_us %.4f mean_us %.4f", typical.us / parts, typical.mean_us / parts);
    } else {
        per_second(s, warm_seconds);
        snprintf(text, room, "gbps %.4f", per_second(s, seconds) * (double)s->size / 1e9);
        for (unsigned i = 0; i < buffers; i++)
            good &= is_filled(s->memory.start + BUFFERS + i * s->size, s->size, i);
    }
    if (!good) {
        fprintf(stderr, "process_vm: bytes differ\n");
        exit(1);
    }
    end_with_child(false);
    write_word(s, OVER);
}

/* Where Yama is, who is not an ancestor has to be allowed; elsewhere the option is not known. */
static void allow(pid_t peer)
{
    if (prctl(PR_SET_PTRACER, (unsigned long)peer, 0, 0, 0) && errno != EINVAL)
        die("PR_SET_PTRACER");
}

static void run(const int *cpu)
{
    pid_t parent = getpid(), child;
    char text[128], ready;
    int fd, status;

    if (!memory_allocate(&side.memory, BUFFERS + buffers_of(side.size) * side.size, LINE))
        die("malloc");
    end_with_child(true);
    child = fork_peer(&fd);
    if (child == 0) {
        pin(cpu[1]);
        allow(parent);
        side.peer = parent;
        _exit(be_target(&side, fd));
    }
    pin(cpu[0]);
    allow(child);
    side.peer = child;
    if (recv(fd, &ready, 1, 0) != 1)
        die("the other process is gone");
    measure(&side, text, sizeof(text));
    if (waitpid(child, &status, 0) != child || status) {
        fprintf(stderr, "process_vm: the target found other bytes\n");
        exit(1);
    }
    printf("size %zu %s\n", side.size, text);
    fflush(stdout);
    close(fd);
    free(side.memory.block);
}

int main(int argc, char **argv)
{
    int cpu[2];

    if (argc < 5 || (strcmp(argv[3], "write") && strcmp(argv[3], "read"))) {
        fprintf(stderr,
                "usage: %s CPU CPU write|read SIZE...\n"
                "8 bytes: latency, one way (read: of a call); larger multiples of 8: bandwidth\n",
                argv[0]);
        return 2;
    }
    cpu[0] = atoi(argv[1]);
    cpu[1] = atoi(argv[2]);
    side.reads = !strcmp(argv[3], "read");
    for (int i = 4; i < argc; i++) {
        side.size = strtoull(argv[i], NULL, 0);
        if (side.size == 0 || side.size % sizeof(uint64_t) || side.size > (size_t)1 << 30)
            return 2;
        run(cpu);
    }
    return 0;
}
