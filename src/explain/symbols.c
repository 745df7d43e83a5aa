/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "explain/symbols.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/types.h"
#include "explain/code_file.h"

#define SECTIONS_MAX 4096u
#define TABLES_MAX   8u
#define SYMBOLS_MAX  (4u << 20)
#define CHUNK        4096u
/* Of one report, in bytes. Each read counts as at least READ_COST: a file of a thousand small tables is no cheaper. The
 * largest programs have 100 MiB of symbols, and a stack has thirty frames. */
#define BUDGET    (1ull << 30)
#define READ_COST 4096u

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#else
#define OUR_MACHINE EM_NONE
#endif

struct code_file {
    int fd;
    uint64_t *spent;
};

/* The number of bytes; -1: none, or no budget. */
static ssize_t read_some(const struct code_file *file, uint64_t offset, void *to, size_t size)
{
    if (offset > INT64_MAX || *file->spent >= BUDGET)
        return -1;
    *file->spent += max_of(size, (size_t)READ_COST);
    return pread(file->fd, to, size, (off_t)offset);
}

static bool read_at(const struct code_file *file, uint64_t offset, void *to, size_t size)
{
    return read_some(file, offset, to, size) == (ssize_t)size;
}

struct best {
    bool found;
    uint64_t value;
    uint32_t name;
};

static void look_at(struct best *best, const Elf64_Sym *symbol, uint64_t address)
{
    if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || symbol->st_shndx == SHN_UNDEF ||
        symbol->st_value > address || (symbol->st_size && address - symbol->st_value >= symbol->st_size) ||
        (best->found && symbol->st_value < best->value))
        return;
    *best = (struct best){true, symbol->st_value, symbol->st_name};
}

static bool search_table(const struct code_file *file, const Elf64_Shdr *table, const Elf64_Shdr *names,
                         uint64_t address, char *ret_name, size_t size, uint64_t *ret_offset)
{
    uint64_t count = min_of(table->sh_size / sizeof(Elf64_Sym), (uint64_t)SYMBOLS_MAX);
    struct best best = {0};
    Elf64_Sym symbols[CHUNK / sizeof(Elf64_Sym)];

    for (uint64_t at = 0; at < count; at += array_size(symbols)) {
        unsigned here = (unsigned)min_of(count - at, (uint64_t)array_size(symbols));

        if (!read_at(file, table->sh_offset + at * sizeof(Elf64_Sym), symbols, here * sizeof(Elf64_Sym)))
            break;
        for (unsigned i = 0; i < here; i++)
            look_at(&best, &symbols[i], address);
    }
    if (!best.found || best.name >= names->sh_size)
        return false;
    memset(ret_name, 0, size);
    if (read_some(file, names->sh_offset + best.name, ret_name,
                  min_of(size - 1, (size_t)(names->sh_size - best.name))) <= 0)
        return false;
    *ret_offset = address - best.value;
    return ret_name[0] != '\0';
}

static bool search_file(const struct code_file *file, uint64_t address, char *ret_name, size_t size,
                        uint64_t *ret_offset)
{
    static const uint32_t kinds[] = {SHT_SYMTAB, SHT_DYNSYM};
    Elf64_Ehdr header;
    Elf64_Shdr table, names;
    unsigned tables = 0;

    if (!read_at(file, 0, &header, sizeof(header)) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != OUR_MACHINE ||
        header.e_shentsize != sizeof(Elf64_Shdr))
        return false;
    for (size_t kind = 0; kind < array_size(kinds); kind++) {
        for (unsigned i = 0; i < min_of((unsigned)header.e_shnum, SECTIONS_MAX); i++) {
            if (!read_at(file, header.e_shoff + i * sizeof(table), &table, sizeof(table)))
                break;
            if (table.sh_type != kinds[kind] || table.sh_link >= header.e_shnum ||
                !read_at(file, header.e_shoff + table.sh_link * sizeof(names), &names, sizeof(names)))
                continue;
            if (++tables > TABLES_MAX)
                return false;
            if (search_table(file, &table, &names, address, ret_name, size, ret_offset))
                return true;
        }
    }
    return false;
}

bool symbol_find(pid_t pid, uint64_t address, const char *path, uint64_t in_file, uint64_t *spent,
                 char *ret_name, size_t size, uint64_t *ret_offset)
{
    int saved = errno;
    struct code_file file = {.fd = -1, .spent = spent};
    bool found = false;

    if (*spent < BUDGET)
        file.fd = code_file_open(pid, address, path);
    if (file.fd >= 0) {
        found = search_file(&file, in_file, ret_name, size, ret_offset);
        close(file.fd);
    }
    errno = saved;
    return found;
}
