/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "code.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARIES 24u
#define FUNCTIONS 16384u

static const char *const watched[] = {
    /* access slots */
    "direct_map",
    "direct_map_end",
    "direct_post_plain",
    "post_one",
    "post_runs",
    "atomic_wr",
    "direct_run_plain",
    "plain_post",
    "plain_run",
    "plain_receive",
    "direct_copy",
    "direct_settle",
    "direct_deposit",
    /* epochs of references */
    "lane_revoke",
    "lane_pull",
    "link_pull",
    /* publishing */
    "keys_publish_region",
    "keys_withdraw",
    "segment_allocate",
    "segment_release",
    "mapping_publish",
    "mapping_set",
    "mapping_begin",
    "mapping_end",
    /* rings and bells */
    "ring_write",
    "plain_acknowledge",
    "ring_publish_position",
    "notify_wake",
};
#define WATCHED (sizeof(watched) / sizeof(watched[0]))

static struct library {
    uintptr_t from, to, base;
    char path[256];
    bool ours;
} libraries[LIBRARIES];
static unsigned library_count;
static struct function functions[FUNCTIONS];
static unsigned function_count;

static int note_library(struct dl_phdr_info *info, size_t size, void *data)
{
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *const header = &info->dlpi_phdr[i];
        struct library *const library = &libraries[library_count];

        if (!info->dlpi_name[0] || info->dlpi_name[0] != '/' || header->p_type != PT_LOAD ||
            !(header->p_flags & PF_X) || library_count == LIBRARIES)
            continue;
        library->from = info->dlpi_addr + header->p_vaddr;
        library->to = library->from + header->p_memsz;
        library->base = info->dlpi_addr;
        library->ours = strstr(info->dlpi_name, "libibverbs.so") != NULL ||
                        strstr(info->dlpi_name, "librdmacm.so") != NULL;
        snprintf(library->path, sizeof(library->path), "%s", info->dlpi_name);
        library_count++;
    }
    return 0;
}

/* Also a part or a copy of the function that the compiler made ("name.part.0"). */
static bool is_called(const char *name, const char *function)
{
    const size_t length = strlen(function);

    return !strncmp(name, function, length) && (!name[length] || name[length] == '.');
}

static bool is_watched(const char *name)
{
    for (unsigned i = 0; i < WATCHED; i++)
        if (is_called(name, watched[i]))
            return true;
    return false;
}

/* The file stays mapped, for the names. */
static void note_functions(const struct library *library)
{
    const int fd = open(library->path, O_RDONLY | O_CLOEXEC);
    struct stat stat;
    const char *file;
    const Elf64_Ehdr *elf;
    const Elf64_Shdr *sections;

    if (fd < 0 || fstat(fd, &stat))
        return;
    file = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED)
        return;
    elf = (const void *)file;
    sections = (const void *)(file + elf->e_shoff);
    for (unsigned i = 0; i < elf->e_shnum; i++) {
        const Elf64_Sym *symbols = (const void *)(file + sections[i].sh_offset);
        const char *names;

        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        names = file + sections[sections[i].sh_link].sh_offset;
        for (size_t k = 0; k < sections[i].sh_size / sizeof(*symbols); k++) {
            const char *const name = names + symbols[k].st_name;
            const uintptr_t at = library->base + symbols[k].st_value;

            /* ".cold" parts are jumped to, not called. */
            if (ELF64_ST_TYPE(symbols[k].st_info) != STT_FUNC || at < library->from || at >= library->to ||
                strstr(name, ".cold") || function_count == FUNCTIONS)
                continue;
            functions[function_count++] =
                (struct function){.at = at, .name = name, .watched = is_watched(name)};
        }
    }
}

static int by_address(const void *a, const void *b)
{
    const struct function *const one = a, *const other = b;

    return one->at < other->at ? -1 : one->at > other->at;
}

void code_note(void)
{
    unsigned kept = 0;

    dl_iterate_phdr(note_library, NULL);
    for (unsigned i = 0; i < library_count; i++)
        if (libraries[i].ours)
            note_functions(&libraries[i]);
    qsort(functions, function_count, sizeof(functions[0]), by_address);
    for (unsigned i = 0; i < function_count; i++) { /* of one function with several names, one */
        if (kept && functions[kept - 1].at == functions[i].at)
            functions[kept - 1].watched |= functions[i].watched;
        else
            functions[kept++] = functions[i];
    }
    function_count = kept;
    if (!function_count) {
        fprintf(stderr, "the libraries were not found\n");
        abort();
    }
}

static const struct library *library_of(uint64_t address)
{
    for (unsigned i = 0; i < library_count; i++)
        if (address >= libraries[i].from && address < libraries[i].to)
            return &libraries[i];
    return NULL;
}

bool code_is_ours(uint64_t address)
{
    const struct library *const library = library_of(address);

    return library && library->ours;
}

bool code_is_known(uint64_t address)
{
    /* An instruction is read up to the length that one has at most. */
    return library_of(address) && library_of(address + 15);
}

const struct function *code_functions(unsigned *ret_count)
{
    *ret_count = function_count;
    return functions;
}

void code_place(uint64_t address, char *place, size_t size)
{
    const struct library *const library = library_of(address);
    const struct function *found = NULL;

    if (!library) {
        snprintf(place, size, "0x%lx", (unsigned long)address);
        return;
    }
    for (unsigned i = 0; library->ours && i < function_count && functions[i].at <= address; i++)
        if (functions[i].at >= library->from)
            found = &functions[i];
    if (found)
        snprintf(place, size, "%s+0x%lx", found->name, (unsigned long)(address - found->at));
    else
        snprintf(place, size, "%s+0x%lx", strrchr(library->path, '/') + 1,
                 (unsigned long)(address - library->base));
}

uint64_t code_offset(uint64_t address)
{
    const struct library *const library = library_of(address);

    return library ? address - library->base : address;
}

const char *code_missing(void)
{
    for (unsigned w = 0; w < WATCHED; w++) {
        bool found = false;

        for (unsigned i = 0; i < function_count && !found; i++)
            found = is_called(functions[i].name, watched[w]);
        if (!found)
            return watched[w];
    }
    return NULL;
}
