/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Processor time of a message of 8 bytes: one thread has both ends, posts one work request per call, and polls.
 * Whatever else the machine does takes time from the clock on the wall, not from this figure: so it compares variants
 * of the library where a rate would compare moods of the machine.
 *
 * turns: both ends answer each other, with a CQ for sends and one for receives each and polls of one, as ib_send_lat;
 * the least of so many slices.
 *
 * usage: message_cost send|write|datagram|turns [MESSAGES] */
#include "common.h"
#include "endpoint.h"

#include <errno.h>
#include <string.h>

enum { BYTES = 8, WINDOW = 64, POLL_BATCH = 16, GRH = 40, QKEY = 0x11111111, SLICES = 20 };

static uint64_t thread_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void collect(struct ibv_cq *cq, int count)
{
    struct ibv_wc wc[POLL_BATCH];

    while (count) {
        int n = ibv_poll_cq(cq, POLL_BATCH, wc);

        if (n < 0)
            give_up("ibv_poll_cq");
        for (int i = 0; i < n; i++)
            if (wc[i].status != IBV_WC_SUCCESS) {
                fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc[i].status));
                exit(1);
            }
        count -= n;
    }
}

static struct ibv_qp *datagram_qp(const struct endpoint *ep, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {WINDOW, WINDOW, 1, 1, 0}, .qp_type = IBV_QPT_UD};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    struct ibv_qp *qp = ibv_create_qp(ep->pd, &init);

    if (!qp ||
        (errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)))
        give_up("datagram QP");
    attr.qp_state = IBV_QPS_RTR;
    if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE)))
        give_up("RTR");
    attr.qp_state = IBV_QPS_RTS;
    if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN)))
        give_up("RTS");
    return qp;
}

static struct ibv_ah *address_of(const struct endpoint *ep)
{
    struct ibv_ah_attr attr = {
        .is_global = 1,
        .port_num = 1,
        .grh = {.dgid = ep->gid, .sgid_index = (uint8_t)ep->gid_index, .hop_limit = 64}};
    struct ibv_ah *ah = ibv_create_ah(ep->pd, &attr);

    if (!ah)
        give_up("ibv_create_ah");
    return ah;
}

static void wait_for_one(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n;

    do
        n = ibv_poll_cq(cq, 1, &wc);
    while (!n);
    if (n < 0 || wc.status != IBV_WC_SUCCESS)
        give_up("completion");
}

