/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ibv_open_qp() between processes (object/xrc/open_qp.h). */
#ifndef ENGINE_XRC_REMOTE_OPEN_H
#define ENGINE_XRC_REMOTE_OPEN_H

#include "local/local.h"
#include "object/xrc/open_qp.h"

struct lane_state;

/* Messages between the process of a handle (client) and the process with the QP (owner): the payload of a packet with
 * PACKET_REMOTE_OPEN, a format between processes. */
/* Kinds beside those of enum qp_request: the owner's reply to a request; the client's close, without reply; an
 * asynchronous event of the QP, from the owner. */
enum remote_open_kind { REMOTE_OPEN_REPLY = 16, REMOTE_OPEN_CLOSE, REMOTE_OPEN_EVENT };
struct remote_open_message {
    uint32_t kind;
    int32_t error;                 /* REPLY: 0 or -errno */
    uint64_t call;                 /* the client's number of a request, repeated in the reply */
    uint64_t name;                 /* the client's number of the handle */
    uint64_t device, inode;        /* OPEN: of the XRC domain's file */
    uint32_t qpn, ifindex;         /* ifindex, OPEN: network interface of the client's device */
    int32_t mask;                  /* MODIFY, QUERY: of attributes */
    uint32_t event;                /* EVENT: enum ibv_event_type */
    struct ibv_qp_attr attributes; /* MODIFY; REPLY to QUERY */
};

/* A packet with PACKET_REMOTE_OPEN. */
void remote_open_receive(struct lane *lane, const struct packet *packet);
/* qp_ports */
int remote_open_qp(struct qp *handle);
int remote_open_request(struct qp *handle, enum qp_request request, struct ibv_qp_attr *attributes, int mask);
void remote_open_close(struct qp *handle);
void remote_open_send_event(const struct qp_opener *opener, uint32_t qpn, enum ibv_event_type type);
/* The lane has space again; the lane is down; the link is down. In the latter two, no thread can find it any more. */
void remote_open_lane_writable(struct lane *lane, struct lane_state *state);
void remote_open_lane_down(struct lane_state *state);
void remote_open_link_down(uint64_t serial);
/* local_ops.resolved */
void remote_open_resolved(uint32_t block, const struct link *link);
void remote_open_after_fork_in_child(void);

#endif
