/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §4.9, §10.8: null regions, device memory, and objects that are imported. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "work.h"

static void a_null_region_gives_zeros_and_takes_everything(void **state)
{
    struct ibv_mr *null;
    struct send send;
    struct recv recv;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    null = ibv_alloc_null_mr(p.a.pd);
    assert_non_null(null);
    assert_null(null->addr);
    for (size_t length = 1; length <= 65536; length *= 256) {
        send = a_send(&p.a, 1, 0, length);
        send.sge[0] = (struct ibv_sge){0x123456789000, (uint32_t)length, null->lkey};
        end_fill(&p.b, 0, length, 3);
        end_recv(&p.b, a_recv(&p.b, 2, 0, length));
        end_send(&p.a, send);
        end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
        end_expect_success(&p.b, RQ, 2, IBV_WC_RECV);
        assert_int_equal(end_peek64(&p.b, 0) & 0xff, 0);
        recv = a_recv(&p.a, 3, 0, length);
        recv.sge[0] = (struct ibv_sge){0, (uint32_t)length, null->lkey};
        end_recv(&p.a, recv);
        end_send(&p.b, a_send(&p.b, 4, 0, length));
        end_expect_success(&p.b, SQ, 4, IBV_WC_SEND);
        assert_int_equal(end_expect_success(&p.a, RQ, 3, IBV_WC_RECV).byte_len, length);
    }
    assert_int_equal(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE),
                     IBV_REREG_MR_ERR_INPUT);
    assert_int_equal(ibv_dereg_mr(null), 0);
    pair_close(&p);
}

/* --- device memory -------------------------------------------------------------------------------------- */

struct place {
    struct ibv_dm *dm;
    struct ibv_mr *mr;
    uint32_t lkey, rkey;
    uint64_t offset;
    uint32_t word;
    int result;
};

enum { DM_SIZE = 200000, DM_OFFSET = 4096 };

static void alloc_here(struct end *end, void *arg)
{
    struct ibv_alloc_dm_attr attr = {.length = DM_SIZE};
    struct place *place = arg;

    place->dm = ibv_alloc_dm(end->context, &attr);
    CHECK(place->dm, "ibv_alloc_dm: %s", strerror(errno));
    place->mr = ibv_reg_dm_mr(end->pd, place->dm, DM_OFFSET, DM_SIZE - DM_OFFSET,
                              IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(place->mr, "ibv_reg_dm_mr: %s", strerror(errno));
    CHECK(!place->mr->addr, "it has no address");
    place->lkey = place->mr->lkey;
    place->rkey = place->mr->rkey;
}

static void free_here(struct end *end, void *arg)
{
    struct place *place = arg;

    CHECK(ibv_free_dm(place->dm) == EBUSY, "free with an MR");
    CHECK(!ibv_dereg_mr(place->mr), "dereg");
    CHECK(!ibv_free_dm(place->dm), "free");
}

static void read_word_here(struct end *end, void *arg)
{
    struct place *place = arg;

    place->result = ibv_memcpy_from_dm(&place->word, place->dm, place->offset, sizeof(place->word));
}

static void peers_reach_device_memory(void **state)
{
    const size_t sizes[] = {4, 4096, 65536, 131072};
    struct place place = {0};
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    AT(&p.b, alloc_here, &place);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct send write, read;

        if (sizes[i] > p.a.attr.size)
            break;
        write = a_write(&p.a, 1, 0, sizes[i], &p.b, 0);
        read = a_read(&p.a, 2, 0, sizes[i], &p.b, 0);
        write.wr.wr.rdma.rkey = read.wr.wr.rdma.rkey = place.rkey;
        write.wr.wr.rdma.remote_addr = read.wr.wr.rdma.remote_addr = 64;
        end_fill(&p.a, 0, sizes[i], i);
        end_send(&p.a, write);
        end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
        place.offset = DM_OFFSET + 64;
        AT(&p.b, read_word_here, &place);
        assert_int_equal(place.result, 0);
        assert_int_equal(place.word, (uint32_t)end_peek64(&p.a, 0));
        end_fill(&p.a, 0, sizes[i], 77);
        end_send(&p.a, read);
        end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_READ);
        end_expect_data(&p.a, 0, sizes[i], i);
    }
    {
        struct send add = a_fetch_add(&p.a, 3, 0, &p.b, 0, 5);

        add.wr.wr.atomic.rkey = place.rkey;
        add.wr.wr.atomic.remote_addr = 0;
        end_send(&p.a, add);
        end_expect_success(&p.a, SQ, 3, IBV_WC_FETCH_ADD);
        assert_int_equal(end_peek64(&p.a, 0), 0); /* it starts as zeros */
        place.offset = DM_OFFSET;
        AT(&p.b, read_word_here, &place);
        assert_int_equal(place.word, 5);
        /* Behind its end */
        add.wr.wr.atomic.remote_addr = DM_SIZE - DM_OFFSET;
        end_send(&p.a, add);
        end_expect_status(&p.a, SQ, 3, IBV_WC_REM_ACCESS_ERR);
    }
    AT(&p.b, free_here, &place);
    pair_close(&p);
}

