/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Work requests and completions of an end. */
#ifndef TESTS_SUPPORT_WORK_H
#define TESTS_SUPPORT_WORK_H

#include "end.h"

enum { WORK_SGES = 8, WORK_LIST = 128 };

/* Work requests as values: the pointers wr.next and wr.sg_list are filled in where it is posted. */
struct send {
    struct ibv_send_wr wr;
    struct ibv_sge sge[WORK_SGES];
};

struct recv {
    struct ibv_recv_wr wr;
    struct ibv_sge sge[WORK_SGES];
};

enum queue { SQ, RQ };

/* Signaled, one SGE of the end's own buffer (none if length is 0) */
struct send a_send(const struct end *end, uint64_t id, size_t offset, size_t length);
struct send a_send_imm(const struct end *end, uint64_t id, size_t offset, size_t length, uint32_t imm);
struct send a_write(const struct end *end, uint64_t id, size_t offset, size_t length, const struct end *to,
                    size_t at);
struct send a_read(const struct end *end, uint64_t id, size_t offset, size_t length, const struct end *from,
                   size_t at);
struct send a_cas(const struct end *end, uint64_t id, size_t offset, const struct end *to, size_t at,
                  uint64_t compare, uint64_t swap);
struct send a_fetch_add(const struct end *end, uint64_t id, size_t offset, const struct end *to, size_t at,
                        uint64_t add);
struct send a_datagram(const struct end *end, uint64_t id, size_t offset, size_t length,
                       const struct end *to);
struct send unsignaled(struct send send);
struct send with_flags(struct send send, unsigned int flags);
struct recv a_recv(const struct end *end, uint64_t id, size_t offset, size_t length);
/* A signaled request of ibv_wr_*(3) begins, by the thread that calls. Its QP is the end's, with send_ops. */
struct ibv_qp_ex *begin_signaled(const struct end *end, uint64_t id);

/* 0 or errno; *ret_posted: how many were posted before the failing one */
int end_try_send(struct end *end, const struct send *sends, unsigned int count, unsigned int *ret_posted);
int end_try_recv(struct end *end, const struct recv *recvs, unsigned int count, unsigned int *ret_posted);

/* … which must succeed. recv goes to the SRQ of an end that has one. */
void end_send(struct end *end, struct send send);
void end_send_list(struct end *end, const struct send *sends, unsigned int count);
void end_recv(struct end *end, struct recv recv);

/* Polls until that many completions are there. count ≤ 256 */
void end_poll(struct end *end, enum queue queue, struct ibv_wc *wc, unsigned int count);
struct ibv_wc end_wc(struct end *end, enum queue queue);
/* One poll, no waiting; the number of completions */
int end_poll_once(struct end *end, enum queue queue, struct ibv_wc *wc, unsigned int count);

struct ibv_wc end_expect_success(struct end *end, enum queue queue, uint64_t id, enum ibv_wc_opcode opcode);
struct ibv_wc end_expect_status(struct end *end, enum queue queue, uint64_t id, enum ibv_wc_status status);
void check_success(const struct ibv_wc *wc, uint64_t id, enum ibv_wc_opcode opcode);
void check_status(const struct ibv_wc *wc, uint64_t id, enum ibv_wc_status status);

/* Peers of the process can map its memory at that address (docs/mapped.md). */
bool is_mapped(pid_t pid, const void *address);

/* A SEND of a that b receives: everything that a did before has had its effect. Uses 8 bytes at the end of
 * the buffers. */
void pair_marker(struct end *a, struct end *b);

#endif
