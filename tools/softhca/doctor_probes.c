/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/newer_kernel.h"
#include "base/user.h"
#include "commands.h"
#include "doctor.h"

#define ROCE_PORT 4791

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* --- how processes find each other and notice each other's death --- */

static void probe_abstract_sockets(struct finding *ret)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length;
    int listener, client = -1, server = -1;

    length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                         (size_t)snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                                          "softhca-doctor-%d", (int)getpid()));
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || client < 0 || bind(listener, (struct sockaddr *)&address, length) ||
        listen(listener, 1) || connect(client, (struct sockaddr *)&address, length) ||
        (server = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0) {
        finding_set(ret, FINDING_BROKEN, "%s: processes cannot find each other", strerror(errno));
        finding_remedy(
            ret, "allow unix sockets (socket, bind, connect) in the container's seccomp or AppArmor profile");
    } else {
        finding_set(ret, FINDING_OK, "processes of one network namespace find each other");
    }
    for (int i = 0; i < 3; i++) {
        int fd = (int[]){listener, client, server}[i];

        if (fd >= 0)
            close(fd);
    }
}

static void probe_memfd(struct finding *ret)
{
    int fd = (int)syscall(SYS_memfd_create, "softhca-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0) {
        finding_set(ret, FINDING_BROKEN, "memfd_create: %s: no shared memory between processes",
                    strerror(errno));
        finding_remedy(ret, "allow memfd_create in the container's seccomp profile");
        return;
    }
    if (ftruncate(fd, 4096) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        finding_set(ret, FINDING_BROKEN,
                    "sealing a memfd: %s: a peer could truncate a shared-memory ring (SIGBUS)",
                    strerror(errno));
        finding_remedy(ret, "allow ftruncate and fcntl(F_ADD_SEALS) in the container's seccomp profile");
    } else {
        finding_set(ret, FINDING_OK, "shared-memory rings are sealed against truncation");
    }
    close(fd);
}

static void probe_pidfd(struct finding *ret)
{
    pid_t child = fork();
    struct pollfd wait_for;
    int fd;

    if (child == 0) {
        pause();
        _exit(0);
    }
    fd = child < 0 ? -1 : (int)syscall(SYS_pidfd_open, child, 0);
    if (fd < 0) {
        const int error = errno;
        const bool is_old = error == ENOSYS && own_status("Seccomp") == 0;

        finding_set(ret, FINDING_LIMITED,
                    "pidfd_open: %s: the end of a peer process is detected only when its sockets close",
                    is_old ? "this kernel has none (needs Linux 5.3)" : strerror(error));
        if (!is_old)
            finding_remedy(ret, "allow pidfd_open in the container's seccomp profile");
    }
    if (child > 0)
        kill(child, SIGKILL);
    if (fd >= 0) {
        wait_for = (struct pollfd){.fd = fd, .events = POLLIN};
        if (poll(&wait_for, 1, 5000) == 1)
            finding_set(ret, FINDING_OK, "the end of a peer process is detected at once");
        else
            finding_set(ret, FINDING_LIMITED,
                        "a pidfd did not become readable when a child ended: the end of a peer process is "
                        "detected only when its sockets close");
        close(fd);
    }
    if (child > 0)
        waitpid(child, NULL, 0);
}

static void probe_peerpidfd(struct finding *ret)
{
    int pair[2], fd = -1;
    socklen_t length = sizeof(fd);

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
        finding_set(ret, FINDING_BROKEN, "socketpair: %s: processes cannot connect to each other",
                    strerror(errno));
        return;
    }
    if (getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0 && fd >= 0) {
        finding_set(ret, FINDING_OK,
                    "the peer process of a socket is identified without a race "
                    "(SO_PEERPIDFD)");
        close(fd);
    } else {
        finding_set(ret, FINDING_NOTE, "%s: using SO_PEERCRED and pidfd_open instead (kernel older than 6.5)",
                    strerror(errno));
    }
    close(pair[0]);
    close(pair[1]);
}

/* --- large transfers --- */

static char read_from[4096];

