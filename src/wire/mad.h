/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Management datagrams (MADs, IBA chapter 13): 256 bytes in the payload of a UD SEND from QP1 to QP1. */
#ifndef WIRE_MAD_H
#define WIRE_MAD_H

#include <stddef.h>
#include <stdint.h>

enum mad_length {
    MAD_LENGTH = 256,
    MAD_HEADER_LENGTH = 24,
};

#define MAD_QPN          1u
#define MAD_QKEY         0x80010000u /* well-known Q_Key of QP1 */
#define MAD_PKEY         0xffffu     /* default partition, the only one of RoCE */
#define MAD_BASE_VERSION 1

enum mad_class { MAD_CLASS_CM = 0x07 };
enum mad_method { MAD_METHOD_SEND = 0x03 };

struct mad_header {
    uint8_t base_version, management_class, class_version, method;
    uint16_t status, class_specific;
    uint64_t transaction_id;
    uint16_t attribute_id;
    uint32_t attribute_modifier;
};

/* 0, or -EPROTO: not MAD_LENGTH bytes, or another base version. */
int mad_decode_header(const void *bytes, size_t length, struct mad_header *ret_header);
/* Writes MAD_HEADER_LENGTH bytes. */
void mad_encode_header(const struct mad_header *header, uint8_t ret_bytes[MAD_HEADER_LENGTH]);

#endif
