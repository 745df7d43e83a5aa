/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Processes that have an XRC domain open by one file: the near side sends, each of the others has an SRQ, and
 * the first of them the XRC_RECV QP. */
#ifndef TESTS_BEHAVIOUR_XRC_SCENE_H
#define TESTS_BEHAVIOUR_XRC_SCENE_H

#include <sys/types.h>

#include "work.h"

/* A process that has the domain open. One of them has the XRC_RECV QP; each has an SRQ, whose PD is that of
 * its end. */
struct holder {
    struct end end;
    char file[32];
    uid_t uid; /* to be another user; 0: as it is */
    int fd;
    struct ibv_xrcd *xrcd;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    uint32_t srqn, qpn;
    /* for connect_receive() and the like */
    struct end peer;
    uint64_t id;
    size_t offset, length;
    struct ibv_wc wc;
};

enum { RECEIVES = 64, FIRST = 0, SECOND = 1, HOLDERS = 2 };

struct scene {
    struct end sender; /* near */
    struct ibv_qp *qp; /* XRC_SEND */
    struct holder holder[HOLDERS];
    int fd; /* of the domain's file, near */
};

int open_file(const char *file);
struct ibv_xrcd *open_domain(struct ibv_context *context, int fd, int flags);
void make_file(char name[32]);
void hold_here(struct end *end, void *arg);
void let_go_here(struct end *end, void *arg);
void make_receive_here(struct end *end, void *arg);
void connect_receive_here(struct end *end, void *arg);
void destroy_qp_here(struct end *end, void *arg);
void make_send(struct scene *scene);
void connect_send(struct scene *scene);
void open_scene_as(struct scene *scene, const struct end_attr *attr, const uid_t uid[HOLDERS], mode_t mode);
void open_scene(struct scene *scene);
/* One more, on that side. */
void add_holder(struct scene *scene, struct holder *holder, struct side *side, const struct end_attr *attr);
void close_holder(struct holder *holder);
void close_scene(struct scene *scene);
void receive_at(struct holder *holder, uint64_t id, size_t offset, size_t length);
struct ibv_wc received(struct holder *holder);
void send_to(struct scene *scene, struct send send, const struct holder *holder);
void check_message(struct scene *scene, struct holder *holder, uint64_t id, size_t length);

#endif
