/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A program that runs into a limit: memory (any allocation of ours may fail), file size (ulimit -f). It is told so by
 * an error of a verb, and never ended by a signal of ours. */
#include "runner.h"
#include "side.h"

#include <arpa/inet.h>
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
#include <rdma/rdma_cma.h>

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

/* --- a program with rdma_cm ----------------------------------------------------------------------------- */

struct connected {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *listener, *client, *server;
    bool is_over[2]; /* at the client, at the server */
};

static struct connected connected;

static int prepare_connection(struct connected *c)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr *name = (struct sockaddr *)&address;

    NEED(c->channel = rdma_create_event_channel());
    NEED(rdma_create_id(c->channel, &c->listener, NULL, RDMA_PS_TCP) == 0);
    NEED(rdma_create_id(c->channel, &c->client, NULL, RDMA_PS_TCP) == 0);
    NEED(rdma_bind_addr(c->listener, name) == 0);
    NEED(rdma_listen(c->listener, 1) == 0);
    address.sin_port = rdma_get_src_port(c->listener);
    NEED(rdma_resolve_addr(c->client, NULL, name, 1000) == 0);
    return 0;
}

static int create_connected_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};

    NEED(rdma_create_qp(id, NULL, &attr) == 0);
    return 0;
}

/* The step that follows an event. */
static int go_on(struct connected *c, const struct rdma_cm_event *event)
{
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};

    if (event->event == RDMA_CM_EVENT_ADDR_RESOLVED) {
        NEED(rdma_resolve_route(event->id, 1000) == 0);
    } else if (event->event == RDMA_CM_EVENT_ROUTE_RESOLVED) {
        int error = create_connected_qp(event->id);

        if (error)
            return error;
        NEED(rdma_connect(event->id, &param) == 0);
    } else if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        int error = create_connected_qp(event->id);

        c->server = event->id;
        if (error)
            return error;
        NEED(rdma_accept(event->id, &param) == 0);
    } else if (event->event == RDMA_CM_EVENT_ESTABLISHED) {
        if (event->id == c->server)
            NEED(rdma_disconnect(event->id) == 0);
    } else if (event->event == RDMA_CM_EVENT_DISCONNECTED) {
        c->is_over[event->id == c->server] = true;
        if (event->id == c->client)
            NEED(rdma_disconnect(event->id) == 0);
    } else if (event->event != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
        return event->status ? abs(event->status) : -1;
    }
    return 0;
}

static int run_connection(struct connected *c)
{
    int error = prepare_connection(c);

    while (!error && !(c->is_over[0] && c->is_over[1])) {
        struct rdma_cm_event *event;

        NEED(rdma_get_cm_event(c->channel, &event) == 0);
        error = go_on(c, event);
        rdma_ack_cm_event(event);
    }
    return error;
}

/* What the program ended with: its errno, and the number of its allocations. */
struct end_of_program {
    int error;
    unsigned int allocations;
};

struct child {
    pid_t pid;
    int tells;
};

static struct child start_child(int (*body)(void *argument), void *argument)
{
    struct end_of_program told;
    struct child child;
    int both[2];

    CHECK(pipe(both) == 0, "pipe: %s", strerror(errno));
    child.pid = fork();
    if (child.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(ALARM);
        told.error = body(argument);
        told.allocations = atomic_load(&allocations);
        _exit(write(both[1], &told, sizeof(told)) != sizeof(told));
    }
    close(both[1]);
    child.tells = both[0];
    return child;
}

static struct end_of_program finish_child(struct child child, const char *what)
{
    struct end_of_program told = {-1, 0};
    int status;

    CHECK(waitpid(child.pid, &status, 0) == child.pid, "waitpid: %s", strerror(errno));
    CHECK(WIFEXITED(status), "%s: the program was ended by signal %d (%s)", what, WTERMSIG(status),
          strsignal(WTERMSIG(status)));
    CHECK(read(child.tells, &told, sizeof(told)) == sizeof(told), "%s: the program said nothing", what);
    close(child.tells);
    return told;
}

static struct end_of_program in_child(int (*body)(void *argument), void *argument, const char *what)
{
    return finish_child(start_child(body, argument), what);
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

static int connect_with_failure(void *argument)
{
    atomic_store(&allocations, 0);
    atomic_store(&failing, *(unsigned int *)argument);
    return run_connection(&connected);
}

/* An event that is lost would leave the program waiting for it. Many at a time: some wait until the CM repeats a
 * message. */
static void nor_does_a_connection_hang_without_memory(void **state)
{
    enum { AT_ONCE = 32 };
    unsigned int none = NONE;
    struct end_of_program whole = in_child(connect_with_failure, &none, "without a failure");

    assert_int_equal(whole.error, 0);
    for (unsigned int first = 1; first <= whole.allocations; first += AT_ONCE) {
        const unsigned int left = whole.allocations - first + 1, count = left < AT_ONCE ? left : AT_ONCE;
        struct child children[AT_ONCE];
        char what[40];

        for (unsigned int i = 0; i < count; i++) {
            unsigned int failed = first + i;

            children[i] = start_child(connect_with_failure, &failed);
        }
        for (unsigned int i = 0; i < count; i++) {
            snprintf(what, sizeof(what), "allocation %u of %u failed", first + i, whole.allocations);
            (void)finish_child(children[i], what);
        }
    }
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
        TEST_WITH(nor_does_a_connection_hang_without_memory, .fars = 0),
        TEST_WITH(a_thread_gets_no_page_for_its_first_verb, .fars = 0),
        TEST_WITH(a_small_file_size_limit_is_an_error_of_open_device, .fars = 0),
        TEST_WITH(a_limit_that_is_lowered_later_ends_nothing, .fars = 0),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
