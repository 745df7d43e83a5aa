/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §1.4, §2.11, §6.4: an XRC domain that several processes have open by one file. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "xrc_scene.h"

/* Pointers mean something only on their side. */
struct member {
    struct ibv_context *context;
    struct ibv_xrcd *xrcd;
    char file[32];
    int flags, error;
};

/* --- domains -------------------------------------------------------------------------------------------- */

static void open_there(void *arg)
{
    struct member *member = arg;

    if (!member->context)
        member->context = open_the_device();
    member->xrcd = open_domain(member->context, open_file(member->file), member->flags);
    member->error = member->xrcd ? 0 : errno;
}

static void close_there(void *arg)
{
    struct member *member = arg;

    CHECK(!ibv_close_xrcd(member->xrcd), "ibv_close_xrcd");
}

static int open_at(struct side *side, struct member *member, int flags)
{
    member->flags = flags;
    side_call(side, open_there, member, sizeof(*member));
    return member->error;
}

static void the_flags_hold_between_processes(void **state)
{
    struct member near = {0}, far = {0};

    make_file(near.file);
    strcpy(far.file, near.file);
    assert_int_equal(open_at(NEAR, &near, 0), EAGAIN); /* there is none */
    assert_int_equal(open_at(FAR, &far, O_CREAT | O_EXCL), 0);
    assert_int_equal(open_at(NEAR, &near, O_CREAT | O_EXCL), EINVAL);
    assert_int_equal(open_at(NEAR, &near, 0), 0);
    side_call(FAR, close_there, &far, sizeof(far));
    assert_int_equal(open_at(FAR, &far, O_CREAT | O_EXCL), EINVAL); /* it is the same one still */
    close_there(&near);
    assert_int_equal(open_at(FAR, &far, 0), EAGAIN); /* gone with the last */
    unlink(near.file);
}

static void a_domain_goes_with_the_last_process_that_had_it(void **state)
{
    struct member near = {0}, far = {0};

    make_file(near.file);
    strcpy(far.file, near.file);
    assert_int_equal(open_at(FAR, &far, O_CREAT), 0);
    side_kill(FAR);
    assert_int_equal(open_at(NEAR, &near, 0), EAGAIN);
    assert_int_equal(open_at(NEAR, &near, O_CREAT | O_EXCL), 0);
    close_there(&near);
    unlink(near.file);
}

/* Of several that want to be the first, one is. */
static void one_of_all_is_the_first(void **state)
{
    enum { MEMBERS = 4, ROUNDS = 5 };
    struct member member[MEMBERS] = {{0}};
    struct call call[MEMBERS];

    make_file(member[0].file);
    for (int i = 1; i < MEMBERS; i++)
        strcpy(member[i].file, member[0].file);
    for (int round = 0; round < ROUNDS; round++) {
        int first = 0;

        for (int i = 0; i < MEMBERS; i++) {
            member[i].flags = O_CREAT | O_EXCL;
            side_start(&call[i], &sides[1 + i], open_there, &member[i], sizeof(member[i]));
        }
        for (int i = 0; i < MEMBERS; i++) {
            side_finish(&call[i]);
            first += !member[i].error;
            CHECK(!member[i].error || member[i].error == EINVAL, "%s", strerror(member[i].error));
        }
        assert_int_equal(first, 1);
        for (int i = 0; i < MEMBERS; i++) {
            if (!member[i].error)
                side_call(&sides[1 + i], close_there, &member[i], sizeof(member[i]));
        }
    }
    unlink(member[0].file);
}

/* --- requests for an SRQ of another process ------------------------------------------------------------- */

static void messages_reach_the_srq_of_another_process(void **state)
{
    const size_t sizes[] = {1, 64, 9000, 300000};
    struct scene scene;

    open_scene(&scene);
    for (uint64_t i = 0; i < 24; i++)
        check_message(&scene, &scene.holder[i / 2 % HOLDERS], i, sizes[i % COUNT(sizes)]);
    close_scene(&scene);
}

