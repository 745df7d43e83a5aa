/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What arrives at QP1: cm_mad_decode(), cm_mad_addressee(), and the IP addresses in private data. The first
 * byte of the input says whether the rest begins with a MAD header that is right. */
#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "wire/cm_mad.h"
#include "wire/cma_header.h"

/* Each field is in the range of its place in the message. */
static void check_fields(const struct cm_mad *mad)
{
    require(mad->private_length == cm_mad_private_length(mad->attribute));
    switch (mad->attribute) {
    case CM_REQ:
        require(mad->req.qpn <= 0xffffff && mad->req.starting_psn <= 0xffffff);
        require(mad->req.remote_response_timeout <= CM_TIME_MAX &&
                mad->req.local_response_timeout <= CM_TIME_MAX);
        require(mad->req.retry_count <= 7 && mad->req.rnr_retry_count <= 7 && mad->req.max_cm_retries <= 15);
        require(mad->req.service <= 3 && mad->req.path_mtu <= 15 && mad->req.extended_service <= 7);
        require(mad->req.primary.flow_label <= 0xfffff && mad->req.primary.packet_rate <= 0x3f);
        require(mad->req.primary.service_level <= 15 && mad->req.primary.local_ack_timeout <= CM_TIME_MAX);
        require(mad->req.ece.vendor_id <= 0xffffff);
        break;
    case CM_REP:
        require(mad->rep.qpn <= 0xffffff && mad->rep.starting_psn <= 0xffffff && mad->rep.failover <= 3);
        require(mad->rep.target_ack_delay <= CM_TIME_MAX && mad->rep.rnr_retry_count <= 7);
        require(mad->rep.ece.vendor_id <= 0xffffff);
        break;
    case CM_REJ:
        require(mad->rej.message <= 3 && mad->rej.info_length <= CM_INFO_MAX);
        break;
    case CM_MRA:
        require(mad->mra.message <= 3 && mad->mra.service_timeout <= CM_TIME_MAX);
        break;
    case CM_DREQ:
        require(mad->dreq.remote_qpn <= 0xffffff);
        break;
    case CM_LAP:
        require(mad->lap.remote_qpn <= 0xffffff && mad->lap.alternate.flow_label <= 0xfffff);
        break;
    case CM_APR:
        require(mad->apr.info_length <= CM_INFO_MAX);
        break;
    case CM_SIDR_REP:
        require(mad->sidr_rep.qpn <= 0xffffff && mad->sidr_rep.info_length <= CM_INFO_MAX);
        break;
    default:
        require(mad->attribute >= CM_REQ && mad->attribute <= CM_APR);
    }
}

static void check_addressee(const uint8_t *bytes, size_t length, const struct cm_mad *mad)
{
    uint32_t comm_id = 0;
    uint64_t service_id = 0;

    switch (cm_mad_addressee(bytes, length, &comm_id, &service_id)) {
    case CM_FOR_NOBODY:
        require(!mad);
        break;
    case CM_FOR_SERVICE:
        require(mad &&
                service_id == (mad->attribute == CM_REQ ? mad->req.service_id : mad->sidr_req.service_id));
        break;
    case CM_FOR_ID:
        require(mad && comm_id == mad->remote_comm_id);
        break;
    case CM_FOR_REQUEST:
        require(mad && mad->attribute == CM_REJ && !mad->remote_comm_id && comm_id == mad->local_comm_id);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[MAD_LENGTH] = {0}, again[MAD_LENGTH], header_bytes[CMA_HEADER_LENGTH];
    struct cm_mad mad, twice;
    struct cma_header header;
    const uint8_t *input;
    size_t length;
    int result;

    if (!size)
        return 0;
    input = data + 1;
    length = size - 1;
    if (!cma_header_decode(input, length, &header)) {
        require(header.ip_version == 4 || header.ip_version == 6);
        cma_header_encode(&header, header_bytes);
        require(!memcmp(header_bytes + 2, input + 2, 2));
    }
    if (data[0] & 1) {
        memcpy(bytes, input, length < MAD_LENGTH ? length : MAD_LENGTH);
        bytes[0] = MAD_BASE_VERSION;
        bytes[1] = MAD_CLASS_CM;
        bytes[2] = CM_CLASS_VERSION;
        bytes[3] = MAD_METHOD_SEND;
        bytes[16] = 0;
        bytes[17] = (uint8_t)(CM_REQ + bytes[17] % 11);
        input = bytes;
        length = MAD_LENGTH;
    }
    result = cm_mad_decode(input, length, &mad);
    require(!result || result == -EPROTO || result == -EPROTONOSUPPORT || result == -EPFNOSUPPORT);
    require(!(data[0] & 1) || !result);
    if (result == -EPFNOSUPPORT)
        return 0;
    check_addressee(input, length, result ? NULL : &mad);
    if (result)
        return 0;
    check_fields(&mad);
    cm_mad_encode(&mad, again);
    require(!cm_mad_decode(again, sizeof(again), &twice));
    require(!memcmp(&mad, &twice, sizeof(mad)));
    return 0;
}

/* Each message with every bit set, and with none. */
void fuzz_seeds(fuzz_add *add)
{
    for (unsigned fixed = 0; fixed < 2; fixed++)
        for (unsigned attribute = CM_REQ; attribute <= CM_APR; attribute++)
            for (unsigned fill = 0; fill < 2; fill++) {
                uint8_t input[1 + MAD_LENGTH] = {(uint8_t)fixed};
                struct cm_mad mad = {.attribute = (uint16_t)attribute};

                cm_mad_encode(&mad, input + 1);
                memset(input + 1 + MAD_HEADER_LENGTH, fill ? 0xff : 0, MAD_LENGTH - MAD_HEADER_LENGTH);
                add(input, sizeof(input));
            }
    add((const uint8_t[1 + CMA_HEADER_LENGTH]){0, 0, 0x40}, 1 + CMA_HEADER_LENGTH);
    add((const uint8_t[1 + CMA_HEADER_LENGTH]){0, 0, 0x60, 0x12, 0x34, 0xfd}, 1 + CMA_HEADER_LENGTH);
}
