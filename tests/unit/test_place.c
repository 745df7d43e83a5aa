/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Bytes into the program's memory: all of them, no others, and the last ones last
 * (compatibility.md §7). */
#include "unit.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ordered_copy.h"

enum { ROOM = 2048 };

static void every_length_and_alignment(void **state)
{
    static _Alignas(64) unsigned char from[ROOM + 64], to[ROOM + 64];

    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (unsigned char)(i * 37 + i / 256);
    for (size_t length = 0; length < 600; length++) {
        for (size_t to_offset = 0; to_offset < 16; to_offset++) {
            size_t from_offset = (length + to_offset * 3) % 16;

            memset(to, 0xee, sizeof(to));
            place(to + 32 + to_offset, from + from_offset, length);
            assert_memory_equal(to + 32 + to_offset, from + from_offset, length);
            assert_int_equal(to[31 + to_offset], 0xee);
            assert_int_equal(to[32 + to_offset + length], 0xee);
        }
    }
}

/* A writer that numbers its messages in every word, and a reader that spins on the last byte (or word). */
struct spin {
    _Alignas(64) unsigned char bytes[ROOM];
    size_t offset, length;
    _Atomic unsigned char seen;
    _Atomic bool failed;
};

enum { ROUNDS = 600 };

static void *spin_on_last_byte(void *argument)
{
    struct spin *spin = argument;
    const unsigned char *last = spin->bytes + spin->offset + spin->length - 1;

    for (unsigned round = 1; round <= ROUNDS; round++) {
        unsigned char mark = (unsigned char)(1 + round % 250);

        while (__atomic_load_n(last, __ATOMIC_ACQUIRE) != mark)
            sched_yield();
        for (size_t i = 0; i < spin->length; i++) {
            if (__atomic_load_n(spin->bytes + spin->offset + i, __ATOMIC_RELAXED) != mark) {
                atomic_store_explicit(&spin->failed, true, memory_order_release);
                return NULL;
            }
        }
        atomic_store_explicit(&spin->seen, mark, memory_order_release);
    }
    return NULL;
}

static void last_byte_is_last(void **state)
{
    static const size_t lengths[] = {2, 5, 8, 9, 16, 23, 64, 255, 256, 257, 300, 1031, 2000};
    unsigned char message[ROOM];

    for (size_t i = 0; i < array_size(lengths); i++) {
        struct spin *spin = aligned_alloc(64, sizeof(*spin));
        pthread_t reader;

        memset(spin, 0, sizeof(*spin));
        spin->offset = i % 9;
        spin->length = lengths[i];
        assert_int_equal(pthread_create(&reader, NULL, spin_on_last_byte, spin), 0);
        for (unsigned round = 1; round <= ROUNDS && !atomic_load(&spin->failed); round++) {
            unsigned char mark = (unsigned char)(1 + round % 250);

            memset(message, mark, spin->length);
            place(spin->bytes + spin->offset, message, spin->length);
            while (atomic_load_explicit(&spin->seen, memory_order_acquire) != mark &&
                   !atomic_load_explicit(&spin->failed, memory_order_acquire))
                sched_yield();
        }
        pthread_join(reader, NULL);
        assert_false(spin->failed);
        free(spin);
    }
}

/* A word of 4 or 8 bytes in its natural place is never seen half. */
struct halves {
    _Alignas(8) uint64_t word;
    _Atomic bool stop;
    unsigned torn;
};

static void *look_for_halves(void *argument)
{
    struct halves *halves = argument;

    while (!atomic_load_explicit(&halves->stop, memory_order_acquire)) {
        uint64_t word = __atomic_load_n(&halves->word, __ATOMIC_RELAXED);

        halves->torn += word != 0 && word != UINT64_MAX;
    }
    return NULL;
}

static void aligned_word_is_one_store(void **state)
{
    static const uint64_t values[2] = {0, UINT64_MAX};
    struct halves halves = {0};
    pthread_t reader;

    assert_int_equal(pthread_create(&reader, NULL, look_for_halves, &halves), 0);
    for (unsigned i = 0; i < 200000; i++)
        place(&halves.word, &values[i & 1], sizeof(uint64_t));
    atomic_store_explicit(&halves.stop, true, memory_order_release);
    pthread_join(reader, NULL);
    assert_int_equal(halves.torn, 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_and_alignment),
        cmocka_unit_test(last_byte_is_last),
        cmocka_unit_test(aligned_word_is_one_store),
    };

    return run_unit_tests("place", tests);
}
