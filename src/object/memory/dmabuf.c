/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Mapping dma-bufs for registration. */
#include "object/memory/dmabuf.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/sys.h"

#define MAGIC 0x444d4142 /* DMA_BUF_MAGIC of linux/magic.h since 5.3 */

/* A dma-buf is recognised by its file system. Trying a dma-buf ioctl could have any effect in another driver. */
static int check(int fd, uint64_t offset, size_t length)
{
    struct statfs filesystem;
    uint64_t end;
    off_t size;

    if (fstatfs(fd, &filesystem) != 0)
        return -errno;
    if ((uint64_t)filesystem.f_type != MAGIC || !length || __builtin_add_overflow(offset, length, &end))
        return -EINVAL;
    size = sys_lseek(fd, 0, SEEK_END);
    return size < 0 ? (int)size : end > (uint64_t)size ? -EINVAL : 0;
}

/* Begins or ends access by the processor (DMA_BUF_IOCTL_SYNC), for which the exporter may move the memory or sync
 * caches. Access lasts as long as the registration, because a peer may access the memory at any time. */
static int bracket(int fd, uint64_t which)
{
    struct dma_buf_sync sync = {.flags = which | DMA_BUF_SYNC_RW};
    int error;

    do {
        error = sys_ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
    } while (error == -EINTR || error == -EAGAIN);
    return error;
}

/* Maps the dma-buf from offset 0: Linux graphics drivers with shmem memory ignore the offset of a mapping. */
static int map(struct dmabuf *dmabuf, size_t offset, size_t length, bool write)
{
    int error;
    char *at = sys_mmap(NULL, offset + length, PROT_READ | (write ? PROT_WRITE : 0), MAP_SHARED, dmabuf->fd,
                        0, &error);

    if (!at)
        return error == -EACCES || error == -ENOMEM ? error : -EOPNOTSUPP;
    sys_madvise(at, offset + length, MADV_DONTFORK);
    dmabuf->at = at + offset;
    dmabuf->offset = offset;
    dmabuf->length = length;
    return 0;
}

static int adopt(int fd, struct dmabuf *dmabuf)
{
    struct stat status;

    dmabuf->fd = fd_lift(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (dmabuf->fd < 0)
        return -errno;
    if (fstat(dmabuf->fd, &status) == 0) {
        dmabuf->device = status.st_dev;
        dmabuf->inode = status.st_ino;
    }
    return 0;
}

int dmabuf_map(int fd, uint64_t offset, size_t length, bool write, struct dmabuf *ret_dmabuf)
{
    int saved = errno, error = check(fd, offset, length);

    if (!error)
        error = adopt(fd, ret_dmabuf);
    if (!error) {
        error = bracket(ret_dmabuf->fd, DMA_BUF_SYNC_START);
        if (!error)
            error = map(ret_dmabuf, offset, length, write);
        if (error)
            sys_close(ret_dmabuf->fd);
    }
    errno = saved;
    return error;
}

void dmabuf_unmap(struct dmabuf *dmabuf)
{
    struct stat status;
    int saved = errno;

    sys_munmap(dmabuf->at - dmabuf->offset, dmabuf->offset + dmabuf->length);
    /* A program may have closed our descriptor, and the number may be another file's. */
    if (fstat(dmabuf->fd, &status) == 0 && status.st_dev == dmabuf->device &&
        status.st_ino == dmabuf->inode) {
        bracket(dmabuf->fd, DMA_BUF_SYNC_END);
        sys_close(dmabuf->fd);
    }
    dmabuf->at = NULL;
    errno = saved;
}
