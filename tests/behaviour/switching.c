/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory that is mapped in the background, or in the calls of a program with one thread, while something else happens
 * to it: a fork, the kernel that writes to it for io_uring or AIO, threads that come, a limit on locked memory
 * (docs/mapped.md). */
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "threads.h"
#include "work.h"

enum {
    STEP = 1 << 20,
    REGION = 4 * STEP,
    BLOCK = 1 << 16,
    BLOCKS = REGION / BLOCK,
    PASSES = 3,
    PASSES_MOST = 1000
};

/* The last block of each step is the owner's, and the peer leaves it alone. */
static bool is_owners(unsigned block)
{
    return (block + 1) % (STEP / BLOCK) == 0;
}

static size_t owners_block(unsigned step)
{
    return (size_t)(step + 1) * STEP - BLOCK;
}

/* Behind the region: how many passes the peer has made, once it has ended, and whether the owner has seen enough. */
enum { ENDED_AT = REGION, ENOUGH_AT = REGION + 8 };

/* The peer writes each of the other blocks and reads it back, pass after pass. */
static void write_blocks(struct end *end, void *arg)
{
    const struct end *to = arg;
    unsigned pass = 0;

    do {
        for (unsigned block = 0; block < BLOCKS; block++) {
            size_t at = (size_t)block * BLOCK;

            if (is_owners(block))
                continue;
            end_fill(end, 0, BLOCK, pass * BLOCKS + block);
            end_send(end, a_write(end, 1, 0, BLOCK, to, at));
            end_expect_success(end, SQ, 1, IBV_WC_RDMA_WRITE);
            end_send(end, a_read(end, 2, BLOCK, BLOCK, to, at));
            end_expect_success(end, SQ, 2, IBV_WC_RDMA_READ);
            end_expect_data(end, BLOCK, BLOCK, pass * BLOCKS + block);
        }
        pass++;
        end_send(end, a_read(end, 3, 0, 8, to, ENOUGH_AT));
        end_expect_success(end, SQ, 3, IBV_WC_RDMA_READ);
    } while (pass < PASSES || (!end_peek64(end, 0) && pass < PASSES_MOST));
    end_poke64(end, 0, pass);
    end_send(end, a_write(end, 4, 0, 8, to, ENDED_AT));
    end_expect_success(end, SQ, 4, IBV_WC_RDMA_WRITE);
}

static uint64_t *word_at(const struct pair *p, size_t at)
{
    return (void *)(p->a.buf + at);
}

/* With the full userfaultfd, memory is mapped in the background; with the user-mode one in calls of a program with one
 * thread, unless it uses AIO or io_uring. */
static bool maps_in_background(void)
{
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

    if (fd >= 0)
        close(fd);
    return fd >= 0 && prctl(PR_GET_SECCOMP) == 0 && slowness() == 1;
}

/* The peer goes on until the memory is mapped, where it is going to be. */
static bool peer_is_done(const struct pair *p)
{
    if (!maps_in_background() || is_mapped(getpid(), p->a.buf + REGION - STEP))
        __atomic_store_n(word_at(p, ENOUGH_AT), 1, __ATOMIC_RELEASE);
    return __atomic_load_n(word_at(p, ENDED_AT), __ATOMIC_ACQUIRE) != 0;
}

static void expect_blocks(struct pair *p)
{
    unsigned last = (unsigned)*word_at(p, ENDED_AT) - 1;

    for (unsigned block = 0; block < BLOCKS; block++) {
        if (!is_owners(block))
            end_expect_data(&p->a, (size_t)block * BLOCK, BLOCK, last * BLOCKS + block);
    }
}

/* As a program does that waits: a program with one thread maps in such calls. */
static void poll_in_vain(struct pair *p)
{
    struct ibv_wc wc;

    CHECK(ibv_poll_cq(p->a.send_cq, 1, &wc) == 0, "a completion that nobody has asked for");
}

/* Bytes of this process that are mapped for peers. */
static uint64_t mapped_bytes(const uint8_t *from, const uint8_t *to)
{
    FILE *file = fopen("/proc/self/maps", "re");
    uint64_t bytes = 0;
    char line[512];

    CHECK(file, "/proc/self/maps: %s", strerror(errno));
    while (fgets(line, sizeof(line), file)) {
        unsigned long long start, end;

        if (!strstr(line, "memfd:softhca-mapped") || sscanf(line, "%llx-%llx", &start, &end) != 2)
            continue;
        if (end > (uintptr_t)from && start < (uintptr_t)to)
            bytes += (end < (uintptr_t)to ? end : (uintptr_t)to) -
                     (start > (uintptr_t)from ? start : (uintptr_t)from);
    }
    fclose(file);
    return bytes;
}

