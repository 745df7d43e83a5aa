/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Delivering a steered frame to a RAW_PACKET QP: to its receive queue, or for an RSS QP to the WQ that the frame's
 * hash selects (verbs.md §7.1, §7.4). */
#include <string.h>

#include "object/qp/qp_internal.h"
#include "object/receive/wq.h"
#include "object/steering/flow.h"
#include "steering/toeplitz.h"

struct shaped {
    uint8_t bytes[FRAME_LENGTH_MAX + FCS_LENGTH];
};

/* Strips the C-VLAN tag and appends the FCS, as the flags require; the frame is copied only then. The FCS is that of
 * the frame with its tag, as on the wire. */
static struct arrival shape(const struct steered *frame, const struct frame *fields, uint32_t flow_tag,
                            bool strip, bool with_fcs, struct shaped *shaped)
{
    struct arrival arrival = {.bytes = frame->bytes, .length = frame->length, .flow_tag = flow_tag};
    const uint32_t macs = ETHERNET_LENGTH - 2;

    strip = strip && (fields->layers & FRAME_CVLAN);
    if (!strip && !with_fcs)
        return arrival;
    if (strip) {
        arrival.length -= CVLAN_LENGTH;
        arrival.vlan = (uint16_t)(frame->bytes[ETHERNET_LENGTH] << 8 | frame->bytes[ETHERNET_LENGTH + 1]);
        memcpy(shaped->bytes, frame->bytes, macs);
        memcpy(shaped->bytes + macs, frame->bytes + macs + CVLAN_LENGTH, arrival.length - macs);
    } else {
        memcpy(shaped->bytes, frame->bytes, frame->length);
    }
    if (with_fcs) {
        frame_check_sequence(frame->bytes, frame->length, shaped->bytes + arrival.length);
        arrival.length += FCS_LENGTH;
    }
    arrival.bytes = shaped->bytes;
    return arrival;
}

static void spread(struct qp *qp, const struct steered *frame, const struct frame *fields, uint32_t flow_tag)
{
    uint32_t hash = toeplitz_of_frame(qp->hash_key, qp->hash_fields, fields);
    struct wq *wq = qp->spreads_over->wqs[hash & (qp->spreads_over->count - 1)];
    uint32_t flags = wq_flags(wq);
    struct shaped shaped;
    struct arrival arrival = shape(frame, fields, flow_tag, flags & IBV_WQ_FLAGS_CVLAN_STRIPPING,
                                   flags & IBV_WQ_FLAGS_SCATTER_FCS, &shaped);

    wq_receive(wq, &arrival);
}

static bool receives(const struct qp *qp)
{
    switch (qp_state(qp)) {
    case IBV_QPS_RTR:
    case IBV_QPS_RTS:
    case IBV_QPS_SQD:
    case IBV_QPS_SQE:
        return true;
    case IBV_QPS_RESET:
    case IBV_QPS_INIT:
    case IBV_QPS_ERR:
    case IBV_QPS_UNKNOWN:
        break;
    }
    return false;
}

void raw_deliver(struct qp *qp, const struct steered *frame, const struct frame *fields, uint32_t flow_tag)
{
    struct receive_completion completion = {.flow_tag = flow_tag};
    struct shaped shaped;
    struct arrival arrival;

    if (qp->spreads_over) {
        spread(qp, frame, fields, flow_tag);
        return;
    }
    if (!receives(qp))
        return;
    arrival = shape(frame, fields, flow_tag, qp->create_flags & IBV_QP_CREATE_CVLAN_STRIPPING,
                    qp->create_flags & IBV_QP_CREATE_SCATTER_FCS, &shaped);
    completion.vlan = arrival.vlan;
    raw_receive(&qp->transport, arrival.bytes, arrival.length, &completion);
}
