/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What was taken is given back: descriptors, mappings, threads and memory are where they were. */
#include "work.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* To the network: eight of each family that send (docs/wire.md, A17.3.2.1), and those that receive */
#define NETWORK_SOCKETS_MAX 24

struct holdings {
    unsigned int descriptors, network_sockets, mappings, threads;
    unsigned long shared_kib, anonymous_kib;
};

static unsigned int entries_of(const char *path)
{
    DIR *directory = opendir(path);
    unsigned int count = 0;

    CHECK(directory, "%s: %s", path, strerror(errno));
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

/* A packet for a QP that was just destroyed by its owner leaves to the network. The sockets for that stay: a
 * fixed number, each opened when it is needed first, which may be late. */
static unsigned int network_sockets(void)
{
    unsigned int count = 0;

    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_storage address = {0};
        socklen_t length = sizeof(address);

        if (getsockname(fd, (struct sockaddr *)&address, &length) == 0)
            count += address.ss_family == AF_INET || address.ss_family == AF_INET6;
    }
    return count;
}

static void take_stock(struct end *end, void *arg)
{
    struct holdings *now = arg;
    char line[512];
    FILE *file;

    now->network_sockets = network_sockets();
    now->descriptors = entries_of("/proc/self/fd") - now->network_sockets;
    now->threads = entries_of("/proc/self/task");
    now->mappings = 0;
    file = fopen("/proc/self/maps", "re");
    CHECK(file, "/proc/self/maps");
    while (fgets(line, sizeof(line), file))
        now->mappings++;
    fclose(file);
    file = fopen("/proc/self/status", "re");
    CHECK(file, "/proc/self/status");
    while (fgets(line, sizeof(line), file)) {
        sscanf(line, "RssShmem: %lu", &now->shared_kib);
        sscanf(line, "RssAnon: %lu", &now->anonymous_kib);
    }
    fclose(file);
}

static struct holdings holdings_of(struct side *side)
{
    struct end end = {.side = side};
    struct holdings now = {0};

    AT(&end, take_stock, &now);
    return now;
}

/* Those of the near side: for who reads the failure */
static void list_descriptors(void)
{
    for (int fd = 0; fd < 1024; fd++) {
        char path[64], target[128];
        ssize_t length;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        length = readlink(path, target, sizeof(target) - 1);
        if (length > 0)
            print_message("descriptor %d: %.*s\n", fd, (int)length, target);
    }
}

static void expect_no_more(const char *who, const struct holdings *before, const struct holdings *now)
{
    /* two processes that seek each other at the same moment may end with a second link: a socket and a pidfd
     */
    if (now->descriptors > before->descriptors + 4)
        list_descriptors();
    CHECK(now->descriptors <= before->descriptors + 4, "%s: %u descriptors, were %u", who, now->descriptors,
          before->descriptors);
    CHECK(now->network_sockets <= NETWORK_SOCKETS_MAX, "%s: %u sockets to the network", who,
          now->network_sockets);
    CHECK(now->threads <= before->threads, "%s: %u threads, were %u", who, now->threads, before->threads);
    /* an allocator may split or join a few mappings, and a socket to the network has a buffer; the key table
     * goes round: 64 bytes for each registration, and 8 in a table of pointers */
    CHECK(now->mappings <= before->mappings + 4 + now->network_sockets, "%s: %u mappings, were %u", who,
          now->mappings, before->mappings);
    CHECK(now->shared_kib <= before->shared_kib + 4096, "%s: %lu KiB of shared memory, were %lu", who,
          now->shared_kib, before->shared_kib);
    /* the last thousand handles of each kind of object rest, with who destroyed them: 1.1 MiB after 200 rounds, and
     * not 2 MiB after 5,000 */
    if (slowness() == 1)
        CHECK(now->anonymous_kib <= before->anonymous_kib + 2048, "%s: %lu KiB of memory, were %lu", who,
              now->anonymous_kib, before->anonymous_kib);
}

