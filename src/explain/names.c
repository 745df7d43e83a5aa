/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "explain/names.h"

#include "base/errno_name.h"
#include "base/types.h"
#include "base/verbs.h"
#include "published/record.h"
#include "transport/qp.h"

#define NAME_OF(table, index) ((index) < array_size(table) && (table)[index] ? (table)[index] : "?")

const char *name_qp_type(uint32_t type)
{
    static const char *const names[] = {
        [IBV_QPT_RC] = "RC",
        [IBV_QPT_UC] = "UC",
        [IBV_QPT_UD] = "UD",
        [IBV_QPT_RAW_PACKET] = "RAW_PACKET",
        [IBV_QPT_XRC_SEND] = "XRC_SEND",
        [IBV_QPT_XRC_RECV] = "XRC_RECV",
    };

    return NAME_OF(names, type);
}

const char *name_qp_state(uint32_t state)
{
    static const char *const names[] = {
        [IBV_QPS_RESET] = "RESET", [IBV_QPS_INIT] = "INIT", [IBV_QPS_RTR] = "RTR", [IBV_QPS_RTS] = "RTS",
        [IBV_QPS_SQD] = "SQD",     [IBV_QPS_SQE] = "SQE",   [IBV_QPS_ERR] = "ERR",
    };

    return NAME_OF(names, state);
}

const char *name_status(uint32_t status)
{
    static const char *const names[] = {
        [IBV_WC_SUCCESS] = "IBV_WC_SUCCESS",
        [IBV_WC_LOC_LEN_ERR] = "IBV_WC_LOC_LEN_ERR",
        [IBV_WC_LOC_QP_OP_ERR] = "IBV_WC_LOC_QP_OP_ERR",
        [IBV_WC_LOC_EEC_OP_ERR] = "IBV_WC_LOC_EEC_OP_ERR",
        [IBV_WC_LOC_PROT_ERR] = "IBV_WC_LOC_PROT_ERR",
        [IBV_WC_WR_FLUSH_ERR] = "IBV_WC_WR_FLUSH_ERR",
        [IBV_WC_MW_BIND_ERR] = "IBV_WC_MW_BIND_ERR",
        [IBV_WC_BAD_RESP_ERR] = "IBV_WC_BAD_RESP_ERR",
        [IBV_WC_LOC_ACCESS_ERR] = "IBV_WC_LOC_ACCESS_ERR",
        [IBV_WC_REM_INV_REQ_ERR] = "IBV_WC_REM_INV_REQ_ERR",
        [IBV_WC_REM_ACCESS_ERR] = "IBV_WC_REM_ACCESS_ERR",
        [IBV_WC_REM_OP_ERR] = "IBV_WC_REM_OP_ERR",
        [IBV_WC_RETRY_EXC_ERR] = "IBV_WC_RETRY_EXC_ERR",
        [IBV_WC_RNR_RETRY_EXC_ERR] = "IBV_WC_RNR_RETRY_EXC_ERR",
        [IBV_WC_REM_ABORT_ERR] = "IBV_WC_REM_ABORT_ERR",
        [IBV_WC_FATAL_ERR] = "IBV_WC_FATAL_ERR",
        [IBV_WC_RESP_TIMEOUT_ERR] = "IBV_WC_RESP_TIMEOUT_ERR",
        [IBV_WC_GENERAL_ERR] = "IBV_WC_GENERAL_ERR",
    };

    return NAME_OF(names, status);
}

const char *name_send_opcode(uint32_t opcode)
{
    static const char *const names[] = {
        [IBV_WR_RDMA_WRITE] = "RDMA WRITE",
        [IBV_WR_RDMA_WRITE_WITH_IMM] = "RDMA WRITE with immediate",
        [IBV_WR_SEND] = "SEND",
        [IBV_WR_SEND_WITH_IMM] = "SEND with immediate",
        [IBV_WR_RDMA_READ] = "RDMA READ",
        [IBV_WR_ATOMIC_CMP_AND_SWP] = "compare and swap",
        [IBV_WR_ATOMIC_FETCH_AND_ADD] = "fetch and add",
        [IBV_WR_LOCAL_INV] = "local invalidate",
        [IBV_WR_BIND_MW] = "bind MW",
        [IBV_WR_SEND_WITH_INV] = "SEND with invalidate",
        [IBV_WR_TSO] = "TSO",
        [WR_FLUSH] = "FLUSH",
        [IBV_WR_ATOMIC_WRITE] = "ATOMIC WRITE",
    };

    return NAME_OF(names, opcode);
}

/* enum rdma_cm_event_type, whose header is another library's. */
const char *name_cm_event(uint32_t type)
{
    static const char *const names[] = {
        "RDMA_CM_EVENT_ADDR_RESOLVED",  "RDMA_CM_EVENT_ADDR_ERROR",      "RDMA_CM_EVENT_ROUTE_RESOLVED",
        "RDMA_CM_EVENT_ROUTE_ERROR",    "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
        "RDMA_CM_EVENT_CONNECT_ERROR",  "RDMA_CM_EVENT_UNREACHABLE",     "RDMA_CM_EVENT_REJECTED",
        "RDMA_CM_EVENT_ESTABLISHED",    "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
        "RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE",
        "RDMA_CM_EVENT_TIMEWAIT_EXIT",
    };

    return NAME_OF(names, type);
}

