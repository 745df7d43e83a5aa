/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Whose memory a process of another pid namespace may map: of whom the kernel would let it trace, and nobody else's
 * (docs/mapped.md). Requester and owner are processes of one network namespace, as two containers of a pod are. */
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/newer_kernel.h"
#include "work.h"

enum { REQUESTER = 1, OWNER = 2, SIDES = 2, ANOTHER_ID = 61002 };

/* What a side does before it uses a verb. */
enum change {
    OWN_PIDS = 1, /* a pid namespace of its own, and a /proc that shows it */
    OWN_USERS = 2,
    ANOTHER_USER = 4,
    NO_CAPABILITIES = 8,
    NO_GETFD = 16, /* a filter refuses pidfd_getfd(2) */
};

struct place {
    unsigned changes;
    pid_t users; /* a process in whose user namespace the side begins; 0: where it is */
    int error;   /* result: errno */
};

static void lose_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};

    CHECK(!syscall(SYS_capset, &header, none), "capset: %s", strerror(errno));
}

static void refuse_getfd(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 438, 0, 1), /* pidfd_getfd, on all architectures */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = COUNT(code), .filter = code};

    CHECK_ZERO(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "PR_SET_SECCOMP: %s", strerror(errno));
}

static bool enter_users(pid_t pid)
{
    char path[64];
    int fd;
    bool entered;

    snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    entered = fd >= 0 && setns(fd, CLONE_NEWUSER) == 0;
    if (fd >= 0)
        close(fd);
    return entered;
}

/* The side goes on in a child: a process does not enter the pid namespace that it makes. */
static bool enter_pids(void)
{
    int status = 0;
    pid_t child;

    if (unshare(CLONE_NEWPID | CLONE_NEWNS))
        return false;
    child = fork();
    if (child < 0)
        return false;
    if (child > 0) {
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) && !mount("proc", "/proc", "proc", 0, NULL);
}

static void change_here(void *arg)
{
    struct place *place = arg;

    place->error = 0;
    if ((place->users && !enter_users(place->users)) || ((place->changes & OWN_PIDS) && !enter_pids()) ||
        ((place->changes & OWN_USERS) && unshare(CLONE_NEWUSER))) {
        place->error = errno;
        return;
    }
    if (place->changes & ANOTHER_USER)
        CHECK(!setresgid(ANOTHER_ID, ANOTHER_ID, ANOTHER_ID) &&
                  !setresuid(ANOTHER_ID, ANOTHER_ID, ANOTHER_ID),
              "setresuid: %s", strerror(errno));
    if (place->changes & NO_CAPABILITIES)
        lose_capabilities();
    if (place->changes & NO_GETFD)
        refuse_getfd();
    /* What these changes have taken away */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 1);
}

/* Another number inside: that of the test's user may be the overflow uid, which says nothing in a user namespace. */
static void write_map(const char *path, unsigned id)
{
    char map[64];
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    snprintf(map, sizeof(map), "%u %u 1", (unsigned)ANOTHER_ID, id);
    CHECK(fd >= 0 && write(fd, map, strlen(map)) == (ssize_t)strlen(map), "%s: %s", path, strerror(errno));
    close(fd);
}

/* Makes namespaces possible. The process in whose user namespace they are, or 0. */
static pid_t prepare(void)
{
    unsigned user = geteuid(), group = getegid();
    int fd;

    if (!two_processes())
        skip_because("one process");
    if (geteuid() == 0)
        return 0;
    if (unshare(CLONE_NEWUSER))
        skip_because("no user namespace: %s", strerror(errno));
    prctl(PR_SET_DUMPABLE, 1);
    fd = open("/proc/self/setgroups", O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && write(fd, "deny", 4) == 4, "setgroups: %s", strerror(errno));
    close(fd);
    write_map("/proc/self/uid_map", user);
    write_map("/proc/self/gid_map", group);
    return getpid();
}

