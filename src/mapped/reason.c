/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "mapped/mapped.h"

static const char *const texts[] = {
    [MAPPED_YES] = "mapped",
    [MAPPED_OFF] = "switched off by SOFTHCA_MAPPED=0",
    [MAPPED_PARTIAL_PAGE] = "shares its page with other memory",
    [MAPPED_NOTHING_THERE] = "nothing is mapped there",
    [MAPPED_NOT_WRITABLE] = "the program may not write it",
    [MAPPED_EXECUTABLE] = "the program may execute it",
    [MAPPED_PRIVATE_FILE] = "a private mapping of a file or of huge pages",
    [MAPPED_STACK] = "a stack",
    [MAPPED_NO_DESCRIPTOR] = "shared memory whose file cannot be found",
    [MAPPED_USERFAULTFD] = "under a userfaultfd of the program's",
    [MAPPED_SPECIAL] = "a kind of mapping that the kernel keeps from userfaultfd",
    [MAPPED_PINNED] = "the kernel holds pages of this process (io_uring's fixed buffers, VFIO, an RDMA NIC)",
    [MAPPED_LOCK_LIMIT] = "more than RLIMIT_MEMLOCK allows",
    [MAPPED_MAP_LIMIT] = "too many mappings for vm.max_map_count",
    [MAPPED_FILE_LIMIT] = "RLIMIT_FSIZE is set",
    [MAPPED_NO_MEMORY] = "out of memory, or a limit of the address space",
    [MAPPED_THREADS] = "no userfaultfd, and the program has several threads",
    [MAPPED_KERNEL] = "the kernel or a sandbox does not allow what it takes",
    [MAPPED_TOOL] = "running under valgrind, rr or a sanitizer",
    [MAPPED_CHANGED] = "the program changed the mapping meanwhile",
    [MAPPED_LAYERS] = "every place for this address is in use",
    [MAPPED_PIECES] = "the range is in too many pieces",
    [MAPPED_CALLS_FAIL] = "system calls that write there could fail meanwhile, without the full userfaultfd",
    [MAPPED_SANDBOX] = "a seccomp filter could end the process for trying",
    [MAPPED_OVERCOMMIT] = "vm.overcommit_memory is 2",
    [MAPPED_SHARE] = "more than a quarter of the memory there is",
    [MAPPED_PUT_OFF] = "no QP has been connected to one of this host so far",
};
_Static_assert(sizeof(texts) / sizeof(texts[0]) == MAPPED_REASONS, "a text for each reason");

const char *mapped_reason_text(enum mapped_reason reason)
{
    return reason >= 0 && reason < MAPPED_REASONS ? texts[reason] : "an unknown reason";
}
