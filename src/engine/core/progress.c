/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Progress: packets from the lanes of links to the QPs, and what the QPs owe then. Runs in an application thread that
 * found its CQ empty, or in the helper thread. */
#include <sched.h>
#include <string.h>

#include "base/rundown.h"
#include "base/sys.h"
#include "engine/cm/gsi.h"
#include "engine/core/arrivals.h"
#include "engine/core/capture.h"
#include "engine/core/control.h"
#include "engine/core/core.h"
#include "engine/core/explainer.h"
#include "engine/core/route.h"
#include "engine/direct/direct.h"
#include "engine/paths/paths.h"
#include "engine/xrc/relay.h"
#include "object/cq/cq.h"
#include "object/device/device.h"
#include "object/memory/mapping.h"
#include "object/memory/memory.h"
#include "object/receive/wq.h"
#include "segment/drops.h"
#include "segment/segment.h"
#include "udp/udp.h"
#include "wire/opcode.h"

/* Packets of one lane per call: bounds the time that its receive lock is held. */
#define POLL_BUDGET 64u

/* Polls of one thread without a packet, about 0.1 ms, after which the thread yields: the peer process may need this
 * processor. Yielding sooner gives the processor to third parties while the two processes wait for each other. */
#define YIELD_EVERY 4096u

_Atomic uint32_t progress_application_polls, progress_packets, progress_armings;
static __thread uint32_t polls_in_vain __attribute__((tls_model("initial-exec")));
static __thread bool is_application __attribute__((tls_model("initial-exec")));
static __thread bool is_poll __attribute__((tls_model("initial-exec")));
/* qp_receives_completed at the end of the last batch. */
static __thread uint32_t receives_seen __attribute__((tls_model("initial-exec")));
static _Atomic bool cq_overrun_pending;

void progress_note_kick(struct lane *lane, const struct qp_kick *kick)
{
    if (kick->lane && kick->lane != lane)
        lane_ring(kick->lane);
    if (kick->reply_lane && kick->reply_lane != lane && kick->reply_lane != kick->lane)
        lane_ring(kick->reply_lane);
    if (unlikely(kick->network_lane != NULL))
        udp_flush(kick->network_lane);
    if (kick->lane == lane || kick->reply_lane == lane)
        atomic_store_explicit(&lane_state(lane)->kick, true, memory_order_relaxed);
}

static void acknowledge_due(struct lane *lane, struct lane_state *state)
{
    struct qp *qp;

    while ((qp = arrivals_next(&state->arrivals))) {
        struct qp_kick kick;

        lock_acquire(&qp->lock);
        if (arrivals_take_due(qp) && !plain_acknowledge(qp, lane))
            route_run(qp);
        kick = qp_take_kick(qp);
        lock_release(&qp->lock);
        progress_note_kick(lane, &kick);
    }
}

/* The fast path of admission.c: of each packet one comparison, of a datagram three. */
static inline bool is_admitted(struct qp *qp, struct lane *lane, const struct packet *packet)
{
    const struct lane_state *state;

    if (likely(route_of(qp)->arrival_lane == lane))
        return true;
    if (qp->record->type != IBV_QPT_UD)
        return admission_of_lane(qp, lane);
    if (unlikely(port_is_down(qp)))
        return false;
    state = lane_state(lane);
    return likely(state->source_block == packet->src_qpn / LOCAL_BLOCK_QPNS &&
                  memcmp(state->source_gid, packet->grh.source, sizeof(state->source_gid)) == 0) ||
           admission_of_source(lane, packet);
}

/* Inline, because gcc would rather call it. QP lock and the lane's receive lock held. */
static always_inline bool receive_locked(struct qp *qp, struct lane *lane, const struct packet *packet,
                                         bool request)
{
    enum arrival_result result;

    if (unlikely(!is_admitted(qp, lane, packet)))
        return false;
    if (request)
        route_set_reply_lane(qp, lane);
    result = arrival_receive(qp, packet, request);
    if (result == ARRIVAL_ACK_DUE)
        arrivals_add(&lane_state(lane)->arrivals, qp);
    return likely(result != ARRIVAL_DROPPED);
}