static void refuse_here(struct end *end, void *arg)
{
    struct place *place = arg;

    CHECK(ibv_free_dm(place->dm) == EBUSY, "free with an MR");
}

/* verbs.md §1.2 */
static void device_memory_is_ebusy_while_it_has_an_mr_and_both_go_on(void **state)
{
    struct place place = {.offset = DM_OFFSET};
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    AT(&p.b, alloc_here, &place);
    for (uint64_t i = 0; i < 3; i++) {
        struct send write = a_write(&p.a, i, 0, 64, &p.b, 0), read = a_read(&p.a, i, 0, 64, &p.b, 0);

        write.wr.wr.rdma.rkey = read.wr.wr.rdma.rkey = place.rkey;
        write.wr.wr.rdma.remote_addr = read.wr.wr.rdma.remote_addr = 0;
        end_fill(&p.a, 0, 64, i);
        end_send(&p.a, write);
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_WRITE);
        AT(&p.b, refuse_here, &place);
        AT(&p.b, read_word_here, &place);
        assert_int_equal(place.result, 0);
        assert_int_equal(place.word, (uint32_t)end_peek64(&p.a, 0));
        end_fill(&p.a, 0, 64, 77);
        end_send(&p.a, read);
        end_expect_success(&p.a, SQ, i, IBV_WC_RDMA_READ);
        end_expect_data(&p.a, 0, 64, i);
    }
    AT(&p.b, free_here, &place);
    pair_close(&p);
}

static void a_receive_can_lie_in_device_memory(void **state)
{
    struct place place = {0};
    struct recv recv;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    alloc_here(&p.a, &place);
    recv = a_recv(&p.a, 1, 0, 1024);
    recv.sge[0] = (struct ibv_sge){8, 1024, place.lkey};
    end_recv(&p.a, recv);
    end_fill(&p.b, 0, 1024, 5);
    end_send(&p.b, a_send(&p.b, 2, 0, 1024));
    end_expect_success(&p.a, RQ, 1, IBV_WC_RECV);
    end_expect_success(&p.b, SQ, 2, IBV_WC_SEND);
    assert_int_equal(ibv_memcpy_from_dm(p.a.buf, place.dm, DM_OFFSET + 8, 1024), 0);
    end_expect_data(&p.a, 0, 1024, 5);
    free_here(&p.a, &place);
    pair_close(&p);
}

