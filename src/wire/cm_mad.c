/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
#include "wire/cm_mad.h"

#include <errno.h>
#include <string.h>

#include "wire/cursor.h"

static const struct {
    const char *name;
    uint8_t private_length;
} messages[] = {
    [CM_REQ - CM_REQ] = {"REQ", CM_REQ_PRIVATE},
    [CM_MRA - CM_REQ] = {"MRA", CM_MRA_PRIVATE},
    [CM_REJ - CM_REQ] = {"REJ", CM_REJ_PRIVATE},
    [CM_REP - CM_REQ] = {"REP", CM_REP_PRIVATE},
    [CM_RTU - CM_REQ] = {"RTU", CM_RTU_PRIVATE},
    [CM_DREQ - CM_REQ] = {"DREQ", CM_DREQ_PRIVATE},
    [CM_DREP - CM_REQ] = {"DREP", CM_DREP_PRIVATE},
    [CM_SIDR_REQ - CM_REQ] = {"SIDR_REQ", CM_SIDR_REQ_PRIVATE},
    [CM_SIDR_REP - CM_REQ] = {"SIDR_REP", CM_SIDR_REP_PRIVATE},
    [CM_LAP - CM_REQ] = {"LAP", CM_LAP_PRIVATE},
    [CM_APR - CM_REQ] = {"APR", CM_APR_PRIVATE},
};

static bool is_known(uint16_t attribute)
{
    return attribute >= CM_REQ && attribute <= CM_APR;
}

uint8_t cm_mad_private_length(uint16_t attribute)
{
    return is_known(attribute) ? messages[attribute - CM_REQ].private_length : 0;
}

const char *cm_mad_name(uint16_t attribute)
{
    return is_known(attribute) ? messages[attribute - CM_REQ].name : NULL;
}

static void skip(struct cursor_in *in, unsigned count)
{
    cursor_get(in, count);
}

static void zeros(struct cursor_out *out, unsigned count)
{
    cursor_put(out, 0, count);
}

/* --- paths ---------------------------------------------------------------------------------------- */

static void get_addresses(struct cursor_in *in, struct cm_path_fields *path)
{
    path->local_lid = cursor_get16(in);
    path->remote_lid = cursor_get16(in);
    cursor_copy_out(in, path->local_gid, sizeof(path->local_gid));
    cursor_copy_out(in, path->remote_gid, sizeof(path->remote_gid));
}

static void put_addresses(struct cursor_out *out, const struct cm_path_fields *path)
{
    cursor_put16(out, path->local_lid);
    cursor_put16(out, path->remote_lid);
    cursor_copy_in(out, path->local_gid, sizeof(path->local_gid));
    cursor_copy_in(out, path->remote_gid, sizeof(path->remote_gid));
}

/* SL, subnet local, local ACK timeout: the last fields of a path in REQ and LAP. */
static void get_path_end(struct cursor_in *in, struct cm_path_fields *path)
{
    uint8_t byte = cursor_get8(in);

    path->service_level = byte >> 4;
    path->subnet_local = byte & 0x08;
    path->local_ack_timeout = cursor_get8(in) >> 3;
}

static void put_path_end(struct cursor_out *out, const struct cm_path_fields *path)
{
    cursor_put8(out, (uint8_t)(path->service_level << 4 | (path->subnet_local ? 0x08 : 0)));
    cursor_put8(out, (uint8_t)(path->local_ack_timeout << 3));
}

static void get_req_path(struct cursor_in *in, struct cm_path_fields *path)
{
    uint32_t word;

    get_addresses(in, path);
    word = cursor_get32(in);
    path->flow_label = word >> 12;
    path->packet_rate = word & 0x3f;
    path->traffic_class = cursor_get8(in);
    path->hop_limit = cursor_get8(in);
    get_path_end(in, path);
}

static void put_req_path(struct cursor_out *out, const struct cm_path_fields *path)
{
    put_addresses(out, path);
    cursor_put32(out, path->flow_label << 12 | (path->packet_rate & 0x3f));
    cursor_put8(out, path->traffic_class);
    cursor_put8(out, path->hop_limit);
    put_path_end(out, path);
}

