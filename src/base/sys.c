/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/sys.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/falloc.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_feature) && !defined(__SANITIZE_THREAD__)
#if __has_feature(thread_sanitizer) /* clang's equivalent of gcc's macro */
#define __SANITIZE_THREAD__ 1
#endif
#endif

/* Arguments of syscall() that are longs in the kernel must be longs here: the seventh is passed on the stack, where
 * the upper half of an int is undefined.
 *
 * syscall() reports errors in errno; these functions return them and preserve errno. */
static long value_or_error(long result, int saved_errno)
{
    if (result == -1) {
        result = -errno;
        errno = saved_errno;
    }
    return result;
}

long sys_futex(uint32_t *word, int operation, uint32_t value, ns_t timeout_ns)
{
    int saved = errno;
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / NS_PER_S),
                               .tv_nsec = (long)(timeout_ns % NS_PER_S)};

    return value_or_error(
        syscall(SYS_futex, word, operation, value, timeout_ns == NS_NEVER ? NULL : &timeout, NULL, 0), saved);
}

void *sys_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset, int *ret_error)
{
    int saved = errno;
    long result = value_or_error(syscall(SYS_mmap, address, length, protection, flags, fd, offset), saved);

    /* Errors of the kernel are -4095..-1; no user space address has these values. */
    if (result < 0 && result >= -4095) {
        if (ret_error)
            *ret_error = (int)result;
        return NULL;
    }
    return (void *)result;
}

int sys_munmap(void *address, size_t length)
{
    int saved = errno;

    return (int)value_or_error(syscall(SYS_munmap, address, length), saved);
}

int sys_madvise(void *address, size_t length, int advice)
{
    int saved = errno;

    return (int)value_or_error(syscall(SYS_madvise, address, length, advice), saved);
}

int sys_mprotect(void *address, size_t length, int protection)
{
    int saved = errno;

    return (int)value_or_error(syscall(SYS_mprotect, address, length, (long)protection), saved);
}

void *sys_mremap(void *address, size_t length, size_t new_length, int flags, void *to, int *ret_error)
{
    int saved = errno;
    long result = value_or_error(syscall(SYS_mremap, address, length, new_length, (long)flags, to), saved);

    if (result < 0 && result >= -4095) {
        if (ret_error)
            *ret_error = (int)result;
        return NULL;
    }
    return (void *)result;
}

int sys_mlock(void *address, size_t length, unsigned flags)
{
    int saved = errno;

    return (int)value_or_error(syscall(SYS_mlock2, address, length, (long)flags), saved);
}

int sys_munlock(void *address, size_t length)
{
    int saved = errno;

    return (int)value_or_error(syscall(SYS_munlock, address, length), saved);
}

int sys_memfd_create(const char *name, unsigned flags)
{
    int saved = errno;

    return (int)value_or_error(fd_lift((int)syscall(SYS_memfd_create, name, flags)), saved);
}

int sys_punch_hole(int fd, off_t offset, off_t length)
{
    int saved = errno;

    return (int)value_or_error(
        syscall(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length), saved);
}

int sys_pidfd_open(pid_t pid)
{
    int saved = errno;

    return (int)value_or_error(fd_lift((int)syscall(SYS_pidfd_open, pid, 0)), saved);
}

/* Of Linux 5.6, which headers that this is built with may not know; the same on all architectures. */
enum { PIDFD_GETFD = 438 };

int sys_pidfd_getfd(int pidfd, int fd)
{
    int saved = errno;

    return (int)value_or_error(fd_lift((int)syscall((long)PIDFD_GETFD, (long)pidfd, (long)fd, 0l)), saved);
}

int sys_socket(int domain, int type)
{
    int saved = errno;

    return (int)value_or_error(fd_lift((int)syscall(SYS_socket, (long)domain, (long)type, 0l)), saved);
}

int sys_open(const char *path, int flags)
{
    int saved = errno;

    return (int)value_or_error(fd_lift((int)syscall(SYS_openat, (long)AT_FDCWD, path, (long)flags)), saved);
}

int sys_close(int fd)
{
    int saved = errno;
#ifdef __SANITIZE_THREAD__
    /* ThreadSanitizer has to see the close(), or it takes accesses to the next file of that number for a race. */
    int state;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    int error = (int)value_or_error(close(fd), saved);

    pthread_setcancelstate(state, NULL);
    return error;
#else
    return (int)value_or_error(syscall(SYS_close, (long)fd), saved);
#endif
}

ssize_t sys_read(int fd, void *data, size_t length)
{
    int saved = errno;

    return value_or_error(syscall(SYS_read, (long)fd, data, length), saved);
}