void progress_receive(struct qp *qp, struct lane *lane, const struct packet *packet)
{
    (void)receive_locked(qp, lane, packet, true);
}

/* Over a link the requester's ACK timer starts only with a drop notice. A UC requester that exposed a buffer keeps it
 * exposed until then. */
static void send_drop_notice(struct lane *lane, const struct packet *packet, bool request)
{
    if (request && (BTH_SERVICE(packet->opcode) == SERVICE_RC || BTH_SERVICE(packet->opcode) == SERVICE_XRC ||
                    (BTH_SERVICE(packet->opcode) == SERVICE_UC && (packet->flags & PACKET_BY_REFERENCE))))
        notice_send_drop(lane, packet);
}

static void receive_multicast(struct qp *qp, void *argument)
{
    if (!port_is_down(qp))
        arrivals_receive_multicast(qp, argument, true);
}

/* Concurrent threads may lose an increment: the helper thread only looks whether the counter has changed. */
void progress_count_packets(unsigned count)
{
    atomic_store_explicit(&progress_packets,
                          atomic_load_explicit(&progress_packets, memory_order_relaxed) + count,
                          memory_order_relaxed);
}

/* local_ops.packet */
static void on_packet(struct lane *lane, const struct packet *packet)
{
    struct qp *qp;
    struct qp_kick kick;
    bool request, received;

    progress_count_packets(1);
    if (unlikely(packet->flags & PACKET_FRAME)) {
        raw_arrived(lane, packet);
        return;
    }
    if (unlikely(packet->dest_qpn == PSN_MASK)) {
        if (!admission_of_source(lane, packet))
            return;
        if (capture_is_attached())
            capture_group_arrived(packet, true);
        /* receive_multicast() only reads the packet. */
        if (!multicast_deliver(packet->grh.destination, receive_multicast, (void *)(uintptr_t)packet))
            stray_note(STRAY_GROUP, packet, true);
        return;
    }
    if (unlikely(packet->dest_qpn == MAD_QPN)) {
        gsi_receive(lane, packet);
        return;
    }
    if (unlikely(packet->flags & PACKET_RELAYED)) {
        relay_receive(lane, packet);
        return;
    }
    request = (opcode_table[packet->opcode].properties & OPCODE_REQUEST) != 0;
    qp = qp_lock_number(packet->dest_qpn);
    if (unlikely(!qp || !arrival_is_accepted(qp, packet, request))) {
        arrival_refused(qp, packet);
        if (qp)
            lock_release(&qp->lock);
        send_drop_notice(lane, packet, request);
        return;
    }
    received = receive_locked(qp, lane, packet, request);
    kick = qp_take_kick(qp);
    lock_release(&qp->lock);
    if (unlikely(!received))
        send_drop_notice(lane, packet, request);
    progress_note_kick(lane, &kick);
}

/* A thread that a message wakes mostly replies: then one doorbell is enough for the acknowledgement, which
 * is in the ring already, and the reply behind it. Without a reply the next poll rings (local_ring_due()),
 * or the helper thread (local_ring_overdue()). */
bool progress_expects_reply(void)
{
    bool has_received = qp_receives_completed != receives_seen;

    receives_seen = qp_receives_completed;
    return has_received && !local_helper_is_asleep() &&
           (local_attention() != ATTENTION_AWAKE || cq_armed_count || helper_saw_arming());
}

/* local_ops.batch_end */
static void on_batch_end(struct lane *lane)
{
    struct lane_state *state = lane_state(lane);
    bool kick, acknowledged = state->kick_acks;

    state->kick_acks = false;
    /* At the end of every batch: a program may exit after its last receive, and the peer must not wait for an
     * acknowledgement that nobody sends any more. */
    kick = atomic_load_explicit(&state->kick, memory_order_relaxed);
    if (unlikely(kick))
        atomic_store_explicit(&state->kick, false, memory_order_relaxed);
    if (state->arrivals.count) {
        acknowledge_due(lane, state);
        acknowledged |= atomic_load_explicit(&state->kick, memory_order_relaxed);
        atomic_store_explicit(&state->kick, false, memory_order_relaxed);
    }
    if (!kick && acknowledged && progress_expects_reply())
        lane_ring_later(lane);
    else if (kick || acknowledged)
        lane_ring(lane);
}

