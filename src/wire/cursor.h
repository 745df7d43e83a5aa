/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Reads and writes big-endian numbers at any alignment and never past the end: a read past the end returns 0, a
 * write past the end is omitted, and both set `failed`. */
#ifndef WIRE_CURSOR_H
#define WIRE_CURSOR_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct cursor_in {
    const uint8_t *at, *end;
    bool failed;
};

struct cursor_out {
    uint8_t *at, *end;
    bool failed;
};

/* count is at most 8. */
static inline uint64_t cursor_get(struct cursor_in *cursor, unsigned count)
{
    uint64_t value = 0;

    if ((size_t)(cursor->end - cursor->at) < count) {
        cursor->failed = true;
        return 0;
    }
    for (unsigned i = 0; i < count; i++)
        value = value << 8 | *cursor->at++;
    return value;
}

static inline uint8_t cursor_get8(struct cursor_in *cursor)
{
    return (uint8_t)cursor_get(cursor, 1);
}

static inline uint16_t cursor_get16(struct cursor_in *cursor)
{
    return (uint16_t)cursor_get(cursor, 2);
}

static inline uint32_t cursor_get24(struct cursor_in *cursor)
{
    return (uint32_t)cursor_get(cursor, 3);
}

static inline uint32_t cursor_get32(struct cursor_in *cursor)
{
    uint32_t word;

    if ((size_t)(cursor->end - cursor->at) < sizeof(word)) {
        cursor->failed = true;
        return 0;
    }
    memcpy(&word, cursor->at, sizeof(word));
    cursor->at += sizeof(word);
    return be32toh(word);
}

static inline uint64_t cursor_get64(struct cursor_in *cursor)
{
    return cursor_get(cursor, 8);
}

/* Copies bytes without conversion. */
static inline void cursor_copy_out(struct cursor_in *cursor, void *to, size_t count)
{
    if ((size_t)(cursor->end - cursor->at) < count) {
        cursor->failed = true;
        memset(to, 0, count);
        return;
    }
    memcpy(to, cursor->at, count);
    cursor->at += count;
}

static inline void cursor_put(struct cursor_out *cursor, uint64_t value, unsigned count)
{
    if ((size_t)(cursor->end - cursor->at) < count) {
        cursor->failed = true;
        return;
    }
    for (unsigned shift = 8 * count; shift; shift -= 8)
        *cursor->at++ = (uint8_t)(value >> (shift - 8));
}

static inline void cursor_put8(struct cursor_out *cursor, uint8_t value)
{
    cursor_put(cursor, value, 1);
}

static inline void cursor_put16(struct cursor_out *cursor, uint16_t value)
{
    cursor_put(cursor, value, 2);
}

/* Writes the lower 24 bits. */
static inline void cursor_put24(struct cursor_out *cursor, uint32_t value)
{
    cursor_put(cursor, value, 3);
}

static inline void cursor_put32(struct cursor_out *cursor, uint32_t value)
{
    const uint32_t word = htobe32(value);

    if ((size_t)(cursor->end - cursor->at) < sizeof(word)) {
        cursor->failed = true;
        return;
    }
    memcpy(cursor->at, &word, sizeof(word));
    cursor->at += sizeof(word);
}

static inline void cursor_put64(struct cursor_out *cursor, uint64_t value)
{
    cursor_put(cursor, value, 8);
}

static inline void cursor_copy_in(struct cursor_out *cursor, const void *from, size_t count)
{
    if ((size_t)(cursor->end - cursor->at) < count) {
        cursor->failed = true;
        return;
    }
    memcpy(cursor->at, from, count);
    cursor->at += count;
}

#endif
