/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "work.h"

#include <arpa/inet.h>
#include <stdio.h>

enum { POLL_MAX = 256 };

static struct send a_request(const struct end *end, enum ibv_wr_opcode opcode, uint64_t id, size_t offset,
                             size_t length)
{
    return (struct send){
        .wr = {.wr_id = id, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .num_sge = length ? 1 : 0},
        .sge = {{.addr = (uintptr_t)end->buf + offset, .length = (uint32_t)length, .lkey = end->lkey}},
    };
}

struct send a_send(const struct end *end, uint64_t id, size_t offset, size_t length)
{
    return a_request(end, IBV_WR_SEND, id, offset, length);
}

struct send a_send_imm(const struct end *end, uint64_t id, size_t offset, size_t length, uint32_t imm)
{
    struct send send = a_request(end, IBV_WR_SEND_WITH_IMM, id, offset, length);

    send.wr.imm_data = htonl(imm);
    return send;
}

static struct send a_one_sided(const struct end *end, enum ibv_wr_opcode opcode, uint64_t id, size_t offset,
                               size_t length, const struct end *peer, size_t at)
{
    struct send send = a_request(end, opcode, id, offset, length);

    send.wr.wr.rdma.remote_addr = (uintptr_t)peer->buf + at;
    send.wr.wr.rdma.rkey = peer->rkey;
    return send;
}

struct send a_write(const struct end *end, uint64_t id, size_t offset, size_t length, const struct end *to,
                    size_t at)
{
    return a_one_sided(end, IBV_WR_RDMA_WRITE, id, offset, length, to, at);
}

struct send a_read(const struct end *end, uint64_t id, size_t offset, size_t length, const struct end *from,
                   size_t at)
{
    return a_one_sided(end, IBV_WR_RDMA_READ, id, offset, length, from, at);
}

struct send a_cas(const struct end *end, uint64_t id, size_t offset, const struct end *to, size_t at,
                  uint64_t compare, uint64_t swap)
{
    struct send send = a_request(end, IBV_WR_ATOMIC_CMP_AND_SWP, id, offset, 8);

    send.wr.wr.atomic.remote_addr = (uintptr_t)to->buf + at;
    send.wr.wr.atomic.rkey = to->rkey;
    send.wr.wr.atomic.compare_add = compare;
    send.wr.wr.atomic.swap = swap;
    return send;
}

struct send a_fetch_add(const struct end *end, uint64_t id, size_t offset, const struct end *to, size_t at,
                        uint64_t add)
{
    struct send send = a_cas(end, id, offset, to, at, add, 0);

    send.wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    return send;
}

struct send a_datagram(const struct end *end, uint64_t id, size_t offset, size_t length, const struct end *to)
{
    struct send send = a_request(end, IBV_WR_SEND, id, offset, length);

    send.wr.wr.ud.ah = end->ah;
    send.wr.wr.ud.remote_qpn = to->qp_num;
    send.wr.wr.ud.remote_qkey = to->attr.qkey;
    return send;
}

struct send unsignaled(struct send send)
{
    send.wr.send_flags &= ~(unsigned int)IBV_SEND_SIGNALED;
    return send;
}

struct send with_flags(struct send send, unsigned int flags)
{
    send.wr.send_flags |= flags;
    return send;
}

struct recv a_recv(const struct end *end, uint64_t id, size_t offset, size_t length)
{
    return (struct recv){
        .wr = {.wr_id = id, .num_sge = length ? 1 : 0},
        .sge = {{.addr = (uintptr_t)end->buf + offset, .length = (uint32_t)length, .lkey = end->lkey}},
    };
}

struct ibv_qp_ex *begin_signaled(const struct end *end, uint64_t id)
{
    struct ibv_qp_ex *qpx = end->qpx;

    ibv_wr_start(qpx);
    qpx->wr_id = id;
    qpx->wr_flags = IBV_SEND_SIGNALED;
    return qpx;
}

