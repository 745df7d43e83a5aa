/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What registering memory costs: the quickest and the median of some rounds of ibv_reg_mr() and
 * ibv_dereg_mr(), and what 1,000 of them leave behind. Of sparse memory one page is populated; 1 if another
 * one is afterwards, or if the arenas, page tables or mappings have grown. With a second processor: what both
 * take together while a peer is connected that accesses none of it. */
#include "common.h"
#include "endpoint.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { ROUNDS = 15, CYCLES = 1000, WARM = 20, QPS_MAX = 100000 };

struct left {
    uint64_t arenas, tables, maps; /* KiB, KiB, number */
};

static uint64_t number_in(const char *path, const char *name)
{
    FILE *file = fopen(path, "re");
    size_t length = strlen(name);
    uint64_t value = 0;
    char line[256];

    if (!file)
        give_up(path);
    while (fgets(line, sizeof(line), file))
        if (!strncmp(line, name, length))
            value = strtoull(line + length, NULL, 10);
    fclose(file);
    return value;
}

/* Of the files that registered memory is moved to, whose descriptors are in the table of a thread. (Shared
 * memory as a whole grows by the entries of the table of keys, which are all used once before one is used
 * again.) */
static uint64_t in_arenas(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task, *entry;
    uint64_t blocks = 0;

    while (tasks && (task = readdir(tasks))) {
        char path[600], name[64];
        DIR *fds;

        snprintf(path, sizeof(path), "/proc/self/task/%s/fd", task->d_name);
        fds = task->d_name[0] != '.' ? opendir(path) : NULL;
        while (fds && (entry = readdir(fds))) {
            struct stat status;
            ssize_t length;

            snprintf(path, sizeof(path), "/proc/self/task/%s/fd/%s", task->d_name, entry->d_name);
            length = readlink(path, name, sizeof(name) - 1);
            name[length < 0 ? 0 : length] = '\0';
            if (strstr(name, "softhca-mapped") && stat(path, &status) == 0)
                blocks += (uint64_t)status.st_blocks;
        }
        if (fds)
            closedir(fds);
    }
    if (tasks)
        closedir(tasks);
    return blocks / 2;
}

static struct left look(void)
{
    struct left left = {.arenas = in_arenas(), .tables = number_in("/proc/self/status", "VmPTE:")};
    FILE *file = fopen("/proc/self/maps", "re");
    int c;

    if (!file)
        give_up("/proc/self/maps");
    while ((c = getc(file)) != EOF)
        left.maps += c == '\n';
    fclose(file);
    return left;
}

static struct ibv_mr *registered(const struct endpoint *ep, void *memory, size_t size)
{
    struct ibv_mr *mr = ibv_reg_mr(ep->pd, memory, size,
                                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                       IBV_ACCESS_REMOTE_ATOMIC);

    if (!mr)
        give_up("ibv_reg_mr");
    return mr;
}

static void deregister(struct ibv_mr *mr)
{
    if ((errno = ibv_dereg_mr(mr)))
        give_up("ibv_dereg_mr");
}

static char *memory_of(size_t size, bool sparse)
{
    char *memory =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED)
        give_up("mmap");
    if (sparse)
        memory[size / 2] = 1;
    else
        memset(memory, 1, size);
    return memory;
}

static uint64_t populated(void)
{
    return number_in("/proc/self/smaps_rollup", "Rss:");
}

static int measure(const struct endpoint *ep, size_t size, bool sparse)
{
    uint64_t in[ROUNDS], out[ROUNDS], in_middle, out_middle, before;
    int rounds = size >= (size_t)1 << 30 ? 3 : ROUNDS;
    char *memory = memory_of(size, sparse);
    int bad;

    deregister(registered(ep, memory, size)); /* the first one starts a thread */
    before = populated();
    for (int i = 0; i < rounds; i++) {
        uint64_t began = now_ns();
        struct ibv_mr *mr = registered(ep, memory, size);

        in[i] = now_ns() - began;
        began = now_ns();
        deregister(mr);
        out[i] = now_ns() - began;
    }
    in_middle = median(in, (size_t)rounds);
    out_middle = median(out, (size_t)rounds);
    bad = sparse && populated() > before + 1024;
    printf(
        "size %zu sparse %d reg_us %.1f reg_median_us %.1f reg_gbps %.2f dereg_us %.1f dereg_median_us %.1f "
        "dereg_gbps %.2f populated_kib %lld\n",
        size, sparse, (double)in[0] / 1e3, (double)in_middle / 1e3, (double)size / (double)in[0],
        (double)out[0] / 1e3, (double)out_middle / 1e3, (double)size / (double)out[0],
        (long long)(populated() - before));
    munmap(memory, size);
    return bad;
}

