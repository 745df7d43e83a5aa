/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Whether memory may be switched: in this process at all, at this moment, and of this length. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "mapped/internal.h"
#include "mapped/window.h"

/* Mappings for an extent that continues no other: the extent, its shadow, and the rest of the mapping it was cut out
 * of. */
#define MAPS_PER_RUN     3u
#define MAPS_PER_GUARD   2u
#define MAX_MAPS_DEFAULT 65530u
#define STACK_DEFAULT    ((uint64_t)8 << 20)
/* In a thread control block, the kernel writes by itself (robust list, rseq) within this distance of the list of
 * robust mutexes, if the keeper could not measure the length. */
#define CONTROL_BLOCK 8192u
/* A program with more descriptors may have a ring among them: looking at each takes longer than a switch. */
#define DESCRIPTORS_MAX 1024u
/* Mappings in use for switched memory, up to which all mappings are looked at for each switch. */
#define MAPS_FEW 256u
/* Stack frames of the caller around the current one. */
#define FRAMES 16384u

/* --- at all ------------------------------------------------------------------------------------------ */

static bool switched_off(void)
{
    const char *wanted = secure_getenv("SOFTHCA_MAPPED");

    if (!wanted || strcmp(wanted, "1") == 0)
        return false;
    if (strcmp(wanted, "0") != 0)
        log_warn("SOFTHCA_MAPPED=%s: invalid (valid: 0, 1); using 0", wanted);
    return true;
}

/* valgrind and rr translate or record the program, and do not see what other processes do to its memory. Both are
 * recognized by the libraries that they preload. */
static bool under_tool(void)
{
    const char *preloaded = getenv("LD_PRELOAD");

    return preloaded && (strstr(preloaded, "vgpreload") || strstr(preloaded, "librrpreload"));
}

enum mapped_reason forbidden_from_outside(void)
{
    return switched_off() ? MAPPED_OFF : under_tool() ? MAPPED_TOOL : MAPPED_YES;
}

enum mapped_reason allowed_at_all(void)
{
    static enum mapped_reason fixed = MAPPED_REASONS; /* not known yet; mapped_lock guards it */
    enum mapped_reason reason;
    int error;

    if (fixed == MAPPED_REASONS)
        fixed = forbidden_from_outside();
    if (fixed != MAPPED_YES)
        return fixed;
    /* A program with threads gets no further one for nothing. */
    reason = owner.in_calls && !keeper.thread ? not_alone() : MAPPED_YES;
    if (reason != MAPPED_YES)
        return reason;
    error = keeper_start();
    if (error)
        return error == -EFBIG ? MAPPED_FILE_LIMIT : error == -ENOMEM ? MAPPED_NO_MEMORY : MAPPED_KERNEL;
    return MAPPED_YES;
}

bool pages_are_pinned(void)
{
    char text[4096];
    const char *line;

    if (fd_read_text("/proc/self/status", text, sizeof(text)) <= 0)
        return true;
    line = strstr(text, "\nVmPin:");
    return line && strtoul(line + 7, NULL, 10) != 0;
}

/* --- threads ----------------------------------------------------------------------------------------- */

struct numbers { /* the entries of a directory of /proc */
    int fd;
    size_t at, filled;
    char buffer[2048] __attribute__((aligned(8)));
};

