/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §10.8: what several processes have in common that have one device by its file; of its
 * regions import_mr.c. */
#include <sys/wait.h>
#include <unistd.h>

#include "import_scene.h"

enum { OTHER_USER = 54321 };

/* --- protection domains --------------------------------------------------------------------------------- */

static void an_imported_pd_works_and_is_busy_while_either_uses_it(struct part *theirs)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct part ours = {0};
    struct end a, b;

    make_here(&ours);
    import_at(FAR, theirs, &ours);
    /* The owner's, and nothing is in it */
    end_open_in(&b, FAR, &attr, theirs->pd, theirs->context);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), EBUSY);
    end_open_in(&a, NEAR, &attr, ours.pd, ours.context);
    end_connect(&a, &b);
    pair_marker(&a, &b);
    pair_marker(&b, &a);
    assert_int_equal(result_at(FAR, dealloc_here, theirs), EBUSY);
    end_close_objects(&b);
    assert_int_equal(result_at(FAR, dealloc_here, theirs), EBUSY);
    end_close_objects(&a);
    /* The end for all. */
    assert_int_equal(result_at(FAR, dealloc_here, theirs), 0);
    assert_int_equal(result_at(NEAR, register_here, &ours), EINVAL);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), ENOENT);
    unimport_pd_here(&ours);
    at(FAR, unimport_dm_here, theirs);
    at(FAR, close_here, theirs);
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), 0);
    close_here(&ours);
}

static void a_pd_is_that_of_both_processes(void **state)
{
    struct part theirs = {0};

    an_imported_pd_works_and_is_busy_while_either_uses_it(&theirs);
}

static void a_pd_is_that_of_processes_of_two_users(void **state)
{
    struct part theirs = {.user = OTHER_USER};

    if (geteuid() != 0)
        skip_because("needs root, to be two users");
    an_imported_pd_works_and_is_busy_while_either_uses_it(&theirs);
}

static void what_its_owner_ends_is_gone_for_the_importer(void **state)
{
    struct part ours = {0}, theirs = {0};
    uint32_t handle;

    make_here(&ours);
    import_at(FAR, &theirs, &ours);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), 0); /* an import alone is no use */
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), 0);
    /* Its handle goes to another one, which those that the importer has are not. */
    handle = ours.pd_handle;
    ours.pd = ibv_alloc_pd(ours.context);
    assert_non_null(ours.pd);
    assert_int_equal(ours.pd->handle, handle);
    assert_int_equal(result_at(FAR, register_here, &theirs), EINVAL);
    assert_int_equal(result_at(FAR, dealloc_here, &theirs), ENOENT);
    assert_int_equal(result_at(FAR, free_dm_here, &theirs), ENOENT);
    assert_int_equal(result_at(FAR, read_dm_here, &theirs), ENOENT);
    at(FAR, unimport_here, &theirs);
    assert_int_equal(result_at(NEAR, register_here, &ours), 0);
    deregister_here(&ours);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), 0);
    close_here(&ours);
}

static void a_dead_importer_uses_nothing(void **state)
{
    struct part ours = {0}, theirs = {0};

    make_here(&ours);
    import_at(FAR, &theirs, &ours);
    assert_int_equal(result_at(FAR, register_dm_here, &theirs), 0);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), EBUSY);
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), EBUSY);
    side_kill(FAR);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), 0);
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), 0);
    close_here(&ours);
}

/* More of them than there are places for: each makes use of the PD, and ends without a word. */
static void processes_that_come_and_go_leave_nothing(void **state)
{
    struct part ours = {0};

    make_here(&ours);
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        int status;

        assert_true(child >= 0);
        if (child == 0) {
            struct ibv_context *context = ibv_import_device(dup(ours.cmd_fd));
            struct ibv_pd *pd = context ? ibv_import_pd(context, ours.pd_handle) : NULL;

            _exit(!pd || !ibv_reg_mr(pd, memory, sizeof(memory), 0));
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        CHECK(status == 0, "child %d ended with 0x%x", i, (unsigned)status);
    }
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), 0);
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), 0);
    close_here(&ours);
}

