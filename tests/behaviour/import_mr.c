/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §10.8: regions of memory that two processes have mapped. */
#include <sys/mman.h>
#include <unistd.h>

#include "import_scene.h"

static void import_mr_here(void *arg)
{
    struct part *part = arg;

    errno = 0;
    part->mr = ibv_import_mr(part->pd, part->mr_handle);
    part->error = part->mr ? 0 : errno;
}

enum { SHARED_SIZE = 1 << 20, SHARED_FROM = 5000, SHARED_LENGTH = 900000 };

/* Memory that both map, of which the owner registers a part. */
struct file {
    pid_t owner;
    int fd;
    uint8_t *at;
    struct part part;
    uint64_t iova;
    uint32_t lkey, rkey;
};

static void make_file(struct file *file)
{
    file->owner = getpid();
    file->fd = memfd_create("shared", MFD_CLOEXEC);
    CHECK(file->fd >= 0 && ftruncate(file->fd, SHARED_SIZE) == 0, "memfd: %s", strerror(errno));
    file->at = mmap(NULL, SHARED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    CHECK(file->at != MAP_FAILED, "mmap: %s", strerror(errno));
}

static void register_file(struct file *file, struct part *part)
{
    part->mr = ibv_reg_mr(part->pd, file->at + SHARED_FROM, SHARED_LENGTH,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                              IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
    CHECK(part->mr, "ibv_reg_mr: %s", strerror(errno));
    part->mr_handle = part->mr->handle;
    file->iova = (uintptr_t)file->at + SHARED_FROM;
    file->lkey = part->mr->lkey;
    file->rkey = part->mr->rkey;
}

static void map_there(void *arg)
{
    struct file *file = arg;
    int fd = open_of(file->owner, file->fd);

    file->at = mmap(NULL, SHARED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(file->at != MAP_FAILED, "mmap: %s", strerror(errno));
    close(fd);
}

/* The import keeps what it needs of the memory. */
static void import_file_there(void *arg)
{
    struct file *file = arg;

    import_mr_here(&file->part);
    CHECK(file->part.mr, "ibv_import_mr: %s", strerror(file->part.error));
    CHECK(!file->part.mr->addr && file->part.mr->lkey == file->lkey && file->part.mr->rkey == file->rkey,
          "it is another region");
    CHECK(!munmap(file->at, SHARED_SIZE), "munmap: %s", strerror(errno));
}

static void unimport_mr_there(void *arg)
{
    struct file *file = arg;

    ibv_unimport_mr(file->part.mr);
}

static void dereg_import_there(void *arg)
{
    struct file *file = arg;

    file->part.error = ibv_dereg_mr(file->part.mr);
}

/* valgrind and qemu-user do not know how. */
static void need_second_mappings(void)
{
    void *first = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), *second;

    assert_true(first != MAP_FAILED);
    second = mremap(first, 0, 4096, MREMAP_MAYMOVE);
    if (second == MAP_FAILED)
        skip_because("mremap(2) makes no second mapping here: %s", strerror(errno));
    munmap(second, 4096);
    munmap(first, 4096);
}

/* near: a peer of far's QP, in a PD of its own; ours: the region's owner, also here. */
struct scene {
    struct part ours;
    struct file file, there;
    struct end near, far;
};

static void open_scene(struct scene *scene)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    need_second_mappings();
    attr.size = SHARED_SIZE;
    *scene = (struct scene){.ours = {0}};
    make_here(&scene->ours);
    make_file(&scene->file);
    register_file(&scene->file, &scene->ours);
    import_at(FAR, &scene->file.part, &scene->ours);
    scene->file.part.mr_handle = scene->ours.mr_handle;
    scene->there = scene->file;
    side_call(FAR, map_there, &scene->there, sizeof(scene->there));
    side_call(FAR, import_file_there, &scene->there, sizeof(scene->there));
    end_open(&scene->near, NEAR, &attr);
    end_open_in(&scene->far, FAR, &attr, scene->there.part.pd, scene->there.part.context);
    end_connect(&scene->near, &scene->far);
}

static void close_scene(struct scene *scene)
{
    end_close(&scene->near);
    end_close_objects(&scene->far);
    side_call(FAR, unimport_mr_there, &scene->there, sizeof(scene->there));
    at(FAR, unimport_here, &scene->there.part);
    if (scene->ours.mr)
        deregister_here(&scene->ours);
    assert_int_equal(result_at(NEAR, free_dm_here, &scene->ours), 0);
    assert_int_equal(result_at(NEAR, dealloc_here, &scene->ours), 0);
    close_here(&scene->ours);
    munmap(scene->file.at, SHARED_SIZE);
    close(scene->file.fd);
}

static struct send to_file(struct send send, const struct scene *scene, uint64_t offset)
{
    send.wr.wr.rdma.rkey = scene->file.rkey;
    send.wr.wr.rdma.remote_addr = scene->file.iova + offset;
    return send;
}

static const size_t sizes[] = {1, 64, 9000, 300000, SHARED_LENGTH};

static void an_imported_regions_rkey_is_good_at_the_importers_qps(void **state)
{
    uint8_t *bytes;
    struct scene scene;
    struct send add;

    open_scene(&scene);
    bytes = scene.file.at + SHARED_FROM;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        end_fill(&scene.near, 0, sizes[i], i);
        end_send(&scene.near, to_file(a_write(&scene.near, 1, 0, sizes[i], &scene.far, 0), &scene, 0));
        end_expect_success(&scene.near, SQ, 1, IBV_WC_RDMA_WRITE);
        assert_int_equal(find_difference(bytes, sizes[i], i), sizes[i]);
        fill_pattern(bytes, sizes[i], 50 + i);
        end_send(&scene.near, to_file(a_read(&scene.near, 2, 0, sizes[i], &scene.far, 0), &scene, 0));
        end_expect_success(&scene.near, SQ, 2, IBV_WC_RDMA_READ);
        end_expect_data(&scene.near, 0, sizes[i], 50 + i);
    }
    memset(bytes, 0, 8);
    add = a_fetch_add(&scene.near, 3, 0, &scene.far, 0, 7);
    add.wr.wr.atomic.rkey = scene.file.rkey;
    add.wr.wr.atomic.remote_addr = scene.file.iova;
    end_send(&scene.near, add);
    end_expect_success(&scene.near, SQ, 3, IBV_WC_FETCH_ADD);
    assert_int_equal(bytes[0], 7);
    /* Behind its end */
    end_send(&scene.near, to_file(a_write(&scene.near, 4, 0, 8, &scene.far, 0), &scene, SHARED_LENGTH - 4));
    end_expect_status(&scene.near, SQ, 4, IBV_WC_REM_ACCESS_ERR);
    close_scene(&scene);
}

