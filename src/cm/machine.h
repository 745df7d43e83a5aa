/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Interfaces between the files of src/cm.
 *
 *   cm.c        comm ids, state changes, sending, retries, death of peers, queries
 *   table.c     hash tables of ids
 *   deadline.c  pairing heap of deadlines
 *   receive.c   finds id and handler of a MAD; responds to unknown comm ids
 *   connect.c   REQ, REP, RTU, MRA of both sides
 *   leave.c     REJ, DREQ, DREP, timewait
 *   resolve.c   SIDR
 *
 * Functions that may finish an id say so: the user may free or reuse the id during the call. */
#ifndef CM_MACHINE_H
#define CM_MACHINE_H

#include <string.h>

#include "cm/cm.h"

#define QPN_FIRST 2u /* 0 and 1 are QP0 and QP1, 0xffffff is the multicast QPN */
#define QPN_LAST  0xfffffeu

/* Bounds for times that a peer requests, as CM time codes. Values beyond are clamped. */
#define RESPONSE_CODE_MIN 14u            /* 67 ms; interval of REP retries */
#define RESPONSE_CODE_MAX 21u            /* 8.6 s */
#define MRA_CODE_MAX      24u            /* 69 s */
#define LIFETIME_CODE_MAX 19u            /* 2.1 s */
#define MRAS_MAX          32             /* accepted per id */
#define LINGER_MAX_NS     (8 * NS_PER_S) /* after our REJ or SIDR_REP, to respond to repeated requests */

static inline ns_t code_time(unsigned code)
{
    return 4096ull << code;
}

static inline unsigned bounded(unsigned code, unsigned low, unsigned high)
{
    return code < low ? low : code > high ? high : code;
}

static inline bool qpn_is_valid(uint32_t qpn)
{
    return qpn >= QPN_FIRST && qpn <= QPN_LAST;
}

static inline bool from_peer(const struct cm_id *id, const struct cm_path *from)
{
    return !memcmp(id->path.remote_gid, from->remote_gid, sizeof(from->remote_gid));
}

/* Predicates for pairs of states that differ only by an MRA. */
static inline bool awaits_reply(const struct cm_id *id)
{
    return id->state == CM_STATE_REQ_SENT || id->state == CM_STATE_MRA_REQ_RCVD;
}

static inline bool has_request(const struct cm_id *id)
{
    return id->state == CM_STATE_REQ_RCVD || id->state == CM_STATE_MRA_REQ_SENT;
}

static inline bool awaits_rtu(const struct cm_id *id)
{
    return id->state == CM_STATE_REP_SENT || id->state == CM_STATE_MRA_REP_RCVD;
}

static inline bool has_reply(const struct cm_id *id)
{
    return id->state == CM_STATE_REP_RCVD || id->state == CM_STATE_MRA_REP_SENT;
}

/* --- table.c ---------------------------------------------------------------------------------------- */

struct cm_id *table_local(struct cm *cm, uint32_t local_comm_id);
struct cm_id *table_remote(struct cm *cm, const uint8_t gid[16], uint32_t comm_id, bool datagram);
/* The connection of that process with that QP. Processes of one host have GIDs in common. */
struct cm_id *table_qpn(struct cm *cm, const struct cm_path *from, uint32_t qpn);
/* Keys: local_comm_id; remote_comm_id and path; remote_qpn and path. */
void table_add_local(struct cm *cm, struct cm_id *id);
void table_add_remote(struct cm *cm, struct cm_id *id);
void table_add_qpn(struct cm *cm, struct cm_id *id);
void table_remove(struct cm_link *link);

/* --- deadline.c ------------------------------------------------------------------------------------- */

void deadline_set(struct cm *cm, struct cm_id *id, ns_t at);
void deadline_cancel(struct cm *cm, struct cm_id *id);

/* --- cm.c ------------------------------------------------------------------------------------------- */

