/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef OBJECT_MEMORY_MEMORY_H
#define OBJECT_MEMORY_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is every page of the range mapped, readable and (write) writable? 0 or -EFAULT. Looks at mappings only: no
 * page is touched or populated, whatever the size of the range. */
int memory_check(uintptr_t address, size_t length, bool write);

/* Where memory is that other processes may have mapped, too: one shared mapping of a file (also one without a
 * name). inode 0: it is none. */
struct memory_file {
    uint32_t device_major, device_minor;
    uint64_t inode, offset;
};
/* memory_check(), and what it is of. */
int memory_check_file(uintptr_t address, size_t length, bool write, struct memory_file *ret_file);
/* A mapping of our own of that part of the file, of whatever of this process has it mapped: it goes by
 * memory_unalias(). -ENOENT: nothing of this process has, or not for writing; -EOPNOTSUPP: memory that the
 * kernel maps no second time. */
int memory_alias(const struct memory_file *file, size_t length, bool write, char **ret_at);
void memory_unalias(char *at, size_t length);
/* The way without PROCMAP_QUERY; for tests. */
int memory_check_by_text(uintptr_t address, size_t length, bool write);

/* Memory of an on-demand region, which may be gone: brings missing pages in. false: it is not there, or not
 * writable. Who unmaps it in another thread just then can still make the access that follows fault. */
bool memory_reach(uint64_t address, uint64_t length, bool write);

#endif
