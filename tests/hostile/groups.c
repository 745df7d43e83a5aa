/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Multicast groups: an attacker speaks to a group in the name of others, or joins groups until nothing is left. */
#include "claims_scene.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "wire/opcode.h"

enum { MULTICAST_QPN = 0xffffff, RECEIVES = 16, DESCRIPTORS = 128, GROUPS = 400, LEFT = 56 };

static const union ibv_gid group = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, 9, 9, 9}};

struct membership {
    union ibv_gid gid;
    int result;
};

static void attach_here(struct end *end, void *argument)
{
    struct membership *m = argument;

    m->result = ibv_attach_mcast(end->qp, &m->gid, 0);
}

static void detach_here(struct end *end, void *argument)
{
    struct membership *m = argument;

    m->result = ibv_detach_mcast(end->qp, &m->gid, 0);
}

static int attach(struct end *end, const union ibv_gid *gid)
{
    struct membership m = {.gid = *gid};

    AT(end, attach_here, &m);
    return m.result;
}

/* --- in the name of others --------------------------------------------------------------------------------- */

/* To the group; the ring is that of the multicast QPN. */
static bool arrives(const struct attacker *attacker, struct end *victim, struct packet packet)
{
    const struct end lane = {.qp_num = MULTICAST_QPN % 4};
    struct ibv_wc wc;

    packet.dest_qpn = MULTICAST_QPN;
    memcpy(packet.grh.destination, group.raw, 16);
    say(attacker, packet, "to all");
    await_reading(attacker, &lane, victim);
    return end_poll_once(victim, RQ, &wc, 1) == 1;
}

static void a_group_is_spoken_to_with_own_numbers_and_addresses(void **state)
{
    struct membership m = {.gid = group};
    struct attacker attacker;
    struct packet packet;
    struct pair p;
    struct end own;
    uint32_t block;

    open_victims(&p, IBV_QPT_UD);
    for (unsigned int i = 0; i < RECEIVES; i++)
        end_recv(&p.a, a_recv(&p.a, i, 0, GRH + 64));
    assert_int_equal(attach(&p.a, &group), 0);
    attacker = attack_by_link(&p.a);
    for (block = 0x4711; !tell(&attacker, TAKE, block).done; block++)
        ;
    own = p.b;
    own.qp_num = block * BLOCK_QPNS + 1;
    /* Who is no member may send, as on a network. */
    packet = forged(SERVICE_UD | OP_SEND_ONLY, &own, &p.a);
    assert_true(arrives(&attacker, &p.a, packet));
    packet = forged(SERVICE_UD | OP_SEND_ONLY, &p.b, &p.a);
    assert_false(arrives(&attacker, &p.a, packet));
    packet = forged(SERVICE_UD | OP_SEND_ONLY, &p.a, &p.a);
    assert_false(arrives(&attacker, &p.a, packet));
    packet.src_qpn = (block ^ 0x8000) * BLOCK_QPNS; /* nobody's */
    assert_false(arrives(&attacker, &p.a, packet));
    packet = forged(SERVICE_UD | OP_SEND_ONLY, &own, &p.a);
    packet.grh.source[12] ^= 0x55; /* another host's */
    assert_false(arrives(&attacker, &p.a, packet));
    packet = forged(SERVICE_UD | OP_SEND_ONLY, &own, &p.a);
    packet.qkey ^= 1;
    assert_false(arrives(&attacker, &p.a, packet));
    AT(&p.a, detach_here, &m);
    attacker_end(&attacker);
    pair_close(&p);
}

/* --- joins --------------------------------------------------------------------------------------------------- */

static void limit_descriptors(void *argument)
{
    const struct rlimit limit = {DESCRIPTORS, DESCRIPTORS};

    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit: %s", strerror(errno));
}

static void count_descriptors(void *argument)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned int count = 0;

    CHECK(directory, "opendir: %s", strerror(errno));
    while (readdir(directory))
        count++;
    closedir(directory);
    *(unsigned int *)argument = count;
}

static void join_many(struct end *end, void *argument)
{
    unsigned int *joined = argument;

    for (unsigned int i = 0; i < GROUPS; i++) {
        union ibv_gid gid = group;

        gid.raw[13] = (uint8_t)(i >> 8);
        gid.raw[14] = 77;
        gid.raw[15] = (uint8_t)i;
        *joined += ibv_attach_mcast(end->qp, &gid, 0) == 0;
    }
}

/* The owner of UDP port 4791 joins groups for others, each with sockets of his. */
static void whoever_joins_groups_leaves_descriptors_to_others(void **state)
{
    const struct end_attr attr = mortal(IBV_QPT_UD);
    struct end owner, greedy, other;
    struct membership m = {.gid = group};
    unsigned int joined = 0, held;

    need_root();
    CHECK(system("ip link add v0 type veth peer name v1 && ip addr add 10.77.0.1/24 dev v0 && "
                 "ip link set v0 up && ip link set v1 up") == 0,
          "ip");
    make_user(VICTIM, VICTIM_USER);
    side_call(VICTIM, limit_descriptors, NULL, 0);
    end_open(&owner, VICTIM, &attr);
    end_to_init(&owner);
    assert_int_equal(attach(&owner, &m.gid), 0); /* the first who needs the port owns it */
    AT(&owner, detach_here, &m);
    make_user(PEER, ATTACKER_USER);
    end_open(&greedy, PEER, &attr);
    end_to_init(&greedy);
    AT(&greedy, join_many, &joined);
    side_call(VICTIM, count_descriptors, &held, sizeof(held));
    CHECK(held < DESCRIPTORS - LEFT, "%u groups cost %u of %u descriptors", joined, held,
          (unsigned)DESCRIPTORS);
    assert_int_equal(attach(&owner, &group), 0);
    make_user(THIRD, OTHER_USER);
    end_open(&other, THIRD, &attr);
    end_to_init(&other);
    assert_int_equal(attach(&other, &group), 0);
    AT(&other, detach_here, &m);
    AT(&owner, detach_here, &m);
    end_close(&other);
    side_kill(PEER);
    end_close(&owner);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        TEST_WITH(a_group_is_spoken_to_with_own_numbers_and_addresses, .fars = CLAIM_SIDES),
        TEST_WITH(whoever_joins_groups_leaves_descriptors_to_others, .fars = 3),
    };

    enter_own_host();
    return run_topic(tests, COUNT(tests), argc, argv);
}
