/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Pages go into an arena and come back: contents, sparse memory, what the kernel keeps of the mappings, and
 * writers all along. */
#include "fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void contents_go_and_come_back(void **state)
{
    static const size_t pages[] = {1, 2, 15, 16, 17, 33, 300};
    enum way way = begin(300 * PAGE);

    (void)way;
    for (unsigned i = 0; i < COUNT(pages); i++) {
        size_t length = pages[i] * PAGE;
        char *memory = map(length + 2 * PAGE), *inside = memory + PAGE, *peer;
        struct mapped_region *region;
        unsigned before;

        fill(memory, length + 2 * PAGE, i);
        before = count_maps();
        region = add(inside, length);
        CHECK(is_shared(inside) && is_shared(inside + length - 1), "not shared");
        CHECK(!is_shared(memory) && !is_shared(inside + length), "more is shared than was asked for");
        CHECK(filled(memory, length + 2 * PAGE, i), "after the way in");
        /* Both see the same. */
        peer = peer_view(region, inside);
        CHECK(memcmp(peer, inside, length) == 0, "the peer sees something else");
        peer[length - 1] = 'p';
        CHECK(inside[length - 1] == 'p', "what the peer wrote is not there");
        inside[0] = 'o';
        CHECK(peer[0] == 'o', "what the owner wrote is not there");
        mapped_remove(region, false);
        CHECK(!is_shared(inside) && !is_shared(inside + length - 1), "still shared");
        CHECK(inside[0] == 'o' && inside[length - 1] == 'p', "after the way back");
        fill(inside, 1, 0);
        CHECK(count_maps_in(memory, length + 2 * PAGE) == 1, "%u mappings left of one",
              count_maps_in(memory, length + 2 * PAGE));
        /* The view of the peer, which is this process. */
        CHECK(count_maps() <= before + 2, "%u mappings, %u before", count_maps(), before);
        peer[0] = 'x';
        CHECK(inside[0] != 'x', "the peer still writes into the memory");
        munmap(memory, length + 2 * PAGE);
    }
}

static void only_whole_pages(void **state)
{
    char *memory = map(4 * PAGE);
    struct mapped_region *region;
    struct mapped_refusal refusals[4];
    struct mapped_piece piece;

    begin(4 * PAGE);
    fill(memory, 4 * PAGE, 1);
    CHECK(refused(memory + 1, PAGE) == MAPPED_PARTIAL_PAGE, "one page, in two");
    CHECK(refused(memory + 1, 2 * PAGE - 2) == MAPPED_PARTIAL_PAGE, "two pages, without their ends");
    CHECK(refused(memory, 0) == MAPPED_YES, "nothing is refused of nothing");
    region = mapped_add((uintptr_t)memory + 10, 3 * PAGE, MAPPED_PEERS_WRITE);
    CHECK(mapped_pieces(region, &piece, 1) == 1, "one piece");
    CHECK(piece.address == (uintptr_t)memory + PAGE && piece.length == 2 * PAGE, "the two pages inside");
    CHECK(mapped_refusals(region, refusals, 4) == 2, "both ends");
    CHECK(refusals[0].reason == MAPPED_PARTIAL_PAGE && refusals[0].address == (uintptr_t)memory + 10 &&
              refusals[0].length == PAGE - 10,
          "the part of the first page");
    CHECK(refusals[1].address == (uintptr_t)memory + 3 * PAGE && refusals[1].length == 10, "of the last");
    mapped_remove(region, false);
    CHECK(filled(memory, 4 * PAGE, 1), "contents");
}