/* A process that another, not its parent, reads from: as two programs of one user are to each other. */
int sibling_reads(bool with_permission)
{
    char byte = 'x', buffer[64];
    int ready[2], status = -1;
    pid_t owner, reader;

    if (pipe2(ready, O_CLOEXEC))
        return -errno;
    memset(read_from, 0x5a, sizeof(read_from));
    owner = fork();
    if (owner == 0) {
        if (with_permission)
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        if (write(ready[1], &byte, 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    close(ready[1]);
    if (owner > 0 && read(ready[0], &byte, 1) == 1) {
        reader = fork();
        if (reader == 0) {
            struct iovec local = {buffer, sizeof(buffer)}, remote = {read_from, sizeof(buffer)};
            long got = syscall(SYS_process_vm_readv, owner, &local, 1ul, &remote, 1ul, 0ul);

            _exit(got == sizeof(buffer) && buffer[0] == 0x5a ? 0 : got < 0 ? errno : EIO);
        }
        if (reader > 0)
            waitpid(reader, &status, 0);
    }
    close(ready[0]);
    if (owner > 0) {
        kill(owner, SIGKILL);
        waitpid(owner, NULL, 0);
    }
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EIO;
}

int yama_scope(void)
{
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    int scope = -1;

    if (file) {
        if (fscanf(file, "%d", &scope) != 1)
            scope = -1;
        fclose(file);
    }
    return scope;
}

static void probe_vm_readv(struct finding *ret)
{
    int plain = sibling_reads(false), permitted = plain ? sibling_reads(true) : 0;

    if (plain == 0) {
        finding_set(ret, FINDING_OK,
                    "an RDMA WRITE or RDMA READ is one copy by its requester (process_vm_writev, "
                    "process_vm_readv), and a "
                    "large SEND one by its receiver");
    } else if (permitted == 0) {
        finding_set(
            ret, FINDING_OK,
            "an RDMA WRITE, RDMA READ or large SEND is one copy, where the peer permits it (PR_SET_PTRACER; "
            "SoftHCA does)");
    } else {
        finding_set(
            ret, FINDING_LIMITED,
            "%s: messages are copied twice, through the shared-memory ring, and an RDMA WRITE or RDMA READ "
            "waits until a thread of the peer polls or its helper thread wakes up",
            strerror(-permitted));
    }
}

static void probe_yama(struct finding *ret)
{
    int scope = yama_scope();

    if (scope < 0)
        finding_set(ret, FINDING_OK, "no Yama in this kernel");
    else if (scope == 0)
        finding_set(ret, FINDING_OK, "kernel.yama.ptrace_scope is 0");
    else if (scope == 1)
        finding_set(ret, FINDING_NOTE,
                    "kernel.yama.ptrace_scope is 1: processes permit their peers by PR_SET_PTRACER "
                    "(automatic)");
    else {
        finding_set(ret, FINDING_LIMITED,
                    "kernel.yama.ptrace_scope is %d: an unprivileged process may not read another's memory",
                    scope);
    }
}

static void probe_userfaultfd(struct finding *ret)
{
    bool in_calls;
    enum mapped_reason reason = mapped_stops_writers(&in_calls);

    if (reason == MAPPED_YES)
        finding_set(ret, FINDING_OK,
                    "registered memory can be switched to a shared mapping while the "
                    "program uses it");
    else
        finding_set(ret, FINDING_NOTE, "%s: registered memory cannot be mapped by peers",
                    mapped_reason_text(reason));
}

static void probe_mapped(struct finding *ret)
{
    struct mapping here = look_at_mapping(false);
    const struct mapped_means *means = &here.means;
    char most[64] = "";

    if (means->reason != MAPPED_YES) {
        finding_set(ret, FINDING_NOTE, "peers do not map registered memory: %s",
                    mapped_reason_text(means->reason));
        return;
    }
    if (means->lock_limit != UINT64_MAX)
        snprintf(most, sizeof(most), ", up to %llu KiB (half of RLIMIT_MEMLOCK)",
                 (unsigned long long)means->lock_limit / 1024);
    if (here.unasked != MAPPED_YES)
        finding_set(ret, FINDING_NOTE,
                    "peers map registered memory%s only with SOFTHCA_LOCAL=mapped in both processes%s: %s",
                    means->single_thread ? " of programs with a single thread" : "", most,
                    mapped_reason_text(here.unasked));
    else if (here.in_calls)
        finding_set(ret, FINDING_NOTE,
                    "peers map registered memory of programs with a single thread%s; of others, the kernel "
                    "copies it for them",
                    most);
    else
        finding_set(ret, FINDING_OK, "peers map registered memory%s", most);
}

static void probe_membarrier(struct finding *ret)
{
    long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);

    if (commands >= 0 && (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) &&
        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0) {
        finding_set(ret, FINDING_OK, "expedited membarrier works: the data path needs no memory fence");
        return;
    }
    finding_set(ret, FINDING_LIMITED, "membarrier is refused: a memory fence in each operation");
    finding_remedy(ret, "allow membarrier in the container's seccomp profile");
}

/* --- limits --- */

static void probe_nofile(struct finding *ret)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    if (limit.rlim_cur >= 1024) {
        finding_set(ret, FINDING_OK, "soft limit %llu (hard limit %llu); each peer process needs a few",
                    (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max);
        return;
    }
    finding_set(ret, FINDING_LIMITED, "soft limit is only %llu: each peer process needs a few",
                (unsigned long long)limit.rlim_cur);
    finding_remedy(ret, "ulimit -n %llu", (unsigned long long)limit.rlim_max);
}

static void probe_memlock(struct finding *ret)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        finding_set(ret, FINDING_OK, "limit %llu KiB; it only matters to registered memory that peers map",
                    (unsigned long long)limit.rlim_cur / 1024);
    else
        finding_set(ret, FINDING_OK, "unlimited; it only matters to memory that peers map, which is locked");
}

static void probe_processors(struct finding *ret)
{
    long count = sysconf(_SC_NPROCESSORS_ONLN);

    if (count > 1) {
        finding_set(ret, FINDING_OK, "%ld", count);
        return;
    }
    finding_set(ret, FINDING_LIMITED,
                "only one: polling processes take turns on it, so latency is a scheduling time slice");
}

static void probe_user_namespace(struct finding *ret)
{
    if (!user_is_known(geteuid())) {
        finding_set(ret, FINDING_LIMITED,
                    "uid %u is the overflow uid of a user namespace, shared by all unmapped users: peers "
                    "with this uid are treated as other users",
                    (unsigned)geteuid());
        finding_remedy(ret, "run with a uid that is mapped in the user namespace");
        return;
    }
    finding_set(ret, FINDING_OK, "uid %u", (unsigned)geteuid());
}

/* --- network and files --- */

/* The port is in use: by SoftHCA, whose processes listen for each other by a name, or by another program. */
static bool softhca_has_port(void)
{
    char line[512];
    FILE *names = fopen("/proc/net/unix", "re");
    bool found = false;

    while (names && !found && fgets(line, sizeof(line), names))
        found = strstr(line, " @softhca/1/udp/") != NULL;
    if (names)
        fclose(names);
    return found;
}

/* The user of the socket at the port; -1: unknown. */
static long port_owner(void)
{
    static const char *const tables[] = {"/proc/net/udp6", "/proc/net/udp"};
    char line[512];
    long owner = -1;

    for (unsigned i = 0; i < 2 && owner < 0; i++) {
        FILE *sockets = fopen(tables[i], "re");
        unsigned port, uid;

        while (sockets && owner < 0 && fgets(line, sizeof(line), sockets))
            if (sscanf(line, " %*d: %*[0-9A-F]:%4X %*s %*s %*s %*s %*s %u", &port, &uid) == 2 &&
                port == ROCE_PORT)
                owner = (long)uid;
        if (sockets)
            fclose(sockets);
    }
    return owner;
}

static void describe_port_owner(struct finding *ret)
{
    static const char then[] =
        "no packets from other hosts are received; traffic within this host is not affected";
    long owner = port_owner();

    if (softhca_has_port()) {
        finding_set(ret, FINDING_OK, "in use by SoftHCA processes of uid %ld, which share it with all users",
                    owner);
    } else if (owner <= 0 && access("/sys/module/rdma_rxe", F_OK) == 0) {
        finding_set(ret, FINDING_LIMITED, "in use by the kernel's Soft-RoCE (rdma_rxe): %s", then);
        finding_remedy(
            ret, "remove its devices (rdma link delete) and the module (modprobe -r rdma_rxe), or run the "
                 "programs that use SoftHCA in another network namespace");
    } else if (owner < 0) {
        finding_set(ret, FINDING_LIMITED,
                    "in use, but by no socket that /proc/net/udp or udp6 shows bound to all addresses: %s",
                    then);
    } else {
        finding_set(ret, FINDING_LIMITED, "in use by another program of uid %ld: %s", owner, then);
        finding_remedy(ret, "stop that program (as root: ss -uanp 'sport = %d' names it)", ROCE_PORT);
    }
}

static void probe_udp_port(struct finding *ret)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(ROCE_PORT)};
    struct sockaddr_in address4 = {.sin_family = AF_INET, .sin_port = htons(ROCE_PORT)};
    int no = 0, fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), fd4 = -1;
    bool has_ipv6 = fd >= 0 || errno != EAFNOSUPPORT;

    if (fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no)) == 0 &&
        bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        finding_set(ret, FINDING_OK, "free: the first process that communicates with another host binds it");
    else if (!has_ipv6 && (fd4 = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0 &&
             bind(fd4, (struct sockaddr *)&address4, sizeof(address4)) == 0)
        finding_set(ret, FINDING_LIMITED,
                    "free; no IPv6 in this kernel: only IPv4 GIDs can reach other hosts");
    else if (errno == EADDRINUSE)
        describe_port_owner(ret);
    else
        finding_set(ret, FINDING_LIMITED, "%s: packets from other hosts are not received", strerror(errno));
    if (fd >= 0)
        close(fd);
    if (fd4 >= 0)
        close(fd4);
}

