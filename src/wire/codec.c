/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/codec.h"

#include <errno.h>

#include "wire/cursor.h"

/* Second byte of BTH (IBA 9.2.2-9.2.5): SE, MigReq, PadCnt, TVer. */
#define BTH_SOLICITED     0x80u
#define BTH_MIGRATED      0x40u
#define BTH_PAD(byte)     ((byte) >> 4 & 3u)
#define BTH_VERSION(byte) ((byte)&0x0fu)
#define BTH_ACK_REQUEST   0x80u

/* Returns the second byte, which has the pad count. */
static uint8_t get_bth(struct cursor_in *in, struct packet *packet)
{
    packet->opcode = cursor_get8(in);

    uint8_t byte = cursor_get8(in);

    packet->flags = byte & BTH_SOLICITED ? PACKET_SOLICITED : 0;
    packet->pkey = cursor_get16(in);
    cursor_get8(in); /* FECN, BECN, reserved: routers change them */
    packet->dest_qpn = cursor_get24(in);
    if (cursor_get8(in) & BTH_ACK_REQUEST)
        packet->flags |= PACKET_ACK_REQUEST;
    packet->psn = psn_make(cursor_get24(in));
    return byte;
}

static void put_bth(struct cursor_out *out, const struct packet *packet)
{
    /* Path migration has always "happened" where there is none; hardware checks the bit even in
     * acknowledgements. */
    uint8_t byte = BTH_MIGRATED;

    if (packet->flags & PACKET_SOLICITED)
        byte |= BTH_SOLICITED;
    byte |= (uint8_t)(codec_pad(packet->payload_length) << 4);
    cursor_put8(out, packet->opcode);
    cursor_put8(out, byte);
    cursor_put16(out, packet->pkey);
    cursor_put8(out, 0);
    cursor_put24(out, packet->dest_qpn);
    cursor_put8(out, packet->flags & PACKET_ACK_REQUEST ? BTH_ACK_REQUEST : 0);
    cursor_put24(out, packet->psn.value);
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
        packet->flush = (uint8_t)cursor_get32(in); /* above: reserved */
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
        packet->syndrome = cursor_get8(in);
        packet->msn = cursor_get24(in);
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
    if (properties & OPCODE_HAS_AETH) {
        cursor_put8(out, packet->syndrome);
        cursor_put24(out, packet->msn);
    }
    if (properties & OPCODE_HAS_ATOMIC_ACK)
        cursor_put64(out, packet->original);
    if (properties & OPCODE_HAS_IMM)
        cursor_copy_in(out, &packet->imm_data, sizeof(packet->imm_data));
    if (properties & OPCODE_HAS_INVALIDATE)
        cursor_put32(out, packet->invalidate_rkey);
}

int codec_decode(const void *bytes, size_t length, struct packet *ret_packet)
{
    struct cursor_in in = {.at = bytes, .end = (const uint8_t *)bytes + length};
    struct packet packet;

    packet_clear(&packet);
    if (length < BTH_LENGTH || length > UINT32_MAX)
        return -EPROTO;

    uint8_t byte = get_bth(&in, &packet);
    const struct opcode_info *info = &opcode_table[packet.opcode];
    uint32_t pad = BTH_PAD(byte);

    if (BTH_VERSION(byte) != 0)
        return -EPROTO;
    if (!info->name) {
        *ret_packet = packet;
        return -EPROTONOSUPPORT;
    }
    get_extensions(&in, info->properties, &packet);
    if (in.failed)
        return -EPROTO;

    /* Whole words, at least as many bytes as are padding, and none at all where the opcode carries nothing.
     */
    size_t rest = (size_t)(in.end - in.at);

    if ((rest & 3) || pad > rest || (rest && !(info->properties & OPCODE_HAS_PAYLOAD)))
        return -EPROTO;
    packet.payload_length = (uint32_t)rest - pad;
    packet.payload = packet.payload_length ? in.at : NULL;
    *ret_packet = packet;
    return 0;
}

size_t codec_encode(const struct packet *packet, uint8_t ret_bytes[HEADER_LENGTH_MAX])
{
    const struct opcode_info *info = &opcode_table[packet->opcode];
    struct cursor_out out = {.at = ret_bytes, .end = ret_bytes + HEADER_LENGTH_MAX};

    if (!info->name)
        return 0;
    put_bth(&out, packet);
    put_extensions(&out, info->properties, packet);
    return (size_t)(out.at - ret_bytes);
}
