/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* verbs.md §4.1: a program goes on using memory as it likes while it is registered: it frees it, lets
 * it grow, protects it, advises the kernel, and writes to it all along. */
#include "lent.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void change_here(struct end *end, void *arg)
{
    struct lent *lent = arg;

    lent->change(lent);
}

/* The program does something while the memory is registered and peers have reached it. */
static void changed_meanwhile(struct pair *p, struct end *to, struct lent *lent,
                              void (*change)(struct lent *))
{
    *lent = (struct lent){.make = private_memory, .change = change};
    lend(p, lent, to);
    for (unsigned int i = 0; i < 3; i++)
        peer_writes(p, to, i);
    AT(&p->b, change_here, lent);
}

/* After it was deregistered and used otherwise: what the peer reads has that seed, what it writes the next.
 */
static void peer_uses_it_again(struct pair *p, struct end *to, struct lent *lent, uint64_t seed)
{
    AT(&p->b, register_here, lent);
    to->rkey = lent->rkey;
    peer_reads(p, to, seed);
    peer_writes(p, to, seed + 1);
    AT(&p->b, deregister_here, lent);
    end_expect_data(to, 0, LENGTH, seed + 1);
}

/* Its address is somebody else's then, and who deregisters too late must not disturb him. */
static void freed_before(void (*replace)(struct lent *))
{
    struct lent lent;
    struct end to;
    struct pair p;

    changed_meanwhile(&p, &to, &lent, replace);
    if (lent.replaced)
        end_fill(&to, 0, LENGTH, 5);
    AT(&p.b, deregister_here, &lent);
    if (lent.replaced) {
        end_expect_data(&to, 0, LENGTH, 5);
        assert_false(is_mapped(p.b.side->pid, to.buf));
        peer_uses_it_again(&p, &to, &lent, 5);
    }
    pair_close(&p);
}

static void with_nothing(struct lent *lent)
{
    munmap(lent->at, LENGTH);
}

static void put_there(struct lent *lent, int flags, int fd)
{
    CHECK(map_at(lent->at, LENGTH, flags | MAP_FIXED, fd) == lent->at, "mmap: %s", strerror(errno));
    lent->replaced = true;
}

