/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Who speaks for a QP number: an attacker with a link says that he is somebody else's QP, or takes the name of a block
 * whose owner has died. */
#include "claims_scene.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire/opcode.h"

/* --- the block of a dead process -------------------------------------------------------------------------- */

static void a_block_taken_from_a_dead_peer_gives_no_connection(void **state)
{
    const struct order await = {.kind = ACCEPT_AND_ACK};
    struct attacker attacker;
    struct pair p;

    open_victims(&p, IBV_QPT_RC);
    attacker = start_attacker(ATTACKER_USER);
    side_kill(PEER);
    CHECK(tell(&attacker, TAKE, p.b.qp_num / BLOCK_QPNS).done, "the block is not free");
    give(&attacker, &await);
    end_send(&p.a, a_send(&p.a, 1, 0, 8));
    end_expect_status(&p.a, SQ, 1, IBV_WC_RETRY_EXC_ERR);
    attacker_end(&attacker);
    end_close(&p.a);
}

/* Another process of the same user is another one, too; and a QP that is connected anew finds whoever is there. */
static void nor_does_one_taken_by_the_same_user_until_the_qp_is_connected_anew(void **state)
{
    struct attacker attacker;
    struct pair p;
    struct end fresh;
    const struct end_attr attr = mortal(IBV_QPT_RC);

    open_victims(&p, IBV_QPT_RC);
    attacker = start_attacker(VICTIM_USER);
    side_kill(PEER);
    CHECK(tell(&attacker, TAKE, p.b.qp_num / BLOCK_QPNS).done, "the block is not free");
    end_send(&p.a, a_send(&p.a, 1, 0, 8));
    end_expect_status(&p.a, SQ, 1, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(end_to_state(&p.a, IBV_QPS_RESET), 0);
    end_to_init(&p.a);
    end_to_rtr(&p.a, &p.b);
    end_to_rts(&p.a);
    give(&attacker, &(struct order){.kind = ACCEPT_AND_ACK});
    end_send(&p.a, a_send(&p.a, 2, 0, 8));
    assert_true(answer_of(&attacker).done);
    end_expect_success(&p.a, SQ, 2, IBV_WC_SEND);
    attacker_end(&attacker);
    /* And of course another peer. */
    make_user(THIRD, VICTIM_USER);
    end_open(&fresh, THIRD, &attr);
    assert_int_equal(end_to_state(&p.a, IBV_QPS_RESET), 0);
    end_connect(&p.a, &fresh);
    pair_marker(&p.a, &fresh);
    end_close(&fresh);
    end_close(&p.a);
}

/* A process that calls exec keeps its number, and may keep the listener of its block; its QPs are gone. */
static void a_process_that_begins_anew_is_another_one(void **state)
{
    const struct end_attr attr = mortal(IBV_QPT_RC);
    struct attacker peer;
    struct end victim, far;
    uint32_t block;

    need_root();
    make_user(VICTIM, VICTIM_USER);
    end_open(&victim, VICTIM, &attr);
    peer = start_attacker(VICTIM_USER);
    for (block = 0x4711; !tell(&peer, TAKE, block).done; block++)
        ;
    far = victim;
    far.qp_num = block * BLOCK_QPNS + 1;
    end_to_init(&victim);
    end_to_rtr(&victim, &far);
    end_to_rts(&victim);
    give(&peer, &(struct order){.kind = ACCEPT_AND_ACK});
    end_send(&victim, a_send(&victim, 1, 0, 8));
    assert_true(answer_of(&peer).done);
    end_expect_success(&victim, SQ, 1, IBV_WC_SEND);
    (void)tell(&peer, HANG_UP, 0);
    give(&peer, &(struct order){.kind = ACCEPT_AND_ACK});
    end_send(&victim, a_send(&victim, 2, 0, 8));
    end_expect_status(&victim, SQ, 2, IBV_WC_RETRY_EXC_ERR);
    attacker_end(&peer);
    end_close(&victim);
}

/* --- packets from a link that is not the owner's ------------------------------------------------------------ */

static struct answer answer_to(const struct attacker *attacker, struct packet packet)
{
    struct answer answer;

    say(attacker, packet, "forged");
    answer = tell(attacker, HEAR, REPLY_MS);
    CHECK(answer.done, "no answer");
    return answer;
}

static void expect_drop_notice(const struct answer *answer, const struct packet *to)
{
    assert_int_equal(answer->packet.flags, PACKET_DROPPED);
    assert_int_equal(answer->packet.opcode, SERVICE_RC | OP_ACKNOWLEDGE);
    assert_int_equal(answer->packet.dest_qpn, to->src_qpn);
    assert_int_equal(answer->packet.src_qpn, to->dest_qpn);
    assert_int_equal(answer->packet.psn.value, to->psn.value);
    assert_int_equal(answer->packet.syndrome, 0);
    assert_int_equal(answer->packet.msn, 0);
}

/* The answer is the same for a QP that is there, with the right PSN or another one, and for none. */
static void requests_of_another_process_are_dropped_like_those_for_nobody(void **state)
{
    static const uint8_t opcodes[] = {OP_SEND_ONLY, OP_WRITE_ONLY, OP_READ_REQUEST, OP_FETCH_ADD};
    struct attacker attacker;
    struct answer answer;
    struct pair p;

    open_victims(&p, IBV_QPT_RC);
    end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
    end_poke(&p.a, 1024, "untouched", 10);
    attacker = attack_by_link(&p.a);
    for (size_t i = 0; i < COUNT(opcodes); i++) {
        for (int wrong = 0; wrong < 3; wrong++) {
            struct packet packet = forged(SERVICE_RC | opcodes[i], &p.b, &p.a);

            packet.psn = psn_make(p.b.psn + (wrong == 1 ? 5000 : 0));
            packet.rkey = p.a.rkey;
            packet.address = (uintptr_t)p.a.buf + 1024;
            packet.dma_length = opcodes[i] == OP_SEND_ONLY ? 0 : 7;
            if (wrong == 2)
                packet.dest_qpn = nobody(&p.a);
            if (opcodes[i] == OP_READ_REQUEST || opcodes[i] == OP_FETCH_ADD) {
                say(&attacker, packet, NULL);
                answer = tell(&attacker, HEAR, REPLY_MS);
                CHECK(answer.done, "no answer");
            } else {
                answer = answer_to(&attacker, packet);
            }
            expect_drop_notice(&answer, &packet);
        }
    }
    {
        char found[10];

        end_peek(&p.a, 1024, found, sizeof(found));
        assert_string_equal(found, "untouched");
    }
    /* The connection goes on, with the receive that is still there. */
    end_poke(&p.b, 0, "genuine", 8);
    end_send(&p.b, a_send(&p.b, 2, 0, 8));
    end_expect_success(&p.b, SQ, 2, IBV_WC_SEND);
    end_expect_success(&p.a, RQ, 1, IBV_WC_RECV);
    {
        char found[8];

        end_peek(&p.a, 0, found, sizeof(found));
        assert_string_equal(found, "genuine");
    }
    attacker_end(&attacker);
    pair_close(&p);
}

/* Memory of his that the victim may read, as the kernel says: bytes by reference, and ones that lie in the receive
 * already. */
static void nor_do_references_and_deposits_of_another_process_count(void **state)
{
    enum { DEPOSITED_AT = 19 };
    static const char secret[8] = "forged";
    struct order order = {.kind = SAY};
    struct attacker attacker;
    struct answer answer;
    struct ibv_wc wc;
    struct pair p;

    open_victims(&p, IBV_QPT_RC);
    end_recv(&p.a, a_recv(&p.a, 1, 0, 64));
    attacker = start_attacker(VICTIM_USER);
    CHECK(tell(&attacker, CONNECT, p.a.qp_num).done, "no link to the victim");
    for (uint32_t deposited = 0; deposited < 2; deposited++) {
        order.packet = forged(SERVICE_RC | OP_SEND_ONLY, &p.b, &p.a);
        order.packet.flags = PACKET_BY_REFERENCE | PACKET_ACK_REQUEST;
        order.packet.psn = psn_make(p.b.psn);
        order.packet.reference_count = 1;
        order.packet.payload_length = order.reference.length = sizeof(secret);
        order.reference.address = (uintptr_t)secret;
        order.reference.slot = deposited ? 1u << 31 | 1u << DEPOSITED_AT : 0;
        order.number = p.a.qp_num < p.b.qp_num ? p.a.qp_num : p.b.qp_num;
        give(&attacker, &order);
        (void)answer_of(&attacker);
        answer = tell(&attacker, HEAR, REPLY_MS);
        assert_true(answer.done);
        expect_drop_notice(&answer, &order.packet);
    }
    assert_int_equal(end_poll_once(&p.a, RQ, &wc, 1), 0);
    attacker_end(&attacker);
    end_close(&p.b);
    end_close(&p.a);
}

struct srq_scene {
    char file[64];
    struct ibv_xrcd *xrcd;
    struct ibv_srq *srq;
    uint32_t number;
    uint64_t device, inode;
};

static void open_srq_here(struct end *end, void *argument)
{
    enum { RECEIVES = 8 };
    struct srq_scene *scene = argument;
    int fd = open(scene->file, O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
    struct ibv_xrcd_init_attr domain = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = O_CREAT};
    struct ibv_srq_init_attr_ex attr = {.attr = {.max_wr = RECEIVES, .max_sge = 1},
                                        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
                                                     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
                                        .srq_type = IBV_SRQT_XRC,
                                        .pd = end->pd,
                                        .cq = end->recv_cq};
    struct ibv_sge sge = {(uintptr_t)end->buf, 64, end->lkey};
    struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
    struct stat status;

    CHECK(fd >= 0 && fchmod(fd, 0666) == 0 && fstat(fd, &status) == 0, "open: %s", strerror(errno));
    scene->device = status.st_dev;
    scene->inode = status.st_ino;
    attr.xrcd = scene->xrcd = ibv_open_xrcd(end->context, &domain);
    CHECK(scene->xrcd, "ibv_open_xrcd: %s", strerror(errno));
    scene->srq = ibv_create_srq_ex(end->context, &attr);
    CHECK(scene->srq && !ibv_get_srq_num(scene->srq, &scene->number), "ibv_create_srq_ex: %s",
          strerror(errno));
    CHECK_ZERO(ibv_post_srq_recv(scene->srq, &receive, &bad));
    CHECK_ZERO(ibv_post_srq_recv(scene->srq, &receive, &bad));
    close(fd);
}

static void close_srq_here(struct end *end, void *argument)
{
    struct srq_scene *scene = argument;

    CHECK_ZERO(ibv_destroy_srq(scene->srq));
    CHECK_ZERO(ibv_close_xrcd(scene->xrcd));
}

/* Requests that a process with an XRC_RECV QP passes on are those of its own QPs: the number is in completions. */
static void requests_are_passed_on_for_own_qps_only(void **state)
{
    struct srq_scene scene = {.file = "/mnt/domain"};
    struct attacker attacker;
    struct pair p;
    uint32_t block;

    open_victims(&p, IBV_QPT_RC);
    AT(&p.a, open_srq_here, &scene);
    attacker = attack_by_link(&p.a);
    for (block = 0x4711; !tell(&attacker, TAKE, block).done; block++)
        ;
    for (int own = 0; own < 2; own++) {
        const uint32_t qpn = own ? block * BLOCK_QPNS + 4 : p.b.qp_num;
        const struct order terms = {
            .kind = SAY_TERMS, .number = qpn, .device = scene.device, .inode = scene.inode};
        struct order order = {.kind = SAY, .number = qpn, .payload = "x"};
        struct answer answer;

        order.packet = forged(SERVICE_XRC | OP_SEND_ONLY, &p.b, &p.a);
        order.packet.flags = PACKET_RELAYED | PACKET_ACK_REQUEST;
        order.packet.src_qpn = qpn;
        order.packet.dest_qpn = order.packet.srqn = scene.number;
        order.packet.payload_length = 2;
        give(&attacker, &terms);
        (void)answer_of(&attacker);
        give(&attacker, &order);
        (void)answer_of(&attacker);
        answer = tell(&attacker, HEAR, REPLY_MS);
        assert_true(answer.done);
        assert_int_equal(answer.packet.flags & PACKET_DROPPED, own ? 0 : PACKET_DROPPED);
        if (own) {
            struct ibv_wc wc = end_wc(&p.a, RQ);

            assert_int_equal(wc.status, IBV_WC_SUCCESS);
            assert_int_equal(wc.qp_num, qpn);
        }
    }
    attacker_end(&attacker);
    AT(&p.a, close_srq_here, &scene);
    pair_close(&p);
}

/* While the true peer is stopped. */
static void acknowledgements_of_another_process_complete_and_end_nothing(void **state)
{
    enum { NAK_REMOTE_ACCESS = 0x62, LOOKS = 20 };
    static const struct {
        uint8_t syndrome, flags;
    } said[] = {{0x1f, 0}, {NAK_REMOTE_ACCESS, 0}, {0, PACKET_DROPPED}};
    struct attacker attacker;
    struct ibv_wc wc;
    struct pair p;

    open_victims(&p, IBV_QPT_RC);
    end_recv(&p.b, a_recv(&p.b, 3, 0, 64));
    attacker = attack_by_link(&p.a);
    side_stop(PEER);
    end_send(&p.a, a_send(&p.a, 1, 0, 8));
    for (size_t i = 0; i < COUNT(said); i++) {
        struct packet packet = forged(SERVICE_RC | OP_ACKNOWLEDGE, &p.b, &p.a);

        packet.syndrome = said[i].syndrome;
        packet.flags = said[i].flags;
        packet.psn = psn_make(p.a.psn + 1); /* the marker had the first one */
        packet.msn = 2;
        say(&attacker, packet, NULL);
        for (int look = 0; look < LOOKS; look++) {
            await_reading(&attacker, &p.b, &p.a);
            assert_int_equal(end_poll_once(&p.a, SQ, &wc, 1), 0);
        }
        assert_int_equal(end_state(&p.a), IBV_QPS_RTS);
    }
    side_continue(PEER);
    end_expect_success(&p.a, SQ, 1, IBV_WC_SEND);
    end_expect_success(&p.b, RQ, 3, IBV_WC_RECV);
    attacker_end(&attacker);
    pair_close(&p);
}

/* --- datagrams ---------------------------------------------------------------------------------------------- */

static bool datagram_arrives(const struct attacker *attacker, struct end *victim, const struct packet *packet)
{
    struct ibv_wc wc;

    say(attacker, *packet, "datagram");
    {
        /* The ring of a datagram, here, is that of its destination. */
        struct end lane = *victim;

        await_reading(attacker, &lane, victim);
    }
    return end_poll_once(victim, RQ, &wc, 1) == 1;
}

static void datagrams_carry_numbers_and_addresses_of_their_sender(void **state)
{
    struct attacker attacker, next;
    struct packet packet;
    struct pair p;
    struct end own;
    uint32_t block;

    open_victims(&p, IBV_QPT_UD);
    for (unsigned int i = 0; i < 32; i++)
        end_recv(&p.a, a_recv(&p.a, i, 0, GRH + 64));
    attacker = attack_by_link(&p.a);
    for (block = 0x4711; !tell(&attacker, TAKE, block).done; block++)
        ;
    own = p.b;
    own.qp_num = block * BLOCK_QPNS + 1;
    packet = forged(SERVICE_UD | OP_SEND_ONLY, &own, &p.a);
    assert_true(datagram_arrives(&attacker, &p.a, &packet)); /* his own */
    packet = forged(SERVICE_UD | OP_SEND_ONLY, &p.b, &p.a);
    assert_false(datagram_arrives(&attacker, &p.a, &packet));
    packet = forged(SERVICE_UD | OP_SEND_ONLY, &p.a, &p.a); /* the victim's own */
    assert_false(datagram_arrives(&attacker, &p.a, &packet));
    packet = forged(SERVICE_UD | OP_SEND_ONLY, &own, &p.a);
    packet.grh.source[12] ^= 0x55; /* an address of another host */
    assert_false(datagram_arrives(&attacker, &p.a, &packet));
    packet.src_qpn = (block ^ 0x8000) * BLOCK_QPNS; /* nobody's */
    assert_false(datagram_arrives(&attacker, &p.a, &packet));
    /* A block that he gave up, and somebody else took */
    (void)tell(&attacker, LEAVE, 0);
    next = start_attacker(VICTIM_USER);
    assert_true(tell(&next, TAKE, block).done);
    packet = forged(SERVICE_UD | OP_SEND_ONLY, &own, &p.a);
    {
        unsigned int posted = 0;

        EVENTUALLY(!datagram_arrives(&attacker, &p.a, &packet), "that the block has another owner")
        {
            if (posted++ < 20)
                end_recv(&p.a, a_recv(&p.a, 100 + posted, 0, GRH + 64));
            poll(NULL, 0, 100);
        }
        CHECK(posted < 20, "the receives are used up");
    }
    attacker_end(&attacker);
    attacker_end(&next);
    pair_close(&p);
}

static void make_network(void)
{
    CHECK(system("ip link add v0 type veth peer name v1 && ip addr add 10.77.0.1/24 dev v0 && "
                 "ip link set v0 up && ip link set v1 up") == 0,
          "ip");
}

/* Of his own address to the port, which takes datagrams of other hosts. */
static void nor_does_a_datagram_to_the_port_come_from_this_host(void **state)
{
    struct attacker attacker;
    struct order order = {.kind = SEND_BY_NETWORK, .payload = "forged"};
    struct pair p;

    need_root();
    make_network();
    open_victims(&p, IBV_QPT_UD);
    end_recv(&p.a, a_recv(&p.a, 1, 0, GRH + 64));
    attacker = start_attacker(ATTACKER_USER);
    order.packet = forged(SERVICE_UD | OP_SEND_ONLY, &p.b, &p.a);
    order.packet.payload_length = 8;
    CHECK(order.packet.grh.source[12] == 10, "another device");
    for (int i = 0; i < 3; i++) {
        give(&attacker, &order);
        assert_true(answer_of(&attacker).done);
    }
    /* Over the same socket, from who may: the last one is behind the others. */
    end_poke(&p.b, 0, "genuine", 8);
    end_send(&p.b, a_datagram(&p.b, 2, 0, 8, &p.a));
    end_expect_success(&p.a, RQ, 1, IBV_WC_RECV);
    {
        char found[8];

        end_peek(&p.a, GRH, found, sizeof(found));
        assert_string_equal(found, "genuine");
    }
    attacker_end(&attacker);
    pair_close(&p);
}

/* --- all names ------------------------------------------------------------------------------------------------ */

static void a_user_who_takes_all_blocks_stops_nobody(void **state)
{
    const struct end_attr attr = mortal(IBV_QPT_RC), ud = mortal(IBV_QPT_UD);
    struct attacker attackers[ATTACKERS];
    uint32_t next = 1;
    struct rlimit limit, before;
    struct pair p;

    need_root();
    getrlimit(RLIMIT_NOFILE, &before);
    limit = before;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (size_t i = 0; i < ATTACKERS; i++) {
        attackers[i] = start_attacker(ATTACKER_USER);
        next = tell(&attackers[i], TAKE_ALL, next).number;
    }
    setrlimit(RLIMIT_NOFILE, &before);
    if (next < BLOCKS - 1)
        skip_because("not so many descriptors: %u", next);
    make_user(VICTIM, VICTIM_USER);
    make_user(PEER, VICTIM_USER);
    make_user(THIRD, OTHER_USER);
    for (int other = 0; other < 2; other++) {
        end_open(&p.a, VICTIM, &attr);
        end_open(&p.b, other ? THIRD : PEER, &attr);
        end_connect(&p.a, &p.b);
        pair_marker(&p.a, &p.b);
        pair_marker(&p.b, &p.a);
        pair_close(&p);
    }
    end_open(&p.a, VICTIM, &ud);
    end_open(&p.b, PEER, &ud);
    end_connect(&p.a, &p.b);
    end_recv(&p.b, a_recv(&p.b, 1, 0, GRH + 64));
    end_send(&p.a, a_datagram(&p.a, 1, 0, 8, &p.b));
    end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
    for (size_t i = 0; i < ATTACKERS; i++)
        attacker_end(&attackers[i]);
    pair_close(&p);
}

/* --- a crowd at the door ---------------------------------------------------------------------------------------- */

/* Whose number a packet has, its receiver asks by a connection. A third user's connections keep nobody from that. */
static void a_crowd_of_connections_keeps_no_packet_out(void **state)
{
    enum { FORGOTTEN_MS = 1200 };
    const struct end_attr attr = mortal(IBV_QPT_UD);
    struct attacker attacker;
    struct pair p;

    need_root();
    make_user(VICTIM, VICTIM_USER);
    make_user(PEER, OTHER_USER);
    end_open(&p.a, VICTIM, &attr);
    end_open(&p.b, PEER, &attr);
    end_connect(&p.a, &p.b);
    end_recv(&p.a, a_recv(&p.a, 1, 0, GRH + 64));
    end_send(&p.b, a_datagram(&p.b, 1, 0, 8, &p.a));
    end_expect_success(&p.b, SQ, 1, IBV_WC_SEND);
    end_expect_success(&p.a, RQ, 1, IBV_WC_RECV); /* there is a link */
    end_recv(&p.a, a_recv(&p.a, 2, 0, GRH + 64));
    attacker = start_attacker(ATTACKER_USER);
    side_stop(VICTIM);
    end_send(&p.b, a_datagram(&p.b, 2, 0, 8, &p.a));
    end_expect_success(&p.b, SQ, 2, IBV_WC_SEND);
    side_stop(PEER); /* accepts nobody */
    assert_true(tell(&attacker, CROWD, p.b.qp_num).number > 0);
    poll(NULL, 0, FORGOTTEN_MS); /* what is known of another user's process */
    side_continue(VICTIM);
    end_expect_success(&p.a, RQ, 2, IBV_WC_RECV);
    side_continue(PEER);
    attacker_end(&attacker);
    pair_close(&p);
}

/* --- what goes on working -------------------------------------------------------------------------------------- */

static void use_both_ways(struct end *a, struct end *b)
{
    end_connect(a, b);
    pair_marker(a, b);
    pair_marker(b, a);
}

/* The listeners of a process have the credentials of before. */
static void a_process_that_changes_its_user_goes_on(void **state)
{
    const struct end_attr attr = mortal(IBV_QPT_RC);
    struct pair p, later;

    need_root();
    make_user(PEER, VICTIM_USER);
    end_open(&p.a, VICTIM, &attr);
    end_open(&p.b, PEER, &attr);
    end_connect(&p.a, &p.b);
    pair_marker(&p.a, &p.b);
    make_user(VICTIM, ATTACKER_USER);
    pair_marker(&p.a, &p.b);
    pair_marker(&p.b, &p.a);
    end_share(&later.a, &p.a);
    end_share(&later.b, &p.b);
    use_both_ways(&later.a, &later.b);
    end_close_qp(&later.a);
    end_close_qp(&later.b);
    pair_close(&p);
    /* Without a link from before */
    make_user(THIRD, VICTIM_USER);
    end_open(&p.a, VICTIM, &attr);
    end_open(&p.b, THIRD, &attr);
    use_both_ways(&p.b, &p.a);
    pair_close(&p);
}

static void nor_does_a_change_before_the_first_link_hinder_it(void **state)
{
    const struct end_attr attr = mortal(IBV_QPT_RC), ud = mortal(IBV_QPT_UD);
    struct pair p;

    need_root();
    for (int first = 0; first < 2; first++) {
        end_open(&p.a, VICTIM, first ? &ud : &attr);
        end_open(&p.b, PEER, first ? &ud : &attr);
        if (!first)
            make_user(VICTIM, VICTIM_USER);
        end_connect(&p.a, &p.b);
        if (first) {
            end_recv(&p.b, a_recv(&p.b, 1, 0, GRH + 64));
            end_send(&p.a, a_datagram(&p.a, 1, 0, 8, &p.b));
            end_expect_success(&p.b, RQ, 1, IBV_WC_RECV);
        } else {
            pair_marker(&p.a, &p.b);
            pair_marker(&p.b, &p.a);
        }
        pair_close(&p);
    }
}

/* The rest of the side runs in a child, in a pid namespace of its own. */
static void leave_pids_here(void *argument)
{
    pid_t child;
    int status;

    CHECK(unshare(CLONE_NEWPID) == 0, "unshare: %s", strerror(errno));
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return;
    }
    waitpid(child, &status, 0);
    _exit(0);
}

