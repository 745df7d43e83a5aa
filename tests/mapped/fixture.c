/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/maps.h"

static const char *const way_names[] = {
    [WAY_FULL] = "full", [WAY_USER] = "user", [WAY_MINOR] = "minor", [WAY_ALONE] = "alone"};

static enum way way_wanted(void)
{
    const char *text = getenv("SOFTHCA_TEST_SWITCH");

    for (unsigned i = 0; text && i < COUNT(way_names); i++) {
        if (strcmp(text, way_names[i]) == 0)
            return (enum way)i;
    }
    return WAY_USER;
}

static enum way limit_to_way(void)
{
    static const unsigned limits[] = {
        [WAY_FULL] = 0,
        [WAY_USER] = KEEPER_USER_MODE,
        [WAY_MINOR] = KEEPER_USER_MODE | KEEPER_NO_SHARED_PROTECT | KEEPER_SINGLE_MREMAP | KEEPER_READ_MAPS,
        [WAY_ALONE] = KEEPER_NO_UFFD,
    };
    enum way way = way_wanted();

    keeper_limits = limits[way];
    return way;
}

/* NULL: the machine allows it. */
static const char *why_not(enum way way, const struct mapped_means *means)
{
    if (means->reason != MAPPED_YES)
        return mapped_reason_text(means->reason);
    if (way == WAY_FULL && !means->system_calls_wait)
        return "the full userfaultfd takes privileges or vm.unprivileged_userfaultfd=1";
    if (way != WAY_ALONE && means->single_thread)
        return "userfaultfd is not allowed here";
    return NULL;
}

enum way begin(uint64_t bytes)
{
    enum way way = limit_to_way();
    struct mapped_means means;
    const char *reason;

    mapped_probe(&means);
    reason = why_not(way, &means);
    if (reason)
        skip_because("%s", reason);
    if (means.lock_limit < bytes)
        skip_because("RLIMIT_MEMLOCK allows less than %llu KiB", (unsigned long long)bytes / 1024 * 2);
    return way;
}

/* In a child, so that each test starts with nothing. */
static int say_why_not(void)
{
    enum way way = limit_to_way();
    struct mapped_means means;
    const char *reason;

    mapped_probe(&means);
    reason = why_not(way, &means);
    if (reason)
        printf("1..0 # SKIP %s\n", reason);
    fflush(stdout);
    return reason != NULL;
}

int run_mapped(const struct test *tests, size_t count, int argc, char **argv)
{
    int status = 0;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(say_why_not());
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
        return 0;
    return run_topic(tests, count, argc, argv);
}

char *map_with(size_t length, int protection, int flags)
{
    char *memory = mmap(NULL, length, protection, MAP_ANONYMOUS | flags, -1, 0);

    CHECK(memory != MAP_FAILED, "mmap of %zu bytes: %m", length);
    return memory;
}

char *map(size_t length)
{
    return map_with(length, PROT_READ | PROT_WRITE, MAP_PRIVATE);
}

static char pattern(size_t at, unsigned seed)
{
    return (char)(seed + at * 7 + (at >> 12));
}

void fill(char *memory, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        memory[i] = pattern(i, seed);
}

bool filled(const char *memory, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++) {
        if (memory[i] != pattern(i, seed)) {
            fprintf(stderr, "byte %zu of %zu is %#x, not %#x\n", i, length, (unsigned char)memory[i],
                    (unsigned char)pattern(i, seed));
            return false;
        }
    }
    return true;
}

uint64_t mapped_bytes(const struct mapped_region *region)
{
    struct mapped_piece pieces[256];
    unsigned count = mapped_pieces(region, pieces, COUNT(pieces));
    uint64_t bytes = 0;

    for (unsigned i = 0; i < count; i++)
        bytes += pieces[i].length;
    return bytes;
}

static enum mapped_reason first_reason(const struct mapped_region *region)
{
    struct mapped_refusal refusal = {.reason = MAPPED_YES};

    mapped_refusals(region, &refusal, 1);
    return refusal.reason;
}

struct mapped_region *add(const void *address, size_t length)
{
    struct mapped_region *region =
        mapped_add((uintptr_t)address, length, MAPPED_PEERS_READ | MAPPED_PEERS_WRITE);

    CHECK(region, "no region");
    CHECK(mapped_bytes(region) == length, "%llu of %zu bytes are mapped: %s",
          (unsigned long long)mapped_bytes(region), length, mapped_reason_text(first_reason(region)));
    return region;
}

enum mapped_reason refused(const void *address, size_t length)
{
    struct mapped_region *region =
        mapped_add((uintptr_t)address, length, MAPPED_PEERS_READ | MAPPED_PEERS_WRITE);
    enum mapped_reason reason;

    CHECK(region, "no region");
    CHECK(mapped_bytes(region) == 0, "%llu bytes are mapped", (unsigned long long)mapped_bytes(region));
    reason = first_reason(region);
    mapped_remove(region, false);
    return reason;
}

char *peer_view(const struct mapped_region *region, const void *address)
{
    struct mapped_piece pieces[256];
    unsigned count = mapped_pieces(region, pieces, COUNT(pieces));

    for (unsigned i = 0; i < count; i++) {
        const struct mapped_piece *piece = &pieces[i];
        uint64_t at = (uintptr_t)address - piece->address;
        struct mapped_file_description description;
        struct mapped_file *file;
        struct mapped_view *view;
        int fd, error = 0;

        if ((uintptr_t)address < piece->address || at >= piece->length)
            continue;
        CHECK_ZERO(mapped_file_describe(piece->file, &description));
        fd = mapped_file_open(piece->file, true);
        CHECK(fd >= 0, "file %u does not open: %s", piece->file, strerror(-fd));
        file = mapped_file_accept(fd, &description, true, true, &error);
        CHECK(file, "file %u is not accepted: %s", piece->file, strerror(-error));
        close(fd);
        view = mapped_attach(file, piece->offset, piece->length, &error);
        CHECK(view, "no view: %s", strerror(-error));
        return mapped_view_address(view, piece->offset + at);
    }
    complain(__FILE__, __LINE__, "nothing is mapped at %p", address);
}