/* a is the requester, b the owner of the memory. */
static void connect_sides(struct pair *p, unsigned requester, unsigned owner)
{
    const unsigned changes[] = {[REQUESTER] = requester, [OWNER] = owner};
    pid_t users = prepare();
    struct end_attr attr = attr_of(IBV_QPT_RC);

    for (int i = REQUESTER; i <= SIDES; i++) {
        struct place place = {.changes = changes[i], .users = users};

        side_call(&sides[i], change_here, &place, sizeof(place));
        if (place.error)
            skip_because("no namespaces: %s", strerror(place.error));
    }
    attr.size = 1 << 18;
    end_open(&p->a, &sides[REQUESTER], &attr);
    end_open(&p->b, &sides[OWNER], &attr);
    end_connect(&p->a, &p->b);
}

/* --- what is mapped ------------------------------------------------------------------------------------- */

struct files {
    unsigned long inode[16];
    unsigned count;
};

/* The files of SoftHCA that this process has mapped and that have this in their name. */
static void find_files(const char *name, struct files *ret_files)
{
    FILE *file = fopen("/proc/self/maps", "re");
    char line[512];

    CHECK(file, "/proc/self/maps: %s", strerror(errno));
    ret_files->count = 0;
    while (fgets(line, sizeof(line), file)) {
        unsigned long inode;

        if (!strstr(line, name) || sscanf(line, "%*s %*s %*s %*s %lu", &inode) != 1)
            continue;
        if (ret_files->count && ret_files->inode[ret_files->count - 1] == inode)
            continue;
        CHECK(ret_files->count < COUNT(ret_files->inode), "too many files");
        ret_files->inode[ret_files->count++] = inode;
    }
    fclose(file);
}

static void arenas_here(void *arg)
{
    find_files("memfd:softhca-mapped", arg);
}

static void segments_here(void *arg)
{
    find_files("memfd:softhca ", arg);
}

/* Has the requester mapped a file of this kind that the owner has mapped, too? */
static bool have_in_common(const struct pair *p, side_fn *find)
{
    struct files of_requester = {0}, of_owner = {0};

    side_call(p->a.side, find, &of_requester, sizeof(of_requester));
    side_call(p->b.side, find, &of_owner, sizeof(of_owner));
    for (unsigned i = 0; i < of_requester.count; i++)
        for (unsigned j = 0; j < of_owner.count; j++)
            if (of_requester.inode[i] == of_owner.inode[j])
                return true;
    return false;
}

/* --- requests ------------------------------------------------------------------------------------------- */

/* The requester writes, reads and adds in turn. The owner polls, as a program does whose memory is mapped in its
 * calls. */
static void use_memory(struct pair *p, uint64_t *value)
{
    struct end *a = &p->a;
    struct ibv_wc wc;

    end_poke64(a, 0, ++*value);
    end_send(a, a_write(a, 1, 0, 8, &p->b, 0));
    end_expect_success(a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_send(a, a_fetch_add(a, 2, 8, &p->b, 0, 1));
    end_expect_success(a, SQ, 2, IBV_WC_FETCH_ADD);
    assert_int_equal(end_peek64(a, 8), *value);
    end_send(a, a_read(a, 3, 16, 8, &p->b, 0));
    end_expect_success(a, SQ, 3, IBV_WC_RDMA_READ);
    assert_int_equal(end_peek64(a, 16), ++*value);
    assert_int_equal(end_peek64(&p->b, 0), *value);
    assert_int_equal(end_poll_once(&p->b, SQ, &wc, 1), 0);
}

/* The number here of the process in which a side goes on. */
static pid_t process_of(const struct side *side)
{
    char path[64];
    int child = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)side->pid, (int)side->pid);
    file = fopen(path, "re");
    if (!file || fscanf(file, "%d", &child) != 1)
        child = 0;
    if (file)
        fclose(file);
    return child > 0 ? child : side->pid;
}

