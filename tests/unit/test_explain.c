/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is said of a segment that was created by hand: each place and each reason that there can be. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/refusal.h"
#include "base/sys.h"
#include "explain/hangs.h"
#include "json.h"
#include "mapped/mapped.h"
#include "segment/misuse.h"
#include "segment_fixture.h"

static struct fixture *f;
static struct out out;

static int begin(void **state)
{
    f = fixture_make();
    out_init(&out, false, SIZE_MAX);
    return 0;
}

static int end_test(void **state)
{
    out_fini(&out);
    return 0;
}

/* The first line. */
static const char *cause(void)
{
    static char line[512];

    snprintf(line, sizeof(line), "%.*s", out.text ? (int)strcspn(out.text, "\n") : 0,
             out.text ? out.text : "");
    return line;
}

typedef bool explanation(const struct view *view, struct out *out, enum object_kind kind, uint32_t number);

/* What it says of the object; NULL: nothing. */
static const char *said(explanation *explain, enum object_kind kind, uint32_t number)
{
    struct view view = fixture_view();

    out_fini(&out);
    out_init(&out, false, SIZE_MAX);
    return explain(&view, &out, kind, number) ? cause() : NULL;
}

static void assert_contains(const char *text, const char *part)
{
    if (!text || !strstr(text, part))
        fail_msg("\"%s\" is not in \"%s\"", part, text ? text : "");
}

/* --- work requests -------------------------------------------------------------------------------------- */

/* `posted` work requests with wr_ids from 100 on; the first `begun` of them are under way. */
static struct sender *post(uint32_t posted, uint32_t begun)
{
    struct qp_record *qp = &f->qps[0];

    for (uint32_t i = 0; i < posted; i++) {
        struct send_wqe *wqe = fixture_send(qp, i);

        *wqe = (struct send_wqe){
            .wr_id = 100 + i, .opcode = IBV_WR_SEND, .flags = WQE_SIGNALED, .packets = i < begun};
    }
    qp->sender.posted = posted;
    qp->sender.begun = qp->sender.next = begun;
    return &qp->sender;
}

static const char *why(uint64_t wr_id)
{
    struct view view = fixture_view();

    out_fini(&out);
    out_init(&out, false, SIZE_MAX);
    explain_work(&view, &out, wr_id, 0);
    return cause();
}

static void reasons_of_the_sender(void **state)
{
    static const struct {
        enum sender_wait waits;
        const char *reason;
    } reasons[] = {
        {SENDER_RUNS, "has not been sent: ready to be sent"},
        {SENDER_WAITS_FOR_LINK, "the shared-memory ring to QP 0x000013 is full: the peer does not drain it"},
        {SENDER_WAITS_FOR_FENCE, "fenced: waits for 2 earlier RDMA READs and atomics"},
        {SENDER_WAITS_FOR_READ_DEPTH, "2 RDMA READs and atomics are in flight, and max_rd_atomic is 4"},
        {SENDER_WAITS_FOR_RNR_TIMER,
         "QP 0x000013 has no receive posted (RNR); rnr_retry is 7 (unlimited), 5 RNR NAKs so far"},
        {SENDER_WAITS_FOR_RETRY,
         "no response: QP 0x000013 does not exist, or is not in RTR or RTS; that QP is in RTS with 0 "
         "receives posted; retry 0 of 7"},
        {SENDER_WAITS_IN_SQD, "the QP is in SQD: no new work request is started"},
        {SENDER_WAITS_FOR_WINDOW, "the congestion window (packets that may be unacknowledged) is full: "
                                  "waiting for acknowledgements from"},
        {SENDER_WAITS_TO_FAIL,
         "failed locally (IBV_WC_LOC_PROT_ERR), completes after the work requests before it"},
        {SENDER_WAITS_FOR_MAPPING, "has not been sent: memory of QP 0x000013 is being mapped"},
        {SENDER_WAITS_AFTER_LOSSES,
         "waits until requests that were sent while packets were dropped on purpose have completed: "
         "waiting for acknowledgements from QP 0x000013"},
    };

    for (size_t i = 0; i < array_size(reasons); i++) {
        struct sender *sender = post(2, 1);

        sender->waiting = (uint8_t)reasons[i].waits;
        sender->rd_atomic_wqes = 2;
        sender->rnr_naks = 5;
        fixture_send(&f->qps[0], 1)->verdict = VERDICT_LOCAL_PROTECTION;
        assert_contains(why(101), reasons[i].reason);
        assert_contains(cause(), "wr_id 101 (0x65), SEND of QP 0x000012");
    }
}

static void retries_are_counted(void **state)
{
    struct sender *sender = post(1, 1);
    struct qp_attributes *attributes = &f->qps[0].attributes;

    sender->next = 0; /* it goes back */
    sender->waiting = SENDER_WAITS_FOR_RNR_TIMER;
    attributes->rnr_retry = 6;
    sender->rnr_retries_left = 4;
    assert_contains(why(100), "RNR retry 2 of 6");
    sender->waiting = SENDER_WAITS_FOR_RETRY;
    attributes->retry_count = 5;
    sender->retries_left = 1;
    assert_contains(why(100), "retry 4 of 5");
    attributes->timeout = 0;
    assert_contains(why(100), "local ACK timeout is 0: it waits forever for an answer that is lost");
    /* Nonsense is told as nonsense, and no more. */
    attributes->timeout = 14;
    sender->retries_left = 200;
    assert_contains(why(100), "retry 0 of 5");
}

static void places_of_a_send(void **state)
{
    struct sender *sender = post(4, 2);

    sender->waiting = SENDER_WAITS_FOR_FENCE;
    fixture_send(&f->qps[0], 1)->opcode = IBV_WR_RDMA_READ;
    assert_contains(why(100),
                    "waits for the acknowledgement of QP 0x000013; that QP is in RTS with 0 receives posted");
    assert_contains(why(101), "RDMA READ of QP 0x000012 \"fixture\", waits for the response of QP 0x000013");
    assert_contains(cause(), ", 1 earlier work request is outstanding, too");
    assert_contains(why(103), "queued behind 1 other, first wr_id 102 (0x66): fenced: waits for");
    assert_contains(why(99), "wr_id 99 (0x63) was not found");
}

static void stamps_become_ages(void **state)
{
    struct view view = fixture_view();

    post(2, 1);
    fixture_send(&f->qps[0], 0)->stamp = view.stamp - 3210;
    fixture_send(&f->qps[0], 1)->stamp = view.stamp - 12;
    assert_contains(why(100), "was sent 3.2 s ago and waits for the acknowledgement");
    assert_contains(why(101), "was posted ");
}

