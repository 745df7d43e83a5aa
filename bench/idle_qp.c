/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What idle QPs cost two processes: processor time while nothing happens, and memory per connected QP. Exits
 * 1 if an idle process used a tick of processor time or a QP with queues of one entry takes more than 4 KiB.
 */
#include "common.h"
#include "endpoint.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_BYTES = 4096, DEEP = 256, WARM = 64, MAX_QPS = 20000 };

struct cost {
    uint64_t ticks;    /* utime + stime, as ps shows them */
    uint64_t ns;       /* the scheduler's own count, of all threads */
    uint64_t switches; /* a thread that wakes up to look around shows here before it shows in ticks */
};

static uint64_t field(const char *path, const char *name)
{
    FILE *f = fopen(path, "re");
    char line[512];
    uint64_t value = 0;
    size_t length = strlen(name);

    while (f && fgets(line, sizeof(line), f))
        if (!strncmp(line, name, length))
            value += strtoull(line + length, NULL, 10);
    if (f)
        fclose(f);
    return value;
}

static struct cost cost_of(pid_t pid)
{
    struct cost c = {0};
    struct dirent *entry;
    char path[300], line[1024], *p;
    FILE *f;
    DIR *d;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    if (!f || !fgets(line, sizeof(line), f) || !(p = strrchr(line, ')')))
        give_up(path);
    fclose(f);
    /* Fields 14 and 15 of proc(5); the first behind the command's name is number 3. */
    p++;
    for (int i = 3; i < 14; i++)
        p = strchr(p + 1, ' ');
    c.ticks = strtoull(p, &p, 10);
    c.ticks += strtoull(p, &p, 10);

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    d = opendir(path);
    if (!d)
        give_up(path);
    while ((entry = readdir(d))) {
        unsigned long long ran;

        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", (int)pid, entry->d_name);
        f = fopen(path, "re");
        if (f && fscanf(f, "%llu", &ran) == 1)
            c.ns += ran;
        if (f)
            fclose(f);
        snprintf(path, sizeof(path), "/proc/%d/task/%s/status", (int)pid, entry->d_name);
        c.switches += field(path, "voluntary_ctxt_switches:");
    }
    closedir(d);
    return c;
}

static uint64_t resident(void)
{
    return field("/proc/self/smaps_rollup", "Rss:") * 1024;
}

static void connect_all(struct endpoint *ep, struct ibv_cq *cq, struct ibv_qp **qps, int count,
                        uint32_t depth, int fd)
{
    for (int i = 0; i < count; i++) {
        struct contact near, far;

        qps[i] = endpoint_qp(ep, cq, cq, (struct qp_shape){.send_wr = depth, .recv_wr = depth});
        near = endpoint_contact(ep, qps[i]);
        tell(fd, &near, sizeof(near));
        hear(fd, &far, sizeof(far));
        endpoint_connect(ep, qps[i], &far);
    }
}

static void destroy_all(struct ibv_qp **qps, int count)
{
    for (int i = 0; i < count; i++)
        if ((errno = ibv_destroy_qp(qps[i])))
            give_up("ibv_destroy_qp");
}

/* Memory per QP, with the first batch left out: it pays for what all QPs share. None is destroyed before the
 * last is measured, or the next would live in what the former left. */
static double bytes_per_qp(struct endpoint *ep, struct ibv_cq *cq, struct ibv_qp **qps, int count,
                           uint32_t depth, int fd)
{
    uint64_t before;

    connect_all(ep, cq, qps, WARM, depth, fd);
    before = resident();
    connect_all(ep, cq, qps + WARM, count, depth, fd);
    return ((double)resident() - (double)before) / count;
}

static void nap(unsigned seconds)
{
    struct timespec ts = {.tv_sec = (time_t)seconds};

    while (nanosleep(&ts, &ts) && errno == EINTR)
        ;
}

static void far_side(int fd, int idle, int many)
{
    static struct ibv_qp *qps[MAX_QPS], *shallow_qps[WARM + MAX_QPS], *deep_qps[WARM + MAX_QPS];
    struct endpoint ep;
    struct ibv_cq *cq;
    char word;

    endpoint_open(&ep, NULL, 0, 4096);
    cq = ibv_create_cq(ep.context, 16, NULL, NULL, 0);
    if (!cq)
        give_up("ibv_create_cq");
    connect_all(&ep, cq, qps, idle, 16, fd);
    hear(fd, &word, 1);
    destroy_all(qps, idle);
    bytes_per_qp(&ep, cq, shallow_qps, many, 1, fd);
    bytes_per_qp(&ep, cq, deep_qps, many, DEEP, fd);
    destroy_all(shallow_qps, WARM + many);
    destroy_all(deep_qps, WARM + many);
    exit(0);
}

static bool near_side(int fd, pid_t far, int idle, int many, unsigned seconds)
{
    static struct ibv_qp *qps[MAX_QPS], *shallow_qps[WARM + MAX_QPS], *deep_qps[WARM + MAX_QPS];
    struct cost before[2], after[2];
    struct endpoint ep;
    struct ibv_cq *cq;
    double shallow, deep, per_entry;
    bool good = true;

    endpoint_open(&ep, NULL, 0, 4096);
    cq = ibv_create_cq(ep.context, 16, NULL, NULL, 0);
    if (!cq)
        give_up("ibv_create_cq");
    connect_all(&ep, cq, qps, idle, 16, fd);
    nap(1); /* part of the definition: idle since a second */
    /* Ourselves innermost: reading /proc is work. */
    before[1] = cost_of(far);
    before[0] = cost_of(getpid());
    nap(seconds);
    after[0] = cost_of(getpid());
    after[1] = cost_of(far);
    for (int i = 0; i < 2; i++) {
        printf("process %d: %d idle QPs, %u s: %llu ticks, %llu us, %llu wake-ups\n", i, idle, seconds,
               (unsigned long long)(after[i].ticks - before[i].ticks),
               (unsigned long long)(after[i].ns - before[i].ns) / 1000,
               (unsigned long long)(after[i].switches - before[i].switches));
        good &= after[i].ticks == before[i].ticks;
    }
    tell(fd, "d", 1);
    destroy_all(qps, idle);
    shallow = bytes_per_qp(&ep, cq, shallow_qps, many, 1, fd);
    deep = bytes_per_qp(&ep, cq, deep_qps, many, DEEP, fd);
    destroy_all(shallow_qps, WARM + many);
    destroy_all(deep_qps, WARM + many);
    per_entry = (deep - shallow) / (DEEP - 1);
    printf(
        "memory per QP: %.0f bytes with queues of 1 + 1 entries, %.0f with %d + %d; %.0f beyond its queues\n",
        shallow, deep, DEEP, DEEP, shallow - per_entry);
    good &= shallow - per_entry <= (double)LIMIT_BYTES;
    return good;
}

int main(int argc, char **argv)
{
    int idle = argc > 1 ? atoi(argv[1]) : 100, many = argc > 2 ? atoi(argv[2]) : 1000, fd, status;
    int seconds = argc > 3 ? atoi(argv[3]) : 3;
    pid_t child;
    bool good;

    if (idle < 1 || idle > MAX_QPS || many < 1 || many > MAX_QPS || seconds < 1) {
        fprintf(stderr, "usage: %s [IDLE-QPS [QPS-FOR-MEMORY [SECONDS]]]\n", argv[0]);
        return 2;
    }
    child = fork_peer(&fd);
    if (child == 0)
        far_side(fd, idle, many);
    good = near_side(fd, child, idle, many, (unsigned)seconds);
    return waitpid(child, &status, 0) == child && status == 0 && good ? 0 : 1;
}
