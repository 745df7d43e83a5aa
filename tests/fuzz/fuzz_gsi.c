/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* QP1 (engine/cm/gsi.c) with a scheduler that does everything at the worst time: lanes fill up, links go down, names
 * have no holder, searches end late or twice, timers come early, allocations fail, and what peers send is hostile.
 * The file is part of this one, so that its counters can be compared with its lists after each step.
 *
 * Each MAD ends somewhere, and nothing of it remains. A MAD reaches the state machine only from a process that may
 * send it.
 *
 * Input: steps. A step begins with a byte that selects it. */
#include "../../src/engine/cm/gsi.c"

#include "allocations.h"
#include "fuzz.h"
#include "wire/cm_mad.h"

#include <unistd.h>

#define LINKS    4u
#define COOKIES  8u
#define STEPS    48u
#define OWN_LINK 1u /* another process of our user; 0: this process; the others are of other users */

struct lane {
    char before[LANE_OWNER_AT];
    struct lane_state state; /* lane_owner_data() */
    struct link *link;
    unsigned space;
    bool blocked;
};

struct link {
    uint64_t serial;
    bool up;
    uid_t uid;
    struct lane lane;
};

static struct link links[LINKS];
static uint64_t cookies[COOKIES]; /* of searches that have not ended; 0: none */
static ns_t timer;
static bool is_receiving, expects_mad;
static unsigned depth;

struct device_table host_devices;

/* Nothing is captured. */
_Atomic(struct capture *) capture_attached;

void capture_mad_sent(const struct cm_path *to, const uint8_t *mad)
{
    require(false);
}

void capture_mad_arrived(const struct packet *packet, const uint8_t *mad, bool from_host)
{
    require(false);
}