/* Without waiting in between: requests for one process do not overtake those for the other, and all arrive
 * once. */
static void a_queue_full_for_both_arrives_in_order(void **state)
{
    enum { COUNTED = 48 };
    struct scene scene;
    struct ibv_wc wc;

    open_scene(&scene);
    for (uint64_t i = 0; i < COUNTED; i++)
        receive_at(&scene.holder[i / 3 % HOLDERS], i, 0, 64);
    for (uint64_t i = 0; i < COUNTED; i++)
        send_to(&scene, a_send(&scene.sender, i, 0, 64), &scene.holder[i / 3 % HOLDERS]);
    for (uint64_t i = 0; i < COUNTED; i++)
        end_expect_success(&scene.sender, SQ, i, IBV_WC_SEND);
    for (uint64_t i = 0; i < COUNTED; i++) {
        wc = received(&scene.holder[i / 3 % HOLDERS]);
        check_success(&wc, i, IBV_WC_RECV);
    }
    close_scene(&scene);
}

static void remote_memory_is_that_of_the_srqs_process(void **state)
{
    const size_t sizes[] = {8, 9000, 2000000};
    struct holder *holder;
    struct scene scene;
    struct ibv_wc wc;

    open_scene(&scene);
    holder = &scene.holder[SECOND];
    for (size_t i = 0; i < COUNT(sizes); i++) {
        end_fill(&scene.sender, 0, sizes[i], 1 + i);
        send_to(&scene, a_write(&scene.sender, 1, 0, sizes[i], &holder->end, 0), holder);
        end_expect_success(&scene.sender, SQ, 1, IBV_WC_RDMA_WRITE);
        end_expect_data(&holder->end, 0, sizes[i], 1 + i);
        end_fill(&scene.sender, 0, sizes[i], 99);
        send_to(&scene, a_read(&scene.sender, 2, 0, sizes[i], &holder->end, 0), holder);
        end_expect_success(&scene.sender, SQ, 2, IBV_WC_RDMA_READ);
        end_expect_data(&scene.sender, 0, sizes[i], 1 + i);
        /* Behind it, elsewhere */
        send_to(&scene, a_read(&scene.sender, 2, 0, sizes[i], &holder->end, 0), holder);
        receive_at(&scene.holder[FIRST], 3, 0, 64);
        send_to(&scene, a_send(&scene.sender, 3, 0, 64), &scene.holder[FIRST]);
        end_expect_success(&scene.sender, SQ, 2, IBV_WC_RDMA_READ);
        end_expect_success(&scene.sender, SQ, 3, IBV_WC_SEND);
        wc = received(&scene.holder[FIRST]);
        check_success(&wc, 3, IBV_WC_RECV);
    }
    close_scene(&scene);
}

static void atomics_are_executed_once_by_the_srqs_process(void **state)
{
    enum { COUNTED = 40 };
    struct scene scene;

    open_scene(&scene);
    for (int i = 0; i < HOLDERS; i++)
        end_poke64(&scene.holder[i].end, 0, 1000);
    for (uint64_t i = 0; i < COUNTED; i++) {
        struct holder *holder = &scene.holder[i / 3 % HOLDERS];

        send_to(&scene, a_fetch_add(&scene.sender, i, 8 * i, &holder->end, 0, 1), holder);
    }
    for (uint64_t i = 0; i < COUNTED; i++)
        end_expect_success(&scene.sender, SQ, i, IBV_WC_FETCH_ADD);
    assert_int_equal(end_peek64(&scene.holder[FIRST].end, 0) + end_peek64(&scene.holder[SECOND].end, 0),
                     2000 + COUNTED);
    for (uint64_t i = 0; i < COUNTED; i++) /* each saw those before it on its side */
        assert_int_equal(end_peek64(&scene.sender, 8 * i), 1000 + i / 6 * 3 + i % 3);
    close_scene(&scene);
}

