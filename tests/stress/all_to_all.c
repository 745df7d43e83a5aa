/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Many processes, each connected to each by RC, all talking at once and checking what they get. */
#include "work.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROCESSES_MAX = 64, RECVS = 4, SLOT = 8192, ROUNDS = 12 };

/* What one process tells of itself; card.to[j]: its QP that talks to process j */
struct card {
    union ibv_gid gid;
    uint64_t counter; /* address of its word for atomics */
    uint32_t rkey;
    uint32_t to[PROCESSES_MAX];
};

/* The state of this process: static, because functions and not objects travel. */
static struct {
    unsigned int index, count;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    uint8_t *memory; /* RECVS + 1 slots per peer, then a line for atomics */
    struct ibv_qp *qp[PROCESSES_MAX];
    unsigned int received[PROCESSES_MAX], sent[PROCESSES_MAX];
    bool gone[PROCESSES_MAX];
} me;

struct opening {
    unsigned int index, count;
    uint8_t timeout; /* 0: for ever */
    struct card card;
};

struct joining {
    uint8_t timeout;
    /* The first so many are going to be killed. Nobody waits for them: who has sent everything to a process
     * that then dies with messages unsent never hears of it, with hardware neither. */
    uint8_t victims;
    struct card cards[PROCESSES_MAX];
};

static uint8_t *slot_of(unsigned int peer, unsigned int slot)
{
    return me.memory + ((size_t)peer * (RECVS + 1) + slot) * SLOT;
}

static size_t memory_size(void)
{
    return (size_t)me.count * (RECVS + 1) * SLOT + 4096;
}

static uint64_t *counter(void)
{
    return (uint64_t *)(void *)(me.memory + memory_size() - 4096);
}

