/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "explain/symbols.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/types.h"

#define SECTIONS_MAX 4096u
#define SYMBOLS_MAX  (4u << 20)
#define CHUNK        256u

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#else
#define OUR_MACHINE EM_NONE
#endif

static bool read_at(int fd, uint64_t offset, void *to, size_t size)
{
    return offset <= INT64_MAX && pread(fd, to, size, (off_t)offset) == (ssize_t)size;
}

/* A path from another process may name anything: only a plain file is opened, since opening others can wait
 * or do something. */
static int open_plain(const char *path)
{
    char again[64];
    struct stat status;
    int fd, found = fd_lift(open(path, O_PATH | O_CLOEXEC));

    if (found < 0)
        return -1;
    snprintf(again, sizeof(again), "/proc/self/fd/%d", found);
    fd = fstat(found, &status) == 0 && S_ISREG(status.st_mode) ? fd_lift(open(again, O_RDONLY | O_CLOEXEC))
                                                               : -1;
    close(found);
    return fd;
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

static bool search_table(int fd, const Elf64_Shdr *table, const Elf64_Shdr *names, uint64_t address,
                         char *ret_name, size_t size, uint64_t *ret_offset)
{
    uint64_t count = min_of(table->sh_size / sizeof(Elf64_Sym), (uint64_t)SYMBOLS_MAX);
    struct best best = {0};
    Elf64_Sym symbols[CHUNK];

    for (uint64_t at = 0; at < count; at += CHUNK) {
        unsigned here = (unsigned)min_of(count - at, (uint64_t)CHUNK);

        if (!read_at(fd, table->sh_offset + at * sizeof(Elf64_Sym), symbols, here * sizeof(Elf64_Sym)))
            break;
        for (unsigned i = 0; i < here; i++)
            look_at(&best, &symbols[i], address);
    }
    if (!best.found || best.name >= names->sh_size)
        return false;
    memset(ret_name, 0, size);
    if (pread(fd, ret_name, min_of(size - 1, (size_t)(names->sh_size - best.name)),
              (off_t)(names->sh_offset + best.name)) <= 0)
        return false;
    *ret_offset = address - best.value;
    return ret_name[0] != '\0';
}

static bool search_file(int fd, uint64_t address, char *ret_name, size_t size, uint64_t *ret_offset)
{
    static const uint32_t kinds[] = {SHT_SYMTAB, SHT_DYNSYM};
    Elf64_Ehdr header;
    Elf64_Shdr table, names;

    if (!read_at(fd, 0, &header, sizeof(header)) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != OUR_MACHINE ||
        header.e_shentsize != sizeof(Elf64_Shdr))
        return false;
    for (size_t kind = 0; kind < array_size(kinds); kind++) {
        for (unsigned i = 0; i < min_of((unsigned)header.e_shnum, SECTIONS_MAX); i++) {
            if (!read_at(fd, header.e_shoff + i * sizeof(table), &table, sizeof(table)))
                break;
            if (table.sh_type != kinds[kind] || table.sh_link >= header.e_shnum ||
                !read_at(fd, header.e_shoff + table.sh_link * sizeof(names), &names, sizeof(names)))
                continue;
            if (search_table(fd, &table, &names, address, ret_name, size, ret_offset))
                return true;
        }
    }
    return false;
}

bool symbol_find(const char *path, uint64_t address, char *ret_name, size_t size, uint64_t *ret_offset)
{
    int saved = errno, fd = open_plain(path);
    bool found = false;

    if (fd >= 0) {
        found = search_file(fd, address, ret_name, size, ret_offset);
        close(fd);
    }
    errno = saved;
    return found;
}
