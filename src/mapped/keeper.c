/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "mapped/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/log.h"
#include "base/memory_file.h"
#include "base/newer_kernel.h"
#include "base/sys.h"
#include "mapped/mapped.h"

/* A write to a standard stream in this thread must not hit a file of the keeper. */
#define LOWEST_FD  16
#define STACK_SIZE (256u * 1024)

struct keeper keeper;
unsigned keeper_limits, keeper_fail_in;

enum state { IDLE, ASKED, ANSWERED };

static struct lock call_lock = LOCK_INIT; /* guards starting, and serializes calls */
static _Atomic uint32_t state;
static void (*asked_function)(void *argument);
static void *asked_argument;
static int start_error = 1; /* 1: not tried yet */

/* --- the thread -------------------------------------------------------------------------------------- */

static void wait_while(uint32_t value)
{
    while (atomic_load_explicit(&state, memory_order_acquire) == value)
        sys_futex((uint32_t *)&state, FUTEX_WAIT_PRIVATE, value, NS_NEVER);
}

static void set_state(uint32_t value)
{
    atomic_store_explicit(&state, value, memory_order_release);
    sys_futex((uint32_t *)&state, FUTEX_WAKE_PRIVATE, 1, NS_NEVER);
}

int keeper_keep(int fd)
{
    int moved;

    if (fd < 0)
        return fd;
    moved = (int)syscall(SYS_fcntl, (long)fd, (long)F_DUPFD_CLOEXEC, (long)LOWEST_FD);
    if (moved < 0)
        moved = -errno;
    sys_close(fd);
    return moved;
}

/* A descriptor table of its own, empty from the start: the keeper must never hold a file of the program open. */
static int leave_descriptor_table(void)
{
    if (syscall(SYS_close_range, 0ul, ~0ul & 0xffffffff, (long)CLOSE_RANGE_UNSHARE) == 0)
        return 0;
    return -errno;
}

static int open_arena(int number)
{
    int fd = keeper_keep(memory_file_make("softhca-mapped", MAPPED_ARENA_SIZE));
    struct stat file;

    if (fd < 0)
        return fd;
    keeper.arena[number] = fd;
    if (fstat(fd, &file) < 0)
        return -errno;
    keeper.arena_inode[number] = file.st_ino;
    keeper.arena_device = file.st_dev;
    return 0;
}

#define FEATURES_NEEDED (UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MISSING_SHMEM)

/* To switch pages back, writers to shared pages must be stopped, by write protection or by minor faults. */
#define FEATURES_THAT_STOP ((uint64_t)(UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_MINOR_SHMEM))

int keeper_features(int uffd, uint64_t *ret_features)
{
    struct uffdio_api api = {.api = UFFD_API};
    int error = sys_ioctl(uffd, UFFDIO_API, &api);

    if (error)
        return error;
    if (keeper_limits & KEEPER_NO_SHARED_PROTECT)
        api.features &= ~(uint64_t)UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
    if (keeper_limits & KEEPER_OLD_UFFD)
        api.features &= ~FEATURES_THAT_STOP;
    *ret_features = api.features;
    return (api.features & FEATURES_NEEDED) == FEATURES_NEEDED && (api.features & FEATURES_THAT_STOP)
               ? 0
               : -EOPNOTSUPP;
}

static int new_uffd(int flags)
{
    return keeper_keep((int)syscall(SYS_userfaultfd, (long)(O_CLOEXEC | O_NONBLOCK | flags)));
}

static int open_uffd(int flags)
{
    struct uffdio_api api = {.api = UFFD_API, .features = FEATURES_NEEDED};
    uint64_t features;
    int fd = new_uffd(flags), error;

    if (fd < 0)
        return fd;
    error = keeper_features(fd, &features);
    sys_close(fd);
    if (error)
        return error;
    keeper.can_protect = features & UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
    api.features |= keeper.can_protect ? UFFD_FEATURE_WP_HUGETLBFS_SHMEM : UFFD_FEATURE_MINOR_SHMEM;
    fd = new_uffd(flags);
    error = fd < 0 ? fd : sys_ioctl(fd, UFFDIO_API, &api);
    if (error && fd >= 0)
        sys_close(fd);
    return error ? error : fd;
}

/* A full userfaultfd where it is allowed: then system calls also wait for the end of a switch. */
static void choose_uffd(void)
{
    keeper.uffd = -EPERM;
    if (keeper_limits & KEEPER_NO_UFFD)
        return;
    if (!(keeper_limits & KEEPER_USER_MODE))
        keeper.uffd = open_uffd(0);
    keeper.uffd_full = keeper.uffd >= 0;
    if (keeper.uffd < 0)
        keeper.uffd = open_uffd(UFFD_USER_MODE_ONLY);
}

