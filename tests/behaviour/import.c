/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs-contract §10.8: what several processes have in common that have one device by its file. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "work.h"

enum { DM_LENGTH = 8192, OTHER_USER = 54321 };

/* What one side has of another one's device. Pointers mean something only on their side. */
struct part {
    pid_t owner;
    int cmd_fd; /* of the owner's */
    uint32_t pd_handle, dm_handle, mr_handle;
    uid_t user; /* to become, before anything else; 0: none */
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_dm *dm;
    struct ibv_mr *mr;
    int error;
    uint32_t word;
};

/* --- the owner ------------------------------------------------------------------------------------------ */

static void make_here(void *arg)
{
    struct ibv_alloc_dm_attr attr = {.length = DM_LENGTH};
    struct part *part = arg;

    prctl(PR_SET_DUMPABLE, 1);
    part->owner = getpid();
    part->context = open_the_device();
    part->cmd_fd = part->context->cmd_fd;
    part->pd = ibv_alloc_pd(part->context);
    part->dm = ibv_alloc_dm(part->context, &attr);
    CHECK(part->pd && part->dm, "PD and device memory: %s", strerror(errno));
    part->pd_handle = part->pd->handle;
    part->dm_handle = part->dm->handle;
}

/* --- the importer --------------------------------------------------------------------------------------- */

/* As one who was given the descriptor. Another user has it before he becomes that. */
static void import_here(void *arg)
{
    struct part *part = arg;
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)part->owner, part->cmd_fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0, "open %s: %s", path, strerror(errno));
    if (part->user) {
        CHECK(!setresgid(part->user, part->user, part->user) &&
                  !setresuid(part->user, part->user, part->user),
              "setresuid: %s", strerror(errno));
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* what that has taken away */
        prctl(PR_SET_DUMPABLE, 1);
    }
    part->context = ibv_import_device(fd);
    CHECK(part->context, "ibv_import_device: %s", strerror(errno));
    part->pd = ibv_import_pd(part->context, part->pd_handle);
    CHECK(part->pd, "ibv_import_pd: %s", strerror(errno));
    CHECK(part->pd->handle == part->pd_handle, "the handle is %u", part->pd->handle);
    part->dm = ibv_import_dm(part->context, part->dm_handle);
    CHECK(part->dm, "ibv_import_dm: %s", strerror(errno));
}

static void import_at(struct side *side, struct part *part, const struct part *of)
{
    *part = (struct part){.owner = of->owner,
                          .cmd_fd = of->cmd_fd,
                          .pd_handle = of->pd_handle,
                          .dm_handle = of->dm_handle,
                          .user = part->user};
    side_call(side, import_here, part, sizeof(*part));
}

static void unimport_here(void *arg)
{
    struct part *part = arg;

    ibv_unimport_dm(part->dm);
    ibv_unimport_pd(part->pd);
    CHECK_ZERO(ibv_close_device(part->context));
}

/* --- what either does ----------------------------------------------------------------------------------- */

static char memory[4096];

static void register_here(void *arg)
{
    struct part *part = arg;

    errno = 0;
    part->mr = ibv_reg_mr(part->pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    part->error = part->mr ? 0 : errno;
    if (part->mr)
        part->mr_handle = part->mr->handle;
}

static void register_dm_here(void *arg)
{
    struct part *part = arg;

    errno = 0;
    part->mr = ibv_reg_dm_mr(part->pd, part->dm, 0, DM_LENGTH,
                             IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    part->error = part->mr ? 0 : errno;
    if (part->mr)
        part->mr_handle = part->mr->handle;
}

static void deregister_here(void *arg)
{
    struct part *part = arg;

    CHECK_ZERO(ibv_dereg_mr(part->mr));
}

static void dealloc_here(void *arg)
{
    struct part *part = arg;

    part->error = ibv_dealloc_pd(part->pd);
}

static void free_dm_here(void *arg)
{
    struct part *part = arg;

    part->error = ibv_free_dm(part->dm);
}

static void read_dm_here(void *arg)
{
    struct part *part = arg;

    part->error = ibv_memcpy_from_dm(&part->word, part->dm, 64, sizeof(part->word));
}

static void write_dm_here(void *arg)
{
    struct part *part = arg;

    part->error = ibv_memcpy_to_dm(part->dm, 64, &part->word, sizeof(part->word));
}

static void close_here(void *arg)
{
    struct part *part = arg;

    CHECK_ZERO(ibv_close_device(part->context));
}

static void unimport_pd_here(void *arg)
{
    struct part *part = arg;

    ibv_unimport_pd(part->pd);
}

static void unimport_dm_here(void *arg)
{
    struct part *part = arg;

    ibv_unimport_dm(part->dm);
}

static int result_at(struct side *side, side_fn *fn, struct part *part)
{
    side_call(side, fn, part, sizeof(*part));
    return part->error;
}

static void at(struct side *side, side_fn *fn, struct part *part)
{
    side_call(side, fn, part, sizeof(*part));
}

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

/* --- regions -------------------------------------------------------------------------------------------- */

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
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)file->owner, file->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0, "open %s: %s", path, strerror(errno));
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
        TEST_WITH(a_pd_is_that_of_both_processes, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_pd_is_that_of_processes_of_two_users, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(what_its_owner_ends_is_gone_for_the_importer, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(a_dead_importer_uses_nothing, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(processes_that_come_and_go_leave_nothing, .fars = 0),
        TEST_WITH(a_pd_and_device_memory_outlive_the_process_that_made_them, .fars = 2,
                  .needs = NEEDS_TWO_PROCESSES),
        TEST_WITH(device_memory_ends_for_all_and_comes_back_zeroed, .fars = 1, .needs = NEEDS_TWO_PROCESSES),
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
