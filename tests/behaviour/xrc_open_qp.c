/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §1.4, §1.5, §2.11, §9.1: ibv_open_qp. The first holder makes the QP, the others open it. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "threads.h"
#include "xrc_scene.h"

enum { ONE_USER = 61001, ANOTHER_USER = 61002, CONTEXT = 0x1234 };

/* A handle at a holder; pointers mean something only there. */
struct handle {
    struct ibv_xrcd *xrcd;
    uint32_t qpn;
    struct ibv_qp *qp; /* NULL: it was refused, */
    int error;         /* so; or what the last verb said */
    struct ibv_qp_attr attr;
    int mask;
    enum ibv_event_type event;
    bool of_this_handle, unacked;
    struct ibv_async_event held;
};

static struct ibv_qp *try_open(struct ibv_context *context, struct ibv_xrcd *xrcd, uint32_t qpn,
                               uint32_t mask, enum ibv_qp_type type)
{
    struct ibv_qp_open_attr attr = {.comp_mask = mask,
                                    .qp_num = qpn,
                                    .xrcd = xrcd,
                                    .qp_context = (void *)(uintptr_t)CONTEXT,
                                    .qp_type = type};

    errno = 0;
    return ibv_open_qp(context, &attr);
}

enum { NEEDED = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE };

static void open_here(struct end *end, void *arg)
{
    struct handle *handle = arg;

    handle->qp = try_open(end->context, handle->xrcd, handle->qpn, NEEDED, IBV_QPT_XRC_RECV);
    handle->error = handle->qp ? 0 : errno;
}

/* By the XRCD of that holder. */
static struct handle open_at(struct scene *scene, int which)
{
    struct handle handle = {.xrcd = scene->holder[which].xrcd, .qpn = scene->holder[FIRST].qpn};

    AT(&scene->holder[which].end, open_here, &handle);
    return handle;
}

static struct handle opened_at(struct scene *scene, int which)
{
    struct handle handle = open_at(scene, which);

    CHECK(handle.qp, "ibv_open_qp: %s", strerror(handle.error));
    return handle;
}

static void destroy_here(struct end *end, void *arg)
{
    struct handle *handle = arg;

    CHECK_ZERO(ibv_destroy_qp(handle->qp));
}

static void destroy_at(struct scene *scene, int which, struct handle *handle)
{
    AT(&scene->holder[which].end, destroy_here, handle);
}

static void query_here(struct end *end, void *arg)
{
    struct handle *handle = arg;
    struct ibv_qp_init_attr init;

    handle->error = ibv_query_qp(handle->qp, &handle->attr, IBV_QP_STATE, &init);
    CHECK(handle->error || (init.qp_type == IBV_QPT_XRC_RECV && !init.send_cq && !init.recv_cq && !init.srq),
          "init attributes");
    CHECK(handle->error || handle->qp->state == handle->attr.qp_state, "the handle says %d",
          (int)handle->qp->state);
}

static enum ibv_qp_state state_at(struct scene *scene, int which, struct handle *handle)
{
    AT(&scene->holder[which].end, query_here, handle);
    CHECK(!handle->error, "ibv_query_qp: %s", strerror(handle->error));
    return handle->attr.qp_state;
}

static void event_here(struct end *end, void *arg)
{
    struct handle *handle = arg;

    CHECK_ZERO(ibv_get_async_event(end->context, &handle->held));
    handle->event = handle->held.event_type;
    handle->of_this_handle = handle->held.element.qp == handle->qp;
    if (!handle->unacked)
        ibv_ack_async_event(&handle->held);
}

static void expect_event(struct scene *scene, int which, struct handle *handle, enum ibv_event_type type)
{
    AT(&scene->holder[which].end, event_here, handle);
    CHECK(handle->event == type, "event is \"%s\", not \"%s\"", ibv_event_type_str(handle->event),
          ibv_event_type_str(type));
    assert_true(handle->of_this_handle);
}

/* What the creator has. */
static struct handle creators(const struct scene *scene)
{
    return (struct handle){.qp = scene->holder[FIRST].qp, .qpn = scene->holder[FIRST].qpn};
}

