/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef BASE_FD_H
#define BASE_FD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Applied to each new descriptor of SoftHCA: moves 0 to 2 to a higher number. A program that was started with stdin,
 * stdout or stderr closed would otherwise print into our descriptor. Returns fd, also a negative one; -1 with errno:
 * no other number is free, and fd is closed. */
int fd_lift(int fd);

struct stat;
struct statfs;
/* fstat(2) and fstatfs(2), asked again some times where the kernel lacks memory. 0 or -errno; errno is kept. */
int fd_stat(int fd, struct stat *ret_status);
int fd_statfs(int fd, struct statfs *ret_system);

/* Reads the beginning of a small file, of /proc as a rule, as text: at most size - 1 bytes. Their number, or -errno;
 * then the text is empty. Not by libc, whose calls are cancellation points. */
ssize_t fd_read_text(const char *path, char *text, size_t size);

/* How many descriptors this process may have now (RLIMIT_NOFILE): programs change it. 0: the kernel does not say. */
uint32_t fd_limit(void);

/* -errno of a call that may succeed later: the kernel or this process lacks something, or a signal came. */
bool error_may_pass(long error);

#endif
