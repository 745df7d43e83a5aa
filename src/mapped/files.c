/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory that is shared already: finds the file behind it, so that peers can map it as well. The keeper holds a
 * descriptor of its own, so that the program may close its descriptor. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/memory_file.h"
#include "base/sys.h"
#include "mapped/internal.h"

#define FILES_MAX 64

struct shared_file {
    uint32_t uses; /* 0: free */
    int fd;        /* in the keeper's table; -1: none */
    struct mapped_file_description description;
};

static struct shared_file files[FILES_MAX];

/* --- looking for it ---------------------------------------------------------------------------------- */

struct search {
    const struct mapping *mapping;
    char path[320];
    bool write;
    /* output: descriptor in the keeper's table */
    int fd;
    struct mapped_file_description description;
};

static bool is_file_of(const struct stat *file, const struct mapping *mapping)
{
    return S_ISREG(file->st_mode) && file->st_ino == mapping->inode &&
           major(file->st_dev) == mapping->device_major && minor(file->st_dev) == mapping->device_minor;
}

/* In the keeper. The opened file counts only if it is the file of the mapping (inode and device). */
static void open_path(void *argument)
{
    struct search *search = argument;
    bool writable = true;
    struct stat file;
    uint64_t size;
    int fd = sys_open(search->path, O_RDWR | O_CLOEXEC);

    if (fd < 0 && !search->write) {
        writable = false;
        fd = sys_open(search->path, O_RDONLY | O_CLOEXEC);
    }
    search->fd = fd;
    if (fd < 0)
        return;
    if (fstat(fd, &file) < 0 || !is_file_of(&file, search->mapping)) {
        sys_close(fd);
        search->fd = -ENOENT;
        return;
    }
    search->description = (struct mapped_file_description){
        .kind = memory_file_check(fd, &size) == 0 ? MAPPED_KIND_SEALED : MAPPED_KIND_FILE,
        .writable = writable,
        .inode = file.st_ino,
        .device = file.st_dev,
        .size = (uint64_t)file.st_size,
    };
    search->fd = keeper_keep(fd);
}

/* /proc/self/map_files: privileged processes only. */
static bool by_map_files(struct search *search)
{
    snprintf(search->path, sizeof(search->path), "/proc/self/map_files/%lx-%lx",
             (unsigned long)search->mapping->start, (unsigned long)search->mapping->end);
    keeper_call(open_path, search);
    return search->fd >= 0;
}

/* Searches the descriptors of the program for one of that file. */
static bool by_descriptor(struct search *search)
{
    DIR *directory = opendir("/proc/thread-self/fd");
    const struct dirent *entry;
    bool found = false;

    if (!directory)
        return false;
    while (!found && (entry = readdir(directory)) != NULL) {
        char *end;
        long fd = strtol(entry->d_name, &end, 10);
        struct stat file;

        if (*end || fstat((int)fd, &file) < 0 || !is_file_of(&file, search->mapping))
            continue;
        snprintf(search->path, sizeof(search->path), "/proc/self/task/%d/fd/%ld", (int)sys_gettid(), fd);
        keeper_call(open_path, search);
        found = search->fd >= 0;
    }
    closedir(directory);
    return found;
}

static bool by_name(struct search *search)
{
    size_t length = maps_name(search->mapping->start, search->path, sizeof(search->path));

    if (!length || search->path[0] != '/' || length == sizeof(search->path) - 1)
        return false;
    keeper_call(open_path, search);
    return search->fd >= 0;
}

/* The inode of a System V segment is its number. */
static bool by_segment_number(struct search *search)
{
    struct shmid_ds segment;
    char name[16];

    if (!maps_name(search->mapping->start, name, sizeof(name)) || strncmp(name, "/SYSV", 5) != 0 ||
        shmctl((int)search->mapping->inode, IPC_STAT, &segment) < 0 ||
        segment.shm_segsz < search->mapping->offset + (search->mapping->end - search->mapping->start))
        return false;
    search->fd = -1;
    search->description = (struct mapped_file_description){
        .kind = MAPPED_KIND_SYSV,
        .writable = search->mapping->writable,
        .shmid = (int)search->mapping->inode,
        .inode = search->mapping->inode,
        .device = makedev(search->mapping->device_major, search->mapping->device_minor),
        .size = segment.shm_segsz,
    };
    return true;
}