static void creator_lets_go(struct scene *scene)
{
    AT(&scene->holder[FIRST].end, destroy_qp_here, &scene->holder[FIRST]);
}

/* --- opening ------------------------------------------------------------------------------------------- */

static void check_refusals_here(struct end *end, void *arg)
{
    struct handle *handle = arg;
    struct ibv_context *context = end->context;
    struct ibv_xrcd *private = open_domain(context, -1, O_CREAT);
    const struct {
        uint32_t mask, qpn;
        struct ibv_xrcd *xrcd;
        enum ibv_qp_type type;
        int error;
    } cases[] = {
        {NEEDED & ~IBV_QP_OPEN_ATTR_NUM, handle->qpn, handle->xrcd, IBV_QPT_XRC_RECV, EINVAL},
        {NEEDED & ~IBV_QP_OPEN_ATTR_XRCD, handle->qpn, handle->xrcd, IBV_QPT_XRC_RECV, EINVAL},
        {NEEDED & ~IBV_QP_OPEN_ATTR_TYPE, handle->qpn, handle->xrcd, IBV_QPT_XRC_RECV, EINVAL},
        {NEEDED | IBV_QP_OPEN_ATTR_RESERVED, handle->qpn, handle->xrcd, IBV_QPT_XRC_RECV, EOPNOTSUPP},
        {NEEDED, handle->qpn, handle->xrcd, IBV_QPT_XRC_SEND, EINVAL},
        {NEEDED, handle->qpn, handle->xrcd, IBV_QPT_RC, EINVAL},
        {NEEDED, handle->qpn, NULL, IBV_QPT_XRC_RECV, EINVAL},
        {NEEDED, handle->qpn, private, IBV_QPT_XRC_RECV, EINVAL},                 /* another domain's */
        {NEEDED, end->qp->qp_num, handle->xrcd, IBV_QPT_XRC_RECV, EINVAL},        /* an RC QP */
        {NEEDED, handle->qpn + 1, handle->xrcd, IBV_QPT_XRC_RECV, EINVAL},        /* not in use */
        {NEEDED, handle->qpn ^ 0x800000, handle->xrcd, IBV_QPT_XRC_RECV, EINVAL}, /* nobody's */
        {NEEDED, 1, handle->xrcd, IBV_QPT_XRC_RECV, EINVAL},
    };

    CHECK(private, "ibv_open_xrcd");
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct ibv_qp *qp = try_open(context, cases[i].xrcd, cases[i].qpn, cases[i].mask, cases[i].type);

        CHECK(!qp && errno == cases[i].error, "case %zu: %s", i, strerror(errno));
    }
    CHECK_ZERO(ibv_close_xrcd(private));
}

static void what_is_no_qp_of_the_domain_is_refused(void **state)
{
    struct scene scene;

    open_scene(&scene);
    for (int i = 0; i < HOLDERS; i++) {
        struct handle handle = {.xrcd = scene.holder[i].xrcd, .qpn = scene.holder[FIRST].qpn};

        AT(&scene.holder[i].end, check_refusals_here, &handle);
    }
    close_scene(&scene);
}

static void check_shape_here(struct end *end, void *arg)
{
    struct handle *handle = arg;

    for (int named = 0; named < 2; named++) {
        struct ibv_qp *qp = try_open(end->context, handle->xrcd, handle->qpn,
                                     NEEDED | (named ? IBV_QP_OPEN_ATTR_CONTEXT : 0), IBV_QPT_XRC_RECV);
        struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
        struct ibv_recv_wr receive = {0}, *bad_receive;
        struct ibv_qp_init_attr init;
        struct ibv_qp_attr attr;

        CHECK(qp, "ibv_open_qp: %s", strerror(errno));
        CHECK(qp->context == end->context && qp->qp_num == handle->qpn && qp->qp_type == IBV_QPT_XRC_RECV &&
                  qp->state == IBV_QPS_UNKNOWN && !qp->pd && !qp->send_cq && !qp->recv_cq && !qp->srq,
              "members");
        CHECK(!named || (uintptr_t)qp->qp_context == CONTEXT, "qp_context");
        CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL && bad_send == &send, "ibv_post_send");
        CHECK(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL && bad_receive == &receive,
              "ibv_post_recv");
        CHECK_ZERO(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
        CHECK(attr.qp_state == IBV_QPS_RTR && qp->state == IBV_QPS_RTR, "state %d", (int)attr.qp_state);
        CHECK(init.qp_context == qp->qp_context, "qp_context of the query");
        CHECK_ZERO(ibv_destroy_qp(qp));
    }
}