static void where_the_peer_is(void **state)
{
    static const struct {
        enum path_kind kind;
        int32_t pid;
        const char *words;
    } paths[] = {
        {PATH_GONE, 4711, "peer process 4711 has ended"},
        {PATH_NOBODY, 4711, "peer process 4711 has ended"},
        {PATH_NOBODY, 0, "no process of this host owns QP 0x000013"},
        {PATH_SEARCHED, 0, "no process of this host owns QP 0x000013"},
        {PATH_PORT_DOWN, 4711, "the port is down (injected fault event=port_down)"},
        {PATH_RING, 4711, "no response: QP 0x000013 of process 4711 does not exist, or is not in RTR or RTS"},
    };

    for (size_t i = 0; i < array_size(paths); i++) {
        post(1, 1)->waiting = SENDER_WAITS_FOR_RETRY;
        f->qps[0].path = (struct path_record){.kind = (uint16_t)paths[i].kind, .peer_pid = paths[i].pid};
        assert_contains(why(100), paths[i].words);
    }
    post(1, 1)->waiting = SENDER_RUNS;
    f->qps[0].sender.retries_left = 5;
    f->qps[0].path = (struct path_record){.kind = PATH_WIRE};
    memcpy(f->qps[0].attributes.path.destination_gid, f->items[2].gid, 16);
    assert_contains(why(100), "waits for the acknowledgement of QP 0x000013 at 192.0.2.1; retry 2 of 7");
    post(2, 1)->waiting = SENDER_WAITS_FOR_WINDOW;
    assert_contains(why(101), "waiting for acknowledgements from QP 0x000013 at 192.0.2.1; retry 2 of 7");
    post(1, 0)->waiting = SENDER_WAITS_FOR_LINK;
    f->qps[0].path.kind = PATH_SEARCHED;
    f->qps[0].path.since = fixture_view().stamp - 2000;
    assert_contains(why(100), "looking up the process that owns QP 0x000013, without an answer for 2.0 s");
    f->qps[0].path.kind = PATH_WIRE;
    assert_contains(why(100), "has not been sent: the send buffer of the UDP socket is full: the network "
                              "interface does not keep up");
    f->qps[0].path.kind = PATH_RING;
    assert_contains(why(100), "the shared-memory ring to QP 0x000013 is full");
    post(2, 1)->waiting = SENDER_WAITS_IN_SQD;
    f->qps[0].state = IBV_QPS_SQD;
    f->qps[0].changed = fixture_view().stamp - 1200;
    f->qps[0].changed_by = 77;
    assert_contains(
        why(101),
        "the QP is in SQD (for 1.2 s: ibv_modify_qp() by thread 77): no new work request is started");
}

/* dest_qpn is of connected QPs only. */
static void datagrams_that_wait(void **state)
{
    struct qp_record *qp = &f->qps[0];
    struct path_address *to = send_wqe_address(fixture_send(qp, 0));

    qp->type = IBV_QPT_UD;
    qp->attributes.dest_qpn = 0;
    post(1, 0)->waiting = SENDER_WAITS_FOR_LINK;
    fixture_send(qp, 0)->ud.remote_qpn = 0x77;
    *to = (struct path_address){.destination_ifindex = 1};
    assert_contains(why(100),
                    "the shared-memory ring to the process of QP 0x000077 (with "
                    "SOFTHCA_PATH=wire, the send buffer of the UDP socket) is full, or that process "
                    "is being looked up");
    to->destination_ifindex = 0;
    assert_contains(why(100), "has not been sent: the send buffer of the UDP socket is full");
    to->is_multicast = 1;
    assert_contains(why(100), "links to the processes of this host are being made, or the send buffer");
    qp->path.kind = PATH_PORT_DOWN;
    assert_contains(why(100), "the port is down");
    qp->path.kind = PATH_UNKNOWN;
    qp->send_stride = sizeof(struct send_wqe);
    assert_contains(why(100), "no room on the path to its destination");
    qp->type = IBV_QPT_RAW_PACKET;
    assert_contains(why(100), "the shared-memory ring to a process of this user is full");
}

/* The process goes on while it is looked at: this happens when the first CQ has been looked at. */
typedef bool visit_fn(const struct view *view, const struct object *object, void *argument);
static void (*meanwhile)(void);
static visit_fn *visit_really;

static bool visit_and_go_on(const struct view *view, const struct object *object, void *argument)
{
    bool goes_on = visit_really(view, object, argument);

    if (meanwhile && object->kind == OBJECT_CQ) {
        meanwhile();
        meanwhile = NULL;
    }
    return goes_on;
}

void __real_objects_for_each(const struct view *view, unsigned kinds, visit_fn *visit, void *argument);
void __wrap_objects_for_each(const struct view *view, unsigned kinds, visit_fn *visit, void *argument);
void __wrap_objects_for_each(const struct view *view, unsigned kinds, visit_fn *visit, void *argument)
{
    visit_really = visit;
    __real_objects_for_each(view, kinds, meanwhile ? visit_and_go_on : visit, argument);
}

static void complete_the_first(void)
{
    f->qps[0].sender.completed = 1;
    *fixture_cqe(&f->cqs[0], 0) =
        (struct cqe){.wr_id = 100, .qpn = FIXTURE_QPN, .retires = 1, .kind = CQE_SEND};
    f->cqs[0].produced = 1;
}

static void a_request_that_completes_meanwhile_is_found(void **state)
{
    post(2, 2);
    meanwhile = complete_the_first;
    assert_contains(
        why(100), "has completed with IBV_WC_SUCCESS; its completion is in CQ 0 \"fixture\", not polled yet");
    assert_null(meanwhile);
}

static void ended_sends(void **state)
{
    struct sender *sender = post(3, 3);
    struct cq_record *cq = &f->cqs[0];

    sender->completed = 3;
    fixture_send(&f->qps[0], 0)->flags = 0;
    *fixture_cqe(cq, 0) = (struct cqe){.wr_id = 101, .qpn = FIXTURE_QPN, .retires = 2, .kind = CQE_SEND};
    *fixture_cqe(cq, 1) = (struct cqe){
        .wr_id = 102, .qpn = FIXTURE_QPN, .retires = 3, .kind = CQE_SEND, .status = IBV_WC_WR_FLUSH_ERR};
    cq->produced = 2;
    assert_contains(why(100), "has completed successfully, unsignaled: no completion is generated");
    assert_contains(
        why(101), "has completed with IBV_WC_SUCCESS; its completion is in CQ 0 \"fixture\", not polled yet");
    assert_contains(
        why(102),
        "has completed with IBV_WC_WR_FLUSH_ERR; its completion is in CQ 0 \"fixture\", not polled yet, "
        "behind 1 other");
    cq->events.raised = 1;
    assert_contains(why(101), "its completion channel has an unread event");
    cq->consumed = 2;
    sender->retired = 3;
    assert_contains(why(101), "its completion was polled from CQ 0");
    assert_contains(why(100), "was not found");
    cq->lost = 1;
    cq->lost_wr_id = 100;
    cq->lost_qpn = FIXTURE_QPN;
    cq->lost_ns = FIXTURE_AGO(2000);
    assert_contains(
        why(100), "of QP 0x000012 has completed, but the completion was lost: CQ 0 was full (7 unpolled) 2.");
}

