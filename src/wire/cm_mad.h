/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* CM messages (communication management, IBA 12.6, 12.11): MADs of class 7, class version 2, method Send. */
#ifndef WIRE_CM_MAD_H
#define WIRE_CM_MAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/mad.h"

#define CM_CLASS_VERSION 2

enum cm_attribute {
    CM_REQ = 0x10,
    CM_MRA = 0x11,
    CM_REJ = 0x12,
    CM_REP = 0x13,
    CM_RTU = 0x14,
    CM_DREQ = 0x15,
    CM_DREP = 0x16,
    CM_SIDR_REQ = 0x17,
    CM_SIDR_REP = 0x18,
    CM_LAP = 0x19,
    CM_APR = 0x1a,
};

/* Size of the private data field of each message, in bytes. */
enum cm_private_length {
    CM_REQ_PRIVATE = 92,
    CM_MRA_PRIVATE = 222,
    CM_REJ_PRIVATE = 148,
    CM_REP_PRIVATE = 196,
    CM_RTU_PRIVATE = 224,
    CM_DREQ_PRIVATE = 220,
    CM_DREP_PRIVATE = 224,
    CM_SIDR_REQ_PRIVATE = 216,
    CM_SIDR_REP_PRIVATE = 136,
    CM_LAP_PRIVATE = 168,
    CM_APR_PRIVATE = 148,
    CM_PRIVATE_MAX = 224,
};

/* Size of the additional information field of REJ, APR and SIDR_REP. */
#define CM_INFO_MAX 72

/* The message that an MRA or REJ refers to (IBA tables 107, 108). */
enum cm_message { CM_MESSAGE_REQ = 0, CM_MESSAGE_REP = 1, CM_MESSAGE_OTHER = 2 };

/* Reason of a REJ (IBA table 108); event->status of RDMA_CM_EVENT_REJECTED. */
enum cm_reason {
    CM_REASON_NO_QP = 1,
    CM_REASON_NO_EEC = 2,
    CM_REASON_NO_RESOURCES = 3,
    CM_REASON_TIMEOUT = 4,
    CM_REASON_UNSUPPORTED = 5,
    CM_REASON_INVALID_COMM_ID = 6,
    CM_REASON_INVALID_COMM_INSTANCE = 7,
    CM_REASON_INVALID_SERVICE_ID = 8,
    CM_REASON_INVALID_SERVICE_TYPE = 9,
    CM_REASON_STALE_CONNECTION = 10,
    CM_REASON_NO_RDC = 11,
    CM_REASON_INVALID_GID = 12,
    CM_REASON_INVALID_LID = 13,
    CM_REASON_INVALID_SL = 14,
    CM_REASON_INVALID_TRAFFIC_CLASS = 15,
    CM_REASON_INVALID_HOP_LIMIT = 16,
    CM_REASON_INVALID_PACKET_RATE = 17,
    CM_REASON_INVALID_ALTERNATE_GID = 18,
    CM_REASON_INVALID_ALTERNATE_LID = 19,
    CM_REASON_INVALID_ALTERNATE_SL = 20,
    CM_REASON_INVALID_ALTERNATE_TRAFFIC_CLASS = 21,
    CM_REASON_INVALID_ALTERNATE_HOP_LIMIT = 22,
    CM_REASON_INVALID_ALTERNATE_PACKET_RATE = 23,
    CM_REASON_PORT_CM_REDIRECT = 24,
    CM_REASON_PORT_REDIRECT = 25,
    CM_REASON_INVALID_PATH_MTU = 26,
    CM_REASON_NO_RESPONDER_RESOURCES = 27,
    CM_REASON_CONSUMER = 28,
    CM_REASON_RNR_RETRY_COUNT = 29,
    CM_REASON_DUPLICATE_COMM_ID = 30,
    CM_REASON_INVALID_CLASS_VERSION = 31,
    CM_REASON_INVALID_FLOW_LABEL = 32,
    CM_REASON_INVALID_ALTERNATE_FLOW_LABEL = 33,
    CM_REASON_VENDOR_OPTION = 35,
};

/* Status of a SIDR_REP (IBA table 120); event->status of RDMA_CM_EVENT_UNREACHABLE if it is not negative. */
enum cm_sidr_status {
    CM_SIDR_VALID = 0,
    CM_SIDR_INVALID_SERVICE_ID = 1,
    CM_SIDR_REJECTED = 2,
    CM_SIDR_NO_QP = 3,
    CM_SIDR_REDIRECT = 4,
    CM_SIDR_UNSUPPORTED_VERSION = 5,
};

/* Status of an APR (IBA table 116). */
enum cm_apr_status { CM_APR_LOADED = 0, CM_APR_INVALID_COMM_ID = 1, CM_APR_UNSUPPORTED = 2 };

/* Transport service type of a REQ (IBA table 106). */
enum cm_service { CM_SERVICE_RC = 0, CM_SERVICE_UC = 1, CM_SERVICE_RD = 2, CM_SERVICE_EXTENDED = 3 };

/* Largest code of a time in CM messages: 5 bits, 4.096 us * 2^code. */
#define CM_TIME_MAX 31

