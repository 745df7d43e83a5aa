/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What decode() takes for no store that others see is none: a child executes stores of all kinds into a shared
 * mapping, one step at a time, and what has changed after a step is compared with what was said before it. And it
 * says little else: the same stores into private memory count for nothing. */
#include "decode.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "mappings.h"

#define LENGTH 16384u

/* rdi: the middle of the memory. Each store of plain, vector and string instructions, in each form of address. */
void stores_plain(char *at);
void stores_vector(char *at);
void stores_string(char *at);
void stores_avx(char *at);
void stores_avx512(char *at);
void stores_imprecise(char *at);
void loads(char *at);
void stores_end(void);
__asm__(
    ".text\n"
    ".macro FUNCTION name\n"
    ".globl \\name\n.type \\name, @function\n\\name:\n"
    ".endm\n"
    "FUNCTION stores_plain\n"
    "push %rbx\npush %r12\npush %r13\n"
    "mov %rdi, %r12\nmov %rdi, %r13\nmov $3, %ecx\nmov $0x1234567, %eax\n"
    "mov %al, (%rdi)\nmov %ax, 2(%rdi)\nmov %eax, 4(%rdi)\nmov %rax, 8(%rdi)\n"
    "mov %eax, 0x400(%rdi)\nmov %eax, -4(%rdi)\nmov %eax, -0x400(%rdi)\n"
    "mov %eax, (%rdi,%rcx,8)\nmov %eax, 5(%rdi,%rcx,4)\nmov %eax, 0x300(%rdi,%rcx,2)\n"
    "mov %eax, (%r12)\nmov %eax, 1(%r12)\nmov %eax, (%r13)\nmov %eax, (%r13,%rcx,1)\n"
    "mov %r9d, 32(%r12,%rcx,8)\nmov %eax, 0x80(,%r12,1)\n"
    "movb $1, 40(%rdi)\nmovw $2, 42(%rdi)\nmovl $3, 44(%rdi)\nmovq $4, 48(%rdi)\n"
    "movb $1, 0x500(%rdi)\nmovl $3, 0x504(%rdi,%rcx,4)\n"
    "add %eax, 52(%rdi)\nadd %al, 52(%rdi)\nor %rax, 56(%rdi)\nadc %eax, 60(%rdi)\nxor %eax, 61(%rdi)\n"
    "sub %eax, 62(%rdi)\nsbb %eax, 62(%rdi)\nand %eax, 63(%rdi)\n"
    "addl $5, 64(%rdi)\naddl $0x12345, 64(%rdi)\nandb $0xf0, 65(%rdi)\norq $3, 66(%rdi)\nxorl $7, 67(%rdi)\n"
    "incl 70(%rdi)\ndecb 71(%rdi)\nnotl 72(%rdi)\nnegq 80(%rdi)\n"
    "shll 90(%rdi)\nshlb $3, 91(%rdi)\nrorq %cl, 96(%rdi)\nshld $4, %eax, 104(%rdi)\nshrd %cl, %eax, "
    "108(%rdi)\n"
    "xchg %eax, 112(%rdi)\nlock xadd %eax, 116(%rdi)\nlock addl $9, 116(%rdi)\n"
    "mov 120(%rdi), %eax\nmov $0x77, %edx\nlock cmpxchg %edx, 120(%rdi)\nlock cmpxchg %dl, 125(%rdi)\n"
    "btsl $5, 128(%rdi)\nbtcl $7, 128(%rdi)\nbtrl $5, 128(%rdi)\n"
    "stc\nsetc 133(%rdi)\nmovnti %ecx, 136(%rdi)\n"
    "mov %edi, %eax\nmovl $0x99, 140(%rdi)\n"
    "movl $0x55, 144(%edi)\n"
    "pushq $0x4455\npop 152(%rdi)\npushq $0x4456\npop 152(%r12,%rcx,8)\n"
    "mov %rdi, %rax\nmovl $0x66, 160(%rax)\nmov %rdi, %rdx\nmovl $0x67, 164(%rdx,%rcx,1)\n"
    "mov %rdi, %rbx\nmovw $0x68, 170(%rbx)\nmov %rdi, %rsi\nmov %cx, 174(%rsi)\n"
    "mov %rdi, %r8\nmovl $1, 176(%r8)\nmov %rdi, %r9\nmovl $2, 180(%r9)\nmov %rdi, %r10\nmovl $3, 184(%r10)\n"
    "mov %rdi, %r11\nmovl $4, 188(%r11)\nmov $5, %r9d\nmovb $0x11, (%r10,%r9,8)\nmovb $0x12, (%r11,%r9,1)\n"
    "fld1\nfsts 208(%rdi)\nfistpl 212(%rdi)\nfld1\nfstpt 220(%rdi)\nfnstcw 232(%rdi)\n"
    "pop %r13\npop %r12\npop %rbx\nret\n"
    "FUNCTION stores_vector\n"
    "pcmpeqd %xmm1, %xmm1\npxor %xmm9, %xmm9\npsubd %xmm1, %xmm9\nmov $2, %ecx\n"
    "movups %xmm1, (%rdi)\nmovaps %xmm9, 16(%rdi)\nmovdqu %xmm1, 33(%rdi)\nmovdqa %xmm9, 64(%rdi)\n"
    "movupd %xmm1, 80(%rdi,%rcx,8)\nmovapd %xmm1, 112(%rdi)\nmovntdq %xmm9, 128(%rdi)\nmovntps %xmm1, "
    "144(%rdi)\n"
    "movntpd %xmm1, 160(%rdi)\nmovd %xmm1, 176(%rdi)\nmovq %xmm1, 184(%rdi)\nmovss %xmm1, 192(%rdi)\n"
    "movsd %xmm1, 200(%rdi)\nmovlps %xmm1, 208(%rdi)\nmovhps %xmm1, 216(%rdi)\nmovlpd %xmm9, 224(%rdi)\n"
    "movhpd %xmm9, 232(%rdi)\n"
    "movq %xmm1, %rax\nmovq %rax, %mm0\nmovq %mm0, 248(%rdi)\nmovd %mm0, 256(%rdi)\nmovntq %mm0, "
    "264(%rdi)\nemms\n"
    "ret\n"
    "FUNCTION stores_string\n"
    "push %rdi\nlea 2048(%rdi), %rsi\nmov $0x5a5a5a5a, %eax\n"
    "movb $0x21, (%rsi)\nmovsb\nmovsw\nmovsl\nmovsq\nstosb\nstosw\nstosl\nstosq\n"
    "mov $7, %ecx\nrep movsb\nmov $5, %ecx\nrep stosl\nmov $3, %ecx\nrep movsq\nmov $0, %ecx\nrep stosb\n"
    "std\nmov $4, %ecx\nmov $0x17, %eax\nrep stosl\nmov $2, %ecx\nlea 300(%rdi), %rsi\nrep movsw\ncld\n"
    "pop %rdi\nret\n"
    "FUNCTION stores_avx\n"
    "vpcmpeqd %xmm1, %xmm1, %xmm1\nvinsertf128 $1, %xmm1, %ymm1, %ymm1\nmov $4, %ecx\nmov %rdi, %r10\n"
    "vmovups %ymm1, (%rdi)\nvmovdqu %ymm1, 32(%rdi,%rcx,8)\nvmovups %xmm1, 0x200(%r10)\n"
    "vmovdqu %xmm1, 100(%r10,%rcx,2)\nvmovq %xmm1, 128(%rdi)\nvmovd %xmm1, 136(%rdi)\n"
    "vmovss %xmm1, 140(%rdi)\nvmaskmovps %ymm1, %ymm1, 160(%rdi)\nvextractf128 $1, %ymm1, 192(%rdi)\n"
    "vpextrb $1, %xmm1, 210(%rdi)\nvpextrw $1, %xmm1, 212(%rdi)\nvpextrd $1, %xmm1, "
    "216(%rdi)\nvzeroupper\nret\n"
    "FUNCTION stores_avx512\n"
    "vpternlogd $0xff, %zmm17, %zmm17, %zmm17\nmov $0xff, %eax\nkmovw %eax, %k1\n"
    "vmovdqu64 %zmm17, (%rdi)\nvmovdqu64 %zmm17, 64(%rdi)\nvmovdqu64 %zmm17, 0x1000(%rdi)\n"
    "vmovdqu32 %ymm17, -32(%rdi)\nvmovups %zmm17, -64(%rdi)\nvmovups %zmm17, -256(%rdi){%k1}\n"
    "vmovntdq %zmm17, 256(%rdi)\nvzeroupper\nret\n"
    "FUNCTION stores_imprecise\n"
    "mov $1000, %eax\nlock btsl %eax, (%rdi)\nbtcl %eax, (%rdi)\nbtrl %eax, (%rdi)\n"
    "mov (%rdi), %rax\nmov 8(%rdi), %rdx\nmov $9, %ebx\nlock cmpxchg8b (%rdi)\n"
    "pcmpeqd %xmm1, %xmm1\nmovdqa %xmm1, %xmm2\nmaskmovdqu %xmm1, %xmm2\nfxsave 512(%rdi)\n"
    "stmxcsr 240(%rdi)\nfld1\nfstpl 200(%rdi)\n"
    "ret\n"
    "FUNCTION loads\n"
    "mov (%rdi), %al\nmov 4(%rdi), %rax\nmovzbl 1(%rdi), %eax\nmovswl 2(%rdi), %eax\nmovslq 4(%rdi), %rax\n"
    "cmp %eax, (%rdi)\ncmp (%rdi), %eax\ncmpb $3, (%rdi)\ncmpl $3, (%rdi)\ncmpq $300, (%rdi)\ntest %eax, "
    "(%rdi)\n"
    "testb $1, (%rdi)\ntestl $1, (%rdi)\nadd (%rdi), %eax\nxor (%rdi), %rax\nimul (%rdi), %eax\nimul $3, "
    "(%rdi), %eax\n"
    "mov $0, %edx\nmull (%rdi)\nlea 8(%rdi), %rax\nbtl $3, (%rdi)\nbt %rcx, %rax\ncmove (%rdi), %eax\nbsf "
    "(%rdi), %eax\n"
    "movups (%rdi), %xmm1\nmovaps (%rdi), %xmm1\nmovdqu (%rdi), %xmm1\nmovdqa (%rdi), %xmm1\n"
    "pcmpeqb (%rdi), %xmm1\npor (%rdi), %xmm1\npaddb (%rdi), %xmm1\npsubq (%rdi), %xmm1\nprefetcht0 "
    "(%rdi)\nnopl (%rdi)\n"
    "push %rsi\nmov %rdi, %rsi\nlodsb\nmov $2, %ecx\npush %rdi\nrepne scasb\npop %rdi\npop %rsi\nret\n"
    "FUNCTION stores_end\n");

