/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a sender waits for. */
#include "explain/explain.h"
#include "explain/names.h"

bool words_add_since(const struct view *view, struct words *words, const struct qp_record *qp)
{
    if (qp->changed == STAMP_NONE) {
        if (!qp->provenance.created_ns || view->header.watched || qp->state != IBV_QPS_RESET)
            return false;
        words_add(words, "since it was created, ");
        words_add_age(words, view_age(view, qp->provenance.created_ns));
        return true;
    }
    words_add(words, "for ");
    words_add_duration(words, view_stamp_age(view, qp->changed));
    words_add(words, ": ibv_modify_qp() by ");
    words_add_thread(view, words, qp->changed_by);
    return true;
}

static void add_since(const struct view *view, struct words *words, const struct qp_record *qp)
{
    struct words since = {.length = 0};

    if (words_add_since(view, &since, qp))
        words_add(words, " (%s)", since.text);
}

static void add_peer(const struct view *view, struct words *words, const struct qp_record *qp)
{
    words_add(words, "QP 0x%06x", qp->attributes.dest_qpn);
    if (qp->path.kind == PATH_WIRE) {
        words_add(words, " at ");
        words_add_gid(words, qp->attributes.path.destination_gid);
    }
    if (qp->path.peer_pid > 0 && qp->path.kind != PATH_SELF)
        words_add(words, " of process %d", (int)qp->path.peer_pid);
    if (qp->path.kind != PATH_SELF && process_is_stopped(view, qp->path.peer_pid))
        words_add(words, ", which is stopped");
}

/* What the other end says of itself, where we can see it. */
static void add_peer_state(const struct view *view, struct words *words, const struct qp_record *qp)
{
    const struct view *there = qp->path.kind == PATH_SELF                 ? view
                               : view->find_peer && qp->path.peer_pid > 0 ? view->find_peer(qp->path.peer_pid)
                                                                          : NULL;
    struct object peer;
    uint32_t receives;

    if (!there)
        return;
    if (!object_read_qpn(there, qp->attributes.dest_qpn, &peer)) {
        words_add(words, "; that QP ");
        if (!words_add_destroyed_qp(there, words, qp->attributes.dest_qpn))
            words_add(words, "does not exist in the peer process");
        return;
    }
    receives = peer.qp.receive.posted - peer.qp.receive.taken;
    if (!peer.qp.qpn) {
        words_add(words, "; that QP is being destroyed");
        return;
    }
    words_add(words, "; that QP is in %s", name_qp_state(peer.qp.state));
    if (peer.qp.srq == NO_OBJECT)
        words_add(words, " with %u receive%s posted", receives, receives == 1 ? "" : "s");
    if (peer.qp.path.kind == PATH_PORT_DOWN) {
        words_add(words, ", where ");
        words_add_port_down(words);
    }
}

static void add_retries(struct words *words, const struct qp_record *qp)
{
    const struct qp_attributes *attributes = &qp->attributes;

    if (!attributes->timeout)
        words_add(words, "; local ACK timeout is 0: it waits forever for an answer that is lost");
    else
        words_add(words, "; retry %u of %u",
                  attributes->retry_count - min_of(qp->sender.retries_left, attributes->retry_count),
                  attributes->retry_count);
}

void words_add_heard(const struct view *view, struct words *words, const struct sender *sender)
{
    if (!sender->heard)
        return;
    words_add(words, "; last packet from the peer ");
    words_add_age(words, view_stamp_age(view, sender->heard));
}

/* Who has to acknowledge. On the network, silence is significant only after retries; on this host the end of
 * a process is known. */
void words_add_awaited(const struct view *view, struct words *words, const struct qp_record *qp)
{
    add_peer(view, words, qp);
    if (qp->path.kind == PATH_WIRE &&
        (!qp->attributes.timeout || qp->sender.retries_left < qp->attributes.retry_count))
        add_retries(words, qp);
    add_peer_state(view, words, qp);
}

static void add_rnr(const struct view *view, struct words *words, const struct qp_record *qp)
{
    const struct qp_attributes *attributes = &qp->attributes;

    add_peer(view, words, qp);
    words_add(words,
              qp->path.kind == PATH_WIRE
                  ? " answers RNR NAK (it has no receive posted, or is a NIC that resolves a page fault "
                    "of an on-demand MR); "
                  : " has no receive posted (RNR); ");
    if (attributes->rnr_retry == 7)
        words_add(words, "rnr_retry is 7 (unlimited), %u RNR NAKs so far", qp->sender.rnr_naks);
    else
        words_add(words, "RNR retry %u of %u",
                  attributes->rnr_retry - min_of(qp->sender.rnr_retries_left, attributes->rnr_retry),
                  attributes->rnr_retry);
    add_peer_state(view, words, qp);
}

