/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "unit.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unix_names.h"

enum { REST = 4, ANOTHER_USER = 61013 };

static char prefix[48]; /* of this process alone */
static int unconnected, listener;

static int bind_to(int type, const char *rest)
{
    struct sockaddr_un address;
    char name[64];
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    socklen_t length;

    snprintf(name, sizeof(name), "%s%s", prefix, rest);
    length = unix_name_address(name, &address);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    return fd;
}

struct seen {
    unsigned names, unconnected, listener;
    uid_t uid;
};

static void note(const char *rest, uid_t uid, void *argument)
{
    struct seen *seen = argument;

    seen->names++;
    seen->unconnected += !strcmp(rest, "own1");
    seen->listener += !strcmp(rest, "own2");
    seen->uid = uid;
}

static struct seen look(void)
{
    struct seen seen = {0};

    assert_int_equal(unix_names_visit_unconnected(prefix, REST, note, &seen), 0);
    return seen;
}

static int bind_names(void **state)
{
    snprintf(prefix, sizeof(prefix), "softhca-test/%d/", (int)getpid());
    unconnected = bind_to(SOCK_DGRAM, "own1");
    listener = bind_to(SOCK_SEQPACKET, "own2");
    assert_int_equal(listen(listener, 1), 0);
    return 0;
}

static int close_names(void **state)
{
    close(unconnected);
    close(listener);
    return 0;
}

static void the_kernel_tells_whose_a_name_is(void **state)
{
    const int longer = bind_to(SOCK_DGRAM, "longer");
    const struct seen seen = look();

    if (seen.uid == UNIX_NAME_UID_UNKNOWN)
        skip(); /* this kernel does not */
    assert_int_equal(seen.uid, geteuid());
    assert_int_equal(seen.unconnected, 1);
    assert_int_equal(seen.names, 1); /* neither the listener nor the longer name */
    close(longer);
}

/* Runs `body` in a process of its own. */
static void in_a_child(bool (*body)(void))
{
    const pid_t child = fork();
    int status;

    if (child == 0)
        _exit(body() ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static bool look_as_another(void)
{
    return setresuid(ANOTHER_USER, ANOTHER_USER, ANOTHER_USER) == 0 && look().uid == 0;
}

static void another_user_is_told_as_well(void **state)
{
    if (geteuid() != 0 || look().uid == UNIX_NAME_UID_UNKNOWN)
        skip(); /* only root can be two users */
    in_a_child(look_as_another);
}

static bool look_without_netlink(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = array_size(code), .filter = code};
    struct seen seen;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return false;
    seen = look();
    return seen.uid == UNIX_NAME_UID_UNKNOWN && seen.unconnected == 1 && seen.listener == 1;
}

static void without_netlink_the_names_are_told_and_not_whose_they_are(void **state)
{
    in_a_child(look_without_netlink);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernel_tells_whose_a_name_is),
        cmocka_unit_test(another_user_is_told_as_well),
        cmocka_unit_test(without_netlink_the_names_are_told_and_not_whose_they_are),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("unix_names", tests, bind_names, close_names);
}