static void receives(void **state)
{
    struct qp_record *qp = &f->qps[0];

    for (uint32_t i = 0; i < 3; i++) {
        fixture_receive(qp, i)->wr_id = 200 + i;
        fixture_srq_receive(i)->wr_id = 300 + i;
    }
    qp->receive.posted = 3;
    f->srqs[0].posted = 3;
    f->srqs[0].users = 2;
    assert_contains(
        why(202),
        "wr_id 202 (0xca), a receive of QP 0x000012 \"fixture\", waits for a message, behind 2 others");
    assert_contains(
        why(301),
        "a receive of SRQ 0 \"fixture\", waits for a message on one of the 2 QPs of its SRQ, behind 1 other");
    qp->state = IBV_QPS_INIT;
    assert_contains(why(200), "waits, but its QP receives nothing in state INIT");
    qp->receive.taken = 1;
    f->srqs[0].taken = 1;
    assert_contains(why(200), "was not found");
    qp->srq = 0;
    qp->receive.from_srq = true;
    qp->receive.srq_wr_id = 300;
    assert_contains(why(300), "was taken from SRQ 0 for a message that has not arrived completely");
    fixture_receive(qp, 1)->wr_id = fixture_srq_receive(1)->wr_id = 7;
    assert_string_equal(why(7), "wr_id 7 matches 2 work requests");
}

/* Programs that do not care give all of them one wr_id. */
static const char *region(void)
{
    struct view view = fixture_view();

    out_fini(&out);
    out_init(&out, false, SIZE_MAX);
    explain_object(&view, &out, OBJECT_MR, 0);
    return out.text;
}

static void a_region_says_how_much_of_it_is_mapped(void **state)
{
    assert_null(strstr(region(), "mapped"));
    f->mapped[0] = (struct mapped_record){.generation = 2, .length = 4096};
    assert_contains(region(), ", mapped for peers: all");
    f->mapped[0].length = 1024;
    f->mapped[0].reason = MAPPED_PARTIAL_PAGE;
    assert_contains(region(), ", mapped for peers: in part, rest not mapped: ");
    f->mapped[0].generation = 3;
    assert_contains(region(), ", not mapped for peers: ");
    f->mapped[0].reason = 4711;
    assert_non_null(region());
    f->mapped[0].generation = 0;
    assert_null(strstr(region(), "mapped"));
}

static void many_places_are_counted_and_some_told(void **state)
{
    struct qp_record *qp = &f->qps[0];

    post(FIXTURE_SLOTS, 1);
    for (uint32_t i = 0; i < FIXTURE_SLOTS; i++)
        fixture_send(qp, i)->wr_id = fixture_receive(qp, i)->wr_id = fixture_srq_receive(i)->wr_id = 7;
    qp->receive.posted = f->srqs[0].posted = FIXTURE_SLOTS;
    assert_string_equal(why(7), "wr_id 7 matches 24 work requests");
    assert_contains(out.text, "    and 8 more\n");
}

/* --- busy, blocked, lost -------------------------------------------------------------------------------- */

static const char *busy(enum object_kind kind, uint32_t number)
{
    const char *text = said(explain_busy, kind, number);

    assert_non_null(text);
    return text;
}

static void holders_of_each_kind(void **state)
{
    assert_contains(busy(OBJECT_PD, 0),
                    "ibv_dealloc_pd(PD 0 \"fixture\") fails with EBUSY: 1 MR, 2 QPs, 1 SRQ, 1 WQ and 1 AH "
                    "still belong to it");
    assert_contains(busy(OBJECT_CQ, 0),
                    "ibv_destroy_cq(CQ 0 \"fixture\") fails with EBUSY: 2 QPs still complete into it");
    assert_contains(busy(OBJECT_CQ, 1), "WQ 0x000014 \"fixture\" still completes into it");
    assert_contains(busy(OBJECT_QP, 1),
                    "ibv_destroy_qp(QP 0x000013 \"fixture\") fails with EBUSY: multicast group "
                    "239.1.2.3 \"fixture\" still has it attached");
    assert_contains(busy(OBJECT_CHANNEL, 0), "CQ 0 \"fixture\" still uses it");
    assert_contains(busy(OBJECT_WQ, 0), "indirection table 0 \"fixture\" still contains it");
    f->qps[0].srq = 0;
    assert_contains(busy(OBJECT_SRQ, 0), "QP 0x000012 \"fixture\" still receives from it");
    f->keys[1] = (struct key_entry){.kind = KEY_MW_TYPE_2, .bound = 1, .rkey = 0x99, .region = 0};
    assert_contains(busy(OBJECT_MR, 0),
                    "ibv_dereg_mr(MR of 4096 bytes with lkey 0x00004711 \"fixture\") fails with EBUSY: MW "
                    "with rkey 0x00000099 is still bound to it");
    f->pds[1] = (struct pd_record){.state = OBJECT_ALIVE, .users = 3, .protects = 0};
    assert_contains(busy(OBJECT_PD, 0), "1 PD, 1 MR, 1 MW, 2 QPs, 1 SRQ, 1 WQ and 1 AH still belong to it");
    /* What is made with a parent domain is of its PD. */
    assert_contains(busy(OBJECT_PD, 1),
                    "ibv_dealloc_pd(parent domain 1) fails with EBUSY: 3 objects of its PD still use it "
                    "(which ones is not recorded); the PD has 1 MR, 1 MW, 2 QPs, ");
    f->pds[2] = (struct pd_record){.state = OBJECT_ALIVE, .users = 1, .protects = NO_OBJECT};
    f->pds[1].protects = 2;
    assert_contains(busy(OBJECT_PD, 2), "fails with EBUSY: parent domain 1 is still a parent domain of it");
    /* Where it was recorded, what was created in a parent domain is told apart. */
    f->pds[1].protects = 0;
    f->pds[1].users = 2;
    f->srqs[0].provenance.domain = f->cqs[1].provenance.domain = 2;
    f->wqs[0].provenance.domain = f->items[2].provenance.domain = f->key_provenance[0].domain =
        f->key_provenance[1].domain = 1;
    f->qps[0].provenance.domain = f->qps[1].provenance.domain = 1;
    assert_contains(busy(OBJECT_PD, 1),
                    "ibv_dealloc_pd(parent domain 1) fails with EBUSY: 1 CQ and 1 SRQ still belong to it");
    assert_contains(busy(OBJECT_PD, 0), "EBUSY: 1 PD, 1 MR, 1 MW, 2 QPs, 1 WQ and 1 AH still belong to it");
    /* Asked after the last user has gone. */
    f->srqs[1] = f->srqs[0];
    assert_contains(busy(OBJECT_SRQ, 1), "it was in use at the call, and no user of it is left now");
    assert_contains(out.text, "at program+0x1000"); /* where it was created */
}

