/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/codec.h"

#include <errno.h>
#include <string.h>

#include "wire/cursor.h"

/* The three words of a BTH (IBA 9.2):
 *   0  opcode, SE, MigReq, PadCnt, TVer, P_Key
 *   1  FECN, BECN and reserved bits, which routers may change; DestQP
 *   2  AckReq, reserved; PSN */
#define BTH_SOLICITED     0x800000u
#define BTH_MIGRATED      0x400000u
#define BTH_PAD_SHIFT     20
#define BTH_PAD(word)     ((word) >> BTH_PAD_SHIFT & 3u)
#define BTH_VERSION(word) ((word) >> 16 & 0x0fu)
#define BTH_ACK_REQUEST   0x80000000u
#define BTH_NUMBER        0xffffffu
#define BTH_BECN          0x40000000u

static void get_bth(struct cursor_in *in, struct packet *packet)
{
    uint32_t first = cursor_get32(in), third;

    packet->opcode = (uint8_t)(first >> 24);
    packet->pkey = (uint16_t)first;
    packet->dest_qpn = cursor_get32(in) & BTH_NUMBER;
    third = cursor_get32(in);
    packet->flags = (uint8_t)((first & BTH_SOLICITED ? PACKET_SOLICITED : 0) |
                              (third & BTH_ACK_REQUEST ? PACKET_ACK_REQUEST : 0));
    packet->psn = psn_make(third & BTH_NUMBER);
}

static void put_bth(struct cursor_out *out, const struct packet *packet)
{
    /* MigReq is set (state MIGRATED) without path migration; hardware checks it even in acknowledgements. */
    uint32_t first = (uint32_t)packet->opcode << 24 | BTH_MIGRATED | packet->pkey |
                     codec_pad(packet->payload_length) << BTH_PAD_SHIFT;

    if (packet->flags & PACKET_SOLICITED)
        first |= BTH_SOLICITED;
    cursor_put32(out, first);
    cursor_put32(out, packet->dest_qpn & BTH_NUMBER);
    cursor_put32(out, (packet->flags & PACKET_ACK_REQUEST ? BTH_ACK_REQUEST : 0) |
                          (packet->psn.value & BTH_NUMBER));
}

static void get_extensions(struct cursor_in *in, uint32_t properties, struct packet *packet)
{
    if (properties & OPCODE_HAS_XRCETH) {
        cursor_get8(in);
        packet->srqn = cursor_get24(in);
    }
    if (properties & OPCODE_HAS_DETH) {
        packet->qkey = cursor_get32(in);
        cursor_get8(in);
        packet->src_qpn = cursor_get24(in);
    }
    if (properties & OPCODE_FLUSH)
        packet->flush = (uint8_t)cursor_get32(in); /* upper bits: reserved */
    if (properties & OPCODE_HAS_RETH) {
        packet->address = cursor_get64(in);
        packet->rkey = cursor_get32(in);
        packet->dma_length = cursor_get32(in);
    }
    if (properties & OPCODE_HAS_ATOMIC_ETH) {
        packet->address = cursor_get64(in);
        packet->rkey = cursor_get32(in);
        packet->swap_add = cursor_get64(in);
        packet->compare = cursor_get64(in);
    }
    if (properties & OPCODE_HAS_AETH) {
        uint32_t word = cursor_get32(in);

        packet->syndrome = (uint8_t)(word >> 24);
        packet->msn = word & BTH_NUMBER;
    }
    if (properties & OPCODE_HAS_ATOMIC_ACK)
        packet->original = cursor_get64(in);
    if (properties & OPCODE_HAS_IMM)
        cursor_copy_out(in, &packet->imm_data, sizeof(packet->imm_data));
    if (properties & OPCODE_HAS_INVALIDATE)
        packet->invalidate_rkey = cursor_get32(in);
}

