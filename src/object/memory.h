/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#ifndef OBJECT_MEMORY_H
#define OBJECT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is every page of the range mapped, readable and (write) writable? 0 or -EFAULT. Looks at mappings only: no
 * page is touched or populated, whatever the size of the range. */
int memory_check(uintptr_t address, size_t length, bool write);
/* The way without PROCMAP_QUERY; for tests. */
int memory_check_by_text(uintptr_t address, size_t length, bool write);

/* Memory of an on-demand region, which may be gone: brings missing pages in. false: it is not there, or not
 * writable. Who unmaps it in another thread just then can still make the access that follows fault. */
bool memory_reach(uint64_t address, uint64_t length, bool write);

#endif
