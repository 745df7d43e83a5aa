/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* usage: rpma_pair server|client ADDRESS PORT plain|shared|srq
 * Both ends of librpma: the client writes to the server's memory, flushes, says by message what it wrote, and
 * reads what the server leaves there. Each byte is checked by the one who did not write it. With shared both
 * completion queues of a connection have one channel; with srq the server's receives come from a shared
 * receive queue. */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <librpma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SIZE = 1 << 20, COUNTER = SIZE, ALL = SIZE + 4096, CONNECTIONS = 2, ROUNDS = 200, RECEIVES = 4 };

/* What goes by message. */
struct note {
    uint32_t at, length, round;
};

static struct rpma_peer *peer;
static struct rpma_conn *connection;
static struct rpma_cq *sent, *received;
static struct rpma_mr_local *memory_mr, *notes_mr;
static unsigned char *memory;
static struct note *notes; /* RECEIVES of them for receives, one for sends */
static bool shared_channel;

static void must(int error, const char *what)
{
    if (!error)
        return;
    fprintf(stderr, "%s: %s\n", what, rpma_err_2str(error));
    exit(1);
}

static unsigned char byte(uint32_t at, uint32_t round, bool server)
{
    return (unsigned char)(at * 13 + (at >> 8) + round * 5 + (server ? 128 : 0));
}

static void fill(struct note n, bool server)
{
    for (uint32_t i = n.at; i < n.at + n.length; i++)
        memory[i] = byte(i, n.round, server);
}

static void expect(struct note n, bool server)
{
    for (uint32_t i = n.at; i < n.at + n.length; i++) {
        if (memory[i] == byte(i, n.round, server))
            continue;
        fprintf(stderr, "round %u: byte %u is %u, not %u\n", n.round, i, memory[i], byte(i, n.round, server));
        exit(1);
    }
}

/* Sleeps until there is one. */
static struct ibv_wc completion(struct rpma_cq *cq, enum ibv_wc_opcode opcode)
{
    struct ibv_wc wc;
    int error;

    while ((error = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION) {
        struct rpma_cq *which;
        bool is_rcq;

        error = shared_channel ? rpma_conn_wait(connection, 0, &which, &is_rcq) : rpma_cq_wait(cq);
        if (error != RPMA_E_NO_COMPLETION)
            must(error, "wait");
    }
    must(error, "get_wc");
    if (wc.status || wc.opcode != opcode) {
        fprintf(stderr, "completion of opcode %d with %s, not of %d\n", wc.opcode,
                ibv_wc_status_str(wc.status), opcode);
        exit(1);
    }
    return wc;
}

static void event(enum rpma_conn_event wanted)
{
    enum rpma_conn_event got;

    must(rpma_conn_next_event(connection, &got), "next_event");
    if (got != wanted) {
        fprintf(stderr, "%s, not %s\n", rpma_utils_conn_event_2str(got), rpma_utils_conn_event_2str(wanted));
        exit(1);
    }
}

static void receive(struct rpma_srq *srq, unsigned which)
{
    size_t offset = which * sizeof(*notes);
    void *context = &notes[which];

    if (srq)
        must(rpma_srq_recv(srq, notes_mr, offset, sizeof(*notes), context), "srq_recv");
    else
        must(rpma_recv(connection, notes_mr, offset, sizeof(*notes), context), "recv");
}

static void tell(struct note n, bool immediate)
{
    notes[RECEIVES] = n;
    if (immediate)
        must(rpma_send_with_imm(connection, notes_mr, RECEIVES * sizeof(n), sizeof(n),
                                RPMA_F_COMPLETION_ALWAYS, n.round, NULL),
             "send_with_imm");
    else
        must(rpma_send(connection, notes_mr, RECEIVES * sizeof(n), sizeof(n), RPMA_F_COMPLETION_ALWAYS, NULL),
             "send");
    completion(sent, IBV_WC_SEND);
}

static void same(uint64_t got, uint64_t wanted, const char *what)
{
    if (got == wanted)
        return;
    fprintf(stderr, "%s: %llu, not %llu\n", what, (unsigned long long)got, (unsigned long long)wanted);
    exit(1);
}

static struct rpma_conn_cfg *configuration(const char *way, struct rpma_srq *srq)
{
    struct rpma_conn_cfg *cfg;

