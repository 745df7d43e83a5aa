/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* System calls that must not go through libc: UCX and Open MPI hook mmap() and munmap(), and some wrappers are newer
 * than GLIBC_2.34. Each returns the kernel's result, a value >= 0 or -errno, and preserves errno. */
#ifndef BASE_SYS_H
#define BASE_SYS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/types.h"

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

/* timeout_ns: relative, for FUTEX_WAIT; NS_NEVER waits for ever. */
long sys_futex(uint32_t *word, int operation, uint32_t value, ns_t timeout_ns);
/* NULL, not MAP_FAILED, on failure; then *ret_error, if ret_error is not NULL, is -errno. */
void *sys_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset, int *ret_error);
int sys_munmap(void *address, size_t length);
int sys_madvise(void *address, size_t length, int advice);
int sys_mprotect(void *address, size_t length, int protection);
/* NULL on failure, as sys_mmap(). `to` is used with MREMAP_FIXED and, as a hint, with MREMAP_DONTUNMAP. */
void *sys_mremap(void *address, size_t length, size_t new_length, int flags, void *to, int *ret_error);
/* mlock2(2), flags 0 or MLOCK_ONFAULT. */
int sys_mlock(void *address, size_t length, unsigned flags);
int sys_munlock(void *address, size_t length);
int sys_memfd_create(const char *name, unsigned flags);
/* fallocate(PUNCH_HOLE): frees the pages, which read as zero afterwards. On failure the contents stay. */
int sys_punch_hole(int fd, off_t offset, off_t length);
int sys_pidfd_open(pid_t pid);
/* A duplicate of a descriptor of the process, if the kernel would let this thread trace it. */
int sys_pidfd_getfd(int pidfd, int fd);
/* Unlike libc's these are not cancellation points: a cancelled thread must not end while it holds our locks or is in
 * a rundown section. */
/* For Internet addresses: librspreload of rdma-core 63 and newer makes an rsocket of each that libc opens. */
int sys_socket(int domain, int type);
int sys_open(const char *path, int flags);
int sys_close(int fd);
ssize_t sys_read(int fd, void *data, size_t length);
ssize_t sys_write(int fd, const void *data, size_t length);
/* Does not block, whether the descriptor is O_NONBLOCK or not. Before Linux 5.8, which refuses that for eventfds, it is
 * O_NONBLOCK for a moment: another reader that gets EAGAIN asks sys_reads_block(), and reads again. The callers of both
 * exclude each other by a lock. */
ssize_t sys_read_now(int fd, void *data, size_t length);
bool sys_reads_block(int fd);
ssize_t sys_pread(int fd, void *data, size_t length, off_t offset);
ssize_t sys_pwrite(int fd, const void *data, size_t length, off_t offset);
off_t sys_lseek(int fd, off_t offset, int whence);
int sys_ioctl(int fd, unsigned long request, void *argument);
/* For listen(2): the kernel takes no more than net.core.somaxconn. */
#define LISTEN_MAX 4096
ssize_t sys_send(int fd, const void *data, size_t length, int flags);
struct mmsghdr;
struct msghdr;
/* The number of datagrams sent or received. Do not block. */
int sys_sendmmsg(int fd, struct mmsghdr *messages, unsigned count);
int sys_recvmmsg(int fd, struct mmsghdr *messages, unsigned count);
ssize_t sys_sendmsg(int fd, const struct msghdr *message);
struct sockaddr;
ssize_t sys_sendto(int fd, const struct iovec *data, const struct sockaddr *name, unsigned name_length);
ssize_t sys_recvmsg(int fd, struct msghdr *message);
/* Not by the names of libc: librspreload of rdma-core 61 and newer makes sets of rsockets of the program's
 * epoll_*(). */
struct epoll_event;
/* A lifted descriptor with EPOLL_CLOEXEC, or -errno. */
int sys_epoll_create(void);
int sys_epoll_ctl(int epoll, int operation, int fd, const struct epoll_event *event);
/* timeout_ns (NS_NEVER: none) is rounded up to milliseconds where the kernel has no epoll_pwait2(2). */
int sys_epoll_wait(int epoll, struct epoll_event *events, int most, ns_t timeout_ns);
struct pollfd;
int sys_poll(struct pollfd *watched, unsigned long count, ns_t timeout_ns);
/* Does not block. Asks again some times after a signal and where the kernel lacks memory. */
int sys_poll_now(struct pollfd *watched, unsigned count);
/* Reads or writes the memory of another process; `remote` are its addresses. */
ssize_t sys_process_vm_writev(pid_t pid, const struct iovec *local, unsigned long local_count,
                              const struct iovec *remote, unsigned long remote_count);
ssize_t sys_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                             const struct iovec *remote, unsigned long remote_count);
/* membarrier(2); -errno where the kernel or a seccomp filter refuses. */
int sys_membarrier(int command);
void sys_random(void *buffer, size_t length);
ns_t sys_now(void);
/* Thread id of the calling thread, cached. */
pid_t sys_gettid(void);
/* In the child of a fork: drops the cached thread id. */
void sys_forget_thread(void);
/* The permitted capabilities of a thread of any process, as a bit mask; 0: of this thread. 0 or -errno. */
int sys_permitted_capabilities(pid_t thread, uint64_t *ret_permitted);
/* True if the capability (CAP_...) is effective in this thread. */
bool sys_has_capability(int capability);

#endif