bool is_shared(const void *address)
{
    struct maps maps;
    struct mapping mapping = {0};

    CHECK_ZERO(maps_open(&maps));
    CHECK_ZERO(maps_find(&maps, (uintptr_t)address, &mapping));
    maps_close(&maps);
    CHECK(mapping.start <= (uintptr_t)address, "nothing is mapped at %p", address);
    return mapping.shared;
}

unsigned count_maps_in(const void *address, size_t length)
{
    uintptr_t end = (uintptr_t)address + length;
    struct maps maps;
    struct mapping mapping;
    unsigned count = 0;

    CHECK_ZERO(maps_open(&maps));
    for (uintptr_t next = (uintptr_t)address; maps_find(&maps, next, &mapping) == 0 && mapping.start < end;
         next = mapping.end)
        count++;
    maps_close(&maps);
    return count;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

bool sanitized(void)
{
#ifdef SANITIZED
    return true;
#else
    return false;
#endif
}

/* A sanitizer maps memory whenever it likes. */
unsigned count_maps(void)
{
    if (sanitized())
        return 0;
    return count_maps_in(NULL, SIZE_MAX);
}

unsigned count_fds(void)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned count = 0;

    CHECK(directory, "/proc/self/fd: %m");
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

uint64_t arena_blocks(void)
{
    uint64_t bytes = 0;

    for (int i = 0; i < KEEPER_ARENAS; i++) {
        int fd = keeper_open(keeper.arena[i], O_RDONLY);
        struct stat file;

        CHECK(fd >= 0 && fstat(fd, &file) == 0, "arena %d: %d", i, fd);
        bytes += (uint64_t)file.st_blocks * 512;
        close(fd);
    }
    return bytes;
}

bool is_resident(const void *address)
{
    unsigned char resident = 0;

    CHECK(mincore((void *)((uintptr_t)address & ~(PAGE - 1)), PAGE, &resident) == 0, "mincore: %m");
    return resident & 1;
}

unsigned cycles(unsigned normal, unsigned thorough)
{
    unsigned wanted = long_tests() ? thorough : normal;

    return wanted / slowness() ? wanted / slowness() : 1;
}

static bool maps_are_read(void)
{
    struct mapping mapping;
    struct maps maps;

    if (way_wanted() == WAY_MINOR)
        return true;
    CHECK_ZERO(maps_open(&maps));
    CHECK_ZERO(maps_find(&maps, 0, &mapping));
    maps_close(&maps);
    return !maps.by_query;
}

unsigned many_regions(unsigned normal, unsigned thorough)
{
    unsigned wanted = cycles(normal, thorough);

    return maps_are_read() ? min_of(wanted, 1000u) : wanted;
}

/* --- writers ----------------------------------------------------------------------------------------- */

enum { WRITERS_MAX = 8 };

struct writer {
    struct writers *writers;
    unsigned number;
    uint32_t *counts; /* of the words that are this writer's: number, number + threads, ... */
    pthread_t thread;
};

struct writers {
    uint64_t *words;
    size_t count;
    unsigned threads;
    atomic_bool stop;
    atomic_uint running;
    struct writer writer[WRITERS_MAX];
};

static void *write_words(void *argument)
{
    struct writer *self = argument;
    struct writers *writers = self->writers;
    size_t mine = writers->count / writers->threads;
    uint64_t random = self->number * 7919u + 1;

    atomic_fetch_add(&writers->running, 1);
    while (!atomic_load_explicit(&writers->stop, memory_order_relaxed)) {
        for (int i = 0; i < 32; i++) {
            size_t at;
            volatile uint64_t *word;

            random = random * 6364136223846793005u + 1442695040888963407u;
            at = (random >> 33) % mine;
            word = &writers->words[at * writers->threads + self->number];
            *word = *word + 1; /* no atomic instruction: as programs write */
            self->counts[at]++;
        }
    }
    return NULL;
}

struct writers *writers_start(void *memory, size_t length, unsigned threads)
{
    struct writers *writers = calloc(1, sizeof *writers);

    writers->words = memory;
    writers->count = length / sizeof(uint64_t);
    writers->threads = threads;
    for (unsigned i = 0; i < threads; i++) {
        struct writer *writer = &writers->writer[i];

        *writer = (struct writer){.writers = writers, .number = i};
        writer->counts = calloc(writers->count / threads + 1, sizeof(uint32_t));
        CHECK_ZERO(pthread_create(&writer->thread, NULL, write_words, writer));
    }
    while (atomic_load(&writers->running) < threads)
        sched_yield();
    return writers;
}

uint64_t writers_finish(struct writers *writers, uint64_t *ret_total)
{
    uint64_t lost = 0, total = 0;

    atomic_store(&writers->stop, true);
    for (unsigned i = 0; i < writers->threads; i++)
        pthread_join(writers->writer[i].thread, NULL);
    for (unsigned i = 0; i < writers->threads; i++) {
        struct writer *writer = &writers->writer[i];

        for (size_t at = 0; at < writers->count / writers->threads; at++) {
            total += writer->counts[at];
            lost += writer->counts[at] - writers->words[at * writers->threads + i];
        }
        free(writer->counts);
    }
    free(writers);
    if (ret_total)
        *ret_total = total;
    return lost;
}
