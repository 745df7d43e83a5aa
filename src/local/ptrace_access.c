/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "local/ptrace_access.h"

#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/event.h"
#include "base/newer_kernel.h"
#include "base/sys.h"
#include "base/user.h"
#include "local/handshake_message.h"

enum answer { NO, YES, UNKNOWN };

/* Is the process in the namespace of that path, of this process? */
static enum answer is_in_namespace(int pidfd, unsigned long which, const char *path)
{
    int fd = fd_own(sys_ioctl(pidfd, which, NULL));
    struct stat its, ours;
    enum answer answer = UNKNOWN;

    if (fd >= 0 && fstat(fd, &its) == 0 && stat(path, &ours) == 0)
        answer = its.st_ino == ours.st_ino && its.st_dev == ours.st_dev ? YES : NO;
    fd_close(fd);
    return answer;
}

/* Is the user of this process, as the kernel compares it, that of the peer? So for the group. */
static bool same_ids(const struct ucred *peer)
{
    uid_t user, effective_user, saved_user;
    gid_t group, effective_group, saved_group;

    return getresuid(&user, &effective_user, &saved_user) == 0 &&
           getresgid(&group, &effective_group, &saved_group) == 0 && user == peer->uid &&
           effective_user == peer->uid && saved_user == peer->uid && group == peer->gid &&
           effective_group == peer->gid && saved_group == peer->gid && user_is_known(peer->uid) &&
           group_is_known(peer->gid);
}

/* Capabilities that one thread of this process has. Others may have lost some, but its main thread is what is
 * traced. */
static bool read_our_capabilities(uint64_t *ret_permitted)
{
    uint64_t of_thread, of_main;

    if (sys_permitted_capabilities(0, &of_thread) != 0 || sys_permitted_capabilities(getpid(), &of_main) != 0)
        return false;
    *ret_permitted = of_thread | of_main;
    return true;
}

/* pid 0: not visible here. */
static bool has_as_many_capabilities(pid_t pid)
{
    uint64_t ours, its;

    if (!read_our_capabilities(&ours))
        return false;
    return !ours || (pid > 0 && sys_permitted_capabilities(pid, &its) == 0 && !(ours & ~its));
}

static bool is_alive(int pidfd)
{
    struct pollfd watched = {.fd = pidfd, .events = POLLIN};

    return sys_poll_now(&watched, 1) == 0;
}

static bool decide(int pidfd, const struct ucred *peer)
{
    return prctl(PR_GET_DUMPABLE) == 1 && same_ids(peer) &&
           is_in_namespace(pidfd, PIDFD_GET_PID_NAMESPACE, "/proc/self/ns/pid") == NO &&
           is_in_namespace(pidfd, PIDFD_GET_USER_NAMESPACE, "/proc/self/ns/user") == YES &&
           has_as_many_capabilities(peer->pid) && is_alive(pidfd); /* so its number was still its own */
}

bool ptrace_access_of_peer(int socket)
{
    int saved = errno, pidfd;
    struct ucred peer;
    bool permitted;

    if (!peer_credentials(socket, &peer))
        return false;
    /* By number, it could be that of a process that has ended. */
    pidfd = peer_pidfd(socket, 0);
    permitted = pidfd >= 0 && decide(pidfd, &peer);
    fd_close(pidfd);
    errno = saved;
    return permitted;
}
