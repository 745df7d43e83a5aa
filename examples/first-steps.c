/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two processes connect; the server tells where its memory is, the client writes into it and reads it back. docs/first-steps.md
 * explains each step, and breaks it. */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(call) ((call) ? (void)0 : (perror(#call), exit(1)))

struct message {
    uint64_t address;
    uint32_t rkey;
};

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
    if (wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "status: %s\n", ibv_wc_status_str(wc.status));
        exit(1);
    }
}

static void server(int listening)
{
    struct rdma_cm_id *listener = open_endpoint(RAI_PASSIVE), *id;
    struct rdma_cm_event *event;
    struct message message;
    char memory[64] = "", word[8];

    CHECK(rdma_listen(listener, 1) == 0);
    CHECK(write(listening, "", 1) == 1);
    CHECK(rdma_get_request(listener, &id) == 0);
    struct ibv_mr *mr = ibv_reg_mr(id->pd, memory, sizeof(memory),
                                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    struct ibv_mr *message_mr = rdma_reg_msgs(id, &message, sizeof(message)),
                  *word_mr = rdma_reg_msgs(id, word, sizeof(word));
    CHECK(mr && message_mr && word_mr);
    CHECK(rdma_post_recv(id, NULL, word, sizeof(word), word_mr) == 0);
    CHECK(rdma_accept(id, NULL) == 0);
    message = (struct message){(uintptr_t)memory, mr->rkey};
    CHECK(rdma_post_send(id, NULL, &message, sizeof(message), message_mr, IBV_SEND_SIGNALED) == 0);
    completed(rdma_get_send_comp, id);
    completed(rdma_get_recv_comp, id);
    printf("server: %s; the client wrote \"%s\"\n", word, memory);
    CHECK(rdma_get_cm_event(id->channel, &event) == 0);
    rdma_ack_cm_event(event);
    rdma_dereg_mr(word_mr);
    rdma_dereg_mr(message_mr);
    rdma_dereg_mr(mr);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listener);
}

static void client(void)
{
    struct rdma_cm_id *id = open_endpoint(0);
    char mine[64] = "hello, memory", copy[64] = "", word[8] = "done";
    struct message to;
    struct ibv_mr *to_mr = rdma_reg_msgs(id, &to, sizeof(to)), *mr = rdma_reg_msgs(id, mine, sizeof(mine));
    struct ibv_mr *copy_mr = rdma_reg_msgs(id, copy, sizeof(copy)),
                  *word_mr = rdma_reg_msgs(id, word, sizeof(word));

    CHECK(to_mr && mr && copy_mr && word_mr);
    CHECK(rdma_post_recv(id, NULL, &to, sizeof(to), to_mr) == 0);
    CHECK(rdma_connect(id, NULL) == 0);
    completed(rdma_get_recv_comp, id);
    CHECK(rdma_post_write(id, NULL, mine, sizeof(mine), mr, IBV_SEND_SIGNALED, to.address, to.rkey) == 0);
    completed(rdma_get_send_comp, id);
    CHECK(rdma_post_read(id, NULL, copy, sizeof(copy), copy_mr, IBV_SEND_SIGNALED, to.address, to.rkey) == 0);
    completed(rdma_get_send_comp, id);
    printf("client: read back \"%s\"\n", copy);
    CHECK(rdma_post_send(id, NULL, word, sizeof(word), word_mr, IBV_SEND_SIGNALED) == 0);
    completed(rdma_get_send_comp, id);
    CHECK(rdma_disconnect(id) == 0);
    rdma_dereg_mr(word_mr);
    rdma_dereg_mr(copy_mr);
    rdma_dereg_mr(mr);
    rdma_dereg_mr(to_mr);
    rdma_destroy_ep(id);
}

int main(void)
{
    int listening[2], status;
    char byte;

    CHECK(pipe(listening) == 0);
    if (fork() == 0) {
        server(listening[1]);
        exit(0);
    }
    close(listening[1]); /* so that read() returns 0 if the server ends before it listens */
    if (read(listening[0], &byte, 1) != 1)
        return 1;
    client();
    wait(&status);
    return status != 0;
}
