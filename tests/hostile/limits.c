/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A program that runs into a limit: memory (any allocation of ours may fail), file size (ulimit -f). It is told so by an
 * error of a verb, and never ended by a signal of ours. */
#include "runner.h"
#include "side.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

/* --- allocations that fail ------------------------------------------------------------------------------ */

enum { NONE = 0 };

static _Atomic unsigned int allocations; /* since it was set */
static _Atomic unsigned int failing;     /* the number of the allocation that fails */
static __thread bool no_pages;           /* mmap() fails in this thread */

/* The libraries call these instead of those of the C library. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

static bool fails(void)
{
    if (atomic_fetch_add(&allocations, 1) + 1 != atomic_load(&failing))
        return false;
    errno = ENOMEM;
    return true;
}

__attribute__((visibility("default"))) void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size)
{
    return fails() ? NULL : __libc_calloc(count, size);
}

__attribute__((visibility("default"))) void *realloc(void *old, size_t size)
{
    return fails() ? NULL : __libc_realloc(old, size);
}

__attribute__((visibility("default"))) long syscall(long number, ...)
{
    static long (*_Atomic next)(long, ...);
    long (*call)(long, ...) = atomic_load(&next);
    long argument[6];
    va_list list;

    if (!call) {
        call = (long (*)(long, ...))(uintptr_t)dlsym(RTLD_NEXT, "syscall");
        atomic_store(&next, call);
    }
    va_start(list, number);
    for (unsigned int i = 0; i < COUNT(argument); i++)
        argument[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_mmap && no_pages) {
        errno = ENOMEM;
        return -1;
    }
    return call(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}

/* --- a program ------------------------------------------------------------------------------------------ */

enum { LENGTH = 4096, ALARM = 60, SENDER = 0, RECEIVER = 1 };

struct program {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp[2];
    struct ibv_port_attr port;
    union ibv_gid gid;
    _Alignas(4096) char buffer[2 * LENGTH];
};

static struct program program;

/* Each step ends the program with the errno of the call that failed, which is a good end. */
#define NEED(result)                                                                                         \
    do {                                                                                                     \
        errno = 0;                                                                                           \
        if (!(result))                                                                                       \
            return errno ? errno : -1;                                                                       \
    } while (0)

static int open_program(struct program *p)
{
    struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_device **devices;

    NEED(devices = ibv_get_device_list(NULL));
    NEED(p->context = ibv_open_device(devices[0]));
    ibv_free_device_list(devices);
    NEED(p->pd = ibv_alloc_pd(p->context));
    NEED(p->mr = ibv_reg_mr(p->pd, p->buffer, sizeof(p->buffer), IBV_ACCESS_LOCAL_WRITE));
    NEED(p->channel = ibv_create_comp_channel(p->context));
    NEED(p->cq = ibv_create_cq(p->context, 8, NULL, p->channel, 0));
    attr.send_cq = attr.recv_cq = p->cq;
    NEED(p->qp[SENDER] = ibv_create_qp(p->pd, &attr));
    NEED(p->qp[RECEIVER] = ibv_create_qp(p->pd, &attr));
    NEED((errno = ibv_query_port(p->context, 1, &p->port)) == 0);
    NEED(ibv_query_gid(p->context, 1, 0, &p->gid) == 0);
    return 0;
}