static void device_memory_checks_what_it_is_asked_for(void **state)
{
    struct ibv_context *context = open_the_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_alloc_dm_attr attr = {.length = 100};
    struct ibv_device_attr_ex device;
    const unsigned int access = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;
    struct ibv_dm *dm, *rest;
    uint32_t words[32] = {0};

    assert_int_equal(ibv_query_device_ex(context, NULL, &device), 0);
    assert_true(device.max_dm_size > 0);
    attr.comp_mask = 1;
    errno = 0;
    assert_null(ibv_alloc_dm(context, &attr));
    assert_int_equal(errno, EINVAL);
    attr = (struct ibv_alloc_dm_attr){.length = 0};
    assert_null(ibv_alloc_dm(context, &attr));
    attr.length = device.max_dm_size + 1;
    assert_null(ibv_alloc_dm(context, &attr));
    /* All there is can be had, once, and comes back zeroed. */
    attr.length = device.max_dm_size;
    for (int i = 0; i < 2; i++) {
        rest = ibv_alloc_dm(context, &attr);
        assert_non_null(rest);
        assert_int_equal(ibv_memcpy_from_dm(words, rest, device.max_dm_size - 4, 4), 0);
        assert_int_equal(words[0], 0);
        words[0] = 77;
        assert_int_equal(ibv_memcpy_to_dm(rest, device.max_dm_size - 4, words, 4), 0);
        attr.length = 4;
        errno = 0;
        assert_null(ibv_alloc_dm(context, &attr));
        assert_int_equal(errno, ENOMEM);
        attr.length = device.max_dm_size;
        assert_int_equal(ibv_free_dm(rest), 0);
    }
    attr = (struct ibv_alloc_dm_attr){.length = 100, .log_align_req = 12};
    dm = ibv_alloc_dm(context, &attr);
    assert_non_null(dm);
    assert_int_equal(ibv_memcpy_to_dm(dm, 0, words, 100), 0);
    assert_int_not_equal(ibv_memcpy_to_dm(dm, 1, words, 4), 0);
    assert_int_not_equal(ibv_memcpy_to_dm(dm, 0, words, 5), 0);
    assert_int_not_equal(ibv_memcpy_to_dm(dm, 100, words, 4), 0);
    assert_int_not_equal(ibv_memcpy_from_dm(words, dm, 0, 104), 0);
    assert_int_not_equal(ibv_memcpy_from_dm(words, dm, UINT64_MAX - 3, 8), 0);
    errno = 0;
    assert_null(ibv_reg_dm_mr(pd, dm, 0, 104, access));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_reg_dm_mr(pd, dm, UINT64_MAX, 4, access));
    assert_null(ibv_reg_dm_mr(pd, dm, 0, 100, IBV_ACCESS_LOCAL_WRITE));
    assert_int_equal(ibv_free_dm(dm), 0);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    ibv_close_device(context);
}

/* --- import: in one process; several have a topic of their own ------------------------------------------ */

static void an_imported_pd_and_mr_are_the_exporters(void **state)
{
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr, *other_mr;
    struct ibv_pd *other;
    struct pair p;
    int copy;

    pair_connect(&p, IBV_QPT_RC);
    copy = dup(p.a.context->cmd_fd);
    context = ibv_import_device(copy);
    assert_non_null(context);
    assert_int_equal(context->cmd_fd, copy);
    pd = ibv_import_pd(context, p.a.pd->handle);
    assert_non_null(pd);
    assert_int_equal(pd->handle, p.a.pd->handle);
    mr = ibv_import_mr(pd, p.a.mr->handle);
    assert_non_null(mr);
    assert_null(mr->addr);
    assert_int_equal(mr->rkey, p.a.mr->rkey);
    /* The region by its imported key, in a QP of the exporter; and a region of the imported PD. */
    p.a.lkey = mr->lkey;
    pair_marker(&p.a, &p.b);
    other_mr = ibv_reg_mr(pd, p.a.buf, p.a.attr.size, IBV_ACCESS_LOCAL_WRITE);
    assert_non_null(other_mr);
    p.a.lkey = other_mr->lkey;
    pair_marker(&p.a, &p.b);
    ibv_unimport_mr(mr);
    ibv_unimport_pd(pd); /* and goes with its last region */
    assert_int_equal(ibv_dereg_mr(other_mr), 0);
    p.a.lkey = p.a.mr->lkey;
    pair_marker(&p.a, &p.b);

    /* Handles of nothing, or of another device that is open */
    errno = 0;
    assert_null(ibv_import_pd(context, 60000));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_import_pd(context, UINT32_MAX));
    {
        struct ibv_context *stranger = open_the_device();

        assert_null(ibv_import_pd(stranger, p.a.pd->handle));
        ibv_close_device(stranger);
    }
    pd = ibv_import_pd(context, p.a.pd->handle);
    assert_non_null(pd);
    assert_null(ibv_import_mr(pd, UINT32_MAX));
    other = ibv_alloc_pd(p.a.context);
    other_mr = ibv_reg_mr(other, p.a.buf, 64, 0);
    assert_null(ibv_import_mr(pd, other_mr->handle)); /* of another PD */
    assert_int_equal(ibv_dereg_mr(other_mr), 0);
    assert_int_equal(ibv_dealloc_pd(other), 0);
    ibv_unimport_pd(pd);
    assert_int_equal(ibv_close_device(context), 0);
    pair_close(&p);
}

