/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "attacker.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/newer_kernel.h"

enum { COMMAND_SECONDS = 30, TEXT_MAX = 1 << 20, FIRST_FD = 3 };

static bool lo_up(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0;

    close(fd);
    return up;
}

static void __attribute__((noreturn)) skip_all(const char *what)
{
    printf("1..0 # SKIP no namespaces of our own: %s: %s\n", what, strerror(errno));
    fflush(NULL);
    _exit(0);
}

/* The first process of a pid namespace adopts orphans, and most signals do not end it: it only waits for the test. */
static void be_init(void)
{
    int status = 0;
    pid_t test, ended;

    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL) != 0 ||
        mount("hostile", "/mnt", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m") != 0)
        skip_all("/proc, /mnt");
    if (!lo_up())
        skip_all("lo");
    test = fork();
    if (test == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return;
    }
    do
        ended = waitpid(-1, &status, 0);
    while (ended != test && (ended > 0 || errno == EINTR));
    _exit(ended == test && WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

void enter_own_host(void)
{
    int status = 1;
    pid_t init;

    if (geteuid() != 0)
        return;
    if (unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWNET) != 0)
        skip_all("unshare");
    init = fork();
    if (init == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_init();
        return;
    }
    while (waitpid(init, &status, 0) < 0 && errno == EINTR)
        ;
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

void need_root(void)
{
    if (geteuid() != 0)
        skip_because("needs root, to be several users");
}

void become(uid_t user)
{
    CHECK(setgroups(0, NULL) == 0 && setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0,
          "setresuid: %s", strerror(errno));
    /* What a change of user has taken away */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 1);
}

struct attacker attacker_start(uid_t user, attack *body, const void *argument)
{
    struct attacker attacker;
    int ends[2];

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "socketpair: %s",
          strerror(errno));
    fflush(NULL);
    attacker.pid = fork();
    if (attacker.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* A side of the test ends when nobody else has the other end of its socket. */
        CHECK(dup2(ends[1], FIRST_FD) == FIRST_FD && syscall(SYS_close_range, FIRST_FD + 1, ~0u, 0) == 0,
              "close_range: %s", strerror(errno));
        if (user != geteuid())
            become(user);
        body(FIRST_FD, argument);
        _exit(0);
    }
    CHECK(attacker.pid > 0, "fork: %s", strerror(errno));
    close(ends[1]);
    attacker.connection = ends[0];
    return attacker;
}

void attacker_ready(int connection, const void *told, size_t length)
{
    char more;

    if (send(connection, told, length, MSG_NOSIGNAL) == (ssize_t)length)
        (void)!read(connection, &more, 1); /* until the test ends it */
}

void attacker_told(const struct attacker *attacker, void *ret_told, size_t length)
{
    ssize_t got = recv(attacker->connection, ret_told, length, 0);

    CHECK(got == (ssize_t)length, "the attacker has ended: %zd of %zu bytes", got, length);
}

void attacker_end(struct attacker *attacker)
{
    int status;

    close(attacker->connection);
    kill(attacker->pid, SIGKILL);
    CHECK(waitpid(attacker->pid, &status, 0) == attacker->pid, "waitpid: %s", strerror(errno));
}

int make_segment_file(unsigned int memfd_flags, off_t size, int seals)
{
    int fd = memfd_create("softhca", MFD_CLOEXEC | MFD_ALLOW_SEALING | memfd_flags);

    CHECK(fd >= 0 && ftruncate(fd, size) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0, "memfd: %s",
          strerror(errno));
    return fd;
}

static void read_all(int fd, char *text)
{
    size_t filled = 0;
    ssize_t got;

    while (filled < TEXT_MAX - 1 && (got = read(fd, text + filled, TEXT_MAX - 1 - filled)) > 0)
        filled += (size_t)got;
    text[filled] = '\0';
}

int run_softhca(const char *const *arguments, char **ret_text)
{
    const char *command = getenv("SOFTHCA_COMMAND");
    const char *argv[8] = {"softhca"};
    char *text = calloc(1, TEXT_MAX);
    int output[2], status;
    pid_t child;

    for (size_t i = 0; i + 2 < COUNT(argv) && arguments[i]; i++)
        argv[i + 1] = arguments[i];
    CHECK(command && text && pipe2(output, O_CLOEXEC) == 0, "SOFTHCA_COMMAND is the path of softhca");
    child = fork();
    if (child == 0) {
        dup2(output[1], STDOUT_FILENO);
        dup2(output[1], STDERR_FILENO);
        alarm(COMMAND_SECONDS);
        execv(command, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(output[1]);
    read_all(output[0], text);
    close(output[0]);
    CHECK(waitpid(child, &status, 0) == child, "waitpid: %s", strerror(errno));
    if (ret_text)
        *ret_text = text;
    else
        free(text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