static void an_imported_regions_lkey_is_good_in_the_importers_requests(void **state)
{
    struct scene scene;
    uint8_t *bytes;

    open_scene(&scene);
    bytes = scene.file.at + SHARED_FROM;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        struct recv recv = a_recv(&scene.far, 1, 0, sizes[i]);
        struct send send = a_send(&scene.far, 2, 0, sizes[i]);
        struct send read = a_read(&scene.far, 3, 0, sizes[i], &scene.near, 0);

        recv.sge[0] = send.sge[0] = read.sge[0] =
            (struct ibv_sge){scene.file.iova, (uint32_t)sizes[i], scene.file.lkey};
        end_recv(&scene.far, recv);
        end_fill(&scene.near, 0, sizes[i], i);
        end_send(&scene.near, a_send(&scene.near, 4, 0, sizes[i]));
        end_expect_success(&scene.near, SQ, 4, IBV_WC_SEND);
        end_expect_success(&scene.far, RQ, 1, IBV_WC_RECV);
        assert_int_equal(find_difference(bytes, sizes[i], i), sizes[i]);
        fill_pattern(bytes, sizes[i], 50 + i);
        end_recv(&scene.near, a_recv(&scene.near, 5, 0, sizes[i]));
        end_send(&scene.far, send);
        end_expect_success(&scene.far, SQ, 2, IBV_WC_SEND);
        end_expect_success(&scene.near, RQ, 5, IBV_WC_RECV);
        end_expect_data(&scene.near, 0, sizes[i], 50 + i);
        end_fill(&scene.near, 0, sizes[i], 90 + i);
        end_send(&scene.far, read);
        end_expect_success(&scene.far, SQ, 3, IBV_WC_RDMA_READ);
        assert_int_equal(find_difference(bytes, sizes[i], 90 + i), sizes[i]);
    }
    close_scene(&scene);
}

