/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The checks take one end as requester and the other as responder. The ends of this process are requesters of their
 * own; those of other processes are taken as requesters, too, so that either process shows all that is wrong. */
#include "explain/connection.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "explain/explain.h"
#include "explain/names.h"

enum severity { WRONG, NIC, RISK };

/* What the common NICs have of READs and atomics at a time. */
#define COMMON_RD_ATOMIC 16u

struct end {
    const struct view *view;
    struct object qp;
};

struct checking {
    struct out *out;
    struct connection_findings *findings;
};

/* --- findings --------------------------------------------------------------------------------------------- */

static void add_end(struct words *words, const struct checking *checking, const struct end *end,
                    bool with_process)
{
    words_add(words, "QP 0x%06x", object_qpn(&end->qp));
    if (with_process)
        words_add(words, " of process %d", (int)view_pid(end->view));
}

static __attribute__((format(printf, 7, 8))) void report(struct checking *checking, enum severity severity,
                                                         const char *check, const struct end *from,
                                                         const struct end *to, const char *clause,
                                                         const char *format, ...)
{
    static const char *const names[] = {[WRONG] = "wrong", [NIC] = "nic", [RISK] = "risk"};
    static const char *const words_of[] = {
        [WRONG] = "wrong", [NIC] = "works here, would fail on a NIC", [RISK] = "risk"};
    unsigned *const counts[] = {&checking->findings->wrong, &checking->findings->nic,
                                &checking->findings->risks};
    bool apart = to && to->view != from->view;
    struct words cause = {.length = 0};
    char text[320];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    ++*counts[severity];
    words_add(&cause, "%s: ", words_of[severity]);
    add_end(&cause, checking, from, apart);
    if (to) {
        words_add(&cause, " to ");
        add_end(&cause, checking, to, apart);
    }
    words_add(&cause, ": %s", text);
    explanation_begin(from->view, checking->out, "connection", cause.text);
    out_string(checking->out, "check", check);
    out_string(checking->out, "severity", names[severity]);
    out_number(checking->out, "qpn", object_qpn(&from->qp));
    out_number(checking->out, "dest_qpn", from->qp.qp.attributes.dest_qpn);
    if (clause)
        out_line(checking->out, 1, "%s", clause);
    explanation_end(checking->out);
}

/* --- one end ---------------------------------------------------------------------------------------------- */

static bool is_sending(const struct qp_record *qp)
{
    return qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD;
}

static bool is_connected_state(const struct qp_record *qp)
{
    return is_sending(qp) || qp->state == IBV_QPS_RTR;
}

struct rights {
    uint32_t pd, granted; /* access flags of all its MRs and MWs together */
};

static bool add_rights(const struct view *view, const struct object *object, void *argument)
{
    struct rights *rights = argument;

    if (object->pd == rights->pd)
        rights->granted |= object->key.access;
    return true;
}

