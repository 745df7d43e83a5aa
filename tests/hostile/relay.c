/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* XRC requests that are passed on: an attacker with a link is neither the process that executes them nor one that the
 * domain admits. */
#include "claims_scene.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../behaviour/xrc_scene.h"
#include "wire/opcode.h"

/* For all QPs that a process executes requests for; 16 blocks of QP numbers. */
enum { DELEGATES_MAX = 4096 };
enum { NAK_REMOTE_ACCESS = 0x62, EPOCHS = 4, PSNS = 4, LENGTH = 64 };

static struct attacker attack_holder(const struct holder *holder)
{
    const struct end victim = {.qp_num = holder->srqn};

    return attack_by_link(&victim);
}

static void await_attacker(const struct attacker *attacker, const struct holder *holder)
{
    const struct end victim = {.qp_num = holder->qpn};

    await_reading(attacker, &victim, &victim);
}

/* While the process with the SRQ is stopped, another one answers in its place. */
static void only_the_process_with_the_srq_answers(void **state)
{
    static const struct {
        uint8_t opcode, syndrome, flags;
    } said[] = {{OP_ACKNOWLEDGE, 0x1f, PACKET_RELAYED},
                {OP_ACKNOWLEDGE, NAK_REMOTE_ACCESS, PACKET_RELAYED},
                {OP_ACKNOWLEDGE, 0, PACKET_RELAYED | PACKET_DROPPED}};
    struct attacker attacker;
    struct holder *first, *second;
    struct scene scene;
    struct ibv_wc wc;

    need_root();
    open_scene(&scene);
    first = &scene.holder[FIRST];
    second = &scene.holder[SECOND];
    receive_at(second, 1, 0, LENGTH);
    end_poke(&scene.sender, 0, "genuine", 8);
    send_to(&scene, a_send(&scene.sender, 2, 0, LENGTH),
            second); /* so that the responses of a relay are awaited */
    assert_int_equal(end_wc(&scene.sender, SQ).status, IBV_WC_SUCCESS);
    assert_int_equal(received(second).status, IBV_WC_SUCCESS);
    attacker = attack_holder(first);
    side_stop(second->end.side);
    receive_at(first, 9, 0, LENGTH);
    send_to(&scene, a_send(&scene.sender, 3, 0, LENGTH), second);
    for (size_t i = 0; i < COUNT(said); i++) {
        for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
            for (uint32_t psn = 0; psn < PSNS; psn++) {
                struct packet packet = {.opcode = (uint8_t)(SERVICE_XRC | said[i].opcode),
                                        .flags = said[i].flags,
                                        .pkey = 0xffff,
                                        .dest_ifindex = epoch,
                                        .src_qpn = second->srqn,
                                        .dest_qpn = first->qpn,
                                        .syndrome = said[i].syndrome,
                                        .msn = 2,
                                        .psn = psn_make(scene.sender.psn + psn)};

                say(&attacker, packet, NULL);
            }
        }
    }
    await_attacker(&attacker, first);
    assert_int_equal(end_poll_once(&scene.sender, SQ, &wc, 1), 0);
    side_continue(second->end.side);
    receive_at(second, 4, 0, LENGTH);
    assert_int_equal(end_wc(&scene.sender, SQ).status, IBV_WC_SUCCESS);
    assert_int_equal(received(second).status, IBV_WC_SUCCESS);
    attacker_end(&attacker);
    close_scene(&scene);
}

/* Terms and a request for an SRQ whose domain is a file that the attacker may open, or may not. */
static void ask_for_a_receive(mode_t mode)
{
    const bool admitted = mode & S_IROTH;
    struct end_attr attr = attr_of(IBV_QPT_RC);
    struct attacker attacker;
    struct answer answer;
    struct scene scene;
    struct stat file;
    uint32_t block;

    attr.size = 1 << 21;
    open_scene_as(&scene, &attr, NULL, mode);
    CHECK(fstat(scene.fd, &file) == 0, "fstat: %s", strerror(errno));
    attacker = attack_holder(&scene.holder[FIRST]);
    for (block = 0x4711; !tell(&attacker, TAKE, block).done; block++)
        ;
    receive_at(&scene.holder[FIRST], 1, 0, LENGTH);
    {
        const uint32_t qpn = block * BLOCK_QPNS + 4;
        const struct order terms = {
            .kind = SAY_TERMS, .number = qpn, .device = file.st_dev, .inode = file.st_ino};
        const struct order request = {.kind = SAY,
                                      .number = qpn,
                                      .packet = {.opcode = SERVICE_XRC | OP_SEND_ONLY,
                                                 .flags = PACKET_RELAYED | PACKET_ACK_REQUEST,
                                                 .pkey = 0xffff,
                                                 .src_qpn = qpn,
                                                 .dest_qpn = scene.holder[FIRST].srqn,
                                                 .srqn = scene.holder[FIRST].srqn,
                                                 .payload_length = 2},
                                      .payload = "x"};

        give(&attacker, &terms);
        (void)answer_of(&attacker);
        give(&attacker, &request);
        (void)answer_of(&attacker);
    }
    answer = tell(&attacker, HEAR, REPLY_MS);
    assert_true(answer.done);
    assert_int_equal(answer.packet.flags & PACKET_DROPPED, admitted ? 0 : PACKET_DROPPED);
    if (admitted)
        assert_int_equal(received(&scene.holder[FIRST]).status, IBV_WC_SUCCESS);
    attacker_end(&attacker);
    close_scene(&scene);
}

