/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Public header of the room: what a published segment (segment/segment.h) says, in words. Each question is
 * answered by a paragraph whose first line names the cause, with indented detail below it, or by one JSON
 * object on one line with the same facts ("cause" is the first line).
 *
 * Nothing here follows a pointer of the segment, takes a lock or calls into the process that is shown:
 * the same functions serve the process itself (engine/core/explainer.c) and `softhca ps` and `softhca why`, which
 * show another one: running, stopped or hostile.
 */
#ifndef EXPLAIN_EXPLAIN_H
#define EXPLAIN_EXPLAIN_H

#include "explain/objects.h"
#include "explain/out.h"
#include "explain/view.h"

/* Each returns false, and writes nothing, if there is nothing to report (any more). */

/* busy.c: why is its destroy refused, and which objects use it? */
bool explain_busy(const struct view *view, struct out *out, enum object_kind kind, uint32_t number);
/* busy.c: an MR is being deregistered; which work requests name it? */
bool explain_in_use(const struct view *view, struct out *out, uint32_t number);

/* blocked.c: what does its destroy wait for, and what ended the wait? */
bool explain_blocked(const struct view *view, struct out *out, enum object_kind kind, uint32_t number);
bool explain_resumed(const struct view *view, struct out *out, enum object_kind kind, uint32_t number);

/* losses.c: what would its destroy drop? Called before the destroy. */
bool explain_losses(const struct view *view, struct out *out, enum object_kind kind, uint32_t number);
/* losses.c: a CQ overran; which completion was lost? */
bool explain_overrun(const struct view *view, struct out *out, uint32_t number);
/* fault.c: what sent a QP to ERR, or to SQE? */
bool explain_fault(const struct view *view, struct out *out, uint32_t number);
/* "went to ERR 0.4 s ago: ..."; false: it did not, and nothing is added. */
bool words_add_fault(const struct view *view, struct words *words, const struct object *qp);
/* fault.c: why a QP whose path is PATH_PORT_DOWN gets no answer. */
void words_add_port_down(struct words *words);
/* fault_keys.c: causes in a key or its memory. false: the cause is another one, and nothing is added. */
bool words_add_key_reason(const struct view *view, struct words *words, const struct fault_record *fault);
void words_add_access(struct words *words, uint64_t flags);
/* injected.c: a fault of inject/plan.h has struck, or never did. */
struct inject_strike;
bool explain_strike(const struct view *view, struct out *out, const struct inject_strike *strike);
/* nak.c: which causes a NAK of the peer can have. */
const char *name_nak(uint64_t code);
void words_add_nak(struct words *words, const struct object *qp);
/* limits.c: values that the ends have to agree on, of a request that `responder` has refused. requester: NULL if it
 * cannot be read. */
void words_add_too_many_reads(struct words *words, const struct object *requester,
                              const struct object *responder);
void words_add_packet_length(struct words *words, const struct object *requester,
                             const struct object *responder);
uint32_t qp_mtu_bytes(const struct object *qp);
/* fault.c: the segment of the process at the other end; NULL: it is not known, or cannot be looked at. */
const struct view *peer_view(const struct view *view, const struct qp_record *qp);
/* limits.c: "3 tries of at least 4.2 ms (timeout 10, retry_cnt 2)" */
void words_add_tries(struct words *words, const struct qp_attributes *attributes);
/* losses.c: objects that are left in a context that is being closed; NO_OBJECT: in all of them, at the end of
 * the process. */
bool explain_leaks(const struct view *view, struct out *out, uint32_t context);

/* misuse.c: a call with a destroyed object; all of them, which returns their number. */
bool explain_misuse(const struct view *view, struct out *out, uint32_t number);
unsigned explain_misuses(const struct view *view, struct out *out);

/* drops.c: datagrams that a QP dropped for that reason; for all reasons; those that no QP of the process takes, and
 * those of its QPs that other processes dropped, which return how many explanations were made. */
bool explain_drops(const struct view *view, struct out *out, uint32_t number, enum drop_reason reason);
bool explain_drops_of(const struct view *view, struct out *out, const struct object *qp);
unsigned explain_strays(const struct view *view, struct out *out);
unsigned explain_far_drops(const struct view *view, struct out *out);
/* drops.c: requests that came for numbers that no process of the host owns, whoever has seen them. */
unsigned explain_host_drops(const struct view *view, struct out *out);