static void connect_blocks(struct pair *p)
{
    struct end_attr attr = attr_of(IBV_QPT_RC);

    attr.size = REGION + BLOCK;
    pair_connect_as(p, &attr);
}

/* --- fork ----------------------------------------------------------------------------------------------- */

static uint64_t *counter_in(struct pair *p, unsigned step)
{
    return word_at(p, owners_block(step));
}

/* The child has what the parent had, and what it writes is its own. */
static void fork_now(struct pair *p, uint64_t count)
{
    pid_t child = fork();
    int status = 0;

    CHECK(child >= 0, "fork: %s", strerror(errno));
    if (child == 0) {
        for (unsigned step = 0; step < REGION / STEP; step++) {
            if (*counter_in(p, step) != count)
                _exit(1);
            *counter_in(p, step) = UINT64_MAX;
        }
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status), "the child: status %x", (unsigned)status);
    CHECK(WEXITSTATUS(status) == 0, "the child does not have what its parent wrote before fork %llu",
          (unsigned long long)count);
}

static void a_child_has_a_copy_of_its_own(void **state)
{
    for (unsigned round = 0; round < (long_tests() ? 50 : 5); round++) {
        struct end_call call;
        uint64_t count = 0;
        struct pair p;

        connect_blocks(&p);
        end_start(&call, &p.b, write_blocks, &p.a, sizeof(p.a));
        do {
            count++;
            for (unsigned step = 0; step < REGION / STEP; step++)
                *counter_in(&p, step) = count;
            fork_now(&p, count);
            poll_in_vain(&p);
        } while (!peer_is_done(&p));
        end_finish(&call);
        for (unsigned step = 0; step < REGION / STEP; step++)
            assert_int_equal(*counter_in(&p, step), count);
        expect_blocks(&p);
        if (maps_in_background())
            assert_true(is_mapped(getpid(), p.a.buf + REGION - STEP));
        pair_close(&p);
    }
}

/* --- the kernel writes for the program ------------------------------------------------------------------ */

/* Has the kernel read the file into the owner's block of that step. */
typedef void read_block(struct pair *p, int file, unsigned step);

static struct {
    aio_context_t context;
    int ring; /* of io_uring */
    char *rings;
    struct io_uring_sqe *requests;
    struct io_uring_params params;
} kernel;

static void read_by_aio(struct pair *p, int file, unsigned step)
{
    struct iocb request = {.aio_lio_opcode = IOCB_CMD_PREAD,
                           .aio_fildes = (uint32_t)file,
                           .aio_buf = (uintptr_t)(p->a.buf + owners_block(step)),
                           .aio_nbytes = BLOCK},
                *requests[] = {&request};
    struct io_event event = {0};

    CHECK(syscall(SYS_io_submit, kernel.context, 1l, requests) == 1, "io_submit: %s", strerror(errno));
    CHECK(syscall(SYS_io_getevents, kernel.context, 1l, 1l, &event, NULL) == 1, "io_getevents: %s",
          strerror(errno));
    CHECK(event.res == BLOCK, "AIO read %lld", (long long)event.res);
}

/* By a thread of the kernel (IOSQE_ASYNC), into memory that the ring does not pin. */
static void read_by_io_uring(struct pair *p, int file, unsigned step)
{
    uint32_t *tail = (void *)(kernel.rings + kernel.params.sq_off.tail);
    uint32_t *array = (void *)(kernel.rings + kernel.params.sq_off.array);
    uint32_t *head = (void *)(kernel.rings + kernel.params.cq_off.head);
    const struct io_uring_cqe *done = (const void *)(kernel.rings + kernel.params.cq_off.cqes);
    int32_t length;

    kernel.requests[0] = (struct io_uring_sqe){.opcode = IORING_OP_READ,
                                               .flags = IOSQE_ASYNC,
                                               .fd = file,
                                               .addr = (uintptr_t)(p->a.buf + owners_block(step)),
                                               .len = BLOCK};
    array[*tail % kernel.params.sq_entries] = 0;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, kernel.ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1,
          "io_uring_enter: %s", strerror(errno));
    length = done[*head % kernel.params.cq_entries].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    CHECK(length == BLOCK, "io_uring read %d", length);
}

static int file_of_blocks(unsigned number)
{
    static uint8_t block[BLOCK];
    int file = memfd_create("blocks", MFD_CLOEXEC);

    fill_pattern(block, BLOCK, number);
    CHECK(file >= 0 && write(file, block, BLOCK) == BLOCK, "memfd: %s", strerror(errno));
    return file;
}

