/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Originals are found by dlvsym(). This library replaces dlsym() and dlvsym(), too, because programs that open
 * libibverbs.so.1 at run time (NCCL, for one) ask the library for its functions, past what is preloaded. Their own
 * originals are therefore found by hand, in the symbol table of the C library. */
#include "watch/originals.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/types.h"
#include "watch/watch.h"

/* Called by the code at the end of the file, which then jumps to the original: dlsym() looks at who called it. */
#define CALLED_BY_CODE __attribute__((used, visibility("hidden")))
CALLED_BY_CODE void *watch_dlsym_original(void);
CALLED_BY_CODE void *watch_dlvsym_original(void);
/* NULL: the original answers. */
CALLED_BY_CODE void *watch_dlsym(void *handle, const char *name);
CALLED_BY_CODE void *watch_dlvsym(void *handle, const char *name, const char *version);

/* --- dlsym() and dlvsym() themselves -------------------------------------------------------------------- */

struct c_library {
    const char *name;
    void *found;
};

static const char *at_base(const struct dl_phdr_info *info, Elf64_Addr address)
{
    /* glibc relocates these entries in place, other loaders do not. */
    return (const char *)(address < info->dlpi_addr ? info->dlpi_addr + address : address);
}

static uint32_t gnu_hash(const char *name)
{
    uint32_t hash = 5381;

    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* By the table DT_GNU_HASH: buckets hold the number of the first symbol, chains end with an odd hash. */
static void *symbol_of(const struct dl_phdr_info *info, const Elf64_Dyn *dynamic, const char *wanted)
{
    const uint32_t *hashes = NULL, *buckets, *chains;
    const Elf64_Sym *symbols = NULL;
    const char *strings = NULL;
    uint32_t hash = gnu_hash(wanted), symbol;

    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_GNU_HASH)
            hashes = (const void *)at_base(info, dynamic->d_un.d_ptr);
        else if (dynamic->d_tag == DT_SYMTAB)
            symbols = (const void *)at_base(info, dynamic->d_un.d_ptr);
        else if (dynamic->d_tag == DT_STRTAB)
            strings = at_base(info, dynamic->d_un.d_ptr);
    }
    if (!hashes || !symbols || !strings || !hashes[0])
        return NULL;
    buckets = hashes + 4 + hashes[2] * (sizeof(Elf64_Addr) / sizeof(uint32_t));
    chains = buckets + hashes[0];
    symbol = buckets[hash % hashes[0]];
    if (symbol < hashes[1])
        return NULL;
    for (;; symbol++) {
        uint32_t chain = chains[symbol - hashes[1]];

        if ((chain | 1) == (hash | 1) && symbols[symbol].st_shndx != SHN_UNDEF &&
            strcmp(strings + symbols[symbol].st_name, wanted) == 0)
            return (void *)(info->dlpi_addr + symbols[symbol].st_value);
        if (chain & 1)
            return NULL;
    }
}

/* All versions of the function in one C library do the same. */
static int look_in(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct c_library *library = argument;
    const char *file = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;

    if (!file || (strncmp(file, "/libc.so.", 9) != 0 && strncmp(file, "/libdl.so.", 10) != 0))
        return 0;
    for (int i = 0; i < info->dlpi_phnum && !library->found; i++) {
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            library->found =
                symbol_of(info, (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr), library->name);
    }
    return library->found != NULL;
}

static void *from_c_library(_Atomic(void *) *cache, const char *name)
{
    void *found = atomic_load_explicit(cache, memory_order_acquire);

    if (!found) {
        struct c_library library = {.name = name};

        dl_iterate_phdr(look_in, &library);
        found = library.found;
        atomic_store_explicit(cache, found, memory_order_release);
    }
    return found;
}

static _Atomic(void *) dlsym_found, dlvsym_found;

typedef void *(*dlsym_type)(void *handle, const char *name);
typedef void *(*dlvsym_type)(void *handle, const char *name, const char *version);

static void *no_symbol(void)
{
    return NULL;
}

void *watch_dlsym_original(void)
{
    void *found = from_c_library(&dlsym_found, "dlsym");

    return found ? found : (void *)no_symbol;
}

void *watch_dlvsym_original(void)
{
    void *found = from_c_library(&dlvsym_found, "dlvsym");

    return found ? found : (void *)no_symbol;
}

/* --- originals ------------------------------------------------------------------------------------------ */

static void *library_of(enum original_library library)
{
    static const char *const names[] = {[ORIGINAL_VERBS] = "libibverbs.so.1",
                                        [ORIGINAL_RDMACM] = "librdmacm.so.1",
                                        [ORIGINAL_MLX5] = "libmlx5.so.1"};
    static _Atomic(void *) handles[ORIGINAL_LIBRARIES];
    void *handle = atomic_load_explicit(&handles[library], memory_order_acquire);

    if (!handle) {
        /* Only if it is loaded: by whoever called. It is kept, also if the program closes it: contexts that it opened
         * have our functions in them. */
        handle = dlopen(names[library], RTLD_LAZY | RTLD_NOLOAD);
        atomic_store_explicit(&handles[library], handle, memory_order_release);
    }
    return handle;
}