struct directory_entry { /* layout of getdents64() */
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

static bool numbers_open(struct numbers *numbers, const char *path)
{
    numbers->fd = sys_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    numbers->at = numbers->filled = 0;
    return numbers->fd >= 0;
}

/* The next number; below 0: that was the last one. */
static pid_t numbers_next(struct numbers *numbers)
{
    for (;;) {
        while (numbers->at < numbers->filled) {
            const struct directory_entry *entry = (const void *)(numbers->buffer + numbers->at);

            numbers->at += entry->length;
            if (entry->name[0] != '.')
                return (pid_t)strtol(entry->name, NULL, 10);
        }
        long got = syscall(SYS_getdents64, (long)numbers->fd, numbers->buffer, sizeof(numbers->buffer));

        if (got <= 0)
            return -1;
        numbers->at = 0;
        numbers->filled = (size_t)got;
    }
}

static bool caller_is_alone(void)
{
    pid_t self = sys_gettid(), thread;
    struct numbers tasks;
    bool alone = true;

    if (!numbers_open(&tasks, "/proc/self/task"))
        return false;
    while (alone && (thread = numbers_next(&tasks)) >= 0)
        alone =
            thread == self || thread == keeper.thread || (owner.ports && owner.ports->is_our_thread(thread));
    sys_close(tasks.fd);
    return alone;
}

/* Has no process a context of Linux AIO? */
static bool nobody_uses_aio(void)
{
    char text[32];

    return fd_read_text("/proc/sys/fs/aio-nr", text, sizeof(text)) > 0 && strcmp(text, "0\n") == 0;
}

/* Both show a mapping of a file that only the kernel makes. The list of mappings is not read for each of many regions:
 * a ring of io_uring has a descriptor then, because few programs close that and keep the mapping. */
static bool has_kernel_ring(void)
{
    static char text[16384]; /* mapped_lock guards it */
    size_t kept = 0;
    ssize_t got = -1;
    bool found = false;
    int fd;

    if (maps_used() > MAPS_FEW && nobody_uses_aio())
        return false;
    fd = sys_open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    while (!found && (got = sys_read(fd, text + kept, sizeof(text) - 1 - kept)) > 0) {
        char *last;

        text[kept + (size_t)got] = '\0';
        found = strstr(text, "[io_uring]") || strstr(text, "/[aio]");
        last = strrchr(text, '\n');
        kept = last ? strlen(last) : 0; /* a line may continue in the next part */
        memmove(text, last ? last : text, kept);
    }
    sys_close(fd);
    return found || got < 0;
}

static bool has_ring_descriptor(void)
{
    struct numbers entries;
    char name[64], path[64];
    unsigned seen = 0;
    bool found = false;
    pid_t number;

    if (!numbers_open(&entries, "/proc/self/fd"))
        return true;
    while (!found && (number = numbers_next(&entries)) >= 0) {
        ssize_t length;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", (int)number);
        length = readlink(path, name, sizeof(name) - 1);
        name[length < 0 ? 0 : length] = '\0';
        found = strcmp(name, "anon_inode:[io_uring]") == 0 || ++seen > DESCRIPTORS_MAX;
    }
    sys_close(entries.fd);
    return found;
}

enum mapped_reason not_alone(void)
{
    return !caller_is_alone()                           ? MAPPED_THREADS
           : has_ring_descriptor() || has_kernel_ring() ? MAPPED_ASYNC
                                                        : MAPPED_YES;
}

static bool faults_may_wait(void)
{
    return keeper.uffd >= 0 && (keeper.uffd_full || !owner.in_calls);
}

enum switch_means switch_means_unhindered(void)
{
    return faults_may_wait() ? SWITCH_BY_FAULTS : owner.in_calls ? SWITCH_ALONE : switch_means(false);
}

enum switch_means switch_means(bool must)
{
    if (faults_may_wait())
        return SWITCH_BY_FAULTS;
    if (not_alone() == MAPPED_YES)
        return SWITCH_ALONE;
    return must && keeper.uffd >= 0 ? SWITCH_BY_FAULTS : SWITCH_NOT;
}

/* --- stacks ------------------------------------------------------------------------------------------ */

/* The kernel merges neighbouring mappings that are alike. So a stack may be only a part of a mapping, and other parts
 * may be any memory. */
struct search {
    const struct mapping *mapping;
    uint64_t start, end;         /* range to search */
    uint64_t found, found_until; /* the first part found; none: both are `end` */
};

static void find(struct search *search, uint64_t start, uint64_t end)
{
    uint64_t page = page_size();

    start = max_of(start & ~(page - 1), search->start);
    end = min_of((end + page - 1) & ~(page - 1), search->end);
    if (start < end && start < search->found) {
        search->found = start;
        search->found_until = end;
    }
}

static bool is_in(const struct mapping *mapping, uint64_t address)
{
    return address >= mapping->start && address < mapping->end;
}

static uint64_t stack_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return STACK_DEFAULT;
    return max_of((uint64_t)limit.rlim_cur, STACK_DEFAULT);
}

/* Address of the list of robust mutexes of a thread (0: the calling one), which is inside the thread control block.
 * 0: not known. */
static uint64_t control_block(pid_t thread)
{
    void *head = NULL;
    size_t length;

    return syscall(SYS_get_robust_list, (long)thread, &head, &length) == 0 ? (uint64_t)(uintptr_t)head : 0;
}

static uint64_t control_block_end(uint64_t block)
{
    return block + (keeper.control_block ? keeper.control_block : CONTROL_BLOCK);
}

