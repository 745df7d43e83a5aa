/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/sys.h"

#define TRIES 16

int fd_lift(int fd)
{
    int lifted, error;

    if (likely(fd < 0 || fd > STDERR_FILENO))
        return fd;
    lifted = (int)syscall(SYS_fcntl, (long)fd, (long)F_DUPFD_CLOEXEC, (long)STDERR_FILENO + 1);
    error = errno;
    sys_close(fd);
    errno = error;
    return lifted;
}

static bool is_tried_again(int error, unsigned *tries)
{
    if ((error != ENOMEM && error != EINTR) || ++*tries == TRIES)
        return false;
    sched_yield();
    return true;
}

int fd_stat(int fd, struct stat *ret_status)
{
    int saved = errno, error;
    unsigned tries = 0;

    do {
        error = fstat(fd, ret_status) < 0 ? errno : 0;
    } while (unlikely(error && is_tried_again(error, &tries)));
    errno = saved;
    return -error;
}

int fd_statfs(int fd, struct statfs *ret_system)
{
    int saved = errno, error;
    unsigned tries = 0;

    do {
        error = fstatfs(fd, ret_system) < 0 ? errno : 0;
    } while (unlikely(error && is_tried_again(error, &tries)));
    errno = saved;
    return -error;
}

ssize_t fd_read_text(const char *path, char *text, size_t size)
{
    int fd = sys_open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd;

    if (fd >= 0) {
        length = sys_read(fd, text, size - 1);
        sys_close(fd);
    }
    text[max_of(length, (ssize_t)0)] = '\0';
    return length;
}

bool error_may_pass(long error)
{
    switch (-error) {
    case EAGAIN:
    case EINTR:
    case ENOMEM:
    case ENOBUFS:
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS: /* descriptors that the user has sent, and that nobody has received yet (SCM_RIGHTS) */
        return true;
    default:
        return false;
    }
}

uint32_t fd_limit(void)
{
    struct rlimit limit = {.rlim_cur = 0};
    int saved = errno;

    getrlimit(RLIMIT_NOFILE, &limit);
    errno = saved;
    return (uint32_t)min_of(limit.rlim_cur, (rlim_t)UINT32_MAX);
}