static void live_through_everything(void)
{
    const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};

    for (size_t t = 0; t < COUNT(types); t++) {
        struct end_attr attr = attr_of(types[t]);
        struct pair p;

        attr.channel = true;
        attr.srq_wr = t == 0 ? 32 : 0;
        pair_connect_as(&p, &attr);
        for (unsigned int i = 0; i < 10; i++) {
            pair_marker(&p.a, &p.b);
            pair_marker(&p.b, &p.a);
        }
        if (types[t] == IBV_QPT_RC) {
            end_send(&p.a, a_write(&p.a, 1, 0, 60000, &p.b, 0));
            end_send(&p.a, a_read(&p.a, 2, 0, 60000, &p.b, 0));
            end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
            end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_READ);
            CHECK_ZERO(end_to_state(&p.a, IBV_QPS_ERR));
        }
        pair_close(&p);
    }
}

/* The handles of the last thousand destroys of each kind are kept, and no more. */
static void destroy_many_here(struct end *end, void *arg)
{
    struct ibv_context *context = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
    struct ibv_srq_init_attr srq = {.attr = {1, 1, 0}};
    struct ibv_qp_init_attr qp = {
        .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}};
    struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1};

    CHECK_ZERO(ibv_query_gid(context, 1, 0, &ah.grh.dgid));
    for (unsigned int i = 0; i < 1100; i++) {
        CHECK_ZERO(ibv_destroy_qp(ibv_create_qp(pd, &qp)));
        CHECK_ZERO(ibv_destroy_srq(ibv_create_srq(pd, &srq)));
        CHECK_ZERO(ibv_destroy_cq(ibv_create_cq(context, 1, NULL, NULL, 0)));
        CHECK_ZERO(ibv_dereg_mr(ibv_reg_mr(pd, &ah, sizeof(ah), IBV_ACCESS_LOCAL_WRITE)));
        CHECK_ZERO(ibv_destroy_ah(ibv_create_ah(pd, &ah)));
        CHECK_ZERO(ibv_dealloc_pd(ibv_alloc_pd(context)));
        CHECK_ZERO(ibv_destroy_comp_channel(ibv_create_comp_channel(context)));
    }
    CHECK_ZERO(ibv_destroy_cq(cq));
    CHECK_ZERO(ibv_dealloc_pd(pd));
    CHECK_ZERO(ibv_close_device(context));
}

static void objects_and_traffic_leave_nothing_behind(void **state)
{
    const unsigned int rounds = long_tests() ? 5000 : 200;
    struct holdings near_before, far_before, near_now, far_now;

    /* the first times pay for what stays: segment, links, helper thread, heaps, numbers that rest */
    AT_PLAIN(&(struct end){.side = NEAR}, destroy_many_here);
    AT_PLAIN(&(struct end){.side = FAR}, destroy_many_here);
    for (unsigned int i = 0; i < 40; i++)
        live_through_everything();
    near_before = holdings_of(NEAR);
    far_before = holdings_of(FAR);
    for (unsigned int i = 0; i < rounds; i++)
        live_through_everything();
    near_now = holdings_of(NEAR);
    far_now = holdings_of(FAR);
    expect_no_more("near", &near_before, &near_now);
    expect_no_more("far", &far_before, &far_now);
}

static void meet_and_lose(unsigned int index, bool violently)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end a, b;

    attr.timeout = 8;
    attr.retry_cnt = 1;
    end_open(&a, NEAR, &attr);
    end_open(&b, &sides[index], &attr);
    end_connect(&a, &b);
    pair_marker(&a, &b);
    if (violently)
        end_send(&a, a_send(&a, 1, 0, 30000));
    side_kill(&sides[index]);
    if (violently)
        end_expect_status(&a, SQ, 1, IBV_WC_RETRY_EXC_ERR);
    end_close(&a);
}