/* The same fields in another order (IBA table 115). */
static void get_lap_path(struct cursor_in *in, struct cm_path_fields *path)
{
    uint32_t word;

    get_addresses(in, path);
    word = cursor_get32(in);
    path->flow_label = word >> 12;
    path->traffic_class = (uint8_t)word;
    path->hop_limit = cursor_get8(in);
    path->packet_rate = cursor_get8(in) & 0x3f;
    get_path_end(in, path);
}

static void put_lap_path(struct cursor_out *out, const struct cm_path_fields *path)
{
    put_addresses(out, path);
    cursor_put32(out, path->flow_label << 12 | path->traffic_class);
    cursor_put8(out, path->hop_limit);
    cursor_put8(out, path->packet_rate & 0x3f);
    put_path_end(out, path);
}

/* --- messages, after the comm ids (IBA tables 106 to 120) ------------------------------------------ */

static void get_req(struct cursor_in *in, struct cm_req *req)
{
    uint8_t byte;

    req->service_id = cursor_get64(in);
    req->ca_guid = cursor_get64(in);
    skip(in, 4);
    req->qkey = cursor_get32(in);
    req->qpn = cursor_get24(in);
    req->responder_resources = cursor_get8(in);
    req->eecn = cursor_get24(in);
    req->initiator_depth = cursor_get8(in);
    req->remote_eecn = cursor_get24(in);
    byte = cursor_get8(in);
    req->remote_response_timeout = byte >> 3;
    req->service = byte >> 1 & 3;
    req->flow_control = byte & 1;
    req->starting_psn = cursor_get24(in);
    byte = cursor_get8(in);
    req->local_response_timeout = byte >> 3;
    req->retry_count = byte & 7;
    req->pkey = cursor_get16(in);
    byte = cursor_get8(in);
    req->path_mtu = byte >> 4;
    req->rdc_exists = byte & 0x08;
    req->rnr_retry_count = byte & 7;
    byte = cursor_get8(in);
    req->max_cm_retries = byte >> 4;
    req->srq = byte & 0x08;
    req->extended_service = byte & 7;
    get_req_path(in, &req->primary);
    get_req_path(in, &req->alternate);
}

static void put_req(struct cursor_out *out, const struct cm_req *req)
{
    cursor_put64(out, req->service_id);
    cursor_put64(out, req->ca_guid);
    zeros(out, 4);
    cursor_put32(out, req->qkey);
    cursor_put24(out, req->qpn);
    cursor_put8(out, req->responder_resources);
    cursor_put24(out, req->eecn);
    cursor_put8(out, req->initiator_depth);
    cursor_put24(out, req->remote_eecn);
    cursor_put8(out, (uint8_t)(req->remote_response_timeout << 3 | (req->service & 3) << 1 |
                               (req->flow_control ? 1 : 0)));
    cursor_put24(out, req->starting_psn);
    cursor_put8(out, (uint8_t)(req->local_response_timeout << 3 | (req->retry_count & 7)));
    cursor_put16(out, req->pkey);
    cursor_put8(out,
                (uint8_t)(req->path_mtu << 4 | (req->rdc_exists ? 0x08 : 0) | (req->rnr_retry_count & 7)));
    cursor_put8(out,
                (uint8_t)(req->max_cm_retries << 4 | (req->srq ? 0x08 : 0) | (req->extended_service & 7)));
    put_req_path(out, &req->primary);
    put_req_path(out, &req->alternate);
}

static void get_rep(struct cursor_in *in, struct cm_rep *rep)
{
    uint8_t byte;

    rep->qkey = cursor_get32(in);
    rep->qpn = cursor_get24(in);
    rep->ece.vendor_id = (uint32_t)cursor_get8(in) << 16;
    rep->eecn = cursor_get24(in);
    rep->ece.vendor_id |= (uint32_t)cursor_get8(in) << 8;
    rep->starting_psn = cursor_get24(in);
    rep->ece.vendor_id |= cursor_get8(in);
    rep->responder_resources = cursor_get8(in);
    rep->initiator_depth = cursor_get8(in);
    byte = cursor_get8(in);
    rep->target_ack_delay = byte >> 3;
    rep->failover = byte >> 1 & 3;
    rep->flow_control = byte & 1;
    byte = cursor_get8(in);
    rep->rnr_retry_count = byte >> 5;
    rep->srq = byte & 0x10;
    rep->ca_guid = cursor_get64(in);
}