static void open_here(void *arg)
{
    struct opening *opening = arg;
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1},
    };

    me.index = opening->index;
    me.count = opening->count;
    me.context = open_the_device();
    me.pd = ibv_alloc_pd(me.context);
    me.cq = ibv_create_cq(me.context, (int)me.count * (RECVS + 4), NULL, NULL, 0);
    me.memory = mmap(NULL, memory_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(me.pd && me.cq && me.memory != MAP_FAILED, "objects: %s", strerror(errno));
    me.mr = ibv_reg_mr(me.pd, me.memory, memory_size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(me.mr, "ibv_reg_mr: %s", strerror(errno));
    init.send_cq = init.recv_cq = me.cq;
    CHECK(!ibv_query_gid(me.context, TEST_PORT, 0, &opening->card.gid), "ibv_query_gid");
    opening->card.rkey = me.mr->rkey;
    opening->card.counter = (uintptr_t)counter();
    for (unsigned int j = 0; j < me.count; j++) {
        if (j == me.index)
            continue;
        me.qp[j] = ibv_create_qp(me.pd, &init);
        CHECK(me.qp[j], "QP to process %u: %s", j, strerror(errno));
        opening->card.to[j] = me.qp[j]->qp_num;
    }
}

static void post_recv(unsigned int peer, unsigned int slot)
{
    struct ibv_sge sge = {.addr = (uintptr_t)slot_of(peer, slot), .length = SLOT, .lkey = me.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = peer * RECVS + slot, .sg_list = &sge, .num_sge = 1}, *bad;

    CHECK_ZERO(ibv_post_recv(me.qp[peer], &wr, &bad));
}

static void join_here(void *arg)
{
    const struct joining *joining = arg;

    for (unsigned int j = 0; j < me.count; j++) {
        const struct card *card = &joining->cards[j];
        struct ibv_qp_attr attr = {
            .qp_state = IBV_QPS_INIT, .port_num = TEST_PORT, .qp_access_flags = IBV_ACCESS_REMOTE_ATOMIC};

        if (j == me.index)
            continue;
        CHECK_ZERO(ibv_modify_qp(me.qp[j], &attr,
                                 IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
        for (unsigned int slot = 0; slot < RECVS; slot++)
            post_recv(j, slot);
        attr = (struct ibv_qp_attr){
            .qp_state = IBV_QPS_RTR,
            .path_mtu = IBV_MTU_1024,
            .dest_qp_num = card->to[me.index],
            .max_dest_rd_atomic = 1,
            .min_rnr_timer = 12,
            .ah_attr = {.is_global = 1, .port_num = TEST_PORT, .grh = {.dgid = card->gid, .hop_limit = 64}},
        };
        CHECK_ZERO(ibv_modify_qp(me.qp[j], &attr,
                                 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
        attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                    .timeout = joining->timeout,
                                    .retry_cnt = 7,
                                    .rnr_retry = 7,
                                    .max_rd_atomic = 1};
        CHECK_ZERO(ibv_modify_qp(me.qp[j], &attr,
                                 IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
    }
}

static uint64_t seed_of(unsigned int from, unsigned int to, unsigned int round)
{
    return (uint64_t)from << 40 | (uint64_t)to << 20 | round;
}

static size_t length_of(uint64_t seed)
{
    return 1 + (size_t)(seed * 0x9e3779b97f4a7c15u >> 40) % (SLOT - 1);
}

enum { ID_SEND = 1 << 20, ID_ATOMIC = 1 << 21 };

/* The next message to a peer, and a count in its memory */
static void send_next(unsigned int peer, const struct card *card)
{
    const unsigned int round = me.sent[peer]++;
    const uint64_t seed = seed_of(me.index, peer, round);
    struct ibv_sge sge = {
        .addr = (uintptr_t)slot_of(peer, RECVS), .length = (uint32_t)length_of(seed), .lkey = me.mr->lkey};
    struct ibv_sge result = {.addr = (uintptr_t)(counter() + 8 + peer), .length = 8, .lkey = me.mr->lkey};
    struct ibv_send_wr add = {
        .wr_id = ID_ATOMIC | peer, .sg_list = &result, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct ibv_send_wr send = {.wr_id = ID_SEND | peer,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;

    fill_pattern(slot_of(peer, RECVS), length_of(seed), seed);
    add.wr.atomic.remote_addr = card->counter;
    add.wr.atomic.rkey = card->rkey;
    add.wr.atomic.compare_add = 1;
    add.next = &send;
    CHECK_ZERO(ibv_post_send(me.qp[peer], &add, &bad));
}

static void check_message(const struct ibv_wc *wc)
{
    const unsigned int peer = (unsigned int)wc->wr_id / RECVS, slot = (unsigned int)wc->wr_id % RECVS;
    const unsigned int round = me.received[peer]++;
    const uint64_t seed = seed_of(peer, me.index, round);

    CHECK(wc->byte_len == length_of(seed), "message %u of process %u: %u bytes instead of %zu", round, peer,
          wc->byte_len, length_of(seed));
    CHECK(find_difference(slot_of(peer, slot), wc->byte_len, seed) == wc->byte_len,
          "message %u of process %u is damaged", round, peer);
    CHECK(wc->qp_num == me.qp[peer]->qp_num, "message of another QP");
    post_recv(peer, slot);
}

static unsigned int peers_that_are_not_done(const struct joining *with)
{
    unsigned int count = 0;

    for (unsigned int j = with->victims; j < me.count; j++)
        count += j != me.index && !me.gone[j] && (me.received[j] < ROUNDS || me.sent[j] <= ROUNDS);
    return count;
}

/* sent[j] is ROUNDS + 1 when the last send to j was completed. */
static void talk_here(void *arg)
{
    const struct joining *joining = arg;

    for (unsigned int j = 0; j < me.count; j++)
        if (j != me.index)
            send_next(j, &joining->cards[j]);
    EVENTUALLY(!peers_that_are_not_done(joining), "all messages of %u processes", me.count)
    {
        struct ibv_wc wc[32];
        const int got = ibv_poll_cq(me.cq, 32, wc);

        if (got)
            patience_.until = now_ns() + 30000000000u * slowness();
        for (int i = 0; i < got; i++) {
            const unsigned int peer =
                (unsigned int)(wc[i].wr_id & ID_SEND ? wc[i].wr_id & 0xff : wc[i].wr_id / RECVS);

            if (wc[i].status != IBV_WC_SUCCESS) {
                const unsigned int of =
                    wc[i].wr_id & (ID_SEND | ID_ATOMIC) ? (unsigned int)wc[i].wr_id & 0xff : peer;

                CHECK(joining->timeout, "process %u: %s", of, ibv_wc_status_str(wc[i].status));
                CHECK(wc[i].status == IBV_WC_RETRY_EXC_ERR || wc[i].status == IBV_WC_WR_FLUSH_ERR,
                      "process %u: %s", of, ibv_wc_status_str(wc[i].status));
                me.gone[of] = true;
            } else if (wc[i].opcode & IBV_WC_RECV) {
                check_message(&wc[i]);
            } else if (me.sent[peer] < ROUNDS) {
                send_next(peer, &joining->cards[peer]);
            } else {
                me.sent[peer]++;
            }
        }
    }
}

static void close_here(void *arg)
{
    const unsigned int *expected = arg;

    if (*expected != UINT32_MAX)
        EVENTUALLY(__atomic_load_n(counter(), __ATOMIC_RELAXED) == *expected, "%u atomic additions, got %llu",
                   *expected, (unsigned long long)*counter());
    for (unsigned int j = 0; j < me.count; j++)
        if (j != me.index)
            CHECK_ZERO(ibv_destroy_qp(me.qp[j]));
    CHECK_ZERO(ibv_destroy_cq(me.cq));
    CHECK_ZERO(ibv_dereg_mr(me.mr));
    CHECK_ZERO(ibv_dealloc_pd(me.pd));
    CHECK_ZERO(ibv_close_device(me.context));
    munmap(me.memory, memory_size());
}

static struct joining joining;
static struct call calls[1 + PROCESSES_MAX];

static void on_all(unsigned int count, side_fn *fn, void *arg, size_t length)
{
    static struct joining copies[PROCESSES_MAX];

    for (unsigned int i = 0; i < count; i++) {
        memcpy(&copies[i], arg, length);
        side_start(&calls[i], &sides[1 + i], fn, &copies[i], length);
    }
    for (unsigned int i = 0; i < count; i++)
        side_finish(&calls[i]);
}

static void join_all(unsigned int count, uint8_t timeout, uint8_t victims)
{
    for (unsigned int i = 0; i < count; i++) {
        struct opening opening = {.index = i, .count = count};

        side_call(&sides[1 + i], open_here, &opening, sizeof(opening));
        joining.cards[i] = opening.card;
    }
    joining.timeout = timeout;
    joining.victims = victims;
    on_all(count, join_here, &joining, sizeof(joining));
}

static void run_all(unsigned int count)
{
    unsigned int expected = (count - 1) * ROUNDS;

    join_all(count, 0, 0);
    on_all(count, talk_here, &joining, sizeof(joining));
    on_all(count, close_here, &expected, sizeof(expected));
}

static void eight_processes_talk_all_to_all(void **state)
{
    run_all(8);
}

static void sixty_four_processes_talk_all_to_all(void **state)
{
    run_all(64);
}

/* A third is killed at random moments; the others finish among themselves. */
static void processes_killed_at_random_do_not_stop_the_others(void **state)
{
    enum { COUNT_ALL = 12, VICTIMS = 4 };
    unsigned int nothing = UINT32_MAX;
    unsigned int seed = (unsigned int)now_ns();

    join_all(COUNT_ALL, 12, VICTIMS);
    for (unsigned int i = 0; i < COUNT_ALL; i++)
        side_start(&calls[i], &sides[1 + i], talk_here, &joining, sizeof(joining));
    for (unsigned int i = 0; i < VICTIMS; i++) {
        for (unsigned int spin = (unsigned int)rand_r(&seed) % 2000000; spin; spin--)
            __asm__ volatile("");
        side_kill(&sides[1 + i]);
    }
    for (unsigned int i = VICTIMS; i < COUNT_ALL; i++)
        side_finish(&calls[i]);
    for (unsigned int i = VICTIMS; i < COUNT_ALL; i++)
        side_call(&sides[1 + i], close_here, &nothing, sizeof(nothing));
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(eight_processes_talk_all_to_all, .fars = 8, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(sixty_four_processes_talk_all_to_all, .fars = 64, .needs = NEEDS_TWO_PROCESSES,
                  .seconds = 300),
        TEST_WITH(processes_killed_at_random_do_not_stop_the_others, .fars = 12, .needs = NEEDS_TWO_PROCESSES,
                  .seconds = 120),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
