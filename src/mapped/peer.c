/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Peer side: files of other processes, and the parts of them that are mapped here. The owner's description of a file
 * is checked against what the kernel reports. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "base/list.h"
#include "base/lock.h"
#include "base/memory_file.h"
#include "base/sys.h"
#include "mapped/internal.h"

/* Views in use are limited only by the kernel; of the others, this many stay mapped. */
#define VIEWS_KEPT 64
#define VIEWS_MAX  4096

struct mapped_file {
    int fd; /* in the keeper's table; -1: a System V segment */
    bool writable;
    uint64_t size;
    char *segment; /* System V: the attached segment */
    struct list views;
};

struct mapped_view {
    struct list all;
    struct list node; /* in file->views */
    struct list idle; /* in idle_views, linked only while the view has no user */
    struct mapped_file *file;
    uint64_t offset, length;
    char *address;
    uint32_t users;
};

/* Ranks below mapped_lock. keeper_call() with it held is allowed. */
static struct lock views_lock = LOCK_INIT;
static struct list all_views = {&all_views, &all_views};
static struct list idle_views = {&idle_views, &idle_views}; /* least recently used first */
static unsigned idle_count, view_count;

/* --- files ------------------------------------------------------------------------------------------- */

struct acceptance {
    const struct mapped_file_description *description;
    char path[64];
    bool writable, may_shrink;
    int fd; /* output: descriptor, or -errno */
    uint64_t size;
};

static bool is_memory(int fd)
{
    struct statfs filesystem;

    return fstatfs(fd, &filesystem) == 0 &&
           (filesystem.f_type == TMPFS_MAGIC || filesystem.f_type == HUGETLBFS_MAGIC);
}

static int check_file(const struct acceptance *acceptance, int fd, struct stat *file)
{
    const struct mapped_file_description *description = acceptance->description;
    uint64_t size;
    int error;

    if (fstat(fd, file) < 0 || !S_ISREG(file->st_mode) || file->st_uid != geteuid() ||
        file->st_ino != description->inode || file->st_dev != description->device ||
        (uint64_t)file->st_size < description->size)
        return -EBADF;
    error = memory_file_check(fd, &size);
    if (!error && description->kind == MAPPED_KIND_ARENA && size != MAPPED_ARENA_SIZE)
        return -EBADF;
    return acceptance->may_shrink && is_memory(fd) ? 0 : error;
}