static void holders_of_thread_domains_xrc_domains_and_device_memory(void **state)
{
    f->items[4] = (struct item_record){.state = OBJECT_ALIVE, .kind = OBJECT_TD};
    f->items[5] = (struct item_record){.state = OBJECT_ALIVE, .kind = OBJECT_XRCD};
    f->items[6] = (struct item_record){
        .state = OBJECT_ALIVE, .kind = OBJECT_DM, .address = 0x10000 - 64, .length = 4096};
    assert_contains(busy(OBJECT_TD, 4), "ibv_dealloc_td(TD 4) fails with EBUSY: it was in use");
    f->pds[1] = (struct pd_record){.state = OBJECT_ALIVE, .protects = 0, .td = 4};
    assert_contains(busy(OBJECT_TD, 4),
                    "ibv_dealloc_td(TD 4) fails with EBUSY: parent domain 1 still uses it");
    f->qps[1].provenance.xrcd = 6;
    assert_contains(busy(OBJECT_XRCD, 5), "ibv_close_xrcd(XRCD 5) fails with EBUSY: QP 0x000013 \"fixture\" "
                                          "still uses it");
    f->srqs[0].provenance.xrcd = 6;
    f->srqs[0].cq = 1;
    assert_contains(busy(OBJECT_XRCD, 5), "EBUSY: 1 QP and 1 SRQ still use it");
    assert_contains(busy(OBJECT_CQ, 1), "EBUSY: 1 SRQ and 1 WQ still complete into it");
    assert_contains(busy(OBJECT_DM, 6), "ibv_free_dm(DM 6 of 4096 bytes) fails with EBUSY: MR of 4096 bytes "
                                        "with lkey 0x00004711 \"fixture\" still uses it");
    f->items[6].length = 64;
    assert_contains(busy(OBJECT_DM, 6), "it was in use at the call, and no user of it is left now");
}

static const char *blocked(enum object_kind kind, uint32_t number)
{
    return said(explain_blocked, kind, number);
}

static void accounts_of_each_kind(void **state)
{
    const struct event_record unpaid = {.raised = 3,
                                        .reported = 2,
                                        .acked = 1,
                                        .type = IBV_EVENT_SRQ_LIMIT_REACHED,
                                        .read_by = FIXTURE_THREAD,
                                        .read_ns = FIXTURE_AGO(1500)};

    assert_null(blocked(OBJECT_QP, 0));
    f->qps[0].events = f->srqs[0].events = f->wqs[0].events = f->cqs[0].async_events = unpaid;
    assert_contains(blocked(OBJECT_QP, 0),
                    "ibv_destroy_qp(QP 0x000012 \"fixture\") is blocked: IBV_EVENT_SRQ_LIMIT_REACHED was "
                    "read and not acknowledged (ibv_ack_async_event)");
    assert_contains(out.text, "read 1.5 s ago by thread 77");
    assert_contains(blocked(OBJECT_SRQ, 0), "ibv_destroy_srq(");
    assert_contains(blocked(OBJECT_WQ, 0), "ibv_destroy_wq(");
    f->ids[0].events = unpaid;
    f->ids[0].events.type = 9;
    assert_contains(blocked(OBJECT_CM_ID, 0),
                    "rdma_destroy_id(cm_id 0 from * port 1234 to 192.0.2.7 port 80 \"fixture\") is blocked: "
                    "RDMA_CM_EVENT_ESTABLISHED was read and not acknowledged (rdma_ack_cm_event)");
    f->ids[0].waits_in = ID_CALL_LEAVE_MULTICAST;
    assert_contains(blocked(OBJECT_CM_ID, 0), "rdma_leave_multicast(cm_id 0");
    f->ids[0].waits_in = 200;
    assert_contains(blocked(OBJECT_CM_ID, 0), "rdma_destroy_id(cm_id 0");
    assert_contains(blocked(OBJECT_CQ, 0),
                    "ibv_destroy_cq(CQ 0 \"fixture\") is blocked: IBV_EVENT_SRQ_LIMIT_REACHED");
    f->cqs[0].events = unpaid;
    f->cqs[0].events.reported = 5;
    assert_contains(blocked(OBJECT_CQ, 0),
                    "4 completion events were read and not acknowledged (ibv_ack_cq_events)");
    f->cqs[1].events.acked = 4;
    assert_contains(blocked(OBJECT_CQ, 0), "; CQ 1 \"fixture\" was acknowledged 4 times too often: "
                                           "probably the events of this one were acknowledged there");
    f->cqs[1].events.acked = 1;
    assert_contains(blocked(OBJECT_CQ, 0), "was acknowledged 1 time too often: ");
    f->cqs[1].context = 1; /* of another device: none of its business */
    assert_null(strstr(blocked(OBJECT_CQ, 0), "too many"));
    f->qps[0].provenance.destroying_by = FIXTURE_THREAD;
    f->qps[0].provenance.destroying_ns = FIXTURE_AGO(1000);
    assert_contains(
        blocked(OBJECT_QP, 0),
        "; the thread that read it is the one that is blocked, so only another thread can acknowledge it");
}

static const char *resumed(enum object_kind kind, uint32_t number)
{
    return said(explain_resumed, kind, number);
}

static void wait_that_ended(void **state)
{
    assert_null(resumed(OBJECT_QP, 0));
    f->qps[0].provenance.destroying_ns = f->pds[0].provenance.destroying_ns = FIXTURE_AGO(1500);
    f->qps[0].events.acked_by = FIXTURE_THREAD;
    assert_contains(resumed(OBJECT_QP, 0),
                    "ibv_destroy_qp(QP 0x000012 \"fixture\") is no longer blocked after 1.5 s: the "
                    "events were acknowledged by thread 77");
    assert_null(resumed(OBJECT_PD, 0)); /* has no events, whatever is written there */
}

static const char *losses(enum object_kind kind, uint32_t number)
{
    return said(explain_losses, kind, number);
}