static bool is_stopped(pid_t pid)
{
    char path[64], state = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    CHECK(file && fscanf(file, "%*d %*s %c", &state) == 1, "%s", path);
    fclose(file);
    return state == 'T';
}

/* Neither a thread of the owner nor, across pid namespaces, the kernel's copy can do what is done here. */
static void use_memory_of_a_stopped_owner(struct pair *p, uint64_t value)
{
    struct end *a = &p->a;
    pid_t owner = process_of(p->b.side);

    kill(owner, SIGSTOP);
    EVENTUALLY(is_stopped(owner), "the owner to stop");
    end_poke64(a, 0, value + 1);
    end_send(a, a_write(a, 1, 0, 8, &p->b, 0));
    end_expect_success(a, SQ, 1, IBV_WC_RDMA_WRITE);
    end_send(a, a_fetch_add(a, 2, 8, &p->b, 0, 1));
    end_expect_success(a, SQ, 2, IBV_WC_FETCH_ADD);
    assert_int_equal(end_peek64(a, 8), value + 1);
    end_send(a, a_read(a, 3, 16, 8, &p->b, 0));
    end_expect_success(a, SQ, 3, IBV_WC_RDMA_READ);
    assert_int_equal(end_peek64(a, 16), value + 2);
    kill(owner, SIGCONT);
    assert_int_equal(end_peek64(&p->b, 0), value + 2);
}

static void deregister_here(struct end *end, void *arg)
{
    CHECK_ZERO(ibv_dereg_mr(end->mr));
    end->mr = NULL;
}

static void memory_is_mapped(struct pair *p)
{
    uint64_t value = 0;

    EVENTUALLY(have_in_common(p, arenas_here), "memory of the owner to be mapped at the requester")
    use_memory(p, &value);
    use_memory(p, &value); /* the view that was mapped is there */
    use_memory_of_a_stopped_owner(p, value);
    /* Nothing is accessed any more once the registration has ended. */
    AT_PLAIN(&p->b, deregister_here);
    end_send(&p->a, a_write(&p->a, 4, 0, 8, &p->b, 0));
    end_expect_status(&p->a, SQ, 4, IBV_WC_REM_ACCESS_ERR);
    assert_int_equal(end_peek64(&p->b, 0), value + 2);
    end_close(&p->a);
    end_close(&p->b);
}

static void memory_is_not_mapped(struct pair *p)
{
    uint64_t value = 0;

    for (int i = 0; i < 50; i++)
        use_memory(p, &value);
    assert_false(have_in_common(p, arenas_here));
    assert_false(have_in_common(p, segments_here));
    end_close(&p->a);
    end_close(&p->b);
}

