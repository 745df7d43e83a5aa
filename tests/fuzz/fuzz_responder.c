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

    for (unsigned opcode = 0; opcode < 256; opcode++) {
        struct fuzz_writer writer = {.length = 0};
        uint8_t type = BTH_SERVICE(opcode) == SERVICE_UD ? 3 : BTH_SERVICE(opcode) == SERVICE_UC ? 2 : 0;

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
        for (uint8_t type = 0; type < 3; type += 2) {
            struct fuzz_writer writer = {.length = 0};
            uint8_t service = type ? SERVICE_UC : SERVICE_RC;

            fuzz_write(&writer, &type, 1);
            fuzz_write_receive(&writer, 2000);
            for (unsigned j = 0; j < 3; j++)
                fuzz_write_packet(&writer, service | kinds[i][j], 0, 0x1f, j == 2 ? 8 : 256);
            fuzz_write_packet(&writer, service | kinds[i][0], -3, 0x1f, 256);
            fuzz_write_packet(&writer, service | kinds[i][0], 2, 0x1f, 256);
            add(writer.bytes, writer.length);
        }
    }
}