static void put_rep(struct cursor_out *out, const struct cm_rep *rep)
{
    cursor_put32(out, rep->qkey);
    cursor_put24(out, rep->qpn);
    cursor_put8(out, (uint8_t)(rep->ece.vendor_id >> 16));
    cursor_put24(out, rep->eecn);
    cursor_put8(out, (uint8_t)(rep->ece.vendor_id >> 8));
    cursor_put24(out, rep->starting_psn);
    cursor_put8(out, (uint8_t)rep->ece.vendor_id);
    cursor_put8(out, rep->responder_resources);
    cursor_put8(out, rep->initiator_depth);
    cursor_put8(
        out, (uint8_t)(rep->target_ack_delay << 3 | (rep->failover & 3) << 1 | (rep->flow_control ? 1 : 0)));
    cursor_put8(out, (uint8_t)(rep->rnr_retry_count << 5 | (rep->srq ? 0x10 : 0)));
    cursor_put64(out, rep->ca_guid);
}

static uint8_t get_info(struct cursor_in *in, uint8_t length, uint8_t info[CM_INFO_MAX])
{
    cursor_copy_out(in, info, CM_INFO_MAX);
    return length < CM_INFO_MAX ? length : CM_INFO_MAX;
}

static void get_rej(struct cursor_in *in, struct cm_rej *rej)
{
    uint8_t length;

    rej->message = cursor_get8(in) >> 6;
    length = cursor_get8(in) >> 1;
    rej->reason = cursor_get16(in);
    rej->info_length = get_info(in, length, rej->info);
}

static void put_rej(struct cursor_out *out, const struct cm_rej *rej)
{
    cursor_put8(out, (uint8_t)(rej->message << 6));
    cursor_put8(out, (uint8_t)(rej->info_length << 1));
    cursor_put16(out, rej->reason);
    cursor_copy_in(out, rej->info, CM_INFO_MAX);
}

static void get_lap(struct cursor_in *in, struct cm_lap *lap)
{
    skip(in, 4);
    lap->remote_qpn = cursor_get24(in);
    lap->remote_response_timeout = cursor_get8(in) >> 3;
    skip(in, 4);
    get_lap_path(in, &lap->alternate);
}

static void put_lap(struct cursor_out *out, const struct cm_lap *lap)
{
    zeros(out, 4);
    cursor_put24(out, lap->remote_qpn);
    cursor_put8(out, (uint8_t)(lap->remote_response_timeout << 3));
    zeros(out, 4);
    put_lap_path(out, &lap->alternate);
}

static void get_apr(struct cursor_in *in, struct cm_apr *apr)
{
    uint8_t length = cursor_get8(in);

    apr->status = cursor_get8(in);
    skip(in, 2);
    apr->info_length = get_info(in, length, apr->info);
}

static void put_apr(struct cursor_out *out, const struct cm_apr *apr)
{
    cursor_put8(out, apr->info_length);
    cursor_put8(out, apr->status);
    zeros(out, 2);
    cursor_copy_in(out, apr->info, CM_INFO_MAX);
}

static void get_sidr_req(struct cursor_in *in, struct cm_sidr_req *ret)
{
    ret->pkey = cursor_get16(in);
    skip(in, 2);
    ret->service_id = cursor_get64(in);
}

static void get_sidr_rep(struct cursor_in *in, struct cm_sidr_rep *rep)
{
    uint8_t length;

    rep->status = cursor_get8(in);
    length = cursor_get8(in);
    rep->ece.vendor_id = (uint32_t)cursor_get16(in) << 8;
    rep->qpn = cursor_get24(in);
    rep->ece.vendor_id |= cursor_get8(in);
    rep->service_id = cursor_get64(in);
    rep->qkey = cursor_get32(in);
    rep->info_length = get_info(in, length, rep->info);
}

static void put_sidr_rep(struct cursor_out *out, const struct cm_sidr_rep *rep)
{
    cursor_put8(out, rep->status);
    cursor_put8(out, rep->info_length);
    cursor_put16(out, (uint16_t)(rep->ece.vendor_id >> 8));
    cursor_put24(out, rep->qpn);
    cursor_put8(out, (uint8_t)rep->ece.vendor_id);
    cursor_put64(out, rep->service_id);
    cursor_put32(out, rep->qkey);
    cursor_copy_in(out, rep->info, CM_INFO_MAX);
}

