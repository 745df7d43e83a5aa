/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "both_ways.h"

#include <dlfcn.h>

void count_operations(struct end *end, void *arg)
{
    struct {
        uint32_t comp_mask;
        int type;
        uint32_t flags;
    } init = {0};
    struct {
        uint32_t comp_mask, op_mask;
    } attach = {.op_mask = 16}; /* WRITE */
    void *(*create)(struct ibv_context *, void *);
    int (*attach_it)(struct ibv_qp *, void *, void *);
    void **counter = arg;

    *(void **)&create = dlsym(RTLD_DEFAULT, "ibv_create_comp_cntr");
    *(void **)&attach_it = dlsym(RTLD_DEFAULT, "ibv_qp_attach_comp_cntr");
    assert_non_null(create);
    assert_non_null(attach_it);
    *counter = create(end->context, &init);
    assert_non_null(*counter);
    assert_int_equal(attach_it(end->qp, *counter, &attach), 0);
}

void destroy_counter(struct end *end, void *arg)
{
    int (*destroy)(void *);
    void **counter = arg;

    *(void **)&destroy = dlsym(RTLD_DEFAULT, "ibv_destroy_comp_cntr");
    assert_int_equal(destroy(*counter), 0);
}

uint64_t state_of_random;

uint32_t below(uint32_t limit)
{
    state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state_of_random >> 33) % limit;
}

bool one_in(uint32_t n)
{
    return below(n) == 0;
}

void outcome_poll(struct end *end, enum queue queue, struct outcome *outcome, struct patience *patience)
{
    int n;

    n = end_poll_once(end, queue, &outcome->wc[outcome->count], one_in(2) ? 1 : 16);
    outcome->count += (unsigned int)n;
    assert_true(outcome->count + 16 <= outcome->most); /* room for the next poll */
    if (n == 0)
        patience_wait(patience, __FILE__, __LINE__);
}

void outcome_until(struct end *end, uint64_t last, struct outcome *ret)
{
    struct patience patience = patience_begin("the last completion");

    do
        outcome_poll(end, SQ, ret, &patience);
    while (!ret->count || ret->wc[ret->count - 1].wr_id != last);
    patience_end();
}

void outcome_compare(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->count, b->count);
    for (unsigned int i = 0; i < a->count; i++) {
        assert_int_equal(a->wc[i].wr_id, b->wc[i].wr_id);
        assert_int_equal(a->wc[i].status, b->wc[i].status);
        assert_int_equal(a->wc[i].vendor_err, b->wc[i].vendor_err);
        if (a->wc[i].status != IBV_WC_SUCCESS)
            continue;
        assert_int_equal(a->wc[i].opcode, b->wc[i].opcode);
        assert_int_equal(a->wc[i].byte_len, b->wc[i].byte_len);
        assert_int_equal(a->wc[i].wc_flags, b->wc[i].wc_flags);
        assert_int_equal(a->wc[i].imm_data, b->wc[i].imm_data);
        assert_int_equal(a->wc[i].sl, b->wc[i].sl);
    }
}

static void peek_all(struct end *end, uint8_t *bytes)
{
    for (size_t at = 0; at < BOTH_SIZE; at += 1024)
        end_peek(end, at, bytes + at, 1024);
}

void compare_memory(struct pair pairs[2])
{
    static uint8_t bytes[2][BOTH_SIZE];

    for (int i = 0; i < 2; i++)
        peek_all(&pairs[i].b, bytes[i]);
    assert_memory_equal(bytes[0], bytes[1], BOTH_SIZE);
    for (int i = 0; i < 2; i++)
        peek_all(&pairs[i].a, bytes[i]);
    assert_memory_equal(bytes[0], bytes[1], BOTH_SIZE);
}

int post_by_builders(struct end *end, const struct send *sends, unsigned int count, unsigned int *ret_posted)
{
    struct ibv_qp_ex *qpx = end->qpx;
    int error;

    ibv_wr_start(qpx);
    for (unsigned int i = 0; i < count; i++) {
        const struct ibv_send_wr *wr = &sends[i].wr;

        qpx->wr_id = wr->wr_id;
        qpx->wr_flags = wr->send_flags & ~(unsigned int)IBV_SEND_INLINE;
        if (wr->opcode == IBV_WR_RDMA_READ)
            ibv_wr_rdma_read(qpx, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
        else if (wr->opcode == IBV_WR_RDMA_WRITE)
            ibv_wr_rdma_write(qpx, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
        else if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
            ibv_wr_atomic_fetch_add(qpx, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
                                    wr->wr.atomic.compare_add);
        else if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
            ibv_wr_atomic_cmp_swp(qpx, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
                                  wr->wr.atomic.compare_add, wr->wr.atomic.swap);
        else if (wr->opcode == IBV_WR_SEND)
            ibv_wr_send(qpx);
        else
            ibv_wr_send_imm(qpx, wr->imm_data);
        if (wr->send_flags & IBV_SEND_INLINE)
            ibv_wr_set_inline_data(qpx, (void *)(uintptr_t)sends[i].sge[0].addr,
                                   wr->num_sge ? sends[i].sge[0].length : 0);
        else
            ibv_wr_set_sge_list(qpx, (size_t)wr->num_sge, sends[i].sge);
    }
    error = ibv_wr_complete(qpx);
    *ret_posted = error ? 0 : count;
    return error;
}