/* Enhanced connection establishment: vendor id (24 bits) in the message, options in the MAD's attribute modifier. */
struct cm_ece {
    uint32_t vendor_id, options;
};

struct cm_path_fields {
    uint8_t local_gid[16], remote_gid[16]; /* from the view of the message's sender */
    uint16_t local_lid, remote_lid;
    uint32_t flow_label;
    uint8_t packet_rate, traffic_class, hop_limit, service_level;
    bool subnet_local;
    uint8_t local_ack_timeout;
};

struct cm_req {
    uint64_t service_id, ca_guid;
    uint32_t qkey, qpn, eecn, remote_eecn, starting_psn;
    uint8_t responder_resources, initiator_depth;
    uint8_t remote_response_timeout, local_response_timeout;
    uint8_t service; /* enum cm_service */
    bool flow_control;
    uint8_t retry_count, rnr_retry_count, max_cm_retries;
    uint16_t pkey;
    uint8_t path_mtu; /* enum ibv_mtu */
    bool rdc_exists, srq;
    uint8_t extended_service;
    struct cm_path_fields primary, alternate;
    struct cm_ece ece;
};

struct cm_rep {
    uint32_t qkey, qpn, eecn, starting_psn;
    uint8_t responder_resources, initiator_depth, target_ack_delay;
    uint8_t failover; /* 0: accepted, 1: not supported, 2: rejected */
    bool flow_control, srq;
    uint8_t rnr_retry_count;
    uint64_t ca_guid;
    struct cm_ece ece;
};

struct cm_rej {
    uint8_t message; /* enum cm_message */
    uint16_t reason; /* enum cm_reason */
    uint8_t info_length;
    uint8_t info[CM_INFO_MAX];
};

struct cm_mra {
    uint8_t message; /* enum cm_message */
    uint8_t service_timeout;
};

struct cm_dreq {
    uint32_t remote_qpn;
};

struct cm_lap {
    uint32_t remote_qpn;
    uint8_t remote_response_timeout;
    struct cm_path_fields alternate;
};

struct cm_apr {
    uint8_t status; /* enum cm_apr_status */
    uint8_t info_length;
    uint8_t info[CM_INFO_MAX];
};

struct cm_sidr_req {
    uint64_t service_id;
    uint16_t pkey;
};

struct cm_sidr_rep {
    uint64_t service_id;
    uint8_t status; /* enum cm_sidr_status */
    uint32_t qpn, qkey;
    uint8_t info_length;
    uint8_t info[CM_INFO_MAX];
    struct cm_ece ece;
};

struct cm_mad {
    uint16_t attribute; /* enum cm_attribute */
    uint64_t transaction_id;
    uint32_t local_comm_id;  /* of the sender; SIDR_REQ: request id */
    uint32_t remote_comm_id; /* of the receiver; SIDR_REP: request id */
    union {
        struct cm_req req;
        struct cm_rep rep;
        struct cm_rej rej;
        struct cm_mra mra;
        struct cm_dreq dreq;
        struct cm_lap lap;
        struct cm_apr apr;
        struct cm_sidr_req sidr_req;
        struct cm_sidr_rep sidr_rep;
    };
    uint8_t private_length; /* encoding: at most cm_mad_private_length(); decoding: exactly that */
    uint8_t private_data[CM_PRIVATE_MAX];
};

/* Size of the private data field, 0 for an unknown attribute. */
uint8_t cm_mad_private_length(uint16_t attribute);
/* "REQ", "MRA", ...; NULL for an unknown attribute. */
const char *cm_mad_name(uint16_t attribute);

/* Accepts any bytes from an attacker. 0: every field is within the width of its message field, and lengths are at
 * most the size of the data; the caller checks values of enums. Else -EPROTO (malformed), -EPROTONOSUPPORT (class
 * or method is not the CM's, or the attribute is unknown), or -EPFNOSUPPORT (another class version; attribute,
 * transaction id and comm ids are set nevertheless). */
int cm_mad_decode(const void *bytes, size_t length, struct cm_mad *ret_mad);

/* Writes all MAD_LENGTH bytes. Values wider than their message field are truncated. */
void cm_mad_encode(const struct cm_mad *mad, uint8_t ret_bytes[MAD_LENGTH]);

/* The process of this host that a MAD is for. Cheaper than decoding. */
enum cm_addressee {
    CM_FOR_NOBODY,  /* not a known CM message */
    CM_FOR_SERVICE, /* the listener at service_id: REQ, SIDR_REQ */
    CM_FOR_ID,      /* the owner of comm_id: its upper 16 bits name the block (cm/cm.h) */
    /* A REJ with reason timeout whose sender has not learned our comm id: for the process that has a request from
     * comm_id of that peer. The caller offers it to every process. */
    CM_FOR_REQUEST,
};
enum cm_addressee cm_mad_addressee(const void *bytes, size_t length, uint32_t *ret_comm_id,
                                   uint64_t *ret_service_id);

/* Does this message claim that local_comm_id belongs to its sender? Then returns it in *ret_comm_id. REJ, DREP and
 * APR do not, because another process may send them for one that is gone; the receiver matches them by transaction
 * id. */
bool cm_mad_claim(const void *bytes, size_t length, uint32_t *ret_comm_id);

#endif
