/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the device says of each limit that a fault may lower, and what comes of going up to it and beyond. Objects are
 * created until one is refused, nine at most; of sizes, the greatest that is allowed and one more are tried. Public
 * verbs only.
 *
 * usage: limits WHICH */
#include <errno.h>
#include <string.h>

#include "../explain/node.h"

#define OBJECTS_MAX 9u

static struct node node;
static struct ibv_device_attr device;

/* Each gives errno, 0 if it was created. */

static int create_qp(struct ibv_qp_cap cap)
{
    struct ibv_cq *cq = ibv_create_cq(node.context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr attributes = {.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC};

    REQUIRE(cq);
    return ibv_create_qp(node.pd, &attributes) ? 0 : errno;
}

static int any_qp(uint32_t unused)
{
    (void)unused;
    return create_qp((struct ibv_qp_cap){1, 1, 1, 1, 0});
}

static int qp_of_sends(uint32_t number)
{
    return create_qp((struct ibv_qp_cap){number, 1, 1, 1, 0});
}

static int qp_of_receives(uint32_t number)
{
    return create_qp((struct ibv_qp_cap){1, number, 1, 1, 0});
}

static int qp_of_sges(uint32_t number)
{
    return create_qp((struct ibv_qp_cap){1, 1, number, 1, 0});
}

static int qp_of_inline(uint32_t bytes)
{
    return create_qp((struct ibv_qp_cap){1, 1, 1, 1, bytes});
}

static int cq_of(uint32_t entries)
{
    return ibv_create_cq(node.context, (int)entries, NULL, NULL, 0) ? 0 : errno;
}

static int any_cq(uint32_t unused)
{
    (void)unused;
    return cq_of(1);
}

static int mr_of(uint32_t bytes)
{
    return ibv_reg_mr(node.pd, node.buffer, bytes, 0) ? 0 : errno;
}

static int any_mr(uint32_t unused)
{
    (void)unused;
    return mr_of(64);
}

static int any_pd(uint32_t unused)
{
    (void)unused;
    return ibv_alloc_pd(node.context) ? 0 : errno;
}

static int srq_of(uint32_t receives)
{
    struct ibv_srq_init_attr attributes = {.attr = {.max_wr = receives, .max_sge = 1}};

    return ibv_create_srq(node.pd, &attributes) ? 0 : errno;
}

static int any_srq(uint32_t unused)
{
    (void)unused;
    return srq_of(1);
}

static void sizes(const char *what, uint64_t limit, int (*create)(uint32_t size))
{
    int at = create((uint32_t)limit), beyond = create((uint32_t)limit + 1);

    say("%s %llu %s %s", what, (unsigned long long)limit, at ? strerror(at) : "ok",
        beyond ? strerror(beyond) : "ok");
}

static void numbers(const char *what, int limit, int (*create)(uint32_t unused))
{
    unsigned created = 0;
    int error = 0;

    while (created < OBJECTS_MAX && !(error = create(0)))
        created++;
    say("%s %d %u %s", what, limit, created, error ? strerror(error) : "ok");
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "";

    node_open(&node); /* a PD and an MR */
    REQUIRE(ibv_query_device(node.context, &device) == 0);
    if (strcmp(which, "max_qp") == 0)
        numbers(which, device.max_qp, any_qp);
    else if (strcmp(which, "max_cq") == 0)
        numbers(which, device.max_cq, any_cq);
    else if (strcmp(which, "max_mr") == 0)
        numbers(which, device.max_mr, any_mr);
    else if (strcmp(which, "max_pd") == 0)
        numbers(which, device.max_pd, any_pd);
    else if (strcmp(which, "max_srq") == 0)
        numbers(which, device.max_srq, any_srq);
    else if (strcmp(which, "max_qp_wr") == 0) {
        sizes("sends", (uint64_t)device.max_qp_wr, qp_of_sends);
        sizes("receives", (uint64_t)device.max_qp_wr, qp_of_receives);
    } else if (strcmp(which, "max_cqe") == 0)
        sizes(which, (uint64_t)device.max_cqe, cq_of);
    else if (strcmp(which, "max_sge") == 0)
        sizes(which, (uint64_t)device.max_sge, qp_of_sges);
    else if (strcmp(which, "max_mr_size") == 0)
        sizes(which, device.max_mr_size, mr_of);
    else if (strcmp(which, "max_srq_wr") == 0)
        sizes(which, (uint64_t)device.max_srq_wr, srq_of);
    else if (strcmp(which, "max_inline_data") == 0 && argc > 2) /* no attribute of the device has it */
        sizes(which, strtoul(argv[2], NULL, 0), qp_of_inline);
    else
        return 1;
    return 0;
}
