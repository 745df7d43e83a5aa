/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages to a tag matching SRQ. The header of a SEND gives its kind: without a tag; data for a tagged buffer
 * (eager); or the address of data in the sender's memory (rendezvous). The adapter fetches rendezvous data into the
 * tagged buffer by an RDMA READ of its own, and tells the sender with a FIN message when it has. The adapter's own
 * requests take slots of the program's send queue that the program does not count (WQE_OWN). None is posted
 * while the program builds a batch of ibv_wr_*() there. */
#include <errno.h>
#include <string.h>

#include "transport/machine.h"
#include "wire/tmh.h"

/* --- header --------------------------------------------------------------------------------------- */

void packet_slice(const struct packet *packet, uint32_t offset, uint32_t length, struct packet *ret_packet,
                  struct packet_reference references[PACKET_REFERENCES])
{
    *ret_packet = *packet;
    ret_packet->payload_length = length;
    if (!(packet->flags & PACKET_BY_REFERENCE)) {
        ret_packet->payload = (const char *)packet->payload + offset;
        return;
    }
    ret_packet->reference = references;
    ret_packet->reference_count = 0;
    for (uint32_t i = 0; i < packet->reference_count && length; i++) {
        struct packet_reference piece = packet->reference[i];

        if (piece.length <= offset) {
            offset -= piece.length;
            continue;
        }
        piece.address += offset;
        piece.length = min_of(piece.length - offset, length);
        offset = 0;
        length -= piece.length;
        references[ret_packet->reference_count++] = piece;
    }
}

/* Copies the first bytes of the message, once: the sender's memory may change meanwhile. */
static int peek(struct transport_qp *qp, const struct packet *packet, uint8_t *bytes, uint32_t length)
{
    struct packet_reference references[PACKET_REFERENCES];
    struct iovec vector = {.iov_base = bytes, .iov_len = length};
    struct packet head;

    if (!length)
        return 0;
    if (!(packet->flags & PACKET_BY_REFERENCE)) {
        memcpy(bytes, packet->payload, length);
        return 0;
    }
    packet_slice(packet, 0, length, &head, references);
    return qp->ports->reference->pull(qp, &head, &vector, 1);
}

/* --- the receive of a message ------------------------------------------------------------------------ */

/* A peer may announce data that cannot be fetched. Then software has to handle it, and finds the headers in the
 * buffer. */
static bool can_fetch(const struct transport_qp *qp, const struct recv_wqe *receive, const struct rvh *rvh)
{
    enum ibv_qp_state state = qp_state(qp);

    return (state == IBV_QPS_RTS || state == IBV_QPS_SQD) && qp->record->attributes.max_rd_atomic &&
           qp->record->pd == qp->receive_pd && rvh->length <= LIMIT_MESSAGE &&
           rvh->length <= gather_length(receive->sge, receive->num_sge);
}

static enum tagged_kind kind_of_rendezvous(const struct transport_qp *qp, struct tag_entry *entry, bool whole,
                                           const uint8_t *bytes, uint32_t length)
{
    struct rvh rvh;

    if (!whole || length < TMH_SIZE + RVH_SIZE)
        return TAGGED_INCOMPLETE;
    rvh = rvh_decode(bytes + TMH_SIZE);
    if (!can_fetch(qp, tag_receive(entry), &rvh))
        return TAGGED_INCOMPLETE;
    entry->address = rvh.address;
    entry->rkey = rvh.rkey;
    entry->length = rvh.length;
    return TAGGED_RENDEZVOUS;
}

int tagged_take(struct transport_qp *qp, const struct packet *packet, uint32_t length, bool whole)
{
    uint8_t bytes[TMH_SIZE + RVH_SIZE];
    struct tagged *tagged = &qp->tagged;
    struct tmh tmh = {.opcode = TMH_NO_TAG};
    struct tag_match match = {0};
    int error = peek(qp, packet, bytes, min_of(length, (uint32_t)sizeof(bytes)));

    if (error)
        return error;
    if (length >= TMH_SIZE)
        tmh = tmh_decode(bytes);
    tagged->header = 0;
    tagged->entry = NULL;
    if (tmh.opcode != TMH_EAGER && tmh.opcode != TMH_RENDEZVOUS) {
        tagged->kind = TAGGED_NO_TAG;
        return qp->ports->take_receive(qp, &qp->current_receive);
    }
    error = qp->ports->tag_matching->match(qp, tmh.tag, &match);
    if (error)
        return error;
    if (!match.entry) {
        tagged->kind = TAGGED_UNEXPECTED;
        tagged->sync_due = match.sync_due;
        qp->current_receive = match.receive;
        return 0;
    }
    tagged->entry = match.entry;
    match.entry->message_tag = tmh.tag;
    match.entry->app_ctx = tmh.app_ctx;
    qp->current_receive = tag_receive(match.entry);
    if (tmh.opcode == TMH_EAGER) {
        tagged->kind = TAGGED_EAGER;
        tagged->header = TMH_SIZE;
    } else {
        whole = whole && length <= LIMIT_RENDEZVOUS_HEADER;
        tagged->kind = (uint8_t)kind_of_rendezvous(qp, match.entry, whole, bytes, length);
    }
    return 0;
}