static void a_pd_and_device_memory_outlive_the_process_that_made_them(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct part first = {0}, ours = {0};
    struct end a, b;
    struct send read;

    at(FAR, make_here, &first);
    first.word = 0x11223344;
    assert_int_equal(result_at(FAR, write_dm_here, &first), 0);
    import_at(NEAR, &ours, &first);
    assert_int_equal(result_at(FAR, register_dm_here, &first), 0);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), EBUSY);
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), EBUSY);
    side_kill(FAR);
    /* It is used on, by peers, too, and by whoever imports it only now. */
    assert_int_equal(result_at(NEAR, read_dm_here, &ours), 0);
    assert_int_equal(ours.word, 0x11223344);
    assert_int_equal(result_at(NEAR, register_dm_here, &ours), 0);
    end_open_in(&a, NEAR, &attr, ours.pd, ours.context);
    end_open(&b, &sides[2], &attr);
    end_connect(&a, &b);
    read = a_read(&b, 1, 0, 8, &a, 0);
    read.wr.wr.rdma.rkey = ours.mr->rkey;
    read.wr.wr.rdma.remote_addr = 64;
    end_send(&b, read);
    end_expect_success(&b, SQ, 1, IBV_WC_RDMA_READ);
    assert_int_equal((uint32_t)end_peek64(&b, 0), 0x11223344);
    {
        struct part third = {0}, of = ours;

        of.owner = getpid();
        of.cmd_fd = ours.context->cmd_fd;
        import_at(&sides[2], &third, &of);
        assert_int_equal(result_at(&sides[2], read_dm_here, &third), 0);
        assert_int_equal(third.word, 0x11223344);
        at(&sides[2], unimport_here, &third);
    }
    end_close(&b);
    end_close_objects(&a);
    deregister_here(&ours);
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), 0);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), 0);
    close_here(&ours);
}

/* --- device memory -------------------------------------------------------------------------------------- */

static void device_memory_ends_for_all_and_comes_back_zeroed(void **state)
{
    struct ibv_alloc_dm_attr all = {.length = 1 << 20};
    struct part ours = {0}, theirs = {0};
    uint32_t word = 1;
    struct ibv_dm *dm;

    make_here(&ours);
    ours.word = 0x55667788;
    assert_int_equal(result_at(NEAR, write_dm_here, &ours), 0);
    import_at(FAR, &theirs, &ours);
    assert_int_equal(result_at(NEAR, register_dm_here, &ours), 0);
    assert_int_equal(result_at(FAR, free_dm_here, &theirs), EBUSY); /* with an MR of the owner's */
    deregister_here(&ours);
    assert_int_equal(result_at(FAR, register_dm_here, &theirs), 0);
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), EBUSY); /* and the other way round */
    assert_int_equal(result_at(FAR, read_dm_here, &theirs), 0);
    assert_int_equal(theirs.word, 0x55667788);
    at(FAR, deregister_here, &theirs);
    assert_int_equal(result_at(FAR, free_dm_here, &theirs), 0);
    assert_int_equal(result_at(NEAR, read_dm_here, &ours), ENOENT);
    assert_int_equal(result_at(NEAR, register_dm_here, &ours), EINVAL);
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), ENOENT);
    ibv_unimport_dm(ours.dm);
    dm = ibv_alloc_dm(ours.context, &all);
    assert_non_null(dm);
    assert_int_equal(ibv_memcpy_from_dm(&word, dm, 64, sizeof(word)), 0);
    assert_int_equal(word, 0);
    assert_int_equal(ibv_free_dm(dm), 0);
    at(FAR, unimport_pd_here, &theirs);
    at(FAR, close_here, &theirs);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), 0);
    close_here(&ours);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(a_pd_is_that_of_both_processes, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_pd_is_that_of_processes_of_two_users, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(what_its_owner_ends_is_gone_for_the_importer, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_dead_importer_uses_nothing, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(processes_that_come_and_go_leave_nothing, .fars = 0),
        TEST_WITH(a_pd_and_device_memory_outlive_the_process_that_made_them, .fars = 2,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(device_memory_ends_for_all_and_comes_back_zeroed, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