static void with_private_memory(struct lent *lent)
{
    put_there(lent, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void with_shared_memory(struct lent *lent)
{
    put_there(lent, MAP_SHARED | MAP_ANONYMOUS, -1);
}

static void with_a_file(struct lent *lent)
{
    const int fd = memfd_create("test", MFD_CLOEXEC);

    CHECK(fd >= 0 && ftruncate(fd, LENGTH) == 0, "a file: %s", strerror(errno));
    put_there(lent, MAP_SHARED, fd);
}

#define FREED(name)                                                                                          \
    static void freed_before_it_is_deregistered_and_its_place_taken_##name(void **state)                     \
    {                                                                                                        \
        freed_before(name);                                                                                  \
    }
FREED(with_nothing)
FREED(with_private_memory)
FREED(with_shared_memory)
FREED(with_a_file)

/* Where peers write, which is not for ThreadSanitizer (support/data.c). */
static __attribute__((no_sanitize("thread"))) bool is_zero(const uint8_t *at, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (at[i])
            return false;
    }
    return true;
}

/* It becomes zero, or the advice is refused, as for locked memory; what was there must not stay with success.
 */
static void advise(struct lent *lent)
{
    const bool refused = madvise(lent->at, LENGTH, MADV_DONTNEED) != 0;

    CHECK(!refused || errno == EINVAL, "MADV_DONTNEED: %s", strerror(errno));
    CHECK(refused ? find_difference(lent->at, LENGTH, 2) == LENGTH : is_zero(lent->at, LENGTH), "contents");
    madvise(lent->at, LENGTH, MADV_FREE); /* an answer, not an order */
}

static void advice_never_leaves_old_bytes(void **state)
{
    struct lent lent;
    struct end to;
    struct pair p;

    changed_meanwhile(&p, &to, &lent, advise);
    AT(&p.b, deregister_here, &lent);
    end_fill(&to, 0, LENGTH, 7);
    peer_uses_it_again(&p, &to, &lent, 7);
    pair_close(&p);
}

/* As the kernel sees it: may it write there? */
static bool is_writable(uint8_t *at)
{
    const int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    bool good;

    CHECK(zero >= 0, "/dev/zero: %s", strerror(errno));
    good = read(zero, at, 1) == 1;
    close(zero);
    return good;
}

static void protect(struct lent *lent)
{
    CHECK_ZERO(mprotect(lent->at, LENGTH / 2, PROT_READ));
    CHECK(!is_writable(lent->at) && is_writable(lent->at + LENGTH - 1), "of a half");
}

static void unprotect(struct lent *lent)
{
    CHECK(!is_writable(lent->at) && is_writable(lent->at + LENGTH - 1), "protections are lost");
    CHECK_ZERO(mprotect(lent->at, LENGTH, PROT_READ | PROT_WRITE));
}

static void protections_stay(void **state)
{
    struct lent lent;
    struct end to;
    struct pair p;

    changed_meanwhile(&p, &to, &lent, protect);
    end_send(&p.a, a_read(&p.a, 2, 0, LENGTH, &to, 0));
    end_expect_success(&p.a, SQ, 2, IBV_WC_RDMA_READ);
    end_expect_data(&p.a, 0, LENGTH - 1, 2);
    AT(&p.b, deregister_here, &lent);
    lent.change = unprotect;
    AT(&p.b, change_here, &lent);
    end_expect_data(&to, 0, LENGTH - 1, 2);
    end_fill(&to, 0, LENGTH, 9);
    pair_close(&p);
}

static void make_longer(struct lent *lent)
{
    uint8_t *moved = mremap(lent->at, LENGTH, 2 * LENGTH, MREMAP_MAYMOVE);

    if (moved == MAP_FAILED) {
        CHECK(errno == EFAULT || errno == EINVAL || errno == ENOMEM, "mremap: %s", strerror(errno));
        return;
    }
    lent->at = moved;
    CHECK(is_zero(moved + LENGTH, LENGTH), "somebody else's memory is behind it");
    memset(moved + LENGTH, 1, LENGTH);
}

static void moved_memory_keeps_what_is_in_it(void **state)
{
    struct lent lent;
    struct end to;
    struct pair p;

    changed_meanwhile(&p, &to, &lent, make_longer);
    to.buf = lent.at;
    end_expect_data(&to, 0, LENGTH, 2);
    AT(&p.b, deregister_here, &lent);
    end_expect_data(&to, 0, LENGTH, 2);
    assert_false(is_mapped(p.b.side->pid, to.buf));
    AT(&p.b, register_here, &lent);
    to.rkey = lent.rkey;
    peer_writes(&p, &to, 6);
    AT(&p.b, deregister_here, &lent);
    pair_close(&p);
}

/* --- pages that the kernel holds --------------------------------------------------------------------- */

/* A fixed buffer of io_uring: the kernel writes to the pages that were there when it got to know it. */
static struct {
    int fd;
    uint8_t *rings;
    struct io_uring_params params;
    struct io_uring_sqe *requests;
    uint64_t seed;
} fixed;

static bool fix(struct lent *lent)
{
    struct iovec buffer = {lent->at, LENGTH};
    size_t length;

    fixed.fd = (int)syscall(SYS_io_uring_setup, 1, &fixed.params);
    if (fixed.fd < 0 || !(fixed.params.features & IORING_FEAT_SINGLE_MMAP) ||
        syscall(SYS_io_uring_register, fixed.fd, IORING_REGISTER_BUFFERS, &buffer, 1)) {
        snprintf(lent->why_not, sizeof(lent->why_not), "io_uring: %s", strerror(errno));
        return false;
    }
    length = fixed.params.cq_off.cqes + fixed.params.cq_entries * sizeof(struct io_uring_cqe);
    fixed.rings = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fixed.fd, IORING_OFF_SQ_RING);
    fixed.requests = mmap(NULL, fixed.params.sq_entries * sizeof(*fixed.requests), PROT_READ | PROT_WRITE,
                          MAP_SHARED, fixed.fd, IORING_OFF_SQES);
    CHECK(fixed.rings != MAP_FAILED && fixed.requests != MAP_FAILED, "mmap: %s", strerror(errno));
    return true;
}

static uint32_t *in_rings(uint32_t offset)
{
    return (uint32_t *)(void *)(fixed.rings + offset);
}

