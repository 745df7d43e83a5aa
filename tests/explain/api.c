/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca/softhca.h as a program uses it. With another libibverbs (argument "absent") there is nothing to be
 * found. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <softhca/softhca.h>
#include <string.h>

#include "node.h"

static char told[65536];
static unsigned calls;

static void note(const char *text, void *argument)
{
    REQUIRE(argument == &calls);
    calls++;
    snprintf(told, sizeof(told), "%s", text);
}

static void contains(char *text, const char *part)
{
    if (!text || !strstr(text, part)) {
        fprintf(stderr, "\"%s\" is not in \"%s\"\n", part, text ? text : "(null)");
        exit(1);
    }
    free(text);
}

/* --- a handler that calls verbs ---------------------------------------------------------------------- */

static struct ibv_cq *failing_cq;
static sem_t inside, polled;

static void poll_failed(void)
{
    REQUIRE(wait_for_completion(failing_cq).status != IBV_WC_SUCCESS);
}

/* Polls the second of three completions; the third has to be polled by another thread before it returns. */
static void poll_inside(const char *text, void *argument)
{
    note(text, argument);
    if (calls > 1)
        return;
    poll_failed();
    REQUIRE(sem_post(&inside) == 0);
    while (sem_wait(&polled) != 0)
        REQUIRE(errno == EINTR);
}

static void *poll_beside(void *unused)
{
    (void)unused;
    while (sem_wait(&inside) != 0)
        REQUIRE(errno == EINTR);
    poll_failed();
    REQUIRE(sem_post(&polled) == 0);
    return NULL;
}

/* softhca.h: the handler's thread holds no lock of the library. */
static void call_verbs_in_the_handler(const struct softhca_api *softhca)
{
    struct node node;
    struct ibv_qp *a, *b;
    pthread_t beside;

    calls = 0;
    node_open(&node);
    failing_cq = ibv_create_cq(node.context, 16, NULL, NULL, 0);
    REQUIRE(failing_cq && sem_init(&inside, 0, 0) == 0 && sem_init(&polled, 0, 0) == 0);
    a = make_qp(&node, failing_cq, NULL, 4);
    b = make_qp(&node, failing_cq, NULL, 4);
    connect_qps(&node, a, b, 14, 7, 7);
    softhca->set_handler(poll_inside, &calls, SOFTHCA_TEXT);
    for (uint64_t i = 0; i < 3; i++) { /* no such rkey: the first fails, the others are flushed */
        struct ibv_sge sge = {(uintptr_t)node.buffer, 8, node.mr->lkey};
        struct ibv_send_wr wr = {.wr_id = i,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED};
        struct ibv_send_wr *bad;

        wr.wr.rdma.remote_addr = sge.addr;
        wr.wr.rdma.rkey = node.mr->rkey ^ 0x80000000;
        REQUIRE(ibv_post_send(a, &wr, &bad) == 0);
    }
    REQUIRE(pthread_create(&beside, NULL, poll_beside, NULL) == 0);
    poll_failed();
    REQUIRE(pthread_join(beside, NULL) == 0 && strstr(told, "IBV_WC_REM_ACCESS_ERR"));
    softhca->set_handler(NULL, NULL, SOFTHCA_TEXT);
    REQUIRE(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(failing_cq) == 0);
    node_close(&node);
}

int main(int argc, char **argv)
{
    const struct softhca_api *softhca = softhca_find();
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct node node;
    char cause[128];

    if (argc > 1) {
        REQUIRE(strcmp(argv[1], "absent") == 0 && softhca == NULL);
        return 0;
    }
    REQUIRE(softhca && softhca->size >= sizeof(*softhca) && softhca->version[0]);
    REQUIRE(softhca->list(SOFTHCA_TEXT) == NULL && errno == ENOENT); /* no device is open */
    node_open(&node);
    channel = ibv_create_comp_channel(node.context);
    cq = ibv_create_cq(node.context, 16, NULL, channel, 0);
    REQUIRE(channel && cq);
    qp = make_qp(&node, cq, NULL, 4);
    to_init(qp);
    post_receive(&node, qp, 0x77, 64);

    REQUIRE(softhca->set_name(SOFTHCA_QP, qp, "control connection") == 0);
    REQUIRE(softhca->set_name(SOFTHCA_CQ, cq, "replies") == 0);
    REQUIRE(softhca->set_name(SOFTHCA_CQ, NULL, "nothing") == EINVAL);
    snprintf(cause, sizeof(cause), "used by:\n        QP 0x%06x \"control connecti\"", qp->qp_num);
    contains(softhca->why_object(SOFTHCA_CQ, cq, SOFTHCA_TEXT), cause);
    contains(softhca->why_object(SOFTHCA_CQ, cq, SOFTHCA_JSON), "\"name\":\"replies\"");
    contains(softhca->why_object(SOFTHCA_PD, node.pd, SOFTHCA_TEXT), "is used by 1 MR and 1 QP");
    contains(softhca->why_object(SOFTHCA_MR, node.mr, SOFTHCA_TEXT), "MR of 1048576 bytes");
    contains(softhca->why_object(SOFTHCA_CHANNEL, channel, SOFTHCA_TEXT), "is used by 1 CQ");
    contains(softhca->why_object(SOFTHCA_CONTEXT, node.context, SOFTHCA_TEXT), "context 0");
    contains(softhca->why_object(SOFTHCA_QP, qp, SOFTHCA_TEXT),
             "is not in use: ibv_destroy_qp would succeed now");
    REQUIRE(softhca->why_object(SOFTHCA_QP, NULL, SOFTHCA_TEXT) == NULL && errno == EINVAL);
    contains(softhca->why_wr(qp, 0x77, SOFTHCA_TEXT), "waits, but its QP receives nothing in state INIT");
    contains(softhca->why_wr(NULL, 0x78, SOFTHCA_TEXT), "was not found");
    contains(softhca->list(SOFTHCA_TEXT), "1 PD, 1 MR, 1 CQ, 1 channel and 1 QP");
    contains(softhca->list(SOFTHCA_JSON), "\"kind\":\"channel\"");

    softhca->set_handler(note, &calls, SOFTHCA_TEXT);
    REQUIRE(ibv_destroy_cq(cq) == EBUSY && calls == 1);
    snprintf(cause, sizeof(cause),
             "fails with EBUSY: QP 0x%06x \"control connecti\" still completes into it\n", qp->qp_num);
    contains(strdup(told), cause);
    softhca->set_handler(note, &calls, SOFTHCA_JSON);
    REQUIRE(ibv_destroy_qp(qp) == 0 && calls == 2);
    contains(strdup(told), "{\"explanation\":\"losses\"");
    REQUIRE(ibv_destroy_cq(cq) == 0);
    REQUIRE(ibv_destroy_comp_channel(channel) == 0);
    node_close(&node);
    REQUIRE(calls == 2);
    call_verbs_in_the_handler(softhca);
    return 0;
}
