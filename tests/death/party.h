/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the files of a party share: words to the other party, objects, connection management, what is left. */
#ifndef DEATH_PARTY_H
#define DEATH_PARTY_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>

#include "death.h"

enum {
    SLOT = 65536,
    SLOTS = 32,
    SOURCE = 0,
    RECEIVES = 4 * SLOT,
    TARGET = RECEIVES + SLOTS * SLOT, /* of WRITEs, READs and atomics of the other party */
    SCRATCH = TARGET + 8 * SLOT,
    SIZE = SCRATCH + 8 * SLOT,
    PORT = 7471,
    ROUNDS = 12,
    SMALL_ROUNDS = 24,
    PEER_SENDS = SLOTS / 2,
};

enum word { WORD_CARD, WORD_READY, WORD_BYE };

struct message {
    enum word word;
    uint32_t qpn, rkey;
    uint64_t address;
    union ibv_gid gid;
};

struct party {
    enum role role;
    struct party_sockets sockets;
    struct verdict verdict;
    int other; /* who plays with us now */
    bool other_ended, other_left, lying, patient;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    char *memory;
    struct message theirs;
    unsigned posted, completed, failed; /* send requests */
    unsigned received, sent;
    bool connected;
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id, *listener;
    char unconnected[120]; /* what came instead of the connection */
};

#define MUST(condition, ...)                                                                                 \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            wrong(party, __VA_ARGS__);                                                                       \
    } while (0)

/* --- party.c --- */

/* What must not be. The peer tells it, the others end with it. */
__attribute__((format(printf, 2, 3))) _Noreturn void wrong(struct party *party, const char *format, ...);

void tell(struct party *party, enum word word);
bool hear(struct party *party, struct message *ret_message, bool wait);
bool other_is_there(struct party *party);

/* --- party_objects.c --- */

void open_device(struct party *party);
void make_objects(struct party *party);
struct ibv_qp_init_attr qp_attr(struct party *party);
void post_receive(struct party *party, unsigned slot);
void make_qp(struct party *party);
bool connect_qp(struct party *party);
void close_objects(struct party *party);

/* --- party_cm.c --- */

/* NULL: the other party has ended; with `whatever` the event is waited for nevertheless. */
struct rdma_cm_event *next_event(struct party *party, bool whatever);
/* False: the other party is gone. */
bool connect_by_cm(struct party *party, bool passive);

/* --- party_rest.c --- */

/* Descriptors and mappings of this process. Links go down in the background: until no more is left than in a trial
 * without a death (0: not known yet). */
void count_rest(struct party *party, int *ret_fds, int *ret_maps, int fds_most, int maps_most);

#endif