/* §10.8: a destroy by an imported structure ends the object for all. */
static void what_is_imported_ends_for_all(void **state)
{
    struct ibv_context *context;
    struct ibv_mr *mr, *again;
    struct ibv_pd *pd;
    struct send send;
    struct pair p;

    pair_connect(&p, IBV_QPT_RC);
    context = ibv_import_device(dup(p.a.context->cmd_fd));
    assert_non_null(context);
    pd = ibv_import_pd(context, p.a.pd->handle);
    assert_non_null(pd);
    mr = ibv_import_mr(pd, p.a.mr->handle);
    again = ibv_import_mr(p.a.pd, p.a.mr->handle); /* also where it was made */
    assert_non_null(mr);
    assert_non_null(again);
    /* In use: by what was made with the other structure */
    assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    send = a_send(&p.a, 1, 0, 64);
    end_send(&p.a, send);
    end_expect_status(&p.a, SQ, 1, IBV_WC_LOC_PROT_ERR);
    /* For the others it is not there: what they have goes by unimport. */
    assert_int_equal(ibv_dereg_mr(again), ENOENT);
    assert_int_equal(ibv_dereg_mr(p.a.mr), ENOENT);
    assert_int_equal(ibv_rereg_mr(p.a.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE),
                     IBV_REREG_MR_ERR_INPUT);
    assert_null(ibv_import_mr(pd, p.a.mr->handle));
    ibv_unimport_mr(p.a.mr);
    ibv_unimport_mr(again);
    p.a.mr = NULL;
    end_close_objects(&p.a);
    assert_int_equal(ibv_dealloc_pd(pd), 0);
    errno = 0;
    assert_null(ibv_reg_mr(p.a.pd, context, 64, 0));
    assert_int_equal(errno, EINVAL);
    assert_int_equal(ibv_dealloc_pd(p.a.pd), ENOENT);
    ibv_unimport_pd(p.a.pd);
    assert_int_equal(ibv_close_device(context), 0);
    assert_int_equal(ibv_close_device(p.a.context), 0);
    end_close(&p.b);
}

/* Unimport ends a structure, wherever the object was made. */
static void an_object_outlives_the_structure_that_it_was_made_with(void **state)
{
    struct ibv_context *context = open_the_device(), *second = ibv_import_device(dup(context->cmd_fd));
    struct ibv_alloc_dm_attr attr = {.length = 4096};
    struct ibv_pd *pd = ibv_alloc_pd(context), *imported;
    uint32_t handle = pd->handle, mr_handle, dm_handle;
    char memory[64];
    struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), 0);

    mr_handle = mr->handle;
    dm_handle = newest_dm_handle(dm);
    ibv_unimport_mr(mr);
    ibv_unimport_pd(pd);
    ibv_unimport_dm(dm);
    imported = ibv_import_pd(second, handle);
    assert_non_null(imported);
    assert_int_equal(ibv_dealloc_pd(imported), EBUSY); /* the region */
    mr = ibv_import_mr(imported, mr_handle);
    assert_non_null(mr);
    assert_int_equal(ibv_dereg_mr(mr), 0);
    assert_int_equal(ibv_dealloc_pd(imported), 0);
    dm = ibv_import_dm(second, dm_handle);
    assert_non_null(dm);
    assert_int_equal(ibv_free_dm(dm), 0);
    assert_null(ibv_import_dm(second, dm_handle));
    assert_int_equal(ibv_close_device(second), 0);
    assert_int_equal(ibv_close_device(context), 0);
}

