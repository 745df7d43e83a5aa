/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is refused, and that a refusal changes nothing: limits of the machine, of the process and of its
 * sandbox, and failures at every step. */
#include "base/newer_kernel.h"
#include "fixture.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* --- failures ---------------------------------------------------------------------------------------- */

static void every_step_may_fail(void **state)
{
    enum way way = begin(1 << 20);
    size_t length = 40 * PAGE;
    char *memory = map(length + 2 * PAGE), *inside = memory + PAGE;
    struct writers *writers = NULL;
    struct mapped_counts counts;
    uint64_t lost = 0;
    unsigned before;

    memset(memory, 0, length + 2 * PAGE);
    if (way != WAY_ALONE)
        writers = writers_start(inside, length, 2);
    mapped_remove(add(inside, length), false);
    before = count_maps();
    for (unsigned step = 1;; step++) {
        struct mapped_region *region;
        bool failed;

        keeper_fail_in = step;
        region = mapped_add((uintptr_t)inside, length, MAPPED_PEERS_WRITE);
        CHECK(region, "no region");
        mapped_move((uintptr_t)inside, length);
        mapped_remove(region, false);
        failed = keeper_fail_in == 0;
        keeper_fail_in = 0;
        /* What could not go back goes at the next opportunity. */
        mapped_remove(add(inside, PAGE), false);
        mapped_forget_orphans();
        mapped_count(&counts);
        CHECK(counts.bytes == 0 && counts.lingering == 0, "step %u: %llu bytes are left", step,
              (unsigned long long)counts.bytes);
        CHECK(!is_shared(inside) && !is_shared(inside + length - 1), "step %u: still shared", step);
        CHECK(count_maps_in(memory, length + 2 * PAGE) == 1, "step %u: %u mappings of one", step,
              count_maps_in(memory, length + 2 * PAGE));
        CHECK(count_maps() <= before, "step %u: %u mappings, %u before", step, count_maps(), before);
        if (!failed)
            break;
    }
    if (writers)
        lost = writers_finish(writers, NULL);
    CHECK(lost == 0, "%llu writes are lost", (unsigned long long)lost);
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
}

/* --- mappings ---------------------------------------------------------------------------------------- */

static unsigned max_map_count(void)
{
    FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
    unsigned count = 0;

    CHECK(file && fscanf(file, "%u", &count) == 1, "max_map_count");
    fclose(file);
    return count;
}

static void pages_far_apart(void **state)
{
    unsigned count = many_regions(20000, 100000), limit = max_map_count(), taken = 0, before;
    struct mapped_region **regions = calloc(count, sizeof *regions);
    char *memory = map_with(2 * count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE), *own;

    if (sanitized())
        skip_because("a sanitizer's mappings are among those that are counted");
    begin(count * PAGE);
    mapped_remove(add(memory, PAGE), false);
    before = count_maps();
    for (unsigned i = 0; i < count; i++) {
        memory[2 * i * PAGE] = (char)i;
        regions[i] = mapped_add((uintptr_t)memory + 2 * i * PAGE, PAGE, MAPPED_PEERS_WRITE);
        if (mapped_bytes(regions[i])) {
            taken++;
        } else {
            struct mapped_refusal refusal;

            CHECK(mapped_refusals(regions[i], &refusal, 1) == 1 && refusal.reason == MAPPED_MAP_LIMIT, "%s",
                  mapped_reason_text(refusal.reason));
        }
    }
    CHECK(taken > min_of(limit / 16, count - 1) && taken <= limit / 8, "%u pages of %u", taken, count);
    CHECK(count_maps() < before + limit / 4 + 16, "%u mappings, %u before", count_maps(), before);
    own = map(PAGE); /* the program goes on */
    CHECK_ZERO(mprotect(own, PAGE, PROT_READ));
    munmap(own, PAGE);
    for (unsigned i = 0; i < count; i++) {
        mapped_remove(regions[i], false);
        CHECK(memory[2 * i * PAGE] == (char)i, "page %u", i);
    }
    CHECK(count_maps_in(memory, 2 * count * PAGE) == 1, "in pieces");
    CHECK(count_maps() <= before + 2, "%u mappings, %u before", count_maps(), before); /* malloc's, too */
    CHECK(arena_blocks() == 0, "%llu bytes left in the arenas", (unsigned long long)arena_blocks());
    free(regions);
}