/* C libraries put the control block at the top of the stack, except that of the first thread. Below the stack is an
 * inaccessible guard page, and so another mapping. */
static void find_stack_of(struct search *search, pid_t thread)
{
    uint64_t block = control_block(thread);
    uint64_t depth = thread == getpid() ? CONTROL_BLOCK : stack_limit();

    if (is_in(search->mapping, block))
        find(search, block - min_of(block, depth), control_block_end(block));
}

/* The caller may run on a stack that the kernel does not know (coroutines). On a thread's own stack, nothing lies
 * above the control block. */
static void find_frames(struct search *search)
{
    uint64_t frame = (uint64_t)__builtin_frame_address(0), block = control_block(0);
    bool below = block > frame && block - frame < FRAMES;

    find(search, frame - FRAMES, below ? control_block_end(block) : frame + FRAMES);
}

uint64_t stack_in(const struct mapping *mapping, uint64_t start, uint64_t end, uint64_t *ret_end)
{
    struct search search = {mapping, start, end, end, end};
    struct numbers tasks;
    pid_t thread;

    /* The kernel put AT_RANDOM's bytes on the first stack, which is a mapping of its own. */
    if (is_in(mapping, getauxval(AT_RANDOM)))
        find(&search, start, end);
    find_frames(&search);
    if (numbers_open(&tasks, "/proc/self/task")) {
        while (search.found > start && (thread = numbers_next(&tasks)) >= 0)
            find_stack_of(&search, thread);
        sys_close(tasks.fd);
    } else {
        find(&search, start, end);
    }
    *ret_end = search.found_until;
    return search.found;
}

/* --- budget ------------------------------------------------------------------------------------------ */

static uint32_t max_map_count(void)
{
    static uint32_t count; /* under mapped_lock */
    char text[32];

    if (!count) {
        count = MAX_MAPS_DEFAULT;
        if (fd_read_text("/proc/sys/vm/max_map_count", text, sizeof(text)) > 0)
            count = (uint32_t)min_of(strtoul(text, NULL, 10), (unsigned long)UINT32_MAX);
    }
    return count;
}

uint32_t map_limit(void)
{
    return max_map_count() / 4;
}

uint32_t maps_used(void)
{
    return MAPS_PER_RUN * (owner.arena[ARENA_WRITABLE].live.runs + owner.arena[ARENA_READ_ONLY].live.runs) +
           MAPS_PER_GUARD * (owner.guards + owner.guards_waiting);
}

bool budget_has_a_run(uint32_t limit)
{
    return maps_used() + MAPS_PER_RUN <= limit;
}

static uint32_t count_maps(void)
{
    struct maps maps;
    struct mapping mapping;
    uint32_t count = 0;

    if (window_maps(&maps) != 0)
        return UINT32_MAX;
    for (uintptr_t next = 0; maps_find(&maps, next, &mapping) == 0; next = mapping.end)
        count++;
    maps_close(&maps);
    return count;
}

/* The program must not run out of mappings because of switched memory. Counting all mappings takes long, so it is
 * repeated only after every 256 mappings. */
static bool program_needs_maps(void)
{
    static uint32_t counted_at = UINT32_MAX, total; /* under mapped_lock */
    uint32_t used = maps_used();

    if (used / 256 != counted_at / 256) {
        counted_at = used;
        total = count_maps();
    }
    return total > max_map_count() / 4 * 3;
}

uint64_t lock_limit(void)
{
    struct rlimit limit;

    if (sys_has_capability(CAP_IPC_LOCK) || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    /* Half of the limit is left for mlock() of the program. */
    return limit.rlim_cur / 2;
}

enum mapped_reason allowed_by_budget(uint64_t length, bool locked_by_program, bool mappings)
{
    uint64_t switched = owner.arena[ARENA_WRITABLE].live.bytes + owner.arena[ARENA_READ_ONLY].live.bytes;

    if (owner.bytes_limit && length > owner.bytes_limit - min_of(switched, owner.bytes_limit))
        return MAPPED_SHARE;
    if ((mappings && !budget_has_a_run(map_limit())) || program_needs_maps())
        return MAPPED_MAP_LIMIT;
    if (!locked_by_program && length > lock_limit() - min_of(owner.locked_bytes, lock_limit()))
        return MAPPED_LOCK_LIMIT;
    return MAPPED_YES;
}