static void peers_that_die_leave_nothing_behind(void **state)
{
    enum { FIRST = 6, ALL = 40 };
    struct holdings before, now;

    for (unsigned int i = 1; i <= FIRST; i++)
        meet_and_lose(i, i % 2);
    before = holdings_of(NEAR);
    for (unsigned int i = FIRST + 1; i <= ALL; i++)
        meet_and_lose(i, i % 2);
    /* the last death may not be noticed yet; a link that is gone is gone soon */
    EVENTUALLY((now = holdings_of(NEAR)).descriptors <= before.descriptors &&
                   now.mappings <= before.mappings + 4,
               "%u descriptors and %u mappings again", before.descriptors, before.mappings);
    /* each side that was killed freed a socket of the test itself */
    expect_no_more("near", &before, &now);
}

static void a_thousand_registrations_leave_no_mapping_behind(void **state)
{
    struct holdings before, now;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    pair_marker(&p.a, &p.b); /* the link is there */
    pair_marker(&p.b, &p.a);
    for (unsigned int round = 0; round < 11; round++) {
        for (unsigned int i = 0; i < 100; i++) {
            struct ibv_mr *mr =
                ibv_reg_mr(p.a.pd, p.a.buf + i * 16, 40000, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

            assert_non_null(mr);
            assert_int_equal(ibv_dereg_mr(mr), 0);
        }
        if (round == 0)
            before = holdings_of(NEAR);
    }
    now = holdings_of(NEAR);
    expect_no_more("near", &before, &now);
    pair_close(&p);
}

/* A page each, all of them known to the peer. */
static void regions_of_one_page_work_all_of_them(void **state)
{
    const unsigned int count = long_tests() ? 100000 : 3000,
                       access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr **mrs = calloc(count, sizeof(struct ibv_mr *));
    struct holdings before, now;
    struct pair p;
    char *memory = mmap(NULL, count * 4096ul, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(memory != MAP_FAILED, "mmap: %s", strerror(errno));
    pair_connect(&p, IBV_QPT_RC);
    pair_marker(&p.a, &p.b); /* the link is there */
    pair_marker(&p.b, &p.a);
    for (unsigned int round = 0; round < 2; round++) {
        struct end to = p.a;

        for (unsigned int i = 0; i < count; i++) {
            mrs[i] = ibv_reg_mr(p.a.pd, memory + i * 4096ul, 4096, access);
            CHECK(mrs[i], "region %u: %s", i, strerror(errno));
        }
        for (unsigned int i = 0; i < count; i++) {
            to.buf = (unsigned char *)mrs[i]->addr;
            to.rkey = mrs[i]->rkey;
            end_poke64(&p.b, 0, i + round + 1);
            end_send(&p.b, a_write(&p.b, i, 0, 8, &to, 8));
            end_expect_success(&p.b, SQ, i, IBV_WC_RDMA_WRITE);
        }
        for (unsigned int i = 0; i < count; i++) {
            unsigned int other = (unsigned int)((i * 2654435761ull) % count); /* in no order */

            if (mrs[other])
                assert_int_equal(ibv_dereg_mr(mrs[other]), 0);
            mrs[other] = NULL;
        }
        for (unsigned int i = 0; i < count; i++) {
            uint64_t word;

            if (mrs[i])
                assert_int_equal(ibv_dereg_mr(mrs[i]), 0);
            memcpy(&word, memory + i * 4096ul + 8, sizeof(word));
            CHECK(word == i + round + 1, "page %u: %llu", i, (unsigned long long)word);
        }
        if (round == 0)
            before = holdings_of(NEAR);
    }
    before.shared_kib += count * 192ul / 1024; /* the key table goes round: three records of each key */
    now = holdings_of(NEAR);
    expect_no_more("near", &before, &now);
    pair_close(&p);
    munmap(memory, count * 4096ul);
    free(mrs);
}

int main(int argc, char **argv)
{
    const struct test tests[] = {
        TEST_WITH(objects_and_traffic_leave_nothing_behind, .fars = 1, .seconds = long_tests() ? 1800 : 120),
        TEST_WITH(peers_that_die_leave_nothing_behind, .fars = 40, .needs = NEEDS_TWO_PROCESSES,
                  .seconds = 120),
        TEST(a_thousand_registrations_leave_no_mapping_behind),
        TEST_WITH(regions_of_one_page_work_all_of_them, .fars = 1, .seconds = long_tests() ? 1800 : 120),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
