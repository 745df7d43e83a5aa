/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A datagram rsocket: a UDP socket, which gives it its addresses, and a UD QP at each local address that it
 * uses. To a peer whose QP is not known yet, datagrams go by UDP; it answers with its QP, and from then on
 * they go from QP to QP. The rsocket's lock guards all of this.
 */
#ifndef RSOCKETS_DATAGRAM_H
#define RSOCKETS_DATAGRAM_H

#include "front/rsockets/rsocket.h"

/* As upstream: a datagram with its header fits, and so does one with the header of UDP. */
#define DATAGRAM_BYTES 2048u
#define GRH_BYTES      40u

#define DESTINATION_BUCKETS 64u
#define DESTINATIONS_MAX    1024u

/* What arrived, by QP or by UDP. */
struct arrival {
    struct list node;
    struct path *path; /* NULL: by UDP, in memory of its own */
    const uint8_t *data;
    uint32_t length;
    struct sockaddr_storage from;
};

/* A UD QP at a local address. */
struct path {
    struct list node;
    struct sockaddr_storage local;
    struct rdma_cm_id *id;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    uint8_t *memory; /* of receives: one GRH for all, then the datagrams */
    size_t memory_bytes;
    struct ibv_mr *receive_mr, *send_mr;
    struct arrival *arrivals; /* one for each receive */
    uint32_t message_bytes;   /* with header; what its MTU allows */
    uint32_t unsignaled;
    bool armed;
};

struct destination {
    struct list node;   /* of its bucket */
    struct list recent; /* used last: at the end */
    struct sockaddr_storage address;
    struct path *path;
    struct ibv_ah *ah; /* NULL: its QP is not known */
    uint32_t qpn;
};

struct datagram {
    int udp, epoll_fd, poke_fd; /* epoll_fd watches the channels of paths, and poke_fd */
    bool started, connected;
    uint32_t send_requests, receive_requests;
    struct sockaddr_storage peer;
    struct list paths;
    struct list buckets[DESTINATION_BUCKETS], recent;
    unsigned destination_count;
    uint8_t *send_memory; /* slots of DATAGRAM_BYTES */
    size_t send_bytes;
    uint32_t *free_slots, free_count;
    struct list arrivals;
    unsigned udp_arrivals;
};

/* --- path.c ------------------------------------------------------------------------------------- */

/* The path of a local address (its port is that of the UDP socket); made if there is none. 0 or -errno. */
int path_find(struct rsocket *rsocket, const struct sockaddr_storage *local, struct path **ret_path);
void path_close(struct rsocket *rsocket, struct path *path);
/* The receive of this arrival can be used again. */
int path_repost(struct path *path, struct arrival *arrival);
/* NULL with *ret_error: there is no way. */
struct destination *destination_find(struct rsocket *rsocket, const struct sockaddr_storage *address,
                                     int *ret_error);
void destinations_close(struct rsocket *rsocket);
/* Learns the QP of a destination. Service thread; drops the lock meanwhile. */
void destination_learn(struct rsocket *rsocket, const struct sockaddr_storage *address, uint32_t qpn);

#endif