/* A pidfd of this process, as a peer gets it. */
static int pidfd_of_peer(void)
{
    int ends[2], pidfd;
    socklen_t length = sizeof(pidfd);

    CHECK_ZERO(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    if (getsockopt(ends[0], SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) != 0)
        pidfd = -1;
    close(ends[0]);
    close(ends[1]);
    return pidfd;
}

static void needs_pidfds_of_peers(void)
{
    int pidfd = pidfd_of_peer();

    if (pidfd < 0)
        skip_because("no pidfds of peers in other pid namespaces (SO_PEERPIDFD, Linux 6.5)");
    close(pidfd);
}

static void needs_namespaces_of_pidfds(void)
{
    int pidfd, namespace;

    needs_pidfds_of_peers();
    pidfd = pidfd_of_peer();
    namespace = ioctl(pidfd, PIDFD_GET_USER_NAMESPACE, NULL);
    close(pidfd);
    if (namespace < 0)
        skip_because("a pidfd does not lead to its namespaces (Linux 6.11)");
    close(namespace);
}

/* --- tests ---------------------------------------------------------------------------------------------- */

static void of_two_pid_namespaces_with_the_same_capabilities(void **state)
{
    struct pair p;

    needs_pidfds_of_peers();
    connect_sides(&p, OWN_PIDS, OWN_PIDS);
    memory_is_mapped(&p);
}

static void of_two_pid_namespaces_without_capabilities(void **state)
{
    struct pair p;

    needs_pidfds_of_peers();
    connect_sides(&p, OWN_PIDS | NO_CAPABILITIES, OWN_PIDS | NO_CAPABILITIES);
    memory_is_mapped(&p);
}

/* What the kernel does not show the requester, the owner sends. */
static void of_two_pid_namespaces_as_the_owner_decides(void **state)
{
    struct pair p;

    if (path_under_test() != PATH_MAPPED)
        skip_because("with a filter, no memory is mapped unasked");
    needs_namespaces_of_pidfds();
    connect_sides(&p, OWN_PIDS | NO_CAPABILITIES | NO_GETFD, OWN_PIDS | NO_CAPABILITIES);
    memory_is_mapped(&p);
}

static void of_the_machine_for_a_container(void **state)
{
    struct pair p;

    needs_pidfds_of_peers();
    connect_sides(&p, OWN_PIDS, 0);
    memory_is_mapped(&p);
}

static void of_a_container_for_the_machine(void **state)
{
    struct pair p;

    needs_pidfds_of_peers();
    connect_sides(&p, 0, OWN_PIDS);
    memory_is_mapped(&p);
}

static void not_for_fewer_capabilities(void **state)
{
    struct pair p;

    connect_sides(&p, OWN_PIDS | NO_CAPABILITIES, OWN_PIDS);
    memory_is_not_mapped(&p);
}

static void not_for_another_user_namespace(void **state)
{
    struct pair p;

    connect_sides(&p, OWN_PIDS | OWN_USERS, OWN_PIDS);
    memory_is_not_mapped(&p);
}

static void not_for_another_user(void **state)
{
    struct pair p;

    if (geteuid() != 0)
        skip_because("needs root, to be two users");
    connect_sides(&p, OWN_PIDS | ANOTHER_USER, OWN_PIDS | NO_CAPABILITIES);
    memory_is_not_mapped(&p);
}

static void hide_here(void *arg)
{
    CHECK_ZERO(prctl(PR_SET_DUMPABLE, 0));
}

static void show_here(void *arg)
{
    CHECK_ZERO(prctl(PR_SET_DUMPABLE, 1)); /* /proc/self is its own again */
}

static void not_of_a_process_that_is_not_dumpable(void **state)
{
    uint64_t value = 0;
    struct pair p;

    connect_sides(&p, OWN_PIDS | NO_CAPABILITIES, OWN_PIDS | NO_CAPABILITIES);
    side_call(p.b.side, hide_here, NULL, 0);
    for (int i = 0; i < 50; i++)
        use_memory(&p, &value);
    side_call(p.b.side, show_here, NULL, 0);
    assert_false(have_in_common(&p, arenas_here));
    assert_false(have_in_common(&p, segments_here));
    end_close(&p.a);
    end_close(&p.b);
}

static const struct test tests[] = {
    TEST_WITH(of_two_pid_namespaces_with_the_same_capabilities, .fars = SIDES),
    TEST_WITH(of_two_pid_namespaces_without_capabilities, .fars = SIDES),
    TEST_WITH(of_two_pid_namespaces_as_the_owner_decides, .fars = SIDES),
    TEST_WITH(of_the_machine_for_a_container, .fars = SIDES),
    TEST_WITH(of_a_container_for_the_machine, .fars = SIDES),
    TEST_WITH(not_for_fewer_capabilities, .fars = SIDES),
    TEST_WITH(not_for_another_user_namespace, .fars = SIDES),
    TEST_WITH(not_for_another_user, .fars = SIDES),
    TEST_WITH(not_of_a_process_that_is_not_dumpable, .fars = SIDES),
};

int main(int argc, char **argv)
{
    return run_topic(tests, COUNT(tests), argc, argv);
}