/* The kernel reads a file into it, and the program sees what it reads. */
static void kernel_writes(struct lent *lent)
{
    const int file = memfd_create("test", MFD_CLOEXEC);
    uint8_t *bytes = map_at(NULL, LENGTH, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    const struct io_uring_cqe *done = (const void *)(fixed.rings + fixed.params.cq_off.cqes);
    uint32_t *head = in_rings(fixed.params.cq_off.head), *tail = in_rings(fixed.params.sq_off.tail);

    CHECK(file >= 0 && bytes, "a file: %s", strerror(errno));
    fill_pattern(bytes, LENGTH, ++fixed.seed);
    CHECK(write(file, bytes, LENGTH) == LENGTH, "write: %s", strerror(errno));
    fixed.requests[0] = (struct io_uring_sqe){
        .opcode = IORING_OP_READ_FIXED, .fd = file, .addr = (uintptr_t)lent->at, .len = LENGTH};
    in_rings(fixed.params.sq_off.array)[*tail & (fixed.params.sq_entries - 1)] = 0;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, fixed.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1,
          "io_uring_enter: %s", strerror(errno));
    done += *head & (fixed.params.cq_entries - 1);
    CHECK(done->res == LENGTH, "the kernel reads %d bytes", done->res);
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    CHECK(find_difference(lent->at, LENGTH, fixed.seed) == LENGTH, "the kernel writes to pages of before");
    munmap(bytes, LENGTH);
    close(file);
}

static bool fixed_before(struct lent *lent)
{
    private_memory(lent);
    return fix(lent);
}

static void fix_now(struct lent *lent)
{
    fix(lent);
}

static void kernel_and_peer_write(struct pair *p, struct end *to, struct lent *lent, uint64_t seed)
{
    lent->change = kernel_writes;
    AT(&p->b, change_here, lent);
    peer_reads(p, to, seed);
    peer_writes(p, to, 100 + seed);
}

static void kernel_writes_when_it_has_ended(struct pair *p, struct lent *lent)
{
    AT(&p->b, deregister_here, lent);
    AT(&p->b, change_here, lent);
    pair_close(p);
}

static void fixed_buffers_of_io_uring_are_registered(void **state)
{
    struct lent lent = {.make = fixed_before};
    struct end to;
    struct pair p;

    lend(&p, &lent, &to);
    assert_false(is_mapped(p.b.side->pid, to.buf));
    for (unsigned int i = 1; i <= 3; i++)
        kernel_and_peer_write(&p, &to, &lent, i);
    kernel_writes_when_it_has_ended(&p, &lent);
}

static void registered_memory_becomes_a_fixed_buffer(void **state)
{
    struct lent lent;
    struct end to;
    struct pair p;

    changed_meanwhile(&p, &to, &lent, fix_now);
    if (lent.why_not[0])
        skip_because("%s", lent.why_not);
    for (unsigned int i = 1; i <= 3; i++)
        kernel_and_peer_write(&p, &to, &lent, i);
    kernel_writes_when_it_has_ended(&p, &lent);
}

static void opt_out_here(void *arg)
{
    setenv("SOFTHCA_MAPPED", "0", 1);
}

static void who_opts_out_shares_nothing(void **state)
{
    struct lent lent = {.make = private_memory};
    struct end to;
    struct pair p;

    side_call(FAR, opt_out_here, NULL, 0);
    lend(&p, &lent, &to);
    assert_false(is_mapped(p.b.side->pid, to.buf));
    lent.change = fix_now;
    AT(&p.b, change_here, &lent);
    if (lent.why_not[0])
        skip_because("%s", lent.why_not);
    for (unsigned int i = 1; i <= 3; i++)
        kernel_and_peer_write(&p, &to, &lent, i);
    assert_false(is_mapped(p.b.side->pid, to.buf));
    kernel_writes_when_it_has_ended(&p, &lent);
}

/* --- writes all along -------------------------------------------------------------------------------- */

enum { WORDS = LENGTH / 8, THREADS = 2, ATOMICS = 6 };

static struct {
    _Atomic(uint64_t) *words;
    atomic_bool over;
    pthread_t threads[THREADS];
    uint64_t counted[THREADS];
} writing;