static void add_silence(const struct view *view, struct words *words, const struct qp_record *qp)
{
    switch ((enum path_kind)qp->path.kind) {
    case PATH_GONE:
        words_add(words, "peer process %d has ended", (int)qp->path.peer_pid);
        break;
    case PATH_PORT_DOWN:
        words_add_port_down(words);
        break;
    case PATH_NOBODY:
    case PATH_SEARCHED:
        if (qp->path.peer_pid > 0)
            words_add(words, "peer process %d has ended", (int)qp->path.peer_pid);
        else
            words_add(words, "no process of this host owns QP 0x%06x", qp->attributes.dest_qpn);
        break;
    case PATH_UNKNOWN:
    case PATH_RING:
    case PATH_CMA:
    case PATH_MAPPED:
    case PATH_SELF:
    case PATH_WIRE:
        words_add(words, "no response: ");
        add_peer(view, words, qp);
        words_add(words, " does not exist, or is not in RTR or RTS");
        add_peer_state(view, words, qp);
        break;
    }
    add_retries(words, qp);
}

/* A process answers for the numbers that it owns while it runs. */
static void add_lookup(const struct view *view, struct words *words, const struct qp_record *qp)
{
    const struct view *there;
    struct object peer;

    words_add(words, "looking up the process that owns QP 0x%06x", qp->attributes.dest_qpn);
    if (qp->path.since != STAMP_NONE) {
        words_add(words, ", without an answer for ");
        words_add_duration(words, view_stamp_age(view, qp->path.since));
    }
    for (unsigned i = 0; view->find_process && (there = view->find_process(i)) != NULL; i++) {
        if (!there->pid || !object_read_qpn(there, qp->attributes.dest_qpn, &peer) || peer.qp.opened)
            continue;
        words_add(words, ": that is process %d", (int)there->pid);
        if (process_is_stopped(there, there->pid))
            words_add(words, ", which is stopped and answers once it is continued (kill -CONT %d)",
                      (int)there->pid);
        return;
    }
    if (view->find_process)
        words_add(words, ": no process that can be looked at here has that QP");
}

static void add_full_socket(struct words *words)
{
    words_add(words, "the send buffer of the UDP socket is full: the network interface does not keep up");
}

/* Each datagram has a destination and a path of its own. */
static void add_full_datagram(const struct view *view, struct words *words, const struct qp_record *qp)
{
    struct path_address to;
    struct send_wqe next;

    if (qp->type == IBV_QPT_RAW_PACKET)
        words_add(words, "the shared-memory ring to a process of this user is full, or links to the "
                         "processes of this host are being made");
    else if (!send_wqe_read(view, qp, qp->sender.next, &next) ||
             !send_address_read(view, qp, qp->sender.next, &to))
        words_add(words, "no room on the path to its destination");
    else if (to.is_multicast)
        words_add(words, "links to the processes of this host are being made, or the send buffer of the UDP "
                         "socket is full");
    else if (!to.destination_ifindex)
        add_full_socket(words);
    else
        words_add(words,
                  "the shared-memory ring to the process of QP 0x%06x (with SOFTHCA_PATH=wire, the send "
                  "buffer of the UDP socket) is full, or that process is being looked up",
                  next.ud.remote_qpn);
}

static void add_full_link(const struct view *view, struct words *words, const struct qp_record *qp)
{
    if (!is_connected(qp)) {
        if (qp->path.kind == PATH_PORT_DOWN)
            words_add_port_down(words);
        else
            add_full_datagram(view, words, qp);
        return;
    }
    switch ((enum path_kind)qp->path.kind) {
    case PATH_SEARCHED:
        add_lookup(view, words, qp);
        return;
    case PATH_NOBODY:
    case PATH_GONE:
        words_add(words, "no process of this host owns QP 0x%06x", qp->attributes.dest_qpn);
        return;
    case PATH_PORT_DOWN:
        words_add_port_down(words);
        return;
    case PATH_WIRE:
        add_full_socket(words);
        return;
    case PATH_UNKNOWN:
    case PATH_RING:
    case PATH_CMA:
    case PATH_MAPPED:
    case PATH_SELF:
        break;
    }
    words_add(words, "the shared-memory ring to ");
    add_peer(view, words, qp);
    words_add(words, " is full: the peer does not drain it");
}