typedef void (*function_t)(char *);

/* A child that executes the function, and waits in front of it. */
static pid_t start(function_t function, char *at)
{
    const pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        function(at);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSTOPPED(status));
    mappings_forget();
    return pid;
}

static bool is_said(const struct access_of *access, uint64_t at)
{
    switch (access->access) {
    case ACCESS_NONE:
        return false;
    case ACCESS_AT:
        return at >= access->address && at < access->address + DECODE_STORE_MAX;
    case ACCESS_STRING: /* in either direction */
        return at + access->length >= access->address && at < access->address + access->length;
    case ACCESS_ANYWHERE:
        break;
    }
    return true;
}

static void read_code(pid_t pid, uint64_t at, uint8_t code[static 16])
{
    struct iovec here = {code, 16}, there = {(void *)(uintptr_t)at, 16};

    memset(code, 0, 16);
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) < 0)
        here.iov_len = 0; /* the vdso's last bytes */
}

/* Steps through the function. Returns how many instructions others would see. */
static unsigned walk(function_t function, char *memory, bool shared)
{
    char *const before = malloc(LENGTH);
    const pid_t pid = start(function, memory + LENGTH / 2);
    unsigned seen = 0, changes = 0;
    int status;

    assert_non_null(before);
    for (;;) {
        struct user_regs_struct regs;
        struct access_of access;
        uint8_t code[16];
        bool others_see;

        assert_false(ptrace(PTRACE_GETREGS, pid, NULL, &regs));
        read_code(pid, regs.rip, code);
        access = decode(code, &regs);
        others_see = mappings_others_see(pid, &access);
        seen += others_see && regs.rip >= (uintptr_t)stores_plain && regs.rip < (uintptr_t)stores_end;
        memcpy(before, memory, LENGTH);
        assert_false(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        for (size_t i = 0; shared && i < LENGTH; i++) {
            if (memory[i] == before[i])
                continue;
            changes++;
            if (!others_see || !is_said(&access, (uintptr_t)memory + i)) {
                fprintf(stderr, "%02x %02x %02x %02x %02x %02x %02x at %s+0x%lx stores at %+ld\n", code[0],
                        code[1], code[2], code[3], code[4], code[5], code[6], "stores_plain",
                        (unsigned long)(regs.rip - (uintptr_t)stores_plain), (long)i - (long)(LENGTH / 2));
                kill(pid, SIGKILL);
                fail();
            }
        }
        if (!WIFSTOPPED(status))
            break;
        assert_int_equal(WSTOPSIG(status), SIGTRAP);
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (shared && function != loads)
        assert_true(changes > 0);
    free(before);
    return seen;
}

static char *map(int how)
{
    char *const memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, how | MAP_ANONYMOUS | MAP_32BIT, -1, 0);

    assert_ptr_not_equal(memory, MAP_FAILED);
    for (unsigned i = 0; i < LENGTH; i++)
        memory[i] = (char)(i * 7 + i / 251);
    return memory;
}

static char *shared_memory, *private_memory;

/* Stores are found in shared memory, and only there. */
static void look_at(function_t function)
{
    assert_true(walk(function, shared_memory, true) > 0);
    assert_int_equal(walk(function, private_memory, false), 0);
}

static void test_plain(void **state)
{
    look_at(stores_plain);
}

static void test_vector(void **state)
{
    look_at(stores_vector);
}

static void test_string(void **state)
{
    look_at(stores_string);
}

static void test_avx(void **state)
{
    if (!__builtin_cpu_supports("avx"))
        skip();
    look_at(stores_avx);
}

static void test_avx512(void **state)
{
    if (!__builtin_cpu_supports("avx512f"))
        skip();
    look_at(stores_avx512);
}

/* Those count as stores wherever they go. */
static void test_imprecise(void **state)
{
    assert_true(walk(stores_imprecise, shared_memory, true) > 0);
    assert_true(walk(stores_imprecise, private_memory, false) > 0);
}

/* Others do not see what is only read: not a point each. */
static void test_loads(void **state)
{
    assert_int_equal(walk(loads, shared_memory, true), 0);
}

/* The C library's copies, of lengths that take different ways in them. */
static void copies(char *at)
{
    static char source[8192];

    for (size_t length = 1; length < 4000; length = length * 2 + 1) {
        memset(source, (int)length, sizeof(source));
        memcpy(at, source, length);
        memset(at, (int)length + 1, length);
        memmove(at + 1, at, length);
    }
    snprintf(at, 100, "%s", "a text of some length");
    strcpy(at + 200, "another");
}

static void test_copies(void **state)
{
    walk(copies, shared_memory, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain), cmocka_unit_test(test_vector), cmocka_unit_test(test_string),
        cmocka_unit_test(test_avx),   cmocka_unit_test(test_avx512), cmocka_unit_test(test_imprecise),
        cmocka_unit_test(test_loads), cmocka_unit_test(test_copies),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    shared_memory = map(MAP_SHARED);
    private_memory = map(MAP_PRIVATE);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