/* --- uses -------------------------------------------------------------------------------------------- */

static struct shared_file *known_file(const struct mapping *mapping, bool write)
{
    dev_t device = makedev(mapping->device_major, mapping->device_minor);

    for (unsigned i = 0; i < FILES_MAX; i++) {
        struct shared_file *file = &files[i];

        if (file->uses && file->description.inode == mapping->inode && file->description.device == device &&
            (file->description.writable || !write))
            return file;
    }
    return NULL;
}

static struct shared_file *free_file(void)
{
    for (unsigned i = 0; i < FILES_MAX; i++) {
        if (!files[i].uses)
            return &files[i];
    }
    return NULL;
}

enum mapped_reason file_use(const struct mapping *mapping, bool write, uint32_t *ret_file)
{
    struct shared_file *file = known_file(mapping, write);

    if (!file) {
        struct search search = {.mapping = mapping, .write = write};

        file = free_file();
        if (!file || !(by_segment_number(&search) || by_map_files(&search) || by_descriptor(&search) ||
                       by_name(&search)))
            return MAPPED_NO_DESCRIPTOR;
        file->fd = search.fd;
        file->description = search.description;
    }
    file->uses++;
    *ret_file = FIRST_FOREIGN_FILE + (uint32_t)(file - files);
    return MAPPED_YES;
}

static void close_call(void *argument)
{
    sys_close(*(int *)argument);
}

void file_unuse(uint32_t number)
{
    struct shared_file *file = &files[number - FIRST_FOREIGN_FILE];

    if (--file->uses == 0 && file->fd >= 0)
        keeper_call(close_call, &file->fd);
}

void files_after_fork_in_child(void)
{
    memset(files, 0, sizeof(files));
}

/* --- public header -------------------------------------------------------------------------------------- */

static int describe_locked(uint32_t number, struct mapped_file_description *ret, int *ret_fd)
{
    if (number < FIRST_FOREIGN_FILE) {
        if (!keeper.thread)
            return -ENOENT;
        *ret = (struct mapped_file_description){
            .kind = MAPPED_KIND_ARENA,
            .writable = number == ARENA_WRITABLE,
            .inode = keeper.arena_inode[number],
            .device = keeper.arena_device,
            .size = MAPPED_ARENA_SIZE,
        };
        *ret_fd = keeper.arena[number];
        return 0;
    }
    number -= FIRST_FOREIGN_FILE;
    if (number >= FILES_MAX || !files[number].uses)
        return -ENOENT;
    *ret = files[number].description;
    *ret_fd = files[number].fd;
    return 0;
}

int mapped_file_describe(uint32_t file, struct mapped_file_description *ret_description)
{
    int fd, error;

    if (!owner_enter())
        return -ENOENT;
    error = describe_locked(file, ret_description, &fd);
    owner_leave();
    return error;
}

int mapped_file_place(uint32_t file, pid_t *ret_thread, int *ret_fd)
{
    int error = -ENOENT;

    if (!owner_enter())
        return error;
    if (keeper.thread && file < KEEPER_ARENAS) {
        *ret_thread = keeper.thread;
        *ret_fd = keeper.arena[file];
        error = 0;
    }
    owner_leave();
    return error;
}

int mapped_file_open(uint32_t file, bool writable)
{
    struct mapped_file_description description;
    int fd, error;

    if (!owner_enter())
        return -ENOENT;
    error = describe_locked(file, &description, &fd);
    if (!error && description.kind == MAPPED_KIND_SYSV)
        error = -EOPNOTSUPP;
    else if (!error && writable && !description.writable)
        error = -EACCES;
    if (!error)
        error = keeper_open(fd, writable ? O_RDWR : O_RDONLY);
    owner_leave();
    return error;
}
