/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What sent a QP to ERR, in words: of the record that its owner has made, and of what the peer's process says of the
 * same request, where it can be looked at. */
#include "explain/explain.h"
#include "explain/names.h"
#include "rules/transitions.h"

#define STACK_LINES 6u
#define PRESENT_MS  100u /* what is told as it happens has no age */

/* --- the peer ------------------------------------------------------------------------------------------- */

const struct view *peer_view(const struct view *view, const struct qp_record *qp)
{
    if (qp->path.kind == PATH_SELF)
        return view;
    return view->find_peer && qp->path.peer_pid > 0 ? view->find_peer(qp->path.peer_pid) : NULL;
}

static void add_peer(struct words *words, const struct qp_record *qp)
{
    words_add(words, "QP 0x%06x", qp->attributes.dest_qpn);
    if (qp->path.kind == PATH_WIRE) {
        words_add(words, " at ");
        words_add_gid(words, qp->attributes.path.destination_gid);
    } else if (qp->path.kind != PATH_SELF && qp->path.peer_pid > 0) {
        words_add(words, " of process %d", (int)qp->path.peer_pid);
    }
}

/* Is what the peer has noted about this request? The peer's QP may have failed by another one. */
static bool is_same_request(const struct fault_record *ours, const struct fault_record *theirs)
{
    if (!theirs->ns)
        return false;
    if (theirs->side == FAULT_OF_RECEIVE)
        return ours->opcode == IBV_WR_SEND || ours->opcode == IBV_WR_SEND_WITH_IMM ||
               ours->opcode == IBV_WR_SEND_WITH_INV;
    return theirs->side == FAULT_OF_RESPONDER &&
           (theirs->key == ours->key || theirs->cause == FAULT_SEQUENCE || theirs->cause == FAULT_OPCODE ||
            theirs->cause == FAULT_PACKET_LENGTH);
}

/* --- the request --------------------------------------------------------------------------------------- */

static bool names_memory_of_peer(uint8_t opcode)
{
    return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
           opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
           opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode >= WR_FLUSH;
}

static bool is_of_local_key(const struct fault_record *fault)
{
    return fault->side != FAULT_OF_RESPONDER && fault->cause >= FAULT_KEY_UNKNOWN &&
           fault->cause <= FAULT_ADDRESS_TRUNCATED;
}

/* One that no process can have, as it is when its bytes are swapped, has all its digits. */
static void add_address(struct words *words, uint64_t address)
{
    words_add(words, address >> 47 ? "0x%016llx" : "0x%llx", (unsigned long long)address);
}

static void add_request(struct words *words, const struct object *qp)
{
    const struct fault_record *fault = &qp->rare.fault;

    switch ((enum fault_side)fault->side) {
    case FAULT_OF_REQUESTER:
        words_add(words, "wr_id ");
        words_add_one_wr_id(words, fault->wr_id);
        words_add(words, ", %s", name_send_opcode(fault->opcode));
        break;
    case FAULT_OF_RESPONDER:
        words_add(words, "incoming %s", name_send_opcode(fault->opcode));
        break;
    case FAULT_OF_RECEIVE:
        words_add(words, "receive wr_id ");
        words_add_one_wr_id(words, fault->wr_id);
        if (fault->by_srq)
            words_add(words, " of SRQ %u", qp->qp.srq);
        break;
    case FAULT_OF_OWNER:
        return;
    }
    if (is_of_local_key(fault)) {
        words_add(words, ", %u bytes at ", fault->length);
        add_address(words, fault->address);
        words_add(words, " with lkey 0x%08x", fault->key);
    } else if (fault->side != FAULT_OF_RECEIVE && names_memory_of_peer(fault->opcode)) {
        words_add(words, " of %u bytes %s ", fault->length,
                  fault->opcode == IBV_WR_RDMA_READ ? "from" : "to");
        add_address(words, fault->address);
        words_add(words, " with rkey 0x%08x", fault->key);
    } else if (fault->side == FAULT_OF_REQUESTER) {
        words_add(words, " of %u bytes", fault->length);
    }
    if (fault->side == FAULT_OF_RESPONDER) {
        words_add(words, " from ");
        add_peer(words, &qp->qp);
    }
    words_add(words, ": ");
}

static void add_reason(const struct view *view, struct words *words, const struct object *qp, bool look);

