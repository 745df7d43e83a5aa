/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of cm share among themselves; nobody else includes it.
 *
 *   cm.c        the machine: blocks, the end of an id, deadlines, what an id knows
 *   table.c     finding ids
 *   deadline.c  the heap of deadlines
 *   receive.c   MAD -> id and handler; what is answered to strangers
 *   connect.c   REQ, REP, RTU, MRA, both sides
 *   leave.c     REJ, DREQ, DREP, timewait
 *   resolve.c   SIDR
 *
 * A function that may end an id says so; after it the id may be anybody's. */
#ifndef CM_MACHINE_H
#define CM_MACHINE_H

#include <string.h>

#include "cm/cm.h"

#define DEFAULT_PKEY 0xffff
#define QPN_FIRST    2u /* 0 and 1 are the port's, 0xffffff is the multicast QP */
#define QPN_LAST     0xfffffeu

/* What a peer may make us wait (codes of CM time); its numbers beyond are taken as these. */
#define RESPONSE_CODE_MIN 14u            /* 67 ms: REP is repeated after that */
#define RESPONSE_CODE_MAX 21u            /* 8.6 s */
#define MRA_CODE_MAX      24u            /* 69 s */
#define LIFETIME_CODE_MAX 19u            /* 2.1 s */
#define MRAS_MAX          32             /* that one id heeds */
#define LINGER_MAX_NS     (8 * NS_PER_S) /* after a REJ or SIDR_REP of ours: for requests that are repeated */

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

/* Pairs of states that differ only by whether time was asked for. */
static inline bool awaits_reply(const struct cm_id *id)
{
    return id->state == CM_STATE_REQ_SENT || id->state == CM_STATE_MRA_REQ_RCVD;
}

static inline bool is_asked(const struct cm_id *id)
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
struct cm_id *table_qpn(struct cm *cm, const uint8_t gid[16], uint32_t qpn);
/* By what the id knows: local_comm_id; remote_comm_id and path; remote_qpn and path. */
void table_add_local(struct cm *cm, struct cm_id *id);
void table_add_remote(struct cm *cm, struct cm_id *id);
void table_add_qpn(struct cm *cm, struct cm_id *id);
void table_remove(struct cm_link *link);

/* --- deadline.c ------------------------------------------------------------------------------------- */

void deadline_set(struct cm *cm, struct cm_id *id, ns_t at);
void deadline_cancel(struct cm *cm, struct cm_id *id);

/* --- cm.c ------------------------------------------------------------------------------------------- */

/* A comm id that nobody has: 0 or -ENOSPC. */
int take_comm_id(struct cm *cm, uint32_t *ret_comm_id);
void put_back_comm_id(struct cm *cm, uint32_t comm_id);
/* Empty, with its links in order. */
void clear_id(struct cm_id *id);
void enter(struct cm *cm, struct cm_id *id, enum cm_state state);
/* If the owner wants to know. */
void tell(struct cm *cm, struct cm_id *id, const struct cm_event *event);
/* Back to idle: out of all tables; then the event, if there is one, or released(). Ends the id. */
void finish(struct cm *cm, struct cm_id *id, const struct cm_event *event);
/* Encodes, sends, and keeps it as what is repeated. */
void send_and_keep(struct cm *cm, struct cm_id *id, const struct cm_mad *mad);
void send_again(struct cm *cm, struct cm_id *id);
/* The same, every `interval` until there is an answer or no attempt is left. */
void send_until_answered(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now);
/* A message about this id: attribute, transaction and comm ids. */
struct cm_mad message_of(const struct cm_id *id, enum cm_attribute attribute);
/* Copies; false if it is longer than the message has room for. */
bool put_private(struct cm_mad *mad, const void *data, size_t length);

/* --- connect.c -------------------------------------------------------------------------------------- */

int on_req(struct cm *cm, const struct cm_path *from, const struct cm_mad *mad, ns_t now);
int on_rep(struct cm *cm, struct cm_id *id, const struct cm_path *from, const struct cm_mad *mad, ns_t now);
int on_rtu(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now);
/* Passive side: the RTU, or what says the same. */
void established(struct cm *cm, struct cm_id *id);
int on_mra(struct cm *cm, struct cm_id *id, const struct cm_path *from, const struct cm_mad *mad, ns_t now);

/* --- leave.c ---------------------------------------------------------------------------------------- */

/* Timewait, or lingering after a REJ. May end the id. */
void linger(struct cm *cm, struct cm_id *id, enum cm_state state, ns_t duration, ns_t now);
/* How long requests of the peer may still be repeated. */
ns_t repeats_of_peer(const struct cm_id *id);
/* REJ, with what the state says it is about. */
void send_rej(struct cm *cm, struct cm_id *id, enum cm_reason reason, const void *private_data,
              size_t private_length);
void send_dreq(struct cm *cm, struct cm_id *id, ns_t now);
/* -> timewait, with DISCONNECTED. May end the id. */
void disconnected(struct cm *cm, struct cm_id *id, int status, ns_t now);
int on_rej(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now);
int on_dreq(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now);
int on_drep(struct cm *cm, struct cm_id *id, const struct cm_mad *mad, ns_t now);
/* The owner closes an id, and its process may end: then nobody is there who could answer the peer's DREQ
 * again, or repeat ours. On this host the carriage tells the peer that the process is gone. */
void say_drep_again(struct cm *cm, struct cm_id *id);
void say_dreq_again(struct cm *cm, struct cm_id *id);
/* Nobody answered. May end the id. */
void gave_up(struct cm *cm, struct cm_id *id, ns_t now);

/* --- receive.c -------------------------------------------------------------------------------------- */

/* To whoever sent `mad`, of whom no id knows. */
void answer_rej(struct cm *cm, const struct cm_path *to, const struct cm_mad *mad, enum cm_reason reason);
void answer_drep(struct cm *cm, const struct cm_path *to, const struct cm_mad *mad);

/* --- resolve.c -------------------------------------------------------------------------------------- */

int on_sidr_req(struct cm *cm, const struct cm_path *from, const struct cm_mad *mad, ns_t now);
int on_sidr_rep(struct cm *cm, struct cm_id *id, const struct cm_mad *mad);
/* May end the id. */
void sidr_answer(struct cm *cm, struct cm_id *id, enum cm_sidr_status status, uint32_t qpn, uint32_t qkey,
                 const void *private_data, size_t private_length, ns_t now);

#endif
