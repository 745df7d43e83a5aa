/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §4.1: regions of dma-bufs. b owns the memory; its program sees it by a mapping of its own.
 */
#include "work.h"

#include <fcntl.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    SIZE = 2 << 20,
    LARGE = 1 << 20, /* by reference, where there is such a thing */
    RIGHTS =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
};

/* --- where dma-bufs come from --------------------------------------------------------------------- */

static int from_udmabuf(void)
{
    struct udmabuf_create create = {.flags = UDMABUF_FLAGS_CLOEXEC, .size = SIZE};
    int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), memory, fd = -1;

    if (device < 0)
        return -1;
    memory = memfd_create("dma-buf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    create.memfd = (uint32_t)memory;
    if (memory >= 0 && !ftruncate(memory, SIZE) && !fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK))
        fd = ioctl(device, UDMABUF_CREATE, &create);
    close(memory);
    close(device);
    return fd;
}

static int from_heap(void)
{
    struct dma_heap_allocation_data data = {.len = SIZE, .fd_flags = O_RDWR | O_CLOEXEC};
    int heap = open("/dev/dma_heap/system", O_RDONLY | O_CLOEXEC), fd = -1;

    if (heap >= 0 && !ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &data))
        fd = (int)data.fd;
    if (heap >= 0)
        close(heap);
    return fd;
}

/* Of the kernel's drm headers, which Debian has in a package of their own. */
struct drm_version {
    int major, minor, patch;
    size_t name_length;
    char *name;
    size_t date_length;
    char *date;
    size_t description_length;
    char *description;
};
struct drm_create_dumb {
    uint32_t height, width, bits, flags, handle, pitch;
    uint64_t size;
};
struct drm_export {
    uint32_t handle, flags;
    int32_t fd;
};
#define DRM_VERSION     _IOWR('d', 0x00, struct drm_version)
#define DRM_EXPORT      _IOWR('d', 0x2d, struct drm_export)
#define DRM_CREATE_DUMB _IOWR('d', 0xb2, struct drm_create_dumb)

/* The module vgem: a graphics device that is memory and nothing else. */
static int from_vgem(void)
{
    for (unsigned number = 0; number < 8; number++) {
        struct drm_create_dumb create = {.width = 1024, .height = SIZE / 4096, .bits = 32};
        char path[32], name[16] = "";
        struct drm_version version = {.name = name, .name_length = sizeof(name) - 1};
        struct drm_export handle = {.flags = O_CLOEXEC | O_RDWR, .fd = -1};
        int card;

        snprintf(path, sizeof(path), "/dev/dri/card%u", number);
        card = open(path, O_RDWR | O_CLOEXEC);
        if (card < 0)
            continue;
        if (!ioctl(card, DRM_VERSION, &version) && !strcmp(name, "vgem") &&
            !ioctl(card, DRM_CREATE_DUMB, &create)) {
            handle.handle = create.handle;
            if (ioctl(card, DRM_EXPORT, &handle))
                handle.fd = -1;
        }
        close(card);
        if (handle.fd >= 0)
            return handle.fd;
    }
    return -1;
}

static int new_dmabuf(void)
{
    int fd = from_udmabuf();

    if (fd < 0)
        fd = from_heap();
    return fd < 0 ? from_vgem() : fd;
}

static void need_dmabuf(void)
{
    int fd = new_dmabuf();

    if (fd < 0)
        skip_because("nothing here makes dma-bufs: no /dev/udmabuf, no /dev/dma_heap/system, no vgem");
    close(fd);
}

/* --- at the end that has one ---------------------------------------------------------------------- */

struct place {
    uint8_t *at; /* as the program sees it */
    struct ibv_mr *mr;
    uint64_t offset, iova;
    size_t length;
    uint32_t lkey, rkey;
    unsigned int access;
    bool keep; /* the descriptor, in fd */
    int fd;
};