static void expect_pages(const char *memory, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        CHECK(memory[i * PAGE] == (char)i, "page %u", i);
}

/* Given back in no order, they would be more mappings than a process may have. */
static void pages_side_by_side(void **state)
{
    unsigned count = many_regions(12000, 100000), limit = max_map_count() / 4, guards, taken = 0, before;
    struct mapped_region **regions = calloc(count, sizeof *regions);
    struct mapped_counts counts;
    char *memory = map(count * PAGE);

    if (sanitized())
        skip_because("a sanitizer's mappings are among those that are counted");
    begin(count * PAGE);
    mapped_remove(add(memory, PAGE), false);
    before = count_maps();
    for (unsigned i = 0; i < count; i++) {
        memory[i * PAGE] = (char)i;
        regions[i] = mapped_add((uintptr_t)memory + i * PAGE, PAGE, MAPPED_PEERS_WRITE);
        taken += mapped_bytes(regions[i]) != 0;
    }
    CHECK(taken == count, "%u of %u are mapped", taken, count);
    guards = 2 * (unsigned)(count * PAGE >> 17); /* two for each page that keeps them from growing */
    CHECK(count_maps() <= before + 4 + guards, "%u mappings, %u before", count_maps(), before);
    for (unsigned i = 0; i < count; i += 2) {
        mapped_remove(regions[i], false);
        regions[i] = NULL;
    }
    expect_pages(memory, count);
    CHECK(count_maps() <= before + max_of(limit, guards) + limit / 64, "%u mappings, %u before", count_maps(),
          before);
    mapped_count(&counts);
    CHECK(counts.lingering > 0 || count / 2 * 3 <= limit, "nothing had to wait");
    for (unsigned i = 0; i < count; i += 8) { /* some come back */
        regions[i] = mapped_add((uintptr_t)memory + i * PAGE, PAGE, MAPPED_PEERS_WRITE);
        taken += mapped_bytes(regions[i]) != 0;
    }
    CHECK(taken > count, "none came back");
    for (unsigned i = 0; i < count; i++)
        memory[i * PAGE]++;
    for (unsigned i = 0; i < count; i++) {
        unsigned other = (unsigned)((i * 2654435761ull) % count); /* in no order */

        mapped_remove(regions[other], false);
        regions[other] = NULL;
    }
    for (unsigned i = 0; i < count; i++)
        mapped_remove(regions[i], false);
    for (unsigned i = 0; i < count; i++)
        memory[i * PAGE]--;
    expect_pages(memory, count);
    CHECK(count_maps_in(memory, count * PAGE) == 1, "in pieces");
    CHECK(count_maps() <= before + 2, "%u mappings, %u before", count_maps(), before);
    mapped_count(&counts);
    CHECK(counts.bytes == 0 && arena_blocks() == 0, "%llu bytes left, %llu in the arenas",
          (unsigned long long)counts.bytes, (unsigned long long)arena_blocks());
    free(regions);
}

static void the_program_needs_the_mappings(void **state)
{
    unsigned limit = max_map_count(), count = limit / 8 * 7;
    char *memory = map(8 * PAGE), *area;

    begin(8 * PAGE);
    area = map_with(count * PAGE, PROT_READ, MAP_PRIVATE | MAP_NORESERVE);
    for (unsigned i = 0; i < count; i += 2)
        CHECK(mprotect(area + i * PAGE, PAGE, PROT_NONE) == 0, "mprotect: %m");
    CHECK(refused(memory, 8 * PAGE) == MAPPED_MAP_LIMIT, "there are %u of %u", count_maps(), limit);
}