static void check_rights(struct checking *checking, const struct end *end)
{
    static const struct {
        uint32_t flag;
        const char *name, *request;
    } all[] = {
        {IBV_ACCESS_REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE", "RDMA WRITEs"},
        {IBV_ACCESS_REMOTE_READ, "IBV_ACCESS_REMOTE_READ", "RDMA READs"},
        {IBV_ACCESS_REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC", "atomics"},
    };
    const struct qp_record *qp = &end->qp.qp;
    struct rights rights = {.pd = qp->pd};

    objects_for_each(end->view, 1u << OBJECT_MR | 1u << OBJECT_MW, add_rights, &rights);
    for (unsigned i = 0; i < array_size(all); i++) {
        bool wanted = qp->attributes.access_flags & all[i].flag, given = rights.granted & all[i].flag;

        if (wanted && !given)
            report(checking, RISK, "access", end, NULL, NULL,
                   "its qp_access_flags have %s, but no MR or MW of its PD has that flag yet: until one has, "
                   "%s to it fail at the requester with IBV_WC_REM_ACCESS_ERR",
                   all[i].name, all[i].request);
        else if (given && !wanted)
            report(checking, RISK, "access", end, NULL, NULL,
                   "an MR or MW of its PD has %s, but its qp_access_flags lack it: %s to it fail at the "
                   "requester with IBV_WC_REM_INV_REQ_ERR",
                   all[i].name, all[i].request);
    }
}

/* The most that our devices report is not: a program that takes what a device reports gets less of a NIC. */
static bool is_uncommon(uint8_t rd_atomic)
{
    return rd_atomic > COMMON_RD_ATOMIC && rd_atomic < LIMIT_RD_ATOMIC;
}

static void check_retries(struct checking *checking, const struct end *end)
{
    const struct qp_attributes *attributes = &end->qp.qp.attributes;

    if (end->qp.qp.type != IBV_QPT_RC || !is_sending(&end->qp.qp))
        return;
    if (!attributes->timeout)
        report(checking, RISK, "timeout", end, NULL, NULL,
               "timeout is 0: if the last packet or its acknowledgement is lost, or the peer ends, it waits "
               "forever");
    else if (!attributes->retry_count)
        report(checking, RISK, "retry_cnt", end, NULL, NULL,
               "retry_cnt is 0: the first lost packet ends the connection (IBV_WC_RETRY_EXC_ERR)");
    if (is_uncommon(attributes->max_rd_atomic) || is_uncommon(attributes->max_dest_rd_atomic))
        report(checking, NIC, "rd_atomic", end, NULL,
               "what a NIC has: max_qp_init_rd_atom and max_qp_rd_atom of ibv_query_device()",
               "max_rd_atomic %u, max_dest_rd_atomic %u: use at most %u of either, because most NICs have no "
               "more and refuse it (ibv_modify_qp: EINVAL)",
               attributes->max_rd_atomic, attributes->max_dest_rd_atomic, COMMON_RD_ATOMIC);
    if (!attributes->rnr_retry)
        report(checking, RISK, "rnr_retry", end, NULL, NULL,
               "rnr_retry is 0: a SEND that finds no receive posted ends the connection "
               "(IBV_WC_RNR_RETRY_EXC_ERR)");
}

/* --- two ends --------------------------------------------------------------------------------------------- */

static unsigned mtu_bytes(uint8_t mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

/* False: the ends are not of one connection, and nothing else can be compared. again: the reverse was checked, so
 * what is the same in both directions is told already. */
static bool check_states(struct checking *checking, const struct end *from, const struct end *to, bool again)
{
    const struct qp_record *a = &from->qp.qp, *b = &to->qp.qp;

    if (a->type != b->type) {
        if (!again)
            report(checking, WRONG, "type", from, to, NULL, "it is %s, and the other end is %s",
                   name_qp_type(a->type), name_qp_type(b->type));
        return false;
    }
    if (!is_connected_state(b)) {
        report(checking, WRONG, "state", from, to, NULL,
               b->state == IBV_QPS_ERR
                   ? "the other end is in %s, where it drops all that comes (softhca why has the reason)"
                   : "the other end is in %s, where it drops all that comes: its program has to move it to "
                     "RTR and "
                     "RTS (ibv_modify_qp)",
               name_qp_state(b->state));
        return false;
    }
    if (b->attributes.dest_qpn != object_qpn(&from->qp)) {
        report(checking, WRONG, "dest_qp_num", from, to, NULL,
               "the other end is connected to QP 0x%06x (dest_qp_num): its requests and acknowledgements go "
               "there",
               b->attributes.dest_qpn);
        return false;
    }
    return true;
}

/* What `from` requests, as `to` receives it. */
static void check_pair(struct checking *checking, const struct end *from, const struct end *to, bool again)
{
    const struct qp_record *a = &from->qp.qp, *b = &to->qp.qp;

    if (!check_states(checking, from, to, again))
        return;
    if (is_sending(a) && a->attributes.sq_psn != b->attributes.rq_psn)
        report(checking, WRONG, "psn", from, to, "sq_psn of each end has to be rq_psn of the other one",
               "it sends from PSN 0x%06x on (sq_psn), and the other end expects 0x%06x (rq_psn): none of its "
               "requests is executed",
               a->attributes.sq_psn, b->attributes.rq_psn);
    if (!again && a->attributes.path_mtu != b->attributes.path_mtu)
        report(
            checking, WRONG, "path_mtu", from, to,
            "path_mtu has to be the same at both ends: every packet of a message except the last has exactly "
            "that payload length (IBA 9.7.4.1.6)",
            "path_mtu is %u here and %u at the other end: messages longer than the smaller of the two fail",
            mtu_bytes(a->attributes.path_mtu), mtu_bytes(b->attributes.path_mtu));
    if (a->type == IBV_QPT_RC && is_sending(a) &&
        a->attributes.max_rd_atomic > b->attributes.max_dest_rd_atomic)
        report(checking, WRONG, "max_rd_atomic", from, to,
               "max_rd_atomic of each end may be at most max_dest_rd_atomic of the other one",
               "max_rd_atomic is %u, and max_dest_rd_atomic of the other end is %u: more than %u RDMA READs "
               "and atomics outstanding at a time end the connection (IBV_WC_REM_INV_REQ_ERR)",
               a->attributes.max_rd_atomic, b->attributes.max_dest_rd_atomic,
               b->attributes.max_dest_rd_atomic);
}

/* --- finding the other end -------------------------------------------------------------------------------- */

/* Is it the QP that the number stands for? On this host a number is one QP's alone; another host may have given the
 * same number, and then the addresses have to match. */
static bool is_destination(const struct qp_record *from, const struct qp_record *to)
{
    if (from->attributes.path.destination_ifindex)
        return true;
    return is_connected_state(to) &&
           memcmp(from->attributes.path.destination_gid, to->attributes.path.source_gid,
                  sizeof(to->attributes.path.source_gid)) == 0;
}

struct looking {
    const struct end *end;
    struct end *found;
    bool claimants; /* for QPs that are connected to the end, to which it is not */
    bool any;
};

static bool look_at(const struct view *view, const struct object *object, void *argument)
{
    struct looking *looking = argument;
    const struct qp_record *end = &looking->end->qp.qp;
    bool it = looking->claimants
                  ? is_connected_state(&object->qp) && is_connected(&object->qp) &&
                        object->qp.attributes.dest_qpn == object_qpn(&looking->end->qp) &&
                        is_destination(&object->qp, end)
                  : object_qpn(object) == end->attributes.dest_qpn && is_destination(end, &object->qp);

    if (!it || object->qp.opened)
        return true;
    *looking->found = (struct end){view, *object};
    looking->any = true;
    return false;
}

static bool find_end(const struct end *end, bool claimants, struct end *ret)
{
    struct looking looking = {end, ret, claimants, false};
    const struct view *there;

    objects_for_each(end->view, 1u << OBJECT_QP, look_at, &looking);
    for (unsigned i = 0;
         !looking.any && end->view->find_process && (there = end->view->find_process(i)) != NULL; i++) {
        /* Of this process there may be two views. */
        if (memcmp(there->header.instance, end->view->header.instance, sizeof(there->header.instance)) != 0)
            objects_for_each(there, 1u << OBJECT_QP, look_at, &looking);
    }
    return looking.any;
}

static void tell_alone(struct checking *checking, const struct end *end)
{
    const struct qp_record *qp = &end->qp.qp;
    struct words words = {.length = 0};

    checking->findings->alone++;
    words_add(&words, "QP 0x%06x: the other end, QP 0x%06x", object_qpn(&end->qp), qp->attributes.dest_qpn);
    words_add(&words, " at ");
    words_add_gid(&words, qp->attributes.path.destination_gid);
    words_add(
        &words,
        ", was not found in a process of this host that may be read (it is on another host, its process "
        "belongs to another user or is not dumpable, or it has ended): only this end was checked");
    explanation_begin(end->view, checking->out, "alone", words.text);
    out_number(checking->out, "qpn", object_qpn(&end->qp));
    out_number(checking->out, "dest_qpn", qp->attributes.dest_qpn);
    explanation_end(checking->out);
}

static bool is_looked_at(const struct object *qp)
{
    return !qp->destroying && !qp->qp.opened && is_connected_state(&qp->qp) &&
           (qp->qp.type == IBV_QPT_RC || qp->qp.type == IBV_QPT_UC);
}

/* Was the connection checked from its other end, which is in the same process? */
static bool is_checked(const struct end *end, const struct end *other)
{
    return other->view == end->view && other->qp.number < end->qp.number && is_looked_at(&other->qp) &&
           other->qp.qp.attributes.dest_qpn == object_qpn(&end->qp);
}

static bool check_qp(const struct view *view, const struct object *object, void *argument)
{
    struct checking *checking = argument;
    struct end end = {view, *object}, other;
    bool again;

    if (!is_looked_at(object))
        return true;
    check_retries(checking, &end);
    check_rights(checking, &end);
    if (!find_end(&end, false, &other)) {
        checking->findings->connections++;
        if (find_end(&end, true, &other))
            check_states(checking, &other, &end, false);
        else
            tell_alone(checking, &end);
        return true;
    }
    again = is_checked(&end, &other);
    checking->findings->connections += !again;
    check_pair(checking, &end, &other, again);
    if (other.view == view)
        return true;
    check_retries(checking, &other);
    check_rights(checking, &other);
    if (is_connected_state(&other.qp.qp) && other.qp.qp.attributes.dest_qpn == object_qpn(object))
        check_pair(checking, &other, &end, true);
    return true;
}

void explain_connections(const struct view *view, struct out *out, struct connection_findings *ret)
{
    struct checking checking = {out, ret};

    memset(ret, 0, sizeof(*ret));
    objects_for_each(view, 1u << OBJECT_QP, check_qp, &checking);
}
