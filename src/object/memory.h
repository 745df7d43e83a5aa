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

#endif
