/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/errno_name.h"

#include <errno.h>
#include <stddef.h>

#define NAMED(error) [error] = #error
static const char *const names[ERRNO_NAMES_END] = {
    NAMED(EPERM),        NAMED(ENOENT),       NAMED(EINTR),        NAMED(EIO),
    NAMED(ENXIO),        NAMED(E2BIG),        NAMED(EBADF),        NAMED(EAGAIN),
    NAMED(ENOMEM),       NAMED(EACCES),       NAMED(EFAULT),       NAMED(EBUSY),
    NAMED(EEXIST),       NAMED(EXDEV),        NAMED(ENODEV),       NAMED(EINVAL),
    NAMED(ENFILE),       NAMED(EMFILE),       NAMED(ENOTTY),       NAMED(EFBIG),
    NAMED(ENOSPC),       NAMED(EROFS),        NAMED(EPIPE),        NAMED(ERANGE),
    NAMED(EDEADLK),      NAMED(ENAMETOOLONG), NAMED(ENOSYS),       NAMED(ENODATA),
    NAMED(EPROTO),       NAMED(EOVERFLOW),    NAMED(EMSGSIZE),     NAMED(EPROTONOSUPPORT),
    NAMED(EOPNOTSUPP),   NAMED(EAFNOSUPPORT), NAMED(EADDRINUSE),   NAMED(EADDRNOTAVAIL),
    NAMED(ENETDOWN),     NAMED(ENETUNREACH),  NAMED(ECONNABORTED), NAMED(ECONNRESET),
    NAMED(ENOBUFS),      NAMED(EISCONN),      NAMED(ENOTCONN),     NAMED(ETIMEDOUT),
    NAMED(ECONNREFUSED), NAMED(EHOSTUNREACH), NAMED(EALREADY),     NAMED(EINPROGRESS),
    NAMED(ESTALE),       NAMED(EREMOTEIO),    NAMED(ECANCELED),
};
#undef NAMED

const char *errno_name(int error)
{
    return error > 0 && error < ERRNO_NAMES_END ? names[error] : NULL;
}
