/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The bytes of an input, one after the other. Behind its end are zeros. */
#ifndef TESTS_FUZZ_INPUT_H
#define TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct input {
    const uint8_t *at;
    size_t left;
};

static inline uint8_t input_8(struct input *input)
{
    if (!input->left)
        return 0;
    input->left--;
    return *input->at++;
}

static inline uint16_t input_16(struct input *input)
{
    uint16_t high = input_8(input);

    return (uint16_t)(high << 8 | input_8(input));
}

static inline uint32_t input_32(struct input *input)
{
    uint32_t high = input_16(input);

    return high << 16 | input_16(input);
}

static inline uint64_t input_64(struct input *input)
{
    uint64_t high = input_32(input);

    return high << 32 | input_32(input);
}

static inline void input_copy(struct input *input, void *to, size_t length)
{
    size_t here = length < input->left ? length : input->left;

    memcpy(to, input->at, here);
    memset((char *)to + here, 0, length - here);
    input->at += here;
    input->left -= here;
}

/* Changes of an object that is valid otherwise: a byte with their number, and offset and value of each. */
static inline void input_mutate(struct input *input, void *object, size_t size)
{
    for (uint8_t changes = input_8(input) % 8; changes; changes--) {
        size_t at = input_16(input) % size;

        ((uint8_t *)object)[at] = input_8(input);
    }
}

#endif