static void no_write_is_lost(void **state)
{
    enum way way = begin(4 << 20);
    size_t length = 4 << 20;
    char *memory = map(length + 2 * PAGE);
    unsigned before, after, rounds = cycles(60, 10000);
    struct writers *writers;
    uint64_t lost, total;

    if (way == WAY_ALONE)
        skip_because("other threads write");
    memset(memory, 0, length + 2 * PAGE);
    writers = writers_start(memory + PAGE, length, 2);
    mapped_remove(add(memory + PAGE, length), false); /* starts what there is to start */
    before = count_maps();
    for (unsigned i = 0; i < rounds; i++) {
        struct mapped_region *region = add(memory + PAGE, length);

        sched_yield();
        mapped_remove(region, false);
    }
    after = count_maps(); /* what the writers free may leave a hole in a mapping */
    lost = writers_finish(writers, &total);
    CHECK(lost == 0, "%llu of %llu increments are lost", (unsigned long long)lost, (unsigned long long)total);
    CHECK(total > 1000, "hardly anything was written");
    CHECK(after <= before, "%u mappings, %u before", after, before);
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

/* As ibv_rereg_mr() does: the new region is there before the old one goes, in part on the same pages. */
static void no_write_is_lost_over_reregistration(void **state)
{
    enum way way = begin(4 << 20);
    size_t length = 4 << 20, quarter = length / 4;
    char *memory = map(length);
    struct mapped_region *now = NULL;
    unsigned rounds = cycles(60, 10000);
    struct writers *writers;
    uint64_t lost, total;

    if (way == WAY_ALONE)
        skip_because("other threads write");
    memset(memory, 0, length);
    writers = writers_start(memory, length, 2);
    for (unsigned i = 0; i < rounds; i++) {
        size_t first = i % 3 * quarter, count = length - first - i % 2 * quarter;
        struct mapped_region *next =
            mapped_add((uintptr_t)memory + first, count,
                       i % 5 ? MAPPED_PEERS_READ | MAPPED_PEERS_WRITE : MAPPED_PEERS_READ);

        CHECK(mapped_bytes(next) == count, "round %u: %llu bytes of %zu are mapped", i,
              (unsigned long long)mapped_bytes(next), count);
        mapped_remove(now, false);
        now = next;
    }
    mapped_remove(now, false);
    lost = writers_finish(writers, &total);
    CHECK(lost == 0, "%llu of %llu increments are lost", (unsigned long long)lost, (unsigned long long)total);
    CHECK(count_maps_in(memory, length) == 1, "%u mappings of one", count_maps_in(memory, length));
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

/* --- system calls ------------------------------------------------------------------------------------ */

struct caller {
    char *memory;
    size_t length;
    int fd;
    bool writes; /* into memory */
    atomic_bool stop;
    atomic_uint done, failed;
    pthread_t thread;
};

static void *call_into_memory(void *argument)
{
    struct caller *self = argument;
    uint64_t random = 1;
    char *end = self->memory + self->length;

    while (!atomic_load(&self->stop)) {
        char *at;
        ssize_t length;

        random = random * 6364136223846793005u + 1442695040888963407u;
        at = self->memory + (random >> 33) % (size_t)(end - self->memory - 8);
        length = self->writes ? pread(self->fd, at, 8, 0) : pwrite(self->fd, at, 8, 0);
        atomic_fetch_add(length == 8 ? &self->done : &self->failed, 1);
    }
    return NULL;
}

static void system_calls_go_on(void **state)
{
    enum way way = begin(1 << 20);
    size_t length = 1 << 20;
    char *memory = map(length);
    struct caller callers[2] = {
        {.memory = memory + PAGE, .length = length - PAGE, .fd = memfd_create("calls", MFD_CLOEXEC)},
        {.memory = memory + PAGE,
         .length = length - PAGE,
         .fd = open("/dev/zero", O_RDONLY | O_CLOEXEC),
         .writes = true},
    };

    if (way == WAY_ALONE)
        skip_because("other threads write");
    memset(memory, 0, length);
    for (unsigned i = 0; i < COUNT(callers); i++)
        CHECK_ZERO(pthread_create(&callers[i].thread, NULL, call_into_memory, &callers[i]));
    for (unsigned i = 0; i < cycles(100, 2000); i++) {
        struct mapped_region *region = add(memory, length);
        uint32_t epoch = mapped_epoch();

        CHECK(!(epoch & 1) && !mapped_disturbed(epoch), "nothing is being switched");
        mapped_remove(region, false);
        CHECK(mapped_disturbed(epoch), "something was switched");
    }
    for (unsigned i = 0; i < COUNT(callers); i++) {
        atomic_store(&callers[i].stop, true);
        pthread_join(callers[i].thread, NULL);
        CHECK(callers[i].done > 0, "no call at all");
    }
    /* Where shared pages cannot be protected, every access faults on the way back. */
    if (way != WAY_MINOR)
        CHECK(callers[0].failed == 0, "%u of %u calls that read failed", callers[0].failed, callers[0].done);
    if (way == WAY_FULL)
        CHECK(callers[1].failed == 0, "%u of %u calls that write failed", callers[1].failed, callers[1].done);
}

/* --- what is not there ------------------------------------------------------------------------------- */

static void sparse_memory_stays_sparse(void **state)
{
    size_t length = (size_t)100 << 30;
    char *memory;
    struct mapped_region *region;

    begin(length);
    memory = map_with(length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
    madvise(memory, length, MADV_NOHUGEPAGE); /* a huge page is all populated */
    memory[5 * PAGE] = 1;
    memory[length / 2] = 2;
    memory[length - 1] = 3;
    region = add(memory, length);
    CHECK(arena_blocks() <= 8 * PAGE, "%llu bytes in the arena", (unsigned long long)arena_blocks());
    CHECK(memory[5 * PAGE] == 1 && memory[length / 2] == 2 && memory[length - 1] == 3, "contents");
    CHECK(!is_resident(memory + 6 * PAGE) && !is_resident(memory + length / 3), "more is populated");
    memory[length / 3] = 4;
    CHECK(memory[length / 4] == 0, "zeroes elsewhere"); /* looking populates shared memory */
    mapped_remove(region, false);
    CHECK(memory[5 * PAGE] == 1 && memory[length / 2] == 2 && memory[length - 1] == 3 &&
              memory[length / 3] == 4,
          "contents after the way back");
    CHECK(!is_resident(memory + 6 * PAGE) && !is_resident(memory + length / 3 + PAGE),
          "populated on the way back");
    CHECK(count_maps_in(memory, length) == 1, "one mapping again");
    munmap(memory, length);
}

static void never_touched_memory(void **state)
{
    char *memory = map(64 * PAGE);
    struct mapped_region *region;

    begin(64 * PAGE);
    region = add(memory + 8 * PAGE, 16 * PAGE);
    memory[9 * PAGE] = 1;
    mapped_remove(region, false);
    CHECK(memory[9 * PAGE] == 1 && memory[10 * PAGE] == 0, "contents");
    memset(memory, 2, 64 * PAGE);
    CHECK(count_maps_in(memory, 64 * PAGE) == 1, "%u mappings", count_maps_in(memory, 64 * PAGE));
}

/* --- what the kernel keeps --------------------------------------------------------------------------- */

static void nothing_is_left_behind(void **state)
{
    size_t pages = 256;
    char *memory = map(pages * PAGE);
    unsigned before, fds;
    uint64_t random = 1;

    begin(pages * PAGE);
    fill(memory, pages * PAGE, 3);
    mapped_remove(add(memory, PAGE), false);
    before = count_maps();
    fds = count_fds();
    for (unsigned i = 0; i < cycles(300, 10000); i++) {
        struct mapped_region *regions[4];

        for (unsigned k = 0; k < 4; k++) { /* as they come: overlapping, nested, repeated */
            size_t first, count;

            random = random * 6364136223846793005u + 1442695040888963407u;
            first = (random >> 33) % (pages - 1);
            count = 1 + (random >> 50) % min_of(pages - first, (size_t)40);
            regions[k] = add(memory + first * PAGE, count * PAGE);
        }
        for (unsigned k = 0; k < 4; k++)
            mapped_remove(regions[(k + i) % 4], false);
    }
    CHECK(filled(memory, pages * PAGE, 3), "contents");
    CHECK(count_maps() == before, "%u mappings, %u before", count_maps(), before);
    CHECK(count_maps_in(memory, pages * PAGE) == 1, "the memory is in pieces");
    CHECK(count_fds() == fds, "%u descriptors, %u before", count_fds(), fds);
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

static void overlapping_regions_count(void **state)
{
    char *memory = map(16 * PAGE);
    struct mapped_region *outer, *inner, *same, *right;

    begin(16 * PAGE);
    fill(memory, 16 * PAGE, 5);
    outer = add(memory + 2 * PAGE, 8 * PAGE);
    inner = add(memory + 4 * PAGE, 2 * PAGE);
    same = add(memory + 2 * PAGE, 8 * PAGE);
    right = add(memory + 8 * PAGE, 8 * PAGE);
    mapped_remove(outer, false);
    CHECK(is_shared(memory + 2 * PAGE) && is_shared(memory + 5 * PAGE), "another region needs it");
    mapped_remove(same, false);
    CHECK(!is_shared(memory + 2 * PAGE) && !is_shared(memory + 7 * PAGE), "nobody needs it");
    CHECK(is_shared(memory + 4 * PAGE) && is_shared(memory + 6 * PAGE - 1), "inner");
    CHECK(is_shared(memory + 8 * PAGE) && is_shared(memory + 16 * PAGE - 1), "right");
    mapped_remove(inner, false);
    CHECK(!is_shared(memory + 4 * PAGE), "inner is gone");
    mapped_remove(right, false);
    CHECK(filled(memory, 16 * PAGE, 5), "contents");
    CHECK(count_maps_in(memory, 16 * PAGE) == 1, "one mapping again");
}

static void neighbours_become_one_mapping(void **state)
{
    enum { COUNT_OF = 64 };
    char *memory = map(COUNT_OF * PAGE);
    struct mapped_region *regions[COUNT_OF];
    struct mapped_counts counts;
    unsigned before, guards = 2 * ((unsigned)(COUNT_OF * PAGE >> 17) + 1);

    if (sanitized())
        skip_because("a sanitizer's memory lies where the shadows would be neighbours");
    begin(COUNT_OF * PAGE);
    fill(memory, COUNT_OF * PAGE, 1);
    mapped_remove(add(memory, PAGE), false);
    before = count_maps();
    for (unsigned i = 0; i < COUNT_OF; i++)
        regions[i] = add(memory + i * PAGE, PAGE);
    /* But for what keeps them from growing. */
    CHECK(count_maps_in(memory, COUNT_OF * PAGE) <= 1 + guards, "%u mappings for neighbours",
          count_maps_in(memory, COUNT_OF * PAGE));
    CHECK(count_maps() <= before + 2 + guards, "%u mappings, %u before", count_maps(), before);
    mapped_count(&counts);
    CHECK(counts.bytes == COUNT_OF * PAGE && counts.maps <= 3 + guards, "counted as one: %u", counts.maps);
    for (unsigned i = 0; i < COUNT_OF; i += 2)
        mapped_remove(regions[i], false);
    for (unsigned i = 1; i < COUNT_OF; i += 2)
        mapped_remove(regions[i], false);
    CHECK(filled(memory, COUNT_OF * PAGE, 1), "contents");
    CHECK(count_maps() == before, "%u mappings, %u before", count_maps(), before);
    mapped_count(&counts);
    CHECK(counts.bytes == 0 && counts.maps == 0, "nothing is left in the books");
}

static void a_region_over_several_mappings(void **state)
{
    char *memory = map(32 * PAGE);
    struct mapped_region *region;
    struct mapped_refusal refusals[8];
    unsigned count;

    begin(32 * PAGE);
    fill(memory, 32 * PAGE, 9);
    mprotect(memory + 8 * PAGE, 2 * PAGE, PROT_READ);
    munmap(memory + 20 * PAGE, PAGE);
    mprotect(memory + 24 * PAGE, PAGE, PROT_NONE);
    mprotect(memory + 28 * PAGE, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    region = mapped_add((uintptr_t)memory, 32 * PAGE, MAPPED_PEERS_WRITE);
    CHECK(mapped_bytes(region) == 27 * PAGE, "%llu pages", (unsigned long long)(mapped_bytes(region) / PAGE));
    count = mapped_refusals(region, refusals, COUNT(refusals));
    CHECK(count == 4, "%u refusals", count);
    CHECK(refusals[0].reason == MAPPED_NOT_WRITABLE && refusals[0].length == 2 * PAGE, "read only");
    CHECK(refusals[1].reason == MAPPED_NOTHING_THERE && refusals[1].length == PAGE, "a hole");
    CHECK(refusals[2].reason == MAPPED_NOT_WRITABLE && refusals[2].length == PAGE, "no access");
    CHECK(refusals[3].reason == MAPPED_EXECUTABLE && refusals[3].length == PAGE, "executable");
    mapped_remove(region, false);
    CHECK(filled(memory, 20 * PAGE, 9), "contents");
    CHECK(!is_shared(memory) && !is_shared(memory + 31 * PAGE), "all is private");
}

static void moving_leaves_an_orphan(void **state)
{
    enum way way = begin(4 << 20);
    size_t length = 1 << 20;
    char *memory = map(length), *old, *now;
    struct mapped_region *region, *part;
    struct mapped_piece before, after[4];
    struct mapped_counts counts;
    struct writers *writers = NULL;

    memset(memory, 0, length);
    region = add(memory, length);
    part = add(memory + length / 2, PAGE);
    CHECK(mapped_pieces(region, &before, 1) == 1, "one piece");
    old = peer_view(region, memory);
    if (way != WAY_ALONE)
        writers = writers_start(memory, length / 2, 2);
    CHECK_ZERO(mapped_move((uintptr_t)memory, length));
    if (writers)
        CHECK(writers_finish(writers, NULL) == 0, "writes are lost");
    CHECK(mapped_pieces(region, after, 4) == 1, "still one piece");
    CHECK(after[0].offset != before.offset && after[0].generation != before.generation &&
              after[0].address == before.address && after[0].length == before.length,
          "at another place");
    memset(memory, 0, length); /* the writers may have left any byte */
    memset(old, 0x55, length); /* an initiator that comes late */
    CHECK(memory[0] != 0x55 && memory[length / 2] != 0x55 && memory[length - 1] != 0x55, "it hits an orphan");
    now = peer_view(region, memory);
    now[length - 1] = 7;
    CHECK(memory[length - 1] == 7, "peers that ask again find the new place");
    mapped_count(&counts);
    CHECK(counts.orphaned == length, "the old place is out of use");
    /* Only a part of it: the region is in three pieces then. */
    CHECK_ZERO(mapped_move((uintptr_t)memory + 4 * PAGE, 2 * PAGE));
    CHECK(mapped_pieces(region, after, 4) == 3, "in three pieces");
    CHECK(after[1].address == (uintptr_t)memory + 4 * PAGE && after[1].length == 2 * PAGE,
          "the one that moved");
    mapped_remove(part, false);
    mapped_remove(region, true);
    CHECK(!is_shared(memory) && memory[length - 1] == 7, "back");
    CHECK(count_maps_in(memory, length) == 1, "one mapping");
    mapped_forget_orphans();
    mapped_count(&counts);
    CHECK(counts.orphaned == 0 && counts.bytes == 0, "nothing left");
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(contents_go_and_come_back, .fars = 0),
        TEST_WITH(only_whole_pages, .fars = 0),
        TEST_WITH(no_write_is_lost, .fars = 0, .seconds = 3600),
        TEST_WITH(no_write_is_lost_over_reregistration, .fars = 0, .seconds = 3600),
        TEST_WITH(system_calls_go_on, .fars = 0, .seconds = 600),
        TEST_WITH(sparse_memory_stays_sparse, .fars = 0),
        TEST_WITH(never_touched_memory, .fars = 0),
        TEST_WITH(nothing_is_left_behind, .fars = 0, .seconds = 3600),
        TEST_WITH(overlapping_regions_count, .fars = 0),
        TEST_WITH(neighbours_become_one_mapping, .fars = 0),
        TEST_WITH(a_region_over_several_mappings, .fars = 0),
        TEST_WITH(moving_leaves_an_orphan, .fars = 0),
    };

    return run_mapped(tests, COUNT(tests), argc, argv);
}
