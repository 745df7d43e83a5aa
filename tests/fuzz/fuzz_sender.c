/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The whole sender: any answers to whatever was posted, at any time. */
#include "fuzz_qp.h"
#include "wire/opcode.h"

static psn_t unacknowledged(const struct fuzz_qp *qp)
{
    return qp->record.sender.unacked_psn;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct fuzz_qp qp;

    if (!size || size > 4096)
        return 0;
    fuzz_qp_begin(&qp, data, size);
    while (fuzz_qp_step(&qp, unacknowledged))
        ;
    fuzz_qp_end(&qp);
    return 0;
}

static void add_answered(fuzz_add *add, uint8_t opcode, uint32_t length, uint8_t answer, uint8_t syndrome)
{
    struct fuzz_writer writer = {.length = 0};
    uint8_t choice = 0xc0;

    fuzz_write(&writer, &choice, 1);
    fuzz_write_send(&writer, opcode, length);
    fuzz_write_send(&writer, IBV_WR_RDMA_WRITE, 600);
    fuzz_write_packet(&writer, answer, 0, syndrome, length > 256 ? 256 : length);
    fuzz_write_packet(&writer, answer, 1, syndrome, length > 256 ? length - 256 : 0);
    fuzz_write_time(&writer);
    fuzz_write_packet(&writer, OP_ACKNOWLEDGE, 2, 0x1f, 0);
    add(writer.bytes, writer.length);
}

/* Every work request, with an acknowledgement, each kind of NAK, and its answer. */
void fuzz_seeds(fuzz_add *add)
{
    static const uint8_t syndromes[] = {0x1f, 0, 5, 0x2c, 0x60, 0x61, 0x62, 0x63, 0x64, 0x40};

    for (uint8_t opcode = IBV_WR_RDMA_WRITE; opcode <= IBV_WR_SEND_WITH_INV; opcode++) {
        for (unsigned i = 0; i < array_size(syndromes); i++)
            add_answered(add, opcode, 600, OP_ACKNOWLEDGE, syndromes[i]);
    }
    add_answered(add, IBV_WR_RDMA_READ, 600, OP_READ_RESPONSE_FIRST, 0x1f);
    add_answered(add, IBV_WR_RDMA_READ, 600, OP_READ_RESPONSE_MIDDLE, 0x1f);
    add_answered(add, IBV_WR_RDMA_READ, 256, OP_READ_RESPONSE_ONLY, 0x1f);
    add_answered(add, IBV_WR_RDMA_READ, 300, OP_READ_RESPONSE_LAST, 0x1f);
    add_answered(add, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, OP_ATOMIC_ACKNOWLEDGE, 0x1f);
    add_answered(add, IBV_WR_ATOMIC_CMP_AND_SWP, 8, OP_ATOMIC_ACKNOWLEDGE, 0x60);
}
