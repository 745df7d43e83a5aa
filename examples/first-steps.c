/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A server tells its client where its memory is; the client writes into it and reads it back. docs/first-steps.md
 * explains each step, and breaks it. usage: first-steps [ADDRESS]      (of the server; without it: be the server) */
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(failed) ((failed) ? (perror(#failed), exit(1)) : (void)0)

/* Each process has its own, and registers it. */
static struct {
    uint64_t address; /* of the server's text */
    uint32_t rkey;
    char text[32], copy[32];
} memory;
static struct ibv_mr *mr;

static void completed(int (*get)(struct rdma_cm_id *, struct ibv_wc *), struct rdma_cm_id *id)
{
    struct ibv_wc wc;

    CHECK(get(id, &wc) != 1);
    if (wc.status != IBV_WC_SUCCESS)
        fprintf(stderr, "status: %s\n", ibv_wc_status_str(wc.status)), exit(1);
}

static void server(struct rdma_cm_id *id)
{
    struct rdma_cm_event *event;

    CHECK(rdma_accept(id, NULL));
    memory.address = (uintptr_t)memory.text;
    memory.rkey = mr->rkey;
    CHECK(rdma_post_send(id, NULL, &memory, sizeof(memory), mr, IBV_SEND_SIGNALED));
    completed(rdma_get_send_comp, id);
    completed(rdma_get_recv_comp, id);
    printf("the client wrote \"%s\"\n", memory.text);
    CHECK(rdma_get_cm_event(id->channel, &event));
    rdma_ack_cm_event(event);
}

static void client(struct rdma_cm_id *id)
{
    CHECK(rdma_connect(id, NULL));
    completed(rdma_get_recv_comp, id);
    sprintf(memory.text, "hello, memory");
    CHECK(rdma_post_write(id, NULL, memory.text, 32, mr, IBV_SEND_SIGNALED, memory.address, memory.rkey));
    completed(rdma_get_send_comp, id);
    CHECK(rdma_post_read(id, NULL, memory.copy, 32, mr, IBV_SEND_SIGNALED, memory.address, memory.rkey));
    completed(rdma_get_send_comp, id);
    printf("read back \"%s\"\n", memory.copy);
    CHECK(rdma_post_send(id, NULL, NULL, 0, NULL, IBV_SEND_SIGNALED));
    completed(rdma_get_send_comp, id);
    CHECK(rdma_disconnect(id));
}

int main(int argc, char **argv)
{
    struct ibv_qp_init_attr qp = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    struct rdma_addrinfo hints = {.ai_flags = argc > 1 ? 0 : RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP},
                         *found;
    struct rdma_cm_id *listener = NULL, *id;

    CHECK(rdma_getaddrinfo(argv[1], "7471", &hints, &found));
    CHECK(rdma_create_ep(argc > 1 ? &id : &listener, found, NULL, &qp));
    if (listener) {
        CHECK(rdma_listen(listener, 1));
        CHECK(rdma_get_request(listener, &id));
    }
    CHECK(!(mr = ibv_reg_mr(id->pd, &memory, sizeof(memory),
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)));
    CHECK(rdma_post_recv(id, NULL, &memory, sizeof(memory), mr));
    argc > 1 ? client(id) : server(id);
    rdma_dereg_mr(mr);
    rdma_destroy_ep(id);
    if (listener)
        rdma_destroy_ep(listener);
    rdma_freeaddrinfo(found);
}
