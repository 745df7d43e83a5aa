/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "explain/code_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/maps.h"
#include "base/sys.h"

#define STATUS_MAX 4096u
#define MOUNTS_MAX (4u << 20)

/* File systems whose files are on a disk of this machine or in its memory, and are read without asking another process
 * or machine. */
static const char *const local_types[] = {"bcachefs", "btrfs",   "erofs",    "ext2",  "ext3", "ext4",
                                          "f2fs",     "overlay", "squashfs", "tmpfs", "xfs",  "zfs"};

/* The first `most` bytes of a file in /proc, ended by a zero; NULL: it cannot be read. Freed by the caller. */
static char *read_text(const char *path, size_t most)
{
    int fd = fd_lift(open(path, O_RDONLY | O_CLOEXEC));
    char *text = fd < 0 ? NULL : malloc(most + 1);
    size_t filled = 0;
    ssize_t got;

    while (text && filled < most && (got = read(fd, text + filled, most - filled)) > 0)
        filled += (size_t)got;
    if (text)
        text[filled] = '\0';
    if (fd >= 0)
        close(fd);
    return text;
}

static bool is_own_user(pid_t pid)
{
    char path[32], *status, *line;
    unsigned uid[4];
    bool own;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    status = read_text(path, STATUS_MAX);
    line = status ? strstr(status, "\nUid:") : NULL; /* a process cannot write a newline into its name */
    /* All four: a process that changed its user is not yet, or not any more, this user's. */
    own = line && sscanf(line, " Uid: %u %u %u %u", &uid[0], &uid[1], &uid[2], &uid[3]) == 4 &&
          uid[0] == geteuid() && uid[1] == geteuid() && uid[2] == geteuid() && uid[3] == geteuid();
    free(status);
    return own;
}

/* --- file systems --------------------------------------------------------------------------------------- */

static bool is_local_type(const char *line)
{
    const char *end = strstr(line, " - "); /* a name in the list has no space */

    for (size_t i = 0; end && i < array_size(local_types); i++) {
        size_t length = strlen(local_types[i]);

        if (strncmp(end + 3, local_types[i], length) == 0 && end[3 + length] == ' ')
            return true;
    }
    return false;
}

/* The number of the mount through which the file was opened; -1: unknown. */
static int mount_of(int fd)
{
    char path[48], *info, *line;
    int mount = -1;

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    info = read_text(path, STATUS_MAX);
    line = info ? strstr(info, "mnt_id:") : NULL;
    if (line && sscanf(line, "mnt_id: %d", &mount) != 1)
        mount = -1;
    free(info);
    return mount;
}

/* Is the file, of that device, in a file system of local_types[] that is mounted here, too? By its mount, or by its
 * device where it was opened in another mount namespace. What only other namespaces have mounted, an ordinary user
 * may have mounted, over whatever he likes. */
static bool is_local_file(int fd, const struct statx *file)
{
    char *mounts = read_text("/proc/self/mountinfo", MOUNTS_MAX), *rest = mounts, *line;
    int mount = mount_of(fd), number;
    unsigned in_major, in_minor;
    bool local = false;

    while ((line = strsep(&rest, "\n")) != NULL) {
        if (sscanf(line, "%d %*d %u:%u", &number, &in_major, &in_minor) != 3)
            continue;
        if (number == mount) {
            local = is_local_type(line);
            break;
        }
        if (in_major == file->stx_dev_major && in_minor == file->stx_dev_minor)
            local = is_local_type(line);
    }
    free(mounts);
    return local;
}

/* --- opening -------------------------------------------------------------------------------------------- */

/* With O_PATH nothing is called in the file system, and by AT_STATX_DONT_SYNC it is not asked. inode 0: any. */
static bool is_readable_file(int fd, uint64_t inode, bool must_be_local)
{
    struct statx file;

    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &file) == 0 &&
           S_ISREG(file.stx_mode) && (!inode || file.stx_ino == inode) &&
           (!must_be_local || is_local_file(fd, &file));
}

/* O_NONBLOCK: the file's owner may hold a lease on it (fcntl(F_SETLEASE)), which the opener would wait for. */
static int open_again(int found)
{
    char path[48];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", found);
    return fd_lift(open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

static int find_mapping(pid_t pid, uint64_t address, struct mapping *ret)
{
    struct maps maps;
    int error = maps_open_of(&maps, pid);

    if (error)
        return error;
    error = maps_find(&maps, (uintptr_t)address, ret);
    maps_close(&maps);
    return error || ret->start > address || !ret->inode ? -ENOENT : 0;
}

int code_file_open(pid_t pid, uint64_t address, const char *path)
{
    bool own = pid == getpid() || is_own_user(pid);
    struct mapping mapping;
    uint64_t inode = 0;
    char name[512];
    int found, fd = -1;

    if (find_mapping(pid, address, &mapping) != 0)
        return -1;
    snprintf(name, sizeof(name), "/proc/%d/map_files/%lx-%lx", (int)pid, (unsigned long)mapping.start,
             (unsigned long)mapping.end);
    found = fd_lift(open(name, O_PATH | O_CLOEXEC));
    if (found < 0 && own && path[0] == '/') {
        inode = mapping.inode;
        snprintf(name, sizeof(name), "/proc/%d/root%s", (int)pid, path);
        found = fd_lift(open(name, O_PATH | O_CLOEXEC));
    }
    if (found < 0)
        return -1;
    if (is_readable_file(found, inode, !own))
        fd = open_again(found);
    close(found);
    return fd;
}
