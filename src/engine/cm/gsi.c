/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "engine/cm/gsi.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/budget.h"
#include "base/log.h"
#include "base/rundown.h"
#include "base/sys.h"
#include "engine/cm/agent_events.h"
#include "engine/cm/services.h"
#include "engine/core/capture.h"
#include "engine/core/core.h"
#include "engine/paths/paths.h"
#include "object/device/device.h"
#include "udp/udp.h"
#include "wire/opcode.h"

#define MAD_OPCODE (SERVICE_UD | OP_SEND_ONLY)
/* MADs that wait for space in a ring, or for a link. Further ones are dropped: the CM retransmits. Those that wait in
 * rings of other users' processes, which may never read them, count for these. */
#define WAITING_MAX 65536u
/* A server may close its listener and open it again (perftest -R does between two connections), and a client on the
 * same host is faster. So a service without holder is looked up again, each time after twice the time, before the
 * request is rejected. */
#define LOOKUP_AGAIN_AFTER (1 * NS_PER_MS)
#define LOOKUPS            9u /* half a second */
/* Limits of the MADs from the network that this process stores, some 400 bytes each: all, which is some thousand
 * connections that begin or end at once while the program that they are for has no processor; and those for services
 * without holder. */
#define FROM_NETWORK_MAX        16384u
#define FROM_NETWORK_ABSENT_MAX 64u
#define HOP_LIMIT               64u
#define ECN_MASK                3u

struct outgoing {
    struct list node;
    struct cm_path to;
    unsigned lookups; /* that found no holder of the service */
    ns_t lookup_at;   /* in `absent`: time of the next lookup */
    uint32_t ifindex; /* of the interface with the destination's address; 0: another host */
    bool from_network;
    struct charge charge; /* while it waits: in a ring, to its reader's user; elsewhere, to our own */
    uint8_t mad[MAD_LENGTH];
};

/* MADs that wait for a link to the holder of a name (local_name_search()). */
struct search {
    struct list node, waiting; /* struct outgoing */
    uint64_t cookie;
    char name[LOCAL_NAME_MAX + 1];
};

static struct lock gsi_lock = LOCK_INIT; /* guards what follows */
static struct list outbox = {&outbox, &outbox}, searches = {&searches, &searches};
static struct list absent = {&absent, &absent}; /* for services without holder; wait for the next lookup */
static bool flushing;                           /* a thread is in gsi_flush() and takes what is queued */
static uint64_t last_cookie;
static struct budget waiting_mads = BUDGET_INIT(
    waiting_mads, "unread CM messages (MADs)",
    "The processes of that user do not read their messages: check whether they are stopped or hang");
static _Atomic uint32_t from_network_count;
static unsigned from_network_absent; /* in `absent` */

static struct outgoing *outgoing_of(struct list *node)
{
    return list_entry(node, struct outgoing, node);
}

static void outgoing_free(struct outgoing *outgoing)
{
    if (outgoing->from_network)
        atomic_fetch_sub_explicit(&from_network_count, 1, memory_order_relaxed);
    free(outgoing);
}

/* Without memory the MAD is dropped, as a switch would: the CM retransmits. */
static void post(const struct cm_path *to, const void *mad, bool from_network)
{
    struct outgoing *outgoing;

    if (from_network &&
        atomic_fetch_add_explicit(&from_network_count, 1, memory_order_relaxed) >= FROM_NETWORK_MAX) {
        atomic_fetch_sub_explicit(&from_network_count, 1, memory_order_relaxed);
        return;
    }
    outgoing = malloc(sizeof(*outgoing));
    if (!outgoing) {
        if (from_network)
            atomic_fetch_sub_explicit(&from_network_count, 1, memory_order_relaxed);
        return;
    }
    *outgoing = (struct outgoing){.to = *to, .from_network = from_network};
    memcpy(outgoing->mad, mad, MAD_LENGTH);
    lock_acquire(&gsi_lock);
    list_push_back(&outbox, &outgoing->node);
    lock_release(&gsi_lock);
}

void gsi_post(const struct cm_path *to, const uint8_t mad[MAD_LENGTH])
{
    post(to, mad, false);
}

/* --- into a ring ---------------------------------------------------------------------------------------- */