static void too_many_pieces(void **state)
{
    enum { PAGES = 2000 };
    char *memory = map(PAGES * PAGE);
    struct mapped_refusal refusals[PAGES];
    struct mapped_region *region;
    unsigned count, many = 0;

    begin(PAGES * PAGE);
    fill(memory, PAGES * PAGE, 1);
    for (unsigned i = 1; i < PAGES; i += 2)
        CHECK_ZERO(mprotect(memory + i * PAGE, PAGE, PROT_READ));
    region = mapped_add((uintptr_t)memory, PAGES * PAGE, MAPPED_PEERS_WRITE);
    CHECK(mapped_bytes(region) == 256 * PAGE, "%llu pages",
          (unsigned long long)(mapped_bytes(region) / PAGE));
    count = mapped_refusals(region, refusals, PAGES);
    for (unsigned i = 0; i < count; i++)
        many += refusals[i].reason == MAPPED_PIECES;
    CHECK(count <= 256 && many > 0, "%u refusals, %u of them for this", count, many);
    mapped_remove(region, false);
    CHECK(filled(memory, PAGES * PAGE, 1), "contents");
}

/* --- limits of the process --------------------------------------------------------------------------- */

static void drop_capability(int capability)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    CHECK(syscall(SYS_capget, &header, data) == 0, "capget: %m");
    data[capability / 32].effective &= ~(1u << (capability % 32));
    CHECK(syscall(SYS_capset, &header, data) == 0, "capset: %m");
}

static void locked_memory_is_limited(void **state)
{
    struct rlimit limit = {1 << 20, 1 << 20};
    char *memory = map(2 << 20);
    struct mapped_region *one, *other;

    drop_capability(CAP_IPC_LOCK);
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit: %m");
    begin(1 << 18);
    fill(memory, 2 << 20, 1);
    CHECK(refused(memory, 1 << 20) == MAPPED_LOCK_LIMIT, "half of it is the program's");
    one = add(memory, 1 << 18);
    other = add(memory + (1 << 18), 1 << 18);
    CHECK(refused(memory + (1 << 19), PAGE) == MAPPED_LOCK_LIMIT, "no more");
    mapped_remove(add(memory, 1 << 19), false); /* what is mapped already costs nothing */
    CHECK(mlock(memory + (1 << 20), 1 << 19) == 0, "mlock by the program: %m");
    mapped_remove(one, false);
    mapped_remove(add(memory + (1 << 20), 1 << 18), false); /* locked by the program: costs nothing, too */
    CHECK(munlock(memory + (1 << 20), 1 << 19) == 0, "munlock: %m");
    one = add(memory + (1 << 19), 1 << 18);
    mapped_remove(one, false);
    mapped_remove(other, false);
    CHECK(filled(memory, 2 << 20, 1), "contents");
}

static void files_are_limited(void **state)
{
    struct rlimit limit = {1 << 20, 1 << 20};

    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit: %m");
    CHECK(refused(map(4 * PAGE), 4 * PAGE) == MAPPED_FILE_LIMIT, "RLIMIT_FSIZE");
}

static void address_space_is_limited(void **state)
{
    size_t length = (size_t)256 << 20;
    char *memory = map(length);
    struct rlimit limit;
    unsigned long pages;
    FILE *file;

    begin(length);
    mapped_remove(add(memory, 4 * PAGE), false);
    file = fopen("/proc/self/statm", "re");
    CHECK(fscanf(file, "%lu", &pages) == 1, "statm");
    fclose(file);
    limit.rlim_cur = limit.rlim_max = pages * PAGE + (64 << 20);
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit: %m");
    CHECK(refused(memory, length) == MAPPED_NO_MEMORY, "RLIMIT_AS");
    CHECK(count_maps_in(memory, length) == 1 && !is_shared(memory), "as it was");
    mapped_remove(add(memory, 64 * PAGE), false);
}

static void threads_matter_without_userfaultfd_only(void **state)
{
    enum way way = begin(64 * PAGE);
    char *memory = map(64 * PAGE);
    struct writers *writers;

    memset(memory, 0, 64 * PAGE);
    writers = writers_start(memory, 32 * PAGE, 1);
    if (way == WAY_ALONE)
        CHECK(refused(memory, 64 * PAGE) == MAPPED_THREADS, "another thread writes");
    else
        mapped_remove(add(memory, 64 * PAGE), false);
    CHECK(writers_finish(writers, NULL) == 0, "writes are lost");
    mapped_remove(add(memory, 64 * PAGE), false);
}

static pid_t our_thread;
static unsigned pauses, resumes;

static bool is_our_thread(pid_t thread)
{
    return thread == our_thread;
}

static void pause_it(void)
{
    pauses++;
}

static void resume_it(void)
{
    resumes++;
}

