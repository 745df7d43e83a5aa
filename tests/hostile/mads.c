/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Connection management: an attacker with a link sends MADs that concern a connection of two others. */
#include "attacker.h"
#include "cm.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include "speaker.h"
#include "wire/cm_mad.h"
#include "wire/mad.h"
#include "wire/opcode.h"

enum { BLOCK_QPNS = 256, ANSWER_MS = 10000, FIRST_BLOCK = 0x4711 };

/* Both ends of a connection, and what an attacker finds out about them: numbers of QPs are no secret. */
struct scene {
    struct cm_pair pair;
    uint32_t near_qpn, far_qpn;
    uint8_t gid[16];
};

/* --- the attacker ---------------------------------------------------------------------------------------- */

struct order {
    uint8_t bytes[MAD_LENGTH];
    uint8_t gid[16];
    uint8_t flags;
    bool awaits_answer;
};

struct answer {
    bool done;
    struct cm_mad mad;
};

static void obey(int connection, const void *argument)
{
    const uint32_t victim_qpn = *(const uint32_t *)argument;
    struct speaker *speaker;
    uint32_t block;
    struct order order;

    for (block = FIRST_BLOCK; speaker_listen(block) < 0; block++)
        ;
    speaker = speaker_connect(victim_qpn);
    if (!speaker)
        return;
    if (send(connection, &block, sizeof(block), MSG_NOSIGNAL) != sizeof(block))
        return;
    while (recv(connection, &order, sizeof(order), 0) == sizeof(order)) {
        struct packet packet = {.opcode = SERVICE_UD | OP_SEND_ONLY,
                                .flags = order.flags,
                                .pkey = 0xffff,
                                .src_qpn = MAD_QPN,
                                .dest_qpn = MAD_QPN,
                                .qkey = MAD_QKEY,
                                .payload_length = MAD_LENGTH};
        struct answer answer = {.done = true};
        uint8_t heard[SPEAKER_PAYLOAD];

        memcpy(packet.grh.source, order.gid, 16);
        memcpy(packet.grh.destination, order.gid, 16);
        speaker_say(speaker, MAD_QPN, &packet, order.bytes);
        if (order.awaits_answer)
            answer.done = speaker_hear(speaker, &packet, heard, ANSWER_MS) && packet.dest_qpn == MAD_QPN &&
                          cm_mad_decode(heard, MAD_LENGTH, &answer.mad) == 0;
        if (send(connection, &answer, sizeof(answer), MSG_NOSIGNAL) != sizeof(answer))
            break;
    }
}

static void note_qpn(struct cm_end *end, void *argument)
{
    *(uint32_t *)argument = (end->child ? end->child : end->id)->qp->qp_num;
}

static void note_gid(struct cm_end *end, void *argument)
{
    memcpy(argument, end->id->route.addr.addr.ibaddr.sgid.raw, 16);
}

static void become_here(void *argument)
{
    become(*(uid_t *)argument);
}

static struct answer say(const struct attacker *attacker, const struct scene *scene, const struct cm_mad *mad,
                         uint8_t flags, bool awaits_answer)
{
    struct order order = {.flags = flags, .awaits_answer = awaits_answer};
    struct answer answer;

    memcpy(order.gid, scene->gid, 16);
    cm_mad_encode(mad, order.bytes);
    CHECK(send(attacker->connection, &order, sizeof(order), MSG_NOSIGNAL) == sizeof(order), "send: %s",
          strerror(errno));
    attacker_told(attacker, &answer, sizeof(answer));
    return answer;
}

/* A request of the attacker's, for a service that nobody has, which offers a QP of that number. */
static struct cm_mad request(const struct scene *scene, uint32_t block, uint32_t id, uint32_t qpn)
{
    struct cm_mad mad = {.attribute = CM_REQ,
                         .transaction_id = 0x4711000 + id,
                         .local_comm_id = block << 16 | id,
                         .req = {.service_id = 0x1234567, .qpn = qpn, .pkey = 0xffff, .path_mtu = 3}};