static void enqueue(struct tagged *tagged, struct tag_entry *entry)
{
    entry->requested = entry->fetched = false;
    entry->next_fetch = NULL;
    if (tagged->fetch_last)
        tagged->fetch_last->next_fetch = entry;
    else
        tagged->fetch_first = entry;
    tagged->fetch_last = entry;
}

static void describe(struct transport_qp *qp, struct receive_completion *completion, enum tagged_kind kind,
                     const struct tag_entry *entry)
{
    if (entry) {
        completion->tag = entry->message_tag;
        completion->app_ctx = entry->app_ctx;
    }
    switch (kind) {
    case TAGGED_NOT:
        return;
    case TAGGED_NO_TAG:
        completion->opcode = IBV_WC_TM_NO_TAG;
        return;
    case TAGGED_UNEXPECTED:
        completion->opcode = IBV_WC_TM_RECV;
        if (completion->verdict != VERDICT_OK)
            qp->ports->tag_matching->discount(
                qp); /* an error completion does not show that it was unexpected */
        else if (qp->tagged.sync_due)
            completion->wc_flags |= IBV_WC_TM_SYNC_REQ;
        return;
    case TAGGED_EAGER:
    case TAGGED_INCOMPLETE:
        completion->opcode = IBV_WC_TM_RECV;
        completion->wc_flags |= IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID;
        if (kind == TAGGED_INCOMPLETE && completion->verdict == VERDICT_OK)
            completion->verdict = VERDICT_RENDEZVOUS_INCOMPLETE;
        return;
    case TAGGED_RENDEZVOUS:
        completion->opcode = IBV_WC_TM_RECV;
        completion->wc_flags |= IBV_WC_TM_MATCH;
        completion->byte_len = entry->length;
        return;
    }
}

void tagged_finish(struct transport_qp *qp, struct receive_completion *completion)
{
    struct tagged *tagged = &qp->tagged;
    enum tagged_kind kind = (enum tagged_kind)tagged->kind;
    struct tag_entry *entry = tagged->entry;

    tagged->kind = TAGGED_NOT;
    tagged->entry = NULL;
    tagged->header = 0;
    if (completion->opcode == IBV_WC_RECV)
        describe(qp, completion, kind, entry);
    if (!entry) {
        qp->ports->complete_receive(qp, completion);
        return;
    }
    qp->ports->tag_matching->complete_tagged(qp, tag_receive(entry)->wr_id, completion);
    if (kind == TAGGED_RENDEZVOUS && completion->verdict == VERDICT_OK)
        enqueue(tagged, entry);
    else
        qp->ports->tag_matching->release(qp, entry);
}

/* --- fetching ------------------------------------------------------------------------------------- */

static struct send_wqe *own_request(struct transport_qp *qp, struct send_wqe request)
{
    struct sender *sender = &qp->record->sender;
    uint32_t posted = atomic_load_explicit(&sender->posted, memory_order_relaxed);
    struct send_wqe *wqe = send_wqe_at(qp, posted);

    *wqe = request;
    return wqe;
}

static void own_request_posted(struct sender *sender)
{
    sender->own_posted++;
    atomic_store_explicit(&sender->posted, atomic_load_explicit(&sender->posted, memory_order_relaxed) + 1,
                          memory_order_release);
}

static void post_fin(struct transport_qp *qp, const struct tag_entry *entry)
{
    const struct tmh fin = {.opcode = TMH_FIN, .app_ctx = entry->app_ctx, .tag = entry->message_tag};
    struct send_wqe *wqe = own_request(
        qp, (struct send_wqe){.opcode = IBV_WR_SEND, .flags = WQE_OWN | WQE_INLINE, .length = TMH_SIZE});

    tmh_encode(&fin, send_wqe_body(wqe, IBV_QPT_RC));
    own_request_posted(&qp->record->sender);
}