static void a_handle_has_no_parts_and_no_state_until_it_asks(void **state)
{
    struct scene scene;

    open_scene(&scene);
    for (int i = 0; i < HOLDERS; i++) {
        struct handle handle = {.xrcd = scene.holder[i].xrcd, .qpn = scene.holder[FIRST].qpn};

        AT(&scene.holder[i].end, check_shape_here, &handle);
    }
    check_message(&scene, &scene.holder[SECOND], 1, 64);
    close_scene(&scene);
}

/* --- modifying ----------------------------------------------------------------------------------------- */

static void connect_here(struct end *end, void *arg)
{
    struct holder *holder = arg;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    int mask;

    CHECK_ZERO(ibv_modify_qp(holder->qp, &attr, IBV_QP_STATE));
    CHECK(holder->qp->state == IBV_QPS_RESET, "state %d", (int)holder->qp->state);
    attr.qp_state = IBV_QPS_RTS; /* not from here */
    CHECK(ibv_modify_qp(holder->qp, &attr, IBV_QP_STATE) == EINVAL, "RESET to RTS");
    CHECK(holder->qp->state == IBV_QPS_RESET, "state %d", (int)holder->qp->state);
    mask = attr_for_init(end, &attr);
    CHECK_ZERO(ibv_modify_qp(holder->qp, &attr, mask));
    mask = attr_for_rtr(end, &holder->peer, &attr);
    CHECK_ZERO(ibv_modify_qp(holder->qp, &attr, mask));
    CHECK(holder->qp->state == IBV_QPS_RTR, "state %d", (int)holder->qp->state);
}

/* Addresses are those of its own device. */
static void whoever_has_it_open_connects_it(void **state)
{
    struct scene scene;

    open_scene(&scene);
    for (int i = 0; i < HOLDERS; i++) {
        struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
        struct holder *holder = &scene.holder[i];
        struct handle handle = opened_at(&scene, i), creator = creators(&scene);
        struct ibv_qp *own = holder->qp;

        CHECK_ZERO(ibv_modify_qp(scene.qp, &reset, IBV_QP_STATE));
        holder->qp = handle.qp;
        holder->peer = scene.sender;
        AT(&holder->end, connect_here, holder);
        holder->qp = own;
        connect_send(&scene);
        check_message(&scene, &scene.holder[FIRST], 1, 9000);
        check_message(&scene, &scene.holder[SECOND], 2, 9000);
        assert_int_equal(state_at(&scene, FIRST, &creator), IBV_QPS_RTR);
        destroy_at(&scene, i, &handle);
    }
    close_scene(&scene);
}

/* --- the end ------------------------------------------------------------------------------------------- */

static void it_ends_with_its_last_handle(void **state)
{
    struct scene scene;

    for (int which = 0; which < HOLDERS; which++) {
        struct handle handle, other;

        open_scene(&scene);
        handle = opened_at(&scene, which);
        creator_lets_go(&scene);
        check_message(&scene, &scene.holder[FIRST], 1, 9000);
        check_message(&scene, &scene.holder[SECOND], 2, 9000);
        assert_int_equal(state_at(&scene, which, &handle), IBV_QPS_RTR);
        other = opened_at(&scene, SECOND);
        destroy_at(&scene, which, &handle);
        check_message(&scene, &scene.holder[SECOND], 3, 64);
        destroy_at(&scene, SECOND, &other);
        /* Closing is not answered: it may be on its way still. */
        EVENTUALLY((handle = open_at(&scene, FIRST), !handle.qp), "the end of the QP")
        destroy_at(&scene, FIRST, &handle);
        assert_int_equal(handle.error, EINVAL);
        close_scene(&scene);
    }
}