static void kernel_writes(read_block *read)
{
    struct end_call call;
    unsigned number = 0;
    struct pair p;
    int files[2] = {file_of_blocks(1), file_of_blocks(2)};

    connect_blocks(&p);
    end_start(&call, &p.b, write_blocks, &p.a, sizeof(p.a));
    do {
        number = 1 + number % 2;
        for (unsigned step = 0; step < REGION / STEP; step++) {
            read(&p, files[number - 1], step);
            CHECK(find_difference(p.a.buf + owners_block(step), BLOCK, number) == BLOCK,
                  "the kernel's bytes are lost in step %u", step);
        }
        poll_in_vain(&p);
    } while (!peer_is_done(&p));
    end_finish(&call);
    for (unsigned step = 0; step < REGION / STEP; step++)
        end_expect_data(&p.a, owners_block(step), BLOCK, number);
    expect_blocks(&p);
    assert_int_equal(is_mapped(getpid(), p.a.buf + REGION - STEP), maps_in_background());
    pair_close(&p);
    close(files[0]);
    close(files[1]);
}

static void what_aio_writes_is_there(void **state)
{
    if (syscall(SYS_io_setup, 1l, &kernel.context))
        skip_because("io_setup: %s", strerror(errno));
    kernel_writes(read_by_aio);
    CHECK_ZERO((int)syscall(SYS_io_destroy, kernel.context));
}

static void what_io_uring_writes_is_there(void **state)
{
    size_t length;

    kernel.ring = (int)syscall(SYS_io_uring_setup, 1l, &kernel.params);
    if (kernel.ring < 0)
        skip_because("io_uring_setup: %s", strerror(errno));
    if (!(kernel.params.features & IORING_FEAT_SINGLE_MMAP))
        skip_because("io_uring of an old kernel");
    length = kernel.params.cq_off.cqes + kernel.params.cq_entries * sizeof(struct io_uring_cqe);
    kernel.rings = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, kernel.ring, IORING_OFF_SQ_RING);
    kernel.requests = mmap(NULL, sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, kernel.ring,
                           IORING_OFF_SQES);
    CHECK(kernel.rings != MAP_FAILED && kernel.requests != MAP_FAILED, "mmap: %s", strerror(errno));
    kernel_writes(read_by_io_uring);
}

/* --- threads that come ---------------------------------------------------------------------------------- */

/* A thread that has the kernel read files into the owner's blocks. */
struct reader {
    pthread_t thread;
    struct pair *p;
    int files[2];
    _Atomic bool ends;
    _Atomic unsigned rounds;
    unsigned number;   /* of the pattern in all of the blocks, once the thread has ended */
    char failure[128]; /* "": none */
};

static void *read_blocks(void *arg)
{
    struct reader *reader = arg;

    do {
        reader->number = 1 + reader->number % 2;
        for (unsigned step = 0; step < REGION / STEP; step++) {
            uint8_t *block = reader->p->a.buf + owners_block(step);

            if (pread(reader->files[reader->number - 1], block, BLOCK, 0) != BLOCK)
                snprintf(reader->failure, sizeof(reader->failure), "pread into step %u: %s", step,
                         strerror(errno));
            else if (find_difference(block, BLOCK, reader->number) != BLOCK)
                snprintf(reader->failure, sizeof(reader->failure), "bytes are lost in step %u", step);
        }
        atomic_fetch_add(&reader->rounds, 1);
    } while (!atomic_load(&reader->ends));
    return NULL;
}

/* Meanwhile this program polls, as long as the thread reads all blocks some times. */
static void poll_beside(struct reader *reader)
{
    uint64_t mapped = mapped_bytes(reader->p->a.buf, reader->p->a.buf + REGION);

    atomic_store(&reader->ends, false);
    atomic_store(&reader->rounds, 0);
    CHECK_ZERO(pthread_create(&reader->thread, NULL, read_blocks, reader));
    while (atomic_load(&reader->rounds) < 3)
        poll_in_vain(reader->p);
    atomic_store(&reader->ends, true);
    CHECK_ZERO(pthread_join(reader->thread, NULL));
    CHECK(!reader->failure[0], "%s", reader->failure);
    if (!maps_in_background())
        assert_int_equal(mapped_bytes(reader->p->a.buf, reader->p->a.buf + REGION), mapped);
}