/* In the keeper: opens another open file description of the same file, in the keeper's table. */
static void accept_call(void *argument)
{
    struct acceptance *acceptance = argument;
    struct stat file;
    int error, fd = sys_open(acceptance->path, (acceptance->writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);

    acceptance->fd = fd;
    if (fd < 0)
        return;
    error = check_file(acceptance, fd, &file);
    if (error) {
        sys_close(fd);
        acceptance->fd = error;
        return;
    }
    acceptance->size = (uint64_t)file.st_size;
    acceptance->fd = keeper_keep(fd);
}

static int accept_descriptor(struct mapped_file *file, int fd, struct acceptance *acceptance)
{
    snprintf(acceptance->path, sizeof(acceptance->path), "/proc/self/task/%d/fd/%d", (int)sys_gettid(), fd);
    keeper_call(accept_call, acceptance);
    file->fd = acceptance->fd;
    file->size = acceptance->size;
    return min_of(acceptance->fd, 0);
}

/* A System V segment cannot shrink; it is destroyed when the last process detaches. */
static int accept_segment(struct mapped_file *file, const struct mapped_file_description *description)
{
    struct shmid_ds segment;
    struct maps maps;
    struct mapping mapping;
    void *address;

    if (shmctl(description->shmid, IPC_STAT, &segment) < 0 || segment.shm_perm.uid != geteuid() ||
        segment.shm_segsz < description->size)
        return -EBADF;
    address = shmat(description->shmid, NULL, file->writable ? 0 : SHM_RDONLY);
    if (address == (void *)-1)
        return -errno;
    /* In another IPC namespace the number names another segment: compare the inode. */
    if (maps_open(&maps) == 0) {
        int error = maps_find(&maps, (uintptr_t)address, &mapping);

        maps_close(&maps);
        if (!error && mapping.inode == description->inode &&
            sys_madvise(address, segment.shm_segsz, MADV_DONTFORK) == 0) {
            file->segment = address;
            file->size = segment.shm_segsz;
            return 0;
        }
    }
    shmdt(address);
    return -EBADF;
}

struct mapped_file *mapped_file_accept(int fd, const struct mapped_file_description *description,
                                       bool writable, bool may_shrink, int *ret_error)
{
    struct acceptance acceptance = {
        .description = description, .writable = writable, .may_shrink = may_shrink};
    struct mapped_file *file = calloc(1, sizeof(*file));
    int saved = errno, error = file ? 0 : -ENOMEM;

    if (!error)
        error = keeper_start();
    if (!error) {
        file->fd = -1;
        file->writable = writable;
        list_init(&file->views);
        error = description->kind == MAPPED_KIND_SYSV ? accept_segment(file, description)
                                                      : accept_descriptor(file, fd, &acceptance);
    }
    errno = saved;
    if (!error)
        return file;
    free(file);
    *ret_error = error;
    return NULL;
}

/* --- views ------------------------------------------------------------------------------------------- */

static void view_free(struct mapped_view *view)
{
    list_remove(&view->node);
    list_remove(&view->all);
    if (list_linked(&view->idle)) {
        list_remove(&view->idle);
        idle_count--;
    }
    if (!view->file->segment)
        sys_munmap(view->address, view->length);
    view_count--;
    free(view);
}

static void close_call(void *argument)
{
    sys_close(*(int *)argument);
}

void mapped_file_drop(struct mapped_file *file)
{
    int saved = errno;

    if (!file)
        return;
    lock_acquire(&views_lock);
    list_for_each_safe (node, following, &file->views)
        view_free(list_entry(node, struct mapped_view, node));
    lock_release(&views_lock);
    if (file->segment)
        shmdt(file->segment);
    if (file->fd >= 0)
        keeper_call(close_call, &file->fd);
    free(file);
    errno = saved;
}

struct mapping_request {
    const struct mapped_file *file;
    uint64_t offset, length;
    void *address; /* output */
    int error;
};

/* In the keeper, which owns the descriptors. */
static void map_call(void *argument)
{
    struct mapping_request *request = argument;
    int protection = PROT_READ | (request->file->writable ? PROT_WRITE : 0);
    void *address = sys_mmap(NULL, request->length, PROT_NONE, MAP_SHARED | MAP_NORESERVE, request->file->fd,
                             (off_t)request->offset, &request->error);

    if (!address)
        return;
    /* Under mlockall(MCL_FUTURE) the mapping is locked, and would be populated if it were accessible: munlock()
     * first. A child has no use for it; in a core dump it is its owner's memory. */
    request->error = sys_munlock(address, request->length);
    if (!request->error)
        request->error = sys_madvise(address, request->length, MADV_DONTFORK);
    if (!request->error)
        request->error = sys_madvise(address, request->length, MADV_DONTDUMP);
    if (!request->error)
        request->error = sys_mprotect(address, request->length, protection);
    if (request->error)
        sys_munmap(address, request->length);
    else
        request->address = address;
}

static struct mapped_view *find_view(struct mapped_file *file, uint64_t offset, uint64_t length)
{
    list_for_each (node, &file->views) {
        struct mapped_view *view = list_entry(node, struct mapped_view, node);

        if (view->offset <= offset && offset - view->offset <= view->length &&
            length <= view->length - (offset - view->offset))
            return view;
    }
    return NULL;
}

static struct mapped_view *new_view(struct mapped_file *file, uint64_t offset, uint64_t length,
                                    int *ret_error)
{
    struct mapping_request request = {.file = file, .offset = offset, .length = length};
    struct mapped_view *view;

    if (view_count >= VIEWS_MAX) {
        *ret_error = -EMFILE;
        return NULL;
    }
    view = calloc(1, sizeof(*view));
    if (!view) {
        *ret_error = -ENOMEM;
        return NULL;
    }
    if (file->segment)
        request.address = file->segment + offset;
    else
        keeper_call(map_call, &request);
    if (!request.address) {
        *ret_error = request.error;
        free(view);
        return NULL;
    }
    view->file = file;
    view->offset = offset;
    view->length = length;
    view->address = request.address;
    list_init(&view->idle);
    list_push_back(&file->views, &view->node);
    list_push_back(&all_views, &view->all);
    view_count++;
    return view;
}

struct mapped_view *mapped_attach(struct mapped_file *file, uint64_t offset, uint64_t length, int *ret_error)
{
    struct mapped_view *view;
    int saved = errno;

    if (!length || (offset | length) & (page_size() - 1) || offset > file->size ||
        length > file->size - offset) {
        *ret_error = -ERANGE;
        return NULL;
    }
    lock_acquire(&views_lock);
    view = find_view(file, offset, length);
    if (!view)
        view = new_view(file, offset, length, ret_error);
    if (view && view->users++ == 0 && list_linked(&view->idle)) {
        list_remove(&view->idle);
        idle_count--;
    }
    lock_release(&views_lock);
    errno = saved;
    return view;
}

void mapped_detach(struct mapped_view *view)
{
    int saved = errno;

    lock_acquire(&views_lock);
    if (--view->users == 0) {
        list_push_back(&idle_views, &view->idle);
        if (++idle_count > VIEWS_KEPT)
            view_free(list_entry(idle_views.next, struct mapped_view, idle));
    }
    lock_release(&views_lock);
    errno = saved;
}

void *mapped_view_address(const struct mapped_view *view, uint64_t offset)
{
    return view->address + (offset - view->offset);
}

bool is_view(uint64_t address)
{
    bool found = false;

    lock_acquire(&views_lock);
    list_for_each (node, &all_views) {
        const struct mapped_view *view = list_entry(node, struct mapped_view, all);

        found |= address - (uintptr_t)view->address < view->length;
    }
    lock_release(&views_lock);
    return found;
}

/* The mappings are not in the child (MADV_DONTFORK); handles of the parent must not be used any more. */
void views_after_fork_in_child(void)
{
    lock_init(&views_lock);
    list_init(&all_views);
    list_init(&idle_views);
    idle_count = view_count = 0;
}
