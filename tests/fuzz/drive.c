/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Runs a fuzz target without libFuzzer.
 * usage: drive_… [CORPUS]                    seeds and mutations, for the test
 *        drive_… FILE…                       these inputs only: what libFuzzer found
 *        drive_… --seeds DIRECTORY [CORPUS]  writes the seeds, for libFuzzer to start from
 *        drive_… --pack DIRECTORY CORPUS     makes a corpus of what libFuzzer left there
 * A corpus, X.corpus, is a file of many inputs, which are seeds like the target's own: each is two bytes of
 * length, high one first, and its bytes. */
#include <dirent.h>
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"

#define SEEDS_MAX 4096
#ifndef LENGTH_MAX /* a target with longer inputs, or slower ones, has its own */
#define LENGTH_MAX 256
#endif
#ifndef ROUNDS
#define ROUNDS 200000
#endif
/* Fewer rounds, where code is emulated. */
#define ROUNDS_VARIABLE "SOFTHCA_TEST_ROUNDS"

static struct {
    uint8_t bytes[LENGTH_MAX];
    size_t length;
} seeds[SEEDS_MAX];
static size_t seed_count;

static void add_seed(const uint8_t *bytes, size_t length)
{
    require(seed_count < SEEDS_MAX && length <= LENGTH_MAX);
    memcpy(seeds[seed_count].bytes, bytes, length);
    seeds[seed_count++].length = length;
}

static uint64_t random_state = 0x2545f4914f6cdd1d;

static uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32) % below;
}

/* A copy of exactly that size, so that an address sanitizer sees a read past the end. */
static void run(const uint8_t *bytes, size_t length)
{
    uint8_t *exact = malloc(length ? length : 1);

    require(exact);
    memcpy(exact, bytes, length);
    LLVMFuzzerTestOneInput(exact, length);
    free(exact);
}

static size_t mutate(uint8_t *bytes, size_t length)
{
    for (uint32_t changes = 1 + draw(4); changes; changes--) {
        switch (draw(5)) {
        case 0: /* one bit */
            if (length)
                bytes[draw((uint32_t)length)] ^= (uint8_t)(1u << draw(8));
            break;
        case 1: /* one byte, with a liking for the ends of the range */
            if (length)
                bytes[draw((uint32_t)length)] = (uint8_t)(draw(2) ? draw(256) : draw(2) * 255);
            break;
        case 2: /* shorter */
            length = draw((uint32_t)length + 1);
            break;
        case 3: /* longer */
            while (length < LENGTH_MAX && draw(8))
                bytes[length++] = (uint8_t)draw(256);
            break;
        case 4: /* the tail of another */
            if (length) {
                const size_t other = draw((uint32_t)seed_count), at = draw((uint32_t)length);

                if (seeds[other].length > at) {
                    memcpy(bytes + at, seeds[other].bytes + at, seeds[other].length - at);
                    length = seeds[other].length;
                }
            }
            break;
        }
    }
    return length;
}

/* The bytes stay until the next call. */
static size_t read_file(const char *name, const uint8_t **ret_bytes)
{
    static uint8_t bytes[1 << 20];
    FILE *file = fopen(name, "rb");
    size_t length;

    require(file);
    length = fread(bytes, 1, sizeof(bytes), file);
    require(length < sizeof(bytes));
    fclose(file);
    *ret_bytes = bytes;
    return length;
}

static void run_file(const char *name)
{
    const uint8_t *bytes;
    size_t length = read_file(name, &bytes);

    run(bytes, length);
}

static bool is_corpus(const char *name)
{
    size_t length = strlen(name);

    return length > 7 && !strcmp(name + length - 7, ".corpus");
}

static void add_corpus(const char *name)
{
    const uint8_t *bytes;
    size_t length = read_file(name, &bytes), at = 0;

    while (at < length) {
        size_t size;

        require(length - at >= 2);
        size = (size_t)(bytes[at] << 8 | bytes[at + 1]);
        at += 2;
        require(size <= length - at);
        add_seed(bytes + at, size);
        at += size;
    }
}

static void pack(const char *directory, const char *corpus)
{
    struct dirent **entries;
    int count = scandir(directory, &entries, NULL, alphasort);
    FILE *file = fopen(corpus, "wb");

    require(count >= 0 && file);
    for (int i = 0; i < count; i++) {
        const uint8_t *bytes;
        char name[4096];
        size_t length;

        snprintf(name, sizeof(name), "%s/%s", directory, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && (length = read_file(name, &bytes)) <= LENGTH_MAX) {
            fputc((int)(length >> 8), file);
            fputc((int)(length & 0xff), file);
            require(fwrite(bytes, 1, length, file) == length);
        }
        free(entries[i]);
    }
    free(entries);
    require(!fclose(file));
}

static void write_seeds(const char *directory)
{
    for (size_t i = 0; i < seed_count; i++) {
        char name[4096];

        snprintf(name, sizeof(name), "%s/%zu", directory, i);
        FILE *file = fopen(name, "wb");

        require(file);
        require(fwrite(seeds[i].bytes, 1, seeds[i].length, file) == seeds[i].length);
        require(!fclose(file));
    }
}

static unsigned long rounds(void)
{
    const char *text = getenv(ROUNDS_VARIABLE);
    char *end;
    unsigned long value;

    if (!text)
        return ROUNDS;
    value = strtoul(text, &end, 10);
    require(value && !*end);
    return value;
}

int main(int argc, char **argv)
{
    fuzz_seeds(add_seed);
    require(seed_count);
    if (argc == 4 && !strcmp(argv[1], "--pack")) {
        pack(argv[2], argv[3]);
        return 0;
    }
    if (argc > 1 && is_corpus(argv[argc - 1]))
        add_corpus(argv[--argc]);
    if (argc == 3 && !strcmp(argv[1], "--seeds")) {
        write_seeds(argv[2]);
        return 0;
    }
    for (int i = 1; i < argc; i++)
        run_file(argv[i]);
    if (argc > 1)
        return 0;

    for (size_t i = 0; i < seed_count; i++)
        run(seeds[i].bytes, seeds[i].length);
    for (unsigned long i = rounds(); i > 0; i--) {
        uint8_t bytes[LENGTH_MAX];
        const size_t seed = draw((uint32_t)seed_count);

        memcpy(bytes, seeds[seed].bytes, LENGTH_MAX);
        run(bytes, mutate(bytes, seeds[seed].length));
    }
    return 0;
}