/* All that the creator had goes, but its process. */
static void it_outlives_its_creators_domain_and_device(void **state)
{
    struct handle handle;
    struct scene scene;

    open_scene(&scene);
    handle = opened_at(&scene, SECOND);
    creator_lets_go(&scene);
    close_holder(&scene.holder[FIRST]);
    check_message(&scene, &scene.holder[SECOND], 1, 9000);
    check_message(&scene, &scene.holder[SECOND], 2, 64);
    assert_int_equal(state_at(&scene, SECOND, &handle), IBV_QPS_RTR);
    destroy_at(&scene, SECOND, &handle);
    CHECK_ZERO(ibv_destroy_qp(scene.qp));
    close_holder(&scene.holder[SECOND]);
    end_close(&scene.sender);
}

static void close_device_here(struct end *end, void *arg)
{
    CHECK_ZERO(ibv_close_device(end->context));
}

/* With everything that the creator made, and never destroyed, and a handle besides. */
static void it_outlives_a_device_that_is_closed_before_all_else(void **state)
{
    struct handle handle;
    struct scene scene;

    open_scene(&scene);
    handle = opened_at(&scene, SECOND);
    (void)opened_at(&scene, FIRST);
    AT_PLAIN(&scene.holder[FIRST].end, close_device_here);
    check_message(&scene, &scene.holder[SECOND], 1, 9000);
    assert_int_equal(state_at(&scene, SECOND, &handle), IBV_QPS_RTR);
    destroy_at(&scene, SECOND, &handle);
    close_holder(&scene.holder[SECOND]);
    CHECK_ZERO(ibv_destroy_qp(scene.qp));
    end_close(&scene.sender);
}

static void close_domain_here(struct end *end, void *arg)
{
    struct holder *holder = arg;

    CHECK_ZERO(ibv_destroy_srq(holder->srq));
    holder->srq = NULL;
    CHECK(ibv_close_xrcd(holder->xrcd) == EBUSY, "ibv_close_xrcd");
}

static void a_handle_keeps_the_domain_open(void **state)
{
    struct handle handle[HOLDERS];
    struct scene scene;

    open_scene(&scene);
    for (int i = 0; i < HOLDERS; i++)
        handle[i] = opened_at(&scene, i);
    creator_lets_go(&scene);
    for (int i = 0; i < HOLDERS; i++) {
        AT(&scene.holder[i].end, close_domain_here, &scene.holder[i]);
        destroy_at(&scene, i, &handle[i]);
    }
    close_scene(&scene); /* ibv_close_xrcd() is not refused any more */
}

static void come_and_go_here(struct end *end, void *arg)
{
    struct handle *handle = arg;

    for (int i = 0; i < 50; i++) {
        open_here(end, handle);
        CHECK(handle->qp, "ibv_open_qp: %s", strerror(handle->error));
        CHECK_ZERO(ibv_destroy_qp(handle->qp));
    }
}

static void handles_come_and_go_while_it_works(void **state)
{
    struct end_call call[HOLDERS];
    struct handle handle[HOLDERS];
    struct scene scene;

    open_scene(&scene);
    for (int i = 0; i < HOLDERS; i++) {
        handle[i] = (struct handle){.xrcd = scene.holder[i].xrcd, .qpn = scene.holder[FIRST].qpn};
        end_start(&call[i], &scene.holder[i].end, come_and_go_here, &handle[i], sizeof(handle[i]));
    }
    for (uint64_t i = 0; i < 20; i++) {
        send_to(&scene, a_write(&scene.sender, i, 0, 64, &scene.holder[i % HOLDERS].end, 64),
                &scene.holder[i % HOLDERS]);
        end_expect_success(&scene.sender, SQ, i, IBV_WC_RDMA_WRITE);
    }
    for (int i = 0; i < HOLDERS; i++)
        end_finish(&call[i]);
    check_message(&scene, &scene.holder[SECOND], 1, 64);
    close_scene(&scene);
}