static void fail_on_overrun(struct qp *qp, void *argument)
{
    qp_fail_on_overrun(qp);
}

static void fail_users_of_overrun_cqs(void)
{
    qp_for_each(fail_on_overrun, NULL);
    wq_fail_on_overrun();
}

/* object_ports.cq_overrun: the caller holds QP locks, so progress_run() fails the QPs. */
void progress_cq_overrun(struct cq *cq)
{
    atomic_store_explicit(&cq_overrun_pending, true, memory_order_release);
    helper_kick();
}

unsigned progress_run(void)
{
    unsigned packets;

    rundown_enter();
    events_defer();
    provenance_batch_begin();
    network_flush_batched();
    packets = local_poll(POLL_BUDGET);
    if (atomic_load_explicit(&udp_has_sockets, memory_order_relaxed))
        packets += udp_poll();
    if (unlikely(route_has_ready()))
        route_run_ready();
    network_flush_batched(); /* the thread may sleep next */
    events_write();
    rundown_exit();
    if (unlikely(atomic_load_explicit(&cq_overrun_pending, memory_order_relaxed)) &&
        atomic_exchange_explicit(&cq_overrun_pending, false, memory_order_acquire)) {
        fail_users_of_overrun_cqs();
        explainer_tell_overruns();
    }
    return packets;
}

/* The helper thread takes packets of lanes whose doorbell rang, and fires timers. Where applications spin on all
 * processors, the helper thread may not run for milliseconds: so an application thread that polls does the same, once
 * in so many polls. */
#define RUNG_EVERY   64u
#define TIMERS_EVERY 32u

bool progress_has_waited(void)
{
    return is_poll && polls_in_vain;
}

bool progress_is_application(void)
{
    return is_application;
}

/* If packets remain (another thread is reading their lane), that thread or the next check of the helper
 * thread takes them; a helper thread that does not look soon is woken for it. */
static void go_to_sleep(void)
{
    if (!local_prepare_sleep(ATTENTION_DOZES) && !helper_looks_soon())
        helper_kick();
}

static bool is_armed(void)
{
    return atomic_load_explicit(&cq_armed_count, memory_order_seq_cst) != 0;
}

/* Tells writers whether to ring, after a thread has found packets: they need not while no CQ is armed;
 * they must where a thread sleeps on the channel of another CQ. */
static void update_attention(void)
{
    uint64_t word = local_attention_word(); /* before the CQs: a thread that arms one changes it after that */
    enum attention attention = (enum attention)(word & ATTENTION_MASK);

    if (!is_armed()) {
        if (attention == ATTENTION_DOZES || attention == ATTENTION_RUNG)
            local_set_awake(word);
    } else if (attention == ATTENTION_AWAKE || attention == ATTENTION_RUNG) {
        go_to_sleep();
    }
}

/* Concurrent pollers may lose an increment, as in progress_count_packets(). */
static uint32_t count_application_poll(void)
{
    uint32_t polls = atomic_load_explicit(&progress_application_polls, memory_order_relaxed) + 1;

    atomic_store_explicit(&progress_application_polls, polls, memory_order_relaxed);
    atomic_store_explicit(&segment_header()->application_polls, polls, memory_order_relaxed);
    return polls;
}

static unsigned run_from_application(void)
{
    unsigned packets;

    is_application = true;
    packets = progress_run();
    is_application = false;
    if (packets)
        update_attention();
    return packets;
}

static unsigned run_from_poll(void)
{
    unsigned packets;

    is_poll = true;
    packets = run_from_application();
    is_poll = false;
    return packets;
}

static bool have_arrived(void)
{
    bool arrived;

    rundown_enter();
    arrived = local_has_packets();
    rundown_exit();
    return arrived;
}

