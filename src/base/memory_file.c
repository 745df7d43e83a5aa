/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/memory_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "base/fd.h"
#include "base/sys.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif
#define SEALS        (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define SEALS_NEEDED (F_SEAL_SHRINK | F_SEAL_GROW)
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x8u
#endif

/* --- making --------------------------------------------------------------------------------------------- */

int memory_file_create(const char *name)
{
    /* vm.memfd_noexec can require MFD_NOEXEC_SEAL; kernels before 6.3 reject the flag. */
    int fd = sys_memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    return fd == -EINVAL ? sys_memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

/* Again after a signal, which the program may have a handler for. */
static int resize(int fd, uint64_t size)
{
    int result;

    do {
        result = ftruncate(fd, (off_t)size) != 0 ? -errno : 0;
    } while (result == -EINTR);
    return result;
}

int memory_file_resize(int fd, uint64_t size)
{
    int saved = errno, error = 0;
    struct rlimit limit;

    /* Beyond the limit, ftruncate() raises SIGXFSZ, which ends a program. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && size > limit.rlim_cur)
        error = -EFBIG;
    else
        error = resize(fd, size);
    errno = saved;
    return error;
}

int memory_file_seal(int fd)
{
    int saved = errno, error = fcntl(fd, F_ADD_SEALS, SEALS) < 0 ? -errno : 0;

    errno = saved;
    return error;
}

int memory_file_seal_writes(int fd)
{
    int saved = errno;
    bool sealed = fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_FUTURE_WRITE) == 0;

    errno = saved;
    return sealed ? 0 : memory_file_seal(fd);
}

int memory_file_make(const char *name, uint64_t size)
{
    int fd = memory_file_create(name), error;

    if (fd < 0)
        return fd;
    error = memory_file_resize(fd, size);
    if (!error)
        error = memory_file_seal(fd);
    if (!error)
        return fd;
    sys_close(fd);
    return error;
}

/* --- accepting ------------------------------------------------------------------------------------------ */

int memory_file_check(int fd, uint64_t *ret_size)
{
    /* First the seals, which only files of tmpfs and hugetlbfs have: other file systems are not called. */
    int saved = errno, error = 0, seals = fcntl(fd, F_GET_SEALS);
    struct statfs filesystem;
    struct stat file;

    if (seals < 0 || fd_statfs(fd, &filesystem) != 0 || filesystem.f_type != TMPFS_MAGIC ||
        fd_stat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size <= 0)
        error = -EBADF;
    else if ((seals & SEALS_NEEDED) != SEALS_NEEDED)
        error = -EPERM;
    else
        *ret_size = (uint64_t)file.st_size;
    errno = saved;
    return error;
}

/* The device of all memfds of ordinary pages: the kernel's own mount of tmpfs. 0: unknown. */
static uint64_t device_of_memfds(void)
{
    static _Atomic uint64_t known;
    uint64_t device = atomic_load_explicit(&known, memory_order_relaxed);
    struct stat file;
    int fd;

    if (device)
        return device;
    fd = memory_file_create("softhca-device-of-memfds");
    if (fd >= 0 && fstat(fd, &file) == 0)
        device = file.st_dev;
    if (fd >= 0)
        sys_close(fd);
    atomic_store_explicit(&known, device, memory_order_relaxed);
    return device;
}

/* fd: opened with O_PATH. By AT_STATX_DONT_SYNC the kernel answers from what it knows, also of a file of FUSE or NFS,
 * whose server may never answer. */
static bool is_memfd(int fd)
{
    struct statx file;

    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &file) == 0 &&
           S_ISREG(file.stx_mode) && device_of_memfds() &&
           makedev(file.stx_dev_major, file.stx_dev_minor) == device_of_memfds();
}

int memory_file_open(const char *path, int flags, uint64_t *ret_size)
{
    int saved = errno, found = sys_open(path, O_PATH | O_CLOEXEC), fd = -EBADF, error;
    char again[48];

    if (found < 0)
        return found;
    snprintf(again, sizeof(again), "/proc/thread-self/fd/%d", found);
    if (is_memfd(found))
        fd = sys_open(again, flags | O_CLOEXEC);
    sys_close(found);
    if (fd >= 0) {
        error = memory_file_check(fd, ret_size);
        if (error) {
            sys_close(fd);
            fd = error;
        }
    }
    errno = saved;
    return fd;
}