/* The requester's end of a request that this QP has refused. */
static const struct object *find_requester(const struct view *view, const struct object *qp,
                                           struct object *ret)
{
    const struct view *there = peer_view(view, &qp->qp);

    return there && object_read_qpn(there, qp->qp.attributes.dest_qpn, ret) ? ret : NULL;
}

static void add_refusal(const struct view *view, struct words *words, const struct object *qp)
{
    const struct fault_record *fault = &qp->rare.fault;
    const struct view *there = peer_view(view, &qp->qp);
    struct object peer;

    if (there && object_read_qpn(there, qp->qp.attributes.dest_qpn, &peer) &&
        is_same_request(fault, &peer.rare.fault)) {
        if (peer.rare.fault.cause == FAULT_RECEIVE_SHORT && fault->length > peer.rare.fault.wanted) {
            peer.rare.fault.value = fault->length; /* the peer knows the part that had come */
            peer.rare.fault.length = fault->length;
        }
        if (is_of_local_key(&peer.rare.fault)) { /* of its receive */
            add_peer(words, &qp->qp);
            words_add(words, " cannot use its posted ");
            add_request(words, &peer);
        }
        if (peer.rare.fault.cause == FAULT_TOO_MANY_READS)
            words_add_too_many_reads(words, qp, &peer);
        else if (peer.rare.fault.cause == FAULT_PACKET_LENGTH)
            words_add_packet_length(words, qp, &peer);
        else
            add_reason(there, words, &peer, false);
        return;
    }
    add_peer(words, &qp->qp);
    words_add(words, " refused it ");
    words_add_nak(words, qp);
}

/* What the peer's record says of its silence. false: nothing. */
static bool add_silent_peer(const struct view *there, struct words *words, const struct object *qp)
{
    const struct qp_attributes *ours = &qp->qp.attributes, *theirs;
    struct words since = {.length = 0};
    struct object peer;

    if (!object_read_qpn(there, ours->dest_qpn, &peer) || !peer.qp.qpn) {
        add_peer(words, &qp->qp);
        words_add(words, " ");
        if (!words_add_destroyed_qp(there, words, ours->dest_qpn))
            words_add(words, "was destroyed, or never existed");
        return true;
    }
    theirs = &peer.qp.attributes;
    if (peer.qp.state == IBV_QPS_ERR) {
        add_peer(words, &qp->qp);
        words_add(words, " went to ERR ");
        words_add_age(words, view_age(there, peer.rare.fault.ns));
        words_add(words, ": ");
        add_reason(there, words, &peer, false);
    } else if (!transition_takes_requests(peer.qp.state)) {
        add_peer(words, &qp->qp);
        words_add(words, " is in %s", name_qp_state(peer.qp.state));
        if (words_add_since(there, &since, &peer.qp))
            words_add(words, " (%s)", since.text);
        words_add(words, ", where it drops all requests");
    } else if (peer.qp.path.kind == PATH_PORT_DOWN) {
        words_add(words, "at QP 0x%06x, ", ours->dest_qpn);
        words_add_port_down(words);
    } else if (theirs->dest_qpn != object_qpn(qp)) {
        words_add(words, "QP 0x%06x is connected to QP 0x%06x and not to this one (dest_qp_num)",
                  ours->dest_qpn, theirs->dest_qpn);
    } else if (theirs->rq_psn != ours->sq_psn) {
        words_add(words, "the PSNs differ: sq_psn here is 0x%06x, rq_psn of QP 0x%06x is 0x%06x",
                  ours->sq_psn, ours->dest_qpn, theirs->rq_psn);
    } else {
        words_add(words, "QP 0x%06x did not acknowledge in ", ours->dest_qpn);
        words_add_tries(words, ours);
        words_add(words, ", and is in %s", name_qp_state(peer.qp.state));
        if (words_add_since(there, &since, &peer.qp))
            words_add(words, " (%s)", since.text);
        words_add(words, ": it came to that state too late, its process did not run, or injected faults "
                         "dropped its packets");
    }
    return true;
}

void words_add_port_down(struct words *words)
{
    words_add(words, "the port is down (injected fault event=port_down)");
}

