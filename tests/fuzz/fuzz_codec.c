/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What arrives at UDP port 4791: the ICRC checks, then codec_decode(). The first bytes of the input choose
 * the path. */
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "wire/codec.h"
#include "wire/icrc.h"
#include "wire/ipudp.h"

#define PATH_BYTES 5 /* flags, source port, identification */

static struct icrc_path path_of(const uint8_t *data)
{
    struct icrc_path path = {
        .source_port = (uint16_t)(data[1] << 8 | data[2]),
        .destination_port = ROCE_UDP_PORT,
        .identification = (uint16_t)(data[3] << 8 | data[4]),
        .dont_fragment = data[0] & 2,
    };

    if (!(data[0] & 1))
        path.source[10] = path.source[11] = path.destination[10] = path.destination[11] = 0xff;
    path.source[15] = 1;
    path.destination[15] = 2;
    return path;
}

/* A packet that passed must lie inside the bytes, and encoding it must give the same headers but for what is
 * ignored. */
static void check_decoded(const struct packet *packet, const uint8_t *bytes, size_t length)
{
    const struct opcode_info *info = &opcode_table[packet->opcode];
    uint8_t again[HEADER_LENGTH_MAX];
    struct packet twice;

    require(info->name);
    require(!(packet->flags & ~(PACKET_SOLICITED | PACKET_ACK_REQUEST)));
    require(packet->dest_qpn <= 0xffffff && packet->src_qpn <= 0xffffff && packet->psn.value <= PSN_MASK);
    require(packet->msn <= 0xffffff && !packet->reference && !packet->reference_count);
    require(info->header_length + packet->payload_length <= length);
    require(!packet->payload_length == !packet->payload);
    if (packet->payload_length) {
        require(info->properties & OPCODE_HAS_PAYLOAD);
        require(packet->payload == bytes + info->header_length);
    }

    require(codec_encode(packet, again) == info->header_length);
    require(again[0] == bytes[0] && !((again[1] ^ bytes[1]) & 0x80));
    require(!memcmp(again + 2, bytes + 2, 2) && !memcmp(again + 5, bytes + 5, 3) &&
            !memcmp(again + 9, bytes + 9, 3));

    struct packet empty = *packet;

    empty.payload_length = 0;
    require(codec_encode(&empty, again) == info->header_length);
    require(!codec_decode(again, info->header_length, &twice));
    empty.payload = NULL;
    require(!memcmp(&empty, &twice, sizeof(twice)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < PATH_BYTES)
        return 0;

    const struct icrc_path path = path_of(data);
    struct icrc_path found = path;
    const uint8_t *bytes = data + PATH_BYTES;
    const size_t length = size - PATH_BYTES;
    struct packet packet;

    /* A packet that is right is right without its identification, and what is found explains the packet. */
    const bool right = icrc_check(&path, bytes, length);
    const bool explained = icrc_check_unidentified(&found, bytes, length);

    require(explained || !right);
    require(!explained || icrc_check(&found, bytes, length));

    if (length >= ICRC_LENGTH && !codec_decode(bytes, length - ICRC_LENGTH, &packet))
        check_decoded(&packet, bytes, length - ICRC_LENGTH);
    /* The decoder itself makes no assumption about an ICRC. */
    if (!codec_decode(bytes, length, &packet))
        check_decoded(&packet, bytes, length);
    return 0;
}

/* Each opcode with a payload of 0, 1 and 4 bytes, where it takes one, and a valid ICRC over IPv4 and IPv6. */
void fuzz_seeds(fuzz_add *add)
{
    for (unsigned opcode = 0; opcode < 256; opcode++) {
        const struct opcode_info *info = &opcode_table[opcode];

        if (!info->name)
            continue;
        for (unsigned variant = 0; variant < (info->properties & OPCODE_HAS_PAYLOAD ? 3 : 1); variant++) {
            static const uint32_t payloads[] = {0, 1, 4};
            const struct packet packet = {
                .opcode = (uint8_t)opcode,
                .flags = PACKET_ACK_REQUEST,
                .pkey = 0xffff,
                .dest_qpn = 0x11,
                .psn = psn_make(0xfffffe),
                .payload_length = payloads[variant],
            };
            const size_t length = codec_udp_payload_length(&packet);
            uint8_t input[256] = {(uint8_t)(opcode & 3), 0xc0, 0x00, 0x12, 0x34};
            const struct icrc_path path = path_of(input);
            const size_t headers = codec_encode(&packet, input + PATH_BYTES);
            uint32_t crc = icrc_add_headers(icrc_begin(&path, length), input + PATH_BYTES, headers);

            crc = icrc_add(crc, input + PATH_BYTES + headers, length - headers - ICRC_LENGTH);
            icrc_store(crc, input + PATH_BYTES + length - ICRC_LENGTH);
            require(icrc_check(&path, input + PATH_BYTES, length));
            add(input, PATH_BYTES + length);
        }
    }
}
