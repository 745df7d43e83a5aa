/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §0.3 and §10.10, compatibility.md §8: a program forks while it has objects and traffic. */
#include "work.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs fn in a forked child; its exit status must be 0. */
static pid_t fork_child(void (*fn)(void *arg), void *arg)
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    CHECK(pid >= 0, "fork: %s", strerror(errno));
    if (pid == 0) {
        fn(arg);
        _exit(0);
    }
    return pid;
}

static void expect_exit_0(pid_t pid)
{
    int status = 0;
    pid_t got;

    EVENTUALLY((got = waitpid(pid, &status, WNOHANG)) == pid, "a forked child to end")
    CHECK(got == 0 || errno == EINTR, "waitpid: %s", strerror(errno));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status 0x%x",
          (unsigned int)status);
}

static void do_nothing(void *arg)
{
}

static void traffic_goes_on_in_the_parent_after_a_fork(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    for (unsigned int i = 0; i < 10; i++) {
        pid_t child;

        pair_marker(&p.a, &p.b);
        end_send(&p.a, a_write(&p.a, 1, 0, 30000, &p.b, 0));
        child = fork_child(do_nothing, NULL);
        end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
        pair_marker(&p.b, &p.a);
        expect_exit_0(child);
        pair_marker(&p.a, &p.b);
    }
    pair_close(&p);
}

/* What a child may do to what it inherited: close and destroy, to no effect */
static void destroy_all(void *arg)
{
    struct end *end = arg;

    ibv_destroy_qp(end->qp);
    ibv_dereg_mr(end->mr);
    ibv_destroy_cq(end->send_cq);
    ibv_destroy_cq(end->recv_cq);
    ibv_dealloc_pd(end->pd);
    ibv_close_device(end->context);
}

static void destroying_inherited_objects_in_the_child_is_harmless(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    pair_marker(&p.a, &p.b);
    expect_exit_0(fork_child(destroy_all, &p.a));
    pair_marker(&p.a, &p.b);
    pair_marker(&p.b, &p.a);
    pair_close(&p);
}

static void closing_every_descriptor_in_the_child_is_harmless(void **state)
{
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    pair_marker(&p.a, &p.b);
    {
        const pid_t child = fork();

        if (child == 0) {
            for (int fd = 3; fd < 1024; fd++)
                close(fd);
            _exit(0);
        }
        expect_exit_0(child);
    }
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

/* A child opens its own device and talks to itself. Its failures are seen by its exit status. */
static void talk_to_itself(void *arg)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end one, two;

    one = (struct end){0};
    end_open(&one, NEAR, &attr);
    end_open(&two, NEAR, &attr);
    end_connect(&one, &two);
    for (unsigned int i = 0; i < 20; i++) {
        pair_marker(&one, &two);
        pair_marker(&two, &one);
    }
    end_close(&one);
    end_close(&two);
}

static void a_child_may_open_the_device_anew(void **state)
{
    struct pair p;
    pid_t children[4];

    pair_connect(&p, IBV_QPT_RC);
    pair_marker(&p.a, &p.b);
    for (size_t i = 0; i < COUNT(children); i++)
        children[i] = fork_child(talk_to_itself, NULL);
    for (unsigned int i = 0; i < 50; i++) {
        pair_marker(&p.a, &p.b);
        pair_marker(&p.b, &p.a);
    }
    for (size_t i = 0; i < COUNT(children); i++)
        expect_exit_0(children[i]);
    pair_marker(&p.a, &p.b);
    pair_close(&p);
}

static void fork_again(void *arg)
{
    talk_to_itself(NULL);
    expect_exit_0(fork_child(talk_to_itself, NULL));
    talk_to_itself(NULL);
}

static void a_child_may_fork_again(void **state)
{
    talk_to_itself(NULL);
    expect_exit_0(fork_child(fork_again, NULL));
    talk_to_itself(NULL);
}

