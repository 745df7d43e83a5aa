/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "watch/registration.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/maps.h"

#define STATUS_SIZE  4096u
#define CAP_IPC_LOCK 14

/* The number behind "\nNAME:". false: the line is not there. */
static bool number_of(const char *status, const char *name, int base, uint64_t *ret_number)
{
    const char *line = strstr(status, name);

    if (!line)
        return false;
    *ret_number = strtoull(line + strlen(name), NULL, base);
    return true;
}

struct pin_limit pin_limit_now(void)
{
    struct pin_limit pins = {.limit = UINT64_MAX};
    char status[STATUS_SIZE];
    uint64_t kib = 0, capabilities = 0;
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        pins.limit = limit.rlim_cur;
    if (fd_read_text("/proc/self/status", status, sizeof(status)) < 0)
        return pins;
    pins.known = number_of(status, "\nVmPin:", 10, &kib);
    pins.pinned = kib * 1024;
    pins.privileged = number_of(status, "\nCapEff:", 16, &capabilities) && (capabilities >> CAP_IPC_LOCK & 1);
    return pins;
}

/* The kernel counts pages. */
static bool is_beyond(const struct pin_limit *pins, uintptr_t address, size_t length)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = address & ~(page - 1), end;

    return __builtin_add_overflow(address, length, &end) ||
           __builtin_add_overflow(end - first + page - 1, pins->pinned, &end) ||
           (end & ~(page - 1)) > pins->limit;
}

void words_add_no_memory(struct words *words, const struct pin_limit *pins, uintptr_t address, size_t length)
{
    static const char none_left[] = "or the NIC has no MRs (max_mr) or translation entries left";
    unsigned long long limit = pins->limit / 1024, pinned = pins->pinned / 1024;
    bool limited = pins->limit != UINT64_MAX, beyond = limited && is_beyond(pins, address, length);

    if (limited && pins->known && beyond && !pins->privileged)
        words_add(words,
                  ": the limit of memory that may be locked is reached (RLIMIT_MEMLOCK is %llu KiB, and %llu "
                  "KiB are pinned already: raise it with ulimit -l)",
                  limit, pinned);
    else if (limited && (!pins->known || beyond))
        words_add(
            words,
            ": RLIMIT_MEMLOCK may be reached (%llu KiB; ulimit -l), memory of the host or its cgroup may "
            "be used up, %s",
            limit, none_left);
    else if (limited)
        words_add(
            words,
            ": RLIMIT_MEMLOCK is not reached (%llu KiB, and %llu KiB are pinned already): memory of the "
            "host or its cgroup is used up, %s",
            limit, pinned, none_left);
    else
        words_add(words, ": RLIMIT_MEMLOCK is unlimited: memory of the host or its cgroup is used up, %s",
                  none_left);
}

void words_add_unpinned(struct words *words, uintptr_t address, size_t length, bool write)
{
    uintptr_t end;
    struct maps maps;
    int error = __builtin_add_overflow(address, length, &end) ? -EINVAL : maps_open(&maps);

    if (!error) {
        error = maps_check(&maps, address, end, write, NULL);
        maps_close(&maps);
    }
    if (!error)
        words_add(
            words,
            ": all its pages are mapped with the permissions that are needed, but the kernel "
            "cannot pin them: a shared mapping of a file on disk cannot be pinned for writing (Linux 6.5 and "
            "later; tmpfs and huge pages can), memory of a GPU needs a peer-memory module "
            "(nvidia_peermem) or ibv_reg_dmabuf_mr(), and memory mapped from a device cannot be registered");
    else if (error != -EFAULT)
        words_add(words,
                  ": one of its pages is not mapped, lacks a permission that the access flags need, or "
                  "cannot be pinned by the kernel");
}
