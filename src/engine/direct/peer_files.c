/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Files of memory that peers map: the published segment's, and the arenas. The helper thread opens those of a peer
 * where the kernel checks ptrace access (/proc/PID/fd, pidfd_getfd(2)), or asks the peer for them (link_ask_file()).
 * It opens those of this process for a peer that asks. */
#include "engine/direct/peer_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/event.h"
#include "base/log.h"
#include "base/memory_file.h"
#include "base/sys.h"

/* A descriptor of a peer's file. *description says which kind and size it must have and, if its inode is not 0, which
 * inode; otherwise size and inode are filled in. The descriptor stays the caller's. */
static struct mapped_file *accept_file(int fd, const char *name, struct mapped_file_description *description,
                                       bool writable)
{
    struct mapped_file *file = NULL;
    struct stat status;
    uint64_t size = 0;
    int error = memory_file_check(fd, &size);

    if (!description->inode && fstat(fd, &status) == 0) {
        description->inode = status.st_ino;
        description->device = status.st_dev;
        description->size = size;
    }
    if (!error)
        file = mapped_file_accept(fd, description, writable, false, &error);
    if (!file)
        log_info(
            "mapped memory: %s of the peer process is not mapped here (%s): it has to be a memfd, "
            "sealed against shrinking and growing, of the size that the peer publishes; the shared-memory "
            "ring and the kernel copy are used (slower)",
            name, strerror(-error));
    return file;
}

void peer_files_give_way(bool is_awaited)
{
    if (!is_awaited)
        sys_poll(NULL, 0, 50 * NS_PER_US);
}

/* Opens a file of the peer by the path of its descriptor, as accept_file(). */
static struct mapped_file *open_file(const char *path, struct mapped_file_description *description,
                                     bool writable, bool is_awaited)
{
    struct mapped_file *file;
    uint64_t size;
    int fd = memory_file_open(path, writable ? O_RDWR : O_RDONLY, &size);

    if (fd < 0) {
        log_info(
            "mapped memory: cannot open %s of the peer process: %s (EBADF: it is not a memfd; EPERM: it is "
            "not sealed against shrinking and growing); the shared-memory ring and the kernel copy are used "
            "(slower)",
            path, strerror(-fd));
        return NULL;
    }
    peer_files_give_way(is_awaited);
    file = accept_file(fd, path, description, writable);
    sys_close(fd);
    return file;
}

/* --- the segment -------------------------------------------------------------------------------------- */

struct mapped_file *peer_files_accept_tables(int fd)
{
    struct mapped_file_description description = {.kind = MAPPED_KIND_SEALED};

    return accept_file(fd, "the published segment", &description, false);
}

struct mapped_file *peer_files_open_tables(struct direct_peer *peer)
{
    struct mapped_file_description description = {.kind = MAPPED_KIND_SEALED};
    int number = link_peer_segment(peer->link), fd;
    struct mapped_file *file;
    char path[64];

    if (link_peer_pid(peer->link) > 0) {
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)link_peer_pid(peer->link), number);
        return open_file(path, &description, false, true);
    }
    peer->by_link = true;
    fd = link_open_descriptor(peer->link, number);
    if (fd < 0)
        return NULL;
    file = peer_files_accept_tables(fd);
    fd_close(fd);
    return file;
}

struct mapped_file *peer_files_open_queues(const struct direct_peer *peer,
                                           const struct segment_header *header)
{
    struct mapped_file_description description = {.kind = MAPPED_KIND_SEALED,
                                                  .inode = header->queues.inode,
                                                  .device = header->queues.device,
                                                  .size = header->arena_size};
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)link_peer_pid(peer->link), (int)header->queues.fd);
    return description.inode ? open_file(path, &description, false, true) : NULL;
}

/* --- arenas ------------------------------------------------------------------------------------------- */

static struct mapped_file_description arena_description(const struct direct_peer *peer, uint32_t number)
{
    return (struct mapped_file_description){.kind = MAPPED_KIND_ARENA,
                                            .size = MAPPED_ARENA_SIZE,
                                            .writable = number == 0,
                                            .inode = peer->header->files[number].inode,
                                            .device = peer->header->files[number].device};
}

static const enum link_file link_file_of_arena[SEGMENT_FILES] = {LINK_FILE_WRITABLE, LINK_FILE_READ_ONLY};

struct mapped_file *peer_files_arena(struct direct_peer *peer, uint32_t number, bool is_awaited)
{
    const struct segment_header *header = peer->header;
    int32_t thread = atomic_load_explicit(&header->files_thread, memory_order_acquire);
    struct mapped_file_description description;
    char path[80];

    if (number >= SEGMENT_FILES || thread <= 0)
        return NULL;
    if (peer->file_tried[number])
        return peer->files[number];
    description = arena_description(peer, number);
    if (peer->by_link) {
        peer->file_tried[number] =
            link_ask_file(peer->link, link_file_of_arena[number], peer->header->instance);
        peer->file_asked[number] = peer->file_tried[number];
        return NULL;
    }
    peer->file_tried[number] = true;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/fd/%d", (int)link_peer_pid(peer->link), (int)thread,
             (int)header->files[number].fd);
    if (description.inode)
        peer->files[number] = open_file(path, &description, number == 0, is_awaited);
    return peer->files[number];
}

static void arena_came(struct direct_peer *peer, uint32_t number, int fd)
{
    struct mapped_file_description description = arena_description(peer, number);

    peer->file_asked[number] = false;
    if (fd >= 0 && description.inode)
        peer->files[number] = accept_file(fd, "a file with registered memory", &description, number == 0);
}

void peer_files_arena_came(struct direct_peer *peer, enum link_file which, int fd)
{
    for (uint32_t i = 0; i < SEGMENT_FILES; i++) {
        if (peer->file_asked[i] && link_file_of_arena[i] == which)
            arena_came(peer, i, fd);
    }
}

/* --- files of this process --------------------------------------------------------------------------- */

int direct_open_file(enum link_file which)
{
    const struct segment_header *header = segment_header();
    int32_t thread = atomic_load_explicit(&header->files_thread, memory_order_acquire);
    const struct file_record *record = &header->files[which == LINK_FILE_WRITABLE ? 0 : 1];
    struct stat file;
    char path[80];
    int fd;

    if (which == LINK_FILE_TABLES)
        return segment_open_for_reading(SEGMENT_TABLES);
    if (thread <= 0)
        return -ENOENT;
    /* Any thread can open descriptors of another thread's table through /proc. */
    snprintf(path, sizeof(path), "/proc/self/task/%d/fd/%d", (int)thread, (int)record->fd);
    fd = sys_open(path, (which == LINK_FILE_WRITABLE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &file) != 0 || file.st_ino != record->inode || file.st_dev != record->device)) {
        sys_close(fd);
        fd = -EBADF;
    }
    return fd;
}

bool direct_knows_segment(const uint8_t secret[LINK_SECRET_BYTES])
{
    _Static_assert(sizeof(segment_header()->instance) == LINK_SECRET_BYTES, "the secret");
    return segment_is_open() && memcmp(segment_header()->instance, secret, LINK_SECRET_BYTES) == 0;
}
