/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The program's memory as the kernel describes it: is a range mapped, of which file, and second mappings. */
#ifndef OBJECT_MEMORY_MEMORY_H
#define OBJECT_MEMORY_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is every page of the range mapped, readable and (write) writable? 0 or -EFAULT. Examines the mappings only: no
 * page is touched or populated. */
int memory_check(uintptr_t address, size_t length, bool write);

/* The file and offset of memory that other processes may have mapped, too: one shared mapping of a file, which
 * may have no name. inode 0: the memory is not of that kind. */
struct memory_file {
    uint32_t device_major, device_minor;
    uint64_t inode, offset;
};
/* memory_check(), and the file of the memory. */
int memory_check_file(uintptr_t address, size_t length, bool write, struct memory_file *ret_file);
/* Makes a second mapping of that part of the file from a mapping that this process has; memory_unalias() unmaps
 * it. -ENOENT: the process does not have it mapped, or not for writing; -EOPNOTSUPP: the kernel does not map
 * this memory a second time. */
int memory_alias(const struct memory_file *file, size_t length, bool write, char **ret_at);
void memory_unalias(char *at, size_t length);
/* memory_check() without PROCMAP_QUERY, by reading /proc/self/maps; for tests. */
int memory_check_by_text(uintptr_t address, size_t length, bool write);

/* Memory of an on-demand region: populates missing pages. False: the memory is not mapped, or not writable. If
 * another thread unmaps the memory afterwards the access that follows still faults. */
bool memory_reach(uint64_t address, uint64_t length, bool write);

/* Peers may get a reason to have the kernel copy from or to memory of this process: a region with remote rights was
 * registered, a QP that is connected was created (SENDs by reference), or a service takes connections. For good. */
void memory_expect_copies(void);
bool memory_expects_copies(void);

#endif