struct posting {
    unsigned int count, posted;
    int error;
    union {
        struct send sends[WORK_LIST];
        struct recv recvs[WORK_LIST];
    };
};
/* a posting travels with the requests that it has */
#define POSTING_LENGTH(member, count)                                                                        \
    (offsetof(struct posting, member) + (count) * sizeof(((struct posting *)0)->member[0]))

static void post_sends_here(struct end *end, void *arg)
{
    struct posting *posting = arg;
    struct ibv_send_wr *bad = NULL;

    for (unsigned int i = 0; i < posting->count; i++) {
        struct send *send = &posting->sends[i];

        send->wr.sg_list = send->sge;
        send->wr.next = i + 1 < posting->count ? &posting->sends[i + 1].wr : NULL;
    }
    posting->error = ibv_post_send(end->qp, &posting->sends[0].wr, &bad);
    posting->posted = posting->count;
    if (posting->error)
        posting->posted = (unsigned int)((struct send *)(void *)bad - posting->sends);
}

int end_try_send(struct end *end, const struct send *sends, unsigned int count, unsigned int *ret_posted)
{
    static _Thread_local struct posting posting;

    CHECK(count <= WORK_LIST, "%u requests", count);
    posting.count = count;
    memcpy(posting.sends, sends, count * sizeof *sends);
    end_call(end, post_sends_here, &posting, POSTING_LENGTH(sends, count));
    if (ret_posted)
        *ret_posted = posting.posted;
    return posting.error;
}

static void post_recvs_here(struct end *end, void *arg)
{
    struct posting *posting = arg;
    struct ibv_recv_wr *bad = NULL;

    for (unsigned int i = 0; i < posting->count; i++) {
        struct recv *recv = &posting->recvs[i];

        recv->wr.sg_list = recv->sge;
        recv->wr.next = i + 1 < posting->count ? &posting->recvs[i + 1].wr : NULL;
    }
    if (end->srq)
        posting->error = ibv_post_srq_recv(end->srq, &posting->recvs[0].wr, &bad);
    else
        posting->error = ibv_post_recv(end->qp, &posting->recvs[0].wr, &bad);
    posting->posted = posting->count;
    if (posting->error)
        posting->posted = (unsigned int)((struct recv *)(void *)bad - posting->recvs);
}

int end_try_recv(struct end *end, const struct recv *recvs, unsigned int count, unsigned int *ret_posted)
{
    static _Thread_local struct posting posting;

    CHECK(count <= WORK_LIST, "%u requests", count);
    posting.count = count;
    memcpy(posting.recvs, recvs, count * sizeof *recvs);
    end_call(end, post_recvs_here, &posting, POSTING_LENGTH(recvs, count));
    if (ret_posted)
        *ret_posted = posting.posted;
    return posting.error;
}

void end_send_list(struct end *end, const struct send *sends, unsigned int count)
{
    CHECK_ZERO(end_try_send(end, sends, count, NULL));
}

void end_send(struct end *end, struct send send)
{
    end_send_list(end, &send, 1);
}

void end_recv(struct end *end, struct recv recv)
{
    CHECK_ZERO(end_try_recv(end, &recv, 1, NULL));
}

struct polling {
    enum queue queue;
    unsigned int count;
    bool wait;
    int got;
    struct ibv_wc wc[POLL_MAX];
};

static void poll_here(struct end *end, void *arg)
{
    struct polling *polling = arg;
    struct ibv_cq *cq = polling->queue == SQ ? end->send_cq : end->recv_cq;
    int got;

    if (!polling->wait) {
        polling->got = ibv_poll_cq(cq, (int)polling->count, polling->wc);
        return;
    }
    polling->got = 0;
    EVENTUALLY(polling->got == (int)polling->count, "completions of the %s queue, %u in all",
               polling->queue == SQ ? "send" : "receive", polling->count)
    {
        got = ibv_poll_cq(cq, (int)polling->count - polling->got, polling->wc + polling->got);
        CHECK(got >= 0, "ibv_poll_cq: %d", got);
        polling->got += got;
    }
}

