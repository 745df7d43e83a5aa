/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory in files (memfds) that several processes map: making one, and accepting one that another process made.
 *
 * Holes: whoever touches a hole of such a file in a mapping, also by a load, gets a page (shmem_fault() allocates
 * it), and the kernel charges it to the memory control group of that process. read(2) of a hole copies zeros and
 * allocates nothing. Our own files are sparse, so a sparse one cannot be refused. Hence a file whose size its maker
 * chooses is read by pread(2) (explain/view.h), and of the others only parts of a fixed size are mapped. */
#ifndef BASE_MEMORY_FILE_H
#define BASE_MEMORY_FILE_H

#include <stdint.h>

/* A new memfd of that size, sealed against changes of its size; or -errno. -EFBIG: beyond RLIMIT_FSIZE (ulimit -f). The
 * caller passes the descriptor to fd_own(). */
int memory_file_make(const char *name, uint64_t size);
/* The two steps before the seals. */
int memory_file_create(const char *name);
int memory_file_resize(int fd, uint64_t size);
int memory_file_seal(int fd);
/* The same, and from now on only mappings that exist already write (F_SEAL_FUTURE_WRITE, Linux 5.1; before, as above).
 * Nobody can punch holes then. */
int memory_file_seal_writes(int fd);

/* May this process read and map a file that another process made? The one check of every such file: ordinary pages,
 * which do not run out as huge pages do, and sealed against shrinking and growing, so that no access raises SIGBUS. 0
 * with the size; -EBADF: not ordinary memory; -EPERM: not sealed. Any descriptor may be passed: the kernel answers
 * without asking a file system of another user. */
int memory_file_check(int fd, uint64_t *ret_size);
/* Opens a file of another process by a path in /proc/PID/fd, and checks it. The descriptor, or -errno as above. What
 * is there may change at any time: only a memfd is opened, because to open a FIFO, a device or a file of FUSE may
 * block, or have an effect. */
int memory_file_open(const char *path, int flags, uint64_t *ret_size);

#endif