/* refused.c: a call that was refused; all of them that are recorded, which returns their number. */
bool explain_refusal(const struct view *view, struct out *out, uint32_t number);
unsigned explain_refusals(const struct view *view, struct out *out);
/* Those of calls for an object, by the number that programs know it by, as lines. */
void refusals_describe(const struct view *view, struct out *out, unsigned level, enum object_kind kind,
                       uint32_t number);

/* hangs.c (hangs.h): what nothing under way will end. */

/* work.c: where is the work request, and what does it wait for? qpn: only those of that QP; 0: of all.
 * Returns the number of places found; 0 is reported, too. */
unsigned explain_work(const struct view *view, struct out *out, uint64_t wr_id, uint32_t qpn);
/* wait.c: what does the send queue of a QP wait for? False: it is empty. */
bool words_add_sender(const struct view *view, struct words *words, const struct object *qp);

/* watched.c: of processes whose records are kept from outside (header.watched). What made a QP go to ERR? Its work
 * requests are not seen; a call for an object failed (call NULL: its destroy; detail NULL: why is not known). */
bool explain_failure(const struct view *view, struct out *out, uint32_t number);
bool explain_unseen(const struct view *view, struct out *out, uint32_t number);
bool explain_refused(const struct view *view, struct out *out, const char *call, enum object_kind kind,
                     uint32_t number, int error, const char *detail);
/* Its destroy waits because events were acknowledged too often. */
bool explain_overpaid(const struct view *view, struct out *out, const struct object *object);
/* What waits, or may be lost, because of this object? */
bool explain_watched_trouble(const struct view *view, struct out *out, const struct object *object);
bool words_add_watched_sender(const struct view *view, struct words *words, const struct object *qp);

/* process.c: everything about one object; what is stuck in the process; all objects. */
bool explain_object(const struct view *view, struct out *out, enum object_kind kind, uint32_t number);
void explain_process(const struct view *view, struct out *out);
/* all: no limit on how many of a kind are listed. */
void explain_list(const struct view *view, struct out *out, bool all);

/* --- among the files of the room */

/* The frame of an explanation: process, object, first line. In text, the caller adds the prefix (process). */
void explanation_begin(const struct view *view, struct out *out, const char *what, const char *cause);
void explanation_end(struct out *out);

/* Work requests that are not finished, by queue: for losses and for keys in use. */
struct wr_ids {
    uint64_t first, last; /* of the run that is being added */
    unsigned runs;
    uint64_t total;
    struct words words; /* "1, 5..9, 0x7f0000001000" */
};
void wr_ids_add(struct wr_ids *ids, uint64_t wr_id);
void wr_ids_finish(struct wr_ids *ids);

/* wait.c: "since 1.2 s: ibv_modify_qp() by thread 4242 (app)", or "since it was created, 1.2 s ago"; false: not
 * known. */
bool words_add_since(const struct view *view, struct words *words, const struct qp_record *qp);
/* wait.c: why the WQE that is next is not sent; who has to acknowledge what was sent, and when its last
 * packet came. */
void words_add_wait(const struct view *view, struct words *words, const struct qp_record *qp);
void words_add_awaited(const struct view *view, struct words *words, const struct qp_record *qp);
void words_add_heard(const struct view *view, struct words *words, const struct sender *sender);
bool sender_is_being_refused(const struct qp_record *qp);

/* queues.c: copies of queue entries; false if the queue does not lie in the segment. */
bool send_wqe_read(const struct view *view, const struct qp_record *qp, uint32_t counter,
                   struct send_wqe *ret);
/* Where a datagram goes. */
bool send_address_read(const struct view *view, const struct qp_record *qp, uint32_t counter,
                       struct path_address *ret);
/* Does one of count SGEs have this lkey, and a length: of those at an offset, and of a send that was read? */
bool sges_name_key(const struct view *view, uint64_t at, uint32_t count, uint32_t lkey);
bool send_names_key(const struct view *view, const struct qp_record *qp, uint32_t counter, uint32_t count,
                    uint32_t lkey);
bool receive_read(const struct view *view, const struct receive_queue *queue, uint32_t counter,
                  struct recv_wqe *ret);
bool srq_receive_read(const struct view *view, const struct srq_record *srq, uint32_t counter,
                      struct recv_wqe *ret);
bool cqe_read(const struct view *view, const struct cq_record *cq, uint32_t counter, struct cqe *ret);
/* Counters come from another process: the number of entries between them, at most what the queue can hold. */
uint32_t entries_between(uint32_t from, uint32_t to, uint32_t depth);
/* Slots that a queue of that depth has. */
uint32_t slots_for(uint32_t depth);

#endif