static void processes_in_other_pid_namespaces_are_told_apart(void **state)
{
    const struct end_attr attr = mortal(IBV_QPT_RC), ud = mortal(IBV_QPT_UD);
    struct pair p, q;

    need_root();
    side_call(PEER, leave_pids_here, NULL, 0);
    side_call(THIRD, leave_pids_here, NULL, 0);
    end_open(&p.a, VICTIM, &attr);
    end_open(&p.b, PEER, &attr);
    end_share(&q.a, &p.a);
    end_open(&q.b, THIRD, &attr);
    use_both_ways(&p.a, &p.b);
    use_both_ways(&q.b, &q.a);
    end_close(&p.b);
    end_open(&p.b, PEER, &ud);
    end_close(&q.b);
    end_open(&q.b, THIRD, &ud);
    end_connect(&p.b, &q.b);
    end_recv(&q.b, a_recv(&q.b, 1, 0, GRH + 64));
    end_send(&p.b, a_datagram(&p.b, 1, 0, 8, &q.b));
    end_expect_success(&q.b, RQ, 1, IBV_WC_RECV);
    end_close(&p.b);
    end_close(&q.b);
    end_close_qp(&q.a);
    end_close(&p.a);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(a_block_taken_from_a_dead_peer_gives_no_connection, .fars = CLAIM_SIDES),
        TEST_WITH(nor_does_one_taken_by_the_same_user_until_the_qp_is_connected_anew, .fars = 3),
        TEST_WITH(a_process_that_begins_anew_is_another_one, .fars = 1),
        TEST_WITH(requests_of_another_process_are_dropped_like_those_for_nobody, .fars = CLAIM_SIDES),
        TEST_WITH(nor_do_references_and_deposits_of_another_process_count, .fars = CLAIM_SIDES),
        TEST_WITH(requests_are_passed_on_for_own_qps_only, .fars = CLAIM_SIDES),
        TEST_WITH(acknowledgements_of_another_process_complete_and_end_nothing, .fars = CLAIM_SIDES),
        TEST_WITH(datagrams_carry_numbers_and_addresses_of_their_sender, .fars = CLAIM_SIDES),
        TEST_WITH(nor_does_a_datagram_to_the_port_come_from_this_host, .fars = CLAIM_SIDES),
        TEST_WITH(a_user_who_takes_all_blocks_stops_nobody, .fars = 3),
        TEST_WITH(a_crowd_of_connections_keeps_no_packet_out, .fars = CLAIM_SIDES),
        TEST_WITH(a_process_that_changes_its_user_goes_on, .fars = 3),
        TEST_WITH(nor_does_a_change_before_the_first_link_hinder_it, .fars = CLAIM_SIDES),
        TEST_WITH(processes_in_other_pid_namespaces_are_told_apart, .fars = 3),
    };

    enter_own_host();
    return run_topic(tests, COUNT(tests), argc, argv);
}