    shared_channel = !strcmp(way, "shared");
    must(rpma_conn_cfg_new(&cfg), "conn_cfg_new");
    must(rpma_conn_cfg_set_timeout(cfg, 10000), "set_timeout");
    must(rpma_conn_cfg_set_cq_size(cfg, 64), "set_cq_size");
    must(rpma_conn_cfg_set_sq_size(cfg, 32), "set_sq_size");
    must(rpma_conn_cfg_set_rq_size(cfg, RECEIVES), "set_rq_size");
    if (srq)
        must(rpma_conn_cfg_set_srq(cfg, srq), "set_srq");
    else
        must(rpma_conn_cfg_set_rcq_size(cfg, RECEIVES), "set_rcq_size");
    must(rpma_conn_cfg_set_compl_channel(cfg, shared_channel), "set_compl_channel");
    return cfg;
}

static void queues(struct rpma_srq *srq)
{
    must(rpma_conn_get_cq(connection, &sent), "get_cq");
    if (srq)
        must(rpma_srq_get_rcq(srq, &received), "srq_get_rcq");
    else
        must(rpma_conn_get_rcq(connection, &received), "get_rcq");
}

/* To each message the answer is one; the memory was looked at, and filled, by then. */
static void serve(struct rpma_srq *srq)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct ibv_wc wc = completion(received, IBV_WC_RECV);
        struct note *slot = (struct note *)(uintptr_t)wc.wr_id, n = *slot;

        same(wc.byte_len, sizeof(n), "length of the message");
        same(n.round, round, "round");
        same(wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0, round & 1 ? round : 0, "immediate");
        same(*(uint64_t *)(void *)(memory + COUNTER), round, "counter");
        expect(n, false);
        fill(n, true);
        receive(srq, (unsigned)(slot - notes));
        tell(n, false);

        wc = completion(received, IBV_WC_RECV_RDMA_WITH_IMM);
        same(ntohl(wc.imm_data), ~round, "immediate of the write");
        slot = (struct note *)(uintptr_t)wc.wr_id;
        n.round += 1000;
        expect(n, false);
        receive(srq, (unsigned)(slot - notes));
        tell(n, false);
    }
}

static void server(const char *address, const char *port, const char *way)
{
    struct rpma_srq *srq = NULL;
    struct rpma_conn_cfg *cfg;
    unsigned char descriptor[256];
    struct rpma_conn_private_data data = {.ptr = descriptor};
    struct rpma_ep *ep;
    size_t length;

    must(rpma_mr_get_descriptor_size(memory_mr, &length), "get_descriptor_size");
    same(length <= sizeof(descriptor), true, "descriptor fits");
    must(rpma_mr_get_descriptor(memory_mr, descriptor), "get_descriptor");
    data.len = (uint8_t)length;
    must(rpma_ep_listen(peer, address, port, &ep), "ep_listen");
    printf("listening\n");
    fflush(stdout);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct rpma_conn_req *request;

        if (!strcmp(way, "srq"))
            must(rpma_srq_new(peer, NULL, &srq), "srq_new");
        cfg = configuration(way, srq);
        must(rpma_ep_next_conn_req(ep, cfg, &request), "next_conn_req");
        for (unsigned r = 0; r < RECEIVES; r++) {
            if (srq)
                receive(srq, r);
            else
                must(rpma_conn_req_recv(request, notes_mr, r * sizeof(*notes), sizeof(*notes), &notes[r]),
                     "req_recv");
        }
        must(rpma_conn_req_connect(&request, &data, &connection), "req_connect");
        event(RPMA_CONN_ESTABLISHED);
        queues(srq);
        serve(srq);
        event(RPMA_CONN_CLOSED);
        must(rpma_conn_disconnect(connection), "disconnect");
        must(rpma_conn_delete(&connection), "conn_delete");
        must(rpma_conn_cfg_delete(&cfg), "conn_cfg_delete");
        if (srq)
            must(rpma_srq_delete(&srq), "srq_delete");
    }
    must(rpma_ep_shutdown(&ep), "ep_shutdown");
}

static void answer(struct note n)
{
    struct ibv_wc wc = completion(received, IBV_WC_RECV);
    struct note *slot = (struct note *)(uintptr_t)wc.wr_id;

    same(slot->round, n.round, "round of the answer");
    receive(NULL, (unsigned)(slot - notes));
}

