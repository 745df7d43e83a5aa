/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Port counters (IBA 16.1.3, 16.1.4 as sysfs names them) and hw_counters, of which drivers have sets of their own:
 * the names are those that exporters and scripts know, for what is counted here. What the adapter cannot have (symbol
 * errors, a link that goes down) is 0, as on a good cable. */
#include "base/types.h"
#include "base/verbs.h"
#include "stats/stats.h"

enum port_value {
    PORT_XMIT_DATA, /* in units of 4 bytes */
    PORT_RCV_DATA,
    PORT_XMIT_PACKETS,
    PORT_RCV_PACKETS,
    UNICAST_XMIT_PACKETS,
    UNICAST_RCV_PACKETS,
    MULTICAST_XMIT_PACKETS,
    MULTICAST_RCV_PACKETS,
    PORT_XMIT_DISCARDS,
    PORT_XMIT_WAIT,
    PORT_RCV_ERRORS,
    PORT_RCV_CONSTRAINT_ERRORS,
    PORT_XMIT_CONSTRAINT_ERRORS,
    PORT_RCV_REMOTE_PHYSICAL_ERRORS,
    PORT_RCV_SWITCH_RELAY_ERRORS,
    SYMBOL_ERROR,
    LINK_DOWNED,
    LINK_ERROR_RECOVERY,
    LOCAL_LINK_INTEGRITY_ERRORS,
    EXCESSIVE_BUFFER_OVERRUN_ERRORS,
    VL15_DROPPED,
    HW_RX_SEND_REQUESTS,
    HW_RX_WRITE_REQUESTS,
    HW_RX_READ_REQUESTS,
    HW_RX_ATOMIC_REQUESTS,
    HW_TX_SEND_REQUESTS,
    HW_TX_WRITE_REQUESTS,
    HW_TX_READ_REQUESTS,
    HW_TX_ATOMIC_REQUESTS,
    HW_DIRECT_REQUESTS,
    HW_RETRANSMITTED,
    HW_OUT_OF_SEQUENCE,
    HW_PACKET_SEQ_ERR,
    HW_DUPLICATE_REQUEST,
    HW_OUT_OF_BUFFER,
    HW_RNR_NAK_RECEIVED,
    HW_RNR_NAK_RETRY_ERR,
    HW_LOCAL_ACK_TIMEOUT_ERR,
    HW_RETRY_EXCEEDED_ERR,
    HW_REQ_CQE_ERROR,
    HW_REQ_CQE_FLUSH_ERROR,
    HW_REQ_REMOTE_ACCESS_ERRORS,
    HW_REQ_REMOTE_INVALID_REQUEST,
    HW_RP_CNP_HANDLED,
    PORT_VALUES,
};