/* What a burst from the network may take (udp/socket.c asks for so much). */
static void probe_receive_buffer(struct finding *ret)
{
    const int wanted = 4 << 20;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), got = 0;
    socklen_t length = sizeof(got);

    if (fd >= 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &wanted, sizeof(wanted));
        (void)getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &got, &length);
        close(fd);
    }
    got /= 2; /* the kernel doubles what it is asked for, to count its own share in */
    if (got >= wanted) {
        finding_set(ret, FINDING_OK, "%d KiB of socket receive buffer for bursts", got / 1024);
        return;
    }
    finding_set(ret, FINDING_NOTE,
                "%d KiB of socket receive buffer: senders without congestion control (Soft-RoCE) can "
                "overrun it, and packets are lost",
                got / 1024);
    finding_remedy(ret, "sysctl -w net.core.rmem_max=%d", wanted);
}

static void probe_real_devices(struct finding *ret)
{
    char names[160];

    real_devices(names, sizeof(names));
    if (names[0])
        finding_set(ret, FINDING_NOTE, "%s: not shown to programs under softhca", names);
    else
        finding_set(ret, FINDING_OK, "none");
}

static void probe_dev_infiniband(struct finding *ret)
{
    struct stat status;

    if (stat("/dev/infiniband", &status) == 0)
        finding_set(ret, FINDING_NOTE, "/dev/infiniband exists; softhca run shows SoftHCA's own instead");
    else
        finding_set(ret, FINDING_OK,
                    "no /dev/infiniband: softhca run shows one to programs that look for it (UCX)");
}