static void its_keys_end_with_the_region_everywhere(void **state)
{
    struct scene scene;
    struct send send;

    open_scene(&scene);
    side_call(FAR, dereg_import_there, &scene.there, sizeof(scene.there));
    assert_int_equal(scene.there.part.error, EOPNOTSUPP); /* by its own process alone */
    deregister_here(&scene.ours);
    scene.ours.mr = NULL;
    end_send(&scene.near, to_file(a_write(&scene.near, 1, 0, 64, &scene.far, 0), &scene, 0));
    end_expect_status(&scene.near, SQ, 1, IBV_WC_REM_ACCESS_ERR);
    end_close_qp(&scene.near);
    end_close_objects(&scene.far);
    {
        struct end_attr attr = attr_of(IBV_QPT_RC);
        struct end again;

        end_open_in(&scene.far, FAR, &attr, scene.there.part.pd, scene.there.part.context);
        end_open(&again, NEAR, &attr);
        end_connect(&again, &scene.far);
        send = a_send(&scene.far, 2, 0, 64);
        send.sge[0] = (struct ibv_sge){scene.file.iova, 64, scene.file.lkey};
        end_send(&scene.far, send);
        end_expect_status(&scene.far, SQ, 2, IBV_WC_LOC_PROT_ERR);
        end_close(&again);
    }
    scene.there.part.mr_handle = scene.ours.mr_handle;
    close_scene(&scene);
}

static void its_keys_outlive_the_process_that_registered_it(void **state)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct part first = {0}, ours = {0};
    struct end a, b;
    struct send read;

    need_second_mappings();
    at(FAR, make_here, &first);
    first.word = 0x11223344;
    assert_int_equal(result_at(FAR, write_dm_here, &first), 0);
    assert_int_equal(result_at(FAR, register_dm_here, &first), 0);
    import_at(NEAR, &ours, &first);
    ours.mr_handle = first.mr_handle;
    assert_int_equal(result_at(NEAR, import_mr_here, &ours), 0);
    end_open_in(&a, NEAR, &attr, ours.pd, ours.context);
    end_open(&b, &sides[2], &attr);
    end_connect(&a, &b);
    for (uint64_t i = 0; i < 2; i++) {
        read = a_read(&b, i, 0, 8, &a, 0);
        read.wr.wr.rdma.rkey = ours.mr->rkey;
        read.wr.wr.rdma.remote_addr = 64;
        end_fill(&b, 0, 8, 3);
        end_send(&b, read);
        end_expect_success(&b, SQ, i, IBV_WC_RDMA_READ);
        assert_int_equal((uint32_t)end_peek64(&b, 0), 0x11223344);
        if (i == 0)
            side_kill(FAR);
    }
    end_close(&b);
    end_close_objects(&a);
    ibv_unimport_mr(ours.mr);
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), 0);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), 0);
    close_here(&ours);
}

/* A file that only its owner has mapped: nor is anything left of the attempt. */
static void a_region_of_a_file_is_not_imported_where_that_is_not_mapped(void **state)
{
    struct part ours = {0}, theirs = {0};
    struct file file = {0};

    make_here(&ours);
    make_file(&file);
    register_file(&file, &ours);
    import_at(FAR, &theirs, &ours);
    theirs.mr_handle = ours.mr_handle;
    assert_int_equal(result_at(FAR, import_mr_here, &theirs), EOPNOTSUPP);
    at(FAR, unimport_here, &theirs);
    deregister_here(&ours);
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), 0);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), 0);
    close_here(&ours);
}

/* Its memory is another process's, and nobody here could reach it by the key. */
static void a_region_is_imported_only_where_its_memory_is(void **state)
{
    struct part ours = {0}, theirs = {0};

    make_here(&ours);
    import_at(FAR, &theirs, &ours);
    assert_int_equal(result_at(NEAR, register_here, &ours), 0);
    theirs.mr_handle = ours.mr_handle;
    assert_int_equal(result_at(FAR, import_mr_here, &theirs), EOPNOTSUPP);
    theirs.mr_handle = UINT32_MAX; /* of nobody */
    assert_int_equal(result_at(FAR, import_mr_here, &theirs), EINVAL);
    /* The other way round, too. */
    assert_int_equal(result_at(FAR, register_here, &theirs), 0);
    assert_int_not_equal(theirs.mr_handle, ours.mr_handle);
    {
        struct part part = ours;

        part.mr_handle = theirs.mr_handle;
        assert_int_equal(result_at(NEAR, import_mr_here, &part), EOPNOTSUPP);
    }
    at(FAR, deregister_here, &theirs);
    at(FAR, unimport_here, &theirs);
    deregister_here(&ours);
    assert_int_equal(result_at(NEAR, free_dm_here, &ours), 0);
    assert_int_equal(result_at(NEAR, dealloc_here, &ours), 0);
    close_here(&ours);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(an_imported_regions_rkey_is_good_at_the_importers_qps, .fars = 1,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(an_imported_regions_lkey_is_good_in_the_importers_requests, .fars = 1,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(its_keys_end_with_the_region_everywhere, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(its_keys_outlive_the_process_that_registered_it, .fars = 2, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_region_of_a_file_is_not_imported_where_that_is_not_mapped, .fars = 1,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_region_is_imported_only_where_its_memory_is, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
