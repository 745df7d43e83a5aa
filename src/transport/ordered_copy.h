/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Copy into memory that the program may poll meanwhile: in ascending order, an aligned word of 8 bytes as one
 * store, the last bytes last, because programs spin on the last byte of an RDMA WRITE (compatibility.md §7).
 * memcpy() guarantees none of that. */
#ifndef TRANSPORT_ORDERED_COPY_H
#define TRANSPORT_ORDERED_COPY_H

#include <stdint.h>
#include <string.h>

#include "base/types.h"

#define PLACE_SMALL 256

static inline uint64_t place_load(const unsigned char *from)
{
    uint64_t word;

    memcpy(&word, from, sizeof(word));
    return word;
}

static inline void place_bytes(unsigned char *to, const unsigned char *from, size_t length)
{
    for (size_t i = 0; i < length; i++)
        __atomic_store_n(to + i, from[i], __ATOMIC_RELAXED);
}

/* The end of a message: a thread that sees its last byte (load-acquire, or an address dependency) sees all bytes
 * before. */
static inline void place_end(unsigned char *to, const unsigned char *from, size_t length)
{
    if (length == sizeof(uint64_t) && !((uintptr_t)to & 7)) {
        __atomic_store_n((uint64_t *)to, place_load(from), __ATOMIC_RELEASE);
        return;
    }
    if (length == sizeof(uint32_t) && !((uintptr_t)to & 3)) {
        uint32_t word;

        memcpy(&word, from, sizeof(word));
        __atomic_store_n((uint32_t *)to, word, __ATOMIC_RELEASE);
        return;
    }
    place_bytes(to, from, length - 1);
    __atomic_store_n(to + length - 1, from[length - 1], __ATOMIC_RELEASE);
}

/* Inline where it is called, for copies of small messages. */
static always_inline void place_inline(void *target, const void *payload, size_t length)
{
    unsigned char *to = target;
    const unsigned char *from = payload;
    size_t head = -(uintptr_t)to & 7;

    if (!length)
        return;
    if (length <= sizeof(uint64_t)) {
        place_end(to, from, length);
        return;
    }
    if (head) {
        place_bytes(to, from, head);
        to += head;
        from += head;
        length -= head;
    }
    if (length > PLACE_SMALL) {
        size_t body = (length - 1) & ~(size_t)7;

        memcpy(to, from, body);
        to += body;
        from += body;
        length -= body;
    } else {
        for (; length > sizeof(uint64_t); to += 8, from += 8, length -= 8)
            __atomic_store_n((uint64_t *)to, place_load(from), __ATOMIC_RELAXED);
    }
    if (length)
        place_end(to, from, length);
}

static inline void place(void *target, const void *payload, size_t length)
{
    place_inline(target, payload, length);
}

#endif
