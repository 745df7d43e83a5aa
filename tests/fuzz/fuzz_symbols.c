/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ELF files of other users, in which explain/symbols.c looks for the name of a function. The opening of the file is
 * replaced here, by a memfd with the input. A name ends within its array and comes out of the file; the offset lies in
 * front of the address; what a report reads has a bound, even for a file that names thousands of tables; no descriptor
 * leaks, errno stays.
 *
 * Input: an address in the file (four bytes), the size of the array for the name (one), what the report has read before
 * (one), then the file. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "explain/code_file.h"
#include "explain/symbols.h"
#include "fuzz.h"
#include "input.h"

#define BUDGET    (1ull << 30) /* of symbols.c */
#define READ_MOST (96u << 20)  /* of one table and its names: SYMBOLS_MAX entries */

static int file = -1;
static size_t file_size;
static unsigned opened;

int code_file_open(pid_t pid, uint64_t address, const char *path)
{
    opened++;
    return dup(file);
}

/* Does the file have these bytes? A name may also end with the file. */
static bool has_name(const uint8_t *bytes, size_t size, const char *name)
{
    size_t length = strlen(name);

    return memmem(bytes, size, name, length) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    uint64_t address = input_32(&input), spent, before, offset = UINT64_MAX;
    size_t room = 2 + input_8(&input) % 64;
    char *name = malloc(room);
    int lowest;
    bool found;

    require(name);
    memset(name, 'x', room);
    spent = before = (uint64_t)input_8(&input) % 8 * (BUDGET / 7);
    if (file < 0)
        file = memfd_create("file", MFD_CLOEXEC);
    require(file >= 0 && ftruncate(file, 0) == 0);
    file_size = input.left;
    require(pwrite(file, input.at, input.left, 0) == (ssize_t)input.left);
    lowest = dup(file);
    close(lowest);
    errno = 4711;
    opened = 0;
    found = symbol_find(1, address, "/file", address, &spent, name, room, &offset);
    require(errno == 4711 && opened == (before < BUDGET) && spent >= before && spent < BUDGET + READ_MOST);
    if (found) {
        require(memchr(name, '\0', room) && name[0] && has_name(input.at, input.left, name));
        require(offset <= address);
    }
    free(name);
    require(dup(file) == lowest);
    close(lowest);
    return 0;
}

/* --- seeds ------------------------------------------------------------------------------------------------ */

#if defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#define MACHINE EM_X86_64
#endif

/* A file of one table with two functions, and the table of their names. */
struct small_file {
    uint8_t before[6];
    Elf64_Ehdr header;
    Elf64_Shdr sections[4];
    Elf64_Sym symbols[4];
    char names[16];
} __attribute__((packed));

static struct small_file make_file(uint32_t kind, uint32_t address)
{
    struct small_file all = {
        .before = {(uint8_t)(address >> 24), (uint8_t)(address >> 16), (uint8_t)(address >> 8),
                   (uint8_t)address, 30},
        .header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64},
                   .e_machine = MACHINE,
                   .e_shoff = sizeof(Elf64_Ehdr),
                   .e_shentsize = sizeof(Elf64_Shdr),
                   .e_shnum = 4},
        .names = "\0first\0second",
    };
    const uint64_t start = offsetof(struct small_file, header);

    all.sections[1] = (Elf64_Shdr){.sh_type = kind,
                                   .sh_link = 2,
                                   .sh_offset = offsetof(struct small_file, symbols) - start,
                                   .sh_size = sizeof(all.symbols)};
    all.sections[2] = (Elf64_Shdr){.sh_type = SHT_STRTAB,
                                   .sh_offset = offsetof(struct small_file, names) - start,
                                   .sh_size = sizeof(all.names)};
    all.symbols[1] = (Elf64_Sym){.st_name = 1,
                                 .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                                 .st_shndx = 1,
                                 .st_value = 0x1000,
                                 .st_size = 0x40};
    all.symbols[2] = (Elf64_Sym){.st_name = 7,
                                 .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                                 .st_shndx = 1,
                                 .st_value = 0x1040,
                                 .st_size = 0};
    return all;
}

void fuzz_seeds(fuzz_add *add)
{
    static const uint32_t addresses[] = {0xfff, 0x1000, 0x103f, 0x1040, 0x2000};

    for (unsigned i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        struct small_file symtab = make_file(SHT_SYMTAB, addresses[i]),
                          dynsym = make_file(SHT_DYNSYM, addresses[i]);

        add((const uint8_t *)&symtab, sizeof(symtab));
        dynsym.before[5] = 7; /* nothing is left of the budget */
        add((const uint8_t *)&dynsym, sizeof(dynsym));
        dynsym.before[5] = 3;
        dynsym.sections[3] = dynsym.sections[2];
        dynsym.sections[1].sh_link = 3;
        add((const uint8_t *)&dynsym, sizeof(dynsym));
    }
}