/* All let go at once: one of them ends it. */
static void all_let_go_at_once(void **state)
{
    struct scene scene;

    open_scene(&scene);
    for (int round = 0; round < 10; round++) {
        struct handle handle[HOLDERS + 1];
        struct end_call call[HOLDERS];

        for (int i = 0; i < HOLDERS; i++)
            handle[i] = opened_at(&scene, i);
        creator_lets_go(&scene);
        for (int i = 0; i < HOLDERS; i++)
            end_start(&call[i], &scene.holder[i].end, destroy_here, &handle[i], sizeof(handle[i]));
        for (int i = 0; i < HOLDERS; i++)
            end_finish(&call[i]);
        AT(&scene.holder[FIRST].end, make_receive_here, &scene.holder[FIRST]);
        AT(&scene.holder[FIRST].end, connect_receive_here, &scene.holder[FIRST]);
    }
    close_scene(&scene);
}

/* --- events -------------------------------------------------------------------------------------------- */

static void events_go_to_all_who_have_it_open(void **state)
{
    struct handle creator, near, far;
    struct scene scene;

    open_scene(&scene);
    creator = creators(&scene);
    far = opened_at(&scene, SECOND);
    send_to(&scene, a_write(&scene.sender, 1, 0, 64, &scene.holder[FIRST].end, 0), &scene.holder[FIRST]);
    end_expect_success(&scene.sender, SQ, 1, IBV_WC_RDMA_WRITE);
    expect_event(&scene, FIRST, &creator, IBV_EVENT_COMM_EST);
    expect_event(&scene, SECOND, &far, IBV_EVENT_COMM_EST);
    near = opened_at(&scene, FIRST);
    /* By the key of the wrong process. */
    send_to(&scene, a_write(&scene.sender, 2, 0, 64, &scene.holder[SECOND].end, 0), &scene.holder[FIRST]);
    end_expect_status(&scene.sender, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    expect_event(&scene, FIRST, &creator, IBV_EVENT_QP_ACCESS_ERR);
    expect_event(&scene, FIRST, &near, IBV_EVENT_QP_ACCESS_ERR);
    expect_event(&scene, SECOND, &far, IBV_EVENT_QP_ACCESS_ERR);
    assert_int_equal(state_at(&scene, FIRST, &creator), IBV_QPS_ERR);
    assert_int_equal(state_at(&scene, FIRST, &near), IBV_QPS_ERR);
    assert_int_equal(state_at(&scene, SECOND, &far), IBV_QPS_ERR);
    destroy_at(&scene, FIRST, &near);
    destroy_at(&scene, SECOND, &far);
    close_scene(&scene);
}

static int destroy_by_thread(void *qp)
{
    return ibv_destroy_qp(qp);
}

static void destroy_and_acknowledge_here(struct end *end, void *arg)
{
    struct handle *handle = arg;
    struct caller caller;

    caller_start(&caller, destroy_by_thread, handle->qp);
    CHECK(caller_is_blocked(&caller), "it does not wait");
    ibv_ack_async_event(&handle->held);
    CHECK_ZERO(caller_finish(&caller));
}

static void an_event_blocks_the_handle_that_it_is_of(void **state)
{
    struct handle near, other, far;
    struct scene scene;

    open_scene(&scene);
    near = opened_at(&scene, FIRST);
    far = opened_at(&scene, SECOND);
    near.unacked = far.unacked = true;
    send_to(&scene, a_write(&scene.sender, 1, 0, 64, &scene.holder[FIRST].end, 0), &scene.holder[FIRST]);
    end_expect_success(&scene.sender, SQ, 1, IBV_WC_RDMA_WRITE);
    expect_event(&scene, SECOND, &far, IBV_EVENT_COMM_EST);
    other = opened_at(&scene, SECOND);
    destroy_at(&scene, SECOND, &other);
    creator_lets_go(&scene); /* its own is not read */
    expect_event(&scene, FIRST, &near, IBV_EVENT_COMM_EST);
    AT(&scene.holder[FIRST].end, destroy_and_acknowledge_here, &near);
    check_message(&scene, &scene.holder[SECOND], 1, 64);
    AT(&scene.holder[SECOND].end, destroy_and_acknowledge_here, &far);
    close_scene(&scene);
}

/* --- death --------------------------------------------------------------------------------------------- */

static void it_ends_with_the_process_that_had_it_last(void **state)
{
    struct handle handle;
    struct scene scene;

    open_scene(&scene);
    (void)opened_at(&scene, SECOND);
    creator_lets_go(&scene);
    check_message(&scene, &scene.holder[SECOND], 1, 64);
    side_kill(scene.holder[SECOND].end.side);
    EVENTUALLY((handle = open_at(&scene, FIRST), !handle.qp), "the end of the QP")
    destroy_at(&scene, FIRST, &handle);
    assert_int_equal(handle.error, EINVAL);
    close_scene(&scene);
}

static void modify_fails_here(struct end *end, void *arg)
{
    struct handle *handle = arg;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

    CHECK(ibv_modify_qp(handle->qp, &attr, IBV_QP_STATE) == EIO, "ibv_modify_qp");
}

/* docs/conformance.md: what serves it is that process. */
static void whoever_has_it_open_hears_of_the_end_of_its_process(void **state)
{
    struct handle handle, late;
    struct scene scene;

    open_scene(&scene);
    handle = opened_at(&scene, SECOND);
    check_message(&scene, &scene.holder[SECOND], 1, 64);
    expect_event(&scene, SECOND, &handle, IBV_EVENT_COMM_EST);
    side_kill(scene.holder[FIRST].end.side);
    expect_event(&scene, SECOND, &handle, IBV_EVENT_QP_FATAL);
    assert_int_equal(state_at(&scene, SECOND, &handle), IBV_QPS_ERR);
    AT(&scene.holder[SECOND].end, modify_fails_here, &handle);
    late = open_at(&scene, SECOND);
    assert_int_equal(late.error, EINVAL);
    destroy_at(&scene, SECOND, &handle);
    close_scene(&scene);
}

enum { OTHERS = 4 };

static void open_until_refused_here(struct end *end, void *arg)
{
    struct handle *handle = arg;

    do {
        open_here(end, handle);
        if (handle->qp) {
            query_here(end, handle);
            CHECK_ZERO(handle->error);
            CHECK_ZERO(ibv_destroy_qp(handle->qp));
        }
    } while (handle->qp);
}

struct other {
    struct holder holder;
    struct handle handle;
    struct end_call call;
};

static void add_other(struct scene *scene, struct other *other, unsigned int number)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);

    add_holder(scene, &other->holder, &sides[1 + HOLDERS + number], &attr);
    other->handle = (struct handle){.xrcd = other->holder.xrcd, .qpn = scene->holder[FIRST].qpn};
    end_start(&other->call, &other->holder.end, open_until_refused_here, &other->handle,
              sizeof(other->handle));
}