long own_status(const char *field)
{
    FILE *file = fopen("/proc/self/status", "re");
    size_t length = strlen(field);
    char line[256];
    long value = 0;

    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, field, length) == 0 && line[length] == ':') {
            value = strtol(line + length + 1, NULL, 10);
            break;
        }
    }
    if (file)
        fclose(file);
    return value;
}

static void probe_seccomp(struct finding *ret)
{
    if (own_status("Seccomp") == 0)
        finding_set(ret, FINDING_OK, "no filter");
    else
        finding_set(ret, FINDING_NOTE,
                    "a seccomp filter is active (container?): see the other lines for what it blocks");
}

static void probe_tracer(struct finding *ret)
{
    long tracer = own_status("TracerPid");

    if (tracer)
        finding_set(ret, FINDING_NOTE,
                    "process %ld traces this process (debugger): while it is stopped, "
                    "peers get no response",
                    tracer);
    else
        finding_set(ret, FINDING_OK, "not traced");
}

const struct probe probes[] = {
    {"abstract unix sockets", probe_abstract_sockets},
    {"sealed memfd", probe_memfd},
    {"pidfd", probe_pidfd},
    {"SO_PEERPIDFD", probe_peerpidfd},
    {"process_vm_readv", probe_vm_readv},
    {"Yama", probe_yama},
    {"membarrier", probe_membarrier},
    {"userfaultfd", probe_userfaultfd},
    {"mapped memory", probe_mapped},
    {"seccomp", probe_seccomp},
    {"PID namespace", probe_pid_namespace},
    {"user", probe_user_namespace},
    {"open files", probe_nofile},
    {"locked memory", probe_memlock},
    {"processors", probe_processors},
    {"UDP port 4791", probe_udp_port},
    {"receive buffer", probe_receive_buffer},
    {"/dev/infiniband", probe_dev_infiniband},
    {"real RDMA devices", probe_real_devices},
    {"debugger", probe_tracer},
    {"this environment", probe_environment},
};
const unsigned probe_count = sizeof(probes) / sizeof(probes[0]);
