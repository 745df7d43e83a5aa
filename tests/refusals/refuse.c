/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Preloaded: counts the allocations and system calls of the adapter's libraries by the place that they come from, and
 * refuses one of them.
 *
 *   REFUSE_TABLE  file of struct place; what was counted
 *   REFUSE_KEY, REFUSE_AT, REFUSE_ERROR  the place, the how manieth call from it, and the error (negative: from there on)
 *   REFUSE_ALSO   a function whose first call, from any place, is refused as well: EAGAIN
 *
 * A place is the caller and the callers of that in the libraries: all of them use sys_mmap(). */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

enum { PLACES = 4096, FRAMES = 3 };

struct place {
    _Atomic uint64_t key;
    _Atomic uint32_t count, refused;
    char call[24];
    int32_t number; /* of a system call; -1: a function of the C library */
    uint32_t frames[FRAMES];
};

static struct place *table;
static uint64_t wanted;
static int refuse_at, refuse_error;
static const char *also;
static _Atomic bool has_also;
static struct {
    uintptr_t from, to, base;
    uint32_t library; /* 0: libibverbs; 1: librdmacm */
} ours[4];
static unsigned ours_count;
static _Atomic int ready; /* 1: being set up; 2: set up */
static __thread bool inside __attribute__((tls_model("initial-exec")));

static int note_library(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    (void)data;
    if (!strstr(info->dlpi_name, "libibverbs.so") && !strstr(info->dlpi_name, "librdmacm.so"))
        return 0;
    for (unsigned i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X) && ours_count < 4) {
            ours[ours_count].base = info->dlpi_addr;
            ours[ours_count].library = strstr(info->dlpi_name, "librdmacm.so") != NULL;
            ours[ours_count].from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            ours[ours_count].to = ours[ours_count].from + info->dlpi_phdr[i].p_memsz;
            ours_count++;
        }
    return 0;
}

static bool is_ours(uintptr_t at, uint32_t *ret_offset)
{
    for (unsigned i = 0; i < ours_count; i++)
        if (at >= ours[i].from && at < ours[i].to) {
            *ret_offset = (uint32_t)(at - ours[i].base) | ours[i].library << 28;
            return true;
        }
    return false;
}

__attribute__((constructor)) static void set_up(void)
{
    const char *const name = getenv("REFUSE_TABLE"), *const key = getenv("REFUSE_KEY");
    int fd;

    if (atomic_exchange(&ready, 1))
        return;
    inside = true;
    dl_iterate_phdr(note_library, NULL);
    fd = name && ours_count ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *const at = mmap(NULL, PLACES * sizeof(struct place), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        if (at != MAP_FAILED)
            table = at;
        close(fd);
    }
    also = getenv("REFUSE_ALSO");
    if (key) {
        wanted = strtoull(key, NULL, 16);
        refuse_at = atoi(getenv("REFUSE_AT"));
        refuse_error = atoi(getenv("REFUSE_ERROR"));
    }
    inside = false;
    atomic_store(&ready, 2);
}

struct walk {
    uint32_t frames[FRAMES];
    unsigned count, all;
};

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *data)
{
    struct walk *const walk = data;

    if (walk->count == FRAMES || ++walk->all > 12)
        return _URC_END_OF_STACK;
    if (is_ours((uintptr_t)_Unwind_GetIP(context), &walk->frames[walk->count]))
        walk->count++;
    return _URC_NO_REASON;
}

/* The error with which the call is refused; 0: it takes place. */
static int refused(void *caller, const char *call, int number)
{
    struct walk walk = {0};
    uint64_t key = (uint64_t)(number + 2) * 0x9e3779b97f4a7c15u;
    uint32_t offset;
    int result = 0;

    if (inside || !table || atomic_load(&ready) != 2 || !is_ours((uintptr_t)caller, &offset))
        return 0;
    inside = true;
    _Unwind_Backtrace(step, &walk);
    for (const char *c = call; *c; c++)
        key = (key ^ (unsigned char)*c) * 0x100000001b3u;
    for (unsigned i = 0; i < walk.count; i++)
        key = ((key ^ walk.frames[i]) * 0xff51afd7ed558ccdu) ^ (key >> 29);
    key |= 1;
    for (unsigned i = (unsigned)(key >> 20), tries = 0; tries < PLACES; i++, tries++) {
        struct place *const place = &table[i % PLACES];
        uint64_t none = 0;

        if (atomic_compare_exchange_strong(&place->key, &none, key)) {
            strncpy(place->call, call, sizeof(place->call) - 1);
            place->number = number;
            memcpy(place->frames, walk.frames, sizeof(place->frames));
        } else if (none != key) {
            continue;
        }
        const int count = (int)atomic_fetch_add(&place->count, 1) + 1;

        if (key == wanted && (refuse_error < 0 ? count >= refuse_at : count == refuse_at)) {
            atomic_fetch_add(&place->refused, 1);
            result = refuse_error < 0 ? -refuse_error : refuse_error;
        } else if (also && !strcmp(also, call) && !atomic_exchange(&has_also, true)) {
            result = EAGAIN;
        }
        break;
    }
    inside = false;
    return result;
}

#define CALLER __builtin_return_address(0)
#define REAL(name)                                                                                           \
    static __typeof__(name) *real;                                                                           \
    if (!real)                                                                                               \
    real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* --- memory: without dlsym(), which allocates itself ------------------------------------------------------- */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);