static void make_here(struct end *end, void *arg)
{
    struct place *place = arg;

    place->fd = new_dmabuf();
    CHECK(place->fd >= 0, "a dma-buf");
    place->at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, place->fd, 0);
    CHECK(place->at != MAP_FAILED, "mmap: %s", strerror(errno));
    place->mr =
        ibv_reg_dmabuf_mr(end->pd, place->offset, place->length, place->iova, place->fd, (int)place->access);
    CHECK(place->mr, "ibv_reg_dmabuf_mr: %s", strerror(errno));
    CHECK(place->mr->addr == (void *)(uintptr_t)place->offset && place->mr->length == place->length, "MR");
    place->lkey = place->mr->lkey;
    place->rkey = place->mr->rkey;
    if (!place->keep)
        close(place->fd);
}

static void end_here(struct end *end, void *arg)
{
    struct place *place = arg;

    CHECK(!ibv_dereg_mr(place->mr), "ibv_dereg_mr");
    CHECK(!munmap(place->at, SIZE), "munmap");
    if (place->keep)
        close(place->fd);
}

static void to_buffer_here(struct end *end, void *arg)
{
    struct place *place = arg;

    memcpy(end->buf, place->at, SIZE);
}

static void from_buffer_here(struct end *end, void *arg)
{
    struct place *place = arg;

    memcpy(place->at, end->buf, SIZE);
}

static void open_with(struct pair *p, struct place *place, enum ibv_qp_type type)
{
    struct end_attr attr = attr_of(type);

    need_dmabuf();
    attr.size = SIZE;
    pair_open(p, &attr, &attr);
    end_connect(&p->a, &p->b);
    if (!place->length)
        place->length = SIZE;
    if (!place->access)
        place->access = RIGHTS;
    AT(&p->b, make_here, place);
}

static void close_with(struct pair *p, struct place *place)
{
    AT(&p->b, end_here, place);
    pair_close(p);
}

static struct send aimed(struct send send, const struct place *place, uint64_t offset)
{
    send.wr.wr.rdma.rkey = place->rkey;
    send.wr.wr.rdma.remote_addr = place->iova + offset;
    return send;
}

static void peers_reach_it(void **state)
{
    const size_t lengths[] = {1, 4096, 100000, LARGE};
    struct place place = {.iova = 0x100000};
    struct send send;
    struct pair p;

    open_with(&p, &place, IBV_QPT_RC);
    for (unsigned i = 0; i < COUNT(lengths); i++) {
        end_fill(&p.a, 0, lengths[i], i);
        end_send(&p.a, aimed(a_write(&p.a, 1, 0, lengths[i], &p.b, 0), &place, 8192));
        end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
        AT(&p.b, to_buffer_here, &place);
        end_expect_data(&p.b, 8192, lengths[i], i);
        end_send(&p.a, aimed(a_read(&p.a, 2, LARGE, lengths[i], &p.b, 0), &place, 8192));
        end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_READ);
        end_expect_data(&p.a, LARGE, lengths[i], i);
    }
    end_poke64(&p.b, 64, 40);
    AT(&p.b, from_buffer_here, &place);
    send = a_fetch_add(&p.a, 3, 0, &p.b, 0, 2);
    send.wr.wr.atomic.rkey = place.rkey;
    send.wr.wr.atomic.remote_addr = place.iova + 64;
    end_send(&p.a, send);
    end_expect_success(&p.a, SQ, 3, IBV_WC_FETCH_ADD);
    assert_int_equal(end_peek64(&p.a, 0), 40);
    AT(&p.b, to_buffer_here, &place);
    assert_int_equal(end_peek64(&p.b, 64), 42);
    close_with(&p, &place);
}

