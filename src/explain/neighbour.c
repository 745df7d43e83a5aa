/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "explain/neighbour.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_file.h"
#include "base/sys.h"

#define DESCRIPTORS_MAX 65536

static const char *const memfd_names[] = {
    [OWN_SEGMENT] = "/memfd:softhca (deleted)",
    [WATCHED_SEGMENT] = "/memfd:softhca-watch (deleted)",
};

void neighbour_close(struct neighbour *neighbour)
{
    for (int i = 0; i < SEGMENT_PARTS; i++) {
        if (neighbour->files[i] >= 0)
            sys_close(neighbour->files[i]);
        neighbour->files[i] = -1;
    }
}

/* The owner's descriptor is writable; that of a reader (another `softhca ps`) is not. */
static bool is_writable(const char *path)
{
    struct stat link;

    return lstat(path, &link) == 0 && (link.st_mode & S_IWUSR);
}

/* Opens both files, the second one by what the header in the first one says of it; its size is 0 if the process has
 * closed it. */
static int open_files(pid_t pid, const char *tables, struct neighbour *ret, uint64_t ret_sizes[SEGMENT_PARTS])
{
    struct segment_header header;
    struct stat status;
    char path[64];
    int fd = memory_file_open(tables, O_RDONLY, &ret_sizes[SEGMENT_TABLES]);

    if (fd < 0)
        return fd;
    ret->files[SEGMENT_TABLES] = fd;
    ret_sizes[SEGMENT_QUEUES] = 0;
    if (sys_pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header) ||
        header.magic != SEGMENT_MAGIC || header.version != SEGMENT_VERSION)
        return 0; /* view_open_files() tells */
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, (int)header.queues.fd);
    fd = memory_file_open(path, O_RDONLY, &ret_sizes[SEGMENT_QUEUES]);
    if (fd < 0)
        return fd;
    ret->files[SEGMENT_QUEUES] = fd;
    if (fstat(fd, &status) != 0 || status.st_ino != header.queues.inode ||
        status.st_dev != header.queues.device)
        ret_sizes[SEGMENT_QUEUES] = 0;
    return 0;
}

/* 0: the descriptor is not that of a segment. Other results as neighbour_open(). */
static int try_descriptor(pid_t pid, const char *name, const char *memfd, struct neighbour *ret)
{
    char path[320], target[64];
    uint64_t sizes[SEGMENT_PARTS];
    ssize_t length;
    int error;

    snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)pid, name);
    length = readlink(path, target, sizeof(target) - 1);
    if (length < 0)
        return errno == EACCES ? -EACCES : 0;
    if (length != (ssize_t)strlen(memfd) || memcmp(target, memfd, (size_t)length) != 0 || !is_writable(path))
        return 0;
    error = open_files(pid, path, ret, sizes);
    if (!error)
        error = view_open_files(&ret->view, ret->files, sizes, pid);
    if (error) /* another library's file of that name; or a forked child's, whose parent's is closed */
        neighbour_close(ret);
    return error ? error : 1;
}

static DIR *open_directory(pid_t pid)
{
    char path[64];
    DIR *directory;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    fd = sys_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        errno = -fd;
        return NULL;
    }
    directory = fdopendir(fd);
    if (!directory)
        sys_close(fd);
    return directory;
}

int neighbour_open(pid_t pid, enum neighbour_segment which, struct neighbour *ret)
{
    int saved = errno, result = 0, tried;
    struct dirent *entry;
    DIR *descriptors;

    *ret = (struct neighbour){.files = {-1, -1}};
    descriptors = open_directory(pid);
    if (!descriptors) {
        result = -errno;
        errno = saved;
        return result;
    }
    for (unsigned seen = 0;
         result != 1 && result != -EACCES && seen < DESCRIPTORS_MAX && (entry = readdir(descriptors)) != NULL;
         seen++) {
        if (entry->d_name[0] == '.')
            continue;
        tried = try_descriptor(pid, entry->d_name, memfd_names[which], ret);
        if (tried)
            result = tried;
    }
    closedir(descriptors);
    errno = saved;
    return result;
}
