/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a program gets in this environment from a process of the same user, and which one change would give it more. */
#include <fcntl.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sys.h"
#include "base/user.h"
#include "doctor.h"

/* PROC_PID_INIT_INO of the kernel: the PID namespace that it made at boot. */
#define FIRST_PID_NAMESPACE 0xeffffffcu

enum gets { GETS_MAPPED, GETS_MAPPED_IN_CALLS, GETS_MAPPED_IN_CALLS_ALONE, GETS_COPY, GETS_RING };

/* The figures are those of docs/performance.md, of a quiet machine. */
#define ONE_SIDED "RDMA WRITE, RDMA READ"
#define MAPPED                                                                                               \
    ONE_SIDED ", atomics: mapped memory (8 bytes: 0.15 to 0.3 us, 64 KiB: 40 GB/s); SEND: shared-memory "    \
              "ring (8 bytes: 0.35 us)"
#define RING_TIME                                                                                            \
    "8 bytes: 0.4 us, or about 30 us if the peer does not poll and its helper thread has to be woken"
#define COPY                                                                                                 \
    ONE_SIDED ": kernel copy (8 bytes: 1.6 to 1.8 us, 64 KiB: 9 GB/s); atomics, SEND: shared-memory ring "   \
              "(" RING_TIME ")"
#define RING            ONE_SIDED ", atomics, SEND: shared-memory ring (" RING_TIME "; 64 KiB: 1 to 3 GB/s)"
#define ONE_THREAD      "programs with one thread: "
#define SEVERAL_THREADS "\nprograms with several threads: "
static const struct {
    enum finding_state state;
    const char *words;
} outcomes[] = {
    [GETS_MAPPED] = {FINDING_OK, MAPPED},
    [GETS_MAPPED_IN_CALLS] = {FINDING_NOTE, ONE_THREAD MAPPED SEVERAL_THREADS COPY},
    [GETS_MAPPED_IN_CALLS_ALONE] = {FINDING_NOTE, ONE_THREAD MAPPED SEVERAL_THREADS RING},
    [GETS_COPY] = {FINDING_NOTE, COPY},
    [GETS_RING] = {FINDING_LIMITED, RING},
};
static const char figures[] = "(figures: typical ones, docs/performance.md; not measured here)";

/* What a change leads to. */
static const char mapped_instead[] =
    "RDMA WRITE, RDMA READ and atomics in mapped memory (8 bytes: typically 0.15 to 0.3 us)";
static const char copy_instead[] =
    "RDMA WRITE and RDMA READ by kernel copy (8 bytes: typically 1.6 to 1.8 us)";

/* All that decides. */
struct environment {
    const char *local; /* SOFTHCA_LOCAL; "auto" if it is not set */
    struct mapping mapping;
    bool copies; /* from a process of the same user that permits it */
};

/* In a child, which has a single thread as a program may have: the library that the doctor has loaded has one more. */
struct mapping look_at_mapping(bool asks)
{
    struct mapping found = {.means.reason = MAPPED_KERNEL};
    int ends[2] = {-1, -1};
    pid_t child = pipe2(ends, O_CLOEXEC) ? -1 : fork();

    if (child == 0) {
        found.unasked = asks ? MAPPED_YES : mapped_unasked(&found.in_calls);
        mapped_probe(&found.means);
        _exit(write(ends[1], &found, sizeof(found)) == sizeof(found) ? 0 : 1);
    }
    close(ends[1]);
    if (child > 0) {
        if (read(ends[0], &found, sizeof(found)) != sizeof(found))
            found = (struct mapping){.means.reason = MAPPED_KERNEL};
        waitpid(child, NULL, 0);
    }
    close(ends[0]);
    return found;
}

static struct environment look(void)
{
    const char *local = getenv("SOFTHCA_LOCAL");
    struct environment here = {.local = local ? local : "auto"};

    here.mapping = look_at_mapping(strcmp(here.local, "mapped") == 0);
    here.copies = user_is_known(geteuid()) && (sibling_reads(false) == 0 || sibling_reads(true) == 0);
    return here;
}

/* Who may not copy may map all the same: Yama forbids the one and not the other. */
static enum gets what_it_gets(const struct environment *here)
{
    const struct mapping *mapping = &here->mapping;
    bool maps = strcmp(here->local, "copy") != 0 && mapping->unasked == MAPPED_YES &&
                mapping->means.reason == MAPPED_YES && mapping->means.lock_limit != 0;

    if (!user_is_known(geteuid()) || strcmp(here->local, "ring") == 0 || strcmp(here->local, "cma") == 0)
        return GETS_RING;
    if (!maps)
        return here->copies ? GETS_COPY : GETS_RING;
    if (!mapping->means.single_thread)
        return GETS_MAPPED;
    return here->copies ? GETS_MAPPED_IN_CALLS : GETS_MAPPED_IN_CALLS_ALONE;
}

