/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Programs that sleep on a completion channel: who is woken by a message, by what, and that nobody else has
 * to wait for a program that does not come (base/notify.h). A readable channel means that the next
 * ibv_get_cq_event() returns at once; descriptors here block, so that one that does not fails by its time. */
#include "threads.h"
#include "work.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WARM = 20 };

static struct end_attr with_channel(void)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.channel = true;
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 128;
    attr.send_cqe = attr.recv_cqe = 512;
    return attr;
}

static bool is_readable(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};

    return poll(&ready, 1, 0) == 1;
}

static void wait_readable(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    struct patience patience = patience_begin("a readable channel");

    while (poll(&ready, 1, patience_left_ms(&patience)) != 1)
        patience_wait(&patience, __FILE__, __LINE__);
    patience_end();
}

static struct ibv_cq *next_event(struct end *end)
{
    struct ibv_cq *cq;
    void *context;

    wait_readable(end->channel->fd);
    CHECK_ZERO(ibv_get_cq_event(end->channel, &cq, &context));
    ibv_ack_cq_events(cq, 1);
    return cq;
}

static void arm(struct ibv_cq *cq)
{
    CHECK_ZERO(ibv_req_notify_cq(cq, 0));
}

/* Waits for an event and takes exactly one completion of the receive CQ. */
static void receive_one(struct end *end, uint64_t id)
{
    struct ibv_wc wc;

    CHECK(next_event(end) == end->recv_cq, "the event is of another CQ");
    arm(end->recv_cq);
    EVENTUALLY(ibv_poll_cq(end->recv_cq, 1, &wc) == 1, "the completion whose event has come")
    {
        /* the event may be ahead of it by as much as it takes to look */
    }
    check_success(&wc, id, IBV_WC_RECV);
}

struct exchange {
    unsigned int count;
    uint64_t first_id;
};

/* Answers so many messages, asleep in between. */
static void answer(struct end *end, void *arg)
{
    const struct exchange *exchange = arg;

    arm(end->recv_cq); /* before there is a receive: the first message may come as soon as there is one */
    for (unsigned int i = 0; i < exchange->count; i++)
        end_recv(end, a_recv(end, exchange->first_id + i, 0, 64));
    for (unsigned int i = 0; i < exchange->count; i++) {
        receive_one(end, exchange->first_id + i);
        end_send(end, a_send(end, i, 64, 64));
    }
    for (unsigned int i = 0; i < exchange->count; i++)
        end_expect_success(end, SQ, i, IBV_WC_SEND);
    /* What is armed stays so: one event more, of nothing that is looked for. */
}

/* The other end's. Both sleep. */
static void ask(struct end *end, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++)
        end_recv(end, a_recv(end, i, 0, 64));
    arm(end->recv_cq);
    for (unsigned int i = 0; i < count; i++) {
        end_send(end, a_send(end, i, 64, 64));
        receive_one(end, i);
        end_expect_success(end, SQ, i, IBV_WC_SEND);
    }
}

static void exchange(struct pair *p, unsigned int count)
{
    struct exchange what = {.count = count};
    struct end_call call;

    end_start(&call, &p->b, answer, &what, sizeof(what));
    ask(&p->a, count);
    end_finish(&call);
}

/* The link is there, each knows the other's channels, and no event of what was is left at `a`. */
static void warm_up(struct pair *p)
{
    exchange(p, WARM);
    while (is_readable(p->a.channel->fd))
        next_event(&p->a);
}

static void programs_that_sleep_exchange_messages(void **state)
{
    const struct end_attr attr = with_channel();
    struct pair p;

    pair_connect_as(&p, &attr);
    for (int i = 0; i < 20; i++)
        exchange(&p, 100);
    pair_close(&p);
}