static void check_state_here(struct end *end, void *arg)
{
    struct holder *holder = arg;
    struct ibv_async_event event;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    CHECK_ZERO(ibv_query_qp(holder->qp, &attr, IBV_QP_STATE, &init));
    CHECK(attr.qp_state == IBV_QPS_ERR, "state %d", (int)attr.qp_state);
    do {
        CHECK_ZERO(ibv_get_async_event(end->context, &event));
        ibv_ack_async_event(&event);
    } while (event.event_type == IBV_EVENT_COMM_EST);
    CHECK(event.event_type == (enum ibv_event_type)holder->id && event.element.qp == holder->qp, "event %d",
          (int)event.event_type);
}

/* The process that has the QP hears of it. */
static void an_error_over_there_ends_the_connection(void **state)
{
    struct scene scene;
    struct ibv_wc wc;

    for (int which = 0; which < 3; which++) {
        struct holder *first, *second;
        struct send send;

        open_scene(&scene);
        first = &scene.holder[FIRST];
        second = &scene.holder[SECOND];
        send = which == 0   ? a_write(&scene.sender, 1, 0, 20000, &first->end, 0)
               : which == 1 ? a_read(&scene.sender, 1, 0, 20000, &first->end, 0)
                            : a_fetch_add(&scene.sender, 1, 0, &first->end, 0, 1);
        check_message(&scene, second, 3, 64);
        send_to(&scene, send, second); /* by the key of another process */
        end_expect_status(&scene.sender, SQ, 1, IBV_WC_REM_ACCESS_ERR);
        first->id = IBV_EVENT_QP_ACCESS_ERR;
        AT(&first->end, check_state_here, first);
        close_scene(&scene);
    }
    /* A receive that is too short completes over there. */
    open_scene(&scene);
    receive_at(&scene.holder[SECOND], 5, 0, 10000);
    send_to(&scene, a_send(&scene.sender, 1, 0, 30000), &scene.holder[SECOND]);
    wc = received(&scene.holder[SECOND]);
    check_status(&wc, 5, IBV_WC_LOC_LEN_ERR);
    end_expect_status(&scene.sender, SQ, 1, IBV_WC_REM_INV_REQ_ERR);
    close_scene(&scene);
}

/* The CQ is the SRQ's, not the QP's. */
static void completions_outlive_the_qp(void **state)
{
    struct scene scene;
    struct ibv_wc wc;

    open_scene(&scene);
    for (int i = 0; i < HOLDERS; i++) {
        receive_at(&scene.holder[i], 5, 0, 64);
        send_to(&scene, a_send(&scene.sender, 1, 0, 64), &scene.holder[i]);
        end_expect_success(&scene.sender, SQ, 1, IBV_WC_SEND);
    }
    AT(&scene.holder[FIRST].end, destroy_qp_here, &scene.holder[FIRST]);
    for (int i = 0; i < HOLDERS; i++) {
        wc = received(&scene.holder[i]);
        check_success(&wc, 5, IBV_WC_RECV);
        assert_int_equal(wc.qp_num, scene.holder[FIRST].qpn);
    }
    close_scene(&scene);
}

static void an_empty_srq_over_there_is_waited_for(void **state)
{
    struct scene scene;
    struct ibv_wc wc;

    open_scene(&scene);
    for (uint64_t i = 0; i < 4; i++) {
        struct holder *holder = &scene.holder[SECOND];

        send_to(&scene, a_send(&scene.sender, i, 0, 20000), holder);
        /* Behind it: it must not be first. */
        receive_at(&scene.holder[FIRST], 100 + i, 0, 64);
        send_to(&scene, a_send(&scene.sender, 10 + i, 0, 64), &scene.holder[FIRST]);
        receive_at(holder, i, 0, 20000);
        wc = received(holder);
        check_success(&wc, i, IBV_WC_RECV);
        wc = received(&scene.holder[FIRST]);
        check_success(&wc, 100 + i, IBV_WC_RECV);
        end_expect_success(&scene.sender, SQ, i, IBV_WC_SEND);
        end_expect_success(&scene.sender, SQ, 10 + i, IBV_WC_SEND);
    }
    close_scene(&scene);
}

