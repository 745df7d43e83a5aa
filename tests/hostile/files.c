/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Files that another process made: of huge pages, of which the machine has none, so that an access raises SIGBUS;
 * that can be cut off; and of which nothing is there, so that who looks pays for it. */
#include "attacker.h"
#include "forge.h"
#include "work.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HUGE = 2 << 20, ALL_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* --- the command, as root ------------------------------------------------------------------------------- */

static void hold_huge_segment(int connection, const void *argument)
{
    int fd = make_segment_file(MFD_HUGETLB, HUGE, ALL_SEALS);

    attacker_ready(connection, &fd, sizeof(fd));
}

static void huge_pages_of_another_user_end_no_command_of_root(void **state)
{
    const char *const ps[] = {"ps", NULL};
    struct attacker attacker;
    char pid[16];
    const char *const ps_one[] = {"ps", pid, NULL}, *const why[] = {"why", pid, NULL};
    int fd;

    need_root();
    attacker = attacker_start(ATTACKER_USER, hold_huge_segment, NULL);
    attacker_told(&attacker, &fd, sizeof(fd));
    snprintf(pid, sizeof(pid), "%d", (int)attacker.pid);
    assert_int_equal(run_softhca(ps, NULL), 0);
    assert_int_equal(run_softhca(ps_one, NULL), 1);
    assert_int_equal(run_softhca(why, NULL), 1);
    attacker_end(&attacker);
}

/* --- a peer of the same user ---------------------------------------------------------------------------- */

/* In the peer: it publishes that its region is mapped from a file of huge pages, which has the size and the seals of an
 * arena. */
static void publish_huge_arena_here(struct end *end, void *argument)
{
    const size_t *at = argument;
    int arena = make_segment_file(MFD_HUGETLB, (off_t)forge_arena_size(), ALL_SEALS);

    CHECK(forge_mapped_region(arena, end->rkey, (uintptr_t)end->buf + *at, HUGE), "the segment: %s",
          strerror(errno));
}

static void huge_pages_of_a_peer_end_no_program_that_posts(void **state)
{
    enum { REQUESTS = 300 };
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct pair p;
    size_t at;

    if (!two_processes())
        skip_because("a peer is another process");
    attr.size = 3 * HUGE;
    pair_connect_as(&p, &attr);
    at = HUGE - (uintptr_t)p.b.buf % HUGE; /* where a huge page would begin */
    AT(&p.b, publish_huge_arena_here, &at);
    end_fill(&p.a, 0, 64, 5);
    for (uint64_t i = 0; i < REQUESTS; i++) {
        end_send(&p.a, a_write(&p.a, i, 0, 64, &p.b, at));
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_WRITE);
    }
    end_expect_data(&p.b, at, 64, 5);
    pair_close(&p);
}

/* --- import --------------------------------------------------------------------------------------------- */

static size_t device_file_size(int fd)
{
    struct stat file;

    CHECK(fstat(fd, &file) == 0, "fstat: %s", strerror(errno));
    return (size_t)file.st_size;
}

static void only_a_sealed_file_of_ordinary_pages_is_imported(void **state)
{
    static const int seals[] = {0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK | F_SEAL_SEAL};
    struct ibv_context *context = open_the_device();
    size_t size = device_file_size(context->cmd_fd);
    char *head = malloc(size);
    int fd;

    CHECK(head && pread(context->cmd_fd, head, size, 0) == (ssize_t)size, "pread: %s", strerror(errno));
    for (size_t i = 0; i < COUNT(seals); i++) {
        fd = make_segment_file(0, (off_t)size, 0);
        CHECK(pwrite(fd, head, size, 0) == (ssize_t)size && fcntl(fd, F_ADD_SEALS, seals[i]) == 0,
              "pwrite: %s", strerror(errno));
        assert_refused(ibv_import_device(fd), EINVAL);
        close(fd);
    }
    fd = make_segment_file(MFD_HUGETLB, HUGE, ALL_SEALS);
    assert_refused(ibv_import_device(fd), EINVAL);
    close(fd);
    free(head);
    CHECK_ZERO(ibv_close_device(context));
}

/* --- holes ---------------------------------------------------------------------------------------------- */

/* In the other user's program: nothing was ever posted to most of what it has. */
static void open_program(int connection, const void *argument)
{
    struct ibv_context *context = open_the_device();
    struct ibv_qp_init_attr attr = {.cap = {4096, 4096, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 65536, NULL, NULL, 0);
    uint32_t told;
    struct ibv_qp *qp;

    attr.send_cq = attr.recv_cq = cq;
    qp = pd && cq ? ibv_create_qp(pd, &attr) : NULL;
    CHECK(qp, "ibv_create_qp: %s", strerror(errno));
    told = qp->qp_num;
    attacker_ready(connection, &told, sizeof(told));
}

/* Of all memfds of that process. */
static blkcnt_t blocks_of(const struct attacker *attacker)
{
    blkcnt_t blocks = 0;

    for (int fd = 0; fd < 256; fd++) {
        struct stat file;
        char path[64], target[64] = "";

        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)attacker->pid, fd);
        if (readlink(path, target, sizeof(target) - 1) > 0 && !strncmp(target, "/memfd:", 7) &&
            stat(path, &file) == 0)
            blocks += file.st_blocks;
    }
    return blocks;
}

static void who_looks_at_holes_pays_for_no_page(void **state)
{
    uint32_t told;
    struct attacker attacker;
    char pid[16], qp[16];
    const char *const commands[][5] = {{"ps", "--all", NULL},
                                       {"ps", "--json", pid, NULL},
                                       {"why", pid, NULL},
                                       {"why", pid, "0x7654", NULL},
                                       {"why", pid, qp, NULL}};
    blkcnt_t blocks;

    need_root();
    attacker = attacker_start(ATTACKER_USER, open_program, NULL);
    attacker_told(&attacker, &told, sizeof(told));
    snprintf(pid, sizeof(pid), "%d", (int)attacker.pid);
    snprintf(qp, sizeof(qp), "qp:%#x", told);
    blocks = blocks_of(&attacker);
    assert_true(blocks > 0);
    for (size_t i = 0; i < COUNT(commands); i++)
        CHECK(run_softhca(commands[i], NULL) >= 0, "softhca %s was ended by a signal", commands[i][0]);
    assert_int_equal(blocks_of(&attacker), blocks);
    attacker_end(&attacker);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(huge_pages_of_another_user_end_no_command_of_root, .fars = 0),
        TEST(huge_pages_of_a_peer_end_no_program_that_posts),
        TEST_WITH(only_a_sealed_file_of_ordinary_pages_is_imported, .fars = 0),
        TEST_WITH(who_looks_at_holes_pays_for_no_page, .fars = 0),
    };

    enter_own_host();
    return run_topic(tests, COUNT(tests), argc, argv);
}