/* A child that keeps what it inherited must not keep the parent alive in the eyes of a peer. */
static void leave_a_child(struct end *end, void *arg)
{
    const pid_t pid = fork();

    if (pid == 0) {
        pause();
        _exit(0);
    }
    *(pid_t *)arg = pid; /* not in the child: it shares what travels */
}

static void a_forked_child_does_not_hide_the_death_of_its_parent(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    pid_t child = 0;
    struct pair p;

    attr.timeout = 10;
    attr.retry_cnt = 2;
    pair_connect_as(&p, &attr);
    pair_marker(&p.a, &p.b);
    AT(&p.b, leave_a_child, &child);
    side_kill(FAR);
    end_send(&p.a, a_write(&p.a, 1, 0, 64, &p.b, 0));
    end_expect_status(&p.a, SQ, 1, IBV_WC_RETRY_EXC_ERR);
    assert_true(child > 0);
    kill(child, SIGKILL);
    end_close(&p.a);
}

/* The child sees memory as it was, the parent's device goes on writing the parent's. */
static void compare_snapshot(void *arg)
{
    struct end *end = arg;
    char go;

    /* the parent says when it has received more */
    if (read(STDIN_FILENO, &go, 1) != 1)
        _exit(2);
    if (find_difference(end->buf, 4096, 1) != 4096)
        _exit(3);
}

static void received_data_is_the_parents_not_the_childs(void **state)
{
    int fds[2];
    pid_t child;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    pair_marker(&p.b, &p.a);
    end_fill(&p.a, 0, 4096, 1);
    assert_int_equal(pipe(fds), 0);
    assert_true(dup2(fds[0], STDIN_FILENO) >= 0);
    child = fork_child(compare_snapshot, &p.a);
    end_fill(&p.b, 0, 4096, 2);
    end_send(&p.b, a_write(&p.b, 1, 0, 4096, &p.a, 0));
    end_expect_success(&p.b, SQ, 1, IBV_WC_RDMA_WRITE);
    end_expect_data(&p.a, 0, 4096, 2);
    assert_int_equal(write(fds[1], "g", 1), 1);
    expect_exit_0(child);
    pair_close(&p);
}

static void stream(struct end *end, void *arg)
{
    const unsigned int *rounds = arg;

    for (unsigned int i = 0; i < *rounds; i++) {
        end_recv(end, a_recv(end, i, 0, 1024));
        end_expect_success(end, RQ, i, IBV_WC_RECV);
        end_send(end, a_send(end, i, 1024, 1024));
        end_expect_success(end, SQ, i, IBV_WC_SEND);
    }
}

static void forks_in_the_middle_of_traffic_disturb_neither_side(void **state)
{
    unsigned int rounds = 300;
    struct end_call call;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    end_start(&call, &p.b, stream, &rounds, sizeof(rounds));
    for (unsigned int i = 0; i < rounds; i++) {
        pid_t child = 0;

        end_recv(&p.a, a_recv(&p.a, i, 0, 1024));
        end_send(&p.a, a_send(&p.a, i, 1024, 1024));
        if (i % 10 == 5)
            child = fork_child(i % 20 == 5 ? do_nothing : destroy_all, &p.a);
        end_expect_success(&p.a, SQ, i, IBV_WC_SEND);
        end_expect_success(&p.a, RQ, i, IBV_WC_RECV);
        if (child)
            expect_exit_0(child);
    }
    end_finish(&call);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(traffic_goes_on_in_the_parent_after_a_fork),
        TEST(destroying_inherited_objects_in_the_child_is_harmless),
        TEST(closing_every_descriptor_in_the_child_is_harmless),
        TEST(a_child_may_open_the_device_anew),
        TEST(a_child_may_fork_again),
        TEST_WITH(a_forked_child_does_not_hide_the_death_of_its_parent, .fars = 1,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST(received_data_is_the_parents_not_the_childs),
        TEST(forks_in_the_middle_of_traffic_disturb_neither_side),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