/* Also between two retries, where the request has been sent again or is about to be. */
bool sender_is_being_refused(const struct qp_record *qp)
{
    switch ((enum sender_wait)qp->sender.waiting) {
    case SENDER_RUNS:
    case SENDER_WAITS_FOR_LINK:
    case SENDER_WAITS_FOR_WINDOW:
    case SENDER_WAITS_FOR_READ_DEPTH:
    case SENDER_WAITS_FOR_FENCE:
    case SENDER_WAITS_FOR_MAPPING:
    case SENDER_WAITS_AFTER_LOSSES:
        return sender_is_refused(&qp->attributes, &qp->sender);
    case SENDER_WAITS_FOR_RNR_TIMER:
    case SENDER_WAITS_FOR_RETRY: /* the peer does not answer at all, which is worse */
    case SENDER_WAITS_IN_SQD:
    case SENDER_WAITS_TO_FAIL:
        break;
    }
    return false;
}

/* Why the WQE that is next does not go on. */
void words_add_wait(const struct view *view, struct words *words, const struct qp_record *qp)
{
    const struct sender *sender = &qp->sender;
    struct send_wqe wqe;

    if (sender_is_being_refused(qp)) {
        add_rnr(view, words, qp);
        return;
    }
    switch ((enum sender_wait)sender->waiting) {
    case SENDER_RUNS:
        words_add(words, "ready to be sent");
        return;
    case SENDER_WAITS_FOR_LINK:
        add_full_link(view, words, qp);
        return;
    case SENDER_WAITS_FOR_MAPPING:
        words_add(words, "memory of ");
        add_peer(view, words, qp);
        words_add(words, " is being mapped");
        return;
    case SENDER_WAITS_AFTER_LOSSES:
        words_add(words,
                  "waits until requests that were sent while packets were dropped on purpose have completed: "
                  "waiting for acknowledgements from ");
        words_add_awaited(view, words, qp);
        return;
    case SENDER_WAITS_FOR_FENCE:
        words_add(words, "fenced: waits for %u earlier RDMA READ%s", sender->rd_atomic_wqes,
                  sender->rd_atomic_wqes == 1 ? " or atomic" : "s and atomics");
        return;
    case SENDER_WAITS_FOR_READ_DEPTH:
        words_add(words, "%u RDMA READs and atomics are in flight, and max_rd_atomic is %u",
                  sender->rd_atomic_wqes, qp->attributes.max_rd_atomic);
        return;
    case SENDER_WAITS_FOR_RNR_TIMER:
        add_rnr(view, words, qp);
        return;
    case SENDER_WAITS_FOR_RETRY:
        add_silence(view, words, qp);
        return;
    case SENDER_WAITS_IN_SQD:
        words_add(words, "the QP is in SQD");
        add_since(view, words, qp);
        words_add(words, ": no new work request is started");
        return;
    case SENDER_WAITS_FOR_WINDOW:
        words_add(words, "the congestion window (packets that may be unacknowledged) is full: waiting for "
                         "acknowledgements from ");
        words_add_awaited(view, words, qp);
        return;
    case SENDER_WAITS_TO_FAIL:
        words_add(words, "failed locally (%s), completes after the work requests before it",
                  send_wqe_read(view, qp, sender->next, &wqe)
                      ? name_status((uint32_t)verdict_wc_status((enum verdict)wqe.verdict))
                      : "?");
        return;
    }
    words_add(words, "its state was read while it changed: run the command again");
}

bool words_add_sender(const struct view *view, struct words *words, const struct object *object)
{
    const struct qp_record *qp = &object->qp;
    uint32_t outstanding = qp->sender.posted - qp->sender.completed;
    struct send_wqe oldest;

    if (view->header.watched)
        return words_add_watched_sender(view, words, object);
    if (!outstanding)
        return false;
    words_add(words, "%u outstanding send%s", outstanding, outstanding == 1 ? "" : "s");
    if (send_wqe_read(view, qp, qp->sender.completed, &oldest) && oldest.stamp) {
        words_add(words, "%s ", outstanding == 1 ? " for" : ", the oldest for");
        words_add_duration(words, view_stamp_age(view, oldest.stamp));
    }
    words_add(words, ": ");
    if (qp->sender.waiting != SENDER_RUNS || qp->sender.next != qp->sender.posted ||
        sender_is_being_refused(qp)) {
        words_add_wait(view, words, qp);
    } else {
        words_add(words, "sent, waiting for the acknowledgement of ");
        words_add_awaited(view, words, qp);
    }
    words_add_heard(view, words, &qp->sender);
    return true;
}