static int write_mad(struct lane *lane, const struct outgoing *outgoing)
{
    const struct iovec payload = {(void *)(uintptr_t)outgoing->mad, MAD_LENGTH};
    struct packet packet = {
        .opcode = MAD_OPCODE,
        .flags = outgoing->from_network ? PACKET_FROM_NETWORK : 0,
        .pkey = MAD_PKEY,
        .dest_qpn = MAD_QPN,
        .src_qpn = MAD_QPN,
        .qkey = MAD_QKEY,
        .dest_ifindex = outgoing->ifindex,
        .payload_length = MAD_LENGTH,
        .grh = {.flow_label = outgoing->to.flow_label,
                .traffic_class = outgoing->to.traffic_class,
                .hop_limit = outgoing->to.hop_limit,
                .service_level = outgoing->to.service_level},
    };

    memcpy(packet.grh.source, outgoing->to.local_gid, 16);
    memcpy(packet.grh.destination, outgoing->to.remote_gid, 16);
    return lane_send(lane, &packet, &payload, 1);
}

static bool may_wait(struct outgoing *outgoing)
{
    return budget_charge_own(&waiting_mads, WAITING_MAX, &outgoing->charge);
}

static bool may_wait_in(struct link *link, struct outgoing *outgoing)
{
    if (link_is_self(link))
        return may_wait(outgoing);
    return budget_charge(&waiting_mads, link_peer_uid(link), WAITING_MAX, &outgoing->charge);
}

static void waiting_free(struct outgoing *outgoing)
{
    budget_discharge(&waiting_mads, &outgoing->charge);
    outgoing_free(outgoing);
}

/* Writes waiting MADs until the lane is full. Returns whether at least one was written. */
static bool write_waiting(struct lane *lane, struct lane_state *state)
{
    bool written = false;

    lock_acquire(&state->lock);
    while (!list_empty(&state->mads)) {
        struct outgoing *outgoing = outgoing_of(state->mads.next);

        if (write_mad(lane, outgoing) == -EAGAIN) {
            if (lane_is_blocked(lane))
                break; /* gsi_lane_writable() follows */
            continue;
        }
        list_remove(&outgoing->node);
        waiting_free(outgoing);
        written = true;
    }
    lock_release(&state->lock);
    return written;
}

void gsi_lane_writable(struct lane *lane, struct lane_state *state)
{
    if (write_waiting(lane, state))
        lane_ring(lane);
}

void gsi_lane_down(struct lane_state *state)
{
    struct list *node;

    while ((node = list_pop_front(&state->mads)))
        waiting_free(outgoing_of(node));
}

/* Written at once where nothing waits, which charges nobody. state->lock held. */
static bool written_at_once(struct lane *lane, const struct lane_state *state,
                            const struct outgoing *outgoing)
{
    return list_empty(&state->mads) && write_mad(lane, outgoing) != -EAGAIN;
}

/* Takes ownership of the MAD. In a rundown section. */
static void send_on_link(struct link *link, struct outgoing *outgoing)
{
    struct lane *lane = link_lane(link, MAD_QPN);
    struct lane_state *state = lane_state(lane);
    bool written, waits = false;

    lock_acquire(&state->lock);
    written = written_at_once(lane, state, outgoing);
    if (!written)
        waits = may_wait_in(link, outgoing);
    if (waits)
        list_push_back(&state->mads, &outgoing->node);
    lock_release(&state->lock);
    if (written)
        lane_ring(lane);
    if (waits)
        gsi_lane_writable(lane, state);
    else
        outgoing_free(outgoing);
}

/* --- which link ----------------------------------------------------------------------------------------- */

/* No process of this host has the service or the comm id: the state machine of this process handles the MAD in their
 * place, and sends the REJ or DREP that is due. */
static void respond_for_absent(struct outgoing *outgoing)
{
    struct cm_path back = outgoing->to;

    memcpy(back.local_gid, outgoing->to.remote_gid, 16);
    memcpy(back.remote_gid, outgoing->to.local_gid, 16);
    back.peer = outgoing->from_network ? 0 : local_self_serial();
    cm_agent_receive(&back, outgoing->mad);
    outgoing_free(outgoing);
}

/* The search for that name, NULL: none is under way. gsi_lock held. */
static struct search *search_for(const char *name)
{
    list_for_each (node, &searches) {
        struct search *search = list_entry(node, struct search, node);

        if (strcmp(search->name, name) == 0)
            return search;
    }
    return NULL;
}

/* gsi_lock held. */
static struct search *search_new(const char *name)
{
    struct search *search = calloc(1, sizeof(*search));

    if (!search)
        return NULL;
    list_init(&search->waiting);
    memcpy(search->name, name, strnlen(name, LOCAL_NAME_MAX)); /* the caller's array may be shorter */
    search->cookie = ++last_cookie;
    list_push_back(&searches, &search->node);
    return search;
}