/* --- comm ids --------------------------------------------------------------------------------------- */

/* The first fields of each message. */
static void get_comm_ids(struct cursor_in *in, struct cm_mad *mad)
{
    uint32_t first = cursor_get32(in);

    switch (mad->attribute) {
    case CM_REQ:
    case CM_SIDR_REQ:
        mad->local_comm_id = first;
        break;
    case CM_SIDR_REP:
        mad->remote_comm_id = first;
        break;
    default:
        mad->local_comm_id = first;
        mad->remote_comm_id = cursor_get32(in);
    }
}

static void put_comm_ids(struct cursor_out *out, const struct cm_mad *mad)
{
    switch (mad->attribute) {
    case CM_REQ:
    case CM_SIDR_REQ:
        cursor_put32(out, mad->local_comm_id);
        break;
    case CM_SIDR_REP:
        cursor_put32(out, mad->remote_comm_id);
        break;
    default:
        cursor_put32(out, mad->local_comm_id);
        cursor_put32(out, mad->remote_comm_id);
    }
}

/* --- whole messages --------------------------------------------------------------------------------- */

/* Decodes the header of a CM message. Returns as cm_mad_decode(). */
static int get_header(const void *bytes, size_t length, struct mad_header *ret_header)
{
    int result = mad_decode_header(bytes, length, ret_header);

    if (result)
        return result;
    if (ret_header->management_class != MAD_CLASS_CM || ret_header->method != MAD_METHOD_SEND ||
        !is_known(ret_header->attribute_id))
        return -EPROTONOSUPPORT;
    return ret_header->class_version == CM_CLASS_VERSION ? 0 : -EPFNOSUPPORT;
}

static struct cursor_in data_of(const void *bytes)
{
    return (struct cursor_in){.at = (const uint8_t *)bytes + MAD_HEADER_LENGTH,
                              .end = (const uint8_t *)bytes + MAD_LENGTH};
}

int cm_mad_decode(const void *bytes, size_t length, struct cm_mad *ret_mad)
{
    struct mad_header header;
    int result = get_header(bytes, length, &header);
    struct cursor_in in;

    if (result && result != -EPFNOSUPPORT)
        return result;
    in = data_of(bytes);
    memset(ret_mad, 0, sizeof(*ret_mad));
    ret_mad->attribute = header.attribute_id;
    ret_mad->transaction_id = header.transaction_id;
    get_comm_ids(&in, ret_mad);
    if (result)
        return result; /* comm ids have the same place in all versions: the REJ has reason 31 */

    switch ((enum cm_attribute)ret_mad->attribute) {
    case CM_REQ:
        skip(&in, 1);
        ret_mad->req.ece.vendor_id = cursor_get24(&in);
        ret_mad->req.ece.options = header.attribute_modifier;
        get_req(&in, &ret_mad->req);
        break;
    case CM_REP:
        get_rep(&in, &ret_mad->rep);
        ret_mad->rep.ece.options = header.attribute_modifier;
        break;
    case CM_REJ:
        get_rej(&in, &ret_mad->rej);
        break;
    case CM_MRA:
        ret_mad->mra.message = cursor_get8(&in) >> 6;
        ret_mad->mra.service_timeout = cursor_get8(&in) >> 3;
        break;
    case CM_RTU:
    case CM_DREP:
        break;
    case CM_DREQ:
        ret_mad->dreq.remote_qpn = cursor_get24(&in);
        skip(&in, 1);
        break;
    case CM_LAP:
        get_lap(&in, &ret_mad->lap);
        break;
    case CM_APR:
        get_apr(&in, &ret_mad->apr);
        break;
    case CM_SIDR_REQ:
        get_sidr_req(&in, &ret_mad->sidr_req);
        break;
    case CM_SIDR_REP:
        get_sidr_rep(&in, &ret_mad->sidr_rep);
        ret_mad->sidr_rep.ece.options = header.attribute_modifier;
        break;
    }
    ret_mad->private_length = (uint8_t)(in.end - in.at);
    cursor_copy_out(&in, ret_mad->private_data, ret_mad->private_length);
    return 0;
}