static const struct stats_file files[PORT_VALUES] = {
    [PORT_XMIT_DATA] = {"counters", "port_xmit_data"},
    [PORT_RCV_DATA] = {"counters", "port_rcv_data"},
    [PORT_XMIT_PACKETS] = {"counters", "port_xmit_packets"},
    [PORT_RCV_PACKETS] = {"counters", "port_rcv_packets"},
    [UNICAST_XMIT_PACKETS] = {"counters", "unicast_xmit_packets"},
    [UNICAST_RCV_PACKETS] = {"counters", "unicast_rcv_packets"},
    [MULTICAST_XMIT_PACKETS] = {"counters", "multicast_xmit_packets"},
    [MULTICAST_RCV_PACKETS] = {"counters", "multicast_rcv_packets"},
    [PORT_XMIT_DISCARDS] = {"counters", "port_xmit_discards"},
    [PORT_XMIT_WAIT] = {"counters", "port_xmit_wait"},
    [PORT_RCV_ERRORS] = {"counters", "port_rcv_errors"},
    [PORT_RCV_CONSTRAINT_ERRORS] = {"counters", "port_rcv_constraint_errors"},
    [PORT_XMIT_CONSTRAINT_ERRORS] = {"counters", "port_xmit_constraint_errors"},
    [PORT_RCV_REMOTE_PHYSICAL_ERRORS] = {"counters", "port_rcv_remote_physical_errors"},
    [PORT_RCV_SWITCH_RELAY_ERRORS] = {"counters", "port_rcv_switch_relay_errors"},
    [SYMBOL_ERROR] = {"counters", "symbol_error"},
    [LINK_DOWNED] = {"counters", "link_downed"},
    [LINK_ERROR_RECOVERY] = {"counters", "link_error_recovery"},
    [LOCAL_LINK_INTEGRITY_ERRORS] = {"counters", "local_link_integrity_errors"},
    [EXCESSIVE_BUFFER_OVERRUN_ERRORS] = {"counters", "excessive_buffer_overrun_errors"},
    [VL15_DROPPED] = {"counters", "VL15_dropped"},
    [HW_RX_SEND_REQUESTS] = {"hw_counters", "rx_send_requests"},
    [HW_RX_WRITE_REQUESTS] = {"hw_counters", "rx_write_requests"},
    [HW_RX_READ_REQUESTS] = {"hw_counters", "rx_read_requests"},
    [HW_RX_ATOMIC_REQUESTS] = {"hw_counters", "rx_atomic_requests"},
    [HW_TX_SEND_REQUESTS] = {"hw_counters", "tx_send_requests"},
    [HW_TX_WRITE_REQUESTS] = {"hw_counters", "tx_write_requests"},
    [HW_TX_READ_REQUESTS] = {"hw_counters", "tx_read_requests"},
    [HW_TX_ATOMIC_REQUESTS] = {"hw_counters", "tx_atomic_requests"},
    [HW_DIRECT_REQUESTS] = {"hw_counters", "direct_requests"},
    [HW_RETRANSMITTED] = {"hw_counters", "retransmissions"},
    [HW_OUT_OF_SEQUENCE] = {"hw_counters", "dropped_requests"},
    [HW_PACKET_SEQ_ERR] = {"hw_counters", "packet_seq_err"},
    [HW_DUPLICATE_REQUEST] = {"hw_counters", "duplicate_request"},
    [HW_OUT_OF_BUFFER] = {"hw_counters", "out_of_buffer"},
    [HW_RNR_NAK_RECEIVED] = {"hw_counters", "rcvd_rnr_err"},
    [HW_RNR_NAK_RETRY_ERR] = {"hw_counters", "rnr_nak_retry_err"},
    [HW_LOCAL_ACK_TIMEOUT_ERR] = {"hw_counters", "local_ack_timeout_err"},
    [HW_RETRY_EXCEEDED_ERR] = {"hw_counters", "retry_exceeded_err"},
    [HW_REQ_CQE_ERROR] = {"hw_counters", "cqe_error"},
    [HW_REQ_CQE_FLUSH_ERROR] = {"hw_counters", "cqe_flush_error"},
    [HW_REQ_REMOTE_ACCESS_ERRORS] = {"hw_counters", "req_remote_access_errors"},
    [HW_REQ_REMOTE_INVALID_REQUEST] = {"hw_counters", "req_remote_invalid_request"},
    [HW_RP_CNP_HANDLED] = {"hw_counters", "rp_cnp_handled"},
};
_Static_assert(PORT_VALUES <= STATS_FILES_MAX, "room for all");

unsigned stats_files(const struct stats_file **ret)
{
    *ret = files;
    return PORT_VALUES;
}

static uint64_t requested(const struct traffic_record *traffic, enum traffic_kind kind)
{
    return traffic->requested[TRAFFIC_BY_PACKETS][kind].messages +
           traffic->requested[TRAFFIC_BY_REQUESTER][kind].messages;
}

