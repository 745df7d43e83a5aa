/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* ibv_open_qp() between processes (object/xrc/open_qp.h). */
#ifndef ENGINE_XRC_REMOTE_OPEN_H
#define ENGINE_XRC_REMOTE_OPEN_H

#include "local/local.h"
#include "object/xrc/open_qp.h"

struct lane_state;

/* What processes say to each other: the payload of a packet with PACKET_REMOTE_OPEN. */
/* Together with the values of enum qp_request. */
enum remote_open_kind { REMOTE_OPEN_REPLY = 16, REMOTE_OPEN_CLOSE, REMOTE_OPEN_EVENT };
struct remote_open_message {
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
void remote_open_receive(struct lane *lane, const struct packet *packet);
/* qp_ports */
int remote_open_qp(struct qp *handle);
int remote_open_request(struct qp *handle, enum qp_request request, struct ibv_qp_attr *attributes, int mask);
void remote_open_close(struct qp *handle);
void remote_open_send_event(const struct qp_opener *opener, uint32_t qpn, enum ibv_event_type type);
/* The lane has room again; it is down, and nobody finds it; the link is down, and nobody finds it. */
void remote_open_lane_writable(struct lane *lane, struct lane_state *state);
void remote_open_lane_down(struct lane_state *state);
void remote_open_link_down(uint64_t serial);
/* local_ops.resolved */
void remote_open_resolved(uint32_t block, const struct link *link);
void remote_open_after_fork_in_child(void);

#endif
