/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* transport_plain_ports of the network path (docs/design/plain-requests.md): what network_send() does with each packet,
 * for those of one QP that leave one behind the other. The lane is held from begin() to end(), so nothing in between
 * takes it or waits. */
#include "engine/core/core.h"
#include "engine/core/faults.h"
#include "engine/core/plain.h"
#include "engine/paths/paths.h"
#include "udp/udp.h"

static bool begin(struct transport_qp *transport)
{
    const struct qp *qp = container_of(transport, struct qp, transport);
    struct udp_path path;

    return !qp->by_packets && !qp->counted && !qp->origin && !times_recorded() && likely(!inject_loaded()) &&
           network_fill_path(qp, &qp->record->attributes.path, &path) &&
           udp_hold(route_of(qp)->network_lane, &path);
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
    network_note_requests(qp, first, count);
}

const struct transport_plain_ports network_plain_ports = {.begin = begin, .put = put, .end = end};