/* Has the MAD sent by gsi_found(), when there is a link to the holder of the name. Takes ownership of the MAD. */
static void wait_for_name(const char *name, struct outgoing *outgoing)
{
    struct search *search;
    uint64_t begin = 0;

    if (!may_wait(outgoing)) {
        outgoing_free(outgoing);
        return;
    }
    lock_acquire(&gsi_lock);
    search = search_for(name);
    if (!search) {
        search = search_new(name);
        begin = search ? search->cookie : 0;
    }
    if (search)
        list_push_back(&search->waiting, &outgoing->node);
    lock_release(&gsi_lock);
    if (!search)
        waiting_free(outgoing);
    if (begin && local_name_search(name, begin) != 0)
        gsi_found(begin, NULL);
}

/* Waits with others for a link to the holder of the name. Takes ownership of the MAD, or returns false: nobody
 * waits. */
static bool joins_search(const char *name, struct outgoing *outgoing)
{
    struct search *search;
    bool joins;

    lock_acquire(&gsi_lock);
    search = search_for(name);
    joins = search && may_wait(outgoing);
    if (joins)
        list_push_back(&search->waiting, &outgoing->node);
    lock_release(&gsi_lock);
    return joins;
}

static struct search *take_search(uint64_t cookie)
{
    struct search *found = NULL;

    lock_acquire(&gsi_lock);
    list_for_each (node, &searches) {
        struct search *search = list_entry(node, struct search, node);

        if (search->cookie == cookie) {
            list_remove(&search->node);
            found = search;
            break;
        }
    }
    lock_release(&gsi_lock);
    return found;
}

/* Without a link, the holder is gone or does not respond: the MADs are dropped, and the CM retransmits. */
void gsi_found(uint64_t cookie, struct link *link)
{
    struct search *search = take_search(cookie);
    struct list *node;

    if (!search)
        return;
    rundown_enter();
    while ((node = list_pop_front(&search->waiting))) {
        budget_discharge(&waiting_mads, &outgoing_of(node)->charge);
        if (link)
            send_on_link(link, outgoing_of(node));
        else
            outgoing_free(outgoing_of(node));
    }
    rundown_exit();
    free(search);
}

/* gsi_lock held. */
static ns_t next_lookup(void)
{
    ns_t earliest = NS_NEVER;

    list_for_each (node, &absent)
        earliest = min_of(earliest, outgoing_of(node)->lookup_at);
    return earliest;
}

/* gsi_lock held. */
static bool may_be_absent(const struct outgoing *outgoing)
{
    return !outgoing->from_network || from_network_absent < FROM_NETWORK_ABSENT_MAX;
}

/* Schedules another lookup of the service; after the last one, the request is rejected. */
static void look_up_later(struct outgoing *outgoing)
{
    bool waits = false;

    if (outgoing->lookups < LOOKUPS && may_wait(outgoing)) {
        lock_acquire(&gsi_lock);
        waits = may_be_absent(outgoing);
        if (waits) {
            from_network_absent += outgoing->from_network;
            outgoing->lookup_at = sys_now() + (LOOKUP_AGAIN_AFTER << outgoing->lookups++);
            list_push_back(&absent, &outgoing->node);
            timers_set_late(LATE_GSI, next_lookup());
        }
        lock_release(&gsi_lock);
        if (!waits)
            budget_discharge(&waiting_mads, &outgoing->charge);
    }
    if (!waits)
        respond_for_absent(outgoing);
}

/* Queues the MADs again whose time for a lookup has come. */
void gsi_due(void)
{
    ns_t now = sys_now();

    lock_acquire(&gsi_lock);
    list_for_each_safe (node, following, &absent) {
        if (outgoing_of(node)->lookup_at > now)
            continue;
        list_remove(node);
        from_network_absent -= outgoing_of(node)->from_network;
        budget_discharge(&waiting_mads, &outgoing_of(node)->charge);
        list_push_back(&outbox, node);
    }
    timers_set_late(LATE_GSI, next_lookup());
    lock_release(&gsi_lock);
    gsi_flush();
}

/* false: the name has no holder. Otherwise takes ownership of the MAD. */
static bool send_to_holder(const char *name, struct outgoing *outgoing)
{
    struct link *link;

    switch (local_name_find(name, &link)) {
    case 0:
        send_on_link(link, outgoing);
        return true;
    case -ECONNREFUSED:
        return false;
    case -EAGAIN:
        wait_for_name(name, outgoing);
        return true;
    default:
        outgoing_free(outgoing); /* no descriptors or memory: the CM retransmits */
        return true;
    }
}

