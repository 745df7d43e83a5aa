/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Programs that sleep: two processes exchange messages, each waits in epoll_wait() for a socket and for its
 * completion channel. Sockets and RDMA take turns in blocks within one pair of processes, because what a
 * wake-up costs differs from run to run more than what is compared. */
#include "common.h"
#include "endpoint.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 100, RECEIVES = 64, CONNECTIONS_MAX = 64 };

static const char usage[] =
    "usage: verbs_sleep [-c CPU,CPU] [-e drain|single] [-k tcp|udp] [-s BYTES] [-b BLOCKS] "
    "[-n CONNECTIONS] [-i US]\n"
    "  -e drain   one CQ for both queues, polled until it is empty (default)\n"
    "     single  one completion is polled for each event of the receive CQ\n"
    "  -n         all connections have a request under way; the figures are rates\n"
    "  -i         microseconds of sleep before each request: how often a program is woken that gets messages "
    "now and then\n";

static struct {
    int cpu[2];
    bool single, udp;
    uint32_t size;
    unsigned blocks, connections, interval_us;
} opt = {.cpu = {-1, -1}, .size = 64, .blocks = 100, .connections = 1};

struct connection {
    int socket;
    struct ibv_qp *qp;
    uint32_t unreaped; /* sends that are not known to be complete */
};

struct side {
    struct endpoint ep;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq, *send_cq;
    struct connection connections[CONNECTIONS_MAX];
    int epoll, control;
    uint64_t arrived, events, empty_events;
};

/* --- both ways ------------------------------------------------------------------------------------------ */

static void send_by_socket(const struct connection *connection)
{
    static char message[65536];

    if (send(connection->socket, message, opt.size, MSG_NOSIGNAL) != (ssize_t)opt.size)
        give_up("send");
}

static bool receive_by_socket(const struct connection *connection)
{
    static char message[65536];
    ssize_t length = recv(connection->socket, message, opt.size, MSG_DONTWAIT);

    if (length < 0 && errno == EAGAIN)
        return false;
    if (length != (ssize_t)opt.size)
        give_up("recv");
    return true;
}

static struct ibv_sge piece(struct side *side, unsigned number)
{
    return (struct ibv_sge){.addr = (uintptr_t)side->ep.buffer + (uint64_t)number * opt.size,
                            .length = opt.size,
                            .lkey = side->ep.mr->lkey};
}

static void post_receive(struct side *side, unsigned number)
{
    struct ibv_sge sge = piece(side, number);
    struct ibv_recv_wr wr = {.wr_id = number, .sg_list = &sge, .num_sge = 1}, *bad;

    if ((errno = ibv_post_recv(side->connections[number].qp, &wr, &bad)))
        give_up("ibv_post_recv");
}

static void reap_sends(struct side *side, struct connection *connection)
{
    struct ibv_wc wc;

    while (side->send_cq != side->cq && connection->unreaped >= RECEIVES / 2) {
        int count = ibv_poll_cq(side->send_cq, 1, &wc);

        if (count < 0 || (count && wc.status != IBV_WC_SUCCESS))
            give_up("send CQ");
        connection->unreaped -= (uint32_t)count;
    }
}