static void losses_of_each_kind(void **state)
{
    struct qp_record *qp = &f->qps[0];

    assert_null(losses(OBJECT_QP, 0));
    assert_null(losses(OBJECT_CQ, 0));
    assert_null(losses(OBJECT_SRQ, 0));
    post(3, 1)->waiting = SENDER_WAITS_IN_SQD;
    fixture_send(qp, 2)->wr_id = 200;
    qp->receive.posted = 2;
    qp->events.raised = 1;
    *fixture_cqe(&f->cqs[0], 0) = (struct cqe){.wr_id = 9, .qpn = FIXTURE_QPN};
    *fixture_cqe(&f->cqs[0], 1) = (struct cqe){.wr_id = 10, .qpn = FIXTURE_QPN, .kind = CQE_PURGED};
    *fixture_cqe(&f->cqs[0], 2) = (struct cqe){.wr_id = 11, .qpn = FIXTURE_PEER};
    f->cqs[0].produced = 3;
    assert_contains(losses(OBJECT_QP, 0),
                    "ibv_destroy_qp(QP 0x000012 \"fixture\") discarded 3 outstanding sends, 1 "
                    "unpolled completion, 2 unused receives, 1 unread event (QP state RTS)");
    assert_contains(out.text, "outstanding sends: wr_id 100, 101, 200\n");
    assert_contains(out.text, "\n    3 outstanding sends: the QP is in SQD");
    assert_contains(out.text, "it reports success: harmless, unless the program waits for it\n");
    f->cqs[0].armed = CQ_ARMED_ANY;
    assert_contains(losses(OBJECT_CQ, 0),
                    "ibv_destroy_cq(CQ 0 \"fixture\") discarded 2 unpolled completions, an armed "
                    "notification (ibv_req_notify_cq)");
    assert_contains(out.text,
                    "all of them report success: harmless, unless the program waits for one of them\n");
    assert_int_equal(out.remarks[REMARK_COMPLETIONS], 0);
    fixture_cqe(&f->cqs[0], 2)->status = IBV_WC_WR_FLUSH_ERR;
    assert_contains(losses(OBJECT_CQ, 0), "discarded 2 unpolled completions");
    assert_null(strstr(out.text, "harmless"));
    assert_int_equal(out.remarks[REMARK_COMPLETIONS], 1);
    f->srqs[0].posted = 5;
    f->srqs[0].limit = 2;
    for (uint32_t i = 0; i < 5; i++)
        fixture_srq_receive(i)->wr_id = 60 + i;
    assert_contains(losses(OBJECT_SRQ, 0), "discarded 5 unused receives, an armed SRQ limit of 2");
    assert_contains(out.text, "wr_id 60..64\n");
    f->wqs[0].receive.posted = 1;
    assert_contains(losses(OBJECT_WQ, 0),
                    "ibv_destroy_wq(WQ 0x000014 \"fixture\") discarded 1 unused receive");
}

static void an_mr_that_work_requests_name(void **state)
{
    struct view view = fixture_view();
    struct wqe_sge sge = {.address = 0x10000, .length = 8, .lkey = FIXTURE_LKEY};

    assert_false(explain_in_use(&view, &out, 0));
    post(1, 0);
    fixture_send(&f->qps[0], 0)->num_sge = 1;
    memcpy(fixture_send(&f->qps[0], 0) + 1, &sge, sizeof(sge));
    fixture_receive(&f->qps[1], 0)->num_sge = 1;
    fixture_receive(&f->qps[1], 0)->sge[0] = sge;
    f->qps[1].receive.posted = 1;
    view = fixture_view();
    assert_true(explain_in_use(&view, &out, 0));
    assert_contains(cause(),
                    "2 outstanding work requests still use its lkey, in the send queue of QP 0x000012 "
                    "\"fixture\" and 1 more queue");
}

static void leaks(void **state)
{
    struct view view = fixture_view();

    assert_true(explain_leaks(&view, &out, NO_OBJECT));
    assert_contains(
        cause(),
        "the process exits with 1 PD, 1 MR, 2 CQs, 1 channel, 2 QPs, 1 SRQ, 1 WQ, 1 indirection table, "
        "1 AH and 1 cm_id not destroyed, 1 device not closed");
    f->ids[0].state = OBJECT_FREE;
    /* What a closed context left was told when it was closed. */
    f->items[0].state = OBJECT_DESTROYING;
    view = fixture_view();
    out.length = 0;
    assert_false(explain_leaks(&view, &out, NO_OBJECT));
    assert_true(explain_leaks(&view, &out, 0));
    assert_contains(out.text, "ibv_close_device(context 0 of softhca0 \"fixture\") left");
}

/* --- views ---------------------------------------------------------------------------------------------- */

static void a_view_refuses_what_it_cannot_trust(void **state)
{
    struct view view;

    assert_int_equal(view_open(&view, f->base, f->size, -1, 0), 0);
    assert_int_equal(view_open(&view, f->base, sizeof(struct segment_header) - 1, -1, 0), -EPROTO);
    f->header->total_size = f->size + 1;
    assert_int_equal(view_open(&view, f->base, f->size, -1, 0), -EPROTO);
    f->header->total_size = f->size;
    f->header->version++;
    assert_int_equal(view_open(&view, f->base, f->size, -1, 0), -EPROTONOSUPPORT);
    f->header->version--;
    f->header->qps.count = LIMIT_QP + 1;
    assert_int_equal(view_open(&view, f->base, f->size, -1, 0), -EPROTO);
    f->header->qps.count = 4;
    f->header->qps.offset = UINT64_MAX - 8;
    assert_int_equal(view_open(&view, f->base, f->size, -1, 0), -EPROTO);
    f->header->qps.offset = f->size - 8;
    assert_int_equal(view_open(&view, f->base, f->size, -1, 0), -EPROTO);
    f->header->magic++;
    assert_int_equal(view_open(&view, f->base, f->size, -1, 0), -EPROTO);
}

static void foreign_text_is_made_printable(void **state)
{
    struct view view;

    memcpy(f->header->program, "\033[31m\"\\", 8);
    memset(f->cqs[0].provenance.name, 'x', NAME_BYTES);
    view = fixture_view();
    explain_list(&view, &out, true);
    assert_contains(out.text, "?[31m\"\\");
    assert_contains(out.text, "CQ 0 \"xxxxxxxxxxxxxxxx\"");
    out_fini(&out);
    out_init(&out, true, SIZE_MAX);
    explain_list(&view, &out, true);
    assert_contains(out.text, "\"program\":\"?[31m\\\"\\\\\"");
}

static void what_the_network_did_is_told(void **state)
{
    struct view view = fixture_view();

    explain_list(&view, &out, true);
    assert_null(strstr(out.text, "network"));
    assert_null(strstr(out.text, "repeated"));
    f->header->network.packets_sent = 17;
    f->header->network.bad_icrc = 3;
    f->qps[0].sender.retransmissions = 5;
    f->qps[0].sender.sequence_naks = 2;
    f->qps[0].responder.duplicates = 7;
    view = fixture_view();
    explain_list(&view, &out, true);
    assert_contains(out.text,
                    "network: 17 packets (0 bytes) sent, 0 (0 bytes) received, 3 with bad ICRC (dropped)\n");
    assert_contains(out.text,
                    "; retransmissions: 5, PSN sequence error NAKs received: 2, duplicate requests: 7\n");
    out_fini(&out);
    out_init(&out, true, SIZE_MAX);
    explain_list(&view, &out, true);
    assert_contains(out.text, "\"bad_icrc\":3");
    assert_contains(out.text, "\"sequence_naks_received\":2");
}