/* Bounds the wait for a thread that takes packets: longer than a kernel copy (0.1 ms). */
#define TRIES_TO_TAKE 1000u

/* object_ports.take_arrived. Packets that a peer rang for have caused an event already; taken after the CQ is armed,
 * they would cause another one. */
void progress_take_arrived(void)
{
    count_application_poll();
    /* Another thread may be taking the packets: then the completion is there when that thread has finished. */
    for (unsigned i = 0; i < TRIES_TO_TAKE && have_arrived() && !run_from_application(); i++)
        sched_yield();
}

/* Is there nothing for progress_run()? Nearly all polls of a program that spins are such, and while one of them
 * lasts, a packet that has come waits for the next. */
static bool is_idle(void)
{
    bool idle;

    if (atomic_load_explicit(&udp_has_sockets, memory_order_relaxed) || unlikely(route_has_ready()) ||
        unlikely(atomic_load_explicit(&cq_overrun_pending, memory_order_relaxed)))
        return false;
    rundown_enter();
    idle = local_poll_is_idle();
    rundown_exit();
    return idle;
}

/* object_ports.progress */
void progress_from_application(void)
{
    uint32_t polls = count_application_poll();
    unsigned packets;

    local_ring_due();
    if (unlikely(polls % RUNG_EVERY == 0))
        local_poll_rung();
    if (unlikely(timers_armed()) && polls % TIMERS_EVERY == 0)
        timers_run_due();
    packets = is_idle() ? 0 : run_from_poll();
    if (packets)
        polls_in_vain = 0;
    else if (unlikely(++polls_in_vain % YIELD_EVERY == 0))
        sched_yield();
    if (mapping_is_growing())
        mapping_grow_in_call();
}

/* How often an application thread takes packets before it leaves them to the helper thread. */
#define TRIES_TO_SLEEP 4

/* object_ports.expect_sleep: an application thread armed a CQ and is going to wait for the event. The next packet must
 * wake that thread, or the helper thread; packets that have arrived already cause their event now. */
void progress_expect_sleep(void)
{
    bool ready = local_prepare_sleep(ATTENTION_DOZES);

    for (int i = 0; i < TRIES_TO_SLEEP && !ready; i++) {
        run_from_application();
        ready = local_prepare_sleep(ATTENTION_DOZES);
    }
    atomic_store_explicit(&progress_armings,
                          atomic_load_explicit(&progress_armings, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    /* Another thread reads a lane now, and may leave packets there: the helper thread must look at the lane. */
    if (!ready && !helper_looks_soon())
        helper_kick();
    if (local_helper_is_asleep())
        network_flush_delayed();
    if (atomic_load_explicit(&udp_has_sockets, memory_order_relaxed) && !udp_prepare_sleep())
        helper_kick();
}

static int open_published(int ret_fds[SEGMENT_REQUEST_FILES])
{
    _Static_assert(SEGMENT_REQUEST_FILES == SEGMENT_PARTS, "all of them");
    for (enum segment_part i = 0; i < SEGMENT_PARTS; i++) {
        ret_fds[i] = segment_open_for_reading(i);
        if (ret_fds[i] < 0) {
            int error = ret_fds[i];

            while (i-- > 0)
                sys_close(ret_fds[i]);
            return error;
        }
    }
    return 0;
}

static int tables_fd(void)
{
    return segment_fd_intact(SEGMENT_TABLES);
}

const struct local_ops engine_local_ops = {
    .packet = on_packet,
    .small = plain_receive,
    .batch_end = on_batch_end,
    .resolved = route_resolved,
    .settled = route_settled,
    .found = gsi_found,
    .link_down = route_link_down,
    .link_leaving = direct_link_leaving,
    .wanted = direct_wanted,
    .lane_writable = route_lane_writable,
    .link_made = lane_states_init,
    .published = open_published,
    .segment = tables_fd,
    .expects_copies = memory_expects_copies,
    .open_file = direct_open_file,
    .knows_segment = direct_knows_segment,
    .control = control_decide,
    .control_ended = control_end,
    .file_came = direct_file_came,
};