ssize_t sys_write(int fd, const void *data, size_t length)
{
    int saved = errno;

    return value_or_error(syscall(SYS_write, fd, data, length), saved);
}

static long flags_of(int fd)
{
    return syscall(SYS_fcntl, (long)fd, (long)F_GETFL);
}

bool sys_reads_block(int fd)
{
    int saved = errno;
    long flags = flags_of(fd);

    errno = saved;
    return flags >= 0 && !(flags & O_NONBLOCK);
}

static long read_now_by_flag(int fd, void *data, size_t length)
{
    struct pollfd watched = {.fd = fd, .events = POLLIN};
    long flags = flags_of(fd), got;
    int error;

    if (sys_poll_now(&watched, 1) <= 0 || flags < 0)
        return -EAGAIN;
    if (!(flags & O_NONBLOCK) && syscall(SYS_fcntl, (long)fd, (long)F_SETFL, flags | O_NONBLOCK) < 0)
        return -errno;
    got = syscall(SYS_read, (long)fd, data, length);
    error = errno;
    if (!(flags & O_NONBLOCK))
        syscall(SYS_fcntl, (long)fd, (long)F_SETFL, flags);
    return got < 0 ? -error : got;
}

ssize_t sys_read_now(int fd, void *data, size_t length)
{
    struct iovec to = {data, length};
    int saved = errno;
    long got = syscall(SYS_preadv2, (long)fd, &to, 1ul, -1l, -1l, (long)RWF_NOWAIT); /* at no offset */

    if (got < 0)
        got = errno == EOPNOTSUPP || errno == ENOSYS || errno == EPERM ? read_now_by_flag(fd, data, length)
                                                                       : -errno;
    errno = saved;
    return got;
}

ssize_t sys_pread(int fd, void *data, size_t length, off_t offset)
{
    int saved = errno;

    return value_or_error(syscall(SYS_pread64, (long)fd, data, length, offset), saved);
}

ssize_t sys_pwrite(int fd, const void *data, size_t length, off_t offset)
{
    int saved = errno;

    return value_or_error(syscall(SYS_pwrite64, (long)fd, data, length, offset), saved);
}

off_t sys_lseek(int fd, off_t offset, int whence)
{
    int saved = errno;

    return value_or_error(syscall(SYS_lseek, (long)fd, offset, (long)whence), saved);
}

int sys_ioctl(int fd, unsigned long request, void *argument)
{
    int saved = errno;

    return (int)value_or_error(syscall(SYS_ioctl, (long)fd, request, argument), saved);
}

ssize_t sys_send(int fd, const void *data, size_t length, int flags)
{
    int saved = errno;

    return value_or_error(syscall(SYS_sendto, fd, data, length, flags, NULL, 0L), saved);
}

int sys_sendmmsg(int fd, struct mmsghdr *messages, unsigned count)
{
    int saved = errno;

    return (int)value_or_error(syscall(SYS_sendmmsg, fd, messages, (long)count, MSG_DONTWAIT | MSG_NOSIGNAL),
                               saved);
}

ssize_t sys_sendmsg(int fd, const struct msghdr *message)
{
    int saved = errno;

    return value_or_error(syscall(SYS_sendmsg, fd, message, MSG_DONTWAIT | MSG_NOSIGNAL), saved);
}

ssize_t sys_sendto(int fd, const struct iovec *data, const struct sockaddr *name, unsigned name_length)
{
    int saved = errno;

    return value_or_error(syscall(SYS_sendto, fd, data->iov_base, data->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL,
                                  name, (long)name_length),
                          saved);
}

int sys_recvmmsg(int fd, struct mmsghdr *messages, unsigned count)
{
    int saved = errno;

    return (int)value_or_error(
        syscall(SYS_recvmmsg, fd, messages, (long)count, MSG_DONTWAIT | MSG_CMSG_CLOEXEC, NULL), saved);
}

ssize_t sys_recvmsg(int fd, struct msghdr *message)
{
    int saved = errno;

    return value_or_error(syscall(SYS_recvmsg, fd, message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC), saved);
}

int sys_poll(struct pollfd *watched, unsigned long count, ns_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / NS_PER_S),
                               .tv_nsec = (long)(timeout_ns % NS_PER_S)};
    int saved = errno;

    return (int)value_or_error(
        syscall(SYS_ppoll, watched, count, timeout_ns == NS_NEVER ? NULL : &timeout, NULL, 0L), saved);
}

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

