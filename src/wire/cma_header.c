/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/cma_header.h"

#include <errno.h>
#include <string.h>

#include "wire/cursor.h"

/* Annex A11.2.1: bytes 1-3 of a service id of the IP service hold only the port space. */
bool cma_service_decode(uint64_t service_id, uint16_t *ret_port_space, uint16_t *ret_port)
{
    switch (service_id >> 16) {
    case CMA_PS_IPOIB:
    case CMA_PS_TCP:
    case CMA_PS_UDP:
    case CMA_PS_IB:
        *ret_port_space = (uint16_t)(service_id >> 16);
        *ret_port = (uint16_t)service_id;
        return true;
    default:
        return false;
    }
}

int cma_header_decode(const void *private_data, size_t length, struct cma_header *ret_header)
{
    struct cursor_in in = {.at = private_data, .end = (const uint8_t *)private_data + length};
    struct cma_header header;
    uint8_t version = cursor_get8(&in);

    /* The first byte is major and minor version. Major version 0 is the only one; minor versions add only fields
     * that receivers may ignore. */
    header.ip_version = cursor_get8(&in) >> 4;
    header.source_port = cursor_get16(&in);
    cursor_copy_out(&in, header.source, sizeof(header.source));
    cursor_copy_out(&in, header.destination, sizeof(header.destination));
    if (in.failed || version >> 4 || (header.ip_version != 4 && header.ip_version != 6))
        return -EPROTO;
    if (header.ip_version == 4) {
        memset(header.source, 0, 12);
        memset(header.destination, 0, 12);
    }
    *ret_header = header;
    return 0;
}

void cma_header_encode(const struct cma_header *header, uint8_t ret_bytes[CMA_HEADER_LENGTH])
{
    struct cursor_out out = {.at = ret_bytes, .end = ret_bytes + CMA_HEADER_LENGTH};

    cursor_put8(&out, 0);
    cursor_put8(&out, (uint8_t)(header->ip_version << 4));
    cursor_put16(&out, header->source_port);
    cursor_copy_in(&out, header->source, sizeof(header->source));
    cursor_copy_in(&out, header->destination, sizeof(header->destination));
}
