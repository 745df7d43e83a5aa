/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Inputs to start from. */
#include "fuzz_qp_parts.h"

#include <string.h>

#include "wire/codec.h"

void fuzz_write(struct fuzz_writer *writer, const void *bytes, size_t length)
{
    require(writer->length + length <= sizeof(writer->bytes));
    memcpy(writer->bytes + writer->length, bytes, length);
    writer->length += length;
}

static void write16(struct fuzz_writer *writer, uint32_t value)
{
    fuzz_write(writer, (uint8_t[]){(uint8_t)(value >> 8), (uint8_t)value}, 2);
}

static void write_packet(struct fuzz_writer *writer, uint8_t opcode, int psn, uint8_t syndrome, uint32_t srqn,
                         uint32_t length)
{
    struct packet packet = {
        .opcode = opcode,
        .flags = PACKET_ACK_REQUEST,
        .dest_qpn = 0x11,
        .psn = psn_make((uint16_t)psn),
        .syndrome = syndrome,
        .srqn = srqn,
        .dma_length = length,
        .payload_length = opcode_table[opcode].properties & OPCODE_HAS_PAYLOAD ? length : 0,
    };
    uint8_t bytes[HEADER_LENGTH_MAX];
    size_t headers = codec_encode(&packet, bytes);

    fuzz_write(writer, bytes, headers);
    write16(writer, packet.payload_length + codec_pad(packet.payload_length));
}

void fuzz_write_packet(struct fuzz_writer *writer, uint8_t opcode, int psn, uint8_t syndrome, uint32_t length)
{
    fuzz_write(writer, (uint8_t[]){EVENT_PACKET}, 1);
    write_packet(writer, opcode, psn, syndrome, 0, length);
}

void fuzz_write_xrc(struct fuzz_writer *writer, uint8_t opcode, int psn, uint32_t srqn, uint32_t length)
{
    fuzz_write(writer, (uint8_t[]){EVENT_PACKET}, 1);
    write_packet(writer, opcode, psn, 0x1f, srqn, length);
}

void fuzz_write_answer(struct fuzz_writer *writer, uint8_t choice, uint8_t opcode, int psn, uint8_t syndrome,
                       uint32_t length)
{
    fuzz_write(writer, (uint8_t[]){EVENT_CONGESTED, choice}, 2);
    if (choice < 200)
        write_packet(writer, opcode, psn, syndrome, 0, length);
}

void fuzz_write_receive(struct fuzz_writer *writer, uint32_t length)
{
    fuzz_write(writer, (uint8_t[]){EVENT_RECEIVE, 1, MEMORY_ALL}, 3);
    write16(writer, length);
    fuzz_write(writer, (uint8_t[]){0}, 1);
}

void fuzz_write_send(struct fuzz_writer *writer, uint8_t opcode, uint32_t length)
{
    fuzz_write(writer, (uint8_t[]){EVENT_SEND, opcode, WQE_SIGNALED, MEMORY_ALL, MEMORY_ALL}, 5);
    write16(writer, length);
    fuzz_write(writer, (uint8_t[]){0}, 1);
}

void fuzz_write_time(struct fuzz_writer *writer)
{
    fuzz_write(writer, (uint8_t[]){EVENT_TIMER, 12}, 2);
}