static void work_a_little(struct scene *scene, unsigned int rounds)
{
    for (uint64_t i = 0; i < rounds; i++) {
        send_to(scene, a_write(&scene->sender, i, 0, 64, &scene->holder[SECOND].end, 64),
                &scene->holder[SECOND]);
        end_expect_success(&scene->sender, SQ, i, IBV_WC_RDMA_WRITE);
    }
}

/* While they open and close it, at whatever instruction. */
static void openers_that_are_killed_keep_nothing(void **state)
{
    struct handle handle;
    struct other *other;
    struct scene scene;

    open_scene(&scene);
    other = calloc(OTHERS, sizeof(*other));
    for (unsigned int i = 0; i < OTHERS; i++) {
        add_other(&scene, &other[i], i);
        work_a_little(&scene, 1 + 17 * i);
        side_kill(other[i].holder.end.side);
    }
    check_message(&scene, &scene.holder[SECOND], 1, 9000);
    creator_lets_go(&scene);
    EVENTUALLY((handle = open_at(&scene, FIRST), !handle.qp), "the end of the QP")
    destroy_at(&scene, FIRST, &handle);
    assert_int_equal(handle.error, EINVAL);
    free(other);
    close_scene(&scene);
}

/* Whatever they have just asked. */
static void those_who_ask_a_process_that_is_killed_are_answered(void **state)
{
    struct other *other;
    struct scene scene;

    open_scene(&scene);
    other = calloc(OTHERS, sizeof(*other));
    for (unsigned int i = 0; i < OTHERS; i++)
        add_other(&scene, &other[i], i);
    work_a_little(&scene, 50);
    side_kill(scene.holder[FIRST].end.side);
    for (unsigned int i = 0; i < OTHERS; i++) {
        end_finish(&other[i].call);
        assert_int_equal(other[i].handle.error, EINVAL);
        close_holder(&other[i].holder);
    }
    free(other);
    close_scene(&scene);
}