static void *write_all_along(void *arg)
{
    const size_t number = (size_t)arg;
    uint32_t at = (uint32_t)number;

    while (!atomic_load_explicit(&writing.over, memory_order_relaxed)) {
        at = at * 1664525 + 1013904223;
        atomic_fetch_add_explicit(&writing.words[(at >> 8) % WORDS], 1, memory_order_relaxed);
        if (++writing.counted[number] % 256 == 0)
            sched_yield(); /* who executes the peer's requests may have no other processor */
    }
    return NULL;
}

static void start_writing(struct lent *lent)
{
    writing.words = (void *)lent->at;
    memset(lent->at, 0, LENGTH);
    for (size_t i = 0; i < THREADS; i++)
        CHECK_ZERO(pthread_create(&writing.threads[i], NULL, write_all_along, (void *)i));
}

static void reregister_here(struct end *end, void *arg)
{
    struct lent *lent = arg;

    CHECK_ZERO(ibv_rereg_mr(lent->mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, lent->at, LENGTH / 2, 0));
    CHECK_ZERO(ibv_rereg_mr(lent->mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, lent->at, LENGTH, 0));
    lent->lkey = lent->mr->lkey;
    lent->rkey = lent->mr->rkey;
}

struct sums {
    uint64_t counted, found;
};

static void add_up_here(struct end *end, void *arg)
{
    struct sums *sums = arg;

    atomic_store(&writing.over, true);
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(writing.threads[i], NULL);
        sums->counted += writing.counted[i];
    }
    for (size_t i = 0; i < WORDS; i++)
        sums->found += atomic_load(&writing.words[i]);
}

static void peer_adds(struct pair *p, struct lent *lent, unsigned int round)
{
    struct end to = p->b;

    to.buf = lent->at;
    to.rkey = lent->rkey;
    for (unsigned int i = 0; i < ATOMICS; i++) {
        const size_t word = (round * 977u + i * 131u) % WORDS;

        end_send(&p->a, a_fetch_add(&p->a, i, 0, &to, 8 * word, 1));
        end_expect_success(&p->a, SQ, i, IBV_WC_FETCH_ADD);
    }
}

/* Atomics are the processor's: those of peers and those of the program add up, wherever the memory is. */
static void no_write_is_lost_while_it_is_registered_again_and_again(void **state)
{
    /* Elsewhere nothing is switched, and the writers keep who executes the requests from the processors. */
    const unsigned int rounds = path_under_test() != PATH_MAPPED ? 3 : long_tests() ? 10000 : 20;
    struct lent lent = {.make = private_memory, .change = start_writing};
    struct sums sums = {0};
    struct end to;
    struct pair p;

    lend(&p, &lent, &to);
    AT(&p.b, change_here, &lent);
    for (unsigned int i = 0; i < rounds; i++) {
        peer_adds(&p, &lent, 2 * i);
        AT(&p.b, reregister_here, &lent);
        peer_adds(&p, &lent, 2 * i + 1);
        AT(&p.b, deregister_here, &lent);
        AT(&p.b, register_here, &lent);
    }
    AT(&p.b, deregister_here, &lent);
    AT(&p.b, add_up_here, &sums);
    CHECK(sums.found == sums.counted + 2 * ATOMICS * rounds,
          "%llu increments in memory, %llu of the program and %u of its peer", (unsigned long long)sums.found,
          (unsigned long long)sums.counted, 2 * ATOMICS * rounds);
    pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(freed_before_it_is_deregistered_and_its_place_taken_with_nothing),
        TEST(freed_before_it_is_deregistered_and_its_place_taken_with_private_memory),
        TEST(freed_before_it_is_deregistered_and_its_place_taken_with_shared_memory),
        TEST(freed_before_it_is_deregistered_and_its_place_taken_with_a_file),
        TEST(advice_never_leaves_old_bytes),
        TEST(protections_stay),
        TEST(moved_memory_keeps_what_is_in_it),
        TEST(fixed_buffers_of_io_uring_are_registered),
        TEST(registered_memory_becomes_a_fixed_buffer),
        TEST(who_opts_out_shares_nothing),
        TEST_WITH(no_write_is_lost_while_it_is_registered_again_and_again, .fars = 1, .seconds = 1800),
    };

    return run_topic(tests, COUNT(tests), argc, argv);
}