/* A program is mapped with one thread, has several for a while, and one again, while a peer accesses its memory. */
static void threads_that_come_see_no_failed_call(void **state)
{
    struct reader reader = {.files = {file_of_blocks(1), file_of_blocks(2)}};
    struct end_call call;
    struct pair p;

    connect_blocks(&p);
    reader.p = &p;
    end_start(&call, &p.b, write_blocks, &p.a, sizeof(p.a));
    do {
        for (unsigned i = 0; i < 10; i++)
            poll_in_vain(&p);
        poll_beside(&reader);
    } while (!peer_is_done(&p));
    end_finish(&call);
    for (unsigned step = 0; step < REGION / STEP; step++)
        end_expect_data(&p.a, owners_block(step), BLOCK, reader.number);
    expect_blocks(&p);
    pair_close(&p);
    close(reader.files[0]);
    close(reader.files[1]);
}

struct waiting_read {
    int from;
    uint8_t *to;
};

static int wait_in_read(void *arg)
{
    const struct waiting_read *call = arg;
    ssize_t length = read(call->from, call->to, 8);

    return length < 0 ? -errno : (int)length;
}

/* The thread came after the memory was mapped, and its call began before the registration ends. Where pages cannot go
 * back without a call seeing it, they stay. */
static void a_call_that_waits_survives_the_end_of_the_registration(void **state)
{
    static const char words[8] = "arrived";
    struct waiting_read waiting;
    struct caller caller;
    struct end_call call;
    struct pair p;
    bool was_mapped;
    int fds[2];

    connect_blocks(&p);
    end_start(&call, &p.b, write_blocks, &p.a, sizeof(p.a));
    do
        poll_in_vain(&p);
    while (!peer_is_done(&p));
    end_finish(&call);
    was_mapped = is_mapped(getpid(), p.a.buf + owners_block(0));
    CHECK_ZERO(pipe(fds));
    waiting = (struct waiting_read){fds[0], p.a.buf + owners_block(0)};
    caller_start(&caller, wait_in_read, &waiting);
    assert_true(caller_is_blocked(&caller));
    CHECK_ZERO(ibv_dereg_mr(p.a.mr));
    p.a.mr = NULL;
    assert_int_equal(is_mapped(getpid(), waiting.to), was_mapped && !maps_in_background());
    assert_int_equal(write(fds[1], words, sizeof(words)), sizeof(words));
    assert_int_equal(caller_finish(&caller), sizeof(words));
    assert_memory_equal(waiting.to, words, sizeof(words));
    expect_blocks(&p);
    pair_close(&p);
    close(fds[0]);
    close(fds[1]);
}

/* --- a limit on locked memory --------------------------------------------------------------------------- */

/* What is mapped stays below half of the limit, and what is beyond is reached all the same. */
static void with_a_limit_of(rlim_t bytes)
{
    struct rlimit limit = {bytes, bytes};
    struct end_call call;
    uint64_t mapped;
    struct pair p;

    if (geteuid() == 0)
        skip_because("root has no limit");
    if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_max < bytes)
        skip_because("RLIMIT_MEMLOCK is less");
    limit.rlim_cur = limit.rlim_max = bytes;
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit: %s", strerror(errno));
    connect_blocks(&p);
    end_start(&call, &p.b, write_blocks, &p.a, sizeof(p.a));
    do {
        poll_in_vain(&p);
        mapped = mapped_bytes(p.a.buf, p.a.buf + p.a.attr.size);
        CHECK(mapped <= bytes / 2, "%llu bytes are mapped", (unsigned long long)mapped);
    } while (!peer_is_done(&p));
    end_finish(&call);
    expect_blocks(&p);
    if (bytes >= 2 * REGION && prctl(PR_GET_SECCOMP) == 0 && slowness() == 1)
        assert_true(mapped_bytes(p.a.buf, p.a.buf + p.a.attr.size) > 0);
    pair_close(&p);
}

static void memory_is_reached_with_a_limit_of_nothing(void **state)
{
    with_a_limit_of(0);
}

static void memory_is_reached_with_a_limit_of_64_kib(void **state)
{
    with_a_limit_of(64 << 10);
}

static void memory_is_reached_with_a_limit_of_8_mib(void **state)
{
    with_a_limit_of(8 << 20);
}

int main(int argc, char **argv)
{
    const struct test tests[] = {
        TEST(a_child_has_a_copy_of_its_own),
        TEST(what_aio_writes_is_there),
        TEST(what_io_uring_writes_is_there),
        TEST(threads_that_come_see_no_failed_call),
        TEST(a_call_that_waits_survives_the_end_of_the_registration),
        TEST(memory_is_reached_with_a_limit_of_nothing),
        TEST(memory_is_reached_with_a_limit_of_64_kib),
        TEST(memory_is_reached_with_a_limit_of_8_mib),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