static void destroy_srq_here(struct end *end, void *arg)
{
    struct holder *holder = arg;

    CHECK_ZERO(ibv_destroy_srq(holder->srq));
    holder->srq = NULL;
}

static void an_srq_that_went_over_there_ends_the_connection(void **state)
{
    struct scene scene;

    for (int used = 0; used < 2; used++) {
        open_scene(&scene);
        if (used)
            check_message(&scene, &scene.holder[SECOND], 1, 64);
        AT(&scene.holder[SECOND].end, destroy_srq_here, &scene.holder[SECOND]);
        send_to(&scene, a_send(&scene.sender, 1, 0, 64), &scene.holder[SECOND]);
        end_expect_status(&scene.sender, SQ, 1, IBV_WC_REM_INV_REQ_ERR);
        scene.holder[FIRST].id = IBV_EVENT_QP_REQ_ERR;
        AT(&scene.holder[FIRST].end, check_state_here, &scene.holder[FIRST]);
        close_scene(&scene);
    }
}

static void renew_domain_here(struct end *end, void *arg)
{
    struct holder *holder = arg;

    let_go_here(end, holder);
    holder->fd = open_file(holder->file);
    hold_here(end, holder);
}

/* By another file it is another domain. */
static void an_srq_of_another_domain_is_not_reached(void **state)
{
    struct scene scene;

    open_scene(&scene);
    check_message(&scene, &scene.holder[SECOND], 1, 64);
    make_file(scene.holder[SECOND].file);
    AT(&scene.holder[SECOND].end, renew_domain_here, &scene.holder[SECOND]);
    send_to(&scene, a_send(&scene.sender, 1, 0, 64), &scene.holder[SECOND]);
    end_expect_status(&scene.sender, SQ, 1, IBV_WC_REM_INV_REQ_ERR);
    unlink(scene.holder[SECOND].file);
    close_scene(&scene);
}

/* Whoever has the SRQ does not hold the QP, and the other way round: each goes when it likes. */
static void a_connection_can_be_made_anew(void **state)
{
    struct scene scene;

    open_scene(&scene);
    for (uint64_t i = 0; i < 3; i++) {
        struct holder *first = &scene.holder[FIRST];
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

        check_message(&scene, &scene.holder[SECOND], 1, 5000);
        CHECK_ZERO(ibv_modify_qp(scene.qp, &attr, IBV_QP_STATE));
        AT(&first->end, destroy_qp_here, first);
        AT(&first->end, make_receive_here, first);
        AT(&first->end, connect_receive_here, first);
        connect_send(&scene);
        check_message(&scene, &scene.holder[i % HOLDERS], 2, 5000);
    }
    close_scene(&scene);
}

/* --- death ---------------------------------------------------------------------------------------------- */

static void the_connection_outlives_a_process_that_had_an_srq(void **state)
{
    struct scene scene;

    open_scene(&scene);
    check_message(&scene, &scene.holder[SECOND], 1, 9000);
    side_kill(scene.holder[SECOND].end.side);
    check_message(&scene, &scene.holder[FIRST], 2, 64);
    send_to(&scene, a_send(&scene.sender, 1, 0, 64), &scene.holder[SECOND]);
    end_expect_status(&scene.sender, SQ, 1, IBV_WC_REM_INV_REQ_ERR);
    close_scene(&scene);
}

static void a_message_whose_process_dies_ends_the_connection(void **state)
{
    struct scene scene;

    open_scene(&scene);
    check_message(&scene, &scene.holder[SECOND], 1, 9000);
    side_stop(scene.holder[SECOND].end.side);
    send_to(&scene, a_send(&scene.sender, 1, 0, 1000000), &scene.holder[SECOND]);
    side_kill(scene.holder[SECOND].end.side);
    end_expect_status(&scene.sender, SQ, 1, IBV_WC_REM_INV_REQ_ERR);
    close_scene(&scene);
}