static const uint8_t here[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
static const uint8_t elsewhere[16] = {[10] = 0xff, [11] = 0xff, [12] = 192, [14] = 2, [15] = 9};

/* --- allocations ------------------------------------------------------------------------------------ */

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

void *__wrap_malloc(size_t size)
{
    void *memory = allocation_fails() ? NULL : __real_malloc(size);

    live += memory != NULL;
    return memory;
}

/* --- the rooms around it --------------------------------------------------------------------------------------- */

bool device_table_is_local(struct device_table *table, const uint8_t gid[16], uint32_t *ret_ifindex)
{
    *ret_ifindex = 1;
    return memcmp(gid, here, 16) == 0;
}

struct lane *link_lane(struct link *link, uint32_t local_qpn)
{
    return &link->lane;
}

struct link *lane_link(struct lane *lane)
{
    return lane->link;
}

bool port_of_gid_is_down(const uint8_t gid[16])
{
    return false;
}

bool lane_is_blocked(const struct lane *lane)
{
    return lane->blocked;
}

void lane_ring(struct lane *lane)
{
}

bool link_is_self(const struct link *link)
{
    return link == &links[0];
}

uid_t link_peer_uid(const struct link *link)
{
    return link->uid;
}

pid_t link_peer_pid(const struct link *link)
{
    return 1;
}

uint64_t link_process(const struct link *link)
{
    return link->serial;
}

uint64_t local_self_serial(void)
{
    return links[0].serial;
}

/* A link that is up, or none. */
static struct link *some_link(uint8_t choice)
{
    struct link *link = &links[choice % LINKS];

    return link->up ? link : NULL;
}

struct link *local_link_of_process(uint64_t process)
{
    return some_link((uint8_t)process);
}

struct link *local_known_owner(uint32_t block)
{
    return block & 0x100 ? some_link((uint8_t)block) : NULL;
}

bool local_is_owner(struct link *link, uint32_t block)
{
    return block % LINKS == (unsigned)(link - links);
}

void local_block_name(uint32_t block, char ret_text[LOCAL_BLOCK_NAME_MAX + 1])
{
    snprintf(ret_text, LOCAL_BLOCK_NAME_MAX + 1, "block%u", block & 7);
}

unsigned services_names(uint64_t service_id, const uint8_t gid[16], bool from_here,
                        char ret_names[SERVICE_NAMES][LOCAL_NAME_MAX + 1])
{
    for (unsigned i = 0; i < SERVICE_NAMES; i++)
        snprintf(ret_names[i], LOCAL_NAME_MAX + 1, "%u/%u", (unsigned)service_id & 7, i);
    return from_here ? 3 : 2;
}

int local_name_find(const char *text, struct link **ret_link)
{
    static const int errors[] = {0, -ECONNREFUSED, -EAGAIN, -EMFILE};
    uint8_t choice = input_8(&input);

    *ret_link = some_link(choice / 4);
    return errors[choice % 4] || *ret_link ? errors[choice % 4] : -ECONNREFUSED;
}

struct link *local_name_recall(const char *text)
{
    uint8_t choice = input_8(&input);

    return choice % 4 ? NULL : some_link(choice / 4);
}

int local_name_search(const char *text, uint64_t cookie)
{
    require(strlen(text) <= LOCAL_NAME_MAX && cookie);
    for (unsigned i = 0; i < COOKIES; i++) {
        if (!cookies[i]) {
            cookies[i] = cookie;
            return 0;
        }
    }
    return -ENOMEM;
}

void local_for_each_peer(void (*visit)(struct link *link, void *argument), void *argument)
{
    for (unsigned i = 0; i < LINKS; i++) {
        if (links[i].up)
            visit(&links[i], argument);
    }
}

void timers_set_late(enum late which, ns_t at)
{
    require(which == LATE_GSI);
    timer = at;
}

bool network_is_forced(void)
{
    return false;
}

void network_send_mad(const struct cm_path *to, const uint8_t mad[MAD_LENGTH])
{
    require(memcmp(to->remote_gid, elsewhere, 16) == 0);
}

void network_flush_mads(void)
{
}

bool udp_trusts(uid_t uid)
{
    return uid == geteuid() || uid == links[2].uid;
}

int lane_send(struct lane *lane, const struct packet *packet, const struct iovec *gather,
              unsigned gather_count)
{
    require(gather_count == 1 && gather->iov_len == MAD_LENGTH && packet->payload_length == MAD_LENGTH);
    require(packet->dest_qpn == MAD_QPN && packet->qkey == MAD_QKEY);
    require(!(packet->flags & ~PACKET_FROM_NETWORK));
    if (!lane->link->up)
        return -EHOSTUNREACH;
    if (lane->space) {
        lane->space--;
        return 0;
    }
    /* Perhaps the peer has read meanwhile: then the lane is not blocked. */
    lane->blocked = input_8(&input) % 4 != 0;
    lane->space = lane->blocked ? 0 : 1;
    return -EAGAIN;
}

/* The state machine answers, in the middle of the call. */
void cm_agent_receive(const struct cm_path *from, const uint8_t mad[MAD_LENGTH])
{
    struct cm_path back = *from;

    require(memcmp(from->local_gid, here, 16) == 0 && (!is_receiving || expects_mad));
    if (depth++ < 4 && input.left && input_8(&input) % 4 == 0)
        gsi_post(&back, mad);
    depth--;
}

/* --- checks -------------------------------------------------------------------------------------------------- */

static void count(struct list *list, uint32_t *all, uint32_t *from_network, uint32_t *charged)
{
    list_for_each (node, list) {
        const struct outgoing *outgoing = outgoing_of(node);

        *all += 1;
        *from_network += outgoing->from_network;
        *charged += outgoing->charge.kind == CHARGE_OTHER;
    }
}

static void check(void)
{
    uint32_t queued = 0, waiting = 0, from_network = 0, charged = 0, in_absent = 0;

    require(!flushing);
    count(&outbox, &queued, &from_network, &charged);
    count(&absent, &waiting, &in_absent, &charged);
    from_network += in_absent;
    require(from_network_absent == in_absent && in_absent <= FROM_NETWORK_ABSENT_MAX);
    list_for_each (node, &searches)
        count(&list_entry(node, struct search, node)->waiting, &waiting, &from_network, &charged);
    require(charged == 0);
    for (unsigned i = 0; i < LINKS; i++) {
        uint32_t in_lane = 0, of_others = 0;

        count(&links[i].lane.state.mads, &in_lane, &from_network, &of_others);
        /* A MAD waits only for a lane that will say that it has space. */
        require(!in_lane || links[i].lane.blocked);
        require(of_others == (i > OWN_LINK ? in_lane : 0));
        waiting += in_lane - of_others;
        charged += of_others;
    }
    require(atomic_load(&waiting_mads.own) == waiting && waiting_mads.used == charged);
    require(atomic_load(&from_network_count) == from_network && from_network <= FROM_NETWORK_MAX);
    /* What waits for its next lookup has a timer. */
    require(timer == next_lookup());
}

/* --- steps --------------------------------------------------------------------------------------------------- */

enum step {
    POSTS,
    FLUSHES,
    RECEIVES,
    RECEIVES_FROM_NETWORK,
    FOUND,
    WRITABLE,
    GOES_DOWN,
    COMES_UP,
    TIME_PASSES,
    DUE,
    FAILS,
    STEP_KINDS
};

static void make_mad(uint8_t ret_mad[MAD_LENGTH])
{
    static const uint16_t attributes[] = {CM_REQ, CM_REP, CM_RTU, CM_REJ, CM_DREQ, CM_DREP, CM_SIDR_REQ};
    uint8_t choice = input_8(&input);
    struct cm_mad mad;

    memset(&mad, 0, sizeof(mad));
    mad.attribute = attributes[choice % array_size(attributes)];
    mad.local_comm_id = (uint32_t)choice << 16;
    mad.remote_comm_id = (uint32_t)input_16(&input) << 16;
    mad.transaction_id = choice;
    cm_mad_encode(&mad, ret_mad);
    input_mutate(&input, ret_mad, MAD_LENGTH);
}

static void make_path(struct cm_path *ret_path)
{
    uint8_t choice = input_8(&input);

    memset(ret_path, 0, sizeof(*ret_path));
    memcpy(ret_path->local_gid, choice & 1 ? here : elsewhere, 16);
    memcpy(ret_path->remote_gid, choice & 2 ? elsewhere : here, 16);
    ret_path->peer = choice >> 4;
}

static void post_one(void)
{
    uint8_t mad[MAD_LENGTH];
    struct cm_path path;

    make_path(&path);
    make_mad(mad);
    gsi_post(&path, mad);
}

/* The packet lies in memory of exactly its size. */
static void receive_one(bool from_wire)
{
    struct link *link = &links[input_8(&input) % LINKS];
    struct packet packet = {.opcode = MAD_OPCODE,
                            .dest_qpn = MAD_QPN,
                            .src_qpn = MAD_QPN,
                            .qkey = MAD_QKEY,
                            .payload_length = MAD_LENGTH};
    struct cm_path path;
    uint8_t change = input_8(&input), mad[MAD_LENGTH], *copy;
    bool claims, may;
    uint32_t comm_id;

    make_path(&path);
    make_mad(mad);
    memcpy(packet.grh.source, path.remote_gid, 16);
    memcpy(packet.grh.destination, path.local_gid, 16);
    packet.flags = change & 1 ? PACKET_FROM_NETWORK : 0;
    packet.opcode = change & 16 ? SERVICE_RC | OP_SEND_ONLY : MAD_OPCODE;
    packet.qkey = change & 32 ? 7 : MAD_QKEY;
    packet.src_qpn = change & 64 ? 5 : MAD_QPN;
    packet.payload_length = change & 128 ? change : MAD_LENGTH;
    copy = __real_malloc(packet.payload_length);
    require(copy);
    memcpy(copy, mad, packet.payload_length);
    packet.payload = copy;
    if (from_wire) {
        gsi_receive_from_network(&packet);
    } else {
        claims = cm_mad_claim(mad, MAD_LENGTH, &comm_id);
        may = packet.flags & PACKET_FROM_NETWORK
                  ? link->uid != links[3].uid && memcmp(packet.grh.source, here, 16) != 0
                  : memcmp(packet.grh.source, here, 16) == 0 &&
                        (!claims || (comm_id >> 16) % LINKS == (unsigned)(link - links));
        expects_mad = may && !(change & 0xb0) && memcmp(packet.grh.destination, here, 16) == 0;
        is_receiving = true;
        gsi_receive(&link->lane, &packet);
        is_receiving = expects_mad = false;
    }
    __real_free(copy);
}

static void end_search(unsigned number, struct link *link)
{
    uint64_t cookie = cookies[number];

    cookies[number] = 0;
    gsi_found(cookie, link);
    gsi_found(cookie, link); /* a second end finds nothing */
}

static void bring_down(struct link *link)
{
    link->up = false;
    link->lane.blocked = false;
    gsi_lane_down(&link->lane.state);
}

static void make_writable(struct link *link, unsigned space)
{
    link->lane.space = space;
    link->lane.blocked = false;
    gsi_lane_writable(&link->lane, &link->lane.state);
}

static void take_step(uint8_t choice)
{
    unsigned number = choice / STEP_KINDS;
    struct link *link = &links[number % LINKS];

    switch ((enum step)(choice % STEP_KINDS)) {
    case POSTS:
        for (unsigned i = 0; i <= number; i++)
            post_one();
        break;
    case FLUSHES:
        gsi_flush();
        break;
    case RECEIVES:
        receive_one(false);
        break;
    case RECEIVES_FROM_NETWORK:
        receive_one(true);
        break;
    case FOUND:
        end_search(number % COOKIES, some_link(input_8(&input)));
        break;
    case WRITABLE:
        make_writable(link, input_8(&input) % 8);
        break;
    case GOES_DOWN:
        bring_down(link);
        break;
    case COMES_UP:
        link->up = true;
        break;
    case TIME_PASSES:
        now += (ns_t)(number + 1) * NS_PER_MS * (input_8(&input) + 1u);
        break;
    case DUE:
        gsi_due();
        break;
    case FAILS:
        allocations_fail = number & 1;
        break;
    case STEP_KINDS:
        break;
    }
}

static void start(void)
{
    now = NS_PER_S;
    timer = NS_NEVER;
    allocations_fail = false;
    memset(cookies, 0, sizeof(cookies));
    for (unsigned i = 0; i < LINKS; i++) {
        links[i] = (struct link){.serial = i + 1,
                                 .up = true,
                                 .uid = i > OWN_LINK ? geteuid() + i : geteuid(),
                                 .lane = {.link = &links[i], .space = 2}};
        list_init(&links[i].lane.state.mads);
        lock_init(&links[i].lane.state.lock);
    }
}

/* All links end, all searches fail, and no service comes: every MAD has an end. */
static void finish(void)
{
    allocations_fail = false;
    input.left = 0;
    for (unsigned i = 0; i < LINKS; i++)
        bring_down(&links[i]);
    for (unsigned round = 0; round < 4 * LOOKUPS; round++) {
        now += NS_PER_S;
        gsi_due();
        for (unsigned i = 0; i < COOKIES; i++)
            end_search(i, NULL);
    }
    check();
    require(list_empty(&outbox) && list_empty(&searches) && list_empty(&absent) && timer == NS_NEVER);
    require(live == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool registered;

    if (!registered) { /* what the thread allocates once */
        rundown_enter();
        rundown_exit();
        registered = true;
    }
    live = 0;
    input = (struct input){data, size};
    start();
    for (unsigned step = 0; input.left && step < STEPS; step++) {
        take_step(input_8(&input));
        check();
    }
    finish();
    return 0;
}

/* --- seeds --------------------------------------------------------------------------------------------------- */

void fuzz_seeds(fuzz_add *add)
{
    /* path, MAD (attribute, comm id), no changes; then what the lookups find */
    for (uint8_t attribute = 0; attribute < 7; attribute++) {
        for (uint8_t found = 0; found < 16; found++) {
            const uint8_t bytes[] = {POSTS,
                                     0x11,
                                     attribute,
                                     1,
                                     found,
                                     0,
                                     FLUSHES,
                                     found,
                                     found,
                                     found,
                                     0,
                                     FOUND,
                                     found,
                                     WRITABLE,
                                     found,
                                     TIME_PASSES,
                                     200,
                                     DUE,
                                     found,
                                     found,
                                     found,
                                     RECEIVES_FROM_NETWORK,
                                     0,
                                     0,
                                     1,
                                     attribute,
                                     found,
                                     0,
                                     0,
                                     FLUSHES,
                                     found,
                                     2,
                                     2,
                                     DUE,
                                     GOES_DOWN + STEP_KINDS,
                                     FAILS + STEP_KINDS,
                                     POSTS,
                                     1,
                                     1};
            const uint8_t received[] = {RECEIVES,  (uint8_t)(found % 4),
                                        found & 1, 0x01,
                                        attribute, 0,
                                        found,     0,
                                        RECEIVES,  (uint8_t)(found % 4),
                                        1,         0x03,
                                        attribute, 0,
                                        found,     0,
                                        FLUSHES,   found,
                                        found};

            add(bytes, sizeof(bytes));
            add(received, sizeof(received));
        }
    }
}