/* What its own program sends from it and receives into it. */
static void its_program_uses_it(void **state)
{
    const size_t lengths[] = {8, 100000, LARGE};
    struct place place = {.iova = 0};
    struct pair p;

    open_with(&p, &place, IBV_QPT_RC);
    for (unsigned i = 0; i < COUNT(lengths); i++) {
        struct send send;
        struct recv recv;

        end_fill(&p.b, 4096, lengths[i], i + 5);
        AT(&p.b, from_buffer_here, &place);
        send = a_send(&p.b, 1, 0, lengths[i]);
        send.sge[0].addr = 4096;
        send.sge[0].lkey = place.lkey;
        end_recv(&p.a, a_recv(&p.a, 2, 0, lengths[i]));
        end_send(&p.b, send);
        end_expect_success(&p.b, SQ, 1, IBV_WC_SEND);
        end_expect_success(&p.a, RQ, 2, IBV_WC_RECV);
        end_expect_data(&p.a, 0, lengths[i], i + 5);
        end_fill(&p.a, 0, lengths[i], i + 50);
        recv = a_recv(&p.b, 3, 0, lengths[i]);
        recv.sge[0].addr = 12288;
        recv.sge[0].lkey = place.lkey;
        end_recv(&p.b, recv);
        end_send(&p.a, a_send(&p.a, 4, 0, lengths[i]));
        end_expect_success(&p.b, RQ, 3, IBV_WC_RECV);
        end_expect_success(&p.a, SQ, 4, IBV_WC_SEND);
        AT(&p.b, to_buffer_here, &place);
        end_expect_data(&p.b, 12288, lengths[i], i + 50);
    }
    close_with(&p, &place);
}

static void a_part_is_a_region_of_its_own(void **state)
{
    struct place place = {.offset = 4096 + 100, .iova = (7ull << 40) + 100, .length = 5000};
    struct pair p;

    open_with(&p, &place, IBV_QPT_RC);
    end_fill(&p.a, 0, 5000, 3);
    end_send(&p.a, aimed(a_write(&p.a, 1, 0, 5000, &p.b, 0), &place, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_WRITE);
    AT(&p.b, to_buffer_here, &place);
    end_expect_data(&p.b, 4196, 5000, 3);
    end_send(&p.a, aimed(a_write(&p.a, 2, 0, 2, &p.b, 0), &place, 4999));
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    close_with(&p, &place);
}

static void rights_are_those_of_the_region(void **state)
{
    struct place place = {.access = IBV_ACCESS_REMOTE_READ};
    struct pair p;

    open_with(&p, &place, IBV_QPT_RC);
    end_send(&p.a, aimed(a_read(&p.a, 1, 0, 4096, &p.b, 0), &place, 0));
    end_expect_success(&p.a, SQ, 1, IBV_WC_RDMA_READ);
    end_send(&p.a, aimed(a_write(&p.a, 2, 0, 8, &p.b, 0), &place, 0));
    end_expect_status(&p.a, SQ, 2, IBV_WC_REM_ACCESS_ERR);
    close_with(&p, &place);
}

static void unaligned_here(struct end *end, void *arg)
{
    const struct {
        uint64_t offset, iova;
        size_t length;
        unsigned int access;
    } wrong[] = {
        {100, 0, 100, RIGHTS},
        {0, 4095, 100, RIGHTS},
        {4096, 0, SIZE, RIGHTS},
        {SIZE, 0, 1, RIGHTS},
        {UINT64_MAX - 4095, 0, 8192, RIGHTS},
        {0, UINT64_MAX - 4095, 8192, RIGHTS},
        {0, 0, 0, RIGHTS},
        {0, 0, 100, IBV_ACCESS_REMOTE_WRITE},
        {0, 0, 100, IBV_ACCESS_REMOTE_ATOMIC},
        {0, 0, 100, RIGHTS | IBV_ACCESS_MW_BIND},
        {0, 0, 100, RIGHTS | IBV_ACCESS_ON_DEMAND},
        {0, 0, 100, RIGHTS | IBV_ACCESS_ZERO_BASED},
        {0, 0, 100, RIGHTS | IBV_ACCESS_HUGETLB},
    };
    int fd = new_dmabuf(), read_only;
    struct ibv_mr *mr, *second;
    char path[32];

    CHECK(fd >= 0, "a dma-buf");
    for (unsigned i = 0; i < COUNT(wrong); i++) {
        errno = 0;
        mr = ibv_reg_dmabuf_mr(end->pd, wrong[i].offset, wrong[i].length, wrong[i].iova, fd,
                               (int)wrong[i].access);
        CHECK(!mr && errno == EINVAL, "%u: %s", i, mr ? "accepted" : strerror(errno));
    }
    /* Optional flags that nobody knows are ignored; and one dma-buf may be registered many times. */
    mr = ibv_reg_dmabuf_mr(end->pd, 0, 100, 0, fd, RIGHTS | IBV_ACCESS_RELAXED_ORDERING);
    second = ibv_reg_dmabuf_mr(end->pd, 0, 100, 0, fd, RIGHTS);
    CHECK(mr && second && mr->lkey != second->lkey, "twice: %s", strerror(errno));
    errno = 0;
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT &&
              errno == EINVAL,
          "ibv_rereg_mr: %s", strerror(errno));
    CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(second), "ibv_dereg_mr");
    /* Its end leaves the program's descriptor alone. */
    CHECK(fcntl(fd, F_GETFD) >= 0, "descriptor");
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    read_only = open(path, O_RDONLY | O_CLOEXEC);
    if (read_only >= 0) {
        errno = 0;
        mr = ibv_reg_dmabuf_mr(end->pd, 0, 100, 0, read_only, RIGHTS);
        CHECK(!mr && errno == EACCES, "read-only: %s", mr ? "accepted" : strerror(errno));
        close(read_only);
    }
    close(fd);
}

