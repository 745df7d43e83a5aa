/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/mad.h"

#include <errno.h>

#include "wire/cursor.h"

int mad_decode_header(const void *bytes, size_t length, struct mad_header *ret_header)
{
    struct cursor_in in = {.at = bytes, .end = (const uint8_t *)bytes + length};
    struct mad_header header;

    if (length != MAD_LENGTH)
        return -EPROTO;
    header.base_version = cursor_get8(&in);
    header.management_class = cursor_get8(&in);
    header.class_version = cursor_get8(&in);
    header.method = cursor_get8(&in);
    header.status = cursor_get16(&in);
    header.class_specific = cursor_get16(&in);
    header.transaction_id = cursor_get64(&in);
    header.attribute_id = cursor_get16(&in);
    cursor_get16(&in);
    header.attribute_modifier = cursor_get32(&in);
    if (header.base_version != MAD_BASE_VERSION)
        return -EPROTO;
    *ret_header = header;
    return 0;
}

void mad_encode_header(const struct mad_header *header, uint8_t ret_bytes[MAD_HEADER_LENGTH])
{
    struct cursor_out out = {.at = ret_bytes, .end = ret_bytes + MAD_HEADER_LENGTH};

    cursor_put8(&out, header->base_version);
    cursor_put8(&out, header->management_class);
    cursor_put8(&out, header->class_version);
    cursor_put8(&out, header->method);
    cursor_put16(&out, header->status);
    cursor_put16(&out, header->class_specific);
    cursor_put64(&out, header->transaction_id);
    cursor_put16(&out, header->attribute_id);
    cursor_put16(&out, 0);
    cursor_put32(&out, header->attribute_modifier);
}