static void why_a_path_is_not_mapped_is_told(void **state)
{
    static const struct {
        enum path_why why;
        const char *words;
    } reasons[] = {
        {PATH_WHY_OFF,
         " (path: shared-memory ring, peer's memory not mapped: this process does not map memory of peers"},
        {PATH_WHY_FORBIDDEN, " (path: shared-memory ring, peer's memory not mapped: no permission to read "
                             "memory of the peer process"},
        {PATH_WHY_HIDDEN, " (path: shared-memory ring, peer's memory not mapped: the peer process does not "
                          "let this process read"},
        {PATH_WHY_UNUSED,
         " (path: shared-memory ring, peer's memory not mapped: no MR of the peer that was accessed"},
        {PATH_WHY_REFUSED, " (path: shared-memory ring, peer's memory not mapped: the kernel has begun to "
                           "refuse process_vm_writev and"},
        {PATH_WHY_UNKNOWN, " of process 4711 (path: shared-memory ring)"},
    };

    post(1, 1); /* what a destroy discards */
    for (size_t i = 0; i < array_size(reasons); i++) {
        struct view view;

        f->qps[0].path =
            (struct path_record){.kind = PATH_RING, .why = (uint16_t)reasons[i].why, .peer_pid = 4711};
        view = fixture_view();
        out_fini(&out);
        out_init(&out, false, SIZE_MAX);
        explain_list(&view, &out, true);
        assert_contains(out.text, reasons[i].words);
        /* It is about speed: not in the explanation of a loss. */
        out_fini(&out);
        out_init(&out, false, SIZE_MAX);
        assert_true(explain_losses(&view, &out, OBJECT_QP, 0));
        assert_contains(out.text, " of process 4711");
        assert_null(strstr(out.text, "(path: "));
    }
}

static void what_is_too_long_is_cut(void **state)
{
    struct view view = fixture_view();

    out_init(&out, false, 300);
    explain_list(&view, &out, true);
    assert_true(out.cut);
    assert_in_range(strlen(out.text), 1, 300);
}

static void json_stays_json_where_it_is_cut(void **state)
{
    struct view view = fixture_view();
    bool whole = false;

    for (size_t limit = 0; !whole; limit++) {
        out_fini(&out);
        out_init(&out, true, limit);
        assert_true(explain_busy(&view, &out, OBJECT_PD, 0));
        assert_true(json_lines(out.text));
        assert_contains(out.text, "\"cause\":\"ibv_dealloc_pd(PD 0 ");
        whole = !strstr(out.text, "\"cut\":true");
        assert_in_range(out.length, 1, max_of(limit, (size_t)2048));
    }
    assert_contains(out.text, "\"used_by\":[{");
}

/* --- hangs, and calls with what is gone ------------------------------------------------------------------ */

static void unpolled_completions_without_an_event(void **state)
{
    struct cq_record *cq = &f->cqs[0];

    memset(&cq->events, 0, sizeof(cq->events));
    cq->produced = cq->consumed + 2;
    cq->armed = CQ_ARMED_ANY;
    *fixture_cqe(cq, cq->consumed) = (struct cqe){.wr_id = 9, .qpn = FIXTURE_QPN};
    *fixture_cqe(cq, cq->consumed + 1) = (struct cqe){.wr_id = 10, .qpn = FIXTURE_QPN};
    assert_contains(
        said(explain_hang, OBJECT_CQ, 0),
        "has 2 unpolled completions, and no completion event will be raised for them: they were there");
    cq->armed = CQ_ARMED_SOLICITED;
    assert_contains(said(explain_hang, OBJECT_CQ, 0), "had solicited_only set");
    cq->armed = CQ_UNARMED; /* a program that polls */
    assert_null(said(explain_hang, OBJECT_CQ, 0));
    cq->events.raised = cq->events.reported = cq->events.acked = 1;
    assert_contains(said(explain_hang, OBJECT_CQ, 0), "was not called again after the last event");
    cq->owed = 1; /* a peer delivers one */
    assert_contains(said(explain_hang, OBJECT_CQ, 0), "has an unread completion event (ibv_get_cq_event)");
    cq->owed = 0;
    cq->window_by = cq->window_waits_by = FIXTURE_THREAD;
    cq->window_waits_ns = FIXTURE_AGO(1500);
    assert_contains(said(explain_hang, OBJECT_CQ, 0),
                    "it then called a poll of the CQ and has been deadlocked with itself for 1.5 s");
    cq->window_waits_in = CQ_IN_START_POLL;
    assert_contains(said(explain_hang, OBJECT_CQ, 0), "it then called ibv_start_poll() and has");
    cq->window_waits_by = FIXTURE_THREAD + 1;
    cq->window_waits_in = CQ_IN_POLL;
    assert_contains(said(explain_hang, OBJECT_CQ, 0), " has waited in ibv_poll_cq() for 1.5 s");
}

static void queues_that_stand_still(void **state)
{
    struct qp_record *qp = &f->qps[0];
    struct sender *sender;

    memset(&qp->events, 0, sizeof(qp->events));
    qp->receive.posted = qp->receive.taken;
    qp->receive.from_srq = 0;
    qp->srq = NO_OBJECT;
    assert_null(said(explain_hang, OBJECT_QP, 0));
    qp->responder.nak_sent = NAK_OF_PACKET;
    assert_contains(said(explain_hang, OBJECT_QP, 0), "has no receive posted: a SEND of QP 0x000013");
    qp->responder.wanting_write = 1;
    assert_contains(said(explain_hang, OBJECT_QP, 0), ": an RDMA WRITE with immediate of QP 0x000013");
    qp->receive.posted++;
    assert_null(said(explain_hang, OBJECT_QP, 0));
    sender = post(FIXTURE_SLOTS, FIXTURE_SLOTS);
    sender->completed = FIXTURE_SLOTS;
    sender->retired = 0;
    qp->send_depth = FIXTURE_SLOTS;
    assert_null(said(explain_hang, OBJECT_QP, 0));
    for (uint32_t i = 0; i < FIXTURE_SLOTS; i++)
        fixture_send(qp, i)->flags = 0;
    assert_contains(said(explain_hang, OBJECT_QP, 0),
                    "its send queue is full, and stays so unless a work request fails: all 8 slots");
}

/* A request that was refused is told as such until it is acknowledged, whatever the sender does with it meanwhile. */
static void refused_between_two_retries(void **state)
{
    struct sender *sender = post(1, 1);

    f->qps[0].attributes.rnr_retry = 7;
    sender->rnr_retries_left = 7;
    assert_contains(why(100), "waits for the acknowledgement of");
    sender->rnr_retries_left = 6;
    assert_contains(why(100), "has no receive posted (RNR)");
    f->qps[0].path.kind = PATH_WIRE; /* it may be a NIC */
    assert_contains(why(100), "answers RNR NAK (it has no receive posted, or is a NIC that resolves a page "
                              "fault of an on-demand MR); rnr_retry is 7");
}

/* --- the first error of a QP ----------------------------------------------------------------------------------- */