/* Regions of different sizes at different places of one mapping, with neighbours that stay. */
static void cycle(const struct endpoint *ep, char *memory, unsigned number)
{
    enum { PAGE = 4096 };
    size_t pages = 1 + number % 64;

    deregister(registered(ep, memory + (size_t)(number % 100) * PAGE, pages * PAGE));
}

/* The key table goes round, with 64 bytes for each registration in each of two mappings: after 32,768 it
 * comes to 2 MiB that it has not been in before, which takes each a page table. */
enum { KEY_TABLES_KIB = 8 };

static int cycles(const struct endpoint *ep)
{
    size_t size = (size_t)1 << 20;
    char *memory = memory_of(size, false);
    struct left before, after;

    for (unsigned i = 0; i < WARM; i++)
        cycle(ep, memory, 5 * i);
    before = look();
    for (unsigned i = 0; i < CYCLES; i++)
        cycle(ep, memory, i);
    after = look();
    printf("cycles %d arenas_kib %llu %llu page_tables_kib %llu %llu mappings %llu %llu\n", CYCLES,
           (unsigned long long)before.arenas, (unsigned long long)after.arenas,
           (unsigned long long)before.tables, (unsigned long long)after.tables,
           (unsigned long long)before.maps, (unsigned long long)after.maps);
    munmap(memory, size);
    return after.arenas > before.arenas || after.tables > before.tables + KEY_TABLES_KIB ||
           after.maps > before.maps;
}

/* --- with a peer ----------------------------------------------------------------------------------------- */

struct peers {
    struct endpoint ep;
    struct ibv_cq *cq;
    struct ibv_qp **qps;
    struct contact *far;
    unsigned count;
};

/* All contacts at once. One side speaks first, for they are more than the socket holds. */
static void connect_peers(struct peers *p, unsigned count, int fd, bool first)
{
    struct contact *near = calloc(count, sizeof(*near));
    size_t size = count * sizeof(*near);

    p->count = count;
    p->qps = calloc(count, sizeof(struct ibv_qp *));
    p->far = calloc(count, sizeof(*p->far));
    if (!near || !p->qps || !p->far)
        give_up("calloc");
    endpoint_open(&p->ep, NULL, 0, 4096);
    p->cq = ibv_create_cq(p->ep.context, 16, NULL, NULL, 0);
    if (!p->cq)
        give_up("ibv_create_cq");
    for (unsigned i = 0; i < count; i++) {
        p->qps[i] = endpoint_qp(&p->ep, p->cq, p->cq, (struct qp_shape){.send_wr = 1, .recv_wr = 1});
        near[i] = endpoint_contact(&p->ep, p->qps[i]);
    }
    if (first)
        tell(fd, near, size);
    hear(fd, p->far, size);
    if (!first)
        tell(fd, near, size);
    for (unsigned i = 0; i < count; i++)
        endpoint_connect(&p->ep, p->qps[i], &p->far[i]);
    free(near);
}

static void disconnect_peers(struct peers *p)
{
    for (unsigned i = 0; i < p->count; i++)
        if ((errno = ibv_destroy_qp(p->qps[i])))
            give_up("ibv_destroy_qp");
    if ((errno = ibv_destroy_cq(p->cq)))
        give_up("ibv_destroy_cq");
    endpoint_close(&p->ep);
    free(p->qps);
    free(p->far);
}

static void be_peer(int fd, int cpu, unsigned count)
{
    struct peers peers;
    char byte;

    pin(cpu);
    connect_peers(&peers, count, fd, false);
    tell(fd, "r", 1);
    hear(fd, &byte, 1);
    disconnect_peers(&peers);
    exit(0);
}