static void *wait_for_the_end(void *argument)
{
    atomic_int *stage = argument;

    our_thread = (pid_t)syscall(SYS_gettid);
    atomic_store(stage, 1);
    while (atomic_load(stage) == 1)
        sched_yield();
    return NULL;
}

static void threads_of_ours_are_paused(void **state)
{
    static const struct mapped_ports ports = {is_our_thread, pause_it, resume_it};
    enum way way = begin(64 * PAGE);
    char *memory = map(64 * PAGE);
    struct mapped_region *region;
    atomic_int stage = 0;
    pthread_t thread;

    if (way != WAY_ALONE)
        skip_because("a matter of switching without userfaultfd");
    CHECK_ZERO(pthread_create(&thread, NULL, wait_for_the_end, &stage));
    while (atomic_load(&stage) == 0)
        sched_yield();
    CHECK(refused(memory, 64 * PAGE) == MAPPED_THREADS, "not known as ours");
    mapped_set_ports(&ports);
    region = add(memory, 64 * PAGE);
    CHECK(pauses == 1 && resumes == 1, "paused %u times, resumed %u times", pauses, resumes);
    mapped_remove(region, false);
    CHECK(pauses == 2 && resumes == 2, "paused %u times, resumed %u times", pauses, resumes);
    atomic_store(&stage, 2);
    pthread_join(thread, NULL);
}

/* --- portions ------------------------------------------------------------------------------------------ */

enum { PORTION = 16384 };

static struct {
    uint64_t start, end;  /* the one that is being switched; 0: none */
    uint64_t next;        /* where the next one begins */
    unsigned count, most; /* how many have begun; how many may */
} portion;

static bool before_portion(uint64_t start, uint64_t end)
{
    CHECK(!portion.start && start == portion.next && start < end &&
              end - start <= (uint64_t)(PORTION > PAGE ? PORTION : PAGE) &&
              (end - 1) / PORTION == start / PORTION,
          "portion %u", portion.count);
    portion.start = start;
    portion.end = end;
    return portion.count++ < portion.most;
}

static void after_portion(uint64_t start, uint64_t end)
{
    CHECK(start == portion.start && end == portion.end, "after another portion");
    portion.next = end;
    portion.start = portion.end = 0;
}

static void memory_is_switched_in_portions(void **state)
{
    static const struct mapped_ports ports = {is_our_thread, pause_it, resume_it};
    static const struct mapped_portions portions = {
        .size = PORTION, .before = before_portion, .after = after_portion};
    enum way way = begin(64 * PAGE);
    char *memory = map(64 * PAGE);
    struct mapped_region *region;
    struct mapped_refusal refusal;
    struct mapped_piece piece = {0};

    memset(memory, 'x', 64 * PAGE);
    if (way == WAY_ALONE)
        mapped_set_ports(&ports);
    portion.next = (uintptr_t)memory;
    portion.most = UINT_MAX;
    region = mapped_add_in_portions((uintptr_t)memory, 64 * PAGE, MAPPED_PEERS_READ | MAPPED_PEERS_WRITE,
                                    &portions);
    CHECK(portion.next == (uintptr_t)memory + 64 * PAGE && !portion.start, "not all of it");
    CHECK(portion.count >= 64 * PAGE / PORTION && (way != WAY_ALONE || pauses == portion.count) &&
              pauses == resumes,
          "%u portions, %u pauses", portion.count, pauses);
    CHECK(mapped_pieces(region, &piece, 1) == 1 && piece.length == 64 * PAGE, "one piece");
    mapped_remove(region, false);

    /* Who says no ends the region there. */
    portion.next = (uintptr_t)memory;
    portion.most = 3;
    portion.count = 0;
    region = mapped_add_in_portions((uintptr_t)memory, 64 * PAGE, MAPPED_PEERS_READ | MAPPED_PEERS_WRITE,
                                    &portions);
    CHECK(portion.count == 4 && !portion.start, "%u portions", portion.count);
    CHECK(mapped_pieces(region, &piece, 1) == 1 && piece.address == (uintptr_t)memory &&
              piece.length < 64 * PAGE,
          "one piece");
    CHECK(mapped_refusals(region, &refusal, 1) == 1 && refusal.reason == MAPPED_PUT_OFF, "put off");
    for (size_t at = 0; at < 64 * PAGE; at++)
        CHECK(memory[at] == 'x', "byte %zu", at);
    mapped_remove(region, false);
}

