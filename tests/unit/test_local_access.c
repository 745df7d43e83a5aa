/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Who gets descriptors of a process: whoever could trace it, decided by what the kernel says about the other end of the
 * socket. Owner and asker are processes in namespaces, and with capabilities, of their own. */
#include "test_local_sides.h"

#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/sys.h"
#include "local/handshake_message.h"

/* What a process does before the test begins. */
enum change {
    OWN_PIDS = 1,      /* a pid namespace of its own */
    OWN_USERS = 2,     /* a user namespace of its own */
    ANOTHER_GROUP = 4, /* another group of the same user */
    ANOTHER_USER = 8,
    FEWER_CAPABILITIES = 16,
    NO_CAPABILITIES = 32,
    NOT_DUMPABLE = 64,
};

enum { ANOTHER_ID = 61002 };

static unsigned owner_changes, asker_changes;

static void set_capabilities(uint64_t lost)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    CHECK(syscall(SYS_capget, &header, data) == 0);
    for (unsigned i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
        const uint32_t kept = ~(uint32_t)(lost >> 32 * i);

        data[i].permitted &= kept;
        data[i].effective &= kept;
        data[i].inheritable &= kept;
    }
    CHECK(syscall(SYS_capset, &header, data) == 0);
}

/* The rest of the side runs in a child: a process does not enter the pid namespace that it makes. */
static void begin(unsigned changes)
{
    if (changes & OWN_USERS)
        CHECK(unshare(CLONE_NEWUSER) == 0);
    if (changes & OWN_PIDS) {
        int status = 0;
        pid_t child;

        CHECK(unshare(CLONE_NEWPID) == 0);
        child = fork();
        CHECK(child >= 0);
        if (child > 0) {
            CHECK(waitpid(child, &status, 0) == child);
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    if (changes & ANOTHER_GROUP)
        CHECK(setresgid(ANOTHER_ID, ANOTHER_ID, ANOTHER_ID) == 0);
    if (changes & ANOTHER_USER)
        CHECK(setresuid(ANOTHER_ID, ANOTHER_ID, ANOTHER_ID) == 0);
    if (changes & FEWER_CAPABILITIES)
        set_capabilities(1ull << CAP_SETPCAP);
    if (changes & NO_CAPABILITIES)
        set_capabilities(UINT64_MAX);
    CHECK(prctl(PR_SET_DUMPABLE, !(changes & NOT_DUMPABLE)) == 0); /* a change of user or group ends it */
}

static bool has_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    return syscall(SYS_capget, &header, data) == 0 && (data[0].permitted & (1u << CAP_SYS_ADMIN)) &&
           (data[0].permitted & (1u << CAP_SETPCAP));
}

/* --- the published segment ------------------------------------------------------------------------------ */

/* The answer; ret_fds: what came along, or -1. */
static enum segment_request_result request_segment(uint32_t qpn, int ret_fds[SEGMENT_REQUEST_FILES])
{
    struct segment_request message = {
        .magic = SEGMENT_REQUEST_MAGIC, .version = SEGMENT_REQUEST_VERSION, .type = SEGMENT_REQUEST_TYPE};
    struct iovec part = {&message, sizeof(message)};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(SEGMENT_REQUEST_FILES * sizeof(int))];
    } control = {0};
    struct msghdr answer = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
    struct sockaddr_un address;
    socklen_t length = block_address(qpn / LOCAL_BLOCK_QPNS, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CHECK(connect(fd, (struct sockaddr *)&address, length) == 0);
    CHECK(send(fd, &message, sizeof(message), 0) == sizeof(message));
    CHECK(recvmsg(fd, &answer, MSG_CMSG_CLOEXEC) == sizeof(message));
    CHECK(message.magic == SEGMENT_REQUEST_MAGIC && message.type == SEGMENT_REQUEST_TYPE);
    ret_fds[0] = ret_fds[1] = -1;
    if (answer.msg_controllen >= CMSG_LEN(SEGMENT_REQUEST_FILES * sizeof(int)))
        memcpy(ret_fds, CMSG_DATA(&control.header), SEGMENT_REQUEST_FILES * sizeof(int));
    close(fd);
    return (enum segment_request_result)message.result;
}

static void is_asked(unsigned number)
{
    unsigned fds;

    begin(owner_changes & ~(unsigned)NOT_DUMPABLE);
    side_up();
    publish_qpn(0);
    fds = count_fds();
    begin(owner_changes & NOT_DUMPABLE);
    UNTIL(atomic_load(&board->word[0]) == 1);
    CHECK(prctl(PR_SET_DUMPABLE, 1) == 0); /* /proc/self is ours again */
    CHECK(count_fds() == fds);
    atomic_store(&board->word[0], 2);
    UNTIL(seen.packets == 1);
}

/* All else is as it was. */
static void go_on(uint32_t qpn)
{
    struct link *link;

    atomic_store(&board->word[0], 1);
    UNTIL(atomic_load(&board->word[0]) == 2);
    link = find_link(qpn);
    CHECK(link != NULL);
    send_text(link_lane(link, qpn), qpn, 4711, "go on");
}

static void is_granted(unsigned number)
{
    static const char *const files[] = {"/dev/zero", "/dev/null"};
    int fds[SEGMENT_REQUEST_FILES];
    struct stat shown, wanted;

    begin(asker_changes);
    side_up();
    CHECK(request_segment(await_qpn(0), fds) == SEGMENT_GRANTED);
    for (unsigned i = 0; i < SEGMENT_REQUEST_FILES; i++) {
        CHECK(fds[i] >= 0 && fstat(fds[i], &shown) == 0 && stat(files[i], &wanted) == 0);
        CHECK(shown.st_rdev == wanted.st_rdev);
        close(fds[i]);
    }
    go_on(await_qpn(0));
}