int sys_epoll_create(void)
{
    int saved = errno;
#ifdef __SANITIZE_THREAD__
    /* ThreadSanitizer has to know the set, or it orders nothing by it. */
    return (int)value_or_error(fd_lift(epoll_create1(EPOLL_CLOEXEC)), saved);
#else
    return (int)value_or_error(fd_lift((int)syscall(SYS_epoll_create1, (long)EPOLL_CLOEXEC)), saved);
#endif
}

int sys_epoll_ctl(int epoll, int operation, int fd, const struct epoll_event *event)
{
    int saved = errno;
#ifdef __SANITIZE_THREAD__
    /* ThreadSanitizer has to see that what epoll_wait() reports was made before. */
    return (int)value_or_error(epoll_ctl(epoll, operation, fd, (struct epoll_event *)event), saved);
#else
    return (int)value_or_error(syscall(SYS_epoll_ctl, (long)epoll, (long)operation, (long)fd, event), saved);
#endif
}

int sys_epoll_wait(int epoll, struct epoll_event *events, int most, ns_t timeout_ns)
{
    const struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / NS_PER_S),
                                     .tv_nsec = (long)(timeout_ns % NS_PER_S)};
    const bool forever = timeout_ns == NS_NEVER;
    int saved = errno;
    long result;

#ifdef __SANITIZE_THREAD__
    if (forever || !timeout_ns)
        return (int)value_or_error(epoll_wait(epoll, events, most, forever ? -1 : 0), saved);
#endif
    result = syscall(SYS_epoll_pwait2, (long)epoll, events, (long)most, forever ? NULL : &timeout, NULL, 0L);
    /* Before Linux 5.11, or under a seccomp filter that does not know epoll_pwait2(2). */
    if (result < 0 && (errno == ENOSYS || errno == EPERM))
        result =
            syscall(SYS_epoll_pwait, (long)epoll, events, (long)most,
                    forever ? -1l : (long)min_of((timeout_ns + NS_PER_MS - 1) / NS_PER_MS, (ns_t)INT32_MAX),
                    NULL, 0L);
    return (int)value_or_error(result, saved);
}

int sys_poll_now(struct pollfd *watched, unsigned count)
{
    int ready, tries = 0;

    do {
        ready = sys_poll(watched, count, 0);
    } while (unlikely(ready < 0) && (ready == -EINTR || ready == -ENOMEM || ready == -EAGAIN) &&
             ++tries < 16);
    return ready;
}

ssize_t sys_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                             const struct iovec *remote, unsigned long remote_count)
{
    int saved = errno;

    return value_or_error(syscall(SYS_process_vm_readv, pid, local, local_count, remote, remote_count, 0UL),
                          saved);
}

ssize_t sys_process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
                              const struct iovec *remote, unsigned long remote_count)
{
    int saved = errno;

    return value_or_error(syscall(SYS_process_vm_writev, pid, local, local_count, remote, remote_count, 0UL),
                          saved);
}

int sys_membarrier(int command)
{
    int saved = errno;

    return (int)value_or_error(syscall(SYS_membarrier, command, 0, 0), saved);
}

void sys_random(void *buffer, size_t length)
{
    int saved = errno;
    uint8_t *next = buffer;

    while (length) {
        long got = syscall(SYS_getrandom, next, length, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) { /* getrandom refused (seccomp): keys become guessable, all else works */
            ns_t mix = sys_now() * 0x9e3779b97f4a7c15ull;
            *next++ = (uint8_t)(mix >> 32);
            length--;
            continue;
        }
        next += got;
        length -= (size_t)got;
    }
    errno = saved;
}

ns_t sys_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (ns_t)now.tv_sec * NS_PER_S + (ns_t)now.tv_nsec;
}

static __thread pid_t this_thread __attribute__((tls_model("initial-exec")));

pid_t sys_gettid(void)
{
    if (unlikely(!this_thread))
        this_thread = (pid_t)syscall(SYS_gettid);
    return this_thread;
}

void sys_forget_thread(void)
{
    this_thread = 0;
}

int sys_permitted_capabilities(pid_t thread, uint64_t *ret_permitted)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = thread};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
    int saved = errno;
    int error = (int)value_or_error(syscall(SYS_capget, &header, data), saved);

    *ret_permitted = data[0].permitted | (uint64_t)data[1].permitted << 32;
    return error;
}

bool sys_has_capability(int capability)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
    int saved = errno;

    if (value_or_error(syscall(SYS_capget, &header, data), saved) != 0)
        return false;
    return (data[capability / 32].effective >> (capability % 32)) & 1;
}