static void what_cannot_be_is_refused(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    need_dmabuf();
    end_open(&end, NEAR, &attr);
    AT_PLAIN(&end, unaligned_here);
    end_close(&end);
}

/* The descriptor is kept for the end of the region; a program that closes all that it does not know takes it
 * away. */
static void descriptors_close_here(struct end *end, void *arg)
{
    int fd = new_dmabuf(), other;
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(end->pd, 0, 4096, 0, fd, RIGHTS);

    CHECK(mr, "ibv_reg_dmabuf_mr: %s", strerror(errno));
    for (int i = 3; i < fd + 20; i++) {
        char path[32], name[64];
        ssize_t length;

        if (i == fd)
            continue;
        snprintf(path, sizeof(path), "/proc/self/fd/%d", i);
        length = readlink(path, name, sizeof(name) - 1);
        if (length > 0 && memmem(name, (size_t)length, "dmabuf", 6)) {
            close(i);
            other = open("/dev/null", O_RDONLY | O_CLOEXEC);
            CHECK(other >= 0, "/dev/null");
            CHECK(!ibv_dereg_mr(mr), "ibv_dereg_mr");
            CHECK(!close(other), "somebody closed the program's descriptor");
            close(fd);
            return;
        }
    }
    CHECK(false, "no descriptor of the region found");
}

static void a_closed_descriptor_does_no_harm(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    struct end end;

    need_dmabuf();
    end_open(&end, NEAR, &attr);
    AT_PLAIN(&end, descriptors_close_here);
    end_close(&end);
}

static void other_descriptors_are_refused(void **state)
{
    const struct end_attr attr = attr_of(IBV_QPT_RC);
    int memory = memfd_create("no dma-buf", MFD_CLOEXEC), ends[2];
    struct end end;

    assert_int_equal(ftruncate(memory, SIZE), 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    end_open(&end, NEAR, &attr);
    errno = 0;
    assert_null(ibv_reg_dmabuf_mr(end.pd, 0, 4096, 0, memory, RIGHTS));
    assert_int_equal(errno, EINVAL);
    errno = 0;
    assert_null(ibv_reg_dmabuf_mr(end.pd, 0, 4096, 0, ends[0], RIGHTS));
    assert_int_equal(errno, EINVAL);
    errno = 0;
    assert_null(ibv_reg_dmabuf_mr(end.pd, 0, 4096, 0, -1, RIGHTS));
    assert_int_equal(errno, EBADF);
    end_close(&end);
    close(ends[0]);
    close(ends[1]);
    close(memory);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(peers_reach_it),
        TEST(its_program_uses_it),
        TEST(a_part_is_a_region_of_its_own),
        TEST(rights_are_those_of_the_region),
        TEST(what_cannot_be_is_refused),
        TEST(a_closed_descriptor_does_no_harm),
        TEST(other_descriptors_are_refused),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