/* --- users --------------------------------------------------------------------------------------------- */

static void open_by_users(struct scene *scene, mode_t mode)
{
    const uid_t users[HOLDERS] = {ONE_USER, ANOTHER_USER};
    struct end_attr attr = attr_of(IBV_QPT_RC);

    if (geteuid() != 0 || !two_processes())
        skip_because("needs root, to be several users");
    open_scene_as(scene, &attr, users, mode);
}

static void another_user_opens_it_where_the_file_lets_him(void **state)
{
    struct handle handle;
    struct scene scene;

    open_by_users(&scene, 0644);
    handle = opened_at(&scene, SECOND);
    check_message(&scene, &scene.holder[SECOND], 1, 64);
    expect_event(&scene, SECOND, &handle, IBV_EVENT_COMM_EST);
    creator_lets_go(&scene);
    check_message(&scene, &scene.holder[SECOND], 2, 9000);
    assert_int_equal(state_at(&scene, SECOND, &handle), IBV_QPS_RTR);
    destroy_at(&scene, SECOND, &handle);
    close_scene(&scene);
}

static void another_user_does_not_open_it_where_it_does_not(void **state)
{
    struct handle handle;
    struct scene scene;

    open_by_users(&scene, 0600);
    handle = open_at(&scene, SECOND);
    assert_null(handle.qp);
    assert_int_equal(handle.error, EINVAL);
    close_scene(&scene);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(what_is_no_qp_of_the_domain_is_refused, .fars = HOLDERS),
        TEST_WITH(a_handle_has_no_parts_and_no_state_until_it_asks, .fars = HOLDERS),
        TEST_WITH(whoever_has_it_open_connects_it, .fars = HOLDERS),
        TEST_WITH(it_ends_with_its_last_handle, .fars = HOLDERS),
        TEST_WITH(it_outlives_its_creators_domain_and_device, .fars = HOLDERS),
        TEST_WITH(it_outlives_a_device_that_is_closed_before_all_else, .fars = HOLDERS),
        TEST_WITH(a_handle_keeps_the_domain_open, .fars = HOLDERS),
        TEST_WITH(handles_come_and_go_while_it_works, .fars = HOLDERS),
        TEST_WITH(all_let_go_at_once, .fars = HOLDERS),
        TEST_WITH(events_go_to_all_who_have_it_open, .fars = HOLDERS),
        TEST_WITH(an_event_blocks_the_handle_that_it_is_of, .fars = HOLDERS),
        TEST_WITH(it_ends_with_the_process_that_had_it_last, .fars = HOLDERS, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(whoever_has_it_open_hears_of_the_end_of_its_process, .fars = HOLDERS,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(openers_that_are_killed_keep_nothing, .fars = HOLDERS + OTHERS,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(those_who_ask_a_process_that_is_killed_are_answered, .fars = HOLDERS + OTHERS,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(another_user_opens_it_where_the_file_lets_him, .fars = HOLDERS),
        TEST_WITH(another_user_does_not_open_it_where_it_does_not, .fars = HOLDERS),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