static void only_descriptors_of_open_devices_are_imported(void **state)
{
    int pipes[2], file = memfd_create("other", MFD_ALLOW_SEALING | MFD_CLOEXEC);

    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_int_equal(ftruncate(file, 4096 + (1 << 20)), 0);
    errno = 0;
    assert_null(ibv_import_device(pipes[0]));
    assert_int_equal(errno, EINVAL);
    assert_null(ibv_import_device(-1));
    assert_null(ibv_import_device(file));
    assert_int_equal(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    assert_null(ibv_import_device(file));   /* all but what is in it */
    assert_true(fcntl(file, F_GETFD) >= 0); /* it stays the caller's */
    close(file);
    close(pipes[0]);
    close(pipes[1]);
}

/* The other process: gets descriptor and handle, answers through the memory. */
static void import_there(int socket)
{
    char control[CMSG_SPACE(sizeof(int))];
    uint32_t handle, word;
    struct iovec data = {&handle, sizeof(handle)};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct ibv_context *context;
    struct ibv_dm *dm;
    int fd;

    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof(handle))
        _exit(2);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    context = ibv_import_device(fd);
    if (!context)
        _exit(3);
    dm = ibv_import_dm(context, handle);
    if (!dm)
        _exit(4);
    if (ibv_memcpy_from_dm(&word, dm, 8, sizeof(word)) || word != 0x11223344)
        _exit(5);
    word = 0x55667788;
    if (ibv_memcpy_to_dm(dm, 12, &word, sizeof(word)))
        _exit(6);
    if (ibv_import_dm(context, handle + 1) || ibv_import_dm(context, UINT32_MAX))
        _exit(8);
    ibv_unimport_dm(dm);
    ibv_close_device(context);
    _exit(0);
}

static void another_process_imports_device_memory_by_descriptor(void **state)
{
    struct ibv_alloc_dm_attr attr = {.length = 4096};
    char control[CMSG_SPACE(sizeof(int))] = {0};
    uint32_t handle, word = 0x11223344;
    struct iovec data = {&handle, sizeof(handle)};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct ibv_context *context;
    int sockets[2], status;
    struct ibv_dm *dm;
    pid_t child;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    child = fork(); /* before the library is in use: a process of its own */
    assert_true(child >= 0);
    if (child == 0)
        import_there(sockets[1]);
    context = open_the_device();
    dm = ibv_alloc_dm(context, &attr);
    assert_non_null(dm);
    assert_int_equal(ibv_memcpy_to_dm(dm, 8, &word, sizeof(word)), 0);
    handle = newest_dm_handle(dm);
    CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
    CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
    CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &context->cmd_fd, sizeof(int));
    assert_int_equal(sendmsg(sockets[0], &message, 0), sizeof(handle));
    assert_int_equal(waitpid(child, &status, 0), child);
    CHECK(status == 0, "the importer ended with 0x%x", (unsigned int)status);
    assert_int_equal(ibv_memcpy_from_dm(&word, dm, 12, sizeof(word)), 0);
    assert_int_equal(word, 0x55667788);
    assert_int_equal(ibv_free_dm(dm), 0);
    ibv_close_device(context);
}

static void a_forked_child_allocates_from_the_same_memory(void **state)
{
    struct ibv_context *context = open_the_device();
    struct ibv_alloc_dm_attr attr = {.length = 600000};
    struct ibv_dm *dm = ibv_alloc_dm(context, &attr), *second;
    int status;
    pid_t child;

    assert_non_null(dm);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        attr.length = 4096;
        second = ibv_alloc_dm(context, &attr);
        if (!second || ibv_free_dm(second))
            _exit(1);
        attr.length = 600000;
        if (ibv_alloc_dm(context, &attr)) /* the parent's is in the way */
            _exit(2);
        if (ibv_free_dm(dm)) /* not the child's: nothing happens */
            _exit(3);
        if (ibv_alloc_dm(context, &attr))
            _exit(4);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(ibv_free_dm(dm), 0);
    ibv_close_device(context);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_null_region_gives_zeros_and_takes_everything),
        TEST(peers_reach_device_memory),
        TEST(device_memory_is_ebusy_while_it_has_an_mr_and_both_go_on),
        TEST(a_receive_can_lie_in_device_memory),
        TEST(device_memory_checks_what_it_is_asked_for),
        TEST(an_imported_pd_and_mr_are_the_exporters),
        TEST(what_is_imported_ends_for_all),
        TEST_WITH(an_object_outlives_the_structure_that_it_was_made_with, .fars = 0),
        TEST(only_descriptors_of_open_devices_are_imported),
        TEST_WITH(another_process_imports_device_memory_by_descriptor, .fars = 0),
        TEST_WITH(a_forked_child_allocates_from_the_same_memory, .fars = 0),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