static void add_silence(const struct view *view, struct words *words, const struct object *qp, bool look)
{
    const struct fault_record *fault = &qp->rare.fault;
    const struct view *there = look ? peer_view(view, &qp->qp) : NULL;
    int32_t pid = (int32_t)fault->wanted;

    if (fault->value == PATH_GONE ||
        ((fault->value == PATH_NOBODY || fault->value == PATH_SEARCHED) && pid > 0)) {
        words_add(words, "peer process %d has ended", (int)pid);
        return;
    }
    if (fault->value == PATH_PORT_DOWN) {
        words_add_port_down(words);
        return;
    }
    if (fault->value == PATH_NOBODY || fault->value == PATH_SEARCHED || fault->value == PATH_UNKNOWN) {
        words_add(
            words,
            "no process of this host owns QP 0x%06x: dest_qp_num is wrong, or its owner is not running yet "
            "or has ended",
            qp->qp.attributes.dest_qpn);
        return;
    }
    if (fault->value != PATH_SELF && fault->value != PATH_WIRE && process_is_stopped(view, pid)) {
        words_add(words, "peer process %d is stopped", (int)pid);
        return;
    }
    if (there && add_silent_peer(there, words, qp))
        return;
    add_peer(words, &qp->qp);
    if (fault->cause == FAULT_PSN) {
        words_add(
            words,
            " answers with PSN sequence errors: sq_psn here (0x%06x) probably differs from rq_psn there "
            "(retry_cnt %u)",
            qp->qp.attributes.sq_psn, qp->qp.attributes.retry_count);
        return;
    }
    words_add(words, " gave no answer in ");
    words_add_tries(words, &qp->qp.attributes);
    if (fault->value == PATH_WIRE)
        words_add(
            words,
            ": check that dest_qp_num and the GIDs are right at both ends, that the peer's process runs (is "
            "not stopped, hung or ended), that its QP is in RTR or RTS, and that the network lets UDP port "
            "4791 through. If the peer runs SoftHCA, run softhca why PID of its process on that host to see "
            "the cause");
    else
        words_add(words, ": check that it is in RTR or RTS, and that its dest_qp_num is this QP (softhca "
                         "check, as its user)");
}

static void add_response(const struct view *view, struct words *words, const struct object *qp)
{
    const struct view *there = peer_view(view, &qp->qp);
    struct object peer;

    if (there && object_read_qpn(there, qp->qp.attributes.dest_qpn, &peer) &&
        peer.qp.attributes.path_mtu != qp->qp.attributes.path_mtu)
        words_add(words, "path_mtu of the two ends differs: it is %u bytes here, and %u at QP 0x%06x",
                  qp_mtu_bytes(qp), qp_mtu_bytes(&peer), qp->qp.attributes.dest_qpn);
    else
        words_add(
            words,
            "the response packets do not have the length that the request asks for: path_mtu of the two "
            "ends probably differs (%u bytes here)",
            qp_mtu_bytes(qp));
}

/* --- the reason ----------------------------------------------------------------------------------------- */

static void add_short_receive(struct words *words, const struct object *qp, bool own)
{
    const struct fault_record *fault = &qp->rare.fault;
    unsigned long long came = fault->value, room = fault->wanted;

    if (own) {
        words_add(words, "it");
    } else {
        words_add(words, "the receive wr_id ");
        words_add_one_wr_id(words, fault->wr_id);
        words_add(words, " of QP 0x%06x", object_qpn(qp));
    }
    words_add(words, " has %llu bytes, %llu too few", room, came > room ? came - room : 0);
    if (qp->qp.type == IBV_QPT_UD)
        words_add(words, ": post receives of at least %llu, 40 for the GRH in front and %llu for the message",
                  came, came - 40);
    else
        words_add(words, " for the %llu that came", came);
}

static const char *read_depth_reason(const struct object *qp)
{
    return qp->qp.attributes.max_rd_atomic
               ? "RDMA READs and atomics need RC or XRC"
               : "max_rd_atomic of the QP is 0 (set by ibv_modify_qp to RTS), so it "
                 "cannot send an RDMA READ or an atomic";
}