/* Of the thread that is named after us; 0: there is none. */
static unsigned long helper_sleeps(void)
{
    DIR *tasks = opendir("/proc/self/task");
    unsigned long sleeps = 0;
    struct dirent *task;

    CHECK(tasks, "/proc/self/task: %s", strerror(errno));
    while ((task = readdir(tasks))) {
        char path[300], line[128];
        bool ours = false;
        FILE *status;

        snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
        status = fopen(path, "r");
        while (status && fgets(line, sizeof(line), status)) {
            if (strcmp(line, "Name:\tsofthca\n") == 0)
                ours = true;
            if (ours && strncmp(line, "voluntary_ctxt_switches:", 24) == 0)
                sleeps = strtoul(line + 24, NULL, 10);
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return sleeps;
}

/* Counted in the quietest of many blocks: the helper thread looks in now and then, and more often for each
 * message where the machine has much else to do. Of messages that come more seldom than it looks, it is told. */
static void a_message_wakes_the_program_and_not_the_helper_thread(void **state)
{
    enum { BLOCK = 100, BLOCKS = 40, SELDOM_NS = 1000000 };
    const struct end_attr attr = with_channel();
    unsigned long least = BLOCK;
    bool often = false;
    struct pair p;

    if (over_wire())
        skip_because("the kernel wakes whoever waits for a socket, which is the helper thread");
    if (!two_processes())
        skip_because("two threads of one process that sleep in turn are not what is counted");
    pair_connect_as(&p, &attr);
    for (int i = 0; i < BLOCKS && least > BLOCK / 4; i++) {
        unsigned long before = helper_sleeps(), sleeps;
        uint64_t began = now_ns();

        exchange(&p, BLOCK);
        sleeps = helper_sleeps() - before;
        if (now_ns() - began >= (uint64_t)BLOCK * SELDOM_NS)
            continue;
        often = true;
        if (sleeps < least)
            least = sleeps;
    }
    if (!often)
        skip_because("a message takes over 1 ms here, which is seldom");
    CHECK(least <= BLOCK / 4, "the helper thread was woken %lu times by %d messages", least, (int)BLOCK);
    pair_close(&p);
}

/* The other end's: takes so many messages, without sleeping. */
static void take(struct end *end, void *arg)
{
    const struct exchange *exchange = arg;

    for (unsigned int i = 0; i < exchange->count; i++)
        end_recv(end, a_recv(end, i, 0, 64));
    for (unsigned int i = 0; i < exchange->count; i++)
        end_expect_success(end, RQ, i, IBV_WC_RECV);
}

/* Sends so many messages to an end that takes them, and sleeps until each is acknowledged. */
static void send_and_sleep(struct pair *p, unsigned int count)
{
    struct exchange what = {.count = count};
    struct end_call call;

    end_start(&call, &p->b, take, &what, sizeof(what));
    for (unsigned int i = 0; i < count; i++) {
        arm(p->a.send_cq);
        end_send(&p->a, a_send(&p->a, i, 0, 64));
        assert_ptr_equal(next_event(&p->a), p->a.send_cq);
        end_expect_success(&p->a, SQ, i, IBV_WC_SEND);
    }
    end_finish(&call);
}

/* As above: in the quietest of many blocks. */
static void an_acknowledgement_wakes_the_program_and_not_the_helper_thread(void **state)
{
    enum { BLOCK = 100, BLOCKS = 40 };
    const struct end_attr attr = with_channel();
    unsigned long least = BLOCK;
    struct pair p;

    if (over_wire())
        skip_because("the kernel wakes whoever waits for a socket, which is the helper thread");
    if (!two_processes())
        skip_because("two threads of one process are not what is counted");
    pair_connect_as(&p, &attr);
    warm_up(&p);
    for (int i = 0; i < BLOCKS && least > BLOCK / 4; i++) {
        unsigned long before = helper_sleeps(), sleeps;

        send_and_sleep(&p, BLOCK);
        sleeps = helper_sleeps() - before;
        if (sleeps < least)
            least = sleeps;
    }
    CHECK(least <= BLOCK / 4, "the helper thread was woken %lu times by %d acknowledgements", least,
          (int)BLOCK);
    pair_close(&p);
}

static void an_acknowledgement_that_completes_nothing_makes_no_event(void **state)
{
    const struct end_attr attr = with_channel();
    struct pair p;

    pair_connect_as(&p, &attr);
    warm_up(&p);
    for (uint64_t i = 0; i < 100; i += 2) {
        end_recv(&p.b, a_recv(&p.b, i, 0, 64));
        end_recv(&p.b, a_recv(&p.b, i + 1, 0, 64));
        arm(p.a.send_cq);
        end_send(&p.a, unsignaled(a_send(&p.a, i, 0, 64)));
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
        end_send(&p.a, a_send(&p.a, i + 1, 0, 64));
        end_expect_success(&p.b, RQ, i + 1, IBV_WC_RECV);
        assert_ptr_equal(next_event(&p.a), p.a.send_cq);
        end_expect_success(&p.a, SQ, i + 1, IBV_WC_SEND);
        assert_false(is_readable(p.a.channel->fd));
    }
    pair_close(&p);
}

/* A signaled SEND that finds the ring full in the middle of a list says nothing about those behind it. */
static void nor_does_one_behind_a_request_that_found_no_room(void **state)
{
    enum { TOGETHER = 7, MESSAGES = 1400, SMALL = 200, LARGE = 300 };
    struct end_attr attr = with_channel();
    struct send sends[TOGETHER];
    struct pair p;

    if (over_wire())
        skip_because("the network does not wait for a peer that is stopped");
    attr.cap.max_send_wr = attr.cap.max_recv_wr = MESSAGES + 2;
    attr.send_cqe = attr.recv_cqe = MESSAGES + 2;
    pair_connect_as(&p, &attr);
    warm_up(&p);
    for (uint64_t i = 0; i < MESSAGES; i++)
        end_recv(&p.b, a_recv(&p.b, i, 0, SMALL));
    side_stop(FAR);
    for (uint64_t i = 0; i < MESSAGES; i += TOGETHER) {
        for (uint64_t j = 0; j < TOGETHER; j++)
            sends[j] = a_send(&p.a, i + j, 0, SMALL);
        end_send_list(&p.a, sends, TOGETHER);
    }
    side_continue(FAR);
    for (uint64_t i = 0; i < MESSAGES; i++)
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
    for (uint64_t i = 0; i < MESSAGES; i++)
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
    end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
    end_recv(&p.b, a_recv(&p.b, 1, 0, LARGE));
    arm(p.a.send_cq);
    end_send(&p.a, unsignaled(a_send(&p.a, 1, 0, LARGE)));
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    /* Behind the acknowledgement. */
    end_send(&p.b, a_send(&p.b, 1, 0, 64));
    end_expect_success(&p.b, SQ, 1, IBV_WC_SEND);
    end_expect_success(&p.a, RQ, 1, IBV_WC_RECV);
    while (is_readable(p.a.channel->fd)) /* of an arming that was left over */
        assert_ptr_equal(next_event(&p.a), p.a.recv_cq);
    pair_close(&p);
}

/* The other end's: woken by a message, it polls once, and so the doorbell of the acknowledgement waits. */
static void take_one_and_go_away(struct end *end, void *arg)
{
    receive_one(end, *(const uint64_t *)arg);
}

/* Each poll rings what waits. */
static void poll_once(struct end *end, void *arg)
{
    struct ibv_wc wc;

    assert_int_equal(ibv_poll_cq(end->recv_cq, 1, &wc), 0);
}

static void receive_asleep(struct end *end, void *arg)
{
    arm(end->recv_cq);
    end_recv(end, a_recv(end, *(const uint64_t *)arg, 0, 64));
}

static void call(struct end *end, void (*function)(struct end *end, void *arg), uint64_t id)
{
    struct end_call call;

    end_start(&call, end, function, &id, sizeof(id));
    end_finish(&call);
}

/* An acknowledgement lies in the ring before its doorbell comes. If it was taken meanwhile, the event would be of
 * nothing: but for a sender that is between arming and telling so, which is seldom. */
static void a_doorbell_that_comes_too_late_makes_no_event(void **state)
{
    enum { ROUNDS = 50, SELDOM = 5 };
    const struct end_attr attr = with_channel();
    unsigned int events = 0;
    struct pair p;

    if (over_wire())
        skip_because("datagrams have no doorbell");
    pair_connect_as(&p, &attr);
    warm_up(&p);
    call(&p.b, receive_asleep, 0);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        struct end_call taking;

        end_start(&taking, &p.b, take_one_and_go_away, &i, sizeof(i));
        end_send(&p.a, a_send(&p.a, i, 0, 64));
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        while (is_readable(p.a.channel->fd)) /* of the arming of the last round */
            next_event(&p.a);
        arm(p.a.send_cq);
        end_finish(&taking);
        call(&p.b, poll_once, i);
        if (is_readable(p.a.channel->fd)) {
            events++;
            next_event(&p.a);
        }
        call(&p.b, receive_asleep, i + 1);
    }
    CHECK(events <= SELDOM, "%u events of nothing in %d rounds", events, (int)ROUNDS);
    pair_close(&p);
}

static void a_dup_of_the_descriptor_and_epoll_tell_the_same(void **state)
{
    const struct end_attr attr = with_channel();
    struct pair p;
    int copy;

    pair_connect_as(&p, &attr);
    copy = dup(p.a.channel->fd);
    exchange(&p, WARM);
    end_recv(&p.a, a_recv(&p.a, 7, 0, 64));
    while (is_readable(p.a.channel->fd)) { /* of the arming that was left over */
        next_event(&p.a);
    }
    arm(p.a.recv_cq);
    assert_false(is_readable(copy));
    end_send(&p.b, a_send(&p.b, 7, 0, 64));
    wait_readable(copy);
    assert_true(is_readable(p.a.channel->fd));
    assert_ptr_equal(next_event(&p.a), p.a.recv_cq);
    assert_false(is_readable(copy));
    end_expect_success(&p.a, RQ, 7, IBV_WC_RECV);
    close(copy);
    pair_close(&p);
}

static void solicited_only_wakes_for_solicited_messages_only(void **state)
{
    const struct end_attr attr = with_channel();
    struct pair p;

    pair_connect_as(&p, &attr);
    warm_up(&p);
    for (uint64_t i = 0; i < 3; i++)
        end_recv(&p.a, a_recv(&p.a, i, 0, 64));
    arm(p.a.recv_cq); /* and used up, so that nothing of before is left */
    end_send(&p.b, a_send(&p.b, 0, 0, 64));
    assert_ptr_equal(next_event(&p.a), p.a.recv_cq);
    end_expect_success(&p.a, RQ, 0, IBV_WC_RECV);
    CHECK_ZERO(ibv_req_notify_cq(p.a.recv_cq, 1));
    end_send(&p.b, a_send(&p.b, 1, 0, 64));
    end_expect_success(&p.a, RQ, 1, IBV_WC_RECV);
    assert_false(is_readable(p.a.channel->fd));
    end_send(&p.b, with_flags(a_send(&p.b, 2, 0, 64), IBV_SEND_SIGNALED | IBV_SEND_SOLICITED));
    assert_ptr_equal(next_event(&p.a), p.a.recv_cq);
    end_expect_success(&p.a, RQ, 2, IBV_WC_RECV);
    for (uint64_t i = 0; i < 3; i++)
        end_expect_success(&p.b, SQ, i, IBV_WC_SEND);
    pair_close(&p);
}

static void a_message_that_finds_no_receive_wakes_when_there_is_one(void **state)
{
    struct end_attr attr = with_channel();
    struct pair p;

    attr.rnr_retry = 7;
    attr.min_rnr_timer = 1;
    pair_connect_as(&p, &attr);
    warm_up(&p);
    arm(p.a.recv_cq);
    end_send(&p.b, a_send(&p.b, 3, 0, 64));
    /* An event ahead of its completion is one that the program answers by arming again. */
    for (int i = 0; i < 100 && !is_readable(p.a.channel->fd); i++)
        assert_int_equal(ibv_poll_cq(p.a.recv_cq, 1, &(struct ibv_wc){0}), 0);
    if (is_readable(p.a.channel->fd)) {
        next_event(&p.a);
        arm(p.a.recv_cq);
    }
    end_recv(&p.a, a_recv(&p.a, 3, 0, 64));
    assert_ptr_equal(next_event(&p.a), p.a.recv_cq);
    end_expect_success(&p.a, RQ, 3, IBV_WC_RECV);
    end_expect_success(&p.b, SQ, 3, IBV_WC_SEND);
    pair_close(&p);
}

static void a_shared_receive_queue_wakes_too(void **state)
{
    struct end_attr attr = with_channel();
    struct pair p;

    attr.srq_wr = 128;
    pair_connect_as(&p, &attr);
    for (int i = 0; i < 3; i++)
        exchange(&p, WARM);
    pair_close(&p);
}

/* Two CQs on one channel: each event is of the CQ that has something. */
static void with_several_cqs_the_event_is_of_the_right_one(void **state)
{
    const struct end_attr attr = with_channel();
    struct pair p;

    pair_connect_as(&p, &attr);
    warm_up(&p);
    for (uint64_t i = 0; i < 100; i++) {
        struct ibv_cq *seen[2];

        end_recv(&p.a, a_recv(&p.a, i, 0, 64));
        end_recv(&p.b, a_recv(&p.b, i, 0, 64));
        arm(p.a.recv_cq);
        arm(p.a.send_cq);
        end_send(&p.a, a_send(&p.a, i, 64, 64));
        end_send(&p.b, a_send(&p.b, i, 64, 64));
        seen[0] = next_event(&p.a);
        seen[1] = next_event(&p.a);
        assert_true(seen[0] != seen[1]);
        assert_false(is_readable(p.a.channel->fd));
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        end_expect_success(&p.a, RQ, i, IBV_WC_RECV);
        end_expect_success(&p.b, SQ, i, IBV_WC_SEND);
        end_expect_success(&p.b, RQ, i, IBV_WC_RECV);
    }
    pair_close(&p);
}

/* One arming is one event, whoever comes first. */
static void two_senders_and_one_arming_make_one_event(void **state)
{
    const struct end_attr attr = with_channel();
    struct end receiver[2], sender[2];

    end_open(&receiver[0], NEAR, &attr);
    end_share(&receiver[1], &receiver[0]);
    for (int i = 0; i < 2; i++) {
        end_open(&sender[i], &sides[1 + i], &attr);
        end_connect(&receiver[i], &sender[i]);
    }
    for (uint64_t round = 0; round < 200; round++) {
        unsigned int got = 0;
        struct ibv_wc wc;

        for (int i = 0; i < 2; i++)
            end_recv(&receiver[i], a_recv(&receiver[i], round, 0, 64));
        arm(receiver[0].recv_cq);
        for (int i = 0; i < 2; i++)
            end_send(&sender[i], a_send(&sender[i], round, 0, 64));
        assert_ptr_equal(next_event(&receiver[0]), receiver[0].recv_cq);
        EVENTUALLY(got == 2, "two messages of round %d", (int)round)
        {
            got += ibv_poll_cq(receiver[0].recv_cq, 1, &wc) == 1;
        }
        assert_false(is_readable(receiver[0].channel->fd));
        for (int i = 0; i < 2; i++)
            end_expect_success(&sender[i], SQ, round, IBV_WC_SEND);
    }
    for (int i = 0; i < 2; i++)
        end_close(&sender[i]);
    end_close_qp(&receiver[1]);
    end_close(&receiver[0]);
}

/* Its events go with it, also those that a peer has made; those of others stay. */
static void a_cq_that_is_destroyed_leaves_no_readable_channel(void **state)
{
    const struct end_attr attr = with_channel();
    struct pair p;

    pair_connect_as(&p, &attr);
    warm_up(&p);
    end_recv(&p.a, a_recv(&p.a, 5, 0, 64));
    arm(p.a.recv_cq);
    end_send(&p.b, a_send(&p.b, 5, 0, 64));
    wait_readable(p.a.channel->fd);
    CHECK_ZERO(ibv_destroy_qp(p.a.qp));
    CHECK_ZERO(ibv_destroy_cq(p.a.recv_cq));
    assert_false(is_readable(p.a.channel->fd));
    CHECK_ZERO(ibv_destroy_cq(p.a.send_cq));
    CHECK_ZERO(ibv_destroy_comp_channel(p.a.channel));
    end_close(&p.b);
}

/* All that two processes say to each other goes through the same rings. */
static void nobody_waits_for_a_channel_that_is_not_read(void **state)
{
    struct end_attr attr = with_channel();
    struct end a2, b2;
    struct pair p;

    attr.mr_access |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    attr.qp_access |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    pair_connect_as(&p, &attr);
    end_share(&a2, &p.a);
    end_share(&b2, &p.b);
    end_connect(&a2, &b2);
    exchange(&p, WARM);
    for (uint64_t i = 0; i < 20; i++) {
        end_recv(&p.a, a_recv(&p.a, i, 0, 64));
        arm(p.a.recv_cq);
        end_send(&p.b, a_send(&p.b, i, 0, 64));
        /* The channel of `a` is readable, or will be, and nobody reads it. */
        end_expect_success(&p.b, SQ, i, IBV_WC_SEND);
        end_send(&b2, a_write(&b2, i, 0, 64, &p.a, 128));
        end_expect_success(&b2, SQ, i, IBV_WC_RDMA_WRITE);
        end_send(&b2, a_read(&b2, i, 0, 64, &p.a, 128));
        end_expect_success(&b2, SQ, i, IBV_WC_RDMA_READ);
        end_send(&b2, a_fetch_add(&b2, i, 0, &p.a, 192, 1));
        end_expect_success(&b2, SQ, i, IBV_WC_FETCH_ADD);
        while (is_readable(p.a.channel->fd))
            next_event(&p.a);
        end_expect_success(&p.a, RQ, i, IBV_WC_RECV);
    }
    end_close_qp(&a2);
    end_close_qp(&b2);
    pair_close(&p);
}

static void a_ring_that_fills_up_does_not_wait_for_the_program(void **state)
{
    enum { MESSAGES = 100, EACH = 8000 };
    struct end_attr attr = with_channel();
    struct pair p;

    attr.size = 64 * 1024;
    pair_connect_as(&p, &attr);
    warm_up(&p);
    for (uint64_t i = 0; i < MESSAGES; i++)
        end_recv(&p.a, a_recv(&p.a, i, 0, EACH));
    arm(p.a.recv_cq);
    for (uint64_t i = 0; i < MESSAGES; i++)
        end_send(&p.b, a_send(&p.b, i, 0, EACH));
    for (uint64_t i = 0; i < MESSAGES; i++)
        end_expect_success(&p.b, SQ, i, IBV_WC_SEND);
    assert_ptr_equal(next_event(&p.a), p.a.recv_cq);
    for (uint64_t i = 0; i < MESSAGES; i++)
        end_expect_success(&p.a, RQ, i, IBV_WC_RECV);
    pair_close(&p);
}

/* Whoever rings next is heard, and what the dead one sent is there. */
static void a_sender_that_dies_keeps_nobody_asleep(void **state)
{
    const struct end_attr attr = with_channel();
    struct end receiver[2], sender[2];
    struct ibv_wc wc;

    end_open(&receiver[0], NEAR, &attr);
    end_share(&receiver[1], &receiver[0]);
    for (int i = 0; i < 2; i++) {
        end_open(&sender[i], &sides[1 + i], &attr);
        end_connect(&receiver[i], &sender[i]);
        for (uint64_t id = 0; id < 2; id++)
            end_recv(&receiver[i], a_recv(&receiver[i], id, 0, 64));
        end_send(&sender[i], a_send(&sender[i], 0, 0, 64)); /* finds the link */
        end_expect_success(&receiver[i], RQ, 0, IBV_WC_RECV);
        end_expect_success(&sender[i], SQ, 0, IBV_WC_SEND);
    }
    arm(receiver[0].recv_cq);
    /* Inline: payload by reference would die with it. */
    end_send(&sender[0], with_flags(a_send(&sender[0], 1, 0, 64), IBV_SEND_SIGNALED | IBV_SEND_INLINE));
    side_kill(&sides[1]);
    assert_ptr_equal(next_event(&receiver[0]), receiver[0].recv_cq);
    EVENTUALLY(ibv_poll_cq(receiver[0].recv_cq, 1, &wc) == 1, "the message of the dead one")
    {
    }
    arm(receiver[0].recv_cq);
    end_send(&sender[1], a_send(&sender[1], 1, 0, 64));
    assert_ptr_equal(next_event(&receiver[0]), receiver[0].recv_cq);
    end_close(&sender[1]);
    end_close_qp(&receiver[1]);
    end_close(&receiver[0]);
}

/* The acknowledgement of a message is older than the answer to it: programs with one CQ see their request
 * complete first, as hardware has it. */
static void in_one_cq_a_send_completes_before_its_answer(void **state)
{
    struct end_attr attr = with_channel();
    struct pair p;

    attr.one_cq = true;
    pair_connect_as(&p, &attr);
    for (uint64_t i = 0; i < 300; i++) {
        struct ibv_wc wc[2] = {{0}};
        unsigned int got = 0;
        struct ibv_cq *cq;
        void *context;

        end_recv(&p.a, a_recv(&p.a, 1000 + i, 0, 64));
        end_recv(&p.b, a_recv(&p.b, 1000 + i, 0, 64));
        arm(p.a.send_cq);
        end_send(&p.a, a_send(&p.a, i, 64, 64));
        for (bool received = false; !received;) {
            wc[0] = end_wc(&p.b, SQ);
            received = wc[0].opcode & IBV_WC_RECV;
        }
        end_send(&p.b, a_send(&p.b, i, 64, 64));
        EVENTUALLY(got == 2, "the completions of round %d", (int)i)
        {
            wait_readable(p.a.channel->fd);
            CHECK_ZERO(ibv_get_cq_event(p.a.channel, &cq, &context));
            ibv_ack_cq_events(cq, 1);
            arm(cq);
            while (got < 2 && ibv_poll_cq(p.a.send_cq, 1, &wc[got]) == 1)
                got++;
        }
        check_success(&wc[0], i, IBV_WC_SEND);
        check_success(&wc[1], 1000 + i, IBV_WC_RECV);
    }
    pair_close(&p);
}

/* Who arms a CQ takes all that has come on a ring, also where polls take one at a time: the rest would make an
 * event. */
static void what_came_before_the_arming_makes_no_event(void **state)
{
    enum { ALONE = 24, TOGETHER = 4 };
    const struct end_attr attr = with_channel();
    uint64_t id = 0;
    struct pair p;

    if (path_under_test() == PATH_WIRE || path_under_test() == PATH_WIRE_PROCESS)
        skip_because("datagrams that have come are not looked for");
    pair_connect_as(&p, &attr);
    warm_up(&p);
    for (int round = 0; round < 20; round++) {
        struct send sends[TOGETHER];
        struct ibv_wc wc;

        for (unsigned int i = 0; i < ALONE; i++, id++) {
            end_recv(&p.a, a_recv(&p.a, id, 0, 8));
            assert_int_equal(ibv_poll_cq(p.a.recv_cq, 1, &wc), 0);
            end_send(&p.b, a_send(&p.b, id, 0, 8));
            end_expect_success(&p.a, RQ, id, IBV_WC_RECV);
            end_expect_success(&p.b, SQ, id, IBV_WC_SEND);
        }
        while (is_readable(p.a.channel->fd)) /* of the arming that was left over */
            next_event(&p.a);
        for (unsigned int i = 0; i <= TOGETHER; i++)
            end_recv(&p.a, a_recv(&p.a, id + i, 0, 8));
        for (unsigned int i = 0; i < TOGETHER; i++)
            sends[i] = a_send(&p.b, id + i, 0, 8);
        assert_int_equal(ibv_poll_cq(p.a.recv_cq, 1, &wc), 0);
        end_send_list(&p.b, sends, TOGETHER);
        arm(p.a.recv_cq);
        for (unsigned int i = 0; i < TOGETHER; i++)
            end_expect_success(&p.a, RQ, id + i, IBV_WC_RECV);
        assert_false(is_readable(p.a.channel->fd));
        end_send(&p.b, a_send(&p.b, id + TOGETHER, 0, 8)); /* uses up the arming */
        assert_ptr_equal(next_event(&p.a), p.a.recv_cq);
        end_expect_success(&p.a, RQ, id + TOGETHER, IBV_WC_RECV);
        for (unsigned int i = 0; i <= TOGETHER; i++, id++)
            end_expect_success(&p.b, SQ, id, IBV_WC_SEND);
    }
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(programs_that_sleep_exchange_messages),
        TEST(a_message_wakes_the_program_and_not_the_helper_thread),
        TEST(an_acknowledgement_wakes_the_program_and_not_the_helper_thread),
        TEST(an_acknowledgement_that_completes_nothing_makes_no_event),
        TEST_WITH(nor_does_one_behind_a_request_that_found_no_room, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_doorbell_that_comes_too_late_makes_no_event, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST(a_dup_of_the_descriptor_and_epoll_tell_the_same),
        TEST(solicited_only_wakes_for_solicited_messages_only),
        TEST(a_message_that_finds_no_receive_wakes_when_there_is_one),
        TEST(a_shared_receive_queue_wakes_too),
        TEST(with_several_cqs_the_event_is_of_the_right_one),
        TEST_WITH(two_senders_and_one_arming_make_one_event, .fars = 2),
        TEST(a_cq_that_is_destroyed_leaves_no_readable_channel),
        TEST(nobody_waits_for_a_channel_that_is_not_read),
        TEST(a_ring_that_fills_up_does_not_wait_for_the_program),
        TEST_WITH(a_sender_that_dies_keeps_nobody_asleep, .fars = 2, .needs = NEEDS_TWO_PROCESSES),
        TEST(what_came_before_the_arming_makes_no_event),
        TEST(in_one_cq_a_send_completes_before_its_answer),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