/* --- switched off, tools, sandboxes ------------------------------------------------------------------ */

static void switched_off(void **state)
{
    struct mapped_means means;

    setenv("SOFTHCA_MAPPED", "0", 1);
    CHECK(refused(map(4 * PAGE), 4 * PAGE) == MAPPED_OFF, "SOFTHCA_MAPPED=0");
    mapped_probe(&means);
    CHECK(means.reason == MAPPED_OFF, "means");
    CHECK(count_maps_in(NULL, SIZE_MAX) && mapped_file_open(0, true) == -ENOENT, "nothing was started");
}

static void under_valgrind(void **state)
{
    setenv("LD_PRELOAD", "/usr/libexec/valgrind/vgpreload_core-amd64-linux.so", 1);
    CHECK(refused(map(4 * PAGE), 4 * PAGE) == MAPPED_TOOL, "valgrind");
}

/* From now on the call fails with EPERM, as in a container. */
static void forbid(unsigned number)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {COUNT(filter), filter};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        skip_because("seccomp: %s", strerror(errno));
}

static void sandbox_without_userfaultfd(void **state)
{
    char *memory = map(64 * PAGE);
    struct writers *writers;
    struct mapped_means means;

    memset(memory, 0, 64 * PAGE);
    forbid(SYS_userfaultfd);
    mapped_probe(&means);
    if (means.reason != MAPPED_YES)
        skip_because("%s", mapped_reason_text(means.reason));
    CHECK(means.single_thread && !means.system_calls_wait, "only with one thread");
    mapped_remove(add(memory, 64 * PAGE), false);
    writers = writers_start(memory, 32 * PAGE, 1);
    CHECK(refused(memory, 64 * PAGE) == MAPPED_THREADS, "with two");
    mapped_probe(&means);
    CHECK(means.reason == MAPPED_THREADS, "means");
    CHECK(writers_finish(writers, NULL) == 0, "writes are lost");
}

/* --- programs that did not ask ------------------------------------------------------------------------ */

static void who_did_not_ask_does_not_notice(void **state)
{
    enum way way = begin(PAGE);
    bool in_calls = false;
    enum mapped_reason reason = mapped_unasked(&in_calls);

    if (way == WAY_ALONE && !sanitized()) {
        CHECK(reason == MAPPED_CALLS_FAIL || reason == MAPPED_SANDBOX || reason == MAPPED_OVERCOMMIT,
              "without userfaultfd: %s", mapped_reason_text(reason));
        return;
    }
    if (sanitized()) {
        CHECK(reason == MAPPED_TOOL, "under a sanitizer: %s", mapped_reason_text(reason));
        return;
    }
    if (reason == MAPPED_SANDBOX || reason == MAPPED_OVERCOMMIT)
        skip_because("%s", mapped_reason_text(reason));
    CHECK(reason == MAPPED_YES, "%s", mapped_reason_text(reason));
    CHECK(in_calls == (way != WAY_FULL), "system calls could fail");
    forbid(SYS_acct); /* nothing of ours, but who knows */
    CHECK(mapped_unasked(&in_calls) == MAPPED_SANDBOX, "under a seccomp filter");
}

/* As Linux 5.10: opened by everybody who may, but it stops no writer to shared pages. */
static void who_did_not_ask_is_left_alone_on_old_kernels(void **state)
{
    enum way way = begin(PAGE);
    enum mapped_reason reason;
    bool in_calls;

    keeper_after_fork_in_child(); /* as if begin() had not tried */
    keeper_limits |= KEEPER_OLD_UFFD;
    reason = mapped_unasked(&in_calls);
    if (reason == MAPPED_TOOL || reason == MAPPED_SANDBOX || reason == MAPPED_OVERCOMMIT)
        skip_because("%s", mapped_reason_text(reason));
    CHECK(reason == (way == WAY_ALONE ? MAPPED_CALLS_FAIL : MAPPED_OLD_UFFD), "%s",
          mapped_reason_text(reason));
}