static int connect_qp(struct program *p, int which)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .path_mtu = IBV_MTU_1024,
                               .dest_qp_num = p->qp[!which]->qp_num,
                               .ah_attr = {.is_global = 1, .port_num = 1, .grh.dgid = p->gid},
                               .timeout = 14,
                               .retry_cnt = 7,
                               .rnr_retry = 7};

    NEED((errno = ibv_modify_qp(p->qp[which], &attr,
                                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) == 0);
    attr.qp_state = IBV_QPS_RTR;
    NEED((errno = ibv_modify_qp(p->qp[which], &attr,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) == 0);
    attr.qp_state = IBV_QPS_RTS;
    NEED((errno = ibv_modify_qp(p->qp[which], &attr,
                                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)) == 0);
    return 0;
}

static int carry_message(struct program *p)
{
    struct ibv_sge from = {(uintptr_t)p->buffer, LENGTH, p->mr->lkey},
                   to = {(uintptr_t)p->buffer + LENGTH, LENGTH, p->mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &to, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &from,
                               .num_sge = 1,
                               .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED},
                       *bad_send;
    unsigned int completed = 0;

    memset(p->buffer, 7, LENGTH);
    NEED((errno = ibv_post_recv(p->qp[RECEIVER], &receive, &bad_receive)) == 0);
    NEED((errno = ibv_post_send(p->qp[SENDER], &send, &bad_send)) == 0);
    while (completed < 2) {
        struct ibv_wc wc;
        int polled = ibv_poll_cq(p->cq, 1, &wc);

        NEED(polled >= 0 && (!polled || wc.status == IBV_WC_SUCCESS));
        completed += (unsigned int)polled;
    }
    return memcmp(p->buffer, p->buffer + LENGTH, LENGTH) ? -1 : 0;
}

static int run_program(struct program *p)
{
    int error = open_program(p);

    for (int i = 0; i < 2 && !error; i++)
        error = connect_qp(p, i);
    return error ? error : carry_message(p);
}

/* What the program ended with: its errno, and the number of its allocations. */
struct end_of_program {
    int error;
    unsigned int allocations;
};

static struct end_of_program in_child(int (*body)(void *argument), void *argument, const char *what)
{
    struct end_of_program told = {-1, 0};
    int both[2], status;
    pid_t child;

    CHECK(pipe(both) == 0, "pipe: %s", strerror(errno));
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(ALARM);
        told.error = body(argument);
        told.allocations = atomic_load(&allocations);
        _exit(write(both[1], &told, sizeof(told)) != sizeof(told));
    }
    close(both[1]);
    CHECK(waitpid(child, &status, 0) == child, "waitpid: %s", strerror(errno));
    CHECK(WIFEXITED(status), "%s: the program was ended by signal %d (%s)", what, WTERMSIG(status),
          strsignal(WTERMSIG(status)));
    CHECK(read(both[0], &told, sizeof(told)) == sizeof(told), "%s: the program said nothing", what);
    close(both[0]);
    return told;
}

/* --- memory --------------------------------------------------------------------------------------------- */

static int run_with_failure(void *argument)
{
    atomic_store(&allocations, 0);
    atomic_store(&failing, *(unsigned int *)argument);
    return run_program(&program);
}

static void any_allocation_up_to_the_first_message_may_fail(void **state)
{
    unsigned int none = NONE, succeeded = 0;
    struct end_of_program whole = in_child(run_with_failure, &none, "without a failure");

    assert_int_equal(whole.error, 0);
    for (unsigned int i = 1; i <= whole.allocations; i++) {
        struct end_of_program told;
        char what[40];

        snprintf(what, sizeof(what), "allocation %u of %u failed", i, whole.allocations);
        told = in_child(run_with_failure, &i, what);
        CHECK(told.error == 0 || told.error == ENOMEM, "%s: the program ended with %d (%s)", what, told.error,
              strerror(told.error));
        succeeded += told.error == 0;
    }
    assert_true(succeeded < whole.allocations);
}

enum { THREADS = 1500 };

static pthread_barrier_t all_are_there;

static void *poll_without_memory(void *argument)
{
    struct ibv_wc wc;

    no_pages = true;
    pthread_barrier_wait(&all_are_there);
    return ibv_poll_cq(program.cq, 1, &wc) == 0 ? NULL : argument;
}