static uint32_t attribute_modifier(const struct cm_mad *mad)
{
    switch (mad->attribute) {
    case CM_REQ:
        return mad->req.ece.options;
    case CM_REP:
        return mad->rep.ece.options;
    case CM_SIDR_REP:
        return mad->sidr_rep.ece.options;
    default:
        return 0;
    }
}

void cm_mad_encode(const struct cm_mad *mad, uint8_t ret_bytes[MAD_LENGTH])
{
    const struct mad_header header = {
        .base_version = MAD_BASE_VERSION,
        .management_class = MAD_CLASS_CM,
        .class_version = CM_CLASS_VERSION,
        .method = MAD_METHOD_SEND,
        .transaction_id = mad->transaction_id,
        .attribute_id = mad->attribute,
        .attribute_modifier = attribute_modifier(mad),
    };
    struct cursor_out out = {.at = ret_bytes + MAD_HEADER_LENGTH, .end = ret_bytes + MAD_LENGTH};
    const size_t space = cm_mad_private_length(mad->attribute);

    memset(ret_bytes, 0, MAD_LENGTH);
    mad_encode_header(&header, ret_bytes);
    put_comm_ids(&out, mad);
    switch ((enum cm_attribute)mad->attribute) {
    case CM_REQ:
        zeros(&out, 1);
        cursor_put24(&out, mad->req.ece.vendor_id);
        put_req(&out, &mad->req);
        break;
    case CM_REP:
        put_rep(&out, &mad->rep);
        break;
    case CM_REJ:
        put_rej(&out, &mad->rej);
        break;
    case CM_MRA:
        cursor_put8(&out, (uint8_t)(mad->mra.message << 6));
        cursor_put8(&out, (uint8_t)(mad->mra.service_timeout << 3));
        break;
    case CM_RTU:
    case CM_DREP:
        break;
    case CM_DREQ:
        cursor_put24(&out, mad->dreq.remote_qpn);
        zeros(&out, 1);
        break;
    case CM_LAP:
        put_lap(&out, &mad->lap);
        break;
    case CM_APR:
        put_apr(&out, &mad->apr);
        break;
    case CM_SIDR_REQ:
        cursor_put16(&out, mad->sidr_req.pkey);
        zeros(&out, 2);
        cursor_put64(&out, mad->sidr_req.service_id);
        break;
    case CM_SIDR_REP:
        put_sidr_rep(&out, &mad->sidr_rep);
        break;
    }
    cursor_copy_in(&out, mad->private_data, mad->private_length < space ? mad->private_length : space);
}

enum cm_addressee cm_mad_addressee(const void *bytes, size_t length, uint32_t *ret_comm_id,
                                   uint64_t *ret_service_id)
{
    struct mad_header header;
    struct cm_mad mad = {0};
    int result = get_header(bytes, length, &header);
    struct cursor_in in;

    if (result && result != -EPFNOSUPPORT)
        return CM_FOR_NOBODY;
    in = data_of(bytes);
    mad.attribute = header.attribute_id;
    get_comm_ids(&in, &mad);
    switch (mad.attribute) {
    case CM_REQ:
    case CM_SIDR_REQ:
        skip(&in, 4);
        *ret_service_id = cursor_get64(&in);
        return CM_FOR_SERVICE;
    case CM_REJ:
        if (!mad.remote_comm_id) {
            *ret_comm_id = mad.local_comm_id;
            return CM_FOR_REQUEST;
        }
        break;
    }
    *ret_comm_id = mad.remote_comm_id;
    return CM_FOR_ID;
}

bool cm_mad_claim(const void *bytes, size_t length, uint32_t *ret_comm_id)
{
    struct mad_header header;
    struct cm_mad mad = {0};
    struct cursor_in in;

    if (get_header(bytes, length, &header))
        return false;
    in = data_of(bytes);
    mad.attribute = header.attribute_id;
    get_comm_ids(&in, &mad);
    switch ((enum cm_attribute)mad.attribute) {
    case CM_REQ:
    case CM_MRA:
    case CM_REP:
    case CM_RTU:
    case CM_DREQ:
    case CM_LAP:
    case CM_SIDR_REQ:
        *ret_comm_id = mad.local_comm_id;
        return true;
    case CM_REJ:
    case CM_DREP:
    case CM_APR:
    case CM_SIDR_REP:
        break;
    }
    return false;
}
