/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The whole responder, and the receiving side of UC and UD: any requests, in any order and state. */
#include "fuzz_qp.h"
#include "wire/opcode.h"

static psn_t expected(const struct fuzz_qp *qp)
{
    return qp->record.responder.expected_psn;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz_qp qp;

    if (!size || size > 4096)
        return 0;
    fuzz_qp_begin(&qp, data, size);
    while (fuzz_qp_step(&qp, expected))
        ;
    fuzz_qp_end(&qp);
    return 0;
}

static uint8_t type_of(unsigned opcode)
{
    switch (BTH_SERVICE(opcode)) {
    case SERVICE_UD:
        return 3;
    case SERVICE_UC:
        return 2;
    case SERVICE_XRC:
        return 5;
    default:
        return 0;
    }
}

/* XRC: a message and a READ for one process, another message for the next, with each kind of answer. */
static void add_relayed(fuzz_add *add, uint8_t answer, uint8_t syndrome, uint32_t length)
{
    static const uint8_t choices[] = {0, 1, 190, 200, 250};

    for (unsigned i = 0; i < array_size(choices); i++) {
        struct fuzz_writer writer = {.length = 0};
        uint8_t type = type_of(SERVICE_XRC);

        fuzz_write(&writer, &type, 1);
        fuzz_write_xrc(&writer, SERVICE_XRC | OP_READ_REQUEST, 0, 1, 256);
        fuzz_write_xrc(&writer, SERVICE_XRC | OP_WRITE_FIRST, 0, 1, 256);
        fuzz_write_answer(&writer, choices[i], SERVICE_XRC | answer, 0, syndrome, length);
        fuzz_write_xrc(&writer, SERVICE_XRC | OP_SEND_FIRST, 0, 2, 256);
        fuzz_write_answer(&writer, choices[i], SERVICE_XRC | answer, 0, syndrome, length);
        fuzz_write_xrc(&writer, SERVICE_XRC | OP_SEND_LAST, 0, 2, 8);
        fuzz_write_xrc(&writer, SERVICE_XRC | OP_READ_REQUEST, -2, 1, 256);
        fuzz_write_answer(&writer, choices[i], SERVICE_XRC | answer, -1, syndrome, length);
        add(writer.bytes, writer.length);
    }
}

/* Every opcode alone, and messages of two and three packets of each kind. */
void fuzz_seeds(fuzz_add *add)
{
    static const uint8_t kinds[][3] = {
        {OP_SEND_FIRST, OP_SEND_MIDDLE, OP_SEND_LAST},
        {OP_SEND_FIRST, OP_SEND_MIDDLE, OP_SEND_LAST_INVALIDATE},
        {OP_WRITE_FIRST, OP_WRITE_MIDDLE, OP_WRITE_LAST},
        {OP_WRITE_FIRST, OP_WRITE_MIDDLE, OP_WRITE_LAST_IMM},
        {OP_READ_REQUEST, OP_COMPARE_SWAP, OP_FETCH_ADD},
    };

    static const uint8_t syndromes[] = {0x1f, 0, 0x2c, 0x60, 0x61, 0x62, 0x63, 0x40};

    for (unsigned opcode = 0; opcode < 256; opcode++) {
        struct fuzz_writer writer = {.length = 0};
        uint8_t type = type_of(opcode);

        if (!opcode_table[opcode].name)
            continue;
        fuzz_write(&writer, &type, 1);
        fuzz_write_receive(&writer, 2000);
        fuzz_write_packet(&writer, (uint8_t)opcode, 0, 0x1f,
                          opcode_table[opcode].properties & OPCODE_ONLY ? 8 : 256);
        fuzz_write_packet(&writer, (uint8_t)opcode, -1, 0x1f, 8);
        add(writer.bytes, writer.length);
    }
    for (unsigned i = 0; i < array_size(kinds); i++) {
        static const uint8_t services[] = {SERVICE_RC, SERVICE_UC, SERVICE_XRC};

        for (unsigned which = 0; which < array_size(services); which++) {
            struct fuzz_writer writer = {.length = 0};
            uint8_t service = services[which], type = type_of(service);

            fuzz_write(&writer, &type, 1);
            fuzz_write_receive(&writer, 2000);
            for (unsigned j = 0; j < 3; j++)
                fuzz_write_packet(&writer, service | kinds[i][j], 0, 0x1f, j == 2 ? 8 : 256);
            fuzz_write_packet(&writer, service | kinds[i][0], -3, 0x1f, 256);
            fuzz_write_packet(&writer, service | kinds[i][0], 2, 0x1f, 256);
            add(writer.bytes, writer.length);
        }
    }
    for (unsigned i = 0; i < array_size(syndromes); i++)
        add_relayed(add, OP_ACKNOWLEDGE, syndromes[i], 0);
    add_relayed(add, OP_READ_RESPONSE_ONLY, 0x1f, 256);
    add_relayed(add, OP_READ_RESPONSE_FIRST, 0x1f, 300);
    add_relayed(add, OP_ATOMIC_ACKNOWLEDGE, 0x1f, 0);
}
