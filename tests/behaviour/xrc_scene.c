/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "xrc_scene.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int open_file(const char *file)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);

    CHECK(fd >= 0, "open %s: %s", file, strerror(errno));
    return fd;
}

/* Closes the descriptor: the domain does not need it any more. */
struct ibv_xrcd *open_domain(struct ibv_context *context, int fd, int flags)
{
    struct ibv_xrcd_init_attr attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = flags};
    struct ibv_xrcd *xrcd;

    errno = 0;
    xrcd = ibv_open_xrcd(context, &attr);
    close(fd);
    return xrcd;
}

void make_file(char name[32])
{
    int fd;

    strcpy(name, "/tmp/softhca-xrc-XXXXXX");
    fd = mkstemp(name);
    CHECK(fd >= 0, "mkstemp: %s", strerror(errno));
    close(fd);
}

static void become(uid_t uid)
{
    CHECK(!setresgid(uid, uid, uid) && !setresuid(uid, uid, uid), "setresuid: %s", strerror(errno));
}

static void prepare_here(void *arg)
{
    struct holder *holder = arg;

    holder->fd = open_file(holder->file);
    if (holder->uid)
        become(holder->uid);
}

void hold_here(struct end *end, void *arg)
{
    struct holder *holder = arg;
    struct ibv_srq_init_attr_ex attr = {
        .attr = {.max_wr = RECEIVES, .max_sge = 1},
        .comp_mask =
            IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
        .srq_type = IBV_SRQT_XRC,
        .pd = end->pd,
    };

    holder->xrcd = open_domain(end->context, holder->fd, O_CREAT);
    CHECK(holder->xrcd, "ibv_open_xrcd: %s", strerror(errno));
    holder->cq = ibv_create_cq(end->context, 2 * RECEIVES, NULL, NULL, 0);
    attr.xrcd = holder->xrcd;
    attr.cq = holder->cq;
    holder->srq = ibv_create_srq_ex(end->context, &attr);
    CHECK(holder->srq, "ibv_create_srq_ex: %s", strerror(errno));
    CHECK(!ibv_get_srq_num(holder->srq, &holder->srqn), "ibv_get_srq_num");
}

void let_go_here(struct end *end, void *arg)
{
    struct holder *holder = arg;

    if (holder->qp)
        CHECK_ZERO(ibv_destroy_qp(holder->qp));
    if (holder->srq)
        CHECK_ZERO(ibv_destroy_srq(holder->srq));
    CHECK_ZERO(ibv_close_xrcd(holder->xrcd));
    CHECK_ZERO(ibv_destroy_cq(holder->cq));
    holder->qp = NULL;
    holder->srq = NULL;
}

void make_receive_here(struct end *end, void *arg)
{
    struct holder *holder = arg;
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = holder->xrcd};

    holder->qp = ibv_create_qp_ex(end->context, &attr);
    CHECK(holder->qp, "ibv_create_qp_ex: %s", strerror(errno));
    holder->qpn = holder->qp->qp_num;
}

void connect_receive_here(struct end *end, void *arg)
{
    struct holder *holder = arg;
    struct ibv_qp_attr attr;
    int mask = attr_for_init(end, &attr);

    CHECK_ZERO(ibv_modify_qp(holder->qp, &attr, mask));
    mask = attr_for_rtr(end, &holder->peer, &attr);
    CHECK_ZERO(ibv_modify_qp(holder->qp, &attr, mask));
}

void make_send(struct scene *scene)
{
    struct end *end = &scene->sender;
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_XRC_SEND,
        .send_cq = end->send_cq,
        .cap = {.max_send_wr = RECEIVES, .max_send_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = end->pd,
    };

    scene->qp = ibv_create_qp_ex(end->context, &attr);
    CHECK(scene->qp, "ibv_create_qp_ex: %s", strerror(errno));
    end->qp_num = scene->qp->qp_num;
}

void connect_send(struct scene *scene)
{
    struct end *end = &scene->sender, peer = scene->holder[FIRST].end;
    struct ibv_qp_attr attr;
    int mask = attr_for_init(end, &attr);

    CHECK_ZERO(ibv_modify_qp(scene->qp, &attr, mask));
    mask = attr_for_rtr(end, &peer, &attr);
    attr.dest_qp_num = scene->holder[FIRST].qpn;
    mask &= ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    CHECK_ZERO(ibv_modify_qp(scene->qp, &attr, mask));
    mask = attr_for_rts(end, &attr);
    CHECK_ZERO(ibv_modify_qp(scene->qp, &attr, mask));
}