const char *name_id_state(uint32_t state)
{
    static const char *const names[] = {
        [ID_IDLE] = "idle",
        [ID_BOUND] = "bound",
        [ID_ADDRESS_RESOLVED] = "address resolved",
        [ID_ROUTE_RESOLVED] = "route resolved",
        [ID_CONNECTING] = "connecting",
        [ID_CONNECTED] = "connected",
        [ID_LISTENING] = "listening",
        [ID_DISCONNECTED] = "disconnected",
    };

    return NAME_OF(names, state);
}

const char *name_path(uint32_t kind)
{
    static const char *const names[] = {
        [PATH_UNKNOWN] = "unknown",     [PATH_RING] = "ring",     [PATH_CMA] = "cma",
        [PATH_SELF] = "self",           [PATH_MAPPED] = "mapped", [PATH_SEARCHED] = "searched",
        [PATH_NOBODY] = "nobody",       [PATH_GONE] = "gone",     [PATH_WIRE] = "wire",
        [PATH_PORT_DOWN] = "port down",
    };

    return NAME_OF(names, kind);
}

const char *path_words(uint32_t kind)
{
    static const char *const words[] = {
        [PATH_UNKNOWN] = "not known yet", [PATH_RING] = "shared-memory ring",
        [PATH_CMA] = "kernel copy",       [PATH_SELF] = "same process",
        [PATH_MAPPED] = "mapped memory",  [PATH_SEARCHED] = "peer not found yet",
        [PATH_NOBODY] = "no such QP",     [PATH_GONE] = "peer process ended",
        [PATH_WIRE] = "network",          [PATH_PORT_DOWN] = "port down",
    };

    return NAME_OF(words, kind);
}

const char *name_path_why(uint32_t why)
{
    static const char *const names[] = {
        [PATH_WHY_UNKNOWN] = NULL,
        [PATH_WHY_OFF] = "this process does not map memory of peers, and messages are copied instead "
                         "(softhca doctor has the "
                         "reason)",
        [PATH_WHY_FORBIDDEN] =
            "no permission to read memory of the peer process (ptrace access: another user, another "
            "PID namespace, kernel.yama.ptrace_scope, or a seccomp filter)",
        [PATH_WHY_HIDDEN] =
            "the peer process does not let this process read its SoftHCA state "
            "(it is of another user, or not dumpable: a setuid program, or prctl(PR_SET_DUMPABLE, 0))",
        [PATH_WHY_UNUSED] = "no MR of the peer that was accessed so far is mapped (softhca ps of the peer "
                            "process has the reason at "
                            "each MR)",
        [PATH_WHY_REFUSED] = "the kernel has begun to refuse process_vm_writev and process_vm_readv since "
                             "the connection was made (a seccomp filter)",
        [PATH_WHY_CAPTURE] = "softhca capture records each request as packets",
        [PATH_WHY_FAULTS] = "injected faults of packets are loaded, so each request goes as packets",
        [PATH_WHY_PEER_FAULTS] =
            "injected faults drop packets of the peer, or have done so, so each request goes as packets",
    };

    return why < array_size(names) ? names[why] : NULL;
}

const char *name_sender_wait(uint32_t wait)
{
    static const char *const names[] = {
        [SENDER_RUNS] = "none",
        [SENDER_WAITS_FOR_LINK] = "link",
        [SENDER_WAITS_FOR_FENCE] = "fence",
        [SENDER_WAITS_FOR_READ_DEPTH] = "read_depth",
        [SENDER_WAITS_FOR_RNR_TIMER] = "rnr_timer",
        [SENDER_WAITS_FOR_RETRY] = "ack",
        [SENDER_WAITS_IN_SQD] = "sqd",
        [SENDER_WAITS_FOR_WINDOW] = "window",
        [SENDER_WAITS_TO_FAIL] = "earlier_completions",
        [SENDER_WAITS_FOR_MAPPING] = "mapping",
        [SENDER_WAITS_AFTER_LOSSES] = "after_losses",
    };

    return NAME_OF(names, wait);
}

const char *name_errno(uint32_t error)
{
    const char *name = errno_name((int)error);

    return name ? name : "an error";
}

const struct network_name network_names[NETWORK_COUNTERS] = {
    {"packets_sent", "RoCEv2 packets sent", NULL},
    {"packets_received", "RoCEv2 packets received", NULL},
    {"bytes_sent", "Bytes of RoCEv2 packets sent", NULL},
    {"bytes_received", "Bytes of RoCEv2 packets received", NULL},
    {"bad_icrc", "Packets dropped because their ICRC was wrong", "with bad ICRC (dropped)"},
    {"malformed", "Packets dropped because they were malformed", "malformed"},
    {"unknown_qpn", "Packets dropped because no QP has their destination QPN", "for unknown QPNs"},
    {"forwarded", "Packets forwarded to other processes of this host", NULL},
    {"forwarded_here", "Packets forwarded by other processes of this host", NULL},
    {"not_sent", "Packets that the kernel refused to send", "not sent (kernel error)"},
    {"congested", "Packets received with the mark ECN CE (Congestion Experienced)", "marked ECN CE"},
    {"cnps_received", "Congestion notification packets received", "CNPs received"},
    {"cnps_sent", "Congestion notification packets sent", "CNPs sent"},
};
