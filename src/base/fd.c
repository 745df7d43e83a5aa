/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/sys.h"

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