static void who_did_not_ask_starts_no_thread(void **state)
{
    bool in_calls;

    begin(PAGE);
    keeper_after_fork_in_child(); /* as if begin() had not tried */
    mapped_unasked(&in_calls);
    CHECK(!keeper.thread, "a thread before there is a region");
    setenv("SOFTHCA_MAPPED", "0", 1);
    CHECK(mapped_unasked(&in_calls) == MAPPED_OFF, "SOFTHCA_MAPPED=0");
}

static void who_did_not_ask_keeps_most_of_the_memory(void **state)
{
    size_t length = (size_t)sysconf(_SC_PHYS_PAGES) * PAGE, half = length / 2;
    enum way way = begin(length);
    struct mapped_region *small, *again;
    char *memory;
    bool in_calls;

    if (way != WAY_FULL || mapped_unasked(&in_calls) != MAPPED_YES)
        skip_because("only where memory is mapped unasked");
    memory = map_with(length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
    CHECK(refused(memory, half) == MAPPED_SHARE, "half of the memory of the machine");
    small = add(memory, 16 * PAGE);
    CHECK(refused(memory + 16 * PAGE, half) == MAPPED_SHARE, "and some more");
    mapped_remove(small, false);
    again = add(memory, 16 * PAGE);
    mapped_remove(again, false);
    munmap(memory, length);
}

static void sandbox_without_memfd(void **state)
{
    forbid(SYS_memfd_create);
    CHECK(refused(map(4 * PAGE), 4 * PAGE) == MAPPED_KERNEL, "memfd_create");
}

static void sandbox_without_own_descriptors(void **state)
{
    forbid(SYS_close_range);
    forbid(SYS_unshare);
    CHECK(refused(map(4 * PAGE), 4 * PAGE) == MAPPED_KERNEL, "close_range");
}

static void sandbox_without_mlock(void **state)
{
    char *memory = map(4 * PAGE);

    fill(memory, 4 * PAGE, 1);
    forbid(SYS_mlock2);
    CHECK(refused(memory, 4 * PAGE) == MAPPED_LOCK_LIMIT, "mlock2");
    CHECK(filled(memory, 4 * PAGE, 1), "contents");
}

static void sandbox_without_mremap(void **state)
{
    char *memory = map(4 * PAGE);

    fill(memory, 4 * PAGE, 1);
    forbid(SYS_mremap);
    CHECK(refused(memory, 4 * PAGE) == MAPPED_SPECIAL, "mremap");
    CHECK(filled(memory, 4 * PAGE, 1), "contents");
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(every_step_may_fail, .fars = 0, .seconds = 600),
        TEST_WITH(pages_far_apart, .fars = 0, .seconds = 1800),
        TEST_WITH(pages_side_by_side, .fars = 0, .seconds = 1800),
        TEST_WITH(the_program_needs_the_mappings, .fars = 0, .seconds = 600),
        TEST_WITH(too_many_pieces, .fars = 0, .seconds = 600),
        TEST_WITH(locked_memory_is_limited, .fars = 0),
        TEST_WITH(files_are_limited, .fars = 0),
        TEST_WITH(address_space_is_limited, .fars = 0),
        TEST_WITH(threads_matter_without_userfaultfd_only, .fars = 0),
        TEST_WITH(threads_of_ours_are_paused, .fars = 0),
        TEST_WITH(memory_is_switched_in_portions, .fars = 0),
        TEST_WITH(switched_off, .fars = 0),
        TEST_WITH(under_valgrind, .fars = 0),
        TEST_WITH(sandbox_without_userfaultfd, .fars = 0),
        TEST_WITH(who_did_not_ask_does_not_notice, .fars = 0),
        TEST_WITH(who_did_not_ask_is_left_alone_on_old_kernels, .fars = 0),
        TEST_WITH(who_did_not_ask_starts_no_thread, .fars = 0),
        TEST_WITH(who_did_not_ask_keeps_most_of_the_memory, .fars = 0),
        TEST_WITH(sandbox_without_memfd, .fars = 0),
        TEST_WITH(sandbox_without_own_descriptors, .fars = 0),
        TEST_WITH(sandbox_without_mlock, .fars = 0),
        TEST_WITH(sandbox_without_mremap, .fars = 0),
    };

    return run_mapped(tests, COUNT(tests), argc, argv);
}
