/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory of programs that did not set SOFTHCA_MAPPED is switched only where the program cannot notice: no system call
 * of the program fails during a switch, no sandbox kills the process for a system call of SoftHCA, no page fault
 * becomes a SIGBUS, and fork(), which copies the mapped memory, needs no memory that is not available. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/newer_kernel.h"
#include "base/sys.h"
#include "mapped/internal.h"

#define CGROUP_ROOT "/sys/fs/cgroup"

/* Programs with a sanitizer have shadow memory and other mappings of special kinds. */
extern const char sanitizer_of_addresses __asm__("__asan_init") __attribute__((weak));
extern const char sanitizer_of_threads __asm__("__tsan_init") __attribute__((weak));
extern const char sanitizer_of_memory __asm__("__msan_init") __attribute__((weak));

static bool is_sanitized(void)
{
    return &sanitizer_of_addresses || &sanitizer_of_threads || &sanitizer_of_memory;
}

/* A seccomp filter may kill the process for a system call that it does not know. */
static bool is_filtered(void)
{
    char text[4096];
    const char *line;

    if (fd_read_text("/proc/self/status", text, sizeof(text)) <= 0)
        return true;
    line = strstr(text, "\nSeccomp:");
    return line && strtoul(line + 9, NULL, 10) != 0;
}

/* With strict overcommit, a page of shared memory that cannot be allocated is a SIGBUS, where private memory was
 * guaranteed before. */
static bool overcommit_is_forbidden(void)
{
    char text[32];

    return fd_read_text("/proc/sys/vm/overcommit_memory", text, sizeof(text)) > 0 && text[0] == '2';
}

/* 0: allowed, and it can do what switching takes; or -errno. */
static int try_uffd(int flags, unsigned limits)
{
    uint64_t features;
    int fd, error;

    if (keeper_limits & limits)
        return -EPERM;
    fd = fd_lift((int)syscall(SYS_userfaultfd, (long)(O_CLOEXEC | O_NONBLOCK | flags)));
    if (fd < 0)
        return -errno;
    error = keeper_features(fd, &features);
    sys_close(fd);
    return error;
}

enum mapped_reason mapped_stops_writers(bool *ret_in_calls)
{
    int saved = errno, full = try_uffd(0, KEEPER_USER_MODE | KEEPER_NO_UFFD);
    /* In user mode it moves memory away from a peer that does not respond, whatever threads there are by then. */
    int user = full ? try_uffd(UFFD_USER_MODE_ONLY, KEEPER_NO_UFFD) : 0;

    errno = saved;
    *ret_in_calls = full != 0;
    if (!user)
        return MAPPED_YES;
    /* EINVAL: the kernel does not know user mode, which is of Linux 5.11. */
    return user == -EOPNOTSUPP || user == -EINVAL ? MAPPED_OLD_UFFD : MAPPED_CALLS_FAIL;
}

/* "max" and a missing file mean no limit. */
static uint64_t limit_in(const char *path)
{
    unsigned long long limit;
    char text[32];

    if (fd_read_text(path, text, sizeof(text)) <= 0 || sscanf(text, "%llu", &limit) != 1)
        return UINT64_MAX;
    return limit;
}

/* The lowest limit of the control group and all groups above it. */
static uint64_t group_limit(void)
{
    char text[2048], path[2048];
    uint64_t limit = limit_in(CGROUP_ROOT "/memory/memory.limit_in_bytes"); /* version 1, in a container */
    char *group = NULL, *end;

    if (fd_read_text("/proc/self/cgroup", text, sizeof(text)) > 0)
        group = strstr(text, "0::/");
    if (!group)
        return limit;
    group += 3;
    group[strcspn(group, "\n")] = '\0';
    while (group[0]) {
        if (snprintf(path, sizeof(path), CGROUP_ROOT "%s/memory.max", group) < (int)sizeof(path))
            limit = min_of(limit, limit_in(path));
        end = strrchr(group, '/');
        *end = '\0';
    }
    return min_of(limit, limit_in(CGROUP_ROOT "/memory.max"));
}

static uint64_t memory_limit(void)
{
    struct sysinfo info;

    return sysinfo(&info) == 0 ? min_of((uint64_t)info.totalram * info.mem_unit, group_limit()) : 0;
}

enum mapped_reason mapped_unasked(bool *ret_in_calls)
{
    enum mapped_reason reason = forbidden_from_outside();
    uint64_t limit;
    bool in_calls;

    if (reason != MAPPED_YES)
        return reason;
    if (is_sanitized())
        return MAPPED_TOOL;
    if (is_filtered())
        return MAPPED_SANDBOX;
    if (overcommit_is_forbidden())
        return MAPPED_OVERCOMMIT;
    reason = mapped_stops_writers(&in_calls);
    if (reason != MAPPED_YES)
        return reason;
    limit = memory_limit() / 4;
    if (!owner_enter())
        return MAPPED_CHANGED;
    owner.bytes_limit = max_of(limit, (uint64_t)1);
    owner.in_calls = in_calls;
    owner_leave();
    *ret_in_calls = in_calls;
    return MAPPED_YES;
}