void open_scene_as(struct scene *scene, const struct end_attr *attr, const uid_t uid[HOLDERS], mode_t mode)
{
    char file[32];

    memset(scene, 0, sizeof(*scene));
    make_file(file);
    scene->fd = open_file(file);
    CHECK_ZERO(chmod(file, mode));
    end_open(&scene->sender, NEAR, attr);
    for (int i = 0; i < HOLDERS; i++) {
        struct holder *holder = &scene->holder[i];

        strcpy(holder->file, file);
        holder->uid = uid ? uid[i] : 0;
        side_call(&sides[1 + i], prepare_here, holder, sizeof(*holder));
        end_open(&holder->end, &sides[1 + i], attr);
        AT(&holder->end, hold_here, holder);
    }
    unlink(file);
    make_send(scene);
    AT(&scene->holder[FIRST].end, make_receive_here, &scene->holder[FIRST]);
    scene->holder[FIRST].peer = scene->sender;
    AT(&scene->holder[FIRST].end, connect_receive_here, &scene->holder[FIRST]);
    connect_send(scene);
}

void add_holder(struct scene *scene, struct holder *holder, struct side *side, const struct end_attr *attr)
{
    memset(holder, 0, sizeof(*holder));
    snprintf(holder->file, sizeof(holder->file), "/proc/%d/fd/%d", (int)getpid(), scene->fd);
    side_call(side, prepare_here, holder, sizeof(*holder));
    end_open(&holder->end, side, attr);
    AT(&holder->end, hold_here, holder);
}

void open_scene(struct scene *scene)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.size = 1 << 21;
    open_scene_as(scene, &attr, NULL, 0600);
}

void close_holder(struct holder *holder)
{
    AT(&holder->end, let_go_here, holder);
    end_close(&holder->end);
}

void close_scene(struct scene *scene)
{
    CHECK_ZERO(ibv_destroy_qp(scene->qp));
    for (int i = HOLDERS; i--;) {
        if (!scene->holder[i].end.side->dead)
            close_holder(&scene->holder[i]);
    }
    end_close(&scene->sender);
    close(scene->fd);
}

static void receive_here(struct end *end, void *arg)
{
    struct holder *holder = arg;
    struct ibv_sge sge = {(uintptr_t)end->buf + holder->offset, (uint32_t)holder->length, end->lkey};
    struct ibv_recv_wr wr = {.wr_id = holder->id, .sg_list = &sge, .num_sge = 1}, *bad;

    CHECK_ZERO(ibv_post_srq_recv(holder->srq, &wr, &bad));
}

void receive_at(struct holder *holder, uint64_t id, size_t offset, size_t length)
{
    holder->id = id;
    holder->offset = offset;
    holder->length = length;
    AT(&holder->end, receive_here, holder);
}

static void poll_here(struct end *end, void *arg)
{
    struct holder *holder = arg;
    int count = 0;

    EVENTUALLY((count = ibv_poll_cq(holder->cq, 1, &holder->wc)), "a completion of an SRQ");
    CHECK(count == 1, "ibv_poll_cq: %d", count);
}

struct ibv_wc received(struct holder *holder)
{
    AT(&holder->end, poll_here, holder);
    return holder->wc;
}

void send_to(struct scene *scene, struct send send, const struct holder *holder)
{
    struct ibv_send_wr *bad;

    send.wr.sg_list = send.sge;
    send.wr.qp_type.xrc.remote_srqn = holder->srqn;
    CHECK_ZERO(ibv_post_send(scene->qp, &send.wr, &bad));
}

void check_message(struct scene *scene, struct holder *holder, uint64_t id, size_t length)
{
    struct ibv_wc wc;

    end_fill(&scene->sender, 0, length, id);
    receive_at(holder, id, 0, length);
    send_to(scene,
            id % 3 ? a_send(&scene->sender, id, 0, length) : a_send_imm(&scene->sender, id, 0, length, 77),
            holder);
    wc = received(holder);
    check_success(&wc, id, IBV_WC_RECV);
    assert_int_equal(wc.qp_num, scene->holder[FIRST].qpn);
    assert_int_equal(wc.byte_len, length);
    assert_int_equal(!!(wc.wc_flags & IBV_WC_WITH_IMM), id % 3 == 0);
    end_expect_success(&scene->sender, SQ, id, IBV_WC_SEND);
    end_expect_data(&holder->end, 0, length, id);
}

void destroy_qp_here(struct end *end, void *arg)
{
    struct holder *holder = arg;

    CHECK_ZERO(ibv_destroy_qp(holder->qp));
    holder->qp = NULL;
}