static bool fault_of(const struct view *view, struct out *to, enum object_kind kind, uint32_t number)
{
    return explain_fault(view, to, number);
}

static const char *fault(enum fault_side side, enum fault_cause cause)
{
    struct fault_record *record = &f->qp_rares[0].fault;

    f->qps[0].has_rare = 1;
    record->ns = FIXTURE_AGO(400);
    record->side = (uint8_t)side;
    record->cause = (uint16_t)cause;
    return said(fault_of, OBJECT_QP, 0);
}

static void what_is_said_of_a_fault_is_what_is_known(void **state)
{
    struct fault_record *record = &f->qp_rares[0].fault;
    struct qp_record *qp = &f->qps[0];

    record->region_lkey = FIXTURE_LKEY;
    assert_contains(fault(FAULT_OF_REQUESTER, FAULT_REFERENCE),
                    "the peer could not read the buffer of this work request: this program has unmapped or "
                    "protected memory of the MR with lkey 0x00004711 since its registration");
    record->value = 0;
    assert_contains(fault(FAULT_OF_REQUESTER, FAULT_NO_RECEIVE),
                    "QP 0x000013 had no receive posted (RNR NAK), and rnr_retry is 0");
    qp->path.kind = PATH_WIRE;
    assert_contains(fault(FAULT_OF_REQUESTER, FAULT_NO_RECEIVE),
                    " answered RNR NAK (it had no receive posted, or is a NIC that resolved a page fault of "
                    "an on-demand MR), and rnr_retry is 0");
    /* The peer is in a state in which it answers, and nothing else is wrong. */
    qp->path.kind = PATH_SELF;
    qp->attributes.timeout = 14;
    qp->attributes.retry_count = 6;
    record->value = PATH_SELF;
    f->qps[1].state = IBV_QPS_RTS;
    assert_contains(fault(FAULT_OF_REQUESTER, FAULT_SILENCE),
                    "QP 0x000013 did not acknowledge in 7 tries, each of at least 67.1 ms (timeout code 14, "
                    "retry_cnt 6), and is in RTS");
    /* path_mtu of the other end is not known. */
    record->wanted = UINT32_MAX;
    record->value = 3;
    qp->path.kind = PATH_WIRE;
    assert_contains(fault(FAULT_OF_RESPONDER, FAULT_PACKET_LENGTH),
                    "path_mtu of the two ends probably differs: it is ");
    record->wanted = 2048;
    assert_contains(fault(FAULT_OF_RESPONDER, FAULT_PACKET_LENGTH),
                    "path_mtu of the two ends differs: it is ");
    record->value = 0x1f;
    assert_contains(fault(FAULT_OF_RESPONDER, FAULT_OPCODE), "opcode 0x1f in the BTH is not one of RC");
}

static bool trouble_of(const struct view *view, struct out *to, enum object_kind kind, uint32_t number)
{
    struct object object;

    return object_read(view, kind, number, &object) && explain_watched_trouble(view, to, &object);
}

/* What is armed for solicited completions only may have others. */
static void a_watched_thread_that_waits_for_an_event(void **state)
{
    struct item_record *channel = NULL;

    for (uint32_t i = 0; i < 8; i++) {
        if (f->items[i].kind == OBJECT_CHANNEL)
            channel = &f->items[i];
    }
    assert_non_null(channel);
    f->header->watched = 1;
    channel->waiting_ns = FIXTURE_AGO(1500);
    channel->waiting_by = FIXTURE_THREAD;
    f->cqs[0].polled = 1;
    f->cqs[0].armed = CQ_ARMED_ANY;
    assert_contains(said(trouble_of, OBJECT_CHANNEL, 0), "for 1.5 s: no completion has come");
    f->cqs[0].armed = CQ_ARMED_SOLICITED;
    assert_contains(said(trouble_of, OBJECT_CHANNEL, 0),
                    "no completion that raises an event has come; 1 of its 1 armed CQs raises one only for "
                    "solicited completions and errors (solicited_only of ibv_req_notify_cq)");
}

static bool misuse(const struct view *view, struct out *to, enum object_kind kind, uint32_t number)
{
    return explain_misuse(view, to, number);
}

static void calls_with_what_is_gone(void **state)
{
    struct misuse_record *record = &f->misuses[0];

    assert_null(said(misuse, OBJECT_QP, 0));
    *record = (struct misuse_record){.state = 1,
                                     .form = MISUSE_TWICE,
                                     .error = EINVAL,
                                     .count = 1,
                                     .destroyed_by = FIXTURE_THREAD,
                                     .destroyed_ns = FIXTURE_AGO(2500)};
    strcpy(record->call, "ibv_destroy_qp");
    strcpy(record->object, "QP 0x000012");
    assert_contains(
        said(misuse, OBJECT_QP, 0),
        "ibv_destroy_qp(QP 0x000012) fails with EINVAL: it was destroyed already, 2.5 s ago by thread 77");
    record->form = MISUSE_CHANNEL;
    record->error = 0;
    assert_contains(said(misuse, OBJECT_QP, 0), "its event channel was destroyed before it");
    /* No terminator, nor a form that exists. */
    memset(record->call, 'x', sizeof(record->call));
    memset(record->object, 0xff, sizeof(record->object));
    record->form = 4711;
    assert_non_null(said(misuse, OBJECT_QP, 0));
}

static bool refusal(const struct view *view, struct out *to, enum object_kind kind, uint32_t number)
{
    return explain_refusal(view, to, number);
}

