/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Children: those of fork() have private copies, those of a raw clone() do not have the memory, those that
 * execute something else have nothing of ours. */
#include "fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void install_handlers(void)
{
    CHECK_ZERO(pthread_atfork(mapped_fork_prepare, mapped_fork_parent, mapped_fork_child));
}

/* In a child: its exit status says where it went wrong. */
#define EXPECT(condition)                                                                                    \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "child: %s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                   \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

static void expect_success(pid_t child)
{
    int status = 0;

    CHECK(child > 0, "fork: %m");
    CHECK(waitpid(child, &status, 0) == child, "waitpid: %m");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %#x", (unsigned)status);
}

static bool accessible(char *address)
{
    static int pipes[2];

    if (!pipes[1] && pipe(pipes) != 0)
        return false;
    return write(pipes[1], address, 1) == 1;
}

static void children_have_private_copies(void **state)
{
    char *memory = map(32 * PAGE), *inside = memory + PAGE;
    struct mapped_region *region;
    unsigned before, rounds = 3;
    char *peer;

    begin(40 * PAGE);
    install_handlers();
    fill(memory, 32 * PAGE, 1);
    region = add(inside, 24 * PAGE);
    peer = peer_view(region, inside);
    before = count_maps();
    for (unsigned i = 0; i < rounds; i++) {
        int to_child[2], from_child[2];
        char byte = 0;
        pid_t child;

        CHECK(pipe(to_child) == 0 && pipe(from_child) == 0, "pipe: %m");
        child = fork();
        if (child == 0) {
            EXPECT(filled(memory, 32 * PAGE, 1));
            EXPECT(!is_shared(inside) && !is_shared(inside + 24 * PAGE - 1));
            EXPECT(count_maps_in(memory, 32 * PAGE) <= 3); /* each of its own origin now */
            memset(inside, 'c', 24 * PAGE);
            EXPECT(write(from_child[1], "1", 1) == 1);
            EXPECT(read(to_child[0], &byte, 1) == 1); /* the parent has written to its own */
            EXPECT(inside[0] == 'c' && inside[24 * PAGE - 1] == 'c');
            _exit(0);
        }
        close(from_child[1]);
        CHECK(read(from_child[0], &byte, 1) == 1, "the child says nothing");
        CHECK(filled(memory, 32 * PAGE, 1), "what the child writes is not seen here");
        CHECK(is_shared(inside), "here it is mapped as before");
        peer[0] = 'p';
        CHECK(inside[0] == 'p', "and reached by peers");
        fill(memory, 32 * PAGE, 1);
        memset(inside, 'x', PAGE);
        fill(memory, 32 * PAGE, 1);
        CHECK(write(to_child[1], "2", 1) == 1, "write: %m");
        expect_success(child);
        close(to_child[0]);
        close(to_child[1]);
        close(from_child[0]);
        CHECK(count_maps() == before, "%u mappings, %u before", count_maps(), before);
    }
    mapped_remove(region, false);
    CHECK(filled(memory, 32 * PAGE, 1) && count_maps_in(memory, 32 * PAGE) == 1, "contents");
}

static void children_begin_anew(void **state)
{
    char *memory = map(16 * PAGE);
    struct mapped_region *region;
    enum way way = begin(16 * PAGE);
    unsigned fds;
    pid_t child;

    (void)way;
    install_handlers();
    fill(memory, 16 * PAGE, 1);
    region = add(memory, 16 * PAGE);
    fds = count_fds();
    child = fork();
    if (child == 0) {
        struct mapped_region *own;
        struct mapped_counts counts;
        struct mapped_piece piece;
        pid_t grandchild;

        EXPECT(count_fds() == fds);
        EXPECT(mapped_pieces(region, &piece, 1) == 0);
        mapped_remove(region, false); /* of the parent: void */
        mapped_count(&counts);
        EXPECT(counts.bytes == 0);
        own = mapped_add((uintptr_t)memory, 16 * PAGE, MAPPED_PEERS_WRITE);
        EXPECT(mapped_bytes(own) == 16 * PAGE && filled(memory, 16 * PAGE, 1));
        memory[0] = 'c';
        grandchild = fork();
        if (grandchild == 0) {
            EXPECT(memory[0] == 'c' && !is_shared(memory));
            memory[0] = 'g';
            _exit(0);
        }
        expect_success(grandchild);
        EXPECT(memory[0] == 'c');
        mapped_remove(own, false);
        EXPECT(memory[0] == 'c' && !is_shared(memory));
        _exit(0);
    }
    expect_success(child);
    CHECK(filled(memory, 16 * PAGE, 1) && is_shared(memory), "nothing changed here");
    mapped_remove(region, false);
}