static void an_srq_outlives_the_process_that_had_the_qp(void **state)
{
    struct holder *second;
    struct scene scene;

    open_scene(&scene);
    second = &scene.holder[SECOND];
    check_message(&scene, second, 1, 9000);
    side_kill(scene.holder[FIRST].end.side);
    /* Its next one is here. */
    AT(&second->end, make_receive_here, second);
    second->peer = scene.sender;
    AT(&second->end, connect_receive_here, second);
    {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

        CHECK_ZERO(ibv_modify_qp(scene.qp, &attr, IBV_QP_STATE));
    }
    scene.holder[FIRST].end = second->end;
    scene.holder[FIRST].qpn = second->qpn;
    connect_send(&scene);
    check_message(&scene, second, 2, 9000);
    scene.holder[FIRST].end.side = &sides[1];
    close_scene(&scene);
}

/* --- users ---------------------------------------------------------------------------------------------- */

enum { ONE_USER = 61001, ANOTHER_USER = 61002 };

/* Whether another user is let in says the file's mode; a process that got the descriptor otherwise is not. */
static void another_user_is_reached_where_the_file_lets_him_open_it(void **state)
{
    const uid_t users[HOLDERS] = {ONE_USER, ANOTHER_USER};
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct scene scene;

    if (geteuid() != 0 || !two_processes())
        skip_because("needs root, to be several users");
    open_scene_as(&scene, &attr, users, 0644);
    for (uint64_t i = 0; i < 6; i++)
        check_message(&scene, &scene.holder[i % HOLDERS], i, 9000);
    close_scene(&scene);
}

static void another_user_is_not_reached_where_it_does_not(void **state)
{
    const uid_t users[HOLDERS] = {ONE_USER, ANOTHER_USER};
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct scene scene;

    if (geteuid() != 0 || !two_processes())
        skip_because("needs root, to be several users");
    open_scene_as(&scene, &attr, users, 0600);
    check_message(&scene, &scene.holder[FIRST], 1, 64);
    send_to(&scene, a_send(&scene.sender, 1, 0, 64), &scene.holder[SECOND]);
    end_expect_status(&scene.sender, SQ, 1, IBV_WC_REM_INV_REQ_ERR);
    close_scene(&scene);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(the_flags_hold_between_processes),
        TEST_WITH(a_domain_goes_with_the_last_process_that_had_it, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(one_of_all_is_the_first, .fars = 4),
        TEST_WITH(messages_reach_the_srq_of_another_process, .fars = HOLDERS),
        TEST_WITH(a_queue_full_for_both_arrives_in_order, .fars = HOLDERS),
        TEST_WITH(remote_memory_is_that_of_the_srqs_process, .fars = HOLDERS),
        TEST_WITH(atomics_are_executed_once_by_the_srqs_process, .fars = HOLDERS),
        TEST_WITH(an_error_over_there_ends_the_connection, .fars = HOLDERS),
        TEST_WITH(completions_outlive_the_qp, .fars = HOLDERS),
        TEST_WITH(an_empty_srq_over_there_is_waited_for, .fars = HOLDERS),
        TEST_WITH(an_srq_that_went_over_there_ends_the_connection, .fars = HOLDERS),
        TEST_WITH(an_srq_of_another_domain_is_not_reached, .fars = HOLDERS),
        TEST_WITH(a_connection_can_be_made_anew, .fars = HOLDERS),
        TEST_WITH(the_connection_outlives_a_process_that_had_an_srq, .fars = HOLDERS,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_message_whose_process_dies_ends_the_connection, .fars = HOLDERS,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(an_srq_outlives_the_process_that_had_the_qp, .fars = HOLDERS, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(another_user_is_reached_where_the_file_lets_him_open_it, .fars = HOLDERS),
        TEST_WITH(another_user_is_not_reached_where_it_does_not, .fars = HOLDERS),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
