/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "base/frames.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>
#include <unwind.h>

#include "base/lock.h"
#include "base/types.h"

/* --- which file an address is in ------------------------------------------------------------------------ */

static bool loaded_range(const struct dl_phdr_info *info, uint64_t address, uint64_t *ret_start,
                         uint64_t *ret_end)
{
    bool inside = false;

    *ret_start = UINT64_MAX;
    *ret_end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uint64_t start = info->dlpi_addr + segment->p_vaddr, end = start + segment->p_memsz;

        if (segment->p_type != PT_LOAD)
            continue;
        inside = inside || (address >= start && address < end);
        *ret_start = min_of(*ret_start, start);
        *ret_end = max_of(*ret_end, end);
    }
    return inside;
}

struct module_search {
    uint64_t address;
    struct frame_module *module;
};

static int check_module(struct dl_phdr_info *info, size_t size, void *argument)
{
    const struct module_search *search = argument;
    struct frame_module *module = search->module;

    if (!loaded_range(info, search->address, &module->start, &module->end))
        return 0;
    module->bias = info->dlpi_addr;
    module->is_program = !info->dlpi_name || !info->dlpi_name[0];
    if (!module->is_program)
        strncpy(module->path, info->dlpi_name, sizeof(module->path) - 1);
    return 1;
}

int frames_module(uint64_t address, struct frame_module *ret_module)
{
    struct module_search search = {address, ret_module};

    memset(ret_module, 0, sizeof(*ret_module));
    return dl_iterate_phdr(check_module, &search) ? 0 : -ENOENT;
}

/* --- _dl_find_object() for the unwinder ----------------------------------------------------------------- */

/* libgcc calls _dl_find_object() for the unwind tables of each frame. glibc exports that symbol from GLIBC_2.35 on,
 * which is newer than the glibc we support, so this definition serves the linked-in libgcc. The tables of recent
 * files are cached until a file is loaded or unloaded. */
#ifdef DLFO_STRUCT_HAS_EH_DBASE

struct tables {
    uint64_t start, end;
    void *eh_frame_header;
};

static struct {
    struct lock lock; /* a leaf, only tried: without it the cache is not used */
    unsigned long long adds, subs;
    unsigned next;
    struct tables met[32];
} cache;

struct tables_search {
    uint64_t address;
    bool cached; /* cache.lock is held */
    struct tables found;
};

static bool find_cached(struct tables_search *search, const struct dl_phdr_info *info)
{
    if (cache.adds != info->dlpi_adds || cache.subs != info->dlpi_subs) {
        memset(cache.met, 0, sizeof(cache.met));
        cache.adds = info->dlpi_adds;
        cache.subs = info->dlpi_subs;
    }
    for (unsigned i = 0; i < array_size(cache.met); i++) {
        if (search->address >= cache.met[i].start && search->address < cache.met[i].end) {
            search->found = cache.met[i];
            return true;
        }
    }
    return false;
}

static int look_for_tables(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct tables_search *search = argument;

    /* adds and subs are the same in each call of this function, so the first call can use the cache. */
    if (search->cached && find_cached(search, info))
        return 1;
    if (!loaded_range(info, search->address, &search->found.start, &search->found.end))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME)
            search->found.eh_frame_header = (void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    }
    if (search->cached && search->found.eh_frame_header)
        cache.met[cache.next++ % array_size(cache.met)] = search->found;
    return 1;
}

int _dl_find_object(void *address, struct dl_find_object *result)
{
    struct tables_search search = {.address = (uintptr_t)address, .cached = lock_try(&cache.lock)};
    int found = dl_iterate_phdr(look_for_tables, &search);

    if (search.cached)
        lock_release(&cache.lock);
    if (!found || !search.found.eh_frame_header)
        return -1;
    memset(result, 0, sizeof(*result));
    result->dlfo_map_start = (void *)search.found.start;
    result->dlfo_map_end = (void *)search.found.end;
    result->dlfo_eh_frame = search.found.eh_frame_header;
    return 0;
}

#endif

/* --- the stack ------------------------------------------------------------------------------------------ */

struct walk {
    struct frame *frames;
    unsigned count, capacity, skip;
};

static _Unwind_Reason_Code note_frame(struct _Unwind_Context *context, void *argument)
{
    struct walk *walk = argument;
    uint64_t address = _Unwind_GetIP(context);

    if (!address || walk->count == walk->capacity)
        return _URC_END_OF_STACK;
    if (walk->skip) {
        walk->skip--;
        return _URC_NO_REASON;
    }
    walk->frames[walk->count++] = (struct frame){address, _Unwind_GetCFA(context)};
    return _URC_NO_REASON;
}

__attribute__((noinline)) unsigned frames_take(struct frame *frames, unsigned count)
{
    struct walk walk = {.frames = frames, .capacity = count, .skip = 2};
    int saved = errno;

    _Unwind_Backtrace(note_frame, &walk);
    errno = saved;
    return walk.count;
}
