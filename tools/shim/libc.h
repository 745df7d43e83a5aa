/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* How the shim's functions reach libc's. */
#ifndef SHIM_LIBC_H
#define SHIM_LIBC_H

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>

#define exported __attribute__((visibility("default")))

/* libc's function of the same name. Looked up at first use, since there is no constructor; two threads that
 * race find the same. Relaxed is enough: code is not data that the other thread has written. */
static inline void *libc_function(void *_Atomic *cache, const char *name)
{
    void *found = atomic_load_explicit(cache, memory_order_relaxed);

    if (!found) {
        found = dlsym(RTLD_NEXT, name);
        atomic_store_explicit(cache, found, memory_order_relaxed);
    }
    return found;
}

#define LIBC(name, type)                                                                                     \
    ({                                                                                                       \
        static void *_Atomic cache_;                                                                         \
        (__typeof__(type))libc_function(&cache_, name);                                                      \
    })

#define CALL_OR(failure, name, type, ...)                                                                    \
    ({                                                                                                       \
        __typeof__(type) real_ = LIBC(name, type);                                                           \
        real_ ? real_(__VA_ARGS__) : (errno = ENOSYS, failure);                                              \
    })

#endif
