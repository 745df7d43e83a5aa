/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One QP behind a link that loses packets, played by the input: what the peer sends (as bytes), what the
 * program posts, when the link is full and time passes. The owner's part is played here, and everything that
 * transport asks of it is checked. */
#ifndef TESTS_FUZZ_FUZZ_QP_H
#define TESTS_FUZZ_FUZZ_QP_H

#include "fuzz.h"
#include "transport/qp.h"

/* The input, byte by byte; zeros behind its end. */
struct fuzz_input {
    const uint8_t *at, *end;
};
uint8_t fuzz_take(struct fuzz_input *input);
uint32_t fuzz_take16(struct fuzz_input *input);

enum { FUZZ_MTU = 256, FUZZ_DEPTH = 16, FUZZ_SGE = 3, FUZZ_RESOURCES = 4, FUZZ_MEMORY = 4096 };

/* Memory: of the second kind nothing may be written, of the third nothing is lent to peers; the last is
 * registered nowhere. */
enum fuzz_memory { MEMORY_ALL, MEMORY_READ_ONLY, MEMORY_LOCAL, MEMORY_FOREIGN, MEMORY_COUNT };

struct fuzz_qp {
    struct transport_qp transport;
    struct qp_record record;
    struct qp_rare rare;
    struct responder_resource resources[FUZZ_RESOURCES];
    struct fuzz_input input;
    unsigned char *memory[MEMORY_COUNT];
    char *receives;
    uint32_t receives_posted, receives_taken;
    bool taken, link_full, timer_runs;
    unsigned plain_asked;
    ns_t now;
    uint32_t sends_completed;
    unsigned failures;
    uint32_t place;                                    /* XRC: the process that requests went to last */
    uint64_t bytes_in, bytes_out, answers, packets_in; /* bytes_out: but for answers to READs */
};

/* A QP in RTS, of a type and with attributes that the input chooses. */
void fuzz_qp_begin(struct fuzz_qp *qp, const uint8_t *data, size_t size);
/* One thing that happens; base: which of the QP's PSNs those of packets are relative to. false: the input is
 * at its end. */
bool fuzz_qp_step(struct fuzz_qp *qp, psn_t (*base)(const struct fuzz_qp *qp));
/* Whatever has happened: it comes to an end, and nothing was touched that must not be. */
void fuzz_qp_end(struct fuzz_qp *qp);

/* For seeds: an input that delivers these packets, the PSN of each relative to the base. */
struct fuzz_writer {
    uint8_t bytes[256];
    size_t length;
};
void fuzz_write(struct fuzz_writer *writer, const void *bytes, size_t length);
void fuzz_write_packet(struct fuzz_writer *writer, uint8_t opcode, int psn, uint8_t syndrome,
                       uint32_t length);
/* XRC: a request for an SRQ; and what another process says of one (hear_of_others()). */
void fuzz_write_xrc(struct fuzz_writer *writer, uint8_t opcode, int psn, uint32_t srqn, uint32_t length);
void fuzz_write_answer(struct fuzz_writer *writer, uint8_t choice, uint8_t opcode, int psn, uint8_t syndrome,
                       uint32_t length);
void fuzz_write_receive(struct fuzz_writer *writer, uint32_t length);
void fuzz_write_send(struct fuzz_writer *writer, uint8_t opcode, uint32_t length);
void fuzz_write_time(struct fuzz_writer *writer);

#endif