#define NO_MEMORY(call)                                                                                      \
    if (refused(CALLER, call, -1)) {                                                                         \
        errno = ENOMEM;                                                                                      \
        return NULL;                                                                                         \
    }

void *malloc(size_t size)
{
    NO_MEMORY("malloc")
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    NO_MEMORY("calloc")
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    NO_MEMORY("realloc")
    return __libc_realloc(old, size);
}

void *reallocarray(void *old, size_t count, size_t size)
{
    size_t all;

    NO_MEMORY("reallocarray")
    if (__builtin_mul_overflow(count, size, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(old, all);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    NO_MEMORY("aligned_alloc")
    return __libc_memalign(alignment, size);
}

char *strdup(const char *text)
{
    const size_t length = strlen(text) + 1;
    char *copy;

    NO_MEMORY("strdup")
    copy = __libc_malloc(length);
    return copy ? memcpy(copy, text, length) : NULL;
}

/* --- system calls -------------------------------------------------------------------------------------------- */

long syscall(long number, ...)
{
    static __typeof__(syscall) *real;
    long a[6];
    va_list args;
    int error;

    va_start(args, number);
    for (unsigned i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    /* FUTEX_WAKE has no errors. */
    error = number == SYS_futex && (a[1] & 127) == FUTEX_WAKE ? 0 : refused(CALLER, "syscall", (int)number);
    if (error) {
        errno = error;
        return -1;
    }
    if (!real)
        real = (__typeof__(syscall) *)dlsym(RTLD_NEXT, "syscall");
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

#define CALL(type, name, parameters, ...)                                                                    \
    type name parameters                                                                                     \
    {                                                                                                        \
        static type(*real) parameters;                                                                       \
        const int error = refused(CALLER, #name, -1);                                                        \
        if (error) {                                                                                         \
            errno = error;                                                                                   \
            return (type)-1;                                                                                 \
        }                                                                                                    \
        if (!real)                                                                                           \
            real = (type(*) parameters)dlsym(RTLD_NEXT, #name);                                              \
        return real(__VA_ARGS__);                                                                            \
    }

struct sockaddr;
struct msghdr;
struct epoll_event;
struct itimerspec;
struct stat;
struct statx;
CALL(int, socket, (int a, int b, int c), a, b, c)
CALL(int, socketpair, (int a, int b, int c, int *d), a, b, c, d)
CALL(int, bind, (int a, const struct sockaddr *b, unsigned c), a, b, c)
CALL(int, connect, (int a, const struct sockaddr *b, unsigned c), a, b, c)
CALL(int, listen, (int a, int b), a, b)
CALL(int, accept4, (int a, struct sockaddr *b, unsigned *c, int d), a, b, c, d)
CALL(int, getsockname, (int a, struct sockaddr *b, unsigned *c), a, b, c)
CALL(int, getpeername, (int a, struct sockaddr *b, unsigned *c), a, b, c)
CALL(int, setsockopt, (int a, int b, int c, const void *d, unsigned e), a, b, c, d, e)
CALL(int, getsockopt, (int a, int b, int c, void *d, unsigned *e), a, b, c, d, e)
CALL(int, dup3, (int a, int b, int c), a, b, c)
CALL(int, fstat64, (int a, struct stat *b), a, b)
CALL(int, ftruncate64, (int a, long b), a, b)
CALL(int, epoll_create1, (int a), a)
CALL(int, epoll_ctl, (int a, int b, int c, struct epoll_event *d), a, b, c, d)
CALL(int, epoll_wait, (int a, struct epoll_event *b, int c, int d), a, b, c, d)
CALL(int, eventfd, (unsigned a, int b), a, b)
CALL(int, timerfd_create, (int a, int b), a, b)
CALL(int, timerfd_settime, (int a, int b, const struct itimerspec *c, struct itimerspec *d), a, b, c, d)
CALL(ssize_t, read, (int a, void *b, size_t c), a, b, c)
CALL(ssize_t, pread64, (int a, void *b, size_t c, long d), a, b, c, d)
CALL(ssize_t, readlink, (const char *a, char *b, size_t c), a, b, c)
CALL(ssize_t, recv, (int a, void *b, size_t c, int d), a, b, c, d)
CALL(ssize_t, recvmsg, (int a, struct msghdr *b, int c), a, b, c)
CALL(ssize_t, sendmsg, (int a, const struct msghdr *b, int c), a, b, c)
CALL(ssize_t, sendto, (int a, const void *b, size_t c, int d, const struct sockaddr *e, unsigned f), a, b, c,
     d, e, f)
CALL(ssize_t, recvfrom, (int a, void *b, size_t c, int d, struct sockaddr *e, unsigned *f), a, b, c, d, e, f)

int open64(const char *name, int flags, ...)
{
    const int error = refused(CALLER, "open64", -1);
    REAL(open64);
    va_list args;
    unsigned mode;

    if (error) {
        errno = error;
        return -1;
    }
    va_start(args, flags);
    mode = va_arg(args, unsigned);
    va_end(args);
    return real(name, flags, mode);
}

int fcntl64(int fd, int command, ...)
{
    const int error = refused(CALLER, "fcntl64", -1);
    REAL(fcntl64);
    va_list args;
    long value;

    if (error) {
        errno = error;
        return -1;
    }
    va_start(args, command);
    value = va_arg(args, long);
    va_end(args);
    return real(fd, command, value);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    const int error = refused(CALLER, "pthread_create", -1);
    REAL(pthread_create);

    return error ? error : real(thread, attr, run, arg);
}
