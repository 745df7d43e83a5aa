/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The header in front of the private data of a REQ or SIDR_REQ, and service ids (wire/cma_header.c). Decoding reads
 * nothing behind the bytes (a sanitizer sees that), gives an IP version, no bytes in front of an IPv4 address, and
 * changes nothing when it fails.
 *
 * Input: eight bytes of a service id, then the private data. */
#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "input.h"
#include "wire/cma_header.h"

static void take_service(uint64_t service_id)
{
    uint16_t port_space = 0, port = 0;

    if (cma_service_decode(service_id, &port_space, &port))
        require(cma_service_id(port_space, port) == service_id &&
                (port_space == CMA_PS_IPOIB || port_space == CMA_PS_TCP || port_space == CMA_PS_UDP ||
                 port_space == CMA_PS_IB));
    else
        require(port_space == 0 && port == 0);
}

static void take_header(const uint8_t *bytes, size_t length)
{
    static const uint8_t zeros[12];
    struct cma_header header, untouched;
    uint8_t encoded[CMA_HEADER_LENGTH];

    memset(&header, 0xa5, sizeof(header));
    untouched = header;
    if (cma_header_decode(bytes, length, &header) != 0) {
        require(memcmp(&header, &untouched, sizeof(header)) == 0);
        return;
    }
    require(length >= CMA_HEADER_LENGTH && bytes[0] < 0x10 && header.ip_version == bytes[1] >> 4);
    require(header.ip_version == 4 || header.ip_version == 6);
    cma_header_encode(&header, encoded);
    require(encoded[1] == (bytes[1] & 0xf0) && memcmp(encoded + 2, bytes + 2, 2) == 0);
    if (header.ip_version == 6) {
        require(memcmp(encoded + 4, bytes + 4, 32) == 0);
        return;
    }
    require(memcmp(header.source, zeros, 12) == 0 && memcmp(header.destination, zeros, 12) == 0);
    require(memcmp(encoded + 16, bytes + 16, 4) == 0 && memcmp(encoded + 32, bytes + 32, 4) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};

    take_service(input_64(&input));
    take_header(input.at, input.left);
    return 0;
}

void fuzz_seeds(fuzz_add *add)
{
    static const uint16_t spaces[] = {CMA_PS_IPOIB, CMA_PS_TCP, CMA_PS_UDP, CMA_PS_IB, 7};

    for (unsigned i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
        struct cma_header header = {.ip_version = i & 1 ? 6 : 4, .source_port = 0x1234};
        uint8_t bytes[8 + CMA_HEADER_LENGTH + 20] = {
            [4] = (uint8_t)(spaces[i] >> 8), [5] = (uint8_t)spaces[i], [6] = 1, [7] = 2};

        memset(header.source + 12, 0x11, 4);
        memset(header.destination + 12, 0x22, 4);
        cma_header_encode(&header, bytes + 8);
        add(bytes, sizeof(bytes));
        add(bytes, 8 + CMA_HEADER_LENGTH);
        add(bytes, 8 + CMA_HEADER_LENGTH - 1);
    }
}