static void send_by_rdma(struct side *side, unsigned number)
{
    struct connection *connection = &side->connections[number];
    struct ibv_sge sge = piece(side, number);
    struct ibv_send_wr wr = {.wr_id = number,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;

    reap_sends(side, connection);
    connection->unreaped++;
    if ((errno = ibv_post_send(connection->qp, &wr, &bad)))
        give_up("ibv_post_send");
}

/* --- what arrives --------------------------------------------------------------------------------------- */

typedef void (*arrived_fn)(struct side *side, unsigned number, bool by_rdma);

static bool take_completion(struct side *side, arrived_fn arrived)
{
    struct ibv_wc wc;
    int count = ibv_poll_cq(side->cq, 1, &wc);

    if (count < 0 || (count && wc.status != IBV_WC_SUCCESS)) {
        fprintf(stderr, "verbs_sleep: %s\n", count < 0 ? "ibv_poll_cq" : ibv_wc_status_str(wc.status));
        exit(1);
    }
    if (!count)
        return false;
    if (wc.opcode & IBV_WC_RECV) {
        side->arrived++;
        post_receive(side, (unsigned)wc.wr_id);
        arrived(side, (unsigned)wc.wr_id, true);
    } else {
        side->connections[wc.wr_id].unreaped--;
    }
    return true;
}

static void take_event(struct side *side, arrived_fn arrived)
{
    struct ibv_cq *cq;
    void *context;

    if (ibv_get_cq_event(side->channel, &cq, &context))
        give_up("ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
    side->events++;
    if ((errno = ibv_req_notify_cq(cq, 0)))
        give_up("ibv_req_notify_cq");
    if (!take_completion(side, arrived))
        side->empty_events++;
    else if (!opt.single)
        while (take_completion(side, arrived))
            ;
}

/* Data of an epoll entry: the number of a connection; behind them the channel and the control socket. */
enum { CHANNEL = CONNECTIONS_MAX, CONTROL };

/* Sleeps once. Returns false when the other process has said something on the control socket. */
static bool wait_and_handle(struct side *side, arrived_fn arrived)
{
    struct epoll_event events[CONNECTIONS_MAX + 2];
    int count = epoll_wait(side->epoll, events, CONNECTIONS_MAX + 2, -1);
    bool goes_on = true;

    if (count < 0)
        give_up("epoll_wait");
    for (int i = 0; i < count; i++) {
        unsigned what = events[i].data.u32;

        if (what == CHANNEL)
            take_event(side, arrived);
        else if (what == CONTROL)
            goes_on = false;
        else if (receive_by_socket(&side->connections[what])) {
            side->arrived++;
            arrived(side, what, false);
        }
    }
    return goes_on;
}

/* --- setting up ----------------------------------------------------------------------------------------- */

static void watch(const struct side *side, int fd, unsigned what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = what};

    if (epoll_ctl(side->epoll, EPOLL_CTL_ADD, fd, &event))
        give_up("epoll_ctl");
}

static void connect_sockets(int ret_fd[2])
{
    int type = opt.udp ? SOCK_DGRAM : SOCK_STREAM, one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, type | SOCK_CLOEXEC, 0);

    ret_fd[0] = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    if (listener < 0 || ret_fd[0] < 0 || bind(listener, (struct sockaddr *)&address, length) ||
        getsockname(listener, (struct sockaddr *)&address, &length) || (!opt.udp && listen(listener, 1)) ||
        connect(ret_fd[0], (struct sockaddr *)&address, length))
        give_up("sockets");
    if (opt.udp) {
        if (getsockname(ret_fd[0], (struct sockaddr *)&address, &length) ||
            connect(listener, (struct sockaddr *)&address, length))
            give_up("sockets");
        ret_fd[1] = listener;
        return;
    }
    ret_fd[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (ret_fd[1] < 0 || setsockopt(ret_fd[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) ||
        setsockopt(ret_fd[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
        give_up("sockets");
    close(listener);
}

static void open_side(struct side *side)
{
    endpoint_open(&side->ep, NULL, 0, (size_t)opt.size * opt.connections);
    side->channel = ibv_create_comp_channel(side->ep.context);
    if (!side->channel)
        give_up("ibv_create_comp_channel");
    side->cq = ibv_create_cq(side->ep.context, 2 * CONNECTIONS_MAX * RECEIVES, NULL, side->channel, 0);
    side->send_cq =
        opt.single ? ibv_create_cq(side->ep.context, CONNECTIONS_MAX * RECEIVES, NULL, NULL, 0) : side->cq;
    if (!side->cq || !side->send_cq)
        give_up("ibv_create_cq");
    side->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (side->epoll < 0)
        give_up("epoll_create1");
    watch(side, side->channel->fd, CHANNEL);
    watch(side, side->control, CONTROL);
    for (unsigned i = 0; i < opt.connections; i++) {
        struct connection *connection = &side->connections[i];
        struct contact near, far;

        watch(side, connection->socket, i);
        connection->qp = endpoint_qp(&side->ep, side->send_cq, side->cq,
                                     (struct qp_shape){.send_wr = RECEIVES, .recv_wr = RECEIVES});
        near = endpoint_contact(&side->ep, connection->qp);
        tell(side->control, &near, sizeof(near));
        hear(side->control, &far, sizeof(far));
        endpoint_connect(&side->ep, connection->qp, &far);
        post_receive(side, i);
    }
    if ((errno = ibv_req_notify_cq(side->cq, 0)))
        give_up("ibv_req_notify_cq");
    tell(side->control, "", 1);
    hear(side->control, (char[1]){0}, 1);
}

/* Turns of sleep of all threads of this process. */
static uint64_t sleeps(void)
{
    DIR *tasks = opendir("/proc/self/task");
    uint64_t sum = 0;

    if (!tasks)
        give_up("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[128];
        FILE *status;

        snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
        status = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        while (status && fgets(line, sizeof(line), status)) {
            if (strncmp(line, "voluntary_ctxt_switches:", 24) == 0)
                sum += strtoull(line + 24, NULL, 10);
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return sum;
}

struct account {
    uint64_t sleeps, messages, events, empty_events;
};

/* --- the two ends --------------------------------------------------------------------------------------- */

static void answer(struct side *side, unsigned number, bool by_rdma)
{
    if (by_rdma)
        send_by_rdma(side, number);
    else
        send_by_socket(&side->connections[number]);
}

static struct account account_of(const struct side *side)
{
    return (struct account){sleeps(), side->arrived, side->events, side->empty_events};
}

/* The control socket has a byte for each thing that the client wants: the account, or the end. */
static void serve(struct side *side)
{
    for (;;) {
        struct account account;
        char wish;

        while (wait_and_handle(side, answer))
            ;
        hear(side->control, &wish, 1);
        if (wish == 'e')
            return;
        account = account_of(side);
        tell(side->control, &account, sizeof(account));
    }
}

static unsigned answers_wanted, requests_left;

static void next_request(struct side *side, unsigned number, bool by_rdma)
{
    answers_wanted--;
    if (requests_left) {
        requests_left--;
        if (opt.interval_us)
            usleep(opt.interval_us);
        answer(side, number, by_rdma);
    }
}

/* BLOCK requests for each connection. Returns the nanoseconds of one. */
static uint64_t run_block(struct side *side, bool by_rdma)
{
    unsigned requests = BLOCK * opt.connections;
    uint64_t began = now_ns();

    answers_wanted = requests;
    requests_left = requests - opt.connections;
    for (unsigned i = 0; i < opt.connections; i++)
        answer(side, i, by_rdma);
    while (answers_wanted) {
        if (!wait_and_handle(side, next_request))
            give_up("the other process is gone");
    }
    return (now_ns() - began) / requests;
}

static struct account account_of_server(struct side *side)
{
    struct account account;

    tell(side->control, "a", 1);
    hear(side->control, &account, sizeof(account));
    return account;
}

static void print_account(const char *name, const struct account *sum)
{
    printf(" %s_sleeps %.3f %s_events %.3f %s_empty %.4f", name, (double)sum->sleeps / (double)sum->messages,
           name, (double)sum->events / (double)sum->messages, name,
           (double)sum->empty_events / (double)sum->messages);
}

static void add(struct account *sum, const struct account *before, const struct account *after)
{
    sum->sleeps += after->sleeps - before->sleeps;
    sum->messages += after->messages - before->messages;
    sum->events += after->events - before->events;
    sum->empty_events += after->empty_events - before->empty_events;
}

static void ask(struct side *side)
{
    uint64_t *rdma = calloc(opt.blocks, sizeof(*rdma)), *socket = calloc(opt.blocks, sizeof(*socket));
    struct account client = {0}, server = {0};
    uint64_t middle[2];

    if (!rdma || !socket)
        give_up("calloc");
    for (unsigned i = 0; i < opt.blocks + 2; i++) {
        uint64_t by_socket = run_block(side, false), by_rdma;
        struct account client_before = account_of(side), server_before = account_of_server(side);

        by_rdma = run_block(side, true);
        if (i >= 2) { /* the first ones find the link, and warm up */
            struct account client_after = account_of(side), server_after = account_of_server(side);

            socket[i - 2] = by_socket;
            rdma[i - 2] = by_rdma;
            add(&client, &client_before, &client_after);
            add(&server, &server_before, &server_after);
        }
    }
    tell(side->control, "e", 1);
    middle[0] = median(socket, opt.blocks);
    middle[1] = median(rdma, opt.blocks);
    printf("socket_us %.2f rdma_us %.2f ratio %.3f p90_us %.2f", (double)middle[0] / 1e3,
           (double)middle[1] / 1e3, (double)middle[1] / (double)middle[0],
           (double)rdma[opt.blocks * 9 / 10] / 1e3);
    print_account("client", &client);
    print_account("server", &server);
    printf("\n");
}

static void read_options(int argc, char **argv)
{
    int option;

    while ((option = getopt(argc, argv, "c:e:k:s:b:n:i:")) != -1) {
        if (option == 'c' && sscanf(optarg, "%d,%d", &opt.cpu[0], &opt.cpu[1]) == 2)
            continue;
        if (option == 'e' && (!strcmp(optarg, "single") || !strcmp(optarg, "drain")))
            opt.single = !strcmp(optarg, "single");
        else if (option == 'k' && (!strcmp(optarg, "tcp") || !strcmp(optarg, "udp")))
            opt.udp = !strcmp(optarg, "udp");
        else if (option == 's' && atoi(optarg) > 0 && atoi(optarg) <= 16384)
            opt.size = (uint32_t)atoi(optarg);
        else if (option == 'b' && atoi(optarg) > 0)
            opt.blocks = (unsigned)atoi(optarg);
        else if (option == 'n' && atoi(optarg) > 0 && atoi(optarg) <= CONNECTIONS_MAX)
            opt.connections = (unsigned)atoi(optarg);
        else if (option == 'i' && atoi(optarg) > 0 && atoi(optarg) < 1000000)
            opt.interval_us = (unsigned)atoi(optarg);
        else {
            fputs(usage, stderr);
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    struct side side = {0};
    int control[2], status;
    pid_t child;

    read_options(argc, argv);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control))
        give_up("socketpair");
    int sockets[CONNECTIONS_MAX][2];

    for (unsigned i = 0; i < opt.connections; i++)
        connect_sockets(sockets[i]);
    child = fork();
    if (child < 0)
        give_up("fork");
    for (unsigned i = 0; i < opt.connections; i++) {
        side.connections[i].socket = sockets[i][child ? 0 : 1];
        close(sockets[i][child ? 1 : 0]);
    }
    side.control = control[child ? 0 : 1];
    close(control[child ? 1 : 0]);
    pin(opt.cpu[child ? 0 : 1]);
    open_side(&side);
    if (!child) {
        serve(&side);
        return 0;
    }
    ask(&side);
    if (waitpid(child, &status, 0) != child || status) {
        fprintf(stderr, "verbs_sleep: the server failed\n");
        return 1;
    }
    return 0;
}