static void send_to_service(uint64_t service_id, struct outgoing *outgoing)
{
    char names[SERVICE_NAMES][LOCAL_NAME_MAX + 1];
    unsigned count =
        services_names(service_id, outgoing->to.remote_gid, gid_is_of_host(outgoing->to.local_gid), names);

    /* The first two exclude each other, of whichever processes (services_reserve()). */
    for (unsigned i = 0; i < 2; i++) {
        struct link *link = local_name_recall(names[i]);

        if (link) {
            send_on_link(link, outgoing);
            return;
        }
        if (joins_search(names[i], outgoing))
            return;
    }
    for (unsigned i = 0; i < count; i++) {
        if (send_to_holder(names[i], outgoing))
            return;
    }
    look_up_later(outgoing);
}

/* The upper 16 bits of a comm id are a QPN block of its process. If that process is gone, this one responds. */
static void send_to_block(uint32_t block, struct outgoing *outgoing)
{
    struct link *link = local_known_owner(block);
    char name[LOCAL_BLOCK_NAME_MAX + 1];

    if (link) {
        send_on_link(link, outgoing);
        return;
    }
    local_block_name(block, name);
    link = local_name_recall(name);
    if (link)
        send_on_link(link, outgoing);
    else if (!joins_search(name, outgoing) && !send_to_holder(name, outgoing))
        respond_for_absent(outgoing);
}

/* --- which process -------------------------------------------------------------------------------------- */

static void offer_copy(struct link *link, void *argument)
{
    const struct outgoing *outgoing = argument;
    struct outgoing *copy = malloc(sizeof(*copy));

    if (!copy)
        return;
    *copy = *outgoing;
    if (copy->from_network)
        atomic_fetch_add_explicit(&from_network_count, 1, memory_order_relaxed);
    send_on_link(link, copy);
}

/* Takes ownership of the MAD. In a rundown section. */
static void send_on_host(struct outgoing *outgoing)
{
    uint32_t comm_id;
    uint64_t service_id;
    enum cm_addressee addressee = cm_mad_addressee(outgoing->mad, MAD_LENGTH, &comm_id, &service_id);
    struct link *link = outgoing->to.peer ? local_link_of_process(outgoing->to.peer) : NULL;

    if (addressee == CM_FOR_SERVICE) {
        send_to_service(service_id, outgoing);
    } else if (link) {
        send_on_link(link, outgoing);
    } else if (addressee == CM_FOR_ID && outgoing->from_network) {
        send_to_block(comm_id >> 16, outgoing);
    } else {
        /* The peer process has ended, and the MAD is dropped. But a REJ for a request whose sender is not known
         * (CM_FOR_REQUEST) goes to all processes: the one with the request takes it. */
        if (addressee == CM_FOR_REQUEST && !outgoing->to.peer)
            local_for_each_peer(offer_copy, outgoing);
        outgoing_free(outgoing);
    }
}

/* Takes ownership of the MAD. Returns whether it went to the network. */
static bool send_mad(struct outgoing *outgoing)
{
    bool is_here = device_table_is_local(&host_devices, outgoing->to.remote_gid, &outgoing->ifindex);

    if (!outgoing->from_network && port_of_gid_is_down(outgoing->to.local_gid)) {
        outgoing_free(outgoing);
        return false;
    }
    if (capture_is_attached() && !outgoing->from_network && !outgoing->lookups)
        capture_mad_sent(&outgoing->to, outgoing->mad);
    if (outgoing->from_network || (is_here && !network_is_forced())) {
        send_on_host(outgoing);
        return false;
    }
    network_send_mad(&outgoing->to, outgoing->mad);
    outgoing_free(outgoing);
    return true;
}

