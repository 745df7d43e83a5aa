/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two processes connect; the server tells where its memory is, the client writes into it and reads it back. docs/first-steps.md
 * explains each step, and breaks it. */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(call) ((call) ? (void)0 : (perror(#call), exit(1)))

/* Each process has its own, and registers it. */
static struct {
    struct {
        uint64_t address;
        uint32_t rkey;
    } where; /* the server's text */
    char text[32], copy[32], word[8];
} memory = {.word = "done"};
static struct ibv_mr *mr;

static struct rdma_cm_id *open_endpoint(int flags)
{
    struct ibv_qp_init_attr qp = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found;
    struct rdma_cm_id *id;

    CHECK(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found) == 0);
    CHECK(rdma_create_ep(&id, found, NULL, &qp) == 0);
    rdma_freeaddrinfo(found);
    return id;
}

static void completed(int (*get)(struct rdma_cm_id *, struct ibv_wc *), struct rdma_cm_id *id)
{
    struct ibv_wc wc;

    CHECK(get(id, &wc) == 1);
    if (wc.status != IBV_WC_SUCCESS)
        fprintf(stderr, "status: %s\n", ibv_wc_status_str(wc.status)), exit(1);
}

static void server(int listening)
{
    struct rdma_cm_id *listener = open_endpoint(RAI_PASSIVE), *id;
    struct rdma_cm_event *event;

    CHECK(rdma_listen(listener, 1) == 0);
    CHECK(write(listening, "", 1) == 1);
    CHECK(rdma_get_request(listener, &id) == 0);
    CHECK(mr = ibv_reg_mr(id->pd, &memory, sizeof(memory),
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
    CHECK(rdma_post_recv(id, NULL, memory.word, sizeof(memory.word), mr) == 0);
    CHECK(rdma_accept(id, NULL) == 0);
    memory.where.address = (uintptr_t)memory.text;
    memory.where.rkey = mr->rkey;
    CHECK(rdma_post_send(id, NULL, &memory.where, sizeof(memory.where), mr, IBV_SEND_SIGNALED) == 0);
    completed(rdma_get_send_comp, id);
    completed(rdma_get_recv_comp, id);
    printf("server: %s; the client wrote \"%s\"\n", memory.word, memory.text);
    CHECK(rdma_get_cm_event(id->channel, &event) == 0);
    rdma_ack_cm_event(event);
    rdma_dereg_mr(mr);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listener);
}

static void client(void)
{
    struct rdma_cm_id *id = open_endpoint(0);

    CHECK(mr = rdma_reg_msgs(id, &memory, sizeof(memory)));
    CHECK(rdma_post_recv(id, NULL, &memory.where, sizeof(memory.where), mr) == 0);
    CHECK(rdma_connect(id, NULL) == 0);
    completed(rdma_get_recv_comp, id);
    snprintf(memory.text, sizeof(memory.text), "hello, memory");
    CHECK(rdma_post_write(id, NULL, memory.text, sizeof(memory.text), mr, IBV_SEND_SIGNALED,
                          memory.where.address, memory.where.rkey) == 0);
    completed(rdma_get_send_comp, id);
    CHECK(rdma_post_read(id, NULL, memory.copy, sizeof(memory.copy), mr, IBV_SEND_SIGNALED,
                         memory.where.address, memory.where.rkey) == 0);
    completed(rdma_get_send_comp, id);
    printf("client: read back \"%s\"\n", memory.copy);
    CHECK(rdma_post_send(id, NULL, memory.word, sizeof(memory.word), mr, IBV_SEND_SIGNALED) == 0);
    completed(rdma_get_send_comp, id);
    CHECK(rdma_disconnect(id) == 0);
    rdma_dereg_mr(mr);
    rdma_destroy_ep(id);
}

int main(void)
{
    int listening[2];
    char byte;

    CHECK(pipe(listening) == 0);
    if (fork() == 0) {
        close(listening[1]); /* so that read() returns 0 if the server ends before it listens */
        if (read(listening[0], &byte, 1) == 1)
            client();
    } else {
        server(listening[1]);
    }
}