static void protections_and_gaps_are_inherited(void **state)
{
    char *memory = map(16 * PAGE);
    struct mapped_region *region;
    pid_t child;

    begin(16 * PAGE);
    install_handlers();
    fill(memory, 16 * PAGE, 1);
    region = add(memory, 16 * PAGE);
    CHECK_ZERO(mprotect(memory + 2 * PAGE, PAGE, PROT_READ));
    CHECK_ZERO(mprotect(memory + 5 * PAGE, PAGE, PROT_NONE));
    child = fork();
    if (child == 0) {
        EXPECT(accessible(memory + 2 * PAGE) && !accessible(memory + 5 * PAGE) && accessible(memory));
        EXPECT(read(open("/dev/zero", O_RDONLY), memory + 2 * PAGE, 1) == -1 && errno == EFAULT);
        EXPECT(mprotect(memory, 16 * PAGE, PROT_READ | PROT_WRITE) == 0);
        EXPECT(filled(memory, 16 * PAGE, 1));
        _exit(0);
    }
    expect_success(child);
    /* Memory that the program has freed since is not there in the child either, and what took its place is.
     */
    munmap(memory + 8 * PAGE, 4 * PAGE);
    CHECK(mmap(memory + 8 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) != MAP_FAILED,
          "mmap: %m");
    memory[8 * PAGE] = 'n';
    child = fork();
    if (child == 0) {
        EXPECT(memory[8 * PAGE] == 'n' && !accessible(memory + 9 * PAGE));
        memory[8 * PAGE] = 'c';
        _exit(0);
    }
    expect_success(child);
    CHECK(memory[8 * PAGE] == 'n', "the child's own");
    mapped_remove(region, false);
    CHECK(memory[8 * PAGE] == 'n', "contents");
}

static char *seen_by_handler;
static char handler_saw;

static void early_child_handler(void)
{
    handler_saw = seen_by_handler[0];
}

static void handlers_of_the_program_find_their_memory(void **state)
{
    char *memory = map(4 * PAGE);
    pid_t child;

    begin(4 * PAGE);
    seen_by_handler = memory;
    CHECK_ZERO(pthread_atfork(NULL, NULL, early_child_handler)); /* runs before ours */
    install_handlers();
    memory[0] = 'm';
    add(memory, 4 * PAGE);
    child = fork();
    if (child == 0) {
        EXPECT(handler_saw == 'm');
        _exit(0);
    }
    expect_success(child);
}

static char *of_handlers;
static struct mapped_region *removed_by[3];

static void remove_in_prepare(void)
{
    mapped_remove(removed_by[0], false);
}

static void remove_in_parent(void)
{
    mapped_remove(removed_by[1], false);
}

static void remove_in_child(void)
{
    mapped_remove(removed_by[2], false);
    mapped_remove(mapped_add((uintptr_t)of_handlers, PAGE, MAPPED_PEERS_WRITE), false);
}

static void handlers_of_the_program_deregister(void **state)
{
    char *memory = map(12 * PAGE);
    struct mapped_counts counts;
    struct mapped_region *region;
    pid_t child;

    begin(12 * PAGE);
    CHECK_ZERO(pthread_atfork(remove_in_prepare, remove_in_parent, remove_in_child)); /* inside of ours */
    install_handlers();
    fill(memory, 12 * PAGE, 1);
    of_handlers = memory;
    for (unsigned i = 0; i < 3; i++)
        removed_by[i] = add(memory + 4 * i * PAGE, 4 * PAGE);
    child = fork();
    if (child == 0) {
        EXPECT(filled(memory, 12 * PAGE, 1) && !is_shared(memory) && !is_shared(memory + 4 * PAGE) &&
               !is_shared(memory + 8 * PAGE));
        _exit(0);
    }
    expect_success(child);
    CHECK(!is_shared(memory) && !is_shared(memory + 4 * PAGE) && is_shared(memory + 8 * PAGE),
          "one of three is left");
    CHECK(filled(memory, 12 * PAGE, 1), "contents");
    mapped_remove(removed_by[2], false);
    mapped_count(&counts);
    CHECK(counts.bytes == 0, "%llu bytes left", (unsigned long long)counts.bytes);
    region = add(memory, 12 * PAGE);
    mapped_remove(region, false);
    CHECK(filled(memory, 12 * PAGE, 1) && count_maps_in(memory, 12 * PAGE) == 1, "contents");
}

static void forks_while_others_write_and_register(void **state)
{
    enum way way = begin(4 << 20);
    size_t length = 1 << 20;
    char *memory = map(2 * length);
    struct writers *writers;
    struct mapped_region *region;
    uint64_t lost;

    if (way == WAY_ALONE)
        skip_because("several threads");
    install_handlers();
    memset(memory, 0, 2 * length);
    region = add(memory, length);
    writers = writers_start(memory, 2 * length, 2);
    for (unsigned i = 0; i < cycles(30, 1000); i++) {
        pid_t child = fork();

        if (child == 0) {
            volatile char *word = memory + (i * 64) % length;
            char was = *word;

            for (int k = 0; k < 1000; k++)
                EXPECT(*word == was); /* nobody writes here any more */
            _exit(0);
        }
        mapped_remove(add(memory + length / 2, length), false);
        expect_success(child);
    }
    lost = writers_finish(writers, NULL);
    CHECK(lost == 0, "%llu writes are lost", (unsigned long long)lost);
    mapped_remove(region, false);
    CHECK(count_maps_in(memory, 2 * length) == 1, "one mapping");
}

