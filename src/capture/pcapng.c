/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "capture/pcapng.h"

#include <string.h>

#include "base/types.h"

enum block_type { SECTION = 0x0a0d0d0a, INTERFACE = 1, STATISTICS = 5, PACKET = 6 };
enum option_code {
    OPTION_END,
    OPTION_COMMENT,
    INTERFACE_NAME,
    SECTION_APPLICATION = 4,
    STATISTICS_RECEIVED = 4,
    STATISTICS_DROPPED = 5,
    INTERFACE_TIME_RESOLUTION = 9,
};

#define BYTE_ORDER_MAGIC  0x1a2b3c4du
#define LINKTYPE_ETHERNET 1
#define NANOSECONDS       9

/* A block: its type and length, what stands between, and the length again. */
struct block {
    FILE *file;
    uint32_t length;
};

static uint32_t padded(size_t length)
{
    return ((uint32_t)length + 3) & ~3u;
}

static uint32_t option_length(size_t length)
{
    return 4 + padded(length);
}

/* length: of what stands between, padded to whole words. */
static struct block begin(FILE *file, enum block_type type, uint32_t length)
{
    const struct block block = {file, 12 + length};
    const uint32_t head[2] = {type, block.length};

    fwrite(head, sizeof(head), 1, file);
    return block;
}

static void end(const struct block *block)
{
    fwrite(&block->length, sizeof(block->length), 1, block->file);
}

static void put_padding(FILE *file, size_t length)
{
    fwrite("\0\0\0", padded(length) - length, 1, file);
}

static void put_option(FILE *file, enum option_code code, const void *value, size_t length)
{
    const uint16_t head[2] = {(uint16_t)code, (uint16_t)length};

    fwrite(head, sizeof(head), 1, file);
    if (length)
        fwrite(value, length, 1, file);
    put_padding(file, length);
}

static void put_end_of_options(FILE *file)
{
    put_option(file, OPTION_END, NULL, 0);
}

void pcapng_section(FILE *file, const char *application)
{
    const size_t length = strlen(application);
    const struct {
        uint32_t magic;
        uint16_t major, minor;
        int64_t length; /* -1: not known */
    } __attribute__((packed)) fields = {BYTE_ORDER_MAGIC, 1, 0, -1};
    const struct block block =
        begin(file, SECTION, (uint32_t)sizeof(fields) + option_length(length) + option_length(0));

    fwrite(&fields, sizeof(fields), 1, file);
    put_option(file, SECTION_APPLICATION, application, length);
    put_end_of_options(file);
    end(&block);
}

void pcapng_interface(FILE *file, const char *name, uint32_t snap)
{
    const size_t length = strlen(name);
    const uint8_t resolution = NANOSECONDS;
    const struct {
        uint16_t link_type, reserved;
        uint32_t snap; /* 0: no limit */
    } fields = {LINKTYPE_ETHERNET, 0, snap};
    const struct block block =
        begin(file, INTERFACE,
              (uint32_t)sizeof(fields) + option_length(length) + option_length(1) + option_length(0));

    fwrite(&fields, sizeof(fields), 1, file);
    put_option(file, INTERFACE_NAME, name, length);
    put_option(file, INTERFACE_TIME_RESOLUTION, &resolution, sizeof(resolution));
    put_end_of_options(file);
    end(&block);
}

void pcapng_packet(FILE *file, uint32_t interface, uint64_t time, const uint8_t *frame, size_t captured,
                   size_t length, const char *comment)
{
    const size_t comment_length = strlen(comment);
    const uint32_t options = comment_length ? option_length(comment_length) + option_length(0) : 0;
    const uint32_t fields[5] = {interface, (uint32_t)(time >> 32), (uint32_t)time, (uint32_t)captured,
                                (uint32_t)length};
    const struct block block = begin(file, PACKET, (uint32_t)sizeof(fields) + padded(captured) + options);

    fwrite(fields, sizeof(fields), 1, file);
    fwrite(frame, captured, 1, file);
    put_padding(file, captured);
    if (comment_length) {
        put_option(file, OPTION_COMMENT, comment, comment_length);
        put_end_of_options(file);
    }
    end(&block);
}

void pcapng_statistics(FILE *file, uint32_t interface, uint64_t time, uint64_t received, uint64_t dropped)
{
    const uint32_t fields[3] = {interface, (uint32_t)(time >> 32), (uint32_t)time};
    const struct block block =
        begin(file, STATISTICS, (uint32_t)sizeof(fields) + 2 * option_length(8) + option_length(0));

    fwrite(fields, sizeof(fields), 1, file);
    put_option(file, STATISTICS_RECEIVED, &received, sizeof(received));
    put_option(file, STATISTICS_DROPPED, &dropped, sizeof(dropped));
    put_end_of_options(file);
    end(&block);
}
