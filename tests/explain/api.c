/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* softhca/softhca.h as a program uses it. With another libibverbs (argument "absent") there is nothing to be
 * found. */
#include <errno.h>
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
    return 0;
}