/* Every second of them has ended, and some of those wait for their neighbours. */
static void children_of_many_regions(void **state)
{
    unsigned count = many_regions(12000, 100000), before;
    struct mapped_region **regions = calloc(count, sizeof *regions);
    char *memory = map(count * PAGE);
    pid_t child;

    if (sanitized())
        skip_because("a sanitizer's mappings are among those that are counted");
    begin(count * PAGE);
    install_handlers();
    for (unsigned i = 0; i < count; i++) {
        memory[i * PAGE] = (char)i;
        regions[i] = add(memory + i * PAGE, PAGE);
    }
    for (unsigned i = 0; i < count; i += 2) {
        mapped_remove(regions[i], false);
        regions[i] = NULL;
    }
    before = count_maps();
    child = fork();
    if (child == 0) {
        for (unsigned i = 0; i < count; i++)
            EXPECT(memory[i * PAGE] == (char)i);
        EXPECT(count_maps() <= before);
        memset(memory, 'c', count * PAGE);
        _exit(0);
    }
    expect_success(child);
    CHECK(count_maps() <= before, "%u mappings, %u before", count_maps(), before);
    for (unsigned i = 0; i < count; i++) {
        mapped_remove(regions[i], false);
        CHECK(memory[i * PAGE] == (char)i, "page %u", i);
    }
    CHECK(count_maps_in(memory, count * PAGE) == 1, "in pieces");
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
    free(regions);
}

static void raw_clones_do_not_share(void **state)
{
    char *memory = map(4 * PAGE);
    struct mapped_region *region;
    pid_t child;

    begin(4 * PAGE);
    fill(memory, 4 * PAGE, 1);
    region = add(memory, 4 * PAGE);
    CHECK(accessible(memory), "here it is");
    child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0)
        _exit(accessible(memory) ? 1 : 0);
    expect_success(child);
    mapped_remove(region, false);
    child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0)
        _exit(accessible(memory) ? 0 : 1);
    expect_success(child);
}

static void spawned_programs(void **state)
{
    char *memory = map(16 * PAGE), *argv[] = {"true", NULL}, *envp[] = {NULL};
    struct mapped_region *region;
    pid_t child;

    begin(16 * PAGE);
    install_handlers();
    fill(memory, 16 * PAGE, 1);
    region = add(memory, 16 * PAGE);
    CHECK_ZERO(posix_spawn(&child, "/bin/true", NULL, NULL, argv, envp));
    expect_success(child);
    child = vfork();
    if (child == 0) {
        execve("/bin/true", argv, envp);
        _exit(1);
    }
    expect_success(child);
    child = fork();
    if (child == 0) {
        execve("/bin/true", argv, envp);
        _exit(1);
    }
    expect_success(child);
    CHECK(is_shared(memory) && filled(memory, 16 * PAGE, 1), "nothing changed here");
    mapped_remove(region, false);
}

static void sparse_memory_is_not_copied(void **state)
{
    size_t length = (size_t)16 << 30;
    char *memory;
    struct mapped_region *region;
    pid_t child;

    begin(length);
    install_handlers();
    memory = map_with(length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
    memory[0] = 1;
    memory[length - 1] = 2;
    region = add(memory, length);
    child = fork();
    if (child == 0) {
        EXPECT(memory[0] == 1 && memory[length - 1] == 2);
        EXPECT(!is_resident(memory + length / 2));
        _exit(0);
    }
    expect_success(child);
    mapped_remove(region, false);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(children_have_private_copies, .fars = 0),
        TEST_WITH(children_begin_anew, .fars = 0),
        TEST_WITH(protections_and_gaps_are_inherited, .fars = 0),
        TEST_WITH(handlers_of_the_program_find_their_memory, .fars = 0),
        TEST_WITH(handlers_of_the_program_deregister, .fars = 0),
        TEST_WITH(forks_while_others_write_and_register, .fars = 0, .seconds = 1200),
        TEST_WITH(children_of_many_regions, .fars = 0, .seconds = 1200),
        TEST_WITH(raw_clones_do_not_share, .fars = 0),
        TEST_WITH(spawned_programs, .fars = 0),
        TEST_WITH(sparse_memory_is_not_copied, .fars = 0),
    };

    return run_mapped(tests, COUNT(tests), argc, argv);
}
