/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "end.h"

enum { PEEK_MAX = 1024 };

/* Memory that peers write is not for ThreadSanitizer (tsan.supp), and to follow each byte of it takes a
 * minute where the test takes a second. */
#define UNFOLLOWED __attribute__((no_sanitize("thread")))

/* The byte at an offset depends on the whole offset, so that misplaced data does not look right. */
static inline UNFOLLOWED uint64_t word_of(uint64_t seed, uint64_t index)
{
    uint64_t x = (seed << 32 | seed >> 32) ^ index * 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

static inline UNFOLLOWED uint8_t byte_of(uint64_t seed, size_t offset)
{
    const uint64_t word = word_of(seed, offset / 8);

    return ((const uint8_t *)&word)[offset % 8];
}

UNFOLLOWED void fill_pattern(uint8_t *at, size_t length, uint64_t seed)
{
    size_t i = 0;

    for (; i + 8 <= length; i += 8) {
        const uint64_t word = word_of(seed, i / 8);

        memcpy(at + i, &word, 8);
    }
    for (; i < length; i++)
        at[i] = byte_of(seed, i);
}

UNFOLLOWED size_t find_difference(const uint8_t *at, size_t length, uint64_t seed)
{
    size_t i = 0;

    for (; i + 8 <= length; i += 8) {
        uint64_t word;

        memcpy(&word, at + i, 8);
        if (word != word_of(seed, i / 8))
            break;
    }
    for (; i < length; i++)
        if (at[i] != byte_of(seed, i))
            return i;
    return length;
}

struct extent {
    size_t offset, length;
    uint64_t seed;
};

static void fill_here(struct end *end, void *arg)
{
    const struct extent *extent = arg;

    fill_pattern(end->buf + extent->offset, extent->length, extent->seed);
}

void end_fill(struct end *end, size_t offset, size_t length, uint64_t seed)
{
    struct extent extent = {offset, length, seed};

    AT(end, fill_here, &extent);
}

static void expect_data_here(struct end *end, void *arg)
{
    const struct extent *extent = arg;
    const size_t at = find_difference(end->buf + extent->offset, extent->length, extent->seed);

    CHECK(at == extent->length, "data differs at byte %zu of %zu (buffer offset %zu, seed %llu)", at,
          extent->length, extent->offset, (unsigned long long)extent->seed);
}

void end_expect_data(struct end *end, size_t offset, size_t length, uint64_t seed)
{
    struct extent extent = {offset, length, seed};

    AT(end, expect_data_here, &extent);
}

struct peek {
    size_t offset, length;
    uint8_t bytes[PEEK_MAX];
};

static void poke_here(struct end *end, void *arg)
{
    const struct peek *peek = arg;

    memcpy(end->buf + peek->offset, peek->bytes, peek->length);
}

static void peek_here(struct end *end, void *arg)
{
    struct peek *peek = arg;

    memcpy(peek->bytes, end->buf + peek->offset, peek->length);
}

void end_poke(struct end *end, size_t offset, const void *bytes, size_t length)
{
    struct peek peek = {offset, length, {0}};

    CHECK(length <= PEEK_MAX, "%zu bytes", length);
    memcpy(peek.bytes, bytes, length);
    AT(end, poke_here, &peek);
}

void end_peek(struct end *end, size_t offset, void *bytes, size_t length)
{
    struct peek peek = {offset, length, {0}};

    CHECK(length <= PEEK_MAX, "%zu bytes", length);
    AT(end, peek_here, &peek);
    memcpy(bytes, peek.bytes, length);
}

uint64_t end_peek64(struct end *end, size_t offset)
{
    uint64_t value;

    end_peek(end, offset, &value, sizeof value);
    return value;
}

void end_poke64(struct end *end, size_t offset, uint64_t value)
{
    end_poke(end, offset, &value, sizeof value);
}
