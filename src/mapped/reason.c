/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "mapped/mapped.h"

static const char *const texts[] = {
    [MAPPED_YES] = "mapped",
    [MAPPED_OFF] = "switched off by SOFTHCA_MAPPED=0",
    [MAPPED_PARTIAL_PAGE] = "shares a page with memory outside of the region",
    [MAPPED_NOTHING_THERE] = "no memory is mapped at this address",
    [MAPPED_NOT_WRITABLE] = "memory that the program cannot both read and write",
    [MAPPED_EXECUTABLE] = "executable memory",
    [MAPPED_PRIVATE_FILE] = "a private mapping of a file or of huge pages",
    [MAPPED_STACK] = "a thread stack or thread control block",
    [MAPPED_NO_DESCRIPTOR] = "shared memory whose file cannot be found",
    [MAPPED_USERFAULTFD] = "registered with a userfaultfd of the program",
    [MAPPED_SPECIAL] = "mapping type that userfaultfd does not support (device, sealed mapping, guard page)",
    [MAPPED_PINNED] = "pages of this process are pinned by the kernel (io_uring fixed buffers, VFIO, an "
                      "RDMA NIC)",
    [MAPPED_LOCK_LIMIT] =
        "RLIMIT_MEMLOCK exceeded: raise it (ulimit -l); mapped memory is locked, and takes at most "
        "half of it",
    [MAPPED_MAP_LIMIT] = "number of mappings too close to vm.max_map_count, which root can raise (sysctl)",
    [MAPPED_FILE_LIMIT] = "RLIMIT_FSIZE (ulimit -f) is smaller than the sparse memfd that mapped memory "
                          "needs: it has to be unlimited",
    [MAPPED_NO_MEMORY] = "out of memory, RLIMIT_AS, or the overcommit limit",
    [MAPPED_THREADS] =
        "the program has more than one thread, and system calls of the others could fail: needs "
        "vm.unprivileged_userfaultfd=1 or CAP_SYS_PTRACE",
    [MAPPED_KERNEL] = "a required system call is missing or blocked (old kernel, or seccomp)",
    [MAPPED_TOOL] = "running under valgrind, rr or a sanitizer",
    [MAPPED_CHANGED] = "the program changed the mapping (mmap, mprotect, munmap) while it was being "
                       "converted to shared memory",
    [MAPPED_LAYERS] =
        "16 earlier registrations of this address range are still mapped by peers, and more are not "
        "possible",
    [MAPPED_PIECES] = "too many mappings within the region",
    [MAPPED_CALLS_FAIL] = "userfaultfd is not available",
    [MAPPED_ASYNC] = "the program uses io_uring or Linux AIO, whose system calls could fail: needs "
                     "vm.unprivileged_userfaultfd=1 or CAP_SYS_PTRACE",
    [MAPPED_SANDBOX] = "a seccomp filter is active and could kill the process for userfaultfd()",
    [MAPPED_OVERCOMMIT] =
        "vm.overcommit_memory is 2, where a shared page that cannot be allocated ends the program "
        "with SIGBUS; SOFTHCA_LOCAL=mapped maps memory all the same",
    [MAPPED_SHARE] =
        "registered memory would exceed a quarter of the available memory (host or cgroup limit)",
    [MAPPED_PUT_OFF] = "not accessed often enough by a peer yet (it is mapped on demand)",
    [MAPPED_OLD_UFFD] =
        "userfaultfd of this kernel cannot hold up writers to shared memory (needs Linux 5.14)",
};
_Static_assert(sizeof(texts) / sizeof(texts[0]) == MAPPED_REASONS, "a text for each reason");

const char *mapped_reason_text(enum mapped_reason reason)
{
    return reason >= 0 && reason < MAPPED_REASONS ? texts[reason] : "an unknown reason";
}
