/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A file of its own: what is preloaded into programs reads mappings, but refuses no call, and must not need the loader
 * for a thread-local refusal. */
#include "base/maps.h"

#include <errno.h>

#include "base/refusal.h"

/* The first byte of the page, or of the range. */
static cold_path int refuse_page(enum refusal_form form, uintptr_t at, uintptr_t first, uintptr_t end)
{
    return refuse(-EFAULT, form, "addr", (int64_t)at, first, end - first);
}

/* Each mapping must begin where the one before ended. */
int maps_check(struct maps *maps, uintptr_t first, uintptr_t end, bool write, struct mapping *ret_first)
{
    for (uintptr_t next = first; next < end;) {
        struct mapping mapping;
        int error = maps_find(maps, next, &mapping);

        if (error)
            return error == -ENOENT ? refuse_page(REFUSAL_UNMAPPED, next, first, end) : error;
        if (mapping.start > next)
            return refuse_page(REFUSAL_UNMAPPED, next, first, end);
        if (!mapping.readable)
            return refuse_page(REFUSAL_UNREADABLE, next, first, end);
        if (write && !mapping.writable)
            return refuse_page(REFUSAL_UNWRITABLE, next, first, end);
        if (ret_first && next == first)
            *ret_first = mapping;
        next = mapping.end;
    }
    return 0;
}