static int open_descriptors(void)
{
    int error = leave_descriptor_table();

    for (int i = 0; i < KEEPER_ARENAS && !error; i++)
        error = open_arena(i);
    if (error)
        return error;
    keeper.pagemap = keeper_keep(sys_open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    if (keeper.pagemap < 0)
        return keeper.pagemap;
    keeper.status = keeper_keep(sys_open("/proc/self/status", O_RDONLY | O_CLOEXEC));
    if (keeper.status < 0)
        return keeper.status;
    choose_uffd();
    return 0;
}

static void *keeper_main(void *argument)
{
    int *ret_error = argument;

    pthread_setname_np(pthread_self(), "softhca-mapped");
    keeper.thread = sys_gettid();
    *ret_error = open_descriptors();
    if (*ret_error) {
        /* The descriptor table goes away with the thread. */
        set_state(ANSWERED);
        return NULL;
    }
    set_state(ANSWERED);
    for (;;) {
        wait_while(IDLE);
        wait_while(ANSWERED);
        if (atomic_load_explicit(&state, memory_order_acquire) != ASKED)
            continue;
        asked_function(asked_argument);
        set_state(ANSWERED);
    }
}

/* --- callers ----------------------------------------------------------------------------------------- */

static int create_thread(int *ret_error, pthread_t *ret_thread)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    size_t size;
    int error;

    /* pthread_sigmask() leaves glibc's own signals unblocked, which setuid() needs. */
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_getstacksize(&attributes, &size);
    pthread_attr_setstacksize(&attributes, STACK_SIZE);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(ret_thread, &attributes, keeper_main, ret_error);
    if (error == EINVAL) { /* much thread-local memory, which is part of the stack */
        pthread_attr_setstacksize(&attributes, size);
        error = pthread_create(ret_thread, &attributes, keeper_main, ret_error);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return -error;
}

/* A stack ends with the control block of its thread, which contains the list of robust mutexes. The distance from
 * that list to the end is the same for all threads; it can be measured on the keeper, because the keeper never ends. */
static size_t measure_control_block(pthread_t thread)
{
    pthread_attr_t attributes;
    void *head = NULL, *stack = NULL;
    size_t length, size = 0, distance;

    if (syscall(SYS_get_robust_list, (long)keeper.thread, &head, &length) != 0 ||
        pthread_getattr_np(thread, &attributes) != 0)
        return 0;
    if (pthread_attr_getstack(&attributes, &stack, &size) != 0)
        size = 0;
    pthread_attr_destroy(&attributes);
    distance = (uintptr_t)stack + size - (uintptr_t)head;
    return distance < size ? distance : 0;
}

static int start_locked(void)
{
    int error, thread_error = 0;
    pthread_t thread;

    memset(&keeper, 0, sizeof(keeper));
    atomic_store_explicit(&state, IDLE, memory_order_relaxed);
    error = create_thread(&thread_error, &thread);
    if (error) {
        log_warn(
            "cannot create the thread for mapped memory: %s (limits: ulimit -u, and pids.max of the cgroup)",
            strerror(-error));
        return error;
    }
    wait_while(IDLE);
    atomic_store_explicit(&state, IDLE, memory_order_relaxed);
    if (thread_error)
        keeper.thread = 0;
    else
        keeper.control_block = measure_control_block(thread);
    if (thread_error)
        log_info("mapped memory is off, because its thread cannot start (%s). Registered memory works, and "
                 "peers use the shared-memory ring and the kernel copy (slower)",
                 strerror(-thread_error));
    return thread_error;
}

int keeper_start(void)
{
    int saved = errno, error;

    lock_acquire(&call_lock);
    if (start_error > 0)
        start_error = start_locked();
    error = start_error;
    lock_release(&call_lock);
    errno = saved;
    return error;
}

void keeper_call(void (*function)(void *argument), void *argument)
{
    int saved = errno;

    lock_acquire(&call_lock);
    asked_function = function;
    asked_argument = argument;
    set_state(ASKED);
    wait_while(ASKED);
    atomic_store_explicit(&state, IDLE, memory_order_relaxed);
    lock_release(&call_lock);
    errno = saved;
}

int keeper_open(int fd, int flags)
{
    char path[64];
    int saved = errno, opened;

    /* Any thread can open descriptors of another thread's table through /proc. */
    snprintf(path, sizeof(path), "/proc/self/task/%d/fd/%d", (int)keeper.thread, fd);
    opened = sys_open(path, flags | O_CLOEXEC);
    errno = saved;
    return opened;
}

void keeper_after_fork_in_child(void)
{
    lock_init(&call_lock);
    memset(&keeper, 0, sizeof(keeper));
    start_error = 1;
}
