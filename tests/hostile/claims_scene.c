/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "claims_scene.h"

#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire/opcode.h"

/* All from that one on, as long as there are descriptors; returns the first that is not taken. */
static uint32_t take_all(uint32_t block)
{
    while (block < BLOCKS - 1 && speaker_listen(block) >= 0)
        block++;
    return block;
}

/* Is greeted, and acknowledges what it is sent. */
static bool accept_and_acknowledge(int listener, struct speaker **speaker)
{
    struct packet packet;
    char payload[SPEAKER_PAYLOAD];

    *speaker = speaker_accept(listener, REPLY_MS);
    if (!*speaker || !speaker_hear(*speaker, &packet, payload, REPLY_MS))
        return false;
    packet = (struct packet){.opcode = SERVICE_RC | OP_ACKNOWLEDGE,
                             .pkey = 0xffff,
                             .dest_qpn = packet.src_qpn,
                             .src_qpn = packet.dest_qpn,
                             .psn = packet.psn,
                             .syndrome = 0x1f,
                             .msn = 1};
    speaker_say(*speaker, packet.dest_qpn < packet.src_qpn ? packet.dest_qpn : packet.src_qpn, &packet, NULL);
    return true;
}

static void obey(int connection, const void *argument)
{
    struct speaker *speaker = NULL;
    static struct order order;
    static struct answer answer;
    int listener = -1;

    while (recv(connection, &order, sizeof(order), 0) == sizeof(order)) {
        answer = (struct answer){.done = true};
        switch (order.kind) {
        case TAKE:
            listener = speaker_listen(order.number);
            answer.done = listener >= 0;
            break;
        case LEAVE:
            close(listener);
            break;
        case CONNECT:
            speaker = speaker_connect(order.number);
            answer.done = speaker != NULL;
            break;
        case ACCEPT:
            speaker = speaker_accept(listener, (int)order.number);
            answer.done = speaker != NULL;
            break;
        case HANG_UP:
            speaker_hang_up(speaker);
            break;
        case SAY_TERMS:
            speaker_say_terms(speaker, order.number, order.device, order.inode);
            break;
        case SAY_TERMS_OF_BLOCK:
            for (uint32_t i = 0; i < BLOCK_QPNS; i++)
                speaker_say_terms(speaker, order.number * BLOCK_QPNS + i, order.device, order.inode);
            break;
        case QUERY:
            speaker_query(speaker, order.number, QUERIES);
            break;
        case SAY:
            order.packet.reference = &order.reference;
            speaker_say(speaker, order.number, &order.packet, order.payload);
            break;
        case SEND_BY_NETWORK:
            answer.done = speaker_send_by_network(&order.packet, order.payload);
            break;
        case HEAR:
            answer.done = speaker_hear(speaker, &answer.packet, answer.payload, (int)order.number);
            break;
        case ACCEPT_AND_ACK:
            answer.done = accept_and_acknowledge(listener, &speaker);
            break;
        case CROWD:
            answer.number = speaker_crowd(order.number, CROWD_SIZE);
            break;
        case TAKE_ALL:
            answer.number = take_all(order.number);
            break;
        }
        if (send(connection, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer))
            break;
    }
}

void give(const struct attacker *attacker, const struct order *order)
{
    CHECK(send(attacker->connection, order, sizeof(*order), MSG_NOSIGNAL) == sizeof(*order), "send: %s",
          strerror(errno));
}

struct answer answer_of(const struct attacker *attacker)
{
    struct answer answer;

    attacker_told(attacker, &answer, sizeof(answer));
    return answer;
}

struct answer tell(const struct attacker *attacker, enum order_kind kind, uint32_t number)
{
    const struct order order = {.kind = kind, .number = number};

    give(attacker, &order);
    return answer_of(attacker);
}

void say(const struct attacker *attacker, struct packet packet, const char *payload)
{
    struct order order = {.kind = SAY, .packet = packet};

    /* Both QPs of a connection use one ring; of datagrams the sender's number decides, which is as good as any. */
    order.number = packet.dest_qpn < packet.src_qpn ? packet.dest_qpn : packet.src_qpn;
    if (BTH_SERVICE(packet.opcode) == SERVICE_UD)
        order.number = packet.dest_qpn;
    if (payload) {
        strncpy(order.payload, payload, sizeof(order.payload) - 1);
        order.packet.payload_length = (uint32_t)strlen(payload) + 1;
    }
    give(attacker, &order);
    (void)answer_of(attacker);
}

/* --- two programs of one user ----------------------------------------------------------------------------- */

static void become_here(void *argument)
{
    become(*(uid_t *)argument);
}

void make_user(struct side *side, uid_t user)
{
    side_call(side, become_here, &user, sizeof(user));
}

struct end_attr mortal(enum ibv_qp_type type)
{
    struct end_attr attr = attr_of(type);

    attr.timeout = 10; /* 4 ms */
    attr.retry_cnt = 2;
    return attr;
}

void open_victims(struct pair *p, enum ibv_qp_type type)
{
    const struct end_attr attr = mortal(type);

    need_root();
    make_user(VICTIM, VICTIM_USER);
    make_user(PEER, VICTIM_USER);
    end_open(&p->a, VICTIM, &attr);
    end_open(&p->b, PEER, &attr);
    end_connect(&p->a, &p->b);
    if (type != IBV_QPT_UD)
        pair_marker(&p->a, &p->b);
}

struct packet forged(uint8_t opcode, const struct end *from, const struct end *to)
{
    struct packet packet = {.opcode = opcode,
                            .pkey = 0xffff,
                            .src_qpn = from->qp_num,
                            .dest_qpn = to->qp_num,
                            .dest_ifindex = if_nametoindex("lo"),
                            .qkey = to->attr.qkey};

    memcpy(packet.grh.source, to->gid.raw, 16);
    memcpy(packet.grh.destination, to->gid.raw, 16);
    return packet;
}

uint32_t nobody(const struct end *victim)
{
    return victim->qp_num ^ 0x80;
}

void await_reading(const struct attacker *attacker, const struct end *from, const struct end *to)
{
    struct packet packet = forged(SERVICE_RC | OP_SEND_ONLY, from, to);
    struct order order = {.kind = SAY, .packet = packet};
    struct answer answer;

    order.number = from->qp_num < to->qp_num ? from->qp_num : to->qp_num;
    order.packet.dest_qpn = nobody(to);
    order.packet.psn = psn_make(0xabcdef);
    give(attacker, &order);
    (void)answer_of(attacker);
    do {
        answer = tell(attacker, HEAR, REPLY_MS);
        CHECK(answer.done, "the victim does not read");
    } while (answer.packet.psn.value != 0xabcdef);
}

struct attacker start_attacker(uid_t user)
{
    return attacker_start(user, obey, NULL);
}

struct attacker attack_by_link(const struct end *victim)
{
    struct attacker attacker = start_attacker(ATTACKER_USER);

    CHECK(tell(&attacker, CONNECT, victim->qp_num).done, "no link to the victim");
    return attacker;
}
