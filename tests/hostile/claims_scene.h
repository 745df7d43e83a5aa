/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Programs of users with a connection, and an attacker who does what the test orders. */
#ifndef TESTS_HOSTILE_CLAIMS_SCENE_H
#define TESTS_HOSTILE_CLAIMS_SCENE_H

#include "attacker.h"
#include "work.h"

#include "speaker.h"
#include "wire/packet.h"

#define VICTIM (&sides[1])
#define PEER   (&sides[2])
#define THIRD  (&sides[3])

enum {
    BLOCK_QPNS = 256,
    BLOCKS = 65536,
    CLAIM_SIDES = 2,
    REPLY_MS = 10000,
    GRH = 40,
    ATTACKERS = 8,
    OTHER_USER = 61013,
    CROWD_SIZE = 800,
    QUERIES = 60000
};

enum order_kind {
    TAKE,
    LEAVE,
    CONNECT,
    ACCEPT,
    HANG_UP,
    SAY,
    SAY_TERMS,
    SAY_TERMS_OF_BLOCK, /* for each QP number of that block */
    QUERY,              /* QUERIES of them, about the QP number; their replies are not read */
    SEND_BY_NETWORK,
    HEAR,
    ACCEPT_AND_ACK,
    TAKE_ALL,
    CROWD /* connections to the owner of the QP number, CROWD_SIZE of them */
};

struct order {
    enum order_kind kind;
    uint32_t number; /* a block, a QP number, or milliseconds */
    struct packet packet;
    struct packet_reference reference; /* if the packet has one */
    uint64_t device, inode;            /* of an XRC domain */
    char payload[SPEAKER_PAYLOAD];
};

struct answer {
    bool done;
    uint32_t number;
    struct packet packet;
    char payload[SPEAKER_PAYLOAD];
};

void give(const struct attacker *attacker, const struct order *order);
struct answer answer_of(const struct attacker *attacker);
struct answer tell(const struct attacker *attacker, enum order_kind kind, uint32_t number);
void say(const struct attacker *attacker, struct packet packet, const char *payload);
void make_user(struct side *side, uid_t user);
struct end_attr mortal(enum ibv_qp_type type);
void open_victims(struct pair *p, enum ibv_qp_type type);
struct packet forged(uint8_t opcode, const struct end *from, const struct end *to);
/* A number of the victim's block that no QP has. */
uint32_t nobody(const struct end *victim);
/* What the attacker has said on the ring of these two numbers has been read: a request for nobody on the same ring is
 * answered by a drop notice. */
void await_reading(const struct attacker *attacker, const struct end *from, const struct end *to);
struct attacker start_attacker(uid_t user);
struct attacker attack_by_link(const struct end *victim);

#endif