/* So that the processes have met before the clock runs. */
static void write_once(const struct peers *p)
{
    struct ibv_sge sge = {.addr = (uintptr_t)p->ep.buffer, .length = 8, .lkey = p->ep.mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {.remote_addr = p->far[0].address, .rkey = p->far[0].rkey}},
                       *bad;
    struct ibv_wc wc;
    int polled;

    if ((errno = ibv_post_send(p->qps[0], &wr, &bad)))
        give_up("ibv_post_send");
    while ((polled = ibv_poll_cq(p->cq, 1, &wc)) == 0)
        ;
    if (polled < 0 || wc.status != IBV_WC_SUCCESS)
        give_up("WRITE");
}

static struct spinner {
    pthread_t thread;
    int cpu;
    _Atomic bool runs, ends;
} spinner;

static void *spin(void *unused)
{
    pin(spinner.cpu);
    atomic_store(&spinner.runs, true);
    while (!atomic_load_explicit(&spinner.ends, memory_order_relaxed))
        relax();
    return unused;
}

static void start_spinner(int cpu)
{
    spinner.cpu = cpu;
    atomic_store(&spinner.runs, false);
    atomic_store(&spinner.ends, false);
    if ((errno = pthread_create(&spinner.thread, NULL, spin, NULL)))
        give_up("pthread_create");
    while (!atomic_load(&spinner.runs))
        sched_yield();
}

static void end_spinner(void)
{
    atomic_store(&spinner.ends, true);
    pthread_join(spinner.thread, NULL);
}

/* For a tenth of a second; the first time, which may start threads, counts only where it takes that long. */
static void measure_together(const struct peers *p, void *memory, size_t size, bool spins)
{
    enum { MOST = 2000, NS = 100000000 };
    static uint64_t took[MOST];
    uint64_t until = now_ns() + NS, ended, middle;
    size_t count = 0;
    bool first = true;

    do {
        uint64_t began = now_ns();

        deregister(registered(&p->ep, memory, size));
        ended = now_ns();
        took[count] = ended - began;
        count += !first || ended >= until;
        first = false;
    } while (ended < until && count < MOST);
    middle = median(took, count);
    printf("size %zu qps %u spins %d us %.2f least_us %.2f\n", size, p->count, spins, (double)middle / 1e3,
           (double)took[0] / 1e3);
}

static int with_peer(const int *cpu, unsigned count)
{
    static const size_t sizes[] = {4096, (size_t)1 << 20, (size_t)1 << 30};
    struct peers peers;
    int fd, status;
    pid_t child;
    char ready;

    child = fork_peer(&fd);
    if (child == 0)
        be_peer(fd, cpu[1], count);
    pin(cpu[0]);
    connect_peers(&peers, count, fd, true);
    hear(fd, &ready, 1);
    write_once(&peers);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char *memory = memory_of(sizes[i], false);

        measure_together(&peers, memory, sizes[i], false);
        start_spinner(cpu[1]);
        measure_together(&peers, memory, sizes[i], true);
        end_spinner();
        munmap(memory, sizes[i]);
    }
    tell(fd, "e", 1);
    disconnect_peers(&peers);
    return waitpid(child, &status, 0) != child || status;
}

static int alone(int cpu)
{
    struct endpoint ep;
    int bad;

    pin(cpu);
    endpoint_open(&ep, NULL, 0, 4096);
    bad = cycles(&ep);
    bad |= measure(&ep, 4096, false);
    bad |= measure(&ep, (size_t)1 << 20, false);
    bad |= measure(&ep, (size_t)1 << 30, false);
    bad |= measure(&ep, (size_t)100 << 30, true);
    endpoint_close(&ep);
    return bad;
}

int main(int argc, char **argv)
{
    int qps = argc == 4 ? atoi(argv[3]) : 0;

    if (argc == 2)
        return alone(atoi(argv[1]));
    if (argc == 4 && qps > 0 && qps <= QPS_MAX)
        return with_peer((int[]){atoi(argv[1]), atoi(argv[2])}, (unsigned)qps);
    fprintf(stderr,
            "usage: %s CPU | CPU CPU QPS\n"
            "with a second processor: a peer on it, connected to so many QPs; and where something spins, it "
            "is a thread on that processor\n",
            argv[0]);
    return 2;
}