void stats_port_values(const struct traffic_sum *sum, struct stats_values *ret)
{
    const struct traffic_record *traffic = &sum->traffic;
    const struct traffic_count *direct = traffic->requested[TRAFFIC_BY_REQUESTER];
    struct stats_flow flow = stats_flow(traffic);
    uint64_t *value = ret->value, errors = 0;

    *ret = (struct stats_values){0};
    /* What a requester has executed in the memory of a peer, only it counts: it went out of a port of this host and
     * came in by one, taken as the same. */
    for (unsigned kind = TRAFFIC_WRITE; kind <= TRAFFIC_ATOMIC_WRITE; kind++)
        counter_add(kind == TRAFFIC_READ ? &flow.bytes_out : &flow.bytes_in, direct[kind].bytes);
    for (unsigned i = 1; i < TRAFFIC_STATUSES; i++)
        errors += sum->rare.failed[i];
    value[PORT_XMIT_DATA] = flow.bytes_out / 4;
    value[PORT_RCV_DATA] = flow.bytes_in / 4;
    value[PORT_XMIT_PACKETS] = value[UNICAST_XMIT_PACKETS] = sum->packets_sent;
    value[PORT_RCV_PACKETS] = value[UNICAST_RCV_PACKETS] = sum->packets_received;
    value[HW_RX_SEND_REQUESTS] = traffic->executed[TRAFFIC_SEND].messages;
    value[HW_RX_WRITE_REQUESTS] = traffic->executed[TRAFFIC_WRITE].messages;
    value[HW_RX_READ_REQUESTS] = traffic->executed[TRAFFIC_READ].messages;
    value[HW_RX_ATOMIC_REQUESTS] =
        traffic->executed[TRAFFIC_ATOMIC].messages + traffic->executed[TRAFFIC_ATOMIC_WRITE].messages;
    value[HW_TX_SEND_REQUESTS] = requested(traffic, TRAFFIC_SEND);
    value[HW_TX_WRITE_REQUESTS] = requested(traffic, TRAFFIC_WRITE);
    value[HW_TX_READ_REQUESTS] = requested(traffic, TRAFFIC_READ);
    value[HW_TX_ATOMIC_REQUESTS] =
        requested(traffic, TRAFFIC_ATOMIC) + requested(traffic, TRAFFIC_ATOMIC_WRITE);
    for (unsigned kind = TRAFFIC_WRITE; kind <= TRAFFIC_ATOMIC_WRITE; kind++)
        counter_add(&value[HW_DIRECT_REQUESTS], direct[kind].messages);
    value[HW_RETRANSMITTED] = sum->retries.retransmissions;
    value[HW_OUT_OF_SEQUENCE] = sum->retries.drops;
    value[HW_PACKET_SEQ_ERR] = sum->retries.sequence_naks;
    value[HW_DUPLICATE_REQUEST] = sum->retries.duplicates;
    value[HW_OUT_OF_BUFFER] = traffic->rnr_naks_sent;
    value[HW_RNR_NAK_RECEIVED] = sum->retries.rnr_naks;
    value[HW_RNR_NAK_RETRY_ERR] = sum->rare.failed[IBV_WC_RNR_RETRY_EXC_ERR];
    value[HW_LOCAL_ACK_TIMEOUT_ERR] = sum->retries.timeouts;
    value[HW_RETRY_EXCEEDED_ERR] = sum->rare.failed[IBV_WC_RETRY_EXC_ERR];
    value[HW_REQ_CQE_ERROR] = errors;
    value[HW_REQ_CQE_FLUSH_ERROR] = sum->rare.failed[IBV_WC_WR_FLUSH_ERR];
    value[HW_REQ_REMOTE_ACCESS_ERRORS] = sum->rare.failed[IBV_WC_REM_ACCESS_ERR];
    value[HW_REQ_REMOTE_INVALID_REQUEST] = sum->rare.failed[IBV_WC_REM_INV_REQ_ERR];
    value[HW_RP_CNP_HANDLED] = sum->retries.congestions;
}