void *original_find(struct original *original)
{
    void *found = atomic_load_explicit(&original->function, memory_order_acquire);
    int saved = errno;
    void *handle;

    if (likely(found))
        return found;
    handle = library_of(original->library);
    if (handle)
        found = ((dlvsym_type)watch_dlvsym_original())(handle, original->name, original->version);
    if (found == original->ours)
        found = NULL;
    atomic_store_explicit(&original->function, found, memory_order_release);
    errno = saved;
    return found;
}

/* --- dlsym() and dlvsym() of programs ------------------------------------------------------------------- */

/* Another library may have functions of these names: only those that the handle leads to are replaced. */
static void *ours_for(struct original *list, size_t count, void *handle, const char *name,
                      const char *version)
{
    void *found = version ? ((dlvsym_type)watch_dlvsym_original())(handle, name, version)
                          : ((dlsym_type)watch_dlsym_original())(handle, name);

    for (size_t i = 0; found && i < count; i++) {
        if (strcmp(list[i].name, name) == 0 && original_find(&list[i]) == found)
            return list[i].ours;
    }
    return NULL;
}

/* NULL: the original answers. RTLD_NEXT and libraries that preload verbs themselves ask for what is behind them. */
static void *answer(void *handle, const char *name, const char *version)
{
    if (!name || handle == RTLD_NEXT || handle == RTLD_DEFAULT || watch_thread.inside)
        return NULL;
    if (strncmp(name, "ibv_", 4) == 0) {
        void *ours = ours_for(verbs_originals, verbs_originals_count, handle, name, version);

        return ours ? ours : ours_for(memory_originals, memory_originals_count, handle, name, version);
    }
    if (strncmp(name, "rdma_", 5) == 0)
        return ours_for(rdmacm_originals, rdmacm_originals_count, handle, name, version);
    return NULL;
}

void *watch_dlsym(void *handle, const char *name)
{
    return answer(handle, name, NULL);
}

void *watch_dlvsym(void *handle, const char *name, const char *version)
{
    return answer(handle, name, version);
}

/* Tail calls, whose arguments and return address are the program's. */
#if defined(__x86_64__)
#define FORWARD(name)                                                                                        \
    ".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"                                      \
    "  .cfi_startproc\n"                                                                                     \
    "  push %rdi\n  .cfi_adjust_cfa_offset 8\n  push %rsi\n  .cfi_adjust_cfa_offset 8\n"                     \
    "  push %rdx\n  .cfi_adjust_cfa_offset 8\n"                                                              \
    "  call watch_" #name "\n"                                                                               \
    "  test %rax, %rax\n  jnz 1f\n"                                                                          \
    "  call watch_" #name "_original\n"                                                                      \
    "  pop %rdx\n  .cfi_adjust_cfa_offset -8\n  pop %rsi\n  .cfi_adjust_cfa_offset -8\n"                     \
    "  pop %rdi\n  .cfi_adjust_cfa_offset -8\n"                                                              \
    "  jmp *%rax\n"                                                                                          \
    "1:\n  .cfi_adjust_cfa_offset 24\n  add $24, %rsp\n  .cfi_adjust_cfa_offset -24\n  ret\n"                \
    "  .cfi_endproc\n.size " #name ", .-" #name "\n"
#elif defined(__aarch64__)
#define FORWARD(name)                                                                                        \
    ".text\n.globl " #name "\n.type " #name ", %function\n" #name ":\n"                                      \
    "  .cfi_startproc\n"                                                                                     \
    "  stp x29, x30, [sp, #-48]!\n  .cfi_adjust_cfa_offset 48\n"                                             \
    "  .cfi_rel_offset x29, 0\n  .cfi_rel_offset x30, 8\n"                                                   \
    "  stp x0, x1, [sp, #16]\n  str x2, [sp, #32]\n"                                                         \
    "  bl watch_" #name "\n"                                                                                 \
    "  cbnz x0, 1f\n"                                                                                        \
    "  bl watch_" #name "_original\n"                                                                        \
    "  mov x16, x0\n  ldp x0, x1, [sp, #16]\n  ldr x2, [sp, #32]\n"                                          \
    "  ldp x29, x30, [sp], #48\n  br x16\n"                                                                  \
    "1:\n  ldp x29, x30, [sp], #48\n  ret\n"                                                                 \
    "  .cfi_endproc\n.size " #name ", .-" #name "\n"
#else
#error "dlsym() is not forwarded on this architecture"
#endif
__asm__(FORWARD(dlsym) FORWARD(dlvsym));
