/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The port's sockets form one SO_REUSEPORT group of UDP_SHARDS sockets. A filter (socket.c) selects the socket by
 * the shard of the destination QPN. Closing a socket would reorder the group, so all sockets stay open in a
 * descriptor set (control_message.h) that every member has, and the death of a member changes nothing.
 *
 * The lock file, an empty memfd that all members have, records which process reads which shard: a POSIX lock on
 * the byte at the shard's number. The kernel releases the lock at process death, and a forked child does not
 * inherit it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sys.h"
#include "udp/control_message.h"
#include "udp/internal.h"

static int descriptor_set = -1, lock_file = -1;
static struct reader readers[UDP_SHARDS] = {[0 ... UDP_SHARDS - 1] = {.source.fd = -1}};
static bool held[UDP_SHARDS];

bool shards_are_there(void)
{
    return descriptor_set >= 0;
}

int shards_make(void)
{
    int sockets[UDP_SHARDS], error = socket_make_group(sockets);

    if (error)
        return error;
    descriptor_set = descriptor_set_make(sockets, UDP_SHARDS);
    for (unsigned i = 0; i < UDP_SHARDS; i++)
        fd_close(sockets[i]);
    if (descriptor_set < 0) {
        error = descriptor_set;
        descriptor_set = -1;
        return error;
    }
    lock_file = fd_own(sys_memfd_create("softhca-udp", MFD_CLOEXEC));
    if (lock_file >= 0)
        return 0;
    error = lock_file;
    fd_close(descriptor_set);
    descriptor_set = lock_file = -1;
    return error;
}

void shards_adopt(int set_fd, int lock_file_fd)
{
    descriptor_set = set_fd;
    lock_file = lock_file_fd;
}

void shards_share(int ret_set_and_lock_file[2])
{
    ret_set_and_lock_file[0] = descriptor_set;
    ret_set_and_lock_file[1] = lock_file;
}

static bool lock_shard(unsigned shard)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)shard, .l_len = 1};
    int saved = errno;
    bool locked = fcntl(lock_file, F_SETLK, &range) == 0;

    errno = saved;
    return locked;
}

static void unlock_shard(unsigned shard)
{
    struct flock range = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = (off_t)shard, .l_len = 1};
    int saved = errno;

    (void)fcntl(lock_file, F_SETLK, &range);
    errno = saved;
}

static int read_shard(unsigned shard, bool polled)
{
    struct reader *reader = &readers[shard];
    int fd = descriptor_set_get(descriptor_set, shard, UDP_SHARDS), error;

    if (fd < 0)
        return fd;
    socket_prepare_reading(fd);
    *reader = (struct reader){.source.fd = fd, .forward_to = -1, .polled = polled};
    error = reader_add(reader);
    if (error) {
        reader->source.fd = -1;
        fd_close(fd);
    }
    return error;
}

bool shards_acquire(unsigned shard, bool polled)
{
    int error;

    if (held[shard]) {
        if (polled)
            reader_set_polled(&readers[shard]);
        return true;
    }
    if (!shards_are_there() || !lock_shard(shard))
        return false;
    error = read_shard(shard, polled);
    if (error) {
        log_error("UDP port 4791: cannot read socket %u of the SO_REUSEPORT group: %s. Packets from other "
                  "hosts for some QP numbers are lost unless another process reads that socket",
                  shard, strerror(-error));
        unlock_shard(shard);
        return false;
    }
    log_debug("UDP port 4791: this process reads socket %u of the SO_REUSEPORT group", shard);
    return held[shard] = true;
}

bool shards_acquire_ownership(void)
{
    return shards_acquire(0, false);
}

void shards_after_fork_in_child(void)
{
    descriptor_set = lock_file = -1;
    memset(held, 0, sizeof(held));
    for (unsigned i = 0; i < UDP_SHARDS; i++)
        readers[i] = (struct reader){.source.fd = -1};
}