static void calls_that_are_refused(void **state)
{
    struct refused_record *record = &f->refusals[0];

    assert_null(said(refusal, OBJECT_QP, 0));
    *record = (struct refused_record){.state = 1,
                                      .form = REFUSAL_MASK,
                                      .error = EINVAL,
                                      .count = 3,
                                      .kind = OBJECT_QP,
                                      .number = 0x12,
                                      .first_ns = FIXTURE_AGO(2500),
                                      .value = IBV_QPT_UC << 16 | IBV_QPS_RTR << 8 | IBV_QPS_INIT,
                                      .low = IBV_QP_AV | IBV_QP_RQ_PSN | IBV_QP_DEST_QPN,
                                      .high = 1u << 30};
    strcpy(record->call, "ibv_modify_qp");
    assert_contains(
        said(refusal, OBJECT_QP, 0),
        "ibv_modify_qp(QP 0x000012) fails with EINVAL: INIT to RTR of a QP of type UC needs IBV_QP_AV, "
        "IBV_QP_RQ_PSN and IBV_QP_DEST_QPN, which attr_mask lacks; it does not permit 0x40000000, which "
        "attr_mask "
        "has");
    record->form = REFUSAL_RANGE;
    record->value = -1;
    record->low = 0;
    record->high = 16;
    strcpy(record->argument, "num_sge");
    assert_contains(said(refusal, OBJECT_QP, 0), "num_sge is -1, but has to be 0 to 16");
    record->value = 17;
    assert_contains(said(refusal, OBJECT_QP, 0),
                    "num_sge is 17, but may be at most 16 (max_send_sge of the QP)");
    record->form = REFUSAL_BITS;
    record->value = 1;
    record->low = BITS_PLAIN;
    record->high = 0;
    strcpy(record->argument, "comp_mask");
    assert_contains(said(refusal, OBJECT_QP, 0), ": comp_mask has 0x1, but has to be 0");
    record->value = 0;
    record->low = BITS_FLUSH_TYPES;
    record->high = 3;
    strcpy(record->argument, "type");
    assert_contains(said(refusal, OBJECT_QP, 0),
                    ": type is 0, but needs at least one of IBV_FLUSH_GLOBAL and IBV_FLUSH_PERSISTENT");
    record->value = 1 << 10;
    record->low = BITS_CREATE_FLAGS;
    record->high = 1 << 1 | 1 << 8;
    strcpy(record->argument, "create_flags");
    assert_contains(said(refusal, OBJECT_QP, 0),
                    "create_flags has IBV_QP_CREATE_SOURCE_QPN, but may only have "
                    "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB and IBV_QP_CREATE_SCATTER_FCS");
    record->form = REFUSAL_SPECS;
    record->value = 60;
    record->low = 2;
    assert_contains(
        said(refusal, OBJECT_QP, 0),
        ": size is 60, but num_of_specs is 2: size has to be that of struct ibv_flow_attr and of");
    record->form = REFUSAL_FULL;
    record->value = 8;
    record->low = 8;
    record->high = 0;
    strcpy(record->argument, "SRQ");
    assert_contains(said(refusal, OBJECT_QP, 0),
                    "the SRQ is full: all 8 slots (max_wr) hold receives that no message has used yet; post "
                    "fewer, or create it with more");
    record->high = 1;
    strcpy(record->argument, "receive queue");
    assert_contains(said(refusal, OBJECT_QP, 0),
                    "hold receives that have no polled completion; poll more often, post fewer");
    record->form = REFUSAL_WQ_CURRENT;
    record->value = IBV_WQS_RESET;
    record->low = IBV_WQS_RDY;
    assert_contains(said(refusal, OBJECT_QP, 0),
                    "curr_wq_state is IBV_WQS_RESET, but the WQ is in IBV_WQS_RDY");
    record->form = REFUSAL_WQ_TRANSITION;
    record->value = IBV_WQS_RDY;
    record->low = IBV_WQS_ERR;
    record->high = 1u << IBV_WQS_RESET;
    assert_contains(
        said(refusal, OBJECT_QP, 0),
        "IBV_WQS_ERR to IBV_WQS_RDY is not a transition of a WQ (from IBV_WQS_ERR: to IBV_WQS_RESET)");
    record->form = REFUSAL_TRANSITION;
    record->value = IBV_QPS_INIT << 8 | IBV_QPS_SQD;
    record->low = 1u << IBV_QPS_RESET | 1u << IBV_QPS_RTS | 1u << IBV_QPS_SQD | 1u << IBV_QPS_ERR;
    assert_contains(
        said(refusal, OBJECT_QP, 0),
        "SQD to INIT is not a transition of a QP of this type (from SQD: to RESET, RTS, SQD or ERR)");
    record->form = REFUSAL_HOLDS;
    record->kind = OBJECT_SRQ;
    record->number = 3;
    record->value = 4;
    record->low = 7;
    strcpy(record->call, "ibv_modify_srq");
    strcpy(record->argument, "max_wr");
    assert_contains(
        said(refusal, OBJECT_QP, 0),
        "ibv_modify_srq(SRQ 3) fails with EINVAL: max_wr is 4, but the SRQ has 7 receives posted");
    record->kind = OBJECT_CQ;
    record->value = 0;
    record->low = 1;
    strcpy(record->argument, "cqe");
    assert_contains(said(refusal, OBJECT_QP, 0),
                    "(CQ 3) fails with EINVAL: cqe is 0, but the CQ holds 1 unpolled completion");
    /* Whatever another process wrote there. */
    memset(record->call, 0xff, sizeof(record->call));
    memset(record->argument, 'x', sizeof(record->argument));
    record->value = INT64_MIN;
    record->low = record->high = UINT64_MAX;
    record->error = record->kind = record->number = UINT32_MAX;
    for (record->form = 0; record->form < 100; record->form++)
        assert_non_null(said(refusal, OBJECT_QP, 0));
}

static bool drops_for_qkey(const struct view *view, struct out *to, enum object_kind kind, uint32_t number)
{
    return explain_drops(view, to, number, DROP_QKEY);
}

static void datagrams_that_were_dropped(void **state)
{
    struct drop_record *drop = &f->qp_rares[0].drops[DROP_QKEY];

    assert_null(said(drops_for_qkey, OBJECT_QP, 0));
    f->qps[0].has_rare = 1;
    *drop = (struct drop_record){
        .count = 2, .ns = FIXTURE_AGO(400), .seen = 0x1234, .wanted = 0x5678, .src_qpn = 0x42};
    assert_contains(
        said(drops_for_qkey, OBJECT_QP, 0),
        "dropped 2 datagrams from QP 0x000042, the last 400 ms ago: Q_Key 0x00001234, but that of the QP is "
        "0x00005678");
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, begin, end_test)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(reasons_of_the_sender),
        TEST(retries_are_counted),
        TEST(places_of_a_send),
        TEST(stamps_become_ages),
        TEST(where_the_peer_is),
        TEST(datagrams_that_wait),
        TEST(ended_sends),
        TEST(a_request_that_completes_meanwhile_is_found),
        TEST(receives),
        TEST(a_region_says_how_much_of_it_is_mapped),
        TEST(many_places_are_counted_and_some_told),
        TEST(holders_of_each_kind),
        TEST(holders_of_thread_domains_xrc_domains_and_device_memory),
        TEST(unpolled_completions_without_an_event),
        TEST(queues_that_stand_still),
        TEST(refused_between_two_retries),
        TEST(what_is_said_of_a_fault_is_what_is_known),
        TEST(a_watched_thread_that_waits_for_an_event),
        TEST(calls_with_what_is_gone),
        TEST(calls_that_are_refused),
        TEST(datagrams_that_were_dropped),
        TEST(accounts_of_each_kind),
        TEST(wait_that_ended),
        TEST(losses_of_each_kind),
        TEST(an_mr_that_work_requests_name),
        TEST(leaks),
        TEST(a_view_refuses_what_it_cannot_trust),
        TEST(foreign_text_is_made_printable),
        TEST(what_the_network_did_is_told),
        TEST(why_a_path_is_not_mapped_is_told),
        TEST(what_is_too_long_is_cut),
        TEST(json_stays_json_where_it_is_cut),
    };

    return run_unit_tests("explain", tests);
}