static bool system_calls_may_wait(void)
{
    FILE *file = fopen("/proc/sys/vm/unprivileged_userfaultfd", "re");
    int allowed = 0;

    if (file) {
        if (fscanf(file, "%d", &allowed) != 1)
            allowed = 0;
        fclose(file);
    }
    return allowed == 1 || sys_has_capability(CAP_SYS_PTRACE);
}

static void more_than_the_ring(struct finding *ret)
{
    if (!user_is_known(geteuid()))
        finding_remedy(ret,
                       "run with a uid that the user namespace maps (unshare --map-current-user): gives %s",
                       copy_instead);
    else if (yama_scope() > 2)
        finding_remedy(ret,
                       "kernel.yama.ptrace_scope is 3, which only a reboot can lower: put "
                       "kernel.yama.ptrace_scope=1 into a file of /etc/sysctl.d and reboot: gives %s",
                       copy_instead);
    else if (yama_scope() == 2)
        finding_remedy(ret, "sysctl -w kernel.yama.ptrace_scope=1 (as root): gives %s", copy_instead);
    else if (own_status("Seccomp"))
        finding_remedy(
            ret,
            "podman run --security-opt seccomp=FILE, where FILE is the default profile with {\"names\": "
            "[\"process_vm_readv\", \"process_vm_writev\"], \"action\": \"SCMP_ACT_ALLOW\"} added to its "
            "\"syscalls\": gives %s",
            copy_instead);
}

static void more_than_copies(struct finding *ret, const struct environment *here)
{
    if (here->mapping.unasked == MAPPED_OFF)
        finding_remedy(ret, "unset SOFTHCA_MAPPED: gives %s", mapped_instead);
    else if (here->mapping.unasked == MAPPED_OVERCOMMIT)
        finding_remedy(ret, "sysctl -w vm.overcommit_memory=0 (as root): gives %s", mapped_instead);
    else if (here->mapping.unasked == MAPPED_SANDBOX)
        finding_remedy(
            ret, "run without a seccomp filter (podman run --security-opt seccomp=unconfined%s): gives %s",
            system_calls_may_wait() ? "" : " --cap-add=SYS_PTRACE", mapped_instead);
    else if (here->mapping.means.reason == MAPPED_YES && here->mapping.means.lock_limit == 0)
        finding_remedy(ret, "ulimit -l 8192: gives %s", mapped_instead);
}

void probe_environment(struct finding *ret)
{
    struct environment here = look();
    enum gets gets = what_it_gets(&here);
    bool chosen = strcmp(here.local, "auto") != 0 && strcmp(here.local, "mapped") != 0;

    finding_set(ret, outcomes[gets].state, "%s\n%s", outcomes[gets].words, figures);
    if (chosen)
        finding_remedy(ret, "unset SOFTHCA_LOCAL (it is %s)", here.local);
    else if (gets == GETS_RING || gets == GETS_MAPPED_IN_CALLS_ALONE)
        more_than_the_ring(ret);
    else if (gets == GETS_COPY)
        more_than_copies(ret, &here);
    else if (gets == GETS_MAPPED_IN_CALLS)
        finding_remedy(
            ret,
            "sysctl -w vm.unprivileged_userfaultfd=1 (as root), or SOFTHCA_LOCAL=mapped for both "
            "programs (docs/mapped.md has the side effects): gives %s for programs with threads, too",
            mapped_instead);
    else if (here.mapping.means.lock_limit != UINT64_MAX)
        finding_remedy(ret,
                       "ulimit -l unlimited: the limit that is set allows a program %llu KiB of mapped "
                       "memory (half of RLIMIT_MEMLOCK); requests to memory beyond that use %s",
                       (unsigned long long)here.mapping.means.lock_limit / 1024,
                       here.copies ? "kernel copy" : "the shared-memory ring");
}

void probe_pid_namespace(struct finding *ret)
{
    struct stat status;

    if (stat("/proc/self/ns/pid", &status) || status.st_ino == FIRST_PID_NAMESPACE) {
        finding_set(ret, FINDING_OK, "the initial PID namespace");
        return;
    }
    finding_set(ret, FINDING_NOTE,
                "its own: process_vm_readv does not reach processes of another PID namespace, such as "
                "another container of the pod; what is not in mapped memory goes to them through the "
                "shared-memory ring (slower)");
    finding_remedy(
        ret, "use one PID namespace for all of them: podman run --pid=container:NAME, podman pod create "
             "--share=ipc,net,uts,pid; Kubernetes: shareProcessNamespace: true");
}
