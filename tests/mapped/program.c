/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What programs do to memory that is mapped: free it and put something else there, move it, advise the
 * kernel, change protections, lock it, pin it, close descriptors that they do not know. */
#include "base/newer_kernel.h"
#include "fixture.h"

#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

/* --- freed before it is removed ---------------------------------------------------------------------- */

static void freed_memory_stays_free(void **state)
{
    char *memory = map(8 * PAGE);
    struct mapped_region *region;
    unsigned before;

    begin(8 * PAGE);
    fill(memory, 8 * PAGE, 1);
    mapped_remove(add(memory, PAGE), false);
    before = count_maps_in(memory, 8 * PAGE);
    CHECK(before == 1, "one mapping");
    region = add(memory, 8 * PAGE);
    munmap(memory, 8 * PAGE);
    mapped_remove(region, false);
    CHECK(count_maps_in(memory, 8 * PAGE) == 0, "something is there again");
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

static void memory_that_took_its_place_is_not_touched(void **state)
{
    enum { KINDS = 4 };

    begin(8 * PAGE);
    for (int kind = 0; kind < KINDS; kind++) {
        char *memory = map(8 * PAGE), *other = MAP_FAILED;
        struct mapped_region *region = add(memory, 8 * PAGE);
        int fd = memfd_create("other", MFD_CLOEXEC);

        memset(memory, 1, 8 * PAGE);
        CHECK(ftruncate(fd, (off_t)(8 * PAGE)) == 0, "ftruncate: %m");
        munmap(memory, 8 * PAGE);
        if (kind == 0)
            other = mmap(memory, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                         -1, 0);
        if (kind == 1)
            other = mmap(memory, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
        if (kind == 2)
            other =
                mmap(memory, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (kind == 3) /* in the middle only */
            other = (char *)mmap(memory + 2 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) -
                    2 * PAGE;
        CHECK(other == memory, "mmap: %m");
        memset(memory + 2 * PAGE, 2, 4 * PAGE);
        mapped_remove(region, false);
        for (size_t i = 2 * PAGE; i < 6 * PAGE; i++)
            CHECK(memory[i] == 2, "kind %d: byte %zu has changed", kind, i);
        CHECK(is_shared(memory + 3 * PAGE) == (kind == 1 || kind == 2), "kind %d: it is another mapping",
              kind);
        munmap(memory, 8 * PAGE);
        close(fd);
    }
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

static void what_is_left_goes_back(void **state)
{
    char *memory = map(16 * PAGE);
    struct mapped_region *region;

    begin(16 * PAGE);
    fill(memory, 16 * PAGE, 4);
    region = add(memory, 16 * PAGE);
    munmap(memory + 4 * PAGE, 2 * PAGE);
    CHECK(mmap(memory + 10 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) != MAP_FAILED,
          "mmap: %m");
    memory[10 * PAGE] = 'x';
    mapped_remove(region, false);
    for (size_t page = 0; page < 16; page++) {
        if (page == 4 || page == 5)
            continue;
        CHECK(!is_shared(memory + page * PAGE), "page %zu is shared", page);
    }
    CHECK(memory[10 * PAGE] == 'x' && memory[10 * PAGE + 1] == 0, "the page that took a place");
    memset(memory + 10 * PAGE, 0, PAGE);
    CHECK(filled(memory, 4 * PAGE, 4), "before the gap");
    CHECK(count_maps_in(memory + 4 * PAGE, 2 * PAGE) == 0, "the gap");
    munmap(memory, 16 * PAGE);
}

static void new_memory_at_the_same_address(void **state)
{
    char *memory = map(4 * PAGE), *peer_of_old, *peer_of_new;
    struct mapped_region *old, *new;
    struct mapped_piece old_piece, new_piece;

    begin(8 * PAGE);
    old = add(memory, 4 * PAGE);
    memset(memory, 1, 4 * PAGE);
    peer_of_old = peer_view(old, memory);
    munmap(memory, 4 * PAGE);
    CHECK(mmap(memory, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
              memory,
          "mmap: %m");
    memset(memory, 2, 4 * PAGE);
    new = add(memory, 4 * PAGE);
    mapped_pieces(old, &old_piece, 1);
    mapped_pieces(new, &new_piece, 1);
    CHECK(old_piece.offset != new_piece.offset, "another place");
    peer_of_new = peer_view(new, memory);
    CHECK(peer_of_old[0] == 1 && peer_of_new[0] == 2, "each sees its own");
    peer_of_old[0] = 3;
    CHECK(memory[0] == 2, "who writes through the old region does not reach the new memory");
    mapped_remove(old, false);
    peer_of_new[1] = 4;
    CHECK(memory[0] == 2 && memory[1] == 4 && is_shared(memory), "the new region goes on");
    mapped_remove(new, false);
    CHECK(memory[0] == 2 && memory[1] == 4 && !is_shared(memory), "and ends");
}

/* --- moved ------------------------------------------------------------------------------------------- */

/* Where a page keeps regions from growing that are no longer than this. */
#define GUARD_DISTANCE ((uintptr_t)128 << 10)

static void move_and_remove(char *memory)
{
    struct mapped_region *region, *again;
    char *moved, *peer;

    fill(memory, 8 * PAGE, 2);
    region = add(memory, 8 * PAGE);
    moved = mremap(memory, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, map(8 * PAGE));
    if (moved == MAP_FAILED && errno == EFAULT && count_maps_in(memory, 8 * PAGE) > 1) {
        /* The kernel moves several mappings at once since Linux 6.17. */
        CHECK(filled(memory, 8 * PAGE, 2) && is_shared(memory), "it was not moved");
        mapped_remove(region, false);
        CHECK(filled(memory, 8 * PAGE, 2) && !is_shared(memory), "private where it is");
        return;
    }
    CHECK(moved != MAP_FAILED, "mremap: %m");
    CHECK(filled(moved, 8 * PAGE, 2), "moved");
    peer = peer_view(region, memory); /* may well be where it was */
    peer[0] = 'p';
    CHECK(moved[0] == 'p', "as with pages that a NIC has pinned");
    again = add(moved, 4 * PAGE);
    CHECK(peer_view(again, moved)[0] == 'p', "known where it is now");
    mapped_remove(region, false);
    CHECK(is_shared(moved), "half of it has another region");
    CHECK(!is_shared(moved + 4 * PAGE), "the other half has not");
    mapped_remove(again, false);
    CHECK(!is_shared(moved), "private where it is");
    CHECK(moved[0] == 'p', "what the peer wrote");
    fill(moved, 1, 2);
    CHECK(filled(moved, 8 * PAGE, 2), "contents");
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

static void moved_memory_becomes_private_where_it_is(void **state)
{
    char *memory = map(3 * GUARD_DISTANCE), *guard;

    guard = (char *)(((uintptr_t)memory + GUARD_DISTANCE) & ~(GUARD_DISTANCE - 1));
    begin(8 * PAGE);
    move_and_remove(guard + PAGE); /* one mapping */
    move_and_remove(guard + GUARD_DISTANCE - 4 * PAGE);
}

static void blocks_can_be_reallocated(void **state)
{
    size_t length = 1 << 20;
    char *block = malloc(length);

    begin(length);
    for (int i = 0; i < 8; i++) {
        char *first = (char *)(((uintptr_t)block + PAGE - 1) & ~(PAGE - 1));
        size_t pages = (length - (size_t)(first - block)) / PAGE;
        struct mapped_region *region;

        fill(block, length, 6);
        region = add(first, pages * PAGE);
        block = realloc(block, length + (1 << 20)); /* glibc tries mremap() */
        CHECK(block, "realloc");
        CHECK(filled(block, length, 6), "contents after realloc");
        mapped_remove(region, false);
        CHECK(filled(block, length, 6), "contents after removal");
        block = realloc(block, length);
        CHECK(block && filled(block, length, 6), "contents after the second realloc");
    }
    free(block);
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

/* A shared mapping that the kernel makes longer shows what is next in the file: memory of others. */
static void memory_cannot_grow_into_others(void **state)
{
    size_t length = (256 << 10) / PAGE * PAGE + PAGE;
    char *memory = map(3 * length);
    struct mapped_region *one, *other, *both;

    begin(3 * length);
    fill(memory, 3 * length, 1);
    both = add(memory, 3 * length);
    one = add(memory, length);
    other = add(memory + length, 2 * length);
    mapped_remove(both, false);
    for (int moved = 0; moved < 2; moved++) {
        CHECK(mremap(memory, length, 2 * length, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT,
              "%s: it became longer", moved ? "after it was moved in the file" : "as it was registered");
        CHECK(mremap(memory, length, 2 * length, MREMAP_MAYMOVE | MREMAP_FIXED, map(2 * length)) ==
                      MAP_FAILED &&
                  errno == EFAULT,
              "elsewhere");
        CHECK_ZERO(mapped_move((uintptr_t)memory, length));
    }
    CHECK(filled(memory, 3 * length, 1), "contents");
    CHECK(mremap(memory, length, length - PAGE, 0) == memory, "shorter: %m");
    mapped_remove(one, false);
    mapped_remove(other, false);
    CHECK(!is_shared(memory) && !is_shared(memory + 2 * length), "still shared");
    CHECK(count_maps_in(memory, length) == 1 && count_maps_in(memory + length, 2 * length) == 1, "in pieces");
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

/* Registration caches take whole pages, and with them what malloc() keeps in front of a block. */
static void whole_blocks_can_be_reallocated(void **state)
{
    enum { BLOCKS = 4 };
    size_t length = 1 << 20;
    char *block[BLOCKS];

    begin(BLOCKS * 4 * length);
    for (int i = 0; i < BLOCKS; i++) {
        block[i] = malloc(length);
        fill(block[i], length, (unsigned)i);
    }
    for (int i = 0; i < BLOCKS; i++) {
        struct mapped_region *regions[BLOCKS];

        for (int k = 0; k < BLOCKS; k++) {
            uintptr_t first = (uintptr_t)block[k] & ~(PAGE - 1);
            uintptr_t last = ((uintptr_t)block[k] + length + PAGE - 1) & ~(PAGE - 1);

            regions[k] = mapped_add(first, last - first, MAPPED_PEERS_WRITE);
        }
        block[i] = realloc(block[i], 2 * length); /* glibc tries mremap() */
        CHECK(block[i], "realloc");
        memset(block[i] + length, 'x', length);
        for (int k = 0; k < BLOCKS; k++)
            mapped_remove(regions[k], false);
        for (int k = 0; k < BLOCKS; k++)
            CHECK(filled(block[k], length, (unsigned)k), "block %d after block %d has grown", k, i);
        for (size_t at = length; at < 2 * length; at++)
            CHECK(block[i][at] == 'x', "byte %zu of block %d", at, i);
    }
    for (int i = 0; i < BLOCKS; i++)
        free(block[i]);
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

/* --- advice and protections -------------------------------------------------------------------------- */

static void advice_is_refused_like_that_for_locked_memory(void **state)
{
    char *memory = map(4 * PAGE);
    struct mapped_region *region;

    begin(4 * PAGE);
    fill(memory, 4 * PAGE, 3);
    region = add(memory, 4 * PAGE);
    /* Success would promise zeroes. */
    CHECK(madvise(memory, 2 * PAGE, MADV_DONTNEED) == -1 && errno == EINVAL, "MADV_DONTNEED: %m");
    CHECK(madvise(memory, 2 * PAGE, MADV_FREE) == -1 && errno == EINVAL, "MADV_FREE: %m");
    CHECK(filled(memory, 4 * PAGE, 3), "contents");
    CHECK(madvise(memory, 2 * PAGE, MADV_WILLNEED) == 0 && madvise(memory, PAGE, MADV_DONTDUMP) == 0,
          "others: %m");
    mapped_remove(region, false);
    CHECK(madvise(memory, 2 * PAGE, MADV_DONTNEED) == 0 && memory[0] == 0, "as before");
    CHECK(count_maps_in(memory, 4 * PAGE) == 1, "one mapping");
}

static void protections_survive(void **state)
{
    char *memory = map(12 * PAGE);
    struct mapped_region *region;

    begin(12 * PAGE);
    fill(memory, 12 * PAGE, 3);
    region = add(memory, 12 * PAGE);
    CHECK_ZERO(mprotect(memory + 2 * PAGE, 2 * PAGE, PROT_READ));
    CHECK_ZERO(mprotect(memory + 6 * PAGE, 2 * PAGE, PROT_NONE));
    mapped_remove(region, false);
    CHECK(count_maps_in(memory, 12 * PAGE) == 5, "%u mappings", count_maps_in(memory, 12 * PAGE));
    CHECK(refused(memory + 2 * PAGE, 2 * PAGE) == MAPPED_NOT_WRITABLE, "read only");
    CHECK(refused(memory + 6 * PAGE, 2 * PAGE) == MAPPED_NOT_WRITABLE, "no access");
    CHECK_ZERO(mprotect(memory, 12 * PAGE, PROT_READ | PROT_WRITE));
    CHECK(filled(memory, 12 * PAGE, 3), "contents");
    CHECK(count_maps_in(memory, 12 * PAGE) == 1, "one mapping again");
}

static unsigned long locked_kib(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    unsigned long value = 0;

    while (fgets(line, sizeof line, file))
        if (sscanf(line, "VmLck: %lu", &value) == 1)
            break;
    fclose(file);
    return value;
}

static void locked_memory_stays_locked(void **state)
{
    char *memory = map(64 * PAGE);
    struct mapped_region *region;
    unsigned long before, with;

    if (sanitized())
        skip_because("a sanitizer locks nothing");
    begin(128 * PAGE);
    mapped_remove(add(memory, PAGE), false);
    before = locked_kib();
    fill(memory, 64 * PAGE, 8);
    CHECK(mlock(memory, 32 * PAGE) == 0, "mlock: %m");
    with = locked_kib();
    CHECK(with == before + 32 * PAGE / 1024, "locked");
    region = add(memory, 64 * PAGE);
    CHECK(locked_kib() == before + 64 * PAGE / 1024, "%lu KiB locked, %lu before", locked_kib(), before);
    CHECK(filled(memory, 64 * PAGE, 8), "contents");
    mapped_remove(region, false);
    CHECK(locked_kib() == with, "%lu KiB locked, %lu before", locked_kib(), with);
    CHECK(madvise(memory, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL, "still locked");
    CHECK(madvise(memory + 32 * PAGE, PAGE, MADV_COLD) == 0, "not locked");
    CHECK(filled(memory, 64 * PAGE, 8), "contents");
    CHECK(munlock(memory, 64 * PAGE) == 0 && locked_kib() == before, "%lu KiB locked, %lu before",
          locked_kib(), before);
    CHECK(count_maps_in(memory, 64 * PAGE) == 1, "one mapping");
}

static void everything_is_locked(void **state)
{
    char *memory = map(64 * PAGE);
    struct mapped_region *region;

    begin((uint64_t)256 << 20);
    fill(memory, 64 * PAGE, 8);
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0, "mlockall: %m");
    region = add(memory, 64 * PAGE);
    CHECK(arena_blocks() == 64 * PAGE, "%llu bytes in the arena", (unsigned long long)arena_blocks());
    peer_view(region, memory);
    CHECK(arena_blocks() == 64 * PAGE, "%llu bytes in the arena", (unsigned long long)arena_blocks());
    mapped_remove(region, false);
    CHECK(filled(memory, 64 * PAGE, 8), "contents");
    munlockall();
}

static void transparent_huge_pages(void **state)
{
    size_t length = 8 << 20, huge = 2 << 20;
    char *memory = map(length + huge), *aligned = (char *)(((uintptr_t)memory + huge - 1) & ~(huge - 1));
    struct mapped_region *region;

    begin(length);
    madvise(aligned, length, MADV_HUGEPAGE);
    fill(aligned, length, 1);
    region = add(aligned + PAGE, length - 2 * PAGE);
    CHECK(filled(aligned, length, 1), "on the way in");
    mapped_remove(region, false);
    CHECK(filled(aligned, length, 1), "on the way back");
    CHECK(count_maps_in(aligned, length) == 1, "one mapping");
}

/* --- what cannot be switched ------------------------------------------------------------------------- */

static void memory_under_another_userfaultfd(void **state)
{
    char *memory = map(8 * PAGE);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register request = {.range = {(uintptr_t)memory, 8 * PAGE},
                                      .mode = UFFDIO_REGISTER_MODE_MISSING};
    struct uffdio_range range = {(uintptr_t)memory, 8 * PAGE};
    enum way way = begin(8 * PAGE);
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

    if (fd < 0)
        skip_because("no userfaultfd");
    if (way == WAY_ALONE)
        skip_because("without userfaultfd nobody notices");
    fill(memory, 8 * PAGE, 1);
    CHECK_ZERO(ioctl(fd, UFFDIO_API, &api));
    CHECK_ZERO(ioctl(fd, UFFDIO_REGISTER, &request));
    CHECK(refused(memory, 8 * PAGE) == MAPPED_USERFAULTFD, "it is the program's");
    CHECK(filled(memory, 8 * PAGE, 1), "contents");
    CHECK_ZERO(ioctl(fd, UFFDIO_UNREGISTER, &range));
    mapped_remove(add(memory, 8 * PAGE), false);
    close(fd);
}

/* --- pinned memory ----------------------------------------------------------------------------------- */

static int open_ring(void)
{
    struct io_uring_params parameters = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);

    if (ring < 0)
        skip_because("io_uring: %s", strerror(errno));
    return ring;
}

static void pinned_pages_stay_what_they_are(void **state)
{
    char *memory = map(16 * PAGE);
    struct iovec buffer = {memory, 4 * PAGE};
    struct mapped_region *region;
    struct mapped_counts counts;
    enum way way = begin(16 * PAGE);
    int ring;

    if (way == WAY_ALONE)
        skip_because("a program with io_uring keeps its memory (calls.c)");
    ring = open_ring();
    fill(memory, 16 * PAGE, 1);
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1) < 0)
        skip_because("io_uring: %s", strerror(errno));
    /* Which pages, nobody says. */
    CHECK(refused(memory, 16 * PAGE) == MAPPED_PINNED, "before");
    CHECK_ZERO((int)syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, NULL, 0));

    /* Pinned while it is mapped: what the kernel writes goes to the shared pages, so they have to stay. */
    region = add(memory, 16 * PAGE);
    CHECK_ZERO((int)syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1));
    mapped_remove(region, false);
    CHECK(is_shared(memory) && filled(memory, 16 * PAGE, 1), "it lingers");
    mapped_count(&counts);
    CHECK(counts.lingering == 16 * PAGE, "%llu bytes linger", (unsigned long long)counts.lingering);
    region = add(memory, 4 * PAGE);
    CHECK(region, "and can be used again");
    mapped_remove(region, false);
    CHECK_ZERO((int)syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, NULL, 0));
    close(ring);
    region = add(memory + 8 * PAGE, PAGE); /* at the next opportunity */
    CHECK(!is_shared(memory) && filled(memory, 16 * PAGE, 1), "it went back");
    mapped_remove(region, false);
    mapped_count(&counts);
    CHECK(counts.lingering == 0 && counts.bytes == 0, "nothing left");
    CHECK(count_maps_in(memory, 16 * PAGE) == 1, "one mapping");
}

/* --- descriptors, signals, threads ------------------------------------------------------------------- */

static void descriptors_are_out_of_reach(void **state)
{
    char *memory = map(8 * PAGE);
    struct mapped_region *region;
    unsigned before = count_fds();

    begin(8 * PAGE);
    fill(memory, 8 * PAGE, 2);
    region = add(memory, 8 * PAGE);
    CHECK(count_fds() == before, "%u descriptors, %u before", count_fds(), before);
    for (int fd = 3; fd < 1024; fd++) { /* as daemons do; and truncate what they find */
        CHECK(ftruncate(fd, 0) != 0 || fd < (int)before + 8, "a file of ours");
        close(fd);
    }
    for (int i = 0; i < 64; i++)
        CHECK(open("/dev/null", O_RDWR) >= 0, "open: %m");
    CHECK(filled(memory, 8 * PAGE, 2), "contents");
    CHECK(peer_view(region, memory)[0] == memory[0], "peers can still be served");
    mapped_remove(region, false);
    mapped_remove(add(memory, 4 * PAGE), false);
    CHECK(filled(memory, 8 * PAGE, 2) && !is_shared(memory), "contents");
}

static atomic_uint signals;

static void count_signal(int number)
{
    atomic_fetch_add(&signals, 1);
}

static void signals_come_all_along(void **state)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = SA_RESTART};
    struct itimerval interval = {{0, 500}, {0, 500}}, never = {0};
    enum way way = begin(1 << 20);
    char *memory = map(1 << 20);
    struct writers *writers = NULL;
    uint64_t lost = 0;

    memset(memory, 0, 1 << 20);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &interval, NULL);
    if (way != WAY_ALONE)
        writers = writers_start(memory, 1 << 20, 2);
    for (unsigned i = 0; i < cycles(50, 1000) || atomic_load(&signals) < 10; i++)
        mapped_remove(add(memory, 1 << 20), false);
    if (writers)
        lost = writers_finish(writers, NULL);
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(lost == 0, "%llu writes are lost", (unsigned long long)lost);
}

struct registrar {
    char *memory;
    size_t pages;
    unsigned number, rounds;
    pthread_t thread;
};

static void *register_at_random(void *argument)
{
    struct registrar *self = argument;
    uint64_t random = self->number + 1;

    for (unsigned i = 0; i < self->rounds; i++) {
        struct mapped_region *regions[3];

        for (unsigned k = 0; k < COUNT(regions); k++) {
            size_t first;

            random = random * 6364136223846793005u + 1442695040888963407u;
            first = (random >> 33) % (self->pages - 16);
            regions[k] = add(self->memory + first * PAGE, (1 + (random >> 58) % 16) * PAGE);
        }
        for (unsigned k = 0; k < COUNT(regions); k++)
            mapped_remove(regions[k], false);
    }
    return NULL;
}

static void many_register_at_once(void **state)
{
    enum way way = begin(4 << 20);
    size_t pages = 512;
    char *memory = map(pages * PAGE);
    struct registrar registrars[3];
    struct writers *writers;
    uint64_t lost;

    if (way == WAY_ALONE)
        skip_because("several threads");
    memset(memory, 0, pages * PAGE);
    writers = writers_start(memory, pages * PAGE, 2);
    for (unsigned i = 0; i < COUNT(registrars); i++) {
        registrars[i] = (struct registrar){memory, pages, i, cycles(100, 3000), 0};
        CHECK_ZERO(pthread_create(&registrars[i].thread, NULL, register_at_random, &registrars[i]));
    }
    for (unsigned i = 0; i < COUNT(registrars); i++)
        pthread_join(registrars[i].thread, NULL);
    lost = writers_finish(writers, NULL);
    CHECK(lost == 0, "%llu writes are lost", (unsigned long long)lost);
    CHECK(count_maps_in(memory, pages * PAGE) == 1, "one mapping");
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(freed_memory_stays_free, .fars = 0),
        TEST_WITH(memory_that_took_its_place_is_not_touched, .fars = 0),
        TEST_WITH(what_is_left_goes_back, .fars = 0),
        TEST_WITH(new_memory_at_the_same_address, .fars = 0),
        TEST_WITH(moved_memory_becomes_private_where_it_is, .fars = 0),
        TEST_WITH(blocks_can_be_reallocated, .fars = 0),
        TEST_WITH(memory_cannot_grow_into_others, .fars = 0),
        TEST_WITH(whole_blocks_can_be_reallocated, .fars = 0),
        TEST_WITH(advice_is_refused_like_that_for_locked_memory, .fars = 0),
        TEST_WITH(protections_survive, .fars = 0),
        TEST_WITH(locked_memory_stays_locked, .fars = 0),
        TEST_WITH(everything_is_locked, .fars = 0),
        TEST_WITH(transparent_huge_pages, .fars = 0),
        TEST_WITH(memory_under_another_userfaultfd, .fars = 0),
        TEST_WITH(pinned_pages_stay_what_they_are, .fars = 0),
        TEST_WITH(descriptors_are_out_of_reach, .fars = 0),
        TEST_WITH(signals_come_all_along, .fars = 0, .seconds = 600),
        TEST_WITH(many_register_at_once, .fars = 0, .seconds = 600),
    };

    return run_mapped(tests, COUNT(tests), argc, argv);
}
