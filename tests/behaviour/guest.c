/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* compatibility.md §7 and §8: the library is a guest in somebody's process, next to
 * others'. */
#include "standard.h"
#include "threads.h"
#include "work.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_uint handled, astray;

static void count_signal(int number)
{
    atomic_fetch_add(&handled, 1);
    if (syscall(SYS_gettid) != getpid())
        atomic_fetch_add(&astray, 1);
}

static void signals_never_land_on_a_thread_of_the_library(void **state)
{
    const struct sigaction action = {.sa_handler = count_signal};
    sigset_t all, before;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
    for (unsigned int i = 0; i < 200; i++) {
        /* While this thread blocks it, a process-directed signal goes to any thread that does not. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        assert_int_equal(kill(getpid(), SIGUSR1), 0);
        pair_marker(&p.a, &p.b);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        assert_int_equal(atomic_load(&handled), i + 1);
    }
    assert_int_equal(atomic_load(&astray), 0);
    pair_close(&p);
}

static void errno_survives_what_succeeds(void **state)
{
    struct ibv_wc wc;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 50; i++) {
        struct ibv_sge sge = {.addr = (uintptr_t)p.a.buf, .length = 4000, .lkey = p.a.lkey};
        struct ibv_send_wr wr = {.sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED},
                           *bad;

        wr.wr.rdma.remote_addr = (uintptr_t)p.b.buf;
        wr.wr.rdma.rkey = p.b.rkey;
        errno = 4711;
        assert_int_equal(ibv_post_send(p.a.qp, &wr, &bad), 0);
        while (ibv_poll_cq(p.a.send_cq, 1, &wc) == 0)
            ;
        assert_int_equal(ibv_req_notify_cq(p.a.send_cq, 0), 0);
        assert_int_equal(errno, 4711);
    }
    pair_close(&p);
}

static void every_descriptor_is_closed_on_exec(void **state)
{
    bool before[1024];
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;

    for (int fd = 0; fd < 1024; fd++)
        before[fd] = fcntl(fd, F_GETFD) >= 0;
    attr.channel = true;
    pair_connect_as(&p, &attr);
    pair_marker(&p.a, &p.b);
    pair_marker(&p.b, &p.a);
    for (int fd = 0; fd < 1024; fd++) {
        const int flags = fcntl(fd, F_GETFD);

        CHECK(before[fd] || flags < 0 || (flags & FD_CLOEXEC), "descriptor %d stays open in what is executed",
              fd);
    }
    pair_close(&p);
}

static void make_domain(struct end *end, void *arg)
{
    struct ibv_xrcd_init_attr attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = *(int *)arg, .oflags = O_CREAT};
    struct ibv_xrcd *xrcd = ibv_open_xrcd(end->context, &attr);

    CHECK(xrcd, "ibv_open_xrcd: %s", strerror(errno));
    CHECK_ZERO(ibv_close_xrcd(xrcd));
}

static void talk_a_lot(enum ibv_qp_type type, size_t length)
{
    struct end_attr attr = attr_of(type);
    struct pair p;

    attr.channel = true;
    attr.size = 2 * length;
    pair_connect_as(&p, &attr);
    for (unsigned int i = 0; i < 3; i++) {
        pair_marker(&p.a, &p.b);
        pair_marker(&p.b, &p.a);
        if (type != IBV_QPT_RC)
            continue;
        end_fill(&p.a, 0, length, i);
        end_send(&p.a, a_write(&p.a, 1, 0, length, &p.b, 0));
        end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
        end_recv(&p.a, a_recv(&p.a, 2, length, length));
        end_send(&p.b, a_send(&p.b, 3, 0, length));
        end_expect_success(&p.b, SQ, 3, IBV_WC_SEND);
        end_expect_success(&p.a, RQ, 2, IBV_WC_RECV);
        end_expect_data(&p.a, length, length, i);
    }
    pair_close(&p);
}

/* A program that was started with one of them closed prints all the same: into a ring or a socket of ours. */
static void no_descriptor_is_stdin_stdout_or_stderr(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    int none = -1, file = fcntl(memfd_create("domain", MFD_CLOEXEC), F_DUPFD_CLOEXEC, 50);
    struct pair p;

    standard_close();
    attr.channel = true;
    pair_connect_as(&p, &attr);
    AT(&p.a, make_domain, &none);
    AT(&p.a, make_domain, &file);
    talk_a_lot(IBV_QPT_RC, 1 << 20);
    talk_a_lot(IBV_QPT_UC, 4096);
    talk_a_lot(IBV_QPT_UD, 4096);
    standard_check();
    pair_close(&p);
}

/* mlockall(), valgrind's search for leaks and checkpoints look at all memory that is accessible: address
 * space that is only reserved must not be. */
static void what_is_reserved_is_not_accessible(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;
    char line[512];
    FILE *maps;

    pair_connect_as(&p, &attr);
    pair_marker(&p.a, &p.b);
    maps = fopen("/proc/self/maps", "re");
    CHECK(maps, "/proc/self/maps");
    while (fgets(line, sizeof(line), maps)) {
        unsigned long start, end;
        char protection[5];

        if (!strstr(line, "memfd:softhca") || sscanf(line, "%lx-%lx %4s", &start, &end, protection) != 3)
            continue;
        CHECK(protection[0] != 'r' || end - start <= (unsigned long)512 << 20, "accessible: %s", line);
    }
    fclose(maps);
    pair_close(&p);
}

static void everything_may_be_locked(void **state)
{
    const size_t reserved = (size_t)1 << 37;
    void *room;
    unsigned long kib = 0;
    char line[256];
    struct pair p;
    FILE *status;

    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
        skip_because("mlockall: %s", strerror(errno));
    room = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) /* what is reserved counts, too */
        skip_because("RLIMIT_MEMLOCK");
    munmap(room, reserved);
    pair_connect(&p, IBV_QPT_RC);
    pair_marker(&p.a, &p.b);
    pair_marker(&p.b, &p.a);
    status = fopen("/proc/self/status", "re");
    CHECK(status, "/proc/self/status");
    while (fgets(line, sizeof(line), status) && sscanf(line, "RssShmem: %lu", &kib) != 1) {
    }
    fclose(status);
    CHECK(kib < 512 << 10, "%lu KiB of shared memory", kib);
    pair_close(&p);
    munlockall();
}

static void nothing_is_printed(void **state)
{
    const int silence = memfd_create("silence", MFD_CLOEXEC), out = dup(STDOUT_FILENO),
              err = dup(STDERR_FILENO);
    struct stat written;
    struct pair p;

    if (getenv("SOFTHCA_EXPLAIN"))
        skip_because("explanations are asked for");
    fflush(NULL);
    dup2(silence, STDOUT_FILENO);
    dup2(silence, STDERR_FILENO);
    pair_connect(&p, IBV_QPT_RC);
    pair_marker(&p.a, &p.b);
    ibv_destroy_cq(p.a.send_cq); /* a refusal, too */
    pair_close(&p);
    fflush(NULL);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    assert_int_equal(fstat(silence, &written), 0);
    assert_int_equal(written.st_size, 0);
    close(silence);
}

static void *wait_for_event(void *channel)
{
    struct ibv_cq *cq;
    void *context;

    ibv_get_cq_event(channel, &cq, &context);
    return NULL;
}

static void *wait_for_async_event(void *context)
{
    struct ibv_async_event event;

    ibv_get_async_event(context, &event);
    return NULL;
}

/* rping cancels the thread that waits for completions (compatibility.md §7) */
static void a_blocked_reader_of_events_can_be_cancelled(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    pthread_t threads[2];
    struct pair p;

#ifdef __SANITIZE_ADDRESS__
    skip_because("the address sanitizer aborts when a thread with a fake stack is cancelled");
#endif
    attr.channel = true;
    pair_connect_as(&p, &attr);
    assert_int_equal(pthread_create(&threads[0], NULL, wait_for_event, p.a.channel), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, wait_for_async_event, p.a.context), 0);
    for (size_t i = 0; i < COUNT(threads); i++) {
        void *result = NULL;

        assert_int_equal(pthread_cancel(threads[i]), 0);
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, PTHREAD_CANCELED);
    }
    pair_marker(&p.a, &p.b); /* no lock is held */
    pair_close(&p);
}