    memcpy(mad.req.primary.local_gid, scene->gid, 16);
    memcpy(mad.req.primary.remote_gid, scene->gid, 16);
    return mad;
}

static struct attacker open_scene(struct scene *scene, uint32_t *ret_block)
{
    uid_t victim = VICTIM_USER;
    struct attacker attacker;

    need_root();
    side_call(FAR, become_here, &victim, sizeof(victim));
    cm_pair_open(&scene->pair);
    CM_AT(&scene->pair.near, note_qpn, &scene->near_qpn);
    CM_AT(&scene->pair.far, note_qpn, &scene->far_qpn);
    cm_call(&scene->pair.near, note_gid, scene->gid, sizeof(scene->gid));
    attacker = attacker_start(ATTACKER_USER, obey, &scene->far_qpn);
    attacker_told(&attacker, ret_block, sizeof(*ret_block));
    return attacker;
}

static void close_scene(struct scene *scene, struct attacker *attacker)
{
    cm_expect_none(&scene->pair.near);
    cm_expect_none(&scene->pair.far);
    cm_pair_talk(&scene->pair);
    attacker_end(attacker);
    cm_pair_close(&scene->pair);
}

/* --- attacks --------------------------------------------------------------------------------------------- */

/* Whoever offers the number of a QP that has a connection says that its process has lost the connection (IBA
 * 12.9.8.3.1): only that process may. */
static void a_request_with_the_qp_of_another_process_ends_no_connection(void **state)
{
    struct scene scene;
    uint32_t block;
    struct attacker attacker = open_scene(&scene, &block);
    const struct cm_mad mad = request(&scene, block, 1, scene.near_qpn);
    const struct answer answer = say(&attacker, &scene, &mad, 0, true);

    assert_true(answer.done);
    assert_int_equal(answer.mad.attribute, CM_REJ);
    assert_int_equal(answer.mad.rej.reason, CM_REASON_INVALID_SERVICE_ID);
    close_scene(&scene, &attacker);
}

/* With comm ids of others, as a reply, as an end, as from the network: not even an answer. */
static void messages_in_the_name_of_others_are_not_read(void **state)
{
    static const uint16_t attributes[] = {CM_REQ, CM_REP, CM_RTU, CM_MRA, CM_DREQ, CM_LAP};
    struct scene scene;
    uint32_t block;
    struct attacker attacker = open_scene(&scene, &block);
    struct answer answer;
    struct cm_mad mad;

    for (size_t i = 0; i < COUNT(attributes); i++) {
        for (uint32_t number = 1; number < 4; number++) {
            mad = request(&scene, scene.near_qpn / BLOCK_QPNS, number, scene.near_qpn);
            mad.attribute = attributes[i];
            mad.remote_comm_id = scene.far_qpn / BLOCK_QPNS << 16 | number;
            if (attributes[i] == CM_DREQ)
                mad.dreq.remote_qpn = scene.far_qpn;
            (void)say(&attacker, &scene, &mad, 0, false);
            (void)say(&attacker, &scene, &mad, PACKET_FROM_NETWORK, false);
        }
    }
    /* Whose answer is the first that comes. */
    mad = request(&scene, block, 77, (uint32_t)block * BLOCK_QPNS + 1);
    answer = say(&attacker, &scene, &mad, 0, true);
    assert_true(answer.done);
    assert_int_equal(answer.mad.attribute, CM_REJ);
    assert_int_equal(answer.mad.remote_comm_id, mad.local_comm_id);
    close_scene(&scene, &attacker);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST(a_request_with_the_qp_of_another_process_ends_no_connection),
        TEST(messages_in_the_name_of_others_are_not_read),
    };

    enter_own_host();
    return run_topic(tests, COUNT(tests), argc, argv);
}