static void is_refused(unsigned number)
{
    int fds[SEGMENT_REQUEST_FILES];

    begin(asker_changes);
    side_up();
    CHECK(request_segment(await_qpn(0), fds) == SEGMENT_REFUSED && fds[0] < 0);
    go_on(await_qpn(0));
}

/* Before Linux 6.11 the namespaces of a process are not known by its pidfd, and nobody is granted anything. */
static void need_namespaces(void)
{
    int pidfd = sys_pidfd_open(getpid()), namespace = ioctl(pidfd, _IO(0xFF, 9), 0);

    if (namespace < 0)
        skip();
    close(namespace);
    close(pidfd);
}

/* A process with threads may not have a namespace of users, and under QEMU's user emulation each has threads. */
static void need_user_namespaces(void)
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        _exit(unshare(CLONE_NEWUSER) ? errno : 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status)) {
        print_message("no namespace of users: %s\n", strerror(WEXITSTATUS(status)));
        skip();
    }
}

static void ask(unsigned owner, unsigned asker, side_fn *expected)
{
    pid_t sides[2];

    if (!has_capabilities())
        skip(); /* no user namespace is to be had */
    board_clear();
    owner_changes = owner;
    asker_changes = asker;
    sides[0] = side_start_bare(is_asked, 0);
    sides[1] = side_start_bare(expected, 1);
    side_finish(sides[1]); /* who fails first */
    side_finish(sides[0]);
}

static void test_another_pid_namespace_is_granted(void **state)
{
    need_namespaces();
    ask(0, OWN_PIDS, is_granted);
    ask(NO_CAPABILITIES, OWN_PIDS | NO_CAPABILITIES, is_granted);
}

/* Neither sees the other; an owner without capabilities knows enough. */
static void test_a_process_that_is_not_seen_is_granted(void **state)
{
    need_namespaces();
    ask(OWN_PIDS | NO_CAPABILITIES, OWN_PIDS | NO_CAPABILITIES, is_granted);
}

/* It opens /proc/PID/fd, where the kernel decides. */
static void test_the_same_pid_namespace_is_refused(void **state)
{
    ask(0, 0, is_refused);
    ask(NO_CAPABILITIES, NO_CAPABILITIES, is_refused);
}

static void test_fewer_capabilities_are_refused(void **state)
{
    ask(0, FEWER_CAPABILITIES, is_refused);
    ask(0, OWN_PIDS | FEWER_CAPABILITIES, is_refused);
    ask(0, OWN_PIDS | NO_CAPABILITIES, is_refused);
    ask(FEWER_CAPABILITIES, OWN_PIDS | NO_CAPABILITIES, is_refused);
}

/* Which capabilities the other process has is not known. */
static void test_an_owner_with_capabilities_refuses_who_is_not_seen(void **state)
{
    ask(OWN_PIDS, OWN_PIDS, is_refused);
    ask(OWN_PIDS, 0, is_refused);
}

/* Nor in which user namespace a process is that has more of them. */
static void test_an_owner_without_capabilities_refuses_who_has_some(void **state)
{
    ask(NO_CAPABILITIES, OWN_PIDS, is_refused);
    ask(OWN_PIDS | NO_CAPABILITIES, 0, is_refused);
}

static void test_another_user_namespace_is_refused(void **state)
{
    need_user_namespaces();
    ask(NO_CAPABILITIES, OWN_PIDS | OWN_USERS, is_refused);
    ask(0, OWN_PIDS | OWN_USERS, is_refused);
    ask(OWN_PIDS | OWN_USERS, OWN_PIDS | OWN_USERS | NO_CAPABILITIES, is_refused);
}

static void test_another_user_or_group_is_refused(void **state)
{
    if (geteuid() != 0)
        skip();
    ask(0, OWN_PIDS | ANOTHER_GROUP, is_refused);
    ask(NO_CAPABILITIES, OWN_PIDS | ANOTHER_GROUP | NO_CAPABILITIES, is_refused);
    ask(0, OWN_PIDS | ANOTHER_USER, is_refused);
    ask(ANOTHER_USER, OWN_PIDS, is_refused); /* uid 0: of a container, as far as the owner knows */
}

static void test_an_owner_that_is_not_dumpable_refuses(void **state)
{
    ask(NOT_DUMPABLE, OWN_PIDS, is_refused);
    ask(NOT_DUMPABLE | NO_CAPABILITIES, OWN_PIDS | NO_CAPABILITIES, is_refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_pid_namespace_is_granted),
        cmocka_unit_test(test_a_process_that_is_not_seen_is_granted),
        cmocka_unit_test(test_the_same_pid_namespace_is_refused),
        cmocka_unit_test(test_fewer_capabilities_are_refused),
        cmocka_unit_test(test_an_owner_with_capabilities_refuses_who_is_not_seen),
        cmocka_unit_test(test_an_owner_without_capabilities_refuses_who_has_some),
        cmocka_unit_test(test_another_user_namespace_is_refused),
        cmocka_unit_test(test_another_user_or_group_is_refused),
        cmocka_unit_test(test_an_owner_that_is_not_dumpable_refuses),
    };

    return run_local_tests("local_access", tests);
}