static int poll_in_new_threads(void *argument)
{
    unsigned int count = *(unsigned int *)argument, odd = 0;
    static pthread_t threads[THREADS];
    int error = open_program(&program);

    if (error || pthread_barrier_init(&all_are_there, NULL, count) != 0)
        return error ? error : -1;
    for (unsigned int i = 0; i < count; i++) {
        if (pthread_create(&threads[i], NULL, poll_without_memory, &program) != 0)
            return -1;
    }
    for (unsigned int i = 0; i < count; i++) {
        void *result = &program;

        pthread_join(threads[i], &result);
        odd += result != NULL;
    }
    return (int)odd;
}

static void a_thread_gets_no_page_for_its_first_verb(void **state)
{
    unsigned int one = 1, many = THREADS;

    assert_int_equal(in_child(poll_in_new_threads, &one, "one thread").error, 0);
    assert_int_equal(in_child(poll_in_new_threads, &many, "many threads").error, 0);
}

/* --- file size ------------------------------------------------------------------------------------------ */

static int run_with_file_size(void *argument)
{
    struct rlimit limit = {*(rlim_t *)argument, RLIM_INFINITY};

    return setrlimit(RLIMIT_FSIZE, &limit) == 0 ? run_program(&program) : -1;
}

static void a_small_file_size_limit_is_an_error_of_open_device(void **state)
{
    static const rlim_t limits[] = {0, 1, 4096, 1 << 20, 16 << 20, 64 << 20, 255 << 20};
    rlim_t enough = 1 << 30;

    for (size_t i = 0; i < COUNT(limits); i++) {
        rlim_t limit = limits[i];
        char what[40];

        snprintf(what, sizeof(what), "ulimit -f of %llu bytes", (unsigned long long)limit);
        CHECK(in_child(run_with_file_size, &limit, what).error == EFBIG, "%s: not EFBIG", what);
    }
    assert_int_equal(in_child(run_with_file_size, &enough, "1 GiB").error, 0);
}

static int lower_then_run(void *argument)
{
    struct rlimit limit = {0, RLIM_INFINITY};
    struct ibv_device **devices;

    NEED(devices = ibv_get_device_list(NULL));
    NEED(ibv_open_device(devices[0]));
    ibv_free_device_list(devices);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return -1;
    if (run_program(&program) != EFBIG)
        return -1;
    return 0;
}

static int lower_between(void *argument)
{
    struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct rlimit limit = {0, RLIM_INFINITY};
    struct program *p = &program;
    struct ibv_device **devices;
    int error = 0;

    NEED(devices = ibv_get_device_list(NULL));
    NEED(p->context = ibv_open_device(devices[0]));
    ibv_free_device_list(devices);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return -1;
    NEED(p->pd = ibv_alloc_pd(p->context));
    NEED(p->mr = ibv_reg_mr(p->pd, p->buffer, sizeof(p->buffer), IBV_ACCESS_LOCAL_WRITE));
    NEED(p->channel = ibv_create_comp_channel(p->context));
    NEED(p->cq = ibv_create_cq(p->context, 8, NULL, p->channel, 0));
    attr.send_cq = attr.recv_cq = p->cq;
    for (int i = 0; i < 2; i++)
        NEED(p->qp[i] = ibv_create_qp(p->pd, &attr));
    NEED(ibv_query_gid(p->context, 1, 0, &p->gid) == 0);
    for (int i = 0; i < 2 && !error; i++)
        error = connect_qp(p, i);
    return error ? error : carry_message(p);
}

/* What the open device needs from then on, it has, or does without: a notification page for the completion channel. */
static void a_limit_that_is_lowered_later_ends_nothing(void **state)
{
    assert_int_equal(in_child(lower_then_run, NULL, "a second open").error, 0);
    assert_int_equal(in_child(lower_between, NULL, "objects of an open device").error, 0);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(any_allocation_up_to_the_first_message_may_fail, .fars = 0),
        TEST_WITH(a_thread_gets_no_page_for_its_first_verb, .fars = 0),
        TEST_WITH(a_small_file_size_limit_is_an_error_of_open_device, .fars = 0),
        TEST_WITH(a_limit_that_is_lowered_later_ends_nothing, .fars = 0),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