static void post_read(struct transport_qp *qp, struct tag_entry *entry)
{
    const struct recv_wqe *receive = tag_receive(entry);
    struct send_wqe *wqe = own_request(qp, (struct send_wqe){.opcode = IBV_WR_RDMA_READ,
                                                             .flags = WQE_OWN,
                                                             .num_sge = (uint8_t)receive->num_sge,
                                                             .length = entry->length,
                                                             .rkey = entry->rkey,
                                                             .remote_address = entry->address});

    memcpy(send_wqe_body(wqe, IBV_QPT_RC), receive->sge, receive->num_sge * sizeof(receive->sge[0]));
    entry->requested = true;
    own_request_posted(&qp->record->sender);
}

static struct tag_entry *dequeue(struct tagged *tagged)
{
    struct tag_entry *entry = tagged->fetch_first;

    tagged->fetch_first = entry->next_fetch;
    if (!tagged->fetch_first)
        tagged->fetch_last = NULL;
    return entry;
}

void tagged_post(struct transport_qp *qp)
{
    const struct sender *sender = &qp->record->sender;
    struct tagged *tagged = &qp->tagged;

    if (qp->building)
        return;
    /* A completed READ has freed the slot that its FIN takes. */
    while (tagged->fetch_first && tagged->fetch_first->fetched) {
        struct tag_entry *entry = dequeue(tagged);

        post_fin(qp, entry);
        qp->ports->tag_matching->release(qp, entry);
    }
    for (struct tag_entry *entry = tagged->fetch_first;
         entry && sender->own_posted - sender->own_completed < OWN_REQUESTS; entry = entry->next_fetch) {
        if (!entry->requested)
            post_read(qp, entry);
    }
}

/* The adapter's READ is complete. READs complete in order, so it belongs to the oldest entry that is not fetched. */
static void fetched(struct transport_qp *qp, enum verdict verdict)
{
    struct tagged *tagged = &qp->tagged;
    struct tag_entry *before = NULL, *entry = tagged->fetch_first;
    struct receive_completion completion = {
        .verdict = verdict,
        .opcode = IBV_WC_TM_RECV,
        .wc_flags = IBV_WC_TM_DATA_VALID,
        .src_qpn = qp->record->attributes.dest_qpn,
    };

    for (; entry && entry->fetched; entry = entry->next_fetch)
        before = entry;
    if (!entry)
        return;
    completion.byte_len = entry->length;
    entry->fetched = true;
    qp->ports->tag_matching->complete_tagged(qp, tag_receive(entry)->wr_id, &completion);
    if (verdict == VERDICT_OK)
        return;
    if (before)
        before->next_fetch = entry->next_fetch;
    else
        tagged->fetch_first = entry->next_fetch;
    if (tagged->fetch_last == entry)
        tagged->fetch_last = before;
    qp->ports->tag_matching->release(qp, entry);
}

void tagged_own_completed(struct transport_qp *qp, const struct send_wqe *wqe, enum verdict verdict)
{
    qp->record->sender.own_completed++;
    if (wqe->opcode == IBV_WR_RDMA_READ)
        fetched(qp, verdict);
    if (verdict == VERDICT_OK)
        tagged_post(qp);
}

/* --- the end -------------------------------------------------------------------------------------- */

static void drop_all(struct transport_qp *qp, bool report)
{
    struct tagged *tagged = &qp->tagged;
    struct receive_completion flushed = {.verdict = VERDICT_FLUSHED, .opcode = IBV_WC_TM_RECV};

    while (tagged->fetch_first) {
        struct tag_entry *entry = dequeue(tagged);

        if (report && !entry->fetched)
            qp->ports->tag_matching->complete_tagged(qp, tag_receive(entry)->wr_id, &flushed);
        qp->ports->tag_matching->release(qp, entry);
    }
    if (tagged->kind == TAGGED_UNEXPECTED)
        qp->ports->tag_matching->discount(qp);
    if (tagged->entry) {
        if (report)
            qp->ports->tag_matching->complete_tagged(qp, tag_receive(tagged->entry)->wr_id, &flushed);
        qp->ports->tag_matching->release(qp, tagged->entry);
        qp->current_receive = NULL;
    }
    tagged->kind = TAGGED_NOT;
    tagged->entry = NULL;
}

void tagged_flush(struct transport_qp *qp)
{
    drop_all(qp, true);
}

void tagged_forget(struct transport_qp *qp)
{
    drop_all(qp, false);
}
