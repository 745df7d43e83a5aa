/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The port's sockets are one SO_REUSEPORT group of UDP_SLOTS, whose filter gives each packet to the socket of
 * its QPN's lot. A group's order would change if one of them were closed; so all stay open, in a descriptor set
 * (control_message.h) that every member has, and whoever dies takes nothing along. Who reads which is written nowhere
 * but in the lock file, a file without contents: a lock on the byte of a slot, which the kernel releases at
 * death. It is a POSIX lock, because a forked child does not inherit those. */
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
static struct reader readers[UDP_SLOTS] = {[0 ... UDP_SLOTS - 1] = {.source.fd = -1}};
static bool held[UDP_SLOTS];

bool slots_are_there(void)
{
    return descriptor_set >= 0;
}

bool slots_is_held(unsigned slot)
{
    return held[slot];
}

int slots_make(void)
{
    int sockets[UDP_SLOTS], error = socket_make_group(sockets);

    if (error)
        return error;
    descriptor_set = descriptor_set_make(sockets, UDP_SLOTS);
    for (unsigned i = 0; i < UDP_SLOTS; i++)
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

void slots_adopt(int set_fd, int lock_file_fd)
{
    descriptor_set = set_fd;
    lock_file = lock_file_fd;
}

void slots_share(int ret_set_and_lock_file[2])
{
    ret_set_and_lock_file[0] = descriptor_set;
    ret_set_and_lock_file[1] = lock_file;
}

static bool lock_slot(unsigned slot)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
    int saved = errno;
    bool locked = fcntl(lock_file, F_SETLK, &range) == 0;

    errno = saved;
    return locked;
}

static void unlock_slot(unsigned slot)
{
    struct flock range = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
    int saved = errno;

    (void)fcntl(lock_file, F_SETLK, &range);
    errno = saved;
}

static int read_slot(unsigned slot, bool polled)
{
    struct reader *reader = &readers[slot];
    int fd = descriptor_set_get(descriptor_set, slot, UDP_SLOTS), error;

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

bool slots_hold(unsigned slot, bool polled)
{
    int error;

    if (held[slot]) {
        if (polled)
            reader_set_polled(&readers[slot]);
        return true;
    }
    if (!slots_are_there() || !lock_slot(slot))
        return false;
    error = read_slot(slot, polled);
    if (error) {
        log_error("the socket of slot %u cannot be read: %s", slot, strerror(-error));
        unlock_slot(slot);
        return false;
    }
    log_debug("UDP port 4791: slot %u is ours", slot);
    return held[slot] = true;
}

bool slots_hold_ownership(void)
{
    return slots_hold(0, false);
}

void slots_after_fork_in_child(void)
{
    descriptor_set = lock_file = -1;
    memset(held, 0, sizeof(held));
    for (unsigned i = 0; i < UDP_SLOTS; i++)
        readers[i] = (struct reader){.source.fd = -1};
}