void gsi_flush(void)
{
    struct list *node;
    bool to_network = false;
    int cancellation;

    /* The thread may be the program's, and must not be cancelled while other threads leave their MADs to it. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
    rundown_enter();
    lock_acquire(&gsi_lock);
    if (!flushing) {
        flushing = true;
        while ((node = list_pop_front(&outbox))) {
            lock_release(&gsi_lock);
            to_network |= send_mad(outgoing_of(node));
            lock_acquire(&gsi_lock);
        }
        flushing = false;
    }
    lock_release(&gsi_lock);
    if (to_network)
        network_flush_mads();
    rundown_exit();
    pthread_setcancelstate(cancellation, NULL);
}

/* --- arrival -------------------------------------------------------------------------------------------- */

static bool is_mad(const struct packet *packet)
{
    uint32_t ifindex;

    return packet->opcode == MAD_OPCODE && packet->qkey == MAD_QKEY && packet->payload_length == MAD_LENGTH &&
           packet->payload && device_table_is_local(&host_devices, packet->grh.destination, &ifindex);
}

/* Why the process behind the link may not send this MAD; NULL: it may. The source address must be one of this host,
 * and a communication ID that the MAD claims as its sender's must be in a QPN block of that process. */
static const char *why_not_sent(struct link *link, const struct packet *packet, const uint8_t mad[MAD_LENGTH])
{
    uint32_t comm_id;

    if (!gid_is_of_host(packet->grh.source))
        return "its source GID is not a GID of this host";
    return cm_mad_claim(mad, MAD_LENGTH, &comm_id) && !local_is_owner(link, comm_id >> 16)
               ? "its communication ID belongs to another process"
               : NULL;
}

/* Why the process behind the link may not forward this MAD from the network; NULL: it may. Only a process that is
 * trusted to read the port may. A source address of this host is refused unless SOFTHCA_PATH=wire: any program can
 * send a UDP packet with it. */
static const char *why_not_forwarded(struct link *link, const struct packet *packet)
{
    if (!link_is_self(link) && !udp_trusts(link_peer_uid(link)))
        return "UDP port 4791 is bound by another user, so that process cannot have received it";
    return !network_is_forced() && gid_is_of_host(packet->grh.source)
               ? "its source GID is a GID of this host, so it cannot come from the network"
               : NULL;
}

void gsi_receive(struct lane *lane, const struct packet *packet)
{
    struct link *link = lane_link(lane);
    bool from_network = packet->flags & PACKET_FROM_NETWORK;
    struct cm_path from = {
        .flow_label = packet->grh.flow_label,
        .traffic_class = packet->grh.traffic_class,
        .hop_limit = packet->grh.hop_limit,
        .service_level = packet->grh.service_level,
        .peer = from_network ? 0 : link_process(link),
    };
    uint8_t mad[MAD_LENGTH];
    const char *why;

    if (!is_mad(packet)) {
        log_info("QP1: packet from process %d dropped: it is not a CM message (MAD)",
                 (int)link_peer_pid(link));
        return;
    }
    memcpy(mad, packet->payload, sizeof(mad)); /* shared memory: copied before it is checked */
    why = from_network ? why_not_forwarded(link, packet) : why_not_sent(link, packet, mad);
    if (why) {
        log_info("QP1: CM message (MAD) %s process %d (uid %u) dropped: %s; if it was a "
                 "genuine one, its connection attempt times out",
                 from_network ? "from the network, forwarded by" : "from", (int)link_peer_pid(link),
                 (unsigned)link_peer_uid(link), why);
        return;
    }
    if (port_of_gid_is_down(packet->grh.destination))
        return;
    if (capture_is_attached())
        capture_mad_arrived(packet, mad, gid_is_of_host(packet->grh.source));
    memcpy(from.local_gid, packet->grh.destination, 16);
    memcpy(from.remote_gid, packet->grh.source, 16);
    cm_agent_receive(&from, mad);
}

void gsi_receive_from_network(const struct packet *packet)
{
    /* From the sender's view, without what the network changes on the way: ECN and hop limit. */
    struct cm_path to = {
        .traffic_class = packet->grh.traffic_class & (uint8_t)~ECN_MASK,
        .hop_limit = HOP_LIMIT,
    };

    if (!is_mad(packet) || packet->src_qpn != MAD_QPN) {
        log_debug(
            "QP1: packet from the network dropped: no CM MAD (wrong length), or its source QP is not 1, "
            "as SoftHCA requires");
        return;
    }
    memcpy(to.local_gid, packet->grh.source, 16);
    memcpy(to.remote_gid, packet->grh.destination, 16);
    post(&to, packet->payload, true);
}

/* Waiting MADs leak: at the fork another thread may have been changing the lists. */
void gsi_after_fork_in_child(void)
{
    lock_init(&gsi_lock);
    list_init(&outbox);
    list_init(&searches);
    list_init(&absent);
    flushing = false;
    budget_after_fork_in_child(&waiting_mads);
    atomic_store_explicit(&from_network_count, 0, memory_order_relaxed);
    from_network_absent = 0;
}
