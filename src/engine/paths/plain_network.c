/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* transport_plain_ports of the network path (docs/design/plain-requests.md): what network_send() does with each packet,
 * for those of one QP that leave one behind the other. The lane is held from begin() to end(), so nothing in between
 * may take it. */
#include "engine/core/core.h"
#include "engine/core/faults.h"
#include "engine/core/plain.h"
#include "engine/paths/paths.h"
#include "udp/udp.h"

/* An acknowledgement that waits for a request of the program follows the first one (network_ack.c). */
static uint32_t begin(struct transport_qp *transport, const struct wqe_sge *sge)
{
    const struct qp *qp = container_of(transport, struct qp, transport);
    struct udp_path path;

    if (!route_of(qp)->by_network || qp->by_packets || qp->counted || qp->origin || times_recorded() ||
        unlikely(inject_loaded() != NULL) ||
        (sge && !plain_local(qp, sge->lkey, sge->address, sge->length)) ||
        !network_fill_path(qp, &qp->record->attributes.path, &path))
        return 0;
    udp_hold(route_of(qp)->network_lane, &path);
    return ack_delay_state(&route_of(qp)->ack_delay) == ACK_DELAY_WAITS ? 1 : UINT32_MAX;
}

static bool put(struct transport_qp *transport, struct packet *packet, const struct wqe_sge *sge)
{
    struct qp *qp = container_of(transport, struct qp, transport);

    if (sge)
        packet->payload = plain_local(qp, sge->lkey, sge->address, packet->payload_length);
    return likely(packet->payload) && udp_put(route_of(qp)->network_lane, packet);
}

static void end(struct transport_qp *transport, psn_t first, uint32_t count)
{
    struct qp *qp = container_of(transport, struct qp, transport);

    udp_release(route_of(qp)->network_lane);
    if (likely(count))
        network_note_requests(qp, first, count);
}

const struct transport_plain_ports network_plain_ports = {.begin = begin, .put = put, .end = end};