static void a_domain_admits_whoever_may_open_its_file(void **state)
{
    need_root();
    ask_for_a_receive(0600);
    ask_for_a_receive(0666);
}

/* The holders of a domain that everybody may open are two users, and neither is the attacker. */
static void open_public_scene(struct scene *scene)
{
    static const uid_t users[HOLDERS] = {VICTIM_USER, OTHER_USER};
    struct end_attr attr = attr_of(IBV_QPT_RC);

    need_root();
    attr.size = 1 << 21;
    open_scene_as(scene, &attr, users, 0666);
}

/* Terms for as many QPs of his as the process executes requests for; the domain is everybody's. */
static void a_user_cannot_have_all_delegates(void **state)
{
    struct order terms = {.kind = SAY_TERMS_OF_BLOCK, .number = 0x4711};
    struct attacker attacker;
    struct scene scene;
    struct stat file;

    open_public_scene(&scene);
    CHECK(fstat(scene.fd, &file) == 0, "fstat: %s", strerror(errno));
    attacker = attack_holder(&scene.holder[SECOND]);
    terms.device = file.st_dev;
    terms.inode = file.st_ino;
    for (unsigned taken = 0; taken < DELEGATES_MAX / BLOCK_QPNS + 1; terms.number++) {
        if (!tell(&attacker, TAKE, terms.number).done)
            continue;
        give(&attacker, &terms);
        (void)answer_of(&attacker);
        taken++;
    }
    {
        const struct end victim = {.qp_num = scene.holder[SECOND].srqn};

        await_reading(&attacker, &victim, &victim);
    }
    check_message(&scene, &scene.holder[SECOND], 1, LENGTH);
    attacker_end(&attacker);
    close_scene(&scene);
}

struct handle {
    struct ibv_xrcd *xrcd;
    struct ibv_qp *qp;
    uint32_t qpn;
    int error;
};

static void open_qp_here(struct end *end, void *arg)
{
    struct handle *handle = arg;
    struct ibv_qp_open_attr attr = {.comp_mask =
                                        IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
                                    .qp_num = handle->qpn,
                                    .xrcd = handle->xrcd,
                                    .qp_type = IBV_QPT_XRC_RECV};

    handle->qp = ibv_open_qp(end->context, &attr);
    handle->error = handle->qp ? 0 : errno;
    if (handle->qp)
        CHECK_ZERO(ibv_destroy_qp(handle->qp));
}

/* Requests whose replies he does not read: they wait in the process with the QP. */
static void a_user_cannot_keep_others_from_opening_a_qp(void **state)
{
    struct handle handle = {0};
    struct attacker attacker;
    struct scene scene;

    open_public_scene(&scene);
    attacker = attack_holder(&scene.holder[FIRST]);
    (void)tell(&attacker, QUERY, scene.holder[FIRST].qpn);
    handle.xrcd = scene.holder[SECOND].xrcd;
    handle.qpn = scene.holder[FIRST].qpn;
    AT(&scene.holder[SECOND].end, open_qp_here, &handle);
    CHECK(!handle.error, "ibv_open_qp: %s", strerror(handle.error));
    attacker_end(&attacker);
    close_scene(&scene);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(only_the_process_with_the_srq_answers, .fars = HOLDERS),
        TEST_WITH(a_domain_admits_whoever_may_open_its_file, .fars = HOLDERS),
        TEST_WITH(a_user_cannot_have_all_delegates, .fars = HOLDERS),
        TEST_WITH(a_user_cannot_keep_others_from_opening_a_qp, .fars = HOLDERS),
    };

    enter_own_host();
    return run_topic(tests, COUNT(tests), argc, argv);
}