/* Allocates a comm id: 0 or -ENOSPC. */
int allocate_comm_id(struct cm *cm, uint32_t *ret_comm_id);
void release_comm_id(struct cm *cm, uint32_t comm_id);
/* Zeroes an id and initializes its links. */
void clear_id(struct cm_id *id);
void enter(struct cm *cm, struct cm_id *id, enum cm_state state);
/* Reports an event unless the id is closed. */
void report_event(struct cm *cm, struct cm_id *id, const struct cm_event *event);
/* Removes the id from all tables and makes it idle, then reports the event, if any, or calls released(). Finishes the
 * id. */
void finish(struct cm *cm, struct cm_id *id, const struct cm_event *event);
/* Encodes and sends a message and keeps it for retransmission. */
void send_and_keep(struct cm *cm, struct cm_id *id, const struct cm_mad *mad);
void send_again(struct cm *cm, struct cm_id *id);
/* The same, with retries every `interval`. */
void send_with_retries(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now);
/* A message of this id with attribute, transaction id and comm ids set. */
struct cm_mad message_of(const struct cm_id *id, enum cm_attribute attribute);
/* Sets the private data; false if it does not fit. */
bool put_private(struct cm_mad *mad, const void *data, size_t length);

/* --- connect.c -------------------------------------------------------------------------------------- */

int on_req(struct cm *cm, const struct cm_path *from, const struct cm_mad *mad, ns_t now);
int on_rep(struct cm *cm, struct cm_id *id, const struct cm_path *from, const struct cm_mad *mad, ns_t now);
int on_rtu(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now);
/* Passive side: RTU received, or data or a DREQ that imply it. */
void established(struct cm *cm, struct cm_id *id);
int on_mra(struct cm *cm, struct cm_id *id, const struct cm_path *from, const struct cm_mad *mad, ns_t now);

/* --- leave.c ---------------------------------------------------------------------------------------- */

/* Enters timewait, also to repeat a REJ or SIDR_REP. May finish the id. */
void linger(struct cm *cm, struct cm_id *id, enum cm_state state, ns_t duration, ns_t now);
/* Time during which the peer may still repeat its request. */
ns_t peer_retry_time(const struct cm_id *id);
/* Sends a REJ that refers to the message of the current state. */
void send_rej(struct cm *cm, struct cm_id *id, enum cm_reason reason, const void *private_data,
              size_t private_length);
void send_dreq(struct cm *cm, struct cm_id *id, ns_t now);
/* Reports DISCONNECTED and enters timewait. May finish the id. */
void disconnected(struct cm *cm, struct cm_id *id, int status, ns_t now);
int on_rej(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now);
int on_dreq(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now);
int on_drep(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now);
/* At cm_close() the process may be about to exit. It can then neither respond to a repeated DREQ nor repeat its own,
 * so each of these sends one more message in advance. Not for local peers, which cm_peer_gone() notifies. */
void send_final_drep(struct cm *cm, struct cm_id *id);
void send_final_dreq(struct cm *cm, struct cm_id *id);
/* All retries of a message are used up. May finish the id. */
void retries_exhausted(struct cm *cm, struct cm_id *id, ns_t now);

/* --- receive.c -------------------------------------------------------------------------------------- */

/* Reply to the sender of `mad` without an id. */
void respond_rej(struct cm *cm, const struct cm_path *to, const struct cm_mad *mad, enum cm_reason reason);
void respond_drep(struct cm *cm, const struct cm_path *to, const struct cm_mad *mad);

/* --- resolve.c -------------------------------------------------------------------------------------- */

int on_sidr_req(struct cm *cm, const struct cm_path *from, const struct cm_mad *mad, ns_t now);
int on_sidr_rep(struct cm *cm, struct cm_id *id, const struct cm_mad *mad);
/* Sends a SIDR_REP and lingers. May finish the id. */
void send_sidr_rep(struct cm *cm, struct cm_id *id, enum cm_sidr_status status, uint32_t qpn, uint32_t qkey,
                   const void *private_data, size_t private_length, ns_t now);

#endif
