/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ibv_open_qp() between processes (object/xrc/open_qp.h). */
#ifndef ENGINE_XRC_REMOTE_OPEN_H
#define ENGINE_XRC_REMOTE_OPEN_H

#include "local/local.h"
#include "object/xrc/open_qp.h"

struct lane_state;

/* What processes say to each other: the payload of a packet with PACKET_OPENING. */
enum opening_kind { SAY_ANSWER = 16, SAY_CLOSE, SAY_EVENT }; /* beside enum qp_request */
struct opening_message {
    uint32_t kind;
    int32_t error;          /* of an answer */
    uint64_t call;          /* of a question, and of its answer */
    uint64_t name;          /* what its process calls the handle */
    uint64_t device, inode; /* of the domain's file, to open */
    uint32_t qpn, ifindex;
    int32_t mask;
    uint32_t event;
    struct ibv_qp_attr attributes;
};

/* Such a packet. */
void opening_receive(struct lane *lane, const struct packet *packet);
/* qp_ports */
int opening_open(struct qp *handle);
int opening_ask(struct qp *handle, enum qp_request request, struct ibv_qp_attr *attributes, int mask);
void opening_close(struct qp *handle);
void opening_tell(const struct qp_opener *opener, uint32_t qpn, enum ibv_event_type type);
/* The lane has room again; it is down, and nobody finds it; the link is down, and nobody finds it. */
void opening_lane_writable(struct lane *lane, struct lane_state *state);
void opening_lane_down(struct lane_state *state);
void opening_link_down(uint64_t serial);
/* local_ops.resolved */
void opening_resolved(uint32_t block, const struct link *link);
void opening_after_fork_in_child(void);

#endif
