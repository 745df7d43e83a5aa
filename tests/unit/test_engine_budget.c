/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What waits for a peer that writes and never reads. One side is the engine with a listener; the other sides are
 * processes of other users with a link. */
/* First: `seen` is a global variable of the sides. */
#include "engine/direct/access_slot.h"
#include "engine/direct/direct.h"

#include "test_local_sides.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cm/agent.h"
#include "wire/opcode.h"

/* Users without accounts. */
enum { GREEDY = 61041, MODEST };
enum { ATTACKERS = 4 };
/* More MADs, and for each lane more packets, than may wait for all peers together. */
enum { MADS = 80000, PACKETS = 70000 };
enum { KEY = 7 };
enum { ATTACKED, DONE, GIVEN_UP }; /* words of the board */

#define SERVICE 0x0000000001060000ull

static const uint8_t loopback[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};

/* --- the engine's side ---------------------------------------------------------------------------------- */

static int refuse(void *listener, struct cm_agent_id *agent_id, const struct cm_request *request,
                  void **ret_context)
{
    return CM_REASON_CONSUMER;
}

static void ignore(void *context, const struct cm_event *event)
{
}

static size_t resident(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long size, pages;

    CHECK(file && fscanf(file, "%lu %lu", &size, &pages) == 2);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void listens(unsigned number)
{
    static const struct cm_agent_owner owner = {.request = refuse, .event = ignore};
    const struct cm_agent_calls *calls = &cm_agent_calls;
    struct service_address address = {.service_id = SERVICE | (getpid() & 0x7fff)};
    struct service *service;
    uint32_t qpn;
    size_t before;

    CHECK(calls->start(&owner) == 0);
    memcpy(address.gid, loopback, 16);
    CHECK(calls->service_reserve(&address, false, &service) == 0);
    CHECK(calls->service_listen(service, &board, 16) == 0);
    CHECK(local_qpn_allocate(&qpn) == 0);
    before = resident();
    atomic_store(&board->value[0], address.service_id);
    atomic_store(&board->qpn[number], qpn);
    while (!atomic_load(&board->word[DONE]))
        usleep(1000);
    atomic_store(&board->value[1], resident() - before);
    calls->service_release(service);
}

static void note_peer(struct link *link, void *argument)
{
    bool *found = argument;

    *found |= !link_is_self(link);
}

/* The peer may have its end of the link before this process has read READY. */
static void await_link(void)
{
    bool found = false;

    while (!found) {
        usleep(1000);
        local_for_each_link(note_peer, &found);
    }
}

/* Takes memory back that peers say they access. */
static void takes_memory_back(unsigned number)
{
    static const struct cm_agent_owner owner = {.request = refuse, .event = ignore};
    uint32_t qpn;

    CHECK(cm_agent_calls.start(&owner) == 0 && local_qpn_allocate(&qpn) == 0);
    atomic_store(&board->qpn[number], qpn);
    while (!atomic_load(&board->word[ATTACKED]))
        usleep(1000);
    await_link();
    atomic_store(&board->word[GIVEN_UP], direct_settle(OBJECT_MR, KEY, SETTLE_STORES));
    atomic_store(&board->word[DONE], 1);
}

/* --- the other sides ------------------------------------------------------------------------------------ */

static void become(uid_t user)
{
    CHECK(setgroups(0, NULL) == 0 && setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0);
    side_up();
}

struct mad_packet {
    struct packet packet;
    uint8_t payload[MAD_LENGTH];
};

static void write_request(struct mad_packet *out, uint64_t service_id, uint32_t comm_id)
{
    struct cm_mad mad = {
        .attribute = CM_REQ,
        .transaction_id = 0x1122334455667788,
        .local_comm_id = comm_id,
        .req = {.service_id = service_id,
                .ca_guid = 1,
                .qpn = 0x1234,
                .starting_psn = 5,
                .remote_response_timeout = 20,
                .local_response_timeout = 20,
                .retry_count = 7,
                .max_cm_retries = 15,
                .pkey = 0xffff,
                .path_mtu = 3,
                .primary = {.local_lid = 0xffff, .remote_lid = 0xffff, .hop_limit = 64, .packet_rate = 3}},
    };

    memcpy(mad.req.primary.local_gid, loopback, 16);
    memcpy(mad.req.primary.remote_gid, loopback, 16);
    *out = (struct mad_packet){.packet = {.opcode = SERVICE_UD | OP_SEND_ONLY,
                                          .pkey = 0xffff,
                                          .dest_qpn = MAD_QPN,
                                          .src_qpn = MAD_QPN,
                                          .qkey = MAD_QKEY,
                                          .dest_ifindex = 1,
                                          .payload_length = MAD_LENGTH,
                                          .grh = {.hop_limit = 64}}};
    memcpy(out->packet.grh.source, loopback, 16);
    memcpy(out->packet.grh.destination, loopback, 16);
    cm_mad_encode(&mad, out->payload);
}

/* Writes the packet, and reads nothing. */
static void write_deaf(struct lane *lane, const struct packet *packet, const void *payload)
{
    struct iovec gather = {(void *)(uintptr_t)payload, packet->payload_length};
    int result;

    do {
        rundown_enter();
        result = lane_send(lane, packet, &gather, packet->payload_length != 0);
        lane_ring(lane);
        rundown_exit();
        if (result == -EAGAIN)
            turn_deaf(1);
    } while (result == -EAGAIN);
    CHECK(result == 0);
}

static void stay(void)
{
    atomic_fetch_add(&board->word[ATTACKED], 1);
    while (!atomic_load(&board->word[DONE]))
        turn_deaf(1);
}

/* Each request is answered with a REJ, which waits. */
static void asks_and_never_listens(unsigned number)
{
    struct mad_packet out;
    struct link *link;
    uint32_t block;

    become(GREEDY);
    block = publish_qpn(number) >> 8;
    link = find_link(await_qpn(0));
    CHECK(link);
    for (uint32_t i = 0; i < MADS; i++) {
        write_request(&out, atomic_load(&board->value[0]), block << 16 | (i & 0xffff));
        write_deaf(link_lane(link, MAD_QPN), &out.packet, out.payload);
    }
    stay();
}

static unsigned answers;

static void note_answer(struct lane *lane, const struct packet *packet)
{
    struct cm_mad mad;

    CHECK(packet->dest_qpn == MAD_QPN && cm_mad_decode(packet->payload, MAD_LENGTH, &mad) == 0);
    answers += mad.attribute == CM_REJ && mad.rej.reason == CM_REASON_CONSUMER;
}

static void asks_after_that(unsigned number)
{
    struct mad_packet out;
    struct link *link;
    uint32_t block;

    while (!atomic_load(&board->word[ATTACKED]))
        usleep(1000);
    become(MODEST);
    block = publish_qpn(number) >> 8;
    link = find_link(await_qpn(0));
    CHECK(link);
    on_packet = note_answer;
    write_request(&out, atomic_load(&board->value[0]), block << 16 | 1);
    write_deaf(link_lane(link, MAD_QPN), &out.packet, out.payload);
    UNTIL(answers > 0);
    atomic_store(&board->word[DONE], 1);
}

/* Requests for QPs that do not exist: each is answered with a drop notice. */
static void writes_to_nobody_and_never_listens(unsigned number)
{
    struct link *link;
    uint32_t own, other;

    become(GREEDY);
    own = publish_qpn(number);
    other = await_qpn(0);
    link = find_link(other);
    CHECK(link);
    for (uint32_t i = 0; i < PACKETS * LOCAL_LANES; i++) {
        const struct packet packet = {.opcode = SERVICE_RC | OP_SEND_ONLY,
                                      .pkey = 0xffff,
                                      .dest_qpn = (other & ~0xffu) | ((other + 1 + i % 64) & 0xff),
                                      .src_qpn = own,
                                      .psn = psn_make(i)};

        write_deaf(link_lane(link, i % LOCAL_LANES), &packet, NULL);
    }
    stay();
}

/* An access that does not end, in every slot. */
static void marks_all_slots(unsigned number)
{
    struct link *link;

    (void)publish_qpn(number);
    link = find_link(await_qpn(0));
    CHECK(link);
    for (uint32_t i = 0; i < LOCAL_ACCESS_SLOTS; i++)
        atomic_store(&access_slot_of(link, true, i)->word,
                     (uint64_t)KEY << ACCESS_SLOT_KEY_SHIFT | ACCESS_STORES);
    atomic_store(admission_of(link, true), ADMISSION_OPEN);
    stay();
}

static void marks_all_slots_as_another_user(unsigned number)
{
    become(GREEDY);
    marks_all_slots(number);
}

static void waits_for_attacks(unsigned number)
{
    while (atomic_load(&board->word[ATTACKED]) < ATTACKERS)
        usleep(1000);
    atomic_store(&board->word[DONE], 1);
}

/* --- tests ---------------------------------------------------------------------------------------------- */

static void need_users(void)
{
    if (geteuid() != 0) {
        print_message("needs root for two more users\n");
        skip();
    }
}

static void test_answers_that_one_user_does_not_read_stop_nobody(void **state)
{
    pid_t pids[3];

    need_users();
    board_clear();
    pids[0] = side_start_bare(listens, 0);
    pids[1] = side_start_bare(asks_and_never_listens, 1);
    pids[2] = side_start_bare(asks_after_that, 2);
    for (unsigned i = 3; i-- > 0;)
        side_finish(pids[i]);
}

/* 28 bytes each, 65536 in each of the lanes: seven mebibytes for each process of the user, if nobody counted. */
static void test_notices_that_one_user_does_not_read_are_few(void **state)
{
    pid_t engine, attackers[ATTACKERS], last;

    need_users();
    board_clear();
    engine = side_start_bare(listens, 0);
    for (unsigned i = 0; i < ATTACKERS; i++)
        attackers[i] = side_start_bare(writes_to_nobody_and_never_listens, 1 + i);
    last = side_start_bare(waits_for_attacks, 7);
    side_finish(last);
    side_finish(engine);
    for (unsigned i = 0; i < ATTACKERS; i++)
        side_finish(attackers[i]);
    print_message("the engine has grown by %llu KiB\n",
                  (unsigned long long)atomic_load(&board->value[1]) / 1024);
    assert_true(atomic_load(&board->value[1]) < 20 << 20);
}

/* Is an access given up that the peer says it is in the middle of? */
static bool is_waited_for(side_fn *peer)
{
    pid_t engine, other;

    board_clear();
    engine = side_start_bare(takes_memory_back, 0);
    other = side_start_bare(peer, 1);
    side_finish(engine);
    side_finish(other);
    return atomic_load(&board->word[GIVEN_UP]);
}

static void as_own_user(unsigned number)
{
    side_up();
    marks_all_slots(number);
}

static void test_who_may_not_access_memory_is_not_waited_for(void **state)
{
    need_users();
    assert_true(is_waited_for(as_own_user));
    assert_false(is_waited_for(marks_all_slots_as_another_user));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_that_one_user_does_not_read_stop_nobody),
        cmocka_unit_test(test_notices_that_one_user_does_not_read_are_few),
        cmocka_unit_test(test_who_may_not_access_memory_is_not_waited_for),
    };

    /* In the test machine's own network: the addresses are checked. */
    return run_unit_tests("engine_budget", tests);
}