static void add_no_receive(const struct view *view, struct words *words, const struct object *qp)
{
    const struct fault_record *fault = &qp->rare.fault;

    add_peer(words, &qp->qp);
    words_add(
        words,
        view->header.watched || qp->qp.path.kind == PATH_WIRE
            ? " answered RNR NAK (it had no receive posted, or is a NIC that resolved a page fault of an "
              "on-demand MR), and rnr_retry is %llu"
            : " had no receive posted (RNR NAK), and rnr_retry is %llu",
        (unsigned long long)fault->value);
    if (fault->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        words_add(words, " (an RDMA WRITE with immediate takes a receive, as a SEND does)");
    else if (qp_is_of_id(view, object_qpn(qp)))
        words_add(words, " (rnr_retry_count of rdma_connect() or rdma_accept() in the process of QP 0x%06x)",
                  qp->qp.attributes.dest_qpn);
}

static void add_length_reason(struct words *words, const struct object *qp)
{
    unsigned long long value = qp->rare.fault.value, wanted = qp->rare.fault.wanted;

    words_add(words, "the message has %llu bytes, but ", value);
    if (wanted == sizeof(uint64_t))
        words_add(words, "an atomic has %llu", wanted);
    else if (qp->qp.type == IBV_QPT_RAW_PACKET)
        words_add(words,
                  "has to have 14 (an Ethernet header) to %llu (the MTU of the network "
                  "interface and that header)",
                  wanted);
    else
        words_add(words, "may have at most %llu (%s)", wanted,
                  qp->qp.type == IBV_QPT_UD ? "a UD message is one packet, of at most active_mtu of the port"
                                            : "max_msg_sz of ibv_query_port()");
}

static const char *bind_reason(uint64_t why)
{
    static const char *const reasons[] = {
        [BIND_ACCEPTED] = "the bind was refused, but would succeed now",
        [BIND_NO_MW] = "no MW has the rkey that is to be bound",
        [BIND_MW_PD] = "the MW is of another PD than the QP",
        [BIND_MW_KEY] = "rkey of the work request is not that of the MW",
        [BIND_MW_BOUND] = "the type 2 MW is bound already: invalidate it first (IBV_WR_LOCAL_INV)",
        [BIND_NOTHING] = "bind_info.length is 0, which does not unbind a type 2 MW (IBV_WR_LOCAL_INV does)",
        [BIND_REGION] = "no MR that MWs can be bound to has the lkey of bind_info.mr",
        [BIND_REGION_PD] = "bind_info.mr is of another PD than the QP",
        [BIND_REGION_ACCESS] = "bind_info.mr lacks IBV_ACCESS_MW_BIND",
        [BIND_FLAGS] =
            ("bind_info.mw_access_flags has flags other than IBV_ACCESS_LOCAL_WRITE, _REMOTE_WRITE, "
             "_REMOTE_READ, _REMOTE_ATOMIC and _ZERO_BASED"),
        [BIND_LOCAL_WRITE] = "bind_info.mw_access_flags has remote write or atomic: bind_info.mr lacks "
                             "IBV_ACCESS_LOCAL_WRITE",
        [BIND_RANGE] = "the range of bind_info is not inside of bind_info.mr",
    };

    return why < array_size(reasons) ? reasons[why] : "the bind was refused";
}

/* Why this QP refused a request, other than its memory. look: at the peer, too. */
static bool add_refusal_reason(const struct view *view, struct words *words, const struct object *qp,
                               bool look)
{
    const struct fault_record *fault = &qp->rare.fault;
    unsigned long long value = fault->value, wanted = fault->wanted;
    struct object requester;

    switch (fault->cause) {
    case FAULT_QP_ACCESS:
        words_add(words, "qp_access_flags of QP 0x%06x lack ", object_qpn(qp));
        words_add_access(words, wanted);
        return true;
    case FAULT_ATOMIC_ALIGNMENT:
        words_add(words, "atomics need an address that is a multiple of 8");
        return true;
    case FAULT_TOO_MANY_READS:
        words_add_too_many_reads(words, look ? find_requester(view, qp, &requester) : NULL, qp);
        return true;
    case FAULT_RECEIVE_SHORT:
        add_short_receive(words, qp, look);
        return true;
    case FAULT_PACKET_LENGTH:
        words_add_packet_length(words, look ? find_requester(view, qp, &requester) : NULL, qp);
        return true;
    case FAULT_MESSAGE_SHORT:
        words_add(words, "the message has %llu bytes, but its first packet announced %llu", value, wanted);
        return true;
    case FAULT_SEQUENCE:
        words_add(words, "a packet does not continue the operation with which its message began");
        return true;
    case FAULT_OPCODE:
        words_add(words, "opcode 0x%02llx in the BTH is not one of RC", value);
        return true;
    case FAULT_SRQ:
        words_add(words, "no SRQ has number %llu in the XRC domain of QP 0x%06x", value, object_qpn(qp));
        return true;
    case FAULT_INVALIDATE:
        words_add(words, "rkey 0x%08x names no bound type 2 MW of this PD", fault->key);
        return true;
    default:
        return false;
    }
}

/* look: at the peer, too. */
static void add_reason(const struct view *view, struct words *words, const struct object *qp, bool look)
{
    const struct fault_record *fault = &qp->rare.fault;
    unsigned long long value = fault->value;

    if (words_add_key_reason(view, words, fault) || add_refusal_reason(view, words, qp, look))
        return;
    switch (fault->cause) {
    case FAULT_NAK:
        if (look)
            add_refusal(view, words, qp);
        else
            words_add(words, "its peer refused a request with a NAK (%s)", name_nak(value));
        return;
    case FAULT_NO_RECEIVE:
        add_no_receive(view, words, qp);
        return;
    case FAULT_INJECTED:
        words_add(words, "an injected fault (softhca run --fault, softhca-fault(7))");
        return;
    case FAULT_SILENCE:
    case FAULT_PSN:
        add_silence(view, words, qp, look);
        return;
    case FAULT_RESPONSE:
        add_response(view, words, qp);
        return;
    case FAULT_READ_DEPTH:
        words_add(words, "%s", read_depth_reason(qp));
        return;
    case FAULT_LENGTH:
        add_length_reason(words, qp);
        return;
    case FAULT_WORK_REQUEST:
        words_add(words, "%s is not possible on a QP of type %s", name_send_opcode(fault->opcode),
                  name_qp_type(qp->qp.type));
        return;
    case FAULT_BIND:
        words_add(words, "%s", bind_reason(value));
        return;
    case FAULT_REFERENCE:
        words_add(words,
                  "the peer could not read the buffer of this work request: this program has unmapped or "
                  "protected memory of the MR with lkey 0x%08x since its registration (munmap, mprotect)",
                  fault->region_lkey);
        return;
    case FAULT_MODIFIED:
        words_add(words, "ibv_modify_qp(IBV_QPS_ERR) by ");
        words_add_thread(view, words, fault->by);
        return;
    case FAULT_CLOSED:
        words_add(words, "ibv_close_device() closed its device context");
        return;
    case FAULT_OVERRUN:
        words_add(words, "CQ %llu has overrun", value);
        return;
    default:
        words_add(words, "status %s", name_status(verdict_wc_status((enum verdict)fault->verdict)));
        return;
    }
}

/* IBV_QPS_UNKNOWN: the state that it was in. */
static uint32_t state_after(const struct object *qp)
{
    const struct fault_record *fault = &qp->rare.fault;

    if (qp->qp.type == IBV_QPT_UD && fault->side == FAULT_OF_RECEIVE)
        return IBV_QPS_UNKNOWN;
    if ((qp->qp.type == IBV_QPT_UD || qp->qp.type == IBV_QPT_UC || qp->qp.type == IBV_QPT_RAW_PACKET) &&
        fault->side == FAULT_OF_REQUESTER)
        return IBV_QPS_SQE;
    return IBV_QPS_ERR;
}

uint32_t fault_state(const struct view *view, const struct object *qp)
{
    uint32_t after = state_after(qp);

    /* Later it can be in another state again. */
    return after == IBV_QPS_UNKNOWN || view_age(view, qp->rare.fault.ns) >= PRESENT_MS ? qp->qp.state : after;
}

bool words_add_fault(const struct view *view, struct words *words, const struct object *qp)
{
    const struct fault_record *fault = &qp->rare.fault;

    if (!fault->ns || qp->qp.opened)
        return false;
    switch (state_after(qp)) {
    case IBV_QPS_ERR:
        words_add(words, "went to ERR");
        break;
    case IBV_QPS_SQE:
        words_add(words, "went to SQE");
        break;
    default:
        words_add(words, "had its first error");
    }
    if (view_age(view, fault->ns) >= PRESENT_MS) {
        words_add(words, " ");
        words_add_age(words, view_age(view, fault->ns));
    }
    words_add(words, ": ");
    add_request(words, qp);
    add_reason(view, words, qp, true);
    if (fault->injected && fault->cause != FAULT_INJECTED)
        words_add(words, "; caused by an injected fault (softhca run --fault, softhca-fault(7))");
    return true;
}

/* A request that its responder refuses has a completion at the requester only; the record has no verdict where the QP
 * refused it before any check of memory. */
static bool is_refused_here(const struct object *qp)
{
    const struct fault_record *fault = &qp->rare.fault;

    return fault->side == FAULT_OF_RESPONDER &&
           (fault->verdict == VERDICT_OK || fault->verdict == VERDICT_INVALID_REQUEST ||
            fault->verdict == VERDICT_REMOTE_ACCESS || fault->verdict == VERDICT_REMOTE_OPERATION);
}

static const char *status_of(const struct object *qp)
{
    enum verdict verdict = (enum verdict)qp->rare.fault.verdict;

    if (verdict == VERDICT_OK && is_refused_here(qp))
        verdict = VERDICT_INVALID_REQUEST;
    return name_status(verdict_wc_status(verdict));
}

/* The line has no status where the QP failed without a work request: by its owner, or because of a CQ. */
static void describe_status(const struct view *view, struct out *out, const struct object *qp)
{
    const struct fault_record *fault = &qp->rare.fault;

    if (view->header.watched) {
        out_line(out, 1, "status %s, vendor_err 0x%x", name_status(qp->rare.failure.status),
                 qp->rare.failure.vendor_err);
    } else if (is_refused_here(qp)) {
        if (qp->qp.type == IBV_QPT_RC || qp->qp.type == IBV_QPT_XRC_RECV)
            out_line(out, 1, "the requester gets status %s", status_of(qp));
    } else if (fault->verdict != VERDICT_OK) {
        out_line(out, 1, "status %s, vendor_err 0x%x", status_of(qp),
                 fault_vendor_err(fault->verdict, fault->cause));
    }
}

static void describe_numbers(const struct view *view, struct out *out, const struct object *qp)
{
    const struct fault_record *fault = &qp->rare.fault;
    bool watched = view->header.watched;
    static const char *const sides[] = {"owner", "requester", "responder", "receive"};

    out_begin(out, "fault");
    out_string(out, "side", fault->side < array_size(sides) ? sides[fault->side] : "?");
    out_number(out, "vendor_err",
               watched ? qp->rare.failure.vendor_err : fault_vendor_err(fault->verdict, fault->cause));
    out_bool(out, "injected", fault->injected || fault->cause == FAULT_INJECTED);
    out_string(out, "status", watched ? name_status(qp->rare.failure.status) : status_of(qp));
    out_number(out, "wr_id", fault->wr_id);
    out_number(out, "length", fault->length);
    out_number(out, "address", fault->address);
    out_number(out, "request_key", fault->key);
    out_number(out, "mr_lkey", fault->region_lkey);
    out_number(out, "mr_rkey", fault->region_rkey);
    out_end(out);
}

bool explain_fault(const struct view *view, struct out *out, uint32_t number)
{
    struct words cause = {.length = 0}, words = {.length = 0};
    const struct fault_record *fault;
    struct object object;

    if (!object_read(view, OBJECT_QP, number, &object))
        return false;
    fault = &object.rare.fault;
    words_add(&words, "%s ", object_label(view, &object).text);
    if (!words_add_fault(view, &words, &object))
        return false;
    out->wrong = !fault_is_wanted(fault);
    cause = words;
    explanation_begin(view, out, "fault", cause.text);
    describe_numbers(view, out, &object);
    describe_status(view, out, &object);
    if (fault->withdrawn_ns) {
        if (stack_is_recorded(view, fault->withdrawn_stack))
            out_line(out, 1, "deregistered by");
        stack_describe(view, out, "deregistered", 2, fault->withdrawn_stack, STACK_LINES);
    }
    if (fault->cause == FAULT_MODIFIED)
        stack_describe(view, out, "stack", 1, fault->stack, STACK_LINES);
    object_describe_failed(view, out, "object", 1, &object, STACK_LINES);
    explanation_end(out);
    return true;
}