static void ask(struct rpma_mr_remote *there)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct note n = {
            .at = round * 977 % 5000, .length = 1 + (round * 7919u) % (SIZE - 5000), .round = round};
        uint64_t counter = round;
        char eight[8];

        fill(n, false);
        memcpy(eight, &counter, sizeof(eight));
        must(rpma_write(connection, there, n.at, memory_mr, n.at, n.length, RPMA_F_COMPLETION_ON_ERROR, NULL),
             "write");
        must(rpma_atomic_write(connection, there, COUNTER, eight, RPMA_F_COMPLETION_ON_ERROR, NULL),
             "atomic_write");
        must(rpma_flush(connection, there, n.at, n.length, RPMA_FLUSH_TYPE_VISIBILITY,
                        RPMA_F_COMPLETION_ALWAYS, NULL),
             "flush");
        completion(sent, IBV_WC_RDMA_READ);
        tell(n, round & 1);

        answer(n);
        must(rpma_read(connection, memory_mr, n.at, there, n.at, n.length, RPMA_F_COMPLETION_ALWAYS, NULL),
             "read");
        completion(sent, IBV_WC_RDMA_READ);
        expect(n, true);

        n.round += 1000;
        fill(n, false);
        must(rpma_write_with_imm(connection, there, n.at, memory_mr, n.at, n.length, RPMA_F_COMPLETION_ALWAYS,
                                 ~round, NULL),
             "write_with_imm");
        completion(sent, IBV_WC_RDMA_WRITE);
        answer(n);
    }
}

static void client(const char *address, const char *port, const char *way)
{
    for (int i = 0; i < CONNECTIONS; i++) {
        struct rpma_conn_cfg *cfg = configuration(way, NULL);
        struct rpma_conn_private_data data;
        struct rpma_conn_req *request;
        struct rpma_mr_remote *there;
        size_t size;
        int flush;

        must(rpma_conn_req_new(peer, address, port, cfg, &request), "conn_req_new");
        for (unsigned r = 0; r < RECEIVES; r++)
            must(rpma_conn_req_recv(request, notes_mr, r * sizeof(*notes), sizeof(*notes), &notes[r]),
                 "req_recv");
        must(rpma_conn_req_connect(&request, NULL, &connection), "req_connect");
        event(RPMA_CONN_ESTABLISHED);
        queues(NULL);
        must(rpma_conn_get_private_data(connection, &data), "get_private_data");
        must(rpma_mr_remote_from_descriptor(data.ptr, data.len, &there), "remote_from_descriptor");
        must(rpma_mr_remote_get_size(there, &size), "remote_get_size");
        same(size, ALL, "size of the server's memory");
        must(rpma_mr_remote_get_flush_type(there, &flush), "get_flush_type");
        same((uint64_t)flush, RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, "flush type");
        ask(there);
        must(rpma_conn_disconnect(connection), "disconnect");
        event(RPMA_CONN_CLOSED);
        must(rpma_mr_remote_delete(&there), "remote_delete");
        must(rpma_conn_delete(&connection), "conn_delete");
        must(rpma_conn_cfg_delete(&cfg), "conn_cfg_delete");
    }
}

int main(int argc, char **argv)
{
    bool serves = argc == 5 && !strcmp(argv[1], "server");
    struct ibv_context *device;

    if (argc != 5)
        return 2;
    must(rpma_utils_get_ibv_context(
             argv[2], serves ? RPMA_UTIL_IBV_CONTEXT_LOCAL : RPMA_UTIL_IBV_CONTEXT_REMOTE, &device),
         "get_ibv_context");
    must(rpma_peer_new(device, &peer), "peer_new");
    memory = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    notes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || notes == MAP_FAILED)
        return 1;
    must(rpma_mr_reg(peer, memory, ALL,
                     RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC |
                         RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY,
                     &memory_mr),
         "mr_reg");
    must(rpma_mr_reg(peer, notes, 4096, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &notes_mr), "mr_reg");
    (serves ? server : client)(argv[2], argv[3], argv[4]);
    must(rpma_mr_dereg(&notes_mr), "mr_dereg");
    must(rpma_mr_dereg(&memory_mr), "mr_dereg");
    must(rpma_peer_delete(&peer), "peer_delete");
    printf("%d rounds on %d connections\n", ROUNDS, CONNECTIONS);
    return 0;
}
