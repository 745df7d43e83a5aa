/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "forge.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mapped/mapped.h"
#include "segment/segment.h"

#define SEGMENT_NAME "/memfd:softhca (deleted)\n"

struct segment_header *forge_find(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    struct segment_header *found = NULL;
    unsigned long start;
    char line[512];

    /* The first part of the first file is mapped first. */
    while (maps && !found && fgets(line, sizeof(line), maps)) {
        if (strstr(line, SEGMENT_NAME) && sscanf(line, "%lx", &start) == 1)
            found = (struct segment_header *)start;
    }
    if (maps)
        fclose(maps);
    return found && found->magic == SEGMENT_MAGIC ? found : NULL;
}

uint64_t forge_arena_size(void)
{
    return MAPPED_ARENA_SIZE;
}

bool forge_mapped_region(int arena, uint32_t rkey, uint64_t address, uint64_t length)
{
    struct segment_header *header = forge_find();
    struct mapped_record *record;
    struct stat file;

    if (!header || fstat(arena, &file) != 0)
        return false;
    header->files[0].fd = arena;
    header->files[0].inode = file.st_ino;
    header->files[0].device = file.st_dev;
    atomic_store(&header->files_thread, gettid());
    record = (struct mapped_record *)((char *)header + header->mapped.offset) + key_slot(rkey);
    record->file = 0;
    record->address = address;
    record->length = length;
    record->offset = 0;
    atomic_store(&record->generation, 2);
    return true;
}

static void *table_at(struct segment_header *header, const struct segment_table *table)
{
    return (char *)header + table->offset;
}

bool forge_stacks(const char *path, uint64_t address, uint64_t bias)
{
    struct segment_header *header = forge_find();
    struct module_record *module;
    struct stack_record *stacks;
    bool any = false;

    if (!header)
        return false;
    module = table_at(header, &header->modules);
    stacks = table_at(header, &header->stacks);
    *module = (struct module_record){.end = UINT64_MAX, .bias = bias};
    strncpy(module->path, path, sizeof(module->path) - 1);
    atomic_store(&module->state, 1);
    atomic_store(&module[1].state, 0); /* the last one */
    for (uint32_t i = 0; i < header->stacks.count; i++) {
        if (!atomic_load(&stacks[i].depth))
            continue;
        for (unsigned frame = 0; frame < STACK_FRAMES; frame++)
            stacks[i].frame[frame] = address;
        atomic_store(&stacks[i].depth, STACK_FRAMES);
        any = true;
    }
    return any;
}

uint16_t forge_machine(void)
{
#if defined(__aarch64__)
    return EM_AARCH64;
#else
    return EM_X86_64;
#endif
}
