/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A datagram rsocket: a UDP socket, which has its addresses, and a UD QP at each local address in use. Datagrams go
 * by UDP as long as the peer's QPN is not known; the peer answers with its QPN, and later datagrams go from QP to QP.
 * The rsocket's lock guards all of it. */
#ifndef RSOCKETS_DATAGRAM_H
#define RSOCKETS_DATAGRAM_H

#include "front/rsockets/rsocket.h"

/* As in rdma-core: a datagram with its header fits, and so does one with a UDP header. */
#define DATAGRAM_BYTES 2048u
#define GRH_BYTES      40u

#define DESTINATION_BUCKETS 64u
#define DESTINATIONS_MAX    1024u

/* A received datagram, by QP or by UDP. */
struct arrival {
    struct list node;
    struct path *path; /* NULL: arrived by UDP, in an allocation of its own */
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
    uint8_t *memory; /* receive memory: one GRH that all share, then the datagrams */
    size_t memory_bytes;
    struct ibv_mr *receive_mr, *send_mr;
    struct arrival *arrivals; /* one per receive */
    uint32_t message_bytes;   /* maximum with header, from the MTU */
    uint32_t unsignaled;
    bool armed;
};

struct destination {
    struct list node;   /* in its hash bucket */
    struct list recent; /* least recently used first */
    struct sockaddr_storage address;
    struct path *path;
    struct ibv_ah *ah; /* NULL: the QPN is not known */
    uint32_t qpn;
};

struct datagram {
    int udp, epoll_fd, poke_fd; /* epoll_fd watches poke_fd and the completion channels of paths */
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

/* The path of a local address (its port is the UDP socket's); created if there is none. 0 or -errno. */
int path_find(struct rsocket *rsocket, const struct sockaddr_storage *local, struct path **ret_path);
void path_close(struct rsocket *rsocket, struct path *path);
/* Posts the receive of this arrival again. */
int path_repost(struct path *path, struct arrival *arrival);
/* NULL with *ret_error: no route. */
struct destination *destination_find(struct rsocket *rsocket, const struct sockaddr_storage *address,
                                     int *ret_error);
void destinations_close(struct rsocket *rsocket);
/* Stores the QPN of a destination. Service thread; drops the lock in between. */
void destination_learn(struct rsocket *rsocket, const struct sockaddr_storage *address, uint32_t qpn);

#endif