/* --- two users ------------------------------------------------------------------------------------------ */

static void become_nobody(void *arg)
{
    int *error = arg;

    *error = setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534) ? errno : 0;
}

static void processes_of_two_users_talk(void **state)
{
    int error = 0;
    struct pair p;

    if (geteuid() != 0)
        skip_because("only root can become another user");
    side_call(FAR, become_nobody, &error, sizeof(error));
    if (error)
        skip_because("cannot become another user: %s", strerror(error));
    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 5; i++) {
        pair_marker(&p.a, &p.b);
        pair_marker(&p.b, &p.a);
        end_fill(&p.a, 0, 60000, i);
        end_send(&p.a, a_write(&p.a, 1, 0, 60000, &p.b, 0));
        end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
        end_expect_data(&p.b, 0, 60000, i);
        end_fill(&p.b, 0, 60000, i + 50);
        end_send(&p.a, a_read(&p.a, 2, 0, 60000, &p.b, 0));
        end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_READ);
        end_expect_data(&p.a, 0, 60000, i + 50);
        end_send(&p.b, a_fetch_add(&p.b, 3, 0, &p.a, 0, 1));
        end_expect_success(&p.b, SQ, 3, IBV_WC_FETCH_ADD);
    }
    pair_close(&p);
}

static void another_user_reaches_memory_only_by_its_key(void **state)
{
    int error = 0;
    struct send send;
    struct pair p;

    if (geteuid() != 0)
        skip_because("only root can become another user");
    side_call(FAR, become_nobody, &error, sizeof(error));
    if (error)
        skip_because("cannot become another user: %s", strerror(error));
    pair_connect(&p, IBV_QPT_RC);
    end_fill(&p.a, 0, 4096, 1);
    send = a_write(&p.b, 1, 0, 4096, &p.a, 0);
    send.wr.wr.rdma.rkey ^= 0x5a5a00;
    end_send(&p.b, send);
    end_expect_status(&p.b, SQ, 1, IBV_WC_REM_ACCESS_ERR);
    end_expect_data(&p.a, 0, 4096, 1);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(signals_never_land_on_a_thread_of_the_library),
        TEST(errno_survives_what_succeeds),
        TEST(every_descriptor_is_closed_on_exec),
        TEST(no_descriptor_is_stdin_stdout_or_stderr),
        TEST(what_is_reserved_is_not_accessible),
        TEST(everything_may_be_locked),
        TEST(nothing_is_printed),
        TEST(a_blocked_reader_of_events_can_be_cancelled),
        TEST_WITH(processes_of_two_users_talk, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(another_user_reaches_memory_only_by_its_key, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
