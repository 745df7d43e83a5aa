/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "lent.h"

#include <sys/mman.h>

uint8_t *map_at(void *at, size_t length, int flags, int fd)
{
    uint8_t *memory = mmap(at, length, PROT_READ | PROT_WRITE, flags, fd, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

void register_here(struct end *end, void *arg)
{
    struct lent *lent = arg;

    lent->mr = ibv_reg_mr(end->pd, lent->at, LENGTH, RIGHTS);
    CHECK(lent->mr, "ibv_reg_mr: %s", strerror(errno));
    lent->lkey = lent->mr->lkey;
    lent->rkey = lent->mr->rkey;
}

static void lend_here(struct end *end, void *arg)
{
    struct lent *lent = arg;

    if (!lent->make(lent))
        return;
    CHECK(lent->at, "no memory: %s", strerror(errno));
    register_here(end, lent);
}

void deregister_here(struct end *end, void *arg)
{
    struct lent *lent = arg;

    CHECK_ZERO(ibv_dereg_mr(lent->mr));
}

void lend(struct pair *p, struct lent *lent, struct end *ret_to)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.size = LENGTH + PAGE;
    pair_connect_as(p, &attr);
    AT(&p->b, lend_here, lent);
    if (lent->why_not[0])
        skip_because("%s", lent->why_not);
    *ret_to = p->b;
    ret_to->buf = lent->at;
    ret_to->lkey = lent->lkey;
    ret_to->rkey = lent->rkey;
}

void peer_writes(struct pair *p, struct end *to, uint64_t seed)
{
    end_fill(&p->a, 0, LENGTH, seed);
    end_send(&p->a, a_write(&p->a, 1, 0, LENGTH, to, 0));
    end_expect_success(&p->a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_expect_data(to, 0, LENGTH, seed);
}

void peer_reads(struct pair *p, struct end *to, uint64_t seed)
{
    end_send(&p->a, a_read(&p->a, 2, 0, LENGTH, to, 0));
    end_expect_success(&p->a, SQ, 2, IBV_WC_RDMA_READ);
    end_expect_data(&p->a, 0, LENGTH, seed);
}

bool private_memory(struct lent *lent)
{
    lent->at = map_at(NULL, LENGTH, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    lent->switched = true;
    return true;
}