static void put_extensions(struct cursor_out *out, uint32_t properties, const struct packet *packet)
{
    if (properties & OPCODE_HAS_XRCETH) {
        cursor_put8(out, 0);
        cursor_put24(out, packet->srqn);
    }
    if (properties & OPCODE_HAS_DETH) {
        cursor_put32(out, packet->qkey);
        cursor_put8(out, 0);
        cursor_put24(out, packet->src_qpn);
    }
    if (properties & OPCODE_FLUSH)
        cursor_put32(out, packet->flush);
    if (properties & OPCODE_HAS_RETH) {
        cursor_put64(out, packet->address);
        cursor_put32(out, packet->rkey);
        cursor_put32(out, packet->dma_length);
    }
    if (properties & OPCODE_HAS_ATOMIC_ETH) {
        cursor_put64(out, packet->address);
        cursor_put32(out, packet->rkey);
        cursor_put64(out, packet->swap_add);
        cursor_put64(out, packet->compare);
    }
    if (properties & OPCODE_HAS_AETH)
        cursor_put32(out, (uint32_t)packet->syndrome << 24 | (packet->msn & BTH_NUMBER));
    if (properties & OPCODE_HAS_ATOMIC_ACK)
        cursor_put64(out, packet->original);
    if (properties & OPCODE_HAS_IMM)
        cursor_copy_in(out, &packet->imm_data, sizeof(packet->imm_data));
    if (properties & OPCODE_HAS_INVALIDATE)
        cursor_put32(out, packet->invalidate_rkey);
}

/* Is the length possible for a supported opcode: a payload of whole words that includes the padding, and none for
 * opcodes without payload? */
static bool is_well_formed(const struct opcode_info *info, size_t length, uint32_t pad)
{
    size_t rest = length - info->header_length;

    return length >= info->header_length && !(rest & 3) && pad <= rest &&
           (!rest || (info->properties & OPCODE_HAS_PAYLOAD));
}

int codec_decode(const void *bytes, size_t length, struct packet *ret_packet)
{
    struct cursor_in in = {.at = bytes, .end = (const uint8_t *)bytes + length}, ahead = in;
    uint32_t first = cursor_get32(&ahead);
    const struct opcode_info *info = &opcode_table[first >> 24];

    if (length < BTH_LENGTH || length > UINT32_MAX || BTH_VERSION(first) != 0 ||
        (info->name && !is_well_formed(info, length, BTH_PAD(first))))
        return -EPROTO;
    packet_clear(ret_packet);
    get_bth(&in, ret_packet);
    if (!info->name)
        return -EPROTONOSUPPORT;
    if (info->header_length != BTH_LENGTH)
        get_extensions(&in, info->properties, ret_packet);
    ret_packet->payload_length = (uint32_t)(in.end - in.at) - BTH_PAD(first);
    ret_packet->payload = ret_packet->payload_length ? in.at : NULL;
    return 0;
}

size_t codec_encode(const struct packet *packet, uint8_t ret_bytes[HEADER_LENGTH_MAX])
{
    const struct opcode_info *info = &opcode_table[packet->opcode];
    struct cursor_out out = {.at = ret_bytes, .end = ret_bytes + HEADER_LENGTH_MAX};

    if (!info->name)
        return 0;
    put_bth(&out, packet);
    if (info->header_length != BTH_LENGTH)
        put_extensions(&out, info->properties, packet);
    return (size_t)(out.at - ret_bytes);
}

void codec_encode_cnp(uint32_t dest_qpn, uint8_t ret_bytes[CNP_LENGTH])
{
    struct cursor_out out = {.at = ret_bytes, .end = ret_bytes + CNP_LENGTH};

    memset(ret_bytes, 0, CNP_LENGTH);
    cursor_put32(&out, (uint32_t)OPCODE_CNP << 24 | CNP_PKEY);
    cursor_put32(&out, BTH_BECN | (dest_qpn & BTH_NUMBER));
}