static int poll_there(struct end *end, enum queue queue, struct ibv_wc *wc, unsigned int count, bool wait)
{
    static _Thread_local struct polling polling;

    CHECK(count <= POLL_MAX, "%u completions", count);
    polling.queue = queue;
    polling.count = count;
    polling.wait = wait;
    end_call(end, poll_here, &polling, offsetof(struct polling, wc) + count * sizeof *wc);
    if (polling.got > 0)
        memcpy(wc, polling.wc, (size_t)polling.got * sizeof *wc);
    return polling.got;
}

void end_poll(struct end *end, enum queue queue, struct ibv_wc *wc, unsigned int count)
{
    poll_there(end, queue, wc, count, true);
}

int end_poll_once(struct end *end, enum queue queue, struct ibv_wc *wc, unsigned int count)
{
    return poll_there(end, queue, wc, count, false);
}

struct ibv_wc end_wc(struct end *end, enum queue queue)
{
    struct ibv_wc wc;

    end_poll(end, queue, &wc, 1);
    return wc;
}

void check_success(const struct ibv_wc *wc, uint64_t id, enum ibv_wc_opcode opcode)
{
    CHECK(wc->status == IBV_WC_SUCCESS, "request %llu (expected: %llu): %s", (unsigned long long)wc->wr_id,
          (unsigned long long)id, ibv_wc_status_str(wc->status));
    CHECK(wc->wr_id == id, "completion of %llu instead of %llu", (unsigned long long)wc->wr_id,
          (unsigned long long)id);
    CHECK(wc->opcode == opcode, "request %llu: opcode %d instead of %d", (unsigned long long)id, wc->opcode,
          opcode);
}

void check_status(const struct ibv_wc *wc, uint64_t id, enum ibv_wc_status status)
{
    CHECK(wc->wr_id == id, "completion of %llu (%s) instead of %llu", (unsigned long long)wc->wr_id,
          ibv_wc_status_str(wc->status), (unsigned long long)id);
    CHECK(wc->status == status, "request %llu: \"%s\" instead of \"%s\"", (unsigned long long)id,
          ibv_wc_status_str(wc->status), ibv_wc_status_str(status));
}

struct ibv_wc end_expect_success(struct end *end, enum queue queue, uint64_t id, enum ibv_wc_opcode opcode)
{
    const struct ibv_wc wc = end_wc(end, queue);

    check_success(&wc, id, opcode);
    CHECK(wc.qp_num == end->qp_num, "request %llu: qp_num 0x%x instead of 0x%x", (unsigned long long)id,
          wc.qp_num, end->qp_num);
    return wc;
}

struct ibv_wc end_expect_status(struct end *end, enum queue queue, uint64_t id, enum ibv_wc_status status)
{
    const struct ibv_wc wc = end_wc(end, queue);

    check_status(&wc, id, status);
    CHECK(wc.qp_num == end->qp_num, "request %llu: qp_num 0x%x instead of 0x%x", (unsigned long long)id,
          wc.qp_num, end->qp_num);
    return wc;
}

bool is_mapped(pid_t pid, const void *address)
{
    unsigned long long start, end, wanted = (uintptr_t)address;
    char path[64], line[512];
    bool mapped = false;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    file = fopen(path, "re");
    CHECK(file, "%s: %s", path, strerror(errno));
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%llx-%llx", &start, &end) == 2 && wanted >= start && wanted < end)
            mapped = strstr(line, "memfd:softhca-mapped") != NULL;
    }
    fclose(file);
    return mapped;
}

void pair_marker(struct end *a, struct end *b)
{
    const uint64_t id = 0x6d61726b6572;

    end_recv(b, a_recv(b, id, b->attr.size - 48, 48));
    end_send(a, b->attr.type == IBV_QPT_UD ? a_datagram(a, id, a->attr.size - 8, 8, b)
                                           : a_send(a, id, a->attr.size - 8, 8));
    end_expect_success(b, RQ, id, IBV_WC_RECV);
    end_expect_success(a, SQ, id, IBV_WC_SEND);
}