static double turns(struct endpoint *ep, long messages)
{
    const struct qp_shape shape = {.send_wr = 2, .recv_wr = 2};
    struct ibv_sge from = {(uintptr_t)ep->buffer, BYTES, ep->mr->lkey},
                   into = {from.addr + GRH, BYTES, from.lkey};
    struct ibv_recv_wr receive = {.sg_list = &into, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {
        .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad_send;
    struct contact contacts[2];
    struct ibv_cq *sends[2], *receives[2];
    struct ibv_qp *qps[2];
    double least = 0;

    for (int i = 0; i < 2; i++) {
        sends[i] = ibv_create_cq(ep->context, 4, NULL, NULL, 0);
        receives[i] = ibv_create_cq(ep->context, 4, NULL, NULL, 0);
        if (!sends[i] || !receives[i])
            give_up("ibv_create_cq");
        qps[i] = endpoint_qp(ep, sends[i], receives[i], shape);
        contacts[i] = endpoint_contact(ep, qps[i]);
    }
    for (int i = 0; i < 2; i++)
        endpoint_connect(ep, qps[i], &contacts[1 - i]);
    for (int i = 0; i < 2; i++)
        if ((errno = ibv_post_recv(qps[i], &receive, &bad_receive)))
            give_up("ibv_post_recv");
    for (int slice = 0; slice < SLICES; slice++) {
        const long count = messages / SLICES + 1;
        const uint64_t began = thread_ns();
        double each;

        for (long n = 0; n < count; n++) {
            const int from_end = (int)(n & 1), to_end = 1 - from_end;

            if ((errno = ibv_post_send(qps[from_end], &send, &bad_send)))
                give_up("ibv_post_send");
            wait_for_one(receives[to_end]);
            if ((errno = ibv_post_recv(qps[to_end], &receive, &bad_receive)))
                give_up("ibv_post_recv");
            wait_for_one(sends[from_end]);
        }
        each = (double)(thread_ns() - began) / (double)count;
        if (!slice || each < least)
            least = each;
    }
    for (int i = 0; i < 2; i++)
        if ((errno = ibv_destroy_qp(qps[i])) || (errno = ibv_destroy_cq(sends[i])) ||
            (errno = ibv_destroy_cq(receives[i])))
            give_up("destroy");
    return least;
}

int main(int argc, char **argv)
{
    const bool datagrams = argc > 1 && !strcmp(argv[1], "datagram");
    const bool sends = argc > 1 && (datagrams || !strcmp(argv[1], "send"));
    const long messages = argc > 2 ? atol(argv[2]) : 300000;
    const struct qp_shape shape = {.send_wr = WINDOW, .recv_wr = WINDOW};
    struct ibv_recv_wr receive = {.num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad_send;
    struct contact contacts[2];
    struct endpoint ep;
    struct ibv_ah *ah = NULL;
    struct ibv_qp *qps[2];
    struct ibv_sge sge, into;
    struct ibv_cq *cq;
    uint64_t began;
    long done;

    if (argc < 2 || (!sends && strcmp(argv[1], "write") && strcmp(argv[1], "turns")) || messages < 1) {
        fprintf(stderr, "usage: %s send|write|datagram|turns [MESSAGES]\n", argv[0]);
        return 2;
    }
    endpoint_open(&ep, NULL, 0, GRH + BYTES);
    if (!strcmp(argv[1], "turns")) {
        printf("op turns ns %.1f\n", turns(&ep, messages));
        endpoint_close(&ep);
        return 0;
    }
    cq = ibv_create_cq(ep.context, 2 * WINDOW, NULL, NULL, 0);
    if (!cq)
        give_up("ibv_create_cq");
    for (int i = 0; i < 2; i++) {
        qps[i] = datagrams ? datagram_qp(&ep, cq) : endpoint_qp(&ep, cq, cq, shape);
        contacts[i] = endpoint_contact(&ep, qps[i]);
    }
    for (int i = 0; i < 2 && !datagrams; i++)
        endpoint_connect(&ep, qps[i], &contacts[1 - i]);
    sge = (struct ibv_sge){.addr = (uintptr_t)ep.buffer, .length = BYTES, .lkey = ep.mr->lkey};
    into = sge;
    into.length = GRH + BYTES;
    receive.sg_list = &into;
    send.sg_list = &sge;
    send.opcode = sends ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
    if (datagrams) {
        send.wr.ud.ah = ah = address_of(&ep);
        send.wr.ud.remote_qpn = contacts[1].qp_num;
        send.wr.ud.remote_qkey = QKEY;
    } else {
        send.wr.rdma.remote_addr = contacts[1].address;
        send.wr.rdma.rkey = contacts[1].rkey;
    }
    began = thread_ns();
    for (done = 0; done < messages; done += WINDOW) {
        for (int i = 0; i < WINDOW; i++) {
            if (sends && (errno = ibv_post_recv(qps[1], &receive, &bad_receive)))
                give_up("ibv_post_recv");
            if ((errno = ibv_post_send(qps[0], &send, &bad_send)))
                give_up("ibv_post_send");
        }
        collect(cq, sends ? 2 * WINDOW : WINDOW);
    }
    printf("op %s ns %.1f\n", argv[1], (double)(thread_ns() - began) / (double)done);
    for (int i = 0; i < 2; i++)
        if ((errno = ibv_destroy_qp(qps[i])))
            give_up("ibv_destroy_qp");
    if (ah && (errno = ibv_destroy_ah(ah)))
        give_up("ibv_destroy_ah");
    if ((errno = ibv_destroy_cq(cq)))
        give_up("ibv_destroy_cq");
    endpoint_close(&ep);
    return 0;
}
